"""Message properties on the wire: a msgpack map with small integers as keys, nothing when empty.

The same bytes are ``Message.header`` of a message that came by this protocol. Docs:
docs/native-protocol.md, "Properties".
"""

from __future__ import annotations

from typing import Any, Final

from trivium.messages.delivery import MAX_DELAY
from trivium.messages.message import HeaderValue, Properties, PropertyCodec
from trivium_native.wire.errors import InvalidArgument, Malformed
from trivium_native.wire.frames import pack, unpack

CONTENT_TYPE: Final = 1
CONTENT_ENCODING: Final = 2
CORRELATION_ID: Final = 3
REPLY_TO: Final = 4
REPLY_TO_TOPIC: Final = 5
EXPIRATION: Final = 6
MESSAGE_ID: Final = 7
TIMESTAMP: Final = 8
TYPE: Final = 9
USER_ID: Final = 10
APP_ID: Final = 11
PAYLOAD_IS_TEXT: Final = 12
KEY: Final = 13
HEADERS: Final = 14
DELAY: Final = 15

#: Most headers of a message, and the longest partitioning key.
MAX_HEADERS: Final = 1024
MAX_KEY_BYTES: Final = 65_535
#: Longest lifetime in milliseconds: added to a time of arrival it still is a 64-bit integer.
MAX_EXPIRATION: Final = 1 << 53

_TEXTS: Final = frozenset(
    (CONTENT_TYPE, CONTENT_ENCODING, REPLY_TO, MESSAGE_ID, TYPE, USER_ID, APP_ID)
)
_BYTES: Final = frozenset((CORRELATION_ID, REPLY_TO_TOPIC, KEY))


def encode_properties(properties: Properties) -> bytes:
    """Neutral properties as bytes; empty when there are none."""
    fields: dict[int, object] = {}
    if properties.content_type is not None:
        fields[CONTENT_TYPE] = properties.content_type
    if properties.content_encoding is not None:
        fields[CONTENT_ENCODING] = properties.content_encoding
    if properties.correlation_id is not None:
        fields[CORRELATION_ID] = properties.correlation_id
    if properties.reply_to is not None:
        fields[REPLY_TO] = properties.reply_to
    if properties.reply_to_topic is not None:
        fields[REPLY_TO_TOPIC] = properties.reply_to_topic
    if properties.expiration is not None:
        fields[EXPIRATION] = properties.expiration
    if properties.message_id is not None:
        fields[MESSAGE_ID] = properties.message_id
    if properties.timestamp is not None:
        fields[TIMESTAMP] = properties.timestamp
    if properties.type_ is not None:
        fields[TYPE] = properties.type_
    if properties.user_id is not None:
        fields[USER_ID] = properties.user_id
    if properties.app_id is not None:
        fields[APP_ID] = properties.app_id
    if properties.payload_is_text:
        fields[PAYLOAD_IS_TEXT] = True
    if properties.key is not None:
        fields[KEY] = properties.key
    if properties.delay is not None:
        fields[DELAY] = properties.delay
    if properties.headers:
        fields[HEADERS] = [[name, value] for name, value in properties.headers]
    return pack(fields) if fields else b""


def decode_properties(header: bytes) -> Properties:
    """Neutral properties from bytes. Raises InvalidArgument when they break the rules."""
    properties = Properties()
    if not header:
        return properties
    try:
        fields: Any = unpack(header)
    except Malformed as error:
        raise InvalidArgument(f"properties: {error.text}") from None
    if not isinstance(fields, dict):
        raise InvalidArgument("properties are not a map")
    for field, value in fields.items():
        if not _set(properties, field, value):
            raise InvalidArgument(f"property {field!r} is unknown or its value is not allowed")
    return properties


def _set(properties: Properties, field: object, value: object) -> bool:
    """Set one field; whether that is allowed."""
    if not isinstance(field, int) or isinstance(field, bool):
        return False
    if field in _TEXTS:
        return isinstance(value, str) and _set_text(properties, field, value)
    if field in _BYTES:
        return isinstance(value, bytes) and _set_bytes(properties, field, value)
    if field == PAYLOAD_IS_TEXT:
        properties.payload_is_text = value is True
        return isinstance(value, bool)
    if field == HEADERS:
        return _set_headers(properties, value)
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    if field == EXPIRATION:
        properties.expiration = value
        return 0 <= value <= MAX_EXPIRATION
    if field == DELAY:
        properties.delay = value
        return 0 <= value <= MAX_DELAY
    if field == TIMESTAMP:
        properties.timestamp = value
        return 0 <= value < 1 << 63
    return False


def _set_text(properties: Properties, field: int, value: str) -> bool:
    if field == CONTENT_TYPE:
        properties.content_type = value
    elif field == CONTENT_ENCODING:
        properties.content_encoding = value
    elif field == REPLY_TO:
        properties.reply_to = value
    elif field == MESSAGE_ID:
        properties.message_id = value
    elif field == TYPE:
        properties.type_ = value
    elif field == USER_ID:
        properties.user_id = value
    else:
        properties.app_id = value
    return True


def _set_bytes(properties: Properties, field: int, value: bytes) -> bool:
    if field == KEY:
        properties.key = value
        return len(value) <= MAX_KEY_BYTES
    if field == CORRELATION_ID:
        properties.correlation_id = value
    else:
        properties.reply_to_topic = value
    return True


def _set_headers(properties: Properties, value: object) -> bool:
    if not isinstance(value, list) or len(value) > MAX_HEADERS:
        return False
    headers: list[tuple[str, HeaderValue]] = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        name = pair[0]
        if not isinstance(name, str) or not has_text_keys(pair[1]):
            return False
        headers.append((name, pair[1]))
    properties.headers = headers
    return True


def has_text_keys(value: object) -> bool:
    """Whether all maps within a value have text as keys. Its nesting is limited already."""
    if isinstance(value, list):
        for item in value:
            if not has_text_keys(item):
                return False
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str) or not has_text_keys(item):
                return False
    return True


class NativeCodec(PropertyCodec):
    """Decodes the header of messages that came by this protocol."""

    def __init__(self) -> None:
        self.identifies_messages = True

    def decode(self, header: bytes) -> Properties:
        return decode_properties(header)
