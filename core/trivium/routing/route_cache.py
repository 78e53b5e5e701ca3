"""Routes that are remembered, within bounds, and forgotten when the topology has changed."""

from __future__ import annotations

from collections import deque
from typing import Final

from trivium.routing.exchanges import Route

#: Routes that are looked at with each that is remembered.
_LOOKS: Final = 2


class RouteCache:
    """Routes by what their publishers say, at most ``most``, of ``most_cost`` (``Route.cost``).

    It is emptied when full. A route of before the topology changed would keep queues in memory that
    are deleted: with each that is remembered, the next two of those that are there are looked at,
    one after the other and then from the first on, and forgotten if they are stale.
    """

    def __init__(self, most: int, most_cost: int) -> None:
        self.routes: dict[object, Route] = {}
        #: what they take of memory, about
        self.cost = 0
        self._most = most
        self._most_cost = most_cost
        #: each once; the next one to be looked at is the first
        self._places: deque[object] = deque()

    def remember(self, place: object, route: Route) -> None:
        """Put a route there, which is up to date."""
        routes = self.routes
        cost = route.cost
        before = routes.get(place)
        self.cost += cost if before is None else cost - before.cost
        if len(routes) >= self._most or self.cost > self._most_cost:
            routes.clear()
            self._places.clear()
            self.cost = cost
            before = None
        if before is None:
            self._places.append(place)
        routes[place] = route
        for _ in range(min(_LOOKS, len(self._places))):
            self._look(route.topology_version)

    def _look(self, version: int) -> None:
        """Forget the next route unless it is of this version."""
        place = self._places.popleft()
        found = self.routes[place]
        if found.topology_version == version:
            self._places.append(place)
        else:
            del self.routes[place]
            self.cost -= found.cost
