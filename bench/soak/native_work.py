"""The native protocol: a pipeline that moves messages from a queue to a stream in transactions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from bench.soak.accounts import Account
from bench.soak.site import Site
from bench.soak.works import Work, pause
from trivium.cli.network import LOOPBACK
from trivium_native.client.client import Client, connect
from trivium_native.client.transaction import Transaction
from trivium_native.values import Publication

_QUEUE: Final = "soak-pipeline"
#: and the group that reads it
_STREAM: Final = "soak-piped"
_PUBLISHER: Final = "soak-pipeline-publisher"
_LEAVES: Final = 0.01


class Pipeline(Work):
    """What enters the queue comes out of the stream once, whoever is cut off in between.

    The publisher is an idempotent producer. The pump settles a delivery and publishes it again in
    one transaction, so that a delivery whose commit was not answered comes again if and only if it
    was not committed.
    """

    def __init__(self, site: Site, draw: random.Random, rate: float) -> None:
        super().__init__(site, draw, rate)
        self._account = Account("pipeline", is_exact=True)
        self.accounts = [self._account]
        #: the number of the producer's first message
        self._first: int | None = None
        self._read = -1

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        async with connect(f"trivium://{LOOPBACK}:{self.site.ports['native']}") as client:
            yield client

    async def prepare(self) -> None:
        async with self._client() as client:
            await client.declare_queue(_QUEUE)
            await client.declare_stream(_STREAM)
        self.keep(self._pump)
        self.keep(self._drink)

    async def run(self, stop: asyncio.Event) -> None:
        await self.repeat(stop, lambda: self._publish(stop))
        # What was under way may be there; nothing else was promised.

    async def close(self) -> None:
        await super().close()
        async with self._client() as client:
            await client.delete("queue", _QUEUE)
            await client.delete("group", _STREAM)
            await client.delete("stream", _STREAM)

    async def _publish(self, stop: asyncio.Event) -> None:
        """Until it leaves. What was not answered is sent again under its number."""
        account = self._account
        async with self._client() as client:
            producer = await client.open_producer(_PUBLISHER)
            if self._first is None:
                self._first = producer.sequence
            while not stop.is_set() and self.draw.random() >= _LEAVES:
                number = account.sent - 1
                if number < 0 or number in account.acknowledged:
                    number = account.begin()
                message = Publication(
                    payload=account.payload(number), exchange="", routing_key=_QUEUE, mode=2
                )
                numbered = replace(producer, sequence=self._first + number)
                await client.publish_batch([message], numbered)
                account.acknowledged.add(number)
                await pause(stop, 1 / self.rate)

    async def _pump(self) -> None:
        async with self._client() as client, client.consume(_QUEUE, credit=20) as deliveries:
            async for delivery in deliveries:
                transaction = Transaction()
                transaction.ack(delivery)
                transaction.publish(
                    Publication(payload=delivery.payload, exchange="", routing_key=_STREAM)
                )
                await client.commit_transaction(transaction)

    async def _drink(self) -> None:
        async with self._client() as client, client.join(_STREAM, [_STREAM]) as consumer:
            async for batch in consumer:
                for record in batch.records():
                    # What was not committed is read again.
                    if record.offset > self._read:
                        self._read = record.offset
                        self._account.take(record.payload)
                await consumer.commit()
