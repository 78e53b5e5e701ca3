"""Writing: rows become messages, published by the tasks, each acknowledged before its task ends.

Delivery is at least once: Spark repeats a task or a micro-batch that failed, and what it had
published by then is published again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from trivium.message import Properties
from trivium.topics import key_of
from trivium_native.values import Publication
from trivium_spark.errors import OptionError
from trivium_spark.options import WriteOptions
from trivium_spark.session import Session

_BYTES: Final = ("binary", "string")

#: columns of a write, with the Spark types that they may have
_WRITTEN: Final = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "content_type": ("string",),
}

#: columns that a read has and a write has no use for, so that what was read can be written as it is
_IGNORED: Final = frozenset({"partition", "offset", "timestamp", "stream", "protocol"})


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """What a task reports: how many messages it published, all of them acknowledged."""

    messages: int


class RowPublisher:
    """Publishes rows. Picklable: it holds no connection. Raises OptionError for a wrong schema."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        names: list[str] = []
        for field in schema.fields:
            if field.name in _IGNORED:
                continue
            allowed = _WRITTEN.get(field.name)
            if allowed is None:
                raise OptionError(
                    f"column {field.name} means nothing to the sink; its columns are"
                    f" {', '.join(_WRITTEN)}"
                )
            if field.dataType.simpleString() not in allowed:
                raise OptionError(f"column {field.name} must be of type {' or '.join(allowed)}")
            names.append(field.name)
        if "value" not in names:
            raise OptionError("the sink needs a column value")
        if options.stream is not None and "topic" in names:
            raise OptionError(
                "what is written to a stream has no topic: drop the column, or bind the stream to"
                " an exchange and write to that"
            )
        if options.stream is None and "topic" not in names and options.topic is None:
            raise OptionError("the sink needs a column topic, or option topic or stream")
        self._names = names

    def publish(self, batches: Iterator[pa.RecordBatch]) -> Published:
        """Publish all rows; returns when the broker has acknowledged the last of them."""
        count = 0
        with Session(self._options.url, self._options.retry_timeout) as session:
            for batch in batches:
                messages = self._messages(batch)
                session.publish(messages)
                count += len(messages)
        return Published(count)

    def _messages(self, batch: pa.RecordBatch) -> list[Publication]:
        nothing: list[Any] = [None] * batch.num_rows
        columns = {name: batch.column(name).to_pylist() for name in self._names}
        return [
            self._message(*row)
            for row in zip(
                columns.get("topic", nothing),
                columns.get("key", nothing),
                columns["value"],
                columns.get("headers", nothing),
                columns.get("content_type", nothing),
                strict=True,
            )
        ]

    def _message(
        self,
        topic: str | None,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: list[dict[str, Any]] | None,
        content_type: str | None,
    ) -> Publication:
        if value is None:
            raise OptionError("a row's value is null: a message has a payload, if an empty one")
        properties = None
        if key is not None or headers or content_type is not None:
            properties = Properties(
                content_type=content_type,
                key=None if key is None else _bytes(key),
                headers=[(header["key"], header["value"]) for header in headers or ()],
            )
        stream = self._options.stream
        if stream is not None:
            # The default exchange leads to the stream by its name; mandatory, lest it be gone.
            return Publication(
                payload=_bytes(value),
                routing_key=stream,
                exchange="",
                properties=properties,
                mandatory=True,
            )
        if topic is None:
            topic = self._options.topic
        if topic is None:
            raise OptionError("a row's topic is null, and there is no option topic")
        return Publication(
            payload=_bytes(value),
            routing_key=key_of(topic.encode()),
            exchange=self._options.exchange,
            properties=properties,
        )


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


class TriviumStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._publisher = RowPublisher(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return self._publisher.publish(iterator)


class TriviumWriter(DataSourceArrowWriter):
    """The sink of a batch query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._publisher = RowPublisher(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return self._publisher.publish(iterator)
