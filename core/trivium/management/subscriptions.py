"""What clients of the HTTP API are sent as it comes: live messages of an exchange, messages of a
queue by leases, messages of a stream. What a message looks like is up to who makes the feed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from trivium.common.quotas import SUBSCRIPTIONS
from trivium.errors import AccessRefused, TopologyError
from trivium.management.counting import count_acknowledged, count_delivered, count_sent
from trivium.management.endpoints import BadRequest
from trivium.management.leases import ACCEPT, REQUEUE
from trivium.management.listing import Slices
from trivium.management.stream_reading import MAX_READ_BYTES, Batches, end_of, messages_in
from trivium.management.values import encode, encode_in_pieces
from trivium.observability.api import ApiRefused, FeedEvent, refusal
from trivium.queues.consumers import Consumer
from trivium.routing.exchanges import ACCEPTED, Binding, Destination, TopicExchange
from trivium.security.permissions import READ
from trivium.storage.base import DurabilityWaiter
from trivium.streams.stream import StreamReader

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.management.leases import Lease
    from trivium.messages.message import Message
    from trivium.queues.queue import Queue, QueueEntry
    from trivium.routing.exchanges import Exchange
    from trivium.streams.stream import Partition

#: Clients at a time, and those of one user: each has one of the 128 connections of its listener.
MAX_CLIENTS: Final = 64
MAX_OF_USER: Final = 16
#: Live messages, and bytes of their payloads, that wait for one client; beyond them some are lost.
MAX_WAITING: Final = 1000
MAX_WAITING_BYTES: Final = 1 << 20
#: Bytes of payloads that are made events of at once, where the first is not larger.
PART_BYTES: Final = 256 * 1024
#: Answers that wait for a client which says something: one who takes none is cut.
MAX_ANSWERS: Final = 1000


def _nothing() -> None:
    """Nobody waits yet."""


def _message(shown: dict[str, object], identity: str = "") -> FeedEvent:
    pieces = encode_in_pieces(shown)
    first, second = next(pieces), next(pieces, None)
    more = None if second is None else chain((second,), pieces)
    return FeedEvent("message", first, identity, more)


class Subscription:
    """A feed of one client: a part of those below."""

    def __init__(self, call: Call) -> None:
        self.wake: Callable[[], None] = _nothing
        self.is_over = False
        self.call = call
        self.broker = call.broker
        self.vhost = call.vhost
        self._is_closed = False
        self._answers: list[FeedEvent] = []
        self._accounts = call.accounts

    def begin(self) -> None:
        """Count it, and begin. Raises ApiRefused, TopologyError."""
        known = self.call.state.subscribers
        user = self.call.identity.name
        if sum(known.values()) >= MAX_CLIENTS or known.get(user, 0) >= MAX_OF_USER:
            text = f"at most {MAX_CLIENTS} clients subscribe, {MAX_OF_USER} of one user"
            raise ApiRefused(refusal(429, "too_many_requests", text, {"Retry-After": "10"}))
        self.broker.quotas.require(self._accounts, SUBSCRIPTIONS)
        self.open()
        self.call.state.waits.begin(self.call, self.check, self._may)
        known[user] = known.get(user, 0) + 1
        for account in self._accounts:
            account.add(SUBSCRIPTIONS, 1)

    def close(self) -> None:
        """Let go of everything."""
        if self._is_closed:
            return
        self._is_closed = True
        self.is_over = True
        self.call.state.waits.end(self.call)
        self.release()
        known = self.call.state.subscribers
        user = self.call.identity.name
        known[user] -= 1
        if not known[user]:
            del known[user]
        for account in self._accounts:
            account.add(SUBSCRIPTIONS, -1)

    def take(self) -> list[FeedEvent]:
        """What there is."""
        # What is answered was so before what comes now.
        answers = self._answers
        self._answers = []
        if self.is_over:
            return answers
        found = [*answers, *self.messages()]
        # The last message may have found out that there are no more.
        found += self._answers
        self._answers = []
        return found

    def tell(self, name: str, **said: object) -> None:
        """An event that is no message."""
        self._answers.append(FeedEvent(name, encode(said)))
        if len(self._answers) > MAX_ANSWERS:
            self.is_over = True
        self.wake()

    def end(self, reason: str) -> None:
        """It is over, and the client is told why."""
        if not self.is_over:
            self.tell("end", reason=reason)
            self.is_over = True

    def check(self) -> None:
        """End it where the client may not go on, or what it reads is gone."""
        call = self.call
        broker = self.broker
        if broker.is_stopping:
            self.end("stopping")
        elif broker.vhosts.get(self.vhost.name) is not self.vhost:
            self.end("deleted")
        elif not (call.may_go_on(time.time_ns() // 1_000_000) and self._may()):
            self.end("access-refused")

    def _may(self) -> bool:
        """Whether the client may read this now."""
        try:
            self.require()
        except AccessRefused:
            return False
        return True

    def received(self, said: object) -> None:
        """What the client says: here it has nothing to say."""
        try:
            self.heard(said)
        except (BadRequest, TopologyError) as error:
            self.tell("error", detail=str(error))

    # What each is made of

    def open(self) -> None:
        """Begin. Raises TopologyError."""
        raise NotImplementedError

    def release(self) -> None:
        """Let go of what it reads."""
        raise NotImplementedError

    def require(self) -> None:
        """Raise AccessRefused unless the client may read this; end it where that is gone."""
        raise NotImplementedError

    def messages(self) -> Iterator[FeedEvent]:
        """Those that there are, for a moment."""
        raise NotImplementedError

    def heard(self, said: object) -> None:
        """What the client says. Raises BadRequest, TopologyError."""
        raise BadRequest("there is nothing to say here")


class _Live(Destination):
    """A live subscription as bindings see it."""

    def __init__(self, subscription: LiveSubscription) -> None:
        self.name = f"http:{subscription.call.request.address}"
        self._subscription = subscription

    def accept(self, message: Message) -> int:
        self._subscription.deliver(message)
        return ACCEPTED


class LiveSubscription(Subscription):
    """What is published to an exchange while it lasts, at most once: who is too slow loses some,
    and is told how many."""

    def __init__(
        self,
        call: Call,
        exchange: Exchange,
        pattern: bytes,
        view: Callable[[Message], dict[str, object]],
    ) -> None:
        super().__init__(call)
        self._exchange = exchange
        self._pattern = pattern
        self._view = view
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._lost = 0
        self._binding = Binding(_Live(self), pattern)

    def open(self) -> None:
        self.require()
        self.vhost.bind(self._exchange, self._binding)

    def release(self) -> None:
        if self.vhost.exchanges.get(self._exchange.name) is self._exchange:
            self.vhost.unbind(self._exchange, self._binding)
        self._waiting.clear()

    def require(self) -> None:
        exchange = self._exchange
        if self.vhost.exchanges.get(exchange.name) is not exchange:
            self.end("deleted")
            return
        access = self.call.access
        access.require_live(exchange, self._pattern)
        if isinstance(exchange, TopicExchange):
            self._binding.guard = access

    def deliver(self, message: Message) -> None:
        """A message has come."""
        if len(self._waiting) >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
            self._lost += 1
            return
        if not self._waiting:
            self.wake()
        self._waiting.append(message)
        self._bytes += message.size

    def messages(self) -> Iterator[FeedEvent]:
        slices = Slices()
        size = 0
        while self._waiting and size < PART_BYTES and not slices.is_over:
            message = self._waiting.popleft()
            self._bytes -= message.size
            size += message.size
            count_sent(self.call, 1)
            yield _message(self._view(message))
        if self._lost and not self._waiting:
            self.call.broker.http.messages_dropped += self._lost
            self.tell("lost", messages=self._lost)
            self._lost = 0


class _Settled(DurabilityWaiter):
    """Answers a settlement once it is durable."""

    def __init__(self, subscription: Subscription, settled: int, gone: list[str]) -> None:
        self._subscription = subscription
        self._settled = settled
        self._gone = gone

    def write_batch_durable(self, write_batch: int) -> None:
        self._subscription.tell("settled", settled=self._settled, gone=self._gone)


class _Taker(Consumer):
    """A queue's subscription as the queue sees it."""

    def __init__(self, subscription: QueueSubscription) -> None:
        self._subscription = subscription

    def takes_delivery(self) -> bool:
        return self._subscription.has_room

    def deliver(self, entry: QueueEntry) -> None:
        self._subscription.deliver(entry)

    def cancelled(self) -> None:
        self._subscription.end("deleted")


