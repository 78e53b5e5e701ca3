"""A query that reads the queue ``q``, in a process of its own, until that is killed.

``python -m tests.spark.queue_query URL FOLDER PORT`` adds what each batch has to ``done`` in the
folder. Of the second one it does not come to an end, and says so at the port.
"""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import trivium_spark
from tests.spark.reading import numbers

#: messages of one batch
BATCH = 10


def run(url: str, folder: Path, port: int) -> None:
    session = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    session.dataSource.register(trivium_spark.TriviumDataSource)

    def take(batch: DataFrame, number: int) -> None:
        with (folder / "done").open("a") as done:
            done.writelines(f"{each}\n" for each in numbers(batch.collect()))
        if number == 1:
            socket.create_connection(("127.0.0.1", port)).close()
            threading.Event().wait()

    rows = session.readStream.format("trivium").options(url=url, queue="q", maxRecords=BATCH)
    writer = rows.load().writeStream.foreachBatch(take)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
