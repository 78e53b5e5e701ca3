"""Exchanges, bindings and routes.

A publish asks its exchange for the ``Route`` of its address. A route is the finished answer: the
destinations, each once, in the order in which they were bound. Routes are cached and carry the
topology version of the virtual host they were made in. Any change of topology raises that version,
which makes every cached route stale at once without a walk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mypy_extensions import mypyc_attr

from trivium.common.bag import Bag, items_of, put_in, take_out
from trivium.common.counters import UNREAD, ExchangeCounters
from trivium.common.values import matches
from trivium.errors import MAX_VISITS, PreconditionFailed, RouteTooCostly
from trivium.messages.message import Address, HeaderValue, Message
from trivium.messages.topics import (
    RESERVED,
    PatternTree,
    filter_pattern,
    is_reserved,
    key_pattern,
    levels_of,
)

ACCEPTED: Final = 0
"""Result of a publish that waits for nothing. A positive result is the write batch to wait for."""
REJECTED: Final = -1
"""Result of a publish that a destination refused (length limit with reject-publish)."""
UNROUTABLE: Final = -2
"""Result of a publish that leads nowhere (``VirtualHost.publish``)."""

#: The exchange type of RabbitMQ's plugin for delayed messages.
DELAYED_TYPE: Final = "x-delayed-message"

#: The types that ``make_exchange`` makes.
EXCHANGE_TYPES: Final = ("direct", "fanout", "topic", "headers", DELAYED_TYPE)

_HEADER_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


@mypyc_attr(allow_interpreted_subclasses=True)
class Destination:
    """Where bindings lead: a queue, a stream, an adapter's live subscription, an exchange."""

    #: name by which topology listings show it
    name: str

    def accept(self, message: Message) -> int:
        """Take one message: ACCEPTED, REJECTED, or the write batch that makes it durable here."""
        raise NotImplementedError

    def has_room(self, messages: int, size: int) -> bool:
        """Whether none of so many messages, with ``size`` bytes of payload, would be REJECTED."""
        return True

    def takes_runs(self, mode: int) -> bool:
        """Whether ``accept_run`` may be called now with messages of this mode: it refuses none."""
        return False

    def accept_run(self, messages: list[Message]) -> int:
        """``accept`` of messages that came in a row, with one answer for all.

        They have one address, one mode and one publisher; none of them expires, is delayed, is to
        be retained, or insists on its mode.
        """
        raise NotImplementedError

    def target_queue(self) -> Destination | None:
        """The queue that a message for it enters; None where there is none, or not just one."""
        return None

    @property
    def passes_on(self) -> bool:
        """Whether what it refuses goes to its dead letter exchange."""
        return False

    def combine(self, bindings: list[Binding]) -> Destination:
        """What stands in a route for this destination when ``bindings`` lead to it.

        The result is cached with the route. A session with overlapping subscriptions returns an
        object that knows the highest QoS and all subscription identifiers among them.
        """
        return self


