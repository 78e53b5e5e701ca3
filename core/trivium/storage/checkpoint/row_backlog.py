"""Changed rows on their way to the catalog, some thousand at a time.

A million rows in one transaction would keep a checkpoint busy for so long that messages pile up in
memory behind it. So all rows that have changed up to some write batch, the *base*, are taken at
once, and are written in portions, each with a checkpoint of its own: messages go to segments
between them, and only the journal waits for the last portion. A row is looked at when its portion
is written, so it may be newer than the base, which replay copes with as with every other image.

Portions are in key order: each then changes few pages of the catalog, whereas rows in the order of
a hash table would change nearly all of them, each time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

from trivium.storage.contents.changes import Changes
from trivium.storage.contents.table import DiskTable
from trivium.storage.files.executor import Completions, TimeSlice, Work
from trivium.storage.segments.chunks import list_made

#: Keys that are sorted in one go, which takes about half a millisecond with the interpreter lock.
_RUN: Final = 2000
#: Keys that are looked at, for each run, to find out where it begins and ends.
_SAMPLES: Final = 8
#: Keys that are handled between two looks at the clock.
_STEP: Final = 500


class RowPortion:
    """Changed rows of one table, in key order."""

    def __init__(self, table: DiskTable, keys: list[bytes]) -> None:
        self.table = table
        self.keys = keys


class RowBacklog:
    """The rows that were taken and are not written yet. On the loop's thread.

    ``ready`` is called when they are in order.
    """

    def __init__(self, completions: Completions, ready: Callable[[], None]) -> None:
        self._completions = completions
        self._ready = ready
        #: once they are written, the catalog has every row as of this write batch or newer
        self.base_batch = -1
        #: whether they are in order: until then there are no portions
        self.is_sorted = True
        self._portions: deque[RowPortion] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether all that was taken was handed out."""
        return self.is_sorted and not self._portions

    def take(self, changes: Changes, base_batch: int) -> Work:
        """Take what has changed up to ``base_batch``; what is to be done away from the loop."""
        tables = [(table, keys) for table in changes.tables for keys in table.take_changed()]
        changes.tables = []
        changes.has_rows_under_way = True
        self.base_batch = base_batch
        self.is_sorted = False
        return SortWork(self, self._completions, tables)

    def put_in_order(self, portions: deque[RowPortion]) -> None:
        """They are in order."""
        self._portions = portions
        self.is_sorted = True
        self._ready()

    def next(self, most: int) -> RowPortion | None:
        """Hand out up to ``most`` rows; None when there are no more."""
        if not self._portions:
            return None
        portion = self._portions.popleft()
        if len(portion.keys) > most:
            self._portions.appendleft(RowPortion(portion.table, portion.keys[most:]))
            del portion.keys[most:]
        return portion

    def give_back(self, portions: list[RowPortion]) -> None:
        """These were handed out last, and were not written."""
        self._portions.extendleft(reversed(portions))


class SortWork(Work):
    """Brings the keys of changed rows in order."""

    def __init__(
        self,
        backlog: RowBacklog,
        completions: Completions,
        tables: list[tuple[DiskTable, set[bytes]]],
    ) -> None:
        super().__init__(completions)
        self._backlog = backlog
        self._tables = tables
        self._portions: deque[RowPortion] = deque()

    def run(self) -> None:
        """On the checkpoint's worker: sort."""
        for table, keys in self._tables:
            for run in sorted_runs(keys, _RUN):
                if run:
                    self._portions.append(RowPortion(table, run))

    def finish(self) -> None:
        """On the loop's thread: they can be handed out."""
        self._backlog.put_in_order(self._portions)


def sorted_runs(keys: set[bytes], size: int) -> list[list[bytes]]:
    """``keys``, which it empties, in lists of about ``size`` that are in order, each behind the
    one before.

    To sort all at once would keep the interpreter lock for a second with a million keys, and so
    would to free them.
    """
    slice_ = TimeSlice()
    bounds = _bounds(keys, size)
    runs: list[list[bytes]] = [[] for _ in range(len(bounds) + 1)]
    # Empty lists are walked in no time, and not again once they are full.
    list_made(len(keys))
    while keys:
        for _ in range(min(_STEP, len(keys))):
            key = keys.pop()
            runs[bisect_right(bounds, key)].append(key)
        slice_.pause()
    for run in runs:
        run.sort()
        slice_.pause()
    return runs


def _bounds(keys: set[bytes], size: int) -> list[bytes]:
    """Keys at which one run ends and the next begins, if they lie as those do that come first."""
    count = len(keys) // size
    if not count:
        return []
    samples: list[bytes] = []
    for key in keys:
        if len(samples) == count * _SAMPLES:
            break
        samples.append(key)
    samples.sort()
    return samples[_SAMPLES // 2 :: _SAMPLES]
