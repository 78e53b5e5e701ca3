"""Queues: first in, first out, each message to one consumer, gone when it is settled.

A queue on disk storage is a ``Log`` of message records plus the window of decoded entries that it
keeps in memory. A queue in memory has no log, only the window. A backlog longer than the window
stays in the log and is read back as consumers get there, so its length costs disk, not memory.

The way of an entry: ``put`` gives it an offset; it is handed to a consumer at once, or becomes
ready. The consumer settles it or returns it (``requeue``), which puts it back at its old position.
Settlements are collected and written as ranges once per turn.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from trivium.errors import AccessRefused
from trivium.exchanges import ACCEPTED, Destination
from trivium.message import EXACTLY_ONCE, HeaderValue, Message, decode_record
from trivium.storage.base import DurabilityWaiter, Log

if TYPE_CHECKING:
    from trivium.vhost import VirtualHost

#: Entries of a disk queue that are kept decoded in memory; what is beyond waits in the log.
WINDOW: Final = 8192
#: Bytes of payload in that window, so that large messages do not make it a memory hog (32 MiB).
WINDOW_BYTES: Final = 32 << 20
#: Entries and bytes read back from the log at a time.
REFILL: Final = 2048
REFILL_BYTES: Final = 4 << 20


class QueueEntry:
    """A message's place in one queue, from ``put`` until it is settled."""

    def __init__(self, queue: Queue, offset: int, message: Message, note: bytes) -> None:
        self.queue = queue
        self.offset = offset
        self.message = message
        #: what the binding's adapter wanted remembered with this message in this queue
        self.note = note
        #: it was, or after a crash may have been, handed to a consumer before
        self.is_redelivered = False
        #: times that it was handed to a consumer and came back
        self.returns = 0
        #: batch that must be durable before delivery; 0 for none
        self.batch = 0
        #: whether the queue's log holds a record of it
        self.is_stored = False


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer:
    """Receives entries of one queue. Adapters subclass it."""

    #: entries are settled by being handed over (AMQP no-ack)
    settles_on_delivery: bool = False
    #: of several consumers that can take an entry, those with the highest priority get it
    priority: int = 0

    def takes_delivery(self) -> bool:
        """Whether it has credit left and its connection takes output."""
        raise NotImplementedError

    def deliver(self, entry: QueueEntry) -> None:
        """Take an entry. It is this consumer's until it calls ``entry.queue.settle`` or ``requeue``."""
        raise NotImplementedError

    def cancelled(self) -> None:
        """The queue is gone; entries still held need not be settled any more."""


