"""The parts of a data directory, and the mark that says in which format it is."""

from __future__ import annotations

from typing import Final

from trivium.storage.errors import StorageDamaged, StorageVersionMismatch
from trivium.storage.filesystem import FileSystem

LOCK_FILE: Final = "lock"
JOURNAL_DIRECTORY: Final = "journal"
SEGMENT_DIRECTORY: Final = "segments"
CATALOG_FILE: Final = "catalog.sqlite"
CATALOG_COPY_FILE: Final = "catalog-copy.sqlite"

FORMAT_VERSION: Final = 2
#: what an earlier version left is taken over as it is, and marked before anything is written to it
_OLD_FORMAT_VERSION: Final = 1
_FILE: Final = "format"
_TEXT: Final = "trivium storage "


def check_directory_format(filesystem: FileSystem, directory: str) -> int:
    """The format of a directory. A new one is marked; one that has a journal must be.

    Raises StorageDamaged, StorageVersionMismatch, OSError.
    """
    if filesystem.exists(f"{directory}/{_FILE}"):
        # A killed process may have left its name in the system's cache only.
        filesystem.sync_directory(directory)
    elif not filesystem.exists(f"{directory}/{JOURNAL_DIRECTORY}"):
        mark_directory_format(filesystem, directory)
    return read_directory_format(filesystem, directory)


def is_data_directory(filesystem: FileSystem, directory: str) -> bool:
    """Whether anything of ours is there. Raises OSError."""
    parts = (_FILE, JOURNAL_DIRECTORY, CATALOG_FILE, CATALOG_COPY_FILE, SEGMENT_DIRECTORY)
    return any(filesystem.exists(f"{directory}/{part}") for part in parts)


def read_directory_format(filesystem: FileSystem, directory: str) -> int:
    """The format that the mark names.

    Raises StorageDamaged, StorageVersionMismatch, OSError unless it is one that is read.
    """
    path = f"{directory}/{_FILE}"
    if not filesystem.exists(path):
        raise StorageDamaged(path, 0, "it is missing")
    file = filesystem.open(path)
    text = file.read(0, 256).decode("ascii", "replace")
    file.close()
    version = text[len(_TEXT) : -1]
    if text != f"{_TEXT}{version}\n" or not version.isdecimal():
        raise StorageDamaged(path, 0, "it does not name a storage format")
    if not _OLD_FORMAT_VERSION <= int(version) <= FORMAT_VERSION:
        raise StorageVersionMismatch(
            f"{directory} has storage format {version}, this version reads"
            f" {_OLD_FORMAT_VERSION} and {FORMAT_VERSION}"
        )
    return int(version)


def mark_directory_format(filesystem: FileSystem, directory: str) -> None:
    """Write the mark. Raises OSError."""
    path = f"{directory}/{_FILE}"
    file = filesystem.create(path + ".tmp")
    file.write([f"{_TEXT}{FORMAT_VERSION}\n".encode()], 0, False)
    file.sync()
    file.close()
    filesystem.rename(path + ".tmp", path)
    filesystem.sync_directory(directory)
