"""PUBLISH in both directions: QoS 0, 1 and 2, topics, runs, limits."""

from __future__ import annotations

import pytest

from tests.support.core import drain, message
from tests.support.mqtt import (
    Client,
    Server,
    acknowledge,
    packet,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    subscribed,
    text,
)
from tests.support.server import ShortTurns
from tests.support.simulated import Host
from tests.support.storages import HeldStorage
from trivium.messages.message import HeaderValue
from trivium.routing.exchanges import Binding, ExchangeDestination
from trivium.runtime.adapter import OUTPUT_HIGH_WATER
from trivium.runtime.framed import CLOCK_FRAMES, FRAME_DELIVERIES
from trivium.runtime.pacing import MOMENT_MS, STALL_MS
from trivium_mqtt.options import MqttOptions


def pair(
    version: int, topic_filter: str, options: int, receiver_version: int = 0
) -> tuple[Client, Client]:
    """A publisher and a subscriber on one broker."""
    server = Server()
    receiver = server.open("receiver", receiver_version or version)
    receiver.subscribe(topic_filter, options)
    return server.open("sender", version), receiver


@pytest.mark.parametrize("version", [3, 4, 5])
def test_qos_0_is_forwarded_as_it_came(version: int) -> None:
    sender, receiver = pair(version, "a/b", 0)
    data = publish("a/b", b"payload", version=version)
    for _ in range(3):
        sender.feed(data)
        assert receiver.take_bytes() == data
        assert sender.take_bytes() == b""


@pytest.mark.parametrize("version", [4, 5])
def test_a_run_of_qos_0_packets_arrives_whole_and_in_order(version: int) -> None:
    sender, receiver = pair(version, "a/b", 2)
    data = b"".join(publish("a/b", b"%d" % i * (i % 300), version=version) for i in range(1000))
    sender.feed(data[:10_000], data[10_000:10_001], data[10_001:])
    assert receiver.take_bytes() == data
    assert sender.server.adapter.metrics.messages_received == 1000
    assert sender.server.adapter.metrics.messages_sent == 1000


@pytest.mark.parametrize("version", [4, 5])
def test_a_run_ends_where_the_topic_changes(version: int) -> None:
    sender, receiver = pair(version, "a", 0)
    mine = publish("a", b"x", version=version)
    data = mine + publish("b", b"x", version=version) + mine + publish("aa", b"", version=version)
    sender.feed((data + mine) * 3)
    assert receiver.take_bytes() == mine * 9


def test_topics_of_different_length_that_share_bytes() -> None:
    sender, receiver = pair(4, "ab", 0)
    # The payload of the first continues as the topic of the second would.
    data = publish("a", b"bx") + publish("ab", b"x") + publish("a", b"b") + publish("ab", b"")
    sender.feed(data)
    assert receiver.take_bytes() == publish("ab", b"x") + publish("ab", b"")


@pytest.mark.parametrize(("sender_version", "receiver_version"), [(4, 5), (5, 4), (3, 5), (5, 3)])
def test_between_versions(sender_version: int, receiver_version: int) -> None:
    sender, receiver = pair(sender_version, "a/b", 1, receiver_version)
    for qos in (0, 1):
        data = publish("a/b", b"x", qos, 1, sender_version)
        sender.feed(data + data)
        first = publish("a/b", b"x", qos, 1, receiver_version)
        second = publish("a/b", b"x", qos, 2, receiver_version)
        assert receiver.take_bytes() == first + second


