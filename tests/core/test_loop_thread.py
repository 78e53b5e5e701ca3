"""A thread with an event loop: how it starts, what it runs, how it ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from trivium.common.loop_thread import LoopStopped, LoopThread


async def serve(thread: LoopThread) -> None:
    thread.has_started()
    await thread.wanted.wait()


async def answer() -> int:
    return 42


def test_it_runs_what_it_is_given_until_it_is_stopped() -> None:
    thread = LoopThread("loop", serve)
    lives = [thread.is_alive]
    assert not thread.is_current
    assert thread.call(answer()) == 42
    thread.stop()
    lives.append(thread.is_alive)
    assert lives == [True, False]
    with pytest.raises(LoopStopped):
        thread.call(answer())
    thread.tell(pytest.fail, "it runs no more")
    thread.stop()


def test_what_a_coroutine_raises_is_raised_to_who_waits() -> None:
    async def fail(error: Exception) -> None:
        raise error

    thread = LoopThread("loop", serve)
    for error in (ValueError("no"), TimeoutError("late")):
        with pytest.raises(type(error), match=str(error)):
            thread.call(fail(error))
    thread.stop()


def test_what_prevents_the_start_is_raised() -> None:
    async def fail(thread: LoopThread) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        LoopThread("loop", fail)


def test_who_waits_is_told_that_the_loop_has_ended() -> None:
    failing = threading.Event()

    async def fail(thread: LoopThread) -> None:
        thread.has_started()
        await asyncio.to_thread(failing.wait)
        raise ValueError("no")

    async def wait() -> None:
        failing.set()
        await asyncio.Event().wait()

    thread = LoopThread("loop", fail)
    with pytest.raises(BaseException):  # noqa: B017 - the loop cancels what is left on it
        thread.call(wait())
    thread.stop()
    assert isinstance(thread.failure, ValueError)


def test_a_loop_does_not_wait_for_itself() -> None:
    thread = LoopThread("loop", serve)

    async def call() -> None:
        with pytest.raises(RuntimeError, match="own loop"):
            thread.call(answer())
        with pytest.raises(RuntimeError, match="own loop"):
            thread.stop()

    thread.call(call())
    thread.stop()
