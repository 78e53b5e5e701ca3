"""Writes record batches: messages become columns, uniform ones are stored once."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from decimal import Decimal
from typing import Final
from zlib import crc32

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i64

from trivium.common.pieces import Piece
from trivium.messages.large import content_parts
from trivium.messages.message import HeaderValue, Message, Properties, codec_of
from trivium.streams.compression import MAX_BODY, compress
from trivium.streams.record_layout import (
    CHECKSUM,
    CODEC_NONE,
    CONSTANT,
    CONTENT_TYPE,
    ENTRY,
    EXCHANGE,
    EXPIRES,
    FLAGS,
    HEADER,
    HEADER_SIZE,
    HEADERS,
    KEY,
    LONG,
    MAGIC,
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
    SPARSE,
    TIMESTAMP,
    VERSION,
)

#: Values of this size and more are copied once, straight into the batch (16 KiB).
_LARGE: Final = 16 * 1024
_PADDING: Final = (b"", bytes(7), bytes(6), bytes(5), bytes(4), bytes(3), bytes(2), bytes(1))


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
        partition: int = -1,
    ) -> None:
        self.key = key
        self.content_type = content_type
        self.names = names
        self.values = values
        #: the one that the publisher named, which no batch shows; -1 where it named none
        self.partition = partition


#: The arrival time of what has not arrived yet.
UNSTAMPED: Final = -1

#: what a message without properties shows
PLAIN_MESSAGE: Final = Described(None, None, [], [])

#: what one shows that has a key alone: it lies in the message's header (``PropertyCodec.key_at``),
#: and is not taken out of it before the batch is written
KEYED: Final = Described(None, None, [], [])

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
        -1 if properties.partition is None else properties.partition,
    )


def _keys_of(messages: list[Message]) -> list[bytes]:
    """The keys of messages that have a key alone."""
    protocol = messages[0].protocol
    codec = codec_of(protocol)
    keys: list[bytes] = []
    for message in messages:
        if message.protocol != protocol:
            protocol = message.protocol
            codec = codec_of(protocol)
        header = message.header
        keys.append(header[codec.key_at(header) :])
    return keys


def _with_keys(described: list[Described], messages: list[Message]) -> list[Described]:
    """The same, each with its key."""
    return [
        Described(_keys_of([message])[0], None, [], []) if row is KEYED else row
        for row, message in zip(described, messages, strict=True)
    ]


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
    if isinstance(value, (int, float, Decimal)):
        return str(value).encode()
    if isinstance(value, datetime):
        return value.isoformat().encode()
    text = json.dumps(value, default=_json_form, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _json_form(value: object) -> object:
    """What JSON has no form for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


# Encoding


