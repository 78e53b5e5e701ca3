"""PUBLISH: one to many messages per request, confirmed when all that must survive is durable.

A request is read as a whole before its first message is published, so one that is refused for its
form has published nothing. One of very many messages is read and published in several turns.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_le
from mypy_extensions import i64

from trivium.common.counters import Traffic
from trivium.common.native import lies_at
from trivium.errors import MAX_VISITS, RouteTooCostly
from trivium.idempotence.producers import FENCED, GAP
from trivium.messages.delivery import DELIVERY_HEADER, delivery_mode
from trivium.messages.large import LARGE_PAYLOAD, LargePayload
from trivium.messages.message import (
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    PROTOCOL_NATIVE,
    Message,
    Properties,
)
from trivium.messages.topics import MAX_LEVELS
from trivium.observability.metrics import ProtocolMetrics
from trivium.routing.exchanges import (
    DELIVERY_VISITS,
    MAX_DELIVERIES,
    REJECTED,
    UNROUTABLE,
    CostlyRoute,
    Demand,
    Route,
)
from trivium.routing.retained import RETAINING_EXCHANGE
from trivium.runtime.broker import Broker
from trivium.runtime.long_requests import STEP
from trivium.security.permissions import WRITE, Access
from trivium.streams.compression import CompressionError, decompress
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.batches import Batch, is_plain
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
from trivium_native.wire.frames import FRAME_OVERHEAD
from trivium_native.wire.messages import (
    CODEC_MASK,
    CODEC_SHIFT,
    HAS_PRODUCER,
    MANDATORY,
    MAX_MESSAGES,
    MAX_PRODUCER_BYTES,
    MESSAGE_HEAD_SIZE,
    MODE_MASK,
    PERSISTENT,
    PRODUCER_SIZE,
    PUBLISH_HEAD_SIZE,
    RETAIN,
    UNPACKED,
    UNPACKED_SIZE,
)
from trivium_native.wire.properties import before_key, decode_properties

#: What ``Publisher.publish`` answers of a request that goes on in the next turn.
UNFINISHED: Final = -1

#: Visits (``Host.count_work``) to find the routes of what is checked at once.
_TOGETHER_VISITS: Final[i64] = 4 * MAX_VISITS

#: More deliveries than there are.
_ALL: Final[i64] = 1 << 62

#: Of the first 8 bytes of a message (``write_message_head``): the lengths of exchange and routing
#: key, and what must be 0.
_NAME_SIZES: Final[i64] = 0xFFFF_FFFF << 16
_UNKNOWN: Final[i64] = -1 << 48 | 0xFF & ~(MODE_MASK | PERSISTENT | RETAIN | MANDATORY)


class Publisher:
    """Publishes what one connection sends: the messages' ``origin``, None where it is gone."""

    def __init__(
        self,
        broker: Broker,
        vhost: VirtualHost,
        metrics: ProtocolMetrics,
        traffic: Traffic,
        origin: object,
        max_payload: int,
        access: Access | None,
    ) -> None:
        self._vhost = vhost
        self._metrics = metrics
        self._traffic = traffic
        self._origin = origin
        #: what the client may do; None where it was decided before
        self.access = access
        self._broker = broker
        self._max_payload = max_payload
        #: why publishing is refused at the moment
        self.blocked: str | None = None
        #: bytes that messages have beyond what they came in compressed, since somebody asked
        self.unpacked = 0
        #: the large payloads of the request that is read, where they do not lie in its data
        self.payloads: list[LargePayload] | None = None
        # The last address with its route, and properties: publishers repeat them, and equal bytes
        # mean the same.
        self._raw_address = b""
        self._route: Route | None = None
        self._raw_properties = b""
        self._delivery = -1
        self._delay = 0
        self._expiration = -1
        # The last producer.
        self._producer = b""
        # Where the message that was read last ends, and what its first 8 bytes say.
        self._end: i64 = 0
        self._head: i64 = 0
        self._names_size: i64 = 0
        self._mode = 0
        self._is_persistent = False
        self._is_retained = False
        self._is_mandatory = False
        # The request that goes on in the next turn.
        self._unfinished: Batch | None = None

    def publish(self, data: bytes, at: i64, end: i64) -> int:
        """Publish the messages of the request ``data[at:end]``; the write batch to wait for, or 0;
        or UNFINISHED, until ``go_on`` answers.

        Raises Malformed, and the errors that refuse the request alone.
        """
        if end - at < PUBLISH_HEAD_SIZE:
            raise Malformed("PUBLISH is cut")
        head: i64 = read_i64_le(data, at)
        count: i64 = head & 0xFFFF_FFFF
        flags: i64 = head >> 32
        if flags & ~(HAS_PRODUCER | CODEC_MASK) or not 0 < count <= MAX_MESSAGES:
            raise Malformed("PUBLISH has unknown flags or a wrong count")
        if self.blocked is not None:
            raise Blocked(self.blocked)
        at += PUBLISH_HEAD_SIZE
        if flags & HAS_PRODUCER:
            return self._publish_once(data, at, end, count, flags & CODEC_MASK)
        if flags:
            data = self._unpack(data, at, end, flags)
            at = 0
            end = len(data)
        if count > 1:
            return self._go_on(self.batch(data, at, end, count), 0)
        return self._publish_message(self._read_only(data, at, end))

    def _publish_once(self, data: bytes, at: i64, end: i64, count: i64, codec: i64) -> int:
        """Publish what the producer whose block is at ``at`` has not published before."""
        name_at: i64 = at + PRODUCER_SIZE
        if end < name_at:
            raise Malformed("PUBLISH is cut")
        head: i64 = read_i64_le(data, at)
        size: i64 = head & 0xFFFF_FFFF
        epoch: i64 = head >> 32 & 0xFFFF_FFFF
        sequence: i64 = read_i64_le(data, at + 8)
        if not 0 < size <= MAX_PRODUCER_BYTES or end - name_at < size or sequence >> 62:
            raise Malformed("PUBLISH has a malformed producer block")
        producer = self._producer
        if len(producer) != size or not lies_at(data, name_at, producer):
            producer = self._producer = data[name_at : name_at + size]
        known = self._known(producer, epoch, sequence)
        at = name_at + size
        if codec:
            data = self._unpack(data, at, end, codec)
            at = 0
            end = len(data)
        if count > 1:
            batch = self.batch(data, at, end, count)
            batch.is_idempotent = True
            batch.producer = producer
            batch.epoch = epoch
            batch.sequence = sequence
            return self._go_on(batch, known)
        message = self._read_only(data, at, end)
        if known < 1:
            self._publish_message(message)
            self._vhost.producers.advance(producer, epoch, sequence + 1)
        return self._newest()

    def _known(self, producer: bytes, epoch: int, sequence: int) -> int:
        """How many messages of a producer are there already. Raises Fenced, OutOfSequence."""
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
        return known

    def _newest(self) -> int:
        """What an idempotent request waits for, also where nothing was published: the first time
        may not be durable yet."""
        storage = self._broker.storage
        return storage.write_batch if storage.is_durable else 0

    def _unpack(self, data: bytes, at: i64, end: i64, codec: i64) -> bytes:
        """The messages that ``data[at:end]`` holds compressed. Raises Malformed."""
        packed_at: i64 = at + UNPACKED_SIZE
        if end < packed_at:
            raise Malformed("PUBLISH is cut")
        size: int = UNPACKED.unpack_from(data, at)[0]
        if size > self._max_payload + FRAME_OVERHEAD:
            raise Malformed("PUBLISH holds more than a frame may")
        self.unpacked += max(size - (end - packed_at), 0)
        try:
            return decompress(codec >> CODEC_SHIFT, data[packed_at:end], size)
        except CompressionError as error:
            raise Malformed(f"compressed messages: {error}") from None

    def _read_only(self, data: bytes, at: i64, end: i64) -> Message:
        """The only message of a request. Raises Malformed, and what refuses the request."""
        message = self._read_message(data, at, end, True)
        assert message is not None
        if self._end != end:
            raise Malformed("PUBLISH has trailing bytes")
        return message

    def batch(self, data: bytes, at: i64, end: i64, count: i64) -> Batch:
        """What will hold the messages ``data[at:end]``."""
        return Batch(data, at, end, count, self.payloads, self._vhost.topology_version)

    def give_up(self) -> None:
        """Forget the rest of the request that is unfinished."""
        self._unfinished = None

    def go_on(self) -> int:
        """Go on with the request that is unfinished, as far as fits in the turn; see ``publish``.

        Raises as that does.
        """
        batch = self._unfinished
        assert batch is not None
        self._unfinished = None
        known = 0
        if batch.is_idempotent:
            # Others may have published as this producer since.
            known = self._known(batch.producer, batch.epoch, batch.sequence)
        return self._go_on(batch, known)

    def _go_on(self, batch: Batch, known: i64) -> int:
        """The same where so many of the messages are known to be there already."""
        batch.published = max(batch.published, known)
        try:
            is_done = self._take_part(batch)
        finally:
            if batch.is_idempotent and batch.published > known:
                # Where a message was refused they stop before it, so that it can be sent again.
                next_number = batch.sequence + batch.published
                self._vhost.producers.advance(batch.producer, batch.epoch, next_number)
        if not is_done:
            self._unfinished = batch
            return UNFINISHED
        wait = self._outcome(batch)
        return self._newest() if batch.is_idempotent else wait

    def _take_part(self, batch: Batch) -> bool:
        """Read and publish what fits in the turn; whether that is all."""
        if not self.read_some(batch):
            return False
        driver = self._broker.driver
        while batch.published < batch.count and not batch.has_stopped:
            self._publish(batch, STEP)
            if batch.published < batch.count and driver.is_turn_long():
                return False
        return True

    def read_some(self, batch: Batch) -> bool:
        """Read what fits in the turn; whether all is read.

        Raises Malformed, and the errors that refuse the request.
        """
        count = batch.count
        while batch.data or len(batch.messages) < count:
            self._read(batch, min(count, len(batch.messages) + STEP))
            is_part = count > STEP or len(batch.messages) < count
            if is_part and self._broker.driver.is_turn_long():
                return False
        return True

    def read(self, batch: Batch) -> None:
        """Read what ``read_some`` has not read, and have the routes as they are now. Raises as that
        does."""
        if batch.data:
            while batch.data:
                self._read(batch, batch.count)
        elif batch.topology_version != self._vhost.topology_version:
            self._renew_routes(batch.routes, 0, batch.count)

    def _read(self, batch: Batch, until: i64) -> None:
        """Read further messages, until there are so many, or their routes took long to find."""
        data = batch.data
        at = batch.at
        end = batch.end
        self.payloads = batch.payloads
        routes = batch.routes
        messages = batch.messages
        broker = self._broker
        most: i64 = broker.work + STEP * DELIVERY_VISITS
        for index in range(len(messages), until):
            message = self._read_message(data, at, end, True)
            assert message is not None
            at = self._end
            if self._is_mandatory:
                batch.mandatory.add(index)
            route = self._route
            assert route is not None
            routes.append(route)
            messages.append(message)
            if broker.work > most:
                break
        batch.at = at
        if len(messages) == batch.count:
            if at != end:
                raise Malformed("PUBLISH has trailing bytes")
            batch.data = b""
            batch.payloads = None

    def read_first(self, data: bytes, at: i64, end: i64) -> tuple[Message, Route]:
        """The message at ``at``, and its route.

        Raises Malformed, and the errors that refuse the request.
        """
        message = self._read_message(data, at, end, True)
        route = self._route
        assert message is not None
        assert route is not None
        return message, route

    def check(self, data: bytes, at: i64, end: i64, count: i64) -> None:
        """Whether the messages ``data[at:end]`` can be published; nothing of them is kept.

        Raises Malformed, Blocked, Unroutable, and the errors that refuse the request.
        """
        missed: list[int] = []
        most: i64 = self._broker.work + _TOGETHER_VISITS
        for index in range(count):
            if self._broker.work > most:
                raise RouteTooCostly
            message = self._read_message(data, at, end, False)
            at = self._end
            if message is not None and _leads_nowhere(self._vhost, message, self._route):
                missed.append(index)
        if at != end:
            raise Malformed("STAGE has trailing bytes")
        if self.blocked is not None:
            raise Blocked(self.blocked)
        if missed:
            raise Unroutable("no binding wants the message", _indexes(missed))

    def _read_message(self, data: bytes, at: i64, end: i64, is_kept: bool) -> Message | None:
        """The message at ``at``, if it is kept or mandatory; sets where it ends, head and route."""
        data_at: i64 = at + MESSAGE_HEAD_SIZE
        if data_at > end:
            raise Malformed("PUBLISH is cut")
        head: i64 = read_i64_le(data, at)
        sizes: i64 = read_i64_le(data, at + 8)
        if head != self._head:
            self._take_head(head)
        header_at: i64 = data_at + self._names_size
        payload_at: i64 = header_at + (sizes & 0xFFFF_FFFF)
        payload_size: i64 = sizes >> 32 & 0xFFFF_FFFF
        is_apart = payload_size >= LARGE_PAYLOAD and self.payloads is not None
        at = payload_at if is_apart else payload_at + payload_size
        if at > end:
            raise Malformed("PUBLISH has a malformed entry")
        if payload_size > self._max_payload:
            raise MessageTooLarge(f"a payload has at most {self._max_payload} bytes")
        route = self._route
        if (
            route is None
            or not lies_at(data, data_at, self._raw_address)
            or route.topology_version != self._vhost.topology_version
        ):
            route = self._find_route(data[data_at:header_at], head >> 16 & 0xFFFF)
        now = self._broker.now_ms
        mode, persistent = self._mode, self._is_persistent
        expires = deliver_at = 0
        insists, header = False, b""
        if payload_at > header_at:
            if before_key(data, header_at, payload_at - header_at):
                header = data[header_at:payload_at]
            else:
                header = self._read_properties(data, header_at, payload_at)
                expires = now + self._expiration if self._expiration >= 0 else 0
                if self._delivery >= 0:
                    mode = self._delivery
                    persistent = mode != AT_MOST_ONCE
                    insists = True
                deliver_at = now + self._delay if self._delay else 0
        if self._is_retained and route.address.exchange != RETAINING_EXCHANGE:
            raise InvalidArgument(f"only {RETAINING_EXCHANGE} keeps retained messages")
        self._end = at
        if not is_kept and not self._is_mandatory:
            return None
        return Message(
            PROTOCOL_NATIVE,
            route.address,
            header,
            data[payload_at:at] if at - payload_at == payload_size else self._next_large(),
            mode,
            persistent,
            now,
            expires,
            self._is_retained,
            head >> 8 & 0xFF,
            self._origin,
            deliver_at,
            insists=insists,
        )

    def _next_large(self) -> LargePayload:
        """The payload that does not lie in the data of the message that is read."""
        assert self.payloads is not None
        return self.payloads.pop(0)

    def _take_head(self, head: i64) -> None:
        """Note what the first 8 bytes of a message say, see ``write_message_head``.

        Raises Malformed.
        """
        mode = head & MODE_MASK
        if head & _UNKNOWN or mode == MODE_MASK:
            raise Malformed("PUBLISH has a malformed entry")
        if (head ^ self._head) & _NAME_SIZES:
            self._route = None
        self._head = head
        self._names_size = (head >> 16 & 0xFFFF) + (head >> 32 & 0xFFFF)
        self._mode = mode
        self._is_persistent = head & PERSISTENT != 0
        self._is_retained = head & RETAIN != 0
        self._is_mandatory = head & MANDATORY != 0

    def _find_route(self, raw: bytes, exchange_size: i64) -> Route:
        """The route of an address that the last message did not have.

        Raises InvalidArgument, AccessRefused, NotFound, RouteTooCostly.
        """
        key = raw[exchange_size:]
        if key.count(b".") >= MAX_LEVELS:
            raise InvalidArgument(f"a routing key has at most {MAX_LEVELS} levels")
        route = self.route_to(_name(raw[:exchange_size]), key)
        if isinstance(route, CostlyRoute):
            raise RouteTooCostly
        self._route = route
        self._raw_address = raw
        return route

    def route_to(self, name: str, key: bytes) -> Route:
        """The route of a routing key at an exchange. Raises AccessRefused, NotFound."""
        vhost = self._vhost
        access = self.access
        if access is not None:
            access.require_exchange(WRITE, name)
        exchange = vhost.exchange(name)
        if access is not None:
            access.require_publish(exchange, key)
        if exchange.internal:
            raise AccessRefused(f"exchange '{exchange.name}' is internal")
        return vhost.route(exchange, key)

    def _read_properties(self, data: bytes, at: i64, end: i64) -> bytes:
        """The properties ``data[at:end]``, once they are known to be right; sets what they say.

        They hold more than a key, which says nothing of the delivery and may differ from message to
        message: it would be neither worth comparing with the last one nor remembering.

        Raises InvalidArgument.
        """
        header = self._raw_properties
        if len(header) == end - at and lies_at(data, at, header):
            return header
        header = data[at:end]
        properties = decode_properties(header)
        expiration = properties.expiration
        delivery = _delivery_of(properties)
        self._expiration = -1 if expiration is None else expiration
        self._delivery = delivery
        self._delay = properties.delay or 0
        self._raw_properties = header
        return header

    def check_read(self, batch: Batch, is_bounded: bool) -> None:
        """Whether all of what was just read can be published, so that nobody sees a part of it;
        with ``is_bounded``, also whether that would hold up everybody.

        Raises Blocked, Unroutable, Rejected, InvalidArgument.
        """
        messages = batch.messages
        routes = batch.routes
        if messages and self.blocked is not None:
            raise Blocked(self.blocked)
        if batch.mandatory:
            missed: list[int] = []
            most: i64 = self._broker.work + _TOGETHER_VISITS
            for index in sorted(batch.mandatory):
                if _leads_nowhere(self._vhost, messages[index], routes[index]):
                    missed.append(index)
                if is_bounded and self._broker.work > most:
                    raise RouteTooCostly
            if missed:
                raise Unroutable("no binding wants the message", _indexes(missed))
        demand = Demand()
        # Those behind one another that go the same way.
        last: Route | None = None
        count = size = 0
        for index, message in enumerate(messages):
            if message.persistent:
                # Nobody sees it before it is certain.
                message.mode = EXACTLY_ONCE
            route = routes[index]
            if route is not last:
                if last is not None:
                    demand.add(last, size, count)
                last = None if route.depends_on_message else route
                count = size = 0
            if last is None:
                before = self._broker.work
                demand.add(route.resolve(message), message.size)
                demand.add_work(self._broker.work - before)
                if is_bounded and demand.is_too_much:
                    break
            else:
                count += 1
                size += message.size
        if last is not None:
            demand.add(last, size, count)
        if is_bounded and demand.is_too_much:
            raise InvalidArgument(f"a transaction makes at most {MAX_DELIVERIES} deliveries")
        full = demand.refused_by()
        if full is not None:
            raise Rejected(f"'{full.name}' has no room for the transaction")

    def publish_read(self, batch: Batch) -> None:
        """Publish what was just read and found fit."""
        # Those that are mandatory do have where to go (``check_read``).
        batch.mandatory.clear()
        # Nothing refuses from here on: not even what was deleted since, in this very turn.
        batch.topology_version = self._vhost.topology_version
        # What is rejected is so only by a backlog that answers for itself, such as a session's:
        # what it drops is nobody else's concern.
        self._publish(batch, _ALL)

    def _publish_message(self, message: Message) -> int:
        """Publish the only message of a request, which was read last.

        Raises Rejected, Unroutable.
        """
        route = self._route
        assert route is not None
        if route.depends_on_message:
            route = route.resolve(message)
        self._metrics.messages_received += 1
        self._traffic.published += 1
        is_mandatory = self._is_mandatory
        result = self._vhost.publish(message, route, None, is_mandatory)
        if result == UNROUTABLE:
            self._metrics.messages_unroutable += 1
            if is_mandatory:
                self._traffic.returned += 1
                raise Unroutable("no binding wants the message", _indexes([0]))
            self._traffic.unroutable += 1
            return 0
        if result == REJECTED:
            raise Rejected("a destination refused messages", _indexes([0]))
        return result

    def _publish(self, batch: Batch, room: i64) -> None:
        """Publish what is read and not published, about ``room`` deliveries; note what is refused.

        Of an idempotent request it ends before the first that is refused. Raises what refuses the
        rest: a route may be no more since it was read.
        """
        vhost = self._vhost
        routes = batch.routes
        messages = batch.messages
        mandatory = batch.mandatory
        has_mandatory = len(mandatory) > 0
        first: i64 = batch.published
        until: i64 = min(batch.count, first + room)
        if batch.topology_version != vhost.topology_version:
            self._renew_routes(routes, first, until)
        # What was found to take none, such as that to a stream, is not asked for each message.
        without_runs: Route | None = None
        index: i64 = first
        end: i64 = first
        while end < until and room > 0:
            index = end
            message = messages[index]
            route = routes[index]
            end = index + 1
            if not has_mandatory and route is not without_runs:
                end = _run_end(routes, messages, index, until)
                if end == index + 1 and not route.takes_runs(message.mode):
                    without_runs = route
            if end - index > 1:
                batch.wait = max(batch.wait, vhost.publish_run(messages[index:end], route))
                room -= end - index
                continue
            if route.depends_on_message:
                before: i64 = self._broker.work
                found = _resolved(route, message)
                room -= (self._broker.work - before) // DELIVERY_VISITS
                if found is None:
                    batch.rejected.append(index)
                    batch.has_stopped = batch.is_idempotent
                    if batch.has_stopped:
                        break
                    continue
                route = found
            room -= max(len(route.destinations), 1)
            is_mandatory = has_mandatory and index in mandatory
            result = vhost.publish(message, route, None, is_mandatory)
            if result == UNROUTABLE:
                self._count_unroutable(is_mandatory)
                batch.unroutable.append(index)
                batch.has_stopped = is_mandatory and batch.is_idempotent
            elif result == REJECTED:
                batch.rejected.append(index)
                batch.has_stopped = batch.is_idempotent
            elif result:
                batch.wait = result
            if batch.has_stopped:
                break
        batch.published = index if batch.has_stopped else end
        self._metrics.messages_received += end - first
        self._traffic.published += end - first

    def _count_unroutable(self, is_mandatory: bool) -> None:
        self._metrics.messages_unroutable += 1
        if is_mandatory:
            self._traffic.returned += 1
        else:
            self._traffic.unroutable += 1

    def _renew_routes(self, routes: list[Route], first: i64, until: i64) -> None:
        """Find those anew that are older than the topology, since they were found in another turn.

        Raises AccessRefused, NotFound, RouteTooCostly.
        """
        version = self._vhost.topology_version
        most: i64 = self._broker.work + _TOGETHER_VISITS
        former = renewed = routes[first]
        for index in range(first, until):
            route = routes[index]
            if route.topology_version == version:
                continue
            if route is not former or renewed is former:
                if self._broker.work > most:
                    raise RouteTooCostly
                former = route
                renewed = self.route_to(route.address.exchange, route.address.key)
            routes[index] = renewed

    def _outcome(self, batch: Batch) -> int:
        """What ``publish`` answers once all is published. Raises Rejected, Unroutable."""
        missed: list[int] = []
        if batch.mandatory:
            missed = [index for index in batch.unroutable if index in batch.mandatory]
        if batch.rejected:
            raise Rejected(
                "a destination refused messages", _indexes(sorted(batch.rejected + missed))
            )
        if missed:
            raise Unroutable("no binding wants the message", _indexes(missed))
        return batch.wait


