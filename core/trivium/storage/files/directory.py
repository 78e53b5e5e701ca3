"""The parts of a data directory, and the file that says in which format it is."""

from __future__ import annotations

from typing import Final

from trivium.storage.errors import StorageDamaged, StorageVersionMismatch
from trivium.storage.files.filesystem import FileSystem

LOCK_FILE: Final = "lock"
JOURNAL_DIRECTORY: Final = "journal"
SEGMENT_DIRECTORY: Final = "segments"
CATALOG_FILE: Final = "catalog.sqlite"
CATALOG_COPY_FILE: Final = "catalog-copy.sqlite"

FORMAT_VERSION: Final = 2
#: what an earlier version left is taken over as it is, and gets the format of today before anything
#: is written to it
OLD_FORMAT_VERSION: Final = 1
#: of a directory without the file: nothing was kept there so far
NO_FORMAT: Final = 0
_FILE: Final = "format"
_TEXT: Final = "trivium storage "


def numbered_name(number: int, suffix: str) -> str:
    """The name of a file that has a number."""
    return f"{number:016x}{suffix}"


def number_in_name(name: str, suffix: str) -> int | None:
    """The number in the name of a file with this suffix; None when it is another file."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def is_data_directory(filesystem: FileSystem, directory: str) -> bool:
    """Whether anything of ours is there. Raises OSError."""
    parts = (_FILE, JOURNAL_DIRECTORY, CATALOG_FILE, CATALOG_COPY_FILE, SEGMENT_DIRECTORY)
    return any(filesystem.exists(f"{directory}/{part}") for part in parts)


def format_path(directory: str) -> str:
    """The file that names the format."""
    return f"{directory}/{_FILE}"


def read_directory_format(filesystem: FileSystem, directory: str) -> int:
    """The format that the file names; NO_FORMAT where there is none.

    Raises StorageDamaged, StorageVersionMismatch, OSError unless it is one that is read.
    """
    path = format_path(directory)
    if not filesystem.exists(path):
        return NO_FORMAT
    file = filesystem.open(path)
    text = file.read(0, 256).decode("ascii", "replace")
    file.close()
    version = text[len(_TEXT) : -1]
    if text != f"{_TEXT}{version}\n" or not version.isdecimal():
        raise StorageDamaged(path, 0, "it does not name a storage format")
    if not OLD_FORMAT_VERSION <= int(version) <= FORMAT_VERSION:
        raise StorageVersionMismatch(
            f"{directory} has storage format {version}, this version reads"
            f" {OLD_FORMAT_VERSION} and {FORMAT_VERSION}"
        )
    return int(version)


def write_directory_format(filesystem: FileSystem, directory: str) -> None:
    """Write the file that names the format. Raises OSError."""
    path = format_path(directory)
    file = filesystem.create(path + ".tmp")
    file.write([f"{_TEXT}{FORMAT_VERSION}\n".encode()], 0, False)
    file.sync()
    file.close()
    filesystem.rename(path + ".tmp", path)
    filesystem.sync_directory(directory)
