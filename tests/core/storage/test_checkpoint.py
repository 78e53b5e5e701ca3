"""Checkpoints: nothing is lost or comes back, whenever the crash; memory and disk are freed."""

from __future__ import annotations

import copy
import errno
import gc
import random
import sqlite3

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.storage.model import Recoveries, Scenario, assert_equal, assert_recovers
from tests.support.simulated import Host, Operation, SimulatedDisk, full_database
from trivium.storage.contents.changes import Changes
from trivium.storage.contents.log import DiskLog
from trivium.storage.contents.table import DiskTable
from trivium.storage.errors import StorageDamaged, StorageFailed, StorageVersionMismatch
from trivium.storage.journal.journal_files import FILE_HEADER_SIZE
from trivium.storage.segments.chunks import CHUNK_RECORDS

CATALOG = "data/catalog.sqlite"
COPY = "data/catalog-copy.sqlite"


def host_of(disk: SimulatedDisk | None = None, seed: int = 0, fsync: str = "always") -> Host:
    return Host(
        disk,
        seed=seed,
        fsync=fsync,
        journal_file_size=900,
        checkpoint_size=1500,
        checkpoint_rows=4,
        memory_size=600,
    )


def scenario_of(seed: int, steps: int, fsync: str = "always") -> Scenario:
    scenario = Scenario(seed, host_of(seed=seed, fsync=fsync))
    scenario.run(steps)
    return scenario


def paths(disk: SimulatedDisk, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in disk.names(directory)]


def checkpoint(host: Host) -> None:
    """Fill the journal, with rows, until a checkpoint was made and another one is not near."""
    done = len(host.disk.operations)
    while True:
        host.storage.table("filler").put(b"key", bytes(600))
        host.commit()
        if any(each.kind == "database" for each in host.disk.operations[done:]):
            host.commit()
            return


@settings(max_examples=12)
@given(st.integers(0, 1 << 32))
def test_a_scenario_with_checkpoints_reads_like_its_model(seed: int) -> None:
    scenario = scenario_of(seed, 150)
    for log in scenario.model.logs.values():
        log.shown_offset = log.next_offset
    assert_equal(scenario.host, scenario.model)


@settings(max_examples=12)
@given(st.integers(0, 1 << 32))
def test_a_kill_at_any_operation_loses_nothing_acknowledged(seed: int) -> None:
    scenario = scenario_of(seed, 60)
    recoveries = Recoveries(scenario.states)
    for done, disk in scenario.disks():
        recoveries.check(disk, scenario.acknowledged_after(done))


@settings(max_examples=12)
@given(st.integers(0, 1 << 32))
def test_a_power_cut_at_any_operation_loses_nothing_acknowledged(seed: int) -> None:
    scenario = scenario_of(seed, 60)
    random_ = random.Random(seed)
    recoveries = Recoveries(scenario.states)
    for done, disk in scenario.disks():
        at_least = scenario.acknowledged_after(done)
        recoveries.check(disk.power_cut(None), at_least)
        recoveries.check(disk.power_cut(random_), at_least)


@pytest.mark.parametrize("fsync", ["every_n:3", "interval:10", "never"])
@settings(max_examples=6)
@given(st.integers(0, 1 << 32))
def test_weaker_sync_still_recovers_whole_batches(fsync: str, seed: int) -> None:
    scenario = scenario_of(seed, 60, fsync)
    random_ = random.Random(seed)
    recoveries = Recoveries(scenario.states)
    for done, disk in scenario.disks():
        recoveries.check(disk.power_cut(random_), 0)
        recoveries.check(disk, scenario.acknowledged_after(done))


@settings(max_examples=8)
@given(st.integers(0, 1 << 32))
@example(100_000)
def test_many_lives_with_crashes_in_each(seed: int) -> None:
    scenario = scenario_of(seed, 60)
    random_ = random.Random(seed)
    for life in range(4):
        disk = random_.choice([each for _, each in scenario.disks()])
        if random_.random() < 0.5:
            disk = disk.power_cut(random_)
        host = host_of(disk, seed + life + 1)
        model = copy.deepcopy(scenario.states[host.storage.durable - 1])
        for name, log in model.logs.items():
            log.next_offset = host.storage.log(name).next_offset
        scenario = Scenario(seed + life + 1, host, model)
        scenario.run(40)
        recoveries = Recoveries(scenario.states)
        for done, crashed in scenario.disks():
            at_least = scenario.acknowledged_after(done)
            recoveries.check(crashed.power_cut(random_), at_least)


