"""A client's connection: frames in, frames out, and the life of the connection itself.

``feed`` takes all whole frames of what arrived in one loop over one ``bytes``. ``states`` says
which of them are carried out, ``repeated`` recognises the most usual ones without reading them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trivium.common.pieces import Piece
from trivium.common.quotas import CHANNELS
from trivium.errors import AccessRefused, QuotaExceeded, TopologyError
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import ManagedConnection, Peer, Transport
from trivium.runtime.broker import Broker
from trivium.runtime.framed import FramedConnection, run_length
from trivium.runtime.virtual_hosts import DEFAULT_VHOST
from trivium.vhost.virtual_host import VirtualHost
from trivium_amqp import states
from trivium_amqp.bodies import Bodies
from trivium_amqp.channel import Channel, unknown_tag
from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import (
    CARRIED_OUT,
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    ChannelException,
    ConnectionException,
    FramingError,
    channel_refusal,
)
from trivium_amqp.codec.frames import (
    BODY,
    CLOSE_OK_FRAME,
    CONFIRM_SIZE,
    FRAME_END,
    HEAD,
    HEARTBEAT_EVENT,
    INITIAL_FRAME_MAX,
    OVERHEAD,
    event_of,
    method_frame,
)
from trivium_amqp.confirms import Confirms
from trivium_amqp.content import Target
from trivium_amqp.describing import AmqpManaged, ClientProperties, tell_channel
from trivium_amqp.discarded import Discarded
from trivium_amqp.dispatches import Dispatches
from trivium_amqp.handshake import FOR_ANSWERS, Handshake, Renewal
from trivium_amqp.liveness import Liveness
from trivium_amqp.options import AmqpOptions
from trivium_amqp.pause import FOR_BROKER, Pause
from trivium_amqp.repeated import RepeatedPublish, Repeats
from trivium_amqp.replies import Replies
from trivium_amqp.states import State

#: Bytes of answers that may wait for a client that does not read them (4 MiB); then its requests
#: are not read either. Deliveries stop much earlier. It is not less, because a client that writes
#: for a long time before it reads must not be stuck.
MAX_UNREAD: Final = 4 << 20

#: basic.ack behind its method number: delivery tag, bits
_ACK: Final = Struct(">QB")
_ACK_AT: Final = 11
_ACK_SIZE: Final = CONFIRM_SIZE + OVERHEAD


class AmqpConnection(FramedConnection):
    """One client."""

    def __init__(
        self,
        metrics: ProtocolMetrics,
        options: AmqpOptions,
        broker: Broker,
        transport: Transport,
        peer: Peer,
    ) -> None:
        super().__init__(metrics, broker, transport, peer)
        self.options = options
        self.metrics.connections_opened += 1
        #: which frames may come
        self.state: State = states.GREETING
        self.user = ""
        self.vhost = broker.vhost(DEFAULT_VHOST)
        #: what the client says of itself
        self.client = ClientProperties()
        self.channels: dict[int, Channel] = {}
        #: the highest number of one
        self.channel_max = options.channel_max
        #: what the negotiated limit of a frame leaves for a payload
        self.frame_room = INITIAL_FRAME_MAX - OVERHEAD
        #: whether it has, or had, exclusive queues
        self.owns_queues = False
        #: what the arguments of basic.publish lead to, for all channels
        self.targets: dict[bytes, Target] = {}
        #: what channels send that is no delivery
        self.replies = Replies(self)
        #: bytes that the client may leave unread; the fewer the more wait in ``replies``
        self.unread_limit = MAX_UNREAD
        self.confirms = Confirms()
        self.dispatches = Dispatches()
        self.repeats = Repeats()
        self.bodies = Bodies()
        self.pause = Pause()
        self.liveness = Liveness(self)
        # None once it is over.
        self._handshake: Handshake | None = Handshake(self)
        self._discarded = Discarded()
        # The write batch that we registered for.
        self._awaited = 0
        # Bytes that were handed to a socket that takes no more.
        self._unread = 0
        # Whether input was held at the last tick.
        self._was_held = False
        self.liveness.due()

    # Input

    def feed(self, data: bytes) -> None:
        discarded = self._discarded
        if self.state is states.CLOSING and discarded.is_too_much(data):
            self.transport.abort()
            return
        if discarded.is_garbled:
            self.metrics.bytes_received += len(data)
            self.traffic.bytes_received += len(data)
            self.traffic.reads += 1
            # The stream cannot be followed any more, but the client's last frame is known.
            if discarded.ends_in_close_ok(data):
                self.close()
            return
        super().feed(data)

    def take_frames(self, data: bytes, at: int) -> int:
        try:
            if self.state is states.GREETING:
                assert self._handshake is not None
                at = self._handshake.greet(data)
            if self.state is not states.GREETING:
                at = self._frames_in(data, at)
        except ConnectionException as error:
            self.fail(error, 0)
        return len(data) if self._discarded.is_garbled else at

    def frames_taken(self) -> None:
        self.bodies.end_read()
        self.confirms.flush()
        self.dispatches.end_feed()

    def _frames_in(self, data: bytes, position: int) -> int:
        """Handle the whole frames in ``data`` from ``position``; where the rest begins."""
        size = len(data)
        repeats = self.repeats
        bodies = self.bodies
        if bodies.publisher is not None:
            position = self._go_on_with_body(bodies, data, position)
        while not self.stops_input():
            repeated = repeats.publish
            if repeated is not None and repeated.may_begin(data, position):
                self.needed = 0
                after = self._publish_repeated(repeated, data, position)
                if self.needed:
                    return after
                if after > position:
                    position = after
                    if self._unread + self.output_size > self.unread_limit:
                        self.hold_input(FOR_ANSWERS)
                    continue
            channel = repeats.ack_channel
            if channel is not None and repeats.is_acknowledgement(data, position):
                self.needed = 0
                position = self._acknowledge_repeated(channel, data, position)
                if self.needed:
                    return position
                continue
            if position + OVERHEAD > size:
                self.needed = OVERHEAD
                return position
            kind, number, length = HEAD.unpack_from(data, position)
            # A payload may be as large as a whole frame, as with RabbitMQ: for some clients
            # frame_max is the size of the payload.
            if length > self.frame_room + OVERHEAD:
                raise FramingError(
                    f"frame with a payload of {length} bytes"
                    f" is larger than frame_max {self.frame_room + OVERHEAD}"
                )
            start = position + 7
            end = start + length
            if end >= size:
                if kind == BODY:
                    channel = self.channels.get(number)
                    if channel is not None and bodies.begin_frame(
                        channel.publisher, data, start, end
                    ):
                        return size
                self.needed = length + OVERHEAD
                return position
            if data[end] != FRAME_END:
                raise _no_end()
            self._take_frame(kind, number, data, start, end)
            position = end + 1
            if self._unread + self.output_size > self.unread_limit and self.state is states.RUNNING:
                self.hold_input(FOR_ANSWERS)
        return position

    def _go_on_with_body(self, bodies: Bodies, data: bytes, position: int) -> int:
        """Take the rest of a content body frame, as far as it is here; where it ends."""
        publisher = bodies.publisher
        assert publisher is not None
        position = bodies.go_on(data, position)
        if position < len(data):
            if data[position] != FRAME_END:
                raise _no_end()
            bodies.publisher = None
            # Its payload was taken, but not the frame.
            self._take_frame(BODY, publisher.number, data, position, position)
            position += 1
        return position

    def _publish_repeated(self, repeated: RepeatedPublish, data: bytes, position: int) -> int:
        """Handle publishes that differ from the last one in their bodies only; where they end.

        Sets ``needed`` where the last one has not arrived in full.
        """
        if not repeated.is_valid(self.vhost):
            self.repeats.publish = None
            return position
        size = len(data)
        bodies: list[bytes] = []
        has_end = True
        route = repeated.target.route
        most = 1
        if not route.depends_on_message and not repeated.header.copies:
            most = run_length(len(route.destinations))
        while len(bodies) < most:
            body_size = repeated.body_size(data, position)
            if body_size == 0:
                break
            body_at = position + repeated.body_at
            end = body_at + body_size
            if end >= size:
                self.needed = end + 1 - position
                break
            if data[end] != FRAME_END:
                has_end = False
                break
            bodies.append(data[body_at:end])
            position = end + 1
        if bodies:
            self.count_frames(len(bodies) - 1)
            publisher = repeated.publisher
            try:
                publisher.publish_run(repeated.target, repeated.header, bodies)
            except (TopologyError, ChannelException) as error:
                self.channels[publisher.number].refuse(error, methods.BASIC_PUBLISH)
        if not has_end:
            raise _no_end()
        return position

    def _acknowledge_repeated(self, channel: Channel, data: bytes, position: int) -> int:
        """Handle acknowledgements on one channel; where they end. Sets ``needed`` likewise."""
        size = len(data)
        repeats = self.repeats
        while repeats.is_acknowledgement(data, position):
            if position + _ACK_SIZE > size:
                self.needed = _ACK_SIZE
                break
            tag, bits = _ACK.unpack_from(data, position + _ACK_AT)
            position += _ACK_SIZE
            if data[position - 1] != FRAME_END:
                raise _no_end()
            if not channel.acknowledge(tag, bits & 1 != 0):
                channel.fail(unknown_tag(tag), methods.BASIC_ACK)
                break
            if self.stops_input():
                break
        return position

    def _take_frame(self, kind: int, number: int, data: bytes, start: int, end: int) -> None:
        """A whole frame with the payload ``data[start:end]``: carry it out, if it may come now."""
        event = event_of(kind, data, start, end)
        channel: Channel | None = None
        try:
            if number == 0:
                if self.state.admits(event, 0):
                    self._take_event(event, data, start, end)
                return
            state = self.state.channels
            channel = self.channels.get(number)
            if state is None:
                state = states.NOT_OPEN if channel is None else channel.state
            if not state.admits(event, number):
                return
            if channel is None:
                self._open_channel(number, data, start, end)
            else:
                channel.take_frame(event, data, start, end)
        except (TopologyError, ChannelException) as error:
            assert channel is not None
            channel.refuse(error, _blamed(event))
        except ConnectionException as error:
            self.fail(error, _blamed(event))

    def _take_event(self, event: int, data: bytes, start: int, end: int) -> None:
        """A frame on channel 0 that the connection's state admits."""
        if event == HEARTBEAT_EVENT:
            return
        is_closing = self.state is states.CLOSING
        if is_closing and event != methods.CONNECTION_CLOSE:
            self.close()
            return
        arguments = [] if is_closing else methods.decode(event, data, start + 4, end)
        if event == methods.CONNECTION_CLOSE:
            self.close_with(CLOSE_OK_FRAME)
        elif event == methods.CONNECTION_UPDATE_SECRET:
            Renewal(self).start(arguments[0])
        else:
            assert self._handshake is not None
            self._handshake.take_method(event, arguments)

    def _open_channel(self, number: int, data: bytes, start: int, end: int) -> None:
        methods.decode(methods.CHANNEL_OPEN, data, start + 4, end)
        if number > self.channel_max:
            raise ConnectionException(
                NOT_ALLOWED,
                f"channel number {number} exceeds the negotiated channel_max ({self.channel_max})",
            )
        try:
            self.usage.require(CHANNELS)
        except QuotaExceeded as error:
            raise channel_refusal(error) from None
        self.usage.add_channels(1)
        channel = self.channels[number] = Channel(self, number)
        tell_channel(channel, "created")
        channel.reply(methods.CHANNEL_OPEN_OK, b"")

    # For the handshake

    def opened(self, vhost: VirtualHost) -> None:
        """The client opened a virtual host."""
        self.vhost = vhost
        self.state = states.RUNNING
        self._handshake = None
        self.liveness.due()

    def managed(self) -> ManagedConnection:
        return AmqpManaged(self, self.held_for & FOR_BROKER != 0)

    # For channels

    def await_durable(self) -> None:
        """Have ``write_batch_durable`` called for the current write batch."""
        storage = self.broker.storage
        if self._awaited != storage.write_batch:
            self._awaited = storage.write_batch
            storage.wait(self)

    # From the broker

    def write_batch_durable(self, write_batch: int) -> None:
        self.replies.advance_all()
        self.confirms.write_batch_durable(write_batch)

    def flushed(self) -> None:
        if self.held_for & FOR_ANSWERS and self.state is states.RUNNING:
            self._unread = 0
            self.continue_input(FOR_ANSWERS)
        self.dispatches.written()

    def take_output(self) -> list[Piece]:
        self.metrics.bytes_sent += self.output_size
        self.traffic.bytes_sent += self.output_size
        self.liveness.sent_at = self.broker.elapsed_ms
        self._unread = 0 if self.is_writable else self._unread + self.output_size
        return super().take_output()

    def tick(self, now: float) -> None:
        """End the channels on which a delivery was not acknowledged in time.

        Acknowledgements that were not read while input was held have a tick to come in.
        """
        if self.state is not states.RUNNING:
            return
        was_held = self._was_held
        self._was_held = self.held_for != 0
        if was_held or self._was_held:
            return
        for channel in list(self.channels.values()):
            channel.check_timeout(now)

    def permissions_changed(self) -> None:
        """End the channels on which something is read that the client may not read any more."""
        if self.state is not states.RUNNING:
            return
        try:
            self.access.require_entry()
        except AccessRefused as error:
            self.send_close(ConnectionException(NOT_ALLOWED, str(error)), 0)
            return
        for channel in list(self.channels.values()):
            if channel.state is not states.CHANNEL_CLOSING:
                channel.check_permissions()

    def blocked(self, reason: str) -> None:
        """Only those who publish are stopped, as soon as they do."""
        self.pause.begin(reason)
        self.repeats.forget()

    def unblocked(self) -> None:
        notice = self.pause.end()
        if notice:
            self.send(notice)
        self.continue_input(FOR_BROKER)

    # End

    def fail(self, error: ConnectionException, method: int) -> None:
        """Send connection.close for an exception that ``method`` caused (0: none)."""
        if self.state is states.CLOSING:
            self._discarded.is_garbled = True
            return
        self.metrics.protocol_errors += 1
        if isinstance(error, FramingError):
            self._discarded.is_garbled = True
        self.send_close(error, method if error.method == CARRIED_OUT else error.method)

    def send_close(self, error: ConnectionException, method: int) -> None:
        """Send connection.close, and release all.

        It leaves behind what the client is to be told of what it did before, which may have to wait
        for the disk.
        """
        self.confirms.line_up()
        self.release()
        self.liveness.began_at = self.broker.elapsed_ms
        self.liveness.due()
        self.pause.forget_client()
        frame = method_frame(
            0,
            methods.CONNECTION_CLOSE,
            error.code,
            error.reply_text(),
            method >> 16,
            method & 0xFFFF,
        )
        self.replies.say_goodbye(frame)
        # Its answer is to be read.
        self.continue_input(FOR_BROKER)
        self.continue_input(FOR_ANSWERS)
        if self.throttle is not None:
            self.throttle.give_up()

    @property
    def awaits_disk(self) -> bool:
        return self.replies.wait

    def close_with(self, last: bytes) -> None:
        if not self.is_closed:
            self.confirms.line_up()
            self.release()
            super().close_with(last)

    def say_farewell(self) -> None:
        self.replies.give_up()
        super().say_farewell()

    def internal_error(self) -> None:
        """What follows in the stream is not known any more."""
        self.fail(ConnectionException(INTERNAL_ERROR, "internal error"), 0)
        self._discarded.is_garbled = True

    def shutdown(self, is_revoked: bool = False, deleted_vhost: str = "") -> None:
        text = "broker forced connection closure"
        if deleted_vhost:
            text = f"vhost '{deleted_vhost}' is deleted"
        if is_revoked:
            text = "the credentials do not hold any more"
        if self.state is states.GREETING:
            self.close()
        elif self.state is not states.CLOSING:
            self.send_close(ConnectionException(CONNECTION_FORCED, text), 0)

    def release(self) -> None:
        """Carry out nothing more, and give back everything that the client holds: deliveries,
        consumers, exclusive queues."""
        self.state = states.CLOSING
        self._handshake = None
        self.repeats.forget()
        self.confirms.clear()
        self.dispatches.clear()
        channels = list(self.channels.values())
        self.channels.clear()
        self.usage.add_channels(-len(channels))
        for channel in channels:
            tell_channel(channel, "closed")
            channel.release()
        if self.owns_queues:
            self.owns_queues = False
            self.vhost.delete_queues_of(self)

    def lost(self) -> None:
        self.metrics.connections_closed += 1
        self.liveness.stop()
        self.drop_input()
        self.release()
        self.forget_farewell()
        # What may be called later, and what may be held longer, must not keep it in memory.
        self.targets.clear()
        self.bodies.forget()
        self.replies.end()


def _no_end() -> FramingError:
    return FramingError("frame does not end with the octet 0xCE")


def _blamed(event: int) -> int:
    """The method to which a frame belongs: content is basic.publish's."""
    return event if event >= 0 else methods.BASIC_PUBLISH
