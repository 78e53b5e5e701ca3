"""What is ready in a queue: its sub-queues, one for each priority, and who waits for the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from trivium.queues.sub_queues import QueueEntry, SubQueue
from trivium.storage.base import Log

if TYPE_CHECKING:
    from trivium.queues.queue import Queue


@mypyc_attr(allow_interpreted_subclasses=True)
class LoadWaiter:
    """Wants an entry of a queue whose next entries are on disk only. Adapters subclass it."""

    def loaded(self) -> None:
        """Entries have come, or the queue is deleted: ask for one again."""
        raise NotImplementedError


#: What a queue has that nobody waits for, as nearly all queues are.
_NO_WAITERS: Final[list[LoadWaiter]] = []


class ReadyEntries:
    """The entries of one queue that may be handed out. ``logs`` are by priority, 0 first."""

    def __init__(self, queue: Queue, logs: list[Log], priorities: int) -> None:
        storage = queue.vhost.broker.storage
        #: by priority, 0 first; a queue without priorities has just the one
        self.sub_queues: list[SubQueue] = [
            SubQueue(queue, logs[priority] if logs else None, storage, priority)
            for priority in range(priorities)
        ]
        self.lowest: SubQueue = self.sub_queues[0]
        #: bytes of payload
        self.bytes = sum([each.unread for each in self.sub_queues])
        queue.vhost.queued_bytes += self.bytes
        #: what is next has expired, and the turn is to give up no more
        self.is_late = False
        self._waiters = _NO_WAITERS

    def __len__(self) -> int:
        """How many there are, whether in memory or in the log."""
        if len(self.sub_queues) == 1:
            return len(self.lowest)
        return sum([len(sub_queue) for sub_queue in self.sub_queues])

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        if not self.lowest.is_empty:
            return False
        return len(self.sub_queues) == 1 or all(each.is_empty for each in self.sub_queues)

    def of_priority(self, priority: int) -> SubQueue:
        """The sub-queue of a message with this priority."""
        return self.sub_queues[min(priority, len(self.sub_queues) - 1)]

    def pop(self, queue: Queue) -> QueueEntry | None:
        """Take the next entry of ``queue``, whose entries these are; what has expired is given up.

        None when there is none, or none now: see ``is_loading``.
        """
        host = queue.vhost.broker
        given_up = queue.given_up
        for index in range(len(self.sub_queues) - 1, -1, -1):
            sub_queue = self.sub_queues[index]
            while True:
                if given_up.is_full:
                    # Those that nobody takes may stay for ever, the others have soon gone.
                    self.is_late = not queue.settings.keeps_dead_letters
                    return None
                entry = sub_queue.pop()
                if entry is None:
                    break
                is_expired = 0 < entry.expires <= host.now_ms
                if is_expired and not given_up.is_allowed(queue):
                    sub_queue.put_back(entry)
                    self.is_late = True
                    return None
                self.bytes -= entry.message.size
                queue.vhost.queued_bytes -= entry.message.size
                if not is_expired:
                    return entry
                queue.unsettled += 1
                given_up.add_expired(entry)
            if sub_queue.is_loading:
                # What comes must not be overtaken by lower priorities.
                return None
        return None

    @property
    def is_loading(self) -> bool:
        """Whether the next entry is on disk, or behind ones that have expired."""
        return self.is_late or self.is_reading

    @property
    def is_reading(self) -> bool:
        """Whether entries were asked for that have not come from the disk yet."""
        if len(self.sub_queues) == 1:
            return self.lowest.is_loading
        return any(each.is_loading for each in self.sub_queues)

    def await_load(self, waiter: LoadWaiter) -> None:
        """Call ``waiter``, once, when entries have come from the disk or the queue is deleted."""
        if self._waiters is _NO_WAITERS:
            self._waiters = []
        self._waiters.append(waiter)

    def call_waiters(self) -> None:
        """Entries have come from the disk, or the queue is deleted."""
        if self._waiters:
            waiters = self._waiters
            self._waiters = _NO_WAITERS
            for waiter in waiters:
                waiter.loaded()

    def flush(self) -> None:
        """Write the settlements of this turn."""
        for sub_queue in self.sub_queues:
            sub_queue.flush()

    def purge(self) -> None:
        """Remove them all."""
        for sub_queue in self.sub_queues:
            sub_queue.purge()
        self.bytes = 0

    def deleted(self) -> None:
        """The queue was deleted, with its logs."""
        for sub_queue in self.sub_queues:
            sub_queue.deleted()
        self.bytes = 0
