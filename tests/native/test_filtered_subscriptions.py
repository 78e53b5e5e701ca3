"""SUBSCRIBE to a log with a filter: what comes, what says how far it is, and what it may cost."""

from __future__ import annotations

import inspect
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest

from tests.support.live import running
from tests.support.native import Client, Received, Server, entry, publish
from tests.support.server import ShortTurns
from tests.support.storages import ColdLog, HeldStorage
from trivium.config import Config, Listen
from trivium.routing.exchanges import Binding
from trivium.streams.filtered_reads import SHARE
from trivium.streams.filtering import PAGE_COST
from trivium.streams.records import PAYLOAD, RecordBatch
from trivium_native import client as asynchronous
from trivium_native import connect, errors, sync
from trivium_native.values import Publication
from trivium_native.wire import frames

#: What comes of a subscription: the offsets of a batch, its payloads; of none where it goes on.
Came = tuple[int, int, list[bytes | None]]


@pytest.fixture
def server() -> Server:
    return started(None)


def started(storage: HeldStorage | None) -> Server:
    """A broker with a stream that has the offsets 0 to 3 in three batches."""
    server = Server(storage, Config(listen={"native": Listen(0)}))
    stream = server.vhost.declare_stream("s")
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(stream, b"#"))
    for turn in ([b"a.x", b"b"], [b"b"], [b"a.y"]):
        add(server, *turn)
        server.sync()
    return server


@pytest.fixture
def client(server: Server) -> Client:
    return server.open()


def add(server: Server, *keys: bytes) -> None:
    """The routing keys are the payloads too."""
    server.open().send(frames.PUBLISH, 0, publish(*[entry(key, key) for key in keys]))


def subscribe(client: Client, offset: int | None = 0, **fields: Any) -> list[Came]:
    asked = {"subscription": 5, "mode": "log", "stream": "s", "partition": 0, "offset": offset}
    asked |= {"credit": 1 << 20, "filter": "a/+"}
    asked = {name: value for name, value in (asked | fields).items() if value is not None}
    ((kind, _, body), *rest) = client.send(frames.SUBSCRIBE, 9, asked)
    assert kind == frames.OK, msgpack.unpackb(body)
    return came(rest)


def came(received: list[Received]) -> list[Came]:
    found: list[Came] = []
    for kind, _, body in received:
        number, reserved, base = struct.unpack_from("<IIq", body)
        assert (kind, number, reserved) == (frames.BATCH, 5, 0)
        if len(body) == 16:
            found.append((base, base, []))
            continue
        view = RecordBatch(body[16:])
        payloads: list[bytes | None] = [view.binary(PAYLOAD, row) for row in range(view.count)]
        found.append((base, base + view.span, payloads))
    return found


def test_only_records_that_match_come(client: Client) -> None:
    assert subscribe(client) == [(0, 3, [b"a.x"]), (3, 4, [b"a.y"])]


def test_it_begins_where_it_was_asked_to(client: Client) -> None:
    assert subscribe(client, 1) == [(3, 4, [b"a.y"])]


def test_from_a_time_on_too(client: Client) -> None:
    found = subscribe(client, None, timestamp=0)
    assert [payloads for _, _, payloads in found] == [[b"a.x"], [b"a.y"]]


def test_what_comes_later_is_looked_at_once(server: Server, client: Client) -> None:
    subscribe(client, 4)
    add(server, b"b", b"a.z")
    assert came(client.take()) == [(5, 6, [b"a.z"])]
    add(server, b"b")
    add(server, b"a.z", b"a.z")
    assert came(client.take()) == [(7, 9, [b"a.z", b"a.z"])]


