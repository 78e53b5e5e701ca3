"""Storage that keeps nothing beyond the process: every batch counts as durable at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from trivium.storage.base import DurabilityWaiter, Log, Storage, Table


class MemoryTable(Table):
    """A dict."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._rows[key] = value

    def delete(self, key: bytes) -> None:
        self._rows.pop(key, None)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._rows.items())

    def __len__(self) -> int:
        return len(self._rows)


class MemoryLog(Log):
    """Records in a dict by their first offset; offsets in order in a list for reading."""

    def __init__(self) -> None:
        self.first_offset = 0
        self.next_offset = 0
        self.recovered_offset = 0
        self._records: dict[int, tuple[bytes, bytes]] = {}
        self._offsets: list[int] = []

    def append(self, record: bytes, count: int = 1, note: bytes = b"") -> int:
        offset = self.next_offset
        self._records[offset] = (record, note)
        self._offsets.append(offset)
        self.next_offset = offset + count
        return offset

    def skip(self, count: int = 1) -> int:
        offset = self.next_offset
        self.next_offset = offset + count
        if not self._records:
            self.first_offset = self.next_offset
        return offset

    def settle(self, first: int, last: int) -> None:
        for offset in range(first, last + 1):
            self._records.pop(offset, None)
        self._forget_removed()

    def truncate(self, before: int) -> None:
        for index, offset in enumerate(self._offsets):
            following = index + 1
            end = self._offsets[following] if following < len(self._offsets) else self.next_offset
            if end > before:
                break
            self._records.pop(offset, None)
        self._forget_removed()

    def _forget_removed(self) -> None:
        # Dead offsets are swept when they are half of the list, so a settlement costs O(1) on
        # average.
        if len(self._offsets) > 2 * len(self._records):
            self._offsets = [offset for offset in self._offsets if offset in self._records]
        for offset in self._offsets:
            if offset in self._records:
                self.first_offset = offset
                return
        self.first_offset = self.next_offset

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        found: list[tuple[int, bytes, bytes]] = []
        size = 0
        index = max(bisect_right(self._offsets, offset) - 1, 0)
        while index < len(self._offsets) and len(found) < max_records:
            at = self._offsets[index]
            index += 1
            kept = self._records.get(at)
            end = self._offsets[index] if index < len(self._offsets) else self.next_offset
            if kept is None or end <= offset:
                continue
            size += len(kept[0])
            if found and size > max_bytes:
                break
            found.append((at, kept[0], kept[1]))
        return found

    def is_loaded(self, offset: int) -> bool:
        return True

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        raise AssertionError("a memory log is always loaded")

    def __len__(self) -> int:
        return len(self._records)


class MemoryStorage(Storage):
    """Tables and logs of one process' life."""

    def __init__(self) -> None:
        self.batch = 0
        self.durable = 0
        self.is_durable = False
        self.was_clean = True
        self._tables: dict[str, MemoryTable] = {}
        self._logs: dict[str, MemoryLog] = {}

    def table(self, name: str) -> Table:
        return self._tables.setdefault(name, MemoryTable())

    def log(self, name: str) -> Log:
        return self._logs.setdefault(name, MemoryLog())

    def drop_log(self, name: str) -> None:
        self._logs.pop(name, None)

    def log_names(self) -> list[str]:
        return list(self._logs)

    def commit(self) -> None:
        pass

    def wait(self, waiter: DurabilityWaiter) -> int:
        return self.durable

    def close(self) -> None:
        pass
