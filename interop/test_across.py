"""Between protocols: the table of docs/amqp.md, row by row, with real clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import BasicProperties

from interop.amqp import Delivery, await_one, bodies, channel, get
from interop.mqtt import V311, Mqtt, given
from interop.native import await_records, native_url, open_client
from trivium.messages.message import PROTOCOL_AMQP, PROTOCOL_MQTT, PROTOCOL_NATIVE, Properties
from trivium_native.client import connect
from trivium_native.sync import SyncClient
from trivium_native.values import Publication, Record


@dataclass
class Roads:
    """One client per protocol; a queue and a stream get all that is published below ``name``."""

    name: str
    mqtt: Mqtt
    amqp: BlockingChannel
    native: SyncClient

    def from_queue(self) -> Delivery:
        """The next message of the queue."""
        return await_one(self.amqp, self.name)

    def from_stream(self, count: int = 1) -> list[Record]:
        """The first records of the stream."""
        return await_records(self.native, f"{self.name}-log", count)

    def publish_amqp(self, suffix: str, body: bytes = b"x", **properties: Any) -> None:
        self.amqp.basic_publish(
            "amq.topic", f"{self.name}{suffix}", body, BasicProperties(**properties)
        )

    def publish_native(self, suffix: str, payload: bytes = b"x", **fields: Any) -> None:
        publication = Publication(payload=payload, routing_key=f"{self.name}{suffix}", **fields)
        self.native.publish_batch([publication])

    def nothing_more(self) -> None:
        """Check that nothing else is on its way to the MQTT client or the queue."""
        self.mqtt.publish(f"{self.name}/marker", b"marker")
        assert self.mqtt.receive().payload == b"marker"
        assert bodies(self.amqp, self.name) == [b"marker"]


@pytest.fixture
def roads(mqtt_port: int, amqp_port: int, native_port: int, name: str) -> Iterator[Roads]:
    with (
        Mqtt(mqtt_port, name) as mqtt,
        channel(amqp_port, confirms=True) as amqp,
        open_client(native_port) as native,
    ):
        amqp.queue_declare(name, durable=True)
        amqp.queue_bind(name, "amq.topic", f"{name}.#")
        native.declare_stream(f"{name}-log")
        native.bind_stream(f"{name}-log", "amq.topic", f"{name}.#")
        yield Roads(name, mqtt, amqp, native)
        amqp.queue_delete(name)
        native.delete_stream(f"{name}-log")


PAYLOAD = bytes(range(256))


def test_mqtt_reaches_queue_and_stream(roads: Roads) -> None:
    for i in range(30):
        roads.mqtt.publish(f"{roads.name}/{i}", PAYLOAD + b"%d" % i, i % 3)
    for i in range(30):
        message = roads.from_queue()
        assert (message.exchange, message.key) == ("amq.topic", f"{roads.name}.{i}")
        assert message.body == PAYLOAD + b"%d" % i
    for i, record in enumerate(roads.from_stream(30)):
        assert (record.offset, record.protocol) == (i, PROTOCOL_MQTT)
        assert record.routing_key == f"{roads.name}.{i}".encode()
        assert record.payload == PAYLOAD + b"%d" % i


@pytest.mark.parametrize("is_v311", [True, False], ids=["v311", "v5"])
def test_amqp_reaches_mqtt_subscribers_and_stream(roads: Roads, is_v311: bool) -> None:
    with Mqtt(roads.mqtt.port, version=V311) if is_v311 else Mqtt(roads.mqtt.port) as client:
        client.subscribe(f"{roads.name}/#", 2)
        for i in range(30):
            roads.publish_amqp(f".{i}", PAYLOAD + b"%d" % i, delivery_mode=2)
        for i in range(30):
            message = client.receive()
            assert (message.topic, message.payload) == (f"{roads.name}/{i}", PAYLOAD + b"%d" % i)
        records = roads.from_stream(30)
        assert [r.routing_key for r in records] == [f"{roads.name}.{i}".encode() for i in range(30)]
        assert {r.protocol for r in records} == {PROTOCOL_AMQP}


def test_native_reaches_mqtt_subscribers_queue_and_stream(roads: Roads) -> None:
    roads.mqtt.subscribe(f"{roads.name}/#", 1)
    for i in range(30):
        roads.publish_native(f".{i}", PAYLOAD + b"%d" % i)
    assert roads.mqtt.receive_payloads(30) == [PAYLOAD + b"%d" % i for i in range(30)]
    assert [roads.from_queue().body for _ in range(30)] == [PAYLOAD + b"%d" % i for i in range(30)]
    assert {r.protocol for r in roads.from_stream(30)} == {PROTOCOL_NATIVE}


async def test_native_live_subscription_and_queue_consumer_get_both(
    roads: Roads, native_port: int
) -> None:
    async with (
        connect(native_url(native_port)) as client,
        client.subscribe(f"{roads.name}.#") as live,
        client.consume(roads.name) as deliveries,
    ):
        roads.mqtt.publish(f"{roads.name}/a.b", b"from mqtt", 1, UserProperty=[("k", "1")])
        roads.publish_amqp(".a/b", b"from amqp", headers={"k": 1}, content_type="text/plain")
        for source in (live, deliveries):
            first, second = await anext(source), await anext(source)
            assert (first.payload, second.payload) == (b"from mqtt", b"from amqp")
            assert first.routing_key == second.routing_key == f"{roads.name}.a/b".encode()
            assert (first.protocol, second.protocol) == (PROTOCOL_MQTT, PROTOCOL_AMQP)
            assert first.properties.headers == [("k", "1")]
            assert second.properties.headers == [("k", 1)]
            assert second.properties.content_type == "text/plain"
        await deliveries.ack(second, multiple=True, wait=True)
    assert roads.amqp.queue_declare(roads.name, passive=True).method.message_count == 0


@pytest.mark.parametrize(
    ("topic", "key"),
    [
        ("/a/b", ".a.b"),
        ("/a.b/c", ".a/b.c"),
        ("//", ".."),
        ("/a//b/", ".a..b."),
        ("/./..", "././/"),
        ("/ünï/日本", ".ünï.日本"),
        ("/a b", ".a b"),
        ("/$x", ".$x"),
        ("/%2B%23", ".+#"),
        ("/%252B", ".%2B"),
        ("/*/#"[:3], ".*."),
    ],
)
def test_row_address_is_a_bijection(roads: Roads, topic: str, key: str) -> None:
    roads.mqtt.subscribe(f"{roads.name}/#", 1)
    roads.mqtt.publish(f"{roads.name}{topic}", b"1")
    assert roads.from_queue().key == f"{roads.name}{key}"
    roads.publish_amqp(key, b"2")
    roads.publish_native(key, b"3")
    assert {roads.mqtt.receive().topic for _ in range(3)} == {f"{roads.name}{topic}"}
    assert {r.routing_key for r in roads.from_stream(3)} == {f"{roads.name}{key}".encode()}


def test_row_address_of_any_length(roads: Roads) -> None:
    """A routing key of AMQP is a short string; the rest of the topic is not lost."""
    levels = "/".join("ab" for _ in range(120))
    roads.mqtt.publish(f"{roads.name}/{levels}", b"x")
    message = roads.from_queue()
    whole = f"{roads.name}/{levels}".replace("/", ".")
    assert message.properties.headers == {"x-routing-key": whole}
    assert whole.startswith(message.key)
    assert roads.from_stream()[0].routing_key == whole.encode()


def test_row_address_without_an_mqtt_form_is_skipped(roads: Roads) -> None:
    roads.mqtt.subscribe("#", 1)
    roads.amqp.basic_publish("amq.topic", "", b"empty")
    roads.nothing_more()


@pytest.mark.parametrize(
    ("binding", "topic_filter", "matching"),
    [
        (".*.c", "/+/c", {"/a/c", "//c", "/a.b/c"}),
        (".a.#", "/a/#", {"/a", "/a/c", "/a/b/c"}),
        (".#.c", None, {"/a/c", "//c", "/a.b/c", "/a/b/c"}),
        (".a/b.*", "/a.b/+", {"/a.b/c"}),
    ],
)
def test_row_wildcards(
    roads: Roads, binding: str, topic_filter: str | None, matching: set[str]
) -> None:
    queue = roads.amqp.queue_declare("", exclusive=True).method.queue
    roads.amqp.queue_bind(queue, "amq.topic", f"{roads.name}{binding}")
    with Mqtt(roads.mqtt.port) as client:
        client.subscribe(f"{roads.name}/end", 1)
        if topic_filter is not None:
            client.subscribe(f"{roads.name}{topic_filter}", 1)
        for topic in ("/a", "/a/c", "//c", "/a.b/c", "/a/b/c"):
            roads.mqtt.publish(f"{roads.name}{topic}", topic.encode())
        roads.mqtt.publish(f"{roads.name}/end", b"end")
        assert {body.decode() for body in bodies(roads.amqp, queue)} == matching
        found = set()
        while (payload := bytes(client.receive().payload)) != b"end":
            found.add(payload.decode())
        assert found == (set() if topic_filter is None else matching)


def test_row_wildcards_of_mqtt_never_match_a_leading_dollar(roads: Roads) -> None:
    queue = roads.amqp.queue_declare("", exclusive=True).method.queue
    roads.amqp.queue_bind(queue, "amq.topic", f"*.{roads.name}")
    roads.mqtt.subscribe(f"+/{roads.name}", 1)
    with Mqtt(roads.mqtt.port) as client:
        client.subscribe(f"$x/{roads.name}", 1)
        roads.amqp.basic_publish("amq.topic", f"$x.{roads.name}", b"hidden")
        roads.amqp.basic_publish("amq.topic", f"x.{roads.name}", b"seen")
        assert client.receive().payload == b"hidden"
        assert roads.mqtt.receive().payload == b"seen"
        assert bodies(roads.amqp, queue) == [b"hidden", b"seen"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_row_qos_becomes_delivery_mode(roads: Roads, qos: int) -> None:
    roads.mqtt.publish(f"{roads.name}/a", b"x", qos)
    assert roads.from_queue().properties.delivery_mode == (1 if qos == 0 else 2)


@pytest.mark.parametrize("subscribed", [0, 1, 2])
@pytest.mark.parametrize("mode", [None, 1, 2])
def test_row_delivery_mode_becomes_qos(roads: Roads, mode: int | None, subscribed: int) -> None:
    roads.mqtt.subscribe(f"{roads.name}/#", subscribed)
    roads.publish_amqp(".a", delivery_mode=mode)
    assert roads.mqtt.receive().qos == min(1 if mode == 2 else 0, subscribed)


def test_row_user_properties_become_headers(roads: Roads) -> None:
    pairs = [("b", "1"), ("a", "ü"), ("b", "2"), ("", "")]
    roads.mqtt.publish(f"{roads.name}/a", b"x", UserProperty=pairs)
    # A table of AMQP has each name once; a stream keeps them all.
    assert roads.from_queue().properties.headers == {"b": "1", "a": "ü", "": ""}
    assert roads.from_stream()[0].headers == [(key, value.encode()) for key, value in pairs]


def test_row_headers_become_user_properties(roads: Roads) -> None:
    roads.mqtt.subscribe(f"{roads.name}/#", 1)
    headers = {
        "text": "ü",
        "number": 5,
        "negative": -(2**63),
        "yes": True,
        "no": False,
        "void": None,
        "nested": {"a": 1},
        "list": [1],
    }
    roads.publish_amqp(".a", headers=headers)
    found = given(roads.mqtt.receive().properties).UserProperty
    assert found == [
        ("text", "ü"),
        ("number", "5"),
        ("negative", str(-(2**63))),
        ("yes", "true"),
        ("no", "false"),
        ("void", ""),
    ]


def test_row_headers_route_mqtt_messages(roads: Roads) -> None:
    """A headers exchange behind amq.topic reads user properties."""
    roads.amqp.exchange_declare(f"{roads.name}h", "headers")
    roads.amqp.exchange_bind(f"{roads.name}h", "amq.topic", f"{roads.name}.h")
    queue = roads.amqp.queue_declare("", exclusive=True).method.queue
    roads.amqp.queue_bind(queue, f"{roads.name}h", arguments={"x-match": "all", "kind": "alarm"})
    roads.mqtt.publish(f"{roads.name}/h", b"no", UserProperty=[("kind", "news")])
    roads.mqtt.publish(f"{roads.name}/h", b"yes", UserProperty=[("kind", "alarm")])
    assert bodies(roads.amqp, queue) == [b"yes"]
    roads.amqp.exchange_delete(f"{roads.name}h")


def test_row_content_type(roads: Roads) -> None:
    roads.mqtt.subscribe(f"{roads.name}/#", 1, noLocal=True)
    roads.mqtt.publish(f"{roads.name}/a", b"{}", ContentType="application/json")
    assert roads.from_queue().properties.content_type == "application/json"
    assert roads.from_stream()[0].content_type == "application/json"
    roads.publish_amqp(".a", content_type="text/plain; charset=utf-8")
    found = given(roads.mqtt.receive().properties)
    assert found.ContentType == "text/plain; charset=utf-8"


@pytest.mark.parametrize("data", [b"abc", "ü".encode(), b"\x00\xff\xfe", b"x" * 300])
def test_row_correlation_data(roads: Roads, data: bytes) -> None:
    roads.mqtt.subscribe(f"{roads.name}/back", 1)
    roads.mqtt.publish(f"{roads.name}/a", b"x", CorrelationData=data)
    properties = roads.from_queue().properties
    if properties.correlation_id is not None:
        assert properties.correlation_id.encode() == data
    else:
        found = properties.headers["x-correlation-id"]
        assert (found if isinstance(found, bytes) else found.encode()) == data
    # The way back: as it was received.
    roads.publish_amqp(
        ".back", correlation_id=properties.correlation_id, headers=properties.headers
    )
    answer = given(roads.mqtt.receive().properties)
    assert answer.CorrelationData == data
    assert not hasattr(answer, "UserProperty")


def test_row_response_topic_mqtt_asks_amqp_answers(roads: Roads) -> None:
    roads.mqtt.subscribe(f"{roads.name}/answers/a.b", 1)
    roads.mqtt.publish(
        f"{roads.name}/ask",
        b"20",
        ResponseTopic=f"{roads.name}/answers/a.b",
        CorrelationData=b"\xff\x00",
    )
    request = roads.from_queue()
    assert request.properties.headers["x-reply-to-topic"] == f"{roads.name}.answers.a/b"
    roads.amqp.basic_publish(
        "amq.topic",
        request.properties.headers["x-reply-to-topic"],
        b"%d" % (int(request.body) + 1),
        BasicProperties(
            correlation_id=request.properties.correlation_id, headers=request.properties.headers
        ),
    )
    answer = roads.mqtt.receive()
    assert (answer.payload, given(answer.properties).CorrelationData) == (b"21", b"\xff\x00")


def test_row_response_topic_amqp_asks_mqtt_answers(roads: Roads) -> None:
    roads.mqtt.subscribe(f"{roads.name}/ask", 1)
    replies = roads.amqp.queue_declare("", exclusive=True).method.queue
    roads.amqp.queue_bind(replies, "amq.topic", f"{roads.name}.answers.7")
    roads.publish_amqp(
        ".ask",
        b"20",
        correlation_id="id-7",
        headers={"x-reply-to-topic": f"{roads.name}.answers.7"},
    )
    request = roads.mqtt.receive()
    asked = given(request.properties)
    assert asked.ResponseTopic == f"{roads.name}/answers/7"
    roads.mqtt.publish(
        asked.ResponseTopic,
        b"%d" % (int(request.payload) + 1),
        CorrelationData=asked.CorrelationData,
    )
    answer = await_one(roads.amqp, replies)
    assert (answer.body, answer.properties.correlation_id) == (b"21", "id-7")


def test_row_response_topic_native_asks_mqtt_answers(roads: Roads) -> None:
    roads.mqtt.subscribe(f"{roads.name}/ask", 1)
    topic = f"{roads.name}.answers".encode()
    asks = Properties(correlation_id=b"\x01\xff", reply_to_topic=topic)
    roads.publish_native(".ask", b"x", properties=asks)
    asked = given(roads.mqtt.receive().properties)
    assert (asked.ResponseTopic, asked.CorrelationData) == (f"{roads.name}/answers", b"\x01\xff")


def test_row_message_expiry_is_the_time_remaining(roads: Roads) -> None:
    roads.mqtt.subscribe(f"{roads.name}/back", 1)
    roads.mqtt.publish(f"{roads.name}/a", b"mqtt", MessageExpiryInterval=100)
    roads.mqtt.publish(f"{roads.name}/b", b"short", MessageExpiryInterval=1)
    # That a second passes is what is tested.
    time.sleep(1.2)
    message = roads.from_queue()
    assert message.body == b"mqtt"
    assert 80_000 < int(message.properties.expiration) <= 98_800
    assert get(roads.amqp, roads.name) is None, "the other one has expired"
    roads.publish_amqp(".back", expiration="100000")
    assert 80 < given(roads.mqtt.receive().properties).MessageExpiryInterval <= 100
    roads.publish_amqp(".back", expiration="1")
    roads.publish_amqp(".back", expiration=str(10**15))
    found = given(roads.mqtt.receive().properties)
    if found.MessageExpiryInterval == 1:
        # The one of a millisecond was sent in time, rounded up to a second.
        found = given(roads.mqtt.receive().properties)
    assert found.MessageExpiryInterval == 2**32 - 1, "64 bits do not wrap in 32"


def test_row_retain(roads: Roads) -> None:
    roads.publish_amqp(".amqp", b"from amqp", headers={"x-retain": True, "other": "kept"})
    roads.publish_native(".native", b"from native", retain=True)
    roads.mqtt.publish(f"{roads.name}/mqtt", b"from mqtt", retain=True)
    roads.publish_amqp(".amqp", b"not retained", headers={"x-retain": False})
    last = [roads.from_queue() for _ in range(4)][2]
    assert last.body == b"from mqtt"
    assert last.properties.headers == {"x-retain": True}
    roads.mqtt.subscribe(f"{roads.name}/+", 1)
    messages = [roads.mqtt.receive() for _ in range(3)]
    assert all(message.retain for message in messages)
    assert {m.topic.rpartition("/")[2]: bytes(m.payload) for m in messages} == {
        "amqp": b"from amqp",
        "native": b"from native",
        "mqtt": b"from mqtt",
    }
    by_amqp = next(m for m in messages if m.topic.endswith("/amqp"))
    assert given(by_amqp.properties).UserProperty == [("other", "kept")]
    for suffix in ("amqp", "native", "mqtt"):
        # An empty one clears, from any side.
        roads.publish_amqp(f".{suffix}", b"", headers={"x-retain": True})
    with Mqtt(roads.mqtt.port) as late:
        late.subscribe(f"{roads.name}/#", 1)
        roads.mqtt.publish(f"{roads.name}/end", b"end")
        assert late.receive().payload == b"end"


def test_row_publisher_identity_is_off_by_default(roads: Roads) -> None:
    roads.mqtt.publish(f"{roads.name}/a", b"x")
    roads.publish_native(".b", b"x")
    for _ in range(2):
        assert not roads.from_queue().properties.headers


def test_row_topic_alias_and_subscription_id_stay_on_their_hop(roads: Roads) -> None:
    roads.mqtt.subscribe(f"{roads.name}/#", 1, identifier=42)
    roads.mqtt.publish(f"{roads.name}/a", b"1", TopicAlias=3)
    roads.mqtt.publish("", b"2", TopicAlias=3)
    for body in (b"1", b"2"):
        message = roads.from_queue()
        assert (message.key, message.body) == (f"{roads.name}.a", body)
        assert not message.properties.headers
        received = given(roads.mqtt.receive().properties)
        assert received.SubscriptionIdentifier == [42]
        assert not hasattr(received, "TopicAlias")


def test_mqtt_session_gets_what_amqp_published_meanwhile(roads: Roads, name: str) -> None:
    first = Mqtt(roads.mqtt.port, f"{name}s", session=3600)
    first.subscribe(f"{name}/#", 1)
    first.close()
    for i in range(20):
        roads.publish_amqp(f".{i}", b"%d" % i, delivery_mode=2)
    roads.publish_native(".end", b"end")
    with Mqtt(roads.mqtt.port, f"{name}s", session=3600) as again:
        assert again.receive_payloads(21) == [*(b"%d" % i for i in range(20)), b"end"]
    Mqtt(roads.mqtt.port, f"{name}s").close()
