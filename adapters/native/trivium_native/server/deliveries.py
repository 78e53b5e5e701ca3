"""Messages on their way to native clients: encoded once, whoever reads them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Final

from trivium.messages.message import PROTOCOL_NATIVE, HeaderValue, Message, Properties
from trivium.observability.metrics import ProtocolMetrics
from trivium_native.wire.frames import DELIVER, MAX_DEPTH, MAX_FIELDS_BYTES
from trivium_native.wire.messages import (
    DELIVER_FRAME,
    DELIVER_REST,
    PERSISTENT,
    RETAIN,
    encode_message,
)
from trivium_native.wire.properties import MAX_HEADERS, encode_properties

#: key of the framed message among the encodings that a message keeps
_VARIANT: Final = PROTOCOL_NATIVE * 16

#: Properties and their headers are levels of a msgpack body too: map, list, pair.
_HEADER_DEPTH: Final = MAX_DEPTH - 3


def framed_message(message: Message, metrics: ProtocolMetrics) -> bytes:
    """The message as it is framed (see ``messages``), encoded once for all its native readers."""
    found = message.encoding(_VARIANT)
    if found is None:
        header = message.header
        if message.annotations is not None or (header and message.protocol != PROTOCOL_NATIVE):
            header = foreign_properties(message.properties(), metrics)
        flags = message.mode
        if message.persistent:
            flags |= PERSISTENT
        if message.retain:
            flags |= RETAIN
        address = message.address
        found = encode_message(
            flags, message.priority, address.exchange.encode(), address.key, header, message.payload
        )
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


def delivery_head(
    subscription: int,
    flags: int,
    message: Message,
    requeues: int,
    tag: int,
    now_ms: int,
    message_size: int,
) -> bytes:
    """What stands before the message: the frame's head and the delivery's own fields.

    The lifetime is the time remaining, 0 for no limit; a message on the verge has 1 left.
    """
    remaining = 0 if message.expires == 0 else max(message.expires - now_ms, 1)
    return DELIVER_FRAME.pack(
        DELIVER_REST + message_size,
        DELIVER,
        0,
        subscription,
        flags,
        message.protocol,
        min(requeues, 0xFFFF),
        tag,
        message.timestamp,
        remaining,
    )


class LiveFrames:
    """DELIVER frames of live subscriptions: the same bytes for all that have the same number.

    Clients number their subscriptions from 1, so most subscribers of a message share one frame.
    """

    def __init__(self, metrics: ProtocolMetrics) -> None:
        self._metrics = metrics
        self._message: Message | None = None
        self._number = 0
        self._now = 0
        self._frame = b""

    def frame(self, message: Message, number: int, now_ms: int) -> bytes:
        """The frame that delivers ``message`` to a live subscription."""
        if message is self._message and number == self._number and now_ms == self._now:
            return self._frame
        framed = framed_message(message, self._metrics)
        frame = delivery_head(number, 0, message, 0, 0, now_ms, len(framed)) + framed
        self._message = message
        self._number = number
        self._now = now_ms
        self._frame = frame
        return frame

    def forget(self) -> None:
        """Hold on to no message that nobody may want any more."""
        self._message = None
        self._frame = b""
