"""Spans in the bytes of OTLP (opentelemetry-proto 1.x, what it says of traces).

A span is made of few parts, most of which are the same each time: those are kept as bytes. The
fields of a protobuf message may stand in any order and in parts, so they are put side by side.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i16_le, write_i32_le, write_i64_le
from mypy_extensions import i16, i32, i64, u8

INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3
PRODUCER: Final = 4

#: of the flags of a span: the trace is sampled; the next bit is known: the parent is remote
_SAMPLED: Final = 0x001
_KNOWN: Final = 0x100
_REMOTE: Final = 0x200

#: the tags of a span, and of an attribute of one
_SPAN: Final[u8] = 2 << 3 | 2
_ATTRIBUTE: Final[i64] = 9 << 3 | 2

#: the tags of what spans are in: those of a scope, and those of a resource
_SCOPE_SPANS: Final = b"\x12"
_RESOURCE_SPANS: Final = b"\x0a"

#: bytes of the fields that each span has, and of its parent
_IDS_AND_TIMES: Final[i64] = 18 + 10 + 9 + 9
_PARENT: Final[i64] = 10
#: how those of identifiers begin: the tag, then the length
_TRACE_ID: Final[i16] = 16 << 8 | 0x0A
_SPAN_ID: Final[i16] = 8 << 8 | 0x12
_PARENT_ID: Final[i16] = 8 << 8 | 0x22

#: the status of one that failed
_ERROR: Final = b"\x18\x02"


def varint(value: i64) -> bytes:
    """A number as protobuf has it; it is not negative."""
    writer = BytesWriter()
    write_varint(writer, value)
    return writer.getvalue()


def write_varint(writer: BytesWriter, value: i64) -> None:
    """``varint``, into something."""
    while value > 0x7F:
        writer.append(u8(value & 0x7F | 0x80))
        value >>= 7
    writer.append(u8(value))


def varint_size(value: i64) -> i64:
    """The bytes of ``varint``."""
    size: i64 = 1
    while value > 0x7F:
        size += 1
        value >>= 7
    return size


def field(number: i64, data: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def text_attribute(number: i64, key: str, value: str) -> bytes:
    """An attribute, as the field ``number`` of what has it."""
    inner = field(1, key.encode()) + field(2, field(1, value.encode("utf-8", "replace")))
    return field(number, inner)


def key_of(name: str) -> bytes:
    """The name of an attribute, for those that are written often."""
    return field(1, name.encode())


def write_text(writer: BytesWriter, key: bytes, value: bytes) -> None:
    """An attribute of a span that is text in UTF-8."""
    size: i64 = len(value)
    text_size = 1 + varint_size(size) + size
    write_varint(writer, _ATTRIBUTE)
    write_varint(writer, len(key) + 1 + varint_size(text_size) + text_size)
    writer.write(key)
    writer.append(0x12)
    write_varint(writer, text_size)
    writer.append(0x0A)
    write_varint(writer, size)
    writer.write(value)


def write_number(writer: BytesWriter, key: bytes, value: i64) -> None:
    """An attribute of a span that is a number, at least 0."""
    size = varint_size(value)
    write_varint(writer, _ATTRIBUTE)
    write_varint(writer, len(key) + 3 + size)
    writer.write(key)
    writer.append(0x12)
    write_varint(writer, 1 + size)
    writer.append(0x18)
    write_varint(writer, value)


def named(name: str, kind: int) -> bytes:
    """Name and kind of a span."""
    return field(5, name.encode("utf-8", "replace")) + b"\x30" + varint(kind)


def flags(is_remote: bool) -> bytes:
    """The flags of a span whose parent, if it has one, is of another program or of this one."""
    value: i32 = _SAMPLED | _KNOWN | (_REMOTE if is_remote else 0)
    writer = BytesWriter()
    writer.write(b"\x85\x01")
    write_i32_le(writer, value)
    return writer.getvalue()


class Spans:
    """Spans that wait for the collector: no more than ``most``, further ones are counted.

    Each is two pieces, of which the second is shared with those like it.
    """

    def __init__(self, most: int) -> None:
        self._most: i64 = 2 * most
        self._waiting: list[bytes] = []
        # Used again for each.
        self._writer = BytesWriter()
        self.too_many = 0

    def __len__(self) -> int:
        return len(self._waiting) // 2

    def add(
        self,
        trace_id: bytes,
        span_id: i64,
        parent: i64,
        begin_ns: i64,
        end_ns: i64,
        parts: bytes,
        state: str,
        error: str,
    ) -> None:
        """Leave a span; the oldest that wait are kept. ``parts`` are other fields of it, ``error``
        is ``error.type``, empty where all went well. Identifiers of spans are numbers of 8 bytes,
        little-endian; ``parent`` is 0 for the first of a trace."""
        waiting = self._waiting
        if len(waiting) >= self._most:
            self.too_many += 1
            return
        more = field(3, state.encode("utf-8", "replace")) if len(state) else b""
        if len(error):
            more += text_attribute(9, "error.type", error) + field(15, _ERROR)
        size: i64 = _IDS_AND_TIMES + len(more) + len(parts)
        if parent:
            size += _PARENT
        writer = self._writer
        writer.truncate(0)
        writer.append(_SPAN)
        write_varint(writer, size)
        write_i16_le(writer, _TRACE_ID)
        writer.write(trace_id)
        write_i16_le(writer, _SPAN_ID)
        write_i64_le(writer, span_id)
        if parent:
            write_i16_le(writer, _PARENT_ID)
            write_i64_le(writer, parent)
        writer.append(0x39)
        write_i64_le(writer, begin_ns)
        writer.append(0x41)
        write_i64_le(writer, end_ns)
        if len(more):
            writer.write(more)
        waiting.append(writer.getvalue())
        waiting.append(parts)

    def take(self, most: int) -> list[bytes]:
        """The pieces of the oldest ones, which wait no more. Another thread may ``add`` at the
        time."""
        waiting = self._waiting
        taken = waiting[: 2 * min(most, len(self))]
        del waiting[: len(taken)]
        return taken

    def put_back(self, pieces: list[bytes]) -> None:
        """In their places again; what came meanwhile may be too many for a moment."""
        self._waiting[:0] = pieces


def encode_request(resource: dict[str, str], scope: tuple[str, str], pieces: list[bytes]) -> bytes:
    """The body of a request to a collector (an export request), with the pieces of spans, which are
    copied once."""
    about = b"".join([text_attribute(1, key, value) for key, value in resource.items()])
    name, version = scope
    scope_field = field(1, field(1, name.encode()) + field(2, version.encode()))
    size: i64 = len(scope_field)
    for piece in pieces:
        size += len(piece)
    before = field(1, about) + _SCOPE_SPANS + varint(size)
    head = _RESOURCE_SPANS + varint(len(before) + size) + before + scope_field
    return b"".join([head, *pieces])
