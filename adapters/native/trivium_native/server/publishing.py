"""PUBLISH: one to many messages per request, confirmed when all that must survive is durable.

A request is read as a whole before its first message is published, so one that is refused for its
form has published nothing.
"""

from __future__ import annotations

from typing import Final

from trivium.idempotence.producers import FENCED, GAP
from trivium.messages.delivery import DELIVERY_HEADER, delivery_mode
from trivium.messages.message import (
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    PROTOCOL_NATIVE,
    Message,
    Properties,
)
from trivium.messages.topics import MAX_LEVELS
from trivium.observability.metrics import ProtocolMetrics
from trivium.routing.exchanges import REJECTED, UNROUTABLE, Demand, Route
from trivium.routing.retained import RETAINING_EXCHANGE
from trivium.runtime.broker import Broker
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.wire.errors import (
    AccessRefused,
    Blocked,
    Fenced,
    InvalidArgument,
    Malformed,
    MessageTooLarge,
    OutOfSequence,
    Rejected,
    Unroutable,
)
from trivium_native.wire.frames import Frame
from trivium_native.wire.messages import (
    HAS_PRODUCER,
    MANDATORY,
    MAX_MESSAGES,
    MAX_PRODUCER_BYTES,
    MESSAGE_HEAD,
    MESSAGE_HEAD_SIZE,
    MODE_MASK,
    PERSISTENT,
    PRODUCER,
    PRODUCER_SIZE,
    PUBLISH_HEAD,
    PUBLISH_HEAD_SIZE,
    RETAIN,
)
from trivium_native.wire.properties import decode_properties

#: Indexes of refused messages that an error names.
MAX_INDEXES: Final = 1024

_KNOWN_FLAGS: Final = MODE_MASK | PERSISTENT | RETAIN | MANDATORY


