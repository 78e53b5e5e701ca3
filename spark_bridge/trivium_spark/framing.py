"""Rows as framed messages: Arrow columns turned into what PUBLISH and STAGE carry.

Of each message the head, the exchange, the routing key, the properties and the payload are columns
of their own, which Arrow joins row by row into one buffer: there is no Python object per row.
docs/native-protocol.md has the form.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy
import numpy.typing
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from trivium.messages.delivery import DELIVERY_MODES
from trivium.messages.message import AT_LEAST_ONCE
from trivium.messages.topics import key_of
from trivium_native.values import FramedMessages
from trivium_native.wire.messages import (
    MANDATORY,
    MAX_NAME_BYTES,
    MESSAGE_HEAD_SIZE,
    PERSISTENT,
    RETAIN,
)
from trivium_native.wire.properties import (
    APP_ID,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    EXPIRATION,
    HEADERS,
    KEY,
    MAX_EXPIRATION,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_PARTITION,
    MESSAGE_ID,
    PARTITION,
    REPLY_TO,
    REPLY_TO_TOPIC,
    TIMESTAMP,
    TYPE,
)
from trivium_spark.errors import OptionError
from trivium_spark.options import WriteOptions, format_partition

#: Messages and bytes of one request. The broker publishes a request in one turn, in which it does
#: little else.
REQUEST_MESSAGES: Final = 8192
REQUEST_BYTES: Final = 1 << 20

#: Bytes of the rows that are framed at a time, so that a task holds a few times this much.
_FRAMED_BYTES: Final = 16 << 20

_BYTES: Final = ("binary", "string")
_TEXT: Final = ("string",)
_INTEGER: Final = ("int", "bigint")
_PAIRS: Final = (
    "array<struct<key:string,value:binary>>",
    "array<struct<key:string,value:string>>",
    "map<string,binary>",
    "map<string,string>",
)

#: columns of a write, with the Spark types that they may have
WRITTEN: Final = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": _TEXT,
    "routing_key": _BYTES,
    "exchange": _TEXT,
    "partition": ("int",),
    "headers": _PAIRS,
    "user_properties": ("map<string,string>",),
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "correlation_id": _BYTES,
    "reply_to": _TEXT,
    "reply_to_topic": _TEXT,
    "expiration": _INTEGER,
    "message_id": _TEXT,
    "publisher_timestamp": ("timestamp",),
    "type": _TEXT,
    "app_id": _TEXT,
    "delivery_mode": _TEXT,
    "priority": ("int",),
    "retain": ("boolean",),
}

#: columns that a read has and a write has no use for, so that what was read can be written as it is
IGNORED: Final = frozenset({"offset", "timestamp", "stream", "protocol", "user_id"})

#: Columns that say where a message goes: they mean something to an exchange only.
_ADDRESS: Final = ("topic", "routing_key", "exchange")

#: Properties that are texts or bytes: column, number, whether it is text.
_VARIABLE: Final = (
    ("content_type", CONTENT_TYPE, True),
    ("content_encoding", CONTENT_ENCODING, True),
    ("correlation_id", CORRELATION_ID, False),
    ("reply_to", REPLY_TO, True),
    ("message_id", MESSAGE_ID, True),
    ("type", TYPE, True),
    ("app_id", APP_ID, True),
    ("key", KEY, False),
)

#: Properties that are numbers: column, number, the largest.
_NUMBERS: Final = (
    ("expiration", EXPIRATION, MAX_EXPIRATION),
    ("publisher_timestamp", TIMESTAMP, (1 << 63) - 1),
    ("partition", PARTITION, MAX_PARTITION),
)
_SECOND: Final = 1_000_000

_HEAD: Final = numpy.dtype(
    [
        ("flags", "u1"),
        ("priority", "u1"),
        ("exchange", "<u2"),
        ("key", "<u2"),
        ("reserved", "<u2"),
        ("properties", "<u4"),
        ("payload", "<u4"),
    ]
)
assert _HEAD.itemsize == MESSAGE_HEAD_SIZE
_SIZES: Final = ("exchange", "key", "properties", "payload")

#: msgpack: the longest text whose size is in its first byte; that byte; those before 1, 2 and 4
#: bytes of size for text and for bytes
_SHORT_TEXT: Final = 31
_FIXSTR: Final = 0xA0
_TEXT_HEADS: Final = (0xD9, 0xDA, 0xDB)
_BYTES_HEADS: Final = (0xC4, 0xC5, 0xC6)
_NIL: Final = 0xC0
_UINT64: Final = 0xCF
_FIXMAP: Final = 0x80
_ARRAY16: Final = 0xDC
_PAIR: Final = 0x92

_MODES: Final = pa.array(DELIVERY_MODES)
_NOTHING: Final = pa.scalar(b"", pa.binary())

Numbers = numpy.typing.NDArray[Any]


class RowFramer:
    """Frames the rows of one query. Picklable. Raises OptionError for a wrong schema."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._exchange = options.exchange
        self._topic = options.topic
        #: the queue or stream that all rows go to
        self._direct = options.stream if options.queue is None else options.queue
        self._stream = options.stream
        self._names = _names_of(schema)
        if "value" not in self._names:
            raise OptionError("the sink needs a column value")
        if self._direct is not None:
            for name in _ADDRESS:
                if name in self._names:
                    raise OptionError(
                        f"what is written to a stream or queue has no {name}: drop the column, or"
                        " bind the stream or queue to an exchange and write to that"
                    )
        elif self._topic is None and not {"topic", "routing_key"} & self._names:
            raise OptionError(
                "the sink needs a column topic or routing_key, or option topic, stream or queue"
            )

    def requests(
        self, batches: Iterator[pa.RecordBatch], partitions: Callable[[str], int]
    ) -> Iterator[FramedMessages]:
        """The rows as framed messages, in requests of a moderate size.

        ``partitions`` says how many a stream has; it is asked where rows name some. Raises
        OptionError for a row that cannot be a message.
        """
        count = 0
        for batch in batches:
            if self._stream is not None and "partition" in self._names and batch.num_rows:
                count = count or partitions(self._stream)
                last = pc.max(batch.column("partition")).as_py()
                if last is not None and last >= count:
                    raise OptionError(
                        f"there is no {format_partition((self._stream, last))}: stream"
                        f" {self._stream!r} has {count} partitions. Without column partition the"
                        " key chooses"
                    )
            step = batch.num_rows
            if batch.nbytes > _FRAMED_BYTES:
                step = max(1, step * _FRAMED_BYTES // batch.nbytes)
            for at in range(0, batch.num_rows, max(step, 1)):
                yield from self._framed(batch.slice(at, step))

    def _framed(self, batch: pa.RecordBatch) -> Iterator[FramedMessages]:
        rows = batch.num_rows
        columns = {name: _plain(batch.column(name)) for name in self._names}
        value = columns["value"]
        if value.null_count:
            raise OptionError("a row's value is null: a message has a payload, if an empty one")
        exchange, key = self._addresses(columns)
        header = _Properties(columns, rows).encoded()
        head = numpy.zeros(rows, _HEAD)
        head["flags"] = _flags(columns)
        head["priority"] = _priority(columns)
        head["exchange"] = _sizes(exchange, MAX_NAME_BYTES, "exchange")
        head["key"] = _sizes(key, MAX_NAME_BYTES, "topic or routing key")
        head["properties"] = 0 if header is None else _lengths(header)
        head["payload"] = _lengths(value)
        sizes = sum(head[name].astype("i8") for name in _SIZES)
        offsets = numpy.zeros(rows + 1, "i8")
        numpy.cumsum(sizes + MESSAGE_HEAD_SIZE, out=offsets[1:])
        firsts = _cut(offsets)
        if self._direct is not None:
            # Lest it be gone. The others of a request go where the first goes.
            head["flags"][firsts[:-1]] |= MANDATORY
        parts = [_fixed(head), exchange, key, *([] if header is None else [header]), value]
        joined = pc.binary_join_element_wise(*parts, _NOTHING)
        view = memoryview(joined.buffers()[2])
        for first, end in itertools.pairwise(firsts):
            yield FramedMessages(end - first, view[offsets[first] : offsets[end]])

    def _addresses(self, columns: dict[str, pa.Array]) -> tuple[Any, Any]:
        """Exchanges and routing keys: arrays, or one for all rows."""
        if self._direct is not None:
            # The default exchange leads there by the name.
            return _NOTHING, pa.scalar(self._direct.encode(), pa.binary())
        exchange: Any = pa.scalar(self._exchange.encode(), pa.binary())
        named = columns.get("exchange")
        if named is not None:
            exchange = pc.fill_null(named, exchange)
        key = columns.get("routing_key")
        topics = columns.get("topic")
        if topics is not None and (key is None or key.null_count):
            found = _keys(topics)
            key = found if key is None else pc.coalesce(key, found)
        default: Any = None
        if self._topic is not None:
            default = pa.scalar(key_of(self._topic.encode()), pa.binary())
        if key is None:
            return exchange, default
        if key.null_count:
            if default is None:
                name = "routing key" if topics is None else "topic"
                raise OptionError(f"a row's {name} is null, and there is no option topic")
            key = pc.fill_null(key, default)
        return exchange, key


def _names_of(schema: StructType) -> frozenset[str]:
    names: set[str] = set()
    for field in schema.fields:
        if field.name in IGNORED:
            continue
        allowed = WRITTEN.get(field.name)
        if allowed is None:
            raise OptionError(
                f"column {field.name} means nothing to the sink; its columns are"
                f" {', '.join(WRITTEN)}"
            )
        if field.dataType.simpleString() not in allowed:
            raise OptionError(f"column {field.name} must be of type {' or '.join(allowed)}")
        names.add(field.name)
    return frozenset(names)


def _cut(offsets: Numbers) -> list[int]:
    """Where requests of a moderate size begin, and the end of the last.

    ``offsets`` are those of the messages in bytes, and the end of the last.
    """
    firsts = [0]
    rows = len(offsets) - 1
    while firsts[-1] < rows:
        first = firsts[-1]
        most = int(numpy.searchsorted(offsets, offsets[first] + REQUEST_BYTES, "right")) - 1
        firsts.append(min(max(most, first + 1), first + REQUEST_MESSAGES))
    return firsts


def _plain(column: Any) -> Any:
    """A column with its text and bytes as binary of 32-bit offsets, whatever Spark uses."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    return column


def _lengths(values: Any) -> Numbers:
    lengths: Numbers = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    return lengths


def _sizes(values: Any, most: int, name: str) -> Any:
    """The lengths of values, or the one length of a single one. Raises OptionError."""
    if isinstance(values, pa.Scalar):
        lengths: Any = len(values.as_py())
        longest = lengths
    else:
        lengths = _lengths(values)
        longest = lengths.max(initial=0)
    if longest > most:
        raise OptionError(f"a row's {name} is longer than {most} bytes")
    return lengths


def _fixed(rows: Numbers, is_valid: Any = None) -> pa.Array:
    """Rows of one width, an array of numpy, as binary; null where they are not valid."""
    width = rows.dtype.itemsize if rows.ndim == 1 else rows.shape[1]
    offsets = numpy.arange(0, width * (len(rows) + 1), width, dtype="<i4")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(numpy.ascontiguousarray(rows).data)]
    made = pa.Array.from_buffers(pa.binary(), len(rows), buffers)
    return made if is_valid is None else pc.if_else(is_valid, made, pa.scalar(None, pa.binary()))


def _keys(topics: pa.Array) -> pa.Array:
    """The routing keys of MQTT topics: each distinct one is made once."""
    encoded = topics.dictionary_encode()
    keys = [None if topic is None else key_of(topic) for topic in encoded.dictionary.to_pylist()]
    return pa.array(keys, pa.binary()).take(encoded.indices)


def _flags(columns: dict[str, pa.Array]) -> Any:
    """Delivery mode, persistence and retain as bits of a message's flags."""
    flags: Any = AT_LEAST_ONCE | PERSISTENT
    modes = columns.get("delivery_mode")
    if modes is not None:
        found = pc.index_in(modes.cast(pa.string()), _MODES)
        if found.null_count > modes.null_count:
            raise OptionError(f"a row's delivery_mode is not one of {', '.join(DELIVERY_MODES)}")
        numbers = pc.fill_null(found, AT_LEAST_ONCE).to_numpy(zero_copy_only=False)
        flags = numpy.where(numbers > 0, numbers | PERSISTENT, 0)
    retain = columns.get("retain")
    if retain is not None:
        flags = flags | pc.fill_null(retain, False).to_numpy(zero_copy_only=False) * RETAIN
    return flags


def _priority(columns: dict[str, pa.Array]) -> Any:
    column = columns.get("priority")
    if column is None:
        return 0
    values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    if values.size and not 0 <= values.min() <= values.max() <= 255:
        raise OptionError("a row's priority is not from 0 to 255")
    return values


class _Properties:
    """The properties of rows as msgpack maps."""

    def __init__(self, columns: dict[str, pa.Array], rows: int) -> None:
        self._rows = rows
        #: how many properties each row has
        self._counts = numpy.zeros(rows, "u1")
        self._parts: list[Any] = []
        for name, number, is_text in _VARIABLE:
            values = columns.get(name)
            if values is not None and values.null_count < rows:
                self._add(number, [_sized(values, is_text), values], values)
        topics = columns.get("reply_to_topic")
        if topics is not None and topics.null_count < rows:
            keys = _keys(topics)
            self._add(REPLY_TO_TOPIC, [_sized(keys, False), keys], keys)
        if "key" in columns:
            _sizes(columns["key"], MAX_KEY_BYTES, "key")
        for name, number, most in _NUMBERS:
            values = columns.get(name)
            if values is not None and values.null_count < rows:
                self._add(number, [_numbers(values, most, name)], values)
        headers = columns.get("headers", columns.get("user_properties"))
        if headers is not None:
            self._add_headers(headers)

    def encoded(self) -> pa.Array | None:
        """All of them, empty where a row has none; None where no row has any."""
        if not self._parts:
            return None
        heads = _fixed((_FIXMAP | self._counts).reshape(-1, 1))
        parts = [pc.if_else(pa.array(self._counts > 0), heads, _NOTHING), *self._parts]
        return pc.binary_join_element_wise(
            *parts, _NOTHING, null_handling="replace", null_replacement=b""
        )

    def _add(self, number: int, parts: list[Any], values: Any) -> None:
        """The property ``number`` where ``values`` are not null."""
        is_valid = values.is_valid()
        self._counts += is_valid.to_numpy(zero_copy_only=False)
        tag = pa.scalar(bytes((number,)), pa.binary())
        if values.null_count:
            self._parts.append(pc.if_else(is_valid, tag, _NOTHING))
        else:
            self._parts.append(tag)
        self._parts += parts

    def _add_headers(self, headers: Any) -> None:
        """The headers of rows that have any."""
        offsets = headers.offsets.to_numpy()
        counts = numpy.diff(offsets)
        if counts.max(initial=0) == 0:
            return
        if counts.max() > MAX_HEADERS:
            raise OptionError(f"a row has more than {MAX_HEADERS} headers")
        if pa.types.is_map(headers.type):
            names, values = headers.keys, headers.items
        else:
            names, values = headers.values.flatten()
        part = slice(offsets[0], offsets[-1])
        is_text = not pa.types.is_binary(values.type)
        names, values = _plain(names[part]), _plain(values[part])
        if names.null_count:
            raise OptionError("a header of a row has no name")
        sizes = _sized(values, is_text)
        if values.null_count:
            sizes = pc.fill_null(sizes, pa.scalar(bytes((_NIL,)), pa.binary()))
            values = pc.fill_null(values, _NOTHING)
        pair = pa.scalar(bytes((_PAIR,)), pa.binary())
        pairs = pc.binary_join_element_wise(
            pair, _sized(names, True), names, sizes, values, _NOTHING
        )
        heads = numpy.empty((self._rows, 4), "u1")
        heads[:, 0] = HEADERS
        heads[:, 1] = _ARRAY16
        heads[:, 2:] = counts.astype(">u2").view("u1").reshape(-1, 2)
        has_any = counts > 0
        self._counts += has_any
        lists = pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), pairs)
        self._parts += [_fixed(heads, pa.array(has_any)), pc.binary_join(lists, _NOTHING)]


