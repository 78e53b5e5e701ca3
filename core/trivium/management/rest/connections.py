"""Connections, their channels and consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Final

from trivium.errors import AccessRefused, NotFound
from trivium.management.rest.operations import Parameter, answer, asked, listed, operation
from trivium.management.rest.schema import About, Count, Name, Table, Time
from trivium.management.values import shown_table
from trivium.management.views import (
    find_connection,
    view_channels,
    view_connection,
    view_consumers,
)
from trivium.observability.api import ApiAnswer
from trivium.runtime.adapter import connection_name

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.management.views import ChannelView, ConsumerView
    from trivium.runtime.adapter import Connection as CoreConnection

_Limit = Annotated[int, About(text="0 is any number", least=0)]


@dataclass(frozen=True, slots=True)
class ConnectionCounters:
    """What a connection has counted."""

    published: Count
    confirmed: Count
    returned: Count
    unroutable: Count
    delivered: Count
    delivered_settled: Count
    redelivered: Count
    acknowledged: Count
    bytes_received: Count
    bytes_sent: Count


@dataclass(frozen=True, slots=True)
class Connection:
    """A client's connection."""

    name: str
    protocol: str
    listener: Name
    vhost: str
    user: Annotated[str, About(text='"" is nobody')]
    state: str
    address: Annotated[str, About(text="of the client")]
    port: Count
    tls: bool
    connected_at: Time
    channels: Count
    client: Annotated[Table, About(text="what it says of itself")]
    counters: ConnectionCounters


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of a connection."""

    connection: str
    number: Count
    vhost: str
    user: str
    consumers: Count
    unsettled: Count
    unconfirmed: Count
    uncommitted: Count
    consumer_limit: _Limit
    limit: _Limit
    confirms: bool
    transactional: bool


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer of a queue or stream."""

    tag: str
    queue: str
    vhost: str
    connection: str
    channel: Annotated[int, About(text="0 where its protocol has none", least=0)]
    user: str
    acknowledges: bool
    exclusive: bool
    active: bool
    limit: _Limit
    arguments: Table


_Text = Annotated[str, About(longest=1024)]
_CONNECTION: Final = Parameter("connection", _Text, "only those of the connection of this name")
_VHOST: Final = Parameter("vhost", _Text, "only those in this virtual host")
_QUEUE: Final = Parameter("queue", _Text, "only those of what has this name")


def _seen(call: Call) -> list[CoreConnection]:
    """The connections that are in, and that the caller may see."""
    vhost = call.vhost.name if "vhost" in call.names else None
    own = None if call.watches else call.identity.name
    return [
        connection
        for connection in call.broker.connections
        if connection.login is not None
        and vhost in (None, connection.access.vhost)
        and own in (None, connection.identity.name)
    ]


def _view(call: Call, connection: CoreConnection) -> Connection | None:
    if connection not in call.broker.connections:
        return None
    view = view_connection(call.broker, connection)
    traffic = connection.traffic
    return Connection(
        name=view.name,
        protocol=view.about.protocol,
        listener=view.listener,
        vhost=view.vhost,
        user=view.user,
        state=view.about.state,
        address=view.peer_host,
        port=view.peer_port,
        tls=view.has_tls,
        connected_at=view.connected_ms,
        channels=view.about.channels,
        client=shown_table(view.about.client),
        counters=ConnectionCounters(
            traffic.published,
            traffic.confirmed,
            traffic.returned,
            traffic.unroutable,
            traffic.delivered,
            traffic.delivered_settled,
            traffic.redelivered,
            traffic.acknowledged,
            traffic.bytes_received,
            traffic.bytes_sent,
        ),
    )


#: Fields that lists of very many connections are sorted by.
_VALUES: Final[Mapping[str, Callable[[CoreConnection], object]]] = {
    "listener": attrgetter("peer.listener.name"),
    "vhost": attrgetter("access.vhost"),
    "user": attrgetter("identity.name"),
    "connected_at": attrgetter("connected_ms"),
    **{
        f"counters.{field.name}": attrgetter(f"traffic.{field.name}")
        for field in fields(ConnectionCounters)
    },
}


