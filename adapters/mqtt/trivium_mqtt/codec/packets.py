"""Decoding the packets that a client sends, other than PUBLISH, and encoding the answers.

Decoders take the packet's body as ``data[at:end]`` and raise RemoteError. Section numbers are those
of MQTT 5; MQTT 3.1.1 has the same ones for the same packets.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, write_i16_be
from mypy_extensions import i16, i64, u8

from trivium_mqtt.codec import properties
from trivium_mqtt.codec.properties import PacketProperties, read_properties
from trivium_mqtt.codec.reasons import (
    QUOTA_EXCEEDED,
    UNSUPPORTED_VERSION,
    MalformedPacket,
    ProtocolError,
    RemoteError,
)
from trivium_mqtt.codec.wire import (
    PACKET_IDS,
    binary,
    check_topic_name,
    read_binary,
    read_text,
    read_two,
    varint,
    varint_size,
)

CONNECT: Final = 0x10
CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBSCRIBE: Final = 0x82
SUBACK: Final = 0x90
UNSUBSCRIBE: Final = 0xA2
UNSUBACK: Final = 0xB0
PINGREQ: Final = 0xC0
PINGRESP: Final = b"\xd0\x00"
DISCONNECT: Final = 0xE0
AUTH: Final = 0xF0

#: Protocol levels (3.1.2.2): MQTT 3.1, 3.1.1 and 5.0.
V31: Final = 3
V311: Final = 4
V5: Final = 5

#: Reason codes that a client may send (MQTT5 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.14.2.1,
#: 3.15.2.1).
_FOR_PUBLISH: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_FOR_RELEASE: Final = frozenset((0x00, 0x92))
_FOR_AUTH: Final = frozenset((0x18, 0x19))
_FOR_DISCONNECT: Final = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
)

#: Session expiry interval that stands for "never" (3.1.2.11.2).
NEVER: Final = 0xFFFF_FFFF

#: bytes of a reason string: it has names in it, which may be long
MAX_REASON_STRING: Final = 512


class Will:
    """The message that a client leaves behind (3.1.2.5)."""

    def __init__(
        self, topic: bytes, header: bytes, payload: bytes, qos: int, retain: bool, delay: int
    ) -> None:
        self.topic = topic
        #: property bytes without the will delay
        self.header = header
        self.payload = payload
        self.qos = qos
        self.retain = retain
        #: seconds between the loss of the connection and the publication (3.1.3.2.2)
        self.delay = delay


class Connect:
    """A CONNECT packet (3.1). ``version`` is set once it is known, also where ``decode`` raises."""

    def __init__(self) -> None:
        self.version = 0
        self.client_id = b""
        self.clean_start = True
        #: seconds after the connection; MQTT 3 knows 0 and NEVER only
        self.session_expiry = 0
        self.keep_alive = 0
        self.username: str | None = None
        self.password: bytes | None = None
        self.will: Will | None = None
        self.receive_maximum = 65_535
        self.maximum_packet_size = 0
        self.topic_alias_maximum = 0
        #: None: it authenticates by user name and password, if at all
        self.authentication_method: bytes | None = None
        self.authentication_data = b""

    def decode(self, data: bytes, at: int, end: int) -> None:
        """Decode the body of a CONNECT packet."""
        name = read_binary(data, at, end)
        at += 2 + len(name)
        if name != b"MQTT" and name != b"MQIsdp":
            raise RemoteError(UNSUPPORTED_VERSION, "not MQTT (MQTT-3.1.2-1)")
        if at + 2 > end:
            raise MalformedPacket("CONNECT ends before its flags")
        level = data[at]
        flags = data[at + 1]
        at += 2
        if level not in (V31, V311, V5) or (level == V31) != (name == b"MQIsdp"):
            # An unknown later version is answered in the form of the latest known one.
            self.version = V5 if level > V5 and level < 0x80 else V311
            raise RemoteError(UNSUPPORTED_VERSION, f"protocol level {level} (MQTT-3.1.2-2)")
        self.version = level
        if flags & 0x01 and level != V31:
            raise MalformedPacket("reserved CONNECT flag is set (MQTT-3.1.2-3)")
        self.clean_start = flags & 0x02 != 0
        will_qos = flags >> 3 & 3
        has_will = flags & 0x04 != 0
        if not has_will and level == V31:
            # It says of no flag what it must be when it is not used.
            will_qos = 0
        elif will_qos == 3 or (not has_will and flags & 0x38):
            raise MalformedPacket("will flags contradict one another (MQTT-3.1.2-11, -12, -13)")
        if level != V5 and flags & 0xC0 == 0x40:
            raise MalformedPacket("password without user name (MQTT-3.1.2-22)")
        self.keep_alive = read_two(data, at, end)
        at += 2
        if level == V5:
            found = read_properties(data, at, end, properties.IN_CONNECT)
            at = found.end
            self._take(found)
        elif not self.clean_start:
            self.session_expiry = NEVER
        self.client_id = read_text(data, at, end)
        at += 2 + len(self.client_id)
        if has_will:
            at = self._decode_will(data, at, end, will_qos, flags & 0x20 != 0)
        if flags & 0x80:
            username = read_text(data, at, end)
            at += 2 + len(username)
            self.username = username.decode()
        if flags & 0x40:
            self.password = read_binary(data, at, end)
            at += 2 + len(self.password)
        if at != end:
            raise MalformedPacket("CONNECT is longer than its fields")

    def _take(self, found: PacketProperties) -> None:
        self.session_expiry = found.number(properties.SESSION_EXPIRY, 0)
        self.receive_maximum = found.number(properties.RECEIVE_MAXIMUM, 65_535)
        self.maximum_packet_size = found.number(properties.MAXIMUM_PACKET_SIZE, 0)
        self.topic_alias_maximum = found.number(properties.TOPIC_ALIAS_MAXIMUM, 0)
        self.authentication_method = found.texts.get(properties.AUTHENTICATION_METHOD)
        self.authentication_data = found.texts.get(properties.AUTHENTICATION_DATA, b"")
        if self.authentication_method is None and properties.AUTHENTICATION_DATA in found.texts:
            raise ProtocolError("authentication data without method (3.1.2.11.10)")

    def _decode_will(self, data: bytes, at: int, end: int, qos: int, retain: bool) -> int:
        header = b""
        delay = 0
        if self.version == V5:
            found = read_properties(data, at, end, properties.IN_WILL)
            properties.check_message_properties(found)
            at = found.end
            header = found.raw
            delay = found.number(properties.WILL_DELAY, 0)
        topic = read_text(data, at, end)
        at += 2 + len(topic)
        check_topic_name(topic)
        payload = read_binary(data, at, end)
        at += 2 + len(payload)
        self.will = Will(topic, header, payload, qos, retain, delay)
        return at


def connack(version: int, session_present: bool, code: int, block: bytes = b"") -> bytes:
    """Encode CONNACK (3.2). ``block`` holds the MQTT 5 properties."""
    # MQTT 3.1 has no session present flag; the byte is reserved there.
    present = 1 if session_present and version != V31 else 0
    if version == V5:
        body = bytes((present, code)) + varint(len(block)) + block
        return bytes((CONNACK,)) + varint(len(body)) + body
    return bytes((CONNACK, 2, present, code))


def connack_size(block: bytes) -> int:
    """Bytes of an MQTT 5 CONNACK with these properties."""
    size = 2 + varint_size(len(block)) + len(block)
    return 1 + varint_size(size) + size


def acknowledgement(first: int, packet_id: int, reason: int) -> bytes:
    """Encode PUBACK, PUBREC, PUBREL or PUBCOMP (3.4 to 3.7); ``reason`` 0 for MQTT 3."""
    writer = BytesWriter()
    writer.append(first)
    writer.append(3 if reason else 2)
    writer.write(PACKET_IDS[packet_id])
    if reason:
        writer.append(reason)
    return writer.getvalue()


def write_acknowledgement(writer: BytesWriter, first: i64, packet_id: i16, reason: i64) -> None:
    """``acknowledgement``, of an identifier as it was read."""
    writer.append(u8(first))
    writer.append(3 if reason else 2)
    write_i16_be(writer, packet_id)
    if reason:
        writer.append(u8(reason))


def disconnect(reason: int) -> bytes:
    """Encode the DISCONNECT of an MQTT 5 server (3.14)."""
    return bytes((DISCONNECT, 1, reason))


class Acknowledgement:
    """PUBACK, PUBREC, PUBREL or PUBCOMP from a client, which begins with ``first``."""

    def __init__(self, first: int, data: bytes, at: int, end: int, version: int) -> None:
        if version != V5 and end - at != 2:
            raise MalformedPacket("acknowledgement of MQTT 3 is not two bytes long (3.4.1)")
        self.packet_id = read_two(data, at, end)
        self.reason = 0
        if self.packet_id == 0:
            raise ProtocolError("packet identifier 0 (MQTT-2.2.1-3)")
        at += 2
        if at < end:
            self.reason = data[at]
            _check_reason(self.reason, _FOR_PUBLISH if first in (PUBACK, PUBREC) else _FOR_RELEASE)
            at += 1
            if at < end:
                at = read_properties(data, at, end, properties.IN_ACKNOWLEDGEMENT).end
        if at != end:
            raise MalformedPacket("acknowledgement is longer than its fields")


#: Bytes of a plain PUBACK and the like: two of fixed header, a packet identifier (3.4 to 3.7).
PLAIN_SIZE: Final = 4


def plain_acknowledgement(first: i64, data: bytes, at: i64, end: i64) -> i64:
    """The packet identifier of the PUBACK, PUBREC, PUBREL or PUBCOMP that begins at ``at`` with
    ``first``; 0 if that is to be decoded.

    ``data[at:end]`` is what was read. A plain one is whole and has neither reason code nor
    properties, so all versions have it, and ``Acknowledgement`` would say just this of it.
    """
    if at + PLAIN_SIZE > end:
        return 0
    packet = i64(read_i32_be(data, at))
    return packet & 0xFFFF if packet >> 16 == (first << 8 | 2) else 0


class Disconnect:
    """DISCONNECT from a client (3.14)."""

    def __init__(self, data: bytes, at: int, end: int, version: int) -> None:
        self.reason = 0
        self.session_expiry = -1
        if version != V5 and at != end:
            raise MalformedPacket("DISCONNECT of MQTT 3 has a body (3.14.1)")
        if at < end:
            self.reason = data[at]
            _check_reason(self.reason, _FOR_DISCONNECT)
            at += 1
            if at < end:
                found = read_properties(data, at, end, properties.IN_DISCONNECT)
                if properties.SERVER_REFERENCE in found.texts:
                    raise ProtocolError("server reference from a client (3.14.2.2.5)")
                self.session_expiry = found.number(properties.SESSION_EXPIRY, -1)
                at = found.end
        if at != end:
            raise MalformedPacket("DISCONNECT is longer than its fields")


class Auth:
    """AUTH from a client (3.15)."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        if at == end:
            # Reason code 0 without properties, which only a server sends (3.15.2.1).
            raise ProtocolError("AUTH without an authentication method (3.15.2.2.2)")
        self.reason = data[at]
        _check_reason(self.reason, _FOR_AUTH)
        found = read_properties(data, at + 1, end, properties.IN_AUTH)
        if found.end != end:
            raise MalformedPacket("AUTH is longer than its fields")
        method = found.texts.get(properties.AUTHENTICATION_METHOD)
        if method is None:
            raise ProtocolError("AUTH without an authentication method (3.15.2.2.2)")
        self.method: bytes = method
        self.data = found.texts.get(properties.AUTHENTICATION_DATA, b"")