@mypyc_attr(allow_interpreted_subclasses=True)
class Guard:
    """Decides which messages a binding may lead on; asked when their route is found."""

    #: whether that is up to each message; else it is up to the binding, which is in force or not
    is_live: bool = True

    def admits(self, exchange: Exchange, binding: Binding, key: bytes) -> bool:
        """Whether what is addressed to ``key`` may leave ``exchange`` by ``binding``."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Declarer(Guard):
    """Who declared something that passes messages on: that is in force while the declarer might
    declare it again. One object stands for all that somebody declared in a virtual host.

    As the guard of a binding it says whether that is in force.
    """

    is_live = False

    def __init__(self, name: str, row: bytes) -> None:
        #: the user
        self.name = name
        #: what is stored of it
        self.row = row

    def members(self) -> list[Declarer]:
        """Who declared it: this one, several who did, or nobody who is still there."""
        return [self]

    def may_pass_on(self, what: str, name: str, target: str, key: str | None) -> bool:
        """Whether an exchange or queue (``what``) may pass messages on to the exchange ``target``,
        by one routing key or, with None, by each."""
        raise NotImplementedError

    def may_set_policies(self) -> bool:
        """Whether what a policy says of such exchanges is in force."""
        raise NotImplementedError


class Nobody(Declarer):
    """Stands for a user that is gone, of whose declarations these were not in force then."""

    def __init__(self) -> None:
        super().__init__("", b"\x90")

    def members(self) -> list[Declarer]:
        return []

    def admits(self, exchange: Exchange, binding: Binding, key: bytes) -> bool:
        return False

    def may_pass_on(self, what: str, name: str, target: str, key: str | None) -> bool:
        return False

    def may_set_policies(self) -> bool:
        return False


@mypyc_attr(allow_interpreted_subclasses=True)
class Declarers:
    """The declarers of a broker, by what is stored of them."""

    def __init__(self) -> None:
        self.nobody = Nobody()

    def restored(self, row: bytes, vhost: str) -> Declarer | None:
        """The one of whom that is stored in a virtual host; None: the broker itself."""
        return None if len(row) == 0 else self.nobody

    def joint(self, members: list[Declarer], vhost: str) -> Declarer:
        """The one that stands for several, of whom each suffices, oldest first; equal ones share
        it."""
        return members[-1]


#: Those of a binding that has none. Nothing is ever put in.
_NO_ARGUMENTS: Final[dict[str, HeaderValue]] = {}


class Binding:
    """A rule that leads messages from an exchange to a destination.

    Two of one exchange are equal when to bind the one is to bind the other: their options may
    differ.

    ``pattern`` is the binding key (AMQP form), or an MQTT topic filter when ``is_filter``.
    ``arguments`` are the AMQP binding arguments; ``options`` belongs to the adapter that bound.
    """

    def __init__(
        self,
        destination: Destination,
        pattern: bytes,
        arguments: dict[str, HeaderValue] | None = None,
        is_filter: bool = False,
        options: object = None,
        guard: Guard | None = None,
    ) -> None:
        self.destination = destination
        self.pattern = pattern
        self.arguments: dict[str, HeaderValue] = arguments or _NO_ARGUMENTS
        self.is_filter = is_filter
        self.options = options
        #: of one that is not kept what its reader may read, of others who declared it; None: all
        #: that matches may leave
        self.guard = guard
        #: a ``$`` topic does not match (MQTT-4.7.2-1)
        self.hides_dollar = is_filter and pattern[:1] in (b"+", b"#")

    def levels(self) -> list[bytes]:
        """The pattern as a list of levels."""
        return filter_pattern(self.pattern) if self.is_filter else key_pattern(self.pattern)

    def _arguments_text(self) -> str:
        # As text, where ``1`` and ``True`` differ.
        return repr(sorted(self.arguments.items())) if self.arguments else ""

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Binding)
            and self.destination is other.destination
            and self.pattern == other.pattern
            and self.is_filter == other.is_filter
            and self._arguments_text() == other._arguments_text()
        )

    def __hash__(self) -> int:
        if not self.arguments:
            # As nearly all, of which a start may make very many.
            return hash((self.destination, self.pattern))
        return hash((self.destination, self.pattern, self._arguments_text()))


class Route:
    """The destinations of one address through one exchange."""

    def __init__(
        self, address: Address, destinations: list[Destination], topology_version: int
    ) -> None:
        self.address = address
        self.destinations = destinations
        self.topology_version = topology_version
        #: of the exchange that it begins at, where it is the whole route of a message
        self.counters = UNREAD
        #: whether ``resolve`` must be asked, with the message, for the route to publish by
        self.depends_on_message = False

    @property
    def cost(self) -> int:
        """Bytes that it takes to remember it, about: itself, its address, as it came and as it is
        kept, and its destinations."""
        return 256 + 2 * len(self.address.key) + 128 * len(self.destinations)

    def resolve(self, message: Message) -> Route:
        """The route of this very message; the route itself unless it depends on the message."""
        return self

    def publish(self, message: Message) -> int:
        """Give ``message`` to every destination: ACCEPTED, a write batch to wait for, or REJECTED.

        With REJECTED the other destinations have taken the message all the same, as in RabbitMQ.
        """
        result = ACCEPTED
        self.counters.routed += len(self.destinations)
        for destination in self.destinations:
            accepted = destination.accept(message)
            if accepted != ACCEPTED and result != REJECTED:
                result = accepted
        return result

    def observe(self, message: Message) -> None:
        """``message`` comes by this route, but reaches no destination now."""

    def takes_runs(self, mode: int) -> bool:
        """Whether messages of this mode may come together (``Destination.accept_run``): they all
        go to the one destination, which takes them."""
        return (
            len(self.destinations) == 1
            and not self.depends_on_message
            and self.destinations[0].takes_runs(mode)
        )

    def offer(self, message: Message, wanted: list[Destination] | None) -> list[Destination]:
        """Give ``message`` to every destination, or to those of them that are ``wanted``.

        The ones that refused it, and did not pass it on, are returned, to be offered it again.
        """
        refused: list[Destination] = []
        for destination in self.destinations:
            if wanted is not None and destination not in wanted:
                continue
            if wanted is None:
                self.counters.routed += 1
            if destination.accept(message) == REJECTED:
                queue = destination.target_queue()
                if queue is None or not queue.passes_on:
                    refused.append(destination)
        return refused


class RefusedRoute(Route):
    """The route of an address to which its publisher may not publish: it leads nowhere."""

    def __init__(self, address: Address, topology_version: int) -> None:
        super().__init__(address, [], topology_version)
        # So that nobody takes it for one that is known.
        self.depends_on_message = True


class CostlyRoute(Route):
    """The route of an address that is too costly to find: no message has one."""

    def __init__(self, address: Address, topology_version: int) -> None:
        super().__init__(address, [], topology_version)
        self.depends_on_message = True

    def resolve(self, message: Message) -> Route:
        """Raises RouteTooCostly."""
        raise RouteTooCostly


#: Visits (``Exchange.visits``) that take about as long as one delivery.
DELIVERY_VISITS: Final = 8

#: Deliveries that messages which are published together, in one turn, may make.
MAX_DELIVERIES: Final = 131_072


class Demand:
    """What messages that are to be published together ask of their destinations."""

    def __init__(self) -> None:
        #: how many they make
        self.deliveries = 0
        self._counts: dict[Destination, int] = {}
        self._sizes: dict[Destination, int] = {}

    def add(self, route: Route, size: int, count: int = 1) -> None:
        """Messages with ``size`` bytes of payload in all by ``route``, which is their very own."""
        self.deliveries += count * len(route.destinations)
        for destination in route.destinations:
            self._counts[destination] = self._counts.get(destination, 0) + count
            self._sizes[destination] = self._sizes.get(destination, 0) + size

    def add_work(self, visits: int) -> None:
        """So many visits were made to find the routes."""
        self.deliveries += visits // DELIVERY_VISITS

    @property
    def is_too_much(self) -> bool:
        """Whether it would hold up everybody."""
        return self.deliveries > MAX_DELIVERIES

    def refused_by(self) -> Destination | None:
        """A destination that has no room for all of it."""
        for destination, count in self._counts.items():
            if not destination.has_room(count, self._sizes[destination]):
                return destination
        return None


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange:
    """Base of the exchange types: keeps the bindings, answers which of them match."""

    kind: str = ""
    #: whether the same address always has the same route
    routes_by_key: bool = True
    #: whether the routing key makes any difference
    reads_key: bool = True

    def __init__(
        self,
        name: str,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, HeaderValue] | None = None,
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: dict[str, HeaderValue] = {} if arguments is None else arguments
        #: since the start
        self.counters = ExchangeCounters()
        #: whether the broker alone publishes there: nothing else may lead to it
        self.is_brokers_own = False
        #: who gave it an alternate exchange; None: the broker, or it has none
        self.declarer: Declarer | None = None
        #: what the last ``match`` looked at, beyond what it found: nodes of patterns, arguments
        self.visits = 0
        self._destination: ExchangeDestination | None = None
        # In binding order, each under itself, to be found by an equal one.
        self._bindings: dict[Binding, Binding] = {}
        self._prepare()

    @property
    def alternate(self) -> str | None:
        """Name of the exchange that takes what this one cannot route (``alternate-exchange``)."""
        name = self.arguments.get("alternate-exchange")
        return name if isinstance(name, str) else None

    def destination(self) -> ExchangeDestination:
        """The one object that stands for this exchange as a destination of bindings."""
        if self._destination is None:
            self._destination = ExchangeDestination(self)
        return self._destination

    def deleted(self) -> ExchangeDestination | None:
        """It is deleted: what stood for it as a destination, if anything did."""
        # They would keep each other in memory.
        destination = self._destination
        self._destination = None
        return destination

    def bindings(self) -> list[Binding]:
        """All bindings from this exchange, oldest first."""
        return list(self._bindings.values())

    def find(self, binding: Binding) -> Binding | None:
        """The binding from this exchange that is the same as ``binding``."""
        return self._bindings.get(binding)

    @property
    def is_used(self) -> bool:
        """Whether there is any binding from this exchange."""
        return len(self._bindings) > 0

    def bind(self, binding: Binding) -> bool:
        """Add a binding, or replace the options of the same one; whether it is new."""
        count = len(self._bindings)
        known = self._bindings.setdefault(binding, binding)
        if len(self._bindings) == count:
            known.options = binding.options
            known.guard = binding.guard
            return False
        self._added(binding)
        return True

    def unbind(self, binding: Binding) -> Binding | None:
        """Remove the binding that is the same as ``binding``; None if there was none."""
        known = self._bindings.pop(binding, None)
        if known is None:
            return None
        self._removed(known)
        return known

    def match(self, address: Address, message: Message | None) -> list[Binding]:
        """The bindings that lead a message with this address on. ``message`` is read only where
        ``routes_by_key`` is false. Raises RouteTooCostly."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Make what ``_added`` and ``_removed`` keep."""

    def _added(self, binding: Binding) -> None:
        raise NotImplementedError

    def _removed(self, binding: Binding) -> None:
        raise NotImplementedError


