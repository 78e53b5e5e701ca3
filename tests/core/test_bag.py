"""Bags: each value once, gone when it is removed, in few steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.steps import Compared, comparisons
from trivium.common.bag import FEW, Bag


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
