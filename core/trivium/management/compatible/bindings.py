"""``bindings``, from exchanges to queues, streams and exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_plus

from trivium.errors import NotFound
from trivium.management import views
from trivium.management.calls import NOT_FOUND, Call
from trivium.management.compatible import shown
from trivium.management.endpoints import ENTERED, Endpoint
from trivium.management.listing import Listing, by_path
from trivium.management.topology import bind, unbind
from trivium.management.values import table_of, text_of
from trivium.management.views import BindingView
from trivium.observability.api import ApiAnswer
from trivium.queues.queue import Queue
from trivium.streams.stream import Stream

if TYPE_CHECKING:
    from trivium.routing.exchanges import Binding, Exchange
    from trivium.vhost.virtual_host import VirtualHost

#: What stands for the default exchange in a path.
DEFAULT: Final = "amq.default"


def exchange_name(text: str) -> str:
    """The name of an exchange by what stands for it in a path."""
    return "" if text == DEFAULT else text


def _order(view: BindingView) -> tuple[str, ...]:
    kind = "exchange" if view.is_to_exchange else "queue"
    # Names are looked at on pages: that of the source.
    return view.vhost, kind, view.destination, view.key.decode(errors="replace"), view.source


def _listed(call: Call, found: Iterable[BindingView | None]) -> ApiAnswer:
    return Listing(call, found, shown.binding, _order, value_of=by_path(shown.BINDING)).answer()


def bindings_from(vhost: VirtualHost, exchange: Exchange) -> Iterator[BindingView | None]:
    """Those that lead from an exchange to what has a name; None for another one."""
    if not exchange.name:
        for queue in views.queues_of(vhost):
            yield views.default_binding(vhost, queue.name)
        return
    for binding in exchange.bindings():
        yield views.view_binding(vhost, exchange.name, binding)


def _all(call: Call) -> Iterator[BindingView | None]:
    for vhost in call.vhosts():
        for exchange in list(vhost.exchanges.values()):
            yield from bindings_from(vhost, exchange)


def get_all(call: Call) -> ApiAnswer:
    """All that the caller may see."""
    return _listed(call, _all(call))


def bindings_to(call: Call, target: Queue | Stream | Exchange) -> ApiAnswer:
    """Those that lead to something."""
    is_to_exchange = not isinstance(target, Queue | Stream)
    vhost = call.vhost

    def found() -> Iterator[BindingView | None]:
        if not is_to_exchange:
            yield views.default_binding(vhost, target.name)
        for exchange in list(vhost.exchanges.values()):
            for view in bindings_from(vhost, exchange) if exchange.name else ():
                leads_there = (
                    view is not None
                    and view.destination == target.name
                    and view.is_to_exchange == is_to_exchange
                )
                yield view if leads_there else None

    return _listed(call, found())


def _ends(call: Call) -> tuple[str, str, bool]:
    """Source, destination, and whether that is an exchange. Raises NotFound."""
    vhost = call.vhost
    source = exchange_name(call.names["source"])
    is_to_exchange = "exchange" in call.names
    destination = exchange_name(call.names["exchange"]) if is_to_exchange else call.names["queue"]
    target = vhost.exchanges if is_to_exchange else {**vhost.queues, **vhost.streams}
    if source not in vhost.exchanges or destination not in target:
        raise NotFound(NOT_FOUND)
    return source, destination, is_to_exchange


def _between(call: Call) -> list[tuple[BindingView, Binding | None]]:
    """The bindings between the two things of the path; that of the default exchange is none that
    anybody has made."""
    source, destination, is_to_exchange = _ends(call)
    vhost = call.vhost
    if not source:
        if is_to_exchange:
            return []
        return [(views.default_binding(vhost, destination), None)]
    found: list[tuple[BindingView, Binding | None]] = []
    for binding in vhost.exchanges[source].bindings():
        if binding.destination.name == destination:
            view = views.view_binding(vhost, source, binding)
            if view is not None and view.is_to_exchange == is_to_exchange:
                found.append((view, binding))
    return found


def get_between(call: Call) -> ApiAnswer:
    """Those between two things."""
    return _listed(call, [view for view, _ in _between(call)])


def post(call: Call) -> None:
    """Bind. The answer says where the binding is."""
    source, destination, is_to_exchange = _ends(call)
    key = text_of(call.body, "routing_key", "").encode()
    arguments = table_of(call.body, "arguments")
    vhost = call.vhost
    binding, _ = bind(vhost, call.operator, source, destination, is_to_exchange, key, arguments)
    view = views.view_binding(vhost, source, binding)
    assert view is not None
    # Relative to the path of the request (RFC 3986, 5.2).
    parts = (call.names["exchange" if is_to_exchange else "queue"], shown.properties_key(view))
    place = "/".join(quote(part, safe="") for part in parts)
    call.answer_durably(ApiAnswer(201, headers={"Location": place}))


def _one(call: Call) -> tuple[BindingView, Binding | None]:
    """By its ``properties_key``, which has escapes of its own; or, where that is none's, by other
    escapes of the same; or without any: some clients put it into the path as it is shown (as in
    RabbitMQ). A plus there is a space: else it could be that of another binding."""
    wanted = call.names["key"]
    found = [(shown.properties_key(view), view, binding) for view, binding in _between(call)]
    readings: list[tuple[str, Callable[[str], str]]] = [
        (wanted, str),
        (unquote_plus(wanted), unquote_plus),
    ]
    if "+" not in wanted:
        readings.append((wanted, unquote_plus))
    for text, read in readings:
        for key, view, binding in found:
            if read(key) == text:
                return view, binding
    raise NotFound(NOT_FOUND)


def get_one(call: Call) -> ApiAnswer:
    """One."""
    return ApiAnswer(200, shown.binding(_one(call)[0]))


def delete(call: Call) -> None:
    """Unbind."""
    view, binding = _one(call)
    if binding is None:
        raise NotFound(NOT_FOUND)
    what = "exchange" if view.is_to_exchange else "queue"
    unbind(call.vhost, call.access, view.source, binding, what)
    call.gone()


_TO_QUEUE: Final = "bindings/{vhost}/e/{source}/q/{queue}"
_TO_EXCHANGE: Final = "bindings/{vhost}/e/{source}/e/{exchange}"

ENDPOINTS: Final = (
    Endpoint("GET", "bindings", get_all),
    Endpoint("GET", "bindings/{vhost}", get_all),
    *(
        endpoint
        for path in (_TO_QUEUE, _TO_EXCHANGE)
        for endpoint in (
            Endpoint("GET", path, get_between),
            Endpoint("POST", path, post, vhost=ENTERED),
            Endpoint("GET", path + "/{key}", get_one),
            Endpoint("DELETE", path + "/{key}", delete, vhost=ENTERED),
        )
    ),
)
