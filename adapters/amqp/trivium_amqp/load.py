"""`amqp://` for loads: AMQP 0-9-1 over the frames of this package, with confirms.

At QoS 0 messages are transient, unconfirmed and settled by being delivered. Section numbers are
those of the AMQP 0-9-1 specification.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Any, Final

from trivium.cli.clients import ClientError, Server, UsageError
from trivium.cli.roads import PREFETCH, Consumer, Plan, Publisher, Watcher, Wire
from trivium_amqp.codec import frames, methods
from trivium_amqp.codec.errors import ConnectionException

DEFAULT_PORT: Final = 5672
DEFAULT_TLS_PORT: Final = 5671
ALPN: Final = "amqp"
DEFAULT_USER: Final = "guest"
CHANNEL: Final = 1
FRAME_MAX: Final = 131_072
#: Milliseconds after which a queue is gone whose load could not delete it.
EXPIRES_MS: Final = 600_000
#: Acknowledgements are sent for so many deliveries together, and when nothing more has come.
ACKNOWLEDGE_EVERY: Final = 100
#: property flags (4.2.6.1): delivery mode, with its value
_TRANSIENT: Final = b"\x10\x00\x01"
_PERSISTENT: Final = b"\x10\x00\x02"
_CONTENT_SIZE: Final = Struct(">Q")
_TAG: Final = Struct(">QB")
_CLOSES: Final = (methods.CONNECTION_CLOSE, methods.CHANNEL_CLOSE)
_OPEN_ENDED: Final = 1 << 16


def open_road(server: Server, plan: Plan) -> AmqpRoad:
    """The road of a URL. Raises UsageError."""
    if plan.qos == 2:
        raise UsageError("amqp:// has no --qos 2")
    return AmqpRoad(server, plan)


class AmqpRoad:
    """A queue that the consumers share, or a stream that each of them reads."""

    listener = "amqp"
    lasting: tuple[int, ...] = (1,)
    # A reader that comes back would have to say where it was.
    lasting_streams: tuple[int, ...] = ()

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._plan = plan
        self.copies = plan.is_stream
        # What is read of a stream is acknowledged at any QoS: that is how more is asked for.
        self._is_settled = plan.qos == 0 and not plan.is_stream

    async def prepare(self) -> None:
        wire = await self._connect(_Idle())
        durable = self._plan.is_stream or (self._plan.qos > 0 and not self._plan.is_transient)
        # One that nobody consumes would be gone in the middle of a long load.
        arguments: dict[str, Any] = {"x-expires": EXPIRES_MS} if self._plan.consumers else {}
        if self._plan.is_stream:
            arguments = {"x-queue-type": "stream"}
        await wire.call(
            *(methods.QUEUE_DECLARE, self._plan.name, False, durable, False, False, False),
            arguments,
        )
        await wire.close()

    async def clean_up(self) -> None:
        wire = await self._connect(_Idle())
        await wire.call(methods.QUEUE_DELETE, self._plan.name, False, False, False)
        await wire.close()

    async def publisher(self, index: int, watcher: Watcher) -> Publisher:
        wire = AmqpPublisher(watcher, self._plan)
        await self._set_up(wire)
        if self._plan.transaction:
            await wire.call(methods.TX_SELECT)
        elif self._plan.qos:
            await wire.call(methods.CONFIRM_SELECT, False)
        return wire

    async def consumer(self, index: int, watcher: Watcher) -> Consumer:
        wire = AmqpConsumer(watcher, self._is_settled)
        await self._set_up(wire)
        await wire.call(methods.BASIC_QOS, 0, PREFETCH, False)
        tag = f"load-{index}"
        arguments = {"x-stream-offset": "next"} if self._plan.is_stream else {}
        await wire.call(
            *(methods.BASIC_CONSUME, self._plan.name, tag, False, self._is_settled, False, False),
            arguments,
        )
        return wire

    async def _connect(self, watcher: Watcher) -> AmqpWire:
        wire = AmqpWire(watcher)
        await self._set_up(wire)
        return wire

    async def _set_up(self, wire: AmqpWire) -> None:
        server = self._server
        port = DEFAULT_PORT if server.tls is None else DEFAULT_TLS_PORT
        await wire.open(server, port, ALPN)
        await wire.greet(server, port, self._plan, frames.PROTOCOL_HEADER)
        await wire.handshake(server)


class _Idle:
    """Watches a connection on which no message goes."""

    def acknowledged(self, number: int) -> None: ...

    def refused(self, number: int) -> None: ...

    def received(self, payload: bytes, is_redelivered: bool) -> None: ...

    def can_go_on(self) -> None: ...

    def lost(self, reason: str) -> None: ...


class AmqpWire(Wire):
    """A connection with one channel."""

    _room = FRAME_MAX - frames.OVERHEAD

    async def handshake(self, server: Server) -> None:
        """From connection.start to an open channel (2.2.4). Raises ClientError."""
        # A certificate says who the client is, unless the URL does.
        shows = server.tls is not None and server.tls.certificate and server.password is None
        user = server.username or DEFAULT_USER
        password = DEFAULT_USER if server.password is None else server.password
        mechanism, response = (
            ("EXTERNAL", b"") if shows else ("PLAIN", f"\0{user}\0{password}".encode())
        )
        capabilities: Any = {"connection.blocked": True, "authentication_failure_close": True}
        tune = await self._call(
            *(0, methods.CONNECTION_START_OK, methods.CONNECTION_TUNE),
            *({"product": "Trivium load", "capabilities": capabilities}, mechanism),
            *(response, "en_US"),
        )
        frame_max = min(tune[1] or FRAME_MAX, FRAME_MAX)
        self._room = frame_max - frames.OVERHEAD
        self.put(frames.method_frame(0, methods.CONNECTION_TUNE_OK, CHANNEL, frame_max, 0))
        vhost = server.path or "/"
        await self._call(0, methods.CONNECTION_OPEN, methods.CONNECTION_OPEN_OK, vhost, False)
        await self._call(CHANNEL, methods.CHANNEL_OPEN, methods.CHANNEL_OPEN_OK)

    async def call(self, method: int, *arguments: Any) -> list[Any]:
        """A method of the channel and its answer, whose number is the next. Raises ClientError."""
        return await self._call(CHANNEL, method, method + 1, *arguments)

    async def _call(self, channel: int, method: int, reply: int, *arguments: Any) -> list[Any]:
        payload = await self.ask(frames.method_frame(channel, method, *arguments))
        found = int.from_bytes(payload[:4], "big")
        if found != reply:
            self.fail(f"method {found >> 16},{found & 0xFFFF} is no answer")
            raise ClientError(self._reason)
        return methods.decode(found, payload, 4, len(payload))

    def consume(self, data: bytes) -> int:
        at, size = 0, len(data)
        while at + 7 <= size:
            kind, _, length = frames.HEAD.unpack_from(data, at)
            end = at + 7 + length
            if kind > frames.HEARTBEAT or length > _OPEN_ENDED + FRAME_MAX:
                raise ClientError(f"not AMQP 0-9-1: {data[at : at + 16]!r}")
            if end >= size:
                break
            if data[end] != frames.FRAME_END:
                raise ClientError("a frame does not end with its octet")
            self.frame(kind, data, at + 7, end)
            at = end + 1
        return at

    def frame(self, kind: int, data: bytes, start: int, end: int) -> None:
        """A frame with the payload `data[start:end]` has come. Raises ClientError."""
        if kind != frames.METHOD:
            return
        method = int.from_bytes(data[start : start + 4], "big")
        if method in _CLOSES:
            code, text = self._arguments(method, data, start, end)[:2]
            raise ClientError(f"{code} {text}")
        if method == methods.BASIC_CANCEL:
            raise ClientError("the server cancelled the consumer")
        if method in (methods.CONNECTION_BLOCKED, methods.CONNECTION_UNBLOCKED):
            self.blocked(method == methods.CONNECTION_BLOCKED)
            return
        self.answer(data[start:end])

    def blocked(self, is_blocked: bool) -> None:
        """The broker is short of memory or disk, or not any more."""

    def _arguments(self, method: int, data: bytes, start: int, end: int) -> list[Any]:
        try:
            return methods.decode(method, data, start + 4, end)
        except ConnectionException as error:
            raise ClientError(f"not AMQP 0-9-1: {error}") from None

    async def close(self) -> None:
        await self.end(frames.method_frame(0, methods.CONNECTION_CLOSE, 200, "", 0, 0))


class AmqpPublisher(AmqpWire):
    """Publishes to the queue through the default exchange."""

    def __init__(self, watcher: Watcher, plan: Plan) -> None:
        super().__init__(watcher)
        self._method = frames.method_frame(
            CHANNEL, methods.BASIC_PUBLISH, "", plan.name.encode(), False, False
        )
        is_persistent = plan.qos > 0 and not plan.is_transient
        self._properties = _PERSISTENT if is_persistent else _TRANSIENT
        self._is_confirmed = plan.qos > 0
        self._transaction = plan.transaction
        #: the numbers of a transaction that is not committed, and of those on their way
        self._uncommitted: list[int] = []
        self._committing: deque[list[int]] = deque()
        self._sent = 0
        self._confirmed_to = 0
        #: the numbers of what is unconfirmed, by delivery tag, in its order
        self._numbers: dict[int, int] = {}
        self._written: deque[int] = deque()

    def publish(self, number: int, payload: bytes) -> None:
        self.put(self._method)
        for part in frames.content_frames(CHANNEL, self._properties, payload, self._room):
            self.put(bytes(part))
        if self._transaction:
            self._uncommitted.append(number)
            if len(self._uncommitted) == self._transaction:
                self._commit()
        elif self._is_confirmed:
            self._sent += 1
            self._numbers[self._sent] = number
        else:
            self._written.append(number)

    def flush(self) -> None:
        if self._uncommitted:
            self._commit()
        super().flush()
        while self._written:
            self.watcher.acknowledged(self._written.popleft())

    def _commit(self) -> None:
        self.put(frames.method_frame(CHANNEL, methods.TX_COMMIT))
        self._committing.append(self._uncommitted)
        self._uncommitted = []

    def blocked(self, is_blocked: bool) -> None:
        self.is_writable = not is_blocked
        if self.is_writable:
            self.watcher.can_go_on()

    def frame(self, kind: int, data: bytes, start: int, end: int) -> None:
        method = int.from_bytes(data[start : start + 4], "big") if kind == frames.METHOD else 0
        if method == methods.TX_COMMIT_OK and self._committing:
            for committed in self._committing.popleft():
                self.watcher.acknowledged(committed)
            return
        if method not in (methods.BASIC_ACK, methods.BASIC_NACK) or end - start != 13:
            super().frame(kind, data, start, end)
            return
        tag, bits = _TAG.unpack_from(data, start + 4)
        tell = self.watcher.acknowledged if method == methods.BASIC_ACK else self.watcher.refused
        if bits & 1:
            for confirmed in range(self._confirmed_to + 1, tag + 1):
                number = self._numbers.pop(confirmed, None)
                if number is not None:
                    tell(number)
            self._confirmed_to = max(tag, self._confirmed_to)
        else:
            number = self._numbers.pop(tag, None)
            if number is None:
                raise ClientError(f"delivery tag {tag} is confirmed, but not in use")
            tell(number)


class AmqpConsumer(AmqpWire):
    """Consumes the queue."""

    def __init__(self, watcher: Watcher, is_settled: bool) -> None:
        super().__init__(watcher)
        self._is_settled = is_settled
        self._tag = 0
        self._acknowledged = 0
        self._is_redelivered = False
        self._left = 0
        self._parts: list[bytes] = []

    def consume(self, data: bytes) -> int:
        used = super().consume(data)
        self._acknowledge()
        return used

    def frame(self, kind: int, data: bytes, start: int, end: int) -> None:
        if kind == frames.BODY:
            self._parts.append(data[start:end])
            self._left -= end - start
            if self._left <= 0:
                self._finish()
        elif kind == frames.HEADER:
            self._left = _CONTENT_SIZE.unpack_from(data, start + 4)[0]
            if self._left == 0:
                self._finish()
        elif data[start : start + 4] == _DELIVER:
            # After the consumer tag: delivery tag and redelivered.
            self._tag, bits = _TAG.unpack_from(data, start + 5 + data[start + 4])
            self._is_redelivered = bits & 1 != 0
        else:
            super().frame(kind, data, start, end)

    def _finish(self) -> None:
        self.watcher.received(b"".join(self._parts), self._is_redelivered)
        self._parts.clear()
        if self._tag >= self._acknowledged + ACKNOWLEDGE_EVERY:
            self._acknowledge()

    def _acknowledge(self) -> None:
        # In the middle of a message all before it are acknowledged.
        tag = self._tag - 1 if self._left > 0 else self._tag
        if not self._is_settled and tag > self._acknowledged:
            self.put(frames.method_frame(CHANNEL, methods.BASIC_ACK, tag, True))
            self._acknowledged = tag


_DELIVER: Final = methods.BASIC_DELIVER.to_bytes(4, "big")
