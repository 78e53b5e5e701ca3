"""A stream that is given more partitions while a query of a real Spark session reads it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from pyspark.sql import SparkSession

from interop.brokers import TriviumProcess
from tests.spark.reading import Reading, load, numbers
from trivium.messages.message import Properties
from trivium_native.sync import SyncClient
from trivium_native.values import Publication

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TriviumProcess]:
    process = TriviumProcess(tmp_path, protocols=("native", "http"))
    process.start()
    yield process
    process.kill()


def extend(broker: TriviumProcess, partitions: int) -> None:
    place = f"http://127.0.0.1:{broker.ports['http']}/api/v1/vhosts/%2F/streams/s/partitions"
    guest = base64.b64encode(b"guest:guest").decode()
    headers = {"Authorization": f"Basic {guest}", "Content-Type": "application/json"}
    body = json.dumps({"partitions": partitions}).encode()
    with urlopen(Request(place, body, headers, method="PUT")):
        pass


def publish(client: SyncClient, partition: int, *values: int) -> None:
    properties = Properties(partition=partition)
    client.publish_batch(
        [
            Publication(payload=b"%d" % n, exchange="", routing_key="s", properties=properties)
            for n in values
        ]
    )


def test_a_running_query_reads_new_partitions_from_their_beginning(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, tmp_path: Path
) -> None:
    client.declare_stream("s", 1)
    publish(client, 0, -1)
    # From latest on: that holds for the partitions that there were at the start alone.
    reading = Reading(
        spark, tmp_path / "checkpoint", url=broker.url, stream="s", startingOffsets="latest"
    )
    query = reading.start()
    query.processAllAvailable()
    publish(client, 0, 0, 1)
    query.processAllAvailable()
    extend(broker, 3)
    publish(client, 1, 2, 3)
    publish(client, 2, 4)
    publish(client, 0, 5)
    query.processAllAvailable()
    assert sorted(numbers(reading.rows)) == list(range(6))
    assert {(row.partition, row.offset) for row in reading.rows if row.partition} == {
        (1, 0),
        (1, 1),
        (2, 0),
    }
    progress = query.lastProgress
    assert progress is not None
    latest = json.loads(progress["sources"][0]["latestOffset"])
    assert latest["offsets"] == {"s/0": 4, "s/1": 2, "s/2": 1}
    query.stop()
    publish(client, 1, 6)
    extend(broker, 4)
    publish(client, 3, 7)
    reading.rows.clear()
    assert sorted(reading.run()) == [6, 7]
    assert load(spark, broker).count() == 9
