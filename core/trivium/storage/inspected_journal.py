"""The journal of an inspection: read past damage, as far as any batch is whole.

A hole is told from a torn end by the rules of ``journal``. Behind a hole the changes of logs and
tables go on; a log's own offsets then show what is missing in it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trivium.storage.changes import (
    APPEND,
    APPEND_RECORD,
    APPEND_SAME,
    DEFINE_LOG,
    DEFINE_RECORD,
    DEFINE_TABLE,
    DELETE,
    LOG_RECORD,
    NEXT_OFFSET,
    PUT,
    ROW_RECORD,
    SETTLE,
)
from trivium.storage.errors import StorageDamaged
from trivium.storage.filesystem import FileSystem
from trivium.storage.journal import (
    BATCH_HEADER_SIZE,
    FILE_HEADER_SIZE,
    JournalFile,
    batch_at,
    file_name,
    file_number,
    read_header,
)
from trivium.storage.recovery import Recovered
from trivium.storage.table import DiskTable

#: what is no change
_UNREADABLE: Final = 0

#: Offsets further than this behind a log's next one are nonsense in bytes that are damaged. Where
#: it is not known how many were lost at the end, a log goes on that far behind.
_PLAUSIBLE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``first`` to ``last`` of log ``number`` that a hole swallowed.

    ``name`` is what the hole itself says, "" for nothing. ``records`` were seen there; when that is
    0 the offsets may have held none.
    """

    number: int
    name: str
    first: int
    last: int
    records: int


class _Seen:
    """Appends to a log that damaged bytes show."""

    def __init__(self, name: str, first: int) -> None:
        self.name = name
        self.first = first
        self.behind = first
        self.records = 0


