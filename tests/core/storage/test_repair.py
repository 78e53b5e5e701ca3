"""Inspection and repair: whatever is damaged is found, kept aside, and said; the rest is served."""

from __future__ import annotations

import random
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from tests.support.simulated import Host, SimulatedDisk
from trivium.storage.errors import StorageDamaged, StorageError, StorageVersionMismatch
from trivium.storage.journal.journal_files import BATCH_HEADER_SIZE, FILE_HEADER_SIZE
from trivium.storage.repair.inspected_journal import UNKNOWN
from trivium.storage.repair.inspection import COMES_BACK, LOST, MAYBE_LOST, Inspection, Loss
from trivium.storage.repair.repair import repair

CATALOG = "data/catalog.sqlite"
COPY = "data/catalog-copy.sqlite"
QUARANTINE = "data/quarantine-1"


@dataclass
class Written:
    """A disk, everything that was ever appended, and what is removed again."""

    disk: SimulatedDisk
    appended: dict[str, dict[int, bytes]] = field(default_factory=dict)
    removed: dict[str, set[int]] = field(default_factory=dict)
    rows: dict[bytes, bytes] = field(default_factory=dict)

    def kept(self, name: str) -> dict[int, bytes]:
        return {
            at: record for at, record in self.appended[name].items() if at not in self.removed[name]
        }


def without_copy(disk: SimulatedDisk) -> SimulatedDisk:
    """For what is left to do when both files of the catalog are damaged."""
    disk.files.pop(COPY)
    return disk


def written(
    *, is_clean: bool = True, tail: int = 12, file_size: int = 900, fsync: str = "always"
) -> Written:
    """Two logs and a table: two checkpoints, several journal files behind them."""
    host = Host(
        seed=3, fsync=fsync, journal_file_size=file_size, checkpoint_size=1 << 30, memory_size=600
    )
    result = Written(host.disk)
    storage = host.storage

    def step(number: int) -> None:
        for name in ("a", "b"):
            record = b"%s %d " % (name.encode(), number) + bytes(number % 7)
            offset = storage.log(name).append(record, 3 if name == "b" else 1, b"n" * (number % 2))
            result.appended.setdefault(name, {})[offset] = record
            removed = result.removed.setdefault(name, set())
            if number % 3 == 0:
                removed.add(offset)
                storage.log(name).remove(offset, offset)
        key, value = b"k%d" % (number % 4), b"v%d" % number
        storage.table("t").put(key, value)
        result.rows[key] = value
        host.commit()

    for number in range(20):
        step(number)
        if number in (8, 15):
            storage.ask_for_checkpoint()
            host.commit()
    for number in range(20, 20 + tail):
        step(number)
    if is_clean:
        storage.close()
    result.disk = host.disk.copy()
    return result


def paths(disk: SimulatedDisk, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in disk.names(directory)]


def journals(disk: SimulatedDisk) -> list[str]:
    return [path for path in paths(disk, "data/journal") if path.endswith(".journal")]


def inspect(disk: SimulatedDisk) -> Inspection:
    return Inspection(disk, "data", lambda log, record, count: "")


def repaired(disk: SimulatedDisk) -> Inspection:
    inspection = inspect(disk)
    repair(inspection, QUARANTINE, ["report"], random.Random(7).randbytes)
    return inspection


def content(host: Host, name: str) -> dict[int, bytes]:
    return {at: record for at, (record, _) in host.contents(name).items()}


def is_told(losses: list[Loss], names: tuple[str, ...], offset: int) -> bool:
    return any(
        loss.log in names
        and loss.fate != COMES_BACK
        and loss.first <= offset
        and (loss.last == UNKNOWN or offset <= loss.last)
        for loss in losses
    )


