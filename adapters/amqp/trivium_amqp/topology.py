"""Methods of the classes exchange and queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from trivium.idempotence.deduplication import EXCHANGE, QUEUE
from trivium.messages.message import HeaderValue
from trivium.queues.arguments import QUEUE_TYPE, STREAM
from trivium.queues.queue import Queue
from trivium.routing.exchanges import (
    Binding,
    Destination,
    Exchange,
    HeadersExchange,
    valid_headers_match,
)
from trivium.runtime.adapter import declarer_of
from trivium.security.permissions import CONFIGURE, MADE_UP, READ, WRITE
from trivium.streams.stream import take_partitions
from trivium.vhost.settings import with_default_type
from trivium_amqp.basic import REPLY_TO, resolve_name, resolve_queue
from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import (
    ACCESS_REFUSED,
    PRECONDITION_FAILED,
    ChannelException,
    type_name,
    unfit_argument,
)

if TYPE_CHECKING:
    from trivium_amqp.channel import Channel

#: An argument of queues that RabbitMQ's streams do not have.
LENGTH: Final = "x-max-length"


def exchange_declare(channel: Channel, arguments: list[Any]) -> None:
    """exchange.declare."""
    name, kind, passive, durable, auto_delete, internal, nowait, options = arguments
    _refuse_default(name)
    if passive:
        channel.vhost.exchange(name)
    else:
        is_new = name not in channel.vhost.exchanges
        channel.access.require_declaration("exchange", name, is_new, options)
        channel.vhost.declare_exchange(
            name,
            kind,
            durable,
            auto_delete,
            internal,
            options,
            declarer=declarer_of(channel.connection),
        )
    write_batch = _write_batch_of(channel, durable and not passive, EXCHANGE, name)
    _answer(channel, nowait, write_batch, methods.EXCHANGE_DECLARE_OK)


def exchange_delete(channel: Channel, arguments: list[Any]) -> None:
    """exchange.delete; like RabbitMQ, one that does not exist is no error."""
    name, if_unused, nowait = arguments
    _refuse_default(name)
    channel.access.require(CONFIGURE, "exchange", name)
    channel.vhost.delete_exchange(name, if_unused)
    write_batch = _write_batch_of(channel, False, EXCHANGE, name)
    _answer(channel, nowait, write_batch, methods.EXCHANGE_DELETE_OK)


def exchange_bind(channel: Channel, arguments: list[Any]) -> None:
    """exchange.bind: from the exchange ``source`` to the exchange ``destination``."""
    destination, source, key, nowait, options = arguments
    _check_binding(channel, "exchange", destination, source)
    channel.access.require_every_topic(destination)
    exchange = _source(channel, source)
    write_batch = _bind(
        channel, exchange, _exchange_destination(channel, destination), key, options
    )
    _answer(channel, nowait, write_batch, methods.EXCHANGE_BIND_OK)


def exchange_unbind(channel: Channel, arguments: list[Any]) -> None:
    """exchange.unbind; like RabbitMQ, where anything of it does not exist that is no error."""
    destination, source, key, nowait, options = arguments
    _refuse_default(destination)
    _refuse_default(source)
    _check_binding(channel, "exchange", destination, source)
    if destination in channel.vhost.exchanges:
        _unbind(channel, _exchange_destination(channel, destination), source, key, options)
    _answer(channel, nowait, channel.broker.storage.write_batch, methods.EXCHANGE_UNBIND_OK)


def queue_declare(channel: Channel, arguments: list[Any]) -> None:
    """queue.declare."""
    name, passive, durable, exclusive, auto_delete, nowait, options = arguments
    if passive or name.startswith(REPLY_TO):
        _declare_passively(channel, name, nowait)
        return
    options = with_default_type(channel.vhost, name, options, durable, exclusive, auto_delete)
    if options.get(QUEUE_TYPE) == STREAM and name not in channel.vhost.queues:
        _declare_stream(channel, [*arguments[:-1], options])
        return
    connection = channel.connection
    # Of one that the broker names, the name is not known yet: what its names begin with stands
    # for it.
    is_new = name not in channel.vhost.queues
    channel.access.require_declaration("queue", name or MADE_UP, is_new, options)
    connection.owns_queues = connection.owns_queues or exclusive
    queue = channel.vhost.declare_queue(
        name,
        durable,
        auto_delete,
        connection if exclusive else None,
        options,
        connection=connection,
        user=connection.usage.user,
        declarer=declarer_of(connection),
    )
    channel.last_queue = queue.name
    _declare_ok(channel, nowait, queue, durable and not exclusive)


def _declare_passively(channel: Channel, name: str, nowait: bool) -> None:
    if name == REPLY_TO:
        # There is always someone who takes what is sent there.
        _answer(channel, nowait, 0, methods.QUEUE_DECLARE_OK, name, 0, 1)
        return
    stream = channel.vhost.streams.get(name)
    if stream is not None:
        channel.last_queue = name
        write_batch = _write_batch_of(channel, False, QUEUE, name)
        _answer(
            channel, nowait, write_batch, methods.QUEUE_DECLARE_OK, name, stream.record_count, 0
        )
        return
    # Whoever answers a request may ask whether the requester still waits, though the queue of its
    # replies is not his.
    queue = (
        channel.vhost.queues.get(name)
        if name.startswith(REPLY_TO)
        else channel.vhost.queue(name, channel.connection)
    )
    if queue is None:
        channel.vhost.queue(name)
        return
    channel.last_queue = name
    queue.touch()
    _declare_ok(channel, nowait, queue, False)


def _declare_stream(channel: Channel, arguments: list[Any]) -> None:
    name, _passive, durable, exclusive, auto_delete, nowait, options = arguments
    vhost = channel.vhost
    channel.access.require(CONFIGURE, "queue", name)
    vhost.require_stream(name, durable, exclusive, auto_delete)
    options = dict(options)
    partitions = take_partitions(options, f"queue '{name}' in vhost '{vhost.name}'")
    if name not in vhost.streams and LENGTH in options:
        # Ours could count records, but a client of RabbitMQ's streams means messages of a queue.
        raise ChannelException(
            PRECONDITION_FAILED,
            unfit_argument(LENGTH, f"queue '{name}' in vhost '{vhost.name}'", STREAM),
        )
    stream = vhost.declare_stream(name, partitions, options, "queue")
    channel.last_queue = name
    write_batch = _write_batch_of(channel, True, QUEUE, name)
    _answer(channel, nowait, write_batch, methods.QUEUE_DECLARE_OK, name, stream.record_count, 0)


def _declare_ok(channel: Channel, nowait: bool, queue: Queue, is_durable: bool) -> None:
    write_batch = _write_batch_of(channel, is_durable, QUEUE, queue.name)
    counts = (len(queue), len(queue.consumers))
    _answer(channel, nowait, write_batch, methods.QUEUE_DECLARE_OK, queue.name, *counts)


def queue_bind(channel: Channel, arguments: list[Any]) -> None:
    """queue.bind. With neither queue nor routing key, the last queue's name is the routing key."""
    name, source, key, nowait, options = arguments
    if not name and not key:
        key = resolve_name(channel, name).encode()
    _check_binding(channel, "queue", resolve_name(channel, name), source)
    exchange = _source(channel, source)
    write_batch = _bind(channel, exchange, _queue_destination(channel, name), key, options)
    _answer(channel, nowait, write_batch, methods.QUEUE_BIND_OK)


