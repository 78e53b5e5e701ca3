"""The native client against a running broker: each way to receive, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest

from interop.brokers import LOOPBACK
from interop.native import await_records, native_url, open_client, read_all
from trivium.messages.message import AT_MOST_ONCE, Properties
from trivium_native.client import connect
from trivium_native.errors import (
    AuthenticationFailed,
    Fenced,
    NotFound,
    PreconditionFailed,
    Unroutable,
)
from trivium_native.sync import connect as open_sync
from trivium_native.values import Producer, Publication

PATIENCE = 20


async def test_pubsub_reaches_every_subscriber(native_port: int, name: str) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        connect(native_url(native_port)) as one,
        connect(native_url(native_port)) as other,
        one.subscribe(f"{name}.#") as first,
        other.subscribe(f"{name}.*") as second,
        other.subscribe(f"{name}.#", no_local=True) as third,
    ):
        for i in range(100):
            await other.publish(b"%d" % i, routing_key=f"{name}.a", mode=AT_MOST_ONCE)
        await one.publish(b"end", routing_key=f"{name}.a")
        for source in (first, second):
            payloads = [(await anext(source)).payload for _ in range(101)]
            assert payloads == [*(b"%d" % i for i in range(100)), b"end"]
        assert (await anext(third)).payload == b"end", "not what it published itself"


async def test_queue_shares_messages_and_gets_back_what_is_not_settled(
    native_port: int, name: str
) -> None:
    async with asyncio.timeout(PATIENCE), connect(native_url(native_port)) as client:
        await client.declare_queue(name)
        for i in range(20):
            await client.publish(b"%d" % i, exchange="", routing_key=name)
        async with client.consume(name, credit=10) as deliveries:
            held = [await anext(deliveries) for _ in range(10)]
            assert not any(d.is_redelivered for d in held)
            await deliveries.ack(held[4], multiple=True, wait=True)
            await deliveries.nack(held[5], requeue=True)
            await deliveries.nack(held[6], requeue=False)
        async with client.consume(name, no_ack=True) as deliveries:
            rest = [await anext(deliveries) for _ in range(14)]
            assert [int(d.payload) for d in rest] == [5, *range(7, 20)]
            assert [d.is_redelivered for d in rest[:4]] == [True] * 4
        info = await client.declare_queue(name)
        assert info.messages == 0
        await client.delete("queue", name)


async def test_log_is_read_by_offset_again_and_again(native_port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE), connect(native_url(native_port)) as client:
        incarnation = await client.declare_stream(name)
        await client.bind("stream", name, pattern=f"{name}.#")
        properties = Properties(key=b"k", content_type="text/plain", headers=[("a", 1)])
        for i in range(50):
            await client.publish(b"%d" % i, routing_key=f"{name}.{i}", properties=properties)
        for start in (0, 20, 49):
            found: list[int] = []
            async with client.read(name, 0, start, incarnation=incarnation) as batches:
                while len(found) < 50 - start:
                    records = (await anext(batches)).records(start)
                    found += [int(record.payload) for record in records]
            assert found == list(range(start, 50))
        fetched = await client.fetch(name, 0, 49)
        (record,) = fetched.batches[-1].records(49)
        assert (record.offset, record.key, record.content_type) == (49, b"k", "text/plain")
        assert record.routing_key == f"{name}.49".encode()
        await client.commit("g", name, {0: 30})
        assert [(row.committed, row.lag) for row in await client.committed("g", name)] == [(30, 20)]
        await client.delete("stream", name)
        with pytest.raises(NotFound):
            await client.fetch(name, 0, 0)


def test_partitions_follow_the_key(native_port: int, name: str) -> None:
    with open_client(native_port) as client:
        client.declare_stream(name, 4)
        client.publish_batch(
            [
                Publication(
                    payload=b"%d" % i,
                    exchange="",
                    routing_key=name,
                    properties=Properties(key=b"key-%d" % (i % 10)),
                )
                for i in range(200)
            ]
        )
        partition_of: dict[bytes, int] = {}
        for partition in range(4):
            records = read_all(client, name, partition)
            numbers = [int(record.payload) for record in records]
            assert numbers == sorted(numbers)
            for record in records:
                assert record.key is not None
                assert partition_of.setdefault(record.key, partition) == partition
        assert len(partition_of) == 10
        client.delete_stream(name)


def test_idempotent_producer_is_not_repeated_and_fences_older_ones(
    native_port: int, name: str
) -> None:
    with open_client(native_port) as client:
        client.declare_stream(name)
        batch = [Publication(payload=b"%d" % i, exchange="", routing_key=name) for i in range(10)]
        producer = client.open_producer(f"{name}-producer")
        client.publish_batch(batch, producer)
        client.publish_batch(batch, producer)
        assert len(await_records(client, name, 10)) == 10
        assert client.metadata([name])[0].partitions[0].high_watermark == 10
        newer = client.open_producer(f"{name}-producer")
        assert newer == Producer(newer.name, producer.epoch + 1, 10)
        with pytest.raises(Fenced):
            client.publish_batch(batch, Producer(producer.name, producer.epoch, 10))
        client.delete_stream(name)


def test_refusals(native_port: int, name: str) -> None:
    with pytest.raises(AuthenticationFailed):
        open_sync(f"trivium://guest:wrong@{LOOPBACK}:{native_port}")
    with open_client(native_port) as client:
        with pytest.raises(Unroutable):
            client.publish_batch([Publication(payload=b"x", routing_key=name, mandatory=True)])
        with pytest.raises(NotFound):
            client.metadata([name])
        client.declare_stream(name, 2)
        with pytest.raises(PreconditionFailed):
            client.declare_stream(name, 3)
        client.delete_stream(name)
