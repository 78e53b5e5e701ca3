"""The journal of an inspection: read past damage, as far as any write batch is whole.

A hole is told from a torn end by the rules of ``journal_files``. Behind a hole the changes of logs
and tables go on; a log's own offsets then show what is missing in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trivium.storage.contents.changes import (
    APPEND,
    DEFINE_LOG,
    DEFINE_TABLE,
    DELETE,
    PUT,
    REMOVE,
    TRUNCATE,
    ChangeVisitor,
    WrongChange,
    read_changes,
)
from trivium.storage.contents.recovery import Recovered
from trivium.storage.contents.table import DiskTable
from trivium.storage.errors import StorageDamaged
from trivium.storage.files.filesystem import FileSystem, read_whole
from trivium.storage.journal.journal_files import (
    BATCH_HEADER_SIZE,
    OLD_HEADER_SIZE,
    TRAILER,
    JournalFile,
    WriteBatchPlace,
    file_name,
    file_number,
    find_marker,
    read_header,
)

#: what is no change
_UNREADABLE: Final = 0
#: where a write batch seems to begin
_BATCH: Final = -1

#: Offsets further than this behind a log's next one are nonsense in bytes that are damaged. Where
#: it is not known how many were lost at the end, a log goes on that far behind.
MARGIN: Final = 1 << 20

#: the last offset of a gap whose end is not known
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``first`` to ``last`` of log ``number`` that a hole swallowed.

    ``name`` is what the hole itself says, "" for nothing. When ``is_certain`` there were records,
    else there may have been none; ``records`` is how many, 0 where that is not known.
    """

    number: int
    name: str
    first: int
    last: int
    is_certain: bool
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
        #: the offset at which a log may go on, where more of it was lost than is known
        self.next_offsets: dict[int, int] = {}
        #: the newest write batch that was read, -1 for none, and the newest one that is not lost
        self._reached = -1
        self._last = recovered.checkpoint_batch
        #: bytes without a whole write batch since the last one: file, start, end
        self._holes: list[tuple[JournalFile, int, int]] = []
        #: logs that may have lost records in a hole, with the offset up to which that is known
        self._watched: dict[int, int] = {}
        #: what a hole says of a log: its name, first offset, the one behind the last, records
        self._seen: dict[int, _Seen] = {}
        #: what later write batches removed of logs that may have lost records: first and last
        #: offsets
        self._removed: dict[int, list[tuple[int, int]]] = {}
        #: whether the holes could be read to their ends
        self._is_told = True

    def read(self, names: list[str], is_start_known: bool) -> None:
        """Read all files; from the catalog's first one, or whichever there are. Raises OSError.

        ``names`` is what the directory holds, in order.
        """
        recovered = self._recovered
        numbers = [number for number in map(file_number, names) if number is not None]
        recovered.next_file = max(numbers, default=0) + 1
        expected = recovered.first_file
        if is_start_known:
            numbers = [number for number in numbers if number >= expected]
        elif numbers:
            expected = numbers[0]
        file: JournalFile | None = None
        for number in numbers:
            if number != expected:
                self._miss(expected)
            file = self._read_file(number, file, number == numbers[-1], is_start_known)
            expected = number + 1
        self._look_at_end(file, expected, is_start_known)
        self._end_gaps()
        self.gaps = [left for gap in self.gaps for left in self._not_removed(gap)]
        recovered.last_batch = max(self._reached, self._last, recovered.needed_batch)

    def _look_at_end(self, last: JournalFile | None, expected: int, is_start_known: bool) -> None:
        """Whether anything is missing behind the last file; see ``Recovered.replay``."""
        damage = self._recovered.damage_behind(last, self._reached, self._path(expected))
        if damage is not None:
            self.damages.append(damage)
        elif last is None and not is_start_known:
            self._miss(expected)
        elif not self._holes:
            return
        self._lose(self._reached + 1, UNKNOWN)

    def _path(self, number: int) -> str:
        return f"{self._directory}/{file_name(number)}"

    def _miss(self, number: int) -> None:
        self.damages.append(StorageDamaged(self._path(number), 0, "it is missing"))

    def _read_file(
        self, number: int, before: JournalFile | None, is_last: bool, is_start_known: bool
    ) -> JournalFile:
        path = self._path(number)
        self.paths.append(path)
        data = b""
        try:
            data = read_whole(self._filesystem, path)
            file = read_header(path, data, number, self._recovered.keys)
        except StorageDamaged as damage:
            self.damages.append(damage)
            file = JournalFile(path, data, self._reached + 1, find_marker(data))
            if file.marker:
                places = file.behind(OLD_HEADER_SIZE)
                newest = max([place.number for place in places], default=-1)
                if newest > max(self._reached, self._last):
                    self._read_headless(file, before, is_last, is_start_known)
                    return file
                if newest >= 0:
                    # Files are used again: what is whole in it is of an earlier use.
                    file.marker = b""
            self._holes.append((file, 0, len(data)))
            return file
        self._look_at_start(file, before, is_start_known)
        self._read_batches(file, is_last)
        return file

    def _read_headless(
        self, file: JournalFile, before: JournalFile | None, is_last: bool, is_start_known: bool
    ) -> None:
        first = next(file.behind(OLD_HEADER_SIZE))
        if before is None:
            if not is_start_known:
                self._last = first.number - 1
            self._reached = min(first.number - 1, self._last)
        file.first_batch = self._reached + 1
        # What lies before the first write batch is no torn end.
        file.start = first.position
        if first.number > file.first_batch:
            self._holes.append((file, 0, first.position))
            file.first_batch = first.number
        self._read_batches(file, is_last)

    def _look_at_start(
        self, file: JournalFile, before: JournalFile | None, is_start_known: bool
    ) -> None:
        """Whether anything is missing before a file."""
        first = file.first_batch
        reason = ""
        if before is None:
            if not is_start_known:
                self._last = first - 1
            else:
                reason = file.fault_as_first(self._recovered.checkpoint_batch)
            self._reached = min(first - 1, self._last)
        else:
            reason = file.fault_behind(self._reached)
        if reason and not self.damages:
            self.damages.append(StorageDamaged(file.path, 0, reason))

    def _read_batches(self, file: JournalFile, is_last: bool) -> None:
        places = list(file.behind(file.start))
        # The newest write batch that those from here on know to be synced.
        synced = [-1] * (len(places) + 1)
        for index in range(len(places) - 1, -1, -1):
            synced[index] = max(synced[index + 1], places[index].unsynced - 1)
        batches = {place.number: place for place in places if not place.flags & TRAILER}
        expected = file.first_batch
        file.end = file.start
        for index, place in enumerate(places):
            if place.number < expected:
                continue
            if place.position != file.end or place.number != expected:
                # Once there is damage nothing that is whole behind it is dropped as unsynced.
                is_end = is_last and not self.damages
                if not self._skip(file, expected, synced[index], place.position, is_end):
                    return
                # Blocks in each other's place may have moved it.
                while expected < place.number and expected in batches:
                    self._take(file, batches[expected])
                    expected += 1
            file.end = place.position
            if place.flags & TRAILER:
                self._reach(place.number - 1)
                file.close_at(place)
                return
            self._take(file, place)
            expected = place.number + 1
            file.end = place.end
        self._skip(file, expected, -1, len(file.data), is_last)

    def _skip(self, file: JournalFile, expected: int, synced: int, end: int, is_last: bool) -> bool:
        """Bytes up to ``end`` are no write batch ``expected``; False where the journal ends so."""
        start = file.end
        reason = file.fault_at_end(expected, synced, is_last)
        if reason:
            self.damages.append(StorageDamaged(file.path, start, reason))
            self._holes.append((file, start, end))
            return True
        if file.is_torn:
            self.notes.append(
                f"{file.path}: the last write was interrupted at byte {start}; a start cuts it off"
            )
        return False

    def _reach(self, number: int) -> None:
        """Write batches up to ``number`` were written: those that were not read are lost."""
        if number > self._last:
            self._lose(self._last + 1, number)
            self._last = number
        self._reached = number
        self._holes.clear()

    def _take(self, file: JournalFile, batch: WriteBatchPlace) -> None:
        """Replay a write batch, unless the checkpoint has it."""
        self._reach(batch.number - 1)
        self._reached = batch.number
        if batch.number > self._last:
            self._last = batch.number
            self._apply(file, batch)

    def _lose(self, first: int, last: int) -> None:
        """Write batches ``first`` to ``last`` are lost."""
        holes = self._holes
        self._holes = []
        recovered = self._recovered
        if last == UNKNOWN:
            what = f"batches from {max(first, self._last + 1)} on"
            self._is_told = False
        else:
            what = f"batches {first} to {last}" if last > first else f"batch {first}"
        self.notes.append(
            f"{what} of the journal lost, with what they removed or changed in tables; what they"
            " appended is listed as far as it can be told"
        )
        for number, log in recovered.logs.items():
            self._watched.setdefault(number, log.next_offset)
            self._removed.setdefault(number, [])
        names: dict[int, str] = {}
        seen = 0
        for file, start, end in holes:
            for kind, number, at, behind, name in _mentioned_in_hole(file, start, end):
                if kind == _BATCH:
                    seen += 1
                elif kind == DEFINE_LOG:
                    names[number] = name.decode("utf-8", "replace")
                elif kind == _UNREADABLE:
                    self._is_told = False
                elif kind == APPEND:
                    self._see(number, names.get(number, ""), at, behind)
        if seen <= last - first:
            # Some of them are nowhere.
            self._is_told = False

    def _see(self, number: int, name: str, first: int, behind: int) -> None:
        """Damaged bytes show an append; what they say may be wrong."""
        seen = self._seen.get(number)
        known = self._watched.setdefault(number, 0) if seen is None else seen.behind
        if not known <= first < behind < known + MARGIN:
            self._is_told = False
            return
        if seen is None:
            seen = self._seen[number] = _Seen(name, first)
        seen.behind = behind
        seen.records += 1

    def _end_gaps(self) -> None:
        """No write batch follows. What was given to lost records is not given out again."""
        for number in list(self._watched):
            seen = self._seen.get(number)
            behind = self._watched[number] if seen is None else seen.behind
            self._close_gap(number, behind)
            if number in self._recovered.logs:
                self.next_offsets[number] = behind
                if not self._is_told:
                    self.next_offsets[number] += MARGIN
                    self.gaps.append(Gap(number, "", behind, UNKNOWN, False, 0))

    def _close_gap(self, number: int, next_offset: int) -> None:
        """A log goes on at ``next_offset`` behind a hole, or not at all."""
        known = self._watched.pop(number)
        seen = self._seen.pop(number, None)
        if seen is not None and seen.first < next_offset:
            self._note_gap(number, seen.name, known, seen.first, None)
            known = min(seen.behind, next_offset)
            self._note_gap(number, seen.name, seen.first, known, seen)
        self._note_gap(number, "", known, next_offset, None)

    def _note_gap(
        self, number: int, name: str, first: int, behind: int, seen: _Seen | None
    ) -> None:
        if first < behind:
            # What could not be read may have held more.
            records = seen.records if seen is not None and self._is_told else 0
            self.gaps.append(Gap(number, name, first, behind - 1, seen is not None, records))

    def _not_removed(self, gap: Gap) -> list[Gap]:
        """What is left of a gap without the offsets that were removed behind it anyway."""
        if gap.last == UNKNOWN:
            return [gap]
        left: list[Gap] = []
        at = gap.first
        for first, last in sorted(self._removed.get(gap.number, [])):
            if first > gap.last:
                break
            if first > at:
                left.append(replace(gap, first=at, last=first - 1, records=0))
            at = max(at, last + 1)
        if at == gap.first:
            return [gap]
        if at <= gap.last:
            left.append(replace(gap, first=at, records=0))
        return left

    def _apply(self, file: JournalFile, batch: WriteBatchPlace) -> None:
        recovered = self._recovered
        number = batch.number
        try:
            data, start, end = file.body(batch)
        except StorageDamaged as damage:
            self.damages.append(damage)
            self._lose(number, number)
            return
        changes = mentioned(data, start, end)
        if changes and changes[-1][0] == _UNREADABLE:
            # Perhaps it is encrypted, in a file whose header is lost.
            reason = f"batch {number} has no meaning"
            self.damages.append(StorageDamaged(file.path, batch.start, reason))
            self._holes = [(file, batch.position, batch.end)]
            self._lose(number, number)
            return
        defined: set[tuple[int, int]] = set()
        for kind, target, first, last, _ in changes:
            if kind in (DEFINE_LOG, DEFINE_TABLE):
                defined.add((kind, target))
            elif kind in (PUT, DELETE):
                if target not in recovered.tables and (DEFINE_TABLE, target) not in defined:
                    recovered.tables[target] = DiskTable(target, "", recovered.changes)
            else:
                if target not in recovered.logs and (DEFINE_LOG, target) not in defined:
                    recovered.nameless(target)
                if kind == APPEND and target in self._watched:
                    self._close_gap(target, first)
                elif kind == REMOVE and target in self._removed:
                    self._removed[target].append((first, last))
                elif kind == TRUNCATE and target in self._removed:
                    self._removed[target].append((0, first - 1))
        try:
            recovered.apply(file, batch)
        except StorageDamaged as damage:
            self.damages.append(damage)


