"""MQTT clients without sockets: packets in, packets out, against a real broker core."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tests.support.core import CLOCK_OFFSET
from tests.support.mqtt_strict import StrictClient
from trivium.config import Config, Listen, StorageConfig
from trivium.runtime.adapter import Connection, Peer
from trivium.runtime.broker import Broker, Driver
from trivium.storage.base import Storage
from trivium.storage.memory import MemoryStorage
from trivium_mqtt.connection import MqttConnection
from trivium_mqtt.mqtt_adapter import MqttAdapter
from trivium_mqtt.options import MqttOptions

NOW_MS = 1_800_000_000_000


class FakeTransport:
    """One client's end: what the broker wrote, and whether it closed.

    Everything that is written must be what a strict client takes.
    """

    def __init__(self) -> None:
        self.written = bytearray()
        self.strict = StrictClient()
        self.is_paused = False
        self.is_closed = False
        #: bytes that the socket holds
        self.waiting = 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def unsent(self) -> int:
        return self.waiting


class FakeDriver(Driver):
    """Ends a turn when told to; runs blocking work when told to."""

    def __init__(self) -> None:
        self.blocking: list[tuple[Callable[[], bool], Callable[[bool], None]]] = []
        self.turns = 0

    def request_turn(self) -> None:
        self.turns += 1

    def write(self, connection: Connection, output: list[bytes]) -> None:
        if output:
            assert isinstance(connection.transport, FakeTransport)
            data = b"".join(output)
            assert isinstance(connection, MqttConnection)
            connection.transport.strict.is_v5 = connection.is_v5
            connection.transport.strict.take(data)
            connection.transport.written += data
            if connection.is_writable and not connection.is_closed:
                connection.flushed()

    def run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        self.blocking.append((work, done))


class Bench:
    """A broker with the MQTT adapter, on a clock that the test moves."""

    def __init__(
        self,
        storage: Storage | None = None,
        options: MqttOptions | None = None,
        config: Config | None = None,
        now_ms: int = NOW_MS,
    ) -> None:
        self.adapter = MqttAdapter(MqttOptions() if options is None else options)
        self.driver = FakeDriver()
        self.broker = Broker(
            Config(listen={"mqtt": Listen(0)}, storage=StorageConfig(mode="memory"))
            if config is None
            else config
        )
        self.broker.now_ms = now_ms
        self.broker.clock_offset = CLOCK_OFFSET
        self.seconds = 1000.0
        self.broker.open(
            MemoryStorage() if storage is None else storage, self.driver, [self.adapter]
        )

    def settle(self) -> None:
        """End turns until nothing asks for another."""
        while True:
            self.driver.turns = 0
            self.broker.end_turn()
            if not self.driver.turns:
                return

    def finish(self) -> None:
        """Go on until nothing is due any more that is done a part in each turn."""
        while 0 < self.broker.next_at() <= self.broker.elapsed_ms:
            self.settle()
        self.settle()

    def sync(self) -> None:
        """Make everything durable; here it always is."""
        self.settle()

    def advance(self, seconds: float) -> None:
        """Let time pass, with the ticks that belong to it."""
        whole = max(1, int(min(seconds, 5)))
        for _ in range(whole):
            self.seconds += seconds / whole
            self.broker.now_ms += int(seconds * 1000 / whole)
            self.broker.tick(self.seconds)
        self.settle()

    def client(self, is_loopback: bool = True) -> Client:
        """A client whose TCP connection stands; it has sent nothing."""
        return Client(self, is_loopback)

    def connect(
        self, client_id: str = "c", version: int = 4, clean: bool = True, **fields: object
    ) -> Client:
        """A client that is connected; CONNACK, for which it may have to wait, is taken."""
        client = self.client()
        client.version = version
        client.send(connect(client_id, version, clean, **fields))  # type: ignore[arg-type]
        if not client.transport.written:
            self.sync()
        answer, rest = split_first(client.received())
        client.transport.written += rest
        assert answer[0] == 0x20, answer
        assert answer[1][1] == 0, answer
        client.connack = answer
        return client


class Client:
    """See ``Bench.client``."""

    def __init__(self, bench: Bench, is_loopback: bool) -> None:
        self.bench = bench
        self.transport = FakeTransport()
        self.version = 4
        self.connack: tuple[int, bytes] = (0, b"")
        self.connection = bench.adapter.connect(self.transport, Peer("127.0.0.1:1", is_loopback))
        bench.broker.connections.add(self.connection)

    def send(self, *data: bytes) -> None:
        """Feed bytes and end the turn."""
        for piece in data:
            if not self.connection.is_closed:
                self.connection.feed(piece)
        self.bench.settle()

    def received(self) -> bytes:
        """All bytes written since the last call."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return data

    def packets(self) -> list[tuple[int, bytes]]:
        """All packets since the last call: first byte and body."""
        return split(self.received())

    def packet(self) -> tuple[int, bytes]:
        """The only packet since the last call."""
        found = self.packets()
        assert len(found) == 1, found
        return found[0]

    @property
    def is_closed(self) -> bool:
        return self.transport.is_closed

    def lose(self) -> None:
        """The network fails."""
        self.connection.is_closed = True
        self.bench.broker.connections.discard(self.connection)
        self.connection.lost()
        self.bench.settle()

    def leave(self) -> None:
        """DISCONNECT, then the end of the TCP connection."""
        self.send(b"\xe0\x00")
        self.lose()

    def subscribe(
        self, topic_filter: str, options: int = 0, packet_id: int = 1, properties: bytes = b""
    ) -> None:
        """Subscribe, expecting success; retained messages stay to be read."""
        self.send(subscribe(topic_filter, options, packet_id, self.version, properties))
        data = self.received()
        answer, rest = split_first(data)
        assert answer[0] == 0x90, answer
        assert answer[1][-1] == options & 3, answer
        self.transport.written[:0] = rest


