"""Field tables: the values of headers, arguments and peer properties (AMQP 0-9-1, 4.2.5.5).

The type letters are those of RabbitMQ's dialect, in which ``s`` is a signed 16-bit integer and
``x`` a byte array; ``U`` and ``L`` of the specification are read too. Reading validates everything
that a client sent, so that what is passed on untouched is known to be well-formed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from typing import Final

from trivium.messages.message import HeaderValue
from trivium_amqp.codec.errors import SYNTAX_ERROR, ConnectionException

#: Tables and arrays inside one another; deeper ones are refused, which bounds the recursion.
MAX_DEPTH: Final = 64

#: Last second that a ``datetime`` can hold (year 9999); later ones stay integers.
MAX_TIME: Final = 253_402_300_799

_MAX_SCALE: Final = 255

_I8: Final = Struct(">b")
_U8: Final = Struct(">B")
_I16: Final = Struct(">h")
_U16: Final = Struct(">H")
_I32: Final = Struct(">i")
_U32: Final = Struct(">I")
_I64: Final = Struct(">q")
_U64: Final = Struct(">Q")
_F32: Final = Struct(">f")
_F64: Final = Struct(">d")

#: The numbers among the types, by letter: how they lie, and their size.
_NUMBERS: Final[dict[int, tuple[Struct, int]]] = {
    98: (_I8, 1),  # b
    66: (_U8, 1),  # B
    115: (_I16, 2),  # s
    85: (_I16, 2),  # U
    117: (_U16, 2),  # u
    73: (_I32, 4),  # I
    105: (_U32, 4),  # i
    108: (_I64, 8),  # l
    76: (_U64, 8),  # L
    102: (_F32, 4),  # f
    100: (_F64, 8),  # d
}


class Encoded:
    """A value of a field that is written as it is: ``data`` begins with its type letter."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def signed_int(value: int) -> HeaderValue:
    """An integer for a field that clients expect in 32 bits; a larger one has 64 all the same."""
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return Encoded(b"I" + _I32.pack(value))
    return value


def malformed(text: str) -> ConnectionException:
    """The error for arguments that cannot be read (502)."""
    return ConnectionException(SYNTAX_ERROR, text)


def decode_table(data: bytes, start: int, end: int) -> dict[str, HeaderValue]:
    """The table whose fields are ``data[start:end]`` (without the length in front).

    Of a name that comes twice the first is taken. A long string that is not UTF-8 becomes
    ``bytes``.
    Raises ConnectionException (502) when it is malformed.
    """
    try:
        return _table(data, start, end, 0)
    except (struct.error, IndexError):
        raise malformed("field table is shorter than its lengths say") from None


def _table(data: bytes, start: int, end: int, depth: int) -> dict[str, HeaderValue]:
    if depth >= MAX_DEPTH:
        raise malformed(f"field table is nested deeper than {MAX_DEPTH} levels")
    if end > len(data):
        raise malformed("field table is longer than its frame")
    table: dict[str, HeaderValue] = {}
    position = start
    while position < end:
        name_at = position + 1
        position = name_at + data[position]
        name = data[name_at:position].decode("utf-8", "replace")
        value, position = _value(data, position, depth)
        if name not in table:
            table[name] = value
    if position != end:
        raise malformed("field table does not end where its length says")
    return table


def _array(data: bytes, start: int, end: int, depth: int) -> list[HeaderValue]:
    if depth >= MAX_DEPTH:
        raise malformed(f"field array is nested deeper than {MAX_DEPTH} levels")
    if end > len(data):
        raise malformed("field array is longer than its frame")
    values: list[HeaderValue] = []
    position = start
    while position < end:
        value, position = _value(data, position, depth)
        values.append(value)
    if position != end:
        raise malformed("field array does not end where its length says")
    return values


