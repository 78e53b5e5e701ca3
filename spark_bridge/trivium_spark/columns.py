"""The columns of a read, and record batches turned into Arrow arrays.

An array is made of a batch's own buffers, by position; there is no Python object per record. What
a batch holds once for all its records is repeated by Arrow. Only topics are made in Python, once
per distinct routing key of a batch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy
import numpy.typing
import pyarrow as pa
from pyspark.sql.types import StructType

from trivium.records import (
    CONSTANT,
    CONTENT_TYPE,
    HEADERS,
    KEY,
    OFFSET_DELTA,
    PAYLOAD,
    PROTOCOL,
    ROUTING_KEY,
    TIMESTAMP,
    Column,
    RecordBatch,
)
from trivium.topics import topic_of
from trivium_spark.errors import OptionError

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADER_LIST: Final = pa.list_(pa.field("element", _HEADER))

#: name, Spark type and Arrow type of all columns of a read, in order
COLUMNS: Final = (
    ("key", "binary", pa.binary()),
    ("value", "binary", pa.binary()),
    ("topic", "string", pa.string()),
    ("partition", "int", pa.int32()),
    ("offset", "bigint", pa.int64()),
    ("timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
    ("headers", "array<struct<key:string,value:binary>>", _HEADER_LIST),
    ("stream", "string", pa.string()),
    ("protocol", "string", pa.string()),
    ("content_type", "string", pa.string()),
)

#: the same as Spark reads it (DDL)
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind, _ in COLUMNS)

#: name of a protocol by its number; numbers without a name stand for themselves
_PROTOCOLS: Final = pa.array([None, "mqtt", "amqp", "native", *map(str, range(4, 256))])


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema for a query's schema: all columns, or those that it selects by name.

    Raises OptionError for a column that there is not, or that has another type.
    """
    types = {name: (kind, arrow) for name, kind, arrow in COLUMNS}
    fields: list[pa.Field] = []
    for field in schema.fields:
        kind, arrow = types.get(field.name, ("", None))
        if field.dataType.simpleString() != kind:
            raise OptionError(
                f"column {field.name} {field.dataType.simpleString()} is not one of: {SCHEMA}"
            )
        fields.append(pa.field(field.name, arrow, field.nullable))
    return pa.schema(fields)


class BatchConverter:
    """Turns the record batches of one partition into Arrow record batches of one schema."""

    def __init__(self, stream: str, partition: int, schema: pa.Schema) -> None:
        self._schema = schema
        self._stream = pa.scalar(stream, pa.string())
        self._partition = pa.scalar(partition, pa.int32())

    def convert(self, batch: RecordBatch, base: int, start: int, end: int) -> pa.RecordBatch:
        """The records of ``batch`` from offset ``start`` up to before ``end``.

        ``base`` is the offset of the batch. The batch may begin before ``start`` and end after
        ``end``. Raises pyarrow.ArrowInvalid
        when the batch is damaged.
        """
        view = _BatchView(batch)
        offsets = view.offsets(base)
        columns: list[pa.Array] = []
        for name in self._schema.names:
            if name == "stream":
                columns.append(pa.repeat(self._stream, batch.count))
            elif name == "partition":
                columns.append(pa.repeat(self._partition, batch.count))
            elif name == "offset":
                columns.append(pa.array(offsets))
            else:
                columns.append(view.column(name))
        first, after = numpy.searchsorted(offsets, [start, end])
        whole = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return whole.slice(int(first), max(int(after - first), 0))


