"""MQTT 5 properties of messages: forwarding, aliases, expiry, and translation."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.mqtt import Server, publish, subscribe, text
from tests.support.server import NOW_MS
from trivium.messages.message import (
    AT_LEAST_ONCE,
    PROTOCOL_NONE,
    Address,
    HeaderValue,
    Message,
    Properties,
    PropertyCodec,
    register_codec,
)
from trivium.observability.metrics import ProtocolMetrics
from trivium.routing.exchanges import Binding
from trivium_mqtt.codec.properties import MqttCodec, encode_neutral
from trivium_mqtt.options import MqttOptions

RECEIVED = (
    b"\x01\x01"
    + (b"\x26" + text("a") + text("1"))
    + (b"\x03" + text("text/plain"))
    + (b"\x26" + text("b") + text("2"))
    + (b"\x26" + text("a") + text("1"))
    + (b"\x08" + text("re/ply.x"))
    + (b"\x09" + text(b"\x00\xff"))
)


def expires(seconds: int) -> bytes:
    return b"\x02" + struct.pack(">I", seconds)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_3_2_17_properties_are_forwarded_unaltered(qos: int) -> None:
    server = Server()
    client = server.open("c", 5)
    client.subscribe("t", 2)
    old = server.open("d", 4)
    old.subscribe("t", 2)
    sender = server.open("s", 5)
    for packet_id in (1, 2, 3):
        sender.feed(publish("t", b"x", qos, packet_id, 5, properties=RECEIVED))
        assert client.take_bytes() == publish("t", b"x", qos, packet_id, 5, properties=RECEIVED)
        assert old.take_bytes() == publish("t", b"x", qos, packet_id)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (b"\x0b\x01", 0x82),  # subscription identifier from a client (MQTT-3.3.4-6)
        (b"\x23\x00\x00", 0x94),  # topic alias 0 (MQTT-3.3.2-8)
        (b"\x23\x00\x41", 0x94),  # above the maximum (MQTT-3.3.2-9)
        (b"\x08" + text("a/+"), 0x90),  # response topic with a wildcard (MQTT-3.3.2-14)
        (b"\x08" + text(b"\xff"), 0x81),
        (b"\x01\x02", 0x82),
        (b"\x01\x01\x01\x01", 0x82),
        (b"\x03" + text("a") + b"\x03" + text("a"), 0x82),
        (b"\x02\x00\x00", 0x81),
        (b"\x11\x00\x00\x00\x00", 0x81),  # of another packet
        (b"\x26" + text("a"), 0x81),
        (b"\xa6\x00" + text("a"), 0x81),  # no identifier takes two bytes
    ],
)
def test_publish_properties_that_are_not_valid(properties: bytes, reason: int) -> None:
    client = Server().open("c", 5)
    client.feed(publish("t", b"x", version=5, properties=RECEIVED))
    client.feed(publish("t", b"x", version=5, properties=properties))
    assert client.take_bytes() == bytes((0xE0, 1, reason))


# Topic aliases (3.3.2.3.4)


def alias(number: int) -> bytes:
    return b"\x23" + struct.pack(">H", number)


def test_a_client_sets_uses_and_changes_topic_aliases() -> None:
    server = Server()
    client = server.open("c", 5)
    client.subscribe("#", 1)
    sender = server.open("s", 5)
    user = b"\x26" + text("a") + text("b")
    sender.feed(
        publish("one", b"1", version=5, properties=alias(1) + user)
        + publish("two", b"2", version=5, properties=alias(64))
        + publish("", b"3", version=5, properties=alias(1))
        + publish("", b"4", 1, 7, version=5, properties=user + alias(64))
        + publish("three", b"5", version=5, properties=alias(1))
        + publish("", b"6", version=5, properties=alias(1))
        + publish("", b"7", version=5, properties=alias(1))
    )
    assert client.take_bytes() == (
        publish("one", b"1", version=5, properties=user)
        + publish("two", b"2", version=5)
        + publish("one", b"3", version=5)
        + publish("two", b"4", 1, 1, version=5, properties=user)
        + publish("three", b"5", version=5)
        + publish("three", b"6", version=5)
        + publish("three", b"7", version=5)
    )


def test_mqtt_3_3_2_7_aliases_end_with_the_connection() -> None:
    server = Server()
    sender = server.open("s", 5)
    sender.feed(publish("one", b"1", version=5, properties=alias(1)))
    sender.lose()
    sender = server.open("s", 5)
    sender.feed(publish("", b"1", version=5, properties=alias(1)))
    assert sender.take_bytes() == b"\xe0\x01\x82"


def test_an_alias_for_a_topic_that_is_not_valid() -> None:
    client = Server().open("s", 5)
    client.feed(publish("a/#", b"1", version=5, properties=alias(1)))
    assert client.take_bytes() == b"\xe0\x01\x90"


def test_mqtt_3_1_2_26_the_broker_uses_as_many_aliases_as_the_client_allows() -> None:
    server = Server()
    client = server.open("c", 5, properties=b"\x22\x00\x02")
    client.subscribe("#", 1)
    sender = server.open("s", 5)
    for qos in (0, 1):
        sender.feed(b"".join(publish(topic, b"x", qos, 1, 5) for topic in ("a", "b", "c", "a")))
    assert client.take_bytes() == (
        publish("a", b"x", version=5, properties=alias(1))
        + publish("b", b"x", version=5, properties=alias(2))
        + publish("c", b"x", version=5)
        + publish("", b"x", version=5, properties=alias(1))
        + publish("", b"x", 1, 1, version=5, properties=alias(1))
        + publish("", b"x", 1, 2, version=5, properties=alias(2))
        + publish("c", b"x", 1, 3, version=5)
        + publish("", b"x", 1, 4, version=5, properties=alias(1))
    )


def test_no_aliases_by_configuration() -> None:
    server = Server(options=MqttOptions(topic_alias_maximum=0))
    client = server.open("c", 5, properties=b"\x22\x00\x02")
    assert b"\x22\x00" not in client.connack[1]
    client.subscribe("a", 1)
    client.feed(publish("a", b"x", version=5))
    assert client.take_bytes() == publish("a", b"x", version=5)


# Message expiry (3.3.2.3.3)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_3_2_6_the_remaining_lifetime_is_forwarded(qos: int) -> None:
    server = Server()
    user = b"\x26" + text("a") + text("b")
    live = server.open("live", 5)
    live.subscribe("t", qos)
    client = server.open("c", 5, properties=b"\x11\x00\x00\x10\x00")
    client.subscribe("t", qos)
    client.lose()
    server.open("s", 5).feed(
        publish("t", b"x", qos, 1, 5, retain=True, properties=expires(100) + user)
    )
    assert live.take_bytes() == publish("t", b"x", qos, 1, 5, properties=user + expires(100))
    server.advance(60)
    client = server.open("c", 5, clean=False, properties=b"\x11\x00\x00\x10\x00")
    if qos:
        assert client.take_bytes() == publish("t", b"x", qos, 1, 5, properties=user + expires(40))
    fresh = server.open("d", 5)
    fresh.subscribe("t", qos)
    assert fresh.take_bytes() == publish(
        "t", b"x", qos, 1, 5, retain=True, properties=user + expires(40)
    )
    old = server.open("e", 4)
    old.subscribe("t", qos)
    assert old.take_bytes() == publish("t", b"x", qos, 1, retain=True)


def test_mqtt_3_3_2_5_expired_messages_are_not_delivered() -> None:
    server = Server()
    client = server.open("c", 5, properties=b"\x11\x00\x00\x10\x00")
    client.subscribe("t", 1)
    client.lose()
    sender = server.open("s", 5)
    sender.feed(
        publish("t", b"x", 1, 1, 5, retain=True, properties=expires(10))
        + publish("t", b"y", 1, 2, 5, properties=expires(1000))
    )
    server.advance(11)
    client = server.open("c", 5, clean=False)
    assert client.take_bytes() == publish("t", b"y", 1, 1, 5, properties=expires(989))
    client = server.open("d", 5)
    client.subscribe("t", 1)
    assert client.take_bytes() == b""


def test_a_message_under_way_keeps_its_identifier_although_it_expired() -> None:
    server = Server()
    client = server.open("c", 5, properties=b"\x11\x00\x00\x10\x00")
    client.subscribe("t", 2)
    server.open("s", 5).feed(publish("t", b"x", 2, 1, 5, properties=expires(10)))
    client.take_bytes()
    client.lose()
    server.advance(11)
    client = server.open("c", 5, clean=False)
    assert client.take_bytes() == publish("t", b"x", 2, 1, 5, dup=True, properties=expires(0))


# Translation (the neutral form)


def test_decoding_into_the_neutral_form() -> None:
    neutral = MqttCodec().decode(RECEIVED + expires(7))
    assert neutral.payload_is_text
    assert neutral.content_type == "text/plain"
    assert neutral.headers == [("a", "1"), ("b", "2"), ("a", "1")]
    assert neutral.reply_to_topic == b"re.ply/x"
    assert neutral.correlation_id == b"\x00\xff"
    assert neutral.expiration == 7000
    assert MqttCodec().decode(b"").headers == []


names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@given(
    st.one_of(st.none(), names),
    st.one_of(st.none(), st.binary(max_size=20)),
    st.lists(st.tuples(names, names), max_size=5),
    st.booleans(),
)
def test_what_mqtt_can_carry_survives_encoding_and_decoding(
    content_type: str | None,
    correlation_id: bytes | None,
    headers: list[tuple[str, HeaderValue]],
    is_text: bool,
) -> None:
    metrics = ProtocolMetrics()
    neutral = Properties(
        content_type=content_type,
        correlation_id=correlation_id,
        headers=headers,
        payload_is_text=is_text,
        reply_to_topic=b"a.b",
    )
    again = MqttCodec().decode(encode_neutral(neutral, metrics))
    assert again.content_type == content_type
    assert again.correlation_id == correlation_id
    assert again.headers == headers
    assert again.payload_is_text == is_text
    assert again.reply_to_topic == b"a.b"
    assert metrics.properties_dropped == 0


def test_values_of_other_protocols_become_text_or_are_counted() -> None:
    metrics = ProtocolMetrics()
    headers: list[tuple[str, HeaderValue]] = [
        ("int", -5),
        ("big", 2**64),
        ("float", 1.5),
        ("true", True),
        ("false", False),
        ("void", None),
        ("time", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("bytes", b"\xff"),
        ("list", [1]),
        ("dict", {"a": 1}),
        ("nul", "a\x00"),
        ("surrogate", "\ud800"),
        ("long", "x" * 65_536),
        ("n" * 65_536, "x"),
    ]
    neutral = Properties(
        headers=headers,
        content_type="a\x00b",
        correlation_id=bytes(65_536),
        reply_to_topic=b"\xff",
    )
    again = MqttCodec().decode(encode_neutral(neutral, metrics))
    assert again.headers == [
        ("int", "-5"),
        ("big", "18446744073709551616"),
        ("float", "1.5"),
        ("true", "true"),
        ("false", "false"),
        ("void", ""),
        ("time", "2026-01-02T03:04:05+00:00"),
    ]
    assert metrics.properties_dropped == 10


class ForeignCodec(PropertyCodec):
    def decode(self, header: bytes) -> Properties:
        return Properties(content_type=header.decode(), headers=[("n", 1), ("x", b"")])


def foreign(server: Server, key: bytes, mode: int = AT_LEAST_ONCE, lifetime: int = 0) -> Message:
    now_ms = server.broker.now_ms
    register_codec(99, ForeignCodec())
    return Message(
        99,
        Address("amq.topic", key),
        b"text/plain",
        b"x",
        mode,
        mode > 0,
        now_ms,
        now_ms + lifetime if lifetime else 0,
    )


@pytest.mark.parametrize("mode", [0, 1])
def test_a_message_of_another_protocol(mode: int) -> None:
    server = Server()
    receivers = [server.open("a", 5), server.open("b", 5), server.open("c", 4)]
    for receiver in receivers:
        receiver.subscribe("a.b/c", 1)
    vhost = server.broker.vhosts["/"]
    message = foreign(server, b"a/b.c", mode, 1500)
    vhost.route(vhost.exchange("amq.topic"), b"a/b.c").publish(message)
    server.settle()
    properties = b"\x03" + text("text/plain") + b"\x26" + text("n") + text("1") + expires(2)
    expected = publish("a.b/c", b"x", mode, 1, 5, properties=properties)
    assert receivers[0].take_bytes() == expected
    assert receivers[1].take_bytes() == expected
    assert receivers[2].take_bytes() == publish("a.b/c", b"x", mode)
    # The binary header has no form in MQTT, which is counted once for the message.
    assert server.adapter.metrics.properties_dropped == 1


@pytest.mark.parametrize("mode", [0, 1])
def test_a_key_without_an_mqtt_form_is_dropped_and_counted(mode: int) -> None:
    server = Server()
    client = server.open("c", 4)
    client.subscribe("#", 1)
    vhost = server.broker.vhosts["/"]
    vhost.route(vhost.exchange("amq.topic"), b"\xff").publish(foreign(server, b"\xff", mode))
    server.settle()
    assert client.take_bytes() == b""
    assert server.adapter.metrics.messages_dropped == 1
    queue = server.broker.vhosts["/"].queues["amq.mqtt-session.c"]
    assert len(queue) == queue.unsettled == 0


def test_mqtt_messages_reach_queues_with_their_properties() -> None:
    server = Server()
    vhost = server.broker.vhosts["/"]
    queue = vhost.declare_queue("q")
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"a/b.*"))
    sender = server.open("s", 5)
    sender.feed(publish("a.b/c", b"x", 1, 1, 5, properties=RECEIVED + alias(3)))
    entry = queue.get()
    assert entry is not None
    message = entry.message
    assert message.header == RECEIVED
    assert message.address.key == b"a/b.c"
    assert message.persistent
    assert message.mode == AT_LEAST_ONCE
    assert message.properties().headers == [("a", "1"), ("b", "2"), ("a", "1")]


def test_headers_that_the_broker_added_go_along() -> None:
    server = Server()
    client = server.open("c", 5)
    client.subscribe("t", 1)
    vhost = server.broker.vhosts["/"]
    message = foreign(server, b"t")
    register_codec(99, ForeignCodec())
    annotated = Message(
        PROTOCOL_NONE, message.address, b"", b"x", 1, True, 0, annotations={"x-reason": "expired"}
    )
    vhost.route(vhost.exchange("amq.topic"), b"t").publish(annotated)
    server.settle()
    properties = b"\x26" + text("x-reason") + text("expired")
    assert client.take_bytes() == publish("t", b"x", 1, 1, 5, properties=properties)


def test_request_and_response() -> None:
    server = Server()
    requester = server.open("a", 5)
    requester.subscribe("replies/a", 1)
    responder = server.open("b", 5)
    responder.subscribe("service", 1)
    request = b"\x08" + text("replies/a") + b"\x09" + text("77")
    requester.feed(publish("service", b"?", 1, 1, 5, properties=request))
    assert responder.take_bytes() == publish("service", b"?", 1, 1, 5, properties=request)
    answer = b"\x09" + text("77")
    responder.feed(publish("replies/a", b"!", 1, 1, 5, properties=answer))
    _, got = requester.take()
    assert got == (0x32, publish("replies/a", b"!", 1, 1, 5, properties=answer)[2:])


def test_subscribe_may_carry_user_properties() -> None:
    client = Server().open("c", 5)
    client.feed(subscribe("a", 0, 3, 5, b"\x26" + text("a") + text("b")))
    assert client.take_bytes() == b"\x90\x04\x00\x03\x00\x00"


def test_a_dead_letter_tells_its_history_as_user_properties() -> None:
    server = Server(now_ms=NOW_MS)
    receiver = server.open("r", 5)
    receiver.subscribe("dead", 1)
    vhost = server.broker.vhosts["/"]
    queue = vhost.declare_queue(
        "q",
        arguments={
            "x-dead-letter-exchange": "amq.topic",
            "x-dead-letter-routing-key": "dead",
        },
    )
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    own = b"\x26" + text("colour") + text("blue")
    server.open("s", 5).feed(publish("t", b"x", 1, 7, 5, properties=own))
    entry = queue.get()
    assert entry is not None
    queue.reject(entry)
    server.settle()
    history = (
        '[{"count":1,"reason":"rejected","queue":"q","time":"2027-01-15T08:00:00+00:00",'
        '"exchange":"amq.topic","routing-keys":["t"]}]'
    )
    expected = b""
    for name, value in (
        ("x-first-death-reason", "rejected"),
        ("x-first-death-queue", "q"),
        ("x-first-death-exchange", "amq.topic"),
        ("x-last-death-reason", "rejected"),
        ("x-last-death-queue", "q"),
        ("x-last-death-exchange", "amq.topic"),
        ("x-death", history),
        ("colour", "blue"),
    ):
        expected += b"\x26" + text(name) + text(value)
    assert receiver.take_bytes() == publish("dead", b"x", 1, 1, 5, properties=expected)
    assert server.adapter.metrics.properties_dropped == 0


@pytest.mark.parametrize("value", [[b"bytes"], {"at": [{1: b""}]}, [float("nan")]])
def test_a_history_that_is_no_json_is_dropped_and_counted(value: HeaderValue) -> None:
    metrics = ProtocolMetrics()
    assert encode_neutral(Properties(headers=[("x-death", value)]), metrics) == b""
    assert metrics.properties_dropped == 1
