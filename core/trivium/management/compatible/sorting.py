"""What lists of very many things are sorted by, found without describing each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium.management.compatible.shown import CHANNEL, NODE, Fields, figures_of
from trivium.management.figures import (
    BYTES,
    LENGTHS,
    lengths_of,
    of_connection,
    of_exchange,
    of_traffic,
)
from trivium.management.listing import ValueOf, by_path
from trivium.management.values import shown_table
from trivium.management.views import arguments_of, unused_ms
from trivium.queues.arguments import CLASSIC, STREAM, queue_type
from trivium.queues.queue import Queue
from trivium.runtime.adapter import Connection
from trivium.vhost.policies import EXCHANGES, STREAMS, InForce, kind_of

if TYPE_CHECKING:
    from trivium.management.compatible.stats import Stats
    from trivium.management.views import ChannelView
    from trivium.routing.exchanges import Exchange
    from trivium.streams.stream import Stream
    from trivium.vhost.virtual_host import VirtualHost

_QueueItem = tuple["VirtualHost", "Queue | Stream"]
_ExchangeItem = tuple["VirtualHost", "Exchange"]


def _policies(item: _QueueItem) -> InForce:
    vhost, found = item
    kind = kind_of(found.arguments) if isinstance(found, Queue) else STREAMS
    return vhost.policies.in_force(found.name, kind)


def _kind(item: _QueueItem) -> str:
    found = item[1]
    return queue_type(found.arguments) or CLASSIC if isinstance(found, Queue) else STREAM


_QUEUE: Final[Fields[_QueueItem]] = {
    "type": _kind,
    "node": lambda _: NODE,
    "state": lambda _: "running",
    "durable": lambda item: not isinstance(item[1], Queue) or item[1].durable,
    "auto_delete": lambda item: isinstance(item[1], Queue) and item[1].auto_delete,
    "exclusive": lambda item: isinstance(item[1], Queue) and isinstance(item[1].owner, Connection),
    "message_bytes_ready": lambda item: item[1].ready.bytes if isinstance(item[1], Queue) else 0,
    "consumers": lambda item: item[1].consumers.present() if isinstance(item[1], Queue) else 0,
    "arguments": lambda item: shown_table(arguments_of(item[1])),
    "policy": lambda item: _policies(item).name,
    "operator_policy": lambda item: _policies(item).operator_name,
}

_EXCHANGE: Final[Fields[_ExchangeItem]] = {
    "type": lambda item: item[1].kind,
    "durable": lambda item: item[1].durable,
    "auto_delete": lambda item: item[1].auto_delete,
    "internal": lambda item: item[1].internal,
    "arguments": lambda item: shown_table(item[1].arguments),
    "policy": lambda item: (
        item[0].policies.in_force(item[1].name, EXCHANGES).name if item[1].name else None
    ),
}

_CONNECTION: Final[Fields[Connection]] = {
    "node": lambda _: NODE,
    "type": lambda _: "network",
    "vhost": lambda connection: connection.access.vhost,
    "user": lambda connection: connection.identity.name,
    "user_who_performed_action": lambda connection: connection.identity.name,
    "protocol": lambda connection: connection.managed().describe().protocol,
    "state": lambda connection: connection.managed().describe().state,
    "channels": lambda connection: connection.managed().describe().channels,
    "ssl": lambda connection: connection.peer.listener.config.tls is not None,
    "listener": lambda connection: connection.peer.listener.name,
    "connected_at": lambda connection: connection.connected_ms,
    "recv_cnt": lambda connection: connection.traffic.reads,
    "send_cnt": lambda connection: connection.traffic.writes,
    "send_pend": lambda connection: connection.transport.unsent(),
}


def _unused_ms(item: Queue | Stream) -> int:
    return unused_ms(item) if isinstance(item, Queue) else 0


def value_of_queues(stats: Stats) -> ValueOf[_QueueItem]:
    """Of queues and streams."""
    known = by_path(_QUEUE)

    def value_of(path: str) -> Callable[[_QueueItem], object] | None:
        length = stats.figure(path, LENGTHS)
        if length is not None:
            return lambda item: length(item[1], lengths_of(item[1]))
        figure = stats.message_figure(path)
        if figure is not None:
            return lambda item: figure(item[1], figures_of(item[1]))
        if path == "idle_since":
            return lambda item: _unused_ms(item[1]) or stats.idle_since(item[1]) or None
        return known(path)

    return value_of


def value_of_exchanges(stats: Stats) -> ValueOf[_ExchangeItem]:
    """Of exchanges."""
    known = by_path(_EXCHANGE)

    def value_of(path: str) -> Callable[[_ExchangeItem], object] | None:
        figure = stats.message_figure(path)
        if figure is None:
            return known(path)
        return lambda item: figure(item[1], of_exchange(item[1]))

    return value_of


def value_of_connections(stats: Stats) -> ValueOf[Connection]:
    """Of connections."""
    known = by_path(_CONNECTION)

    def value_of(path: str) -> Callable[[Connection], object] | None:
        figure = stats.figure(path, BYTES)
        if figure is None:
            return known(path)
        return lambda item: figure(item, of_connection(item.traffic))

    return value_of


def value_of_channels(stats: Stats) -> ValueOf[ChannelView]:
    """Of channels."""
    known = by_path(CHANNEL)

    def value_of(path: str) -> Callable[[ChannelView], object] | None:
        if path == "idle_since":
            return lambda view: stats.idle_since((view.source, view.about.number)) or None
        figure = stats.message_figure(path)
        if figure is None:
            return known(path)
        return lambda view: figure((view.source, view.about.number), of_traffic(view.about.traffic))

    return value_of
