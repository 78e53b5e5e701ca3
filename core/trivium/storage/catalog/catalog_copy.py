"""The catalog's second file, so that no damage to one file costs more than a repair.

Each transaction is made in the catalog first, then here, and only then is removed what it makes
useless: journal files and segments. So this file has what the catalog has or what it had one
transaction before, and both can be used with what else is there. A start makes it anew where it is
not as the catalog; one that cannot be written for want of space is removed until the next time.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Final

from trivium.storage.catalog.catalog import Catalog, CatalogChanges
from trivium.storage.errors import StorageDamaged, StorageFailed
from trivium.storage.files.encryption import Keys
from trivium.storage.files.filesystem import FileSystem

_logger: Final = logging.getLogger(__name__)

#: what SQLite keeps beside a database whose transaction did not end
ROLLBACK_SUFFIX: Final = "-journal"
#: errors after which the file is made anew
_DAMAGED: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))


def remove_database(filesystem: FileSystem, path: str) -> None:
    """Remove a SQLite database that nobody has open. Raises OSError."""
    filesystem.remove(path)
    filesystem.remove(path + ROLLBACK_SUFFIX)


class CatalogCopy:
    """Follows a catalog. Used by the thread that uses it."""

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        original: Catalog,
        keys: Keys,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._filesystem = filesystem
        self._path = path
        self._original = original
        self._keys = keys
        self._entropy = entropy
        self._catalog: Catalog | None = None

    def open(self) -> None:
        """At a start: be as the original. Raises StorageDamaged if that is gone; OSError."""
        expected = self._original.positions()
        if self._filesystem.exists(self._path):
            try:
                self._catalog = self._opened()
            except (StorageDamaged, StorageFailed) as error:
                _logger.warning("%s", error)
        found = None if self._catalog is None else self._catalog.positions()
        if found and not expected:
            raise StorageDamaged(self._original.path, 0, "it is missing, or empty")
        if found != expected:
            self._make()

    def write(self, changes: CatalogChanges) -> None:
        """The original has applied ``changes``: so does this. Raises sqlite3.Error, OSError."""
        if self._catalog is None:
            self._make()
            return
        try:
            self._catalog.write(changes)
        except sqlite3.DatabaseError as error:
            if not self._give_up(error):
                self._make()

    def close(self) -> None:
        """Release the file."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _opened(self) -> Catalog:
        return Catalog(self._filesystem, self._path, self._keys, self._entropy)

    def _make(self) -> None:
        self.close()
        remove_database(self._filesystem, self._path)
        self._catalog = self._opened()
        try:
            self._original.back_up(self._catalog)
        except sqlite3.DatabaseError as error:
            self._give_up(error)

    def _give_up(self, error: sqlite3.DatabaseError) -> bool:
        """Remove the file, for now; False if it was damaged. Raises ``error`` if it is another."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code != sqlite3.SQLITE_FULL and code not in _DAMAGED:
            raise error
        _logger.warning("%s: %s", self._path, error)
        self.close()
        remove_database(self._filesystem, self._path)
        return code == sqlite3.SQLITE_FULL
