"""A checkpoint: what the journal holds moves to segments and catalog, and the journal is dropped.

Many changed rows are more than one checkpoint writes: see ``row_backlog``. The journal stays until
the last of them is in the catalog. The records of logs are in segments before that, and need not be
in memory any more.

It never stops the loop. Each turn looks at a part of what has changed and takes an image of it, and
only then another thread writes. The images are of different moments, some of them later than the
write batch from which the journal will be replayed; recovery copes with that because replay is
idempotent, provided that the journal reaches the last write batch any image shows. So the catalog
is not written before that one is durable, and it names it.

A crash at any point leaves the old state or the new one: segment files become part of the storage
by the catalog's one transaction, and everything that it makes useless is removed after it.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Callable
from typing import Final

from trivium.storage.catalog.catalog import Catalog, CatalogChanges
from trivium.storage.catalog.catalog_copy import CatalogCopy
from trivium.storage.checkpoint.empty_segments import EmptySegments
from trivium.storage.checkpoint.log_images import LogImages
from trivium.storage.checkpoint.relocation import Relocation
from trivium.storage.checkpoint.row_backlog import RowBacklog
from trivium.storage.checkpoint.row_images import RowImages
from trivium.storage.contents.contents import Contents
from trivium.storage.contents.log import DiskLog
from trivium.storage.files.executor import Completions, Work
from trivium.storage.journal.journal import JournalWriter
from trivium.storage.journal.old_files import OldJournalFiles
from trivium.storage.segments.segment_files import SegmentWriter
from trivium.storage.segments.segments import Segments

_logger: Final = logging.getLogger(__name__)

#: What one turn may do, in units of about half a microsecond interpreted.
STEP: Final = 2000

#: Rows that one checkpoint writes: enough that its syncs cost little beside them, and little enough
#: that the journal's next sync does not find the disk busy with them for long.
ROWS: Final = 20_000


class CheckpointTarget:
    """What the checkpoints of a storage write to."""

    def __init__(
        self,
        segments: Segments,
        catalog: Catalog,
        catalog_copy: CatalogCopy,
        journal: JournalWriter,
        entropy: Callable[[int], bytes],
        compresses: bool,
    ) -> None:
        self.segments = segments
        self.catalog = catalog
        self.catalog_copy = catalog_copy
        self.journal = journal
        self._entropy = entropy
        self._compresses = compresses

    def segment_writer(self, next_segment: int) -> SegmentWriter:
        """On the checkpoint's worker: what writes segment files from this number on."""
        segments = self.segments
        return SegmentWriter(
            segments.filesystem,
            segments.directory,
            next_segment,
            segments.keys,
            self._entropy,
            self._compresses,
            self.journal.written_size,
        )


