"""Messages of those who publish by no protocol: their properties are stored as they are.

``Message.header`` is a map, by the names of the properties, of those that there are. Headers are a
list of pairs.
"""

from __future__ import annotations

from typing import Final

from trivium.common.values import pack, unpack
from trivium.messages.message import Properties, PropertyCodec

#: Properties that are stored under their own names.
_NAMES: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "reply_to_topic",
    "expiration",
    "message_id",
    "timestamp",
    "type_",
    "user_id",
    "app_id",
    "payload_is_text",
    "key",
    "delay",
    "headers",
)


class NeutralCodec(PropertyCodec):
    """Reads what ``encode_neutral`` wrote."""

    identifies_messages = True

    def decode(self, header: bytes) -> Properties:
        found = Properties()
        if header:
            for name, value in unpack(header).items():
                if name in _NAMES:
                    setattr(found, name, value)
            found.headers = [(name, value) for name, value in found.headers]
        return found

    def with_header(self, header: bytes, name: str, value: str) -> bytes:
        found = self.decode(header)
        found.headers = [pair for pair in found.headers if pair[0] != name]
        found.headers.append((name, value))
        return encode_neutral(found)


def encode_neutral(properties: Properties) -> bytes:
    """The property bytes of a message, empty where it has no properties."""
    values = {name: getattr(properties, name) for name in _NAMES}
    found = {name: value for name, value in values.items() if value}
    return pack(found) if found else b""
