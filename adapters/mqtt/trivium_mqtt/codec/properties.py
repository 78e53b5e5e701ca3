"""MQTT 5 properties (2.2.2): reading them, and translating those of a message.

A published message keeps its property bytes as they came, without the topic alias, which belongs to
one hop. ``MqttCodec`` turns them into the neutral form for readers of other protocols, and
``property_block`` makes the bytes that an MQTT 5 subscriber gets, whatever the publisher spoke. The
message expiry interval is left out there: what is forwarded is the time remaining, which changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Final

from trivium.messages.delivery import DELAY_HEADER, DELIVERY_HEADER, delay_of, delivery_mode
from trivium.messages.message import PROTOCOL_MQTT, HeaderValue, Message, Properties, PropertyCodec
from trivium.messages.topics import key_of, topic_of
from trivium.observability.metrics import ProtocolMetrics
from trivium_mqtt.codec.reasons import (
    IMPLEMENTATION_SPECIFIC,
    TOPIC_ALIAS_INVALID,
    MalformedPacket,
    ProtocolError,
    RemoteError,
)
from trivium_mqtt.codec.wire import (
    binary,
    check_text,
    check_topic_name,
    read_binary,
    read_text,
    read_two,
    read_varint,
    varint,
    varint_size,
)

PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_ID: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDS_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

# Types (MQTT5 1.5); numbers first, so that one comparison tells them from the rest.
_BIT: Final = 0  # a byte that may be 0 or 1
_TWO: Final = 1
_FOUR: Final = 2
_VARINT: Final = 3
_BINARY: Final = 4
_TEXT: Final = 5
_PAIR: Final = 6

_TYPES: Final = {
    PAYLOAD_FORMAT: _BIT,
    MESSAGE_EXPIRY: _FOUR,
    CONTENT_TYPE: _TEXT,
    RESPONSE_TOPIC: _TEXT,
    CORRELATION_DATA: _BINARY,
    SUBSCRIPTION_ID: _VARINT,
    SESSION_EXPIRY: _FOUR,
    ASSIGNED_CLIENT_ID: _TEXT,
    SERVER_KEEP_ALIVE: _TWO,
    AUTHENTICATION_METHOD: _TEXT,
    AUTHENTICATION_DATA: _BINARY,
    REQUEST_PROBLEM_INFORMATION: _BIT,
    WILL_DELAY: _FOUR,
    REQUEST_RESPONSE_INFORMATION: _BIT,
    RESPONSE_INFORMATION: _TEXT,
    SERVER_REFERENCE: _TEXT,
    REASON_STRING: _TEXT,
    RECEIVE_MAXIMUM: _TWO,
    TOPIC_ALIAS_MAXIMUM: _TWO,
    TOPIC_ALIAS: _TWO,
    MAXIMUM_QOS: _BIT,
    RETAIN_AVAILABLE: _BIT,
    USER_PROPERTY: _PAIR,
    MAXIMUM_PACKET_SIZE: _FOUR,
    WILDCARD_AVAILABLE: _BIT,
    SUBSCRIPTION_IDS_AVAILABLE: _BIT,
    SHARED_AVAILABLE: _BIT,
}

_DELIVERY: Final = DELIVERY_HEADER.encode()
_DELAY: Final = DELAY_HEADER.encode()

#: The history of a dead letter: nested, so it becomes JSON text.
X_DEATH: Final = "x-death"

#: Digits of a number in a user property; longer ones are out of range anyway.
MAX_DIGITS: Final = 18

# Zero is a protocol error for these (3.1.2.11.3, 3.1.2.11.4, 3.8.2.1.2).
_NON_ZERO: Final = frozenset((RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE, SUBSCRIPTION_ID))

#: Which properties each packet may carry (MQTT5 table 2-4).
IN_PUBLISH: Final = frozenset(
    (
        PAYLOAD_FORMAT,
        MESSAGE_EXPIRY,
        CONTENT_TYPE,
        RESPONSE_TOPIC,
        CORRELATION_DATA,
        SUBSCRIPTION_ID,
        TOPIC_ALIAS,
        USER_PROPERTY,
    )
)
IN_WILL: Final = frozenset(
    (
        PAYLOAD_FORMAT,
        MESSAGE_EXPIRY,
        CONTENT_TYPE,
        RESPONSE_TOPIC,
        CORRELATION_DATA,
        WILL_DELAY,
        USER_PROPERTY,
    )
)
IN_CONNECT: Final = frozenset(
    (
        SESSION_EXPIRY,
        AUTHENTICATION_METHOD,
        AUTHENTICATION_DATA,
        REQUEST_PROBLEM_INFORMATION,
        REQUEST_RESPONSE_INFORMATION,
        RECEIVE_MAXIMUM,
        TOPIC_ALIAS_MAXIMUM,
        USER_PROPERTY,
        MAXIMUM_PACKET_SIZE,
    )
)
IN_CONNACK: Final = frozenset(
    (
        SESSION_EXPIRY,
        ASSIGNED_CLIENT_ID,
        SERVER_KEEP_ALIVE,
        AUTHENTICATION_METHOD,
        AUTHENTICATION_DATA,
        RESPONSE_INFORMATION,
        SERVER_REFERENCE,
        REASON_STRING,
        RECEIVE_MAXIMUM,
        TOPIC_ALIAS_MAXIMUM,
        MAXIMUM_QOS,
        RETAIN_AVAILABLE,
        USER_PROPERTY,
        MAXIMUM_PACKET_SIZE,
        WILDCARD_AVAILABLE,
        SUBSCRIPTION_IDS_AVAILABLE,
        SHARED_AVAILABLE,
    )
)
IN_SUBSCRIBE: Final = frozenset((SUBSCRIPTION_ID, USER_PROPERTY))
IN_UNSUBSCRIBE: Final = frozenset((USER_PROPERTY,))
IN_ACKNOWLEDGEMENT: Final = frozenset((REASON_STRING, USER_PROPERTY))
IN_DISCONNECT: Final = frozenset((SESSION_EXPIRY, SERVER_REFERENCE, REASON_STRING, USER_PROPERTY))
IN_AUTH: Final = frozenset(
    (AUTHENTICATION_METHOD, AUTHENTICATION_DATA, REASON_STRING, USER_PROPERTY)
)


class PacketProperties:
    """The properties of one packet."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.texts: dict[int, bytes] = {}
        #: user properties, in order, with duplicates
        self.pairs: list[tuple[bytes, bytes]] = []
        self.subscription_ids: list[int] = []
        #: the delivery mode that the publisher insists on (user property x-delivery); -1 for none.
        #: Set by ``check_message_properties``.
        self.delivery = -1
        #: milliseconds until the message is routed (user property x-delay), set by the same
        self.delay = 0
        #: offset behind the properties
        self.end = 0
        #: the bytes without their length, topic alias and will delay
        self.raw = b""

    def number(self, identifier: int, default: int) -> int:
        """The numeric property ``identifier``, or ``default``."""
        return self.numbers.get(identifier, default)


