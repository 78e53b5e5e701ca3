"""Attempts that are looked at one after another, so that many at once gain nothing.

Each name has a line of its own. So many of its attempts are under way at once; the others wait
until one of those has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from trivium.common.events import Events
from trivium.security.attempts import Attempt
from trivium.security.clock import Clock
from trivium.security.failures import BY_ADDRESS, Failures, both

#: attempts that wait in one line, and in all lines of a kind
MAX_IN_LINE: Final = 256
MAX_IN_LINES: Final = 4096

#: Called with whether an attempt may begin; else it is refused, and has not begun.
Begin = Callable[[bool], None]


class _Waiting:
    __slots__ = ("attempt", "begin", "since")

    def __init__(self, attempt: Attempt, begin: Begin, events: Events, now: int) -> None:
        self.attempt = attempt
        self.since = now
        self.begin = events.for_served(begin)


class _Line:
    __slots__ = ("under_way", "waiting")

    def __init__(self) -> None:
        self.under_way = 0
        self.waiting: deque[_Waiting] = deque()


class Lines:
    """The lines of one kind of name; ``at_once`` says how many of a name may be under way.

    Who has waited for ``patience_ms``, or left, does not begin.
    """

    def __init__(
        self, at_once: Callable[[str], int], clock: Clock, events: Events, patience_ms: int
    ) -> None:
        self._at_once = at_once
        self._clock = clock
        self._events = events
        self._patience_ms = patience_ms
        self._waiting = 0
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        """Names that have a line."""
        return len(self._lines)

    def enter(self, name: str, attempt: Attempt, begin: Begin) -> None:
        """Call ``begin``: at once if it is the attempt's turn, or too many wait, else later."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        if line.under_way < self._at_once(name) and not line.waiting:
            line.under_way += 1
            begin(True)
            return
        now = self._clock.now()
        if len(line.waiting) >= MAX_IN_LINE:
            self._drop(line, now)
        if len(line.waiting) >= MAX_IN_LINE or self._waiting >= MAX_IN_LINES:
            begin(False)
            return
        line.waiting.append(_Waiting(attempt, begin, self._events, now))
        self._waiting += 1

    def leave(self, name: str, lets_all: bool = False) -> None:
        """An attempt that had begun has ended. The next one begins, or all that wait."""
        line = self._lines[name]
        line.under_way -= 1
        now = self._clock.now()
        begin: list[tuple[_Waiting, bool]] = []
        while line.waiting and (lets_all or line.under_way < self._at_once(name)):
            waiting = line.waiting.popleft()
            self._waiting -= 1
            may_begin = not self._is_over(waiting, now)
            line.under_way += may_begin
            begin.append((waiting, may_begin))
        if not line.under_way:
            del self._lines[name]
        for waiting, may_begin in begin:
            self._clock.call_later(0, partial(waiting.begin, may_begin))

    def _is_over(self, waiting: _Waiting, now: int) -> bool:
        return now - waiting.since > self._patience_ms or waiting.attempt.is_gone()

    def _drop(self, line: _Line, now: int) -> None:
        """Let those go that are waiting in vain."""
        over = [each for each in line.waiting if self._is_over(each, now)]
        for waiting in over:
            line.waiting.remove(waiting)
            self._clock.call_later(0, partial(waiting.begin, False))
        self._waiting -= len(over)


class Turns:
    """When attempts are looked at: in their lines, and after the waits of those who have failed.

    Of an address and user as many are looked at together as may fail freely, then one after
    another, each after its wait. There is no line by user alone: others could fill it from
    elsewhere.
    """

    def __init__(self, failures: Failures, clock: Clock, events: Events, patience_ms: int) -> None:
        self._failures = failures
        self._clock = clock
        self._by_both = Lines(
            lambda name: failures.at_once(name, clock.now()), clock, events, patience_ms
        )
        self._by_address = Lines(lambda _: BY_ADDRESS[0], clock, events, patience_ms)

    def take(self, attempt: Attempt, begin: Begin) -> None:
        """Call ``begin`` when the attempt's turn has come; once it has begun, ``end`` is called."""

        def enter_second(may_begin: bool) -> None:
            if not may_begin:
                begin(False)
                return
            wait = self._failures.wait_of_both(attempt, self._clock.now())
            self._after(
                wait,
                lambda: self._by_address.enter(
                    attempt.source, attempt, lambda may_begin: wait_again(may_begin, wait)
                ),
            )

        def wait_again(may_begin: bool, waited: int) -> None:
            if not may_begin:
                self._by_both.leave(both(attempt))
                begin(False)
                return
            wait = self._failures.wait_of_each(attempt, self._clock.now())
            self._after(wait - waited, look)

        def look() -> None:
            is_gone = attempt.is_gone()
            if is_gone:
                self.end(attempt, is_right=False)
            begin(not is_gone)

        self._by_both.enter(both(attempt), attempt, enter_second)

    def end(self, attempt: Attempt, is_right: bool) -> None:
        """An attempt has been decided. If it was right, those of its address and user begin."""
        self._by_address.leave(attempt.source)
        self._by_both.leave(both(attempt), lets_all=is_right)

    def _after(self, milliseconds: int, work: Callable[[], None]) -> None:
        if milliseconds > 0:
            self._clock.call_later(milliseconds, work)
        else:
            work()
