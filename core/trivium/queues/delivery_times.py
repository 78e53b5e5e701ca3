"""How old the deliveries are that await an acknowledgement, without a time for each of them.

Delivery tags ascend, so what was delivered by a moment is told by the newest tag of that moment. A
few such marks are kept, made when somebody looks: an age is never said to be more than it is, and
less by the distance of two marks at most.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trivium.queues.settings import QueueSettings

#: Marks in the time in which a delivery must be acknowledged, so that it is taken to be in time
#: for longer by a 32nd of that at most: a minute of half an hour, as with RabbitMQ.
TIMEOUT_MARKS: Final = 32


def time_to_acknowledge(settings: QueueSettings, usual: float) -> int:
    """Milliseconds in which a delivery of a queue must be acknowledged; 0 for no limit.

    ``usual`` is the broker's time in seconds, for queues that say nothing.
    """
    own = settings.consumer_timeout
    return int(usual * 1000) if own < 0 else own


class DeliveryTimes:
    """The marks of those who number their deliveries together. Times are of a monotonic clock, in
    whatever unit they are asked for."""

    def __init__(self) -> None:
        # When it was made, the newest delivery tag by then.
        self._marks: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._marks)

    def age(self, now: float, oldest: int, newest: int, distance: float) -> float:
        """For how long the delivery ``oldest`` has been out at least.

        It is the oldest of those that await an acknowledgement, ``newest`` the last delivery of
        all. Marks are ``distance`` apart. There are as many as fit into the age of the
        oldest delivery.
        """
        marks = self._marks
        while marks and marks[0][1] < oldest:
            marks.popleft()
        if not marks or (marks[-1][1] < newest and now - marks[-1][0] >= distance):
            marks.append((now, newest))
        return now - marks[0][0]

    @property
    def marked(self) -> int:
        """After ``age``: the newest delivery that has been out for so long."""
        return self._marks[0][1]

    def clear(self) -> None:
        """Nothing awaits an acknowledgement within some time."""
        self._marks.clear()
