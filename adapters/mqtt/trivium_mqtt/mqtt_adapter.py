"""The MQTT adapter: what the broker sees of this package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from trivium.common.descriptions import (
    SessionDescription,
    ShareDescription,
    SubscriptionDescription,
)
from trivium.messages.message import PROTOCOL_MQTT, register_codec
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import Adapter, Connection, Peer, Transport, WebSocketTerms
from trivium.runtime.broker import Broker
from trivium.runtime.vhost_deletion import delete_rows
from trivium.runtime.virtual_hosts import DEFAULT_VHOST
from trivium.vhost.virtual_host import VirtualHost
from trivium_mqtt.codec.properties import MqttCodec
from trivium_mqtt.codec.reasons import ADMINISTRATIVE_ACTION
from trivium_mqtt.codec.wire import VARINT_MAX
from trivium_mqtt.connection import MqttConnection
from trivium_mqtt.describing import describe_session, describe_subscriptions
from trivium_mqtt.options import MqttOptions
from trivium_mqtt.session import Session
from trivium_mqtt.sessions import Sessions
from trivium_mqtt.store import SessionStore
from trivium_mqtt.sys_topics import SysTopics


class MqttAdapter(Adapter):
    """MQTT 3.1, 3.1.1 and 5.0."""

    def __init__(self, options: MqttOptions) -> None:
        self.name = "mqtt"
        self.metrics = ProtocolMetrics()
        # MQTT-6.0.0-3: the client must offer a subprotocol.
        self.websocket = WebSocketTerms("/mqtt", ("mqtt", "mqttv3.1"), must_offer=True)
        self._options = options
        self._most = VARINT_MAX
        self._broker: Broker | None = None
        #: by the name of their virtual host
        self._sessions: dict[str, Sessions] = {}
        self._topics: SysTopics | None = None
        register_codec(PROTOCOL_MQTT, MqttCodec())

    def start(self, broker: Broker) -> None:
        self._most = min(broker.config.limits.max_message_bytes, VARINT_MAX + 5)
        self._options = self._bounded(self._options)
        self._broker = broker
        for vhost in broker.vhosts.values():
            self._sessions_of(vhost)
        if self._options.sys_interval_seconds:
            interval = self._options.sys_interval_seconds
            self._topics = SysTopics(broker, self._sessions, self.metrics, interval)

    def _sessions_of(self, vhost: VirtualHost) -> Sessions:
        """The sessions of a virtual host, which may be a new one."""
        found = self._sessions.get(vhost.name)
        if found is None:
            assert self._broker is not None
            found = Sessions(self._broker, vhost, self._options, self.metrics)
            self._sessions[vhost.name] = found
            found.restore()
        return found

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        self.metrics.connections_opened += 1
        options = self._options
        own = peer.listener.config.options
        if own is not None:
            assert isinstance(own, MqttOptions)
            options = self._bounded(own)
        sessions = self._sessions[DEFAULT_VHOST]
        return MqttConnection(options, sessions, self._sessions_of, transport, peer)

    def _bounded(self, options: MqttOptions) -> MqttOptions:
        """``options`` with the largest packet that clients may send."""
        most = self._most
        return replace(
            options, maximum_packet_bytes=min(options.maximum_packet_bytes or most, most)
        )

    def permissions_changed(self, name: str | None) -> None:
        for sessions in self._sessions.values():
            sessions.permissions_changed(name)

    def forget_vhost(self, vhost: VirtualHost) -> Iterable[int]:
        # After a start there are no sessions but in the storage. Their queues go with the others.
        sessions = self._sessions.pop(vhost.name, None)
        if sessions is not None:
            yield from _end_all(sessions, list(sessions.by_client.values()))
        assert self._broker is not None
        for table in SessionStore(self._broker.storage, vhost.name).tables():
            yield from delete_rows(table)

    def forget_user(self, name: str) -> Iterable[int]:
        for sessions in list(self._sessions.values()):
            away = [each for each in _of_user(sessions, name) if each.connection is None]
            yield from _end_all(sessions, away)

    def user_added(self, name: str) -> None:
        for sessions in list(self._sessions.values()):
            for session in _of_user(sessions, name):
                if session.connection is None or session.is_persistent:
                    sessions.withdraw_will(session)
                    _end(session)

    def describe_sessions(self, vhost: VirtualHost) -> Iterable[SessionDescription]:
        for session in self._all(vhost):
            yield describe_session(session)

    def describe_session(self, vhost: VirtualHost, client_id: str) -> SessionDescription | None:
        session = self._session(vhost, client_id)
        return None if session is None else describe_session(session)

    def describe_subscriptions(
        self, vhost: VirtualHost, client_id: str = ""
    ) -> Iterable[SubscriptionDescription]:
        sessions = self._all(vhost)
        if client_id:
            session = self._session(vhost, client_id)
            sessions = [] if session is None else [session]
        for session in sessions:
            yield from describe_subscriptions(session)

    def describe_shares(self, vhost: VirtualHost) -> Iterable[ShareDescription]:
        sessions = self._sessions.get(vhost.name)
        return () if sessions is None else sessions.shares.describe()

    def end_session(self, vhost: VirtualHost, client_id: str) -> None:
        session = self._session(vhost, client_id)
        if session is not None:
            _end(session)

    def _all(self, vhost: VirtualHost) -> list[Session]:
        sessions = self._sessions.get(vhost.name)
        return [] if sessions is None else list(sessions.by_client.values())

    def _session(self, vhost: VirtualHost, client_id: str) -> Session | None:
        sessions = self._sessions.get(vhost.name)
        return None if sessions is None else sessions.by_client.get(client_id.encode())

    def tick(self, now: float) -> None:
        for sessions in self._sessions.values():
            sessions.tick()
        if self._topics is not None:
            self._topics.tick()


def _of_user(sessions: Sessions, name: str) -> list[Session]:
    """Those of a user."""
    found: list[Session] = []
    for session in sessions.by_client.values():
        owner = session.access.identity
        if owner.name == name and not owner.is_anonymous:
            found.append(session)
    return found


def _end(session: Session) -> None:
    """End a session; its client goes with it."""
    if session.connection is not None:
        session.connection.end(ADMINISTRATIVE_ACTION, keeps_session=False)
    else:
        session.sessions.end(session)


def _end_all(sessions: Sessions, left: list[Session]) -> Iterator[int]:
    """End these sessions, 1 for each, without publishing their wills."""
    while left:
        session = left.pop()
        # It may have ended meanwhile, or its client may be back.
        if session.connection is None and sessions.by_client.get(session.client_id) is session:
            sessions.withdraw_will(session)
            sessions.end(session)
            yield 1
