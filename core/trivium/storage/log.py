"""A log on disk: recorded in the journal as it changes, its older chunks in segment files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trivium.storage.changes import NEXT_OFFSET, SETTLE, TRUNCATE, Changes
from trivium.storage.chunks import ChunkedLog

#: The journal has 16 bits for the size of a note.
MAX_NOTE: Final = 65_535
#: ... and 32 bits for the size of a record and the number of its offsets.
MAX_RECORD: Final = 0xFFFF_FFFF


class DiskLog(ChunkedLog):
    """A log whose changes are recorded."""

    def __init__(self, number: int, name: str, changes: Changes) -> None:
        super().__init__()
        self.number = number
        self.name = name
        self._changes = changes
        #: whether it is in ``Changes.logs``
        self._is_changed = False
        self._is_dropped = False
        #: whether offsets were given out that no record in the journal shows
        self._has_skipped = False

    def append(self, record: bytes, count: int = 1, note: bytes = b"") -> int:
        """See ``Log.append``. Raises ValueError when a size is out of range."""
        if len(record) > MAX_RECORD or len(note) > MAX_NOTE or not 0 < count <= MAX_RECORD:
            raise ValueError("a record, its note or its count is out of range")
        offset = super().append(record, count, note)
        self._changes.append(self.number, offset, count, record, note)
        self._has_skipped = False
        if not self._is_changed:
            self.mark()
        return offset

    def skip(self, count: int = 1) -> int:
        """See ``Log.skip``."""
        self._has_skipped = True
        if not self._is_changed:
            self.mark()
        return super().skip(count)

    def settle(self, first: int, last: int) -> None:
        """See ``Log.settle``."""
        if self._remove(first, last):
            self._changes.change_log(SETTLE, self.number, first, last)
            if not self._is_changed:
                self.mark()

    def truncate(self, before: int) -> None:
        """See ``Log.truncate``."""
        if self._remove_ended(before):
            self._changes.change_log(TRUNCATE, self.number, before, 0)
            if not self._is_changed:
                self.mark()

    def mark(self) -> None:
        """Note that a checkpoint has something to write."""
        self._is_changed = True
        self._changes.logs.append(self)

    def record_skipped(self) -> None:
        """Before a clean stop: make the offsets that were given out without a record durable."""
        if self._has_skipped and not self._is_dropped:
            self._has_skipped = False
            self._changes.change_log(NEXT_OFFSET, self.number, self.next_offset, 0)

    def restore(self, offset: int, count: int, record: bytes, note: bytes) -> None:
        """A record as the journal has it, at or after ``next_offset``."""
        self.restore_next_offset(offset)
        super().append(record, count, note)
        self.mark_once()

    def restore_next_offset(self, offset: int) -> None:
        """Offsets before this one were given out."""
        if offset > self.next_offset:
            super().skip(offset - self.next_offset)
            self.mark_once()

    def restore_settled(self, first: int, last: int) -> None:
        """A settled range as the journal has it."""
        if self._remove(first, last):
            self.mark_once()

    def restore_truncated(self, before: int) -> None:
        """A truncation as the journal has it."""
        if self._remove_ended(before):
            self.mark_once()

    def mark_once(self) -> None:
        """``mark`` unless it is marked."""
        if not self._is_changed:
            self.mark()

    def drop(self) -> None:
        """The log was removed from the storage; nothing of it may be recorded any more."""
        self._is_dropped = True

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        """Never needed while all records stay in memory: see ``is_loaded``."""
        raise AssertionError("the log is loaded")
