"""Events as messages: what happens in a broker, for whoever binds to ``amq.trivium.event``.

As with RabbitMQ's event exchange the routing key is the name of the event, the headers say what it
is about, and the body is empty. MQTT clients get the same as JSON on ``$SYS/events/...``. Both are
in the default virtual host alone.

An event is published in the turn after its own, so that it finds everything as it left it. Where
nobody is bound nothing is made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.common.values import HeaderValue
from trivium.errors import RouteTooCostly
from trivium.messages.message import (
    AT_LEAST_ONCE,
    PROTOCOL_NEUTRAL,
    UNSAMPLED,
    Address,
    Message,
    Properties,
)
from trivium.messages.neutral import encode_neutral
from trivium.observability.served import ServedRequest
from trivium.runtime.adapter import Connection
from trivium.runtime.virtual_hosts import DEFAULT_VHOST
from trivium.vhost.predeclared import EVENT_EXCHANGE

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker

#: Events that wait for the next turn; more of one turn are dropped and counted.
MAX_WAITING: Final = 4096
#: Characters of a text, and entries of a list or map, in a header.
MAX_TEXT: Final = 1024
MAX_ENTRIES: Final = 100

#: What an event is about, under the name that RabbitMQ's has for it, by the beginning of its name.
_RENAMED: Final[dict[str, dict[str, str]]] = {
    "queue": {"queue": "name"},
    "exchange": {"exchange": "name"},
    "stream": {"stream": "name"},
    "group": {"group": "name"},
    "policy": {"policy": "name"},
    "operator-policy": {"policy": "name"},
    "vhost": {"vhost": "name"},
    "subscription": {"exchange": "source_name", "key": "routing_key"},
    "binding": {
        "exchange": "source_name",
        "destination": "destination_name",
        "key": "routing_key",
    },
}


class EventMessages(Timed):
    """Publishes the events of one broker, from now on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: list[tuple[str, int, dict[str, HeaderValue]]] = []
        broker.events.listen(self._heard)

    def _heard(self, event: str, about: dict[str, object]) -> None:
        broker = self._broker
        vhost = broker.vhosts.get(DEFAULT_VHOST)
        if vhost is None:
            return
        key = b"$SYS.events." + event.encode()
        if not vhost.exchanges[EVENT_EXCHANGE].is_used and not vhost.own.has_readers(key):
            return
        if len(self._waiting) >= MAX_WAITING:
            broker.events.dropped += 1
            return
        if not self._waiting:
            broker.timeouts.call_at(broker.elapsed_ms, self)
            broker.request_turn()
        self._waiting.append((event, broker.now_ms, self._headers(event, about)))

    def _headers(self, event: str, about: dict[str, object]) -> dict[str, HeaderValue]:
        headers: dict[str, HeaderValue] = {}
        renamed = _RENAMED.get(event.partition(".")[0], {})
        for name, value in about.items():
            headers[renamed.get(name, name)] = _shown(value)
        serving = self._broker.events.serving
        if isinstance(serving, (Connection, ServedRequest)):
            if isinstance(serving, ServedRequest):
                address, protocol = serving.address, serving.listener.protocol
                is_in = True
            else:
                address, protocol = serving.peer.address, serving.peer.listener.config.protocol
                is_in = serving.login is not None
            headers.setdefault("peer_address", address)
            headers.setdefault("protocol", protocol)
            if is_in:
                headers["user_who_performed_action"] = serving.identity.name
        return headers

    def due(self) -> None:
        """Publish what has happened."""
        waiting = self._waiting
        self._waiting = []
        vhost = self._broker.vhosts.get(DEFAULT_VHOST)
        if vhost is None:
            return
        exchange = vhost.exchanges[EVENT_EXCHANGE]
        for event, at_ms, headers in waiting:
            key = event.encode()
            if exchange.is_used:
                properties = Properties(
                    timestamp=at_ms // 1000,
                    headers=[("timestamp_in_ms", at_ms), *headers.items()],
                )
                message = Message(
                    PROTOCOL_NEUTRAL,
                    Address(EVENT_EXCHANGE, key),
                    encode_neutral(properties),
                    b"",
                    AT_LEAST_ONCE,
                    True,
                    self._broker.now_ms,
                )
                # It is nobody's, and belongs to no trace.
                message.traced = UNSAMPLED
                try:
                    vhost.publish(message, vhost.route(exchange, key).resolve(message))
                except RouteTooCostly:
                    # Nobody gets it, as nobody could.
                    pass
            own = b"$SYS.events." + key
            if vhost.own.has_readers(own):
                body = {"event": event, "timestamp_in_ms": at_ms, **headers}
                vhost.own.publish(own, json.dumps(body, default=str).encode(), False)


def _shown(value: object) -> HeaderValue:
    """A value as a header can have it, and not too large."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else list(value)
        return [_shown(item) for item in items[:MAX_ENTRIES]]
    if isinstance(value, dict):
        return {
            str(name)[:MAX_TEXT]: _shown(found) for name, found in list(value.items())[:MAX_ENTRIES]
        }
    return str(value)[:MAX_TEXT]
