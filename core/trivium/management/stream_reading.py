"""Reading a partition for somebody who has no connection: what there is, or the next that comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Wake
from trivium.streams.records import RecordBatch
from trivium.streams.stream import StreamReader

if TYPE_CHECKING:
    from trivium.messages.message import Message
    from trivium.runtime.broker import Broker
    from trivium.streams.stream import Partition

#: Bytes of record batches that are read at once, where the first is not larger.
MAX_READ_BYTES: Final = 1 << 20

Batches = list[tuple[int, bytes]]


class PartitionRead(StreamReader):
    """Calls ``done`` with whole record batches from an offset on, with none where nothing has come
    within ``wait_ms``, and with None where the stream is gone."""

    def __init__(
        self,
        broker: Broker,
        partition: Partition,
        offset: int,
        wait_ms: int,
        done: Callable[[Batches | None], None],
    ) -> None:
        self._broker = broker
        self._partition = partition
        self._offset = offset
        self._until = broker.elapsed_ms + wait_ms
        self._done = done
        # None once it is over: they would keep each other in memory.
        self._wake: Wake | None = Wake(self.step)

    def step(self) -> None:
        """Go on."""
        if self._wake is None:
            return
        partition = self._partition
        if partition.stream.is_deleted:
            self._end(None)
            return
        if not partition.is_loaded(self._offset):
            partition.load(self._offset, MAX_READ_BYTES, self.step)
            return
        found = partition.read(self._offset, MAX_READ_BYTES)
        if found or self._broker.elapsed_ms >= self._until:
            self._end(found)
            return
        partition.wait(self)
        self._broker.timeouts.call_at(self._until, self._wake)

    def stop(self) -> None:
        """It waits no longer."""
        self._end([])

    def watermark_moved(self, partition: Partition) -> None:
        self.step()

    def stream_deleted(self, partition: Partition) -> None:
        self._end(None)

    def _end(self, found: Batches | None) -> None:
        if self._wake is None:
            return
        self._broker.timeouts.stop(self._wake)
        self._wake = None
        self._partition.cancel(self)
        self._done(found)


def messages_in(batches: Batches, offset: int) -> Iterator[tuple[int, Message]]:
    """The messages from an offset on, with their offsets."""
    for base, data in batches:
        batch = RecordBatch(data, verify=False)
        for row in range(batch.row_from(offset - base), batch.count):
            yield base + batch.delta(row), batch.message(row)


def end_of(batches: Batches, offset: int) -> int:
    """The offset behind them."""
    if not batches:
        return offset
    base, data = batches[-1]
    return max(base + RecordBatch(data, verify=False).span, offset)
