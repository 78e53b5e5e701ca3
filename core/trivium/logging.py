"""Log records as messages: a handler for Python's ``logging``.

::

    logging.getLogger().addHandler(trivium.logging.Handler("trivium://localhost"))

The broker may also be one of this process. Nobody who logs waits for it: records wait in a queue
that is bounded, and what does not fit is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from trivium.common.installed import installed
from trivium.messages.message import Properties
from trivium.runtime.logs import JsonFormatter

if TYPE_CHECKING:
    from trivium.embedded import EmbeddedBroker
    from trivium.runtime.broker import Broker

#: Records and bytes that may wait unless said otherwise.
CAPACITY: Final = 10_000
CAPACITY_BYTES: Final = 16 << 20
#: Records that are published at a time.
BATCH: Final = 256
#: Seconds for which ``close`` waits for what is left.
CLOSE_SECONDS: Final = 5.0
#: Seconds after which a broker that cannot be reached is tried again, the first time and at most.
FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 10.0

#: Whether this code runs in order to publish records: what it logs is not published in turn.
_publishes: ContextVar[bool] = ContextVar("publishes", default=False)


class _Waiting:
    """A record that waits, and whether it was tried before."""

    __slots__ = ("key", "payload", "was_tried")

    def __init__(self, key: str, payload: bytes) -> None:
        self.key = key
        self.payload = payload
        self.was_tried = False


class Handler(logging.Handler):
    """Publishes records to a topic, or to a stream.

    ``where`` is a URL, or a broker of this process. ``topic`` is the routing key, in which
    ``{name}`` and ``{level}`` are the logger's and the record's (``error``), at ``exchange``. With
    ``stream`` they go to the stream of that name instead. Declare it first: while there is none,
    records are dropped and counted, and ``error`` says why. A record is a JSON object unless a
    formatter is set. What loggers of the broker and its clients say is left out: it would be about
    the records.

    Raises ValueError for a URL that nothing installed connects to, for what is neither a URL nor a
    broker, and for no capacity; RuntimeError for a broker that has not started.
    """

    def __init__(
        self,
        where: str | Broker | EmbeddedBroker,
        *,
        topic: str = "logs.{name}.{level}",
        exchange: str = "amq.topic",
        stream: str = "",
        level: int | str = logging.NOTSET,
        capacity: int = CAPACITY,
        capacity_bytes: int = CAPACITY_BYTES,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        if capacity < 1 or capacity_bytes < 1:
            raise ValueError("capacity and capacity_bytes are at least 1")
        super().__init__(level)
        self.setFormatter(JsonFormatter())
        #: records that did not fit, or that the broker has refused
        self.dropped = 0
        #: what went wrong last
        self.error: Exception | None = None
        self._topic = topic
        self._place = {"exchange": "", "mandatory": True} if stream else {"exchange": exchange}
        self._stream = stream
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._close_seconds = close_seconds
        # A signal may interrupt who holds it, and be logged.
        self._guard = threading.RLock()
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._is_closing = False
        self._idle = threading.Event()
        self._idle.set()
        self._wanted = asyncio.Event()
        self._connect, self._loop = _place_of(where)
        work = self._work()
        self._is_connected = False
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._done, self._cancel = _run_in_thread(self._loop, work)
        else:
            self._done = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._cancel = self._done.cancel

    # By those who log

    def filter(self, record: logging.LogRecord) -> Any:
        is_ours = record.name.partition(".")[0].partition("_")[0] == "trivium"
        return False if is_ours or _publishes.get() else super().filter(record)

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the lock of the handler, which who closes it holds for seconds."""
        found = self.filter(record)
        if found:
            self.emit(found if isinstance(found, logging.LogRecord) else record)
        return bool(found)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            key = self._stream or self._topic.format(
                name=record.name, level=record.levelname.lower()
            )
            waiting = _Waiting(key, self.format(record).encode(errors="backslashreplace"))
        except Exception:
            self.handleError(record)
            return
        size = len(waiting.payload)
        with self._guard:
            is_full = len(self._waiting) >= self._capacity
            if is_full or self._is_closing or self._bytes + size > self._capacity_bytes:
                self.dropped += 1
                return
            is_first = not self._waiting
            self._waiting.append(waiting)
            self._bytes += size
            self._idle.clear()
        if is_first:
            self._want()

    def _want(self) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._wanted.set)
        except RuntimeError:
            # The broker's loop is closed: nothing is published any more.
            pass

    def flush(self) -> None:
        """Wait until nothing is left to be published, for ``close_seconds`` at most.

        On the loop of a broker of this process it returns at once: there it would wait for itself.
        """
        if not self._is_on_loop():
            deadline = time.monotonic() + self._close_seconds
            while not self._idle.wait(0.05) and not self._done.done():
                if time.monotonic() >= deadline:
                    break

    def close(self) -> None:
        """Publish what is left, within ``close_seconds``; the rest is dropped and counted.

        On the loop of a broker of this process that goes on behind it.
        """
        with self._guard:
            was_closing, self._is_closing = self._is_closing, True
        if not was_closing:
            self._want()
            if not self._is_on_loop():
                self.flush()
                if not (self._idle.is_set() and self._is_connected):
                    self._cancel()
                wait([self._done], self._close_seconds)
                with self._guard:
                    self.dropped += len(self._waiting)
                    self._waiting.clear()
        super().close()

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    # On the loop

    async def _work(self) -> None:
        """Publish until it is closed and nothing is left; come back where the broker was gone."""
        _publishes.set(True)
        delay = FIRST_DELAY
        while True:
            try:
                async with self._connect() as client:
                    delay = FIRST_DELAY
                    self._is_connected = True
                    await self._publish_to(client)
                    return
            except Exception as error:
                self.error = error
            self._is_connected = False
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_DELAY)

    async def _publish_to(self, client: Any) -> None:
        while True:
            self._wanted.clear()
            batch = self._next()
            if batch:
                await self._publish(client, batch)
            elif self._is_closing:
                return
            else:
                await self._wanted.wait()

    def _next(self) -> list[_Waiting]:
        """Those that are published next; they count among those that wait until they are."""
        with self._guard:
            return [self._waiting[at] for at in range(min(len(self._waiting), BATCH))]

    async def _publish(self, client: Any, batch: list[_Waiting]) -> None:
        """Publish these. Raises what went wrong, for those to be tried again that may be."""
        properties = Properties(content_type="application/json") if self._is_json else None
        results = await asyncio.gather(
            *(
                client.publish(
                    each.payload, routing_key=each.key, properties=properties, **self._place
                )
                for each in batch
            ),
            return_exceptions=True,
        )
        failed = [each for each, result in zip(batch, results, strict=True) if result is not None]
        again = [each for each in failed if not each.was_tried]
        with self._guard:
            for each in batch:
                self._waiting.popleft()
                self._bytes -= len(each.payload)
            for each in reversed(again):
                each.was_tried = True
                self._waiting.appendleft(each)
                self._bytes += len(each.payload)
            self.dropped += len(failed) - len(again)
            if not self._waiting:
                self._idle.set()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    @property
    def _is_json(self) -> bool:
        return isinstance(self.formatter, JsonFormatter)


