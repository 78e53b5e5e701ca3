"""A connection outlives its broker, not for ever, and says at once what waiting does not mend."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructType

from interop.brokers import TriviumProcess
from tests.support.certificates import Authority
from trivium_native.client.topology_operations import declare_stream
from trivium_native.errors import Fenced, OffsetOutOfRange, TooManyRequests
from trivium_native.requests import MAX_STREAMS, Operation, finish, start
from trivium_native.sync import SyncClient
from trivium_native.values import Fetched, FramedMessages, Part, Publication
from trivium_native.wire.frames import unpack
from trivium_spark import connection as module
from trivium_spark.connection import Piece, ReconnectingConnection, StreamGone
from trivium_spark.errors import (
    BrokerUnavailable,
    DataLossError,
    GroupTakenOver,
    OptionError,
    TriviumSparkError,
)
from trivium_spark.offsets import Bounds, OffsetRange, Offsets, StreamState, partitions_of
from trivium_spark.options import EARLIEST, LATEST, Access, Position, Selection, parse_read_options
from trivium_spark.reader import RangePartition, TriviumReader, TriviumStreamReader


@pytest.fixture
def connection(broker: TriviumProcess) -> Iterator[ReconnectingConnection]:
    with ReconnectingConnection(Access(broker.url), 60) as made:
        yield made


STREAM = Selection(("s",))


def request(*publications: Publication) -> list[FramedMessages]:
    """One request of these messages."""
    return [FramedMessages.of(publications)]


def messages(*payloads: bytes) -> list[FramedMessages]:
    return request(*[Publication(payload=data, exchange="", routing_key="s") for data in payloads])


def latest(connection: ReconnectingConnection, partition: int) -> int:
    return dict(partitions_of(connection.snapshot(STREAM)))["s", partition].latest


def payloads(connection: ReconnectingConnection, wanted: OffsetRange) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < wanted.end - wanted.start:
        for _, batch in connection.fetch(wanted, wanted.start + len(found)).batches:
            found += [batch.message(row).payload for row in range(batch.count)]
    return found


def test_everything_goes_on_after_a_crash_of_the_broker(
    broker: TriviumProcess, client: SyncClient, connection: ReconnectingConnection
) -> None:
    incarnation = client.declare_stream("s", 1)
    connection.publish(messages(b"0", b"1"))
    broker.kill()
    broker.start()
    connection.publish(messages(b"2"))
    broker.kill()
    broker.start()
    assert connection.snapshot(STREAM) == {"s": StreamState(incarnation, (Bounds(0, 3),))}
    broker.kill()
    broker.start()
    assert payloads(connection, OffsetRange("s", 0, incarnation, 0, 3)) == [b"0", b"1", b"2"]


def test_crash_in_the_middle_of_publishing_loses_nothing(
    broker: TriviumProcess, client: SyncClient, connection: ReconnectingConnection
) -> None:
    incarnation = client.declare_stream("s", 1)
    half_way = threading.Event()

    def publish() -> None:
        for n in range(40):
            connection.publish(messages(*[b"%d" % (n * 500 + m) for m in range(500)]))
            if n == 10:
                half_way.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    assert half_way.wait(60)
    broker.kill()
    broker.start()
    publisher.join(60)
    assert not publisher.is_alive()
    end = latest(connection, 0)
    found = payloads(connection, OffsetRange("s", 0, incarnation, 0, end))
    assert {int(payload) for payload in found} == set(range(20_000))


def test_broker_that_stays_away_is_an_error(broker: TriviumProcess) -> None:
    broker.kill()
    with (
        ReconnectingConnection(Access(broker.url), 0) as connection,
        pytest.raises(BrokerUnavailable, match=r"did not answer for 0 seconds .*: cannot"),
    ):
        connection.snapshot(STREAM)
    broker.start()


@pytest.mark.parametrize(
    ("url", "kind", "named"),
    [
        ("trivium://", OptionError, "option url"),
        (
            "trivium://guest:wrong@{}",
            TriviumSparkError,
            "wrong password for user guest at",
        ),
        ("trivium://{}/elsewhere", OptionError, "option url: vhost elsewhere not found"),
    ],
)
def test_what_waiting_does_not_mend_is_an_error_at_once(
    broker: TriviumProcess, url: str, kind: type[Exception], named: str
) -> None:
    with (
        ReconnectingConnection(
            Access(url.format(f"127.0.0.1:{broker.ports['native']}")), 3600
        ) as connection,
        pytest.raises(kind, match=named),
    ):
        connection.snapshot(STREAM)


def test_unknown_stream_is_named(connection: ReconnectingConnection) -> None:
    with pytest.raises(OptionError, match=r"^stream 's' .*does not exist"):
        connection.snapshot(STREAM)


def test_range_of_another_incarnation_is_never_read(
    client: SyncClient, connection: ReconnectingConnection
) -> None:
    old = OffsetRange("s", 0, client.declare_stream("s", 1), 0, 2)
    connection.publish(messages(b"old", b"old"))
    client.delete_stream("s")
    with pytest.raises(StreamGone, match="no stream 's'"):
        connection.fetch(old, 0)
    client.declare_stream("s", 1)
    connection.publish(messages(b"new", b"new"))
    with pytest.raises(StreamGone, match="another one of that name"):
        connection.fetch(old, 0)


def test_nothing_beyond_the_end(client: SyncClient, connection: ReconnectingConnection) -> None:
    wanted = OffsetRange("s", 0, client.declare_stream("s", 1), 0, 9)
    connection.publish(messages(b"0", b"1"))
    assert connection.fetch(wanted, 2) == Piece(2, 2, [])
    assert connection.fetch(wanted, 5) == Piece(5, 5, [])


@pytest.mark.parametrize(("first", "asked"), [(4, [0, 4]), (9, [0]), (12, [0])])
def test_fetch_goes_on_at_the_first_offset_that_is_kept(
    monkeypatch: pytest.MonkeyPatch, first: int, asked: list[int]
) -> None:
    offsets: list[int] = []

    class Trimmed:
        def run(self, request: Operation[Fetched]) -> Fetched:
            offset = unpack(request.body)["offset"]
            offsets.append(offset)
            if offset < first:
                raise OffsetOutOfRange("gone", {"first_offset": first, "high_watermark": 20})
            return Fetched(first, 20, [])

        def close(self) -> None:
            pass

    monkeypatch.setattr(module, "connect", lambda url, **_: Trimmed())
    with ReconnectingConnection(Access("trivium://x"), 0) as connection:
        assert connection.fetch(OffsetRange("s", 0, "one", 0, 9), 0).batches == []
    assert offsets == asked


def test_what_was_asked_for_ahead_is_asked_again_after_a_crash(
    broker: TriviumProcess, client: SyncClient, connection: ReconnectingConnection
) -> None:
    wanted = OffsetRange("s", 0, client.declare_stream("s", 1), 0, 2)
    connection.publish(messages(b"0", b"1"))
    connection.fetch_ahead(wanted, 0, 1000)
    broker.kill()
    broker.start()
    assert payloads(connection, wanted) == [b"0", b"1"]
    # What nobody wants after all is not taken for something else.
    connection.fetch_ahead(wanted, 1, 1000)
    assert payloads(connection, wanted) == [b"0", b"1"]


def test_publish_that_is_refused_says_why(connection: ReconnectingConnection) -> None:
    missing = request(Publication(payload=b"x", exchange="nowhere"))
    mandatory = Publication(payload=b"x", exchange="", routing_key="s", mandatory=True)
    with pytest.raises(OptionError, match=r"^exchange 'nowhere' in vhost '/' does not exist$"):
        connection.publish(missing)
    with pytest.raises(OptionError, match=r"^exchange 'nowhere' in vhost '/' does not exist$"):
        connection.stage("p", 0, "a", missing)
    with pytest.raises(OptionError, match=r"^queue 's' does not exist$"):
        connection.stage("p", 0, "a", request(mandatory), "queue 's'")
    with pytest.raises(OptionError, match=r"^queue 's' does not exist$"):
        connection.publish(request(mandatory), "queue 's'")


def test_commit_is_seen_by_others(client: SyncClient, connection: ReconnectingConnection) -> None:
    incarnation = client.declare_stream("s", 2)
    connection.publish(messages(b"0"))
    partition = next(n for n in (0, 1) if latest(connection, n))
    connection.commit(
        "g", Offsets({("s", partition): 1, ("s", 1 - partition): 0}, {"s": incarnation})
    )
    assert [row.lag for row in client.committed("g", "s")] == [0, 0]
    assert client.committed("g", "s")[partition].committed == 1


@pytest.mark.parametrize("incarnation", ["", "another"])
def test_commit_that_fails_is_a_warning(
    client: SyncClient,
    connection: ReconnectingConnection,
    caplog: pytest.LogCaptureFixture,
    incarnation: str,
) -> None:
    made = client.declare_stream("s", 1)
    with caplog.at_level(logging.WARNING):
        connection.commit("g", Offsets({("s", 0): 7}, {"s": incarnation or made}))
    (record,) = caplog.records
    assert record.getMessage().startswith("group g: offsets not committed: ")
    assert client.committed("g", "s")[0].committed is None


def reader(broker: TriviumProcess, group: str = "g") -> TriviumStreamReader:
    given = {"url": broker.url, "stream": "s", "group": group, "startingOffsets": "earliest"}
    options = parse_read_options(given, is_streaming=True)
    return TriviumStreamReader(options, StructType().add("value", BinaryType()))


def test_of_two_queries_with_one_group_the_older_one_ends(
    broker: TriviumProcess, client: SyncClient, connection: ReconnectingConnection
) -> None:
    client.declare_stream("s", 1)
    connection.publish(messages(b"0", b"1"))
    older, newer = reader(broker), reader(broker)
    begin = older.initialOffset()
    end = older.latestOffset(begin, ReadAllAvailable())
    older.commit(end)
    assert client.committed("g", "s")[0].committed == 2
    assert newer.latestOffset(newer.initialOffset(), ReadAllAvailable())["offsets"] == {"s/0": 2}
    with pytest.raises(GroupTakenOver, match="give each query a group of its own"):
        older.latestOffset(end, ReadAllAvailable())
    connection.publish(messages(b"2"))
    with pytest.raises(GroupTakenOver, match="taken over by 'spark-"):
        older.commit({**end, "offsets": {"s/0": 3}})
    # The newer one goes on, whatever the older one does when it ends.
    older.stop()
    end = newer.latestOffset(end, ReadAllAvailable())
    newer.commit(end)
    assert client.committed("g", "s")[0].committed == 3
    newer.stop()


def read_of(broker: TriviumProcess, streams: str, **more: str) -> TriviumStreamReader:
    given = {"url": broker.url, "stream": streams, "startingOffsets": "earliest", **more}
    options = parse_read_options(given, is_streaming=True)
    return TriviumStreamReader(options, StructType().add("value", BinaryType()))


def test_a_stream_that_is_removed_from_a_query_is_told_and_goes_on_when_it_is_back(
    broker: TriviumProcess,
    client: SyncClient,
    connection: ReconnectingConnection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("a", "s"):
        client.declare_stream(name, 1)
        client.bind_stream(name, "amq.topic", "#")
    connection.publish(request(*[Publication(payload=b"x", routing_key="k")] * 3))
    both = read_of(broker, "a,s")
    first = both.latestOffset(both.initialOffset(), ReadAllAvailable())
    both.stop()
    strict = read_of(broker, "s")
    with pytest.raises(DataLossError, match="a: the checkpoint has offsets of it"):
        strict.latestOffset(first, ReadAllAvailable())
    strict.stop()
    connection.publish(request(Publication(payload=b"x", routing_key="k")))
    accepting = read_of(broker, "s", failOnDataLoss="false", group="g")
    with caplog.at_level(logging.WARNING):
        second = accepting.latestOffset(first, ReadAllAvailable())
        # Once for the query, not for every batch.
        accepting.latestOffset(second, ReadAllAvailable())
        accepting.commit(second)
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "data loss accepted (failOnDataLoss is fa"
    ]
    accepting.stop()
    assert second["offsets"] == {"a/0": 3, "s/0": 4}
    assert client.committed("g", "a")[0].committed is None
    third = both.latestOffset(second, ReadAllAvailable())
    (planned,) = both.partitions(second, third)
    assert isinstance(planned, RangePartition)
    assert (planned.range.stream, planned.range.start, planned.range.end) == ("a", 3, 4)
    both.stop()


def test_a_batch_that_begins_beyond_the_end_is_a_loss(
    broker: TriviumProcess,
    client: SyncClient,
    connection: ReconnectingConnection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.declare_stream("s", 1)
    connection.publish(messages(b"0", b"1"))

    def plan(**more: str) -> list[InputPartition]:
        given = {"url": broker.url, "stream": "s", "startingOffsets": '{"s/0": 5}', **more}
        options = parse_read_options(given, is_streaming=False)
        return TriviumReader(options, StructType().add("value", BinaryType())).partitions()

    with pytest.raises(DataLossError, match="s/0: offsets 2 to 4 do not exist"):
        plan()
    with pytest.raises(OptionError, match="s/0 would end at 1, before it begins at 5"):
        plan(endingOffsets='{"s/0": 1}')
    with caplog.at_level(logging.WARNING):
        assert plan(failOnDataLoss="false") == []
    assert len(caplog.records) == 1


def test_a_limit_of_the_broker_is_an_error_at_once(
    connection: ReconnectingConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(self: SyncClient, *arguments: object, **named: object) -> None:
        raise TooManyRequests("this virtual host has too many producers")

    # For an hour the connection would repeat what passes.
    patient = ReconnectingConnection(connection.access, 3600)
    monkeypatch.setattr(SyncClient, "open_producer", too_many)
    with patient, pytest.raises(TriviumSparkError, match="too many producers"):
        patient.commit_parts("p", 0, [])


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_a_target_that_goes_before_the_commit_is_named(
    kind: str, connection: ReconnectingConnection, client: SyncClient
) -> None:
    """And what is committed is published once it is there again."""

    def declare() -> None:
        getattr(client, f"declare_{kind}")("t")

    declare()
    is_exchange = kind == "exchange"
    target = "" if is_exchange else f"{kind} 't'"
    like = Publication(
        payload=b"",
        exchange="t" if is_exchange else "",
        routing_key="t",
        mandatory=not is_exchange,
    )
    requests = [FramedMessages.from_payloads([b"1", b"2"], like)]
    assert connection.stage("p", 0, "part", requests, target) == 1
    client.delete(kind, "t")
    with pytest.raises(OptionError, match=rf"^{kind} 't' .*does not exist$"):
        connection.commit_parts("p", 0, [Part("part", 1)], target)
    declare()
    connection.commit_parts("p", 0, [Part("part", 1)], target)


def test_a_query_that_is_stopped_leaves_its_group(
    broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 1)
    query = reader(broker)
    query.latestOffset(query.initialOffset(), ReadAllAvailable())
    with pytest.raises(Fenced):
        client.commit("g", "s", {0: 0})
    query.stop()
    client.commit("g", "s", {0: 0})


def test_queries_with_groups_of_their_own_do_not_mind_each_other(
    broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 1)
    queries = [reader(broker, group) for group in ("g", "h")]
    for _ in range(2):
        for query in queries:
            query.latestOffset(query.initialOffset(), ReadAllAvailable())
    for query in queries:
        query.stop()


def test_a_group_stays_held_over_a_crash_of_the_broker(
    broker: TriviumProcess, client: SyncClient
) -> None:
    client.declare_stream("s", 1)
    older, newer = reader(broker), reader(broker)
    begin = older.initialOffset()
    older.latestOffset(begin, ReadAllAvailable())
    broker.kill()
    broker.start()
    older.latestOffset(begin, ReadAllAvailable())
    newer.latestOffset(begin, ReadAllAvailable())
    broker.kill()
    broker.start()
    with pytest.raises(GroupTakenOver):
        older.latestOffset(begin, ReadAllAvailable())
    for query in (older, newer):
        query.stop()


def test_password_is_read_from_its_file_for_each_connection(
    client: SyncClient, broker: TriviumProcess, tmp_path: Path
) -> None:
    client.declare_stream("s", 1)
    file = tmp_path / "password"
    access = Access(broker.url, username="guest", password_file=str(file))
    with ReconnectingConnection(access, 3600) as connection:
        with pytest.raises(OptionError, match="option passwordFile: No such file"):
            connection.snapshot(STREAM)
        file.write_text("wrong\n")
        with pytest.raises(TriviumSparkError, match="wrong password for user guest at"):
            connection.snapshot(STREAM)
        file.write_text("guest\n")
        assert connection.snapshot(STREAM)


def test_broker_that_is_not_verified_is_an_error_at_once(tmp_path: Path) -> None:
    pair = Authority(tmp_path).pair("server", "127.0.0.1")
    environment = {
        "TRIVIUM_LISTEN__NATIVES": "0",
        "TRIVIUM_TLS__CERTIFICATE": str(pair.certificate),
        "TRIVIUM_TLS__KEY": str(pair.key),
    }
    broker = TriviumProcess(tmp_path, protocols=(), environment=environment)
    broker.start()
    try:
        access = Access(f"triviums://127.0.0.1:{broker.ports['natives']}")
        with (
            ReconnectingConnection(access, 3600) as connection,
            pytest.raises(OptionError, match="the certificate does not verify"),
        ):
            connection.snapshot(STREAM)
    finally:
        broker.kill()


def published(client: SyncClient, connection: ReconnectingConnection, count: int) -> list[int]:
    """The times of ``count`` records of stream s, which arrive one after the other: all differ."""
    times: list[int] = []
    while len(times) < count:
        connection.publish(messages(b"x" * 100))
        times = [
            each.timestamp for one in client.fetch("s", 0, 0).batches for each in one.records()
        ]
        times = sorted(set(times))
    return times


def test_times_become_offsets(client: SyncClient, connection: ReconnectingConnection) -> None:
    client.declare_stream("s", 1)
    *_, before, last = published(client, connection, 3)
    snapshot = connection.snapshot(STREAM)
    records = [each for one in client.fetch("s", 0, 0).batches for each in one.records()]
    first = next(each.offset for each in records if each.timestamp == last)

    def located(position: Position) -> Position:
        return connection.located(position, None, snapshot)

    at_first = Position(LATEST, {("s", 0): first})
    assert located(Position(LATEST, time=before + 1, is_strict=True)) == at_first
    assert located(Position(LATEST, times={("s", 0): last})) == at_first
    # Nothing arrived since.
    assert located(Position(EARLIEST, time=last + 1)) == Position(EARLIEST, {("s", 0): LATEST})
    with pytest.raises(OptionError, match="s/0 has no record of the time"):
        located(Position(EARLIEST, time=last + 1, is_strict=True))
    with pytest.raises(OptionError, match="there is no s/1"):
        located(Position(EARLIEST, times={("s", 1): 0}))


def test_a_group_says_where_to_begin(
    broker: TriviumProcess, client: SyncClient, connection: ReconnectingConnection
) -> None:
    client.declare_stream("s", 2)
    connection.publish(messages(b"0"))
    connection.publish(messages(b"1"))
    client.commit("g", "s", {1: 1})
    given = {"url": broker.url, "stream": "s", "startingOffsets": "group", "group": "g"}
    schema = StructType().add("value", BinaryType())
    source = TriviumStreamReader(parse_read_options(given, is_streaming=True), schema)
    # Where the group has committed nothing it begins at the beginning.
    assert source.initialOffset()["offsets"] == {"s/0": 0, "s/1": 1}
    planned = TriviumReader(parse_read_options(given, is_streaming=False), schema).partitions()
    assert [part.range.partition for part in planned if isinstance(part, RangePartition)] == [0]
    source.stop()


def test_streams_are_found_by_a_pattern(
    client: SyncClient, connection: ReconnectingConnection
) -> None:
    for name in ("a-1", "a-2", "b", "xa-1"):
        client.declare_stream(name, 1)
    found = connection.snapshot(Selection(pattern=re.compile("a-.*")))
    assert sorted(found) == ["a-1", "a-2"]
    assert connection.snapshot(Selection(pattern=re.compile("nothing"))) == {}


def test_more_streams_are_read_than_one_request_names(
    client: SyncClient, connection: ReconnectingConnection
) -> None:
    names = [f"s{number}" for number in range(MAX_STREAMS + 1)]
    under_way = [(start(client, each), each) for each in (declare_stream(n, 1) for n in names)]
    for request_ in under_way:
        finish(client, *request_)
    for given in (
        {"subscribe": ",".join(names)},
        {"assign": json.dumps({name: [0] for name in names})},
    ):
        offsets = json.dumps({f"{name}/0": 0 for name in names})
        options = {"url": connection.access.url, "startingOffsets": offsets, **given}
        selection = parse_read_options(options, is_streaming=False).selection
        assert list(connection.snapshot(selection)) == names
    client.delete_stream(names[-1])
    with pytest.raises(OptionError, match=f"^stream '{names[-1]}' .*does not exist$"):
        connection.snapshot(Selection(tuple(names)))


def test_only_partitions_that_are_assigned_are_read(
    client: SyncClient, connection: ReconnectingConnection
) -> None:
    client.declare_stream("s", 3)
    selection = Selection(("s",), partitions={"s": frozenset([0, 2])})
    assert [key for key, _ in partitions_of(connection.snapshot(selection))] == [("s", 0), ("s", 2)]
    missing = Selection(("s",), partitions={"s": frozenset([3])})
    with pytest.raises(OptionError, match="there is no s/3: stream 's' has 3 partitions"):
        connection.snapshot(missing)


def test_a_record_is_about_as_large_as_its_batch_says(
    client: SyncClient, connection: ReconnectingConnection
) -> None:
    client.declare_stream("s", 1)
    connection.publish(messages(*[b"x" * 1000] * 500))
    snapshot = connection.snapshot(STREAM)
    sizes = connection.record_sizes({("s", 0): 3}, snapshot)
    assert 1000 < sizes["s", 0] < 1100
    client.delete_stream("s")
    assert connection.record_sizes({("s", 0): 3}, snapshot) == {}


def test_a_batch_that_waits_for_records_does_not_wait_for_ever(
    broker: TriviumProcess,
    client: SyncClient,
    connection: ReconnectingConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.declare_stream("s", 1)
    given = {"url": broker.url, "stream": "s", "minOffsetsPerTrigger": "3"}
    given |= {"maxTriggerDelay": "15m"}
    options = parse_read_options(given, is_streaming=True)
    source = TriviumStreamReader(options, StructType().add("value", BinaryType()))
    limit = source.getDefaultReadLimit()
    now = time.monotonic()
    monkeypatch.setattr("trivium_spark.reader.time.monotonic", lambda: now)
    begin = source.initialOffset()

    def following(start: dict[str, Any]) -> dict[str, Any]:
        return source.latestOffset(start, limit)

    # The first batch is there at once, also when it is small.
    connection.publish(messages(b"0"))
    first = following(begin)
    assert first["offsets"] == {"s/0": 1}
    connection.publish(messages(b"1", b"2"))
    assert following(first) == first
    connection.publish(messages(b"3"))
    second = following(first)
    assert second["offsets"] == {"s/0": 4}
    connection.publish(messages(b"4"))
    assert following(second) == second
    now += 901
    assert following(second)["offsets"] == {"s/0": 5}
    # What waits for what is available now waits for no more.
    connection.publish(messages(b"5"))
    source.prepareForTriggerAvailableNow()
    assert following(second)["offsets"] == {"s/0": 6}
    source.stop()
