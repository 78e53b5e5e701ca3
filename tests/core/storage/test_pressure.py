"""What the storage tells and does when the disk is slow or short."""

from __future__ import annotations

from tests.core.storage.simulated import Host
from trivium.storage.memory import MemoryStorage


def test_memory_storage_never_has_anything_pending() -> None:
    storage = MemoryStorage()
    storage.log("l").append(b"x" * 1000)
    storage.table("t").put(b"k", b"x" * 1000)
    assert storage.pending_bytes == 0
    storage.free_space()


def test_what_waits_for_the_writer_is_counted_until_the_writer_has_it() -> None:
    host = Host()
    log = host.storage.log("l")
    host.commit()
    assert host.storage.pending_bytes == 0
    log.append(b"x" * 1000)
    host.storage.commit()
    assert host.storage.pending_bytes == 0, "with the writer"
    for number in range(10):
        log.append(b"%d" % number * 1000)
        host.storage.commit()
    assert 10_000 <= host.storage.pending_bytes < 11_000
    host.storage.table("t").put(b"k", b"x" * 5000)
    assert 15_000 <= host.storage.pending_bytes < 16_000
    host.commit()
    assert host.storage.pending_bytes == 0


def test_a_record_of_several_logs_waits_once() -> None:
    host = Host()
    record = b"x" * 1000
    for name in ("a", "b", "c"):
        host.storage.log(name).append(record)
    assert 1000 <= host.storage.pending_bytes < 2000


def test_space_of_what_was_consumed_is_given_back_when_asked_for() -> None:
    host = Host(journal_file_size=4096)
    log = host.storage.log("l")
    for _ in range(100):
        log.append(b"x" * 1000)
        host.commit()
    log.settle(0, 99)
    host.commit()
    before = host.disk.used()
    assert before > 100_000
    host.storage.free_space()
    host.commit()
    assert host.disk.used() < before / 2


def test_space_of_segments_is_given_back_when_asked_for() -> None:
    host = Host(journal_file_size=4096)
    log = host.storage.log("l")
    for _ in range(100):
        log.append(b"x" * 1000)
        host.commit()
    host.storage.free_space()
    host.commit()
    before = host.disk.used()
    assert any(path.startswith("data/segments/") for path in host.disk.files)
    log.settle(0, 99)
    host.commit()
    host.storage.free_space()
    host.commit()
    assert host.disk.used() < before - 90_000


def test_without_changes_there_is_nothing_to_give_back() -> None:
    host = Host()
    host.storage.log("l").append(b"x")
    host.commit()
    host.storage.free_space()
    host.commit()
    before = len(host.disk.operations)
    host.storage.free_space()
    host.commit()
    assert len(host.disk.operations) == before