def queue_unbind(channel: Channel, arguments: list[Any]) -> None:
    """queue.unbind; like RabbitMQ, where anything of it does not exist that is no error."""
    name, source, key, options = arguments
    _refuse_default(source)
    if not name and not key:
        key = resolve_name(channel, name).encode()
    name = resolve_name(channel, name)
    _check_binding(channel, "queue", name, source)
    if name in channel.vhost.queues or name in channel.vhost.streams:
        _unbind(channel, _queue_destination(channel, name), source, key, options)
    channel.reply_after(channel.broker.storage.write_batch, methods.QUEUE_UNBIND_OK)


def queue_purge(channel: Channel, arguments: list[Any]) -> None:
    """queue.purge."""
    name, nowait = arguments
    channel.access.require(READ, "queue", resolve_name(channel, name))
    queue = resolve_queue(channel, name, "queue.purge")
    count = queue.purge()
    write_batch = channel.broker.storage.write_batch if queue.durable else 0
    _answer(channel, nowait, write_batch, methods.QUEUE_PURGE_OK, count)


def queue_delete(channel: Channel, arguments: list[Any]) -> None:
    """queue.delete; like RabbitMQ, one that does not exist is no error."""
    name, if_unused, if_empty, nowait = arguments
    name = resolve_name(channel, name)
    channel.access.require(CONFIGURE, "queue", name)
    vhost = channel.vhost
    count = 0
    channel.hold_cancels()
    if name in vhost.streams:
        vhost.delete_stream(name)
    elif name in vhost.queues:
        queue = vhost.queue(name, channel.connection)
        count = vhost.delete_queue(queue, if_unused, if_empty)
    write_batch = _write_batch_of(channel, False, QUEUE, name)
    _answer(channel, nowait, write_batch, methods.QUEUE_DELETE_OK, count)
    channel.tell_cancels()


