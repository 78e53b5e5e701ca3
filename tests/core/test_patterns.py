"""Name patterns: what they match, beside Python's own expressions, and what they cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.common.patterns import MAX_DEPTH, MAX_LENGTH, Pattern, PatternError

ATOMS = st.sampled_from(
    ["a", "b", ".", r"\.", "[ab]", "[^a]", "[a-c]", r"\d", r"\W", r"[\d_]", "^", "$", "{", "é"]
)
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "{2}", "{1,2}", "{,2}", "{2,}"])


def joined(parts: list[tuple[str, str]]) -> str:
    return "".join(atom + repeat for atom, repeat in parts)


SEQUENCES = st.lists(st.tuples(ATOMS, REPEATS), max_size=4).map(joined)
GROUPS = st.lists(SEQUENCES, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
EXPRESSIONS = st.lists(st.tuples(SEQUENCES | GROUPS, st.just("")), max_size=3).map(joined)


@given(EXPRESSIONS, st.text("ab.1_é{", max_size=8))
def test_a_pattern_matches_what_python_s_expression_does(text: str, name: str) -> None:
    try:
        expression = re.compile(text)
    except re.error:
        return
    try:
        pattern = Pattern(text)
    except PatternError:
        # Python takes some repetitions of a repetition for something else; these are refused.
        assert re.search(r"[*+?}]\??[*+?{]", text)
        return
    assert pattern.matches(name) == (expression.search(name) is not None)


@pytest.mark.parametrize("group", ["(a*)*b", "(a+)+", "(a|aa){2,3}", "(a?){3}", "(|a)+", "((a))"])
@pytest.mark.parametrize("name", ["", "a", "aa", "aaa", "aaaab", "b"])
def test_repeated_groups(group: str, name: str) -> None:
    text = f"^{group}$"
    assert Pattern(text).matches(name) == (re.search(text, name) is not None)


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("^orders\\.", "orders.new"),
        ("", ""),
        ("[]x]", "]"),
        ("[a-]", "-"),
        ("a{,}", "b"),
        ("x{a}", "x{a}"),
        ("(?:a|b)c", "bc"),
        ("\\t", "\t"),
    ],
)
def test_forms_that_are_accepted(text: str, reads: str) -> None:
    assert Pattern(text).matches(reads)


@pytest.mark.parametrize(
    "text",
    [
        "(",
        ")",
        "a)",
        "[a",
        "[",
        "[]",
        "*",
        "a**",
        "a{2}{3}",
        "a{3,2}",
        "\\",
        "\\1",
        "\\b",
        "(?=a)",
        "(?P<n>a)",
        "[b-a]",
        "[\\d-a]",
        "a" * (MAX_LENGTH + 1),
        "((a{99}){99}){99}",
        "((){9999}){9999}",
        "(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1),
    ],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


class Counted(str):
    """Counts how often its characters are looked at."""

    looks = 0

    def __getitem__(self, key: object) -> str:
        Counted.looks += 1
        return super().__getitem__(key)  # type: ignore[index]


@pytest.mark.pure
@pytest.mark.parametrize("text", ["(a+)+$", "(a|aa)+$", "(.*.*.*)*x", "a*a*a*a*a*a*a*b"])
def test_the_cost_is_in_proportion_to_the_name(text: str) -> None:
    Counted.looks = 0
    assert not Pattern(text).matches(Counted("a" * 10_000 + "!"))
    assert Counted.looks == 10_001
