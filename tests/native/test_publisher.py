"""Publishing message by message, gathered to requests, against a broker on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import TIMEOUT, running
from trivium.messages.message import Properties
from trivium_native import connect, errors
from trivium_native.client import Client, operations
from trivium_native.client.client import connection_of
from trivium_native.client.lasting import LastingConnection
from trivium_native.values import FramedMessages, Publication, Reconnect


@pytest.fixture(params=["memory", "disk"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """With stream ``s``, to which every key goes."""
    data = tmp_path / "data" if request.param == "disk" else None
    async with (
        asyncio.timeout(TIMEOUT),
        running(data) as url,
        connect(url, reconnect=Reconnect(first=0.001)) as found,
    ):
        await found.declare_stream("s")
        await found.bind("stream", "s", pattern="#")
        yield found


async def records(client: Client, least: int = 0) -> list[int]:
    """All that is in the stream, once there are so many."""
    found: list[int] = []
    while True:
        wait = TIMEOUT if len(found) < least else 0.0
        fetched = await client.fetch("s", 0, len(found), max_wait=wait)
        for batch in fetched.batches:
            found += [int(record.payload) for record in batch.records(len(found))]
        if len(found) == fetched.high_watermark >= least:
            return found


@pytest.mark.parametrize("acks", ["all", "leader", "none"])
async def test_messages_are_gathered_in_their_order(client: Client, acks: str) -> None:
    count = 3000
    progress: list[tuple[int, int]] = []
    async with client.publisher(
        acks=acks, on_progress=lambda *found: progress.append(found)
    ) as publisher:
        futures = [
            await publisher.publish(b"%d" % number, routing_key="a") for number in range(count)
        ]
        await publisher.flush()
        assert all(future.done() for future in futures)
    assert progress[-1] == (count, 0)
    assert len(progress) < count / 100, "many messages in a request"
    assert await records(client, count) == list(range(count))


async def test_a_lost_connection_doubles_nothing(client: Client) -> None:
    count = 2000
    connection = connection_of(client)
    assert isinstance(connection, LastingConnection)
    async with client.publisher(request_bytes=1000) as publisher:
        for number in range(count):
            await publisher.publish(b"%d" % number)
            if number % 100 == 0:
                await asyncio.sleep(0)
            if number % 500 == 250 and connection.road is not None:
                connection.road.connection_lost(None)
    assert await records(client) == list(range(count))


async def test_a_named_producer_goes_on_and_a_made_up_one_is_forgotten(client: Client) -> None:
    for _ in range(2):
        async with client.publisher("meter") as publisher:
            await publisher.publish(b"1")
    assert (await client.open_producer("meter")).sequence == 2
    async with client.publisher() as publisher:
        await publisher.publish(b"2")
        producer = publisher.producer
    assert producer is not None
    again = await client.open_producer(producer.name)
    assert again.sequence == 0


@pytest.mark.parametrize("idempotent", [True, False])
async def test_what_is_refused_fails_alone(client: Client, idempotent: bool) -> None:
    """By a queue that is full, for want of a binding, for want of an exchange."""
    await client.declare_queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    async with client.publisher(idempotent=idempotent) as publisher:
        futures = [
            await publisher.publish(b"0"),
            await publisher.publish(b"x", exchange="", routing_key="nowhere", mandatory=True),
            await publisher.publish(b"1"),
            await publisher.publish(b"y", exchange="", routing_key="q"),
            await publisher.publish(b"z", exchange="", routing_key="q"),
            await publisher.publish(b"2"),
            await publisher.publish(b"w", exchange="none"),
            await publisher.publish(b"3"),
        ]
        with pytest.raises(errors.NativeError):
            await publisher.flush()
        kinds = [type(future.exception()) for future in futures]
        good = type(None)
        assert kinds == [
            *(good, errors.Unroutable, good, good, errors.Rejected, good),
            *(errors.NotFound, good),
        ]
    assert await records(client) == [0, 1, 2, 3]
    assert (
        await client.declare_queue(
            "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
    ).messages == 1


@pytest.mark.parametrize("idempotent", [True, False])
async def test_what_is_refused_is_not_sent_again_and_again(
    client: Client, idempotent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A numbered request stops at each message that is refused."""
    sent = 0
    publish = operations.publish

    def counted(messages: FramedMessages, *others: Any) -> Any:
        nonlocal sent
        sent += messages.count
        return publish(messages, *others)

    monkeypatch.setattr(operations, "publish", counted)
    await client.declare_queue("q", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    await client.declare_queue("all")
    count = 1000
    async with client.publisher(idempotent=idempotent, linger=1) as publisher:
        futures = [
            await publisher.publish(b"x", exchange="", routing_key="q" if number < count else "all")
            for number in range(2 * count)
        ]
        with pytest.raises(errors.Rejected):
            await publisher.flush()
    assert [future.exception() is None for future in futures] == [
        *[True] * 5,
        *[False] * (count - 5),
        *[True] * count,
    ]
    assert (await client.declare_queue("all")).messages == count
    assert sent <= 8 * count


async def test_a_fenced_publisher_ends(client: Client) -> None:
    async with client.publisher("meter") as publisher:
        await client.open_producer("meter")
        future = await publisher.publish(b"1")
        with pytest.raises(errors.Fenced):
            await publisher.flush()
        with pytest.raises(errors.Fenced):
            await publisher.publish(b"2")
        assert isinstance(future.exception(), errors.Fenced)
    assert await records(client) == []


async def test_who_publishes_too_fast_waits(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium_native.client.publisher.BUFFER_BYTES", 10_000)
    most = 0
    async with client.publisher(request_bytes=3000) as publisher:
        for number in range(500):
            await publisher.publish(b"%d" % number)
            most = max(most, publisher.waiting_bytes)
    assert most < 10_000 + 1000
    assert await records(client) == list(range(500))


async def test_settings_that_make_no_sense_are_refused(client: Client) -> None:
    for settings in (
        {"acks": "some"},
        {"linger": -1.0},
        {"request_bytes": 0},
        {"compression": "gzip"},
    ):
        with pytest.raises(errors.InvalidArgument):
            async with client.publisher(**settings):
                pass


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_requests_are_compressed(client: Client, compression: str) -> None:
    sent = 0
    send = connection_of(client).protocol.send

    def counted(operation: operations.Operation[object], wants_reply: bool = True) -> int:
        nonlocal sent
        sent += len(operation.body)
        return send(operation, wants_reply)

    connection_of(client).protocol.send = counted  # type: ignore[method-assign]
    numbers = [number for number in range(50) for _ in range(60)]
    async with client.publisher(compression=compression) as publisher:
        for number in numbers:
            await publisher.publish(b"%050d" % number, routing_key="a")
    assert await records(client, len(numbers)) == numbers
    assert sent < 50 * len(numbers) / 5
    await client.publish_batch(
        [Publication(payload=b"1", routing_key="a")] * 100, compression=compression
    )
    assert sent < 50 * len(numbers) / 5


async def test_a_publisher_names_the_partition(client: Client) -> None:
    await client.declare_stream("t", 3)
    async with client.publisher() as publisher:
        for number in range(9):
            await publisher.publish(
                b"%d" % number,
                exchange="",
                routing_key="t",
                partition=number % 3,
                properties=Properties(key=b"k"),
            )
        with pytest.raises(ValueError, match="no partition -1"):
            await publisher.publish(b"", partition=-1)
    for partition in range(3):
        fetched = await client.fetch("t", partition, 0)
        found = [record for batch in fetched.batches for record in batch.records()]
        assert [int(record.payload) for record in found] == list(range(partition, 9, 3))
        assert {record.key for record in found} == {b"k"}
