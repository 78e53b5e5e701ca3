"""Streams: append-only logs in partitions, read by offset, kept when they are read.

A message is put into a partition when it is published and waits there for the end of the turn. Then
all that a partition collected becomes one record batch (``trivium.streams.records``), one record
of its log, which spans as many offsets as it has messages. Readers see a batch once it is durable:
offsets below the partition's *high watermark*. Whoever reads up to it leaves a ``StreamReader``
that is told when it moves.

The partition of a message, in this order:

- as its publisher says (property ``partition``), modulo the number of partitions;
- by its key, if it has one (property ``key``, or header ``x-key``);
- round robin, another one in each turn, where the address says nothing: published through the
  default exchange (the routing key is then the stream's own name) or with an empty routing key;
- by its routing key, so that what is published to one topic stays in order.

"By" means: CRC-32 (as in zlib) of the bytes, modulo the number of partitions.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final
from zlib import crc32

from mypy_extensions import i64, mypyc_attr

from trivium.common.pieces import Piece
from trivium.common.turns import EndOfTurn
from trivium.messages.message import PROTOCOL_NONE, HeaderValue, Message, codec_of
from trivium.queues.arguments import check_number
from trivium.routing.exchanges import ACCEPTED, Destination
from trivium.storage.base import DurabilityWaiter
from trivium.streams.compaction import Compaction
from trivium.streams.joining import SMALL_RECORDS, BatchJoiner
from trivium.streams.record_layout import CODEC_NONE
from trivium.streams.records import (
    KEYED,
    PLAIN_MESSAGE,
    Described,
    RecordBatch,
    batch_max_timestamp,
    describe,
    encode_batch,
    encode_unstamped,
    encode_unstamped_run,
    stamped,
)
from trivium.streams.retention import Retention
from trivium.streams.settings import StreamSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from trivium.streams.namespace import StreamNamespace

MAX_PARTITIONS: Final = 1024
#: The argument that says how many partitions a stream has where it is declared as a queue.
#: RabbitMQ (3.10), whose streams have one, ignores it.
PARTITIONS: Final = "x-partitions"

#: A turn's messages are cut into batches of about this size (1 MiB) or this many records, so that a
#: reader with little memory need not take more at a time.
BATCH_BYTES: Final = 1 << 20
BATCH_RECORDS: Final = 16_384

#: Batches handed out by one read.
READ_BATCHES: Final = 1024

#: Property headers whose columns are remembered, and the longest that is: publishers repeat them.
MEMO_SIZE: Final = 256
MEMO_HEADER_BYTES: Final = 1024
#: the partition of what says nothing of its own: another one in each turn
ANY: Final = -1


def take_partitions(arguments: dict[str, HeaderValue], what: str) -> int:
    """Take out of the arguments of a stream, which ``what`` names, how many partitions it is to
    have. Raises PreconditionFailed."""
    value = arguments.pop(PARTITIONS, 1)
    check_number(value, (1, MAX_PARTITIONS), f"arg '{PARTITIONS}' for {what}")
    assert isinstance(value, int)
    return value


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key; the same in every version and on every machine."""
    return crc32(key) % partitions


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamReader:
    """Someone who has read a partition to its end and waits for more."""

    def watermark_moved(self, partition: Partition) -> None:
        """There is more to read. Called once for each ``wait``, from within a turn."""
        raise NotImplementedError

    def stream_deleted(self, partition: Partition) -> None:
        """The stream is gone."""
        raise NotImplementedError


