"""Record batches turned into Arrow arrays; needs pyarrow and numpy (``trivium[arrow]``).

An array is made of the batches' own bytes, joined column by column; there is no Python object per
record. Only topics are made in Python, once per distinct routing key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy
import numpy.typing
import pyarrow as pa
import pyarrow.compute as pc

from trivium.messages.delivery import DELIVERY_MODES
from trivium.streams.records import (
    CONSTANT,
    CONTENT_TYPE,
    EXCHANGE,
    EXPIRES,
    FLAGS,
    HEADERS,
    KEY,
    MODE_MASK,
    OFFSET_DELTA,
    PAYLOAD,
    PRIORITY,
    PROTOCOL,
    RETAIN,
    ROUTING_KEY,
    SOURCE_HEADER,
    TIMESTAMP,
    Column,
    RecordBatch,
)
from trivium_native.client.arrow_properties import (
    PROPERTY_TYPES,
    PublisherProperties,
    topic_text,
)
from trivium_native.client.values import Fetched
from trivium_native.wire.errors import InvalidArgument

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADER_LIST: Final = pa.list_(pa.field("element", _HEADER))

_TEXT_MAP: Final = pa.map_(pa.string(), pa.string())

#: the columns that there are, and their types
TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": _HEADER_LIST,
    "stream": pa.string(),
    "protocol": pa.string(),
    "content_type": pa.string(),
    "exchange": pa.string(),
    "routing_key": pa.binary(),
    "delivery_mode": pa.string(),
    "priority": pa.int32(),
    "expiration": pa.int64(),
    "retain": pa.bool_(),
    "user_properties": _TEXT_MAP,
    **PROPERTY_TYPES,
}

#: those that are read unless others are named
COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset", "timestamp", "headers", "stream"),
    *("protocol", "content_type"),
)

#: Arrow's offsets have 32 bits, with a sign.
_MOST_BYTES: Final = (1 << 31) - 1

#: delivery modes by their numbers; there is none of the last one
_MODES: Final = pa.array([*DELIVERY_MODES, None])

#: name of a protocol by its number; numbers without a name stand for themselves
_PROTOCOLS: Final = pa.array([None, "mqtt", "amqp", "native", *map(str, range(4, 256))])


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of columns by name. Raises InvalidArgument for one that there is not."""
    for name in columns:
        if name not in TYPES:
            raise InvalidArgument(f"column {name!r} is not one of {', '.join(TYPES)}")
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


def to_arrow(
    fetched: Fetched, stream: str, partition: int, start: int, columns: Sequence[str]
) -> pa.RecordBatch:
    """The records that were fetched, from offset ``start`` on.

    The metadata of the schema has ``next_offset``, where to go on, and ``high_watermark``. Raises
    InvalidArgument for an unknown column, pyarrow.ArrowInvalid and trivium.streams.records
    .BatchError for a batch that is damaged.
    """
    schema = schema_of(columns)
    batches = fetched.batches
    after = fetched.next_offset
    if after is None:
        after = batches[-1].next_offset if batches else start
    views = [(each.base_offset, each.view()) for each in batches]
    found = BatchConverter(stream, partition, schema).convert(views, start, after)
    places = {"next_offset": str(after), "high_watermark": str(fetched.high_watermark)}
    return found.replace_schema_metadata(places)


class BatchConverter:
    """Turns the record batches of one partition into Arrow record batches of one schema."""

    def __init__(self, stream: str, partition: int, schema: pa.Schema) -> None:
        self._schema = schema
        self._stream = pa.scalar(stream, pa.string())
        self._partition = pa.scalar(partition, pa.int32())

    def convert(
        self, batches: Sequence[tuple[int, RecordBatch]], start: int, end: int
    ) -> pa.RecordBatch:
        """The records of ``batches`` from offset ``start`` up to before ``end``.

        Each batch comes with its offset. The first may begin before ``start`` and the last end
        after ``end``. Raises pyarrow.ArrowInvalid when a batch is damaged.
        """
        view = _JoinedBatches(batches)
        offsets = view.offsets()
        columns: list[pa.Array] = []
        for name in self._schema.names:
            if name == "stream":
                columns.append(pa.repeat(self._stream, view.count))
            elif name == "partition":
                columns.append(pa.repeat(self._partition, view.count))
            elif name == "offset":
                columns.append(pa.array(offsets))
            else:
                columns.append(view.column(name))
        first, after = numpy.searchsorted(offsets, [start, end])
        whole = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return whole.slice(int(first), max(int(after - first), 0))


