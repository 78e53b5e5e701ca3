"""A session (4.1): what the broker remembers of one client, and where its subscriptions lead.

The session is the destination of its bindings. In a route a ``CombinedSubscription`` stands for it,
which knows what the matching subscriptions ask for together. At QoS 0 a message goes straight to
the connection; at QoS 1 and 2 it goes through the session's queue to ``Outgoing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from trivium.common.timers import Timed
from trivium.messages.message import Message
from trivium.routing.exchanges import ACCEPTED, Binding, Destination
from trivium.security.identity import Identity
from trivium.security.permissions import READ, Access
from trivium_mqtt.codec.packets import Will
from trivium_mqtt.codec.properties import SUBSCRIPTION_ID
from trivium_mqtt.codec.wire import varint
from trivium_mqtt.topic_cache import EXCHANGE

if TYPE_CHECKING:
    from trivium_mqtt.connection import MqttConnection
    from trivium_mqtt.outgoing import Outgoing
    from trivium_mqtt.replay import Replay
    from trivium_mqtt.sessions import Sessions

#: How the names of queues of sessions begin; client identifiers follow. Clients of other protocols
#: cannot declare names in ``amq.``.
QUEUE_PREFIX: Final = "amq.mqtt-session."

NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08

#: Subscription identifiers that one message carries to one session at most.
MAX_IDENTIFIERS: Final = 4096

#: First byte of a queue entry's annotation: QoS in the two low bits, RETAIN flag, whether it came
#: through a share, whose identity follows; then subscription identifier properties. An empty
#: annotation is the message's own QoS, not retained, no share, no identifiers.
ANNOTATION_QOS: Final = 0x03
ANNOTATION_RETAIN: Final = 0x04
ANNOTATION_SHARED: Final = 0x08
#: Bytes of a share's identity.
SHARE_SIZE: Final = 8


class Subscription:
    """One topic filter of a session, with its options (3.8.3.1)."""

    __slots__ = ("binding", "identifier", "options", "session", "topic_filter")

    def __init__(
        self, session: Session, topic_filter: bytes, options: int, identifier: int
    ) -> None:
        self.session = session
        self.topic_filter = topic_filter
        #: the options byte as it came
        self.options = options
        #: subscription identifier; 0 for none
        self.identifier = identifier
        #: None for a shared subscription, which is bound for all its members at once
        self.binding: Binding | None = None
        if not topic_filter.startswith(b"$share/"):
            self.binding = Binding(session, topic_filter, None, True, self, session.access)

    @property
    def qos(self) -> int:
        """The highest QoS that the client wants."""
        return self.options & 3

    @property
    def no_local(self) -> bool:
        """Whether the client's own messages are left out."""
        return self.options & NO_LOCAL != 0

    @property
    def retain_handling(self) -> int:
        """When retained messages are sent: 0 always, 1 for a new subscription, 2 never."""
        return self.options >> 4 & 3


class Session(Destination):
    """A client's session. Containers appear when they are needed: most sessions are idle."""

    def __init__(
        self,
        sessions: Sessions,
        client_id: bytes,
        expiry: int,
        access: Access,
        mount_point: bytes = b"",
    ) -> None:
        self.sessions = sessions
        #: that of the listeners by which its client comes; another one has another session
        self.mount_point = mount_point
        #: what its user may do, who alone may have it
        self.access = access
        self.name = client_id.decode()
        self.client_id = client_id
        #: session expiry interval in seconds (3.1.2.11.2)
        self.expiry = expiry
        #: whether it has rows in the store: it was persistent once, and they go when it ends
        self.is_stored = False
        self.connection: MqttConnection | None = None
        self.subscriptions: dict[bytes, Subscription] | None = None
        #: QoS 1 and 2 toward the client; made with the first subscription that needs it
        self.outgoing: Outgoing | None = None
        #: retained messages that are still to be sent, by topic filter
        self.replays: dict[bytes, Replay] | None = None
        #: how many messages it did not get because it is slow or full
        self.missed = 0
        #: packet identifiers of QoS 2 messages from the client that it has not released
        self.incoming: set[int] | None = None
        self.will: Will | None = None
        #: whether messages in its queue may have come through shares, and the identities of these
        #: (None: there have been too many to know)
        self.has_shared = False
        self.shares: set[bytes] | None = None
        #: when to publish the will and when the session ends, by ``elapsed_ms``; 0: not set
        self.will_due = 0
        self.ends = 0
        #: called at the first of these times
        self.timer: Timed | None = None

    def permissions_changed(self, access: Access) -> None:
        """What it may be sent has changed, or who it is that it depends on."""
        self.access = access
        if self.subscriptions is not None:
            for subscription in self.subscriptions.values():
                if subscription.binding is not None:
                    subscription.binding.guard = access
        if self.outgoing is not None:
            self.outgoing.rechecks = True

    def is_of(self, identity: Identity, mount_point: bytes) -> bool:
        """Whether it was made by this user, behind this mount point."""
        owner = self.access.identity
        return (
            owner.name == identity.name
            and owner.is_anonymous == identity.is_anonymous
            and self.mount_point == mount_point
        )

    def may_get(self, message: Message) -> bool:
        """Whether its user may read what is addressed as ``message`` is."""
        return self.access.may_topic(READ, EXCHANGE, message.address.key)

    @property
    def is_persistent(self) -> bool:
        """Whether the session outlives its connection."""
        return self.expiry > 0

    def accept(self, message: Message) -> int:
        """Never in a route: ``combine`` stands in for it."""
        raise AssertionError("a session takes messages through its combined subscriptions")

    def combine(self, bindings: list[Binding]) -> Destination:
        subscriptions: list[Subscription] = []
        for binding in bindings:
            subscription = binding.options
            assert isinstance(subscription, Subscription)
            subscriptions.append(subscription)
        return combine_subscriptions(self, subscriptions)