def authentication(method: bytes, data: bytes) -> bytes:
    """The properties of AUTH and CONNACK for an authentication method (3.15.2.2, 3.2.2.3.17)."""
    block = bytes((properties.AUTHENTICATION_METHOD,)) + binary(method)
    return block + bytes((properties.AUTHENTICATION_DATA,)) + binary(data) if data else block


def auth(reason: int, block: bytes) -> bytes:
    """Encode AUTH (3.15) with the properties in ``block``."""
    body = bytes((reason,)) + varint(len(block)) + block
    return bytes((AUTH,)) + varint(len(body)) + body


class FilterPacket:
    """SUBSCRIBE or UNSUBSCRIBE: topic filters, each with an options byte."""

    def __init__(self, answer: int, packet_id: int) -> None:
        #: the packet type that answers it
        self.answer = answer
        self.packet_id = packet_id
        #: subscription identifier; 0 for none
        self.identifier = 0
        #: the options of UNSUBSCRIBE are 0
        self.filters: list[tuple[bytes, int]] = []

    def add(self, topic_filter: bytes, options: int, most: int) -> None:
        """One more filter, of at most ``most``. Raises RemoteError."""
        self.filters.append((topic_filter, options))
        if len(self.filters) > most:
            raise RemoteError(QUOTA_EXCEEDED, "more filters than a session may have")


