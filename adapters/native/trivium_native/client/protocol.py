"""The client's side without I/O: bytes in, events out, bytes to send. Both clients drive it.

A driver calls ``start``, sends ``take_output()``, feeds what arrives to ``receive`` and looks at
the events. Correlation ids rise by one, so that the broker can confirm many publishes in one frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import trivium
from trivium.common.pieces import Piece
from trivium_native.client.operations import Operation
from trivium_native.client.url import Target
from trivium_native.client.values import Delivery, StoredBatch
from trivium_native.wire import frames
from trivium_native.wire.errors import (
    ConnectionFailed,
    InvalidArgument,
    Malformed,
    NativeError,
    NotFound,
    NotSupported,
    ProtocolError,
    RemoteProtocolError,
    error_of,
)
from trivium_native.wire.frames import Frame, FrameReader, encode_frame, frame_head, pack, unpack
from trivium_native.wire.messages import (
    BATCH_HEAD,
    BATCH_HEAD_SIZE,
    CONFIRM,
    CREDIT,
    DELIVERY,
    DELIVERY_SIZE,
    MODE_MASK,
    PERSISTENT,
    REDELIVERED,
    RETAIN,
    decode_message,
)
from trivium_native.wire.properties import decode_properties

#: Bytes of output that are not copied together (64 KiB).
LARGE_OUTPUT: Final = 64 * 1024

#: What reading a frame raises when it is none of this protocol.
_UNREADABLE = (ProtocolError, InvalidArgument, KeyError, TypeError, ValueError, struct.error)


@dataclass(frozen=True, slots=True)
class Ready:
    """The broker has accepted the client. ``heartbeat`` is in seconds, 0 for none."""

    heartbeat: int


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request: a frame, or the error that refused it."""

    correlation: int
    frame: Frame | None
    error: NativeError | None


@dataclass(frozen=True, slots=True)
class BatchArrived:
    """A record batch for a ``log`` subscription."""

    subscription: int
    batch: StoredBatch


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The broker ended a subscription: its queue or stream is gone, or may not be read any more."""

    subscription: int
    error: NativeError


@dataclass(frozen=True, slots=True)
class PublishingPaused:
    """Publishes are refused until they are not; ``reason`` None says that they are taken again."""

    reason: str | None


@dataclass(frozen=True, slots=True)
class HeartbeatWanted:
    """The assignment of a member has changed: it should send a heartbeat now."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The broker closes the connection."""

    error: NativeError


Event = (
    Ready
    | Reply
    | Delivery
    | BatchArrived
    | Cancelled
    | PublishingPaused
    | HeartbeatWanted
    | Closed
)


