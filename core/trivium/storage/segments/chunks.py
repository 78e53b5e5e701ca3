"""Records of a log in memory, in chunks.

A chunk holds up to ``CHUNK_RECORDS`` neighbouring records in a list, one slot each, so that a
record costs eight bytes beside its own and removing one costs the same wherever it lies. Most
chunks are *dense*: every record spans one offset and follows the one before, so its slot is its
offset minus the chunk's first. The others keep the offsets in arrays. A chunk that also lies in a
segment file may give up its records (``records`` is then None) and get them back by reading the
file.
"""

from __future__ import annotations

import gc
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from mypy_extensions import i64, mypyc_attr

from trivium.storage.base import Log, Weigher

CHUNK_RECORDS: Final = 512
#: A chunk that has reached this size takes no further record: it bounds what one read of a segment
#: brings back.
CHUNK_BYTES: Final = 256 * 1024

#: What lists may hold that were made between two collections of young objects.
_COLLECTED: Final = 16_384
_made: int = 0


def list_made(size: int) -> None:
    """A list of ``size`` was made that stays for a while: have the collector of cycles walk what is
    young, now and then.

    It counts objects, and comes late where few of them hold very many others: it would then walk
    millions of records in one go.
    """
    global _made
    _made += size
    if _made >= _COLLECTED:
        _made = 0
        if gc.isenabled():
            gc.collect(0)


