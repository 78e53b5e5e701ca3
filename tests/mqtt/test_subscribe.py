"""SUBSCRIBE and UNSUBSCRIBE: filters, options, identifiers, retained messages."""

from __future__ import annotations

import pytest

from tests.support.core import message
from tests.support.mqtt import (
    Client,
    Server,
    block,
    packet,
    puback,
    publish,
    pubrec,
    subscribe,
    text,
    unsubscribe,
)
from tests.support.server import ShortTurns
from trivium.config import Config, LimitsConfig, StorageConfig
from trivium.messages.topics import key_of
from trivium_mqtt.connection import MqttConnection
from trivium_mqtt.options import MqttOptions

NO_LOCAL = 0x04
RETAIN_AS_PUBLISHED = 0x08
SEND_IF_NEW = 0x10
SEND_NEVER = 0x20


def identifier(number: int) -> bytes:
    out = b"\x0b"
    while number > 0x7F:
        out += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return out + bytes((number,))


@pytest.mark.parametrize(
    ("topic_filter", "topics", "others"),
    [
        ("a/b", ["a/b"], ["a", "a/b/c", "A/b", "/a/b", "a/b/"]),
        ("a/+", ["a/b", "a/"], ["a", "a/b/c"]),
        ("+/b", ["a/b", "/b"], ["b", "$a/b"]),
        ("+", ["a"], ["a/b", "/a", "$a"]),
        ("+/+", ["a/b", "/b", "/"], ["a", "$a/b"]),
        ("a/#", ["a", "a/b", "a/b/c", "a/"], ["ab", "/a", "b"]),
        ("#", ["a", "a/b", "/", "a//b"], ["$a", "$a/b"]),
        ("$a/#", ["$a", "$a/b"], ["a"]),
        ("$a/+", ["$a/b"], ["$a", "a/b"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/b/c"]),
        ("+/#", ["a", "a/b/c", "/"], ["$a"]),
        ("a.b/+", ["a.b/c.d"], ["a/b/c", "a.b"]),
        ("a b/ü/+", ["a b/ü/é"], ["a b/u/é"]),
        ("%2B/*", ["%2B/*"], ["a/*", "%2B/a"]),
    ],
)
def test_mqtt_4_7_wildcards(topic_filter: str, topics: list[str], others: list[str]) -> None:
    server = Server()
    client = server.open("c")
    client.subscribe(topic_filter)
    vhost = server.broker.vhosts["/"]
    exchange = vhost.exchange("amq.topic")
    for topic in (*topics, *others):
        # Not by an MQTT client, which may not publish to topics with a $.
        key = key_of(topic.encode())
        vhost.publish(message(b"x", key, "amq.topic"), vhost.route(exchange, key))
        server.end_turn()
        assert client.take_bytes() == (publish(topic, b"x") if topic in topics else b""), topic


INVALID_FILTERS = ["", "a+", "+a/b", "a/b#", "#/a", "a/#/b", "a/#b", "/#" * 200]


@pytest.mark.parametrize("topic_filter", INVALID_FILTERS)
def test_mqtt_4_7_1_filters_that_are_not_valid(topic_filter: str) -> None:
    server = Server()
    client = server.open("a", 5)
    client.feed(subscribe(topic_filter, 0, 7, 5))
    assert client.take_bytes() == b"\x90\x04\x00\x07\x00\x8f"
    assert not client.is_closed
    client = server.open("b", 4)
    client.feed(subscribe(topic_filter, 0, 7))
    assert client.is_closed


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x00\x01\x00", 0x82),  # no filter (MQTT-3.8.3-2)
        (b"\x00\x00\x00" + text("a") + b"\x00", 0x82),  # identifier 0
        (b"\x00\x01\x00" + text("a"), 0x81),  # no options
        (b"\x00\x01\x00" + text("a") + b"\x03", 0x81),  # QoS 3 (MQTT-3.8.3-4)
        (b"\x00\x01\x00" + text("a") + b"\x30", 0x81),  # retain handling 3
        (b"\x00\x01\x00" + text("a") + b"\x40", 0x81),  # reserved bits (MQTT-3.8.3-5)
        (b"\x00\x01\x00" + text(b"\xc3") + b"\x00", 0x81),
        (b"\x00\x01" + block(b"\x0b\x00") + text("a") + b"\x00", 0x82),  # identifier 0
        (b"\x00\x01" + block(b"\x0b\x01\x0b\x02") + text("a") + b"\x00", 0x82),
        (b"\x00", 0x81),
    ],
)
def test_subscribe_that_is_not_valid(body: bytes, reason: int) -> None:
    client = Server().open("a", 5)
    client.feed(packet(0x82, body))
    assert client.take_bytes() == bytes((0xE0, 1, reason))


