"""Timers: order, moving, one call per arrangement."""

from __future__ import annotations

from trivium.common.timers import Timed, Timers


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
