"""FETCH: whole stored record batches from an offset on, at once or when enough have come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.streams.records import batch_count
from trivium.streams.stream import Partition, StreamReader
from trivium_native.wire.errors import NotFound
from trivium_native.wire.frames import FETCHED, encode_frame
from trivium_native.wire.messages import encode_fetched

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: Most bytes of batches in one reply (but always one batch), and the longest wait.
MAX_FETCH_BYTES: Final = 16 << 20
MAX_WAIT_MS: Final = 60_000
#: Fetches that one connection may have waiting.
MAX_FETCHES: Final = 1024


class Fetch(StreamReader):
    """One FETCH until it is answered.

    It is answered once ``min_bytes`` are there, or when ``deadline_ms`` has passed, in both cases
    not before the connection takes output.
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
    ) -> None:
        self.connection = connection
        self.correlation = correlation
        self.deadline_ms = deadline_ms
        self._partition = partition
        self._offset = offset
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._is_waiting = False
        self._is_loading = False

    def step(self) -> bool:
        """Answer if that is possible now; whether it was answered."""
        connection = self.connection
        if self._is_loading or not connection.has_room():
            return False
        partition = self._partition
        if partition.stream.is_deleted:
            connection.send_error(self.correlation, NotFound("the stream was deleted"))
            return True
        is_due = connection.broker.elapsed_ms >= self.deadline_ms
        if self._is_waiting and not is_due:
            return False
        if not partition.is_loaded(self._offset):
            self._is_loading = True
            partition.load(self._offset, self._max_bytes, self._loaded)
            return False
        batches = partition.read(self._offset, self._max_bytes)
        size = 0
        for _, batch in batches:
            size += len(batch)
        if size < self._min_bytes and not is_due:
            self._is_waiting = True
            partition.wait(self)
            return False
        self._stop_waiting()
        for _, batch in batches:
            connection.metrics.messages_sent += batch_count(batch)
        body = encode_fetched(partition.first_offset, partition.high_watermark, batches)
        connection.send(encode_frame(FETCHED, self.correlation, body))
        return True

    def _loaded(self) -> None:
        self._is_loading = False
        self._try()

    def watermark_moved(self, partition: Partition) -> None:
        self._is_waiting = False
        self._try()

    def _try(self) -> None:
        if not self.connection.is_closed and self.step():
            self.connection.fetches.pop(self, None)

    def stream_deleted(self, partition: Partition) -> None:
        self._is_waiting = False
        connection = self.connection
        connection.fetches.pop(self, None)
        connection.send_error(self.correlation, NotFound("the stream was deleted"))

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._partition.cancel(self)

    def cancel(self) -> None:
        """The connection is gone."""
        self._stop_waiting()


class FetchTimer(Timed):
    """Answers the fetches of one connection when their time has come.

    One timer for all of them, so that many short fetches leave nothing behind in the heap.
    """

    def __init__(self, connection: NativeConnection) -> None:
        self._connection: NativeConnection | None = connection

    def due(self) -> None:
        connection = self._connection
        if connection is None:
            return
        connection.answer_fetches()
        # What is due but held (by a slow reader, or a read from disk) is answered without a timer.
        now = connection.broker.elapsed_ms
        later = [fetch.deadline_ms for fetch in connection.fetches if fetch.deadline_ms > now]
        if later:
            connection.broker.timeouts.call_at(min(later), self)

    def stop(self) -> None:
        """The connection is gone, and need not be kept in memory."""
        self._connection = None
