"""Values of JSON: what a body says, and what an answer can say."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from trivium.common.values import HeaderValue
from trivium.management.endpoints import BadRequest

if TYPE_CHECKING:
    from trivium.messages.message import Properties

#: Nesting of tables and lists in arguments that are taken.
MAX_DEPTH: Final = 16

#: Properties of messages that are texts, and what they are called in ``Properties``.
TEXTS: Final = {
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "reply_to": "reply_to",
    "message_id": "message_id",
    "type": "type_",
    "user_id": "user_id",
    "app_id": "app_id",
}

_encoder: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(value: object) -> bytes:
    """The JSON text of what consists of JSON's own types, in ASCII."""
    return _encoder.encode(value).encode()


def texts_in(properties: Properties) -> dict[str, object]:
    """Those of a message that are set."""
    found = {name: getattr(properties, attribute) for name, attribute in TEXTS.items()}
    return {name: text for name, text in found.items() if text is not None}


def shown(value: HeaderValue) -> object:
    """A header or argument as JSON can show it: a time in seconds, bytes as text or, where they
    are none, in base64."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {str(name): shown(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return str(value)


def shown_table(table: Mapping[str, HeaderValue]) -> dict[str, object]:
    """``shown`` of each value."""
    return {name: shown(value) for name, value in table.items()} if table else {}


def text_of(body: Mapping[str, object], key: str, default: str | None = None) -> str:
    """A text; without a default it must be there. Raises BadRequest."""
    value = body.get(key, default)
    if not isinstance(value, str):
        raise BadRequest(f"{key!r} is a text" if key in body else f"{key!r} is missing")
    return checked(value, key)


def checked(value: str, key: str) -> str:
    """A text that is Unicode. Raises BadRequest."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{key!r} is no Unicode") from None
    return value


def flag_of(body: Mapping[str, object], key: str, default: bool = False) -> bool:
    """True or false, also as a text, as some clients send it. Raises BadRequest."""
    value = body.get(key, default)
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise BadRequest(f"{key!r} is true or false")
    return value


def number_of(body: Mapping[str, object], key: str, default: int | None = None) -> int:
    """A whole number, also as a text. Raises BadRequest."""
    value = body.get(key, default)
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit():
        value = int(value[:19])
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        raise BadRequest(f"{key!r} is a whole number")
    return value


def table_of(body: Mapping[str, object], key: str) -> dict[str, HeaderValue]:
    """A table of arguments. Raises BadRequest."""
    value = body.get(key)
    if value is None or value == []:
        # As the encoder of some language writes an empty table.
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"{key!r} is an object")
    check_value(value, key, MAX_DEPTH)
    return dict(value)


def check_value(value: object, key: str, depth: int) -> None:
    """Raise BadRequest unless it can be stored: no number beyond 64 bits, no half of a pair of
    surrogates, and not too deep."""
    if depth == 0:
        raise BadRequest(f"{key!r} is nested too deeply")
    if isinstance(value, str):
        checked(value, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            checked(name, key)
            check_value(item, key, depth - 1)
    elif isinstance(value, list):
        for item in value:
            check_value(item, key, depth - 1)
    elif isinstance(value, int) and abs(value) >= 1 << 63:
        raise BadRequest(f"{key!r} has a number beyond 64 bits")
