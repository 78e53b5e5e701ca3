"""What the storage measures."""

from __future__ import annotations

from tests.support.simulated import Host


def test_batches_are_measured_by_size_and_time() -> None:
    host = Host()
    before = host.storage.figures()
    assert sum(before.batches.counts) == 0
    host.storage.log("l").append(bytes(1000))
    host.commit()
    figures = host.storage.figures()
    assert sum(figures.syncs.counts) == sum(figures.batches.counts) == 1
    assert figures.batches.sum > 1000
    assert sum(figures.writes.counts) == 0
    assert figures.journal_bytes == figures.batches.sum
    assert figures.journal_files == 1


def test_batches_that_are_not_synced_are_measured_apart() -> None:
    host = Host(fsync="never")
    host.storage.log("l").append(b"x")
    host.commit()
    figures = host.storage.figures()
    assert (sum(figures.writes.counts), sum(figures.syncs.counts)) == (1, 0)


def test_checkpoints_are_measured_and_what_they_write_is_shown() -> None:
    host = Host(checkpoint_size=1500)
    for _ in range(20):
        host.storage.log("l").append(bytes(300))
        host.commit()
    figures = host.storage.figures()
    assert sum(figures.checkpoints.counts) > 0
    assert figures.segments > 0
    assert figures.segment_bytes > 0
    assert figures.journal_bytes < figures.batches.sum
