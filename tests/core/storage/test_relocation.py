"""Files in which few records are left are rewritten, and nothing is lost or comes back by it."""

from __future__ import annotations

import random

import pytest

from tests.support.simulated import Host, Operation, SimulatedDisk, full_database
from trivium.storage.base import Log
from trivium.storage.errors import StorageDamaged
from trivium.storage.repair.inspection import Inspection
from trivium.storage.segments.chunks import CHUNK_RECORDS
from trivium.storage.segments.segment_files import FILE_HEADER_SIZE
from trivium.storage.segments.segments import needed_size

RECORDS = 3 * CHUNK_RECORDS


def checkpoint(host: Host) -> None:
    host.storage.table("filler").put(b"key", b"")
    host.checkpoint()


def host_of(disk: SimulatedDisk | None = None, seed: int = 0) -> Host:
    return Host(disk, seed=seed, memory_size=0)


def segments(disk: SimulatedDisk) -> list[str]:
    return disk.names("data/segments")


def record(number: int) -> bytes:
    return b"record %d " % number * 5


def sparse_file(kept: set[int]) -> Host:
    """Three chunks in one file, of which ``kept`` are left, known to the catalog."""
    host = host_of()
    log = host.storage.log("l")
    for number in range(RECORDS):
        log.append(record(number), 1, b"n%d" % number if number % 2 else b"")
    host.commit()
    checkpoint(host)
    for number in range(RECORDS):
        if number not in kept:
            log.remove(number, number)
    host.commit()
    return host


def expected(kept: set[int]) -> dict[int, tuple[bytes, bytes]]:
    return {number: (record(number), b"n%d" % number if number % 2 else b"") for number in kept}


def test_one_record_does_not_keep_its_file() -> None:
    host = sparse_file({700})
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
    host = sparse_file(set(range(0, RECORDS, 3)))
    for _ in range(3):
        checkpoint(host)
    assert segments(host.disk) == ["0000000000000001.segment"]


def test_what_is_removed_and_read_after_the_move_is_as_it_was() -> None:
    kept = {3, 5, 700, RECORDS - 1}
    host = sparse_file(kept)
    checkpoint(host)
    log = host.storage.log("l")
    log.remove(5, 5)
    kept -= {5}
    host.commit()
    checkpoint(host)
    assert host.contents("l") == expected(kept)
    log.remove(3, 3)
    log.remove(700, 700)
    log.remove(RECORDS - 1, RECORDS - 1)
    host.commit()
    checkpoint(host)
    checkpoint(host)
    assert segments(host.disk) == []
    assert host_of(host.disk.copy(), 1).contents("l") == {}


@pytest.mark.parametrize("seed", range(4))
def test_changes_while_a_file_is_rewritten(seed: int) -> None:
    """Removed, all removed, or dropped between any two steps of the checkpoint."""
    random_ = random.Random(seed)
    for stop in range(12):
        kept = {3, 700, RECORDS - 1}
        host = sparse_file(kept)
        log = host.storage.log("l")
        host.storage.table("filler").put(b"key", b"")
        host.storage.ask_for_checkpoint()
        for _ in range(stop):
            host.storage.commit()
            host.step_one(random_)
        change = random_.randrange(3)
        if change == 0:
            log.remove(3, 3)
            kept = {700, RECORDS - 1}
        elif change == 1:
            log.remove(0, RECORDS)
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
    host = sparse_file({700})
    checkpoint_worker = host.executor.workers["trivium-checkpoint"]
    journal = host.executor.workers["trivium-journal"]
    host.storage.ask_for_checkpoint()
    log = host.storage.log("l")
    ready: list[int] = []
    log.load(700, 1, lambda: ready.append(1))
    for _ in range(3):
        for _ in range(10):
            host.storage.table("filler").put(b"key", b"")
            host.storage.commit()
            journal.step()
            checkpoint_worker.step()
            host.run_calls()
        host.storage.ask_for_checkpoint()
    assert "0000000000000002.segment" in segments(host.disk)
    host.executor.workers["trivium-reader"].step()
    host.run_calls()
    assert ready == [1]
    # It is told that it may look, and has to ask once more.
    assert host.errors == []
    assert host.contents("l") == expected({700})
    checkpoint(host)
    assert "0000000000000001.segment" not in segments(host.disk)