class _Columns:
    """The columns of a batch, written in order of their ids, each at a multiple of 8."""

    def __init__(self) -> None:
        self.count = 0
        # The directory, but for what is not known before its end: positions are relative to it.
        self._ids: list[int] = []
        self._kinds: list[int] = []
        self._nulls: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        # Bytes that were written; those before ``_writer``.
        self._size: i64 = 0
        self._pieces: list[Piece] = []
        self._writer = BytesWriter()

    def begin(self, column: int, kind: int, nulls: int = 0) -> None:
        """What is written from here on is this column."""
        size = self._size
        if self.count:
            self._ends.append(size)
            if size & 7:
                self._pad()
        self.count += 1
        self._ids.append(column)
        self._kinds.append(kind)
        self._nulls.append(nulls)
        self._starts.append(self._size)

    def _pad(self) -> None:
        self.write(_PADDING[self._size & 7])

    def write(self, data: bytes) -> None:
        size = len(data)
        if size < _LARGE:
            self._writer.write(data)
        else:
            self._end_piece()
            self._pieces.append(data)
        self._size += size

    def _end_piece(self) -> None:
        if len(self._writer):
            self._pieces.append(self._writer.getvalue())
            self._writer = BytesWriter()

    def write_byte(self, value: int) -> None:
        self._writer.append(value)
        self._size += 1

    def write_long(self, value: i64) -> None:
        write_i64_le(self._writer, value)
        self._size += 8

    def _write_int(self, value: int) -> None:
        write_i32_le(self._writer, value)
        self._size += 4

    def write_binary(self, values: list[bytes]) -> None:
        """Offsets, padding, data: the plain form of a variable-width column."""
        writer = self._writer
        end = 0
        write_i32_le(writer, end)
        for value in values:
            end += len(value)
            write_i32_le(writer, end)
        self._size += 4 * (len(values) + 1)
        self._pad()
        if end < len(values) * _LARGE:
            self.write(b"".join(values))
        else:
            for value in values:
                self.write(value)

    def write_payloads(self, messages: list[Message]) -> None:
        """``write_binary`` of payloads. Of large ones the parts are written."""
        payloads = [
            payload for message in messages if isinstance(payload := message.content, bytes)
        ]
        if len(payloads) == len(messages):
            self.write_binary(payloads)
            return
        writer = self._writer
        end = 0
        write_i32_le(writer, end)
        for message in messages:
            end += message.size
            write_i32_le(writer, end)
        self._size += 4 * (len(messages) + 1)
        self._pad()
        self._end_piece()
        for message in messages:
            self._pieces += content_parts(message.content)
            self._size += message.size

    def add_constant(self, column: int, value: bytes) -> None:
        """One value for all rows; absent where that is empty."""
        if value:
            self.begin(column, CONSTANT)
            self.write_binary([value])

    def add_binary(self, column: int, values: list[bytes]) -> None:
        """Constant where all are equal, else plain."""
        if _are_equal(values):
            self.add_constant(column, values[0])
        else:
            self.begin(column, PLAIN)
            self.write_binary(values)

    def add_present(self, column: int, values: list[bytes]) -> None:
        """The same of values that may be empty, and are there then."""
        is_constant = _are_equal(values)
        self.begin(column, CONSTANT if is_constant else PLAIN)
        self.write_binary(values[:1] if is_constant else values)

    def add_nullable(self, column: int, values: list[bytes | None]) -> None:
        """Plain with a bitmap, where some are null."""
        self.begin(column, NULLABLE, values.count(None))
        validity = bytearray((len(values) + 7) // 8)
        for index, value in enumerate(values):
            if value is not None:
                validity[index >> 3] |= 1 << (index & 7)
        self.write(bytes(validity))
        self._pad()
        self.write_binary([b"" if value is None else value for value in values])

    def add_headers(self, kind: int, rows: list[Described]) -> None:
        """The plain form of the headers column: list offsets, then names, then values."""
        self.begin(HEADERS, kind)
        names: list[bytes] = []
        values: list[bytes] = []
        self._write_int(0)
        for row in rows:
            names.extend(row.names)
            values.extend(row.values)
            self._write_int(len(names))
        self._pad()
        self.write_binary(names)
        self._pad()
        self.write_binary(values)

    def add_byte(self, column: int, value: int) -> None:
        """One byte for all rows; absent where it is 0."""
        if value:
            self.begin(column, CONSTANT)
            self.write_byte(value)

    def add_long(self, column: int, value: i64) -> None:
        """One number for all rows; absent where it is 0."""
        if value:
            self.begin(column, CONSTANT)
            self.write_long(value)

    def body(self) -> list[Piece]:
        """The directory and the columns, in pieces."""
        self._ends.append(self._size)
        self._end_piece()
        directory = BytesWriter()
        first_at = self.count * ENTRY.size
        for index, start in enumerate(self._starts):
            directory.write(
                ENTRY.pack(
                    self._ids[index],
                    self._kinds[index],
                    0,
                    first_at + start,
                    self._ends[index] - start,
                    self._nulls[index],
                )
            )
        return [directory.getvalue(), *self._pieces]


def _are_equal(values: list[bytes]) -> bool:
    first = values[0]
    # Where they differ the last one mostly does, and not all are compared.
    return values[-1] == first and values.count(first) == len(values)


class _Shown:
    """What a batch shows of its messages' properties, found in one pass."""

    def __init__(self, described: list[Described]) -> None:
        first = described[0]
        #: those that are there, in order
        self.keys: list[bytes] = []
        self.types: list[bytes] = []
        self.has_one = True
        self.has_headers = False
        keys, types = self.keys, self.types
        for row in described:
            key = row.key
            if key is not None:
                keys.append(key)
            content_type = row.content_type
            if content_type is not None:
                types.append(content_type)
            if row is not first:
                self.has_one = False
            if row.names:
                self.has_headers = True


class _Common:
    """What all messages of a batch have in common, found in one pass."""

    def __init__(self, messages: list[Message]) -> None:
        first = messages[0]
        self.has_address = True
        self.has_exchange = True
        self.has_protocol = True
        self.has_flags = True
        self.has_priority = True
        self.has_expires = True
        address = first.address
        protocol = first.protocol
        mode = first.mode
        persistent = first.persistent
        retain = first.retain
        priority = first.priority
        expires = first.expires
        oldest = newest = first.timestamp
        for message in messages:
            timestamp = message.timestamp
            if timestamp != newest:
                oldest = min(oldest, timestamp)
                newest = max(newest, timestamp)
            if message.address is not address:
                self.has_address = False
                if message.address.exchange != address.exchange:
                    self.has_exchange = False
            if message.protocol != protocol:
                self.has_protocol = False
            if (
                message.mode != mode
                or message.persistent is not persistent
                or message.retain is not retain
            ):
                self.has_flags = False
            if message.priority != priority:
                self.has_priority = False
            if message.expires != expires:
                self.has_expires = False
        #: arrival times of the oldest and the newest
        self.oldest = oldest
        self.newest = newest


def flags_of(message: Message) -> int:
    """The row of a message in the FLAGS column."""
    flags = message.mode
    if message.persistent:
        flags |= PERSISTENT
    if message.retain:
        flags |= RETAIN
    return flags


def _write_columns(
    columns: _Columns,
    messages: list[Message],
    described: list[Described] | None,
    payloads: list[bytes] | None = None,
) -> _Common:
    """Write the columns of a batch but the offsets, in the order of their ids.

    ``payloads`` are those of all its messages, where they are like the only one that is given.
    """
    common = _Common(messages)
    first = messages[0]
    if common.oldest == common.newest:
        columns.add_long(TIMESTAMP, first.timestamp)
    else:
        columns.begin(TIMESTAMP, PLAIN)
        for message in messages:
            columns.write_long(message.timestamp)
    shown: _Shown | None = None
    if described is not None:
        keyed = described.count(KEYED)
        if keyed == len(described):
            columns.add_present(KEY, _keys_of(messages))
        else:
            if keyed:
                described = _with_keys(described, messages)
            shown = _Shown(described)
            if len(shown.keys) == len(described):
                columns.add_present(KEY, shown.keys)
            elif shown.keys:
                columns.add_nullable(KEY, [row.key for row in described])
    if common.has_exchange:
        columns.add_constant(EXCHANGE, first.address.exchange.encode())
    else:
        columns.begin(EXCHANGE, PLAIN)
        columns.write_binary([message.address.exchange.encode() for message in messages])
    if common.has_address:
        columns.add_constant(ROUTING_KEY, first.address.key)
    else:
        columns.add_binary(ROUTING_KEY, [message.address.key for message in messages])
    columns.begin(PAYLOAD, PLAIN)
    if payloads is None:
        columns.write_payloads(messages)
    else:
        columns.write_binary(payloads)
    if described is not None:
        if shown is not None:
            _write_shown(columns, described, shown)
        columns.add_binary(SOURCE_HEADER, [message.header for message in messages])
    _write_numbers(columns, messages, common)
    return common


def _write_shown(columns: _Columns, described: list[Described], shown: _Shown) -> None:
    """Write the columns of properties that come after the payload."""
    if len(shown.types) == len(described):
        columns.add_present(CONTENT_TYPE, shown.types)
    elif shown.types:
        columns.add_nullable(CONTENT_TYPE, [row.content_type for row in described])
    if shown.has_headers:
        if shown.has_one:
            columns.add_headers(CONSTANT, described[:1])
        else:
            columns.add_headers(PLAIN, described)


def _write_numbers(columns: _Columns, messages: list[Message], common: _Common) -> None:
    """Write the columns of fixed width that come after the payload."""
    first = messages[0]
    if common.has_protocol:
        columns.add_byte(PROTOCOL, first.protocol)
    else:
        columns.begin(PROTOCOL, PLAIN)
        for message in messages:
            columns.write_byte(message.protocol)
    if common.has_flags:
        columns.add_byte(FLAGS, flags_of(first))
    else:
        columns.begin(FLAGS, PLAIN)
        for message in messages:
            columns.write_byte(flags_of(message))
    if common.has_priority:
        columns.add_byte(PRIORITY, first.priority)
    else:
        columns.begin(PRIORITY, PLAIN)
        for message in messages:
            columns.write_byte(message.priority)
    if common.has_expires:
        columns.add_long(EXPIRES, first.expires)
    else:
        columns.begin(EXPIRES, PLAIN)
        for message in messages:
            columns.write_long(message.expires)


def encode_batch(
    messages: list[Message],
    described: list[Described] | None = None,
    codec: int = CODEC_NONE,
    deltas: list[int] | None = None,
    span: int = 0,
) -> bytes:
    """One record batch of at least one message.

    ``described`` holds what ``describe`` made of each message's properties, or ``KEYED``; None says
    that no message has any. The body is compressed by ``codec`` where that is worth it. ``deltas``
    are the rising offsets of the messages relative to the batch's, and ``span`` how many offsets it
    spans, where other messages between them are gone. All payloads, keys, and headers together must
    stay below 2 GiB.
    """
    columns = _Columns()
    common = _write_columns(columns, messages, described)
    if deltas is not None:
        columns.begin(OFFSET_DELTA, PLAIN)
        for delta in deltas:
            columns.write_long(delta)
    flags = 0 if deltas is None else SPARSE
    stamps = common.oldest, common.newest
    count = len(messages)
    return _sealed(columns.body(), codec, columns.count, count, flags, stamps, span)


def encode_unstamped(messages: list[Message], described: list[Described] | None) -> bytes:
    """A record batch of messages whose arrival is yet to come, without a checksum: ``stamped``
    gives it both."""
    for message in messages:
        message.timestamp = UNSTAMPED
    columns = _Columns()
    _write_columns(columns, messages, described)
    return _unstamped(columns, len(messages))


def encode_unstamped_run(first: Message, described: Described, payloads: list[bytes]) -> bytes:
    """``encode_unstamped`` of messages that are like ``first`` but for their payloads."""
    first.timestamp = UNSTAMPED
    columns = _Columns()
    shown = None if described is PLAIN_MESSAGE else [described]
    _write_columns(columns, [first], shown, payloads)
    return _unstamped(columns, len(payloads))


def _unstamped(columns: _Columns, count: int) -> bytes:
    body = columns.body()
    size = sum([len(piece) for piece in body])
    header = HEADER.pack(
        MAGIC,
        VERSION,
        CODEC_NONE,
        columns.count,
        count,
        size,
        size,
        0,
        UNSTAMPED,
        UNSTAMPED,
        0,
    )
    return b"".join([header, CHECKSUM.pack(0), *body])


def stamped(batch: Piece, timestamp: int, codec: int) -> bytes:
    """What ``encode_batch`` makes of the messages of an unstamped batch, which all arrive
    at ``timestamp``."""
    _, _, _, columns, count, _, _, _, _, _, _ = HEADER.unpack_from(batch)
    # It has a timestamp, so that is the first of its columns.
    at = HEADER_SIZE + ENTRY.unpack_from(batch, HEADER_SIZE)[3]
    view = memoryview(batch)
    body: list[Piece] = [view[HEADER_SIZE:at], LONG.pack(timestamp), view[at + LONG.size :]]
    return _sealed(body, codec, columns, count, 0, (timestamp, timestamp), 0)


def _sealed(
    body: list[Piece],
    codec: int,
    columns: int,
    count: int,
    flags: int,
    stamps: tuple[int, int],
    span: int,
) -> bytes:
    """A record batch with a body, which is compressed by ``codec`` where that is worth it."""
    size = sum([len(piece) for piece in body])
    stored = size
    if size > MAX_BODY:
        # Nothing is compressed that is so large, nor joined for that.
        codec = CODEC_NONE
    if codec != CODEC_NONE:
        whole = b"".join(body)
        packed = compress(codec, whole)
        if packed is None:
            codec = CODEC_NONE
            body = [whole]
        else:
            stored = len(packed)
            body = [packed]
    header = HEADER.pack(
        MAGIC, VERSION, codec, columns, count, size, stored, flags, stamps[0], stamps[1], span
    )
    checksum = crc32(header)
    for piece in body:
        checksum = crc32(piece, checksum)
    return b"".join([header, CHECKSUM.pack(checksum), *body])
