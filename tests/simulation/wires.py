"""The three protocols, as little of each as the simulation speaks, from encoders of their own."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Final

import msgpack
from pamqp import body, commands, frame, header
from pamqp.base import Frame

from tests.simulation.stream_model import Kept
from tests.simulation.world import World
from tests.support import amqp, mqtt, native
from tests.support.server import Client
from trivium.streams.records import PAYLOAD, RecordBatch
from trivium_native.wire import frames

#: MQTT 5: the seconds of a session that never expires
NEVER: Final = 0xFFFF_FFFF
#: subscription option: no retained messages (retain handling 2)
_NO_RETAINED: Final = 0x20

CONFIRMING: Final = 1
TRANSACTIONAL: Final = 2
CONSUMING: Final = 3

Fields = dict[str, Any]


def payload_of(number: int, size: int) -> bytes:
    """A message's payload: its number, and something behind it."""
    return b"%d " % number + b"." * size


def number_in(payload: bytes) -> int:
    """The number of the message with this payload."""
    return int(payload.split(b" ", 1)[0])


@cache
def _amqp_greeting() -> bytes:
    methods: list[tuple[Frame, int]] = [
        (amqp.start_ok(), 0),
        (commands.Connection.TuneOk(2047, 131_072, 0), 0),
        (commands.Connection.Open("/"), 0),
    ]
    for number in (CONFIRMING, TRANSACTIONAL, CONSUMING):
        methods.append((commands.Channel.Open(), number))
    methods.append((commands.Confirm.Select(), CONFIRMING))
    methods.append((commands.Tx.Select(), TRANSACTIONAL))
    return b"".join(frame.marshal(method, channel) for method, channel in methods)


class AmqpWire(Client):
    def __init__(self, world: World) -> None:
        super().__init__(world, "amqp", transport=amqp.StrictTransport())
        self._unread = b""
        self._delivery: list[Any] = []
        self.feed(amqp.PROTOCOL_HEADER)
        self.feed(_amqp_greeting())

    def send(self, method: Frame, channel: int) -> None:
        self.feed(frame.marshal(method, channel))

    def publish(
        self, channel: int, exchange: str, key: str, payload: bytes, **properties: Any
    ) -> None:
        method = commands.Basic.Publish(exchange=exchange, routing_key=key)
        content = header.ContentHeader(0, len(payload), commands.Basic.Properties(**properties))
        self.feed(
            frame.marshal(method, channel)
            + frame.marshal(content, channel)
            + frame.marshal(body.ContentBody(payload), channel)
        )

    def receive(self) -> list[tuple[int, Any, bytes]]:
        """Channel and method of each that came, with the body behind deliveries."""
        self._unread += self.take_bytes()
        found: list[tuple[int, Any, bytes]] = []
        data = self._unread
        while data:
            size, channel, received = frame.unmarshal(data)
            if not size:
                break
            data = data[size:]
            if isinstance(received, body.ContentBody):
                found.append((channel, self._delivery.pop(), received.value))
            elif isinstance(received, (commands.Basic.Deliver, commands.Basic.GetOk)):
                self._delivery.append(received)
            elif not isinstance(received, header.ContentHeader):
                found.append((channel, received, b""))
        self._unread = data
        return found


class MqttWire(Client):
    """``version`` 4 or 5. The session is kept for ``expiry`` seconds."""

    def __init__(
        self,
        world: World,
        client: str,
        version: int,
        is_clean: bool = False,
        expiry: int = NEVER,
        **will: Any,
    ) -> None:
        super().__init__(world, "mqtt", transport=mqtt.StrictTransport())
        self.version = version
        properties = b"\x11" + expiry.to_bytes(4) if version == 5 else b""
        self.feed(mqtt.connect(client, version, is_clean, properties=properties, **will))

    def publish(self, topic: str, payload: bytes, qos: int, packet_id: int, **flags: Any) -> None:
        self.feed(mqtt.publish(topic, payload, qos, packet_id, self.version, **flags))

    def subscribe(self, topic_filter: str, qos: int, packet_id: int, retained: bool) -> None:
        options = qos if retained or self.version < 5 else qos | _NO_RETAINED
        self.feed(mqtt.subscribe(topic_filter, options, packet_id, self.version))

    def receive(self) -> list[tuple[int, bytes]]:
        """First byte and body of each packet that came."""
        return mqtt.split(self.take_bytes())

    def read_publish(self, first: int, data: bytes) -> tuple[str, int, bytes]:
        """Topic, packet identifier and payload of a PUBLISH."""
        size = int.from_bytes(data[:2])
        at = 2 + size
        packet_id = 0
        if first & 0x06:
            packet_id = int.from_bytes(data[at : at + 2])
            at += 2
        if self.version == 5:
            # Properties below 128 bytes.
            at += 1 + data[at]
        return data[2 : 2 + size].decode(), packet_id, data[at:]


class NativeWire(Client):
    def __init__(self, world: World) -> None:
        super().__init__(world, "native")
        self.correlation = 2
        hello = {"protocol": "trivium", "version": 1}
        user = {"username": "guest", "password": b"guest"}
        self._send(frames.HELLO, 1, msgpack.packb(hello))
        self._send(frames.AUTH, 2, msgpack.packb(user))

    def _send(self, kind: int, correlation: int, data: bytes) -> None:
        self.feed(native.frame(kind, correlation, data))

    def request(self, kind: int, data: bytes | Fields) -> int:
        """Send a request; its correlation id."""
        self.correlation += 1
        self._send(kind, self.correlation, data if isinstance(data, bytes) else msgpack.packb(data))
        return self.correlation

    def receive(self) -> list[native.Received]:
        """Type, correlation id and body of each frame that came."""
        data = self.take_bytes()
        found: list[native.Received] = []
        at = 0
        while at < len(data):
            length, kind, correlation = struct.unpack_from("<IBQ", data, at)
            found.append((kind, correlation, data[at + 13 : at + 4 + length]))
            at += 4 + length
        return found


class Delivered:
    """The body of a native DELIVER."""

    def __init__(self, data: bytes) -> None:
        self.subscription, self.flags, _, _, self.tag = struct.unpack_from("<IBBHQ", data)
        flags, _, exchange, key, _, properties, _ = struct.unpack_from("<BBHHHII", data, 32)
        self.mode = flags & 3
        self.payload = data[48 + exchange + key + properties :]


class Fetched:
    """A FETCHED body. ``batches``: base offset and size in bytes of each, and what is in it."""

    def __init__(self, data: bytes) -> None:
        self.first, self.mark, count, _ = struct.unpack_from("<qqII", data)
        at = 24
        self.batches: list[tuple[int, int, RecordBatch]] = []
        for _ in range(count):
            base, size, _ = struct.unpack_from("<qII", data, at)
            self.batches.append((base, size, RecordBatch(data[at + 16 : at + 16 + size])))
            at += 16 + (size + 7) // 8 * 8

    def add_to(self, kept: Kept) -> None:
        """Add what came to what was there."""
        for base, size, batch in self.batches:
            for row in range(batch.count):
                payload = batch.binary(PAYLOAD, row) or b""
                number = number_in(payload) if payload else None
                kept.records[base + batch.delta(row)] = (number, len(payload))
            kept.size += size
            kept.newest, kept.end = base, base + batch.span