def assert_nothing_is_dropped_silently(before: Written, disk: SimulatedDisk) -> Inspection:
    inspection = inspect(disk)
    if inspection.damages:
        repair(inspection, QUARANTINE, ["report"], random.Random(7).randbytes)
    assert inspect(disk).damages == []
    host = Host(disk, seed=8)
    for name, appended in before.appended.items():
        found = content(host, name) if name in host.storage.log_names() else {}
        assert found.items() <= appended.items()
        missing = before.kept(name).keys() - found.keys()
        untold = [at for at in sorted(missing) if not is_told(inspection.losses, (name, ""), at)]
        assert untold == [], (name, inspection.damages, inspection.losses)
        if found:
            assert (
                host.storage.log(name).next_offset >= max(appended) + 1
                or missing
                or inspection.notes
            )
    return inspection


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_directory_in_order_has_no_damage(is_clean: bool) -> None:
    before = written(is_clean=is_clean)
    content_before = {path: bytes(before.disk.content(path)) for path in before.disk.files}
    inspection = inspect(before.disk)
    assert (inspection.damages, inspection.losses) == ([], [])
    assert [(log.name, len(log), log.next_offset) for log in inspection.logs()] == [
        ("a", len(before.kept("a")), 32),
        ("b", len(before.kept("b")), 96),
    ]
    assert {path: bytes(before.disk.content(path)) for path in before.disk.files} == content_before


def test_a_torn_end_is_no_damage_but_noted() -> None:
    before = written(is_clean=False)
    path = journals(before.disk)[-1]
    data = before.disk.content(path)
    end = data.rfind(bytes(data[32:40]))
    data[end + BATCH_HEADER_SIZE + 3 :] = bytes(len(data) - end - BATCH_HEADER_SIZE - 3)
    inspection = inspect(before.disk)
    assert inspection.damages == []
    assert f"{path}: the last write was interrupted at byte {end}" in inspection.notes[0]


def test_any_flipped_bit_of_the_journal_is_found_and_nothing_is_dropped_silently() -> None:
    before = written()
    random_ = random.Random(1)
    for path in journals(before.disk):
        size = len(before.disk.content(path))
        for position in sorted(random_.sample(range(size), 60)):
            disk = before.disk.copy()
            disk.content(path)[position] ^= 1 << random_.randrange(8)
            assert_nothing_is_dropped_silently(before, disk)


def test_any_flipped_bit_of_a_segment_is_found_and_nothing_is_dropped_silently() -> None:
    before = written()
    for path in paths(before.disk, "data/segments"):
        for position in range(0, len(before.disk.content(path)), 3):
            disk = before.disk.copy()
            disk.content(path)[position] ^= 1 << position % 8
            damages = assert_nothing_is_dropped_silently(before, disk).damages
            assert [damage.file for damage in damages] == [path]


def test_any_flipped_bit_of_the_catalog_is_found_and_nothing_is_dropped_silently() -> None:
    before = written()
    without_copy(before.disk)
    random_ = random.Random(1)
    size = len(before.disk.content(CATALOG))
    found = 0
    for _ in range(400):
        disk = before.disk.copy()
        disk.content(CATALOG)[random_.randrange(size)] ^= 1 << random_.randrange(8)
        found += assert_nothing_is_dropped_silently(before, disk).damages != []
    assert found > 5


def test_any_page_of_the_catalog_may_be_overwritten() -> None:
    before = written()
    without_copy(before.disk)
    size = len(before.disk.content(CATALOG))
    for start in range(0, size, 4096):
        disk = before.disk.copy()
        disk.content(CATALOG)[start : start + 4096] = random.Random(start).randbytes(4096)
        inspection = assert_nothing_is_dropped_silently(before, disk)
        assert CATALOG in {damage.file for damage in inspection.damages}


def wide(size: int = 100) -> Host:
    """120 logs and 120 rows, of which some were removed; the catalog has many pages."""
    host = Host(seed=3, checkpoint_size=1 << 30, memory_size=0, journal_file_size=4096)
    for number in range(120):
        for record in (b"gone", b"kept %d" % number):
            host.storage.log(f"log {number}").append(record)
        host.storage.log(f"log {number}").skip(5)
        host.storage.table("t").put(b"%d" % number, b"v" * (number % 25 * size))
    for _ in range(2):
        host.checkpoint()
        for number in range(120):
            host.storage.log(f"log {number}").remove(0, 0)
    host.storage.close()
    return host


def rows_of(disk: SimulatedDisk, path: str) -> list[str]:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(bytes(disk.content(path)))
    found = list(connection.iterdump())
    connection.close()
    return found


