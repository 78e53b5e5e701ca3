"""The few native frames that the load generator sends, and where the fields of a message are.

They are written from the protocol's description, docs/native-protocol.md and docs/record-batch.md,
and share no code with the broker or its client.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack
import numpy as np

from bench.frames import Fields, layout, payload_fields

HELLO: Final = 0x01
AUTH: Final = 0x02
OK: Final = 0x03
ERROR: Final = 0x04
PUBLISH: Final = 0x10
CONFIRM: Final = 0x11
PRODUCER: Final = 0x12
SUBSCRIBE: Final = 0x20
DELIVER: Final = 0x22
ACK: Final = 0x25
FETCH: Final = 0x30
FETCHED: Final = 0x31
DECLARE: Final = 0x40
DELETE: Final = 0x41

HEAD: Final = struct.Struct("<IBQ")
"""length of what follows it, type, correlation id"""
CORRELATION: Final = "correlation"
NUMBER: Final = "number"
"""The number of a request's first message, in its producer block."""
MESSAGES: Final = "messages"
"""The messages of a request: an array of as many as it has."""
TAG: Final = "tag"
FIRST_TAG: Final = "first_tag"
LAST_TAG: Final = "last_tag"

CONFIRM_LAYOUT: Final = struct.Struct("<IBQI")
"""length, type, correlation id of the first request, number of requests"""
_MESSAGE_HEAD: Final = struct.Struct("<BBHHHII")
"""flags, priority, sizes of exchange and routing key, reserved, sizes of properties and payload"""
_AT_LEAST_ONCE_AND_PERSISTENT: Final = 0x05
_HAS_PRODUCER: Final = 0x01
_DELIVER_HEAD_SIZE: Final = 32

FETCHED_HEAD: Final = struct.Struct("<qqII")
"""first offset, high watermark, number of batches, reserved"""
FETCHED_BATCH: Final = struct.Struct("<qII")
"""base offset, size, reserved; the batch follows, up to a multiple of 8"""
_BATCH_HEAD: Final = struct.Struct("<4sBBHI")
"""magic, version, codec, number of columns, number of records"""
_BATCH_HEAD_SIZE: Final = 48
_COLUMN: Final = struct.Struct("<BBHII")
"""id, kind, reserved, position in the body, size; 4 bytes more follow"""
_COLUMN_SIZE: Final = 16
_PAYLOAD: Final = 5
_NULLABLE: Final = 3


def frame(kind: int, correlation: int, body: bytes) -> bytes:
    """Encode one frame."""
    return HEAD.pack(HEAD.size - 4 + len(body), kind, correlation) + body


def request(kind: int, correlation: int, /, **fields: object) -> bytes:
    """Encode a request whose body is a map."""
    return frame(kind, correlation, msgpack.packb(fields))


def unpack(body: bytes | memoryview) -> Any:
    """Decode a msgpack body."""
    return msgpack.unpackb(body)


def publish(
    routing_key: str, payload: bytes, count: int, producer: bytes = b"", epoch: int = 0
) -> tuple[bytes, Fields]:
    """Encode a request of ``count`` persistent messages to the queue or stream of a name.

    Returns it with its fields' places: :data:`CORRELATION`, :data:`MESSAGES`, and :data:`NUMBER`
    where it has a ``producer``.
    """
    key = routing_key.encode()
    head = _MESSAGE_HEAD.pack(_AT_LEAST_ONCE_AND_PERSISTENT, 0, 0, len(key), 0, 0, len(payload))
    message = head + key + payload
    block = struct.pack("<IIQ", len(producer), epoch, 0) + producer if producer else b""
    body = struct.pack("<II", count, _HAS_PRODUCER if producer else 0) + block
    row = layout(len(message), payload_fields(len(message) - len(payload)))
    fields: Fields = {
        CORRELATION: ("<u8", 5),
        MESSAGES: (np.dtype((row, (count,))), HEAD.size + len(body)),
    }
    if producer:
        fields[NUMBER] = ("<u8", HEAD.size + 16)
    return frame(PUBLISH, 0, body + message * count), fields


def delivery(subscription: int, routing_key: str, payload: bytes) -> tuple[bytes, int, Fields]:
    """Return what every delivery begins with, its size, and its fields' places."""
    payload_at = HEAD.size + _DELIVER_HEAD_SIZE + _MESSAGE_HEAD.size + len(routing_key.encode())
    size = payload_at + len(payload)
    head = HEAD.pack(size - 4, DELIVER, 0) + struct.pack("<I", subscription)
    return head, size, {TAG: ("<u8", HEAD.size + 8)} | payload_fields(payload_at)


def ack(subscription: int) -> tuple[bytes, Fields]:
    """Encode ACK of a range of tags, to be filled in; return it with its fields' places."""
    body = struct.pack("<IIQQ", subscription, 0, 0, 0)
    fields: Fields = {FIRST_TAG: ("<u8", HEAD.size + 8), LAST_TAG: ("<u8", HEAD.size + 16)}
    return frame(ACK, 0, body), fields


def fetch(correlation: int, stream: str, offset: int, max_bytes: int, wait_ms: int) -> bytes:
    """Encode FETCH from an offset of partition 0 on."""
    return request(
        FETCH,
        correlation,
        stream=stream,
        partition=0,
        offset=offset,
        max_bytes=max_bytes,
        max_wait_ms=wait_ms,
    )


def payloads(data: bytes | bytearray, at: int, size: int) -> tuple[int, int]:
    """Find the payloads, each of ``size`` bytes, of the record batch that begins at ``at``.

    Returns how many there are and where the first is; they follow each other.

    Raises:
        ValueError: it is another kind of record batch.
    """
    magic, version, codec, columns, count = _BATCH_HEAD.unpack_from(data, at)
    if (magic, version, codec) != (b"TRVB", 1, 0):
        raise ValueError(f"not a plain record batch: {bytes(data[at : at + 8]).hex(' ')}")
    body = at + _BATCH_HEAD_SIZE
    for column in range(columns):
        entry = _COLUMN.unpack_from(data, body + column * _COLUMN_SIZE)
        column_id, kind, _, position, _ = entry
        if column_id != _PAYLOAD:
            continue
        # One row may stand for all of them: then there is one.
        rows = np.frombuffer(data, "<i4", 2 if kind == 1 else count + 1, body + position)
        if kind == _NULLABLE or len(rows) != count + 1 or not (np.diff(rows) == size).all():
            raise ValueError("payloads of other sizes")
        return count, body + position + (4 * (count + 1) + 7) // 8 * 8
    raise ValueError("a record batch without payloads")
