"""What a task yields: exactly its range, whatever batches the records are stored in."""

from __future__ import annotations

import gc
import pickle
from struct import pack_into
from types import TracebackType

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, InputPartition
from pyspark.sql.types import StructType

from trivium.messages.message import Address, Message
from trivium.streams.records import PAYLOAD, RecordBatch, encode_batch
from trivium_spark import reader
from trivium_spark.connection import Piece
from trivium_spark.errors import DataLossError, TriviumSparkError
from trivium_spark.offsets import OffsetRange
from trivium_spark.options import ReadOptions, parse_read_options
from trivium_spark.reader import RangePartition, RangeReader, TriviumReader

SCHEMA = pa.schema([pa.field("offset", pa.int64()), pa.field("value", pa.binary())])


def batch(base: int, count: int, size: int = 0) -> tuple[int, RecordBatch]:
    address = Address("", b"s")
    messages = [
        Message(3, address, b"", b"%d" % (base + n) + b"." * size, 1, True, 0) for n in range(count)
    ]
    return base, RecordBatch(encode_batch(messages))


class Stored:
    """Stands for a session with a broker that holds these batches."""

    def __init__(self, *batches: tuple[int, RecordBatch], per_fetch: int = 2) -> None:
        self._batches = batches
        self._per_fetch = per_fetch
        self._ahead: int | None = None
        self.can_filter = True
        #: the filter of each fetch
        self.filters: list[str | None] = []

    def __call__(self, url: str, retry_timeout: float) -> Stored:
        return self

    def __enter__(self) -> Stored:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def fetch(
        self, wanted: OffsetRange, position: int, max_bytes: int, topic_filter: str | None
    ) -> Piece:
        assert self._ahead in (None, position)
        self.filters.append(topic_filter)
        self._ahead = None
        later = [
            (base, batch)
            for base, batch in self._batches
            if base + batch.span > position and base < wanted.end
        ]
        found = later[: self._per_fetch]
        if not found:
            return Piece(position, position, [])
        base, last = found[-1]
        return Piece(max(position, found[0][0]), base + last.span, found)

    def fetch_ahead(
        self, wanted: OffsetRange, position: int, max_bytes: int, topic_filter: str | None
    ) -> None:
        assert wanted.start < position < wanted.end
        self._ahead = position


def options(fail_on_data_loss: bool = True) -> ReadOptions:
    given = {"url": "trivium://x", "stream": "s", "failOnDataLoss": str(fail_on_data_loss)}
    return parse_read_options(given, is_streaming=True)


def read(
    monkeypatch: pytest.MonkeyPatch, stored: Stored, start: int, end: int, fails: bool = True
) -> list[pa.RecordBatch]:
    monkeypatch.setattr(reader, "ReconnectingConnection", stored)
    return list(RangeReader(options(fails), SCHEMA).read(OffsetRange("s", 0, "one", start, end)))


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    found: list[int] = []
    for made in batches:
        assert made.num_rows
        rows = made.to_pylist()
        assert all(row["value"].rstrip(b".") == b"%d" % row["offset"] for row in rows)
        found += [row["offset"] for row in rows]
    return found


STORED = Stored(batch(10, 4), batch(14, 1), batch(15, 5), batch(20, 3))


@pytest.mark.parametrize("start", range(10, 23))
@pytest.mark.parametrize("end", range(11, 24))
def test_exactly_the_range_is_read(monkeypatch: pytest.MonkeyPatch, start: int, end: int) -> None:
    assert offsets(read(monkeypatch, STORED, start, end)) == list(range(start, end))


def test_small_batches_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(*[batch(n, 1) for n in range(100)], per_fetch=7)
    (made,) = read(monkeypatch, stored, 3, 98)
    assert offsets([made]) == list(range(3, 98))


class Joining(Stored):
    """The broker joins all batches between two fetches."""

    def fetch(
        self, wanted: OffsetRange, position: int, max_bytes: int, topic_filter: str | None
    ) -> Piece:
        fetched = super().fetch(wanted, position, max_bytes, topic_filter)
        self._batches = (batch(0, 60), batch(60, 40))
        return fetched


@pytest.mark.parametrize(("start", "end"), [(0, 100), (3, 98), (3, 60), (9, 12), (59, 61)])
def test_no_row_is_read_twice_where_batches_are_joined_meanwhile(
    monkeypatch: pytest.MonkeyPatch, start: int, end: int
) -> None:
    stored = Joining(*[batch(n, 1) for n in range(100)], per_fetch=7)
    assert offsets(read(monkeypatch, stored, start, end)) == list(range(start, end))


def test_large_batches_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(*[batch(n, 1, 3 << 20) for n in range(4)])
    made = read(monkeypatch, stored, 0, 4)
    assert [part.num_rows for part in made] == [2, 2]
    assert offsets(made) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("stored", "start", "end", "lost", "left"),
    [
        (STORED, 7, 12, "s/0: offsets 7 to 9 do not exist", [10, 11]),
        (STORED, 2, 8, "s/0: offsets 2 to 7 do not exist", []),
        (STORED, 21, 30, "s/0: offsets 23 to 29 do not exist", [21, 22]),
        (STORED, 40, 50, "s/0: offsets 40 to 49 do not exist", []),
        (Stored(batch(0, 2), batch(5, 2)), 1, 6, "s/0: offsets 2 to 4 do not exist", [1, 5]),
        (Stored(), 0, 3, "s/0: offsets 0 to 2 do not exist", []),
    ],
)
def test_missing_records_are_a_loss(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stored: Stored,
    start: int,
    end: int,
    lost: str,
    left: list[int],
) -> None:
    with pytest.raises(DataLossError, match=lost):
        read(monkeypatch, stored, start, end)
    assert not caplog.records
    assert offsets(read(monkeypatch, stored, start, end, fails=False)) == left
    assert [record.getMessage() for record in caplog.records] == [
        f"data loss accepted (failOnDataLoss is false): {lost}"
    ]


