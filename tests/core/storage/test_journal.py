"""The journal's bytes, and what is read back when they are not what was written."""

from __future__ import annotations

import gc
import logging
import random
import zlib

import pytest

from tests.support.simulated import SYNCS, Host, SimulatedDisk
from trivium.storage.errors import StorageDamaged, StorageVersionMismatch
from trivium.storage.journal.journal import PIECE_SIZE, FsyncPolicy
from trivium.storage.journal.journal_files import (
    BATCH_HEADER_SIZE,
    FILE_HEADER_SIZE,
    TRAILER,
    JournalFile,
    batch_header,
    file_name,
    file_number,
)

FIRST = f"data/journal/{file_name(1)}"
SECOND = f"data/journal/{file_name(2)}"

#: Records of a batch that is written in pieces, and their size: three pieces.
LARGE_BATCH = 320
LARGE_BATCH_SIZE = PIECE_SIZE // 100


def written(batches: int, *, close: bool = False, **options: int) -> SimulatedDisk:
    """A disk with a log ``l`` that got one record in each batch after the first."""
    host = Host(journal_file_size=options.get("journal_file_size", 4096))
    for number in range(batches):
        host.storage.log("l").append(b"record %d" % number)
        host.commit()
    if close:
        host.storage.close()
    return host.disk.copy()


def positions(disk: SimulatedDisk, path: str) -> list[int]:
    """Where the batches of a file begin, and where the last one ends."""
    data = disk.content(path)
    found = [FILE_HEADER_SIZE]
    marker = data[32:40]
    while data[found[-1] : found[-1] + 8] == marker:
        if data[found[-1] + 32] & TRAILER:
            break
        length = int.from_bytes(data[found[-1] + 24 : found[-1] + 32], "little")
        found.append(found[-1] + BATCH_HEADER_SIZE + length)
    return found


def records(disk: SimulatedDisk) -> int:
    return len(Host(disk, seed=9).storage.log("l"))


def test_the_format_is_what_the_document_says() -> None:
    """docs/storage-format.md, "Example"."""
    host = Host(journal_file_size=0)
    log = host.storage.log("q")
    log.append(b"hello", 1, b"n")
    log.remove(0, 0)
    host.storage.table("t").put(b"k", b"vv")
    host.storage.table("t").delete(b"k")
    host.commit()
    markers = random.Random(0)
    markers.randbytes(8)
    data = bytes(host.disk.content(SECOND))
    assert data[:8] == b"TRIVJRNL"
    assert data[8:12] == bytes([3, 0, 0, 0])
    assert data[16:24] == bytes([2, 0, 0, 0, 0, 0, 0, 0])
    assert data[24:32] == bytes([1, 0, 0, 0, 0, 0, 0, 0])
    assert data[32:40] == markers.randbytes(8)
    # Not encrypted, and nothing was reserved.
    assert data[40:92] == bytes(52)
    assert data[92:96] == zlib.crc32(data[:92]).to_bytes(4, "little")
    batch = data[96:]
    assert batch[:8] == data[32:40]
    assert batch[8:16] == bytes([1, 0, 0, 0, 0, 0, 0, 0])
    assert batch[16:24] == bytes([1, 0, 0, 0, 0, 0, 0, 0])
    body = batch[48:]
    assert batch[24:32] == len(body).to_bytes(8, "little")
    assert batch[32:36] == bytes(4)
    assert batch[36:40] == zlib.crc32(body).to_bytes(4, "little")
    assert batch[44:48] == zlib.crc32(batch[:44]).to_bytes(4, "little")
    assert body == (
        # define log 1 as "q"
        b"\x07\x00\x01\x00\x01\x00\x00\x00q"
        # append to log 1 at offset 0: one offset, note "n", record "hello"
        b"\x01\x00\x01\x00\x01\x00\x00\x00"
        b"\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x05\x00\x00\x00nhello"
        # remove offsets 0 to 0 of log 1
        b"\x03\x00\x00\x00\x01\x00\x00\x00"
        b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
        # define table 1 as "t"
        b"\x08\x00\x01\x00\x01\x00\x00\x00t"
        # put row "k" = "vv", then delete it
        b"\x09\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00kvv"
        b"\x0a\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00k"
    )


