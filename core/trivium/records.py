"""Record batches: what a stream's partition stores, what FETCH hands over, what Arrow maps.

A batch holds its messages as columns, little-endian and aligned to 8 bytes, so that a reader builds
an Arrow array by slicing buffers, with no Python object per record. The layout is documented byte
by byte in docs/record-batch.md. ``encode_batch`` writes it; ``RecordBatch`` is the view of one.
"""

from __future__ import annotations

import base64
import json
import sys
from array import array
from datetime import datetime
from itertools import accumulate
from struct import Struct
from typing import Final
from zlib import crc32

from trivium.message import Address, HeaderValue, Message, Properties

MAGIC: Final = b"TRVB"
VERSION: Final = 1

#: codec of the body; 1 (lz4) and 2 (zstd) are reserved
CODEC_NONE: Final = 0

HEADER_SIZE: Final = 48
#: magic, version, codec, columns, records, body size, stored size, flags, min and max timestamp,
#: reserved
_HEADER: Final = Struct("<4sBBHIIIIqqI")
_CHECKSUM: Final = Struct("<I")
_CHECKSUM_AT: Final = 44
#: column id, kind, reserved, position in the body, size, nulls
_ENTRY: Final = Struct("<BBHIII")

_OFFSET: Final = Struct("<i")
_LONG: Final = Struct("<q")
_COUNT: Final = Struct("<I")
_COUNT_AT: Final = 8
_MAX_TIMESTAMP_AT: Final = 32

# Column ids.
TIMESTAMP: Final = 1
KEY: Final = 2
EXCHANGE: Final = 3
ROUTING_KEY: Final = 4
PAYLOAD: Final = 5
CONTENT_TYPE: Final = 6
HEADERS: Final = 7
SOURCE_HEADER: Final = 8
PROTOCOL: Final = 9
FLAGS: Final = 10
PRIORITY: Final = 11
EXPIRES: Final = 12

# Column kinds. A column that is not in the batch has its default in every row.
CONSTANT: Final = 1
PLAIN: Final = 2
NULLABLE: Final = 3

# Bits of the FLAGS column.
MODE_MASK: Final = 3
PERSISTENT: Final = 4
RETAIN: Final = 8

#: bytes per row of the fixed-width columns, by column id
_WIDTHS: Final = {TIMESTAMP: 8, PROTOCOL: 1, FLAGS: 1, PRIORITY: 1, EXPIRES: 8}

_IS_BIG_ENDIAN: Final = sys.byteorder == "big"
_PADDING: Final = (b"", bytes(7), bytes(6), bytes(5), bytes(4), bytes(3), bytes(2), bytes(1))


class BatchError(ValueError):
    """The bytes are not a whole, undamaged record batch of a version that this code reads."""


class Described:
    """What a batch shows of a message's properties, whatever protocol they came by.

    ``names`` and ``values`` are the headers: UTF-8 names, and values as bytes (text as UTF-8,
    numbers and booleans as their text, times in ISO 8601, void as nothing, lists and maps as JSON).
    """

    def __init__(
        self,
        key: bytes | None,
        content_type: bytes | None,
        names: list[bytes],
        values: list[bytes],
    ) -> None:
        self.key = key
        self.content_type = content_type
        self.names = names
        self.values = values


#: what a message without properties shows
PLAIN_MESSAGE: Final = Described(None, None, [], [])

#: header by which a protocol without keys of its own sets the partitioning key
KEY_HEADER: Final = "x-key"


def describe(properties: Properties) -> Described:
    """The columns of neutral properties. The key is ``properties.key``, else header ``x-key``."""
    key = properties.key
    names: list[bytes] = []
    values: list[bytes] = []
    for name, value in properties.headers:
        encoded = header_bytes(value)
        if key is None and name == KEY_HEADER:
            key = encoded
        names.append(name.encode("utf-8", "replace"))
        values.append(encoded)
    content_type = properties.content_type
    return Described(
        key,
        None if content_type is None else content_type.encode("utf-8", "replace"),
        names,
        values,
    )


def header_bytes(value: HeaderValue) -> bytes:
    """A neutral header value as bytes; see ``Described``."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, bytes):
        return value
    if value is None:
        return b""
    if value is True:
        return b"true"
    if value is False:
        return b"false"
    if isinstance(value, (int, float)):
        return repr(value).encode()
    if isinstance(value, datetime):
        return value.isoformat().encode()
    text = json.dumps(value, default=_json_text, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _json_text(value: object) -> str:
    """What JSON has no form for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else str(value)


# Encoding