def _exchange_destination(channel: Channel, name: str) -> Destination:
    _refuse_default(name)
    return channel.vhost.destination(name, is_exchange=True)


def _queue_destination(channel: Channel, name: str) -> Destination:
    name = resolve_name(channel, name)
    stream = channel.vhost.streams.get(name)
    if stream is not None:
        return stream
    return channel.vhost.queue(name, channel.connection)


def _check_binding(channel: Channel, what: str, destination: str, source: str) -> None:
    """Raise AccessRefused unless the client may bind, whether or not the ends are there."""
    _refuse_default(source)
    channel.access.require(WRITE, what, destination)
    channel.access.require_exchange(READ, source)


def _source(channel: Channel, name: str) -> Exchange:
    """The exchange to bind to: it is missed before the destination is."""
    _refuse_default(name)
    return channel.vhost.exchange(name)


def _bind(
    channel: Channel,
    exchange: Exchange,
    destination: Destination,
    key: bytes,
    options: dict[str, HeaderValue],
) -> int:
    """Bind; the write batch to wait for where the binding may be kept over a restart, else 0."""
    if isinstance(exchange, HeadersExchange) and not valid_headers_match(options):
        given = options["x-match"]
        text = f"type {type_name(given)}; expected longstr"
        if isinstance(given, str):
            text = f'value <<"{given}">>; expected all, any, all-with-x, or any-with-x'
        raise ChannelException(PRECONDITION_FAILED, f"Invalid x-match field {text}")
    channel.access.require_source(exchange, key)
    declarer = declarer_of(channel.connection)
    channel.vhost.bind(exchange, Binding(destination, key, options, guard=declarer))
    if exchange.durable and not (isinstance(destination, Queue) and not destination.durable):
        return channel.broker.storage.write_batch
    return 0


def _unbind(
    channel: Channel,
    destination: Destination,
    source: str,
    key: bytes,
    options: dict[str, HeaderValue],
) -> None:
    exchange = channel.vhost.exchanges.get(source)
    if exchange is not None:
        channel.access.require_source(exchange, key)
        channel.vhost.unbind(exchange, Binding(destination, key, options))


def _refuse_default(name: str) -> None:
    if not name:
        raise ChannelException(ACCESS_REFUSED, "operation not permitted on the default exchange")


def _write_batch_of(channel: Channel, is_durable: bool, kind: str, name: str) -> int:
    """The write batch to wait for.

    This one where a change is kept on disk, else that of what others have just changed about it.
    """
    return (
        channel.broker.storage.write_batch
        if is_durable
        else channel.vhost.changes.write_batch_of(kind, name)
    )


def _answer(channel: Channel, nowait: bool, write_batch: int, method: int, *arguments: Any) -> None:
    """Answer, not before ``write_batch`` is durable (0: at once)."""
    if not nowait:
        channel.reply_after(write_batch, method, *arguments)


HANDLERS: Final[dict[int, Callable[[Channel, list[Any]], None]]] = {
    methods.EXCHANGE_DECLARE: exchange_declare,
    methods.EXCHANGE_DELETE: exchange_delete,
    methods.EXCHANGE_BIND: exchange_bind,
    methods.EXCHANGE_UNBIND: exchange_unbind,
    methods.QUEUE_DECLARE: queue_declare,
    methods.QUEUE_BIND: queue_bind,
    methods.QUEUE_UNBIND: queue_unbind,
    methods.QUEUE_PURGE: queue_purge,
    methods.QUEUE_DELETE: queue_delete,
}
