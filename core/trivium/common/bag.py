"""Values in no particular order, of which each is removed in a few steps however many there are.

Where there may be very many places with a value each, most hold that value itself, and only those
with several a bag: ``put_in``, ``take_out`` and ``items_of`` are for these.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

#: Values among which one is found by looking at each; nearly all bags have fewer, and so no index.
FEW: Final = 16

T = TypeVar("T")


class Bag(Generic[T]):
    """Such values. A value is in it once at most; adding it again is the caller's mistake."""

    __slots__ = ("_places", "items")

    def __init__(self) -> None:
        #: the values, to be read only
        self.items: list[T] = []
        # Where each value is, once there are many.
        self._places: dict[T, int] | None = None

    def add(self, value: T) -> None:
        """Put ``value`` in."""
        items = self.items
        items.append(value)
        places = self._places
        if places is not None:
            places[value] = len(items) - 1
        elif len(items) > FEW:
            self._places = {item: place for place, item in enumerate(items)}

    def remove(self, value: T) -> bool:
        """Take ``value`` out; whether it was in."""
        items = self.items
        places = self._places
        if places is None:
            if value not in items:
                return False
            items.remove(value)
            return True
        place = places.pop(value, -1)
        if place < 0:
            return False
        last = items.pop()
        if place < len(items):
            items[place] = last
            places[last] = place
        if not items:
            self._places = None
        return True


def put_in(kept: T | Bag[T] | None, value: T) -> T | Bag[T]:
    """What is kept in a place once ``value`` is added to ``kept``, which is None for nothing."""
    if kept is None:
        return value
    if not isinstance(kept, Bag):
        bag: Bag[T] = Bag()
        bag.add(kept)
        kept = bag
    kept.add(value)
    return kept


def take_out(kept: T | Bag[T] | None, value: T) -> T | Bag[T] | None:
    """What is left of ``kept`` without ``value``; None for nothing.

    Raises KeyError when it is not in there.
    """
    if isinstance(kept, Bag):
        if not kept.remove(value):
            raise KeyError(value)
        return kept if kept.items else None
    if kept is None or kept != value:
        raise KeyError(value)
    return None


def items_of(kept: T | Bag[T] | None) -> list[T]:
    """All that is kept in a place, to be read only."""
    if isinstance(kept, Bag):
        return kept.items
    return [] if kept is None else [kept]