def _int32s(values: list[int]) -> bytes:
    packed = array("i", values)
    if _IS_BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def _int64s(values: list[int]) -> bytes:
    packed = array("q", values)
    if _IS_BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def _binary(values: list[bytes]) -> bytes:
    """Offsets, padding, data: the plain form of a variable-width column."""
    offsets = _int32s(list(accumulate(map(len, values), initial=0)))
    return b"".join([offsets, _PADDING[len(offsets) & 7], *values])


def _nullable(values: list[bytes | None]) -> bytes:
    """Validity bitmap, padding, then the plain form with nothing where a row is null."""
    validity = bytearray((len(values) + 7) // 8)
    present: list[bytes] = []
    for index, value in enumerate(values):
        if value is None:
            present.append(b"")
        else:
            validity[index >> 3] |= 1 << (index & 7)
            present.append(value)
    return b"".join((bytes(validity), _PADDING[len(validity) & 7], _binary(present)))


def _headers(rows: list[Described]) -> bytes:
    """The plain form of the headers column: list offsets, then names, then values."""
    counts = [0]
    names: list[bytes] = []
    values: list[bytes] = []
    for row in rows:
        names.extend(row.names)
        values.extend(row.values)
        counts.append(len(names))
    offsets = _int32s(counts)
    name_column = _binary(names)
    return b"".join(
        (
            offsets,
            _PADDING[len(offsets) & 7],
            name_column,
            _PADDING[len(name_column) & 7],
            _binary(values),
        )
    )


class _Columns:
    """The columns of a batch as they are added, in order of their ids."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.kinds: list[int] = []
        self.nulls: list[int] = []
        self.data: list[bytes] = []

    def add(self, column: int, kind: int, data: bytes, nulls: int = 0) -> None:
        self.ids.append(column)
        self.kinds.append(kind)
        self.nulls.append(nulls)
        self.data.append(data)

    def add_binary(self, column: int, values: list[bytes]) -> None:
        """Constant where all are equal (absent where all are empty), else plain."""
        first = values[0]
        if values.count(first) == len(values):
            if first:
                self.add(column, CONSTANT, _binary([first]))
        else:
            self.add(column, PLAIN, _binary(values))

    def add_nullable(self, column: int, values: list[bytes | None]) -> None:
        nulls = values.count(None)
        if nulls == len(values):
            return
        if nulls:
            self.add(column, NULLABLE, _nullable(values), nulls)
            return
        present = [value for value in values if value is not None]
        if present.count(present[0]) == len(present):
            self.add(column, CONSTANT, _binary([present[0]]))
        else:
            self.add(column, PLAIN, _binary(present))

    def add_bytes(self, column: int, values: list[int]) -> None:
        first = values[0]
        if values.count(first) != len(values):
            self.add(column, PLAIN, bytes(values))
        elif first:
            self.add(column, CONSTANT, bytes((first,)))

    def add_longs(self, column: int, values: list[int]) -> None:
        first = values[0]
        if values.count(first) != len(values):
            self.add(column, PLAIN, _int64s(values))
        elif first:
            self.add(column, CONSTANT, _int64s([first]))

    def body(self) -> bytes:
        """The directory and the columns, each at a multiple of 8."""
        directory: list[bytes] = []
        parts: list[bytes] = []
        position = len(self.ids) * _ENTRY.size
        for index, data in enumerate(self.data):
            padding = _PADDING[position & 7]
            position += len(padding)
            directory.append(
                _ENTRY.pack(
                    self.ids[index], self.kinds[index], 0, position, len(data), self.nulls[index]
                )
            )
            parts.append(padding)
            parts.append(data)
            position += len(data)
        return b"".join(directory + parts)


def encode_batch(messages: list[Message], described: list[Described] | None = None) -> bytes:
    """One record batch of at least one message.

    ``described`` holds what ``describe`` made of each message's properties; None says that no
    message has any. All payloads, keys, and headers together must stay below 2 GiB.
    """
    first = messages[0]
    address = first.address
    is_one_address = True
    payloads: list[bytes] = []
    timestamps: list[int] = []
    expires: list[int] = []
    protocols: list[int] = []
    priorities: list[int] = []
    flags: list[int] = []
    for message in messages:
        payloads.append(message.payload)
        timestamps.append(message.timestamp)
        expires.append(message.expires)
        protocols.append(message.protocol)
        priorities.append(message.priority)
        bits = message.mode
        if message.persistent:
            bits |= PERSISTENT
        if message.retain:
            bits |= RETAIN
        flags.append(bits)
        if message.address is not address:
            is_one_address = False
    columns = _Columns()
    columns.add_longs(TIMESTAMP, timestamps)
    if described is not None:
        columns.add_nullable(KEY, [row.key for row in described])
    if is_one_address:
        columns.add_binary(EXCHANGE, [address.exchange.encode()])
        columns.add_binary(ROUTING_KEY, [address.key])
    else:
        columns.add_binary(EXCHANGE, [message.address.exchange.encode() for message in messages])
        columns.add_binary(ROUTING_KEY, [message.address.key for message in messages])
    columns.add(PAYLOAD, PLAIN, _binary(payloads))
    if described is not None:
        columns.add_nullable(CONTENT_TYPE, [row.content_type for row in described])
        shown = described[0]
        if described.count(shown) == len(described):
            if shown.names:
                columns.add(HEADERS, CONSTANT, _headers([shown]))
        elif any(len(row.names) > 0 for row in described):
            columns.add(HEADERS, PLAIN, _headers(described))
        columns.add_binary(SOURCE_HEADER, [message.header for message in messages])
    columns.add_bytes(PROTOCOL, protocols)
    columns.add_bytes(FLAGS, flags)
    columns.add_bytes(PRIORITY, priorities)
    columns.add_longs(EXPIRES, expires)
    body = columns.body()
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        CODEC_NONE,
        len(columns.ids),
        len(messages),
        len(body),
        len(body),
        0,
        min(timestamps),
        max(timestamps),
        0,
    )
    return b"".join((header, _CHECKSUM.pack(crc32(body, crc32(header))), body))


# Decoding


class Column:
    """Where one column lies in a batch. Positions count bytes from the start of the batch.

    A CONSTANT column has one row, which stands for every row; ``rows`` says how many the buffers
    hold. Unused positions are -1.
    """

    def __init__(self, id_: int, kind: int, rows: int, nulls: int) -> None:
        self.id = id_
        self.kind = kind
        self.rows = rows
        self.nulls = nulls
        #: validity bitmap (NULLABLE), least significant bit first, 1 for present
        self.validity_at = -1
        #: i32[rows + 1] of a variable-width column
        self.offsets_at = -1
        #: the values
        self.data_at = -1
        self.data_size = 0
        #: HEADERS only: i32[rows + 1] of the lists, and the columns of all names and all values
        self.lists_at = -1
        self.names: Column | None = None
        self.values: Column | None = None


class RecordBatch:
    """A view of an encoded batch: its header fields, and where each column lies.

    ``data`` may be any bytes-like object; nothing is copied out of it before a row is asked for.
    Raises BatchError when it is damaged, cut, or of an unknown version or codec.
    """

    def __init__(self, data: bytes | memoryview, verify: bool = True) -> None:
        if len(data) < HEADER_SIZE:
            raise BatchError("record batch is shorter than its header")
        magic, version, codec, columns, count, size, stored, flags, oldest, newest, _ = (
            _HEADER.unpack_from(data)
        )
        if magic != MAGIC or version != VERSION:
            raise BatchError("not a record batch of version 1")
        if codec != CODEC_NONE or flags != 0:
            raise BatchError(f"record batch codec {codec} with flags {flags} is not supported")
        if len(data) != HEADER_SIZE + stored or size != stored or count == 0:
            raise BatchError("record batch sizes do not add up")
        if verify:
            view = memoryview(data)
            (checksum,) = _CHECKSUM.unpack_from(data, _CHECKSUM_AT)
            if crc32(view[HEADER_SIZE:], crc32(view[:_CHECKSUM_AT])) != checksum:
                raise BatchError("record batch checksum does not match")
        self.data = data
        #: number of records, at least 1
        self.count: int = count
        #: smallest and largest arrival time, milliseconds since the epoch
        self.min_timestamp: int = oldest
        self.max_timestamp: int = newest
        #: by column id; a missing one has its default in every row
        self.columns: dict[int, Column] = {}
        if columns * _ENTRY.size > size:
            raise BatchError("record batch directory is cut")
        for index in range(columns):
            id_, kind, _, position, length, nulls = _ENTRY.unpack_from(
                data, HEADER_SIZE + index * _ENTRY.size
            )
            if position + length > size or not CONSTANT <= kind <= NULLABLE:
                raise BatchError(f"record batch column {id_} is cut or of an unknown kind")
            if TIMESTAMP <= id_ <= EXPIRES:
                rows = 1 if kind == CONSTANT else count
                column = Column(id_, kind, rows, nulls)
                self._place(column, HEADER_SIZE + position, length)
                self.columns[id_] = column

    def _place(self, column: Column, start: int, size: int) -> None:
        width = _WIDTHS.get(column.id, 0)
        if width:
            if size != width * column.rows or column.kind == NULLABLE:
                raise BatchError(f"record batch column {column.id} has a wrong size")
            column.data_at = start
            column.data_size = size
            return
        end = start + size
        if column.kind == NULLABLE:
            column.validity_at = start
            start += _aligned((column.rows + 7) // 8)
        if column.id != HEADERS:
            if self._place_binary(column, start, end) != end:
                raise BatchError(f"record batch column {column.id} has a wrong size")
            return
        column.lists_at = start
        total = self._last_offset(start, column.rows, end)
        names = Column(HEADERS, PLAIN, total, 0)
        values = Column(HEADERS, PLAIN, total, 0)
        after = self._place_binary(names, start + _aligned(4 * (column.rows + 1)), end)
        after += -(after - HEADER_SIZE) & 7
        if self._place_binary(values, after, end) != end:
            raise BatchError("record batch headers have a wrong size")
        column.names = names
        column.values = values

    def _last_offset(self, start: int, rows: int, end: int) -> int:
        """The checked last of ``rows + 1`` offsets at ``start``: the size of what they address."""
        if start + 4 * (rows + 1) > end:
            raise BatchError("record batch offsets are cut")
        last = self._offset(start, rows)
        if self._offset(start, 0) != 0 or not 0 <= last <= end - start:
            raise BatchError("record batch offsets are wrong")
        return last

    def _place_binary(self, column: Column, start: int, end: int) -> int:
        """Set the positions of a variable-width column; the position after its data."""
        column.data_size = self._last_offset(start, column.rows, end)
        column.offsets_at = start
        column.data_at = start + _aligned(4 * (column.rows + 1))
        after = column.data_at + column.data_size
        if after > end:
            raise BatchError(f"record batch column {column.id} is cut")
        return after

    def _offset(self, offsets_at: int, row: int) -> int:
        found: int = _OFFSET.unpack_from(self.data, offsets_at + 4 * row)[0]
        return found

    def _slice(self, column: Column, row: int) -> bytes:
        start = column.data_at + self._offset(column.offsets_at, row)
        return bytes(self.data[start : column.data_at + self._offset(column.offsets_at, row + 1)])

    def binary(self, id_: int, row: int) -> bytes | None:
        """One value of a variable-width column; None where it is null or the column is missing."""
        column = self.columns.get(id_)
        if column is None:
            return None
        if column.kind == CONSTANT:
            row = 0
        elif column.kind == NULLABLE and not (
            self.data[column.validity_at + (row >> 3)] >> (row & 7) & 1
        ):
            return None
        return self._slice(column, row)

    def integer(self, id_: int, row: int) -> int:
        """One value of a fixed-width column; 0 where the column is missing."""
        column = self.columns.get(id_)
        if column is None:
            return 0
        if column.kind == CONSTANT:
            row = 0
        if column.data_size == column.rows:
            return self.data[column.data_at + row]
        found: int = _LONG.unpack_from(self.data, column.data_at + 8 * row)[0]
        return found

    def headers(self, row: int) -> list[tuple[bytes, bytes]]:
        """Names and values of one record's headers, in the publisher's order."""
        column = self.columns.get(HEADERS)
        if column is None:
            return []
        assert column.names is not None
        assert column.values is not None
        if column.kind == CONSTANT:
            row = 0
        found: list[tuple[bytes, bytes]] = []
        first = max(self._offset(column.lists_at, row), 0)
        last = min(self._offset(column.lists_at, row + 1), column.names.rows)
        for index in range(first, last):
            found.append((self._slice(column.names, index), self._slice(column.values, index)))
        return found

    def message(self, row: int) -> Message:
        """One record as the message that it was."""
        flags = self.integer(FLAGS, row)
        address = Address(
            (self.binary(EXCHANGE, row) or b"").decode("utf-8", "replace"),
            self.binary(ROUTING_KEY, row) or b"",
        )
        return Message(
            self.integer(PROTOCOL, row),
            address,
            self.binary(SOURCE_HEADER, row) or b"",
            self.binary(PAYLOAD, row) or b"",
            flags & MODE_MASK,
            flags & PERSISTENT != 0,
            self.integer(TIMESTAMP, row),
            self.integer(EXPIRES, row),
            flags & RETAIN != 0,
            self.integer(PRIORITY, row),
        )

    def first_at_or_after(self, timestamp: int) -> int:
        """The first row whose arrival time is at or after ``timestamp``; ``count`` if none is."""
        for row in range(self.count):
            if self.integer(TIMESTAMP, row) >= timestamp:
                return row
        return self.count


def batch_count(batch: bytes) -> int:
    """The number of records of a batch that is known to be one."""
    count: int = _COUNT.unpack_from(batch, _COUNT_AT)[0]
    return count


def batch_max_timestamp(batch: bytes) -> int:
    """The largest arrival time in a batch that is known to be one."""
    newest: int = _LONG.unpack_from(batch, _MAX_TIMESTAMP_AT)[0]
    return newest


def _aligned(size: int) -> int:
    return size + (-size & 7)
