"""AMQP clients over a broker that is killed: what basic.ack and tx.commit-ok promise holds."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from contextlib import suppress

import aiormq
import pika
from aiormq.abc import AbstractChannel, AbstractConnection
from pika.exceptions import AMQPError

from interop.amqp import PERSISTENT, TRANSIENT, bodies, channel, consume, url
from interop.brokers import TriviumProcess
from interop.mqtt import PATIENCE
from tests.crash.kills import Kills
from tests.crash.publishers import LOST, WINDOW, publish_by_amqp


def test_confirm_means_kept(broker: TriviumProcess, seed: int) -> None:
    count = 1200
    port = broker.ports["amqp"]
    with channel(port) as opened:
        opened.queue_declare("crash", durable=True)
    kills = Kills(broker, seed, count)
    confirmed: list[int] = []
    restarts = threading.Thread(target=kills.restart_each)
    restarts.start()
    number = 0
    while number < count:
        kills.is_up.wait(PATIENCE)
        number = asyncio.run(publish_by_amqp(url(port), kills, confirmed, number, count))
    restarts.join()
    with channel(port) as opened:
        found = [int(body) for body in bodies(opened, "crash")]
    assert found == sorted(found), "in order"
    assert len(found) == len(set(found)), "nothing was sent twice"
    assert set(found) >= set(confirmed)
    assert len(confirmed) > count - (kills.kills + 1) * WINDOW, "little was in flight"


def test_kills_at_any_moment_of_a_start_lose_nothing(broker: TriviumProcess, seed: int) -> None:
    """What a start does may be cut, again and again, before the ready line or behind it."""
    port = broker.ports["amqp"]
    with channel(port, confirms=True) as opened:
        opened.queue_declare("crash", durable=True)
        for i in range(500):
            opened.basic_publish("", "crash", b"%d" % i, PERSISTENT)
    draw = random.Random(seed)
    begin = time.monotonic()
    broker.restart()
    whole = time.monotonic() - begin
    for _ in range(10):
        broker.kill()
        broker.launch()
        # Nothing is waited for: this is the moment of the kill.
        time.sleep(draw.uniform(0.3, 1.1) * whole)
    broker.restart()
    with channel(port) as opened:
        assert [int(body) for body in bodies(opened, "crash")] == list(range(500))


def test_what_was_not_persistent_is_gone_and_the_rest_is_in_order(broker: TriviumProcess) -> None:
    with channel(broker.ports["amqp"], confirms=True) as opened:
        opened.queue_declare("crash", durable=True)
        opened.queue_declare("transient")
        for i in range(20):
            opened.basic_publish("", "crash", b"%d" % i, PERSISTENT if i % 2 else TRANSIENT)
            opened.basic_publish("", "transient", b"x", PERSISTENT)
    broker.restart()
    with channel(broker.ports["amqp"]) as opened:
        assert [int(body) for body in bodies(opened, "crash")] == list(range(1, 20, 2))
        assert opened.queue_declare("transient").method.message_count == 0


def test_topology_is_kept(broker: TriviumProcess) -> None:
    """Declare-ok and bind-ok come after the change is durable."""
    with channel(broker.ports["amqp"]) as opened:
        opened.exchange_declare("one", "topic", durable=True)
        opened.exchange_declare("two", "headers", durable=True)
        opened.queue_declare("crash", durable=True)
        opened.exchange_bind("two", "one", "a.#")
        opened.queue_bind("crash", "two", arguments={"x-match": "all", "n": 1})
    broker.restart()
    with channel(broker.ports["amqp"], confirms=True) as opened:
        opened.exchange_declare("one", "topic", durable=True)
        opened.queue_declare("crash", durable=True)
        opened.basic_publish(
            "one", "a.b", b"x", pika.BasicProperties(headers={"n": 1}), mandatory=True
        )
        assert bodies(opened, "crash") == [b"x"]
        opened.queue_delete("crash")
        opened.exchange_delete("one")
    broker.restart()
    with channel(broker.ports["amqp"]) as opened:
        assert opened.queue_declare("crash").method.message_count == 0, "it was not durable before"
        opened.exchange_declare("one", "fanout")


def test_what_may_have_been_delivered_comes_back_as_redelivered(broker: TriviumProcess) -> None:
    # Its connection is lost with the broker.
    with suppress(AMQPError), channel(broker.ports["amqp"], confirms=True) as opened:
        opened.queue_declare("crash", durable=True)
        for i in range(20):
            opened.basic_publish("", "crash", b"%d" % i, PERSISTENT)
        found = consume(opened, "crash", 20)
        assert not any(message.redelivered for message in found)
        opened.basic_ack(found[9].tag, multiple=True)
        # A confirm covers what came before it on this channel.
        opened.queue_declare("other", durable=True)
        opened.basic_publish("", "other", b"x", PERSISTENT)
        broker.restart()
    with channel(broker.ports["amqp"], confirms=True) as opened:
        opened.basic_publish("", "crash", b"new", PERSISTENT)
        again = consume(opened, "crash", 11, auto_ack=True)
        assert [m.body for m in again] == [*(b"%d" % i for i in range(10, 20)), b"new"]
        assert all(message.redelivered for message in again[:10])
        assert not again[10].redelivered


def test_consumers_of_a_backlog_get_all_of_it(broker: TriviumProcess, seed: int) -> None:
    """Whatever was acknowledged when the broker died, nothing is missing."""
    count = 1000
    port = broker.ports["amqp"]
    kills = Kills(broker, seed, count)

    async def fill() -> None:
        connection = await aiormq.connect(url(port))
        opened = await connection.channel(publisher_confirms=True)
        await opened.queue_declare("crash", durable=True)
        await asyncio.gather(
            *(
                opened.basic_publish(
                    b"%d" % i,
                    routing_key="crash",
                    properties=aiormq.spec.Basic.Properties(delivery_mode=2),
                )
                for i in range(count)
            )
        )
        await connection.close()

    asyncio.run(fill())
    restarts = threading.Thread(target=kills.restart_each)
    restarts.start()
    seen: dict[int, int] = {}
    last_round: set[int] = set()
    while len(seen) < count:
        kills.is_up.wait(PATIENCE)
        last_round.clear()
        try:
            with channel(port) as opened:
                opened.basic_qos(prefetch_count=20)
                for method, _, body in opened.consume("crash", inactivity_timeout=PATIENCE):
                    assert method is not None, f"{count - len(seen)} are missing"
                    assert body is not None
                    assert method.delivery_tag is not None
                    number = int(body)
                    assert number not in last_round, "not twice in one run of the broker"
                    assert bool(method.redelivered) >= (number in seen), "a repetition says so"
                    last_round.add(number)
                    seen[number] = seen.get(number, 0) + 1
                    opened.basic_ack(method.delivery_tag)
                    kills.acknowledged()
                    if len(seen) == count:
                        break
        except (AMQPError, OSError):
            continue
    restarts.join()
    assert sum(seen.values()) < 2 * count


#: messages of a transaction, and channels that commit transactions at the same time
TRANSACTION = 5
CHANNELS = 8


async def transact(opened: AbstractChannel, number: int) -> None:
    """One transaction that publishes several messages and takes one from another queue."""
    for part in range(TRANSACTION):
        await opened.basic_publish(
            b"%d.%d" % (number, part),
            routing_key="crash",
            properties=aiormq.spec.Basic.Properties(delivery_mode=2),
        )
    taken = await opened.basic_get("tokens")
    assert taken.delivery_tag is not None
    await opened.basic_ack(taken.delivery_tag)
    await opened.tx_commit()


def test_commit_means_all_of_it_is_kept_and_nothing_of_others(
    broker: TriviumProcess, seed: int
) -> None:
    count = 400
    tokens = count + 100
    port = broker.ports["amqp"]
    kills = Kills(broker, seed, count, kills=4)
    with channel(port, confirms=True) as opened:
        opened.queue_declare("crash", durable=True)
        opened.queue_declare("tokens", durable=True)
        for i in range(tokens):
            opened.basic_publish("", "tokens", b"%d" % i, PERSISTENT)
    restarts = threading.Thread(target=kills.restart_each)
    restarts.start()
    committed: list[int] = []
    tried = itertools.count()

    async def work(connection: AbstractConnection) -> None:
        opened = await connection.channel(publisher_confirms=False)
        await opened.tx_select()
        while len(committed) < count:
            number = next(tried)
            await transact(opened, number)
            committed.append(number)
            kills.acknowledged()

    async def run() -> None:
        connection = await aiormq.connect(url(port))
        async with asyncio.TaskGroup() as workers:
            for _ in range(CHANNELS):
                workers.create_task(work(connection))
        await connection.close()

    while len(committed) < count:
        kills.is_up.wait(PATIENCE)
        try:
            asyncio.run(run())
        except* LOST:
            pass
    restarts.join()
    with channel(port) as opened:
        found = [body.decode() for body in bodies(opened, "crash")]
        left = len(bodies(opened, "tokens"))
    whole = [int(text.partition(".")[0]) for text in found[::TRANSACTION]]
    assert found == [f"{n}.{part}" for n in whole for part in range(TRANSACTION)], "whole, together"
    assert len(whole) == len(set(whole))
    assert set(whole) >= set(committed)
    assert len(whole) <= len(committed) + kills.kills * CHANNELS
    assert left == tokens - len(whole), "acknowledgements are part of the transaction"
