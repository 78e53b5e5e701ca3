"""Frames and their bodies: one table for both sides, so that each test vector can be held to it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

AT_LEAST_ONCE: Final = 1
PERSISTENT: Final = 4
MANDATORY: Final = 16


class Kind(IntEnum):
    """The types of frames."""

    HELLO, AUTH, OK, ERROR, PING, PONG, CLOSE, BLOCKED, UNBLOCKED = range(0x01, 0x0A)
    PUBLISH, CONFIRM, PRODUCER = range(0x10, 0x13)
    SUBSCRIBE, UNSUBSCRIBE, DELIVER, BATCH, CREDIT, ACK, NACK, CANCELLED, POLL = range(0x20, 0x29)
    FETCH, FETCHED, COMMIT, COMMITTED, METADATA, OFFSETS = range(0x30, 0x36)
    DECLARE, DELETE, BIND, UNBIND, PURGE = range(0x40, 0x45)
    SET_POLICY, DELETE_POLICY, LIST_POLICIES, MANAGE_USERS, MANAGE_PERMISSIONS = range(0x45, 0x4A)
    TX, JOIN, HEARTBEAT, LEAVE, REBALANCE, STAGE, LIST_GROUPS, DESCRIBE_GROUP = range(0x50, 0x58)


# msgpack


def pack(value: object) -> bytes:
    """A value in the fewest bytes."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return pack_number(value)
        case float():
            return struct.pack(">Bd", 0xCB, value)
        case str():
            text = value.encode()
            if len(text) < 32:
                return bytes([0xA0 | len(text)]) + text
            return pack_size(len(text), (0xD9, 0xDA, 0xDB)) + text
        case bytes():
            return pack_size(len(value), (0xC4, 0xC5, 0xC6)) + value
        case list() | tuple():
            size = len(value)
            head = bytes([0x90 | size]) if size < 16 else pack_size(size, (None, 0xDC, 0xDD))
            return head + b"".join(map(pack, value))
        case dict():
            size = len(value)
            head = bytes([0x80 | size]) if size < 16 else pack_size(size, (None, 0xDE, 0xDF))
            return head + b"".join(pack(key) + pack(item) for key, item in value.items())
    raise TypeError(type(value))


