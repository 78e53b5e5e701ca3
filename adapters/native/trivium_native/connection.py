"""One native client as the broker sees it: handshake, dispatch of frames, replies, time-outs.

States, and the frames that a client may send in each::

    GREETING        HELLO  -> AUTHENTICATION
    AUTHENTICATION  AUTH   -> DECIDING (the answer may take a while) -> OPEN
    OPEN            everything else
    any             CLOSE
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import trivium
from trivium import errors as core
from trivium.adapter import Connection, Peer, Transport
from trivium.metrics import ProtocolMetrics
from trivium_native import frames
from trivium_native.deliveries import LiveFrames
from trivium_native.entries import CONFIRM, CREDIT, REQUEUE, SETTLE
from trivium_native.errors import (
    AccessRefused,
    AuthenticationFailed,
    BrokerError,
    InvalidArgument,
    Malformed,
    NativeError,
    NotFound,
    NotSupported,
    PreconditionFailed,
    ProtocolError,
    Rejected,
    ResourceLocked,
    ShuttingDown,
    TimedOut,
    UnexpectedFrame,
    UnknownDelivery,
    Unroutable,
    UnsupportedVersion,
)
from trivium_native.fetching import Fetch, FetchTimer
from trivium_native.fields import Fields
from trivium_native.frames import Frame, FrameReader, encode_frame, pack
from trivium_native.publishing import Publisher
from trivium_native.requests import Requests
from trivium_native.subscriptions import Subscription

if TYPE_CHECKING:
    from trivium.broker import Broker
    from trivium.vhost import VirtualHost

logger = logging.getLogger(__name__)

GREETING: Final = 0
AUTHENTICATION: Final = 1
DECIDING: Final = 2
OPEN: Final = 3

#: Heartbeat intervals that a client may ask for, in seconds; 0 is none.
MAX_HEARTBEAT: Final = 3600
#: Intervals without a sign of life after which a client is gone.
HEARTBEATS_MISSED: Final = 2.0


#: Publishes of one client that may wait for the disk; above it the client is not read.
MAX_UNCONFIRMED: Final = 65_536


class NativeConnection(Connection):
    """See the module."""

    def __init__(
        self,
        broker: Broker,
        transport: Transport,
        peer: Peer,
        metrics: ProtocolMetrics,
        live_frames: LiveFrames,
    ) -> None:
        super().__init__(broker, transport, peer)
        self.metrics = metrics
        self.live_frames = live_frames
        self.vhost: VirtualHost
        self.subscriptions: dict[int, Subscription] = {}
        #: fetches that wait for records or for room in the output
        self.fetches: dict[Fetch, None] = {}
        self.fetch_timer = FetchTimer(self)
        self._state = GREETING
        self._reader = FrameReader(frames.MAX_HANDSHAKE_FRAME)
        self._publisher: Publisher
        self._requests: Requests
        self._blocked: str | None = None
        self._heartbeat = 0
        # Requests confirmed in this turn, and what waits for its batch: publishes by correlation
        # id, other replies as frames.
        self._confirmed: list[int] = []
        self._unconfirmed: deque[tuple[int, int]] = deque()
        self._unanswered: deque[tuple[int, bytes]] = deque()
        self._waiting_batch = 0
        #: publishes that may wait for the disk before this client is not read any more
        self.max_unconfirmed = MAX_UNCONFIRMED
        # Something waits for room in the output.
        self._is_held = False
        self._is_paused = False
        self._has_received = False
        self._deadline = -1.0

    # From the driver

    def feed(self, data: bytes) -> None:
        self.metrics.bytes_received += len(data)
        self._has_received = True
        self._reader.feed(data)
        if self._state != DECIDING:
            self._process()

    def lost(self) -> None:
        self.metrics.connections_closed += 1
        for subscription in list(self.subscriptions.values()):
            subscription.end()
        self.subscriptions.clear()
        for fetch in self.fetches:
            fetch.cancel()
        self.fetches.clear()
        if self._state == OPEN:
            self.vhost.delete_queues_of(self)

    def tick(self, now: float) -> None:
        if self._has_received or self._deadline < 0:
            if self._state == OPEN:
                self._deadline = now + self._heartbeat * HEARTBEATS_MISSED
            elif self._deadline < 0:
                self._deadline = now + self.broker.config.limits.handshake_seconds
            self._has_received = False
        if now >= self._deadline and (self._state != OPEN or self._heartbeat):
            what = "heartbeat" if self._state == OPEN else "authentication"
            self.fail(0, TimedOut(f"no {what} in time"))

    def flushed(self) -> None:
        if self._is_held:
            self._is_held = False
            self.answer_fetches()
            for subscription in list(self.subscriptions.values()):
                subscription.resume()

    def has_room(self) -> bool:
        """``takes_output``; when it does not, whoever asked is resumed once it does."""
        if self.takes_output:
            return True
        self._is_held = True
        return False

    def batch_durable(self, batch: int) -> None:
        if self.is_closed:
            return
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= batch:
            self._confirmed.append(unconfirmed.popleft()[1])
        self._send_confirms()
        if self._is_paused and len(unconfirmed) <= self.max_unconfirmed // 2:
            self._is_paused = False
            self.transport.resume_reading()
        unanswered = self._unanswered
        while unanswered and unanswered[0][0] <= batch:
            self.send(unanswered.popleft()[1])

    def blocked(self, reason: str) -> None:
        self._blocked = reason
        if self._state == OPEN:
            self._publisher.blocked = reason
            self.send(encode_frame(frames.BLOCKED, 0, pack({"reason": reason})))

    def unblocked(self) -> None:
        self._blocked = None
        if self._state == OPEN:
            self._publisher.blocked = None
            self.send(encode_frame(frames.UNBLOCKED, 0))

    def shutdown(self) -> None:
        self._send_close(ShuttingDown("the broker stops"))

    def take_output(self) -> list[bytes]:
        self.metrics.bytes_sent += self.output_size
        return super().take_output()

    def answer_fetches(self) -> None:
        """Answer the fetches that can be answered now."""
        if self.fetches and not self.is_closed:
            for fetch in [fetch for fetch in self.fetches if fetch.step()]:
                self.fetches.pop(fetch, None)

    # Replies

    def send_error(self, correlation: int, error: NativeError) -> None:
        """Refuse one request; nothing is sent for one that wants no reply."""
        if correlation:
            self.send(_error_frame(correlation, error))

    def reply(self, correlation: int, fields: dict[str, object]) -> None:
        """Answer one request now."""
        if correlation:
            self.send(encode_frame(frames.OK, correlation, pack(fields)))

    def reply_when_durable(self, correlation: int, fields: dict[str, object]) -> None:
        """Answer one request once everything that it changed is durable."""
        if correlation:
            self._send_when_durable(encode_frame(frames.OK, correlation, pack(fields)))

    def _send_when_durable(self, frame: bytes) -> None:
        storage = self.broker.storage
        if storage.is_durable:
            self._unanswered.append((storage.batch, frame))
            self._await_batch(storage.batch)
        else:
            self.send(frame)

    def _await_batch(self, batch: int) -> None:
        if self._waiting_batch != batch:
            self._waiting_batch = batch
            self.broker.storage.wait(self)

    def _send_confirms(self) -> None:
        """One CONFIRM per run of neighbouring correlation ids."""
        confirmed = self._confirmed
        if not confirmed:
            return
        self._confirmed = []
        first = last = confirmed[0]
        for correlation in confirmed[1:]:
            if correlation != last + 1:
                self.send(_confirm_frame(first, last))
                first = correlation
            last = correlation
        self.send(_confirm_frame(first, last))

    def fail(self, correlation: int, error: NativeError) -> None:
        """Say why, then close."""
        if not self.is_closed:
            self.metrics.protocol_errors += 1
            self._send_confirms()
            self.send(_error_frame(correlation, error))
            self.close()

    def _send_close(self, error: NativeError) -> None:
        if not self.is_closed:
            self._send_confirms()
            self.send(encode_frame(frames.CLOSE, 0, pack([error.code, error.text])))
            self.close()

    # Frames

    def _process(self) -> None:
        try:
            while self._state != OPEN:
                found = self._reader.frames(1)
                if not found or self.is_closed:
                    return
                self._shake_hands(found[0])
                if self._state == DECIDING:
                    return
            for frame in self._reader.frames():
                self._handle(frame)
                if self.is_closed:
                    return
            self._send_confirms()
        except ProtocolError as error:
            self.fail(0, error)

    def _handle(self, frame: Frame) -> None:
        """One frame of an open connection; what refuses the request alone is answered."""
        kind = frame.kind
        correlation = frame.correlation
        try:
            if kind == frames.PUBLISH:
                self._publish(frame)
            elif kind == frames.ACK or kind == frames.NACK:
                self._settle(frame)
            elif kind == frames.CREDIT:
                self._credit(frame)
            elif kind == frames.PING:
                self.send(encode_frame(frames.PONG, correlation))
            elif kind == frames.CLOSE:
                self.close()
            elif kind in frames.RESERVED:
                raise NotSupported(f"frame type {kind:#04x} is reserved for a later version")
            elif not self._requests.handle(kind, correlation, Fields(frame.body)):
                raise UnexpectedFrame(f"frame type {kind:#04x} is not one that a client sends")
        except ProtocolError as error:
            self.fail(correlation, error)
        except NativeError as error:
            self.send_error(correlation, error)
        except core.TopologyError as error:
            self.send_error(correlation, of_topology(error))
        except Exception:
            # A fault of ours, whatever provoked it, costs this connection only.
            logger.exception("frame type %#04x from %s failed", kind, self.peer.address)
            self.fail(correlation, BrokerError("internal error"))

    def _publish(self, frame: Frame) -> None:
        correlation = frame.correlation
        try:
            batch = self._publisher.publish(frame)
        except (Rejected, Unroutable) as error:
            # The others were published: the answer is true of them only once they are durable.
            if correlation:
                self._send_when_durable(_error_frame(correlation, error))
            return
        if not correlation:
            return
        if batch > self.broker.storage.durable:
            self._unconfirmed.append((batch, correlation))
            self._await_batch(batch)
            if len(self._unconfirmed) > self.max_unconfirmed and not self._is_paused:
                self._is_paused = True
                self.transport.pause_reading()
        else:
            self._confirmed.append(correlation)

    def _settle(self, frame: Frame) -> None:
        if len(frame.body) != SETTLE.size:
            raise Malformed("ACK or NACK has a wrong size")
        number, flags, first, last = SETTLE.unpack(frame.body)
        if flags & ~REQUEUE or (flags and frame.kind == frames.ACK) or first > last:
            raise Malformed("ACK or NACK has unknown flags or an empty range")
        subscription = self.subscriptions.get(number)
        if subscription is None:
            raise UnknownDelivery(f"no subscription {number}")
        if frame.kind == frames.ACK:
            subscription.settle(first, last)
        else:
            subscription.give_back(first, last, flags & REQUEUE != 0)
        self.reply_when_durable(frame.correlation, {})

    def _credit(self, frame: Frame) -> None:
        if len(frame.body) != CREDIT.size:
            raise Malformed("CREDIT has a wrong size")
        number, amount = CREDIT.unpack(frame.body)
        subscription = self.subscriptions.get(number)
        if subscription is not None:
            subscription.add_credit(amount)

    # Handshake

    def _shake_hands(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == frames.CLOSE:
            self.close()
        elif kind == frames.HELLO and self._state == GREETING:
            self._greet(frame)
        elif kind == frames.AUTH and self._state == AUTHENTICATION:
            self._authenticate(frame)
        else:
            raise UnexpectedFrame(f"frame type {kind:#04x} does not belong here")

    def _greet(self, frame: Frame) -> None:
        fields = Fields(frame.body)
        try:
            name = fields.text("protocol")
            version = fields.integer("version", 0, 0xFFFF)
            heartbeat = fields.integer("heartbeat", 0, MAX_HEARTBEAT, 0)
            fields.text("client", "")
            fields.finish()
        except InvalidArgument as error:
            raise Malformed(error.text) from None
        if name != frames.PROTOCOL_NAME or version != frames.VERSION:
            raise UnsupportedVersion(f"this broker speaks version {frames.VERSION}")
        self._heartbeat = heartbeat
        self._state = AUTHENTICATION
        reply: dict[str, object] = {
            "version": frames.VERSION,
            "heartbeat": heartbeat,
            "max_frame": self._max_frame(),
            "broker": f"trivium {trivium.__version__}",
        }
        self.send(encode_frame(frames.HELLO, frame.correlation, pack(reply)))

    def _max_frame(self) -> int:
        return self.broker.config.limits.max_message_bytes + frames.FRAME_OVERHEAD

    def _authenticate(self, frame: Frame) -> None:
        fields = Fields(frame.body)
        try:
            vhost = fields.text("vhost", "/")
            username = fields.optional_text("username")
            password = fields.data("password", b"", 1024)
            fields.finish()
        except InvalidArgument as error:
            raise Malformed(error.text) from None
        correlation = frame.correlation
        if username is None:
            if self.broker.authenticator.admits_anonymous("native"):
                self._open(correlation, vhost)
            else:
                self._refuse(correlation, AuthenticationFailed("credentials are needed"))
            return
        self._state = DECIDING
        is_later = False

        def done(is_right: bool) -> None:
            if self.is_closed:
                return
            if not is_right:
                self._refuse(correlation, AuthenticationFailed("wrong username or password"))
                return
            self._open(correlation, vhost)
            if is_later and not self.is_closed:
                self.transport.resume_reading()
                self._process()

        self.broker.authenticator.authenticate(username, password, self.peer.is_loopback, done)
        # While a thread decides nothing more is read, so that nothing piles up.
        if self._state == DECIDING and not self.is_closed:
            is_later = True
            self.transport.pause_reading()

    def _refuse(self, correlation: int, error: NativeError) -> None:
        self._state = AUTHENTICATION
        if isinstance(error, AuthenticationFailed):
            self.metrics.authentication_failures += 1
        self.send(_error_frame(correlation, error))
        self.close()

    def _open(self, correlation: int, vhost: str) -> None:
        try:
            self.vhost = self.broker.vhost(vhost)
        except core.TopologyError as error:
            self._refuse(correlation, of_topology(error))
            return
        self._state = OPEN
        self._deadline = -1.0
        self._reader.max_frame = self._max_frame()
        self._publisher = Publisher(self, self.vhost)
        self._requests = Requests(self, self.vhost)
        self.reply(correlation, {})
        if self._blocked is not None:
            self.blocked(self._blocked)


def _error_frame(correlation: int, error: NativeError) -> bytes:
    body: list[object] = [error.code, error.text]
    if error.detail:
        body.append(error.detail)
    return encode_frame(frames.ERROR, correlation, pack(body))


def _confirm_frame(first: int, last: int) -> bytes:
    return encode_frame(frames.CONFIRM, first, CONFIRM.pack(last - first + 1))


def of_topology(error: core.TopologyError) -> NativeError:
    """The protocol's error for one of the core's."""
    text = str(error)
    if isinstance(error, core.NotFound):
        return NotFound(text)
    if isinstance(error, core.AccessRefused):
        return AccessRefused(text)
    if isinstance(error, core.ResourceLocked):
        return ResourceLocked(text)
    return PreconditionFailed(text)
