"""Dead letters: messages that a queue gave up, on their way to its dead letter exchange.

They are published at the end of the turn, before the batch is committed, so a message leaves its
queue and enters the next one in the same batch. Each carries its history in the header ``x-death``,
one entry per queue and reason with a count, the latest first, in the form of RabbitMQ.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from trivium.message import PROTOCOL_AMQP, Address, HeaderValue, Message

if TYPE_CHECKING:
    from trivium.queues import Queue

logger = logging.getLogger(__name__)

EXPIRED: Final = "expired"
REJECTED_REASON: Final = "rejected"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"

#: The header with further routing keys that an AMQP message was published with.
COPIES_HEADER: Final = "CC"

#: Largest count in ``x-death``: AMQP has signed integers of 64 bits.
MAX_COUNT: Final = (1 << 63) - 1

#: Entries of ``x-death``: one per queue and reason in the path. Longer paths are misconfigured.
MAX_DEATHS: Final = 64

#: Why nobody gets a dead letter: it would go round for ever, its exchange does not exist, no
#: binding wants it, or a queue is full and has ``reject-publish``.
CYCLE: Final = "cycle"
NO_EXCHANGE: Final = "no_exchange"
UNROUTABLE: Final = "unroutable"
REFUSED: Final = "refused"

#: Milliseconds between two lines in the log about lost dead letters.
TELL_INTERVAL: Final = 60_000


class LostDeadLetters:
    """Dead letters that were lost since the start, by why. A line in the log tells of them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {CYCLE: 0, NO_EXCHANGE: 0, UNROUTABLE: 0, REFUSED: 0}
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


def publish_dead_letter(queue: Queue, message: Message, reason: str) -> None:
    """Publish what ``queue`` gave up to its dead letter exchange.

    It is dropped, and counted, where the exchange does not exist or leads to nobody, and where it
    has been round without anybody rejecting it: otherwise two queues without consumers would pass
    it on for ever.
    """
    settings = queue.settings
    if settings.dead_letter_exchange is None:
        return
    vhost = queue.vhost
    now = vhost.broker.now_ms
    elapsed = vhost.broker.elapsed_ms
    lost = vhost.broker.lost_dead_letters
    exchange = vhost.exchanges.get(settings.dead_letter_exchange)
    if exchange is None:
        lost.add(NO_EXCHANGE, queue.name, elapsed)
        return
    deaths = _deaths(message)
    if _is_cycle(deaths, queue.name, reason):
        lost.add(CYCLE, queue.name, elapsed)
        return
    address = message.address
    keys = [address.key, *_copies(message)]
    history = _with_death(deaths, queue.name, reason, message, keys, now)
    annotations = dict(message.annotations or {})
    if settings.dead_letter_routing_key is not None:
        if len(keys) > 1:
            annotations[COPIES_HEADER] = None
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
        Address(exchange.name, keys[0]),
        message.header,
        message.payload,
        message.mode,
        message.persistent,
        now,
        priority=message.priority,
        annotations=annotations,
        insists=message.insists,
    )
    route = vhost.route_all(exchange, keys, dead)
    if not route.destinations:
        lost.add(UNROUTABLE, queue.name, elapsed)
    route.publish(dead)


def _copies(message: Message) -> list[bytes]:
    """The further routing keys of a message, without those of the header BCC, which is gone."""
    if message.protocol != PROTOCOL_AMQP:
        return []
    found = message.properties().header(COPIES_HEADER)
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


def _is_cycle(deaths: list[HeaderValue], queue_name: str, reason: str) -> bool:
    if reason == REJECTED_REASON:
        return False
    was_here = False
    for death in deaths:
        if isinstance(death, dict):
            if death.get("reason") == REJECTED_REASON:
                return False
            if death.get("queue") == queue_name:
                was_here = True
    return was_here


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
