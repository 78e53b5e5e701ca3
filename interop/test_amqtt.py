"""amqtt's client (MQTT 3.1.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from amqtt.client import MQTTClient
from amqtt.mqtt.constants import QOS_0, QOS_1, QOS_2

from interop.brokers import LOOPBACK

PATIENCE = 20
LEVELS = (QOS_0, QOS_1, QOS_2)


@asynccontextmanager
async def connected(port: int, client_id: str, *, clean: bool = True) -> AsyncIterator[MQTTClient]:
    client = MQTTClient(
        client_id=client_id,
        config={"auto_reconnect": False, "keep_alive": 60, "cleansession": clean},
    )
    await client.connect(f"mqtt://{LOOPBACK}:{port}/", cleansession=clean)
    try:
        yield client
    finally:
        await client.disconnect()


@pytest.mark.parametrize("qos", LEVELS)
async def test_messages_arrive_in_order(mqtt_port: int, name: str, qos: int) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        connected(mqtt_port, f"{name}s") as subscriber,
        connected(mqtt_port, f"{name}p") as publisher,
    ):
        assert await subscriber.subscribe([(f"{name}/#", qos)]) == [qos]
        for i in range(50):
            await publisher.publish(f"{name}/é/{i}", b"%d" % i, qos=qos)
        for i in range(50):
            message = await subscriber.deliver_message(timeout_duration=PATIENCE)
            assert message is not None
            assert (message.topic, bytes(message.data), message.qos) == (
                f"{name}/é/{i}",
                b"%d" % i,
                qos,
            )


async def test_retained(mqtt_port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE), connected(mqtt_port, name) as client:
        await client.publish(f"{name}/a", b"kept", qos=QOS_1, retain=True)
        await client.subscribe([(f"{name}/+", QOS_1)])
        message = await client.deliver_message(timeout_duration=PATIENCE)
        assert message is not None
        assert (bytes(message.data), message.publish_packet.retain_flag) == (b"kept", True)
        await client.publish(f"{name}/a", b"", qos=QOS_1, retain=True)


async def test_persistent_session(mqtt_port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE), connected(mqtt_port, f"{name}p") as publisher:
        async with connected(mqtt_port, name, clean=False) as first:
            await first.subscribe([(name, QOS_2)])
        for i in range(10):
            await publisher.publish(name, b"%d" % i, qos=QOS_2)
        async with connected(mqtt_port, name, clean=False) as again:
            found = []
            for _ in range(10):
                message = await again.deliver_message(timeout_duration=PATIENCE)
                assert message is not None
                found.append(int(bytes(message.data)))
            assert sorted(found) == list(range(10))
