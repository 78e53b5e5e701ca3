"""A call from MQTT 5 to a worker on AMQP: response topic and correlation data lead the answer back.

The device says where it wants its answer. The worker finds that in a header, and publishes there.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import aiomqtt
from aio_pika.abc import AbstractIncomingMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from trivium import Broker, Config, Listen
from trivium.config import StorageConfig


async def work(url: str, is_ready: asyncio.Event) -> None:
    """Answer calls with the square of what is in them."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        topics = await channel.get_exchange("amq.topic")
        calls = await channel.declare_queue("squares")
        await calls.bind(topics, "call.square")

        async def answer(call: AbstractIncomingMessage) -> None:
            async with call.process():
                reply = aio_pika.Message(
                    b"%d" % int(call.body) ** 2, correlation_id=call.correlation_id
                )
                await topics.publish(reply, str(call.headers["x-reply-to-topic"]))

        await calls.consume(answer)
        is_ready.set()
        await asyncio.Future()


async def call(host: str, port: int, number: int) -> tuple[bytes, bytes]:
    """What is answered to a device, and the correlation data of the answer."""
    async with aiomqtt.Client(host, port, protocol=aiomqtt.ProtocolVersion.V5) as device:
        await device.subscribe("answers/device-1", qos=1)
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = "answers/device-1"
        properties.CorrelationData = b"call-%d" % number
        await device.publish("call/square", b"%d" % number, qos=1, properties=properties)
        answer = await anext(device.messages)
        received: Any = answer.properties
        return answer.payload, received.CorrelationData


async def main() -> None:
    listen = {"mqtt": Listen(0), "amqp": Listen(0)}
    async with Broker(Config(listen=listen, storage=StorageConfig(mode="memory"))) as broker:
        is_ready = asyncio.Event()
        worker = asyncio.create_task(
            work(f"amqp://guest:guest@{broker.listeners['amqp']}/", is_ready)
        )
        await is_ready.wait()
        host, _, port = broker.listeners["mqtt"].rpartition(":")
        payload, correlation = await call(host, int(port), 12)
        print(f"{correlation.decode()}: {payload.decode()}")
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
