"""Message properties on the wire: a msgpack map with small integers as keys, nothing when empty.

The same bytes are ``Message.header`` of a message that came by this protocol. Docs:
docs/native-protocol.md, "Properties".
"""

from __future__ import annotations

from typing import Any, Final, cast

from librt.strings import read_i32_le
from mypy_extensions import i64

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
PARTITION: Final = 16

#: Most headers of a message, and the longest partitioning key.
MAX_HEADERS: Final = 1024
MAX_KEY_BYTES: Final = 65_535
#: Longest lifetime in milliseconds: added to a time of arrival it still is a 64-bit integer.
MAX_EXPIRATION: Final = 1 << 53
MAX_PARTITION: Final = 65_535

_TEXT: Final = "text"
_BYTES: Final = "bytes"
_BOOLEAN: Final = "boolean"
_NUMBER: Final = "number"

#: The properties but for the headers: number, attribute of ``Properties``, and what it holds.
_FIELDS: Final = (
    (CONTENT_TYPE, "content_type", _TEXT),
    (CONTENT_ENCODING, "content_encoding", _TEXT),
    (CORRELATION_ID, "correlation_id", _BYTES),
    (REPLY_TO, "reply_to", _TEXT),
    (REPLY_TO_TOPIC, "reply_to_topic", _BYTES),
    (EXPIRATION, "expiration", _NUMBER),
    (MESSAGE_ID, "message_id", _TEXT),
    (TIMESTAMP, "timestamp", _NUMBER),
    (TYPE, "type_", _TEXT),
    (USER_ID, "user_id", _TEXT),
    (APP_ID, "app_id", _TEXT),
    (PAYLOAD_IS_TEXT, "payload_is_text", _BOOLEAN),
    (KEY, "key", _BYTES),
    (DELAY, "delay", _NUMBER),
    (PARTITION, "partition", _NUMBER),
)
_BY_NUMBER: Final[dict[int, tuple[str, str]]] = {
    number: (name, kind) for number, name, kind in _FIELDS
}
#: The largest numbers, and the most bytes.
_MOST: Final[dict[int, int]] = {
    EXPIRATION: MAX_EXPIRATION,
    DELAY: MAX_DELAY,
    TIMESTAMP: (1 << 63) - 1,
    KEY: MAX_KEY_BYTES,
    PARTITION: MAX_PARTITION,
}


def encode_properties(properties: Properties, partition: int | None = None) -> bytes:
    """Neutral properties as bytes, with a partition that is named beside them; empty for none."""
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
    key = properties.key
    if key is not None:
        fields[KEY] = key
    if properties.delay is not None:
        fields[DELAY] = properties.delay
    if partition is None:
        partition = properties.partition
    if partition is not None:
        fields[PARTITION] = partition
    if properties.headers:
        fields[HEADERS] = [[name, value] for name, value in properties.headers]
    if key is not None and len(fields) == 1:
        return encode_key(key)
    return pack(fields) if fields else b""


#: The first three bytes of properties with a key alone (a map of one field, its number, what its
#: value is), as a little-endian number: with a size of 8 bits behind them, and of 16.
_KEY_ALONE: Final = 0xC40D81
_LONG_KEY_ALONE: Final = 0xC50D81


def encode_key(key: bytes) -> bytes:
    """Properties that hold a key alone, as ``pack`` makes them."""
    if len(key) > 0xFF:
        return pack({KEY: key})
    return b"".join((b"\x81\x0d\xc4", len(key).to_bytes(1, "little"), key))


def before_key(data: bytes, at: i64, size: i64) -> i64:
    """How much stands before the key in properties ``data[at:at + size]`` that hold nothing else,
    in one of its short forms; else 0."""
    if size < 4:
        return 0
    head: i64 = i64(read_i32_le(data, at)) & 0xFFFF_FFFF
    kind: i64 = head & 0xFFFFFF
    if kind == _KEY_ALONE:
        return 4 if head >> 24 == size - 4 else 0
    if kind == _LONG_KEY_ALONE and size > 4:
        return 5 if (head >> 24 << 8 | data[at + 4]) == size - 5 else 0
    return 0


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


def _set(properties: Properties, number: object, value: object) -> bool:
    """Set one property; False where that is not allowed."""
    if not isinstance(number, int) or isinstance(number, bool):
        return False
    if number == HEADERS:
        return _set_headers(properties, value)
    field = _BY_NUMBER.get(number)
    if field is None:
        return False
    name, kind = field
    if kind == _TEXT:
        is_allowed = isinstance(value, str)
    elif kind == _BYTES:
        is_allowed = isinstance(value, bytes) and len(value) <= _MOST.get(number, len(value))
    elif kind == _BOOLEAN:
        is_allowed = isinstance(value, bool)
    else:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_allowed = is_number and 0 <= cast("int", value) <= _MOST[number]
    if is_allowed:
        setattr(properties, name, value)
    return is_allowed


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

    def key_at(self, header: bytes) -> i64:
        return before_key(header, 0, len(header))

    def with_header(self, header: bytes, name: str, value: str) -> bytes:
        found = decode_properties(header)
        found.headers = [pair for pair in found.headers if pair[0] != name]
        found.headers.append((name, value))
        return encode_properties(found)
