"""A real Spark session: it reads what came by every road, and what it writes leaves by each."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.amqp import await_one, channel
from interop.mqtt import Mqtt, given
from interop.native import await_records, native_url, open_client
from trivium.messages.message import Properties
from trivium_native.values import Publication

pytestmark = [pytest.mark.one_build, pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.skip("no Java runtime")
    from pyspark.sql import SparkSession

    import trivium_spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    session.dataSource.register(trivium_spark.TriviumDataSource)
    yield session
    session.stop()


def publish_by_every_road(
    mqtt_port: int, amqp_port: int, native_port: int, name: str, body: bytes
) -> None:
    with Mqtt(mqtt_port) as client:
        client.publish(
            f"{name}/mqtt", body, 2, ContentType="a/b", UserProperty=[("k", "1"), ("k", "2")]
        )
    with channel(amqp_port, confirms=True) as opened:
        from pika import BasicProperties

        opened.basic_publish("amq.topic", f"{name}.amqp", body, BasicProperties(headers={"k": 3}))
    with open_client(native_port) as native:
        properties = Properties(key=b"key", headers=[("k", "4")])
        native.publish(
            [Publication(payload=body, routing_key=f"{name}.na/tive", properties=properties)]
        )


def test_every_road_leads_to_spark(
    spark: Any, mqtt_port: int, amqp_port: int, native_port: int, name: str, tmp_path: Path
) -> None:
    with open_client(native_port) as native:
        native.declare_stream(name)
        native.bind_stream(name, "amq.topic", f"{name}.#")
    rows: list[Any] = []
    source = (
        spark.readStream.format("trivium")
        .option("url", native_url(native_port))
        .option("stream", name)
        .option("startingOffsets", "earliest")
        .option("group", "spark")
        .load()
    )
    for body in (b"first\x00\xff", b"second"):
        publish_by_every_road(mqtt_port, amqp_port, native_port, name, body)
        query = (
            source.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    expected = [
        (f"{name}/mqtt", "mqtt", None, "a/b", [("k", b"1"), ("k", b"2")]),
        (f"{name}/amqp", "amqp", None, None, [("k", b"3")]),
        (f"{name}/na.tive", "native", b"key", None, [("k", b"4")]),
    ]
    assert [row.offset for row in rows] == list(range(6)), "the checkpoint is where it goes on"
    assert [bytes(row.value) for row in rows] == [b"first\x00\xff"] * 3 + [b"second"] * 3
    found = [
        (
            row.topic,
            row.protocol,
            None if row.key is None else bytes(row.key),
            row.content_type,
            [(header.key, bytes(header.value)) for header in row.headers],
        )
        for row in rows
    ]
    assert found == expected * 2


def test_what_spark_writes_reaches_every_road(
    spark: Any, mqtt_port: int, amqp_port: int, native_port: int, name: str
) -> None:
    with (
        Mqtt(mqtt_port) as mqtt,
        channel(amqp_port) as opened,
        open_client(native_port) as native,
    ):
        mqtt.subscribe(f"{name}/#", 1)
        queue = opened.queue_declare("", exclusive=True).method.queue
        opened.queue_bind(queue, "amq.topic", f"{name}.#")
        native.declare_stream(name)
        native.bind_stream(name, "amq.topic", f"{name}.#")
        frame = spark.createDataFrame(
            [(f"{name}/a.b", b"\x00\xff", "text/x", [("h", b"v")])],
            "topic string, value binary, content_type string,"
            " headers array<struct<key: string, value: binary>>",
        )
        frame.write.format("trivium").option("url", native_url(native_port)).mode("append").save()
        message = mqtt.receive()
        assert (message.topic, message.payload, message.qos) == (f"{name}/a.b", b"\x00\xff", 1)
        assert given(message.properties).ContentType == "text/x"
        delivery = await_one(opened, queue)
        assert (delivery.key, delivery.body) == (f"{name}.a/b", b"\x00\xff")
        assert delivery.properties.delivery_mode == 2
        (record,) = await_records(native, name, 1)
        assert (record.payload, record.headers) == (b"\x00\xff", [("h", b"v")])
