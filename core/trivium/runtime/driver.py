"""The broker's driver on an asyncio event loop: its turns, timers and threads.

Whatever the loop calls goes through ``LoopDriver``. It begins the turn, and what is raised stops
the broker, or ends the connection that was fed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from trivium.common.events import Events
from trivium.common.pieces import Piece
from trivium.observability.process import release_free_memory, resident_bytes, total_memory_bytes
from trivium.runtime.adapter import Connection
from trivium.runtime.broker import Driver
from trivium.runtime.slow_turns import END, SlowTurns
from trivium.runtime.sockets import Refused, SocketDriver

if TYPE_CHECKING:
    from trivium.runtime.fetching import Fetcher
    from trivium.runtime.server import Server
    from trivium.security.web import WebAnswer, WebRequest

logger = logging.getLogger(__name__)


class Job:
    """Some work in a thread. What comes of it is done in the name of who is served now.

    A class, since functions that know each other would keep each other in memory.
    """

    def __init__(
        self,
        driver: LoopDriver,
        work: Callable[[], bool],
        done: Callable[[bool], None],
        events: Events,
    ) -> None:
        self._driver = driver
        self._work = work
        self._done = done
        self._events = events
        self._serving = events.serving
        self._result = False

    def attempt(self) -> bool:
        """Do the work, in the thread."""
        try:
            return self._work()
        except BaseException as error:
            # It touched nothing of ours, and the answer is no.
            logger.error("internal error, taken for no: %r", error, exc_info=error)
            return False

    def ended(self, future: asyncio.Future[bool]) -> None:
        """It is over; the loop calls this."""
        self._result = not future.cancelled() and future.result()
        self._driver.call(self._tell)

    def _tell(self) -> None:
        self._events.serving = self._serving
        self._done(self._result)


class Deferred:
    """What is left for a turn to come that has time for it. It goes on in order, and in each turn
    some of it does in any case: others may fill every turn for long."""

    def __init__(self, driver: LoopDriver, loop: asyncio.AbstractEventLoop) -> None:
        self._driver = driver
        self._loop = loop
        self._works: deque[Callable[[], None]] = deque()

    def add(self, work: Callable[[], None]) -> None:
        """``call`` this in such a turn."""
        self._works.append(work)
        if len(self._works) == 1:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        works = self._works
        while True:
            # The first one stays until it is over, so that what it leaves waits for the next turn.
            self._driver.call(works[0])
            works.popleft()
            if not works:
                return
            if self._driver.is_turn_long():
                self._loop.call_soon(self._go_on)
                return


class LoopDriver(Driver):
    """Drives the broker of one server on the running event loop."""

    def __init__(self, server: Server) -> None:
        #: whether the broker has had its last turn: its storage belongs to another thread
        self.is_over = False
        self._server = server
        self._broker = server.broker
        self._loop = asyncio.get_running_loop()
        self._is_turn_requested = False
        self._has_begun = False
        self._began_at = 0.0
        # The loop alone would feed megabytes of one client in a turn, which are tens of thousands
        # of declarations.
        self._turn_seconds = server.broker.config.limits.turn_milliseconds / 1000
        # Told of what is done in turns; None where nobody wants to know.
        self._slow: SlowTurns | None = None
        self._closing: list[SocketDriver] = []
        #: what was left for turns to come
        self.deferred = Deferred(self, self._loop)
        self._waker: asyncio.TimerHandle | None = None
        self._wakes_at = 0
        self._is_releasing = False
        self._fetcher: Fetcher | None = None

    def begin_turn(self) -> None:
        """The loop calls something of ours: unless that was so before in this turn, read the
        clocks, and have the turn ended.
        """
        if not self._has_begun:
            self._has_begun = True
            self._began_at = self._broker.timings.began_at = time.monotonic()
            self._broker.begin_turn()
            if self._slow is not None:
                self._slow.begin(self._began_at)
            self.request_turn()

    def is_turn_long(self) -> bool:
        return time.monotonic() - self._began_at >= self._turn_seconds

    def call(self, work: Callable[[], None]) -> None:
        """A callback of the loop: do ``work``. What it raises stops the broker."""
        try:
            self.begin_turn()
            self._broker.events.serving = None
            work()
            if self._slow is not None:
                self._slow.did_work(work)
            self._broker.events.serving = None
        except BaseException as error:
            self._server.stop_for(error)

    def accept(self, take: Callable[[], asyncio.Protocol | SocketDriver]) -> asyncio.Protocol:
        """A new socket, for whoever is to ``take`` it. What it raises stops the broker."""
        taken = None
        try:
            taken = take()
        except BaseException as error:
            # Once the socket has its protocol: one whose listener is closed by then is lost.
            self._loop.call_soon(self._server.stop_for, error)
        return Refused() if taken is None else cast("asyncio.Protocol", taken)

    def feed(self, connection: Connection, data: bytes) -> None:
        """Bytes of a connection's client arrived."""
        changes = -1
        try:
            self.begin_turn()
            changes = self._broker.changes
            self._broker.events.serving = connection
            connection.feed(data)
            if self._slow is not None:
                self._slow.did(connection)
        except BaseException as error:
            self._feed_failed(connection, changes, error)
        # What others do in this turn, such as TLS and HTTP, is not done for it.
        self._broker.events.serving = None

    def go_on(self, connection: Connection) -> None:
        """Others may be fed just now, and what it raises is not their fault."""
        changes = self._broker.changes
        serving = self._broker.events.serving
        self._broker.events.serving = connection
        try:
            connection.take_waiting()
        except BaseException as error:
            self._feed_failed(connection, changes, error)
        self._broker.events.serving = serving

    def next_turn(self, connection: Connection) -> None:
        self._loop.call_soon(self.begin_next_turn, connection)

    def begin_next_turn(self, connection: Connection) -> None:
        """The turn has come that a connection has asked for."""
        changes = -1
        try:
            self.begin_turn()
            changes = self._broker.changes
            self._broker.events.serving = connection
            connection.next_turn()
            if self._slow is not None:
                self._slow.did(connection)
        except BaseException as error:
            self._feed_failed(connection, changes, error)
        self._broker.events.serving = None

    def _feed_failed(self, connection: Connection, changes: int, error: BaseException) -> None:
        """``feed`` has raised; before it the broker was at ``changes``."""
        if self._broker.changes != changes or not isinstance(error, Exception):
            self._server.stop_for(error)
            return
        address = connection.peer.address
        logger.error("%s: internal error, it is closed: %r", address, error, exc_info=error)
        try:
            connection.internal_error()
        except BaseException as again:
            self._server.stop_for(again)

    def call_soon(self, work: Callable[[], None]) -> None:
        self._loop.call_soon(self.call, work)

    def call_later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        """``call`` something of a socket, or of HTTP, after some time."""
        return self._loop.call_later(seconds, self.call, work)

    def post(self, work: Callable[[], None]) -> None:
        """From any thread: ``call`` something of the storage."""
        self._loop.call_soon_threadsafe(self._posted, work)

    def _posted(self, work: Callable[[], None]) -> None:
        # Whoever closes the storage does what is left.
        if not self.is_over:
            self.call(work)

    def request_turn(self) -> None:
        if not self._is_turn_requested:
            self._loop.call_soon(self.end_turn)
            self._is_turn_requested = True

    def end_turn(self) -> None:
        """End this turn now."""
        if self._server.failed.done() or self.is_over:
            return
        try:
            self.begin_turn()
            # From here on, what asks for a turn wants another one.
            self._is_turn_requested = False
            self._broker.events.serving = None
            self._broker.end_turn()
            now = time.monotonic()
            self._broker.timings.turns.observe(now - self._began_at)
            if self._slow is not None:
                self._slow.did_at(END, now)
                self._slow.end()
            self._has_begun = False
            if self._closing:
                drivers = self._closing
                self._closing = []
                for driver in drivers:
                    driver.finish()
        except BaseException as error:
            self._server.stop_for(error)

    def wake_at(self, at: int) -> None:
        if at == self._wakes_at:
            return
        self._wakes_at = at
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None
        if at:
            delay = max(at - time.monotonic_ns() // 1_000_000, 0) / 1000
            self._waker = self.call_later(delay, self._woken)

    def cancel(self) -> None:
        """Wake no more."""
        if self._waker is not None:
            self._waker.cancel()

    def _woken(self) -> None:
        self._waker = None
        self._wakes_at = 0

    def close_after_turn(self, driver: SocketDriver) -> None:
        """Close a socket when this turn's output is with it."""
        self._closing.append(driver)
        self.request_turn()

    def write(self, connection: Connection, output: list[Piece]) -> None:
        if output:
            driver = connection.transport
            assert isinstance(driver, SocketDriver)
            driver.write(output)
            if connection.is_writable and not connection.is_closed:
                connection.flushed()

    def run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        job = Job(self, work, done, self._broker.events)
        self._loop.run_in_executor(None, job.attempt).add_done_callback(job.ended)

    def fetch(self, request: WebRequest, done: Callable[[WebAnswer | None], None]) -> None:
        if self._fetcher is None:
            from trivium.runtime.fetching import Fetcher

            self._fetcher = Fetcher(self.call)
        serving = self._broker.events.serving

        def answered(answer: WebAnswer | None) -> None:
            self._broker.events.serving = serving
            done(answer)

        self._fetcher.fetch(request, answered)

    async def stop_fetching(self) -> None:
        """Give up what is asked over HTTP."""
        if self._fetcher is not None:
            await self._fetcher.stop()

    def memory_limit(self) -> int:
        return total_memory_bytes()

    def resident_memory(self) -> int:
        return resident_bytes()

    def release_memory(self) -> None:
        if not self._is_releasing:
            self._is_releasing = True
            self.run_blocking(_release, self._released)

    def _released(self, is_right: bool) -> None:
        self._is_releasing = False

    def free_disk(self) -> int:
        config = self._broker.config.storage
        if config.mode == "memory":
            return -1
        try:
            found = os.statvfs(config.data)
        except OSError:
            return -1
        return found.f_bavail * found.f_frsize

    def watch_turns(self) -> None:
        """Tell of slow turns from now on: the broker has started, which was one."""
        slow_ms = self._broker.config.log.slow_turn_ms
        if slow_ms:
            self._slow = SlowTurns(self._broker, slow_ms / 1000)
            self._broker.timeouts.called = self._broker.dates.called = self._slow.did


def _release() -> bool:
    release_free_memory()
    return True
