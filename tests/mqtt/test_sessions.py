"""Sessions and wills within one run of the broker."""

from __future__ import annotations

import struct

import pytest

from tests.support.core import broker_of
from tests.support.mqtt import (
    Bench,
    acknowledge,
    connect,
    packet,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    text,
)
from trivium.vhost.policies import Policy
from trivium_mqtt.options import MqttOptions


def expiry(seconds: int) -> bytes:
    return b"\x11" + struct.pack(">I", seconds)


def delay(seconds: int) -> bytes:
    return b"\x18" + struct.pack(">I", seconds)


def test_mqtt_3_1_2_6_clean_session_ends_with_its_connection() -> None:
    bench = Bench()
    client = bench.connect("c")
    client.subscribe("t", 1)
    client.lose()
    assert not bench.broker.vhosts["/"].queues
    assert not bench.broker.vhosts["/"].exchange("amq.topic").bindings()
    client = bench.connect("c", clean=False)
    assert client.connack[1] == b"\x00\x00"


def test_mqtt_3_1_2_4_session_present() -> None:
    bench = Bench()
    bench.connect("c", 4, clean=False).lose()
    client = bench.connect("c", 4, clean=False)
    assert client.connack[1] == b"\x01\x00"
    client.lose()
    # MQTT 3.1 has no such flag.
    client = bench.connect("c", 3, clean=False)
    assert client.connack[1] == b"\x00\x00"
    client.lose()
    client = bench.connect("c", 4, clean=True)
    assert client.connack[1] == b"\x00\x00"


def test_mqtt_3_1_2_5_messages_wait_for_a_kept_session() -> None:
    bench = Bench()
    client = bench.connect("c", 4, clean=False)
    client.subscribe("t", 2)
    client.lose()
    sender = bench.connect("s")
    sender.send(publish("t", b"0") + publish("t", b"1", 1, 1) + publish("t", b"2", 2, 2))
    client = bench.connect("c", 4, clean=False)
    assert client.received() == publish("t", b"1", 1, 1) + publish("t", b"2", 2, 2)


def test_mqtt_4_4_0_1_unacknowledged_messages_come_again_with_their_identifiers() -> None:
    bench = Bench()
    client = bench.connect("c", 4, clean=False)
    client.subscribe("t", 2)
    sender = bench.connect("s")
    sender.send(
        publish("t", b"1", 1, 1)
        + publish("t", b"2", 2, 2)
        + publish("t", b"3", 1, 3)
        + publish("t", b"4", 2, 4)
        + publish("t", b"5", 2, 5)
    )
    client.received()
    client.send(puback(1) + pubrec(4) + pubrec(5) + pubcomp(5))
    client.lose()
    sender.send(publish("t", b"6", 1, 6))
    client = bench.connect("c", 4, clean=False)
    assert client.received() == (
        pubrel(4)
        + publish("t", b"2", 2, 2, dup=True)
        + publish("t", b"3", 1, 3, dup=True)
        + publish("t", b"6", 1, 6)
    )
    client.send(pubcomp(4) + pubrec(2) + puback(3) + puback(6))
    assert client.received() == pubrel(2)
    client.send(pubcomp(2))
    client.lose()
    assert bench.connect("c", 4, clean=False).received() == b""
    assert bench.adapter.metrics.messages_redelivered == 2


def test_resending_keeps_to_a_smaller_receive_maximum() -> None:
    bench = Bench()
    client = bench.connect("c", 5, properties=expiry(100))
    client.subscribe("t", 1)
    bench.connect("s").send(b"".join(publish("t", b"%d" % n, 1, n) for n in range(1, 6)))
    client.received()
    client.lose()
    client = bench.connect("c", 5, clean=False, properties=expiry(100) + b"\x21\x00\x02")
    assert client.received() == b"".join(publish("t", b"%d" % n, 1, n, 5, dup=True) for n in (1, 2))
    client.send(puback(2))
    assert client.received() == publish("t", b"3", 1, 3, 5, dup=True)


def test_identifiers_of_unacknowledged_messages_are_not_given_out_again() -> None:
    bench = Bench()
    client = bench.connect("c", 4, clean=False)
    client.subscribe("t", 1)
    sender = bench.connect("s")
    sender.send(publish("t", b"kept", 1, 1))
    client.received()
    used: set[bytes] = set()
    for _ in range(66):
        sender.send(publish("t", b"x", 1, 1) * 1000)
        for _, body in client.packets():
            used.add(body[3:5])
            client.send(packet(0x40, body[3:5]))
    assert len(used) == 65_534
    assert b"\x00\x01" not in used


