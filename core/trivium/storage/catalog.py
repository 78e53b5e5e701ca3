"""The catalog: what a checkpoint knows, in a SQLite database that changes in one transaction.

It names the logs, where their chunks lie in segment files and which of their records are removed;
it holds the rows of the tables; and it says from where the journal must be replayed. SQLite does
not notice a changed bit, so every row carries a checksum.
"""

from __future__ import annotations

import sqlite3
import zlib
from typing import TYPE_CHECKING, Final

from trivium.storage.chunks import Chunk
from trivium.storage.errors import StorageDamaged, StorageFailed, StorageVersionMismatch
from trivium.storage.filesystem import FileSystem
from trivium.storage.log import DiskLog
from trivium.storage.segments import Segments, offsets_from_bytes, offsets_to_bytes
from trivium.storage.table import DiskTable

if TYPE_CHECKING:
    from trivium.storage.checkpoint import Checkpoint
    from trivium.storage.recovery import Recovered

VERSION: Final = 1

_SCHEMA: Final = (
    "CREATE TABLE position (name TEXT PRIMARY KEY, value INTEGER NOT NULL, checksum INTEGER)",
    "CREATE TABLE log (number INTEGER PRIMARY KEY, name TEXT NOT NULL,"
    " next_offset INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE TABLE chunk (log INTEGER, first INTEGER, end INTEGER NOT NULL, slots INTEGER NOT NULL,"
    " size INTEGER NOT NULL, segment INTEGER NOT NULL, position INTEGER NOT NULL,"
    " length INTEGER NOT NULL, removed BLOB NOT NULL, offsets BLOB NOT NULL, ends BLOB NOT NULL,"
    " checksum INTEGER NOT NULL, PRIMARY KEY (log, first)) WITHOUT ROWID",
    "CREATE TABLE key_table (number INTEGER PRIMARY KEY, name TEXT NOT NULL,"
    " checksum INTEGER NOT NULL)",
    "CREATE TABLE key_value (key_table INTEGER, key BLOB, value BLOB NOT NULL,"
    " checksum INTEGER NOT NULL, PRIMARY KEY (key_table, key)) WITHOUT ROWID",
)

_ChunkRow = tuple[int, int, int, int, int, int, int, int, bytes, bytes, bytes]


def checksum_of(row: tuple[int | str | bytes, ...]) -> int:
    """CRC-32 over the values of a row, each as text or bytes with a zero byte behind it."""
    checksum = 0
    for value in row:
        data = value if isinstance(value, bytes) else str(value).encode()
        checksum = zlib.crc32(b"\0", zlib.crc32(data, checksum))
    return checksum


