"""Reading a queue: messages are taken, handed to Spark, and settled when their batch is done.

Nobody else gets a message while it is taken. One that was not settled when its connection ends,
however it ends, goes back to its queue, and comes again as redelivered. So every message is
processed at least once: twice where a batch was done and the query ended before it was settled.

The driver takes the messages of a micro-batch when it plans it, and gives each task its part: a
task that is repeated, or runs twice, has the same rows, and asks nobody. A checkpoint has nothing
that a message could be found by. So a batch of an earlier run that Spark repeats is empty: what it
had comes in the batches after it. A sink that has that batch already, and skips it, loses nothing.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from trivium.messages.message import PROTOCOL_NATIVE, Address, Message
from trivium.streams.record_encoder import describe
from trivium.streams.records import RecordBatch, encode_batch
from trivium_native.arrow import TYPES, BatchConverter
from trivium_native.errors import NativeError, NotFound, UnknownDelivery
from trivium_native.values import Delivery
from trivium_native.wire.properties import encode_properties
from trivium_spark.columns import QUEUE_COLUMNS, QUEUE_TYPES, arrow_schema, default_schema
from trivium_spark.connection import TRANSIENT, Patience, connect_to
from trivium_spark.decoding import Decoder, decoded_schema
from trivium_spark.errors import OptionError, TriviumSparkError, first_line, first_lines
from trivium_spark.options import QueueOptions, parse_queue_options

if TYPE_CHECKING:
    from trivium_native.sync import BlockingPolled

logger = logging.getLogger("trivium_spark")

#: Messages of one request, and bytes of all that a micro-batch has: the driver holds them.
POLL_MESSAGES: Final = 1000
MOST_BYTES: Final = 64 << 20
#: Bytes of messages that one task has.
TASK_BYTES: Final = 8 << 20

_PROTOCOLS: Final = {0: None, 1: "mqtt", 2: "amqp", 3: "native"}


@dataclass(frozen=True)
class TakenPartition(InputPartition):
    """The messages that one task has: a record batch that begins at the message ``first``.

    ``protocols`` are those that they came by, ``redelivered`` whether they were delivered before.
    """

    first: int
    batch: bytes
    protocols: bytes
    redelivered: bytes


def _partition(first: int, taken: Sequence[Delivery]) -> TakenPartition:
    messages = [
        Message(
            PROTOCOL_NATIVE,
            Address(each.exchange, each.routing_key),
            encode_properties(each.properties),
            each.payload,
            each.mode,
            each.persistent,
            each.timestamp,
            0 if each.lifetime is None else each.timestamp + each.lifetime,
            each.retain,
            each.priority,
        )
        for each in taken
    ]
    batch = encode_batch(messages, [describe(each.properties) for each in taken])
    protocols = bytes(each.protocol for each in taken)
    return TakenPartition(first, batch, protocols, bytes(each.is_redelivered for each in taken))


def partitions_of(first: int, taken: Sequence[Delivery]) -> list[TakenPartition]:
    """The messages from number ``first`` on, in parts for tasks."""
    found: list[TakenPartition] = []
    begin = size = 0
    for index, each in enumerate(taken, 1):
        size += len(each.payload)
        if size >= TASK_BYTES or index == len(taken):
            found.append(_partition(first + begin, taken[begin:index]))
            begin, size = index, 0
    return found


class MessageReader:
    """Makes rows of taken messages. Picklable. Raises OptionError for a schema it cannot fill."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self._queue = options.queue
        decoding = options.decoding
        self._decoder = None if decoding is None else Decoder(decoding, schema)
        plain = schema if self._decoder is None else self._decoder.plain
        self._columns = arrow_schema(plain, QUEUE_TYPES)
        self._needed = [] if self._decoder is None else self._decoder.needed

    def rows(self, part: TakenPartition) -> pa.RecordBatch:
        """The rows of a part. Raises TriviumSparkError where one is bad, in mode FAILFAST."""
        names = [name for name in self._columns.names if name in TYPES and name != "protocol"]
        names += [name for name in self._needed if name not in names]
        converter = BatchConverter("", 0, pa.schema([(name, TYPES[name]) for name in names]))
        view = RecordBatch(part.batch)
        count = view.count
        made = converter.convert([(part.first, view)], part.first, part.first + count)
        arrays = dict(zip(names, made.columns, strict=True))
        arrays["queue"] = pa.repeat(pa.scalar(self._queue), count)
        arrays["redelivered"] = pa.array([each != 0 for each in part.redelivered], pa.bool_())
        protocols = [_PROTOCOLS.get(each, str(each)) for each in part.protocols]
        arrays["protocol"] = pa.array(protocols, pa.string())
        wanted = [*self._columns.names, *self._needed]
        fields = {name: arrays[name] for name in wanted}
        if self._decoder is None:
            return pa.RecordBatch.from_arrays(list(fields.values()), schema=self._columns)
        rows = pa.RecordBatch.from_pydict(fields)
        return self._decoder.columns(rows, f"queue {self._queue}, message")


