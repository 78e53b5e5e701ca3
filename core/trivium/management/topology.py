"""What operators do to exchanges, queues and bindings, by their own permissions, as clients do.

What they declare is theirs, and counts for their quotas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivium.common.quotas import USER, Account
from trivium.errors import AccessRefused, NotFound, PreconditionFailed
from trivium.queues.arguments import QUEUE_TYPE, STREAM
from trivium.routing.exchanges import (
    Binding,
    Declarer,
    HeadersExchange,
    TopicExchange,
    valid_headers_match,
)
from trivium.security.permissions import CONFIGURE, READ, TOPIC_EXCHANGE, WRITE, Access
from trivium.streams.stream import take_partitions
from trivium.vhost.settings import with_default_type

if TYPE_CHECKING:
    from trivium.messages.message import HeaderValue
    from trivium.runtime.broker import Broker
    from trivium.security.identity import Identity
    from trivium.vhost.virtual_host import VirtualHost


@dataclass(frozen=True, slots=True)
class Operator:
    """Who declares something in a virtual host."""

    #: None: an administrator, who brings a whole document; nothing is asked for
    access: Access | None
    declarer: Declarer
    account: Account


def operator(broker: Broker, identity: Identity, vhost: str, imports: bool = False) -> Operator:
    """An identity as one; ``imports``: it brings a document."""
    declarers = broker.authentication.declarers
    account = broker.quotas.account(USER, identity.name)
    if imports:
        return Operator(None, declarers.of_import(identity, vhost), account)
    access = broker.permissions.access(identity, vhost)
    return Operator(access, declarers.of(identity, vhost), account)


_DEFAULT = "operation not permitted on the default exchange"


def declare_queue(
    vhost: VirtualHost,
    by: Operator,
    name: str,
    durable: bool,
    auto_delete: bool,
    arguments: Mapping[str, HeaderValue],
) -> bool:
    """Declare a queue, or a stream where the arguments or the virtual host say so; whether it is
    new. Raises TopologyError."""
    wanted = with_default_type(vhost, name, dict(arguments), durable, False, auto_delete)
    is_new = name not in vhost.queues and name not in vhost.streams
    if by.access is not None:
        by.access.require_declaration("queue", name, is_new, wanted)
    if wanted.get(QUEUE_TYPE) == STREAM and name not in vhost.queues:
        vhost.require_stream(name, durable, False, auto_delete)
        partitions = take_partitions(wanted, f"queue '{name}' in vhost '{vhost.name}'")
        vhost.declare_stream(name, partitions, wanted, "queue")
    else:
        if not name:
            raise PreconditionFailed("a queue has a name")
        vhost.declare_queue(
            name, durable, auto_delete, None, wanted, user=by.account, declarer=by.declarer
        )
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
    by: Operator,
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
    if by.access is not None:
        by.access.require_declaration("exchange", name, is_new, arguments)
    vhost.declare_exchange(name, kind, durable, auto_delete, internal, dict(arguments), by.declarer)
    return is_new


def delete_exchange(vhost: VirtualHost, access: Access, name: str, if_unused: bool) -> None:
    """Delete an exchange. Raises TopologyError."""
    _refuse_default(name)
    access.require(CONFIGURE, "exchange", name)
    vhost.delete_exchange(name, if_unused)


def bind(
    vhost: VirtualHost,
    by: Operator,
    source: str,
    destination: str,
    is_to_exchange: bool,
    key: bytes,
    arguments: Mapping[str, HeaderValue],
    is_filter: bool = False,
) -> tuple[Binding, bool]:
    """Bind a queue, stream or exchange; what is bound, and whether that is new. Raises
    TopologyError."""
    _refuse_default(source)
    if is_to_exchange:
        _refuse_default(destination)
    what = "exchange" if is_to_exchange else "queue"
    if by.access is not None:
        by.access.require(WRITE, what, destination)
        by.access.require_exchange(READ, source)
        if is_to_exchange:
            by.access.require_every_topic(destination)
    exchange = vhost.exchange(source)
    if by.access is not None:
        by.access.require_source(exchange, key)
    if isinstance(exchange, HeadersExchange) and not valid_headers_match(dict(arguments)):
        raise PreconditionFailed("'x-match' is all, any, all-with-x or any-with-x")
    if not is_to_exchange and destination in vhost.queues:
        # Not one of another connection, or of a protocol.
        vhost.queue(destination)
    target = vhost.destination(destination, is_to_exchange)
    binding = Binding(target, key, dict(arguments), is_filter, guard=by.declarer)
    is_new = exchange.find(binding) is None
    vhost.bind(exchange, binding)
    return binding, is_new


def unbind(vhost: VirtualHost, access: Access, source: str, binding: Binding, what: str) -> None:
    """Remove a binding that is there; ``what`` it leads to. Raises TopologyError."""
    access.require(WRITE, what, binding.destination.name)
    access.require_exchange(READ, source)
    exchange = vhost.exchange(source)
    access.require_source(exchange, binding.pattern)
    if not vhost.unbind(exchange, binding):
        raise NotFound("no such binding")


def may_unbind(
    vhost: VirtualHost, access: Access, source: str, destination: str, key: bytes
) -> bool:
    """Whether ``unbind`` is permitted; an answer that is no is no refusal to anybody."""
    exchange = vhost.exchanges.get(source)
    if exchange is None or not source or not access.may(WRITE, destination):
        return False
    if source != TOPIC_EXCHANGE and not access.may(READ, source):
        return False
    return not isinstance(exchange, TopicExchange) or access.may_read_all(source, key)


def _refuse_default(name: str) -> None:
    if not name:
        raise AccessRefused(_DEFAULT)
