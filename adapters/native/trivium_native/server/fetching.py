"""FETCH: whole stored record batches from an offset on, at once or when enough have come."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.security.permissions import READ
from trivium.streams.filtered_reads import FilteredReader, FilteredReads
from trivium.streams.filtering import FilteredPage, TopicFilter
from trivium.streams.stream import Partition
from trivium_native.server.subscriptions import count_read
from trivium_native.wire.errors import AccessRefused, NotFound, OffsetOutOfRange
from trivium_native.wire.messages import encode_fetched

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: Bytes that are brought into memory at a time to look for records of some topics.
SEARCH_BYTES: Final = 1 << 20


class Fetch(FilteredReader):
    """One FETCH until it is answered.

    It is answered once ``min_bytes`` are there, or when ``deadline_ms`` has passed, in both cases
    not before the connection takes output. With a filter it looks for them when its turn comes.
    """

    def __init__(
        self,
        connection: NativeConnection,
        correlation: int,
        partition: Partition,
        offset: int,
        min_bytes: int,
        max_bytes: int,
        deadline_ms: int,
        topic_filter: TopicFilter | None,
    ) -> None:
        self.connection = connection
        self.correlation = correlation
        self.deadline_ms = deadline_ms
        self._partition = partition
        self._offset = offset
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._page: FilteredPage | None = None
        if topic_filter is not None:
            self._page = FilteredPage(partition, offset, topic_filter, max_bytes)
        self._is_waiting = False
        self._is_loading = False

    def step(self, is_its_turn: bool = False) -> bool:
        """Answer if that is possible now; whether it was answered."""
        connection = self.connection
        if self._is_loading:
            return False
        if not connection.has_room():
            connection.fetches.hold(self)
            return False
        partition = self._partition
        if not self.is_permitted:
            self._stop_waiting()
            refusal = connection.access.refused(f"read access to stream '{partition.stream.name}'")
            connection.send_error(self.correlation, AccessRefused(str(refusal)))
            return True
        if partition.stream.is_deleted:
            self._stop_waiting()
            connection.send_error(self.correlation, NotFound("the stream was deleted"))
            return True
        is_due = connection.broker.elapsed_ms >= self.deadline_ms
        if self._is_waiting and not is_due:
            return False
        page = self._page
        if page is not None:
            if is_its_turn:
                return self._read_page(page, is_due)
            connection.fetches.filtered_reads.add(self)
            return False
        if not partition.is_loaded(self._offset):
            self._load(self._offset, self._max_bytes)
            return False
        batches = partition.read(self._offset, self._max_bytes)
        size = 0
        for _, batch in batches:
            size += len(batch)
        if size < self._min_bytes and not is_due:
            self._wait()
            return False
        self._answer(batches)
        return True

    def _read_page(self, page: FilteredPage, is_due: bool) -> bool:
        """The same with a filter: a page that is full is the answer, also if it has nothing."""
        partition = self._partition
        if not page.more():
            self._load(page.next_offset, SEARCH_BYTES)
            return False
        if page.is_lost and not page.size:
            self._stop_waiting()
            error = OffsetOutOfRange.of(
                page.next_offset, partition.first_offset, partition.high_watermark
            )
            self.connection.send_error(self.correlation, error)
            return True
        is_at_end = not page.is_full() and not page.is_lost
        if is_at_end and page.size < self._min_bytes and not is_due:
            page.wait()
            self._wait()
            return False
        self._answer(page.batches(), page.next_offset)
        return True

    def look(self) -> int:
        page = self._page
        before = 0 if page is None else page.cost
        self._try(True)
        return 0 if page is None else page.cost - before

    def _load(self, offset: int, max_bytes: int) -> None:
        self._is_loading = True
        self._partition.load(offset, max_bytes, self._loaded)

    def _wait(self) -> None:
        self._is_waiting = True
        self._partition.wait(self)

    def _answer(self, batches: list[tuple[int, bytes]], next_offset: int = -1) -> None:
        self._stop_waiting()
        connection = self.connection
        partition = self._partition
        for _, batch in batches:
            count_read(connection, partition, batch)
        for piece in encode_fetched(
            self.correlation,
            partition.first_offset,
            partition.high_watermark,
            batches,
            self._offset,
            next_offset,
        ):
            connection.send(piece)

    @property
    def is_permitted(self) -> bool:
        """Whether its client may still read the stream."""
        return self.connection.access.may(READ, self._partition.stream.name)

    def _loaded(self) -> None:
        self._is_loading = False
        self._try()

    def watermark_moved(self, partition: Partition) -> None:
        self._is_waiting = False
        self._try()

    def _try(self, is_its_turn: bool = False) -> None:
        connection = self.connection
        if not connection.is_closed and self.step(is_its_turn):
            connection.fetches.remove(self)

    def stream_deleted(self, partition: Partition) -> None:
        self._is_waiting = False
        self._stop_waiting()
        connection = self.connection
        connection.fetches.remove(self)
        connection.send_error(self.correlation, NotFound("the stream was deleted"))

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._partition.cancel(self)
        if self._page is not None:
            self.connection.fetches.filtered_reads.remove(self)

    def cancel(self) -> None:
        """The connection is gone."""
        self._stop_waiting()


class Fetches(Timed):
    """The fetches of one connection that are not answered yet.

    One timer for all of them, so that many short fetches leave nothing behind with the broker's.
    """

    def __init__(self, connection: NativeConnection, filtered_reads: FilteredReads) -> None:
        self._connection: NativeConnection | None = connection
        #: where readers with a filter take their turns, those of all connections
        self.filtered_reads = filtered_reads
        # Fetch -> its number: they are numbered as they come.
        self._fetches: dict[Fetch, int] = {}
        self._number = 0
        # Those that wait for room in the output.
        self._held: OrderedDict[Fetch, None] = OrderedDict()
        # Heap of deadline, number and fetch; the entries of answered ones stay for a while.
        self._times: list[tuple[int, int, Fetch]] = []

    def __len__(self) -> int:
        return len(self._fetches)

    def add(self, fetch: Fetch) -> None:
        """``fetch`` could not be answered at once."""
        connection = self._connection
        assert connection is not None
        self._number += 1
        self._fetches[fetch] = self._number
        # As many as may wait, and as many of answered ones: so those are cleared away once for as
        # many fetches, not for each.
        if len(self._times) >= 2 * connection.options.max_fetches:
            self._times = [each for each in self._times if each[2] in self._fetches]
            heapify(self._times)
        heappush(self._times, (fetch.deadline_ms, self._number, fetch))
        connection.broker.timeouts.call_at(fetch.deadline_ms, self)

    def hold(self, fetch: Fetch) -> None:
        """``fetch`` is to be answered once the connection takes output."""
        self._held[fetch] = None

    def check_permissions(self) -> None:
        """Refuse those of what may not be read any more."""
        connection = self._connection
        for fetch in list(self._fetches):
            if connection is not None and not fetch.is_permitted and fetch.step():
                self.remove(fetch)

    def remove(self, fetch: Fetch) -> None:
        """``fetch`` is answered."""
        self._fetches.pop(fetch, None)
        self._held.pop(fetch, None)

    def flushed(self) -> None:
        """The connection takes output: answer what it was held for."""
        connection = self._connection
        while self._held and connection is not None and connection.has_room():
            fetch, _ = self._held.popitem(last=False)
            if fetch.step():
                self.remove(fetch)

    def due(self) -> None:
        connection = self._connection
        if connection is None:
            return
        now = connection.broker.elapsed_ms
        times = self._times
        due: list[tuple[int, Fetch]] = []
        while times and (times[0][0] <= now or times[0][2] not in self._fetches):
            _, number, fetch = heappop(times)
            if fetch in self._fetches:
                due.append((number, fetch))
        due.sort()
        # What is due but held (by a slow reader, or a read from disk) is answered without a timer.
        for _, fetch in due:
            if fetch.step():
                self.remove(fetch)
        if times:
            connection.broker.timeouts.call_at(times[0][0], self)

    def stop(self) -> None:
        """The connection is gone, and need not be kept in memory."""
        for fetch in self._fetches:
            fetch.cancel()
        self._fetches.clear()
        self._held.clear()
        self._times.clear()
        if self._connection is not None:
            self._connection.broker.timeouts.stop(self)
            self._connection = None
