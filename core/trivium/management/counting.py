"""What clients of the HTTP API publish and are sent: counted as that of all clients is, for their
protocol, and for the user, the virtual host and the listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.routing.exchanges import REJECTED, UNROUTABLE

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.queues.queue import QueueEntry


def count_published(call: Call, result: int) -> None:
    """A message was published; ``result`` is what ``publish`` says of it. The client is told."""
    metrics = call.broker.http
    metrics.messages_received += 1
    if result == UNROUTABLE:
        metrics.messages_unroutable += 1
    for account in call.accounts:
        account.traffic.published += 1
        account.traffic.returned += result == UNROUTABLE
        account.traffic.confirmed += result != REJECTED


def count_sent(call: Call, count: int) -> None:
    """So many messages were sent that nobody settles: live ones, and those of streams."""
    call.broker.http.messages_sent += count
    for account in call.accounts:
        account.traffic.delivered_settled += count


def count_delivered(call: Call, entry: QueueEntry) -> None:
    """A message of a queue was sent, to be settled unless it is so already."""
    _count_entry(call, entry)
    for account in call.accounts:
        account.traffic.delivered += not entry.is_settled
        account.traffic.delivered_settled += entry.is_settled


def count_got(call: Call, entries: list[QueueEntry], is_settled: bool) -> None:
    """Messages of a queue were taken without a consumer, settled or put back, if there were any."""
    for entry in entries:
        _count_entry(call, entry)
    for account in call.accounts:
        account.traffic.got_nothing += not entries
        account.traffic.got += 0 if is_settled else len(entries)
        account.traffic.got_settled += len(entries) if is_settled else 0


def _count_entry(call: Call, entry: QueueEntry) -> None:
    metrics = call.broker.http
    metrics.messages_sent += 1
    metrics.messages_redelivered += entry.is_redelivered
    for account in call.accounts:
        account.traffic.redelivered += entry.is_redelivered


def count_acknowledged(call: Call, count: int) -> None:
    """The client has acknowledged so many."""
    for account in call.accounts:
        account.traffic.acknowledged += count
