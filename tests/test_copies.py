"""A large message is copied once on its way from the socket to the journal, and not any more on its
way to a consumer: docs/architecture.md tells which copy that is.
"""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands, frame

from tests.support import amqp, mqtt, native
from tests.support.server import RecordingDriver, Server
from tests.support.simulated import Host
from trivium.common.pieces import Piece
from trivium.config import Config, LimitsConfig, Listen, StorageConfig
from trivium.queues.queue import Queue
from trivium.routing.exchanges import Binding
from trivium.runtime.adapter import Adapter, Connection
from trivium.runtime.broker import Broker
from trivium.streams.records import RecordBatch
from trivium.streams.stream import Stream
from trivium_amqp.entry import AmqpAdapter
from trivium_mqtt.mqtt_adapter import MqttAdapter
from trivium_mqtt.options import MqttOptions
from trivium_native.server.adapter import NativeAdapter
from trivium_native.wire import frames

PROTOCOLS = ["amqp", "mqtt", "native"]
SIZE = 32 * 1024 * 1024
PAYLOAD = bytes(range(256)) * (SIZE // 256)

#: How each protocol's client opens, each time up to the end of an answer; and how it publishes.
OPENING = {
    "amqp": [
        (amqp.PROTOCOL_HEADER, b"\xce"),
        (frame.marshal(amqp.start_ok(), 0), b"\xce"),
        (
            frame.marshal(commands.Connection.TuneOk(2047, 131_072, 0), 0)
            + frame.marshal(commands.Connection.Open("/"), 0),
            b"\xce",
        ),
        (frame.marshal(commands.Channel.Open(), 1), b"\xce"),
        (frame.marshal(commands.Confirm.Select(), 1), b"\xce"),
    ],
    "mqtt": [(mqtt.connect(), b"\x20\x02\x00\x00")],
    "native": [
        (
            native.frame(frames.HELLO, 1, {"protocol": "trivium", "version": 1, "heartbeat": 0}),
            b"",
        ),
        (native.frame(frames.AUTH, 2, {"username": "guest", "password": b"guest"}), b"\x80"),
    ],
}


def publish(protocol: str, payload: bytes) -> bytes:
    if protocol == "amqp":
        return amqp.publish_frames("t", payload, "amq.topic", delivery_mode=2)
    if protocol == "mqtt":
        return mqtt.publish("t", payload, 1)
    sent = native.entry(payload, b"t")
    if protocol == "native-tx":
        return native.frame(frames.TX, 3, native.tx(sent))
    return native.frame(frames.PUBLISH, 3, native.publish(sent))


class Client:
    """A socket to a broker in this process. What it sends was made before."""

    def __init__(self, broker: Broker, protocol: str) -> None:
        self.protocol = protocol.partition("-")[0]
        host, _, port = broker.listeners[self.protocol].rpartition(":")
        self._address = (host, int(port))
        self.socket = socket.socket()
        self.socket.setblocking(False)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, self._address)
        for request, end in OPENING[self.protocol]:
            assert (await self.ask(request)).endswith(end)

    async def ask(self, data: bytes) -> bytes:
        """Send it; the beginning of the answer."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.socket, data)
        return await loop.sock_recv(self.socket, 65_536)


def config(data: Path) -> Config:
    return Config(
        listen={protocol: Listen(0) for protocol in PROTOCOLS},
        storage=StorageConfig(data=data),
        limits=LimitsConfig(max_message_bytes=SIZE + 1000),
    )


def bound_queue(broker: Broker) -> Queue:
    vhost = broker.vhosts["/"]
    queue = vhost.declare_queue("q", durable=True)
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    return queue


def bound_stream(broker: Broker) -> Stream:
    vhost = broker.vhosts["/"]
    stream = vhost.declare_stream("s")
    vhost.bind(vhost.exchange("amq.topic"), Binding(stream, b"t"))
    return stream


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("protocol", [*PROTOCOLS, "native-tx"])
async def test_a_large_message_is_copied_once_on_its_way_to_the_journal(
    protocol: str, is_stream: bool, tmp_path: Path
) -> None:
    sent = publish(protocol, PAYLOAD)
    async with Broker(config(tmp_path)) as broker:
        place = bound_stream(broker) if is_stream else bound_queue(broker)
        client = Client(broker, protocol)
        await client.open()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            answer = await client.ask(sent)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        client.socket.close()
        assert answer
        # What was read of it, and the one copy.
        assert peak - before < 2.2 * SIZE
        # The journal has it: the copy is all that is left, and the queue's message is a part of it.
        assert after - before < 1.2 * SIZE
        if isinstance(place, Stream):
            ((_, batch),) = place.partitions[0].read(0, 1)
            assert RecordBatch(batch).message(0).payload == PAYLOAD
            return
        entry = place.get()
        assert entry is not None
        assert entry.message.payload == PAYLOAD


class AllProtocols(Server):
    """A broker of which the clients of all protocols are clients."""

    def make_adapters(self) -> list[Adapter]:
        return [AmqpAdapter(), MqttAdapter(MqttOptions()), NativeAdapter()]


#: what a socket is read for at a time
READ = 256 * 1024
MESSAGE = PAYLOAD[: 4 * 1024 * 1024]


def amqp_consumer(server: Server) -> amqp.Client:
    client = amqp.Client(server).handshake()
    client.consume("q")
    return client


def amqp_getter(server: Server) -> amqp.Client:
    """It asks once the message is there."""
    return amqp.Client(server).handshake()


def mqtt_subscriber(version: int, qos: int, **fields: Any) -> Callable[[Server], mqtt.Client]:
    def connect(server: Server) -> mqtt.Client:
        client = mqtt.Client(server).open("receiver", version, **fields)
        identifier = b"\x0b\x01" if version == 5 else b""
        client.feed(mqtt.subscribe("t", qos, version=version, properties=identifier))
        return client

    return connect


def native_queue(server: Server) -> native.Client:
    client = native.Client(server).open()
    client.ask(frames.SUBSCRIBE, subscription=1, mode="queue", queue="q", credit=10)
    return client


def native_live(server: Server) -> native.Client:
    client = native.Client(server).open()
    client.ask(frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"t")
    return client


CONSUMERS = {
    "amqp": amqp_consumer,
    "amqp-get": amqp_getter,
    "native-queue": native_queue,
    "native-live": native_live,
    "mqtt-qos-0": mqtt_subscriber(4, 0),
    "mqtt-qos-1": mqtt_subscriber(4, 1),
    "mqtt-qos-1-v5": mqtt_subscriber(5, 1),
    "mqtt-qos-2": mqtt_subscriber(4, 2),
    "mqtt-qos-2-kept": mqtt_subscriber(4, 2, clean=False),
    "mqtt-alias": mqtt_subscriber(5, 1, properties=b"\x22\x00\x05"),
}


def copied(output: list[Piece], read: list[bytes]) -> int:
    """Bytes of output that are neither a part of something nor what was read."""
    return sum(
        len(piece)
        for piece in output
        if not isinstance(piece, memoryview) and not any(piece is each for each in read)
    )


@pytest.mark.parametrize("kind", CONSUMERS)
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_large_message_is_not_copied_on_its_way_to_a_consumer(
    kind: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LimitsConfig(max_message_bytes=SIZE)
    everything = Config(listen={name: Listen(0) for name in PROTOCOLS}, limits=limits)
    server = AllProtocols(host=Host(journal_file_size=1 << 20), config=everything)
    vhost = server.vhost
    if "amqp" in kind or "queue" in kind or is_kept:
        queue = vhost.declare_queue("q", durable=is_kept)
        vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"t"))
    consumer = CONSUMERS[kind](server)
    server.sync()
    consumer.take_bytes()
    publisher = amqp.Client(server).handshake()
    written: list[Piece] = []
    original = RecordingDriver.write

    def write(self: RecordingDriver, connection: Connection, output: list[Piece]) -> None:
        written.extend(output)
        original(self, connection, output)

    monkeypatch.setattr(RecordingDriver, "write", write)
    data = amqp.publish_frames("t", MESSAGE, "amq.topic", delivery_mode=2 if is_kept else 1)
    read = [data[at : at + READ] for at in range(0, len(data), READ)]
    publisher.feed(*read)
    server.sync()
    if kind == "amqp-get":
        consumer.feed(frame.marshal(commands.Basic.Get(queue="q"), 1))
    server.sync()
    assert sum(map(len, written)) > len(MESSAGE)
    assert copied(written, read) < 4096
    sent = consumer.take_bytes()
    if "amqp" not in kind:
        assert sent.endswith(MESSAGE)
