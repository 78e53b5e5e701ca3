"""Changed rows, as a checkpoint writes them."""

from __future__ import annotations

from typing import Final

from trivium.storage.catalog.catalog import CatalogChanges
from trivium.storage.checkpoint.row_backlog import RowBacklog, RowPortion
from trivium.storage.segments.chunks import list_made

#: Work to look at a row: in the order of their keys, each one of a large table is somewhere else in
#: memory. See ``STEP`` of checkpoints.
_ROW_COST: Final = 4


class RowImages:
    """The portions of ``backlog`` that one checkpoint writes: ``most`` rows, or all there are."""

    def __init__(self, backlog: RowBacklog, most: int) -> None:
        self._backlog = backlog
        self._left = most
        self._portions: list[RowPortion] = []

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing more for this checkpoint."""
        if self._left <= 0:
            return self._backlog.is_sorted
        return self._backlog.is_empty

    def take(self, most: int, changes: CatalogChanges) -> None:
        """Look at rows until that was work of about ``most``; they go to ``changes``."""
        left = most
        while left >= _ROW_COST and self._left > 0:
            portion = self._backlog.next(min(left // _ROW_COST, self._left))
            if portion is None:
                break
            self._portions.append(portion)
            _take(portion, changes)
            self._left -= len(portion.keys)
            left -= _ROW_COST * len(portion.keys)

    def give_back(self) -> None:
        """Nothing was written: all of it is for the next checkpoint."""
        self._backlog.give_back(self._portions)


def _take(portion: RowPortion, changes: CatalogChanges) -> None:
    """Look at rows as they are now."""
    keys: list[bytes] = []
    values: list[bytes] = []
    deleted: list[bytes] = []
    for key in portion.keys:
        value = portion.table.get(key)
        if value is None:
            deleted.append(key)
        else:
            keys.append(key)
            values.append(value)
    number = portion.table.number
    if keys:
        changes.rows.append((number, keys, values))
        list_made(2 * len(keys))
    if deleted:
        changes.deleted.append((number, deleted))
        list_made(len(deleted))
