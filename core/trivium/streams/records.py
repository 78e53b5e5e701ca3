"""Record batches: what a stream's partition stores, what FETCH hands over, what Arrow maps.

A batch holds its messages as columns, little-endian and aligned to 8 bytes, so that a reader builds
an Arrow array by slicing buffers, with no Python object per record. The layout is documented byte
by byte in docs/record-batch.md. ``encode_batch`` writes it; ``RecordBatch`` is the view of one.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from typing import Final
from zlib import crc32

from librt.strings import read_i32_le, read_i64_le
from mypy_extensions import i64

from trivium.messages.large import LARGE_PAYLOAD, Content, LargePayload
from trivium.messages.message import UNKNOWN, Address, Message
from trivium.streams.compression import CompressionError, decompress
from trivium.streams.record_encoder import (
    KEY_HEADER,
    KEYED,
    PLAIN_MESSAGE,
    Described,
    describe,
    encode_batch,
    encode_unstamped,
    encode_unstamped_run,
    header_bytes,
    stamped,
)
from trivium.streams.record_layout import (
    CHECKSUM,
    CHECKSUM_AT,
    CODEC_NONE,
    CONSTANT,
    CONTENT_TYPE,
    COUNT_AT,
    ENTRY,
    EXCHANGE,
    EXPIRES,
    FLAGS,
    FLAGS_AT,
    HEADER,
    HEADER_SIZE,
    HEADERS,
    KEY,
    MAGIC,
    MAX_TIMESTAMP_AT,
    MODE_MASK,
    NULLABLE,
    OFFSET_DELTA,
    PAYLOAD,
    PERSISTENT,
    PLAIN,
    PRIORITY,
    PROTOCOL,
    RETAIN,
    ROUTING_KEY,
    SOURCE_HEADER,
    SPAN_AT,
    SPARSE,
    TIMESTAMP,
    VERSION,
    WIDTHS,
)

__all__ = [
    "CONSTANT",
    "CONTENT_TYPE",
    "EXCHANGE",
    "EXPIRES",
    "FLAGS",
    "HEADERS",
    "HEADER_SIZE",
    "KEY",
    "KEYED",
    "KEY_HEADER",
    "MAGIC",
    "MODE_MASK",
    "NULLABLE",
    "OFFSET_DELTA",
    "PAYLOAD",
    "PERSISTENT",
    "PLAIN",
    "PLAIN_MESSAGE",
    "PRIORITY",
    "PROTOCOL",
    "RETAIN",
    "ROUTING_KEY",
    "SOURCE_HEADER",
    "TIMESTAMP",
    "VERSION",
    "BatchError",
    "Column",
    "Described",
    "RecordBatch",
    "batch_count",
    "batch_max_timestamp",
    "batch_span",
    "cut_batch",
    "describe",
    "encode_batch",
    "encode_unstamped",
    "encode_unstamped_run",
    "header_bytes",
    "stamped",
]


_IS_BIG_ENDIAN: Final = sys.byteorder == "big"


class BatchError(ValueError):
    """The bytes are not a whole, undamaged record batch of a version that this code reads."""


class Column:
    """Where one column lies in a batch. Positions count bytes from the start of the batch.

    A CONSTANT column has one row, which stands for every row; ``rows`` says how many the buffers
    hold. Unused positions are -1.
    """

    def __init__(self, id_: int, kind: int, rows: int, nulls: int) -> None:
        self.id = id_
        self.kind = kind
        self.rows: i64 = rows
        self.nulls = nulls
        #: validity bitmap (NULLABLE), least significant bit first, 1 for present
        self.validity_at: i64 = -1
        #: i32[rows + 1] of a variable-width column
        self.offsets_at: i64 = -1
        #: the values
        self.data_at: i64 = -1
        self.data_size: i64 = 0
        #: the value of a CONSTANT column of variable width, once it was asked for
        self.constant: bytes | None = None
        #: HEADERS only: i32[rows + 1] of the lists, and the columns of all names and all values
        self.lists_at: i64 = -1
        self.names: Column | None = None
        self.values: Column | None = None


class RecordBatch:
    """A view of an encoded batch: its header fields, and where each column lies.

    Nothing is copied out of ``data`` before a row is asked for, unless its body is compressed.
    Raises BatchError when it is damaged, cut, or of an unknown version or codec.
    """

    def __init__(self, data: bytes, verify: bool = True) -> None:
        if len(data) < HEADER_SIZE:
            raise BatchError("record batch is shorter than its header")
        magic, version, codec, columns, count, size, stored, flags, oldest, newest, span = (
            HEADER.unpack_from(data)
        )
        if magic != MAGIC or version != VERSION:
            raise BatchError("not a record batch of version 1")
        if flags & ~SPARSE:
            raise BatchError(f"record batch flags {flags} are not supported")
        if len(data) != HEADER_SIZE + stored or count == 0:
            raise BatchError("record batch sizes do not add up")
        if verify:
            view = memoryview(data)
            (checksum,) = CHECKSUM.unpack_from(data, CHECKSUM_AT)
            if crc32(view[HEADER_SIZE:], crc32(view[:CHECKSUM_AT])) != checksum:
                raise BatchError("record batch checksum does not match")
        if codec != CODEC_NONE:
            data = _uncompressed(data, codec, size)
        elif size != stored:
            raise BatchError("record batch sizes do not add up")
        #: the batch, its header as it came, its body uncompressed
        self.data = data
        #: number of records, at least 1
        self.count: int = count
        #: number of offsets from its own on that no other batch has; at least ``count``
        self.span: int = span if flags & SPARSE else count
        #: smallest and largest arrival time, milliseconds since the epoch
        self.min_timestamp: int = oldest
        self.max_timestamp: int = newest
        #: by column id; a missing one has its default in every row
        self.columns: dict[int, Column] = {}
        self._by_id: list[Column | None] = [None] * (OFFSET_DELTA + 1)
        if columns * ENTRY.size > size:
            raise BatchError("record batch directory is cut")
        for index in range(columns):
            id_, kind, _, position, length, nulls = ENTRY.unpack_from(
                data, HEADER_SIZE + index * ENTRY.size
            )
            if position + length > size or not CONSTANT <= kind <= NULLABLE:
                raise BatchError(f"record batch column {id_} is cut or of an unknown kind")
            if TIMESTAMP <= id_ <= EXPIRES or (id_ == OFFSET_DELTA and flags & SPARSE):
                rows = 1 if kind == CONSTANT else count
                column = Column(id_, kind, rows, nulls)
                self._place(column, HEADER_SIZE + position, length)
                self.columns[id_] = self._by_id[id_] = column
        # The last row's, which is often that of all.
        self._address: Address | None = None
        self._exchange = b""
        self._deltas = self._read_deltas() if flags & SPARSE else None

    def _read_deltas(self) -> array[int]:
        column = self.columns.get(OFFSET_DELTA)
        if column is None or column.kind != PLAIN:
            raise BatchError("record batch does not say which offsets it has")
        deltas: array[int] = array("q")
        deltas.frombytes(bytes(self.data[column.data_at : column.data_at + column.data_size]))
        if _IS_BIG_ENDIAN:
            deltas.byteswap()
        last = -1
        for delta in deltas:
            if delta <= last:
                raise BatchError("record batch offsets do not rise")
            last = delta
        if last >= self.span:
            raise BatchError("record batch offsets are beyond its span")
        return deltas

    def delta(self, row: int) -> int:
        """The offset of a row relative to that of the batch."""
        return row if self._deltas is None else self._deltas[row]

    def row_from(self, delta: int) -> int:
        """The first row at or after an offset relative to that of the batch; ``count`` if none."""
        if self._deltas is None:
            return min(max(delta, 0), self.count)
        return bisect_left(self._deltas, delta)

    def _place(self, column: Column, start: i64, size: i64) -> None:
        width = WIDTHS.get(column.id, 0)
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

    def _last_offset(self, start: i64, rows: i64, end: i64) -> i64:
        """The checked last of ``rows + 1`` offsets at ``start``: the size of what they address."""
        if start + 4 * (rows + 1) > end:
            raise BatchError("record batch offsets are cut")
        last = self._offset(start, rows)
        if self._offset(start, 0) != 0 or not 0 <= last <= end - start:
            raise BatchError("record batch offsets are wrong")
        return last

    def _place_binary(self, column: Column, start: i64, end: i64) -> i64:
        """Set the positions of a variable-width column; the position after its data."""
        column.data_size = self._last_offset(start, column.rows, end)
        column.offsets_at = start
        column.data_at = start + _aligned(4 * (column.rows + 1))
        after = column.data_at + column.data_size
        if after > end:
            raise BatchError(f"record batch column {column.id} is cut")
        return after

    def _offset(self, offsets_at: i64, row: i64) -> i64:
        return i64(read_i32_le(self.data, offsets_at + 4 * row))

    def _slice(self, column: Column, row: i64) -> bytes:
        start = self._offset(column.offsets_at, row)
        end = self._offset(column.offsets_at, row + 1)
        if not 0 <= start <= end <= column.data_size:
            raise BatchError(f"record batch column {column.id} has a wrong offset")
        return self.data[column.data_at + start : column.data_at + end]

    def binary(self, id_: i64, row: i64) -> bytes | None:
        """One value of a variable-width column; None where it is null or the column is missing."""
        column = self._by_id[id_]
        if column is None:
            return None
        if column.kind == CONSTANT:
            found = column.constant
            if found is None:
                found = column.constant = self._slice(column, 0)
            return found
        if column.kind == NULLABLE and not (
            self.data[column.validity_at + (row >> 3)] >> (row & 7) & 1
        ):
            return None
        return self._slice(column, row)

    def integer(self, id_: i64, row: i64) -> i64:
        """One value of a fixed-width column; 0 where the column is missing."""
        column = self._by_id[id_]
        if column is None:
            return 0
        if column.kind == CONSTANT:
            row = 0
        if column.data_size == column.rows:
            return i64(self.data[column.data_at + row])
        return read_i64_le(self.data, column.data_at + 8 * row)

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
        exchange = self.binary(EXCHANGE, row) or b""
        key = self.binary(ROUTING_KEY, row) or b""
        address = self._address
        if address is None or key != address.key or exchange != self._exchange:
            address = self._address = Address(exchange.decode("utf-8", "replace"), key)
            self._exchange = exchange
        message = Message(
            self.integer(PROTOCOL, row),
            address,
            self.binary(SOURCE_HEADER, row) or b"",
            self._payload(row),
            flags & MODE_MASK,
            flags & PERSISTENT != 0,
            self.integer(TIMESTAMP, row),
            self.integer(EXPIRES, row),
            flags & RETAIN != 0,
            self.integer(PRIORITY, row),
        )
        message.traced = UNKNOWN
        return message

    def _payload(self, row: i64) -> Content:
        """One payload; a large one is a part of the batch."""
        column = self._by_id[PAYLOAD]
        if column is None or column.kind != PLAIN or column.data_size < LARGE_PAYLOAD:
            return self.binary(PAYLOAD, row) or b""
        start = self._offset(column.offsets_at, row)
        end = self._offset(column.offsets_at, row + 1)
        if end - start < LARGE_PAYLOAD or start < 0 or end > column.data_size:
            return self._slice(column, row)
        at = column.data_at
        return LargePayload([memoryview(self.data)[at + start : at + end]])

    def described(self, row: int) -> Described:
        """What the batch shows of one record's properties."""
        key = self.binary(KEY, row)
        content_type = self.binary(CONTENT_TYPE, row)
        names: list[bytes] = []
        values: list[bytes] = []
        for name, value in self.headers(row):
            names.append(name)
            values.append(value)
        if key is None and content_type is None and not names:
            return PLAIN_MESSAGE
        return Described(key, content_type, names, values)

    def first_at_or_after(self, timestamp: int) -> int:
        """The first row whose arrival time is at or after ``timestamp``; ``count`` if none is."""
        for row in range(self.count):
            if self.integer(TIMESTAMP, row) >= timestamp:
                return row
        return self.count


