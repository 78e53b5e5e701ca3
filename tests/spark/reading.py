"""Reading with a real Spark session: what the tests of it share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from interop.brokers import TriviumProcess
from trivium_native.sync import SyncClient
from trivium_native.values import Publication


def publish(client: SyncClient, stream: str, numbers: Sequence[int]) -> None:
    """Each message in a request, and so mostly in a record batch, of its own."""
    client.publish_many(
        [Publication(payload=b"%d" % n, exchange="", routing_key=stream)] for n in numbers
    )


def numbers(rows: Sequence[Row]) -> list[int]:
    return [int(bytes(row.value)) for row in rows]


class Reading:
    """A streaming query that is stopped and started again with the same checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self.options = options
        self.rows: list[Row] = []
        self.sizes: list[int] = []
        #: called before a batch is taken; what it raises fails the query
        self.before_batch: Callable[[], None] = lambda: None

    def _take(self, batch: DataFrame, _: int) -> None:
        self.before_batch()
        rows = batch.collect()
        self.rows += rows
        self.sizes.append(len(rows))

    def start(self, available_now: bool = False) -> StreamingQuery:
        frame = self._spark.readStream.format("trivium").options(**self.options).load()
        writer = frame.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def run(self) -> list[int]:
        """Read what is available now; the numbers read so far."""
        self.start(available_now=True).awaitTermination()
        return numbers(self.rows)


def load(spark: SparkSession, broker: TriviumProcess, **options: str) -> DataFrame:
    return (
        spark.read.format("trivium").options(**{"url": broker.url, "stream": "s", **options}).load()
    )
