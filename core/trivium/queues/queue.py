"""Queues: first in, first out, each message to one consumer, gone when it is settled.

The way of an entry: ``put`` records it in its sub-queue and hands it to a consumer, or it becomes
ready. The consumer settles it, rejects it or requeues it, which puts it back at its old position,
at once or after a delay that doubles each time. Settlements are collected and written as ranges
once per turn.

A queue has an object for each thing that it does beside: what is ``ready``, what is ``pending``
until it is durable, what is ``waiting`` for a time, and what it has ``given_up``. There may be very
many queues, and most are idle: what few of them need is made when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from trivium.common.counters import NOTHING_COUNTED, QueueCounters
from trivium.common.quotas import Account
from trivium.common.turns import EndOfTurn
from trivium.errors import AccessRefused
from trivium.idempotence.deduplication import QUEUE, deduplication_id
from trivium.messages.message import AT_MOST_ONCE, EXACTLY_ONCE, UNSAMPLED, HeaderValue, Message
from trivium.messages.tracing import ACKNOWLEDGED, REJECTED_BY_CLIENT, REQUEUED
from trivium.queues.consumers import NOBODY, Consumer, Rotation
from trivium.queues.dead_letters import DELIVERY_LIMIT, MAXLEN, REJECTED_REASON, DeadLetter
from trivium.queues.given_up import PURGED, GivenUp
from trivium.queues.limits import drop_heads, is_over_limit
from trivium.queues.pending import PendingEntries, add_pending
from trivium.queues.ready import ReadyEntries
from trivium.queues.requeues import QueueRequeues, forget_requeues, keep_requeues
from trivium.queues.settings import DROP_HEAD, QueueSettings, settings_of, shared_arguments
from trivium.queues.sub_queues import QueueEntry
from trivium.queues.waiting import WaitingEntries, count_waiting, expire_heads, waiting_of
from trivium.routing.exchanges import ACCEPTED, REJECTED, Declarer, Destination
from trivium.storage.base import Log

if TYPE_CHECKING:
    from trivium.queues.namespace import QueueNamespace

#: Of so many deliveries of a queue one is measured.
SAMPLED: Final[i64] = 64

__all__ = ["Consumer", "Queue", "QueueEntry"]


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
        self.arguments = shared_arguments(arguments)
        #: the adapter whose private state this queue is (an MQTT session's backlog); "" for none
        self.adapter = adapter
        #: the account of who declared it, for quotas; None for nobody's
        self.user: Account | None = None
        #: who gave it a dead letter exchange; None: the broker, or it has none
        self.declarer: Declarer | None = None
        #: those that it has; ``NOBODY`` while it has none
        self.consumers = NOBODY
        self.is_deleted = False
        self.unsettled = 0
        #: since the start, except for what ``given_up`` counts
        self.counters = NOTHING_COUNTED
        #: entries became ready, by other ways than a publish: time and limits are yet to count
        self.is_unchecked = False
        self.settings = settings_of(self.arguments, {})
        self._broker = vhost.broker
        self._is_dirty = False
        #: how often stored messages came back; None while none ever has
        self.requeues: QueueRequeues | None = None
        if logs and vhost.requeues.has(name):
            self.requeues = vhost.requeues.of(name)
        #: when it was used last, by ``Host.elapsed_ms``
        self.used_at = vhost.broker.elapsed_ms
        self.ready = ReadyEntries(self, logs, self.settings.max_priority + 1)
        #: None while it never had such entries
        self.pending: PendingEntries | None = None
        self.waiting: WaitingEntries | None = None
        self.given_up = GivenUp()
        # Whether ``put`` does without ``put_special``.
        self._is_plain = True
        self.apply(self.settings)

    def apply(self, settings: QueueSettings) -> None:
        """Put other settings in force, for what comes and for what is ready."""
        self.settings = settings
        self.set_plain()
        for sub_queue in self.ready.sub_queues:
            sub_queue.settings_changed()
        if settings.expires >= 0 or self.waiting is not None:
            self.dispatch_later()
        elif not self.ready.is_empty:
            # There may be very many, at a start or where a policy has changed.
            self.vhost.head_walk.add(self)

    def set_plain(self) -> None:
        """Find out anew whether a usual message needs no more than ``put``."""
        settings = self.settings
        self._is_plain = (
            len(self.ready.sub_queues) == 1
            and settings.message_ttl < 0
            and not settings.has_limits
            and settings.delivery < 0
            and not settings.deduplication.is_on
            and not self.given_up.is_full
            and self.vhost.most_queued_bytes < 0
        )

    # Publishing

    def target_queue(self) -> Destination | None:
        return self

    @property
    def passes_on(self) -> bool:
        return self.settings.passes_on

    def accept(self, message: Message) -> int:
        return self.put(message, b"")

    def put(self, message: Message, annotation: bytes) -> int:
        """Enqueue: ACCEPTED, the write batch that makes the message durable, or REJECTED.

        ``annotation`` is kept with the entry, also over a restart.
        """
        if not self._is_plain or message.expires or message.insists:
            return self.put_special(message, annotation)
        _counters(self).published += 1
        ready = self.ready
        sub_queue = ready.lowest
        entry = QueueEntry(self, sub_queue, message, annotation)
        result = ACCEPTED
        if message.persistent and sub_queue.record(entry):
            result = self._broker.storage.write_batch
            if message.mode == EXACTLY_ONCE:
                add_pending(entry)
        elif not message.persistent:
            sub_queue.skip(entry)
        if len(self.consumers) and entry.write_batch == 0 and sub_queue.is_empty:
            consumer = self.consumers.next()
            if consumer is not None:
                self._hand_over(consumer, entry)
                return result
        sub_queue.append(entry)
        ready.bytes += message.size
        self.vhost.queued_bytes += message.size
        return result

    def takes_runs(self, mode: int) -> bool:
        return self._is_plain

    def accept_run(self, messages: list[Message]) -> int:
        """``put`` of messages that came in a row: they are recorded together, then handed over."""
        count = len(messages)
        _counters(self).published += count
        ready = self.ready
        sub_queue = ready.lowest
        entries = [QueueEntry(self, sub_queue, message, b"") for message in messages]
        result = ACCEPTED
        if sub_queue.record_run(entries):
            result = self._broker.storage.write_batch
            if messages[0].mode == EXACTLY_ONCE:
                for entry in entries:
                    add_pending(entry)
        at = 0
        while len(self.consumers) and entries[at].write_batch == 0 and sub_queue.is_empty:
            consumer = self.consumers.next()
            if consumer is None:
                break
            self._hand_over(consumer, entries[at])
            at += 1
            if at == count:
                return result
        size = 0
        while at < count:
            entry = entries[at]
            sub_queue.append(entry)
            size += entry.message.size
            at += 1
        ready.bytes += size
        self.vhost.queued_bytes += size
        return result

    def has_room(self, messages: int, size: int) -> bool:
        if self.settings.overflow != DROP_HEAD and is_over_limit(self, messages, size):
            return False
        return self.vhost.most_queued_bytes < 0 or not self.vhost.lacks_room(size)

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
        if settings.overflow != DROP_HEAD and is_over_limit(self, 1, message.size):
            # Whoever publishes a dead letter passes it on as well.
            if self.passes_on and message.annotations is None:
                letter = DeadLetter(self, None, message, MAXLEN)
                self.vhost.dead_letters.add_refused(letter)
            return _refused(self)
        if self.vhost.most_queued_bytes >= 0 and self.vhost.lacks_room(message.size):
            return _refused(self)
        _counters(self).published += 1
        sub_queue = self.ready.of_priority(message.priority)
        entry = QueueEntry(self, sub_queue, message, annotation)
        result = ACCEPTED
        if mode != AT_MOST_ONCE if is_replaced else message.persistent:
            if sub_queue.record(entry):
                result = self._broker.storage.write_batch
                if mode == EXACTLY_ONCE:
                    add_pending(entry)
        else:
            sub_queue.skip(entry)
        if identity is not None:
            window = self.vhost.deduplication.window(QUEUE, self.name)
            window.add(identity, settings.deduplication, entry.is_stored)
        entry.expires = settings.expiry_of(message)
        if message.deliver_at:
            if entry.is_stored and sub_queue.is_spilled:
                # It will be read back with those before it, and must not be there twice.
                sub_queue.append(entry)
                return result
            if waiting_of(self).delay(entry):
                return result
        if (
            len(self.consumers)
            and entry.write_batch == 0
            and not self.given_up.is_full
            and self.ready.is_empty
        ):
            consumer = self.consumers.next()
            if consumer is not None:
                self._hand_over(consumer, entry)
                return result
        sub_queue.append(entry)
        self.ready.bytes += message.size
        self.vhost.queued_bytes += message.size
        if entry.expires:
            waiting_of(self).look_at(entry.expires)
        if settings.has_limits:
            drop_heads(self)
        return result

    # Delivery

    def add_consumer(self, consumer: Consumer, exclusive: bool = False) -> None:
        """Attach a consumer and start delivering to it.

        Raises AccessRefused when there is an exclusive consumer, or ``exclusive`` is asked for
        while there are others, or of a queue with a single active consumer (as RabbitMQ does):
        there others wait until it leaves.
        """
        consumers = self.consumers
        is_single = self.settings.single_active_consumer
        if consumers.is_exclusive or (exclusive and (len(consumers) or is_single)):
            raise AccessRefused(
                f"queue '{self.name}' in vhost '{self.vhost.name}' in exclusive use"
            )
        if consumers is NOBODY:
            self.consumers = consumers = Rotation()
        consumers.is_exclusive = exclusive
        consumers.is_single = is_single
        consumers.add(consumer)
        tell_consumer(self, consumer, "created")
        self._deliver()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer. What it holds stays its own until settled or requeued.

        An auto-delete queue is deleted when its last consumer leaves.
        """
        if not self.consumers.remove(consumer):
            return
        tell_consumer(self, consumer, "deleted")
        if len(self.consumers):
            self.consumers.is_exclusive = False
            self.dispatch_later()
            return
        self.consumers = NOBODY
        if self.auto_delete:
            self.vhost.delete_queue(self)
        else:
            self.touch()

    def touch(self) -> None:
        """The queue was used: its own expiry starts anew."""
        self.used_at = self._broker.elapsed_ms
        expires = self.settings.expires
        if expires >= 0 and not len(self.consumers):
            waiting_of(self).expire_at(self.used_at + expires)

    def _hand_over(self, consumer: Consumer, entry: QueueEntry) -> None:
        self.unsettled += 1
        counters = _counters(self)
        if entry.is_redelivered:
            counters.redelivered += 1
        if (counters.delivered + counters.delivered_settled) % SAMPLED == 0:
            self._broker.timings.deliveries.observe(
                max(self._broker.now_ms - entry.message.timestamp, 0) / 1000
            )
        consumer.deliver(entry)
        vhost = self.vhost
        # As ``shows`` says it, which would be a call for each message.
        if vhost.is_watched and (entry.message.traced > UNSAMPLED or vhost.tap is not None):
            _tell_delivered(self, consumer, entry)
        if consumer.settles_on_delivery or (
            (not self._is_plain or entry.message.insists)
            and self.settings.settles_on_delivery(entry.message)
        ):
            # Whoever cannot use it may have dropped it.
            if not entry.is_settled:
                counters.delivered_settled += 1
                self.settle(entry)
        else:
            counters.delivered += 1

    def serve(self, consumer: Consumer) -> None:
        """``dispatch``, because ``consumer`` alone may take entries again."""
        self.consumers.resume(consumer)
        self._deliver()

    def dispatch(self) -> None:
        """Hand ready entries to consumers until there are none or nobody takes more."""
        self.consumers.resume_all()
        self._deliver()

    def _deliver(self) -> None:
        consumers = self.consumers
        ready = self.ready
        while len(consumers) and not ready.is_empty:
            consumer = consumers.next()
            if consumer is None:
                break
            entry = ready.pop(self)
            if entry is None:
                break
            self._hand_over(consumer, entry)
        if self.is_unchecked:
            self._check()

    def dispatch_later(self) -> None:
        """``dispatch`` at the end of this turn.

        A consumer leaves, or its connection does: what it holds may come back in the same turn and
        goes first, and others may leave with it.
        """
        if not self.is_deleted:
            waiting_of(self).look_again()

    def look(self) -> None:
        """``dispatch``; then what is ready is subject to limits and time, as of now."""
        self.is_unchecked = True
        self.dispatch()

    def _check(self) -> None:
        """Consumers have taken what they can: what is ready is subject to limits and time."""
        self.is_unchecked = False
        if self.settings.has_limits:
            drop_heads(self)
        for sub_queue in self.ready.sub_queues:
            expire_heads(self, sub_queue)

    def get(self, no_ack: bool = False) -> QueueEntry | None:
        """Take the next entry without a consumer (AMQP basic.get). Settle or requeue it later,
        unless ``no_ack`` settles it.

        None when there is none now, which it says too while ``ReadyEntries.is_loading``.
        """
        self.touch()
        entry = self.ready.pop(self)
        if entry is not None:
            self.unsettled += 1
            counters = _counters(self)
            if no_ack or self.settings.settles_on_delivery(entry.message):
                counters.got_settled += 1
                self.settle(entry)
            else:
                counters.got += 1
        return entry

    def loaded(self) -> None:
        """Entries that were asked for have come from the log."""
        if not self.is_deleted:
            self.look()
            self.ready.call_waiters()

    # Settlement

    def settle(self, entry: QueueEntry) -> None:
        """The entry is done with, durable with this write batch. Again makes no difference."""
        if entry.is_settled:
            return
        if self.vhost.is_watched and entry.message.traced > UNSAMPLED:
            _tell_settled(self, entry, ACKNOWLEDGED)
        entry.is_settled = True
        self.unsettled -= 1
        _counters(self).settled += 1
        if entry.is_stored and not self.is_deleted:
            entry.sub_queue.settle(entry.offset)
            self._broker.collected += 1
            if entry.requeues:
                forget_requeues(entry)
            if not self._is_dirty:
                self._is_dirty = True
                self._broker.add_unflushed(_Settlements(self))

    def reject(self, entry: QueueEntry) -> None:
        """The consumer does not want the entry, and it shall not come again."""
        if not entry.is_settled:
            if self.vhost.is_watched:
                _tell_settled(self, entry, REJECTED_BY_CLIENT)
            self.given_up.add(entry, REJECTED_REASON)

    def requeue(self, entry: QueueEntry, was_delivered: bool = True) -> None:
        """Put an entry back. Call ``dispatch``, or ``dispatch_later``, once all of a kind are back.

        ``was_delivered`` is False when the consumer certainly never saw it.
        """
        if entry.is_settled:
            return
        if self.vhost.is_watched:
            _tell_settled(self, entry, REQUEUED)
        if self.is_deleted:
            self.unsettled -= 1
            return
        if was_delivered:
            entry.is_redelivered = True
            entry.requeues += 1
            settings = self.settings
            if 0 <= settings.delivery_limit < entry.requeues:
                self.given_up.add(entry, DELIVERY_LIMIT)
                return
            delay = settings.retry_delay_of(entry.requeues)
            if entry.is_stored:
                keep_requeues(entry, self._broker.now_ms + delay if delay else 0)
            if delay:
                self.postpone(entry, delay)
                return
        self.unsettled -= 1
        self.ready.bytes += entry.message.size
        self.vhost.queued_bytes += entry.message.size
        entry.sub_queue.put_back(entry)
        self.is_unchecked = True

    def postpone(self, entry: QueueEntry, delay: int) -> None:
        """Put back an entry that a consumer cannot use within ``delay`` milliseconds."""
        self.unsettled -= 1
        waiting_of(self).postpone(entry, delay)

    # Management

    def __len__(self) -> int:
        """Messages that are ready, whether in memory or in the log."""
        return len(self.ready)

    def purge(self) -> int:
        """Remove all ready and delayed messages; how many there were. Unsettled ones stay."""
        ready = len(self.ready)
        count = ready + count_waiting(self)
        if count:
            _counters(self).settled += ready
            self.given_up.count_dropped(PURGED, count)
        if self.waiting is not None:
            for entry in self.waiting.take():
                self.unsettled += 1
                self.settle(entry)
        self.vhost.queued_bytes -= self.ready.bytes
        self.ready.purge()
        self._broker.collected += count
        self._broker.count_work(count)
        if count and not self._is_dirty:
            self._is_dirty = True
            self._broker.add_unflushed(_Settlements(self))
        self.vhost.tell("queue.purged", queue=self.name, messages=count)
        return count

    def deleted(self) -> None:
        """The virtual host removed this queue: drop everything, tell the consumers."""
        self.is_deleted = True
        self._broker.count_work(len(self.ready))
        if self.waiting is not None:
            self.waiting.deleted()
        if self.requeues is not None:
            self.requeues.clear()
        self.vhost.queued_bytes -= self.ready.bytes
        self.ready.deleted()
        consumers = self.consumers.all()
        self.consumers.clear()
        self.consumers = NOBODY
        for consumer in consumers:
            tell_consumer(self, consumer, "deleted")
            consumer.cancelled()
        self.ready.call_waiters()
        # What may be called later must not keep it in memory, nor it the connection.
        self.owner = None
        if self.pending is not None:
            self.pending.queue = None