def test_sizes_around_the_steps_of_the_remaining_length() -> None:
    for size in (0, 1, 124, 125, 126, 16_379, 16_380, 16_381, 16_382, 2_097_147, 2_097_148):
        sender, receiver = pair(4, "a", 1)
        data = publish("a", bytes(size))
        sender.feed(data * 2)
        assert receiver.take_bytes() == data * 2
        sender.feed(publish("a", bytes(size), 1, 9))
        assert receiver.take_bytes() == publish("a", bytes(size), 1, 1)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_mqtt_3_8_4_8_qos_is_the_lower_of_both(
    version: int, published: int, subscribed: int
) -> None:
    sender, receiver = pair(version, "t", subscribed)
    sender.feed(publish("t", b"x", published, 7, version))
    expected = [b"", puback(7), pubrec(7)][published]
    assert sender.take_bytes() == expected
    qos = min(published, subscribed)
    assert receiver.take_bytes() == publish("t", b"x", qos, 1, version)


def test_mqtt_4_6_0_2_pubacks_in_the_order_of_the_publishes() -> None:
    sender, receiver = pair(4, "t", 1)
    sender.feed(b"".join(publish("t", b"x", 1, number) for number in (5, 3, 9, 65_535, 1)))
    assert sender.take_bytes() == b"".join(map(puback, (5, 3, 9, 65_535, 1)))
    assert receiver.take_bytes() == b"".join(
        publish("t", b"x", 1, number) for number in range(1, 6)
    )


def test_puback_without_matching_subscribers() -> None:
    server = Server()
    sender = server.open("s", 5)
    sender.feed(publish("t", b"x", 1, 2, 5))
    assert sender.take_bytes() == acknowledge(0x40, 2, 0x10)
    sender.feed(publish("t", b"x", 2, 3, 5))
    assert sender.take_bytes() == acknowledge(0x50, 3, 0x10)
    sender = server.open("s", 4)
    sender.feed(publish("t", b"x", 1, 2) * 2)
    assert sender.take_bytes() == puback(2) * 2
    assert server.adapter.metrics.messages_unroutable == 4


def test_mqtt_4_3_3_qos_2_is_delivered_once() -> None:
    sender, receiver = pair(4, "t", 2)
    sender.feed(publish("t", b"x", 2, 4))
    assert sender.take_bytes() == pubrec(4)
    # Repeated before PUBREL, any number of times: the identifier tells.
    sender.feed(publish("t", b"x", 2, 4, dup=True) * 2 + publish("t", b"x", 2, 4))
    assert sender.take_bytes() == pubrec(4) * 3
    sender.feed(pubrel(4) + pubrel(4))
    assert sender.take_bytes() == pubcomp(4) * 2
    assert receiver.take_bytes() == publish("t", b"x", 2, 1)
    sender.feed(publish("t", b"x", 2, 4))
    assert sender.take_bytes() == pubrec(4)
    assert receiver.take_bytes() == publish("t", b"x", 2, 2)


def test_mqtt_4_3_3_qos_2_toward_the_client() -> None:
    sender, receiver = pair(4, "t", 2)
    sender.feed(publish("t", b"x", 2, 4))
    assert receiver.take_bytes() == publish("t", b"x", 2, 1)
    receiver.feed(pubrec(1))
    assert receiver.take_bytes() == pubrel(1)
    receiver.feed(pubrec(1))
    assert receiver.take_bytes() == pubrel(1)
    receiver.feed(pubcomp(1))
    assert receiver.take_bytes() == b""
    receiver.feed(pubcomp(1))
    assert receiver.take_bytes() == b""


def test_unknown_identifiers_in_mqtt_5() -> None:
    sender, receiver = pair(5, "t", 2)
    sender.feed(pubrel(4))
    assert sender.take_bytes() == acknowledge(0x70, 4, 0x92)
    receiver.feed(pubrec(4))
    assert receiver.take_bytes() == acknowledge(0x62, 4, 0x92)
    receiver.feed(acknowledge(0x50, 4, 0x80))
    receiver.feed(puback(4))
    assert receiver.take_bytes() == b""
    assert not receiver.is_closed


def test_mqtt_4_3_3_pubrec_with_an_error_ends_the_flow() -> None:
    sender, receiver = pair(5, "t", 2)
    sender.feed(publish("t", b"x", 2, 4, 5))
    receiver.take_bytes()
    receiver.feed(acknowledge(0x50, 1, 0x97))
    assert receiver.take_bytes() == b""
    session = receiver.connection
    assert not receiver.is_closed
    assert session is not None


