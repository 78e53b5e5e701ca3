"""aiormq, and aio-pika upon it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import aiormq
import pytest
from aio_pika.exceptions import DeliveryError
from aio_pika.patterns import RPC
from aiormq.abc import AbstractChannel, DeliveredMessage

from interop.amqp import PATIENCE, url

PERSISTENT = aiormq.spec.Basic.Properties(delivery_mode=2)


@asynccontextmanager
async def channel(port: int) -> AsyncIterator[AbstractChannel]:
    connection = await aiormq.connect(url(port))
    try:
        yield await connection.channel(publisher_confirms=True)
    finally:
        await connection.close()


async def test_aiormq_confirms_of_concurrent_publishes(amqp_port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE), channel(amqp_port) as opened:
        await opened.queue_declare(name, durable=True)
        confirmed = await asyncio.gather(
            *(
                opened.basic_publish(b"%d" % i, routing_key=name, properties=PERSISTENT)
                for i in range(300)
            )
        )
        assert {type(c).__name__ for c in confirmed} == {"Ack"}
        found: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
        await opened.basic_qos(prefetch_count=10)
        await opened.basic_consume(name, found.put)
        numbers = []
        for _ in range(300):
            message = await found.get()
            numbers.append(int(message.body))
            assert message.delivery_tag is not None
            await opened.basic_ack(message.delivery_tag)
        assert numbers == list(range(300))
        assert (await opened.queue_delete(name)).message_count == 0


async def test_aiormq_mandatory_message_is_returned(amqp_port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE), channel(amqp_port) as opened:
        with pytest.raises(aiormq.exceptions.DeliveryError) as error:
            await opened.basic_publish(
                b"x", exchange="amq.direct", routing_key=name, mandatory=True
            )
        assert error.value.message is not None


async def test_aiormq_channel_errors_have_their_own_class(amqp_port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE):
        connection = await aiormq.connect(url(amqp_port))
        with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
            await (await connection.channel()).queue_declare(name, passive=True)
        first = await connection.channel()
        await first.queue_declare(name, auto_delete=True)
        with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed):
            await (await connection.channel()).queue_declare(name, durable=True)
        with pytest.raises(aiormq.exceptions.ChannelAccessRefused):
            await (await connection.channel()).queue_declare(f"amq.{name}")
        await first.queue_delete(name)
        await connection.close()


async def test_aio_pika_queue_iterator_and_requeue(amqp_port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE), await aio_pika.connect(url(amqp_port)) as connection:
        opened = await connection.channel()
        await opened.set_qos(1)
        queue = await opened.declare_queue(name)
        exchange = await opened.declare_exchange(f"{name}x", aio_pika.ExchangeType.TOPIC)
        await queue.bind(exchange, "a.#")
        for i in range(20):
            headers: Any = {"number": i}
            await exchange.publish(
                aio_pika.Message(b"%d" % i, headers=headers, content_type="text/plain"), f"a.{i}"
            )
        seen: list[str | None] = []
        async with queue.iterator() as messages:
            async for message in messages:
                if message.body == b"5" and not message.redelivered:
                    await message.reject(requeue=True)
                    continue
                assert message.headers == {"number": len(seen)}
                seen.append(message.routing_key)
                await message.ack()
                if len(seen) == 20:
                    break
        assert seen == [f"a.{i}" for i in range(20)]
        await queue.delete(if_unused=False)
        await exchange.delete()


async def test_aio_pika_publish_to_nowhere_raises(amqp_port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE), await aio_pika.connect(url(amqp_port)) as connection:
        opened = await connection.channel(on_return_raises=True)
        with pytest.raises(DeliveryError):
            await opened.default_exchange.publish(aio_pika.Message(b"x"), name)


async def test_aio_pika_rpc_pattern(amqp_port: int, name: str) -> None:
    async def add(*, one: int, other: int) -> int:
        return one + other

    async with (
        asyncio.timeout(PATIENCE),
        await aio_pika.connect(url(amqp_port)) as serving,
        await aio_pika.connect(url(amqp_port)) as calling,
    ):
        server = await RPC.create(await serving.channel())
        await server.register(name, add, auto_delete=True)
        client = await RPC.create(await calling.channel())
        results = await asyncio.gather(
            *(client.call(name, {"one": i, "other": 100}) for i in range(20))
        )
        assert results == [100 + i for i in range(20)]
        await client.close()
        await server.close()


async def test_aio_pika_robust_connection(amqp_port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE):
        connection = await aio_pika.connect_robust(url(amqp_port))
        opened = await connection.channel()
        queue = await opened.declare_queue(name, auto_delete=True)
        await opened.default_exchange.publish(aio_pika.Message(b"x"), name)
        message = await queue.get()
        assert message is not None
        assert message.body == b"x"
        await message.ack()
        await queue.delete()
        await connection.close()
