"""Writing: rows become messages, published by the tasks, each acknowledged before its task ends.

Spark repeats tasks and micro-batches that failed. A batch query then publishes again what was
published by then: at least once.

A streaming query publishes exactly once. Each task has a transactional producer, named for the
query and the partition, whose numbers tell what is in already. What a task writes is cut into
transactions; transaction *n* of micro-batch *b* has number ``b * NUMBERS + n``, but the last one
has the last number of the batch. So a task that was finished is known by a single number, and one
that broke off goes on behind the last transaction that was committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from trivium.message import Properties
from trivium.topics import key_of
from trivium_native.transaction import Transaction
from trivium_native.values import Publication
from trivium_spark.errors import OptionError, TriviumSparkError
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


#: Numbers of transactions for one task in one micro-batch.
NUMBERS: Final = 1 << 20
#: Messages and bytes of one transaction. A task that writes no more writes all or nothing.
TRANSACTION_MESSAGES: Final = 32_768
TRANSACTION_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class Place:
    """Where a task writes: partition ``partition`` of micro-batch ``batch`` of ``query``."""

    query: str
    batch: int
    partition: int


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

    def publish_once(self, batches: Iterator[pa.RecordBatch], place: Place) -> Published:
        """Publish the rows that an earlier attempt has not published yet."""
        first = place.batch * NUMBERS
        count = 0
        with Session(self._options.url, self._options.retry_timeout) as session:
            producer = session.open_producer(f"spark/{place.query}/{place.partition}")
            # Number of transactions of this batch that are in; all, when the task was finished.
            done = max(producer.sequence - first, 0)
            if done >= NUMBERS:
                return Published(0)
            # Half of the longest request, so that one more row has room whatever it is.
            limit = min(TRANSACTION_BYTES, session.max_transaction() // 2)
            for number, is_last, transaction in _numbered(self._transactions(batches, limit)):
                if number < done:
                    continue
                if number >= NUMBERS - 1:
                    raise TriviumSparkError("a task writes too much: use more partitions")
                sequence = first + (NUMBERS - 1 if is_last else number)
                transaction.producer = replace(producer, sequence=sequence)
                session.commit_transaction(transaction)
                count += len(transaction)
        return Published(count)

    def _transactions(self, batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[Transaction]:
        """The rows, cut in a way that depends on nothing but the rows and the broker's limit."""
        transaction = Transaction()
        for batch in batches:
            for message in self._messages(batch):
                entry = message.encode()
                is_full = len(transaction) >= TRANSACTION_MESSAGES
                if is_full or (len(transaction) and transaction.size + len(entry) > limit):
                    yield transaction
                    transaction = Transaction()
                transaction.publish_encoded(entry)
        if len(transaction):
            yield transaction

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


def _numbered(transactions: Iterator[Transaction]) -> Iterator[tuple[int, bool, Transaction]]:
    """Each with its number, and whether it is the last."""
    number = 0
    current = next(transactions, None)
    while current is not None:
        following = next(transactions, None)
        yield number, following is None, current
        current = following
        number += 1


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


class TriviumStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._publisher = RowPublisher(options, schema)
        self._is_exactly_once = options.exactly_once

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        if self._is_exactly_once:
            return self._publisher.publish_once(iterator, place_of_task())
        return self._publisher.publish(iterator)


class TriviumWriter(DataSourceArrowWriter):
    """The sink of a batch query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._publisher = RowPublisher(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return self._publisher.publish(iterator)
