"""The segments of a storage: which chunks lie in which file, and how much of them is in memory.

A segment file holds blocks, one for each chunk, of any number of logs: ten thousand small queues
need no ten thousand files. Where each chunk lies is in the catalog. A file is removed once no chunk
in it holds a record any more.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Final

from trivium.storage.errors import StorageDamaged, StorageError
from trivium.storage.files.encryption import Keys
from trivium.storage.files.executor import Completions, Work, Worker
from trivium.storage.files.filesystem import FileSystem
from trivium.storage.segments.blocks import BLOCK_HEADER_SIZE, Place
from trivium.storage.segments.chunks import Chunk, NumberedLog, list_made
from trivium.storage.segments.segment_files import (
    ENCRYPTED_HEADER_SIZE,
    BlockReader,
    read_file_header,
    segment_name,
)

#: A file is rewritten when one in so many of its bytes would be written, or fewer: small beside
#: what becomes free, or, when the disk is short, not more than that.
_RELOCATED_SHARE: Final = 4
_SHORT_SHARE: Final = 2
#: When the disk is short, also where that may be so, if about one byte in so many becomes free.
_GUESSED_GAIN: Final = 8
#: Rewriting for want of space takes at most one byte in so many of what is free.
_ROOM_SHARE: Final = 2
#: One checkpoint rewrites so many bytes at most, small beside what it writes anyway, and so many
#: chunks, looking at so many and a file's more, because that is done in one turn.
_RELOCATED_SIZE: Final = 16 * 1024 * 1024
_RELOCATED_CHUNKS: Final = 1000
_RELOCATION_LOOKS: Final = 10_000

#: Chunks released in one turn: freeing their 500 records each takes a millisecond or so.
_RELEASED_AT_ONCE: Final = 64

#: What a chunk costs beside the bytes of its records: 33 for each object, 8 for its slot.
_RECORD_OVERHEAD: Final = 41

#: What a record in a block takes beside its bytes: its size, and when sparse its offset and end.
_DENSE_OVERHEAD: Final = 4
_SPARSE_OVERHEAD: Final = 20


def needed_size(chunk: Chunk) -> int:
    """About the bytes that a chunk in a segment would take there if it was written anew."""
    if chunk.live == chunk.slots:
        return chunk.length
    if chunk.live == 0:
        return 0
    overhead = _DENSE_OVERHEAD if chunk.offsets is None else _SPARSE_OVERHEAD
    # What is left is sparse, and shrinks by compression as all of it did.
    left = chunk.live_size + _SPARSE_OVERHEAD * chunk.live
    body = chunk.length - BLOCK_HEADER_SIZE
    return BLOCK_HEADER_SIZE + body * left // (chunk.size + overhead * chunk.slots)


class LoadWork(Work):
    """Reads chunks back from their segment files."""

    def __init__(
        self, segments: Segments, log: NumberedLog, chunks: list[Chunk], ready: Callable[[], None]
    ) -> None:
        super().__init__(segments.completions)
        self._segments = segments
        self._places = [Place(log, chunk) for chunk in chunks]
        self._ready = ready
        self._loaded: list[tuple[Place, list[bytes | None], dict[int, bytes] | None]] = []
        self._error: Exception | None = None

    def run(self) -> None:
        """On the reader worker: read and decode."""
        reader = self._segments.reader()
        try:
            for place in self._places:
                records, annotations = reader.read(place)
                self._loaded.append((place, records, annotations))
        except (OSError, StorageError) as error:
            self._error = error
        reader.close()

    def finish(self) -> None:
        """On the loop's thread: hand the records over."""
        segments = self._segments
        segments.loads_done += 1
        if segments.is_closed:
            # Whoever asked would act on it, and no turn follows that would write all of that.
            return
        if self._error is not None and any(place.chunk.live for place in self._places):
            segments.fail(self._error)
            return
        segments.make_room(sum(place.chunk.size for place, _, _ in self._loaded))
        for place, records, chunk_annotations in self._loaded:
            chunk = place.chunk
            # If it was moved meanwhile, whoever wants it asks once more.
            if chunk.live == 0 or chunk.records is not None or place.is_left():
                continue
            removed = chunk.removed
            if removed:
                for slot in range(chunk.slots):
                    if (removed >> slot) & 1:
                        records[slot] = None
                        if chunk_annotations is not None:
                            chunk_annotations.pop(slot, None)
            chunk.records = records
            chunk.annotations = chunk_annotations
            list_made(len(records))
            segments.charge(chunk)
            if chunk.is_estimated:
                chunk.measure()
                segments.count(chunk)
        self._ready()


