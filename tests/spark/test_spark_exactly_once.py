"""A streaming sink under failures that Spark does not show it: each row counts once at the target.

When what is upstream of a Python sink fails, or the query is stopped, Spark ends the sink's input
as if that were all. So nothing that a task does may count before the driver says so.

``TRIVIUM_SPARK_ROUNDS`` says how many rounds of failures there are, ``TRIVIUM_SPARK_SEED`` which.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from interop.brokers import TriviumProcess
from tests.spark.queries import ARROW_ROWS, BATCH_ROWS, Moment, Upstream, start
from trivium_native.sync import SyncClient, connect
from trivium_native.values import Publication

#: Spark starts slowly on a busy machine; each round waits for events, which may take that long.
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("TRIVIUM_SPARK_ROUNDS", "3"))
SEED = int(os.environ.get("TRIVIUM_SPARK_SEED", "1"))

#: rows that a round adds to the source, in the tasks of two partitions
ROWS = 40_000


def fill(client: SyncClient, rows: range) -> None:
    """A record per number, its payload, in turns in the two partitions of the source."""
    client.publish_many(
        [
            Publication(payload=b"%d" % number, routing_key="source", exchange="")
            for number in range(at, min(at + 5000, rows.stop))
        ]
        for at in range(rows.start, rows.stop, 5000)
    )


def written(client: SyncClient) -> list[int]:
    """The numbers at the target, sorted."""
    found: list[int] = []
    (info,) = client.metadata(["copy"])
    for number, partition in enumerate(info.partitions):
        offset = partition.first_offset
        while offset < partition.high_watermark:
            for batch in client.fetch("copy", number, offset).batches:
                found += [int(record.payload) for record in batch.records(offset)]
                offset = batch.base_offset + batch.view().span
    return sorted(found)


def declare(client: SyncClient) -> None:
    client.declare_stream("source", 2)
    client.declare_stream("copy", 1)


def disordered() -> Upstream:
    """The same rows in another order and other batches each time, as a shuffle may give them.

    Functions for executors are made within functions: they go there by value.
    """
    size = ARROW_ROWS

    def disorder(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import random

        import pyarrow

        rows = pyarrow.Table.from_batches(list(batches), pyarrow.schema([("value", "binary")]))
        order = list(range(rows.num_rows))
        random.shuffle(order)
        yield from rows.take(order).to_batches(max_chunksize=size)

    return disorder


def finish(spark: SparkSession, broker: TriviumProcess, checkpoint: Path) -> None:
    """A last run of the query, without failures."""
    query = start(spark, broker.url, checkpoint, disordered())
    query.processAllAvailable()
    query.stop()


@pytest.fixture
def small(spark: SparkSession) -> Iterator[None]:
    """Arrow batches of few rows."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, str(ARROW_ROWS))
    yield
    assert before is not None
    spark.conf.set(name, before)


def failing(row: int, attempts: int, is_killed: bool) -> Upstream:
    """Fails, or kills its process, at ``row`` in the first attempts of a task."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            if seen > row and context.attemptNumber() < attempts:
                if is_killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("the input fails")
            yield batch

    return fail


def unchanged() -> Upstream:
    return lambda batches: batches


def both(first: Upstream, second: Upstream) -> Upstream:
    return lambda batches: second(first(batches))


def test_a_task_whose_input_fails_once_writes_each_row_once(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, tmp_path: Path
) -> None:
    declare(client)
    fill(client, range(ROWS))
    query = start(spark, broker.url, tmp_path / "checkpoint", failing(12_345, 1, is_killed=False))
    query.processAllAvailable()
    query.stop()
    assert written(client) == list(range(ROWS))


def test_a_query_that_is_stopped_in_a_batch_writes_each_row_once(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, tmp_path: Path, small: None
) -> None:
    declare(client)
    fill(client, range(ROWS))
    moment = Moment(7000)
    query = start(spark, broker.url, tmp_path / "checkpoint", moment.upstream())
    moment.wait(lambda: query.isActive)
    query.stop()
    finish(spark, broker, tmp_path / "checkpoint")
    assert written(client) == list(range(ROWS))


def test_each_row_is_written_once_through_rounds_of_failures(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, tmp_path: Path, small: None
) -> None:
    declare(client)
    random_ = random.Random(SEED)
    checkpoint = tmp_path / "checkpoint"
    # First those that no other test has.
    events = ["kill the broker", "kill the worker", "fail for good", "stop", "fail", "nothing"]
    for number in range(ROUNDS):
        with connect(broker.url) as current:
            fill(current, range(number * ROWS, (number + 1) * ROWS))
        event = events[number % len(events)]
        row = random_.randrange(BATCH_ROWS // 2)
        moment = Moment(row) if event in ("stop", "kill the broker") else None
        upstream = unchanged() if moment is None else moment.upstream()
        if event.startswith("fail") or event == "kill the worker":
            attempts = 99 if event == "fail for good" else random_.randint(1, 3)
            upstream = failing(row, attempts, is_killed=event == "kill the worker")
        # Rows come in another order when they come again, or in the same.
        if random_.random() < 0.5:
            upstream = both(disordered(), upstream)
        query = start(spark, broker.url, checkpoint, upstream)
        if moment is not None:
            moment.wait(lambda query=query: query.isActive)  # type: ignore[misc]
        if event == "kill the broker":
            broker.kill()
            broker.start()
        if event != "stop":
            # However it ends: a busy machine has failures of its own.
            with suppress(StreamingQueryException):
                query.processAllAvailable()
                assert event != "fail for good"
        query.stop()
        with connect(broker.url) as current:
            found = written(current)
        assert len(set(found)) == len(found), (number, event)
    finish(spark, broker, checkpoint)
    with connect(broker.url) as current:
        assert written(current) == list(range(ROUNDS * ROWS))
