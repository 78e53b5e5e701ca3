"""A real Spark session: it reads what came by every road, and what it writes leaves by each."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.amqp import await_one, channel
from interop.mqtt import Mqtt, given
from interop.native import await_records, native_url, open_client
from interop.site import Site
from trivium.common.client_tls import ClientTls
from trivium.config import EVERYTHING
from trivium.messages.message import Properties
from trivium_native.sync import connect
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
        native.publish_batch(
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


def test_spark_reads_and_writes_by_tls_with_a_token(
    spark: Any, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    import jwt

    secret = "a secret of more than thirty-two bytes"
    (tmp_path / "jwt.key").write_text(secret)
    token = jwt.encode({"sub": "spark", "exp": time.time() + 3600}, secret, "HS256")
    (tmp_path / "token").write_text(token + "\n")
    site = Site(
        tmp_path,
        "interpreted",
        {
            "TRIVIUM_AUTH__ANONYMOUS": "never",
            "TRIVIUM_JWT__KEY_FILE": str(tmp_path / "jwt.key"),
            "TRIVIUM_JWT__ALGORITHMS": '["HS256"]',
            "TRIVIUM_USERS__spark__PASSWORD": "not used",
            "TRIVIUM_USERS__spark__PERMISSIONS": json.dumps(EVERYTHING),
        },
    )
    url = f"triviums://127.0.0.1:{site.port('natives')}"
    ca = Path(site.ca).read_text()
    with connect(url, tls=ClientTls(ca=ca), password=token) as native:
        for stream in ("source", "copy"):
            native.declare_stream(stream)
        native.publish_batch(
            [Publication(payload=b"%d" % n, exchange="", routing_key="source") for n in range(9)]
        )
    # Executors get the authority as a text, and the token's file by its name.
    common = {"url": url, "tlsCa": ca, "passwordFile": str(tmp_path / "token")}
    rows = (
        spark.readStream.format("trivium")
        .options(**common, stream="source", startingOffsets="earliest")
        .load()
    )
    query = (
        rows.select("value")
        .writeStream.format("trivium")
        .options(**common, stream="copy", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # The token itself as an option, which Spark does not show.
    batch = spark.read.format("trivium").options(url=url, tlsCa=ca, password=token)
    copied = batch.options(stream="copy").load()
    assert sorted(bytes(row.value) for row in copied.collect()) == [b"%d" % n for n in range(9)]
    copied.explain(True)
    query.explain(True)
    signature = token.rpartition(".")[2]
    shown = [*capfd.readouterr(), repr(copied), str(query.lastProgress)]
    kept = [file for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()]
    shown += [file.read_text(errors="replace") for file in kept]
    assert not [text for text in shown if signature in text]
    assert "RelationV2" in shown[0], "plans were shown"
    site.close()
    assert signature not in site.process.log.read_text()
