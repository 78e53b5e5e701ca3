"""Whatever one client sends, what others are sent because of it is well-formed on each road."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic

import trivium_amqp
import trivium_mqtt
import trivium_native
from tests.support import amqp, mqtt, native
from tests.support.hostile import amqp_streams, mqtt_streams, native_streams
from tests.support.server import Client, Server
from trivium.runtime.adapter import Adapter
from trivium_native.wire import frames

STREAMS = {"mqtt": mqtt_streams(), "amqp": amqp_streams(), "native": native_streams()}


class Roads(Server):
    """A broker with a listener to everything on each road.

    What is written to those of MQTT and AMQP is read as it is written (see ``StrictTransport``).
    """

    def __init__(self) -> None:
        super().__init__()
        self.mqtt = [mqtt.Client(self).open(f"l{version}", version) for version in (4, 5)]
        for device in self.mqtt:
            device.subscribe("#", 2)
            device.subscribe("$x", 0)
        self.amqp = amqp.Client(self).handshake()
        for queue in ("heard", "q"):
            self.amqp.declare(queue)
        self.amqp.bind("heard", "amq.topic", "#")
        self.amqp.bind("heard", "amq.fanout", "")
        self.amqp.consume("heard", no_ack=True)
        self.native = native.Client(self).open()
        subscription = {"subscription": 1, "mode": "pubsub", "exchange": "amq.topic"}
        self.native.ask(frames.SUBSCRIBE, **subscription, pattern=b"#")

    def make_adapters(self) -> list[Adapter]:
        return [trivium_mqtt.adapter(), trivium_amqp.adapter(), trivium_native.adapter()]

    def listen(self) -> list[int]:
        """How much each listener heard since the last look; that of queue ``q`` is got."""
        while self.vhost.queues["q"]:
            self.amqp.send(Basic.Get(queue="q", no_ack=True))
        return [
            *(len(device.take()) for device in self.mqtt),
            len(self.amqp.take_bytes()),
            len(native.deliveries(self.native.take())),
        ]


@pytest.mark.parametrize("protocol", STREAMS)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_others_are_sent_is_well_formed(protocol: str, data: st.DataObject) -> None:
    roads = Roads()
    sent = data.draw(STREAMS[protocol])
    client = Client(roads, protocol)
    size = data.draw(st.integers(1, len(sent)))
    client.feed(*[sent[at : at + size] for at in range(0, len(sent), size)])
    client.lose()
    roads.listen()
    # Everybody is served as before.
    mqtt.Client(roads).open("sane").feed(mqtt.publish("sane", b"payload"))
    heard = roads.listen()
    assert heard[:2] == [1, 1]
    assert heard[2] > 0
    assert heard[3] == 1
