"""Messages of other protocols toward AMQP, and AMQP's toward them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import header
from pamqp.commands import Basic

from tests.support.amqp import Client, Server, bodies, publish_frames
from trivium.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    PROTOCOL_AMQP,
    Address,
    Message,
    Properties,
    PropertyCodec,
    decode_record,
    register_codec,
)
from trivium.observability.metrics import ProtocolMetrics
from trivium.routing.exchanges import Binding, Destination
from trivium_amqp.codec.properties import encode_properties

#: A protocol of this test's own, whose property bytes are an index into ``neutral``.
PROTOCOL = 203
neutral: list[Properties] = []


class TestCodec(PropertyCodec):
    __test__ = False

    def decode(self, header: bytes) -> Properties:
        return neutral[int(header)]


register_codec(PROTOCOL, TestCodec())


def message(
    properties: Properties,
    key: bytes = b"a.b",
    persistent: bool = True,
    expires: int = 0,
    payload: bytes = b"x",
    annotations: dict[str, Any] | None = None,
) -> Message:
    neutral.append(properties)
    mode = AT_LEAST_ONCE if persistent else AT_MOST_ONCE
    return Message(
        PROTOCOL,
        Address("amq.topic", key),
        b"%d" % (len(neutral) - 1),
        payload,
        mode,
        persistent,
        0,
        expires,
        annotations=annotations,
    )


def delivered(client: Client, *messages: Message) -> list[Any]:
    """Put messages of the other protocol into a queue; what an AMQP consumer gets."""
    client.declare("q")
    queue = client.server.vhost.queue("q")
    for one in messages:
        queue.put(one, b"")
    return client.consume("q", no_ack=True)


def test_properties_of_another_protocol(client: Client) -> None:
    properties = Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        correlation_id=b"id-1",
        reply_to="replies",
        reply_to_topic=b"back.here",
        message_id="m",
        timestamp=1_700_000_000,
        type_="t",
        user_id="u",
        app_id="a",
        headers=[
            ("text", "v"),
            ("number", 5),
            ("void", None),
            ("time", datetime(2026, 1, 2, tzinfo=UTC)),
            ("text", "again"),
        ],
    )
    received = delivered(client, message(properties))
    found = received[1].properties
    assert found.content_type == "text/plain"
    assert found.content_encoding == "utf-8"
    assert found.correlation_id == "id-1"
    assert found.reply_to == "replies"
    assert found.delivery_mode == 2
    assert found.expiration is None
    assert found.message_id == "m"
    assert found.timestamp == datetime.fromtimestamp(1_700_000_000, UTC)
    assert found.message_type == "t"
    assert found.user_id == "u"
    assert found.app_id == "a"
    # Of a repeated name the first is kept, the one that a headers exchange looks at.
    assert found.headers == {
        "text": "v",
        "number": 5,
        "void": None,
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "x-reply-to-topic": "back.here",
    }
    assert received[0].routing_key == "a.b"
    assert received[0].exchange == "amq.topic"
    assert client.server.adapter.metrics.properties_dropped == 1


def test_qos_0_is_delivery_mode_1(client: Client) -> None:
    received = delivered(client, message(Properties(), persistent=False))
    assert received[1].properties.delivery_mode == 1


@pytest.mark.parametrize("data", [b"\xff\x00", b"z" * 256])
def test_correlation_data_that_is_no_short_text_goes_into_a_header(
    client: Client, data: bytes
) -> None:
    received = delivered(client, message(Properties(correlation_id=data)))
    assert received[1].properties.correlation_id is None
    assert received[1].properties.headers == {"x-correlation-id": data}


def test_expiration_is_the_time_that_remains(client: Client) -> None:
    now = client.server.broker.now_ms
    lasting = message(Properties(expiration=2**40), expires=now + 2**40)
    received = delivered(client, lasting)
    remaining = int(received[1].properties.expiration)
    assert 2**40 - 60_000 <= remaining <= 2**40


def test_long_routing_key_is_cut_and_kept_in_a_header(client: Client) -> None:
    key = b"level." * 60
    received = delivered(client, message(Properties(), key=key))
    assert received[0].routing_key.encode() == key[:255]
    assert received[1].properties.headers == {"x-routing-key": key.decode()}


def test_what_does_not_fit_is_dropped_and_counted(client: Client) -> None:
    properties = Properties(
        content_type="z" * 256, headers=[("n" * 256, "v"), ("kept", "v")], message_id="é" * 128
    )
    received = delivered(client, message(properties))
    found = received[1].properties
    assert (found.content_type, found.message_id, found.headers) == (None, None, {"kept": "v"})
    assert client.server.adapter.metrics.properties_dropped == 3


def test_different_messages_alternate(client: Client) -> None:
    client.declare("q")
    client.consume("q", no_ack=True)
    queue = client.server.vhost.queue("q")
    other = message(Properties(content_type="a/b"), payload=b"abcd")
    for _ in range(3):
        queue.put(other, b"")
        client.feed(publish_frames("q", b"abcd"))
    received = client.take()
    kinds = [r.properties.content_type for r in received if isinstance(r, header.ContentHeader)]
    assert kinds == ["a/b", None] * 3
    assert bodies(received) == [b"abcd"] * 6


def test_encoding_is_made_once(client: Client) -> None:
    one = message(Properties(content_type="a/b"))
    delivered(client, one, one)
    assert one.encoding(PROTOCOL_AMQP * 16) == b"\x90\x00\x03a/b\x02"


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats()


@settings(max_examples=200)
@given(
    st.builds(
        Properties,
        content_type=st.none() | st.text(max_size=300),
        correlation_id=st.none() | st.binary(max_size=300),
        reply_to_topic=st.none() | st.binary(max_size=20),
        timestamp=st.none() | st.integers(-10, 2**33) | st.just(2**64),
        headers=st.lists(st.tuples(st.text(max_size=300), VALUES), max_size=5),
    ),
    st.integers(0, 300),
)
def test_any_properties_give_a_well_formed_header(properties: Properties, key_size: int) -> None:
    one = message(properties, key=b"k" * key_size)
    data = encode_properties(one, 0, ProtocolMetrics(), 10_000)
    content = b"\x00\x3c\x00\x00" + bytes(8) + data
    parsed = header.ContentHeader()
    parsed.unmarshal(content)
    assert parsed.properties is not None
    assert parsed.properties.delivery_mode == 2
    if properties.correlation_id is not None:
        found = parsed.properties.correlation_id
        headers = parsed.properties.headers or {}
        kept = found.encode() if found is not None else headers["x-correlation-id"]
        assert kept == properties.correlation_id


# AMQP to the neutral form


class Recorder(Destination):
    """Keeps what is routed to it."""

    def __init__(self) -> None:
        self.name = "recorder"
        self.messages: list[Message] = []

    def accept(self, message: Message) -> int:
        self.messages.append(message)
        return 0


def published(**properties: Any) -> Message:
    """The message that the core has of a publish."""
    server = Server()
    client = server.open()
    recorder = Recorder()
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(recorder, b"#"))
    client.publish("a.b", b"body", exchange="amq.topic", **properties)
    assert client.take() == []
    (found,) = recorder.messages
    return found


def test_neutral_form() -> None:
    found = published(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={
            "k": "v",
            "x-reply-to-topic": "back.here",
            "when": datetime(2026, 1, 2, tzinfo=UTC),
            "x-retain": False,
        },
        delivery_mode=2,
        priority=7,
        correlation_id="é",
        reply_to="replies",
        expiration="1500",
        message_id="m",
        timestamp=datetime.fromtimestamp(1_700_000_000, UTC),
        message_type="t",
        user_id="guest",
        app_id="a",
    )
    properties = found.properties()
    assert (found.address.exchange, found.address.key) == ("amq.topic", b"a.b")
    assert found.address.topic == b"a/b"
    assert (found.mode, found.persistent, found.priority) == (AT_LEAST_ONCE, True, 7)
    assert found.expires == found.timestamp + 1500
    assert properties.content_type == "text/plain"
    assert properties.content_encoding == "utf-8"
    assert properties.correlation_id == "é".encode()
    assert properties.reply_to == "replies"
    assert properties.reply_to_topic == b"back.here"
    assert properties.expiration == 1500
    assert properties.message_id == "m"
    assert properties.timestamp == 1_700_000_000
    assert (properties.type_, properties.user_id, properties.app_id) == ("t", "guest", "a")
    assert properties.headers == [("k", "v"), ("when", datetime(2026, 1, 2, tzinfo=UTC))]


def test_delivery_mode_1_or_none_is_at_most_once() -> None:
    for properties in ({}, {"delivery_mode": 1}):
        found = published(**properties)
        assert (found.mode, found.persistent) == (AT_MOST_ONCE, False)


def test_correlation_header_is_correlation_data() -> None:
    found = published(headers={"x-correlation-id": bytearray(b"\xff\x00")}).properties()
    assert found.correlation_id == b"\xff\x00"
    assert found.headers == []


def test_record_round_trip() -> None:
    found = published(headers={"k": 1}, expiration="1000000")
    again = decode_record(found.record())
    assert again.header == found.header
    assert again.properties().headers == [("k", 1)]


def test_other_protocols_reach_a_direct_reply_queue(server: Server) -> None:
    requester, responder = server.open(), server.open()
    responder.declare("requests")
    requester.consume("amq.rabbitmq.reply-to", no_ack=True)
    requester.publish("requests", reply_to="amq.rabbitmq.reply-to")
    reply_to = responder.call(Basic.Get(queue="requests"))[1].properties.reply_to
    route = server.vhost.route(server.vhost.exchange(""), reply_to.encode())
    route.publish(message(Properties(content_type="a/b"), payload=b"answer"))
    server.settle()
    assert bodies(requester.take()) == [b"answer"]
