"""Who holds the group of a streaming query, with a real Spark session."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from interop.brokers import TriviumProcess
from trivium_native.sync import SyncClient
from trivium_native.values import Publication

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

#: seconds that the end of a process may take on a busy machine
PATIENCE = 60.0


def start(
    spark: SparkSession, broker: TriviumProcess, checkpoint: Path, available_now: bool
) -> StreamingQuery:
    frame = spark.readStream.format("trivium").options(
        url=broker.url, stream="s", startingOffsets="earliest", group="g"
    )
    writer = frame.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start() if available_now else writer.start()


def state(client: SyncClient) -> str:
    (group,) = client.groups()[0]
    return group.state


@pytest.mark.parametrize("available_now", [False, True])
def test_a_query_that_stops_leaves_its_group(
    spark: SparkSession,
    broker: TriviumProcess,
    client: SyncClient,
    tmp_path: Path,
    available_now: bool,
) -> None:
    client.declare_stream("s", 1)
    client.publish_batch([Publication(payload=b"x", exchange="", routing_key="s")] * 3)
    for _ in range(3):
        query = start(spark, broker, tmp_path / "checkpoint", available_now)
        if available_now:
            query.awaitTermination()
        else:
            query.processAllAvailable()
            assert state(client) == "exclusive"
            query.stop()
        until = time.monotonic() + PATIENCE
        # Spark ends the process that reads for the query without waiting for it.
        while (now := state(client)) == "exclusive" and time.monotonic() < until:
            pass
        assert now == "empty"
        assert client.committed("g", "s")[0].lag == 0
        with client.join("g", ["s"]):
            pass
