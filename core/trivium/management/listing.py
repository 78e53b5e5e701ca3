"""Long answers: lists that are filtered, sorted, cut into pages and written a part at a time.

A list may have 100,000 items. Each part of the work takes a moment, then others are served; nothing
but the items themselves and their places in the order is kept meanwhile, and each is described when
its turn to be written comes.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from trivium.common.patterns import Pattern, PatternError
from trivium.management.values import Later, encode, encode_in_pieces
from trivium.observability.api import ApiAnswer, ApiRefused, refusal

if TYPE_CHECKING:
    from trivium.management.calls import Call

#: Seconds after which others are served.
SLICE_SECONDS: Final = 0.002
#: Items that are looked at between two looks at the clock.
STEP: Final = 16
#: Bytes of text that are handed on together.
PART_BYTES: Final = 16 * 1024
#: Items that are sorted at once, in about a slice.
RUN: Final = 500
PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 500
MAX_NAME_LENGTH: Final = 128
#: States of a regular expression: each name is read once for them.
MAX_STATES: Final = 128
MAX_COLUMNS: Final = 64
#: What is sorted by without a look at the items.
_PLAIN: Final = ("", "name", "vhost")

Item = TypeVar("Item")
_Key = tuple[object, ...]
#: What finds the value at a path of names in an item's description; None: that takes all of it.
ValueOf = Callable[[str], Callable[[Item], object] | None]


class Slices:
    """Says when others are to be served."""

    def __init__(self) -> None:
        self._until = time.monotonic() + SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the slice has lasted long enough."""
        return time.monotonic() >= self._until

    def begin(self) -> None:
        """Others were served."""
        self._until = time.monotonic() + SLICE_SECONDS


class Page:
    """Which part of a list is asked for."""

    def __init__(self, number: int, size: int, matches: Callable[[str], bool] | None) -> None:
        self.number = number
        self.size = size
        #: None for all names
        self.matches = matches


class InOrder(Generic[Item]):
    """Items in their order: how many there are, and some of them."""

    def __init__(self, count: int, some: Callable[[int, int], Iterator[Item]]) -> None:
        self.count = count
        self.some = some


def ordered(names: list[str]) -> Iterator[str | None]:
    """Names in their order; None where others are to be served."""
    slices = Slices()
    runs: list[list[str]] = []
    for start in range(0, len(names), RUN):
        runs.append(sorted(names[start : start + RUN]))
        if slices.is_over:
            yield None
            slices.begin()
    for number, name in enumerate(heapq.merge(*runs)):
        yield name
        if number % STEP == 0 and slices.is_over:
            yield None
            slices.begin()


