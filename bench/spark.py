"""Measure the Spark bridge beside a Python data source that reads from memory.

A broker on disk holds a stream of four partitions, published in large batches, and one of single
publishes. A session of two threads counts their records by topic, in a batch query and in streaming
queries of micro-batches of several sizes; the same queries run over as many rows from memory. Then
rows are written: to nowhere, at least once, and exactly once. All run in turn in each round, so
that a slow spell of the machine hits them alike. Every count is checked.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from bench.endpoints import PeerError
from bench.runner import make_server, working_directory
from bench.servers import LOOPBACK, REPOSITORY, ServerError
from bench.spark_memory import PARTITIONS, PAYLOAD, TOPICS, MemoryDataSource
from trivium_native.sync import SyncClient, connect
from trivium_native.values import FramedMessages, Publication
from trivium_spark import TriviumDataSource

KINDS: Final = ("read", "stream", "sink")
SIZES: Final = (2_000_000, 500_000, 100_000)
"""Records of a micro-batch."""
SHUFFLE_PARTITIONS: Final = 2
_REQUEST: Final = 1000
"""Messages of a large batch."""
_BATCHES: Final = "batches"
_SINGLES: Final = "singles"
_TARGET: Final = "target"
_MEMORY: Final = "memory"

#: What must be reached: the rates of a batch query over one from memory, of a streaming query over
#: the batch query, of a stream of single publishes over one of batches, of writing exactly once
#: over writing at least once; and the rows a second of the latter two.
MIN_READ: Final = 0.5
MIN_STREAM: Final = 0.6
MIN_SINGLES: Final = 1 / 3
MIN_EXACTLY_ONCE: Final = 0.8
MIN_SINK: Final = 300_000


@dataclass(frozen=True)
class Beside:
    """Another row that one is compared with."""

    name: str
    goal: float = 0.0
    """The least of the one's rate over the other's."""


@dataclass
class SparkRow:
    """What one query took, in each round."""

    name: str
    rows: int
    beside: tuple[Beside, ...] = ()
    least: float = 0.0
    """The least of its rate."""
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Processor time of Spark, its Python processes and the broker, in seconds."""

    @property
    def rate(self) -> float:
        """Rows a second, the median."""
        return self.rows / statistics.median(self.seconds)

    @property
    def cpu_per_million(self) -> float:
        """Seconds of a core for a million rows, the median."""
        return statistics.median(self.cpu) / self.rows * 1e6

    def compared(self, others: Sequence[SparkRow]) -> Iterator[str]:
        """A text for each row beside which it stands."""
        if self.least:
            yield f"{_verdict(self.rate, self.least)} {self.least:,.0f}/s"
        for beside in self.beside:
            other = next((row for row in others if row.name == beside.name), None)
            if other is None:
                continue
            rate = self.rate / other.rate
            goal = f" ({_verdict(rate, beside.goal)} {beside.goal:.2f})" if beside.goal else ""
            cpu = other.cpu_per_million / self.cpu_per_million
            yield f"{rate:.2f} of {other.name}{goal}, by cpu {cpu:.2f}"


def _verdict(found: float, wanted: float) -> str:
    return "met:" if found >= wanted else "missed:"


def spark_table(rows: Sequence[SparkRow]) -> str:
    """Rates and processor time of each row, and what they are over those beside it."""
    lines = [f"{'query':24} {'rows/s':>10} {'min':>10} {'max':>10} {'cpu s/M':>8}"]
    for row in rows:
        lines.append(
            f"{row.name:24} {row.rate:10,.0f} {row.rows / max(row.seconds):10,.0f}"
            f" {row.rows / min(row.seconds):10,.0f} {row.cpu_per_million:8.2f}"
            f"  {'; '.join(row.compared(rows))}".rstrip()
        )
    return "\n".join(lines)


