"""Relocation: what is left of chunks moves to new segment files, so that old files can go."""

from __future__ import annotations

import logging
from typing import Final

from trivium.storage.catalog.catalog import CatalogChanges
from trivium.storage.errors import StorageDamaged
from trivium.storage.segments.blocks import ChunkImage, Place
from trivium.storage.segments.chunks import Chunk
from trivium.storage.segments.segment_files import BlockReader, SegmentWriter
from trivium.storage.segments.segments import Segments

_logger: Final = logging.getLogger(__name__)


class Relocation:
    """The chunks that one checkpoint moves."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._places: list[Place] = []
        #: what was moved: from where, as what, and the slots that were kept
        self._moved: list[tuple[Place, Chunk, list[int]]] = []
        self._unreadable: list[Place] = []

    def choose(self, is_space_short: bool) -> None:
        """Choose what is worth it now."""
        chosen = self._segments.to_relocate(is_space_short)
        self._places = [Place(log, chunk) for log, chunk in chosen]

    @property
    def has_moved(self) -> bool:
        """Whether anything was moved: the next checkpoint can drop what that has left."""
        return bool(self._moved)

    def write(self, writer: SegmentWriter) -> None:
        """On the checkpoint's worker: read the chunks and write them anew. Raises OSError."""
        reader = self._segments.reader()
        try:
            for place in self._places:
                self._move(place, reader, writer)
        finally:
            reader.close()

    def _move(self, place: Place, reader: BlockReader, writer: SegmentWriter) -> None:
        try:
            records, annotations = reader.read(place)
        except StorageDamaged as damage:
            # It stays where it is, for whoever reads it.
            _logger.error("%s", damage)
            self._unreadable.append(place)
            return
        moved, kept = place.chunk.without(place.removed)
        kept_annotations: dict[int, bytes] | None = None
        if annotations:
            kept_annotations = {
                index: annotations[slot] for index, slot in enumerate(kept) if slot in annotations
            }
        kept_records = [record for slot in kept if (record := records[slot]) is not None]
        image = ChunkImage(place.log, moved, kept_records, kept_annotations)
        moved.size = sum(map(len, image.records))
        weigher = place.log.weigher
        if weigher is not None:
            moved.weight = weigher.weigh(list(kept_records))
            moved.weighed = moved.live
        writer.write(image)
        moved.segment = image.segment
        moved.position = image.position
        moved.length = image.length
        self._moved.append((place, moved, kept))

    def add_to(self, changes: CatalogChanges) -> None:
        """On the checkpoint's worker: say where they lie.

        Behind all that is said of chunks: one may have lost records and be moved as well.
        """
        for place, moved, _ in self._moved:
            changes.chunks.append(
                (place.log.number, moved, moved.segment, moved.position, moved.length, 0)
            )

    def report(self) -> None:
        """Have what could not be read left alone from now on."""
        for place in self._unreadable:
            self._segments.unreadable(place)

    def install(self) -> None:
        """The catalog says where they lie."""
        for place, moved, kept in self._moved:
            self._segments.move(place, moved, kept)