def test_a_file_that_is_closed_and_followed_says_so() -> None:
    """docs/storage-format.md, "Marks"."""
    host = Host(journal_file_size=4096)
    host.commit()
    live = bytes(host.disk.content(FIRST))
    assert len(live) == 4096
    assert live[80:88] == (4096).to_bytes(8, "little")
    host.storage.close()
    closed = bytes(host.disk.content(FIRST))
    end = positions(host.disk, FIRST)[-1]
    Host(host.disk, seed=1)
    followed = bytes(host.disk.content(FIRST))
    assert (len(closed), len(followed)) == (end + 48, end + 96)
    assert followed[: end + 48] == closed
    for trailer, flags in ((closed[end:], 4), (followed[end + 48 :], 8)):
        assert trailer[:8] == live[32:40]
        assert trailer[8:24] == 2 * (2).to_bytes(8, "little")
        assert trailer[24:32] == bytes(8)
        assert trailer[32:36] == flags.to_bytes(4, "little")
        assert trailer[36:44] == bytes(8)
        assert trailer[44:48] == zlib.crc32(trailer[:44]).to_bytes(4, "little")


@pytest.mark.parametrize("has_power", [True, False])
def test_a_missing_last_file_stops_the_start(has_power: bool) -> None:
    disk = written(9, journal_file_size=600)
    if not has_power:
        disk = disk.power_cut(None)
    last = max(path for path in disk.files if path.endswith(".journal"))
    disk.files.pop(last)
    with pytest.raises(StorageDamaged, match="missing") as raised:
        Host(disk)
    assert raised.value.file == last


@pytest.mark.parametrize("close", [True, False])
def test_a_last_file_cut_anywhere_stops_the_start(close: bool) -> None:
    whole = written(3, close=close)
    for cut in range(FILE_HEADER_SIZE, len(whole.content(FIRST))):
        disk = whole.copy()
        del disk.content(FIRST)[cut:]
        with pytest.raises(StorageDamaged) as raised:
            Host(disk)
        assert raised.value.file == FIRST


def test_any_damaged_bit_of_the_last_batch_of_a_clean_stop_stops_the_start() -> None:
    whole = written(3, close=True)
    start, end = positions(whole, FIRST)[-2:]
    for position in range(start, end + BATCH_HEADER_SIZE):
        disk = whole.copy()
        disk.content(FIRST)[position] ^= 1 << position % 8
        with pytest.raises(StorageDamaged):
            Host(disk)


def test_a_record_for_several_logs_is_written_once() -> None:
    host = Host()
    record = b"a record that is kept by three logs"
    for name in ("a", "b", "c"):
        host.storage.log(name).append(record)
    host.commit()
    assert host.disk.content(FIRST).count(record) == 1
    again = Host(host.disk.copy())
    for name in ("a", "b", "c"):
        assert again.contents(name) == {0: (record, b"")}


def test_a_shared_record_is_written_again_in_the_next_batch() -> None:
    host = Host()
    record = b"a record that is kept by two batches"
    host.storage.log("a").append(record)
    host.commit()
    host.storage.log("b").append(record)
    host.commit()
    assert host.disk.content(FIRST).count(record) == 2


def test_a_torn_end_is_cut_with_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    whole = written(3)
    start, end = positions(whole, FIRST)[-2:]
    for cut in range(start, end):
        disk = whole.copy()
        content = disk.content(FIRST)
        content[cut:] = bytes(len(content) - cut)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert records(disk) == 2
        assert len(caplog.records) == (1 if cut >= start + 8 else 0)
        assert len(disk.content(FIRST)) == start + 2 * BATCH_HEADER_SIZE


@pytest.mark.parametrize("index", range(4))
def test_any_damaged_bit_before_a_later_batch_stops_the_start(index: int) -> None:
    whole = written(5)
    starts = positions(whole, FIRST)
    for position in range(starts[index], starts[index + 1]):
        disk = whole.copy()
        disk.content(FIRST)[position] ^= 1 << position % 8
        with pytest.raises(StorageDamaged) as raised:
            Host(disk)
        assert (raised.value.file, raised.value.offset) == (FIRST, starts[index])
        assert f"{FIRST} is damaged at byte {starts[index]}" in str(raised.value)


def test_any_damaged_bit_of_a_file_header_stops_the_start() -> None:
    whole = written(2)
    for position in range(FILE_HEADER_SIZE):
        disk = whole.copy()
        disk.content(FIRST)[position] ^= 1 << position % 8
        with pytest.raises(StorageDamaged) as raised:
            Host(disk)
        assert (raised.value.file, raised.value.offset) == (FIRST, 0)


def test_a_damaged_start_changes_nothing_and_releases_the_lock() -> None:
    disk = written(5)
    disk.content(FIRST)[100] ^= 1
    before = {path: bytes(disk.content(path)) for path in disk.files}
    for _ in range(2):
        with pytest.raises(StorageDamaged):
            Host(disk)
    assert {path: bytes(disk.content(path)) for path in disk.files} == before


