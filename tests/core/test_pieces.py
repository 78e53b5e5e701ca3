"""Bytes in pieces: in order, and in little more memory than they need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trivium.common.pieces import SMALL, Pieces


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
