"""The disk storage as the broker uses it: group commit, errors, the lock, fsync, real threads."""

from __future__ import annotations

import errno
import os
import queue
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.simulated import SYNCS, Host, Operation, Recorder, SimulatedDisk, read_all
from trivium.storage.base import DurabilityWaiter
from trivium.storage.disk import DiskStorage
from trivium.storage.errors import (
    StorageDamaged,
    StorageFailed,
    StorageLocked,
    StorageVersionMismatch,
)


def test_the_first_batch_is_1() -> None:
    storage = Host().storage
    assert (storage.write_batch, storage.durable, storage.was_clean) == (1, 0, True)


def test_a_batch_is_durable_once_it_is_synced() -> None:
    host = Host()
    waiter = Recorder()
    host.storage.log("l").append(b"x")
    batch = host.storage.wait(waiter)
    host.storage.wait(waiter)
    host.storage.commit()
    assert (host.storage.write_batch, host.storage.durable) == (batch + 1, batch - 1)
    assert waiter.write_batches == []
    host.step()
    assert host.storage.durable == batch
    assert waiter.write_batches == [batch]
    assert host.wakes == 1


def test_a_batch_fills_while_another_is_written() -> None:
    host = Host()
    log = host.storage.log("l")
    log.append(b"1")
    host.storage.commit()
    filling = host.storage.write_batch
    log.append(b"2")
    host.storage.commit()
    log.append(b"3")
    host.storage.commit()
    assert host.storage.write_batch == filling
    host.step()
    host.storage.commit()
    assert host.storage.write_batch == filling + 1
    host.step()
    assert host.storage.durable == filling
    host.storage.commit()
    assert host.storage.write_batch == filling + 1


def test_only_commit_seals_a_batch() -> None:
    host = Host()
    host.storage.log("l").append(b"x")
    host.step()
    assert host.storage.durable == host.storage.write_batch - 1
    assert not any(worker.queue for worker in host.executor.workers.values())


def test_a_waiter_on_an_empty_batch_is_called() -> None:
    host = Host()
    waiter = Recorder()
    batch = host.storage.wait(waiter)
    host.commit()
    assert waiter.write_batches == [batch]


def test_a_waiter_may_wait_again_when_it_is_called() -> None:
    host = Host()

    class Again(Recorder):
        def write_batch_durable(self, batch: int) -> None:
            super().write_batch_durable(batch)
            if len(self.write_batches) < 3:
                host.storage.wait(self)

    waiter = Again()
    host.storage.wait(waiter)
    host.commit()
    assert waiter.write_batches == [1, 2, 3]


@pytest.mark.parametrize("kind", ["write", "sync_range"])
def test_a_write_or_sync_error_is_final(kind: str) -> None:
    host = Host()
    waiter = Recorder()
    host.storage.log("l").append(b"durable")
    host.commit()
    durable = host.storage.durable

    def fail(operation: Operation) -> None:
        if operation.kind == kind:
            raise OSError(errno.EIO, "input/output error")

    host.disk.before = fail
    host.storage.log("l").append(b"lost")
    host.storage.wait(waiter)
    host.storage.commit()
    host.step()
    host.disk.before = lambda operation: None
    done = len(host.disk.operations)
    assert [type(error) for error in host.errors] == [StorageFailed]
    assert "input/output error" in str(host.errors[0])
    host.storage.log("l").append(b"later")
    host.storage.wait(waiter)
    host.storage.commit()
    host.step()
    with pytest.raises(StorageFailed):
        host.storage.close()
    assert waiter.write_batches == []
    assert host.storage.durable == durable
    assert len(host.disk.operations) == done
    again = Host(host.disk.power_cut(None), seed=1)
    assert again.contents("l") == {0: (b"durable", b"")}


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no disk"), MemoryError("no memory")])
def test_an_error_of_the_last_write_is_raised_by_close(error: Exception) -> None:
    host = Host()
    host.storage.log("l").append(b"lost")

    def fail(operation: Operation) -> None:
        if operation.kind in SYNCS:
            raise error

    host.disk.before = fail
    with pytest.raises(StorageFailed, match=str(error.args[-1])):
        host.storage.close()
    host.disk.before = lambda operation: None
    assert not Host(host.disk.power_cut(None), seed=1).storage.was_clean


def test_a_full_disk_is_final_and_loses_nothing_acknowledged() -> None:
    host = Host(journal_file_size=2000)
    acknowledged = 0
    host.disk.capacity = host.disk.used() + 5000
    for number in range(1000):
        host.storage.log("l").append(b"record %d" % number)
        host.commit()
        if host.errors:
            break
        acknowledged += 1
    assert "no space left" in str(host.errors[0])
    assert 0 < acknowledged < 1000
    for disk in (host.disk.copy(), host.disk.power_cut(None)):
        assert len(Host(disk, seed=1).storage.log("l")) in (acknowledged, acknowledged + 1)


