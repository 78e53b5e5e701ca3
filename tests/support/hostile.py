"""What clients send that is mostly valid, and changed at times: for tests of hostile input."""

from __future__ import annotations

import datetime
from typing import Any

import msgpack
from hypothesis import strategies as st
from pamqp import frame
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue

from tests.support import amqp, mqtt, native
from trivium_native.wire import frames

TOPICS = ["a", "a/b", "ü", "$x", "a", "a/b", "ü", "a//", "a/+", "#", "", "a\x00"]
#: of a PUBLISH (MQTT5 table 2-4)
_MQTT_PROPERTIES = [
    b"\x01\x01",
    b"\x02\x00\x00\x00\x05",
    b"\x03" + mqtt.text("text/plain"),
    b"\x08" + mqtt.text("answers/here"),
    b"\x09" + mqtt.text(b"\xff\xfe"),
    b"\x23\x00\x01",
    b"\x26" + mqtt.text("a") + mqtt.text("b"),
    b"\x26" + mqtt.text("x-reply-to-topic") + mqtt.text("a/#"),
    b"\x26" + mqtt.text("x-retain") + mqtt.text("true"),
    b"\x26" + mqtt.text("x" * 300) + mqtt.text(""),
]
#: that it may not have
_WRONG_PROPERTIES = [
    b"\x01\x02",
    b"\x03" + mqtt.text(b"\xff\x00"),
    b"\x08" + mqtt.text("answers/#"),
    b"\x0b\x01",
    b"\x11\x00\x00\x00\x01",
    b"\x23\x00\x00",
    b"\x26" + mqtt.text("a") + mqtt.text(b"\xff"),
]


@st.composite
def _packets(draw: st.DrawFn, version: int) -> bytes:
    """One packet, mostly valid."""
    number = draw(st.integers(0, 5))
    topic = draw(st.sampled_from(TOPICS))
    properties = b""
    if version == 5:
        wrong = draw(st.lists(st.sampled_from(_WRONG_PROPERTIES), max_size=1))
        right = draw(st.lists(st.sampled_from(_MQTT_PROPERTIES), max_size=3, unique=True))
        properties = b"".join(right + wrong)
    kind = draw(st.integers(0, 9))
    if kind <= 3:
        return mqtt.publish(
            topic,
            draw(st.binary(max_size=200)),
            draw(st.integers(0, 2)),
            number,
            version,
            draw(st.booleans()),
            draw(st.booleans()),
            properties,
        )
    if kind == 4:
        options = draw(st.integers(0, 2))
        return mqtt.subscribe(topic, options, number, version)
    if kind == 5:
        return mqtt.unsubscribe(topic, number, version)
    if kind == 6:
        first = draw(st.sampled_from([0x40, 0x50, 0x62, 0x70]))
        return mqtt.acknowledge(first, number)
    if kind == 7:
        return draw(
            st.sampled_from([b"\xc0\x00", b"\xe0\x00", b"\xf0\x00", mqtt.connect("x", version)])
        )
    if kind == 8:
        return mqtt.packet(draw(st.integers(0, 255)), draw(st.binary(max_size=20)))
    return draw(st.sampled_from([mqtt.puback, mqtt.pubrec, mqtt.pubrel, mqtt.pubcomp]))(number)


@st.composite
def mqtt_streams(draw: st.DrawFn) -> bytes:
    """What a client sends in the life of its connection, with a few bytes changed at times."""
    version = draw(st.sampled_from([3, 4, 5]))
    data = bytearray(mqtt.connect("x", version, draw(st.booleans())))
    data += b"".join(draw(st.lists(_packets(version), max_size=12)))
    return draw(damaged(bytes(data)))


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The same with a few bytes changed, or cut off, at times."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(st.integers(0, 255))
    if draw(st.integers(0, 4)) == 0:
        del data[draw(st.integers(1, len(data))) :]
    return bytes(data)