def batch_count(batch: bytes) -> int:
    """The number of records of a batch that is known to be one."""
    return i64(read_i32_le(batch, COUNT_AT)) & 0xFFFF_FFFF


def batch_span(batch: bytes) -> int:
    """The number of offsets that a batch spans; it is known to be one."""
    flags = read_i32_le(batch, FLAGS_AT)
    return i64(read_i32_le(batch, SPAN_AT if flags & SPARSE else COUNT_AT)) & 0xFFFF_FFFF


def batch_max_timestamp(batch: bytes) -> int:
    """The largest arrival time in a batch that is known to be one."""
    return read_i64_le(batch, MAX_TIMESTAMP_AT)


def cut_batch(view: RecordBatch, delta: int) -> bytes | None:
    """A batch with the records of ``view`` from an offset, relative to its own, on.

    Its offset is that one. None when there are no records.
    """
    first = view.row_from(delta)
    rows = range(first, view.count)
    if not rows:
        return None
    described = [view.described(row) for row in rows]
    span = view.span - delta
    return encode_batch(
        [view.message(row) for row in rows],
        None if described.count(PLAIN_MESSAGE) == len(described) else described,
        CODEC_NONE,
        None if span == len(rows) else [view.delta(row) - delta for row in rows],
        span,
    )


def _uncompressed(data: bytes, codec: int, size: int) -> bytes:
    view = memoryview(data)
    try:
        return bytes(view[:HEADER_SIZE]) + decompress(codec, view[HEADER_SIZE:], size)
    except CompressionError as error:
        raise BatchError(f"record batch cannot be uncompressed: {error}") from None


def _aligned(size: i64) -> i64:
    return size + (-size & 7)