def read_properties(data: bytes, at: int, end: int, allowed: frozenset[int]) -> PacketProperties:
    """Decode the properties at ``at``, their length first. Raises RemoteError."""
    found = PacketProperties()
    size = read_varint(data, at, end)
    at += varint_size(size)
    stop = at + size
    if stop > end:
        raise MalformedPacket("properties reach beyond the packet")
    start = at
    kept = b""
    found.end = stop
    while at < stop:
        began = at
        identifier = data[at]
        kind = _TYPES.get(identifier, -1)
        if kind < 0 or identifier not in allowed:
            raise MalformedPacket(f"property 0x{identifier:02x} does not belong into this packet")
        at += 1
        if kind <= _VARINT:
            number, at = _read_number(kind, data, at, stop)
            if kind == _BIT and number > 1:
                raise ProtocolError(f"property 0x{identifier:02x} must be 0 or 1")
            if number == 0 and identifier in _NON_ZERO:
                raise ProtocolError(f"property 0x{identifier:02x} must not be 0")
            if identifier == SUBSCRIPTION_ID:
                found.subscription_ids.append(number)
                continue
            if identifier in found.numbers:
                raise ProtocolError(f"property 0x{identifier:02x} appears twice")
            found.numbers[identifier] = number
            if identifier in (TOPIC_ALIAS, WILL_DELAY):
                kept += data[start:began]
                start = at
        elif kind == _PAIR:
            name = read_text(data, at, stop)
            at += 2 + len(name)
            value = read_text(data, at, stop)
            at += 2 + len(value)
            found.pairs.append((name, value))
        else:
            value = read_binary(data, at, stop)
            at += 2 + len(value)
            if kind == _TEXT:
                check_text(value)
            if identifier in found.texts:
                raise ProtocolError(f"property 0x{identifier:02x} appears twice")
            found.texts[identifier] = value
    found.raw = kept + data[start:stop]
    return found


