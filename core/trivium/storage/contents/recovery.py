"""Start-up: the state of logs and tables rebuilt from the journal.

Replay is idempotent. A checkpoint shows each log and table as it was at some moment between the
first write batch that is replayed and the last one that the checkpoint needs, so a change may find
its effect already there: records carry their offset and rows their whole value, and the numbers of
logs are never used again.
"""

from __future__ import annotations

import logging
from typing import Final

from trivium.storage.contents.changes import (
    DEFINE_LOG,
    DROP_LOG,
    REMOVE,
    TRUNCATE,
    Changes,
    ChangeVisitor,
    WrongChange,
    read_changes,
)
from trivium.storage.contents.log import DiskLog
from trivium.storage.contents.table import DiskTable
from trivium.storage.errors import StorageDamaged
from trivium.storage.files.encryption import Keys
from trivium.storage.files.filesystem import FileSystem, read_whole
from trivium.storage.journal.journal_files import (
    STOPPED,
    JournalFile,
    WriteBatchPlace,
    file_name,
    file_number,
    read_file,
)
from trivium.storage.segments.segments import Segments

_logger: Final = logging.getLogger(__name__)


class Recovered(ChangeVisitor):
    """Logs and tables by number, and where the journal goes on."""

    def __init__(self, changes: Changes, segments: Segments, keys: Keys) -> None:
        self.changes = changes
        self.keys = keys
        self.segments = segments
        self.logs: dict[int, DiskLog] = {}
        self.tables: dict[int, DiskTable] = {}
        self.next_log = 1
        self.next_table = 1
        #: write batches up to this one are in the checkpoint, and those up to ``needed_batch`` must
        #: be in the journal for the checkpoint to be whole
        self.checkpoint_batch = -1
        self.needed_batch = -1
        #: the first journal file that the checkpoint left
        self.first_file = 1
        #: number of the next journal file, of the last write batch, and bytes in the files
        self.next_file = 1
        self.last_batch = -1
        self.journal_bytes = 0
        #: each file's number and first write batch, and the last file
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
        #: the file whose changes are read
        self._path = ""

    def begin(self) -> None:
        """The checkpoint is loaded; write batches follow."""
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
        self.next_file = self.first_file
        # Of a new directory; a process that made a checkpoint and left no write batch did not stop.
        self.was_clean = self.needed_batch < 0
        for number in numbers:
            self.last_file = self._replay_file(filesystem, directory, number, number == numbers[-1])
        last = self.last_file
        damage = self.damage_behind(
            last, self.last_batch, f"{directory}/{file_name(self.next_file)}"
        )
        if damage is not None:
            raise damage
        if last is not None:
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
        if self.files:
            reason = file.fault_behind(self.last_batch)
        else:
            reason = file.fault_as_first(self.checkpoint_batch)
            self.last_batch = file.first_batch - 1
        if reason:
            raise StorageDamaged(path, 0, reason)
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

    def damage_behind(
        self, last: JournalFile | None, last_batch: int, next_path: str
    ) -> StorageDamaged | None:
        """What is missing behind the last journal file, which ends with ``last_batch``.

        ``last`` is None when there is no file; the next one would have ``next_path``.
        """
        needed = self.needed_batch
        if (needed >= 0) if last is None else last.is_followed:
            return StorageDamaged(next_path, 0, "it is missing")
        if last is not None and last_batch < needed:
            reason = f"batch {needed} of the checkpoint is missing"
            return StorageDamaged(last.path, last.end, reason)
        return None

    def nameless(self, number: int) -> DiskLog:
        """A log of which only the number is known."""
        self.logs[number] = DiskLog(number, "", self.changes, self.segments)
        return self.logs[number]

    def apply(self, file: JournalFile, batch: WriteBatchPlace) -> None:
        """Replay a write batch, which lies in ``file``. Raises StorageDamaged.

        All of it or, when it raises, a part.
        """
        self._path = file.path
        try:
            data, position, end = file.body(batch)
            read_changes(data, position, end, self)
        except (KeyError, IndexError, UnicodeDecodeError, WrongChange) as error:
            # The checksum is right, so this was written: by a fault, or by somebody.
            reason = f"batch {batch.number} has no meaning"
            raise StorageDamaged(file.path, batch.start, reason) from error

    def append(self, log: int, offset: int, count: int, record: bytes, annotation: bytes) -> None:
        found = self.logs.get(log)
        if found is None:
            self._unknown[log] = self._path
        elif offset >= found.next_offset:
            found.restore(offset, count, record, annotation)
        elif offset >= self._checkpointed.get(log, 0):
            raise WrongChange

    def change_log(self, kind: int, log: int, first: int, last: int) -> None:
        if kind == DROP_LOG:
            self._unknown.pop(log, None)
            dropped = self.logs.pop(log, None)
            if dropped is not None:
                dropped.drop()
                self.changes.dropped.append(log)
            return
        found = self.logs.get(log)
        if found is None:
            self._unknown[log] = self._path
        elif kind == REMOVE:
            found.restore_removed(first, last)
        elif kind == TRUNCATE:
            found.restore_truncated(first)
        else:
            found.restore_next_offset(first)

    def put(self, table: int, key: bytes, value: bytes) -> None:
        self.tables[table].restore(key, value)

    def delete(self, table: int, key: bytes) -> None:
        self.tables[table].restore_deleted(key)

    def define(self, kind: int, number: int, name: bytes) -> None:
        text = name.decode()
        if kind == DEFINE_LOG:
            if number not in self.logs:
                self.logs[number] = DiskLog(number, text, self.changes, self.segments)
                self.logs[number].mark_changed()
            self.next_log = max(self.next_log, number + 1)
        else:
            if number not in self.tables:
                self.tables[number] = DiskTable(number, text, self.changes)
            self.next_table = max(self.next_table, number + 1)
