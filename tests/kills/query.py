"""The Spark query of two roads, in a process of its own with executors of their own.

``python -m tests.kills.query ROAD URL FOLDER`` runs it until it is killed; with a further word
``end`` it ends when all that there is has been written.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import trivium_spark

#: Rows of one Arrow batch, and of one micro-batch: each task has many of the former.
ARROW_ROWS: Final = 500
BATCH_ROWS: Final = 20_000


def open_session() -> SparkSession:
    """Two executors, which are processes, and die and come back by themselves."""
    session = (
        SparkSession.builder.master("local-cluster[2,1,512]")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .config("spark.deploy.maxExecutorRetries", "-1")
        .config("spark.python.authenticate.socketTimeout", "300s")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(ARROW_ROWS))
        .getOrCreate()
    )
    session.dataSource.register(trivium_spark.TriviumDataSource)
    return session


def read(session: SparkSession, url: str) -> DataFrame:
    source = session.readStream.format("trivium").options(url=url, stream="source", group="spark")
    source = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=BATCH_ROWS)
    return source.options(retryTimeout=300).load()


def run(road: str, url: str, folder: Path, is_last: bool) -> None:
    session = open_session()
    rows = read(session, url)
    if road == "parquet":
        numbers = rows.selectExpr("cast(cast(value AS string) AS bigint) AS number")
        writer = numbers.writeStream.format("parquet").option("path", str(folder / "table"))
    else:
        writer = rows.select("value").writeStream.format("trivium")
        writer = writer.options(url=url, stream="copy", retryTimeout=300)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    if is_last:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    if road == "parquet":
        # As Spark reads it, by the table's own log.
        pq.write_table(session.read.parquet(str(folder / "table")).toArrow(), folder / "read")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:] == ["end"])