class DirectExchange(Exchange):
    """Binding key equal to routing key."""

    kind = "direct"

    def _prepare(self) -> None:
        self._by_key: dict[bytes, Binding | Bag[Binding]] = {}

    def match(self, address: Address, message: Message | None) -> list[Binding]:
        return items_of(self._by_key.get(address.key))

    def _added(self, binding: Binding) -> None:
        self._by_key[binding.pattern] = put_in(self._by_key.get(binding.pattern), binding)

    def _removed(self, binding: Binding) -> None:
        left = take_out(self._by_key.pop(binding.pattern), binding)
        if left is not None:
            self._by_key[binding.pattern] = left


class FanoutExchange(Exchange):
    """Every binding."""

    kind = "fanout"
    reads_key = False

    def match(self, address: Address, message: Message | None) -> list[Binding]:
        return self.bindings()

    def _added(self, binding: Binding) -> None:
        pass

    def _removed(self, binding: Binding) -> None:
        pass


class TopicExchange(Exchange):
    """Binding key or topic filter as a pattern over the levels of the routing key."""

    kind = "topic"

    def _prepare(self) -> None:
        self._tree: PatternTree[Binding] = PatternTree()
        # Those of them that name `$SYS`, which are few: for an event only these are looked at.
        self._own: PatternTree[Binding] = PatternTree()

    def match(self, address: Address, message: Message | None) -> list[Binding]:
        found = self._tree.match(levels_of(address.key))
        self.visits = self._tree.visits
        if address.key.startswith(b"$"):
            if is_reserved(address.key):
                return [binding for binding in found if not binding.is_filter]
            return [binding for binding in found if not binding.hides_dollar]
        return found

    def match_own(self, key: bytes) -> list[Binding]:
        """The bindings that lead on what the broker itself publishes: those that name ``$SYS``.
        None where they are too costly to find."""
        if len(self._own) == 0:
            return []
        try:
            found = self._own.match(levels_of(key))
        except RouteTooCostly:
            return []
        return [b for b in found if not isinstance(b.destination, ExchangeDestination)]

    def _added(self, binding: Binding) -> None:
        self._tree.add(binding.levels(), binding)
        if binding.pattern.startswith(RESERVED):
            self._own.add(binding.levels(), binding)

    def _removed(self, binding: Binding) -> None:
        self._tree.remove(binding.levels(), binding)
        if binding.pattern.startswith(RESERVED):
            self._own.remove(binding.levels(), binding)


