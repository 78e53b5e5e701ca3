"""Errors of the storage: the caller's, the operator's, the disk's.

StorageError
+-- StorageLocked           someone else has the data directory open
+-- StorageKeyError         it is encrypted with a key that was not given
+-- StorageVersionMismatch  the directory was written in a format that this version does not read
+-- StorageDamaged          stored bytes are not what was written; nothing is dropped silently
+-- StorageFailed           the disk refused a write or a sync; final, the process must stop
"""

from __future__ import annotations


class StorageError(Exception):
    """The data directory cannot be used; the text says why in one line."""


class StorageLocked(StorageError):
    """Another process has the data directory open, or this one has."""


class StorageKeyError(StorageError):
    """The data directory is encrypted with a key that was not given."""


class StorageVersionMismatch(StorageError):
    """The data directory has a format that this version does not read."""


class StorageDamaged(StorageError):
    """A stored file is damaged where no crash can have damaged it.

    ``file`` names it and ``offset`` is the position of the first byte that cannot be used.
    """

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file} is damaged at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class StorageFailed(StorageError):
    """A write or sync failed. What was not durable by then may be lost; it is never retried."""
