"""Exchanges and bindings. In a path ``amq.default`` is the default exchange."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from trivium.common.values import same
from trivium.errors import NotFound
from trivium.management.endpoints import ENTERED, BadRequest
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
from trivium.management.topology import (
    bind,
    declare_exchange,
    delete_exchange,
    may_unbind,
    unbind,
)
from trivium.management.values import shown_table
from trivium.management.views import (
    default_binding,
    find_queue,
    queues_of,
    view_binding,
    view_exchange,
    view_subscription,
)
from trivium.observability.api import ApiAnswer
from trivium.security.permissions import DEFAULT_EXCHANGE

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.management.views import BindingView
    from trivium.routing.exchanges import Exchange as CoreExchange
    from trivium.vhost.virtual_host import VirtualHost

_Kind = Literal["exchange", "queue"]
_Text = Annotated[str, About(longest=255)]


@dataclass(frozen=True, slots=True)
class ExchangeCounters:
    """What an exchange has counted since the start."""

    published: Count
    routed: Annotated[int, About(text="messages, once for each destination", least=0)]
    unroutable: Count


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange; the default one has an empty name."""

    vhost: Name
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table
    policy: str | None
    counters: ExchangeCounters


@dataclass(frozen=True, slots=True)
class ExchangeDeclaration:
    """An exchange that is to be there."""

    type: Annotated[str, About(text="direct, fanout, topic, headers, ...", longest=255)] = "topic"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Annotated[Table, About(text="such as alternate-exchange")] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class Binding:
    """What leads from an exchange to a queue, a stream or an exchange."""

    vhost: Name
    source: str
    destination: str
    destination_kind: _Kind
    destination_type: Annotated[
        Literal["exchange", "queue", "stream", "session"],
        About(text="of a session `destination` is the client, for who watches"),
    ]
    key: Annotated[str, About(text="what is no text is replaced; see `key_base64`")]
    key_base64: str
    is_filter: Annotated[bool, About(text="whether `key` is a topic filter of a session")]
    arguments: Table
    is_removable: Annotated[bool, About(text="whether the caller may remove it")]


@dataclass(frozen=True, slots=True)
class BindingDeclaration:
    """A binding that is to be there, or not to be."""

    source: Annotated[str, About(shortest=1, longest=255)]
    destination: Annotated[str, About(shortest=1, longest=255)]
    destination_kind: _Kind = "queue"
    key: _Text = ""
    key_base64: Annotated[str | None, About(text="in place of `key`", longest=344)] = None
    arguments: Annotated[Table, About(text="such as x-match")] = field(default_factory=dict)


_IF_UNUSED: Final = Parameter("if_unused", bool, "only where nothing is bound to it")
# Sessions have longer names than others.
_Destination = Annotated[str, About(longest=65_535)]
_SOURCE: Final = Parameter("source", _Text, "only those from this exchange")
_DESTINATION: Final = Parameter("destination", _Destination, "only those to what has this name")

_Item = tuple["VirtualHost", "CoreExchange"]


def _view(item: _Item) -> Exchange:
    view = view_exchange(*item)
    counters = item[1].counters
    return Exchange(
        vhost=view.vhost,
        name=view.name,
        type=view.kind,
        durable=view.durable,
        auto_delete=view.auto_delete,
        internal=view.internal,
        arguments=shown_table(view.arguments),
        policy=view.policy,
        counters=ExchangeCounters(counters.published, counters.routed, counters.unroutable),
    )


def _list(call: Call) -> Iterator[_Item]:
    for vhost in call.vhosts():
        for exchange in list(vhost.exchanges.values()):
            yield vhost, exchange


#: Fields that lists of very many exchanges are sorted by.
_VALUES: Final[Mapping[str, Callable[[Any], object]]] = {
    "type": lambda item: item[1].kind,
    "durable": lambda item: item[1].durable,
    "counters.published": lambda item: item[1].counters.published,
    "counters.routed": lambda item: item[1].counters.routed,
}


def list_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    return listed(
        call,
        _list(call),
        _view,
        lambda item: (item[0].name, item[1].name),
        values=_VALUES,
    )


def _name(text: str) -> str:
    return "" if text == DEFAULT_EXCHANGE else text


def show(call: Call) -> ApiAnswer:
    """One."""
    vhost = call.vhost
    return answer(_view((vhost, vhost.exchange(_name(call.names["exchange"])))))


def declare(call: Call) -> None:
    """Have one; one that is there must be the same."""
    wanted = body_of(call, ExchangeDeclaration)
    is_new = declare_exchange(
        call.vhost,
        call.operator,
        _name(call.names["exchange"]),
        wanted.type,
        wanted.durable,
        wanted.auto_delete,
        wanted.internal,
        call.table(wanted.arguments),
    )
    call.created(is_new)


def _is_there(call: Call) -> bool:
    return _name(call.names["exchange"]) in call.vhost.exchanges


