"""Delayed messages: published now, routed when their time has come.

One queue per virtual host keeps them, which no client can reach. A message whose time has come is
routed as if it had been published then, in the write batch in which it leaves that queue. So
whatever it reaches (queues, streams, live subscriptions, retained messages) knows nothing of
delays.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.common.values import pack, unpack
from trivium.errors import RouteTooCostly
from trivium.messages.message import UNKNOWN, Message
from trivium.queues.queue import Consumer, Queue
from trivium.queues.sub_queues import QueueEntry
from trivium.queues.waiting import count_waiting
from trivium.routing.exchanges import DELIVERY_VISITS, Destination

if TYPE_CHECKING:
    from trivium.vhost.virtual_host import VirtualHost

logger = logging.getLogger(__name__)

#: Clients cannot have names in ``amq.``.
QUEUE_NAME: Final = "amq.delayed"
#: Milliseconds until a message is offered again to a queue that was full (reject-publish): its
#: publisher has been acknowledged, so it must not be dropped.
FULL_DELAY: Final = 1000
#: Deliveries made in one millisecond, so that many messages of one time, or with many destinations,
#: do not stop everything else.
BURST: Final = 1024
#: Milliseconds between two lines in the log about lost messages.
TELL_INTERVAL: Final = 1000
#: Bytes of the further routing keys of a message, with 5 more for each: they are kept in an
#: annotation, which has at most 65,535 bytes.
MAX_COPIES_BYTES: Final = 65_000


class Delays(Consumer):
    """The delayed messages of one virtual host."""

    def __init__(self, vhost: VirtualHost, log_name: str) -> None:
        self._vhost = vhost
        self._log_name = log_name
        self._broker = vhost.broker
        self._queue: Queue | None = None
        # Destinations that were full, of entries that the others have.
        self._left: dict[QueueEntry, list[Destination]] = {}
        self._resume = _Resume(self)
        self._routed = 0
        self._routed_at = 0
        self._told_at = -TELL_INTERVAL

    def __len__(self) -> int:
        return 0 if self._queue is None else count_waiting(self._queue) + len(self._queue)

    def restore(self) -> None:
        """Go on with what was kept."""
        if self._log_name in self._broker.storage.log_names():
            self._open()

    def add(self, message: Message, copies: list[bytes]) -> int:
        """Keep ``message`` until its ``deliver_at``: ACCEPTED, or the write batch to wait for.

        ``copies`` are routing keys beside its own, of MAX_COPIES_BYTES together.
        """
        queue = self._open() if self._queue is None else self._queue
        return queue.put_special(message, pack(copies) if copies else b"")

    def _open(self) -> Queue:
        storage = self._broker.storage
        logs = [storage.log(self._log_name)] if storage.is_durable else []
        queue = Queue(self._vhost, QUEUE_NAME, logs, durable=True, adapter="trivium")
        self._queue = queue
        queue.add_consumer(self)
        return queue

    # Consumer

    def takes_delivery(self) -> bool:
        now = self._broker.elapsed_ms
        if self._routed_at != now:
            self._routed_at = now
            self._routed = 0
        if self._routed < BURST:
            return True
        self._broker.timeouts.call_at(now + 1, self._resume)
        return False

    def resume(self) -> None:
        """Route more."""
        if self._queue is not None:
            self._queue.dispatch()

    def deliver(self, entry: QueueEntry) -> None:
        """Its time has come."""
        queue = entry.queue
        broker = self._broker
        before = broker.work
        left = self._route(entry)
        self._routed += 1 + (broker.work - before) // DELIVERY_VISITS
        if left:
            self._left[entry] = left
            queue.postpone(entry, FULL_DELAY)
        else:
            queue.settle(entry)

    def _route(self, entry: QueueEntry) -> list[Destination]:
        """Route a message; the destinations that are too full to take it."""
        delayed = entry.message
        vhost = self._vhost
        now = self._broker.now_ms
        exchange = vhost.exchanges.get(delayed.address.exchange)
        earlier = self._left.pop(entry, None)
        if exchange is None:
            return []
        message = Message(
            delayed.protocol,
            delayed.address,
            delayed.header,
            delayed.content,
            delayed.mode,
            delayed.persistent,
            now,
            # Its life begins now.
            delayed.expires + now - delayed.timestamp if delayed.expires else 0,
            delayed.retain,
            delayed.priority,
            delayed.origin,
            insists=delayed.insists,
        )
        message.traced = UNKNOWN
        copies: list[bytes] = unpack(entry.annotation) if entry.annotation else []
        try:
            route = vhost.route_all(exchange, [delayed.address.key, *copies], message)
        except RouteTooCostly as error:
            # What was bound since makes too much of it.
            self._tell(exchange.name, error)
            return []
        self._routed += max(len(route.destinations) - 1, 0)
        if earlier is None and message.retain:
            vhost.keep_retained(message)
        return route.offer(message, earlier)

    def _tell(self, exchange: str, why: RouteTooCostly) -> None:
        now = self._broker.elapsed_ms
        if now - self._told_at >= TELL_INTERVAL:
            self._told_at = now
            logger.warning("a delayed message of exchange '%s' is lost: %s", exchange, why)

    def close(self) -> None:
        """The virtual host is deleted."""
        queue = self._queue
        if queue is not None:
            self._queue = None
            self._broker.timeouts.stop(self._resume)
            queue.deleted()

    def cancelled(self) -> None:
        """The queue goes with its virtual host, for nobody else can delete it."""


class _Resume(Timed):
    def __init__(self, delays: Delays) -> None:
        self._delays = delays

    def due(self) -> None:
        self._delays.resume()
