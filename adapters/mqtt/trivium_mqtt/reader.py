"""The way into a connection: cutting what was read into packets, and holding input back.

Whole packets are taken where they lie in what was read. PUBLISH goes to ``Incoming``, runs of
PUBACK to ``Outgoing``, everything else to ``take_packet``, which ``MqttConnection`` implements.
``trivium_mqtt.states`` says which packets may come when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.pieces import Pieces
from trivium.runtime.adapter import OUTPUT_HIGH_WATER, Peer, Transport
from trivium.runtime.framed import FOR_PROTOCOL
from trivium_mqtt.codec import packets
from trivium_mqtt.codec.publish import QOS_0, QOS_1, QOS_2
from trivium_mqtt.codec.reasons import PACKET_TOO_LARGE, RemoteError
from trivium_mqtt.codec.wire import read_fixed_header
from trivium_mqtt.incoming import Incoming, MountedIncoming
from trivium_mqtt.options import MqttOptions
from trivium_mqtt.session import Session
from trivium_mqtt.states import (
    ACTIONS,
    AWAITS_CONNECT,
    CONNECTED,
    FOLLOW,
    PAUSED,
    SET_ASIDE,
    error_of,
)
from trivium_mqtt.writer import Writer

if TYPE_CHECKING:
    from trivium_mqtt.sessions import Sessions

#: What a client may send before it is known: any sensible CONNECT, no more.
MAX_CONNECT_SIZE: Final = 1 << 18

#: Bytes of packets that are set aside while publishers are paused; then the client is not read.
#: A client with a window of messages to be acknowledged stops earlier, and goes on with the rest.
MAX_ASIDE: Final = 1 << 16

#: PUBACK packets of one run: settling one takes some 10 µs, interpreted, and a turn is short.
LONGEST_PUBACK_RUN: Final = 256

# Why input is held, beside the reasons of ``trivium.runtime.framed``.
FOR_AUTHENTICATION: Final = FOR_PROTOCOL
FOR_BROKER: Final = FOR_PROTOCOL << 1
FOR_OUTPUT: Final = FOR_PROTOCOL << 2
FOR_SESSION: Final = FOR_PROTOCOL << 3
FOR_FILTERS: Final = FOR_PROTOCOL << 4


class Reader(Writer):
    """A connection's way in; ``MqttConnection`` completes it."""

    def __init__(
        self, options: MqttOptions, sessions: Sessions, transport: Transport, peer: Peer
    ) -> None:
        super().__init__(sessions, transport, peer)
        #: of the listener that it came by
        self.options = options
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

    @property
    def is_connected(self) -> bool:
        """Whether CONNECT was accepted."""
        return self._state >= CONNECTED

    # What the connection does with packets

    def take_packet(self, first: int, data: bytes, at: int, end: int) -> None:
        """Handle one packet that is not PUBLISH: its body is ``data[at:end]``."""
        raise NotImplementedError

    def take_acknowledgement(self, first: int, packet_id: int, reason: int) -> None:
        """Handle PUBACK, PUBREC, PUBREL or PUBCOMP. Raises ProtocolError."""
        raise NotImplementedError

    def fail(self, error: RemoteError) -> None:
        """The client broke a rule: answer and close."""
        raise NotImplementedError

    def replay(self) -> None:
        """Send waiting retained messages as far as the output takes them."""
        raise NotImplementedError

    def accepted(self) -> None:
        """CONNECT was accepted: what follows is taken."""
        self._state = PAUSED if self._is_blocked else CONNECTED

    def attached(self) -> Session:
        """The session; only while the client is connected."""
        session = self.session
        assert session is not None
        return session

    def publishing(self) -> Incoming:
        incoming = self._incoming
        if incoming is None:
            incoming = MountedIncoming(self) if self.mount_point else Incoming(self)
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

    def take_large(self, frame: Pieces) -> bool:
        if self._state != CONNECTED or self._aside is not None:
            return False
        try:
            return self.publishing().take_large(frame)
        except RemoteError as error:
            self.fail(error)
            return True

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
            if self._state == CONNECTED:
                after = self._take_run(data, at, end)
                if after > at:
                    at = after
                    continue
            first = data[at]
            is_publish = first & 0xF0 == packets.PUBLISH
            if self.ignores_flags and not is_publish:
                first = packets.without_flags(first)
            action = ACTIONS[self._state][first >> 4]
            if action > FOLLOW:
                raise error_of(action, first)
            body, after = read_fixed_header(data, at, end)
            if after - at > self.maximum_packet:
                raise RemoteError(PACKET_TOO_LARGE, "packet exceeds the maximum (MQTT-3.2.2-15)")
            waits = action == SET_ASIDE or (action == FOLLOW and self._aside is not None)
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
            elif is_publish:
                self.publishing().take(data, at, body, after)
            else:
                self.take_packet(first, data, body, after)
            at = after
        return at

    def _take_run(self, data: bytes, at: int, end: int) -> int:
        """Take packets that are like the one before; the offset behind them, ``at`` for none."""
        first = data[at]
        if first in (QOS_0, QOS_1, QOS_2):
            incoming = self._incoming
            return at if incoming is None else incoming.take_run(data, at, end)
        if first == packets.PUBACK:
            session = self.session
            outgoing = None if session is None else session.outgoing
            if outgoing is not None:
                most = at + LONGEST_PUBACK_RUN * packets.PLAIN_SIZE
                after = outgoing.acknowledged_run(data, at, min(end, most))
                self.count_frames((after - at) // packets.PLAIN_SIZE)
                return after
        elif first in (packets.PUBREC, packets.PUBREL, packets.PUBCOMP):
            return self._take_plain(first, data, at, end)
        return at

    def _take_plain(self, first: int, data: bytes, at: int, end: int) -> int:
        """Take the plain packets at ``at`` that begin with ``first``; the offset behind them."""
        while True:
            packet_id = packets.plain_acknowledgement(first, data, at, end)
            if packet_id == 0:
                break
            self.take_acknowledgement(first, packet_id, 0)
            at += packets.PLAIN_SIZE
            if at >= end or self.stops_input():
                break
        return at

    def blocked(self, reason: str) -> None:
        """MQTT has no word for it, so publishes are set aside, unanswered.

        Pings and acknowledgements of what the client receives go on, until too many wait.
        """
        self._is_blocked = True
        if self._state == CONNECTED:
            self._state = PAUSED

    def unblocked(self) -> None:
        self._is_blocked = False
        if self._state == PAUSED:
            self._state = CONNECTED
        aside = self._aside
        if aside is not None:
            self._aside = None
            self.put_back(bytes(aside))
        if self.held_for:
            self.continue_input(FOR_BROKER)
        else:
            self.broker.driver.go_on(self)

    def _has_room_aside(self, size: int) -> bool:
        return (0 if self._aside is None else len(self._aside)) + size <= MAX_ASIDE

    def flushed(self) -> None:
        self.continue_input(FOR_OUTPUT)
        session = self.session
        if session is not None:
            if session.outgoing is not None:
                session.outgoing.pump()
            self.replay()