@pytest.mark.parametrize("path", [CATALOG, COPY])
def test_whatever_becomes_of_one_file_of_the_catalog_costs_nothing(path: str) -> None:
    before = written()
    size = len(before.disk.content(path))
    whole = bytes(before.disk.content(path))
    damaged = [None, b"", whole[:5000], bytes(size)]
    for start in range(0, size, 4096):
        noise = random.Random(start).randbytes(4096)
        damaged.append(whole[:start] + noise + whole[start + 4096 :])
    for left in damaged:
        disk = before.disk.copy()
        if left is None:
            disk.files.pop(path)
        else:
            disk.content(path)[:] = left
        inspection = inspect(disk)
        assert inspection.losses == []
        assert {damage.file for damage in inspection.damages} <= {path}
        if inspection.damages:
            repair(inspection, QUARANTINE, ["report"], random.Random(7).randbytes)
        else:
            assert path == COPY
        host = Host(disk, seed=8)
        for name in ("a", "b"):
            assert content(host, name) == before.kept(name)
        assert dict(host.storage.table("t").items()) == before.rows
        assert rows_of(host.disk, COPY) == rows_of(host.disk, CATALOG)


@pytest.mark.parametrize("path", [CATALOG, COPY])
def test_any_flipped_bit_of_one_file_of_the_catalog_costs_nothing(path: str) -> None:
    """SQLite does not notice one in a value: the checksums of the rows do."""
    before = written()
    random_ = random.Random(2)
    found = 0
    for at in random_.sample(range(len(before.disk.content(path))), 300):
        disk = changed(before.disk, path, at, 1 << random_.randrange(8))
        inspection = inspect(disk)
        assert inspection.losses == []
        if inspection.damages:
            found += 1
            if path == CATALOG:
                with pytest.raises(StorageError):
                    Host(disk.copy(), seed=8)
            repair(inspection, QUARANTINE, ["report"], random.Random(7).randbytes)
        host = Host(disk, seed=8)
        for name in ("a", "b"):
            assert content(host, name) == before.kept(name)
        assert dict(host.storage.table("t").items()) == before.rows
    assert found > 5


def test_a_log_without_its_row_goes_on_far_behind_its_last_chunk() -> None:
    host = Host(seed=3, checkpoint_size=1 << 30, memory_size=0, journal_file_size=4096)
    for _ in range(3):
        host.storage.log("l").skip(1 << 21)
        host.storage.log("l").append(bytes(3000))
        host.checkpoint()
    disk = without_copy(host.disk.copy())
    disk.files.pop(CATALOG)
    repaired(disk)
    assert Host(disk, seed=8).storage.log("l").next_offset >= (3 << 21) + (1 << 20)


def test_pages_of_both_files_of_the_catalog_make_up_for_each_other() -> None:
    # No value goes on in another page.
    disk = wide(20).disk
    for start in range(0, len(disk.content(CATALOG)), 4096):
        path = COPY if start % 8192 else CATALOG
        disk.content(path)[start : start + 4096] = bytes(4096)
    repaired(disk)
    host = Host(disk, seed=8)
    assert len(host.storage.table("t")) == 120
    for number in range(120):
        assert content(host, f"log {number}")[1] == b"kept %d" % number


def test_a_damaged_header_of_the_catalog_costs_nothing() -> None:
    whole = without_copy(wide().disk)
    for position in range(100):
        disk = changed(whole, CATALOG, position, 1 << position % 8)
        inspection = inspect(disk)
        assert inspection.losses == []
        if inspection.damages:
            repair(inspection, QUARANTINE, ["report"], random.Random(7).randbytes)
        host = Host(disk, seed=8)
        assert len(host.storage.log_names()) == len(host.storage.table("t")) == 120
        assert all(len(log) == 1 for log in map(host.storage.log, host.storage.log_names()))


