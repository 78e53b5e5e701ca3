"""What a second declaration may differ in."""

from __future__ import annotations

import logging

import pytest

from trivium.common.equivalence import (
    MAX_TOLD,
    UnknownArguments,
    require_same,
    require_same_arguments,
)
from trivium.errors import PreconditionFailed


def test_fields_that_differ_are_named() -> None:
    require_same("queue 'q'", [("durable", True, True)])
    with pytest.raises(
        PreconditionFailed,
        match=r"^inequivalent arg 'b' for queue 'q': received 'false' but current is 'true'$",
    ):
        require_same("queue 'q'", [("a", 1, 1), ("b", True, False)])


def test_only_the_named_arguments_are_compared() -> None:
    require_same_arguments("queue 'q'", {"a": 1, "b": 1}, {"a": 1, "b": 2, "c": 3}, {"a"})
    with pytest.raises(PreconditionFailed, match="'b' for queue 'q': received '2' but current"):
        require_same_arguments("queue 'q'", {"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a", "b"})


def test_an_argument_that_is_void_is_there() -> None:
    with pytest.raises(PreconditionFailed, match="'a' for queue 'q': it has none"):
        require_same_arguments("queue 'q'", {}, {"a": None}, {"a"})


@pytest.mark.parametrize("is_current", [False, True])
def test_an_argument_that_only_one_of_them_has_is_a_difference(is_current: bool) -> None:
    one, other = {"a": 1}, dict[str, object]()
    current, received = (one, other) if is_current else (other, one)
    there = "none was given, but it has one" if is_current else "it has none"
    text = f"inequivalent arg 'a' for queue 'q': {there}"
    with pytest.raises(PreconditionFailed, match=f"^{text}$"):
        require_same_arguments("queue 'q'", current, received, {"a"})


def test_each_unknown_name_is_told_once_and_so_many_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unknown = UnknownArguments()
    with caplog.at_level(logging.WARNING):
        for turn in range(3):
            unknown.tell("queue 'q'", {"known": turn, "a\nb": turn}, {"known"})
        assert [record.getMessage() for record in caplog.records] == [
            "argument 'a\\nb' of queue 'q' is unknown and ignored"
        ]
        for turn in range(2 * MAX_TOLD):
            unknown.tell("queue 'q'", {f"made up {turn}": 1}, {"known"})
    assert len(caplog.records) == MAX_TOLD
