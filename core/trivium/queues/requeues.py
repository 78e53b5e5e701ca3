"""How often messages came back to their queues, kept over a restart.

A message that is requeued gets a row in a table: how often, and before when it is not tried again.
The row goes with the message's settlement, in the same write batch. Messages that are never
requeued cost nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trivium.storage.base import Table

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
        self._rows: dict[tuple[int, int], tuple[int, int]] = {}

    def restore(self, priority: int, offset: int, count: int, until: int) -> None:
        """A row that is in the table."""
        self._rows[(priority, offset)] = (count, until)

    def find(self, priority: int, offset: int) -> tuple[int, int] | None:
        """How often a message was requeued, and until when it waits; None for never."""
        return self._rows.get((priority, offset))

    def put(self, priority: int, offset: int, count: int, until: int) -> None:
        """A message was requeued."""
        self._rows[(priority, offset)] = (count, until)
        row = _ROW.pack(min(count, _MAX_COUNT), until)
        self._table.put(self._name + _PLACE.pack(priority, offset), row)

    def forget(self, priority: int, offset: int) -> None:
        """A message is settled."""
        if self._rows.pop((priority, offset), None) is not None:
            self._table.delete(self._name + _PLACE.pack(priority, offset))

    def clear_from(self, priority: int, offset: int) -> None:
        """The messages of a priority from an offset on are removed."""
        for place in [p for p in self._rows if p[0] == priority and p[1] >= offset]:
            self.forget(place[0], place[1])

    def clear(self) -> None:
        """All messages are removed."""
        for priority, offset in list(self._rows):
            self.forget(priority, offset)


class Requeues:
    """The rows of one virtual host. ``table`` may already hold some: they are loaded."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._restored: dict[bytes, QueueRequeues] = {}
        for key, row in table.items():
            name = key[: -_PLACE.size]
            priority, offset = _PLACE.unpack_from(key, len(name))
            count, until = _ROW.unpack(row)
            found = self._restored.get(name)
            if found is None:
                found = self._restored[name] = QueueRequeues(table, name)
            found.restore(priority, offset, count, until)

    def of(self, name: str) -> QueueRequeues:
        """The rows of the queue called ``name``: those that were there at the start, once."""
        encoded = name.encode()
        found = self._restored.pop(encoded, None)
        return QueueRequeues(self._table, encoded) if found is None else found

    def has(self, name: str) -> bool:
        """Whether there are rows from before the start for the queue called ``name``."""
        return name.encode() in self._restored
