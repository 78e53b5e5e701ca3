"""Offset arithmetic: every record is in exactly one micro-batch, whatever happens in between."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium_spark.errors import DataLossError, OptionError, TriviumSparkError
from trivium_spark.offsets import (
    Bounds,
    OffsetRange,
    Offsets,
    StreamState,
    advance,
    backlog_of,
    behind,
    beyond_the_end,
    check_complete,
    check_losses,
    check_order,
    divide,
    initial_offsets,
    latest_offsets,
    ranges,
    resolve,
    share,
)
from trivium_spark.options import EARLIEST, LATEST, Division, Limits, Position

Snapshot = Mapping[str, StreamState]


def stream(*bounds: tuple[int, int], incarnation: str = "one") -> StreamState:
    return StreamState(incarnation, tuple(Bounds(*pair) for pair in bounds))


def through_checkpoint(offsets: Offsets) -> Offsets:
    """The offsets as Spark gives them back after it kept them as JSON text."""
    return Offsets.from_json(json.loads(json.dumps(offsets.to_json())))


def read(start: Offsets, end: Offsets) -> dict[str, tuple[int, int]]:
    return {f"{r.stream}/{r.partition}": (r.start, r.end) for r in ranges(start, end)}


def test_numbers_by_partition_name_all_of_them() -> None:
    snapshot = {"s": stream((0, 9), (0, 9)), "t": stream((0, 9))}
    some = {("s", 0): 3}
    check_complete(Position(LATEST, some), snapshot)
    with pytest.raises(OptionError, match=r"startingOffsets leaves out s/1, t/0: .* -2: earliest"):
        check_complete(Position(LATEST, some, option="startingOffsets"), snapshot)
    timed = Position(LATEST, times=some, option="endingOffsetsByTimestamp")
    with pytest.raises(OptionError, match=r"ByTimestamp leaves out s/1, t/0: .* are read$"):
        check_complete(timed, snapshot)
    whole = {**some, ("s", 1): LATEST, ("t", 0): EARLIEST}
    check_complete(Position(LATEST, whole, option="startingOffsets"), snapshot)
    many = {"s": stream(*[(0, 1)] * 9)}
    with pytest.raises(OptionError, match="s/1, s/2, s/3, s/4, s/5 and 3 more"):
        check_complete(Position(LATEST, some, option="startingOffsets"), many)
    # Those that the query does not read need no number.
    part = {"s": StreamState("one", (Bounds(0, 1), None))}
    check_complete(Position(LATEST, some, option="startingOffsets"), part)


def test_json_form() -> None:
    offsets = Offsets({("b", 1): 7, ("a", 0): 3}, {"b": "two", "a": "one"}, {("a", 0): 1})
    assert offsets.to_json() == {
        "offsets": {"a/0": 3, "b/1": 7},
        "incarnations": {"a": "one", "b": "two"},
        "from": {"a/0": 1},
    }
    assert through_checkpoint(offsets) == offsets


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"offsets": {}, "incarnations": []},
        {"offsets": {"a": 1}, "incarnations": {}},
        {"offsets": {"a/0": "1"}, "incarnations": {}},
        {"offsets": {"a/0": -1}, "incarnations": {}},
        {"offsets": {"a/0": True}, "incarnations": {}},
        {"offsets": 5, "incarnations": {}},
    ],
)
def test_foreign_json_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(TriviumSparkError, match="not of this data source"):
        Offsets.from_json(data)


def test_positions_resolve_to_bounds_and_offsets() -> None:
    snapshot = {"s": stream((2, 9), (0, 5), (1, 4))}
    position = Position(LATEST, {("s", 0): EARLIEST, ("s", 1): 3})
    assert resolve(position, snapshot) == {("s", 0): 2, ("s", 1): 3, ("s", 2): 4}


def test_position_in_a_partition_that_does_not_exist() -> None:
    with pytest.raises(OptionError, match="s/3"):
        resolve(Position(LATEST, {("s", 3): 0}), {"s": stream((0, 1))})


def test_batches_follow_each_other() -> None:
    start = initial_offsets(Position(EARLIEST), {"s": stream((0, 0), (0, 0))})
    first = advance(start, {"s": stream((0, 4), (0, 2))}).end
    second = advance(through_checkpoint(first), {"s": stream((0, 5), (0, 2))}).end
    assert read(start, first) == {"s/0": (0, 4), "s/1": (0, 2)}
    assert read(first, second) == {"s/0": (4, 5)}
    assert not second.begin


def test_nothing_new_is_the_same_offset() -> None:
    snapshot = {"s": stream((0, 4))}
    start = initial_offsets(Position(EARLIEST), snapshot)
    first = advance(start, snapshot).end
    again = advance(through_checkpoint(first), snapshot).end
    # Spark compares the texts to learn whether there is a batch to run.
    assert json.dumps(again.to_json()) == json.dumps(first.to_json())
    assert ranges(first, again) == []


def test_first_batch_repeated_after_a_crash_begins_where_it_began() -> None:
    # Spark asks for the initial offset again, and "latest" has moved meanwhile.
    start = initial_offsets(Position(LATEST), {"s": stream((0, 10))})
    end = advance(start, {"s": stream((0, 12))}).end
    asked_again = initial_offsets(Position(LATEST), {"s": stream((0, 15))})
    assert read(asked_again, through_checkpoint(end)) == {"s/0": (10, 12)}


def test_first_batch_without_records_keeps_its_beginning() -> None:
    start = initial_offsets(Position(LATEST), {"s": stream((0, 10))})
    empty = through_checkpoint(advance(start, {"s": stream((0, 10))}).end)
    asked_again = initial_offsets(Position(LATEST), {"s": stream((0, 15))})
    assert read(asked_again, empty) == {}
    following = advance(empty, {"s": stream((0, 15))}).end
    assert read(empty, following) == {"s/0": (10, 15)}


def test_limit_is_never_exceeded_and_everything_is_read_once() -> None:
    snapshot = {"s": stream((0, 10), (5, 6)), "t": stream((0, 3))}
    start = initial_offsets(Position(EARLIEST), snapshot)
    seen: list[tuple[str, int]] = []
    while True:
        end = advance(start, snapshot, Limits(max_offsets=4)).end
        batch = [
            (name, offset)
            for name, (first, last) in read(start, end).items()
            for offset in range(first, last)
        ]
        if not batch:
            break
        assert len(batch) <= 4
        seen += batch
        start = through_checkpoint(end)
    assert sorted(seen) == sorted(
        [("s/0", n) for n in range(10)] + [("s/1", 5)] + [("t/0", n) for n in range(3)]
    )


@given(
    st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), st.integers(0, 99)),
    st.integers(1, 300),
)
def test_share_is_exact_and_even(backlog: dict[tuple[str, int], int], limit: int) -> None:
    taken = share(backlog, limit)
    assert sum(taken.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= taken[key] <= backlog[key] for key in backlog)
    cut = [taken[key] for key in backlog if taken[key] < backlog[key]]
    assert not cut or max(taken.values()) - min(cut) <= 1


def test_available_now_does_not_pass_its_target() -> None:
    start = initial_offsets(Position(EARLIEST), {"s": stream((0, 5))})
    target = latest_offsets({"s": stream((0, 5))})
    later = {"s": stream((0, 9))}
    end = advance(start, later, Limits(max_offsets=3), target=target).end
    assert read(start, end) == {"s/0": (0, 3)}
    last = advance(end, later, Limits(max_offsets=3), target=target).end
    assert read(end, last) == {"s/0": (3, 5)}
    assert advance(last, later, Limits(max_offsets=3), target=target).end == last


def test_available_now_that_begins_past_its_target_stays() -> None:
    # The target is taken first, then the initial offset: "latest" may be beyond.
    start = initial_offsets(Position(LATEST), {"s": stream((0, 9))})
    end = advance(start, {"s": stream((0, 9))}, target=latest_offsets({"s": stream((0, 5))})).end
    assert read(start, end) == {}
    assert end.offsets == start.offsets


def test_available_now_ignores_a_stream_made_after_its_target() -> None:
    start = initial_offsets(Position(EARLIEST), {"s": stream((0, 5))})
    target = latest_offsets({"s": stream((0, 5))})
    grown = {"s": stream((0, 5), (0, 8))}
    assert read(start, advance(start, grown, target=target).end) == {"s/0": (0, 5)}


def test_records_gone_from_the_beginning_are_a_loss() -> None:
    first = Offsets({("s", 0): 3}, {"s": "one"})
    result = advance(first, {"s": stream((10, 12))})
    assert result.losses == ["s/0: offsets 3 to 9 do not exist any more"]
    with pytest.raises(DataLossError, match=r"3 to 9 do not exist any more\. Set failOnDataLoss"):
        check_losses(result.losses)
    assert read(first, through_checkpoint(result.end)) == {"s/0": (10, 12)}


def test_records_gone_from_the_end_are_a_loss() -> None:
    first = Offsets({("s", 0): 30}, {"s": "one"})
    result = advance(first, {"s": stream((10, 12))})
    assert result.losses == ["s/0: offsets 12 to 29 do not exist"]
    following = advance(through_checkpoint(result.end), {"s": stream((10, 14))})
    assert following.losses == []
    assert read(result.end, following.end) == {"s/0": (12, 14)}


def test_stream_made_again_is_a_loss_even_where_offsets_fit() -> None:
    first = Offsets({("s", 0): 3}, {"s": "one"})
    result = advance(first, {"s": stream((0, 5), incarnation="two")})
    assert len(result.losses) == 1
    assert "deleted and made again (incarnation one, now two)" in result.losses[0]
    assert read(first, through_checkpoint(result.end)) == {"s/0": (0, 5)}


def test_stream_made_again_with_the_same_end_is_still_seen() -> None:
    first = Offsets({("s", 0): 5}, {"s": "one"})
    result = advance(first, {"s": stream((0, 5), incarnation="two")})
    assert read(first, through_checkpoint(result.end)) == {"s/0": (0, 5)}


def test_batch_of_a_former_incarnation_keeps_it() -> None:
    # A batch that was planned before the stream was made again must not read the new one.
    start = Offsets({("s", 0): 0}, {"s": "one"})
    planned = Offsets({("s", 0): 5}, {"s": "one"})
    assert ranges(start, planned) == [OffsetRange("s", 0, "one", 0, 5)]


def test_new_partition_and_new_stream_begin_at_their_beginning() -> None:
    first = Offsets({("s", 0): 4}, {"s": "one"})
    result = advance(first, {"s": stream((0, 4), (0, 2)), "t": stream((1, 3), incarnation="x")})
    assert result.losses == []
    assert read(first, through_checkpoint(result.end)) == {"s/1": (0, 2), "t/0": (1, 3)}


def test_a_stream_that_is_removed_from_the_query_is_a_loss_and_keeps_its_place() -> None:
    first = Offsets({("s", 0): 4, ("t", 0): 4, ("t", 1): 5}, {"s": "one", "t": "two"})
    second = advance(first, {"s": stream((0, 6))})
    with pytest.raises(DataLossError, match="t: the checkpoint has offsets of it"):
        check_losses(second.losses)
    end = through_checkpoint(second.end)
    assert read(first, end) == {"s/0": (4, 6)}
    # Nothing new is nothing new, with another stream in the checkpoint too.
    assert advance(end, {"s": stream((0, 6))}).end == end
    third = advance(end, {"s": stream((0, 7))})
    assert read(end, through_checkpoint(third.end)) == {"s/0": (6, 7)}
    # It is read again: from where it was, not from its beginning.
    whole = {"s": stream((0, 7)), "t": stream((0, 9), (0, 5), incarnation="two")}
    last = advance(through_checkpoint(third.end), whole)
    assert last.losses == []
    assert read(third.end, through_checkpoint(last.end)) == {"t/0": (4, 9)}


def test_a_stream_that_is_removed_and_made_again_is_a_loss_when_it_is_added_back() -> None:
    first = Offsets({("s", 0): 4, ("t", 0): 4}, {"s": "one", "t": "two"})
    second = through_checkpoint(advance(first, {"s": stream((0, 6))}).end)
    last = advance(second, {"s": stream((0, 6)), "t": stream((0, 9), incarnation="three")})
    assert ["made again" in loss for loss in last.losses] == [True]
    assert read(second, last.end) == {"t/0": (0, 9)}


def test_a_stream_that_is_removed_before_the_first_batch_keeps_its_beginning() -> None:
    snapshot = {"s": stream((0, 4)), "t": stream((0, 4))}
    start = initial_offsets(Position(EARLIEST), snapshot)
    end = through_checkpoint(advance(start, {"s": stream((0, 4))}).end)
    again = initial_offsets(Position(EARLIEST), {"s": stream((0, 4))})
    assert read(start, end) == read(again, end) == {"s/0": (0, 4)}
    last = advance(end, snapshot)
    assert read(end, through_checkpoint(last.end)) == {"t/0": (0, 4)}


def test_the_position_in_some_streams() -> None:
    both = Offsets({("s", 0): 4, ("t", 0): 5}, {"s": "one", "t": "two"})
    assert both.of(["t", "u"]) == Offsets({("t", 0): 5}, {"t": "two"})


def test_a_batch_that_begins_beyond_the_end_is_a_loss() -> None:
    snapshot = {"s": stream((0, 4), (0, 4))}
    start = Offsets({("s", 0): 4, ("s", 1): 7}, {"s": "one"})
    assert beyond_the_end(start, snapshot) == ["s/1: offsets 4 to 6 do not exist"]


def test_a_batch_that_ends_before_it_begins_is_refused() -> None:
    start = Offsets({("s", 0): 4, ("s", 1): 7}, {"s": "one"})
    check_order(start, Position(LATEST, {("s", 0): 4, ("s", 1): EARLIEST}))
    with pytest.raises(OptionError, match="s/1 would end at 6, before it begins at 7"):
        check_order(start, Position(LATEST, {("s", 1): 6}))


def test_offsets_that_do_not_belong_together() -> None:
    with pytest.raises(TriviumSparkError, match="s/0"):
        ranges(Offsets({}, {}), Offsets({("s", 0): 4}, {"s": "one"}))


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 5), min_size=2, max_size=2),
            st.none() | st.integers(1, 6),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_every_record_is_read_exactly_once(
    steps: list[tuple[list[int], int | None, bool]],
) -> None:
    """Streams grow, batches are limited, and some are repeated from the checkpoint."""
    ends = [0, 0]
    snapshot = {"s": stream((0, 0), (0, 0))}
    start = initial_offsets(Position(LATEST), snapshot)
    seen: list[tuple[str, int]] = []
    is_first = True
    for grown, limit, is_repeated in steps:
        ends = [end + more for end, more in zip(ends, grown, strict=True)]
        snapshot = {"s": stream((0, ends[0]), (0, ends[1]))}
        end = through_checkpoint(advance(start, snapshot, Limits(limit)).end)
        if is_repeated and is_first:
            start = initial_offsets(Position(LATEST), snapshot)
        for name, (first, last) in read(start, end).items():
            seen += [(name, offset) for offset in range(first, last)]
        start = end
        is_first = False
    end = advance(start, snapshot).end
    for name, (first, last) in read(start, end).items():
        seen += [(name, offset) for offset in range(first, last)]
    assert sorted(seen) == [("s/0", n) for n in range(ends[0])] + [
        ("s/1", n) for n in range(ends[1])
    ]


def test_a_partition_that_is_assigned_no_more_is_a_loss_and_keeps_its_place() -> None:
    first = Offsets({("s", 0): 4, ("s", 1): 2}, {"s": "one"})
    one = {"s": StreamState("one", (Bounds(0, 9), None))}
    second = advance(first, one)
    assert [loss.partition(":")[0] for loss in second.losses] == ["s/1"]
    end = through_checkpoint(second.end)
    assert read(first, end) == {"s/0": (4, 9)}
    assert advance(end, one).end == end
    last = advance(end, {"s": stream((0, 9), (0, 8))})
    assert last.losses == []
    assert read(end, through_checkpoint(last.end)) == {"s/1": (2, 8)}


def test_streams_that_match_a_pattern_later_begin_at_their_beginning() -> None:
    start = through_checkpoint(initial_offsets(Position(LATEST), {}))
    assert advance(start, {}).end == start
    end = advance(start, {"s": stream((3, 9))}).end
    assert read(start, through_checkpoint(end)) == {"s/0": (3, 9)}


def test_a_batch_waits_for_enough_records() -> None:
    start = Offsets({("s", 0): 0, ("s", 1): 0}, {"s": "one"})
    limits = Limits(min_offsets=5)
    assert advance(start, {"s": stream((0, 2), (0, 2))}, limits).end == start
    end = advance(start, {"s": stream((0, 2), (0, 3))}, limits).end
    assert read(start, end) == {"s/0": (0, 2), "s/1": (0, 3)}


def test_a_batch_has_about_as_many_bytes_as_it_may() -> None:
    start = Offsets({("s", 0): 0, ("s", 1): 0}, {"s": "one"})
    snapshot = {"s": stream((0, 1000), (0, 1000))}
    sizes = {("s", 0): 10.0, ("s", 1): 100.0}
    end = advance(start, snapshot, Limits(max_bytes=4000), sizes=sizes).end
    assert read(start, end) == {"s/0": (0, 200), "s/1": (0, 20)}
    both = Limits(max_bytes=4000, max_offsets=50)
    end = advance(start, snapshot, both, sizes=sizes).end
    assert read(start, end) == {"s/0": (0, 30), "s/1": (0, 20)}
    # One that is larger than a batch may be is read all the same.
    end = advance(start, snapshot, Limits(max_bytes=1), sizes=sizes).end
    assert read(start, end) == {"s/0": (0, 1), "s/1": (0, 1)}


def test_the_backlog_begins_at_what_is_there() -> None:
    start = Offsets({("s", 0): 4, ("s", 1): 4}, {"s": "one"})
    snapshot = {"s": stream((0, 4), (7, 9)), "t": stream((1, 2), incarnation="two")}
    assert backlog_of(start, snapshot) == {("s", 1): 7, ("t", 0): 1}


def whole(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("s", number, "one", 0, size) for number, size in enumerate(sizes)]


def test_ranges_have_at_most_so_many_records() -> None:
    parts = divide(whole(10, 3), Division(max_records=4))
    found = [(part.partition, part.start, part.end) for part in parts]
    assert found == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3)]


def test_large_ranges_are_parted_until_there_are_enough() -> None:
    parts = divide(whole(900, 100), Division(min_partitions=4))
    assert [(part.partition, part.size) for part in parts] == [(0, 300)] * 3 + [(1, 100)]
    assert divide(whole(1, 1, 1), Division(min_partitions=2)) == whole(1, 1, 1)
    assert divide([], Division(min_partitions=2)) == []


@given(
    st.lists(st.integers(1, 50), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 20),
)
def test_parts_are_all_that_there_was(
    sizes: list[int], least: int | None, most: int | None
) -> None:
    parts = divide(whole(*sizes), Division(least, most))
    assert [(part.partition, n) for part in parts for n in range(part.start, part.end)] == [
        (number, n) for number, size in enumerate(sizes) for n in range(size)
    ]
    assert all(part.size > 0 for part in parts)
    if least is not None:
        assert len(parts) >= min(least, sum(sizes))
    if most is not None:
        assert all(part.size <= most for part in parts)


def test_streams_are_ahead_by_records_and_about_their_bytes() -> None:
    snapshot = {
        "s": StreamState("one", (Bounds(0, 10), Bounds(0, 10), Bounds(0, 4))),
        "t": StreamState("two", (Bounds(5, 5), None)),
    }
    places = {("s", 0): 4, ("s", 1): 9}
    assert behind(places, snapshot, {("s", 0): 100.0}) == {
        "s": {"records": 7, "bytes": 700},
        "t": {"records": 0, "bytes": 0},
    }
    assert behind(places, snapshot, {}) == {
        "s": {"records": 7, "bytes": 0},
        "t": {"records": 0, "bytes": 0},
    }
