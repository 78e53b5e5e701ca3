"""What has changed of logs, as a checkpoint writes it."""

from __future__ import annotations

from typing import Final

from trivium.storage.catalog.catalog import CatalogChanges
from trivium.storage.contents.log import DiskLog
from trivium.storage.files.executor import TimeSlice
from trivium.storage.segments.blocks import ChunkImage, image_of
from trivium.storage.segments.chunks import Chunk, list_made
from trivium.storage.segments.segment_files import SegmentWriter
from trivium.storage.segments.segments import Segments

#: Work to look at a log, and to take over where a chunk lies: see ``STEP`` of checkpoints.
_LOG_COST: Final = 4
_INSTALL_COST: Final = 4


class LogImages:
    """Images of chunks that lie in no segment, and what chunks in segments have lost.

    The logs of ``logs`` are looked at one after the other, each as it is at that moment.
    """

    def __init__(self, logs: list[DiskLog], segments: Segments) -> None:
        self._segments = segments
        #: logs that were not looked at, and those that were
        self._left = logs
        self._seen: list[DiskLog] = []
        self._images: list[ChunkImage] = []
        #: chunks in segments that have lost records: log, chunk, the lost ones
        self._changed: list[tuple[DiskLog, Chunk, int]] = []

    @property
    def is_complete(self) -> bool:
        """Whether every log was looked at."""
        return not self._left

    def take(self, most: int, changes: CatalogChanges) -> int:
        """Look at logs until that was work of about ``most``; how much is left of it.

        What the catalog is to know of them goes to ``changes``.
        """
        left = most
        while left > 0 and self._left:
            log = self._left[-1]
            chunks, cost = log.take_chunks(left)
            for chunk in chunks:
                self._images.append(image_of(log, chunk))
            left -= cost + _LOG_COST
            if not chunks:
                self._left.pop()
                self._take_log(log, changes)
        return left

    def _take_log(self, log: DiskLog, changes: CatalogChanges) -> None:
        self._seen.append(log)
        for chunk in log.take_changed():
            if chunk.live:
                self._changed.append((log, chunk, chunk.removed))
        if not log.is_dropped:
            changes.logs.append((log.number, log.name, log.next_offset))
            list_made(_LOG_COST)

    def drop_empty(self) -> None:
        """Forget chunks that have lost all their records since they were looked at."""
        self._images = [image for image in self._images if image.chunk.live]

    def write(self, writer: SegmentWriter) -> None:
        """On the checkpoint's worker: write the chunks. Raises OSError."""
        for image in self._images:
            writer.write(image)

    def add_to(self, changes: CatalogChanges) -> None:
        """On the checkpoint's worker: say where they lie, and what others have lost."""
        slice_ = TimeSlice()
        for image in self._images:
            changes.chunks.append(
                (image.log.number, image.chunk, image.segment, image.position, image.length, 0)
            )
            slice_.pause()
        for log, chunk, removed in self._changed:
            changes.chunks.append(
                (log.number, chunk, chunk.segment, chunk.position, chunk.length, removed)
            )

    def begin_install(self) -> None:
        """They are written, and the catalog says so."""
        # They are taken from the end.
        self._images.reverse()

    def install(self, most: int) -> bool:
        """Take over where chunks lie, work of about ``most``; True when that is all.

        Until then a chunk is in memory, and its removals are noted with it.
        """
        segments = self._segments
        for _ in range(most // _INSTALL_COST):
            if not self._images:
                break
            image = self._images.pop()
            chunk = image.chunk
            chunk.segment = image.segment
            chunk.position = image.position
            chunk.length = image.length
            segments.add(image.log, chunk)
            if chunk.live == 0:
                segments.dead.append((image.log.number, chunk.first, chunk.segment))
                continue
            segments.charge(chunk)
            if chunk.removed:
                image.log.add_changed(chunk)
        return not self._images

    def give_back(self) -> None:
        """Nothing was written: all of it is for the next checkpoint."""
        for image in self._images:
            if image.chunk.live:
                image.chunk.fixed = False
                image.chunk.removed = 0
        for log in self._seen:
            if not log.is_dropped:
                log.mark_changed()
        for log, chunk, _ in self._changed:
            if chunk.live and not chunk.changed:
                log.add_changed(chunk)
