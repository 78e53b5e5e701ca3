"""Mode ``log`` with a filter: the records of some topics, and how far the others were passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.streams.filtered_reads import FilteredReader
from trivium.streams.filtering import FilteredPage, TopicFilter
from trivium.streams.records import batch_span
from trivium.streams.stream import Partition
from trivium_native.server.fetching import SEARCH_BYTES
from trivium_native.server.subscriptions import STEP_BYTES, LogSubscription
from trivium_native.wire.frames import BATCH, encode_frame
from trivium_native.wire.messages import BATCH_HEAD, BATCH_HEAD_SIZE

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: Credit that a BATCH without records takes, so that their number is bounded too.
PASSED_CREDIT: Final = BATCH_HEAD_SIZE


class _Reader(FilteredReader):
    """The subscription as its partition, and those who take turns, see it."""

    def __init__(self, subscription: FilteredSubscription) -> None:
        self._subscription = subscription

    def watermark_moved(self, partition: Partition) -> None:
        self._subscription.watermark_moved()

    def stream_deleted(self, partition: Partition) -> None:
        self._subscription.stream_deleted()

    def look(self) -> int:
        return self._subscription.look()


class FilteredSubscription(LogSubscription):
    """Sends a page of what matches when its turn comes, while any credit is left."""

    def __init__(
        self,
        connection: NativeConnection,
        number: int,
        partition: Partition,
        topic_filter: TopicFilter,
    ) -> None:
        super().__init__(connection, number, partition, _Reader(self))
        self._filter = topic_filter
        self._page: FilteredPage | None = None

    def pump(self) -> None:
        reader = self._reader
        if isinstance(reader, _Reader) and self._may_read():
            self.connection.fetches.filtered_reads.add(reader)

    def look(self) -> int:
        """Look at a page at most; what that cost."""
        partition = self._partition
        if not self._may_read():
            return 0
        if partition.stream.is_deleted:
            self.stream_deleted()
            return 0
        page = self._page
        if page is None:
            most = min(self._credit, STEP_BYTES)
            page = FilteredPage(partition, self._offset, self._filter, most, self._has_sent)
            self._page = page
        before = page.cost
        if not page.more():
            self._is_loading = True
            partition.load(page.next_offset, SEARCH_BYTES, self._loaded)
        elif page.is_lost or page.is_full() or page.size:
            self._send_page(page)
            self.pump()
        else:
            page.wait()
            self._wait()
        return page.cost - before

    def _send_page(self, page: FilteredPage) -> None:
        self._page = None
        sent = self._offset
        for base, batch in page.batches():
            self._send(base, batch)
            sent = base + batch_span(batch)
        self._has_sent = True
        # Where retention has passed it, it goes on with what is there.
        self._offset = max(page.next_offset, self._partition.first_offset)
        if sent != self._offset:
            head = BATCH_HEAD.pack(self.number, 0, self._offset)
            self.connection.send(encode_frame(BATCH, 0, head))
            self._credit -= PASSED_CREDIT

    def end(self) -> None:
        if isinstance(self._reader, _Reader):
            self.connection.fetches.filtered_reads.remove(self._reader)
        super().end()
