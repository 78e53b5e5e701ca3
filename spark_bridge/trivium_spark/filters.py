"""Filters of a batch query that the source takes over from Spark (option ``pushFilters``).

What a filter says of streams, partitions and offsets becomes ranges that are not read. What it says
of topics and arrival times is looked at before rows are handed to Spark; where topics have an MQTT
filter, the broker leaves out the others already.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from trivium.streams.filtering import TopicFilter
from trivium_spark.offsets import OffsetRange

Comparison = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
Known = Comparison | In | StringStartsWith

_HOLDS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
_MASKS: Final[dict[type[Filter], Callable[[Any, Any], Any]]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}

#: what literals of a column are where this source compares as Spark does
_KINDS: Final[dict[str, type]] = {
    "stream": str,
    "partition": int,
    "offset": int,
    "topic": str,
    "timestamp": datetime,
}


class Pushed:
    """The filters that were taken over; all of them hold for each row that is read."""

    def __init__(self) -> None:
        self._of_ranges: list[tuple[str, Filter]] = []
        self._of_rows: list[tuple[str, Filter]] = []

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take over what can be; the others are left to Spark."""
        left: list[Filter] = []
        for one in filters:
            column = _column_of(one)
            if column is None:
                left.append(one)
            elif column in ("topic", "timestamp"):
                self._of_rows.append((column, one))
            else:
                self._of_ranges.append((column, one))
        return left

    @property
    def topic_filter(self) -> str | None:
        """An MQTT filter for all topics that are wanted, and perhaps others, if there is one."""
        found = [_topic_filter(one) for column, one in self._of_rows if column == "topic"]
        return min(filter(None, found), key=_is_wide, default=None)

    def narrow(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """What of the ranges may have rows that are wanted."""
        found = list(ranges)
        for column, one in self._of_ranges:
            if column == "offset":
                cut = [_cut(each, one) for each in found]
                found = [each for each in cut if each.start < each.end]
            else:
                found = [each for each in found if _holds(one, getattr(each, column))]
        return found

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those rows that are wanted."""
        for column, one in self._of_rows:
            batch = batch.filter(_mask(one, batch.column(column)))
        return batch


def _topic_filter(one: Filter) -> str | None:
    """A filter for the topics for which ``one`` holds, if there is one."""
    further = ""
    if isinstance(one, EqualTo):
        topic = str(one.value)
    elif isinstance(one, StringStartsWith) and "/" in one.value:
        topic = str(one.value).rpartition("/")[0]
        further = "/#"
    else:
        return None
    # U+FFFD stands for what is no text; the wildcards are in no topic.
    if any(each in topic for each in "+#\ufffd"):
        return None
    try:
        TopicFilter(topic + further)
    except ValueError:
        return None
    return topic + further


def _is_wide(topic_filter: str) -> bool:
    return topic_filter.endswith("#")


def _column_of(one: Filter) -> str | None:
    """The column whose filter this is, if it can be taken over."""
    if not isinstance(one, Known):
        return None
    (column, *inner) = one.attribute
    kind = _KINDS.get(column)
    if kind is None or inner:
        return None
    if isinstance(one, In):
        # Offsets that are parted would be read as many ranges.
        is_fit = column != "offset"
        values = list(one.value)
    elif isinstance(one, StringStartsWith):
        is_fit = column == "topic"
        values = [one.value]
    else:
        is_fit = kind is not str or isinstance(one, EqualTo)
        values = [one.value]
    return column if is_fit and all(_is_fit(value, kind) for value in values) else None


def _is_fit(value: object, kind: type) -> bool:
    if kind is int and isinstance(value, bool):
        return False
    if isinstance(value, datetime) and value.tzinfo is None:
        # It is not the same everywhere.
        return False
    return isinstance(value, kind)


def _holds(one: Filter, value: Any) -> bool:
    if isinstance(one, In):
        return value in one.value
    assert isinstance(one, Comparison)
    return _HOLDS[type(one)](value, one.value)


def _cut(wanted: OffsetRange, one: Filter) -> OffsetRange:
    """The range from the first to the last offset for which a comparison holds."""
    assert isinstance(one, Comparison)
    first, after = wanted.start, wanted.end
    if isinstance(one, EqualTo | GreaterThanOrEqual):
        first = max(first, one.value)
    elif isinstance(one, GreaterThan):
        first = max(first, one.value + 1)
    if isinstance(one, EqualTo | LessThanOrEqual):
        after = min(after, one.value + 1)
    elif isinstance(one, LessThan):
        after = min(after, one.value)
    return replace(wanted, start=first, end=after)


def _mask(one: Filter, column: Any) -> Any:
    if isinstance(one, In):
        return pc.is_in(column, pa.array(one.value, column.type))
    if isinstance(one, StringStartsWith):
        return pc.starts_with(column, one.value)
    assert isinstance(one, Comparison)
    return _MASKS[type(one)](column, pa.scalar(one.value, column.type))
