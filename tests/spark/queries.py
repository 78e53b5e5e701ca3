"""A query that copies a stream, and moments of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

#: rows of one Arrow batch: a task has many
ARROW_ROWS = 1000
#: rows of one micro-batch: some rounds have two
BATCH_ROWS = 30_000

Upstream = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def start(spark: SparkSession, url: str, checkpoint: Path, upstream: Upstream) -> StreamingQuery:
    """The query from the source by ``upstream`` to the target."""
    rows: DataFrame = (
        spark.readStream.format("trivium")
        .options(url=url, stream="source", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=BATCH_ROWS)
        .load()
    )
    return (
        rows.select("value")
        .mapInArrow(upstream, "value binary")
        .writeStream.format("trivium")
        .options(url=url, stream="copy", checkpointLocation=str(checkpoint))
        .start()
    )


def telling(port: int, row: int) -> Upstream:
    """Says so at ``port`` when it reaches ``row``."""

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from contextlib import suppress
        from socket import create_connection

        seen = 0
        has_told = False
        for batch in batches:
            seen += batch.num_rows
            if seen > row and not has_told:
                has_told = True
                with suppress(OSError):
                    create_connection(("127.0.0.1", port)).close()
            yield batch

    return tell


class Moment:
    """What a task, or a driver, reaches, such as a row, told to the test while that goes on."""

    def __init__(self, row: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._row = row

    def upstream(self) -> Upstream:
        return telling(self.port, self._row)

    def wait(self, goes_on: Callable[[], bool]) -> None:
        """Until a task has reached the row, or nothing goes on that could."""
        self._listener.settimeout(1)
        with self._listener:
            while goes_on():
                with suppress(TimeoutError):
                    self._listener.accept()[0].close()
                    return
