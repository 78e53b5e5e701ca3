"""Messages in frames, as in PUBLISH and DELIVER, and the record batches of FETCHED.

A framed message is 16 bytes of lengths and flags, then exchange, routing key, properties and
payload. It is the same in both directions, so what a publisher sent is what a subscriber gets, to
the byte.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64

from trivium_native.wire.errors import Malformed
from trivium_native.wire.frames import FETCHED, write_head

#: flags, priority, exchange length, routing key length, reserved, properties length, payload length
MESSAGE_HEAD: Final = Struct("<BBHHHII")
MESSAGE_HEAD_SIZE: Final = 16

MODE_MASK: Final = 3
PERSISTENT: Final = 4
RETAIN: Final = 8
#: PUBLISH only: an error when no binding wants the message
MANDATORY: Final = 16

#: count of messages, flags
PUBLISH_HEAD: Final = Struct("<II")
PUBLISH_HEAD_SIZE: Final = 8
#: PUBLISH flag: a producer block (id length, epoch, first sequence number, id) comes first
HAS_PRODUCER: Final = 1
#: PUBLISH flags: the codec of the messages, by its number in a record batch; 0 none
CODEC_MASK: Final = 6
CODEC_SHIFT: Final = 1
#: what stands before compressed messages: their size
UNPACKED: Final = Struct("<I")
UNPACKED_SIZE: Final = 4
PRODUCER: Final = Struct("<IIQ")
PRODUCER_SIZE: Final = 16
MAX_PRODUCER_BYTES: Final = 255
#: Messages of one request: what they cost in memory must not depend on how small they are.
MAX_MESSAGES: Final = 65_536

#: TX: size of the fields, count of messages; then the fields, then the messages
TX_HEAD: Final = Struct("<II")
TX_HEAD_SIZE: Final = 8
#: what a settlement within a transaction does: done with, back to the queue, away
TX_SETTLE: Final = 0
TX_REQUEUE: Final = 1
TX_REJECT: Final = 2

#: subscription, flags, source protocol, returns, delivery tag, arrival, remaining lifetime
DELIVERY: Final = Struct("<IBBHQqq")
DELIVERY_SIZE: Final = 32
REDELIVERED: Final = 1

#: first offset, high watermark, count of batches, flags
FETCHED_HEAD: Final = Struct("<qqII")
FETCHED_HEAD_SIZE: Final = 24
#: Flag of that: an i64 follows, the offset to go on at.
HAS_NEXT_OFFSET: Final = 1
NEXT_OFFSET_SIZE: Final = 8
#: base offset, size, offsets before the one asked for; then the batch, padded to a multiple of 8
STORED: Final = Struct("<qII")
STORED_SIZE: Final = 16

#: subscription, reserved, base offset; then one record batch
BATCH_HEAD: Final = Struct("<IIq")
BATCH_HEAD_SIZE: Final = 16

#: subscription, credit to add
CREDIT: Final = Struct("<IQ")
#: subscription, flags, first and last delivery tag
SETTLE: Final = Struct("<IIQQ")
SETTLE_SIZE: Final = 24
REQUEUE: Final = 1

#: how many requests in a row a CONFIRM is for
CONFIRM: Final = Struct("<I")
CONFIRM_SIZE: Final = 4

#: Longest exchange and routing key: their lengths have 16 bits.
MAX_NAME_BYTES: Final = 0xFFFF
#: Payloads of this size and more are not copied into a writer first (16 KiB).
LARGE_PAYLOAD: Final = 16 * 1024

_PADDING: Final = (b"", bytes(7), bytes(6), bytes(5), bytes(4), bytes(3), bytes(2), bytes(1))


class FramedMessage:
    """A message as it travels."""

    __slots__ = ("exchange", "flags", "key", "payload", "priority", "properties")

    def __init__(
        self,
        flags: int,
        priority: int,
        exchange: bytes,
        key: bytes,
        properties: bytes,
        payload: bytes,
    ) -> None:
        self.flags = flags
        self.priority = priority
        self.exchange = exchange
        self.key = key
        self.properties = properties
        self.payload = payload


def encode_message(
    flags: int, priority: int, exchange: bytes, key: bytes, properties: bytes, payload: bytes
) -> bytes:
    """One message as bytes. Raises ValueError when a length is out of its field's range."""
    if len(exchange) > MAX_NAME_BYTES or len(key) > MAX_NAME_BYTES:
        raise ValueError("exchange or routing key is longer than 65535 bytes")
    writer = BytesWriter()
    write_message_head(
        writer, flags, priority, len(exchange), len(key), len(properties), len(payload)
    )
    writer.write(exchange)
    writer.write(key)
    writer.write(properties)
    if len(payload) >= LARGE_PAYLOAD:
        return b"".join((writer.getvalue(), payload))
    writer.write(payload)
    return writer.getvalue()


