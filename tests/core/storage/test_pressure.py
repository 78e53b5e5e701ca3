"""What the storage tells and does when the disk is slow or short."""

from __future__ import annotations

import errno

from tests.support.simulated import Host, Operation
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


def test_what_waits_for_a_checkpoint_is_counted_beyond_twice_its_size() -> None:
    """Publishing outruns the checkpoint: memory stays bounded by whoever heeds the count."""
    host = Host(checkpoint_size=10_000)
    log = host.storage.log("l")
    journal = host.executor.workers["trivium-journal"]

    def publish(records: int) -> None:
        for _ in range(records):
            log.append(b"x" * 1000)
            host.storage.commit()
            journal.step()
            host.run_calls()
        host.storage.commit()

    publish(17)
    assert host.storage.pending_bytes == 0
    publish(11)
    assert 10_000 <= host.storage.pending_bytes < 12_000
    host.commit()
    assert host.storage.pending_bytes == 0


def test_a_checkpoint_that_came_to_nothing_goes_on_counting() -> None:
    host = Host(checkpoint_size=10_000)
    log = host.storage.log("l")
    host.disk.before = no_space_for_segments
    for _ in range(40):
        log.append(b"x" * 1000)
        host.commit()
    assert host.storage.pending_bytes > 20_000
    host.disk.before = lambda operation: None
    for _ in range(11):
        log.append(b"x" * 1000)
        host.commit()
    assert host.storage.pending_bytes == 0


def no_space_for_segments(operation: Operation) -> None:
    if ".segment" in operation.path:
        raise OSError(errno.ENOSPC, "no space left on device")


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
    log.remove(0, 99)
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
    log.remove(0, 99)
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
