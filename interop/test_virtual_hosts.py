"""paho and pika in a second virtual host of one broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from interop.amqp import await_one
from interop.brokers import LOOPBACK, TriviumProcess
from interop.mqtt import PATIENCE, V5, V311, Mqtt
from trivium_native.sync import connect


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TriviumProcess]:
    running = TriviumProcess(
        tmp_path_factory.mktemp("vhosts"),
        environment={
            "TRIVIUM_LISTENERS__bound__PROTOCOL": "mqtt",
            "TRIVIUM_LISTENERS__bound__ADDRESS": f"{LOOPBACK}:0",
            "TRIVIUM_LISTENERS__bound__VIRTUAL_HOST": "farm",
        },
    )
    running.start()
    with connect(f"trivium://guest:guest@{LOOPBACK}:{running.ports['native']}") as client:
        client.add_user("ann", "p")
        permissions = {"configure": ".*", "write": ".*", "read": ".*"}
        client.manage_permissions("set", {"user": "ann", "vhost": "farm", **permissions})
    yield running
    running.stop()


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("way", ["name", "user", "listener"])
def test_paho_and_pika_meet(broker: TriviumProcess, way: str, version: Any) -> None:
    with connect(f"trivium://guest:guest@{LOOPBACK}:{broker.ports['native']}") as client:
        client.set_user_vhost("ann", "farm" if way == "user" else "/")
    port = broker.ports["bound" if way == "listener" else "mqtt"]
    made = Mqtt(port, "c", version=version, connects=False)
    made.client.username_pw_set("farm:ann" if way == "name" else "ann", "p")
    assert not made.connect().reason.is_failure
    made.subscribe("a/+", 1)
    parameters = pika.ConnectionParameters(
        LOOPBACK,
        broker.ports["amqp"],
        virtual_host="farm",
        credentials=pika.PlainCredentials("ann", "p"),
        socket_timeout=PATIENCE,
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("q", exclusive=True)
        channel.queue_bind("q", "amq.topic", "a.b")
        channel.basic_publish("amq.topic", "a.b", b"from pika")
        assert made.receive().payload == b"from pika"
        assert await_one(channel, "q").body == b"from pika"
        made.client.publish("a/b", b"from paho", 1)
        assert await_one(channel, "q").body == b"from paho"
    made.close()


def test_who_has_nothing_in_a_virtual_host_does_not_get_there(broker: TriviumProcess) -> None:
    for name in ("/:ann", "nowhere:ann"):
        made = Mqtt(broker.ports["mqtt"], "c", version=V5, connects=False)
        made.client.username_pw_set(name, "p")
        expected = 0x87 if name.startswith("/") else 0x86
        assert made.connect().reason.value == expected
        made.close()
