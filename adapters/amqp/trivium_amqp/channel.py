"""A channel: publishing, confirms and acknowledgements (the hot path of this adapter).

The other methods are functions in ``basic`` and ``topology``, found through ``HANDLERS``.

Confirms: a message that waits for nothing is confirmed at the end of the feed, all of them by one
basic.ack with ``multiple``. One that waits for a batch is listed as (batch, last delivery tag);
each batch that becomes durable gives one basic.ack. While something waits, what need not wait is
confirmed singly, since ``multiple`` would cover the waiting ones.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from trivium.errors import TopologyError
from trivium.exchanges import ACCEPTED, REJECTED
from trivium.message import PROTOCOL_AMQP, Message
from trivium.queues import Queue, QueueEntry
from trivium_amqp import basic, methods, topology
from trivium_amqp.consumer import AmqpConsumer, cut_key, header_bytes
from trivium_amqp.content import ContentHeader, Target, read_header
from trivium_amqp.errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    UNEXPECTED_FRAME,
    ChannelException,
    ConnectionException,
    FramingError,
    channel_exception,
)
from trivium_amqp.frames import (
    BODY,
    CONFIRM_FRAME,
    CONFIRM_SIZE,
    CONTENT_HEADER,
    CONTENT_HEADER_SIZE,
    END,
    FRAME_END,
    HEAD,
    HEADER,
    METHOD,
    U32,
    U64,
    content_frames,
    method_frame,
)
from trivium_amqp.transaction import REJECT, REQUEUE, SETTLE, Held, Transaction

if TYPE_CHECKING:
    from trivium_amqp.connection import AmqpConnection

#: Targets that a channel remembers; emptied when full, which bounds what a client can make it keep.
MAX_TARGETS: Final = 256
#: Exchange whose messages the header x-retain makes retained ones: the one that MQTT uses.
RETAIN_EXCHANGE: Final = "amq.topic"

_PUBLISH_ID: Final = U32.pack(methods.BASIC_PUBLISH)

HANDLERS: Final = {**basic.HANDLERS, **topology.HANDLERS}


class Channel:
    """One channel of a connection, from channel.open to channel.close-ok."""

    def __init__(self, connection: AmqpConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.vhost = connection.vhost
        self.broker = connection.broker
        #: an exception was sent; everything but channel.close-ok is ignored (2.2.5)
        self.is_closing = False
        #: deliveries that await an acknowledgement, by delivery tag, in ascending order
        self.unacked: dict[int, Held] = {}
        self.delivery_tag = 0
        self.consumers: dict[str, AmqpConsumer] = {}
        #: prefetch count of consumers to come
        self.prefetch = 0
        #: prefetch count of the channel, 0 for none, and deliveries to consumers that count
        self.limit = 0
        self.held = 0
        #: the queue that an empty name stands for
        self.last_queue = ""
        #: queue of direct replies to this channel
        self.reply_queue: Queue | None = None
        self.transaction: Transaction | None = None
        self.confirms = False
        self._metrics = connection.metrics
        self._storage = connection.broker.storage
        self._lowest_tag = 1
        # The publish that is being received.
        self._target: Target | None = None
        self._header: ContentHeader | None = None
        self._body = bytearray()
        self._missing = 0
        self._body_size = 0
        # What the latest publishes were made of.
        self._arguments = b""
        self._targets: dict[bytes, Target] = {}
        self._last_header: ContentHeader | None = None
        self._last_size = -1
        self._last_arguments = b""
        # Confirms.
        self._publish_tag = 0
        self._confirm_to = 0
        self._confirmed = 0
        self._pending: deque[tuple[int, int]] = deque()

    # Frames

    def method(self, method: int, data: bytes, start: int, end: int) -> None:
        """A method frame with the payload ``data[start:end]``."""
        if self._target is not None:
            raise ConnectionException(
                UNEXPECTED_FRAME,
                "expected content header or body for class 60, got a method frame instead",
            )
        if method == methods.BASIC_PUBLISH:
            self._begin_publish(data[start + 4 : end])
            return
        if method == methods.BASIC_ACK:
            tag, multiple = methods.decode(method, data, start + 4, end)
            if not self.acknowledge(tag, multiple):
                raise unknown_tag(tag)
            self.connection.expect_acknowledgements(self)
            return
        handler = HANDLERS.get(method)
        if handler is None:
            if method in methods.ARGUMENTS:
                raise ConnectionException(
                    COMMAND_INVALID,
                    f"method {method >> 16}.{method & 0xFFFF} is not for a server's channel",
                )
            raise ConnectionException(
                NOT_IMPLEMENTED, f"unknown method {method >> 16}.{method & 0xFFFF}"
            )
        handler(self, methods.decode(method, data, start + 4, end))

    def header_frame(self, data: bytes, start: int, end: int) -> None:
        """A content header frame."""
        if self._target is None or self._header is not None:
            raise ConnectionException(
                UNEXPECTED_FRAME, "expected a method or body frame, got a content header instead"
            )
        if end - start < CONTENT_HEADER_SIZE + 2:
            raise FramingError("content header is too short")
        if not data.startswith(CONTENT_HEADER, start):
            class_id = data[start] << 8 | data[start + 1]
            raise ConnectionException(
                UNEXPECTED_FRAME,
                f"expected content header for class 60, got one for class {class_id} instead",
            )
        size: int = U64.unpack_from(data, start + 4)[0]
        limit = self.broker.config.limits.max_message_bytes
        if size > limit:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"message size {size} is larger than configured max size {limit}",
            )
        received = data[start + CONTENT_HEADER_SIZE : end]
        header = self._last_header
        if header is None or header.received != received:
            reply = self.reply_queue
            header = read_header(
                received, self.connection.user, b"" if reply is None else reply.name.encode()
            )
        self._header = header
        self._body_size = size
        self._missing = size
        if size == 0:
            self._complete(b"")

    def body_frame(self, data: bytes, start: int, end: int) -> None:
        """A content body frame."""
        if self._header is None:
            raise ConnectionException(
                UNEXPECTED_FRAME, "expected a method or content header frame, got a body instead"
            )
        size = end - start
        if size > self._missing:
            raise FramingError("content body is larger than its header says")
        if size == self._body_size:
            self._complete(data[start:end])
            return
        # Grows with what arrives, not with what was announced.
        self._body += data[start:end]
        self._missing -= size
        if self._missing == 0:
            body = bytes(self._body)
            self._body = bytearray()
            self._complete(body)

    # Publishing

    def _begin_publish(self, arguments: bytes) -> None:
        target = self._targets.get(arguments)
        if target is None or target.route.generation != self.vhost.generation:
            target = self._find_target(arguments)
        self._arguments = arguments
        self._target = target
        self.connection.has_published = True
        self.connection.forget_repeated()

    def current(self, target: Target) -> Target:
        """``target`` as the topology is now. Raises NotFound when its exchange is gone."""
        if target.route.generation == self.vhost.generation:
            return target
        exchange = self.vhost.exchange(target.exchange.name)
        return Target(
            exchange, target.key, target.mandatory, self.vhost.route(exchange, target.key)
        )

    def _find_target(self, arguments: bytes) -> Target:
        exchange_name, key, mandatory, immediate = methods.decode(
            methods.BASIC_PUBLISH, arguments, 0, len(arguments)
        )
        if immediate:
            raise ConnectionException(NOT_IMPLEMENTED, "immediate=true")
        try:
            exchange = self.vhost.exchange(exchange_name)
        except TopologyError as error:
            raise channel_exception(error) from None
        if exchange.internal:
            raise ChannelException(
                ACCESS_REFUSED,
                f"cannot publish to internal exchange '{exchange_name}'"
                f" in vhost '{self.vhost.name}'",
            )
        target = Target(exchange, key, mandatory, self.vhost.route(exchange, key))
        if len(self._targets) >= MAX_TARGETS:
            self._targets.clear()
        self._targets[arguments] = target
        return target

    def _complete(self, body: bytes) -> None:
        target = self._target
        header = self._header
        assert target is not None
        assert header is not None
        self._target = None
        self._header = None
        size = len(body)
        if (
            header is self._last_header
            and size == self._last_size
            and self._arguments == self._last_arguments
            and 0 < size <= self.connection.frame_room
            and self.transaction is None
        ):
            self.connection.expect_repeated(self, target, header, self._repeated(header), size)
        self._last_header = header
        self._last_size = size
        self._last_arguments = self._arguments
        self.publish(target, header, body)

    def _repeated(self, header: ContentHeader) -> bytes:
        """The frames of a publish like the last one, up to its body."""
        size = self._last_size
        arguments = self._arguments
        return b"".join(
            (
                HEAD.pack(METHOD, self.number, 4 + len(arguments)),
                _PUBLISH_ID,
                arguments,
                END,
                HEAD.pack(HEADER, self.number, CONTENT_HEADER_SIZE + len(header.received)),
                CONTENT_HEADER,
                U64.pack(size),
                header.received,
                END,
                HEAD.pack(BODY, self.number, size),
            )
        )

    def publish(self, target: Target, header: ContentHeader, body: bytes) -> None:
        """Route a message whose frames are all here."""
        self._metrics.messages_received += 1
        if self.transaction is not None:
            self.transaction.publish(target, header, body)
            return
        result = self.route(target, header, body)
        if not self.confirms:
            return
        tag = self._publish_tag + 1
        self._publish_tag = tag
        pending = self._pending
        if result > ACCEPTED:
            if pending and pending[-1][0] == result:
                pending[-1] = (result, tag)
            elif result > self._storage.durable:
                pending.append((result, tag))
                self.connection.await_batch(self)
            else:
                self._confirm(tag)
        elif result == REJECTED:
            self._send_confirm(methods.BASIC_NACK, tag, 0)
        else:
            self._confirm(tag)

    def _confirm(self, tag: int) -> None:
        if self._pending:
            self._send_confirm(methods.BASIC_ACK, tag, 0)
            return
        if self._confirm_to == self._confirmed:
            self.connection.unconfirmed.append(self)
        self._confirm_to = tag

    def route(self, target: Target, header: ContentHeader, body: bytes) -> int:
        """Give a message to its destinations: ACCEPTED, REJECTED, or the batch to wait for."""
        route = target.route
        now_ms = self.broker.now_ms
        expiration = header.expiration
        message = Message(
            PROTOCOL_AMQP,
            route.address,
            header.header,
            body,
            header.mode,
            header.persistent,
            now_ms,
            0 if expiration < 0 else now_ms + expiration,
            header.retain,
            header.priority,
            self.connection,
        )
        if route.depends_on_message:
            route = route.resolve(message)
        result = route.publish(message)
        if header.retain and target.exchange.name == RETAIN_EXCHANGE:
            self.vhost.retained.keep(message)
            if result == ACCEPTED:
                result = self._storage.batch
        elif not route.destinations:
            self._metrics.messages_unroutable += 1
            if target.mandatory:
                self._return(message)
        return result

    def _return(self, message: Message) -> None:
        """basic.return of an unroutable mandatory message; precedes its confirm."""
        address = message.address
        connection = self.connection
        connection.send(
            method_frame(
                self.number,
                methods.BASIC_RETURN,
                NO_ROUTE,
                "NO_ROUTE",
                address.exchange,
                cut_key(address.key),
            )
            + content_frames(
                self.number, header_bytes(self, message), message.payload, connection.frame_room
            )
        )

    # Confirms

    def flush_confirms(self) -> None:
        """Confirm everything that waits for nothing; called at the end of each feed."""
        if self._confirm_to > self._confirmed:
            multiple = 1 if self._confirm_to > self._confirmed + 1 else 0
            self._send_confirm(methods.BASIC_ACK, self._confirm_to, multiple)
            self._confirmed = self._confirm_to

    def batch_durable(self, batch: int) -> bool:
        """Answer what waited for ``batch`` or an earlier one; whether more is waiting."""
        pending = self._pending
        tag = 0
        commits = 0
        while pending and pending[0][0] <= batch:
            tag = pending.popleft()[1]
            if tag == 0:
                commits += 1
        if tag > 0:
            self._send_confirm(methods.BASIC_ACK, tag, 1)
            self._confirmed = max(self._confirmed, tag)
            self._confirm_to = max(self._confirm_to, tag)
        for _ in range(commits):
            self.connection.send(method_frame(self.number, methods.TX_COMMIT_OK))
        return len(pending) > 0

    def _send_confirm(self, method: int, tag: int, multiple: int) -> None:
        self.connection.send(
            CONFIRM_FRAME.pack(METHOD, self.number, CONFIRM_SIZE, method, tag, multiple, FRAME_END)
        )

    # Acknowledgements

    def acknowledge(self, tag: int, multiple: bool) -> bool:
        """basic.ack: settle one delivery, or all up to ``tag`` (0: all). False if unknown."""
        if not multiple and self.transaction is None:
            held = self.unacked.pop(tag, None)
            if held is None:
                return False
            entry, consumer = held
            entry.queue.settle(entry)
            if consumer is not None:
                consumer.held -= 1
                self.held -= 1
                if not consumer.is_credited:
                    self.connection.credit(consumer)
            return True
        taken = self.take(tag, multiple)
        if taken is None:
            return False
        self.settle(taken, SETTLE)
        return True

    def take(self, tag: int, multiple: bool) -> list[tuple[int, Held]] | None:
        """Remove the delivery ``tag``, or all up to it, from the unacknowledged ones.

        None when there is no such delivery; tag 0 with ``multiple`` means all there are (60.80).
        """
        unacked = self.unacked
        if not multiple:
            held = unacked.pop(tag, None)
            return None if held is None else [(tag, held)]
        if tag == 0:
            taken = list(unacked.items())
            unacked.clear()
            self._lowest_tag = self.delivery_tag + 1
            return taken
        if tag not in unacked:
            return None
        # Tags are consecutive, so each is visited once over all acknowledgements. Where most of
        # the range is gone already, walking the ones that are left is shorter.
        lowest = self._lowest_tag
        if tag - lowest > 2 * len(unacked):
            tags = [known for known in unacked if known <= tag]
        else:
            tags = [known for known in range(lowest, tag + 1) if known in unacked]
        self._lowest_tag = tag + 1
        return [(known, unacked.pop(known)) for known in tags]

    def settle(self, taken: list[tuple[int, Held]], action: int) -> None:
        """Settle, reject or requeue deliveries, at once or with the transaction."""
        if self.transaction is not None:
            pending = self.transaction.acknowledgements
            for tag, held in taken:
                pending.append((tag, held, action))
            return
        queues: dict[int, Queue] = {}
        for _, (entry, consumer) in taken:
            if action == REQUEUE:
                entry.queue.requeue(entry)
                queues[id(entry.queue)] = entry.queue
            elif action == REJECT:
                entry.queue.reject(entry)
            else:
                entry.queue.settle(entry)
            if consumer is not None:
                consumer.held -= 1
                self.held -= 1
                if not consumer.is_credited:
                    self.connection.credit(consumer)
        for queue in queues.values():
            queue.dispatch()

    def put_back(self, taken: list[tuple[int, Held]]) -> None:
        """Make deliveries unacknowledged again (tx.rollback)."""
        self.unacked = dict(sorted([*self.unacked.items(), *taken]))
        self._lowest_tag = 1

    def new_delivery(self, entry: QueueEntry, no_ack: bool) -> int:
        """The delivery tag of a message that is handed out without a consumer (basic.get)."""
        self.delivery_tag += 1
        if no_ack:
            entry.queue.settle(entry)
        else:
            self.unacked[self.delivery_tag] = (entry, None)
        return self.delivery_tag

    def await_commit(self) -> None:
        """Answer tx.commit when the current batch is durable."""
        self._pending.append((self._storage.batch, 0))
        self.connection.await_batch(self)

    # End

    def forget_header(self) -> None:
        """The meaning of property bytes changed (direct replies began or ended)."""
        self._last_header = None
        self.connection.forget_repeated()

    def fail(self, error: ChannelException, method: int) -> None:
        """Send channel.close for an exception that ``method`` caused, and release everything."""
        self.flush_confirms()
        self.connection.send(
            method_frame(
                self.number,
                methods.CHANNEL_CLOSE,
                error.code,
                error.reply_text(),
                method >> 16,
                method & 0xFFFF,
            )
        )
        self.is_closing = True
        self.release()

    def release(self) -> None:
        """Cancel the consumers and return what is unacknowledged, in order."""
        self.connection.forget_repeated()
        self._target = None
        self._header = None
        self._body = bytearray()
        self._pending.clear()
        self._confirm_to = self._confirmed
        held = list(self.unacked.values())
        if self.transaction is not None:
            for _, one, _ in self.transaction.acknowledgements:
                held.append(one)
            self.transaction = None
        self.unacked.clear()
        consumers = list(self.consumers.values())
        self.consumers.clear()
        queues: dict[int, Queue] = {}
        for consumer in consumers:
            consumer.is_started = False
            consumer.queue.remove_consumer(consumer)
            queues[id(consumer.queue)] = consumer.queue
        for entry, _ in held:
            entry.queue.requeue(entry)
            queues[id(entry.queue)] = entry.queue
        if self.reply_queue is not None:
            self.vhost.delete_queue(self.reply_queue)
            self.reply_queue = None
        for queue in queues.values():
            queue.dispatch()


def unknown_tag(tag: int) -> ChannelException:
    """The exception for an acknowledgement of what is not outstanding (406)."""
    return ChannelException(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