class Listing(Generic[Item]):
    """A list as an answer.

    ``describe`` makes what JSON shows of an item, ``order`` its place where no other is asked for:
    its virtual host and name, the last of which is the name that is looked at where pages are
    filtered. Whoever finds the items says None where it has looked for one in vain, so that others
    are served meanwhile. What an item has become by the time it is described is shown; where
    ``describe`` says None it is left out.

    ``in_order`` knows the items in this order without looking at each: it serves pages of all.
    ``value_of`` finds what ``describe`` would say at a path without describing all (``by_path``),
    for lists of very many items that are sorted by it.
    """

    def __init__(
        self,
        call: Call,
        items: Iterable[Item | None],
        describe: Callable[[Item], Mapping[str, object] | None],
        order: Callable[[Item], tuple[str, ...]],
        admits: Callable[[Item], bool] | None = None,
        is_paged: bool = False,
        in_order: Callable[[], Generator[None, None, InOrder[Item]]] | None = None,
        value_of: ValueOf[Item] | None = None,
    ) -> None:
        query = call.request.query
        self._is_paged = is_paged
        if is_paged:
            # There are no lists without pages.
            query = {"page": "1", **query}
        self._items = items
        self._describe = describe
        self._order = order
        self._admits = admits
        self._columns = columns_of(query)
        self._page = page_of(query)
        self._sort = query.get("sort", "")
        self._is_reversed = query.get("sort_reverse") == "true"
        self._in_order = in_order
        self._value = None if value_of is None or self._sort in _PLAIN else value_of(self._sort)
        self._slices = Slices()
        self._total = 0

    def answer(self) -> ApiAnswer:
        """The answer, which is not made yet."""
        return ApiAnswer(200, parts=self._parts())

    def _parts(self) -> Iterator[bytes]:
        self._slices.begin()
        page = self._page
        is_plain = not self._sort and not self._is_reversed
        if self._in_order is not None and page is not None and is_plain and page.matches is None:
            making = self._in_order()
            while True:
                try:
                    next(making)
                except StopIteration as made:
                    found: InOrder[Item] = made.value
                    break
                yield b""
                self._slices.begin()
            self._total = found.count
            first = self._first(page, found.count)
            chosen_items = enumerate(found.some(first, page.size))
            entries = (((), number, item) for number, item in chosen_items)
            yield from self._page_of(page, found.count, first, entries)
            return
        runs: list[list[tuple[_Key, int, Item]]] = [[]]
        for entry in self._taken():
            if entry is None:
                yield b""
                self._slices.begin()
                continue
            if len(runs[-1]) == RUN:
                runs[-1].sort(reverse=self._is_reversed)
                runs.append([])
            runs[-1].append(entry)
        runs[-1].sort(reverse=self._is_reversed)
        count = sum(map(len, runs))
        merged = iter(heapq.merge(*map(_let_go, runs), reverse=self._is_reversed))
        if page is None:
            yield from self._written(merged, b"[", b"]")
            return
        first = self._first(page, count)
        yield from self._skip(merged, first)
        shown = list(islice(merged, page.size))
        del merged
        while runs:
            runs.pop()
            if self._slices.is_over:
                yield b""
                self._slices.begin()
        yield from self._page_of(page, count, first, iter(shown))

    def _first(self, page: Page, count: int) -> int:
        """The number of the first item of a page. Raises ApiRefused where there is none."""
        if page.number > max(-(-count // page.size), 1):
            reason = f"Page out of range, page: {page.number} page size: {page.size}, len: {count}"
            status = 404 if self._is_paged else 400
            raise ApiRefused(refusal(status, "page_out_of_range", reason))
        return (page.number - 1) * page.size

    def _page_of(
        self, page: Page, count: int, first: int, entries: Iterator[tuple[_Key, int, Item]]
    ) -> Iterator[bytes]:
        head = {"filtered_count": count, "item_count": min(page.size, count - first)}
        tail = {
            "page": page.number,
            "page_count": max(-(-count // page.size), 1),
            "page_size": page.size,
            "total_count": self._total,
        }
        start = encode(head)[:-1] + b',"items":['
        yield from self._written(entries, start, b"]," + encode(tail)[1:])

    def _taken(self) -> Iterator[tuple[_Key, int, Item] | None]:
        """The items that are wanted, each with its place; None where others are to be served."""
        matches = None if self._page is None else self._page.matches
        is_plain = self._sort in _PLAIN
        for index, item in enumerate(self._items):
            if index % STEP == 0 and self._slices.is_over:
                yield None
            if item is None:
                continue
            if self._admits is not None and not self._admits(item):
                continue
            self._total += 1
            order = self._order(item)
            if matches is not None and not matches(order[-1]):
                continue
            key: _Key = order
            if self._sort == "name":
                key = (order[-1], *order)
            elif self._value is not None:
                key = (*_rank(self._value(item)), *order)
            elif not is_plain:
                key = (*_rank(value_at(self._describe(item) or {}, self._sort)), *order)
            yield key, self._total, item

    def _skip(self, merged: Iterator[tuple[_Key, int, Item]], count: int) -> Iterator[bytes]:
        for _ in islice(merged, count):
            if self._slices.is_over:
                yield b""
                self._slices.begin()

    def _written(
        self, entries: Iterator[tuple[_Key, int, Item]], start: bytes, end: bytes
    ) -> Iterator[bytes]:
        parts = [start]
        size = 0
        is_first = True
        for _, _, item in entries:
            found = self._describe(item)
            if found is None:
                continue
            if self._columns:
                found = chosen(found, self._columns)
            if not is_first:
                parts.append(b",")
            is_first = False
            for text in encode_in_pieces(found):
                parts.append(text)
                size += len(text)
                if size >= PART_BYTES or self._slices.is_over:
                    yield b"".join(parts)
                    parts.clear()
                    size = 0
                    self._slices.begin()
        parts.append(end)
        yield b"".join(parts)


def _let_go(run: list[Item]) -> Iterator[Item]:
    """The items of a list that nobody else needs: to let very many go at once takes a while."""
    run.reverse()
    while run:
        yield run.pop()


def page_of(query: Mapping[str, str]) -> Page | None:
    """The page that is asked for; None for all of the list. Raises ApiRefused."""
    if "page" not in query:
        return None
    try:
        number = int(query["page"][:9])
        size = int(query.get("page_size", str(PAGE_SIZE))[:9])
        matches = _name_filter(query.get("name", ""), query.get("use_regex") == "true")
    except (ValueError, PatternError):
        text = "Pagination parameters are invalid"
        raise ApiRefused(refusal(400, "bad_request", text)) from None
    if number < 1 or not 1 <= size <= MAX_PAGE_SIZE:
        text = f"Invalid pagination parameters: page number {number}, page size {size}"
        raise ApiRefused(refusal(400, "invalid_pagination_parameters", text))
    return Page(number, size, matches)


def _name_filter(text: str, is_pattern: bool) -> Callable[[str], bool] | None:
    """Whether a name has the text in it, or the regular expression, whatever the case of either.

    Raises PatternError, also for what would take long.
    """
    if len(text) > MAX_NAME_LENGTH:
        raise PatternError("it is too long")
    if not text:
        return None
    if not is_pattern:
        wanted = text.lower()
        return lambda name: wanted in name.lower()
    # What stands behind a backslash may be a class, which its case tells from its opposite.
    characters: list[str] = []
    is_escaped = False
    for character in text.removeprefix("(?i)"):
        characters.append(character if is_escaped else character.lower())
        is_escaped = character == "\\" and not is_escaped
    pattern = Pattern("".join(characters), MAX_STATES)
    return lambda name: pattern.matches(name.lower())


def columns_of(query: Mapping[str, str]) -> list[list[str]]:
    """Those that are asked for, each as a path; none for all."""
    text = query.get("columns", "")
    return [name.split(".") for name in text.split(",")[:MAX_COLUMNS]] if text else []


def chosen(found: Mapping[str, object], columns: list[list[str]]) -> dict[str, object]:
    """The columns that are asked for, as far as they are there: what is null is."""
    result: dict[str, object] = {}
    for path in columns:
        source, target = found, result
        for name in path[:-1]:
            inner = source.get(name)
            if not isinstance(inner, Mapping):
                break
            known = target.get(name)
            if not isinstance(known, dict):
                known = target[name] = {}
            source, target = inner, known
        else:
            if path[-1] in source:
                value = source[path[-1]]
                target[path[-1]] = dict(value) if isinstance(value, Mapping) else value
    return result


def only_columns(call: Call, found: Mapping[str, object]) -> Mapping[str, object]:
    """One thing, with the columns that are asked for."""
    columns = columns_of(call.request.query)
    return chosen(found, columns) if columns else found


def by_path(fields: Mapping[str, Callable[[Item], object]]) -> ValueOf[Item]:
    """What finds values at the paths of these fields, and in the values of those without a dot."""

    def value_of(path: str) -> Callable[[Item], object] | None:
        if path in fields:
            return fields[path]
        first = path.partition(".")[0]
        field = fields.get(first)
        return None if field is None else lambda item: value_at({first: field(item)}, path)

    return value_of


def value_at(found: Mapping[str, object], path: str) -> object:
    """What stands at a path of names with dots between; None for nothing."""
    if path in found:
        return found[path]
    value: object = found
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def _rank(value: object) -> _Key:
    """A key by which values of all types can be sorted."""
    if value is None or isinstance(value, Later):
        return (0, 0)
    if isinstance(value, int | float):
        return (1, value)
    if isinstance(value, str):
        return (2, value)
    return (3, encode(value))
