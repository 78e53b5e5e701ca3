"""What operators see of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.common.descriptions import ConnectionDescription, ConsumerDescription
from trivium.runtime.adapter import ManagedConnection
from trivium_mqtt.codec.reasons import ADMINISTRATIVE_ACTION

if TYPE_CHECKING:
    from trivium_mqtt.connection import MqttConnection


class MqttManaged(ManagedConnection):
    """One connection; ``keep_alive`` in seconds."""

    def __init__(self, connection: MqttConnection, keep_alive: int) -> None:
        super().__init__(connection)
        self._connection = connection
        self._keep_alive = keep_alive

    def describe(self) -> ConnectionDescription:
        connection = self._connection
        state = "running" if connection.is_connected else "starting"
        version = "5-0" if connection.is_v5 else "3-1" if connection.ignores_flags else "3-1-1"
        return ConnectionDescription(
            protocol=f"MQTT {version}",
            state="closing" if connection.is_closed else state,
            client={"client_id": connection.client_id.decode(errors="replace")},
            max_frame=connection.maximum_packet,
            timeout=self._keep_alive,
        )

    def consumers(self) -> list[ConsumerDescription]:
        session = self._connection.session
        if session is None or session.outgoing is None:
            return []
        found = session.outgoing.describe()
        return [] if found is None else [found]

    def close(self, reason: str) -> None:
        # Without a reason string: the client may have asked for none (MQTT-3.1.2-29).
        self._connection.end(ADMINISTRATIVE_ACTION)
