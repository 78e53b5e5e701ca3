"""Virtual hosts over all protocols: one namespace for whoever is in it, and listeners that bind."""

from __future__ import annotations

import msgpack
import pytest
from pamqp.commands import Basic, Connection, Queue

import trivium_amqp
from tests.support import amqp, mqtt, native
from tests.support.amqp import PROTOCOL_HEADER, assert_connection_closed, start_ok
from tests.support.server import Server as BaseServer
from trivium.config import Config, ListenerConfig, StorageConfig
from trivium.runtime.adapter import Adapter
from trivium_mqtt.mqtt_adapter import MqttAdapter
from trivium_mqtt.options import MqttOptions
from trivium_native.server.adapter import NativeAdapter
from trivium_native.wire import frames


class Server(BaseServer):
    """All protocols over one broker."""

    def make_adapters(self) -> list[Adapter]:
        return [MqttAdapter(MqttOptions()), trivium_amqp.adapter(None), NativeAdapter(None)]


def make_server(listener: str = "") -> Server:
    """Every listener has the virtual host; there is another."""
    listeners = tuple(
        ListenerConfig(protocol=protocol, address="127.0.0.1:0", virtual_host=listener)
        for protocol in ("mqtt", "amqp", "native")
    )
    storage = StorageConfig(mode="memory")
    server = Server(config=Config(listen={}, storage=storage, listeners=listeners))
    server.broker.virtual_hosts.declare("other")
    return server


def test_clients_of_two_protocols_meet_in_a_virtual_host() -> None:
    server = make_server()
    client = mqtt.Client(server).open("c", 5, username="other:guest", password=b"guest")
    client.subscribe("a/b")
    peer = amqp.Client(server).handshake(vhost="other")
    peer.declare("q")
    peer.call(Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.b"))
    peer.publish("a.b", b"from AMQP", exchange="amq.topic")
    client.feed(mqtt.publish("a/b", b"from MQTT", 0, 0, 5))
    assert [body[-9:] for _, body in client.take()] == [b"from AMQP", b"from MQTT"]
    assert [peer.get("q"), peer.get("q")] == [b"from AMQP", b"from MQTT"]
    assert not server.vhost.queues


@pytest.mark.parametrize("wanted", ["/", "", "farm"])
def test_a_listeners_virtual_host_stands_for_no_choice(wanted: str) -> None:
    server = make_server("farm")
    client = amqp.Client(server).handshake(vhost=wanted)
    client.declare("q")
    assert set(server.broker.vhosts["farm"].queues) == {"q"}
    other = native.Client(server).greet()
    fields = {"username": "guest", "password": b"guest", "vhost": wanted}
    assert other.send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
    other.ask(frames.DECLARE, kind="stream", name="s")
    assert set(server.broker.vhosts["farm"].streams) == {"s"}
    assert not server.vhost.queues


def test_amqp_is_refused_another_than_the_listeners_with_530() -> None:
    server = make_server("farm")
    for wanted in ("other", "nowhere"):
        client = amqp.Client(server)
        client.feed(PROTOCOL_HEADER)
        client.send(start_ok(), channel=0)
        client.send(Connection.TuneOk(1, 131_072, 0), channel=0)
        client.send(Connection.Open(wanted), channel=0)
        text = f"NOT_ALLOWED - access to vhost '{wanted}' refused for user 'guest'"
        assert_connection_closed(client, 530, text)
    assert server.broker.permissions.denials == 2


def test_native_is_refused_another_than_the_listeners() -> None:
    client = native.Client(make_server("farm")).greet()
    fields = {"username": "guest", "password": b"guest", "vhost": "other"}
    ((kind, _, body), *_) = client.send(frames.AUTH, 2, fields)
    assert kind == frames.ERROR
    assert msgpack.unpackb(body)[:2] == [
        201,
        "access to vhost 'other' refused for user 'guest'",
    ]
    assert client.is_closed


def test_mqtt_clients_of_a_listener_are_in_its_virtual_host() -> None:
    server = make_server("farm")
    client = mqtt.Client(server).open("c", 4)
    client.subscribe("t", 1)
    peer = amqp.Client(server).handshake()
    peer.publish("t", b"m", exchange="amq.topic")
    ((first, body),) = client.take()
    assert (first, body[3:]) == (0x30, b"m")
    assert list(server.broker.vhosts["farm"].queues) == ["amq.mqtt-session.c"]
    # What belongs to sessions is not for others.
    assert peer.call(Basic.Get(queue="amq.mqtt-session.c"))[0].reply_code == 403
