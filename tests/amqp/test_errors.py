"""What the core refuses, in the words that RabbitMQ's clients know."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from trivium.errors import (
    BOOLEAN,
    INTEGER,
    TEXT,
    ArgumentAbsent,
    NotAName,
    TopologyError,
    WrongType,
)
from trivium_amqp.codec.errors import channel_exception, type_name


def test_types_have_the_names_that_clients_match() -> None:
    values = [None, True, 1, -1 << 31, 1 << 31, 1.5, Decimal(1), "v", b"v"]
    others = [datetime(2027, 1, 1, tzinfo=UTC), [], {}]
    assert [type_name(value) for value in values + others] == [
        *("void", "bool", "signedint", "signedint", "long", "double", "decimal"),
        *("longstr", "binary", "timestamp", "array", "table"),
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WrongType("x", INTEGER, "1"), 'invalid x: "expected integer, got longstr"'),
        (WrongType("x", INTEGER, 10.0), 'invalid x: "expected integer, got double"'),
        (WrongType("x", TEXT, 1), 'invalid x: "expected longstr, got signedint"'),
        (WrongType("x", BOOLEAN, "yes"), 'invalid x: "expected bool, got longstr"'),
        (NotAName("a", "x", 1), "invalid type 'signedint' for arg 'a' in x"),
        (
            ArgumentAbsent("a", "x", 1, True),
            "inequivalent arg 'a' for x:"
            " received none but current is the value '1' of type 'signedint'",
        ),
        (
            ArgumentAbsent("a", "x", None, False),
            "inequivalent arg 'a' for x:"
            " received the value 'None' of type 'void' but current is none",
        ),
    ],
)
def test_a_wrong_argument_is_refused_in_rabbitmqs_words(error: TopologyError, text: str) -> None:
    assert channel_exception(error).reply_text() == f"PRECONDITION_FAILED - {text}"
