"""Segment files: chunks of logs, written by checkpoints and never changed.

A segment file holds blocks, one for each chunk, of any number of logs: ten thousand small queues
need no ten thousand files. Where each chunk lies is in the catalog. A file is removed once no chunk
in it holds a record any more.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

import zstandard

from trivium.storage.chunks import Chunk
from trivium.storage.errors import StorageDamaged, StorageError
from trivium.storage.executor import Completions, Lane, Work
from trivium.storage.filesystem import File, FileSystem
from trivium.storage.journal import checksum_holding_the_lock

if TYPE_CHECKING:
    from trivium.storage.log import DiskLog

VERSION: Final = 1
SUFFIX: Final = ".segment"
_FILE_MAGIC: Final = b"TRIVSEGM"
#: magic, version, (pad), number, (pad)
_FILE_HEADER: Final = Struct("<8sI4xQ4x")
_BLOCK_MAGIC: Final = b"BLCK"
#: magic, log, first offset, end offset, records, flags, body length, checksum of the body
_BLOCK_HEADER: Final = Struct("<4sIQQIIQI")
_CHECKSUM: Final = Struct("<I")
FILE_HEADER_SIZE: Final[int] = _FILE_HEADER.size + 4
BLOCK_HEADER_SIZE: Final[int] = _BLOCK_HEADER.size + 4

#: flags of a block
SPARSE: Final = 1
_NOTES: Final = 2
_COMPRESSED: Final = 4
#: of a body before it was compressed
_SIZE: Final = Struct("<Q")
#: zstd's quickest level but for the negative ones
_ZSTD_LEVEL: Final = 1
#: A body that shrinks less is stored as it is, and costs no time when it is read.
_WORTHWHILE: Final = 0.9

#: A file that has reached this size takes no further block, so that its space comes back soon.
SEGMENT_SIZE: Final = 64 * 1024 * 1024
#: What is encoded, written and synced in one piece: little enough that no batch waits long for it,
#: but as much as the batches themselves have, since a disk that is shared by writers of large and
#: of small pieces leaves those of small ones behind.
MIN_WRITE_SIZE: Final = 2 * 1024 * 1024
MAX_WRITE_SIZE: Final = 16 * 1024 * 1024
#: A file is rewritten when one in so many of its records is left, or fewer: what is written is then
#: small beside what becomes free.
_STRAGGLER_SHARE: Final = 4
#: One checkpoint rewrites so many bytes at most, small beside what it writes anyway, and so many
#: chunks, looking at so many and a file's more, because that is done in one turn.
_STRAGGLER_SIZE: Final = 16 * 1024 * 1024
_STRAGGLER_CHUNKS: Final = 1000
_STRAGGLER_LOOKS: Final = 10_000

#: Chunks released in one turn: freeing their 500 records each takes a millisecond or so.
_RELEASED_AT_ONCE: Final = 64

#: What a chunk costs beside the bytes of its records: 33 for each object, 8 for its slot.
_RECORD_OVERHEAD: Final = 41


def segment_name(number: int) -> str:
    """The name of a segment file."""
    return f"{number:016x}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in the name of a segment file; None when it is another file."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


class ChunkImage:
    """A chunk as it was when the checkpoint passed it, safe to be read by another thread."""

    def __init__(
        self, log: DiskLog, chunk: Chunk, records: list[bytes], notes: dict[int, bytes] | None
    ) -> None:
        self.log = log
        self.chunk = chunk
        self.records = records
        self.notes = notes
        #: set once it is written
        self.segment = 0
        self.position = 0
        self.length = 0

    def encoded(self, compresses: bool) -> list[bytes]:
        """The block, in parts."""
        chunk = self.chunk
        records = self.records
        count = len(records)
        flags = 0
        parts = [struct.pack(f"<{count}I", *map(len, records))]
        if chunk.offsets is not None and chunk.ends is not None:
            flags |= SPARSE
            parts.append(struct.pack(f"<{count}q", *chunk.offsets))
            parts.append(struct.pack(f"<{count}q", *chunk.ends))
        notes: list[bytes] = []
        if self.notes is not None:
            flags |= _NOTES
            notes = [self.notes.get(slot, b"") for slot in range(count)]
            parts.append(struct.pack(f"<{count}I", *map(len, notes)))
        body = b"".join([*parts, *records, *notes])
        if compresses:
            packed = _compressed(body)
            if len(packed) < len(body) * _WORTHWHILE:
                body = packed
                flags |= _COMPRESSED
        head = _BLOCK_HEADER.pack(
            _BLOCK_MAGIC,
            self.log.number,
            chunk.first,
            chunk.end,
            count,
            flags,
            len(body),
            checksum_holding_the_lock(body),
        )
        return [head, _CHECKSUM.pack(zlib.crc32(head)), body]


def image_of(log: DiskLog, chunk: Chunk) -> ChunkImage:
    """The image of a chunk that lies in no segment yet."""
    records = [record for record in chunk.records or () if record is not None]
    assert len(records) == chunk.slots
    return ChunkImage(log, chunk, records, None if not chunk.notes else dict(chunk.notes))


class SegmentWriter:
    """Writes chunks to new segment files."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        next_segment: int,
        compresses: bool = False,
        write_size: int = MIN_WRITE_SIZE,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._compresses = compresses
        self._write_size = min(max(write_size, MIN_WRITE_SIZE), MAX_WRITE_SIZE)
        #: number of the next file; those before it, from the first given, are written
        self.next_segment = next_segment
        self._file: File | None = None
        self._parts: list[bytes] = []
        self._buffered = 0
        self._position = 0

    def write(self, image: ChunkImage) -> None:
        """Write a chunk and note where it lies. Raises OSError."""
        if self._file is None:
            self._open()
        block = image.encoded(self._compresses)
        image.segment = self.next_segment
        image.position = self._position + self._buffered
        image.length = sum(map(len, block))
        # Here and not all together on the loop's thread, where it would take milliseconds.
        image.records = []
        self._parts += block
        self._buffered += image.length
        if self._buffered >= self._write_size:
            self._flush()
            if self._position >= SEGMENT_SIZE:
                self.finish()

    def finish(self) -> None:
        """Make everything written durable under its final name. Raises OSError."""
        file = self._file
        if file is None:
            return
        self._flush()
        file.sync()
        file.close()
        self._file = None
        path = f"{self._directory}/{segment_name(self.next_segment)}"
        self._filesystem.rename(path + ".tmp", path)
        self._filesystem.sync_directory(self._directory)
        self.next_segment += 1

    def abandon(self, first: int) -> None:
        """Remove the files from number ``first`` on. Raises OSError."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for number in range(first, self.next_segment + 1):
            path = f"{self._directory}/{segment_name(number)}"
            self._filesystem.remove(path)
            self._filesystem.remove(path + ".tmp")

    def _open(self) -> None:
        path = f"{self._directory}/{segment_name(self.next_segment)}.tmp"
        self._file = self._filesystem.create(path)
        head = _FILE_HEADER.pack(_FILE_MAGIC, VERSION, self.next_segment)
        self._parts = [head, _CHECKSUM.pack(zlib.crc32(head))]
        self._buffered = FILE_HEADER_SIZE
        self._position = 0

    def _flush(self) -> None:
        assert self._file is not None
        if self._parts:
            self._file.write(self._parts, self._position, True)
            # Else the system's cache fills with what is in memory here, or is not wanted soon; and
            # memory that is given back goes to the next piece, where fresh memory is slow to come.
            self._file.forget(self._position, self._buffered)
        self._position += self._buffered
        self._parts = []
        self._buffered = 0


def check_file_header(data: bytes, path: str, number: int) -> None:
    """Raise StorageDamaged unless ``data`` begins as segment file ``number`` does."""
    head = _FILE_HEADER.pack(_FILE_MAGIC, VERSION, number)
    if not data.startswith(head + _CHECKSUM.pack(zlib.crc32(head))):
        raise StorageDamaged(path, 0, "the file header is wrong")


def block_header(data: bytes) -> tuple[int, int, int, int, int, int, int] | None:
    """What the header of a block states, None when it is wrong.

    Log, first offset, end offset, records, flags, length of the body, checksum of the body.
    """
    if len(data) < BLOCK_HEADER_SIZE:
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, _BLOCK_HEADER.size)
    if checksum != zlib.crc32(memoryview(data)[: _BLOCK_HEADER.size]):
        return None
    magic, log, first, end, count, flags, length, checksum = _BLOCK_HEADER.unpack_from(data)
    if magic != _BLOCK_MAGIC:
        return None
    return log, first, end, count, flags, length, checksum


class Place:
    """Where the block of a chunk lies and what it holds, as it is known in this turn."""

    def __init__(self, log: DiskLog, chunk: Chunk) -> None:
        self.log = log
        self.chunk = chunk
        self.first = chunk.first
        self.end = chunk.end
        self.slots = chunk.slots
        self.removed = chunk.removed
        self.segment = chunk.segment
        self.position = chunk.position
        self.length = chunk.length

    def is_left(self) -> bool:
        """Whether the chunk lies elsewhere meanwhile."""
        chunk = self.chunk
        return (chunk.segment, chunk.position) != (self.segment, self.position)


def decode_block(
    data: bytes, path: str, place: Place
) -> tuple[list[bytes | None], dict[int, bytes] | None]:
    """Records and notes of a chunk from the block that was read. Raises StorageDamaged."""
    position = place.position
    if len(data) < max(place.length, BLOCK_HEADER_SIZE):
        raise StorageDamaged(path, position + len(data), "the file is too short")
    header = block_header(data)
    if header is None:
        raise StorageDamaged(path, position, "the header of a block is wrong")
    number, first, end, count, flags, size, _ = header
    wanted = (place.log.number, place.first, place.end, place.slots)
    if (number, first, end, count) != wanted or size != place.length - BLOCK_HEADER_SIZE:
        raise StorageDamaged(path, position, "the block of another chunk")
    body = block_body(data, header)
    if body is None:
        raise StorageDamaged(path, position, "the content of a block is wrong")
    return _decode_body(body, count, flags)


def block_body(data: bytes, header: tuple[int, int, int, int, int, int, int]) -> bytes | None:
    """The body of a whole block as it was before it was compressed; None when it is wrong."""
    _, _, _, _, flags, length, checksum = header
    stored = memoryview(data)[BLOCK_HEADER_SIZE : BLOCK_HEADER_SIZE + length]
    if checksum != zlib.crc32(stored):
        return None
    if flags & _COMPRESSED:
        return _decompressed(stored)
    return bytes(stored)


def _compressed(body: bytes) -> bytes:
    packed = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    return _SIZE.pack(len(body)) + packed


def _decompressed(stored: memoryview) -> bytes | None:
    """None when it is not what ``_compressed`` makes; allocates no more than a frame says."""
    try:
        (size,) = _SIZE.unpack_from(stored)
        packed = stored[_SIZE.size :]
        if zstandard.get_frame_parameters(packed).content_size != size:
            return None
        return zstandard.ZstdDecompressor().decompress(packed)
    except (struct.error, zstandard.ZstdError, MemoryError):
        return None


def _decode_body(
    data: bytes, count: int, flags: int
) -> tuple[list[bytes | None], dict[int, bytes] | None]:
    at = 0
    sizes = struct.unpack_from(f"<{count}I", data, at)
    at += 4 * count
    if flags & SPARSE:
        at += 16 * count
    note_sizes: tuple[int, ...] = ()
    if flags & _NOTES:
        note_sizes = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
    records: list[bytes | None] = []
    for size in sizes:
        records.append(data[at : at + size])
        at += size
    notes: dict[int, bytes] | None = None
    if note_sizes:
        notes = {}
        for slot, size in enumerate(note_sizes):
            if size:
                notes[slot] = data[at : at + size]
                at += size
    return records, notes


class BlockReader:
    """Reads blocks, one after the other, each file opened once as long as they lie together."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._number = 0
        self._file: File | None = None

    def read(self, place: Place) -> tuple[list[bytes | None], dict[int, bytes] | None]:
        """Records and notes of a chunk. Raises StorageDamaged, OSError."""
        path = self._segments.path(place.segment)
        if self._file is None or self._number != place.segment:
            self.close()
            self._file = self._segments.filesystem.open(path)
            self._number = place.segment
        data = self._file.read(place.position, place.length)
        return decode_block(data, path, place)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class LoadWork(Work):
    """Reads chunks back from their segment files."""

    def __init__(
        self, segments: Segments, log: DiskLog, chunks: list[Chunk], ready: Callable[[], None]
    ) -> None:
        self._segments = segments
        self._places = [Place(log, chunk) for chunk in chunks]
        self._ready = ready
        self._loaded: list[tuple[Place, list[bytes | None], dict[int, bytes] | None]] = []
        self._error: Exception | None = None

    def run(self) -> None:
        """On the reader lane: read and decode."""
        reader = BlockReader(self._segments)
        try:
            for place in self._places:
                records, notes = reader.read(place)
                self._loaded.append((place, records, notes))
        except (OSError, StorageError) as error:
            self._error = error
        reader.close()
        self._segments.completions.add(self)

    def finish(self) -> None:
        """On the loop's thread: hand the records over."""
        segments = self._segments
        segments.loads_done += 1
        if self._error is not None and any(place.chunk.live for place in self._places):
            segments.fail(self._error)
            return
        segments.make_room(sum(place.chunk.size for place, _, _ in self._loaded))
        for place, records, notes in self._loaded:
            chunk = place.chunk
            # If it was moved meanwhile, whoever wants it asks once more.
            if chunk.live == 0 or chunk.records is not None or place.is_left():
                continue
            removed = chunk.removed
            if removed:
                for slot in range(chunk.slots):
                    if (removed >> slot) & 1:
                        records[slot] = None
                        if notes is not None:
                            notes.pop(slot, None)
            chunk.records = records
            chunk.notes = notes
            segments.charge(chunk)
        self._ready()


