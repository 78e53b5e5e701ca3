"""When a connection was last heard of: handshake time limit, heartbeats, unanswered closes."""

from __future__ import annotations

from typing import Final

#: Seconds that a client gets to answer connection.close before its socket is closed.
CLOSE_SECONDS: Final = 3.0


class Liveness:
    """Times are those of the latest ``tick``, in seconds on the monotonic clock."""

    def __init__(self) -> None:
        #: negotiated interval in seconds, 0 for no heartbeats
        self.heartbeat = 0
        #: set by the connection, looked at by the next tick
        self.has_received = False
        self.has_sent = False
        self._opened_at = -1.0
        self._received_at = 0.0
        self._sent_at = 0.0

    def tick(self, now: float) -> None:
        """Take note of what happened since the last call."""
        if self._opened_at < 0:
            self._opened_at = self._received_at = self._sent_at = now
        if self.has_received:
            self.has_received = False
            self._received_at = now
        if self.has_sent:
            self.has_sent = False
            self._sent_at = now

    def is_older_than(self, seconds: float, now: float) -> bool:
        """Whether the connection was made longer ago than this."""
        return now - self._opened_at > seconds

    def ignores_close(self, now: float) -> bool:
        """Whether a client that was sent connection.close had its time to answer."""
        return now - self._sent_at > CLOSE_SECONDS

    def owes_heartbeat(self, now: float) -> bool:
        """Whether nothing was sent for half the interval (4.2.7)."""
        return self.heartbeat > 0 and now - self._sent_at >= self.heartbeat / 2

    def is_dead(self, now: float) -> bool:
        """Whether nothing came for two intervals (4.2.7)."""
        return self.heartbeat > 0 and now - self._received_at > 2 * self.heartbeat