def write_message_head(
    writer: BytesWriter,
    flags: i64,
    priority: i64,
    exchange_size: i64,
    key_size: i64,
    properties_size: i64,
    payload_size: i64,
) -> None:
    """Write what stands before the names of a message: ``MESSAGE_HEAD``, as two numbers."""
    write_i64_le(writer, flags | priority << 8 | exchange_size << 16 | key_size << 32)
    write_i64_le(writer, properties_size | payload_size << 32)


def decode_message(data: bytes, at: i64) -> tuple[FramedMessage, int]:
    """The message at a position, and the position after it. Raises Malformed when it is cut."""
    size: i64 = len(data)
    exchange_at: i64 = at + MESSAGE_HEAD_SIZE
    if exchange_at > size:
        raise Malformed("entry is cut")
    # See ``write_message_head``.
    head: i64 = read_i64_le(data, at)
    sizes: i64 = read_i64_le(data, at + 8)
    key_at: i64 = exchange_at + (head >> 16 & 0xFFFF)
    properties_at: i64 = key_at + (head >> 32 & 0xFFFF)
    payload_at: i64 = properties_at + (sizes & 0xFFFF_FFFF)
    end: i64 = payload_at + (sizes >> 32 & 0xFFFF_FFFF)
    if end > size:
        raise Malformed("entry is shorter than its lengths say")
    message = FramedMessage(
        head & 0xFF,
        head >> 8 & 0xFF,
        data[exchange_at:key_at],
        data[key_at:properties_at],
        data[properties_at:payload_at],
        data[payload_at:end],
    )
    return message, end


def encode_fetched(
    correlation: int,
    first_offset: int,
    mark: int,
    batches: list[tuple[int, bytes]],
    start: int,
    next_offset: int = -1,
) -> list[bytes]:
    """FETCHED in pieces: whole stored batches as they are, with their base offsets between them.

    ``start`` is the offset that was asked for, ``next_offset`` where to go on; -1 where the batches
    say it.
    """
    size: i64 = FETCHED_HEAD_SIZE
    flags: i64 = 0
    if next_offset >= 0:
        size += NEXT_OFFSET_SIZE
        flags = HAS_NEXT_OFFSET
    for _, batch in batches:
        size += STORED_SIZE + len(batch) + len(_PADDING[len(batch) & 7])
    writer = BytesWriter()
    write_head(writer, FETCHED, correlation, size)
    write_i64_le(writer, first_offset)
    write_i64_le(writer, mark)
    write_i64_le(writer, len(batches) | flags << 32)
    if flags:
        write_i64_le(writer, next_offset)
    pieces: list[bytes] = []
    asked: i64 = start
    for base, batch in batches:
        at: i64 = base
        before: i64 = asked - at if asked > at else 0
        write_i64_le(writer, at)
        write_i64_le(writer, len(batch) | before << 32)
        pieces.append(writer.getvalue())
        pieces.append(batch)
        writer.truncate(0)
        writer.write(_PADDING[len(batch) & 7])
    pieces.append(writer.getvalue())
    return pieces


def decode_fetched(body: bytes) -> tuple[int, int, list[tuple[int, bytes]], int, int]:
    """First offset, high watermark, batches, offset asked for and next offset of a FETCHED body.

    The offset asked for, or the first one of the batches behind it, is -1 where there is no batch,
    and the next offset where the batches say it. Raises Malformed.
    """
    size = len(body)
    if size < FETCHED_HEAD_SIZE:
        raise Malformed("FETCHED is cut")
    first_offset, mark, count, flags = FETCHED_HEAD.unpack_from(body)
    at = FETCHED_HEAD_SIZE
    next_offset = -1
    if flags & HAS_NEXT_OFFSET:
        if size < FETCHED_HEAD_SIZE + NEXT_OFFSET_SIZE:
            raise Malformed("FETCHED is cut")
        next_offset = read_i64_le(body, at)
        at += NEXT_OFFSET_SIZE
    batches: list[tuple[int, bytes]] = []
    start = -1
    for _index in range(count):
        if at + STORED_SIZE > size:
            raise Malformed("FETCHED is cut")
        base, length, before = STORED.unpack_from(body, at)
        if start < 0:
            start = base + before
        at += STORED_SIZE
        if at + length > size:
            raise Malformed("FETCHED is shorter than its lengths say")
        batches.append((base, body[at : at + length]))
        at += length + (-length & 7)
    if at != size:
        raise Malformed("FETCHED has trailing bytes")
    return first_offset, mark, batches, start, next_offset
