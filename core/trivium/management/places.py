"""Who is sent live figures at a time, and who gives a place up for another.

So that neither clients that take nothing nor those of one user keep the others away: who is behind
gives way to anybody. Else a user with most places gives one to a user who would then have no more
than that one, and so do the addresses of one user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from trivium.common.addresses import subscriber_address

#: Places of one broker.
MAX_PLACES: Final = 16
#: So many events in a row, before each of which a client had yet to take some of what it was sent
#: earlier, and it is behind.
BEHIND_EVENTS: Final = 3


class Place:
    """That of one client. ``is_behind`` says whether it has yet to take something, ``drop`` closes
    its connection."""

    __slots__ = ("address", "drop", "is_behind", "is_given_up", "missed", "user")

    def __init__(
        self,
        user: str,
        address: str,
        is_behind: Callable[[], bool] = lambda: False,
        drop: Callable[[], None] = lambda: None,
    ) -> None:
        self.user = user
        self.address = subscriber_address(address)
        self.is_behind = is_behind
        self.drop = drop
        #: events in a row before which it was behind
        self.missed = 0
        #: whether another has it
        self.is_given_up = False

    def look(self) -> None:
        """It is about to be sent one more event."""
        self.missed = self.missed + 1 if self.is_behind() else 0


class Places:
    """Those of one broker."""

    def __init__(self) -> None:
        # The one that is there for longest comes first.
        self._taken: list[Place] = []

    def take(self, place: Place) -> bool:
        """One more client has come; whether there is a place for it."""
        if len(self._taken) >= MAX_PLACES:
            found = self._who_gives_way(place)
            if found is None:
                return False
            self.leave(found)
            found.is_given_up = True
            if found.missed >= BEHIND_EVENTS:
                found.drop()
        self._taken.append(place)
        return True

    def leave(self, place: Place) -> None:
        """A client has had enough, or has given its place up."""
        if place in self._taken:
            self._taken.remove(place)

    def _who_gives_way(self, comes: Place) -> Place | None:
        """Who is behind for longest; else of those who have more, who is there for longest."""
        worst = max(self._taken, key=lambda each: each.missed)
        if worst.missed >= BEHIND_EVENTS:
            return worst
        users = Counter(each.user for each in self._taken)
        user, count = users.most_common(1)[0]
        if count <= users[comes.user] + 1:
            user = comes.user
        addresses = Counter(each.address for each in self._taken if each.user == user)
        if not addresses:
            return None
        address, count = addresses.most_common(1)[0]
        if user == comes.user and count <= addresses[comes.address] + 1:
            return None
        return next(each for each in self._taken if (each.user, each.address) == (user, address))
