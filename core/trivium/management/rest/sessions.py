"""What outlives the connections of clients: sessions, their subscriptions, what they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from trivium.errors import AccessRefused, NotFound
from trivium.management.endpoints import WATCHED
from trivium.management.rest.operations import answer, listed, operation
from trivium.management.rest.schema import About, Count, Name
from trivium.observability.api import ApiAnswer

if TYPE_CHECKING:
    from trivium.common.descriptions import (
        SessionDescription,
        ShareDescription,
        SubscriptionDescription,
    )
    from trivium.management.calls import Call
    from trivium.runtime.adapter import Adapter
    from trivium.vhost.virtual_host import VirtualHost

_Qos = Annotated[int, About(text="the highest that it wants", least=0, most=2)]


@dataclass(frozen=True, slots=True)
class Session:
    """What is kept of a client."""

    vhost: Name
    client_id: str
    user: Annotated[str, About(text='"" is nobody')]
    is_connected: bool
    expiry_seconds: Annotated[int, About(text="that it outlives its connection", least=0)]
    subscriptions: Count
    queue: Annotated[str | None, About(text="of what waits for the client")]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a session has subscribed to."""

    vhost: Name
    client_id: str
    filter: str
    qos: _Qos
    share: Annotated[str | None, About(text="name of the share that it is in")]


@dataclass(frozen=True, slots=True)
class Share:
    """Sessions that share a subscription: each message goes to one of them."""

    vhost: Name
    name: str
    filter: str
    members: list[str]


def _adapters(call: Call) -> list[Adapter]:
    return list(call.broker.adapters.values())


def _is_seen(call: Call, about: SessionDescription) -> bool:
    """Whether the caller may see a session: its own, or all."""
    return call.watches or about.user == call.identity.name


def _view(vhost: VirtualHost, about: SessionDescription) -> Session:
    return Session(
        vhost.name,
        about.client_id,
        about.user,
        about.is_connected,
        about.expiry,
        about.subscriptions,
        about.queue or None,
    )


def list_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""

    def every() -> Iterator[tuple[VirtualHost, SessionDescription]]:
        for vhost in call.vhosts():
            for adapter in _adapters(call):
                for about in adapter.describe_sessions(vhost):
                    yield vhost, about

    return listed(
        call,
        every(),
        lambda item: _view(*item),
        lambda item: (item[0].name, item[1].client_id),
        lambda item: _is_seen(call, item[1]),
    )


def _found(call: Call) -> tuple[Adapter, SessionDescription]:
    client_id = call.names["client_id"]
    for adapter in _adapters(call):
        about = adapter.describe_session(call.vhost, client_id)
        if about is not None:
            if not _is_seen(call, about):
                raise AccessRefused("it is another user's")
            return adapter, about
    raise NotFound(f"no session of '{client_id}'")


def show(call: Call) -> ApiAnswer:
    """One."""
    return answer(_view(call.vhost, _found(call)[1]))


def end(call: Call) -> None:
    """Forget one, and close its connection; its will is published."""
    adapter, about = _found(call)
    call.require_own(about.user)
    adapter.end_session(call.vhost, about.client_id)
    call.vhost.tell("session.ended", session=about.client_id, owner=about.user)
    call.gone()


def subscriptions(call: Call) -> ApiAnswer:
    """Those of one."""
    adapter, about = _found(call)
    vhost = call.vhost
    found: Iterable[SubscriptionDescription] = adapter.describe_subscriptions(
        vhost, about.client_id
    )
    return listed(
        call,
        found,
        lambda each: Subscription(
            vhost.name, each.client_id, each.topic_filter, each.qos, each.share or None
        ),
        lambda each: (each.share, each.topic_filter),
    )


def shares(call: Call) -> ApiAnswer:
    """What sessions share."""

    def every() -> Iterator[tuple[VirtualHost, ShareDescription]]:
        for vhost in call.vhosts():
            for adapter in _adapters(call):
                for about in adapter.describe_shares(vhost):
                    yield vhost, about

    return listed(
        call,
        every(),
        lambda item: Share(item[0].name, item[1].name, item[1].topic_filter, list(item[1].members)),
        lambda item: (item[0].name, item[1].topic_filter, item[1].name),
        lambda _: call.watches,
    )


_ALL: Final = "vhosts/{vhost}/sessions"
_ONE: Final = "vhosts/{vhost}/sessions/{client_id}"

ENDPOINTS: Final = (
    operation("GET", "sessions", list_all, "Sessions", result=Session, is_list=True),
    operation("GET", _ALL, list_all, "Those of a virtual host", result=Session, is_list=True),
    operation("GET", _ONE, show, "A session", vhost=WATCHED, result=Session),
    operation("DELETE", _ONE, end, "End a session", vhost=WATCHED, statuses=(204,)),
    operation(
        "GET",
        _ONE + "/subscriptions",
        subscriptions,
        "Its subscriptions",
        vhost=WATCHED,
        result=Subscription,
        is_list=True,
    ),
    operation(
        "GET",
        "vhosts/{vhost}/shared-subscriptions",
        shares,
        "Shared subscriptions",
        vhost=WATCHED,
        result=Share,
        is_list=True,
    ),
)
