"""Spans in the bytes of OTLP (opentelemetry-proto 1.x, what it says of traces).

A span is made of few parts, most of which are the same each time: those are kept as bytes. The
fields of a protobuf message may stand in any order and in parts, so they are put side by side.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64, u8

INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3
PRODUCER: Final = 4

#: of the flags of a span: the trace is sampled; the next bit is known: the parent is remote
_SAMPLED: Final = 0x001
_KNOWN: Final = 0x100
_REMOTE: Final = 0x200

#: the status of one that failed
_ERROR: Final = b"\x18\x02"


def varint(value: i64) -> bytes:
    """A number as protobuf has it; it is not negative."""
    writer = BytesWriter()
    while value > 0x7F:
        writer.append(u8(value & 0x7F | 0x80))
        value >>= 7
    writer.append(u8(value))
    return writer.getvalue()


def field(number: i64, data: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def text_attribute(number: i64, key: str, value: str) -> bytes:
    """An attribute, as the field ``number`` of what has it."""
    inner = field(1, key.encode()) + field(2, field(1, value.encode("utf-8", "replace")))
    return field(number, inner)


def number_attribute(number: i64, key: str, value: i64) -> bytes:
    """An attribute that is a number, at least 0."""
    return field(number, field(1, key.encode()) + field(2, b"\x18" + varint(value)))


def named(name: str, kind: int) -> bytes:
    """Name and kind of a span."""
    return field(5, name.encode("utf-8", "replace")) + b"\x30" + varint(kind)


def encode_span(
    trace_id: bytes,
    span_id: bytes,
    parent: bytes,
    is_remote: bool,
    state: str,
    begin_ns: i64,
    end_ns: i64,
    parts: bytes,
    error: str,
) -> bytes:
    """A span; ``parent`` is empty for the first of a trace, ``parts`` are other fields of it.

    ``error`` is ``error.type``, empty where all went well.
    """
    writer = BytesWriter()
    writer.write(b"\x0a\x10")
    writer.write(trace_id)
    writer.write(b"\x12\x08")
    writer.write(span_id)
    if len(parent):
        writer.write(b"\x22\x08")
        writer.write(parent)
    writer.append(0x39)
    write_i64_le(writer, begin_ns)
    writer.append(0x41)
    write_i64_le(writer, end_ns)
    flags: i32 = _SAMPLED | _KNOWN | (_REMOTE if is_remote else 0)
    writer.write(b"\x85\x01")
    write_i32_le(writer, flags)
    writer.write(parts)
    if state:
        writer.write(field(3, state.encode("utf-8", "replace")))
    if error:
        writer.write(text_attribute(9, "error.type", error))
        writer.write(field(15, _ERROR))
    return writer.getvalue()


def encode_request(resource: dict[str, str], scope: tuple[str, str], spans: list[bytes]) -> bytes:
    """The body of a request to a collector (an export request)."""
    about = b"".join(text_attribute(1, key, value) for key, value in resource.items())
    name, version = scope
    in_scope = field(1, field(1, name.encode()) + field(2, version.encode()))
    in_scope += b"".join(field(2, span) for span in spans)
    return field(1, field(1, about) + field(2, in_scope))
