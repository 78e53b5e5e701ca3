"""Reading a queue with a real Spark session: settled when done, given back when not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import trivium_spark
from interop.brokers import TriviumProcess
from tests.spark.reading import numbers
from trivium_native.sync import SyncClient
from trivium_native.values import Publication

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def queue(client: SyncClient) -> None:
    client.declare_queue("q")
    client.publish(
        [Publication(payload=b"%d" % n, exchange="", routing_key="q") for n in range(30)]
    )


def waiting(client: SyncClient) -> int:
    """How many messages are in the queue and not taken."""
    return client.declare_queue("q").messages


@pytest.mark.usefixtures("queue")
def test_a_streaming_query_settles_what_is_done_and_gives_back_what_failed(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, tmp_path: Path
) -> None:
    found: list[int] = []
    fails = True

    def take(batch: DataFrame, _: int) -> None:
        nonlocal fails
        if found and fails:
            raise RuntimeError("the second batch fails")
        found.extend(numbers(batch.collect()))

    def run(available_now: bool) -> None:
        frame = spark.readStream.format("trivium").options(
            url=broker.url, queue="q", maxRecords="20"
        )
        writer = frame.load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        writer.start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the second batch fails"):
        run(available_now=False)
    assert sorted(found) == list(range(20))
    # The first batch is done; what the second one had is there again.
    assert waiting(client) == 10
    fails = False
    # The second batch is repeated, without messages; they are in the third.
    run(available_now=True)
    assert sorted(found) == list(range(30))
    assert waiting(client) == 0


@pytest.mark.usefixtures("queue")
def test_a_batch_of_a_queue_is_settled_where_its_block_ends_well(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    given = {"url": broker.url, "queue": "q", "maxRecords": "20"}

    def fail() -> None:
        with trivium_spark.read_queue(spark, **given, decode="json", schema="n int") as frame:
            assert (frame.count(), waiting(client)) == (20, 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert waiting(client) == 30
    with trivium_spark.read_queue(spark, **given) as frame:
        rows = frame.collect()
    assert sorted(numbers(rows)) == list(range(20))
    assert {(row.queue, row.redelivered) for row in rows} == {("q", True)}
    assert waiting(client) == 10
    with pytest.raises(AnalysisException, match=r"use trivium_spark\.read_queue"):
        spark.read.format("trivium").options(**given).load().collect()