@pytest.mark.parametrize("is_truncated", [False, True])
def test_an_offset_that_a_removal_covers_is_not_given_out_again(is_truncated: bool) -> None:
    """Replayed on a checkpoint with a new record at the offset, it would remove that as well."""
    host = host_of()
    log = host.storage.log("l")
    log.append(b"record")
    log.skip(3)
    if is_truncated:
        log.truncate(4)
    else:
        log.remove(0, 3)
    host.commit()
    again = host_of(host.disk.power_cut(None))
    assert again.storage.log("l").next_offset == 4


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_during_a_checkpoint_of_a_recovered_storage(seed: int) -> None:
    scenario = scenario_of(seed, 25)
    random_ = random.Random(seed)
    for done, crashed in scenario.disks():
        at_least = scenario.acknowledged_after(done)
        recovering = crashed.copy()
        # Its first turns make a checkpoint of all that was replayed.
        recovered = assert_recovers(crashed, scenario.states, at_least, checkpoint_size=1)
        reached = recovered.storage.durable - 1
        recovered.commit()
        assert any(operation.kind == "database" for operation in recovered.disk.operations)
        # The start, and the table that was asked for, are batches of their own.
        more = {reached + further: scenario.states[reached] for further in range(1, 4)}
        again = Recoveries({**scenario.states, **more})
        for operation in recovered.disk.operations:
            recovering.apply(operation)
            again.check(recovering.copy(), at_least)
            again.check(recovering.power_cut(random_), at_least)


def test_the_journal_does_not_grow_for_ever() -> None:
    host = host_of()
    for number in range(500):
        host.storage.log("l").append(b"record %d" % number)
        host.storage.log("l").remove(number, number)
        host.commit()
        # Two checkpoints' worth, the file being written, and two that are kept for use again.
        assert len(paths(host.disk, "data/journal")) <= 8
    host.storage.close()
    assert host_of(host.disk, 1).storage.log("l").next_offset == 500


def test_what_is_removed_before_a_checkpoint_reaches_no_segment() -> None:
    host = host_of()
    for number in range(100):
        offset = host.storage.log("l").append(b"record %d" % number)
        host.storage.log("l").remove(offset, offset)
        host.commit()
    checkpoint(host)
    assert paths(host.disk, "data/segments") == []
    assert not any(".segment" in operation.path for operation in host.disk.operations)


def test_a_segment_is_removed_once_nothing_in_it_is_kept() -> None:
    host = host_of()
    for _ in range(10):
        host.storage.log("l").append(b"x" * 20)
    checkpoint(host)
    assert len(paths(host.disk, "data/segments")) == 1
    host.storage.log("l").remove(0, 5)
    checkpoint(host)
    assert len(paths(host.disk, "data/segments")) == 1
    host.storage.log("l").remove(6, 9)
    checkpoint(host)
    assert paths(host.disk, "data/segments") == []


def test_a_dropped_log_leaves_nothing() -> None:
    host = host_of()
    for _ in range(10):
        host.storage.log("l").append(b"x" * 20)
    checkpoint(host)
    stale = host.storage.log("l")
    host.storage.drop_log("l")
    stale.append(b"to nowhere")
    stale.remove(0, 100)
    stale.truncate(100)
    checkpoint(host)
    assert paths(host.disk, "data/segments") == []
    again = host_of(host.disk.copy(), 1)
    assert again.storage.log_names() == []
    assert len(again.storage.log("l")) == 0


def test_records_leave_memory_and_are_read_back() -> None:
    host = host_of()
    log = host.storage.log("l")
    expected = {}
    for number in range(50):
        record = b"%d" % number * 20
        expected[log.append(record, 1, b"note")] = (record, b"note")
        host.commit()
    checkpoint(host)
    assert not log.is_loaded(0)
    assert log.read(0, 10, 1000) == []
    assert (len(log), log.first_offset, log.next_offset) == (50, 0, 50)
    assert log.is_loaded(50)
    ready: list[int] = []
    log.load(0, 1, lambda: ready.append(len(log.read(0, 10, 1 << 20))))
    assert ready == []
    host.step()
    assert ready[0] > 0
    assert host.contents("l") == expected
    assert host_of(host.disk.copy(), 1).contents("l") == expected


def test_a_chunk_with_nothing_left_behind_an_offset_is_not_needed_there() -> None:
    host = host_of()
    log = host.storage.log("l")
    for record in (b"a", b"b" * 1000, b"c" * 1000):
        log.append(record)
        if record[:1] != b"a":
            checkpoint(host)
    log.remove(1, 1)
    host.commit()
    host = host_of(host.disk.copy(), 1)
    log = host.storage.log("l")
    # One of the two chunks is all that the memory has room for.
    log.load(1, 1, lambda: None)
    host.step()
    assert log.is_loaded(1)
    assert log.read(1, 1, 1) == [(2, b"c" * 1000, b"")]


def test_load_of_what_is_loaded_is_ready_at_once() -> None:
    host = host_of()
    host.storage.log("l").append(b"x")
    ready: list[int] = []
    host.storage.log("l").load(0, 1, lambda: ready.append(1))
    assert ready == []
    host.step()
    assert ready == [1]