def _value(data: bytes, position: int, depth: int) -> tuple[HeaderValue, int]:
    """The value whose type letter is at ``position``, and where the next one begins."""
    letter = data[position]
    at = position + 1
    if letter == 83 or letter == 120:  # S, x
        return _long_value(data, at, letter == 83)
    known = _NUMBERS.get(letter)
    if known is not None:
        layout, size = known
        value: HeaderValue = layout.unpack_from(data, at)[0]
        return value, at + size
    number: int
    if letter == 84:  # T
        number = _U64.unpack_from(data, at)[0]
        if number <= MAX_TIME:
            return datetime.fromtimestamp(number, UTC), at + 8
        return number, at + 8
    if letter == 116:  # t
        return data[at] != 0, at + 1
    if letter == 86:  # V
        return None, at
    if letter == 70:  # F
        number = _U32.unpack_from(data, at)[0]
        end = at + 4 + number
        return _table(data, at + 4, end, depth + 1), end
    if letter == 65:  # A
        number = _U32.unpack_from(data, at)[0]
        end = at + 4 + number
        return _array(data, at + 4, end, depth + 1), end
    if letter == 68:  # D: scale, signed value (RabbitMQ)
        number = _I32.unpack_from(data, at + 1)[0]
        return Decimal(number).scaleb(-data[at]), at + 5
    raise malformed(f"unknown field type {letter}")


def _long_value(data: bytes, at: int, is_text: bool) -> tuple[HeaderValue, int]:
    """A long string or byte array, and where the next value begins."""
    size: int = _U32.unpack_from(data, at)[0]
    end = at + 4 + size
    if end > len(data):
        raise malformed("field value is longer than its frame")
    content = data[at + 4 : end]
    if is_text:
        try:
            return content.decode(), end
        except UnicodeDecodeError:
            return content, end
    return content, end


def with_fields(data: bytes, start: int, end: int, fields: Mapping[str, HeaderValue]) -> bytes:
    """The well-formed table ``data[start:end]`` (without its length), ``fields`` put in front.

    What was there and is not replaced stays as it was, byte by byte; a field that is None takes it
    away. The result has a length.
    """
    given = [(name, value) for name, value in fields.items() if value is not None]
    kept: list[bytes] = [encode_table(given)[4:]]
    position = start
    while position < end:
        at = position
        name_at = at + 1
        position = name_at + data[at]
        name = data[name_at:position].decode("utf-8", "replace")
        position = _value(data, position, 0)[1]
        if name not in fields:
            kept.append(data[at:position])
    content = b"".join(kept)
    return _U32.pack(len(content)) + content


def encode_table(fields: Iterable[tuple[str, HeaderValue]]) -> bytes:
    """A table with its length in front. Names must be at most 255 bytes; see ``encode_value``."""
    parts: list[bytes] = []
    for name, value in fields:
        encoded = name.encode()
        parts.append(bytes((len(encoded),)))
        parts.append(encoded)
        parts.append(encode_value(value))
    content = b"".join(parts)
    return _U32.pack(len(content)) + content


def encode_value(value: HeaderValue) -> bytes:
    """A value with its type letter. Integers beyond 64 bits and unknown types become text.

    Integers are written in 64 bits whatever their size, as RabbitMQ writes its own: clients of
    typed languages cast a field to the one type that it always has.
    """
    if isinstance(value, str):
        text = value.encode("utf-8", "replace")
        return b"S" + _U32.pack(len(text)) + text
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
            return b"l" + _I64.pack(value)
        return encode_value(str(value))
    if value is None:
        return b"V"
    if isinstance(value, float):
        return b"d" + _F64.pack(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, bytes):
        return b"x" + _U32.pack(len(value)) + value
    if isinstance(value, datetime):
        return b"T" + _U64.pack(max(int(value.timestamp()), 0))
    if isinstance(value, Encoded):
        return value.data
    if isinstance(value, dict):
        return b"F" + encode_table(value.items())
    if isinstance(value, list):
        content = b"".join([encode_value(item) for item in value])
        return b"A" + _U32.pack(len(content)) + content
    return encode_value(str(value))


def _decimal(value: Decimal) -> bytes:
    """A decimal number; as text where it does not fit."""
    scale = value.as_tuple().exponent
    if isinstance(scale, int) and -_MAX_SCALE <= scale <= 0:
        number = int(value.scaleb(-scale))
        if -0x8000_0000 <= number <= 0x7FFF_FFFF:
            return b"D" + bytes((-scale,)) + _I32.pack(number)
    return encode_value(str(value))
