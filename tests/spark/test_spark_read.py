"""Reading with a real Spark session from a real broker."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Row, SparkSession

from interop.brokers import TriviumProcess
from tests.spark.reading import Reading, load, numbers, publish
from trivium.messages.message import Properties
from trivium_native.sync import SyncClient, connect
from trivium_native.values import Publication

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def reading(spark: SparkSession, broker: TriviumProcess, tmp_path: Path) -> Reading:
    return Reading(
        spark, tmp_path / "checkpoint", url=broker.url, stream="s", startingOffsets="earliest"
    )


def test_values_are_what_was_published(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 1)
    client.bind_stream("s", "amq.topic", "#")
    large = bytes(range(256)) * 4096
    published = [
        Publication(payload=b"", routing_key="plain"),
        Publication(
            payload="Grüße, 世界 🌍".encode(),
            routing_key="é.日本".encode(),
            properties=Properties(
                content_type="text/plain; charset=utf-8",
                key="schlüssel".encode(),
                headers=[("ü", "ö"), ("ü", b"\x00\xff"), ("n", 7), ("b", True), ("void", None)],
            ),
        ),
        Publication(payload=large, routing_key="a/b.c", properties=Properties(key=b"")),
        Publication(payload=b"\x00", routing_key=b""),
    ]
    client.publish_batch(published[:2])
    client.publish_batch(published[2:])
    rows = load(spark, broker).orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [p.payload for p in published]
    assert [row.topic for row in rows] == ["plain", "é/日本", "a.b/c", ""]
    assert [row.key for row in rows] == [None, "schlüssel".encode(), b"", None]
    assert [row.content_type for row in rows] == [None, "text/plain; charset=utf-8", None, None]
    assert [[(h.key, bytes(h.value)) for h in row.headers] for row in rows] == [
        [],
        [("ü", "ö".encode()), ("ü", b"\x00\xff"), ("n", b"7"), ("b", b"true"), ("void", b"")],
        [],
        [],
    ]
    assert [(row.stream, row.partition, row.offset) for row in rows] == [
        ("s", 0, n) for n in range(4)
    ]
    assert {row.protocol for row in rows} == {"native"}
    (record, *_) = client.fetch("s", 0, 0).batches[0].records()
    assert rows[0].timestamp.timestamp() * 1000 == pytest.approx(record.timestamp, abs=0.5)


def test_batch_read_of_a_range(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 1)
    publish(client, "s", range(20))
    found = load(spark, broker, startingOffsets='{"s/0": 5}', endingOffsets='{"s/0": 12}')
    assert sorted(numbers(found.collect())) == list(range(5, 12))
    found = load(spark, broker, startingOffsets='{"s": {"0": 18}}')
    assert sorted(numbers(found.collect())) == [18, 19]
    with pytest.raises(AnalysisException, match="startingOffsets of a batch query is not latest"):
        load(spark, broker, startingOffsets="latest").collect()
    assert load(spark, broker).count() == 20


def test_batch_read_of_records_that_do_not_exist(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 1)
    publish(client, "s", range(3))
    with pytest.raises(Exception, match="DataLossError: s/0: offsets 3 to 8 do not exist"):
        load(spark, broker, endingOffsets='{"s/0": 9}').collect()
    found = load(spark, broker, endingOffsets='{"s/0": 9}', failOnDataLoss="false")
    assert numbers(found.collect()) == [0, 1, 2]


def test_batch_read_by_pattern_and_time_in_more_tasks_than_partitions(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    for name in ("s-1", "s-2", "t"):
        client.declare_stream(name, 1)
        publish(client, name, range(30))
    given = {"url": broker.url, "subscribePattern": "s-.*", "startingTimestamp": "1"}
    frame = spark.read.format("trivium").options(**given, minPartitions="5").load()
    assert frame.rdd.getNumPartitions() >= 5
    assert sorted(numbers(frame.collect())) == sorted([*range(30)] * 2)


def test_batch_read_with_filters_that_the_source_takes_over(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 2)
    client.bind_stream("s", "amq.topic", "#")
    client.publish_batch(
        [Publication(payload=b"%d" % n, routing_key=f"a.{n % 4}") for n in range(40)]
    )
    whole = load(spark, broker).where("partition >= 0").toPandas()
    (name, query) = ("spark.sql.python.filterPushdown.enabled", "offset < 8 AND topic = 'a/1'")
    query += " AND timestamp > TIMESTAMP '2020-01-01 00:00:00' AND length(value) > 0"
    spark.conf.set(name, "true")
    try:
        found = load(spark, broker, pushFilters="true").where(query).collect()
    finally:
        spark.conf.unset(name)
    wanted = whole[(whole.offset < 8) & (whole.topic == "a/1")]
    assert sorted(numbers(found)) == sorted(int(bytes(value)) for value in wanted.value)
    assert found


def test_query_that_selects_columns(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 1)
    publish(client, "s", range(3))
    reader = spark.read.format("trivium").schema("offset bigint, topic string")
    frame = reader.option("url", broker.url).option("stream", "s").load()
    assert sorted(frame.collect()) == [Row(offset=n, topic="s") for n in range(3)]


def test_wrong_options_are_named(spark: SparkSession, broker: TriviumProcess) -> None:
    with pytest.raises(AnalysisException, match="OptionError: unknown option failondatalos;"):
        load(spark, broker, failOnDataLos="false")
    with pytest.raises(AnalysisException, match="OptionError: option group: a batch query"):
        load(spark, broker, group="g").collect()
    with pytest.raises(AnalysisException, match=r"OptionError: stream 's' .*does not exist"):
        load(spark, broker).collect()


def first_line_of(error: BaseException) -> str:
    """That which is about the error itself, whatever Spark says before it in the same line."""
    return next(line for line in str(error).splitlines() if "Error" in line or "Trace" in line)


def test_errors_are_one_line_first(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, reading: Reading
) -> None:
    with pytest.raises(AnalysisException) as planned:
        load(spark, broker).collect()
    assert "errors.OptionError: stream 's'" in first_line_of(planned.value)
    place = broker.url.removeprefix("trivium://")
    with pytest.raises(AnalysisException) as refused:
        load(spark, broker, url=f"trivium://guest:wrong@{place}").collect()
    assert f"wrong password for user guest at {place}" in first_line_of(refused.value)
    client.declare_stream("s", 1)
    with pytest.raises(Exception, match="DataLossError") as of_a_task:
        load(spark, broker, endingOffsets='{"s/0": 9}').collect()
    (line,) = [each for each in str(of_a_task.value).splitlines() if "Traceback" in each][:1]
    assert "DataLossError" in str(of_a_task.value).partition(line)[0]
    client.delete_stream("s")
    query = reading.start()
    with pytest.raises(StreamingQueryException) as ended:
        query.awaitTermination()
    assert "errors.OptionError: stream 's'" in first_line_of(ended.value)


def test_query_from_latest_reads_what_follows(reading: Reading, client: SyncClient) -> None:
    client.declare_stream("s", 1)
    publish(client, "s", range(5))
    reading.options["startingOffsets"] = "latest"
    query = reading.start()
    query.processAllAvailable()
    publish(client, "s", range(5, 8))
    query.processAllAvailable()
    query.stop()
    assert numbers(reading.rows) == [5, 6, 7]


def test_query_goes_on_at_its_checkpoint(reading: Reading, client: SyncClient) -> None:
    client.declare_stream("s", 3)
    reading.options["maxOffsetsPerTrigger"] = "7"
    publish(client, "s", range(30))
    assert sorted(reading.run()) == list(range(30))
    assert max(reading.sizes) == 7
    assert sorted(reading.run()) == list(range(30))
    publish(client, "s", range(30, 40))
    # Where a query starts is asked of the checkpoint only.
    reading.options["startingOffsets"] = "latest"
    assert sorted(reading.run()) == list(range(40))


def test_first_batch_that_failed_is_repeated_from_where_it_began(
    reading: Reading, client: SyncClient
) -> None:
    client.declare_stream("s", 1)
    publish(client, "s", range(5))
    reading.options["startingOffsets"] = "latest"

    def fail() -> None:
        # Records after the query's beginning, and a query that dies before it has kept any.
        publish(client, "s", range(5, 9))
        raise RuntimeError("the sink is broken")

    query = reading.start()
    query.processAllAvailable()
    reading.before_batch = fail
    publish(client, "s", [100])
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        query.awaitTermination()
    reading.before_batch = lambda: None
    assert reading.run() == [100, 5, 6, 7, 8]


def test_broker_killed_between_micro_batches(
    reading: Reading, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 2)
    publish(client, "s", range(50))
    query = reading.start()
    query.processAllAvailable()
    for first in (50, 100):
        broker.kill()
        broker.start()
        with connect(broker.url) as again:
            publish(again, "s", range(first, first + 50))
        query.processAllAvailable()
    query.stop()
    assert sorted(numbers(reading.rows)) == list(range(150))


def test_broker_away_while_a_micro_batch_runs(
    reading: Reading, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 2)
    publish(client, "s", range(50))

    def restart() -> None:
        broker.kill()
        away = socket.create_server(("127.0.0.1", broker.ports["native"]))

        def come_back() -> None:
            # Once a task of the batch has found no broker.
            with away:
                away.accept()[0].close()
            broker.start()

        threading.Thread(target=come_back).start()

    reading.before_batch = restart
    assert sorted(reading.run()) == list(range(50))


def test_broker_that_stays_away_ends_the_query(reading: Reading, broker: TriviumProcess) -> None:
    reading.options["retryTimeout"] = "0.2"
    with connect(broker.url) as client:
        client.declare_stream("s", 1)
    query = reading.start()
    query.processAllAvailable()
    broker.kill()
    with pytest.raises(
        StreamingQueryException, match="BrokerUnavailable: the broker did not answer"
    ):
        query.awaitTermination()
    broker.start()


def test_stream_made_again_is_data_loss(reading: Reading, client: SyncClient) -> None:
    client.declare_stream("s", 1)
    publish(client, "s", range(5))
    assert reading.run() == [0, 1, 2, 3, 4]
    client.delete_stream("s")
    client.declare_stream("s", 1)
    publish(client, "s", range(10, 18))
    with pytest.raises(
        StreamingQueryException, match="DataLossError: s/0: the stream was deleted and made again"
    ):
        reading.run()
    reading.options["failOnDataLoss"] = "false"
    assert reading.run() == [0, 1, 2, 3, 4, *range(10, 18)]
    reading.options["failOnDataLoss"] = "true"
    publish(client, "s", [18])
    assert reading.run() == [0, 1, 2, 3, 4, *range(10, 19)]


def test_several_streams_of_several_partitions(reading: Reading, client: SyncClient) -> None:
    client.declare_stream("s", 4)
    client.declare_stream("with/slash", 2)
    reading.options["stream"] = "s, with/slash"
    publish(client, "s", range(20))
    publish(client, "with/slash", range(100, 110))
    reading.run()
    publish(client, "s", range(20, 25))
    reading.run()
    by_stream = {
        name: sorted(numbers([row for row in reading.rows if row.stream == name]))
        for name in ("s", "with/slash")
    }
    assert by_stream == {"s": list(range(25)), "with/slash": list(range(100, 110))}
    places = [(row.stream, row.partition, row.offset) for row in reading.rows]
    assert len(set(places)) == len(places)


def test_commit_is_the_offset_of_the_group(reading: Reading, client: SyncClient) -> None:
    client.declare_stream("s", 1)
    publish(client, "s", range(5))
    reading.options["group"] = "spark"
    reading.run()
    publish(client, "s", range(5, 8))
    (state,) = client.committed("spark", "s")
    assert (state.committed, state.lag) == (5, 3)
    reading.run()
    (state,) = client.committed("spark", "s")
    assert (state.committed, state.lag) == (8, 0)


def test_a_second_query_with_the_same_group_ends_the_first(
    spark: SparkSession, reading: Reading, client: SyncClient, tmp_path: Path
) -> None:
    client.declare_stream("s", 1)
    publish(client, "s", range(5))
    reading.options["group"] = "spark"
    first = reading.start()
    first.processAllAvailable()
    second = Reading(spark, tmp_path / "other", **reading.options)
    assert second.run() == [0, 1, 2, 3, 4]
    with pytest.raises(StreamingQueryException, match="GroupTakenOver: group 'spark'"):
        first.awaitTermination(60)
    publish(client, "s", range(5, 8))
    assert second.run() == list(range(8))
    assert client.committed("spark", "s")[0].committed == 8


def test_progress_shows_the_latest_offset(reading: Reading, client: SyncClient) -> None:
    client.declare_stream("s", 1)
    publish(client, "s", range(5))
    reading.options["maxOffsetsPerTrigger"] = "2"
    query = reading.start(available_now=True)
    query.awaitTermination()
    (source,) = query.recentProgress[0]["sources"]
    assert '"s/0": 2' in str(source["endOffset"]).replace("'", '"')
    latest = json.loads(source["latestOffset"])
    assert latest["offsets"] == {"s/0": 5}
    assert latest["behind"]["s"]["records"] == 3
    assert latest["behind"]["s"]["bytes"] > 3
    (source,) = query.recentProgress[-1]["sources"]
    assert json.loads(source["latestOffset"])["behind"] == {"s": {"records": 0, "bytes": 0}}


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_stream_is_read_like_any_other(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, codec: str
) -> None:
    client.declare_stream("s", 1, {"x-compression": codec})
    client.bind_stream("s", "amq.topic", "#")
    published = [Publication(payload=b"%d" % n + bytes(100), routing_key="a") for n in range(200)]
    client.publish_batch(published)
    assert len(client.fetch("s", 0, 0).batches[0].data) < 10_000
    rows = load(spark, broker).orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [each.payload for each in published]
