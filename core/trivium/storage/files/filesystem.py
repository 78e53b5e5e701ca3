"""The disk as the storage sees it.

The storage does all its input and output through ``FileSystem``, in plain calls from whichever
thread it runs its work on, so that a simulated disk can record every operation, cut the power after
any of them, and hand back what would have survived.

What the storage relies on, and a simulation may therefore take away: written bytes survive a power
cut only after ``File.sync`` (or a write with ``sync``), and a created, renamed or removed name only
after ``FileSystem.sync_directory``. A process kill alone loses nothing that was written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from mypy_extensions import mypyc_attr

from trivium.storage.errors import StorageDamaged, StorageLocked

_HAS_ADVICE: Final = hasattr(os, "posix_fadvise")
_HAS_DATA_SYNC: Final = hasattr(os, "fdatasync")
#: what every system takes in one call (IOV_MAX)
_MAX_PARTS: Final = 1024
#: what a disk cannot read is lost in pieces of this size
_BLOCK_SIZE: Final = 4096
#: the process that locked a file, by device and inode: this one, or that which it was forked from
_HOLDERS: Final[dict[tuple[int, int], int]] = {}
_WRITE_SYNCED: Final[int] = getattr(os, "RWF_DSYNC", 0)


def _sync(descriptor: int) -> None:
    """Make content and length durable; not the times, where the system can leave them out."""
    if _HAS_DATA_SYNC:
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


@mypyc_attr(allow_interpreted_subclasses=True)
class File:
    """An open file. All errors are OSError."""

    def write(self, parts: list[bytes], position: int, sync: bool) -> None:
        """Write ``parts``, joined, at ``position``; with ``sync`` return once they are durable."""
        raise NotImplementedError

    def read(self, position: int, size: int) -> bytes:
        """``size`` bytes at ``position``, fewer at the end of the file."""
        raise NotImplementedError

    def size(self) -> int:
        """Length in bytes."""
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        """Set the length."""
        raise NotImplementedError

    def allocate(self, size: int) -> None:
        """Reserve space up to ``size`` where that is possible; new bytes read as zero.

        Raises OSError when the disk is full.
        """
        raise NotImplementedError

    def sync(self) -> None:
        """Return once content and length are durable."""
        raise NotImplementedError

    def forget(self, position: int, size: int) -> None:
        """What was written there will not be read soon: the system may begin to bring it to the
        disk, and need not keep in memory what is there.
        """

    def close(self) -> None:
        """Release the file."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Lock:
    """A held lock."""

    def release(self) -> None:
        """Give it up."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Database:
    """A SQLite database whose transactions are durable as a whole or not at all."""

    #: runs statements; the caller starts transactions, ``commit`` ends them
    connection: sqlite3.Connection

    def commit(self) -> None:
        """Make everything since the last commit durable. Raises sqlite3.Error."""
        raise NotImplementedError

    def close(self) -> None:
        """Forget what was not committed and release the file."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class FileSystem:
    """Names and files. Paths are text; all errors are OSError."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, durably; nothing happens when it is there."""
        raise NotImplementedError

    def names(self, directory: str) -> list[str]:
        """What the directory holds, in order of the names."""
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of this name."""
        raise NotImplementedError

    def create(self, path: str) -> File:
        """Make an empty file and open it for reading and writing; an old one loses its content."""
        raise NotImplementedError

    def open(self, path: str) -> File:
        """Open a file that exists, for reading and writing. Raises StorageDamaged for others."""
        raise NotImplementedError

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it, in one step."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens when it is not there."""
        raise NotImplementedError

    def sync_directory(self, path: str) -> None:
        """Return once the names in this directory are durable."""
        raise NotImplementedError

    def free(self, path: str) -> int:
        """Bytes that can still be written where ``path`` is; 0 when nobody knows."""
        raise NotImplementedError

    def lock(self, path: str) -> Lock:
        """Lock the file, made if needed, until the process ends. Raises StorageLocked."""
        raise NotImplementedError

    def open_database(self, path: str) -> Database:
        """Open a SQLite database, made if needed."""
        raise NotImplementedError


def read_whole(filesystem: FileSystem, path: str) -> bytes:
    """All of a file. Raises OSError, StorageDamaged."""
    file = filesystem.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


