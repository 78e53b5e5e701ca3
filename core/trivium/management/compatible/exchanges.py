"""``exchanges``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.errors import NotFound
from trivium.management import views
from trivium.management.calls import NOT_FOUND, Call
from trivium.management.compatible import shown
from trivium.management.compatible.bindings import bindings_from, bindings_to, exchange_name
from trivium.management.compatible.sorting import value_of_exchanges
from trivium.management.compatible.stats import Stats
from trivium.management.endpoints import ENTERED, Endpoint
from trivium.management.listing import Listing, by_path
from trivium.management.topology import declare_exchange, delete_exchange
from trivium.management.values import flag_of, table_of, text_of
from trivium.observability.api import ApiAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trivium.routing.exchanges import Exchange
    from trivium.vhost.virtual_host import VirtualHost

_Item = tuple["VirtualHost", "Exchange"]


def _all(call: Call) -> Iterator[_Item]:
    for vhost in call.vhosts():
        for exchange in list(vhost.exchanges.values()):
            yield vhost, exchange


def get_all(call: Call) -> ApiAnswer:
    """All that the caller may see."""
    stats = Stats(call)

    def describe(item: _Item) -> dict[str, object]:
        return shown.exchange(views.view_exchange(*item), item[1], stats)

    return Listing(
        call,
        _all(call),
        describe,
        lambda item: (item[0].name, item[1].name),
        value_of=value_of_exchanges(stats),
    ).answer()


def _found(call: Call) -> Exchange:
    found = call.vhost.exchanges.get(exchange_name(call.names["name"]))
    if found is None:
        raise NotFound(NOT_FOUND)
    return found


def get_one(call: Call) -> ApiAnswer:
    """One."""
    found = _found(call)
    view = views.view_exchange(call.vhost, found)
    described = shown.exchange(view, found, Stats(call))
    # By which channels and queues is not counted (rates mode basic).
    described |= {"incoming": [], "outgoing": []}
    return ApiAnswer(200, described)


def put(call: Call) -> None:
    """Declare one; one that is there must be the same."""
    body = call.body
    is_new = declare_exchange(
        call.vhost,
        call.operator,
        exchange_name(call.names["name"]),
        text_of(body, "type", "direct"),
        flag_of(body, "durable", True),
        flag_of(body, "auto_delete"),
        flag_of(body, "internal"),
        table_of(body, "arguments"),
    )
    call.created(is_new)


def delete(call: Call) -> None:
    """Delete one."""
    exchange = _found(call)
    delete_exchange(call.vhost, call.access, exchange.name, call.asks("if-unused"))
    call.gone()


def get_source_bindings(call: Call) -> ApiAnswer:
    """The bindings that lead from it."""
    found = bindings_from(call.vhost, _found(call))
    return Listing(
        call,
        found,
        shown.binding,
        lambda view: (view.vhost, view.destination, view.key.decode(errors="replace"), view.source),
        value_of=by_path(shown.BINDING),
    ).answer()


def get_destination_bindings(call: Call) -> ApiAnswer:
    """The bindings that lead to it."""
    return bindings_to(call, _found(call))


_ONE: Final = "exchanges/{vhost}/{name}"

ENDPOINTS: Final = (
    Endpoint("GET", "exchanges", get_all),
    Endpoint("GET", "exchanges/{vhost}", get_all),
    Endpoint("GET", _ONE, get_one),
    Endpoint("PUT", _ONE, put, vhost=ENTERED),
    Endpoint("DELETE", _ONE, delete, vhost=ENTERED),
    Endpoint("GET", _ONE + "/bindings/source", get_source_bindings),
    Endpoint("GET", _ONE + "/bindings/destination", get_destination_bindings),
)
