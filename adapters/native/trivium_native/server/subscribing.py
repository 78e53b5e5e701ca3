"""SUBSCRIBE to a queue, which it may make; POLL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.errors import TopologyError
from trivium.messages.delivery import DELIVERY_MODES
from trivium.messages.message import HeaderValue
from trivium.messages.topics import MAX_LEVELS
from trivium.queues.arguments import MAX_MILLISECONDS, QUORUM
from trivium.queues.polling import MAX_TAKEN, MAX_TAKEN_BYTES
from trivium.routing.exchanges import Binding
from trivium.runtime.adapter import declarer_of
from trivium.security.permissions import MADE_UP, READ, WRITE
from trivium.storage.base import DurabilityWaiter
from trivium.vhost.settings import with_default_type
from trivium_native.server.queue_subscriptions import PolledSubscription, QueueSubscription
from trivium_native.server.subscriptions import Subscription, add
from trivium_native.wire.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from trivium.queues.queue import Queue
    from trivium.vhost.virtual_host import VirtualHost
    from trivium_native.server.connection import NativeConnection
    from trivium_native.wire.fields import Fields

#: Milliseconds within which a client may want to settle each delivery: as over HTTP.
MIN_ACK_MS: Final = 1000
MAX_ACK_MS: Final = 3_600_000
#: Deliveries of a subscription that polls which await a settlement.
MAX_POLLED: Final = 65_536
POLLED: Final = 1000
#: Bytes of payloads that a poll takes, unless it says otherwise.
POLL_BYTES: Final = 1 << 20

_MAX_U32: Final = 0xFFFF_FFFF


def pattern_of(fields: Fields) -> bytes:
    """The binding key of a request."""
    pattern = fields.data("pattern", b"")
    if pattern.count(b".") >= MAX_LEVELS:
        raise InvalidArgument(f"a pattern has at most {MAX_LEVELS} levels")
    return pattern


def declare_queue(
    connection: NativeConnection,
    vhost: VirtualHost,
    name: str,
    arguments: dict[str, HeaderValue],
    durable: bool = True,
    auto_delete: bool = False,
    exclusive: bool = False,
) -> Queue:
    """The queue that a client declares. Raises TopologyError."""
    if vhost.settings.default_queue_type == QUORUM:
        # A stream is declared by its own kind here.
        arguments = with_default_type(vhost, name, arguments, durable, exclusive, auto_delete)
    # Of one that the broker names, what its names begin with stands for it.
    is_new = name not in vhost.queues
    connection.access.require_declaration("queue", name or MADE_UP, is_new, arguments)
    return vhost.declare_queue(
        name,
        durable=durable,
        auto_delete=auto_delete,
        owner=connection if exclusive else None,
        arguments=arguments,
        connection=connection,
        user=connection.usage.user,
        declarer=declarer_of(connection),
    )


def _own_queue(
    connection: NativeConnection, vhost: VirtualHost, name: str, fields: Fields
) -> Queue:
    """The durable queue that a subscription makes of its own, bound to an exchange.

    What DECLARE and BIND need is needed, and all of it is looked at first.
    """
    source = fields.text("exchange")
    pattern = pattern_of(fields)
    arguments: dict[str, HeaderValue] = {}
    expires = fields.integer("expires_ms", 1, MAX_MILLISECONDS, 0)
    if expires:
        arguments["x-expires"] = expires
    delivery = fields.text("delivery", "")
    if delivery and delivery not in DELIVERY_MODES:
        raise InvalidArgument(f"'delivery' must be one of {', '.join(DELIVERY_MODES)}")
    if delivery:
        arguments["x-delivery"] = delivery
    fields.finish()
    access = connection.access
    access.require_exchange(READ, source)
    exchange = vhost.exchange(source)
    access.require(WRITE, "queue", name or MADE_UP)
    access.require(READ, "queue", name or MADE_UP)
    access.require_source(exchange, pattern)
    is_new = name not in vhost.queues
    queue = declare_queue(connection, vhost, name, arguments)
    try:
        vhost.bind(exchange, Binding(queue, pattern, guard=declarer_of(connection)))
    except TopologyError:
        if is_new:
            vhost.delete_queue(queue)
        raise
    return queue


class _Begun(DurabilityWaiter):
    """Answers a SUBSCRIBE once what it has made is durable; deliveries come behind that."""

    def __init__(self, subscription: Subscription, reply: dict[str, object], credit: int) -> None:
        self._subscription = subscription
        self._reply = reply
        self._credit = credit

    def write_batch_durable(self, write_batch: int) -> None:
        subscription = self._subscription
        connection = subscription.connection
        is_over = connection.subscriptions.get(subscription.number) is not subscription
        if is_over or connection.is_closed:
            return
        correlation, subscription.asked_by = subscription.asked_by, 0
        connection.reply(correlation, self._reply)
        subscription.add_credit(self._credit)


def subscribe_to_queue(
    connection: NativeConnection,
    vhost: VirtualHost,
    correlation: int,
    number: int,
    mode: str,
    fields: Fields,
) -> None:
    """Modes ``queue`` and ``poll``: consume a queue, or one that is made for it (``exchange``)."""
    is_polled = mode == "poll"
    makes = fields.has("exchange")
    name = fields.text("queue", "" if makes else None)
    ack_ms = fields.integer("ack_timeout_ms", MIN_ACK_MS, MAX_ACK_MS, 0)
    if is_polled:
        credit = fields.integer("credit", 1, MAX_POLLED, POLLED)
        priority, no_ack, exclusive = 0, False, False
    else:
        credit = fields.integer("credit", 1, _MAX_U32)
        priority = fields.integer("priority", -(1 << 31), (1 << 31) - 1, 0)
        no_ack = fields.boolean("no_ack")
        exclusive = fields.boolean("exclusive")
    if makes:
        queue = _own_queue(connection, vhost, name, fields)
    else:
        connection.access.require(READ, "queue", name)
        queue = vhost.queue(name, connection)
        fields.finish()
    subscription: QueueSubscription
    if is_polled:
        subscription = PolledSubscription(connection, number, queue, ack_ms)
    else:
        subscription = QueueSubscription(
            connection, number, queue, priority, no_ack, exclusive, ack_ms
        )
        subscription.start()
    add(subscription)
    begun = _Begun(subscription, {"queue": queue.name} if makes else {}, credit)
    subscription.asked_by = correlation
    storage = connection.broker.storage
    if makes and storage.is_durable:
        storage.wait(begun)
    else:
        # The answer first, then what it is about.
        begun.write_batch_durable(0)


def poll(connection: NativeConnection, correlation: int, fields: Fields) -> None:
    """Take some messages, of what is there or comes in time."""
    number = fields.integer("subscription", 0, _MAX_U32)
    count = fields.integer("max_messages", 1, MAX_TAKEN, MAX_TAKEN)
    max_bytes = fields.integer("max_bytes", 1, MAX_TAKEN_BYTES, POLL_BYTES)
    most = connection.options.max_fetch_wait_ms
    wait_ms = min(fields.integer("max_wait_ms", 0, (1 << 63) - 1, 0), most)
    fields.finish()
    subscription = connection.subscriptions.get(number)
    if not isinstance(subscription, PolledSubscription):
        raise NotFound(f"no subscription {number} that polls")
    subscription.poll(correlation, count, max_bytes, wait_ms)
