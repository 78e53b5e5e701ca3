"""Durable changes of the topology that may not be on disk yet, by name.

Whoever is told that something is there, or is not, must not find it otherwise after a crash. The
one who made the change waits for its batch; this is for the others who ask meanwhile.
"""

from __future__ import annotations

from trivium.storage.base import Storage


class PendingChanges:
    """Of one virtual host. Kinds are those of ``trivium.idempotence.deduplication``; streams are
    queues here, since they share their names.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._batches: dict[tuple[str, str], int] = {}
        self._newest = 0

    @property
    def newest(self) -> int:
        """The batch that makes the last change durable; 0 when it is."""
        return self._newest if self._newest > self._storage.durable else 0

    def note(self, kind: str, name: str) -> None:
        """This was made or deleted in the current batch."""
        storage = self._storage
        if storage.is_durable:
            if not self.newest:
                self._batches.clear()
            self._newest = storage.batch
            self._batches[kind, name] = storage.batch

    def batch_of(self, kind: str, name: str) -> int:
        """The batch that makes the last change of this durable; 0 when that is not pending."""
        return self._batches.get((kind, name), 0) if self.newest else 0
