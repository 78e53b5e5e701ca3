"""A disk, threads and a loop that a test moves step by step.

``SimulatedDisk`` keeps what a program would read back beside what a power cut would leave, and
records every operation, so that a test can go back to any point and crash there.
"""

from __future__ import annotations

import errno
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from trivium.storage.base import DurabilityWaiter, Log
from trivium.storage.disk import DiskStorage
from trivium.storage.errors import StorageError, StorageLocked
from trivium.storage.files.encryption import Keys
from trivium.storage.files.executor import Executor, Work, Worker
from trivium.storage.files.filesystem import Database, File, FileSystem, Lock

#: of a file as a whole, and of the write before it
SYNCS = ("sync", "sync_range")


@dataclass(frozen=True)
class Operation:
    kind: Literal[
        "make_directory",
        "create",
        "write",
        "truncate",
        "sync",
        "sync_range",
        "rename",
        "remove",
        "sync_directory",
        "database",
    ]
    path: str = ""
    other: str = ""
    file: int = 0
    position: int = 0
    data: bytes = b""
    #: a write that was synced by itself, and nothing before it with it
    is_synced: bool = False


@dataclass
class Inode:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    #: writes and truncations since the last sync of the whole file
    pending: list[Operation] = field(default_factory=list)


def _put(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _apply_to_content(content: bytearray, operation: Operation) -> None:
    if operation.kind == "write":
        _put(content, operation.position, operation.data)
    elif len(content) > operation.position:
        del content[operation.position :]
    else:
        content.extend(bytes(operation.position - len(content)))


def parent(path: str) -> str:
    return path.rpartition("/")[0]


class SimulatedDisk(FileSystem):
    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {}
        self.files: dict[str, int] = {}
        self.directories = {""}
        self.durable_files: dict[str, int] = {}
        #: creations, renames and removals since their directory was synced
        self.pending_names: list[Operation] = []
        self.locked: set[str] = set()
        self.operations: list[Operation] = []
        #: called before each operation; may raise anything
        self.before: Callable[[Operation], None] = lambda operation: None
        #: bytes that all files may hold together
        self.capacity = 1 << 60

    # Applying operations

    def do(self, operation: Operation) -> None:
        self.before(operation)
        self.operations.append(operation)
        self.apply(operation)

    def apply(self, operation: Operation) -> None:
        kind = operation.kind
        if kind == "make_directory":
            self.directories.add(operation.path)
        elif kind in ("write", "truncate"):
            inode = self.inodes[operation.file]
            _apply_to_content(inode.content, operation)
            inode.pending.append(operation)
        elif kind == "sync":
            inode = self.inodes[operation.file]
            inode.durable = bytes(inode.content)
            inode.pending.clear()
        elif kind == "sync_range":
            # Of the write before it.
            pending = self.inodes[operation.file].pending
            pending[-1] = replace(pending[-1], is_synced=True)
        elif kind == "sync_directory":
            here = [each for each in self.pending_names if parent(each.path) == operation.path]
            for each in here:
                self._apply_name(self.durable_files, each)
                self.pending_names.remove(each)
        elif kind == "database":
            # A SQLite transaction is durable as a whole by SQLite's own means.
            self.inodes[operation.file] = Inode(bytearray(operation.data), operation.data)
            self.files[operation.path] = self.durable_files[operation.path] = operation.file
        else:
            if kind == "create":
                self.inodes[operation.file] = Inode()
            self._apply_name(self.files, operation)
            self.pending_names.append(operation)

    @staticmethod
    def _apply_name(files: dict[str, int], operation: Operation) -> None:
        if operation.kind == "create":
            files[operation.path] = operation.file
        elif operation.kind == "remove":
            files.pop(operation.path, None)
        elif operation.path in files:
            files[operation.other] = files.pop(operation.path)

    # Crashing

    def copy(self) -> SimulatedDisk:
        """The same disk, not locked, with nothing recorded."""
        copy = SimulatedDisk()
        copy.inodes = {
            number: Inode(bytearray(inode.content), inode.durable, list(inode.pending))
            for number, inode in self.inodes.items()
        }
        copy.files = dict(self.files)
        copy.directories = set(self.directories)
        copy.durable_files = dict(self.durable_files)
        copy.pending_names = list(self.pending_names)
        return copy

    @property
    def is_synced(self) -> bool:
        """Whether a power cut would leave everything that is there."""
        pending = (each for number in self.files.values() for each in self.inodes[number].pending)
        return not self.pending_names and all(operation.is_synced for operation in pending)

    def contents(self) -> frozenset[tuple[str, bytes]]:
        """What a program would read back: directories, and files with their bytes."""
        files = {(path, bytes(self.content(path))) for path in self.files}
        return frozenset(files | {(f"{path}/", b"") for path in self.directories})

    def after(self, operations: list[Operation]) -> SimulatedDisk:
        """This disk once ``operations`` were done, after a process kill."""
        copy = self.copy()
        for operation in operations:
            copy.apply(operation)
        return copy

    def torn(self, operation: Operation, size: int) -> SimulatedDisk:
        """This disk with the first ``size`` bytes of a write done, after a process kill."""
        return self.after(
            [
                Operation(
                    "write",
                    file=operation.file,
                    position=operation.position,
                    data=operation.data[:size],
                )
            ]
        )

    def power_cut(self, random_: random.Random | None) -> SimulatedDisk:
        """What is left after a power cut.

        Without ``random_`` nothing that was not synced survives; with it, any part of it may.
        """
        survivor = SimulatedDisk()
        survivor.directories = set(self.directories)
        names = dict(self.durable_files)
        if random_ is not None:
            for operation in self.pending_names[: random_.randint(0, len(self.pending_names))]:
                self._apply_name(names, operation)
        for number in names.values():
            inode = self.inodes[number]
            content = bytearray(inode.durable)
            for operation in inode.pending:
                self._survive(content, operation, random_)
            survivor.inodes[number] = Inode(content, bytes(content))
        survivor.files = dict(names)
        survivor.durable_files = dict(names)
        return survivor

    @staticmethod
    def _survive(content: bytearray, operation: Operation, random_: random.Random | None) -> None:
        choice = 0.0 if random_ is None else random_.random()
        if operation.is_synced:
            choice = 0.5
        if choice < 0.3:
            return
        if random_ is None or choice < 0.6 or operation.kind == "truncate":
            _apply_to_content(content, operation)
            return
        start = random_.randint(0, len(operation.data))
        stop = random_.randint(start, len(operation.data))
        _put(content, operation.position + start, operation.data[start:stop])

    # FileSystem

    def make_directory(self, path: str) -> None:
        if path not in self.directories:
            self.do(Operation("make_directory", path))

    def names(self, directory: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.files if parent(path) == directory)

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def create(self, path: str) -> File:
        number = 1 + max(self.inodes, default=0)
        self.do(Operation("create", path, file=number))
        return SimulatedFile(self, number)

    def open(self, path: str) -> File:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimulatedFile(self, self.files[path])

    def rename(self, old: str, new: str) -> None:
        if old not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self.do(Operation("rename", old, new))

    def remove(self, path: str) -> None:
        if path in self.files:
            self.do(Operation("remove", path))

    def sync_directory(self, path: str) -> None:
        self.do(Operation("sync_directory", path))

    def lock(self, path: str) -> Lock:
        if path in self.locked:
            raise StorageLocked(f"{parent(path)} is in use by another process")
        self.locked.add(path)
        return SimulatedLock(self, path)

    def open_database(self, path: str) -> Database:
        return SimulatedDatabase(self, path)

    def free(self, path: str) -> int:
        return self.capacity - self.used()

    def used(self) -> int:
        return sum(len(self.inodes[number].content) for number in self.files.values())

    def content(self, path: str) -> bytearray:
        """A file's bytes, for a test to read or to damage."""
        return self.inodes[self.files[path]].content


class SimulatedFile(File):
    def __init__(self, disk: SimulatedDisk, number: int) -> None:
        self._disk = disk
        self._number = number

    def write(self, parts: list[bytes], position: int, sync: bool) -> None:
        data = b"".join(parts)
        room = self._disk.capacity - self._disk.used()
        grows = position + len(data) - self.size()
        if grows > room:
            data = data[: max(len(data) - (grows - room), 0)]
            self._disk.do(Operation("write", file=self._number, position=position, data=data))
            raise OSError(errno.ENOSPC, "no space left on device")
        self._disk.do(Operation("write", file=self._number, position=position, data=data))
        if sync:
            self._disk.do(Operation("sync_range", file=self._number))

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._disk.inodes[self._number].content[position : position + size])

    def size(self) -> int:
        return len(self._disk.inodes[self._number].content)

    def truncate(self, size: int) -> None:
        self._disk.do(Operation("truncate", file=self._number, position=size))

    def allocate(self, size: int) -> None:
        if size > self.size():
            if size - self.size() > self._disk.capacity - self._disk.used():
                raise OSError(errno.ENOSPC, "no space left on device")
            self.truncate(size)

    def sync(self) -> None:
        self._disk.do(Operation("sync", file=self._number))

    def close(self) -> None:
        pass