class HeadersExchange(Exchange):
    """Binding arguments against message headers (``x-match``: all, any, all-with-x, any-with-x)."""

    kind = "headers"
    routes_by_key = False
    reads_key = False

    def match(self, address: Address, message: Message | None) -> list[Binding]:
        if message is None:
            return []
        if self.visits > MAX_VISITS:
            raise RouteTooCostly
        headers: dict[str, HeaderValue] = {}
        for name, value in message.properties().headers:
            headers.setdefault(name, value)
        return [b for b in self.bindings() if _headers_match(b.arguments, headers)]

    def _added(self, binding: Binding) -> None:
        # All are looked at for each message.
        self.visits += 1 + len(binding.arguments)

    def _removed(self, binding: Binding) -> None:
        self.visits -= 1 + len(binding.arguments)


def valid_headers_match(arguments: dict[str, HeaderValue]) -> bool:
    """Whether the ``x-match`` argument of a headers binding is absent or one of the four kinds."""
    return arguments.get("x-match", "all") in _HEADER_MATCHES


def _headers_match(arguments: dict[str, HeaderValue], headers: dict[str, HeaderValue]) -> bool:
    kind = arguments.get("x-match", "all")
    with_x = kind == "all-with-x" or kind == "any-with-x"
    wanted = [
        (name, value)
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    ]
    # A void argument asks for the header's presence alone.
    hits = 0
    for name, value in wanted:
        if name in headers and (value is None or matches(value, headers[name])):
            hits += 1
    if kind == "any" or kind == "any-with-x":
        return hits > 0
    return hits == len(wanted)