class Subscribe(FilterPacket):
    """SUBSCRIBE (3.8): pairs of topic filter and options byte, ``most`` of them."""

    def __init__(self, data: bytes, at: int, end: int, version: int, most: int) -> None:
        super().__init__(SUBACK, _packet_id(data, at, end))
        at += 2
        if version == V5:
            found = read_properties(data, at, end, properties.IN_SUBSCRIBE)
            at = found.end
            if len(found.subscription_ids) > 1:
                raise ProtocolError("two subscription identifiers (3.8.2.1.2)")
            if found.subscription_ids:
                self.identifier = found.subscription_ids[0]
        while at < end:
            topic_filter = read_text(data, at, end)
            at += 2 + len(topic_filter)
            if at >= end:
                raise MalformedPacket("topic filter without options")
            options = data[at]
            at += 1
            reserved = 0xC0 if version == V5 else 0xFC
            if options & 3 == 3 or options & reserved or options & 0x30 == 0x30:
                raise MalformedPacket("subscription options are not valid (MQTT-3.8.3-4, -5)")
            self.add(topic_filter, options, most)
        if not self.filters:
            raise ProtocolError("SUBSCRIBE without a topic filter (MQTT-3.8.3-2)")


class Unsubscribe(FilterPacket):
    """UNSUBSCRIBE (3.10), of ``most`` filters."""

    def __init__(self, data: bytes, at: int, end: int, version: int, most: int) -> None:
        super().__init__(UNSUBACK, _packet_id(data, at, end))
        at += 2
        if version == V5:
            at = read_properties(data, at, end, properties.IN_UNSUBSCRIBE).end
        while at < end:
            topic_filter = read_text(data, at, end)
            at += 2 + len(topic_filter)
            self.add(topic_filter, 0, most)
        if not self.filters:
            raise ProtocolError("UNSUBSCRIBE without a topic filter (MQTT-3.10.3-2)")