def test_a_full_disk_refuses_to_open() -> None:
    disk = SimulatedDisk()
    disk.capacity = 10
    with pytest.raises(StorageFailed, match="no space left"):
        Host(disk)
    disk.capacity = 1 << 30
    assert Host(disk).storage.was_clean


def test_a_second_open_is_refused() -> None:
    host = Host()
    with pytest.raises(StorageLocked, match="data is in use"):
        Host(host.disk)
    host.storage.close()
    Host(host.disk)


def test_another_format_is_refused() -> None:
    host = Host()
    host.storage.log("l")
    host.commit()
    disk = host.disk.copy()
    assert bytes(disk.content("data/format")) == b"trivium storage 2\n"
    disk.content("data/format")[-2:-1] = b"3"
    with pytest.raises(StorageVersionMismatch, match="format 3, this version reads 1 and 2"):
        Host(disk)
    disk.content("data/format")[:] = b"something else"
    with pytest.raises(StorageDamaged):
        Host(disk)
    disk.files.pop("data/format")
    with pytest.raises(StorageDamaged, match="missing"):
        Host(disk)


def test_was_clean_only_after_close() -> None:
    host = Host()
    host.storage.log("l").append(b"x")
    host.commit()
    killed = Host(host.disk.copy(), seed=1)
    assert not killed.storage.was_clean
    assert killed.storage.log("l").recovered_offset == 1
    killed.storage.close()
    clean = Host(killed.disk, seed=2)
    assert clean.storage.was_clean
    assert clean.storage.log("l").recovered_offset == 0
    assert not Host(clean.disk.copy(), seed=3).storage.was_clean


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_is_withdrawn_leaves_nothing_and_stops_as_the_last_one_did(is_clean: bool) -> None:
    host = Host()
    host.storage.log("l").append(b"x")
    host.commit()
    if is_clean:
        host.storage.close()
    failed = Host(host.disk.copy(), seed=1)
    failed.storage.log("l").append(b"half")
    failed.storage.log("new").append(b"half")
    failed.storage.withdraw()
    again = Host(failed.disk, seed=2)
    assert again.storage.was_clean == is_clean
    assert len(again.storage.log("l")) == 1
    assert again.storage.log_names() == ["l"]


def test_close_makes_everything_durable_and_calls_the_waiters() -> None:
    host = Host()
    waiter = Recorder()
    host.storage.log("l").append(b"1")
    host.storage.commit()
    host.storage.log("l").append(b"2")
    batch = host.storage.wait(waiter)
    host.storage.close()
    host.storage.close()
    assert waiter.write_batches == [batch]
    assert len(Host(host.disk.power_cut(None), seed=1).storage.log("l")) == 2


def test_offsets_are_not_reused_after_everything_is_settled() -> None:
    host = Host()
    log = host.storage.log("l")
    for _ in range(5):
        log.append(b"x")
    log.remove(0, 4)
    log.skip(3)
    log.append(b"y")
    log.remove(8, 8)
    host.commit()
    again = Host(host.disk.copy(), seed=1).storage.log("l")
    assert (len(again), again.first_offset, again.next_offset) == (0, 9, 9)


def test_skipped_offsets_are_not_reused_after_a_clean_stop() -> None:
    host = Host()
    host.storage.log("l").skip(7)
    host.storage.close()
    assert Host(host.disk, seed=1).storage.log("l").next_offset == 7


def test_a_dropped_log_does_not_come_back_under_its_name() -> None:
    host = Host()
    host.storage.log("l").append(b"old")
    host.commit()
    host.storage.drop_log("l")
    host.storage.log("l").append(b"new")
    host.commit()
    again = Host(host.disk.copy(), seed=1)
    assert again.contents("l") == {0: (b"new", b"")}


def test_sizes_out_of_range_are_refused() -> None:
    log = Host().storage.log("l")
    for count in (0, -1, 1 << 32):
        with pytest.raises(ValueError, match="out of range"):
            log.append(b"x", count)
    with pytest.raises(ValueError, match="out of range"):
        log.append(b"x", 1, bytes(65_536))
    with pytest.raises(ValueError, match="too long"):
        Host().storage.log("x" * 65_536)
    assert log.next_offset == 0


def syncs(host: Host) -> int:
    return sum(operation.kind in SYNCS for operation in host.disk.operations)


def one_batch(host: Host) -> None:
    host.storage.log("l").append(b"x")
    host.commit()


@pytest.mark.parametrize(
    ("fsync", "expected"), [("always", 12), ("every_n:4", 3), ("interval:60000", 0), ("never", 0)]
)
def test_fsync_policy_by_number(fsync: str, expected: int) -> None:
    host = Host(fsync=fsync, journal_file_size=1 << 16)
    before = syncs(host)
    for _ in range(12):
        one_batch(host)
    assert syncs(host) - before == expected
    assert host.storage.durable == 12
    host.storage.close()
    assert len(Host(host.disk.power_cut(None), seed=1).storage.log("l")) == 12


