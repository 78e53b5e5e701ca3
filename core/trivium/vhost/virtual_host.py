"""A virtual host: the exchanges, queues, streams and bindings of one namespace, and their routes.

What is durable is written to tables in the write batch of the change and restored from them. All
methods that clients can cause to fail raise a ``TopologyError`` whose text is fit for the client.
"""

from __future__ import annotations

import secrets
from collections.abc import Set
from typing import Final

from trivium.common import quotas
from trivium.common.equivalence import UnknownArguments, require_same, require_same_arguments
from trivium.common.values import pack, unpack
from trivium.errors import (
    AccessRefused,
    NameNeeded,
    NotFound,
    PreconditionFailed,
    QueueLocked,
)
from trivium.groups.membership import Memberships
from trivium.groups.offsets import Groups
from trivium.host import Host
from trivium.idempotence.deduplication import ARGUMENTS as DEDUPLICATION_ARGUMENTS
from trivium.idempotence.deduplication import EXCHANGE, QUEUE, exchange_settings
from trivium.idempotence.producers import Producers
from trivium.messages.message import HeaderValue, Message
from trivium.queues.arguments import (
    ARGUMENTS,
    CLASSIC,
    KNOWN_ARGUMENTS,
    QUEUE_TYPE,
    STREAM,
    check_arguments,
    check_exchange_name,
    check_queue_arguments,
    check_shared,
    queue_type,
)
from trivium.queues.dead_letters import DeadLetters
from trivium.queues.queue import Queue
from trivium.queues.waiting import count_waiting
from trivium.routing.exchanges import (
    EXCHANGE_TYPES,
    REJECTED,
    UNROUTABLE,
    Binding,
    Declarer,
    Declarers,
    Destination,
    Exchange,
    ExchangeDestination,
    Route,
    make_exchange,
)
from trivium.routing.retained import RETAINING_EXCHANGE, RetainedMessages
from trivium.storage.base import Log
from trivium.streams.joining import RecoveredJoins
from trivium.streams.namespace import StreamNamespace
from trivium.streams.stream import MAX_PARTITIONS, PARTITIONS, Stream
from trivium.vhost.bindings import Bindings
from trivium.vhost.delays import QUEUE_NAME as DELAYED_QUEUE
from trivium.vhost.delays import Delays
from trivium.vhost.limits import apply_limits
from trivium.vhost.own_topics import OwnTopics
from trivium.vhost.pending_changes import PendingChanges
from trivium.vhost.policies import AllPolicies, Policy, check_operator_keys
from trivium.vhost.policy_walk import PolicyWalk
from trivium.vhost.predeclared import predeclared_exchanges
from trivium.vhost.queue_logs import QueueLogs, queue_log_name
from trivium.vhost.routes import Routes
from trivium.vhost.settings import VirtualHostSettings
from trivium.vhost.suspensions import Suspensions, declared, take_over
from trivium.vhost.topology_rows import TopologyRows
from trivium.vhost.totals import Totals

#: Longest name of an exchange, queue or stream, in UTF-8: what fits an AMQP short string.
MAX_NAME_BYTES: Final = 255

#: Arguments that mean something on an exchange.
EXCHANGE_ARGUMENTS: Final = DEDUPLICATION_ARGUMENTS | {"alternate-exchange", "x-delayed-type"}