def _read_number(kind: int, data: bytes, at: int, stop: int) -> tuple[int, int]:
    """The number at ``at``, and the offset behind it. Raises MalformedPacket."""
    if kind == _BIT:
        if at >= stop:
            raise MalformedPacket("packet ends within a property")
        return data[at], at + 1
    if kind == _TWO:
        return read_two(data, at, stop), at + 2
    if kind == _FOUR:
        return read_two(data, at, stop) << 16 | read_two(data, at + 2, stop), at + 4
    number = read_varint(data, at, stop)
    return number, at + varint_size(number)


def check_message_properties(found: PacketProperties) -> None:
    """Raise RemoteError for values that a client must not send in PUBLISH or a will."""
    if found.subscription_ids:
        raise ProtocolError("subscription identifier from a client (MQTT-3.3.4-6)")
    if found.numbers.get(TOPIC_ALIAS, 1) == 0:
        raise RemoteError(TOPIC_ALIAS_INVALID, "topic alias 0 (MQTT-3.3.2-8)")
    topic = found.texts.get(RESPONSE_TOPIC)
    if topic is not None:
        check_topic_name(topic)
    for name, value in found.pairs:
        if name == _DELIVERY and found.delivery < 0:
            found.delivery = delivery_mode(value.decode())
            if found.delivery < 0:
                raise RemoteError(IMPLEMENTATION_SPECIFIC, "x-delivery is no delivery mode")
        elif name == _DELAY and found.delay == 0:
            found.delay = delay_of(int(value)) if _is_number(value) else -1
            if found.delay < 0:
                raise RemoteError(IMPLEMENTATION_SPECIFIC, "x-delay is no number of milliseconds")


def _is_number(text: bytes) -> bool:
    return 0 < len(text) <= MAX_DIGITS and text.removeprefix(b"-").isdigit()


def change_response_topic(raw: bytes, change: Callable[[bytes], bytes | None]) -> bytes:
    """Checked properties with ``change`` of their response topic; without it for None."""
    at = 0
    end = len(raw)
    while at < end:
        began = at
        identifier = raw[at]
        kind = _TYPES[identifier]
        at += 1
        if kind <= _VARINT:
            _, at = _read_number(kind, raw, at, end)
            continue
        at += 2 + read_two(raw, at, end)
        if kind == _PAIR:
            at += 2 + read_two(raw, at, end)
        elif identifier == RESPONSE_TOPIC:
            changed = change(raw[began + 3 : at])
            put = b"" if changed is None else bytes((RESPONSE_TOPIC,)) + binary(changed)
            return raw[:began] + put + raw[at:]
    return raw


class MqttCodec(PropertyCodec):
    """Decodes ``Message.header`` of messages that came by MQTT."""

    def decode(self, header: bytes) -> Properties:
        """``header`` was checked when it arrived."""
        neutral = Properties()
        if not header:
            return neutral
        prefixed = varint(len(header)) + header
        found = read_properties(prefixed, 0, len(prefixed), IN_PUBLISH)
        content_type = found.texts.get(CONTENT_TYPE)
        if content_type is not None:
            neutral.content_type = content_type.decode()
        neutral.correlation_id = found.texts.get(CORRELATION_DATA)
        response_topic = found.texts.get(RESPONSE_TOPIC)
        if response_topic is not None:
            neutral.reply_to_topic = key_of(response_topic)
        if MESSAGE_EXPIRY in found.numbers:
            neutral.expiration = found.numbers[MESSAGE_EXPIRY] * 1000
        neutral.payload_is_text = found.number(PAYLOAD_FORMAT, 0) == 1
        for name, value in found.pairs:
            neutral.headers.append((name.decode(), value.decode()))
        return neutral

    def with_header(self, header: bytes, name: str, value: str) -> bytes:
        pair = bytes((USER_PROPERTY,)) + binary(name.encode())
        return _without(header, pair) + pair + binary(value.encode())