@mypyc_attr(acyclic=True)
class Chunk:
    """Neighbouring records of one log."""

    def __init__(self, first: int) -> None:
        #: offset of the first record, and the offset after the last one
        self.first = first
        self.end = first
        #: a slot per record, None once it is removed; None as a whole while only on disk
        self.records: list[bytes | None] | None = []
        #: number of slots, of records not removed, and bytes in all records ever held
        self.slots = 0
        self.live = 0
        self.size = 0
        #: every slot before this one is removed
        self.head = 0
        #: first offset and end of each record; None while the chunk is dense
        self.offsets: array[int] | None = None
        self.ends: array[int] | None = None
        #: annotations that are not empty, by slot
        self.annotations: dict[int, bytes] | None = None
        #: no further record may be added
        self.closed = False
        #: its slots are fixed because it is written, or being written, to a segment: removals are
        #: then kept in ``removed`` (a bit per slot) as well
        self.fixed = False
        self.removed = 0
        #: of a fixed chunk: bytes in the records not removed, and whether that is an estimate
        #: because what was removed was not in memory
        self.live_size = 0
        self.is_estimated = False
        #: where it lies: number of the segment file, position and length of its block there;
        #: segment 0 is none
        self.segment = 0
        self.position = 0
        self.length = 0
        #: what so many of its records weigh together: those that it had when it was weighed
        self.weight = 0
        self.weighed = 0
        #: removals since the last checkpoint that wrote this chunk's state
        self.changed = False
        #: what its segment counts for it: see ``Segments.count``
        self.counted = 0
        self.guessed = 0
        #: bytes that count against the memory budget of records which could be read back
        self.charged = 0

    def add(self, offset: int, count: int, record: bytes, annotation: bytes) -> None:
        """Add a record behind the others. The chunk must be open."""
        records = self.records
        assert records is not None
        slot = self.slots
        if slot == 0:
            self.first = offset
            self.end = offset
        if self.offsets is not None or offset != self.end or count != 1:
            self._add_span(offset, count)
        if annotation:
            if self.annotations is None:
                self.annotations = {}
            self.annotations[slot] = annotation
        records.append(record)
        self.slots = slot + 1
        self.live += 1
        self.size += len(record)
        self.end = offset + count
        if slot + 1 >= CHUNK_RECORDS or self.size >= CHUNK_BYTES:
            self.closed = True

    def add_run(self, offset: int, records: list[bytes], at: i64) -> i64:
        """``add`` records from ``records[at]`` on, which span an offset each, as long as the chunk
        is open; how many.
        """
        own = self.records
        assert own is not None
        slot: i64 = self.slots
        if slot == 0:
            self.first = offset
            self.end = offset
        if self.offsets is not None or offset != self.end:
            self.add(offset, 1, records[at], b"")
            return 1
        size: i64 = self.size
        begin = at
        end: i64 = len(records)
        while at < end and slot < CHUNK_RECORDS and size < CHUNK_BYTES:
            record = records[at]
            own.append(record)
            size += len(record)
            slot += 1
            at += 1
        self.slots = slot
        self.live += at - begin
        self.size = size
        self.end = offset + (at - begin)
        if slot >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            self.closed = True
        return at - begin

    def _add_span(self, offset: int, count: int) -> None:
        if self.offsets is None:
            self.offsets = array("q", range(self.first, self.first + self.slots))
            self.ends = array("q", range(self.first + 1, self.first + self.slots + 1))
        assert self.ends is not None
        self.offsets.append(offset)
        self.ends.append(offset + count)

    def clear(self, offset: int) -> None:
        """Forget everything; the next record is added at ``offset`` or later."""
        self.first = offset
        self.end = offset
        self.records = []
        self.slots = 0
        self.live = 0
        self.size = 0
        self.head = 0
        self.offsets = None
        self.ends = None
        self.annotations = None
        self.closed = False

    def offset_at(self, slot: int) -> int:
        """The first offset of the record in ``slot``."""
        offsets = self.offsets
        return self.first + slot if offsets is None else offsets[slot]

    def first_slot_from(self, offset: int) -> int:
        """The first slot whose record starts at or after ``offset``."""
        if self.offsets is None:
            return max(offset - self.first, 0)
        return bisect_left(self.offsets, offset)

    def first_slot_ending_after(self, offset: int) -> int:
        """The first slot whose record ends after ``offset``."""
        if self.ends is None:
            return max(offset - self.first, 0)
        return bisect_right(self.ends, offset)

    def is_removed(self, slot: int) -> bool:
        """Whether the record in ``slot`` was removed."""
        records = self.records
        if records is not None:
            return records[slot] is None
        return (self.removed >> slot) & 1 == 1

    def holds_after(self, offset: int) -> bool:
        """Whether a record that is not removed ends after ``offset``."""
        for slot in range(max(self.first_slot_ending_after(offset), self.head), self.slots):
            if not self.is_removed(slot):
                return True
        return False

    def remove(self, slot: int) -> bool:
        """Remove the record in ``slot``; False when it was removed before."""
        records = self.records
        if records is not None:
            record = records[slot]
            if record is None:
                return False
            records[slot] = None
            if self.fixed:
                self.removed |= 1 << slot
                self.live_size -= len(record)
        elif (self.removed >> slot) & 1:
            return False
        else:
            self.removed |= 1 << slot
            self.live_size -= self.live_size // self.live
            self.is_estimated = True
        if self.annotations is not None:
            self.annotations.pop(slot, None)
        self.live -= 1
        return True

    def remove_slots(self, start: int, stop: int) -> int:
        """Remove the records in the slots from ``start`` up to ``stop``; how many there were."""
        removed: i64 = 0
        records = self.records
        slot: i64 = start
        end: i64 = stop
        if records is None or self.fixed or self.annotations is not None:
            while slot < end:
                if self.remove(slot):
                    removed += 1
                slot += 1
            return removed
        while slot < end:
            if records[slot] is not None:
                records[slot] = None
                removed += 1
            slot += 1
        self.live -= removed
        return removed

    def fix(self) -> None:
        """From here on it is as it is written to a segment. No record may be removed so far."""
        self.closed = True
        self.fixed = True
        self.live_size = self.size
        self.is_estimated = False

    def measure(self) -> None:
        """Find ``live_size``, of a fixed chunk: exactly if its records are in memory."""
        records = self.records
        self.is_estimated = False
        if self.live == self.slots:
            self.live_size = self.size
        elif records is None:
            self.live_size = self.size * self.live // self.slots
            self.is_estimated = True
        else:
            size = 0
            for record in records:
                if record is not None:
                    size += len(record)
            self.live_size = size

    def weigh(self, weigher: Weigher) -> None:
        """Find ``weight``: exactly if its records are in memory."""
        records = self.records
        if records is not None:
            self.weight = weigher.weigh(records)
            self.weighed = self.live
        elif self.live < self.weighed:
            self.weight = self.weight * self.live // self.weighed
            self.weighed = self.live

    def oldest(self) -> int:
        """The offset of the oldest record not removed. There must be one."""
        while self.is_removed(self.head):
            self.head += 1
        return self.offset_at(self.head)

    def detach(self, records: list[bytes | None], annotations: dict[int, bytes] | None) -> None:
        """Be a chunk that lies in no segment, with the content of its block."""
        for slot in range(self.slots):
            if self.is_removed(slot):
                records[slot] = None
        self.records = records
        self.annotations = annotations
        self.segment = 0
        self.fixed = False
        self.removed = 0

    def without(self, removed: int) -> tuple[Chunk, list[int]]:
        """A chunk without the records that ``removed`` names, and which slots it keeps."""
        kept = [slot for slot in range(self.slots) if not (removed >> slot) & 1]
        chunk = Chunk(self.first)
        chunk.end = self.end
        chunk.slots = chunk.live = len(kept)
        chunk.closed = chunk.fixed = True
        chunk.records = None
        ends = self.ends
        if ends is None and len(kept) == self.slots:
            return chunk, kept
        chunk.offsets = array("q", [self.offset_at(slot) for slot in kept])
        chunk.ends = array(
            "q", [self.first + slot + 1 if ends is None else ends[slot] for slot in kept]
        )
        return chunk, kept

    def become(self, other: Chunk, kept: list[int]) -> None:
        """Take the place and the slots of ``other``, which ``without`` made some time ago."""
        removed = 0
        for index, slot in enumerate(kept):
            if (self.removed >> slot) & 1:
                removed |= 1 << index
        records, annotations = self.records, self.annotations
        if records is not None:
            self.records = [records[slot] for slot in kept]
        if annotations is not None:
            self.annotations = {
                index: annotations[slot] for index, slot in enumerate(kept) if slot in annotations
            }
        self.removed = removed
        self.head = 0
        self.slots = other.slots
        self.size = other.size
        self.offsets = other.offsets
        self.ends = other.ends
        self.segment = other.segment
        self.position = other.position
        self.length = other.length
        self.weight = other.weight
        self.weighed = other.weighed
        self.measure()

    def pack(self) -> None:
        """Drop the slots of removed records. Not for a fixed chunk."""
        if self.live < self.slots:
            self._refill(self._entries())

    def join(self, first: int, end: int, record: bytes, is_first: bool) -> int:
        """Take out the records that span the offsets from ``first`` up to ``end``, and put
        ``record`` in their place if this chunk holds the first of them. How many were taken out.

        Not for a fixed chunk. It stays closed if it is.
        """
        entries = self._entries()
        low = 0
        while low < len(entries) and entries[low][0] < first:
            low += 1
        high = low
        while high < len(entries) and entries[high][1] <= end:
            high += 1
        joined = [(first, end, record, b"")] if is_first else []
        was_closed = self.closed
        self._refill(entries[:low] + joined + entries[high:])
        if was_closed:
            self.closed = True
        return high - low

    def _entries(self) -> list[tuple[int, int, bytes, bytes]]:
        """Offset, end, record and annotation of what is not removed."""
        records, ends, annotations = self.records, self.ends, self.annotations
        assert records is not None
        found: list[tuple[int, int, bytes, bytes]] = []
        for slot, record in enumerate(records):
            if record is not None:
                offset = self.offset_at(slot)
                annotation = b"" if annotations is None else annotations.get(slot, b"")
                found.append(
                    (offset, offset + 1 if ends is None else ends[slot], record, annotation)
                )
        return found

    def _refill(self, entries: list[tuple[int, int, bytes, bytes]]) -> None:
        """Hold these instead."""
        assert not self.fixed
        self.clear(self.first)
        for offset, end, record, annotation in entries:
            self.add(offset, end - offset, record, annotation)


