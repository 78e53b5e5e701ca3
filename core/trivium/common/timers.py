"""Times at which something must be looked at again: a heap for each clock of the broker.

Nothing here reads a clock, and all times of one heap are of the same. The broker asks when the next
one is due and calls ``run`` with the time, in milliseconds.
"""

from __future__ import annotations

from heapq import heappop, heappush

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Timed:
    """Something that wants to be called at a time. At most one call is outstanding."""

    #: the time of the outstanding call; 0 for none. Kept by ``Timers``.
    due_at: int = 0

    def due(self) -> None:
        """The time has come."""
        raise NotImplementedError


class Timers:
    """Calls objects at their times, in order, with a resolution of a millisecond."""

    def __init__(self) -> None:
        # The number makes entries of one time comparable. A moved or stopped call leaves its old
        # entry behind, which is recognised by its time.
        self._heap: list[tuple[int, int, Timed]] = []
        self._number = 0

    def call_at(self, at: int, item: Timed) -> None:
        """Call ``item`` at ``at``, or sooner if that is arranged."""
        if item.due_at and item.due_at <= at:
            return
        item.due_at = at
        self._number += 1
        heappush(self._heap, (at, self._number, item))

    def next_at(self) -> int:
        """When ``run`` has something to do; 0 for never."""
        heap = self._heap
        while heap and heap[0][2].due_at != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else 0

    def run(self, now: int) -> None:
        """Call everything that is due at ``now``, each once."""
        heap = self._heap
        if not heap or heap[0][0] > now:
            return
        due: list[Timed] = []
        while heap and heap[0][0] <= now:
            at, _, item = heappop(heap)
            if item.due_at == at:
                item.due_at = 0
                due.append(item)
        for item in due:
            item.due()