def list_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    return listed(
        call,
        _seen(call),
        lambda connection: _view(call, connection),
        lambda connection: (connection_name(connection),),
        values=_VALUES,
    )


def _found(call: Call) -> CoreConnection:
    found = find_connection(call.broker, call.names["connection"])
    if found is None or found.login is None:
        raise NotFound("no such connection")
    if not call.watches and found.identity.name != call.identity.name:
        raise AccessRefused("it is another user's")
    return found


def show(call: Call) -> ApiAnswer:
    """One."""
    return answer(_view(call, _found(call)))


def close(call: Call) -> ApiAnswer:
    """Close one; the header ``X-Reason`` says why."""
    found = _found(call)
    call.end(found, call.request.reason or "closed by an operator")
    return ApiAnswer(204)


def _asked_for(call: Call) -> list[CoreConnection]:
    """Those of them that the query names."""
    name, vhost = asked(call, _CONNECTION, None), asked(call, _VHOST, None)
    return [
        connection
        for connection in _seen(call)
        if vhost in (None, connection.access.vhost)
        and (name is None or name == connection_name(connection))
    ]


def _channels(call: Call) -> Iterator[ChannelView]:
    for connection in _asked_for(call):
        yield from view_channels(call.broker, connection)


def channels(call: Call) -> ApiAnswer:
    """Those of connections that the caller may see."""

    def view_channel(view: ChannelView) -> Channel:
        about = view.about
        return Channel(
            connection=view.connection.name,
            number=about.number,
            vhost=view.connection.vhost,
            user=view.connection.user,
            consumers=about.consumers,
            unsettled=about.unsettled,
            unconfirmed=about.unconfirmed,
            uncommitted=about.uncommitted,
            consumer_limit=about.consumer_limit,
            limit=about.limit,
            confirms=about.confirms,
            transactional=about.transactional,
        )

    return listed(
        call,
        _channels(call),
        view_channel,
        lambda view: (f"{view.about.number:05}", view.connection.name),
    )


def _consumers(call: Call) -> Iterator[ConsumerView]:
    for connection in _asked_for(call):
        yield from view_consumers(call.broker, connection)


def consumers(call: Call) -> ApiAnswer:
    """Those of connections that the caller may see."""
    queue = asked(call, _QUEUE, None)

    def view_consumer(view: ConsumerView) -> Consumer:
        about = view.about
        return Consumer(
            tag=about.tag,
            queue=about.queue,
            vhost=view.connection.vhost,
            connection=view.connection.name,
            channel=about.channel,
            user=view.connection.user,
            acknowledges=about.acknowledges,
            exclusive=view.exclusive,
            active=view.active,
            limit=about.limit,
            arguments=shown_table(about.arguments),
        )

    return listed(
        call,
        _consumers(call),
        view_consumer,
        lambda view: (view.connection.vhost, view.about.tag, view.about.queue),
        lambda view: queue in (None, view.about.queue),
    )


_ONE: Final = "connections/{connection}"
_IN_VHOST: Final = "vhosts/{vhost}/connections"

ENDPOINTS: Final = (
    operation("GET", "connections", list_all, "Connections", result=Connection, is_list=True),
    operation("GET", _IN_VHOST, list_all, "Those in a vhost", result=Connection, is_list=True),
    operation("GET", _ONE, show, "A connection", result=Connection),
    operation("DELETE", _ONE, close, "Close a connection", statuses=(204,)),
    operation(
        "GET",
        "channels",
        channels,
        "Channels",
        result=Channel,
        is_list=True,
        query=(_CONNECTION, _VHOST),
    ),
    operation(
        "GET",
        "consumers",
        consumers,
        "Consumers",
        result=Consumer,
        is_list=True,
        query=(_CONNECTION, _VHOST, _QUEUE),
    ),
)
