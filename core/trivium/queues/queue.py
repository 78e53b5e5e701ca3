"""Queues: first in, first out, each message to one consumer, gone when it is settled.

The way of an entry: ``put`` records it in its sub-queue and hands it to a consumer, or it becomes
ready. The consumer settles it, rejects it or requeues it, which puts it back at its old position,
at once or after a delay that doubles each time. Settlements are collected and written as ranges
once per turn. What is given up (rejected, expired, too many, too often requeued) goes to the dead
letter exchange in the same write batch as its settlement, so it is never in both places or in none.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from trivium.common.timers import Timed
from trivium.common.turns import EndOfTurn
from trivium.errors import AccessRefused
from trivium.idempotence.deduplication import QUEUE, deduplication_id
from trivium.messages.message import AT_MOST_ONCE, EXACTLY_ONCE, HeaderValue, Message
from trivium.queues.consumers import Consumer, Rotation
from trivium.queues.dead_letters import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED_REASON, DeadLetter
from trivium.queues.requeues import QueueRequeues
from trivium.queues.settings import DROP_HEAD, REJECT_PUBLISH_DLX, QueueSettings, settings_of
from trivium.queues.sub_queues import QueueEntry, SubQueue
from trivium.routing.exchanges import ACCEPTED, REJECTED, Destination
from trivium.storage.base import DurabilityWaiter, Log

if TYPE_CHECKING:
    from trivium.queues.namespace import QueueNamespace

__all__ = ["Consumer", "Queue", "QueueEntry"]

#: Doublings of a retry delay; beyond that it stays, so that no number grows without bound.
MAX_DOUBLINGS: Final = 30

#: Entries of one queue that are given up and not yet with its dead letter exchange. Then it hands
#: out nothing more until some are, so that what consumers reject does not pile up in memory.
MAX_LEAVING: Final = 1024

#: What stands for ``until`` in the row of an entry that was given up.
_REASONS: Final = {-1: REJECTED_REASON, -2: DELIVERY_LIMIT}


@mypyc_attr(allow_interpreted_subclasses=True)
class LoadWaiter:
    """Wants an entry of a queue whose next entries are on disk only. Adapters subclass it."""

    def loaded(self) -> None:
        """Entries have come, or the queue is deleted: ask for one again."""
        raise NotImplementedError


class Queue(Destination):
    """A queue. One without ``logs`` (by priority, 0 first) is in memory."""

    def __init__(
        self,
        vhost: QueueNamespace,
        name: str,
        logs: list[Log],
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
        self.consumers = Rotation()
        self.is_exclusively_consumed = False
        self.is_deleted = False
        self.unsettled = 0
        #: bytes of payload that are ready
        self.ready_bytes = 0
        #: totals since the start, for metrics
        self.published = 0
        self.delivered = 0
        self.settled = 0
        self.expired = 0
        #: newest write batch that held entries wait for
        self.waiting_write_batch = 0
        self.settings = settings_of(self.arguments, {})
        self._broker = vhost.broker
        self._storage = vhost.broker.storage
        self._release = _Release(self)
        # After some time, and at a time.
        self._timeout = _Alarm(self)
        self._date = _Alarm(self)
        self._is_dirty = False
        # Entries became ready, by other ways than a publish: time and limits are yet to count.
        self._is_unchecked = False
        # What is next has expired, and the turn is to give up no more.
        self._is_late = False
        self._load_waiters: list[LoadWaiter] = []
        self._used_at = self._broker.elapsed_ms
        # Entries that are not ready: delayed messages before a time, and requeued ones that wait
        # for their next try for some time.
        self._delayed: list[tuple[int, int, QueueEntry]] = []
        self._postponed: list[tuple[int, int, QueueEntry]] = []
        self._delays = 0
        # Entries that are given up, on their way to the dead letter exchange.
        self._leaving = 0
        # By priority; a queue without priorities has just the one.
        self._sub_queues: list[SubQueue] = []
        #: how often stored messages came back; None while none ever has
        self.requeues: QueueRequeues | None = None
        if logs and vhost.requeues.has(name):
            self.requeues = vhost.requeues.of(name)
        for priority in range(self.settings.max_priority + 1):
            log = logs[priority] if logs else None
            self._sub_queues.append(SubQueue(self, log, self._storage, priority))
        self._sub_queue = self._sub_queues[0]
        self._is_plain = True
        self.apply(self.settings)

    def apply(self, settings: QueueSettings) -> None:
        """Put other settings in force, for what comes and for what is ready."""
        self.settings = settings
        self._set_plain()
        self._broker.timeouts.call_at(self._broker.elapsed_ms, self._timeout)

    def _set_plain(self) -> None:
        settings = self.settings
        self._is_plain = (
            len(self._sub_queues) == 1
            and settings.message_ttl < 0
            and not settings.has_limits
            and settings.delivery < 0
            and not settings.deduplication.is_on
            and self._leaving < MAX_LEAVING
        )

    # Publishing

    def target_queue(self) -> Destination | None:
        return self

    @property
    def passes_on(self) -> bool:
        """Whether what it refuses goes to its dead letter exchange."""
        settings = self.settings
        return settings.overflow == REJECT_PUBLISH_DLX and settings.dead_letter_exchange is not None

    def accept(self, message: Message) -> int:
        return self.put(message, b"")

    def put(self, message: Message, annotation: bytes) -> int:
        """Enqueue: ACCEPTED, the write batch that makes the message durable, or REJECTED.

        ``annotation`` is kept with the entry, also over a restart.
        """
        if not self._is_plain or message.expires or message.insists:
            return self.put_special(message, annotation)
        self.published += 1
        sub_queue = self._sub_queue
        entry = QueueEntry(self, sub_queue, message, annotation)
        result = ACCEPTED
        if message.persistent and sub_queue.record(entry):
            result = self._storage.write_batch
            if message.mode == EXACTLY_ONCE:
                self._hold(entry)
        elif not message.persistent:
            sub_queue.skip(entry)
        if len(self.consumers) and entry.write_batch == 0 and sub_queue.is_empty:
            consumer = self._next_consumer()
            if consumer is not None:
                self._hand_over(consumer, entry)
                return result
        sub_queue.append(entry)
        self.ready_bytes += len(message.payload)
        return result

    def has_room(self, messages: int, size: int) -> bool:
        return self.settings.overflow == DROP_HEAD or not self._is_over_limit(messages, size)

    def put_special(self, message: Message, annotation: bytes) -> int:
        """``put`` for messages and queues that are out of the ordinary, delayed messages too."""
        settings = self.settings
        is_replaced = settings.delivery >= 0 and not message.insists
        mode = settings.delivery if is_replaced else message.mode
        identity: bytes | None = None
        if (settings.deduplication.is_on or mode == EXACTLY_ONCE) and not message.deliver_at:
            identity = deduplication_id(message, settings.deduplication.header)
            if identity is not None:
                answer = self.vhost.deduplication.window(QUEUE, self.name).answer(identity)
                if answer != REJECTED:
                    return answer
        if settings.overflow != DROP_HEAD and self._is_over_limit(1, len(message.payload)):
            # Whoever publishes a dead letter passes it on as well.
            if self.passes_on and message.annotations is None:
                letter = DeadLetter(self, None, message, MAXLEN)
                self.vhost.dead_letters.add_refused(letter)
            return REJECTED
        self.published += 1
        sub_queue = self._sub_queues[min(message.priority, len(self._sub_queues) - 1)]
        entry = QueueEntry(self, sub_queue, message, annotation)
        result = ACCEPTED
        if mode != AT_MOST_ONCE if is_replaced else message.persistent:
            if sub_queue.record(entry):
                result = self._storage.write_batch
                if mode == EXACTLY_ONCE:
                    self._hold(entry)
        else:
            sub_queue.skip(entry)
        if identity is not None:
            window = self.vhost.deduplication.window(QUEUE, self.name)
            window.add(identity, settings.deduplication, entry.is_stored)
        self.set_expiry(entry)
        if message.deliver_at:
            if entry.is_stored and sub_queue.is_spilled:
                # It will be read back with those before it, and must not be there twice.
                sub_queue.append(entry)
                return result
            if self.delay(entry):
                return result
        if (
            len(self.consumers)
            and entry.write_batch == 0
            and self._leaving < MAX_LEAVING
            and self._nothing_is_ready()
        ):
            consumer = self._next_consumer()
            if consumer is not None:
                self._hand_over(consumer, entry)
                return result
        sub_queue.append(entry)
        self.ready_bytes += len(message.payload)
        if entry.expires:
            self._broker.dates.call_at(entry.expires, self._date)
        if settings.has_limits:
            self._drop_heads()
        return result

    def mode_of(self, message: Message) -> int:
        """The delivery mode of a message in this queue.

        The message's own when its publisher insists on it; else that of the queue's argument, its
        policy or the broker's default; else the one that the publisher's protocol states.
        """
        delivery = self.settings.delivery
        return message.mode if delivery < 0 or message.insists else delivery

    def _settles_on_delivery(self, message: Message) -> bool:
        """Whether the message's mode is at-most-once here because someone asked for just that.

        A transient message in a queue without a mode is still its consumer's to acknowledge.
        """
        return (message.insists or self.settings.delivery >= 0) and self.mode_of(
            message
        ) == AT_MOST_ONCE

    def _hold(self, entry: QueueEntry) -> None:
        """Keep consumers from seeing an entry before its publisher's acknowledgement is certain:
        after a crash the publisher sends it again, and that would be a duplicate."""
        entry.write_batch = self._storage.write_batch
        if self.waiting_write_batch != entry.write_batch:
            self.waiting_write_batch = entry.write_batch
            self._storage.wait(self._release)

    def set_expiry(self, entry: QueueEntry) -> None:
        """Work out when an entry expires: by its message or by the queue's TTL.

        A delayed message lives from when it is routed.
        """
        if entry.message.deliver_at:
            return
        expires = entry.message.expires
        ttl = self.settings.message_ttl
        if ttl >= 0:
            by_queue = entry.message.timestamp + ttl
            if expires == 0 or by_queue < expires:
                expires = by_queue
        entry.expires = expires

    def _is_over_limit(self, more: int, more_bytes: int) -> bool:
        settings = self.settings
        return 0 <= settings.max_length < len(self) + more or (
            0 <= settings.max_length_bytes < self.ready_bytes + more_bytes
        )

    def _drop_heads(self) -> None:
        """Give up the oldest of the lowest priority until the limits hold."""
        if self.settings.overflow != DROP_HEAD:
            return
        is_first = True
        while self._is_over_limit(0, 0):
            # One is given up in any case, so that no publish makes the queue longer.
            if not (is_first or (self._leaving < MAX_LEAVING and self._may_give_up())):
                return
            is_first = False
            entry: QueueEntry | None = None
            for sub_queue in self._sub_queues:
                entry = sub_queue.pop()
                # What is to be read first, or held, must not be spared for higher priorities.
                if entry is not None or not sub_queue.is_empty:
                    break
            if entry is None:
                return
            self.ready_bytes -= len(entry.message.payload)
            self.unsettled += 1
            self._give_up(entry, MAXLEN)

    def _may_give_up(self) -> bool:
        """Whether one more entry may be given up in this turn; else it goes on in the next."""
        broker = self._broker
        if broker.may_give_up > 0:
            broker.may_give_up -= 1
            return True
        broker.timeouts.call_at(broker.elapsed_ms, self._timeout)
        return False

    # Delivery

    def add_consumer(self, consumer: Consumer, exclusive: bool = False) -> None:
        """Attach a consumer and start delivering to it.

        Raises AccessRefused when there is an exclusive consumer, or ``exclusive`` is asked for
        while there are others, or of a queue with a single active consumer (as RabbitMQ does):
        there others wait until it leaves.
        """
        if self.is_exclusively_consumed or (
            exclusive and (len(self.consumers) or self.settings.single_active_consumer)
        ):
            raise AccessRefused(
                f"queue '{self.name}' in vhost '{self.vhost.name}' in exclusive use"
            )
        self.is_exclusively_consumed = exclusive
        self.consumers.add(consumer)
        self._deliver()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer. What it holds stays its own until settled or requeued.

        An auto-delete queue is deleted when its last consumer leaves.
        """
        if not self.consumers.remove(consumer):
            return
        self.is_exclusively_consumed = False
        if len(self.consumers):
            self.dispatch_later()
        elif self.auto_delete:
            self.vhost.delete_queue(self)
        else:
            self.touch()

    def touch(self) -> None:
        """The queue was used: its own expiry starts anew."""
        self._used_at = self._broker.elapsed_ms
        if self.settings.expires >= 0 and not len(self.consumers):
            expires_at = self._used_at + self.settings.expires
            self._broker.timeouts.call_at(expires_at, self._timeout)

    def _next_consumer(self) -> Consumer | None:
        if self.settings.single_active_consumer:
            # Nobody else is asked, so the first is the one that came first.
            first = self.consumers.first()
            return first if first is not None and first.takes_delivery() else None
        return self.consumers.next()

    def _hand_over(self, consumer: Consumer, entry: QueueEntry) -> None:
        self.unsettled += 1
        self.delivered += 1
        consumer.deliver(entry)
        if consumer.settles_on_delivery or (
            (not self._is_plain or entry.message.insists)
            and self._settles_on_delivery(entry.message)
        ):
            self.settle(entry)

    def serve(self, consumer: Consumer) -> None:
        """``dispatch``, because ``consumer`` alone may take entries again."""
        self.consumers.resume(consumer)
        self._deliver()

    def dispatch(self) -> None:
        """Hand ready entries to consumers until there are none or nobody takes more."""
        self.consumers.resume_all()
        self._deliver()

    def _deliver(self) -> None:
        while len(self.consumers) and not self._nothing_is_ready():
            consumer = self._next_consumer()
            if consumer is None:
                break
            entry = self._pop_ready()
            if entry is None:
                break
            self._hand_over(consumer, entry)
        if self._is_unchecked:
            self._check()

    def dispatch_later(self) -> None:
        """``dispatch`` at the end of this turn.

        A consumer leaves, or its connection does: what it holds may come back in the same turn and
        goes first, and others may leave with it.
        """
        self._broker.timeouts.call_at(self._broker.elapsed_ms, self._timeout)

    def _check(self) -> None:
        """Consumers have taken what they can: what is ready is subject to limits and time."""
        self._is_unchecked = False
        if self.settings.has_limits:
            self._drop_heads()
        now = self._broker.now_ms
        for sub_queue in self._sub_queues:
            self._expire_heads(sub_queue, now)

    def get(self) -> QueueEntry | None:
        """Take the next entry without a consumer (AMQP basic.get). Settle or requeue it later.

        None when there is none now, which it says too while ``is_loading``.
        """
        self.touch()
        entry = self._pop_ready()
        if entry is not None:
            self.unsettled += 1
            self.delivered += 1
            if self._settles_on_delivery(entry.message):
                self.settle(entry)
        return entry

    @property
    def is_loading(self) -> bool:
        """Whether ``get`` has to wait, for entries on disk or behind ones that have expired."""
        return self._is_late or any(sub_queue.is_loading for sub_queue in self._sub_queues)

    def await_load(self, waiter: LoadWaiter) -> None:
        """Call ``waiter``, once, when entries have come from the disk or the queue is deleted."""
        self._load_waiters.append(waiter)

    def _nothing_is_ready(self) -> bool:
        if not self._sub_queue.is_empty:
            return False
        return len(self._sub_queues) == 1 or all(
            sub_queue.is_empty for sub_queue in self._sub_queues
        )

    def _pop_ready(self) -> QueueEntry | None:
        for index in range(len(self._sub_queues) - 1, -1, -1):
            sub_queue = self._sub_queues[index]
            while True:
                if self._leaving >= MAX_LEAVING:
                    # Those that nobody takes may stay for ever, the others have soon gone.
                    self._is_late = not self.settings.keeps_dead_letters
                    return None
                entry = sub_queue.pop()
                if entry is None:
                    break
                is_expired = 0 < entry.expires <= self._broker.now_ms
                if is_expired and not self._may_give_up():
                    sub_queue.put_back(entry)
                    self._is_late = True
                    return None
                self.ready_bytes -= len(entry.message.payload)
                if not is_expired:
                    return entry
                self.unsettled += 1
                self._expire(entry)
            if sub_queue.is_loading:
                # What comes must not be overtaken by lower priorities.
                return None
        return None

    def loaded(self) -> None:
        """Entries that were asked for have come from the log."""
        if not self.is_deleted:
            # Only where something may be given up: to look at the head takes it, and many behind
            # it, into memory.
            if self.settings.has_limits or self.settings.message_ttl >= 0:
                self._is_unchecked = True
            self.dispatch()
            self._call_load_waiters()

    def _call_load_waiters(self) -> None:
        if self._load_waiters:
            waiters = self._load_waiters
            self._load_waiters = []
            for waiter in waiters:
                waiter.loaded()

    # Settlement

    def settle(self, entry: QueueEntry) -> None:
        """The entry is done with, durable with this write batch. Again makes no difference."""
        if entry.is_settled:
            return
        entry.is_settled = True
        self.unsettled -= 1
        self.settled += 1
        if entry.is_stored and not self.is_deleted:
            entry.sub_queue.settle(entry.offset)
            if entry.requeues:
                self.forget_requeues(entry)
            if not self._is_dirty:
                self._is_dirty = True
                self._broker.add_unflushed(_Settlements(self))

    def reject(self, entry: QueueEntry) -> None:
        """The consumer does not want the entry, and it shall not come again."""
        if not entry.is_settled:
            self._give_up(entry, REJECTED_REASON)

    def requeue(self, entry: QueueEntry, was_delivered: bool = True) -> None:
        """Put an entry back. Call ``dispatch``, or ``dispatch_later``, once all of a kind are back.

        ``was_delivered`` is False when the consumer certainly never saw it.
        """
        if entry.is_settled:
            return
        if self.is_deleted:
            self.unsettled -= 1
            return
        if was_delivered:
            entry.is_redelivered = True
            entry.requeues += 1
            settings = self.settings
            if 0 <= settings.delivery_limit < entry.requeues:
                self._give_up(entry, DELIVERY_LIMIT)
                return
            delay = 0
            if settings.retry_delay > 0:
                delay = settings.retry_delay << min(entry.requeues - 1, MAX_DOUBLINGS)
                delay = min(delay, settings.retry_delay_max)
            if entry.is_stored:
                self._keep_requeues(entry, self._broker.now_ms + delay if delay else 0)
            if delay:
                self.postpone(entry, delay)
                return
        self.unsettled -= 1
        self.ready_bytes += len(entry.message.payload)
        entry.sub_queue.put_back(entry)
        self._is_unchecked = True

    def released(self) -> None:
        """Entries that were held may go out."""
        self._is_unchecked = True
        self.dispatch()

    def _keep_requeues(self, entry: QueueEntry, until: int) -> None:
        if self.requeues is None:
            self.requeues = self.vhost.requeues.of(self.name)
        self.requeues.put(entry.sub_queue.priority, entry.offset, entry.requeues, until)

    def forget_requeues(self, entry: QueueEntry) -> None:
        """A stored entry that was requeued is done with."""
        if self.requeues is not None:
            self.requeues.forget(entry.sub_queue.priority, entry.offset)

    def restore_requeues(self, entry: QueueEntry) -> int:
        """Give an entry from before a restart its requeues; until when it waits, 0 for not."""
        assert self.requeues is not None
        found = self.requeues.find(entry.sub_queue.priority, entry.offset)
        if found is None:
            return 0
        entry.requeues, until = found
        entry.is_redelivered = True
        return until

    def _give_up(self, entry: QueueEntry, reason: str) -> None:
        if self.settings.dead_letter_exchange is None:
            self.settle(entry)
            return
        # Nobody else may have it, though it is here until it is elsewhere.
        entry.is_settled = True
        self._leaving += 1
        if self._leaving == MAX_LEAVING:
            self._set_plain()
        self.vhost.dead_letters.add(DeadLetter(self, entry, entry.message, reason))

    def keep_given_up(self, entry: QueueEntry, reason: str) -> None:
        """A given up entry does not leave in this turn. Make it durable that no consumer gets it;
        what expires or is too much does so again after a restart."""
        if entry.is_stored and not self.is_deleted:
            for until, known in _REASONS.items():
                if known == reason:
                    self._keep_requeues(entry, until)

    def give_up_again(self, entry: QueueEntry, until: int) -> None:
        """An entry was given up before a restart, as its row says, and is still here."""
        self.unsettled += 1
        if self.settings.dead_letter_exchange is None:
            self.forget_requeues(entry)
        self._give_up(entry, _REASONS.get(until, REJECTED_REASON))

    def left(self, entry: QueueEntry) -> None:
        """A given up entry has reached others, or nobody; it is done with."""
        self._leaving -= 1
        if self._leaving == MAX_LEAVING - 1:
            self._set_plain()
            self.dispatch_later()
        if entry.is_stored:
            self.forget_requeues(entry)
        entry.is_settled = False
        self.settle(entry)

    @property
    def is_left_waiting(self) -> bool:
        """Whether it has entries that must reach its dead letter exchange."""
        return self._leaving > 0 and self.settings.keeps_dead_letters

    def _expire(self, entry: QueueEntry) -> None:
        self.expired += 1
        self._give_up(entry, EXPIRED)

    def flush_settlements(self) -> None:
        """Write the settlements of this turn."""
        self._is_dirty = False
        for sub_queue in self._sub_queues:
            sub_queue.flush()

    # Time

    def postpone(self, entry: QueueEntry, delay: int) -> None:
        """Put back an entry that a consumer cannot use within ``delay`` milliseconds."""
        self.unsettled -= 1
        self._postpone(entry, delay)

    def postpone_until(self, entry: QueueEntry, until: int) -> None:
        """Keep an entry from before a restart, for whose next try ``until`` was noted (milliseconds
        since the epoch). The clock may have been set since: it never waits for longer than a try.
        """
        self._postpone(entry, min(until - self._broker.now_ms, self.settings.retry_delay_max))

    def _postpone(self, entry: QueueEntry, delay: int) -> None:
        until = self._broker.elapsed_ms + delay
        self._delays += 1
        heappush(self._postponed, (until, self._delays, entry))
        self._broker.timeouts.call_at(until, self._timeout)

    def delay(self, entry: QueueEntry) -> bool:
        """Whether an entry's message is for later; then it is kept until its time has come."""
        until = entry.message.deliver_at
        if until <= self._broker.now_ms:
            return False
        self._delays += 1
        heappush(self._delayed, (until, self._delays, entry))
        self._broker.dates.call_at(until, self._date)
        return True

    def alarm(self) -> None:
        """A time that something here waits for may have come."""
        if self.is_deleted:
            return
        broker = self._broker
        now = broker.now_ms
        elapsed = broker.elapsed_ms
        settings = self.settings
        if settings.expires >= 0 and not len(self.consumers):
            expires_at = self._used_at + settings.expires
            if expires_at <= elapsed:
                self.vhost.delete_queue(self)
                return
            broker.timeouts.call_at(expires_at, self._timeout)
        self._is_late = False
        self._put_back(self._delayed, now)
        if self._delayed:
            broker.dates.call_at(self._delayed[0][0], self._date)
        self._put_back(self._postponed, elapsed)
        if self._postponed:
            broker.timeouts.call_at(self._postponed[0][0], self._timeout)
        self._is_unchecked = True
        self.dispatch()
        if not self.is_loading:
            self._call_load_waiters()

    def _put_back(self, waiting: list[tuple[int, int, QueueEntry]], until: int) -> None:
        """Those that wait no longer than ``until`` are ready."""
        while waiting and waiting[0][0] <= until and self._may_give_up():
            entry = heappop(waiting)[2]
            self.ready_bytes += len(entry.message.payload)
            entry.sub_queue.put_back(entry)

    def _expire_heads(self, sub_queue: SubQueue, now: int) -> None:
        while self._leaving < MAX_LEAVING:
            entry = sub_queue.peek()
            if entry is None or entry.expires == 0:
                return
            if entry.expires > now:
                self._broker.dates.call_at(entry.expires, self._date)
                return
            if not self._may_give_up():
                return
            sub_queue.pop()
            self.ready_bytes -= len(entry.message.payload)
            self.unsettled += 1
            self._expire(entry)

    # Management

    def __len__(self) -> int:
        """Messages that are ready, whether in memory or in the log."""
        if len(self._sub_queues) == 1:
            return len(self._sub_queue)
        return sum([len(sub_queue) for sub_queue in self._sub_queues])

    @property
    def delayed(self) -> int:
        """Messages that wait for their time."""
        return len(self._delayed) + len(self._postponed)

    def purge(self) -> int:
        """Remove all ready and delayed messages; how many there were. Unsettled ones stay."""
        count = len(self) + self.delayed
        for _, _, entry in [*self._delayed, *self._postponed]:
            self.unsettled += 1
            self.settle(entry)
        self._delayed.clear()
        self._postponed.clear()
        for sub_queue in self._sub_queues:
            sub_queue.purge()
        self.ready_bytes = 0
        if count and not self._is_dirty:
            self._is_dirty = True
            self._broker.add_unflushed(_Settlements(self))
        return count

    def deleted(self) -> None:
        """The virtual host removed this queue: drop everything, tell the consumers."""
        self.is_deleted = True
        self._delayed.clear()
        self._postponed.clear()
        if self.requeues is not None:
            self.requeues.clear()
        for sub_queue in self._sub_queues:
            sub_queue.deleted()
        self.ready_bytes = 0
        consumers = self.consumers.all()
        self.consumers.clear()
        for consumer in consumers:
            consumer.cancelled()
        self._call_load_waiters()
        # What may be called later must not keep it in memory, nor it the connection.
        self.owner = None
        self._release.queue = None
        self._timeout.queue = None
        self._date.queue = None


class _Settlements(EndOfTurn):
    """Writes the settlements of a queue at the end of the turn."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def flush_turn(self) -> None:
        self._queue.flush_settlements()


class _Release(DurabilityWaiter):
    """Lets the held entries of a queue go out once their write batch is durable."""

    def __init__(self, queue: Queue) -> None:
        #: None when it was deleted
        self.queue: Queue | None = queue

    def write_batch_durable(self, write_batch: int) -> None:
        if self.queue is not None:
            self.queue.released()


class _Alarm(Timed):
    """Wakes a queue when a time has come."""

    def __init__(self, queue: Queue) -> None:
        #: None when it was deleted
        self.queue: Queue | None = queue

    def due(self) -> None:
        if self.queue is not None:
            self.queue.alarm()
