"""Whose turn it is to make a part of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tests.support.rest import until
from trivium.observability.line import InTurns, Line


class Clock:
    """Turns are as long as the test says."""

    def __init__(self) -> None:
        self.is_long = False
        self.begun = 0

    def begin_turn(self) -> None:
        self.begun += 1

    def is_turn_long(self) -> bool:
        return self.is_long


class Turns:
    """Counts iterations of the loop while somebody is at work."""

    def __init__(self) -> None:
        self.number = 0
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


async def made(line: Line, user: str, count: int, turns: Turns) -> list[tuple[int, str]]:
    """In which turns the parts of an answer are made."""
    found = []

    def parts() -> Iterator[int]:
        for _ in range(count):
            yield turns.number

    making = InTurns(line, user, parts())
    while (number := await making.next()) is not None:
        found.append((number, user))
    return found


async def test_one_answer_of_all_goes_on_in_a_turn() -> None:
    turns = Turns()
    line = Line(Clock())
    answers = await asyncio.gather(*(made(line, "ann", 10, turns) for _ in range(8)))
    turns.stop()
    numbers = [number for answer in answers for number, _ in answer]
    assert len(set(numbers)) == len(numbers) == 80
    # Nor does any turn go by unused, but for the few until all stand in line.
    assert max(numbers) - min(numbers) <= 80 + 10


async def test_users_have_turns_one_after_the_other_however_many_answers_each_asks_for() -> None:
    turns = Turns()
    line = Line(Clock())
    every = [made(line, "ann", 20, turns) for _ in range(9)]
    answers = await asyncio.gather(*every, made(line, "bob", 20, turns))
    turns.stop()
    order = [user for _, user in sorted(each for answer in answers for each in answer)]
    assert order[:40].count("bob") >= 19


async def test_answers_go_on_though_all_turns_are_long() -> None:
    clock = Clock()
    clock.is_long = True
    turns = Turns()
    line = Line(clock)
    (answer,) = await asyncio.gather(made(line, "ann", 3, turns))
    turns.stop()
    assert len(answer) == 3
    assert clock.begun >= 3


async def test_who_leaves_the_line_holds_nobody_up() -> None:
    clock = Clock()
    clock.is_long = True
    line = Line(clock)
    first, second = (asyncio.ensure_future(line.wait("ann")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await until(second.done)
    assert first.cancelled()


async def test_what_takes_a_moment_waits_only_for_long_turns() -> None:
    clock = Clock()
    line = Line(clock)
    short = [asyncio.ensure_future(line.wait_for_time("ann")) for _ in range(3)]
    await asyncio.sleep(0)
    assert all(each.done() for each in short)
    clock.is_long = True
    waiting = [asyncio.ensure_future(line.wait_for_time("ann")) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    await until(waiting[0].done)
    assert not waiting[1].done()
    await asyncio.gather(*waiting)
