"""Retention: removes the oldest record batches of a partition once a limit allows it.

Whole batches go, from the old end, and the newest one stays whatever its age. By number and size a
batch goes when those behind it are enough to reach the limit, so at least that much is kept; by age
when its newest record is too old. Limits are looked at about once a second while there is something
to do, a bounded piece of work at a time; what a removal frees, the storage frees as it does for
consumed messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.streams.records import batch_max_timestamp, batch_span
from trivium.streams.settings import StreamSettings

if TYPE_CHECKING:
    from trivium.streams.stream import Partition

#: At least this many milliseconds are between two looks, unless there is known work.
PERIOD_MS: Final = 1000

#: Offsets that one step removes by number or size, and batches and their bytes whose age it sees.
STEP_RECORDS: Final = 65_536
STEP_BATCHES: Final = 1024
STEP_BYTES: Final = 4 << 20

#: The size is counted again when the part of the limit that is 2 to the power of -this was added.
_RECOUNT_SHIFT: Final = 6


class Retention(Timed):
    """The retention of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._broker = partition.stream.vhost.broker
        self._settings = StreamSettings()
        self._is_limited = False
        self._is_loading = False
        # Bytes appended since the size was counted.
        self._uncounted = 0
        self._must_count = False
        self._aged = _Aged(self)

    def apply(self, settings: StreamSettings) -> None:
        """Put other limits in force, in this turn."""
        self._settings = settings
        self._is_limited = (
            settings.max_age >= 0 or settings.max_length >= 0 or settings.max_length_bytes >= 0
        )
        if self._is_limited:
            self._must_count = True
            self._call_after(0)

    def appended(self, size: int) -> None:
        """The partition got a batch of so many bytes."""
        self._uncounted += size
        if self._is_limited and not self.due_at:
            self._call_after(PERIOD_MS)

    def due(self) -> None:
        """A step of the work."""
        if not self._is_limited or self._is_loading or self._partition.stream.is_deleted:
            return
        if self._remove_beyond_length():
            self._call_after(0)
        elif self._settings.max_age >= 0:
            self._remove_aged(self._broker.now_ms)

    def _call_after(self, delay: int) -> None:
        self._broker.timeouts.call_at(self._broker.elapsed_ms + delay, self)
        self._broker.request_turn()

    def _remove_beyond_length(self) -> bool:
        """Remove what number and size allow; whether there is more to do at once."""
        settings = self._settings
        log = self._partition.log
        before = 0
        if settings.max_length >= 0:
            before = log.next_offset - settings.max_length
        limit = settings.max_length_bytes
        if limit >= 0 and (self._must_count or self._uncounted > limit >> _RECOUNT_SHIFT):
            before = max(before, log.offset_of_newest(limit))
            self._must_count = False
            self._uncounted = 0
        before = min(before, self._partition.high_watermark)
        first = log.first_offset
        if before <= first:
            return False
        step = min(before, first + STEP_RECORDS)
        log.truncate(step)
        if step < before:
            self._must_count = True
            return True
        return False

    def _remove_aged(self, now: int) -> None:
        """Remove what is too old, and come back when the next batch may be."""
        log = self._partition.log
        first = log.first_offset
        if not log.is_loaded(first):
            self._is_loading = True
            log.load(first, STEP_BYTES, self._loaded)
            return
        age = self._settings.max_age
        watermark = self._partition.high_watermark
        before = first
        batches = log.read(first, STEP_BATCHES, STEP_BYTES)
        for base, batch, _ in batches:
            end = base + batch_span(batch)
            if end >= log.next_offset:
                # The newest batch; the next one that is appended has it looked at again.
                break
            if end > watermark:
                self._call_after(PERIOD_MS)
                break
            expires = batch_max_timestamp(batch) + age
            if expires > now + PERIOD_MS:
                self._broker.dates.call_at(expires, self._aged)
                self._broker.request_turn()
                break
            if expires > now:
                self._call_after(PERIOD_MS)
                break
            before = end
        else:
            if batches:
                self._call_after(0)
        if before > first:
            log.truncate(before)

    def deleted(self) -> None:
        """The stream is gone: nothing is called any more, nor keeps it in memory."""
        self._broker.timeouts.stop(self)
        self._broker.dates.stop(self._aged)
        self._aged.retention = None

    def _loaded(self) -> None:
        # Now, since what was loaded need not be in memory for long.
        self._is_loading = False
        if not self._partition.stream.is_deleted and self._settings.max_age >= 0:
            self._remove_aged(self._broker.now_ms)
            self._broker.request_turn()


class _Aged(Timed):
    """The time at which a batch is too old."""

    def __init__(self, retention: Retention) -> None:
        #: None when the stream was deleted
        self.retention: Retention | None = retention

    def due(self) -> None:
        if self.retention is not None:
            self.retention.due()
