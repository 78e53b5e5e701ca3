"""The three strategies of assignment, and what holds for all of them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core import open_vhost
from trivium.groups.assignment import (
    RANGE,
    ROUND_ROBIN,
    STICKY,
    STRATEGIES,
    Assignment,
    assign,
)
from trivium.streams.stream import Stream

VHOST = open_vhost()
STREAMS = {
    name: VHOST.declare_stream(name, partitions)
    for name, partitions in (("a", 5), ("b", 3), ("c", 1), ("d", 8))
}


def streams(names: str) -> list[Stream]:
    return [STREAMS[name] for name in names]


def shown(assignment: Assignment) -> dict[str, str]:
    """Member to its partitions, such as ``a0 a1 b0``."""
    found: dict[str, list[str]] = {}
    for partition, member in assignment.items():
        found.setdefault(member, []).append(f"{partition.stream.name}{partition.index}")
    return {member: " ".join(sorted(names)) for member, names in sorted(found.items())}


def of(strategy: str, members: dict[str, str], current: Assignment | None = None) -> Assignment:
    wanted = {member: set(names) for member, names in members.items()}
    names = "".join(sorted(set("".join(members.values()))))
    return assign(strategy, wanted, streams(names), {} if current is None else current)


def test_range_gives_neighbours_and_joins_streams() -> None:
    found = shown(of(RANGE, {"y": "ab", "x": "ab"}))
    assert found == {"x": "a0 a1 a2 b0 b1", "y": "a3 a4 b2"}


def test_range_minds_who_reads_what() -> None:
    found = shown(of(RANGE, {"x": "a", "y": "ab", "z": "b"}))
    assert found == {"x": "a0 a1 a2", "y": "a3 a4 b0 b1", "z": "b2"}


def test_round_robin_goes_on_over_the_streams() -> None:
    found = shown(of(ROUND_ROBIN, {"x": "ab", "y": "ab"}))
    assert found == {"x": "a0 a2 a4 b1", "y": "a1 a3 b0 b2"}


def test_round_robin_passes_over_who_does_not_read_a_stream() -> None:
    found = shown(of(ROUND_ROBIN, {"x": "a", "y": "ab"}))
    assert found == {"x": "a0 a2 a4", "y": "a1 a3 b0 b1 b2"}


def test_sticky_moves_no_more_than_it_must() -> None:
    one = of(STICKY, {"x": "d"})
    two = of(STICKY, {"x": "d", "y": "d"}, one)
    assert Counter(two.values()) == {"x": 4, "y": 4}
    three = of(STICKY, {"x": "d", "y": "d", "z": "d"}, two)
    assert sorted(Counter(three.values()).values()) == [2, 3, 3]
    assert sum(two[partition] != three[partition] for partition in two) == 2
    # One goes: only what it had finds another member.
    again = of(STICKY, {"x": "d", "z": "d"}, three)
    assert Counter(again.values()) == {"x": 4, "z": 4}
    assert all(again[p] == three[p] for p in three if three[p] != "y")


def test_members_beyond_the_partitions_have_none() -> None:
    for strategy in STRATEGIES:
        assert len(of(strategy, {"x": "c", "y": "c", "z": "c"})) == 1
    assert of(STICKY, {}) == {}


reading = st.dictionaries(
    st.sampled_from("uvwxyz"), st.text("abcd", min_size=1, max_size=4), max_size=6
)


@given(st.sampled_from(STRATEGIES), st.lists(reading, min_size=1, max_size=4))
@settings(max_examples=200)
def test_every_partition_that_is_read_has_one_reader(
    strategy: str, changes: list[dict[str, str]]
) -> None:
    current: Assignment = {}
    for members in changes:
        current = of(strategy, members, current)
        read = {name for names in members.values() for name in names}
        expected = {partition for name in read for partition in STREAMS[name].partitions}
        assert set(current) == expected
        assert all(p.stream.name in members[member] for p, member in current.items())


@given(
    st.sampled_from([ROUND_ROBIN, STICKY]),
    st.lists(st.sets(st.sampled_from("uvwxyz"), min_size=1), min_size=1, max_size=4),
)
@settings(max_examples=200)
def test_members_that_read_the_same_have_the_same_number_or_one_more(
    strategy: str, changes: list[set[str]]
) -> None:
    current: Assignment = {}
    for members in changes:
        current = of(strategy, dict.fromkeys(members, "abd"), current)
        counts = [list(current.values()).count(member) for member in members]
        assert max(counts) - min(counts) <= 1


@given(st.lists(reading.filter(bool), min_size=2, max_size=4))
@settings(max_examples=200)
def test_sticky_moves_nothing_while_nothing_changes(changes: list[dict[str, str]]) -> None:
    current: Assignment = {}
    for members in changes:
        current = of(STICKY, members, current)
        assert of(STICKY, members, current) == current
