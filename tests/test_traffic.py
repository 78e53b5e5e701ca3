"""What is counted of each connection and channel, and for its user, virtual host and listener."""

from __future__ import annotations

from typing import cast

from pamqp.commands import Basic, Confirm, Tx

from tests.support import amqp, mqtt, native
from tests.support.server import Client
from tests.support.storages import HeldStorage
from tests.support.traffic import counted
from trivium.common.quotas import LISTENER, USER, VHOST
from trivium.routing.exchanges import Binding
from trivium_amqp.connection import AmqpConnection
from trivium_native.wire import frames


def of(client: Client) -> dict[str, int]:
    return counted(client.connection.traffic)


def of_channel(client: Client) -> dict[str, int]:
    channel = cast("AmqpConnection", client.connection).channels[1]
    return counted(channel.publisher.traffic)


# AMQP


def amqp_client(storage: HeldStorage | None = None) -> amqp.Client:
    client = amqp.Server(storage).open()
    client.declare("q", durable=True)
    client.take()
    return client


def test_amqp_publishes_are_confirmed_once_they_are_durable() -> None:
    storage = HeldStorage()
    client = amqp_client(storage)
    client.call(Confirm.Select())
    for _ in range(3):
        client.publish("q", delivery_mode=2)
    assert of(client) == of_channel(client) == {"published": 3}
    client.server.sync()
    assert of(client) == of_channel(client) == {"published": 3, "confirmed": 3}


def test_amqp_a_run_of_publishes_counts_as_its_messages() -> None:
    client = amqp_client()
    client.call(Confirm.Select())
    one = amqp.publish_frames("q", b"x")
    client.feed(one, one * 5)
    assert of(client) == of_channel(client) == {"published": 6, "confirmed": 6}


def test_amqp_unroutable_publishes_are_returned_or_dropped() -> None:
    client = amqp_client()
    client.publish("nowhere", mandatory=True)
    client.publish("nowhere")
    assert of(client) == of_channel(client) == {"published": 2, "returned": 1, "unroutable": 1}


def test_amqp_deliveries_and_acknowledgements() -> None:
    client = amqp_client()
    client.consume("q")
    for _ in range(2):
        client.publish("q")
    client.send(Basic.Ack(1))
    client.send(Basic.Nack(2, requeue=True))
    expected = {"published": 2, "delivered": 3, "redelivered": 1, "acknowledged": 1}
    assert of(client) == of_channel(client) == expected


def test_amqp_deliveries_without_acknowledgement_and_gets() -> None:
    client = amqp_client()
    for _ in range(3):
        client.publish("q")
    client.get("q")
    client.get("q", no_ack=False)
    client.consume("q", no_ack=True)
    expected = {"published": 3, "got": 1, "got_settled": 1, "delivered_settled": 1}
    assert of(client) == of_channel(client) == expected


def test_amqp_acknowledgements_of_a_transaction_count_when_it_is_committed() -> None:
    client = amqp_client()
    client.publish("q")
    client.get("q", no_ack=False)
    client.call(Tx.Select())
    client.send(Basic.Ack(1))
    assert "acknowledged" not in of(client)
    client.call(Tx.Commit())
    assert of(client)["acknowledged"] == 1


# MQTT


def test_mqtt_publishes_are_confirmed_once_they_are_durable() -> None:
    storage = HeldStorage()
    server = mqtt.Server(storage)
    server.open_kept("s").feed(mqtt.subscribe("t", 2))
    server.sync()
    client = server.open("c")
    client.feed(mqtt.publish("t", b"x", qos=1, packet_id=1))
    client.feed(mqtt.publish("t", b"x", qos=2, packet_id=2))
    assert of(client) == {"published": 2}
    server.sync()
    assert of(client) == {"published": 2, "confirmed": 1}
    client.feed(mqtt.pubrel(2))
    server.sync()
    assert of(client) == {"published": 2, "confirmed": 2}


