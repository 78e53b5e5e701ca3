"""A stream as a consumer sees it: a queue of its own whose entries are records, from a place on.

Reading takes nothing from the stream, so there is nothing to settle: an acknowledgement of any kind
makes room for further deliveries, as RabbitMQ has it. The header ``x-stream-offset`` of a
delivery says where the record is; it is for the client to remember it.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Final

from trivium.errors import PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.queues.queue import Consumer, Queue, QueueEntry, tell_consumer
from trivium.streams.records import BatchError, RecordBatch
from trivium.streams.settings import parse_age
from trivium.streams.stream import Partition, Stream, StreamReader
from trivium_amqp.codec.errors import (
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelException,
    ConnectionException,
)

if TYPE_CHECKING:
    from trivium_amqp.channel import Channel

logger = logging.getLogger(__name__)

#: Consumer argument that says where to begin, and header of a delivery that says where it is.
OFFSET: Final = "x-stream-offset"
#: Consumer argument with the number of a partition; our own, for streams with several.
PARTITION: Final = "x-stream-partition"

#: A batch at a time is held as messages are made of it.
_READ_BYTES: Final = 1
_LOAD_BYTES: Final = 1 << 20


class _CursorReader(StreamReader):
    """The cursor as its partition sees it."""

    def __init__(self, cursor: StreamCursor) -> None:
        #: None when it reads no more
        self.cursor: StreamCursor | None = cursor

    def watermark_moved(self, partition: Partition) -> None:
        if self.cursor is not None:
            self.cursor.arrived()

    def stream_deleted(self, partition: Partition) -> None:
        if self.cursor is not None:
            self.cursor.end()


class StreamCursor(Queue):
    """One consumer's way through one partition."""

    def __init__(self, partition: Partition) -> None:
        stream = partition.stream
        super().__init__(stream.vhost, stream.name, [])
        self._partition = partition
        self._reader = _CursorReader(self)
        self._consumer: Consumer | None = None
        # The batch that is being delivered, its offset, and the next row of it.
        self._view: RecordBatch | None = None
        self._base = 0
        self._row = 0
        #: where to go on behind the batch
        self._offset = 0
        # The place, or what lies there, is not known yet.
        self._is_pending = True

    def start(self, where: HeaderValue) -> None:
        """Begin at a value of ``x-stream-offset``. Raises PreconditionFailed for a wrong one."""
        partition = self._partition
        if where is None or where == "next":
            self._start_at(partition.high_watermark)
        elif where == "first":
            self._start_at(partition.first_offset)
        elif where == "last":
            self._start_at(partition.last_offset)
        elif isinstance(where, datetime):
            partition.offset_for_timestamp(int(where.timestamp() * 1000), self._start_at)
        elif isinstance(where, str):
            age = parse_age(where, f"arg '{OFFSET}'")
            partition.offset_for_timestamp(self._broker.now_ms - age, self._start_at)
        elif isinstance(where, int) and not isinstance(where, bool) and where >= 0:
            self._start_at(min(max(where, partition.first_offset), partition.high_watermark))
        else:
            raise PreconditionFailed(
                f"invalid arg '{OFFSET}': an offset, first, last, next, a timestamp or an interval"
                " is needed"
            )

    def _start_at(self, offset: int) -> None:
        self._offset = offset
        self.arrived()

    def arrived(self) -> None:
        """What was waited for is there."""
        self._is_pending = False
        self.dispatch()

    def end(self) -> None:
        """The stream is gone, or cannot be read."""
        consumer = self._consumer
        self._leave()
        if consumer is not None:
            tell_consumer(self, consumer, "deleted")
            consumer.cancelled()

    def _leave(self) -> None:
        """Read no more, and let go of what refers back to the cursor."""
        self._consumer = None
        self._view = None
        self._partition.cancel(self._reader)
        self._reader.cursor = None
        self.deleted()

    # As a queue

    def add_consumer(self, consumer: Consumer, exclusive: bool = False) -> None:
        """There is but one consumer."""
        self._consumer = consumer
        tell_consumer(self, consumer, "created")

    def remove_consumer(self, consumer: Consumer) -> None:
        tell_consumer(self, consumer, "deleted")
        self._leave()

    def serve(self, consumer: Consumer) -> None:
        self.dispatch()

    def dispatch(self) -> None:
        """Deliver while the consumer takes deliveries and there are records."""
        while True:
            consumer = self._consumer
            if consumer is None or self._is_pending or not consumer.takes_delivery():
                return
            view = self._view
            if view is None or self._row >= view.count:
                self._next_batch()
                continue
            entry = QueueEntry(self, self.ready.lowest, view.message(self._row), b"")
            entry.offset = self._base + view.delta(self._row)
            self._row += 1
            self._partition.records_read += 1
            consumer.deliver(entry)
            if self.vhost.is_watched and self.vhost.shows(entry.message):
                about = consumer.describe()
                if about is not None:
                    connection, channel = about.connection, about.channel
                    self.vhost.delivered(entry.message, self.name, False, connection, channel)

    def _next_batch(self) -> None:
        """Take the batch at the offset, or wait for it."""
        partition = self._partition
        self._view = None
        if partition.stream.is_deleted:
            self.end()
            return
        if not partition.is_loaded(self._offset):
            self._is_pending = True
            partition.load(self._offset, _LOAD_BYTES, self.arrived)
            return
        batches = partition.read(self._offset, _READ_BYTES)
        if not batches:
            self._is_pending = True
            partition.wait(self._reader)
            return
        base, batch = batches[0]
        try:
            view = RecordBatch(batch, False)
        except BatchError as error:
            logger.error("stream %r cannot be read at offset %d: %s", self.name, base, error)
            self.end()
            return
        self._view = view
        self._base = base
        # Retention may have removed the offset meanwhile: then this is the first one that is kept.
        self._row = view.row_from(self._offset - base)
        self._offset = base + view.span

    def settle(self, entry: QueueEntry) -> None:
        """Nothing is taken from a stream."""

    def reject(self, entry: QueueEntry) -> None:
        """Nothing is taken from a stream."""

    def requeue(self, entry: QueueEntry, was_delivered: bool = True) -> None:
        """Nothing is given back to a stream either."""


def open_cursor(
    channel: Channel,
    stream: Stream,
    no_ack: bool,
    exclusive: bool,
    options: dict[str, HeaderValue],
) -> StreamCursor:
    """What basic.consume of a stream reads. The refusals are RabbitMQ's.

    Raises ChannelException, ConnectionException, PreconditionFailed.
    """
    name = f"queue '{stream.name}' in vhost '{stream.vhost.name}'"
    if no_ack:
        raise ConnectionException(
            NOT_IMPLEMENTED, f"automatic acknowledgement not supported by stream queues {name}"
        )
    if exclusive:
        raise ConnectionException(
            NOT_IMPLEMENTED, f"exclusive consumers not supported by stream queues {name}"
        )
    if not channel.prefetch:
        raise ChannelException(
            PRECONDITION_FAILED, f"consumer prefetch count is not set for '{name}'"
        )
    index = options.get(PARTITION)
    if index is None:
        if len(stream.partitions) > 1:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"{name} has {len(stream.partitions)} partitions: arg '{PARTITION}' is needed",
            )
        index = 0
    partition = None
    if isinstance(index, int) and not isinstance(index, bool):
        partition = stream.partition(index)
    if partition is None:
        raise ChannelException(
            PRECONDITION_FAILED, f"invalid arg '{PARTITION}': {name} has no such partition"
        )
    cursor = StreamCursor(partition)
    cursor.start(options.get(OFFSET))
    return cursor
