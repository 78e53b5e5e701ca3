"""One trace across all roads: off-the-shelf clients with OpenTelemetry's own propagator, and a
collector that reads what comes by OpenTelemetry's own protobuf."""

from __future__ import annotations

import base64
import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interop.brokers import LOOPBACK, TriviumProcess, compiled_build
from tests.support.collector import Collector

PROPAGATOR = TraceContextTextMapPropagator()
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
WAIT = 20.0


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        yield found


@pytest.fixture(params=[False, True], ids=["interpreted", "compiled"])
def traced(
    request: pytest.FixtureRequest, tmp_path: Any, collector: Collector
) -> Iterator[TriviumProcess]:
    if request.param and (reason := compiled_build()) is not None:
        pytest.skip(reason)
    process = TriviumProcess(
        tmp_path,
        is_compiled=request.param,
        protocols=("mqtt", "amqp", "native", "http"),
        environment={
            "TRIVIUM_TRACING__ENDPOINT": collector.url,
            "TRIVIUM_TRACING__SAMPLE_RATIO": "0",
        },
    )
    process.start()
    yield process
    assert process.stop() == 0
    process.check_log()


def carrier(span_id: int) -> dict[str, str]:
    """What OpenTelemetry gives a client to send along."""
    context = SpanContext(TRACE_ID, span_id, False, TraceFlags(TraceFlags.SAMPLED))
    found: dict[str, str] = {}
    PROPAGATOR.inject(found, set_span_in_context(NonRecordingSpan(context)))
    return found


def extracted(headers: dict[str, Any]) -> SpanContext:
    """What it makes of the headers of a message."""
    return get_current_span(PROPAGATOR.extract(headers)).get_span_context()


class Subscriber:
    """An MQTT 5 client with one subscription, and what it got first."""

    def __init__(self, port: int) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, "subscriber", protocol=paho.MQTTv5)
        self._subscribed, self._got = threading.Event(), threading.Event()
        self.messages: list[paho.MQTTMessage] = []
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = self._take
        self.client.connect(LOOPBACK, port)
        self.client.loop_start()
        self.client.subscribe("t", 1)
        assert self._subscribed.wait(WAIT)

    def _take(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.messages.append(message)
        if len(self.messages) == 3:
            self._got.set()

    def contexts(self) -> list[SpanContext]:
        assert self._got.wait(WAIT)
        self.client.disconnect()
        self.client.loop_stop()
        found: list[SpanContext] = []
        for message in self.messages:
            properties: Any = message.properties
            found.append(extracted(dict(properties.UserProperty)))
        return found


def test_publishers_and_consumers_of_all_roads_are_in_one_trace(
    traced: TriviumProcess, collector: Collector
) -> None:
    subscriber = Subscriber(traced.ports["mqtt"])
    connection = pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, traced.ports["amqp"]))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "amq.topic", "t")

    publisher = paho.Client(CallbackAPIVersion.VERSION2, "publisher", protocol=paho.MQTTv5)
    publisher.connect(LOOPBACK, traced.ports["mqtt"])
    publisher.loop_start()
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = list(carrier(1).items())
    publisher.publish("t", b"m", 1, properties=properties).wait_for_publish(WAIT)
    publisher.disconnect()
    publisher.loop_stop()
    channel.basic_publish(
        "amq.topic", "t", b"a", pika.BasicProperties(headers=carrier(2), delivery_mode=2)
    )
    asked = urllib.request.Request(
        f"http://{LOOPBACK}:{traced.ports['http']}/api/v1/vhosts/%2F/exchanges/amq.topic/messages",
        json.dumps({"messages": [{"key": "t", "payload": "h"}]}).encode(),
        {
            "Content-Type": "application/json",
            "Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(),
            **carrier(3),
        },
    )
    with urllib.request.urlopen(asked, timeout=WAIT) as answer:
        assert answer.status == 202

    contexts = subscriber.contexts()
    for _ in range(3):
        method, shown, _ = channel.basic_get("q")
        assert method is not None
        assert shown is not None
        headers: Any = shown.headers
        contexts.append(extracted(dict(headers)))
        channel.basic_ack(method.delivery_tag or 0)
    connection.close()

    # publish, store, two deliveries and two acknowledgements of each.
    spans = collector.wait(18)
    assert {int.from_bytes(span.trace_id, "big") for span in spans} == {TRACE_ID}
    publishes = {
        int.from_bytes(span.parent_span_id, "big"): span.span_id
        for span in spans
        if span.name == "publish amq.topic"
    }
    assert sorted(publishes) == [1, 2, 3]
    for wanted in ("store amq.topic", "deliver q", "ack q"):
        parents = {span.parent_span_id for span in spans if span.name == wanted}
        assert parents == set(publishes.values()), wanted
    for wanted in ("deliver amq.mqtt-session.subscriber", "ack amq.mqtt-session.subscriber"):
        assert sum(span.name == wanted for span in spans) == 3
    # What consumers do comes under the publish.
    assert {context.trace_id for context in contexts} == {TRACE_ID}
    given = sorted(context.span_id.to_bytes(8, "big") for context in contexts)
    assert given == sorted([*publishes.values(), *publishes.values()])
    assert collector.services == {"trivium"}
