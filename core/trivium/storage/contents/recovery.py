"""Start-up: the state of logs and tables rebuilt from the journal.

Replay is idempotent. A checkpoint shows each log and table as it was at some moment between the
first write batch that is replayed and the last one that the checkpoint needs, so a change may find
its effect already there: records carry their offset and rows their whole value, and the numbers of
logs are never used again.
"""

from __future__ import annotations

import logging
import struct
from typing import Final

from trivium.storage.contents.changes import (
    APPEND,
    APPEND_CHANGE,
    APPEND_SAME,
    DEFINE_CHANGE,
    DEFINE_LOG,
    DEFINE_TABLE,
    DELETE,
    DROP_LOG,
    LOG_CHANGE,
    NEXT_OFFSET,
    PUT,
    REMOVE,
    ROW_CHANGE,
    TRUNCATE,
    Changes,
)
from trivium.storage.contents.log import DiskLog
from trivium.storage.contents.table import DiskTable
from trivium.storage.errors import StorageDamaged
from trivium.storage.files.encryption import Keys
from trivium.storage.files.filesystem import FileSystem, read_whole
from trivium.storage.journal.journal_files import (
    STOPPED,
    BatchPlace,
    JournalFile,
    file_name,
    file_number,
    read_file,
)
from trivium.storage.segments.segments import Segments

_logger: Final = logging.getLogger(__name__)