def test_puback_with_reason_code_and_properties() -> None:
    sender, receiver = pair(5, "t", 1)
    sender.feed(publish("t", b"x", 1, 4, 5) * 3)
    receiver.take_bytes()
    user = b"\x26" + text("a") + text("b")
    receiver.feed(acknowledge(0x40, 1, 0x80) + packet(0x40, b"\x00\x02\x00\x07" + user))
    assert not receiver.is_closed
    queue = receiver.server.broker.vhosts["/"].queues["amq.mqtt-session.receiver"]
    assert queue.unsettled == 1
    receiver.feed(packet(0x40, b"\x00\x03\x00\x07" + user[:-1]))
    assert receiver.take_bytes() == b"\xe0\x01\x81"


@pytest.mark.parametrize(("qos", "answer"), [(1, pubrec(1)), (2, puback(1))])
def test_an_acknowledgement_of_the_wrong_kind(qos: int, answer: bytes) -> None:
    sender, receiver = pair(5, "t", 2)
    sender.feed(publish("t", b"x", qos, 4, 5))
    receiver.take_bytes()
    receiver.feed(answer)
    assert receiver.take_bytes() == b"\xe0\x01\x82"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (packet(0x36, text("t") + b"\x00\x01\x00"), 0x81),  # QoS 3 (MQTT-3.3.1-4)
        (packet(0x38, text("t") + b"\x00"), 0x81),  # DUP at QoS 0 (MQTT-3.3.1-2)
        (packet(0x32, text("t") + b"\x00\x00\x00"), 0x82),  # identifier 0 (MQTT-2.2.1-2)
        (packet(0x30, b"\x00"), 0x81),
        (packet(0x30, b"\x00\x05abc"), 0x81),
        (packet(0x32, text("t") + b"\x00"), 0x81),
        (packet(0x30, text("a/+") + b"\x00"), 0x90),  # MQTT-3.3.2-2
        (packet(0x30, text("a#") + b"\x00"), 0x90),
        (packet(0x30, text(b"a\x00b") + b"\x00"), 0x81),  # MQTT-4.7.3-2
        (packet(0x30, text(b"\xff") + b"\x00"), 0x81),  # MQTT-1.5.4-1
        (packet(0x30, text("/" * 200) + b"\x00"), 0x90),
    ],
)
def test_publish_that_is_not_valid(data: bytes, reason: int) -> None:
    server = Server()
    client = server.open("a", 5)
    client.feed(publish("t", b"x", version=5), data)
    assert client.take_bytes() == bytes((0xE0, 1, reason))
    assert client.is_closed
    client = server.open("b", 4)
    client.feed(publish("t", b"x"), data)
    assert client.take_bytes() == b""
    assert client.is_closed


def test_mqtt_3_3_1_2_dup_is_zero_for_qos_0() -> None:
    client = Server().open("c", 5)
    client.feed(b"\x38\x04" + text("t") + b"\x00")
    assert client.take_bytes() == b"\xe0\x01\x81"


def test_mqtt_4_7_3_1_empty_topic() -> None:
    client = Server().open("c", 4)
    client.feed(publish("", b"x"))
    assert client.is_closed
    client = Server().open("c", 5)
    client.feed(publish("", b"x", version=5))
    assert client.take_bytes() == b"\xe0\x01\x82"


def test_mqtt_4_7_3_1_empty_topic_where_something_is_bound() -> None:
    sender, receiver = pair(4, "t", 0)
    # What is told of a QoS 2 packet comes before any packet.
    sender.feed(b"\x62\x02\x00\x09")
    assert sender.take_bytes() == b"\x70\x02\x00\x09"
    sender.feed(publish("", b"x"))
    assert sender.is_closed
    assert receiver.take_bytes() == b""


