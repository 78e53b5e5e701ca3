"""The few AMQP 0-9-1 frames that the load generator sends, and where the fields of a message are.

Section numbers are those of the AMQP 0-9-1 specification; method numbers are from its XML
definition.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from bench.frames import Fields, payload_fields

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

METHOD_FRAME: Final = 1
HEADER_FRAME: Final = 2
BODY_FRAME: Final = 3
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8
"""Type, channel and size before the payload, the end octet after it (4.2.3)."""

Method = tuple[int, int]
CONNECTION_START: Final = (10, 10)
CONNECTION_START_OK: Final = (10, 11)
CONNECTION_TUNE: Final = (10, 30)
CONNECTION_TUNE_OK: Final = (10, 31)
CONNECTION_OPEN: Final = (10, 40)
CONNECTION_OPEN_OK: Final = (10, 41)
CONNECTION_CLOSE: Final = (10, 50)
CONNECTION_CLOSE_OK: Final = (10, 51)
CHANNEL_OPEN: Final = (20, 10)
CHANNEL_OPEN_OK: Final = (20, 11)
CHANNEL_CLOSE: Final = (20, 40)
QUEUE_DECLARE: Final = (50, 10)
QUEUE_DECLARE_OK: Final = (50, 11)
QUEUE_BIND: Final = (50, 20)
QUEUE_BIND_OK: Final = (50, 21)
QUEUE_DELETE: Final = (50, 40)
QUEUE_DELETE_OK: Final = (50, 41)
BASIC_QOS: Final = (60, 10)
BASIC_QOS_OK: Final = (60, 11)
BASIC_CONSUME: Final = (60, 20)
BASIC_CONSUME_OK: Final = (60, 21)
BASIC_PUBLISH: Final = (60, 40)
BASIC_DELIVER: Final = (60, 60)
BASIC_ACK: Final = (60, 80)
BASIC_NACK: Final = (60, 120)
CONFIRM_SELECT: Final = (85, 10)
CONFIRM_SELECT_OK: Final = (85, 11)

DELIVERY_TAG: Final = "delivery_tag"
DELIVERY_TAG_FORMAT: Final = ">u8"
HEADER_SIZE: Final = "header_size"
"""That of the frame with the properties."""
HEADER_SIZE_FORMAT: Final = ">u4"

ACK_SIZE: Final = 21
"""basic.ack and basic.nack: 8 octets of frame, 4 of method, 8 of delivery tag, 1 of bits."""
ACK_FIELDS: Final = {DELIVERY_TAG: (DELIVERY_TAG_FORMAT, 11)}
ACK_LAYOUT: Final = struct.Struct(">BHIHHQBB")
"""type, channel, size, class, method, delivery tag, bits (1 = multiple), frame end"""

_DELIVERY_MODE_PRESENT: Final = 0x1000
PERSISTENT: Final = 2


def frame(frame_type: int, channel: int, payload: bytes) -> bytes:
    """Encode one frame (4.2.3)."""
    head = struct.pack(">BHI", frame_type, channel, len(payload))
    return head + payload + bytes((FRAME_END,))


def method(channel: int, number: Method, arguments: bytes = b"") -> bytes:
    """Encode a method frame (4.2.4)."""
    return frame(METHOD_FRAME, channel, struct.pack(">HH", *number) + arguments)


def short_string(value: str) -> bytes:
    """Encode a short string (4.2.5.3)."""
    data = value.encode()
    return bytes((len(data),)) + data


def long_string(value: bytes) -> bytes:
    """Encode a long string (4.2.5.3)."""
    return struct.pack(">I", len(value)) + value


EMPTY_TABLE: Final = long_string(b"")


def text_table(name: str, value: str) -> bytes:
    """Encode a table of one field, which is a text (4.2.5.5)."""
    return long_string(short_string(name) + b"S" + long_string(value.encode()))


def ack(channel: int, delivery_tag: int, *, multiple: bool) -> bytes:
    """Encode basic.ack."""
    return method(channel, BASIC_ACK, struct.pack(">QB", delivery_tag, multiple))


def publish(channel: int, exchange: str, routing_key: str, body: bytes) -> tuple[bytes, Fields]:
    """Encode a persistent message in its three frames; return it with its fields' places."""
    ticket, bits = b"\0\0", b"\0"
    arguments = ticket + short_string(exchange) + short_string(routing_key) + bits
    header = struct.pack(">HHQHB", 60, 0, len(body), _DELIVERY_MODE_PRESENT, PERSISTENT)
    frames = (
        method(channel, BASIC_PUBLISH, arguments)
        + frame(HEADER_FRAME, channel, header)
        + frame(BODY_FRAME, channel, body)
    )
    return frames, payload_fields(len(frames) - 1 - len(body))


@dataclass(frozen=True)
class DeliveryLayout:
    """Where things are in the deliveries to one consumer that are of one size and form."""

    size: int
    head: bytes
    """What every delivery begins with: frame header, method, consumer tag."""
    fields: Fields


def delivery_layout(data: bytes | bytearray | memoryview, filled: int) -> DeliveryLayout | None:
    """Read the first delivery (basic.deliver, header, one body frame) in ``data[:filled]``.

    Returns None while it is not yet complete.

    Raises:
        ValueError: these are other frames.
    """
    starts = []
    position = 0
    for expected in (METHOD_FRAME, HEADER_FRAME, BODY_FRAME):
        if position + FRAME_OVERHEAD > filled:
            return None
        frame_type, _, size = struct.unpack_from(">BHI", data, position)
        if frame_type != expected:
            raise ValueError(f"frame of type {frame_type} where a delivery has type {expected}")
        if expected == METHOD_FRAME and position + 12 <= filled:
            number = struct.unpack_from(">HH", data, position + 7)
            if number != BASIC_DELIVER:
                raise ValueError(f"method {number} where a delivery was expected")
        starts.append(position)
        position += size + FRAME_OVERHEAD
    if position > filled:
        return None
    tag_at = 12 + data[11]
    fields = {
        DELIVERY_TAG: (DELIVERY_TAG_FORMAT, tag_at),
        HEADER_SIZE: (HEADER_SIZE_FORMAT, starts[1] + 3),
    } | payload_fields(starts[2] + 7)
    return DeliveryLayout(position, bytes(data[:tag_at]), fields)
