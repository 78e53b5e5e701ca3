"""Comparing bytes where they lie."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trivium.common.native import lies_at

some_bytes = st.text("ab", max_size=40).map(str.encode)


@given(some_bytes, st.integers(0, 45), some_bytes)
def test_it_says_what_a_slice_says(data: bytes, at: int, part: bytes) -> None:
    assert lies_at(data, at, part) == (data[at:].startswith(part) and at + len(part) <= len(data))


@given(some_bytes, some_bytes, some_bytes, st.integers(0, 40))
def test_one_other_byte_makes_a_difference(
    before: bytes, part: bytes, behind: bytes, place: int
) -> None:
    data = bytearray(before + part + behind)
    assert lies_at(bytes(data), len(before), part)
    if place < len(part):
        data[len(before) + place] ^= 1
        assert not lies_at(bytes(data), len(before), part)


def test_each_byte_of_a_part_of_any_size_counts() -> None:
    for size in range(40):
        part = bytes(range(1, size + 1))
        for place in range(size):
            data = bytearray(b"before" + part + b"behind")
            data[6 + place] ^= 0x80
            assert not lies_at(bytes(data), 6, part), (size, place)
