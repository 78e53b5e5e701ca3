"""Reading a queue with a real Spark session: settled when done, given back when not."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import trivium_spark
from interop.brokers import TriviumProcess
from tests.kills.programs import Driver
from tests.spark.queries import Moment
from tests.spark.queue_query import BATCH
from tests.spark.reading import numbers
from trivium_native.sync import SyncClient
from trivium_native.values import Publication

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def queue(client: SyncClient) -> None:
    client.declare_queue("q")
    client.publish_batch(
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
def test_nothing_is_lost_where_the_driver_is_killed(
    broker: TriviumProcess, client: SyncClient, tmp_path: Path
) -> None:
    """And nothing is there twice but what was done and not settled yet."""
    if shutil.which("java") is None:
        pytest.skip("no Java runtime")
    moment = Moment()
    told = (broker.url, str(tmp_path), str(moment.port))
    driver = Driver(tmp_path, "tests.spark.queue_query", *told)
    driver.start()
    try:
        moment.wait(lambda: driver.is_running)
        assert driver.is_running, driver.log.read_text()
        driver.kill()
    finally:
        driver.clean_up()
    done = [int(line) for line in (tmp_path / "done").read_text().splitlines()]
    assert sorted(done) == list(range(2 * BATCH))
    with client.consume("q", no_ack=True) as deliveries:
        left = {int(each.payload): each.is_redelivered for each in islice(deliveries, 30 - BATCH)}
    again = set(left) & set(done)
    assert again == set(done[BATCH:])
    assert set(left) | set(done) == set(range(30))
    assert {number for number in left if left[number]} == again


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


@pytest.mark.parametrize(
    "decoding", [{}, {"decode": "text"}, {"decode": "json", "schema": "n int"}], ids=str
)
def test_a_batch_of_an_empty_queue_has_no_rows(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, decoding: dict[str, str]
) -> None:
    client.declare_queue("q")
    with trivium_spark.read_queue(spark, url=broker.url, queue="q", **decoding) as frame:
        assert frame.collect() == []
        assert ("data" in frame.columns) == bool(decoding)
