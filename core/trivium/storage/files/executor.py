"""Where the storage's blocking work runs.

A storage has a *worker* for each kind of work that must not wait for the others: the journal, the
checkpoint, reads of segments. A worker does one piece of work at a time, in the order it was given.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from mypy_extensions import mypyc_attr

#: Seconds for which a worker may keep the interpreter lock.
_SLICE: Final = 0.001


class TimeSlice:
    """How long a worker has kept the interpreter lock, which compiled code does not give up by
    itself: in pieces of which each is short, it lets the loop go on between them.
    """

    def __init__(self) -> None:
        self._end = time.monotonic() + _SLICE

    def pause(self) -> None:
        """Give up the lock if it was kept for long, and only then: it may take as long to get it
        back.
        """
        if time.monotonic() >= self._end:
            time.sleep(0)
            self._end = time.monotonic() + _SLICE


@mypyc_attr(allow_interpreted_subclasses=True)
class Work:
    """Something to do away from the loop."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        #: what ``run`` raised: then it is not finished, and the storage has failed
        self.failure: BaseException | None = None

    def perform(self) -> None:
        """On a worker: do it, and have it finished on the loop's thread."""
        try:
            self.run()
        except BaseException as error:
            # Whatever it is: the thread would die of it, and everybody wait for ever.
            self.failure = error
        self._completions.add(self)

    def run(self) -> None:
        """Do it, on a worker. What it raises is final for the storage."""
        raise NotImplementedError

    def finish(self) -> None:
        """Draw the conclusions, on the loop's thread."""
        raise NotImplementedError


class Completions:
    """Brings work that is done back to the loop's thread, in order.

    ``post`` runs a call on the loop's thread, from any thread; ``fail`` is told there of an error
    after which the storage cannot go on.
    """

    def __init__(
        self,
        post: Callable[[Callable[[], None]], object],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._post = post
        self._fail = fail
        self._done: deque[Work] = deque()
        self._untold: BaseException | None = None

    def add(self, work: Work) -> None:
        """From any thread: ``work`` is done."""
        try:
            self._done.append(work)
            self._post(self.run)
        except BaseException as error:
            self._untold = error

    def run(self) -> None:
        """On the loop's thread: finish what is done.

        Also from the thread that closes the storage, when the loop does nothing with it any more.
        """
        while True:
            try:
                work = self._done.popleft()
            except IndexError:
                return
            if work.failure is not None:
                self._fail(work.failure)
                continue
            try:
                work.finish()
            except BaseException as error:
                self._fail(error)
                if not isinstance(error, Exception):
                    raise

    def check(self) -> None:
        """On the loop's thread, now and then: whether a worker could not say that work is done."""
        if self._untold is not None:
            self._fail(self._untold)


@mypyc_attr(allow_interpreted_subclasses=True)
class Worker:
    """Does work in order, up to one that fails."""

    def submit(self, work: Work) -> None:
        """Do ``work`` once everything given before is done."""
        raise NotImplementedError

    def submit_later(self, work: Work, seconds: float) -> None:
        """Do ``work`` between two others when ``seconds`` have passed.

        One such work may be outstanding; it is dropped when the worker stops first.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Finish what was submitted, then return. Nothing may be submitted afterwards."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Executor:
    """Makes workers and tells the time."""

    def worker(self, name: str) -> Worker:
        """A new worker."""
        raise NotImplementedError

    def now(self) -> float:
        """Seconds, monotonic."""
        raise NotImplementedError


class Workers:
    """The workers of a storage, one for each kind of work that must not wait for the others."""

    def __init__(self, executor: Executor) -> None:
        self.journal = executor.worker("trivium-journal")
        self.checkpoint = executor.worker("trivium-checkpoint")
        self.reader = executor.worker("trivium-reader")

    def stop(self) -> None:
        """Finish what was submitted, then return."""
        for worker in (self.journal, self.checkpoint, self.reader):
            worker.stop()


class ThreadWorker(Worker):
    """A thread of its own, started by the first work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._started: threading.Thread | None = None
        self._later: Work | None = None
        self._due = 0.0

    def submit(self, work: Work) -> None:
        if self._started is None:
            thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            thread.start()
            # Only now: there may be no more threads, and ``stop`` does not wait for such a one.
            self._started = thread
        self._queue.put(work)

    def submit_later(self, work: Work, seconds: float) -> None:
        """To be called from work on this worker only."""
        self._later = work
        self._due = time.monotonic() + seconds

    def stop(self) -> None:
        if self._started is not None:
            self._queue.put(None)
            self._started.join()

    def _main(self) -> None:
        while True:
            later = self._later
            try:
                if later is None:
                    work = self._queue.get()
                else:
                    work = self._queue.get(timeout=max(self._due - time.monotonic(), 0.0))
            except Empty:
                assert later is not None
                self._later = None
                work = later
            if work is None:
                return
            work.perform()
            if work.failure is not None:
                return


class ThreadExecutor(Executor):
    """Threads and the system's clock."""

    def worker(self, name: str) -> Worker:
        return ThreadWorker(name)

    def now(self) -> float:
        return time.monotonic()
