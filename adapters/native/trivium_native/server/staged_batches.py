"""What STAGE keeps of a request: its messages as they came, or as record batches.

Where all of them go to one stream, they are kept in the form that the stream will have them in, so
that they are published by being appended, without being read once more. docs/stored-records.md has
the bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from librt.strings import read_i64_le
from mypy_extensions import i64

from trivium.common.native import lies_at
from trivium.common.pieces import Piece
from trivium.messages.message import EXACTLY_ONCE, Message
from trivium.routing.exchanges import Route
from trivium.streams.joining import SMALL_RECORDS
from trivium.streams.records import RecordBatch
from trivium.streams.stream import ANY, StagedBatch, Stream
from trivium_native.server.batches import Batch, is_plain
from trivium_native.server.publishing import Publisher
from trivium_native.wire.errors import Blocked
from trivium_native.wire.messages import (
    MANDATORY,
    MESSAGE_HEAD_SIZE,
    PUBLISH_HEAD,
    PUBLISH_HEAD_SIZE,
)

#: Flags in the head of a record: record batches follow, no messages; some of these are mandatory.
_BATCHES: Final = 8
_MANDATORY: Final = 16
#: partitions of the stream; sizes of the exchange's name and the routing key, which follow
_TARGET: Final = Struct("<III")
#: partition, records and size of a batch, which follows
_BATCH: Final = Struct("<III")
_ANY_PARTITION: Final = 0xFFFF_FFFF

#: More messages, of which not all are alike, stay as they came: it would take long.
_MAX_DIFFERENT: Final = 8192


class Stager:
    """Finds what is kept of requests that come on one connection."""

    def __init__(self, publisher: Publisher, max_payload: int) -> None:
        self._publisher = publisher
        self._max_payload = max_payload

    def record(self, data: bytes, at: i64, end: i64, count: i64) -> bytes:
        """What is kept of the messages ``data[at:end]``, which are published later.

        Raises Malformed, Blocked, Unroutable, and the errors that refuse the request.
        """
        publisher = self._publisher
        first, route = publisher.read_first(data, at, end)
        stream = _only_stream(route)
        if stream is not None and count >= SMALL_RECORDS and is_plain(first):
            found = self._run(data, at, end, count, first, route, stream)
            if found is None and count <= _MAX_DIFFERENT:
                batch = publisher.batch(data, at, end, count)
                publisher.read(batch)
                found = _batches(batch, stream)
            if found is not None:
                if publisher.blocked is not None:
                    raise Blocked(publisher.blocked)
                return found
        publisher.check(data, at, end, count)
        return PUBLISH_HEAD.pack(count, 0) + data[at:end]

    def _run(
        self,
        data: bytes,
        at: i64,
        end: i64,
        count: i64,
        first: Message,
        route: Route,
        stream: Stream,
    ) -> bytes | None:
        """What is kept of messages of which all are like the first but for their payloads; None
        where there are others, or what is refused."""
        head: i64 = read_i64_le(data, at)
        sizes: i64 = read_i64_le(data, at + 8)
        header_size: i64 = sizes & 0xFFFF_FFFF
        names_size: i64 = (head >> 16 & 0xFFFF) + (head >> 32 & 0xFFFF)
        like: i64 = head & ~MANDATORY
        is_mandatory: i64 = 0
        before_payload: i64 = MESSAGE_HEAD_SIZE + names_size + header_size
        names = data[at + MESSAGE_HEAD_SIZE : at + before_payload]
        payloads: list[bytes] = []
        for _ in range(count):
            payload_at: i64 = at + before_payload
            if payload_at > end:
                return None
            head = read_i64_le(data, at)
            sizes = read_i64_le(data, at + 8)
            size: i64 = sizes >> 32 & 0xFFFF_FFFF
            if head & ~MANDATORY != like or sizes & 0xFFFF_FFFF != header_size:
                return None
            if size > self._max_payload or payload_at + size > end:
                return None
            if not lies_at(data, at + MESSAGE_HEAD_SIZE, names):
                return None
            is_mandatory |= head & MANDATORY
            at = payload_at + size
            payloads.append(data[payload_at:at])
        if at != end:
            return None
        if first.persistent:
            # Nobody sees it before it is certain.
            first.mode = EXACTLY_ONCE
        return _record(route, stream, stream.staged_run(first, payloads), is_mandatory != 0)


def _only_stream(route: Route) -> Stream | None:
    """The stream to which alone a route leads."""
    if route.depends_on_message or len(route.destinations) != 1:
        return None
    destination = route.destinations[0]
    return destination if isinstance(destination, Stream) else None


def _batches(batch: Batch, stream: Stream) -> bytes | None:
    """What is kept of messages that were read, if all go to the stream as the first does."""
    route = batch.routes[0]
    if batch.routes.count(route) != len(batch.routes):
        return None
    for message in batch.messages:
        if not is_plain(message):
            return None
        if message.persistent:
            message.mode = EXACTLY_ONCE
    batches = stream.staged(batch.messages)
    return _record(route, stream, batches, len(batch.mandatory) > 0) if batches else None


def _record(route: Route, stream: Stream, batches: list[StagedBatch], is_mandatory: bool) -> bytes:
    flags = _BATCHES | _MANDATORY if is_mandatory else _BATCHES
    exchange, key = route.address.exchange.encode(), route.address.key
    target = _TARGET.pack(len(stream.partitions), len(exchange), len(key))
    total = 0
    pieces: list[Piece] = [b"", target, exchange, key]
    for index, count, each in batches:
        total += count
        pieces.append(_BATCH.pack(_ANY_PARTITION if index == ANY else index, count, len(each)))
        pieces.append(each)
    pieces[0] = PUBLISH_HEAD.pack(total, flags)
    return b"".join(pieces)


class StagedBatches:
    """A record that has batches."""

    def __init__(self, record: bytes) -> None:
        count, flags = PUBLISH_HEAD.unpack_from(record)
        self.count: int = count
        #: whether any message is mandatory: they go the same way, or nowhere
        self.is_mandatory = flags & _MANDATORY != 0
        partitions, exchange_size, key_size = _TARGET.unpack_from(record, PUBLISH_HEAD_SIZE)
        at = PUBLISH_HEAD_SIZE + _TARGET.size
        key_at = at + exchange_size
        #: the address of all messages
        self.exchange = record[at:key_at].decode()
        self.key = record[key_at : key_at + key_size]
        self.batches: list[StagedBatch] = []
        self._partitions: int = partitions
        at = key_at + key_size
        view = memoryview(record)
        while at < len(record):
            index, count, size = _BATCH.unpack_from(record, at)
            at += _BATCH.size
            index = ANY if index == _ANY_PARTITION else index
            self.batches.append((index, count, view[at : at + size]))
            at += size

    def stream_of(self, route: Route) -> Stream | None:
        """The stream that takes them as they are, if ``route`` leads to such a one alone."""
        stream = _only_stream(route)
        return stream if stream and len(stream.partitions) == self._partitions else None

    def read(self, route: Route, now: int) -> Batch:
        """They as messages that arrive now and go by ``route``."""
        batch = Batch(b"", 0, 0, self.count, None, route.topology_version)
        for _, count, each in self.batches:
            view = RecordBatch(bytes(each), verify=False)
            for row in range(count):
                message = view.message(row)
                message.address = route.address
                message.timestamp = now
                batch.messages.append(message)
                batch.routes.append(route)
        if self.is_mandatory:
            batch.mandatory.update(range(self.count))
        return batch


def batches_of(record: bytes) -> StagedBatches | None:
    """The batches of a record, if it has any."""
    return StagedBatches(record) if PUBLISH_HEAD.unpack_from(record)[1] & _BATCHES else None
