"""An event bus: parts of a program tell each other what happens, and know nothing of each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from trivium import Broker, Config
from trivium.config import StorageConfig
from trivium_native.client import Client

Listener = Callable[[str, Any], Awaitable[None]]


class EventBus:
    """Events have names such as ``order.paid``; who listens names a pattern: ``order.*``, ``#``."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.listeners: list[asyncio.Task[None]] = []

    async def tell(self, name: str, data: Any) -> None:
        await self._client.publish(json.dumps(data).encode(), routing_key=name)

    async def listen(self, pattern: str, listener: Listener, queue: str) -> None:
        """Call the listener for each event; one that it fails for comes again.

        The queue keeps events while nobody listens: on disk also from one start to the next.
        """
        await self._client.declare_queue(queue)
        await self._client.bind("queue", queue, pattern=pattern)
        self.listeners.append(asyncio.create_task(self._deliver(queue, listener)))

    async def _deliver(self, queue: str, listener: Listener) -> None:
        async with self._client.consume(queue) as deliveries:
            async for delivery in deliveries:
                try:
                    name = delivery.routing_key.decode()
                    await listener(name, json.loads(delivery.payload))
                except Exception as error:
                    print(f"again, since {error}")
                    await deliveries.nack(delivery)
                else:
                    await deliveries.ack(delivery)


@asynccontextmanager
async def event_bus(broker: Broker) -> AsyncIterator[EventBus]:
    async with broker.client() as client:
        bus = EventBus(client)
        yield bus
        for task in bus.listeners:
            task.cancel()
        await asyncio.gather(*bus.listeners, return_exceptions=True)


async def main() -> None:
    done = asyncio.Event()
    failures = iter([ConnectionError("the printer is busy")])

    async def invoice(name: str, data: Any) -> None:
        for failure in failures:
            raise failure
        print(f"invoice for order {data['order']}")
        done.set()

    async def audit(name: str, data: Any) -> None:
        print(f"audit: {name} {data}")

    config = Config(listen={}, storage=StorageConfig(mode="memory"))
    async with Broker(config) as broker, event_bus(broker) as bus:
        await bus.listen("order.paid", invoice, queue="invoices")
        await bus.listen("#", audit, queue="audit")
        await bus.tell("order.placed", {"order": 7})
        await bus.tell("order.paid", {"order": 7})
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