@pytest.mark.parametrize("options", [0x03, 0x04, 0x08, 0x10, 0x80])
def test_mqtt_3_8_3_4_reserved_bits_of_mqtt_3(options: int) -> None:
    client = Server().open("a", 4)
    client.feed(subscribe("a", options))
    assert client.is_closed


def test_suback_has_a_code_for_each_filter() -> None:
    client = Server().open("a", 5)
    body = b"\x01\x02\x00" + b"".join(
        text(topic_filter) + bytes((qos,))
        for topic_filter, qos in (("a", 0), ("b/#", 1), ("c#", 1), ("d", 2), ("$share/g", 0))
    )
    client.feed(packet(0x82, body))
    assert client.take_bytes() == b"\x90\x08\x01\x02\x00\x00\x01\x8f\x02\x8f"


def test_the_number_of_subscriptions_is_limited() -> None:
    client = Server(options=MqttOptions(maximum_subscriptions=2)).open("a", 5)
    client.subscribe("a")
    client.subscribe("b")
    client.feed(subscribe("c", 0, 7, 5))
    assert client.take_bytes() == b"\x90\x04\x00\x07\x00\x97"
    client.subscribe("b", 1)


def test_mqtt_3_8_4_3_same_filter_replaces_the_subscription() -> None:
    server = Server()
    client = server.open("c")
    client.subscribe("t", 0)
    client.subscribe("t", 2)
    sender = server.open("s")
    sender.feed(publish("t", b"x", 1, 1))
    assert client.take_bytes() == publish("t", b"x", 1, 1)
    client.subscribe("t", 0)
    sender.feed(publish("t", b"x", 1, 2))
    assert client.take_bytes() == publish("t", b"x")


def test_mqtt_3_3_5_1_overlapping_subscriptions_deliver_once_at_the_highest_qos() -> None:
    server = Server()
    client = server.open("c", 5)
    client.subscribe("t/#", 0, properties=identifier(1))
    client.subscribe("t/+", 2, properties=identifier(200))
    client.subscribe("+/a", 1)
    server.open("s", 5).feed(publish("t/a", b"x", 2, 1, 5))
    assert client.take_bytes() in (
        publish("t/a", b"x", 2, 1, 5, properties=identifier(1) + identifier(200)),
        publish("t/a", b"x", 2, 1, 5, properties=identifier(200) + identifier(1)),
    )


def test_thousands_of_overlapping_subscriptions_are_bounded() -> None:
    server = Server()
    client = server.open("c", 5)
    levels = ["a"] * 13
    for number in range(5000):
        pattern = ["+" if number >> place & 1 else "a" for place in range(13)]
        client.feed(subscribe("/".join(pattern), 1, 1, 5, identifier(number + 1)))
    client.take_bytes()
    server.open("s", 5).feed(publish("/".join(levels), b"x", 1, 1, 5))
    ((first, body),) = client.take()
    assert first == 0x32
    assert 12_000 < len(body) < 13_000


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_3_4_3_subscription_identifier_goes_to_its_subscriber_only(qos: int) -> None:
    server = Server()
    with_one = server.open("a", 5)
    with_one.subscribe("t", 2, properties=identifier(268_435_455))
    without = server.open("b", 5)
    without.subscribe("t", 2)
    old = server.open("c", 4)
    old.subscribe("t", 2)
    sender = server.open("s", 5)
    for packet_id in (1, 2):
        sender.feed(publish("t", b"x", qos, packet_id, 5))
        assert with_one.take_bytes() == publish(
            "t", b"x", qos, packet_id, 5, properties=identifier(268_435_455)
        )
        assert without.take_bytes() == publish("t", b"x", qos, packet_id, 5)
        assert old.take_bytes() == publish("t", b"x", qos, packet_id)


def test_a_subscription_identifier_can_be_removed() -> None:
    server = Server()
    client = server.open("a", 5)
    client.subscribe("t", 0, properties=identifier(5))
    client.subscribe("t", 0)
    server.open("s", 5).feed(publish("t", b"x", version=5))
    assert client.take_bytes() == publish("t", b"x", version=5)


