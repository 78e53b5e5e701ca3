"""The blocking client against a broker on loopback, from threads as its users have them."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.support.live import TIMEOUT, FakeBroker, running
from trivium.messages.message import Properties
from trivium_native import connect as connect_async
from trivium_native import errors
from trivium_native.client.sync import socket_of
from trivium_native.sync import SyncClient, connect
from trivium_native.transaction import Transaction
from trivium_native.values import Part, Publication
from trivium_native.wire import frames

T = TypeVar("T")


async def in_thread(url: str, work: Callable[[SyncClient], T], *, reconnect: bool = True) -> T:
    def run() -> T:
        with connect(url, timeout=TIMEOUT, reconnect=reconnect) as client:
            return work(client)

    return await asyncio.to_thread(run)


def some(count: int, start: int = 0) -> list[Publication]:
    return [Publication(payload=b"%d" % (start + n), routing_key="a") for n in range(count)]


def make_stream(client: SyncClient) -> str:
    incarnation = client.declare_stream("s")
    client.bind_stream("s", "amq.topic", "#")
    return incarnation


def payloads(client: SyncClient, offset: int = 0) -> list[bytes]:
    fetched = client.fetch("s", 0, offset)
    return [record.payload for batch in fetched.batches for record in batch.records(offset)]


async def test_publish_fetch_commit() -> None:
    def work(client: SyncClient) -> None:
        incarnation = make_stream(client)
        client.publish_batch(some(5))
        (info,) = client.metadata(["s"])
        assert info.incarnation == incarnation
        assert info.partitions[0].high_watermark == 5
        assert payloads(client, 2) == [b"2", b"3", b"4"]
        client.commit("g", "s", {0: 3}, incarnation=incarnation)
        (offset,) = client.committed("g", "s")
        assert (offset.committed, offset.lag) == (3, 2)
        assert client.offset_for_timestamp("s", 0, 0) == 0
        assert client.fetch("s", 0, 5, max_wait=0.01).batches == []
        client.delete_stream("s")
        with pytest.raises(errors.NotFound):
            client.fetch("s", 0, 0)

    async with running() as url:
        await in_thread(url, work)


async def test_publish_many_keeps_the_order() -> None:
    def work(client: SyncClient) -> None:
        make_stream(client)
        client.publish_many(some(7, n * 7) for n in range(60))
        assert payloads(client) == [b"%d" % n for n in range(420)]

    async with running() as url:
        await in_thread(url, work)


async def test_publish_many_raises_what_went_wrong_and_goes_on_being_usable() -> None:
    def work(client: SyncClient) -> None:
        make_stream(client)
        bad = [Publication(payload=b"", exchange="none")]
        with pytest.raises(errors.NotFound):
            client.publish_many([some(1), bad, some(1, 1)])
        assert payloads(client) == [b"0", b"1"]

    async with running() as url:
        await in_thread(url, work)


async def test_an_idempotent_producer() -> None:
    def work(client: SyncClient) -> None:
        make_stream(client)
        producer = client.open_producer("p")
        for _ in range(2):
            client.publish_batch(some(3), producer)
        assert payloads(client) == [b"0", b"1", b"2"]

    async with running() as url:
        await in_thread(url, work)


async def test_a_request_that_would_cost_the_connection_is_not_sent() -> None:
    def work(client: SyncClient) -> None:
        make_stream(client)
        with pytest.raises(errors.InvalidArgument, match="1 to 65536 messages, not 65537"):
            client.publish_batch(some(65_537))
        with pytest.raises(errors.InvalidArgument, match="1 to 65536 messages, not 65537"):
            client.publish_many([some(1), some(65_537), some(1)])
        client.publish_batch([])
        client.publish_many([[], some(1), []])
        client.publish_batch(some(65_536))
        assert client.metadata(["s"])[0].partitions[0].high_watermark == 65_538

    async with running() as url:
        await in_thread(url, work)


async def test_what_is_staged_is_published_with_its_transaction() -> None:
    def work(client: SyncClient) -> None:
        make_stream(client)
        entries = some(2)
        assert client.stage("p", 7, "a", 0, entries)
        assert client.stage("p", 7, "b", 0, entries)
        client.discard_part("p", "b")
        producer = client.open_producer("p", transactional=True)
        transaction = Transaction(replace(producer, sequence=7))
        transaction.commit_parts([Part("a", 1)])
        assert client.commit_transaction(transaction) == 0
        assert payloads(client) == [b"0", b"1"]
        assert not client.stage("p", 7, "c", 0, entries)
        transaction.producer = replace(producer, sequence=8)
        with pytest.raises(errors.NotFound):
            client.commit_transaction(transaction)
        client.delete_producer("p", transactional=True)

    async with running() as url:
        await in_thread(url, work)


async def test_queues_and_properties() -> None:
    def work(client: SyncClient) -> None:
        client.declare_queue("q")
        client.bind_queue("q", "amq.topic", b"a")
        client.publish_batch(
            [Publication(payload=b"", routing_key="a", properties=Properties(message_id="1"))]
        )
        assert client.declare_queue("q").messages == 1

    async with running() as url:
        await in_thread(url, work)


async def test_wrong_credentials() -> None:
    async with running(users=True) as url:
        with pytest.raises(errors.AuthenticationFailed):
            await in_thread(url, lambda client: None)


def test_nobody_listens(unused_tcp_port: int) -> None:
    with pytest.raises(errors.ConnectionFailed):
        connect(f"trivium://127.0.0.1:{unused_tcp_port}")


async def test_nonsense_from_the_broker() -> None:
    async with FakeBroker(struct.pack("<IBQ", 9, 0xEE, 0)) as fake:
        with pytest.raises(errors.RemoteProtocolError):
            await in_thread(fake.url, lambda client: None)


async def test_a_silent_broker_times_out() -> None:
    async with FakeBroker(b"") as fake:
        url = fake.url
        with pytest.raises(errors.ConnectionFailed):
            await asyncio.to_thread(lambda: connect(url, timeout=0.05))


async def test_without_reconnecting_nothing_works_after_an_error_of_the_connection() -> None:
    def work(client: SyncClient) -> None:
        socket_of(client).close()
        for _ in range(2):
            with pytest.raises(errors.ConnectionFailed):
                client.metadata()
        client.close()
        client.close()

    async with running() as url:
        await in_thread(url, work, reconnect=False)


async def test_the_brokers_close_is_told() -> None:
    hello = struct.pack("<IBQ", 9 + 4, frames.CLOSE, 0) + b"\x92\xcd\x01\x92"
    async with FakeBroker(hello + b"\xa0") as fake:
        with pytest.raises(errors.RemoteProtocolError):
            await in_thread(fake.url, lambda client: None)
    body = b"\x92\xcd\x01\x92\xa4stop"
    async with FakeBroker(struct.pack("<IBQ", 9 + len(body), frames.CLOSE, 0) + body) as fake:
        with pytest.raises(errors.ShuttingDown, match="stop"):
            await in_thread(fake.url, lambda client: None)


async def test_a_client_renews_what_it_came_with() -> None:
    def work(client: SyncClient) -> str:
        key = client.add_api_key("guest", expires_ms=int(time.time() * 1000) + 60_000).key
        assert key is not None
        return key

    async with running() as url:
        place = url.removeprefix("trivium://")
        keys = [await in_thread(f"trivium://guest:guest@{place}", work) for _ in range(2)]

        def renew(client: SyncClient) -> None:
            client.renew(keys[1])
            client.declare_stream("s")
            with pytest.raises(errors.AuthenticationFailed):
                client.renew(b"wrong")
            with pytest.raises(errors.ConnectionFailed):
                client.declare_stream("t")

        await in_thread(f"trivium://guest:{keys[0]}@{place}", renew, reconnect=False)
        async with connect_async(f"trivium://guest:{keys[0]}@{place}") as client:
            await client.renew(keys[1])
            with pytest.raises(errors.AuthenticationFailed):
                await client.renew("wrong")


async def test_a_request_is_given_up_after_its_time_and_its_answer_is_no_others() -> None:
    def work(client: SyncClient) -> None:
        make_stream(client)
        with pytest.raises(errors.TimedOut, match=r"no answer within 0\.01 s$"):
            client.within(0.01).fetch("s", 0, 0, max_wait=0.1)
        assert client.within(TIMEOUT).metadata(["s"])[0].name == "s"
        # The answer that nobody waits for comes before this one.
        assert client.fetch("s", 0, 0, max_wait=0.3).batches == []
        assert client.metadata(["s"])[0].name == "s"

    async with running() as url:
        await in_thread(url, work, reconnect=False)


async def test_one_message_is_published_as_by_the_other_client() -> None:
    def work(client: SyncClient) -> None:
        make_stream(client)
        client.publish(b"one", routing_key="a")
        producer = client.open_producer("p")
        client.publish_many([some(3), some(2, 3)], producer)
        client.publish_many([some(3), some(2, 3), some(1, 5)], producer)
        payloads = [r.payload for batch in client.fetch("s", 0, 0).batches for r in batch.records()]
        assert payloads == [b"one", *(b"%d" % n for n in range(6))]

    async with running() as url:
        await in_thread(url, work)
