"""A member of a group reads a stream, computes, and publishes: exactly once, by transactions.

What is published and how far was read become true together, or not at all. So whoever takes over
after a crash goes on where the last transaction ended.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from trivium import Broker, Config
from trivium.config import StorageConfig
from trivium_native.client import Client
from trivium_native.transaction import Transaction
from trivium_native.values import Publication


async def transform(client: Client, count: int) -> None:
    """Read temperatures in Celsius, and publish them in Fahrenheit, until so many are done."""
    producer = await client.open_producer("transform", transactional=True)
    async with client.join("transform", ["celsius"]) as consumer:
        async for batch in consumer:
            transaction = Transaction(producer)
            for record in batch.records():
                degrees = float(record.payload) * 9 / 5 + 32
                transaction.publish(
                    Publication(payload=b"%.1f" % degrees, exchange="", routing_key="fahrenheit")
                )
                count -= 1
            commits = consumer.offsets()
            transaction.commit_offsets(commits)
            await client.commit_transaction(transaction)
            consumer.committed(commits)
            producer = replace(producer, sequence=producer.sequence + 1)
            if count <= 0:
                return


async def main() -> None:
    config = Config(listen={}, storage=StorageConfig(mode="memory"))
    async with Broker(config) as broker, broker.client() as client:
        await client.declare_stream("celsius")
        await client.declare_queue("fahrenheit")
        for celsius in (0, 21.5, 100):
            await client.publish(f"{celsius}".encode(), exchange="", routing_key="celsius")
        await transform(client, 3)
        async with client.consume("fahrenheit") as deliveries:
            for _ in range(3):
                delivery = await anext(deliveries)
                print(delivery.payload.decode())
                await deliveries.ack(delivery)
        (offset,) = await client.committed("transform", "celsius")
        print(f"read up to {offset.committed}")


if __name__ == "__main__":
    asyncio.run(main())
