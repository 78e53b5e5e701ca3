"""Dead letters: messages that a queue gave up, on their way to its dead letter exchange.

They are published at the end of a turn, before the write batch is committed, so a message leaves
its queue and enters the next one in the same write batch. A turn publishes so many of them; the
others stay unsettled in their queues until a later one. Each carries its history in the header
``x-death``, one entry per queue and reason with a count, the latest first, in the form of RabbitMQ.

A dead letter enters no queue that it left before without a client's doing: neither a rejection nor
a new publish. What a publisher writes into ``x-death`` has no part in that.
"""

from __future__ import annotations

import logging
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from trivium.common.timers import Timed
from trivium.errors import RouteTooCostly
from trivium.host import Host
from trivium.messages.message import UNKNOWN, Address, HeaderValue, Message, codec_of
from trivium.routing.exchanges import DELIVERY_VISITS, REJECTED, Destination

if TYPE_CHECKING:
    from trivium.queues.queue import Queue
    from trivium.queues.sub_queues import QueueEntry

logger = logging.getLogger(__name__)

EXPIRED: Final = "expired"
REJECTED_REASON: Final = "rejected"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"
DEAD_LETTER_REASONS: Final[tuple[str, ...]] = (EXPIRED, REJECTED_REASON, MAXLEN, DELIVERY_LIMIT)

#: Largest count in ``x-death``: AMQP has signed integers of 64 bits.
MAX_COUNT: Final = (1 << 63) - 1

#: Entries of ``x-death``: one per queue and reason in the path. Longer paths are misconfigured: a
#: dead letter goes no further that left so many queues in a row.
MAX_DEATHS: Final = 64

#: Dead letters that one turn publishes, so that others are served between: some 10 ms of work. Each
#: counts once for every destination, also those that do not get it, for every further routing key,
#: and for so many bytes of the message at each destination.
MAX_PER_TURN: Final = 1024
COUNTED_BYTES: Final = 4096
#: Milliseconds until they go on when too much waits for the disk.
BEHIND_DELAY: Final = 10
#: Destinations that one dead letter is given to by way of full queues that pass it on
#: (``reject-publish-dlx``), since all of that is one write batch.
MAX_STEPS: Final = 1024
#: Milliseconds until a dead letter that must not be lost is tried again.
RETRY_DELAY: Final = 1000

#: Why nobody gets a dead letter: it would go round for ever, its exchange does not exist, who named
#: that may not do so any more, no binding wants it, or a queue is full and has ``reject-publish``.
CYCLE: Final = "cycle"
NO_EXCHANGE: Final = "no_exchange"
SUSPENDED: Final = "suspended"
UNROUTABLE: Final = "unroutable"
TOO_COSTLY: Final = "too_costly"
REFUSED: Final = "refused"

#: Milliseconds between two lines in the log about lost dead letters.
TELL_INTERVAL: Final = 60_000


class LostDeadLetters:
    """Dead letters that were lost since the start, by why. A line in the log tells of them."""

    def __init__(self) -> None:
        whys = (CYCLE, NO_EXCHANGE, SUSPENDED, UNROUTABLE, TOO_COSTLY, REFUSED)
        self.counts: dict[str, int] = dict.fromkeys(whys, 0)
        self._told_at = -TELL_INTERVAL

    def add(self, why: str, name: str, elapsed: int) -> None:
        """One more. ``name`` is the queue that gave the message up, or refused it; ``elapsed``
        counts milliseconds.
        """
        self.counts[why] += 1
        if elapsed - self._told_at >= TELL_INTERVAL:
            self._told_at = elapsed
            total = sum(self.counts.values())
            logger.warning(
                "a dead letter is lost (%s, queue '%s'); %d since the start", why, name, total
            )


class DeadLetter(Timed):
    """A message that ``queue`` gave up and that has not reached anybody yet.

    ``entry`` is its place in the queue, which is settled when it has; None for a message that the
    full queue has refused.
    """

    def __init__(
        self, queue: Queue, entry: QueueEntry | None, message: Message, reason: str
    ) -> None:
        self.queue = queue
        self.entry = entry
        self.message = message
        self.reason = reason
        #: the destinations that have yet to take it; None before the first try
        self.left: list[Destination] | None = None
        self.is_done = False

    def due(self) -> None:
        """Try again."""
        self.queue.vhost.dead_letters.retry(self)


