"""Storage in a data directory.

The way of a change: it is made in memory and added to ``Changes``; ``commit`` hands all of these to
the journal's worker as one write batch; when that is written and synced the worker tells the loop
through ``post``, and there ``durable`` rises and the waiters are called. One write batch is under
way at a time, so the next one fills meanwhile. When enough has gone to the journal a checkpoint is
made, turn by turn and then on a worker of its own: see ``trivium.storage.checkpoint``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trivium.storage.base import DurabilityWaiter, Log, Storage, Table
from trivium.storage.checkpoint.checkpoint import ROWS, CheckpointTarget
from trivium.storage.checkpoint.checkpoints import Checkpoints
from trivium.storage.checkpoint.journal_backlog import JournalBacklog
from trivium.storage.errors import StorageError, StorageFailed
from trivium.storage.figures import StorageFigures
from trivium.storage.files.directory import SEGMENT_DIRECTORY
from trivium.storage.files.encryption import Keys
from trivium.storage.files.executor import Completions, Executor, ThreadExecutor, Work, Workers
from trivium.storage.files.filesystem import FileSystem, RealFileSystem
from trivium.storage.journal.journal import FsyncPolicy
from trivium.storage.journal.journal_files import STOPPED
from trivium.storage.opening import OpenDirectory
from trivium.storage.segments.segments import Segments

#: Large enough that making the next file is rare, small enough that the space comes back soon.
JOURNAL_FILE_SIZE: Final = 32 * 1024 * 1024
#: What is not in a segment yet is in memory, so this bounds it, and how long a replay takes; but
#: what is consumed before the next checkpoint is written once only.
CHECKPOINT_SIZE: Final = 64 * 1024 * 1024
#: Records that could be read back from segments but are kept in memory all the same.
MEMORY_SIZE: Final = 64 * 1024 * 1024


class WriteBatchWork(Work):
    """A sealed write batch on its way to the disk."""

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
        """On the journal's worker: write and sync."""
        storage = self._storage
        now = storage.executor.now()
        self.size = storage.journal.write(self.number, self._parts, 0, False, now)
        taken = storage.executor.now() - now
        measured = storage.measured
        if storage.journal.synced == self.number:
            measured.syncs.observe(taken)
        else:
            measured.writes.observe(taken)
        measured.batches.observe(self.size)
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
        """On the journal's worker: sync."""
        storage = self._storage
        now = storage.executor.now()
        storage.journal.sync(now)
        storage.measured.syncs.observe(storage.executor.now() - now)

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
        if compression not in ("none", "zstd"):
            raise ValueError(f"compression must be none or zstd, not {compression!r}")
        self.is_durable = True
        self.executor = ThreadExecutor() if executor is None else executor
        self.completions = Completions(post, self.fail)
        self._directory = str(directory)
        self._wake = wake
        self._on_fatal = on_fatal
        self._waiters: dict[DurabilityWaiter, None] = {}
        self._is_busy = False
        self._failure: StorageError | None = None
        self._is_closed = False
        self._workers = Workers(self.executor)
        # The files with what checkpoints have written, and how much of it is in memory.
        keys = Keys() if keys is None else keys
        filesystem = RealFileSystem() if filesystem is None else filesystem
        self.segments = Segments(
            filesystem,
            f"{directory}/{SEGMENT_DIRECTORY}",
            memory_size,
            self._workers.reader,
            self.completions,
            self.fail,
            keys,
        )
        self._opened = OpenDirectory(
            filesystem,
            self._directory,
            self.segments,
            keys,
            entropy,
            journal_file_size,
            FsyncPolicy(fsync),
            self.executor.now(),
        )
        self.journal = self._opened.journal
        self.was_clean = self._opened.was_clean
        self.durable = self.journal.written
        self.write_batch = self.durable + 1
        self._changes = self._opened.contents.changes
        compresses = compression == "zstd"
        self._checkpoints = self._plan(checkpoint_size, checkpoint_rows, entropy, compresses)

    def _plan(
        self, size: int, rows: int, entropy: Callable[[int], bytes], compresses: bool
    ) -> Checkpoints:
        opened = self._opened
        #: what was measured; ``figures`` has it whole
        self.measured = StorageFigures()
        self.measured.recovery_seconds = self.executor.now() - opened.began_at
        self._backlog = JournalBacklog(size, opened.journal_bytes)
        if opened.wants_checkpoint:
            self._backlog.ask_for_logs()
        target = CheckpointTarget(
            self.segments,
            opened.catalog,
            opened.catalog_copy,
            opened.journal,
            entropy,
            compresses,
        )
        return Checkpoints(
            target,
            opened.contents,
            self._backlog,
            rows,
            opened.checkpoint_batch,
            self._workers.checkpoint,
            self.completions,
            self.ask_for_turn,
            self.sync_journal,
            self.executor.now,
            self.measured.checkpoints,
        )

    def table(self, name: str) -> Table:
        return self._opened.contents.table(name)

    def log(self, name: str) -> Log:
        return self._opened.contents.log(name)

    def drop_log(self, name: str) -> None:
        self._opened.contents.drop_log(name)

    def log_names(self) -> list[str]:
        return list(self._opened.contents.logs)

    def table_names(self) -> list[str]:
        """The names of all tables."""
        return list(self._opened.contents.tables)

    def wait(self, waiter: DurabilityWaiter) -> int:
        self._waiters[waiter] = None
        return self.write_batch

    def commit(self) -> None:
        if self._failure is not None or self._is_closed:
            return
        if not self._is_busy and (self._changes.count or self._waiters):
            work = WriteBatchWork(self, self.write_batch, self._changes.take(), self._waiters)
            self._waiters = {}
            self.write_batch += 1
            self._is_busy = True
            self._workers.journal.submit(work)
        if not self.segments.make_room(0):
            self._wake()
        self._checkpoints.turn(self.write_batch, self.durable)

    def figures(self) -> StorageFigures:
        figures = self.measured
        figures.journal_bytes = self._backlog.size
        figures.journal_files = len(self.journal.files)
        sizes = list(self.segments.sizes.values())
        figures.segments = len(sizes)
        figures.segment_bytes = sum(sizes)
        return figures

    def ask_for_checkpoint(self) -> None:
        """Have a checkpoint made, however little is in the journal."""
        self._checkpoints.ask()

    @property
    def is_making_checkpoint(self) -> bool:
        """Whether a checkpoint was begun and is not done."""
        return self._checkpoints.is_making_one

    @property
    def loaded_bytes(self) -> int:
        """Bytes in memory that could be read back from segments."""
        return self.segments.loaded_bytes

    @property
    def pending_bytes(self) -> int:
        return self._changes.size + self._backlog.excess

    @property
    def changes(self) -> int:
        return self._changes.count

    def free_space(self) -> None:
        """A checkpoint drops journal files and segments."""
        self._checkpoints.free_space()

    def tidy(self) -> None:
        """A checkpoint drops the segments of a backlog that was consumed."""
        self.completions.check()
        self._checkpoints.tidy(self.write_batch)

    def ask_for_turn(self) -> None:
        """Have ``commit`` called soon."""
        if not self._is_closed:
            self._wake()

    def sync_journal(self) -> None:
        """Have the journal synced, unless a write batch is under way to it."""
        if not self._is_busy:
            self._workers.journal.submit(SyncWork(self))

    def sync_later(self) -> None:
        """On the journal's worker: with an interval policy, sync once the worker has been idle."""
        seconds = self.journal.policy.seconds
        if seconds and self.journal.synced < self.journal.written:
            self._workers.journal.submit_later(SyncWork(self), seconds)

    def batch_written(self, work: WriteBatchWork) -> None:
        """A write batch is done."""
        if self._failure is not None:
            return
        self._is_busy = False
        self._backlog.add(work.size)
        self.durable = work.number
        if self._is_closed:
            # They hear of it with those of the last write batch, when nothing they do is written.
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
        self._is_closed = self.segments.is_closed = True
        self._workers.stop()
        self.completions.run()
        try:
            if self._failure is None:
                self._stop_cleanly()
            if self._failure is not None:
                self.journal.abandon()
                raise self._failure
        finally:
            self._opened.release()

    def withdraw(self) -> None:
        try:
            if self.was_clean and self._failure is None:
                self.journal.write(self.write_batch, [], STOPPED, True, self.executor.now())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the directory as it is, as if the process had been killed.

        Nothing may be under way, and the storage is not used any more.
        """
        self._is_closed = self.segments.is_closed = True
        self._workers.stop()
        self.journal.abandon()
        self._opened.release()

    def _stop_cleanly(self) -> None:
        number = self.write_batch
        try:
            self._opened.contents.record_skipped()
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