def test_mqtt_4_3_3_inbound_qos_2_identifiers_belong_to_the_session() -> None:
    bench = Bench()
    listener = bench.connect("l")
    listener.subscribe("t")
    client = bench.connect("c", 4, clean=False)
    client.send(publish("t", b"x", 2, 9))
    client.lose()
    client = bench.connect("c", 4, clean=False)
    client.send(publish("t", b"x", 2, 9, dup=True))
    assert client.received() == pubrec(9)
    assert listener.received() == publish("t", b"x")
    client.lose()
    client = bench.connect("c", 4, clean=True)
    client.send(publish("t", b"x", 2, 9))
    assert listener.received() == publish("t", b"x")


def test_mqtt_3_1_2_23_session_expires() -> None:
    bench = Bench()
    client = bench.connect("c", 5, properties=expiry(60))
    client.subscribe("t", 1)
    client.lose()
    bench.advance(59)
    client = bench.connect("c", 5, clean=False, properties=expiry(60))
    assert client.connack[1][0] == 1
    bench.advance(120)
    assert not client.is_closed
    client.lose()
    bench.advance(61)
    assert not bench.broker.vhosts["/"].queues
    assert not bench.broker.vhosts["/"].exchange("amq.topic").bindings()
    client = bench.connect("c", 5, clean=False)
    assert client.connack[1][0] == 0


def step_clock(bench: Bench, seconds: int) -> None:
    """Somebody sets the wall clock."""
    bench.broker.now_ms += seconds * 1000
    bench.broker.clock_offset += seconds * 1000
    bench.broker.tick(bench.seconds)
    bench.settle()


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_moves_neither_the_end_of_a_session_nor_its_will(
    step: int,
) -> None:
    bench = Bench()
    listener = bench.connect("l", 5)
    listener.subscribe("will/#")
    will = ("will/c", b"gone", 0, False)
    bench.connect("c", 5, properties=expiry(60), will=will, will_properties=delay(30)).lose()
    step_clock(bench, step)
    bench.advance(29)
    assert listener.received() == b""
    bench.advance(2)
    assert listener.received() == publish("will/c", b"gone", 0, 0, 5)
    bench.advance(27)
    assert bench.connect("c", 5, clean=False, properties=expiry(60)).connack[1][0] == 1
    bench.connect("c", 5, clean=False, properties=expiry(60)).lose()
    step_clock(bench, step)
    bench.advance(61)
    assert bench.connect("c", 5, clean=False).connack[1][0] == 0


def test_session_expiry_zero_is_clean_and_maximum_is_never() -> None:
    bench = Bench()
    bench.connect("a", 5, clean=False).lose()
    bench.connect("b", 5, clean=False, properties=expiry(0xFFFF_FFFF)).lose()
    bench.connect("c", 4, clean=False).lose()
    bench.advance(10**8)
    assert bench.connect("a", 5, clean=False).connack[1][0] == 0
    assert bench.connect("b", 5, clean=False).connack[1][0] == 1
    assert bench.connect("c", 4, clean=False).connack[1][0] == 1


def test_disconnect_changes_the_session_expiry() -> None:
    bench = Bench()
    client = bench.connect("c", 5, properties=expiry(60))
    client.send(packet(0xE0, b"\x00" + b"\x05" + expiry(0)))
    client.lose()
    assert bench.connect("c", 5, clean=False, properties=expiry(60)).connack[1][0] == 0
    client = bench.connect("c", 5, clean=False, properties=expiry(60))
    client.send(packet(0xE0, b"\x00" + b"\x05" + expiry(1000)))
    client.lose()
    bench.advance(900)
    assert bench.connect("c", 5, clean=False).connack[1][0] == 1


def test_mqtt_3_14_2_2_expiry_cannot_be_raised_from_zero() -> None:
    client = Bench().connect("c", 5)
    client.send(packet(0xE0, b"\x00" + b"\x05" + expiry(10)))
    assert client.received() == b"\xe0\x01\x82"


def test_the_broker_can_limit_session_expiry() -> None:
    bench = Bench(options=MqttOptions(maximum_session_expiry=100))
    client = bench.connect("c", 5, properties=expiry(1000))
    assert expiry(100) in client.connack[1]
    client.lose()
    bench.connect("d", 4, clean=False).lose()
    bench.advance(101)
    assert bench.connect("c", 5, clean=False).connack[1][0] == 0
    assert bench.connect("d", 4, clean=False).connack[1] == b"\x00\x00"