class QueueSubscription(Subscription):
    """Messages of a queue, each lent until it is settled or its time is over: at most ``limit`` at
    a time. What the client has when it leaves comes back to the queue at once."""

    def __init__(
        self,
        call: Call,
        queue: Queue,
        limit: int,
        lease_ms: int,
        view: Callable[[QueueEntry, str | None], dict[str, object]],
        read: Callable[[object], tuple[list[str], str]],
    ) -> None:
        super().__init__(call)
        self._queue = queue
        self._limit = limit
        self._lease_ms = lease_ms
        self._view = view
        self._read = read
        self._leases: dict[str, Lease] = {}
        # Those that are on their way to the client, by the names of their leases.
        self._waiting: deque[tuple[QueueEntry, str | None]] = deque()
        self._taker = _Taker(self)

    def open(self) -> None:
        self.require()
        self._queue.add_consumer(self._taker)

    def release(self) -> None:
        queue = self._queue
        self._waiting.clear()
        for lease in list(self._leases.values()):
            self.call.state.leases.end(lease, REQUEUE)
        if not queue.is_deleted:
            queue.remove_consumer(self._taker)

    def require(self) -> None:
        self.call.access.require(READ, "queue", self._queue.name)

    @property
    def has_room(self) -> bool:
        """Whether the client takes one more."""
        if self.is_over or max(len(self._leases), len(self._waiting)) >= self._limit:
            return False
        return self.call.state.leases.room(self.call.identity.name) > 0

    def deliver(self, entry: QueueEntry) -> None:
        """A message has come."""
        token = None
        if not entry.is_settled:
            lease = self.call.state.leases.lend(self.call.identity.name, entry, self._lease_ms)
            token = lease.token
            self._leases[token] = lease
            lease.ended = lambda: self._ended(lease.token)
        if not self._waiting:
            self.wake()
        self._waiting.append((entry, token))

    def _ended(self, token: str) -> None:
        del self._leases[token]
        if not self._queue.is_deleted:
            self._queue.dispatch_later()

    def messages(self) -> Iterator[FeedEvent]:
        slices = Slices()
        size = 0
        while self._waiting and size < PART_BYTES and not slices.is_over:
            entry, token = self._waiting.popleft()
            if token is None or token in self._leases:
                size += entry.message.size
                count_delivered(self.call, entry)
                yield _message(self._view(entry, token))
        if not self._waiting and not self._queue.is_deleted:
            self._queue.dispatch_later()

    def heard(self, said: object) -> None:
        tokens, outcome = self._read(said)
        gone: list[str] = []
        for token in tokens:
            lease = self._leases.get(token)
            if lease is None:
                gone.append(token)
            else:
                self.call.state.leases.end(lease, outcome)
        if outcome == ACCEPT:
            count_acknowledged(self.call, len(tokens) - len(gone))
        answer = _Settled(self, len(tokens) - len(gone), gone)
        storage = self.broker.storage
        if storage.is_durable:
            storage.wait(answer)
        else:
            answer.write_batch_durable(0)


