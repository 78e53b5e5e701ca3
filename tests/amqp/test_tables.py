"""Field tables (AMQP 0-9-1, 4.2.5.5, in RabbitMQ's dialect)."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import decode

from trivium.messages.message import HeaderValue
from trivium_amqp.codec.errors import ConnectionException
from trivium_amqp.codec.tables import decode_table, encode_table, with_fields


def table(value: bytes) -> bytes:
    return b"\x01k" + value


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("74 01", True),
        ("74 00", False),
        ("62 ff", -1),
        ("42 ff", 255),
        ("73 8000", -32768),
        ("55 8000", -32768),
        ("75 ffff", 65535),
        ("49 80000000", -(2**31)),
        ("69 ffffffff", 2**32 - 1),
        ("6c 8000000000000000", -(2**63)),
        ("4c ffffffffffffffff", 2**64 - 1),
        ("66 3fc00000", 1.5),
        ("64 3ff8000000000000", 1.5),
        ("44 02 0000007d", Decimal("1.25")),
        ("44 00 ffffffff", Decimal(-1)),
        ("53 00000003 c3a561", "åa"),
        ("53 00000001 ff", b"\xff"),
        ("78 00000002 0061", b"\x00a"),
        ("54 00000000499602d2", datetime(2009, 2, 13, 23, 31, 30, tzinfo=UTC)),
        ("56", None),
        ("46 00000003 016156", {"a": None}),
        ("41 00000004 56 56 74 01", [None, None, True]),
    ],
)
def test_every_field_type_is_read(encoded: str, value: HeaderValue) -> None:
    data = table(bytes.fromhex(encoded))
    found = decode_table(data, 0, len(data))
    assert found == {"k": value}
    assert type(found["k"]) is type(value)


def test_timestamps_are_times() -> None:
    data = table(bytes.fromhex("54 0000000000000e10"))
    found = decode_table(data, 0, len(data))
    assert found == {"k": datetime(1970, 1, 1, 1, tzinfo=UTC)}
    assert encode_table(found.items())[4:] == data
    late = table(bytes.fromhex("54 ffffffffffffffff"))
    assert decode_table(late, 0, len(late)) == {"k": 2**64 - 1}


def test_fields_are_put_in_front_and_the_rest_stays_as_it_was() -> None:
    data = b"\x01aB\x05" + b"\x01bs\x00\x01" + b"\x01cV"
    assert with_fields(data, 0, len(data), {"b": True}) == (
        b"\x00\x00\x00\x0b" + b"\x01bt\x01" + b"\x01aB\x05" + b"\x01cV"
    )


def test_first_of_equal_names_is_taken() -> None:
    data = b"\x01kt\x01\x01kt\x00"
    assert decode_table(data, 0, len(data)) == {"k": True}


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (True, "74 01"),
        (1, "6c 0000000000000001"),
        (2**31, "6c 0000000080000000"),
        (2**63, "53 00000013 " + b"9223372036854775808".hex()),
        (1.5, "64 3ff8000000000000"),
        (Decimal("1.25"), "44 02 0000007d"),
        (Decimal("-0.10"), "44 02 fffffff6"),
        (Decimal("1e3"), "53 00000004 " + b"1E+3".hex()),
        (Decimal(99999999999), "53 0000000b " + b"99999999999".hex()),
        ("å", "53 00000002 c3a5"),
        (b"\xff", "78 00000001 ff"),
        (None, "56"),
        ([], "41 00000000"),
        ({}, "46 00000000"),
    ],
)
def test_values_are_written(value: HeaderValue, encoded: str) -> None:
    data = table(bytes.fromhex(encoded))
    assert encode_table([("k", value)]) == struct.pack(">I", len(data)) + data


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=200)
@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=6))
def test_round_trip_and_the_view_of_pamqp(fields: dict[str, HeaderValue]) -> None:
    data = encode_table(fields.items())
    assert decode_table(data, 4, len(data)) == fields
    size, found = decode.field_table(data)
    assert size == len(data)
    assert found == fields


@settings(max_examples=300)
@given(st.binary(max_size=100))
def test_garbage_is_malformed_or_a_table(data: bytes) -> None:
    try:
        found = decode_table(data, 0, len(data))
    except ConnectionException:
        return
    assert (found == {}) == (data == b"")