class Queue(Destination):
    """See the module. ``log`` is None for a queue in memory."""

    def __init__(
        self,
        vhost: VirtualHost,
        name: str,
        log: Log | None,
        durable: bool = False,
        auto_delete: bool = False,
        owner: object = None,
        arguments: dict[str, HeaderValue] | None = None,
        adapter: str = "",
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        #: the connection that an exclusive queue belongs to; None for a shared queue
        self.owner = owner
        self.arguments: dict[str, HeaderValue] = {} if arguments is None else arguments
        #: the adapter whose private state this queue is (an MQTT session's backlog); "" for none
        self.adapter = adapter
        self.consumers: list[Consumer] = []
        self.is_exclusively_consumed = False
        self.is_deleted = False
        self.unsettled = 0
        #: totals since the start, for metrics
        self.published = 0
        self.delivered = 0
        self.settled = 0
        self.expired = 0
        self._storage = vhost.broker.storage
        self._broker = vhost.broker
        self._log = log
        self._next_offset = 0
        self._ready: deque[QueueEntry] = deque()
        self._ready_bytes = 0
        self._returned: list[tuple[int, QueueEntry]] = []
        # The first offset that is in the log but not in the window; -1 when all is in the window.
        self._spill_from = -1
        self._spilled = 0
        # Transient entries that arrived while the window was full; they have no record to read
        # back.
        self._transient: deque[QueueEntry] = deque()
        self._is_loading = False
        self._turn = 0
        self._to_settle: list[int] = []
        self._is_dirty = False
        self._waiting_batch = 0
        self._release = _Release(self)
        if log is not None and len(log) > 0:
            self._spill_from = log.first_offset
            self._spilled = len(log)

    # Publishing

    def accept(self, message: Message) -> int:
        """See ``Destination``."""
        return self.put(message, b"")

    def put(self, message: Message, note: bytes) -> int:
        """Enqueue: ACCEPTED or the batch that makes the message durable.

        ``note`` is kept with the entry, also over a restart.
        """
        self.published += 1
        log = self._log
        result = ACCEPTED
        if log is None:
            entry = QueueEntry(self, self._next_offset, message, note)
            self._next_offset += 1
        elif message.persistent:
            entry = QueueEntry(self, log.append(message.record(), 1, note), message, note)
            entry.is_stored = True
            result = self._storage.batch
            if message.mode == EXACTLY_ONCE:
                # A consumer must not see it before the publisher's acknowledgement is certain:
                # after a crash the publisher sends it again, and that would be a duplicate.
                entry.batch = result
                self._await_batch(result)
        else:
            entry = QueueEntry(self, log.skip(), message, note)
        if self.consumers and entry.batch == 0 and self._nothing_waits():
            consumer = self._next_consumer()
            if consumer is not None:
                self._hand_over(consumer, entry)
                return result
        self._append_ready(entry)
        return result

    def _nothing_waits(self) -> bool:
        return not self._ready and not self._returned and self._spill_from < 0

    def _append_ready(self, entry: QueueEntry) -> None:
        if self._log is not None and (
            self._spill_from >= 0 or len(self._ready) >= WINDOW or self._ready_bytes >= WINDOW_BYTES
        ):
            if not entry.is_stored:
                self._transient.append(entry)
                if self._spill_from < 0:
                    self._spill_from = entry.offset
            else:
                self._spilled += 1
                if self._spill_from < 0:
                    self._spill_from = entry.offset
            return
        self._ready.append(entry)
        self._ready_bytes += len(entry.message.payload)

    def _await_batch(self, batch: int) -> None:
        if self._waiting_batch != batch:
            self._waiting_batch = batch
            self._storage.wait(self._release)

    # Delivery

    def add_consumer(self, consumer: Consumer, exclusive: bool = False) -> None:
        """Attach a consumer and start delivering to it.

        Raises AccessRefused when there is an exclusive consumer, or ``exclusive`` is asked for
        while there are others.
        """
        if self.is_exclusively_consumed or (exclusive and self.consumers):
            raise AccessRefused(
                f"queue '{self.name}' in vhost '{self.vhost.name}' in exclusive use"
            )
        self.is_exclusively_consumed = exclusive
        self.consumers.append(consumer)
        self.consumers.sort(key=_descending_priority)
        self.dispatch()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer. What it holds stays its own until settled or returned.

        An auto-delete queue is deleted when its last consumer leaves.
        """
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self.is_exclusively_consumed = False
        self._turn = 0
        if not self.consumers and self.auto_delete:
            self.vhost.delete_queue(self)

    def _next_consumer(self) -> Consumer | None:
        consumers = self.consumers
        count = len(consumers)
        if count == 1:
            only = consumers[0]
            return only if only.takes_delivery() else None
        best: Consumer | None = None
        for step in range(count):
            index = (self._turn + step) % count
            consumer = consumers[index]
            if (best is None or consumer.priority > best.priority) and consumer.takes_delivery():
                best = consumer
                chosen = index
        if best is not None:
            self._turn = chosen + 1
        return best

    def _hand_over(self, consumer: Consumer, entry: QueueEntry) -> None:
        self.unsettled += 1
        self.delivered += 1
        if consumer.settles_on_delivery:
            consumer.deliver(entry)
            self.settle(entry)
        else:
            consumer.deliver(entry)

    def dispatch(self) -> None:
        """Hand ready entries to consumers until there are none or nobody takes more."""
        while self.consumers and (self._ready or self._returned or self._spill_from >= 0):
            consumer = self._next_consumer()
            if consumer is None:
                return
            entry = self._pop_ready()
            if entry is None:
                return
            self._hand_over(consumer, entry)

    def get(self) -> QueueEntry | None:
        """Take the next entry without a consumer (AMQP basic.get). Settle or requeue it later."""
        entry = self._pop_ready()
        if entry is not None:
            self.unsettled += 1
            self.delivered += 1
        return entry

    def _pop_ready(self) -> QueueEntry | None:
        while True:
            if not self._ready and self._spill_from >= 0:
                self._refill()
            ready = self._ready
            if self._returned and (not ready or self._returned[0][0] < ready[0].offset):
                entry = heappop(self._returned)[1]
            elif ready:
                entry = ready[0]
                if entry.batch > self._storage.durable:
                    return None
                ready.popleft()
                self._ready_bytes -= len(entry.message.payload)
            else:
                return None
            if entry.message.expires == 0 or entry.message.expires > self._broker.now_ms:
                return entry
            self.expired += 1
            self.unsettled += 1
            self.settle(entry)

    def _refill(self) -> None:
        """Read entries beyond the window back from the log, in order with transient ones."""
        log = self._log
        assert log is not None
        if not log.is_loaded(self._spill_from):
            if not self._is_loading:
                self._is_loading = True
                log.load(self._spill_from, REFILL_BYTES, self._loaded)
            return
        records = log.read(self._spill_from, REFILL, REFILL_BYTES)
        for offset, record, note in records:
            while self._transient and self._transient[0].offset < offset:
                self._append_window(self._transient.popleft())
            entry = QueueEntry(self, offset, decode_record(record), note)
            entry.is_stored = True
            entry.is_redelivered = offset < log.recovered_offset
            if entry.message.mode == EXACTLY_ONCE and offset >= log.recovered_offset:
                # Its batch is not known any more; the current one is as late as it can be.
                entry.batch = (
                    0 if self._storage.durable >= self._waiting_batch else self._waiting_batch
                )
            self._append_window(entry)
            self._spill_from = offset + 1
            self._spilled -= 1
        if not records:
            self._spill_from = -1
            self._spilled = 0
            while self._transient:
                self._append_window(self._transient.popleft())

    def _append_window(self, entry: QueueEntry) -> None:
        self._ready.append(entry)
        self._ready_bytes += len(entry.message.payload)

    def _loaded(self) -> None:
        self._is_loading = False
        if not self.is_deleted:
            self.dispatch()

    # Settlement

    def settle(self, entry: QueueEntry) -> None:
        """The entry is done with. Durable with the current batch."""
        self.unsettled -= 1
        self.settled += 1
        if entry.is_stored and not self.is_deleted:
            self._to_settle.append(entry.offset)
            if not self._is_dirty:
                self._is_dirty = True
                self._broker.add_unsettled(self)

    def requeue(self, entry: QueueEntry, was_delivered: bool = True) -> None:
        """Put an entry back at its position. Call ``dispatch`` once all of a batch are back.

        ``was_delivered`` is False when the consumer certainly never saw it.
        """
        self.unsettled -= 1
        if self.is_deleted:
            return
        if was_delivered:
            entry.is_redelivered = True
            entry.returns += 1
        heappush(self._returned, (entry.offset, entry))

    def flush_settlements(self) -> None:
        """Write the settlements of this turn as ranges. Called by the broker before the commit."""
        self._is_dirty = False
        offsets = self._to_settle
        if not offsets or self._log is None:
            return
        self._to_settle = []
        log = self._log
        first = last = offsets[0]
        is_sorted = True
        for offset in offsets:
            if offset < last:
                is_sorted = False
                break
            last = offset
        if not is_sorted:
            offsets.sort()
            first = offsets[0]
        last = first
        for offset in offsets:
            if offset > last + 1:
                log.settle(first, last)
                first = offset
            last = offset
        log.settle(first, last)

    # Management

    def __len__(self) -> int:
        """Messages that are ready, whether in the window or in the log."""
        return len(self._ready) + len(self._returned) + self._spilled + len(self._transient)

    def purge(self) -> int:
        """Remove all ready messages; how many there were. Unsettled ones stay."""
        count = len(self)
        for entry in self._ready:
            if entry.is_stored:
                self._to_settle.append(entry.offset)
        for _, entry in self._returned:
            if entry.is_stored:
                self._to_settle.append(entry.offset)
        if self._log is not None and self._spill_from >= 0:
            # Everything from here on is ready: what is unsettled was taken from before it.
            self._log.settle(self._spill_from, self._log.next_offset - 1)
        self._ready.clear()
        self._ready_bytes = 0
        self._returned.clear()
        self._transient.clear()
        self._spill_from = -1
        self._spilled = 0
        if self._to_settle and not self._is_dirty:
            self._is_dirty = True
            self._broker.add_unsettled(self)
        return count

    def deleted(self) -> None:
        """The virtual host removed this queue: drop everything, tell the consumers."""
        self.is_deleted = True
        self._ready.clear()
        self._returned.clear()
        self._transient.clear()
        self._to_settle.clear()
        self._spill_from = -1
        self._spilled = 0
        self._log = None
        consumers = self.consumers
        self.consumers = []
        for consumer in consumers:
            consumer.cancelled()


class _Release(DurabilityWaiter):
    """Lets the held entries of a queue go out once their batch is durable."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def batch_durable(self, batch: int) -> None:
        self._queue.dispatch()


def _descending_priority(consumer: Consumer) -> int:
    return -consumer.priority
