"""Messages of a queue for Spark: taken, handed over, and settled or given back."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import LongType, StringType, StructType

from interop.brokers import TriviumProcess
from trivium.messages.message import Properties
from trivium_native.sync import SyncClient
from trivium_native.values import Publication
from trivium_spark import queues
from trivium_spark.columns import QUEUE_COLUMNS, QUEUE_TYPES, default_schema
from trivium_spark.errors import OptionError, TriviumSparkError
from trivium_spark.options import QueueOptions, parse_queue_options
from trivium_spark.queues import (
    MessageReader,
    TakenPartition,
    Taker,
    TriviumQueueReader,
    partitions_of,
)

LIMIT: ReadLimit = ReadAllAvailable()
ALL = default_schema(QUEUE_COLUMNS, QUEUE_TYPES)


def options(broker: TriviumProcess, **more: str) -> QueueOptions:
    return parse_queue_options({"url": broker.url, "queue": "q", **more})


def publish(client: SyncClient, *numbers: int) -> None:
    client.publish_batch(
        [Publication(payload=b"%d" % n, exchange="", routing_key="q") for n in numbers]
    )


def waiting(client: SyncClient) -> int:
    """How many messages are in the queue and not taken."""
    return client.declare_queue("q").messages


@pytest.fixture
def queue(client: SyncClient) -> None:
    client.declare_queue("q")


@pytest.fixture
def taker(broker: TriviumProcess, queue: None) -> Iterator[Taker]:
    made = Taker(options(broker, maxRecords="3"))
    yield made
    made.close()


@pytest.fixture
def reader(broker: TriviumProcess, queue: None) -> Iterator[TriviumQueueReader]:
    made = TriviumQueueReader(options(broker, maxRecords="3"), ALL)
    yield made
    made.stop()


def read(reader: TriviumQueueReader, partitions: object) -> list[int]:
    assert isinstance(partitions, list)
    values: list[int] = []
    for one in partitions:
        # As it travels to a task.
        for rows in reader.read(pickle.loads(pickle.dumps(one))):
            values += [int(value) for value in rows.column("value").to_pylist()]
    return values


# Taking


def test_what_is_there_is_taken_up_to_a_bound_and_settled(taker: Taker, client: SyncClient) -> None:
    assert taker.take() == []
    publish(client, *range(5))
    assert [each.payload for each in taker.take()] == [b"0", b"1", b"2"]
    taker.settle()
    assert [each.payload for each in taker.take()] == [b"3", b"4"]
    taker.settle()
    taker.close()
    assert waiting(client) == 0


def test_bytes_are_a_bound_too(
    monkeypatch: pytest.MonkeyPatch, taker: Taker, client: SyncClient
) -> None:
    monkeypatch.setattr(queues, "MOST_BYTES", 2)
    monkeypatch.setattr(queues, "POLL_MESSAGES", 1)
    publish(client, *range(5))
    assert len(taker.take()) == 2


def test_what_was_taken_and_not_settled_goes_back(taker: Taker, client: SyncClient) -> None:
    publish(client, 0, 1)
    assert not any(each.is_redelivered for each in taker.take())
    taker.close()
    again = taker.take()
    assert [(each.payload, each.is_redelivered) for each in again] == [(b"0", True), (b"1", True)]


def test_messages_that_cannot_be_settled_come_again_and_it_is_logged(
    taker: Taker, broker: TriviumProcess, client: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    publish(client, 0, 1)
    assert len(taker.take()) == 2
    broker.restart()
    with caplog.at_level(logging.WARNING, "trivium_spark"):
        taker.settle()
    assert "messages of the last batch come again" in caplog.text
    assert [each.payload for each in taker.take()] == [b"0", b"1"]


def test_a_queue_that_is_not_there_is_named(broker: TriviumProcess) -> None:
    with pytest.raises(OptionError, match=r"^queue 'q': "):
        Taker(options(broker)).take()


def test_messages_are_parted_for_tasks_by_their_bytes(
    monkeypatch: pytest.MonkeyPatch, taker: Taker, client: SyncClient
) -> None:
    monkeypatch.setattr(queues, "TASK_BYTES", 2)
    publish(client, *range(3))
    parts = partitions_of(7, taker.take())
    assert [(part.first, len(part.protocols)) for part in parts] == [(7, 2), (9, 1)]
    assert partitions_of(0, []) == []


# A streaming query


def test_a_batch_is_settled_when_spark_plans_the_next_one(
    reader: TriviumQueueReader, client: SyncClient
) -> None:
    publish(client, *range(5))
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    assert read(reader, reader.partitions(start, end)) == [0, 1, 2]
    # The same for a task that is repeated.
    assert read(reader, reader.partitions(start, end)) == [0, 1, 2]
    after = reader.latestOffset(end, LIMIT)
    assert read(reader, reader.partitions(end, after)) == [3, 4]
    reader.commit(end)
    assert reader.latestOffset(after, LIMIT) == after
    reader.stop()
    assert waiting(client) == 0


def test_a_batch_that_is_planned_and_not_begun_takes_no_more(
    reader: TriviumQueueReader, client: SyncClient
) -> None:
    publish(client, *range(5))
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    assert reader.latestOffset(start, LIMIT) == end
    assert read(reader, reader.partitions(start, end)) == [0, 1, 2]


def test_a_query_that_ends_gives_back_what_was_not_done(
    reader: TriviumQueueReader, client: SyncClient
) -> None:
    publish(client, *range(5))
    first = reader.latestOffset(reader.initialOffset(), LIMIT)
    reader.latestOffset(first, LIMIT)
    reader.stop()
    assert waiting(client) == 2


def test_a_batch_of_an_earlier_run_is_empty_and_its_messages_come_later(
    broker: TriviumProcess,
    reader: TriviumQueueReader,
    client: SyncClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(client, *range(2))
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    reader.stop()
    again = TriviumQueueReader(options(broker), ALL)
    with caplog.at_level(logging.WARNING, "trivium_spark"):
        assert again.partitions(start, end) == []
    assert "an earlier run is repeated without messages" in caplog.text
    # That Spark calls it done settles nothing.
    again.commit(end)
    after = again.latestOffset(end, LIMIT)
    assert read(again, again.partitions(end, after)) == [0, 1]
    again.stop()
    assert waiting(client) == 2


def test_available_now_takes_once(reader: TriviumQueueReader, client: SyncClient) -> None:
    publish(client, *range(5))
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), LIMIT)
    assert reader.latestOffset(end, LIMIT) == end
    reader.stop()
    assert waiting(client) == 2


# Rows


def one_row(broker: TriviumProcess, schema: StructType, **more: str) -> pa.RecordBatch:
    given = options(broker, **more)
    taker = Taker(given)
    (part,) = partitions_of(0, taker.take())
    taker.close()
    made: MessageReader = pickle.loads(pickle.dumps(MessageReader(given, schema)))
    rows = made.rows(part)
    assert rows.num_rows == 1
    rows.validate(full=True)
    return rows


def test_a_row_has_what_the_message_has(
    broker: TriviumProcess, queue: None, client: SyncClient
) -> None:
    client.bind("queue", "q", pattern="#")
    client.publish_batch(
        [
            Publication(
                payload=b"x",
                routing_key="a.b",
                priority=4,
                properties=Properties(
                    key=b"k",
                    content_type="text/plain",
                    correlation_id=b"c",
                    headers=[("n", 1), ("n", "two")],
                    timestamp=1_700_000_000,
                    expiration=60_000,
                ),
            )
        ]
    )
    names = [*QUEUE_COLUMNS, "correlation_id", "publisher_timestamp", "priority", "exchange"]
    (row,) = one_row(broker, default_schema([*names, "expiration"], QUEUE_TYPES)).to_pylist()
    assert 0 < row.pop("expiration") <= 60_000
    assert abs(row.pop("timestamp") - datetime.now(UTC)).total_seconds() < 300
    assert row == {
        "key": b"k",
        "value": b"x",
        "topic": "a/b",
        "headers": [{"key": "n", "value": b"1"}, {"key": "n", "value": b"two"}],
        "protocol": "native",
        "content_type": "text/plain",
        "queue": "q",
        "redelivered": False,
        "correlation_id": b"c",
        "publisher_timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "priority": 4,
        "exchange": "amq.topic",
    }


def test_payloads_are_decoded(broker: TriviumProcess, queue: None, client: SyncClient) -> None:
    publish(client, 7)
    kind = StructType().add("n", LongType())
    schema = StructType().add("data", kind).add("queue", StringType())
    with pytest.raises(TriviumSparkError, match=r"^queue q, message 0: the value is no JSON"):
        one_row(broker, schema, decode="json", mode="FAILFAST")
    text = StructType().add("data", StringType()).add("queue", StringType())
    assert one_row(broker, text, decode="text").to_pylist() == [{"data": "7", "queue": "q"}]


def test_columns_of_streams_are_refused(broker: TriviumProcess) -> None:
    with pytest.raises(OptionError, match="column offset bigint is not one of"):
        MessageReader(options(broker), StructType().add("offset", LongType()))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"maxRecords": "0"}, "maxRecords"),
        ({"maxRecords": "65537"}, "at most 65536"),
        ({"stream": "s"}, "unknown option stream"),
        ({"startingOffsets": "latest"}, "unknown option startingOffsets"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        parse_queue_options({"url": "trivium://x", "queue": "q", **given})


def test_what_a_task_gets_is_a_partition() -> None:
    assert pickle.loads(pickle.dumps(TakenPartition(1, b"x", b"\3", b"\0"))).first == 1