def test_where_nothing_matches_it_says_where_to_go_on(server: Server, client: Client) -> None:
    """Once in a page, so that who comes again does not have all of it looked at again."""
    for _ in range(PAGE_COST // 1024 + 1):
        add(server, *[b"b.0", b"b.1"] * 512)
    ((base, end, payloads),) = subscribe(client, 4)
    assert (base > 4, end, payloads) == (True, base, [])
    for _ in range(PAGE_COST // 1024 + 1):
        add(server, *[b"b.0", b"b.1"] * 512)
    ((further, _, payloads),) = came(client.take())
    assert (further > base, payloads) == (True, [])


def test_it_sends_as_much_as_there_is_credit_for(server: Server, client: Client) -> None:
    assert subscribe(client, credit=1) == [(0, 2, [b"a.x"])]
    add(server, b"a.z")
    assert client.take() == []
    more = struct.pack("<IQ", 5, 1 << 20)
    assert came(client.send(frames.CREDIT, 0, more)) == [(3, 4, [b"a.y"]), (4, 5, [b"a.z"])]


def test_what_is_not_in_memory_is_loaded(server: Server, client: Client) -> None:
    (partition,) = server.vhost.stream("s").partitions
    cold = ColdLog(partition.log)
    partition.log = cold
    assert subscribe(client) == []
    for place in (0, 2, 3):
        assert cold.loads[-1][0] == place
        cold.finish_load()
        server.settle()
    assert [payloads for _, _, payloads in came(client.take())] == [[b"a.x"], [b"a.y"]]


def test_it_goes_on_behind_what_retention_removes(server: Server, client: Client) -> None:
    (partition,) = server.vhost.stream("s").partitions
    cold = ColdLog(partition.log)
    partition.log = cold
    assert subscribe(client) == []
    cold.first_offset = 2
    cold.finish_load()
    server.settle()
    assert came(client.take()) == [(2, 2, [])]


def test_one_that_has_ended_looks_no_more(server: Server, client: Client) -> None:
    subscribe(client, 4)
    client.ask(frames.UNSUBSCRIBE, subscription=5)
    add(server, b"a.z")
    assert client.take() == []
    subscribe(client, 5)
    server.vhost.delete_stream("s")
    server.settle()
    ((kind, _, _),) = client.take()
    assert kind == frames.CANCELLED


def test_what_is_no_filter_is_invalid(client: Client) -> None:
    where = {"subscription": 5, "mode": "log", "stream": "s", "partition": 0, "offset": 0}
    assert client.refused(frames.SUBSCRIBE, **where, credit=1, filter="a+") == 300
    where = {"subscription": 5, "mode": "pubsub", "exchange": "amq.topic", "pattern": b"#"}
    assert client.refused(frames.SUBSCRIBE, **where, filter="a") == 300


# Turns


def test_readers_share_a_part_of_each_turn() -> None:
    """However many there are, and whatever they ask by."""
    server = started(HeldStorage())
    readers = [server.open() for _ in range(8)]
    for number, reader in enumerate(readers):
        if number % 2:
            subscribe(reader, 4)
        else:
            where = {"stream": "s", "partition": 0, "offset": 4, "filter": "a/+"}
            assert reader.send(frames.FETCH, 9, where | {"max_wait_ms": 60_000}) == []
    # One that looks at so much takes the whole share.
    add(server, *[b"b.%d" % number for number in range(SHARE // 2)], b"a.z")
    other = server.open()
    server.driver = server.broker.driver = ShortTurns()
    server.sync()
    for at in range(len(readers)):
        assert [len(reader.take()) for reader in readers] == [int(at == n) for n in range(8)]
        # Others are served meanwhile.
        assert other.send(frames.PING, at, b"") == [(frames.PONG, at, b"")]
        server.advance(0.001)


# The clients


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Of a broker whose stream ``s`` has 0 to 9, of two topics in turns."""
    async with running() as found, connect(found) as client:
        await client.declare_stream("s")
        await client.bind("stream", "s", pattern="#")
        await client.publish_batch(
            [Publication(payload=b"%d" % n, routing_key=f"t.{n % 2}") for n in range(10)]
        )
        yield found


async def test_a_client_reads_by_topic(url: str) -> None:
    async with connect(url) as client:
        async with client.read("s", 0, 3, topic_filter="t/1") as batches:
            batch = await anext(batches)
            assert [record.payload for record in batch.records()] == [b"3", b"5", b"7", b"9"]
        with pytest.raises(errors.InvalidArgument, match="no topic filter"):
            async with client.read("s", topic_filter="#/a"):
                pass


async def test_a_member_of_a_group_reads_by_topic_and_commits_beyond(url: str) -> None:
    async with connect(url) as client, client.join("g", ["s"], topic_filter="t/0") as consumer:
        batch = await anext(consumer)
        assert [record.payload for record in batch.records()] == [b"0", b"2", b"4", b"6", b"8"]
        await consumer.commit()
        assert [each.committed for each in await client.committed("g", "s")] == [10]
        assert list((await consumer.lag()).values()) == [0]


async def test_what_a_filter_has_passed_is_committed_with_the_rest() -> None:
    """Nothing of it is missed by who goes on, so it is not said to be lost either."""
    async with running() as url, connect(url) as client:
        await client.declare_stream("s")
        await client.bind("stream", "s", pattern="#")
        keys = ["t.0", *(["u.0", "u.1"] * PAGE_COST)]
        publications = [Publication(payload=b"x", routing_key=key) for key in keys]
        for at in range(0, len(publications), 4096):
            await client.publish_batch(publications[at : at + 4096])
        async with client.join("g", ["s"], topic_filter="t/#") as consumer:
            await anext(consumer)
            await client.publish(b"y", routing_key="t.1")
            batch = await anext(consumer)
            assert [record.payload for record in batch.records()] == [b"y"]
            assert batch.start > PAGE_COST
            (commit,) = consumer.offsets()
            assert commit.offsets == {0: len(keys) + 1}


def test_both_clients_take_a_filter_by_the_same_name() -> None:
    for kind in (asynchronous.Client, sync.SyncClient):
        for name in ("read", "join"):
            assert "topic_filter" in inspect.signature(getattr(kind, name)).parameters