@pytest.mark.parametrize("qos", [0, 1])
def test_mqtt_3_8_3_3_no_local(qos: int) -> None:
    server = Server()
    client = server.open("a", 5)
    other = server.open("b", 5)
    client.subscribe("t", 1 | NO_LOCAL)
    client.feed(publish("t", b"x", qos, 1, 5) * 3)
    assert client.take_bytes() == (puback(1) * 3 if qos else b"")
    other.feed(publish("t", b"x", qos, 1, 5))
    assert client.take_bytes() == publish("t", b"x", qos, 1, 5)
    # Another subscription of the same client that does want its own messages.
    client.subscribe("#", 0, properties=identifier(3))
    client.feed(publish("t", b"x", qos, 1, 5))
    expected = publish("t", b"x", 0, 1, 5, properties=identifier(3))
    assert client.take_bytes() == expected + (puback(1) if qos else b"")


@pytest.mark.parametrize("version", [4, 5])
def test_unsubscribe(version: int) -> None:
    server = Server()
    client = server.open("c", version)
    sender = server.open("s", version)
    client.subscribe("t/+", 1)
    sender.feed(publish("t/a", b"x", version=version))
    client.take_bytes()
    client.feed(unsubscribe("t/#", 8, version) + unsubscribe("t/+", 9, version))
    if version == 5:
        assert client.take_bytes() == b"\xb0\x04\x00\x08\x00\x11" + b"\xb0\x04\x00\x09\x00\x00"
    else:
        assert client.take_bytes() == b"\xb0\x02\x00\x08" + b"\xb0\x02\x00\x09"
    sender.feed(publish("t/a", b"x", version=version))
    assert client.take_bytes() == b""


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"\x00\x01\x00", 0x82), (b"\x00\x00\x00" + text("a"), 0x82), (b"\x00\x01\x00\x00", 0x81)],
)
def test_unsubscribe_that_is_not_valid(body: bytes, reason: int) -> None:
    client = Server().open("a", 5)
    client.feed(packet(0xA2, body))
    assert client.take_bytes() == bytes((0xE0, 1, reason))


def test_mqtt_3_10_4_3_deliveries_under_way_are_completed_after_unsubscribe() -> None:
    server = Server()
    client = server.open("c", 5, properties=b"\x21\x00\x01")
    client.subscribe("t", 1)
    server.open("s", 5).feed(publish("t", b"1", 1, 1, 5) + publish("t", b"2", 1, 2, 5))
    assert client.take_bytes() == publish("t", b"1", 1, 1, 5)
    client.feed(unsubscribe("t", 9, 5) + puback(1))
    assert client.take() == [(0xB0, b"\x00\x09\x00\x00"), (0x32, text("t") + b"\x00\x02\x002")]


# Retained messages (3.3.1.3)


def retained_bench(qos: int = 1, version: int = 4) -> Server:
    server = Server()
    server.open("s", version).feed(publish("t/a", b"kept", qos, 1, version, retain=True))
    return server


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
def test_mqtt_3_3_1_6_retained_message_goes_to_a_new_subscription(version: int, qos: int) -> None:
    server = retained_bench(qos)
    for topic_filter in ("t/a", "t/+", "#"):
        client = server.open("c", version)
        client.subscribe(topic_filter, 2)
        assert client.take_bytes() == publish("t/a", b"kept", qos, 1, version, retain=True)
    client = server.open("c", version)
    client.subscribe("t/b")
    assert client.take_bytes() == b""


def test_mqtt_3_3_1_9_retain_is_cleared_for_established_subscriptions() -> None:
    server = Server()
    client = server.open("c", 5)
    client.subscribe("t", 1)
    sender = server.open("s", 5)
    for qos in (0, 1):
        sender.feed(publish("t", b"x", qos, 1, 5, retain=True))
        assert client.take_bytes() == publish("t", b"x", qos, 1, 5)


@pytest.mark.parametrize("qos", [0, 1])
def test_mqtt_3_3_1_12_retain_as_published(qos: int) -> None:
    server = Server()
    client = server.open("c", 5)
    client.subscribe("t", 1 | RETAIN_AS_PUBLISHED)
    sender = server.open("s", 5)
    sender.feed(publish("t", b"x", qos, 1, 5, retain=True))
    assert client.take_bytes() == publish("t", b"x", qos, 1, 5, retain=True)
    sender.feed(publish("t", b"x", qos, 2, 5))
    assert client.take_bytes() == publish("t", b"x", qos, 2, 5)


