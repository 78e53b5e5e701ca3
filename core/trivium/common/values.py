"""Values of headers and arguments, compared by their types.

Python's equality is not that of the protocols: there ``1`` is neither ``true`` nor a decimal. Two
questions differ. A message's header ``matches`` a binding's argument by its content, so text and
bytes may be equal, and so may numbers of any type and times. An argument is the ``same`` as another
only where its type is of the same kind. Inside lists and tables ``same`` decides in both.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgpack

HeaderValue = object
"""A header value of the neutral form:
``None | bool | int | float | Decimal | str | bytes | datetime | list | dict``."""

#: The kind of msgpack's extension types that is a decimal number, written as text.
_DECIMAL: Final = 1


def matches(wanted: HeaderValue, value: HeaderValue) -> bool:
    """Whether a header has the content that a binding's argument wants."""
    if isinstance(wanted, (str, bytes)):
        return isinstance(value, (str, bytes)) and _bytes(wanted) == _bytes(value)
    number = _number(wanted)
    if number is not None:
        return number == _number(value)
    return same(wanted, value)


def same(one: HeaderValue, other: HeaderValue) -> bool:
    """Whether two values are of the same kind and equal; the width of an integer says nothing."""
    if isinstance(one, list):
        return (
            isinstance(other, list)
            and len(one) == len(other)
            and all(same(item, other[index]) for index, item in enumerate(one))
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(item, other[name]) for name, item in one.items())
        )
    if isinstance(one, Decimal):
        return isinstance(other, Decimal) and one.as_tuple() == other.as_tuple()
    return type(one) is type(other) and one == other


def pack(value: object) -> bytes:
    """A value, or a list or table of them, as it is stored."""
    packed: bytes = msgpack.packb(value, use_bin_type=True, datetime=True, default=_packed)
    return packed


def unpack(data: bytes) -> Any:
    """What ``pack`` stored. Raises ValueError when it is damaged."""
    value: Any = msgpack.unpackb(
        data, raw=False, strict_map_key=False, timestamp=3, ext_hook=_unpacked
    )
    return value


def _packed(value: object) -> object:
    if isinstance(value, Decimal):
        return msgpack.ExtType(_DECIMAL, str(value).encode())
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored")


def _unpacked(kind: int, data: bytes) -> object:
    if kind != _DECIMAL:
        raise ValueError(f"unknown kind {kind} of a stored value")
    try:
        return Decimal(data.decode())
    except ArithmeticError:
        raise ValueError("a stored decimal number is none") from None


def _number(value: HeaderValue) -> int | float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value
    return int(value.timestamp()) if isinstance(value, datetime) else None


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
