"""The exchanges that every virtual host has, without a declaration."""

from __future__ import annotations

from typing import Final

from trivium.messages.message import Address, Message
from trivium.routing.exchanges import (
    Binding,
    Destination,
    DirectExchange,
    Exchange,
    make_exchange,
)
from trivium.streams.namespace import StreamNamespace

#: Those with a name, and their types (AMQP 0-9-1, 3.1.3).
PREDECLARED: Final = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


#: Where events are messages, in the default virtual host; nobody can publish there.
EVENT_EXCHANGE: Final = "amq.trivium.event"
EVENTS_IN: Final = "/"
#: Where the firehose of a virtual host comes out, as with RabbitMQ; nobody can publish there.
TRACE_EXCHANGE: Final = "amq.rabbitmq.trace"


class DefaultExchange(DirectExchange):
    """The exchange without a name: every queue is bound to it by its own name."""

    def __init__(self, vhost: StreamNamespace) -> None:
        super().__init__("")
        self._vhost = vhost

    def match(self, address: Address, message: Message | None) -> list[Binding]:
        try:
            name = address.key.decode()
        except UnicodeDecodeError:
            return []
        queue = self._vhost.queues.get(name)
        if queue is not None and queue.adapter and queue.owner is None:
            # Messages reach a session through its subscriptions only. A private queue with an
            # owner is there to be addressed: it takes the replies to that connection.
            return []
        destination: Destination | None = queue
        if destination is None:
            destination = self._vhost.streams.get(name)
        return [] if destination is None else [Binding(destination, address.key)]


def predeclared_exchanges(vhost: StreamNamespace) -> list[Exchange]:
    """New ones for ``vhost``."""
    made: list[Exchange] = [DefaultExchange(vhost)]
    for name, kind in PREDECLARED:
        exchange = make_exchange(kind, name)
        assert exchange is not None
        made.append(exchange)
    own = [TRACE_EXCHANGE]
    if vhost.name == EVENTS_IN:
        own.append(EVENT_EXCHANGE)
    for name in own:
        exchange = make_exchange("topic", name, internal=True)
        assert exchange is not None
        exchange.is_brokers_own = True
        made.append(exchange)
    return made
