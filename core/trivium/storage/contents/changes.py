"""The changes that make up a write batch: encoded as they are made, and read back.

``Changes`` collects those of the batch that is being filled; docs/storage-format.md shows each kind
byte by byte. Nothing is joined or checksummed here: the writer does that once per batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i16_le, read_i32_le, read_i64_le, write_i64_le
from mypy_extensions import i64, mypyc_attr

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
_APPEND_SIZE: Final = 24
#: kind, (pad), log, two numbers
_LOG_CHANGE_SIZE: Final = 24
#: kind, (pad), name size, number; then the name
_DEFINE_SIZE: Final = 8
#: kind, (pad), table, key size, value size; then the key and the value
_ROW_CHANGE_SIZE: Final = 16

#: Bytes of changes that are collected before another piece of the batch is begun (64 KiB).
PIECE_SIZE: Final = 64 * 1024
#: Records and values of this size and more are pieces of their own: they are not copied (4 KiB).
LARGE: Final = 4096


class Changes:
    """The batch that is being filled, and what has changed since the last checkpoint."""

    def __init__(self) -> None:
        #: how many changes there are
        self.count = 0
        #: bytes of the records and rows among them
        self.size = 0
        #: the record that was added last, if ``APPEND_SAME`` may refer to it
        self.last: bytes | None = None
        #: logs and tables with changes that no checkpoint holds, each once; logs by their numbers
        self.logs: dict[int, DiskLog] = {}
        self.tables: list[DiskTable] = []
        #: whether a checkpoint has taken rows of which the last is not in the catalog yet
        self.has_rows_under_way = False
        #: numbers of the logs removed since the last checkpoint
        self.dropped: list[int] = []
        # Encoded changes and their contents, in pieces; those that came last.
        self._pieces: list[bytes] = []
        self._writer = BytesWriter()

    def take(self) -> list[bytes]:
        """Start another batch; the pieces of this one, which follow each other."""
        self._end_piece()
        pieces = self._pieces
        self._pieces = []
        self.count = 0
        self.size = 0
        self.last = None
        return pieces

    def append(self, log: i64, offset: i64, count: i64, record: bytes, annotation: bytes) -> None:
        """A record of a log."""
        self.count += 1
        writer = self._writer
        annotation_size: i64 = len(annotation)
        # Each line is eight bytes: numbers that lie side by side are written as one.
        if record is self.last:
            write_i64_le(writer, APPEND_SAME | annotation_size << 16 | log << 32)
            write_i64_le(writer, offset)
            write_i64_le(writer, count)
            writer.write(annotation)
        else:
            size: i64 = len(record)
            write_i64_le(writer, APPEND | annotation_size << 16 | log << 32)
            write_i64_le(writer, offset)
            write_i64_le(writer, count | size << 32)
            writer.write(annotation)
            self._write(record)
            self.size += size
            self.last = record
        if len(writer) >= PIECE_SIZE:
            self._end_piece()

    def append_run(self, log: i64, offset: i64, records: list[bytes]) -> None:
        """Records of a log, from ``offset`` on, each of one offset and without an annotation."""
        writer = self._writer
        head: i64 = APPEND | log << 32
        for record in records:
            if record is self.last:
                self.append(log, offset, 1, record, b"")
            else:
                self.count += 1
                size: i64 = len(record)
                write_i64_le(writer, head)
                write_i64_le(writer, offset)
                write_i64_le(writer, 1 | size << 32)
                if size < LARGE:
                    writer.write(record)
                else:
                    self._write(record)
                self.size += size
                self.last = record
                if len(writer) >= PIECE_SIZE:
                    self._end_piece()
            offset += 1

    def change_log(self, kind: i64, log: i64, first: i64, last: i64) -> None:
        """A change of a log that carries two numbers at most."""
        self.count += 1
        writer = self._writer
        write_i64_le(writer, kind | log << 32)
        write_i64_le(writer, first)
        write_i64_le(writer, last)
        if len(writer) >= PIECE_SIZE:
            self._end_piece()

    def define(self, kind: i64, number: i64, name: bytes) -> None:
        """Give a log or table its number."""
        self.count += 1
        writer = self._writer
        size: i64 = len(name)
        write_i64_le(writer, kind | size << 16 | number << 32)
        writer.write(name)
        if len(writer) >= PIECE_SIZE:
            self._end_piece()

    def put(self, table: int, key: bytes, value: bytes) -> None:
        """Set a row."""
        self._row(PUT, table, key, len(value))
        self._write(value)
        self.size += len(value)

    def delete(self, table: int, key: bytes) -> None:
        """Remove a row."""
        self._row(DELETE, table, key, 0)

    def _row(self, kind: i64, table: i64, key: bytes, value_size: i64) -> None:
        self.count += 1
        writer = self._writer
        write_i64_le(writer, kind | table << 32)
        key_size: i64 = len(key)
        write_i64_le(writer, key_size | value_size << 32)
        writer.write(key)
        if len(writer) >= PIECE_SIZE:
            self._end_piece()

    def _write(self, content: bytes) -> None:
        if len(content) < LARGE:
            self._writer.write(content)
        else:
            self._end_piece()
            self._pieces.append(content)

    def _end_piece(self) -> None:
        writer = self._writer
        if len(writer):
            self._pieces.append(writer.getvalue())
            writer.truncate(0)


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

    Raises WrongChange or IndexError where they end too soon, too late or with a kind that does not
    exist; ``visitor`` has seen those before it, and may have seen one that is cut.
    """
    record = b""
    at: i64 = position
    stop: i64 = end
    while at < stop:
        # As they are written: numbers that lie side by side are read as one.
        head: i64 = read_i64_le(data, at)
        kind = head & 0xFF
        if APPEND <= kind <= APPEND_SAME:
            sizes: i64 = read_i64_le(data, at + 16)
            annotation_at: i64 = at + _APPEND_SIZE
            record_at: i64 = annotation_at + (head >> 16 & 0xFFFF)
            after: i64 = record_at + (sizes >> 32 & 0xFFFF_FFFF)
            if kind == APPEND:
                record = data[record_at:after]
            visitor.append(
                head >> 32 & 0xFFFF_FFFF,
                read_i64_le(data, at + 8),
                sizes & 0xFFFF_FFFF,
                record,
                data[annotation_at:record_at],
            )
            at = after
        elif REMOVE <= kind <= NEXT_OFFSET:
            visitor.change_log(
                kind, _u32(data, at + 4), read_i64_le(data, at + 8), read_i64_le(data, at + 16)
            )
            at += _LOG_CHANGE_SIZE
        elif PUT <= kind <= DELETE:
            key_at: i64 = at + _ROW_CHANGE_SIZE
            value_at: i64 = key_at + _u32(data, at + 8)
            end_at: i64 = value_at + _u32(data, at + 12)
            table = _u32(data, at + 4)
            if kind == PUT:
                visitor.put(table, data[key_at:value_at], data[value_at:end_at])
            else:
                visitor.delete(table, data[key_at:value_at])
            at = end_at
        elif DEFINE_LOG <= kind <= DEFINE_TABLE:
            name_at: i64 = at + _DEFINE_SIZE
            name_end: i64 = name_at + _u16(data, at + 2)
            visitor.define(kind, _u32(data, at + 4), data[name_at:name_end])
            at = name_end
        else:
            raise WrongChange
    if at != stop:
        raise WrongChange


def _u16(data: bytes, at: i64) -> i64:
    return i64(read_i16_le(data, at)) & 0xFFFF


def _u32(data: bytes, at: i64) -> i64:
    return i64(read_i32_le(data, at)) & 0xFFFF_FFFF
