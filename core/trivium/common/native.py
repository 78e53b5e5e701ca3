"""Comparing bytes where they lie, without an object for the part that is looked at."""

from __future__ import annotations

from types import FunctionType
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64


def lies_at(data: bytes, at: i64, part: bytes) -> bool:
    """Whether ``part`` is what ``data`` has at ``at``, which is not negative."""
    size: i64 = len(part)
    if at + size > len(data):
        return False
    if IS_INTERPRETED:
        # There an object costs less than a loop.
        return data[at : at + size] == part
    place: i64 = 0
    while place + 8 <= size:
        if read_i64_be(data, at + place) != read_i64_be(part, place):
            return False
        place += 8
    if place < size:
        if size >= 8:
            # The last eight, of which some were compared before.
            return read_i64_be(data, at + size - 8) == read_i64_be(part, size - 8)
        while place < size:
            if data[at + place] != part[place]:
                return False
            place += 1
    return True


IS_INTERPRETED: Final[bool] = isinstance(lies_at, FunctionType)