def test_a_damaged_page_of_the_catalog_costs_no_more_than_it_held() -> None:
    """Never a record; of the rows, those of the page, and of values that went on there."""
    whole = without_copy(wide().disk)
    size = len(whole.content(CATALOG))
    lost = 0
    for start in range(0, size, 4096):
        for content_ in (bytes(4096), random.Random(start).randbytes(4096)):
            disk = whole.copy()
            disk.content(CATALOG)[start : start + 4096] = content_
            inspection = repaired(disk)
            assert inspection.damages
            assert {loss.fate for loss in inspection.losses} <= {COMES_BACK}
            host = Host(disk, seed=8)
            for number in range(120):
                assert content(host, f"log {number}")[1] == b"kept %d" % number
                assert host.storage.log(f"log {number}").next_offset >= 7
            rows = dict(host.storage.table("t").items())
            assert all(value == b"v" * (int(key) % 25 * 100) for key, value in rows.items())
            lost += 120 - len(rows)
            assert len(rows) > 60
    assert lost > 0


def test_a_lost_catalog_costs_no_record() -> None:
    host = wide()
    without_copy(host.disk).files.pop(CATALOG)
    repaired(host.disk)
    again = Host(host.disk, seed=8)
    for number in range(120):
        assert content(again, f"log {number}")[1] == b"kept %d" % number
        assert again.storage.log(f"log {number}").next_offset >= 7


def test_blocks_of_a_log_that_was_removed_do_not_pass_for_those_of_its_successor() -> None:
    host = Host(seed=3, checkpoint_size=1 << 30, memory_size=0)
    for record in (b"old", b"new"):
        host.storage.drop_log("l")
        host.storage.log("l").append(record)
        host.storage.log("other").append(record)
        host.checkpoint()
    host.storage.close()
    without_copy(host.disk).files.pop(CATALOG)
    inspection = repaired(host.disk)
    assert [log.name for log in inspection.logs()] == ["l", "other"]
    again = Host(host.disk, seed=8)
    assert content(again, "l") == {0: b"new"}
    assert content(again, "other") == {0: b"old", 1: b"new"}


def test_any_missing_file_is_found_and_nothing_is_dropped_silently() -> None:
    before = written()
    for path in [*journals(before.disk), *paths(before.disk, "data/segments"), CATALOG]:
        disk = before.disk.copy()
        disk.files.pop(path)
        inspection = assert_nothing_is_dropped_silently(before, disk)
        assert path in {damage.file for damage in inspection.damages}


def test_a_missing_last_journal_file_that_the_checkpoint_needs() -> None:
    before = written(tail=0)
    for path in journals(before.disk):
        before.disk.files.pop(path)
    inspection = assert_nothing_is_dropped_silently(before, before.disk)
    assert "missing" in str(inspection.damages[0])
    assert "batches from 17 on" in inspection.notes[0]


@pytest.mark.parametrize("cut", [0, 10, FILE_HEADER_SIZE, 300])
def test_any_short_file_is_found_and_nothing_is_dropped_silently(cut: int) -> None:
    before = written()
    for path in [*journals(before.disk), *paths(before.disk, "data/segments"), CATALOG]:
        disk = before.disk.copy()
        del disk.content(path)[cut:]
        assert assert_nothing_is_dropped_silently(before, disk).damages


def test_a_damaged_payload_costs_exactly_its_batch() -> None:
    before = written()
    disk = before.disk
    path = next(path for path in journals(disk) if b"a 25 " in disk.content(path))
    at = disk.content(path).index(b"a 25 ")
    disk.content(path)[at] ^= 1
    inspection = repaired(disk)
    assert [damage.file for damage in inspection.damages] == [path]
    assert [
        (loss.log, loss.first, loss.last, loss.records, loss.fate) for loss in inspection.losses
    ] == [
        ("a", 25, 25, 1, LOST),
        ("b", 75, 77, 1, LOST),
    ]
    host = Host(disk, seed=8)
    kept = before.kept("a")
    del kept[25]
    assert content(host, "a") == kept
    assert dict(host.storage.table("t").items()).keys() == before.rows.keys()


def test_a_journal_file_without_its_header_costs_no_batch() -> None:
    before = written()
    for path in journals(before.disk):
        disk = before.disk.copy()
        disk.content(path)[:FILE_HEADER_SIZE] = bytes(FILE_HEADER_SIZE)
        inspection = repaired(disk)
        assert [damage.file for damage in inspection.damages] == [path]
        assert inspection.losses == []
        host = Host(disk, seed=8)
        assert {name: content(host, name) for name in ("a", "b")} == {
            name: before.kept(name) for name in ("a", "b")
        }


