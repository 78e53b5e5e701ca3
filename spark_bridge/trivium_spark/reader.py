"""Reading: micro-batches of a streaming query, and ranges of a batch query.

The driver plans offsets; a task reads one range of one partition. What a task yields depends on its
range alone: it acknowledges nothing, keeps nothing and never asks for what is new, so a task that
is repeated or runs twice gives the same rows.
"""

from __future__ import annotations

import functools
import gc
import logging
import math
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from trivium.streams.records import RecordBatch
from trivium_native.arrow import TYPES, BatchConverter
from trivium_spark.columns import arrow_schema
from trivium_spark.connection import FETCH_BYTES, Piece, ReconnectingConnection, StreamGone
from trivium_spark.decoding import Decoder
from trivium_spark.ending import at_end, end_put_off, forget_end
from trivium_spark.errors import TriviumSparkError, first_line, first_lines
from trivium_spark.filters import Pushed
from trivium_spark.offsets import (
    OffsetRange,
    Offsets,
    Snapshot,
    advance,
    backlog_of,
    behind,
    beyond_the_end,
    check_losses,
    check_order,
    divide,
    initial_offsets,
    latest_offsets,
    ranges,
    resolve,
)
from trivium_spark.options import Limits, ReadOptions, StreamPartition, format_partition

logger = logging.getLogger("trivium_spark")

#: Least bytes of a fetch.
_LEAST_BYTES: Final = 64 << 10

#: Seconds for which what records weigh is taken to stay.
_SIZES_LAST: Final = 30.0

#: Small record batches are joined until they have this many rows or bytes: each one handed to
#: Spark costs as much as some hundred rows.
JOINED_ROWS: Final = 16_384
JOINED_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The range of records that one task reads."""

    range: OffsetRange


class RangeReader:
    """What a task needs to read ranges. Picklable: it holds no connection."""

    def __init__(
        self, options: ReadOptions, schema: pa.Schema, decoder: Decoder | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._decoder = decoder
        #: what Spark has left to this source
        self.pushed = Pushed()

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, in order, as Arrow record batches.

        Raises DataLossError when some do not exist any more, unless the query accepts that.
        """
        spare_collections()
        with (
            first_line(),
            ReconnectingConnection(self._options.access, self._options.retry_timeout) as connection,
        ):
            converter = BatchConverter(wanted.stream, wanted.partition, self._schema)
            position = wanted.start
            for batches in _grouped(self._batches(connection, wanted)):
                base, last = batches[-1]
                try:
                    rows = converter.convert(batches, position, wanted.end)
                except pa.ArrowInvalid as error:
                    name = format_partition((wanted.stream, wanted.partition))
                    at = _damaged_at(converter, batches)
                    raise TriviumSparkError(f"{name} at offset {at}: {error}") from error
                position = base + last.span
                rows = self.pushed.rows(rows)
                if self._decoder is not None:
                    name = format_partition((wanted.stream, wanted.partition))
                    rows = self._decoder.columns(rows, f"{name} at offset")
                # Of a compacted stream there may be none there.
                if rows.num_rows:
                    yield rows

    def _batches(
        self, connection: ReconnectingConnection, wanted: OffsetRange
    ) -> Iterator[tuple[int, RecordBatch]]:
        """The record batches of a range, each with its offset."""
        topic_filter = self._options.topic_filter
        if topic_filter is None and self.pushed.topic_filter and connection.can_filter:
            topic_filter = self.pushed.topic_filter
        position = wanted.start
        pace = _Pace()
        while position < wanted.end:
            reason = ""
            piece = None
            try:
                most = pace.bytes(wanted.end - position)
                piece = connection.fetch(wanted, position, most, topic_filter)
            except StreamGone as error:
                reason = f" ({error})"
            if piece is None or piece.after <= position:
                self._lost(wanted, position, wanted.end, reason)
                return
            pace.note(piece)
            if piece.after < wanted.end:
                # While these are read, the broker finds the next ones.
                most = pace.bytes(wanted.end - piece.after)
                connection.fetch_ahead(wanted, piece.after, most, topic_filter)
            if piece.start > position:
                self._lost(wanted, position, piece.start)
                position = piece.start
            for base, batch in piece.batches:
                if base > position and topic_filter is None:
                    self._lost(wanted, position, base)
                if base + batch.span > position:
                    yield base, batch
                    position = base + batch.span
            position = piece.after

    def _lost(self, wanted: OffsetRange, first: int, after: int, reason: str = "") -> None:
        name = format_partition((wanted.stream, wanted.partition))
        loss = f"{name}: offsets {first} to {after - 1} do not exist{reason}"
        report([loss], self._options.fail_on_data_loss)