def test_what_came_before_a_bad_packet_counts() -> None:
    sender, receiver = pair(4, "t", 0)
    good = publish("t", b"x")
    sender.feed(good * 3 + b"\x36\x03\x00\x01t" + good)
    assert receiver.take_bytes() == good * 3
    assert sender.is_closed


def test_mqtt_3_3_1_3_dup_of_the_publisher_is_not_forwarded() -> None:
    sender, receiver = pair(4, "t", 1)
    sender.feed(publish("t", b"x", 1, 3, dup=True))
    assert receiver.take_bytes() == publish("t", b"x", 1, 1)


# Windows and slow readers


def test_mqtt_3_3_4_9_the_clients_receive_maximum_is_kept() -> None:
    server = Server()
    receiver = server.open("r", 5, properties=b"\x21\x00\x02")
    receiver.subscribe("t", 2)
    sender = server.open("s", 5)
    for number in range(1, 6):
        sender.feed(publish("t", b"%d" % number, 1 + number % 2, number, 5))
    got = receiver.take()
    assert [body[-1:] for _, body in got] == [b"1", b"2"]
    receiver.feed(puback(2))
    assert [body[-1:] for _, body in receiver.take()] == [b"3"]
    receiver.feed(pubrec(1))
    assert receiver.take() == [(0x62, b"\x00\x01")]
    receiver.feed(pubcomp(1))
    assert [body[-1:] for _, body in receiver.take()] == [b"4"]


def test_mqtt_3_3_4_9_the_servers_receive_maximum_is_enforced() -> None:
    server = Server(options=MqttOptions(receive_maximum=3))
    client = server.open("s", 5)
    assert b"\x21\x00\x03" in client.connack[1]
    for number in (1, 2, 3):
        client.feed(publish("t", b"x", 2, number, 5))
    client.feed(pubrel(2) + publish("t", b"x", 2, 4, 5))
    assert not client.is_closed
    client.take_bytes()
    client.feed(publish("t", b"x", 1, 5, 5))
    assert client.take_bytes() == b"\xe0\x01\x93"


def test_mqtt_3_3_4_9_answers_that_wait_behind_others_count_against_it() -> None:
    server = Server(host=Host(), options=MqttOptions(receive_maximum=3))
    client = server.open("s", 5)
    # The first one waits for the disk; nobody wants the others.
    client.feed(
        publish("t", b"x", 1, 1, 5, retain=True)
        + b"".join(publish("nobody", b"x", 1, number, 5) for number in range(2, 40))
    )
    server.sync()
    answers = b"".join(acknowledge(0x40, number, 0x10) for number in (1, 2, 3))
    assert client.take_bytes() == answers + b"\xe0\x01\x93"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_run_of_another_protocol_reaches_a_session_as_its_messages_one_by_one(
    qos: int, mode: int
) -> None:
    seen: list[bytes] = []
    for together in (True, False):
        server = Server()
        client = server.open("c", 4)
        # It has a queue, whatever it wants of this topic.
        client.subscribe("other", 1)
        client.subscribe("a/b", qos)
        vhost = server.vhost
        route = vhost.route(vhost.exchange("amq.topic"), b"a.b")
        messages = [
            message(b"%d" % number, b"a.b", "amq.topic", mode > 0, mode) for number in range(3)
        ]
        if together and route.takes_runs(mode):
            vhost.publish_run(messages, route)
        else:
            for each in messages:
                vhost.publish(each, route)
        server.settle()
        seen.append(client.take_bytes())
        assert together or not route.takes_runs(0)
    assert seen[0] == seen[1]