class InspectedJournal:
    """Replays what it can. ``read`` once, then look at what was found."""

    def __init__(self, filesystem: FileSystem, directory: str, recovered: Recovered) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._recovered = recovered
        self.damages: list[StorageDamaged] = []
        self.notes: list[str] = []
        self.gaps: list[Gap] = []
        #: paths of the files that were read
        self.paths: list[str] = []
        self._last = recovered.checkpoint_batch
        #: bytes without a whole batch since the last one: file, marker, start, end
        self._holes: list[tuple[JournalFile, bytes, int, int]] = []
        #: logs that may have lost records in a hole, with the offset up to which that is known
        self._watched: dict[int, int] = {}
        #: what a hole says of a log: its name, first offset, the one behind the last, records
        self._seen: dict[int, _Seen] = {}
        #: whether the last hole could be read to its end
        self._is_told = True

    def read(self, is_start_known: bool) -> None:
        """Read all files; from the catalog's first one, or whichever there are. Raises OSError."""
        recovered = self._recovered
        found = [file_number(name) for name in self._filesystem.names(self._directory)]
        numbers = [number for number in found if number is not None]
        recovered.next_file = max(numbers, default=0) + 1
        expected = recovered.first_file
        if is_start_known:
            numbers = [number for number in numbers if number >= expected]
            if not numbers and recovered.needed_batch >= 0:
                self._miss(expected)
                self._gap(-1)
        elif numbers:
            expected = numbers[0]
            self._last = -2
        for number in numbers:
            if number != expected:
                self._miss(expected)
            self._read_file(number, number == numbers[-1])
            expected = number + 1
        needed = recovered.needed_batch
        if self._last < needed:
            path = self.paths[-1] if self.paths else self._path(recovered.first_file)
            reason = f"batch {needed} of the checkpoint is missing"
            self.damages.append(StorageDamaged(path, 0, reason))
        if self._last < needed or self._holes:
            self._gap(needed)
        self._end_gaps()
        recovered.last_batch = max(self._last, needed)

    def _path(self, number: int) -> str:
        return f"{self._directory}/{file_name(number)}"

    def _miss(self, number: int) -> None:
        self.damages.append(StorageDamaged(self._path(number), 0, "it is missing"))

    def _read_file(self, number: int, is_last: bool) -> None:
        path = self._path(number)
        self.paths.append(path)
        opened = self._filesystem.open(path)
        data = opened.read(0, opened.size())
        opened.close()
        is_wrong = False
        try:
            file = read_header(path, data, number, self._recovered.keys)
        except StorageDamaged as damage:
            self.damages.append(damage)
            is_wrong = True
            # If it is encrypted there are no batches to be found without the header.
            marker = data[FILE_HEADER_SIZE : FILE_HEADER_SIZE + 8]
            file = JournalFile(path, data, self._last + 1, marker, FILE_HEADER_SIZE, None)
        marker = file.marker
        if not any(marker):
            # Nothing, or unused space; the header of a file that was used gives it a marker.
            return
        if self._last == -2:
            self._last = file.first_batch - 1
        position = file.start
        # The batch that should lie there; the checkpoint may have it already.
        here = file.first_batch
        while position < len(data):
            found = batch_at(data, position, marker)
            if found is not None:
                here = found[0] + 1
            if found is not None and found[0] > self._last:
                if found[0] > self._last + 1:
                    if not self._holes and not self.damages:
                        reason = f"batch {self._last + 1} is missing before it"
                        self.damages.append(StorageDamaged(path, position, reason))
                    self._gap(found[0] - 1)
                self._holes.clear()
                start = position + BATCH_HEADER_SIZE
                position = start + found[2]
                self._last = found[0]
                self._apply(file, found[0], start, position)
            elif found is not None:
                # In the checkpoint already, in a file that it left.
                position += BATCH_HEADER_SIZE + found[2]
            else:
                end, synced = self._next_batch(data, position, marker)
                if is_last and not is_wrong and synced < here:
                    if data.startswith(marker, position):
                        self.notes.append(
                            f"{path}: the last write was interrupted at byte {position};"
                            " a start cuts it off"
                        )
                    return
                self.damages.append(
                    StorageDamaged(path, position, f"batch {here} is missing or wrong")
                )
                self._holes.append((file, marker, position, end))
                position = end

    def _next_batch(self, data: bytes, position: int, marker: bytes) -> tuple[int, int]:
        """Where the next whole batch lies, or the data ends; the newest batch that any of those
        behind knows to be synced, -1 for none."""
        following = len(data)
        synced = -1
        position = data.find(marker, position + 1)
        while position >= 0:
            found = batch_at(data, position, marker)
            if found is not None:
                synced = max(synced, found[1] - 1)
                if found[0] > self._last:
                    following = min(following, position)
            position = data.find(marker, position + 1)
        return following, synced

    def _gap(self, last: int) -> None:
        """Batches up to ``last`` are lost; how far is not known when that is behind."""
        first = self._last + 1
        recovered = self._recovered
        holes = self._holes
        self._holes = []
        if recovered.checkpoint_batch >= last >= first:
            return
        what = f"batches {first} to {last}" if last > first else f"batch {first}"
        if last < first:
            what = f"batches from {first} on"
        self.notes.append(
            f"{what} of the journal lost, with what they removed or changed in tables; what they"
            " appended is listed as far as it can be told"
        )
        for number, log in recovered.logs.items():
            self._watched.setdefault(number, log.next_offset)
        names: dict[int, str] = {}
        self._is_told = bool(holes)
        for file, marker, start, end in holes:
            for kind, number, at, behind, name in _mentioned_in_hole(file, marker, start, end):
                if kind == DEFINE_LOG:
                    names[number] = name.decode("utf-8", "replace")
                elif kind == _UNREADABLE:
                    self._is_told = False
                elif kind in (APPEND, APPEND_SAME):
                    self._see(number, names.get(number, ""), at, behind)

    def _see(self, number: int, name: str, first: int, behind: int) -> None:
        """Damaged bytes show an append; what they say may be wrong."""
        seen = self._seen.get(number)
        known = self._watched.setdefault(number, 0) if seen is None else seen.behind
        if not known <= first < behind < known + _PLAUSIBLE:
            self._is_told = False
            return
        if seen is None:
            seen = self._seen[number] = _Seen(name, first)
        seen.behind = behind
        seen.records += 1

    def _end_gaps(self) -> None:
        """No batch follows. What was given to lost records is not given out again."""
        for number in list(self._watched):
            seen = self._seen.get(number)
            behind = self._watched[number] if seen is None else seen.behind
            self._close_gap(number, behind)
            log = self._recovered.logs.get(number)
            if log is not None:
                log.restore_next_offset(behind if self._is_told else behind + _PLAUSIBLE)

    def _close_gap(self, number: int, next_offset: int) -> None:
        """A log goes on at ``next_offset`` behind a hole, or not at all."""
        known = self._watched.pop(number)
        seen = self._seen.pop(number, None)
        if seen is not None and seen.first < next_offset:
            self._note_gap(number, seen.name, known, seen.first, 0)
            known = min(seen.behind, next_offset)
            self._note_gap(number, seen.name, seen.first, known, seen.records)
        self._note_gap(number, "", known, next_offset, 0)

    def _note_gap(self, number: int, name: str, first: int, behind: int, records: int) -> None:
        if first < behind:
            self.gaps.append(Gap(number, name, first, behind - 1, records))

    def _apply(self, file: JournalFile, batch: int, start: int, end: int) -> None:
        recovered = self._recovered
        if batch <= recovered.checkpoint_batch:
            return
        defined: set[tuple[int, int]] = set()
        try:
            data, start_, end_ = file.body(start, end)
        except StorageDamaged as damage:
            self.damages.append(damage)
            return
        for kind, number, first, _, _ in mentioned(data, start_, end_):
            if kind in (DEFINE_LOG, DEFINE_TABLE):
                defined.add((kind, number))
            elif kind == _UNREADABLE:
                break
            elif kind in (PUT, DELETE):
                if number not in recovered.tables and (DEFINE_TABLE, number) not in defined:
                    recovered.tables[number] = DiskTable(number, "", recovered.changes)
            else:
                if number not in recovered.logs and (DEFINE_LOG, number) not in defined:
                    recovered.nameless(number)
                if kind in (APPEND, APPEND_SAME) and number in self._watched:
                    self._close_gap(number, first)
        try:
            recovered.apply(file, batch, start, end)
        except StorageDamaged as damage:
            self.damages.append(damage)