def amqp_session(more: bytes = b"") -> bytes:
    """A client's whole side of a conversation, with every kind of frame in it."""
    acks = b"".join(frame.marshal(Basic.Ack(tag), 1) for tag in (1, 2, 3))
    return b"".join(
        (
            amqp.PROTOCOL_HEADER,
            frame.marshal(amqp.start_ok(), 0),
            frame.marshal(Connection.TuneOk(10, 8192, 0), 0),
            frame.marshal(Connection.Open("/"), 0),
            frame.marshal(Channel.Open(), 1),
            frame.marshal(Queue.Declare(queue="q", arguments={"note": [1, {"a": None}]}), 1),
            frame.marshal(Confirm.Select(), 1),
            frame.marshal(Basic.Qos(0, 5, False), 1),
            frame.marshal(Basic.Consume(queue="q", consumer_tag="c"), 1),
            amqp.publish_frames("q", b"same size", headers={"k": "v"}, delivery_mode=2) * 5,
            more,
            bytes.fromhex("08 0000 00000000 ce"),
            acks,
            amqp.publish_frames("q", b"z" * 3000, chunk=1000),
            amqp.publish_frames("missing", b"back", mandatory=True),
            frame.marshal(Basic.Nack(4, False, False), 1),
            frame.marshal(Basic.Reject(5, True), 1),
            frame.marshal(Basic.Get(queue="q"), 1),
            frame.marshal(Channel.Close(200, "", 0, 0), 1),
            frame.marshal(Connection.Close(200, "", 0, 0), 0),
        )
    )


#: what a header of AMQP may hold
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=9)
    | st.binary(max_size=9).map(bytearray)
    | st.datetimes(datetime.datetime(1970, 1, 2), timezones=st.just(datetime.UTC)),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3)
    ),
    max_leaves=5,
)
_NAMES = (
    st.sampled_from(["x-retain", "x-reply-to-topic", "x-delay", "x-delivery", "CC", "BCC"])
    | st.text(max_size=9)
)  # fmt: skip
_PROPERTIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "content_type": st.text(max_size=9),
        "correlation_id": st.text(max_size=9),
        "reply_to": st.text(max_size=9),
        "expiration": st.sampled_from(["0", "60000", "soon", "-1", "99999999999999999999"]),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "headers": st.dictionaries(_NAMES, _VALUES, max_size=4),
    },
)
_KEYS = ["q", "a", "a.b", "", ".", "a.#", "$x", "k" * 200]
_EXCHANGES = ["", "amq.topic", "amq.fanout", "amq.headers", "missing"]


@st.composite
def amqp_streams(draw: st.DrawFn) -> bytes:
    """A conversation with publishes of all kinds, with a few bytes changed at times."""
    publishes = [
        amqp.publish_frames(
            draw(st.sampled_from(_KEYS)),
            draw(st.binary(max_size=50)),
            draw(st.sampled_from(_EXCHANGES[:-1] if number else _EXCHANGES)),
            mandatory=draw(st.booleans()),
            **draw(_PROPERTIES),
        )
        for number in range(draw(st.integers(0, 4)))
    ]
    return draw(damaged(amqp_session(b"".join(publishes))))


#: what a property of the native protocol may hold, most of them one only
_FIELDS = st.text(max_size=9) | st.binary(max_size=9) | st.integers(-1, 2**63) | st.just([["k", 1]])


@st.composite
def native_streams(draw: st.DrawFn) -> bytes:
    """A client's publishes, with a few bytes changed at times."""
    entries = [
        native.entry(
            draw(st.binary(max_size=50)),
            draw(st.sampled_from(_KEYS)).encode(),
            draw(st.sampled_from(_EXCHANGES[1:3])).encode(),
            draw(st.sampled_from([0, 1, 4, 5])),
            msgpack.packb(draw(st.dictionaries(st.integers(0, 16), _FIELDS, max_size=2))),
            draw(st.integers(0, 255)),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    hello = {"protocol": "trivium", "version": 1, "heartbeat": 0}
    user = {"username": "guest", "password": b"guest"}
    return (
        native.frame(frames.HELLO, 1, msgpack.packb(hello))
        + native.frame(frames.AUTH, 2, msgpack.packb(user))
        + draw(damaged(native.frame(frames.PUBLISH, 3, native.publish(*entries))))
    )
