"""A sub-queue: the messages of one priority in a queue, first in, first out.

A sub-queue on disk storage is a ``Log`` of message records plus a cache of decoded entries: the
next ones to be delivered. A sub-queue in memory has no log and holds all its entries. A backlog
longer than the cache stays in the log and is read back as consumers get there, so its length costs
disk, not memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from heapq import heappop, heappush, nsmallest
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from trivium.messages.message import (
    EXACTLY_ONCE,
    Message,
    decode_record,
    payload_bytes_of,
    records_of,
)
from trivium.queues.requeues import forget_requeues, restore_requeues
from trivium.queues.waiting import waiting_of
from trivium.storage.base import Log, Storage, Weigher

if TYPE_CHECKING:
    from trivium.queues.consumers import Consumer
    from trivium.queues.queue import Queue

#: Entries that a sub-queue on disk keeps decoded in memory; what is beyond waits in the log.
CACHED_ENTRIES: Final = 8192
#: Bytes of payload in that cache, so that large messages do not make it a memory hog (32 MiB).
CACHED_BYTES: Final = 32 << 20
#: Entries and bytes read back from the log at a time.
REFILL: Final = 2048
REFILL_BYTES: Final = 4 << 20


@mypyc_attr(acyclic=True)
class QueueEntry:
    """A message's place in one queue, from ``put`` until it is settled."""

    def __init__(
        self, queue: Queue, sub_queue: SubQueue, message: Message, annotation: bytes
    ) -> None:
        self.queue = queue
        self.sub_queue = sub_queue
        self.offset = 0
        self.message = message
        #: what the binding's adapter wanted remembered with this message in this queue
        self.annotation = annotation
        #: it was, or after a crash may have been, handed to a consumer before
        self.is_redelivered = False
        #: times that it was handed to a consumer and came back
        self.requeues = 0
        #: milliseconds since the epoch; the message's own expiry or the queue's; 0 for never
        self.expires = 0
        #: write batch that must be durable before delivery; 0 for none
        self.write_batch = 0
        #: whether the sub-queue's log holds a record of it
        self.is_stored = False
        self.is_settled = False
        #: the consumer that it was handed to, and the number that the client knows it by; for the
        #: adapter's own use
        self.holder: Consumer | None = None
        self.tag: i64 = 0


#: What a sub-queue has until it needs something of its own: most are empty, and there may be very
#: many of them. Nothing is ever put in.
_NO_ENTRIES: Final[deque[QueueEntry]] = deque()
_NONE_REQUEUED: Final[list[tuple[int, QueueEntry]]] = []
_NONE_SETTLED: Final[list[tuple[int, int]]] = []


class _PayloadWeigher(Weigher):
    """Weighs messages by their payloads."""

    def weigh(self, records: list[bytes | None]) -> int:
        return payload_bytes_of(records)


_WEIGHER: Final = _PayloadWeigher()


def _offset_of(entry: QueueEntry) -> int:
    return entry.offset


