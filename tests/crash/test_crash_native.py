"""The native protocol over a broker that is killed: publish batches, streams, offsets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from interop.amqp import bodies, channel
from interop.brokers import TriviumProcess
from interop.mqtt import PATIENCE
from interop.native import native_url, open_client, read_all
from tests.crash.kills import Kills
from tests.crash.publishers import BATCH, batch
from trivium_native.client import Client, connect
from trivium_native.errors import NativeError, UnknownDelivery
from trivium_native.sync import SyncClient
from trivium_native.sync import connect as connect_sync
from trivium_native.transaction import Transaction
from trivium_native.values import OffsetCommit, Publication


def connect_as(broker: TriviumProcess, user: str) -> SyncClient:
    """A client of ``USER:PASSWORD@``, or of nobody."""
    url = native_url(broker.ports["native"])
    return connect_sync(url.replace("://", f"://{user}"))


def while_killed(
    broker: TriviumProcess, kills: Kills, work: Callable[[SyncClient], bool], user: str = ""
) -> None:
    """Repeat ``work`` with a client until it returns False, with new clients as the broker dies."""
    restarts = threading.Thread(target=kills.restart_each)
    restarts.start()
    goes_on = True
    while goes_on:
        assert kills.is_up.wait(PATIENCE)
        try:
            with connect_as(broker, user) as client:
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
        client.publish_batch(batch(number))
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
            client.publish_batch(batch(next_number), producer)
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
        client.publish_batch(
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


def to(name: str, payload: bytes) -> Publication:
    """A message for a queue or a stream by its name."""
    return Publication(payload=payload, exchange="", routing_key=name)


#: messages that a transaction takes
TAKEN = 2


@pytest.mark.parametrize("broker", ["plain", "encrypted"], indirect=True)
async def test_transactions_move_messages_exactly_once(broker: TriviumProcess, seed: int) -> None:
    """Each is there or not as a whole: settlements, messages, a group's offset, its number."""
    count = 300
    port = broker.ports["native"]
    kills = Kills(broker, seed, count)
    with open_client(port) as setup:
        for name in ("in", "out"):
            setup.declare_queue(name)
        for name in ("source", "log"):
            setup.declare_stream(name)
        for first in range(0, count * TAKEN, BATCH):
            setup.publish_batch(
                [
                    to(name, b"%d" % number)
                    for number in range(first, first + BATCH)
                    for name in ("in", "source")
                ]
            )
    committed = generation = 0
    doubtful: Transaction | None = None
    seen: set[int] = set()

    async def move(client: Client) -> None:
        nonlocal committed, doubtful, generation
        if doubtful is not None:
            with suppress(UnknownDelivery):
                await client.commit_transaction(doubtful)
                committed += 1
            doubtful = None
        producer = await client.open_producer("mover", transactional=True)
        assert producer.sequence == committed
        (kept,) = await client.committed("movers", "source")
        assert (kept.committed or 0) == committed * TAKEN
        holder = await client.join_exclusively("movers", "mover")
        assert holder.generation > generation, "who held it before the crash is fenced"
        generation = holder.generation
        async with client.consume("in", credit=20) as deliveries:
            while committed < count:
                end = (committed + 1) * TAKEN
                async with asyncio.timeout(PATIENCE):
                    taken = [await anext(deliveries) for _ in range(TAKEN)]
                numbers = [int(delivery.payload) for delivery in taken]
                assert numbers == list(range(end - TAKEN, end)), "nothing settled is back"
                assert all(d.is_redelivered for d in taken if int(d.payload) in seen)
                seen.update(numbers)
                transaction = Transaction(replace(producer, sequence=committed))
                for delivery in taken:
                    transaction.ack(delivery)
                    for name in ("out", "log"):
                        transaction.publish(to(name, delivery.payload))
                offsets = OffsetCommit("movers", "source", {0: end}, membership=holder)
                transaction.commit_offsets([offsets])
                doubtful = transaction
                await client.commit_transaction(transaction)
                doubtful = None
                committed += 1
                kills.acknowledged()

    restarts = threading.Thread(target=kills.restart_each)
    restarts.start()
    while committed < count:
        assert await asyncio.to_thread(kills.is_up.wait, PATIENCE)
        with suppress(NativeError):
            async with connect(native_url(port)) as client:
                await move(client)
    restarts.join()
    with channel(broker.ports["amqp"]) as opened:
        assert bodies(opened, "in") == []
        assert [int(body) for body in bodies(opened, "out")] == list(range(count * TAKEN))
    with open_client(port) as reader:
        moved = [int(record.payload) for record in read_all(reader, "log")]
        assert moved == list(range(count * TAKEN))
        assert [row.committed for row in reader.committed("movers", "source")] == [count * TAKEN]


async def test_ack_of_a_delivery_means_that_it_stays_away(broker: TriviumProcess) -> None:
    with open_client(broker.ports["native"]) as client:
        client.declare_queue("crash")
        client.bind_queue("crash", "amq.topic", "crash.#")
        for number in (0, 10):
            client.publish_batch(batch(number))
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


def test_an_acknowledged_change_of_users_and_permissions_is_kept(
    broker: TriviumProcess, seed: int
) -> None:
    """Each user is added, gets a tag, a key, permissions and a role; every third one goes again."""
    count = 360
    kills = Kills(broker, seed, count)
    users: dict[str, dict[str, Any] | None] = {}
    keys: set[str] = set()
    number = 0

    def change(client: SyncClient) -> bool:
        nonlocal number
        name = f"user{number:03}"
        number += 1
        known: dict[str, Any] = {"tags": [], "permissions": {}, "roles": []}

        def acknowledged(**facts: Any) -> None:
            known.update(facts)
            users[name] = dict(known)
            kills.acknowledged()

        users[name] = None
        client.add_user(name, "password")
        acknowledged()
        users[name] = None
        client.set_user_tags(name, ["a", "b"])
        acknowledged(tags=["a", "b"])
        key = client.add_api_key(name).id
        kills.acknowledged()
        for pattern in ("^a", f"^{name}"):
            users[name] = None
            patterns = {"configure": "", "write": pattern, "read": pattern}
            client.manage_permissions("set", {"user": name, "vhost": "/", **patterns})
            acknowledged(permissions={"/": patterns})
        users[name] = None
        client.manage_permissions("grant", {"user": name, "role": "reader"})
        acknowledged(roles=["reader"])
        if is_third(name):
            client.delete_user(name)
            del users[name]
            kills.acknowledged()
        else:
            keys.add(key)
        return number < count // 6 or kills.count < count

    while_killed(broker, kills, change, user="guest:guest@")
    with connect_as(broker, "guest:guest@") as client:
        tags = {user.name: user.tags for user in client.users() if not user.configured}
        grants = {row["name"]: row for row in client.manage_permissions("list", {})}
        found_keys = {key.id for key in client.api_keys()}
    found = {
        name: {
            "tags": list(tags[name]),
            "permissions": grants.get(name, {}).get("permissions", {}),
            "roles": grants.get(name, {}).get("roles", []),
        }
        for name in tags
    }
    in_doubt = {name for name, expected in users.items() if expected != found.get(name)}
    assert all(users[name] is None or is_third(name) for name in in_doubt)
    assert len(in_doubt | (set(found) - set(users))) <= kills.kills
    # What a user had goes with it, and not without it.
    assert set(grants) - {"guest"} <= set(found)
    assert keys <= found_keys
    assert len(found_keys) <= len(keys) + kills.kills


def is_third(name: str) -> bool:
    """Whether it is one that is deleted again, perhaps with the answer lost."""
    return int(name[4:]) % 3 == 2
