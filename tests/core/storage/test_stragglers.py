"""Files in which few records are left are rewritten, and nothing is lost or comes back by it."""

from __future__ import annotations

import random

import pytest

from tests.core.storage.simulated import Host, Operation, SimulatedDisk
from tests.core.storage.test_checkpoint import _full_database
from trivium.storage.chunks import CHUNK_RECORDS
from trivium.storage.errors import StorageDamaged
from trivium.storage.inspection import Inspection

RECORDS = 3 * CHUNK_RECORDS


def checkpoint(host: Host) -> None:
    host.storage.table("filler").put(b"key", b"")
    host.storage._journal_bytes = 1 << 40
    host.commit()


def host_of(disk: SimulatedDisk | None = None, seed: int = 0) -> Host:
    return Host(disk, seed=seed, memory_size=0)


def segments(disk: SimulatedDisk) -> list[str]:
    return disk.names("data/segments")


def record(number: int) -> bytes:
    return b"record %d " % number * 5


def straggling(kept: set[int]) -> Host:
    """Three chunks in one file, of which ``kept`` are left, known to the catalog."""
    host = host_of()
    log = host.storage.log("l")
    for number in range(RECORDS):
        log.append(record(number), 1, b"n%d" % number if number % 2 else b"")
    host.commit()
    checkpoint(host)
    for number in range(RECORDS):
        if number not in kept:
            log.settle(number, number)
    host.commit()
    return host


def expected(kept: set[int]) -> dict[int, tuple[bytes, bytes]]:
    return {number: (record(number), b"n%d" % number if number % 2 else b"") for number in kept}


def test_one_record_does_not_keep_its_file() -> None:
    host = straggling({700})
    size = len(host.disk.content("data/segments/0000000000000001.segment"))
    checkpoint(host)
    checkpoint(host)
    assert segments(host.disk) == ["0000000000000002.segment"]
    assert len(host.disk.content("data/segments/0000000000000002.segment")) < size / 10
    assert host.contents("l") == expected({700})
    again = host_of(host.disk.copy(), 1)
    assert again.contents("l") == expected({700})
    assert Inspection(host.disk, "data", lambda *_: "").damages == []


def test_a_file_of_which_much_is_left_stays() -> None:
    host = straggling(set(range(0, RECORDS, 3)))
    for _ in range(3):
        checkpoint(host)
    assert segments(host.disk) == ["0000000000000001.segment"]


def test_what_is_settled_and_read_after_the_move_is_as_it_was() -> None:
    kept = {3, 5, 700, RECORDS - 1}
    host = straggling(kept)
    checkpoint(host)
    log = host.storage.log("l")
    log.settle(5, 5)
    kept -= {5}
    host.commit()
    checkpoint(host)
    assert host.contents("l") == expected(kept)
    log.settle(3, 3)
    log.settle(700, 700)
    log.settle(RECORDS - 1, RECORDS - 1)
    host.commit()
    checkpoint(host)
    checkpoint(host)
    assert segments(host.disk) == []
    assert host_of(host.disk.copy(), 1).contents("l") == {}


@pytest.mark.parametrize("seed", range(4))
def test_changes_while_a_file_is_rewritten(seed: int) -> None:
    """Settled, all settled, or dropped between any two steps of the checkpoint."""
    random_ = random.Random(seed)
    for stop in range(12):
        kept = {3, 700, RECORDS - 1}
        host = straggling(kept)
        log = host.storage.log("l")
        host.storage.table("filler").put(b"key", b"")
        host.storage._journal_bytes = 1 << 40
        for _ in range(stop):
            host.storage.commit()
            host.step_one(random_)
        change = random_.randrange(3)
        if change == 0:
            log.settle(3, 3)
            kept = {700, RECORDS - 1}
        elif change == 1:
            log.settle(0, RECORDS)
            kept = set()
        else:
            host.storage.drop_log("l")
            kept = set()
        host.commit()
        for _ in range(3):
            checkpoint(host)
            found = host.contents("l") if kept else {}
            assert found == expected(kept)
        assert len(segments(host.disk)) == (1 if kept else 0)
        again = host_of(host.disk.copy(), 1)
        assert again.contents("l") == expected(kept)


def test_a_read_that_was_asked_for_before_the_move_finds_its_file() -> None:
    host = straggling({700})
    checkpoint_lane = host.executor.lanes["trivium-checkpoint"]
    journal = host.executor.lanes["trivium-journal"]
    host.storage._journal_bytes = 1 << 40
    log = host.storage.log("l")
    ready: list[int] = []
    log.load(700, 1, lambda: ready.append(1))
    for _ in range(3):
        for _ in range(10):
            host.storage.table("filler").put(b"key", b"")
            host.storage.commit()
            journal.step()
            checkpoint_lane.step()
            host.run_calls()
        host.storage._journal_bytes = 1 << 40
    assert "0000000000000002.segment" in segments(host.disk)
    host.executor.lanes["trivium-reader"].step()
    host.run_calls()
    assert ready == [1]
    # It is told that it may look, and has to ask once more.
    assert host.errors == []
    assert host.contents("l") == expected({700})
    checkpoint(host)
    assert "0000000000000001.segment" not in segments(host.disk)


def test_a_crash_at_any_operation_of_a_rewriting_checkpoint() -> None:
    kept = {3, 700, RECORDS - 1}
    host = straggling(kept)
    disk = host.disk.copy()
    start = len(host.disk.operations)
    checkpoint(host)
    checkpoint(host)
    random_ = random.Random(0)
    for operation in host.disk.operations[start:]:
        disk.apply(operation)
        for crashed in (disk.copy(), disk.power_cut(None), disk.power_cut(random_)):
            assert host_of(crashed, 1).contents("l") == expected(kept)


def test_a_damaged_block_stays_where_it_is() -> None:
    host = straggling({3, 700})
    path = "data/segments/0000000000000001.segment"
    content = host.disk.content(path)
    content[content.index(record(700))] ^= 1
    for _ in range(3):
        checkpoint(host)
    assert host.errors == []
    assert path in host.disk.files
    host.storage.log("l").load(700, 1, lambda: None)
    host.step()
    (error,) = host.errors
    assert isinstance(error, StorageDamaged)
    assert error.file == path


def test_the_checkpoint_after_one_without_space_rewrites_nothing() -> None:
    host = straggling({3})
    full = [True]

    def fail(operation: Operation) -> None:
        if full[0] and operation.kind == "database":
            raise _full_database()

    host.disk.before = fail
    checkpoint(host)
    full[0] = False
    checkpoint(host)
    assert segments(host.disk) == ["0000000000000001.segment"]
    checkpoint(host)
    checkpoint(host)
    assert segments(host.disk) == ["0000000000000002.segment"]
    assert host_of(host.disk.copy(), 1).contents("l") == expected({3})


def test_one_checkpoint_rewrites_a_bounded_number_of_chunks() -> None:
    host = host_of()
    names = [f"l{number}" for number in range(1500)]
    for name in names:
        for _ in range(5):
            host.storage.log(name).append(b"x")
    host.commit()
    checkpoint(host)
    for name in names:
        host.storage.log(name).settle(0, 3)
    host.commit()
    checkpoint(host)
    assert len(segments(host.disk)) == 2
    checkpoint(host)
    checkpoint(host)
    assert "0000000000000001.segment" not in segments(host.disk)
    again = host_of(host.disk.copy(), 1)
    assert all(again.contents(name) == {4: (b"x", b"")} for name in names)