class DeadLetters(Timed):
    """The dead letters of a broker that are on their way."""

    def __init__(self, broker: Host) -> None:
        self.lost = LostDeadLetters()
        self._broker = broker
        self._new: list[DeadLetter] = []
        self._refused: list[DeadLetter] = []
        self._pending: deque[DeadLetter] = deque()

    def add(self, letter: DeadLetter) -> None:
        """Publish it, in this turn unless there are too many."""
        self._new.append(letter)
        self._broker.collected += 1
        self._broker.request_turn()

    def add_refused(self, letter: DeadLetter) -> None:
        """Publish, in this turn, what a full queue has refused: no queue keeps it meanwhile."""
        self._refused.append(letter)
        self._broker.collected += 1
        self._broker.request_turn()

    def retry(self, letter: DeadLetter) -> None:
        """Publish one again that was left, unless its queue is gone."""
        if not letter.queue.is_deleted:
            self._pending.append(letter)

    def run(self) -> None:
        """Publish what may be published in this turn."""
        refused = self._refused
        self._refused = []
        for letter in refused:
            self._publish(letter)
        pending = self._pending
        came = self._new
        pending.extend(came)
        broker = self._broker
        budget = MAX_PER_TURN
        # Nobody but this loop can hold back what goes from queue to queue.
        while pending and budget > 0 and not broker.is_behind:
            self._new = []
            budget -= self._publish(pending.popleft())
            # What it pushed out of full queues goes first. So no more wait than one path has beside
            # it, however often paths fork.
            pending.extendleft(reversed(self._new))
        self._new = []
        for letter in came:
            if not letter.is_done and letter.entry is not None:
                letter.queue.given_up.keep(letter.entry, letter.reason)
        if pending:
            delay = BEHIND_DELAY if broker.is_behind else 0
            broker.timeouts.call_at(broker.elapsed_ms + delay, self)

    def due(self) -> None:
        """A turn has begun, whose end will go on."""

    def _publish(self, letter: DeadLetter) -> int:
        """Publish one, or leave it for later; for how many it counts, at least 1."""
        queue = letter.queue
        entry = letter.entry
        must_arrive = (
            entry is not None and queue.settings.keeps_dead_letters and not queue.is_deleted
        )
        journey = _Journey(self._broker, self.lost, must_arrive)
        was_taken = journey.offer(queue, letter.message, letter.reason, letter.left)
        if must_arrive and (journey.left or not was_taken):
            if was_taken:
                letter.left = journey.left
            self._broker.timeouts.call_at(self._broker.elapsed_ms + RETRY_DELAY, letter)
        else:
            letter.is_done = True
            for name in journey.cycles:
                self.lost.add(CYCLE, name, self._broker.elapsed_ms)
            if entry is not None:
                queue.given_up.left(entry)
        return max(journey.work, 1)


class _Journey:
    """One try of one dead letter, through the full queues that pass it on.

    What ``must_arrive`` is not lost when it does not.
    """

    def __init__(self, broker: Host, lost: LostDeadLetters, must_arrive: bool) -> None:
        self._broker = broker
        self._lost = lost
        self._must_arrive = must_arrive
        #: destinations that it was given to
        self.steps = 0
        #: for how many dead letters it counts
        self.work = 0
        #: those of the first exchange that have yet to take it
        self.left: list[Destination] = []
        #: queues that it has been to
        self.cycles: list[str] = []

    def offer(
        self, queue: Queue, message: Message, reason: str, wanted: list[Destination] | None
    ) -> bool:
        """Publish what ``queue`` gave up, where wanted to those alone that have yet to take it;
        whether anybody has it.

        Nobody gets it where the exchange does not exist, is not in force or leads to nobody, nor
        does a queue that it left before, since when no client had it.
        """
        settings = queue.settings
        if settings.dead_letter_exchange is None:
            # It had one when it gave this up.
            return True
        vhost = queue.vhost
        exchange = vhost.exchange_to(settings.dead_letter_exchange)
        if exchange is None:
            self._lose(NO_EXCHANGE, queue.name)
            return wanted is not None
        if not may_dead_letter(queue):
            self._lose(SUSPENDED, queue.name)
            return wanted is not None
        dead, keys, left = _dead_letter(queue, message, reason, exchange.name)
        self.work += len(keys) - 1
        before = vhost.broker.work
        try:
            route = vhost.route_all(exchange, keys, dead)
        except RouteTooCostly:
            self._lose(TOO_COSTLY, queue.name)
            return wanted is not None
        finally:
            self.work += (vhost.broker.work - before) // DELIVERY_VISITS
        if not route.destinations:
            self._lose(UNROUTABLE, queue.name)
        was_taken = wanted is not None
        refused: list[Destination] = []
        for destination in route.destinations:
            if wanted is not None and destination not in wanted:
                continue
            target = destination.target_queue()
            if len(left) >= MAX_DEATHS or (target is not None and target.name in left):
                self.work += 1
                self.cycles.append(destination.name)
            elif self._give(destination, target, dead):
                was_taken = True
            else:
                refused.append(destination)
        self.left = refused
        return was_taken

    def _give(self, destination: Destination, target: Destination | None, dead: Message) -> bool:
        self.steps += 1
        self.work += 1 + (len(dead.header) + dead.size) // COUNTED_BYTES
        if destination.accept(dead) != REJECTED:
            return True
        if target is not None and target.passes_on and self.steps < MAX_STEPS:
            # As deep as the way is long.
            return self.offer(cast("Queue", target), dead, MAXLEN, None)
        self._lose(REFUSED, destination.name)
        return False

    def _lose(self, why: str, name: str) -> None:
        if not self._must_arrive:
            self._lost.add(why, name, self._broker.elapsed_ms)


