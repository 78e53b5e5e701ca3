"""SIGTERM and the lock: clients are told, the broker ends with 0, a directory has one broker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pika.exceptions import ConnectionClosedByBroker

from interop.amqp import PERSISTENT, bodies, channel, connection
from interop.brokers import BrokerError, TriviumProcess
from interop.mqtt import V311, Mqtt
from interop.native import native_url, open_client
from trivium.cli import EXIT_LOCKED, EXIT_OK
from trivium_native.client import connect
from trivium_native.errors import NativeError
from trivium_native.values import Publication


@pytest.fixture
def stoppable(tmp_path: Path) -> Iterator[TriviumProcess]:
    """A broker that the test itself stops."""
    process = TriviumProcess(tmp_path, restartable=True)
    process.start()
    yield process
    if process.is_running:
        process.stop()
    process.check_log()


def test_mqtt_5_clients_get_disconnect_0x8b(stoppable: TriviumProcess) -> None:
    client = Mqtt(stoppable.ports["mqtt"])
    old = Mqtt(stoppable.ports["mqtt"], version=V311)
    assert stoppable.stop() == EXIT_OK
    assert client.disconnected() == 0x8B, "server shutting down"
    old.disconnected()
    client.client.loop_stop()
    old.client.loop_stop()


def test_amqp_clients_get_connection_close_320(stoppable: TriviumProcess) -> None:
    with connection(stoppable.ports["amqp"]) as opened:
        opened.channel()
        assert stoppable.process is not None
        stoppable.process.terminate()
        with pytest.raises(ConnectionClosedByBroker) as error:
            opened.sleep(20)
    assert error.value.reply_code == 320
    assert stoppable.process.wait(20) == EXIT_OK


async def test_native_clients_are_told(stoppable: TriviumProcess) -> None:
    async with (
        asyncio.timeout(20),
        connect(native_url(stoppable.ports["native"]), reconnect=False) as client,
        client.subscribe("#") as messages,
    ):
        stopped = asyncio.create_task(asyncio.to_thread(stoppable.stop))
        with pytest.raises(NativeError):
            await anext(aiter(messages))
        assert await stopped == EXIT_OK


def test_stop_does_not_wait_for_silent_clients(stoppable: TriviumProcess) -> None:
    ports = stoppable.ports.values()
    sockets = [socket.create_connection(("127.0.0.1", port)) for port in ports for _ in range(5)]
    assert stoppable.stop() == EXIT_OK
    for one in sockets:
        one.close()


def test_everything_is_there_after_a_stop(stoppable: TriviumProcess) -> None:
    """Also what a crash would lose: nothing was in flight."""
    with channel(stoppable.ports["amqp"], confirms=True) as opened:
        opened.queue_declare("kept", durable=True)
        for i in range(50):
            opened.basic_publish("", "kept", b"%d" % i, PERSISTENT)
    with open_client(stoppable.ports["native"]) as client:
        client.declare_stream("log")
        client.publish_batch([Publication(payload=b"x", exchange="", routing_key="log")] * 50)
    with Mqtt(stoppable.ports["mqtt"]) as publisher:
        publisher.publish("kept/retained", b"r", retain=True)
    assert stoppable.stop() == EXIT_OK
    stoppable.start()
    with channel(stoppable.ports["amqp"]) as opened:
        message = opened.basic_get("kept")
        assert message[0] is not None
        assert not message[0].redelivered, "nobody can have had it"
        assert len(bodies(opened, "kept")) == 49
    with open_client(stoppable.ports["native"]) as client:
        assert client.metadata(["log"])[0].partitions[0].high_watermark == 50
    with Mqtt(stoppable.ports["mqtt"]) as reader:
        reader.subscribe("kept/#", 1)
        assert reader.receive().payload == b"r"


async def test_what_was_delivered_and_not_acknowledged_is_flagged_after_a_stop(
    stoppable: TriviumProcess,
) -> None:
    with channel(stoppable.ports["amqp"], confirms=True) as opened:
        for queue in ("amqp", "native"):
            opened.queue_declare(queue, durable=True)
            for _ in range(2):
                opened.basic_publish("", queue, b"x", PERSISTENT)
    with suppress(ConnectionClosedByBroker), channel(stoppable.ports["amqp"]) as holding:
        assert holding.basic_get("amqp")[0] is not None
        with suppress(NativeError):
            async with (
                asyncio.timeout(20),
                connect(native_url(stoppable.ports["native"]), reconnect=False) as client,
                client.consume("native", credit=1) as deliveries,
            ):
                assert not (await anext(aiter(deliveries))).is_redelivered
                assert await asyncio.to_thread(stoppable.stop) == EXIT_OK
    stoppable.start()
    with channel(stoppable.ports["amqp"]) as opened:
        for queue in ("amqp", "native"):
            gotten = [opened.basic_get(queue)[0] for _ in range(2)]
            flags = [method is not None and method.redelivered for method in gotten]
            assert flags == [True, False], queue


def test_second_broker_on_the_same_directory_is_refused(
    stoppable: TriviumProcess, tmp_path: Path
) -> None:
    second = TriviumProcess(tmp_path)
    with pytest.raises(BrokerError, match="no ready line"):
        second.start()
    assert second.process is not None
    assert second.process.returncode == EXIT_LOCKED
    with Mqtt(stoppable.ports["mqtt"]) as client:
        client.publish("a", b"the first goes on")
