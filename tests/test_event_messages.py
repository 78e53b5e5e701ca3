"""Events as messages, on the exchange of events and on ``$SYS/events``."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue

from tests.support import amqp, mqtt, native, roads
from tests.support.amqp import Client
from tests.support.metrics import metrics_text
from tests.support.permitted import make_server
from trivium.config import Config, Listen, StorageConfig, UserConfig
from trivium.routing.exchanges import Binding
from trivium.runtime.adapter import connection_name
from trivium.runtime.event_messages import MAX_TEXT, MAX_WAITING
from trivium.vhost.predeclared import EVENT_EXCHANGE
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.wire import frames


@pytest.fixture
def server() -> amqp.Server:
    return amqp.Server()


def listener(server: amqp.Server, key: str = "#") -> Client:
    client = server.open()
    client.declare("events", durable=True)
    client.bind("events", EVENT_EXCHANGE, key)
    server.settle()
    client.call(Queue.Purge(queue="events"))
    return client


def events(server: amqp.Server) -> list[tuple[str, dict[str, Any]]]:
    """What is in the queue of events: routing keys and headers."""
    server.settle()
    found: list[tuple[str, dict[str, Any]]] = []
    queue = server.vhost.queues["events"]
    while (entry := queue.get(no_ack=True)) is not None:
        message = entry.message
        assert message.payload == b""
        found.append((message.address.key.decode(), dict(message.properties().headers)))
    return found


def test_a_queue_is_created_and_deleted(server: amqp.Server) -> None:
    client = listener(server, "queue.*")
    server.broker.events.serving = client.connection
    client.declare("q", durable=True)
    client.call(Queue.Delete(queue="q"))
    # The first is of the queue that listens.
    _, (created, about), (deleted, _) = events(server)
    assert (created, deleted) == ("queue.created", "queue.deleted")
    assert (about["name"], about["vhost"], about["durable"]) == ("q", "/", True)
    assert about["user_who_performed_action"] == "guest"
    assert about["peer_address"] == client.connection.peer.address
    assert about["timestamp_in_ms"] > 0


def test_a_binding_has_its_ends_as_rabbitmq_names_them(server: amqp.Server) -> None:
    client = listener(server, "binding.created")
    client.declare("q")
    client.bind("q", "amq.direct", "k")
    ((_, about),) = events(server)
    ends = (about["source_name"], about["destination_name"], about["routing_key"])
    assert ends == ("amq.direct", "q", "k")


def test_connections_come_and_go(server: amqp.Server) -> None:
    listener(server, "connection.*")
    server.open().lose()
    found = events(server)
    assert [key for key, _ in found] == ["connection.created", "connection.closed"]
    assert {about["user"] for _, about in found} == {"guest"}


def test_a_connection_is_told_of_with_its_client_and_virtual_host() -> None:
    server = make_server()
    vhost = server.vhost
    vhost.bind(vhost.exchange(EVENT_EXCHANGE), Binding(vhost.declare_queue("e"), b"connection.#"))
    clients = [server.mqtt("root", "device"), server.amqp("root"), server.native("root")]
    for client in clients:
        client.lose()
    server.settle()
    told: dict[str, list[tuple[object, ...]]] = {}
    while (entry := vhost.queues["e"].get(no_ack=True)) is not None:
        about = dict(entry.message.properties().headers)
        key = entry.message.address.key.decode()
        place = tuple(about[name] for name in ("protocol", "client_id", "vhost"))
        told.setdefault(key, []).append(place)
    expected = [("mqtt", "device", "/"), ("amqp", "", "/"), ("native", "", "/")]
    assert told == {"connection.created": expected, "connection.closed": expected}


def test_a_connection_that_may_not_enter_is_not_told_of(server: amqp.Server) -> None:
    listener(server, "connection.*")
    client = server.connect()
    client.feed(amqp.PROTOCOL_HEADER)
    client.send(amqp.start_ok(b"guest", b"guest", None), channel=0)
    client.send(Connection.TuneOk(2047, 131_072, 0), channel=0)
    client.send(Connection.Open("none"), channel=0)
    client.lose()
    assert events(server) == []


def test_a_connection_has_its_name_with_both_ends(server: amqp.Server) -> None:
    listener(server, "connection.created")
    listener(server, "channel.created")
    client = server.open()
    name = connection_name(client.connection)
    told = dict(events(server))
    assert " -> " in name
    assert told["connection.created"]["name"] == name
    assert told["channel.created"]["name"] == f"{name} (1)"
    assert told["channel.created"]["connection"] == name


def test_a_client_of_amqp_reads_headers(server: amqp.Server) -> None:
    client = listener(server, "exchange.created")
    client.exchange("x", "fanout")
    server.settle()
    client.send(Basic.Get(queue="events", no_ack=True))
    _, header, *_ = client.take()
    headers = header.properties.headers
    assert (headers["name"], headers["type"]) == ("x", "fanout")
    assert header.properties.timestamp is not None


def test_a_refused_login_is_told_without_what_was_shown(server: amqp.Server) -> None:
    listener(server, "user.authentication.failure")
    client = server.connect()
    client.feed(b"AMQP\x00\x00\x09\x01")
    client.send(amqp.start_ok(b"guest", b"sesame-open"), channel=0)
    ((_, about),) = events(server)
    assert "guest" in about.values()
    assert "sesame-open" not in str(about)


def test_alarms_are_told(server: amqp.Server) -> None:
    listener(server, "alarm.*")
    broker = server.broker
    broker.alarms.disk_low = 100
    for free in (10, 1000):
        broker.driver.free_disk = lambda free=free: free  # type: ignore[method-assign,misc]
        broker.check_alarms()
    assert [(key, about["resource"]) for key, about in events(server)] == [
        ("alarm.set", "disk"),
        ("alarm.cleared", "disk"),
    ]


def refused(received: amqp.Received) -> str:
    """Why a channel was closed."""
    assert isinstance(received, Channel.Close), received
    assert received.reply_code == 403
    return str(received.reply_text)


def test_clients_cannot_publish_there(server: amqp.Server) -> None:
    client = server.open()
    client.publish("queue.created", exchange=EVENT_EXCHANGE)
    (closed,) = client.take()
    assert "internal exchange" in refused(closed)


def test_it_cannot_be_deleted(server: amqp.Server) -> None:
    client = server.open()
    assert "system exchange" in refused(client.ask(Exchange.Delete(exchange=EVENT_EXCHANGE)))


def test_other_virtual_hosts_have_no_such_exchange(server: amqp.Server) -> None:
    other: VirtualHost = server.broker.virtual_hosts.declare("other")
    assert EVENT_EXCHANGE not in other.exchanges


def test_events_of_other_virtual_hosts_are_told_in_the_default_one(server: amqp.Server) -> None:
    listener(server, "queue.created")
    server.broker.virtual_hosts.declare("other").declare_queue("q")
    ((_, about),) = events(server)
    assert (about["vhost"], about["name"]) == ("other", "q")


def test_who_may_not_read_it_cannot_bind() -> None:
    own = dict.fromkeys(("configure", "write", "read"), "^q")
    config = Config(
        storage=StorageConfig(mode="memory"),
        users={"ann": UserConfig(password="p", permissions={"/": own})},
        listen={"amqp": Listen(0)},
    )
    client = amqp.Server(config=config).open(user=b"ann", password=b"p")
    client.declare("q")
    answer = client.ask(Queue.Bind(queue="q", exchange=EVENT_EXCHANGE, routing_key="#"))
    assert EVENT_EXCHANGE in refused(answer)


def test_nothing_is_made_where_nobody_listens(server: amqp.Server) -> None:
    client = server.open()
    client.declare("q")
    server.settle()
    counters = server.vhost.exchanges[EVENT_EXCHANGE].counters
    assert counters.published == 0


def test_too_many_of_one_turn_are_dropped_and_counted(server: amqp.Server) -> None:
    listener(server, "test.*")
    for _ in range(MAX_WAITING + 5):
        server.broker.events.tell("test.event")
    assert len(events(server)) == MAX_WAITING
    assert "trivium_event_messages_dropped_total 5" in metrics_text(server.broker)


def test_what_is_large_is_cut(server: amqp.Server) -> None:
    listener(server, "test.*")
    server.broker.events.tell(
        "test.event", text="x" * 5000, many=list(range(1000)), names={"b", "a"}
    )
    ((_, about),) = events(server)
    assert len(about["text"]) == MAX_TEXT
    assert len(about["many"]) == 100
    assert about["names"] == ["a", "b"]


def test_mqtt_clients_get_them_as_json() -> None:
    server = mqtt.Server()
    client = server.open("c")
    client.feed(mqtt.subscribe("$SYS/events/#"))
    client.take()
    server.vhost.declare_queue("q")
    server.settle()
    ((first, body),) = client.take()
    assert first & 0xF1 == 0x30, "not retained"
    (size,) = struct.unpack(">H", body[:2])
    assert body[2 : 2 + size] == b"$SYS/events/queue/created"
    told = json.loads(body[2 + size :])
    assert (told["event"], told["name"]) == ("queue.created", "q")


def listening(permission: str, topic_permission: str, *filters: str) -> tuple[mqtt.Client, bytes]:
    """A client that has asked for filters, and what it was granted; in a server where a queue and a
    user have been made since."""
    config = Config(
        storage=StorageConfig(mode="memory"),
        users={
            "ann": UserConfig(
                password="p",
                permissions={"/": {"configure": "", "write": "", "read": permission}},
                topic_permissions={"/": {EVENT_EXCHANGE: {"write": "", "read": topic_permission}}},
            )
        },
        listen={"mqtt": Listen(0)},
    )
    server = mqtt.Server(config=config)
    client = server.open("c", username="ann", password="p")
    granted = b""
    for each in filters:
        client.feed(mqtt.subscribe(each))
        # Behind the answer may come that it has subscribed.
        (_, body), *_ = client.take()
        granted += body[2:]
    server.vhost.declare_queue("q")
    server.broker.events.tell("user.created", name="bob")
    server.settle()
    return client, granted


def topics(client: mqtt.Client) -> list[bytes]:
    """Those of the messages that a client was sent."""
    return [body[2 : 2 + struct.unpack(">H", body[:2])[0]] for _, body in client.take()]


QUEUE_CREATED = b"$SYS/events/queue/created"
USER_CREATED = b"$SYS/events/user/created"


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ("$SYS/events/#", 0x80),
        ("$share/g/$SYS/events/#", 0x80),
        ("$SYS/events/user/created", 0x80),
        ("$SYS/#", 0),
        ("$SYS/+/user/created", 0),
    ],
)
def test_by_mqtt_they_need_permission_to_read_their_exchange(wanted: str, code: int) -> None:
    client, granted = listening(r"^amq\.topic$", ".*", wanted)
    assert granted == bytes((code,))
    assert topics(client) == []


def test_by_mqtt_who_may_read_their_exchange_has_them() -> None:
    client, granted = listening(r"^amq\.(topic|trivium\.event)$", ".*", "$SYS/events/#")
    assert granted == b"\x00"
    assert topics(client) == [QUEUE_CREATED, USER_CREATED]


@pytest.mark.parametrize("wanted", ["$SYS/#", "$SYS/events/queue/created"])
def test_by_mqtt_topic_permissions_of_their_exchange_hold(wanted: str) -> None:
    client, granted = listening(".*", r"^queue\.", wanted, "$SYS/events/#")
    assert granted == b"\x00\x80"
    assert topics(client) == [QUEUE_CREATED]


@pytest.mark.parametrize(
    "key", ["$SYS.events.#", "$SYS.#", "$SYS.*.user.created", "$SYS.#.created"]
)
def test_a_queue_gets_them_from_amq_topic_with_permission_alone(key: str) -> None:
    own = {"configure": "^q$", "write": "^q$", "read": r"^(q|amq\.topic)$"}
    config = Config(
        storage=StorageConfig(mode="memory"),
        users={"ann": UserConfig(password="p", permissions={"/": own})},
        listen={"amqp": Listen(0)},
    )
    client = amqp.Server(config=config).open(user=b"ann", password=b"p")
    client.declare("q")
    client.bind("q", "amq.topic", "$SYS.broker.#")
    answer = client.ask(Queue.Bind(queue="q", exchange="amq.topic", routing_key=key))
    assert "topic" in refused(answer)


def native_reader(topic_permission: str, *readable: str) -> tuple[roads.Server, native.Client]:
    """A client of the native protocol whose user may read these exchanges."""
    names = "|".join(("q", *readable)).replace(".", "[.]")
    own = {"configure": "^q$", "write": "^q$", "read": f"^({names})$"}
    topics = {"/": {EVENT_EXCHANGE: {"write": "", "read": topic_permission}}}
    user = UserConfig(password="p", permissions={"/": own}, topic_permissions=topics)
    config = Config(
        storage=StorageConfig(mode="memory"), users={"ann": user}, listen={"native": Listen(0)}
    )
    server = roads.Server(config=config)
    client = server.native("ann")
    client.ask(frames.DECLARE, kind="queue", name="q")
    return server, client


@pytest.mark.parametrize("key", [b"$SYS.events.#", b"$SYS.events.user.created", b"$SYS.#"])
def test_by_the_native_protocol_they_need_permission_to_read_their_exchange(key: bytes) -> None:
    server, client = native_reader(".*", "amq.topic")
    bound = {"exchange": "amq.topic", "kind": "queue", "name": "q"}
    assert client.refused(frames.BIND, **bound, pattern=key) == 201
    client.ask(frames.BIND, **bound, pattern=b"$SYS.broker.#")
    live = {"subscription": 1, "mode": "pubsub", "exchange": "amq.topic", "pattern": key}
    client.send(frames.SUBSCRIBE, 5, live)
    server.broker.events.tell("user.created", name="bob")
    server.settle()
    assert native.deliveries(client.take()) == []
    assert len(server.vhost.queues["q"]) == 0


def test_by_the_native_protocol_topic_permissions_of_their_exchange_hold() -> None:
    _, client = native_reader(r"^queue\.", "amq.topic", EVENT_EXCHANGE)
    for exchange, prefix in (("amq.topic", b"$SYS.events."), (EVENT_EXCHANGE, b"")):
        bound = {"exchange": exchange, "kind": "queue", "name": "q"}
        client.ask(frames.BIND, **bound, pattern=prefix + b"queue.created")
        assert client.refused(frames.BIND, **bound, pattern=prefix + b"user.created") == 201


# Those that come and go with clients


def test_channels_come_and_go(server: amqp.Server) -> None:
    listener(server, "channel.*")
    client = server.open()
    client.open_channel(2)
    client.call(Channel.Close(200, "", 0, 0), channel=2)
    client.lose()
    found = [(key, about["number"], about["user"]) for key, about in events(server)]
    assert found == [
        ("channel.created", 1, "guest"),
        ("channel.created", 2, "guest"),
        ("channel.closed", 2, "guest"),
        ("channel.closed", 1, "guest"),
    ]


def test_consumers_come_and_go(server: amqp.Server) -> None:
    listener(server, "consumer.*")
    client = server.open()
    client.declare("q")
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.consume("q", "cancelled", no_ack=True)
    client.call(Basic.Cancel(consumer_tag="cancelled"))
    client.consume("q", "deleted")
    client.call(Queue.Delete(queue="q"))
    client.send(Basic.Qos(prefetch_count=3))
    client.take()
    client.consume("s", "of-a-stream")
    client.lose()
    found = [(key.partition(".")[2], about["consumer_tag"]) for key, about in events(server)]
    assert found == [
        *[("created", "cancelled"), ("deleted", "cancelled"), ("created", "deleted")],
        *[("deleted", "deleted"), ("created", "of-a-stream"), ("deleted", "of-a-stream")],
    ]


def test_a_consumer_is_described_as_rabbitmq_does(server: amqp.Server) -> None:
    listener(server, "consumer.created")
    client = server.open()
    client.declare("q")
    client.consume("q", "tag", exclusive=True, arguments={"x-priority": 3})
    ((_, about),) = events(server)
    assert {
        "queue": "q",
        "consumer_tag": "tag",
        "channel": 1,
        "ack_required": True,
        "exclusive": True,
        "prefetch_count": 0,
        "arguments": {"x-priority": 3},
        "vhost": "/",
    }.items() <= about.items()


def test_sessions_and_subscriptions_come_and_go() -> None:
    server = make_server()
    watch = server.vhost.declare_queue("events")
    server.vhost.bind(server.vhost.exchanges[EVENT_EXCHANGE], Binding(watch, b"session.*"))
    server.vhost.bind(server.vhost.exchanges[EVENT_EXCHANGE], Binding(watch, b"subscription.*"))
    client = server.mqtt("root", "device")
    client.subscribe("a/+", 1)
    client.subscribe("a/+", 0)
    client.subscribe("$share/g/b")
    client.feed(mqtt.unsubscribe("a/+", version=5))
    client.lose()
    subscriber = server.native("root")
    subscriber.ask(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="x", pattern=b"k")
    subscriber.lose()
    server.settle()
    found = []
    while (entry := watch.get(no_ack=True)) is not None:
        about = dict(entry.message.properties().headers)
        key = entry.message.address.key.decode()
        found.append((key, about.get("topic_filter", about.get("routing_key"))))
        assert (about["user"], about["vhost"]) == ("root", "/")
        assert about.get("client_id", "device") == "device"
    assert found == [
        ("session.created", None),
        ("subscription.created", "a/+"),
        ("subscription.created", "$share/g/b"),
        ("subscription.deleted", "a/+"),
        ("subscription.deleted", "$share/g/b"),
        ("session.deleted", None),
        ("subscription.created", "k"),
        ("subscription.deleted", "k"),
    ]
