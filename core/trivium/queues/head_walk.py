"""Looking at the heads of many queues, which may be over their time or their limits.

After a start, or once a policy has changed, every queue with messages is looked at, and what comes
next in it may be on disk. So it is a few queues in each turn, and others once what these asked for
has come: whoever wants something else read meanwhile waits for little.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.host import Host

if TYPE_CHECKING:
    from trivium.queues.queue import Queue

#: Queues that are looked at in one turn, and of which something is being read.
MAX_PER_TURN: Final = 64

#: Milliseconds until the next look where all of them wait for the disk.
_PAUSE: Final = 1


class HeadWalk(Timed):
    """The walk over the queues of one virtual host that are to be looked at."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._queues: deque[Queue] = deque()
        self._loading: list[Queue] = []

    def add(self, queue: Queue) -> None:
        """Look at ``queue`` at the end of this turn, or of one that follows."""
        self._queues.append(queue)
        self._host.timeouts.call_at(self._host.elapsed_ms, self)

    def due(self) -> None:
        """Another turn."""
        loading = [queue for queue in self._loading if queue.ready.is_reading]
        left = MAX_PER_TURN - len(loading)
        has_looked = False
        while self._queues and left > 0:
            queue = self._queues.popleft()
            left -= 1
            if queue.is_deleted:
                continue
            has_looked = True
            queue.look()
            if queue.ready.is_reading:
                loading.append(queue)
        self._loading = loading
        if self._queues:
            pause = 0 if has_looked else _PAUSE
            self._host.timeouts.call_at(self._host.elapsed_ms + pause, self)
        else:
            self._loading = []
