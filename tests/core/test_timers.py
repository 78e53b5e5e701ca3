"""Timers: order, moving, one call per arrangement."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trivium.common.timers import FEW, Timed, Timers


class Recorder(Timed):
    def __init__(self, calls: list[str], name: str) -> None:
        self.calls = calls
        self.name = name

    def due(self) -> None:
        self.calls.append(self.name)


def test_calls_come_in_the_order_of_their_times() -> None:
    timers, calls = Timers(), list[str]()
    for at, name in ((30, "c"), (10, "a"), (20, "b")):
        timers.call_at(at, Recorder(calls, name))
    assert timers.next_at() == 10
    timers.run(20)
    assert calls == ["a", "b"]
    assert timers.next_at() == 30


def test_only_the_soonest_call_of_an_object_counts() -> None:
    timers, calls = Timers(), list[str]()
    item = Recorder(calls, "a")
    timers.call_at(30, item)
    timers.call_at(10, item)
    timers.call_at(20, item)
    timers.run(100)
    assert calls == ["a"]
    assert timers.next_at() == 0


def test_a_call_arranged_while_running_waits_for_the_next_run() -> None:
    timers = Timers()

    class Again(Timed):
        runs = 0

        def due(self) -> None:
            self.runs += 1
            timers.call_at(10, self)

    item = Again()
    timers.call_at(5, item)
    timers.run(10)
    assert item.runs == 1
    timers.run(10)
    assert item.runs == 2


def test_a_stopped_call_does_not_come_and_can_be_arranged_again() -> None:
    timers, calls = Timers(), list[str]()
    item = Recorder(calls, "a")
    timers.stop(item)
    timers.call_at(10, item)
    timers.stop(item)
    assert timers.next_at() == 0
    timers.run(10)
    assert calls == []
    timers.call_at(20, item)
    timers.run(20)
    assert calls == ["a"]


def test_a_far_call_that_gives_way_to_nearer_ones_leaves_no_times_behind() -> None:
    timers, calls = Timers(), list[str]()
    item = Recorder(calls, "a")
    for now in range(4 * FEW):
        timers.call_at(1_000_000, item)
        timers.call_at(now + 1, item)
        timers.run(now + 1)
        timers.next_at()
    assert len(calls) == 4 * FEW
    assert len(timers) <= 2 + FEW


def test_calls_that_are_stopped_leave_no_times_behind() -> None:
    timers = Timers()
    for _ in range(4 * FEW):
        item = Recorder([], "a")
        timers.call_at(1_000_000, item)
        timers.stop(item)
    assert len(timers) <= FEW


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 50))))
def test_each_object_is_called_at_the_soonest_time_that_counts(
    actions: list[tuple[int, int, int]],
) -> None:
    timers, calls = Timers(), list[str]()
    items = [Recorder(calls, str(number)) for number in range(5)]
    expected: dict[int, int] = {}
    now = 0
    for action, number, after in actions:
        if action <= 1:
            timers.call_at(now + after, items[number])
            expected[number] = min(expected.get(number, now + after), now + after)
        elif action == 2:
            timers.stop(items[number])
            expected.pop(number, None)
        else:
            now += after
            calls.clear()
            timers.run(now)
            due = {str(each) for each, at in expected.items() if at <= now}
            assert (set(calls), len(calls)) == (due, len(due))
            expected = {each: at for each, at in expected.items() if at > now}
        assert timers.next_at() == min(expected.values(), default=0)
