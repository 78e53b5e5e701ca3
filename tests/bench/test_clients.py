"""What the clients make of the bytes they get, whole and in pieces."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import amqp_frames, mqtt_frames
from bench.amqp_clients import AmqpConsumer, AmqpPublisher, AmqpSetup
from bench.endpoints import PeerError
from bench.frames import SEQUENCE, FrameBlock, payload
from bench.mqtt_clients import MqttPublisher, MqttSubscriber
from tests.support.endpoints import ADDRESS, BODY, feed


@contextmanager
def server_end(replies: bytes = b"") -> Iterator[socket.socket]:
    """Let the client under test connect to a socket pair that already holds ``replies``."""
    client, server = socket.socketpair()
    server.sendall(replies)
    with (
        server,
        client,
        mock.patch("bench.mqtt_clients.connect", return_value=client),
        mock.patch("bench.amqp_clients.connect", return_value=client),
    ):
        server.settimeout(5)
        yield server


CONNACK = bytes((mqtt_frames.CONNACK, 2, 0, 0))


def packets(first_byte: int, *packet_ids: int) -> bytes:
    return b"".join(bytes((first_byte, 2)) + number.to_bytes(2, "big") for number in packet_ids)


def publishes(qos: int, *numbers: int) -> bytes:
    """Return PUBLISH packets with these sequence numbers, and packet identifiers one above."""
    frame, fields = mqtt_frames.publish("t", qos, BODY)
    block = FrameBlock(frame, fields, len(numbers))
    block.column(SEQUENCE)[:] = numbers
    if qos:
        block.column(mqtt_frames.PACKET_ID)[:] = [number + 1 for number in numbers]
    return bytes(block.take(len(numbers)))


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_a_qos_1_publisher_counts_pubacks(piece: int) -> None:
    with server_end(CONNACK) as server:
        publisher = MqttPublisher(ADDRESS, "c", "t", 1, BODY, 10)
        assert publisher.publish(100) == 10
        assert publisher.unsettled == 10
        feed(publisher, server, packets(mqtt_frames.PUBACK, 1, 2, 3), piece)
        assert publisher.settled == 3
        assert publisher.unsettled == 7


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_a_qos_2_publisher_releases_what_was_received_and_settles_what_completed(
    piece: int,
) -> None:
    with server_end(CONNACK) as server:
        publisher = MqttPublisher(ADDRESS, "c", "t", 2, BODY, 10)
        publisher.publish(3)
        server.recv(10000)
        data = packets(mqtt_frames.PUBREC, 1, 2) + packets(mqtt_frames.PUBCOMP, 1)
        feed(publisher, server, data + packets(mqtt_frames.PUBREC, 3), piece)
        assert publisher.settled == 1
        assert server.recv(100) == packets(mqtt_frames.PUBREL, 1, 2, 3)


@pytest.mark.parametrize(("qos", "first_byte"), [(1, 0x50), (2, 0x40), (1, 0xD0)])
def test_a_publisher_takes_no_other_answers(qos: int, first_byte: int) -> None:
    with server_end(CONNACK) as server:
        publisher = MqttPublisher(ADDRESS, "c", "t", qos, BODY, 10)
        with pytest.raises(PeerError, match="not an acknowledgement"):
            feed(publisher, server, packets(first_byte, 1), 1000)


def test_packet_identifiers_wrap_from_65535_to_1() -> None:
    with server_end(CONNACK) as server:
        publisher = MqttPublisher(ADDRESS, "c", "t", 1, BODY, 10)
        server.recv(1000)
        publisher.sent = 65533
        publisher.publish(3)
        frame, fields = mqtt_frames.publish("t", 1, BODY)
        at = fields[mqtt_frames.PACKET_ID][1]
        sent = server.recv(1000)
        starts = range(at, 3 * len(frame), len(frame))
        assert [int.from_bytes(sent[i : i + 2], "big") for i in starts] == [65534, 65535, 1]


def subscriber(server: socket.socket, qos: int) -> MqttSubscriber:
    receiver = MqttSubscriber(ADDRESS, "c", "t", qos, BODY, 1000)
    server.recv(1000)
    return receiver


@pytest.mark.parametrize("piece", [1, 7, 100000])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscriber_counts_and_acknowledges_publishes(qos: int, piece: int) -> None:
    with server_end(CONNACK + bytes((0x90, 3, 0, 1, qos))) as server:
        receiver = subscriber(server, qos)
        feed(receiver, server, publishes(qos, *range(100)), piece)
        assert receiver.check.received == 100
        assert receiver.check.tally(100).lost == 0
        if qos:
            assert server.recv(10000) == packets(mqtt_frames.PUBACK, *range(1, 101))


@given(st.lists(st.integers(1, 300), max_size=6), st.integers(5, 5000))
def test_a_qos_2_subscriber_reads_any_mixture_of_publishes_and_releases(
    runs: list[int], piece: int
) -> None:
    data, answers, count = b"", b"", 0
    for index, length in enumerate(runs):
        if index % 2:
            data += packets(mqtt_frames.PUBREL, *range(1, length + 1))
            answers += packets(mqtt_frames.PUBCOMP, *range(1, length + 1))
        else:
            data += publishes(2, *range(count, count + length))
            answers += packets(mqtt_frames.PUBREC, *range(count + 1, count + length + 1))
            count += length
    with server_end(CONNACK + bytes((0x90, 3, 0, 1, 2))) as server:
        receiver = subscriber(server, 2)
        feed(receiver, server, data, piece)
        assert receiver.check.tally(count).lost == 0
        got = b""
        while len(got) < len(answers):
            got += server.recv(100000)
            receiver.writable()
        assert got == answers


def deliveries(*tags: int) -> bytes:
    """Return deliveries of the messages numbered one below their tags."""
    tag_and_flag = bytes(9)
    method = amqp_frames.method(
        1,
        amqp_frames.BASIC_DELIVER,
        amqp_frames.short_string("bench")
        + tag_and_flag
        + amqp_frames.short_string("")
        + amqp_frames.short_string("q"),
    )
    publish, _ = amqp_frames.publish(1, "", "q", BODY)
    content = publish[publish.index(bytes((amqp_frames.HEADER_FRAME, 0, 1))) :]
    frame = method + content
    layout = amqp_frames.delivery_layout(frame, len(frame))
    assert layout is not None
    block = FrameBlock(frame, layout.fields, len(tags))
    block.column(amqp_frames.DELIVERY_TAG)[:] = tags
    block.column(SEQUENCE)[:] = [tag - 1 for tag in tags]
    return bytes(block.take(len(tags)))


SETUP = b"".join(
    amqp_frames.method(channel, number, bytes(20))
    for channel, number in (
        (0, amqp_frames.CONNECTION_START),
        (0, amqp_frames.CONNECTION_TUNE),
        (0, amqp_frames.CONNECTION_OPEN_OK),
        (1, amqp_frames.CHANNEL_OPEN_OK),
    )
)
CONSUMING = b"".join(
    amqp_frames.method(1, number) for number in (amqp_frames.BASIC_QOS_OK, (60, 21))
)


@pytest.mark.parametrize("piece", [1, 50, 100000])
@pytest.mark.parametrize(
    ("every", "acknowledged"), [(1, list(range(1, 26))), (10, [10, 20, 25]), (100, [25])]
)
def test_a_consumer_acknowledges_every_so_many_and_the_rest_at_the_end(
    every: int, acknowledged: list[int], piece: int
) -> None:
    with server_end(SETUP + CONSUMING) as server:
        consumer = AmqpConsumer(AmqpSetup(ADDRESS), "q", BODY, 1000, every, 10000)
        server.recv(10000)
        feed(consumer, server, deliveries(*range(1, 26)), piece)
        consumer.finish()
        expected = b"".join(amqp_frames.ack(1, tag, multiple=every > 1) for tag in acknowledged)
        assert server.recv(10000) == expected
        assert consumer.check.tally(25).lost == 0


@pytest.mark.parametrize("piece", [1, 50, 100000])
def test_a_consumer_takes_deliveries_with_headers_among_others(piece: int) -> None:
    plain = [deliveries(tag) for tag in range(1, 11)]
    header_at = plain[0].index(bytes((amqp_frames.HEADER_FRAME, 0, 1)))
    size = int.from_bytes(plain[0][header_at + 3 : header_at + 7], "big")
    body_at = header_at + size + amqp_frames.FRAME_OVERHEAD
    # Flags are the last two of the fixed part; the table comes before the delivery mode.
    content = bytearray(plain[0][header_at + 7 : body_at - 1])
    content[12] |= 0x20
    content[14:14] = (4).to_bytes(4, "big") + b"\x01at\x01"
    longer = amqp_frames.frame(amqp_frames.HEADER_FRAME, 1, bytes(content))
    mixed = [
        each[:header_at] + longer + each[body_at:] if tag in (4, 5, 10) else each
        for tag, each in enumerate(plain, start=1)
    ]
    with server_end(SETUP + CONSUMING) as server:
        consumer = AmqpConsumer(AmqpSetup(ADDRESS), "q", BODY, 1000, 1, 10000)
        server.recv(10000)
        feed(consumer, server, b"".join(mixed), piece)
        expected = b"".join(amqp_frames.ack(1, tag, multiple=False) for tag in range(1, 11))
        assert server.recv(10000) == expected
        assert consumer.check.tally(10).lost == 0


def test_a_consumer_says_why_the_server_closed_its_channel() -> None:
    with server_end(SETUP + CONSUMING) as server:
        consumer = AmqpConsumer(AmqpSetup(ADDRESS), "q", BODY, 1000, 1, 10000)
        text = amqp_frames.short_string("PRECONDITION_FAILED")
        close = amqp_frames.method(
            1, amqp_frames.CHANNEL_CLOSE, (406).to_bytes(2, "big") + text + bytes(4)
        )
        with pytest.raises(PeerError, match="406 PRECONDITION_FAILED"):
            feed(consumer, server, close, 1000)
        with pytest.raises(PeerError, match="406 PRECONDITION_FAILED"):
            feed(consumer, server, deliveries(1) + close, 1000)


def confirm(tag: int, *, multiple: bool = False, negative: bool = False) -> bytes:
    number = amqp_frames.BASIC_NACK if negative else amqp_frames.BASIC_ACK
    return amqp_frames.method(1, number, tag.to_bytes(8, "big") + bytes((multiple,)))


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.booleans()), max_size=30))
def test_confirms_in_any_order_settle_each_message_once(
    confirms: list[tuple[int, bool, bool]],
) -> None:
    settled: set[int] = set()
    refused: set[int] = set()
    with server_end(SETUP + amqp_frames.method(1, amqp_frames.CONFIRM_SELECT_OK)) as server:
        publisher = AmqpPublisher(ADDRESS, "", "q", BODY, 30)
        publisher.publish(30)
        for tag, multiple, negative in confirms:
            tags = set(range(1, tag + 1)) if multiple else {tag}
            new = tags - settled - refused
            if negative:
                refused |= new
            else:
                settled |= new
            feed(publisher, server, confirm(tag, multiple=multiple, negative=negative), 5)
        assert (publisher.settled, publisher.refused) == (len(settled), len(refused))


def test_topics_take_turns_and_are_received_by_a_wildcard() -> None:
    with server_end(CONNACK) as server:
        publisher = MqttPublisher(ADDRESS, "c", "t", 0, BODY, 10, topics=3)
        server.recv(1000)
        publisher.publish(2)
        publisher.publish(2)
        sent = server.recv(1000)
    size = len(sent) // 4
    assert [sent[at + 4 : at + 9] for at in range(0, len(sent), size)] == [
        b"t/000",
        b"t/001",
        b"t/002",
        b"t/000",
    ]
    with server_end(CONNACK + bytes((0x90, 3, 0, 1, 0))) as server:
        receiver = MqttSubscriber(ADDRESS, "c", "t", 0, BODY, 1000, topics=3)
        connecting = mqtt_frames.connect("c")
        assert server.recv(1000) == connecting + mqtt_frames.subscribe(1, "t/+", 0)
        feed(receiver, server, sent, 1000)
        assert receiver.check.tally(4).lost == 0


def test_a_closed_connection_is_an_error() -> None:
    with server_end(CONNACK) as server:
        publisher = MqttPublisher(ADDRESS, "c", "t", 1, BODY, 10)
        server.close()
        with pytest.raises(PeerError, match=r"closed the connection|lost"):
            publisher.readable()


def test_what_the_socket_does_not_take_is_sent_later_in_order() -> None:
    with server_end(CONNACK) as server:
        publisher = MqttPublisher(ADDRESS, "c", "t", 0, payload(100_000), 10)
        server.recv(1000)
        while not publisher.has_unsent:
            publisher.publish(2)
        publisher.write(b"last")
        data = b""
        while not data.endswith(b"last"):
            data += server.recv(1 << 20)
            publisher.writable()
        frame, fields = mqtt_frames.publish("t", 0, payload(100_000))
        number_at = fields[SEQUENCE][1]
        starts = range(number_at, len(data) - 4, len(frame))
        numbers = [int.from_bytes(data[at : at + 8], "little") for at in starts]
        assert numbers == list(range(publisher.sent))
        assert len(data) == publisher.sent * len(frame) + 4
        assert not publisher.has_unsent
