"""What a stopped data directory holds, and everything that is wrong with it.

Where a start stops at the first damage, an inspection goes on: past a wrong write batch to the next
one that is whole, past a wrong row, block or file to the rest. What it ends up with is all that can
be saved, beside the places that are damaged and the offsets that are lost. It changes nothing.

Damage is resolved towards keeping: when it is not known any more whether a record was removed, the
record stays, and is listed among those that come back.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from trivium.storage.catalog.catalog import Catalog
from trivium.storage.contents.changes import Changes
from trivium.storage.contents.log import DiskLog
from trivium.storage.contents.recovery import Recovered
from trivium.storage.errors import StorageDamaged, StorageFailed
from trivium.storage.files.directory import (
    CATALOG_COPY_FILE,
    CATALOG_FILE,
    JOURNAL_DIRECTORY,
    NO_FORMAT,
    SEGMENT_DIRECTORY,
    read_directory_format,
)
from trivium.storage.files.encryption import Keys
from trivium.storage.files.executor import Completions, Worker
from trivium.storage.files.filesystem import FileSystem, read_whole
from trivium.storage.journal.journal_files import file_name
from trivium.storage.opening import format_fault, is_catalog_lost
from trivium.storage.repair.inspected_journal import MARGIN, InspectedJournal
from trivium.storage.repair.salvage import salvaged
from trivium.storage.segments.blocks import (
    BLOCK_HEADER_SIZE,
    SPARSE,
    Place,
    block_body,
    block_header,
    block_name,
    decode_block,
    offsets_from_bytes,
)
from trivium.storage.segments.chunks import Chunk, chunk_in_segment
from trivium.storage.segments.segment_files import (
    ENCRYPTED_HEADER_SIZE,
    FILE_HEADER_SIZE,
    read_file_header,
    segment_number,
)
from trivium.storage.segments.segments import Segments

#: says what is wrong with a record of a log, "" for nothing; gets the log's name, the record, and
#: how many offsets it spans
CheckRecord = Callable[[str, bytes, int], str]

#: is told how many chunks are checked, and of how many
Report = Callable[[int, int], None]

LOST: Final = "lost"
#: there may have been records, or the offsets were never given to any
MAYBE_LOST: Final = "lost, if there was anything"
#: whether the records had been removed is not known any more
COMES_BACK: Final = "kept, even if removed before"


def _ignore(done: int, total: int) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of offsets ``first`` to ``last`` of a log; ``records`` is 0 when not known.

    ``last`` is UNKNOWN for those from ``first`` on.

    ``log`` is "" when its name is lost; ``number`` is its number in the files.
    """

    log: str
    number: int
    first: int
    last: int
    records: int
    fate: str


