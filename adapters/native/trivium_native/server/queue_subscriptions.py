"""Messages of a queue for a connection: as they come, or as they are asked for.

Each is the client's until it settles it, gives it back, or leaves. Nor is it the client's any more
when the time for that is over.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from trivium.common.descriptions import ConsumerDescription
from trivium.common.timers import Timed
from trivium.queues.delivery_times import TIMEOUT_MARKS, DeliveryTimes, time_to_acknowledge
from trivium.queues.polling import Poll, give_back
from trivium.queues.queue import Consumer, Queue, QueueEntry
from trivium.queues.settings import stricter
from trivium.queues.unsettled import Unsettled
from trivium.security.permissions import READ
from trivium_native.server.deliveries import write_delivery
from trivium_native.server.subscriptions import Subscription
from trivium_native.wire.errors import (
    NativeError,
    NotFound,
    PreconditionFailed,
    TooManyRequests,
    UnknownDelivery,
)
from trivium_native.wire.messages import REDELIVERED

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

logger = logging.getLogger(__name__)

#: Milliseconds between two looks at what awaits a settlement: not less, as a client may have very
#: many subscriptions, and not more, as the time for it may be another by then.
MIN_LOOK_MS: Final = 1000
MAX_LOOK_MS: Final = 60_000
#: Polls of one connection that are under way: each may take as much as one answer holds.
MAX_POLLS: Final = 64


class _QueueConsumer(Consumer):
    """The subscription as its queue sees it."""

    def __init__(
        self, subscription: QueueSubscription, priority: int, settles_on_delivery: bool
    ) -> None:
        self._subscription = subscription
        self.priority = priority
        self.settles_on_delivery = settles_on_delivery

    def takes_delivery(self) -> bool:
        return self._subscription.takes_delivery()

    def deliver(self, entry: QueueEntry) -> None:
        self._subscription.deliver(entry)

    def cancelled(self) -> None:
        self._subscription.cancelled()

    def describe(self) -> ConsumerDescription | None:
        return self._subscription.describe()

    def client(self) -> object:
        return self._subscription.connection


class _Look(Timed):
    """Looks after the deliveries of a subscription that await a settlement."""

    def __init__(self, subscription: QueueSubscription) -> None:
        self._subscription = subscription

    def due(self) -> None:
        self._subscription.check_times()


class QueueSubscription(Subscription):
    """Mode ``queue``: at most ``credit`` deliveries are unsettled at a time.

    With ``no_ack`` there is nothing to settle: each delivery uses up one credit. Otherwise what is
    not settled in time comes back to the queue: ``ack_ms``, and the queue's or the broker's time.
    """

    def __init__(
        self,
        connection: NativeConnection,
        number: int,
        queue: Queue,
        priority: int,
        no_ack: bool,
        exclusive: bool,
        ack_ms: int,
    ) -> None:
        super().__init__(connection, number)
        self._queue = queue
        self._credit = 0
        self._no_ack = no_ack
        self._exclusive = exclusive
        self._tag: i64 = 0
        self._ack_ms = ack_ms
        self._unsettled: Unsettled[QueueEntry] = Unsettled()
        # Whether somebody looks after them, who that is, and how old they are.
        self._is_timed = False
        self._is_told = False
        self._look: _Look | None = None
        self._times: DeliveryTimes | None = None
        self._consumer: _QueueConsumer | None = _QueueConsumer(self, priority, no_ack)

    def start(self) -> None:
        """Attach, without credit yet. Raises AccessRefused where others consume exclusively."""
        assert self._consumer is not None
        self._queue.add_consumer(self._consumer, self._exclusive)

    def describe(self) -> ConsumerDescription | None:
        return ConsumerDescription(
            tag=str(self.number),
            queue=self._queue.name,
            connection=self.connection,
            channel=0,
            acknowledges=not self._no_ack,
            limit=0,
        )

    def takes_delivery(self) -> bool:
        """Whether there is credit left and the connection takes output."""
        return len(self._unsettled) < self._credit and self.connection.has_room()

    def deliver(self, entry: QueueEntry) -> None:
        """Send an entry; it is the client's until it is settled or given back."""
        connection = self.connection
        tag = self._tag + 1
        self._tag = tag
        traffic = connection.traffic
        if self._no_ack:
            traffic.delivered_settled += 1
            self._credit -= 1
        else:
            traffic.delivered += 1
            self._unsettled.add(tag, entry)
            if not self._is_timed:
                self._begin_looking()
        flags = 0
        metrics = connection.metrics
        if entry.is_redelivered:
            flags = REDELIVERED
            metrics.messages_redelivered += 1
            traffic.redelivered += 1
        metrics.messages_sent += 1
        message = entry.message
        now_ms = connection.broker.now_ms
        connection.output_size += write_delivery(
            connection.output, metrics, self.number, flags, message, entry.requeues, tag, now_ms
        )
        connection.mark_dirty()
        connection.send_content(message.content)

    def cancelled(self) -> None:
        """The queue is gone."""
        self._unsettled.clear()
        self._stop_looking()
        self._consumer = None
        self.send_cancelled(NotFound("the queue was deleted"))

    def add_credit(self, amount: int) -> None:
        self._credit += amount
        self.resume()

    def stand_by(self) -> None:
        if self._consumer is not None:
            self._queue.consumers.resume(self._consumer)

    def resume(self) -> None:
        if self._consumer is not None:
            self._queue.serve(self._consumer)

    def settle(self, first: i64, last: i64) -> None:
        queue = self._queue
        taken = self._take_some(first, last)
        self.connection.traffic.acknowledged += len(taken)
        for entry in taken:
            queue.settle(entry)
        self.resume()

    def give_back(self, first: i64, last: i64, requeue: bool) -> None:
        queue = self._queue
        for entry in self._take_some(first, last):
            if requeue:
                queue.requeue(entry)
            else:
                queue.reject(entry)
        self.resume()

    def take(self, first: int, last: int) -> list[tuple[int, QueueEntry]]:
        return self._unsettled.pop_range(first, last)

    def put_back(self, taken: list[tuple[int, QueueEntry]]) -> None:
        for tag, entry in taken:
            self._unsettled.add(tag, entry)

    def _take_some(self, first: i64, last: i64) -> list[QueueEntry]:
        taken = self._unsettled.pop_values(first, last)
        if not taken:
            raise UnknownDelivery(f"no unsettled delivery from {first} to {last}")
        return taken

    def check_permissions(self) -> None:
        self.connection.access.require(READ, "queue", self._queue.name)

    def end(self) -> None:
        queue = self._queue
        unsettled = self._unsettled.items()
        self._unsettled.clear()
        self._stop_looking()
        # First back to the queue, so that an auto-delete queue goes with its consumer as a whole.
        for _, entry in unsettled:
            queue.requeue(entry)
        if self._consumer is not None:
            queue.remove_consumer(self._consumer)
            self._consumer = None
        queue.dispatch_later()

    # Time

    def _begin_looking(self) -> None:
        """Something awaits a settlement, and nothing did before."""
        self._is_timed = True
        if self._look is None:
            self._look = _Look(self)
            self._times = DeliveryTimes()
        self.check_times()

    def _stop_looking(self) -> None:
        if self._look is not None:
            self.connection.broker.timeouts.stop(self._look)
            # They would keep each other in memory.
            self._look = None

    def check_times(self) -> None:
        """Give back what was not settled in time, and look again after a part of that."""
        times, look = self._times, self._look
        if times is None or look is None:
            return
        oldest = self._unsettled.first()
        if oldest is None:
            self._is_timed = False
            times.clear()
            return
        broker = self.connection.broker
        usual = broker.config.limits.consumer_timeout_seconds
        limit = time_to_acknowledge(self._queue.settings, usual)
        limit = stricter("consumer-timeout", self._ack_ms, limit)
        pause = MAX_LOOK_MS
        if limit:
            pause = min(max(limit // TIMEOUT_MARKS, MIN_LOOK_MS), MAX_LOOK_MS)
            age = times.age(broker.elapsed_ms, oldest[0], self._tag, pause)
            if age >= limit:
                self._give_up(times.marked, limit)
        else:
            times.clear()
        broker.timeouts.call_at(broker.elapsed_ms + pause, look)

    def _give_up(self, last: i64, limit: int) -> None:
        """What was delivered up to ``last`` comes back."""
        taken = self._unsettled.pop_values(0, last)
        if not self._is_told:
            # Once: it may go on so.
            self._is_told = True
            logger.warning(
                "%s: subscription %d did not settle %d deliveries from queue %r within %d ms",
                self.connection.peer.address,
                self.number,
                len(taken),
                self._queue.name,
                limit,
            )
        for entry in taken:
            self._queue.requeue(entry)
        self._queue.dispatch_later()


class PolledSubscription(QueueSubscription):
    """Mode ``poll``: deliveries come as POLL asks for them, while less than ``credit`` are
    unsettled. Between polls it is no consumer of the queue."""

    def __init__(
        self, connection: NativeConnection, number: int, queue: Queue, ack_ms: int
    ) -> None:
        super().__init__(connection, number, queue, 0, False, False, ack_ms)
        self._consumer = None
        # What is under way, and what it answers.
        self._poll: Poll | None = None
        self._polled_by = 0

    def start(self) -> None:
        """It attaches as it polls."""

    def describe(self) -> ConsumerDescription | None:
        return None

    def add_credit(self, amount: int) -> None:
        self._credit += amount

    def poll(self, correlation: int, count: int, max_bytes: int, wait_ms: int) -> None:
        """Deliver up to so many messages, then answer how many. Raises PreconditionFailed,
        TooManyRequests, NotFound where the queue is gone, which ends the subscription."""
        connection = self.connection
        if self._poll is not None:
            raise PreconditionFailed(f"subscription {self.number} has a poll under way")
        room = self._credit - len(self._unsettled)
        if room <= 0:
            raise TooManyRequests(f"subscription {self.number} has {self._credit} to settle first")
        if self._queue.is_deleted:
            error = NotFound("the queue was deleted")
            self.end()
            self.send_cancelled(error)
            raise error
        if connection.polls >= MAX_POLLS:
            raise TooManyRequests(f"a connection has at most {MAX_POLLS} polls under way")
        connection.polls += 1
        self._polled_by = correlation
        self._poll = Poll(
            connection.broker,
            self._queue,
            min(count, room),
            wait_ms,
            self._polled,
            max_bytes,
            connection.has_room,
        )
        self._poll.begin()

    def _polled(self, taken: list[QueueEntry]) -> None:
        connection = self.connection
        connection.polls -= 1
        was_ended = self._poll is None
        self._poll = None
        if was_ended or connection.is_closed:
            give_back(self._queue, taken)
            return
        for entry in taken:
            # What is at most once is settled by being taken.
            self.deliver(entry)
        if self._queue.is_deleted and not taken:
            self.end()
            self.send_cancelled(NotFound("the queue was deleted"))
            return
        correlation, self._polled_by = self._polled_by, 0
        connection.reply(correlation, {"messages": len(taken)})

    def resume(self) -> None:
        if self._poll is not None:
            self._poll.resume()

    def end(self) -> None:
        poll = self._poll
        if poll is not None:
            self._poll = None
            poll.stop()
        super().end()

    def unsubscribed(self) -> None:
        super().unsubscribed()
        self._refuse_poll(NotFound("it was unsubscribed meanwhile"))

    def send_cancelled(self, error: NativeError) -> None:
        super().send_cancelled(error)
        self._refuse_poll(error)

    def _refuse_poll(self, error: NativeError) -> None:
        correlation, self._polled_by = self._polled_by, 0
        self.connection.send_error(correlation, error)
