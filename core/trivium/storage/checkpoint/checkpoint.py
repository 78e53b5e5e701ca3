"""A checkpoint: what the journal holds moves to segments and catalog, and the journal is dropped.

Many changed rows are more than one checkpoint writes: see ``row_backlog``. The journal stays until
the last of them is in the catalog. The records of logs are in segments before that, and need not be
in memory any more.

It never stops the loop. Each turn looks at a part of what has changed and takes an image of it, and
only then another thread writes. The images are of different moments, some of them later than the
batch from which the journal will be replayed; recovery copes with that because replay is
idempotent, provided that the journal reaches the last batch any image shows. So the catalog is not
written before that batch is durable, and it names it.

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
from trivium.storage.checkpoint.row_backlog import RowBacklog, RowPortion
from trivium.storage.contents.changes import Changes
from trivium.storage.contents.log import DiskLog
from trivium.storage.contents.table import DiskTable
from trivium.storage.errors import StorageDamaged
from trivium.storage.files.encryption import Keys
from trivium.storage.files.executor import Completions, TimeSlice, Work
from trivium.storage.files.filesystem import FileSystem
from trivium.storage.journal.journal import SPARE_SUFFIX, JournalWriter
from trivium.storage.journal.journal_files import file_name
from trivium.storage.segments.blocks import ChunkImage, Place, image_of
from trivium.storage.segments.chunks import Chunk, list_made
from trivium.storage.segments.segment_files import SegmentWriter
from trivium.storage.segments.segments import Segments

_logger: Final = logging.getLogger(__name__)

#: What one turn may do, in units of about half a microsecond interpreted.
STEP: Final = 2000
_LOG_COST: Final = 4
#: In the order of their keys, each row of a large table is somewhere else in memory.
_ROW_COST: Final = 4
_INSTALL_COST: Final = 4

#: Rows that one checkpoint writes: enough that its syncs cost little beside them, and little enough
#: that the journal's next sync does not find the disk busy with them for long.
ROWS: Final = 20_000

#: Journal files kept to be used again, so that the next ones need no new blocks: as many as were
#: filled since the last checkpoint, but not more than this.
_SPARES: Final = 8


class Checkpoint(Work):
    """One checkpoint, from its first look to the end."""

    def __init__(
        self,
        filesystem: FileSystem,
        journal_directory: str,
        segment_directory: str,
        changes: Changes,
        rows: RowBacklog,
        most_rows: int,
        takes_logs: bool,
        segments: Segments,
        catalog: Catalog,
        catalog_copy: CatalogCopy,
        completions: Completions,
        base_batch: int,
        is_space_short: bool,
        compresses: bool,
        relocates: bool,
        keys: Keys,
        entropy: Callable[[int], bytes],
    ) -> None:
        super().__init__(completions)
        self._keys = keys
        self._entropy = entropy
        self._filesystem = filesystem
        self._journal_directory = journal_directory
        self._segment_directory = segment_directory
        self._changes = changes
        self._backlog = rows
        self._rows_left = most_rows
        #: the rows in it
        self._portions: list[RowPortion] = []
        #: whether it has what has changed of logs, or rows only
        self.takes_logs = takes_logs
        self._segments = segments
        self._catalog = catalog
        self._catalog_copy = catalog_copy
        self.is_space_short = is_space_short
        self._compresses = compresses
        #: whether files are rewritten in which little is left
        self._relocates = relocates
        #: every batch up to this one is in the catalog once it is made: as before, or more if it
        #: has the last of the rows
        self.base_batch = base_batch
        #: no batch after this one is in it, even in part; known once ``is_complete``
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
        self._rows = CatalogChanges()
        self._images: list[ChunkImage] = []
        #: chunks to be written anew, and those that were
        self._to_relocate: list[Place] = []
        self._relocated: list[tuple[Place, Chunk, list[int]]] = []
        self._unreadable: list[Place] = []
        #: chunks in segments that have lost records: log, chunk, the lost ones
        self._changed: list[tuple[DiskLog, Chunk, int]] = []
        self._seen_logs: list[DiskLog] = []
        self._logs: list[DiskLog] = []
        if takes_logs:
            self._logs = changes.logs
            changes.logs = []
        self._first_file = 0
        self._old_files: list[int] = []
        self._journal: JournalWriter | None = None
        self._next_log = 0
        self._first_segment = 0
        self._next_segment = 0
        self._empty_segments: list[int] = []
        self._left_segments: list[tuple[int, int]] = []

    def step(self) -> bool:
        """Look at the next part of what has changed; True once that was all, or all rows that one
        checkpoint writes.
        """
        left = STEP
        while left > 0 and self._logs:
            log = self._logs[-1]
            chunks, cost = log.take_chunks(left)
            for chunk in chunks:
                self._images.append(image_of(log, chunk))
            left -= cost + _LOG_COST
            if not chunks:
                self._logs.pop()
                self._take_log(log)
        while left >= _ROW_COST and self._rows_left > 0:
            portion = self._backlog.next(min(left // _ROW_COST, self._rows_left))
            if portion is None:
                break
            self._portions.append(portion)
            self._take_rows(portion)
            self._rows_left -= len(portion.keys)
            left -= _ROW_COST * len(portion.keys)
        if self._logs or not self._has_all_rows():
            return False
        if self._relocates and self.takes_logs:
            to_relocate = self._segments.to_relocate(self.is_space_short)
            self._to_relocate = [Place(log, chunk) for log, chunk in to_relocate]
        return True

    def _take_rows(self, portion: RowPortion) -> None:
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
            self._rows.rows.append((number, keys, values))
            list_made(2 * len(keys))
        if deleted:
            self._rows.deleted.append((number, deleted))
            list_made(len(deleted))

    def _has_all_rows(self) -> bool:
        if self._rows_left <= 0:
            return self._backlog.is_sorted
        return self._backlog.is_empty

    @property
    def must_wait(self) -> bool:
        """Whether there is nothing to look at until the rows are in order."""
        return not self._logs and not self._backlog.is_sorted

    def _take_log(self, log: DiskLog) -> None:
        self._seen_logs.append(log)
        for chunk in log.take_changed():
            if chunk.live:
                self._changed.append((log, chunk, chunk.removed))
        if not log.is_dropped:
            self._rows.logs.append((log.number, log.name, log.next_offset))
            list_made(_LOG_COST)

    def complete(self, needed_batch: int, tables: list[DiskTable]) -> None:
        """Everything was looked at. ``needed_batch`` is the last batch that may show in it."""
        self.is_complete = True
        self.needed_batch = needed_batch
        if self._backlog.is_empty:
            self.base_batch = self._backlog.base_batch
        self._rows.tables = [(table.number, table.name) for table in tables]
        if not self.takes_logs:
            return
        self._rows.dropped = self._changes.dropped
        self._changes.dropped = []
        self._images = [image for image in self._images if image.chunk.live]
        segments = self._segments
        self._rows.dead = segments.dead
        segments.dead = []
        for _, _, segment in self._rows.dead:
            if segments.discard(segment):
                self._empty_segments.append(segment)
        self._left_segments = segments.take_left()

    def prepare(self, journal: JournalWriter, next_log: int) -> None:
        """Before it is submitted, once ``needed_batch`` is durable."""
        self.is_submitted = True
        self._journal = journal
        self._next_log = next_log
        self._first_segment = self._segments.next_segment
        for number, first_batch in journal.files:
            if first_batch > self.base_batch + 1:
                break
            self._old_files.append(number)
        self._first_file = self._old_files.pop()

    def has_relocated(self) -> bool:
        """Whether chunks were moved from one file to another."""
        return bool(self._relocated) and not self.is_abandoned

    def run(self) -> None:
        """On the checkpoint worker: write."""
        assert self._journal is not None
        writer = SegmentWriter(
            self._filesystem,
            self._segment_directory,
            self._first_segment,
            self._keys,
            self._entropy,
            self._compresses,
            self._journal.written_size,
        )
        is_written = False
        try:
            for image in self._images:
                writer.write(image)
            self._relocate(writer)
            writer.finish()
            self._next_segment = writer.next_segment
            self._complete_rows()
            self._catalog.write(self._rows)
            is_written = True
            self._catalog_copy.write(self._rows)
            self._rows.let_go()
            self._drop_journal()
            for number in self._empty_segments:
                self._filesystem.remove(self._segments.path(number))
            for number, _ in self._left_segments:
                self._filesystem.remove(self._segments.path(number))
        except (OSError, sqlite3.Error) as error:
            self.error = error
            if _is_disk_full(error) and not is_written:
                self._abandon(writer)

    def _relocate(self, writer: SegmentWriter) -> None:
        """Write what is left of chunks in files that are to go."""
        reader = self._segments.reader()
        try:
            for place in self._to_relocate:
                try:
                    records, annotations = reader.read(place)
                except StorageDamaged as damage:
                    # It stays where it is, for whoever reads it.
                    _logger.error("%s", damage)
                    self._unreadable.append(place)
                    continue
                moved, kept = place.chunk.without(place.removed)
                image = ChunkImage(
                    place.log,
                    moved,
                    [record for slot in kept if (record := records[slot]) is not None],
                    {
                        index: annotations[slot]
                        for index, slot in enumerate(kept)
                        if slot in annotations
                    }
                    if annotations
                    else None,
                )
                moved.size = sum(map(len, image.records))
                writer.write(image)
                moved.segment = image.segment
                moved.position = image.position
                moved.length = image.length
                self._relocated.append((place, moved, kept))
        finally:
            reader.close()

    def _complete_rows(self) -> None:
        rows = self._rows
        rows.set_positions(
            self.base_batch,
            self.needed_batch,
            self._first_file,
            self._next_log,
            self._next_segment,
        )
        slice_ = TimeSlice()
        for image in self._images:
            rows.chunks.append(
                (image.log.number, image.chunk, image.segment, image.position, image.length, 0)
            )
            slice_.pause()
        for log, chunk, removed in self._changed:
            rows.chunks.append(
                (log.number, chunk, chunk.segment, chunk.position, chunk.length, removed)
            )
        # Last, since a chunk may have lost records and be written anew.
        for place, moved, _ in self._relocated:
            rows.chunks.append(
                (place.log.number, moved, moved.segment, moved.position, moved.length, 0)
            )

    def _drop_journal(self) -> None:
        assert self._journal is not None
        spares = self._journal.spares
        limit = 0 if self.is_space_short else min(len(self._old_files), _SPARES)
        while len(spares) > limit:
            try:
                path = spares.pop()
            except IndexError:
                # The journal has just taken the last one.
                break
            self._filesystem.remove(path)
        for number in self._old_files:
            path = f"{self._journal_directory}/{file_name(number)}"
            if len(spares) < limit:
                self._filesystem.rename(path, path + SPARE_SUFFIX)
                spares.append(path + SPARE_SUFFIX)
            else:
                self._filesystem.remove(path)

    def _abandon(self, writer: SegmentWriter) -> None:
        try:
            self._catalog.roll_back()
            writer.abandon(self._first_segment)
            self.is_abandoned = True
        except (OSError, sqlite3.Error) as error:
            self.error = error

    def finish(self) -> None:
        """On the loop's thread: the checkpoint was made, or not."""
        self.is_finished = True
        for place in self._unreadable:
            self._segments.unreadable(place)
        if self.is_abandoned:
            _logger.warning("checkpoint not made, the journal grows: %s", self.error)
            self._restore()
        elif self.error is not None:
            self._segments.fail(self.error)
        else:
            assert self._journal is not None
            del self._journal.files[: len(self._old_files)]
            # They are taken from the end.
            self._images.reverse()
            self._segments.next_segment = self._next_segment
            for number in self._empty_segments:
                self._segments.forget(number)

    def install(self) -> bool:
        """Once it is written, take over the next part of where chunks lie; True when that is all.

        Until then a chunk is in memory, and its removals are noted with it.
        """
        if self.error is not None:
            return True
        segments = self._segments
        for _ in range(STEP // _INSTALL_COST):
            if not self._images:
                break
            image = self._images.pop()
            chunk = image.chunk
            chunk.segment = image.segment
            chunk.position = image.position
            chunk.length = image.length
            segments.add(image.log, chunk)
            if chunk.live == 0:
                segments.dead.append((image.log.number, chunk.first, chunk.segment))
                continue
            segments.charge(chunk)
            if chunk.removed:
                image.log.add_changed(chunk)
        if self._images:
            return False
        for place, moved, kept in self._relocated:
            segments.move(place, moved, kept)
        return True

    def _restore(self) -> None:
        """Give back what was taken, for the next checkpoint."""
        segments = self._segments
        for image in self._images:
            if image.chunk.live:
                image.chunk.fixed = False
                image.chunk.removed = 0
        for log in self._seen_logs:
            if not log.is_dropped:
                log.mark_changed()
        for log, chunk, _ in self._changed:
            if chunk.live and not chunk.changed:
                log.add_changed(chunk)
        self._backlog.give_back(self._portions)
        for _, _, segment in self._rows.dead:
            segments.chunks[segment] += 1
        segments.left += self._left_segments
        segments.dead = self._rows.dead + segments.dead
        self._changes.dropped = self._rows.dropped + self._changes.dropped


def _is_disk_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