def chunk_in_segment(
    first: int, end: int, slots: int, size: int, segment: int, position: int, length: int
) -> Chunk:
    """A chunk of ``slots`` records, of ``size`` bytes together, whose block lies in a segment."""
    chunk = Chunk(first)
    chunk.end = end
    chunk.slots = chunk.live = slots
    chunk.size = size
    chunk.segment = segment
    chunk.position = position
    chunk.length = length
    chunk.records = None
    chunk.closed = chunk.fixed = True
    return chunk


#: What a log has that is empty, of which there may be very many. Nothing is ever put in.
NO_CHUNKS: Final[list[Chunk]] = []


class ChunkedLog(Log):
    """What the logs of every storage share: the records in memory, by offset."""

    def __init__(self) -> None:
        self.first_offset = 0
        self.next_offset = 0
        self.recovered_offset = 0
        self._count = 0
        #: in order of their offsets; each holds a live record, but for an open last one
        self._chunks = NO_CHUNKS
        #: the last chunk while it can take another record
        self._open: Chunk | None = None

    def append(self, record: bytes, count: int = 1, annotation: bytes = b"") -> int:
        offset = self.next_offset
        chunk = self._open
        if chunk is None:
            chunk = self._begin_chunk(offset)
        chunk.add(offset, count, record, annotation)
        if chunk.closed:
            self._open = None
            list_made(chunk.slots)
        self.next_offset = offset + count
        if self._count == 0:
            self.first_offset = offset
        self._count += 1
        return offset

    def _begin_chunk(self, offset: int) -> Chunk:
        """Another chunk behind the others, to add to."""
        chunk = Chunk(offset)
        if self._chunks is NO_CHUNKS:
            self._chunks = []
        self._chunks.append(chunk)
        self._open = chunk
        return chunk

    def append_run(self, records: list[bytes]) -> int:
        first = offset = self.next_offset
        if self._count == 0:
            self.first_offset = first
        at: i64 = 0
        end: i64 = len(records)
        while at < end:
            chunk = self._open
            if chunk is None:
                chunk = self._begin_chunk(offset)
            added = chunk.add_run(offset, records, at)
            if chunk.closed:
                self._open = None
                list_made(chunk.slots)
            at += added
            offset += added
        self.next_offset = offset
        self._count += end
        return first

    def skip(self, count: int = 1) -> int:
        offset = self.next_offset
        self.next_offset = offset + count
        if self._count == 0:
            self.first_offset = self.next_offset
        return offset

    def remove(self, first: int, last: int) -> None:
        self._remove_range(first, last)

    def truncate(self, before: int) -> None:
        self._remove_ended(before)

    def join(self, first: int, end: int, record: bytes) -> bool:
        if first < self.first_offset:
            return False
        chunks = self._chunks
        start = after = self._chunk_ending_after(first)
        while after < len(chunks) and chunks[after].first < end:
            if chunks[after].fixed:
                return False
            after += 1
        for index in range(after - 1, start - 1, -1):
            self._count -= chunks[index].join(first, end, record, index == start)
            if chunks[index].live == 0:
                self._discard(index)
        self._count += 1
        if self._open is not None and self._open.closed:
            self._open = None
        return True

    def _remove_range(self, first: int, last: int) -> int:
        """Remove the records that start in ``first`` to ``last``; how many there were."""
        index = self._chunk_ending_after(first)
        removed = 0
        while index < len(self._chunks):
            chunk = self._chunks[index]
            if chunk.first > last:
                break
            start = chunk.first_slot_from(first)
            stop = min(chunk.first_slot_from(last + 1), chunk.slots)
            removed += self._remove_slots(chunk, start, stop)
            if chunk.live == 0 and self._discard(index):
                continue
            index += 1
        self._removed(removed)
        return removed

    def _remove_ended(self, before: int) -> int:
        """Remove the records that end at or before ``before``; how many there were."""
        removed = 0
        while self._chunks:
            chunk = self._chunks[0]
            stop = min(chunk.first_slot_ending_after(before), chunk.slots)
            removed += self._remove_slots(chunk, chunk.head, stop)
            if chunk.live or not self._discard(0):
                break
        self._removed(removed)
        return removed

    def _remove_slots(self, chunk: Chunk, start: int, stop: int) -> int:
        if stop - start >= chunk.slots:
            removed = chunk.live
            chunk.live = 0
        else:
            removed = chunk.remove_slots(start, stop)
        if removed and chunk.fixed:
            self._chunk_changed(chunk)
        return removed

    def _discard(self, index: int) -> bool:
        """Take an empty chunk out of the list; False when it stays to be filled again."""
        chunk = self._chunks[index]
        if chunk is self._open:
            chunk.clear(self.next_offset)
            return False
        del self._chunks[index]
        return True

    def _removed(self, removed: int) -> None:
        if removed == 0:
            return
        self._count -= removed
        self.first_offset = self._chunks[0].oldest() if self._count else self.next_offset

    def _chunk_changed(self, chunk: Chunk) -> None:
        """A fixed chunk has lost records (all of them when ``live`` is 0)."""

    def _chunk_ending_after(self, offset: int) -> int:
        """Index of the first chunk that ends after ``offset``."""
        chunks = self._chunks
        high = len(chunks)
        if high == 0 or chunks[0].end > offset:
            return 0
        if chunks[high - 1].first <= offset:
            return high if chunks[high - 1].end <= offset else high - 1
        low = 1
        while low < high:
            middle = (low + high) // 2
            if chunks[middle].end > offset:
                high = middle
            else:
                low = middle + 1
        return low

    def offset_of_newest(self, size: int) -> int:
        """Takes a step per chunk, and one per record of the last."""
        left = size
        for index in range(len(self._chunks) - 1, -1, -1):
            chunk = self._chunks[index]
            # This counts removed records too; they are found when the chunk seems to be enough.
            if chunk.size < left:
                left -= chunk.size
                continue
            records = chunk.records
            if records is None:
                return chunk.oldest()
            for slot in range(chunk.slots - 1, chunk.head - 1, -1):
                record = records[slot]
                if record is not None:
                    left -= len(record)
                    if left <= 0:
                        return chunk.offset_at(slot)
        return -1

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        found: list[tuple[int, bytes, bytes]] = []
        if max_records <= 0:
            return found
        size = 0
        for index in range(self._chunk_ending_after(offset), len(self._chunks)):
            chunk = self._chunks[index]
            records = chunk.records
            if records is None:
                if chunk.holds_after(offset):
                    break
                continue
            annotations = chunk.annotations
            for slot in range(max(chunk.first_slot_ending_after(offset), chunk.head), chunk.slots):
                record = records[slot]
                if record is None:
                    continue
                size += len(record)
                if found and size > max_bytes:
                    return found
                annotation = b"" if annotations is None else annotations.get(slot, b"")
                found.append((chunk.offset_at(slot), record, annotation))
                if len(found) == max_records:
                    return found
        return found

    def is_loaded(self, offset: int) -> bool:
        return self._first_unloaded(offset) is None

    def _first_unloaded(self, offset: int) -> Chunk | None:
        """The chunk that must be loaded before ``read(offset)`` can answer; None if none must."""
        for index in range(self._chunk_ending_after(offset), len(self._chunks)):
            chunk = self._chunks[index]
            if chunk.holds_after(offset):
                return chunk if chunk.records is None else None
        return None

    def weight(self) -> int:
        weigher = self.weigher
        if weigher is None:
            return 0
        weight = 0
        for chunk in self._chunks:
            chunk.weigh(weigher)
            weight += chunk.weight
        return weight

    def __len__(self) -> int:
        return self._count


class NumberedLog(ChunkedLog):
    """A log that a storage keeps: its number stands for it in files."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__()
        self.number = number
        self.name = name
        self.is_dropped = False

    def add_changed(self, chunk: Chunk) -> None:
        """A chunk in a segment has lost records."""
        raise NotImplementedError
