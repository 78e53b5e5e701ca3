"""Reading some topics of a stream with a real Spark session: the broker leaves out the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from interop.brokers import TriviumProcess
from tests.spark.reading import Reading, load, numbers
from trivium_native.sync import SyncClient
from trivium_native.values import Publication

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def publish(client: SyncClient, first: int, after: int) -> None:
    """Every fourth message of topic ``a/0``, and so on to ``a/3``."""
    client.publish_batch(
        [Publication(payload=b"%d" % n, routing_key=f"a.{n % 4}") for n in range(first, after)]
    )


@pytest.fixture
def stream(client: SyncClient) -> None:
    client.declare_stream("s", 2)
    client.bind_stream("s", "amq.topic", "#")
    publish(client, 0, 400)


@pytest.mark.usefixtures("stream")
def test_a_batch_query_reads_the_topics_of_its_filter(
    spark: SparkSession, broker: TriviumProcess
) -> None:
    found = load(spark, broker, topicFilter="a/1", minPartitions="5").collect()
    assert sorted(numbers(found)) == list(range(1, 400, 4))
    assert {row.topic for row in found} == {"a/1"}
    assert load(spark, broker, topicFilter="a/+").count() == 400
    assert load(spark, broker, topicFilter="b/#").count() == 0
    with pytest.raises(AnalysisException, match="topicFilter is no topic filter of MQTT"):
        load(spark, broker, topicFilter="a#")


@pytest.mark.usefixtures("stream")
def test_a_streaming_query_with_a_filter_goes_on_behind_what_it_leaves_out(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, tmp_path: Path
) -> None:
    options = {"url": broker.url, "stream": "s", "startingOffsets": "earliest"}
    options |= {"topicFilter": "a/2", "maxOffsetsPerTrigger": "150"}
    reading = Reading(spark, tmp_path / "checkpoint", **options)
    assert sorted(reading.run()) == list(range(2, 400, 4))
    # Three micro-batches, by all offsets.
    assert len(reading.sizes) == 3
    publish(client, 400, 800)
    reading.rows.clear()
    assert sorted(reading.run()) == list(range(402, 800, 4))
    client.publish_batch([Publication(payload=b"x", routing_key="b")] * 10)
    reading.rows.clear()
    assert reading.run() == []


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("condition", ["topic = 'a/1'", "topic LIKE 'a/1%'"])
def test_a_filter_of_topics_in_a_batch_query_goes_to_the_broker(
    spark: SparkSession, broker: TriviumProcess, condition: str
) -> None:
    whole = load(spark, broker).where(condition).collect()
    spark.conf.set(PUSHDOWN, "true")
    try:
        found = load(spark, broker, pushFilters="true").where(condition).collect()
    finally:
        spark.conf.unset(PUSHDOWN)
    assert sorted(numbers(found)) == sorted(numbers(whole)) == list(range(1, 400, 4))
