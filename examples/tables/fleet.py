"""The bridge of a fleet of sensors into a Delta table: whole batches, each once.

Spark gives a micro-batch again when it died before it had noted the end of it. The log of a Delta
table keeps the number of the last transaction of each application (here: the query), so a batch
that is there already is known by its number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from examples.tables.devices import CONFIG, measure, read
from examples.weather.means import spark_session
from trivium import embedded

Write = Callable[[DataFrame, int], None]


def appending(table: str) -> Write:
    """For ``foreachBatch``: appends to the table what is not there yet."""

    def append(batch: DataFrame, batch_id: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None
        if DeltaTable.is_deltatable(table):
            last = DeltaTable(table).transaction_version(query)
            if last is not None and last >= batch_id:
                return
        # Files first, then one entry in the log: readers see all of the batch, or nothing.
        transaction = CommitProperties(app_transactions=[Transaction(query, batch_id)])
        write_deltalake(table, batch.toArrow(), mode="append", commit_properties=transaction)

    return append


def dying(write: Write) -> Write:
    """Writes, and dies before Spark knows."""

    def die(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        raise RuntimeError("the power fails")

    return die


def run(readings: DataFrame, write: Write, checkpoint: Path) -> None:
    """Write what has come since the last run."""
    query = (
        readings.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(spark: SparkSession, directory: Path) -> None:
    table = str(directory / "readings")
    with embedded.start(CONFIG) as broker:
        with broker.client() as client:
            client.declare_stream("readings")
            client.bind("stream", "readings", pattern="devices.*.celsius")
        readings = read(spark, broker.listeners["native"])
        for number in range(3):
            measure(broker.listeners["mqtt"], f"sensor-{number}", [20.5, 21.0])
        # What ends a query is raised; Spark logs it, too, with a stack of Java. This end is meant.
        spark.sparkContext.setLogLevel("OFF")
        try:
            run(readings, dying(appending(table)), directory / "checkpoint")
        except StreamingQueryException:
            print(f"died, with {DeltaTable(table).count()} readings in the table")
        measure(broker.listeners["mqtt"], "sensor-3", [19.5])
        run(readings, appending(table), directory / "checkpoint")
    for version in range(DeltaTable(table).version() + 1):
        print(f"version {version}: {DeltaTable(table, version).count()} readings")


if __name__ == "__main__":
    with spark_session() as session, tempfile.TemporaryDirectory() as folder:
        main(session, Path(folder))
