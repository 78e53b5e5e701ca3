"""What clients give and get: messages, deliveries, records, and what streams look like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trivium.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Properties
from trivium.streams.records import (
    CONTENT_TYPE,
    EXCHANGE,
    HEADERS,
    KEY,
    PAYLOAD,
    PROTOCOL,
    ROUTING_KEY,
    TIMESTAMP,
    RecordBatch,
    batch_span,
)
from trivium_native.wire.messages import (
    BATCH_HEAD_SIZE,
    MANDATORY,
    PERSISTENT,
    RETAIN,
    encode_message,
)
from trivium_native.wire.properties import encode_key, encode_properties


@dataclass(init=False, slots=True, kw_only=True, unsafe_hash=True)
class Publication:
    """One message to publish. Raises ValueError for fields that do not fit.

    ``key`` is that of ``properties``, for who sets nothing else there. ``persistent`` None means:
    unless ``mode`` is at-most-once. ``mandatory`` makes it an error that no binding wants the
    message. To be changed by nobody; it is not frozen, as that takes three times as long to make.
    """

    payload: bytes
    routing_key: bytes | str
    exchange: str
    properties: Properties | None
    mode: int
    persistent: bool | None
    retain: bool
    mandatory: bool
    priority: int
    key: bytes | None

    def __init__(
        self,
        *,
        payload: bytes,
        routing_key: bytes | str = b"",
        exchange: str = "amq.topic",
        properties: Properties | None = None,
        mode: int = AT_LEAST_ONCE,
        persistent: bool | None = None,
        retain: bool = False,
        mandatory: bool = False,
        priority: int = 0,
        key: bytes | None = None,
    ) -> None:
        if not AT_MOST_ONCE <= mode <= EXACTLY_ONCE or not 0 <= priority <= 255:
            raise ValueError("mode is not 0, 1 or 2, or priority is not from 0 to 255")
        self.payload = payload
        self.routing_key = routing_key
        self.exchange = exchange
        self.properties = properties
        self.mode = mode
        self.persistent = persistent
        self.retain = retain
        self.mandatory = mandatory
        self.priority = priority
        self.key = key

    def encode(self) -> bytes:
        """The message as PUBLISH frames it."""
        flags = self.mode
        if self.mode != AT_MOST_ONCE if self.persistent is None else self.persistent:
            flags |= PERSISTENT
        if self.retain:
            flags |= RETAIN
        if self.mandatory:
            flags |= MANDATORY
        routing_key = self.routing_key
        return encode_message(
            flags,
            self.priority,
            self.exchange.encode(),
            routing_key.encode() if isinstance(routing_key, str) else routing_key,
            encoded_properties(self.properties, self.key),
            self.payload,
        )


def encoded_properties(
    properties: Properties | None, key: bytes | None, partition: int | None = None
) -> bytes:
    """What a message has beside its payload. Raises ValueError for a key beside properties."""
    if key is not None:
        if properties is not None:
            raise ValueError("the key belongs into the properties, where there are any")
        if partition is None:
            return encode_key(key)
        properties = Properties(key=key)
    if properties is None and partition is None:
        return b""
    return encode_properties(properties or Properties(), partition)


#: What the head of a message depends on beside the rest of it: the sizes of payload and key.
_Sizes = int | tuple[int, int]


class _Heads(dict[_Sizes, bytes]):
    """What stands before the key and the payload of a message, by the sizes of these.

    Without a key that is one number, and the message has the properties of ``like``.
    """

    def __init__(self, like: Publication) -> None:
        super().__init__()
        self._like = like

    def __missing__(self, sizes: _Sizes) -> bytes:
        if isinstance(sizes, int):
            behind = sizes
            entry = replace(self._like, payload=bytes(behind)).encode()
        else:
            behind = sum(sizes)
            payload, key = sizes
            entry = replace(self._like, payload=bytes(payload), key=bytes(key)).encode()
        self[sizes] = head = entry[: len(entry) - behind]
        return head


@dataclass(frozen=True, slots=True)
class FramedMessages:
    """Messages as PUBLISH frames them, behind one another, for who makes many at a time."""

    count: int
    data: bytes | memoryview = field(repr=False)

    def __len__(self) -> int:
        return self.count

    @staticmethod
    def from_payloads(
        payloads: Sequence[bytes], like: Publication, keys: Sequence[bytes] | None = None
    ) -> FramedMessages:
        """Messages that differ in payload, and in key, alone: many times as fast as one by one.

        All else is that of ``like``; with ``keys`` it has no properties. Raises ValueError where
        it has, and where there are not as many keys as payloads.
        """
        heads = _Heads(like)
        parts: list[bytes] = []
        if keys is None:
            for payload in payloads:
                parts += (heads[len(payload)], payload)
        elif like.properties is not None:
            raise ValueError("messages that differ in their keys have no other properties")
        else:
            for payload, key in zip(payloads, keys, strict=True):
                parts += (heads[len(payload), len(key)], key, payload)
        return FramedMessages(len(payloads), b"".join(parts))

    @staticmethod
    def of(publications: Sequence[Publication] | FramedMessages) -> FramedMessages:
        """Messages framed, if they are not yet."""
        if isinstance(publications, FramedMessages):
            return publications
        return FramedMessages(len(publications), b"".join(_parts(publications)))


def _parts(publications: Sequence[Publication]) -> list[bytes]:
    """The messages as PUBLISH frames them. Those of a row that differ in payload and key alone
    share what stands before these."""
    parts: list[bytes] = []
    put = parts.append
    like: Publication | None = None
    heads: _Heads | None = None
    for each in publications:
        if (
            like is None
            or each.routing_key != like.routing_key
            or each.exchange != like.exchange
            or each.properties is not None
            or each.mode != like.mode
            or each.persistent is not like.persistent
            or each.retain is not like.retain
            or each.mandatory is not like.mandatory
            or each.priority != like.priority
        ):
            put(each.encode())
            if each.properties is None:
                like, heads = each, None
            continue
        if heads is None:
            heads = _Heads(replace(like, key=None))
        payload = each.payload
        key = each.key
        if key is None:
            put(heads[len(payload)])
        else:
            put(heads[len(payload), len(key)])
            put(key)
        put(payload)
    return parts


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a ``pubsub`` or ``queue`` subscription got.

    ``timestamp`` is the arrival at the broker and ``lifetime`` the time remaining (None: no limit),
    both in milliseconds. ``tag`` settles it; 0 where there is nothing to settle.
    """

    subscription: int
    tag: int
    exchange: str
    routing_key: bytes
    properties: Properties
    payload: bytes
    mode: int
    persistent: bool
    retain: bool
    priority: int
    protocol: int
    timestamp: int
    lifetime: int | None
    is_redelivered: bool
    returns: int


