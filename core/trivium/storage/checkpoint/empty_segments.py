"""Segment files, and rows of chunks in the catalog, that have become useless."""

from __future__ import annotations

from trivium.storage.catalog.catalog import CatalogChanges
from trivium.storage.segments.segments import Segments


class EmptySegments:
    """What one checkpoint drops: taken from ``segments``."""

    def __init__(self, segments: Segments, changes: CatalogChanges) -> None:
        """``changes``: what the catalog is told."""
        self._segments = segments
        self._dead = changes.dead = segments.dead
        segments.dead = []
        #: files of which the catalog will name no chunk any more
        self._emptied: list[int] = []
        for _, _, segment in self._dead:
            if segments.discard(segment):
                self._emptied.append(segment)
        #: files that chunks have left, with the read that had to be over
        self._left = segments.take_left()

    def remove(self) -> None:
        """On the checkpoint's worker, behind the catalog: remove the files. Raises OSError."""
        segments = self._segments
        for number in self._emptied:
            segments.filesystem.remove(segments.path(number))
        for number, _ in self._left:
            segments.filesystem.remove(segments.path(number))

    def forget(self) -> None:
        """On the loop's thread: they are removed."""
        for number in self._emptied:
            self._segments.forget(number)

    def give_back(self) -> None:
        """Nothing was written: the next checkpoint does it."""
        segments = self._segments
        for _, _, segment in self._dead:
            segments.chunks[segment] += 1
        segments.left += self._left
        segments.dead = self._dead + segments.dead
