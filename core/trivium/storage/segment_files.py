"""Segment files: blocks of any number of logs, written by checkpoints and never changed."""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final

from trivium.storage.blocks import ChunkImage, Place, decode_block
from trivium.storage.errors import StorageDamaged
from trivium.storage.filesystem import File, FileSystem

VERSION: Final = 1
SUFFIX: Final = ".segment"
_FILE_MAGIC: Final = b"TRIVSEGM"
#: magic, version, (pad), number, (pad)
_FILE_HEADER: Final = Struct("<8sI4xQ4x")
_CHECKSUM: Final = Struct("<I")
FILE_HEADER_SIZE: Final[int] = _FILE_HEADER.size + 4

#: A file that has reached this size takes no further block, so that its space comes back soon.
SEGMENT_SIZE: Final = 64 * 1024 * 1024
#: What is encoded, written and synced in one piece: little enough that no batch waits long for it,
#: but as much as the batches themselves have, since a disk that is shared by writers of large and
#: of small pieces leaves those of small ones behind.
MIN_WRITE_SIZE: Final = 2 * 1024 * 1024
MAX_WRITE_SIZE: Final = 16 * 1024 * 1024


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


class BlockReader:
    """Reads blocks, one after the other, each file opened once as long as they lie together."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._number = 0
        self._file: File | None = None

    def read(self, place: Place) -> tuple[list[bytes | None], dict[int, bytes] | None]:
        """Records and notes of a chunk. Raises StorageDamaged, OSError."""
        path = f"{self._directory}/{segment_name(place.segment)}"
        if self._file is None or self._number != place.segment:
            self.close()
            self._file = self._filesystem.open(path)
            self._number = place.segment
        data = self._file.read(place.position, place.length)
        return decode_block(data, path, place)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
