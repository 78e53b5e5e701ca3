"""A table on disk: all rows in memory, changes in write batches, changed rows in checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trivium.storage.base import Table
from trivium.storage.contents.changes import Changes


class DiskTable(Table):
    """A dict whose changes are recorded.

    A row that comes and goes between two checkpoints leaves nothing for them: there may be very
    many, such as packet identifiers, and each would stay in memory until it is looked for in vain.
    """

    def __init__(self, number: int, name: str, changes: Changes) -> None:
        self.number = number
        self.name = name
        self._changes = changes
        self._rows: dict[bytes, bytes] = {}
        #: keys changed since the checkpoint that was last begun: of rows that the catalog may have,
        #: and of others
        self._changed: set[bytes] = set()
        self._new: set[bytes] = set()
        #: whether it is in ``Changes.tables``
        self._is_changed = False

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        rows = self._rows
        count = len(rows)
        rows[key] = value
        self._mark_put(key, len(rows) != count)
        self._changes.put(self.number, key, value)

    def delete(self, key: bytes) -> None:
        if self.restore_deleted(key):
            self._changes.delete(self.number, key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._rows.items())

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, key: bytes, value: bytes) -> None:
        """A row as the checkpoint has it."""
        self._rows[key] = value

    def load_all(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Rows as the checkpoint has them. Neighbours with the same value share it: there may be
        very many, such as bindings."""
        rows = self._rows
        last = b""
        for key, value in zip(keys, values, strict=True):
            if value != last:
                last = value
            rows[key] = last

    def restore(self, key: bytes, value: bytes) -> None:
        """A row as the journal has it.

        As long as the journal is needed for others, it has many that the checkpoint has too: they
        are no changes, and need not be written again.
        """
        rows = self._rows
        count = len(rows)
        known = rows.setdefault(key, value)
        if len(rows) == count:
            if known == value:
                return
            rows[key] = value
            self._mark_put(key, False)
        else:
            self._mark_put(key, True)

    def restore_deleted(self, key: bytes) -> bool:
        """A row that the journal removes; False when there was none."""
        if self._rows.pop(key, None) is None:
            return False
        if key in self._new:
            self._new.remove(key)
        else:
            self.mark_changed(key)
        return True

    def _mark_put(self, key: bytes, was_absent: bool) -> None:
        """Note that a checkpoint has a row to write: one that came, or has another value.

        What was taken and is not in the catalog yet may show this very row there.
        """
        if was_absent and not self._changes.has_rows_under_way and key not in self._changed:
            self._new.add(key)
            if not self._is_changed:
                self._mark_changed()
        elif key not in self._new:
            self.mark_changed(key)

    def mark_changed(self, key: bytes) -> None:
        """Note that a checkpoint has a row to write, which the catalog may have."""
        self._changed.add(key)
        if not self._is_changed:
            self._mark_changed()

    def _mark_changed(self) -> None:
        self._is_changed = True
        self._changes.tables.append(self)

    def take_changed(self) -> tuple[set[bytes], set[bytes]]:
        """The keys changed since the last call, to be written by a checkpoint."""
        changed, new = self._changed, self._new
        self._changed, self._new = set(), set()
        self._is_changed = False
        return changed, new