class Segments:
    """The segment files of a storage, and how much of them is in memory. On the loop's thread."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        budget: int,
        worker: Worker,
        completions: Completions,
        fail: Callable[[BaseException], None],
        keys: Keys,
    ) -> None:
        self.filesystem = filesystem
        self.keys = keys
        #: files that are encrypted with another key than what is written, or not at all
        self.foreign: set[int] = set()
        self.completions = completions
        self.fail = fail
        #: the storage is closing: nothing is handed out any more
        self.is_closed = False
        self.directory = directory
        self._budget = budget
        self._worker = worker
        self.next_segment = 1
        #: for each file: how many of its chunks the catalog names; which they are, with others
        #: that are gone; bytes of all blocks in it, and those that would be written if it was
        #: rewritten, and how many of these are in chunks whose ``live_size`` is an estimate
        self.chunks: dict[int, int] = {}
        self._members: dict[int, list[tuple[NumberedLog, Chunk]]] = {}
        self.sizes: dict[int, int] = {}
        self.live: dict[int, int] = {}
        self._guessed: dict[int, int] = {}
        #: segment and position of blocks that could not be read
        self._unreadable: set[tuple[int, int]] = set()
        #: files that chunks have left, with the number of the last read that may need them
        self.left: list[tuple[int, int]] = []
        #: reads of chunks asked for, and done
        self.loads = 0
        self.loads_done = 0
        #: chunks that the catalog names but that hold no record: log, first offset, segment
        self.dead: list[tuple[int, int, int]] = []
        #: chunks in memory that could be read back, oldest first, with stale ones in between
        self._loaded: deque[Chunk] = deque()
        #: chunks that no log has any more, to be released
        self.unwanted: list[Chunk] = []
        self._loaded_count = 0
        #: bytes in them
        self.loaded_bytes = 0

    def path(self, number: int) -> str:
        """The path of a segment file."""
        return f"{self.directory}/{segment_name(number)}"

    def reader(self) -> BlockReader:
        """For the blocks of these files, on any thread."""
        return BlockReader(self.filesystem, self.directory, self.keys)

    def check(self, number: int, size: int) -> None:
        """Look at a segment file's header, and whether it has at least ``size`` bytes.

        Raises StorageDamaged, StorageKeyError.
        """
        path = self.path(number)
        if not self.filesystem.exists(path):
            raise StorageDamaged(path, 0, "it is missing")
        file = self.filesystem.open(path)
        found = file.size()
        head = file.read(0, ENCRYPTED_HEADER_SIZE)
        file.close()
        if found < size:
            raise StorageDamaged(path, found, "the file is too short")
        header = read_file_header(head, path, number, self.keys)
        if header.key_id != self.keys.current:
            self.foreign.add(number)
        # With the blocks of chunks that the catalog names no more.
        self.sizes[number] = found - header.size

    def remove_unused(self) -> None:
        """Remove the files that the catalog does not name: a checkpoint did not get so far."""
        used = {segment_name(number) for number in self.chunks}
        for name in self.filesystem.names(self.directory):
            if name not in used:
                self.filesystem.remove(f"{self.directory}/{name}")

    def add(self, log: NumberedLog, chunk: Chunk) -> None:
        """The catalog names a chunk in the file where it lies."""
        segment = chunk.segment
        if segment not in self.chunks:
            self.chunks[segment] = 0
            self._members[segment] = []
            self.sizes[segment] = 0
            self.live[segment] = 0
            self._guessed[segment] = 0
        self.chunks[segment] += 1
        self._members[segment].append((log, chunk))
        self.sizes[segment] += chunk.length
        if chunk.records is None:
            chunk.measure()
        chunk.counted = chunk.guessed = 0
        self.count(chunk)

    def count(self, chunk: Chunk) -> None:
        """A chunk has lost records, or more is known about those that it has lost."""
        segment = chunk.segment
        needed = needed_size(chunk)
        guessed = needed if chunk.is_estimated else 0
        self.live[segment] += needed - chunk.counted
        self._guessed[segment] += guessed - chunk.guessed
        chunk.counted = needed
        chunk.guessed = guessed

    def discard(self, segment: int) -> bool:
        """The catalog names one chunk less in a file; whether that was the last one."""
        self.chunks[segment] -= 1
        return self.chunks[segment] == 0

    def forget(self, segment: int) -> None:
        """The catalog names no chunk in a file any more."""
        del self.chunks[segment]
        del self._members[segment]
        del self.sizes[segment]
        del self.live[segment]
        del self._guessed[segment]
        self.foreign.discard(segment)

    def move(self, place: Place, moved: Chunk, kept: list[int]) -> None:
        """The catalog names another place for a chunk, and fewer slots."""
        chunk = place.chunk
        if chunk.live == 0:
            # The last record went while it was written: the row to be removed is the new one.
            old = (place.log.number, chunk.first, place.segment)
            self.dead[self.dead.index(old)] = (place.log.number, chunk.first, moved.segment)
        self.live[place.segment] -= chunk.counted
        self._guessed[place.segment] -= chunk.guessed
        chunk.become(moved, kept)
        self.add(place.log, chunk)
        if self.discard(place.segment):
            self.forget(place.segment)
            self.left.append((place.segment, self.loads))

    def take_left(self) -> list[tuple[int, int]]:
        """Files without chunks that no read under way needs any more."""
        ready = [each for each in self.left if each[1] <= self.loads_done]
        self.left = [each for each in self.left if each[1] > self.loads_done]
        return ready

    def unreadable(self, place: Place) -> None:
        """A block is damaged: it stays where it is, and so does its file."""
        self._unreadable.add((place.segment, place.position))

    def to_relocate(self, is_space_short: bool) -> list[tuple[NumberedLog, Chunk]]:
        """Chunks to be written anew, so that files go in which little is left, or which are not
        encrypted with the key for what is written.

        They are bounded in number and in bytes: what is left waits for the next call. When space is
        short more files are worth it, those come first that gain most, and there is room for them.
        """
        found: list[tuple[NumberedLog, Chunk]] = []
        size = 0
        looked_at = 0
        room = sys.maxsize
        if is_space_short:
            room = self.filesystem.free(self.directory) // _ROOM_SHARE
        for segment in self._worthwhile(is_space_short):
            if self.live[segment] > room:
                continue
            room -= self.live[segment]
            for log, chunk in self._members[segment]:
                if chunk.live == 0 or chunk.segment != segment:
                    continue
                if self._unreadable and (segment, chunk.position) in self._unreadable:
                    continue
                found.append((log, chunk))
                size += chunk.counted
                if size >= _RELOCATED_SIZE or len(found) >= _RELOCATED_CHUNKS:
                    return found
            looked_at += len(self._members[segment])
            if looked_at >= _RELOCATION_LOOKS:
                break
        return found

    def _worthwhile(self, is_space_short: bool) -> list[int]:
        """The files that should be rewritten."""
        share = _SHORT_SHARE if is_space_short else _RELOCATED_SHARE
        found: list[int] = []
        for segment, live in self.live.items():
            if live == 0:
                continue
            size = self.sizes[segment]
            is_worth_it = live * share <= size or segment in self.foreign
            if is_space_short and not is_worth_it:
                # To rewrite it is to know it.
                least = live - self._guessed[segment]
                gain = size - live
                is_worth_it = least * share <= size and gain * _GUESSED_GAIN >= size
            if is_worth_it:
                found.append(segment)
        if is_space_short:
            found.sort(key=self._share_left)
        return found

    def _share_left(self, segment: int) -> float:
        return self.live[segment] / self.sizes[segment]

    def has_garbage(self, is_space_short: bool) -> bool:
        """Whether a checkpoint could make space."""
        if self.dead and 0 in self.live.values():
            return True
        if any(reads <= self.loads_done for _, reads in self.left):
            return True
        return bool(self.to_relocate(is_space_short))

    def load(self, log: NumberedLog, chunks: list[Chunk], ready: Callable[[], None]) -> None:
        """Bring ``chunks`` back into memory, then call ``ready`` on the loop's thread."""
        self.loads += 1
        self._worker.submit(LoadWork(self, log, chunks, ready))

    def charge(self, chunk: Chunk) -> None:
        """A chunk that could be read back is in memory."""
        chunk.charged = chunk.size + _RECORD_OVERHEAD * chunk.slots
        self.loaded_bytes += chunk.charged
        self._loaded_count += 1
        self._loaded.append(chunk)

    def release(self, chunk: Chunk) -> None:
        """Take a chunk's records out of memory; for good, or because they can be read back."""
        if chunk.charged:
            self.loaded_bytes -= chunk.charged
            self._loaded_count -= 1
            chunk.charged = 0
        chunk.records = None
        chunk.annotations = None
        if len(self._loaded) > 64 + 2 * self._loaded_count:
            self._loaded = deque([each for each in self._loaded if each.charged])

    def let_go(self, chunks: list[Chunk]) -> None:
        """No log has them any more: ``make_room`` frees them, some in each turn."""
        self.unwanted += chunks

    def make_room(self, size: int) -> bool:
        """Release the chunks that came first until ``size`` more bytes are within the budget.

        False when that needs another call, in another turn.
        """
        for _ in range(_RELEASED_AT_ONCE):
            if self.unwanted:
                self.unwanted.pop()
                continue
            if self.loaded_bytes + size <= self._budget or not self._loaded:
                return True
            chunk = self._loaded.popleft()
            if chunk.charged:
                self.release(chunk)
        return False