def _bits(removed: int) -> bytes:
    return removed.to_bytes((removed.bit_length() + 7) // 8, "little")


class Catalog:
    """The open database. Used by one thread at a time."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._path = path
        try:
            self._database = filesystem.open_database(path)
        except sqlite3.OperationalError as error:
            raise StorageFailed(f"cannot open {path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise StorageDamaged(path, 0, str(error)) from error
        self._connection = self._database.connection

    def load(self, recovered: Recovered, segments: Segments) -> None:
        """Build logs and tables as the last checkpoint has them, and count the segments' chunks.

        Raises StorageDamaged, StorageVersionMismatch.
        """
        try:
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                return
            if version != VERSION:
                raise StorageVersionMismatch(
                    f"{self._path} has format {version}, this version reads {VERSION}"
                )
            self._load_positions(recovered, segments)
            self._load_logs(recovered, segments)
            self._load_tables(recovered)
        except (sqlite3.Error, TypeError, ValueError, KeyError) as error:
            raise StorageDamaged(self._path, 0, str(error)) from error

    def _load_positions(self, recovered: Recovered, segments: Segments) -> None:
        values: dict[str, int] = {}
        for name, value, checksum in self._connection.execute("SELECT * FROM position"):
            self._check((name, value), checksum)
            values[name] = value
        recovered.checkpoint_batch = values["checkpoint_batch"]
        recovered.needed_batch = values["needed_batch"]
        recovered.first_file = values["first_file"]
        recovered.next_log = values["next_log"]
        segments.next_segment = values["next_segment"]

    def _load_logs(self, recovered: Recovered, segments: Segments) -> None:
        for number, name, next_offset, checksum in self._connection.execute("SELECT * FROM log"):
            self._check((number, name, next_offset), checksum)
            log = DiskLog(number, name, recovered.changes, segments)
            recovered.logs[number] = log
            log.next_offset = log.first_offset = next_offset
        sizes: dict[int, int] = {}
        for row in self._connection.execute("SELECT * FROM chunk ORDER BY log, first"):
            self._check(row[:-1], row[-1])
            number, first, end, slots, size, segment, position, length, removed = row[:9]
            chunk = Chunk(first)
            chunk.end = end
            chunk.slots = slots
            chunk.size = size
            chunk.segment = segment
            chunk.position = position
            chunk.length = length
            chunk.removed = int.from_bytes(removed, "little")
            chunk.live = slots - chunk.removed.bit_count()
            chunk.records = None
            chunk.closed = chunk.fixed = True
            if row[9]:
                chunk.offsets = offsets_from_bytes(row[9])
                chunk.ends = offsets_from_bytes(row[10])
            recovered.logs[number].adopt(chunk)
            segments.chunks[segment] = segments.chunks.get(segment, 0) + 1
            sizes[segment] = max(sizes.get(segment, 0), position + length)
        for segment, needed in sizes.items():
            segments.check(segment, needed)

    def _load_tables(self, recovered: Recovered) -> None:
        tables = recovered.tables
        for number, name, checksum in self._connection.execute("SELECT * FROM key_table"):
            self._check((number, name), checksum)
            tables[number] = DiskTable(number, name, recovered.changes)
            recovered.next_table = max(recovered.next_table, number + 1)
        for number, key, value, checksum in self._connection.execute("SELECT * FROM key_value"):
            if checksum != zlib.crc32(value, zlib.crc32(key, number)):
                raise StorageDamaged(self._path, 0, "a row has a wrong checksum")
            tables[number].load(key, value)

    def _check(self, row: tuple[int | str | bytes, ...], checksum: int) -> None:
        if checksum_of(row) != checksum:
            raise StorageDamaged(self._path, 0, "a row has a wrong checksum")

    def write(self, checkpoint: Checkpoint) -> None:
        """Apply a checkpoint. Raises sqlite3.Error."""
        execute = self._connection.execute
        executemany = self._connection.executemany
        execute("BEGIN IMMEDIATE")
        if execute("PRAGMA user_version").fetchone() == (0,):
            for statement in _SCHEMA:
                execute(statement)
            execute(f"PRAGMA user_version = {VERSION}")
        executemany(
            "INSERT OR REPLACE INTO log VALUES (?, ?, ?, ?)",
            ((*row, checksum_of(row)) for row in checkpoint.log_rows),
        )
        executemany(
            "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            ((*row, checksum_of(row)) for row in map(_chunk_row, checkpoint.chunk_states())),
        )
        # Removals come last: what was looked at early may have been removed since.
        executemany(
            "DELETE FROM chunk WHERE log = ? AND first = ?",
            ((log, first) for log, first, _ in checkpoint.dead),
        )
        for number in checkpoint.dropped:
            execute("DELETE FROM chunk WHERE log = ?", (number,))
            execute("DELETE FROM log WHERE number = ?", (number,))
        executemany(
            "INSERT OR REPLACE INTO key_table VALUES (?, ?, ?)",
            ((*row, checksum_of(row)) for row in checkpoint.table_rows),
        )
        executemany("DELETE FROM key_value WHERE key_table = ? AND key = ?", checkpoint.deleted)
        executemany(
            "INSERT OR REPLACE INTO key_value VALUES (?, ?, ?, ?)",
            (
                (number, key, value, zlib.crc32(value, zlib.crc32(key, number)))
                for number, key, value in checkpoint.rows
            ),
        )
        executemany(
            "INSERT OR REPLACE INTO position VALUES (?, ?, ?)",
            ((*row, checksum_of(row)) for row in checkpoint.positions()),
        )
        self._database.commit()

    def roll_back(self) -> None:
        """Forget a write that failed. Raises sqlite3.Error."""
        self._connection.rollback()

    def close(self) -> None:
        """Release the file."""
        self._database.close()


def _chunk_row(state: tuple[int, Chunk, int, int, int, int]) -> _ChunkRow:
    log, chunk, segment, position, length, removed = state
    return (
        log,
        chunk.first,
        chunk.end,
        chunk.slots,
        chunk.size,
        segment,
        position,
        length,
        _bits(removed),
        b"" if chunk.offsets is None else offsets_to_bytes(chunk.offsets),
        b"" if chunk.ends is None else offsets_to_bytes(chunk.ends),
    )
