"""The data source that ``spark.dataSource.register`` takes."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from trivium_native.arrow import COLUMNS, TYPES
from trivium_spark.columns import QUEUE_COLUMNS, QUEUE_TYPES, default_schema
from trivium_spark.decoding import decoded_schema
from trivium_spark.errors import OptionError, first_lines
from trivium_spark.options import (
    BATCH_OPTIONS,
    Decoding,
    parse_queue_options,
    parse_read_options,
    parse_write_options,
)
from trivium_spark.queues import TriviumQueueReader
from trivium_spark.reader import FilteringReader, TriviumReader, TriviumStreamReader
from trivium_spark.writer import TriviumStreamWriter, TriviumWriter


@first_lines
class TriviumDataSource(DataSource):
    """``format("trivium")``: streams of a broker as a source, its exchanges and streams as a sink.

    ``spark.dataSource.register(TriviumDataSource)`` makes the format known to a session. Options
    and columns are described in docs/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        return "trivium"

    def schema(self) -> str | StructType:
        # Only a load asks for it: the place to complain before a query starts.
        decoding: Decoding | None
        if self._reads_queue:
            decoding = parse_queue_options(self.options).decoding
            plain = default_schema(QUEUE_COLUMNS, QUEUE_TYPES)
        else:
            is_batch = any(name in self.options for name in BATCH_OPTIONS)
            decoding = parse_read_options(self.options, is_streaming=not is_batch).decoding
            plain = default_schema(COLUMNS, TYPES)
        return plain if decoding is None else decoded_schema(decoding, plain)

    @property
    def _reads_queue(self) -> bool:
        return "queue" in self.options

    def reader(self, schema: StructType) -> TriviumReader:
        if self._reads_queue:
            raise OptionError(
                "option queue: a batch query does not say when it is done, so messages could not be"
                " settled; use trivium_spark.read_queue, or readStream with availableNow"
            )
        options = parse_read_options(self.options, is_streaming=False)
        return (FilteringReader if options.push_filters else TriviumReader)(options, schema)

    def streamReader(  # noqa: N802
        self, schema: StructType
    ) -> TriviumStreamReader | TriviumQueueReader:
        if self._reads_queue:
            return TriviumQueueReader(parse_queue_options(self.options), schema)
        return TriviumStreamReader(parse_read_options(self.options, is_streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TriviumWriter:
        if overwrite:
            raise OptionError('messages cannot be overwritten: use mode("append")')
        return TriviumWriter(parse_write_options(self.options, is_streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TriviumStreamWriter:  # noqa: N802
        return TriviumStreamWriter(parse_write_options(self.options, is_streaming=True), schema)
