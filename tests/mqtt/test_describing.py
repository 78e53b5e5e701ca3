"""What operators see of MQTT connections and sessions, and how they close one."""

from __future__ import annotations

import pytest

from tests.support.mqtt import Server
from trivium.common.descriptions import (
    ConnectionDescription,
    ConsumerDescription,
    SessionDescription,
)
from trivium.management.census import Census
from trivium.management.views import view_queue
from trivium.runtime.object_samples import FAMILIES


@pytest.mark.parametrize(("version", "name"), [(3, "MQTT 3-1"), (4, "MQTT 3-1-1"), (5, "MQTT 5-0")])
def test_a_connection_says_who_it_is(version: int, name: str) -> None:
    server = Server()
    client = server.open("ü", version, keep_alive=60)
    assert client.connection.managed().describe() == ConnectionDescription(
        protocol=name,
        state="running",
        client={"client_id": "ü"},
        max_frame=server.config.limits.max_message_bytes,
        timeout=60,
    )
    assert client.connection.managed().channels() == []


def test_a_session_outlives_its_connection() -> None:
    server = Server()
    client = server.open_kept("c")
    client.subscribe("a/#", 1)
    queue = server.vhost.queues
    (name,) = queue
    connection = client.connection
    consumer = ConsumerDescription(
        tag="c", queue=name, connection=connection, channel=0, acknowledges=True, limit=8192
    )
    assert connection.managed().consumers() == [consumer]
    (session,) = server.adapter.describe_sessions(server.vhost)
    assert session == SessionDescription(
        client_id="c",
        user="",
        is_connected=True,
        expiry=0xFFFF_FFFF,
        subscriptions=1,
        queue=name,
    )
    client.leave()
    (session,) = server.adapter.describe_sessions(server.vhost)
    assert not session.is_connected
    assert connection.managed().consumers() == []


def test_a_session_that_is_away_is_no_consumer() -> None:
    server = Server()
    client = server.open_kept("c")
    client.subscribe("a/#", 1)
    (queue,) = server.vhost.queues.values()

    def counted() -> list[int]:
        census = Census()
        for _ in census.count([server.vhost]):
            pass
        ((_, _, sampled),) = [
            row
            for rows in FAMILIES["queue_consumer_count"].rows(server.broker, [server.vhost])
            for row in rows
        ]
        return [census.consumers, view_queue(server.vhost, queue).consumers, int(sampled)]

    assert counted() == [1, 1, 1]
    client.leave()
    assert counted() == [0, 0, 0]
    assert len(queue.consumers) == 1, "its messages are still its own"
    server.open_kept("c")
    assert counted() == [1, 1, 1]


def test_an_operator_closes_it_with_administrative_action() -> None:
    server = Server()
    clients = [server.open("a", 4), server.open("b", 5)]
    for client in clients:
        client.connection.managed().close("too busy")
    server.settle()
    # MQTT 3 has no DISCONNECT of servers; 0x98 is 3.14.2.1 of MQTT 5.
    assert [client.take_bytes() for client in clients] == [b"", b"\xe0\x01\x98"]
    assert all(client.is_closed for client in clients)