def _sized(values: Any, is_text: bool) -> pa.Array:
    """What msgpack has before each of these texts or bytes; null where one is null."""
    lengths = _lengths(values)
    longest = lengths.max(initial=0)
    if is_text and longest <= _SHORT_TEXT:
        return _fixed((_FIXSTR | lengths).astype("u1").reshape(-1, 1), values.is_valid())
    width = 0 if longest <= 0xFF else 1 if longest <= 0xFFFF else 2
    heads = numpy.empty((len(values), 1 + (1 << width)), "u1")
    heads[:, 0] = (_TEXT_HEADS if is_text else _BYTES_HEADS)[width]
    heads[:, 1:] = lengths.astype(f">u{1 << width}").view("u1").reshape(len(values), -1)
    return _fixed(heads, values.is_valid())


def _numbers(column: Any, most: int, name: str) -> pa.Array:
    """Numbers, or times as seconds, as msgpack; null where one is null. Raises OptionError."""
    if pa.types.is_timestamp(column.type):
        column = pc.divide(
            column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), _SECOND
        )
    values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    if not 0 <= values.min() <= values.max() <= most:
        raise OptionError(f"a row's {name} is not from 0 to {most}")
    rows = numpy.empty((len(values), 9), "u1")
    rows[:, 0] = _UINT64
    rows[:, 1:] = values.astype(">u8").view("u1").reshape(-1, 8)
    return _fixed(rows, column.is_valid())
