"""Delayed messages: the property ``delay``."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.support.native import Client, Server, entry, payloads, publish
from trivium.messages.message import Properties
from trivium.routing.exchanges import Binding
from trivium_native.wire import frames
from trivium_native.wire.properties import encode_properties


def delayed(milliseconds: Any) -> bytes:
    packed: bytes = msgpack.packb({15: milliseconds})
    return packed


def answer(client: Client, *entries: bytes) -> int:
    ((kind, _, _),) = client.send(frames.PUBLISH, 5, publish(*entries))
    return kind


def test_the_delay_of_a_message_delays_it() -> None:
    server = Server()
    client = server.open()
    client.ask(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"#")
    sender = server.open()
    assert answer(
        sender, entry(b"later", properties=delayed(50)), entry(b"now", properties=delayed(0))
    ) == (frames.CONFIRM)
    assert payloads(client.take()) == [b"now"]
    server.advance(0.049)
    assert client.take() == []
    server.advance(0.001)
    assert payloads(client.take()) == [b"later"]


def test_the_client_s_properties_have_it() -> None:
    assert encode_properties(Properties(delay=50)) == delayed(50)


def test_a_delayed_retained_message_is_retained_later() -> None:
    server = Server()
    assert answer(server.open(), entry(flags=5 | 8, properties=delayed(50))) == frames.CONFIRM
    assert server.vhost.retained.get(b"k") is None
    server.advance(0.05)
    assert server.vhost.retained.get(b"k") is not None


def test_a_mandatory_message_that_is_retained_later_is_kept() -> None:
    server = Server()
    mandatory = entry(flags=5 | 8 | 16, properties=delayed(50))
    assert answer(server.open(), mandatory) == frames.CONFIRM
    server.advance(0.05)
    assert server.vhost.retained.get(b"k") is not None


def test_mandatory_is_decided_when_it_is_published() -> None:
    server = Server()
    client = server.open()
    mandatory = entry(flags=5 | 16, properties=delayed(50))
    assert answer(client, mandatory) == frames.ERROR
    assert len(server.vhost.delays) == 0
    queue = server.vhost.declare_queue("q")
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(queue, b"k"))
    assert answer(client, mandatory) == frames.CONFIRM
    assert (len(server.vhost.delays), len(queue)) == (1, 0)


@pytest.mark.parametrize("value", [-1, "50", True, 1.5, 1 << 60])
def test_a_value_that_is_no_delay_is_an_invalid_argument(value: object) -> None:
    client = Server().open()
    ((kind, _, body),) = client.send(frames.PUBLISH, 5, publish(entry(properties=delayed(value))))
    assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 300)
