"""Opening a data directory: what is in it is recovered, and a journal file of this process begun.

Nothing on the disk changes before all of it was found to be in order. The rules by which something
counts as missing are here too, for whoever inspects a directory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from trivium.storage.catalog.catalog import Catalog, CatalogChanges
from trivium.storage.catalog.catalog_copy import CatalogCopy
from trivium.storage.contents.changes import Changes
from trivium.storage.contents.contents import Contents
from trivium.storage.contents.recovery import Recovered
from trivium.storage.errors import StorageDamaged, StorageError, StorageFailed
from trivium.storage.files.directory import (
    CATALOG_COPY_FILE,
    CATALOG_FILE,
    FORMAT_VERSION,
    JOURNAL_DIRECTORY,
    LOCK_FILE,
    NO_FORMAT,
    OLD_FORMAT_VERSION,
    SEGMENT_DIRECTORY,
    format_path,
    read_directory_format,
    write_directory_format,
)
from trivium.storage.files.encryption import Keys
from trivium.storage.files.filesystem import FileSystem
from trivium.storage.journal.journal import FsyncPolicy, JournalWriter
from trivium.storage.journal.journal_files import STARTED
from trivium.storage.segments.segment_files import segment_number
from trivium.storage.segments.segments import Segments

#: A start with more journal files than this asks for a checkpoint however little is in them.
MAX_JOURNAL_FILES: Final = 16


def format_fault(directory: str, version: int, recovered: Recovered) -> StorageDamaged | None:
    """Whether the file with the format is missing: without it nothing was kept so far."""
    if version == NO_FORMAT and (recovered.logs or recovered.tables):
        return StorageDamaged(format_path(directory), 0, "it is missing")
    return None


def is_catalog_lost(version: int, is_journal_whole: bool, segment_names: list[str]) -> bool:
    """Whether a catalog that does not say where the journal goes on has lost that.

    A new directory has no catalog, and in the old format the first checkpoint makes it: until then
    the journal is whole, from its first file on.
    """
    if version == FORMAT_VERSION:
        return True
    return not is_journal_whole and any(segment_number(name) is not None for name in segment_names)


class OpenDirectory:
    """A data directory that this process uses: what it held, and where it is written to.

    ``now`` is the time of the executor. Raises StorageLocked, StorageVersionMismatch,
    StorageKeyError, StorageDamaged, StorageFailed.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        segments: Segments,
        keys: Keys,
        entropy: Callable[[int], bytes],
        journal_file_size: int,
        policy: FsyncPolicy,
        now: float,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._keys = keys
        self._entropy = entropy
        self._segments = segments
        self.began_at = now
        try:
            filesystem.make_directory(directory)
            self._lock = filesystem.lock(f"{directory}/{LOCK_FILE}")
        except OSError as error:
            raise StorageFailed(f"cannot open {directory}: {error}") from error
        try:
            version = read_directory_format(filesystem, directory)
            self._open_catalog(version)
            recovered = Recovered(Changes(), segments, keys)
            try:
                self._recover(recovered, version)
                self._take_over(recovered, version)
                self.journal = self._begin_journal(recovered, journal_file_size, policy, now)
                if version == NO_FORMAT:
                    # From now on it is noticed if the journal or the catalog is not there.
                    self._write_first_positions(recovered, self.journal.written)
                    write_directory_format(filesystem, directory)
            except (OSError, sqlite3.Error, StorageError):
                self._close_catalog()
                raise
        except (OSError, sqlite3.Error) as error:
            self._lock.release()
            raise StorageFailed(f"cannot open {directory}: {error}") from error
        except StorageError:
            self._lock.release()
            raise
        self.contents = Contents(recovered)
        # What else was found is not kept: the last journal file alone may be large.
        self.was_clean = recovered.was_clean
        self.checkpoint_batch = recovered.checkpoint_batch
        self.journal_bytes = recovered.journal_bytes
        #: whether one is due: there are many journal files, or some with another key
        self.wants_checkpoint = (
            len(recovered.files) > MAX_JOURNAL_FILES
            or recovered.has_foreign_files
            or len(segments.foreign) > 0
        )

    def release(self) -> None:
        """Let go of the directory."""
        self._close_catalog()
        self._lock.release()

    def _close_catalog(self) -> None:
        self.catalog_copy.close()
        self.catalog.close()

    def _open_catalog(self, version: int) -> None:
        filesystem, directory = self._filesystem, self._directory
        path = f"{directory}/{CATALOG_FILE}"
        if version == FORMAT_VERSION and not filesystem.exists(path):
            raise StorageDamaged(path, 0, "it is missing")
        self._journal_directory = f"{directory}/{JOURNAL_DIRECTORY}"
        filesystem.make_directory(self._journal_directory)
        filesystem.make_directory(f"{directory}/{SEGMENT_DIRECTORY}")
        # A killed process may have left names in the system's cache only.
        filesystem.sync_directory(directory)
        self.catalog = Catalog(filesystem, path, self._keys, self._entropy)
        copy_path = f"{directory}/{CATALOG_COPY_FILE}"
        self.catalog_copy = CatalogCopy(
            filesystem, copy_path, self.catalog, self._keys, self._entropy
        )

    def _recover(self, recovered: Recovered, version: int) -> None:
        """Read all of it. Raises StorageDamaged where anything is wrong or missing."""
        catalog = self.catalog
        catalog.load(recovered, self._segments)
        reason = catalog.verify_pages()
        if reason:
            raise StorageDamaged(catalog.path, 0, reason)
        recovered.replay(self._filesystem, self._journal_directory)
        fault = format_fault(self._directory, version, recovered)
        if fault is not None:
            raise fault
        if not catalog.has_positions:
            names = self._filesystem.names(f"{self._directory}/{SEGMENT_DIRECTORY}")
            if is_catalog_lost(version, bool(recovered.files), names):
                reason = "it is empty" if version == FORMAT_VERSION else "it is missing, or empty"
                raise StorageDamaged(catalog.path, 0, reason)
        if not recovered.was_clean:
            for log in recovered.logs.values():
                log.recovered_offset = log.next_offset

    def _take_over(self, recovered: Recovered, version: int) -> None:
        """Remove what is left over, and make a directory of an old format one of today's."""
        filesystem = self._filesystem
        self.catalog_copy.open()
        for path in recovered.left_over:
            filesystem.remove(path)
        self._segments.remove_unused()
        if version == OLD_FORMAT_VERSION:
            if not self.catalog.has_positions:
                self._write_first_positions(recovered, recovered.last_batch)
            write_directory_format(filesystem, self._directory)

    def _write_first_positions(self, recovered: Recovered, needed_batch: int) -> None:
        changes = CatalogChanges()
        changes.set_positions(
            recovered.checkpoint_batch,
            needed_batch,
            recovered.first_file,
            recovered.next_log,
            self._segments.next_segment,
        )
        self.catalog.write(changes)
        self.catalog_copy.write(changes)

    def _begin_journal(
        self, recovered: Recovered, file_size: int, policy: FsyncPolicy, now: float
    ) -> JournalWriter:
        journal = JournalWriter(
            self._filesystem,
            self._journal_directory,
            file_size,
            policy,
            self._entropy,
            recovered.next_file,
            recovered.last_batch,
            self._keys,
        )
        journal.files = recovered.files
        if recovered.last_file is not None:
            journal.follow(recovered.last_file)
        # Durable before anything is delivered, so that a crash from here on is known as one.
        journal.write(recovered.last_batch + 1, [], STARTED, True, now)
        return journal