def delete(call: Call) -> None:
    """Delete one with its bindings."""
    vhost = call.vhost
    name = _name(call.names["exchange"])
    if name not in vhost.exchanges:
        raise NotFound(f"no exchange '{name}' in vhost '{vhost.name}'")
    delete_exchange(vhost, call.access, name, asked(call, _IF_UNUSED, False))
    call.gone()


def _bindings_in(
    call: Call, vhost: VirtualHost, source: str | None, destination: str | None
) -> Iterator[BindingView]:
    """Those of a virtual host; where a source or a destination is wanted those of others are passed
    over as far as that takes no look at them."""
    for exchange in list(vhost.exchanges.values()):
        if source not in (None, exchange.name):
            continue
        if not exchange.name:
            if destination is None:
                for queue in queues_of(vhost):
                    yield default_binding(vhost, queue.name)
            elif find_queue(vhost, destination) is not None:
                yield default_binding(vhost, destination)
            continue
        for each in exchange.bindings():
            view = view_binding(vhost, exchange.name, each)
            if view is None and call.watches:
                view = view_subscription(vhost, exchange.name, each)
            if view is not None:
                yield view


def _view_binding(call: Call, view: BindingView) -> Binding:
    kind: Any = view.kind
    is_removable = may_unbind(call.vhost, call.access, view.source, view.destination, view.key)
    return Binding(
        vhost=view.vhost,
        source=view.source,
        destination=view.destination,
        destination_kind="exchange" if view.is_to_exchange else "queue",
        destination_type=kind,
        key=view.key.decode(errors="replace"),
        key_base64=base64.b64encode(view.key).decode(),
        is_filter=view.is_filter,
        arguments=shown_table(view.arguments),
        is_removable=is_removable and not view.is_filter,
    )


#: The same of bindings.
_BINDING_VALUES: Final[Mapping[str, Callable[[BindingView], object]]] = {
    "source": attrgetter("source"),
    "destination": attrgetter("destination"),
    "destination_type": attrgetter("kind"),
    "key": lambda view: view.key.decode(errors="replace"),
}


def bindings(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    source, destination = asked(call, _SOURCE, None), asked(call, _DESTINATION, None)
    if source is not None:
        source = _name(source)
    every = (
        view for vhost in call.vhosts() for view in _bindings_in(call, vhost, source, destination)
    )
    return listed(
        call,
        every,
        lambda view: _view_binding(call, view),
        lambda view: (view.vhost, view.source, view.key.decode(errors="replace"), view.destination),
        lambda view: source in (None, view.source) and destination in (None, view.destination),
        values=_BINDING_VALUES,
    )


def _key_of(wanted: BindingDeclaration) -> bytes:
    if wanted.key_base64 is None:
        return wanted.key.encode()
    try:
        return base64.b64decode(wanted.key_base64, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("'key_base64' is no base64") from None


def make_binding(call: Call) -> None:
    """Bind; what is bound already stays so."""
    wanted = body_of(call, BindingDeclaration)
    _, is_new = bind(
        call.vhost,
        call.operator,
        wanted.source,
        wanted.destination,
        wanted.destination_kind == "exchange",
        _key_of(wanted),
        call.table(wanted.arguments),
    )
    call.created(is_new)


def remove_binding(call: Call) -> None:
    """Unbind."""
    wanted = body_of(call, BindingDeclaration)
    vhost = call.vhost
    key = _key_of(wanted)
    arguments = call.table(wanted.arguments)
    is_to_exchange = wanted.destination_kind == "exchange"
    for each in vhost.exchange(wanted.source).bindings():
        view = view_binding(vhost, wanted.source, each)
        if (
            view is not None
            and (view.destination, view.is_to_exchange) == (wanted.destination, is_to_exchange)
            and (view.key, view.is_filter) == (key, False)
            and same(dict(view.arguments), arguments)
        ):
            unbind(vhost, call.access, wanted.source, each, wanted.destination_kind)
            call.gone()
            return
    raise NotFound("no such binding")


_BINDINGS: Final = "vhosts/{vhost}/bindings"

ENDPOINTS: Final = (
    *declared(
        "exchange",
        (list_all, show, declare, delete),
        ExchangeDeclaration,
        Exchange,
        _is_there,
        (_IF_UNUSED,),
    ),
    operation(
        "GET",
        _BINDINGS,
        bindings,
        "Bindings",
        result=Binding,
        is_list=True,
        query=(_SOURCE, _DESTINATION),
    ),
    operation(
        "POST",
        _BINDINGS,
        make_binding,
        "Bind",
        vhost=ENTERED,
        body=BindingDeclaration,
        statuses=(201, 204),
    ),
    operation(
        "POST",
        _BINDINGS + "/delete",
        remove_binding,
        "Unbind",
        vhost=ENTERED,
        body=BindingDeclaration,
        statuses=(204,),
    ),
)