class Inspection:
    """The state of a directory. The caller holds its lock.

    Raises StorageVersionMismatch, StorageKeyError, StorageFailed.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        check_record: CheckRecord,
        keys: Keys | None = None,
        report: Report = _ignore,
    ) -> None:
        self._report = report
        self._checked = 0
        self.keys = Keys() if keys is None else keys
        self.filesystem = filesystem
        self.directory = directory
        self.journal_directory = f"{directory}/{JOURNAL_DIRECTORY}"
        self.segment_directory = f"{directory}/{SEGMENT_DIRECTORY}"
        self.catalog_path = f"{directory}/{CATALOG_FILE}"
        self.catalog_copy_path = f"{directory}/{CATALOG_COPY_FILE}"
        self._check_record = check_record
        #: each once, in the order of finding
        self.damages: list[StorageDamaged] = []
        self.losses: list[Loss] = []
        #: what else is to be said
        self.notes: list[str] = []
        #: records without meaning: number of the log, offset, record
        self.wrong_records: list[tuple[int, int, bytes]] = []
        #: files that hold, beside others, what is lost or damaged
        self.suspects: set[str] = set()
        #: the offset at which a log may go on, where that is not behind its last record
        self.next_offsets: dict[int, int] = {}
        self.segments = Segments(
            filesystem,
            self.segment_directory,
            0,
            Worker(),
            Completions(_no_post, _no_failure),
            _no_failure,
            self.keys,
        )
        self.recovered = Recovered(Changes(), self.segments, self.keys)
        try:
            self._inspect()
        except OSError as error:
            raise StorageFailed(f"cannot read {directory}: {error}") from error

    def logs(self) -> list[DiskLog]:
        """What is left of the logs, by name."""
        return sorted(self.recovered.logs.values(), key=lambda log: log.name)

    def _inspect(self) -> None:
        version = NO_FORMAT
        try:
            version = read_directory_format(self.filesystem, self.directory)
        except StorageDamaged as damage:
            self._damaged(damage)
        has_positions = self._load_catalog(version)
        recovered = self.recovered
        recovered.begin()
        journal = InspectedJournal(self.filesystem, self.journal_directory, recovered)
        journal.read(self._names(self.journal_directory), has_positions or not self.damages)
        for found in journal.damages:
            self._damaged(found)
        fault = format_fault(self.directory, version, recovered)
        if fault is not None:
            self._damaged(fault)
        self.notes += journal.notes
        for gap in journal.gaps:
            log = recovered.logs.get(gap.number)
            name = gap.name if log is None or not log.name else log.name
            fate = LOST if gap.is_certain else MAYBE_LOST
            self.losses.append(Loss(name, gap.number, gap.first, gap.last, gap.records, fate))
        for number, offset in journal.next_offsets.items():
            self.next_offsets[number] = max(offset, self.next_offsets.get(number, 0))
        if self.damages:
            self.suspects.update(journal.paths)
        self._drop_older_logs()
        self._chunks = sum(len(log.chunks()) for log in recovered.logs.values())
        for log in list(recovered.logs.values()):
            if log.name:
                self._check_log(log)
            else:
                self._lose_nameless(log)
        for number, table in list(recovered.tables.items()):
            if not table.name:
                self._damaged(self._in_catalog(f"the name of table {number} is missing"))
                self.notes.append(f"table {number}, whose name is lost: {len(table)} rows lost")
                del recovered.tables[number]

    def _damaged(self, damage: StorageDamaged) -> None:
        if str(damage) not in map(str, self.damages):
            self.damages.append(damage)
        self.suspects.add(damage.file)

    def _names(self, directory: str) -> list[str]:
        # A start makes a directory that is missing, and misses the files.
        return self.filesystem.names(directory) if self.filesystem.exists(directory) else []

    def _in_catalog(self, reason: str) -> StorageDamaged:
        return StorageDamaged(self.catalog_path, 0, reason)

    # The catalog

    def _load_catalog(self, version: int) -> bool:
        """Whether it says where the journal begins."""
        names = self._names(self.segment_directory)
        numbers = [number for number in map(segment_number, names) if number is not None]
        found = len(self.damages)
        has_positions = False
        damaged_chunks: list[tuple[Any, ...]] = []
        catalog, is_whole = self._open_catalog()
        if catalog is not None:
            try:
                catalog.load(self.recovered, self.segments, self._damaged)
            finally:
                catalog.close()
            has_positions = catalog.has_positions
            damaged_chunks = catalog.damaged_chunks
        is_unreadable = not is_whole or not has_positions
        if not has_positions and len(self.damages) == found:
            is_journal_whole = self.filesystem.exists(f"{self.journal_directory}/{file_name(1)}")
            if is_catalog_lost(version, is_journal_whole, names):
                self._damaged(self._in_catalog("it is missing, or empty"))
        if any(damage.file == self.catalog_path for damage in self.damages[found:]):
            self._find_chunks(damaged_chunks, is_unreadable, numbers)
            unnamed = set(numbers) - self.segments.chunks.keys()
            self.suspects.update(map(self.segments.path, unnamed))
        self.segments.next_segment = max(self.segments.next_segment - 1, *numbers, 0) + 1
        return has_positions

    def _open_catalog(self) -> tuple[Catalog | None, bool]:
        """The catalog, its copy, or what both files still say; whether no row can be missing."""
        catalog = self._whole_catalog(self.catalog_path)
        copy = self._whole_catalog(self.catalog_copy_path)
        if copy is not None and (catalog is None or not catalog.positions()) and copy.positions():
            if catalog is not None or not self.filesystem.exists(self.catalog_path):
                self._damaged(self._in_catalog("it is missing, or empty"))
            self.notes.append(f"{self.catalog_path}: all that was in it is in its copy")
            catalog, copy = copy, catalog
        if copy is not None:
            copy.close()
        if catalog is not None:
            return catalog, True
        paths = (self.catalog_copy_path, self.catalog_path)
        files = [
            read_whole(self.filesystem, path) for path in paths if self.filesystem.exists(path)
        ]
        if not files:
            return None, False
        database = salvaged(files)
        if not database.is_whole:
            self.notes.append(
                "rows of tables may be lost: those in pages of the catalog that cannot be read"
            )
        return Catalog(
            self.filesystem, self.catalog_path, self.keys, os.urandom, database
        ), database.is_whole

    def _whole_catalog(self, path: str) -> Catalog | None:
        """The catalog in this file, if there is one and nothing is wrong with it."""
        if not self.filesystem.exists(path):
            return None
        try:
            catalog = Catalog(self.filesystem, path, self.keys, os.urandom)
        except StorageDamaged as damage:
            self._damaged(damage)
            return None
        reason = catalog.verify()
        if not reason:
            return catalog
        catalog.close()
        self._damaged(StorageDamaged(path, 0, reason))
        return None

    def _find_chunks(
        self, damaged: list[tuple[Any, ...]], is_unreadable: bool, segments: list[int]
    ) -> None:
        """Take in chunks that the catalog does not tell about any more, as their blocks are."""
        starts = {row[:2] for row in damaged}
        places = {row[5:7] for row in damaged}
        rowless: set[int] = set()
        for segment in segments:
            for number, name, chunk in self._blocks(segment):
                log = self.recovered.logs.get(number)
                if log is not None and not log.name:
                    log.name = name
                    rowless.add(number)
                is_named = (number, chunk.first) in starts or (segment, chunk.position) in places
                if not is_named and not is_unreadable:
                    continue
                if log is None:
                    log = self.recovered.nameless(number)
                    log.name = name
                    rowless.add(number)
                if log.adopt(chunk):
                    self.segments.add(log, chunk)
                    if log.name:
                        self._lose(log, chunk.first, chunk.end - 1, chunk.live, COMES_BACK)
        # Where they would have gone on was in the rows that had their names.
        for number in rowless:
            self.next_offsets[number] = self.recovered.logs[number].next_offset + MARGIN

    def _blocks(self, segment: int) -> Iterator[tuple[int, str, Chunk]]:
        """All blocks of a segment file: the log, and a chunk of which nothing was removed."""
        path = self.segments.path(segment)
        try:
            file = self.filesystem.open(path)
        except StorageDamaged as damage:
            self._damaged(damage)
            return
        position, cipher = FILE_HEADER_SIZE, None
        try:
            head = read_file_header(file.read(0, ENCRYPTED_HEADER_SIZE), path, segment, self.keys)
            position, cipher = head.size, head.cipher
        except StorageDamaged as damage:
            self._damaged(damage)
        while (header := block_header(file.read(position, BLOCK_HEADER_SIZE))) is not None:
            number, first, end, count, flags, length, _ = header
            data = file.read(position, BLOCK_HEADER_SIZE + length)
            body = block_body(data, header, position, cipher)
            if body is None:
                # It is wrong: left to whoever reads the chunk to say so.
                body = bytes(20 * count)
                flags = 0
            name, at = block_name(body, flags)
            size = sum(struct.unpack_from(f"<{count}I", body, at))
            chunk = chunk_in_segment(
                first, end, count, size, segment, position, BLOCK_HEADER_SIZE + length
            )
            if flags & SPARSE:
                at += 4 * count
                chunk.offsets = offsets_from_bytes(body[at : at + 8 * count])
                chunk.ends = offsets_from_bytes(body[at + 8 * count : at + 16 * count])
            yield number, name, chunk
            position += chunk.length
        file.close()

    # Logs

    def _lose(self, log: DiskLog, first: int, last: int, records: int, fate: str) -> None:
        if self.losses:
            before = self.losses[-1]
            is_same = (before.number, before.fate) == (log.number, fate)
            if is_same and before.last + 1 == first and before.records and records:
                self.losses[-1] = replace(before, last=last, records=before.records + records)
                return
        self.losses.append(Loss(log.name, log.number, first, last, records, fate))

    def _drop_older_logs(self) -> None:
        """Only the newest log of a name is left; blocks of those removed before have it too."""
        newest: dict[str, DiskLog] = {}
        for number in sorted(self.recovered.logs):
            log = self.recovered.logs[number]
            older = newest.get(log.name)
            newest[log.name] = log
            if log.name and older is not None:
                older.drop()
                del self.recovered.logs[older.number]
                self.losses = [each for each in self.losses if each.number != older.number]

    def _lose_nameless(self, log: DiskLog) -> None:
        self._damaged(self._in_catalog(f"the name of log {log.number} is missing"))
        for chunk in log.chunks():
            if chunk.segment:
                self.suspects.add(self.segments.path(chunk.segment))
        if len(log):
            self._lose(log, log.first_offset, log.next_offset - 1, len(log), LOST)
        log.drop()
        del self.recovered.logs[log.number]

    def _check_log(self, log: DiskLog) -> None:
        """Read every record, and remove those that are damaged."""
        for chunk in log.chunks():
            self._report(self._checked, self._chunks)
            self._checked += 1
            records = chunk.records
            if records is None:
                try:
                    records = self._read_chunk(log, chunk)
                except StorageDamaged as damage:
                    self._damaged(damage)
                    self._lose_chunk(log, chunk)
                    continue
            for slot in range(chunk.slots):
                record = records[slot]
                if record is None or chunk.is_removed(slot):
                    continue
                offset = chunk.offset_at(slot)
                count = 1 if chunk.ends is None else chunk.ends[slot] - offset
                reason = self._check_record(log.name, record, count)
                if reason:
                    path = self.journal_directory
                    if chunk.segment:
                        path = self.segments.path(chunk.segment)
                    what = f"the record of {log.name} at offset {offset} has no meaning: {reason}"
                    self._damaged(StorageDamaged(path, chunk.position, what))
                    self.wrong_records.append((log.number, offset, record))
                    self._lose(log, offset, offset + count - 1, 1, LOST)
        for number, offset, _ in self.wrong_records:
            if number == log.number:
                log.restore_removed(offset, offset)

    def _read_chunk(self, log: DiskLog, chunk: Chunk) -> list[bytes | None]:
        path = self.segments.path(chunk.segment)
        if not self.filesystem.exists(path):
            raise StorageDamaged(path, 0, "it is missing")
        file = self.filesystem.open(path)
        head = file.read(0, ENCRYPTED_HEADER_SIZE)
        data = file.read(chunk.position, chunk.length)
        file.close()
        cipher, is_wrong = None, False
        try:
            cipher = read_file_header(head, path, chunk.segment, self.keys).cipher
        except StorageDamaged as damage:
            self._damaged(damage)
            is_wrong = True
        records, annotations = decode_block(data, path, Place(log, chunk), cipher)
        if is_wrong:
            # The block speaks for itself, but in another file from now on.
            chunk.detach(records, annotations)
        return records

    def _lose_chunk(self, log: DiskLog, chunk: Chunk) -> None:
        slots = [slot for slot in range(chunk.slots) if not chunk.is_removed(slot)]
        last = chunk.offset_at(slots[-1])
        end = last + 1 if chunk.ends is None else chunk.ends[slots[-1]]
        self._lose(log, chunk.offset_at(slots[0]), end - 1, len(slots), LOST)
        log.restore_removed(chunk.first, last)


def _no_post(call: Callable[[], None]) -> None:
    """Nothing is done beside an inspection, so nothing comes back."""


def _no_failure(error: BaseException) -> None:
    raise error