def _counters(queue: Queue) -> QueueCounters:
    """Those of ``queue``, to count with."""
    found = queue.counters
    if found is NOTHING_COUNTED:
        found = queue.counters = QueueCounters()
    return found


def count_nothing(queue: Queue) -> None:
    """Somebody would have taken a message of ``queue``, which has none."""
    _counters(queue).got_nothing += 1


def tell_consumer(queue: Queue, consumer: Consumer, what: str) -> None:
    """A consumer has come or gone; those of queues that are private to an adapter are no news."""
    about = None if queue.adapter else consumer.describe()
    if about is not None:
        queue.vhost.tell(
            f"consumer.{what}",
            queue=queue.name,
            consumer_tag=about.tag,
            channel=about.channel,
            ack_required=about.acknowledges,
            exclusive=queue.consumers.is_exclusive,
            prefetch_count=about.limit,
            arguments=dict(about.arguments),
        )


def _tell_delivered(queue: Queue, consumer: Consumer, entry: QueueEntry) -> None:
    """Tell those who look on that ``entry`` was handed over to ``consumer``."""
    vhost = queue.vhost
    message = entry.message
    client = consumer.client()
    if client is None:
        return
    channel = 0
    if vhost.tap is not None:
        about = consumer.describe()
        channel = 0 if about is None else about.channel
    is_over = consumer.settles_on_delivery or queue.settings.settles_on_delivery(message)
    held = None if is_over else entry
    vhost.delivered(message, queue.name, entry.is_redelivered, client, channel, held)


def _tell_settled(queue: Queue, entry: QueueEntry, how: str) -> None:
    """Tell who follows messages what the client has done with ``entry``, if it had it."""
    tracer = queue.vhost.tracer
    if tracer is not None and tracer.has(entry.message):
        tracer.settled(entry, entry.message, queue.name, how)


def _refused(queue: Queue) -> int:
    _counters(queue).refused += 1
    return REJECTED


class _Settlements(EndOfTurn):
    """Writes the settlements of a queue at the end of the turn."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def flush_turn(self) -> None:
        queue = self._queue
        queue._is_dirty = False
        queue.ready.flush()