def test_mqtt_3_3_1_6_empty_payload_clears() -> None:
    server = retained_bench()
    listener = server.open("l")
    listener.subscribe("t/#")
    listener.take_bytes()
    server.open("s").feed(publish("t/a", b"", 0, retain=True))
    assert listener.take_bytes() == publish("t/a", b"")
    client = server.open("c")
    client.subscribe("t/a")
    assert client.take_bytes() == b""


def test_retained_message_is_replaced() -> None:
    server = retained_bench()
    server.open("s").feed(publish("t/a", b"newer", retain=True))
    client = server.open("c")
    client.subscribe("t/a", 1)
    assert client.take_bytes() == publish("t/a", b"newer", retain=True)


def test_mqtt_3_3_1_10_retain_handling() -> None:
    server = retained_bench(0)
    kept = publish("t/a", b"kept", version=5, retain=True)
    client = server.open("c", 5)
    client.subscribe("t/a", SEND_NEVER)
    assert client.take_bytes() == b""
    client.subscribe("t/a", SEND_IF_NEW)
    assert client.take_bytes() == b""
    client.subscribe("t/a", 0)
    assert client.take_bytes() == kept
    client.subscribe("t/+", SEND_IF_NEW)
    assert client.take_bytes() == kept


def test_retained_message_carries_the_subscription_identifier() -> None:
    server = retained_bench(1, 5)
    client = server.open("c", 5)
    client.subscribe("t/a", 1, properties=identifier(9))
    assert client.take_bytes() == publish(
        "t/a", b"kept", 1, 1, 5, retain=True, properties=identifier(9)
    )


def test_retained_message_of_dollar_topics_needs_a_dollar_filter() -> None:
    server = Server()
    kept = message(b"kept", b"$x.a", "amq.topic")
    server.broker.vhosts["/"].retained.keep(kept)
    client = server.open("c")
    client.subscribe("#")
    client.subscribe("+/a")
    assert client.take_bytes() == b""
    client.subscribe("$x/#")
    assert client.take_bytes() == publish("$x/a", b"kept", retain=True)


def test_thousands_of_retained_messages_come_as_the_client_reads() -> None:
    server = Server()
    sender = server.open("s")
    topics = [f"t/{number}" for number in range(3000)]
    for topic in topics:
        sender.feed(publish(topic, bytes(1000), retain=True))
    client = server.open("c")
    client.connection.is_writable = False
    client.feed(subscribe("t/#"))
    assert client.connection.output_size == 5
    # Replaced and cleared ones are not sent in their old form after the new one.
    sender.feed(publish("t/1", b"new", retain=True) + publish("t/2", b"", retain=True))
    read_on(client)
    got = client.take()
    assert got[0] == (0x90, b"\x00\x01\x00")
    assert got[1:3] == [(0x30, text("t/1") + b"new"), (0x30, text("t/2"))]
    assert {first for first, _ in got[3:]} == {0x31}
    assert len(got) == 3 + 2998


def test_retained_messages_at_qos_1_do_not_flood_the_queue() -> None:
    server = Server()
    sender = server.open("s", 5)
    for number in range(5000):
        sender.feed(publish(f"t/{number}", b"x", 1, 1, 5, retain=True))
    client = server.open("c", 5, properties=b"\x21\x00\x0a")
    client.subscribe("t/#", 1)
    queue = server.broker.vhosts["/"].queues["amq.mqtt-session.c"]
    seen = 0
    while got := client.take():
        assert len(queue) <= 1024
        seen += len(got)
        client.feed(b"".join(packet(0x40, body[-4:-2]) for _, body in got))
    assert seen == 5000


def read_on(client: Client) -> None:
    """The client reads again."""
    client.connection.resume_writing()
    client.server.advance(0)


def test_subscriptions_whose_retained_messages_wait_are_limited() -> None:
    server = Server()
    sender = server.open("s")
    for number in range(300):
        sender.feed(publish(f"t/{number}", b"x", 1, 1, retain=True))
    client = server.open("c", 5)
    client.connection.is_writable = False
    client.feed(*(subscribe(f"t/{number}", 1, 1, 5) for number in range(300)))
    # A filter that waits already may be subscribed to again.
    client.feed(subscribe("t/0", 1, 1, 5))
    read_on(client)
    codes = [body[-1] for first, body in client.take() if first == 0x90]
    assert codes == [1] * 256 + [0x97] * 44 + [1]


