"""A channel: its methods, acknowledgements, and its end.

Publishing has a module of its own; the methods that are not hot are functions in ``basic`` and
``topology``, found through ``HANDLERS``.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, cast

from trivium.errors import AccessRefused, TopologyError
from trivium.queues.delivery_times import TIMEOUT_MARKS, DeliveryTimes, time_to_acknowledge
from trivium.queues.queue import Queue, QueueEntry
from trivium.queues.unsettled import Unsettled
from trivium.security.permissions import READ, Access
from trivium_amqp import basic, states, topology
from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import (
    PRECONDITION_FAILED,
    ChannelException,
    channel_exception,
)
from trivium_amqp.codec.frames import BODY_EVENT, HEADER_EVENT, method_frame
from trivium_amqp.consumer import AmqpConsumer
from trivium_amqp.publisher import Publisher
from trivium_amqp.replies import Reply
from trivium_amqp.transaction import REJECT, REQUEUE, SETTLE

if TYPE_CHECKING:
    from trivium_amqp.connection import AmqpConnection

logger = logging.getLogger(__name__)

HANDLERS: Final = {**basic.HANDLERS, **topology.HANDLERS}


class Channel:
    """One channel of a connection, from channel.open to channel.close-ok."""

    def __init__(self, connection: AmqpConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.vhost = connection.vhost
        self.broker = connection.broker
        #: which frames may come
        self.state = states.OPEN
        #: deliveries that await an acknowledgement, by delivery tag
        self.unacked: Unsettled[QueueEntry] = Unsettled()
        self.delivery_tag = 0
        self.consumers: dict[str, AmqpConsumer] = {}
        #: prefetch count of consumers to come
        self.prefetch = 0
        #: prefetch count of the channel, 0 for none, and deliveries to consumers that count
        self.limit = 0
        self.held = 0
        #: consumers that the channel's limit keeps from deliveries, the longest waiting first
        self.waiting: OrderedDict[int, AmqpConsumer] = OrderedDict()
        #: the queue that an empty name stands for
        self.last_queue = ""
        #: queue of direct replies to this channel
        self.reply_queue: Queue | None = None
        self.publisher = Publisher(connection, number)
        self._times = DeliveryTimes()
        # Tags of consumers that were cancelled by what is being carried out; None at other times.
        self._cancelled: list[str] | None = None

    # Methods

    def reply(self, method: int, *arguments: Any) -> None:
        """Send a method behind everything that this channel is to send before."""
        self.connection.replies.send(self.number, method_frame(self.number, method, *arguments))

    def reply_after(self, write_batch: int, method: int, *arguments: Any) -> None:
        """``reply``, once ``write_batch`` is durable (0: at once)."""
        frame = method_frame(self.number, method, *arguments)
        self.connection.replies.put(self.number, Reply(frame, write_batch))

    def take_frame(self, event: int, data: bytes, start: int, end: int) -> None:
        """Carry out a frame that the channel's state admits; its payload is ``data[start:end]``."""
        publisher = self.publisher
        if event == BODY_EVENT:
            body = publisher.take_body(data, start, end)
            if body is not None:
                self.state = states.OPEN
                publisher.complete(body)
        elif event == HEADER_EVENT:
            if publisher.begin_body(data, start, end):
                self.state = states.AWAITS_BODY
            else:
                self.state = states.OPEN
                publisher.complete(b"")
        elif event == methods.BASIC_PUBLISH:
            publisher.begin(data[start + 4 : end])
            self.state = states.AWAITS_HEADER
        elif event == methods.BASIC_ACK:
            tag, multiple = methods.decode(event, data, start + 4, end)
            if not self.acknowledge(tag, multiple):
                raise unknown_tag(tag)
            self.connection.repeats.expect_acknowledgements(self)
        else:
            HANDLERS[event](self, methods.decode(event, data, start + 4, end))

    # Acknowledgements

    def acknowledge(self, tag: int, multiple: bool) -> bool:
        """basic.ack: settle one delivery, or all up to ``tag`` (0: all). False if unknown."""
        if not multiple and self.publisher.transaction is None:
            entry = self.unacked.pop(tag) if tag <= self.delivery_tag else None
            if entry is None:
                return False
            entry.queue.settle(entry)
            self._count_acknowledged()
            self._release(entry)
            return True
        taken = self.take(tag, multiple)
        if taken is None:
            return False
        self.dispose(taken, SETTLE)
        return True

    def take(self, tag: int, multiple: bool) -> list[QueueEntry] | None:
        """Remove the delivery ``tag``, or all up to it, from the unacknowledged ones.

        None when there is no such delivery; tag 0 with ``multiple`` means all there are (60.80).
        """
        unacked = self.unacked
        if multiple and tag == 0:
            return unacked.pop_values(0, self.delivery_tag)
        # Clients may state any number of 64 bits.
        entry = unacked.pop(tag) if tag <= self.delivery_tag else None
        if entry is None:
            return None
        taken = unacked.pop_values(0, tag) if multiple else []
        taken.append(entry)
        return taken

    def dispose(self, taken: list[QueueEntry], action: int) -> None:
        """Settle, reject or requeue deliveries, at once or with the transaction."""
        if self.publisher.transaction is not None:
            pending = self.publisher.transaction.acknowledgements
            for entry in taken:
                pending.append((entry, action))
            return
        queues: dict[int, Queue] = {}
        for entry in taken:
            if action == REQUEUE:
                entry.queue.requeue(entry)
                queues[id(entry.queue)] = entry.queue
            elif action == REJECT:
                entry.queue.reject(entry)
            else:
                entry.queue.settle(entry)
                self._count_acknowledged()
            self._release(entry)
        if queues:
            # Not the queues that something returned to, but who waits longest goes first.
            self.serve_waiting()
        for queue in queues.values():
            queue.dispatch()

    def _count_acknowledged(self) -> None:
        self.publisher.traffic.acknowledged += 1
        self.connection.traffic.acknowledged += 1

    def _release(self, entry: QueueEntry) -> None:
        """A delivery is no longer its consumer's, which has room for another one."""
        consumer = cast("AmqpConsumer | None", entry.holder)
        if consumer is None:
            return
        entry.holder = None
        consumer.held -= 1
        self.held -= 1
        if not consumer.is_credited:
            self.connection.dispatches.credit(consumer)

    def serve_waiting(self) -> None:
        """Let the consumers that wait for the channel's limit have the room that there is.

        Who is still refused waits behind the others, so that the room goes round.
        """
        waiting = self.waiting
        while waiting and (self.limit == 0 or self.held < self.limit):
            _, consumer = waiting.popitem(last=False)
            consumer.queue.serve(consumer)

    def forget_consumer(self, tag: str) -> AmqpConsumer | None:
        """Take a consumer off the channel; None when there is none with this tag."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            self.connection.usage.add_subscriptions(-1)
            self.waiting.pop(id(consumer), None)
        return consumer

    def new_delivery(self, entry: QueueEntry, no_ack: bool) -> int:
        """The delivery tag of a message that is handed out without a consumer (basic.get)."""
        self.delivery_tag += 1
        if not no_ack:
            entry.tag = self.delivery_tag
            self.unacked.add(entry.tag, entry)
        return self.delivery_tag

    def check_timeout(self, now: float) -> None:
        """Fail when the oldest delivery was not acknowledged in time, which is its queue's or the
        broker's; ``now`` is in seconds on the monotonic clock.

        As RabbitMQ does it: those behind the oldest one are not looked at.
        """
        first = self.unacked.first()
        if first is None:
            self._times.clear()
            return
        oldest, entry = first
        usual = self.broker.config.limits.consumer_timeout_seconds
        timeout = time_to_acknowledge(entry.queue.settings, usual) / 1000
        if timeout == 0:
            self._times.clear()
            return
        age = self._times.age(now, oldest, self.delivery_tag, timeout / TIMEOUT_MARKS)
        if age <= timeout:
            return
        milliseconds = int(timeout * 1000)
        consumer = cast("AmqpConsumer | None", entry.holder)
        logger.warning(
            "%s: consumer %r on channel %d did not acknowledge delivery %d from queue %r within"
            " %d ms",
            self.connection.peer.address,
            "" if consumer is None else consumer.tag,
            self.number,
            oldest,
            entry.queue.name,
            milliseconds,
        )
        text = (
            f"delivery acknowledgement on channel {self.number} timed out."
            f" Timeout value used: {milliseconds} ms."
            " This timeout value can be configured, see consumers doc guide to learn more"
        )
        self.fail(ChannelException(PRECONDITION_FAILED, text), 0)

    @property
    def access(self) -> Access:
        """What the client may do."""
        return self.connection.access

    def check_permissions(self) -> None:
        """Permissions have changed: fail when a consumer reads what the client may not read."""
        for consumer in list(self.consumers.values()):
            queue = consumer.queue
            if queue is self.reply_queue:
                continue
            try:
                self.access.require(READ, "queue", queue.name)
            except AccessRefused as error:
                self.fail(channel_exception(error), 0)
                return

    # Cancellation by the server

    def hold_cancels(self) -> None:
        """Until ``tell_cancels`` no basic.cancel leaves: the answer to the method that causes them
        comes first, as with RabbitMQ."""
        self._cancelled = []

    def tell_cancels(self) -> None:
        """Send what was held back."""
        cancelled = self._cancelled
        assert cancelled is not None
        self._cancelled = None
        for tag in cancelled:
            self.reply(methods.BASIC_CANCEL, tag, True)

    def consumer_cancelled(self, tag: str) -> None:
        """The queue of a consumer is gone: tell the client, if it understands that
        (consumer_cancel_notify)."""
        if self.forget_consumer(tag) is None:
            return
        if not self.connection.client.has_capability("consumer_cancel_notify"):
            return
        if self._cancelled is None:
            self.reply(methods.BASIC_CANCEL, tag, True)
        else:
            self._cancelled.append(tag)

    # End

    def refuse(self, error: ChannelException | TopologyError, method: int) -> None:
        """``fail`` for what ``method`` raised."""
        if isinstance(error, ChannelException):
            self.fail(error, method)
        else:
            # It may be for a change that a crash could undo.
            self.fail(channel_exception(error), method, self.vhost.changes.newest)

    def fail(self, error: ChannelException, method: int, write_batch: int = 0) -> None:
        """Send channel.close for an exception that ``method`` caused, and release everything.

        The client hears of it once ``write_batch`` is durable, and what it has published before.
        """
        self.publisher.flush_confirms()
        self.publisher.line_up_confirms()
        self.state = states.CHANNEL_CLOSING
        self.connection.replies.advance(self.number)
        self.reply_after(
            write_batch,
            methods.CHANNEL_CLOSE,
            error.code,
            error.reply_text(),
            method >> 16,
            method & 0xFFFF,
        )
        self.release()

    def release(self) -> None:
        """Cancel the consumers and return what is unacknowledged, in order."""
        self.connection.repeats.forget()
        self.publisher.release()
        held = [entry for _, entry in self.unacked.items()]
        transaction = self.publisher.transaction
        if transaction is not None:
            for entry, _ in transaction.acknowledgements:
                held.append(entry)
            self.publisher.transaction = None
        self.unacked.clear()
        consumers = list(self.consumers.values())
        self.consumers.clear()
        self.connection.usage.add_subscriptions(-len(consumers))
        self.waiting.clear()
        queues: dict[int, Queue] = {}
        for consumer in consumers:
            consumer.is_started = False
        # First, so that whoever is next begins with them.
        for entry in held:
            entry.holder = None
            entry.queue.requeue(entry)
            queues[id(entry.queue)] = entry.queue
        for consumer in consumers:
            consumer.queue.remove_consumer(consumer)
            queues[id(consumer.queue)] = consumer.queue
        if self.reply_queue is not None:
            self.vhost.delete_queue(self.reply_queue)
            self.reply_queue = None
        for queue in queues.values():
            queue.dispatch_later()


def unknown_tag(tag: int) -> ChannelException:
    """The exception for an acknowledgement of what is not outstanding (406)."""
    return ChannelException(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
