"""QoS 1 and 2 toward one client (4.3): the consumer of a session's queue.

An entry is taken when the client's receive maximum has room (MQTT5 4.9), gets a packet identifier,
and stays here, also while the client is away, until it is acknowledged; a returning client gets it
again under the same identifier (MQTT-4.4.0-1).

At QoS 2, in a persistent session on disk, two facts become durable before the client can know of
them: which identifier a message got, before PUBLISH is sent; and that PUBREC came, before PUBREL is
sent. So a crash never makes a message look new to a client that has it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from trivium.common.descriptions import ConsumerDescription
from trivium.messages.message import AT_LEAST_ONCE, PROTOCOL_MQTT, Message
from trivium.queues.given_up import UNDELIVERABLE
from trivium.queues.queue import Consumer, Queue, QueueEntry
from trivium.queues.unsettled import Unsettled
from trivium.routing.exchanges import ACCEPTED, REJECTED
from trivium.runtime.adapter import LARGE_OUTPUT, OUTPUT_HIGH_WATER
from trivium_mqtt.codec.packets import (
    PLAIN_SIZE,
    PUBACK,
    PUBREL,
    acknowledgement,
    plain_acknowledgement,
)
from trivium_mqtt.codec.reasons import ProtocolError
from trivium_mqtt.codec.wire import PACKET_IDS
from trivium_mqtt.encoder import DUP, RETAIN, PublishEncoder
from trivium_mqtt.session import (
    ANNOTATION_QOS,
    ANNOTATION_RETAIN,
    ANNOTATION_SHARED,
    SHARE_SIZE,
    Session,
)
from trivium_mqtt.store import SessionStore

if TYPE_CHECKING:
    from trivium.observability.metrics import ProtocolMetrics
    from trivium_mqtt.connection import MqttConnection

#: Messages that wait in a session's queue before retained ones are held.
MAX_RETAINED: Final = 1024

_PUBLISH: Final = 0x30

#: marks, in ``_assigned``, an identifier that belongs to a QoS 2 message
_EXACTLY_ONCE: Final = 0x1_0000

#: How to answer PUBREC: not at all, by PUBREL as for an unknown identifier, by PUBREL, by PUBREL
#: once the current write batch is durable.
FINISHED: Final = 0
NOT_FOUND: Final = 1
RELEASE: Final = 2
RELEASE_DURABLY: Final = 3


class Outgoing(Consumer):
    """What one session is sent at QoS 1 and 2, and what of it is not acknowledged yet."""

    def __init__(
        self,
        session: Session,
        queue: Queue,
        encoder: PublishEncoder,
        store: SessionStore,
        metrics: ProtocolMetrics,
        maximum_inflight: int,
        maximum_queued: int,
        maximum_queued_bytes: int,
    ) -> None:
        self.session = session
        self.queue = queue
        self._encoder = encoder
        self._store = store
        self._metrics = metrics
        self._maximum_inflight = maximum_inflight
        #: messages, and bytes of payload, that may wait here; 0 for no limit
        self._maximum_queued = maximum_queued
        self._maximum_queued_bytes = maximum_queued_bytes
        self._connection: MqttConnection | None = None
        self._is_v5 = False
        #: further messages that the client takes now
        self._credit: i64 = 0
        # Unacknowledged, by packet identifier; their tags are in the order of their first delivery.
        self._inflight: Unsettled[QueueEntry] = Unsettled()
        self._deliveries: i64 = 0
        # Identifiers whose PUBREC came and whose PUBCOMP did not, in that order. They use credit:
        # so identifiers never run out.
        self._released: dict[int, None] = {}
        # Entries that a returning client has yet to get again.
        self._resend: deque[tuple[int, QueueEntry]] | None = None
        # Queue offsets and identifiers from before a restart, ascending; the latter also as a set.
        self._assigned: deque[tuple[int, int]] | None = None
        self._reserved: set[int] | None = None
        self._last_packet_id: i64 = 0
        #: whether what waits may have come while its user was permitted more
        self.rechecks = len(queue) > 0
        queue.add_consumer(self)

    def describe(self) -> ConsumerDescription | None:
        connection = self._connection
        if connection is None:
            return None
        return ConsumerDescription(
            tag=self.session.name,
            queue=self.queue.name,
            connection=connection,
            channel=0,
            acknowledges=True,
            limit=self._maximum_inflight,
        )

    def client(self) -> object:
        return self._connection

    def is_there(self) -> bool:
        return self._connection is not None

    # Publishing

    def put(self, message: Message, annotation: bytes) -> int:
        """Enqueue for this session: ACCEPTED, or the write batch that makes the message durable."""
        queue = self.queue
        if self._is_full():
            self._metrics.messages_dropped += 1
            self.session.missed += 1
            return ACCEPTED
        result = queue.put(message, annotation)
        if result == REJECTED:
            self.session.missed += 1
        return result

    def takes_runs(self) -> bool:
        """Whether ``put_run`` may be called now."""
        return self._maximum_queued_bytes == 0 and self.queue.takes_runs(AT_LEAST_ONCE)

    def put_run(self, messages: list[Message]) -> int:
        """``put`` of messages that came in a row, without annotation."""
        queue = self.queue
        limit = self._maximum_queued
        if limit > 0:
            room = max(limit - (queue.counters.published - queue.counters.settled), 0)
            dropped = len(messages) - room
            if dropped > 0:
                self._metrics.messages_dropped += dropped
                self.session.missed += dropped
                if room == 0:
                    return ACCEPTED
                messages = messages[:room]
        return queue.accept_run(messages)

    def takes_retained(self) -> bool:
        """Whether another retained message may be ``put``, or should be held for later."""
        return len(self.queue) < MAX_RETAINED and not self._is_full()

    def _is_full(self) -> bool:
        queue = self.queue
        limit = self._maximum_queued
        if limit > 0 and queue.counters.published - queue.counters.settled >= limit:
            return True
        return 0 < self._maximum_queued_bytes <= queue.ready.bytes

    # Restart

    def restore(self, packet_id: int, offset: int, exactly_once: bool) -> None:
        """Before a restart the message at ``offset`` had this identifier. Call in offset order."""
        if self._assigned is None or self._reserved is None:
            self._assigned = deque()
            self._reserved = set()
        self._assigned.append((offset, packet_id | _EXACTLY_ONCE if exactly_once else packet_id))
        self._reserved.add(packet_id)

    def restore_released(self, packet_id: int) -> None:
        """Before a restart the client had confirmed this identifier with PUBREC."""
        self._released[packet_id] = None

    def unacknowledged(self) -> list[tuple[int, int]]:
        """Queue offset and identifier of the QoS 1 messages under way, for ``restore``."""
        pairs: list[tuple[int, int]] = []
        for packet_id, entry in _under_way(self._inflight):
            if effective_qos(entry) == 1:
                pairs.append((entry.offset, packet_id))
        if self._assigned is not None:
            for offset, packet_id in self._assigned:
                if packet_id < _EXACTLY_ONCE:
                    pairs.append((offset, packet_id))
        return pairs

    def forget(self) -> None:
        """The session ends: remove the durable rows of its identifiers."""
        client_id = self.session.client_id
        for packet_id, entry in _under_way(self._inflight):
            if effective_qos(entry) == 2:
                self._store.delete_outgoing(client_id, packet_id)
        for packet_id in self._released:
            self._store.delete_outgoing(client_id, packet_id)
        if self._assigned is not None:
            for _, packet_id in self._assigned:
                if packet_id >= _EXACTLY_ONCE:
                    self._store.delete_outgoing(client_id, packet_id & 0xFFFF)

    def give_back(self) -> dict[int, int]:
        """The session ends, and others share what it has not acknowledged: put it back.

        What was sent at QoS 2 is given up, since nobody else may have it (MQTT-4.8.2-5). Of what
        was sent so before a restart, and is still in the queue: offsets and packet identifiers.
        """
        client_id = self.session.client_id
        queue = self.queue
        queue.remove_consumer(self)
        for packet_id, entry in _under_way(self._inflight):
            if effective_qos(entry) == 1:
                queue.requeue(entry, was_delivered=False)
                continue
            self._metrics.messages_dropped += 1
            queue.given_up.drop(entry, UNDELIVERABLE)
            self._store.delete_outgoing(client_id, packet_id)
        for packet_id in self._released:
            self._store.delete_outgoing(client_id, packet_id)
        sent: dict[int, int] = {}
        if self._assigned is not None:
            for offset, packet_id in self._assigned:
                if packet_id >= _EXACTLY_ONCE:
                    sent[offset] = packet_id & 0xFFFF
        return sent

    # Connection

    def attach(self, connection: MqttConnection, is_v5: bool, receive_maximum: int) -> None:
        """The client is here: send again what it has not acknowledged, then go on."""
        self._connection = connection
        self._is_v5 = is_v5
        self._credit = min(receive_maximum, self._maximum_inflight) - len(self._released)
        for packet_id in self._released:
            packet = acknowledgement(PUBREL, packet_id, 0)
            if self.session.is_persistent:
                # That PUBREC came may not be durable yet.
                connection.send_durable(packet)
            else:
                connection.send(packet)
        self._resend = deque(_under_way(self._inflight)) if len(self._inflight) else None
        self.pump()

    def detach(self) -> None:
        """The client is gone."""
        self._connection = None
        self._resend = None

    def pump(self) -> None:
        """Deliver what the client and its connection take."""
        connection = self._connection
        if connection is None:
            return
        resend = self._resend
        if resend is not None:
            while resend and self._credit > 0 and connection.takes_output:
                packet_id, entry = resend.popleft()
                if self._inflight.get(packet_id) is not entry:
                    continue
                if not self.session.may_get(entry.message):
                    self._metrics.messages_dropped += 1
                    self._inflight.pop(packet_id)
                    self.queue.given_up.drop(entry, UNDELIVERABLE)
                    if effective_qos(entry) == 2:
                        self._give_up(packet_id, entry.offset)
                    continue
                self._metrics.messages_redelivered += 1
                connection.traffic.redelivered += 1
                self.queue.counters.redelivered += 1
                self.queue.counters.delivered += 1
                self._send(entry, packet_id, DUP, connection)
                if self.queue.vhost.is_watched:
                    self.queue.vhost.delivered(
                        entry.message, self.queue.name, True, connection, 0, entry
                    )
            if resend:
                return
            self._resend = None
        if self.rechecks and not len(self.queue):
            self.rechecks = False
        self.queue.dispatch()

    # Consumer

    def takes_delivery(self) -> bool:
        connection = self._connection
        return (
            connection is not None
            and self._credit > 0
            and self._resend is None
            # An identifier must be free beside those kept for messages from before a restart.
            and (
                self._reserved is None
                or len(self._inflight) + len(self._released) + len(self._reserved) < 65_535
            )
            # connection.takes_output, without the call
            and connection.is_writable
            and connection.output_size < OUTPUT_HIGH_WATER
            and not connection.is_closed
        )

    def deliver(self, entry: QueueEntry) -> None:
        connection = self._connection
        assert connection is not None
        message = entry.message
        qos = message.mode
        if (
            (qos == 1 or (qos == 2 and not entry.is_stored))
            and not self.rechecks
            and len(entry.annotation) == 0
            and not entry.is_redelivered
            and self._assigned is None
            and len(message.header) == 0
            and message.expires == 0
            and message.annotations is None
            and message.protocol == PROTOCOL_MQTT
            and connection.alias_maximum == 0
        ):
            # The usual case, as MQTT 3 and without properties MQTT 5 have it.
            content = message.content
            payload_size = message.size
            is_v5 = self._is_v5
            remaining = payload_size + 3 if is_v5 else payload_size + 2
            head = self._encoder.head(_PUBLISH | qos << 1, remaining, message.address)
            size = len(head) + remaining
            if len(head) and size <= connection.maximum_output:
                packet_id = self._add_next(entry)
                self._credit -= 1
                _count_delivered(self._metrics, connection, message)
                output = connection.output
                output.write(head)
                output.write(PACKET_IDS[packet_id])
                if is_v5:
                    output.append(0)
                if not isinstance(content, bytes):
                    for part in content.parts:
                        connection.write_large(part)
                elif payload_size < LARGE_OUTPUT:
                    output.write(content)
                else:
                    connection.write_large(content)
                connection.output_size += size
                connection.mark_dirty()
                return
        is_gone = message.address.topic is None or (
            self.rechecks and not self.session.may_get(message)
        )
        packet_id = 0 if self._assigned is None else self._take_assigned(entry.offset, is_gone)
        if is_gone:
            self._metrics.messages_dropped += 1
            self.queue.given_up.drop(entry, UNDELIVERABLE)
            return
        dup = DUP if packet_id or entry.is_redelivered else 0
        if packet_id:
            self._add(packet_id, entry)
        else:
            packet_id = self._add_next(entry)
        if dup:
            self._metrics.messages_redelivered += 1
            connection.traffic.redelivered += 1
        self._send(entry, packet_id, dup, connection)

    def cancelled(self) -> None:
        """The queue was deleted. A session that goes on gets another."""
        self.detach()
        self.session.outgoing = None

    def _send(
        self, entry: QueueEntry, packet_id: int, dup: int, connection: MqttConnection
    ) -> None:
        message = entry.message
        annotation = entry.annotation
        self._credit -= 1
        if not annotation:
            qos = message.mode
            first = _PUBLISH | qos << 1 | dup
            identifiers = b""
        else:
            qos = annotation[0] & ANNOTATION_QOS
            first = _PUBLISH | qos << 1 | dup
            if annotation[0] & ANNOTATION_RETAIN:
                first |= RETAIN
            identifiers = b""
            if self._is_v5:
                identifiers = (
                    annotation[1 + SHARE_SIZE :]
                    if annotation[0] & ANNOTATION_SHARED
                    else annotation[1:]
                )
        is_held = qos == 2 and entry.is_stored
        if connection.alias_maximum and not is_held:
            front = connection.aliased(message, first, PACKET_IDS[packet_id], identifiers)
        else:
            front = self._encoder.front(
                message, first, PACKET_IDS[packet_id], self._is_v5, identifiers
            )
        if not front or len(front) + message.size > connection.maximum_output:
            # It is treated as if it had been delivered (MQTT-3.1.2-25).
            self._metrics.messages_dropped += 1
            self.queue.given_up.drop(entry, UNDELIVERABLE)
            self._finish(packet_id, entry)
            return
        if is_held:
            self._store.put_outgoing(self.session.client_id, packet_id, entry.offset, False)
            connection.send_packet_durable(front, message.content)
        else:
            connection.send(front)
            connection.send_content(message.content)
        _count_delivered(self._metrics, connection, message)

    # Acknowledgements

    def acknowledged_run(self, data: bytes, at: int, end: int) -> int:
        """Take the plain PUBACK packets at ``at``; the offset behind them."""
        inflight = self._inflight
        queue = self.queue
        released = self._released
        acknowledged: i64 = 0
        while True:
            packet_id = plain_acknowledgement(PUBACK, data, at, end)
            if packet_id == 0:
                break
            entry = inflight.pop(packet_id)
            if entry is not None:
                if effective_qos(entry) != 1:
                    inflight.add(packet_id, entry)
                    break
                self._credit += 1
                acknowledged += 1
                queue.settle(entry)
            elif packet_id in released:
                break
            at += PLAIN_SIZE
        _count_acknowledged(self._connection, acknowledged)
        return at

    def acknowledged(self, packet_id: int) -> bool:
        """PUBACK came; whether the identifier was known. Raises ProtocolError at QoS 2."""
        entry = self._inflight.get(packet_id)
        if entry is None:
            if packet_id in self._released:
                raise ProtocolError("PUBACK for a QoS 2 message")
            return False
        if effective_qos(entry) != 1:
            raise ProtocolError("PUBACK for a QoS 2 message")
        self._inflight.pop(packet_id)
        self._credit += 1
        _count_acknowledged(self._connection, 1)
        self.queue.settle(entry)
        return True

    def received(self, packet_id: int, reason: int) -> int:
        """PUBREC came; what to answer: one of the constants. Raises ProtocolError at QoS 1."""
        entry = self._inflight.get(packet_id)
        if entry is None:
            if packet_id not in self._released:
                return NOT_FOUND
            return RELEASE_DURABLY if self.session.is_persistent else RELEASE
        if effective_qos(entry) != 2:
            raise ProtocolError("PUBREC for a QoS 1 message")
        if reason >= 0x80:
            # The client does not want it: the flow ends here (MQTT5 4.3.3).
            _count_acknowledged(self._connection, 1)
            self._finish(packet_id, entry)
            return FINISHED
        _count_acknowledged(self._connection, 1)
        self._inflight.pop(packet_id)
        self._released[packet_id] = None
        self.queue.settle(entry)
        if not entry.is_stored:
            return RELEASE
        self._store.put_outgoing(self.session.client_id, packet_id, entry.offset, True)
        return RELEASE_DURABLY

    def completed(self, packet_id: int) -> bool:
        """PUBCOMP came; whether the identifier was known. Raises ProtocolError before PUBREC."""
        if packet_id not in self._released:
            if self._inflight.get(packet_id) is not None:
                raise ProtocolError("PUBCOMP for a message that was not confirmed with PUBREC")
            return False
        del self._released[packet_id]
        self._credit += 1
        if self.session.is_stored:
            self._store.delete_outgoing(self.session.client_id, packet_id)
        return True

    def _finish(self, packet_id: int, entry: QueueEntry) -> None:
        self._inflight.pop(packet_id)
        self._credit += 1
        self.queue.settle(entry)
        if entry.is_stored and effective_qos(entry) == 2:
            self._store.delete_outgoing(self.session.client_id, packet_id)

    # Packet identifiers

    def _add(self, packet_id: i64, entry: QueueEntry) -> bool:
        """An entry is delivered, for the first time to this client; False when another one has the
        identifier."""
        self._deliveries += 1
        entry.tag = self._deliveries
        return self._inflight.add(packet_id, entry)

    def _add_next(self, entry: QueueEntry) -> int:
        """``_add`` with the next identifier that is free, which is returned."""
        packet_id = self._last_packet_id + 1
        if (
            packet_id <= 65_535
            and (len(self._released) == 0 or packet_id not in self._released)
            and (self._reserved is None or packet_id not in self._reserved)
            and self._add(packet_id, entry)
        ):
            self._last_packet_id = packet_id
            return packet_id
        packet_id = self._last_packet_id
        while True:
            packet_id = packet_id + 1 if packet_id < 65_535 else 1
            if (
                self._inflight.get(packet_id) is None
                and packet_id not in self._released
                and (self._reserved is None or packet_id not in self._reserved)
            ):
                break
        self._last_packet_id = packet_id
        self._add(packet_id, entry)
        return packet_id

    def _take_assigned(self, offset: int, is_gone: bool) -> int:
        """The identifier that the message at ``offset`` had before a restart; 0 for none.

        Messages before it that had one are gone (expired), and with ``is_gone`` it is, too.
        """
        assigned = self._assigned
        reserved = self._reserved
        assert assigned is not None
        assert reserved is not None
        found = 0
        while assigned and assigned[0][0] <= offset:
            known, packet_id = assigned.popleft()
            if known == offset and not is_gone:
                found = packet_id & 0xFFFF
            elif packet_id >= _EXACTLY_ONCE:
                self._give_up(packet_id & 0xFFFF, known)
            reserved.discard(packet_id & 0xFFFF)
        if not assigned:
            self._assigned = None
            self._reserved = None
        return found

    def _give_up(self, packet_id: int, offset: int) -> None:
        """What was sent at QoS 2 under this identifier is gone.

        If the client has it, it waits for PUBREL, and until then would take a new message for a
        repetition: so it gets PUBREL.
        """
        connection = self._connection
        assert connection is not None
        self._released[packet_id] = None
        self._credit -= 1
        self._store.put_outgoing(self.session.client_id, packet_id, offset, True)
        connection.send_durable(acknowledgement(PUBREL, packet_id, 0))


def _count_delivered(
    metrics: ProtocolMetrics, connection: MqttConnection, message: Message
) -> None:
    metrics.messages_sent += 1
    metrics.payload_bytes_sent += message.size
    connection.traffic.delivered += 1


def _count_acknowledged(connection: MqttConnection | None, count: i64) -> None:
    if connection is not None:
        connection.traffic.acknowledged += count


def _under_way(inflight: Unsettled[QueueEntry]) -> list[tuple[int, QueueEntry]]:
    """Packet identifiers and entries, in the order of their first delivery."""
    return sorted(inflight.items(), key=_by_delivery)


def _by_delivery(item: tuple[int, QueueEntry]) -> int:
    return item[1].tag


def effective_qos(entry: QueueEntry) -> int:
    """The QoS at which this session gets the entry."""
    annotation = entry.annotation
    return annotation[0] & ANNOTATION_QOS if len(annotation) else entry.message.mode