class Record(NamedTuple):
    """One record of a stream. ``headers`` are names and values as bytes, as Spark sees them."""

    offset: int
    timestamp: int
    key: bytes | None
    exchange: str
    routing_key: bytes
    payload: bytes
    content_type: str | None
    headers: list[tuple[str, bytes]]
    protocol: int


def _varies(view: RecordBatch, id_: int) -> bool:
    """Whether the records of a batch have several values in a column."""
    column = view.columns.get(id_)
    return column is not None and column.rows != 1


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record batch as it is stored, and the offset of its first record.

    Without ``data`` it has no records, and says that a filter has passed all before the offset.

    Where a reader goes on within it, ``start`` is that place: the records before it are not meant.
    """

    base_offset: int
    data: bytes = field(repr=False)
    start: int = 0

    def view(self) -> RecordBatch:
        """The columns, by position in the view's own ``data``: uncompressed, if this one is not.

        Raises trivium.streams.records.BatchError.
        """
        return RecordBatch(self.data)

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + (batch_span(self.data) if self.data else 0)

    @property
    def credit(self) -> int:
        """What it takes of a subscription's credit."""
        return len(self.data) or BATCH_HEAD_SIZE

    def records(self, start: int = 0) -> Iterator[Record]:
        """The records from offset ``start`` on, and none before that of the batch.

        Raises trivium.streams.records.BatchError.
        """
        view = self.view()
        start = max(start, self.start)
        binary = view.binary
        # What all records have alike is made once.
        exchange = None if _varies(view, EXCHANGE) else (binary(EXCHANGE, 0) or b"").decode()
        routing_key = None if _varies(view, ROUTING_KEY) else binary(ROUTING_KEY, 0) or b""
        protocol = None if _varies(view, PROTOCOL) else view.integer(PROTOCOL, 0)
        has_types, has_headers = CONTENT_TYPE in view.columns, HEADERS in view.columns
        for row in range(view.row_from(start - self.base_offset), view.count):
            content_type = binary(CONTENT_TYPE, row) if has_types else None
            yield Record(
                self.base_offset + view.delta(row),
                view.integer(TIMESTAMP, row),
                binary(KEY, row),
                (binary(EXCHANGE, row) or b"").decode() if exchange is None else exchange,
                binary(ROUTING_KEY, row) or b"" if routing_key is None else routing_key,
                binary(PAYLOAD, row) or b"",
                None if content_type is None else content_type.decode(),
                [(name.decode(), value) for name, value in view.headers(row)]
                if has_headers
                else [],
                view.integer(PROTOCOL, row) if protocol is None else protocol,
            )


