"""What is left of a damaged catalog: rows read from the pages of its file, without SQLite's help.

Every row carries a checksum, so a page can be believed whatever became of those that lead to it.
The layout of pages and records is SQLite's: https://www.sqlite.org/fileformat2.html, sections 1.5
and 2.1.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from trivium.storage.catalog.catalog import SCHEMA, SEALED_SCHEMA, VERSION, is_right
from trivium.storage.files.filesystem import Database

#: SQLite's own choice; the catalog does not ask for another
_PAGE_SIZE: Final = 4096
_FILE_HEADER_SIZE: Final = 100
#: magic, page size, no write-ahead log, nothing reserved in pages, and fixed fractions
_FILE_START: Final = b"SQLite format 3\0" + struct.pack(">H6B", _PAGE_SIZE, 1, 1, 0, 64, 32, 32)
#: text is UTF-8
_ENCODING_AT: Final = 56
_ENCODING: Final = bytes([0, 0, 0, 1])

#: kinds of pages that hold records, and the size of their headers
_INDEX_INTERIOR: Final = 2
_INDEX_LEAF: Final = 10
_TABLE_LEAF: Final = 13
_HEADER_SIZES: Final = {_INDEX_INTERIOR: 12, _INDEX_LEAF: 8, _TABLE_LEAF: 8}

_INTEGER_SIZES: Final = (0, 1, 2, 3, 4, 6, 8)

_Record = tuple[int | None, tuple[Any, ...]]


class SalvagedDatabase(Database):
    """A copy in memory of what was found."""

    def __init__(self, connection: sqlite3.Connection, is_whole: bool) -> None:
        self.connection = connection
        #: whether SQLite finds nothing wrong with it: only the file's header was damaged
        self.is_whole = is_whole

    def close(self) -> None:
        self.connection.close()


def salvaged(files: list[bytes]) -> SalvagedDatabase:
    """All that the files of a catalog still say; where they differ the last one counts."""
    for data in reversed(files):
        connection = _with_new_header(data)
        if connection is not None:
            return SalvagedDatabase(connection, True)
    return SalvagedDatabase(_from_pages(files), False)


def _with_new_header(data: bytes) -> sqlite3.Connection | None:
    """The database in a file of which nothing but the header is damaged; else None."""
    header = bytearray(data[:_FILE_HEADER_SIZE])
    header[: len(_FILE_START)] = _FILE_START
    header[_ENCODING_AT : _ENCODING_AT + len(_ENCODING)] = _ENCODING
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.deserialize(bytes(header) + data[_FILE_HEADER_SIZE:])
        if connection.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == VERSION:
                return connection
    except (sqlite3.Error, UnicodeDecodeError):
        # It is read page by page then.
        pass
    connection.close()
    return None


def _from_pages(files: list[bytes]) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in (*SCHEMA, SEALED_SCHEMA, f"PRAGMA user_version = {VERSION}"):
        connection.execute(statement)
    wrong: list[tuple[str, tuple[Any, ...]]] = []
    for rowid, values in chain.from_iterable(map(_records, files)):
        table, row = _row(rowid, values)
        if not table:
            continue
        if is_right(table, row):
            _insert(connection, "REPLACE", table, row)
        else:
            wrong.append((table, row))
    # For whoever loads them to say so.
    for table, row in wrong:
        _insert(connection, "IGNORE", table, row)
    return connection


def _insert(
    connection: sqlite3.Connection, resolution: str, table: str, row: tuple[Any, ...]
) -> None:
    places = ", ".join("?" * len(row))
    statement = f"INSERT OR {resolution} INTO {table} VALUES ({places})"  # noqa: S608
    try:
        connection.execute(statement, row)
    except sqlite3.Error:
        # It was no row.
        return


def _row(rowid: int | None, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The table that a record is from, "" for none of ours, and the row."""
    columns = len(values)
    if rowid is None:
        return {12: "chunk", 4: "key_value", 7: "sealed_value"}.get(columns, ""), values
    if columns == 3 and values[0] is not None:
        return "position", values
    return {4: "log", 3: "key_table"}.get(columns, ""), (rowid, *values[1:])


def _records(data: bytes) -> Iterator[_Record]:
    """Every record of every page, with its row id; None in an index."""
    for start in range(0, len(data), _PAGE_SIZE):
        head = start or _FILE_HEADER_SIZE
        try:
            kind = data[head]
            if kind not in _HEADER_SIZES:
                continue
            (count,) = struct.unpack_from(">H", data, head + 3)
            at = head + _HEADER_SIZES[kind]
            pointers = struct.unpack_from(f">{count}H", data, at)
        except (struct.error, IndexError):
            continue
        for pointer in pointers:
            try:
                yield _record(data, start + pointer, kind)
            except (struct.error, IndexError, UnicodeDecodeError, ValueError):
                continue


def _record(data: bytes, at: int, kind: int) -> _Record:
    if kind == _INDEX_INTERIOR:
        # the number of a page
        at += 4
    size, at = _varint(data, at)
    rowid: int | None = None
    if kind == _TABLE_LEAF:
        rowid, at = _varint(data, at)
    payload = _payload(data, at, size, kind)
    header_size, position = _varint(payload, 0)
    content = header_size
    values: list[Any] = []
    while position < header_size:
        type_, position = _varint(payload, position)
        value, content = _value(payload, content, type_)
        values.append(value)
    return rowid, tuple(values)


def _payload(data: bytes, at: int, size: int, kind: int) -> bytes:
    """A record's bytes: those in the page, and those in overflow pages."""
    if size > len(data):
        raise ValueError("the size of no record")
    most = _PAGE_SIZE - 35 if kind == _TABLE_LEAF else (_PAGE_SIZE - 12) * 64 // 255 - 23
    if size <= most:
        return data[at : at + size]
    least = (_PAGE_SIZE - 12) * 32 // 255 - 23
    here = least + (size - least) % (_PAGE_SIZE - 4)
    if here > most:
        here = least
    parts = [data[at : at + here]]
    (page,) = struct.unpack_from(">I", data, at + here)
    left = size - here
    while left > 0:
        start = (page - 1) * _PAGE_SIZE
        if start < 0:
            raise ValueError("the number of no page")
        (page,) = struct.unpack_from(">I", data, start)
        parts.append(data[start + 4 : start + 4 + min(left, _PAGE_SIZE - 4)])
        left -= _PAGE_SIZE - 4
    return b"".join(parts)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _value(payload: bytes, at: int, type_: int) -> tuple[Any, int]:
    """A column's value and where it ends."""
    if type_ == 0:
        return None, at
    if type_ in (8, 9):
        return type_ - 8, at
    if type_ < len(_INTEGER_SIZES):
        end = at + _INTEGER_SIZES[type_]
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if type_ < 12:
        raise ValueError("no type that the catalog uses")
    end = at + (type_ - 12) // 2
    if end > len(payload):
        raise ValueError("longer than its record")
    value = payload[at:end]
    return value.decode() if type_ % 2 else value, end
