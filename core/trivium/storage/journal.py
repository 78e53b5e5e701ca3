"""The journal: a row of files that hold batches, each with its number and checksums.

A journal file is made complete before it is used: written under a temporary name, its header
synced, renamed, the directory synced. Its header holds a random *marker*, and every batch in the
file starts with it, so that neither what an earlier use of the same blocks left behind nor anything
in a message's payload can pass for a batch.

How an end that was being written is told from damage: a batch says which batches were synced when
it was written. Bytes that are no batch are a torn end unless a later batch says that the missing
one had been synced, or another file follows, which is only made once the file before it is whole.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from trivium.storage.encryption import PLAIN, SALT_SIZE, TAG_SIZE, FileCipher, Keys
from trivium.storage.errors import StorageDamaged, StorageVersionMismatch
from trivium.storage.filesystem import File, FileSystem

VERSION: Final = 1
_FILE_MAGIC: Final = b"TRIVJRNL"
#: magic, version, (pad), file number, number of its first batch, marker, (pad)
_FILE_HEADER: Final = Struct("<8sI4xQQ8s4x")
#: marker, batch number, oldest batch not synced, body length, flags, checksum of the body, (pad)
_BATCH_HEADER: Final = Struct("<8sQQQII4x")
_CHECKSUM: Final = Struct("<I")
#: of an encrypted file, behind what any file has up to its marker: key id, salt, (pad)
_ENCRYPTED_VERSION: Final = 2
_ENCRYPTION: Final = Struct("<8s32s12x")
_CONTEXT_SIZE: Final = 40
FILE_HEADER_SIZE: Final[int] = _FILE_HEADER.size + 4
ENCRYPTED_HEADER_SIZE: Final[int] = _CONTEXT_SIZE + _ENCRYPTION.size + 4
BATCH_HEADER_SIZE: Final[int] = _BATCH_HEADER.size + 4

#: flag of the first batch of a process, and of the last one when it stopped cleanly
STARTED: Final = 1
STOPPED: Final = 2

#: Larger bodies are written piece by piece: what one piece took of memory the next one uses again,
#: where a block for all of it would be taken from the system, and touched, for each batch. And the
#: interpreter lock is not held longer than for one of them.
PIECE_SIZE: Final = 1024 * 1024
#: Parts of at least this size on average are written as they are, if they are not too many for one
#: call; smaller ones are joined.
_LARGE_PART: Final = 1024
_MAX_PARTS: Final = 1000
#: Up to this size ``zlib.crc32`` keeps the interpreter lock.
_LOCKED_CHECKSUM_SIZE: Final = 5 * 1024

SUFFIX: Final = ".journal"
TEMPORARY_SUFFIX: Final = ".tmp"
SPARE_SUFFIX: Final = ".spare"


def file_name(number: int) -> str:
    """The name of a journal file."""
    return f"{number:016x}{SUFFIX}"


def file_number(name: str) -> int | None:
    """The number in the name of a journal file; None when it is another file."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def checksum_holding_the_lock(parts: list[bytes], checksum: int = 0) -> int:
    """CRC-32 of ``parts``, started with ``checksum``, without giving up the interpreter lock.

    To win the lock back from a busy loop may take longer than the checksum; writing gives it up
    often enough.
    """
    for part in parts:
        if len(part) <= _LOCKED_CHECKSUM_SIZE:
            checksum = zlib.crc32(part, checksum)
            continue
        view = memoryview(part)
        for at in range(0, len(part), _LOCKED_CHECKSUM_SIZE):
            checksum = zlib.crc32(view[at : at + _LOCKED_CHECKSUM_SIZE], checksum)
    return checksum


def _joined_if_small(parts: list[bytes], size: int) -> list[bytes]:
    if size >= _LARGE_PART * len(parts) and len(parts) <= _MAX_PARTS:
        return parts
    return [b"".join(parts)]


def pieces(parts: list[bytes], size: int) -> Iterator[list[bytes]]:
    """``parts`` in pieces of at least ``size`` bytes, but for the last; small parts are joined."""
    start = 0
    joined = 0
    last = len(parts) - 1
    for index, part in enumerate(parts):
        joined += len(part)
        if joined >= size or index == last:
            yield _joined_if_small(parts[start : index + 1], joined)
            start = index + 1
            joined = 0


class FsyncPolicy:
    """When a written batch is synced: ``always | every_n:N | interval:MS | never``."""

    def __init__(self, text: str) -> None:
        kind, _, value = text.partition(":")
        #: sync each that many batches; 0 is not by number
        self.every = 0
        #: sync when that many seconds have passed; 0 is not by time
        self.seconds = 0.0
        if text == "always":
            self.every = 1
        elif kind == "every_n" and value.isdecimal() and int(value) > 0:
            self.every = int(value)
        elif kind == "interval" and value.isdecimal() and int(value) > 0:
            self.seconds = int(value) / 1000
        elif text != "never":
            raise ValueError(f"fsync must be always, every_n:N, interval:MS or never, not {text!r}")


