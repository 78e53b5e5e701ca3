"""Long payloads in answers, which are written piece by piece."""

from __future__ import annotations

import base64
import json

import pytest

from trivium.management.values import (
    PIECE_BYTES,
    LongText,
    encode,
    encode_in_pieces,
    text_or_base64,
)

LONG: list[bytes] = [
    b'"\\\n' * PIECE_BYTES,
    # Characters of four bytes, cut at each of them.
    *(b"x" * at + "\U0001f600".encode() * (PIECE_BYTES // 2) for at in range(4)),
    bytes(range(256)) * (PIECE_BYTES // 100),
    b"\xff" * (PIECE_BYTES + 1),
]


@pytest.mark.parametrize("payload", [b"", b"text", b"\xff", *LONG])
def test_a_payload_is_shown_whatever_its_length(payload: bytes) -> None:
    text, encoded = text_or_base64(payload)
    value = {"a": 1, "payload": text, "others": [{"payload_base64": encoded}, "z"]}
    pieces = list(encode_in_pieces(value))
    try:
        expected = payload.decode()
    except UnicodeDecodeError:
        expected = None
    found = json.loads(b"".join(pieces))
    assert found == {
        "a": 1,
        "payload": expected,
        "others": [{"payload_base64": base64.b64encode(payload).decode()}, "z"],
    }
    # What is escaped has six bytes for each of UTF-16.
    assert max(map(len, pieces)) <= 6 * PIECE_BYTES
    assert b"".join(pieces) == encode(value)


def test_only_a_long_one_is_in_pieces() -> None:
    for size, is_long in ((PIECE_BYTES, False), (PIECE_BYTES + 1, True)):
        text, encoded = text_or_base64(b"x" * size)
        assert isinstance(text, LongText) is isinstance(encoded, LongText) is is_long


def test_what_json_does_not_have_is_refused() -> None:
    for encoding in (encode, lambda value: b"".join(encode_in_pieces(value))):
        with pytest.raises(TypeError, match="JSON has no set"):
            encoding({"a": set()})
