"""Messages on their way to native clients."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, write_i64_le
from mypy_extensions import i64

from trivium.messages.large import Content
from trivium.messages.message import PROTOCOL_NATIVE, HeaderValue, Message, Properties
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import LARGE_OUTPUT
from trivium_native.wire.frames import DELIVER, HEAD_SIZE, MAX_DEPTH, MAX_FIELDS_BYTES, write_head
from trivium_native.wire.messages import (
    DELIVERY_SIZE,
    MAX_NAME_BYTES,
    MESSAGE_HEAD_SIZE,
    PERSISTENT,
    RETAIN,
    write_message_head,
)
from trivium_native.wire.properties import MAX_HEADERS, encode_properties

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: key of the properties among the encodings that a message keeps
_VARIANT: Final = PROTOCOL_NATIVE * 16

#: Properties and their headers are levels of a msgpack body too: map, list, pair.
_HEADER_DEPTH: Final = MAX_DEPTH - 3


def properties_of(message: Message, metrics: ProtocolMetrics) -> bytes:
    """The properties of a message in native form, made once for all its native readers."""
    header = message.header
    if message.annotations is None and (message.protocol == PROTOCOL_NATIVE or not header):
        return header
    found = message.encoding(_VARIANT)
    if found is None:
        found = foreign_properties(message.properties(), metrics)
        message.keep_encoding(_VARIANT, found)
    return found


def foreign_properties(properties: Properties, metrics: ProtocolMetrics) -> bytes:
    """Properties that came otherwise in native form.

    Times become text in ISO 8601. Headers that the form has no room for (nested too deeply, too
    many, or too large together) are dropped and counted.
    """
    fitting: list[tuple[str, HeaderValue]] = []
    for name, value in properties.headers[:MAX_HEADERS]:
        if _fits(value, _HEADER_DEPTH):
            fitting.append((name, packable(value)))
    encoded = _try_encode(properties, fitting)
    if encoded is None:
        fitting = []
        encoded = _try_encode(properties, fitting)
    metrics.properties_dropped += len(properties.headers) - len(fitting)
    return encoded or b""


def _fits(value: HeaderValue, depth: int) -> bool:
    if isinstance(value, dict):
        if depth == 0:
            return False
        for key, item in value.items():
            if not isinstance(key, str) or not _fits(item, depth - 1):
                return False
    elif isinstance(value, list):
        if depth == 0:
            return False
        for item in value:
            if not _fits(item, depth - 1):
                return False
    return True


def packable(value: HeaderValue) -> HeaderValue:
    """A value as the protocol can carry it: it has neither times nor decimal numbers."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: packable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [packable(item) for item in value]
    return value


def _try_encode(properties: Properties, headers: list[tuple[str, HeaderValue]]) -> bytes | None:
    reduced = Properties(
        properties.content_type,
        properties.content_encoding,
        properties.correlation_id,
        properties.reply_to,
        properties.reply_to_topic,
        properties.expiration,
        properties.message_id,
        properties.timestamp,
        properties.type_,
        properties.user_id,
        properties.app_id,
        properties.payload_is_text,
        properties.key,
        None,
        headers,
    )
    try:
        encoded = encode_properties(reduced)
    except (ValueError, TypeError, OverflowError):
        return None
    return encoded if len(encoded) <= MAX_FIELDS_BYTES else None


def write_delivery(
    writer: BytesWriter,
    metrics: ProtocolMetrics,
    subscription: int,
    flags: i64,
    message: Message,
    requeues: i64,
    tag: i64,
    now_ms: int,
) -> int:
    """Write a DELIVER frame up to the payload, which follows; bytes of what was written.

    The lifetime is the time remaining, 0 for no limit; a message on the verge has 1 left.
    """
    properties = properties_of(message, metrics)
    address = message.address
    names = address.encoded()
    payload_size: i64 = message.size
    key_size: i64 = len(address.key)
    exchange_size: i64 = len(names) - key_size
    if exchange_size > MAX_NAME_BYTES or key_size > MAX_NAME_BYTES:
        raise ValueError("exchange or routing key is longer than 65535 bytes")
    before_payload: i64 = DELIVERY_SIZE + MESSAGE_HEAD_SIZE + len(names) + len(properties)
    write_head(writer, DELIVER, 0, before_payload + payload_size)
    # Subscription, flags, source protocol and requeues: see ``messages.DELIVERY``.
    word: i64 = flags | message.protocol << 8 | min(requeues, 0xFFFF) << 16
    if word >> 31:
        # The highest bit is that of the sign.
        word -= 0x1_0000_0000
    write_i64_le(writer, subscription | word << 32)
    write_i64_le(writer, tag)
    write_i64_le(writer, message.timestamp)
    expires = message.expires
    write_i64_le(writer, 0 if expires == 0 else max(expires - now_ms, 1))
    flags = message.mode
    if message.persistent:
        flags |= PERSISTENT
    if message.retain:
        flags |= RETAIN
    write_message_head(
        writer, flags, message.priority, exchange_size, key_size, len(properties), payload_size
    )
    writer.write(names)
    writer.write(properties)
    return HEAD_SIZE + before_payload


class LiveFrames:
    """DELIVER frames of live subscriptions: the same bytes for all that have the same number.

    Clients number their subscriptions from 1, so most subscribers of a message share one frame.
    """

    def __init__(self, metrics: ProtocolMetrics) -> None:
        self._metrics = metrics
        self._message: Message | None = None
        self._number = 0
        self._now = 0
        # The frame, and its payload where that is not copied.
        self._frame = b""
        self._content: Content = b""

    def send(self, connection: NativeConnection, message: Message, number: int) -> None:
        """Deliver ``message`` to a live subscription."""
        now_ms = connection.broker.now_ms
        if message is not self._message or number != self._number or now_ms != self._now:
            writer = BytesWriter()
            write_delivery(writer, self._metrics, number, 0, message, 0, 0, now_ms)
            content = message.content
            if isinstance(content, bytes) and len(content) < LARGE_OUTPUT:
                writer.write(content)
                content = b""
            self._content = content
            self._frame = writer.getvalue()
            self._message = message
            self._number = number
            self._now = now_ms
        connection.send(self._frame)
        connection.send_content(self._content)

    def forget(self) -> None:
        """Hold on to no message that nobody may want any more."""
        self._message = None
        self._frame = b""
        self._content = b""
