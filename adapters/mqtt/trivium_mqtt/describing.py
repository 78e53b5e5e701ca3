"""What operators see of a connection and of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trivium.common.descriptions import (
    ConnectionDescription,
    ConsumerDescription,
    SessionDescription,
    SubscriptionDescription,
)
from trivium.runtime.adapter import ManagedConnection
from trivium_mqtt.codec.reasons import ADMINISTRATIVE_ACTION
from trivium_mqtt.shares import split_shared

if TYPE_CHECKING:
    from trivium_mqtt.connection import MqttConnection
    from trivium_mqtt.session import Session


class MqttManaged(ManagedConnection):
    """One connection; ``keep_alive`` in seconds."""

    def __init__(self, connection: MqttConnection, keep_alive: int) -> None:
        super().__init__(connection)
        self._connection = connection
        self._keep_alive = keep_alive

    def describe(self) -> ConnectionDescription:
        connection = self._connection
        state = "running" if connection.is_connected else "starting"
        version = "5-0" if connection.is_v5 else "3-1" if connection.ignores_flags else "3-1-1"
        return ConnectionDescription(
            protocol=f"MQTT {version}",
            state="closing" if connection.is_closed else state,
            client={"client_id": connection.client_id.decode(errors="replace")},
            max_frame=connection.maximum_packet,
            timeout=self._keep_alive,
        )

    def consumers(self) -> list[ConsumerDescription]:
        session = self._connection.session
        if session is None or session.outgoing is None:
            return []
        found = session.outgoing.describe()
        return [] if found is None else [found]

    def close(self, reason: str) -> None:
        # Without a reason string: the client may have asked for none (MQTT-3.1.2-29).
        self._connection.end(ADMINISTRATIVE_ACTION)


def describe_session(session: Session) -> SessionDescription:
    """A session."""
    outgoing = session.outgoing
    return SessionDescription(
        client_id=session.name,
        user=session.access.identity.name,
        is_connected=session.connection is not None,
        expiry=session.expiry,
        subscriptions=len(session.subscriptions or ()),
        queue="" if outgoing is None else outgoing.queue.name,
    )


def describe_subscriptions(session: Session) -> Iterator[SubscriptionDescription]:
    """Those of a session."""
    for topic_filter, subscription in list((session.subscriptions or {}).items()):
        shared = split_shared(topic_filter)
        share, given = (b"", topic_filter) if shared is None else shared
        yield SubscriptionDescription(
            client_id=session.name,
            topic_filter=given.decode(),
            qos=subscription.qos,
            share=share.decode(),
        )
