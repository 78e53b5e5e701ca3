"""What a load measures, against the same counted in a simple way."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.cli.measuring import Histogram, Ledger, Numbers

numbers = st.lists(st.integers(0, 200))


@given(st.lists(st.integers(0, 1 << 45), min_size=1), st.sampled_from((50.0, 90.0, 99.0, 99.9)))
def test_a_percentile_is_right_to_one_part_in_a_hundred(delays: list[int], percent: float) -> None:
    histogram = Histogram()
    for delay in delays:
        histogram.add(delay)
    least = next(
        delay
        for delay in sorted(delays)
        if sum(other <= delay for other in delays) >= len(delays) * percent / 100
    )
    assert least <= histogram.percentile(percent) <= least * 1.01


def test_the_longest_delay_is_exact_and_no_percentile_is_above_it() -> None:
    histogram = Histogram()
    for delay in (3, 1_000_003, -5):
        histogram.add(delay)
    assert histogram.count == 3
    assert histogram.longest == 1_000_003
    assert histogram.percentile(100) == 1_000_003
    assert histogram.percentile(1) == 0


def test_a_delay_beyond_all_bounds_counts_as_the_longest() -> None:
    histogram = Histogram()
    histogram.add(1 << 60)
    assert histogram.longest == histogram.percentile(50) == 1 << 46


def test_without_delays_all_is_zero() -> None:
    assert set(Histogram().report().values()) == {0.0}


@given(numbers, numbers)
def test_numbers_are_a_set(these: list[int], others: list[int]) -> None:
    left, right = Numbers(), Numbers()
    assert [left.add(number) for number in these] == [
        number not in these[:at] for at, number in enumerate(these)
    ]
    for number in others:
        right.add(number)
    missing = left.without(right)
    wanted = set(these) - set(others)
    assert len(left) == len(set(these))
    assert len(missing) == len(wanted)
    assert {n for n in range(300) if n in missing} == wanted
    ranges = list(missing.ranges())
    assert {n for first, last in ranges for n in range(first, last + 1)} == wanted
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(ranges))


def test_gaps_are_named_and_not_all_of_them() -> None:
    found = Numbers()
    for number in (1, 7, 8, 9, 20, 30):
        found.add(number)
    assert found.first_ranges(3) == ["1", "7-9", "20"]


def test_a_copy_counts_as_a_duplicate_unless_it_says_that_it_may_be_one() -> None:
    ledger = Ledger()
    for number, is_redelivered in ((0, False), (1, True), (0, False), (1, True), (1, True)):
        ledger.add(number, is_redelivered)
    assert (ledger.unflagged, ledger.flagged, len(ledger.seen)) == (1, 2, 2)


@pytest.mark.parametrize("came", [(0, 1, 2), (0, 2)])
def test_what_was_acknowledged_and_has_not_come_is_lost(came: tuple[int, ...]) -> None:
    acknowledged, ledger = Numbers(), Ledger()
    for number in (0, 1, 2):
        acknowledged.add(number)
    for number in came:
        ledger.add(number, False)
    # One that was not acknowledged need not come.
    ledger.add(5, False)
    assert len(ledger.lost(acknowledged)) == 3 - len(came)
