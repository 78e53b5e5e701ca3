"""The changes that make up a write batch, encoded as they are made.

``Changes`` collects those of the batch that is being filled; docs/storage-format.md shows each kind
byte by byte. Nothing is joined or checksummed here: the writer does that once per batch.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trivium.storage.contents.log import DiskLog
    from trivium.storage.contents.table import DiskTable

#: a record of a log
APPEND: Final = 1
#: the record stored last in this batch, for another log
APPEND_SAME: Final = 2
#: the records that start in a range of offsets are removed
REMOVE: Final = 3
#: everything before an offset is removed
TRUNCATE: Final = 4
#: a log is gone
DROP_LOG: Final = 5
#: offsets before this one are given out
NEXT_OFFSET: Final = 6
#: the name of a log's number
DEFINE_LOG: Final = 7
#: the name of a table's number
DEFINE_TABLE: Final = 8
PUT: Final = 9
DELETE: Final = 10

#: kind, (pad), annotation size, log, offset, count, record size; then the annotation and the record
APPEND_CHANGE: Final = Struct("<BxHIQII")
#: kind, (pad), log, two numbers
LOG_CHANGE: Final = Struct("<B3xIQQ")
#: kind, (pad), name size, number; then the name
DEFINE_CHANGE: Final = Struct("<BxHI")
#: kind, (pad), table, key size, value size; then the key and the value
ROW_CHANGE: Final = Struct("<B3xIII")

_pack_append: Final = APPEND_CHANGE.pack
_pack_log: Final = LOG_CHANGE.pack
_pack_row: Final = ROW_CHANGE.pack


class Changes:
    """The batch that is being filled, and what has changed since the last checkpoint."""

    def __init__(self) -> None:
        #: encoded changes and their contents, to be joined
        self.parts: list[bytes] = []
        #: bytes of the records and rows among them
        self.size = 0
        #: the record that was added last, if ``APPEND_SAME`` may refer to it
        self.last: bytes | None = None
        #: logs and tables with changes that no checkpoint holds, each once
        self.logs: list[DiskLog] = []
        self.tables: list[DiskTable] = []
        #: numbers of the logs removed since the last checkpoint
        self.dropped: list[int] = []

    def take(self) -> list[bytes]:
        """Start another batch; the parts of this one."""
        parts = self.parts
        self.parts = []
        self.size = 0
        self.last = None
        return parts

    def append(self, log: int, offset: int, count: int, record: bytes, annotation: bytes) -> None:
        """A record of a log."""
        parts = self.parts
        if record is self.last:
            parts.append(_pack_append(APPEND_SAME, len(annotation), log, offset, count, 0))
            if annotation:
                parts.append(annotation)
            return
        parts.append(_pack_append(APPEND, len(annotation), log, offset, count, len(record)))
        if annotation:
            parts.append(annotation)
        parts.append(record)
        self.size += len(record)
        self.last = record

    def change_log(self, kind: int, log: int, first: int, last: int) -> None:
        """A change of a log that carries two numbers at most."""
        self.parts.append(_pack_log(kind, log, first, last))

    def define(self, kind: int, number: int, name: bytes) -> None:
        """Give a log or table its number."""
        self.parts.append(DEFINE_CHANGE.pack(kind, len(name), number) + name)

    def put(self, table: int, key: bytes, value: bytes) -> None:
        """Set a row."""
        parts = self.parts
        parts.append(_pack_row(PUT, table, len(key), len(value)))
        parts.append(key)
        parts.append(value)
        self.size += len(value)

    def delete(self, table: int, key: bytes) -> None:
        """Remove a row."""
        parts = self.parts
        parts.append(_pack_row(DELETE, table, len(key), 0))
        parts.append(key)
