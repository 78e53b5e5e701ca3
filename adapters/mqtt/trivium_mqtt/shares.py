"""Shared subscriptions (4.8.2): each message goes to one of the sessions that share a filter.

Which one is decided when the message is routed: round robin, among those whose client is connected
and takes more now; otherwise among those that can keep it. What a session got is its own from then
on, until it ends: see ``handover``.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from trivium.common.descriptions import ShareDescription
from trivium.messages.message import Message
from trivium.observability.metrics import ProtocolMetrics
from trivium.routing.exchanges import ACCEPTED, Binding, Destination, Exchange
from trivium.runtime.broker import Broker
from trivium.vhost.virtual_host import VirtualHost
from trivium_mqtt.codec.reasons import TOPIC_FILTER_INVALID, RemoteError
from trivium_mqtt.codec.wire import HASH, PLUS, check_topic_filter
from trivium_mqtt.session import (
    SHARE_SIZE,
    CombinedSubscription,
    Session,
    Subscription,
    combine_subscriptions,
)

PREFIX: Final = b"$share/"

#: Members that are looked at for one message, beginning behind those looked at for the one before.
#: Where so many in a row take nothing now, it waits with one of these, if any can keep it.
MAX_LOOKS: Final = 256

#: Shares that a session is known to have been in; it may come to and leave any number of them.
MAX_REMEMBERED: Final = 256


def split_shared(topic_filter: bytes) -> tuple[bytes, bytes] | None:
    """Share name and the filter behind it; None when it is no shared subscription.

    Raises RemoteError when it looks like one and is not valid (MQTT-4.8.2-1, MQTT-4.8.2-2).
    """
    if not topic_filter.startswith(PREFIX):
        return None
    name, slash, shared = topic_filter[len(PREFIX) :].partition(b"/")
    if not name or not slash or not shared or PLUS in name or HASH in name:
        raise RemoteError(TOPIC_FILTER_INVALID, "shared subscription is not valid (MQTT-4.8.2-1)")
    return name, shared


def check_filter(topic_filter: bytes) -> None:
    """``check_topic_filter``, for the filter of a shared subscription too."""
    shared = split_shared(topic_filter)
    check_topic_filter(topic_filter if shared is None else shared[1])


def identity_of(topic_filter: bytes) -> bytes:
    """What queue entries know a share by."""
    return blake2b(topic_filter, digest_size=SHARE_SIZE).digest()


class Share(Destination):
    """The sessions that share one filter under one name."""

    def __init__(self, topic_filter: bytes, metrics: ProtocolMetrics) -> None:
        self.name = topic_filter.decode()
        self.identity = identity_of(topic_filter)
        self.members: list[CombinedSubscription] = []
        # Where in the list each session is.
        self._places: dict[Session, int] = {}
        self._metrics = metrics
        self._next_index = 0

    def accept(self, message: Message) -> int:
        return self.give(message, False)

    def give(self, message: Message, to_persistent: bool) -> int:
        """``accept``, where wanted among the sessions alone that outlive their connections."""
        members = self.members
        count = len(members)
        second: CombinedSubscription | None = None
        begin = self._next_index
        for step in range(count):
            if step >= MAX_LOOKS and (second is not None or message.mode == 0):
                self._next_index = begin + step
                break
            index = (begin + step) % count
            member = members[index]
            session = member.session
            if (to_persistent and not session.is_persistent) or not session.may_get(message):
                continue
            connection = session.connection
            at_qos_0 = message.mode == 0 or member.qos == 0
            if connection is not None:
                outgoing = session.outgoing
                if connection.takes_output and (
                    at_qos_0 or (outgoing is not None and outgoing.takes_delivery())
                ):
                    self._next_index = index + 1
                    return member.accept(message)
                if second is None or second.session.connection is None:
                    second = member
            elif second is None and not at_qos_0:
                second = member
        if second is not None:
            return second.accept(message)
        self._metrics.messages_dropped += 1
        return ACCEPTED

    def put(self, member: CombinedSubscription) -> None:
        """Take a session in, or change how it gets messages."""
        place = self._places.get(member.session, -1)
        if place >= 0:
            self.members[place] = member
        else:
            self._places[member.session] = len(self.members)
            self.members.append(member)

    def target_queue(self) -> Destination | None:
        if len(self.members) != 1:
            return None
        (member,) = self.members
        return member.target_queue()

    def remove(self, session: Session) -> None:
        """Take the session out, if it is in."""
        place = self._places.pop(session, -1)
        if place < 0:
            return
        last = self.members.pop()
        if last.session is not session:
            self.members[place] = last
            self._places[last.session] = place


class Shares:
    """All shares of a virtual host."""

    def __init__(
        self, broker: Broker, vhost: VirtualHost, exchange: Exchange, metrics: ProtocolMetrics
    ) -> None:
        self._broker = broker
        self._vhost = vhost
        self._exchange = exchange
        self._metrics = metrics
        self._shares: dict[bytes, Share] = {}
        self._by_identity: dict[bytes, Share] = {}
        #: sessions that share something, each once for each share that it is in
        self.members = 0

    def join(self, session: Session, subscription: Subscription, shared: bytes) -> None:
        """The session shares the filter ``shared``, or does so with other options."""
        topic_filter = subscription.topic_filter
        share = self._shares.get(topic_filter)
        if share is None:
            share = Share(topic_filter, self._metrics)
            self._shares[topic_filter] = share
            self._by_identity[share.identity] = share
            self._vhost.bind(self._exchange, Binding(share, shared, None, True))
        if not session.has_shared:
            session.has_shared = True
            session.shares = {share.identity}
        elif session.shares is not None:
            session.shares.add(share.identity)
            if len(session.shares) > MAX_REMEMBERED:
                session.shares = None
        before = len(share.members)
        share.put(combine_subscriptions(session, [subscription], share.identity))
        self.members += len(share.members) - before

    def leave(self, session: Session, topic_filter: bytes, shared: bytes) -> None:
        """The session does not share any more; the last one takes the share with it."""
        share = self._shares[topic_filter]
        before = len(share.members)
        share.remove(session)
        self.members += len(share.members) - before
        if not share.members:
            del self._shares[topic_filter]
            del self._by_identity[share.identity]
            self._vhost.unbind(self._exchange, Binding(share, shared, None, True))

    def have_members(self, identities: set[bytes] | None) -> bool:
        """Whether any session shares one of these; None: any share."""
        if identities is None:
            return len(self._by_identity) > 0
        return any(identity in self._by_identity for identity in identities)

    def describe(self) -> Iterator[ShareDescription]:
        """What operators see of them, each made when it is taken."""
        for topic_filter, share in list(self._shares.items()):
            found = split_shared(topic_filter)
            assert found is not None
            yield ShareDescription(
                name=found[0].decode(),
                topic_filter=found[1].decode(),
                members=tuple(member.session.name for member in share.members),
            )

    def hand_on(self, identity: bytes, message: Message) -> None:
        """Give a message to another session, since the one that had it from this share has ended.

        When the broker stops, those that end in their turn are left out.
        """
        share = self._by_identity.get(identity)
        if share is None:
            self._metrics.messages_dropped += 1
        else:
            share.give(message, self._broker.is_stopping)
