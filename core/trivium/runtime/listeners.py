"""What the broker listens on: the installed protocols that are configured, and HTTP."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from trivium.errors import ConfigError, TriviumError
from trivium.listen import ListenerConfig, join_address
from trivium.runtime.adapter import Adapter, Listener
from trivium.runtime.sockets import SocketDriver

if TYPE_CHECKING:
    from trivium.observability.http import HttpServer
    from trivium.runtime.server import Server

logger = logging.getLogger(__name__)

HTTP: Final = "http"

#: Connections that the kernel keeps for us while a turn lasts.
BACKLOG: Final = 1024

#: File descriptors that connections leave to storage and HTTP, and to those that the kernel hands
#: over in one turn before they can be refused; of a process with few, half.
RESERVED_FILES: Final = BACKLOG + 256


class Listeners:
    """Those of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._broker = server.broker
        self._listeners: list[asyncio.Server] = []
        self._http: list[HttpServer] = []

    async def start(self, adapters: list[Adapter]) -> None:
        """Listen as configured. Raises TriviumError where that is not possible."""
        by_name = {adapter.name: adapter for adapter in adapters}
        for config in self._broker.config.all_listeners():
            bound = self._bind(config)
            if config.protocol == HTTP:
                await self._start_http(config, bound)
            else:
                await self._listen(by_name[config.protocol], Listener(config), bound)

    def close(self) -> None:
        """Accept no more clients of a protocol."""
        for listener in self._listeners:
            listener.close()

    async def stop_http(self) -> None:
        """End the HTTP servers, which answer until then."""
        for server in self._http:
            await server.stop()

    async def _listen(
        self, adapter: Adapter, listener: Listener, sockets: list[socket.socket]
    ) -> None:
        loop = asyncio.get_running_loop()
        server = self._server

        def take() -> SocketDriver:
            return SocketDriver(server, adapter, listener)

        for bound in sockets:
            self._listeners.append(
                await loop.create_server(
                    lambda: server.driver.accept(take), sock=bound, backlog=BACKLOG
                )
            )

    async def _start_http(self, config: ListenerConfig, sockets: list[socket.socket]) -> None:
        from trivium.observability.http import HttpServer

        broker = self._broker
        server = HttpServer(
            self._server.driver,
            broker.authenticator,
            broker.unready,
            broker.metrics_text,
            config,
            broker.config.limits.handshake_seconds,
        )
        self._http.append(server)
        await server.start(sockets)

    def _bind(self, config: ListenerConfig) -> list[socket.socket]:
        """Sockets bound to the listener's addresses, all on one port; raises TriviumError."""
        name = config.name
        listen = config.listen
        port = listen.port
        sockets: list[socket.socket] = []
        for host in listen.hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                sockets.append(socket.create_server((host, port), family=family, backlog=BACKLOG))
            except OSError as error:
                # "localhost" asks for ::1 too, which a machine without IPv6 does not have.
                if sockets:
                    logger.info("%s does not listen on %s: %s", name, host, error)
                    continue
                raise TriviumError(
                    f"{name} cannot listen on {join_address(host, port)}: {error.strerror}"
                ) from None
            port = sockets[-1].getsockname()[1]
        self._broker.listeners[name] = join_address(listen.hosts[0], port)
        return sockets


def connection_limit(configured: int) -> int:
    """As many connections as are configured, or as leave the storage files to open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return configured
    allowed = max(files - RESERVED_FILES, files // 2)
    if allowed < configured:
        logger.debug("%d connections at most, by the limit of %d open files", allowed, files)
    return min(configured, allowed)


def load_adapters(
    listeners: Iterable[ListenerConfig], options: Mapping[str, object]
) -> list[Adapter]:
    """The installed adapters that the configuration names, in a stable order, with what it sets
    about them.

    Raises ConfigError when it names a protocol that nothing installed provides, or whose adapter
    does not load.
    """
    found = {entry.name: entry for entry in entry_points(group="trivium.adapters")}
    adapters: list[Adapter] = []
    for name in dict.fromkeys(listener.protocol for listener in listeners):
        if name == HTTP:
            continue
        if name not in found:
            raise ConfigError(f"no adapter for the protocol {name!r} is installed")
        try:
            make = found[name].load()
            adapters.append(make(options[name]) if name in options else make())
        except Exception as error:
            # An adapter may be anybody's code; whoever installed it needs its name, not our trace.
            raise ConfigError(f"the adapter for {name!r} does not load: {error}") from error
    return adapters
