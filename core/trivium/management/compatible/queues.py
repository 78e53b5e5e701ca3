"""``queues``: queues and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.errors import NotFound
from trivium.management import views
from trivium.management.calls import NOT_FOUND, BadRequest, Call
from trivium.management.compatible import shown
from trivium.management.compatible.bindings import bindings_to
from trivium.management.compatible.sorting import value_of_queues
from trivium.management.compatible.stats import Stats
from trivium.management.endpoints import ENTERED, Endpoint
from trivium.management.figures import lengths_of
from trivium.management.listing import Listing, Slices, ValueOf, only_columns
from trivium.management.orders import in_order
from trivium.management.topology import declare_queue, delete_queue, purge_queue
from trivium.management.values import encode, flag_of, table_of
from trivium.observability.api import ApiAnswer
from trivium.queues.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trivium.management.views import ConsumerView
    from trivium.streams.stream import Stream
    from trivium.vhost.virtual_host import VirtualHost

_Item = tuple["VirtualHost", "Queue | Stream"]


def _all(call: Call) -> Iterator[_Item]:
    for vhost in call.vhosts():
        for queue in views.queues_of(vhost):
            yield vhost, queue


def _order(item: _Item) -> tuple[str, ...]:
    return item[0].name, item[1].name


def get_all(call: Call) -> ApiAnswer:
    """All that the caller may see. ``disable_stats`` leaves out what takes longer, and then
    ``enable_queue_totals`` adds how many messages there are."""
    if not call.asks("disable_stats"):
        return get_detailed(call)
    has_totals = call.asks("enable_queue_totals")

    def describe(item: _Item) -> dict[str, object] | None:
        if item[1].is_deleted:
            return None
        view = views.view_queue(*item)
        found = shown.queue_basics(view)
        return found | lengths_of(item[1]) if has_totals else found

    return _listed(call, describe, None)


def _listed(
    call: Call,
    describe: Callable[[_Item], dict[str, object] | None],
    value_of: ValueOf[_Item] | None,
) -> ApiAnswer:
    return Listing(
        call,
        _all(call),
        describe,
        _order,
        in_order=lambda: in_order(call, True),
        value_of=value_of,
    ).answer()


def get_detailed(call: Call) -> ApiAnswer:
    """All that the caller may see, with all there is to say."""
    stats = Stats(call)

    def describe(item: _Item) -> dict[str, object] | None:
        if item[1].is_deleted:
            return None
        return shown.queue(views.view_queue(*item), item[1], stats)

    return _listed(call, describe, value_of_queues(stats))


def _found(call: Call) -> Queue | Stream:
    found = views.find_queue(call.vhost, call.names["name"])
    if found is None:
        raise NotFound(NOT_FOUND)
    return found


def get_one(call: Call) -> ApiAnswer:
    """One, with its consumers."""
    return ApiAnswer(200, parts=_described(call, call.vhost, _found(call), Stats(call)))


def _described(
    call: Call, vhost: VirtualHost, found: Queue | Stream, stats: Stats
) -> Iterator[bytes]:
    """A queue or stream. The consumers of a stream are looked for among all connections."""
    broker = call.broker
    slices = Slices()
    consumers: list[ConsumerView] = []
    if isinstance(found, Queue):
        consumers = views.view_consumers_of(broker, vhost, found)
    else:
        for connection in list(broker.connections):
            if connection.access.vhost == vhost.name:
                every = views.view_consumers(broker, connection)
                consumers += [each for each in every if each.about.queue == found.name]
            if slices.is_over:
                yield b""
                slices.begin()
    view = views.view_queue(vhost, found)
    described = shown.queue(view, found, stats)
    described["consumers"] = len(consumers)
    described["consumer_details"] = [shown.consumer(consumer) for consumer in consumers]
    # By which channels and exchanges is not counted (rates mode basic).
    described |= {"deliveries": [], "incoming": []}
    if view.owner is not None:
        owner = views.view_connection(broker, view.owner)
        described["owner_pid_details"] = shown.connection_details(owner)
    yield encode(only_columns(call, described))


def put(call: Call) -> None:
    """Declare one; one that is there must be the same."""
    body = call.body
    is_new = declare_queue(
        call.vhost,
        call.operator,
        call.names["name"],
        flag_of(body, "durable"),
        flag_of(body, "auto_delete"),
        table_of(body, "arguments"),
    )
    call.created(is_new)


def delete(call: Call) -> None:
    """Delete one."""
    _found(call)
    delete_queue(
        call.vhost,
        call.access,
        call.names["name"],
        call.asks("if-unused"),
        call.asks("if-empty"),
    )
    call.gone()


def purge(call: Call) -> None:
    """Remove the messages that are ready."""
    purge_queue(call.vhost, call.access, _found(call).name)
    call.gone()


def get_bindings(call: Call) -> ApiAnswer:
    """Those that lead to it."""
    return bindings_to(call, _found(call))


def act(call: Call) -> ApiAnswer:
    """``sync`` and ``cancel_sync``, which have nothing to do where nothing is mirrored."""
    _found(call)
    if call.body.get("action") not in ("sync", "cancel_sync"):
        raise BadRequest("'action' is 'sync' or 'cancel_sync'")
    return ApiAnswer(204)


ENDPOINTS: Final = (
    Endpoint("GET", "queues", get_all),
    Endpoint("GET", "queues/detailed", get_detailed),
    Endpoint("GET", "queues/{vhost}", get_all),
    Endpoint("GET", "queues/{vhost}/{name}", get_one),
    Endpoint("PUT", "queues/{vhost}/{name}", put, vhost=ENTERED),
    Endpoint("DELETE", "queues/{vhost}/{name}", delete, vhost=ENTERED),
    Endpoint("GET", "queues/{vhost}/{name}/bindings", get_bindings),
    Endpoint("DELETE", "queues/{vhost}/{name}/contents", purge, vhost=ENTERED),
    Endpoint("POST", "queues/{vhost}/{name}/actions", act, vhost=ENTERED),
)
