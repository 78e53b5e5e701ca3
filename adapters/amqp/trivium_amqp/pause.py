"""Publishers are paused while the broker is short of memory or disk (connection.blocked)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium_amqp.codec import methods
from trivium_amqp.codec.frames import method_frame
from trivium_amqp.handshake import FOR_ANSWERS

if TYPE_CHECKING:
    from trivium_amqp.connection import AmqpConnection

#: Why input is held: the client publishes while publishers are paused.
FOR_BROKER: Final = FOR_ANSWERS << 1

#: A reply text is a short string.
_MAX_REASON_BYTES = 255


class Pause:
    """Whether publishers are paused, and what one client is told about it.

    Like RabbitMQ, those alone are told who publish, and when they do.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._reason = ""
        self._is_told = False

    def begin(self, reason: str) -> None:
        """Publishers are paused. An empty ``reason`` is for no client."""
        self.is_on = True
        self._reason = reason

    def hold(self, connection: AmqpConnection) -> None:
        """The client publishes meanwhile: read nothing until publishers may go on, and tell it once
        where it understands that."""
        connection.hold_input(FOR_BROKER)
        if not self._reason or self._is_told:
            return
        if connection.client.has_capability("connection.blocked"):
            self._is_told = True
            reason = self._reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
            connection.send(method_frame(0, methods.CONNECTION_BLOCKED, reason))

    def end(self) -> bytes:
        """Publishers may go on; connection.unblocked, if the client was told."""
        self.is_on = False
        if not self._is_told:
            return b""
        self._is_told = False
        return method_frame(0, methods.CONNECTION_UNBLOCKED)

    def forget_client(self) -> None:
        """The client is told nothing more."""
        self._is_told = False
