"""The routes of a virtual host: found by walking its bindings, and remembered until they change."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from trivium.errors import MAX_VISITS, RouteTooCostly
from trivium.idempotence.deduplication import (
    EXCHANGE,
    DeduplicatedRoute,
    deduplication_id,
    exchange_settings,
)
from trivium.messages.message import Address, Message
from trivium.routing.exchanges import (
    Binding,
    CostlyRoute,
    Destination,
    Exchange,
    ExchangeDestination,
    Route,
    group_by_destination,
)
from trivium.routing.route_cache import RouteCache
from trivium.routing.taps import Tap
from trivium.vhost.policies import EXCHANGES

if TYPE_CHECKING:
    from trivium.vhost.virtual_host import VirtualHost

#: Routes kept per virtual host; the cache is emptied when full. Bounds the memory that a client
#: which publishes to ever new addresses can take, with what they take of it (``Route.cost``).
MAX_ROUTES: Final = 65_536
MAX_COST: Final = 128 << 20


class MessageRoute(Route):
    """The route of an address whose destinations also depend on the message (headers exchange)."""

    def __init__(self, routes: Routes, version: int, exchange: Exchange, address: Address) -> None:
        super().__init__(address, [], version)
        self.depends_on_message = True
        self.counters = exchange.counters
        self._routes = routes
        self._exchange = exchange

    def resolve(self, message: Message) -> Route:
        return self._routes.of_message(self._exchange, [self.address], message)


class TappedRoute(Route):
    """A route whose messages somebody sees: none goes past ``publish``."""

    def __init__(self, route: Route, tap: Tap) -> None:
        super().__init__(route.address, route.destinations, route.topology_version)
        self.counters = route.counters
        # So that each message is published.
        self.depends_on_message = True
        self._route = route
        self._tap = tap

    def resolve(self, message: Message) -> Route:
        found = self._route.resolve(message)
        return self if found is self._route else found

    def publish(self, message: Message) -> int:
        self._tap.published(message, self)
        return self._route.publish(message)

    def observe(self, message: Message) -> None:
        self._tap.published(message, self)

    def takes_runs(self, mode: int) -> bool:
        return False

    def offer(self, message: Message, wanted: list[Destination] | None) -> list[Destination]:
        return self._route.offer(message, wanted)


class Routes:
    """Of one virtual host."""

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost = vhost
        self._cache = RouteCache(MAX_ROUTES, MAX_COST)
        # Of the walk that is under way: what was looked at, and found.
        self._visits = 0
        self._found = 0

    @property
    def cost(self) -> int:
        """What they take of memory, about."""
        return self._cache.cost

    def of_key(self, exchange: Exchange, key: bytes) -> Route:
        """The route of ``key`` through ``exchange``, remembered until the topology changes.

        One that is too costly to find refuses its messages (``CostlyRoute``).
        """
        version = self._vhost.topology_version
        place = (exchange.name, key)
        found = self._cache.routes.get(place)
        if found is not None and found.topology_version == version:
            return found
        address = Address(exchange.name, key) if found is None else found.address
        walked: Route | None = None
        if "x-message-deduplication" not in exchange.arguments:
            try:
                walked = self._walk(exchange, [address], None)
            except RouteTooCostly:
                walked = CostlyRoute(address, version)
                self._cache.remember(place, walked)
                return walked
        if walked is None:
            walked = MessageRoute(self, version, exchange, address)
        walked = self._tapped(walked, exchange)
        self._cache.remember(place, walked)
        return walked

    def of_keys(self, exchange: Exchange, keys: list[bytes], message: Message) -> Route:
        """The route of a message with several routing keys: each destination once. Raises
        RouteTooCostly."""
        first = self.of_key(exchange, keys[0])
        if len(keys) == 1:
            return first.resolve(message)
        others = [key for key in dict.fromkeys(keys) if key != keys[0]]
        addresses = [first.address] + [Address(exchange.name, key) for key in others]
        return self.of_message(exchange, addresses, message)

    def of_message(self, exchange: Exchange, addresses: list[Address], message: Message) -> Route:
        """The route of this very message, which has the first address and further keys. Raises
        RouteTooCostly."""
        route = self._walk(exchange, addresses, message)
        assert route is not None
        if "x-message-deduplication" in exchange.arguments:
            settings = exchange_settings(exchange.arguments, exchange.name)
            identity = deduplication_id(message, settings.header) if settings.is_on else None
            if identity is not None:
                window = self._vhost.deduplication.window(EXCHANGE, exchange.name)
                route = DeduplicatedRoute(route, window, settings, identity)
        return self._tapped(route, exchange)

    def _tapped(self, route: Route, exchange: Exchange) -> Route:
        """``route``, whose messages are seen where somebody looks on; not the broker's own."""
        tap = self._vhost.tap
        return route if tap is None or exchange.is_brokers_own else TappedRoute(route, tap)

    def _walk(
        self, exchange: Exchange, addresses: list[Address], message: Message | None
    ) -> Route | None:
        """Walk the bindings from ``exchange``: exchange-to-exchange bindings and alternates too.

        Without ``message`` there is no route once an exchange is met that has to see it. Raises
        RouteTooCostly.
        """
        self._visits = self._found = 0
        try:
            return self._walk_all(exchange, addresses, message)
        finally:
            self._vhost.broker.count_work(self._visits + self._found)

    def _match(
        self, exchange: Exchange, address: Address, message: Message | None
    ) -> list[Binding]:
        """The bindings in force that match. Raises RouteTooCostly."""
        try:
            matched = exchange.match(address, message)
        except RouteTooCostly:
            self._visits += MAX_VISITS
            raise
        self._found += len(matched)
        self._visit(1 + exchange.visits)
        return _in_force(matched, exchange)

    def _visit(self, visits: int) -> None:
        """So much was looked at. Raises RouteTooCostly."""
        self._visits += visits
        if self._visits > MAX_VISITS:
            raise RouteTooCostly

    def _walk_all(
        self, exchange: Exchange, addresses: list[Address], message: Message | None
    ) -> Route | None:
        bindings: list[Binding] = []
        visited: set[str] = set()
        pending = deque([exchange])
        while pending:
            current = pending.popleft()
            if current.name in visited:
                continue
            visited.add(current.name)
            if message is None and not current.routes_by_key:
                return None
            matched = self._match(current, addresses[0], message)
            admitted = _admitted(matched, current, addresses[0])
            if len(addresses) > 1 and current.reads_key:
                admitted = self._with_matches(admitted, current, addresses, message)
            for binding in admitted:
                if isinstance(binding.destination, ExchangeDestination):
                    self._visit(1)
                    pending.append(binding.destination.exchange)
                else:
                    bindings.append(binding)
            if not matched and not admitted:
                alternate = self._alternate_of(current)
                if alternate is not None:
                    pending.append(alternate)
        destinations = [
            group[0].destination.combine(group) for group in group_by_destination(bindings)
        ]
        route = Route(addresses[0], destinations, self._vhost.topology_version)
        route.counters = exchange.counters
        return route

    def _with_matches(
        self,
        matched: list[Binding],
        exchange: Exchange,
        addresses: list[Address],
        message: Message | None,
    ) -> list[Binding]:
        """``matched``, and what else the addresses behind the first one match, each binding once.
        Raises RouteTooCostly."""
        found = list(matched)
        seen = {id(binding) for binding in matched}
        for address in addresses[1:]:
            also = self._match(exchange, address, message)
            for binding in _admitted(also, exchange, address):
                if id(binding) not in seen:
                    seen.add(id(binding))
                    found.append(binding)
        return found

    def _alternate_of(self, exchange: Exchange) -> Exchange | None:
        """The exchange that takes what ``exchange`` cannot route, by argument or policy."""
        vhost = self._vhost
        alternate = exchange.alternate
        if alternate is not None:
            return vhost.exchange_to(alternate) if has_alternate(exchange) else None
        policy = vhost.policies.match(exchange.name, EXCHANGES) if len(vhost.policies) else None
        if policy is None or not policy.passes_on:
            return None
        name = policy.definition.get("alternate-exchange")
        return vhost.exchange_to(name) if isinstance(name, str) else None


def has_alternate(exchange: Exchange) -> bool:
    """Whether the alternate exchange that ``exchange`` was declared with is in force."""
    declarer = exchange.declarer
    alternate = exchange.alternate
    return alternate is not None and (
        declarer is None or declarer.may_pass_on("exchange", exchange.name, alternate, None)
    )


def _in_force(matched: list[Binding], exchange: Exchange) -> list[Binding]:
    """Those of the bindings that are in force. The others are as if they were not there."""
    for binding in matched:
        if binding.guard is not None and not binding.guard.is_live:
            break
    else:
        return matched
    return [
        binding
        for binding in matched
        if binding.guard is None
        or binding.guard.is_live
        or binding.guard.admits(exchange, binding, b"")
    ]


def _admitted(matched: list[Binding], exchange: Exchange, address: Address) -> list[Binding]:
    """Those of the bindings, all in force, by which what has this address may leave."""
    for binding in matched:
        if binding.guard is not None and binding.guard.is_live:
            break
    else:
        return matched
    return [
        binding
        for binding in matched
        if binding.guard is None
        or not binding.guard.is_live
        or binding.guard.admits(exchange, binding, address.key)
    ]
