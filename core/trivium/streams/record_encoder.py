"""Writes record batches: messages become columns, uniform ones are stored once."""

from __future__ import annotations

import base64
import json
import sys
from array import array
from datetime import datetime
from decimal import Decimal
from itertools import accumulate
from typing import Final
from zlib import crc32

from trivium.messages.message import HeaderValue, Message, Properties
from trivium.streams.compression import compress
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
    HEADERS,
    KEY,
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

_IS_BIG_ENDIAN: Final = sys.byteorder == "big"
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
        position = len(self.ids) * ENTRY.size
        for index, data in enumerate(self.data):
            padding = _PADDING[position & 7]
            position += len(padding)
            directory.append(
                ENTRY.pack(
                    self.ids[index], self.kinds[index], 0, position, len(data), self.nulls[index]
                )
            )
            parts.append(padding)
            parts.append(data)
            position += len(data)
        return b"".join(directory + parts)


class _Fields:
    """What every message of a batch has, each in a list of its own: one pass over the messages."""

    def __init__(self, messages: list[Message]) -> None:
        self.payloads: list[bytes] = []
        self.timestamps: list[int] = []
        self.expires: list[int] = []
        self.protocols: list[int] = []
        self.priorities: list[int] = []
        self.flags: list[int] = []
        self.has_one_address = True
        payloads = self.payloads
        timestamps = self.timestamps
        expires = self.expires
        protocols = self.protocols
        priorities = self.priorities
        flags = self.flags
        address = messages[0].address
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
                self.has_one_address = False


def _columns(
    messages: list[Message], fields: _Fields, described: list[Described] | None
) -> _Columns:
    """The columns of a batch but the offsets, in the order of their ids."""
    columns = _Columns()
    columns.add_longs(TIMESTAMP, fields.timestamps)
    if described is not None:
        columns.add_nullable(KEY, [row.key for row in described])
    if fields.has_one_address:
        address = messages[0].address
        columns.add_binary(EXCHANGE, [address.exchange.encode()])
        columns.add_binary(ROUTING_KEY, [address.key])
    else:
        columns.add_binary(EXCHANGE, [message.address.exchange.encode() for message in messages])
        columns.add_binary(ROUTING_KEY, [message.address.key for message in messages])
    columns.add(PAYLOAD, PLAIN, _binary(fields.payloads))
    if described is not None:
        columns.add_nullable(CONTENT_TYPE, [row.content_type for row in described])
        shown = described[0]
        if described.count(shown) == len(described):
            if shown.names:
                columns.add(HEADERS, CONSTANT, _headers([shown]))
        elif any(len(row.names) > 0 for row in described):
            columns.add(HEADERS, PLAIN, _headers(described))
        columns.add_binary(SOURCE_HEADER, [message.header for message in messages])
    columns.add_bytes(PROTOCOL, fields.protocols)
    columns.add_bytes(FLAGS, fields.flags)
    columns.add_bytes(PRIORITY, fields.priorities)
    columns.add_longs(EXPIRES, fields.expires)
    return columns


def encode_batch(
    messages: list[Message],
    described: list[Described] | None = None,
    codec: int = CODEC_NONE,
    deltas: list[int] | None = None,
    span: int = 0,
) -> bytes:
    """One record batch of at least one message.

    ``described`` holds what ``describe`` made of each message's properties; None says that no
    message has any. The body is compressed by ``codec`` where that is worth it. ``deltas`` are the
    rising offsets of the messages relative to the batch's, and ``span`` how many offsets it spans,
    where other messages between them are gone. All payloads, keys, and headers together must stay
    below 2 GiB.
    """
    fields = _Fields(messages)
    columns = _columns(messages, fields, described)
    if deltas is not None:
        columns.add(OFFSET_DELTA, PLAIN, _int64s(deltas))
    body = columns.body()
    size = len(body)
    packed = compress(codec, body)
    if packed is None:
        codec = CODEC_NONE
    else:
        body = packed
    header = HEADER.pack(
        MAGIC,
        VERSION,
        codec,
        len(columns.ids),
        len(messages),
        size,
        len(body),
        0 if deltas is None else SPARSE,
        min(fields.timestamps),
        max(fields.timestamps),
        0 if deltas is None else span,
    )
    return b"".join((header, CHECKSUM.pack(crc32(body, crc32(header))), body))
