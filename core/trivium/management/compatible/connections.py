"""``connections``, ``channels`` and ``consumers``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from trivium.errors import AccessRefused, NotFound
from trivium.management import views
from trivium.management.calls import NOT_FOUND, Call
from trivium.management.compatible import shown
from trivium.management.compatible.sorting import value_of_channels, value_of_connections
from trivium.management.compatible.stats import Stats
from trivium.management.endpoints import UNCHECKED, Endpoint
from trivium.management.listing import Listing, by_path
from trivium.observability.api import ApiAnswer
from trivium.runtime.adapter import connection_name

if TYPE_CHECKING:
    from trivium.management.views import ChannelView, ConsumerView
    from trivium.runtime.adapter import Connection

#: Why a connection is closed, where whoever closes it does not say.
_CLOSED: Final = "Closed via management plugin"


def _seen(call: Call) -> Iterator[Connection | None]:
    """The connections that are in, and that the caller may see; None for another one."""
    vhost = call.vhost.name if "vhost" in call.names else None
    user = call.names.get("user")
    own = None if call.watches else call.identity.name
    for connection in list(call.broker.connections):
        is_seen = (
            connection.login is not None
            and (vhost is None or connection.access.vhost == vhost)
            and user in (None, connection.identity.name)
            and own in (None, connection.identity.name)
        )
        yield connection if is_seen else None


def _name_of(connection: Connection) -> tuple[str, ...]:
    return (connection_name(connection),)


def get_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    broker = call.broker
    stats = Stats(call)

    def describe(connection: Connection) -> dict[str, object] | None:
        if connection not in broker.connections:
            return None
        return shown.connection(views.view_connection(broker, connection), connection, stats)

    return Listing(
        call, _seen(call), describe, _name_of, value_of=value_of_connections(stats)
    ).answer()


def get_of_user(call: Call) -> ApiAnswer:
    """Those of a user; of another one for those who may see them."""
    _require_own(call, call.names["user"])
    return get_all(call)


def _require_own(call: Call, user: str) -> None:
    if not call.watches and user != call.identity.name:
        raise AccessRefused("User not authorised to access object")


def _found(call: Call) -> Connection:
    found = views.find_connection(call.broker, call.names["name"])
    if found is None or found.login is None:
        raise NotFound(NOT_FOUND)
    _require_own(call, found.identity.name)
    return found


def get_one(call: Call) -> ApiAnswer:
    """One."""
    found = _found(call)
    view = views.view_connection(call.broker, found)
    return ApiAnswer(200, shown.connection(view, found, Stats(call)))


def close(call: Call) -> ApiAnswer:
    """Close one; the request says why."""
    found = _found(call)
    call.end(found, _reason(call))
    return ApiAnswer(204)


def close_of_user(call: Call) -> ApiAnswer:
    """Close all of a user."""
    call.require_own(call.names["user"])
    reason = _reason(call)
    for connection in _seen(call):
        if connection is not None:
            call.end(connection, reason)
    return ApiAnswer(204)


def _reason(call: Call) -> str:
    return call.request.reason or _CLOSED


def _channels(call: Call, connections: Iterable[Connection | None]) -> Iterator[ChannelView | None]:
    for connection in connections:
        yield None
        if connection is not None:
            yield from views.view_channels(call.broker, connection)


def get_channels(call: Call) -> ApiAnswer:
    """The channels of connections that the caller may see."""
    return _listed(call, _channels(call, _seen(call)))


def get_channels_of(call: Call) -> ApiAnswer:
    """The channels of a connection."""
    return _listed(call, _channels(call, [_found(call)]))


def _listed(call: Call, channels: Iterable[ChannelView | None]) -> ApiAnswer:
    stats = Stats(call)
    return Listing(
        call,
        channels,
        lambda view: shown.channel(view, stats),
        lambda view: (view.connection.name, f"{view.connection.name} ({view.about.number})"),
        value_of=value_of_channels(stats),
    ).answer()


def get_channel(call: Call) -> ApiAnswer:
    """One channel, with its consumers."""
    broker = call.broker
    name, _, number = call.names["name"].rpartition(" (")
    connection = views.find_connection(broker, name)
    if connection is None or connection.login is None:
        raise NotFound(NOT_FOUND)
    _require_own(call, connection.identity.name)
    for view in views.view_channels(broker, connection):
        if f"{view.about.number})" == number:
            consumers = views.view_consumers(broker, connection)
            details = [
                shown.consumer(found)
                for found in consumers
                if found.about.channel == view.about.number
            ]
            described = shown.channel(view, Stats(call))
            # Which of its queues and exchanges has what is not counted (rates mode basic).
            described |= {"consumer_details": details, "deliveries": [], "publishes": []}
            return ApiAnswer(200, described)
    raise NotFound(NOT_FOUND)


def get_consumers(call: Call) -> ApiAnswer:
    """The consumers of connections that the caller may see."""
    broker = call.broker
    if "vhost" in call.names:
        # It must be there, whoever asks.
        _ = call.vhost

    def found() -> Iterator[ConsumerView | None]:
        for connection in _seen(call):
            yield None
            if connection is not None:
                yield from views.view_consumers(broker, connection)

    return Listing(
        call,
        found(),
        shown.consumer,
        lambda view: (view.connection.vhost, view.about.queue, view.about.tag),
        value_of=by_path(shown.CONSUMER),
    ).answer()


ENDPOINTS: Final = (
    Endpoint("GET", "connections", get_all),
    Endpoint("GET", "connections/{name}", get_one),
    Endpoint("DELETE", "connections/{name}", close),
    Endpoint("GET", "connections/{name}/channels", get_channels_of),
    Endpoint("GET", "connections/username/{user}", get_of_user),
    Endpoint("DELETE", "connections/username/{user}", close_of_user),
    Endpoint("GET", "vhosts/{vhost}/connections", get_all),
    Endpoint("GET", "channels", get_channels),
    Endpoint("GET", "channels/{name}", get_channel),
    Endpoint("GET", "vhosts/{vhost}/channels", get_channels),
    Endpoint("GET", "consumers", get_consumers),
    Endpoint("GET", "consumers/{vhost}", get_consumers, vhost=UNCHECKED),
)