def test_a_slow_qos_0_reader_loses_messages_instead_of_growing() -> None:
    server = Server()
    slow = server.open("slow", 4)
    slow.subscribe("t")
    quick = server.open("quick", 4)
    quick.subscribe("t")
    sender = server.open("s", 4)
    data = publish("t", bytes(1000)) * 250
    slow.connection.is_writable = False
    total = 0
    for _ in range(20):
        sender.feed(data)
        total += len(quick.take_bytes())
        # Its publisher waits for it at first, but it takes nothing.
        server.broker.now_ms += MOMENT_MS
        server.settle()
    assert total == 20 * len(data)
    assert slow.take_bytes() == b""
    mark = server.broker.config.limits.live_output_bytes
    moments = STALL_MS // MOMENT_MS + 1
    assert mark <= slow.connection.output_size < mark + (moments + 1) * len(data)
    held = slow.connection.output_size
    assert server.adapter.metrics.messages_dropped * 1006 == 20 * len(data) - held // 1006 * 1006
    slow.connection.resume_writing()
    server.settle()
    assert len(slow.take_bytes()) == held
    sender.feed(data)
    assert slow.take_bytes() == data


def test_qos_1_waits_in_the_queue_while_the_socket_is_full() -> None:
    server = Server()
    slow = server.open("slow", 4)
    slow.subscribe("t", 1)
    sender = server.open("s", 4)
    slow.connection.is_writable = False
    sender.feed(publish("t", b"x", 1, 1) * 3)
    assert slow.take_bytes() == b""
    slow.connection.resume_writing()
    server.settle()
    assert slow.take_bytes() == b"".join(publish("t", b"x", 1, number) for number in (1, 2, 3))


