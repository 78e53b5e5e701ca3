"""Delayed messages: the MQTT 5 user property x-delay."""

from __future__ import annotations

import pytest

from tests.support.mqtt import Server, puback, publish, pubrec, subscribed, text
from tests.support.simulated import Host


def x_delay(milliseconds: int | str) -> bytes:
    return b"\x26" + text("x-delay") + text(str(milliseconds))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_x_delay_delays_at_every_qos(qos: int) -> None:
    server = Server()
    receiver = server.open("r", 5)
    receiver.subscribe("t", 2)
    sender = server.open("s", 5)
    sender.feed(publish("t", b"m", qos, 7, 5, properties=x_delay(3000)))
    assert sender.take_bytes() == (b"", puback(7), pubrec(7))[qos]
    server.advance(2)
    assert receiver.take_bytes() == b""
    server.advance(1)
    assert receiver.take_bytes() == publish("t", b"m", qos, 1, 5, properties=x_delay(3000))


def test_a_delayed_retained_message_is_retained_when_its_time_has_come() -> None:
    server = Server()
    sender = server.open("s", 5)
    sender.feed(publish("t", b"m", 1, 7, 5, retain=True, properties=x_delay(3000)))
    early = server.open("early", 5)
    early.subscribe("t", 0)
    assert early.take_bytes() == b""
    server.advance(3)
    assert early.take_one()[0] == 0x30
    late = server.open("late", 5)
    late.subscribe("t", 0)
    assert late.take_one()[0] == 0x31


def test_the_acknowledgement_waits_for_the_disk_and_the_message_survives() -> None:
    server = Server(host=Host())
    subscribed(server).lose()
    sender = server.open("s", 5)
    sender.feed(publish("t", b"m", 1, 7, 5, properties=x_delay(3000)))
    assert sender.take_bytes() == b""
    server.sync()
    assert sender.take_bytes() == puback(7)
    server = server.crash()
    receiver = server.open_kept("c")
    assert receiver.take_bytes() == b""
    server.advance(4)
    server.sync()
    assert receiver.take_bytes() == publish("t", b"m", 1, 1)


def test_the_expiry_interval_begins_when_the_delay_ends() -> None:
    server = Server()
    receiver = server.open("r", 5)
    receiver.subscribe("t", 0)
    expiry = b"\x02\x00\x00\x00\x02"
    server.open("s", 5).feed(publish("t", b"m", 0, 7, 5, properties=x_delay(3000) + expiry))
    server.advance(3)
    assert expiry in receiver.take_bytes()


def test_a_will_may_be_delayed_beyond_its_will_delay() -> None:
    server = Server()
    receiver = server.open("r", 5)
    receiver.subscribe("t", 0)
    sender = server.open("s", 5, will=("t", b"m", 0, False), will_properties=x_delay(3000))
    sender.lose()
    assert receiver.take_bytes() == b""
    server.advance(3)
    assert receiver.take_one()[0] == 0x30


@pytest.mark.parametrize("value", ["", "-", "--1", "soon", "1.5", "1" * 17, "1" * 5000])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_value_that_is_no_delay_ends_the_connection_with_0x83(value: str, qos: int) -> None:
    server = Server()
    sender = server.open("s", 5)
    sender.feed(publish("t", b"m", qos, 7, 5, properties=x_delay(value)))
    assert sender.take_one() == (0xE0, b"\x83")
    assert sender.is_closed


def test_a_negative_delay_is_none() -> None:
    server = Server()
    receiver = server.open("r", 5)
    receiver.subscribe("t", 0)
    server.open("s", 5).feed(publish("t", b"m", 0, 7, 5, properties=x_delay(-3000)))
    assert receiver.take_one()[0] == 0x30
