"""A thread that runs an event loop, for programs that block."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Seconds between looks at whether the loop that a result is awaited from still runs.
_LOOK: Final = 1.0


class LoopStopped(Exception):
    """The loop runs no more."""


class LoopThread:
    """Runs ``serve`` on a loop of its own until ``stop``; it may be used by several threads.

    ``serve`` is given this, calls ``has_started``, and ends once ``wanted`` is set. What it raises
    before is raised by the constructor, what it raises after is ``failure``. The thread is a
    daemon.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[LoopThread], Coroutine[Any, Any, None]],
        make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        #: why ``serve`` ended by itself; None while it has not
        self.failure: BaseException | None = None
        #: set once it is to end
        self.wanted: asyncio.Event
        self.loop: asyncio.AbstractEventLoop
        self._started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(serve, make_loop), name=name, daemon=True
        )
        self._thread.start()
        try:
            self._started.result()
        except BaseException as error:
            if not self._started.done():
                # Ctrl-C: it is stopped as soon as it has started.
                self._started.add_done_callback(self._ask_to_stop)
            self._thread.join()
            raise error from None

    def _run(
        self,
        serve: Callable[[LoopThread], Coroutine[Any, Any, None]],
        make_loop: Callable[[], asyncio.AbstractEventLoop] | None,
    ) -> None:
        try:
            with asyncio.Runner(loop_factory=make_loop) as runner:
                runner.run(self._serve(serve))
        except BaseException as error:
            if self._started.done():
                self.failure = self.failure or error
            else:
                self._started.set_exception(error)

    async def _serve(self, serve: Callable[[LoopThread], Coroutine[Any, Any, None]]) -> None:
        self.loop = asyncio.get_running_loop()
        self.wanted = asyncio.Event()
        await serve(self)

    def has_started(self) -> None:
        """Let the constructor return."""
        self._started.set_result(None)

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs; not in a process that was forked from that one."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether it is this thread that asks."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result.

        Raises what it raises; LoopStopped; RuntimeError where the loop would wait for itself.
        """
        if self.is_current:
            work.close()
            raise RuntimeError(f"{self._thread.name}: its own loop would wait for itself")
        try:
            if not self.is_alive:
                raise RuntimeError
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise LoopStopped from None
        try:
            return self._result(future)
        except BaseException:
            # Ctrl-C, maybe: then nobody waits for it any more.
            future.cancel()
            if (
                not self._thread.is_alive()
                and inspect.getcoroutinestate(work) == inspect.CORO_CREATED
            ):
                # The loop had stopped before it came to it.
                work.close()
            raise

    def _result(self, future: Future[T]) -> T:
        while True:
            try:
                return future.result(_LOOK)
            except TimeoutError:
                if future.done():
                    return future.result()
                if not self.is_alive:
                    raise LoopStopped from None

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop, without waiting. Nothing happens once it has stopped."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass

    def stop(self) -> None:
        """Ask ``serve`` to end, and wait until nothing is left of the loop."""
        if self.is_current:
            raise RuntimeError(f"{self._thread.name} is not stopped by what runs on its own loop")
        self._ask_to_stop()
        self._thread.join()

    def _ask_to_stop(self, started: object = None) -> None:
        try:
            self.loop.call_soon_threadsafe(self.wanted.set)
        except (RuntimeError, AttributeError):
            # The loop is closed, or there was none.
            pass
