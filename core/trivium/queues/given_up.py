"""What a queue gives up: rejected, expired, too many, too often requeued.

It leaves the queue for the dead letter exchange, in the write batch of its settlement, so it is
never in both places or in none. Until then nobody else gets it, also after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from trivium.queues.dead_letters import (
    DEAD_LETTER_REASONS,
    DELIVERY_LIMIT,
    EXPIRED,
    REJECTED_REASON,
    DeadLetter,
)
from trivium.queues.requeues import forget_requeues, keep_requeues
from trivium.queues.sub_queues import QueueEntry
from trivium.queues.waiting import waiting_of

if TYPE_CHECKING:
    from trivium.queues.queue import Queue

#: Entries of one queue that are given up and not yet with its dead letter exchange. Then it hands
#: out nothing more until some are, so that what consumers reject does not pile up in memory.
MAX_LEAVING: Final = 1024

#: Why an entry was dropped, beside the reasons of dead letters: the queue was purged, nobody who
#: may have it can be given it, or another queue has it now.
PURGED: Final = "purged"
UNDELIVERABLE: Final = "undeliverable"
MOVED: Final = "moved"
DROP_REASONS: Final[tuple[str, ...]] = (*DEAD_LETTER_REASONS, PURGED, UNDELIVERABLE, MOVED)

#: Of a queue that has given up nothing, as nearly all. Nothing is ever put in.
_NONE: Final[dict[str, int]] = {}

#: What stands for ``until`` in the row of an entry that was given up.
_REASONS: Final = {-1: REJECTED_REASON, -2: DELIVERY_LIMIT}


@mypyc_attr(acyclic=True)
class GivenUp:
    """The entries that one queue has given up and that are on their way to its dead letter
    exchange.
    """

    def __init__(self) -> None:
        self.count = 0
        #: how many have expired since the start
        self.expired = 0
        #: by reason, how many were given up since the start: to a dead letter exchange, for good
        self.dead_lettered = _NONE
        self.dropped = _NONE

    @property
    def is_full(self) -> bool:
        """Whether the queue is to hand out nothing more until some have left."""
        return self.count >= MAX_LEAVING

    def is_allowed(self, queue: Queue) -> bool:
        """Whether ``queue``, whose entries these are, may give up one more in this turn; else it
        goes on in the next."""
        host = queue.vhost.broker
        if host.may_give_up > 0:
            host.may_give_up -= 1
            return True
        waiting_of(queue).look_again()
        return False

    def add(self, entry: QueueEntry, reason: str) -> None:
        """An unsettled entry is given up."""
        queue = entry.queue
        if queue.settings.dead_letter_exchange is None:
            self.drop(entry, reason)
            return
        self.dead_lettered = _counted(self.dead_lettered, reason, 1)
        # Nobody else may have it, though it is here until it is elsewhere.
        entry.is_settled = True
        self.count += 1
        if self.count == MAX_LEAVING:
            queue.set_plain()
        queue.vhost.dead_letters.add(DeadLetter(queue, entry, entry.message, reason))

    def drop(self, entry: QueueEntry, reason: str) -> None:
        """Nobody gets an unsettled entry, and no dead letter exchange either."""
        if not entry.is_settled:
            self.count_dropped(reason, 1)
            entry.queue.settle(entry)

    def count_dropped(self, reason: str, count: int) -> None:
        """So many are dropped."""
        self.dropped = _counted(self.dropped, reason, count)

    def add_expired(self, entry: QueueEntry) -> None:
        """An unsettled entry has expired."""
        self.expired += 1
        self.add(entry, EXPIRED)

    def keep(self, entry: QueueEntry, reason: str) -> None:
        """An entry does not leave in this turn. Make it durable that no consumer gets it; what
        expires or is too much does so again after a restart."""
        queue = entry.queue
        if entry.is_stored and not queue.is_deleted:
            for until, known in _REASONS.items():
                if known == reason:
                    keep_requeues(entry, until)

    def restore(self, entry: QueueEntry, until: int) -> None:
        """An entry was given up before a restart, as its row says, and is still here."""
        queue = entry.queue
        queue.unsettled += 1
        if queue.settings.dead_letter_exchange is None:
            forget_requeues(entry)
        self.add(entry, _REASONS.get(until, REJECTED_REASON))

    def left(self, entry: QueueEntry) -> None:
        """An entry has reached others, or nobody; it is done with."""
        queue = entry.queue
        self.count -= 1
        if self.count == MAX_LEAVING - 1:
            queue.set_plain()
            queue.dispatch_later()
        if entry.is_stored:
            forget_requeues(entry)
        entry.is_settled = False
        queue.settle(entry)


def _counted(counts: dict[str, int], reason: str, count: int) -> dict[str, int]:
    """``counts`` with so many more of a reason."""
    found = {} if counts is _NONE else counts
    found[reason] = found.get(reason, 0) + count
    return found
