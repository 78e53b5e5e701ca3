"""Publishes whose routes are much work to find take turns; those that are too much are refused."""

from __future__ import annotations

import pytest

from tests.support.costly import LONG_KEY, REFUSED_KEY, bind_many, bind_too_many, turns_of
from tests.support.mqtt import Server, publish
from trivium.routing.exchanges import Binding

REFUSED = REFUSED_KEY.replace(".", "/")
IMPLEMENTATION_SPECIFIC = b"\x83"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_costly_topic_has_a_turn(qos: int) -> None:
    server = Server()
    queue = server.vhost.declare_queue("q")
    bind_many(server.vhost, queue)
    topic = LONG_KEY.replace(".", "/")
    topics = [topic, *[f"{topic}/{number}" for number in range(9)]]
    data = b"".join(publish(each, b"x", qos, 1 + at) for at, each in enumerate(topics))
    assert turns_of(server.open("s", 4), data) >= 10
    assert len(queue) == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_costly_message_has_a_turn(qos: int) -> None:
    server = Server()
    vhost = server.vhost
    queue = vhost.declare_queue("q")
    headers = vhost.exchange("amq.headers")
    vhost.bind(vhost.exchange("amq.topic"), Binding(headers.destination(), b"t"))
    for number in range(100):
        arguments = {f"{number}.{name}": 1 for name in range(10)}
        vhost.bind(headers, Binding(queue, b"", arguments | {"x-match": "any"}))
    vhost.bind(headers, Binding(queue, b""))
    data = b"".join(publish("t", b"x", qos, 1 + at) for at in range(20))
    assert turns_of(server.open("s", 4), data) >= 20
    assert len(queue) == 20


def refusing() -> Server:
    server = Server()
    bind_too_many(server.vhost, server.vhost.declare_queue("q"), "amq.topic")
    return server


@pytest.mark.parametrize("qos", [1, 2])
def test_a_topic_that_is_too_costly_is_refused(qos: int) -> None:
    server = refusing()
    client = server.open("s", 5)
    client.feed(publish(REFUSED, b"x", qos, 7, version=5))
    assert client.take() == [(0x30 + 0x10 * qos, b"\x00\x07" + IMPLEMENTATION_SPECIFIC)]
    assert len(server.vhost.queues["q"]) == 0
    client.feed(publish("other", b"x", qos, 8, version=5))
    assert client.take() == [(0x30 + 0x10 * qos, b"\x00\x08")]


@pytest.mark.parametrize("qos", [1, 2])
def test_before_mqtt_5_it_costs_the_connection(qos: int) -> None:
    server = refusing()
    client = server.open("s", 4)
    client.feed(publish(REFUSED, b"x", qos, 7))
    assert client.connection.is_closed
    assert len(server.vhost.queues["q"]) == 0


@pytest.mark.parametrize("version", [4, 5])
def test_at_qos_0_it_is_dropped_and_counted(version: int) -> None:
    server = refusing()
    client = server.open("s", version)
    client.feed(publish(REFUSED, b"x", version=version) * 3)
    assert client.take() == []
    assert not client.connection.is_closed
    assert server.adapter.metrics.messages_dropped == 3


def test_a_will_that_is_too_costly_is_dropped_and_counted() -> None:
    server = refusing()
    client = server.open("s", 4, will=(REFUSED, b"gone", 1, False))
    client.connection.lost()
    server.settle()
    assert server.adapter.metrics.messages_dropped == 1
    assert len(server.vhost.queues["q"]) == 0
