"""What operators see of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.common.descriptions import ConnectionDescription, ConsumerDescription
from trivium.runtime.adapter import ManagedConnection
from trivium_native.server import states
from trivium_native.server.handshake import max_frame
from trivium_native.wire import frames
from trivium_native.wire.errors import ClosedByOperator

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection


class NativeManaged(ManagedConnection):
    """One connection; ``heartbeat`` in seconds."""

    def __init__(self, connection: NativeConnection, heartbeat: int) -> None:
        super().__init__(connection)
        self._connection = connection
        self._heartbeat = heartbeat

    def describe(self) -> ConnectionDescription:
        connection = self._connection
        is_open = connection.state is states.OPEN
        state = "running" if is_open else "starting"
        return ConnectionDescription(
            protocol=f"{frames.PROTOCOL_NAME} {frames.VERSION}",
            state="closing" if connection.is_closed else state,
            max_frame=max_frame(connection.options) if is_open else 0,
            timeout=self._heartbeat,
        )

    def consumers(self) -> list[ConsumerDescription]:
        every = [each.describe() for each in self._connection.subscriptions.values()]
        return [found for found in every if found is not None]

    def close(self, reason: str) -> None:
        self._connection.send_close(ClosedByOperator(reason))
