"""Spans of messages, and the context that goes with them, by every road."""

from __future__ import annotations

import random
import re
from typing import Any

import msgpack
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pamqp.commands import Basic, Confirm

from tests.support import amqp, mqtt, native
from tests.support.amqp import publish_frames
from tests.support.permitted import Server, make_server
from tests.support.simulated import Host
from trivium.config import EVERYTHING, Config, UserConfig
from trivium.messages.message import FRESH, PROTOCOL_NEUTRAL, Message, Properties, codec_of
from trivium.messages.neutral import encode_neutral
from trivium.messages.tracing import Tracer, parse_traceparent
from trivium.observability.otlp import Spans, encode_request
from trivium.routing.exchanges import Binding
from trivium.runtime import tracing
from trivium.runtime.tracing import MessageTracer
from trivium.vhost.predeclared import EVENT_EXCHANGE, TRACE_EXCHANGE
from trivium_native.wire import frames

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"
#: the user property of MQTT 5
PROPERTY = b"\x26" + mqtt.text("traceparent") + mqtt.text(SAMPLED)


class Traced:
    """A server whose spans are kept."""

    def __init__(self, server: Server, ratio: float = 0.0, follows: bool = True) -> None:
        self.server = server
        self.raw = Spans(1 << 20)
        broker = server.broker
        tracer = MessageTracer(broker, ratio, follows, self.raw)
        for vhost in broker.vhosts.values():
            vhost.watch(None, tracer)

    def spans(self) -> list[Span]:
        """Those since the last look, as opentelemetry-proto reads them."""
        self.server.settle()
        data = encode_request({"service.name": "s"}, ("scope", "1"), self.raw.take(1 << 20))
        (resource,) = ExportTraceServiceRequest.FromString(data).resource_spans
        (scope,) = resource.scope_spans
        assert (scope.scope.name, scope.scope.version) == ("scope", "1")
        assert resource.resource.attributes[0].value.string_value == "s"
        return list(scope.spans)

    def names(self) -> list[str]:
        return [span.name for span in self.spans()]


@pytest.fixture
def traced() -> Traced:
    return Traced(make_server())


def attributes(span: Span) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def of_trace(spans: list[Span]) -> bool:
    return {span.trace_id.hex() for span in spans} == {TRACE}


def test_a_message_that_comes_with_a_context_is_followed(traced: Traced) -> None:
    client = traced.server.amqp("root")
    client.publish(
        "k", b"body", "x", message_id="m", correlation_id="c", headers={"traceparent": SAMPLED}
    )
    client.consume("q")
    client.send(Basic.Ack(delivery_tag=1))
    spans = traced.spans()
    assert [span.name for span in spans] == ["publish x", "deliver q", "ack q"]
    assert of_trace(spans)
    publish, deliver, ack = spans
    assert publish.parent_span_id.hex() == PARENT
    assert deliver.parent_span_id == ack.parent_span_id == publish.span_id
    kinds = [span.kind for span in spans]
    assert kinds == [Span.SPAN_KIND_SERVER] * 3
    assert [span.flags for span in spans] == [0x301, 0x101, 0x101]
    assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    assert attributes(publish) == {
        "messaging.system": "trivium",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "x",
        "messaging.message.id": "m",
        "messaging.message.conversation_id": "c",
        "messaging.message.body.size": 4,
        "network.protocol.name": "amqp",
        "network.peer.address": "127.0.0.1",
        "network.peer.port": 1,
        "user.name": "root",
        "messaging.trivium.vhost": "/",
        "messaging.trivium.routing_key": "k",
    }
    assert attributes(deliver)["messaging.operation.type"] == "receive"
    assert attributes(ack)["messaging.operation.type"] == "settle"


def test_messages_that_the_broker_makes_of_others_are_not_followed() -> None:
    traced = Traced(make_server(), 1.0)
    vhost = traced.server.vhost
    seen = vhost.declare_queue("seen")
    for exchange in (TRACE_EXCHANGE, EVENT_EXCHANGE):
        vhost.bind(vhost.exchange(exchange), Binding(seen, b"#"))
    traced.server.broker.virtual_hosts.set_tracing("/", True)
    client = traced.server.amqp("root")
    client.publish("k", exchange="x")
    client.consume("q", no_ack=True)
    traced.server.settle()
    received = client.consume("seen", "seen", no_ack=True)
    traced.server.settle()
    received += client.take()
    keys = {each.routing_key for each in received if isinstance(each, Basic.Deliver)}
    assert {"connection.created", "publish.x", "deliver.q"} <= keys
    assert set(traced.names()) == {"publish x", "deliver q"}


