"""What a queue does when a time has come: delayed messages, retries, and expiry.

Entries that wait for a time are not ready: delayed messages before a date, and requeued ones before
their next try, after some time. Messages expire at a date, a queue that nobody uses after some
time.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from trivium.common.timers import Timed
from trivium.host import Host

if TYPE_CHECKING:
    from trivium.queues.queue import Queue
    from trivium.queues.sub_queues import QueueEntry, SubQueue


class QueueWaker(Timed):
    """Wakes a queue when a time has come."""

    def __init__(self, queue: Queue) -> None:
        #: None when it was deleted
        self.queue: Queue | None = queue

    def due(self) -> None:
        if self.queue is not None:
            waiting_of(self.queue).due(self.queue)


class WaitingEntries:
    """The entries of one queue that wait for a time; and when the queue is looked at again."""

    def __init__(self, queue: Queue, host: Host) -> None:
        #: called after some time, and at a date
        self.timeout = QueueWaker(queue)
        self.date = QueueWaker(queue)
        self._host = host
        self._delayed: list[tuple[int, int, QueueEntry]] = []
        self._postponed: list[tuple[int, int, QueueEntry]] = []
        # Makes entries of one time comparable.
        self._number = 0

    def __len__(self) -> int:
        return len(self._delayed) + len(self._postponed)

    def look_again(self) -> None:
        """Wake the queue at the end of this turn."""
        host = self._host
        host.timeouts.call_at(host.elapsed_ms, self.timeout)

    def look_at(self, date: int) -> None:
        """Wake the queue at this date (milliseconds since the epoch)."""
        self._host.dates.call_at(date, self.date)

    def due(self, queue: Queue) -> None:
        """A time that something of ``queue``, whose entries these are, waits for may have come."""
        expires = queue.settings.expires
        if expires >= 0 and not len(queue.consumers) and self._has_expired(queue, expires):
            queue.vhost.delete_queue(queue)
            return
        ready = queue.ready
        ready.is_late = False
        self._put_back(queue)
        queue.look()
        if not ready.is_loading:
            ready.call_waiters()

    # Entries

    def delay(self, entry: QueueEntry) -> bool:
        """Whether an entry's message is for later; then it is kept until its time has come."""
        until = entry.message.deliver_at
        if until <= self._host.now_ms:
            return False
        self._number += 1
        heappush(self._delayed, (until, self._number, entry))
        self.look_at(until)
        return True

    def postpone(self, entry: QueueEntry, delay: int) -> None:
        """An entry is not ready before ``delay`` milliseconds have passed."""
        host = self._host
        until = host.elapsed_ms + delay
        self._number += 1
        heappush(self._postponed, (until, self._number, entry))
        host.timeouts.call_at(until, self.timeout)

    def postpone_until(self, entry: QueueEntry, until: int) -> None:
        """Keep an entry from before a restart, for whose next try ``until`` was noted (milliseconds
        since the epoch). The clock may have been set since: it never waits for longer than a try.
        """
        longest = entry.queue.settings.retry_delay_max
        self.postpone(entry, min(until - self._host.now_ms, longest))

    def _put_back(self, queue: Queue) -> None:
        """Those whose time has come are ready."""
        host = self._host
        _put_back(queue, self._delayed, host.now_ms)
        if self._delayed:
            self.look_at(self._delayed[0][0])
        _put_back(queue, self._postponed, host.elapsed_ms)
        if self._postponed:
            host.timeouts.call_at(self._postponed[0][0], self.timeout)

    def take(self) -> list[QueueEntry]:
        """All entries that wait; none of them does any more."""
        entries = [entry for _, _, entry in [*self._delayed, *self._postponed]]
        self._delayed.clear()
        self._postponed.clear()
        return entries

    # Expiry

    def expire_at(self, at: int) -> None:
        """Wake the queue when it may have expired."""
        self._host.timeouts.call_at(at, self.timeout)

    def _has_expired(self, queue: Queue, expires: int) -> bool:
        """Whether the queue was not used for so many milliseconds; else it is looked at again."""
        host = self._host
        expires_at = queue.used_at + expires
        if expires_at <= host.elapsed_ms:
            return True
        host.timeouts.call_at(expires_at, self.timeout)
        return False

    def deleted(self) -> None:
        """The queue is deleted: nothing is called any more, nor keeps it in memory."""
        self.take()
        self._host.timeouts.stop(self.timeout)
        self._host.dates.stop(self.date)
        self.timeout.queue = None
        self.date.queue = None


def waiting_of(queue: Queue) -> WaitingEntries:
    """The entries of ``queue`` that wait for a time, to add to them or to have it woken."""
    found = queue.waiting
    if found is None:
        found = queue.waiting = WaitingEntries(queue, queue.vhost.broker)
    return found


def count_waiting(queue: Queue) -> int:
    """How many entries of ``queue`` wait for a time."""
    return 0 if queue.waiting is None else len(queue.waiting)


def expire_heads(queue: Queue, sub_queue: SubQueue) -> None:
    """Give up the entries at the head whose time is over; look again when the next one's is."""
    given_up = queue.given_up
    now = queue.vhost.broker.now_ms
    while not given_up.is_full and not sub_queue.has_lasting_head:
        entry = sub_queue.peek()
        if entry is None or entry.expires == 0:
            return
        if entry.expires > now:
            waiting_of(queue).look_at(entry.expires)
            return
        if not given_up.is_allowed(queue):
            return
        sub_queue.pop()
        queue.ready.bytes -= entry.message.size
        queue.vhost.queued_bytes -= entry.message.size
        queue.unsettled += 1
        given_up.add_expired(entry)


def _put_back(queue: Queue, waiting: list[tuple[int, int, QueueEntry]], until: int) -> None:
    """Those that wait no longer than ``until`` are ready."""
    while waiting and waiting[0][0] <= until and queue.given_up.is_allowed(queue):
        entry = heappop(waiting)[2]
        queue.ready.bytes += entry.message.size
        queue.vhost.queued_bytes += entry.message.size
        entry.sub_queue.put_back(entry)
