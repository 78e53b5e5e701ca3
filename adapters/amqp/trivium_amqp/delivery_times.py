"""How old the deliveries of a channel are, without a time for each of them.

Delivery tags ascend, so what was delivered by a moment is told by the newest tag of that moment. A
few such marks are kept, made when somebody looks: an age is never said to be more than it is, and
less by the distance of two marks at most.
"""

from __future__ import annotations

from collections import deque


class DeliveryTimes:
    """The marks of one channel. Times are seconds on the monotonic clock."""

    def __init__(self) -> None:
        # When it was made, the newest delivery tag by then.
        self._marks: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._marks)

    def age(self, now: float, oldest: int, newest: int, distance: float) -> float:
        """Seconds for which the delivery ``oldest`` has been out at least.

        It is the oldest of those that await an acknowledgement, ``newest`` the last delivery of
        all. Marks are ``distance`` seconds apart. There are as many as fit into the age of the
        oldest delivery.
        """
        marks = self._marks
        while marks and marks[0][1] < oldest:
            marks.popleft()
        if not marks or (marks[-1][1] < newest and now - marks[-1][0] >= distance):
            marks.append((now, newest))
        return now - marks[0][0]

    def clear(self) -> None:
        """Nothing awaits an acknowledgement within some time."""
        self._marks.clear()
