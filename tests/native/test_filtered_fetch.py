"""FETCH with a filter: which records come, where a reader goes on, and what a broker refuses."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest

from tests.support.live import running
from tests.support.native import Client, Received, Server, entry, publish
from tests.support.storages import ColdLog
from trivium.config import Config, Listen
from trivium.routing.exchanges import Binding
from trivium.streams.filtering import PAGE_COST
from trivium.streams.records import PAYLOAD, RecordBatch
from trivium_native import client as asynchronous
from trivium_native import connect, errors, sync
from trivium_native.client import operations
from trivium_native.client.protocol import ClientProtocol
from trivium_native.client.url import Target
from trivium_native.values import Publication
from trivium_native.wire import frames
from trivium_native.wire.frames import encode_frame, pack


@pytest.fixture
def server() -> Server:
    """A stream with the offsets 0 to 3 in three batches."""
    server = Server(None, Config(listen={"native": Listen(0)}))
    stream = server.vhost.declare_stream("s")
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(stream, b"#"))
    for turn in ([b"a.x", b"b"], [b"b"], [b"a.y"]):
        add(server, *turn)
    return server


@pytest.fixture
def client(server: Server) -> Client:
    return server.open()


def add(server: Server, *keys: bytes) -> None:
    """The routing keys are the payloads too."""
    server.open().send(frames.PUBLISH, 0, publish(*[entry(key, key) for key in keys]))


def fetch(client: Client, offset: int, **fields: Any) -> list[Received]:
    where = {"stream": "s", "partition": 0, "offset": offset, "filter": "a/+"}
    return client.send(frames.FETCH, 8, where | fields)


def fetched(received: list[Received]) -> tuple[int, int, list[bytes | None]]:
    """High watermark, where to go on, and all payloads."""
    ((kind, correlation, body),) = received
    assert (kind, correlation) == (frames.FETCHED, 8)
    _, mark, count, flags, after = struct.unpack_from("<qqIIq", body)
    assert flags == 1
    at = 32
    found: list[bytes | None] = []
    for _ in range(count):
        _, size, _ = struct.unpack_from("<qII", body, at)
        view = RecordBatch(body[at + 16 : at + 16 + size])
        found += [view.binary(PAYLOAD, row) for row in range(view.count)]
        at += 16 + (size + 7) // 8 * 8
    assert at == len(body)
    return mark, after, found


def test_only_records_that_match_come(client: Client) -> None:
    assert fetched(fetch(client, 0)) == (4, 4, [b"a.x", b"a.y"])
    assert fetched(fetch(client, 1)) == (4, 4, [b"a.y"])
    assert fetched(fetch(client, 4)) == (4, 4, [])


def test_where_nothing_matches_the_answer_says_where_to_go_on(client: Client) -> None:
    assert fetched(fetch(client, 0, filter="c")) == (4, 4, [])


def test_an_answer_without_a_filter_is_as_it_was(client: Client) -> None:
    ((_, _, body),) = fetch(client, 0, filter=None)
    assert struct.unpack_from("<qqII", body)[2:] == (3, 0)


def test_the_broker_answers_after_a_bound(server: Server, client: Client) -> None:
    for _ in range(PAGE_COST // 1024 + 1):
        add(server, *[b"b.0", b"b.1"] * 512)
    mark, after, found = fetched(fetch(client, 4, max_wait_ms=60_000))
    assert (mark > after > 4, found) == (True, [])


def test_a_fetch_waits_until_something_matches(server: Server, client: Client) -> None:
    assert fetch(client, 4, max_wait_ms=1000) == []
    add(server, b"b", b"b")
    assert client.take() == []
    add(server, b"b", b"a.z")
    assert fetched(client.take()) == (8, 8, [b"a.z"])


def test_a_fetch_whose_time_has_passed_says_where_to_go_on(server: Server, client: Client) -> None:
    assert fetch(client, 4, max_wait_ms=100) == []
    add(server, b"b")
    server.advance(0.1)
    assert fetched(client.take()) == (5, 5, [])


def test_what_is_not_in_memory_is_loaded_a_piece_at_a_time(server: Server, client: Client) -> None:
    (partition,) = server.vhost.stream("s").partitions
    cold = ColdLog(partition.log)
    partition.log = cold
    assert fetch(client, 0) == []
    for place in (0, 2, 3):
        assert cold.loads[-1][0] == place
        assert client.take() == []
        cold.finish_load()
        server.settle()
    assert fetched(client.take()) == (4, 4, [b"a.x", b"a.y"])


def test_what_retention_removes_meanwhile_is_out_of_range(server: Server, client: Client) -> None:
    (partition,) = server.vhost.stream("s").partitions
    cold = ColdLog(partition.log)
    partition.log = cold
    assert fetch(client, 0) == []
    cold.first_offset = 2
    cold.finish_load()
    server.settle()
    ((kind, _, body),) = client.take()
    assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 304)
    assert msgpack.unpackb(body)[2] == {"first_offset": 2, "high_watermark": 4}


@pytest.mark.parametrize("text", ["", "a+", "#/b", "a\0", 7, "x" * 70_000])
def test_what_is_no_filter_is_invalid(client: Client, text: object) -> None:
    ((kind, _, body),) = fetch(client, 0, filter=text)
    assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 300)
    assert fetched(fetch(client, 0))[0] == 4


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


async def test_a_client_fetches_by_topic(url: str) -> None:
    async with connect(url) as client:
        found = await client.fetch("s", 0, 3, topic_filter="t/1")
        records = [each for batch in found.batches for each in batch.records(3)]
        assert [(each.offset, each.payload) for each in records] == [
            (3, b"3"),
            (5, b"5"),
            (7, b"7"),
            (9, b"9"),
        ]
        assert found.next_offset == 10
        assert (await client.fetch("s", 0, 3)).next_offset is None
        with pytest.raises(errors.InvalidArgument, match="no topic filter"):
            await client.fetch("s", 0, 0, topic_filter="#/a")


async def test_a_client_fetches_by_topic_to_arrow(url: str) -> None:
    async with connect(url) as client:
        columns = ["offset", "topic"]
        found = await client.fetch_arrow("s", 0, "first", columns=columns, topic_filter="t/0")
        assert found.column("offset").to_pylist() == [0, 2, 4, 6, 8]
        assert set(found.column("topic").to_pylist()) == {"t/0"}
        assert found.schema.metadata[b"next_offset"] == b"10"
        found = await client.fetch_arrow("s", 0, 2, topic_filter="u")
        assert (found.num_rows, found.schema.metadata[b"next_offset"]) == (0, b"10")


def test_the_clients_take_the_same() -> None:
    for kind in (asynchronous.Client, sync.SyncClient):
        for name in ("fetch", "fetch_arrow"):
            assert "topic_filter" in getattr(kind, name).__signature__.parameters


@pytest.mark.parametrize("is_able", [False, True])
def test_an_older_broker_is_not_asked(is_able: bool) -> None:
    protocol = ClientProtocol(Target("localhost"))
    protocol.start()
    hello = {"version": 1, "heartbeat": 0, "max_frame": 1 << 20, "broker": "b"}
    if is_able:
        hello["features"] = ["filter"]
    protocol.receive(encode_frame(frames.HELLO, 1, pack(hello)))
    protocol.receive(encode_frame(frames.OK, 2, pack({})))
    assert protocol.send(operations.fetch("s", 0, 0)) == 3
    asked = operations.fetch("s", 0, 0, topic_filter="a")
    if is_able:
        assert protocol.send(asked) == 4
    else:
        with pytest.raises(errors.NotSupported, match="too old"):
            protocol.send(asked)
    subscribed = operations.subscribe_log(1, "s", 0, 0, None, 1, None, "a")
    assert subscribed.needs == asked.needs
