"""The section ``[mqtt]``: what each key of it does, by the bytes that clients see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.mqtt import Server, connect, publish, subscribe
from tests.support.storages import HeldStorage
from trivium.config import Config, LimitsConfig, Listen, ListenerConfig
from trivium.errors import ConfigError
from trivium_mqtt.codec.packets import acknowledgement
from trivium_mqtt.options import MqttOptions


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("receive_maximum", 0),
        ("receive_maximum", 65_536),
        ("maximum_inflight", 0),
        ("topic_alias_maximum", 65_536),
        ("server_keep_alive", -1),
        ("maximum_session_expiry", -1),
        ("maximum_packet_bytes", -1),
        ("maximum_client_id_bytes", 22),
        ("maximum_topic_bytes", 0),
        ("maximum_topic_levels", 129),
        ("maximum_subscriptions", 0),
        ("maximum_queued", 0),
        ("maximum_queued_bytes", -1),
    ],
)
def test_a_value_out_of_its_range_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be from "):
        MqttOptions(**{key: value})


@pytest.mark.parametrize(("own", "of_all", "held_to"), [(90, 200, 90), (0, 80, 80), (300, 70, 70)])
def test_the_largest_packet_is_the_smaller_of_both_limits(
    own: int, of_all: int, held_to: int
) -> None:
    config = Config(listen={"mqtt": Listen(0)}, limits=LimitsConfig(max_message_bytes=of_all))
    server = Server(options=MqttOptions(maximum_packet_bytes=own), config=config)
    client = server.open("c", 5)
    assert b"\x27" + held_to.to_bytes(4, "big") in client.connack[1]
    # Two bytes of fixed header, two of the topic's length, the topic, one of no properties.
    largest = publish("t", bytes(held_to - 6), version=5)
    client.feed(largest)
    assert not client.is_closed
    client.feed(publish("t", bytes(held_to - 5), version=5))
    assert client.take_bytes() == b"\xe0\x01\x95"


def test_a_longer_client_identifier_is_refused() -> None:
    server = Server(options=MqttOptions(maximum_client_id_bytes=23))
    server.open("c" * 23)
    client = server.connect()
    client.feed(connect("c" * 24))
    assert client.take_bytes() == b"\x20\x02\x00\x02"


TOO_LONG = pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (MqttOptions(maximum_topic_bytes=5), "12345", "123456"),
        (MqttOptions(maximum_topic_levels=3), "a/b/c", "a/b/c/d"),
    ],
)


@TOO_LONG
def test_a_longer_topic_is_refused(options: MqttOptions, good: str, bad: str) -> None:
    server = Server(options=options)
    client = server.open("c", 5)
    client.feed(publish(good, b"", 1, 1, 5))
    client.feed(publish(good, b"", 1, 2, 5))
    assert client.take_bytes() == acknowledgement(0x40, 1, 0x10) + acknowledgement(0x40, 2, 0x10)
    client.feed(publish(bad, b"", 1, 1, 5))
    assert client.take_bytes() == b"\xe0\x01\x90"


@TOO_LONG
def test_a_longer_filter_is_refused(options: MqttOptions, good: str, bad: str) -> None:
    client = Server(options=options).open("c", 5)
    client.subscribe(good)
    client.feed(subscribe(bad, 0, 7, 5))
    assert client.take_bytes() == b"\x90\x04\x00\x07\x00\x97"


@TOO_LONG
def test_a_longer_topic_of_a_will_is_refused(options: MqttOptions, good: str, bad: str) -> None:
    server = Server(options=options)
    server.open("a", 5, will=(good, b"", 0, False))
    client = server.connect()
    client.feed(connect("b", 5, will=(bad, b"", 0, False)))
    assert client.take_bytes()[:4] == b"\x20\x03\x00\x90"


@pytest.mark.parametrize("on_disk", [False, True])
def test_messages_of_a_session_are_limited_in_bytes(on_disk: bool) -> None:
    storage = HeldStorage() if on_disk else None
    server = Server(storage, options=MqttOptions(maximum_queued_bytes=100))
    client = server.open_kept("c")
    client.feed(subscribe("t", 1))
    server.sync()
    client.lose()
    sender = server.open("s")
    sender.feed(b"".join(publish("t", bytes(40), 1, number) for number in range(1, 6)))
    server.sync()
    # The third passes the limit, and is the last.
    assert server.adapter.metrics.messages_dropped == 2
    client = server.open_kept("c")
    server.sync()
    assert len([body for first, body in client.take() if first & 0xF0 == 0x30]) == 3


def test_a_listener_has_options_of_its_own() -> None:
    own = MqttOptions(receive_maximum=7, maximum_subscriptions=1, maximum_packet_bytes=90)
    listener = ListenerConfig(protocol="mqtt", address="127.0.0.1:0", options=own)
    client = Server(config=Config(listen={}, listeners=(listener,))).open("c", 5)
    assert b"\x21\x00\x07" in client.connack[1]
    assert b"\x27" + (90).to_bytes(4, "big") in client.connack[1]
    client.subscribe("a")
    client.feed(subscribe("b", 0, 7, 5))
    assert client.take_bytes() == b"\x90\x04\x00\x07\x00\x97"
    client.feed(publish("t", bytes(90), version=5))
    assert client.take_bytes() == b"\xe0\x01\x95"