def test_a_client_that_does_not_read_its_answers_is_not_read_either() -> None:
    server = Server()
    client = server.open("c", 4)
    client.connection.is_writable = False
    client.feed(b"\xc0\x00" * (OUTPUT_HIGH_WATER // 2))
    assert client.transport.is_paused
    client.connection.resume_writing()
    server.settle()
    assert len(client.take_bytes()) == OUTPUT_HIGH_WATER
    assert not client.transport.is_paused


def test_messages_in_memory_are_limited_in_number() -> None:
    server = Server(options=MqttOptions(maximum_queued=10))
    client = server.open("c", 4, clean=False)
    client.subscribe("t", 1)
    client.lose()
    sender = server.open("s", 4)
    sender.feed(b"".join(publish("t", b"%d" % number, 1, number) for number in range(1, 21)))
    client = server.open("c", 4, clean=False)
    assert [body[5:] for _, body in client.take()] == [b"%d" % n for n in range(1, 11)]
    assert server.adapter.metrics.messages_dropped == 10


def test_mqtt_3_1_2_24_packets_above_the_clients_maximum_are_not_sent() -> None:
    server = Server()
    receiver = server.open("r", 5, properties=b"\x27\x00\x00\x00\x14")
    receiver.subscribe("t", 1)
    sender = server.open("s", 5)
    fits, large = bytes(10), bytes(40)
    for qos in (0, 1):
        data = [publish("t", payload, qos, 1, 5) for payload in (fits, large, fits)]
        sender.feed(b"".join(data))
    received = receiver.take()
    assert [len(body) for _, body in received] == [14, 14, 16, 16]
    assert server.adapter.metrics.messages_dropped == 2
    receiver.feed(puback(1) + puback(2))
    assert not receiver.is_closed


# Other destinations on the same topic


def test_a_queue_bound_to_the_topic_gets_every_message_of_a_run() -> None:
    sender, receiver = pair(4, "t", 0)
    vhost = sender.server.broker.vhosts["/"]
    queue = vhost.declare_queue("q")
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    data = b"".join(publish("t", b"%d" % number) for number in range(200))
    sender.feed(data)
    assert receiver.take_bytes() == data
    payloads = []
    while (entry := queue.get()) is not None:
        payloads.append(entry.message.payload)
        assert entry.message.address.key == b"t"
        assert not entry.message.persistent
    assert payloads == [b"%d" % number for number in range(200)]


def test_a_headers_exchange_behind_the_topic_sees_each_message() -> None:
    sender, _ = pair(5, "other", 0)
    vhost = sender.server.broker.vhosts["/"]
    queue = vhost.declare_queue("q")
    vhost.bind(
        vhost.exchange("amq.topic"),
        Binding(vhost.exchange("amq.headers").destination(), b"t"),
    )
    vhost.bind(vhost.exchange("amq.headers"), Binding(queue, b"", {"city": "Rome"}))
    rome = b"\x26" + text("city") + text("Rome")
    for qos in (0, 1):
        sender.feed(
            publish("t", b"1", qos, 1, 5, properties=rome)
            + publish("t", b"2", qos, 2, 5)
            + publish("t", b"3", qos, 3, 5, properties=rome)
        )
    assert len(queue) == 4


def test_rejected_by_a_full_queue() -> None:
    sender, _ = pair(5, "other", 0)
    vhost = sender.server.broker.vhosts["/"]
    queue = vhost.declare_queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    sender.feed(b"".join(publish("t", b"x", 1, number, 5) for number in (1, 2, 3)))
    assert sender.take_bytes() == (
        puback(1) + acknowledge(0x40, 2, 0x97) + acknowledge(0x40, 3, 0x97)
    )
    sender.feed(publish("t", b"x", 2, 4, 5))
    assert sender.take_bytes() == acknowledge(0x50, 4, 0x97)
    sender.feed(pubrel(4))
    assert sender.take_bytes() == acknowledge(0x70, 4, 0x92)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(("qos", "first"), [(1, 0x40), (2, 0x50)])
def test_a_message_that_one_of_its_queues_refuses_is_refused(
    qos: int, first: int, is_first: bool, retain: bool
) -> None:
    """Whatever the session beside it does, and whether it is kept as a retained message."""
    server = Server(HeldStorage())
    vhost = server.vhost
    arguments: dict[str, HeaderValue] = {"x-max-length": 0, "x-overflow": "reject-publish"}
    queue = vhost.declare_queue("full", arguments=arguments)
    binding = Binding(queue, b"t")
    if is_first:
        vhost.bind(vhost.exchange("amq.topic"), binding)
    subscribed(server, qos)
    if not is_first:
        vhost.bind(vhost.exchange("amq.topic"), binding)
    sender = server.open("sender", 5)
    sender.feed(publish("t", b"x", qos, 1, 5, retain=retain))
    server.sync()
    assert sender.take_bytes() == acknowledge(first, 1, 0x97)


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_has_no_refusal_so_a_refused_message_is_not_acknowledged_and_the_connection_ends(
    version: int, qos: int
) -> None:
    server = Server()
    vhost = server.broker.vhosts["/"]
    queue = vhost.declare_queue("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    sender = server.open("s", version, clean=False)
    sender.feed(b"".join(publish("t", b"%d" % number, qos, number) for number in (1, 2, 3, 4)))
    answer = puback if qos == 1 else pubrec
    assert sender.take_bytes() == answer(1) + answer(2)
    assert sender.is_closed
    assert server.adapter.metrics.protocol_errors == 0
    assert drain(queue) == [b"1", b"2"]
    sender.lose()
    # What was not acknowledged comes again, and nothing takes it for a repetition.
    sender = server.open("s", version, clean=False)
    sender.feed(publish("t", b"3", qos, 3, dup=True) + publish("t", b"4", qos, 4, dup=True))
    assert sender.take_bytes() == answer(3) + answer(4)
    assert drain(queue) == [b"3", b"4"]


@pytest.mark.parametrize("others", ["", "$share/g/t", "t"])
def test_a_refused_message_at_qos_0_is_dropped_and_counted(others: str) -> None:
    server = Server()
    vhost = server.broker.vhosts["/"]
    queue = vhost.declare_queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    if others:
        server.open("other", 4).subscribe(others, 0)
    sender = server.open("s", 4)
    sender.feed(publish("t", b"1") + publish("t", b"22") + publish("t", b"3"))
    assert not sender.is_closed
    assert drain(queue) == [b"1"]
    assert server.adapter.metrics.messages_received == 3
    assert server.adapter.metrics.messages_dropped == 2


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("depends_on_message", [False, True])
def test_what_nobody_wants_is_counted(depends_on_message: bool, qos: int) -> None:
    server = Server()
    vhost = server.broker.vhosts["/"]
    if depends_on_message:
        headers = vhost.declare_exchange("h", "headers")
        vhost.bind(vhost.exchange("amq.topic"), Binding(ExchangeDestination(headers), b"#"))
    sender = server.open("s", 5)
    sender.feed(b"".join(publish("t", b"x" * size, qos, size, 5) for size in (1, 2, 3)))
    assert server.adapter.metrics.messages_received == 3
    assert server.adapter.metrics.messages_unroutable == 3
    assert server.adapter.metrics.messages_dropped == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_retained_is_not_unroutable(qos: int) -> None:
    """But an acknowledgement tells that nobody is there to get it (MQTT5 3.4.2.1)."""
    server = Server()
    sender = server.open("s", 5)
    sender.feed(publish("t", b"x", qos, 7, 5, retain=True))
    assert server.adapter.metrics.messages_unroutable == 0
    assert len(server.vhost.retained) == 1
    answers = [b"", acknowledge(0x40, 7, 0x10), acknowledge(0x50, 7, 0x10)]
    assert sender.take_bytes() == answers[qos]


@pytest.mark.parametrize("binding", ["queue", "headers"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_run_that_must_be_published_ends_with_the_turn(qos: int, binding: str) -> None:
    server = Server()
    vhost = server.vhost
    queue = vhost.declare_queue("q")
    if binding == "headers":
        headers = vhost.declare_exchange("h", "headers")
        vhost.bind(vhost.exchange("amq.topic"), Binding(ExchangeDestination(headers), b"t"))
        vhost.bind(headers, Binding(queue, b"", {"x-match": "all"}))
    else:
        vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    driver = ShortTurns()
    server.broker.driver = server.driver = driver
    sender = server.open("s", 4)
    count = 5000
    run = [publish("t", b"x", qos, packet_id) for packet_id in range(1, count + 1)]
    sender.connection.feed(b"".join(run))
    turns = 1
    while driver.next:
        assert driver.next == [sender.connection]
        driver.next.clear()
        assert len(queue) <= turns * (2 * CLOCK_FRAMES)
        sender.connection.next_turn()
        turns += 1
    assert len(queue) == count
    assert turns >= count // (2 * CLOCK_FRAMES)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_with_many_destinations_take_turns(qos: int) -> None:
    server = Server()
    vhost = server.vhost
    queues = [vhost.declare_queue(f"q{number}") for number in range(FRAME_DELIVERIES * 16)]
    for queue in queues:
        vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    driver = ShortTurns()
    server.broker.driver = server.driver = driver
    sender = server.open("s", 4)
    count = 100
    run = [publish("t", b"x", qos, packet_id) for packet_id in range(1, count + 1)]
    sender.connection.feed(b"".join(run))
    turns = 1
    while driver.next:
        driver.next.clear()
        assert len(queues[-1]) <= turns * 2 * CLOCK_FRAMES // 16 + 1
        sender.connection.next_turn()
        turns += 1
    assert [len(queue) for queue in queues] == [count] * len(queues)


def test_a_repeated_packet_that_comes_in_two_parts_does_not_wait_for_more() -> None:
    sender, receiver = pair(4, "t", 0)
    # A longer packet that was cut as well, so that its size was waited for.
    longer = publish("t", b"longer", 1, 1)
    sender.feed(longer[:2], longer[2:] + publish("t", b"1") + publish("t", b"2")[:5])
    receiver.take_bytes()
    sender.feed(publish("t", b"2")[5:])
    assert receiver.take_bytes() == publish("t", b"2")


# Topics that are the broker's own


def own_topics_listener(server: Server) -> Client:
    listener = server.open("listener", 5)
    for topic_filter in ("$SYS/#", "$SYS/x", "$share/g/$SYS/#", "#", "$", "$x/#", "$share/g/$x/t"):
        listener.subscribe(topic_filter, 2)
        listener.take()
    return listener


def own_topics_heard(listener: Client) -> list[tuple[int, bytes]]:
    """What it got but for events, which are the broker's."""
    return [one for one in listener.take() if not one[1][2:].startswith(b"$SYS/events/")]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize(
    "topic", ["$SYS", "$SYS/x", "$SYS/x/y", "$SYS/", "$", "$share/g/t", "$x/t"]
)
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_publish_to_the_brokers_own_topics_is_refused(
    version: int, topic: str, retain: bool
) -> None:
    server = Server()
    listener = own_topics_listener(server)
    sender = server.open("s", version)
    # Twice, since what is repeated takes a shorter way.
    for _ in range(2):
        sender.feed(publish(topic, b"x", 0, 1, version, retain) * 2)
        assert sender.take_bytes() == b""
        sender.feed(publish(topic, b"x", 1, 7, version, retain))
        assert sender.take_bytes() == (acknowledge(0x40, 7, 0x87) if version == 5 else puback(7))
        sender.feed(publish(topic, b"x", 2, 8, version, retain))
        if version == 5:
            assert sender.take_bytes() == acknowledge(0x50, 8, 0x87)
        else:
            sender.feed(publish(topic, b"x", 2, 8, version, retain, dup=True) + pubrel(8))
            assert sender.take_bytes() == pubrec(8) * 2 + pubcomp(8)
    assert server.adapter.metrics.messages_dropped >= 8
    assert server.adapter.metrics.messages_received == server.adapter.metrics.messages_dropped
    assert own_topics_heard(listener) == []
    assert len(server.broker.vhosts["/"].retained) == 0
    assert not sender.is_closed


def test_a_topic_alias_does_not_lead_to_the_brokers_own_topics() -> None:
    server = Server()
    listener = own_topics_listener(server)
    sender = server.open("s", 5)
    alias = b"\x23\x00\x01"
    sender.feed(publish("$SYS/x", b"x", 1, 1, 5, properties=alias))
    sender.feed(publish("", b"x", 1, 2, 5, properties=alias))
    assert sender.take_bytes() == acknowledge(0x40, 1, 0x87) + acknowledge(0x40, 2, 0x87)
    assert own_topics_heard(listener) == []


@pytest.mark.parametrize("retain", [False, True])
def test_a_will_to_the_brokers_own_topics_is_dropped(retain: bool) -> None:
    server = Server()
    listener = own_topics_listener(server)
    server.open("s", will=("$SYS/x", b"gone", 1, retain)).lose()
    assert own_topics_heard(listener) == []
    assert len(server.broker.vhosts["/"].retained) == 0
    assert server.adapter.metrics.messages_dropped == 1


def test_no_other_road_leads_to_subscribers_of_the_brokers_own_topics() -> None:
    """AMQP and native clients publish to amq.topic, also through exchanges that are bound to it."""
    server = Server()
    listener = own_topics_listener(server)
    vhost = server.broker.vhosts["/"]
    outer = vhost.declare_exchange("outer", "fanout")
    vhost.bind(outer, Binding(ExchangeDestination(vhost.exchange("amq.topic")), b""))
    for name in ("amq.topic", "outer"):
        route = vhost.route(vhost.exchange(name), b"$SYS.x")
        route.publish(message(b"forged", b"$SYS.x", name))
    vhost.retained.keep(message(b"forged", b"$SYS.x", "amq.topic"))
    server.settle()
    assert own_topics_heard(listener) == []
    listener.subscribe("$SYS/x", 0)
    assert own_topics_heard(listener) == []
    # It is the key that counts and not the road.
    vhost.route(outer, b"x").publish(message(b"true", b"x", "outer"))
    server.settle()
    assert [body.endswith(b"true") for _, body in own_topics_heard(listener)] == [True]