class VirtualHost(StreamNamespace):
    """One namespace. ``name`` is unique in its broker."""

    def __init__(
        self,
        broker: Host,
        name: str,
        dead_letters: DeadLetters,
        recovered_joins: RecoveredJoins,
        default_delivery: int,
        declarers: Declarers,
    ) -> None:
        super().__init__(broker, name, dead_letters, recovered_joins)
        #: what commands set about it
        self.settings = VirtualHostSettings()
        #: raised by every change that may change a route
        self.topology_version = 1
        #: exchanges, queues and streams made or deleted so lately that it may not be durable
        self.changes = PendingChanges(broker.storage)
        #: what queues and streams counted that are gone
        self.gone = Totals()
        self._unknown = UnknownArguments()
        storage = broker.storage
        self.rows = TopologyRows(storage, name, self.changes)
        #: partitions, incarnation and arguments by name
        self.stream_rows = storage.table(f"streams/{name}")
        #: what of it is not in force
        self.suspensions = Suspensions(self, declarers)
        self.bindings = Bindings(storage.table(f"bindings/{name}"), self.suspensions)
        self.retained = RetainedMessages(
            storage.table(f"retained/{name}"),
            lambda what: broker.quotas.refused(self.account, what),
        )
        #: what the broker itself publishes
        self.own = OwnTopics(self)
        self.policies = AllPolicies(storage, declarers, name)
        self.policy_walk = PolicyWalk(self, default_delivery)
        self.groups = Groups(storage.table(f"groups/{name}"))
        self.memberships = Memberships(self, self.groups)
        self.producers = Producers(storage.table(f"producers/{name}"), broker)
        #: producers of transactions: their numbers count transactions
        self.transactional = Producers(storage.table(f"transactional/{name}"), broker)
        self._queue_logs = QueueLogs(storage, name)
        self.delays = Delays(self, queue_log_name(name, DELAYED_QUEUE))
        self._routes = Routes(self)
        # By identity of the owner, so that whoever goes finds its own at once.
        self._owned: dict[int, dict[str, Queue]] = {}
        for exchange in predeclared_exchanges(self):
            self.exchanges[exchange.name] = exchange
        apply_limits(self)
        self._restore(declarers)
        self.deduplication.keep_only({EXCHANGE: self.exchanges, QUEUE: self.queues})
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
        declarer: Declarer | None = None,
    ) -> Exchange:
        """The exchange with these properties, made when it is new. Its alternate exchange is in
        force by the rights of each ``declarer`` who might give it that.

        Raises PreconditionFailed where it exists with others, there is no such type or the name is
        too long, and AccessRefused for a new name that starts with ``amq.``.
        """
        wanted = {} if arguments is None else arguments
        what = f"exchange '{name}' in vhost '{self.name}'"
        self._unknown.tell(what, wanted, EXCHANGE_ARGUMENTS)
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
            take_over(self, known, declarer)
            return known
        _check_new(name, "exchange")
        check_exchange_name(wanted, "alternate-exchange", what)
        self.refuse_brokers_own(wanted.get("alternate-exchange"))
        exchange_settings(wanted, what)
        made = make_exchange(kind, name, durable, auto_delete, internal, wanted)
        assert made is not None
        self.exchanges[name] = made
        if made.alternate is not None:
            made.declarer = declarer
        self.rows.put_exchange(made)
        self.topology_version += 1
        self.tell("exchange.created", exchange=name, type=kind, durable=durable)
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
        self.rows.delete_exchange(exchange)
        self.bindings.forget_from(exchange)
        destination = exchange.deleted()
        if destination is not None:
            self._unbind_everywhere(destination)
        self.deduplication.drop(EXCHANGE, name)
        self.suspensions.forget(exchange)
        self.topology_version += 1
        self.tell("exchange.deleted", exchange=name)

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

    def _locked(self, name: str) -> QueueLocked:
        return QueueLocked(f"queue '{name}' in vhost '{self.name}'")

    def declare_queue(
        self,
        name: str,
        durable: bool = False,
        auto_delete: bool = False,
        owner: object = None,
        arguments: dict[str, HeaderValue] | None = None,
        adapter: str = "",
        connection: object = None,
        user: quotas.Account | None = None,
        declarer: Declarer | None = None,
    ) -> Queue:
        """The queue with these properties, made when it is new; an empty name makes one up.

        ``owner`` is the connection of an exclusive queue, ``connection`` the one that asks (by
        default the owner), ``user`` has the queues that it made. Its dead letter exchange is in
        force by the rights of each ``declarer`` who might give it that.

        Raises as ``queue`` does, PreconditionFailed for other properties or a name that is too
        long, AccessRefused for a new one that starts with ``amq.``, QuotaExceeded where there are
        as many as there may be.
        """
        wanted = {} if arguments is None else dict(arguments)
        what = f"queue '{name}' in vhost '{self.name}'"
        self._unknown.tell(what, wanted, KNOWN_ARGUMENTS)
        # An exclusive queue goes with its connection, so it has nothing to keep on disk.
        is_durable = durable and owner is None
        if name in self.queues:
            known = self.queue(name, owner if connection is None else connection, adapter)
            if (known.owner is None) != (owner is None):
                raise self._locked(name)
            _require_same_queue(what, known, is_durable, auto_delete, wanted)
            known.touch()
            take_over(self, known, declarer)
            self.broker.queues_declared += 1
            return known
        if name in self.streams:
            self.require_stream(name, durable, owner is not None, auto_delete)
            require_same_arguments(what, {QUEUE_TYPE: STREAM}, wanted, (QUEUE_TYPE,))
        if not adapter:
            _check_new(name, "queue")
        check_queue_arguments(wanted, what, durable, owner is not None, auto_delete)
        self.refuse_brokers_own(wanted.get("x-dead-letter-exchange"))
        if not name and queue_type(wanted) != CLASSIC:
            raise NameNeeded(queue_type(wanted))
        if not name:
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
        self.require_room(name, adapter, user)
        made = self._make_queue(name, is_durable, auto_delete, owner, wanted, adapter, user)
        if "x-dead-letter-exchange" in wanted:
            made.declarer = declarer
        self.rows.put_queue(made)
        made.touch()
        self.topology_version += 1
        self.broker.queues_declared += 1
        self.tell("queue.created", queue=name, durable=is_durable, exclusive=owner is not None)
        return made

    def _make_queue(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object,
        arguments: dict[str, HeaderValue],
        adapter: str,
        user: quotas.Account | None,
    ) -> Queue:
        logs: list[Log] = []
        if durable and owner is None:
            logs = self._queue_logs.open(name, arguments)
        queue = Queue(self, name, logs, durable, auto_delete, owner, arguments, adapter)
        queue.user = user
        self.queues[name] = queue
        self.count_queue(queue, 1)
        if owner is not None:
            self._owned.setdefault(id(owner), {})[name] = queue
        self.policy_walk.apply_to_queue(queue)
        self.policy_walk.add(queue)
        return queue

    def delete_queue(self, queue: Queue, if_unused: bool = False, if_empty: bool = False) -> int:
        if self.queues.get(queue.name) is not queue:
            return 0
        if if_unused and len(queue.consumers):
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' in use")
        count = len(queue)
        must_arrive = queue.given_up.count > 0 and queue.settings.keeps_dead_letters
        if if_empty and (count or count_waiting(queue) or must_arrive):
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' not empty")
        del self.queues[queue.name]
        self.count_queue(queue, -1)
        self.gone.add(queue)
        if queue.owner is not None:
            owned = self._owned[id(queue.owner)]
            del owned[queue.name]
            if not owned:
                del self._owned[id(queue.owner)]
        if queue.durable and queue.owner is None:
            self.rows.queues.delete(queue.name.encode())
            self._queue_logs.drop(queue.name, queue.arguments)
            self.changes.add(QUEUE, queue.name)
        self._unbind_everywhere(queue)
        self.deduplication.drop(QUEUE, queue.name)
        self.suspensions.forget(queue)
        self.topology_version += 1
        queue.deleted()
        self.tell("queue.deleted", queue=queue.name, messages=count)
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
        name that starts with ``amq.``; QuotaExceeded where there are as many as there may be.
        """
        wanted = {} if arguments is None else arguments
        what = f"{term} '{name}' in vhost '{self.name}'"
        self._unknown.tell(what, wanted, KNOWN_ARGUMENTS | ARGUMENTS[STREAM].keys())
        known = self.streams.get(name)
        if known is not None:
            field = PARTITIONS if term == "queue" else "partitions"
            require_same(what, [(field, len(known.partitions), partitions)])
            # All of them have the same type, and it need not be named.
            require_same_arguments(
                what, known.arguments, wanted, ARGUMENTS[STREAM].keys() - {QUEUE_TYPE}
            )
            self.broker.queues_declared += 1
            return known
        if name in self.queues:
            raise PreconditionFailed(f"'{name}' in vhost '{self.name}' is a queue, not a stream")
        check_arguments(wanted, what, STREAM)
        if not name:
            raise NameNeeded(STREAM)
        _check_new(name, "stream")
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise PreconditionFailed(f"a stream has 1 to {MAX_PARTITIONS} partitions")
        self.broker.quotas.require([self.account], quotas.STREAMS)
        # Tells a stream from an earlier one of the same name: their offsets do not compare.
        incarnation = secrets.token_hex(8)
        self.stream_rows.put(name.encode(), pack([partitions, incarnation, wanted]))
        self.changes.add(QUEUE, name)
        made = self._make_stream(name, partitions, incarnation, wanted)
        self.topology_version += 1
        self.memberships.stream_changed(name)
        self.broker.queues_declared += 1
        self.tell("stream.created", stream=name, partitions=partitions)
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
        self.account.add(quotas.STREAMS, 1)
        self.policy_walk.apply_to_stream(stream)
        self.policy_walk.add(stream)
        return stream

    def delete_stream(self, name: str) -> None:
        """Delete a stream, its records and its bindings. Raises NotFound."""
        stream = self.stream(name)
        del self.streams[name]
        self.account.add(quotas.STREAMS, -1)
        self.gone.add_stream(stream)
        self.stream_rows.delete(name.encode())
        self.changes.add(QUEUE, name)
        self._unbind_everywhere(stream)
        self.groups.forget(stream)
        self.topology_version += 1
        stream.deleted()
        self.memberships.stream_changed(name)
        self.tell("stream.deleted", stream=name)

    # Groups

    def delete_group(self, name: str) -> None:
        """Forget a consumer group; an exclusive holder of it is fenced.

        Raises NotFound, and PreconditionFailed while it has members.
        """
        was_held = self.memberships.delete(name)
        if self.groups.has(name) or not was_held:
            self.groups.delete(name)
        self.tell("group.deleted", group=name)

    # Policies

    def set_policy(self, policy: Policy, is_of_operators: bool = False) -> None:
        """Add or replace a policy. It is in force everywhere once ``policy_walk`` is done.

        Raises PreconditionFailed for too many, and for what those of operators cannot bound.
        """
        policies = self.policies.operators if is_of_operators else self.policies
        if is_of_operators:
            check_operator_keys(policy)
        known = policies.get(policy.name)
        policies.set(policy)
        if known is not None:
            self.suspensions.forget(known)
        self.tell(
            "operator-policy.set" if is_of_operators else "policy.set",
            policy=policy.name,
            pattern=policy.pattern,
            definition=policy.definition,
        )
        self.policies_changed()

    def delete_policy(self, name: str, is_of_operators: bool = False) -> None:
        """Remove a policy, and put in force what then holds. Raises NotFound."""
        policies = self.policies.operators if is_of_operators else self.policies
        known = policies.get(name)
        policies.delete(name)
        if known is not None:
            self.suspensions.forget(known)
        self.tell("operator-policy.cleared" if is_of_operators else "policy.cleared", policy=name)
        self.policies_changed()

    def policies_changed(self) -> None:
        """Put the policies in force as they are now."""
        # An alternate exchange may have come or gone.
        self.topology_version += 1
        self.policy_walk.begin()

    # Bindings

    def bind(self, exchange: Exchange, binding: Binding) -> None:
        """Add ``binding`` to ``exchange``. It is kept over a restart when both its ends are.

        Raises AccessRefused for the default exchange, and to one where the broker alone publishes.
        """
        if exchange.name == "":
            raise AccessRefused("operation not permitted on the default exchange")
        if isinstance(binding.destination, ExchangeDestination):
            self.refuse_brokers_own(binding.destination.name)
        if self.bindings.add(exchange, binding):
            _tell_binding(self, "binding.created", exchange, binding)
        self.topology_version += 1

    def unbind(self, exchange: Exchange, binding: Binding) -> bool:
        """Remove the binding that is the same as ``binding``; whether there was one.

        An auto-delete exchange goes with its last binding.
        """
        if exchange.name == "":
            raise AccessRefused("operation not permitted on the default exchange")
        if not self.bindings.remove(exchange, binding):
            return False
        _tell_binding(self, "binding.deleted", exchange, binding)
        self.topology_version += 1
        self._delete_if_unused(exchange)
        return True

    def destination(self, name: str, is_exchange: bool) -> Destination:
        """The queue, stream or exchange called ``name`` as a destination. Raises NotFound."""
        if is_exchange:
            return self.exchange(name).destination()
        stream = self.streams.get(name)
        return self.queue(name) if stream is None else stream

    def _delete_if_unused(self, exchange: Exchange) -> None:
        if exchange.auto_delete and not exchange.is_used and exchange.name in self.exchanges:
            self.delete_exchange(exchange.name)

    def _unbind_everywhere(self, destination: Destination) -> None:
        """Remove the bindings to a queue, stream or exchange that is deleted."""
        for exchange in self.bindings.remove_to(destination):
            self._delete_if_unused(exchange)

    # Publishing

    def publish(
        self,
        message: Message,
        route: Route,
        copies: list[bytes] | None = None,
        mandatory: bool = False,
    ) -> int:
        """Let a message in: ACCEPTED, the write batch to wait for, REJECTED, or UNROUTABLE.

        All protocols publish by this. ``route`` is that of this very message (``Route.resolve``).
        A delayed message is kept until its time, with its further routing keys (``copies``), unless
        it is ``mandatory`` and unroutable now.
        """
        tracer = self.tracer
        if tracer is not None and tracer.samples(message):
            span = tracer.begin(message, self.name)
            result = self.publish(message, route, copies, mandatory)
            tracer.published(span, result)
            return result
        counters = route.counters
        counters.published += 1
        if message.deliver_at:
            route.observe(message)
            if mandatory and self.is_unroutable(message, route):
                counters.unroutable += 1
                return UNROUTABLE
            return self.delays.add(message, [] if copies is None else copies)
        if not route.destinations and self.is_unroutable(message, route):
            route.observe(message)
            counters.unroutable += 1
            return UNROUTABLE
        is_retained = message.retain and self.keep_retained(message)
        result = route.publish(message)
        if is_retained and result != REJECTED and self.broker.storage.is_durable:
            return self.broker.storage.write_batch
        return result

    def publish_run(self, messages: list[Message], route: Route) -> int:
        """``publish`` of messages that came in a row, where ``route`` ``takes_runs``: ACCEPTED, or
        the write batch to wait for. ``Destination.accept_run`` says which messages these may be."""
        tracer = self.tracer
        if tracer is None:
            return _accept_run(messages, route)
        spans = tracer.follow(messages, self.name)
        result = _accept_run(messages, route)
        if spans is not None:
            for span in spans:
                tracer.published(span, result)
        return result

    def is_unroutable(self, message: Message, route: Route) -> bool:
        """Whether a message leads nowhere by ``route``, which is its very own.

        One that is retained, now or when its time has come, does lead somewhere, whoever is there.
        """
        return not route.destinations and not (message.retain and _retains(message))

    def keep_retained(self, message: Message) -> bool:
        """Keep a message that asks to be retained, if its exchange keeps any; whether it does."""
        if not _retains(message):
            return False
        self.retained.keep(message)
        return True

    # Routes

    def route(self, exchange: Exchange, key: bytes) -> Route:
        """The route of ``key`` through ``exchange``, remembered until the topology changes."""
        return self._routes.of_key(exchange, key)

    def route_all(self, exchange: Exchange, keys: list[bytes], message: Message) -> Route:
        return self._routes.of_keys(exchange, keys, message)

    # Restart

    def _restore(self, declarers: Declarers) -> None:
        for key, row in self.rows.exchanges.items():
            kind, auto_delete, internal, arguments, *more = unpack(row)
            name = key.decode()
            exchange = make_exchange(kind, name, True, auto_delete, internal, arguments)
            if exchange is not None:
                self.exchanges[name] = exchange
                exchange.declarer = declarers.restored(more[0], self.name) if more else None
        for key, row in self.stream_rows.items():
            partitions, incarnation, arguments = unpack(row)
            self._make_stream(key.decode(), partitions, incarnation, arguments)
        last: bytes | None = None
        for key, row in self.rows.queues.items():
            # There may be very many, and most are like the one before.
            if row != last:
                auto_delete, arguments, adapter, *more = unpack(row)
                user: quotas.Account | None = None
                if more and more[0] is not None:
                    user = self.broker.quotas.account(quotas.USER, more[0])
                declarer = declarers.restored(more[1], self.name) if len(more) > 1 else None
                last = row
            queue = self._make_queue(
                key.decode(), True, auto_delete, None, arguments, adapter, user
            )
            queue.declarer = declarer
        self.bindings.restore(self, declarers)
        for item in declared(self):
            if item is not None:
                # What of it is suspended is yet to be told.
                self.suspensions.begin()
                break


def _accept_run(messages: list[Message], route: Route) -> int:
    """Let in messages that came in a row."""
    count = len(messages)
    route.counters.published += count
    route.counters.routed += count
    return route.destinations[0].accept_run(messages)


def _tell_binding(vhost: VirtualHost, event: str, exchange: Exchange, binding: Binding) -> None:
    target = binding.destination
    # Live subscriptions come and go with their connections.
    if isinstance(target, (Queue, Stream, ExchangeDestination)):
        key = binding.pattern.decode(errors="replace")
        vhost.tell(event, exchange=exchange.name, destination=target.name, key=key)


def _check_new(name: str, kind: str) -> None:
    """Raise unless a client may give something of this kind the name."""
    if name.startswith("amq."):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise PreconditionFailed(f"{kind} name has 1 to {MAX_NAME_BYTES} bytes")


def _require_same_queue(
    what: str, known: Queue, durable: bool, auto_delete: bool, arguments: dict[str, HeaderValue]
) -> None:
    require_same(
        what,
        [("durable", known.durable, durable), ("auto_delete", known.auto_delete, auto_delete)],
    )
    names: Set[str] = ARGUMENTS[queue_type(known.arguments)].keys()
    if known.arguments.get(QUEUE_TYPE, CLASSIC) == arguments.get(QUEUE_TYPE, CLASSIC):
        # The default need not be named.
        names = names - {QUEUE_TYPE}
    require_same_arguments(what, known.arguments, arguments, names)


def _retains(message: Message) -> bool:
    """Whether the message's exchange keeps those that ask for it."""
    return message.address.exchange == RETAINING_EXCHANGE
