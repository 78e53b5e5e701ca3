"""Dead letters: messages that a queue gave up, on their way to its dead letter exchange.

They are published at the end of the turn, before the batch is committed, so a message leaves its
queue and enters the next one in the same batch. Each carries its history in the header ``x-death``,
one entry per queue and reason with a count, the latest first, in the form of RabbitMQ.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from trivium.message import Address, HeaderValue, Message

if TYPE_CHECKING:
    from trivium.queues import Queue

EXPIRED: Final = "expired"
REJECTED_REASON: Final = "rejected"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"

#: Entries of ``x-death``: one per queue and reason in the path. Longer paths are misconfigured.
MAX_DEATHS: Final = 64


def publish_dead_letter(queue: Queue, message: Message, reason: str) -> None:
    """Publish what ``queue`` gave up to its dead letter exchange.

    It is dropped where the exchange does not exist, and where it has been round without anybody
    rejecting it: otherwise two queues without consumers would pass it on for ever.
    """
    settings = queue.settings
    if settings.dead_letter_exchange is None:
        return
    vhost = queue.vhost
    exchange = vhost.exchanges.get(settings.dead_letter_exchange)
    if exchange is None:
        return
    deaths = _deaths(message)
    if _is_cycle(deaths, queue.name, reason):
        return
    address = message.address
    key = address.key
    if settings.dead_letter_routing_key is not None:
        key = settings.dead_letter_routing_key.encode()
    now = vhost.broker.now_ms
    history = _with_death(deaths, queue.name, reason, message, now)
    annotations = dict(message.annotations or {})
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
        Address(exchange.name, key),
        message.header,
        message.payload,
        message.mode,
        message.persistent,
        now,
        priority=message.priority,
        annotations=annotations,
        insists=message.insists,
    )
    route = vhost.route(exchange, key)
    if route.depends_on_message:
        route = route.resolve(dead)
    route.publish(dead)


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
    deaths: list[HeaderValue], queue_name: str, reason: str, message: Message, now: int
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
            death["count"] = count + 1 if isinstance(count, int) else 1
        else:
            others.append(known)
    if death is None:
        death = {
            "count": 1,
            "reason": reason,
            "queue": queue_name,
            "time": datetime.fromtimestamp(now // 1000, UTC),
            "exchange": message.address.exchange,
            "routing-keys": [message.address.key.decode("utf-8", "replace")],
        }
        if message.expires:
            expiration = message.properties().expiration
            if expiration is not None:
                death["original-expiration"] = str(expiration)
    return [death, *others][:MAX_DEATHS]