class _Reader(StreamReader):
    """A stream's subscription as the partition sees it."""

    def __init__(self, subscription: StreamSubscription) -> None:
        self._subscription = subscription

    def watermark_moved(self, partition: Partition) -> None:
        self._subscription.go_on()

    def stream_deleted(self, partition: Partition) -> None:
        self._subscription.end("deleted")


class StreamSubscription(Subscription):
    """Messages of a partition from an offset on, read as fast as the client takes them."""

    def __init__(
        self,
        call: Call,
        partition: Partition,
        offset: int,
        view: Callable[[int, Message], dict[str, object]],
    ) -> None:
        super().__init__(call)
        self._partition = partition
        self._offset = offset
        self._view = view
        self._batches: Batches = []
        self._rows: Iterator[tuple[int, Message]] = iter(())
        self._is_waiting = False
        self._reader = _Reader(self)

    def open(self) -> None:
        self.require()

    def release(self) -> None:
        self._partition.cancel(self._reader)

    def require(self) -> None:
        self.call.access.require(READ, "stream", self._partition.stream.name)

    def go_on(self) -> None:
        """There is more to read."""
        self._is_waiting = False
        self.wake()

    def messages(self) -> Iterator[FeedEvent]:
        slices = Slices()
        size = 0
        while size < PART_BYTES and not slices.is_over:
            row = next(self._rows, None)
            if row is None:
                if not self._read():
                    return
                continue
            at, message = row
            size += message.size
            self._offset = at + 1
            self._partition.records_read += 1
            count_sent(self.call, 1)
            # By its identity a browser goes on where it was.
            yield _message(self._view(at, message), str(at))

    def _read(self) -> bool:
        """Read on; whether there is something. Else ``go_on`` is called once there is."""
        partition = self._partition
        if self._is_waiting or partition.stream.is_deleted:
            return False
        # A batch may end with what compaction has left out, and what comes next be gone.
        offset = max(end_of(self._batches, self._offset), partition.first_offset)
        self._batches = []
        self._offset = offset
        if not partition.is_loaded(offset):
            self._is_waiting = True
            partition.load(offset, MAX_READ_BYTES, self.go_on)
            return False
        self._batches = partition.read(offset, MAX_READ_BYTES)
        if not self._batches:
            self._is_waiting = True
            partition.wait(self._reader)
            return False
        self._rows = messages_in(self._batches, offset)
        return True
