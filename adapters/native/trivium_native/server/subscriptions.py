"""What a connection receives: live messages, record batches of a stream; what is common to both and
to messages of a queue (``queue_subscriptions``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from trivium.common.descriptions import ConsumerDescription
from trivium.messages.message import Message
from trivium.queues.queue import QueueEntry
from trivium.routing.exchanges import ACCEPTED, Binding, Destination, Exchange, TopicExchange
from trivium.security.permissions import READ
from trivium.streams.records import RecordBatch, batch_count, batch_span, cut_batch
from trivium.streams.stream import Partition, StreamReader
from trivium_native.wire.errors import NativeError, NotFound, UnknownDelivery
from trivium_native.wire.frames import (
    BATCH,
    CANCELLED,
    HEAD_SIZE,
    encode_frame,
    pack,
    write_head,
)
from trivium_native.wire.messages import BATCH_HEAD, BATCH_HEAD_SIZE

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: Bytes of batches that one look at a partition takes: a step of a push, not its limit.
STEP_BYTES: Final = 1 << 20


class Subscription:
    """One subscription of a connection, whatever its mode. ``number`` is the client's choice."""

    def __init__(self, connection: NativeConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        #: the SUBSCRIBE that is to be answered once it begins; 0 for none
        self.asked_by = 0

    def add_credit(self, amount: int) -> None:
        """The client takes more."""

    def stand_by(self) -> None:
        """The connection takes output again; once all of its subscriptions know, ``resume``."""

    def resume(self) -> None:
        """The connection takes output again: deliver what there is."""

    def settle(self, first: i64, last: i64) -> None:
        """Deliveries ``first`` to ``last`` are done with. Raises UnknownDelivery for none."""
        raise UnknownDelivery(f"subscription {self.number} has nothing to settle")

    def give_back(self, first: i64, last: i64, requeue: bool) -> None:
        """Deliveries ``first`` to ``last`` were not wanted. Raises UnknownDelivery for none."""
        raise UnknownDelivery(f"subscription {self.number} has nothing to settle")

    def take(self, first: int, last: int) -> list[tuple[int, QueueEntry]]:
        """The unsettled deliveries ``first`` to ``last``, which are now the caller's to settle."""
        return []

    def put_back(self, taken: list[tuple[int, QueueEntry]]) -> None:
        """What was taken is unsettled after all."""

    def check_permissions(self) -> None:
        """Raise AccessRefused if the client may not read this any more."""
        raise NotImplementedError

    def describe(self) -> ConsumerDescription | None:
        """What operators see of it; None where it reads neither a queue nor a stream."""
        return None

    def end(self) -> None:
        """The client, or its connection, leaves: release everything."""
        raise NotImplementedError

    def unsubscribed(self) -> None:
        """The client has ended it, which is answered next."""
        self.end()
        if self.asked_by:
            error = NotFound("it was unsubscribed before it began")
            self.connection.send_error(self.asked_by, error)
            self.asked_by = 0

    def send_cancelled(self, error: NativeError) -> None:
        """It is over, for the reason ``error``: tell the client."""
        forget(self.connection, self.number)
        if self.asked_by:
            # To the client it has not begun.
            self.connection.send_error(self.asked_by, error)
            self.asked_by = 0
            return
        told = {"subscription": self.number, "reason": error.text, "code": error.code}
        self.connection.send(encode_frame(CANCELLED, 0, pack(told)))


def add(subscription: Subscription) -> None:
    """A client has subscribed."""
    connection = subscription.connection
    connection.subscriptions[subscription.number] = subscription
    connection.usage.add_subscriptions(1)


def forget(connection: NativeConnection, number: int) -> Subscription | None:
    """A subscription is over; None when there is none of the number."""
    found = connection.subscriptions.pop(number, None)
    if found is not None:
        connection.usage.add_subscriptions(-1)
    return found


class _LiveDestination(Destination):
    """The subscription as the bindings see it."""

    def __init__(self, subscription: LiveSubscription) -> None:
        self.name = live_name(subscription)
        self._subscription = subscription

    def accept(self, message: Message) -> int:
        self._subscription.deliver(message)
        return ACCEPTED


def live_name(subscription: LiveSubscription) -> str:
    """By which what a live subscription gets is known."""
    return f"native:{subscription.connection.peer.address}:{subscription.number}"


class LiveSubscription(Subscription):
    """Mode ``pubsub``: what is published while it lasts, at most once."""

    def __init__(
        self,
        connection: NativeConnection,
        number: int,
        exchange: Exchange,
        pattern: bytes,
        no_local: bool,
    ) -> None:
        super().__init__(connection, number)
        self._exchange = exchange
        self._pattern = pattern
        self._no_local = no_local
        # None at the end: they would keep each other in memory. So in the other modes.
        self._binding: Binding | None = Binding(
            _LiveDestination(self),
            pattern,
            guard=connection.access if isinstance(exchange, TopicExchange) else None,
        )
        connection.vhost.bind(exchange, self._binding)
        self._tell("subscription.created")

    def _tell(self, event: str) -> None:
        connection = self.connection
        connection.vhost.tell(
            event,
            exchange=self._exchange.name,
            key=self._pattern.decode(errors="replace"),
            user=connection.identity.name,
        )

    def deliver(self, message: Message) -> None:
        """Send a message on, unless the client does not read: then it is dropped and counted."""
        connection = self.connection
        if self._no_local and message.origin is connection.origin:
            return
        if connection.is_closed or (
            connection.output_size >= connection.live_mark and not connection.admits_live()
        ):
            connection.metrics.messages_dropped += 1
            return
        connection.metrics.messages_sent += 1
        connection.traffic.delivered_settled += 1
        connection.live_frames.send(connection, message, self.number)
        if connection.vhost.is_watched and connection.vhost.shows(message):
            connection.vhost.delivered(message, live_name(self), False, connection)

    def check_permissions(self) -> None:
        access = self.connection.access
        access.require_live(self._exchange, self._pattern)
        if self._binding is not None and self._binding.guard is not None:
            self._binding.guard = access

    def end(self) -> None:
        if self._binding is not None:
            self.connection.vhost.unbind(self._exchange, self._binding)
            self._binding = None
            self._tell("subscription.deleted")


class _LogReader(StreamReader):
    """The subscription as its partition sees it."""

    def __init__(self, subscription: LogSubscription) -> None:
        self._subscription = subscription

    def watermark_moved(self, partition: Partition) -> None:
        self._subscription.watermark_moved()

    def stream_deleted(self, partition: Partition) -> None:
        self._subscription.stream_deleted()


class LogSubscription(Subscription):
    """Mode ``log``: record batches from an offset on, as many bytes as there is credit.

    A batch is sent while any credit is left, so the last one may overdraw it.
    """

    def __init__(
        self,
        connection: NativeConnection,
        number: int,
        partition: Partition,
        reader: StreamReader | None = None,
    ) -> None:
        super().__init__(connection, number)
        self._partition = partition
        self._offset = 0
        self._credit = 0
        self._reader: StreamReader | None = _LogReader(self) if reader is None else reader
        self._is_started = False
        self._is_waiting = False
        self._is_loading = False
        self._is_ended = False
        self._has_sent = False

    def describe(self) -> ConsumerDescription | None:
        return ConsumerDescription(
            tag=str(self.number),
            queue=self._partition.stream.name,
            connection=self.connection,
            channel=0,
            acknowledges=False,
            limit=0,
        )

    def start(self, offset: int) -> None:
        """Read from ``offset`` on, as there is credit."""
        self._offset = offset
        self._is_started = True

    def found(self, offset: int, credit: int) -> None:
        """The offset from which SUBSCRIBE wanted it: answer that, unless it is over by now."""
        if self._is_ended:
            return
        if self._partition.stream.is_deleted:
            self.stream_deleted()
            return
        correlation, self.asked_by = self.asked_by, 0
        incarnation = self._partition.stream.incarnation
        self.connection.reply(correlation, {"offset": offset, "incarnation": incarnation})
        self.start(offset)
        self.add_credit(credit)

    def pump(self) -> None:
        """Send what there is, until credit, output or records are used up."""
        partition = self._partition
        while self._may_read():
            if partition.stream.is_deleted:
                self.stream_deleted()
                return
            if not partition.is_loaded(self._offset):
                self._is_loading = True
                partition.load(self._offset, STEP_BYTES, self._loaded)
                return
            batches = partition.read(self._offset, min(self._credit, STEP_BYTES))
            if not batches:
                self._wait()
                return
            for base, stored in batches:
                end = base + batch_span(stored)
                batch: bytes | None = stored
                if base < self._offset and self._has_sent:
                    # Batches were joined meanwhile, and what was sent must not come again.
                    batch = cut_batch(RecordBatch(stored, False), self._offset - base)
                    base = self._offset
                self._offset = end
                if batch is not None:
                    self._send(base, batch)

    def _may_read(self) -> bool:
        """Whether there is credit and room, and nothing is waited for."""
        return (
            self._credit > 0
            and self._is_started
            and not (self._is_waiting or self._is_loading or self._is_ended)
            and self.connection.has_room()
        )

    def _wait(self) -> None:
        self._is_waiting = True
        assert self._reader is not None
        self._partition.wait(self._reader)

    def _send(self, base: int, batch: bytes) -> None:
        connection = self.connection
        size = len(batch)
        head = BATCH_HEAD.pack(self.number, 0, base)
        write_head(connection.output, BATCH, 0, BATCH_HEAD_SIZE + size)
        connection.output_size += HEAD_SIZE
        connection.send(head)
        connection.send(batch)
        count_read(connection, self._partition, batch)
        self._credit -= size
        self._has_sent = True

    def _loaded(self) -> None:
        self._is_loading = False
        self.pump()

    def watermark_moved(self) -> None:
        """There is more to read."""
        self._is_waiting = False
        self.pump()

    def stream_deleted(self) -> None:
        """The stream is gone."""
        self._is_ended = True
        self._reader = None
        self.send_cancelled(NotFound("the stream was deleted"))

    def add_credit(self, amount: int) -> None:
        self._credit += amount
        self.pump()

    def resume(self) -> None:
        self.pump()

    def check_permissions(self) -> None:
        self.connection.access.require(READ, "stream", self._partition.stream.name)

    def end(self) -> None:
        self._is_ended = True
        if self._reader is not None:
            self._partition.cancel(self._reader)
            self._reader = None


def count_read(connection: NativeConnection, partition: Partition, batch: bytes) -> None:
    """A record batch of ``partition`` is sent to a client."""
    count = batch_count(batch)
    partition.records_read += count
    connection.metrics.messages_sent += count
    connection.traffic.delivered_settled += count
