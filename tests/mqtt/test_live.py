"""Over sockets, as another implementation sees it: paho-mqtt."""

from __future__ import annotations

import asyncio
import queue
import selectors
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.mqtt import connect, publish, subscribe
from trivium import Broker, Config, Listen
from trivium.config import StorageConfig
from trivium.runtime.framed import FramedConnection

SECONDS = 10.0


def properties(packet_type: int, **values: Any) -> Any:
    found: Any = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(found, name, value)
    return found


class Paho:
    """A paho client whose callbacks fill queues."""

    def __init__(self, client_id: str, version: MQTTProtocolVersion) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.events: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version
        )
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)
        self.client.on_connect = lambda _client, _data, flags, reason, properties: self.events.put(
            ("connect", flags.session_present, reason, properties)
        )
        self.client.on_subscribe = lambda _client, _data, _id, reasons, _properties: (
            self.events.put(("subscribe", reasons))
        )
        self.client.on_disconnect = lambda _client, _data, _flags, reason, _properties: (
            self.events.put(("disconnect", reason))
        )

    def connect(self, port: int, **options: Any) -> tuple[Any, ...]:
        self.client.connect("127.0.0.1", port, **options)
        self.client.loop_start()
        return self.events.get(timeout=SECONDS)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos)
        event = self.events.get(timeout=SECONDS)
        assert event[0] == "subscribe"
        assert [reason.value for reason in event[1]] == [qos]

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    config = Config(listen={"mqtt": Listen(0)}, storage=StorageConfig(mode="memory"))
    async with Broker(config) as broker:
        yield int(broker.listeners["mqtt"].rpartition(":")[2])


async def on_thread(work: Callable[[], None]) -> None:
    await asyncio.to_thread(work)


@pytest.mark.parametrize(
    "version",
    [MQTTProtocolVersion.MQTTv31, MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5],
)
async def test_every_qos_and_version(port: int, version: MQTTProtocolVersion) -> None:
    def work() -> None:
        receiver = Paho("receiver", version)
        receiver.connect(port)
        receiver.subscribe("room/+/temperature", 2)
        sender = Paho("sender", version)
        sender.connect(port)
        for number in range(300):
            sender.client.publish(f"room/{number}/temperature", b"%d" % number, number % 3)
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for _ in range(300):
            message = receiver.messages.get(timeout=SECONDS)
            assert message.topic == f"room/{message.payload.decode()}/temperature"
            found[message.qos].append(int(message.payload))
        assert found == {qos: list(range(qos, 300, 3)) for qos in range(3)}
        sender.stop()
        receiver.stop()

    await on_thread(work)


async def test_session_will_and_retained(port: int) -> None:
    def work() -> None:
        connect = properties(PacketTypes.CONNECT, SessionExpiryInterval=100)
        receiver = Paho("receiver", MQTTProtocolVersion.MQTTv5)
        assert receiver.connect(port, clean_start=False, properties=connect)[1] is False
        receiver.subscribe("#", 1)
        receiver.stop()
        device = Paho("device", MQTTProtocolVersion.MQTTv5)
        device.client.will_set("status/device", b"offline", 1, retain=True)
        device.connect(port)
        device.client.publish("status/device", b"online", 1, retain=True).wait_for_publish(SECONDS)
        other = Paho("device", MQTTProtocolVersion.MQTTv5)
        other.connect(port)
        device.client.loop_stop()
        event = device.events.get(timeout=SECONDS)
        assert event[0] == "disconnect"
        assert event[1].value == 0x8E
        receiver = Paho("receiver", MQTTProtocolVersion.MQTTv5)
        assert receiver.connect(port, clean_start=False, properties=connect)[1] is True
        got = [receiver.messages.get(timeout=SECONDS) for _ in range(2)]
        assert [(message.payload, message.retain) for message in got] == [
            (b"online", False),
            (b"offline", False),
        ]
        late = Paho("late", MQTTProtocolVersion.MQTTv311)
        late.connect(port)
        late.subscribe("status/+", 0)
        message = late.messages.get(timeout=SECONDS)
        assert (message.payload, message.retain) == (b"offline", True)
        for client in (receiver, other, late):
            client.stop()

    await on_thread(work)


async def test_properties_of_mqtt_5(port: int) -> None:
    def work() -> None:
        receiver = Paho("receiver", MQTTProtocolVersion.MQTTv5)
        _, _, reason, connack = receiver.connect(port)
        assert reason.value == 0
        assert connack.ReceiveMaximum == 8192
        receiver.subscribe("t", 1)
        sender = Paho("sender", MQTTProtocolVersion.MQTTv5)
        sender.connect(port)
        sent = properties(
            PacketTypes.PUBLISH,
            UserProperty=[("b", "1"), ("a", "2"), ("b", "1")],
            ContentType="text/plain",
            ResponseTopic="r",
            CorrelationData=b"\x00\x01",
            MessageExpiryInterval=60,
            TopicAlias=5,
        )
        sender.client.publish("t", b"1", 1, properties=sent)
        sender.client.publish("", b"2", 1, properties=sent)
        for payload in (b"1", b"2"):
            message = receiver.messages.get(timeout=SECONDS)
            assert (message.topic, message.payload) == ("t", payload)
            found: Any = message.properties
            assert found.UserProperty == [("b", "1"), ("a", "2"), ("b", "1")]
            assert found.ContentType == "text/plain"
            assert found.ResponseTopic == "r"
            assert found.CorrelationData == b"\x00\x01"
            assert 58 <= found.MessageExpiryInterval <= 60
            assert not hasattr(found, "TopicAlias")
        sender.stop()
        receiver.stop()

    await on_thread(work)


