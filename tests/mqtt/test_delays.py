"""Delayed messages: the MQTT 5 user property x-delay."""

from __future__ import annotations

import pytest

from tests.mqtt.test_durability import DiskBench, subscribed
from tests.support.mqtt import Bench, puback, publish, pubrec, text


def x_delay(milliseconds: int | str) -> bytes:
    return b"\x26" + text("x-delay") + text(str(milliseconds))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_x_delay_delays_at_every_qos(qos: int) -> None:
    bench = Bench()
    receiver = bench.connect("r", 5)
    receiver.subscribe("t", 2)
    sender = bench.connect("s", 5)
    sender.send(publish("t", b"m", qos, 7, 5, properties=x_delay(3000)))
    assert sender.received() == (b"", puback(7), pubrec(7))[qos]
    bench.advance(2)
    assert receiver.received() == b""
    bench.advance(1)
    assert receiver.received() == publish("t", b"m", qos, 1, 5, properties=x_delay(3000))


def test_a_delayed_retained_message_is_retained_when_its_time_has_come() -> None:
    bench = Bench()
    sender = bench.connect("s", 5)
    sender.send(publish("t", b"m", 1, 7, 5, retain=True, properties=x_delay(3000)))
    early = bench.connect("early", 5)
    early.subscribe("t", 0)
    assert early.received() == b""
    bench.advance(3)
    assert early.packet()[0] == 0x30
    late = bench.connect("late", 5)
    late.subscribe("t", 0)
    assert late.packet()[0] == 0x31


def test_the_acknowledgement_waits_for_the_disk_and_the_message_survives() -> None:
    bench = DiskBench()
    subscribed(bench).lose()
    sender = bench.connect("s", 5)
    sender.send(publish("t", b"m", 1, 7, 5, properties=x_delay(3000)))
    assert sender.received() == b""
    bench.sync()
    assert sender.received() == puback(7)
    bench = bench.crash()
    receiver = bench.connect_kept("c")
    assert receiver.received() == b""
    bench.advance(4)
    bench.sync()
    assert receiver.received() == publish("t", b"m", 1, 1)


def test_the_expiry_interval_begins_when_the_delay_ends() -> None:
    bench = Bench()
    receiver = bench.connect("r", 5)
    receiver.subscribe("t", 0)
    expiry = b"\x02\x00\x00\x00\x02"
    bench.connect("s", 5).send(publish("t", b"m", 0, 7, 5, properties=x_delay(3000) + expiry))
    bench.advance(3)
    assert expiry in receiver.received()


def test_a_will_may_be_delayed_beyond_its_will_delay() -> None:
    bench = Bench()
    receiver = bench.connect("r", 5)
    receiver.subscribe("t", 0)
    sender = bench.connect("s", 5, will=("t", b"m", 0, False), will_properties=x_delay(3000))
    sender.lose()
    assert receiver.received() == b""
    bench.advance(3)
    assert receiver.packet()[0] == 0x30


@pytest.mark.parametrize("value", ["", "-", "--1", "soon", "1.5", "1" * 17, "1" * 5000])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_value_that_is_no_delay_ends_the_connection_with_0x83(value: str, qos: int) -> None:
    bench = Bench()
    sender = bench.connect("s", 5)
    sender.send(publish("t", b"m", qos, 7, 5, properties=x_delay(value)))
    assert sender.packet() == (0xE0, b"\x83")
    assert sender.is_closed


def test_a_negative_delay_is_none() -> None:
    bench = Bench()
    receiver = bench.connect("r", 5)
    receiver.subscribe("t", 0)
    bench.connect("s", 5).send(publish("t", b"m", 0, 7, 5, properties=x_delay(-3000)))
    assert receiver.packet()[0] == 0x30
