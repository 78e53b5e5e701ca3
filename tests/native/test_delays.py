"""Delayed messages: the property ``delay``."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.support.native import Site, Wire, entry, payloads, publish
from trivium.messages.message import Properties
from trivium.routing.exchanges import Binding
from trivium_native.wire import frames
from trivium_native.wire.properties import encode_properties


def delayed(milliseconds: Any) -> bytes:
    packed: bytes = msgpack.packb({15: milliseconds})
    return packed


def answer(wire: Wire, *entries: bytes) -> int:
    ((kind, _, _),) = wire.send(frames.PUBLISH, 5, publish(*entries))
    return kind


def test_the_delay_of_a_message_delays_it() -> None:
    site = Site()
    wire = site.client()
    wire.ask(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"#")
    sender = site.client()
    assert answer(
        sender, entry(b"later", properties=delayed(50)), entry(b"now", properties=delayed(0))
    ) == (frames.CONFIRM)
    assert payloads(wire.take()) == [b"now"]
    site.advance(49)
    assert wire.take() == []
    site.advance(1)
    assert payloads(wire.take()) == [b"later"]


def test_the_client_s_properties_have_it() -> None:
    assert encode_properties(Properties(delay=50)) == delayed(50)


def test_a_delayed_retained_message_is_retained_later() -> None:
    site = Site()
    assert answer(site.client(), entry(flags=5 | 8, properties=delayed(50))) == frames.CONFIRM
    assert site.vhost.retained.get(b"k") is None
    site.advance(50)
    assert site.vhost.retained.get(b"k") is not None


def test_mandatory_is_decided_when_it_is_published() -> None:
    site = Site()
    wire = site.client()
    mandatory = entry(flags=5 | 16, properties=delayed(50))
    assert answer(wire, mandatory) == frames.ERROR
    assert len(site.vhost.delays) == 0
    queue = site.vhost.declare_queue("q")
    site.vhost.bind(site.vhost.exchange("amq.topic"), Binding(queue, b"k"))
    assert answer(wire, mandatory) == frames.CONFIRM
    assert (len(site.vhost.delays), len(queue)) == (1, 0)


@pytest.mark.parametrize("value", [-1, "50", True, 1.5, 1 << 60])
def test_a_value_that_is_no_delay_is_an_invalid_argument(value: object) -> None:
    wire = Site().client()
    ((kind, _, body),) = wire.send(frames.PUBLISH, 5, publish(entry(properties=delayed(value))))
    assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 300)