class SimulatedLock(Lock):
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)


def full_database() -> sqlite3.Error:
    """What SQLite raises when there is no space."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


class SimulatedDatabase(Database):
    """SQLite in memory; a commit replaces the file's content in one step."""

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        if path in disk.files and disk.content(path):
            self.connection.deserialize(bytes(disk.content(path)))

    def commit(self) -> None:
        self._disk.before(Operation("database", self._path))
        data = self.connection.serialize()
        if len(data) > self._disk.capacity - self._disk.used():
            raise full_database()
        self.connection.commit()
        data = self.connection.serialize()
        number = 1 + max(self._disk.inodes, default=0)
        self._disk.do(Operation("database", self._path, file=number, data=data))

    def close(self) -> None:
        self.connection.close()


class SimulatedWorker(Worker):
    def __init__(self, executor: SimulatedExecutor) -> None:
        self._executor = executor
        self.queue: list[Work] = []
        self.later: tuple[float, Work] | None = None

    def submit(self, work: Work) -> None:
        self.queue.append(work)

    def submit_later(self, work: Work, seconds: float) -> None:
        self.later = (self._executor.clock + seconds, work)

    def step(self) -> None:
        """Do one work, if there is one."""
        if self.queue:
            self.queue.pop(0).perform()
        elif self.later is not None and self.later[0] <= self._executor.clock:
            work = self.later[1]
            self.later = None
            work.perform()

    def stop(self) -> None:
        while self.queue:
            self.queue.pop(0).perform()
        self.later = None


