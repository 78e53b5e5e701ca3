"""Encoding PUBLISH packets toward clients (3.3), each part once for as many clients as need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from trivium.messages.message import PROTOCOL_MQTT, Address, Message
from trivium.observability.metrics import ProtocolMetrics
from trivium_mqtt.codec.properties import MESSAGE_EXPIRY, TOPIC_ALIAS, property_block
from trivium_mqtt.codec.wire import PACKET_IDS, VARINT_MAX, varint, write_varint

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker

DUP: Final = 0x08
RETAIN: Final = 0x01

_FIRST: Final = [bytes((byte,)) for byte in range(256)]


class PublishEncoder:
    """Encodes for one adapter; remembers the last head and the last whole QoS 0 packet.

    A head is everything before the packet identifier. Messages that follow one another mostly
    share it: a fan-out has the same message, a publisher repeats topic and payload size.
    """

    def __init__(self, broker: Broker, metrics: ProtocolMetrics) -> None:
        self._broker = broker
        self._metrics = metrics
        self._address: Address | None = None
        self._first: i64 = 0
        self._remaining: i64 = 0
        self._head = b""
        self._live_message: Message | None = None
        self._live_is_v5 = False
        self._live_packet = b""

    def head(self, first: i64, remaining: i64, address: Address) -> bytes:
        """Fixed header and topic name; empty when the address has no MQTT form.

        ``remaining`` is the packet's size behind the topic.
        """
        if address is self._address and remaining == self._remaining and first == self._first:
            return self._head
        topic = address.topic
        if topic is None or len(topic) > 65_535:
            head = b""
        else:
            size: i64 = remaining + 2 + len(topic)
            if size > VARINT_MAX:
                return b""
            writer = BytesWriter()
            writer.append(u8(first))
            write_varint(writer, size)
            writer.write(PACKET_IDS[len(topic)])
            writer.write(topic)
            head = writer.getvalue()
        self._address = address
        self._remaining = remaining
        self._first = first
        self._head = head
        return head

    def live(self, message: Message, is_v5: bool) -> bytes:
        """A QoS 0 packet without RETAIN, subscription identifiers and alias; may be empty.

        Of one with a large payload all that goes before that (``front``).
        """
        if message is self._live_message and is_v5 == self._live_is_v5:
            return self._live_packet
        packet = self.front(message, 0x30, b"", is_v5, b"")
        content = message.content
        if packet and isinstance(content, bytes):
            packet += content
        self._live_message = message
        self._live_is_v5 = is_v5
        self._live_packet = packet
        return packet

    def front(
        self, message: Message, first: int, packet_id: bytes, is_v5: bool, identifiers: bytes
    ) -> bytes:
        """A packet up to its payload; empty when the message cannot be put in one.

        ``packet_id`` is empty for QoS 0. ``identifiers`` are the subscription identifier
        properties as they go on the wire.
        """
        size = message.size
        if not is_v5:
            head = self.head(first, len(packet_id) + size, message.address)
            return head + packet_id if head else b""
        block = self.block(message, identifiers)
        head = self.head(first, len(packet_id) + len(block) + size, message.address)
        return b"".join((head, packet_id, block)) if head else b""

    def aliased_front(
        self,
        message: Message,
        first: int,
        packet_id: bytes,
        identifiers: bytes,
        alias: int,
        is_known: bool,
    ) -> bytes:
        """``front`` with a topic alias, and without the topic name when it ``is_known``."""
        topic = message.address.topic
        if topic is None or len(topic) > 65_535:
            return b""
        if is_known:
            topic = b""
        block = self.block(message, b"%b%c%b" % (identifiers, TOPIC_ALIAS, PACKET_IDS[alias]))
        size = 2 + len(topic) + len(packet_id) + len(block) + message.size
        if size > VARINT_MAX:
            return b""
        return b"".join(
            (
                _FIRST[first],
                varint(size),
                PACKET_IDS[len(topic)],
                topic,
                packet_id,
                block,
            )
        )

    def block(self, message: Message, more: bytes) -> bytes:
        """The properties with their length."""
        if (
            not more
            and not message.header
            and message.expires == 0
            and message.annotations is None
            and message.protocol == PROTOCOL_MQTT
        ):
            return b"\x00"
        block = property_block(message, self._metrics) + more
        if message.expires:
            # What is forwarded is the time remaining, rounded up (MQTT-3.3.2-6).
            remaining = (message.expires - self._broker.now_ms + 999) // 1000
            seconds = min(max(remaining, 0), 0xFFFF_FFFF)
            block += b"%c%b" % (MESSAGE_EXPIRY, seconds.to_bytes(4, "big"))
        return varint(len(block)) + block
