"""The way into a connection: cutting what was read into packets, and holding input back.

Whole packets are taken where they lie in what was read. PUBLISH goes to ``Incoming``, runs of
PUBACK to ``Outgoing``, everything else to ``take_packet``, which ``MqttConnection`` implements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.runtime.adapter import OUTPUT_HIGH_WATER, Peer, Transport
from trivium.runtime.framed import FOR_PROTOCOL
from trivium_mqtt.codec import packets
from trivium_mqtt.codec.reasons import PACKET_TOO_LARGE, MalformedPacket, ProtocolError, RemoteError
from trivium_mqtt.incoming import MAX_RUN_HEADER, Incoming
from trivium_mqtt.link import Link
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

# Why input is held, beside the reasons of ``trivium.runtime.framed``.
FOR_AUTHENTICATION: Final = FOR_PROTOCOL
FOR_BROKER: Final = FOR_PROTOCOL << 1
FOR_OUTPUT: Final = FOR_PROTOCOL << 2
FOR_SESSION: Final = FOR_PROTOCOL << 3
FOR_FILTERS: Final = FOR_PROTOCOL << 4


class Reader(Link):
    """A connection's way in; ``MqttConnection`` completes it."""

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
        self._is_blocked = False
        # What the client publishes while publishers are paused: whole packets.
        self._aside: bytearray | None = None

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

    def take_frames(self, data: bytes, at: int) -> int:
        try:
            return self._take_packets(data, at)
        except RemoteError as error:
            self.fail(error)
            return len(data)

    def frames_taken(self) -> None:
        session = self.session
        if session is not None:
            outgoing = session.outgoing
            if outgoing is not None:
                outgoing.pump()
            self.replay()
        if self.output_size >= OUTPUT_HIGH_WATER and (not self.is_writable or self._output_after):
            # It sends and does not read what it is answered, or cannot yet.
            self.hold_input(FOR_OUTPUT)

    def _take_packets(self, data: bytes, at: int) -> int:
        """Take the whole packets in ``data`` from ``at`` on; return where what is left begins."""
        end = len(data)
        while at < end and not self.stops_input():
            first = data[at]
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
                        self.needed = incoming.size
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
                self.needed = body - at + 1
                break
            after = body + remaining
            if after - at > self.maximum_packet:
                raise RemoteError(PACKET_TOO_LARGE, "packet exceeds the maximum (MQTT-3.2.2-15)")
            waits = self._is_blocked and self._must_wait(first)
            if waits and (first == packets.DISCONNECT or not self._has_room_aside(after - at)):
                self.hold_input(FOR_BROKER)
                break
            if after > end:
                self.needed = after - at
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
        return at

    def _take_pubacks(self, data: bytes, at: int, end: int) -> int:
        """Take successful PUBACK packets that follow one another; the offset behind them."""
        session = self.session
        outgoing = None if session is None else session.outgoing
        if outgoing is None:
            return at
        return outgoing.acknowledged_run(data, at, end)

    def blocked(self, reason: str) -> None:
        """MQTT has no word for it, so publishes are set aside, unanswered.

        Pings and acknowledgements of what the client receives go on, until too many wait.
        """
        self._is_blocked = True

    def unblocked(self) -> None:
        self._is_blocked = False
        aside = self._aside
        if aside is not None:
            self._aside = None
            self.put_back(bytes(aside))
        if self.held_for:
            self.continue_input(FOR_BROKER)
        else:
            self.broker.driver.go_on(self)

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
        self.continue_input(FOR_OUTPUT)
        session = self.session
        if session is not None:
            if session.outgoing is not None:
                session.outgoing.pump()
            self.replay()
