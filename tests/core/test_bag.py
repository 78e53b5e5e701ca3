"""Bags: each value once, gone when it is removed, in few steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.steps import Compared, comparisons
from trivium.common.bag import FEW, Bag, items_of, put_in, take_out


@given(st.sampled_from([0, 2 * FEW]), st.lists(st.integers(0, 3 * FEW), max_size=200))
def test_a_bag_holds_what_a_set_does(many: int, numbers: list[int]) -> None:
    bag: Bag[int] = Bag()
    expected: set[int] = set()
    for number in [*range(many), *numbers]:
        if number in expected:
            assert bag.remove(number)
            expected.remove(number)
        else:
            assert not bag.remove(number)
            bag.add(number)
            expected.add(number)
        assert sorted(bag.items) == sorted(expected)


@given(st.lists(st.integers(0, 4), max_size=40))
def test_a_place_holds_a_value_itself_or_a_bag_of_several(numbers: list[int]) -> None:
    kept: int | Bag[int] | None = None
    expected: set[int] = set()
    for number in numbers:
        if number in expected:
            kept = take_out(kept, number)
            expected.remove(number)
        else:
            with pytest.raises(KeyError):
                take_out(kept, number)
            kept = put_in(kept, number)
            expected.add(number)
        assert sorted(items_of(kept)) == sorted(expected)
        assert (kept is None) == (not expected)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_emptying_a_bag_takes_linear_comparisons(is_reversed: bool) -> None:
    def emptied(count: int) -> int:
        bag: Bag[Compared] = Bag()
        values = [Compared(number) for number in range(count)]
        for value in values:
            bag.add(value)

        def empty() -> None:
            for value in reversed(values) if is_reversed else values:
                assert bag.remove(value)

        return comparisons(empty)

    assert emptied(4000) <= 5 * emptied(1000) + 1000
