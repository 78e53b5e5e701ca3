"""A Python data source of Spark that reads from memory, and a sink that keeps nothing.

They do what every data source in Python must, with the columns of Trivium's and nothing else: a
task hands the same Arrow record batch over again and again, or takes batches and drops them. What
a query costs with them is Spark's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from trivium_native.arrow import COLUMNS, TYPES
from trivium_spark.columns import arrow_schema, default_schema

TOPICS: Final = 10
PAYLOAD: Final = b"x" * 100
PARTITIONS: Final = 4
#: Rows of an Arrow batch: fewer, and many more, cost Spark more.
BATCH_ROWS: Final = 16_384


@dataclass(frozen=True)
class Rows(InputPartition):
    """So many of them, which one task reads."""

    count: int


@dataclass(frozen=True)
class Taken(WriterCommitMessage):
    """So many rows were dropped."""

    count: int


@functools.cache
def _columns(names: tuple[str, ...]) -> pa.RecordBatch:
    """Rows like those of the stream that is measured. Made once in each process."""
    count = BATCH_ROWS
    values: dict[str, Any] = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.repeat(pa.scalar(PAYLOAD, pa.binary()), count),
        "topic": [f"bench/{number % TOPICS}" for number in range(count)],
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": range(count),
        "timestamp": pa.repeat(pa.scalar(1_700_000_000_000_000, TYPES["timestamp"]), count),
        "headers": [[]] * count,
        "stream": pa.repeat(pa.scalar("bench"), count),
        "protocol": pa.repeat(pa.scalar("native"), count),
        "content_type": pa.nulls(count, pa.string()),
    }
    arrays = [
        values[name] if isinstance(values[name], pa.Array) else pa.array(values[name], TYPES[name])
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


class _Memory:
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._schema = arrow_schema(schema)
        self._rows = int(options["rows"])
        self._most = int(options.get("maxoffsetspertrigger", self._rows))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        whole = _columns(tuple(self._schema.names)).cast(self._schema)
        left = partition.count
        while left:
            batch = whole.slice(0, left)
            yield batch
            left -= batch.num_rows


def _parts(count: int) -> list[Rows]:
    share, more = divmod(count, PARTITIONS)
    return [Rows(share + (number < more)) for number in range(PARTITIONS)]


class _Reader(_Memory, DataSourceReader):
    def partitions(self) -> list[Rows]:
        return _parts(self._rows)


class _StreamReader(_Memory, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._most >= self._rows else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """There is never more."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"rows": min(self._rows, start["rows"] + self._most)}

    def reportLatestOffset(self) -> None:  # noqa: N802
        """Spark asks for it once a batch."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Rows]:
        return _parts(end["rows"] - start["rows"])

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept."""

    def stop(self) -> None:
        """Nothing is open."""


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Taken:
        return Taken(sum(batch.num_rows for batch in iterator))


class MemoryDataSource(DataSource):
    """``format("memory-arrow")``: option ``rows``, and of a stream ``maxOffsetsPerTrigger``."""

    @classmethod
    def name(cls) -> str:
        return "memory-arrow"

    def schema(self) -> StructType:
        return default_schema(COLUMNS, TYPES)

    def reader(self, schema: StructType) -> _Reader:
        return _Reader(self.options, schema)

    def streamReader(self, schema: StructType) -> _StreamReader:  # noqa: N802
        return _StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:
        return _Writer()
