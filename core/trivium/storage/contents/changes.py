"""The changes that make up a write batch: encoded as they are made, and read back.

``Changes`` collects those of the batch that is being filled; docs/storage-format.md shows each kind
byte by byte. Nothing is joined or checksummed here: the writer does that once per batch.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

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
_APPEND_CHANGE: Final = Struct("<BxHIQII")
#: kind, (pad), log, two numbers
_LOG_CHANGE: Final = Struct("<B3xIQQ")
#: kind, (pad), name size, number; then the name
_DEFINE_CHANGE: Final = Struct("<BxHI")
#: kind, (pad), table, key size, value size; then the key and the value
_ROW_CHANGE: Final = Struct("<B3xIII")

_pack_append: Final = _APPEND_CHANGE.pack
_pack_log: Final = _LOG_CHANGE.pack
_pack_row: Final = _ROW_CHANGE.pack
_unpack_append: Final = _APPEND_CHANGE.unpack_from
_unpack_log: Final = _LOG_CHANGE.unpack_from
_unpack_row: Final = _ROW_CHANGE.unpack_from


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
        self.parts.append(_DEFINE_CHANGE.pack(kind, len(name), number) + name)

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


class WrongChange(Exception):
    """A write batch holds something that is no change, or one that cannot follow the others."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ChangeVisitor:
    """What a reader of write batches does about each change."""

    def append(self, log: int, offset: int, count: int, record: bytes, annotation: bytes) -> None:
        """APPEND or APPEND_SAME."""
        raise NotImplementedError

    def change_log(self, kind: int, log: int, first: int, last: int) -> None:
        """A change of a log that carries two numbers at most: REMOVE to NEXT_OFFSET."""
        raise NotImplementedError

    def put(self, table: int, key: bytes, value: bytes) -> None:
        """PUT."""
        raise NotImplementedError

    def delete(self, table: int, key: bytes) -> None:
        """DELETE."""
        raise NotImplementedError

    def define(self, kind: int, number: int, name: bytes) -> None:
        """DEFINE_LOG or DEFINE_TABLE."""
        raise NotImplementedError


def read_changes(data: bytes, position: int, end: int, visitor: ChangeVisitor) -> None:
    """Have ``visitor`` see the changes that lie in ``data``, one after the other.

    Raises WrongChange, IndexError or struct.error where they end too soon, too late or with a kind
    that does not exist; ``visitor`` has seen those before it, and may have seen one that is cut.
    """
    record = b""
    while position < end:
        kind = data[position]
        if APPEND <= kind <= APPEND_SAME:
            _, annotation_size, log, offset, count, size = _unpack_append(data, position)
            annotation_at = position + _APPEND_CHANGE.size
            record_at = annotation_at + annotation_size
            position = record_at + size
            if kind == APPEND:
                record = data[record_at:position]
            visitor.append(log, offset, count, record, data[annotation_at:record_at])
        elif REMOVE <= kind <= NEXT_OFFSET:
            _, log, first, last = _unpack_log(data, position)
            position += _LOG_CHANGE.size
            visitor.change_log(kind, log, first, last)
        elif kind in (PUT, DELETE):
            _, table, key_size, value_size = _unpack_row(data, position)
            key_at = position + _ROW_CHANGE.size
            value_at = key_at + key_size
            position = value_at + value_size
            if kind == PUT:
                visitor.put(table, data[key_at:value_at], data[value_at:position])
            else:
                visitor.delete(table, data[key_at:value_at])
        elif kind in (DEFINE_LOG, DEFINE_TABLE):
            _, size, number = _DEFINE_CHANGE.unpack_from(data, position)
            name_at = position + _DEFINE_CHANGE.size
            position = name_at + size
            visitor.define(kind, number, data[name_at:position])
        else:
            raise WrongChange
    if position != end:
        raise WrongChange
