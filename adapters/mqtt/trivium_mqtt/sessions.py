"""All sessions of a virtual host: their life, subscriptions, wills, and their return on a start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.errors import RouteTooCostly
from trivium.messages.topics import DOLLAR
from trivium.observability.metrics import ProtocolMetrics
from trivium.queues.queue import Queue
from trivium.routing.exchanges import ACCEPTED, RefusedRoute
from trivium.security.identity import Identity
from trivium.security.permissions import Access
from trivium.vhost.virtual_host import VirtualHost
from trivium_mqtt.codec.packets import NEVER, Will
from trivium_mqtt.codec.properties import (
    IN_PUBLISH,
    PacketProperties,
    check_message_properties,
    read_properties,
)
from trivium_mqtt.codec.wire import varint
from trivium_mqtt.counts import (
    count_session,
    count_subscriptions,
    require_session,
)
from trivium_mqtt.deadlines import Deadlines
from trivium_mqtt.handover import Handover
from trivium_mqtt.incoming import message_of
from trivium_mqtt.mounting import Encoders
from trivium_mqtt.options import MqttOptions
from trivium_mqtt.outgoing import Outgoing
from trivium_mqtt.replay import Replay
from trivium_mqtt.session import QUEUE_PREFIX, Session, Subscription
from trivium_mqtt.shares import Shares, split_shared
from trivium_mqtt.store import SessionRow, SessionStore
from trivium_mqtt.topic_cache import TopicCache

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker

#: Milliseconds after which the time is written anew, by which a restart after a crash knows how
#: long it was away.
CLOCK_INTERVAL = 60_000

#: Caches of topics for those who may not publish everything; emptied when full.
MAX_CACHES = 1024

#: The adapter name that queues of sessions carry.
ADAPTER = "mqtt"


class Sessions:
    """A virtual host's sessions. ``restore`` must be called once before anything else."""

    def __init__(
        self, broker: Broker, vhost: VirtualHost, options: MqttOptions, metrics: ProtocolMetrics
    ) -> None:
        self.broker = broker
        self.vhost = vhost
        self.options = options
        self.metrics = metrics
        self.encoders = Encoders(broker, metrics)
        self.topics = TopicCache(vhost)
        # Of those who may not publish everything.
        self._topics_of: dict[Access, TopicCache] = {}
        self.shares = Shares(broker, vhost, self.topics.exchange, metrics)
        self.store = SessionStore(broker.storage, vhost.name)
        self.by_client: dict[bytes, Session] = {}
        #: of clients whose sessions have ended and left something to others
        self.handovers: dict[bytes, Handover] = {}
        #: the write batch in which a session with rows ended last
        self.ended_write_batch = ACCEPTED
        self._connected_persistent = 0
        self.deadlines = Deadlines(broker)
        self._next_clock = 0

    # Start

    def restore(self) -> None:
        """Bring back what was kept; wills of clients that a crash cut off become due."""
        last_run = self.store.clock() or self.broker.now_ms
        # With offset, packet identifier, and whether it is at QoS 2: what had been sent.
        inflight: list[tuple[Session, int, int, bool]] = []
        self._restore_sessions(last_run, inflight)
        self._restore_subscriptions()
        self._restore_incoming()
        ended = self._restore_outgoing(inflight)
        inflight.sort(key=_by_offset)
        for session, offset, packet_id, exactly_once in inflight:
            self.outgoing(session).restore(packet_id, offset, exactly_once)
        self._restore_wills(last_run)
        self._restore_handovers(ended)
        self.tick()

    def _restore_sessions(
        self, last_run: int, inflight: list[tuple[Session, int, int, bool]]
    ) -> None:
        for client_id, row in list(self.store.sessions()):
            access = self.access_of(row.owner, client_id)
            session = Session(self, client_id, row.expiry, access, row.mount_point)
            session.is_stored = True
            self.by_client[client_id] = session
            count_session(session, 1)
            if row.last_seen == 0 and row.expiry != NEVER:
                # A crash cut its client off. Later starts must not count from anew.
                row.last_seen = last_run
                self.store.put_session(client_id, row)
            self.deadlines.end_later(session, row.last_seen)
            if QUEUE_PREFIX + session.name in self.vhost.queues:
                # It may hold messages although no subscription needs it any more.
                queue = self.outgoing(session).queue
                # They may be of shares that it has left: of which is not known any more.
                session.has_shared = len(queue) > 0
            for offset, packet_id in row.inflight:
                inflight.append((session, offset, packet_id, False))

    def _restore_subscriptions(self) -> None:
        for client_id, topic_filter, options, identifier, after in list(self.store.subscriptions()):
            session = self.by_client.get(client_id)
            if session is None:
                # A repair has lost the session.
                self.store.delete_subscription(client_id, topic_filter)
                continue
            subscription = Subscription(session, topic_filter, options, identifier)
            self._bind(session, subscription)
            if after is not None:
                self._replay(subscription, after).suspend()

    def _restore_incoming(self) -> None:
        for client_id, packet_id in list(self.store.incoming()):
            session = self.by_client.get(client_id)
            if session is None:
                self.store.delete_incoming(client_id, packet_id)
                continue
            if session.incoming is None:
                session.incoming = set()
            session.incoming.add(packet_id)

    def _restore_outgoing(
        self, inflight: list[tuple[Session, int, int, bool]]
    ) -> dict[bytes, dict[int, int]]:
        """What was sent at QoS 2; that of sessions which ended, by client and offset."""
        ended: dict[bytes, dict[int, int]] = {}
        for client_id, packet_id, offset, released in list(self.store.outgoing()):
            session = self.by_client.get(client_id)
            if session is None:
                ended.setdefault(client_id, {})[offset] = packet_id
            elif not released:
                inflight.append((session, offset, packet_id, True))
            else:
                self.outgoing(session).restore_released(packet_id)
        return ended

    def _restore_wills(self, last_run: int) -> None:
        for client_id, will, due, owner in list(self.store.wills()):
            session = self.by_client.get(client_id)
            if session is None:
                self._publish_will(client_id, will, self.access_of(owner, client_id))
                continue
            session.will = will
            if due == 0:
                due = last_run + will.delay * 1000
                self.store.put_will(client_id, will, due, session.access.identity)
            self.deadlines.will_later(session, min(due - self.broker.now_ms, will.delay * 1000))

    def _restore_handovers(self, ended: dict[bytes, dict[int, int]]) -> None:
        """Go on with the queues of sessions that ended."""
        for name, queue in list(self.vhost.queues.items()):
            client_id = name.removeprefix(QUEUE_PREFIX).encode()
            if queue.adapter == ADAPTER and client_id not in self.by_client:
                self._hand_over(client_id, queue, ended.pop(client_id, {}), None)
        for client_id, sent in ended.items():
            # With neither a session nor a queue they mean nothing.
            for packet_id in sent.values():
                self.store.delete_outgoing(client_id, packet_id)

    # Permissions

    def access_of(self, identity: Identity, client_id: bytes) -> Access:
        """What a client may do. Those of one user share it, where it is the same for all."""
        permissions = self.broker.permissions
        name = client_id.decode() if permissions.depends_on_client_id(identity) else ""
        return permissions.access(identity, self.vhost.name, name)

    def topics_of(self, access: Access) -> TopicCache:
        """The topics of those who may publish what ``access`` allows."""
        if access.is_open:
            return self.topics
        found = self._topics_of.get(access)
        if found is None:
            if len(self._topics_of) >= MAX_CACHES:
                self._topics_of.clear()
            found = TopicCache(self.vhost, access)
            self._topics_of[access] = found
        return found

    def permissions_changed(self, name: str | None) -> None:
        """What the user ``name``, or with None what anybody may do, has changed."""
        for session in self.by_client.values():
            identity = session.access.identity
            if name in (None, identity.name):
                session.permissions_changed(self.access_of(identity, session.client_id))

    # Life of a session

    def create(
        self, client_id: bytes, expiry: int, access: Access, mount_point: bytes = b""
    ) -> Session:
        """A new session, connected from the start. Raises QuotaExceeded."""
        session = Session(self, client_id, expiry, access, mount_point)
        require_session(session)
        self.by_client[client_id] = session
        count_session(session, 1)
        _tell(session, "session.created", expiry_seconds=expiry)
        self.connected(session, expiry)
        return session

    def connected(self, session: Session, expiry: int) -> None:
        """The client is here; ``expiry`` counts from when it leaves."""
        session.expiry = expiry
        self.deadlines.stop(session)
        if expiry > 0:
            self._connected_persistent += 1
            session.is_stored = True
            self._write_clock()
        if session.is_stored:
            # With expiry 0 too: after a crash its rows must not be those of a persistent session.
            self.store.put_session(session.client_id, _row_of(session, 0, []))
        if session.will is not None:
            self.withdraw_will(session)

    def renewed(self, session: Session, access: Access) -> None:
        """Its client has other scopes now; after a crash it must have them too."""
        session.permissions_changed(access)
        if session.is_stored:
            self.store.put_session(session.client_id, _row_of(session, 0, []))
        if session.will is not None:
            self.set_will(session, session.will)

    def set_will(self, session: Session, will: Will) -> None:
        """The connected client leaves this will."""
        session.will = will
        self.store.put_will(session.client_id, will, 0, session.access.identity)

    def withdraw_will(self, session: Session) -> None:
        """The client left in peace, or is back in time (MQTT-3.1.3-9, MQTT-3.14.4-3)."""
        if session.will is not None:
            session.will = None
            self.store.delete_will(session.client_id)

    def disconnected(self, session: Session, expiry: int) -> None:
        """The connection is gone; its will, if it was not withdrawn, is due after its delay."""
        now_ms = self.broker.now_ms
        session.connection = None
        outgoing = session.outgoing
        if outgoing is not None:
            outgoing.detach()
        if session.expiry > 0:
            self._connected_persistent -= 1
        if session.expiry == 0 or expiry == 0:
            self.end(session)
            return
        session.expiry = expiry
        will = session.will
        if will is not None:
            if will.delay == 0:
                self._publish_will(session.client_id, will, session.access)
                session.will = None
            else:
                delay = will.delay * 1000
                owner = session.access.identity
                self.store.put_will(session.client_id, will, now_ms + delay, owner)
                self.deadlines.will_later(session, delay)
        if session.replays is not None:
            for replay in session.replays.values():
                replay.suspend()
        unacknowledged = [] if outgoing is None else outgoing.unacknowledged()
        self.store.put_session(session.client_id, _row_of(session, now_ms, unacknowledged))
        self.deadlines.end_later(session, now_ms)

    def end(self, session: Session) -> None:
        """Forget the session and everything in it; a pending will is published."""
        client_id = session.client_id
        if session.will is not None:
            self._publish_will(client_id, session.will, session.access)
            session.will = None
        del self.by_client[client_id]
        self.deadlines.stop(session)
        if session.subscriptions is not None:
            for topic_filter in list(session.subscriptions):
                self.unsubscribe(session, topic_filter)
        count_session(session, -1)
        _tell(session, "session.deleted")
        if session.incoming is not None:
            for packet_id in session.incoming:
                self.store.delete_incoming(client_id, packet_id)
        self.store.delete_session(client_id)
        if session.is_stored and self.broker.storage.is_durable:
            self.ended_write_batch = self.broker.storage.write_batch
        outgoing = session.outgoing
        if outgoing is None:
            return
        if session.has_shared and self.shares.have_members(session.shares):
            self._hand_over(client_id, outgoing.queue, outgoing.give_back(), session.shares)
        else:
            outgoing.forget()
            self.vhost.delete_queue(outgoing.queue)

    def _hand_over(
        self, client_id: bytes, queue: Queue, sent: dict[int, int], shares: set[bytes] | None
    ) -> None:
        handover = Handover(self, client_id, queue, sent, shares)
        self.handovers[client_id] = handover
        handover.go_on()

    def tick(self) -> None:
        """About once a second: publish wills and end sessions that are due, write the time."""
        for session in self.deadlines.take_due():
            self._take_due(session)
        if self._connected_persistent:
            self._write_clock()

    def _take_due(self, session: Session) -> None:
        elapsed = self.broker.elapsed_ms
        if 0 < session.ends <= elapsed:
            self.deadlines.ended += 1
            self.end(session)
            return
        if session.will is not None and session.will_due <= elapsed:
            self._publish_will(session.client_id, session.will, session.access)
            session.will = None
        self.deadlines.will_is_done(session)

    def _write_clock(self) -> None:
        elapsed = self.broker.elapsed_ms
        if elapsed >= self._next_clock:
            self._next_clock = elapsed + CLOCK_INTERVAL
            self.store.put_clock(self.broker.now_ms)

    # Subscriptions

    def subscribe(self, session: Session, subscription: Subscription) -> None:
        """Add a subscription or replace the one with its filter.

        Retained messages are sent by ``MqttConnection.replay``; a shared subscription gets none
        (MQTT5 4.8.2).
        """
        is_new = self._bind(session, subscription)
        if is_new:
            told = subscription.topic_filter.decode()
            _tell(session, "subscription.created", topic_filter=told, qos=subscription.qos)
        handling = subscription.retain_handling
        replays = session.replays
        replay = None if replays is None else replays.get(subscription.topic_filter)
        if subscription.binding is None:
            pass
        elif handling == 0 or (handling == 1 and is_new):
            replay = self._replay(subscription, b"")
        elif replay is not None:
            # What it was promised is sent as it is wanted now.
            replay.subscription = subscription
        self.store_subscription(subscription, None if replay is None else replay.after)

    def store_subscription(self, subscription: Subscription, after: bytes | None) -> None:
        """Write a subscription's row, if its session has rows, with what its replay has reached."""
        session = subscription.session
        if session.is_stored:
            self.store.put_subscription(
                session.client_id,
                subscription.topic_filter,
                subscription.options,
                subscription.identifier,
                after,
            )

    def _replay(self, subscription: Subscription, after: bytes) -> Replay:
        """Have the retained messages sent that come ``after`` this key."""
        session = subscription.session
        retained = self.vhost.own.retained_for(subscription.topic_filter)
        replay = Replay(session, subscription, retained, after)
        replays = session.replays
        if replays is None:
            replays = {}
            session.replays = replays
        replays[subscription.topic_filter] = replay
        return replay

    def _bind(self, session: Session, subscription: Subscription) -> bool:
        known = session.subscriptions
        if known is None:
            known = {}
            session.subscriptions = known
        former = known.get(subscription.topic_filter)
        if subscription.qos > 0:
            self.outgoing(session)
        if former is None:
            count_subscriptions(session, 1)
        elif former.binding is not None:
            # The one that is bound stays, with what is said now.
            former.binding.options = subscription
            former.binding.guard = session.access
            subscription.binding = former.binding
        known[subscription.topic_filter] = subscription
        if subscription.binding is not None:
            self.vhost.bind(self.topics.exchange, subscription.binding)
        else:
            shared = split_shared(subscription.topic_filter)
            assert shared is not None
            self.shares.join(session, subscription, shared[1])
        return former is None

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        """Remove the subscription with exactly this filter; whether there was one."""
        known = session.subscriptions
        subscription = None if known is None else known.pop(topic_filter, None)
        if subscription is None:
            return False
        count_subscriptions(session, -1)
        _tell(session, "subscription.deleted", topic_filter=topic_filter.decode())
        if session.replays is not None:
            # Nothing more is added for it (MQTT-3.10.4-2).
            session.replays.pop(topic_filter, None)
        if subscription.binding is not None:
            self.vhost.unbind(self.topics.exchange, subscription.binding)
            # They would keep each other in memory.
            subscription.binding = None
        else:
            shared = split_shared(topic_filter)
            assert shared is not None
            self.shares.leave(session, topic_filter, shared[1])
        self.store.delete_subscription(session.client_id, topic_filter)
        return True

    def outgoing(self, session: Session) -> Outgoing:
        """The session's QoS 1 and 2 side with its queue, made when it is missing."""
        found = session.outgoing
        if found is None:
            queue = self.vhost.declare_queue(
                QUEUE_PREFIX + session.name, durable=session.is_stored, adapter=ADAPTER
            )
            connection = session.connection
            options = self.options if connection is None else connection.options
            is_on_disk = session.is_stored and self.broker.storage.is_durable
            found = Outgoing(
                session,
                queue,
                self.encoders.of(session.mount_point),
                self.store,
                self.metrics,
                options.maximum_inflight,
                0 if is_on_disk else options.maximum_queued,
                options.maximum_queued_bytes,
            )
            session.outgoing = found
            if connection is not None:
                found.attach(connection, connection.is_v5, connection.receive_maximum)
        return found

    def write_batch_of(self, session: Session) -> int:
        """The write batch that what the session knows now is durable with; ACCEPTED for none.

        Whoever says that something is so already must know that it stays so after a crash.
        """
        storage = self.broker.storage
        return storage.write_batch if session.is_persistent and storage.is_durable else ACCEPTED

    # Wills

    def _publish_will(self, client_id: bytes, will: Will, access: Access) -> None:
        """Publish a will, if its client's user is not deleted and may publish that now."""
        self.store.delete_will(client_id)
        route = self.topics_of(access).route(will.topic)
        owner = access.identity
        # Its permissions are there until nothing else is left of it.
        is_gone = not owner.is_anonymous and owner.name in self.broker.users.leaving
        if is_gone or will.topic[0] == DOLLAR or isinstance(route, RefusedRoute):
            access.topic_refused(will.topic)
            self.metrics.messages_dropped += 1
            return
        properties: PacketProperties | None = None
        if will.header:
            block = varint(len(will.header)) + will.header
            properties = read_properties(block, 0, len(block), IN_PUBLISH)
            check_message_properties(properties)
        message = message_of(
            route.address,
            will.payload,
            will.qos,
            will.retain,
            properties,
            self.broker.now_ms,
            client_id,
        )
        try:
            self.vhost.publish(message, route.resolve(message))
        except RouteTooCostly:
            self.metrics.messages_dropped += 1


def _tell(session: Session, event: str, **about: object) -> None:
    """Something has happened to a session."""
    user = session.access.identity.name
    session.sessions.vhost.tell(event, client_id=session.name, user=user, **about)


def _row_of(session: Session, last_seen: int, inflight: list[tuple[int, int]]) -> SessionRow:
    owner = session.access.identity
    return SessionRow(session.expiry, last_seen, inflight, owner, session.mount_point)


def _by_offset(item: tuple[Session, int, int, bool]) -> int:
    return item[1]