def test_consumers_get_the_span_of_the_publish(traced: Traced) -> None:
    client = traced.server.amqp("root")
    headers = {"traceparent": SAMPLED, "tracestate": "a=b", "h": 1}
    client.publish("k", exchange="x", headers=headers)
    (publish,) = traced.spans()
    client.send(Basic.Get(queue="q", no_ack=True))
    _, header, _ = client.take()
    found = header.properties.headers
    assert found == {**headers, "traceparent": f"00-{TRACE}-{publish.span_id.hex()}-01"}
    assert publish.trace_state == "a=b"


@pytest.mark.parametrize("text", [UNSAMPLED, "", "00-" + "0" * 32 + f"-{PARENT}-01", "junk"])
def test_what_is_not_sampled_or_no_context_is_not_followed(traced: Traced, text: str) -> None:
    client = traced.server.amqp("root")
    client.publish("k", exchange="x", headers={"traceparent": text})
    client.send(Basic.Get(queue="q", no_ack=True))
    _, header, _ = client.take()
    assert header.properties.headers == {"traceparent": text}
    assert traced.spans() == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "00", SAMPLED[:-1], SAMPLED + "-x", SAMPLED.upper(), SAMPLED.replace("-", "_")),
        *(f"ff{SAMPLED[2:]}", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01"),
    ],
)
def test_w3c_3_2_2_what_is_no_traceparent(text: str) -> None:
    assert parse_traceparent(text) is None


def test_w3c_3_2_2_later_versions_may_have_more() -> None:
    context = parse_traceparent(f"01{SAMPLED[2:]}-more")
    assert context is not None
    assert (context.trace_id.hex(), context.span_id.hex()) == (TRACE, PARENT)
    assert context.header() == SAMPLED


def publish_by(server: Server, road: str, name: str = "traceparent", value: str = SAMPLED) -> None:
    """Publish a message with a header."""
    if road == "mqtt":
        pair = b"\x26" + mqtt.text(name) + mqtt.text(value)
        server.mqtt("root", "writer").feed(mqtt.publish("t", b"x", 1, 1, 5, properties=pair))
    elif road == "amqp":
        client = server.amqp("root")
        client.publish("t", exchange="amq.topic", delivery_mode=2, headers={name: value})
    else:
        properties = msgpack.packb({14: [[name, value]]})
        entry = native.entry(key=b"t", exchange=b"amq.topic", properties=properties)
        server.native("root").send(frames.PUBLISH, 7, native.publish(entry))


@pytest.mark.parametrize("road", ["mqtt", "amqp", "native"])
def test_a_trace_goes_on_across_roads(traced: Traced, road: str) -> None:
    server = traced.server
    readers = {qos: server.mqtt("root", f"reader{qos}") for qos in (0, 1)}
    for qos, reader in readers.items():
        reader.subscribe("t", qos)
    client = server.amqp("root")
    client.declare("aq")
    client.bind("aq", "amq.topic", "t")
    live = server.native("root")
    live.ask(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"t")
    publish_by(server, road)
    readers[1].feed(mqtt.puback(1))
    client.consume("aq", no_ack=True)
    spans = traced.spans()
    assert of_trace(spans)
    (publish,) = [span for span in spans if span.name == "publish amq.topic"]
    others = [span.name for span in spans if span is not publish]
    assert sorted(others) == [
        "ack amq.mqtt-session.reader1",
        "deliver amq.mqtt-session.reader0",
        "deliver amq.mqtt-session.reader1",
        "deliver aq",
        others[[name.startswith("deliver native:") for name in others].index(True)],
    ]
    assert {span.parent_span_id for span in spans if span is not publish} == {publish.span_id}
    given = f"00-{TRACE}-{publish.span_id.hex()}-01".encode()
    for reader in readers.values():
        (body,) = [body for first, body in reader.take() if first & 0xF0 == 0x30]
        assert body.count(b"traceparent") == 1
        assert given in body