def _stats() -> dict[int, tuple[int, float]]:
    """Parent and processor seconds of each process of the machine."""
    found = {}
    tick = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(path.parent.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / tick
    return found


def _cpu() -> dict[int, float]:
    """Processor seconds of each process that this one has started, and they."""
    stats = _stats()
    found: dict[int, float] = {}
    parents = {os.getpid()}
    while parents:
        parents = {number for number, (parent, _) in stats.items() if parent in parents}
        found |= {number: stats[number][1] for number in parents}
    return found


class _Session:
    """A session of Spark, the broker, and what is run."""

    def __init__(self, spark: SparkSession, client: SyncClient, url: str, scratch: Path) -> None:
        self._spark = spark
        self._client = client
        self._url = url
        self._scratch = scratch
        self._numbers = itertools.count()

    def _source(self, reader: Any, stream: str, rows: int, **options: object) -> DataFrame:
        if stream == _MEMORY:
            reader = reader.format("memory-arrow").options(rows=rows)
        else:
            reader = reader.format("trivium").options(url=self._url, stream=stream)
        found: DataFrame = reader.options(startingOffsets="earliest", **options).load()
        return found

    def read(self, stream: str, rows: int) -> float:
        """Count the records by topic; the seconds that took."""
        frame = self._source(self._spark.read, stream, rows).groupBy("topic").count()
        start = time.perf_counter()
        counts = frame.collect()
        took = time.perf_counter() - start
        _check(stream, sum(row["count"] for row in counts), rows)
        return took

    def stream(self, stream: str, rows: int, size: int) -> float:
        """The same by micro-batches of ``size``; the seconds of these alone."""
        name = f"counts{next(self._numbers)}"
        source = self._source(self._spark.readStream, stream, rows, maxOffsetsPerTrigger=size)
        query = (
            source.groupBy("topic")
            .count()
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName(name)
            .option("checkpointLocation", str(self._scratch / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        _check(stream, sum(row["count"] for row in self._spark.table(name).collect()), rows)
        batches = [each for each in query.recentProgress if each["numInputRows"]]
        _check(stream, len(batches), -(-rows // size))
        return float(sum(each["durationMs"]["triggerExecution"] for each in batches)) / 1000

    def write(self, rows: int, exactly_once: bool | None) -> float:
        """Write rows: to nowhere, or into a stream of their own. The seconds that took."""
        frame = self._spark.range(0, rows, 1, PARTITIONS).select(lit(PAYLOAD).alias("value"))
        writer = frame.write.mode("append")
        if exactly_once is None:
            start = time.perf_counter()
            writer.format("memory-arrow").save()
            return time.perf_counter() - start
        self._client.declare_stream(_TARGET, partitions=PARTITIONS)
        writer = writer.options(url=self._url, stream=_TARGET, exactlyOnce=exactly_once)
        start = time.perf_counter()
        writer.format("trivium").save()
        took = time.perf_counter() - start
        partitions = self._client.metadata([_TARGET])[0].partitions
        _check(_TARGET, sum(each.high_watermark for each in partitions), rows)
        self._client.delete_stream(_TARGET)
        return took


def _check(name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise PeerError(f"{name}: {found:,} where there should be {wanted:,}")


def _fill(client: SyncClient, stream: str, rows: int, request: int) -> None:
    client.declare_stream(stream, partitions=PARTITIONS)
    client.bind_stream(stream, "amq.topic", f"{stream}.*")
    messages = [
        Publication(payload=PAYLOAD, routing_key=f"{stream}.{number}").encode()
        for number in range(TOPICS)
    ]
    if request == 1:
        client.publish_many(FramedMessages(1, messages[at % TOPICS]) for at in range(rows))
        return
    whole = FramedMessages(request, b"".join(messages) * (request // TOPICS))
    client.publish_many(whole for _ in range(rows // request))


@dataclass(frozen=True)
class _Query:
    """A row, and what runs its query: the seconds that count."""

    row: SparkRow
    run: Callable[[], float]


def _reads(session: _Session, rows: int, singles: int) -> Iterator[_Query]:
    """Batch queries."""
    yield _Query(SparkRow("read memory", rows), partial(session.read, _MEMORY, rows))
    row = SparkRow("read", rows, (Beside("read memory", MIN_READ),))
    yield _Query(row, partial(session.read, _BATCHES, rows))
    if singles:
        row = SparkRow("read singles", singles, (Beside("read", MIN_SINGLES),))
        yield _Query(row, partial(session.read, _SINGLES, singles))


def _streams(session: _Session, rows: int, sizes: Sequence[int]) -> Iterator[_Query]:
    """Streaming queries."""
    for size in sizes:
        memory = SparkRow(f"stream memory {size // 1000}k", rows, (Beside("read memory"),))
        yield _Query(memory, partial(session.stream, _MEMORY, rows, size))
        beside = Beside(memory.name), Beside("read", MIN_STREAM)
        row = SparkRow(f"stream {size // 1000}k", rows, beside)
        yield _Query(row, partial(session.stream, _BATCHES, rows, size))


def _sinks(session: _Session, rows: int) -> Iterator[_Query]:
    """Batch queries that write."""
    nowhere = Beside("write nowhere")
    yield _Query(SparkRow(nowhere.name, rows), partial(session.write, rows, None))
    least = SparkRow("write at least once", rows, (nowhere,), MIN_SINK)
    yield _Query(least, partial(session.write, rows, False))
    beside = nowhere, Beside(least.name, MIN_EXACTLY_ONCE)
    row = SparkRow("write exactly once", rows, beside, MIN_SINK)
    yield _Query(row, partial(session.write, rows, True))


@contextmanager
def _spark() -> Iterator[SparkSession]:
    """A session of two threads whose Python processes find this package and the same build."""
    places = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        # Workers start slowly on a busy machine.
        .config("spark.python.authenticate.socketTimeout", "300s")
        .config("spark.sql.shuffle.partitions", str(SHUFFLE_PARTITIONS))
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .getOrCreate()
    )
    try:
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(TriviumDataSource)
        spark.dataSource.register(MemoryDataSource)
        yield spark
    finally:
        spark.stop()


def measure_spark(
    server_name: str,
    kinds: Sequence[str] = KINDS,
    *,
    rows: int = 2_000_000,
    singles: int = 400_000,
    sizes: Sequence[int] = SIZES,
    repetitions: int = 3,
) -> list[SparkRow]:
    """Run the queries of some of :data:`KINDS` in turn; the first round does not count.

    Raises:
        ServerError: there is no Java runtime, or the broker cannot be started.
        PeerError: a query did not count what there is.
    """
    if shutil.which("java") is None:
        raise ServerError("no Java runtime; on Debian: apt-get install openjdk-17-jre-headless")
    with ExitStack() as stack:
        directory = stack.enter_context(working_directory())
        server = make_server(server_name, directory, None, on_disk=True)
        stack.callback(server.stop)
        server.start()
        address = server.addresses["native"]
        url = f"trivium://{address.host}:{address.port}"
        client = stack.enter_context(connect(url))
        session = _Session(stack.enter_context(_spark()), client, url, directory / "spark")
        queries: list[_Query] = []
        if "read" in kinds or "stream" in kinds:
            _fill(client, _BATCHES, rows, _REQUEST)
            singles = singles if "read" in kinds else 0
            if singles:
                _fill(client, _SINGLES, singles, 1)
            queries += _reads(session, rows, singles)
        if "stream" in kinds:
            queries += _streams(session, rows, sizes)
        if "sink" in kinds:
            queries += _sinks(session, rows)
        for number in range(repetitions + 1):
            for query in queries:
                before = _cpu()
                seconds = query.run()
                after = _cpu()
                used = sum(each - before.get(process, 0.0) for process, each in after.items())
                print(
                    f"round {number}: {query.row.name:24} {seconds:7.2f} s, cpu {used:6.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
                if number:
                    query.row.seconds.append(seconds)
                    query.row.cpu.append(used)
        return [query.row for query in queries]
