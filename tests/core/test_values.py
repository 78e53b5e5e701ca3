"""Values of headers and arguments are compared by their types, not as Python compares them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from trivium.common.values import matches, pack, same, unpack
from trivium.messages.message import HeaderValue

SECOND = datetime.fromtimestamp(1, UTC)


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (1, 1),
        (1, 1.0),
        (1, SECOND),
        (SECOND, 1),
        (SECOND, SECOND),
        (True, True),
        ("v", b"v"),
        (b"v", "v"),
        (b"\xff", b"\xff"),
        (Decimal("1.00"), Decimal("1.00")),
        ([1, "a"], [1, "a"]),
        ({"a": 1, "b": [None]}, {"b": [None], "a": 1}),
    ],
)
def test_a_header_matches_by_its_content(wanted: HeaderValue, value: HeaderValue) -> None:
    assert matches(wanted, value)


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (1, True),
        (False, 0),
        (1, "1"),
        (1, None),
        (1.0, True),
        (1, Decimal(1)),
        (1.0, Decimal(1)),
        (Decimal(1), Decimal("1.00")),
        ("é", b"\xe9"),
        ([1], [True]),
        ([1], [1.0]),
        (["v"], [b"v"]),
        ([1, 2], [1]),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"b": 1}),
        ({}, []),
    ],
)
def test_a_header_of_another_kind_does_not_match(wanted: HeaderValue, value: HeaderValue) -> None:
    assert not matches(wanted, value)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), ("v", b"v"), (1, SECOND), (1, Decimal(1)), (0, None), ([0], [False])],
)
def test_arguments_of_different_types_are_not_the_same(
    one: HeaderValue, other: HeaderValue
) -> None:
    assert not same(one, other)
    assert not same(other, one)


@pytest.mark.parametrize(
    "value", [None, True, 1, 1 << 40, 1.5, Decimal("-1.50"), "v", b"v", SECOND, [1], {"a": [None]}]
)
def test_an_argument_is_the_same_as_itself_also_behind_the_disk(value: HeaderValue) -> None:
    assert same(value, value)
    read = unpack(pack({"a": [value]}))["a"][0]
    assert same(value, read)
