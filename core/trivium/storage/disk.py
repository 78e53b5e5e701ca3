"""Storage in a data directory.

The way of a change: it is made in memory and added to ``Changes``; ``commit`` hands all of these to
the journal's worker as one write batch; when that is written and synced the worker tells the loop
through ``post``, and there ``durable`` rises and the waiters are called. One write batch is under
way at a time, so the next one fills meanwhile. When enough has gone to the journal a checkpoint is
made, turn by turn and then on a worker of its own.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trivium.storage.base import DurabilityWaiter, Log, Storage, Table
from trivium.storage.catalog.catalog import Catalog, CatalogChanges
from trivium.storage.catalog.catalog_copy import CatalogCopy
from trivium.storage.checkpoint.checkpoint import ROWS, Checkpoint
from trivium.storage.checkpoint.row_backlog import RowBacklog
from trivium.storage.contents.changes import DEFINE_LOG, DEFINE_TABLE, DROP_LOG, Changes
from trivium.storage.contents.log import DiskLog
from trivium.storage.contents.recovery import Recovered
from trivium.storage.contents.table import DiskTable
from trivium.storage.errors import StorageDamaged, StorageError, StorageFailed
from trivium.storage.files.directory import (
    CATALOG_COPY_FILE,
    CATALOG_FILE,
    FORMAT_VERSION,
    JOURNAL_DIRECTORY,
    LOCK_FILE,
    NO_FORMAT,
    OLD_FORMAT_VERSION,
    SEGMENT_DIRECTORY,
    format_path,
    read_directory_format,
    write_directory_format,
)
from trivium.storage.files.encryption import Keys
from trivium.storage.files.executor import Completions, Executor, ThreadExecutor, Work
from trivium.storage.files.filesystem import FileSystem, RealFileSystem
from trivium.storage.journal.journal import FsyncPolicy, JournalWriter
from trivium.storage.journal.journal_files import STARTED, STOPPED
from trivium.storage.segments.segment_files import segment_number
from trivium.storage.segments.segments import Segments

#: Names are stored with 16 bits of length.
MAX_NAME: Final = 65_535

#: Large enough that making the next file is rare, small enough that the space comes back soon.
JOURNAL_FILE_SIZE: Final = 32 * 1024 * 1024
#: What is not in a segment yet is in memory, so this bounds it, and how long a replay takes; but
#: what is consumed before the next checkpoint is written once only.
CHECKPOINT_SIZE: Final = 64 * 1024 * 1024
#: As many times that much may be in the journal before publishers wait for the rows of a
#: checkpoint: with messages beside them, millions of rows. It bounds how long a replay takes.
MAX_CHECKPOINTS: Final = 8
#: Records that could be read back from segments but are kept in memory all the same.
MEMORY_SIZE: Final = 64 * 1024 * 1024
#: A start with more journal files than this asks for a checkpoint however little is in them.
MAX_JOURNAL_FILES: Final = 16


class BatchWork(Work):
    """A sealed batch on its way to the disk."""

    def __init__(
        self,
        storage: DiskStorage,
        number: int,
        parts: list[bytes],
        waiters: dict[DurabilityWaiter, None],
    ) -> None:
        super().__init__(storage.completions)
        self._storage = storage
        self.number = number
        self._parts = parts
        self.waiters = waiters
        self.size = 0

    def run(self) -> None:
        """On the journal worker: write and sync."""
        storage = self._storage
        now = storage.executor.now()
        self.size = storage.journal.write(self.number, self._parts, 0, False, now)
        storage.sync_later()

    def finish(self) -> None:
        """On the loop's thread: tell who waits."""
        self._storage.batch_written(self)


class SyncWork(Work):
    """Syncs what a weaker policy than ``always`` left."""

    def __init__(self, storage: DiskStorage) -> None:
        super().__init__(storage.completions)
        self._storage = storage

    def run(self) -> None:
        """On the journal worker: sync."""
        storage = self._storage
        storage.journal.sync(storage.executor.now())

    def finish(self) -> None:
        """On the loop's thread: go on with what waited for it."""
        self._storage.ask_for_turn()


