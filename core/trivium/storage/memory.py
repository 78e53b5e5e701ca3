"""Storage that keeps nothing beyond the process: every write batch counts as durable at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mypy_extensions import mypyc_attr

from trivium.storage.base import DurabilityWaiter, Log, Storage, Table
from trivium.storage.segments.chunks import ChunkedLog


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


class MemoryLog(ChunkedLog):
    """A log whose records are all in memory."""

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        """Never needed: see ``is_loaded``."""
        raise AssertionError("a memory log is always loaded")


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryStorage(Storage):
    """Tables and logs of one process' life."""

    def __init__(self) -> None:
        self.write_batch = 0
        self.durable = 0
        self.is_durable = False
        self.was_clean = True
        self._tables: dict[str, MemoryTable] = {}
        self._logs: dict[str, MemoryLog] = {}

    def table(self, name: str) -> Table:
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = MemoryTable()
        return found

    def log(self, name: str) -> Log:
        found = self._logs.get(name)
        if found is None:
            found = self._logs[name] = MemoryLog()
        return found

    def drop_log(self, name: str) -> None:
        self._logs.pop(name, None)

    def log_names(self) -> list[str]:
        return list(self._logs)

    def commit(self) -> None:
        """Nothing is ever pending."""

    def wait(self, waiter: DurabilityWaiter) -> int:
        """The current write batch, which is durable already."""
        return self.durable

    def close(self) -> None:
        """Nothing to do."""

    def withdraw(self) -> None:
        """Nothing to do."""