class SubQueue:
    """The messages of one priority in a queue. ``log`` is None in memory."""

    def __init__(
        self,
        queue: Queue,
        log: Log | None,
        storage: Storage,
        priority: int = 0,
    ) -> None:
        self.log = log
        self.priority = priority
        #: None when it was deleted
        self._queue: Queue | None = queue
        self._storage = storage
        self._next_offset = 0
        self._ready = _NO_ENTRIES
        self._ready_bytes = 0
        self._requeued = _NONE_REQUEUED
        # The first offset that is in the log but not in the cache; -1 when all is in the cache.
        self._spill_from = -1
        self._spilled = 0
        # Transient entries that came while the cache was full; they have no record to read back.
        self._transient = _NO_ENTRIES
        # The offset that ``has_lasting_head`` has last said yes of; what was there may have left
        # memory since.
        self._lasting: i64 = -1
        #: whether a read from the log is under way
        self.is_loading = False
        # Settled offsets that no removal was written for: ranges, and the last one, which grows.
        self._settled = _NONE_SETTLED
        self._settled_from: i64 = 0
        self._settled_to: i64 = 0
        # Entries below this offset were there from the start.
        self._recovered_to = 0 if log is None else log.next_offset
        #: bytes of payload of those that were not read yet: about, see ``Log.weight``
        self.unread = 0
        if log is not None:
            log.weigher = _WEIGHER
            if len(log) > 0:
                self._spill_from = log.first_offset
                self._spilled = len(log)
                self.unread = log.weight()

    def __len__(self) -> int:
        """Entries that are ready, whether in the cache or in the log."""
        return len(self._ready) + len(self._requeued) + self._spilled + len(self._transient)

    @property
    def cached(self) -> int:
        """Entries in the cache."""
        return len(self._ready)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ready."""
        return not self._ready and not self._requeued and self._spill_from < 0

    @property
    def is_spilled(self) -> bool:
        """Whether new entries with a record wait in the log behind others."""
        return self._spill_from >= 0

    def record(self, entry: QueueEntry) -> bool:
        """Give a new entry its offset, and a record if there is a log; whether there is."""
        log = self.log
        if log is None:
            entry.offset = self._next_offset
            self._next_offset += 1
            return False
        entry.offset = log.append(entry.message.record(), 1, entry.annotation)
        entry.is_stored = True
        return True

    def record_run(self, entries: list[QueueEntry]) -> bool:
        """``record`` or, where they need not survive, ``skip`` new entries of one kind, without
        annotations."""
        if not entries[0].message.persistent:
            for entry in entries:
                self.skip(entry)
            return False
        log = self.log
        if log is None:
            for entry in entries:
                self.record(entry)
            return False
        offset: i64 = log.append_run(records_of([entry.message for entry in entries]))
        for entry in entries:
            entry.offset = offset
            entry.is_stored = True
            offset += 1
        return True

    def skip(self, entry: QueueEntry) -> None:
        """Give a new entry its offset, but no record: it need not survive."""
        log = self.log
        if log is None:
            entry.offset = self._next_offset
            self._next_offset += 1
        else:
            entry.offset = log.skip()

    def append(self, entry: QueueEntry) -> None:
        """Make a recorded entry ready, behind all others."""
        if self.log is not None and (
            self._spill_from >= 0
            or len(self._ready) >= CACHED_ENTRIES
            or self._ready_bytes >= CACHED_BYTES
        ):
            if entry.is_stored:
                self._spilled += 1
            else:
                if self._transient is _NO_ENTRIES:
                    self._transient = deque()
                self._transient.append(entry)
            if self._spill_from < 0:
                self._spill_from = entry.offset
            return
        self._append_cached(entry)

    def put_back(self, entry: QueueEntry) -> None:
        """Make an entry ready again, at its old position."""
        if self._requeued is _NONE_REQUEUED:
            self._requeued = []
        heappush(self._requeued, (entry.offset, entry))

    @property
    def has_lasting_head(self) -> bool:
        """Whether the next entry is in the log only, and known to have no time to wait for.

        ``peek`` would take it into the cache, and many behind it. It need not be in memory any
        more: sub-queues that read theirs again in turn would push one another out for ever.
        """
        log = self.log
        queue = self._queue
        if self._spill_from < 0 or self._ready or self._requeued or self._transient:
            return False
        if log is None or queue is None or queue.requeues is not None:
            return False
        if self._lasting == self._spill_from:
            return True
        if not log.is_loaded(self._spill_from):
            return False
        for _, record, _ in log.read(self._spill_from, 1, REFILL_BYTES):
            message = decode_record(record)
            if not message.deliver_at and queue.settings.expiry_of(message) == 0:
                self._lasting = self._spill_from
                return True
        return False

    def settings_changed(self) -> None:
        """What has lasted under the queue's old settings may have a time under its new ones."""
        self._lasting = -1

    def peek(self) -> QueueEntry | None:
        """The next entry; None when there is none, or none that may be delivered yet."""
        # What is read back may all be for later.
        while self._spill_from >= 0 and not self._ready and self._refill():
            pass
        ready = self._ready
        if self._requeued and (not ready or self._requeued[0][0] < ready[0].offset):
            return self._requeued[0][1]
        if ready and ready[0].write_batch <= self._storage.durable:
            return ready[0]
        return None

    def look(self, first: int, most: int) -> tuple[list[QueueEntry], int]:
        """Ready entries in memory from an offset on, in order, at most so many; and where those
        begin that are ready and in the log alone, -1 where there are none. Takes nothing."""
        returned = [item for item in self._requeued if item[0] >= first]
        found = [entry for _, entry in nsmallest(most, returned)]
        for entries in (self._ready, self._transient):
            at = bisect_left(entries, first, key=_offset_of)
            found += [entries[index] for index in range(at, min(at + most, len(entries)))]
        found.sort(key=_offset_of)
        return found[:most], self._spill_from if self._spilled else -1

    def pop(self) -> QueueEntry | None:
        """Take the entry that ``peek`` answers."""
        entry = self.peek()
        if entry is not None:
            if self._requeued and self._requeued[0][1] is entry:
                heappop(self._requeued)
            else:
                self._ready.popleft()
                self._ready_bytes -= entry.message.size
        return entry

    def _refill(self) -> bool:
        """Read entries beyond the cache back from the log, in order with transient ones.

        False when they have to come from the disk first.
        """
        log = self.log
        assert log is not None
        if not log.is_loaded(self._spill_from):
            if not self.is_loading:
                self.is_loading = True
                log.load(self._spill_from, REFILL_BYTES, self._loaded)
            return False
        records = log.read(self._spill_from, REFILL, REFILL_BYTES)
        queue = self._queue
        assert queue is not None
        settings = queue.settings
        for offset, record, annotation in records:
            while self._transient and self._transient[0].offset < offset:
                self._append_cached(self._transient.popleft())
            entry = QueueEntry(queue, self, decode_record(record), annotation)
            entry.offset = offset
            entry.is_stored = True
            entry.is_redelivered = offset < log.recovered_offset
            entry.expires = settings.expiry_of(entry.message)
            if settings.mode_of(entry.message) == EXACTLY_ONCE and offset >= log.recovered_offset:
                # Its write batch is not known any more; the one waited for last is as late as it
                # can be.
                entry.write_batch = 0 if queue.pending is None else queue.pending.write_batch
            is_recovered = offset < self._recovered_to
            if self.unread:
                # Until now it was counted as a part of them all.
                self._count_read(entry.message.size if is_recovered else self.unread)
            until = 0
            if is_recovered and queue.requeues is not None:
                until = restore_requeues(entry, queue.requeues)
            if entry.message.deliver_at and waiting_of(queue).delay(entry):
                pass
            elif until < 0:
                queue.given_up.restore(entry, until)
            elif until > queue.vhost.broker.now_ms:
                waiting_of(queue).postpone_until(entry, until)
            else:
                self._append_cached(entry)
                if is_recovered:
                    queue.ready.bytes += entry.message.size
                    queue.vhost.queued_bytes += entry.message.size
            self._spill_from = offset + 1
            self._spilled -= 1
        if not records:
            self._count_read(self.unread)
            self._spill_from = -1
            self._spilled = 0
            while self._transient:
                self._append_cached(self._transient.popleft())
        return True

    def _count_read(self, size: int) -> None:
        """So many of the unread bytes are not ready as such any more."""
        queue = self._queue
        assert queue is not None
        size = min(size, self.unread)
        self.unread -= size
        queue.ready.bytes -= size
        queue.vhost.queued_bytes -= size

    def _append_cached(self, entry: QueueEntry) -> None:
        ready = self._ready
        if ready is _NO_ENTRIES:
            self._ready = ready = deque()
        ready.append(entry)
        self._ready_bytes += entry.message.size

    def _loaded(self) -> None:
        self.is_loading = False
        if self._queue is not None:
            self._queue.loaded()

    def settle(self, offset: i64) -> None:
        """A stored entry is done with; written by ``flush``."""
        if offset == self._settled_to:
            self._settled_to = offset + 1
            return
        if self._settled_from < self._settled_to:
            if self._settled is _NONE_SETTLED:
                self._settled = []
            self._settled.append((self._settled_from, self._settled_to))
        self._settled_from = offset
        self._settled_to = offset + 1

    def flush(self) -> None:
        """Write the settlements of this turn as ranges."""
        log = self.log
        first, end = self._settled_from, self._settled_to
        # No offset is -1, so none lies behind it.
        self._settled_from = self._settled_to = -1
        settled = self._settled
        if log is None or first == end:
            return
        if settled:
            self._settled = _NONE_SETTLED
            settled.append((first, end))
            settled.sort()
            first, end = settled[0]
            for start, stop in settled:
                if start > end:
                    log.remove(first, end - 1)
                    first = start
                end = stop
        log.remove(first, end - 1)

    def purge(self) -> None:
        """Remove everything that is ready."""
        queue = self._queue
        assert queue is not None
        ready = [*self._ready, *[entry for _, entry in self._requeued]]
        for entry in ready:
            if entry.is_stored:
                self.settle(entry.offset)
                if entry.requeues:
                    forget_requeues(entry)
        if queue.requeues is not None and self._spill_from >= 0:
            queue.requeues.clear_from(self.priority, self._spill_from)
        if self.log is not None and self._spill_from >= 0:
            # Everything from here on is ready: what is unsettled was taken from before it.
            self.log.remove(self._spill_from, self.log.next_offset - 1)
        self.forget()

    def deleted(self) -> None:
        """The queue was deleted, with the log."""
        self.forget()
        self.log = None
        self.is_loading = False
        self._queue = None

    def forget(self) -> None:
        """Drop what is in memory."""
        self.unread = 0
        self._ready = self._transient = _NO_ENTRIES
        self._ready_bytes = 0
        self._requeued = _NONE_REQUEUED
        self._spill_from = -1
        self._spilled = 0
