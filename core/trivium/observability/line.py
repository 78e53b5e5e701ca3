"""Who makes a part of a long answer in a turn of the loop: one of all, so that turns take no longer
however many are asked for at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

Part = TypeVar("Part")


class TurnClock(Protocol):
    """Knows how long the turn has lasted."""

    def begin_turn(self) -> None:
        """Something is done that takes a part of this turn's time."""

    def is_turn_long(self) -> bool:
        """Whether what has begun is to be left to a turn to come, where that can be."""


class Line:
    """Those who wait for a turn of their own. They have it in order, each user's in turn with those
    of others, however long others make each turn."""

    def __init__(self, clock: TurnClock) -> None:
        self._clock = clock
        # By user; whose are next stands first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # Whether this turn is somebody's.
        self._is_moving = False

    async def wait(self, user: str) -> None:
        """Wait for a turn in which nobody else of these goes on."""
        self._clock.begin_turn()
        if self._is_moving or self._clock.is_turn_long():
            await self._stand(user)
        else:
            self._move_on()

    async def wait_for_time(self, user: str) -> None:
        """Wait as well, but for as long as the turn is long: for what takes a moment."""
        self._clock.begin_turn()
        if self._clock.is_turn_long():
            await self._stand(user)

    async def _stand(self, user: str) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(mine)
        self._move_on()
        await mine
        self._clock.begin_turn()

    def _move_on(self) -> None:
        if not self._is_moving:
            self._is_moving = True
            asyncio.get_running_loop().call_soon(self._move)

    def _move(self) -> None:
        """The turn is the next one's."""
        self._is_moving = False
        while self._waiting:
            user = next(iter(self._waiting))
            mine = self._waiting.pop(user)
            first = mine.popleft()
            if mine:
                self._waiting[user] = mine
            if not first.done():
                first.set_result(None)
                # It goes on in the loop's next iteration, before this is called again.
                self._move_on()
                return


class InTurns(Generic[Part]):
    """What is made a part at a time, each of them in such a turn."""

    def __init__(self, line: Line, user: str, parts: Iterator[Part]) -> None:
        self._line = line
        self._user = user
        self._parts = parts

    async def next(self) -> Part | None:
        """The next part; None at the end."""
        await self._line.wait(self._user)
        return next(self._parts, None)
