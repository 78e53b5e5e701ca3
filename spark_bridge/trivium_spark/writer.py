"""Writing: rows become messages, published or staged by the tasks.

Spark repeats tasks and micro-batches that failed, runs some twice at a time, and ends a task's
input as if that were all of it when what is upstream fails. So no task knows whether its rows
count.

So each attempt of a task *stages* its rows in the broker, as a part of its own that nobody sees,
and tells the driver its name. The driver's ``commit`` names the parts that count: a transaction of
a producer. That of a streaming query is numbered by the micro-batch; a batch that is repeated is
known by that number. A batch query has a producer of its own, which goes when it is done. Parts
that nobody named never count.

Without ``exactlyOnce`` a task publishes as it goes: what was published when it failed is published
again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from trivium_native.values import Part
from trivium_spark.connection import ReconnectingConnection
from trivium_spark.errors import OptionError, TriviumSparkError, first_lines
from trivium_spark.framing import RowFramer
from trivium_spark.options import (
    DEFAULT_RETRY_TIMEOUT,
    NUMBER_OPTION,
    PRODUCER_OPTION,
    WriteOptions,
    parse_access,
)
from trivium_spark.reader import spare_collections

logger = logging.getLogger("trivium_spark")

#: what Spark says of the query in the driver's thread and in tasks
_QUERY: Final = "sql.streaming.queryId"
_RUN: Final = "spark.jobGroup.id"

Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True)
class Place:
    """Where a task writes: partition ``partition`` of transaction ``number`` of ``producer``."""

    producer: str
    number: int
    partition: int


def producer_of(query: str, name: str = "") -> str:
    """The producer of a streaming query by the query's id, or of a write in its foreachBatch."""
    return f"spark/{query}/{name}" if name else f"spark/{query}"


def place_of_task() -> Place:
    """Of the task that this runs in. Raises TriviumSparkError where Spark does not say."""
    context = TaskContext.get()
    query = batch = None
    if context is not None:
        query = context.getLocalProperty(_QUERY)
        batch = context.getLocalProperty("streaming.sql.batchId")
    if context is None or not query or not batch:
        raise TriviumSparkError(
            "Spark does not tell this task its query and batch, so it cannot write exactly once;"
            " set option exactlyOnce to false to write at least once"
        )
    return Place(producer_of(query), int(batch), context.partitionId())


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
    number: int
    part: Part | None


class RowPublisher:
    """Publishes rows. Picklable: it holds no connection. Raises OptionError for a wrong schema."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._framer = RowFramer(options, schema)

    def publish(self, batches: Iterator[pa.RecordBatch]) -> Published:
        """Publish all rows; returns when the broker has acknowledged the last of them."""
        spare_collections()
        with self._connection() as connection:
            requests = self._framer.requests(batches, connection.partitions)
            return Published(connection.publish(requests, self._options.target))

    def stage(self, batches: Iterator[pa.RecordBatch], place: Place) -> Staged | Published:
        """Stage all rows as a part of this attempt's own.

        A task without rows asks the broker for nothing. Returns when the broker has all of it on
        disk. The rows count once the part is committed.
        """
        spare_collections()
        name = f"{place.partition}/{secrets.token_hex(8)}"
        producer = place.producer
        with self._connection() as connection:
            requests = self._framer.requests(batches, connection.partitions)
            count = connection.stage(producer, place.number, name, requests, self._options.target)
        if count is None:
            return Staged(producer, place.number, None)
        return Staged(producer, place.number, Part(name, count)) if count else Published(0)

    def _connection(self) -> ReconnectingConnection:
        return ReconnectingConnection(self._options.access, self._options.retry_timeout)


@first_lines
class TriviumStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query. ``commit`` and ``abort`` are called on the driver."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._publisher = RowPublisher(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged | Published:
        if self._options.exactly_once:
            return self._publisher.stage(iterator, place_of_task())
        return self._publisher.publish(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        _commit(self._options, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        _abort(self._options, messages)


@first_lines
class TriviumWriter(DataSourceArrowWriter):
    """The sink of a batch query. ``commit`` and ``abort`` are called on the driver."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._publisher = RowPublisher(options, schema)
        transaction = options.transaction
        # One of its own, unless it writes a micro-batch of a streaming query.
        self._is_own = transaction is None
        if transaction is None:
            transaction = f"spark/batch/{secrets.token_hex(16)}", 0
        self._producer, self._number = transaction

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged | Published:
        if not self._options.exactly_once:
            return self._publisher.publish(iterator)
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        return self._publisher.stage(iterator, Place(self._producer, self._number, partition))

    def commit(self, messages: Messages) -> None:
        if not _commit(self._options, messages) or not self._is_own:
            return
        try:
            with ReconnectingConnection(self._options.access, retry_timeout=0) as connection:
                connection.delete_producer(self._producer)
        except TriviumSparkError as error:
            # All is written, and the broker forgets by itself what is left.
            logger.info("%s", error)

    def abort(self, messages: Messages) -> None:
        _abort(self._options, messages)


