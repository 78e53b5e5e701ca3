"""Deduplication by the MQTT 5 user property x-deduplication-header."""

from __future__ import annotations

import pytest

from tests.support.mqtt import Server, puback, publish, pubrec, text
from trivium.routing.exchanges import Binding


def identity(value: str) -> bytes:
    return b"\x26" + text("x-deduplication-header") + text(value)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_repetition_is_acknowledged_and_dropped(qos: int) -> None:
    server = Server()
    vhost = server.broker.vhosts["/"]
    queue = vhost.declare_queue("q", arguments={"x-message-deduplication": True})
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    sender = server.open("s", 5)
    for packet_id, value in ((1, "a"), (2, "a"), (3, "b")):
        sender.feed(publish("t", b"m", qos, packet_id, 5, properties=identity(value)))
        answer = (b"", puback(packet_id), pubrec(packet_id))[qos]
        assert sender.take_bytes() == answer
    assert len(queue) == 2


def test_an_exactly_once_message_with_an_id_reaches_a_session_once() -> None:
    server = Server()
    receiver = server.open("r", 5)
    receiver.subscribe("t", 2)
    exactly = b"\x26" + text("x-delivery") + text("exactly-once")
    for name in ("first", "second"):
        sender = server.open(name, 5)
        sender.feed(publish("t", b"m", 1, 7, 5, properties=exactly + identity("a")))
        assert sender.take_bytes() == puback(7)
    assert [first for first, _ in receiver.take()] == [0x34]