def range_reader(options: ReadOptions, schema: StructType) -> RangeReader:
    """What reads the columns of a query's schema. Raises OptionError for one that there is not."""
    if options.decoding is None:
        return RangeReader(options, arrow_schema(schema))
    decoder = Decoder(options.decoding, schema)
    columns = arrow_schema(decoder.plain)
    for name in decoder.needed:
        if name not in columns.names:
            columns = columns.append(pa.field(name, TYPES[name]))
    return RangeReader(options, columns, decoder)


@functools.cache
def spare_collections() -> None:
    """Keep what was imported out of the collections of this process.

    Spark's worker collects its garbage after each task. That looks at every object of pandas,
    pyarrow and all else that is imported, and costs as much as reading 100,000 rows.
    """
    gc.freeze()


class _Pace:
    """How many bytes to fetch: not much more than the rest of a range has."""

    def __init__(self) -> None:
        #: bytes of a record, about; at first a guess that is rather high
        self._size = 1024.0

    def note(self, piece: Piece) -> None:
        """Learn from what was fetched."""
        size = sum(len(batch.data) for _, batch in piece.batches)
        first = piece.batches[0][0] if piece.batches else piece.start
        self._size = size / (piece.after - min(first, piece.start))

    def bytes(self, records: int) -> int:
        """For so many records, and a little more."""
        return min(FETCH_BYTES, int(1.1 * self._size * records) + _LEAST_BYTES)


def _grouped(
    batches: Iterator[tuple[int, RecordBatch]],
) -> Iterator[list[tuple[int, RecordBatch]]]:
    """The batches that become one Arrow record batch each time."""
    group: list[tuple[int, RecordBatch]] = []
    rows = size = end = 0
    for base, batch in batches:
        if group and base < end:
            # The broker has joined batches meanwhile: this one begins with rows that were there.
            yield group
            group = []
            rows = size = 0
        group.append((base, batch))
        end = base + batch.span
        rows += batch.count
        size += len(batch.data)
        if rows >= JOINED_ROWS or size >= JOINED_BYTES:
            yield group
            group = []
            rows = size = 0
    if group:
        yield group


def _damaged_at(converter: BatchConverter, batches: list[tuple[int, RecordBatch]]) -> int:
    """The offset of the first of ``batches`` that cannot be converted."""
    for base, batch in batches:
        try:
            converter.convert([(base, batch)], base, base)
        except pa.ArrowInvalid:
            return base
    return batches[0][0]


def report(losses: list[str], is_fatal: bool) -> None:
    """Raise DataLossError for losses, or warn of them."""
    if is_fatal:
        check_losses(losses)
    for loss in losses:
        logger.warning("data loss accepted (failOnDataLoss is false): %s", loss)