class Taker:
    """Takes messages of a queue, as one consumer. Raises TriviumSparkError and OptionError."""

    def __init__(self, options: QueueOptions) -> None:
        self._options = options
        self._resources = ExitStack()
        self._polled: BlockingPolled | None = None
        # The last message that was taken and is not settled.
        self._last: Delivery | None = None

    def take(self) -> list[Delivery]:
        """What is there, within the bounds; what was taken before must be settled."""
        patience = Patience(self._options.retry_timeout)
        while True:
            try:
                return self._taken()
            except TRANSIENT as error:
                self.close()
                patience.pause(error)
            except NativeError as error:
                self.close()
                if isinstance(error, NotFound):
                    raise OptionError(f"queue {self._options.queue!r}: {error.text}") from None
                raise TriviumSparkError(error.text) from None

    def _taken(self) -> list[Delivery]:
        options = self._options
        if self._polled is None:
            client = self._resources.enter_context(connect_to(options.access))
            polling = client.poller(options.queue, credit=options.max_records)
            self._polled = self._resources.enter_context(polling)
        found: list[Delivery] = []
        size = 0
        while len(found) < options.max_records and size < MOST_BYTES:
            most = min(POLL_MESSAGES, options.max_records - len(found))
            some = self._polled.poll(most)
            if not some:
                break
            found += some
            size += sum(len(each.payload) for each in some)
        self._last = found[-1] if found else None
        return found

    def settle(self) -> None:
        """What was taken is done with. It is logged where it comes again all the same."""
        last, self._last = self._last, None
        if last is None or self._polled is None:
            return
        try:
            self._polled.ack(last, multiple=True, wait=True)
        except (*TRANSIENT, UnknownDelivery) as error:
            self.close()
            logger.warning(
                "queue %s: messages of the last batch come again: %s", self._options.queue, error
            )
        except NativeError as error:
            raise TriviumSparkError(error.text) from None

    def close(self) -> None:
        """End the connection: what was not settled goes back to the queue."""
        self._last = None
        self._polled = None
        self._resources.close()


@first_lines
class TriviumQueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of a streaming query that reads a queue.

    Offsets count what a run has taken; ``run`` tells one run from another.
    """

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self._reader = MessageReader(options, schema)
        self._taker = Taker(options)
        self._run = secrets.token_hex(8)
        self._count = 0
        # What is taken and not done with, and its place.
        self._parts: list[TakenPartition] = []
        self._first = 0
        # Whether this run takes once only, and has.
        self._takes_once = False
        self._has_taken = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._takes_once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        # Spark plans a batch once all before it is done, but calls commit only if there is a batch.
        self.commit(start)
        if self._parts:
            # Planned, but not begun.
            return self._offset(self._count)
        if self._takes_once and self._has_taken:
            return start
        taken = self._taker.take()
        if not taken:
            return start
        self._has_taken = True
        self._first = self._count
        self._count += len(taken)
        self._parts = partitions_of(self._first, taken)
        return self._offset(self._count)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if end == self._offset(self._count):
            return self._parts
        logger.warning(
            "a batch of an earlier run is repeated without messages: what it had comes later"
        )
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TakenPartition)
        with first_line():
            yield self._reader.rows(partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._parts and end == self._offset(self._count):
            self._parts = []
            self._taker.settle()

    def stop(self) -> None:
        self._taker.close()

    def _offset(self, count: int) -> dict[str, Any]:
        return {"run": self._run, "taken": count}


@contextmanager
def read_queue(
    spark: SparkSession, columns: StructType | None = None, /, **options: str
) -> Iterator[DataFrame]:
    """The messages that a queue has, at most ``maxRecords``, as a frame to be used in the block.

    ``options`` are those of a read of a queue, ``columns`` the schema if not of all columns. Where
    the block ends well the messages are settled; where it raises, or the program ends before, they
    go back to the queue. Raises OptionError and TriviumSparkError.
    """
    parsed = parse_queue_options(options)
    schema = _schema(parsed) if columns is None else columns
    reader = MessageReader(parsed, schema)
    taker = Taker(parsed)
    try:
        parts = partitions_of(0, taker.take())
        rows = [reader.rows(part) for part in parts]
        kinds = to_arrow_schema(schema, timezone="UTC")
        # Spark takes no table without a batch.
        table = pa.Table.from_batches(rows, kinds) if rows else kinds.empty_table()
        yield spark.createDataFrame(table, schema)
        taker.settle()
    finally:
        taker.close()


def _schema(options: QueueOptions) -> StructType:
    plain = default_schema(QUEUE_COLUMNS, QUEUE_TYPES)
    if options.decoding is None:
        return plain
    found = decoded_schema(options.decoding, plain)
    if isinstance(found, StructType):
        return found
    parsed = StructType.fromDDL(found)
    assert isinstance(parsed, StructType)
    return parsed
