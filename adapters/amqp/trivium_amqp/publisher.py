"""Publishing on a channel: content is received, routed and confirmed.

Confirms: a message that waits for nothing is confirmed at the end of the feed, all of them by one
basic.ack with ``multiple``. Those that wait for a write batch are listed as one, by their last
delivery tag; each write batch that becomes durable gives one basic.ack. While something waits,
what need not wait is confirmed singly, since ``multiple`` would cover the waiting ones.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from trivium.common.counters import Traffic
from trivium.errors import AccessRefused, TopologyError
from trivium.messages.large import Content
from trivium.messages.message import PROTOCOL_AMQP, Message
from trivium.routing.exchanges import ACCEPTED, REJECTED, UNROUTABLE, Exchange, Route
from trivium.runtime.framed import FRAME_DELIVERIES
from trivium.security.permissions import WRITE
from trivium_amqp.bodies import Body
from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import (
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    UNEXPECTED_FRAME,
    ChannelException,
    ConnectionException,
    FramingError,
    channel_exception,
)
from trivium_amqp.codec.frames import (
    BODY_EVENT,
    CONFIRM_FRAME,
    CONFIRM_SIZE,
    CONTENT_HEADER,
    CONTENT_HEADER_SIZE,
    FRAME_END,
    METHOD,
    U64,
    content_frames,
    method_frame,
)
from trivium_amqp.consumer import cut_key, header_bytes
from trivium_amqp.content import ContentHeader, Target, read_header
from trivium_amqp.replies import Confirm
from trivium_amqp.states import NO_BODY
from trivium_amqp.transaction import Transaction

if TYPE_CHECKING:
    from trivium_amqp.connection import AmqpConnection

#: Targets that a connection remembers; emptied when full, so that a client which publishes to ever
#: new routing keys does not make it grow.
MAX_TARGETS: Final = 1024
#: Bytes of properties that a channel remembers of its last publish.
MAX_REMEMBERED: Final = 4096


class _Pending:
    """``count`` publishes that wait for one write batch; ``tag`` is that of the last one."""

    def __init__(self, write_batch: int, tag: int) -> None:
        self.write_batch = write_batch
        self.tag = tag
        self.count: i64 = 0


class Publisher:
    """The publishing side of one channel."""

    def __init__(self, connection: AmqpConnection, number: int) -> None:
        #: the channel's number
        self.number = number
        #: what the channel has counted, its consumers and acknowledgements too
        self.traffic = Traffic()
        self.confirms = False
        #: what the channel holds back until tx.commit; None outside transaction mode
        self.transaction: Transaction | None = None
        self._connection = connection
        self._vhost = connection.vhost
        self._broker = connection.broker
        self._storage = connection.broker.storage
        self._metrics = connection.metrics
        # Name of the queue of direct replies to this channel; b"" for none.
        self._reply_to = b""
        # The publish that is being received.
        self._target: Target | None = None
        self._header: ContentHeader | None = None
        self._body_size = 0
        # What is here of a body of several frames.
        self._body: Body | None = None
        # What the latest publishes were made of.
        self._arguments = b""
        self._last_header: ContentHeader | None = None
        self._last_arguments = b""
        # Confirms: of the latest publish, of what to confirm by the end of the feed, of what is
        # confirmed; and write batches with the last tag that waits for each.
        self._publish_tag = 0
        self._confirm_to = 0
        self._confirmed = 0
        self._pending: deque[_Pending] = deque()
        # The last of these.
        self._newest: _Pending | None = None

    @property
    def unconfirmed(self) -> int:
        """Publishes up to the newest from the first that waits for the disk, or is told so soon."""
        return self._publish_tag - self._confirmed if self._pending else 0

    def begin(self, arguments: bytes) -> None:
        """basic.publish with these arguments; its content follows."""
        target = self._connection.targets.get(arguments)
        if target is None or target.route.topology_version != self._vhost.topology_version:
            target = self._find_target(arguments)
        self._arguments = arguments
        self._target = target
        connection = self._connection
        connection.repeats.forget()
        if connection.pause.is_on:
            connection.pause.hold(connection)

    def begin_body(self, data: bytes, start: int, end: int) -> bool:
        """The content header ``data[start:end]``; whether a body follows."""
        if end - start < CONTENT_HEADER_SIZE + 2:
            raise FramingError("content header is too short")
        if not data.startswith(CONTENT_HEADER, start):
            class_id = data[start] << 8 | data[start + 1]
            raise ConnectionException(
                UNEXPECTED_FRAME,
                f"expected content header for class 60, got one for class {class_id} instead",
            )
        size: int = U64.unpack_from(data, start + 4)[0]
        limit = self._connection.options.max_message_bytes
        if size > limit:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"message size {size} is larger than configured max size {limit}",
            )
        received = data[start + CONTENT_HEADER_SIZE : end]
        header = self._last_header
        if header is None or header.received != received:
            header = read_header(received, self._connection.user, self._reply_to)
        if header.copies:
            self._check_copies(header.copies)
        self._header = header
        self._body_size = size
        return size > 0

    def take_body(self, data: bytes, start: int, end: int) -> Content | None:
        """The content body ``data[start:end]``; the whole body once all of it is here."""
        size = end - start
        body = self._body
        if size > (self._body_size if body is None else body.missing):
            raise NO_BODY.error(BODY_EVENT, self.number)
        if size == self._body_size:
            self._body = None
            return data[start:end]
        self.take_part(data, start, end)
        body = self._body
        if body is None or body.missing:
            return None
        self._body = None
        return body.take()

    def gathers(self, size: int) -> bool:
        """Whether a content body frame of ``size`` is one of several that may come now."""
        if self._target is None or self._header is None or size == self._body_size:
            return False
        return size <= (self._body_size if self._body is None else self._body.missing)

    def take_part(self, data: bytes, start: int, end: int) -> None:
        """``data[start:end]`` is of a body of several frames, unless nobody waits for it."""
        if self._header is None:
            return
        body = self._body
        if body is None:
            body = Body(self._body_size)
            self._body = body
        body.add(data, start, end)
        self._connection.bodies.touch(body)

    def current(self, target: Target, header: ContentHeader) -> Target:
        """``target`` of a message as the topology is now.

        Raises NotFound when its exchange is gone, and AccessRefused where the client may not
        publish to one of the message's keys any more.
        """
        if target.route.topology_version == self._vhost.topology_version:
            return target
        exchange = self._exchange(target.exchange.name, [target.key, *header.copies])
        return Target(
            exchange, target.key, target.mandatory, self._vhost.route(exchange, target.key)
        )

    def _exchange(self, name: str, keys: list[bytes]) -> Exchange:
        """An exchange to which the client may publish with each of ``keys``. Raises NotFound, and
        AccessRefused."""
        exchange = self._vhost.exchange(name)
        for key in keys:
            self._connection.access.require_publish(exchange, key)
        if exchange.internal:
            raise AccessRefused(
                f"cannot publish to internal exchange '{name}' in vhost '{self._vhost.name}'"
            )
        return exchange

    def _find_target(self, arguments: bytes) -> Target:
        exchange_name, key, mandatory, immediate = methods.decode(
            methods.BASIC_PUBLISH, arguments, 0, len(arguments)
        )
        if immediate:
            raise ConnectionException(NOT_IMPLEMENTED, "immediate=true")
        access = self._connection.access
        try:
            access.require_exchange(WRITE, exchange_name)
            exchange = self._exchange(exchange_name, [key])
        except TopologyError as error:
            raise channel_exception(error) from None
        target = Target(exchange, key, mandatory, self._vhost.route(exchange, key))
        if len(self._connection.targets) >= MAX_TARGETS:
            self._connection.targets.clear()
        self._connection.targets[arguments] = target
        return target

    def _check_copies(self, keys: list[bytes]) -> None:
        """Raise ChannelException unless a message may go to these further keys."""
        target = self._target
        if target is None:
            return
        try:
            for key in keys:
                self._connection.access.require_publish(target.exchange, key)
        except TopologyError as error:
            raise channel_exception(error) from None

    def complete(self, body: Content) -> None:
        """All frames of a publish are here."""
        target = self._target
        header = self._header
        assert target is not None
        assert header is not None
        self._target = None
        self._header = None
        connection = self._connection
        # While publishers are paused each publish must be seen.
        if (
            header is self._last_header
            and self._arguments == self._last_arguments
            and self.transaction is None
            and not connection.pause.is_on
        ):
            connection.repeats.expect_publish(
                self, target, header, self._arguments, self._body_size
            )
        # A connection may have very many channels.
        self._last_header = header if len(header.received) <= MAX_REMEMBERED else None
        self._last_arguments = self._arguments
        self.publish(target, header, body)

    def publish(self, target: Target, header: ContentHeader, body: Content) -> None:
        """Publish a message that was read: the one way, however it was read."""
        transaction = self.transaction
        if transaction is None and target.route.topology_version != self._vhost.topology_version:
            # The topology has changed since the method frame came.
            try:
                target = self.current(target, header)
            except TopologyError as error:
                raise channel_exception(error) from None
        self._metrics.messages_received += 1
        self._count_published(1)
        if transaction is not None:
            transaction.publish(target, header, body)
            return
        result = self.route(target, header, body)
        if self.confirms:
            self._answer(result, 1)

    def publish_run(self, target: Target, header: ContentHeader, bodies: list[bytes]) -> None:
        """``publish`` of messages that came in a row, of which only the bodies differ."""
        route = target.route
        count = len(bodies)
        if count > 1 and header.is_plain and route.takes_runs(header.mode):
            self._metrics.messages_received += count
            self._count_published(count)
            messages = [self._message(target, header, body) for body in bodies]
            result = self._vhost.publish_run(messages, route)
            if self.confirms:
                self._answer(result, count)
            return
        for body in bodies:
            self.publish(target, header, body)

    def _answer(self, result: int, count: int) -> None:
        """Confirm the next ``count`` publishes, which ``result`` came of; now or later."""
        tag = self._publish_tag + count
        self._publish_tag = tag
        if result > ACCEPTED:
            newest = self._newest
            if newest is not None and newest.write_batch == result:
                newest.tag = tag
                newest.count += count
            elif result > self._storage.durable:
                newest = _Pending(result, tag)
                newest.count = count
                self._newest = newest
                self._pending.append(newest)
                self._connection.confirms.awaiting[self.number] = self
                self._connection.await_durable()
            else:
                self._confirm(tag, count)
        elif result == REJECTED:
            self._send_confirm(methods.BASIC_NACK, tag, 0)
        else:
            self._confirm(tag, count)

    def _count_published(self, count: i64) -> None:
        self.traffic.published += count
        self._connection.traffic.published += count

    def _count_confirmed(self, count: i64) -> None:
        self.traffic.confirmed += count
        self._connection.traffic.confirmed += count

    def _confirm(self, tag: int, count: int) -> None:
        self._count_confirmed(count)
        if self._pending:
            for each in range(tag - count + 1, tag + 1):
                self._send_confirm(methods.BASIC_ACK, each, 0)
            return
        if self._confirm_to == self._confirmed:
            self._connection.confirms.at_end.append(self)
        self._confirm_to = tag

    def route(self, target: Target, header: ContentHeader, body: Content) -> int:
        """Give a message to its destinations: ACCEPTED, REJECTED, or a write batch to wait for."""
        message = self._message(target, header, body)
        if header.delay:
            message.deliver_at = message.timestamp + header.delay
            return self._route_later(target, header, message)
        route = self._route_for(target, header, message)
        fans = len(route.destinations)
        if fans > FRAME_DELIVERIES:
            self._connection.count_frames(fans // FRAME_DELIVERIES)
        result = self._vhost.publish(message, route)
        if result == UNROUTABLE:
            self._metrics.messages_unroutable += 1
            if target.mandatory:
                self._return(message)
            else:
                self.traffic.unroutable += 1
                self._connection.traffic.unroutable += 1
        return result

    def route_of(self, target: Target, header: ContentHeader, body: Content) -> Route:
        """Where ``route`` would bring a message at once."""
        if header.delay:
            return Route(target.route.address, [], target.route.topology_version)
        if not header.copies and not target.route.depends_on_message:
            return target.route
        return self._route_for(target, header, self._message(target, header, body))

    def _route_for(self, target: Target, header: ContentHeader, message: Message) -> Route:
        route = target.route
        if header.copies or route.depends_on_message:
            self._connection.serving_channel = self.number
        if header.copies:
            return self._vhost.route_all(target.exchange, [target.key, *header.copies], message)
        return route.resolve(message) if route.depends_on_message else route

    def _message(self, target: Target, header: ContentHeader, body: Content) -> Message:
        now_ms = self._broker.now_ms
        expiration = header.expiration
        return Message(
            PROTOCOL_AMQP,
            target.route.address,
            header.header,
            body,
            header.mode,
            header.persistent,
            now_ms,
            0 if expiration < 0 else now_ms + expiration,
            header.retain,
            header.priority,
            insists=header.insists,
        )

    def _route_later(self, target: Target, header: ContentHeader, message: Message) -> int:
        """Keep a delayed message, unless it is mandatory and nobody would want it now."""
        if target.mandatory:
            keys = [target.key, *header.copies]
            route = self._vhost.route_all(target.exchange, keys, message)
            if self._vhost.is_unroutable(message, route):
                self._metrics.messages_unroutable += 1
                self._return(message)
                return ACCEPTED
        message.header = header.delayed
        self._connection.serving_channel = self.number
        return self._vhost.publish(message, target.route, header.copies)

    def _return(self, message: Message) -> None:
        """basic.return of an unroutable mandatory message; precedes its confirm."""
        address = message.address
        connection = self._connection
        self.traffic.returned += 1
        connection.traffic.returned += 1
        connection.replies.confirm(
            self.number,
            method_frame(
                self.number,
                methods.BASIC_RETURN,
                NO_ROUTE,
                "NO_ROUTE",
                address.exchange,
                cut_key(address.key),
            )
            + b"".join(
                content_frames(
                    self.number,
                    header_bytes(self._connection, message),
                    message.content,
                    connection.frame_room,
                )
            ),
        )

    # Confirms

    def flush_confirms(self) -> None:
        """Confirm everything that waits for nothing; called at the end of each feed."""
        if self._confirm_to > self._confirmed:
            multiple = 1 if self._confirm_to > self._confirmed + 1 else 0
            self._send_confirm(methods.BASIC_ACK, self._confirm_to, multiple)
            self._confirmed = self._confirm_to

    def write_batch_durable(self, write_batch: int) -> bool:
        """Confirm what waited for ``write_batch`` or an earlier one; whether more is waiting."""
        pending = self._pending
        tag = 0
        while pending and pending[0].write_batch <= write_batch:
            confirmed = pending.popleft()
            tag = confirmed.tag
            self._count_confirmed(confirmed.count)
        if not pending:
            self._newest = None
        if tag > 0:
            self._send_confirm(methods.BASIC_ACK, tag, 1)
            self._confirmed = max(self._confirmed, tag)
            self._confirm_to = max(self._confirm_to, tag)
        return len(pending) > 0

    def line_up_confirms(self) -> None:
        """Have what waits for the disk confirmed in the line of answers, before what comes there
        next: the close of the channel."""
        number = self.number
        for waiting in self._pending:
            self._count_confirmed(waiting.count)
            frame = CONFIRM_FRAME.pack(
                METHOD, number, CONFIRM_SIZE, methods.BASIC_ACK, waiting.tag, 1, FRAME_END
            )
            self._connection.replies.put(number, Confirm(frame, waiting.write_batch))
        self._pending.clear()

    def _send_confirm(self, method: int, tag: int, multiple: int) -> None:
        self._connection.replies.confirm(
            self.number,
            CONFIRM_FRAME.pack(METHOD, self.number, CONFIRM_SIZE, method, tag, multiple, FRAME_END),
        )

    # End

    def set_reply_to(self, name: bytes) -> None:
        """Direct replies began or ended (b""), which changes what property bytes mean."""
        self._reply_to = name
        self._last_header = None
        self._connection.repeats.forget()

    def release(self) -> None:
        """Drop what is being received, and what waits for a confirm."""
        self._target = None
        self._header = None
        self._body = None
        self._pending.clear()
        self._newest = None
        self._confirm_to = self._confirmed