class JournalWriter:
    """Appends batches. Used by one thread at a time."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        file_size: int,
        policy: FsyncPolicy,
        entropy: Callable[[int], bytes],
        next_file: int,
        synced: int,
        keys: Keys,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._file_size = file_size
        self._policy = policy
        self._entropy = entropy
        self._keys = keys
        self._cipher: FileCipher | None = None
        #: where the first batch of the open file lies
        self._start = FILE_HEADER_SIZE
        self._next_file = next_file
        self._file: File | None = None
        self._marker = b""
        self._position = 0
        #: newest batch written, and newest batch known to survive a power cut
        self.written = synced
        #: size of the newest batch
        self.written_size = 0
        self.synced = synced
        self.synced_at = 0.0
        #: number and first batch of each file, oldest first; a checkpoint drops the front
        self.files: list[tuple[int, int]] = []
        #: paths of files that may be used again
        self.spares: deque[str] = deque()

    def write(self, number: int, parts: list[bytes], flags: int, sync: bool, now: float) -> int:
        """Write a batch, and sync it if ``sync`` or the policy asks for it; the bytes written.

        Raises OSError. After an error nothing more may be written.
        """
        length = sum(map(len, parts))
        if self._keys.current != PLAIN:
            length += TAG_SIZE
        size = BATCH_HEADER_SIZE + length
        if self._file is None or (
            self._position > self._start and self._position + size > self._file_size
        ):
            self._next(number)
        file = self._file
        assert file is not None
        policy = self._policy
        if policy.every:
            sync = sync or number - self.synced >= policy.every
        elif policy.seconds:
            sync = sync or now - self.synced_at >= policy.seconds
        if self._cipher is not None:
            context = batch_context(self._marker, number, self.synced + 1, length, flags)
            parts = [self._cipher.seal(number, b"".join(parts), context)]
        if length <= PIECE_SIZE:
            body = _joined_if_small(parts, length)
            head = self._head(number, length, flags, checksum_holding_the_lock(body))
            # A write that syncs does so for itself only.
            is_alone = self.synced == number - 1
            file.write([head, *body], self._position, sync and is_alone)
            if sync and not is_alone:
                file.sync()
        else:
            # Without its head it is no batch yet.
            position = self._position + BATCH_HEADER_SIZE
            checksum = 0
            for piece in pieces(parts, PIECE_SIZE):
                checksum = checksum_holding_the_lock(piece, checksum)
                file.write(piece, position, False)
                position += sum(map(len, piece))
            file.write([self._head(number, length, flags, checksum)], self._position, False)
            if sync:
                file.sync()
        self._position += size
        self.written = number
        self.written_size = size
        if sync:
            self.synced = number
            self.synced_at = now
        return size

    def _head(self, number: int, length: int, flags: int, checksum: int) -> bytes:
        head = _BATCH_HEADER.pack(self._marker, number, self.synced + 1, length, flags, checksum)
        return head + _CHECKSUM.pack(zlib.crc32(head))

    def sync(self, now: float) -> None:
        """Sync everything written. Raises OSError."""
        if self._file is not None and self.synced < self.written:
            self._file.sync()
            self.synced = self.written
        self.synced_at = now

    def close(self) -> None:
        """Cut the reserved space off and release the file. Raises OSError."""
        if self._file is not None:
            self._file.truncate(self._position)
            self._file.sync()
            self.abandon()

    def abandon(self) -> None:
        """Release the file as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next(self, number: int) -> None:
        # The file behind must be whole and durable before the next one exists: see the module.
        self.close()
        self.synced = self.written
        path = f"{self._directory}/{file_name(self._next_file)}"
        if self.spares:
            # Blocks that were written before sync faster than freshly reserved ones.
            temporary = self.spares.popleft()
            file = self._filesystem.open(temporary)
        else:
            temporary = path + TEMPORARY_SUFFIX
            file = self._filesystem.create(temporary)
        self._file = file
        self._marker = self._entropy(8)
        header = self._file_header(number, path)
        file.allocate(self._file_size)
        file.write([header, _CHECKSUM.pack(zlib.crc32(header))], 0, False)
        file.sync()
        self._filesystem.rename(temporary, path)
        self._filesystem.sync_directory(self._directory)
        self._position = self._start
        self.files.append((self._next_file, number))
        self._next_file += 1

    def _file_header(self, number: int, path: str) -> bytes:
        keys = self._keys
        if keys.current == PLAIN:
            self._start = FILE_HEADER_SIZE
            return _FILE_HEADER.pack(_FILE_MAGIC, VERSION, self._next_file, number, self._marker)
        self._start = ENCRYPTED_HEADER_SIZE
        fields = (_FILE_MAGIC, _ENCRYPTED_VERSION, self._next_file, number, self._marker)
        header = _FILE_HEADER.pack(*fields)[:_CONTEXT_SIZE]
        salt = self._entropy(SALT_SIZE)
        self._cipher = keys.cipher(keys.current, salt, header, path)
        return header + _ENCRYPTION.pack(keys.current, salt)