def test_a_lost_end_of_the_journal_is_listed_by_log_and_offset() -> None:
    before = written()
    before.disk.files.pop(journals(before.disk)[-1])
    inspection = inspect(before.disk)
    found = {log.name: log.next_offset for log in inspection.logs()}
    assert [(loss.log, loss.first, loss.last, loss.fate) for loss in inspection.losses] == [
        ("a", found["a"], UNKNOWN, MAYBE_LOST),
        ("b", found["b"], UNKNOWN, MAYBE_LOST),
    ]
    repair(inspection, QUARANTINE, ["report"], random.Random(7).randbytes)
    host = Host(before.disk, seed=8)
    assert host.storage.log("a").next_offset == found["a"] + (1 << 20)


def test_what_was_removed_behind_a_damaged_batch_is_not_lost() -> None:
    host = Host(seed=3, journal_file_size=1 << 16)
    log = host.storage.log("l")
    host.commit()
    for number in range(10):
        log.append(b"record %d" % number)
    host.commit()
    log.append(b"kept")
    log.remove(2, 4)
    host.commit()
    log.truncate(2)
    log.remove(9, 9)
    host.commit()
    host.storage.close()
    path = journals(host.disk)[0]
    host.disk.content(path)[host.disk.content(path).index(b"record 5")] ^= 1
    inspection = repaired(host.disk)
    assert [(loss.first, loss.last, loss.fate) for loss in inspection.losses] == [(5, 8, LOST)]


def test_a_damaged_block_costs_exactly_its_chunk() -> None:
    before = written()
    path = paths(before.disk, "data/segments")[0]
    block = before.disk.content(path)
    block[block.index(b"a 1 ")] ^= 1
    inspection = repaired(before.disk)
    (loss,) = inspection.losses
    assert (loss.log, loss.first, loss.fate) == ("a", 1, LOST)
    host = Host(before.disk, seed=8)
    kept = {at: each for at, each in before.kept("a").items() if not 1 <= at <= loss.last}
    assert content(host, "a") == kept
    assert content(host, "b") == before.kept("b")
    assert dict(host.storage.table("t").items()) == before.rows


def test_a_row_of_a_chunk_that_is_wrong_brings_its_records_back() -> None:
    before = written()
    without_copy(before.disk)
    data = before.disk.content(CATALOG)
    host = Host(before.disk.copy(), seed=5)
    chunk = host.storage.log("a").chunks()[0]  # type: ignore[attr-defined]
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(bytes(data))
    connection.execute(
        "UPDATE chunk SET removed = x'02' WHERE log = 1 AND first = ?", (chunk.first,)
    )
    data[:] = connection.serialize()
    inspection = repaired(before.disk)
    (loss,) = inspection.losses
    assert (loss.log, loss.first, loss.fate) == ("a", chunk.first, COMES_BACK)
    found = content(Host(before.disk, seed=8), "a")
    assert before.kept("a").items() <= found.items() <= before.appended["a"].items()


def test_a_record_without_meaning_is_taken_out() -> None:
    before = written()

    def check(log: str, record: bytes, count: int) -> str:
        return "a fault" if record.startswith((b"a 1 ", b"b 25 ")) else ""

    inspection = Inspection(before.disk, "data", check)
    assert len(inspection.damages) == 2
    repair(inspection, QUARANTINE, ["report"], random.Random(7).randbytes)
    assert Inspection(before.disk, "data", check).damages == []
    assert [(loss.log, loss.first, loss.last) for loss in inspection.losses] == [
        ("a", 1, 1),
        ("b", 75, 77),
    ]
    records = {
        path: bytes(before.disk.content(path))
        for path in paths(before.disk, f"{QUARANTINE}/records")
    }
    assert records == {
        f"{QUARANTINE}/records/1-1": before.appended["a"][1],
        f"{QUARANTINE}/records/2-75": before.appended["b"][75],
    }