class ClientProtocol:
    """One connection to a broker."""

    def __init__(
        self,
        target: Target,
        *,
        name: str = "",
        heartbeat: int = 0,
        max_frame: int = frames.MAX_CLIENT_FRAME,
        first: int = 1,
    ) -> None:
        self._target = target
        self._name = name or f"trivium-python {trivium.__version__}"
        self._heartbeat = heartbeat
        self._reader = FrameReader(max_frame)
        self._output: list[Piece] = []
        self._correlation = first - 1
        self._hello = 0
        self._auth = 0
        #: longest frame that the broker takes; known once Ready
        self.max_frame = frames.MAX_HANDSHAKE_FRAME
        #: the codecs of messages that the broker takes; known once Ready
        self.codecs: frozenset[str] = frozenset()
        #: what the broker takes that not all do; known once Ready
        self.features: frozenset[str] = frozenset()
        self.is_ready = False
        # Whether the broker has said anything.
        self._heard = False

    @property
    def next_correlation(self) -> int:
        """The correlation id of the next request."""
        return self._correlation + 1

    def take_output(self) -> list[Piece]:
        """What is to be sent, once: in one piece, unless that would copy much."""
        output, self._output = self._output, []
        if len(output) > 1 and sum([len(piece) for piece in output]) < LARGE_OUTPUT:
            return [b"".join(output)]
        return output

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation

    def start(self) -> None:
        """Greet and authenticate."""
        target = self._target
        self._hello = self._next()
        hello = {
            "protocol": frames.PROTOCOL_NAME,
            "version": frames.VERSION,
            "heartbeat": self._heartbeat,
            "client": self._name,
        }
        self._output.append(encode_frame(frames.HELLO, self._hello, pack(hello)))
        self._auth = self._next()
        auth: dict[str, object] = {"vhost": target.vhost}
        if target.username is not None:
            auth["username"] = target.username
            auth["password"] = target.password.encode()
        self._output.append(encode_frame(frames.AUTH, self._auth, pack(auth)))

    def send(self, operation: Operation[Any], wants_reply: bool = True) -> int:
        """Send a request; its correlation id, 0 without a reply.

        Raises InvalidArgument when it is larger than the broker takes, NotSupported when it needs
        what the broker does not have.
        """
        if operation.needs and operation.needs not in self.features:
            raise NotSupported(f"this broker is too old: it does not have {operation.needs!r}")
        body, behind = operation.body, operation.behind
        size = len(body) + len(behind)
        if size + frames.HEAD_SIZE - 4 > self.max_frame:
            raise InvalidArgument(f"the request is larger than {self.max_frame} bytes")
        correlation = self._next() if wants_reply else 0
        self._output.append(frame_head(operation.kind, correlation, size) + body)
        if behind:
            self._output.append(behind)
        return correlation

    def add_credit(self, subscription: int, amount: int) -> None:
        """Let a subscription have more."""
        self._output.append(encode_frame(frames.CREDIT, 0, CREDIT.pack(subscription, amount)))

    def ping(self) -> None:
        """Show life."""
        self._output.append(encode_frame(frames.PING, 0))

    def close(self) -> None:
        """Say goodbye; nothing is sent after it."""
        self._output.append(encode_frame(frames.CLOSE, 0, pack([0, ""])))

    def ended(self) -> ConnectionFailed:
        """What it means that the broker closes the connection without a word."""
        if self._hello and not self._heard and self._target.tls is None:
            # OpenSSL says nothing to who does not speak TLS.
            return ConnectionFailed(
                "the broker closed the connection before it said anything;"
                " where it speaks TLS, the URL begins with triviums://"
            )
        return ConnectionFailed("the broker closed the connection")

    def receive(self, data: bytes) -> list[Event]:
        """What the bytes mean. Raises RemoteProtocolError when they are not this protocol."""
        events: list[Event] = []
        self._heard = True
        try:
            self._reader.feed(data)
            while found := self._reader.frames():
                for frame in found:
                    self._handle(frame, events)
        except _UNREADABLE as error:
            raise RemoteProtocolError(f"the broker sent something unreadable: {error}") from None
        return events

    def _handle(self, frame: Frame, events: list[Event]) -> None:
        kind = frame.kind
        if kind == frames.CONFIRM:
            (count,) = CONFIRM.unpack(frame.body)
            if frame.correlation + count > self._correlation + 1:
                raise Malformed("CONFIRM for requests that were not made")
            for correlation in range(frame.correlation, frame.correlation + count):
                events.append(Reply(correlation, frame, None))
        elif kind == frames.DELIVER:
            events.append(decode_delivery(frame.body))
        elif kind == frames.BATCH:
            subscription, _, base = BATCH_HEAD.unpack_from(frame.body)
            batch = StoredBatch(base, frame.body[BATCH_HEAD_SIZE:])
            events.append(BatchArrived(subscription, batch))
        elif kind == frames.OK and frame.correlation == self._auth and not self.is_ready:
            self.is_ready = True
            events.append(Ready(self._heartbeat))
        elif kind == frames.OK or kind == frames.FETCHED:
            events.append(Reply(frame.correlation, frame, None))
        elif kind == frames.ERROR:
            error = _error(frame.body)
            if frame.correlation == 0 or not self.is_ready:
                events.append(Closed(error))
            else:
                events.append(Reply(frame.correlation, None, error))
        elif kind == frames.HELLO and frame.correlation == self._hello:
            reply = unpack(frame.body)
            self._heartbeat = int(reply["heartbeat"])
            self.max_frame = int(reply["max_frame"])
            # Older brokers have none.
            self.codecs = frozenset(reply.get("compression", ()))
            self.features = frozenset(reply.get("features", ()))
        elif kind == frames.CANCELLED:
            fields = unpack(frame.body)
            # Older brokers send no code.
            code = int(fields.get("code", NotFound.code))
            error = error_of(code, str(fields["reason"]))
            events.append(Cancelled(int(fields["subscription"]), error))
        elif kind == frames.REBALANCE:
            fields = unpack(frame.body)
            events.append(HeartbeatWanted(str(fields["group"]), str(fields["member"])))
        elif kind == frames.BLOCKED:
            events.append(PublishingPaused(str(unpack(frame.body)["reason"])))
        elif kind == frames.PONG or kind == frames.UNBLOCKED:
            if frame.body:
                raise Malformed(f"frame type {kind:#04x} has a body")
            if kind == frames.UNBLOCKED:
                events.append(PublishingPaused(None))
        elif kind == frames.CLOSE:
            events.append(Closed(_error(frame.body)))
        else:
            raise Malformed(f"frame type {kind:#04x} is not one that a broker sends")


def decode_delivery(body: bytes) -> Delivery:
    """A DELIVER body. Raises Malformed, InvalidArgument or ValueError."""
    if len(body) < DELIVERY_SIZE:
        raise Malformed("DELIVER is cut")
    subscription, flags, protocol, returns, tag, timestamp, lifetime = DELIVERY.unpack_from(body)
    message, end = decode_message(body, DELIVERY_SIZE)
    if end != len(body):
        raise Malformed("DELIVER has trailing bytes")
    return Delivery(
        subscription,
        tag,
        message.exchange.decode(),
        message.key,
        decode_properties(message.properties),
        message.payload,
        message.flags & MODE_MASK,
        message.flags & PERSISTENT != 0,
        message.flags & RETAIN != 0,
        message.priority,
        protocol,
        timestamp,
        None if lifetime == 0 else lifetime,
        flags & REDELIVERED != 0,
        returns,
    )


def _error(body: bytes) -> NativeError:
    value = unpack(body)
    code, text = int(value[0]), str(value[1])
    if code == 0:
        return ConnectionFailed("the broker closed the connection")
    detail = value[2] if len(value) > 2 else None
    return error_of(code, text, detail if isinstance(detail, dict) else None)
