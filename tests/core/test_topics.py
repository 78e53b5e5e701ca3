"""Addresses, their mapping between MQTT and AMQP, and pattern matching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.steps import Compared, comparisons
from trivium.messages.topics import (
    MANY,
    ONE,
    PatternTree,
    filter_pattern,
    hides_dollar,
    key_of,
    key_pattern,
    levels_of,
    matches,
    topic_of,
    word_of,
)

LEVEL = st.sampled_from([b"a", b"b", b"", b"$x"])
PATTERN = st.lists(st.sampled_from([b"a", b"b", b"", ONE, MANY]), min_size=1, max_size=7)
LEVELS = st.lists(LEVEL, min_size=1, max_size=7)


@pytest.mark.parametrize(
    ("topic", "key"),
    [
        (b"a/b", b"a.b"),
        (b"sensor.1/temp", b"sensor/1.temp"),
        (b"/", b"."),
        (b"a//b", b"a..b"),
        (b"$SYS/x", b"$SYS.x"),
        (b"a*b/*", b"a*b.*"),
        ("é/日".encode(), "é.日".encode()),
        (b"a%2Bb", b"a+b"),
        (b"a%252Bb", b"a%2Bb"),
        (b"100%", b"100%"),
        (b"%41", b"%41"),
    ],
)
def test_topic_and_key_are_one_address(topic: bytes, key: bytes) -> None:
    assert key_of(topic) == key
    assert topic_of(key) == topic


@pytest.mark.parametrize("key", [b"", b"\xff", b"a.\xc3"])
def test_key_without_mqtt_form(key: bytes) -> None:
    assert topic_of(key) is None


@given(st.text(st.sampled_from("ab./+#%250B3\x00é"), min_size=1).map(str.encode))
def test_key_to_topic_and_back_is_identity(key: bytes) -> None:
    topic = topic_of(key)
    assert topic is not None
    assert not set(topic) & set(b"+#\x00")
    assert key_of(topic) == key


@given(st.text(st.sampled_from("ab./%250B3é"), min_size=1).map(str.encode))
def test_topic_to_key_and_back_is_identity(topic: bytes) -> None:
    assert topic_of(key_of(topic)) == topic


@pytest.mark.parametrize(
    ("name", "word"),
    [
        (b"ann", b"ann"),
        (b"ann.b", b"ann/b"),
        (b"ann/b", b"ann%2Fb"),
        (b"ann%2Fb", b"ann%252Fb"),
        (b"a+%2B", b"a+%2B"),
    ],
)
def test_a_name_is_one_word(name: bytes, word: bytes) -> None:
    assert word_of(name) == word


NAME = st.text(st.sampled_from("ab./+#%25F0é"), max_size=8).map(str.encode)


@given(NAME, NAME)
def test_no_two_names_share_a_word(one: bytes, other: bytes) -> None:
    words = word_of(one), word_of(other)
    assert (words[0] == words[1]) == (one == other)
    assert b"." not in words[0]


@given(st.text(st.sampled_from("ab.é"), min_size=1).map(str.encode))
def test_a_name_is_a_level_of_a_topic(name: bytes) -> None:
    assert key_of(b"u/" + name + b"/x") == b"u." + word_of(name) + b".x"


def test_filter_level_that_is_an_amqp_wildcard_is_literal() -> None:
    assert filter_pattern(b"*/+") == [b"*", ONE]
    assert not matches(filter_pattern(b"*"), [b"a"])
    assert key_pattern(b"+.*") == [b"+", ONE]


def test_mqtt_4_7_1_2_multi_level_wildcard_includes_the_parent() -> None:
    pattern = filter_pattern(b"sport/tennis/player1/#")
    assert matches(pattern, levels_of(b"sport.tennis.player1"))
    assert matches(pattern, levels_of(b"sport.tennis.player1.score.wimbledon"))
    assert not matches(pattern, levels_of(b"sport.tennis"))


def test_mqtt_4_7_1_3_single_level_wildcard_matches_an_empty_level() -> None:
    assert matches(filter_pattern(b"+/+"), levels_of(b".finance"))
    assert matches(filter_pattern(b"/+"), levels_of(b".finance"))
    assert not matches(filter_pattern(b"+"), levels_of(b".finance"))


def test_mqtt_4_7_2_1_filters_that_start_with_a_wildcard_hide_dollar() -> None:
    assert hides_dollar(filter_pattern(b"#"))
    assert hides_dollar(filter_pattern(b"+/monitor"))
    assert not hides_dollar(filter_pattern(b"$SYS/#"))


def test_amqp_hash_in_the_middle() -> None:
    pattern = key_pattern(b"a.#.b")
    assert matches(pattern, levels_of(b"a.b"))
    assert matches(pattern, levels_of(b"a.x.b.y.b"))
    assert not matches(pattern, levels_of(b"a.b.c"))


def _reference(pattern: list[bytes], levels: list[bytes]) -> bool:
    if not pattern:
        return not levels
    if pattern[0] == MANY:
        return any(_reference(pattern[1:], levels[cut:]) for cut in range(len(levels) + 1))
    return bool(levels) and pattern[0] in (ONE, levels[0]) and _reference(pattern[1:], levels[1:])


@given(PATTERN, LEVELS)
def test_matches_agrees_with_the_definition(pattern: list[bytes], levels: list[bytes]) -> None:
    assert matches(pattern, levels) == _reference(pattern, levels)


@given(st.lists(PATTERN, max_size=12), LEVELS)
def test_tree_finds_each_matching_pattern_once(
    patterns: list[list[bytes]], levels: list[bytes]
) -> None:
    tree: PatternTree[int] = PatternTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, number)
    expected = [n for n, pattern in enumerate(patterns) if _reference(pattern, levels)]
    assert sorted(tree.match(levels)) == expected


@given(st.lists(PATTERN, min_size=1, max_size=12), LEVELS, st.data())
def test_tree_forgets_what_is_removed(
    patterns: list[list[bytes]], levels: list[bytes], data: st.DataObject
) -> None:
    tree: PatternTree[int] = PatternTree()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, number)
    gone = data.draw(st.integers(0, len(patterns) - 1))
    assert tree.remove(patterns[gone], gone)
    assert not tree.remove(patterns[gone], gone)
    assert len(tree) == len(patterns) - 1
    assert gone not in tree.match(levels)


def test_many_wildcards_do_not_search_exponentially() -> None:
    # Would take longer than the age of the universe if it were a backtracking search.
    pattern = [MANY, b"a"] * 30
    levels = [b"a"] * 100 + [b"b"]
    tree: PatternTree[int] = PatternTree()
    tree.add(pattern, 1)
    assert not matches(pattern, levels)
    assert tree.match(levels) == []


def test_empty_routing_key_has_no_words() -> None:
    """As in RabbitMQ: ``#`` and the empty binding key match it, ``*`` does not."""
    tree: PatternTree[bytes] = PatternTree()
    for pattern in (b"", b"#", b"*", b"#.*"):
        tree.add(key_pattern(pattern), pattern)
        assert matches(key_pattern(pattern), levels_of(b"")) == (pattern in (b"", b"#"))
    assert sorted(tree.match(levels_of(b""))) == [b"", b"#"]
    assert sorted(tree.match(levels_of(b"a"))) == [b"#", b"#.*", b"*"]


def test_removing_the_values_of_one_pattern_one_by_one_is_linear() -> None:
    def emptied(count: int) -> int:
        tree: PatternTree[Compared] = PatternTree()
        values = [Compared(number) for number in range(count)]
        for value in values:
            tree.add([b"a", ONE], value)

        def remove() -> None:
            for value in reversed(values):
                assert tree.remove([b"a", ONE], value)

        found = comparisons(remove)
        assert (len(tree), tree.match([b"a", b"b"])) == (0, [])
        return found

    assert emptied(4000) <= 5 * emptied(1000) + 1000