def test_records_removed_while_they_are_loaded_do_not_come_back() -> None:
    host = host_of()
    log = host.storage.log("l")
    for _ in range(60):
        log.append(b"x" * 20, 1, b"n")
    checkpoint(host)
    assert not log.is_loaded(0)
    log.load(0, 1, lambda: None)
    log.remove(0, 9)
    log.remove(11, 11)
    host.step()
    assert [offset for offset, _, _ in log.read(0, 3, 1000)] == [10, 12, 13]
    checkpoint(host)
    again = host_of(host.disk.copy(), 1)
    assert list(again.contents("l")) == [10, *range(12, 60)]


def test_a_log_removed_while_it_is_loaded() -> None:
    host = host_of()
    log = host.storage.log("l")
    for _ in range(60):
        log.append(b"x" * 20)
    checkpoint(host)
    ready: list[int] = []
    log.load(0, 1, lambda: ready.append(len(log)))
    host.storage.drop_log("l")
    host.executor.workers["trivium-journal"].stop()
    for path in paths(host.disk, "data/segments"):
        host.disk.remove(path)
    host.step()
    assert (ready, host.errors) == ([0], [])


@pytest.mark.parametrize("way", ["drop", "remove"])
def test_many_records_that_go_are_freed_a_part_at_a_time(way: str) -> None:
    host = host_of()
    log = host.storage.log("l")
    for _ in range(100 * CHUNK_RECORDS):
        log.append(b"x")
    unwanted = host.storage.segments.unwanted
    if way == "drop":
        host.storage.drop_log("l")
    else:
        log.remove(0, log.next_offset - 1)
    left = [len(unwanted)]
    while unwanted:
        wakes = host.wakes
        host.storage.commit()
        left.append(len(unwanted))
        assert host.wakes > wakes or not unwanted, "nobody would go on"
    assert left == [100, 36, 0]


def test_memory_stays_within_the_budget() -> None:
    host = Host(checkpoint_size=20_000, memory_size=50_000)
    log = host.storage.log("l")
    for _ in range(2000):
        log.append(b"x" * 100)
        host.commit()
    host.commit()
    assert host.storage.segments.loaded_bytes <= 50_000
    assert len(host.contents("l")) == 2000
    host.commit()
    assert host.storage.segments.loaded_bytes <= 50_000
    log.remove(0, 2000)
    assert host.storage.segments.loaded_bytes == 0


def test_a_chunk_with_gaps_and_spans_is_read_back() -> None:
    host = host_of()
    log = host.storage.log("l")
    expected = {}
    for number in range(30):
        log.skip(number % 3)
        record = bytes([number]) * number
        annotation = b"n" * (number % 2)
        expected[log.append(record, 1 + number % 4, annotation)] = (record, annotation)
    first = min(expected)
    log.remove(first, first)
    expected.pop(first)
    checkpoint(host)
    second = min(expected)
    log.remove(second, second)
    expected.pop(second)
    host.commit()
    assert host.contents("l") == expected
    again = host_of(host.disk.copy(), 1)
    assert again.contents("l") == expected
    assert again.storage.log("l").first_offset == min(expected)
    assert again.storage.log("l").next_offset == log.next_offset


def test_many_full_chunks() -> None:
    host = Host(checkpoint_size=100_000, memory_size=30_000, journal_file_size=50_000)
    log = host.storage.log("l")
    count = 5 * CHUNK_RECORDS
    for number in range(count):
        log.append(b"%d" % number)
        if number % 100 == 0:
            host.commit()
    host.commit()
    log.remove(10, 3 * CHUNK_RECORDS)
    checkpoint(host)
    again = Host(host.disk.copy(), seed=1)
    wanted = [*range(10), *range(3 * CHUNK_RECORDS + 1, count)]
    assert again.contents("l") == {at: (b"%d" % at, b"") for at in wanted}


def has_checkpointed(host: Host) -> bool:
    """Whether the catalog was written, behind the first time at the start."""
    return sum(operation.path == CATALOG for operation in host.disk.operations) > 1


def test_no_turn_looks_at_much_of_a_checkpoint() -> None:
    """The images of 10,000 logs and 10,000 rows are taken in many turns."""
    host = Host(checkpoint_size=100_000)
    for number in range(10_000):
        host.storage.log(f"l{number}").append(b"x")
        host.storage.table("t").put(b"%d" % number, b"x")
    turns = 0
    while not has_checkpointed(host):
        host.storage.commit()
        host.step()
        turns += 1
    assert turns >= 20
    again = Host(host.disk.copy(), seed=1)
    assert len(again.storage.log_names()) == 10_000
    assert len(again.storage.table("t")) == 10_000


