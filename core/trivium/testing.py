"""A broker that tests share, each in a virtual host of its own; ``trivium.pytest_plugin`` has the
fixtures.
"""

from __future__ import annotations

from trivium.config import Config
from trivium.embedded import EmbeddedBroker
from trivium.listen import ListenerConfig
from trivium.runtime.broker import server_of
from trivium.runtime.server import Server

#: Where its clients come from.
HOST = "127.0.0.1"


class SharedBroker(EmbeddedBroker):
    """It listens where a test asks for it, for one protocol and one virtual host each time."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._made = 0
        # The listeners of each virtual host that was made here, by protocol.
        self._listeners: dict[str, dict[str, str]] = {}

    def make_vhost(self) -> str:
        """A new virtual host; its name."""
        self._made += 1
        name = f"test-{self._made}"
        self._listeners[name] = {}
        self.call(_make(self._server, name))
        return name

    def delete_vhost(self, name: str) -> None:
        """Send the clients of a virtual host away, listen for it no more, and delete it.

        The last of it goes behind this, when its clients have left.
        """
        self.call(_delete(self._server, name, list(self._listeners.pop(name).values())))

    def listen(self, protocol: str, vhost: str = "/") -> str:
        """Listen for clients of a protocol; ``host:port``.

        They get into this virtual host, also those that name none. Asked again it is the same.
        Raises ConfigError for a protocol that is not installed.
        """
        names = self._listeners.setdefault(vhost, {})
        name = names.get(protocol)
        if name is None:
            name = f"{protocol}-{vhost}"
            config = ListenerConfig(
                protocol=protocol, address=f"{HOST}:0", name=name, virtual_host=vhost
            )
            self.call(self._server.listeners.add(config))
            names[protocol] = name
        return self.broker.listeners[name]

    @property
    def _server(self) -> Server:
        return server_of(self.broker)


async def _make(server: Server, name: str) -> None:
    def make() -> None:
        server.broker.virtual_hosts.declare(name)

    server.driver.call(make)


async def _delete(server: Server, name: str, listeners: list[str]) -> None:
    for listener in listeners:
        server.listeners.remove(listener)

    def delete() -> None:
        # A test may have done it.
        if name in server.broker.vhosts:
            server.broker.virtual_hosts.delete(name, _nothing)

    server.driver.call(delete)


def _nothing() -> None:
    """Nobody waits for the end of a deletion."""
