"""Devices to Parquet: readings come by MQTT, a stream keeps them, Spark writes them to files.

Spark notes in its checkpoint how far it has read, and in the table which files count. So each
reading is in the table once, whoever was killed on the way.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.weather.means import spark_session
from trivium import Config, Listen, embedded
from trivium.config import StorageConfig

CONFIG = Config(
    listen={"mqtt": Listen(0), "native": Listen(0)}, storage=StorageConfig(mode="memory")
)


def measure(address: str, device: str, readings: list[float]) -> None:
    """A device publishes its readings; returns once the broker has acknowledged them."""
    host, _, port = address.rpartition(":")
    client = mqtt.Client(CallbackAPIVersion.VERSION2, device)
    client.connect(host, int(port))
    client.loop_start()
    for celsius in readings:
        client.publish(f"devices/{device}/celsius", str(celsius), qos=1).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


def read(spark: SparkSession, address: str) -> DataFrame:
    """The readings as they come: device, celsius, timestamp."""
    url = f"trivium://{address}"
    records = spark.readStream.format("trivium").options(url=url, stream="readings")
    return (
        records.option("startingOffsets", "earliest")
        .load()
        .select(
            f.split("topic", "/")[1].alias("device"),
            f.col("value").cast("string").cast("double").alias("celsius"),
            "timestamp",
        )
    )


def main(spark: SparkSession, directory: Path) -> None:
    table = str(directory / "readings")
    with embedded.start(CONFIG) as broker:
        with broker.client() as client:
            client.declare_stream("readings")
            client.bind("stream", "readings", pattern="devices.*.celsius")
        # The second run of the query goes on where the first one ended.
        for readings in ([20.5, 21.0], [21.5]):
            for device in ("kitchen", "cellar"):
                measure(broker.listeners["mqtt"], device, readings)
            query = (
                read(spark, broker.listeners["native"])
                .writeStream.format("parquet")
                .partitionBy("device")
                .options(path=table, checkpointLocation=str(directory / "checkpoint"))
                .trigger(availableNow=True)  # without it the query goes on until it is stopped
                .start()
            )
            query.awaitTermination()
    means = spark.read.parquet(table).groupBy("device").agg(f.count("*"), f.mean("celsius"))
    for device, count, mean in means.orderBy("device").collect():
        print(f"{device}: {count} readings, {mean} degrees on average")


if __name__ == "__main__":
    with spark_session() as session, tempfile.TemporaryDirectory() as folder:
        main(session, Path(folder))
