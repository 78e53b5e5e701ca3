"""Messages of queues that are lent to those who have no connection: for a time, then they come
back."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed

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
