"""What is deleted or has left leaves no times at which it would be looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from pamqp.commands import Connection, Exchange, Queue

from tests.support import amqp, mqtt, native
from tests.support.server import Server
from trivium.common.timers import FEW
from trivium.storage.memory import MemoryStorage
from trivium_mqtt.connection import MqttConnection
from trivium_native.wire import frames

DAY_MS = 86_400_000
MANY = 4 * FEW


def queue_with_expiring_message() -> tuple[Server, Callable[[int], None]]:
    server = amqp.Server()
    client = server.open()

    def cycle(number: int) -> None:
        client.declare("q")
        client.publish("q", expiration=str(DAY_MS))
        client.ask(Queue.Delete(queue="q"))

    return server, cycle


def queue_that_expires() -> tuple[Server, Callable[[int], None]]:
    server = amqp.Server()
    client = server.open()

    def cycle(number: int) -> None:
        client.declare("q", arguments={"x-expires": DAY_MS})
        client.ask(Queue.Delete(queue="q"))

    return server, cycle


def exchange_that_deduplicates() -> tuple[Server, Callable[[int], None]]:
    server = amqp.Server()
    client = server.open()
    client.declare("q")
    arguments = {"x-message-deduplication": True, "x-cache-ttl": DAY_MS}

    def cycle(number: int) -> None:
        client.exchange("x", "fanout", arguments=arguments)
        client.bind("q", "x", "")
        client.publish("", exchange="x", headers={"x-deduplication-header": "a"})
        client.ask(Exchange.Delete(exchange="x"))

    return server, cycle


def delayed_beside_far_one() -> tuple[Server, Callable[[int], None]]:
    server = amqp.Server()
    client = server.open()
    client.declare("q", arguments={"x-max-length": 1})
    client.publish("q", headers={"x-delay": DAY_MS})

    def cycle(number: int) -> None:
        client.publish("q", headers={"x-delay": 1})
        server.advance(0.002)

    return server, cycle


def connection_with_long_heartbeat() -> tuple[Server, Callable[[int], None]]:
    server = amqp.Server()

    def cycle(number: int) -> None:
        client = server.connect().handshake(heartbeat=60_000)
        client.send(Connection.Close(200, "", 0, 0), channel=0)
        client.lose()

    return server, cycle


def stream_of_some_age() -> tuple[Server, Callable[[int], None]]:
    server = native.Server(MemoryStorage(), native.CONFIG)
    client = server.open()

    def cycle(number: int) -> None:
        arguments = {"x-max-age": "7D"}
        client.ask(frames.DECLARE, kind="stream", name="s", partitions=1, arguments=arguments)
        for _ in range(2):
            client.send(frames.PUBLISH, 0, native.publish(native.into(b"s", b"x")))
            server.advance(2)
        client.take()
        client.ask(frames.DELETE, kind="stream", name="s")

    return server, cycle


def group_whose_members_leave() -> tuple[Server, Callable[[int], None]]:
    server = native.Server(MemoryStorage(), native.CONFIG)
    client = server.open()
    client.ask(frames.DECLARE, kind="stream", name="s", partitions=1)

    def cycle(number: int) -> None:
        group = f"g{number}"
        joined = client.ask(frames.JOIN, group=group, streams=["s"], session_ms=600_000)
        generation = joined["generation"]
        client.ask(frames.LEAVE, group=group, member=joined["member"], generation=generation)

    return server, cycle


def fetch_of_client_that_leaves() -> tuple[Server, Callable[[int], None]]:
    server = native.Server(MemoryStorage(), native.CONFIG)
    server.vhost.declare_stream("s")
    fields: dict[str, Any] = {"stream": "s", "partition": 0, "offset": 0, "max_wait_ms": 60_000}

    def cycle(number: int) -> None:
        client = server.open()
        assert client.send(frames.FETCH, 5, msgpack.packb(fields | {"min_bytes": 1})) == []
        client.lose()

    return server, cycle


@pytest.mark.parametrize(
    "begin",
    [
        queue_with_expiring_message,
        queue_that_expires,
        exchange_that_deduplicates,
        delayed_beside_far_one,
        connection_with_long_heartbeat,
        stream_of_some_age,
        group_whose_members_leave,
        fetch_of_client_that_leaves,
    ],
)
def test_the_broker_keeps_no_times(
    begin: Callable[[], tuple[Server, Callable[[int], None]]],
) -> None:
    server, cycle = begin()
    broker = server.broker
    for number in range(MANY):
        cycle(number)
    assert max(len(broker.timeouts), len(broker.dates)) < FEW + 8


def test_a_session_that_comes_back_keeps_the_time_of_its_last_end_alone() -> None:
    server = mqtt.Server()
    expiry = b"\x11" + (604_800).to_bytes(4, "big")
    for _ in range(MANY):
        client = server.open("c", 5, clean=False, properties=expiry)
        connection = client.connection
        assert isinstance(connection, MqttConnection)
        sessions = connection.sessions
        client.leave()
        server.advance(1)
    assert len(sessions.deadlines) < FEW + 8
