"""Message properties: the content header's flags and list, and their neutral form.

A message keeps the property bytes as its publisher sent them, and they leave for AMQP consumers
unchanged. ``BasicPropertyCodec`` makes the neutral form for readers of other protocols,
``encode_properties`` makes property bytes for messages that came by other protocols.
"""

from __future__ import annotations

from typing import Final

from trivium.messages.message import HeaderValue, Message, Properties, PropertyCodec
from trivium.observability.metrics import ProtocolMetrics
from trivium_amqp.codec.frames import U16, U32, U64
from trivium_amqp.codec.tables import decode_table, encode_table, malformed, with_fields

#: Property flags, highest first: the order of the list (4.2.6.1 and class basic).
CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
EXPIRATION: Final = 0x0100
MESSAGE_ID: Final = 0x0080
TIMESTAMP: Final = 0x0040
TYPE: Final = 0x0020
USER_ID: Final = 0x0010
APP_ID: Final = 0x0008
CLUSTER_ID: Final = 0x0004
_UNKNOWN: Final = 0x0003

PERSISTENT: Final = 2
_MAX_SHORT: Final = 255

#: Headers with a meaning between protocols; they are not handed on as user properties.
RETAIN_HEADER: Final = "x-retain"
REPLY_TO_TOPIC_HEADER: Final = "x-reply-to-topic"
CORRELATION_ID_HEADER: Final = "x-correlation-id"
#: the full routing key where it is longer than a short string
ROUTING_KEY_HEADER: Final = "x-routing-key"

_INTERNAL: Final = frozenset((RETAIN_HEADER, REPLY_TO_TOPIC_HEADER, CORRELATION_ID_HEADER))


class BasicProperties:
    """The properties of class basic as they stand in a content header. Text is left as bytes."""

    def __init__(self) -> None:
        self.content_type: bytes | None = None
        self.content_encoding: bytes | None = None
        self.headers: dict[str, HeaderValue] = {}
        #: where in the property bytes the headers are, or would be, with their length
        self.headers_at = 0
        self.headers_end = 0
        self.delivery_mode = 1
        self.priority = 0
        self.correlation_id: bytes | None = None
        self.reply_to: bytes | None = None
        #: where in the property bytes the value of ``reply_to`` begins, at its length
        self.reply_to_at = 0
        self.expiration: bytes | None = None
        #: where in the property bytes the expiration is
        self.expiration_at = 0
        self.expiration_end = 0
        self.message_id: bytes | None = None
        self.timestamp: int | None = None
        self.type_: bytes | None = None
        self.user_id: bytes | None = None
        self.app_id: bytes | None = None


def decode_properties(data: bytes) -> BasicProperties:
    """Read property flags and list. Raises ConnectionException (502) when they are malformed."""
    found = BasicProperties()
    size = len(data)
    if size < 2:
        raise malformed("content header without property flags")
    flags: int = data[0] << 8 | data[1]
    if flags & _UNKNOWN:
        raise malformed("content header with unknown property flags")
    at = 2
    flag = CONTENT_TYPE
    while flag >= CLUSTER_ID:
        if flag == HEADERS:
            found.headers_at = found.headers_end = at
        if flags & flag == 0:
            flag >>= 1
            continue
        if flag == HEADERS:
            if at + 4 > size:
                raise malformed("content header ends too early")
            length: int = U32.unpack_from(data, at)[0]
            end = at + 4 + length
            if end > size:
                raise malformed("content header ends too early")
            found.headers = decode_table(data, at + 4, end)
            found.headers_end = end
        elif flag in (DELIVERY_MODE, PRIORITY):
            end = at + 1
            if end > size:
                raise malformed("content header ends too early")
            if flag == PRIORITY:
                found.priority = data[at]
            else:
                found.delivery_mode = data[at]
        elif flag == TIMESTAMP:
            end = at + 8
            if end > size:
                raise malformed("content header ends too early")
            found.timestamp = U64.unpack_from(data, at)[0]
        else:
            if at >= size:
                raise malformed("content header ends too early")
            end = at + 1 + data[at]
            if end > size:
                raise malformed("content header ends too early")
            _set_text(found, flag, data[at + 1 : end])
            if flag == REPLY_TO:
                found.reply_to_at = at
            elif flag == EXPIRATION:
                found.expiration_at = at
                found.expiration_end = end
        at = end
        flag >>= 1
    if at != size:
        raise malformed("content header is longer than its properties")
    return found


