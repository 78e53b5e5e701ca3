"""The catalog: what a checkpoint knows, in a SQLite database that changes in one transaction.

It names the logs, where their chunks lie in segment files and which of their records are removed;
it holds the rows of the tables; and it says from where the journal must be replayed. SQLite does
not notice a changed bit, so every row carries a checksum.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from trivium.storage.contents.log import DiskLog
from trivium.storage.contents.table import DiskTable
from trivium.storage.errors import StorageDamaged, StorageFailed, StorageVersionMismatch
from trivium.storage.files.encryption import PLAIN, SALT_SIZE, FileCipher, Keys
from trivium.storage.files.executor import TimeSlice
from trivium.storage.files.filesystem import Database, FileSystem
from trivium.storage.segments.blocks import offsets_from_bytes, offsets_to_bytes
from trivium.storage.segments.chunks import Chunk, chunk_in_segment
from trivium.storage.segments.segments import Segments

if TYPE_CHECKING:
    from trivium.storage.contents.recovery import Recovered

VERSION: Final = 1

SCHEMA: Final = (
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

SEALED_SCHEMA: Final = (
    "CREATE TABLE sealed_value (key_table INTEGER, key BLOB, key_id BLOB NOT NULL,"
    " salt BLOB NOT NULL, number INTEGER NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL,"
    " PRIMARY KEY (key_table, key)) WITHOUT ROWID"
)
#: Beside ``chunk``: catalogs of versions before do not have it.
WEIGHT_SCHEMA: Final = (
    "CREATE TABLE weight (log INTEGER, first INTEGER, weight INTEGER NOT NULL,"
    " records INTEGER NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (log, first)) WITHOUT ROWID"
)
#: Rows that are freed between two looks at the clock.
_FREED_AT_ONCE: Final = 500
#: Values that one statement takes, in every build of SQLite. The interpreter's lock is given up for
#: each statement, and to win it back from a busy loop takes longer than to write a row: so one
#: statement writes many.
_MOST_VALUES: Final = 999

#: Rows of tables that are read and checked together at a start.
_LOADED_AT_ONCE: Final = 1024

#: The numbers of the tables that have rows, without a look at every row.
_NUMBERS: Final = (
    "WITH RECURSIVE each (number) AS (SELECT min(key_table) FROM key_value UNION ALL"
    " SELECT (SELECT min(key_table) FROM key_value WHERE key_table > number) FROM each"
    " WHERE number IS NOT NULL) SELECT number FROM each WHERE number IS NOT NULL"
)

#: the last two where there is anything in them
TABLES: Final = ("position", "log", "chunk", "key_table", "key_value", "weight", "sealed_value")
#: the columns that name a row of a table
_NAME: Final = ("key_table", "key")
_CONTEXT: Final = b"trivium catalog"

_POSITIONS: Final = frozenset(
    ("checkpoint_batch", "needed_batch", "first_file", "next_log", "next_segment")
)

#: a position of this name gives a table's number: there are few, and all depends on them
_TABLE_PREFIX: Final = "table "

#: the text of a chunk's row of which the checksum is made: three of its values are bytes
_CHUNK_TEXT: Final = b"%d\0" * 8 + b"%b\0" * 3

_ChunkRow = tuple[int, int, int, int, int, int, int, int, bytes, bytes, bytes]


def checksum_of(row: tuple[int | str | bytes, ...]) -> int:
    """CRC-32 over the values of a row, each as text or bytes with a zero byte behind it."""
    parts = [value if isinstance(value, bytes) else str(value).encode() for value in row]
    parts.append(b"")
    return zlib.crc32(b"\0".join(parts))


def checksum_of_row(table: int, key: bytes, value: bytes) -> int:
    """CRC-32 of the key, started with the table's number, continued over the value."""
    return zlib.crc32(value, zlib.crc32(key, table))


def is_right(table: str, row: tuple[Any, ...]) -> bool:
    """Whether a row as it is stored has the right checksum."""
    try:
        if table == "key_value":
            return bool(checksum_of_row(*row[:3]) == row[3])
        return bool(checksum_of(row[:-1]) == row[-1])
    except (TypeError, OverflowError):
        return False