def test_a_share_of_messages_begins_a_trace() -> None:
    traced = Traced(make_server(), ratio=1.0)
    client = traced.server.amqp("root")
    client.send(Confirm.Select())
    client.feed(b"".join(publish_frames("k", b"x", "x") for _ in range(8)))
    spans = traced.spans()
    assert [span.name for span in spans] == ["publish x"] * 8
    assert len({span.trace_id for span in spans}) == 8
    assert all(span.parent_span_id == b"" for span in spans)
    server = traced.server
    reader, writer = server.mqtt("root", "reader", 4), server.mqtt("root", "writer", 4)
    reader.subscribe("t", 1)
    for qos in (0, 1):
        packets = [mqtt.publish("t", b"x", qos, number, 4) for number in range(1, 9)]
        writer.feed(b"".join(packets))
        names = traced.names()
        assert names.count("publish amq.topic") == 8
        assert names.count("deliver amq.mqtt-session.reader") == 8
        assert len([1 for first, _ in reader.take() if first & 0xF0 == 0x30]) == 8


def test_about_the_share_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.messages.tracing.random", lambda: 0.5)
    traced = Traced(make_server(), ratio=0.1)
    writer = traced.server.mqtt("root", "writer", 4)
    writer.feed(b"".join(mqtt.publish("t", b"x", 0, version=4) for _ in range(70)))
    # The median of the geometric distribution: each seventh.
    assert traced.names() == ["publish amq.topic"] * 10


def test_what_is_chosen_leaves_the_generator_of_the_program_alone() -> None:
    before = random.getstate()
    traced = Traced(make_server(), ratio=0.5)
    writer = traced.server.mqtt("root", "writer", 4)
    writer.feed(b"".join(mqtt.publish("t", b"x", 0, version=4) for _ in range(70)))
    assert traced.names()
    assert random.getstate() == before


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_run_goes_on_around_messages_that_are_followed(
    monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    monkeypatch.setattr("trivium.messages.tracing.random", lambda: 0.5)
    traced = Traced(make_server(), ratio=0.1)
    server = traced.server
    # One gets them as they came, one with properties, one over a queue.
    others = [server.mqtt("root", f"r{version}", version) for version in (4, 5)]
    for reader in others:
        reader.subscribe("t", qos)
    client = server.amqp("root")
    client.declare("aq")
    client.bind("aq", "amq.topic", "t")
    writer = server.mqtt("root", "writer", 4)
    payloads = [str(number).encode() * (1 + number % 3) for number in range(10, 40)]
    writer.feed(b"".join(mqtt.publish("t", each, qos, int(each[:2]), 4) for each in payloads))
    names = traced.names()
    # Each seventh.
    assert names.count("publish amq.topic") == 4
    for reader, version in zip(others, (4, 5), strict=True):
        assert names.count(f"deliver amq.mqtt-session.r{version}") == 4
        got = [body for first, body in reader.take() if first & 0xF0 == 0x30]
        assert [body.endswith(sent) for body, sent in zip(got, payloads, strict=True)] == [
            True
        ] * 30
        followed = [at for at, body in enumerate(got) if b"traceparent" in body]
        assert followed == ([] if version == 4 else [6, 13, 20, 27])
    client.consume("aq", no_ack=True)
    assert traced.names() == ["deliver aq"] * 4
    vhost = server.vhost
    route = vhost.route(vhost.exchanges["amq.topic"], b"t")
    assert (route.counters.published, route.counters.routed) == (30, 90)


@pytest.mark.pure
@pytest.mark.parametrize("headers", [{}, {"h": "1"}])
def test_those_of_a_run_that_are_not_followed_are_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, Any]
) -> None:
    monkeypatch.setattr("trivium.messages.tracing.random", lambda: 0.5)
    traced = Traced(make_server(), ratio=0.1)
    tracer = traced.server.vhost.tracer
    assert tracer is not None
    asked: list[bool] = []

    def has(message: Message) -> bool:
        asked.append(message.traced == FRESH)
        return Tracer.has(tracer, message)

    monkeypatch.setattr(tracer, "has", has)
    client = traced.server.amqp("root")
    client.declare("aq", durable=True)
    client.consume("aq")
    client.take()
    client.send(Confirm.Select())
    frames_ = publish_frames("aq", b"x", headers=headers, delivery_mode=2)
    client.feed(frames_ * 30)
    assert len(client.take()) > 0
    client.send(Basic.Ack(delivery_tag=30, multiple=True))
    names = traced.names()
    assert [names.count(each) for each in ("publish amq.default", "deliver aq", "ack aq")] == [
        4
    ] * 3
    # Each seventh, when it leaves and when it is settled.
    assert asked == [False] * 8