def test_clean_start_of_a_kept_session_forgets_it() -> None:
    bench = Bench()
    client = bench.connect("c", 5, properties=expiry(60))
    client.subscribe("t", 1)
    client.lose()
    bench.connect("s").send(publish("t", b"x", 1, 1))
    client = bench.connect("c", 5, clean=True, properties=expiry(60))
    assert client.connack[1][0] == 0
    bench.connect("s").send(publish("t", b"x", 1, 1))
    assert client.received() == b""


def test_taking_over_a_clean_session_does_not_resume_it() -> None:
    bench = Bench()
    client = bench.connect("c", 4, clean=True)
    client.subscribe("t", 1)
    client = bench.connect("c", 4, clean=False)
    assert client.connack[1] == b"\x00\x00"


def test_a_session_changes_the_version_of_its_connection() -> None:
    bench = Bench()
    client = bench.connect("c", 5, properties=expiry(100))
    client.subscribe("t", 1, properties=b"\x0b\x05")
    sender = bench.connect("s")
    sender.send(publish("t", b"x", 1, 1))
    assert client.received() == publish("t", b"x", 1, 1, 5, properties=b"\x0b\x05")
    client.lose()
    client = bench.connect("c", 4, clean=False)
    assert client.received() == publish("t", b"x", 1, 1, dup=True)
    sender.send(publish("t", b"y", 1, 1))
    assert client.received() == publish("t", b"y", 1, 2)


def test_a_session_whose_queue_was_deleted_gets_another() -> None:
    bench = Bench()
    client = bench.connect("c", 4, clean=False)
    client.subscribe("t", 1)
    vhost = bench.broker.vhosts["/"]
    vhost.delete_queue(vhost.queues["amq.mqtt-session.c"])
    bench.connect("s").send(publish("t", b"x", 1, 1) * 2)
    assert client.received() == publish("t", b"x", 1, 1) + publish("t", b"x", 1, 2)


# Wills (3.1.2.5)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_1_2_8_will_is_published_when_the_network_fails(version: int, qos: int) -> None:
    bench = Bench()
    listener = bench.connect("l", version)
    listener.subscribe("will/#", 2)
    client = bench.connect("c", version, will=("will/c", b"gone", qos, False))
    assert listener.received() == b""
    client.lose()
    assert listener.received() == publish("will/c", b"gone", qos, 1, version)


@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_3_14_4_3_disconnect_withdraws_the_will(version: int) -> None:
    bench = Bench()
    listener = bench.connect("l", version)
    listener.subscribe("will/#")
    bench.connect("c", version, will=("will/c", b"gone", 0, False)).leave()
    assert listener.received() == b""


def test_disconnect_with_will() -> None:
    bench = Bench()
    listener = bench.connect("l", 5)
    listener.subscribe("will/#")
    for reason in (0x04, 0x80):
        client = bench.connect("c", 5, will=("will/c", b"gone", 0, False))
        client.send(bytes((0xE0, 1, reason)))
        client.lose()
        assert listener.received() == publish("will/c", b"gone", version=5)


def test_will_of_a_kept_session_is_published_at_once_and_once() -> None:
    bench = Bench()
    client = bench.connect("c", 4, clean=False, will=("will/c", b"gone", 1, False))
    client.subscribe("will/#", 1)
    client.lose()
    bench.advance(10)
    client = bench.connect("c", 4, clean=False)
    assert client.received() == publish("will/c", b"gone", 1, 1)
    client.lose()
    assert bench.connect("c", 4, clean=False).received() == (
        publish("will/c", b"gone", 1, 1, dup=True)
    )


def test_will_is_published_on_keep_alive_timeout_bad_packet_and_takeover() -> None:
    bench = Bench()
    listener = bench.connect("l")
    listener.subscribe("will/#")
    gone = publish("will/c", b"gone")
    bench.connect("c", keep_alive=1, will=("will/c", b"gone", 0, False))
    bench.advance(5)
    assert listener.received() == gone
    bench.connect("c", will=("will/c", b"gone", 0, False)).send(b"\x00\x00")
    assert listener.received() == gone
    bench.connect("c", will=("will/c", b"gone", 0, False))
    bench.connect("c")
    assert listener.received() == gone


def test_mqtt_3_1_2_17_retained_will() -> None:
    bench = Bench()
    bench.connect("c", will=("will/c", b"gone", 1, True)).lose()
    listener = bench.connect("l")
    listener.subscribe("will/+", 1)
    assert listener.received() == publish("will/c", b"gone", 1, 1, retain=True)


