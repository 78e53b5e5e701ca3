"""The client for asyncio in a thread, which works while a blocking client does something else.

Subscriptions get their messages there, members of groups send their heartbeats, publishers their
requests, and a lost connection is made again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from trivium.common.loop_thread import LoopStopped, LoopThread
from trivium_native.client.client import Client, connect, connection_of
from trivium_native.client.operations import Operation
from trivium_native.client.reconnecting import Persistence
from trivium_native.client.url import Target
from trivium_native.wire.errors import ConnectionFailed, NativeError, TimedOut

T = TypeVar("T")


class Background:
    """A client for asyncio on a loop of its own."""

    def __init__(
        self, target: Target, name: str, heartbeat: int, timeout: float, persistence: Persistence
    ) -> None:
        #: to be used on its loop only
        self.client: Client
        self._connecting = partial(
            connect,
            target,
            name=name,
            heartbeat=heartbeat,
            timeout=timeout,
            reconnect=persistence.policy or False,
            on_connected=persistence.on_connected,
            on_disconnected=persistence.on_disconnected,
        )
        self._timeout = timeout
        self._thread = LoopThread("trivium-client", self._serve)

    async def _serve(self, thread: LoopThread) -> None:
        async with self._connecting() as client:
            self.client = client
            thread.has_started()
            await thread.wanted.wait()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for its result."""
        try:
            return self._thread.call(work)
        except LoopStopped:
            raise ConnectionFailed("the client is closed") from None

    def ask(self, function: Callable[[], T]) -> T:
        """Call a function there, and wait for its result."""

        async def work() -> T:
            return function()

        return self.call(work())

    def tell(self, operation: Operation[None]) -> None:
        """Make a request without waiting for anything. One that cannot be made shows elsewhere."""
        self._thread.tell(self._send, operation)

    def _send(self, operation: Operation[None]) -> None:
        with suppress(NativeError):
            connection_of(self.client).send(operation, False)

    def schedule(self, function: Callable[[], None]) -> None:
        """Call a function there, without waiting."""
        self._thread.tell(function)

    def run(self, operation: Operation[T], timeout: float) -> T:
        """Make a request, and wait so many seconds for its answer."""

        return self._bounded(self.client.run(operation), timeout)

    def answer(self, work: Coroutine[Any, Any, T], wait: float = 0.0) -> T:
        """Run a coroutine that makes requests, within the time for an answer. Raises TimedOut.

        ``wait``: seconds that the broker may let pass before it answers.
        """
        return self._bounded(work, self._timeout + wait)

    def _bounded(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(timeout):
                return await work

        try:
            return self.call(bounded())
        except TimeoutError:
            raise TimedOut(f"no answer within {timeout} s") from None
        finally:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                # The loop had stopped.
                work.close()

    @contextmanager
    def opened(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """What a block of the client for asyncio gives, for the time of a block here."""

        async def enter() -> T:
            return await manager.__aenter__()

        found = self.answer(enter())
        try:
            yield found
        except BaseException as error:
            if self._thread.is_alive:
                self.call(_ended(manager, error))
            raise
        else:
            if self._thread.is_alive:
                self.call(_ended(manager, None))

    def close(self) -> None:
        """Say goodbye, and end the thread."""
        self._thread.stop()


async def _ended(manager: AbstractAsyncContextManager[Any], error: BaseException | None) -> None:
    kind = None if error is None else type(error)
    with suppress(*(() if kind is None else (kind,))):
        await manager.__aexit__(kind, error, None)