def _without(header: bytes, begin: bytes) -> bytes:
    """Checked properties without the user properties that begin so."""
    parts: list[bytes] = []
    at = 0
    end = len(header)
    while at < end:
        began = at
        kind = _TYPES[header[at]]
        at += 1
        if kind <= _VARINT:
            _, at = _read_number(kind, header, at, end)
        else:
            at += 2 + read_two(header, at, end)
            if kind == _PAIR:
                at += 2 + read_two(header, at, end)
        if not header.startswith(begin, began):
            parts.append(header[began:at])
    return b"".join(parts)


#: ``Message.encoding`` variant of ``property_block``
_BLOCK: Final = PROTOCOL_MQTT * 16


def property_block(message: Message, metrics: ProtocolMetrics) -> bytes:
    """The MQTT 5 property bytes of ``message`` without length and message expiry interval.

    What MQTT cannot carry is counted in ``metrics.properties_dropped``, once per message.
    """
    is_ours = message.protocol == PROTOCOL_MQTT and message.annotations is None
    if is_ours and not message.header:
        return b""
    block = message.encoding(_BLOCK)
    if block is None:
        if is_ours:
            block = _without_expiry(message.header)
        else:
            block = encode_neutral(message.properties(), metrics)
        message.keep_encoding(_BLOCK, block)
    return block


def _without_expiry(header: bytes) -> bytes:
    """``header``, which was checked when it arrived, less the message expiry interval."""
    at = 0
    end = len(header)
    while at < end:
        identifier = header[at]
        if identifier == MESSAGE_EXPIRY:
            return header[:at] + header[at + 5 :]
        if identifier == PAYLOAD_FORMAT:
            at += 2
        else:
            at += 3 + read_two(header, at + 1, end)
            if identifier == USER_PROPERTY:
                at += 2 + read_two(header, at, end)
    return header


def encode_neutral(neutral: Properties, metrics: ProtocolMetrics) -> bytes:
    """MQTT 5 property bytes of a message that came by another protocol."""
    parts: list[bytes] = []
    dropped = 0
    if neutral.payload_is_text:
        parts.append(bytes((PAYLOAD_FORMAT, 1)))
    if neutral.content_type is not None:
        text = _text_of(neutral.content_type)
        if text is None:
            dropped += 1
        else:
            parts.append(bytes((CONTENT_TYPE,)) + binary(text))
    if neutral.correlation_id is not None:
        if len(neutral.correlation_id) > 65_535:
            dropped += 1
        else:
            parts.append(bytes((CORRELATION_DATA,)) + binary(neutral.correlation_id))
    if neutral.reply_to_topic is not None:
        topic = topic_of(neutral.reply_to_topic)
        if topic is None or len(topic) > 65_535:
            dropped += 1
        else:
            parts.append(bytes((RESPONSE_TOPIC,)) + binary(topic))
    for name, value in neutral.headers:
        name_text = _text_of(name)
        value_text = _text_of(_as_json(value) if name == X_DEATH else value)
        if name_text is None or value_text is None:
            dropped += 1
        else:
            parts.append(bytes((USER_PROPERTY,)) + binary(name_text) + binary(value_text))
    metrics.properties_dropped += dropped
    return b"".join(parts)


def _as_json(value: HeaderValue) -> HeaderValue:
    """A nested value as JSON text, times in ISO 8601; itself when it has no such form."""
    try:
        return json.dumps(
            value,
            default=_json_form,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
    except (TypeError, ValueError, RecursionError):
        return value


def _json_form(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError


def _text_of(value: HeaderValue) -> bytes | None:
    """A header value as MQTT text; None for what has no text form (nested, binary)."""
    if isinstance(value, str):
        text = value
    elif value is None:
        text = ""
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, (int, float, Decimal)):
        text = str(value)
    elif isinstance(value, datetime):
        text = value.isoformat()
    else:
        return None
    if "\x00" in text:
        return None
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return None
    return encoded if len(encoded) <= 65_535 else None
