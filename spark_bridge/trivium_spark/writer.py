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

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from trivium_native.values import Part
from trivium_spark.connection import ReconnectingConnection
from trivium_spark.errors import TriviumSparkError
from trivium_spark.framing import RowFramer
from trivium_spark.options import DEFAULT_RETRY_TIMEOUT, WriteOptions, parse_access


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
        self._framer = RowFramer(options, schema)

    def publish(self, batches: Iterator[pa.RecordBatch]) -> Published:
        """Publish all rows; returns when the broker has acknowledged the last of them."""
        with self._connection() as connection:
            return Published(connection.publish(self._framer.requests(batches)))

    def stage(self, batches: Iterator[pa.RecordBatch], place: Place) -> Staged | Published:
        """Stage all rows as a part of this attempt's own.

        A task without rows asks the broker for nothing. Returns when the broker has all of it on
        disk. The rows count once the part is committed.
        """
        name = f"{place.partition}/{secrets.token_hex(8)}"
        producer = place.producer
        with self._connection() as connection:
            requests = self._framer.requests(batches)
            count = connection.stage(producer, place.batch, name, requests)
        if count is None:
            return Staged(producer, place.batch, None)
        return Staged(producer, place.batch, Part(name, count)) if count else Published(0)

    def _connection(self) -> ReconnectingConnection:
        return ReconnectingConnection(self._options.access, self._options.retry_timeout)


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
