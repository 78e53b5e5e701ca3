"""One MQTT client's connection: CONNECT, subscriptions, acknowledgements, and its end.

What comes in is cut into packets by ``Reader``, what goes out leaves through ``Writer``; PUBLISH is
the business of ``Incoming`` and ``Outgoing``.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from trivium.errors import QuotaExceeded
from trivium.routing.exchanges import ACCEPTED
from trivium.runtime.adapter import PUT_OFF, ManagedConnection, Peer, Transport, make_attempt
from trivium.security.attempts import Login
from trivium.vhost.virtual_host import VirtualHost
from trivium_mqtt.codec import packets
from trivium_mqtt.codec.packets import (
    Auth,
    Connect,
    Disconnect,
    Subscribe,
    Unsubscribe,
)
from trivium_mqtt.codec.reasons import (
    ADMINISTRATIVE_ACTION,
    BAD_CREDENTIALS,
    CLIENT_ID_NOT_VALID,
    KEEP_ALIVE_TIMEOUT,
    NOT_AUTHORIZED,
    PACKET_ID_NOT_FOUND,
    QUOTA_EXCEEDED,
    RETURN_CODES,
    SERVER_BUSY,
    SERVER_SHUTTING_DOWN,
    SERVER_UNAVAILABLE,
    TOPIC_NAME_INVALID,
    UNSPECIFIED_ERROR,
    MalformedPacket,
    ProtocolError,
    Refused,
    RemoteError,
)
from trivium_mqtt.counts import enter, lend_subscriptions
from trivium_mqtt.describing import MqttManaged
from trivium_mqtt.enhanced import Enhanced
from trivium_mqtt.entry import Entry
from trivium_mqtt.mounting import mount_will
from trivium_mqtt.options import MqttOptions
from trivium_mqtt.outgoing import FINISHED, NOT_FOUND, RELEASE_DURABLY
from trivium_mqtt.reader import FOR_AUTHENTICATION, FOR_SESSION, Reader
from trivium_mqtt.session import Session
from trivium_mqtt.sessions import Sessions
from trivium_mqtt.states import AUTHENTICATES, EXCHANGES
from trivium_mqtt.subscribing import Subscribing

logger = logging.getLogger(__name__)


class MqttConnection(Reader):
    """A client's connection, from CONNECT to its end."""

    def __init__(
        self,
        options: MqttOptions,
        sessions: Sessions,
        sessions_of: Callable[[VirtualHost], Sessions],
        transport: Transport,
        peer: Peer,
    ) -> None:
        """``sessions`` are those of ``/``, until it is known where the client goes."""
        super().__init__(options, sessions, transport, peer)
        # None once the client is in.
        self._entry: Entry | None = Entry(self, sessions_of)
        #: messages at QoS 1 and 2 that the client takes at a time
        self.receive_maximum = 65_535
        self._connect: Connect | None = None
        # None for a client that came without an authentication method.
        self._enhanced: Enhanced | None = None
        self._subscribing: Subscribing | None = None
        # Milliseconds without input after which the client is gone, 0 for any; and, until it is
        # connected, when it came.
        self._keep_alive = 0

    def take_packet(self, first: int, data: bytes, at: int, end: int) -> None:
        if first & 0xF0 == packets.CONNECT:
            self._take_connect(first, data, at, end)
            return
        packets.check_flags(first)
        if first in (packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP):
            packet = packets.Acknowledgement(first, data, at, end, self.version)
            self.take_acknowledgement(first, packet.packet_id, packet.reason)
        elif first == packets.SUBSCRIBE:
            most = self.options.maximum_subscriptions
            self._subscriptions().take(Subscribe(data, at, end, self.version, most))
        elif first == packets.UNSUBSCRIBE:
            most = self.options.maximum_subscriptions
            self._subscriptions().take(Unsubscribe(data, at, end, self.version, most))
        elif first == packets.PINGREQ:
            if at != end:
                raise MalformedPacket("PINGREQ with a body (3.12.1)")
            self.send(packets.PINGRESP)
        elif first == packets.AUTH:
            self._take_auth(data, at, end)
        else:
            assert first == packets.DISCONNECT, "ACTIONS lets no other packet in"
            self._take_disconnect(Disconnect(data, at, end, self.version))

    @property
    def version(self) -> int:
        return packets.V5 if self.is_v5 else packets.V311

    # CONNECT

    def _take_connect(self, first: int, data: bytes, at: int, end: int) -> None:
        connect = Connect()
        self._connect = connect
        self.metrics.connects_received += 1
        connect.decode(data, at, end)
        self.is_v5 = connect.version == packets.V5
        if connect.maximum_packet_size:
            self.maximum_output = connect.maximum_packet_size
        self.ignores_flags = connect.version == packets.V31
        if first != packets.CONNECT and not self.ignores_flags:
            raise MalformedPacket("flags of CONNECT (MQTT-2.1.3-1)")
        if not connect.client_id and (
            connect.version == packets.V31
            or (connect.version == packets.V311 and not connect.clean_start)
        ):
            raise RemoteError(CLIENT_ID_NOT_VALID, "empty client identifier (MQTT-3.1.3-8)")
        if len(connect.client_id) > self.options.maximum_client_id_bytes:
            raise RemoteError(CLIENT_ID_NOT_VALID, "client identifier is too long (MQTT-3.1.3-6)")
        will = connect.will
        if will is not None and not self.options.admits_topic(will.topic):
            raise RemoteError(TOPIC_NAME_INVALID, "will topic is longer than is admitted here")
        if will is not None and self.mount_point:
            connect.will = mount_will(self.mount_point, will)
        self._state = AUTHENTICATES
        entry = self._entry
        assert entry is not None
        username = entry.user_of(connect.username)
        password = b"" if connect.password is None else connect.password
        # Many clients always send credentials. Those of nobody we know prove nothing, and where
        # none are needed they count as none.
        attempt = make_attempt(
            self,
            None if username == "" and not password else username,
            password,
            client_id=connect.client_id.decode(errors="replace"),
            vhost=entry.likely_vhost(username or ""),
            ignores_unknown=True,
        )
        if connect.authentication_method is None:
            self.broker.authenticator.authenticate(attempt, self.authenticated)
        else:
            enhanced = Enhanced(self, connect.authentication_method, attempt)
            self._enhanced = enhanced
            enhanced.go_on(connect.authentication_data)
        self._wait_for_decision()

    def _wait_for_decision(self) -> None:
        # It may be admitted and wait for its former session, in the same state.
        if self._state == AUTHENTICATES and self.login is None and not self.is_closed:
            self.hold_input(FOR_AUTHENTICATION)

    def _take_auth(self, data: bytes, at: int, end: int) -> None:
        enhanced = self._enhanced
        if enhanced is None:
            raise ProtocolError("AUTH without an authentication method (MQTT-4.12.0-7)")
        packet = Auth(data, at, end)
        connect = self._connect
        client_id = self.client_id.decode(errors="replace")
        attempt = make_attempt(self, None, b"", client_id=client_id, vhost=self.access.vhost)
        if connect is not None:
            self._state = AUTHENTICATES
        enhanced.take(packet, replace(attempt, renews=self.identity.name))
        if connect is not None:
            self._wait_for_decision()

    def challenged(self, packet: bytes) -> None:
        """The client is asked for more: by ``packet``, an AUTH."""
        self.send(packet)
        if not self.is_connected:
            self._state = EXCHANGES
            self.continue_input(FOR_AUTHENTICATION)

    def authenticated(self, login: Login | None) -> None:
        """The client may come in; with None it may not."""
        connect = self._connect
        if self.is_closed or connect is None:
            return
        if login is not None:
            self.admit(login)
            self._accept(connect)
            self.continue_input(FOR_AUTHENTICATION)
            return
        if self.is_put_off:
            logger.info("%s: %s", self.peer.address, PUT_OFF)
            self._refuse_connect(SERVER_BUSY, PUT_OFF)
            return
        self.metrics.authentication_failures += 1
        if self._enhanced is not None:
            logger.info("%s: user %r is refused", self.peer.address, self._enhanced.user)
            self._refuse_connect(NOT_AUTHORIZED)
        elif connect.username is None or not (connect.username or connect.password):
            logger.info("%s: anonymous access is not allowed here", self.peer.address)
            self._refuse_connect(NOT_AUTHORIZED)
        else:
            logger.info("%s: user %r is refused", self.peer.address, connect.username)
            self._refuse_connect(BAD_CREDENTIALS)

    def _accept(self, connect: Connect) -> None:
        """The client may connect, unless there are as many as may be."""
        try:
            self._connect_session(connect)
        except QuotaExceeded as error:
            logger.info("%s: %s", self.peer.address, error)
            self._refuse_connect(QUOTA_EXCEEDED, str(error))
        except RemoteError as error:
            logger.info("%s: %s", self.peer.address, error)
            self._refuse_connect(error.reason, str(error))

    def _connect_session(self, connect: Connect) -> None:
        """Find or make the client's session, answer, go on where it was. Raises QuotaExceeded,
        RemoteError."""
        enhanced = self._enhanced
        granted = _Granted(connect, self.options, b"" if enhanced is None else enhanced.answer)
        entry = self._entry
        assert entry is not None
        entry.enter(granted.client_id)
        sessions = self.sessions
        self.maximum_packet = self.options.maximum_packet_bytes
        if self.is_v5 and packets.connack_size(granted.answers) > self.maximum_output:
            logger.info("%s: CONNACK exceeds the client's maximum packet size", self.peer.address)
            self.close()
            return
        client_id = self.client_id = granted.client_id
        enter(self, client_id)
        known = sessions.by_client.get(client_id)
        if known is not None and (
            connect.clean_start or not known.is_of(self.identity, self.mount_point)
        ):
            # What was kept for another is not for this one.
            sessions.end(known)
            known = None
        handover = sessions.handovers.get(client_id)
        if handover is not None:
            handover.waiting.append(self)
            self.hold_input(FOR_SESSION)
            return
        if known is None:
            session = sessions.create(
                client_id, granted.session_expiry, self.access, self.mount_point
            )
        else:
            session = known
            if session.access is not self.access:
                session.permissions_changed(self.access)
            sessions.connected(session, granted.session_expiry)
        if connect.will is not None:
            sessions.set_will(session, connect.will)
        self.session = session
        session.connection = self
        lend_subscriptions(session)
        self._connect = None
        self._entry = None
        self._keep_alive = granted.keep_alive * 1500
        self.receive_maximum = connect.receive_maximum
        # Behind a mount point aliases would have to be told from those of whole names.
        self.alias_maximum = 0 if self.mount_point else granted.alias_maximum
        self.takes_unchanged = self.alias_maximum == 0 and not self.mount_point
        self.accepted()
        block = self._with_limits(granted.answers) if self.is_v5 else b""
        self.send(packets.connack(connect.version, known is not None, 0, block))
        self._hold_connack(session, connect.will is not None)
        if session.outgoing is not None:
            session.outgoing.attach(self, self.is_v5, self.receive_maximum)
        self.replay()

    def _hold_connack(self, session: Session, has_will: bool) -> None:
        """What CONNACK says of the session, that there is one or none, must be so after a crash.
        And the broker must know of the will."""
        storage = self.broker.storage
        has_ended = self.sessions.ended_write_batch > storage.durable
        if storage.is_durable and (session.is_stored or has_will or has_ended):
            self.hold_output()

    def permissions_changed(self) -> None:
        """The session knows already, unless the client has other scopes."""
        session = self.session
        if session is None:
            return
        if not self.identity.has_scopes_of(session.access.identity):
            self.sessions.renewed(session, self.access)
        self.access = session.access
        if not self.access.may_enter:
            self.end(NOT_AUTHORIZED)
        elif self._incoming is not None:
            self._incoming.permissions_changed()

    def _with_limits(self, answers: bytes) -> bytes:
        """The properties of CONNACK: ``answers``, and of the broker's limits what fits.

        Of a limit that it is not told the client may not know, so it is held to the standard's.
        """
        options = self.options
        limits = packets.connack_limits(
            options.receive_maximum, self.maximum_packet, options.topic_alias_maximum
        )
        while packets.connack_size(answers + b"".join(limits)) > self.maximum_output:
            limits.pop()
        if limits:
            self.incoming_maximum = options.receive_maximum
        return answers + b"".join(limits)

    def former_session_ended(self) -> None:
        """What the client's former session left is with others: it may have another."""
        connect = self._connect
        if connect is not None and not self.is_closed:
            self._accept(connect)
            # Another that waited may have had a session meanwhile, whose end it waits for now.
            if self.is_connected:
                self.continue_input(FOR_SESSION)

    def _refuse_connect(self, reason: int, text: str = "") -> None:
        """Answer CONNECT with a refusal, where its version has a code for it, and close.

        ``text`` says why to MQTT 5 clients, where it fits in what they take (MQTT-3.2.2-19).
        """
        connect = self._connect
        if connect is not None and connect.version == packets.V5:
            most = connect.maximum_packet_size
            block = packets.reason_string(text) if text else b""
            if 0 < most < packets.connack_size(block):
                block = b""
            if not 0 < most < packets.connack_size(block):
                self.send(packets.connack(packets.V5, False, reason, block))
        elif connect is not None and connect.version and reason in RETURN_CODES:
            self.send(packets.connack(connect.version, False, RETURN_CODES[reason]))
        self.close()

    # Subscriptions

    def _subscriptions(self) -> Subscribing:
        found = self._subscribing
        if found is None:
            found = Subscribing(self)
            self._subscribing = found
        return found

    def replay(self) -> None:
        session = self.session
        if session is not None and session.replays is not None:
            self._subscriptions().replay()

    def next_turn(self) -> None:
        if not self.is_closed and self._subscribing is not None:
            try:
                self._subscribing.go_on()
            except RemoteError as error:
                self.fail(error)
        super().next_turn()

    # Acknowledgements of what the client got

    def take_acknowledgement(self, first: int, packet_id: int, reason: int) -> None:
        if first == packets.PUBREC:
            self._take_pubrec(packet_id, reason)
        elif first == packets.PUBREL:
            self.publishing().release(packet_id)
        else:
            outgoing = self.attached().outgoing
            if outgoing is not None and first == packets.PUBACK:
                outgoing.acknowledged(packet_id)
            elif outgoing is not None:
                outgoing.completed(packet_id)

    def _take_pubrec(self, packet_id: int, reason: int) -> None:
        outgoing = self.attached().outgoing
        found = NOT_FOUND
        if outgoing is not None:
            found = outgoing.received(packet_id, reason)
        if found == FINISHED or (found == NOT_FOUND and reason >= 0x80):
            return
        told = PACKET_ID_NOT_FOUND if found == NOT_FOUND and self.is_v5 else 0
        answer = packets.acknowledgement(packets.PUBREL, packet_id, told)
        self.answer(
            self.broker.storage.write_batch if found == RELEASE_DURABLY else ACCEPTED, answer, 0
        )

    # The end

    def _take_disconnect(self, packet: Disconnect) -> None:
        if not self.is_connected:
            # It gives up its authentication.
            self.close()
            return
        session = self.attached()
        expiry = session.expiry
        if packet.session_expiry >= 0:
            if expiry == 0 and packet.session_expiry > 0:
                raise ProtocolError("session expiry set at the end only (MQTT-3.1.2-23)")
            expiry = packet.session_expiry
            limit = self.options.maximum_session_expiry
            if limit is not None:
                expiry = min(expiry, limit)
        if packet.reason == 0:
            self.sessions.withdraw_will(session)
        self._leave(expiry)
        self.close()

    def _leave(self, expiry: int) -> None:
        session = self.session
        if session is not None:
            self.session = None
            self.sessions.disconnected(session, expiry)
        self.drop_input()
        if self._subscribing is not None:
            self._subscribing.forget()
            self._subscribing = None
        self._aside = None
        self._incoming = None

    def end(self, reason: int, keeps_session: bool = True) -> None:
        """Tell an MQTT 5 client why, and close; where the session is not kept it ends as well.

        What it has published before is acknowledged first, for which the disk may be waited for.
        """
        is_told = self.is_connected and self.is_v5
        if not keeps_session:
            self._leave(0)
        self._abandon()
        self.close_with(packets.disconnect(reason) if is_told else b"")

    def _abandon(self) -> None:
        session = self.session
        if session is not None:
            self._leave(session.expiry)
        self._entry = None
        self._connect = None
        self.drop_input()

    def fail(self, error: RemoteError) -> None:
        if not isinstance(error, Refused):
            self.metrics.protocol_errors += 1
        logger.info("%s: %s", self.peer.address, error)
        if self.is_connected:
            self.end(error.reason)
        else:
            self._refuse_connect(error.reason)

    def internal_error(self) -> None:
        if self.is_connected:
            self.end(UNSPECIFIED_ERROR)
        else:
            self._refuse_connect(SERVER_UNAVAILABLE)

    def shutdown(self, is_revoked: bool = False, deleted_vhost: str = "") -> None:
        if self._connect is not None:
            # It waits for the answer to CONNECT, which has other codes (3.2.2.2).
            is_refused = is_revoked or deleted_vhost
            self._refuse_connect(NOT_AUTHORIZED if is_refused else SERVER_UNAVAILABLE)
        elif deleted_vhost:
            self.end(ADMINISTRATIVE_ACTION)
        else:
            self.end(NOT_AUTHORIZED if is_revoked else SERVER_SHUTTING_DOWN)

    def managed(self) -> ManagedConnection:
        return MqttManaged(self, self._keep_alive // 1500)

    def lost(self) -> None:
        self.metrics.connections_closed += 1
        self._abandon()
        self._waiting = None
        self.forget_farewell()

    def tick(self, now: float) -> None:
        """Keep alive (MQTT-3.1.2-22) and the time to send CONNECT."""
        elapsed = self.broker.elapsed_ms
        if not self.is_connected:
            limit = self.broker.config.limits.handshake_seconds * 1000
            # While its answer is up to us, it need not hurry.
            if not self.held_for and elapsed - self.came_at > limit:
                # It is told nothing, so there is nothing that it must get.
                self.transport.abort()
        elif self._keep_alive and not self.held_for and elapsed - self.heard_at > self._keep_alive:
            # It may be told, but is not waited for.
            if self.is_v5:
                self.send(packets.disconnect(KEEP_ALIVE_TIMEOUT))
            self._abandon()
            self._waiting = None
            self.close(False)


class _Granted:
    """What a client gets of what its CONNECT asks for, and what it must be told (3.2.2.3)."""

    def __init__(self, connect: Connect, options: MqttOptions, authentication: bytes) -> None:
        assigned = b""
        if not connect.client_id:
            assigned = b"auto-" + secrets.token_hex(12).encode()
        self.client_id = connect.client_id or assigned
        self.session_expiry = connect.session_expiry
        limit = options.maximum_session_expiry
        told_expiry = -1
        if limit is not None and self.session_expiry > limit:
            self.session_expiry = limit
            told_expiry = limit
        #: seconds, 0 for any
        self.keep_alive = connect.keep_alive
        ceiling = options.server_keep_alive
        told_keep_alive = -1
        if connect.version == packets.V5 and ceiling and not 0 < self.keep_alive <= ceiling:
            self.keep_alive = ceiling
            told_keep_alive = ceiling
        self.alias_maximum = min(connect.topic_alias_maximum, options.topic_alias_maximum)
        #: properties of CONNACK
        self.answers = authentication + packets.connack_answers(
            assigned, told_expiry, told_keep_alive
        )
