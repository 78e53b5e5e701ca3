"""When a connection was last heard of: handshake time limit, heartbeats, unanswered closes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.runtime.framed import FAREWELL_MS
from trivium_amqp import states
from trivium_amqp.codec.frames import HEARTBEAT_FRAME

if TYPE_CHECKING:
    from trivium_amqp.connection import AmqpConnection

#: Milliseconds that the disk gets before connection.close is sent without what waits for it, and
#: then the client to answer that before its socket is closed.
CLOSE_MS: Final = FAREWELL_MS
#: Milliseconds until one is looked at again whose credentials are still being looked at.
LOOK_AGAIN_MS: Final = 1000


class Liveness(Timed):
    """Looks at one connection whenever something of it may be due.

    All times are ``Broker.elapsed_ms``. Each look says when the next one is wanted, so a heartbeat
    is sent when it is due and not at the next of some regular looks.
    """

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection: AmqpConnection | None = connection
        self._timeouts = connection.broker.timeouts
        #: negotiated interval in milliseconds, 0 for no heartbeats
        self.heartbeat = 0
        #: when the client came, or was sent connection.close: it must go on soon
        self.began_at = connection.came_at
        self.sent_at = connection.heard_at

    def due(self) -> None:
        connection = self._connection
        if connection is not None:
            next_at = self._look(connection)
            if next_at:
                self._timeouts.call_at(next_at, self)

    def _look(self, connection: AmqpConnection) -> int:
        """Do what is due for it to live, or to end; when to look again, 0 for never."""
        now = connection.broker.elapsed_ms
        if connection.is_closed:
            return 0
        if connection.state is states.CLOSING:
            if now < self.began_at + CLOSE_MS:
                return self.began_at + CLOSE_MS
            if connection.replies.give_up():
                self.began_at = now
                return now + CLOSE_MS
            # It may yet read what it was told.
            connection.close()
            return 0
        if connection.state is not states.RUNNING:
            limit = int(connection.broker.config.limits.handshake_seconds * 1000)
            if now < self.began_at + limit:
                return self.began_at + limit
            if connection.held_for:
                # Its answer is up to us, so it need not hurry.
                return now + LOOK_AGAIN_MS
            connection.metrics.protocol_errors += 1
            connection.transport.abort()
            return 0
        if self.heartbeat == 0:
            return 0
        # While we do not read, we cannot know.
        if connection.held_for:
            connection.heard_at = now
        if self.dead_at(connection.heard_at) <= now:
            connection.transport.abort()
            return 0
        if self.heartbeat_at() <= now:
            connection.send(HEARTBEAT_FRAME)
            self.sent_at = now
        return min(self.heartbeat_at(), self.dead_at(connection.heard_at))

    def stop(self) -> None:
        """The connection is gone: nothing is looked at, nor keeps it in memory."""
        self._timeouts.stop(self)
        self._connection = None

    def heartbeat_at(self) -> int:
        """When a heartbeat is to be sent: after half the interval without output (4.2.7)."""
        return self.sent_at + self.heartbeat // 2

    def dead_at(self, heard_at: int) -> int:
        """When a client heard of at ``heard_at`` counts as dead: after two intervals (4.2.7)."""
        return heard_at + 2 * self.heartbeat