@dataclass(frozen=True, slots=True)
class LogStart:
    """Where a ``log`` subscription starts, and in which stream of that name."""

    offset: int
    #: None of a broker that does not say it
    incarnation: str | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch. The first batch may begin before the offset that was asked for: then
    ``records()`` begins there all the same.

    ``next_offset`` is where a fetch with a filter goes on, None without one.
    """

    first_offset: int
    high_watermark: int
    batches: list[StoredBatch]
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """``first_offset`` to ``high_watermark`` can be read; ``next_offset`` is the next to write. All
    are 0 where the user may only write."""

    first_offset: int
    high_watermark: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream; ``incarnation`` tells it from an earlier one of the same name."""

    name: str
    incarnation: str
    partitions: list[PartitionInfo]
    arguments: dict[str, object]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group in one partition: its committed offset, how far it is behind, and the text that was
    committed with the offset; None for none."""

    partition: int
    committed: int | None
    lag: int
    metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """A policy: what ``definition`` says of everything whose name ``pattern`` matches."""

    name: str
    pattern: str
    definition: Mapping[str, object]
    apply_to: str = "all"
    priority: int = 0
    #: whether the exchanges that it names are not in force; the broker says so
    suspended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """A user of the broker; one that is ``configured`` cannot be changed by requests."""

    name: str
    tags: Sequence[str] = ()
    configured: bool = False
    #: where its MQTT clients go that name no other virtual host
    vhost: str = "/"
    #: whether it has keys for SCRAM
    scram: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyInfo:
    """A key of a user. ``key``, what a client shows, is there only when it was made."""

    id: str
    user: str
    scopes: Sequence[str] | None = None
    expires_ms: int = 0
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as it was declared."""

    name: str
    messages: int
    consumers: int


@dataclass(frozen=True, slots=True)
class OwnQueue:
    """A durable queue that a subscription makes: what it is bound to; the delivery mode of all its
    messages (``at-most-once``, ``at-least-once``, ``exactly-once``; None: as they are published);
    the seconds after which it is deleted when nobody has used it (None: never)."""

    pattern: bytes | str = b"#"
    exchange: str = "amq.topic"
    delivery: str | None = None
    expires: float | None = None

    def fields(self) -> dict[str, object]:
        """As in SUBSCRIBE."""
        pattern = self.pattern.encode() if isinstance(self.pattern, str) else self.pattern
        return {
            "exchange": self.exchange,
            "pattern": pattern,
            "delivery": self.delivery,
            "expires_ms": None if self.expires is None else int(self.expires * 1000),
        }


@dataclass(frozen=True, slots=True)
class Producer:
    """An open idempotent producer: its numbers go on at ``sequence``.

    They are those of its messages, or of its transactions, depending on how it was opened.
    """

    name: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Part:
    """Messages staged for a transaction: the part's name, and in how many requests they came."""

    name: str
    requests: int


@dataclass(frozen=True, slots=True)
class Membership:
    """Who commits: a member of a group, or its exclusive holder, as of a generation."""

    group: str
    member: str
    generation: int


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """A partition that a member may read; ``committed`` is where to go on, None if nowhere yet.

    They are sorted by stream and partition.
    """

    stream: str
    incarnation: str
    partition: int
    committed: int | None

    def __lt__(self, other: AssignedPartition) -> bool:
        return (self.stream, self.partition) < (other.stream, other.partition)


@dataclass(frozen=True, slots=True)
class Joined:
    """A member as the broker sees it; send a heartbeat every ``heartbeat`` seconds.

    An exclusive holder is assigned nothing and needs no heartbeats (0). ``members`` are the names
    of all members by then, of a broker that says them.
    """

    membership: Membership
    heartbeat: float
    assigned: list[AssignedPartition]
    members: list[str] = field(default_factory=list)
    #: how many partitions the streams have, by name and incarnation; None of a broker that does not
    #: say it
    streams: Mapping[tuple[str, str], int] | None = None


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A group's next offsets to read in one stream, by partition."""

    group: str
    stream: str
    offsets: Mapping[int, int]
    incarnation: str | None = None
    membership: Membership | None = None
    #: texts to be kept with the offsets, by partition
    metadata: Mapping[int, str] = field(default_factory=dict)

    def fields(self) -> dict[str, object]:
        """As in COMMIT and TX."""
        found: dict[str, object] = {
            "group": self.group,
            "stream": self.stream,
            "offsets": [self._row(*each) for each in self.offsets.items()],
        }
        if self.incarnation is not None:
            found["incarnation"] = self.incarnation
        if self.membership is not None:
            found["member"] = self.membership.member
            found["generation"] = self.membership.generation
        return found

    def _row(self, partition: int, offset: int) -> list[object]:
        text = self.metadata.get(partition)
        return [partition, offset] if text is None else [partition, offset, text]


@dataclass(frozen=True, slots=True)
class Settlement:
    """Deliveries ``first`` to ``last`` of a subscription within a transaction.

    ``action`` is TX_SETTLE, TX_REQUEUE or TX_REJECT of ``trivium_native.wire.messages``.
    """

    subscription: int
    action: int
    first: int
    last: int
