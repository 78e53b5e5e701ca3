"""The way out of a connection: what may leave when, and what is dropped or held.

Answers that must wait for the disk wait here, in order, since MQTT wants acknowledgements in the
order of what they acknowledge (MQTT-4.6.0-2 to -4). Behind a CONNACK that must wait all output
does, since CONNACK must come first (MQTT-3.2.0-1). QoS 0 messages to a client that does not read
are dropped, those to one that does slow their publishers (``trivium.runtime.pacing``); nothing
makes the output grow without bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from trivium.common.pieces import Piece
from trivium.messages.large import Content
from trivium.messages.message import Message
from trivium.runtime.adapter import Peer, Transport
from trivium.runtime.framed import FramedConnection
from trivium_mqtt.codec import packets
from trivium_mqtt.codec.wire import VARINT_MAX
from trivium_mqtt.encoder import RETAIN
from trivium_mqtt.session import QUEUE_PREFIX

if TYPE_CHECKING:
    from trivium_mqtt.session import Session
    from trivium_mqtt.sessions import Sessions

#: Bytes of the longest topic for which an alias is set.
MAX_ALIASED: Final = 4096


class _Waiting:
    """Answers that may leave when a write batch is durable."""

    __slots__ = ("answers", "confirmed", "is_large", "publishes", "write_batch")

    def __init__(self, write_batch: int) -> None:
        self.write_batch = write_batch
        self.answers: list[Piece] = []
        #: whether parts of a large payload are among them
        self.is_large = False
        self.publishes = 0
        self.confirmed = 0


class Writer(FramedConnection):
    """A connection's way out; ``MqttConnection`` is what comes in."""

    def __init__(self, sessions: Sessions, transport: Transport, peer: Peer) -> None:
        super().__init__(sessions.metrics, sessions.broker, transport, peer)
        self.sessions = sessions
        #: None until the client is connected, and again when it has left
        self.session: Session | None = None
        self.is_v5 = False
        #: aliases that the client lets the broker set
        self.alias_maximum = 0
        #: prefix of all topics of the client; empty for nearly all
        self.mount_point = peer.listener.config.mount_point.encode()
        self.encoder = sessions.encoders.plain
        #: whether it takes what another client sent as it is
        self.takes_unchanged = True
        #: size of the largest packet that the client takes (MQTT-3.1.2-24)
        self.maximum_output = VARINT_MAX
        self._aliases: dict[bytes, int] | None = None
        self._waiting: list[_Waiting] | None = None
        # QoS 1 messages whose acknowledgement waits.
        self._unanswered = 0
        # The write batch that all output waits for, 0 for none.
        self._output_after = 0

    def hold_output(self) -> None:
        """Write nothing before what was done in this turn is durable."""
        self._output_after = self.broker.storage.wait(self)

    @property
    def has_waiting(self) -> bool:
        """Whether answers wait, and so all that follow them."""
        return self._waiting is not None

    def answer(self, write_batch: int, data: bytes, publishes: int, confirmed: int = 0) -> None:
        """Send ``data`` when ``write_batch`` is durable and everything answered before has left.

        ``publishes`` is the number of QoS 1 messages that it answers, ``confirmed`` that of
        messages that it confirms to have been published.
        """
        waiting = self._waiting
        storage = self.broker.storage
        if waiting is None:
            if write_batch <= storage.durable:
                self.send(data)
                self.traffic.confirmed += confirmed
                return
            waiting = []
            self._waiting = waiting
        if not waiting or waiting[-1].write_batch < write_batch:
            waiting.append(_Waiting(write_batch))
            storage.wait(self)
        last = waiting[-1]
        last.answers.append(data)
        last.publishes += publishes
        last.confirmed += confirmed
        self._unanswered += publishes

    def send_durable(self, data: bytes) -> None:
        """Send ``data`` when what was written in this turn is durable."""
        self.answer(self.broker.storage.write_batch, data, 0)

    def send_packet_durable(self, front: bytes, content: Content) -> None:
        """``send_durable`` a packet of all that goes before its payload, and that."""
        if isinstance(content, bytes):
            self.send_durable(front + content)
            return
        self.send_durable(front)
        waiting = self._waiting
        if waiting is None:
            # Nothing is ever waited for.
            self.send_parts(content.parts)
        else:
            waiting[-1].answers.extend(content.parts)
            waiting[-1].is_large = True

    def write_batch_durable(self, write_batch: int) -> None:
        if self._output_after and write_batch >= self._output_after:
            self._output_after = 0
            self.mark_dirty()
        if self.is_closed and not self.awaits_farewell:
            return
        waiting = self._waiting
        if waiting is not None:
            while waiting and waiting[0].write_batch <= write_batch:
                ready = waiting.pop(0)
                self._unanswered -= ready.publishes
                self.traffic.confirmed += ready.confirmed
                if ready.is_large:
                    self.send_parts(ready.answers)
                else:
                    self.send(b"".join(ready.answers))
            if not waiting:
                self._waiting = None
        if not self.awaits_disk:
            self.say_farewell()

    def takes_packets(self, size: int) -> bool:
        """Whether packets of another client, ``size`` bytes in all, may be forwarded unchanged."""
        return self.takes_unchanged and size <= self.maximum_output

    def forward(self, run: bytes, count: int, payload: i64) -> None:
        """Send ``count`` whole QoS 0 packets, or drop them if the client reads too slowly; they
        have so many bytes of ``payload``."""
        if self.output_size >= self.live_mark and not self.admits_live():
            self._miss(count)
            return
        self.metrics.messages_sent += count
        self.metrics.payload_bytes_sent += payload
        self.traffic.delivered_settled += count
        self.send(run)

    def deliver_live(self, message: Message, retain: bool, identifiers: bytes) -> None:
        """Send a message at QoS 0, or drop it if the client reads too slowly."""
        if self.output_size >= self.live_mark and not self.admits_live():
            self._miss(1)
            return
        first = packets.PUBLISH | RETAIN if retain else packets.PUBLISH
        content = message.content
        is_whole = False
        if self.alias_maximum:
            packet = self.aliased(message, first, b"", identifiers)
        elif retain or (self.is_v5 and identifiers):
            packet = self.encoder.front(message, first, b"", self.is_v5, identifiers)
        else:
            packet = self.encoder.live(message, self.is_v5)
            is_whole = isinstance(content, bytes)
        size = len(packet) if is_whole else len(packet) + message.size
        if not packet or size > self.maximum_output:
            self.metrics.messages_dropped += 1
            return
        self.metrics.messages_sent += 1
        self.metrics.payload_bytes_sent += message.size
        self.traffic.delivered_settled += 1
        self.send(packet)
        if not is_whole:
            self.send_content(content)
        vhost = self.sessions.vhost
        if vhost.is_watched and vhost.shows(message):
            vhost.delivered(message, QUEUE_PREFIX + self.client_id.decode(), False, self)

    def _miss(self, count: int) -> None:
        """The client reads too slowly for so many messages."""
        self.metrics.messages_dropped += count
        session = self.session
        if session is not None:
            session.missed += count

    def aliased(self, message: Message, first: int, packet_id: bytes, identifiers: bytes) -> bytes:
        """What goes before the payload of a PUBLISH to this client (``PublishEncoder.front``), with
        a topic alias while there are any (3.3.2.3.4).

        The caller sends it in this order, or not at all if it is empty or does not fit.
        """
        encoder = self.encoder
        topic = message.address.topic
        if topic is None:
            return b""
        aliases = self._aliases
        if aliases is None:
            aliases = {}
            self._aliases = aliases
        alias = aliases.get(topic, 0)
        if alias:
            return encoder.aliased_front(message, first, packet_id, identifiers, alias, True)
        if len(aliases) >= self.alias_maximum or len(topic) > MAX_ALIASED:
            return encoder.front(message, first, packet_id, True, identifiers)
        alias = len(aliases) + 1
        front = encoder.aliased_front(message, first, packet_id, identifiers, alias, False)
        if front and len(front) + message.size <= self.maximum_output:
            aliases[topic] = alias
        return front

    def take_output(self) -> list[Piece]:
        """While the socket is full, output stays here, where it is bounded."""
        if self.keeps_output or self._output_after:
            self._is_dirty = False
            return []
        self.metrics.bytes_sent += self.output_size
        self.traffic.bytes_sent += self.output_size
        return super().take_output()

    @property
    def awaits_disk(self) -> bool:
        return self._output_after != 0 or self._waiting is not None
