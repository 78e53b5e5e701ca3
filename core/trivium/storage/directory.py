"""The mark that says in which format a data directory is."""

from __future__ import annotations

from typing import Final

from trivium.storage.errors import StorageDamaged, StorageVersionMismatch
from trivium.storage.filesystem import FileSystem

FORMAT_VERSION: Final = 1
_FILE: Final = "format"
_TEXT: Final = "trivium storage "


def check_directory_format(filesystem: FileSystem, directory: str, content: str) -> None:
    """Mark a new directory; a directory that has ``content`` must be marked, and as ours.

    Raises StorageDamaged, StorageVersionMismatch, OSError.
    """
    path = f"{directory}/{_FILE}"
    if not filesystem.exists(path):
        if filesystem.exists(f"{directory}/{content}"):
            raise StorageDamaged(path, 0, "it is missing")
        _mark(filesystem, directory, path)
        return
    file = filesystem.open(path)
    text = file.read(0, 256).decode("ascii", "replace")
    file.close()
    if not text.startswith(_TEXT) or not text.endswith("\n"):
        raise StorageDamaged(path, 0, "it does not name a storage format")
    if text != f"{_TEXT}{FORMAT_VERSION}\n":
        found = text[len(_TEXT) :].strip()
        raise StorageVersionMismatch(
            f"{directory} has storage format {found}, this version reads {FORMAT_VERSION}"
        )


def _mark(filesystem: FileSystem, directory: str, path: str) -> None:
    file = filesystem.create(path + ".tmp")
    file.write([f"{_TEXT}{FORMAT_VERSION}\n".encode()], 0, False)
    file.sync()
    file.close()
    filesystem.rename(path + ".tmp", path)
    filesystem.sync_directory(directory)