def test_any_number_of_filters_in_one_packet_get_their_retained_messages() -> None:
    server = Server()
    sender = server.open("s")
    topics = [f"t/{number}" for number in range(600)]
    for topic in topics:
        sender.feed(publish(topic, b"x", 1, 1, retain=True))
    client = server.open("c")
    filters = b"".join(text(topic) + b"\x00" for topic in topics)
    client.feed(packet(0x82, b"\x00\x01" + filters))
    got = client.take()
    assert [body for first, body in got if first == 0x90] == [b"\x00\x01" + bytes(600)]
    assert [body[2:-1].decode() for first, body in got if first == 0x31] == topics


def test_mqtt_3_3_1_9_the_rest_of_the_retained_messages_is_the_sessions() -> None:
    server = Server()
    sender = server.open("s")
    for number in range(3000):
        sender.feed(publish(f"t/{number}", b"x", 1, 1, retain=True))
    window = b"\x11\x00\x00\x10\x00\x21\x00\x0a"
    client = server.open("c", 5, clean=False, properties=window)
    client.subscribe("t/#", 1)
    seen: set[bytes] = set()
    for cut in (100, 1000, 3000):
        while len(seen) < cut and (got := client.take()):
            assert all(first & 7 == 3 for first, _ in got)
            seen |= {body[2:-4] for _, body in got}
            client.feed(b"".join(packet(0x40, body[-4:-2]) for _, body in got))
        client.lose()
        client = server.open("c", 5, clean=False, properties=window)
        server.advance(0)
    assert len(seen) == 3000
    assert client.take() == []


def test_the_rest_of_retained_messages_at_qos_0_goes_on_with_the_newest() -> None:
    server = Server()
    sender = server.open("s")
    topics = {f"t/{number}" for number in range(3000)}
    for topic in topics:
        sender.feed(publish(topic, bytes(1000), retain=True))
    client = server.open("c", clean=False)
    client.connection.is_writable = False
    client.feed(subscribe("t/#"))
    client.lose()
    sender.feed(publish("t/7", b"new", retain=True) + publish("t/8", b"", retain=True))
    client = server.open("c", clean=False)
    server.advance(0)
    got = client.take()
    assert {first for first, _ in got} == {0x31}
    assert {body[2:].partition(b"\x00")[0].decode() for _, body in got if len(body) > 900} == (
        topics - {"t/7", "t/8"}
    )
    assert [body for _, body in got if len(body) < 900] == [text("t/7") + b"new"]


def test_what_was_queued_live_does_not_come_as_retained_as_well() -> None:
    server = Server()
    sender = server.open("s")
    for number in range(3000):
        sender.feed(publish(f"t/{number:04}", b"old", 1, 1, retain=True))
    client = server.open("c", clean=False)
    client.connection.is_writable = False
    client.feed(subscribe("t/#", 1))
    client.lose()
    sender.feed(publish("t/2999", b"new", 1, 1, retain=True))
    client = server.open("c", clean=False)
    got: list[tuple[int, bytes]] = []
    while found := client.take():
        got += found
        client.feed(b"".join(packet(0x40, body[8:10]) for _, body in found))
    assert [first & 1 for first, body in got if body[2:8] == b"t/2999"] == [0]
    assert len(got) == 3000


@pytest.mark.parametrize("reader", ["slow", "full"])
def test_where_the_live_update_was_dropped_the_retained_one_comes(reader: str) -> None:
    """Neither old nor new would leave a reader without a value for good."""
    config = Config(
        storage=StorageConfig(mode="memory"), limits=LimitsConfig(live_burst_bytes=1 << 20)
    )
    server = Server(options=MqttOptions(maximum_queued=500), config=config)
    sender = server.open("s", 5)
    topics = [f"t/{number:05}" for number in range(4000)]
    qos = 0 if reader == "slow" else 1
    for topic in topics:
        sender.feed(publish(topic, b"o" * 1500, qos, 1, 5, retain=True))
    client = server.open("c", 5)
    client.connection.is_writable = False
    client.feed(subscribe("t/#", qos, 1, 5))
    for topic in topics:
        sender.feed(publish(topic, b"n" * 1500, qos, 1, 5, retain=True))
    dropped = server.adapter.metrics.messages_dropped
    assert dropped > 2000
    values: dict[bytes, bytes] = {}
    read_on(client)
    while got := client.take():
        for first, body in got:
            if first & 0xF0 == 0x30:
                values[body[2:9]] = body[-1:]
        client.feed(b"".join(packet(0x40, body[9:11]) for first, body in got if first & 0x02))
        server.advance(0)
    assert values.keys() == {topic.encode() for topic in topics}
    # Where the old one left before the update there was nothing more to do for QoS 0.
    assert sum(value == b"n" for value in values.values()) >= dropped - 1000