def test_fsync_interval_syncs_in_time_when_busy_and_when_idle() -> None:
    host = Host(fsync="interval:100", journal_file_size=1 << 16)
    before = syncs(host)
    one_batch(host)
    host.executor.clock = 0.05
    host.step()
    assert syncs(host) == before
    host.executor.clock = 0.2
    host.step()
    assert syncs(host) == before + 1
    host.step()
    assert syncs(host) == before + 1
    host.executor.clock = 0.5
    one_batch(host)
    assert syncs(host) == before + 2


def test_a_failed_interval_sync_is_final() -> None:
    host = Host(fsync="interval:100")
    one_batch(host)

    def fail(operation: Operation) -> None:
        if operation.kind in SYNCS:
            raise OSError(errno.EIO, "input/output error")

    host.disk.before = fail
    host.executor.clock = 1.0
    host.step()
    assert [type(error) for error in host.errors] == [StorageFailed]


class RealLoop:
    """Runs what the storage's threads post, on the test's own thread."""

    def __init__(self, directory: Path, fsync: str = "always") -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.errors: list[Exception] = []
        self.storage = DiskStorage(
            directory,
            post=self.calls.put,
            wake=lambda: None,
            on_fatal=self.errors.append,
            fsync=fsync,
            journal_file_size=20_000,
            checkpoint_size=50_000,
            memory_size=10_000,
        )

    def turn_until(self, batch: int) -> None:
        while self.storage.durable < batch:
            self.storage.commit()
            self.wait()

    def wait(self) -> None:
        self.calls.get(timeout=60)()


@pytest.mark.parametrize("fsync", ["always", "interval:1"])
def test_a_real_disk_and_real_threads(tmp_path: Path, fsync: str) -> None:
    directory = tmp_path / "made" / "here"
    loop = RealLoop(directory, fsync)
    expected: dict[int, tuple[bytes, bytes]] = {}
    waiter = Recorder()
    for turn in range(50):
        log = loop.storage.log("l")
        for number in range(turn):
            record = os.urandom(number)
            expected[log.append(record, 1, b"n")] = (record, b"n")
        first = log.first_offset
        log.remove(first, first + turn // 2)
        for offset in range(first, first + turn // 2 + 1):
            expected.pop(offset, None)
        loop.turn_until(loop.storage.wait(waiter))
    loop.storage.close()
    assert waiter.write_batches == list(range(1, 51))
    again = RealLoop(directory)
    assert again.storage.was_clean
    assert read_all(again.storage.log("l"), again.wait) == expected
    again.storage.close()
    assert again.errors == []


def test_a_killed_process_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Each line that the process wrote says how many records are durable."""
    program = """
import queue, sys
from trivium.storage.disk import DiskStorage
calls = queue.SimpleQueue()
storage = DiskStorage(sys.argv[1], post=calls.put, wake=int, on_fatal=print,
                      journal_file_size=100_000, checkpoint_size=150_000, memory_size=1000)
log = storage.log("l")
while True:
    for _ in range(100):
        log.append(b"record %d" % log.next_offset)
    batch = storage.write_batch
    while storage.durable < batch:
        storage.commit()
        calls.get()()
    print(log.next_offset, flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    acknowledged = 0
    for lines in (1, 40, 80):
        command = [sys.executable, "-c", program, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            for _ in range(lines):
                acknowledged = int(process.stdout.readline())
            process.kill()
            acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        loop = RealLoop(tmp_path)
        assert not loop.storage.was_clean
        found = read_all(loop.storage.log("l"), loop.wait)
        assert len(found) >= acknowledged
        assert found == {at: (b"record %d" % at, b"") for at in range(len(found))}
        loop.storage.close()


def test_another_process_cannot_open_the_directory(tmp_path: Path) -> None:
    program = (
        "import sys; from trivium.storage.disk import DiskStorage\n"
        "try: DiskStorage(sys.argv[1], post=print, wake=print, on_fatal=print)\n"
        "except Exception as error: print(type(error).__name__)"
    )

    def opened() -> str:
        command = [sys.executable, "-c", program, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True, env=environment
        ).stdout

    loop = RealLoop(tmp_path)
    assert opened() == "StorageLocked\n"
    loop.storage.close()
    assert opened() == ""


class LateWriter(DurabilityWaiter):
    """Changes something when it hears that its batch is durable."""

    def __init__(self, host: Host) -> None:
        self.storage = host.storage

    def write_batch_durable(self, batch: int) -> None:
        self.storage.table("t").put(b"late", b"")


def test_what_is_changed_after_the_last_turn_is_not_written_by_close() -> None:
    host = Host()
    host.storage.table("t").put(b"k", b"v")
    host.storage.wait(LateWriter(host))
    host.storage.commit()
    host.storage.close()
    again = Host(host.disk.copy(), seed=1)
    assert dict(again.storage.table("t").items()) == {b"k": b"v"}
