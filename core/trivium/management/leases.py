"""Messages of queues that are lent to those who have no connection: for a time, then they come
back."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.errors import AccessRefused
from trivium.management.publishing import MAX_TAKEN_BYTES, Taking
from trivium.queues.consumers import Consumer

if TYPE_CHECKING:
    from trivium.queues.queue import Queue, QueueEntry
    from trivium.runtime.broker import Broker

#: Messages that one user has at a time, and bytes of their payloads; what is being waited for is
#: one of them.
MAX_LEASES: Final = 1000
MAX_LEASED_BYTES: Final = 64 * 1024 * 1024

#: What may become of a message.
ACCEPT: Final = "accept"
REJECT: Final = "reject"
REQUEUE: Final = "requeue"


class Wake(Timed):
    """Does some work at a time."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def due(self) -> None:
        self._work()


class Lease(Timed):
    """One message in somebody's hands."""

    def __init__(self, leases: Leases, user: str, entry: QueueEntry) -> None:
        #: by which it is named
        self.token = secrets.token_hex(12)
        self.user = user
        self.entry = entry
        self.size: int = entry.message.size
        #: called at its end
        self.ended: Callable[[], None] | None = None
        self._leases = leases

    def due(self) -> None:
        """The time is over: it comes back."""
        self._leases.end(self, REQUEUE)


class Leases:
    """Those of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leases: dict[str, Lease] = {}
        # By user: messages and bytes.
        self._counts: dict[str, list[int]] = {}

    def room(self, user: str) -> int:
        """Messages that a user may yet have."""
        count, size = self._counts.get(user, (0, 0))
        return 0 if size >= MAX_LEASED_BYTES else MAX_LEASES - count

    def reserve(self, user: str, count: int) -> None:
        """So many are being waited for, or, of a negative number, not any more."""
        counts = self._counts.setdefault(user, [0, 0])
        counts[0] += count
        if not counts[0]:
            del self._counts[user]

    def lend(self, user: str, entry: QueueEntry, lease_ms: int) -> Lease:
        """Lend a message that was taken, for so long."""
        lease = Lease(self, user, entry)
        self._leases[lease.token] = lease
        self.reserve(user, 1)
        self._counts[user][1] += lease.size
        self._broker.timeouts.call_at(self._broker.elapsed_ms + lease_ms, lease)
        return lease

    def find(self, user: str, token: str, queue: Queue) -> Lease | None:
        """A user's lease of a queue; None for what has come back meanwhile."""
        found = self._leases.get(token)
        is_own = found is not None and found.user == user and found.entry.queue is queue
        return found if is_own else None

    def forget(self, user: str) -> None:
        """The user is deleted, or is another from now on: what it has comes back."""
        if user in self._counts:
            for lease in [each for each in self._leases.values() if each.user == user]:
                self.end(lease, REQUEUE)

    def end(self, lease: Lease, outcome: str) -> None:
        """A message is done with, or comes back."""
        del self._leases[lease.token]
        self._counts[lease.user][1] -= lease.size
        self.reserve(lease.user, -1)
        self._broker.timeouts.stop(lease)
        entry = lease.entry
        queue = entry.queue
        if outcome == ACCEPT:
            queue.settle(entry)
        elif outcome == REJECT:
            queue.reject(entry)
        else:
            queue.requeue(entry)
            queue.dispatch_later()
        if lease.ended is not None:
            lease.ended()


class Poll(Consumer):
    """Takes messages of a queue that are there, or waits for the next ones; then calls ``done``.

    While it waits it is a consumer like others. It waits no longer where ``wait_ms`` are over.
    """

    def __init__(
        self,
        broker: Broker,
        queue: Queue,
        count: int,
        wait_ms: int,
        done: Callable[[list[QueueEntry]], None],
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._left = count
        self._bytes = 0
        self._until = broker.elapsed_ms + wait_ms
        self._done = done
        self._taken: list[QueueEntry] = []
        self._is_waiting = False
        # None once it is over: they would keep each other in memory.
        self._wake: Wake | None = Wake(self._end)

    def begin(self) -> None:
        """Take what is there."""
        Taking(self._queue, self._left, self._begun).go_on()

    def stop(self) -> None:
        """It waits no longer: as soon as it has what it takes now."""
        self._until = 0
        if self._is_waiting:
            self._end()

    def _begun(self, taken: list[QueueEntry]) -> None:
        self._taken = taken
        self._is_waiting = True
        queue = self._queue
        # One that is deleted with its last consumer has no need of this one.
        is_late = self._broker.elapsed_ms >= self._until
        if taken or is_late or queue.is_deleted or queue.auto_delete:
            self._end()
            return
        self._wake_at(self._until)
        try:
            queue.add_consumer(self)
        except AccessRefused:
            # Somebody else has it alone: there is nothing to wait for.
            self._end()

    def takes_delivery(self) -> bool:
        return self._wake is not None and self._left > 0 and self._bytes < MAX_TAKEN_BYTES

    def deliver(self, entry: QueueEntry) -> None:
        if not self._taken:
            # What comes in the same turn is taken as well.
            self._wake_at(self._broker.elapsed_ms)
        self._taken.append(entry)
        self._left -= 1
        self._bytes += entry.message.size

    def cancelled(self) -> None:
        self._end()

    def _wake_at(self, time_ms: int) -> None:
        if self._wake is not None:
            self._broker.timeouts.call_at(time_ms, self._wake)

    def _end(self) -> None:
        if self._wake is None:
            return
        self._broker.timeouts.stop(self._wake)
        self._wake = None
        if not self._queue.is_deleted:
            self._queue.remove_consumer(self)
        taken = self._taken
        self._taken = []
        self._done(taken)
