"""Messages that are published over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.errors import PreconditionFailed
from trivium.messages.delivery import DELAY_HEADER, DELIVERY_HEADER, delay_of, delivery_mode
from trivium.messages.message import (
    AT_MOST_ONCE,
    PROTOCOL_NEUTRAL,
    Message,
    Properties,
)
from trivium.messages.neutral import encode_neutral
from trivium.messages.topics import MAX_LEVELS

if TYPE_CHECKING:
    from trivium.routing.exchanges import Route
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost

#: Bytes of a routing key, as of the longest topic on another road.
MAX_KEY_BYTES: Final = 65_535


def publish(vhost: VirtualHost, message: Message) -> int:
    """Publish a message: what ``VirtualHost.publish`` says, UNROUTABLE or REJECTED among it.

    Raises TopologyError.
    """
    return vhost.publish(message, route_of(vhost, message))


def route_of(vhost: VirtualHost, message: Message) -> Route:
    """The very own route of a message, as things are. Raises NotFound."""
    address = message.address
    return vhost.route(vhost.exchange(address.exchange), address.key).resolve(message)


def message_of(
    broker: Broker,
    vhost: VirtualHost,
    exchange: str,
    key: bytes,
    properties: Properties,
    payload: bytes,
    mode: int = AT_MOST_ONCE,
    priority: int = 0,
    retain: bool = False,
) -> Message:
    """A message that is to be published.

    The headers that choose how a message is treated mean what they mean on every protocol. Raises
    TopologyError.
    """
    if len(payload) > broker.config.limits.max_message_bytes:
        most = broker.config.limits.max_message_bytes
        raise PreconditionFailed(f"a message has at most {most} bytes")
    if len(key) > MAX_KEY_BYTES or key.count(b".") >= MAX_LEVELS:
        bounds = f"{MAX_KEY_BYTES} bytes and {MAX_LEVELS} levels"
        raise PreconditionFailed(f"a routing key has at most {bounds}")
    source = vhost.exchange(exchange)
    wanted = properties.header(DELIVERY_HEADER)
    insists = wanted is not None
    if insists:
        mode = delivery_mode(wanted)
        if mode < 0:
            raise PreconditionFailed(f"'{DELIVERY_HEADER}' is no delivery mode")
    delay = delay_of(properties.header(DELAY_HEADER) or 0)
    if delay < 0:
        raise PreconditionFailed(f"'{DELAY_HEADER}' is no time in milliseconds")
    if delay:
        # As consumers see it of one that was delayed: who passes it on does not delay it again.
        others = [pair for pair in properties.headers if pair[0] != DELAY_HEADER]
        properties.headers = [*others, (DELAY_HEADER, -delay)]
    route = vhost.route(source, key)
    now_ms = broker.now_ms
    return Message(
        PROTOCOL_NEUTRAL,
        route.address,
        encode_neutral(properties),
        payload,
        mode,
        mode != AT_MOST_ONCE,
        now_ms,
        0 if properties.expiration is None else now_ms + properties.expiration,
        retain,
        priority,
        deliver_at=now_ms + delay if delay else 0,
        insists=insists,
    )
