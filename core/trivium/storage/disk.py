"""Storage in a data directory.

The way of a change: it is made in memory and recorded in ``Changes``; ``commit`` hands all that was
recorded to the journal lane as one batch; when that is written and synced the lane tells the loop
through ``post``, and there ``durable`` rises and the waiters are called. One batch is under way at
a time, so the next one fills meanwhile.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trivium.storage.base import DurabilityWaiter, Log, Storage, Table
from trivium.storage.changes import DEFINE_LOG, DEFINE_TABLE, DROP_LOG, Changes
from trivium.storage.errors import (
    StorageDamaged,
    StorageError,
    StorageFailed,
    StorageVersionMismatch,
)
from trivium.storage.executor import Executor, ThreadExecutor, Work
from trivium.storage.filesystem import FileSystem, RealFileSystem
from trivium.storage.journal import STARTED, STOPPED, FsyncPolicy, JournalWriter
from trivium.storage.log import DiskLog
from trivium.storage.recovery import Recovered
from trivium.storage.table import DiskTable

FORMAT_VERSION: Final = 1
_FORMAT_FILE: Final = "format"
_FORMAT_TEXT: Final = "trivium storage "
_LOCK_FILE: Final = "lock"
JOURNAL_DIRECTORY: Final = "journal"

#: Names are stored with 16 bits of length.
MAX_NAME: Final = 65_535

#: Large enough that making the next file is rare, small enough that the space comes back soon.
JOURNAL_FILE_SIZE: Final = 64 * 1024 * 1024


class BatchWork(Work):
    """A sealed batch on its way to the disk."""

    def __init__(
        self,
        storage: DiskStorage,
        number: int,
        parts: list[bytes],
        waiters: dict[DurabilityWaiter, None],
        sync: bool,
    ) -> None:
        self.storage = storage
        self.number = number
        self.parts = parts
        self.waiters = waiters
        self.sync = sync
        self.size = 0
        self.error: OSError | None = None

    def run(self) -> None:
        """On the journal lane: write and sync."""
        storage = self.storage
        try:
            self.size = storage.journal.write(
                self.number, self.parts, 0, self.sync, storage.executor.now()
            )
        except OSError as error:
            self.error = error
        storage.batch_written(self)


class SyncWork(Work):
    """Syncs what an interval policy left, once the journal lane is idle."""

    def __init__(self, storage: DiskStorage) -> None:
        self.storage = storage
        self.error: OSError | None = None

    def run(self) -> None:
        """On the journal lane: sync."""
        storage = self.storage
        try:
            storage.journal.sync(storage.executor.now())
        except OSError as error:
            storage.sync_failed(error)


class DiskStorage(Storage):
    """Tables and logs in a directory, which this process alone may use.

    ``post`` runs a call on the loop's thread, from any thread; ``wake`` asks for a turn and thereby
    for ``commit``; ``on_fatal`` is told, on the loop's thread, of the error after which nothing
    will become durable any more: the process must then stop with exit code 74.

    Opening raises StorageLocked, StorageVersionMismatch, StorageDamaged, StorageFailed.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        post: Callable[[Callable[[], None]], object],
        wake: Callable[[], None],
        on_fatal: Callable[[StorageError], None],
        filesystem: FileSystem | None = None,
        executor: Executor | None = None,
        fsync: str = "always",
        journal_file_size: int = JOURNAL_FILE_SIZE,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.is_durable = True
        self.executor = ThreadExecutor() if executor is None else executor
        self._directory = directory = str(directory)
        self._post = post
        self._wake = wake
        self._on_fatal = on_fatal
        self._filesystem = RealFileSystem() if filesystem is None else filesystem
        self._policy = FsyncPolicy(fsync)
        self._changes = Changes()
        self._waiters: dict[DurabilityWaiter, None] = {}
        self._is_busy = False
        self._failure: StorageError | None = None
        self._is_closed = False
        #: batches that the journal lane has finished, for the loop
        self._written: deque[BatchWork] = deque()
        self._logs: dict[str, DiskLog] = {}
        self._tables: dict[str, DiskTable] = {}
        try:
            self._filesystem.make_directory(directory)
            self._lock = self._filesystem.lock(f"{directory}/{_LOCK_FILE}")
        except OSError as error:
            raise StorageFailed(f"cannot open {directory}: {error}") from error
        try:
            self._check_format()
            self._recover(journal_file_size, entropy)
        except OSError as error:
            self._lock.release()
            raise StorageFailed(f"cannot open {directory}: {error}") from error
        except StorageError:
            self._lock.release()
            raise
        self._journal_lane = self.executor.lane("trivium-journal")

    def _check_format(self) -> None:
        filesystem = self._filesystem
        path = f"{self._directory}/{_FORMAT_FILE}"
        if not filesystem.exists(path):
            if filesystem.exists(f"{self._directory}/{JOURNAL_DIRECTORY}"):
                raise StorageDamaged(path, 0, "it is missing")
            file = filesystem.create(path + ".tmp")
            file.write([f"{_FORMAT_TEXT}{FORMAT_VERSION}\n".encode()], 0, False)
            file.sync()
            file.close()
            filesystem.rename(path + ".tmp", path)
            filesystem.sync_directory(self._directory)
            return
        file = filesystem.open(path)
        text = file.read(0, 256).decode("ascii", "replace")
        file.close()
        if not text.startswith(_FORMAT_TEXT) or not text.endswith("\n"):
            raise StorageDamaged(path, 0, "it does not name a storage format")
        if text != f"{_FORMAT_TEXT}{FORMAT_VERSION}\n":
            raise StorageVersionMismatch(
                f"{self._directory} has storage format {text[len(_FORMAT_TEXT) :].strip()}, "
                f"this version reads {FORMAT_VERSION}"
            )

    def _recover(self, journal_file_size: int, entropy: Callable[[int], bytes]) -> None:
        directory = f"{self._directory}/{JOURNAL_DIRECTORY}"
        self._filesystem.make_directory(directory)
        recovered = Recovered(self._changes)
        recovered.replay(self._filesystem, directory)
        self.was_clean = recovered.was_clean
        for log in recovered.logs.values():
            self._logs[log.name] = log
            if not self.was_clean:
                log.recovered_offset = log.next_offset
        for table in recovered.tables.values():
            self._tables[table.name] = table
        self._next_log = recovered.next_log
        self._next_table = recovered.next_table
        self.journal = JournalWriter(
            self._filesystem,
            directory,
            journal_file_size,
            self._policy,
            entropy,
            recovered.next_file,
            recovered.last_batch,
        )
        self.journal.files = recovered.files
        # Durable before anything is delivered, so that a crash from here on is seen as unclean.
        self.durable = recovered.last_batch + 1
        self.batch = self.durable + 1
        self.journal.write(self.durable, [], STARTED, True, self.executor.now())

    def table(self, name: str) -> Table:
        """See ``Storage.table``."""
        found = self._tables.get(name)
        if found is None:
            found = DiskTable(self._next_table, name, self._changes)
            self._changes.define(DEFINE_TABLE, self._next_table, _encoded(name))
            self._next_table += 1
            self._tables[name] = found
        return found

    def log(self, name: str) -> Log:
        """See ``Storage.log``."""
        found = self._logs.get(name)
        if found is None:
            found = DiskLog(self._next_log, name, self._changes)
            self._changes.define(DEFINE_LOG, self._next_log, _encoded(name))
            found.mark_once()
            self._next_log += 1
            self._logs[name] = found
        return found

    def drop_log(self, name: str) -> None:
        """See ``Storage.drop_log``."""
        found = self._logs.pop(name, None)
        if found is not None:
            found.drop()
            self._changes.change_log(DROP_LOG, found.number, 0, 0)

    def log_names(self) -> list[str]:
        """See ``Storage.log_names``."""
        return list(self._logs)

    def wait(self, waiter: DurabilityWaiter) -> int:
        """See ``Storage.wait``."""
        self._waiters[waiter] = None
        return self.batch

    def commit(self) -> None:
        """See ``Storage.commit``."""
        if self._is_busy or self._failure is not None or self._is_closed:
            return
        if not self._changes.parts and not self._waiters:
            return
        work = BatchWork(self, self.batch, self._changes.take(), self._waiters, False)
        self._waiters = {}
        self.batch += 1
        self._is_busy = True
        self._journal_lane.submit(work)

    def batch_written(self, work: BatchWork) -> None:
        """On the journal lane: a batch is done, well or not."""
        self._written.append(work)
        if self._policy.seconds and work.error is None and self.journal.synced < work.number:
            self._journal_lane.submit_later(SyncWork(self), self._policy.seconds)
        self._post(self._finish_batches)

    def sync_failed(self, error: OSError) -> None:
        """On the journal lane: a sync failed outside of a batch."""
        work = BatchWork(self, self.durable, [], {}, False)
        work.error = error
        self._written.append(work)
        self._post(self._finish_batches)

    def _finish_batches(self) -> None:
        while self._written:
            work = self._written.popleft()
            if self._failure is not None:
                continue
            if work.error is not None:
                self._fail(work.error)
                continue
            self._is_busy = False
            self.durable = work.number
            for waiter in work.waiters:
                waiter.batch_durable(work.number)
            if not self._is_closed:
                self._wake()

    def _fail(self, error: OSError) -> None:
        self._failure = StorageFailed(
            f"the journal in {self._directory} cannot be written: {error}"
        )
        self._on_fatal(self._failure)

    def close(self) -> None:
        """See ``Storage.close``. Raises StorageFailed when the disk refuses."""
        if self._is_closed:
            return
        self._is_closed = True
        self._journal_lane.stop()
        self._finish_batches()
        try:
            if self._failure is not None:
                self.journal.abandon()
                raise self._failure
            for log in self._changes.logs:
                log.record_skipped()
            try:
                number = self.batch
                now = self.executor.now()
                self.journal.write(number, self._changes.take(), STOPPED, True, now)
                self.journal.close()
            except OSError as error:
                self.journal.abandon()
                self._fail(error)
                assert self._failure is not None
                raise self._failure from error
        finally:
            self._lock.release()
        self.durable = number
        self.batch = number + 1
        waiters = self._waiters
        self._waiters = {}
        for waiter in waiters:
            waiter.batch_durable(number)


def _encoded(name: str) -> bytes:
    encoded = name.encode()
    if len(encoded) > MAX_NAME:
        raise ValueError("the name of a log or table is too long")
    return encoded