class _JoinedBatches:
    """The columns of record batches, each joined over all of them.

    The bytes of a column are put behind one another before Arrow sees any, since each array that
    it makes costs as much as a hundred records.
    """

    def __init__(self, batches: Sequence[tuple[int, RecordBatch]]) -> None:
        self._bases = [base for base, _ in batches]
        self._batches = [batch for _, batch in batches]
        self._counts = [batch.count for batch in self._batches]
        self._data = [memoryview(batch.data) for batch in self._batches]
        self._properties: PublisherProperties | None = None
        #: number of records
        self.count = sum(self._counts)

    def offsets(self) -> numpy.typing.NDArray[numpy.int64]:
        """The offsets of all records, rising."""
        starts = numpy.cumsum([0, *self._counts[:-1]])
        found = numpy.repeat(numpy.array(self._bases) - starts, self._counts)
        found += numpy.arange(self.count)
        for index, batch in enumerate(self._batches):
            column = batch.columns.get(OFFSET_DELTA)
            if column is not None:
                deltas = self._slice(index, column.data_at, column.data_size)
                start = starts[index]
                place = found[start : start + batch.count]
                place[:] = numpy.frombuffer(deltas, "<i8") + numpy.int64(self._bases[index])
        return found

    def column(self, name: str) -> pa.Array:
        if name == "key":
            return self._binary(KEY, is_nullable=True)
        if name == "value":
            return self._binary(PAYLOAD, is_nullable=False)
        if name == "topic":
            return self._topics()
        if name == "timestamp":
            return self._timestamps()
        if name == "headers":
            return self._headers()
        if name == "protocol":
            return _PROTOCOLS.take(self._fixed(PROTOCOL, pa.uint8(), 1))
        if name == "content_type":
            return _to_text(self._binary(CONTENT_TYPE, is_nullable=True))
        return self._more(name)

    def _more(self, name: str) -> pa.Array:
        """One that is not among ``COLUMNS``."""
        if name == "exchange":
            return _to_text(self._binary(EXCHANGE, is_nullable=False))
        if name == "routing_key":
            return self._binary(ROUTING_KEY, is_nullable=False)
        if name == "priority":
            return self._fixed(PRIORITY, pa.uint8(), 1).cast(pa.int32())
        if name == "expiration":
            # What was left when it arrived, where it expires at all.
            expires = self._fixed(EXPIRES, pa.int64(), 8)
            left = pc.subtract(expires, self._fixed(TIMESTAMP, pa.int64(), 8))
            return pc.if_else(pc.equal(expires, 0), pa.scalar(None, pa.int64()), left)
        if name == "user_properties":
            return _text_map(self._headers())
        if name in ("retain", "delivery_mode"):
            flags = self._fixed(FLAGS, pa.uint8(), 1)
            if name == "retain":
                return pc.not_equal(pc.bit_wise_and(flags, pa.scalar(RETAIN, pa.uint8())), 0)
            return _MODES.take(pc.bit_wise_and(flags, pa.scalar(MODE_MASK, pa.uint8())))
        if self._properties is None:
            protocols = self._fixed(PROTOCOL, pa.uint8(), 1)
            headers = self._binary(SOURCE_HEADER, is_nullable=False)
            self._properties = PublisherProperties(protocols, headers)
        return self._properties.column(name)

    def _slice(self, index: int, start: int, size: int) -> memoryview:
        return self._data[index][start : start + size]

    def _fixed(self, id_: int, kind: pa.DataType, width: int) -> pa.Array:
        parts: list[bytes | memoryview] = []
        for index, batch in enumerate(self._batches):
            column = batch.columns.get(id_)
            if column is None:
                parts.append(bytes(width * batch.count))
                continue
            values = self._slice(index, column.data_at, column.data_size)
            is_repeated = column.rows != batch.count
            parts.append(bytes(values) * batch.count if is_repeated else values)
        return pa.Array.from_buffers(kind, self.count, [None, _together(parts)])

    def _binary(self, id_: int, is_nullable: bool) -> pa.Array:
        """A variable-width column; where a batch lacks it, nothing or null in every row."""
        joined = _Variable()
        validity = _Validity()
        for index, batch in enumerate(self._batches):
            column = batch.columns.get(id_)
            if column is None:
                joined.add_empty(batch.count)
                validity.add(None, batch.count, not is_nullable)
            else:
                joined.add(self._data[index], column, batch.count)
                validity.add(self._validity(index, column), batch.count, True)
        return joined.array(pa.binary(), validity.buffer())

    def _validity(self, index: int, column: Column) -> memoryview | None:
        if column.validity_at < 0:
            return None
        return self._slice(index, column.validity_at, (column.rows + 7) // 8)

    def _timestamps(self) -> pa.Array:
        milliseconds = self._fixed(TIMESTAMP, pa.int64(), 8).cast(pa.timestamp("ms", tz="UTC"))
        # A time that microseconds cannot express must not make the whole stream unreadable.
        return milliseconds.cast(pa.timestamp("us", tz="UTC"), safe=False)

    def _topics(self) -> pa.Array:
        texts = [self._constant_topic(index) for index in range(len(self._batches))]
        if texts and None not in texts:
            each = numpy.repeat(numpy.arange(len(texts)), self._counts)
            return pa.array(texts, pa.string()).take(pa.array(each))
        keys = self._binary(ROUTING_KEY, is_nullable=False).dictionary_encode()
        topics = pa.array([topic_text(key) for key in keys.dictionary.to_pylist()], pa.string())
        return topics.take(keys.indices)

    def _constant_topic(self, index: int) -> str | None:
        """The topic of all records of a batch, where they have one routing key."""
        column = self._batches[index].columns.get(ROUTING_KEY)
        if column is None:
            return topic_text(b"")
        if column.rows != 1:
            return None
        return topic_text(bytes(self._slice(index, column.data_at, column.data_size)))

    def _headers(self) -> pa.Array:
        lists = _Lengths()
        validity = _Validity()
        names = _Variable()
        values = _Variable()
        for index, batch in enumerate(self._batches):
            column = batch.columns.get(HEADERS)
            if column is None:
                lists.add_empty(batch.count)
                validity.add(None, batch.count, True)
                continue
            assert column.names is not None
            assert column.values is not None
            times = batch.count if column.kind == CONSTANT else 1
            lists.add(self._data[index], column.lists_at, column.rows, times)
            validity.add(self._validity(index, column), batch.count, True)
            names.add(self._data[index], column.names, times * column.names.rows)
            values.add(self._data[index], column.values, times * column.values.rows)
        texts = _to_text(names.array(pa.binary(), None))
        pairs = pa.StructArray.from_arrays(
            [texts, values.array(pa.binary(), None)], fields=list(_HEADER)
        )
        return pa.Array.from_buffers(
            _HEADER_LIST,
            self.count,
            [validity.buffer(), lists.buffer()],
            children=[pairs],
        )


def _together(parts: list[bytes | memoryview]) -> pa.Buffer:
    """The parts behind one another; a single one is not copied."""
    return pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))