def test_a_crash_at_any_operation_of_a_rewriting_checkpoint() -> None:
    kept = {3, 700, RECORDS - 1}
    host = sparse_file(kept)
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
    host = sparse_file({3, 700})
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


def fill_the_disk_once(host: Host) -> None:
    """The next checkpoint comes to nothing, and the one after it asks for no more space."""
    full = [True]

    def fail(operation: Operation) -> None:
        if full and operation.kind == "database":
            full.clear()
            raise full_database()

    host.disk.before = fail


def test_the_checkpoint_after_one_without_space_rewrites_nothing() -> None:
    host = sparse_file({3})
    fill_the_disk_once(host)
    checkpoint(host)
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
        for _ in range(10):
            host.storage.log(name).append(b"x" * 100)
    host.commit()
    checkpoint(host)
    for name in names:
        host.storage.log(name).remove(0, 8)
    host.commit()
    checkpoint(host)
    assert len(segments(host.disk)) == 2
    checkpoint(host)
    checkpoint(host)
    assert "0000000000000001.segment" not in segments(host.disk)
    again = host_of(host.disk.copy(), 1)
    assert all(again.contents(name) == {9: (b"x" * 100, b"")} for name in names)


PAIRS = 200
LARGE = [random.Random(number).randbytes(40_000) for number in range(PAIRS)]


def large_and_small(host: Host, names: tuple[str, str]) -> None:
    """Large records between small ones, in one log or in two; the large ones are gone."""
    large, small = map(host.storage.log, names)
    gone = []
    for number in range(PAIRS):
        gone.append(large.append(LARGE[number]))
        small.append(b"%08d" % number)
    host.commit()
    checkpoint(host)
    for offset in gone:
        if not large.is_loaded(offset):
            host.contents(names[0])
        large.remove(offset, offset)
    host.commit()


def small_ones(host: Host, name: str) -> list[bytes]:
    return [content for content, _ in host.contents(name).values()]


def segment_bytes(disk: SimulatedDisk) -> int:
    return sum(len(disk.content(f"data/segments/{name}")) for name in segments(disk))


def free_space(host: Host, ticks: int = 3) -> None:
    for _ in range(ticks):
        host.storage.free_space()
        host.commit()


