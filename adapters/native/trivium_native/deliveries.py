"""Messages on their way to native clients: encoded once, whoever reads them."""

from __future__ import annotations

from typing import Final

from trivium.message import PROTOCOL_NATIVE, HeaderValue, Message, Properties
from trivium.metrics import ProtocolMetrics
from trivium_native.entries import DELIVERY, DELIVERY_SIZE, PERSISTENT, RETAIN, encode_entry
from trivium_native.frames import DELIVER, MAX_DEPTH, MAX_FIELDS_BYTES, frame_head
from trivium_native.properties import MAX_HEADERS, encode_properties, has_text_keys

#: key of the entry among the encodings that a message keeps
_VARIANT: Final = PROTOCOL_NATIVE * 16

#: Properties and their headers are levels of a msgpack body too: map, list, pair.
_HEADER_DEPTH: Final = MAX_DEPTH - 3


def entry_of(message: Message, metrics: ProtocolMetrics) -> bytes:
    """The message as an entry (see ``entries``), encoded once for all its native readers."""
    found = message.encoding(_VARIANT)
    if found is None:
        header = message.header
        if message.protocol != PROTOCOL_NATIVE:
            header = foreign_properties(message.properties(), metrics)
        flags = message.mode
        if message.persistent:
            flags |= PERSISTENT
        if message.retain:
            flags |= RETAIN
        address = message.address
        found = encode_entry(
            flags, message.priority, address.exchange.encode(), address.key, header, message.payload
        )
        message.keep_encoding(_VARIANT, found)
    return found


def foreign_properties(properties: Properties, metrics: ProtocolMetrics) -> bytes:
    """Another protocol's properties in native form.

    Headers that the form has no room for (nested too deeply, not text, too many or too large
    together) are dropped and counted.
    """
    headers = properties.headers
    fitting: list[tuple[str, HeaderValue]] = []
    for pair in headers[:MAX_HEADERS]:
        if _fits(pair[1]):
            fitting.append(pair)
    if len(fitting) == len(headers):
        encoded = _try_encode(properties)
        if encoded is not None:
            return encoded
        fitting = []
    metrics.properties_dropped += len(headers) - len(fitting)
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
        fitting,
    )
    return _try_encode(reduced) or b""


def _fits(value: HeaderValue) -> bool:
    return _depth_fits(value, _HEADER_DEPTH) and has_text_keys(value)


def _depth_fits(value: HeaderValue, depth: int) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(_depth_fits(item, depth - 1) for item in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_depth_fits(item, depth - 1) for item in value)
    return True


def _try_encode(properties: Properties) -> bytes | None:
    try:
        encoded = encode_properties(properties)
    except (ValueError, TypeError, OverflowError):
        return None
    return encoded if len(encoded) <= MAX_FIELDS_BYTES else None


def delivery_head(
    subscription: int,
    flags: int,
    message: Message,
    returns: int,
    tag: int,
    now_ms: int,
    entry_size: int,
) -> bytes:
    """What stands before the entry: the frame's head and the delivery's own fields.

    The lifetime is the time remaining, 0 for no limit; a message on the verge has 1 left.
    """
    remaining = 0 if message.expires == 0 else max(message.expires - now_ms, 1)
    return frame_head(DELIVER, 0, DELIVERY_SIZE + entry_size) + DELIVERY.pack(
        subscription,
        flags,
        message.protocol,
        min(returns, 0xFFFF),
        tag,
        message.timestamp,
        remaining,
    )
