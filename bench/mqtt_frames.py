"""The few MQTT 3.1.1 packets that the load generator sends, and where the fields of a PUBLISH are.

Section numbers are those of the OASIS MQTT 3.1.1 standard.
"""

from __future__ import annotations

import struct
from typing import Final

from bench.frames import Fields, payload_fields

CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBACK: Final = 0x90

PACKET_ID: Final = "packet_id"
PACKET_ID_FORMAT: Final = ">u2"
TOPIC_NUMBER: Final = "topic_number"
_TOPIC_NUMBER_DIGITS: Final = 3
"""Of up to 1000 topics; more have as many digits as they need."""
_RETAIN: Final = 0x01
PACKET_IDS: Final = 65535
"""Packet identifiers run from 1 to 65535 (2.3.1)."""

ACKNOWLEDGEMENT_SIZE: Final = 4
"""PUBACK, PUBREC, PUBREL and PUBCOMP: two bytes of header, a packet identifier (3.4 to 3.7)."""
ACKNOWLEDGEMENT_FIELDS: Final = {PACKET_ID: (PACKET_ID_FORMAT, 2)}


def remaining_length(value: int) -> bytes:
    """Encode a remaining length (2.2.3): seven bits a byte, low ones first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def _packet(first_byte: int, body: bytes) -> bytes:
    return bytes((first_byte,)) + remaining_length(len(body)) + body


def connect(client_id: str, keep_alive: int = 0, *, is_kept: bool = False) -> bytes:
    """Encode CONNECT with a clean or a kept session and no will or credentials (3.1)."""
    flags = 0 if is_kept else 0x02
    return _packet(
        0x10, _text("MQTT") + struct.pack(">BBH", 4, flags, keep_alive) + _text(client_id)
    )


def subscribe(packet_id: int, topic_filter: str, qos: int) -> bytes:
    """Encode SUBSCRIBE for one topic filter (3.8)."""
    return _packet(0x82, struct.pack(">H", packet_id) + _text(topic_filter) + bytes((qos,)))


def disconnect() -> bytes:
    """Encode DISCONNECT (3.14)."""
    return b"\xe0\x00"


def acknowledgement(first_byte: int) -> bytes:
    """Encode PUBACK, PUBREC, PUBREL or PUBCOMP for packet identifier 0, to be filled in."""
    return bytes((first_byte, 2, 0, 0))


def topic_number_digits(topics: int) -> int:
    """Return the width of the numbers that tell ``topics`` apart."""
    return max(_TOPIC_NUMBER_DIGITS, len(str(topics - 1)))


def publish(
    topic: str, qos: int, payload: bytes, topics: int = 1, *, is_retained: bool = False
) -> tuple[bytes, Fields]:
    """Encode PUBLISH (3.3), any packet identifier being 0; return it with its fields' places.

    With several ``topics`` the topic gets a last level, a number of fixed width, to be filled in.
    """
    fields: Fields = {}
    digits = topic_number_digits(topics)
    if topics > 1:
        topic += "/" + "0" * digits
    identifier = b"\0\0" if qos else b""
    first_byte = PUBLISH | qos << 1 | (_RETAIN if is_retained else 0)
    packet = _packet(first_byte, _text(topic) + identifier + payload)
    payload_at = len(packet) - len(payload)
    topic_end = payload_at - len(identifier)
    if topics > 1:
        fields[TOPIC_NUMBER] = (f"S{digits}", topic_end - digits)
    if qos:
        fields[PACKET_ID] = (PACKET_ID_FORMAT, topic_end)
    return packet, fields | payload_fields(payload_at)
