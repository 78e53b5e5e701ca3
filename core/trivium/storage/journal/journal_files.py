"""Journal files, byte by byte as in docs/storage-format.md: write batches, each with its number and
checksums, between a header and a trailer.

A journal file is made complete before it is used: written under a temporary name, its header
synced, renamed, the directory synced. Its header holds a random *marker*, and every write batch in
the file starts with it, so that neither what an earlier use of the same blocks left behind nor
anything in a message's payload can pass for a write batch.

How an end that was being written is told from damage:

- A write batch says which ones were synced when it was written. Bytes that are none are a torn end
  unless a later write batch says that the missing one had been synced.
- A file that is written has the length that its header says, or more. One that is closed has a
  trailer behind its last write batch, synced before the rest is cut off; and once another file
  follows, a second one, synced before that file gets its first write batch. So neither the end of a
  file nor a whole file can go unnoticed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final

from trivium.storage.errors import StorageDamaged, StorageVersionMismatch
from trivium.storage.files.directory import number_in_name, numbered_name
from trivium.storage.files.encryption import PLAIN, FileCipher, Keys

VERSION: Final = 3
_FILE_MAGIC: Final = b"TRIVJRNL"
#: magic, version, (pad), file number, number of its first write batch, marker
_FILE_START: Final = Struct("<8sI4xQQ8s")
#: behind that: key id, salt, length that was reserved, (pad)
_FILE_END: Final = Struct("<8s32sQ4x")
_CHECKSUM: Final = Struct("<I")
FILE_HEADER_SIZE: Final[int] = _FILE_START.size + _FILE_END.size + 4

#: The versions of storage format 1, which have no trailers: 1 was not encrypted, and had a shorter
#: header; 2 was, and had nothing where the reserved length is.
_OLD_VERSION: Final = 1
_OLD_ENCRYPTED_VERSION: Final = 2
OLD_HEADER_SIZE: Final[int] = _FILE_START.size + 8

#: marker, write batch number, oldest one not synced, body length, flags, checksum of it, (pad)
_BATCH_HEADER: Final = Struct("<8sQQQII4x")
BATCH_HEADER_SIZE: Final[int] = _BATCH_HEADER.size + 4

#: flag of the first write batch of a process, and of the last one when it stopped cleanly
STARTED: Final = 1
STOPPED: Final = 2
#: flags of what is no write batch but a trailer: the file is closed; another file follows
CLOSED: Final = 4
FOLLOWED: Final = 8
TRAILER: Final[int] = CLOSED | FOLLOWED

SUFFIX: Final = ".journal"

#: The unused rest of a file, of which it may be most, is zeros: they are compared, by so many
#: bytes, in a fraction of the time in which they are searched for a marker.
_BLOCK: Final = 64 * 1024
_ZEROS: Final = bytes(_BLOCK)


def file_name(number: int) -> str:
    """The name of a journal file."""
    return numbered_name(number, SUFFIX)


def file_number(name: str) -> int | None:
    """The number in the name of a journal file; None when it is another file."""
    return number_in_name(name, SUFFIX)


def file_header(
    number: int, first_batch: int, marker: bytes, key_id: bytes, salt: bytes, reserved: int
) -> bytes:
    """The header of a file that has ``reserved`` bytes while it is written."""
    header = _FILE_START.pack(_FILE_MAGIC, VERSION, number, first_batch, marker)
    header += _FILE_END.pack(key_id, salt, reserved)
    return header + _CHECKSUM.pack(zlib.crc32(header))


def file_cipher(keys: Keys, header: bytes, path: str) -> FileCipher | None:
    """For the bodies in a file with this header, None for plain text. Raises StorageKeyError."""
    key_id, salt, _ = _FILE_END.unpack_from(header, _FILE_START.size)
    if key_id == PLAIN:
        return None
    return keys.cipher(key_id, salt, header[: _FILE_START.size], path)


def batch_header(
    marker: bytes, number: int, unsynced: int, length: int, flags: int, checksum: int
) -> bytes:
    """The header of a write batch, or all of a trailer, whose number is that of the next one."""
    head = _BATCH_HEADER.pack(marker, number, unsynced, length, flags, checksum)
    return head + _CHECKSUM.pack(zlib.crc32(head))


def batch_context(marker: bytes, number: int, unsynced: int, length: int, flags: int) -> bytes:
    """What an encrypted write batch is tied to."""
    return _BATCH_HEADER.pack(marker, number, unsynced, length, flags, 0)


class WriteBatchPlace:
    """A write batch, or a trailer, that lies in a file with all its checksums right."""

    def __init__(self, position: int, number: int, unsynced: int, length: int, flags: int) -> None:
        self.position = position
        self.number = number
        #: the oldest write batch that was not synced when this one was written
        self.unsynced = unsynced
        self.flags = flags
        #: where the body lies
        self.start = position + BATCH_HEADER_SIZE
        self.end = self.start + length


class JournalFile:
    """A journal file that was read back: its content, and where its write batches lie."""

    def __init__(self, path: str, data: bytes, first_batch: int, marker: bytes) -> None:
        self.path = path
        self.data = data
        self.first_batch = first_batch
        self.marker = marker
        #: where the first write batch lies
        self.start = FILE_HEADER_SIZE
        #: its length while it is written, 0 when that is not known
        self.reserved = 0
        #: whether there are trailers in it once it is closed
        self.has_trailers = True
        self.key_id = PLAIN
        self.cipher: FileCipher | None = None
        self.batches: list[WriteBatchPlace] = []
        #: position after the last write batch
        self.end = 0
        self.is_closed = False
        #: whether it says that another file follows
        self.is_followed = False

    @property
    def is_torn(self) -> bool:
        """Whether what follows the last write batch is the beginning of one, not unused space."""
        return not self.is_closed and self.data.startswith(self.marker, self.end)

    def body(self, batch: WriteBatchPlace) -> tuple[bytes, int, int]:
        """Bytes that hold a write batch's body, decrypted, and where. Raises StorageDamaged."""
        start, end = batch.start, batch.end
        cipher = self.cipher
        if cipher is None:
            return self.data, start, end
        number, length = batch.number, end - start
        context = batch_context(self.marker, number, batch.unsynced, length, batch.flags)
        body = cipher.unseal(number, self.data[start:end], context)
        if body is None:
            reason = f"batch {number} cannot be decrypted"
            raise StorageDamaged(self.path, batch.position, reason)
        return body, 0, len(body)

    def at(self, position: int) -> WriteBatchPlace | None:
        """The write batch or trailer there; None if there is none."""
        body = position + BATCH_HEADER_SIZE
        data, marker = self.data, self.marker
        if body > len(data) or not data.startswith(marker, position):
            return None
        view = memoryview(data)
        (checksum,) = _CHECKSUM.unpack_from(data, body - _CHECKSUM.size)
        if checksum != zlib.crc32(view[position : body - _CHECKSUM.size]):
            return None
        header = _BATCH_HEADER.unpack_from(data, position)
        _, number, unsynced, length, flags, body_checksum = header
        if length > len(data) - body or body_checksum != zlib.crc32(view[body : body + length]):
            return None
        return WriteBatchPlace(position, number, unsynced, length, flags)

    def behind(self, position: int) -> Iterator[WriteBatchPlace]:
        """Every write batch and trailer from ``position`` on, whatever lies between them."""
        position = self._find_marker(position)
        while position >= 0:
            found = self.at(position)
            if found is not None:
                yield found
            following = position + 1 if found is None else found.end
            position = self._find_marker(following)

    def _find_marker(self, position: int) -> int:
        """Where the marker is first from ``position`` on; -1 for nowhere."""
        data, marker = self.data, self.marker
        beyond = len(marker) - 1
        for begin in range(position, len(data), _BLOCK):
            end = begin + _BLOCK
            if data[begin:end] != _ZEROS:
                # A marker may begin with zeros.
                found = data.find(marker, max(begin - beyond, position), end + beyond)
                if found >= 0:
                    return found
        return -1

    def close_at(self, trailer: WriteBatchPlace) -> None:
        """It is closed by ``trailer``."""
        self.is_closed = True
        second = trailer if trailer.flags & FOLLOWED else self.at(trailer.end)
        self.is_followed = second is not None and second.flags & FOLLOWED != 0

    def fault_as_first(self, checkpoint_batch: int) -> str:
        """What is wrong if this is the first file, and the catalog has all up to a write batch."""
        if self.first_batch > checkpoint_batch + 1:
            return f"it begins with batch {self.first_batch}"
        return ""

    def fault_behind(self, last_batch: int) -> str:
        """What is wrong if the file before this one ends with ``last_batch``."""
        if self.first_batch != last_batch + 1:
            return f"batch {last_batch + 1} is missing before it"
        return ""

    def fault_at_end(self, expected: int, newest_synced: int, is_last: bool) -> str:
        """What is wrong if the file has no write batch ``expected`` at ``end``; "" for nothing.

        ``newest_synced`` is the newest write batch that those behind know to be synced.
        """
        if self.is_closed:
            return ""
        size = len(self.data)
        if not is_last:
            is_whole = not self.has_trailers and self.end == size
            return "" if is_whole else f"batch {expected} is missing or wrong"
        if newest_synced >= expected:
            return f"batch {expected} is wrong, but was synced before a later one was written"
        if size < self.reserved:
            return f"of {self.reserved} bytes only {size} are left, and it was not closed"
        return ""


