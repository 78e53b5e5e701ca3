"""The log of a compacted partition: what compaction has made, and behind it what has come since.

Both are logs of the storage. Their offsets follow one another, so together they read like one.
"""

from __future__ import annotations

from collections.abc import Callable

from trivium.storage.base import Log


class CompactedLog(Log):
    """``clean`` holds the offsets before the first one of ``active``, to which is appended."""

    def __init__(self, clean: Log, active: Log) -> None:
        self.clean = clean
        self.active = active
        self.recovered_offset = active.recovered_offset
        self._update()

    def _update(self) -> None:
        self.next_offset = self.active.next_offset
        log = self.clean if len(self.clean) else self.active
        self.first_offset = log.first_offset

    def append(self, record: bytes, count: int = 1, annotation: bytes = b"") -> int:
        offset = self.active.append(record, count, annotation)
        self._update()
        return offset

    def join(self, first: int, end: int, record: bytes) -> bool:
        return self.active.join(first, end, record)

    def truncate(self, before: int) -> None:
        self.clean.truncate(before)
        self.active.truncate(before)
        self._update()

    def offset_of_newest(self, size: int) -> int:
        """Where both are needed, what is active does not count."""
        found = self.active.offset_of_newest(size)
        return self.clean.offset_of_newest(size) if found < 0 else found

    def _place(self, offset: int) -> Log | None:
        """The log that has the first record at or after ``offset``; None if that must be loaded."""
        clean = self.clean
        if offset < clean.next_offset:
            if not clean.is_loaded(offset):
                return None
            if clean.read(offset, 1, 1):
                return clean
        return self.active

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        """Does not read on from one into the other."""
        log = self._place(offset)
        return [] if log is None else log.read(offset, max_records, max_bytes)

    def is_loaded(self, offset: int) -> bool:
        log = self._place(offset)
        return log is not None and log.is_loaded(offset)

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        log = self._place(offset)
        (self.clean if log is None else log).load(offset, max_bytes, ready)

    def __len__(self) -> int:
        return len(self.clean) + len(self.active)
