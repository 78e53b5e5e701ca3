"""The data types of MQTT (1.5): integers, variable byte integers, strings, and topics."""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from trivium.messages.topics import MAX_LEVELS
from trivium_mqtt.codec.reasons import (
    QUOTA_EXCEEDED,
    TOPIC_FILTER_INVALID,
    TOPIC_NAME_INVALID,
    MalformedPacket,
    RemoteError,
)

#: The largest variable byte integer, which is the largest remaining length (MQTT5 1.5.5).
VARINT_MAX: Final = 268_435_455

#: The wildcards, as numbers: to look for those in bytes is twenty times faster than for bytes.
PLUS: Final = 0x2B
HASH: Final = 0x23

#: Every packet identifier as it stands on the wire; looked up once per delivery.
PACKET_IDS: Final = [number.to_bytes(2, "big") for number in range(65_536)]


def varint(value: int) -> bytes:
    """Encode a variable byte integer of 0 to VARINT_MAX (MQTT5 1.5.5)."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes(
        (value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21)
    )


def write_varint(writer: BytesWriter, value: i64) -> None:
    """``varint``, straight to where it goes."""
    while value >= 0x80:
        writer.append(u8(value & 0x7F | 0x80))
        value >>= 7
    writer.append(u8(value))


def read_varint(data: bytes, at: int, end: int) -> int:
    """Decode the variable byte integer at ``at``. Raises MalformedPacket.

    Its size follows from its value (``varint_size``): the encoding must use the fewest bytes
    (MQTT-1.5.5-1).
    """
    value = 0
    shift = 0
    while True:
        if at >= end or shift > 21:
            raise MalformedPacket("variable byte integer is cut off or longer than four bytes")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                raise MalformedPacket("variable byte integer is longer than needed")
            return value
        shift += 7
        at += 1


def read_fixed_header(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the packet at ``at`` has its body, and where it ends (2.1). Raises MalformedPacket.

    ``data[at:end]`` is what was read, at least one byte. While the header itself is incomplete the
    body is 0, and the end one byte behind what is there.
    """
    body = at + 1
    remaining = 0
    shift = 0
    while body < end:
        byte = data[body]
        body += 1
        remaining |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                raise MalformedPacket("remaining length is longer than needed")
            return body, body + remaining
        shift += 7
        if shift > 21:
            raise MalformedPacket("remaining length of more than four bytes")
    return 0, end + 1


def varint_size(value: int) -> int:
    """Bytes of the encoded ``value``."""
    if value < 0x80:
        return 1
    if value < 0x4000:
        return 2
    return 3 if value < 0x20_0000 else 4


def two(value: int) -> bytes:
    """Encode a two byte integer."""
    return PACKET_IDS[value]


def binary(value: bytes) -> bytes:
    """Encode binary data or UTF-8 text with its length (1.5.4, 1.5.6): at most 65,535 bytes."""
    return PACKET_IDS[len(value)] + value


def read_two(data: bytes, at: int, end: int) -> int:
    """Decode the two byte integer at ``at``. Raises MalformedPacket."""
    if at + 2 > end:
        raise MalformedPacket("packet ends within an integer")
    return data[at] << 8 | data[at + 1]


def read_binary(data: bytes, at: int, end: int) -> bytes:
    """Decode the binary data at ``at``; it takes two bytes more. Raises MalformedPacket."""
    start = at + 2
    stop = start + read_two(data, at, end)
    if stop > end:
        raise MalformedPacket("packet ends within a string")
    return data[start:stop]


def read_text(data: bytes, at: int, end: int) -> bytes:
    """Decode the UTF-8 string at ``at``, checked but left as bytes. Raises MalformedPacket."""
    value = read_binary(data, at, end)
    check_text(value)
    return value


def check_text(value: bytes) -> None:
    """Raise MalformedPacket unless ``value`` is an MQTT string.

    That is UTF-8 without surrogates (MQTT-1.5.4-1), which Python's codec refuses, and without
    U+0000 (MQTT-1.5.4-2). A byte order mark stays what it is (MQTT-1.5.4-3).
    """
    if 0 in value:
        raise MalformedPacket("text holds U+0000")
    if not value.isascii():
        try:
            value.decode()
        except UnicodeDecodeError:
            raise MalformedPacket("text is not UTF-8") from None


def check_topic_name(topic: bytes) -> None:
    """Raise RemoteError unless ``topic``, which is valid text, is a topic name (4.7.1, 4.7.3)."""
    if not topic or PLUS in topic or HASH in topic:
        raise RemoteError(TOPIC_NAME_INVALID, "topic name is empty or holds a wildcard")
    if topic.count(b"/") >= MAX_LEVELS:
        raise RemoteError(TOPIC_NAME_INVALID, "topic name has too many levels")


def check_topic_filter(topic_filter: bytes) -> None:
    """Raise RemoteError unless ``topic_filter``, which is valid text, is a topic filter (4.7.1).

    One with more levels than are taken here has the reason QUOTA_EXCEEDED: it is valid.
    """
    levels = topic_filter.split(b"/")
    if not topic_filter:
        raise RemoteError(TOPIC_FILTER_INVALID, "topic filter is empty (MQTT-4.7.3-1)")
    last = len(levels) - 1
    for place, level in enumerate(levels):
        if len(level) > 1 and (PLUS in level or HASH in level):
            raise RemoteError(TOPIC_FILTER_INVALID, "wildcard shares its level (MQTT-4.7.1-1, -2)")
        if level == b"#" and place != last:
            raise RemoteError(TOPIC_FILTER_INVALID, "# is not the last level (MQTT-4.7.1-1)")
    if len(levels) > MAX_LEVELS:
        raise RemoteError(QUOTA_EXCEEDED, "topic filter has too many levels")