def suback(first: int, version: int, packet_id: int, codes: bytes) -> bytes:
    """Encode SUBACK or UNSUBACK (3.9, 3.11); MQTT 3 has no codes in UNSUBACK."""
    if version == V5:
        body = PACKET_IDS[packet_id] + b"\x00" + codes
    else:
        body = PACKET_IDS[packet_id] + (codes if first == SUBACK else b"")
    return bytes((first,)) + varint(len(body)) + body


def suback_size(codes: int) -> int:
    """Bytes of an MQTT 5 SUBACK or UNSUBACK with so many codes."""
    return 1 + varint_size(3 + codes) + 3 + codes


def reason_string(text: str) -> bytes:
    """Encode the property that says in words what a reason code means, cut where it is long."""
    encoded = text.replace("\0", "").encode(errors="replace")[:MAX_REASON_STRING]
    return bytes((properties.REASON_STRING,)) + binary(encoded.decode(errors="ignore").encode())


def connack_answers(
    assigned_client_id: bytes, session_expiry: int, server_keep_alive: int
) -> bytes:
    """The properties of a successful CONNACK that the client must be told (3.2.2.3).

    ``session_expiry`` and ``server_keep_alive`` are -1 where the client gets what it asked for.
    """
    parts: list[bytes] = []
    if assigned_client_id:
        parts.append(bytes((properties.ASSIGNED_CLIENT_ID,)) + binary(assigned_client_id))
    if session_expiry >= 0:
        parts.append(bytes((properties.SESSION_EXPIRY,)) + session_expiry.to_bytes(4, "big"))
    if server_keep_alive >= 0:
        parts.append(bytes((properties.SERVER_KEEP_ALIVE,)) + PACKET_IDS[server_keep_alive])
    return b"".join(parts)


def connack_limits(
    receive_maximum: int, maximum_packet_size: int, topic_alias_maximum: int
) -> list[bytes]:
    """The properties of a successful CONNACK that may be left out, the last first (3.2.2.3)."""
    parts: list[bytes] = []
    if receive_maximum < 65_535:
        parts.append(bytes((properties.RECEIVE_MAXIMUM,)) + PACKET_IDS[receive_maximum])
    parts.append(bytes((properties.MAXIMUM_PACKET_SIZE,)) + maximum_packet_size.to_bytes(4, "big"))
    if topic_alias_maximum:
        parts.append(bytes((properties.TOPIC_ALIAS_MAXIMUM,)) + PACKET_IDS[topic_alias_maximum])
    return parts


def check_flags(first: int) -> None:
    """Raise MalformedPacket unless a packet of another type than PUBLISH may begin so (2.1.3)."""
    if first != without_flags(first):
        raise MalformedPacket(f"packet type and flags 0x{first:02x} (MQTT-2.1.3-1)")


def without_flags(first: int) -> int:
    """The first byte of a packet, other than PUBLISH, with the flags that its type has (2.1.3)."""
    kind = first & 0xF0
    return kind | 0x02 if kind in (0x60, 0x80, 0xA0) else kind


def _check_reason(reason: int, allowed: frozenset[int]) -> None:
    if reason not in allowed:
        raise ProtocolError(f"reason code 0x{reason:02x} has no meaning in this packet (2.4)")


def _packet_id(data: bytes, at: int, end: int) -> int:
    packet_id = read_two(data, at, end)
    if packet_id == 0:
        raise ProtocolError("packet identifier 0 (MQTT-2.2.1-3)")
    return packet_id
