"""Values of JSON: what a body says, and what an answer can say."""

from __future__ import annotations

import base64
import codecs
import json
import math
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final, cast

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

#: Bytes of a payload that are written at once, in a moment; whole groups of base64 (192 KiB).
PIECE_BYTES: Final = 192 * 1024


class LongText:
    """Text in an answer that is made of bytes piece by piece: they are UTF-8, or it is their
    base64."""

    def __init__(self, data: bytes, is_text: bool) -> None:
        self._data = data
        self._is_text = is_text

    def pieces(self) -> Iterator[bytes]:
        """What stands between the quotes."""
        data = memoryview(self._data)
        decoder = codecs.getincrementaldecoder("utf-8")()
        for at in range(0, len(data), PIECE_BYTES):
            piece = data[at : at + PIECE_BYTES]
            if self._is_text:
                yield _encoder.encode(decoder.decode(piece))[1:-1].encode()
            else:
                yield base64.b64encode(piece)

    def whole(self) -> str:
        """All of it, in one turn."""
        return self._data.decode() if self._is_text else base64.b64encode(self._data).decode()


def _whole(value: object) -> str:
    if isinstance(value, LongText):
        return value.whole()
    raise TypeError(f"JSON has no {type(value).__name__}")


_encoder: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_whole)
#: What stands for a long text meanwhile. It is drawn, so that nobody has it as a text.
_MARK: Final = os.urandom(16).hex()


def encode(value: object) -> bytes:
    """The JSON text of what consists of JSON's own types, in ASCII."""
    return _encoder.encode(value).encode()


def encode_in_pieces(value: object) -> Iterator[bytes]:
    """``encode``, with the pieces of long texts one by one."""
    texts: list[LongText] = []

    def mark(each: object) -> str:
        if not isinstance(each, LongText):
            return _whole(each)
        texts.append(each)
        return _MARK

    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=mark)
    between = encoder.encode(value).encode().split(_MARK.encode())
    yield between[0]
    for text, behind in zip(texts, between[1:], strict=True):
        yield from text.pieces()
        yield behind


def text_or_base64(data: bytes) -> tuple[str | None, str]:
    """Bytes as text, None where they are none, and in base64. Long ones are LongText: whoever sends
    them does so by ``encode_in_pieces``."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    if len(data) <= PIECE_BYTES:
        return text, base64.b64encode(data).decode()
    shown_text = None if text is None else cast("str", LongText(data, True))
    return shown_text, cast("str", LongText(data, False))


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