class Partition(DurabilityWaiter):
    """One partition of a stream."""

    __deletable__ = ("_compaction", "_joiner", "_retention")

    def __init__(self, stream: Stream, index: int, name: str) -> None:
        self.stream = stream
        self.index = index
        storage = stream.vhost.broker.storage
        log = storage.log(name)
        self._compaction = Compaction(self, name, log)
        #: its batches, compacted or not
        self.log = self._compaction.restore()
        #: offset after the last record that readers may see
        self.high_watermark = log.next_offset
        #: it got messages in this turn
        self.is_dirty = False
        self._storage = storage
        self._retention = Retention(self)
        self._joiner = BatchJoiner(self, log)
        self._codec = CODEC_NONE
        self._name = name
        self._readers: dict[StreamReader, None] = {}
        #: records since the start: appended, and read by clients
        self.appended: i64 = 0
        self.records_read: i64 = 0
        # Messages of this turn; what their properties show, once one of them has any.
        self._messages: list[Message] = []
        self._described: list[Described] | None = None
        self._size = 0
        # (write batch, next offset) of what is not durable yet, oldest first.
        self._watermarks: deque[tuple[int, int]] = deque()

    @property
    def first_offset(self) -> int:
        """Offset of the oldest record that is kept; ``high_watermark`` when there is none."""
        return min(self.log.first_offset, self.high_watermark)

    @property
    def next_offset(self) -> int:
        """Offset that the next record will get; at or above ``high_watermark``."""
        return self.log.next_offset

    def apply(self, settings: StreamSettings) -> None:
        """Put other settings in force."""
        self._codec = settings.codec
        self._retention.apply(settings)
        self._joiner.apply(settings)
        self._compaction.apply(settings)

    @property
    def is_compacting(self) -> bool:
        """Whether a round of compaction is under way."""
        return self._compaction.is_under_way

    @property
    def last_offset(self) -> int:
        """Offset of the newest record that readers may see; ``high_watermark`` when none is."""
        return max(self.high_watermark - 1, self.first_offset)

    # Writing

    def add(self, message: Message, described: Described) -> None:
        """Take a message for the end of this turn."""
        messages = self._messages
        if described is not PLAIN_MESSAGE:
            if self._described is None:
                self._described = [PLAIN_MESSAGE] * len(messages)
            self._described.append(described)
        elif self._described is not None:
            self._described.append(described)
        messages.append(message)
        self._size += message.size + len(message.header)
        if self._size >= BATCH_BYTES or len(messages) >= BATCH_RECORDS:
            self._append()

    def _append(self) -> None:
        messages = self._messages
        if messages and not self.stream.is_deleted:
            batch = encode_batch(messages, self._described, self._codec)
            offset = self.log.append(batch, len(messages))
            self.appended += len(messages)
            self._joiner.appended(offset, messages, self._described, self._size)
            self._retention.appended(len(batch))
            self._compaction.appended()
            self._messages = []
            self._described = None
            self._size = 0

    def add_batch(self, batch: Piece, count: int, timestamp: int) -> None:
        """Take an unstamped batch of so many messages, behind what this turn brought."""
        self._append()
        record = stamped(batch, timestamp, self._codec)
        self.log.append(record, count)
        self.appended += count
        self._joiner.passed()
        self._retention.appended(len(record))
        self._compaction.appended()

    def flush(self) -> None:
        """The turn ends: append what it brought, and have the readers told once it is durable."""
        self.is_dirty = False
        self._append()
        next_offset = self.log.next_offset
        storage = self._storage
        if not storage.is_durable:
            self._move_watermark(next_offset)
            return
        self._watermarks.append((storage.write_batch, next_offset))
        storage.wait(self)

    def write_batch_durable(self, write_batch: int) -> None:
        coming = self._watermarks
        watermark = self.high_watermark
        while coming and coming[0][0] <= write_batch:
            watermark = coming.popleft()[1]
        if watermark > self.high_watermark and not self.stream.is_deleted:
            self._move_watermark(watermark)

    def _move_watermark(self, watermark: int) -> None:
        self.high_watermark = watermark
        self._joiner.watermark_moved()
        if self._readers:
            readers = list(self._readers)
            self._readers.clear()
            for reader in readers:
                reader.watermark_moved(self)

    # Reading

    def read(self, offset: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Whole batches with their first offsets, from the one that holds ``offset`` on, in order.

        At least one, however large, if there is one below the high watermark. Meaningful only
        while ``is_loaded(offset)``.
        """
        found: list[tuple[int, bytes]] = []
        watermark = self.high_watermark
        for base, batch, _ in self.log.read(offset, READ_BATCHES, max_bytes):
            if base >= watermark:
                break
            found.append((base, batch))
        return found

    def is_loaded(self, offset: int) -> bool:
        """Whether ``read`` can answer from memory."""
        return self.log.is_loaded(offset)

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        """Bring what ``read`` needs into memory; ``ready`` is called in a later turn."""
        self.log.load(offset, max_bytes, ready)

    def wait(self, reader: StreamReader) -> None:
        """Have ``reader`` told, once, when the high watermark next moves."""
        self._readers[reader] = None

    def cancel(self, reader: StreamReader) -> None:
        """Take back ``wait``; nothing happens when the reader does not wait."""
        self._readers.pop(reader, None)

    def offset_for_timestamp(self, timestamp: int, found: Callable[[int], None]) -> None:
        """Call ``found`` with the offset of the first record that arrived at or after a time.

        ``timestamp`` is in milliseconds since the epoch. It is the high watermark when there is no
        such record, now or in a later turn when old batches must be read from disk first. Arrival
        times are taken to rise; where the clock was set back the answer is near the place.
        """
        _TimestampSearch(self, timestamp, found).step()

    def deleted(self) -> None:
        """The stream is gone: drop its records and what waits, tell the readers."""
        self._storage.drop_log(self._name)
        self._compaction.deleted()
        self._joiner.deleted()
        self._retention.deleted()
        # They and it would keep each other in memory.
        del self._compaction
        del self._joiner
        del self._retention
        self._messages = []
        self._described = None
        self._watermarks.clear()
        readers = list(self._readers)
        self._readers.clear()
        for reader in readers:
            reader.stream_deleted(self)


#: Bytes asked for when a search looks into a batch.
_SEARCH_BYTES: Final = 1


class _TimestampSearch:
    """Binary search over offsets; a step per batch, which may have to be loaded first."""

    def __init__(self, partition: Partition, timestamp: int, found: Callable[[int], None]) -> None:
        self._partition = partition
        self._timestamp = timestamp
        self._found = found
        # Everything below low is older; the answer is at most high.
        self._low = partition.first_offset
        self._high = partition.high_watermark

    def step(self) -> None:
        partition = self._partition
        while self._low < self._high and not partition.stream.is_deleted:
            middle = (self._low + self._high) // 2
            if not partition.is_loaded(middle):
                partition.load(middle, _SEARCH_BYTES, self.step)
                return
            batches = partition.read(middle, _SEARCH_BYTES)
            if not batches or batches[0][0] >= self._high:
                self._high = middle
                continue
            base, batch = batches[0]
            view = RecordBatch(batch)
            if batch_max_timestamp(batch) < self._timestamp:
                self._low = base + view.span
            else:
                row = view.first_at_or_after(self._timestamp)
                if row > 0 or base <= self._low:
                    self._high = self._low = base + view.delta(row)
                else:
                    self._high = base
        # Retention may have passed it meanwhile.
        self._found(max(self._high, partition.first_offset))


#: A record batch that is to be taken later: by which partition, how many records, the
#: batch without timestamps.
StagedBatch = tuple[int, int, Piece]


class _Staged:
    """Messages that are to be taken later by one partition."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.described: list[Described] = []

    def batches(self) -> list[tuple[int, bytes]]:
        """They in batches, and how many are in each."""
        messages, described = self.messages, self.described
        is_plain = described.count(PLAIN_MESSAGE) == len(messages)
        found: list[tuple[int, bytes]] = []
        for at, end in _cut([message.size + len(message.header) for message in messages]):
            shown = None if is_plain else described[at:end]
            found.append((end - at, encode_unstamped(messages[at:end], shown)))
        return found


def _cut(sizes: list[int]) -> list[tuple[int, int]]:
    """Where batches begin and end, of messages of these sizes."""
    cuts: list[tuple[int, int]] = []
    first = size = 0
    for index, each in enumerate(sizes):
        size += each
        end = index + 1
        if size >= BATCH_BYTES or end - first >= BATCH_RECORDS or end == len(sizes):
            cuts.append((first, end))
            first = end
            size = 0
    return cuts


class _StreamEnd(EndOfTurn):
    """The stream at the end of a turn."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def flush_turn(self) -> None:
        self._stream.flush()


class Stream(Destination):
    """A stream of one virtual host.

    ``incarnation`` tells it from an earlier stream of the same name, whose offsets mean nothing
    here.
    """

    def __init__(
        self,
        vhost: StreamNamespace,
        name: str,
        partitions: int,
        incarnation: str,
        arguments: dict[str, HeaderValue],
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.incarnation = incarnation
        self.arguments = arguments
        self.is_deleted = False
        #: messages taken since the start
        self.published = 0
        self._broker = vhost.broker
        self.partitions: list[Partition] = [
            Partition(self, index, self._log_name(index)) for index in range(partitions)
        ]
        self._dirty: list[Partition] = []
        # The partition of what says nothing of its own in this turn.
        self._next_index = 0
        self._memo: dict[tuple[int, bytes], Described] = {}
        # What reads the properties of the last message, and its protocol.
        self._codec = codec_of(PROTOCOL_NONE)
        self._protocol = PROTOCOL_NONE

    def add_partitions(self, count: int) -> None:
        """Have ``count`` partitions, more than there are; the new ones are empty.

        Settings are to be applied anew. Keys choose among all of them from now on.
        """
        self.partitions.extend(
            [
                Partition(self, index, self._log_name(index))
                for index in range(len(self.partitions), count)
            ]
        )

    def _log_name(self, index: int) -> str:
        # The incarnation alone makes it unique; the names are for whoever looks at the files.
        return f"stream/{self.vhost.name}/{self.name}/{self.incarnation}/{index}"

    def partition(self, index: int) -> Partition | None:
        """The partition with this number; None when there is none."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None

    def apply(self, settings: StreamSettings) -> None:
        """Put other settings in force: those of its arguments and the policy that now holds."""
        if not self.is_deleted:
            for partition in self.partitions:
                partition.apply(settings)

    @property
    def record_count(self) -> int:
        """Number of records that can be read, in all partitions."""
        return sum(each.high_watermark - each.first_offset for each in self.partitions)

    def accept(self, message: Message) -> int:
        """A stream keeps every message, whatever its delivery mode."""
        self.published += 1
        if self.is_deleted:
            return ACCEPTED
        described = PLAIN_MESSAGE
        if message.header or message.annotations is not None:
            described = self._describe(message)
        partitions = self.partitions
        if len(partitions) == 1:
            partition = partitions[0]
        else:
            index = self._choose(message, described)
            partition = partitions[self._next_index if index == ANY else index]
        partition.add(message, described)
        return self._added(partition)

    def _added(self, partition: Partition) -> int:
        """A partition got something in this turn: what ``accept`` answers."""
        self._broker.collected += 1
        if not partition.is_dirty:
            partition.is_dirty = True
            if not self._dirty:
                self._broker.add_unflushed(_StreamEnd(self))
            self._dirty.append(partition)
        storage = self._broker.storage
        return storage.write_batch if storage.is_durable else ACCEPTED

    def staged(self, messages: list[Message]) -> list[StagedBatch]:
        """Batches of messages that are to be taken later, all at one time (``accept_staged``).
        Nothing where they would be small, or out of order."""
        parted: dict[int, _Staged] = {}
        last = ANY - 1
        staged: _Staged | None = None
        for message in messages:
            described = self._describe(message) if message.header else PLAIN_MESSAGE
            index = self._choose(message, described) if len(self.partitions) > 1 else 0
            if staged is None or index != last:
                last = index
                staged = parted.get(index)
                if staged is None:
                    staged = parted[index] = _Staged()
            staged.messages.append(message)
            staged.described.append(described)
        if len(messages) < SMALL_RECORDS * len(parted) or (len(parted) > 1 and ANY in parted):
            return []
        return [(index, *batch) for index, each in parted.items() for batch in each.batches()]

    def staged_run(self, first: Message, payloads: list[bytes]) -> list[StagedBatch]:
        """``staged`` of messages that are like ``first`` but for their payloads."""
        described = self._describe(first) if first.header else PLAIN_MESSAGE
        index = self._choose(first, described) if len(self.partitions) > 1 else 0
        sizes = [len(payload) + len(first.header) for payload in payloads]
        return [
            (index, end - at, encode_unstamped_run(first, described, payloads[at:end]))
            for at, end in _cut(sizes)
        ]

    def accept_staged(self, batches: list[StagedBatch], timestamp: int) -> int:
        """Take batches that were staged for as many partitions as there are: how ``accept``
        answers."""
        answer = ACCEPTED
        for index, count, batch in batches:
            self.published += count
            if not self.is_deleted:
                partition = self.partitions[self._next_index if index == ANY else index]
                partition.add_batch(batch, count, timestamp)
                answer = self._added(partition)
        return answer

    def _choose(self, message: Message, described: Described) -> int:
        """The partition of a message that was just ``described``, or ANY."""
        if described.partition >= 0:
            return described.partition % len(self.partitions)
        key = described.key
        if described is KEYED:
            header = message.header
            key = header[self._codec.key_at(header) :]
        elif key is None:
            address = message.address
            key = address.key
            if not address.exchange or not key:
                return ANY
        return partition_of(key, len(self.partitions))

    def _describe(self, message: Message) -> Described:
        header = message.header
        if message.annotations is not None:
            return describe(message.properties())
        protocol = message.protocol
        if protocol != self._protocol:
            self._codec = codec_of(protocol)
            self._protocol = protocol
        if self._codec.key_at(header):
            # Keys may differ from message to message: they are not worth remembering.
            return KEYED
        if len(header) > MEMO_HEADER_BYTES:
            return describe(message.properties())
        place = (protocol, header)
        found = self._memo.get(place)
        if found is None:
            found = describe(message.properties())
            if len(self._memo) >= MEMO_SIZE:
                self._memo.clear()
            self._memo[place] = found
        return found

    def flush(self) -> None:
        """The turn ends: each partition that got messages writes its batch."""
        partitions = self._dirty
        self._dirty = []
        if not self.is_deleted:
            self._next_index = (self._next_index + 1) % len(self.partitions)
            for partition in partitions:
                partition.flush()

    def deleted(self) -> None:
        """The virtual host removed this stream: drop its records, tell its readers."""
        self.is_deleted = True
        partitions = self.partitions
        # They and it would keep each other in memory.
        self.partitions = []
        for partition in partitions:
            partition.deleted()
