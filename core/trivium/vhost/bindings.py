"""The bindings of a virtual host by where they lead to, and those that outlive a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.common.bag import Bag, items_of, put_in, take_out
from trivium.common.values import pack, unpack
from trivium.queues.queue import Queue
from trivium.routing.exchanges import (
    Binding,
    Declarer,
    Declarers,
    Destination,
    Exchange,
    ExchangeDestination,
)
from trivium.storage.base import Table
from trivium.streams.namespace import StreamNamespace
from trivium.streams.stream import Stream

if TYPE_CHECKING:
    from trivium.vhost.suspensions import Suspensions

_Bound = tuple[Exchange, Binding]


class Bindings:
    """Of one virtual host. ``table`` has a row for each that is kept."""

    def __init__(self, table: Table, suspensions: Suspensions) -> None:
        self._table = table
        self._suspensions = suspensions
        # By destination, so that whoever goes finds its own at once.
        self._bound: dict[Destination, _Bound | Bag[_Bound]] = {}

    def add(self, exchange: Exchange, binding: Binding) -> bool:
        """Bind. It is kept over a restart when both its ends are. Whether it is new."""
        known = exchange.find(binding)
        if known is not None:
            former, declarer = known.guard, binding.guard
            if isinstance(former, Declarer) and isinstance(declarer, Declarer):
                item = (exchange, known)
                binding.guard = self._suspensions.joined(item, former, declarer)
        is_new = self._bind(exchange, binding)
        self._keep(exchange, binding)
        if not is_new:
            self._suspensions.resumed((exchange, binding))
        return is_new

    def declare(self, exchange: Exchange, binding: Binding, declarer: Declarer | None) -> None:
        """``binding``, the very one that was bound, is somebody else's from now on."""
        binding.guard = declarer
        self._keep(exchange, binding)

    def _keep(self, exchange: Exchange, binding: Binding) -> None:
        key = _row_key(exchange, binding)
        if key is not None:
            guard = binding.guard
            self._table.put(key, guard.row if isinstance(guard, Declarer) else b"")

    def all(self) -> list[_Bound | Bag[_Bound]]:
        """Those to queues, streams and exchanges, by where they lead to: some may be gone when they
        are looked at."""
        return list(self._bound.values())

    def remove(self, exchange: Exchange, binding: Binding) -> bool:
        """Remove the binding that is the same as ``binding``; whether there was one."""
        known = exchange.unbind(binding)
        if known is None:
            return False
        self._forget(exchange, known)
        return True

    def remove_to(self, destination: Destination) -> list[Exchange]:
        """Remove the bindings to a queue, stream or exchange; the exchanges that had them."""
        left: list[Exchange] = []
        for exchange, binding in list(items_of(self._bound.get(destination))):
            if exchange.unbind(binding) is not None:
                self._forget(exchange, binding)
                left.append(exchange)
        return left

    def forget_from(self, exchange: Exchange) -> None:
        """An exchange is deleted, and its bindings go with it."""
        for binding in exchange.bindings():
            self._forget(exchange, binding)

    def restore(self, vhost: StreamNamespace, declarers: Declarers) -> None:
        """Bind as the table says what is there in ``vhost``."""
        # There may be very many, of few declarers.
        known: dict[bytes, Declarer | None] = {}
        for key, row in self._table.items():
            if row not in known:
                known[row] = declarers.restored(row, vhost.name)
            source, kind, target, pattern, is_filter, arguments = unpack(key)
            exchange = vhost.exchanges.get(source)
            destination: Destination | None
            if kind == "exchange":
                found = vhost.exchange_to(target)
                destination = None if found is None else found.destination()
            elif kind == "queue":
                destination = vhost.queues.get(target)
            else:
                destination = vhost.streams.get(target)
            if exchange is not None and destination is not None:
                given = dict(arguments) if arguments else None
                self._bind(
                    exchange, Binding(destination, pattern, given, is_filter, guard=known[row])
                )

    def _bind(self, exchange: Exchange, binding: Binding) -> bool:
        target = binding.destination
        is_new = exchange.bind(binding)
        if is_new and isinstance(target, (Queue, Stream, ExchangeDestination)):
            self._bound[target] = put_in(self._bound.get(target), (exchange, binding))
        return is_new

    def _forget(self, exchange: Exchange, binding: Binding) -> None:
        """``binding``, the very one that was bound, has left ``exchange``, or goes with it."""
        bound = self._bound.pop(binding.destination, None)
        if bound is not None:
            left = take_out(bound, (exchange, binding))
            if left is not None:
                self._bound[binding.destination] = left
        self._suspensions.forget((exchange, binding))
        key = _row_key(exchange, binding)
        if key is not None:
            self._table.delete(key)


def _row_key(exchange: Exchange, binding: Binding) -> bytes | None:
    """The key of a binding's row; None for one that is not kept."""
    target = binding.destination
    if isinstance(target, ExchangeDestination):
        kind, durable = "exchange", target.exchange.durable
    elif isinstance(target, Queue):
        kind, durable = "queue", target.durable and target.owner is None
    elif isinstance(target, Stream):
        kind, durable = "stream", True
    else:
        return None
    if not (durable and exchange.durable):
        return None
    return pack(
        [
            exchange.name,
            kind,
            target.name,
            binding.pattern,
            binding.is_filter,
            sorted(binding.arguments.items()),
        ]
    )