class RealFile(File):
    """A file descriptor."""

    def __init__(self, path: str, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o640)

    def write(self, parts: list[bytes], position: int, sync: bool) -> None:
        if len(parts) <= _MAX_PARTS:
            self._write(parts, position, sync)
            return
        for start in range(0, len(parts), _MAX_PARTS):
            some = parts[start : start + _MAX_PARTS]
            self._write(some, position, False)
            position += sum(map(len, some))
        if sync:
            _sync(self._descriptor)

    def _write(self, parts: list[bytes], position: int, sync: bool) -> None:
        # One system call where the system can write and sync in one: each call that waits gives
        # up the interpreter lock and has to win it back from a busy loop.
        flags = _WRITE_SYNCED if sync else 0
        try:
            written = os.pwritev(self._descriptor, parts, position, flags)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or flags == 0:
                raise
            flags = 0
            written = os.pwritev(self._descriptor, parts, position)
        size = sum(map(len, parts))
        if written < size:
            rest = memoryview(b"".join(parts))
            while written < size:
                written += os.pwritev(self._descriptor, [rest[written:]], position + written, flags)
        if sync and flags == 0:
            _sync(self._descriptor)

    def read(self, position: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(self._descriptor, size, position)
            if not part:
                break
            parts.append(part)
            position += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise

    def sync(self) -> None:
        _sync(self._descriptor)

    def forget(self, position: int, size: int) -> None:
        if _HAS_ADVICE:
            os.posix_fadvise(self._descriptor, position, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._descriptor)


class WornFile(RealFile):
    """A file on a disk with bad blocks, which read as zeros."""

    def read(self, position: int, size: int) -> bytes:
        try:
            return super().read(position, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        if size <= _BLOCK_SIZE:
            return bytes(max(min(size, self.size() - position), 0))
        return b"".join(
            self.read(at, min(_BLOCK_SIZE, position + size - at))
            for at in range(position, position + size, _BLOCK_SIZE)
        )


class RealLock(Lock):
    """An advisory lock on a whole file, which the system drops when the process ends."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        status = os.fstat(self._descriptor)
        self._file = (status.st_dev, status.st_ino)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            is_own = _HOLDERS.get(self._file) == os.getpid()
            who = "this process already" if is_own else "another process"
            raise StorageLocked(f"{Path(path).parent} is in use by {who}") from None
        _HOLDERS[self._file] = os.getpid()

    def release(self) -> None:
        del _HOLDERS[self._file]
        os.close(self._descriptor)


class RealDatabase(Database):
    """A SQLite file with a rollback journal."""

    def __init__(self, path: str) -> None:
        # SQLite would let everybody read it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
        # Statements are as long as there are rows, so that hardly two are the same. To keep the
        # last 128, as by default, would take 20 MB and save no time.
        self.connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=0
        )
        # EXTRA also syncs the directory once the rollback journal is removed: without it a power
        # cut can bring the journal back and with it the state before the commit.
        try:
            for pragma in ("journal_mode = DELETE", "synchronous = EXTRA"):
                with closing(self.connection.execute(f"PRAGMA {pragma}")):
                    pass
        except UnicodeDecodeError:
            # What SQLite says of a wrong schema quotes it.
            self.connection.close()
            raise sqlite3.DatabaseError("the schema is no text") from None

    def commit(self) -> None:
        self.connection.commit()

    def close(self) -> None:
        self.connection.rollback()
        self.connection.close()


class RealFileSystem(FileSystem):
    """The operating system's."""

    def make_directory(self, path: str) -> None:
        target = Path(path)
        if target.is_dir():
            return
        self.make_directory(str(target.parent))
        target.mkdir(exist_ok=True)
        self.sync_directory(str(target.parent))

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names, not paths

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def create(self, path: str) -> File:
        return RealFile(path, os.O_CREAT | os.O_TRUNC)

    def open(self, path: str) -> File:
        try:
            return self._open(path)
        except IsADirectoryError:
            raise StorageDamaged(path, 0, "it is a directory") from None

    def _open(self, path: str) -> File:
        return RealFile(path, 0)

    def rename(self, old: str, new: str) -> None:
        Path(old).replace(new)

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free(self, path: str) -> int:
        try:
            found = os.statvfs(path)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize

    def lock(self, path: str) -> Lock:
        return RealLock(path)

    def open_database(self, path: str) -> Database:
        return RealDatabase(path)


class WornFileSystem(RealFileSystem):
    """One that reads what can be read; for inspections, which verify all of it."""

    def _open(self, path: str) -> File:
        return WornFile(path, 0)