def test_a_damaged_end_of_a_file_that_is_not_the_last_stops_the_start() -> None:
    disk = written(9, journal_file_size=600)
    assert SECOND in disk.files
    start, end = positions(disk, FIRST)[-2:]
    disk.content(FIRST)[end - 1] ^= 1
    with pytest.raises(StorageDamaged) as raised:
        Host(disk)
    assert (raised.value.file, raised.value.offset) == (FIRST, start)


def test_a_short_file_that_is_not_the_last_stops_the_start() -> None:
    disk = written(9, journal_file_size=600)
    del disk.content(FIRST)[positions(disk, FIRST)[-2] :]
    with pytest.raises(StorageDamaged) as raised:
        Host(disk)
    assert raised.value.file == FIRST


@pytest.mark.parametrize("missing", [FIRST, SECOND])
def test_a_missing_file_stops_the_start(missing: str) -> None:
    disk = written(20, journal_file_size=600)
    disk.files.pop(missing)
    with pytest.raises(StorageDamaged) as raised:
        Host(disk)
    assert raised.value.file == missing


def test_a_message_that_looks_like_a_batch_is_none() -> None:
    """A torn batch whose payload holds a copy of an earlier journal is still a torn end."""
    other = Host(seed=5)
    for number in range(3):
        other.storage.log("l").append(b"record %d" % number)
        other.commit()
    host = Host(journal_file_size=1 << 16)
    host.storage.log("l").append(b"kept")
    host.commit()
    host.storage.log("l").append(bytes(other.disk.content(FIRST)))
    host.commit()
    disk = host.disk.copy()
    disk.content(FIRST)[positions(disk, FIRST)[-1] - 1] ^= 1
    assert Host(disk).contents("l") == {0: (b"kept", b"")}


def test_a_batch_without_meaning_stops_the_start() -> None:
    disk = written(1)
    start = positions(disk, FIRST)[1]
    content = disk.content(FIRST)
    content[start + BATCH_HEADER_SIZE] = 99
    body = content[start + BATCH_HEADER_SIZE : positions(disk, FIRST)[2]]
    content[start + 36 : start + 40] = zlib.crc32(body).to_bytes(4, "little")
    head = content[start : start + 44]
    content[start + 44 : start + 48] = zlib.crc32(head).to_bytes(4, "little")
    with pytest.raises(StorageDamaged, match="no meaning"):
        Host(disk)


def test_a_journal_of_another_version_is_refused() -> None:
    disk = written(1)
    content = disk.content(FIRST)
    content[8] = 4
    content[92:96] = zlib.crc32(content[:92]).to_bytes(4, "little")
    with pytest.raises(StorageVersionMismatch, match="format 4, this version reads 1 to 3"):
        Host(disk)


def test_a_batch_larger_than_a_file_is_kept_whole() -> None:
    host = Host(journal_file_size=1000)
    host.storage.log("l").append(b"x" * 5000)
    host.commit()
    host.storage.log("l").append(b"y")
    host.commit()
    assert len(Host(host.disk.copy()).storage.log("l")) == 2


def test_what_an_earlier_use_left_in_a_file_is_no_batch() -> None:
    disk = written(3)
    end = positions(disk, FIRST)[-1]
    old = Host(seed=5)
    for number in range(20):
        old.storage.log("l").append(b"old %d" % number)
        old.commit()
    disk.content(FIRST)[end:] = old.disk.content(FIRST)[end:]
    assert records(disk) == 3


@pytest.mark.parametrize("marker", [b"abcdefgh", bytes(3) + b"abcde", b"abcde" + bytes(3)])
def test_a_batch_is_found_wherever_it_lies_among_zeros(marker: bytes) -> None:
    """Also across the edges of the blocks that are compared with zeros."""
    block = 64 * 1024
    for start in (0, 5, block - 1):
        for at in range(start + 2 * block - 50, start + 2 * block + 10):
            batch = batch_header(marker, 7, 6, 0, 0, 0)
            data = bytes(at) + batch + bytes(3 * block) + b"x" + batch + bytes(30)
            file = JournalFile("f", data, 7, marker)
            second = at + len(batch) + 3 * block + 1
            assert [place.position for place in file.behind(start)] == [at, second]
            assert [place.position for place in file.behind(at + 1)] == [second]
            assert not list(file.behind(second + 1))


def test_a_start_keeps_nothing_of_the_files_that_it_has_read() -> None:
    disk = written(20, journal_file_size=400)

    def files() -> int:
        gc.collect()
        return sum(isinstance(each, JournalFile) for each in gc.get_objects())

    before = files()
    host = Host(disk, seed=1)
    assert len(host.storage.log("l")) == 20
    assert files() == before


def test_file_names() -> None:
    assert file_number(file_name(255)) == 255
    assert file_name(255) == "00000000000000ff.journal"
    for name in ("ff.journal", "00000000000000ff.tmp", "x0000000000000ff.journal", "lock"):
        assert file_number(name) is None


