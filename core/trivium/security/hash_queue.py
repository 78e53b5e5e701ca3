"""Passwords that wait to be hashed.

A hash takes a thread some 30 ms, so a few are computed at once and the others wait: in a queue for
each address, from which the next ones are taken in turn. Whoever shows many passwords waits behind
its own, and others do not wait behind them.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Final

from trivium.common.events import Events
from trivium.security.attempts import Attempt
from trivium.security.clock import Clock

#: Runs the first function in a thread, then calls the second with its result on the loop.
RunInPool = Callable[[Callable[[], bool], Callable[[bool], None]], None]
#: Called with whether the password was right; None: it was not looked at.
Hashed = Callable[[bool | None], None]

#: hashes under way: half of the cores are left to the broker
AT_ONCE: Final = max(2, (os.cpu_count() or 2) // 2)
#: what waits of one address: more than is computed in the time that a client has
MAX_PER_ADDRESS: Final = 256
MAX_WAITING: Final = 4096


class _Waiting:
    """A password that waits for its turn, and whose it is."""

    __slots__ = ("attempt", "since", "tell", "work")

    def __init__(
        self, attempt: Attempt, work: Callable[[], bool], hashed: Hashed, events: Events, now: int
    ) -> None:
        self.attempt = attempt
        self.work = work
        self.since = now
        self.tell = events.for_served(hashed)


class HashQueue:
    """The hashes of one broker. An attempt that has waited for ``patience_ms`` is given up."""

    def __init__(
        self, run_in_pool: RunInPool, clock: Clock, events: Events, patience_ms: int
    ) -> None:
        self._run_in_pool = run_in_pool
        self._clock = clock
        self._events = events
        #: how long an attempt waits
        self.patience_ms = patience_ms
        self._under_way = 0
        self._waiting = 0
        # By address, that one first whose turn it is. None of them is empty.
        self._queues: OrderedDict[str, deque[_Waiting]] = OrderedDict()

    def __len__(self) -> int:
        return self._waiting

    def run(self, attempt: Attempt, work: Callable[[], bool], hashed: Hashed) -> None:
        """Have ``work`` done for an attempt when it is its turn, then call ``hashed``.

        With None at once where too many wait, and later where it waited too long, its client is
        gone, or its place was needed for an address with fewer of them.
        """
        now = self._clock.now()
        if not self._make_room(attempt.source, now):
            hashed(None)
            return
        queue = self._queues.get(attempt.source)
        if queue is None:
            queue = self._queues[attempt.source] = deque()
        queue.append(_Waiting(attempt, work, hashed, self._events, now))
        self._waiting += 1
        self._go_on()

    def _make_room(self, address: str, now: int) -> bool:
        """Whether one more of an address may wait."""
        own = self._queues.get(address, ())
        if len(own) >= MAX_PER_ADDRESS:
            for waiting in [each for each in own if self._is_over(each, now)]:
                self._give_up(address, waiting)
            own = self._queues.get(address, ())
        if len(own) >= MAX_PER_ADDRESS:
            return False
        if self._waiting >= MAX_WAITING:
            longest = max(self._queues, key=lambda each: len(self._queues[each]))
            if len(self._queues[longest]) <= len(own) + 1:
                return False
            self._give_up(longest, self._queues[longest][-1])
        return True

    def _is_over(self, waiting: _Waiting, now: int) -> bool:
        return now - waiting.since > self.patience_ms or waiting.attempt.is_gone()

    def _give_up(self, address: str, waiting: _Waiting) -> None:
        queue = self._queues[address]
        queue.remove(waiting)
        if not queue:
            del self._queues[address]
        self._waiting -= 1
        self._clock.call_later(0, partial(waiting.tell, None))

    def _next(self) -> _Waiting:
        address, queue = self._queues.popitem(last=False)
        waiting = queue.popleft()
        self._waiting -= 1
        if queue:
            self._queues[address] = queue
        return waiting

    def _go_on(self) -> None:
        now = self._clock.now()
        while self._queues and self._under_way < AT_ONCE:
            waiting = self._next()
            if self._is_over(waiting, now):
                self._clock.call_later(0, partial(waiting.tell, None))
            else:
                self._begin(waiting)

    def _begin(self, waiting: _Waiting) -> None:
        def finished(result: bool) -> None:
            self._under_way -= 1
            try:
                waiting.tell(result)
            finally:
                self._go_on()

        self._under_way += 1
        self._run_in_pool(waiting.work, finished)
