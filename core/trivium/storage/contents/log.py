"""A log on disk: recorded in the journal as it changes, its older chunks in segment files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trivium.storage.contents.changes import NEXT_OFFSET, REMOVE, TRUNCATE, Changes
from trivium.storage.segments.chunks import NO_CHUNKS, Chunk, NumberedLog
from trivium.storage.segments.segments import Segments

#: The journal has 16 bits for the size of an annotation.
MAX_ANNOTATION: Final = 65_535
#: ... and 32 bits, one for the sign, for the size of a record and the number of its offsets.
MAX_RECORD: Final = 0x7FFF_FFFF

#: Work to copy the list of a chunk's records, in units of adding one record.
COPY_COST: Final = 20


class DiskLog(NumberedLog):
    """A log whose changes are recorded."""

    def __init__(self, number: int, name: str, changes: Changes, segments: Segments) -> None:
        super().__init__(number, name)
        self._changes = changes
        self._segments = segments
        #: whether it is in ``Changes.logs``
        self._is_changed = False
        #: whether offsets were given out that no record in the journal shows
        self._has_skipped = False
        #: chunks in segments that have lost records since the last checkpoint
        self._changed_chunks = NO_CHUNKS

    def append(self, record: bytes, count: int = 1, annotation: bytes = b"") -> int:
        """Raises ValueError when a size is out of range."""
        if (
            len(record) > MAX_RECORD
            or len(annotation) > MAX_ANNOTATION
            or not 0 < count <= MAX_RECORD
        ):
            raise ValueError("a record, its annotation or its count is out of range")
        offset = super().append(record, count, annotation)
        self._changes.append(self.number, offset, count, record, annotation)
        self._has_skipped = False
        if not self._is_changed:
            self._mark_changed()
        return offset

    def append_run(self, records: list[bytes]) -> int:
        """Raises ValueError when a size is out of range."""
        for record in records:
            if len(record) > MAX_RECORD:
                raise ValueError("a record is too large")
        first = super().append_run(records)
        self._changes.append_run(self.number, first, records)
        self._has_skipped = False
        if not self._is_changed:
            self._mark_changed()
        return first

    def skip(self, count: int = 1) -> int:
        self._has_skipped = True
        if not self._is_changed:
            self._mark_changed()
        return super().skip(count)

    def remove(self, first: int, last: int) -> None:
        if last >= self.next_offset:
            # Replayed on a later state it must not reach what has been appended since.
            last = self.next_offset - 1
        if self._remove_range(first, last):
            self._changes.change_log(REMOVE, self.number, first, last)
            if not self._is_changed:
                self._mark_changed()

    def truncate(self, before: int) -> None:
        if before > self.next_offset:
            before = self.next_offset
        if self._remove_ended(before):
            self._changes.change_log(TRUNCATE, self.number, before, 0)
            if not self._is_changed:
                self._mark_changed()

    def _mark_changed(self) -> None:
        """Note that a checkpoint has something to write."""
        self._is_changed = True
        self._changes.logs[self.number] = self

    def record_skipped(self) -> None:
        """Before a clean stop: make the offsets that were given out without a record durable."""
        if self._has_skipped:
            self._has_skipped = False
            self._changes.change_log(NEXT_OFFSET, self.number, self.next_offset, 0)

    def restore(self, offset: int, count: int, record: bytes, annotation: bytes) -> None:
        """A record as the journal has it, at or after ``next_offset``."""
        if offset > self.next_offset:
            super().skip(offset - self.next_offset)
        super().append(record, count, annotation)
        if not self._is_changed:
            self._mark_changed()

    def restore_next_offset(self, offset: int) -> None:
        """Offsets before this one were given out."""
        if offset > self.next_offset:
            super().skip(offset - self.next_offset)
            self.mark_changed()

    def restore_removed(self, first: int, last: int) -> None:
        """A removed range as the journal has it.

        Its offsets were given out, if without a record. Were one given out again, the next start
        could replay this on a checkpoint that has the new record, and remove it.
        """
        self.restore_next_offset(last + 1)
        if self._remove_range(first, last):
            self.mark_changed()

    def restore_truncated(self, before: int) -> None:
        """A truncation as the journal has it; see ``restore_removed``."""
        self.restore_next_offset(before)
        if self._remove_ended(before):
            self.mark_changed()

    def mark_changed(self) -> None:
        """Note once that a checkpoint has something to write."""
        if not self._is_changed:
            self._mark_changed()

    def restore_weight(self, first: int, weight: int, weighed: int) -> None:
        """What so many records of the chunk weigh that begins at ``first``, as a checkpoint wrote
        it."""
        index = self._chunk_ending_after(first)
        if index < len(self._chunks) and self._chunks[index].first == first:
            self._chunks[index].weight = weight
            self._chunks[index].weighed = weighed

    def drop(self) -> None:
        """The log was removed from the storage: forget its records, write no change any more."""
        self.is_dropped = True
        for chunk in self._chunks:
            chunk.live = 0
            if chunk.fixed:
                self._chunk_changed(chunk)
        self._segments.let_go(self._chunks)
        self._chunks = NO_CHUNKS
        self._open = None
        self._removed(self._count)
        # No checkpoint has anything to write of it: clients may make and remove many until then.
        if self.number in self._changes.logs:
            del self._changes.logs[self.number]
        # Whoever still holds the log may go on calling it, to no effect on the journal.
        self._changes = Changes()

    def _discard(self, index: int) -> bool:
        chunk = self._chunks[index]
        if not super()._discard(index):
            return False
        self._segments.let_go([chunk])
        return True

    def adopt(self, chunk: Chunk) -> bool:
        """A chunk in a segment, as the checkpoint has it; False when it overlaps another one."""
        index = self._chunk_ending_after(chunk.first)
        if index < len(self._chunks) and self._chunks[index].first < chunk.end:
            return False
        if self._chunks is NO_CHUNKS:
            self._chunks = []
        self._chunks.insert(index, chunk)
        self._count += chunk.live
        self.first_offset = self._chunks[0].oldest()
        self.next_offset = max(self.next_offset, chunk.end)
        return True

    def chunks(self) -> list[Chunk]:
        """All chunks with records, in order."""
        return [chunk for chunk in self._chunks if chunk.live]

    def take_chunks(self, limit: int) -> tuple[list[Chunk], int]:
        """Fix chunks that no checkpoint has written, for the next one to write.

        Stops when the work reaches ``limit``; also returns how much it was.
        """
        left = limit
        if self.owner is not None:
            left = max(left - self.owner.join_records(), 1)
        low = self._first_not_fixed()
        chunks: list[Chunk] = []
        while low < len(self._chunks) and left > 0:
            chunk = self._chunks[low]
            if chunk.live == 0:
                # An open chunk that waits for its next record.
                break
            left -= COPY_COST if chunk.live == chunk.slots else chunk.slots
            chunk.pack()
            chunk.fix()
            if self.weigher is not None:
                chunk.weigh(self.weigher)
            if chunk is self._open:
                self._open = None
            chunks.append(chunk)
            low += 1
        return chunks, limit - left

    def joinable_from(self) -> int:
        index = self._first_not_fixed()
        return self._chunks[index].first if index < len(self._chunks) else self.next_offset

    def _first_not_fixed(self) -> int:
        """Index of the first chunk that no checkpoint has written."""
        low = 0
        high = len(self._chunks)
        while low < high:
            middle = (low + high) // 2
            if self._chunks[middle].fixed:
                low = middle + 1
            else:
                high = middle
        return low

    def take_changed(self) -> list[Chunk]:
        """The chunks in segments that have lost records since the last call.

        From here on a change of the log is one for the next checkpoint.
        """
        self._is_changed = False
        self.count_changed()
        changed = self._changed_chunks
        self._changed_chunks = NO_CHUNKS
        for chunk in changed:
            chunk.changed = False
            if self.weigher is not None:
                chunk.weigh(self.weigher)
        return changed

    def count_changed(self) -> None:
        """Have the segments know what their chunks have lost. Not with each record, for speed."""
        for chunk in self._changed_chunks:
            if chunk.live:
                self._segments.count(chunk)

    def add_changed(self, chunk: Chunk) -> None:
        chunk.changed = True
        if self._changed_chunks is NO_CHUNKS:
            self._changed_chunks = []
        self._changed_chunks.append(chunk)
        self.mark_changed()

    def _chunk_changed(self, chunk: Chunk) -> None:
        if chunk.live == 0:
            if chunk.segment:
                self._segments.count(chunk)
                self._segments.dead.append((self.number, chunk.first, chunk.segment))
            self._segments.release(chunk)
        elif chunk.segment and not chunk.changed:
            self.add_changed(chunk)

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        first = self._first_unloaded(offset)
        chunks: list[Chunk] = []
        if first is not None:
            size = 0
            for index in range(self._chunk_ending_after(first.first), len(self._chunks)):
                chunk = self._chunks[index]
                if chunk.records is not None or (chunks and size + chunk.size > max_bytes):
                    break
                chunks.append(chunk)
                size += chunk.size
        self._segments.load(self, chunks, ready)
