"""Small record batches of a partition, joined into larger ones.

A turn that brings a partition few messages makes a small record batch, and readers pay for a batch
as much as for a hundred records. So the messages of small batches are kept for a while, in *runs*
without a gap. When a run is full and readers may see all of it, one batch takes its place in the
log. Offsets and order stay; only where batches begin changes. The journal has the small ones,
and after a crash the log may have them again: then they are joined again, a few in each turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.host import Host
from trivium.messages.message import Message
from trivium.storage.base import Log, LogOwner
from trivium.streams.record_encoder import PLAIN_MESSAGE, Described, encode_batch
from trivium.streams.records import BatchError, RecordBatch, batch_count, batch_span
from trivium.streams.settings import StreamSettings

if TYPE_CHECKING:
    from trivium.streams.stream import Partition

#: A batch below both is small: more records share the cost of a batch well enough.
SMALL_RECORDS: Final = 128
SMALL_BYTES: Final = 16 * 1024

#: A joined batch has so many records or bytes at most; to make it takes a millisecond or two.
JOINED_RECORDS: Final = 1024
JOINED_BYTES: Final = 64 * 1024
#: ... and its records arrived within so many milliseconds, since retention removes it as a whole.
JOINED_SPAN_MS: Final = 60_000

#: Retention removes whole batches: one holds at most this part of what it is to keep. Where that
#: would make joined batches much smaller, there are none: few messages are read soon enough.
_SHARE_OF_LIMIT: Final = 16
_LEAST_SHARE: Final = 8

#: Batches and bytes that are read again in one step after a crash, which takes some milliseconds,
#: and milliseconds between two steps.
_STEP_BATCHES: Final = 128
_STEP_BYTES: Final = 256 * 1024
_PAUSE_MS: Final = 2


class _Run:
    """The messages of small batches that follow one another, from offset ``first`` on."""

    def __init__(self, first: int, timestamp: int) -> None:
        self.first = first
        self.timestamp = timestamp
        self.messages: list[Message] = []
        self.described: list[Described] = []
        self.size = 0
        self.batches = 0

    def end(self) -> int:
        """The offset after the last message."""
        return self.first + len(self.messages)

    def add(self, messages: list[Message], described: list[Described], size: int) -> None:
        """Take the messages of another batch, with ``size`` bytes."""
        self.messages.extend(messages)
        self.described.extend(described)
        self.size += size
        self.batches += 1


class BatchJoiner(LogOwner):
    """Joins the small batches of one partition, whose newest records are in ``log``."""

    def __init__(self, partition: Partition, log: Log) -> None:
        self._partition = partition
        self._log = log
        self._codec = 0
        self._max_records = 0
        self._max_bytes = 0
        self._max_span = 0
        self._is_on = False
        #: the run that grows, and full ones that readers may not see yet, oldest first
        self._run: _Run | None = None
        self._full: deque[_Run] = deque()
        #: what was recovered and not looked at: from where, to where, and the run that grows of it
        self._recovered_at = log.joinable_from()
        self._recovered_end = log.next_offset
        self._recovered_run: _Run | None = None
        log.owner = self
        if self._recovered_at < self._recovered_end:
            partition.stream.vhost.recovered_joins.add(self)

    def apply(self, settings: StreamSettings) -> None:
        """Put other settings in force."""
        self._codec = settings.codec
        self._max_records = _within(JOINED_RECORDS, settings.max_length)
        self._max_bytes = _within(JOINED_BYTES, settings.max_length_bytes)
        self._max_span = _within(JOINED_SPAN_MS, settings.max_age)
        self._is_on = self._max_records > 0 and self._max_bytes > 0 and self._max_span > 0

    def appended(
        self, first: int, messages: list[Message], described: list[Described] | None, size: int
    ) -> None:
        """The log got a batch of these messages, with ``size`` bytes, at offset ``first``."""
        if len(messages) >= SMALL_RECORDS or size >= SMALL_BYTES or not self._is_on:
            self._close()
            return
        run = self._run
        if run is None or not self._fits(run, messages, size):
            self._close()
            run = self._run = _Run(first, messages[-1].timestamp)
        if described is None:
            described = [PLAIN_MESSAGE] * len(messages)
        run.add(messages, described, size)

    def passed(self) -> None:
        """The log got a batch that is joined with no other."""
        self._close()

    def watermark_moved(self) -> None:
        """Readers may see more."""
        while self._full and self._full[0].end() <= self._partition.high_watermark:
            run = self._full.popleft()
            self._join(run, len(run.messages))

    def join_records(self) -> int:
        """What readers may not see yet is left in small batches."""
        self._close()
        watermark = self._partition.high_watermark
        joined = 0
        for run in self._full:
            if run.first < watermark:
                joined += self._join(run, min(watermark - run.first, len(run.messages)))
        self._full.clear()
        return joined

    def join_recovered(self) -> bool:
        """Go on joining what a crash left; whether there may be more."""
        log = self._log
        at = max(self._recovered_at, log.first_offset)
        if not self._is_on or at >= self._recovered_end or not log.is_loaded(at):
            # What is not in memory any more was written as it is by a checkpoint.
            self._join_recovered_run()
            return False
        for base, batch, _ in log.read(at, _STEP_BATCHES, _STEP_BYTES):
            at = base + batch_span(batch)
            if base < self._recovered_end:
                try:
                    self._take_recovered(base, batch)
                except BatchError:
                    # Whoever reads it says so.
                    self._join_recovered_run()
        is_further = at > self._recovered_at
        self._recovered_at = at
        return is_further

    def _take_recovered(self, base: int, batch: bytes) -> None:
        count = batch_count(batch)
        if count >= SMALL_RECORDS or len(batch) >= SMALL_BYTES or count != batch_span(batch):
            self._join_recovered_run()
            return
        view = RecordBatch(batch)
        messages = [view.message(row) for row in range(count)]
        size = sum([message.size + len(message.header) for message in messages])
        run = self._recovered_run
        if run is None or run.end() != base or not self._fits(run, messages, size):
            self._join_recovered_run()
            run = self._recovered_run = _Run(base, messages[-1].timestamp)
        run.add(messages, [view.described(row) for row in range(count)], size)

    def _join_recovered_run(self) -> None:
        run = self._recovered_run
        self._recovered_run = None
        if run is not None and run.batches > 1:
            self._join(run, len(run.messages))

    def deleted(self) -> None:
        """The stream is gone."""
        self._run = None
        self._recovered_run = None
        self._recovered_at = self._recovered_end
        self._full.clear()
        self._log.owner = None

    def _fits(self, run: _Run, messages: list[Message], size: int) -> bool:
        """Whether a run may have these messages too."""
        return (
            len(run.messages) + len(messages) <= self._max_records
            and run.size + size <= self._max_bytes
            and messages[-1].timestamp - run.timestamp <= self._max_span
        )

    def _close(self) -> None:
        run = self._run
        self._run = None
        if run is not None and run.batches > 1:
            self._full.append(run)

    def _join(self, run: _Run, count: int) -> int:
        """Join the first messages of a run; how many."""
        if self._partition.is_compacting:
            # It goes from batch to batch, and must find them where they were.
            return 0
        messages, described = run.messages[:count], run.described[:count]
        is_plain = described.count(PLAIN_MESSAGE) == count
        batch = encode_batch(messages, None if is_plain else described, self._codec)
        self._log.join(run.first, run.first + count, batch)
        return count


class RecoveredJoins(Timed):
    """Has what a crash left in small batches joined: a step at a time, one partition after another.

    A checkpoint that comes before leaves them small.
    """

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        self._joiners: deque[BatchJoiner] = deque()

    def add(self, joiner: BatchJoiner) -> None:
        """A partition that was recovered has small batches, perhaps."""
        self._joiners.append(joiner)
        self._call_after(0)

    def due(self) -> None:
        """A step."""
        if not self._joiners[0].join_recovered():
            self._joiners.popleft()
        if self._joiners:
            self._call_after(_PAUSE_MS)

    def _call_after(self, delay: int) -> None:
        self._broker.timeouts.call_at(self._broker.elapsed_ms + delay, self)
        self._broker.request_turn()


def _within(most: int, limit: int) -> int:
    """``most``, or less where what retention is to keep (-1 for no limit) is little."""
    if limit < 0:
        return most
    share = min(most, limit // _SHARE_OF_LIMIT)
    return share if share >= most // _LEAST_SHARE else 0