def _leads_nowhere(vhost: VirtualHost, message: Message, route: Route | None) -> bool:
    assert route is not None
    if route.depends_on_message:
        route = route.resolve(message)
    return vhost.is_unroutable(message, route)


def _resolved(route: Route, message: Message) -> Route | None:
    """The route of this very message; None where that is too costly to find."""
    try:
        return route.resolve(message)
    except RouteTooCostly:
        return None


def _run_end(routes: list[Route], messages: list[Message], index: i64, until: i64) -> i64:
    """Where the run ends that begins at ``index``, ``until`` at the latest: see
    ``VirtualHost.publish_run``."""
    route = routes[index]
    first = messages[index]
    end: i64 = index + 1
    if end == until or routes[end] is not route or not is_plain(first):
        return end
    if not route.takes_runs(first.mode):
        return end
    mode = first.mode
    is_persistent = first.persistent
    while end < until and routes[end] is route:
        message = messages[end]
        if message.mode != mode or message.persistent is not is_persistent:
            break
        if not is_plain(message):
            break
        end += 1
    return end


def _indexes(indexes: list[int]) -> dict[str, object]:
    """The detail of an error: all, as what is not named was published. A transaction, of which
    nothing was, may have more."""
    return {"indexes": indexes[:MAX_MESSAGES]}


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
