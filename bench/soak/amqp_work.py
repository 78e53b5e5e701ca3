"""AMQP by aiormq: a queue of orders with priorities, dead letters, expiry and transactions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage, FieldValue

from bench.soak.accounts import Account
from bench.soak.site import Site
from bench.soak.works import GONE, Work, pause
from trivium.cli.network import LOOPBACK, Network

ORDERS: Final = "soak.orders"
DEAD: Final = "soak.dead"
EXPIRING: Final = "soak.expiring"
_QUEUES: Final[dict[str, dict[str, FieldValue]]] = {
    ORDERS: {
        "x-max-priority": 5,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": DEAD,
    },
    EXPIRING: {
        "x-message-ttl": 500,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": DEAD,
    },
    DEAD: {},
}
_TOGETHER: Final = 3
#: Of what a worker gets: what it rejects, and what it puts back.
_REJECTED: Final = 0.05
_REQUEUED: Final = 0.15
_EXPIRING: Final = 0.1
_ROLLED_BACK: Final = 0.2
_LEAVES: Final = 0.01
_ANSWER_SECONDS: Final = 30.0


@asynccontextmanager
async def channel(port: int, *, confirms: bool = True) -> AsyncIterator[AbstractChannel]:
    """One of a connection of its own, which is closed politely."""
    async with asyncio.timeout(_ANSWER_SECONDS):
        connection = await aiormq.connect(f"amqp://guest:guest@{LOOPBACK}:{port}/")
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            opened = await connection.channel(publisher_confirms=confirms)
        yield opened
    except Exception as error:
        # It may be any where the connection is lost, and is a bare one where that has just begun.
        if connection.is_closed or type(error) is Exception:
            raise ConnectionResetError(repr(error)) from error
        raise
    finally:
        await connection.close()


class Orders(Work):
    """Orders that workers take, put back, reject and let expire; whatever happens, each ends."""

    def __init__(self, site: Site, draw: random.Random, rate: float) -> None:
        super().__init__(site, draw, rate)
        self._orders = Account("orders")
        self._together = Account("orders in transactions")
        self.accounts = [self._orders, self._together]

    async def prepare(self) -> None:
        async with channel(self.site.broker.ports["amqp"]) as opened:
            for name, arguments in _QUEUES.items():
                await opened.queue_declare(name, durable=True, arguments=arguments)
        self.keep(self._work)
        self.keep(self._bury)

    async def run(self, stop: asyncio.Event) -> None:
        await asyncio.gather(
            self.repeat(stop, lambda: self._publish(stop)),
            self.repeat(stop, lambda: self._publish_together(stop)),
        )

    async def close(self) -> None:
        await super().close()
        async with channel(self.site.broker.ports["amqp"]) as opened:
            for name in _QUEUES:
                await opened.queue_delete(name)

    def _properties(self) -> aiormq.spec.Basic.Properties:
        return aiormq.spec.Basic.Properties(delivery_mode=2, priority=self.draw.randrange(6))

    async def _publish(self, stop: asyncio.Event) -> None:
        """With confirms, until it leaves."""
        account = self._orders
        async with channel(self.site.ports["amqp"]) as opened:
            while not stop.is_set() and self.draw.random() >= _LEAVES:
                number = account.begin()
                queue = EXPIRING if self.draw.random() < _EXPIRING else ORDERS
                confirmed = await opened.basic_publish(
                    account.payload(number),
                    routing_key=queue,
                    properties=self._properties(),
                    timeout=_ANSWER_SECONDS,
                )
                if isinstance(confirmed, aiormq.spec.Basic.Ack):
                    account.acknowledged.add(number)
                await pause(stop, 1 / self.rate)

    async def _publish_together(self, stop: asyncio.Event) -> None:
        """In transactions, some of which are rolled back."""
        account = self._together
        async with channel(self.site.ports["amqp"], confirms=False) as opened:
            await opened.tx_select(timeout=_ANSWER_SECONDS)
            while not stop.is_set() and self.draw.random() >= _LEAVES:
                numbers = [account.begin() for _ in range(_TOGETHER)]
                for number in numbers:
                    await opened.basic_publish(
                        account.payload(number), routing_key=ORDERS, properties=self._properties()
                    )
                if self.draw.random() < _ROLLED_BACK:
                    for number in numbers:
                        account.withdrawn.add(number)
                    await opened.tx_rollback(timeout=_ANSWER_SECONDS)
                else:
                    await opened.tx_commit(timeout=_ANSWER_SECONDS)
                    for number in numbers:
                        account.acknowledged.add(number)
                await pause(stop, _TOGETHER / self.rate)

    def _account_of(self, body: bytes) -> Account | None:
        for account in self.accounts:
            if account.number_of(body) is not None:
                return account
        self._orders.take(body)
        return None

    async def _consume(self, queue: str, *, ends_all: bool) -> None:
        """Settle what comes until the connection is lost."""
        async with channel(self.site.ports["amqp"]) as opened:
            await opened.basic_qos(prefetch_count=50)

            async def settle(message: DeliveredMessage) -> None:
                await self._settle(opened, message, ends_all=ends_all)

            await opened.basic_consume(queue, settle, timeout=_ANSWER_SECONDS)
            await asyncio.wait({opened.connection.closing})

    async def _settle(
        self, opened: AbstractChannel, message: DeliveredMessage, *, ends_all: bool
    ) -> None:
        tag = message.delivery_tag
        account = self._account_of(message.body)
        assert tag is not None
        if account is None:
            await opened.basic_ack(tag)
            return
        number = account.number_of(message.body)
        # One whose acknowledgement was lost has come here before.
        is_known = number in account.ledger.seen if number is not None else False
        drawn = self.draw.random()
        try:
            if ends_all or is_known or drawn >= _REQUEUED:
                account.take(message.body, is_redelivered=bool(message.redelivered))
                await opened.basic_ack(tag)
            else:
                await opened.basic_reject(tag, requeue=drawn >= _REJECTED)
        except GONE:
            # The connection is lost, and the message comes again.
            return

    async def _work(self) -> None:
        await self._consume(ORDERS, ends_all=False)

    async def _bury(self) -> None:
        await self._consume(DEAD, ends_all=True)


class AmqpVisitors(Work):
    """Clients that come for a moment: a queue of their own, a message, and away."""

    async def run(self, stop: asyncio.Event) -> None:
        await self.repeat(stop, lambda: self._visit(stop))

    async def _visit(self, stop: asyncio.Event) -> None:
        network = Network()
        network.broker_port = self.site.broker.ports["amqp"]
        port = await network.start()
        try:
            async with channel(port) as opened:
                declared = await opened.queue_declare("", exclusive=True)
                assert declared.queue is not None
                await opened.queue_bind(declared.queue, "amq.topic", f"visit.{declared.queue}")
                await opened.basic_publish(
                    b"here", exchange="amq.topic", routing_key=f"visit.{declared.queue}"
                )
                await opened.basic_get(declared.queue)
                await pause(stop, self.draw.uniform(0, 1))
                if self.draw.random() < 0.5:
                    network.cut()
        finally:
            await network.close()
