"""Sending retained messages to a new subscription (3.3.1.3), as fast as the client takes them.

A wildcard may match any number of messages, so they do not all go to the output or the queue at
once. The rest belongs to the session: it goes on when the client is back, and for a session with
rows also after a restart, from the key that was reached. A message that was replaced since the
subscription is skipped when the subscriber has got, or will get, what replaced it as a normal
message; where that may have been dropped, the newest one is sent in its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.routing.exchanges import REJECTED
from trivium_mqtt.codec.properties import SUBSCRIPTION_ID
from trivium_mqtt.codec.wire import varint
from trivium_mqtt.session import Session, Subscription, make_annotation

if TYPE_CHECKING:
    from trivium.routing.retained import RetainedMessages, RetainedWalk
    from trivium_mqtt.connection import MqttConnection


class Replay:
    """The retained messages for one subscription that are still to be sent.

    ``after`` is the key that was reached before a restart, empty for none.
    """

    def __init__(
        self, session: Session, subscription: Subscription, retained: RetainedMessages, after: bytes
    ) -> None:
        #: the subscription as it is now: its options may change on the way
        self.subscription = subscription
        #: whether all of it was sent
        self.is_finished = False
        #: the key that was reached
        self.after = after
        self._session = session
        self._retained = retained
        self._walk: RetainedWalk | None = None
        # Whether the walk stands at a message that was not dealt with yet.
        self._has_next = False
        # What was kept later was delivered when it was published, unless it was missed.
        self._begun_at = retained.sequence
        self._missed_before = session.missed
        self._was_away = False

    def suspend(self) -> None:
        """The client is gone: nothing live reaches it, and only the key is remembered."""
        self._was_away = True
        self._walk = None
        self._has_next = False

    def pump(self, connection: MqttConnection, steps: int) -> int:
        """Send what the connection takes, with at most so many steps; those that are left."""
        session = self._session
        subscription = self.subscription
        binding = subscription.binding
        assert binding is not None
        walk = self._walk
        if walk is None:
            walk = self._retained.walk(binding.levels(), self.after)
            self._walk = walk
        now_ms = connection.broker.now_ms
        identifiers = b""
        if subscription.identifier:
            identifiers = bytes((SUBSCRIPTION_ID,)) + varint(subscription.identifier)
        while connection.takes_output:
            if not self._has_next:
                steps = walk.advance(steps)
                self._has_next = walk.is_at_match
                self.is_finished = walk.is_finished
                if not self._has_next:
                    break
            # As it is now: it may have waited here.
            message = walk.message
            if message is not None and not (0 < message.expires <= now_ms):
                qos = min(message.mode, subscription.qos)
                is_own = subscription.no_local and message.origin == session.client_id
                if (
                    is_own
                    or not session.may_get(message)
                    or (walk.sequence > self._begun_at and self._has_got(qos))
                ):
                    pass
                elif qos == 0:
                    connection.deliver_live(message, True, identifiers)
                else:
                    outgoing = session.sessions.outgoing(session)
                    if not outgoing.takes_retained():
                        break
                    if (
                        outgoing.put(message, make_annotation(qos, True, b"", identifiers))
                        == REJECTED
                    ):
                        break
            self.after = walk.key
            self._has_next = False
        return steps

    def _has_got(self, qos: int) -> bool:
        """Whether the client has got, or will get, what was published since the subscription."""
        session = self._session
        if session.missed != self._missed_before:
            return False
        if qos == 0:
            return not self._was_away
        outgoing = session.outgoing
        settings = None if outgoing is None else outgoing.queue.settings
        # Limits and times to live may have taken it out of the queue.
        return settings is not None and not settings.has_limits and settings.message_ttl < 0