@first_lines
class TriviumStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of a streaming query. It lives in one process on the driver while the query runs.

    Copies of it go to the executors, which only call ``read``.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._reader = range_reader(options, schema)
        self._connection: ReconnectingConnection | None = None
        self._target: Offsets | None = None
        self._newest: Offsets | None = None
        self._committed: Offsets | None = None
        self._reported: set[str] = set()
        # The streams that are read, as of the last snapshot.
        self._read: Collection[str] = options.selection.streams
        # How far the streams are ahead, by what records weighed when that was last asked.
        self._behind: dict[str, dict[str, int]] = {}
        self._sizes: dict[StreamPartition, float] = {}
        self._sized_at = -math.inf
        # When a batch is made of less than ``minOffsetsPerTrigger``; the first one waits for none.
        self._due_at = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        snapshot = self._snapshot()
        options = self._options
        start = self._connected().located(options.start, options.group, snapshot)
        return initial_offsets(start, snapshot).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limits = self._options.limits
        if limits == Limits():
            return ReadAllAvailable()
        # The others are looked at whenever there is this one.
        return ReadMaxRows(limits.max_offsets or sys.maxsize)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = latest_offsets(self._snapshot())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        snapshot = self._snapshot()
        if self._options.group is not None:
            self._hold(self._options.group)
        # Spark plans a batch once all before it is done, but calls commit only if there is a batch:
        # the group of an idle query would stay behind.
        self.commit(start)
        self._newest = latest_offsets(snapshot)
        begin = Offsets.from_json(start)
        limits = self._options.limits if isinstance(limit, ReadMaxRows) else Limits()
        if self._target is not None or time.monotonic() >= self._due_at:
            limits = replace(limits, min_offsets=None)
        sizes: dict[StreamPartition, float] = {}
        if limits.max_bytes is not None:
            sizes = self._connected().record_sizes(backlog_of(begin, snapshot), snapshot)
        result = advance(begin, snapshot, limits, self._target, sizes)
        if result.end != begin:
            self._due_at = time.monotonic() + limits.max_delay
        # A stream that is left out is so in every batch: one warning tells of it.
        losses = [loss for loss in result.losses if loss not in self._reported]
        report(losses, self._options.fail_on_data_loss)
        self._reported.update(losses)
        self._measure(result.end, snapshot)
        return result.end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._newest is None else self._newest.to_json() | {"behind": self._behind}

    def _measure(self, end: Offsets, snapshot: Snapshot) -> None:
        """How far each stream will be ahead of the query once the batch up to ``end`` is done."""
        places = backlog_of(end, snapshot)
        if places and time.monotonic() >= self._sized_at + _SIZES_LAST:
            self._sizes = self._connected().record_sizes(places, snapshot)
            self._sized_at = time.monotonic()
        self._behind = behind(places, snapshot, self._sizes)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = ranges(Offsets.from_json(start), Offsets.from_json(end))
        return [RangePartition(wanted) for wanted in divide(planned, self._options.division)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return self._reader.read(partition.range)

    def commit(self, end: dict[str, Any]) -> None:
        offsets = Offsets.from_json(end)
        if self._options.group is None or offsets == self._committed or offsets.is_initial:
            return
        self._committed = offsets
        connection = self._connected()
        if not connection.is_holding:
            self._hold(self._options.group)
        connection.commit(self._options.group, offsets.of(self._read))

    def stop(self) -> None:
        # Spark closes the socket of this process and sends it SIGTERM, in no certain order.
        with end_put_off():
            if self._connection is not None:
                self._connection.release()
                self._connection.close()
                self._connection = None
            forget_end()

    def _hold(self, group: str) -> None:
        at_end(self.stop)
        self._connected().hold(group)

    def _snapshot(self) -> Snapshot:
        snapshot = self._connected().snapshot(self._options.selection)
        self._read = frozenset(snapshot)
        return snapshot

    def _connected(self) -> ReconnectingConnection:
        if self._connection is None:
            self._connection = ReconnectingConnection(
                self._options.access, self._options.retry_timeout
            )
        return self._connection


@first_lines
class TriviumReader(DataSourceReader):
    """The source of a batch query: the records between two positions."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._reader = range_reader(options, schema)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with ReconnectingConnection(options.access, options.retry_timeout) as connection:
            snapshot = connection.snapshot(options.selection)
            first = connection.located(options.start, options.group, snapshot)
            last = connection.located(options.end, None, snapshot)
        start = initial_offsets(first, snapshot)
        end = Offsets(resolve(last, snapshot), start.incarnations, start.offsets)
        check_order(start, last)
        # Such a range is empty, so no task would find out.
        report(beyond_the_end(start, snapshot), options.fail_on_data_loss)
        # A range that is not all there is found out by the task that reads it.
        wanted = self._reader.pushed.narrow(ranges(start, end))
        return [RangePartition(one) for one in divide(wanted, options.division)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            # Where there are no partitions, Spark makes one of its own.
            return iter(())
        return self._reader.read(partition.range)


@first_lines
class FilteringReader(TriviumReader):
    """The same, for Spark to leave filters to. Spark refuses it unless it is told to do so."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        return self._reader.pushed.take(filters)