def test_damaged_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    base, whole = batch(10, 3)
    data = bytearray(whole.data)
    pack_into("<i", data, whole.columns[PAYLOAD].offsets_at + 4, 1 << 30)
    stored = Stored(batch(7, 3), (base, RecordBatch(bytes(data), verify=False)))
    with pytest.raises(TriviumSparkError, match="s/0 at offset 10: "):
        read(monkeypatch, stored, 8, 12)


def test_what_is_imported_is_kept_out_of_the_collections_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader.spare_collections.cache_clear()
    gc.unfreeze()
    try:
        read(monkeypatch, STORED, 10, 12)
        frozen = gc.get_freeze_count()
        assert frozen > len(gc.get_objects()) // 2
        read(monkeypatch, STORED, 12, 14)
        assert gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()


def test_what_goes_to_executors_can_be_pickled() -> None:
    partition = RangePartition(OffsetRange("s", 0, "one", 1, 2))
    assert pickle.loads(pickle.dumps(partition)) == partition
    assert pickle.loads(pickle.dumps(RangeReader(options(), SCHEMA)))


def test_partition_that_spark_makes_up_for_an_empty_read_has_no_rows() -> None:
    given = parse_read_options({"url": "trivium://x", "stream": "s"}, is_streaming=False)
    made = TriviumReader(given, StructType().add("value", "binary"))
    assert list(made.read(InputPartition(None))) == []


def sparse(base: int, span: int, *deltas: int) -> tuple[int, RecordBatch]:
    address = Address("", b"s")
    messages = [Message(3, address, b"", b"%d" % (base + n), 1, True, 0) for n in deltas]
    return base, RecordBatch(encode_batch(messages, None, 0, list(deltas), span))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 25, [0, 3, 9, 12, 20, 21, 22, 23, 24]),
        (1, 10, [3, 9]),
        (4, 9, []),
        (10, 13, [12]),
        (13, 20, []),
        (9, 21, [9, 12, 20]),
    ],
)
def test_a_range_of_a_compacted_stream_has_what_is_left_of_it(
    monkeypatch: pytest.MonkeyPatch, start: int, end: int, expected: list[int]
) -> None:
    stored = Stored(sparse(0, 10, 0, 3, 9), sparse(10, 10, 2), batch(20, 5), per_fetch=1)
    assert offsets(read(monkeypatch, stored, start, end)) == expected


class Filtering(Stored):
    """Each fetch looks at three offsets, of which it has the first, or nothing."""

    def fetch(
        self, wanted: OffsetRange, position: int, max_bytes: int, topic_filter: str | None
    ) -> Piece:
        assert self._ahead in (None, position)
        self._ahead = None
        assert topic_filter == "a/+"
        return Piece(position, position + 3, [] if position % 2 else [batch(position, 1)])


def test_with_a_filter_what_is_left_out_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ReconnectingConnection", Filtering())
    given = {"url": "trivium://x", "stream": "s", "topicFilter": "a/+"}
    ranges = RangeReader(parse_read_options(given, is_streaming=True), SCHEMA)
    made = list(ranges.read(OffsetRange("s", 0, "one", 10, 26)))
    assert offsets(made) == [10, 16, 22]


class Trimmed(Stored):
    """What lies before 20 does not exist any more."""

    def fetch(
        self, wanted: OffsetRange, position: int, max_bytes: int, topic_filter: str | None
    ) -> Piece:
        return Piece(max(position, 20), 30, [batch(25, 1)])


def test_with_a_filter_what_does_not_exist_any_more_is_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "ReconnectingConnection", Trimmed())
    given = {"url": "trivium://x", "stream": "s", "topicFilter": "a/+"}
    ranges = RangeReader(parse_read_options(given, is_streaming=True), SCHEMA)
    with pytest.raises(DataLossError, match="s/0: offsets 10 to 19 do not exist"):
        list(ranges.read(OffsetRange("s", 0, "one", 10, 26)))


@pytest.mark.parametrize("can_filter", [False, True])
def test_a_filter_that_spark_leaves_to_the_source_goes_to_a_broker_that_knows_them(
    monkeypatch: pytest.MonkeyPatch, can_filter: bool
) -> None:
    stored = Stored(batch(0, 2))
    stored.can_filter = can_filter
    monkeypatch.setattr(reader, "ReconnectingConnection", stored)
    schema = pa.schema([*SCHEMA, pa.field("topic", pa.string())])
    ranges = RangeReader(options(), schema)
    assert ranges.pushed.take([EqualTo(("topic",), "s")]) == []
    list(ranges.read(OffsetRange("s", 0, "one", 0, 2)))
    assert stored.filters == ["s" if can_filter else None]
