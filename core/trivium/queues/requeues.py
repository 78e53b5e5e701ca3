"""How often messages came back to their queues, kept over a restart.

A message that is requeued gets a row in a table: how often, and before when it is not tried again.
The row goes with the message's settlement, in the same write batch. Messages that are never
requeued cost nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from trivium.storage.base import Table

if TYPE_CHECKING:
    from trivium.queues.sub_queues import QueueEntry

#: behind the queue's name in a key: priority, offset
_PLACE: Final = Struct("<BQ")
#: times requeued, milliseconds since the epoch before which it is not tried again
_ROW: Final = Struct("<Iq")
_MAX_COUNT: Final = 0xFFFF_FFFF


class QueueRequeues:
    """The rows of one queue."""

    def __init__(self, table: Table, name: bytes) -> None:
        self._table = table
        self._name = name
        # Of the rows, the very objects that the table has.
        self._keys: set[bytes] = set()

    def restore(self, key: bytes) -> None:
        """A row that is in the table."""
        self._keys.add(key)

    def find(self, priority: int, offset: int) -> tuple[int, int] | None:
        """How often a message was requeued, and until when it waits; None for never."""
        row = self._table.get(self._name + _PLACE.pack(priority, offset))
        if row is None:
            return None
        count, until = _ROW.unpack(row)
        return count, until

    def put(self, priority: int, offset: int, count: int, until: int) -> None:
        """A message was requeued."""
        key = self._name + _PLACE.pack(priority, offset)
        self._keys.add(key)
        self._table.put(key, _ROW.pack(min(count, _MAX_COUNT), until))

    def forget(self, priority: int, offset: int) -> None:
        """A message is settled."""
        self._forget(self._name + _PLACE.pack(priority, offset))

    def _forget(self, key: bytes) -> None:
        if key in self._keys:
            self._keys.remove(key)
            self._table.delete(key)

    def clear_from(self, priority: int, offset: int) -> None:
        """The messages of a priority from an offset on are removed."""
        size = len(self._name)
        for key in list(self._keys):
            place = _PLACE.unpack_from(key, size)
            if place[0] == priority and place[1] >= offset:
                self._forget(key)

    def clear(self) -> None:
        """All messages are removed."""
        for key in list(self._keys):
            self._forget(key)


class Requeues:
    """The rows of one virtual host. ``table`` may already hold some: they are loaded."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._restored: dict[bytes, QueueRequeues] = {}
        for key, _ in table.items():
            name = key[: -_PLACE.size]
            found = self._restored.get(name)
            if found is None:
                found = self._restored[name] = QueueRequeues(table, name)
            found.restore(key)

    def of(self, name: str) -> QueueRequeues:
        """The rows of the queue called ``name``: those that were there at the start, once."""
        encoded = name.encode()
        found = self._restored.pop(encoded, None)
        return QueueRequeues(self._table, encoded) if found is None else found

    def has(self, name: str) -> bool:
        """Whether there are rows from before the start for the queue called ``name``."""
        return len(self._restored) > 0 and name.encode() in self._restored


def keep_requeues(entry: QueueEntry, until: int) -> None:
    """Keep how often a stored entry came back, and until when it waits, over a restart."""
    queue = entry.queue
    if queue.requeues is None:
        queue.requeues = queue.vhost.requeues.of(queue.name)
    queue.requeues.put(entry.sub_queue.priority, entry.offset, entry.requeues, until)


def forget_requeues(entry: QueueEntry) -> None:
    """A stored entry that was requeued is done with."""
    requeues = entry.queue.requeues
    if requeues is not None:
        requeues.forget(entry.sub_queue.priority, entry.offset)


def restore_requeues(entry: QueueEntry, requeues: QueueRequeues) -> int:
    """Give an entry from before a restart its requeues; until when it waits, 0 for not."""
    found = requeues.find(entry.sub_queue.priority, entry.offset)
    if found is None:
        return 0
    entry.requeues, until = found
    entry.is_redelivered = True
    return until
