"""Decoded payloads with a real Spark session."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from interop.brokers import TriviumProcess
from tests.spark.reading import load
from trivium_native.sync import SyncClient
from trivium_native.values import Publication

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DDL = "city string, `at` timestamp, rooms array<struct<name: string, t: double>>"


def publish(client: SyncClient, *payloads: bytes) -> None:
    client.declare_stream("s", 1)
    client.publish_batch(
        [Publication(payload=each, exchange="", routing_key="s") for each in payloads]
    )


def test_json_becomes_columns_and_what_is_bad_stands_beside_them(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    good = {"city": "Bern", "at": "2024-01-02T03:04:05Z", "rooms": [{"name": "a", "t": 1}]}
    publish(client, json.dumps(good).encode(), b"x", b'{"city": 1}', b"")
    frame = load(spark, broker, decode="json", schema=DDL)
    rows = frame.orderBy("offset").select("data.*", "_corrupt_record", "topic").collect()
    assert [(row.city, row["_corrupt_record"]) for row in rows] == [
        ("Bern", None),
        (None, b"x"),
        (None, b'{"city": 1}'),
        (None, None),
    ]
    assert rows[0].rooms == [Row(name="a", t=1.0)]
    kind = frame.schema["data"].dataType
    assert isinstance(kind, StructType)
    again = load(spark, broker, decode="json", schema=kind.json(), endingOffsets='{"s/0": 1}')
    assert again.schema == frame.schema
    assert again.select("data").collect() == frame.where("offset = 0").select("data").collect()


def test_in_mode_failfast_a_bad_payload_ends_the_query_with_its_place(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    publish(client, b'{"n": 1}', b"x")
    given = {"decode": "json", "schema": "n int", "mode": "FAILFAST"}
    frame = load(spark, broker, **given)
    assert frame.columns[-1] == "data"
    with pytest.raises(Exception, match="TriviumSparkError: s/0 at offset 1: the value is no JSON"):
        frame.select("data").collect()


def test_a_query_selects_decoded_columns(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    publish(client, b'{"n": 1, "m": 2}', "é".encode())
    options = {"url": broker.url, "stream": "s", "decode": "json"}
    reader = spark.read.format("trivium").options(**options)
    frame = reader.schema("data struct<n: int>, offset bigint").load()
    assert frame.orderBy("offset").collect() == [
        Row(data=Row(n=1), offset=0),
        Row(data=None, offset=1),
    ]
    assert [row.data for row in load(spark, broker, decode="text").collect()] == [
        '{"n": 1, "m": 2}',
        "é",
    ]
    with pytest.raises(AnalysisException, match="decode = json needs option schema"):
        load(spark, broker, decode="json")


def test_avro_becomes_columns(
    spark: SparkSession, broker: TriviumProcess, client: SyncClient
) -> None:
    schema = {
        "type": "record",
        "name": "reading",
        "fields": [{"name": "n", "type": "long"}, {"name": "city", "type": ["null", "string"]}],
    }
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), {"n": 7, "city": "Bern"})
    publish(client, data.getvalue(), b"")
    frame = load(spark, broker, decode="avro", schema=json.dumps(schema))
    rows = frame.orderBy("offset").select("data", "_corrupt_record").collect()
    assert rows == [
        Row(data=Row(n=7, city="Bern"), _corrupt_record=None),
        Row(data=None, _corrupt_record=None),
    ]