@pytest.mark.parametrize("headers", [{}, {"h": "1"}])
@pytest.mark.parametrize("durable", [False, True])
def test_those_around_one_that_is_followed_reach_their_consumers_as_they_came(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, Any], durable: bool
) -> None:
    monkeypatch.setattr("trivium.messages.tracing.random", lambda: 0.5)
    traced = Traced(make_server(), ratio=0.1)
    server = traced.server
    client = server.amqp("root")
    client.declare("aq", durable=durable)
    client.bind("aq", "amq.topic", "#")
    client.consume("aq")
    mode = 1 + durable
    # Runs in which sizes are alike and differ, and in which exchange and key are others meanwhile.
    sent = [
        *((b"%d" % number * (1 + number // 14), "amq.topic") for number in range(10, 24)),
        *((b"%d" % number * (1 + number % 3), "amq.topic") for number in range(24, 38)),
        *((b"%d" % number, "" if number % 7 == 6 else "amq.topic") for number in range(38, 60)),
    ]
    client.take()
    for payload, exchange in sent:
        client.publish("aq", payload, exchange, headers=headers, delivery_mode=mode)
    client.feed(b"".join(publish_frames("aq", each, headers=headers) for each, _ in sent))
    server.settle()
    received = client.take()
    assert [body.value for body in received[2::3]] == [payload for payload, _ in sent] * 2
    assert [each.exchange for each in received[0::3]] == [exchange for _, exchange in sent] + [
        ""
    ] * len(sent)
    found = [dict(each.properties.headers or {}) for each in received[1::3]]
    followed = [at for at, each in enumerate(found) if each.pop("traceparent", None)]
    assert followed == list(range(6, 2 * len(sent), 7))
    assert found == [headers] * 2 * len(sent)
    client.send(Basic.Ack(delivery_tag=2 * len(sent), multiple=True))
    names = traced.names()
    assert names.count("deliver aq") == names.count("ack aq") == len(followed)


def test_a_very_long_state_is_in_no_span(traced: Traced) -> None:
    client = traced.server.amqp("root")
    for size in (512, 513):
        headers = {"traceparent": SAMPLED, "tracestate": "s" * size}
        client.publish("nobody", exchange="x", headers=headers)
    assert [len(span.trace_state) for span in traced.spans()] == [512, 0]


@pytest.mark.parametrize("road", ["mqtt", "amqp", "native"])
def test_messages_of_the_same_properties_have_each_a_context_of_its_own(road: str) -> None:
    traced = Traced(make_server(), ratio=1.0)
    server = traced.server
    reader = server.amqp("root")
    reader.declare("aq")
    reader.bind("aq", "amq.topic", "t")
    # What stands around the context is remembered of the message before.
    for each, text in (("amqp", "1"), (road, "2"), (road, "2"), (road, "3"), ("amqp", "1")):
        publish_by(server, each, "a", text)
        (publish,) = traced.spans()
        reader.send(Basic.Get(queue="aq", no_ack=True))
        _, header, _ = reader.take()
        own = f"00-{publish.trace_id.hex()}-{publish.span_id.hex()}-01"
        found = header.properties.headers
        assert (found["a"], found["traceparent"]) == (text, own)
        assert traced.names() == ["deliver aq"]


def test_where_parents_do_not_decide_the_trace_is_theirs_all_the_same() -> None:
    traced = Traced(make_server(), ratio=1.0, follows=False)
    traced.server.amqp("root").publish("k", exchange="x", headers={"traceparent": UNSAMPLED})
    (publish,) = traced.spans()
    assert publish.trace_id.hex() == TRACE
    assert publish.parent_span_id.hex() == PARENT


def test_what_leads_nowhere_and_what_is_refused_is_an_error(traced: Traced) -> None:
    client = traced.server.amqp("root")
    client.declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    for key in ("nobody", "full"):
        client.publish(key, headers={"traceparent": SAMPLED})
    spans = traced.spans()
    assert [attributes(span)["error.type"] for span in spans] == ["unroutable", "rejected"]
    assert all(span.status.code == 2 for span in spans)


def test_what_a_client_does_with_a_delivery_is_said(traced: Traced) -> None:
    client = traced.server.amqp("root")
    client.publish("k", exchange="x", headers={"traceparent": SAMPLED})
    client.call(Basic.Get(queue="q"))
    client.send(Basic.Nack(delivery_tag=1, requeue=True))
    client.call(Basic.Get(queue="q"))
    client.send(Basic.Reject(delivery_tag=2, requeue=False))
    traced.server.settle()
    names = ["publish x", "deliver q", "requeue q", "deliver q", "reject q"]
    assert traced.names() == names


def test_what_expires_is_not_acknowledged(traced: Traced) -> None:
    client = traced.server.amqp("root")
    client.publish("k", exchange="x", headers={"traceparent": SAMPLED}, expiration="10")
    traced.server.advance(1)
    assert traced.names() == ["publish x"]


@pytest.mark.pure
def test_deliveries_that_nobody_settles_are_forgotten(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_MAX_HELD", 1)
    client = traced.server.amqp("root")
    for name in ("one", "two"):
        client.declare(name)
        client.bind(name, "amq.fanout", "")
        client.consume(name, name)
    client.publish("", exchange="amq.fanout", headers={"traceparent": SAMPLED})
    client.send(Basic.Ack(delivery_tag=2, multiple=True))
    assert [name for name in traced.names() if name.startswith("ack")] == ["ack two"]


def on_disk(host: Host) -> Traced:
    users = {"root": UserConfig(password="p", permissions=EVERYTHING)}
    return Traced(Server(config=Config(users=users), host=host))


def test_the_store_is_a_span_and_the_trace_goes_on_after_a_restart() -> None:
    traced = on_disk(Host())
    client = traced.server.amqp("root")
    client.declare("dq", durable=True)
    client.publish("dq", headers={"traceparent": SAMPLED}, delivery_mode=2)
    assert traced.spans() == []
    traced.server.sync()
    store, publish = traced.spans()
    assert (store.name, publish.name) == ("store amq.default", "publish amq.default")
    assert store.parent_span_id == publish.span_id
    assert store.kind == Span.SPAN_KIND_INTERNAL
    again = Traced(traced.server.restart())
    again.server.amqp("root").consume("dq")
    (deliver,) = again.spans()
    assert (deliver.name, deliver.parent_span_id) == ("deliver dq", publish.span_id)


@pytest.mark.parametrize("road", ["mqtt", "amqp", "native", "neutral"])
def test_a_header_takes_the_place_of_one_of_its_name(traced: Traced, road: str) -> None:
    others = [("a", "1"), ("z", "2")]
    given = [others[0], ("traceparent", "old"), others[1]]
    if road == "mqtt":
        protocol = 1
        pairs = b"".join(b"\x26" + mqtt.text(name) + mqtt.text(value) for name, value in given)
        header = b"\x01\x01\x02\x00\x00\x00\x05" + b"\x03" + mqtt.text("t") + pairs
    elif road == "amqp":
        protocol = 2
        made = publish_frames("k", headers=dict(given), expiration="5")
        header = bytes(make_header(made))
    elif road == "native":
        protocol = 3
        header = msgpack.packb({14: [list(pair) for pair in given], 6: 5})
    else:
        protocol = PROTOCOL_NEUTRAL
        header = encode_neutral(Properties(headers=list(given), expiration=5))
    codec = codec_of(protocol)
    before = codec.decode(header)
    after = codec.decode(codec.with_header(header, "traceparent", SAMPLED))
    assert sorted(after.headers) == sorted([*others, ("traceparent", SAMPLED)])
    assert after.expiration == before.expiration is not None
    assert after.content_type == before.content_type


def make_header(frames_: bytes) -> bytes:
    """The property bytes of the content header among these frames."""
    found = re.search(rb"\x02\x00\x01(....)\x00\x3c\x00\x00.{8}", frames_, re.DOTALL)
    assert found is not None
    size = int.from_bytes(found[1], "big")
    return frames_[found.end() : found.end() + size - 12]


def test_nothing_is_asked_for_while_it_is_off() -> None:
    server = make_server()
    assert server.vhost.tracer is None
    client = server.amqp("root")
    client.publish("k", exchange="x", headers={"traceparent": SAMPLED})
    client.send(Basic.Get(queue="q", no_ack=True))
    _, header, _ = client.take()
    assert header.properties.headers == {"traceparent": SAMPLED}
    assert amqp.names([header]) == ["ContentHeader"]
