"""Durable changes of the topology that may not be on disk yet, by name.

Whoever is told that something is there, or is not, must not find it otherwise after a crash. The
one who made the change waits for its write batch; this is for the others who ask meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from trivium.storage.base import Storage

#: Changes that are let go of as another is added: more than one, so that they become fewer.
FORGET_AT_ONCE: Final = 2


class PendingChanges:
    """Of one virtual host. Kinds are those of ``trivium.idempotence.deduplication``; streams are
    queues here, since they share their names.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._write_batches: dict[tuple[str, str], int] = {}
        # What was added and when, oldest first.
        self._order: deque[tuple[tuple[str, str], int]] = deque()
        self._newest = 0

    def __len__(self) -> int:
        """Places of which a change is kept, also some that are durable."""
        return len(self._write_batches)

    @property
    def newest(self) -> int:
        """The write batch that makes the last change durable; 0 when it is."""
        return self._newest if self._newest > self._storage.durable else 0

    def add(self, kind: str, name: str) -> None:
        """This was made or deleted in the current write batch."""
        storage = self._storage
        if storage.is_durable:
            write_batch = storage.write_batch
            place = (kind, name)
            self._newest = write_batch
            self._write_batches[place] = write_batch
            self._order.append((place, write_batch))
            self._forget()

    def _forget(self) -> None:
        """Let go of some that are durable; all of a hundred thousand at once would take long."""
        order = self._order
        for _ in range(FORGET_AT_ONCE):
            if not order or order[0][1] > self._storage.durable:
                return
            place, write_batch = order.popleft()
            if self._write_batches.get(place) == write_batch:
                del self._write_batches[place]

    def write_batch_of(self, kind: str, name: str) -> int:
        """The write batch of the last change of this; 0 when that is not pending."""
        write_batch = self._write_batches.get((kind, name), 0)
        return write_batch if write_batch > self._storage.durable else 0