def split_first(data: bytes) -> tuple[tuple[int, bytes], bytes]:
    size = 0
    shift = 0
    at = 1
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    assert at + size <= len(data), "a packet is cut off"
    return (data[0], data[at : at + size]), data[at + size :]


def split(data: bytes) -> list[tuple[int, bytes]]:
    """The packets in ``data``."""
    found: list[tuple[int, bytes]] = []
    while data:
        packet, data = split_first(data)
        found.append(packet)
    return found


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def packet(first: int, body: bytes = b"") -> bytes:
    return bytes((first,)) + varint(len(body)) + body


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


def block(properties: bytes) -> bytes:
    """Properties with their length."""
    return varint(len(properties)) + properties


def connect(
    client_id: str | bytes = "c",
    version: int = 4,
    clean: bool = True,
    keep_alive: int = 0,
    properties: bytes = b"",
    will: tuple[str, bytes, int, bool] | None = None,
    will_properties: bytes = b"",
    username: str | None = None,
    password: bytes | None = None,
) -> bytes:
    """CONNECT; ``will`` is topic, payload, QoS, retain."""
    flags = 0x02 if clean else 0
    payload = text(client_id)
    if will is not None:
        topic, data, qos, retain = will
        flags |= 0x04 | qos << 3 | (0x20 if retain else 0)
        if version == 5:
            payload += block(will_properties)
        payload += text(topic) + text(data)
    if username is not None:
        flags |= 0x80
        payload += text(username)
    if password is not None:
        flags |= 0x40
        payload += text(password)
    body = text("MQIsdp" if version == 3 else "MQTT") + struct.pack(
        ">BBH", version, flags, keep_alive
    )
    if version == 5:
        body += block(properties)
    return packet(0x10, body + payload)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 1,
    version: int = 4,
    retain: bool = False,
    dup: bool = False,
    properties: bytes = b"",
) -> bytes:
    first = 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    body = text(topic)
    if qos:
        body += struct.pack(">H", packet_id)
    if version == 5:
        body += block(properties)
    return packet(first, body + payload)


def subscribe(
    topic_filter: str | bytes,
    options: int = 0,
    packet_id: int = 1,
    version: int = 4,
    properties: bytes = b"",
) -> bytes:
    body = struct.pack(">H", packet_id)
    if version == 5:
        body += block(properties)
    return packet(0x82, body + text(topic_filter) + bytes((options,)))


def unsubscribe(topic_filter: str | bytes, packet_id: int = 1, version: int = 4) -> bytes:
    body = struct.pack(">H", packet_id)
    if version == 5:
        body += block(b"")
    return packet(0xA2, body + text(topic_filter))


def acknowledge(first: int, packet_id: int, reason: int | None = None) -> bytes:
    body = struct.pack(">H", packet_id)
    return packet(first, body if reason is None else body + bytes((reason,)))


def puback(packet_id: int) -> bytes:
    return acknowledge(0x40, packet_id)


def pubrec(packet_id: int) -> bytes:
    return acknowledge(0x50, packet_id)


def pubrel(packet_id: int) -> bytes:
    return acknowledge(0x62, packet_id)


def pubcomp(packet_id: int) -> bytes:
    return acknowledge(0x70, packet_id)
