"""The Spark job: means by city and day of what the stream has, published back to the broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import trivium_spark

WINDOW = "1 day"
#: How long a window waits for late readings: a day is over once a reading is this much later.
LATENESS = "1 hour"


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Spark in this process, quiet and small."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.appName("weather")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    session.dataSource.register(trivium_spark.TriviumDataSource)
    try:
        yield session
    finally:
        session.stop()


def run_job(spark: SparkSession, url: str, checkpoint: Path, threshold: float) -> None:
    """Process what is in the stream now, from where the checkpoint says that the last run ended.

    Each mean goes to the topic ``weather/CITY/mean``, and one above ``threshold`` to
    ``weather/CITY/alert`` as well.
    """
    readings = (
        spark.readStream.format("trivium")
        .option("url", url)
        .option("stream", "weather")
        .option("startingOffsets", "earliest")
        .load()
    )
    (
        with_topics(daily_means(readings), threshold)
        .writeStream.format("trivium")
        .option("url", url)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def daily_means(readings: DataFrame) -> DataFrame:
    """One row per city and day that is over: city, day, mean, readings."""
    body = f.from_json(f.col("value").cast("string"), "time timestamp, temperature double")
    return (
        readings.select(f.split("topic", "/")[1].alias("city"), body.alias("body"))
        .select("city", "body.*")
        .withWatermark("time", LATENESS)
        .groupBy("city", f.window("time", WINDOW))
        .agg(f.avg("temperature").alias("mean"), f.count("*").alias("readings"))
        .select(
            "city", f.date_format("window.start", "yyyy-MM-dd").alias("day"), "mean", "readings"
        )
    )


def with_topics(means: DataFrame, threshold: float) -> DataFrame:
    """The messages that say so: columns topic, value, content_type."""
    is_alert = f.col("mean") > threshold
    kinds = f.when(is_alert, f.array(f.lit("mean"), f.lit("alert"))).otherwise(
        f.array(f.lit("mean"))
    )
    return means.withColumn("kind", f.explode(kinds)).select(
        f.concat_ws("/", f.lit("weather"), "city", "kind").alias("topic"),
        f.to_json(f.struct("city", "day", "mean", "readings")).alias("value"),
        f.lit("application/json").alias("content_type"),
    )
