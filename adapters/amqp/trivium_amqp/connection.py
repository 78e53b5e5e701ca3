"""A client's connection: frames in, frames out, and the life of the connection itself.

``feed`` reads all whole frames of what arrived in one loop over one ``bytes``. Two kinds of frames
are recognised by comparing them with what came before, without being parsed: a publish whose three
frames up to the body are those of the publish before it, and acknowledgements on one channel.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trivium.errors import TopologyError
from trivium.messages.message import HeaderValue
from trivium.observability.metrics import ProtocolMetrics
from trivium.queues.queue import Queue
from trivium.runtime.adapter import DISCARDED_BYTES, Peer, Transport
from trivium.runtime.broker import DEFAULT_VHOST, Broker
from trivium.runtime.framed import FramedConnection
from trivium.vhost.virtual_host import VirtualHost
from trivium_amqp.channel import Channel, unknown_tag
from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import (
    CHANNEL_ERROR,
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    ChannelException,
    ConnectionException,
    FramingError,
    UnexpectedFrame,
    channel_exception,
)
from trivium_amqp.codec.frames import (
    BODY,
    CHANNEL_MAX,
    CLOSE_OK_FRAME,
    CONFIRM_SIZE,
    FRAME_END,
    HEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    INITIAL_FRAME_MAX,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    U32,
    U64,
    method_frame,
)
from trivium_amqp.consumer import AmqpConsumer
from trivium_amqp.content import Repeated, Target
from trivium_amqp.handshake import FOR_ANSWERS, Handshake
from trivium_amqp.liveness import CLOSE_MS, Liveness
from trivium_amqp.publisher import Publisher
from trivium_amqp.replies import Replies

#: Bytes of answers that may wait for a client that does not read them (4 MiB); then its requests
#: are not read either. Deliveries stop much earlier. It is not less, because a client that writes
#: for a long time before it reads must not be stuck.
MAX_UNREAD: Final = 4 << 20

#: basic.ack behind its method number: delivery tag, bits, frame end
_ACK: Final = Struct(">QBB")
_ACK_AT: Final = 11
_ACK_SIZE: Final = CONFIRM_SIZE + OVERHEAD
_ACK_ID: Final = U32.pack(methods.BASIC_ACK)

#: Why input is held: the client publishes while publishers are paused.
_FOR_BROKER: Final = FOR_ANSWERS << 1

_GREETING: Final = 0
_HANDSHAKE: Final = 1
_RUNNING: Final = 2
_CLOSING: Final = 3


class AmqpConnection(FramedConnection):
    """One client."""

    def __init__(
        self, metrics: ProtocolMetrics, broker: Broker, transport: Transport, peer: Peer
    ) -> None:
        super().__init__(metrics, broker, transport, peer)
        self.metrics.connections_opened += 1
        self.user = ""
        self.vhost = broker.vhost(DEFAULT_VHOST)
        self.client_properties: dict[str, HeaderValue] = {}
        self.capabilities: dict[str, HeaderValue] = {}
        self.channels: dict[int, Channel] = {}
        #: negotiated limit of a frame, and what it leaves for a payload that we send
        self.frame_max = INITIAL_FRAME_MAX
        self.frame_room = INITIAL_FRAME_MAX - OVERHEAD
        #: largest body that may come in one frame
        self.largest_body = 0
        #: whether it has, or had, exclusive queues
        self.owns_queues = False
        #: what the arguments of basic.publish lead to, for all channels
        self.targets: dict[bytes, Target] = {}
        #: what channels send that is no delivery
        self.replies = Replies(self)
        #: bytes that the client may leave unread; the fewer the more wait in ``replies``
        self.unread_limit = MAX_UNREAD
        #: publishers with something to confirm at the end of this feed
        self.unconfirmed: list[Publisher] = []
        self._channel_max = CHANNEL_MAX
        self._liveness = Liveness(self)
        self._state = _GREETING
        # None once it is over.
        self._handshake: Handshake | None = Handshake(self)
        self._is_garbled = False
        # The last bytes of input that cannot be followed.
        self._garbled_end = b""
        # Bytes that came since connection.close was sent.
        self._discarded = 0
        # See the module.
        self._repeated: Repeated | None = None
        self._ack_channel: Channel | None = None
        self._ack_prefix = b""
        # Consumers that have credit again, queues that wait until output is written.
        self._credited: list[AmqpConsumer] = []
        self._held: dict[int, Queue] = {}
        # Publishers with something that waits for a write batch, and the write batch that we
        # registered for.
        self._awaiting: dict[int, Publisher] = {}
        self._awaited = 0
        # Whether connection.close-ok waits for the answers before it.
        self._closes_after_replies = False
        # Bytes that were handed to a socket that takes no more.
        self._unread = 0
        # Whether input was held at the last tick.
        self._was_held = False
        #: whether publishers are paused; whether and why the client is told when it publishes
        self.is_blocked = False
        self._block_reason = ""
        self._is_told = False
        self._liveness.due()

    # Input

    def feed(self, data: bytes) -> None:
        if self._state == _CLOSING:
            self._discarded += len(data)
            if self._discarded > DISCARDED_BYTES:
                self.transport.abort()
                return
        if self._is_garbled:
            self.metrics.bytes_received += len(data)
            # The stream cannot be followed any more, but the client's last frame is known.
            size = len(CLOSE_OK_FRAME)
            self._garbled_end = (self._garbled_end + data[-size:])[-size:]
            if self._garbled_end == CLOSE_OK_FRAME:
                self.close()
            return
        super().feed(data)

    def hold_publishing(self) -> None:
        """The client publishes while publishers are paused: read nothing until they may go on.

        RabbitMQ too tells those alone that publish, and when they do.
        """
        self.hold_input(_FOR_BROKER)
        if self._block_reason and not self._is_told and self.has_capability("connection.blocked"):
            self._is_told = True
            reason = self._block_reason.encode()[:255].decode(errors="ignore")
            self.send(method_frame(0, methods.CONNECTION_BLOCKED, reason))

    def take_frames(self, data: bytes, at: int) -> int:
        try:
            if self._state == _GREETING:
                at = self._greeting(data)
            if self._state != _GREETING:
                at = self._frames_in(data, at)
        except ConnectionException as error:
            self.fail(error, 0)
        return len(data) if self._is_garbled else at

    def frames_taken(self) -> None:
        if self.unconfirmed:
            for publisher in self.unconfirmed:
                publisher.flush_confirms()
            self.unconfirmed.clear()
        if self._credited:
            consumers = self._credited
            self._credited = []
            # All of them first, so that those of one queue take turns.
            for consumer in consumers:
                consumer.is_credited = False
                if consumer.channel.limit == 0:
                    consumer.queue.consumers.resume(consumer)
            for consumer in consumers:
                if consumer.channel.limit == 0:
                    consumer.queue.serve(consumer)
                else:
                    consumer.channel.serve_waiting()

    def _greeting(self, data: bytes) -> int:
        """The protocol header (4.2.2); how much of ``data`` it took."""
        size = min(len(data), len(PROTOCOL_HEADER))
        if data[:size] != PROTOCOL_HEADER[:size]:
            self.metrics.protocol_errors += 1
            self.send(PROTOCOL_HEADER)
            self.close()
            return len(data)
        if size < len(PROTOCOL_HEADER):
            self.needed = len(PROTOCOL_HEADER)
            return 0
        self._state = _HANDSHAKE
        assert self._handshake is not None
        self._handshake.start()
        return size

    def _frames_in(self, data: bytes, position: int) -> int:
        """Handle the whole frames in ``data`` from ``position``; where the rest begins."""
        size = len(data)
        while not self.stops_input():
            repeated = self._repeated
            if repeated is not None and data.startswith(repeated.head, position):
                self.needed = 0
                after = self._publishes(repeated, data, position)
                if self.needed:
                    return after
                if after > position:
                    position = after
                    if self._unread + self.output_size > self.unread_limit:
                        self.hold_input(FOR_ANSWERS)
                    continue
            channel = self._ack_channel
            if channel is not None and data.startswith(self._ack_prefix, position):
                prefix = self._ack_prefix
                while data.startswith(prefix, position):
                    if position + _ACK_SIZE > size:
                        self.needed = _ACK_SIZE
                        return position
                    tag, bits, last = _ACK.unpack_from(data, position + _ACK_AT)
                    if last != FRAME_END:
                        raise FramingError("frame does not end with the octet 0xCE")
                    position += _ACK_SIZE
                    if not channel.acknowledge(tag, bits & 1 != 0):
                        channel.fail(unknown_tag(tag), methods.BASIC_ACK)
                        break
                continue
            if position + OVERHEAD > size:
                self.needed = OVERHEAD
                return position
            kind, number, length = HEAD.unpack_from(data, position)
            # A payload may be as large as a whole frame, as with RabbitMQ: for some clients
            # frame_max is the size of the payload.
            if length > self.frame_max:
                raise FramingError(
                    f"frame with a payload of {length} bytes"
                    f" is larger than frame_max {self.frame_max}"
                )
            start = position + 7
            end = start + length
            if end >= size:
                self.needed = length + OVERHEAD
                return position
            if data[end] != FRAME_END:
                raise FramingError("frame does not end with the octet 0xCE")
            self._frame(kind, number, data, start, end)
            position = end + 1
            if self._unread + self.output_size > self.unread_limit and self._state == _RUNNING:
                self.hold_input(FOR_ANSWERS)
        return position

    def _publishes(self, repeated: Repeated, data: bytes, position: int) -> int:
        """Handle publishes that differ from the last one in their bodies only; where they end.

        Sets ``needed`` where the last one has not arrived in full.
        """
        size = len(data)
        head = repeated.head
        prefix = repeated.prefix
        middle = repeated.middle
        publisher = repeated.publisher
        header = repeated.header
        target = repeated.target
        route = target.route
        vhost = self.vhost
        middle_at = len(head) + 8
        prefix_size = len(prefix)
        while route.topology_version == vhost.topology_version:
            if data.startswith(prefix, position):
                body_size = repeated.size
            elif data.startswith(head, position) and data.startswith(middle, position + middle_at):
                # Of another size: all of it in one body frame, or it is read in full.
                if position + prefix_size > size:
                    return position
                body_size = U32.unpack_from(data, position + prefix_size - 4)[0]
                if (
                    U64.unpack_from(data, position + middle_at - 8)[0] != body_size
                    or not 0 < body_size <= self.largest_body
                ):
                    return position
            else:
                return position
            body_at = position + prefix_size
            end = body_at + body_size
            if end >= size:
                self.needed = end + 1 - position
                return position
            if data[end] != FRAME_END:
                raise FramingError("frame does not end with the octet 0xCE")
            publisher.publish(target, header, data[body_at:end])
            position = end + 1
        self._repeated = None
        return position

    def _frame(self, kind: int, number: int, data: bytes, start: int, end: int) -> None:
        method = 0
        if kind == METHOD:
            if end - start < 4:
                raise FramingError("method frame is too short")
            method = U32.unpack_from(data, start)[0]
        if self._state == _CLOSING:
            self._closing_frame(method, number)
        elif kind == HEARTBEAT:
            if end != start:
                raise FramingError("heartbeat frame with a payload")
            if number != 0:
                raise UnexpectedFrame("type 8, all octets = <<>>")
        elif kind < METHOD or kind > BODY:
            raise FramingError(f"unknown frame type {kind}")
        elif number == 0:
            if kind != METHOD:
                raise UnexpectedFrame("content frame on channel 0")
            try:
                self._connection_method(method, data, start + 4, end)
            except ConnectionException as error:
                self.fail(error, method)
        elif self._state != _RUNNING:
            raise ConnectionException(
                CHANNEL_ERROR, f"frame on channel {number} before the connection is open"
            )
        else:
            self._channel_frame(kind, number, method, data, start, end)

    def _closing_frame(self, method: int, number: int) -> None:
        """After connection.close was sent everything but its answer is ignored (2.2.4)."""
        if number == 0 and method == methods.CONNECTION_CLOSE_OK:
            self.close()
        elif number == 0 and method == methods.CONNECTION_CLOSE:
            self.send(CLOSE_OK_FRAME)
            self.close()

    def _connection_method(self, method: int, data: bytes, start: int, end: int) -> None:
        if method == methods.CONNECTION_CLOSE:
            methods.decode(method, data, start, end)
            self._flush_confirms()
            self.release()
            self.replies.advance_all()
            if self.replies.are_waiting:
                self.is_closed = self._closes_after_replies = True
            else:
                self.send(CLOSE_OK_FRAME)
                self.close()
        elif self._state == _HANDSHAKE:
            assert self._handshake is not None
            self._handshake.method(method, data, start, end)
        elif method == methods.CONNECTION_UPDATE_SECRET:
            methods.decode(method, data, start, end)
            self.send(method_frame(0, methods.CONNECTION_UPDATE_SECRET_OK))
        elif method in methods.ARGUMENTS:
            raise ConnectionException(
                CHANNEL_ERROR, "unexpected method in connection state running"
            )
        else:
            raise ConnectionException(
                NOT_IMPLEMENTED, f"unknown method {method >> 16}.{method & 0xFFFF}"
            )

    def _channel_frame(
        self, kind: int, number: int, method: int, data: bytes, start: int, end: int
    ) -> None:
        channel = self.channels.get(number)
        if channel is None:
            try:
                self._open_channel(kind, number, method, data, start, end)
            except ConnectionException as error:
                self.fail(error, method)
            return
        if channel.is_closing and method != methods.CHANNEL_CLOSE:
            if method == methods.CHANNEL_CLOSE_OK:
                del self.channels[number]
            return
        try:
            if kind == BODY:
                channel.publisher.body_frame(data, start, end)
            elif kind == HEADER:
                channel.publisher.header_frame(data, start, end)
            elif method == methods.CHANNEL_CLOSE:
                methods.decode(method, data, start + 4, end)
                self._close_channel(channel)
            elif method == methods.CHANNEL_OPEN:
                raise ConnectionException(CHANNEL_ERROR, "second 'channel.open' seen")
            else:
                channel.method(method, data, start, end)
        except TopologyError as error:
            # It may be for a change that a crash could undo.
            channel.fail(channel_exception(error), method, self.vhost.changes.newest)
        except ChannelException as error:
            channel.fail(error, method or methods.BASIC_PUBLISH)
        except UnexpectedFrame as error:
            self.fail(error, error.method)
        except ConnectionException as error:
            self.fail(error, method or methods.BASIC_PUBLISH)

    def _open_channel(
        self, kind: int, number: int, method: int, data: bytes, start: int, end: int
    ) -> None:
        if method != methods.CHANNEL_OPEN:
            # A client may close what was closed by us in the same moment (2.2.5).
            if method == methods.CHANNEL_CLOSE_OK:
                return
            if kind != METHOD:
                raise UnexpectedFrame("expected method frame, got non method frame instead")
            raise ConnectionException(CHANNEL_ERROR, "expected 'channel.open'")
        methods.decode(method, data, start + 4, end)
        if number > self._channel_max:
            raise ConnectionException(
                NOT_ALLOWED,
                f"channel number {number} exceeds the negotiated channel_max ({self._channel_max})",
            )
        self.channels[number] = Channel(self, number)
        self.channels[number].reply(methods.CHANNEL_OPEN_OK, b"")

    def _close_channel(self, channel: Channel) -> None:
        if not channel.is_closing:
            channel.publisher.flush_confirms()
            channel.release()
        del self.channels[channel.number]
        self.replies.advance(channel.number)
        channel.reply(methods.CHANNEL_CLOSE_OK)

    # For the handshake

    def tuned(self, channel_max: int, frame_max: int, heartbeat: int) -> None:
        """The client answered connection.tune; ``heartbeat`` is in seconds, 0 for none."""
        self._channel_max = channel_max
        self.frame_max = frame_max
        self.frame_room = frame_max - OVERHEAD
        self.largest_body = min(self.frame_max, self.broker.config.limits.max_message_bytes)
        self._liveness.heartbeat = heartbeat * 1000

    def opened(self, vhost: VirtualHost) -> None:
        """The client opened a virtual host."""
        self.vhost = vhost
        self._state = _RUNNING
        self._handshake = None
        self._liveness.due()

    def has_capability(self, name: str) -> bool:
        """Whether the client announced a capability in its client-properties."""
        return self.capabilities.get(name) is True

    # For channels and consumers

    def expect_repeated(self, repeated: Repeated) -> None:
        """Recognise publishes that begin like this one."""
        # While publishers are paused each publish must be seen.
        if not self.is_blocked:
            self._repeated = repeated

    def expect_acknowledgements(self, channel: Channel) -> None:
        """Recognise basic.ack on ``channel``."""
        self._ack_channel = channel
        self._ack_prefix = HEAD.pack(METHOD, channel.number, CONFIRM_SIZE) + _ACK_ID

    def forget_repeated(self) -> None:
        """Parse the next frames in full."""
        self._repeated = None
        self._ack_channel = None

    def credit(self, consumer: AmqpConsumer) -> None:
        """The consumer can take more again: dispatch at the end of this feed, in its turn where
        the channel as a whole is limited."""
        consumer.is_credited = True
        self._credited.append(consumer)
        channel = consumer.channel
        if channel.limit != 0:
            channel.waiting.setdefault(id(consumer), consumer)

    def hold(self, queue: Queue) -> None:
        """Dispatch ``queue`` once output has been written."""
        self._held[id(queue)] = queue

    def await_write_batch(self, publisher: Publisher) -> None:
        """Tell ``publisher`` when the current write batch is durable."""
        self._awaiting[publisher.number] = publisher
        self.await_durable()

    def await_durable(self) -> None:
        """Have ``write_batch_durable`` called for the current write batch."""
        storage = self.broker.storage
        if self._awaited != storage.write_batch:
            self._awaited = storage.write_batch
            storage.wait(self)

    # From the broker

    def write_batch_durable(self, write_batch: int) -> None:
        self.replies.advance_all()
        if self._awaiting:
            for number, publisher in list(self._awaiting.items()):
                if not publisher.write_batch_durable(write_batch):
                    del self._awaiting[number]

    def nothing_waits(self) -> None:
        """All answers that had to wait have left."""
        if self._closes_after_replies:
            self.send(CLOSE_OK_FRAME)
            self.transport.close()

    def flushed(self) -> None:
        if self.held_for & FOR_ANSWERS and self._state == _RUNNING:
            self._unread = 0
            self.continue_input(FOR_ANSWERS)
        if self._held:
            queues = list(self._held.values())
            self._held.clear()
            for queue in queues:
                queue.dispatch()

    def take_output(self) -> list[bytes]:
        self.metrics.bytes_sent += self.output_size
        self._liveness.sent_at = self.broker.elapsed_ms
        self._unread = 0 if self.is_writable else self._unread + self.output_size
        return super().take_output()

    def look(self) -> int:
        """Do what is due for the connection to live, or to end; when to look again, 0 for never."""
        if self.is_closed:
            return 0
        liveness = self._liveness
        now = self.broker.elapsed_ms
        if self._state != _RUNNING:
            if self._state == _CLOSING:
                limit = CLOSE_MS
            else:
                limit = int(self.broker.config.limits.handshake_seconds * 1000)
            if now < liveness.began_at + limit:
                return liveness.began_at + limit
            if self._state == _CLOSING:
                # It may yet read what it was told.
                self.close()
            else:
                self.metrics.protocol_errors += 1
                self.transport.abort()
            return 0
        if liveness.heartbeat == 0:
            return 0
        # While we do not read, we cannot know.
        if self.held_for:
            self.heard_at = now
        if liveness.dead_at(self.heard_at) <= now:
            self.transport.abort()
            return 0
        if liveness.heartbeat_at() <= now:
            self.send(HEARTBEAT_FRAME)
            liveness.sent_at = now
        return min(liveness.heartbeat_at(), liveness.dead_at(self.heard_at))

    def tick(self, now: float) -> None:
        if self._state == _RUNNING:
            self._check_timeouts(now)

    def _check_timeouts(self, now: float) -> None:
        """End the channels on which a delivery was not acknowledged in time.

        Acknowledgements that were not read while input was held have a tick to come in.
        """
        was_held = self._was_held
        self._was_held = self.held_for != 0
        if was_held or self._was_held:
            return
        for channel in list(self.channels.values()):
            channel.check_timeout(now)

    def blocked(self, reason: str) -> None:
        """Only those who publish are stopped, as soon as they do."""
        self.is_blocked = True
        self._block_reason = reason
        self.forget_repeated()

    def unblocked(self) -> None:
        self.is_blocked = False
        if self._is_told:
            self._is_told = False
            self.send(method_frame(0, methods.CONNECTION_UNBLOCKED))
        self.continue_input(_FOR_BROKER)

    # End

    def fail(self, error: ConnectionException, method: int) -> None:
        """Send connection.close for an exception that ``method`` caused (0: none)."""
        if self._state == _CLOSING:
            self._is_garbled = True
            return
        self.metrics.protocol_errors += 1
        if isinstance(error, FramingError):
            self._is_garbled = True
        self._send_close(error, method)

    def _flush_confirms(self) -> None:
        for channel in self.channels.values():
            channel.publisher.flush_confirms()

    def _send_close(self, error: ConnectionException, method: int) -> None:
        self._flush_confirms()
        self.release()
        self.replies.drop()
        self._state = _CLOSING
        self._liveness.began_at = self.broker.elapsed_ms
        self._liveness.due()
        self._is_told = False
        self.send(
            method_frame(
                0,
                methods.CONNECTION_CLOSE,
                error.code,
                error.reply_text(),
                method >> 16,
                method & 0xFFFF,
            )
        )
        # Its answer is to be read.
        self.continue_input(_FOR_BROKER)
        self.continue_input(FOR_ANSWERS)

    def internal_error(self) -> None:
        """What follows in the stream is not known any more."""
        self.fail(ConnectionException(INTERNAL_ERROR, "internal error"), 0)
        self._is_garbled = True

    def shutdown(self) -> None:
        if self._state == _GREETING:
            self.close()
        elif self._state != _CLOSING:
            self._send_close(
                ConnectionException(CONNECTION_FORCED, "broker forced connection closure"), 0
            )

    def release(self) -> None:
        """Give back everything that the client holds: deliveries, consumers, exclusive queues."""
        self.forget_repeated()
        self._awaiting.clear()
        self._credited.clear()
        self._held.clear()
        self.unconfirmed.clear()
        channels = list(self.channels.values())
        self.channels.clear()
        for channel in channels:
            channel.release()
        if self.owns_queues:
            self.owns_queues = False
            self.vhost.delete_queues_of(self)

    def lost(self) -> None:
        self.metrics.connections_closed += 1
        self._liveness.stop()
        self.drop_input()
        self.release()
        # What may be called later, and what may be held longer, must not keep it in memory.
        self._handshake = None
        self.targets.clear()
        self.replies.end()
