"""Sending retained messages to a new subscription (3.3.1.3), as fast as the client takes them.

A wildcard may match any number of messages, so they do not all go to the output or the queue at
once. One that was replaced or cleared before its turn is skipped: the subscriber has got, or will
get, what replaced it as a normal message, and must not see the older one after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.message import Message
from trivium.retained import RetainedMessages
from trivium_mqtt.properties import SUBSCRIPTION_ID
from trivium_mqtt.session import Session, Subscription, make_note
from trivium_mqtt.wire import varint

if TYPE_CHECKING:
    from trivium_mqtt.connection import MqttConnection

#: Retained messages that wait in a session's queue before the rest is held.
MAX_IN_QUEUE: Final = 1024


class Replay:
    """The retained messages for one subscription."""

    def __init__(
        self,
        session: Session,
        subscription: Subscription,
        retained: RetainedMessages,
        messages: list[Message],
    ) -> None:
        self._session = session
        self._qos = subscription.qos
        self._no_local = subscription.no_local
        self._identifiers = b""
        if subscription.identifier:
            self._identifiers = bytes((SUBSCRIPTION_ID,)) + varint(subscription.identifier)
        self._retained = retained
        self._messages = messages
        self._next = 0

    def pump(self, connection: MqttConnection) -> bool:
        """Send what the connection takes; whether that was all."""
        messages = self._messages
        outgoing = self._session.outgoing
        while self._next < len(messages):
            message = messages[self._next]
            qos = min(message.mode, self._qos)
            if not connection.takes_output:
                return False
            if qos > 0 and outgoing is not None and len(outgoing.queue) >= MAX_IN_QUEUE:
                return False
            self._next += 1
            if self._retained.get(message.address.key) is not message:
                continue
            if self._no_local and message.origin == self._session.client_id:
                continue
            if qos == 0 or outgoing is None:
                connection.deliver_live(message, True, self._identifiers)
            else:
                outgoing.put(message, make_note(qos, True, b"", self._identifiers))
        return True
