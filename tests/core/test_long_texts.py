"""Long payloads in answers, which are written piece by piece."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from trivium.management.values import (
    PIECE_BYTES,
    Encoding,
    LongText,
    beginning,
    encode,
    encode_in_pieces,
    text_or_base64,
)
from trivium.messages.large import Content, LargePayload, content_parts

LONG: list[bytes] = [
    b'"\\\n' * PIECE_BYTES,
    # Characters of four bytes, cut at each of them.
    *(b"x" * at + "\U0001f600".encode() * (PIECE_BYTES // 2) for at in range(4)),
    bytes(range(256)) * (PIECE_BYTES // 100),
    b"\xff" * (PIECE_BYTES + 1),
    # What is no text at the end alone.
    b"x" * PIECE_BYTES * 3 + b"\xc3",
]


def in_parts(payload: bytes) -> LargePayload:
    """A payload as it comes in reads."""
    return LargePayload([payload[at : at + 70_001] for at in range(0, len(payload), 70_001)])


def text_of(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def written(value: object) -> Any:
    """What is written, in pieces that are made in a moment: what is escaped has six bytes for each
    of UTF-16."""
    pieces = list(encode_in_pieces(value))
    assert max(map(len, pieces)) <= 6 * PIECE_BYTES
    return json.loads(b"".join(pieces))


@pytest.mark.parametrize("payload", [b"", b"text", b"\xff", *LONG])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_payload_is_shown_whatever_its_length(payload: bytes, is_large: bool) -> None:
    text, encoded = text_or_base64(in_parts(payload) if is_large else payload)
    value = {"a": 1, "payload": text, "others": [{"payload_base64": encoded}, "z"]}
    assert written(value) == {
        "a": 1,
        "payload": text_of(payload),
        "others": [{"payload_base64": base64.b64encode(payload).decode()}, "z"],
    }


@pytest.mark.parametrize("payload", LONG)
def test_a_payload_that_is_no_text_is_in_base64_and_that_is_said_behind(payload: bytes) -> None:
    long = LongText(payload, or_base64=True)
    text = text_of(payload)
    assert written({"payload": long, "encoding": Encoding(long)}) == {
        "payload": base64.b64encode(payload).decode() if text is None else text,
        "encoding": "base64" if text is None else "string",
    }


def test_whether_it_is_text_is_found_out_in_moments() -> None:
    pieces = LongText(b"x" * PIECE_BYTES * 8).pieces()
    assert [next(pieces) for _ in range(9)] == [b""] * 8 + [b'"']


@pytest.mark.parametrize("payload", [b"0123456789" * 9, in_parts(b"0123456789" * 90_000)])
@pytest.mark.parametrize("most", [-1, 0, 1, 89, 90, 91, 70_001, 70_002, 900_000, 900_001])
def test_the_beginning_of_a_payload(payload: Content, most: int) -> None:
    whole = b"".join(content_parts(payload))
    assert b"".join(content_parts(beginning(payload, most))) == whole[: max(most, 0)]


def test_only_a_long_one_is_in_pieces() -> None:
    for size, is_long in ((PIECE_BYTES, False), (PIECE_BYTES + 1, True)):
        text, encoded = text_or_base64(b"x" * size)
        assert isinstance(text, LongText) is isinstance(encoded, LongText) is is_long


def test_what_json_does_not_have_is_refused() -> None:
    values: list[dict[str, object]] = [{"a": set()}, {"b": LongText(b""), "a": set()}]
    for value in values:
        with pytest.raises(TypeError, match="JSON has no set"):
            b"".join(encode_in_pieces(value))
    with pytest.raises(TypeError, match="JSON has no set"):
        encode({"a": set()})
