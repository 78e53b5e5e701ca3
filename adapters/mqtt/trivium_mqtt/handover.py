"""What a session leaves to those that share its subscriptions (4.8.2).

A session that ends may hold messages that a share gave to it. They go to other sessions of that
share, in order, each in the write batch of its settlement here; the rest goes with the session. A
backlog may be long and on disk, so it is a few at a time, and goes on after a restart: until it is
done, the queue is there without a session, and the client cannot have another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.queues.given_up import MOVED
from trivium.queues.queue import Consumer, Queue, QueueEntry
from trivium_mqtt.session import ANNOTATION_SHARED, SHARE_SIZE

if TYPE_CHECKING:
    from trivium_mqtt.connection import MqttConnection
    from trivium_mqtt.sessions import Sessions

#: Entries that are handed on in one turn.
MAX_PER_TURN: Final = 1024
#: Time until it is looked whether there is anything left.
LOOK_AGAIN_MS: Final = 1000


class Handover(Consumer):
    """The consumer of an ended session's queue.

    ``sent`` has the offsets of QoS 2 messages that nobody else may have, with their packet
    identifiers; ``shares`` the identities of the shares, None when not known.
    """

    def __init__(
        self,
        sessions: Sessions,
        client_id: bytes,
        queue: Queue,
        sent: dict[int, int],
        shares: set[bytes] | None,
    ) -> None:
        self._sessions = sessions
        self._client_id = client_id
        self._queue = queue
        self._sent = sent
        self._shares = shares
        self._credit = 0
        self._next_turn = _NextTurn(self)
        #: connections of the client that wait for the end
        self.waiting: list[MqttConnection] = []
        queue.add_consumer(self)

    def go_on(self) -> None:
        """Hand on what may be in this turn, while there is anybody to take it."""
        queue = self._queue
        if queue.is_deleted:
            return
        self._credit = MAX_PER_TURN
        sessions = self._sessions
        is_wanted = sessions.shares.have_members(self._shares)
        if is_wanted:
            queue.dispatch()
        if not is_wanted or len(queue) == 0:
            sessions.vhost.delete_queue(queue)
        else:
            # What expires, or is dropped otherwise, does not come here.
            broker = sessions.broker
            broker.timeouts.call_at(broker.elapsed_ms + LOOK_AGAIN_MS, self._next_turn)

    def takes_delivery(self) -> bool:
        return self._credit > 0

    def deliver(self, entry: QueueEntry) -> None:
        self._credit -= 1
        sessions = self._sessions
        annotation = entry.annotation
        if entry.offset in self._sent:
            sessions.metrics.messages_dropped += 1
            sessions.store.delete_outgoing(self._client_id, self._sent.pop(entry.offset))
        elif annotation and annotation[0] & ANNOTATION_SHARED:
            sessions.shares.hand_on(annotation[1 : 1 + SHARE_SIZE], entry.message)
        self._queue.given_up.drop(entry, MOVED)
        broker = sessions.broker
        broker.timeouts.call_at(broker.elapsed_ms, self._next_turn)

    def cancelled(self) -> None:
        """The queue is gone, so this is done."""
        sessions = self._sessions
        for packet_id in self._sent.values():
            sessions.store.delete_outgoing(self._client_id, packet_id)
        del sessions.handovers[self._client_id]
        for connection in self.waiting:
            connection.former_session_ended()


class _NextTurn(Timed):
    """Goes on in the next turn."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def due(self) -> None:
        self._handover.go_on()