class Recovered:
    """Logs and tables by number, and where the journal goes on."""

    def __init__(self, changes: Changes, segments: Segments, keys: Keys) -> None:
        self.changes = changes
        self.keys = keys
        self.segments = segments
        self.logs: dict[int, DiskLog] = {}
        self.tables: dict[int, DiskTable] = {}
        self.next_log = 1
        self.next_table = 1
        #: batches up to this one are in the checkpoint, and those up to ``needed_batch`` must be
        #: in the journal for the checkpoint to be whole
        self.checkpoint_batch = -1
        self.needed_batch = -1
        #: the first journal file that the checkpoint left
        self.first_file = 1
        #: number of the next journal file, of the last batch, and bytes in the files
        self.next_file = 1
        self.last_batch = -1
        self.journal_bytes = 0
        #: each file's number and first batch, and the last file
        self.files: list[tuple[int, int]] = []
        self.last_file: JournalFile | None = None
        #: whether one is encrypted with another key than what is written, or not at all
        self.has_foreign_files = False
        #: paths of files that may go once all was found to be in order
        self.left_over: list[str] = []
        self.was_clean = False
        #: offsets below which a log's records are as the checkpoint has them
        self._checkpointed: dict[int, int] = {}
        #: logs that have changes in the journal but no definition: removed before the checkpoint
        self._unknown: dict[int, str] = {}

    def begin(self) -> None:
        """The checkpoint is loaded; batches follow."""
        self._checkpointed = {number: log.next_offset for number, log in self.logs.items()}

    def replay(self, filesystem: FileSystem, directory: str) -> None:
        """Read the journal. Raises StorageDamaged, StorageVersionMismatch, OSError."""
        self.begin()
        numbers: list[int] = []
        for name in filesystem.names(directory):
            number = file_number(name)
            if number is None or number < self.first_file:
                # Half made, spare, or behind the checkpoint but not removed when the process died.
                self.left_over.append(f"{directory}/{name}")
            else:
                numbers.append(number)
        if not numbers and self.needed_batch >= 0:
            raise StorageDamaged(f"{directory}/{file_name(self.first_file)}", 0, "it is missing")
        self.next_file = self.first_file
        # Of a new directory; a process that made a checkpoint and left no batch did not stop.
        self.was_clean = self.needed_batch < 0
        for number in numbers:
            self.last_file = self._replay_file(filesystem, directory, number, number == numbers[-1])
        last = self.last_file
        if last is not None:
            if last.is_followed:
                raise StorageDamaged(f"{directory}/{file_name(self.next_file)}", 0, "it is missing")
            if self.last_batch < self.needed_batch:
                reason = f"batch {self.needed_batch} of the checkpoint is missing"
                raise StorageDamaged(last.path, last.end, reason)
            for path in self._unknown.values():
                raise StorageDamaged(path, last.start, "it changes a log that is not there")
            if last.is_torn:
                reason = "where the last write was interrupted"
                _logger.warning("%s: cut at byte %d, %s", last.path, last.end, reason)

    def _replay_file(
        self, filesystem: FileSystem, directory: str, number: int, is_last: bool
    ) -> JournalFile:
        path = f"{directory}/{file_name(number)}"
        if number != self.next_file:
            raise StorageDamaged(f"{directory}/{file_name(self.next_file)}", 0, "it is missing")
        file = read_file(path, read_whole(filesystem, path), number, is_last, self.keys)
        if self.files and file.first_batch != self.last_batch + 1:
            raise StorageDamaged(path, 0, f"batch {self.last_batch + 1} is missing before it")
        if not self.files:
            if file.first_batch > self.checkpoint_batch + 1:
                raise StorageDamaged(path, 0, f"it begins with batch {file.first_batch}")
            self.last_batch = file.first_batch - 1
        for batch in file.batches:
            self.last_batch = batch.number
            self.was_clean = batch.flags & STOPPED != 0
            if batch.number > self.checkpoint_batch:
                self.apply(file, batch)
        self.files.append((number, file.first_batch))
        if file.key_id != self.keys.current:
            self.has_foreign_files = True
        self.journal_bytes += file.end
        self.next_file = number + 1
        return file

    def nameless(self, number: int) -> DiskLog:
        """A log of which only the number is known."""
        self.logs[number] = DiskLog(number, "", self.changes, self.segments)
        return self.logs[number]

    def apply(self, file: JournalFile, batch: BatchPlace) -> None:
        """Replay a batch, which lies in ``file``. Raises StorageDamaged.

        All of it or, when it raises, a part.
        """
        try:
            data, position, behind = file.body(batch)
            self._apply_changes(file.path, data, position, behind)
        except (KeyError, IndexError, UnicodeDecodeError, struct.error, _WrongChange) as error:
            # The checksum is right, so this was written: by a fault, or by somebody.
            reason = f"batch {batch.number} has no meaning"
            raise StorageDamaged(file.path, batch.start, reason) from error

    def _apply_changes(self, path: str, data: bytes, position: int, end: int) -> None:
        record = b""
        while position < end:
            kind = data[position]
            if APPEND <= kind <= APPEND_SAME:
                _, annotation_size, number, offset, count, size = APPEND_CHANGE.unpack_from(
                    data, position
                )
                annotation_at = position + APPEND_CHANGE.size
                record_at = annotation_at + annotation_size
                position = record_at + size
                if kind == APPEND:
                    record = data[record_at:position]
                log = self.logs.get(number)
                if log is None:
                    self._unknown[number] = path
                elif offset >= log.next_offset:
                    log.restore(offset, count, record, data[annotation_at:record_at])
                elif offset >= self._checkpointed.get(number, 0):
                    raise _WrongChange
            elif REMOVE <= kind <= NEXT_OFFSET:
                _, number, first, last = LOG_CHANGE.unpack_from(data, position)
                position += LOG_CHANGE.size
                self._change_log(path, kind, number, first, last)
            elif kind in (PUT, DELETE):
                _, number, key_size, value_size = ROW_CHANGE.unpack_from(data, position)
                key_at = position + ROW_CHANGE.size
                value_at = key_at + key_size
                position = value_at + value_size
                table = self.tables[number]
                if kind == PUT:
                    table.restore(data[key_at:value_at], data[value_at:position])
                else:
                    table.restore_deleted(data[key_at:value_at])
            elif kind in (DEFINE_LOG, DEFINE_TABLE):
                _, size, number = DEFINE_CHANGE.unpack_from(data, position)
                name_at = position + DEFINE_CHANGE.size
                position = name_at + size
                self._define(kind, number, data[name_at:position].decode())
            else:
                raise _WrongChange
        if position != end:
            raise _WrongChange

    def _change_log(self, path: str, kind: int, number: int, first: int, last: int) -> None:
        if kind == DROP_LOG:
            self._unknown.pop(number, None)
            dropped = self.logs.pop(number, None)
            if dropped is not None:
                dropped.drop()
                self.changes.dropped.append(number)
            return
        log = self.logs.get(number)
        if log is None:
            self._unknown[number] = path
        elif kind == REMOVE:
            log.restore_removed(first, last)
        elif kind == TRUNCATE:
            log.restore_truncated(first)
        else:
            log.restore_next_offset(first)

    def _define(self, kind: int, number: int, name: str) -> None:
        if kind == DEFINE_LOG:
            if number not in self.logs:
                self.logs[number] = DiskLog(number, name, self.changes, self.segments)
                self.logs[number].mark_changed()
            self.next_log = max(self.next_log, number + 1)
        else:
            if number not in self.tables:
                self.tables[number] = DiskTable(number, name, self.changes)
            self.next_table = max(self.next_table, number + 1)


class _WrongChange(Exception):
    """A batch holds something that is no change, or one that cannot follow the others."""
