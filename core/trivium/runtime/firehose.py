"""The firehose of a virtual host: all messages that come in and leave, for whoever binds to
``amq.rabbitmq.trace``.

It is RabbitMQ's: ``publish.EXCHANGE`` and ``deliver.QUEUE`` are the routing keys, the headers say
what message it was, who it came from or went to, and the body is the message's. It is off until
somebody switches it on, and after a start.

What is seen in a turn is published once everything else of the turn has been called, so that
nobody finds a queue changed in the middle of what he does to it. The firehose's own messages are
not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.common.values import HeaderValue
from trivium.host import NODE
from trivium.messages.message import (
    AT_MOST_ONCE,
    PROTOCOL_NEUTRAL,
    UNSAMPLED,
    Message,
    Properties,
    codec_of,
)
from trivium.messages.neutral import encode_neutral
from trivium.observability.served import ServedRequest
from trivium.routing.exchanges import Destination, Route
from trivium.routing.taps import Tap
from trivium.runtime.adapter import Connection, connection_name
from trivium.streams.stream import Stream
from trivium.vhost.predeclared import TRACE_EXCHANGE

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost

#: Messages that one turn may leave here, and bytes of their payloads; more are dropped and counted.
MAX_WAITING: Final = 65_536
MAX_WAITING_BYTES: Final = 64 << 20


class _Publisher(Timed):
    """Publishes what a firehose has seen."""

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self.waiting: list[tuple[Route, Message]] = []
        self.bytes = 0

    def due(self) -> None:
        waiting = self.waiting
        self.waiting = []
        self.bytes = 0
        for route, message in waiting:
            if route.topology_version != self.vhost.topology_version:
                exchange = self.vhost.exchanges[TRACE_EXCHANGE]
                route = self.vhost.route(exchange, message.address.key)
            self.vhost.publish(message, route)


class Firehose(Tap):
    """That of one virtual host, while it is on."""

    def __init__(self, broker: Broker, vhost: VirtualHost) -> None:
        self._broker = broker
        self._vhost = vhost
        self._exchange = vhost.exchanges[TRACE_EXCHANGE]
        self._publisher = _Publisher(vhost)

    def published(self, message: Message, route: Route) -> None:
        exchange = message.address.exchange
        found = self._route("publish.", exchange)
        if found is None:
            return
        serving = self._broker.events.serving
        channel = serving.serving_channel if isinstance(serving, Connection) else 0
        headers = self._headers(message, serving, channel)
        headers["routed_queues"] = _queues_of(route.destinations)
        self._add(found, message, headers)

    def delivered(
        self,
        message: Message,
        queue: str,
        is_redelivered: bool,
        connection: object = None,
        channel: int = 0,
    ) -> None:
        if _is_own(message):
            return
        found = self._route("deliver.", queue)
        if found is None:
            return
        receiver = self._broker.events.serving if connection is None else connection
        headers = self._headers(message, receiver, channel)
        headers["redelivered"] = 1 if is_redelivered else 0
        self._add(found, message, headers)

    def _route(self, what: str, name: str) -> Route | None:
        """Where messages about this leave; None where nobody wants them."""
        if not self._exchange.is_used:
            return None
        route = self._vhost.route(self._exchange, (what + name).encode())
        return route if route.destinations else None

    def _headers(self, message: Message, client: object, channel: int) -> dict[str, HeaderValue]:
        if isinstance(client, Connection):
            user, name = client.identity.name, connection_name(client)
        elif isinstance(client, ServedRequest):
            user, name = client.identity.name, client.address
        else:
            # The broker itself, as with a will that had to wait.
            user = name = ""
        properties = message.properties()
        return {
            "exchange_name": message.address.exchange,
            "routing_keys": _keys_of(message, properties),
            "properties": _shown(message, properties),
            "node": NODE,
            "vhost": self._vhost.name,
            "connection": name,
            "channel": channel,
            "user": user,
        }

    def _add(self, route: Route, message: Message, headers: dict[str, HeaderValue]) -> None:
        publisher = self._publisher
        size = publisher.bytes + message.size
        if len(publisher.waiting) >= MAX_WAITING or size > MAX_WAITING_BYTES:
            self._broker.virtual_hosts.traces_dropped += 1
            return
        if not publisher.waiting:
            self._broker.timeouts.call_at(self._broker.elapsed_ms, publisher)
            self._broker.request_turn()
        publisher.bytes = size
        traced = Message(
            PROTOCOL_NEUTRAL,
            route.address,
            encode_neutral(Properties(headers=list(headers.items()))),
            message.content,
            AT_MOST_ONCE,
            False,
            self._broker.now_ms,
        )
        # The firehose sees traced messages as well: its own would be as many traces more.
        traced.traced = UNSAMPLED
        publisher.waiting.append((route, traced))


def _is_own(message: Message) -> bool:
    """Whether it came out of a firehose, if only as a dead letter: to see its deliveries would
    make another one for each, without end."""
    if message.address.exchange == TRACE_EXCHANGE:
        return True
    annotations = message.annotations
    return annotations is not None and annotations.get("x-first-death-exchange") == TRACE_EXCHANGE


def _queues_of(destinations: list[Destination]) -> list[HeaderValue]:
    """The names of queues and streams among them."""
    found: list[HeaderValue] = []
    for destination in destinations:
        queue = destination if isinstance(destination, Stream) else destination.target_queue()
        if queue is not None:
            found.append(queue.name)
    return found


def _keys_of(message: Message, properties: Properties) -> list[HeaderValue]:
    """The routing keys that a message was published with."""
    keys: list[HeaderValue] = [message.address.key.decode(errors="replace")]
    copies = properties.header(codec_of(message.protocol).copies_header)
    return keys + copies if isinstance(copies, list) else keys


def _shown(message: Message, properties: Properties) -> dict[str, HeaderValue]:
    """The properties under AMQP's names, without those that it has not."""
    correlation_id = properties.correlation_id
    expiration = properties.expiration
    found: dict[str, HeaderValue] = {
        "content_type": properties.content_type,
        "content_encoding": properties.content_encoding,
        "headers": dict(reversed(properties.headers)) or None,
        "delivery_mode": 2 if message.persistent else None,
        "priority": message.priority or None,
        "correlation_id": None if correlation_id is None else _text(correlation_id),
        "reply_to": properties.reply_to,
        "expiration": None if expiration is None else str(expiration),
        "message_id": properties.message_id,
        "timestamp": properties.timestamp,
        "type": properties.type_,
        "user_id": properties.user_id,
        "app_id": properties.app_id,
    }
    return {name: value for name, value in found.items() if value is not None}


def _text(data: bytes) -> HeaderValue:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
