"""The native protocol over a broker that is killed: publish batches, streams, offsets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from interop.amqp import bodies, channel
from interop.brokers import TriviumProcess
from interop.mqtt import PATIENCE
from interop.native import native_url, open_client, read_all
from tests.crash.kills import Kills
from tests.crash.publishers import BATCH, batch
from trivium_native.client import connect
from trivium_native.errors import NativeError
from trivium_native.sync import SyncClient
from trivium_native.values import Publication


def while_killed(broker: TriviumProcess, kills: Kills, work: Callable[[SyncClient], bool]) -> None:
    """Repeat ``work`` with a client until it returns False, with new clients as the broker dies."""
    restarts = threading.Thread(target=kills.restart_each)
    restarts.start()
    goes_on = True
    while goes_on:
        assert kills.is_up.wait(PATIENCE)
        try:
            with open_client(broker.ports["native"]) as client:
                while goes_on:
                    goes_on = work(client)
        except NativeError:
            continue
    restarts.join()


@pytest.mark.parametrize("target", ["queue", "stream"])
def test_ack_means_the_whole_batch_is_kept(broker: TriviumProcess, seed: int, target: str) -> None:
    count = 300
    kills = Kills(broker, seed, count)
    with open_client(broker.ports["native"]) as client:
        if target == "queue":
            client.declare_queue("crash")
            client.bind_queue("crash", "amq.topic", "crash.#")
        else:
            client.declare_stream("crash")
            client.bind_stream("crash", "amq.topic", "crash.#")
    acknowledged: list[int] = []
    sent = 0

    def publish(client: SyncClient) -> bool:
        nonlocal sent
        number = sent
        sent += BATCH
        client.publish(batch(number))
        acknowledged.append(number)
        kills.acknowledged()
        return len(acknowledged) < count

    while_killed(broker, kills, publish)
    if target == "queue":
        with channel(broker.ports["amqp"]) as opened:
            found = [int(body) for body in bodies(opened, "crash")]
    else:
        with open_client(broker.ports["native"]) as client:
            records = read_all(client, "crash")
        assert [r.offset for r in records] == list(range(len(records))), "offsets have no gaps"
        found = [int(record.payload) for record in records]
    batches = {number // BATCH * BATCH for number in found}
    assert found == [first + i for first in sorted(batches) for i in range(BATCH)], "whole batches"
    assert batches >= set(acknowledged)
    assert len(batches) <= len(acknowledged) + kills.kills


def test_idempotent_producer_publishes_exactly_once(broker: TriviumProcess, seed: int) -> None:
    """What was not answered is sent again with its numbers, by a new epoch of the producer."""
    count = 300
    kills = Kills(broker, seed, count)
    with open_client(broker.ports["native"]) as client:
        client.declare_stream("crash")
        client.bind_stream("crash", "amq.topic", "crash.#")
    next_number = 0

    def publish(client: SyncClient) -> bool:
        nonlocal next_number
        # The broker says from where on it has nothing.
        producer = client.open_producer("meter")
        assert next_number <= producer.sequence <= next_number + BATCH
        next_number = producer.sequence
        while next_number < count * BATCH:
            client.publish(batch(next_number), producer)
            next_number += BATCH
            producer = type(producer)(producer.name, producer.epoch, next_number)
            kills.acknowledged()
        return False

    while_killed(broker, kills, publish)
    with open_client(broker.ports["native"]) as client:
        found = [int(record.payload) for record in read_all(client, "crash")]
    assert found == list(range(count * BATCH)), "each once and in order"


def test_commit_means_the_offset_is_kept(broker: TriviumProcess, seed: int) -> None:
    count = 400
    kills = Kills(broker, seed, count)
    with open_client(broker.ports["native"]) as client:
        incarnation = client.declare_stream("crash", 2)
        client.publish(
            [Publication(payload=b"x", exchange="", routing_key="crash") for _ in range(1000)]
        )
        ends = [p.high_watermark for p in client.metadata(["crash"])[0].partitions]
        assert sum(ends) == 1000
    committed = tried = 0

    def commit(client: SyncClient) -> bool:
        nonlocal committed, tried
        found = client.committed("readers", "crash")
        assert found[0].partition == 0
        kept = found[0].committed or 0
        assert committed <= kept <= tried, "as committed, or as tried before the crash"
        while committed < count:
            tried = committed + 1
            client.commit("readers", "crash", {0: tried}, incarnation=incarnation)
            committed = tried
            kills.acknowledged()
        return False

    while_killed(broker, kills, commit)
    broker.restart()
    with open_client(broker.ports["native"]) as client:
        (info,) = client.metadata(["crash"])
        assert info.incarnation == incarnation, "it is the same stream"
        assert [p.high_watermark for p in info.partitions] == ends
        assert [row.committed for row in client.committed("readers", "crash")] == [count, None]


async def test_ack_of_a_delivery_means_that_it_stays_away(broker: TriviumProcess) -> None:
    with open_client(broker.ports["native"]) as client:
        client.declare_queue("crash")
        client.bind_queue("crash", "amq.topic", "crash.#")
        for number in (0, 10):
            client.publish(batch(number))
    with suppress(NativeError):
        async with (
            connect(native_url(broker.ports["native"])) as consumer,
            consumer.consume("crash") as deliveries,
        ):
            held = [await anext(deliveries) for _ in range(20)]
            await deliveries.ack(held[7], multiple=True, wait=True)
            await asyncio.to_thread(broker.restart)
    async with (
        asyncio.timeout(PATIENCE),
        connect(native_url(broker.ports["native"])) as consumer,
        consumer.consume("crash") as deliveries,
    ):
        again = [await anext(deliveries) for _ in range(12)]
        assert [int(delivery.payload) for delivery in again] == list(range(8, 20))
        assert all(delivery.is_redelivered for delivery in again)