class CombinedSubscription(Destination):
    """What the subscriptions of one session that match one topic ask for together.

    A message matching several is delivered once, at the highest QoS among them (MQTT-3.3.5-1, one
    of the two ways it allows), with all their identifiers.
    """

    def __init__(
        self,
        session: Session,
        qos: int,
        identifiers: bytes,
        retain_as_published: bool,
        share: bytes = b"",
    ) -> None:
        self.name = session.name
        self.session = session
        self.qos = qos
        #: subscription identifier properties as they go on the wire
        self.identifiers = identifiers
        self.retain_as_published = retain_as_published
        #: identity of the share that chooses this session; empty for subscriptions of its own
        self.share = share
        #: some of the subscriptions leave the client's own messages out
        self.has_no_local = False
        #: how the client gets its own messages then; None when nothing is left
        self.own: CombinedSubscription | None = None
        #: no option changes what is delivered
        self.is_plain = not identifiers and not retain_as_published and not share

    def accept(self, message: Message) -> int:
        session = self.session
        if self.is_plain and 0 < message.mode <= self.qos:
            outgoing = session.outgoing
            if outgoing is None:
                outgoing = session.sessions.outgoing(session)
            return outgoing.put(message, b"")
        if self.has_no_local and message.origin == session.client_id:
            own = self.own
            return ACCEPTED if own is None else own.accept(message)
        retain = self.retain_as_published and message.retain
        mode = message.mode
        if mode == 0 or self.qos == 0:
            connection = session.connection
            if connection is not None:
                connection.deliver_live(message, retain, self.identifiers)
            return ACCEPTED
        outgoing = session.outgoing
        if outgoing is None:
            outgoing = session.sessions.outgoing(session)
        annotation = make_annotation(min(mode, self.qos), retain, self.share, self.identifiers)
        return outgoing.put(message, annotation)

    def takes_runs(self, mode: int) -> bool:
        outgoing = self.session.outgoing
        return (
            self.is_plain
            and 0 < mode <= self.qos
            and outgoing is not None
            and outgoing.takes_runs()
        )

    def accept_run(self, messages: list[Message]) -> int:
        outgoing = self.session.outgoing
        assert outgoing is not None
        return outgoing.put_run(messages)

    def forward(self, run: bytes, count: int, is_v5: bool, payload: i64) -> bool:
        """Send ``count`` packets at QoS 0 as another client sent them, if they may go unchanged.

        ``is_v5`` tells that client's version, ``payload`` how many bytes of payload they have.
        False: each is to be published.
        """
        connection = self.session.connection
        if connection is None:
            # Nobody is there to get them.
            return True
        if (
            connection.is_v5 != is_v5
            or self.identifiers
            or self.has_no_local
            or not connection.takes_packets(len(run))
        ):
            return False
        connection.forward(run, count, payload)
        return True

    def target_queue(self) -> Destination | None:
        outgoing = self.session.outgoing
        return None if outgoing is None else outgoing.queue


def make_annotation(qos: int, retain: bool, share: bytes, identifiers: bytes) -> bytes:
    """A queue entry's annotation: how this session gets the message (see ANNOTATION_QOS)."""
    flags = qos
    if retain:
        flags |= ANNOTATION_RETAIN
    if share:
        flags |= ANNOTATION_SHARED
    return bytes((flags,)) + share + identifiers


def combine_subscriptions(
    session: Session, subscriptions: list[Subscription], share: bytes = b""
) -> CombinedSubscription:
    """What ``subscriptions`` ask for together, to which ``share`` leads (empty for none)."""
    qos = 0
    # A dict, because it is ordered; limited, because it goes into the queue entry's annotation.
    identifiers: dict[bytes, None] = {}
    retain_as_published = False
    others: list[Subscription] = []
    for subscription in subscriptions:
        qos = max(qos, subscription.qos)
        if subscription.identifier and len(identifiers) < MAX_IDENTIFIERS:
            identifiers[bytes((SUBSCRIPTION_ID,)) + varint(subscription.identifier)] = None
        if subscription.options & _RETAIN_AS_PUBLISHED:
            retain_as_published = True
        if not subscription.no_local:
            others.append(subscription)
    combined = CombinedSubscription(session, qos, b"".join(identifiers), retain_as_published, share)
    if len(others) < len(subscriptions):
        combined.has_no_local = True
        combined.is_plain = False
        combined.own = combine_subscriptions(session, others) if others else None
    return combined
