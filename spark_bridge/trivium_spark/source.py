"""The data source that ``spark.dataSource.register`` takes."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from trivium_spark.columns import SCHEMA
from trivium_spark.decoding import decoded_schema
from trivium_spark.errors import OptionError, first_lines
from trivium_spark.options import BATCH_OPTIONS, parse_read_options, parse_write_options
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
        is_batch = any(name in self.options for name in BATCH_OPTIONS)
        options = parse_read_options(self.options, is_streaming=not is_batch)
        return SCHEMA if options.decoding is None else decoded_schema(options.decoding)

    def reader(self, schema: StructType) -> TriviumReader:
        options = parse_read_options(self.options, is_streaming=False)
        return (FilteringReader if options.push_filters else TriviumReader)(options, schema)

    def streamReader(self, schema: StructType) -> TriviumStreamReader:  # noqa: N802
        return TriviumStreamReader(parse_read_options(self.options, is_streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TriviumWriter:
        if overwrite:
            raise OptionError('messages cannot be overwritten: use mode("append")')
        return TriviumWriter(parse_write_options(self.options, is_streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TriviumStreamWriter:  # noqa: N802
        return TriviumStreamWriter(parse_write_options(self.options, is_streaming=True), schema)
