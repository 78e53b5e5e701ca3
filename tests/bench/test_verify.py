import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.verify import SequenceCheck, Tally


def check_of(*chunks: list[int]) -> SequenceCheck:
    check = SequenceCheck()
    for chunk in chunks:
        check.add(np.array(chunk, dtype=np.uint64))
    return check


@pytest.mark.parametrize(
    ("chunks", "sent", "tally"),
    [
        ([], 0, Tally(0, 0, 0)),
        ([], 3, Tally(3, 0, 0)),
        ([[0, 1, 2], [3], [], [4]], 5, Tally(0, 0, 0)),
        ([[0, 1, 2]], 5, Tally(2, 0, 0)),
        ([[0, 1], [3, 4]], 5, Tally(1, 0, 0)),
        ([[1, 2]], 3, Tally(1, 0, 0)),
        ([[0, 1], [1, 2]], 3, Tally(0, 1, 0)),
        ([[0, 1, 2], [0, 1, 2]], 3, Tally(0, 3, 0)),
        ([[0, 0, 0, 2]], 3, Tally(1, 2, 0)),
        ([[2, 1, 0]], 3, Tally(0, 0, 0)),
        ([[0, 1], [7]], 2, Tally(0, 0, 1)),
        ([[0, 1, 2, 3]], 2, Tally(0, 0, 2)),
        ([[5, 6], [7, 8]], 1, Tally(1, 0, 4)),
    ],
)
def test_losses_and_duplicates_are_counted(
    chunks: list[list[int]], sent: int, tally: Tally
) -> None:
    check = check_of(*chunks)
    assert check.tally(sent) == tally
    assert check.received == sum(len(chunk) for chunk in chunks)


@given(st.lists(st.lists(st.integers(0, 30), max_size=8), max_size=8), st.integers(0, 30))
def test_any_stream_is_tallied_as_a_count_of_each_number_would(
    chunks: list[list[int]], sent: int
) -> None:
    numbers = [number for chunk in chunks for number in chunk]
    known = [number for number in numbers if number < sent]
    expected = Tally(
        lost=sent - len(set(known)),
        duplicated=len(known) - len(set(known)),
        unexpected=len(numbers) - len(known),
    )
    assert check_of(*chunks).tally(sent) == expected


def test_chunks_longer_than_any_before_are_taken() -> None:
    assert check_of(list(range(5000)), list(range(5000, 5001))).tally(5001) == Tally(0, 0, 0)


def test_tallies_add_up() -> None:
    assert Tally(1, 2, 3) + Tally(10, 20, 30) == Tally(11, 22, 33)