def pack_number(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack(">b", value)
    shapes = "BHIQ" if value >= 0 else "bhiq"
    for step, shape in enumerate(shapes):
        try:
            number = struct.pack(">" + shape, value)
        except struct.error:
            continue
        return bytes([(0xCC if value >= 0 else 0xD0) + step]) + number
    raise OverflowError(value)


def pack_size(size: int, codes: tuple[int | None, int, int]) -> bytes:
    if size < 2**8 and codes[0] is not None:
        return struct.pack(">BB", codes[0], size)
    if size < 2**16:
        return struct.pack(">BH", codes[1], size)
    return struct.pack(">BI", codes[2], size)


#: By the first byte: what is a number, and what is a size that something follows.
NUMBERS: Final = dict(zip(range(0xCA, 0xD4), "fdBHIQbhiq", strict=True))
SIZES: Final[dict[int, tuple[str, type]]] = {
    **{0xC4 + step: (shape, bytes) for step, shape in enumerate("BHI")},
    **{0xD9 + step: (shape, str) for step, shape in enumerate("BHI")},
    **{0xDC + step: (shape, list) for step, shape in enumerate("HI")},
    **{0xDE + step: (shape, dict) for step, shape in enumerate("HI")},
}
CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


class Reader:
    """Takes one thing after another from bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def bytes(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            raise ValueError("it ends too early")
        return self.data[self.at - size : self.at]

    def fields(self, shape: str) -> tuple[Any, ...]:
        return struct.unpack(shape, self.bytes(struct.calcsize(shape)))

    def end(self) -> None:
        if self.at != len(self.data):
            raise ValueError("something follows")

    def value(self) -> Any:
        """The next msgpack value."""
        (first,) = self.bytes(1)
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first < 0xC0:
            shape: type = dict if first < 0x90 else list if first < 0xA0 else str
            return self.sized(shape, first & (0x1F if shape is str else 0x0F))
        if first in CONSTANTS:
            return CONSTANTS[first]
        if first in NUMBERS:
            return self.fields(">" + NUMBERS[first])[0]
        if first not in SIZES:
            raise ValueError(f"no type of ours: {first:#x}")
        size, shape = SIZES[first]
        return self.sized(shape, self.fields(">" + size)[0])

    def sized(self, shape: type, size: int) -> Any:
        if shape is dict:
            return {self.value(): self.value() for _ in range(size)}
        if shape is list:
            return [self.value() for _ in range(size)]
        data = self.bytes(size)
        return data.decode() if shape is str else data


def unpack(data: bytes) -> Any:
    """The one msgpack value that bytes hold."""
    reader = Reader(data)
    value = reader.value()
    reader.end()
    return value


# Bodies. The fields of each class bear the names that they have in the test vectors.


@dataclass(frozen=True)
class Message:
    """What is published and delivered; properties are msgpack, or nothing."""

    payload: bytes
    routing_key: bytes = b""
    exchange: str = ""
    flags: int = AT_LEAST_ONCE | PERSISTENT
    priority: int = 0
    properties: bytes = b""

    def encode(self) -> bytes:
        exchange = self.exchange.encode()
        sizes = (len(exchange), len(self.routing_key), 0, len(self.properties), len(self.payload))
        head = struct.pack("<BBHHHII", self.flags, self.priority, *sizes)
        return head + exchange + self.routing_key + self.properties + self.payload

    @classmethod
    def read(cls, reader: Reader) -> Message:
        flags, priority, *sizes = reader.fields("<BBHHHII")
        exchange, key, _, properties, payload = map(reader.bytes, sizes)
        return cls(payload, key, exchange.decode(), flags, priority, properties)


@dataclass(frozen=True)
class Producer:
    """The number of the first message of a request."""

    name: str
    epoch: int
    sequence: int


@dataclass(frozen=True)
class Packed:
    """The body of PUBLISH without a producer whose messages are compressed."""

    count: int
    flags: int
    size: int
    packed: bytes

    def encode(self) -> bytes:
        return struct.pack("<III", self.count, self.flags, self.size) + self.packed


@dataclass(frozen=True)
class Publish:
    """The body of PUBLISH."""

    messages: Sequence[Message]
    producer: Producer | None = None
    flags: int = 0

    def encode(self) -> bytes:
        parts = [struct.pack("<II", len(self.messages), self.flags)]
        if self.producer is not None:
            name = self.producer.name.encode()
            numbers = (self.producer.epoch, self.producer.sequence)
            parts.append(struct.pack("<IIQ", len(name), *numbers) + name)
        return b"".join([*parts, *(message.encode() for message in self.messages)])

    @classmethod
    def read(cls, reader: Reader) -> Publish | Packed:
        count, flags = reader.fields("<II")
        if flags & 6:
            size = reader.fields("<I")[0]
            return Packed(count, flags, size, reader.bytes(len(reader.data) - reader.at))
        producer = None
        if flags & 1:
            size, epoch, sequence = reader.fields("<IIQ")
            producer = Producer(reader.bytes(size).decode(), epoch, sequence)
        return cls([Message.read(reader) for _ in range(count)], producer, flags)


@dataclass(frozen=True)
class Delivery:
    """The body of DELIVER."""

    subscription: int
    flags: int
    protocol: int
    returns: int
    tag: int
    arrival: int
    lifetime: int
    message: Message

    def encode(self) -> bytes:
        fields = [getattr(self, name) for name in self.__dataclass_fields__ if name != "message"]
        return struct.pack("<IBBHQqq", *fields) + self.message.encode()

    @classmethod
    def read(cls, reader: Reader) -> Delivery:
        subscription, flags, protocol, returns, tag, arrival, left = reader.fields("<IBBHQqq")
        message = Message.read(reader)
        return cls(subscription, flags, protocol, returns, tag, arrival, left, message)


@dataclass(frozen=True)
class Stored:
    """A record batch of a FETCHED. What is in it is the matter of another document."""

    base_offset: int
    batch: bytes
    before: int = 0


@dataclass(frozen=True)
class Fetched:
    """The body of FETCHED."""

    first_offset: int
    high_watermark: int
    batches: Sequence[Stored]
    next_offset: int | None = None

    def encode(self) -> bytes:
        flags = int(self.next_offset is not None)
        parts = [
            struct.pack("<qqII", self.first_offset, self.high_watermark, len(self.batches), flags)
        ]
        if self.next_offset is not None:
            parts.append(struct.pack("<q", self.next_offset))
        for stored in self.batches:
            size = len(stored.batch)
            parts += [struct.pack("<qII", stored.base_offset, size, stored.before), stored.batch]
            parts.append(bytes(-size % 8))
        return b"".join(parts)

    @classmethod
    def read(cls, reader: Reader) -> Fetched:
        first, high, count, flags = reader.fields("<qqII")
        next_offset = reader.fields("<q")[0] if flags & 1 else None
        batches = []
        for _ in range(count):
            base, size, before = reader.fields("<qII")
            batches.append(Stored(base, reader.bytes(size), before))
            reader.bytes(-size % 8)
        return cls(first, high, batches, next_offset)


@dataclass(frozen=True)
class Batch:
    """The body of BATCH."""

    subscription: int
    base_offset: int
    batch: bytes

    def encode(self) -> bytes:
        return struct.pack("<IIq", self.subscription, 0, self.base_offset) + self.batch

    @classmethod
    def read(cls, reader: Reader) -> Batch:
        subscription, _, base = reader.fields("<IIq")
        return cls(subscription, base, reader.bytes(len(reader.data) - reader.at))


@dataclass(frozen=True)
class Work:
    """The body of TX and of STAGE."""

    map: Mapping[str, Any]
    messages: Sequence[Message] = ()

    def encode(self) -> bytes:
        fields = pack(self.map)
        parts = [struct.pack("<II", len(fields), len(self.messages)), fields]
        return b"".join([*parts, *(message.encode() for message in self.messages)])

    @classmethod
    def read(cls, reader: Reader) -> Work:
        size, count = reader.fields("<II")
        fields = unpack(reader.bytes(size))
        return cls(fields, [Message.read(reader) for _ in range(count)])


SETTLEMENT: Final = ("<IIQQ", ("subscription", "flags", "first", "last"))
NUMBERED: Final[Mapping[Kind, tuple[str, tuple[str, ...]]]] = {
    **dict.fromkeys((Kind.PING, Kind.PONG, Kind.UNBLOCKED), ("<", ())),
    Kind.CONFIRM: ("<I", ("count",)),
    Kind.CREDIT: ("<IQ", ("subscription", "amount")),
    Kind.ACK: SETTLEMENT,
    Kind.NACK: SETTLEMENT,
}
READ: Final[Mapping[Kind, Callable[[Reader], Any]]] = {
    Kind.PUBLISH: Publish.read,
    Kind.DELIVER: Delivery.read,
    Kind.FETCHED: Fetched.read,
    Kind.BATCH: Batch.read,
    Kind.TX: Work.read,
    Kind.STAGE: Work.read,
}


def encode_body(kind: Kind, body: Any) -> bytes:
    """What follows the head of a frame."""
    if kind in READ:
        data: bytes = body.encode()
        return data
    if kind in NUMBERED:
        shape, names = NUMBERED[kind]
        return struct.pack(shape, *(body[name] for name in names))
    return pack(body)


def decode_body(kind: Kind, data: bytes) -> Any:
    """What the bytes after the head of a frame mean."""
    if kind not in READ and kind not in NUMBERED:
        return unpack(data)
    reader = Reader(data)
    if kind in READ:
        body = READ[kind](reader)
    else:
        shape, names = NUMBERED[kind]
        body = dict(zip(names, reader.fields(shape), strict=True))
    reader.end()
    return body


class Frame(NamedTuple):
    """A frame and what its body means."""

    kind: Kind
    correlation: int
    body: Any


def frame(kind: int, correlation: int, body: bytes) -> bytes:
    return struct.pack("<IBQ", 9 + len(body), kind, correlation) + body