@pytest.mark.parametrize(
    "text", ["", "sometimes", "every_n", "every_n:0", "interval:-1", "never:1"]
)
def test_a_wrong_fsync_policy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="fsync must be"):
        FsyncPolicy(text)


def test_a_large_batch_is_written_in_pieces_and_its_head_last() -> None:
    host = Host(journal_file_size=1 << 16)
    random_ = random.Random(0)
    records = [random_.randbytes(LARGE_BATCH_SIZE) for _ in range(LARGE_BATCH)]
    for record in records:
        host.storage.log("l").append(record)
    start = len(host.disk.operations)
    host.commit()
    operations = [each for each in host.disk.operations[start:] if each.kind in ("write", "sync")]
    # Those of the file before and the header of the next one, the pieces, the head.
    *pieces, head_ = [each for each in operations if each.kind == "write"][3:]
    assert len(pieces) > 1
    assert all(PIECE_SIZE <= len(each.data) < 2 * PIECE_SIZE for each in pieces[:-1])
    positions_ = [each.position for each in pieces]
    assert positions_ == sorted(positions_)
    assert head_.position == FILE_HEADER_SIZE
    assert [each.kind for each in operations[-2:]] == ["write", "sync"]
    path = next(path for path in host.disk.files if records[0] in host.disk.content(path))
    body = bytes(host.disk.content(path)[FILE_HEADER_SIZE + BATCH_HEADER_SIZE :])
    head = bytes(host.disk.content(path)[FILE_HEADER_SIZE:][:BATCH_HEADER_SIZE])
    assert int.from_bytes(head[24:32], "little") == len(body)
    assert int.from_bytes(head[36:40], "little") == zlib.crc32(body)
    assert Host(host.disk.copy()).contents("l") == {
        at: (each, b"") for at, each in enumerate(records)
    }


def test_a_crash_while_a_large_batch_is_written_leaves_the_one_before() -> None:
    host = Host(journal_file_size=1 << 16)
    host.storage.log("l").append(b"kept")
    host.commit()
    disk = host.disk.copy()
    start = len(host.disk.operations)
    for _ in range(LARGE_BATCH):
        host.storage.log("l").append(bytes(LARGE_BATCH_SIZE))
    host.commit()
    random_ = random.Random(0)
    for operation in host.disk.operations[start:-1]:
        disk.apply(operation)
        for crashed in (disk.copy(), disk.power_cut(None), disk.power_cut(random_)):
            found = Host(crashed, seed=2).contents("l")
            is_whole = operation.kind == "write" and len(operation.data) == BATCH_HEADER_SIZE
            assert found[0] == (b"kept", b"")
            assert len(found) == 1 or (is_whole and len(found) == 1 + LARGE_BATCH)


def test_a_weaker_policy_leaves_a_large_batch_to_a_later_sync() -> None:
    host = Host(fsync="every_n:2", journal_file_size=1 << 26)
    host.commit()
    start = len(host.disk.operations)
    for _ in range(LARGE_BATCH):
        host.storage.log("l").append(bytes(LARGE_BATCH_SIZE))
    host.storage.commit()
    host.step()
    assert not {each.kind for each in host.disk.operations[start:]} & set(SYNCS)
    assert host.storage.durable == host.storage.write_batch - 1


def test_a_journal_that_is_gone_stops_the_start_though_no_checkpoint_was_made() -> None:
    disk = written(3)
    for path in list(disk.files):
        if path.startswith("data/journal/"):
            disk.files.pop(path)
    with pytest.raises(StorageDamaged, match="missing") as raised:
        Host(disk)
    assert raised.value.file == FIRST


def test_segments_without_catalog_and_journal_stop_the_start() -> None:
    host = Host()
    host.storage.log("l").append(b"kept")
    host.commit()
    host.checkpoint()
    disk = host.disk.copy()
    for path in list(disk.files):
        if path.startswith("data/journal/") or path.endswith(".sqlite"):
            disk.files.pop(path)
    with pytest.raises(StorageDamaged, match="it is missing") as raised:
        Host(disk)
    assert raised.value.file == "data/catalog.sqlite"
    disk.files.pop("data/format")
    with pytest.raises(StorageDamaged, match="missing, or empty"):
        Host(disk)
    assert [path for path in disk.files if path.endswith(".segment")]


def test_a_directory_of_which_only_the_format_file_is_left_stops_the_start() -> None:
    disk = written(3)
    for path in list(disk.files):
        if path != "data/format":
            disk.files.pop(path)
    with pytest.raises(StorageDamaged, match="it is missing"):
        Host(disk)
    assert list(disk.files) == ["data/format"]
