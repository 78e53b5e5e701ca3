"""Quotas of users, virtual hosts and listeners, as clients of each protocol meet them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue, Tx

from tests.support import amqp, mqtt, native
from tests.support.metrics import metrics_text
from tests.support.roads import Server
from tests.support.server import Client
from tests.support.simulated import Host
from tests.support.storages import HeldStorage
from trivium.common.quotas import (
    CHANNELS,
    CONNECTIONS,
    COUNTED,
    LISTENER,
    QUEUES,
    RETAINED_MESSAGES,
    SESSIONS,
    STREAMS,
    SUBSCRIPTIONS,
    USER,
    VHOST,
)
from trivium.config import EVERYTHING, Config, LimitsConfig, StorageConfig, UserConfig
from trivium.listen import ListenerConfig
from trivium.runtime.adapter import Connection as CoreConnection
from trivium.security.passwords import hash_password
from trivium_amqp.connection import AmqpConnection
from trivium_mqtt.connection import MqttConnection
from trivium_native.server.connection import NativeConnection
from trivium_native.wire import frames

QUOTA_EXCEEDED = 404
SUBSCRIBE = {"mode": "pubsub", "exchange": "amq.topic", "pattern": b"a"}


def make_server(
    user: dict[str, Any] | None = None,
    vhost: dict[str, Any] | None = None,
    listeners: tuple[ListenerConfig, ...] = (),
    host: Host | None = None,
) -> Server:
    """A broker with the user ann, who has these limits, and bob, who has none."""
    limits = {"ann": user or {}, "bob": {}}
    users = {
        name: UserConfig(password="p", permissions=EVERYTHING, limits=limits[name])
        for name in limits
    }
    config = Config(
        storage=StorageConfig(mode="memory"),
        users=users,
        limits=LimitsConfig(vhost=vhost or {}),
        listen={},
        listeners=listeners,
    )
    return Server(config=config, host=host)


def used(server: Server, what: int, scope: str = USER, name: str = "ann") -> int:
    return server.broker.quotas.account(scope, name).used[what]


# Connections


def amqp_refusal(server: Server, user: str, vhost: str = "/") -> tuple[int, str]:
    """The user connects and is refused in answer to connection.open."""
    client = amqp.Client(server)
    client.feed(amqp.PROTOCOL_HEADER)
    client.send(amqp.start_ok(user.encode(), b"p"), channel=0)
    client.send(Connection.TuneOk(2047, 131_072, 0), Connection.Open(vhost), channel=0)
    close = client.take()[-1]
    assert isinstance(close, Connection.Close)
    client.lose()
    assert isinstance(close.reply_code, int)
    assert isinstance(close.reply_text, str)
    return close.reply_code, close.reply_text


def connack(server: Server, user: str, client_id: str, version: int) -> bytes:
    client = mqtt.Client(server)
    client.feed(mqtt.connect(client_id, version, username=user, password=b"p"))
    ((first, body),) = mqtt.split(client.take_bytes())
    assert first == 0x20
    assert client.is_closed is (body[1] != 0)
    return body


def test_connections_of_a_user_are_counted_over_all_protocols() -> None:
    server = make_server({"max-connections": 3})
    clients = [server.mqtt("ann"), server.amqp("ann"), server.native("ann")]
    assert amqp_refusal(server, "ann") == (
        530,
        "NOT_ALLOWED - connection refused for user 'ann': user connection limit (3) is reached",
    )
    assert connack(server, "ann", "other", 5)[1] == 0x97
    assert connack(server, "ann", "other", 4)[1] == 3
    refused = native.Client(server).greet()
    ((kind, _, body),) = refused.send(frames.AUTH, 2, {"username": "ann", "password": b"p"})
    code, text, detail = msgpack.unpackb(body)
    assert (kind, code) == (frames.ERROR, QUOTA_EXCEEDED)
    assert (text, detail) == (
        "limit max-connections (3) of user 'ann' is reached",
        {"limit": "max-connections", "most": 3},
    )
    assert refused.is_closed
    # Others are not concerned, and whoever leaves makes room.
    server.mqtt("bob", "bob")
    for client in clients:
        client.lose()
        assert used(server, CONNECTIONS) == 2
        clients[0] = server.mqtt("ann")
        clients[0].lose()
        server.amqp("ann")
    assert used(server, CONNECTIONS) == 3


def test_connections_of_a_virtual_host_are_counted_over_all_users() -> None:
    server = make_server(vhost={"max-connections": 2})
    server.mqtt("ann"), server.amqp("bob")
    assert amqp_refusal(server, "ann") == (
        530,
        "NOT_ALLOWED - access to vhost '/' refused for user 'ann': connection limit (2) is reached",
    )


def test_a_client_that_connects_again_does_not_count_twice() -> None:
    server = make_server({"max-connections": 1})
    first = server.mqtt("ann", "c")
    second = server.mqtt("ann", "c")
    assert first.is_closed
    assert not second.is_closed
    assert used(server, CONNECTIONS) == 1
    first.lose()
    assert used(server, CONNECTIONS) == 1
    assert connack(server, "ann", "d", 5)[1] == 0x97
    assert not second.is_closed


def test_whoever_is_refused_ends_no_connection_of_another() -> None:
    server = make_server({"max-connections": 1})
    server.mqtt("ann", "c")
    bob = server.mqtt("bob", "d")
    assert connack(server, "ann", "d", 5)[1] == 0x97
    assert not bob.is_closed


def test_a_connection_that_the_broker_closes_does_not_count_any_more() -> None:
    server = make_server({"max-connections": 1})
    client = server.mqtt("ann", "c")
    client.feed(b"\x00\x00")
    assert client.is_closed
    server.mqtt("ann", "d")


# Channels


def test_channels_beyond_the_limit_cost_the_connection_as_in_rabbitmq() -> None:
    server = make_server({"max-channels": 2})
    client = server.amqp("ann")
    client.open_channel(2)
    assert client.ask(Channel.Close(200, "", 0, 0), channel=2).name == "Channel.CloseOk"
    client.open_channel(3)
    other = server.amqp("bob")
    other.open_channel(2)
    close = client.ask(Channel.Open(), channel=4)
    assert (close.name, close.reply_code, close.class_id, close.method_id) == (
        "Connection.Close",
        530,
        20,
        10,
    )
    assert close.reply_text == (
        "NOT_ALLOWED - number of channels opened for user 'ann' has reached"
        " the maximum allowed user limit of (2)"
    )
    assert used(server, CHANNELS) == 0


def test_a_channel_that_fails_counts_until_its_number_is_free() -> None:
    server = make_server()
    client = server.amqp("ann")
    client.call(Basic.Ack(delivery_tag=5))
    assert used(server, CHANNELS) == 1
    client.call(Channel.CloseOk())
    assert used(server, CHANNELS) == 0
    client.open_channel(1)
    client.send(Connection.Close(200, "bye", 0, 0), channel=0)
    assert (used(server, CHANNELS), used(server, CHANNELS, VHOST, "/")) == (0, 0)


# Subscriptions


def suback(client: mqtt.Client, topic_filter: str) -> int:
    client.feed(mqtt.subscribe(topic_filter, 1, 1, client.version))
    first, body = client.take_first()
    assert first == 0x90
    return body[-1]


def test_subscriptions_are_counted_over_all_protocols() -> None:
    server = make_server({"max-subscriptions": 3})
    bob = server.amqp("bob")
    bob.declare("q")
    device, service, reader = server.mqtt("ann"), server.amqp("ann"), server.native("ann")
    assert suback(device, "a/b") == 1
    service.consume("q")
    reader.ask(frames.SUBSCRIBE, subscription=1, **SUBSCRIBE)
    assert suback(device, "c/d") == 0x97
    # One that is there may be made anew.
    assert suback(device, "a/b") == 1
    old = server.mqtt("ann", "old", 4)
    assert suback(old, "c/d") == 0x80
    assert reader.refused(frames.SUBSCRIBE, subscription=2, **SUBSCRIBE) == QUOTA_EXCEEDED
    (close,) = service.call(Basic.Consume(queue="q", consumer_tag="d"))
    amqp.assert_channel_closed(
        close, 406, "PRECONDITION_FAILED - limit max-subscriptions (3) of user 'ann' is reached"
    )
    # The channel's consumer is gone.
    assert used(server, SUBSCRIPTIONS) == 2
    device.feed(mqtt.unsubscribe("a/b", 1, 5))
    reader.ask(frames.UNSUBSCRIBE, subscription=1)
    assert used(server, SUBSCRIPTIONS) == 0
    assert used(server, SUBSCRIPTIONS, VHOST, "/") == 0


def test_subscriptions_end_with_what_they_are_of() -> None:
    server = make_server()
    service, reader = server.amqp("ann"), server.native("ann")
    service.declare("q")
    service.consume("q")
    service.consume("q", "d")
    reader.ask(frames.SUBSCRIBE, subscription=1, mode="queue", queue="q", credit=1)
    assert used(server, SUBSCRIPTIONS) == 3
    assert service.ask(Basic.Cancel(consumer_tag="d")).name == "Basic.CancelOk"
    assert used(server, SUBSCRIPTIONS) == 2
    service.call(Queue.Delete(queue="q"))
    assert used(server, SUBSCRIPTIONS) == 0


def listener(name: str, protocol: str, **limits: int) -> ListenerConfig:
    limits = {key.replace("_", "-"): value for key, value in limits.items()}
    return ListenerConfig(name=name, protocol=protocol, address="127.0.0.1:0", limits=limits)


def test_a_listener_counts_a_session_s_subscriptions_while_its_client_is_here() -> None:
    server = make_server(listeners=(listener("devices", "mqtt", max_subscriptions=2),))
    client = server.mqtt("ann", clean=False, properties=mqtt.KEPT)
    assert [suback(client, name) for name in ("a", "b", "c")] == [1, 1, 0x97]
    client.lose()
    assert used(server, SUBSCRIPTIONS, LISTENER, "devices") == 0
    assert used(server, SUBSCRIPTIONS) == used(server, SUBSCRIPTIONS, VHOST, "/") == 2
    other = server.mqtt("bob", "d")
    assert suback(other, "a") == 1
    # What a session brings along is beyond the limit, and stays.
    client = server.mqtt("ann", clean=False, properties=mqtt.KEPT)
    assert used(server, SUBSCRIPTIONS, LISTENER, "devices") == 3
    assert suback(other, "b") == 0x97
    client.feed(mqtt.unsubscribe("a", 1, 5), mqtt.unsubscribe("b", 2, 5))
    assert suback(other, "b") == 1


# Queues and streams


def test_queues_of_a_virtual_host_are_refused_in_rabbitmq_s_words() -> None:
    server = make_server(vhost={"max-queues": 2})
    client = server.amqp("ann")
    client.declare("a")
    reader = server.native("bob")
    reader.ask(frames.DECLARE, kind="queue", name="b")
    (close,) = client.call(Queue.Declare(queue="c"))
    amqp.assert_channel_closed(
        close,
        406,
        "PRECONDITION_FAILED - cannot declare queue 'c': queue limit in vhost '/' (2) is reached",
    )
    assert reader.refused(frames.DECLARE, kind="queue", name="c") == QUOTA_EXCEEDED
    # What is there may be declared; sessions and replies have queues that are not their users'.
    client.call(Channel.CloseOk())
    client.open_channel(1)
    client.declare("a")
    assert suback(server.mqtt("ann"), "t") == 1
    client.consume("amq.rabbitmq.reply-to", "r", no_ack=True)
    assert used(server, QUEUES, VHOST, "/") == 2
    client.call(Queue.Delete(queue="a"))
    client.declare("c", auto_delete=True)
    client.consume("c")
    client.call(Basic.Cancel(consumer_tag="c"))
    assert used(server, QUEUES, VHOST, "/") == 1


def test_a_queue_is_that_of_who_declared_it_over_all_virtual_hosts_and_restarts() -> None:
    server = make_server({"max-queues": 2}, host=Host())
    server.broker.virtual_hosts.declare("v")
    client = server.amqp("ann")
    client.declare("a", durable=True)
    client.declare("gone")
    bob = server.amqp("bob")
    bob.declare("b", durable=True)
    (close,) = client.call(Queue.Declare(queue="c"))
    assert "queue limit in user 'ann' (2) is reached" in close.reply_text
    server = server.crash()
    assert [used(server, QUEUES, USER, name) for name in ("ann", "bob")] == [1, 1]
    other = native.Client(server).greet()
    fields = {"username": "ann", "password": b"p", "vhost": "v"}
    assert other.send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
    other.send(frames.DECLARE, 3, {"kind": "queue", "name": "a"})
    server.sync()
    assert used(server, QUEUES) == 2
    # Whoever deletes it, it was ann's.
    server.amqp("bob").ask(Queue.Delete(queue="a"))
    assert used(server, QUEUES) == 1


def test_an_exclusive_queue_counts_while_its_connection_is_there() -> None:
    server = make_server({"max-queues": 1})
    client = server.amqp("ann")
    client.declare("a", exclusive=True)
    assert used(server, QUEUES) == 1
    client.lose()
    assert (used(server, QUEUES), used(server, QUEUES, VHOST, "/")) == (0, 0)


def test_streams_of_a_virtual_host_are_limited() -> None:
    server = make_server(vhost={"max-streams": 1}, host=Host())
    client = server.native("ann")
    client.send(frames.DECLARE, 5, {"kind": "stream", "name": "a"})
    server.sync()
    server = server.crash()
    client = server.native("ann")
    assert client.refused(frames.DECLARE, kind="stream", name="b") == QUOTA_EXCEEDED
    service = server.amqp("ann")
    arguments: dict[str, Any] = {"x-queue-type": "stream"}
    (close,) = service.call(Queue.Declare(queue="b", durable=True, arguments=arguments))
    assert close.reply_text == (
        "PRECONDITION_FAILED - limit max-streams (1) of vhost '/' is reached"
    )
    client.send(frames.DELETE, 6, {"kind": "stream", "name": "a"})
    assert used(server, STREAMS, VHOST, "/") == 0


def test_what_was_in_a_virtual_host_that_is_deleted_does_not_count_any_more() -> None:
    server = make_server()
    server.broker.virtual_hosts.declare("v")
    server.home = "v"
    server.amqp("ann").declare("q")
    server.native("ann").ask(frames.DECLARE, kind="stream", name="s")
    client = server.mqtt("ann", clean=False, properties=mqtt.KEPT)
    assert suback(client, "a") == 1
    server.home = "/"
    kept = server.amqp("ann")
    kept.declare("kept")
    order = {"action": "delete-vhost", "name": "v"}
    server.administrator().send(frames.MANAGE_PERMISSIONS, 9, order)
    for connection in list(server.broker.connections):
        if connection.is_closed or connection.access.vhost == "v":
            connection.is_closed = True
            server.broker.remove_connection(connection)
            connection.lost()
    server.advance(30)
    assert "v" not in server.broker.vhosts
    assert server.broker.quotas.account(USER, "ann").used == [1, 1, 0, 1, 0, 0]
    names = {found.name for found in server.broker.quotas.accounts() if found.scope == VHOST}
    assert names == {"/"}


# Sessions


def test_sessions_count_until_they_end_also_over_a_restart() -> None:
    server = make_server({"max-sessions": 2}, host=Host())
    kept = mqtt.Client(server)
    kept.open("kept", 5, clean=False, properties=mqtt.KEPT, username="ann", password=b"p")
    server.sync()
    server.mqtt("ann", "clean")
    assert connack(server, "ann", "third", 5)[1] == 0x97
    server = server.crash()
    assert (used(server, SESSIONS), used(server, SESSIONS, VHOST, "/")) == (1, 1)
    server.mqtt("ann", "clean")
    assert connack(server, "ann", "third", 4)[1] == 3
    server.advance(5000)
    # It has expired.
    assert used(server, SESSIONS) == 1
    server.mqtt("ann", "third")


def test_what_another_user_left_does_not_count_for_who_gets_the_identifier() -> None:
    server = make_server()
    client = server.mqtt("ann", "c", clean=False, properties=mqtt.KEPT)
    assert suback(client, "a") == 1
    client.lose()
    client = server.mqtt("bob", "c")
    assert [used(server, what) for what in (SESSIONS, SUBSCRIPTIONS)] == [0, 0]
    assert [used(server, what, USER, "bob") for what in (SESSIONS, SUBSCRIPTIONS)] == [1, 0]


# What is kept, and what waits


def test_what_cannot_be_retained_is_delivered_all_the_same() -> None:
    server = make_server(vhost={"max-retained-messages": 1})
    watcher = server.mqtt("bob", "w")
    watcher.subscribe("#")
    client = server.mqtt("ann")
    client.feed(*(mqtt.publish(name, b"x", 1, 1, 5, retain=True) for name in ("a", "b")))
    assert [first for first, _ in client.take()] == [0x40, 0x40]
    assert len(watcher.take()) == 2
    assert len(server.vhost.retained) == 1
    assert server.broker.quotas.refusals == {(VHOST, RETAINED_MESSAGES): 1}


def test_publishers_are_refused_while_too_much_waits() -> None:
    server = make_server(vhost={"max-queued-bytes": 10})
    service = server.amqp("ann")
    service.declare("q")
    service.call(Queue.Bind(queue="q", exchange="amq.topic", routing_key="a"))
    assert service.ask(Confirm.Select()).name == "Confirm.SelectOk"
    watcher = server.mqtt("bob", "w")
    watcher.subscribe("live")
    device, old = server.mqtt("ann", "new"), server.mqtt("ann", "old", 4)
    writer = server.native("ann")
    service.publish("q", b"x" * 10)
    assert service.take()[0].name == "Basic.Ack"
    # By each road the answer is that of a queue that rejects.
    service.publish("q", b"x")
    assert service.take()[0].name == "Basic.Nack"
    device.feed(mqtt.publish("a", b"x", 1, 1, 5))
    assert device.take_one() == (0x40, b"\x00\x01\x97")
    ((kind, _, body),) = writer.send(
        frames.PUBLISH, 7, native.publish(native.entry(b"x", b"a", b"amq.topic"))
    )
    assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 400)
    old.feed(mqtt.publish("a", b"x", 1, 1, 4))
    assert old.is_closed
    # What waits nowhere goes on.
    device.feed(mqtt.publish("live", b"x", 1, 2, 5))
    assert device.take_one()[1][:2] == b"\x00\x02"
    assert watcher.take_one()[0] == 0x30
    assert service.get("q") == b"x" * 10
    service.publish("q", b"y" * 10)
    assert service.take()[0].name == "Basic.Ack"
    assert server.vhost.queued_bytes == 10
    service.call(Queue.Delete(queue="q"))
    assert server.vhost.queued_bytes == 0


def test_a_transaction_beyond_the_limit_is_refused_as_a_whole() -> None:
    server = make_server(vhost={"max-queued-bytes": 10})
    client = server.amqp("ann")
    client.declare("q")
    client.ask(Tx.Select())
    for _ in range(2):
        client.publish("q", b"x" * 6)
    (close,) = client.call(Tx.Commit())
    assert close.reply_code == 406
    assert len(server.vhost.queues["q"]) == 0


def test_a_limit_that_is_taken_away_lets_queues_take_the_short_way_again() -> None:
    server = make_server()
    client = server.amqp("ann")
    client.declare("q")
    client.publish("q", b"x" * 100)
    administrator = server.administrator()
    order = {"action": "set-vhost-limits", "name": "/"}
    administrator.ask(frames.MANAGE_PERMISSIONS, **order, limits={"max-queued-bytes": 10})
    client.publish("q")
    assert len(server.vhost.queues["q"]) == 1
    administrator.ask(frames.MANAGE_PERMISSIONS, **order, limits={})
    client.publish("q")
    assert len(server.vhost.queues["q"]) == 2


# Rates


def arrived(client: mqtt.Client) -> int:
    return len([1 for first, _ in client.take() if first & 0xF0 == 0x30])


def is_paused(client: Client) -> bool:
    """Whether the broker does not read it."""
    return client.transport.is_paused


def watch(server: Server) -> mqtt.Client:
    watcher = server.mqtt("bob", "w")
    watcher.subscribe("#")
    return watcher


def test_who_publishes_too_fast_is_not_read_and_nothing_is_lost() -> None:
    server = make_server({"publish-messages-per-second": 10})
    watcher = watch(server)
    client = server.mqtt("ann", version=4)
    packets = b"".join(mqtt.publish("t", b"%d" % number) for number in range(200))
    client.feed(packets)
    assert is_paused(client)
    first = arrived(watcher)
    # Ten at once, and what one part of the read has beyond that.
    assert 10 <= first <= 10 + 64 // 6
    server.advance(5)
    assert first + 49 <= first + arrived(watcher) <= 60 + 64 // 6
    server.advance(20)
    assert not is_paused(client)
    total = server.adapter_of("mqtt").metrics.messages_received
    assert total == 200


@pytest.mark.parametrize("road", ["amqp", "native"])
def test_each_road_has_the_rate_of_its_user(road: str) -> None:
    server = make_server({"publish-messages-per-second": 100})
    watcher = watch(server)
    client: amqp.Client | native.Client
    if road == "amqp":
        client = server.amqp("ann")
        data = b"".join(amqp.publish_frames("t", b"x", "amq.topic") for _ in range(300))
    else:
        client = server.native("ann")
        body = native.publish(native.entry(b"x", b"t", b"amq.topic"))
        data = b"".join(native.frame(frames.PUBLISH, 0, body) for _ in range(300))
    client.feed(data)
    assert is_paused(client)
    assert 100 <= arrived(watcher) <= 103
    server.advance(1)
    assert 99 <= arrived(watcher) <= 103
    server.advance(2)
    assert 90 <= arrived(watcher) <= 103
    assert not is_paused(client)
    assert server.adapter_of(road).metrics.messages_received == 300


def test_bytes_are_counted_as_they_come_also_of_a_message_that_is_not_whole() -> None:
    server = make_server({"publish-bytes-per-second": 1000})
    watcher = watch(server)
    client = server.mqtt("ann", version=4)
    server.advance(2)
    client.feed(mqtt.publish("t", bytes(5000)))
    assert is_paused(client)
    server.advance(3)
    assert arrived(watcher) == 0
    server.advance(2)
    assert arrived(watcher) == 1


@pytest.mark.parametrize("is_numbered", [False, True])
def test_bytes_of_compressed_messages_are_counted_as_they_are_kept(is_numbered: bool) -> None:
    server = make_server({"publish-bytes-per-second": 1000})
    client = server.native("ann")
    producer = None
    if is_numbered:
        client.ask(frames.PRODUCER, producer="p")
        producer = (b"p", 0, 0)
    server.advance(2)
    body = native.publish(native.entry(bytes(5000), b"t", b"amq.topic"), producer=producer)
    client.feed(native.frame(frames.PUBLISH, 1, native.packed(body, "zstd")))
    assert client.take() == [(frames.CONFIRM, 1, struct.pack("<I", 1))]
    client.feed(native.frame(frames.PING, 2, b""))
    assert is_paused(client)
    server.advance(3)
    assert client.take() == []
    server.advance(2)
    assert client.take() == [(frames.PONG, 2, b"")]
    assert not is_paused(client)


def test_connections_of_a_user_share_its_rate() -> None:
    server = make_server({"publish-messages-per-second": 10})
    watcher = watch(server)
    clients = [server.mqtt("ann", name, 4) for name in "ab"]
    for client in clients:
        client.feed(b"".join(mqtt.publish("t", b"x") for _ in range(20)))
    server.advance(3)
    assert 39 <= arrived(watcher) <= 40
    server.advance(1)
    assert server.adapter_of("mqtt").metrics.messages_received == 40


def test_what_comes_with_connect_does_not_go_before_the_rate() -> None:
    """So nobody publishes faster by connecting again and again."""
    server = make_server({"publish-messages-per-second": 10})
    watcher = watch(server)
    for number in range(5):
        client = mqtt.Client(server)
        hello = mqtt.connect(f"c{number}", 4, username="ann", password=b"p")
        client.feed(hello + b"".join(mqtt.publish("t", b"x") for _ in range(50)))
        client.lose()
    assert arrived(watcher) <= 20


def test_a_rate_that_is_changed_holds_for_who_is_there() -> None:
    server = make_server()
    watcher = watch(server)
    client = server.mqtt("ann", version=4)
    packets = b"".join(mqtt.publish("t", b"x") for _ in range(100))
    client.feed(packets)
    assert arrived(watcher) == 100
    quotas = server.broker.quotas
    quotas.set_limits(USER, "ann", {"publish-messages-per-second": 1})
    client.feed(packets)
    assert arrived(watcher) <= 15
    quotas.set_limits(USER, "ann", {"publish-messages-per-second": 1000})
    server.advance(1)
    assert server.adapter_of("mqtt").metrics.messages_received == 200
    quotas.set_limits(USER, "ann", {})
    client.feed(packets * 50)
    assert server.adapter_of("mqtt").metrics.messages_received == 5200
    assert not is_paused(client)


def test_the_end_of_an_amqp_connection_does_not_wait_for_its_rate() -> None:
    server = make_server({"publish-messages-per-second": 1})
    client = server.amqp("ann")
    client.feed(b"".join(amqp.publish_frames("t", b"x", "amq.topic") for _ in range(500)))
    client.take()
    client.connection.shutdown(is_revoked=True)
    server.settle()
    assert [frame.name for frame in client.take()] == ["Connection.Close"]
    client.send(Connection.CloseOk(), channel=0)
    server.settle()
    assert client.transport.is_closed
    assert server.adapter_of("amqp").metrics.messages_received <= 64


def test_a_client_that_waits_for_its_rate_is_not_taken_for_dead() -> None:
    server = make_server({"publish-messages-per-second": 1})
    client = server.mqtt("ann", version=4, keep_alive=2)
    service = amqp.Client(server).handshake(b"ann", b"p", heartbeat=2)
    reader = native.Client(server).greet(heartbeat=2)
    fields = {"username": "ann", "password": b"p"}
    assert reader.send(frames.AUTH, 2, fields)[0][0] == frames.OK
    client.feed(b"".join(mqtt.publish("t", b"x") for _ in range(40)))
    service.feed(b"".join(amqp.publish_frames("t", b"x") for _ in range(40)))
    body = native.publish(native.entry(b"x", b"t", b"amq.topic"))
    reader.feed(b"".join(native.frame(frames.PUBLISH, 0, body) for _ in range(40)))
    server.advance(30)
    assert not client.is_closed
    assert not service.is_closed
    assert not reader.is_closed


# Commands


def test_limits_that_commands_set_are_durable_and_hold_at_once() -> None:
    server = Server(host=Host())
    server.broker.users.add("dan", hash_password(b"x"))
    client = server.administrator()
    orders: list[dict[str, Any]] = [
        {"action": "set-limits", "name": "dan", "limits": {"max-connections": 0}},
        {"action": "set-vhost-limits", "name": "/", "limits": {"max-queues": 0}},
    ]
    for order in orders:
        client.send(frames.MANAGE_PERMISSIONS, 9, order)
    server.sync()
    assert [kind for kind, _, _ in client.take()] == [frames.OK] * 2
    assert client.refused(frames.DECLARE, kind="queue", name="q") == QUOTA_EXCEEDED
    server = server.crash()
    client = server.administrator()
    rows = client.ask(frames.MANAGE_PERMISSIONS, action="list-limits")["rows"]
    assert rows == [{"name": "dan", "limits": {"max-connections": 0}}]
    (row,) = client.ask(frames.MANAGE_PERMISSIONS, action="describe-vhost", name="/")["rows"]
    assert row["limits"] == {"max-queues": 0}
    assert client.refused(frames.DECLARE, kind="queue", name="q") == QUOTA_EXCEEDED
    client.send(frames.MANAGE_PERMISSIONS, 9, {**orders[1], "limits": {}})
    client.send(frames.MANAGE_PERMISSIONS, 9, {**orders[0], "limits": {}})
    client.send(frames.DECLARE, 10, {"kind": "queue", "name": "q"})
    server.sync()
    assert server.crash().broker.quotas.own_limits(USER) == []


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ({"action": "set-limits", "name": "ann", "limits": {"max-queues": 1}}, 201),
        ({"action": "set-limits", "name": "", "limits": {}}, 302),
        ({"action": "set-limits", "name": "dan", "limits": {"max-streams": 1}}, 302),
        ({"action": "set-vhost-limits", "name": "nowhere", "limits": {}}, 301),
        ({"action": "set-vhost-limits", "name": "/", "limits": {"max-queues": "x"}}, 302),
    ],
)
def test_limits_that_cannot_be_set_are_refused(order: dict[str, Any], code: int) -> None:
    server = make_server()
    assert server.administrator().refused(frames.MANAGE_PERMISSIONS, **order) == code


def test_limits_go_with_their_user() -> None:
    server = make_server()
    client = server.administrator()
    client.ask(frames.MANAGE_USERS, action="add", name="dan", password=b"p", tags=[])
    order = {"action": "set-limits", "name": "dan", "limits": {"max-connections": 0}}
    client.ask(frames.MANAGE_PERMISSIONS, **order)
    client.ask(frames.MANAGE_USERS, action="delete", name="dan")
    assert server.broker.quotas.limits(USER, "dan") == {}


def test_metrics_have_limits_what_there_is_and_what_was_refused() -> None:
    server = make_server({"max-queues": 1}, {"max-queued-bytes": 100})
    client = server.amqp("ann")
    client.declare("q")
    client.publish("q", b"12345")
    client.call(Queue.Declare(queue="other"))
    text = metrics_text(server.broker)
    for line in (
        'trivium_quota_refusals_total{scope="user",limit="max-queues"} 1',
        "trivium_quota_waits_total 0",
        'trivium_quota_limit{scope="user",name="ann",limit="max-queues"} 1',
        'trivium_quota_used{scope="user",name="ann",limit="max-queues"} 1',
        'trivium_quota_used{scope="vhost",name="/",limit="max-queued-bytes"} 5',
    ):
        assert f"\n{line}\n" in text


# Counts


class Walk:
    """What there is, found by a walk over everything; by account."""

    def __init__(self, server: Server) -> None:
        self.found: dict[tuple[str, str], list[int]] = {}
        broker = server.broker
        for connection in broker.connections:
            if connection.is_closed or not connection.usage.accounts:
                continue
            self._add(connection, CONNECTIONS, 1)
            if isinstance(connection, AmqpConnection):
                self._add(connection, CHANNELS, len(connection.channels))
                channels = connection.channels.values()
                self._add(connection, SUBSCRIPTIONS, sum(len(one.consumers) for one in channels))
            elif isinstance(connection, NativeConnection):
                self._add(connection, SUBSCRIPTIONS, len(connection.subscriptions))
            elif isinstance(connection, MqttConnection):
                assert connection.session is not None
                count = len(connection.session.subscriptions or ())
                self._add_to((LISTENER, connection.peer.listener.name), SUBSCRIPTIONS, count)
        for sessions in {
            one.sessions for one in broker.connections if isinstance(one, MqttConnection)
        }:
            for session in sessions.by_client.values():
                for account in (
                    (USER, session.access.identity.name),
                    (VHOST, sessions.vhost.name),
                ):
                    self._add_to(account, SESSIONS, 1)
                    self._add_to(account, SUBSCRIPTIONS, len(session.subscriptions or ()))
        for vhost in broker.vhosts.values():
            self._add_to((VHOST, vhost.name), STREAMS, len(vhost.streams))
            for queue in vhost.queues.values():
                if not queue.adapter:
                    assert queue.user is not None
                    self._add_to((VHOST, vhost.name), QUEUES, 1)
                    self._add_to((USER, queue.user.name), QUEUES, 1)
            waiting = sum(queue.ready.bytes for queue in vhost.queues.values())
            assert vhost.queued_bytes == waiting

    def _add(self, connection: CoreConnection, what: int, count: int) -> None:
        for key in (
            (USER, connection.identity.name),
            (VHOST, connection.access.vhost),
            (LISTENER, connection.peer.listener.name),
        ):
            self._add_to(key, what, count)

    def _add_to(self, key: tuple[str, str], what: int, count: int) -> None:
        if count:
            self.found.setdefault(key, [0] * COUNTED)[what] += count


def check_counts(server: Server) -> None:
    counted = {
        (account.scope, account.name): account.used
        for account in server.broker.quotas.accounts()
        if any(account.used)
    }
    assert counted == Walk(server).found


NAMES = st.sampled_from(["a", "c"])
USERS = st.sampled_from(["ann", "bob"])
ABOUT_NAMES = [
    *("lose", "bad", "subscribe", "unsubscribe", "close", "exclusive", "stream", "cancel"),
    *("declare", "durable", "consume", "delete", "publish", "publish", "get", "get", "purge"),
]
STEPS = st.one_of(
    st.tuples(st.just("mqtt"), USERS, NAMES, st.booleans()),
    st.tuples(st.sampled_from(["amqp", "native"]), USERS),
    st.tuples(st.sampled_from(ABOUT_NAMES), NAMES),
    st.tuples(st.sampled_from(ABOUT_NAMES), NAMES),
    st.tuples(st.sampled_from(ABOUT_NAMES), NAMES),
    st.tuples(st.sampled_from(["open", "shut", "expire", "crash"])),
)


class Clients:
    """Clients of all protocols that do as they are told; what fails is as good as what does not."""

    def __init__(self) -> None:
        self.server = make_server(host=Host())
        # By whom the sessions are found.
        self.server.mqtt("bob", "there")
        self.mqtt: dict[str, mqtt.Client] = {}
        self.amqp: list[amqp.Client] = []
        self.native: list[native.Client] = []
        self.do_amqp("ann")
        for name in "ac":
            self.do_durable(name)

    def step(self, action: str, *arguments: Any) -> None:
        getattr(self, f"do_{action}")(*arguments)
        self.server.sync()
        self.forget_closed()

    def forget_closed(self) -> None:
        """Their sockets close some time after."""
        clients: list[Any] = [*self.mqtt.values(), *self.amqp, *self.native]
        for client in clients:
            client.take_bytes()
            if client.is_closed:
                client.lose()
        self.mqtt = {name: one for name, one in self.mqtt.items() if not one.is_closed}
        self.amqp = [one for one in self.amqp if not one.is_closed]
        self.native = [one for one in self.native if not one.is_closed]

    def do_mqtt(self, user: str, client_id: str, is_kept: bool) -> None:
        client = mqtt.Client(self.server)
        client.version = 5
        properties = mqtt.KEPT if is_kept else b""
        client.feed(
            mqtt.connect(client_id, 5, not is_kept, 0, properties, username=user, password=b"p")
        )
        before = self.mqtt.pop(client_id, None)
        self.mqtt[client_id] = client
        if before is not None:
            before.lose()

    def do_amqp(self, user: str) -> None:
        self.amqp.append(self.server.amqp(user))

    def do_native(self, user: str) -> None:
        self.native.append(self.server.native(user))

    def do_lose(self, name: str) -> None:
        if name in self.mqtt:
            self.mqtt.pop(name).lose()
        elif self.amqp:
            self.amqp.pop().lose()
        elif self.native:
            self.native.pop().lose()

    def do_bad(self, name: str) -> None:
        if name in self.mqtt:
            self.mqtt[name].feed(b"\x00\x00")
        elif self.native:
            self.native[-1].feed(bytes(100))
        elif self.amqp:
            self.amqp[-1].feed(b"\xff" * 100)

    def do_subscribe(self, name: str) -> None:
        if name in self.mqtt:
            self.mqtt[name].feed(mqtt.subscribe(name, 1, 1, 5))
        if self.native:
            self.native[-1].send(frames.SUBSCRIBE, 5, {"subscription": ord(name), **SUBSCRIBE})

    def do_unsubscribe(self, name: str) -> None:
        if name in self.mqtt:
            self.mqtt[name].feed(mqtt.unsubscribe(name, 1, 5))
        if self.native:
            self.native[-1].send(frames.UNSUBSCRIBE, 5, {"subscription": ord(name)})

    def do_close(self, name: str) -> None:
        if name in self.mqtt:
            self.mqtt.pop(name).leave()
        elif self.amqp:
            self.amqp[-1].send(Connection.Close(200, "", 0, 0), channel=0)

    def call(self, method: Any, channel: int = 1) -> None:
        """On a channel that is opened anew where the last call has closed it."""
        if self.amqp:
            for received in self.amqp[-1].call(method, channel=channel):
                if isinstance(received, Channel.Close):
                    self.amqp[-1].call(Channel.CloseOk(), channel=channel)
                    self.amqp[-1].call(Channel.Open(), channel=channel)

    def do_declare(self, name: str) -> None:
        self.call(Queue.Declare(queue=name, auto_delete=True))

    def do_exclusive(self, name: str) -> None:
        self.call(Queue.Declare(queue=name, exclusive=True))

    def do_durable(self, name: str) -> None:
        arguments: dict[str, Any] = {"x-message-ttl": 1000, "x-max-length": 2}
        arguments = arguments if name == "c" else {}
        self.call(Queue.Declare(queue=name, durable=True, arguments=arguments))

    def do_stream(self, name: str) -> None:
        if self.native:
            self.native[-1].send(frames.DECLARE, 5, {"kind": "stream", "name": name})

    def do_consume(self, name: str) -> None:
        self.call(Basic.Consume(queue=name, consumer_tag=name + str(len(self.amqp)), no_ack=True))
        if self.native:
            fields = {"subscription": 9, "mode": "queue", "queue": name, "credit": 2}
            self.native[-1].send(frames.SUBSCRIBE, 5, fields)

    def do_cancel(self, name: str) -> None:
        self.call(Basic.Cancel(consumer_tag=name + str(len(self.amqp))))

    def do_delete(self, name: str) -> None:
        self.call(Queue.Delete(queue=name))

    def do_publish(self, name: str) -> None:
        if self.amqp:
            data = amqp.publish_frames(name, b"12345", delivery_mode=2)
            self.amqp[-1].feed(data * 3)
        if self.mqtt:
            next(iter(self.mqtt.values())).feed(mqtt.publish(name, b"123", 1, 5, 5, retain=True))

    def do_get(self, name: str) -> None:
        self.call(Basic.Get(queue=name))
        if name == "a":
            self.call(Basic.Recover(requeue=True))

    def do_purge(self, name: str) -> None:
        self.call(Queue.Purge(queue=name))

    def do_open(self) -> None:
        self.call(Channel.Open(), channel=2)

    def do_shut(self) -> None:
        self.call(Channel.Close(200, "", 0, 0), channel=2)

    def do_expire(self) -> None:
        self.server.advance(5000)

    def do_crash(self) -> None:
        self.server = self.server.crash()
        self.server.mqtt("bob", "there")
        self.mqtt, self.amqp, self.native = {}, [], []


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, min_size=15, max_size=40))
def test_counts_are_those_of_a_walk_over_everything(steps: list[tuple[Any, ...]]) -> None:
    clients = Clients()
    for step in steps:
        clients.step(*step)
        check_counts(clients.server)


def test_the_lowest_rate_bounds_what_is_let_through_at_once() -> None:
    server = make_server(
        {"publish-messages-per-second": 10},
        {"publish-messages-per-second": 100_000, "publish-bytes-per-second": 1_000_000},
    )
    watcher = watch(server)
    server.mqtt("ann", version=4).feed(b"".join(mqtt.publish("t", b"x") for _ in range(1000)))
    assert 10 <= arrived(watcher) <= 10 + 64 // 6


# Leaving while the disk has not answered


DURABLE_QUEUE = {"kind": "queue", "name": "q", "durable": True}


def _mqtt_waits(server: Server) -> Client:
    """Its CONNACK, and what stands behind, waits for the disk."""
    client = mqtt.Client(server)
    fields: dict[str, Any] = {"username": "ann", "password": b"p", "properties": mqtt.KEPT}
    client.feed(mqtt.connect("kept", 5, clean=False, **fields))
    client.feed(mqtt.subscribe("t", 1, 1, 5))
    return client


def _amqp_waits(server: Server) -> Client:
    """Its confirm, and the answer behind it, waits for the disk."""
    client = server.amqp("ann")
    client.send(Confirm.Select(), Queue.Declare(queue="q", durable=True))
    client.send(Basic.Consume(queue="q", consumer_tag="c"))
    client.publish("q", delivery_mode=2)
    client.send(Channel.Open(), channel=2)
    client.send(Queue.Declare(queue="r", durable=True), channel=2)
    return client


def _native_waits(server: Server) -> Client:
    """Its declaration waits for the disk."""
    client = server.native("ann")
    client.send(frames.SUBSCRIBE, 3, SUBSCRIBE | {"subscription": 1})
    assert client.send(frames.DECLARE, 4, DURABLE_QUEUE) == []
    return client


@pytest.mark.parametrize(
    ("waits", "left"), [(_mqtt_waits, (1, 1)), (_amqp_waits, (0, 0)), (_native_waits, (0, 0))]
)
@pytest.mark.parametrize("is_closed_first", [False, True])
def test_who_leaves_while_output_waits_for_the_disk_counts_no_more(
    waits: Callable[[Server], Client], left: tuple[int, int], is_closed_first: bool
) -> None:
    """``left`` is what a kept session still has: itself, and its subscription."""
    storage = HeldStorage()
    users = {"ann": UserConfig(password="p", permissions=EVERYTHING)}
    server = Server(storage, Config(users=users))
    client = waits(server)
    assert storage.waiters
    assert (used(server, CONNECTIONS), used(server, SUBSCRIPTIONS)) == (1, 1)
    if is_closed_first:
        client.connection.shutdown()
    client.lose()
    counted = (*(CONNECTIONS, CHANNELS), SESSIONS, SUBSCRIPTIONS)
    for _ in range(2):
        assert [used(server, what) for what in counted] == [0, 0, *left]
        for scope, name in ((VHOST, "/"), (LISTENER, client.connection.peer.listener.name)):
            assert used(server, CONNECTIONS, scope, name) == 0
            assert used(server, CHANNELS, scope, name) == 0
        # The answers have come meanwhile, for nobody.
        storage.complete()
        server.settle()
