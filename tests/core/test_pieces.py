"""Bytes in pieces: in order, and in little more memory than they need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trivium.common.pieces import MAX_KEPT, SMALL, Pieces, split_parts


@given(st.lists(st.sampled_from([1, 2, 100, SMALL - 1, SMALL, SMALL + 7]), max_size=40))
def test_what_is_taken_is_what_came(sizes: list[int]) -> None:
    pieces = Pieces()
    sent = b""
    for number, size in enumerate(sizes):
        piece = bytes((number,)) * size
        pieces.add(piece)
        sent += piece
        assert pieces.size == len(sent)
    assert pieces.take() == sent
    assert (pieces.size, pieces.take()) == (0, b"")


def test_one_large_piece_is_not_copied() -> None:
    pieces = Pieces()
    piece = bytes(SMALL)
    pieces.add(piece)
    assert pieces.take() is piece


def test_pieces_of_two_bytes_are_no_objects_of_their_own() -> None:
    pieces = Pieces()
    for number in range(100_000):
        pieces.add(b"ab")
        if number % 1000 == 0:
            pieces.add(bytes(SMALL))
    assert len(pieces) <= 2 * 100 + 2


def test_nothing_is_left_after_clearing() -> None:
    pieces = Pieces()
    pieces.add(b"a")
    pieces.clear()
    pieces.add(b"b")
    assert pieces.take() == b"b"


READ = bytes(range(256)) * 1024


def test_most_of_what_was_read_is_kept_as_it_is() -> None:
    pieces = Pieces()
    pieces.add_part(READ, 7, len(READ))
    pieces.end_read()
    (part,) = pieces.take_parts()
    assert isinstance(part, memoryview)
    assert part.obj is READ
    assert part == READ[7:]


def test_little_of_what_was_read_does_not_keep_the_rest() -> None:
    pieces = Pieces()
    at = len(READ) // MAX_KEPT // 2
    pieces.add_part(READ, 0, at)
    pieces.add_part(READ, at + 8, at + 8)
    pieces.add_part(READ, at + 8, at + 16)
    pieces.end_read()
    assert pieces.size == at + 8
    (part, tail) = (pieces.take_parts(), pieces.take())
    assert (part, tail) == ([READ[:at] + READ[at + 8 : at + 16]], b"")


def test_tiny_parts_are_no_objects_of_their_own() -> None:
    pieces = Pieces()
    for at in range(0, len(READ), 8):
        pieces.add_part(READ, at, at + 1)
    pieces.end_read()
    assert len(pieces) == 1
    assert pieces.take() == READ[::8]


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 100, SMALL - 1, SMALL, 9 * SMALL]), st.booleans()),
        max_size=20,
    ),
    st.integers(0, 70_000),
)
def test_parts_and_pieces_come_in_their_order(sizes: list[tuple[int, bool]], at: int) -> None:
    pieces = Pieces()
    sent = b""
    for number, (size, is_part) in enumerate(sizes):
        piece = bytes((number,)) * size
        sent += piece
        if is_part:
            pieces.add_part(b"<" + piece + b">", 1, size + 1)
            pieces.end_read()
        else:
            pieces.add(piece)
    assert pieces.head(at) == sent[:at]
    parts = pieces.parts
    assert pieces.take_parts() == parts
    first, rest = split_parts(parts, at)
    assert (b"".join(first), b"".join(rest)) == (sent[:at], sent[at:])
    assert (pieces.size, len(pieces)) == (0, 0)