def _commit(options: WriteOptions, messages: Messages) -> bool:
    """Have what tasks staged count; whether that was anything."""
    staged = [message for message in messages if isinstance(message, Staged)]
    if not staged:
        return False
    with ReconnectingConnection(options.access, options.retry_timeout) as connection:
        first = staged[0]
        connection.commit_parts(first.producer, first.number, _parts(staged), options.target)
    return True


def _abort(options: WriteOptions, messages: Messages) -> None:
    staged = [message for message in messages if isinstance(message, Staged)]
    if staged:
        with ReconnectingConnection(options.access, retry_timeout=0) as connection:
            connection.discard_parts(staged[0].producer, _parts(staged))


def _parts(staged: list[Staged]) -> list[Part]:
    return [message.part for message in staged if message.part is not None]


#: The run, batch and name of each query's last ``write_batch``.
_written: Final[dict[str, tuple[str, int, set[str]]]] = {}


def write_batch(
    frame: DataFrame,
    batch_id: int,
    *,
    name: str = "batch",
    query: str | None = None,
    **options: str,
) -> None:
    """Write a micro-batch exactly once, from the function that ``foreachBatch`` calls.

    ``options`` are those of the sink. A batch that is repeated is written once, whatever its rows
    are then. Each write of one batch has a ``name`` of its own, the same in every run. ``query`` is
    the streaming query's id, where Spark does not say it in this thread. Raises OptionError, and
    what the sink raises.
    """
    run = None
    if query is None:
        context = frame.sparkSession.sparkContext
        query = context.getLocalProperty(_QUERY)
        run = context.getLocalProperty(_RUN)
    if not query:
        raise OptionError("write_batch is for the function of foreachBatch; elsewhere name a query")
    if not name:
        raise OptionError("write_batch: a name is not empty")
    if run is not None:
        last = _written.get(query)
        if last is None or last[:2] != (run, batch_id):
            last = _written[query] = run, batch_id, set()
        if name in last[2]:
            # Taken for a repetition, it would be dropped.
            raise OptionError(
                f"write_batch writes batch {batch_id} as {name!r} already: give each write of a"
                " batch a name of its own"
            )
        last[2].add(name)
    number = {PRODUCER_OPTION: producer_of(query, name), NUMBER_OPTION: str(batch_id)}
    frame.write.format("trivium").mode("append").options(**options, **number).save()


def forget_query(
    url: str,
    query: str,
    retry_timeout: float = DEFAULT_RETRY_TIMEOUT,
    *,
    name: str = "",
    **options: str,
) -> None:
    """Have the broker forget a streaming query that will not be started again.

    ``query`` is its ``id``; ``name`` that of a ``write_batch``. ``options`` are those of the sink
    that are about TLS and credentials, such as ``tlsCa``. Spark does not tell a sink that a query
    is finished for good, so the broker keeps the number of its last micro-batch for a week. Raises
    TriviumSparkError while something that was committed is not published.
    """
    access = parse_access({"url": url} | options)
    with ReconnectingConnection(access, retry_timeout) as connection:
        connection.delete_producer(producer_of(query, name))