class _Lengths:
    """The lengths of the values of a variable-width column, from the offsets that batches have."""

    def __init__(self) -> None:
        self._offsets: list[bytes | memoryview] = []
        self._sizes: list[int] = []
        self.rows = 0

    def add(self, data: memoryview, offsets_at: int, rows: int, times: int) -> None:
        """The values of ``rows`` rows, ``times`` times."""
        offsets: bytes | memoryview = data[offsets_at : offsets_at + 4 * (rows + 1)]
        if rows == 1:
            # A constant column: numpy takes longer to repeat and to add up.
            first, last = numpy.frombuffer(offsets, "<i4")
            steps = numpy.arange(times + 1, dtype=numpy.int64) * (int(last) - int(first))
            if steps[-1] > _MOST_BYTES:
                raise pa.ArrowInvalid("a column has more than 2 GiB")
            offsets = steps.astype("<i4").tobytes()
        elif times != 1:
            lengths = numpy.tile(numpy.diff(numpy.frombuffer(offsets, "<i4")), times)
            offsets = numpy.cumsum([0, *lengths], dtype="<i4").tobytes()
        self._add(offsets, rows * times)

    def add_empty(self, rows: int) -> None:
        """So many values without a byte."""
        self._add(bytes(4 * (rows + 1)), rows)

    def _add(self, offsets: bytes | memoryview, rows: int) -> None:
        self._offsets.append(offsets)
        self._sizes.append(rows + 1)
        self.rows += rows

    def buffer(self) -> pa.Buffer:
        """The offsets of all of them. Raises pyarrow.ArrowInvalid where some fall."""
        together = _together(self._offsets)
        offsets = numpy.frombuffer(together, "<i4")
        # Between the last offset of one batch and the first of the next there is no value.
        borders = numpy.cumsum(self._sizes, dtype=numpy.intp)[:-1] - 1
        lengths = numpy.diff(offsets)
        if borders.size:
            lengths = numpy.delete(lengths, borders)
        # Of offsets that are not below 0, no difference is beyond 32 bits.
        if lengths.size and (offsets.min() < 0 or lengths.min() < 0):
            raise pa.ArrowInvalid("offsets of a record batch fall")
        if not borders.size:
            return together
        joined = numpy.zeros(self.rows + 1, "<i4")
        numpy.cumsum(lengths, out=joined[1:])
        return pa.py_buffer(joined)


