"""The stored form of a message, and its cached encodings."""

from __future__ import annotations

import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core import message
from trivium.messages.message import (
    EXACTLY_ONCE,
    PROTOCOL_NONE,
    Address,
    Message,
    RecordError,
    decode_record,
    records_of,
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


@given(
    st.builds(
        Message,
        protocol=st.integers(0, 255),
        address=st.builds(Address, st.text(max_size=70), st.binary(max_size=300)),
        header=st.binary(max_size=300),
        payload=st.one_of(
            st.binary(max_size=300), st.sampled_from([bytes(16 * 1024 - 1), bytes(16 * 1024)])
        ),
        mode=st.integers(0, 2),
        persistent=st.booleans(),
        timestamp=st.integers(0, (1 << 63) - 1),
        expires=st.integers(0, (1 << 63) - 1),
        retain=st.booleans(),
        priority=st.integers(0, 255),
        deliver_at=st.one_of(st.just(0), st.integers(1, (1 << 63) - 1)),
        annotations=st.one_of(
            st.none(), st.dictionaries(st.text(max_size=9), st.integers(-9, 9), max_size=3)
        ),
        insists=st.booleans(),
        hops=st.integers(0, 255),
    )
)
def test_a_record_has_its_documented_bytes_and_says_all_of_the_message(sent: Message) -> None:
    flags = sent.mode | 4 * sent.persistent | 8 * sent.retain | 64 * sent.insists
    extra = b""
    if sent.deliver_at:
        flags |= 32
        extra += struct.pack("<q", sent.deliver_at)
    if sent.annotations is not None:
        flags |= 16
        packed = msgpack.packb(sent.annotations)
        extra += struct.pack("<I", len(packed)) + packed
    exchange = sent.address.exchange.encode()
    record = (
        struct.pack("<BBBB", flags, sent.protocol, sent.priority, sent.hops)
        + struct.pack("<qqH", sent.timestamp, sent.expires, len(exchange))
        + struct.pack("<II", len(sent.address.key), len(sent.header))
        + exchange
        + sent.address.key
        + extra
        + sent.header
        + sent.payload
    )
    assert sent.record() == record
    got = decode_record(record)
    assert (got.address.exchange, got.address.key) == (sent.address.exchange, sent.address.key)
    for field in (
        *("protocol", "header", "payload", "mode", "persistent", "timestamp", "expires"),
        *("retain", "priority", "deliver_at", "annotations", "insists", "hops"),
    ):
        assert getattr(got, field) == getattr(sent, field), field


@pytest.mark.parametrize(
    "damaged",
    [
        bytes([16]) + bytes(19) + b"\0\0" + bytes(8) + struct.pack("<I", 3) + b"\x81\x80\x01",
        bytes(20) + b"\1\0" + bytes(8) + b"\xff",
    ],
    ids=["annotations with a map as a name", "an exchange that is no text"],
)
def test_what_a_damaged_record_holds_is_refused(damaged: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(damaged)


def test_encodings_are_kept_per_variant() -> None:
    sent = message()
    assert sent.encoding(16) is None
    sent.keep_encoding(16, b"a")
    sent.keep_encoding(17, b"b")
    assert (sent.encoding(16), sent.encoding(17)) == (b"a", b"b")


def test_brokers_in_several_threads_make_records_of_their_own() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            letters = [bytes([letter]) * 50 for letter in b"abcd"]
            found = list(pool.map(records_made_of, letters))
    finally:
        sys.setswitchinterval(interval)
    for payload, records in zip(letters, found, strict=True):
        assert records == {message(payload).record()}


def records_made_of(payload: bytes) -> set[bytes]:
    return {message(payload).record() for _ in range(3000)}


@given(st.data())
def test_records_of_a_run_are_those_of_its_messages(data: st.DataObject) -> None:
    address = Address("x", b"k")
    #: what a message may have otherwise than the one before
    others: dict[str, list[object]] = {
        "protocol": [1, 2],
        "address": [address, Address("x", b"other")],
        "header": [b"header", b""],
        "mode": [0, 1, 2],
        "persistent": [False, True],
        "timestamp": [1, 2],
        "expires": [0, 5],
        "retain": [False, True],
        "priority": [0, 4],
        "deliver_at": [0, 9],
        "annotations": [None, {"a": 1}],
        "insists": [False, True],
        "hops": [0, 1],
    }
    fields = {name: values[0] for name, values in others.items()}
    made: list[dict[str, object]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        for name in data.draw(st.lists(st.sampled_from(sorted(others)), max_size=1)):
            fields[name] = data.draw(st.sampled_from(others[name]))
        payload = data.draw(st.sampled_from([b"", b"payload", bytes(16 * 1024)]))
        made.append({**fields, "payload": payload})
    together: list[Message] = [Message(**each) for each in made]  # type: ignore[arg-type]
    singly: list[Message] = [Message(**each) for each in made]  # type: ignore[arg-type]
    expected = [each.record() for each in singly]
    assert records_of(together) == expected
    assert [each.record() for each in together] == expected
