"""MQTT clients without sockets: packets in, packets out, against a real broker core."""

from __future__ import annotations

import struct
from typing import Any, Self

from tests.support.mqtt_strict import StrictClient
from tests.support.server import NOW_MS, Transport
from tests.support.server import Client as BaseClient
from tests.support.server import Server as BaseServer
from tests.support.simulated import Host
from trivium.config import Config
from trivium.runtime.adapter import Adapter, Connection
from trivium.storage.base import Storage
from trivium_mqtt.connection import MqttConnection
from trivium_mqtt.mqtt_adapter import MqttAdapter
from trivium_mqtt.options import MqttOptions

#: session expiry interval of kept sessions of MQTT 5: some time
KEPT = b"\x11\x00\x00\x10\x00"


class StrictTransport(Transport):
    """Everything that is written must be what a strict client takes."""

    def __init__(self) -> None:
        super().__init__()
        self.strict = StrictClient()

    def wrote(self, connection: Connection, data: bytes) -> None:
        assert isinstance(connection, MqttConnection)
        self.strict.is_v5 = connection.is_v5
        self.strict.take(data)
        super().wrote(connection, data)


class Server(BaseServer):
    """A broker that speaks MQTT."""

    def __init__(
        self,
        storage: Storage | None = None,
        config: Config | None = None,
        now_ms: int = NOW_MS,
        host: Host | None = None,
        options: MqttOptions | None = None,
    ) -> None:
        self.options = options or MqttOptions()
        super().__init__(storage, config, now_ms, host)

    def make_adapters(self) -> list[Adapter]:
        return [MqttAdapter(self.options)]

    def connect(self, is_loopback: bool = True) -> Client:
        """A client whose TCP connection stands; it has sent nothing."""
        return Client(self, is_loopback)

    def open(
        self, client_id: str = "c", version: int = 4, clean: bool = True, **fields: Any
    ) -> Client:
        """A client that is connected."""
        return self.connect().open(client_id, version, clean, **fields)

    def open_kept(self, client_id: str = "c", version: int = 4, **fields: Any) -> Client:
        """The same with a session that is kept, and durable."""
        if version == 5:
            fields.setdefault("properties", KEPT)
        client = self.open(client_id, version, clean=False, **fields)
        self.sync()
        return client


class Client(BaseClient):
    """A client of ``Server.connect``."""

    server: Server

    def __init__(self, server: BaseServer, is_loopback: bool = True) -> None:
        super().__init__(server, "mqtt", is_loopback, StrictTransport())
        self.version = 4
        self.connack: tuple[int, bytes] = (0, b"")

    def open(
        self, client_id: str = "c", version: int = 4, clean: bool = True, **fields: Any
    ) -> Self:
        """Send CONNECT, and take CONNACK, for which it may have to wait."""
        self.version = version
        self.feed(connect(client_id, version, clean, **fields))
        if not self.transport.written:
            self.server.sync()
        answer = self.take_first()
        assert answer[0] == 0x20, answer
        assert answer[1][1] == 0, answer
        self.connack = answer
        return self

    def take(self) -> list[tuple[int, bytes]]:
        """All packets since the last look: first byte and body."""
        return split(self.take_bytes())

    def take_one(self) -> tuple[int, bytes]:
        """The only packet since the last look."""
        found = self.take()
        assert len(found) == 1, found
        return found[0]

    def take_first(self) -> tuple[int, bytes]:
        """The first packet since the last look; the others stay."""
        found, rest = split_first(self.take_bytes())
        self.transport.written += rest
        return found

    def leave(self) -> None:
        """DISCONNECT, then the end of the TCP connection."""
        self.feed(b"\xe0\x00")
        self.lose()

    def subscribe(
        self, topic_filter: str, options: int = 0, packet_id: int = 1, properties: bytes = b""
    ) -> None:
        """Subscribe, expecting success; retained messages stay to be read."""
        self.feed(subscribe(topic_filter, options, packet_id, self.version, properties))
        answer = self.take_first()
        assert answer[0] == 0x90, answer
        assert answer[1][-1] == options & 3, answer


def subscribed(server: Server, qos: int = 2, client_id: str = "c") -> Client:
    """A client with a kept, durable subscription to ``t``."""
    client = server.open_kept(client_id)
    client.feed(subscribe("t", qos))
    server.sync()
    assert client.take_bytes() == bytes((0x90, 3, 0, 1, qos))
    return client


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