def _place_of(
    where: str | Broker | EmbeddedBroker,
) -> tuple[Callable[[], AbstractAsyncContextManager[Any]], asyncio.AbstractEventLoop | None]:
    """What connects, and the loop on which it does; None: any."""
    if isinstance(where, str):
        scheme = urlsplit(where).scheme.removesuffix("s")
        found = installed("trivium.remote")
        if scheme not in found.names:
            raise ValueError(f"nothing that is installed connects to {scheme}://")
        # A record that a lost connection leaves behind is sent by the next one.
        return partial(found[scheme].load(), where, reconnect=False), None
    broker: Broker = getattr(where, "broker", where)  # type: ignore[arg-type]
    if not hasattr(broker, "server"):
        raise ValueError("what is logged to is neither a URL nor a broker")
    if broker.server is None:
        raise RuntimeError("the broker has not started")
    return broker.client, broker.server.loop


def _run_in_thread(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]
) -> tuple[Future[None], Callable[[], object]]:
    """Run a coroutine on a loop in a thread of its own, which ends with it; what cancels it."""
    done: Future[None] = Future()
    task = loop.create_task(work)

    def run() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()
            done.set_result(None)

    def cancel() -> None:
        try:
            loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:
            # It has ended meanwhile.
            pass

    threading.Thread(target=run, name="trivium-logging", daemon=True).start()
    return done, cancel
