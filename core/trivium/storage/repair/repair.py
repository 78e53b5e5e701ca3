"""Makes a damaged data directory usable again with what an inspection could save.

First everything damaged is copied into a quarantine, beside a report. Then what is left is written
anew: records of the journal to segments, all rows to a new catalog, an empty journal file behind
them. The new catalog takes the old one's place in one step; until then nothing has changed, so a
repair that was interrupted is made again, and its quarantine stays beside the second one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from trivium.storage.catalog.catalog import Catalog, CatalogChanges
from trivium.storage.catalog.catalog_copy import ROLLBACK_SUFFIX, remove_database
from trivium.storage.errors import StorageDamaged
from trivium.storage.files.directory import write_directory_format
from trivium.storage.files.filesystem import FileSystem
from trivium.storage.journal.journal import FsyncPolicy, JournalWriter
from trivium.storage.journal.journal_files import FILE_HEADER_SIZE
from trivium.storage.repair.inspection import Inspection
from trivium.storage.segments.blocks import image_of
from trivium.storage.segments.segment_files import SegmentWriter

REPORT_FILE: Final = "report.txt"
_RECORD_DIRECTORY: Final = "records"
_NEW: Final = ".repaired"
_COPY_SIZE: Final = 4 * 1024 * 1024


def repair(
    inspection: Inspection,
    quarantine: str,
    report: list[str],
    entropy: Callable[[int], bytes] = os.urandom,
) -> None:
    """Save what can be saved; ``quarantine`` is a directory to be made. Raises OSError."""
    _quarantine(inspection, quarantine, report)
    filesystem = inspection.filesystem
    filesystem.make_directory(inspection.journal_directory)
    filesystem.make_directory(inspection.segment_directory)
    recovered = inspection.recovered
    changes = CatalogChanges()
    writer = SegmentWriter(
        filesystem,
        inspection.segment_directory,
        inspection.segments.next_segment,
        inspection.keys,
        entropy,
    )
    for log in inspection.logs():
        log.restore_next_offset(inspection.next_offsets.get(log.number, 0))
        changes.logs.append((log.number, log.name, log.next_offset))
        for chunk in log.chunks():
            if chunk.segment:
                place = (chunk.segment, chunk.position, chunk.length, chunk.removed)
            else:
                chunk.pack()
                chunk.fixed = True
                image = image_of(log, chunk)
                writer.write(image)
                place = (image.segment, image.position, image.length, 0)
            changes.chunks.append((log.number, chunk, *place))
    writer.finish()
    for table in recovered.tables.values():
        changes.tables.append((table.number, table.name))
        rows = dict(table.items())
        changes.rows.append((table.number, list(rows), list(rows.values())))
    changes.set_positions(
        recovered.last_batch,
        recovered.last_batch,
        recovered.next_file,
        max(recovered.next_log, *recovered.logs, 0) + 1,
        writer.next_segment,
    )
    _begin_journal(inspection, entropy)
    _replace_catalog(inspection, changes, entropy)
    write_directory_format(filesystem, inspection.directory)


def _begin_journal(inspection: Inspection, entropy: Callable[[int], bytes]) -> None:
    """A file behind all others, with an empty write batch: the catalog needs a journal."""
    recovered = inspection.recovered
    journal = JournalWriter(
        inspection.filesystem,
        inspection.journal_directory,
        FILE_HEADER_SIZE,
        FsyncPolicy("always"),
        entropy,
        recovered.next_file,
        recovered.last_batch,
        inspection.keys,
    )
    journal.write(recovered.last_batch + 1, [], 0, True, 0.0)
    journal.close()


def _replace_catalog(
    inspection: Inspection, changes: CatalogChanges, entropy: Callable[[int], bytes]
) -> None:
    filesystem, directory = inspection.filesystem, inspection.directory
    path = inspection.catalog_path
    remove_database(filesystem, path + _NEW)
    catalog = Catalog(filesystem, path + _NEW, inspection.keys, entropy)
    try:
        catalog.write(changes)
    finally:
        catalog.close()
    # The inspection has applied it, unless the catalog could not be read at all.
    filesystem.remove(path + ROLLBACK_SUFFIX)
    filesystem.sync_directory(directory)
    filesystem.rename(path + _NEW, path)
    filesystem.sync_directory(directory)
    # The next start makes it anew.
    remove_database(filesystem, inspection.catalog_copy_path)
    filesystem.sync_directory(directory)


def _quarantine(inspection: Inspection, quarantine: str, report: list[str]) -> None:
    filesystem = inspection.filesystem
    filesystem.make_directory(quarantine)
    paths = sorted(inspection.suspects)
    if inspection.catalog_path in inspection.suspects:
        paths.append(inspection.catalog_path + ROLLBACK_SUFFIX)
    directories = {quarantine}
    for path in paths:
        if path == inspection.journal_directory or not filesystem.exists(path):
            continue
        target = quarantine + path.removeprefix(inspection.directory)
        directories.add(target.rpartition("/")[0])
        filesystem.make_directory(target.rpartition("/")[0])
        try:
            _copy(filesystem, path, target)
        except StorageDamaged:
            # It is no file, and would stand in the way of one.
            filesystem.rename(path, target)
    if inspection.wrong_records:
        directory = f"{quarantine}/{_RECORD_DIRECTORY}"
        directories.add(directory)
        filesystem.make_directory(directory)
        for number, offset, record in inspection.wrong_records:
            _write(filesystem, f"{directory}/{number}-{offset}", record)
    _write(filesystem, f"{quarantine}/{REPORT_FILE}", "".join(f"{s}\n" for s in report).encode())
    for directory in directories:
        filesystem.sync_directory(directory)


def _copy(filesystem: FileSystem, source: str, target: str) -> None:
    old = filesystem.open(source)
    new = filesystem.create(target)
    try:
        position = 0
        while data := old.read(position, _COPY_SIZE):
            new.write([data], position, False)
            position += len(data)
        new.sync()
    finally:
        new.close()
        old.close()


def _write(filesystem: FileSystem, path: str, data: bytes) -> None:
    file = filesystem.create(path)
    try:
        file.write([data], 0, False)
        file.sync()
    finally:
        file.close()