async def test_stopping_the_broker_is_told() -> None:
    config = Config(listen={"mqtt": Listen(0)}, storage=StorageConfig(mode="memory"))
    client = Paho("c", MQTTProtocolVersion.MQTTv5)
    async with Broker(config) as broker:
        port = int(broker.listeners["mqtt"].rpartition(":")[2])
        await asyncio.to_thread(client.connect, port)
    event = await asyncio.to_thread(client.events.get, True, SECONDS)
    assert event[0] == "disconnect"
    assert event[1].value == 0x8B
    client.client.loop_stop()


async def test_a_burst_to_a_reader_that_keeps_up_is_not_dropped(port: int) -> None:
    """QoS 0 is only lost by readers that do not read."""
    count = 20_000
    packet = b"\x30\x46" + b"\x00\x04test" + bytes(64)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01r")
    assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
    writer.write(b"\x82\x09\x00\x01\x00\x04test\x00")
    assert await reader.readexactly(5) == b"\x90\x03\x00\x01\x00"
    _, sender = await asyncio.open_connection("127.0.0.1", port)
    sender.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01s")
    sender.write(packet * count)
    async with asyncio.timeout(SECONDS):
        assert await reader.readexactly(count * len(packet)) == packet * count
    for stream in (writer, sender):
        stream.close()
        await stream.wait_closed()


def receive_all(
    port: int, subscribers: int, size: int, step: int, ready: threading.Barrier
) -> list[bytes]:
    """What clients with a subscription to ``t`` at QoS 0 get, ``size`` bytes each or what comes: as
    fast as can be that reads ``step`` bytes at a time."""
    received: dict[socket.socket, bytearray] = {}
    with selectors.DefaultSelector() as selector:
        for number in range(subscribers):
            client = socket.create_connection(("127.0.0.1", port), SECONDS)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            client.sendall(connect(f"r{number}") + subscribe("t"))
            answers = b""
            while len(answers) < 9:
                answers += client.recv(9 - len(answers))
            assert answers[4] == 0x90
            received[client] = bytearray()
            selector.register(client, selectors.EVENT_READ)
        ready.wait()
        while any(len(data) < size for data in received.values()):
            found = selector.select(SECONDS)
            if not found:
                break
            for key, _ in found:
                assert isinstance(key.fileobj, socket.socket)
                received[key.fileobj] += key.fileobj.recv(step)
    for client in received:
        client.close()
    return [bytes(data) for data in received.values()]


def send_all(port: int, data: bytes, ready: threading.Barrier) -> None:
    """Publish as fast as the socket takes it."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
        client.sendall(connect("sender"))
        assert client.recv(4) == b"\x20\x02\x00\x00"
        ready.wait()
        client.sendall(data)
        # Its end comes behind everything that it has sent.
        client.sendall(b"\xc0\x00")
        assert client.recv(2) == b"\xd0\x00"


@pytest.mark.parametrize("subscribers", [1, 10])
async def test_a_qos_0_subscriber_that_reads_gets_all_of_a_publisher_at_full_speed(
    subscribers: int,
) -> None:
    count, step = (400_000, 1 << 11) if subscribers == 1 else (150_000, 1 << 16)
    data = b"".join(publish("t", b"%064d" % number) for number in range(count))
    config = Config(listen={"mqtt": Listen(0)}, storage=StorageConfig(mode="memory"))
    ready = threading.Barrier(2)
    async with Broker(config) as broker:
        port = int(broker.listeners["mqtt"].rpartition(":")[2])
        with ThreadPoolExecutor(2) as pool:
            receiving = pool.submit(receive_all, port, subscribers, len(data), step, ready)
            await asyncio.wrap_future(pool.submit(send_all, port, data, ready))
            received = await asyncio.wrap_future(receiving)
        dropped = broker.adapters["mqtt"].metrics.messages_dropped
    assert [each == data for each in received] == [True] * subscribers
    assert dropped == 0


@pytest.mark.parametrize("version", [4, 5])
async def test_mqtt_3_1_2_24_a_silent_client_has_its_will_published_and_its_socket_closed(
    version: int,
) -> None:
    config = Config(listen={"mqtt": Listen(0)}, storage=StorageConfig(mode="memory"))
    async with asyncio.timeout(SECONDS), Broker(config) as broker:
        port = int(broker.listeners["mqtt"].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(connect("watcher") + subscribe("w", 0))
        assert (await reader.readexactly(9))[:4] == b"\x20\x02\x00\x00"
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", port)
        will = ("w", b"gone", 0, False)
        silent_writer.write(connect("silent", version, keep_alive=1, will=will))
        first, size = await silent.readexactly(2)
        assert first == 0x20
        await silent.readexactly(size)
        (connection,) = [one for one in broker.connections if one.client_id == b"silent"]
        server = broker.server
        assert server is not None
        assert isinstance(connection, FramedConnection)
        # More than one and a half times as long ago as its keep alive (3.1.2.10).
        connection.heard_at -= 1501
        server.driver.call(lambda: broker.tick(0))
        assert await reader.readexactly(9) == publish("w", b"gone")
        assert await silent.read() == (b"\xe0\x01\x8d" if version == 5 else b"")
        # The broker's end is gone although the client has not closed its own.
        while len(server.sockets) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        silent_writer.close()
        writer.close()