def test_mqtt_3_10_4_2_nothing_is_added_after_unsubscribe() -> None:
    server = Server()
    sender = server.open("s")
    for number in range(3000):
        sender.feed(publish(f"t/{number}", bytes(1000), retain=True))
    client = server.open("c")
    client.connection.is_writable = False
    client.feed(subscribe("t/#") + unsubscribe("t/#"))
    read_on(client)
    assert client.take() == [(0x90, b"\x00\x01\x00"), (0xB0, b"\x00\x01")]


def test_a_retained_message_that_expires_before_its_turn_is_not_sent() -> None:
    server = Server()
    sender = server.open("s", 5)
    sender.feed(publish("t", b"x", version=5, retain=True, properties=b"\x02\x00\x00\x00\x05"))
    client = server.open("c", 5)
    client.connection.is_writable = False
    client.feed(subscribe("t", version=5))
    server.advance(5)
    read_on(client)
    assert client.take() == [(0x90, b"\x00\x01\x00\x00")]


def test_a_turn_takes_a_bounded_part_of_the_retained_messages() -> None:
    server = Server()
    sender = server.open("s")
    for number in range(10_000):
        sender.feed(publish(f"t/{number}", b"x", retain=True))
    client = server.open("c")
    client.connection.feed(subscribe("+/none") + subscribe("t/#"))
    client.server.broker.end_turn()
    assert 0 < len(client.take()) < 9000
    server.advance(0)
    assert server.adapter.metrics.messages_sent == 10_000


def test_subscription_of_qos_2_gets_qos_2_retained() -> None:
    server = Server()
    sender = server.open("s")
    sender.feed(publish("t", b"x", 2, 1, retain=True))
    client = server.open("c")
    client.subscribe("t", 2)
    assert client.take_bytes() == publish("t", b"x", 2, 1, retain=True)
    client.feed(pubrec(1))
    assert client.take() == [(0x62, b"\x00\x01")]


# Very many filters in one packet


def short_turns(version: int = 5) -> tuple[Client, ShortTurns]:
    server = Server(options=MqttOptions(maximum_subscriptions=10))
    driver = ShortTurns()
    server.broker.driver = server.driver = driver
    return server.open(version=version), driver


def many(first: int, count: int, version: int) -> bytes:
    options = b"\x00" if first == 0x82 else b""
    body = b"\x00\x07" + (block(b"") if version == 5 else b"")
    return packet(first, body + b"".join(text(f"t/{n}") + options for n in range(count)))


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_a_packet_with_many_filters_is_carried_out_a_part_in_each_turn(
    version: int, first: int
) -> None:
    client, driver = short_turns(version)
    if first == 0xA2:
        for number in range(5):
            client.subscribe(f"t/{number}")
    client.feed(many(first, 5, version) + b"\xc0\x00")
    connection = client.connection
    assert isinstance(connection, MqttConnection)
    session = connection.session
    assert session is not None
    for turn in range(1, 5):
        assert session.subscriptions is not None
        assert len(session.subscriptions) == (turn if first == 0x82 else 5 - turn)
        assert client.take_bytes() == b""
        assert client.transport.is_paused
        assert driver.next == [client.connection]
        driver.next.clear()
        client.connection.next_turn()
        client.feed()
    assert [packet_type for packet_type, _ in client.take()] == [
        0x90 if first == 0x82 else 0xB0,
        0xD0,
    ]
    assert not client.transport.is_paused
    assert driver.next == []


def test_a_wrong_filter_behind_many_ends_the_connection_in_its_turn() -> None:
    client, _ = short_turns(4)
    client.feed(packet(0x82, b"\x00\x07" + text("a") + b"\x00" + text("#/a") + b"\x00"))
    assert not client.is_closed
    client.connection.next_turn()
    assert client.is_closed


def test_a_client_that_leaves_while_its_filters_are_taken_is_gone() -> None:
    client, _ = short_turns()
    client.feed(many(0x82, 5, 5))
    client.lose()
    client.connection.next_turn()
    assert not client.server.vhost.exchange("amq.topic").bindings()


@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_more_filters_than_a_session_may_have_are_not_looked_at(first: int) -> None:
    client, _ = short_turns()
    client.feed(many(first, 11, 5))
    assert client.take_bytes() == b"\xe0\x01\x97"
    assert client.is_closed
