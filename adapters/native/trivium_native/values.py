"""What clients give and get: messages, deliveries, records, and what streams look like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trivium.message import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Properties
from trivium.records import (
    CONTENT_TYPE,
    EXCHANGE,
    KEY,
    PAYLOAD,
    PROTOCOL,
    ROUTING_KEY,
    TIMESTAMP,
    RecordBatch,
)
from trivium_native.entries import MANDATORY, PERSISTENT, RETAIN, encode_entry
from trivium_native.properties import encode_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One message to publish. Raises ValueError for fields that do not fit.

    ``persistent`` None means: unless ``mode`` is at-most-once. ``mandatory`` makes it an error that
    no binding wants the message.
    """

    payload: bytes
    routing_key: bytes | str = b""
    exchange: str = "amq.topic"
    properties: Properties | None = None
    mode: int = AT_LEAST_ONCE
    persistent: bool | None = None
    retain: bool = False
    mandatory: bool = False
    priority: int = 0

    def __post_init__(self) -> None:
        if not AT_MOST_ONCE <= self.mode <= EXACTLY_ONCE or not 0 <= self.priority <= 255:
            raise ValueError("mode is not 0, 1 or 2, or priority is not from 0 to 255")

    def encode(self) -> bytes:
        """The message as an entry of PUBLISH."""
        flags = self.mode
        if self.mode != AT_MOST_ONCE if self.persistent is None else self.persistent:
            flags |= PERSISTENT
        if self.retain:
            flags |= RETAIN
        if self.mandatory:
            flags |= MANDATORY
        key = self.routing_key
        return encode_entry(
            flags,
            self.priority,
            self.exchange.encode(),
            key.encode() if isinstance(key, str) else key,
            b"" if self.properties is None else encode_properties(self.properties),
            self.payload,
        )


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


@dataclass(frozen=True, slots=True)
class Record:
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


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record batch as it is stored, and the offset of its first record."""

    base_offset: int
    data: bytes = field(repr=False)

    def view(self) -> RecordBatch:
        """The columns, by position in ``data``. Raises trivium.records.BatchError."""
        return RecordBatch(self.data)

    def records(self, start: int = 0) -> Iterator[Record]:
        """The records from offset ``start`` on. Raises trivium.records.BatchError."""
        view = self.view()
        for row in range(max(start - self.base_offset, 0), view.count):
            content_type = view.binary(CONTENT_TYPE, row)
            yield Record(
                self.base_offset + row,
                view.integer(TIMESTAMP, row),
                view.binary(KEY, row),
                (view.binary(EXCHANGE, row) or b"").decode(),
                view.binary(ROUTING_KEY, row) or b"",
                view.binary(PAYLOAD, row) or b"",
                None if content_type is None else content_type.decode(),
                [(name.decode(), value) for name, value in view.headers(row)],
                view.integer(PROTOCOL, row),
            )


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch. The first batch may begin before the offset that was asked for."""

    first_offset: int
    high_watermark: int
    batches: list[StoredBatch]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """``first_offset`` to ``high_watermark`` can be read; ``next_offset`` is the next to write."""

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
    """A group in one partition: its committed offset (None: none) and how far it is behind."""

    partition: int
    committed: int | None
    lag: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as it was declared."""

    name: str
    messages: int
    consumers: int


@dataclass(frozen=True, slots=True)
class Producer:
    """An open idempotent producer: the numbers of its messages go on at ``sequence``."""

    name: str
    epoch: int
    sequence: int
