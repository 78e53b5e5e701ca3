"""What bounds a soak: nothing in it waits for ever, whatever its broker and its clients do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

#: Seconds in which what was cancelled is to end; afterwards it is left alone.
CANCEL_SECONDS: Final = 20.0
#: Seconds in which what has made the clients fail tells of itself.
REASON_SECONDS: Final = 2.0

Result = TypeVar("Result")


class SoakError(Exception):
    """The soak is over before its time, and why: there is nothing to be judged."""


async def guarded(
    work: Coroutine[Any, Any, Result], ends: Iterable[Coroutine[Any, Any, str]], seconds: float
) -> Result:
    """What some work comes to.

    Raises SoakError where one of the ends comes first, with what it says, or so many seconds are
    over.
    """
    working = asyncio.create_task(work)
    ending = {asyncio.create_task(end) for end in ends}
    everything = {working, *ending}
    try:
        await asyncio.wait(everything, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done() and working.exception() is not None and ending:
            # Clients notice first that the broker is gone.
            await asyncio.wait(ending, timeout=REASON_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for end in ending:
            if end.done() and not (working.done() and working.exception() is None):
                raise SoakError(end.result())
        if not working.done():
            raise SoakError(f"it is not over after {seconds:.0f} s")
        return working.result()
    finally:
        await _cancel(everything)


async def within(
    seconds: float, works: Iterable[tuple[str, Coroutine[Any, Any, object]]]
) -> list[str]:
    """Let named works go on together for at most so long; which of them failed, or are not over."""
    tasks = [(name, asyncio.create_task(work)) for name, work in works]
    everything = {task for _, task in tasks}
    found = []
    try:
        await asyncio.wait(everything, timeout=seconds)
        for name, task in tasks:
            if not task.done():
                found.append(f"{name}: not over after {seconds:.0f} s")
            elif (error := task.exception()) is not None:
                found.append(f"{name}: {error!r}")
    finally:
        await _cancel(everything)
    return found


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    left = {task for task in tasks if not task.done()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CANCEL_SECONDS)
    for task in left:
        # Nobody asks any more what it ended with.
        if task.done():
            with contextlib.suppress(asyncio.CancelledError):
                task.exception()
