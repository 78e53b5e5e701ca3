"""Segment files: blocks of any number of logs, written by checkpoints and never changed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final

from trivium.storage.errors import StorageDamaged
from trivium.storage.files.directory import number_in_name, numbered_name
from trivium.storage.files.encryption import PLAIN, SALT_SIZE, FileCipher, Keys
from trivium.storage.files.executor import TimeSlice
from trivium.storage.files.filesystem import File, FileSystem
from trivium.storage.segments.blocks import ChunkImage, Place, decode_block

VERSION: Final = 1
SUFFIX: Final = ".segment"
_FILE_MAGIC: Final = b"TRIVSEGM"
#: magic, version, (pad), number, (pad)
_FILE_HEADER: Final = Struct("<8sI4xQ4x")
_CHECKSUM: Final = Struct("<I")
FILE_HEADER_SIZE: Final[int] = _FILE_HEADER.size + 4
#: of an encrypted file, behind what any file has up to its number: key id, salt, (pad)
_ENCRYPTED_VERSION: Final = 2
_CONTEXT_SIZE: Final = 24
_ENCRYPTION: Final = Struct("<8s32s4x")
_ENCRYPTED_VERSION_BYTES: Final = bytes([_ENCRYPTED_VERSION, 0, 0, 0])
ENCRYPTED_HEADER_SIZE: Final[int] = _CONTEXT_SIZE + _ENCRYPTION.size + 4

#: A file that has reached this size takes no further block, so that its space comes back soon.
SEGMENT_SIZE: Final = 64 * 1024 * 1024
#: What is encoded and written in one piece, and synced with the next one: little enough that no
#: write batch waits long for it, but as much as the write batches themselves have, since a disk
#: that is shared by writers of large and of small pieces leaves those of small ones behind.
MIN_WRITE_SIZE: Final = 2 * 1024 * 1024
MAX_WRITE_SIZE: Final = 16 * 1024 * 1024


def segment_name(number: int) -> str:
    """The name of a segment file."""
    return numbered_name(number, SUFFIX)


def segment_number(name: str) -> int | None:
    """The number in the name of a segment file; None when it is another file."""
    return number_in_name(name, SUFFIX)


class SegmentWriter:
    """Writes chunks to new segment files."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        next_segment: int,
        keys: Keys,
        entropy: Callable[[int], bytes],
        compresses: bool = False,
        write_size: int = MIN_WRITE_SIZE,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._keys = keys
        self._entropy = entropy
        self._cipher: FileCipher | None = None
        self._compresses = compresses
        self._write_size = min(max(write_size, MIN_WRITE_SIZE), MAX_WRITE_SIZE)
        #: number of the next file; those before it, from the first given, are written
        self.next_segment = next_segment
        self._file: File | None = None
        self._slice = TimeSlice()
        self._parts: list[bytes] = []
        self._buffered = 0
        self._position = 0
        #: up to where everything is synced
        self._synced = 0

    def write(self, image: ChunkImage) -> None:
        """Write a chunk and note where it lies. Raises OSError."""
        if self._file is None:
            self._open()
        image.segment = self.next_segment
        image.position = self._position + self._buffered
        block = image.encoded(self._compresses, self._cipher, self._slice)
        image.length = sum(map(len, block))
        # Here and not all together on the loop's thread, where it would take milliseconds.
        image.records = []
        self._parts += block
        self._buffered += image.length
        self._slice.pause()
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
        self._sync(file)
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
        keys = self._keys
        if keys.current == PLAIN:
            head = _FILE_HEADER.pack(_FILE_MAGIC, VERSION, self.next_segment)
        else:
            head = _FILE_HEADER.pack(_FILE_MAGIC, _ENCRYPTED_VERSION, self.next_segment)
            salt = self._entropy(SALT_SIZE)
            self._cipher = keys.cipher(keys.current, salt, head[:_CONTEXT_SIZE], path)
            head = head[:_CONTEXT_SIZE] + _ENCRYPTION.pack(keys.current, salt)
        self._parts = [head, _CHECKSUM.pack(zlib.crc32(head))]
        self._buffered = len(head) + _CHECKSUM.size
        self._position = self._synced = 0

    def _flush(self) -> None:
        file = self._file
        assert file is not None
        start = self._position
        self._position += self._buffered
        if self._parts:
            file.write(self._parts, start, False)
            # While the disk writes this piece the next one is encoded.
            if self._synced < start:
                self._sync(file)
            else:
                file.forget(start, self._buffered)
        self._parts = []
        self._buffered = 0

    def _sync(self, file: File) -> None:
        file.sync()
        # Else the system's cache fills with what is in memory here, or is not wanted soon; and
        # memory that is given back goes to the next piece, where fresh memory is slow to come.
        file.forget(self._synced, self._position - self._synced)
        self._synced = self._position


class SegmentHeader:
    """What the header of a segment file states."""

    def __init__(self, size: int, key_id: bytes, cipher: FileCipher | None) -> None:
        #: where the first block lies
        self.size = size
        self.key_id = key_id
        self.cipher = cipher


def read_file_header(data: bytes, path: str, number: int, keys: Keys) -> SegmentHeader:
    """The header of segment file ``number``. Raises StorageDamaged, StorageKeyError."""
    version = _ENCRYPTED_VERSION if data[8:12] == _ENCRYPTED_VERSION_BYTES else VERSION
    size = FILE_HEADER_SIZE if version == VERSION else ENCRYPTED_HEADER_SIZE
    head = data[: size - _CHECKSUM.size]
    context = _FILE_HEADER.pack(_FILE_MAGIC, version, number)[:_CONTEXT_SIZE]
    checksum = data[len(head) : size]
    if not head.startswith(context) or checksum != _CHECKSUM.pack(zlib.crc32(head)):
        raise StorageDamaged(path, 0, "the file header is wrong")
    if version == VERSION:
        return SegmentHeader(size, PLAIN, None)
    key_id, salt = _ENCRYPTION.unpack_from(head, _CONTEXT_SIZE)
    return SegmentHeader(size, key_id, keys.cipher(key_id, salt, context, path))


class BlockReader:
    """Reads blocks, one after the other, each file opened once as long as they lie together."""

    def __init__(self, filesystem: FileSystem, directory: str, keys: Keys) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._keys = keys
        self._cipher: FileCipher | None = None
        self._number = 0
        self._file: File | None = None

    def read(self, place: Place) -> tuple[list[bytes | None], dict[int, bytes] | None]:
        """Records and annotations of a chunk. Raises StorageError, OSError."""
        path = f"{self._directory}/{segment_name(place.segment)}"
        if self._file is None or self._number != place.segment:
            self.close()
            self._file = self._filesystem.open(path)
            self._number = place.segment
            self._cipher = None
            head = self._file.read(0, ENCRYPTED_HEADER_SIZE)
            try:
                self._cipher = read_file_header(head, path, place.segment, self._keys).cipher
            except StorageDamaged:
                # Blocks that are not encrypted speak for themselves.
                pass
        data = self._file.read(place.position, place.length)
        return decode_block(data, path, place, self._cipher)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
