"""The firehose: what is published and delivered in a virtual host, by every road."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Channel, Confirm, Exchange, Queue

from tests.support import amqp, mqtt, native
from tests.support.amqp import publish_frames
from tests.support.metrics import metrics_text
from tests.support.permitted import Server, make_server
from tests.support.simulated import Host
from trivium.routing.exchanges import Binding
from trivium.runtime import firehose
from trivium.vhost.predeclared import TRACE_EXCHANGE
from trivium_native.wire import frames

Trace = tuple[str, dict[str, Any], bytes]


@pytest.fixture
def server() -> Server:
    server = make_server()
    traced(server)
    return server


def traced(server: Server, key: str = "#") -> None:
    """A queue ``trace`` of what comes out of the firehose, which is on."""
    vhost = server.vhost
    queue = vhost.declare_queue("trace")
    vhost.bind(vhost.exchange(TRACE_EXCHANGE), Binding(queue, key.encode()))
    server.broker.virtual_hosts.set_tracing("/", True)


def traces(server: Server) -> list[Trace]:
    """What came since the last look: routing keys, headers, bodies."""
    server.settle()
    found: list[Trace] = []
    queue = server.vhost.queues["trace"]
    while (entry := queue.get(no_ack=True)) is not None:
        message = entry.message
        assert message.address.exchange == TRACE_EXCHANGE
        headers = dict(message.properties().headers)
        found.append((message.address.key.decode(), headers, message.payload))
    return found


def keys(server: Server) -> list[str]:
    return [key for key, _, _ in traces(server)]


def test_publish_and_deliver_of_amqp_are_told_as_rabbitmq_does(server: Server) -> None:
    client = server.amqp("root")
    client.open_channel(2)
    client.feed(
        publish_frames(
            "k", b"body", "x", channel=2, content_type="t", priority=3, headers={"h": 1},
            delivery_mode=2, expiration="100000", correlation_id="c", timestamp=None,
        )
    )  # fmt: skip
    client.consume("q", no_ack=True)
    (published, about, body), (delivered, of_delivery, again) = traces(server)
    assert (published, delivered, body, again) == ("publish.x", "deliver.q", b"body", b"body")
    properties = {
        "content_type": "t",
        "priority": 3,
        "headers": {"h": 1},
        "delivery_mode": 2,
        "expiration": "100000",
        "correlation_id": "c",
    }
    common = {
        "exchange_name": "x",
        "routing_keys": ["k"],
        "properties": properties,
        "node": "trivium@localhost",
        "vhost": "/",
        "user": "root",
        "connection": "127.0.0.1:1 -> ",
    }
    assert about == {**common, "channel": 2, "routed_queues": ["q"]}
    assert of_delivery == {**common, "channel": 1, "redelivered": 0}


def test_further_keys_are_named_too(server: Server) -> None:
    server.amqp("root").publish("k", exchange="x", headers={"CC": ["other"]})
    ((_, about, _),) = traces(server)
    assert about["routing_keys"] == ["k", "other"]


def test_a_redelivery_says_so(server: Server) -> None:
    client = server.amqp("root")
    client.publish("k", exchange="x")
    client.call(Basic.Get(queue="q"))
    client.send(Basic.Nack(delivery_tag=1, requeue=True))
    client.get("q")
    found = [(key, about.get("redelivered")) for key, about, _ in traces(server)]
    assert found == [("publish.x", None), ("deliver.q", 0), ("deliver.q", 1)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_is_seen(server: Server, qos: int, version: int) -> None:
    reader = server.mqtt("root", "reader", version)
    reader.subscribe("t", qos)
    writer = server.mqtt("root", "writer", version)
    for number in (1, 2, 3):
        # Those behind the first repeat it, which has a way of its own.
        writer.feed(mqtt.publish("t", b"x", qos, number, version))
    told = traces(server)
    assert sorted(key for key, _, _ in told) == [
        *["deliver.amq.mqtt-session.reader"] * 3,
        *["publish.amq.topic"] * 3,
    ]
    assert all(about["user"] == "root" and body == b"x" for _, about, body in told)


def test_a_run_of_mqtt_is_seen_message_by_message(server: Server) -> None:
    server.mqtt("root", "reader", 4).subscribe("t", 1)
    writer = server.mqtt("root", "writer", 4)
    for qos in (0, 1):
        packets = [mqtt.publish("t", b"x", qos, number, 4) for number in range(1, 9)]
        writer.feed(b"".join(packets))
        assert sorted(keys(server)) == [
            *["deliver.amq.mqtt-session.reader"] * 8,
            *["publish.amq.topic"] * 8,
        ]


def test_a_run_of_amqp_is_seen_message_by_message(server: Server) -> None:
    client = server.amqp("root")
    client.send(Confirm.Select())
    for _ in range(2):
        client.feed(b"".join(publish_frames("k", b"x", "x") for _ in range(8)))
    assert keys(server) == ["publish.x"] * 16


def test_the_native_protocol_is_seen(server: Server) -> None:
    client = server.native("root")
    client.ask(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="x", pattern=b"k")
    reader = server.native("root")
    reader.ask(frames.SUBSCRIBE, subscription=1, mode="queue", queue="q", credit=10)
    entry = native.entry(key=b"k", exchange=b"x")
    client.send(frames.PUBLISH, 7, native.publish(entry))
    client.send(frames.PUBLISH, 8, native.publish(entry, entry))
    told = traces(server)
    published = [about["routed_queues"] for key, about, _ in told if key == "publish.x"]
    assert published == [["q"]] * 3
    delivered = [key for key, _, _ in told if key.startswith("deliver.")]
    assert delivered.count("deliver.q") == 3
    assert sum(key.startswith("deliver.native:127.0.0.1:1:") for key in delivered) == 3


def test_a_stream_is_seen_by_amqp(server: Server) -> None:
    client = server.amqp("root")
    client.publish("s")
    client.send(Basic.Qos(prefetch_count=10))
    client.take()
    client.call(Basic.Consume(queue="s", consumer_tag="c", arguments={"x-stream-offset": "first"}))
    (_, about, _), (key, _, _) = traces(server)
    assert (about["routed_queues"], key) == (["s"], "deliver.s")


def test_what_is_unroutable_and_what_is_delayed_is_seen(server: Server) -> None:
    client = server.amqp("root")
    client.publish("nobody", exchange="x", mandatory=True)
    assert amqp.names(client.take()) == ["Basic.Return", "ContentHeader", "ContentBody"]
    client.publish("k", exchange="x", headers={"x-delay": 1000})
    assert [about["routed_queues"] for _, about, _ in traces(server)] == [[], ["q"]]
    server.advance(2)
    assert client.get("q") == b"x"
    assert keys(server) == ["deliver.q"]


def test_headers_exchanges_and_deduplication_do_as_without(server: Server) -> None:
    client = server.amqp("root")
    client.exchange("h", "headers")
    client.exchange("once", "fanout", arguments={"x-message-deduplication": True})
    for source in ("h", "once"):
        client.bind("q", source, "", arguments={"a": 1})
        for _ in range(2):
            client.publish("", source.encode(), source, headers={
                "a": 1, "x-deduplication-header": "id",
            })  # fmt: skip
        client.publish("", b"no", "h", headers={"a": 2})
    assert [client.get("q") for _ in range(4)] == [b"h", b"h", b"once", None]
    assert keys(server).count("publish.h") == 4


def test_dead_letters_are_seen_where_they_are_delivered(server: Server) -> None:
    client = server.amqp("root")
    client.declare("dl")
    client.bind("dl", "amq.fanout", "")
    client.declare("limited", arguments={"x-dead-letter-exchange": "amq.fanout"})
    client.publish("limited")
    client.call(Basic.Get(queue="limited"))
    client.send(Basic.Reject(delivery_tag=1, requeue=False))
    server.settle()
    assert client.get("dl") == b"x"
    assert keys(server) == ["publish.", "deliver.limited", "deliver.dl"]


def test_the_firehose_is_not_seen_itself(server: Server) -> None:
    """Nor as a dead letter, which would make another trace of each trace without end."""
    client = server.amqp("root")
    client.declare("dead")
    client.bind("dead", "amq.fanout", "")
    arguments: dict[str, Any] = {"x-message-ttl": 0, "x-dead-letter-exchange": "amq.fanout"}
    client.declare("short", arguments=arguments)
    client.bind("short", TRACE_EXCHANGE, "#")
    client.consume("trace", "t", no_ack=True)
    client.consume("dead", "d", no_ack=True)
    client.publish("k", exchange="x")
    server.advance(1)
    found = [one.routing_key for one in client.take() if isinstance(one, Basic.Deliver)]
    assert found == ["publish.x", "publish.x"]


def test_nothing_is_made_while_it_is_off_or_nobody_is_bound(server: Server) -> None:
    counters = server.vhost.exchanges[TRACE_EXCHANGE].counters
    client = server.amqp("root")
    client.publish("k", exchange="x")
    assert keys(server) == ["publish.x"]
    server.broker.virtual_hosts.set_tracing("/", False)
    client.publish("k", exchange="x")
    assert keys(server) == []
    server.broker.virtual_hosts.set_tracing("/", True)
    client.call(Queue.Unbind(queue="trace", exchange=TRACE_EXCHANGE, routing_key="#"))
    client.publish("k", exchange="x")
    server.settle()
    assert counters.published == 1


def test_each_virtual_host_has_its_own(server: Server) -> None:
    elsewhere = server.broker.vhosts["elsewhere"]
    assert TRACE_EXCHANGE in elsewhere.exchanges
    assert elsewhere.tap is None
    elsewhere.declare_queue("q")
    server.home = "elsewhere"
    server.amqp("root").publish("q")
    server.home = "/"
    assert keys(server) == []


def test_nobody_publishes_there_nor_leads_anything_there(server: Server) -> None:
    for way in (
        Exchange.Bind(destination=TRACE_EXCHANGE, source="amq.fanout"),
        Exchange.Declare(exchange="n", arguments={"alternate-exchange": TRACE_EXCHANGE}),
        Queue.Declare(queue="n", arguments={"x-dead-letter-exchange": TRACE_EXCHANGE}),
    ):
        (answer,) = server.amqp("root").call(way)
        assert isinstance(answer, Channel.Close)
        assert answer.reply_code == 403
    client = server.amqp("root")
    client.publish("k", exchange=TRACE_EXCHANGE)
    (answer,) = client.take()
    assert "internal exchange" in answer.reply_text


def test_to_bind_to_it_needs_permission_to_read_it(server: Server) -> None:
    server.permit("ann", [("configure", "mine"), ("write", "mine")])
    client = server.amqp("ann")
    client.declare("mine")
    answer = client.ask(Queue.Bind(queue="mine", exchange=TRACE_EXCHANGE, routing_key="#"))
    assert isinstance(answer, Channel.Close)
    assert TRACE_EXCHANGE in answer.reply_text


def test_what_one_turn_has_too_much_of_is_dropped_and_counted(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firehose, "MAX_WAITING", 2)
    monkeypatch.setattr(firehose, "MAX_WAITING_BYTES", 100)
    client = server.amqp("root")
    client.feed(b"".join(publish_frames("k", b"x", "x") for _ in range(5)))
    assert len(traces(server)) == 2
    client.publish("k", b"x" * 101, exchange="x")
    assert traces(server) == []
    assert "trivium_firehose_messages_dropped_total 4" in metrics_text(server.broker)


def test_it_is_off_after_a_start() -> None:
    server = Server(host=Host())
    server.broker.virtual_hosts.set_tracing("/", True)
    server.sync()
    assert server.restart().vhost.tap is None