def _mentioned_in_hole(
    file: JournalFile, start: int, end: int
) -> Iterator[tuple[int, int, int, int, bytes]]:
    """The same for each write batch that seems to begin in a hole."""
    if file.cipher is not None or not file.marker:
        # What is damaged cannot be decrypted, or nothing says where a write batch begins.
        yield _UNREADABLE, 0, 0, 0, b""
        return
    while start < end:
        yield _BATCH, 0, 0, 0, b""
        following = file.data.find(file.marker, start + 1, end)
        stop = end if following < 0 else following
        yield from mentioned(file.data, start + BATCH_HEADER_SIZE, stop)
        start = stop


def mentioned(data: bytes, position: int, end: int) -> list[tuple[int, int, int, int, bytes]]:
    """The changes in a write batch; where they end too soon or too late, ``_UNREADABLE`` at last.

    Kind; number of the log or table; first offset and the one behind, or the two numbers of the
    change; the name that a definition gives.
    """
    mentions = _Mentions()
    try:
        read_changes(data, position, end, mentions)
    except (IndexError, WrongChange):
        mentions.found.append((_UNREADABLE, 0, 0, 0, b""))
    return mentions.found


class _Mentions(ChangeVisitor):
    """Lists changes, whatever they refer to."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int, int, int, bytes]] = []

    def append(self, log: int, offset: int, count: int, record: bytes, annotation: bytes) -> None:
        self.found.append((APPEND, log, offset, offset + count, b""))

    def change_log(self, kind: int, log: int, first: int, last: int) -> None:
        self.found.append((kind, log, first, last, b""))

    def put(self, table: int, key: bytes, value: bytes) -> None:
        self.found.append((PUT, table, 0, 0, b""))

    def delete(self, table: int, key: bytes) -> None:
        self.found.append((DELETE, table, 0, 0, b""))

    def define(self, kind: int, number: int, name: bytes) -> None:
        self.found.append((kind, number, 0, 0, name))