def read_header(path: str, data: bytes, number: int, keys: Keys) -> JournalFile:
    """A journal file of which the header was read.

    Raises StorageDamaged, StorageVersionMismatch, StorageKeyError.
    """
    if len(data) < OLD_HEADER_SIZE:
        raise StorageDamaged(path, len(data), "shorter than its header")
    magic, version, stated, first_batch, marker = _FILE_START.unpack_from(data)
    size = OLD_HEADER_SIZE if version == _OLD_VERSION else FILE_HEADER_SIZE
    end = size - _CHECKSUM.size
    if (
        len(data) < size
        or magic != _FILE_MAGIC
        or _CHECKSUM.unpack_from(data, end)[0] != zlib.crc32(memoryview(data)[:end])
    ):
        raise StorageDamaged(path, 0, "the file header is wrong")
    if not _OLD_VERSION <= version <= VERSION:
        raise StorageVersionMismatch(
            f"{path} has format {version}, this version reads {_OLD_VERSION} to {VERSION}"
        )
    if stated != number:
        raise StorageDamaged(path, 0, f"the file header belongs to file {stated}")
    file = JournalFile(path, data, first_batch, marker)
    file.start = file.end = size
    file.has_trailers = version == VERSION
    if version != _OLD_VERSION:
        file.key_id, _, file.reserved = _FILE_END.unpack_from(data, _FILE_START.size)
        file.cipher = file_cipher(keys, data[:size], path)
    return file