def make_exchange(
    kind: str,
    name: str,
    durable: bool = True,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: dict[str, HeaderValue] | None = None,
) -> Exchange | None:
    """A new exchange of the type called ``kind``; None when there is no such type.

    Raises PreconditionFailed for a delayed exchange (``x-delayed-message``) of no known type.
    """
    if kind == "direct":
        return DirectExchange(name, durable, auto_delete, internal, arguments)
    if kind == "fanout":
        return FanoutExchange(name, durable, auto_delete, internal, arguments)
    if kind == "topic":
        return TopicExchange(name, durable, auto_delete, internal, arguments)
    if kind == "headers":
        return HeadersExchange(name, durable, auto_delete, internal, arguments)
    if kind == DELAYED_TYPE:
        # Any exchange delays messages. The type is for clients that know it from elsewhere.
        inner = None if arguments is None else arguments.get("x-delayed-type")
        made: Exchange | None = None
        if isinstance(inner, str) and inner != DELAYED_TYPE:
            made = make_exchange(inner, name, durable, auto_delete, internal, arguments)
        if made is None:
            raise PreconditionFailed(
                "invalid argument 'x-delayed-type': it must be an exchange type"
            )
        made.kind = DELAYED_TYPE
        return made
    return None


class ExchangeDestination(Destination):
    """An exchange as the destination of a binding (exchange-to-exchange)."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.name = exchange.name


def group_by_destination(bindings: Iterable[Binding]) -> list[list[Binding]]:
    """Bindings grouped by their destination, in the order of each group's first."""
    groups: dict[int, list[Binding]] = {}
    for binding in bindings:
        groups.setdefault(id(binding.destination), []).append(binding)
    return list(groups.values())


__all__ = [
    "ACCEPTED",
    "REJECTED",
    "Binding",
    "CostlyRoute",
    "Declarer",
    "Declarers",
    "Destination",
    "DirectExchange",
    "Exchange",
    "ExchangeDestination",
    "FanoutExchange",
    "Guard",
    "HeadersExchange",
    "RefusedRoute",
    "Route",
    "TopicExchange",
    "group_by_destination",
    "make_exchange",
    "valid_headers_match",
]