def _set_text(found: BasicProperties, flag: int, text: bytes) -> None:
    if flag == CONTENT_TYPE:
        found.content_type = text
    elif flag == CONTENT_ENCODING:
        found.content_encoding = text
    elif flag == CORRELATION_ID:
        found.correlation_id = text
    elif flag == REPLY_TO:
        found.reply_to = text
    elif flag == EXPIRATION:
        found.expiration = text
    elif flag == MESSAGE_ID:
        found.message_id = text
    elif flag == TYPE:
        found.type_ = text
    elif flag == USER_ID:
        found.user_id = text
    elif flag == APP_ID:
        found.app_id = text


def with_headers(header: bytes, headers: dict[str, HeaderValue], keeps_expiration: bool) -> bytes:
    """Well-formed property bytes with the broker's own headers in front of the publisher's."""
    basic = decode_properties(header)
    flags = header[0] << 8 | header[1] | HEADERS
    at, end = basic.expiration_at, basic.expiration_end
    if keeps_expiration or at == 0:
        rest = header[basic.headers_end :]
    else:
        flags &= ~EXPIRATION
        rest = header[basic.headers_end : at] + header[end:]
    table_at = min(basic.headers_at + 4, basic.headers_end)
    return b"".join(
        (
            U16.pack(flags),
            header[2 : basic.headers_at],
            with_fields(header, table_at, basic.headers_end, headers),
            rest,
        )
    )


def first_value_at(header: bytes, name: str) -> int:
    """Where the value of the first header, which is called ``name``, stands behind its type."""
    return decode_properties(header).headers_at + 4 + 1 + len(name.encode()) + 1


def without_header(header: bytes, name: str) -> bytes:
    """Well-formed property bytes without the header called ``name``."""
    basic = decode_properties(header)
    at, end = basic.headers_at, basic.headers_end
    if at == end:
        return header
    return header[:at] + with_fields(header, at + 4, end, {name: None}) + header[end:]


def parse_expiration(text: bytes) -> int | None:
    """Milliseconds of the ``expiration`` property; None when it is not a number of them."""
    if not text or len(text) > 18 or not text.isdigit():
        return None
    return int(text)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _bytes(value: HeaderValue) -> bytes | None:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else None


class BasicPropertyCodec(PropertyCodec):
    """The neutral form of AMQP messages. Their property bytes were validated on the way in."""

    def __init__(self) -> None:
        # Those of BCC are gone when a message leaves its publisher.
        self.copies_header = "CC"

    def decode(self, header: bytes) -> Properties:
        basic = decode_properties(header)
        expiration = None if basic.expiration is None else parse_expiration(basic.expiration)
        correlation_id = basic.correlation_id
        headers = basic.headers
        if correlation_id is None and CORRELATION_ID_HEADER in headers:
            correlation_id = _bytes(headers[CORRELATION_ID_HEADER])
        return Properties(
            content_type=_text(basic.content_type),
            content_encoding=_text(basic.content_encoding),
            correlation_id=correlation_id,
            reply_to=_text(basic.reply_to),
            reply_to_topic=_bytes(headers.get(REPLY_TO_TOPIC_HEADER)),
            expiration=expiration,
            message_id=_text(basic.message_id),
            timestamp=basic.timestamp,
            type_=_text(basic.type_),
            user_id=_text(basic.user_id),
            app_id=_text(basic.app_id),
            headers=[(name, value) for name, value in headers.items() if name not in _INTERNAL],
        )

    def with_header(self, header: bytes, name: str, value: str) -> bytes:
        return with_headers(header, {name: value}, True)


