"""A streaming sink writes each row once, whatever is repeated and wherever an attempt broke off."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from interop.brokers import TriviumProcess
from trivium_native.errors import ConnectionFailed
from trivium_native.sync import SyncClient, connect
from trivium_native.transaction import Transaction
from trivium_spark import forget_query, framing
from trivium_spark.errors import TriviumSparkError
from trivium_spark.options import WriteOptions, parse_write_options
from trivium_spark.writer import (
    Place,
    Published,
    RowPublisher,
    Staged,
    TriviumStreamWriter,
    TriviumWriter,
    place_of_task,
)

SCHEMA = StructType().add("value", StringType())


@pytest.fixture
def stream(client: SyncClient) -> str:
    client.declare_stream("s", 1)
    return "s"


@pytest.fixture
def options(broker: TriviumProcess, stream: str) -> WriteOptions:
    return parse_write_options({"url": broker.url, "stream": stream}, is_streaming=True)


@pytest.fixture
def publisher(options: WriteOptions) -> RowPublisher:
    return RowPublisher(options, SCHEMA)


@pytest.fixture
def driver(options: WriteOptions) -> TriviumStreamWriter:
    return TriviumStreamWriter(options, SCHEMA)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of three rows."""
    monkeypatch.setattr(framing, "REQUEST_MESSAGES", 3)


def rows(*values: str, per_batch: int = 4) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(values), per_batch):
        yield pa.record_batch({"value": list(values[at : at + per_batch])})


