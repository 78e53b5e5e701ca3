"""What a storage has measured, to be shown."""

from __future__ import annotations

from trivium.common.histograms import BYTES, SECONDS, Histogram


class StorageFigures:
    """Of one storage in a data directory, since it was opened."""

    def __init__(self) -> None:
        #: seconds to write a batch to the journal; of batches that were synced: with that
        self.writes = Histogram(SECONDS)
        self.syncs = Histogram(SECONDS)
        #: bytes of the batches
        self.batches = Histogram(BYTES)
        #: seconds that checkpoints took, turns that did a part of them included
        self.checkpoints = Histogram(SECONDS)
        #: seconds that it took to recover
        self.recovery_seconds = 0.0
        #: now: bytes that were written to the journal and wait for a checkpoint; journal files;
        #: segment files, and bytes in them
        self.journal_bytes = 0
        self.journal_files = 0
        self.segments = 0
        self.segment_bytes = 0