def read_file(path: str, data: bytes, number: int, is_last: bool, keys: Keys) -> JournalFile:
    """Check a journal file. Raises StorageDamaged, StorageVersionMismatch, StorageKeyError."""
    file = read_header(path, data, number, keys)
    expected = file.first_batch
    while True:
        found = file.at(file.end)
        if found is None or found.number != expected:
            break
        if found.flags & TRAILER:
            file.close_at(found)
            break
        file.batches.append(found)
        file.end = found.end
        expected += 1
    newest_synced = -1
    if is_last and not file.is_closed:
        newest_synced = max((each.unsynced - 1 for each in file.behind(file.end)), default=-1)
    reason = file.fault_at_end(expected, newest_synced, is_last)
    if reason:
        raise StorageDamaged(path, file.end, reason)
    return file


#: what the header of a write batch looks like whose marker is not known: small numbers, small flags
_HEADER_SHAPE: Final = re.compile(
    rb"(?s)(?=(.{8})(?!\0{8}).{5}\0{3}.{5}\0{3}.{5}\0{3}[\0-\x0f]\0{3}.{4}\0{4}(.{4}))"
)


def find_marker(data: bytes) -> bytes:
    """The marker of a file without a readable header, as its first write batch has it; else b""."""
    for match in _HEADER_SHAPE.finditer(data):
        marker, checksum = match.groups()
        end = match.start(2)
        if checksum == _CHECKSUM.pack(zlib.crc32(memoryview(data)[match.start() : end])):
            return bytes(marker)
    return b""