def test_mqtt_3_1_3_9_will_delay() -> None:
    bench = Bench()
    listener = bench.connect("l", 5)
    listener.subscribe("will/#")
    for _ in range(2):
        client = bench.connect(
            "c",
            5,
            clean=False,
            properties=expiry(100),
            will=("will/c", b"gone", 0, False),
            will_properties=delay(10),
        )
        client.lose()
        bench.advance(9)
        assert listener.received() == b""
    bench.advance(2)
    assert listener.received() == publish("will/c", b"gone", version=5)
    bench.advance(200)
    assert listener.received() == b""


def test_wills_are_published_in_the_order_of_their_times() -> None:
    bench = Bench()
    listener = bench.connect("l", 5)
    listener.subscribe("will/#")

    def leave(name: str) -> None:
        bench.connect(
            name,
            5,
            clean=False,
            properties=expiry(100),
            will=(f"will/{name}", b"gone", 0, False),
            will_properties=delay(10),
        ).lose()

    leave("a")
    bench.advance(0.2)
    leave("b")
    bench.advance(0.2)
    # Its earlier time does not count any more.
    leave("a")
    bench.advance(9)
    # One tick finds all three times.
    bench.advance(1.5)
    assert listener.received() == (
        publish("will/b", b"gone", version=5) + publish("will/a", b"gone", version=5)
    )


def test_mqtt_3_1_3_9_session_end_comes_before_the_will_delay() -> None:
    bench = Bench()
    listener = bench.connect("l", 5)
    listener.subscribe("will/#")
    gone = publish("will/c", b"gone", version=5)
    will = ("will/c", b"gone", 0, False)
    bench.connect("c", 5, will=will, will_properties=delay(10)).lose()
    assert listener.received() == gone
    client = bench.connect("c", 5, properties=expiry(5), will=will, will_properties=delay(10))
    client.lose()
    bench.advance(6)
    assert listener.received() == gone
    client = bench.connect("c", 5, properties=expiry(50), will=will, will_properties=delay(10))
    client.lose()
    bench.connect("c", 5, clean=True)
    assert listener.received() == gone


def test_will_properties_are_published() -> None:
    bench = Bench()
    listener = bench.connect("l", 5)
    listener.subscribe("will/#")
    given = b"\x03" + text("text/plain") + b"\x26" + text("a") + text("b")
    bench.connect(
        "c", 5, will=("will/c", b"gone", 0, False), will_properties=delay(0) + given
    ).lose()
    assert listener.received() == publish("will/c", b"gone", version=5, properties=given)


@pytest.mark.parametrize("topic", ["", "a/+", "#"])
def test_will_topic_must_be_a_topic_name(topic: str) -> None:
    bench = Bench()
    for version, answer in ((4, b""), (5, b"\x20\x03\x00\x90\x00")):
        client = bench.client()
        client.send(connect("c", version, will=(topic, b"", 0, False)))
        assert client.received() == answer
        assert client.is_closed


def test_a_refused_acknowledgement_frees_its_identifier() -> None:
    bench = Bench()
    client = bench.connect("c", 5, properties=expiry(100) + b"\x21\x00\x01")
    client.subscribe("t", 2)
    bench.connect("s", 5).send(publish("t", b"1", 2, 1, 5) + publish("t", b"2", 2, 2, 5))
    client.received()
    client.send(acknowledge(0x50, 1, 0x83))
    assert client.received() == publish("t", b"2", 2, 2, 5)
    client.lose()
    client = bench.connect("c", 5, clean=False)
    assert client.received() == publish("t", b"2", 2, 2, 5, dup=True)


@pytest.mark.parametrize("topic_filter", ["t/#", "$share/g/t/#"])
def test_dead_letters_of_a_session_that_subscribes_to_them_do_not_go_round(
    topic_filter: str,
) -> None:
    bench = Bench()
    vhost = bench.broker.vhosts["/"]
    client = bench.connect("c", 5, properties=expiry(60))
    client.subscribe(topic_filter, 1)
    client.lose()
    (queue,) = vhost.queues.values()
    vhost.set_policy(Policy("p", ".*", {"max-length": 1, "dead-letter-exchange": "amq.topic"}))
    sender = bench.connect("s", 5)
    for number in range(3):
        sender.send(publish("t/a", b"%d" % number, 1, number + 1, 5))
    bench.finish()
    assert (len(queue), queue.published) == (1, 3)
    assert broker_of(vhost).dead_letters.lost.counts["cycle"] == 2
