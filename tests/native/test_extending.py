"""Streams are given more partitions by their clients, and members of groups read the new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.live import TIMEOUT, running, running_inside
from tests.support.native import Server
from trivium.messages.message import Properties
from trivium.security.permissions import grants_of
from trivium_native import connect, errors
from trivium_native.client import Client
from trivium_native.client.consumer import GroupConsumer
from trivium_native.sync import connect as connect_sync
from trivium_native.values import AssignedPartition
from trivium_native.wire import frames


@pytest.fixture(params=["socket", "inside"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """With stream ``s`` of two partitions."""
    async with AsyncExitStack() as stack, asyncio.timeout(TIMEOUT):
        if request.param == "inside":
            broker = await stack.enter_async_context(running_inside())
            found = await stack.enter_async_context(broker.client())
        else:
            url = await stack.enter_async_context(running())
            found = await stack.enter_async_context(connect(url))
        await found.declare_stream("s", 2)
        yield found


async def put(client: Client, number: int, partition: int) -> None:
    await client.publish(
        b"%d" % number,
        exchange="",
        routing_key="s",
        properties=Properties(partition=partition),
    )


async def read(consumer: GroupConsumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [int(record.payload) for record in (await anext(consumer)).records()]
    return sorted(found)


async def test_a_stream_gets_more_partitions_and_never_fewer(client: Client) -> None:
    await client.extend_stream("s", 4)
    await client.extend_stream("s", 4)
    (info,) = await client.metadata(["s"])
    assert len(info.partitions) == 4
    with pytest.raises(errors.PreconditionFailed, match="has 4 partitions"):
        await client.extend_stream("s", 3)
    with pytest.raises(errors.NotFound):
        await client.extend_stream("none", 3)


async def test_the_blocking_client_does_the_same() -> None:
    def work(url: str) -> int:
        with connect_sync(url) as client:
            client.declare_stream("s", 2)
            client.extend_stream("s", 3)
            return len(client.metadata(["s"])[0].partitions)

    async with running() as url:
        assert await asyncio.to_thread(work, url) == 3


async def test_members_read_new_partitions_from_their_beginning(client: Client) -> None:
    """Also those that read the others from their end, and whoever goes on after them."""
    await put(client, 0, 0)
    assigned: set[int] = set()
    has_all = asyncio.Event()

    async def on_assigned(partitions: list[AssignedPartition]) -> None:
        assigned.update(each.partition for each in partitions)
        if len(assigned) == 5:
            has_all.set()

    async with client.join("g", ["s"], start="next", on_assigned=on_assigned) as consumer:
        await client.extend_stream("s", 4)
        for partition in range(1, 4):
            await put(client, partition, partition)
        assert await read(consumer, 3) == [1, 2, 3]
        await client.extend_stream("s", 5)
        await has_all.wait()
        await put(client, 4, 1)
        assert await read(consumer, 1) == [4]
        await consumer.commit()
    await put(client, 5, 4)
    async with client.join("g", ["s"], start="next") as consumer:
        assert await read(consumer, 1) == [5]


async def test_a_stream_that_is_made_anew_is_read_from_its_beginning(client: Client) -> None:
    async with client.join("g", ["s"], start="next") as consumer:
        await client.delete_stream("s")
        await client.declare_stream("s")
        await put(client, 7, 0)
        assert await read(consumer, 1) == [7]


async def test_texts_are_kept_with_offsets(client: Client) -> None:
    await put(client, 0, 0)
    await client.commit("h", "s", {0: 1, 1: 0}, metadata={0: "halfway"})
    assert [each.metadata for each in await client.committed("h", "s")] == ["halfway", None]
    async with client.join("g", ["s"]) as consumer:
        await read(consumer, 1)
        await consumer.commit("of the last run")
        assert (await client.committed("g", "s"))[0].metadata == "of the last run"


def test_more_partitions_are_a_matter_of_configuring() -> None:
    server = Server()
    server.vhost.declare_stream("s")
    client = server.open()
    wanted = {"kind": "stream", "name": "s", "partitions": 2, "extend": True}
    server.broker.permissions.set_user("guest", grants_of({"/": {"write": ".*"}}, {}, [], []))
    server.broker.logins.permissions_changed("guest")
    assert client.refused(frames.DECLARE, **wanted) == 201
    assert len(server.vhost.stream("s").partitions) == 1
