"""Queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Final

from trivium.errors import NotFound
from trivium.management.endpoints import ENTERED
from trivium.management.orders import in_order
from trivium.management.rest.operations import (
    Parameter,
    answer,
    asked,
    body_of,
    declared,
    listed,
    operation,
)
from trivium.management.rest.schema import About, Count, Name, Table
from trivium.management.topology import declare_queue, delete_queue, purge_queue
from trivium.management.values import shown_table
from trivium.management.views import view_queue
from trivium.observability.api import ApiAnswer
from trivium.queues.arguments import CLASSIC, queue_type
from trivium.queues.queue import Queue as CoreQueue
from trivium.runtime.adapter import connection_name
from trivium.vhost.policies import kind_of
from trivium.vhost.totals import totals_of

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.streams.stream import Stream
    from trivium.vhost.virtual_host import VirtualHost

_Counts = dict[str, Count]


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """What a queue has counted since the start."""

    published: Count
    refused: Annotated[int, About(text="messages, for want of room", least=0)]
    delivered: Annotated[int, About(text="to be acknowledged", least=0)]
    delivered_settled: Annotated[int, About(text="and settled thereby", least=0)]
    redelivered: Count
    got: Annotated[int, About(text="taken without a consumer", least=0)]
    got_settled: Count
    acknowledged: Count
    expired: Count
    dead_lettered: Annotated[_Counts, About(text="by reason")]
    dropped: Annotated[_Counts, About(text="by reason")]


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue."""

    vhost: Name
    name: Name
    type: str
    durable: bool
    auto_delete: bool
    owner: Annotated[str | None, About(text="the connection whose alone it is")]
    protocol: Annotated[str | None, About(text="whose own state it is, such as a session's")]
    arguments: Table
    policy: str | None
    operator_policy: str | None
    effective_policy: Annotated[Table, About(text="what both come to")]
    ready: Count
    ready_bytes: Count
    unsettled: Count
    consumers: Count
    counters: QueueCounters


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """A queue that is to be there."""

    durable: bool = True
    auto_delete: bool = False
    arguments: Annotated[Table, About(text="such as x-max-length, x-queue-type")] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class Purged:
    """What was removed."""

    messages: Count


_IF_UNUSED: Final = Parameter("if_unused", bool, "only where it has no consumers")
_IF_EMPTY: Final = Parameter("if_empty", bool, "only where it has no messages")

_Item = tuple["VirtualHost", "CoreQueue | Stream"]


def _counters(queue: CoreQueue) -> QueueCounters:
    totals = totals_of(queue)
    return QueueCounters(
        totals.published,
        totals.refused,
        totals.delivered,
        totals.delivered_settled,
        totals.redelivered,
        totals.got,
        totals.got_settled,
        totals.acknowledged,
        totals.expired,
        totals.dead_lettered,
        totals.dropped,
    )


def _list(call: Call) -> Iterator[_Item]:
    for vhost in call.vhosts():
        for queue in list(vhost.queues.values()):
            yield vhost, queue


def _view(call: Call, item: _Item) -> Queue | None:
    vhost, queue = item
    if queue.is_deleted or not isinstance(queue, CoreQueue):
        return None
    view = view_queue(vhost, queue)
    owner = None if view.owner is None else connection_name(view.owner)
    return Queue(
        vhost=view.vhost,
        name=view.name,
        type=view.kind,
        durable=view.durable,
        auto_delete=view.auto_delete,
        owner=owner,
        protocol=view.adapter or None,
        arguments=shown_table(view.arguments),
        policy=view.policies.name,
        operator_policy=view.policies.operator_name,
        effective_policy=shown_table(view.policies.definition),
        ready=view.ready,
        ready_bytes=view.ready_bytes,
        unsettled=view.unsettled,
        consumers=view.consumers,
        counters=_counters(queue),
    )


def _counter(name: str) -> Callable[[Any], object]:
    return lambda item: getattr(totals_of(item[1]), name)


#: Fields that lists of very many queues are sorted by.
VALUES: Final[Mapping[str, Callable[[Any], object]]] = {
    "type": lambda item: queue_type(item[1].arguments) or CLASSIC,
    "durable": lambda item: item[1].durable,
    "policy": lambda item: item[0].policies.in_force(item[1].name, kind_of(item[1].arguments)).name,
    "ready": lambda item: len(item[1]),
    "ready_bytes": lambda item: item[1].ready.bytes,
    "unsettled": lambda item: item[1].unsettled,
    "consumers": lambda item: item[1].consumers.present(),
    **{f"counters.{field.name}": _counter(field.name) for field in fields(QueueCounters)},
}


def list_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    return listed(
        call,
        _list(call),
        lambda item: _view(call, item),
        lambda item: (item[0].name, item[1].name),
        in_order=lambda: in_order(call, has_streams=False),
        values=VALUES,
    )


def _found(call: Call) -> CoreQueue:
    found = call.vhost.queues.get(call.names["queue"])
    if found is None:
        raise NotFound(f"no queue '{call.names['queue']}' in vhost '{call.vhost.name}'")
    return found


def show(call: Call) -> ApiAnswer:
    """One."""
    return answer(_view(call, (call.vhost, _found(call))))


def declare(call: Call) -> None:
    """Have one; one that is there must be the same."""
    wanted = body_of(call, QueueDeclaration)
    is_new = declare_queue(
        call.vhost,
        call.operator,
        call.names["queue"],
        wanted.durable,
        wanted.auto_delete,
        call.table(wanted.arguments),
    )
    call.created(is_new)


def delete(call: Call) -> None:
    """Delete one with its messages."""
    name = call.names["queue"]
    if_unused, if_empty = asked(call, _IF_UNUSED, False), asked(call, _IF_EMPTY, False)
    delete_queue(call.vhost, call.access, name, if_unused, if_empty)
    call.gone()


def _is_there(call: Call) -> bool:
    return call.names["queue"] in call.vhost.queues


def purge(call: Call) -> None:
    """Remove the messages that are ready."""
    count = purge_queue(call.vhost, call.access, call.names["queue"])
    call.answer_durably(answer(Purged(count)))


_ONE: Final = "vhosts/{vhost}/queues/{queue}"

ENDPOINTS: Final = (
    *declared(
        "queue",
        (list_all, show, declare, delete),
        QueueDeclaration,
        Queue,
        _is_there,
        (_IF_UNUSED, _IF_EMPTY),
    ),
    operation(
        "DELETE",
        _ONE + "/contents",
        purge,
        "Remove its messages that are ready",
        vhost=ENTERED,
        result=Purged,
    ),
)
