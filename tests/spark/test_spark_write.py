"""Writing with a real Spark session to a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from interop.brokers import TriviumProcess
from trivium.messages.message import Properties
from trivium_native.arrow import TYPES
from trivium_native.sync import SyncClient, connect
from trivium_native.values import Publication, Record
from trivium_native.wire.properties import decode_properties
from trivium_spark import write_batch
from trivium_spark.columns import default_schema
from trivium_spark.errors import OptionError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def records(client: SyncClient, stream: str) -> list[Record]:
    """All records of a stream, partition by partition."""
    found: list[Record] = []
    (info,) = client.metadata([stream])
    for number, partition in enumerate(info.partitions):
        offset = partition.first_offset
        while offset < partition.high_watermark:
            for batch in client.fetch(stream, number, offset).batches:
                found += batch.records()
            offset = found[-1].offset + 1
    return found


def test_batch_write_to_an_exchange(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("all", 1)
    client.bind_stream("all", "amq.topic", "#")
    rows = [
        ("a/b", b"key", "Grüße", [("ü", b"\x00"), ("ü", b"2")], "text/plain"),
        (None, None, "", [], None),
        ("a.b/c", b"", "third", None, None),
    ]
    kind = (
        "topic string, key binary, value string, headers array<struct<key:string,value:binary>>,"
        " content_type string"
    )
    frame = spark.createDataFrame(rows, kind).coalesce(1)
    frame.write.format("trivium").mode("append").options(url=broker.url, topic="else/where").save()
    written = records(client, "all")
    assert [record.routing_key for record in written] == [b"a.b", b"else.where", b"a/b.c"]
    assert [record.payload for record in written] == ["Grüße".encode(), b"", b"third"]
    assert [record.key for record in written] == [b"key", None, b""]
    assert written[0].headers == [("ü", b"\x00"), ("ü", b"2")]
    assert [record.content_type for record in written] == ["text/plain", None, None]
    assert {record.exchange for record in written} == {"amq.topic"}


def test_batch_write_to_a_stream(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("target", 2)
    frame = spark.range(5000).selectExpr("CAST(id AS STRING) AS value", "CAST(id AS STRING) AS key")
    frame.write.format("trivium").mode("append").options(url=broker.url, stream="target").save()
    written = records(client, "target")
    assert sorted(int(record.payload) for record in written) == list(range(5000))
    assert all(record.key == record.payload for record in written)


def test_rows_to_a_queue_have_all_their_properties(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("q", 1)
    frame = spark.range(1).selectExpr(
        *("'x' AS value", "'a' AS key", "map('h', 'v') AS headers", "'text/plain' AS content_type"),
        *("'utf-8' AS content_encoding", "'c' AS correlation_id", "'r' AS reply_to"),
        *("60000L AS expiration", "'m' AS message_id", "'t' AS type", "'app' AS app_id"),
        *("'at-most-once' AS delivery_mode", "7 AS priority"),
    )
    frame.write.format("trivium").mode("append").options(url=broker.url, queue="q").save()
    (batch,) = client.fetch("q", 0, 0).batches
    message = batch.view().message(0)
    properties = decode_properties(message.header)
    assert (message.mode, message.persistent, message.priority) == (0, False, 7)
    assert message.expires - message.timestamp == 60_000
    assert (properties.key, properties.headers) == (b"a", [("h", "v")])
    assert (properties.content_type, properties.content_encoding) == ("text/plain", "utf-8")
    assert (properties.correlation_id, properties.reply_to) == (b"c", "r")
    assert (properties.message_id, properties.type_, properties.app_id) == ("m", "t", "app")


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[TriviumProcess]:
    (tmp_path / "copied").mkdir()
    process = TriviumProcess(tmp_path / "copied", protocols=("native",))
    process.start()
    yield process
    process.kill()


def test_a_full_read_round_trips(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, copied: TriviumProcess
) -> None:
    with connect(copied.url) as copy:
        for each in (client, copy):
            each.declare_stream("s", 3)
            each.bind_stream("s", "amq.topic", "#")
        said = Properties(
            key=b"k",
            headers=[("a", "1"), ("a", "2")],
            content_type="text/plain",
            content_encoding="gzip",
            correlation_id=b"\xff",
            reply_to="q",
            reply_to_topic=b"r.t",
            expiration=3_600_000,
            message_id="m",
            timestamp=1_700_000_000,
            type_="t",
            app_id="app",
        )
        client.publish_batch(
            [
                Publication(
                    payload=b"1", routing_key="a.b", properties=said, priority=7, retain=True
                ),
                Publication(payload=b"2", routing_key="a.b", mode=0),
                Publication(payload=b"3", routing_key="a.b", properties=Properties(partition=4)),
            ]
        )
    columns = default_schema(list(TYPES), TYPES)

    def whole(url: str) -> DataFrame:
        reader = spark.read.format("trivium").schema(columns)
        return reader.options(url=url, stream="s").load()

    read = whole(broker.url)
    # A transaction has messages delivered exactly once, whatever they were.
    given = {"url": copied.url, "exactlyOnce": "false"}
    read.write.format("trivium").mode("append").options(**given).save()
    differ = ("offset", "timestamp", "expiration")

    def rows(url: str) -> list[Row]:
        return whole(url).drop(*differ).orderBy("value").collect()

    assert rows(copied.url) == rows(broker.url)
    assert [row.partition for row in rows(broker.url) if bytes(row.value) == b"3"] == [1]
    lifetimes = whole(copied.url).orderBy("value").select("expiration").collect()
    assert [row.expiration for row in lifetimes] == [3_600_000, None, None]


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_write_to_what_there_is_not(spark: SparkSession, broker: TriviumProcess, kind: str) -> None:
    frame = spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(Exception, match=f"OptionError: {kind} 'no' does not exist"):
        frame.write.format("trivium").mode("append").options(url=broker.url, **{kind: "no"}).save()


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("'a' AS topic", "the sink needs a column value"),
        (
            "'a' AS value",
            "the sink needs a column topic or routing_key, or option topic",
        ),
        ("'a' AS topic, 1 AS value", "column value must be of type binary or string"),
        ("'a' AS topic, 'a' AS value, 1 AS header", "column header means nothing to the sink"),
        ("'a' AS topic, CAST(NULL AS STRING) AS value", "a row's value is null"),
        ("CAST(NULL AS STRING) AS topic, 'a' AS value", "a row's topic is null"),
    ],
)
def test_wrong_rows_are_refused(
    spark: SparkSession, broker: TriviumProcess, columns: str, named: str
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=f"OptionError: {named}"):
        frame.write.format("trivium").mode("append").option("url", broker.url).save()


def test_overwrite_is_refused(spark: SparkSession, broker: TriviumProcess) -> None:
    frame = spark.range(1).selectExpr("'a' AS topic", "'a' AS value")
    with pytest.raises(Exception, match="OptionError: messages cannot be overwritten"):
        frame.write.format("trivium").mode("overwrite").option("url", broker.url).save()


def test_update_mode_is_refused_by_spark(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, tmp_path: Path
) -> None:
    client.declare_stream("source", 1)
    frame = (
        spark.readStream.format("trivium")
        .options(url=broker.url, stream="source")
        .load()
        .groupBy("value")
        .count()
        .selectExpr("'a' AS topic", "value")
    )
    write = frame.writeStream.format("trivium").options(
        url=broker.url, checkpointLocation=str(tmp_path / "checkpoint")
    )
    with pytest.raises(Exception, match="does not support Update mode"):
        write.outputMode("update").start().processAllAvailable()


def test_streaming_write_goes_on_after_a_crash_of_the_broker(
    spark: SparkSession, broker: TriviumProcess, tmp_path: Path
) -> None:
    def publish(numbers: range) -> None:
        with connect(broker.url) as client:
            client.publish_batch(
                [Publication(payload=b"%d" % n, routing_key=f"in.{n % 7}") for n in numbers]
            )

    with connect(broker.url) as client:
        client.declare_stream("source", 2)
        client.declare_stream("copy", 1)
        client.bind_stream("source", "amq.topic", "in.#")
        client.bind_stream("copy", "amq.topic", "out.#")
    publish(range(60))
    reader = spark.readStream.format("trivium").option("startingOffsets", "earliest")
    query = (
        reader.option("url", broker.url)
        .option("stream", "source")
        .load()
        .selectExpr("concat('out', substring(topic, 3)) AS topic", "value", "offset", "headers")
        .writeStream.format("trivium")
        .option("url", broker.url)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .queryName("copy")
        .start()
    )
    query.processAllAvailable()
    broker.kill()
    broker.start()
    publish(range(60, 100))
    query.processAllAvailable()
    query.stop()
    with connect(broker.url) as client:
        written = records(client, "copy")
    # The broker died between micro-batches, so nothing was published twice either.
    assert sorted((record.routing_key, int(record.payload)) for record in written) == sorted(
        (b"out.%d" % (n % 7), n) for n in range(100)
    )


def test_a_micro_batch_that_is_repeated_is_written_once(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, tmp_path: Path
) -> None:
    client.declare_stream("source", 2)
    client.declare_stream("copy", 1)
    client.bind_stream("source", "amq.topic", "in.#")

    def run(count: int) -> None:
        """Another run of the query, with so many new rows."""
        client.publish_many(
            [[Publication(payload=b"x", routing_key=f"in.{n}")] for n in range(count)]
        )
        query = (
            spark.readStream.format("trivium")
            .options(url=broker.url, stream="source", startingOffsets="earliest")
            .load()
            .select("value", "key")
            .writeStream.format("trivium")
            .options(url=broker.url, stream="copy", checkpointLocation=str(tmp_path / "checkpoint"))
            .start()
        )
        query.processAllAvailable()
        query.stop()

    run(50)
    assert len(records(client, "copy")) == 50
    # What a crash leaves between the last task and Spark's note that the batch is done.
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink()
    run(0)
    assert (commits / str(last)).exists()
    assert len(records(client, "copy")) == 50
    run(20)
    assert len(records(client, "copy")) == 70


def test_what_foreach_batch_writes_counts_once_when_the_batch_is_repeated(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient, tmp_path: Path
) -> None:
    for name in ("source", "copy", "counts"):
        client.declare_stream(name, 1)
    client.publish_batch([Publication(payload=b"x", exchange="", routing_key="source")] * 50)
    url = broker.url

    def run(fails: bool) -> None:
        def write(batch: DataFrame, batch_id: int) -> None:
            write_batch(batch.select("value"), batch_id, url=url, stream="copy")
            counts = batch.selectExpr("CAST(count AS STRING) AS value")
            write_batch(counts, batch_id, name="counts", url=url, stream="counts")
            if fails:
                with pytest.raises(OptionError, match="give each write of a batch a name"):
                    write_batch(counts, batch_id, name="counts", url=url, stream="counts")
                raise RuntimeError("the sink fails when all is written")

        frame = spark.readStream.format("trivium").options(url=url, stream="source")
        query = (
            frame.option("startingOffsets", "earliest")
            .load()
            .groupBy("value")
            .count()
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(write)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(StreamingQueryException, match="the sink fails when all is written"):
        run(fails=True)
    run(fails=False)
    assert [record.payload for record in records(client, "copy")] == [b"x"]
    assert [record.payload for record in records(client, "counts")] == [b"50"]