@pytest.mark.parametrize("count", range(1986, 1994))
def test_a_turn_that_logs_use_up_but_for_less_than_a_row_ends(count: int) -> None:
    """Chunks that have lost a record cost a unit for each that they have; some leave 1 to 3."""
    host = Host(checkpoint_size=1000)
    log = host.storage.log("l")
    for _ in range(count):
        log.append(b"x")
    for first in range(0, count, CHUNK_RECORDS):
        log.remove(first, first)
    host.storage.table("t").put(b"k", b"v")
    while not has_checkpointed(host):
        host.storage.commit()
        host.step()
    assert Host(host.disk.copy(), seed=1).storage.table("t").get(b"k") == b"v"


def test_what_is_removed_while_a_written_checkpoint_is_taken_over_stays_removed() -> None:
    """That takes many turns too: each removes a record, and drops a log."""
    host = Host(checkpoint_size=100_000, memory_size=0)
    logs = [host.storage.log(f"l{number}") for number in range(5_000)]
    for log in logs:
        log.append(b"x" * 20)
        log.append(b"y")
    while not has_checkpointed(host):
        host.storage.commit()
        host.step()
    turns = 0
    while host.storage.is_making_checkpoint:
        logs[turns].remove(0, 0)
        logs[-1 - turns].remove(0, 0)
        host.storage.drop_log(f"l{2500 + turns}")
        host.storage.commit()
        turns += 1
    assert turns >= 10
    host.commit()
    checkpoint(host)
    again = Host(host.disk.copy(), seed=1)
    wanted = {f"l{number}" for number in range(5_000) if not 0 <= number - 2500 < turns}
    assert set(again.storage.log_names()) == wanted
    for number in [*range(turns + 1), *range(4_999 - turns, 5_000)]:
        is_removed = number < turns or number >= 5_000 - turns
        assert list(again.contents(f"l{number}")) == ([1] if is_removed else [0, 1])


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_an_error_while_a_segment_is_written_is_final(kind: str) -> None:
    host = host_of()
    inside: list[bool] = []

    def fail(operation: Operation) -> None:
        if ".segment" in operation.path:
            inside.append(True)
        if inside and operation.kind == kind:
            raise OSError(errno.EIO, "input/output error")

    host.storage.log("l").append(b"kept")
    host.commit()
    host.disk.before = fail
    for _ in range(10):
        host.storage.table("filler").put(b"key", bytes(600))
        host.commit()
    assert [type(error) for error in host.errors] == [StorageFailed]
    host.disk.before = lambda operation: None
    assert host_of(host.disk.power_cut(None), 1).contents("l") == {0: (b"kept", b"")}


@pytest.mark.parametrize("where", ["segment", "database"])
def test_a_full_disk_only_puts_a_checkpoint_off(where: str) -> None:
    host = host_of()
    log = host.storage.log("l")
    for _ in range(10):
        log.append(b"x" * 20)
    checkpoint(host)
    log.remove(3, 4)
    host.storage.log("gone").append(b"x")
    host.commit()
    host.storage.drop_log("gone")
    full = [True]

    def fail(operation: Operation) -> None:
        if full[0] and where == "segment" and ".segment.tmp" in operation.path:
            raise OSError(errno.ENOSPC, "no space left on device")
        if full[0] and operation.kind == "database":
            raise full_database()

    host.disk.before = fail
    expected = dict(host.contents("l"))
    for number in range(30):
        record = b"more %d" % number
        expected[log.append(record)] = (record, b"")
        log.remove(10 + number - 1, 10 + number - 1)
        expected.pop(10 + number - 1, None)
        host.storage.table("filler").put(b"key", bytes(600))
        host.storage.table("rows").put(b"%d" % number, b"x")
        host.storage.table("rows").delete(b"%d" % (number - 1))
        host.commit()
    assert host.errors == []
    assert host.contents("l") == expected
    assert len(paths(host.disk, "data/journal")) > 20
    assert host_of(host.disk.power_cut(None), 1).contents("l") == expected
    full[0] = False
    checkpoint(host)
    checkpoint(host)
    assert len(paths(host.disk, "data/journal")) < 8
    again = host_of(host.disk.power_cut(None), 1)
    assert again.contents("l") == expected
    assert dict(again.storage.table("rows").items()) == {b"29": b"x"}
    assert again.storage.log_names() == ["l"]