def _mentioned_in_hole(
    file: JournalFile, marker: bytes, start: int, end: int
) -> Iterator[tuple[int, int, int, int, bytes]]:
    """The same for each batch that seems to begin in a hole."""
    if file.cipher is not None:
        # What is damaged cannot be decrypted.
        yield _UNREADABLE, 0, 0, 0, b""
        return
    while start < end:
        following = file.data.find(marker, start + 1, end)
        stop = end if following < 0 else following
        yield from mentioned(file.data, start + BATCH_HEADER_SIZE, stop)
        start = stop


def mentioned(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int, bytes]]:
    """The changes in a batch; where they end too soon or too late, ``_UNREADABLE`` at last.

    Kind; number of the log or table; first offset and the one behind, or the two numbers of the
    change; the name that a definition gives.
    """
    try:
        while position < end:
            kind = data[position]
            if APPEND <= kind <= APPEND_SAME:
                _, note_size, number, offset, count, size = APPEND_RECORD.unpack_from(
                    data, position
                )
                yield kind, number, offset, offset + count, b""
                position += APPEND_RECORD.size + note_size + size
            elif SETTLE <= kind <= NEXT_OFFSET:
                _, number, first, last = LOG_RECORD.unpack_from(data, position)
                yield kind, number, first, last, b""
                position += LOG_RECORD.size
            elif kind in (PUT, DELETE):
                _, number, key_size, value_size = ROW_RECORD.unpack_from(data, position)
                yield kind, number, 0, 0, b""
                position += ROW_RECORD.size + key_size + value_size
            elif kind in (DEFINE_LOG, DEFINE_TABLE):
                _, size, number = DEFINE_RECORD.unpack_from(data, position)
                position += DEFINE_RECORD.size + size
                yield kind, number, 0, 0, data[position - size : position]
            else:
                break
    except (struct.error, IndexError):
        pass
    if position != end:
        yield _UNREADABLE, 0, 0, 0, b""
