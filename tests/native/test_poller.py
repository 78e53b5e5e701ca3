"""The clients' pollers, and subscriptions that make their queues, against a running broker."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.live import TIMEOUT, running
from trivium_native import connect
from trivium_native.errors import NotFound, TooManyRequests, UnknownDelivery
from trivium_native.sync import connect as connect_sync
from trivium_native.values import OwnQueue

OWN = OwnQueue("a.#", delivery="at-least-once", expires=60.0)


async def test_a_poller_takes_what_it_asks_for_and_settles_it() -> None:
    async with running() as url, asyncio.timeout(TIMEOUT), connect(url) as client:
        async with client.poller("mine", own=OWN, credit=3) as poller:
            assert await poller.poll() == []
            for number in range(4):
                await client.publish(b"%d" % number, routing_key="a.b")
            first = await poller.poll(2)
            assert [each.payload for each in first] == [b"0", b"1"]
            (third,) = await poller.poll(max_wait=5.0)
            with pytest.raises(TooManyRequests):
                await poller.poll()
            await poller.ack(first[1], multiple=True, wait=True)
            await poller.nack(third)
            # Iterating takes one at a time, and none ahead.
            again = await anext(poller)
            assert (again.payload, again.is_redelivered) == (b"2", True)
            await poller.ack(again, wait=True)
            with pytest.raises(UnknownDelivery):
                await poller.ack(again, wait=True)
        # What is published while nobody polls is there for the next one.
        await client.publish(b"4", routing_key="a")
        async with client.consume("mine", own=OWN, ack_timeout=60.0) as deliveries:
            assert [(await anext(deliveries)).payload for _ in range(2)] == [b"3", b"4"]


async def test_a_poll_waits_for_what_comes() -> None:
    async with running() as url, asyncio.timeout(TIMEOUT), connect(url) as client:
        await client.declare_queue("q")
        async with client.poller("q") as poller:
            asked = asyncio.create_task(poller.poll(max_wait=TIMEOUT))
            await client.publish(b"x", exchange="", routing_key="q")
            assert [each.payload for each in await asked] == [b"x"]
            asked = asyncio.create_task(poller.poll(max_wait=TIMEOUT))
            await client.delete("queue", "q")
            with pytest.raises(NotFound):
                await asked


async def test_a_program_that_blocks_polls_too() -> None:
    def work(url: str) -> None:
        with connect_sync(url) as client, client.poller("mine", own=OWN) as poller:
            for number in range(3):
                client.publish(b"%d" % number, routing_key="a.b")
            first = poller.poll(2, max_wait=5.0)
            assert [each.payload for each in first] == [b"0", b"1"]
            poller.ack(first[0], wait=True)
            poller.nack(first[1])
            assert [next(poller).payload for _ in range(2)] == [b"1", b"2"]
            assert poller.poll() == []

    async with running() as url, asyncio.timeout(TIMEOUT):
        await asyncio.to_thread(work, url)