def test_mqtt_a_run_of_publishes_counts_as_its_messages() -> None:
    for qos in range(3):
        server = mqtt.Server()
        mqtt.subscribed(server, 2, "s")
        client = server.open("c")
        sent = [mqtt.publish("t", b"x", qos=qos, packet_id=n + 1 if qos else 0) for n in range(5)]
        client.feed(sent[0])
        client.feed(b"".join(sent[1:]))
        assert of(client).get("published") == 5, qos
        assert of(client).get("confirmed", 0) == (5 if qos == 1 else 0), qos
        counters = server.vhost.exchanges["amq.topic"].counters
        assert (counters.published, counters.routed) == (5, 5), qos


def test_mqtt_publishes_that_nobody_wants() -> None:
    server = mqtt.Server()
    client = server.open("c", version=5)
    client.feed(mqtt.publish("t", b"x", qos=1, packet_id=1, version=5))
    client.feed(mqtt.publish("t", b"x", version=5) * 2)
    assert of(client) == {"published": 3, "confirmed": 1, "returned": 1, "unroutable": 2}
    counters = server.vhost.exchanges["amq.topic"].counters
    assert (counters.published, counters.routed, counters.unroutable) == (3, 0, 3)


def test_mqtt_deliveries_and_acknowledgements() -> None:
    server = mqtt.Server()
    client = mqtt.subscribed(server, 2, "s")
    publisher = server.open("c")
    for qos in range(3):
        publisher.feed(mqtt.publish("t", b"x", qos=qos, packet_id=qos))
    assert of(client) == {"delivered": 2, "delivered_settled": 1}
    client.feed(mqtt.puback(1))
    client.feed(mqtt.pubrec(2))
    assert of(client) == {"delivered": 2, "delivered_settled": 1, "acknowledged": 2}


def test_mqtt_what_is_sent_again_to_a_client_that_is_back_is_redelivered() -> None:
    server = mqtt.Server()
    server.open_kept("s").feed(mqtt.subscribe("t", 1))
    server.open("c").feed(mqtt.publish("t", b"x", qos=1, packet_id=1))
    client = server.open_kept("s")
    assert of(client) == {"delivered": 1, "redelivered": 1}


# Native


def test_native_publishes_are_confirmed_once_they_are_durable() -> None:
    storage = HeldStorage()
    server = native.Server(storage)
    queue = server.vhost.declare_queue("q", durable=True)
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    server.settle()
    client = server.open()
    body = native.publish(native.entry(), native.entry())
    client.send(frames.PUBLISH, 1, body)
    client.send(frames.PUBLISH, 2, native.publish(native.entry()))
    assert of(client) == {"published": 3}
    server.sync()
    assert of(client) == {"published": 3, "confirmed": 3}


def test_native_deliveries_and_acknowledgements() -> None:
    server = native.Server()
    queue = server.vhost.declare_queue("q", durable=True)
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    client = server.open()
    client.ask(frames.SUBSCRIBE, mode="queue", queue="q", credit=10, subscription=1)
    client.send(frames.PUBLISH, 1, native.publish(native.entry(), native.entry()))
    client.send(frames.ACK, 0, native.settle(1, 1, 1))
    expected = {"published": 2, "confirmed": 2, "delivered": 2, "acknowledged": 1}
    assert of(client) == expected


# Sums


def test_a_connection_that_is_gone_counts_for_its_user_virtual_host_and_listener() -> None:
    client = amqp_client()
    client.publish("q")
    traffic = client.connection.traffic
    received = traffic.bytes_received
    assert received > 0
    client.lose()
    quotas = client.server.broker.quotas
    user = client.connection.identity.name
    listener = client.connection.peer.listener.name
    client.server.broker.remove_connection(client.connection)
    for scope, name in ((USER, user), (VHOST, "/"), (LISTENER, listener)):
        account = quotas.account(scope, name)
        assert (account.traffic.published, account.traffic.bytes_received) == (1, received), scope
    client.server.broker.remove_connection(client.connection)
    assert quotas.account(VHOST, "/").traffic.published == 1, "it is added once"
