"""Frames: their types, limits and encoding (AMQP 0-9-1, 4.2).

::

    octet   short     long     size octets   octet
    type    channel   size     payload       0xCE
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from trivium.common.pieces import Piece
from trivium.messages.large import Content, LargePayload, content_parts, content_size
from trivium_amqp.codec import methods

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8

#: What a frame is, in one number (``event_of``): its method, or, where it has none, ``~type``.
#: Methods are not negative, and frames' types are octets, so that no number means two things.
HEADER_EVENT: Final = ~HEADER
BODY_EVENT: Final = ~BODY
HEARTBEAT_EVENT: Final = ~HEARTBEAT
#: a method frame without room for a method, and a heartbeat that has a payload (4.2.7)
SHORT_METHOD: Final = ~256
FULL_HEARTBEAT: Final = ~257

FRAME_END: Final = 0xCE
END: Final = b"\xce"
#: Octets of a frame beside its payload.
OVERHEAD: Final = 8

#: Smallest limit that a peer may negotiate (frame-min-size).
MIN_FRAME_MAX: Final = 4096
#: The limit before it is negotiated: twice frame-min-size, since tokens and client properties of
#: real clients do not always fit into the latter.
INITIAL_FRAME_MAX: Final = 8192

#: class basic, weight: the fixed start of a content header's payload (4.2.6.1)
CONTENT_HEADER: Final = b"\x00\x3c\x00\x00"
#: octets of a content header before the property flags
CONTENT_HEADER_SIZE: Final = 12

HEAD: Final = Struct(">BHI")
U16: Final = Struct(">H")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
#: connection.close-ok
CLOSE_OK_FRAME: Final = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce"
#: basic.ack and basic.nack of a publish: type, channel, size, method, tag, bits, end
CONFIRM_FRAME: Final = Struct(">BHIIQBB")
CONFIRM_SIZE: Final = 13


def event_of(kind: int, data: bytes, start: int, end: int) -> int:
    """What a frame of this type with the payload ``data[start:end]`` is."""
    if kind == METHOD:
        if end - start < 4:
            return SHORT_METHOD
        method: int = U32.unpack_from(data, start)[0]
        return method
    if kind == HEARTBEAT and end != start:
        return FULL_HEARTBEAT
    return ~kind


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return HEAD.pack(kind, channel, len(payload)) + payload + END


def method_frame(channel: int, method: int, *arguments: Any) -> bytes:
    """A method frame; see ``methods.encode``."""
    return frame(METHOD, channel, methods.encode(method, *arguments))


def content_frames(channel: int, header: bytes, body: Content, room: int) -> list[Piece]:
    """Content header and body frames, in parts. ``header`` is the property flags and list.

    ``room`` is the largest payload of a frame.
    """
    size = content_size(body)
    parts: list[Piece] = [
        HEAD.pack(HEADER, channel, CONTENT_HEADER_SIZE + len(header)),
        CONTENT_HEADER,
        U64.pack(size),
        header,
        END,
    ]
    if 0 < size <= room:
        parts += (HEAD.pack(BODY, channel, size), *content_parts(body), END)
    elif size:
        large = LargePayload([body]) if isinstance(body, bytes) else body
        for chunk in large.cut(room):
            parts += (HEAD.pack(BODY, channel, sum(map(len, chunk))), *chunk, END)
    return parts
