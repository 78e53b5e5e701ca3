"""What bodies of requests say, which are JSON.

A large one is read in a thread. The interpreter goes on with others between two of its values, and
between two pieces of a long text, since functions in Python read these: the standard library's own
scanner would hold it until the end.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterator
from json import decoder, scanner
from typing import Any, Final

#: Bytes and characters that are looked at in one go.
_PIECE: Final = 64 * 1024
#: What a text goes on with, whole escapes alone; half of a character, behind which the other comes.
_MORE: Final = re.compile(r'(?:[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_FIRST_HALF: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_ESCAPE_SIZE: Final = 6
#: Half of a character, as JSON may have it, and how long that is.
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE_SIZE: Final = 5
_STRINGS: Final = json.JSONEncoder(ensure_ascii=False)

_Scan = Callable[[str, int], tuple[object, int]]


class RepeatedName(ValueError):
    """An object has a name twice: what it says depends on who reads it (RFC 8259, 4)."""


class TooManyValues(Exception):
    """There are more than are taken: objects, lists, and what is in them."""


def parse(data: bytearray, is_strict: bool = True) -> object:
    """What a short text of JSON says. Where it ``is_strict`` no object has a name twice.

    Raises ValueError, also where an answer could not say it again; RecursionError.
    """
    hook = _unique if is_strict else None
    text = data.decode()
    found = json.loads(text, parse_float=_finite, parse_constant=_finite, object_pairs_hook=hook)
    return _checked(data, found)


def parse_large(data: bytearray, most_values: int, is_strict: bool = True) -> object:
    """The same of one that may be long, for a thread. Raises TooManyValues, too."""
    pieces = (bytes(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE))
    text = "".join(codecs.iterdecode(pieces, "utf-8"))
    return _checked(data, _Decoder(most_values, is_strict).decode(text))


class _Decoder(json.JSONDecoder):
    """Reads by the standard library's functions in Python, and counts values."""

    def __init__(self, most_values: int, is_strict: bool) -> None:
        hook = _unique if is_strict else None
        super().__init__(parse_float=_finite, parse_constant=_finite, object_pairs_hook=hook)
        parts: Any = decoder
        scanners: Any = scanner
        left = most_values

        def counted(scan: _Scan) -> _Scan:
            def scan_one(text: str, at: int) -> tuple[object, int]:
                nonlocal left
                left -= 1
                if left < 0:
                    raise TooManyValues
                return scan(text, at)

            return scan_one

        def parse_object(start: object, strict: bool, scan: _Scan, *hooks: object) -> object:
            return parts.JSONObject(start, strict, counted(scan), *hooks)

        def parse_array(start: object, scan: _Scan) -> object:
            return parts.JSONArray(start, counted(scan))

        self.parse_object = parse_object
        self.parse_array = parse_array
        self.parse_string = _parse_string
        self.scan_once = scanners.py_make_scanner(self)


def _parse_string(text: str, at: int, strict: bool) -> tuple[str, int]:
    """The text that begins behind a quotation mark, and where what follows on it begins."""
    scan: Any = decoder
    end = text.find('"', at, at + _PIECE)
    if end >= 0 and text[end - 1] != "\\":
        found: tuple[str, int] = scan.scanstring(text, at, strict)
        return found
    parts: list[str] = []
    while True:
        stop = _end_of_piece(text, at)
        if stop == at:
            # Here it ends, or is wrong.
            part, at = scan.scanstring(text, at, strict)
            parts.append(part)
            return "".join(parts), at
        parts.append(scan.scanstring(text[at:stop] + '"', 0, strict)[0])
        at = stop


def _end_of_piece(text: str, at: int) -> int:
    found = _MORE.match(text, at, at + _PIECE)
    stop = at if found is None else found.end()
    half = stop - _ESCAPE_SIZE
    return half if half > at and _FIRST_HALF.match(text, half, stop) else stop


def _checked(data: bytearray, found: object) -> object:
    """What was found, if its texts can be said again: one half of a character alone has no
    UTF-8. Raises ValueError."""
    if any(_halves(data)):
        for text in _STRINGS.iterencode(found):
            text.encode()
    return found


def _halves(data: bytearray) -> Iterator[object]:
    for at in range(0, len(data), _PIECE):
        yield _SURROGATE.search(data, at, at + _PIECE + _SURROGATE_SIZE - 1)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RepeatedName
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is finite")
    return number
