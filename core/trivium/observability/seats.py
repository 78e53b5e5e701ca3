"""Who is served over HTTP at a time, and who gives way to a new connection.

A connection is idle, asks, or is in: it asks with credentials that were accepted. Whoever is in
stays. Of the others those of the address give way that has most of them, so that many connections
of a stranger are in nobody's way but its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from trivium.common.addresses import subscriber_address

#: Connections below which an address has few.
FEW: Final = 4
#: The share of all that is for addresses with few: an eighth.
KEPT_SHARE: Final = 8

_IDLE: Final = 0
_ASKS: Final = 1
_IS_IN: Final = 2

T = TypeVar("T")


class _Seat:
    __slots__ = ("address", "state")

    def __init__(self, address: str) -> None:
        self.address = address
        self.state = _IDLE


class _Address:
    __slots__ = ("total", "yielding")

    def __init__(self) -> None:
        #: its connections, and those of them that may have to give way
        self.total = 0
        self.yielding = 0


class Seats(Generic[T]):
    """The connections of one listener. ``drop`` ends one that gives way."""

    def __init__(self, limit: int, drop: Callable[[T], None]) -> None:
        self._limit = limit
        self._kept = limit // KEPT_SHARE
        self._drop = drop
        # The one for which nothing has happened for longest comes first.
        self._seats: dict[T, _Seat] = {}
        self._addresses: dict[str, _Address] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def enter(self, connection: T, host: str) -> bool:
        """A connection has come from ``host`` (`""` is this machine, which may have all). Whether
        it may stay: where there are too many another one gives way, if one may.

        An eighth is for those with few connections, who do not give way to those with more.
        """
        address = subscriber_address(host)
        there = self._addresses.get(address)
        has_few = there is None or there.total < FEW
        limit = self._limit if has_few or not host else self._limit - self._kept
        if len(self._seats) >= limit:
            found = self._who_gives_way(address, has_few)
            if found is None:
                return False
            self.leave(found)
            self._drop(found)
        there = self._addresses.setdefault(address, _Address())
        there.total += 1
        there.yielding += 1
        self._seats[connection] = _Seat(address)
        return True

    def _who_gives_way(self, comes_from: str, has_few: bool) -> T | None:
        """Of the address with most that may: who is idle for longest, else who asks, but not to
        another of its own address, which would be as much work again."""
        found: T | None = None
        most, least = 0, _IS_IN
        for connection, seat in self._seats.items():
            address = self._addresses[seat.address]
            if seat.state == _IS_IN or not (has_few or address.total >= FEW):
                continue
            if address.yielding > most or (address.yielding == most and seat.state < least):
                found = connection
                most, least = address.yielding, seat.state
        if least == _ASKS and found is not None and self._seats[found].address == comes_from:
            return None
        return found

    def leave(self, connection: T) -> None:
        """A connection has ended, or does not count any more."""
        seat = self._seats.pop(connection, None)
        if seat is None:
            return
        address = self._addresses[seat.address]
        address.total -= 1
        address.yielding -= seat.state != _IS_IN
        if not address.total:
            del self._addresses[seat.address]

    def asks(self, connection: T) -> None:
        """A connection has a request that is being answered."""
        self._set(connection, _ASKS)

    def is_in(self, connection: T) -> None:
        """The credentials of its request were accepted."""
        self._set(connection, _IS_IN)

    def is_idle(self, connection: T) -> None:
        """Its request was answered."""
        self._set(connection, _IDLE)

    def _set(self, connection: T, state: int) -> None:
        seat = self._seats.pop(connection, None)
        if seat is None:
            # It has given way.
            return
        self._seats[connection] = seat
        address = self._addresses[seat.address]
        address.yielding += (seat.state == _IS_IN) - (state == _IS_IN)
        seat.state = state
