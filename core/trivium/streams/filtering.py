"""A partition by topic: what a reader is handed who wants the records of some topics only.

A page has a bounded amount of work, also if it waits for more. It ends at an offset, up to which
it has all that is wanted: where to go on, also where there was nothing. Record batches of which all
is wanted are handed over as they are stored; what is wanted of others is put together to sparse
ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from trivium.messages.topics import (
    DOLLAR,
    MAX_LEVELS,
    filter_pattern,
    hides_dollar,
    levels_of,
    matches,
)
from trivium.streams.collected import Collected
from trivium.streams.record_layout import CONSTANT, ROUTING_KEY
from trivium.streams.records import BatchError, RecordBatch, batch_span

if TYPE_CHECKING:
    from trivium.streams.stream import Partition

#: What a page costs at most: some milliseconds. Looking at a record costs 1.
PAGE_COST: Final = 16_384
#: So many records are copied from a batch whatever the page has cost.
LEAST_COPIED: Final = 1024
_BATCH_COST: Final = 20
_COPY_COST: Final = 6
_DECISION_COST: Final = 8
#: Bytes that cost 1 where they are checked, and where they are uncompressed or copied.
_CHECKED: Final = 1024
_COPIED: Final = 256
#: Bytes that are read at a time.
_READ_BYTES: Final = 256 * 1024

#: Routing keys whose decision is remembered, and the longest of them.
_MOST_KNOWN: Final = 4096
_LONGEST_KNOWN: Final = 256

_PLUS: Final = 0x2B
_HASH: Final = 0x23


class TopicFilter:
    """An MQTT topic filter, for routing keys (MQTT5 4.7). Raises ValueError for another text."""

    def __init__(self, text: str) -> None:
        topic_filter = text.encode()
        levels = topic_filter.split(b"/")
        if not text or 0 in topic_filter:
            raise ValueError("it is empty or holds U+0000")
        if len(levels) > MAX_LEVELS:
            raise ValueError(f"it has more than {MAX_LEVELS} levels")
        for level in levels:
            if len(level) > 1 and (_PLUS in level or _HASH in level):
                raise ValueError("a wildcard shares its level")
        if b"#" in levels[:-1]:
            raise ValueError("# is not its last level")
        self._pattern = filter_pattern(topic_filter)
        self._hides_dollar = hides_dollar(self._pattern)
        self._known: dict[bytes, bool] = {}
        #: what deciding has cost, since it was last set to 0
        self.cost: i64 = 0

    def matches(self, key: bytes) -> bool:
        """Whether records with this routing key are wanted."""
        found = self._known.get(key)
        if found is None:
            levels = levels_of(key)
            self.cost += _DECISION_COST + len(levels)
            is_hidden = self._hides_dollar and len(key) > 0 and key[0] == DOLLAR
            found = not is_hidden and matches(self._pattern, levels)
            if len(key) <= _LONGEST_KNOWN:
                if len(self._known) >= _MOST_KNOWN:
                    self._known = {}
                self._known[key] = found
        return found

    def forget(self) -> None:
        """Hold as little memory as possible."""
        self._known = {}


class FilteredPage:
    """What is wanted of a partition from an offset on, at most about so many bytes.

    The first batch may begin before the offset, unless ``is_exact``.
    """

    def __init__(
        self,
        partition: Partition,
        offset: int,
        topic_filter: TopicFilter,
        max_bytes: int,
        is_exact: bool = False,
    ) -> None:
        self._partition = partition
        self._filter = topic_filter
        self._max_bytes = max(max_bytes, 1)
        # Where it began, if the batch of that offset may come as a whole.
        self._start = -1 if is_exact else offset
        self._budget: i64 = PAGE_COST
        self._collected = Collected(offset)
        self._whole_bytes: i64 = 0
        self._batches: list[tuple[int, bytes]] = []
        #: all that is wanted before this offset was found
        self.next_offset = offset

    @property
    def size(self) -> int:
        """The bytes that were found, about."""
        return self._whole_bytes + self._collected.size

    @property
    def cost(self) -> int:
        """What it has cost so far, about."""
        return int(PAGE_COST - self._budget)

    def is_full(self) -> bool:
        """Whether the page ends here, though there may be more."""
        return self._budget <= 0 or self.size >= self._max_bytes

    @property
    def is_lost(self) -> bool:
        """Whether retention has passed the page."""
        return self.next_offset < self._partition.first_offset

    def more(self) -> bool:
        """Look at what is in memory. False where that is not all: the rest must be loaded."""
        partition = self._partition
        while not self.is_full() and not self.is_lost:
            if not partition.is_loaded(self.next_offset):
                return False
            batches = partition.read(self.next_offset, _READ_BYTES)
            if not batches:
                return True
            for base, batch in batches:
                self._look_at(base, batch)
                if self.is_full():
                    break
        return True

    def wait(self) -> None:
        """All there is was looked at; what comes later counts for the same page."""
        self._filter.forget()

    def batches(self) -> list[tuple[int, bytes]]:
        """The record batches with their offsets; nothing is looked at any more."""
        self._end_collected(self.next_offset)
        return self._batches

    def _look_at(self, base: int, batch: bytes) -> None:
        self._budget -= _BATCH_COST + len(batch) // _CHECKED
        end = base + batch_span(batch)
        try:
            view = RecordBatch(batch)
        except BatchError:
            # Whoever reads it says so.
            self._add_whole(base, batch)
            self.next_offset = end
            return
        if len(view.data) != len(batch):
            self._budget -= len(view.data) // _COPIED
        # Small batches may have been joined since some of them were looked at.
        first = view.row_from(max(self.next_offset - base, 0))
        rows: list[int] = []
        after = self._find(view, first, rows)
        # No other batch than the first begins before what was looked at.
        is_first = first == 0 or self.next_offset == self._start
        if rows and is_first and len(rows) == view.count - first:
            self._add_whole(base, batch)
        else:
            after = self._add_rows(base, view, rows, after)
        # What a page does not get through is the beginning of the next one.
        self.next_offset = end if after == view.count else base + view.delta(after)

    def _find(self, view: RecordBatch, first: int, rows: list[int]) -> int:
        """Add the rows that are wanted, from ``first`` on; the row before which it ended.

        It does not end while all are wanted: then the batch may be handed over as it is.
        """
        wanted = self._filter
        column = view.columns.get(ROUTING_KEY)
        if column is None or column.kind == CONSTANT:
            if wanted.matches(view.binary(ROUTING_KEY, 0) or b""):
                rows.extend(range(first, view.count))
            return view.count
        is_mixed = False
        for row in range(first, view.count):
            wanted.cost = 1
            if wanted.matches(view.binary(ROUTING_KEY, row) or b""):
                rows.append(row)
            else:
                is_mixed = True
            self._budget -= wanted.cost
            if is_mixed and self._budget <= _COPY_COST * len(rows):
                # What was found can just be copied.
                return row + 1
        return view.count

    def _add_whole(self, base: int, batch: bytes) -> None:
        self._end_collected(base)
        self._batches.append((base, batch))
        self._whole_bytes += len(batch)

    def _add_rows(self, base: int, view: RecordBatch, rows: list[int], after: int) -> int:
        """Copy rows; the row before which it ended, which is ``after`` where it copied all."""
        collected = self._collected
        for index, row in enumerate(rows):
            if self._budget <= 0 and index >= LEAST_COPIED:
                return row
            offset = base + view.delta(row)
            if not len(collected):
                collected.begin(offset)
            elif not collected.has_room(offset):
                self._end_collected(offset)
                collected.begin(offset)
            before = collected.size
            collected.add(offset, view.message(row), view.described(row))
            self._budget -= _COPY_COST + (collected.size - before) // _COPIED
        return after

    def _end_collected(self, end: int) -> None:
        collected = self._collected
        if len(collected):
            base = collected.base
            batch, _ = collected.take(end)
            self._batches.append((base, batch))
            self._whole_bytes += len(batch)