class Checkpoint(Work):
    """One checkpoint, from its first look to the end.

    ``base_batch`` is the last write batch of which the catalog knows everything. One that
    ``takes_logs`` writes what has changed of logs too; else rows only, of ``backlog``,
    ``most_rows`` at most. One that ``relocates`` moves the rest of chunks.
    """

    def __init__(
        self,
        target: CheckpointTarget,
        contents: Contents,
        backlog: RowBacklog,
        most_rows: int,
        takes_logs: bool,
        relocates: bool,
        is_space_short: bool,
        base_batch: int,
        completions: Completions,
    ) -> None:
        super().__init__(completions)
        self._target = target
        self._contents = contents
        self._backlog = backlog
        #: whether it has what has changed of logs, or rows only
        self.takes_logs = takes_logs
        self._relocates = relocates
        self.is_space_short = is_space_short
        #: every write batch up to this one is in the catalog once it is made: as before, or more if
        #: it has the last of the rows
        self.base_batch = base_batch
        #: no write batch after this one is in it, even in part; known once ``is_complete``
        self.needed_batch = 0
        #: whether everything was looked at, and whether it is being written
        self.is_complete = False
        self.is_submitted = False
        #: whether it was written, or not
        self.is_finished = False
        self.error: Exception | None = None
        #: whether the checkpoint came to nothing because there is no space
        self.is_abandoned = False
        #: for the catalog
        self._changes = CatalogChanges()
        logs: list[DiskLog] = []
        if takes_logs:
            logs = list(contents.changes.logs.values())
            contents.changes.logs = {}
        self._logs = LogImages(logs, target.segments)
        self._rows = RowImages(backlog, most_rows)
        self._relocation = Relocation(target.segments)
        self._empty_segments: EmptySegments | None = None
        self._old_files: OldJournalFiles | None = None
        self._next_log = 0
        self._first_segment = 0
        self._next_segment = 0

    def step(self) -> bool:
        """Look at the next part of what has changed; True once that was all, or all rows that one
        checkpoint writes.
        """
        left = self._logs.take(STEP, self._changes)
        self._rows.take(left, self._changes)
        if not self._logs.is_complete or not self._rows.is_complete:
            return False
        if self._relocates and self.takes_logs:
            self._relocation.choose(self.is_space_short)
        return True

    @property
    def must_wait(self) -> bool:
        """Whether there is nothing to look at until the rows are in order."""
        return self._logs.is_complete and not self._backlog.is_sorted

    def complete(self, needed_batch: int) -> None:
        """Everything was looked at; ``needed_batch``: the last write batch that may show in it."""
        self.is_complete = True
        self.needed_batch = needed_batch
        if self._backlog.is_empty:
            self.base_batch = self._backlog.base_batch
        contents = self._contents
        self._changes.tables = [(table.number, table.name) for table in contents.tables.values()]
        if not self.takes_logs:
            return
        self._changes.dropped = contents.changes.dropped
        contents.changes.dropped = []
        self._logs.drop_empty()
        self._empty_segments = EmptySegments(self._target.segments, self._changes)

    def prepare(self) -> None:
        """Before it is submitted, once ``needed_batch`` is durable."""
        self.is_submitted = True
        self._next_log = self._contents.next_log
        self._first_segment = self._target.segments.next_segment
        self._old_files = OldJournalFiles(self._target.journal, self.base_batch)

    @property
    def has_relocated(self) -> bool:
        """Whether chunks were moved from one file to another."""
        return self._relocation.has_moved and not self.is_abandoned

    def run(self) -> None:
        """On the checkpoint's worker: write."""
        old_files = self._old_files
        assert old_files is not None
        target, changes = self._target, self._changes
        writer = target.segment_writer(self._first_segment)
        is_written = False
        try:
            self._logs.write(writer)
            self._relocation.write(writer)
            writer.finish()
            self._next_segment = writer.next_segment
            changes.set_positions(
                self.base_batch,
                self.needed_batch,
                old_files.first_needed,
                self._next_log,
                self._next_segment,
            )
            self._logs.add_to(changes)
            self._relocation.add_to(changes)
            target.catalog.write(changes)
            is_written = True
            target.catalog_copy.write(changes)
            changes.let_go()
            old_files.remove(self.is_space_short)
            if self._empty_segments is not None:
                self._empty_segments.remove()
        except (OSError, sqlite3.Error) as error:
            self.error = error
            if _is_disk_full(error) and not is_written:
                self._abandon(writer)

    def _abandon(self, writer: SegmentWriter) -> None:
        try:
            self._target.catalog.roll_back()
            writer.abandon(self._first_segment)
            self.is_abandoned = True
        except (OSError, sqlite3.Error) as error:
            self.error = error

    def finish(self) -> None:
        """On the loop's thread: the checkpoint was made, or not."""
        self.is_finished = True
        self._relocation.report()
        if self.is_abandoned:
            _logger.warning("checkpoint not made, the journal grows: %s", self.error)
            self._give_back()
        elif self.error is not None:
            self._target.segments.fail(self.error)
        else:
            assert self._old_files is not None
            self._old_files.forget()
            self._logs.begin_install()
            self._target.segments.next_segment = self._next_segment
            if self._empty_segments is not None:
                self._empty_segments.forget()

    def install(self) -> bool:
        """Once it is written, take over a part of where chunks lie; True when that is all."""
        if self.error is not None:
            return True
        if not self._logs.install(STEP):
            return False
        self._relocation.install()
        return True

    def _give_back(self) -> None:
        """Give back what was taken, for the next checkpoint."""
        self._logs.give_back()
        self._rows.give_back()
        if self._empty_segments is not None:
            self._empty_segments.give_back()
        changes = self._contents.changes
        changes.dropped = self._changes.dropped + changes.dropped


def _is_disk_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
