"""The way into a connection: cutting what was read into packets, and holding input back.

Whole packets are taken where they lie in what was read. PUBLISH goes to ``Incoming``, runs of
PUBACK to ``Outgoing``, everything else to ``take_packet``, which ``MqttConnection`` implements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.adapter import OUTPUT_HIGH_WATER, Peer, Transport
from trivium_mqtt import packets
from trivium_mqtt.incoming import MAX_RUN_HEADER, Incoming
from trivium_mqtt.link import Link
from trivium_mqtt.reasons import PACKET_TOO_LARGE, MalformedPacket, ProtocolError, RemoteError
from trivium_mqtt.session import Session

if TYPE_CHECKING:
    from trivium_mqtt.sessions import Sessions

#: What a client may send before it is known: any sensible CONNECT, no more.
MAX_CONNECT_SIZE: Final = 1 << 18

#: Bytes of packets that are set aside while publishers are paused; then the client is not read.
#: A client with a window of messages to be acknowledged stops earlier, and goes on with the rest.
MAX_ASIDE: Final = 1 << 16

AWAITS_CONNECT: Final = 0
AUTHENTICATES: Final = 1
IS_CONNECTED: Final = 2

# Why input is held; a set of bits.
FOR_AUTHENTICATION: Final = 1
FOR_BROKER: Final = 2
FOR_OUTPUT: Final = 4
FOR_SESSION: Final = 8
FOR_SUBSCRIBERS: Final = 16


class Reader(Link):
    """See the module."""

    def __init__(self, sessions: Sessions, transport: Transport, peer: Peer) -> None:
        super().__init__(sessions, transport, peer)
        self.client_id = b""
        #: MQTT 3.1: flags of packets other than PUBLISH are DUP in repetitions, or not used
        self.ignores_flags = False
        #: size of the largest packet that may come in
        self.maximum_packet = MAX_CONNECT_SIZE
        #: QoS 1 and 2 messages that the client may send before it is answered, as it was told
        self.incoming_maximum = 65_535
        self._state = AWAITS_CONNECT
        self._incoming: Incoming | None = None
        # An incomplete packet, or what came while input is held; and the size that completes it.
        self._partial: bytearray | None = None
        self._wanted = 0
        self._held_for = 0
        self._is_blocked = False
        # What the client publishes while publishers are paused: whole packets.
        self._aside: bytearray | None = None
        #: when input came last, in ``Broker.elapsed_ms``
        self._fed_at = sessions.broker.elapsed_ms

    # What the connection does with packets

    def take_packet(self, first: int, data: bytes, at: int, end: int) -> None:
        """Handle one packet that is not PUBLISH: its body is ``data[at:end]``."""
        raise NotImplementedError

    def fail(self, error: RemoteError) -> None:
        """The client broke a rule: answer and close."""
        raise NotImplementedError

    def replay(self) -> None:
        """Send waiting retained messages as far as the output takes them."""
        raise NotImplementedError

    def attached(self) -> Session:
        """The session; only while the client is connected."""
        session = self.session
        assert session is not None
        return session

    def publishing(self) -> Incoming:
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
        return self.incoming_maximum - under_way

    # Input

    def feed(self, data: bytes) -> None:
        """See ``Connection``."""
        self._fed_at = self.broker.elapsed_ms
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
            self.fail(error)
            return
        if self.broker.pacing.reached:
            self.broker.pacing.fed(self)
        session = self.session
        if session is not None:
            outgoing = session.outgoing
            if outgoing is not None:
                outgoing.pump()
            self.replay()
        if self.output_size >= OUTPUT_HIGH_WATER and (not self.is_writable or self._output_after):
            # It sends and does not read what it is answered, or cannot yet.
            self.hold(FOR_OUTPUT)

    def _read(self, data: bytes) -> None:
        """Take all whole packets in ``data``, keep the rest."""
        at = 0
        end = len(data)
        while at < end:
            first = data[at]
            if self._held_for or self.is_closed:
                break
            if first & 0xF0 == packets.PUBLISH and self._state == IS_CONNECTED:
                incoming = self._incoming
                prefix = None if incoming is None else incoming.prefix
                if (
                    incoming is not None
                    and prefix is not None
                    and not self._is_blocked
                    and data.startswith(prefix, at)
                ):
                    after = incoming.repeat(data, at, end)
                    if after == at:
                        self._wanted = incoming.size
                        break
                    at = after
                    continue
            elif first == packets.PUBACK and self._state == IS_CONNECTED:
                after = self._take_pubacks(data, at, end)
                if after > at:
                    at = after
                    continue
            elif self._state == AWAITS_CONNECT and first & 0xF0 != packets.CONNECT:
                raise ProtocolError("the first packet is not CONNECT (MQTT-3.1.0-1)")
            if self.ignores_flags and first & 0xF0 != packets.PUBLISH:
                first = packets.without_flags(first)
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
            waits = self._is_blocked and self._must_wait(first)
            if waits and (first == packets.DISCONNECT or not self._has_room_aside(after - at)):
                self.hold(FOR_BROKER)
                break
            if after > end:
                self._wanted = after - at
                break
            if waits:
                if self._aside is None:
                    self._aside = bytearray()
                self._aside += data[at:after]
                at = after
            elif first & 0xF0 == packets.PUBLISH and self._state == IS_CONNECTED:
                incoming = self._incoming
                if incoming is None:
                    incoming = self.publishing()
                live_part = incoming.live_part
                if (
                    live_part is not None
                    and first == packets.PUBLISH
                    and body - at <= MAX_RUN_HEADER
                    and data.startswith(live_part, body, after)
                ):
                    at = incoming.repeat_live(data, at, end)
                else:
                    at = incoming.take(data, at, body, after)
            else:
                self.take_packet(first, data, body, after)
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

    def hold(self, reason: int) -> None:
        """Take no more input for ``reason``, one of the FOR_ constants; it stays in the socket."""
        if not self._held_for:
            self.transport.pause_reading()
        self._held_for |= reason

    def release(self, reason: int) -> None:
        """Go on, unless there is another reason to hold input."""
        if not self._held_for & reason:
            return
        self._held_for &= ~reason
        if self._held_for or self.is_closed:
            return
        # Nothing could be heard of it.
        self._fed_at = self.broker.elapsed_ms
        self.transport.resume_reading()
        partial = self._partial
        if partial is not None:
            self._partial = None
            self._consume(bytes(partial))

    def wait_for_subscribers(self) -> None:
        """See ``Connection``."""
        self.hold(FOR_SUBSCRIBERS)

    def subscribers_ready(self) -> None:
        """See ``Connection``."""
        self.release(FOR_SUBSCRIBERS)

    def blocked(self, reason: str) -> None:
        """See ``Connection``.

        MQTT has no word for it, so publishes are left unanswered: they are set aside, while pings
        and acknowledgements of what the client receives go on, until there are too many.
        """
        self._is_blocked = True

    def unblocked(self) -> None:
        """See ``Connection``."""
        self._is_blocked = False
        aside = self._aside
        if aside is not None:
            self._aside = None
            if self._partial is not None:
                aside += self._partial
            self._partial = aside
            self._wanted = 0
        if self._held_for:
            self.release(FOR_BROKER)
        elif aside is not None:
            self._partial = None
            self._consume(bytes(aside))

    def _must_wait(self, first: int) -> bool:
        """Whether a packet is for later when publishers are paused.

        PUBLISH is. Behind one so are PUBREL, which would free an identifier that waits, and
        DISCONNECT, which would drop what waits.
        """
        if first & 0xF0 == packets.PUBLISH:
            return self._state == IS_CONNECTED
        return self._aside is not None and first in (packets.PUBREL, packets.DISCONNECT)

    def _has_room_aside(self, size: int) -> bool:
        return (0 if self._aside is None else len(self._aside)) + size <= MAX_ASIDE

    def flushed(self) -> None:
        """See ``Connection``."""
        if self._held_for & FOR_OUTPUT:
            self.release(FOR_OUTPUT)
        session = self.session
        if session is not None:
            if session.outgoing is not None:
                session.outgoing.pump()
            self.replay()