def encode_properties(
    message: Message, now_ms: int, metrics: ProtocolMetrics, max_size: int
) -> bytes:
    """Property bytes for a message of another protocol.

    They are kept with the message, unless it expires: then they say the time that remains. Where
    they would be larger than ``max_size`` bytes the headers are left out, since a content header
    must fit into one frame.
    """
    found = _encode(message, now_ms, metrics, True)
    if len(found) > max_size:
        metrics.properties_dropped += 1
        found = _encode(message, now_ms, metrics, False)
        if len(found) > max_size:
            found = U16.pack(DELIVERY_MODE) + (b"\x02" if message.persistent else b"\x01")
    return found


def _encode(message: Message, now_ms: int, metrics: ProtocolMetrics, with_headers: bool) -> bytes:
    properties = message.properties()
    headers: dict[str, HeaderValue] = {}
    if with_headers:
        for name, value in properties.headers:
            # A table has each name once (4.2.5.5); of several the first is kept, the one that a
            # headers exchange looks at.
            if name in headers or len(name.encode()) > _MAX_SHORT:
                metrics.properties_dropped += 1
            else:
                headers[name] = value
        if properties.reply_to_topic is not None:
            headers[REPLY_TO_TOPIC_HEADER] = _longstr(properties.reply_to_topic)
        if message.retain:
            headers[RETAIN_HEADER] = True
        if len(message.address.key) > _MAX_SHORT:
            headers[ROUTING_KEY_HEADER] = _longstr(message.address.key)
    correlation_id = properties.correlation_id
    if correlation_id is not None and not _fits_text(correlation_id):
        if with_headers:
            headers[CORRELATION_ID_HEADER] = correlation_id
        correlation_id = None
    flags = DELIVERY_MODE
    parts: list[bytes] = []
    flags |= _add(parts, CONTENT_TYPE, properties.content_type, metrics)
    flags |= _add(parts, CONTENT_ENCODING, properties.content_encoding, metrics)
    if headers:
        flags |= HEADERS
        parts.append(encode_table(headers.items()))
    parts.append(b"\x02" if message.persistent else b"\x01")
    if message.priority:
        flags |= PRIORITY
        parts.append(bytes((min(message.priority, 255),)))
    if correlation_id is not None:
        flags |= CORRELATION_ID
        parts.append(bytes((len(correlation_id),)) + correlation_id)
    flags |= _add(parts, REPLY_TO, properties.reply_to, metrics)
    if message.expires:
        remaining = b"%d" % max(message.expires - now_ms, 0)
        flags |= EXPIRATION
        parts.append(bytes((len(remaining),)) + remaining)
    flags |= _add(parts, MESSAGE_ID, properties.message_id, metrics)
    timestamp = properties.timestamp
    if timestamp is not None and 0 <= timestamp < 1 << 64:
        flags |= TIMESTAMP
        parts.append(U64.pack(timestamp))
    flags |= _add(parts, TYPE, properties.type_, metrics)
    flags |= _add(parts, USER_ID, properties.user_id, metrics)
    flags |= _add(parts, APP_ID, properties.app_id, metrics)
    return U16.pack(flags) + b"".join(parts)


def _add(parts: list[bytes], flag: int, text: str | None, metrics: ProtocolMetrics) -> int:
    if text is None:
        return 0
    data = text.encode("utf-8", "replace")
    if len(data) > _MAX_SHORT:
        metrics.properties_dropped += 1
        return 0
    parts.append(bytes((len(data),)) + data)
    return flag


def _fits_text(data: bytes) -> bool:
    if len(data) > _MAX_SHORT:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _longstr(data: bytes) -> HeaderValue:
    """Text where it is text, so that clients decode it as such."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
