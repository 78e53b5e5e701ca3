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

from trivium.common.pieces import Piece
from trivium.common.values import HeaderValue
from trivium.management.endpoints import BadRequest
from trivium.messages.large import Content, LargePayload, content_parts, content_size

if TYPE_CHECKING:
    from trivium.messages.message import Properties

#: Nesting of tables and lists in arguments that are taken.
MAX_DEPTH: Final = 16
#: Bytes of a name in a table (AMQP 0-9-1, 4.2.5.5).
MAX_FIELD_BYTES: Final = 255

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


class Later:
    """A value in an answer that is made piece by piece."""

    def pieces(self) -> Iterator[bytes]:
        """Its JSON; empty pieces while it is found out."""
        raise NotImplementedError


class LongText(Later):
    """A payload. Of what is no UTF-8 its base64 is shown ``or_base64``, else null; without
    ``as_text`` it is base64 whatever it is."""

    def __init__(self, content: Content, as_text: bool = True, or_base64: bool = False) -> None:
        #: whether it is shown as text, once that is known
        self.is_text = False
        self._content = content
        self._as_text = as_text
        self._has_base64 = or_base64 or not as_text

    def pieces(self) -> Iterator[bytes]:
        # Views, by which nothing is copied.
        runs = LargePayload(content_parts(self._content)).cut(PIECE_BYTES)
        if self._as_text:
            try:
                for _ in _decoded(runs):
                    yield b""
                self.is_text = True
            except UnicodeDecodeError:
                if not self._has_base64:
                    yield b"null"
                    return
        yield b'"'
        if self.is_text:
            for text in _decoded(runs):
                yield _encoder.encode(text)[1:-1].encode()
        else:
            for run in runs:
                yield base64.b64encode(b"".join(run))
        yield b'"'


def _decoded(runs: list[list[Piece]]) -> Iterator[str]:
    """The texts of these in a row. Raises UnicodeDecodeError."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for run in runs:
        yield decoder.decode(b"".join(run))
    decoder.decode(b"", True)


class Encoding(Later):
    """How a payload that stands before is shown."""

    def __init__(self, text: LongText) -> None:
        self._text = text

    def pieces(self) -> Iterator[bytes]:
        yield b'"string"' if self._text.is_text else b'"base64"'


class _IsLong(Exception):
    """Something takes pieces."""


def _unknown(value: object) -> str:
    if isinstance(value, Later):
        raise _IsLong
    raise TypeError(f"JSON has no {type(value).__name__}")


_encoder: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_unknown)
#: What stands for a long text meanwhile. It is drawn, so that nobody has it as a text.
_MARK: Final = os.urandom(16).hex()


def encode(value: object) -> bytes:
    """The JSON text of what consists of JSON's own types, in ASCII."""
    return _encoder.encode(value).encode()


def encode_in_pieces(value: object) -> Iterator[bytes]:
    """``encode``, with the pieces of what is long one by one."""
    try:
        text = encode(value)
    except _IsLong:
        yield from _long_pieces(value)
    else:
        yield text


def _long_pieces(value: object) -> Iterator[bytes]:
    found: list[Later] = []

    def mark(each: object) -> str:
        if not isinstance(each, Later):
            return _unknown(each)
        found.append(each)
        return _MARK

    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=mark)
    between = encoder.encode(value).encode().split(b'"%s"' % _MARK.encode())
    yield between[0]
    for each, behind in zip(found, between[1:], strict=True):
        yield from each.pieces()
        yield behind


def text_or_base64(content: Content) -> tuple[str | None, str]:
    """A payload as text, None where it is none, and in base64. Long ones are LongText: whoever
    sends them does so by ``encode_in_pieces``."""
    if content_size(content) > PIECE_BYTES:
        return cast("str", LongText(content)), cast("str", LongText(content, as_text=False))
    data = b"".join(content_parts(content))
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    return text, base64.b64encode(data).decode()


def beginning(content: Content, most: int) -> Content:
    """So many bytes of a payload at most."""
    if content_size(content) <= most:
        return content
    left = max(most, 0)
    parts: list[Piece] = []
    for part in content_parts(content):
        if not left:
            break
        parts.append(memoryview(part)[:left])
        left -= len(parts[-1])
    return LargePayload(parts)


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


def texts_of(body: Mapping[str, object], key: str) -> list[str]:
    """A list of texts, which may be missing. Raises BadRequest."""
    found = body.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadRequest(f"{key!r} is a list of texts")
    return found


def table_of(body: Mapping[str, object], key: str) -> dict[str, HeaderValue]:
    """A table of arguments. Raises BadRequest."""
    value = body.get(key)
    if value is None or value == []:
        # As the encoder of some language writes an empty table.
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"{key!r} is an object")
    check_value(value, key, MAX_DEPTH)
    check_names(value, key)
    return dict(value)


def check_names(value: object, key: str) -> None:
    """Raise BadRequest where a name is too long for AMQP: what it names would reach no client."""
    if isinstance(value, dict):
        for name, item in value.items():
            if len(name) > MAX_FIELD_BYTES or len(name.encode()) > MAX_FIELD_BYTES:
                raise BadRequest(f"{key!r} has a name of more than {MAX_FIELD_BYTES} bytes")
            check_names(item, key)
    elif isinstance(value, list):
        for item in value:
            check_names(item, key)


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