class DiskStorage(Storage):
    """Tables and logs in a directory, which this process alone may use.

    ``post`` runs a call on the loop's thread, from any thread; ``wake`` asks for a turn and thereby
    for ``commit``; ``on_fatal`` is told, on the loop's thread, of the error after which nothing
    will become durable any more: the process must then stop with exit code 74. ``checkpoint_size``
    is how much goes to the journal between two checkpoints, ``memory_size`` how much of what could
    be read back from segments stays in memory; both in bytes. ``checkpoint_rows`` is how many rows
    a checkpoint writes at most: more are left to others that follow. ``compression`` of new
    segments is ``none`` or ``zstd``; either way both are read. ``keys`` encrypt what is written.

    Opening raises StorageLocked, StorageVersionMismatch, StorageKeyError, StorageDamaged,
    StorageFailed.
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
        checkpoint_size: int = CHECKPOINT_SIZE,
        checkpoint_rows: int = ROWS,
        memory_size: int = MEMORY_SIZE,
        compression: str = "none",
        keys: Keys | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.is_durable = True
        self.executor = ThreadExecutor() if executor is None else executor
        self.completions = Completions(post, self.fail)
        self._directory = directory = str(directory)
        self._wake = wake
        self._on_fatal = on_fatal
        self._filesystem = RealFileSystem() if filesystem is None else filesystem
        self._policy = FsyncPolicy(fsync)
        if compression not in ("none", "zstd"):
            raise ValueError(f"compression must be none or zstd, not {compression!r}")
        self._compresses = compression == "zstd"
        self._keys = Keys() if keys is None else keys
        self._entropy = entropy
        self._checkpoint_size = checkpoint_size
        self._checkpoint_rows = checkpoint_rows
        self._changes = Changes()
        self._waiters: dict[DurabilityWaiter, None] = {}
        self._is_busy = False
        self._failure: StorageError | None = None
        self._is_closed = False
        self._logs: dict[str, DiskLog] = {}
        self._tables: dict[str, DiskTable] = {}
        self._checkpoint: Checkpoint | None = None
        self._rows = RowBacklog(self.completions, self.ask_for_turn)
        #: the last batch of which the catalog knows everything; and whether the logs of those
        #: behind it are in the catalog, up to the base of the rows that are being written
        self._checkpoint_batch = -1
        self._has_logs = False
        #: bytes that went to the journal since a checkpoint with logs was begun
        self._journal_bytes = 0
        #: and before that, bytes of which no finished checkpoint knows
        self._older_bytes = 0
        #: bytes that went to the journal since rows were taken last, and before that, as far as
        #: the catalog does not know everything of them
        self._behind_rows = 0
        self._before_rows = 0
        #: whether a checkpoint is wanted however little is in the journal, and whether by
        #: ``free_space``; whether the last one came to nothing for want of space
        self._is_wanted = False
        self._is_space_short = False
        self._is_full = False
        #: the batch that was being filled when ``tidy`` was called last, and when it looked
        self._seen_batch = 0
        self._tidied_batch = 0
        self._journal_worker = self.executor.worker("trivium-journal")
        self._checkpoint_worker = self.executor.worker("trivium-checkpoint")
        self._reader_worker = self.executor.worker("trivium-reader")
        self._segments = Segments(
            self._filesystem,
            f"{directory}/{SEGMENT_DIRECTORY}",
            memory_size,
            self._reader_worker,
            self.completions,
            self.fail,
            self._keys,
        )
        try:
            self._filesystem.make_directory(directory)
            self._lock = self._filesystem.lock(f"{directory}/{LOCK_FILE}")
        except OSError as error:
            raise StorageFailed(f"cannot open {directory}: {error}") from error
        try:
            version = read_directory_format(self._filesystem, directory)
            self._recover(journal_file_size, version)
        except (OSError, sqlite3.Error) as error:
            self._lock.release()
            raise StorageFailed(f"cannot open {directory}: {error}") from error
        except StorageError:
            self._lock.release()
            raise

    def _recover(self, journal_file_size: int, version: int) -> None:
        filesystem = self._filesystem
        self._journal_directory = f"{self._directory}/{JOURNAL_DIRECTORY}"
        self._segment_directory = f"{self._directory}/{SEGMENT_DIRECTORY}"
        catalog_path = f"{self._directory}/{CATALOG_FILE}"
        if version == FORMAT_VERSION and not filesystem.exists(catalog_path):
            raise StorageDamaged(catalog_path, 0, "it is missing")
        filesystem.make_directory(self._journal_directory)
        filesystem.make_directory(self._segment_directory)
        # A killed process may have left names in the system's cache only.
        filesystem.sync_directory(self._directory)
        self._catalog = Catalog(filesystem, catalog_path, self._keys, self._entropy)
        self._catalog_copy = CatalogCopy(
            filesystem,
            f"{self._directory}/{CATALOG_COPY_FILE}",
            self._catalog,
            self._keys,
            self._entropy,
        )
        recovered = Recovered(self._changes, self._segments, self._keys)
        try:
            self._catalog.load(recovered, self._segments)
            fault = self._catalog.verify_pages()
            if fault:
                raise StorageDamaged(catalog_path, 0, fault)
            recovered.replay(filesystem, self._journal_directory)
            self._refuse_strange(version, recovered)
            # Nothing on the disk changes before all of it was found to be in order.
            self._catalog_copy.open()
            for path in recovered.left_over:
                filesystem.remove(path)
            self._segments.remove_unused()
            if version == OLD_FORMAT_VERSION:
                if not self._catalog.has_positions:
                    self._write_first_positions(recovered, recovered.last_batch)
                write_directory_format(filesystem, self._directory)
            self.journal = JournalWriter(
                filesystem,
                self._journal_directory,
                journal_file_size,
                self._policy,
                self._entropy,
                recovered.next_file,
                recovered.last_batch,
                self._keys,
            )
            self.journal.files = recovered.files
            if recovered.last_file is not None:
                self.journal.follow(recovered.last_file)
            # Durable before anything is delivered, so that a crash from here on is known as one.
            self.durable = recovered.last_batch + 1
            self.write_batch = self.durable + 1
            self.journal.write(self.durable, [], STARTED, True, self.executor.now())
            if version == NO_FORMAT:
                # From now on it is noticed if the journal or the catalog is not there.
                self._write_first_positions(recovered, self.durable)
                write_directory_format(filesystem, self._directory)
        except (OSError, sqlite3.Error, StorageError):
            self._close_catalog()
            raise
        self.was_clean = recovered.was_clean
        for log in recovered.logs.values():
            self._logs[log.name] = log
            if not self.was_clean:
                log.recovered_offset = log.next_offset
        for table in recovered.tables.values():
            self._tables[table.name] = table
        self._next_log = recovered.next_log
        self._next_table = recovered.next_table
        self._checkpoint_batch = recovered.checkpoint_batch
        self._journal_bytes = self._behind_rows = recovered.journal_bytes
        is_foreign = recovered.has_foreign_files or len(self._segments.foreign) > 0
        if len(recovered.files) > MAX_JOURNAL_FILES or is_foreign:
            self._journal_bytes = max(self._journal_bytes, self._checkpoint_size)

    def _refuse_strange(self, version: int, recovered: Recovered) -> None:
        """Raise StorageDamaged where something is not there without which nothing was kept."""
        path = f"{self._directory}/{CATALOG_FILE}"
        if version == NO_FORMAT and (recovered.logs or recovered.tables):
            raise StorageDamaged(format_path(self._directory), 0, "it is missing")
        if self._catalog.has_positions:
            return
        if version == FORMAT_VERSION:
            raise StorageDamaged(path, 0, "it is empty")
        if not recovered.files:
            for name in self._filesystem.names(self._segment_directory):
                if segment_number(name) is not None:
                    raise StorageDamaged(path, 0, "it is missing, or empty")

    def _write_first_positions(self, recovered: Recovered, needed_batch: int) -> None:
        changes = CatalogChanges()
        changes.set_positions(
            recovered.checkpoint_batch,
            needed_batch,
            recovered.first_file,
            recovered.next_log,
            self._segments.next_segment,
        )
        self._catalog.write(changes)
        self._catalog_copy.write(changes)

    def table(self, name: str) -> Table:
        found = self._tables.get(name)
        if found is None:
            found = DiskTable(self._next_table, name, self._changes)
            self._changes.define(DEFINE_TABLE, self._next_table, _encoded(name))
            self._next_table += 1
            self._tables[name] = found
        return found

    def log(self, name: str) -> Log:
        found = self._logs.get(name)
        if found is None:
            found = DiskLog(self._next_log, name, self._changes, self._segments)
            self._changes.define(DEFINE_LOG, self._next_log, _encoded(name))
            found.mark_changed()
            self._next_log += 1
            self._logs[name] = found
        return found

    def drop_log(self, name: str) -> None:
        found = self._logs.pop(name, None)
        if found is not None:
            found.drop()
            self._changes.change_log(DROP_LOG, found.number, 0, 0)
            self._changes.dropped.append(found.number)

    def log_names(self) -> list[str]:
        return list(self._logs)

    def wait(self, waiter: DurabilityWaiter) -> int:
        self._waiters[waiter] = None
        return self.write_batch

    def commit(self) -> None:
        if self._failure is not None or self._is_closed:
            return
        if not self._is_busy and (self._changes.parts or self._waiters):
            work = BatchWork(self, self.write_batch, self._changes.take(), self._waiters)
            self._waiters = {}
            self.write_batch += 1
            self._is_busy = True
            self._journal_worker.submit(work)
        if not self._segments.make_room(0):
            self._wake()
        if self._checkpoint is not None:
            self._go_on(self._checkpoint)
        elif self._is_checkpoint_due():
            self._begin_checkpoint()

    def _are_logs_due(self) -> bool:
        return self._is_wanted or self._journal_bytes >= self._checkpoint_size

    def _is_checkpoint_due(self) -> bool:
        if self._are_logs_due():
            return True
        # Rows that are left over, and what has come behind them meanwhile.
        if not self._rows.is_empty:
            return not self._is_full
        return self._behind_rows >= self._checkpoint_size

    def _begin_checkpoint(self) -> None:
        if self._rows.is_empty:
            self._has_logs = False
            self._before_rows += self._behind_rows
            self._behind_rows = 0
            self._checkpoint_worker.submit(self._rows.take(self._changes, self.write_batch - 1))
        takes_logs = self._are_logs_due() or not self._has_logs
        if takes_logs:
            self._older_bytes += self._journal_bytes
            self._journal_bytes = 0
        self._checkpoint = Checkpoint(
            self._filesystem,
            self._journal_directory,
            self._segment_directory,
            self._changes,
            self._rows,
            self._checkpoint_rows,
            takes_logs,
            self._segments,
            self._catalog,
            self._catalog_copy,
            self.completions,
            self._checkpoint_batch,
            self._is_space_short,
            self._compresses,
            # After one that came to nothing for want of space, it does not ask for more.
            not self._is_full,
            self._keys,
            self._entropy,
        )
        self._is_wanted = False
        self._is_space_short = False
        self._wake()

    def ask_for_checkpoint(self) -> None:
        """Have a checkpoint made, however little is in the journal."""
        self._is_wanted = True
        self._wake()

    @property
    def pending_bytes(self) -> int:
        size = self._checkpoint_size
        in_memory = self._older_bytes + self._journal_bytes - 2 * size
        in_journal = self._before_rows + self._behind_rows - MAX_CHECKPOINTS * size
        return self._changes.size + max(in_memory, in_journal, 0)

    @property
    def changes(self) -> int:
        return len(self._changes.parts)

    def free_space(self) -> None:
        """A checkpoint drops journal files and segments."""
        is_idle = self._checkpoint is None and not self._is_full
        if self._journal_bytes or (is_idle and self._segments.has_garbage(True)):
            self._is_space_short = True
            self.ask_for_checkpoint()

    def tidy(self) -> None:
        """A checkpoint drops the segments of a backlog that was consumed.

        A storage in use makes checkpoints anyway. An idle one makes this one, when a file is to go;
        it looks once for what its last batches have made useless.
        """
        self.completions.check()
        is_idle = self.write_batch == self._seen_batch and not self._changes.parts
        self._seen_batch = self.write_batch
        is_due = is_idle and self._checkpoint is None and self._tidied_batch != self.write_batch
        if not is_due:
            return
        self._tidied_batch = self.write_batch
        for log in self._changes.logs:
            log.count_changed()
        if self._segments.has_garbage(False):
            self.ask_for_checkpoint()

    def _go_on(self, checkpoint: Checkpoint) -> None:
        """Do a turn's part of a checkpoint."""
        if not checkpoint.is_complete:
            if checkpoint.step():
                last = self.write_batch if self._changes.parts else self.write_batch - 1
                checkpoint.complete(last, list(self._tables.values()))
            if not checkpoint.must_wait:
                self._wake()
        elif checkpoint.is_finished:
            if not checkpoint.install():
                self._wake()
                return
            self._checkpoint = None
            self._is_full = checkpoint.is_abandoned
            if not checkpoint.is_abandoned:
                self._note_made(checkpoint)
            if checkpoint.has_relocated():
                # The next one drops what this one has left.
                self._tidied_batch = 0
                if checkpoint.is_space_short or self._segments.foreign:
                    # One after the other, until there is nothing more to gain, or all is encrypted
                    # with the key of today.
                    self._is_space_short |= checkpoint.is_space_short
                    self.ask_for_checkpoint()
        elif not checkpoint.is_submitted and self.durable >= checkpoint.needed_batch:
            if self.journal.synced < checkpoint.needed_batch:
                if not self._is_busy:
                    self._journal_worker.submit(SyncWork(self))
                return
            checkpoint.prepare(self.journal, self._next_log)
            self._checkpoint_worker.submit(checkpoint)

    def _note_made(self, checkpoint: Checkpoint) -> None:
        if checkpoint.takes_logs:
            self._older_bytes = 0
            self._has_logs = True
        self._checkpoint_batch = checkpoint.base_batch
        if self._rows.is_empty:
            self._before_rows = 0
        if self._is_checkpoint_due():
            self._wake()

    def ask_for_turn(self) -> None:
        """Have ``commit`` called soon."""
        if not self._is_closed:
            self._wake()

    def sync_later(self) -> None:
        """On the journal worker: with an interval policy, sync once the worker has been idle."""
        seconds = self._policy.seconds
        if seconds and self.journal.synced < self.journal.written:
            self._journal_worker.submit_later(SyncWork(self), seconds)

    def batch_written(self, work: BatchWork) -> None:
        """A batch is done."""
        if self._failure is not None:
            return
        self._is_busy = False
        self._journal_bytes += work.size
        self._behind_rows += work.size
        self.durable = work.number
        if self._is_closed:
            # They hear of it with those of the last batch, when nothing they do is written.
            self._waiters = {**work.waiters, **self._waiters}
            return
        for waiter in work.waiters:
            waiter.write_batch_durable(work.number)
        self.ask_for_turn()

    def fail(self, error: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = self._failed(error)
        self._on_fatal(self._failure)

    def _failed(self, error: BaseException) -> StorageError:
        """What is told of an error: with its cause, unless the disk is."""
        if isinstance(error, StorageError):
            return error
        if isinstance(error, (OSError, sqlite3.Error)):
            return StorageFailed(f"{self._directory} cannot be used any more: {error}")
        failure = StorageFailed(f"{self._directory} cannot be used any more: {error!r}")
        failure.__cause__ = error
        return failure

    def close(self) -> None:
        """Raises StorageError when the disk refuses, or did before.

        It blocks; another thread than the loop's may call it once no turns are made any more.
        """
        if self._is_closed:
            return
        self._is_closed = self._segments.is_closed = True
        for worker in (self._journal_worker, self._checkpoint_worker, self._reader_worker):
            worker.stop()
        self.completions.run()
        try:
            if self._failure is None:
                self._stop_cleanly()
            if self._failure is not None:
                self.journal.abandon()
                raise self._failure
        finally:
            self._close_catalog()
            self._lock.release()

    def _close_catalog(self) -> None:
        self._catalog_copy.close()
        self._catalog.close()

    def _stop_cleanly(self) -> None:
        number = self.write_batch
        try:
            for log in self._logs.values():
                log.record_skipped()
            parts = self._changes.take()
            self.journal.write(number, parts, STOPPED, True, self.executor.now())
            self.journal.close()
        except Exception as error:
            # Whatever it is: the clean stop is not on disk.
            self._failure = self._failed(error)
            return
        self.durable = number
        self.write_batch = number + 1
        waiters = self._waiters
        self._waiters = {}
        for waiter in waiters:
            waiter.write_batch_durable(number)


def _encoded(name: str) -> bytes:
    encoded = name.encode()
    if len(encoded) > MAX_NAME:
        raise ValueError("the name of a log or table is too long")
    return encoded