SMALL = [b"%08d" % number for number in range(PAIRS)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("names", [("q", "q"), ("large", "small")])
def test_bytes_count_and_not_records(names: tuple[str, str], compression: str) -> None:
    host = Host(compression=compression)
    large_and_small(host, names)
    assert segment_bytes(host.disk) > 40_000 * PAIRS
    (before,) = segments(host.disk)
    checkpoint(host)
    checkpoint(host)
    assert before not in segments(host.disk)
    assert segment_bytes(host.disk) < 40 * PAIRS
    assert small_ones(host, names[1]) == SMALL
    assert small_ones(host_of(host.disk.copy(), 1), names[1]) == SMALL


def test_a_rewrite_that_would_gain_nothing_is_none() -> None:
    """A record of a byte in a dense chunk takes 5 bytes, 21 when its neighbours are gone."""
    host = host_of()
    log = host.storage.log("l")
    for _ in range(RECORDS):
        log.append(b"x")
    host.commit()
    checkpoint(host)
    for number in range(RECORDS):
        if number % 5:
            log.remove(number, number)
    host.commit()
    free_space(host)
    assert segments(host.disk) == ["0000000000000001.segment"]


def test_after_a_start_gone_chunks_count_as_well() -> None:
    """The catalog names them no more, so it takes the size of the file to know of them."""
    host = Host()
    large_and_small(host, ("large", "small"))
    fill_the_disk_once(host)
    checkpoint(host)
    checkpoint(host)
    assert segment_bytes(host.disk) > 40_000 * PAIRS
    host.storage.close()
    again = host_of(host.disk.copy(), 1)
    assert segment_bytes(again.disk) > 40_000 * PAIRS
    checkpoint(again)
    checkpoint(again)
    assert segment_bytes(again.disk) < 40 * PAIRS
    assert small_ones(again, "small") == SMALL


@pytest.mark.parametrize("is_read", [False, True])
def test_after_a_start_it_takes_a_short_disk_or_a_read_to_know_the_bytes(is_read: bool) -> None:
    host = Host()
    large_and_small(host, ("q", "q"))
    host.storage.close()
    again = host_of(host.disk.copy(), 1)
    checkpoint(again)
    checkpoint(again)
    assert segment_bytes(again.disk) > 40_000 * PAIRS, "half of the records are left"
    if is_read:
        assert small_ones(again, "q") == SMALL
        checkpoint(again)
        checkpoint(again)
    else:
        free_space(again, 1)
    assert segment_bytes(again.disk) < 40 * PAIRS
    assert small_ones(again, "q") == SMALL
    assert small_ones(host_of(again.disk.copy(), 2), "q") == SMALL


def test_what_is_removed_while_it_is_not_in_memory_is_guessed_until_it_is_read() -> None:
    host = host_of()
    log = host.storage.log("q")
    for number in range(PAIRS):
        log.append(LARGE[number])
        log.append(b"%08d" % number)
    host.commit()
    checkpoint(host)
    host.commit()
    assert not log.is_loaded(0)
    for number in range(PAIRS):
        log.remove(2 * number, 2 * number)
    host.commit()
    checkpoint(host)
    checkpoint(host)
    assert segment_bytes(host.disk) > 40_000 * PAIRS
    free_space(host, 1)
    assert segment_bytes(host.disk) < 40 * PAIRS
    assert small_ones(host, "q") == SMALL


def backlog(host: Host, chunks: int) -> Log:
    """A log of ``chunks`` chunks of eight records each, in one file."""
    log = host.storage.log("l")
    for number in range(8 * chunks):
        log.append(b"%08d" % number * 4096)
    host.commit()
    checkpoint(host)
    return log


def remove_of_eight(host: Host, log: Log, count: int) -> None:
    for number in range(log.next_offset):
        if number % 8 < count:
            log.remove(number, number)
    host.commit()


def test_a_short_disk_is_reason_to_rewrite_what_is_half_gone() -> None:
    host = Host()
    remove_of_eight(host, backlog(host, 16), 5)
    before = segment_bytes(host.disk)
    for _ in range(3):
        checkpoint(host)
    assert segment_bytes(host.disk) == before, "more than a quarter is left"
    free_space(host, 1)
    assert segment_bytes(host.disk) < before / 2
    assert [offset % 8 for offset in host.contents("l")] == [5, 6, 7] * 16


def test_a_short_disk_is_no_reason_to_write_more_than_becomes_free() -> None:
    host = Host()
    log = backlog(host, 16)
    remove_of_eight(host, log, 3)
    free_space(host, 3)
    assert segments(host.disk) == ["0000000000000001.segment"]
    assert len(log) == 5 * 16


def test_a_short_disk_gets_all_there_is_to_gain_at_once() -> None:
    """More than one checkpoint may rewrite: they follow one another without being asked for."""
    host = Host()
    remove_of_eight(host, backlog(host, 400), 5)
    before = segment_bytes(host.disk)
    assert before > 400 * 8 * 32_768
    free_space(host, 1)
    assert segment_bytes(host.disk) < before / 2
    operations, wakes = len(host.disk.operations), host.wakes
    free_space(host, 5)
    assert (len(host.disk.operations), host.wakes) == (operations, wakes), "nothing is left to do"
    assert len(host.contents("l")) == 400 * 3


def test_a_short_disk_is_not_filled_by_rewriting() -> None:
    """What is written must fit in half of what is free; then that which gains most comes first."""
    host = Host()
    first, second = host.storage.log("first"), host.storage.log("second")
    for log in (first, second):
        for number in range(8 * 16):
            log.append(b"%08d" % number * 4096)
        host.commit()
        checkpoint(host)
    remove_of_eight(host, first, 5)
    remove_of_eight(host, second, 6)
    checkpoint(host)
    each_size = segment_bytes(host.disk) // 2
    # Half of that is too little for three eighths of the first, enough for two of the second.
    host.disk.capacity = host.disk.used() + each_size * 5 // 8
    operations = len(host.disk.operations)
    free_space(host, 2)
    created = [each.path for each in host.disk.operations[operations:] if each.kind == "create"]
    assert [path for path in created if ".segment" in path] == [
        f"data/segments/{number:016x}.segment.tmp" for number in (3, 4)
    ]
    # What the second one gave was room for the first.
    assert segment_bytes(host.disk) < each_size * 3 // 4
    assert len(host.contents("first")) == 3 * 16
    assert len(host.contents("second")) == 2 * 16


def test_where_there_is_no_room_at_all_nothing_is_tried() -> None:
    host = Host()
    remove_of_eight(host, backlog(host, 16), 5)
    checkpoint(host)
    host.disk.capacity = host.disk.used() + 100_000
    free_space(host, 1)
    operations = len(host.disk.operations)
    free_space(host, 10)
    assert len(host.disk.operations) == operations
    assert segments(host.disk) == ["0000000000000001.segment"]
    assert host.storage.pending_bytes == 0


def test_a_damaged_block_is_tried_once() -> None:
    host = sparse_file({3, 700})
    path = "data/segments/0000000000000001.segment"
    content = host.disk.content(path)
    content[content.index(record(700))] ^= 1
    free_space(host)
    assert path in host.disk.files
    operations, wakes = len(host.disk.operations), host.wakes
    free_space(host, 10)
    assert (len(host.disk.operations), host.wakes) == (operations, wakes)
    assert host.errors == []


def test_an_idle_storage_rewrites_what_is_worth_it() -> None:
    host = sparse_file({700})
    host.commit()
    for _ in range(3):
        host.storage.tidy()
        host.commit()
    assert segments(host.disk) == ["0000000000000002.segment"]
    operations, wakes = len(host.disk.operations), host.wakes
    for _ in range(10):
        host.storage.tidy()
        host.commit()
    assert (len(host.disk.operations), host.wakes) == (operations, wakes)
    assert host.contents("l") == expected({700})


@pytest.mark.parametrize("seed", range(4))
def test_what_is_left_is_counted_right_whatever_happens(seed: int) -> None:
    """The figures that are kept agree with those from a look at everything."""
    random_ = random.Random(seed)
    host = Host(memory_size=200_000)
    names = [f"l{number}" for number in range(5)]
    for _ in range(300):
        log = host.storage.log(random_.choice(names))
        if random_.random() < 0.6:
            for _ in range(random_.randint(1, 40)):
                log.append(b"x" * random_.choice((0, 8, 5000)), random_.randint(1, 2))
        elif len(log):
            first = random_.randrange(log.first_offset, log.next_offset)
            log.remove(first, first + random_.choice((0, 1, 50)))
        if random_.random() < 0.1:
            host.storage.ask_for_checkpoint()
        if random_.random() < 0.05:
            host.storage.free_space()
        if random_.random() < 0.05:
            host.contents(log.name)  # type: ignore[attr-defined]
        for _ in range(random_.randint(0, 4)):
            host.storage.commit()
            host.step_one(random_)
    host.commit()
    checkpoint(host)
    for stores in (host, Host(host.disk.copy(), seed=9)):
        counted = stores.storage.segments
        logs = [stores.storage.log(name) for name in names]
        live: dict[int, int] = {}
        for log in logs:
            for chunk in log.chunks():  # type: ignore[attr-defined]
                live[chunk.segment] = live.get(chunk.segment, 0) + needed_size(chunk)
                if chunk.live == chunk.slots:
                    assert chunk.live_size == chunk.size
                if chunk.records is not None and not chunk.is_estimated:
                    kept = [each for each in chunk.records if each is not None]
                    assert chunk.live_size == sum(map(len, kept))
        assert {number: size for number, size in counted.live.items() if size} == live
        for number in counted.live:
            content = stores.disk.content(counted.path(number))
            assert counted.sizes[number] == len(content) - FILE_HEADER_SIZE
