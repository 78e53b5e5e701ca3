"""Values in no particular order, of which each is removed in a few steps however many there are."""

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
