"""Unsettled deliveries: each taken out once, by tag or by range, in few steps in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.steps import steps
from trivium.queues.unsettled import BLOCK_SIZE, Unsettled

#: Where a tag is between the lowest and the highest there is; beyond both as well.
PLACES = st.floats(-0.1, 1.1)


class UnsettledMachine(RuleBasedStateMachine):
    """Runs the same on unsettled deliveries and on a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.unsettled: Unsettled[str] = Unsettled()
        self.model: dict[int, str] = {}
        self.taken: dict[int, str] = {}
        self.tag = 0

    def at(self, place: float) -> int:
        known = [*self.model, *self.taken]
        low, high = min(known, default=0), max(known, default=0)
        return int(low + place * (high - low))

    @initialize(count=st.sampled_from([0, 3, BLOCK_SIZE, 5 * BLOCK_SIZE]))
    def begin(self, count: int) -> None:
        for _ in range(count):
            self.add(1)

    @rule(gap=st.sampled_from([1, 1, 1, 2, 1000]))
    def add(self, gap: int) -> None:
        self.tag += gap
        self.unsettled.add(self.tag, str(self.tag))
        self.model[self.tag] = str(self.tag)

    def take(self, tag: int) -> None:
        if tag in self.model:
            self.taken[tag] = self.model.pop(tag)

    @rule(place=PLACES)
    def pop(self, place: float) -> None:
        tag = self.at(place)
        assert self.unsettled.get(tag) == self.model.get(tag)
        assert self.unsettled.pop(tag) == self.model.get(tag)
        self.take(tag)

    @rule()
    def pop_first(self) -> None:
        first = self.unsettled.first()
        if first is not None:
            assert self.unsettled.pop(first[0]) == first[1]
            self.take(first[0])

    @rule(place=PLACES)
    def add_twice(self, place: float) -> None:
        tag = self.at(place)
        if tag in self.model:
            assert not self.unsettled.add(tag, "another")

    @rule(first=PLACES, last=PLACES, with_tags=st.booleans())
    def pop_range(self, first: float, last: float, with_tags: bool) -> None:
        low, high = self.at(first), self.at(last)
        expected = [(tag, self.model[tag]) for tag in sorted(self.model) if low <= tag <= high]
        if with_tags:
            assert self.unsettled.pop_range(low, high) == expected
        else:
            assert self.unsettled.pop_values(low, high) == [value for _, value in expected]
        for tag, _ in expected:
            self.take(tag)

    @rule(place=PLACES, count=st.integers(1, 4 * BLOCK_SIZE))
    def put_back(self, place: float, count: int) -> None:
        low = self.at(place)
        for tag in [tag for tag in self.taken if tag >= low][:count]:
            value = self.taken.pop(tag)
            self.unsettled.add(tag, value)
            self.model[tag] = value

    @rule()
    def clear(self) -> None:
        self.unsettled.clear()
        self.model.clear()

    @invariant()
    def holds_what_the_dict_does(self) -> None:
        expected = sorted(self.model.items())
        assert len(self.unsettled) == len(expected)
        assert self.unsettled.items() == expected
        assert self.unsettled.first() == (expected[0] if expected else None)

    @invariant()
    def at_most_one_block_is_empty(self) -> None:
        for block in self.unsettled.blocks:
            used = [at for at, value in enumerate(block.slots) if value is not None]
            assert len(block.slots) == BLOCK_SIZE
            assert block.live == len(used)
            assert block.low <= min(used, default=BLOCK_SIZE)
        assert sum(not block.live for block in self.unsettled.blocks) <= 1


TestUnsettled = UnsettledMachine.TestCase


def filled(count: int) -> Unsettled[int]:
    unsettled: Unsettled[int] = Unsettled()
    for tag in range(1, count + 1):
        unsettled.add(tag, -tag)
    return unsettled


def in_order(count: int) -> Iterable[tuple[int, int]]:
    return ((tag, tag) for tag in range(1, count + 1))


def backwards(count: int) -> Iterable[tuple[int, int]]:
    return ((tag, tag) for tag in range(count, 0, -1))


def downwards_without_end(count: int) -> Iterable[tuple[int, int]]:
    return ((tag, 1 << 62) for tag in range(count, 0, -1))


def beside_a_growing_hole(count: int) -> Iterable[tuple[int, int]]:
    return ((tag, count - 1) for tag in range(count - 1, 0, -1))


def from_within_a_growing_hole(count: int) -> Iterable[tuple[int, int]]:
    first = count // 4 + 5
    return ((first, tag) for tag in range(first, count))


@pytest.mark.pure
@pytest.mark.parametrize(
    "order",
    [in_order, backwards, downwards_without_end, beside_a_growing_hole, from_within_a_growing_hole],
)
def test_settling_ranges_takes_the_same_steps_for_each_in_any_order(
    order: Callable[[int], Iterable[tuple[int, int]]],
) -> None:
    def taken(count: int) -> int:
        unsettled = filled(count)

        def take() -> None:
            for first, last in order(count):
                assert len(unsettled.pop_range(first, last)) == 1

        return steps(take)

    assert taken(64 * BLOCK_SIZE) <= 5 * taken(16 * BLOCK_SIZE)


@pytest.mark.pure
@pytest.mark.parametrize("step", [1, -1, 7])
def test_settling_one_takes_the_same_steps_whatever_else_is_unsettled(step: int) -> None:
    def taken(count: int) -> int:
        unsettled = filled(count)

        def take() -> None:
            for number in range(count):
                tag = number * step % count + 1
                assert unsettled.pop(tag) == -tag

        return steps(take)

    assert taken(64 * BLOCK_SIZE) <= 5 * taken(16 * BLOCK_SIZE)


@pytest.mark.pure
def test_taking_and_putting_back_one_passes_no_others() -> None:
    def repeated(count: int) -> int:
        unsettled = filled(count)
        unsettled.pop_range(2, count // 2)

        def repeat() -> None:
            for _ in range(100):
                for tag, value in unsettled.pop_range(1, count // 2 + 1):
                    unsettled.add(tag, value)

        return steps(repeat)

    assert repeated(80_000) <= 2 * repeated(800)


@given(st.integers(0, 5 * BLOCK_SIZE), st.integers(1, 5 * BLOCK_SIZE))
def test_few_that_stay_lie_in_no_more_blocks_than_there_are_of_them(count: int, gap: int) -> None:
    unsettled = filled(count)
    for tag in range(1, count + 1):
        if tag % gap:
            unsettled.pop(tag)
    assert len(unsettled.blocks) <= len(unsettled) + 1