def numbers(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


def written(client: SyncClient) -> list[str]:
    found: list[str] = []
    for batch in client.fetch("s", 0, 0).batches:
        found += [record.payload.decode() for record in batch.records()]
    return found


class Broken(Exception):
    """The task is killed."""


def breaking(values: list[str], after: int) -> Iterator[pa.RecordBatch]:
    yield from rows(*values[:after], per_batch=1)
    raise Broken


@pytest.mark.parametrize("seen", range(11))
def test_an_input_that_ends_too_early_counts_for_nothing(
    publisher: RowPublisher,
    driver: TriviumStreamWriter,
    client: SyncClient,
    small: None,
    seen: int,
) -> None:
    # What is upstream fails: Spark ends the input, fails the task, and forgets what it returned.
    publisher.stage(rows(*numbers(seen)), Place("spark/q", 0, 0))
    assert written(client) == []
    whole = publisher.stage(rows(*numbers(10)), Place("spark/q", 0, 0))
    assert written(client) == []
    driver.commit([whole], 0)
    assert written(client) == numbers(10)


def test_only_what_the_driver_names_counts(
    publisher: RowPublisher, driver: TriviumStreamWriter, client: SyncClient, small: None
) -> None:
    # A speculative attempt, one that gives other rows, one that was killed, and the ones that won.
    slow = publisher.stage(rows(*numbers(8)), Place("spark/q", 0, 0))
    other = publisher.stage(rows(*"abcdefghijklmnop"), Place("spark/q", 0, 0))
    with pytest.raises(Broken):
        publisher.stage(breaking(numbers(9), 7), Place("spark/q", 0, 1))
    second = publisher.stage(rows(*numbers(5, 8)), Place("spark/q", 0, 1))
    driver.commit([other, second], 0)
    assert written(client) == [*"abcdefghijklmnop", *numbers(5, 8)]
    assert isinstance(slow, Staged)
    # Late ones, of that batch or by a driver that is not the newest, are nothing.
    driver.commit([slow, second], 0)
    assert publisher.stage(rows(*numbers(8)), Place("spark/q", 0, 2)) == Staged("spark/q", 0, None)
    assert written(client) == [*"abcdefghijklmnop", *numbers(5, 8)]


def test_a_batch_that_is_repeated_is_known_by_its_number(
    publisher: RowPublisher, driver: TriviumStreamWriter, client: SyncClient
) -> None:
    place = Place("spark/q", 0, 0)
    first = publisher.stage(rows("a", "b"), place)
    driver.commit([first], 0)
    # The driver died before Spark noted that the batch is done: all of it is repeated.
    again = publisher.stage(rows("other", "rows"), place)
    assert again == Staged("spark/q", 0, None)
    driver.commit([again], 0)
    driver.commit([first], 0)
    driver.commit([publisher.stage(rows("c"), Place("spark/q", 1, 0))], 1)
    assert written(client) == ["a", "b", "c"]


def test_a_batch_query_whose_tasks_are_repeated_writes_each_row_once(
    broker: TriviumProcess, client: SyncClient, stream: str
) -> None:
    options = parse_write_options({"url": broker.url, "stream": stream}, is_streaming=False)
    job = pickle.loads(pickle.dumps(TriviumWriter(options, SCHEMA)))
    with pytest.raises(Broken):
        job.write(breaking(numbers(9), 7))
    lost = job.write(rows(*numbers(10)))
    assert written(client) == []
    won = job.write(rows(*numbers(10)))
    job.commit([won, None])
    assert written(client) == numbers(10)
    # It leaves nothing, and what came too late counts for nothing.
    assert isinstance(lost, Staged)
    assert client.open_producer(lost.producer, transactional=True).sequence == 0
    client.delete_producer(lost.producer, transactional=True)
    # Another query has a producer of its own.
    other = TriviumWriter(options, SCHEMA)
    other.abort([other.write(rows("x"))])
    other.commit([other.write(rows())])
    assert written(client) == numbers(10)


def test_a_batch_query_that_writes_a_micro_batch_does_so_once(
    broker: TriviumProcess, client: SyncClient, stream: str
) -> None:
    given = {"url": broker.url, "stream": stream, "transactionProducer": "spark/q/batch"}
    for number, text in ((3, "a"), (3, "again"), (4, "b"), (4, "again")):
        options = parse_write_options(
            {**given, "transactionNumber": str(number)}, is_streaming=False
        )
        job = TriviumWriter(options, SCHEMA)
        job.commit([job.write(rows(text))])
    assert written(client) == ["a", "b"]
    forget_query(broker.url, "q", name="batch")
    assert client.open_producer("spark/q/batch", transactional=True).sequence == 0


def test_queries_do_not_mind_each_other(
    publisher: RowPublisher, driver: TriviumStreamWriter, client: SyncClient
) -> None:
    for query in ("q", "r"):
        parts = [
            publisher.stage(rows(f"{query}{n}"), Place(f"spark/{query}", 0, n)) for n in range(2)
        ]
        driver.commit(parts, 0)
    assert written(client) == ["q0", "q1", "r0", "r1"]


def test_a_slower_driver_is_fenced(
    publisher: RowPublisher,
    driver: TriviumStreamWriter,
    client: SyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = publisher.stage(rows(*numbers(8)), Place("spark/q", 0, 0))
    commit = SyncClient.commit_transaction

    def commit_late(self: SyncClient, transaction: Transaction) -> int:
        monkeypatch.undo()
        newer = publisher.stage(rows("newer"), Place("spark/q", 0, 0))
        driver.commit([newer], 0)
        return commit(self, transaction)

    monkeypatch.setattr(SyncClient, "commit_transaction", commit_late)
    with pytest.raises(TriviumSparkError, match="another run of this query has taken over"):
        driver.commit([part], 0)
    assert written(client) == ["newer"]


@pytest.mark.parametrize("call", ["_finish", "commit_transaction", "open_producer"])
def test_a_lost_answer_is_asked_for_again(
    publisher: RowPublisher,
    driver: TriviumStreamWriter,
    client: SyncClient,
    small: None,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    original = getattr(SyncClient, call)
    losses = [False, True, False, True, True]

    def lose(self: SyncClient, *arguments: object, **named: object) -> object:
        result = original(self, *arguments, **named)
        if losses and losses.pop():
            raise ConnectionFailed("lost")
        return result

    monkeypatch.setattr(SyncClient, call, lose)
    driver.commit([publisher.stage(rows(*numbers(10)), Place("spark/q", 0, 0))], 0)
    assert len(losses) < 3
    assert written(client) == numbers(10)


def test_requests_stay_within_what_the_broker_takes(
    publisher: RowPublisher, driver: TriviumStreamWriter, client: SyncClient
) -> None:
    large = ["x" * (3 << 20)] * 7 + ["y" * (15 << 20)]
    driver.commit([publisher.stage(rows(*large), Place("spark/q", 0, 0))], 0)
    (info,) = client.metadata(["s"])
    assert info.partitions[0].high_watermark == 8


def test_where_there_are_no_rows_the_broker_is_not_asked(
    publisher: RowPublisher,
    driver: TriviumStreamWriter,
    broker: TriviumProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.kill()
    nothing = publisher.stage(rows(), Place("spark/q", 0, 0))
    assert nothing == Published(0)
    driver.commit([nothing, None], 0)
    driver.abort([nothing, None], 0)


def test_what_is_aborted_is_discarded_but_not_what_is_committed(
    publisher: RowPublisher, driver: TriviumStreamWriter, client: SyncClient
) -> None:
    first = publisher.stage(rows("a"), Place("spark/q", 0, 0))
    driver.abort([None, first], 0)
    with pytest.raises(TriviumSparkError, match=r"part .* does not exist"):
        driver.commit([first], 0)
    second = publisher.stage(rows("b"), Place("spark/q", 0, 0))
    driver.commit([second], 0)
    driver.abort([second], 0)
    assert written(client) == ["b"]


def test_an_abort_does_not_wait_for_a_broker_that_is_away(
    publisher: RowPublisher, driver: TriviumStreamWriter, broker: TriviumProcess
) -> None:
    part = publisher.stage(rows("a"), Place("spark/q", 0, 0))
    broker.kill()
    driver.abort([part], 0)


def test_a_stream_that_is_gone_fails_the_task(
    publisher: RowPublisher, driver: TriviumStreamWriter, client: SyncClient
) -> None:
    part = publisher.stage(rows("a"), Place("spark/q", 0, 0))
    client.delete_stream("s")
    with pytest.raises(TriviumSparkError, match=r"^stream 's' does not exist$"):
        publisher.stage(rows("a"), Place("spark/q", 0, 1))
    # Between the tasks and the commit: the batch is committed, and written once there is a stream.
    with pytest.raises(TriviumSparkError, match=r"^stream 's' does not exist$"):
        driver.commit([part], 0)
    client.declare_stream("s", 1)
    driver.commit([part], 0)
    assert written(client) == ["a"]


def test_outside_of_a_query_there_is_no_exactly_once() -> None:
    with pytest.raises(TriviumSparkError, match="exactlyOnce to false"):
        place_of_task()


def test_it_goes_on_after_a_crash_of_the_broker(
    broker: TriviumProcess,
    publisher: RowPublisher,
    driver: TriviumStreamWriter,
    client: SyncClient,
    small: None,
) -> None:
    def crashing() -> Iterator[pa.RecordBatch]:
        yield from rows(*numbers(7))
        broker.kill()
        broker.start()
        yield from rows(*numbers(12)[7:])

    part = publisher.stage(crashing(), Place("spark/q", 0, 0))
    broker.kill()
    broker.start()
    driver.commit([part], 0)
    with connect(broker.url) as again:
        assert written(again) == numbers(12)


def test_a_query_leaves_one_producer_which_can_be_forgotten(
    broker: TriviumProcess, publisher: RowPublisher, driver: TriviumStreamWriter, client: SyncClient
) -> None:
    parts = [publisher.stage(rows(f"{n}"), Place("spark/q", 6, n)) for n in range(20)]
    driver.commit(parts, 6)
    assert client.open_producer("spark/q", transactional=True).sequence == 7
    forget_query(broker.url, "q")
    assert client.open_producer("spark/q", transactional=True).sequence == 0