def test_what_is_damaged_is_kept_in_the_quarantine() -> None:
    before = written()
    path = journals(before.disk)[1]
    before.disk.content(path)[60] ^= 1
    damaged = bytes(before.disk.content(path))
    repaired(before.disk)
    assert before.disk.content(path.replace("data", QUARANTINE, 1)) == damaged
    assert before.disk.content(f"{QUARANTINE}/report.txt") == b"report\n"
    survivor = before.disk.power_cut(None)
    assert survivor.content(path.replace("data", QUARANTINE, 1)) == damaged


def flip_journal(disk: SimulatedDisk) -> None:
    disk.content(journals(disk)[1])[70] ^= 1


def flip_segment(disk: SimulatedDisk) -> None:
    disk.content(paths(disk, "data/segments")[0])[90] ^= 1


def break_catalog(disk: SimulatedDisk) -> None:
    without_copy(disk).content(CATALOG)[0] ^= 1


@pytest.mark.parametrize("damage", [flip_journal, flip_segment, break_catalog])
def test_a_repair_may_be_interrupted_at_any_operation(
    damage: Callable[[SimulatedDisk], None],
) -> None:
    before = written()
    damage(before.disk)
    for inode in before.disk.inodes.values():
        inode.durable = bytes(inode.content)
        inode.pending.clear()
    start = before.disk.copy()
    done = before.disk.copy()
    repaired(done)
    host = Host(done.copy(), seed=8)
    expected = {name: content(host, name) for name in host.storage.log_names()}
    rows = dict(host.storage.table("t").items())
    random_ = random.Random(0)
    disk = start.copy()
    for operation in done.operations:
        for crashed in (disk.copy(), disk.power_cut(None), disk.power_cut(random_)):
            inspection = inspect(crashed)
            if inspection.damages:
                repair(inspection, "data/quarantine-2", ["report"], random.Random(7).randbytes)
            again = Host(crashed, seed=9)
            assert {name: content(again, name) for name in again.storage.log_names()} == expected
            assert dict(again.storage.table("t").items()) == rows
        disk.apply(operation)


def test_a_repaired_directory_goes_on() -> None:
    before = written()
    break_catalog(before.disk)
    repaired(before.disk)
    host = Host(before.disk, seed=8, journal_file_size=900, checkpoint_size=1500)
    for number in range(40):
        host.storage.log("new").append(b"%d" % number)
        host.commit()
    host.storage.close()
    again = Host(host.disk.copy(), seed=9)
    assert len(again.storage.log("new")) == 40
    assert again.storage.was_clean
    assert inspect(host.disk.copy()).damages == []


def test_another_version_is_refused() -> None:
    before = written()
    header = before.disk.content(journals(before.disk)[-1])
    header[8] = 9
    header[92:96] = zlib.crc32(header[:92]).to_bytes(4, "little")
    with pytest.raises(StorageVersionMismatch):
        inspect(before.disk)


