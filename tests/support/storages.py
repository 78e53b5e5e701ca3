"""Storage in memory that behaves like a disk at some moment, as a test says."""

from __future__ import annotations

from collections.abc import Callable

from trivium.runtime.broker import MAX_PENDING_BYTES
from trivium.storage.base import DurabilityWaiter, Log
from trivium.storage.memory import MemoryStorage


class HeldStorage(MemoryStorage):
    """Claims to be durable; write batches become so when the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.is_durable = True
        self.write_batch = 1
        self.waiters: list[DurabilityWaiter] = []

    def wait(self, waiter: DurabilityWaiter) -> int:
        self.waiters.append(waiter)
        return self.write_batch

    def commit(self) -> None:
        self.write_batch += 1

    def complete(self) -> None:
        """What was committed is on disk."""
        self.durable = self.write_batch - 1
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.write_batch_durable(self.durable)


class BehindStorage(MemoryStorage):
    """Too much waits for the disk, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_behind = False

    @property
    def pending_bytes(self) -> int:
        return MAX_PENDING_BYTES + 1 if self.is_behind else 0


class ColdLog(Log):
    """A log of which only what was loaded is in memory, up to the next ``load``."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.first_offset = log.first_offset
        self.next_offset = log.next_offset
        self.loads: list[tuple[int, int]] = []
        self._ready: list[Callable[[], None]] = []
        self._loaded = -1

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        return self._log.read(offset, 1, max_bytes)

    def is_loaded(self, offset: int) -> bool:
        return offset == self._loaded or offset >= self.next_offset

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        self.loads.append((offset, max_bytes))
        self._ready.append(ready)

    @property
    def waiting(self) -> int:
        """Loads that the disk has not answered."""
        return len(self._ready)

    def finish_load(self) -> None:
        """The disk has answered, in a turn of its own."""
        self._loaded = self.loads[-1][0]
        self._ready.pop()()