class Segments:
    """The segment files of a storage, and how much of them is in memory. On the loop's thread."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        budget: int,
        lane: Lane,
        completions: Completions,
        fail: Callable[[Exception], None],
    ) -> None:
        self.filesystem = filesystem
        self.completions = completions
        self.fail = fail
        self._directory = directory
        self._budget = budget
        self._lane = lane
        self.next_segment = 1
        #: for each file: how many of its chunks the catalog names; which they are, with others
        #: that are gone; how many records they have had, and have
        self.chunks: dict[int, int] = {}
        self._members: dict[int, list[tuple[DiskLog, Chunk]]] = {}
        self._records: dict[int, int] = {}
        self.live: dict[int, int] = {}
        #: files that chunks have left, with the number of the last read that may need them
        self.left: list[tuple[int, int]] = []
        #: reads of chunks asked for, and done
        self.loads = 0
        self.loads_done = 0
        #: chunks that the catalog names but that hold no record: log, first offset, segment
        self.dead: list[tuple[int, int, int]] = []
        #: chunks in memory that could be read back, oldest first, with stale ones in between
        self._loaded: deque[Chunk] = deque()
        self._loaded_count = 0
        #: bytes in them
        self.loaded_bytes = 0

    def path(self, number: int) -> str:
        """The path of a segment file."""
        return f"{self._directory}/{segment_name(number)}"

    def check(self, number: int, size: int) -> None:
        """Raise StorageDamaged unless a segment file is there and has at least ``size`` bytes."""
        path = self.path(number)
        if not self.filesystem.exists(path):
            raise StorageDamaged(path, 0, "it is missing")
        file = self.filesystem.open(path)
        found = file.size()
        file.close()
        if found < size:
            raise StorageDamaged(path, found, "the file is too short")

    def remove_unused(self) -> None:
        """Remove the files that the catalog does not name: a checkpoint did not get so far."""
        used = {segment_name(number) for number in self.chunks}
        for name in self.filesystem.names(self._directory):
            if name not in used:
                self.filesystem.remove(f"{self._directory}/{name}")

    def add(self, log: DiskLog, chunk: Chunk) -> None:
        """The catalog names a chunk in the file where it lies."""
        segment = chunk.segment
        if segment not in self.chunks:
            self.chunks[segment] = 0
            self._members[segment] = []
            self._records[segment] = 0
            self.live[segment] = 0
        self.chunks[segment] += 1
        self._members[segment].append((log, chunk))
        self._records[segment] += chunk.slots
        self.live[segment] += chunk.live

    def discard(self, segment: int) -> bool:
        """The catalog names one chunk less in a file; whether that was the last one."""
        self.chunks[segment] -= 1
        return self.chunks[segment] == 0

    def forget(self, segment: int) -> None:
        """The catalog names no chunk in a file any more."""
        del self.chunks[segment]
        del self._members[segment]
        del self._records[segment]
        del self.live[segment]

    def move(self, place: Place, moved: Chunk, kept: list[int]) -> None:
        """The catalog names another place for a chunk, and fewer slots."""
        chunk = place.chunk
        if chunk.live == 0:
            # The last record went while it was written: the row to be removed is the new one.
            old = (place.log.number, chunk.first, place.segment)
            self.dead[self.dead.index(old)] = (place.log.number, chunk.first, moved.segment)
        self.live[place.segment] -= chunk.live
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

    def stragglers(self) -> list[tuple[DiskLog, Chunk]]:
        """Chunks worth writing anew, so that the files go in which few records are left.

        They are bounded in number and in bytes: what is left waits for the next call.
        """
        found: list[tuple[DiskLog, Chunk]] = []
        size = 0
        looked_at = 0
        for segment, live in self.live.items():
            if live == 0 or live * _STRAGGLER_SHARE >= self._records[segment]:
                continue
            for log, chunk in self._members[segment]:
                if chunk.live and chunk.segment == segment:
                    found.append((log, chunk))
                    size += chunk.size * chunk.live // chunk.slots
                    if size >= _STRAGGLER_SIZE or len(found) >= _STRAGGLER_CHUNKS:
                        return found
            looked_at += len(self._members[segment])
            if looked_at >= _STRAGGLER_LOOKS:
                break
        return found

    def load(self, log: DiskLog, chunks: list[Chunk], ready: Callable[[], None]) -> None:
        """Bring ``chunks`` back into memory, then call ``ready`` on the loop's thread."""
        self.loads += 1
        self._lane.submit(LoadWork(self, log, chunks, ready))

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
        chunk.notes = None
        if len(self._loaded) > 64 + 2 * self._loaded_count:
            self._loaded = deque([each for each in self._loaded if each.charged])

    def make_room(self, size: int) -> bool:
        """Release the chunks that came first until ``size`` more bytes are within the budget.

        False when that needs another call, in another turn.
        """
        for _ in range(_RELEASED_AT_ONCE):
            if self.loaded_bytes + size <= self._budget or not self._loaded:
                return True
            chunk = self._loaded.popleft()
            if chunk.charged:
                self.release(chunk)
        return False


def offsets_from_bytes(data: bytes) -> array[int]:
    """The offsets or ends of a chunk as catalog and blocks keep them."""
    return array("q", struct.unpack(f"<{len(data) // 8}q", data))


def offsets_to_bytes(offsets: array[int]) -> bytes:
    """The offsets or ends of a chunk as the catalog keeps them."""
    return struct.pack(f"<{len(offsets)}q", *offsets)
