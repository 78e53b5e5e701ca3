"""One MQTT client's connection: frames, CONNECT and all packets except PUBLISH.

``feed`` decodes whole packets where they lie in what was read. PUBLISH goes to ``Incoming``;
answers that must wait for the disk wait here, in order, since MQTT wants acknowledgements in the
order of what they acknowledge (MQTT-4.6.0-2 to -4).
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Final

from trivium.adapter import OUTPUT_HIGH_WATER, Connection, Peer, Transport
from trivium.exchanges import ACCEPTED
from trivium.message import Message
from trivium_mqtt import packets
from trivium_mqtt.encoder import RETAIN
from trivium_mqtt.incoming import MAX_RUN_HEADER, Incoming
from trivium_mqtt.outgoing import FINISHED, NOT_FOUND, RELEASE_DURABLY
from trivium_mqtt.packets import Connect, Disconnect, Subscribe, Unsubscribe
from trivium_mqtt.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_CREDENTIALS,
    CLIENT_ID_NOT_VALID,
    DISCONNECT_WITH_WILL,
    FAILURE,
    KEEP_ALIVE_TIMEOUT,
    NO_SUBSCRIPTION_EXISTED,
    NOT_AUTHORIZED,
    PACKET_ID_NOT_FOUND,
    PACKET_TOO_LARGE,
    QUOTA_EXCEEDED,
    RETURN_CODES,
    SERVER_SHUTTING_DOWN,
    SESSION_TAKEN_OVER,
    MalformedPacket,
    ProtocolError,
    RemoteError,
)
from trivium_mqtt.replay import Replay
from trivium_mqtt.session import NO_LOCAL, Session, Subscription
from trivium_mqtt.sessions import Sessions
from trivium_mqtt.shares import split_shared
from trivium_mqtt.wire import VARINT_MAX, check_topic_filter

if TYPE_CHECKING:
    from trivium_mqtt.mqtt_adapter import MqttAdapter

logger = logging.getLogger(__name__)

#: What a client may send before it is known: any sensible CONNECT, no more.
MAX_CONNECT_SIZE: Final = 1 << 18

#: Output of one turn beyond which QoS 0 messages are dropped although the socket takes data: what
#: many publishers can pour into one subscriber within a turn.
BURST: Final = 16 << 20

#: Retained messages that wait to be sent to one connection; further subscriptions are refused.
MAX_REPLAYS: Final = 16

_AWAITS_CONNECT: Final = 0
_AUTHENTICATES: Final = 1
_IS_CONNECTED: Final = 2

# Why input is held; a set of bits.
_FOR_AUTHENTICATION: Final = 1
_FOR_BROKER: Final = 2
_FOR_OUTPUT: Final = 4


class _Waiting:
    """Answers that may leave when a batch is durable."""

    __slots__ = ("answers", "batch", "publishes")

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.answers: list[bytes] = []
        self.publishes = 0


class MqttConnection(Connection):
    """See the module."""

    def __init__(
        self, adapter: MqttAdapter, sessions: Sessions, transport: Transport, peer: Peer
    ) -> None:
        super().__init__(sessions.broker, transport, peer)
        self.adapter = adapter
        self.sessions = sessions
        self.metrics = sessions.metrics
        self.client_id = b""
        self.session: Session | None = None
        self.is_v5 = False
        #: messages at QoS 1 and 2 that the client takes at a time
        self.receive_maximum = 65_535
        #: aliases that the client lets the broker set
        self.alias_maximum = 0
        #: size of the largest packet that may come in
        self.maximum_packet = MAX_CONNECT_SIZE
        # Size of the largest packet that the client takes.
        self._maximum_output = VARINT_MAX
        self._state = _AWAITS_CONNECT
        self._connect: Connect | None = None
        self._incoming: Incoming | None = None
        self._aliases: dict[bytes, int] | None = None
        # An incomplete packet, or what came while input is held.
        self._partial: bytearray | None = None
        self._wanted = 0
        self._held_for = 0
        self._is_blocked = False
        self._waiting: list[_Waiting] | None = None
        self._unanswered = 0
        self._replays: list[Replay] | None = None
        self._keep_alive = 0.0
        self._was_fed = True
        self._last_fed = 0.0

    # Input

    def feed(self, data: bytes) -> None:
        """See ``Connection``."""
        self._was_fed = True
        self.metrics.bytes_received += len(data)
        partial = self._partial
        if partial is not None:
            partial += data
            if self._held_for or len(partial) < self._wanted:
                return
            data = bytes(partial)
            self._partial = None
        elif self._held_for:
            self._partial = bytearray(data)
            return
        self._consume(data)

    def _consume(self, data: bytes) -> None:
        try:
            self._read(data)
        except RemoteError as error:
            self._fail(error)
            return
        session = self.session
        if session is not None:
            outgoing = session.outgoing
            if outgoing is not None:
                outgoing.pump()
            if self._replays is not None:
                self._replay()
        if not self.is_writable and self.output_size >= OUTPUT_HIGH_WATER:
            # It sends and does not read what it is answered.
            self._hold(_FOR_OUTPUT)

    def _read(self, data: bytes) -> None:
        """Take all whole packets in ``data``, keep the rest."""
        at = 0
        end = len(data)
        while at < end:
            first = data[at]
            if self._held_for or self.is_closed:
                break
            if first & 0xF0 == packets.PUBLISH and self._state == _IS_CONNECTED:
                if self._is_blocked:
                    self._hold(_FOR_BROKER)
                    break
                incoming = self._incoming
                if incoming is not None and data.startswith(incoming.prefix, at):
                    after = incoming.repeat(data, at, end)
                    if after == at:
                        break
                    at = after
                    continue
            elif first == packets.PUBACK and self._state == _IS_CONNECTED:
                after = self._take_pubacks(data, at, end)
                if after > at:
                    at = after
                    continue
            elif self._state == _AWAITS_CONNECT and first != packets.CONNECT:
                raise ProtocolError("the first packet is not CONNECT (MQTT-3.1.0-1)")
            # The fixed header (2.1): remaining length in up to four bytes.
            body = at + 1
            remaining = 0
            shift = 0
            while body < end:
                byte = data[body]
                body += 1
                remaining |= (byte & 0x7F) << shift
                if byte < 0x80:
                    if byte == 0 and shift > 0:
                        raise MalformedPacket("remaining length is longer than needed")
                    shift = -1
                    break
                shift += 7
                if shift > 21:
                    raise MalformedPacket("remaining length of more than four bytes")
            if shift >= 0:
                self._wanted = 0
                break
            after = body + remaining
            if after - at > self.maximum_packet:
                raise RemoteError(PACKET_TOO_LARGE, "packet exceeds the maximum (MQTT-3.2.2-15)")
            if after > end:
                self._wanted = after - at
                break
            if first & 0xF0 == packets.PUBLISH and self._state == _IS_CONNECTED:
                incoming = self._incoming
                if incoming is None:
                    incoming = self._publishing()
                if (
                    first == packets.PUBLISH
                    and body - at <= MAX_RUN_HEADER
                    and data.startswith(incoming.live_part, body, after)
                ):
                    at = incoming.repeat_live(data, at, end)
                else:
                    at = incoming.take(data, at, body, after)
            else:
                self._dispatch(first, data, body, after)
                at = after
        if at < end and not self.is_closed:
            self._partial = bytearray(data[at:])
            if self._held_for:
                self._wanted = 0

    def _take_pubacks(self, data: bytes, at: int, end: int) -> int:
        """Take successful PUBACK packets that follow one another; the offset behind them."""
        session = self.session
        outgoing = None if session is None else session.outgoing
        if outgoing is None:
            return at
        return outgoing.acknowledged_run(data, at, end)

    def _dispatch(self, first: int, data: bytes, at: int, end: int) -> None:
        """Handle one packet that is not PUBLISH: its body is ``data[at:end]``."""
        if self._state != _IS_CONNECTED:
            self._take_connect(first, data, at, end)
            return
        kind = first & 0xF0
        if first == packets.PUBACK:
            packet = packets.Acknowledgement(data, at, end, self._version)
            outgoing = self.attached().outgoing
            if outgoing is not None:
                outgoing.acknowledged(packet.packet_id)
        elif first == packets.PUBREC:
            self._take_pubrec(packets.Acknowledgement(data, at, end, self._version))
        elif first == packets.PUBREL:
            packet = packets.Acknowledgement(data, at, end, self._version)
            self._publishing().release(packet.packet_id)
        elif first == packets.PUBCOMP:
            packet = packets.Acknowledgement(data, at, end, self._version)
            outgoing = self.attached().outgoing
            if outgoing is not None:
                outgoing.completed(packet.packet_id)
        elif first == packets.SUBSCRIBE:
            self._take_subscribe(Subscribe(data, at, end, self._version))
        elif first == packets.UNSUBSCRIBE:
            self._take_unsubscribe(Unsubscribe(data, at, end, self._version))
        elif first == packets.PINGREQ:
            if at != end:
                raise MalformedPacket("PINGREQ with a body (3.12.1)")
            self.send(packets.PINGRESP)
        elif first == packets.DISCONNECT:
            self._take_disconnect(Disconnect(data, at, end, self._version))
        elif first == packets.CONNECT:
            raise ProtocolError("second CONNECT (MQTT-3.1.0-2)")
        elif first == packets.AUTH and self.is_v5:
            raise ProtocolError("AUTH without an authentication method (4.12.0-1)")
        elif kind == packets.CONNACK or kind in (packets.SUBACK, packets.UNSUBACK, 0xD0):
            raise ProtocolError("a packet that only a server sends")
        else:
            raise MalformedPacket(f"packet type and flags 0x{first:02x} (MQTT-2.1.3-1)")

    @property
    def _version(self) -> int:
        return packets.V5 if self.is_v5 else packets.V311

    def attached(self) -> Session:
        """The session; only while the client is connected."""
        session = self.session
        assert session is not None
        return session

    def _publishing(self) -> Incoming:
        incoming = self._incoming
        if incoming is None:
            incoming = Incoming(self)
            self._incoming = incoming
        return incoming

    def room(self) -> int:
        """QoS 1 and 2 messages that the client may yet send before it is answered (4.9)."""
        incoming = self.attached().incoming
        under_way = self._unanswered
        if incoming is not None:
            under_way += len(incoming)
        return self.sessions.options.receive_maximum - under_way

    # CONNECT

    def _take_connect(self, first: int, data: bytes, at: int, end: int) -> None:
        if first != packets.CONNECT:
            raise ProtocolError("the first packet is not CONNECT (MQTT-3.1.0-1)")
        connect = Connect()
        self._connect = connect
        connect.decode(data, at, end)
        self.is_v5 = connect.version == packets.V5
        if not connect.client_id and (
            connect.version == packets.V31
            or (connect.version == packets.V311 and not connect.clean_start)
        ):
            raise RemoteError(CLIENT_ID_NOT_VALID, "empty client identifier (MQTT-3.1.3-8)")
        if connect.authentication_method is not None:
            raise RemoteError(BAD_AUTHENTICATION_METHOD, "no authentication method is supported")
        self._state = _AUTHENTICATES
        authenticator = self.broker.authenticator
        if connect.username is not None:
            password = b"" if connect.password is None else connect.password
            authenticator.authenticate(
                connect.username, password, self.peer.is_loopback, self._authenticated
            )
            if self._state == _AUTHENTICATES and not self.is_closed:
                self._hold(_FOR_AUTHENTICATION)
        elif connect.password is None and authenticator.admits_anonymous(self.adapter.name):
            self._accept(connect)
        else:
            self.metrics.authentication_failures += 1
            raise RemoteError(NOT_AUTHORIZED, "anonymous access is not allowed here")

    def _authenticated(self, may_connect: bool) -> None:
        connect = self._connect
        if self.is_closed or connect is None:
            return
        if not may_connect:
            self.metrics.authentication_failures += 1
            self._refuse_connect(BAD_CREDENTIALS)
            return
        self._accept(connect)
        self._release(_FOR_AUTHENTICATION)

    def _accept(self, connect: Connect) -> None:
        """The client may connect: find or make its session, answer, go on where it was."""
        sessions = self.sessions
        options = sessions.options
        client_id = connect.client_id
        assigned = b""
        if not client_id:
            assigned = b"auto-" + secrets.token_hex(12).encode()
            client_id = assigned
        known = sessions.by_client.get(client_id)
        if known is not None and known.connection is not None:
            known.connection.taken_over()
            known = sessions.by_client.get(client_id)
        if known is not None and connect.clean_start:
            sessions.end(known)
            known = None
        expiry = connect.session_expiry
        limit = options.maximum_session_expiry
        told_expiry = -1
        if limit is not None and expiry > limit:
            expiry = limit
            told_expiry = limit
        if known is None:
            session = sessions.create(client_id, expiry)
        else:
            session = known
            sessions.connected(session, expiry)
        keep_alive = connect.keep_alive
        told_keep_alive = -1
        ceiling = options.server_keep_alive
        if self.is_v5 and ceiling and (keep_alive == 0 or keep_alive > ceiling):
            keep_alive = ceiling
            told_keep_alive = ceiling
        self.client_id = session.client_id
        self.session = session
        session.connection = self
        if connect.will is not None:
            sessions.set_will(session, connect.will)
        self._keep_alive = keep_alive * 1.5
        self.receive_maximum = connect.receive_maximum
        self.alias_maximum = min(connect.topic_alias_maximum, options.topic_alias_maximum)
        if connect.maximum_packet_size:
            self._maximum_output = connect.maximum_packet_size
        self.maximum_packet = self.adapter.maximum_packet
        self._connect = None
        self._state = _IS_CONNECTED
        block = b""
        if self.is_v5:
            block = packets.connack_properties(
                assigned,
                options.receive_maximum,
                self.maximum_packet,
                options.topic_alias_maximum,
                told_expiry,
                told_keep_alive,
            )
        self.send(packets.connack(connect.version, known is not None, 0, block))
        if session.outgoing is not None:
            session.outgoing.attach(self, self.is_v5, self.receive_maximum)

    def _refuse_connect(self, reason: int) -> None:
        """Answer CONNECT with a refusal, where its version has a code for it, and close."""
        connect = self._connect
        if connect is not None and connect.version == packets.V5:
            self.send(packets.connack(packets.V5, False, reason))
        elif connect is not None and connect.version and reason in RETURN_CODES:
            self.send(packets.connack(connect.version, False, RETURN_CODES[reason]))
        self.close()

    # Subscriptions

    def _take_subscribe(self, packet: Subscribe) -> None:
        session = self.attached()
        codes = bytearray()
        for topic_filter, options in packet.filters:
            codes.append(self._subscribe(session, topic_filter, options, packet.identifier))
        self._answer_change(
            session,
            packets.suback(packets.SUBACK, self._version, packet.packet_id, bytes(codes)),
            min(codes) < 0x80,
        )
        if self._replays is not None:
            self._replay()

    def _subscribe(
        self, session: Session, topic_filter: bytes, options: int, identifier: int
    ) -> int:
        """Subscribe to one filter; its code in SUBACK."""
        try:
            shared = split_shared(topic_filter)
            check_topic_filter(topic_filter if shared is None else shared[1])
        except RemoteError as error:
            if not self.is_v5:
                raise
            return error.reason
        if shared is not None and options & NO_LOCAL:
            raise ProtocolError("no local on a shared subscription (MQTT-3.8.3-4)")
        known = session.subscriptions
        if (
            known is not None
            and len(known) >= self.sessions.options.maximum_subscriptions
            and topic_filter not in known
        ) or (self._replays is not None and len(self._replays) >= MAX_REPLAYS):
            return QUOTA_EXCEEDED if self.is_v5 else FAILURE
        subscription = Subscription(session, topic_filter, options, identifier)
        is_new = self.sessions.subscribe(session, subscription)
        handling = subscription.retain_handling
        if subscription.binding is None:
            # A shared subscription gets no retained messages (MQTT5 4.8.2).
            return subscription.qos
        if handling == 0 or (handling == 1 and is_new):
            retained = self.sessions.vhost.retained
            messages = retained.match(subscription.binding.levels, self.broker.now_ms)
            if messages:
                replay = Replay(session, subscription, retained, messages)
                if self._replays is None:
                    self._replays = [replay]
                else:
                    self._replays.append(replay)
        return subscription.qos

    def _replay(self) -> None:
        """Send retained messages as far as the output takes them."""
        replays = self._replays
        while replays:
            if not replays[0].pump(self):
                return
            replays.pop(0)
        self._replays = None

    def _take_unsubscribe(self, packet: Unsubscribe) -> None:
        session = self.attached()
        codes = bytearray()
        for topic_filter in packet.filters:
            existed = self.sessions.unsubscribe(session, topic_filter)
            codes.append(0 if existed else NO_SUBSCRIPTION_EXISTED)
        self._answer_change(
            session,
            packets.suback(packets.UNSUBACK, self._version, packet.packet_id, bytes(codes)),
            0 in codes,
        )

    def _answer_change(self, session: Session, data: bytes, has_changed: bool) -> None:
        storage = self.broker.storage
        waits = has_changed and session.is_kept and storage.is_durable
        self.answer(storage.batch if waits else ACCEPTED, data, 0)

    # Acknowledgements of what the client got

    def _take_pubrec(self, packet: packets.Acknowledgement) -> None:
        outgoing = self.attached().outgoing
        found = NOT_FOUND
        if outgoing is not None:
            found = outgoing.received(packet.packet_id, packet.reason)
        if found == FINISHED or (found == NOT_FOUND and packet.reason >= 0x80):
            return
        reason = PACKET_ID_NOT_FOUND if found == NOT_FOUND and self.is_v5 else 0
        answer = packets.acknowledgement(packets.PUBREL, packet.packet_id, reason)
        self.answer(self.broker.storage.batch if found == RELEASE_DURABLY else ACCEPTED, answer, 0)

    # Output

    def answer(self, batch: int, data: bytes, publishes: int) -> None:
        """Send ``data`` when ``batch`` is durable and everything answered before has left.

        ``publishes`` is the number of QoS 1 messages that it acknowledges.
        """
        waiting = self._waiting
        storage = self.broker.storage
        if waiting is None:
            if batch <= storage.durable:
                self.send(data)
                return
            waiting = []
            self._waiting = waiting
        if not waiting or waiting[-1].batch < batch:
            waiting.append(_Waiting(batch))
            storage.wait(self)
        last = waiting[-1]
        last.answers.append(data)
        last.publishes += publishes
        self._unanswered += publishes

    def send_packet(self, packet: bytes) -> None:
        """``send`` without a call where there is output already: for the hot path."""
        self.output.append(packet)
        self.output_size += len(packet)
        if not self._is_dirty:
            self.mark_dirty()

    def send_durable(self, data: bytes) -> None:
        """Send ``data`` when what was written in this turn is durable."""
        self.answer(self.broker.storage.batch, data, 0)

    def batch_durable(self, batch: int) -> None:
        """See ``DurabilityWaiter``."""
        waiting = self._waiting
        if waiting is None or self.is_closed:
            return
        while waiting and waiting[0].batch <= batch:
            ready = waiting.pop(0)
            self._unanswered -= ready.publishes
            answers = ready.answers
            self.send(answers[0] if len(answers) == 1 else b"".join(answers))
        if not waiting:
            self._waiting = None

    def fits(self, size: int) -> bool:
        """Whether the client takes a packet of ``size`` bytes (MQTT-3.1.2-24)."""
        return size <= self._maximum_output

    def takes_runs(self, size: int) -> bool:
        """Whether packets of another client, ``size`` bytes in all, may be forwarded unchanged."""
        return self.alias_maximum == 0 and size <= self._maximum_output

    def forward(self, run: bytes, count: int) -> None:
        """Send ``count`` whole QoS 0 packets, or drop them if the client reads too slowly."""
        if self.output_size >= (BURST if self.is_writable else OUTPUT_HIGH_WATER):
            self.metrics.messages_dropped += count
            return
        self.metrics.messages_sent += count
        self.send(run)

    def deliver_live(self, message: Message, retain: bool, identifiers: bytes) -> None:
        """Send a message at QoS 0, or drop it if the client reads too slowly."""
        if self.output_size >= (BURST if self.is_writable else OUTPUT_HIGH_WATER):
            self.metrics.messages_dropped += 1
            return
        first = packets.PUBLISH | RETAIN if retain else packets.PUBLISH
        if self.alias_maximum:
            packet = self.aliased(message, first, b"", identifiers)
        elif retain or (self.is_v5 and identifiers):
            packet = self.sessions.encoder.packet(message, first, b"", self.is_v5, identifiers)
        else:
            packet = self.sessions.encoder.live(message, self.is_v5)
        if not packet or len(packet) > self._maximum_output:
            self.metrics.messages_dropped += 1
            return
        self.metrics.messages_sent += 1
        self.send(packet)

    def aliased(self, message: Message, first: int, packet_id: bytes, identifiers: bytes) -> bytes:
        """A PUBLISH to this client with a topic alias while there are any (3.3.2.3.4).

        The caller sends it in this order, or not at all if it is empty or does not fit.
        """
        encoder = self.sessions.encoder
        topic = message.address.topic
        if topic is None:
            return b""
        aliases = self._aliases
        if aliases is None:
            aliases = {}
            self._aliases = aliases
        alias = aliases.get(topic, 0)
        if alias:
            return encoder.aliased_packet(message, first, packet_id, identifiers, alias, True)
        if len(aliases) >= self.alias_maximum:
            return encoder.packet(message, first, packet_id, True, identifiers)
        alias = len(aliases) + 1
        packet = encoder.aliased_packet(message, first, packet_id, identifiers, alias, False)
        if packet and len(packet) <= self._maximum_output:
            aliases[topic] = alias
        return packet

    def take_output(self) -> list[bytes]:
        """See ``Connection``. While the socket is full, output stays here, where it is bounded."""
        if not self.is_writable and not self.is_closed:
            self._is_dirty = False
            return []
        self.metrics.bytes_sent += self.output_size
        return super().take_output()

    def flushed(self) -> None:
        """See ``Connection``."""
        if self.output:
            self.mark_dirty()
        if self._held_for & _FOR_OUTPUT:
            self._release(_FOR_OUTPUT)
        session = self.session
        if session is not None:
            if session.outgoing is not None:
                session.outgoing.pump()
            if self._replays is not None:
                self._replay()

    # Flow of input

    def _hold(self, reason: int) -> None:
        if not self._held_for:
            self.transport.pause_reading()
        self._held_for |= reason

    def _release(self, reason: int) -> None:
        if not self._held_for & reason:
            return
        self._held_for &= ~reason
        if self._held_for or self.is_closed:
            return
        self.transport.resume_reading()
        partial = self._partial
        if partial is not None:
            self._partial = None
            self._consume(bytes(partial))

    def blocked(self, reason: str) -> None:
        """See ``Connection``: reading stops when the client publishes."""
        self._is_blocked = True

    def unblocked(self) -> None:
        """See ``Connection``."""
        self._is_blocked = False
        self._release(_FOR_BROKER)

    # The end

    def _take_disconnect(self, packet: Disconnect) -> None:
        session = self.attached()
        expiry = session.expiry
        if packet.session_expiry >= 0:
            if expiry == 0 and packet.session_expiry > 0:
                raise ProtocolError("session expiry set at the end only (MQTT-3.1.2-23)")
            expiry = packet.session_expiry
            limit = self.sessions.options.maximum_session_expiry
            if limit is not None:
                expiry = min(expiry, limit)
        if packet.reason == 0:
            self.sessions.withdraw_will(session)
        elif packet.reason != DISCONNECT_WITH_WILL and packet.reason < 0x80:
            raise ProtocolError(f"DISCONNECT with reason code 0x{packet.reason:02x}")
        self._leave(expiry)
        self.close()

    def _leave(self, expiry: int) -> None:
        session = self.session
        if session is not None:
            self.session = None
            self.sessions.disconnected(session, expiry)
        self._partial = None
        self._incoming = None
        self._waiting = None
        self._replays = None

    def _end(self, reason: int) -> None:
        """Tell an MQTT 5 client why, and close."""
        if self._state == _IS_CONNECTED and self.is_v5 and not self.is_closed:
            self.send(packets.disconnect(reason))
        self._abandon()

    def _abandon(self) -> None:
        session = self.session
        if session is not None:
            self._leave(session.expiry)
        self.close()

    def _fail(self, error: RemoteError) -> None:
        self.metrics.protocol_errors += 1
        logger.info("%s: %s", self.peer.address, error)
        if self._state == _IS_CONNECTED:
            self._end(error.reason)
        else:
            self._refuse_connect(error.reason)

    def taken_over(self) -> None:
        """Another connection has this client identifier (MQTT-3.1.4-3)."""
        self._end(SESSION_TAKEN_OVER)

    def shutdown(self) -> None:
        """See ``Connection``."""
        self._end(SERVER_SHUTTING_DOWN)

    def lost(self) -> None:
        """See ``Connection``."""
        self.metrics.connections_closed += 1
        self._abandon()

    def tick(self, now: float) -> None:
        """See ``Connection``: keep alive (MQTT-3.1.2-22) and the time to send CONNECT."""
        if self._was_fed:
            self._was_fed = False
            if self._state == _IS_CONNECTED or self._last_fed == 0.0:
                self._last_fed = now
        if self._state != _IS_CONNECTED:
            if now - self._last_fed > self.broker.config.limits.handshake_seconds:
                self.close()
        elif self._keep_alive and not self._held_for and now - self._last_fed > self._keep_alive:
            self._end(KEEP_ALIVE_TIMEOUT)
