"""``$SYS/broker/...``: what it says, who gets it, and when."""

from __future__ import annotations

import struct

import pytest

from tests.support import mqtt
from tests.support.core import RecordingConsumer
from tests.support.mqtt import Client, Server, publish, subscribe
from trivium import __version__
from trivium.routing.exchanges import Binding, ExchangeDestination
from trivium_mqtt.options import MqttOptions


@pytest.fixture
def server() -> Server:
    return Server()


def told(client: Client) -> dict[str, str]:
    """What the client got of ``$SYS``, by topic."""
    found: dict[str, str] = {}
    for first, body in client.take():
        if first & 0xF0 == 0x30:
            (size,) = struct.unpack(">H", body[:2])
            topic = body[2 : 2 + size].decode()
            if topic.startswith("$SYS/events/"):
                continue
            assert topic.startswith("$SYS/broker/")
            found[topic.removeprefix("$SYS/broker/")] = body[2 + size :].decode()
    return found


def ask(server: Server, topic_filter: str = "$SYS/#") -> dict[str, str]:
    """What a new subscriber gets, which is what is retained."""
    client = server.open("asks")
    client.take()
    client.feed(subscribe(topic_filter))
    found = told(client)
    client.leave()
    return found


def test_a_subscriber_gets_what_is_retained(server: Server) -> None:
    server.advance(1)
    found = ask(server)
    assert found["version"] == f"trivium version {__version__}"
    assert found["uptime"] == "1 seconds"
    assert ask(server, "$SYS/broker/uptime").keys() == {"uptime"}
    assert ask(server, "#") == {}, "a wildcard at the front hides them (MQTT-4.7.2-1)"
    assert ask(server, "+/broker/uptime") == {}


def test_clients_sessions_and_subscriptions_are_counted(server: Server) -> None:
    server.open_kept("away").feed(subscribe("t", 1))
    server.open_kept("away").lose()
    client = server.open("here")
    client.feed(subscribe("u"))
    client.feed(publish("t", b"waits", qos=1, packet_id=1))
    client.feed(publish("r", b"kept", retain=True))
    server.advance(11)
    found = ask(server)
    counts = {
        "clients/total": "2",
        "clients/connected": "1",
        "clients/disconnected": "1",
        "clients/maximum": "1",
        "subscriptions/count": "2",
        "publish/messages/received": "2",
    }
    assert {topic: found[topic] for topic in counts} == counts
    kept = int(found["retained messages/count"])
    assert int(found["messages/stored"]) == kept + 1


def test_payload_shares_and_connects_are_counted(server: Server) -> None:
    reader = server.open("reader")
    for packet_id, topic_filter in enumerate(("t", "$share/g/u", "$share/h/u"), 1):
        reader.feed(subscribe(topic_filter, 2, packet_id))
    client = server.open("writer")
    sizes = (1, 5, 5, 200, 300, 5)
    for qos in (0, 1, 2):
        # One read: those that follow repeat the first, of whatever size.
        client.feed(
            b"".join(
                publish("t", b"x" * size, qos, number)
                for number, size in enumerate(sizes, 1 + 10 * qos)
            )
        )
    client.feed(publish("nobody", b"x" * 7))
    server.advance(11)
    found = ask(server)
    assert found["publish/bytes/received"] == str(3 * sum(sizes) + 7)
    assert found["publish/bytes/sent"] == str(3 * sum(sizes))
    assert found["shared_subscriptions/count"] == "2"
    assert float(found["load/connections/1min"]) > 0
    reader.leave()
    server.advance(11)
    assert ask(server)["shared_subscriptions/count"] == "0"


def test_sessions_that_expire_are_counted(server: Server) -> None:
    properties = b"\x11" + struct.pack(">I", 5)
    server.open("c", version=5, properties=properties).lose()
    server.advance(20)
    server.advance(11)
    assert ask(server)["clients/expired"] == "1"


def test_what_has_not_changed_is_not_said_again(server: Server) -> None:
    server.advance(1)
    client = server.open("c")
    client.feed(subscribe("$SYS/#"))
    told(client)
    server.advance(10)
    server.advance(1)
    found = told(client)
    assert "uptime" in found
    assert "version" not in found


def test_loads_are_averages_of_what_comes_in_a_minute(server: Server) -> None:
    server.advance(1)
    client = server.open("c")
    for _ in range(30):
        client.feed(publish("t", b"x"))
    server.advance(10)
    found = ask(server)
    # 30 in 10 seconds are 180 in a minute; of which 1 - exp(-1/6) counts so far.
    assert float(found["load/publish/received/1min"]) == pytest.approx(27.6, abs=3)
    one, five, fifteen = (float(found[f"load/publish/received/{n}min"]) for n in (1, 5, 15))
    assert one > five > fifteen > 0


def test_they_can_be_switched_off() -> None:
    server = Server(options=MqttOptions(sys_interval_seconds=0))
    server.advance(30)
    assert ask(server) == {}


def test_the_interval_is_kept() -> None:
    server = Server(options=MqttOptions(sys_interval_seconds=60))
    server.advance(1)
    client = server.open("c")
    client.feed(subscribe("$SYS/broker/uptime"))
    told(client)
    for _ in range(58):
        server.advance(1)
    assert told(client) == {}
    for _ in range(3):
        server.advance(1)
    assert told(client).keys() == {"uptime"}


def test_nothing_of_it_is_stored(server: Server) -> None:
    server.advance(1)
    assert len(server.vhost.retained) == 0
    assert len(server.vhost.own.retained) > 20


@pytest.mark.parametrize(
    ("pattern", "count"),
    [(b"$SYS.broker.uptime", 1), (b"$SYS.broker.*", 2), (b"#", 0), (b"*.*.*", 0)],
)
def test_other_roads_get_them_by_name(server: Server, pattern: bytes, count: int) -> None:
    queue = server.vhost.declare_queue("q")
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(queue, pattern))
    outer = server.vhost.declare_exchange("outer", "fanout")
    outer_binding = Binding(ExchangeDestination(outer), b"#")
    server.vhost.bind(server.vhost.exchange("amq.topic"), outer_binding)
    server.vhost.bind(outer, Binding(queue, b""))
    server.advance(1)
    assert len(consumer.entries) == count


def test_what_clients_publish_there_is_not_among_it(server: Server) -> None:
    server.advance(1)
    server.open("c").feed(mqtt.publish("$SYS/broker/uptime", b"forged", retain=True))
    assert ask(server)["uptime"] == "1 seconds"
