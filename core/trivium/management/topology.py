"""What operators do to exchanges, queues and bindings, by their own permissions, as clients do.

Where there is no ``access`` an administrator brings a whole document: nothing is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trivium.errors import AccessRefused, NotFound, PreconditionFailed
from trivium.queues.arguments import QUEUE_TYPE, STREAM
from trivium.routing.exchanges import (
    Binding,
    HeadersExchange,
    valid_headers_match,
)
from trivium.security.permissions import CONFIGURE, READ, WRITE, Access
from trivium.vhost.settings import with_default_type

if TYPE_CHECKING:
    from trivium.messages.message import HeaderValue
    from trivium.vhost.virtual_host import VirtualHost

_DEFAULT = "operation not permitted on the default exchange"


def declare_queue(
    vhost: VirtualHost,
    access: Access | None,
    name: str,
    durable: bool,
    auto_delete: bool,
    arguments: Mapping[str, HeaderValue],
) -> bool:
    """Declare a queue, or a stream where the arguments or the virtual host say so; whether it is
    new. Raises TopologyError."""
    wanted = with_default_type(vhost, name, dict(arguments), durable, False, auto_delete)
    is_new = name not in vhost.queues and name not in vhost.streams
    if access is not None:
        access.require_declaration("queue", name, is_new, wanted)
    if wanted.get(QUEUE_TYPE) == STREAM and name not in vhost.queues:
        vhost.require_stream(name, durable, False, auto_delete)
        vhost.declare_stream(name, 1, wanted, "queue")
    else:
        if not name:
            raise PreconditionFailed("a queue has a name")
        vhost.declare_queue(name, durable, auto_delete, None, wanted)
    return is_new


def delete_queue(
    vhost: VirtualHost, access: Access, name: str, if_unused: bool, if_empty: bool
) -> None:
    """Delete a queue or stream. Raises TopologyError."""
    access.require(CONFIGURE, "queue", name)
    if name in vhost.streams:
        vhost.delete_stream(name)
    else:
        vhost.delete_queue(vhost.queue(name), if_unused, if_empty)


def purge_queue(vhost: VirtualHost, access: Access, name: str) -> int:
    """Remove the messages of a queue that are ready; how many. Raises TopologyError."""
    access.require(READ, "queue", name)
    if name in vhost.streams:
        raise PreconditionFailed(f"'{name}' in vhost '{vhost.name}' is a stream")
    return vhost.queue(name).purge()


def declare_exchange(
    vhost: VirtualHost,
    access: Access | None,
    name: str,
    kind: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Mapping[str, HeaderValue],
) -> bool:
    """Declare an exchange; whether it is new. Raises TopologyError."""
    _refuse_default(name)
    is_new = name not in vhost.exchanges
    if access is not None:
        access.require_declaration("exchange", name, is_new, arguments)
    vhost.declare_exchange(name, kind, durable, auto_delete, internal, dict(arguments))
    return is_new


def delete_exchange(vhost: VirtualHost, access: Access, name: str, if_unused: bool) -> None:
    """Delete an exchange. Raises TopologyError."""
    _refuse_default(name)
    access.require(CONFIGURE, "exchange", name)
    vhost.delete_exchange(name, if_unused)


def bind(
    vhost: VirtualHost,
    access: Access | None,
    source: str,
    destination: str,
    is_to_exchange: bool,
    key: bytes,
    arguments: Mapping[str, HeaderValue],
    is_filter: bool = False,
) -> Binding:
    """Bind a queue, stream or exchange. Raises TopologyError."""
    _refuse_default(source)
    if is_to_exchange:
        _refuse_default(destination)
    what = "exchange" if is_to_exchange else "queue"
    if access is not None:
        access.require(WRITE, what, destination)
        access.require_exchange(READ, source)
        if is_to_exchange:
            access.require_every_topic(destination)
    exchange = vhost.exchange(source)
    if access is not None:
        access.require_source(exchange, key)
    if isinstance(exchange, HeadersExchange) and not valid_headers_match(dict(arguments)):
        raise PreconditionFailed("'x-match' is all, any, all-with-x or any-with-x")
    if not is_to_exchange and destination in vhost.queues:
        # Not one of another connection, or of a protocol.
        vhost.queue(destination)
    target = vhost.destination(destination, is_to_exchange)
    binding = Binding(target, key, dict(arguments), is_filter)
    vhost.bind(exchange, binding)
    return binding


def unbind(vhost: VirtualHost, access: Access, source: str, binding: Binding, what: str) -> None:
    """Remove a binding that is there; ``what`` it leads to. Raises TopologyError."""
    access.require(WRITE, what, binding.destination.name)
    access.require_exchange(READ, source)
    exchange = vhost.exchange(source)
    access.require_source(exchange, binding.pattern)
    if not vhost.unbind(exchange, binding):
        raise NotFound("no such binding")


def _refuse_default(name: str) -> None:
    if not name:
        raise AccessRefused(_DEFAULT)
