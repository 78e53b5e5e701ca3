"""Off-the-shelf clients against a broker on sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiormq
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from trivium import Broker, Config, Listen
from trivium.config import StorageConfig


@pytest.fixture
async def port() -> AsyncIterator[int]:
    config = Config(listen={"amqp": Listen(0)}, storage=StorageConfig(mode="memory"))
    async with Broker(config) as broker:
        yield int(broker.listeners["amqp"].rsplit(":", 1)[1])


def connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=30))


def check_pika(port: int) -> None:
    connection = connect(port)
    channel: BlockingChannel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    assert queue is not None
    properties = pika.BasicProperties(headers={"k": [1, "x", None, {"y": True}]}, delivery_mode=2)
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number, properties, mandatory=True)
    channel.basic_qos(prefetch_count=10)
    found = []
    for method, got, body in channel.consume(queue):
        assert got.headers == {"k": [1, "x", None, {"y": True}]}
        found.append(int(body))
        assert method.delivery_tag is not None
        channel.basic_ack(method.delivery_tag)
        if len(found) == 100:
            break
    assert found == list(range(100))
    channel.cancel()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"x", mandatory=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("missing", passive=True)
    assert caught.value.reply_code == 404
    assert caught.value.reply_text == "NOT_FOUND - no queue 'missing' in vhost '/'"
    connection.close()


async def test_pika(port: int) -> None:
    await asyncio.to_thread(check_pika, port)


def check_large(port: int) -> None:
    connection = connect(port)
    channel: BlockingChannel = connection.channel()
    channel.queue_declare("large")
    body = bytes(range(256)) * 4096 * 8
    channel.basic_publish("", "large", body)
    _, _, got = channel.basic_get("large", auto_ack=True)
    assert got == body
    connection.close()


async def test_pika_large_message(port: int) -> None:
    await asyncio.to_thread(check_large, port)


def check_wrong_password(port: int) -> None:
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port, credentials=pika.PlainCredentials("guest", "wrong")
    )
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(parameters)


async def test_pika_wrong_password(port: int) -> None:
    await asyncio.to_thread(check_wrong_password, port)


async def test_aiormq(port: int) -> None:
    connection = await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
    channel = await connection.channel(publisher_confirms=True)
    declared = await channel.queue_declare("q", auto_delete=True)
    assert declared.queue == "q"
    await channel.basic_qos(prefetch_count=50)
    found: list[int] = []
    done = asyncio.Event()

    async def receive(message: aiormq.abc.DeliveredMessage) -> None:
        found.append(int(message.body))
        assert message.delivery_tag is not None
        await channel.basic_ack(message.delivery_tag)
        if len(found) == 200:
            done.set()

    await channel.basic_consume("q", receive)
    await asyncio.gather(
        *(channel.basic_publish(b"%d" % number, routing_key="q") for number in range(200))
    )
    await asyncio.wait_for(done.wait(), 30)
    assert sorted(found) == list(range(200))
    await connection.close()


async def test_shutdown_tells_the_clients() -> None:
    config = Config(listen={"amqp": Listen(0)}, storage=StorageConfig(mode="memory"))
    async with Broker(config) as broker:
        connection = await aiormq.connect(f"amqp://guest:guest@{broker.listeners['amqp']}/")
        closing = connection.closing
    with pytest.raises(aiormq.exceptions.ConnectionClosed, match="CONNECTION_FORCED"):
        await closing
