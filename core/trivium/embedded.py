"""The broker inside a program that blocks: it runs in a thread, on an event loop of its own.

::

    with trivium.embedded.start(Config(listen={"mqtt": Listen(0)})) as broker:
        print(broker.listeners["mqtt"])
        with broker.client() as client:
            client.publish(b"21.5", routing_key="sensors.kitchen")

A program with an event loop has ``async with Broker(config)`` instead. Several brokers may run in
one process. The thread is a daemon: a program that ends without ``stop`` ends its broker as a
crash would, with everything there that was acknowledged.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from functools import cache
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from trivium.common.loop_thread import LoopStopped, LoopThread
from trivium.config import Config
from trivium.runtime.broker import Broker
from trivium.runtime.server import loop_factory

T = TypeVar("T")

_END: Final = object()


def start(config: Config | None = None) -> EmbeddedBroker:
    """Start a broker in a thread; it listens as configured once this returns.

    Raises what ``async with Broker(config)`` would: TriviumError, OSError.
    """
    return EmbeddedBroker(config)


class EmbeddedBroker:
    """A running broker; ``start`` makes one. It may be used by several threads at a time."""

    def __init__(self, config: Config | None) -> None:
        #: what runs, to be used on its own loop only (``call``)
        self.broker: Broker
        self._config = config
        self._thread = LoopThread("trivium-broker", self._serve, loop_factory())

    async def _serve(self, thread: LoopThread) -> None:
        async with Broker(self._config) as broker:
            self.broker = broker
            thread.has_started()
            stopped = asyncio.create_task(thread.wanted.wait())
            failed = asyncio.create_task(broker.wait_failed())
            await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            failed.cancel()
            if failed.done():
                thread.failure = failed.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except Exception:
            # What ends the block is told first: it may be what came of it.
            if error is None:
                raise

    @property
    def listeners(self) -> dict[str, str]:
        """Where clients can connect: ``host:port`` by the name of the listener."""
        return dict(self.broker.listeners)

    @property
    def is_running(self) -> bool:
        """Whether it has not stopped, and has not failed."""
        return self._thread.is_alive and self._thread.failure is None

    def stop(self) -> None:
        """Stop the broker, and wait until nothing is left of it; nothing where that was done.

        Clients are told, and what is left is written. Raises what the broker has failed with
        (StorageError, InternalError), once.
        """
        self._thread.stop()
        failure, self._thread.failure = self._thread.failure, None
        if failure is not None:
            raise failure

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's loop, and wait for its result.

        Raises what it raises; RuntimeError once the broker has stopped.
        """
        try:
            return self._thread.call(work)
        except LoopStopped:
            raise RuntimeError("the broker has stopped") from None

    def client(self, *, vhost: str = "/", username: str | None = None, **settings: Any) -> Any:
        """``Broker.client`` for a program that blocks, connected once this returns.

        It has the same methods: what is awaited there blocks here, ``async with`` is ``with`` and
        ``async for`` is ``for``. ``close``, or the end of its own ``with``, closes it. Callbacks
        run on the broker's loop.
        """
        return Blocking(self, self.broker).client(vhost=vhost, username=username, **settings)


class Blocking:
    """An object of the broker's loop that has coroutines, for a program that blocks.

    Its methods run there, whether they are coroutines or not. What they return is wrapped the same
    way where it has coroutines too.
    """

    def __init__(self, broker: EmbeddedBroker, subject: Any) -> None:
        self._broker = broker
        self._subject = subject

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subject, name)
        if not callable(found):
            return found
        return lambda *arguments, **named: self._call(found, *arguments, **named)

    def __enter__(self) -> Any:
        return self._call(self._subject.__aenter__)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        return self._call(self._subject.__aexit__, kind, error, trace)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        item = self._call(anext, self._subject, _END)
        if item is _END:
            raise StopIteration
        return item

    def _call(self, method: Any, *arguments: Any, **named: Any) -> Any:
        async def work() -> Any:
            found = method(*arguments, **named)
            return await found if inspect.isawaitable(found) else found

        found = self._broker.call(work())
        kind: type = type(found)
        return Blocking(self._broker, found) if _is_asynchronous(kind) else found


@cache
def _is_asynchronous(kind: type) -> bool:
    """Whether objects of this class have coroutines for methods."""
    return any(inspect.iscoroutinefunction(getattr(kind, name, None)) for name in dir(kind))