class Publisher:
    """Publishes what one connection sends: the messages' ``origin``, None where it is gone."""

    def __init__(
        self, broker: Broker, vhost: VirtualHost, metrics: ProtocolMetrics, origin: object
    ) -> None:
        self._vhost = vhost
        self._metrics = metrics
        self._origin = origin
        self._broker = broker
        self._max_payload = broker.config.limits.max_message_bytes
        #: why publishing is refused at the moment
        self.blocked: str | None = None
        # The last address and properties: publishers repeat them, and equal bytes mean the same.
        self._raw_address = b""
        self._exchange_size = -1
        self._route: Route | None = None
        self._raw_properties = b""
        self._delivery = -1
        self._delay = 0
        self._expiration = -1
        # Indexes of the mandatory messages among those that were read last.
        self._mandatory: set[int] = set()

    def publish(self, frame: Frame) -> int:
        """Publish all messages of a request; the write batch to wait for, or 0.

        Raises Malformed, and the errors that refuse the request alone.
        """
        body = frame.body
        if len(body) < PUBLISH_HEAD_SIZE:
            raise Malformed("PUBLISH is cut")
        count, flags = PUBLISH_HEAD.unpack_from(body)
        if flags & ~HAS_PRODUCER or not 0 < count <= MAX_MESSAGES:
            raise Malformed("PUBLISH has unknown flags or a wrong count")
        if self.blocked is not None:
            raise Blocked(self.blocked)
        if not flags & HAS_PRODUCER:
            return self._publish(*self.read(body, PUBLISH_HEAD_SIZE, count), -1)
        at = PUBLISH_HEAD_SIZE + PRODUCER_SIZE
        if len(body) < at:
            raise Malformed("PUBLISH is cut")
        size, epoch, sequence = PRODUCER.unpack_from(body, PUBLISH_HEAD_SIZE)
        producer = body[at : at + size]
        if not 0 < size <= MAX_PRODUCER_BYTES or len(producer) < size or sequence >> 62:
            raise Malformed("PUBLISH has a malformed producer block")
        return self._publish_once(body, at + size, count, producer, epoch, sequence)

    def _publish_once(
        self, body: bytes, at: int, count: int, producer: bytes, epoch: int, sequence: int
    ) -> int:
        """Publish what this producer has not published before."""
        producers = self._vhost.producers
        known = producers.check(producer, epoch, sequence)
        if known == FENCED:
            raise Fenced("the producer is not open, or was opened again since")
        if known == GAP:
            expected = producers.expected(producer)
            raise OutOfSequence(
                f"sequence number {sequence} comes after a gap, {expected} is next",
                {"expected": expected},
            )
        routes, messages = self.read(body, at, count)
        storage = self._broker.storage
        try:
            if known < count:
                self._publish(routes, messages, known)
                producers.advance(producer, epoch, sequence + count)
        except (Rejected, Unroutable) as error:
            # The numbers stop before it, so that it can be sent again and is not confirmed then.
            indexes = error.detail["indexes"]
            assert isinstance(indexes, list)
            producers.advance(producer, epoch, sequence + int(indexes[0]))
            raise
        # Also where nothing was published: the first time may not be durable yet.
        return storage.write_batch if storage.is_durable else 0

    def read(self, body: bytes, at: int, count: int) -> tuple[list[Route], list[Message]]:
        """The routes and messages that ``body`` holds from ``at``, up to the end of ``body``.

        Raises Malformed, and the errors that refuse the request.
        """
        routes: list[Route] = []
        messages: list[Message] = []
        self._mandatory = set()
        size = len(body)
        for index in range(count):
            data_at = at + MESSAGE_HEAD_SIZE
            if data_at > size:
                raise Malformed("PUBLISH is cut")
            flags, priority, exchange_size, key_size, reserved, header_size, payload_size = (
                MESSAGE_HEAD.unpack_from(body, at)
            )
            header_at = data_at + exchange_size + key_size
            payload_at = header_at + header_size
            at = payload_at + payload_size
            if at > size or flags & ~_KNOWN_FLAGS or flags & MODE_MASK == MODE_MASK or reserved:
                raise Malformed("PUBLISH has a malformed entry")
            if payload_size > self._max_payload:
                raise MessageTooLarge(f"a payload has at most {self._max_payload} bytes")
            route = self._find_route(body[data_at:header_at], exchange_size)
            header = body[header_at:payload_at] if header_size else b""
            message = self._message(route, flags, priority, header, body[payload_at:at])
            if message.retain and route.address.exchange != RETAINING_EXCHANGE:
                raise InvalidArgument(f"only {RETAINING_EXCHANGE} keeps retained messages")
            if flags & MANDATORY:
                self._mandatory.add(index)
            routes.append(route)
            messages.append(message)
        if at != size:
            raise Malformed("PUBLISH has trailing bytes")
        return routes, messages

    def _message(
        self, route: Route, flags: int, priority: int, header: bytes, payload: bytes
    ) -> Message:
        """A message that was framed like this. Raises InvalidArgument for its properties."""
        now = self._broker.now_ms
        mode = flags & MODE_MASK
        persistent = flags & PERSISTENT != 0
        expires = 0
        insists = False
        deliver_at = 0
        if header:
            header = self._check_properties(header)
            if self._expiration >= 0:
                expires = now + self._expiration
            if self._delivery >= 0:
                mode = self._delivery
                persistent = mode != AT_MOST_ONCE
                insists = True
            if self._delay:
                deliver_at = now + self._delay
        return Message(
            PROTOCOL_NATIVE,
            route.address,
            header,
            payload,
            mode,
            persistent,
            now,
            expires,
            flags & RETAIN != 0,
            priority,
            self._origin,
            deliver_at,
            insists=insists,
        )

    def _find_route(self, raw: bytes, exchange_size: int) -> Route:
        vhost = self._vhost
        route = self._route
        if (
            route is not None
            and raw == self._raw_address
            and exchange_size == self._exchange_size
            and route.topology_version == vhost.topology_version
        ):
            return route
        key = raw[exchange_size:]
        if key.count(b".") >= MAX_LEVELS:
            raise InvalidArgument(f"a routing key has at most {MAX_LEVELS} levels")
        exchange = vhost.exchange(_name(raw[:exchange_size]))
        if exchange.internal:
            raise AccessRefused(f"exchange '{exchange.name}' is internal")
        route = vhost.route(exchange, key)
        self._route = route
        self._raw_address = raw
        self._exchange_size = exchange_size
        return route

    def _check_properties(self, header: bytes) -> bytes:
        """The properties, once they are known to be right; sets what they say."""
        if header == self._raw_properties:
            return self._raw_properties
        properties = decode_properties(header)
        expiration = properties.expiration
        delivery = _delivery_of(properties)
        self._expiration = -1 if expiration is None else expiration
        self._delivery = delivery
        self._delay = properties.delay or 0
        self._raw_properties = header
        return header

    def check_read(self, routes: list[Route], messages: list[Message]) -> None:
        """Whether all of what was just read can be published, so that nobody sees a part of it.

        Raises Blocked, Unroutable, Rejected.
        """
        self.check_routes(routes, messages)
        demand = Demand()
        for index, message in enumerate(messages):
            if message.persistent:
                # Nobody sees it before it is certain.
                message.mode = EXACTLY_ONCE
            route = routes[index]
            if route.depends_on_message:
                route = route.resolve(message)
            demand.add(route, len(message.payload))
        full = demand.refused_by()
        if full is not None:
            raise Rejected(f"'{full.name}' has no room for the transaction")

    def check_routes(self, routes: list[Route], messages: list[Message]) -> None:
        """Whether what was just read has where to go. Raises Blocked, Unroutable."""
        if messages and self.blocked is not None:
            raise Blocked(self.blocked)
        missed: list[int] = []
        for index in sorted(self._mandatory):
            route = routes[index]
            if route.depends_on_message:
                route = route.resolve(messages[index])
            if self._vhost.is_unroutable(messages[index], route):
                missed.append(index)
        if missed:
            raise Unroutable("no binding wants the message", _indexes(missed))

    def publish_read(self, routes: list[Route], messages: list[Message]) -> None:
        """Publish what was just read and found fit."""
        # Those that are mandatory do have where to go (``check_routes``).
        self._mandatory = set()
        try:
            self._publish(routes, messages, -1)
        except Rejected:
            # Only by a backlog that answers for itself, such as a session's: what it drops is
            # nobody else's concern.
            pass

    def _publish(self, routes: list[Route], messages: list[Message], skip: int) -> int:
        """Publish; ``skip`` of the first are there already (-1: not idempotent).

        Raises Rejected and Unroutable after everything else was published, but an idempotent
        request stops at the first that is one of them.
        """
        metrics = self._metrics
        metrics.messages_received += len(messages)
        wait = 0
        rejected: list[int] = []
        unroutable: list[int] = []
        for index in range(max(skip, 0), len(messages)):
            message = messages[index]
            route = routes[index]
            if route.depends_on_message:
                route = route.resolve(message)
            is_mandatory = index in self._mandatory
            result = self._vhost.publish(message, route, None, is_mandatory)
            if result == UNROUTABLE:
                metrics.messages_unroutable += 1
                unroutable.append(index)
                if skip >= 0 and is_mandatory:
                    break
            elif result == REJECTED:
                rejected.append(index)
                if skip >= 0:
                    break
            elif result:
                wait = result
        if rejected:
            raise Rejected("a destination refused messages", _indexes(rejected))
        if self._mandatory:
            missed = [index for index in unroutable if index in self._mandatory]
            if missed:
                raise Unroutable("no binding wants the message", _indexes(missed))
        return wait


def _indexes(indexes: list[int]) -> dict[str, object]:
    return {"indexes": indexes[:MAX_INDEXES]}


def _delivery_of(properties: Properties) -> int:
    """The delivery mode that the publisher insists on; -1 for none."""
    value = properties.header(DELIVERY_HEADER)
    delivery = delivery_mode(value)
    if value is not None and delivery < 0:
        raise InvalidArgument(f"header '{DELIVERY_HEADER}' is no delivery mode")
    return delivery


def _name(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("the exchange's name is not UTF-8") from None
