"""The virtual hosts of a broker: which there are, and what is set about them.

Each has a row in the table ``vhosts``, but for ``/`` while nothing is set about that. Those that
the configuration names are made at the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.quotas import VHOST
from trivium.errors import LimitExceeded, NotFound
from trivium.vhost.settings import VirtualHostSettings, check_vhost_name, settings_of_row
from trivium.vhost.virtual_host import VirtualHost

if TYPE_CHECKING:
    from trivium.runtime.adapter import Connection
    from trivium.runtime.broker import Broker

#: Where clients are that name no other.
DEFAULT_VHOST: Final = "/"

#: Virtual hosts of one broker: each has some twenty tables in memory.
MAX_VHOSTS: Final = 10_000


class VirtualHosts:
    """Those of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: those that clients may enter
        self.by_name: dict[str, VirtualHost] = {}

    def open(self) -> None:
        """Bring back those that the storage has."""
        rows = {key.decode(): row for key, row in self._broker.storage.table("vhosts").items()}
        rows.setdefault(DEFAULT_VHOST, b"")
        for name, row in sorted(rows.items()):
            self._open(name, settings_of_row(row))
        for listener in self._broker.config.all_listeners():
            if listener.virtual_host:
                self.declare(listener.virtual_host)

    def get(self, name: str) -> VirtualHost:
        """The virtual host called ``name``. Raises NotFound."""
        found = self.by_name.get(name)
        if found is None:
            raise NotFound(f"vhost {name} not found")
        return found

    def chosen(self, connection: Connection, wanted: str) -> VirtualHost:
        """The virtual host of a client that asks for ``wanted``.

        That of its listener is binding. There ``/``, which many clients ask for without a choice,
        means it. Raises NotFound; AccessRefused where another is asked for.
        """
        own = connection.peer.listener.config.virtual_host
        if not own or wanted == own:
            return self.get(wanted)
        if wanted in ("", DEFAULT_VHOST):
            return self.get(own)
        access = self._broker.permissions.access(connection.identity, wanted)
        raise access.refused(f"access to vhost '{wanted}'")

    def declare(self, name: str, settings: VirtualHostSettings | None = None) -> VirtualHost:
        """The virtual host called ``name``, made when it is new, and set up so where ``settings``
        are given. Raises PreconditionFailed, LimitExceeded."""
        found = self.by_name.get(name)
        if found is None:
            check_vhost_name(name)
            if len(self.by_name) >= MAX_VHOSTS:
                raise LimitExceeded(f"there are {MAX_VHOSTS} virtual hosts")
            found = self._open(name, settings or VirtualHostSettings())
            found.tell("vhost.created")
        elif settings is None or settings == found.settings:
            return found
        else:
            found.settings = settings
            self._broker.quotas.set_limits(VHOST, name, settings.limits)
            found.tell("vhost.set")
        self._broker.storage.table("vhosts").put(name.encode(), found.settings.row())
        return found

    def _open(self, name: str, settings: VirtualHostSettings) -> VirtualHost:
        broker = self._broker
        broker.quotas.set_limits(VHOST, name, settings.limits)
        opened = VirtualHost(
            broker, name, broker.dead_letters, broker.recovered_joins, broker.default_delivery
        )
        opened.settings = settings
        self.by_name[name] = opened
        return opened
