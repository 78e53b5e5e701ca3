"""Filters that the source takes over give what Spark's own would."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringEndsWith,
    StringStartsWith,
)

from trivium_spark.filters import Pushed
from trivium_spark.offsets import OffsetRange

RANGES = [OffsetRange(name, n, "one", 5, 10) for name in ("s", "t") for n in range(3)]


def pushed(*filters: Filter) -> Pushed:
    made = Pushed()
    assert made.take(filters) == []
    return made


def narrowed(*filters: Filter) -> list[tuple[str, int, int, int]]:
    found = pushed(*filters).narrow(RANGES)
    return [(each.stream, each.partition, each.start, each.end) for each in found]


def test_partitions_and_streams_that_are_not_wanted_are_not_read() -> None:
    both = narrowed(EqualTo(("partition",), 1), In(("stream",), ("t", "u")))
    assert both == [("t", 1, 5, 10)]
    assert [each[1] for each in narrowed(GreaterThan(("partition",), 1))] == [2, 2]
    assert narrowed(LessThan(("partition",), 0)) == []


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([EqualTo(("offset",), 7)], range(7, 8)),
        ([EqualTo(("offset",), 10)], range(0)),
        ([GreaterThan(("offset",), 7)], range(8, 10)),
        ([GreaterThanOrEqual(("offset",), 7)], range(7, 10)),
        ([LessThan(("offset",), 7)], range(5, 7)),
        ([LessThanOrEqual(("offset",), 7)], range(5, 8)),
        ([GreaterThan(("offset",), 5), LessThan(("offset",), 8)], range(6, 8)),
        ([GreaterThan(("offset",), 8), LessThan(("offset",), 7)], range(0)),
    ],
)
def test_offsets_that_are_not_wanted_are_not_read(filters: list[Filter], wanted: range) -> None:
    found = pushed(*filters).narrow(RANGES[:1])
    assert [n for each in found for n in range(each.start, each.end)] == list(wanted)


def test_rows_are_those_of_the_topics_and_times() -> None:
    times = pa.array([1, 2, 3, 4], pa.timestamp("us", tz="UTC"))
    rows = pa.record_batch({"topic": ["a/b", "a/c", "b", "a/b"], "timestamp": times})

    def left(*filters: Filter) -> list[str]:
        found: list[str] = pushed(*filters).rows(rows).column("topic").to_pylist()
        return found

    assert left() == ["a/b", "a/c", "b", "a/b"]
    assert left(EqualTo(("topic",), "a/b")) == ["a/b", "a/b"]
    assert left(In(("topic",), ("b", "a/c"))) == ["a/c", "b"]
    assert left(StringStartsWith(("topic",), "a/")) == ["a/b", "a/c", "a/b"]
    second = datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=UTC)
    assert left(GreaterThan(("timestamp",), second)) == ["b", "a/b"]
    assert left(EqualTo(("timestamp",), second), EqualTo(("topic",), "a/b")) == []


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("partition",), True),
        EqualTo(("partition",), None),
        In(("offset",), (1, 2)),
        IsNotNull(("topic",)),
        StringEndsWith(("topic",), "x"),
        GreaterThan(("topic",), "x"),
        EqualTo(("timestamp",), datetime(2020, 1, 1)),
    ],
)
def test_other_filters_are_left_to_spark(one: Filter) -> None:
    assert Pushed().take([one]) == [one]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (EqualTo(("topic",), "a/b"), "a/b"),
        (EqualTo(("topic",), "a/#"), None),
        (EqualTo(("topic",), ""), None),
        (EqualTo(("topic",), "a\ufffd"), None),
        (EqualTo(("topic",), "/".join("a" * 200)), None),
        (StringStartsWith(("topic",), "a/"), "a/#"),
        (StringStartsWith(("topic",), "a/b"), "a/#"),
        (StringStartsWith(("topic",), "a/b/"), "a/b/#"),
        (StringStartsWith(("topic",), "/"), "/#"),
        (StringStartsWith(("topic",), "a"), None),
        (StringStartsWith(("topic",), "+/a"), None),
        (EqualTo(("timestamp",), datetime(2020, 1, 1, tzinfo=UTC)), None),
    ],
)
def test_a_filter_of_topics_is_one_for_the_broker_where_mqtt_has_it(
    one: Filter, expected: str | None
) -> None:
    assert pushed(one).topic_filter == expected


def test_of_several_filters_the_broker_is_given_a_narrow_one() -> None:
    both = pushed(StringStartsWith(("topic",), "a/"), EqualTo(("topic",), "a/b"))
    assert both.topic_filter == "a/b"