def dump(disk: SimulatedDisk, path: str) -> list[str]:
    database = disk.copy().open_database(path)
    found = list(database.connection.iterdump())
    database.close()
    return found


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_CORRUPT])
def test_a_copy_of_the_catalog_that_cannot_be_written_is_made_anew(code: int) -> None:
    """At once if it was damaged, at the next checkpoint if there was no space for it."""
    host = host_of()
    host.storage.log("l").append(b"kept")
    failures = [True]

    def fail(operation: Operation) -> None:
        if operation.path == COPY and operation.kind == "database" and failures:
            failures.pop()
            error = sqlite3.DatabaseError("the second file fails once")
            error.sqlite_errorcode = code
            raise error

    host.disk.before = fail
    checkpoint(host)
    assert host.errors == []
    assert (COPY in host.disk.files) == (code == sqlite3.SQLITE_CORRUPT)
    assert host_of(host.disk.power_cut(None), 1).contents("l") == {0: (b"kept", b"")}
    checkpoint(host)
    assert dump(host.disk, COPY) == dump(host.disk, CATALOG)


def test_a_copy_of_the_catalog_that_fails_otherwise_is_final() -> None:
    host = host_of()

    def fail(operation: Operation) -> None:
        if operation.path == COPY and operation.kind == "database":
            raise sqlite3.OperationalError("disk I/O error")

    host.storage.log("l").append(b"kept")
    host.commit()
    host.disk.before = fail
    checkpoint(host)
    assert "disk I/O error" in str(host.errors[0])
    host.disk.before = lambda operation: None
    again = host_of(host.disk.power_cut(None), 1)
    assert again.contents("l") == {0: (b"kept", b"")}
    assert dump(again.disk, COPY) == dump(again.disk, CATALOG)


def checkpointed() -> SimulatedDisk:
    host = host_of()
    for number in range(30):
        host.storage.log("l").append(b"record %d" % number)
    checkpoint(host)
    host.storage.close()
    return host.disk.copy()


def test_a_damaged_block_is_reported_when_it_is_read() -> None:
    whole = checkpointed()
    (path,) = paths(whole, "data/segments")
    for position in range(32, len(whole.content(path))):
        disk = whole.copy()
        disk.content(path)[position] ^= 1 << position % 8
        host = host_of(disk, 1)
        host.storage.log("l").load(0, 1, lambda: None)
        host.step()
        (error,) = host.errors
        assert isinstance(error, StorageDamaged)
        assert (error.file, error.offset) == (path, 32)


def test_a_missing_or_short_segment_stops_the_start() -> None:
    disk = checkpointed()
    (path,) = paths(disk, "data/segments")
    del disk.content(path)[-1:]
    with pytest.raises(StorageDamaged) as raised:
        host_of(disk, 1)
    assert (raised.value.file, raised.value.offset) == (path, len(disk.content(path)))
    disk.files.pop(path)
    with pytest.raises(StorageDamaged, match="missing"):
        host_of(disk, 1)


def test_a_missing_journal_behind_a_checkpoint_stops_the_start() -> None:
    disk = checkpointed()
    for path in paths(disk, "data/journal"):
        disk.files.pop(path)
    with pytest.raises(StorageDamaged, match="missing"):
        host_of(disk, 1)


def test_a_journal_that_ends_before_its_checkpoint_stops_the_start() -> None:
    host = Host(checkpoint_size=1500, journal_file_size=1 << 16)
    checkpoint(host)
    disk = host.disk.copy()
    (path,) = paths(disk, "data/journal")
    content = disk.content(path)
    content[FILE_HEADER_SIZE:] = bytes(len(content) - FILE_HEADER_SIZE)
    disk.create(path + ".spare")
    before = {name: bytes(disk.content(name)) for name in disk.files}
    for _ in range(2):
        with pytest.raises(StorageDamaged, match="of the checkpoint is missing") as raised:
            Host(disk)
        assert (raised.value.file, raised.value.offset) == (path, FILE_HEADER_SIZE)
    assert {name: bytes(disk.content(name)) for name in disk.files} == before


