"""Times at which something must be looked at again: a heap for each clock of the broker.

Nothing here reads a clock, and all times of one heap are of the same. The broker asks when the next
one is due and calls ``run`` with the time, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from mypy_extensions import mypyc_attr

#: Times of moved and stopped calls that are kept whatever their share of all is: clearing so few
#: away is not worth its own steps.
FEW: Final = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class Timed:
    """Something that wants to be called at a time. At most one call is outstanding."""

    #: the time of the outstanding call, 0 for none, and its number; both kept by ``Timers``
    due_at: int = 0
    due_number: int = 0

    def due(self) -> None:
        """The time has come."""
        raise NotImplementedError


class Wake(Timed):
    """Does some work at a time."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def due(self) -> None:
        self._work()


class Timers:
    """Calls objects at their times, in order, with a resolution of a millisecond."""

    def __init__(self) -> None:
        # Times and numbers of calls, and by its number what is called. A moved or stopped call
        # leaves its time and number behind, but nothing in memory that it belongs to.
        self._heap: list[tuple[int, int]] = []
        self._items: dict[int, Timed] = {}
        self._number = 0
        #: told of each that was called; None where nobody wants to know
        self.called: Callable[[Timed], None] | None = None

    def __len__(self) -> int:
        """Times that are kept, those of moved and stopped calls among them."""
        return len(self._heap)

    def call_at(self, at: int, item: Timed) -> None:
        """Call ``item`` at ``at``, or sooner if that is arranged."""
        if item.due_at:
            if item.due_at <= at:
                return
            del self._items[item.due_number]
        self._number += 1
        item.due_at = at
        item.due_number = self._number
        self._items[self._number] = item
        heappush(self._heap, (at, self._number))
        self._clear_away()

    def stop(self, item: Timed) -> None:
        """Do not call ``item``."""
        if item.due_at:
            item.due_at = 0
            del self._items[item.due_number]
            self._clear_away()

    def _clear_away(self) -> None:
        """Forget the times of moved and stopped calls once they are more than the others."""
        if len(self._heap) > 2 * len(self._items) + FEW:
            self._heap = [(item.due_at, number) for number, item in self._items.items()]
            heapify(self._heap)

    def next_at(self) -> int:
        """When ``run`` has something to do; 0 for never."""
        heap = self._heap
        while heap and heap[0][1] not in self._items:
            heappop(heap)
        return heap[0][0] if heap else 0

    def run(self, now: int) -> None:
        """Call everything that is due at ``now``, each once."""
        heap = self._heap
        if not heap or heap[0][0] > now:
            return
        due: list[Timed] = []
        while heap and heap[0][0] <= now:
            _, number = heappop(heap)
            item = self._items.pop(number, None)
            if item is not None:
                item.due_at = 0
                due.append(item)
        called = self.called
        for item in due:
            item.due()
            if called is not None:
                called(item)
