"""Frames: ``[u32 length][u8 type][u64 correlation id][body]``, little-endian.

One codec for both sides. ``length`` counts what follows it. The specification, with the body of
each type and test vectors, is docs/native-protocol.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import msgpack
from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i32_le, write_i64_le
from mypy_extensions import i64

from trivium.common.pieces import Pieces, split_parts
from trivium_native.wire.errors import FrameTooLarge, Malformed, ProtocolError

VERSION: Final = 1
#: in HELLO, so that a stray client of another protocol is told from one of ours
PROTOCOL_NAME: Final = "trivium"
DEFAULT_PORT: Final = 7650
#: a feature of brokers: FETCH has a filter
FILTER: Final = "filter"

# Session
HELLO: Final = 0x01
AUTH: Final = 0x02
OK: Final = 0x03
ERROR: Final = 0x04
PING: Final = 0x05
PONG: Final = 0x06
CLOSE: Final = 0x07
BLOCKED: Final = 0x08
UNBLOCKED: Final = 0x09
# Publishing
PUBLISH: Final = 0x10
CONFIRM: Final = 0x11
PRODUCER: Final = 0x12
# Receiving
SUBSCRIBE: Final = 0x20
UNSUBSCRIBE: Final = 0x21
DELIVER: Final = 0x22
BATCH: Final = 0x23
CREDIT: Final = 0x24
ACK: Final = 0x25
NACK: Final = 0x26
CANCELLED: Final = 0x27
POLL: Final = 0x28
# Streams
FETCH: Final = 0x30
FETCHED: Final = 0x31
COMMIT: Final = 0x32
COMMITTED: Final = 0x33
METADATA: Final = 0x34
OFFSETS: Final = 0x35
# Topology
DECLARE: Final = 0x40
DELETE: Final = 0x41
BIND: Final = 0x42
UNBIND: Final = 0x43
PURGE: Final = 0x44
SET_POLICY: Final = 0x45
DELETE_POLICY: Final = 0x46
LIST_POLICIES: Final = 0x47
MANAGE_USERS: Final = 0x48
MANAGE_PERMISSIONS: Final = 0x49

# Transactions and members of groups
TX: Final = 0x50
JOIN: Final = 0x51
HEARTBEAT: Final = 0x52
LEAVE: Final = 0x53
REBALANCE: Final = 0x54
STAGE: Final = 0x55
LIST_GROUPS: Final = 0x56
DESCRIBE_GROUP: Final = 0x57

#: Types of requests whose body is a map of fields.
REQUESTS: Final[frozenset[int]] = frozenset(
    (
        *(PRODUCER, SUBSCRIBE, UNSUBSCRIBE, POLL, FETCH, COMMIT, COMMITTED, METADATA, OFFSETS),
        *(DECLARE, DELETE, BIND, UNBIND, PURGE, SET_POLICY, DELETE_POLICY, LIST_POLICIES),
        *(MANAGE_USERS, MANAGE_PERMISSIONS, JOIN, HEARTBEAT, LEAVE),
        *(LIST_GROUPS, DESCRIBE_GROUP),
    )
)

HEAD: Final = Struct("<IBQ")
HEAD_SIZE: Final = 13
_LENGTH_SIZE: Final = 4
#: what ``length`` counts beside the body
_HEAD_REST: Final = 9
_BEYOND_I64: Final = 1 << 64

#: Longest frame before authentication: nobody unknown makes the broker hold more.
MAX_HANDSHAKE_FRAME: Final = 16 * 1024
#: Room in a frame beside the largest payload: address, properties, the other messages of a batch.
FRAME_OVERHEAD: Final = 1 << 20
#: Longest frame that a client takes; a FETCHED of one batch is never longer than a message allows.
MAX_CLIENT_FRAME: Final = 1 << 30
#: Frames that come in several pieces are put together without what follows them, from this size on.
LARGE_FRAME: Final = 64 * 1024
#: Longest msgpack body, and the most items of one of its arrays or maps.
MAX_FIELDS_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 65_536
#: Streams that one METADATA may name.
MAX_STREAMS: Final = 1024
#: Deepest nesting of arrays and maps within a msgpack body.
MAX_DEPTH: Final = 16


class Frame:
    """One frame. ``correlation`` 0 asks for no reply, or belongs to no request."""

    __slots__ = ("body", "correlation", "kind")

    def __init__(self, kind: int, correlation: int, body: bytes) -> None:
        self.kind = kind
        self.correlation = correlation
        self.body = body


class FrameCutter:
    """Finds the frames of a byte stream, where they lie in what was read."""

    def __init__(self, max_frame: int) -> None:
        #: longest frame that is taken, its length field not counted
        self.max_frame: i64 = max_frame
        # The last frame that was found: type, correlation id, where its body is.
        self.kind: i64 = 0
        self.correlation = 0
        self.body_at: i64 = 0
        self.end: i64 = 0
        #: bytes without which it is not worth looking again
        self.needed: i64 = _LENGTH_SIZE

    def find(self, data: bytes, at: i64) -> bool:
        """Look at the frame that begins at ``at``; whether it is whole, see ``needed`` otherwise.

        Raises FrameTooLarge and Malformed, as soon as the length tells.
        """
        left: i64 = len(data) - at
        if left < _LENGTH_SIZE:
            self.needed = _LENGTH_SIZE
            return False
        if left >= HEAD_SIZE:
            # Length and type, and what is looked at below.
            word: i64 = read_i64_le(data, at)
        else:
            word = i64(read_i32_le(data, at))
        length: i64 = word & 0xFFFF_FFFF
        if length < _HEAD_REST:
            raise Malformed(f"frame length {length} is below {_HEAD_REST}")
        if length > self.max_frame:
            raise FrameTooLarge(f"frame length {length} is above {self.max_frame}")
        needed: i64 = _LENGTH_SIZE + length
        self.needed = needed
        if left < needed:
            return False
        self.kind = word >> 32 & 0xFF
        correlation: i64 = read_i64_le(data, at + _LENGTH_SIZE + 1)
        # It is a number without a sign.
        self.correlation = correlation
        if correlation < 0:
            self.correlation += _BEYOND_I64
        self.body_at = at + HEAD_SIZE
        self.end = at + needed
        return True

    def frame(self, data: bytes) -> Frame:
        """The frame in ``data`` that was found last, as an object."""
        return Frame(self.kind, self.correlation, data[self.body_at : self.end])


class FrameReader:
    """The frames of a byte stream that arrives in pieces."""

    def __init__(self, max_frame: int) -> None:
        self._cutter = FrameCutter(max_frame)
        self._pieces = Pieces()

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        self._pieces.add(data)

    def frames(self) -> list[Frame]:
        """The next whole frames; empty when there are none.

        Raises FrameTooLarge and Malformed once the frames before the bad one have been taken.
        """
        found: list[Frame] = []
        pieces = self._pieces
        cutter = self._cutter
        if pieces.size < cutter.needed:
            return found
        if cutter.needed >= LARGE_FRAME:
            found.append(self._large())
            return found
        data = pieces.take()
        at: i64 = 0
        try:
            while cutter.find(data, at):
                found.append(cutter.frame(data))
                at = cutter.end
        except ProtocolError:
            cutter.needed = _LENGTH_SIZE
            if not found:
                raise
        finally:
            if at < len(data):
                if cutter.needed >= LARGE_FRAME:
                    pieces.add_part(data, at, len(data))
                    pieces.end_read()
                else:
                    pieces.add(data[at:])
        return found

    def _large(self) -> Frame:
        """The large frame that the pieces begin with; of these its body alone is copied, once."""
        pieces = self._pieces
        parts, rest = split_parts(pieces.take_parts(), self._cutter.needed)
        head, body = split_parts(parts, HEAD_SIZE)
        kind: int
        correlation: int
        _, kind, correlation = HEAD.unpack(b"".join(head))
        for part in rest:
            pieces.add(bytes(part))
        self._cutter.needed = _LENGTH_SIZE
        return Frame(kind, correlation, b"".join(body))


def encode_frame(kind: int, correlation: int, body: bytes = b"") -> bytes:
    """One frame as bytes."""
    return frame_head(kind, correlation, len(body)) + body


def frame_head(kind: int, correlation: int, body_size: int) -> bytes:
    """The head of a frame whose body is sent behind it."""
    return HEAD.pack(_HEAD_REST + body_size, kind, correlation)


def write_head(writer: BytesWriter, kind: int, correlation: int, body_size: int) -> None:
    """Write the head of a frame whose body follows."""
    write_i32_le(writer, _HEAD_REST + body_size)
    writer.append(kind)
    write_i64_le(writer, correlation - _BEYOND_I64 if correlation >> 63 else correlation)


def pack(value: object) -> bytes:
    """A value as msgpack (text as str, bytes as bin)."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """The value of a msgpack body. Raises Malformed unless it is exactly one, within the limits."""
    if len(data) > MAX_FIELDS_BYTES:
        raise Malformed(f"msgpack of {len(data)} bytes is above {MAX_FIELDS_BYTES}")
    try:
        value: Any = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=False,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except Exception as error:  # the library raises ValueError, its own kinds and RecursionError
        raise Malformed(f"not msgpack: {type(error).__name__}") from None
    check_depth(value, MAX_DEPTH)
    return value


def check_depth(value: object, depth: int) -> None:
    """Refuse nesting beyond ``depth``, so that no later walk over the value can go too deep."""
    if isinstance(value, list):
        if depth == 0:
            raise Malformed(f"nested deeper than {MAX_DEPTH}")
        for item in value:
            check_depth(item, depth - 1)
    elif isinstance(value, dict):
        if depth == 0:
            raise Malformed(f"nested deeper than {MAX_DEPTH}")
        for item in value.values():
            check_depth(item, depth - 1)