def test_a_damaged_catalog_stops_the_start_or_changes_nothing() -> None:
    whole = checkpointed()
    expected = host_of(whole.copy(), 1).contents("l")
    random_ = random.Random(0)
    stopped = 0
    for _ in range(300):
        disk = whole.copy()
        content = disk.content(CATALOG)
        content[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
        try:
            host = host_of(disk, 1)
        except StorageDamaged:
            stopped += 1
        else:
            # The bit is in a part of the file that holds nothing.
            assert host.contents("l") == expected
    assert stopped > 10


def test_a_catalog_of_another_version_is_refused() -> None:
    disk = checkpointed()
    host = host_of(disk.copy(), 1)
    database = host.disk.open_database(CATALOG)
    database.connection.execute("PRAGMA user_version = 2")
    database.commit()
    with pytest.raises(StorageVersionMismatch, match="format 2, this version reads 1"):
        host_of(host.disk.copy(), 2)


def test_files_that_a_checkpoint_left_behind_are_removed_at_the_start() -> None:
    disk = checkpointed()
    stray = "data/segments/00000000000000ff.segment"
    for path in (stray, stray + ".tmp", "data/journal/0000000000000001.journal.spare"):
        disk.create(path)
    host = host_of(disk, 1)
    assert stray not in host.disk.files
    assert not any(path.endswith((".tmp", ".spare")) for path in host.disk.files)


def test_many_starts_do_not_pile_up_journal_files() -> None:
    disk = SimulatedDisk()
    for life in range(60):
        host = Host(disk, seed=life)
        host.storage.log("l").append(b"x")
        host.commit()
        disk = host.disk.copy()
        assert len(paths(disk, "data/journal")) <= 20
    assert len(Host(disk, seed=99).contents("l")) == 60


def test_numbers_of_removed_logs_are_not_used_again() -> None:
    host = host_of()
    host.storage.log("a").append(b"x")
    host.storage.drop_log("a")
    checkpoint(host)
    again = host_of(host.disk.copy(), 1)
    again.storage.log("b").append(b"y")
    again.commit()
    assert host_of(again.disk.copy(), 2).contents("b") == {0: (b"y", b"")}
    assert again.storage.log("b").number == 2  # type: ignore[attr-defined]


# When nothing is to do


def drained(host: Host) -> Host:
    """A backlog went to segments, and was consumed after that."""
    log = host.storage.log("queue")
    for _ in range(2 * CHUNK_RECORDS):
        log.append(b"x")
    checkpoint(host)
    assert paths(host.disk, "data/segments")
    log.remove(0, log.next_offset - 1)
    host.commit()
    return host


def idle(host: Host, ticks: int) -> None:
    for _ in range(ticks):
        host.storage.tidy()
        host.commit()


@pytest.mark.parametrize("restarts", [False, True])
def test_an_idle_storage_removes_the_segments_of_a_backlog_that_is_gone(restarts: bool) -> None:
    host = drained(host_of())
    if restarts:
        host.storage.close()
        host = Host(host.disk.power_cut(None))
    host.storage.tidy()
    host.commit()
    assert paths(host.disk, "data/segments"), "it may be busy still"
    idle(host, 2)
    assert paths(host.disk, "data/segments") == []
    assert host_of(host.disk.power_cut(None)).contents("queue") == {}


def test_an_idle_storage_has_nothing_to_do_after_that() -> None:
    host = drained(host_of())
    idle(host, 3)
    operations, wakes = len(host.disk.operations), host.wakes
    idle(host, 20)
    assert (len(host.disk.operations), host.wakes) == (operations, wakes)


def test_segments_that_hold_something_are_no_reason_to_be_busy() -> None:
    host = host_of()
    log = host.storage.log("queue")
    for _ in range(2 * CHUNK_RECORDS):
        log.append(b"x")
    checkpoint(host)
    log.remove(0, CHUNK_RECORDS)
    host.commit()
    operations = len(host.disk.operations)
    idle(host, 20)
    assert len(host.disk.operations) == operations


def test_a_storage_that_is_in_use_is_left_to_its_checkpoints() -> None:
    host = drained(host_of())
    operations = len(host.disk.operations)
    for number in range(10):
        host.storage.table("t").put(b"%d" % number, b"")
        host.commit()
        host.storage.tidy()
        host.commit()
    assert not any(each.kind == "database" for each in host.disk.operations[operations:])


def test_a_checkpoint_that_does_not_fit_is_not_tried_again_while_idle() -> None:
    host = drained(host_of())
    host.disk.capacity = host.disk.used()
    idle(host, 2)
    operations = len(host.disk.operations)
    idle(host, 20)
    assert len(host.disk.operations) == operations
    assert not host.errors


# Rows


def rows_in_transactions(host: Host) -> list[list[bytes]]:
    """The keys of a table ``t`` that each transaction of the catalog has written since the one
    before it, as the files say.
    """
    found: list[list[bytes]] = []
    before: dict[bytes, bytes] = {}
    for operation in host.disk.operations:
        if operation.kind != "database" or operation.path != CATALOG:
            continue
        database = SimulatedDisk().open_database("x")
        database.connection.deserialize(operation.data)
        (number,) = database.connection.execute(
            "SELECT coalesce(max(number), 0) FROM key_table WHERE name = 't'"
        ).fetchone()
        query = "SELECT key, value FROM key_value WHERE key_table = ? ORDER BY key"
        rows = dict(database.connection.execute(query, (number,)))
        database.close()
        keys = {key for key in rows.keys() | before.keys() if rows.get(key) != before.get(key)}
        found.append(sorted(keys))
        before = rows
    return found


def fill(host: Host, count: int) -> None:
    """Change rows, in no order."""
    numbers = list(range(count))
    random.Random(0).shuffle(numbers)
    table = host.storage.table("t")
    for number in numbers:
        table.put(b"%06d" % number, b"value %d" % number)


def test_a_transaction_of_the_catalog_has_a_bounded_number_of_rows_in_key_order() -> None:
    host = Host(checkpoint_size=1 << 16, checkpoint_rows=1000)
    fill(host, 10_500)
    host.commit()
    written = [keys for keys in rows_in_transactions(host) if keys]
    assert [len(keys) for keys in written] == [1000] * 10 + [500]
    assert [key for keys in written for key in keys] == [b"%06d" % n for n in range(10_500)]
    again = Host(host.disk.power_cut(None), seed=1)
    assert len(again.storage.table("t")) == 10_500


def transactions(host: Host) -> int:
    """How many the catalog has made, behind the first one of a new directory."""
    return sum(operation.path == CATALOG for operation in host.disk.operations) - 1


def test_no_turn_looks_at_many_rows() -> None:
    """In the order of their keys, each of them is somewhere else in memory."""
    host = Host(checkpoint_size=1 << 16)
    fill(host, 10_000)
    turns = 0
    while not has_checkpointed(host):
        host.storage.commit()
        host.step()
        turns += 1
    assert turns >= 20


def test_messages_need_not_wait_for_the_rows_of_a_checkpoint() -> None:
    """What is published while many rows are written goes to segments between them: nothing waits
    for the disk for which publishers would have to be paused.
    """
    size = 1 << 19
    host = Host(checkpoint_size=size, checkpoint_rows=200, journal_file_size=1 << 17)
    fill(host, 16_000)
    log = host.storage.log("l")
    published = 0
    while transactions(host) < 80:
        log.append(b"x" * (size // 100))
        published += size // 100
        host.storage.commit()
        # Each worker does one work, so at least one batch becomes durable beside each of the
        # checkpoint's.
        host.step()
        assert host.storage.pending_bytes <= size // 100
    assert published > 2 * size
    assert sum(path.endswith(".segment") for path in host.disk.files) > 1
    host.commit()
    again = Host(host.disk.power_cut(None), seed=1)
    assert len(again.storage.table("t")) == 16_000
    assert len(again.contents("l")) == log.next_offset


def test_the_journal_goes_once_the_last_row_is_in_the_catalog() -> None:
    host = Host(checkpoint_size=1 << 14, checkpoint_rows=100, journal_file_size=1 << 12)
    fill(host, 1000)
    first = paths(host.disk, "data/journal")[0]
    while transactions(host) < 10:
        assert first in host.disk.files
        host.storage.commit()
        host.step()
    host.commit()
    assert first not in host.disk.files


def test_a_journal_that_waits_for_rows_is_bounded_by_whoever_heeds_the_count() -> None:
    size = 10_000
    host = Host(checkpoint_size=size, checkpoint_rows=1)
    fill(host, 1000)
    log = host.storage.log("l")
    most = 0
    for _ in range(200):
        if host.storage.pending_bytes <= size:
            log.append(b"x" * 1000)
        host.storage.commit()
        host.step()
        used = sum(
            len(host.disk.content(path))
            for path in paths(host.disk, "data/journal")
            if path.endswith(".journal")
        )
        most = max(most, used)
    assert 7 * size < most < 12 * size
    host.commit()
    assert host.storage.pending_bytes == 0


def test_a_row_that_comes_and_goes_between_two_checkpoints_leaves_nothing_for_them() -> None:
    """There may be millions, such as packet identifiers, until the journal is full."""
    changes = Changes()
    table = DiskTable(1, "t", changes)
    for number in range(1000):
        table.put(b"%d" % number, b"value")
        table.put(b"%d" % number, b"another")
        table.delete(b"%d" % number)
    assert changes.tables == [table], "once, however often"
    assert table.take_changed() == (set(), set())


def test_a_log_that_comes_and_goes_between_two_checkpoints_is_not_kept_for_them() -> None:
    host = Host(checkpoint_size=1 << 20)
    for number in range(10):
        name = f"short-lived-{number}"
        host.storage.log(name).append(b"record")
        host.commit()
        host.storage.drop_log(name)
        host.commit()
    gc.collect()
    logs = [found.name for found in gc.get_objects() if type(found) is DiskLog]
    assert not [name for name in logs if name.startswith("short-lived")]


def test_a_row_that_the_catalog_has_is_looked_at_however_it_came_and_went_since() -> None:
    changes = Changes()
    table = DiskTable(1, "t", changes)
    table.load(b"key", b"value")
    for _ in range(2):
        table.delete(b"key")
        table.put(b"key", b"again")
    table.delete(b"key")
    assert table.take_changed() == ({b"key"}, set())


def test_a_row_that_comes_and_goes_while_a_checkpoint_looks_at_it_does_not_come_back() -> None:
    """The catalog gets it between the two, and no journal has its end any more after the next."""
    host = Host(checkpoint_size=1 << 20, checkpoint_rows=100)
    table = host.storage.table("t")
    fill(host, 1000)
    host.storage.ask_for_checkpoint()
    host.commit()
    for number in range(1000):
        table.delete(b"%06d" % number)
    host.storage.ask_for_checkpoint()
    begun = transactions(host)
    host.storage.commit()
    for number in range(1000):
        table.put(b"%06d" % number, b"new")
    while transactions(host) < begun + 5:
        host.storage.commit()
        host.step()
    for number in range(1000):
        table.delete(b"%06d" % number)
    host.commit()
    assert any(rows_in_transactions(host)[begun + 1 : begun + 5]), "they were seen meanwhile"
    host.storage.ask_for_checkpoint()
    host.commit()
    assert not any('INSERT INTO "key_value"' in line for line in dump(host.disk, CATALOG))
    again = Host(host.disk.power_cut(None), seed=1)
    assert len(again.storage.table("t")) == 0


def test_a_crash_between_the_portions_of_rows_loses_nothing_and_brings_nothing_back() -> None:
    """What is published, replaced and removed meanwhile neither."""
    host = Host(checkpoint_size=1500, checkpoint_rows=7, journal_file_size=900, memory_size=600)
    table, log = host.storage.table("t"), host.storage.log("l")
    fill(host, 100)
    host.storage.log("gone").append(b"x")
    for _ in range(5):
        log.append(b"r" * 100)
    host.commit()
    fill(host, 50)
    host.storage.commit()
    disk = host.disk.copy()
    start = len(host.disk.operations)
    states: dict[int, tuple[dict[bytes, bytes], list[int], list[str]]] = {}
    durable: list[int] = []
    for number in range(100):
        table.put(b"%06d" % number, b"new")
        table.delete(b"%06d" % (99 - number))
        log.append(b"r" * 100)
        log.remove(number, number)
        if number == 30:
            host.storage.drop_log("gone")
        states[host.storage.write_batch] = (
            dict(table.items()),
            list(host.contents("l")),
            sorted(host.storage.log_names()),
        )
        host.storage.commit()
        host.step()
        durable += [host.storage.durable] * (len(host.disk.operations) - start - len(durable))
    assert len([keys for keys in rows_in_transactions(host) if keys]) > 20
    random_ = random.Random(0)
    recovered = 0
    for at_least, operation in zip(durable, host.disk.operations[start:], strict=True):
        disk.apply(operation)
        for crashed in (disk.copy(), disk.power_cut(random_)):
            again = Host(crashed, seed=1)
            last = again.storage.durable - 1
            assert last >= at_least - 1
            if last in states:
                recovered += 1
                rows, offsets, names = states[last]
                assert dict(again.storage.table("t").items()) == rows
                assert list(again.contents("l")) == offsets
                assert sorted(again.storage.log_names()) == names
    assert recovered > 100


def test_rows_that_are_in_the_catalog_are_not_written_again_after_a_restart() -> None:
    """The journal has them still, as long as the last row is not in the catalog."""
    host = Host(checkpoint_size=1 << 14, checkpoint_rows=100, journal_file_size=1 << 12)
    fill(host, 1000)
    while transactions(host) < 6:
        host.storage.commit()
        host.step()
    written = {key for keys in rows_in_transactions(host) for key in keys}
    assert 500 <= len(written) < 1000
    restarted = Host(
        host.disk.power_cut(None),
        seed=1,
        checkpoint_size=1 << 14,
        checkpoint_rows=100,
        journal_file_size=1 << 12,
    )
    table = restarted.storage.table("t")
    changed = min(written)
    table.put(changed, b"new")
    restarted.commit()
    expected = {b"%06d" % number for number in range(1000)} - written | {changed}
    assert transactions(restarted) + 1 == -(-len(expected) // 100)
    assert dict(host.storage.table("t").items()) | {changed: b"new"} == dict(table.items())
    again = Host(restarted.disk.power_cut(None), seed=2)
    assert dict(again.storage.table("t").items()) == dict(table.items())


def test_rows_that_did_not_fit_on_a_full_disk_are_written_later() -> None:
    host = Host(checkpoint_size=1500, checkpoint_rows=10, journal_file_size=900)
    fill(host, 25)
    failures = [3, 2]

    def fail(operation: Operation) -> None:
        if operation.path == CATALOG and operation.kind == "database" and failures:
            failures[0] -= 1
            if failures[0] == 0:
                failures.pop(0)
                raise full_database()

    host.disk.before = fail
    for _ in range(20):
        host.storage.table("filler").put(b"key", bytes(600))
        host.commit()
    assert not failures
    assert not host.errors
    written = [key for keys in rows_in_transactions(host) for key in keys]
    assert written == [b"%06d" % number for number in range(25)]
    assert dump(host.disk, COPY) == dump(host.disk, CATALOG)
