"""Quotas as pika and paho see them, and the commands that set them."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
)

from interop.brokers import LOOPBACK, TriviumProcess
from interop.mqtt import V5, V311, Mqtt
from trivium_native.sync import connect


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TriviumProcess]:
    running = TriviumProcess(tmp_path_factory.mktemp("quotas"))
    running.start()
    with connect(f"trivium://guest:guest@{LOOPBACK}:{running.ports['native']}") as client:
        client.add_user("ann", "p")
        permissions = {"configure": ".*", "write": ".*", "read": ".*"}
        client.manage_permissions("set", {"user": "ann", **permissions})
    yield running
    running.stop()


def limit(broker: TriviumProcess, action: str, name: str, **limits: int) -> None:
    """Set the limits of a user or virtual host."""
    found = {key.replace("_", "-"): value for key, value in limits.items()}
    with connect(f"trivium://guest:guest@{LOOPBACK}:{broker.ports['native']}") as client:
        client.manage_permissions(action, {"name": name, "limits": found})


def amqp(broker: TriviumProcess) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials("ann", "p")
    parameters = pika.ConnectionParameters(LOOPBACK, broker.ports["amqp"], "/", credentials)
    return pika.BlockingConnection(parameters)


def test_a_limit_of_connections_meets_pika_and_paho(broker: TriviumProcess) -> None:
    limit(broker, "set-limits", "ann", max_connections=1)
    with amqp(broker):
        with pytest.raises(AMQPConnectionError) as refused:
            amqp(broker)
        text = repr(refused.value) + repr(refused.value.args)
        assert "user connection limit (1) is reached" in text
        for version, expected in ((V5, 0x97), (V311, 0x88)):
            made = Mqtt(broker.ports["mqtt"], "c", version=version, connects=False)
            made.client.username_pw_set("ann", "p")
            # paho gives the return code 3 of MQTT 3 the reason code of MQTT 5.
            assert made.connect().reason.value == expected
            made.close()
    limit(broker, "set-limits", "ann")


def test_limits_of_channels_and_queues_meet_pika(broker: TriviumProcess) -> None:
    limit(broker, "set-limits", "ann", max_channels=2)
    limit(broker, "set-vhost-limits", "/", max_queues=1)
    connection = amqp(broker)
    channel = connection.channel()
    channel.queue_declare("one", exclusive=True)
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare("two")
    assert (closed.value.reply_code, closed.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - cannot declare queue 'two': queue limit in vhost '/' (1) is reached",
    )
    connection.channel()
    connection.channel()
    with pytest.raises(ConnectionClosedByBroker) as ended:
        connection.channel()
    assert ended.value.reply_code == 530
    limit(broker, "set-limits", "ann")
    limit(broker, "set-vhost-limits", "/")


def test_a_rate_slows_paho_and_loses_nothing(broker: TriviumProcess) -> None:
    limit(broker, "set-limits", "ann", publish_messages_per_second=1000)
    watcher = Mqtt(broker.ports["mqtt"], "w", version=V5)
    watcher.subscribe("rated", 1)
    made = Mqtt(broker.ports["mqtt"], "p", version=V5, connects=False)
    made.client.username_pw_set("ann", "p")
    assert not made.connect().reason.is_failure
    for number in range(2000):
        made.client.publish("rated", b"%d" % number, 1)
    assert [watcher.receive().payload for _ in range(2000)] == [b"%d" % n for n in range(2000)]
    made.close()
    watcher.close()
    limit(broker, "set-limits", "ann")