class _BatchView:
    """The columns of one record batch as Arrow arrays that share its memory."""

    def __init__(self, batch: RecordBatch) -> None:
        self._batch = batch
        self._buffer = pa.py_buffer(batch.data)

    def offsets(self, base: int) -> numpy.typing.NDArray[numpy.int64]:
        """The offsets of all records, rising."""
        column = self._batch.columns.get(OFFSET_DELTA)
        if column is None:
            return numpy.arange(base, base + self._batch.count, dtype="int64")
        data = self._slice(column.data_at, column.data_size)
        return numpy.frombuffer(data, "<i8") + numpy.int64(base)

    def column(self, name: str) -> pa.Array:
        if name == "key":
            return self._binary(KEY, None)
        if name == "value":
            return self._binary(PAYLOAD, b"")
        if name == "topic":
            return self._topics()
        if name == "timestamp":
            return self._timestamps()
        if name == "headers":
            return self._headers()
        if name == "protocol":
            return _PROTOCOLS.take(self._fixed(PROTOCOL, pa.uint8()))
        return _to_text(self._binary(CONTENT_TYPE, None))

    def _binary(self, id_: int, default: bytes | None) -> pa.Array:
        column = self._batch.columns.get(id_)
        if column is None:
            return pa.repeat(pa.scalar(default, pa.binary()), self._batch.count)
        return self._all_rows(self._variable(column, pa.binary()), column)

    def _all_rows(self, found: pa.Array, column: Column) -> pa.Array:
        return pa.repeat(found[0], self._batch.count) if column.kind == CONSTANT else found

    def _variable(self, column: Column, kind: pa.DataType) -> pa.Array:
        """A variable-width column. The whole of it is checked: Arrow itself trusts offsets."""
        found = pa.Array.from_buffers(
            kind,
            column.rows,
            [
                self._validity(column),
                self._slice(column.offsets_at, 4 * (column.rows + 1)),
                self._slice(column.data_at, column.data_size),
            ],
        )
        found.validate(full=True)
        return found

    def _validity(self, column: Column) -> pa.Buffer | None:
        if column.validity_at < 0:
            return None
        return self._slice(column.validity_at, (column.rows + 7) // 8)

    def _fixed(self, id_: int, kind: pa.DataType) -> pa.Array:
        column = self._batch.columns.get(id_)
        if column is None:
            return pa.repeat(pa.scalar(0, kind), self._batch.count)
        found = pa.Array.from_buffers(
            kind, column.rows, [None, self._slice(column.data_at, column.data_size)]
        )
        return self._all_rows(found, column)

    def _timestamps(self) -> pa.Array:
        milliseconds = self._fixed(TIMESTAMP, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
        # A time that microseconds cannot express must not make the whole stream unreadable.
        return milliseconds.cast(pa.timestamp("us", tz="UTC"), safe=False)

    def _topics(self) -> pa.Array:
        column = self._batch.columns.get(ROUTING_KEY)
        if column is None or column.kind == CONSTANT:
            key = self._batch.binary(ROUTING_KEY, 0) or b""
            return pa.repeat(pa.scalar(topic_text(key), pa.string()), self._batch.count)
        keys = self._binary(ROUTING_KEY, b"").dictionary_encode()
        topics = pa.array([topic_text(key) for key in keys.dictionary.to_pylist()], pa.string())
        return topics.take(keys.indices)

    def _headers(self) -> pa.Array:
        column = self._batch.columns.get(HEADERS)
        if column is None:
            return pa.repeat(pa.scalar([], _HEADER_LIST), self._batch.count)
        assert column.names is not None
        assert column.values is not None
        names = _to_text(self._variable(column.names, pa.binary()))
        values = self._variable(column.values, pa.binary())
        pairs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
        found = pa.Array.from_buffers(
            _HEADER_LIST,
            column.rows,
            [self._validity(column), self._slice(column.lists_at, 4 * (column.rows + 1))],
            children=[pairs],
        )
        found.validate(full=True)
        return self._all_rows(found, column)

    def _slice(self, start: int, size: int) -> pa.Buffer:
        return self._buffer.slice(start, size)


def topic_text(key: bytes) -> str:
    """The ``topic`` of a routing key: its MQTT form, or the key itself where it has none.

    Only an empty key and one that is not UTF-8 have none; bytes that are not UTF-8 become U+FFFD.
    """
    topic = topic_of(key)
    return (key if topic is None else topic).decode("utf-8", "replace")


def _to_text(values: Any) -> Any:
    """Binary to string. Brokers write UTF-8 there; what is not becomes U+FFFD."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [v if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(texts, pa.string())