def may_dead_letter(queue: Queue) -> bool:
    """Whether the dead letter exchange that ``queue`` has is in force."""
    declarer = queue.declarer
    if declarer is None:
        return not queue.settings.dead_letters_suspended
    target = queue.arguments.get("x-dead-letter-exchange")
    key = queue.arguments.get("x-dead-letter-routing-key")
    return declarer.may_pass_on(
        "queue", queue.name, str(target), key if isinstance(key, str) else None
    )


def _dead_letter(
    queue: Queue, message: Message, reason: str, exchange: str
) -> tuple[Message, list[bytes], set[str]]:
    """What is published of a message that ``queue`` gave up, by which keys, and the queues that it
    has left since a client had it, this one among them unless it was rejected."""
    settings = queue.settings
    now = queue.vhost.broker.now_ms
    address = message.address
    keys = [address.key, *_copies(message)]
    deaths = _deaths(message)
    history = _with_death(deaths, queue.name, reason, message, keys, now)
    hops = 0 if reason == REJECTED_REASON else min(message.hops + 1, MAX_DEATHS)
    left: set[str] = set()
    for death in history[:hops]:
        # The broker made these.
        if isinstance(death, dict):
            left.add(str(death.get("queue")))
    annotations = dict(message.annotations or {})
    if settings.dead_letter_routing_key is not None:
        if len(keys) > 1:
            annotations[codec_of(message.protocol).copies_header] = None
        keys = [settings.dead_letter_routing_key.encode()]
    if not deaths:
        annotations["x-first-death-reason"] = reason
        annotations["x-first-death-queue"] = queue.name
        annotations["x-first-death-exchange"] = address.exchange
    annotations["x-last-death-reason"] = reason
    annotations["x-last-death-queue"] = queue.name
    annotations["x-last-death-exchange"] = address.exchange
    annotations["x-death"] = history
    dead = Message(
        message.protocol,
        Address(exchange, keys[0]),
        message.header,
        message.content,
        message.mode,
        message.persistent,
        now,
        priority=message.priority,
        annotations=annotations,
        insists=message.insists,
        hops=hops,
    )
    dead.traced = UNKNOWN
    return dead, keys, left


def _copies(message: Message) -> list[bytes]:
    """The further routing keys of a message, as far as its header still tells them."""
    name = codec_of(message.protocol).copies_header
    found = message.properties().header(name) if name else None
    keys: list[bytes] = []
    if isinstance(found, list):
        for key in found:
            if isinstance(key, str):
                keys.append(key.encode())
            elif isinstance(key, bytes):
                keys.append(key)
    return keys


def _deaths(message: Message) -> list[HeaderValue]:
    found = message.properties().header("x-death")
    return found if isinstance(found, list) else []


def _with_death(
    deaths: list[HeaderValue],
    queue_name: str,
    reason: str,
    message: Message,
    keys: list[bytes],
    now: int,
) -> list[HeaderValue]:
    others: list[HeaderValue] = []
    death: dict[str, HeaderValue] | None = None
    for known in deaths:
        if (
            isinstance(known, dict)
            and known.get("queue") == queue_name
            and known.get("reason") == reason
        ):
            count = known.get("count")
            death = dict(known)
            if not isinstance(count, int) or isinstance(count, bool):
                count = 0
            # It may be a publisher's, and of any size.
            death["count"] = min(max(count, 0), MAX_COUNT - 1) + 1
        else:
            others.append(known)
    if death is None:
        death = {
            "count": 1,
            "reason": reason,
            "queue": queue_name,
            "time": datetime.fromtimestamp(now // 1000, UTC),
            "exchange": message.address.exchange,
            "routing-keys": [key.decode("utf-8", "replace") for key in keys],
        }
        if message.expires:
            expiration = message.properties().expiration
            if expiration is not None:
                death["original-expiration"] = str(expiration)
    return [death, *others][:MAX_DEATHS]