class JournalFile:
    """A journal file that was read back: its content and where the bodies of its batches lie."""

    def __init__(
        self,
        path: str,
        data: bytes,
        first_batch: int,
        marker: bytes,
        start: int,
        cipher: FileCipher | None,
    ) -> None:
        self.path = path
        self.data = data
        self.first_batch = first_batch
        self.marker = marker
        #: where the first batch lies
        self.start = start
        self.cipher = cipher
        #: for each batch its number, its flags and the start and end of its body
        self.batches: list[tuple[int, int, int, int]] = []
        #: position after the last batch
        self.end = start
        #: whether what follows is the beginning of a batch, and not just unused space
        self.is_torn = False

    def body(self, start: int, end: int) -> tuple[bytes, int, int]:
        """Bytes that hold the body of a batch, decrypted, and where. Raises StorageDamaged."""
        cipher = self.cipher
        if cipher is None:
            return self.data, start, end
        at = start - BATCH_HEADER_SIZE
        _, number, unsynced, length, flags, _ = _BATCH_HEADER.unpack_from(self.data, at)
        context = batch_context(self.marker, number, unsynced, length, flags)
        body = cipher.unseal(number, self.data[start:end], context)
        if body is None:
            raise StorageDamaged(self.path, at, f"batch {number} cannot be decrypted")
        return body, 0, len(body)


def batch_context(marker: bytes, number: int, unsynced: int, length: int, flags: int) -> bytes:
    """What an encrypted batch is tied to."""
    return _BATCH_HEADER.pack(marker, number, unsynced, length, flags, 0)


def read_header(path: str, data: bytes, number: int, keys: Keys) -> JournalFile:
    """A journal file of which the header was read.

    Raises StorageDamaged, StorageVersionMismatch, StorageKeyError.
    """
    if len(data) < FILE_HEADER_SIZE:
        raise StorageDamaged(path, len(data), "shorter than its header")
    version = _FILE_HEADER.unpack_from(data)[1]
    start = ENCRYPTED_HEADER_SIZE if version == _ENCRYPTED_VERSION else FILE_HEADER_SIZE
    magic, version, stated, first_batch, marker = _FILE_HEADER.unpack_from(data)
    end = start - _CHECKSUM.size
    if (
        len(data) < start
        or magic != _FILE_MAGIC
        or _CHECKSUM.unpack_from(data, end)[0] != zlib.crc32(memoryview(data)[:end])
    ):
        raise StorageDamaged(path, 0, "the file header is wrong")
    if version not in (VERSION, _ENCRYPTED_VERSION):
        raise StorageVersionMismatch(
            f"{path} has format {version}, this version reads {VERSION} and {_ENCRYPTED_VERSION}"
        )
    if stated != number:
        raise StorageDamaged(path, 0, f"the file header belongs to file {stated}")
    cipher = None
    if version == _ENCRYPTED_VERSION:
        id_, salt = _ENCRYPTION.unpack_from(data, _CONTEXT_SIZE)
        cipher = keys.cipher(id_, salt, data[:_CONTEXT_SIZE], path)
    return JournalFile(path, data, first_batch, marker, start, cipher)


def read_file(path: str, data: bytes, number: int, is_last: bool, keys: Keys) -> JournalFile:
    """Check a journal file. Raises StorageDamaged, StorageVersionMismatch, StorageKeyError."""
    file = read_header(path, data, number, keys)
    first_batch, marker = file.first_batch, file.marker
    expected = first_batch
    while True:
        found = batch_at(data, file.end, marker)
        if found is None or found[0] != expected:
            break
        body = file.end + BATCH_HEADER_SIZE
        file.end = body + found[2]
        file.batches.append((expected, found[3], body, file.end))
        expected += 1
    if file.end < len(data):
        if not is_last:
            raise StorageDamaged(path, file.end, f"batch {expected} is missing or wrong")
        file.is_torn = data.startswith(marker, file.end)
        position = data.find(marker, file.end)
        while position >= 0:
            found = batch_at(data, position, marker)
            if found is not None and found[1] > expected:
                raise StorageDamaged(
                    path, file.end, f"batch {expected} is wrong, but batch {found[0]} follows"
                )
            position = data.find(marker, position + 1)
    return file


def batch_at(data: bytes, position: int, marker: bytes) -> tuple[int, int, int, int] | None:
    """Number, oldest unsynced batch, length, flags of the batch there; None if there is none."""
    body = position + BATCH_HEADER_SIZE
    if body > len(data) or not data.startswith(marker, position):
        return None
    view = memoryview(data)
    (checksum,) = _CHECKSUM.unpack_from(data, body - 4)
    if checksum != zlib.crc32(view[position : body - 4]):
        return None
    _, number, unsynced, length, flags, body_checksum = _BATCH_HEADER.unpack_from(data, position)
    if length > len(data) - body or body_checksum != zlib.crc32(view[body : body + length]):
        return None
    return number, unsynced, length, flags