def wrong_batches(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """Each batch and trailer of each file, those among them that a checkpoint has already."""
    for path in journals(disk):
        data = bytes(disk.content(path))
        position = data.find(data[32:40], FILE_HEADER_SIZE)
        while position >= 0:
            yield changed(disk, path, position + BATCH_HEADER_SIZE - 2, 1)
            position = data.find(data[32:40], position + 1)


def cuts(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """Each file cut at many lengths, the ends of batches among them."""
    for path in journals(disk):
        data = bytes(disk.content(path))
        lengths = {0, 47, FILE_HEADER_SIZE, *range(FILE_HEADER_SIZE, min(len(data), 4000), 31)}
        position = data.find(data[32:40], FILE_HEADER_SIZE)
        while position >= 0:
            lengths |= {position, position + BATCH_HEADER_SIZE}
            position = data.find(data[32:40], position + 1)
        for length in sorted(lengths):
            if length < len(data):
                copy = disk.copy()
                del copy.content(path)[length:]
                yield copy


def missing_files(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """Each row of files."""
    paths_ = journals(disk)
    for first in range(len(paths_)):
        for behind in range(first + 1, len(paths_) + 1):
            copy = disk.copy()
            for path in paths_[first:behind]:
                copy.files.pop(path)
            yield copy


def zeroed(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """The beginning of each file, as a lost block leaves it."""
    for path in journals(disk):
        for size in (FILE_HEADER_SIZE, 300, 4096):
            copy = disk.copy()
            content = copy.content(path)
            size = min(size, len(content))
            content[:size] = bytes(size)
            yield copy


def swapped(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """Blocks of each file in each other's place, and batches."""
    for path in journals(disk):
        data = bytes(disk.content(path))
        starts = list(range(0, len(data) - 512, 512))
        position = data.find(data[32:40], FILE_HEADER_SIZE)
        while position >= 0:
            starts.append(position)
            position = data.find(data[32:40], position + 1)
        for one, other in pairwise(starts):
            size = min(512, abs(other - one), len(data) - max(one, other))
            copy = disk.copy()
            copy.content(path)[one : one + size] = data[other : other + size]
            copy.content(path)[other : other + size] = data[one : one + size]
            if copy.content(path) != data:
                yield copy


def changed(disk: SimulatedDisk, path: str, position: int, bits: int) -> SimulatedDisk:
    copy = disk.copy()
    copy.content(path)[position] ^= bits
    return copy


@pytest.mark.parametrize("damage", [wrong_batches, cuts, missing_files, zeroed, swapped])
@pytest.mark.parametrize("fsync", ["always", "every_n:3", "never"])
@pytest.mark.parametrize("file_size", [900, 1 << 14])
@pytest.mark.parametrize("is_clean", [True, False])
def test_what_is_damage_to_a_start_is_damage_to_an_inspection(
    is_clean: bool, file_size: int, fsync: str, damage: Callable[..., Iterator[SimulatedDisk]]
) -> None:
    """And nothing else is; and whatever it is, a repair says what is lost.

    What is no damage costs nothing, but for the end that a killed process was writing.
    """
    before = written(is_clean=is_clean, file_size=file_size, fsync=fsync)
    for disk in damage(before.disk):
        damages = inspect(disk).damages
        try:
            host = Host(disk.copy(), seed=1)
        except StorageDamaged:
            assert_nothing_is_dropped_silently(before, disk)
        else:
            assert damages == []
            inspected = {log.name: len(log) for log in inspect(disk).logs()}
            assert inspected == {name: len(host.storage.log(name)) for name in inspected}
            if is_clean or damage not in (wrong_batches, swapped):
                for name in before.appended:
                    assert content(host, name) == before.kept(name)


def test_a_start_names_what_the_inspection_names() -> None:
    """The first damage that stops a start is among those that an inspection finds."""
    before = written()
    random_ = random.Random(4)
    for path in [*journals(before.disk), CATALOG]:
        for position in random_.sample(range(len(before.disk.content(path))), 40):
            disk = before.disk.copy()
            disk.content(path)[position] ^= 1 << random_.randrange(8)
            try:
                Host(disk.copy(), seed=1)
            except StorageDamaged as damage:
                found = {each.file for each in inspect(disk).damages}
                if damage.file not in found:
                    pytest.fail(f"{damage} is not among {found}")
            except StorageVersionMismatch:
                continue


@pytest.mark.parametrize("path", [CATALOG, COPY])
def test_an_empty_catalog_is_damage_to_a_start_and_to_an_inspection(path: str) -> None:
    host = Host()
    host.storage.log("l").append(b"kept")
    host.commit()
    disk = host.disk.copy()
    for emptied in {CATALOG, path}:
        del disk.content(emptied)[:]
    with pytest.raises(StorageDamaged, match="it is empty") as raised:
        Host(disk.copy())
    assert raised.value.file == CATALOG
    assert CATALOG in {damage.file for damage in inspect(disk).damages}


def test_what_a_file_held_in_an_earlier_life_is_not_taken_for_its_batches() -> None:
    before = written(is_clean=False, tail=20)
    disk = before.disk.copy()
    first, *_, last = journals(disk)
    # Files are used again: behind what was written are the trailers of what was in it before.
    trailers = disk.content(first)[-2 * BATCH_HEADER_SIZE :]
    content = disk.content(last)
    content[:] = bytes(len(content)) + trailers
    inspection = assert_nothing_is_dropped_silently(before, disk)
    assert {loss.log for loss in inspection.losses if loss.last == UNKNOWN} == {"a", "b"}
