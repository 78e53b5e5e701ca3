"""Writing: rows become messages, published or staged by the tasks.

Spark repeats tasks and micro-batches that failed, runs some twice at a time, and ends a task's
input as if that were all of it when what is upstream fails. So no task knows whether its rows
count.

A streaming query writes exactly once. Each attempt of a task *stages* its rows in the broker, as a
part of its own that nobody sees, and tells the driver its name. The driver's ``commit`` names the
parts that count: a transaction of the query's producer, numbered by the micro-batch. A batch that
is repeated is known by that number; parts that nobody named never count.

A batch query publishes as it goes: what was published when it failed is published again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from trivium.messages.message import Properties
from trivium.messages.topics import key_of
from trivium_native.values import Part, Publication
from trivium_spark.connection import ReconnectingConnection
from trivium_spark.errors import OptionError, TriviumSparkError
from trivium_spark.options import DEFAULT_RETRY_TIMEOUT, WriteOptions, parse_access

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


#: Messages and bytes of one request that stages rows. The broker publishes a request in one turn,
#: in which it does little else.
REQUEST_MESSAGES: Final = 8192
REQUEST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where a task writes: partition ``partition`` of micro-batch ``batch`` of ``query``."""

    query: str
    batch: int
    partition: int

    @property
    def producer(self) -> str:
        """The query's producer, whose transactions are its micro-batches."""
        return producer_of(self.query)


def producer_of(query: str) -> str:
    """The producer of a query by the query's id."""
    return f"spark/{query}"


def place_of_task() -> Place:
    """Of the task that this runs in. Raises TriviumSparkError where Spark does not say."""
    context = TaskContext.get()
    query = batch = None
    if context is not None:
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
    if context is None or not query or not batch:
        raise TriviumSparkError(
            "Spark does not tell this task its query and batch, so it cannot write exactly once;"
            " set option exactlyOnce to false to write at least once"
        )
    return Place(query, int(batch), context.partitionId())


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """What a task reports: how many messages it published, all of them acknowledged."""

    messages: int


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task reports that writes exactly once: the part that it staged.

    ``part`` is None where an earlier run has committed the batch.
    """

    producer: str
    batch: int
    part: Part | None


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
        with ReconnectingConnection(
            self._options.access, self._options.retry_timeout
        ) as connection:
            for batch in batches:
                messages = self._messages(batch)
                connection.publish(messages)
                count += len(messages)
        return Published(count)

    def stage(self, batches: Iterator[pa.RecordBatch], place: Place) -> Staged | Published:
        """Stage all rows as a part of this attempt's own.

        A task without rows asks the broker for nothing. Returns when the broker has all of it on
        disk. The rows count once the part is committed.
        """
        name = f"{place.partition}/{secrets.token_hex(8)}"
        producer = place.producer
        index = 0
        with ReconnectingConnection(
            self._options.access, self._options.retry_timeout
        ) as connection:
            for request in self._requests(batches):
                if not connection.stage(producer, place.batch, name, index, request):
                    return Staged(producer, place.batch, None)
                index += 1
        return Staged(producer, place.batch, Part(name, index)) if index else Published(0)

    def _requests(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[bytes]]:
        """The rows as framed messages, in requests of a moderate size."""
        request: list[bytes] = []
        size = 0
        for batch in batches:
            for message in self._messages(batch):
                framed = message.encode()
                if request and size + len(framed) > REQUEST_BYTES:
                    yield request
                    request = []
                    size = 0
                request.append(framed)
                size += len(framed)
                if len(request) >= REQUEST_MESSAGES:
                    yield request
                    request = []
                    size = 0
        if request:
            yield request

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
    """The sink of a streaming query. ``commit`` and ``abort`` are called on the driver."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._publisher = RowPublisher(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged | Published:
        if self._options.exactly_once:
            return self._publisher.stage(iterator, place_of_task())
        return self._publisher.publish(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            with ReconnectingConnection(
                self._options.access, self._options.retry_timeout
            ) as connection:
                connection.commit_parts(staged[0].producer, batchId, _parts(staged))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            with ReconnectingConnection(self._options.access, retry_timeout=0) as connection:
                connection.discard_parts(staged[0].producer, _parts(staged))


def _parts(staged: list[Staged]) -> list[Part]:
    return [message.part for message in staged if message.part is not None]


def forget_query(
    url: str, query: str, retry_timeout: float = DEFAULT_RETRY_TIMEOUT, **options: str
) -> None:
    """Have the broker forget a streaming query that will not be started again.

    ``query`` is its ``id``. ``options`` are those of the sink that are about TLS and credentials,
    such as ``tlsCa``. Spark does not tell a sink that a query is finished for good, so the
    broker keeps the number of its last micro-batch for a week. Raises TriviumSparkError while
    something that was committed is not published.
    """
    access = parse_access({"url": url} | options)
    with ReconnectingConnection(access, retry_timeout) as connection:
        connection.delete_producer(producer_of(query))


class TriviumWriter(DataSourceArrowWriter):
    """The sink of a batch query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._publisher = RowPublisher(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return self._publisher.publish(iterator)
