"""Entries that no consumer may see before they are durable (exactly once)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.queues.sub_queues import QueueEntry
from trivium.storage.base import DurabilityWaiter, Storage

if TYPE_CHECKING:
    from trivium.queues.queue import Queue


def add_pending(entry: QueueEntry) -> None:
    """Keep a new entry from consumers until the current write batch is durable."""
    queue = entry.queue
    pending = queue.pending
    if pending is None:
        pending = queue.pending = PendingEntries(queue, queue.vhost.broker.storage)
    pending.add(entry)


class PendingEntries(DurabilityWaiter):
    """The entries of one queue that wait for the write batch that makes their publisher's
    acknowledgement certain: after a crash it would send them again, and they would be duplicates.
    """

    def __init__(self, queue: Queue, storage: Storage) -> None:
        #: None when it was deleted
        self.queue: Queue | None = queue
        #: newest write batch that any of them waits for
        self.write_batch = 0
        self._storage = storage

    def add(self, entry: QueueEntry) -> None:
        """Keep a new entry from consumers until the current write batch is durable."""
        write_batch = self._storage.write_batch
        entry.write_batch = write_batch
        if self.write_batch != write_batch:
            self.write_batch = write_batch
            self._storage.wait(self)

    def write_batch_durable(self, write_batch: int) -> None:
        queue = self.queue
        if queue is not None:
            queue.is_unchecked = True
            queue.dispatch()
