"""One native client as the broker sees it: dispatch of frames, replies, time-outs, backpressure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i64_le, write_i32_le
from mypy_extensions import i64

from trivium import errors as core
from trivium.common.pieces import Piece, Pieces
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import ManagedConnection, Peer, Transport
from trivium.runtime.framed import FOR_SUBSCRIBERS, FOR_TURN, FramedConnection
from trivium.runtime.usage import FOR_QUOTA
from trivium_native.server import states
from trivium_native.server.answers import Answers, error_frame
from trivium_native.server.deliveries import LiveFrames
from trivium_native.server.describing import NativeManaged
from trivium_native.server.fetching import Fetches
from trivium_native.server.handshake import (
    BEHIND_REQUEST,
    Handshake,
    max_frame,
    of_topology,
    renew,
)
from trivium_native.server.large import cut_payloads
from trivium_native.server.options import NativeOptions
from trivium_native.server.parts import Parts
from trivium_native.server.publish_requests import BEHIND_DISK, PublishRequests
from trivium_native.server.publishing import Publisher
from trivium_native.server.requests import Requests
from trivium_native.server.subscriptions import Subscription
from trivium_native.server.transactions import Transactions
from trivium_native.wire import frames
from trivium_native.wire.errors import (
    AuthenticationFailed,
    BrokerError,
    Malformed,
    NativeError,
    NotFound,
    ProtocolError,
    ShuttingDown,
    TimedOut,
    UnknownDelivery,
)
from trivium_native.wire.fields import Fields
from trivium_native.wire.frames import HEAD_SIZE, FrameCutter, encode_frame, pack, write_head
from trivium_native.wire.messages import CONFIRM_SIZE, CREDIT, REQUEUE, SETTLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from trivium.runtime.broker import Broker
    from trivium.streams.filtered_reads import FilteredReads
    from trivium.vhost.virtual_host import VirtualHost

#: Intervals without a sign of life after which a client is gone.
HEARTBEATS_MISSED: Final = 2

#: The highest delivery tag: compiled code counts in signed numbers of 64 bits.
MAX_TAG: Final[i64] = (1 << 63) - 1

# Why input is held, beside the reasons of ``FramedConnection``, of the handshake and of publishing:
# the client's reading of the answers is behind, the disk is behind with what all have published.
BEHIND_CLIENT: Final = BEHIND_DISK << 1
BEHIND_ALL: Final = BEHIND_DISK << 2
#: those among them for which the client's silence means nothing
UNHEARD: Final = FOR_TURN | FOR_SUBSCRIBERS | FOR_QUOTA | BEHIND_DISK | BEHIND_ALL | BEHIND_REQUEST

#: Frames with messages: the client is not read for a moment where the disk is behind.
_PUBLISHING: Final = frozenset((frames.PUBLISH, frames.TX, frames.STAGE))


class NativeConnection(FramedConnection):
    """A client's connection, from HELLO to its end."""

    __deletable__ = ("_publishes", "_requests", "_transactions")

    def __init__(
        self,
        broker: Broker,
        transport: Transport,
        peer: Peer,
        metrics: ProtocolMetrics,
        options: NativeOptions,
        live_frames: LiveFrames,
        parts_of: Callable[[VirtualHost], Parts],
        filtered_reads: FilteredReads,
    ) -> None:
        super().__init__(metrics, broker, transport, peer)
        self.options = options
        #: the ``origin`` of its messages, which may be kept longer than the connection
        self.origin = object()
        self.live_frames = live_frames
        self._parts_of = parts_of
        self.vhost: VirtualHost
        self.subscriptions: dict[int, Subscription] = {}
        #: fetches that wait for records or for room in the output
        self.fetches = Fetches(self, filtered_reads)
        #: searches for a time that wait for the disk, and polls of queues that are under way
        self.searches = 0
        self.polls = 0
        # None once it is over.
        self._handshake: Handshake | None = Handshake(self)
        #: which frames may come
        self.state = states.GREETING
        self._cutter = FrameCutter(frames.MAX_HANDSHAKE_FRAME)
        self._publisher: Publisher
        self._publishes: PublishRequests
        self._requests: Requests
        self._transactions: Transactions
        # Why publishing is refused; and whether a client that publishes is not read, for a moment.
        self._blocked: str | None = None
        self._is_slowed = False
        self._heartbeat = 0
        self._answers = Answers(options.max_unconfirmed)
        # Something waits for room in the output.
        self._is_held = False

    # From the driver

    def lost(self) -> None:
        self.metrics.connections_closed += 1
        self.drop_input()
        self.forget_farewell()
        for subscription in list(self.subscriptions.values()):
            subscription.end()
        self.subscriptions.clear()
        # What is of no use any more must not keep it in memory.
        self.fetches.stop()
        self._handshake = None
        if self.state is states.OPEN:
            self.vhost.delete_queues_of(self)
            del self._publishes
            del self._requests
            del self._transactions

    def tick(self, now: float) -> None:
        elapsed = self.broker.elapsed_ms
        if self.state is not states.OPEN:
            limit = self.broker.config.limits.handshake_seconds * 1000
            # While its answer is up to us, it need not hurry.
            if not self.held_for and elapsed - self.came_at >= limit:
                self.metrics.protocol_errors += 1
                # It is told nothing, so there is nothing that it must get.
                self.transport.abort()
            return
        is_timed = self._heartbeat and not self.held_for & UNHEARD
        if is_timed and elapsed - self.heard_at >= self._heartbeat * HEARTBEATS_MISSED * 1000:
            self.metrics.protocol_errors += 1
            self.send(error_frame(0, TimedOut("no heartbeat in time")))
            # It is not waited for.
            self.close(False)

    def flushed(self) -> None:
        if self._is_held:
            self._is_held = False
            self.fetches.flushed()
            subscriptions = list(self.subscriptions.values())
            # All of them first, so that those of one queue are served in rotation.
            for subscription in subscriptions:
                subscription.stand_by()
            for subscription in subscriptions:
                subscription.resume()
            self.continue_input(BEHIND_CLIENT)

    def has_room(self) -> bool:
        """``takes_output``; when it does not, whoever asked is resumed once it does."""
        if self.takes_output:
            return True
        self._is_held = True
        return False

    def write_batch_durable(self, write_batch: int) -> None:
        if self.is_closed and not self.awaits_farewell:
            return
        answers = self._answers
        answers.write_batch_durable(write_batch)
        self._send_confirms()
        if answers.unconfirmed <= answers.most // 2:
            self.continue_input(BEHIND_DISK)
        for frame in answers.take_answers(write_batch):
            self.send(frame)
        if not answers.waits:
            self.say_farewell()

    def blocked(self, reason: str) -> None:
        if not reason:
            self._is_slowed = True
            return
        self._blocked = reason
        if self.state is states.OPEN:
            self._publisher.blocked = reason
            self.send(encode_frame(frames.BLOCKED, 0, pack({"reason": reason})))

    def unblocked(self) -> None:
        if self._is_slowed:
            self._is_slowed = False
            self.continue_input(BEHIND_ALL)
            return
        self._blocked = None
        if self.state is states.OPEN:
            self._publisher.blocked = None
            self.send(encode_frame(frames.UNBLOCKED, 0))

    def permissions_changed(self) -> None:
        """Cancel what the client may not read any more."""
        if self.state is not states.OPEN:
            return
        self._publisher.access = self.access
        try:
            self.access.require_entry()
        except core.AccessRefused as error:
            self.send_close(of_topology(error))
            return
        for subscription in list(self.subscriptions.values()):
            try:
                subscription.check_permissions()
            except core.AccessRefused as error:
                subscription.end()
                subscription.send_cancelled(of_topology(error))
        self.fetches.check_permissions()

    def internal_error(self) -> None:
        self.fail(0, BrokerError("internal error"))

    def shutdown(self, is_revoked: bool = False, deleted_vhost: str = "") -> None:
        if deleted_vhost:
            self.send_close(NotFound(f"vhost '{deleted_vhost}' is deleted"))
        elif is_revoked:
            self.send_close(AuthenticationFailed("the credentials do not hold any more"))
        else:
            self.send_close(ShuttingDown("the broker stops"))

    def managed(self) -> ManagedConnection:
        return NativeManaged(self, self._heartbeat)

    def take_output(self) -> list[Piece]:
        if self.keeps_output:
            self._is_dirty = False
            return []
        self.metrics.bytes_sent += self.output_size
        self.traffic.bytes_sent += self.output_size
        return super().take_output()

    # Replies

    def send_error(self, correlation: int, error: NativeError) -> None:
        """Refuse one request; nothing is sent for one that wants no reply."""
        if correlation:
            self.send(error_frame(correlation, error))

    def reply(self, correlation: int, fields: dict[str, object]) -> None:
        """Answer one request now."""
        if correlation:
            self.send(encode_frame(frames.OK, correlation, pack(fields)))

    def reply_when_durable(self, correlation: int, fields: dict[str, object]) -> None:
        """Answer one request once everything that it changed is durable."""
        if correlation:
            self.send_when_durable(encode_frame(frames.OK, correlation, pack(fields)))

    def send_when_durable(self, frame: bytes) -> None:
        """Send a frame once everything that was changed is durable."""
        storage = self.broker.storage
        if storage.is_durable:
            self._answers.answer_after(storage.write_batch, frame)
            if self._answers.is_new(storage.write_batch):
                storage.wait(self)
        else:
            self.send(frame)

    def _send_confirms(self) -> None:
        if not self._answers.has_confirms:
            return
        output = self.output
        for run in self._answers.take_confirms():
            write_head(output, frames.CONFIRM, run.first, CONFIRM_SIZE)
            write_i32_le(output, run.last - run.first + 1)
            self.output_size += HEAD_SIZE + CONFIRM_SIZE
            self.traffic.confirmed += run.messages
        self.mark_dirty()

    def fail(self, correlation: int, error: NativeError) -> None:
        """Say why, behind what the client is to be told before, and close."""
        if not self.is_closed:
            self.metrics.protocol_errors += 1
            self.close_with(error_frame(correlation, error))

    def send_close(self, error: NativeError) -> None:
        """Send CLOSE, behind what the client is to be told before, and close."""
        self.close_with(encode_frame(frames.CLOSE, 0, pack([error.code, error.text])))

    @property
    def awaits_disk(self) -> bool:
        return self._answers.waits

    def close_with(self, last: bytes) -> None:
        if not self.is_closed:
            self._send_confirms()
            super().close_with(last)

    # Frames

    def take_frames(self, data: bytes, at: int) -> int:
        cutter = self._cutter
        size = len(data)
        try:
            while at < size and not self.stops_input():
                handshake = self._handshake
                if handshake is None and not self.has_room():
                    # A client that does not read its answers is not read either.
                    self.hold_input(BEHIND_CLIENT)
                    break
                if not cutter.find(data, at):
                    self.needed = cutter.needed
                    break
                at = cutter.end
                if handshake is None:
                    self._handle(data, cutter.kind, cutter.correlation, cutter.body_at, at)
                else:
                    self.state.check(cutter.kind)
                    handshake.take_frame(cutter.frame(data))
        except ProtocolError as error:
            self.fail(0, error)
        return at

    def take_large(self, frame: Pieces) -> bool:
        if self._handshake is not None or not self.has_room():
            return False
        request = cut_payloads(frame)
        if request is None:
            return False
        data = request.data
        self._publisher.payloads = request.payloads
        self._handle(data, request.kind, request.correlation, frames.HEAD_SIZE, len(data))
        self._publisher.payloads = None
        return True

    def frames_taken(self) -> None:
        self._send_confirms()

    def _handle(self, data: bytes, kind: i64, correlation: int, at: i64, end: i64) -> None:
        """One frame of an open connection, its body at ``data[at:end]``.

        What refuses the request alone is answered.
        """
        try:
            self.state.check(kind)
            if self._is_slowed and kind in _PUBLISHING:
                self.hold_input(BEHIND_ALL)
            if kind == frames.PUBLISH:
                self._publishes.take(correlation, data, at, end)
            elif kind == frames.ACK or kind == frames.NACK:
                self._acknowledge(kind == frames.ACK, correlation, data, at, end)
            elif kind == frames.CREDIT:
                _add_credit(self, data[at:end])
            elif kind == frames.PING:
                if at < end:
                    raise Malformed("PING has a body")
                self.send(encode_frame(frames.PONG, correlation))
            elif kind == frames.CLOSE:
                self.close()
            elif kind == frames.TX:
                self._transactions.handle(correlation, data, at, end)
            elif kind == frames.STAGE:
                self._transactions.stage(correlation, data, at, end)
            elif kind == frames.AUTH:
                renew(self, correlation, Fields(data[at:end]))
            else:
                self._requests.handle(kind, correlation, Fields(data[at:end]))
        except (NativeError, core.TopologyError) as error:
            self.refuse_request(correlation, error)
        if self._publisher.unpacked:
            self._publishes.count_opened()

    def refuse_request(self, correlation: int, error: NativeError | core.TopologyError) -> None:
        """Answer a request that is refused; one that breaks the protocol is the last."""
        if isinstance(error, core.TopologyError):
            if correlation and self.vhost.changes.newest:
                # It may be for a change that a crash could undo.
                self.send_when_durable(error_frame(correlation, of_topology(error)))
            else:
                self.send_error(correlation, of_topology(error))
        elif isinstance(error, ProtocolError):
            self.fail(correlation, error)
        else:
            self.send_error(correlation, error)

    def _acknowledge(
        self, is_settled: bool, correlation: int, data: bytes, at: i64, end: i64
    ) -> None:
        if end - at != SETTLE_SIZE:
            raise Malformed("ACK or NACK has a wrong size")
        head = read_i64_le(data, at)
        number = head & 0xFFFF_FFFF
        flags = head >> 32
        first = read_i64_le(data, at + 8)
        last = read_i64_le(data, at + 16)
        # Tags have no sign: what reads as a negative number is above all others.
        is_first_beyond = first < 0
        is_last_beyond = last < 0
        is_empty = is_first_beyond if is_first_beyond != is_last_beyond else first > last
        if flags & ~REQUEUE or (flags and is_settled) or is_empty:
            raise Malformed("ACK or NACK has unknown flags or an empty range")
        subscription = self.subscriptions.get(number)
        if subscription is None:
            raise UnknownDelivery(f"no subscription {number}")
        if is_first_beyond:
            raise UnknownDelivery(f"no unsettled delivery above {MAX_TAG}")
        if is_last_beyond:
            last = MAX_TAG
        if is_settled:
            subscription.settle(first, last)
        else:
            subscription.give_back(first, last, flags & REQUEUE != 0)
        if correlation:
            self.reply_when_durable(correlation, {})

    def open(self, correlation: int, vhost: VirtualHost, heartbeat: int) -> None:
        """The client is in."""
        self.vhost = vhost
        self.state = states.OPEN
        self._handshake = None
        self._heartbeat = heartbeat
        self._cutter.max_frame = max_frame(self.options)
        parts = self._parts_of(vhost)
        self._publisher = Publisher(
            self.broker,
            vhost,
            self.metrics,
            self.traffic,
            self.origin,
            self.options.max_message_bytes,
            self.access,
        )
        self._publishes = PublishRequests(self, self._publisher, self._answers)
        self._requests = Requests(self, vhost, parts)
        self._transactions = Transactions(self, vhost, self._publisher, parts)
        self.reply(correlation, {})
        if self._blocked is not None:
            self.blocked(self._blocked)

    def refuse(self, correlation: int, error: NativeError) -> None:
        """The client is not let in."""
        if isinstance(error, AuthenticationFailed):
            self.metrics.authentication_failures += 1
        self.close_with(error_frame(correlation, error))


def _add_credit(connection: NativeConnection, body: bytes) -> None:
    if len(body) != CREDIT.size:
        raise Malformed("CREDIT has a wrong size")
    number, amount = CREDIT.unpack(body)
    subscription = connection.subscriptions.get(number)
    if subscription is not None:
        subscription.add_credit(amount)