def _are_right(
    number: int,
    keys: tuple[bytes, ...],
    values: tuple[bytes, ...],
    checksums: tuple[int, ...],
) -> bool:
    """Whether rows of a table have the right checksums, without a call of ``checksum_of_row``."""
    try:
        return tuple(map(zlib.crc32, values, map(zlib.crc32, keys, repeat(number)))) == checksums
    except (TypeError, OverflowError):
        return False


def _is_chunk_right(row: tuple[Any, ...]) -> bool:
    """``checksum_of`` at once, for there may be very many; False also where it cannot say."""
    try:
        return bool(zlib.crc32(_CHUNK_TEXT % row[:-1]) == row[-1])
    except TypeError:
        return False


def _has(connection: sqlite3.Connection, table: str) -> bool:
    found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,))
    return bool(found.fetchone()[0])


def _line(text: object) -> str:
    """What SQLite says, which may have several lines, in one."""
    return " ".join(str(text).split())


def _row_context(table: int, key: bytes) -> bytes:
    """What an encrypted value is tied to."""
    return table.to_bytes(4, "little") + key


def _bits(removed: int) -> bytes:
    return removed.to_bytes((removed.bit_length() + 7) // 8, "little")


class CatalogChanges:
    """What one transaction writes. Chunks: log, chunk, segment, position, length, removed."""

    def __init__(self) -> None:
        self.positions: list[tuple[str, int]] = []
        self.logs: list[tuple[int, str, int]] = []
        self.chunks: list[tuple[int, Chunk, int, int, int, int]] = []
        self.tables: list[tuple[int, str]] = []
        #: rows of tables, a list of keys and one of values at a time: a tuple for each row would be
        #: an object more for the collector of cycles to walk
        self.rows: list[tuple[int, list[bytes], list[bytes]]] = []
        self.deleted: list[tuple[int, list[bytes]]] = []
        #: chunks without a record: log, first offset, segment
        self.dead: list[tuple[int, int, int]] = []
        #: numbers of removed logs
        self.dropped: list[int] = []

    def set_positions(
        self,
        checkpoint_batch: int,
        needed_batch: int,
        first_file: int,
        next_log: int,
        next_segment: int,
    ) -> None:
        """Where the journal goes on; see ``Recovered``."""
        self.positions = [
            ("checkpoint_batch", checkpoint_batch),
            ("needed_batch", needed_batch),
            ("first_file", first_file),
            ("next_log", next_log),
            ("next_segment", next_segment),
        ]

    def each_row(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Table, key and value of each row."""
        for number, keys, values in self.rows:
            for key, value in zip(keys, values, strict=True):
                yield number, key, value

    def names(self) -> Iterator[tuple[int, bytes]]:
        """Table and key of each row."""
        for number, keys, _ in self.rows:
            for key in keys:
                yield number, key

    def deleted_names(self) -> Iterator[tuple[int, bytes]]:
        """Table and key of each row that is gone."""
        for number, keys in self.deleted:
            for key in keys:
                yield number, key

    def let_go(self) -> None:
        """Forget all of it, in parts: to free a great deal at once keeps the interpreter lock."""
        slice_ = TimeSlice()
        lists: list[list[Any]] = [self.logs, self.chunks, self.dead]
        for _, keys, values in self.rows:
            lists += (keys, values)
        for _, keys in self.deleted:
            lists.append(keys)
        for each in lists:
            while each:
                del each[-_FREED_AT_ONCE:]
                slice_.pause()


def refuse(damage: StorageDamaged) -> None:
    """What a start does about damage."""
    raise damage


class Catalog:
    """The open database. Used by one thread at a time."""

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        keys: Keys,
        entropy: Callable[[int], bytes],
        database: Database | None = None,
    ) -> None:
        self.path = path
        self._keys = keys
        self._entropy = entropy
        try:
            self._database = filesystem.open_database(path) if database is None else database
            self._connection = self._database.connection
            # What is deleted is overwritten, so that who reads the pages of a damaged catalog
            # finds nothing that is not valid any more; nor what was there in clear.
            self._connection.execute("PRAGMA secure_delete = ON").close()
        except sqlite3.OperationalError as error:
            raise StorageFailed(f"cannot open {path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise StorageDamaged(path, 0, str(error)) from error
        self._damaged: Callable[[StorageDamaged], None] = refuse
        #: whether it says where the journal goes on; not in a new directory
        self.has_positions = False
        #: the other copy of the tables' names
        self._table_names: dict[int, str] = {}
        #: rows of chunks with a wrong checksum
        self.damaged_chunks: list[tuple[Any, ...]] = []

    def load(
        self,
        recovered: Recovered,
        segments: Segments,
        damaged: Callable[[StorageDamaged], None] = refuse,
    ) -> None:
        """Build logs and tables as the last checkpoint has them, and count the segments' chunks.

        ``damaged`` is told of whatever is wrong; when it returns, the rest is loaded. Logs whose
        name is lost are then called "". Raises StorageVersionMismatch and what ``damaged`` raises.
        """
        self._damaged = damaged
        try:
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                return
            if version != VERSION:
                raise StorageVersionMismatch(
                    f"{self.path} has format {version}, this version reads {VERSION}"
                )
        except sqlite3.Error as error:
            self._report(_line(error))
            return
        for load in (
            self._load_positions,
            self._load_logs,
            self._load_chunks,
            self._load_weights,
            self._load_tables,
            self._load_sealed,
        ):
            try:
                load(recovered, segments)
            except sqlite3.Error as error:
                self._report(_line(error))
            except (TypeError, ValueError, KeyError):
                self._report("a row holds values of the wrong kind")

    def _report(self, reason: str) -> None:
        self._damaged(StorageDamaged(self.path, 0, reason))

    def _rows(self, table: str, key: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a table in order."""
        return self._connection.execute(f"SELECT * FROM {table} ORDER BY {key}")  # noqa: S608

    def _load_positions(self, recovered: Recovered, segments: Segments) -> None:
        values: dict[str, int] = {}
        for name, value, checksum in self._rows("position", "name"):
            if not self._check((name, value), checksum):
                continue
            if name.startswith(_TABLE_PREFIX):
                self._table_names[value] = name.removeprefix(_TABLE_PREFIX)
            values[name] = value
        missing = [name for name in _POSITIONS if name not in values]
        if missing:
            self._report(f"the position {min(missing)} is missing")
            return
        recovered.checkpoint_batch = values["checkpoint_batch"]
        recovered.needed_batch = values["needed_batch"]
        recovered.first_file = values["first_file"]
        recovered.next_log = values["next_log"]
        segments.next_segment = values["next_segment"]
        self.has_positions = True

    def _load_logs(self, recovered: Recovered, segments: Segments) -> None:
        for number, name, next_offset, checksum in self._rows("log", "number"):
            # As ``checksum_of`` has it, for there may be very many.
            found = zlib.crc32(f"{number}\0{name}\0{next_offset}\0".encode())
            if found == checksum or self._check((number, name, next_offset), checksum):
                log = DiskLog(number, name, recovered.changes, segments)
                recovered.logs[number] = log
                log.next_offset = log.first_offset = next_offset

    def _load_chunks(self, recovered: Recovered, segments: Segments) -> None:
        sizes: dict[int, int] = {}
        for row in self._rows("chunk", "log, first"):
            if not _is_chunk_right(row) and not self._check(row[:-1], row[-1]):
                self.damaged_chunks.append(row)
                continue
            number, first, end, slots, size, segment, position, length, removed = row[:9]
            chunk = chunk_in_segment(first, end, slots, size, segment, position, length)
            if removed:
                chunk.removed = int.from_bytes(removed, "little")
                chunk.live = slots - chunk.removed.bit_count()
            if row[9]:
                chunk.offsets = offsets_from_bytes(row[9])
                chunk.ends = offsets_from_bytes(row[10])
            log = recovered.logs.get(number)
            if log is None:
                self._report(f"the name of log {number} is missing")
                log = recovered.nameless(number)
            if not log.adopt(chunk):
                self._report(f"a chunk of log {number} overlaps others")
                continue
            segments.add(log, chunk)
            sizes[segment] = max(sizes.get(segment, 0), position + length)
        for segment, needed in sizes.items():
            try:
                segments.check(segment, needed)
            except StorageDamaged as damage:
                self._damaged(damage)

    def _load_weights(self, recovered: Recovered, segments: Segments) -> None:
        if not _has(self._connection, "weight"):
            return
        for row in self._rows("weight", "log, first"):
            if not self._check(row[:-1], row[-1]):
                continue
            log = recovered.logs.get(row[0])
            if log is not None:
                log.restore_weight(*row[1:4])

    def _load_tables(self, recovered: Recovered, segments: Segments) -> None:
        tables = recovered.tables
        for number, name, checksum in self._rows("key_table", "number"):
            if self._check((number, name), checksum):
                tables[number] = DiskTable(number, name, recovered.changes)
        for number, name in self._table_names.items():
            if number not in tables:
                self._report(f"the row of table {name} is missing")
                tables[number] = DiskTable(number, name, recovered.changes)
        recovered.next_table = max(recovered.next_table - 1, *tables, 0) + 1
        query = "SELECT key, value, checksum FROM key_value WHERE key_table = ? ORDER BY key"
        for (number,) in self._connection.execute(_NUMBERS):
            # There may be millions of them.
            rows = self._connection.execute(query, (number,))
            is_last = False
            while not is_last:
                part: list[tuple[Any, ...]] = []
                try:
                    part.extend(islice(rows, _LOADED_AT_ONCE))
                finally:
                    # Behind an error too: what was read until then counts.
                    self._load_rows(number, tables.get(number), part)
                is_last = not part

    def _load_rows(self, number: int, table: DiskTable | None, rows: list[tuple[Any, ...]]) -> None:
        is_sealed = self._keys.current != PLAIN
        if rows and not is_sealed and table is not None:
            keys, values, checksums = zip(*rows, strict=True)
            if _are_right(number, keys, values, checksums):
                table.load_all(keys, values)
                return
        for key, value, checksum in rows:
            if table is None:
                self._report(f"the name of table {number} is missing")
            elif checksum != checksum_of_row(number, key, value):
                self._report(f"a row of table {table.name} has a wrong checksum: {key!r}")
            else:
                table.load(key, value)
                if is_sealed:
                    table.mark_changed(key)

    def _load_sealed(self, recovered: Recovered, segments: Segments) -> None:
        if not _has(self._connection, "sealed_value"):
            return
        ciphers: dict[tuple[bytes, bytes], FileCipher] = {}
        for row in self._rows("sealed_value", "key_table, key"):
            if not self._check(row[:-1], row[-1]):
                continue
            number, key, id_, salt, position, sealed = row[:6]
            cipher = ciphers.get((id_, salt))
            if cipher is None:
                cipher = self._keys.cipher(id_, salt, _CONTEXT, self.path)
                ciphers[id_, salt] = cipher
            value = cipher.unseal(position, sealed, _row_context(number, key))
            table = recovered.tables.get(number)
            if table is None:
                self._report(f"the name of table {number} is missing")
            elif value is None:
                self._report(f"a row of table {table.name} cannot be decrypted: {key!r}")
            else:
                table.load(key, value)
                if self._keys.current != id_:
                    table.mark_changed(key)

    def _check(self, row: tuple[int | str | bytes, ...], checksum: int) -> bool:
        if checksum_of(row) == checksum:
            return True
        self._report("a row has a wrong checksum")
        return False

    def verify(self) -> str:
        """What is wrong with the file, in a line; "" when it is in order."""
        fault = self.verify_pages()
        if fault:
            return fault
        execute = self._connection.execute
        try:
            (version,) = execute("PRAGMA user_version").fetchone()
            (tables,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
            # Another version of it would be in a directory of another format.
            if version != (VERSION if tables else 0):
                return f"it says format {version}"
            for name in [name for name in TABLES if tables and _has(self._connection, name)]:
                for row in execute(f"SELECT * FROM {name}"):  # noqa: S608
                    if not is_right(name, row):
                        return f"a row of {name} has a wrong checksum"
        except (sqlite3.Error, UnicodeDecodeError) as error:
            return _line(error)
        return ""

    def verify_pages(self) -> str:
        """What is wrong with the file's structure, in a line; "" when it is in order."""
        try:
            found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        except (sqlite3.Error, UnicodeDecodeError) as error:
            return _line(error)
        return "" if found == "ok" else _line(found)

    def positions(self) -> list[tuple[Any, ...]]:
        """What it says of the journal, with the checksums; nothing where it cannot be read."""
        try:
            return self._connection.execute("SELECT * FROM position ORDER BY name").fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            return []

    def back_up(self, other: Catalog) -> None:
        """Have an empty catalog hold what this one holds. Raises sqlite3.Error."""
        self._connection.backup(other._connection)
        other._database.commit()

    def write(self, changes: CatalogChanges) -> None:
        """Apply all of it or nothing. Raises sqlite3.Error."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        if execute("PRAGMA user_version").fetchone() == (0,):
            for statement in SCHEMA:
                execute(statement)
            execute(f"PRAGMA user_version = {VERSION}")
        self._put("log", ((*row, checksum_of(row)) for row in changes.logs))
        self._put("chunk", ((*row, checksum_of(row)) for row in map(_chunk_row, changes.chunks)))
        if not _has(self._connection, "weight"):
            execute(WEIGHT_SCHEMA)
        weights = (
            (log, chunk.first, chunk.weight, chunk.weighed)
            for log, chunk, *_ in changes.chunks
            if chunk.weighed
        )
        self._put("weight", ((*row, checksum_of(row)) for row in weights))
        # Removals come last: what was looked at early may have been removed since.
        for table in ("chunk", "weight"):
            self._delete(table, "log", "first", ((log, first) for log, first, _ in changes.dead))
            self._delete_all(table, "log", changes.dropped)
        self._delete_all("log", "number", changes.dropped)
        self._put("key_table", ((*row, checksum_of(row)) for row in changes.tables))
        self._write_rows(changes)
        names = ((_TABLE_PREFIX + name, number) for number, name in changes.tables)
        positions = chain(changes.positions, names)
        self._put("position", ((*row, checksum_of(row)) for row in positions))
        self._database.commit()

    def _write_rows(self, changes: CatalogChanges) -> None:
        has_sealed = _has(self._connection, "sealed_value")
        is_plain = self._keys.current == PLAIN
        if not is_plain and not has_sealed:
            self._connection.execute(SEALED_SCHEMA)
            has_sealed = True
        # A row is in one of the two tables.
        if is_plain:
            rows = ((*row, checksum_of_row(*row)) for row in changes.each_row())
            self._put("key_value", rows)
            self._delete("key_value", *_NAME, changes.deleted_names())
            if has_sealed:
                names = chain(changes.names(), changes.deleted_names())
                self._delete("sealed_value", *_NAME, names)
            return
        names = chain(changes.names(), changes.deleted_names())
        self._delete("key_value", *_NAME, names)
        self._delete("sealed_value", *_NAME, changes.deleted_names())
        id_, salt = self._keys.current, self._entropy(SALT_SIZE)
        cipher = self._keys.cipher(id_, salt, _CONTEXT, self.path)
        sealed = (
            (number, key, id_, salt, at, cipher.seal(at, value, _row_context(number, key)))
            for at, (number, key, value) in enumerate(changes.each_row())
        )
        self._put("sealed_value", ((*row, checksum_of(row)) for row in sealed))

    def _put(self, table: str, rows: Iterator[tuple[Any, ...]]) -> None:
        """Write rows, in place of those with the same key."""
        for first in rows:
            place = f"({', '.join('?' * len(first))})"
            part = [first, *islice(rows, _MOST_VALUES // len(first) - 1)]
            places = ", ".join([place] * len(part))
            statement = f"INSERT OR REPLACE INTO {table} VALUES {places}"  # noqa: S608
            self._connection.execute(statement, tuple(chain.from_iterable(part)))

    def _delete(
        self, table: str, first: str, second: str, names: Iterable[tuple[int, int | bytes]]
    ) -> None:
        """Remove rows, named by two columns, if they are there."""
        for number, group in groupby(names, itemgetter(0)):
            condition = f"{first} = ? AND {second}"
            self._delete_all(table, condition, map(itemgetter(1), group), (number,))

    def _delete_all(
        self,
        table: str,
        condition: str,
        values: Iterable[int | bytes],
        before: tuple[int, ...] = (),
    ) -> None:
        """Remove rows where ``condition``, which takes the values ``before``, is in ``values``."""
        left = iter(values)
        while part := tuple(islice(left, _MOST_VALUES - len(before))):
            places = ", ".join("?" * len(part))
            statement = f"DELETE FROM {table} WHERE {condition} IN ({places})"  # noqa: S608
            self._connection.execute(statement, before + part)

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
