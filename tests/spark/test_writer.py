"""A streaming sink writes each row once, whatever is repeated and wherever an attempt broke off."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from tests.spark.broker_process import BrokerProcess
from trivium_native.errors import ConnectionFailed
from trivium_native.sync import SyncClient
from trivium_native.transaction import Transaction
from trivium_spark import writer
from trivium_spark.errors import TriviumSparkError
from trivium_spark.options import parse_write_options
from trivium_spark.session import Session
from trivium_spark.writer import Place, RowPublisher, place_of_task

SCHEMA = StructType().add("value", StringType())


@pytest.fixture
def stream(client: SyncClient) -> str:
    client.declare_stream("s", 1)
    return "s"


@pytest.fixture
def publisher(broker: BrokerProcess, stream: str) -> RowPublisher:
    options = parse_write_options({"url": broker.url, "stream": stream}, is_streaming=True)
    return RowPublisher(options, SCHEMA)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of three rows."""
    monkeypatch.setattr(writer, "TRANSACTION_MESSAGES", 3)


def rows(*values: str, per_batch: int = 4) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(values), per_batch):
        yield pa.record_batch({"value": list(values[at : at + per_batch])})


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


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


def test_a_repeated_task_writes_nothing_twice(publisher: RowPublisher, client: SyncClient) -> None:
    place = Place("q", 0, 0)
    assert publisher.publish_once(rows("a", "b"), place).messages == 2
    assert publisher.publish_once(rows("a", "b"), place).messages == 0
    assert publisher.publish_once(rows("c"), Place("q", 1, 0)).messages == 1
    assert written(client) == ["a", "b", "c"]


def test_a_finished_task_is_known_even_if_it_gives_other_rows_now(
    publisher: RowPublisher, client: SyncClient, small: None
) -> None:
    place = Place("q", 0, 0)
    publisher.publish_once(rows(*numbers(7)), place)
    publisher.publish_once(rows(*"abcdefghijklmnop"), place)
    assert written(client) == numbers(7)


def test_tasks_and_queries_do_not_mind_each_other(
    publisher: RowPublisher, client: SyncClient
) -> None:
    for place in (Place("q", 0, 0), Place("q", 0, 1), Place("r", 0, 0)):
        publisher.publish_once(rows(f"{place.query}{place.partition}"), place)
    assert written(client) == ["q0", "q1", "r0"]


def test_a_task_that_fits_one_transaction_writes_all_or_nothing(
    publisher: RowPublisher, client: SyncClient
) -> None:
    with pytest.raises(Broken):
        publisher.publish_once(breaking(numbers(9), 8), Place("q", 0, 0))
    assert written(client) == []
    # Other rows do not matter, since none of the first are in.
    publisher.publish_once(rows("a", "b"), Place("q", 0, 0))
    assert written(client) == ["a", "b"]


@pytest.mark.parametrize("after", range(11))
def test_a_large_task_goes_on_where_it_broke_off(
    publisher: RowPublisher, client: SyncClient, small: None, after: int
) -> None:
    place = Place("q", 3, 0)
    with pytest.raises(Broken):
        publisher.publish_once(breaking(numbers(10), after), place)
    before = len(written(client))
    assert before % 3 == 0
    assert publisher.publish_once(rows(*numbers(10)), place).messages == 10 - before
    publisher.publish_once(rows("next"), Place("q", 4, 0))
    assert written(client) == [*numbers(10), "next"]


def test_a_slower_attempt_of_the_same_task_is_fenced(
    publisher: RowPublisher, client: SyncClient, small: None
) -> None:
    place = Place("q", 0, 0)

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from rows(*numbers(8))
        # Spark gives it up, and the next attempt is faster.
        publisher.publish_once(rows(*numbers(8)), place)

    with pytest.raises(TriviumSparkError, match="another attempt of this task has taken over"):
        publisher.publish_once(slowly(), place)
    assert written(client) == numbers(8)


def test_a_lost_answer_is_asked_for_again(
    publisher: RowPublisher, client: SyncClient, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SyncClient.commit_transaction
    losses = iter((True, False, False, True, False, False))

    def commit_and_lose(self: SyncClient, transaction: Transaction) -> None:
        commit(self, transaction)
        if next(losses):
            raise ConnectionFailed("lost")

    monkeypatch.setattr(SyncClient, "commit_transaction", commit_and_lose)
    assert publisher.publish_once(rows(*numbers(10)), Place("q", 0, 0)).messages == 10
    assert list(losses) == []
    assert written(client) == numbers(10)


def test_transactions_stay_within_what_the_broker_takes(
    publisher: RowPublisher, client: SyncClient
) -> None:
    large = ["x" * (3 << 20)] * 7 + ["y" * (15 << 20)]
    publisher.publish_once(rows(*large), Place("q", 0, 0))
    (info,) = client.metadata(["s"])
    assert info.partitions[0].high_watermark == 8


def test_a_task_without_rows_writes_nothing(publisher: RowPublisher, client: SyncClient) -> None:
    assert publisher.publish_once(rows(), Place("q", 0, 0)).messages == 0
    assert written(client) == []


def test_outside_of_a_query_there_is_no_exactly_once() -> None:
    with pytest.raises(TriviumSparkError, match="exactlyOnce to false"):
        place_of_task()


def test_it_goes_on_after_a_crash_of_the_broker(
    broker: BrokerProcess, publisher: RowPublisher, client: SyncClient, small: None
) -> None:
    def crashing() -> Iterator[pa.RecordBatch]:
        yield from rows(*numbers(7))
        broker.kill()
        broker.start()
        yield from rows(*numbers(12)[7:])

    assert publisher.publish_once(crashing(), Place("q", 0, 0)).messages == 12
    with Session(broker.url, 60) as session:
        assert session.snapshot(["s"])["s"].partitions[0].latest == 12
        assert session.open_producer("spark/q/0").sequence == writer.NUMBERS
