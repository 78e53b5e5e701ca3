"""Who did what of which the audit log tells: events, and whom the broker serves when they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.errors import ConfigError
from trivium.observability.served import ServedRequest
from trivium.runtime.adapter import Connection

if TYPE_CHECKING:
    from trivium.observability.audit import AuditLog
    from trivium.runtime.broker import Broker


class Auditing:
    """The audit log of one broker. Raises ConfigError if its file cannot be opened, or if what is
    to be written has none."""

    def __init__(self, broker: Broker) -> None:
        config = broker.config.audit
        if config.events and not config.file and not config.log:
            raise ConfigError("[audit] events go nowhere: there is neither a file nor log = true")
        self._broker = broker
        self._log: AuditLog | None = None
        if config.file or config.log:
            from trivium.observability.audit import AuditLog

            self._log = AuditLog(config)

    def start(self) -> None:
        """From now on something happens: what was recovered is nobody's doing."""
        if self._log is not None:
            self._broker.events.listen(self._heard)

    def tick(self) -> None:
        """Called about once a second."""
        if self._log is not None:
            self._log.begin_minute(self._broker.now_ms)

    def reload(self) -> None:
        """Open the file again by its name."""
        if self._log is not None:
            self._log.reopen()

    def stop(self) -> None:
        """Write what waits."""
        if self._log is not None:
            self._log.close()
            self._log = None

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return 0 if self._log is None else self._log.lost

    def _heard(self, event: str, about: dict[str, object]) -> None:
        if self._log is None:
            return
        who: dict[str, object] = {}
        host = str(about.get("address", ""))
        connection = self._broker.events.serving
        if isinstance(connection, Connection):
            listener = connection.peer.listener
            address = connection.peer.address
            host = address.rpartition(":")[0]
            # With its port, which an attempt to come in does not have.
            about = {**about, "address": address}
            who["address"] = address
            who["protocol"] = listener.config.protocol
            who["listener"] = listener.name
            if connection.login is not None:
                who["user"] = connection.identity.name
                who["client_id"] = connection.client_id.decode(errors="replace")
                who["vhost"] = connection.access.vhost
        elif isinstance(connection, ServedRequest):
            who["address"] = connection.address
            who["protocol"] = connection.listener.protocol
            who["listener"] = connection.listener.name
            who["user"] = connection.identity.name
        self._log.write(self._broker.now_ms, event, {**who, **about}, host)
