"""The stored form of a message, and its cached encodings."""

from __future__ import annotations

import pytest

from tests.support.core import message
from trivium.messages.message import (
    EXACTLY_ONCE,
    PROTOCOL_NONE,
    Address,
    Message,
    RecordError,
    decode_record,
)


def test_message_record_round_trip() -> None:
    sent = Message(
        PROTOCOL_NONE,
        Address("exchange é", b"a.\xff"),
        b"header",
        b"payload",
        EXACTLY_ONCE,
        True,
        timestamp=12,
        expires=34,
        retain=True,
        priority=9,
    )
    got = decode_record(sent.record())
    assert (got.address.exchange, got.address.key) == ("exchange é", b"a.\xff")
    assert (got.header, got.payload, got.mode, got.persistent) == (b"header", b"payload", 2, True)
    assert (got.timestamp, got.expires, got.retain, got.priority) == (12, 34, True, 9)
    for cut in (0, 10, 27, len(sent.record()) - 8):
        with pytest.raises(RecordError):
            decode_record(sent.record()[:cut])


def test_record_layout() -> None:
    sent = message(b"payload", b"k", "x")
    assert sent.record() == (
        b"\x05\x00\x00\x00"  # at-least-once and persistent, no protocol, priority 0, padding
        + (1_700_000_000_000).to_bytes(8, "little")
        + bytes(8)  # never expires
        + b"\x01\x00"
        + b"\x01\x00\x00\x00"
        + bytes(4)
        + b"xkpayload"
    )
    assert sent.record() is sent.record()


def test_encodings_are_kept_per_variant() -> None:
    sent = message()
    assert sent.encoding(16) is None
    sent.keep_encoding(16, b"a")
    sent.keep_encoding(17, b"b")
    assert (sent.encoding(16), sent.encoding(17)) == (b"a", b"b")
