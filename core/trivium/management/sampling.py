"""Rates and histories: what is counted, looked at each five seconds.

It begins with the first request for what has rates, and ends some minutes after the last. Of
everything that moves the two newest figures are kept, for its rate; of what somebody asks the
history of, and of the broker as a whole, those of ten minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.management.figures import Figures
from trivium.management.listing import Slices

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker

INTERVAL_MS: Final = 5000
#: Figures of one history: ten minutes.
MAX_SAMPLES: Final = 121
#: Things whose history is kept; those that were asked for last.
MAX_HISTORIES: Final = 256
#: Without a request for so long nobody is interested any more.
IDLE_MS: Final = 600_000

#: When the figures were looked at, in milliseconds since the epoch and by the clock that is never
#: set, and what they were.
Sample = tuple[int, int, Figures]
#: All that has figures.
Source = Callable[[], Iterator[tuple[object, Figures]]]


class Series:
    """The figures of one thing, oldest first."""

    def __init__(self, most: int = 2) -> None:
        self.samples: deque[Sample] = deque(maxlen=most)
        #: when something was seen to have moved, or was looked at first, in milliseconds since the
        #: epoch
        self.moved_ms = 0

    def add(self, sample: Sample) -> None:
        """What was seen by another look."""
        if not self.samples or self.samples[-1][2] != sample[2]:
            self.moved_ms = sample[0]
        self.samples.append(sample)

    @property
    def idle_since(self) -> int:
        """Since when nothing has moved, as far as was looked; 0 where something does."""
        return self.moved_ms if self.samples and self.samples[-1][0] != self.moved_ms else 0

    def rate(self, name: str) -> float:
        """By how much a figure has changed per second between the two newest looks at it."""
        if len(self.samples) < 2:
            return 0.0
        _, before_ms, before = self.samples[-2]
        _, now_ms, now = self.samples[-1]
        change = now.get(name, 0) - before.get(name, 0)
        return round(change * 1000 / (now_ms - before_ms), 3) if now_ms > before_ms else 0.0


class Sampler(Timed):
    """Looks at the figures of one broker, a part in each turn."""

    def __init__(self, broker: Broker, source: Source) -> None:
        self._broker = broker
        self._source = source
        self._series: dict[object, Series] = {}
        # What the walk under way has reached.
        self._reached: dict[object, Series] = {}
        self._walk: Iterator[tuple[object, Figures]] | None = None
        self._asked_at = 0
        self._began_at = 0
        self._is_on = False

    def asked(self) -> None:
        """Somebody wants rates."""
        broker = self._broker
        self._asked_at = broker.elapsed_ms
        if not self._is_on:
            self._is_on = True
            broker.timeouts.call_at(broker.elapsed_ms, self)
            broker.request_turn()

    def of(self, thing: object, keeps_history: bool = False) -> Series | None:
        """The figures of something; None while it was never looked at."""
        found = self._series.get(thing)
        if found is not None and keeps_history and found.samples.maxlen != MAX_SAMPLES:
            histories = [each for each in self._series.values() if each.samples.maxlen != 2]
            if len(histories) < MAX_HISTORIES:
                found.samples = deque(found.samples, MAX_SAMPLES)
        return found

    def due(self) -> None:
        broker = self._broker
        now = broker.elapsed_ms
        if self._walk is None:
            if now - self._asked_at > IDLE_MS:
                self._is_on = False
                self._series = {}
                return
            self._began_at = now
            self._walk = self._source()
        if self._goes_on(self._walk):
            broker.timeouts.call_at(now + 1, self)
            return
        # What is not there any more is forgotten.
        self._series = self._reached
        self._reached = {}
        self._walk = None
        broker.timeouts.call_at(max(self._began_at + INTERVAL_MS, now + 1), self)

    def _goes_on(self, walk: Iterator[tuple[object, Figures]]) -> bool:
        """Look at what comes next; whether there is more."""
        broker = self._broker
        slices = Slices()
        for thing, figures in walk:
            if thing is None:
                if slices.is_over:
                    return True
                continue
            series = self._series.get(thing)
            if series is None:
                series = Series(MAX_SAMPLES if thing is broker else 2)
            series.add((broker.now_ms, broker.elapsed_ms, figures))
            self._reached[thing] = series
            if slices.is_over:
                return True
        return False


def history(
    series: Series | None, name: str, age_seconds: int, step_seconds: int
) -> Mapping[str, object]:
    """The samples of a figure over so many seconds, one for each step, the newest first, with its
    average and its rate over that time."""
    samples = [] if series is None else list(series.samples)
    if not samples:
        return {"samples": [], "avg": 0.0, "avg_rate": 0.0}
    _, newest_at, newest = samples[-1]
    found: list[dict[str, object]] = []
    wanted = newest_at
    first: Sample = samples[-1]
    values: list[int] = []
    for sample in reversed(samples):
        at_ms, at, figures = sample
        if newest_at - at > age_seconds * 1000:
            break
        if at <= wanted:
            value = figures.get(name, 0)
            found.append({"sample": value, "timestamp": at_ms})
            values.append(value)
            wanted = at - step_seconds * 1000
            first = sample
    seconds = (newest_at - first[1]) / 1000
    change = newest.get(name, 0) - first[2].get(name, 0)
    return {
        "samples": found,
        "avg": sum(values) / len(values),
        "avg_rate": change / seconds if seconds else 0.0,
    }
