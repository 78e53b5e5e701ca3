"""The journal: puts write batches into a row of files, and syncs them as the policy says."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import Final

from trivium.storage.files.encryption import PLAIN, SALT_SIZE, TAG_SIZE, FileCipher, Keys
from trivium.storage.files.executor import TimeSlice
from trivium.storage.files.filesystem import File, FileSystem
from trivium.storage.journal.journal_files import (
    BATCH_HEADER_SIZE,
    CLOSED,
    FILE_HEADER_SIZE,
    FOLLOWED,
    JournalFile,
    batch_context,
    batch_header,
    file_cipher,
    file_header,
    file_name,
)

#: Larger bodies are written piece by piece: what one piece took of memory the next one uses again,
#: where a block for all of it would be taken from the system, and touched, for each batch.
PIECE_SIZE: Final = 1024 * 1024
#: Up to this size ``zlib.crc32`` keeps the interpreter lock.
_LOCKED_CHECKSUM_SIZE: Final = 5 * 1024
#: From this size on a checksum takes long enough to give the lock up.
_SLOW_CHECKSUM_SIZE: Final = 512 * 1024

TEMPORARY_SUFFIX: Final = ".tmp"
SPARE_SUFFIX: Final = ".spare"


def checksum_of(part: bytes, checksum: int) -> int:
    """CRC-32 of ``part``, started with ``checksum``, without giving up the interpreter lock unless
    it is large: to win the lock back from a busy loop may take longer than the checksum.
    """
    if _LOCKED_CHECKSUM_SIZE < len(part) < _SLOW_CHECKSUM_SIZE:
        view = memoryview(part)
        for at in range(0, len(part), _LOCKED_CHECKSUM_SIZE):
            checksum = zlib.crc32(view[at : at + _LOCKED_CHECKSUM_SIZE], checksum)
        return checksum
    return zlib.crc32(part, checksum)


def checksum_of_parts(parts: list[bytes], slice_: TimeSlice) -> int:
    """CRC-32 of ``parts``, one after the other; ``slice_`` says when to pause between them."""
    checksum = 0
    for part in parts:
        checksum = checksum_of(part, checksum)
        slice_.pause()
    return checksum


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
        last_batch: int,
        keys: Keys,
    ) -> None:
        self.filesystem = filesystem
        self._directory = directory
        self._file_size = file_size
        self.policy = policy
        self._entropy = entropy
        self._keys = keys
        self._cipher: FileCipher | None = None
        self._next_file = next_file
        self._file: File | None = None
        #: whether the open file takes no further batch, and whether the trailer that says so is
        #: there
        self._is_full = False
        self._is_closed = False
        self._marker = b""
        self._position = 0
        #: newest batch written, and newest batch known to survive a power cut
        self.written = last_batch
        #: size of the newest batch
        self.written_size = 0
        self.synced = last_batch
        self.synced_at = 0.0
        #: number and first batch of each file, oldest first; a checkpoint drops the front
        self.files: list[tuple[int, int]] = []
        #: paths of files that may be used again
        self.spares: deque[str] = deque()

    def path(self, number: int) -> str:
        """The path of a journal file."""
        return f"{self._directory}/{file_name(number)}"

    def follow(self, last: JournalFile) -> None:
        """Go on behind the file that an earlier process wrote last. Raises OSError."""
        file = self.filesystem.open(last.path)
        if not last.has_trailers and last.end < len(last.data):
            file.truncate(last.end)
        # A killed process may have left some of it in the system's cache only.
        file.sync()
        if not last.has_trailers:
            file.close()
            return
        self._file = file
        self._is_full = True
        self._is_closed = last.is_closed
        self._marker = last.marker
        self._position = last.end

    def write(self, number: int, parts: list[bytes], flags: int, sync: bool, now: float) -> int:
        """Write a batch, and sync it if ``sync`` or the policy asks for it; the bytes written.

        Raises OSError. After an error nothing more may be written.
        """
        length = sum(map(len, parts))
        if self._keys.current != PLAIN:
            length += TAG_SIZE
        size = BATCH_HEADER_SIZE + length
        if self._file is None or self._is_full or not self._has_room(size):
            self._next(number)
        file = self._file
        assert file is not None
        policy = self.policy
        if policy.every:
            sync = sync or number - self.synced >= policy.every
        elif policy.seconds:
            sync = sync or now - self.synced_at >= policy.seconds
        if self._cipher is not None:
            context = batch_context(self._marker, number, self.synced + 1, length, flags)
            parts = [self._cipher.seal(number, b"".join(parts), context)]
        position = self._position + BATCH_HEADER_SIZE
        body: list[bytes] = []
        waiting = 0
        checksum = 0
        slice_ = TimeSlice()
        for part in parts:
            if waiting >= PIECE_SIZE:
                # Without its head it is no batch yet.
                file.write(body, position, False)
                file.forget(position, waiting)
                position += waiting
                body = []
                waiting = 0
            checksum = checksum_of(part, checksum)
            body.append(part)
            waiting += len(part)
            slice_.pause()
        head = self._head(number, length, flags, checksum)
        is_one = waiting == length
        if is_one:
            body.insert(0, head)
            position = self._position
        # A write that syncs does so for itself only.
        is_alone = is_one and self.synced == number - 1
        file.write(body, position, sync and is_alone)
        if not is_one:
            file.write([head], self._position, False)
        if sync and not is_alone:
            file.sync()
        self._position += size
        self.written = number
        self.written_size = size
        if sync:
            self.synced = number
            self.synced_at = now
        return size

    def _has_room(self, size: int) -> bool:
        """Whether the open file takes a batch of ``size``, with both trailers behind it."""
        end = self._position + size + 2 * BATCH_HEADER_SIZE
        return end <= self._file_size or self._position == FILE_HEADER_SIZE

    def _head(self, number: int, length: int, flags: int, checksum: int) -> bytes:
        return batch_header(self._marker, number, self.synced + 1, length, flags, checksum)

    def sync(self, now: float) -> None:
        """Sync everything written. Raises OSError."""
        if self._file is not None and self.synced < self.written:
            self._file.sync()
            self.synced = self.written
        self.synced_at = now

    def close(self) -> None:
        """Close the open file for good and release it. Raises OSError."""
        if self._file is not None:
            self._close(self._file)
            self.abandon()

    def _close(self, file: File) -> None:
        """Make a file durable, with the trailer that nothing is missing, and cut the rest off."""
        end = self._position + BATCH_HEADER_SIZE
        if not self._is_closed:
            file.write([self._head(self.written + 1, 0, CLOSED, 0)], self._position, False)
            file.sync()
            self.synced = self.written
            self._is_closed = True
        # This need not be durable: what lies behind the trailer means nothing.
        file.truncate(end)

    def abandon(self) -> None:
        """Release the file as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next(self, number: int) -> None:
        before = self._file
        if before is not None:
            # It must be whole and durable before the next one exists: see journal_files.
            self._close(before)
            trailer = self._head(number, 0, FOLLOWED, 0)
            trailer_at = self._position + BATCH_HEADER_SIZE
        self._file = self._create(number)
        if before is not None:
            before.write([trailer], trailer_at, True)
            before.close()
        self.files.append((self._next_file, number))
        self._next_file += 1

    def _create(self, number: int) -> File:
        """The next file, durable, with batch ``number`` to come first."""
        path = self.path(self._next_file)
        try:
            # Blocks that were written before sync faster than freshly reserved ones.
            temporary = self.spares.popleft()
        except IndexError:
            # Not asked before: a checkpoint may take the last one meanwhile.
            temporary = path + TEMPORARY_SUFFIX
            file = self.filesystem.create(temporary)
        else:
            file = self.filesystem.open(temporary)
        file.allocate(self._file_size)
        key_id = self._keys.current
        salt = self._entropy(SALT_SIZE) if key_id != PLAIN else bytes(SALT_SIZE)
        self._marker = self._entropy(8)
        header = file_header(self._next_file, number, self._marker, key_id, salt, file.size())
        self._cipher = file_cipher(self._keys, header, path)
        file.write([header], 0, False)
        file.sync()
        self.filesystem.rename(temporary, path)
        self.filesystem.sync_directory(self._directory)
        self._position = FILE_HEADER_SIZE
        self._is_full = self._is_closed = False
        return file