class SimulatedExecutor(Executor):
    def __init__(self) -> None:
        self.workers: dict[str, SimulatedWorker] = {}
        self.clock = 0.0

    def worker(self, name: str) -> Worker:
        self.workers[name] = SimulatedWorker(self)
        return self.workers[name]

    def now(self) -> float:
        return self.clock


class Recorder(DurabilityWaiter):
    def __init__(self) -> None:
        self.write_batches: list[int] = []

    def write_batch_durable(self, write_batch: int) -> None:
        self.write_batches.append(write_batch)


def load(log: Log, offset: int, wait: Callable[[], None]) -> None:
    """Have records from ``offset`` on in memory; ``wait`` until they are."""
    ready: list[int] = []
    log.load(offset, 2000, lambda: ready.append(1))
    while not ready:
        wait()


def read_all(log: Log, wait: Callable[[], None]) -> dict[int, tuple[bytes, bytes]]:
    """Offset to record and annotation of all in a log; ``wait`` until something was loaded."""
    found: dict[int, tuple[bytes, bytes]] = {}
    offset = 0
    while True:
        if not log.is_loaded(offset):
            load(log, offset, wait)
        records = log.read(offset, 1 << 30, 1 << 30)
        if not records and log.is_loaded(offset):
            return found
        for at, record, annotation in records:
            found[at] = (record, annotation)
        # A record may span more offsets, and then comes again.
        offset = max(offset, records[-1][0] if records else 0) + 1


def crashes(
    start: SimulatedDisk, operations: list[Operation], random_: random.Random
) -> Iterator[tuple[int, SimulatedDisk]]:
    """(operations done, disk) of kills and power cuts at each of the operations after ``start``."""
    for done in range(len(operations) + 1):
        killed = start.after(operations[:done])
        yield done, killed
        yield done, killed.power_cut(None)
        yield done, killed.power_cut(random_)
        if done < len(operations) and operations[done].kind == "write":
            size = len(operations[done].data)
            yield done, killed.torn(operations[done], random_.randint(0, size))


class Host:
    """A process with a storage in it, on a simulated disk."""

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        *,
        seed: int = 0,
        fsync: str = "always",
        journal_file_size: int = 4096,
        checkpoint_size: int = 1 << 30,
        checkpoint_rows: int = 1 << 30,
        memory_size: int = 1 << 30,
        compression: str = "none",
        keys: Keys | None = None,
    ) -> None:
        self.disk = SimulatedDisk() if disk is None else disk
        self.executor = SimulatedExecutor()
        self.calls: list[Callable[[], None]] = []
        #: how work that is done reaches the loop
        self.post: Callable[[Callable[[], None]], None] = self.calls.append
        self.wakes = 0
        self.errors: list[StorageError] = []
        self.storage = DiskStorage(
            "data",
            post=lambda call: self.post(call),
            wake=self._wake,
            on_fatal=self.errors.append,
            filesystem=self.disk,
            executor=self.executor,
            fsync=fsync,
            journal_file_size=journal_file_size,
            checkpoint_size=checkpoint_size,
            checkpoint_rows=checkpoint_rows,
            memory_size=memory_size,
            compression=compression,
            keys=keys,
            entropy=random.Random(seed).randbytes,
        )

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def is_idle(self) -> bool:
        """Whether no worker has work, and the loop nothing that they posted."""
        return not self.calls and not any(worker.queue for worker in self.executor.workers.values())

    def step(self) -> None:
        """Every worker does one work, and the loop what they posted."""
        for worker in self.executor.workers.values():
            worker.step()
        self.run_calls()

    def step_one(self, random_: random.Random) -> None:
        """Some worker does one work, and the loop what it posted."""
        random_.choice(list(self.executor.workers.values())).step()
        self.run_calls()

    def contents(self, name: str) -> dict[int, tuple[bytes, bytes]]:
        """Offset to record and annotation of everything in a log, read back where it must be."""

        def wait() -> None:
            assert self.executor.workers["trivium-reader"].queue
            self.executor.workers["trivium-reader"].step()
            self.run_calls()
            assert not self.errors

        return read_all(self.storage.log(name), wait)

    def run_calls(self) -> None:
        while self.calls:
            self.calls.pop(0)()

    def checkpoint(self) -> None:
        """Have everything durable, and in segments and the catalog."""
        self.storage.ask_for_checkpoint()
        self.commit()

    def commit(self) -> None:
        """Give it turns until everything is durable, the workers are idle and it wants no more."""
        while True:
            wakes = self.wakes
            self.storage.commit()
            if self.is_idle and self.wakes == wakes:
                return
            self.step()
