"""Native clients that stay while the broker is killed and started again: exact counts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from interop.brokers import TriviumProcess
from interop.mqtt import PATIENCE
from interop.native import native_url, open_client, read_all
from tests.crash.kills import Kills
from tests.crash.publishers import BATCH, batch
from trivium_native.client import connect
from trivium_native.errors import Interrupted, StaleMember, UnknownDelivery
from trivium_native.sync import connect as connect_sync
from trivium_native.values import Publication, Reconnect

FAST = Reconnect(first=0.01, longest=0.1)


@asynccontextmanager
async def killed(broker: TriviumProcess, kills: Kills) -> AsyncIterator[None]:
    """The broker is killed and started again while the block lasts; all kills happen in it."""
    restarts = threading.Thread(target=kills.restart_each)
    restarts.start()
    async with asyncio.timeout(2 * PATIENCE):
        yield
    await asyncio.to_thread(restarts.join)


async def acknowledged(kills: Kills) -> None:
    await asyncio.to_thread(kills.acknowledged)


def url_of(broker: TriviumProcess) -> str:
    return native_url(broker.ports["native"])


async def test_a_producer_goes_on_by_itself_and_doubles_nothing(
    broker: TriviumProcess, seed: int
) -> None:
    """The same client, the same producer, the same numbers, several requests under way."""
    count = 300
    kills = Kills(broker, seed, count)
    with open_client(broker.ports["native"]) as client:
        client.declare_stream("crash")
        client.bind_stream("crash", "amq.topic", "crash.#")
    async with connect(url_of(broker), reconnect=FAST) as client, killed(broker, kills):
        producer = await client.open_producer("meter")
        under_way: list[asyncio.Task[None]] = []
        for number in range(0, count * BATCH, BATCH):
            publishing = client.publish_batch(batch(number), replace(producer, sequence=number))
            under_way.append(asyncio.create_task(publishing))
            if len(under_way) == 4:
                await under_way.pop(0)
                await acknowledged(kills)
        for task in under_way:
            await task
            await acknowledged(kills)
        assert await client.open_producer("meter") == replace(
            producer, epoch=producer.epoch + 1, sequence=count * BATCH
        )
    with open_client(broker.ports["native"]) as client:
        found = [int(record.payload) for record in read_all(client, "crash")]
    assert found == list(range(count * BATCH)), "each once and in order"


async def test_unconfirmed_publishes_without_numbers_are_told(
    broker: TriviumProcess, seed: int
) -> None:
    count = 300
    kills = Kills(broker, seed, count)
    with open_client(broker.ports["native"]) as client:
        client.declare_stream("crash")
        client.bind_stream("crash", "amq.topic", "crash.#")
    confirmed: list[int] = []
    doubtful: list[int] = []
    async with connect(url_of(broker), reconnect=FAST) as client, killed(broker, kills):
        number = 0
        while len(confirmed) < count:
            try:
                await client.publish_batch(batch(number))
            except Interrupted:
                doubtful.append(number)
            else:
                confirmed.append(number)
                await acknowledged(kills)
            number += BATCH
    assert len(doubtful) <= kills.kills
    with open_client(broker.ports["native"]) as client:
        found = Counter(int(record.payload) for record in read_all(client, "crash"))
    assert set(found.values()) == {1}
    firsts = {number // BATCH * BATCH for number in found}
    assert set(confirmed) <= firsts <= {*confirmed, *doubtful}


async def test_a_consumer_goes_on_and_settles_each_message(
    broker: TriviumProcess, seed: int
) -> None:
    """What was settled durably does not come again; all else does, flagged."""
    count = 300
    kills = Kills(broker, seed, count)
    with open_client(broker.ports["native"]) as setup:
        setup.declare_queue("crash")
        for number in range(0, count, BATCH):
            setup.publish_batch([_to_queue(n) for n in range(number, number + BATCH)])
    settled: set[int] = set()
    doubtful: set[int] = set()
    async with (
        connect(url_of(broker), reconnect=FAST) as client,
        killed(broker, kills),
        client.consume("crash", credit=20) as deliveries,
    ):
        while len(settled | doubtful) < count:
            delivery = await anext(deliveries)
            number = int(delivery.payload)
            assert number not in settled, "settled, and here again"
            assert number not in doubtful or delivery.is_redelivered
            try:
                await deliveries.ack(delivery, wait=True)
            except (Interrupted, UnknownDelivery):
                doubtful.add(number)
            else:
                settled.add(number)
                doubtful.discard(number)
            await acknowledged(kills)
    assert settled | doubtful == set(range(count))
    with open_client(broker.ports["native"]) as setup:
        assert setup.declare_queue("crash").messages <= len(doubtful) <= kills.kills


def _to_queue(number: int) -> Publication:
    return Publication(payload=b"%d" % number, exchange="", routing_key="crash")


async def test_a_member_goes_on_and_commits_exactly_what_it_read(
    broker: TriviumProcess, seed: int
) -> None:
    """Records and offset in one transaction: each counts once, whatever came again."""
    count = 300
    kills = Kills(broker, seed, count)
    with open_client(broker.ports["native"]) as client:
        client.declare_stream("source", 2)
        client.declare_queue("out")
        for number in range(count):
            client.publish_batch(
                [Publication(payload=b"%d" % number, exchange="", routing_key="source")]
            )
    moved: list[int] = []
    async with connect(url_of(broker), reconnect=FAST) as client, killed(broker, kills):
        producer = await client.open_producer("mover", transactional=True)
        async with client.join("g", ["source"], session_timeout=1.0) as consumer:
            while len(moved) < count:
                batch = await anext(consumer)
                numbers = [int(record.payload) for record in batch.records()]
                commits = consumer.offsets()
                try:
                    async with client.transaction(producer) as transaction:
                        transaction.publish(
                            *(
                                Publication(payload=b"%d" % n, exchange="", routing_key="out")
                                for n in numbers
                            )
                        )
                        transaction.commit_offsets(commits)
                except StaleMember:
                    # Nothing of it was done, and it comes again.
                    continue
                consumer.committed(commits)
                producer = replace(producer, sequence=producer.sequence + 1)
                moved += numbers
                for _ in numbers:
                    await acknowledged(kills)
    assert sorted(moved) == list(range(count))
    with open_client(broker.ports["native"]) as client:
        assert client.declare_queue("out").messages == count
        assert sum(each.lag for each in client.committed("g", "source")) == 0


def test_the_blocking_client_goes_on_by_itself_and_doubles_nothing(
    broker: TriviumProcess, seed: int
) -> None:
    count = 300
    kills = Kills(broker, seed, count)
    with connect_sync(url_of(broker), reconnect=FAST) as client:
        client.declare_stream("crash")
        client.bind_stream("crash", "amq.topic", "crash.#")
        producer = client.open_producer("meter")
        restarts = threading.Thread(target=kills.restart_each)
        restarts.start()
        for number in range(0, count * BATCH, BATCH):
            client.publish_batch(batch(number), replace(producer, sequence=number))
            kills.acknowledged()
        restarts.join()
        found = [int(record.payload) for record in read_all(client, "crash")]
    assert found == list(range(count * BATCH)), "each once and in order"
