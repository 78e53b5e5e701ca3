"""A virtual host: the exchanges, queues, streams and bindings of one namespace, and their routes.

What is durable is written to tables in the write batch of the change and restored from them. All
methods that clients can cause to fail raise a ``TopologyError`` whose text is fit for the client.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import Final

from trivium.common.equivalence import UnknownArguments, require_same, require_same_arguments
from trivium.common.values import pack, unpack
from trivium.errors import AccessRefused, NotFound, PreconditionFailed, ResourceLocked
from trivium.groups.membership import Memberships
from trivium.groups.offsets import Groups
from trivium.host import Host
from trivium.idempotence.deduplication import (
    ARGUMENTS as DEDUPLICATION_ARGUMENTS,
)
from trivium.idempotence.deduplication import (
    EXCHANGE,
    QUEUE,
    DeduplicatedRoute,
    deduplication_id,
    exchange_settings,
)
from trivium.idempotence.producers import Producers
from trivium.messages.message import Address, HeaderValue, Message
from trivium.queues.dead_letters import DeadLetters
from trivium.queues.queue import Queue
from trivium.queues.settings import (
    ARGUMENTS,
    CLASSIC,
    KNOWN_ARGUMENTS,
    QUEUE_TYPE,
    STREAM,
    check_exchange_name,
    check_queue_arguments,
    check_shared,
    queue_type,
    settings_of,
    unnamed,
)
from trivium.routing.exchanges import (
    EXCHANGE_TYPES,
    REJECTED,
    Binding,
    Destination,
    DirectExchange,
    Exchange,
    ExchangeDestination,
    Route,
    group_by_destination,
    make_exchange,
)
from trivium.routing.retained import RETAINING_EXCHANGE, RetainedMessages
from trivium.storage.base import Log
from trivium.streams.joining import RecoveredJoins
from trivium.streams.namespace import StreamNamespace
from trivium.streams.settings import check_stream_arguments, stream_settings_of
from trivium.streams.stream import MAX_PARTITIONS, Stream
from trivium.vhost.delays import QUEUE_NAME as DELAYED_QUEUE
from trivium.vhost.delays import Delays
from trivium.vhost.pending_changes import PendingChanges
from trivium.vhost.policies import EXCHANGES, QUEUES, STREAMS, Policies, Policy
from trivium.vhost.policy_walk import PolicyWalk
from trivium.vhost.redelivered import RedeliveredOffsets

#: Routes kept per virtual host; the cache is emptied when full. Bounds the memory that a client
#: which publishes to ever new addresses can take.
MAX_ROUTES: Final = 65_536

#: Longest name of a stream, in UTF-8: what fits an AMQP short string.
MAX_STREAM_NAME_BYTES: Final = 255

#: Arguments that mean something on an exchange.
EXCHANGE_ARGUMENTS: Final = DEDUPLICATION_ARGUMENTS | {"alternate-exchange", "x-delayed-type"}

#: Exchanges that every virtual host has, with their types (AMQP 0-9-1, 3.1.3).
PREDECLARED: Final = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


class DefaultExchange(DirectExchange):
    """The exchange without a name: every queue is bound to it by its own name."""

    def __init__(self, vhost: VirtualHost) -> None:
        super().__init__("")
        self._vhost = vhost

    def match(self, address: Address, message: Message | None) -> list[Binding]:
        try:
            name = address.key.decode()
        except UnicodeDecodeError:
            return []
        queue = self._vhost.queues.get(name)
        if queue is not None and queue.adapter and queue.owner is None:
            # Messages reach a session through its subscriptions only. A private queue with an
            # owner is there to be addressed: it takes the replies to that connection.
            return []
        destination: Destination | None = queue
        if destination is None:
            destination = self._vhost.streams.get(name)
        return [] if destination is None else [Binding(destination, address.key)]


class MessageRoute(Route):
    """The route of an address whose destinations also depend on the message (headers exchange)."""

    def __init__(self, vhost: VirtualHost, exchange: Exchange, address: Address) -> None:
        super().__init__(address, [], vhost.topology_version)
        self.depends_on_message = True
        self._vhost = vhost
        self._exchange = exchange

    def resolve(self, message: Message) -> Route:
        return self._vhost.route_of(self._exchange, [self.address], message)


class VirtualHost(StreamNamespace):
    """One namespace. ``name`` is unique in its broker."""

    def __init__(
        self,
        broker: Host,
        name: str,
        dead_letters: DeadLetters,
        recovered_joins: RecoveredJoins,
        default_delivery: int,
    ) -> None:
        super().__init__(broker, name, dead_letters, recovered_joins)
        self._default_delivery = default_delivery
        #: raised by every change that may change a route
        self.topology_version = 1
        #: exchanges, queues and streams made or deleted so lately that it may not be durable
        self.changes = PendingChanges(broker.storage)
        self._unknown = UnknownArguments()
        storage = broker.storage
        self._exchange_rows = storage.table(f"exchanges/{name}")
        self._queue_rows = storage.table(f"queues/{name}")
        self._stream_rows = storage.table(f"streams/{name}")
        self._binding_rows = storage.table(f"bindings/{name}")
        self.retained = RetainedMessages(storage.table(f"retained/{name}"))
        self.policies = Policies(storage.table(f"policies/{name}"))
        self.policy_walk = PolicyWalk(self)
        self.groups = Groups(storage.table(f"groups/{name}"))
        self.memberships = Memberships(self, self.groups)
        self.producers = Producers(storage.table(f"producers/{name}"), broker)
        #: producers of transactions: their numbers count transactions
        self.transactional = Producers(storage.table(f"transactional/{name}"), broker)
        self._redelivered = RedeliveredOffsets(storage.table(f"doubts/{name}"))
        self.delays = Delays(self, queue_log_name(name, DELAYED_QUEUE))
        self._routes: dict[tuple[str, bytes], Route] = {}
        # By identity of the owner or destination, so that whoever goes finds its own at once.
        self._owned: dict[int, dict[str, Queue]] = {}
        self._bound: dict[int, dict[int, tuple[Exchange, Binding]]] = {}
        self.exchanges[""] = DefaultExchange(self)
        for exchange_name, kind in PREDECLARED:
            exchange = make_exchange(kind, exchange_name)
            assert exchange is not None
            self.exchanges[exchange_name] = exchange
        self._restore()
        self.deduplication.keep_only(
            {(EXCHANGE, name) for name in self.exchanges} | {(QUEUE, name) for name in self.queues}
        )
        self.delays.restore()

    # Exchanges

    def exchange(self, name: str) -> Exchange:
        """The exchange called ``name``. Raises NotFound."""
        found = self.exchanges.get(name)
        if found is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def declare_exchange(
        self,
        name: str,
        kind: str,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, HeaderValue] | None = None,
    ) -> Exchange:
        """The exchange with these properties, made when it is new.

        Raises PreconditionFailed where it exists with others or there is no such type, and
        AccessRefused for a new name that starts with ``amq.``.
        """
        wanted = {} if arguments is None else arguments
        what = f"exchange '{name}' in vhost '{self.name}'"
        self._unknown.note(what, wanted, EXCHANGE_ARGUMENTS)
        if kind not in EXCHANGE_TYPES:
            raise PreconditionFailed(f"unknown exchange type '{kind}'")
        known = self.exchanges.get(name)
        if known is not None:
            require_same(
                what,
                [
                    ("type", known.kind, kind),
                    ("durable", known.durable, durable),
                    ("auto_delete", known.auto_delete, auto_delete),
                    ("internal", known.internal, internal),
                ],
            )
            require_same_arguments(what, known.arguments, wanted, EXCHANGE_ARGUMENTS)
            return known
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        check_exchange_name(wanted, "alternate-exchange", what)
        exchange_settings(wanted, what)
        made = make_exchange(kind, name, durable, auto_delete, internal, wanted)
        assert made is not None
        self.exchanges[name] = made
        if durable:
            self._exchange_rows.put(
                name.encode(), pack([kind, auto_delete, internal, made.arguments])
            )
            self.changes.note(EXCHANGE, name)
        self.topology_version += 1
        return made

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        """Delete an exchange and the bindings from and to it; nothing happens when there is none.

        Raises AccessRefused for predeclared ones, PreconditionFailed when it has bindings and
        ``if_unused`` is set.
        """
        what = f"exchange '{name}' in vhost '{self.name}'"
        if not name or name.startswith("amq."):
            raise AccessRefused(f"deletion of system {what} not allowed")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.is_used:
            raise PreconditionFailed(f"{what} in use")
        del self.exchanges[name]
        if exchange.durable:
            self._exchange_rows.delete(name.encode())
            self.changes.note(EXCHANGE, name)
        for binding in exchange.bindings():
            self._forget_binding(exchange, binding)
        if exchange.as_destination is not None:
            self._unbind_everywhere(exchange.as_destination)
        self.deduplication.drop(EXCHANGE, name)
        self.topology_version += 1

    # Queues

    def queue(self, name: str, connection: object = None, adapter: str = "") -> Queue:
        """The queue called ``name``, for use by ``connection``; ``adapter`` asks for its own state.

        Raises NotFound, AccessRefused when it is another adapter's private queue, and
        ResourceLocked when it is exclusive to another connection.
        """
        found = self.queues.get(name)
        if found is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        if found.adapter != adapter and found.adapter:
            raise AccessRefused(f"queue '{name}' in vhost '{self.name}' is private")
        if found.owner is not None and found.owner is not connection:
            raise self._locked(name)
        return found

    def _locked(self, name: str) -> ResourceLocked:
        return ResourceLocked(
            f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'."
            " It could be originally declared on another connection or the exclusive"
            " property value does not match that of the original declaration."
        )

    def declare_queue(
        self,
        name: str,
        durable: bool = False,
        auto_delete: bool = False,
        owner: object = None,
        arguments: dict[str, HeaderValue] | None = None,
        adapter: str = "",
        connection: object = None,
    ) -> Queue:
        """The queue with these properties, made when it is new; an empty name makes one up.

        ``owner`` is the connection of an exclusive queue, ``connection`` the one that asks (by
        default the owner). Raises as ``queue`` does, PreconditionFailed for other properties, and
        AccessRefused for a new name that starts with ``amq.``.
        """
        wanted = {} if arguments is None else dict(arguments)
        if wanted.get("x-queue-type") == CLASSIC:
            # What is the default makes no difference to a declaration that does not name it.
            del wanted["x-queue-type"]
        what = f"queue '{name}' in vhost '{self.name}'"
        self._unknown.note(what, wanted, KNOWN_ARGUMENTS)
        # An exclusive queue goes with its connection, so it has nothing to keep on disk.
        is_durable = durable and owner is None
        if name in self.queues:
            known = self.queue(name, owner if connection is None else connection, adapter)
            if (known.owner is None) != (owner is None):
                raise self._locked(name)
            require_same(
                what,
                [
                    ("durable", known.durable, is_durable),
                    ("auto_delete", known.auto_delete, auto_delete),
                ],
            )
            names = ARGUMENTS[queue_type(known.arguments)]
            require_same_arguments(what, known.arguments, wanted, names)
            known.touch()
            return known
        if name in self.streams:
            self.require_stream(name, durable, owner is not None, auto_delete)
            require_same_arguments(what, {QUEUE_TYPE: STREAM}, wanted, (QUEUE_TYPE,))
        if name.startswith("amq.") and not adapter:
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        check_queue_arguments(wanted, what, durable, owner is not None, auto_delete)
        if not name and queue_type(wanted) != CLASSIC:
            raise unnamed(queue_type(wanted))
        if not name:
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
        if is_durable:
            self._queue_rows.put(name.encode(), pack([auto_delete, wanted, adapter]))
            self.changes.note(QUEUE, name)
        made = self._make_queue(name, is_durable, auto_delete, owner, wanted, adapter)
        made.touch()
        self.topology_version += 1
        return made

    def _make_queue(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object,
        arguments: dict[str, HeaderValue],
        adapter: str,
    ) -> Queue:
        logs: list[Log] = []
        if self._is_on_disk(durable, owner, arguments):
            for log_name in self._log_names(name, arguments):
                log = self.broker.storage.log(log_name)
                self._redelivered.restore(log_name, log)
                logs.append(log)
        queue = Queue(self, name, logs, durable, auto_delete, owner, arguments, adapter)
        self.queues[name] = queue
        if owner is not None:
            self._owned.setdefault(id(owner), {})[name] = queue
        self.apply_policy_to_queue(queue)
        self.policy_walk.add(queue)
        return queue

    def _is_on_disk(self, durable: bool, owner: object, arguments: dict[str, HeaderValue]) -> bool:
        return (
            durable
            and owner is None
            and self.broker.storage.is_durable
            and arguments.get("x-storage") != "memory"
        )

    def _log_names(self, queue_name: str, arguments: dict[str, HeaderValue]) -> list[str]:
        """One log per priority, lowest first."""
        highest = settings_of(arguments, {}).max_priority
        return [queue_log_name(self.name, queue_name, n) for n in range(highest + 1)]

    def delete_queue(self, queue: Queue, if_unused: bool = False, if_empty: bool = False) -> int:
        if self.queues.get(queue.name) is not queue:
            return 0
        if if_unused and len(queue.consumers):
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' in use")
        count = len(queue)
        must_arrive = queue.given_up.count > 0 and queue.settings.keeps_dead_letters
        if if_empty and (count or len(queue.waiting) or must_arrive):
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' not empty")
        del self.queues[queue.name]
        if queue.owner is not None:
            owned = self._owned[id(queue.owner)]
            del owned[queue.name]
            if not owned:
                del self._owned[id(queue.owner)]
        if queue.durable and queue.owner is None:
            self._queue_rows.delete(queue.name.encode())
            self.changes.note(QUEUE, queue.name)
        if self._is_on_disk(queue.durable, queue.owner, queue.arguments):
            for log_name in self._log_names(queue.name, queue.arguments):
                self.broker.storage.drop_log(log_name)
                self._redelivered.forget(log_name)
        self._unbind_everywhere(queue)
        self.deduplication.drop(QUEUE, queue.name)
        self.topology_version += 1
        queue.deleted()
        return count

    def delete_queues_of(self, connection: object) -> None:
        """Delete the exclusive queues of a connection that is gone."""
        for queue in list(self._owned.get(id(connection), {}).values()):
            self.delete_queue(queue)

    # Streams

    def declare_stream(
        self,
        name: str,
        partitions: int = 1,
        arguments: dict[str, HeaderValue] | None = None,
        term: str = "stream",
    ) -> Stream:
        """The stream with this many partitions, made when it is new. ``term`` is the client's.

        Raises PreconditionFailed when it exists with another number or other arguments, when a
        queue has the name, and for arguments that would not be honoured; AccessRefused for a new
        name that starts with ``amq.``.
        """
        wanted = {} if arguments is None else arguments
        what = f"{term} '{name}' in vhost '{self.name}'"
        self._unknown.note(what, wanted, KNOWN_ARGUMENTS | ARGUMENTS[STREAM])
        known = self.streams.get(name)
        if known is not None:
            require_same(what, [("partitions", len(known.partitions), partitions)])
            # All of them have the same type, and it need not be named.
            require_same_arguments(what, known.arguments, wanted, ARGUMENTS[STREAM] - {QUEUE_TYPE})
            return known
        if name in self.queues:
            raise PreconditionFailed(f"'{name}' in vhost '{self.name}' is a queue, not a stream")
        check_stream_arguments(wanted, what)
        if not name:
            raise unnamed(STREAM)
        if len(name.encode()) > MAX_STREAM_NAME_BYTES:
            raise PreconditionFailed(f"a stream's name has 1 to {MAX_STREAM_NAME_BYTES} bytes")
        if name.startswith("amq."):
            raise AccessRefused(f"stream name '{name}' contains reserved prefix 'amq.*'")
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise PreconditionFailed(f"a stream has 1 to {MAX_PARTITIONS} partitions")
        # Tells a stream from an earlier one of the same name: their offsets do not compare.
        incarnation = secrets.token_hex(8)
        self._stream_rows.put(name.encode(), pack([partitions, incarnation, wanted]))
        self.changes.note(QUEUE, name)
        made = self._make_stream(name, partitions, incarnation, wanted)
        self.topology_version += 1
        self.memberships.stream_changed(name)
        return made

    def require_stream(self, name: str, durable: bool, exclusive: bool, auto_delete: bool) -> None:
        """Raise as ``declare_queue`` does unless these properties are those of every stream.

        For clients that declare streams as queues of a type.
        """
        what = f"queue '{name}' in vhost '{self.name}'"
        if name not in self.streams:
            check_shared(what, durable, exclusive, auto_delete)
        if exclusive:
            raise self._locked(name)
        require_same(what, [("durable", True, durable), ("auto_delete", False, auto_delete)])

    def _make_stream(
        self, name: str, partitions: int, incarnation: str, arguments: dict[str, HeaderValue]
    ) -> Stream:
        stream = Stream(self, name, partitions, incarnation, arguments)
        self.streams[name] = stream
        self.apply_policy_to_stream(stream)
        self.policy_walk.add(stream)
        return stream

    def delete_stream(self, name: str) -> None:
        """Delete a stream, its records and its bindings. Raises NotFound."""
        stream = self.stream(name)
        del self.streams[name]
        self._stream_rows.delete(name.encode())
        self.changes.note(QUEUE, name)
        self._unbind_everywhere(stream)
        self.groups.forget(stream)
        self.topology_version += 1
        stream.deleted()
        self.memberships.stream_changed(name)

    # Groups

    def delete_group(self, name: str) -> None:
        """Forget a consumer group; an exclusive holder of it is fenced.

        Raises NotFound, and PreconditionFailed while it has members.
        """
        was_held = self.memberships.delete(name)
        if self.groups.has(name) or not was_held:
            self.groups.delete(name)

    # Policies

    def set_policy(self, policy: Policy) -> None:
        """Add or replace a policy. It is in force everywhere once ``policy_walk`` is done."""
        self.policies.set(policy)
        self._policies_changed()

    def delete_policy(self, name: str) -> None:
        """Remove a policy, and put in force what then holds. Raises NotFound."""
        self.policies.delete(name)
        self._policies_changed()

    def _policies_changed(self) -> None:
        # An alternate exchange may have come or gone.
        self.topology_version += 1
        self.policy_walk.begin()

    def apply_policy_to_queue(self, queue: Queue) -> None:
        """Put in force for ``queue`` what its arguments and the policies say."""
        policy = self.policies.effective(queue.name, QUEUES)
        settings = settings_of(queue.arguments, policy, self._default_delivery)
        if queue.adapter:
            # What a session keeps is up to its own protocol.
            settings.delivery = -1
        queue.apply(settings)
        self.deduplication.limit(QUEUE, queue.name, settings.deduplication.size)

    def apply_policy_to_stream(self, stream: Stream) -> None:
        """Put in force for ``stream`` what its arguments and the policies say."""
        effective = self.policies.effective(stream.name, STREAMS)
        stream.apply(stream_settings_of(stream.arguments, effective))

    def alternate_of(self, exchange: Exchange) -> Exchange | None:
        """The exchange that takes what ``exchange`` cannot route, by argument or policy."""
        name: HeaderValue = exchange.alternate
        if name is None and len(self.policies):
            name = self.policies.effective(exchange.name, EXCHANGES).get("alternate-exchange")
        return self.exchanges.get(name) if isinstance(name, str) else None

    # Bindings

    def bind(self, exchange: Exchange, binding: Binding) -> None:
        """Add ``binding`` to ``exchange``. It is kept over a restart when both its ends are.

        Raises AccessRefused for the default exchange.
        """
        if exchange.name == "":
            raise AccessRefused("operation not permitted on the default exchange")
        self._add_binding(exchange, binding)
        key = self._binding_key(exchange, binding)
        if key is not None:
            self._binding_rows.put(key, b"")
        self.topology_version += 1

    def unbind(self, exchange: Exchange, binding: Binding) -> bool:
        """Remove the binding that is the same as ``binding``; whether there was one.

        An auto-delete exchange goes with its last binding.
        """
        if exchange.name == "":
            raise AccessRefused("operation not permitted on the default exchange")
        known = exchange.unbind(binding)
        if known is None:
            return False
        self._forget_binding(exchange, known)
        self.topology_version += 1
        self._delete_if_unused(exchange)
        return True

    def destination(self, name: str, is_exchange: bool) -> Destination:
        """The queue, stream or exchange called ``name`` as a destination. Raises NotFound."""
        if is_exchange:
            return self.exchange_destination(self.exchange(name))
        stream = self.streams.get(name)
        return self.queue(name) if stream is None else stream

    def exchange_destination(self, exchange: Exchange) -> ExchangeDestination:
        """The one object that stands for ``exchange`` as a destination of bindings."""
        if exchange.as_destination is None:
            exchange.as_destination = ExchangeDestination(exchange)
        return exchange.as_destination

    def _delete_if_unused(self, exchange: Exchange) -> None:
        if exchange.auto_delete and not exchange.is_used and exchange.name in self.exchanges:
            self.delete_exchange(exchange.name)

    def _add_binding(self, exchange: Exchange, binding: Binding) -> None:
        target = binding.destination
        if exchange.bind(binding) and isinstance(target, (Queue, Stream, ExchangeDestination)):
            self._bound.setdefault(id(target), {})[id(binding)] = (exchange, binding)

    def _unbind_everywhere(self, destination: Destination) -> None:
        """Remove the bindings to a queue, stream or exchange that is deleted."""
        for exchange, binding in list(self._bound.get(id(destination), {}).values()):
            if exchange.unbind(binding) is not None:
                self._forget_binding(exchange, binding)
                self._delete_if_unused(exchange)

    def _binding_key(self, exchange: Exchange, binding: Binding) -> bytes | None:
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

    def _forget_binding(self, exchange: Exchange, binding: Binding) -> None:
        """``binding``, the very one that was bound, has left ``exchange``, or goes with it."""
        target = id(binding.destination)
        bound = self._bound.get(target)
        if bound is not None:
            bound.pop(id(binding), None)
            if not bound:
                del self._bound[target]
        key = self._binding_key(exchange, binding)
        if key is not None:
            self._binding_rows.delete(key)

    # Publishing

    def publish(self, message: Message, route: Route, copies: list[bytes] | None = None) -> int:
        """Let a message in: ACCEPTED, the write batch to wait for, or REJECTED.

        All protocols publish by this. ``route`` is that of this very message (``Route.resolve``).
        A delayed message is kept until its time, with its further routing keys (``copies``).
        """
        if message.deliver_at:
            return self.delays.add(message, [] if copies is None else copies)
        is_retained = message.retain and self.keep_retained(message)
        result = route.publish(message)
        if is_retained and result != REJECTED and self.broker.storage.is_durable:
            return self.broker.storage.write_batch
        return result

    def keep_retained(self, message: Message) -> bool:
        """Keep a message that asks to be retained, if its exchange keeps any; whether it does."""
        if message.address.exchange != RETAINING_EXCHANGE:
            return False
        self.retained.keep(message)
        return True

    # Routes

    def route(self, exchange: Exchange, key: bytes) -> Route:
        """The route of ``key`` through ``exchange``, cached until the topology changes."""
        place = (exchange.name, key)
        found = self._routes.get(place)
        if found is not None and found.topology_version == self.topology_version:
            return found
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        address = Address(exchange.name, key) if found is None else found.address
        if self._depends_on_message(exchange):
            found = MessageRoute(self, exchange, address)
        else:
            found = self._walk(exchange, [address], None)
        self._routes[place] = found
        return found

    def route_all(self, exchange: Exchange, keys: list[bytes], message: Message) -> Route:
        first = self.route(exchange, keys[0])
        if len(keys) == 1:
            return first.resolve(message)
        others = [key for key in dict.fromkeys(keys) if key != keys[0]]
        addresses = [first.address] + [Address(exchange.name, key) for key in others]
        return self.route_of(exchange, addresses, message)

    def route_of(self, exchange: Exchange, addresses: list[Address], message: Message) -> Route:
        """The route of this very message, which has the first address and further keys."""
        route = self._walk(exchange, addresses, message)
        if "x-message-deduplication" in exchange.arguments:
            settings = exchange_settings(exchange.arguments, exchange.name)
            identity = deduplication_id(message, settings.header) if settings.is_on else None
            if identity is not None:
                window = self.deduplication.window(EXCHANGE, exchange.name)
                return DeduplicatedRoute(route, window, settings, identity)
        return route

    def _walk(self, exchange: Exchange, addresses: list[Address], message: Message | None) -> Route:
        """Walk the bindings from ``exchange``: exchange-to-exchange bindings and alternates too."""
        bindings: list[Binding] = []
        visited: set[str] = set()
        pending = deque([exchange])
        while pending:
            current = pending.popleft()
            if current.name in visited:
                continue
            visited.add(current.name)
            matched = current.match(addresses[0], message)
            if len(addresses) > 1 and current.reads_key:
                matched = _with_matches(matched, current, addresses, message)
            for binding in matched:
                if isinstance(binding.destination, ExchangeDestination):
                    pending.append(binding.destination.exchange)
                else:
                    bindings.append(binding)
            if not matched:
                alternate = self.alternate_of(current)
                if alternate is not None:
                    pending.append(alternate)
        destinations = [
            group[0].destination.combine(group) for group in group_by_destination(bindings)
        ]
        return Route(addresses[0], destinations, self.topology_version)

    def _depends_on_message(self, exchange: Exchange) -> bool:
        visited: set[str] = set()
        pending = [exchange]
        while pending:
            current = pending.pop()
            if current.name in visited:
                continue
            visited.add(current.name)
            if not current.routes_by_key or (
                current is exchange and "x-message-deduplication" in exchange.arguments
            ):
                return True
            for binding in current.exchange_bindings.items:
                target = binding.destination
                assert isinstance(target, ExchangeDestination)
                pending.append(target.exchange)
            alternate = self.alternate_of(current)
            if alternate is not None:
                pending.append(alternate)
        return False

    # Restart

    def _restore(self) -> None:
        for key, row in self._exchange_rows.items():
            kind, auto_delete, internal, arguments = unpack(row)
            name = key.decode()
            exchange = make_exchange(kind, name, True, auto_delete, internal, arguments)
            if exchange is not None:
                self.exchanges[name] = exchange
        for key, row in self._stream_rows.items():
            partitions, incarnation, arguments = unpack(row)
            self._make_stream(key.decode(), partitions, incarnation, arguments)
        for key, row in self._queue_rows.items():
            auto_delete, arguments, adapter = unpack(row)
            self._make_queue(key.decode(), True, auto_delete, None, arguments, adapter)
        for key, _ in list(self._binding_rows.items()):
            source, kind, target, pattern, is_filter, arguments = unpack(key)
            from_exchange = self.exchanges.get(source)
            destination: Destination | None
            if kind == "exchange":
                to_exchange = self.exchanges.get(target)
                destination = (
                    None if to_exchange is None else self.exchange_destination(to_exchange)
                )
            elif kind == "queue":
                destination = self.queues.get(target)
            else:
                destination = self.streams.get(target)
            if from_exchange is not None and destination is not None:
                self._add_binding(
                    from_exchange,
                    Binding(destination, pattern, dict(arguments), is_filter=is_filter),
                )


def _with_matches(
    matched: list[Binding], exchange: Exchange, addresses: list[Address], message: Message | None
) -> list[Binding]:
    """``matched``, and what else the addresses behind the first one match, each binding once."""
    found = list(matched)
    seen = {id(binding) for binding in matched}
    for address in addresses[1:]:
        for binding in exchange.match(address, message):
            if id(binding) not in seen:
                seen.add(id(binding))
                found.append(binding)
    return found


def queue_log_name(vhost: str, queue: str, priority: int = 0) -> str:
    """The name of the log that keeps a queue's messages of one priority; never that of another."""
    # Both names may hold any character, so the first one says how long it is.
    return f"queue/{len(vhost)}:{vhost}/{priority}/{queue}"
