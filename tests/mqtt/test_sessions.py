"""Sessions and wills within one run of the broker."""

from __future__ import annotations

import struct

import pytest

from tests.support.core import broker_of
from tests.support.mqtt import (
    Server,
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
    server = Server()
    client = server.open("c")
    client.subscribe("t", 1)
    client.lose()
    assert not server.broker.vhosts["/"].queues
    assert not server.broker.vhosts["/"].exchange("amq.topic").bindings()
    client = server.open("c", clean=False)
    assert client.connack[1] == b"\x00\x00"


def test_mqtt_3_1_2_4_session_present() -> None:
    server = Server()
    server.open("c", 4, clean=False).lose()
    client = server.open("c", 4, clean=False)
    assert client.connack[1] == b"\x01\x00"
    client.lose()
    # MQTT 3.1 has no such flag.
    client = server.open("c", 3, clean=False)
    assert client.connack[1] == b"\x00\x00"
    client.lose()
    client = server.open("c", 4, clean=True)
    assert client.connack[1] == b"\x00\x00"


def test_mqtt_3_1_2_5_messages_wait_for_a_kept_session() -> None:
    server = Server()
    client = server.open("c", 4, clean=False)
    client.subscribe("t", 2)
    client.lose()
    sender = server.open("s")
    sender.feed(publish("t", b"0") + publish("t", b"1", 1, 1) + publish("t", b"2", 2, 2))
    client = server.open("c", 4, clean=False)
    assert client.take_bytes() == publish("t", b"1", 1, 1) + publish("t", b"2", 2, 2)


def test_mqtt_4_4_0_1_unacknowledged_messages_come_again_with_their_identifiers() -> None:
    server = Server()
    client = server.open("c", 4, clean=False)
    client.subscribe("t", 2)
    sender = server.open("s")
    sender.feed(
        publish("t", b"1", 1, 1)
        + publish("t", b"2", 2, 2)
        + publish("t", b"3", 1, 3)
        + publish("t", b"4", 2, 4)
        + publish("t", b"5", 2, 5)
    )
    client.take_bytes()
    client.feed(puback(1) + pubrec(4) + pubrec(5) + pubcomp(5))
    client.lose()
    sender.feed(publish("t", b"6", 1, 6))
    client = server.open("c", 4, clean=False)
    assert client.take_bytes() == (
        pubrel(4)
        + publish("t", b"2", 2, 2, dup=True)
        + publish("t", b"3", 1, 3, dup=True)
        + publish("t", b"6", 1, 6)
    )
    client.feed(pubcomp(4) + pubrec(2) + puback(3) + puback(6))
    assert client.take_bytes() == pubrel(2)
    client.feed(pubcomp(2))
    client.lose()
    assert server.open("c", 4, clean=False).take_bytes() == b""
    assert server.adapter.metrics.messages_redelivered == 2


def test_mqtt_4_9_what_was_received_but_not_completed_before_counts_too() -> None:
    """Else a client that never completes anything would use up all identifiers."""
    server = Server()
    fields = {"properties": expiry(100) + b"\x21\x00\x02"}
    client = server.open_kept("c", 5, **fields)
    client.subscribe("t", 2)
    sender = server.open("sender", 5)
    for number in range(1, 5):
        sender.feed(publish("t", b"%d" % number, 2, number, 5))
    assert [first for first, _ in client.take()] == [0x34, 0x34]
    client.feed(pubrec(1) + pubrec(2))
    for _ in range(3):
        client.lose()
        client = server.open_kept("c", 5, **fields)
        assert client.take_bytes() == pubrel(1) + pubrel(2)
    client.feed(pubcomp(1))
    ((first, _),) = client.take()
    assert first == 0x34


def test_resending_keeps_to_a_smaller_receive_maximum() -> None:
    server = Server()
    client = server.open("c", 5, properties=expiry(100))
    client.subscribe("t", 1)
    server.open("s").feed(b"".join(publish("t", b"%d" % n, 1, n) for n in range(1, 6)))
    client.take_bytes()
    client.lose()
    client = server.open("c", 5, clean=False, properties=expiry(100) + b"\x21\x00\x02")
    assert client.take_bytes() == b"".join(
        publish("t", b"%d" % n, 1, n, 5, dup=True) for n in (1, 2)
    )
    client.feed(puback(2))
    assert client.take_bytes() == publish("t", b"3", 1, 3, 5, dup=True)


def test_identifiers_of_unacknowledged_messages_are_not_given_out_again() -> None:
    server = Server()
    client = server.open("c", 4, clean=False)
    client.subscribe("t", 1)
    sender = server.open("s")
    sender.feed(publish("t", b"kept", 1, 1))
    client.take_bytes()
    used: set[bytes] = set()
    for _ in range(66):
        sender.feed(publish("t", b"x", 1, 1) * 1000)
        for _, body in client.take():
            used.add(body[3:5])
            client.feed(packet(0x40, body[3:5]))
    assert len(used) == 65_534
    assert b"\x00\x01" not in used


def test_mqtt_4_6_0_1_messages_are_sent_again_in_their_order_when_identifiers_begin_anew() -> None:
    server = Server()
    client = server.open("c", 4, clean=False)
    client.subscribe("t", 1)
    sender = server.open("s")
    for _ in range(66):
        sender.feed(publish("t", b"x", 1, 1) * 992)
        for _, body in client.take():
            client.feed(packet(0x40, body[3:5]))
    # Of the 65,535 identifiers there are, 65,472 were used.
    sender.feed(b"".join(publish("t", b"%d" % number, 1, 1) for number in range(100)))
    sent = [body[3:] for _, body in client.take()]
    assert sent[62:64] == [b"\xff\xff62", b"\x00\x0163"]
    client.lose()
    client = server.open("c", 4, clean=False)
    assert [body[3:] for _, body in client.take()] == sent


@pytest.mark.parametrize("first", ["a", "b"])
def test_wills_that_are_due_at_one_time_come_by_client_identifier(first: str) -> None:
    server = Server()
    listener = server.open("l")
    listener.subscribe("will/#")
    for name in sorted("ab", key=first.__ne__):
        will = (f"will/{name}", b"", 0, False)
        server.open(name, 5, properties=expiry(60), will=will, will_properties=delay(30)).lose()
    server.advance(31)
    assert listener.take_bytes() == publish("will/a") + publish("will/b")


def test_mqtt_4_3_3_inbound_qos_2_identifiers_belong_to_the_session() -> None:
    server = Server()
    listener = server.open("l")
    listener.subscribe("t")
    client = server.open("c", 4, clean=False)
    client.feed(publish("t", b"x", 2, 9))
    client.lose()
    client = server.open("c", 4, clean=False)
    client.feed(publish("t", b"x", 2, 9, dup=True))
    assert client.take_bytes() == pubrec(9)
    assert listener.take_bytes() == publish("t", b"x")
    client.lose()
    client = server.open("c", 4, clean=True)
    client.feed(publish("t", b"x", 2, 9))
    assert listener.take_bytes() == publish("t", b"x")


def test_mqtt_3_1_2_23_session_expires() -> None:
    server = Server()
    client = server.open("c", 5, properties=expiry(60))
    client.subscribe("t", 1)
    client.lose()
    server.advance(59)
    client = server.open("c", 5, clean=False, properties=expiry(60))
    assert client.connack[1][0] == 1
    server.advance(120)
    assert not client.is_closed
    client.lose()
    server.advance(61)
    assert not server.broker.vhosts["/"].queues
    assert not server.broker.vhosts["/"].exchange("amq.topic").bindings()
    client = server.open("c", 5, clean=False)
    assert client.connack[1][0] == 0


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_moves_neither_the_end_of_a_session_nor_its_will(
    step: int,
) -> None:
    server = Server()
    listener = server.open("l", 5)
    listener.subscribe("will/#")
    will = ("will/c", b"gone", 0, False)
    server.open("c", 5, properties=expiry(60), will=will, will_properties=delay(30)).lose()
    server.step_clock(step)
    server.advance(29)
    assert listener.take_bytes() == b""
    server.advance(2)
    assert listener.take_bytes() == publish("will/c", b"gone", 0, 0, 5)
    server.advance(27)
    assert server.open("c", 5, clean=False, properties=expiry(60)).connack[1][0] == 1
    server.open("c", 5, clean=False, properties=expiry(60)).lose()
    server.step_clock(step)
    server.advance(61)
    assert server.open("c", 5, clean=False).connack[1][0] == 0


def test_session_expiry_zero_is_clean_and_maximum_is_never() -> None:
    server = Server()
    server.open("a", 5, clean=False).lose()
    server.open("b", 5, clean=False, properties=expiry(0xFFFF_FFFF)).lose()
    server.open("c", 4, clean=False).lose()
    server.advance(10**8)
    assert server.open("a", 5, clean=False).connack[1][0] == 0
    assert server.open("b", 5, clean=False).connack[1][0] == 1
    assert server.open("c", 4, clean=False).connack[1][0] == 1


def test_disconnect_changes_the_session_expiry() -> None:
    server = Server()
    client = server.open("c", 5, properties=expiry(60))
    client.feed(packet(0xE0, b"\x00" + b"\x05" + expiry(0)))
    client.lose()
    assert server.open("c", 5, clean=False, properties=expiry(60)).connack[1][0] == 0
    client = server.open("c", 5, clean=False, properties=expiry(60))
    client.feed(packet(0xE0, b"\x00" + b"\x05" + expiry(1000)))
    client.lose()
    server.advance(900)
    assert server.open("c", 5, clean=False).connack[1][0] == 1


def test_mqtt_3_14_2_2_expiry_cannot_be_raised_from_zero() -> None:
    client = Server().open("c", 5)
    client.feed(packet(0xE0, b"\x00" + b"\x05" + expiry(10)))
    assert client.take_bytes() == b"\xe0\x01\x82"


def test_the_broker_can_limit_session_expiry() -> None:
    server = Server(options=MqttOptions(maximum_session_expiry=100))
    client = server.open("c", 5, properties=expiry(1000))
    assert expiry(100) in client.connack[1]
    client.lose()
    server.open("d", 4, clean=False).lose()
    server.advance(101)
    assert server.open("c", 5, clean=False).connack[1][0] == 0
    assert server.open("d", 4, clean=False).connack[1] == b"\x00\x00"


def test_clean_start_of_a_kept_session_forgets_it() -> None:
    server = Server()
    client = server.open("c", 5, properties=expiry(60))
    client.subscribe("t", 1)
    client.lose()
    server.open("s").feed(publish("t", b"x", 1, 1))
    client = server.open("c", 5, clean=True, properties=expiry(60))
    assert client.connack[1][0] == 0
    server.open("s").feed(publish("t", b"x", 1, 1))
    assert client.take_bytes() == b""


def test_taking_over_a_clean_session_does_not_resume_it() -> None:
    server = Server()
    client = server.open("c", 4, clean=True)
    client.subscribe("t", 1)
    client = server.open("c", 4, clean=False)
    assert client.connack[1] == b"\x00\x00"


def test_a_session_changes_the_version_of_its_connection() -> None:
    server = Server()
    client = server.open("c", 5, properties=expiry(100))
    client.subscribe("t", 1, properties=b"\x0b\x05")
    sender = server.open("s")
    sender.feed(publish("t", b"x", 1, 1))
    assert client.take_bytes() == publish("t", b"x", 1, 1, 5, properties=b"\x0b\x05")
    client.lose()
    client = server.open("c", 4, clean=False)
    assert client.take_bytes() == publish("t", b"x", 1, 1, dup=True)
    sender.feed(publish("t", b"y", 1, 1))
    assert client.take_bytes() == publish("t", b"y", 1, 2)


def test_a_session_whose_queue_was_deleted_gets_another() -> None:
    server = Server()
    client = server.open("c", 4, clean=False)
    client.subscribe("t", 1)
    vhost = server.broker.vhosts["/"]
    vhost.delete_queue(vhost.queues["amq.mqtt-session.c"])
    server.open("s").feed(publish("t", b"x", 1, 1) * 2)
    assert client.take_bytes() == publish("t", b"x", 1, 1) + publish("t", b"x", 1, 2)


# Wills (3.1.2.5)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_1_2_8_will_is_published_when_the_network_fails(version: int, qos: int) -> None:
    server = Server()
    listener = server.open("l", version)
    listener.subscribe("will/#", 2)
    client = server.open("c", version, will=("will/c", b"gone", qos, False))
    assert listener.take_bytes() == b""
    client.lose()
    assert listener.take_bytes() == publish("will/c", b"gone", qos, 1, version)


@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_3_14_4_3_disconnect_withdraws_the_will(version: int) -> None:
    server = Server()
    listener = server.open("l", version)
    listener.subscribe("will/#")
    server.open("c", version, will=("will/c", b"gone", 0, False)).leave()
    assert listener.take_bytes() == b""


def test_disconnect_with_will() -> None:
    server = Server()
    listener = server.open("l", 5)
    listener.subscribe("will/#")
    for reason in (0x04, 0x80):
        client = server.open("c", 5, will=("will/c", b"gone", 0, False))
        client.feed(bytes((0xE0, 1, reason)))
        client.lose()
        assert listener.take_bytes() == publish("will/c", b"gone", version=5)


def test_will_of_a_kept_session_is_published_at_once_and_once() -> None:
    server = Server()
    client = server.open("c", 4, clean=False, will=("will/c", b"gone", 1, False))
    client.subscribe("will/#", 1)
    client.lose()
    server.advance(10)
    client = server.open("c", 4, clean=False)
    assert client.take_bytes() == publish("will/c", b"gone", 1, 1)
    client.lose()
    assert server.open("c", 4, clean=False).take_bytes() == (
        publish("will/c", b"gone", 1, 1, dup=True)
    )


def test_will_is_published_on_keep_alive_timeout_bad_packet_and_takeover() -> None:
    server = Server()
    listener = server.open("l")
    listener.subscribe("will/#")
    gone = publish("will/c", b"gone")
    server.open("c", keep_alive=1, will=("will/c", b"gone", 0, False))
    server.advance(5)
    assert listener.take_bytes() == gone
    server.open("c", will=("will/c", b"gone", 0, False)).feed(b"\x00\x00")
    assert listener.take_bytes() == gone
    server.open("c", will=("will/c", b"gone", 0, False))
    server.open("c")
    assert listener.take_bytes() == gone


def test_mqtt_3_1_2_17_retained_will() -> None:
    server = Server()
    server.open("c", will=("will/c", b"gone", 1, True)).lose()
    listener = server.open("l")
    listener.subscribe("will/+", 1)
    assert listener.take_bytes() == publish("will/c", b"gone", 1, 1, retain=True)


def test_mqtt_3_1_3_9_will_delay() -> None:
    server = Server()
    listener = server.open("l", 5)
    listener.subscribe("will/#")
    for _ in range(2):
        client = server.open(
            "c",
            5,
            clean=False,
            properties=expiry(100),
            will=("will/c", b"gone", 0, False),
            will_properties=delay(10),
        )
        client.lose()
        server.advance(9)
        assert listener.take_bytes() == b""
    server.advance(2)
    assert listener.take_bytes() == publish("will/c", b"gone", version=5)
    server.advance(200)
    assert listener.take_bytes() == b""


def test_wills_are_published_in_the_order_of_their_times() -> None:
    server = Server()
    listener = server.open("l", 5)
    listener.subscribe("will/#")

    def leave(name: str) -> None:
        server.open(
            name,
            5,
            clean=False,
            properties=expiry(100),
            will=(f"will/{name}", b"gone", 0, False),
            will_properties=delay(10),
        ).lose()

    leave("a")
    server.advance(0.2)
    leave("b")
    server.advance(0.2)
    # Its earlier time does not count any more.
    leave("a")
    server.advance(9)
    # One tick finds all three times.
    server.advance(1.5)
    assert listener.take_bytes() == (
        publish("will/b", b"gone", version=5) + publish("will/a", b"gone", version=5)
    )


def test_mqtt_3_1_3_9_session_end_comes_before_the_will_delay() -> None:
    server = Server()
    listener = server.open("l", 5)
    listener.subscribe("will/#")
    gone = publish("will/c", b"gone", version=5)
    will = ("will/c", b"gone", 0, False)
    server.open("c", 5, will=will, will_properties=delay(10)).lose()
    assert listener.take_bytes() == gone
    client = server.open("c", 5, properties=expiry(5), will=will, will_properties=delay(10))
    client.lose()
    server.advance(6)
    assert listener.take_bytes() == gone
    client = server.open("c", 5, properties=expiry(50), will=will, will_properties=delay(10))
    client.lose()
    server.open("c", 5, clean=True)
    assert listener.take_bytes() == gone


def test_will_properties_are_published() -> None:
    server = Server()
    listener = server.open("l", 5)
    listener.subscribe("will/#")
    given = b"\x03" + text("text/plain") + b"\x26" + text("a") + text("b")
    server.open("c", 5, will=("will/c", b"gone", 0, False), will_properties=delay(0) + given).lose()
    assert listener.take_bytes() == publish("will/c", b"gone", version=5, properties=given)


@pytest.mark.parametrize("topic", ["", "a/+", "#"])
def test_will_topic_must_be_a_topic_name(topic: str) -> None:
    server = Server()
    for version, answer in ((4, b""), (5, b"\x20\x03\x00\x90\x00")):
        client = server.connect()
        client.feed(connect("c", version, will=(topic, b"", 0, False)))
        assert client.take_bytes() == answer
        assert client.is_closed


def test_a_refused_acknowledgement_frees_its_identifier() -> None:
    server = Server()
    client = server.open("c", 5, properties=expiry(100) + b"\x21\x00\x01")
    client.subscribe("t", 2)
    server.open("s", 5).feed(publish("t", b"1", 2, 1, 5) + publish("t", b"2", 2, 2, 5))
    client.take_bytes()
    client.feed(acknowledge(0x50, 1, 0x83))
    assert client.take_bytes() == publish("t", b"2", 2, 2, 5)
    client.lose()
    client = server.open("c", 5, clean=False)
    assert client.take_bytes() == publish("t", b"2", 2, 2, 5, dup=True)


@pytest.mark.parametrize("topic_filter", ["t/#", "$share/g/t/#"])
def test_dead_letters_of_a_session_that_subscribes_to_them_do_not_go_round(
    topic_filter: str,
) -> None:
    server = Server()
    vhost = server.broker.vhosts["/"]
    client = server.open("c", 5, properties=expiry(60))
    client.subscribe(topic_filter, 1)
    client.lose()
    (queue,) = vhost.queues.values()
    vhost.set_policy(Policy("p", ".*", {"max-length": 1, "dead-letter-exchange": "amq.topic"}))
    sender = server.open("s", 5)
    for number in range(3):
        sender.feed(publish("t/a", b"%d" % number, 1, number + 1, 5))
    server.advance(0)
    assert (len(queue), queue.counters.published) == (1, 3)
    assert broker_of(vhost).dead_letters.lost.counts["cycle"] == 2