class _Variable:
    """A variable-width column that is being joined."""

    def __init__(self) -> None:
        self._lengths = _Lengths()
        self._data: list[bytes | memoryview] = []

    def add(self, data: memoryview, column: Column, rows: int) -> None:
        """A batch's column; its values are repeated until there are ``rows``."""
        times = rows // column.rows if column.rows else 1
        self._lengths.add(data, column.offsets_at, column.rows, times)
        values = data[column.data_at : column.data_at + column.data_size]
        self._data.append(values if times == 1 else bytes(values) * times)

    def add_empty(self, rows: int) -> None:
        """So many empty values."""
        self._lengths.add_empty(rows)

    def array(self, kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
        """The whole column. Raises pyarrow.ArrowInvalid when a batch is damaged."""
        buffers = [validity, self._lengths.buffer(), _together(self._data)]
        return pa.Array.from_buffers(kind, self._lengths.rows, buffers)


class _Validity:
    """Which rows of a column are not null."""

    def __init__(self) -> None:
        self._parts: list[tuple[memoryview | None, int, bool]] = []
        self._has_nulls = False

    def add(self, bitmap: memoryview | None, rows: int, is_valid: bool) -> None:
        """A batch's rows: as its bitmap says, or all of them valid or null."""
        self._parts.append((bitmap, rows, is_valid))
        if bitmap is not None or not is_valid:
            self._has_nulls = True

    def buffer(self) -> pa.Buffer | None:
        """The bitmap of all rows; None where none is null."""
        if not self._has_nulls:
            return None
        bits = [
            numpy.full(rows, is_valid, numpy.uint8)
            if bitmap is None
            else numpy.unpackbits(
                numpy.frombuffer(bitmap, numpy.uint8), count=rows, bitorder="little"
            )
            for bitmap, rows, is_valid in self._parts
        ]
        return pa.py_buffer(numpy.packbits(numpy.concatenate(bits), bitorder="little"))


def _text_map(headers: pa.Array) -> pa.Array:
    """Headers as maps to texts; of those of one name the last counts."""
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    names, values = headers.flatten().flatten()
    kinds = names.dictionary_encode()
    rows = numpy.repeat(numpy.arange(len(headers)), counts)
    places = rows * max(len(kinds.dictionary), 1) + kinds.indices.to_numpy(zero_copy_only=False)
    _, from_the_end = numpy.unique(places[::-1], return_index=True)
    kept = numpy.sort(len(places) - 1 - from_the_end)
    offsets = numpy.zeros(len(headers) + 1, "<i4")
    numpy.cumsum(numpy.bincount(rows[kept], minlength=len(headers)), out=offsets[1:])
    taken = pa.array(kept)
    return pa.MapArray.from_arrays(offsets, names.take(taken), _to_text(values.take(taken)))


def _to_text(values: Any) -> Any:
    """Binary to string. Brokers write UTF-8 there; what is not becomes U+FFFD."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [v if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(texts, pa.string())
