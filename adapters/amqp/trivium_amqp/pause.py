"""Publishers are paused while the broker is short of memory or disk (connection.blocked)."""

from __future__ import annotations

from trivium_amqp.codec import methods
from trivium_amqp.codec.frames import method_frame

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

    def notice(self) -> bytes:
        """What a client that has published is to be sent: connection.blocked, if it is not told."""
        if not self._reason or self._is_told:
            return b""
        self._is_told = True
        reason = self._reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        return method_frame(0, methods.CONNECTION_BLOCKED, reason)

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
