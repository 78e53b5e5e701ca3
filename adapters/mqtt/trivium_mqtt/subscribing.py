"""SUBSCRIBE and UNSUBSCRIBE of one connection (3.8, 3.10), and the retained messages that follow.

There may be very many filters in a packet, and very many retained messages to be looked for. So
both are carried out as far as a turn may last, and go on in the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.quotas import SUBSCRIPTIONS
from trivium.common.timers import Timed
from trivium.errors import QuotaExceeded
from trivium.routing.exchanges import ACCEPTED
from trivium_mqtt.codec import packets
from trivium_mqtt.codec.packets import FilterPacket
from trivium_mqtt.codec.reasons import (
    FAILURE,
    NO_SUBSCRIPTION_EXISTED,
    NOT_AUTHORIZED,
    PACKET_TOO_LARGE,
    QUOTA_EXCEEDED,
    ProtocolError,
    RemoteError,
)
from trivium_mqtt.mounting import mount_filter
from trivium_mqtt.reader import FOR_FILTERS
from trivium_mqtt.session import NO_LOCAL, Session, Subscription
from trivium_mqtt.shares import PREFIX as SHARED
from trivium_mqtt.shares import check_filter, split_shared
from trivium_mqtt.topic_cache import EXCHANGE

if TYPE_CHECKING:
    from trivium_mqtt.connection import MqttConnection

#: Subscriptions of one session whose retained messages wait to be sent; further ones are refused.
#: Each holds little more than a key, but each is a row in the storage too.
MAX_REPLAYS: Final = 256

#: Steps over the tree of retained messages in one turn of one connection: a millisecond or two.
MAX_STEPS: Final = 1024


class Subscribing(Timed):
    """Carries out the subscriptions of one connection."""

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._sessions = connection.sessions
        self._broker = connection.broker
        # The packet that is not answered yet, and the codes of its filters so far.
        self._packet: FilterPacket | None = None
        self._codes = bytearray()

    def take(self, packet: FilterPacket) -> None:
        """Carry out SUBSCRIBE or UNSUBSCRIBE as far as this turn may last. Raises RemoteError."""
        connection = self._connection
        # No other answer can exceed what CONNACK needs.
        size = packets.suback_size(len(packet.filters))
        if connection.is_v5 and size > connection.maximum_output:
            raise RemoteError(PACKET_TOO_LARGE, "the answer exceeds the maximum (MQTT-3.1.2-24)")
        self._packet = packet
        self._codes = bytearray()
        self.go_on()

    def forget(self) -> None:
        """The client has left: what is not answered never will be."""
        self._packet = None

    def go_on(self) -> None:
        """Go on with the packet that is not answered yet, if there is one. Raises RemoteError."""
        packet = self._packet
        if packet is None:
            return
        connection = self._connection
        session = connection.attached()
        codes = self._codes
        begin = len(codes)
        while len(codes) < len(packet.filters):
            if len(codes) > begin and self._broker.driver.is_turn_long():
                connection.hold_input(FOR_FILTERS)
                self._broker.driver.next_turn(connection)
                return
            topic_filter, options = packet.filters[len(codes)]
            if packet.answer == packets.SUBACK:
                code = self._subscribe(session, topic_filter, options, packet.identifier)
            else:
                code = self._unsubscribe(session, topic_filter)
            codes.append(code)
        self._packet = None
        connection.answer(
            self._sessions.write_batch_of(session) if min(codes) < 0x80 else ACCEPTED,
            packets.suback(packet.answer, connection.version, packet.packet_id, bytes(codes)),
            0,
        )
        self.replay()
        connection.continue_input(FOR_FILTERS)

    def _subscribe(
        self, session: Session, topic_filter: bytes, options: int, identifier: int
    ) -> int:
        """Subscribe to one filter; its code in SUBACK."""
        is_admitted = self._connection.options.admits_topic(topic_filter)
        try:
            check_filter(topic_filter)
            if session.mount_point:
                topic_filter = mount_filter(session.mount_point, topic_filter)
                check_filter(topic_filter)
        except RemoteError as error:
            if self._connection.is_v5:
                return error.reason
            if error.reason == QUOTA_EXCEEDED:
                return FAILURE
            raise
        if topic_filter.startswith(SHARED) and options & NO_LOCAL:
            raise ProtocolError("no local on a shared subscription (MQTT-3.8.3-4)")
        if not self._may_subscribe(session, topic_filter):
            return NOT_AUTHORIZED if self._connection.is_v5 else FAILURE
        known = session.subscriptions
        most = self._connection.options.maximum_subscriptions
        if (
            (known is not None and len(known) >= most and topic_filter not in known)
            or not is_admitted
            or not self._may_replay(session, topic_filter)
            or not self._may_have_another(session, topic_filter)
        ):
            return QUOTA_EXCEEDED if self._connection.is_v5 else FAILURE
        subscription = Subscription(session, topic_filter, options, identifier)
        self._sessions.subscribe(session, subscription)
        return subscription.qos

    def _may_subscribe(self, session: Session, topic_filter: bytes) -> bool:
        shared = split_shared(topic_filter)
        wanted = topic_filter if shared is None else shared[1]
        if session.access.may_subscribe(EXCHANGE, wanted, True):
            return True
        session.access.refused(f"read access to topic filter '{wanted.decode(errors='replace')}'")
        return False

    def _may_have_another(self, session: Session, topic_filter: bytes) -> bool:
        """Whether a subscription is within the quotas of whom it counts for."""
        known = session.subscriptions
        if known is not None and topic_filter in known:
            return True
        try:
            self._connection.usage.require(SUBSCRIPTIONS)
        except QuotaExceeded:
            return False
        return True

    def _unsubscribe(self, session: Session, topic_filter: bytes) -> int:
        """Remove one subscription; its code in UNSUBACK (3.11.3)."""
        whole = topic_filter
        if session.mount_point:
            whole = mount_filter(session.mount_point, topic_filter)
        if self._sessions.unsubscribe(session, whole):
            return 0
        try:
            check_filter(topic_filter)
        except RemoteError as error:
            if error.reason != QUOTA_EXCEEDED:
                if self._connection.is_v5:
                    return error.reason
                raise
        return NO_SUBSCRIPTION_EXISTED

    def _may_replay(self, session: Session, topic_filter: bytes) -> bool:
        """Whether there is room for the retained messages of another subscription."""
        replays = session.replays
        if replays is None or len(replays) < MAX_REPLAYS or topic_filter in replays:
            return True
        # The others may have nothing to send, or may send it before SUBACK (3.8.4).
        self.replay()
        return session.replays is None or len(replays) < MAX_REPLAYS

    def replay(self) -> None:
        """Send waiting retained messages as far as the output takes them."""
        session = self._connection.session
        replays = None if session is None else session.replays
        if session is None or replays is None:
            return
        steps = MAX_STEPS
        while replays and steps > 0:
            topic_filter, replay = next(iter(replays.items()))
            before = replay.after
            steps = replay.pump(self._connection, steps)
            if replay.is_finished:
                replays.pop(topic_filter, None)
                self._sessions.store_subscription(replay.subscription, None)
            else:
                if replay.after != before:
                    self._sessions.store_subscription(replay.subscription, replay.after)
                if steps > 0:
                    return
        if not replays:
            session.replays = None
            return
        self._broker.timeouts.call_at(self._broker.elapsed_ms, self)

    def due(self) -> None:
        self.replay()
