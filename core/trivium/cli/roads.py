"""Connections that carry a load, for any protocol that has some here.

The entry-point group "loads" of this package maps a URL's scheme to a function that takes a
`Server` and a `Plan` and returns a `Road`, so the core knows none of the protocols. Messages are
numbered by who publishes them. A connection tells what happens by the methods of its `Watcher`, so
that nothing waits for a message by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from trivium.cli.clients import ClientError, Server

#: Seconds in which each step of connecting must be answered.
ANSWER_SECONDS: Final = 20.0
#: Deliveries that a consumer may have without having acknowledged them.
PREFETCH: Final = 1000
#: Bytes that a peer may send of one frame: a load's own messages are smaller.
MAX_FRAME: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all connections of a load have in common."""

    #: of queues, topics, sessions, as a beginning
    name: str
    #: 0, 1, 2 as in MQTT, which are also the delivery modes
    qos: int
    consumers: int
    #: kept in memory only, where the protocol tells that from being confirmed
    is_transient: bool = False
    #: what is unsettled outlives a connection, and goes on in the next one of the same number
    resumes: bool = False
    #: a stream instead of a queue; its consumers are members of a group, where the protocol has any
    is_stream: bool = False
    #: messages that become visible together, at most; 0 is without transactions
    transaction: int = 0


class Watcher(Protocol):
    """Who is told what happens on a connection."""

    def acknowledged(self, number: int) -> None:
        """A message of this publisher is safe, or at QoS 0 on its way."""

    def refused(self, number: int) -> None:
        """The broker does not want a message of this publisher."""

    def received(self, payload: bytes, is_redelivered: bool) -> None:
        """A message has come; it is acknowledged right after."""

    def can_go_on(self) -> None:
        """What was written is on its way."""

    def lost(self, reason: str) -> None:
        """The connection is over, and nobody of this side has asked for it."""


class Publisher(Protocol):
    """A connection that publishes."""

    @property
    def is_writable(self) -> bool:
        """The socket is not behind, and the broker takes messages."""

    def publish(self, number: int, payload: bytes) -> None:
        """Put a message into the next flush."""

    def flush(self) -> None:
        """Send what was put there."""

    async def close(self) -> None:
        """Say goodbye, and close."""


class Consumer(Protocol):
    """A connection that receives."""

    async def close(self) -> None:
        """Say goodbye, and close."""


class Road(Protocol):
    """The connections of one load by one protocol. Each method may raise ClientError."""

    #: the protocol's listener in the ready line of a broker
    listener: str
    #: QoS whose promise outlives a broken connection, those that are verified by experiments
    lasting: tuple[int, ...]
    #: the same of loads on streams
    lasting_streams: tuple[int, ...]
    #: each message comes to each consumer, or to one of them
    copies: bool

    async def prepare(self) -> None:
        """Make what messages go through."""

    async def publisher(self, index: int, watcher: Watcher) -> Publisher:
        """A connected publisher. With `resumes` it sends again what must be sent again."""

    async def consumer(self, index: int, watcher: Watcher) -> Consumer:
        """A connected consumer, ready for what is published from now on."""

    async def clean_up(self) -> None:
        """Remove what was made."""


OpenRoad = Callable[[Server, Plan], Road]


class Wire(asyncio.Protocol):
    """A socket that parses what comes and gathers what goes. Subclasses say what bytes mean."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.is_writable = True
        self._transport: asyncio.Transport | None = None
        self._incoming = b""
        self._outgoing: list[bytes] = []
        self._answer: asyncio.Future[bytes] | None = None
        self._is_closing = False
        self._is_lost = asyncio.Event()
        self._reason = "closed by the broker"

    async def open(self, server: Server, port: int, *applications: str) -> None:
        """Connect. Raises ClientError, UsageError."""
        loop = asyncio.get_running_loop()
        context = server.tls_context(*applications)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await loop.create_connection(
                    lambda: self,
                    server.host,
                    port if server.port is None else server.port,
                    ssl=context,
                    server_hostname=None if context is None else server.host,
                )
        except OSError as error:
            found: Exception = error
            if isinstance(error, TimeoutError):
                found = OSError("no answer in time")
            raise await asyncio.to_thread(server.cannot_connect, port, found) from None

    async def greet(self, server: Server, port: int, plan: Plan, data: bytes) -> bytes:
        """`ask` for the first time: no answer may mean that something else is spoken there."""
        try:
            return await self.ask(data)
        except ClientError as error:
            if plan.resumes:
                raise
            raise await asyncio.to_thread(server.cannot_connect, port, error) from None

    async def ask(self, data: bytes) -> bytes:
        """Send, and wait for the next frame that is an answer. Raises ClientError."""
        self.put(data)
        return await self.answered()

    async def answered(self) -> bytes:
        """The next frame that is an answer. Raises ClientError."""
        if self._is_lost.is_set():
            raise ClientError(self._reason)
        self._answer = asyncio.get_running_loop().create_future()
        self.flush()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._answer
        except TimeoutError:
            self.fail("no answer in time")
            raise ClientError("no answer in time") from None
        finally:
            self._answer = None

    def answer(self, frame: bytes) -> None:
        """A frame has come that is no message and no acknowledgement of one."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)

    def put(self, data: bytes) -> None:
        """Send something at the next flush."""
        self._outgoing.append(data)

    def flush(self) -> None:
        if self._outgoing and self._transport is not None and not self._is_lost.is_set():
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def fail(self, reason: str) -> None:
        """The connection cannot go on."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def consume(self, data: bytes) -> int:
        """Take the whole frames that `data` begins with; how many bytes they are.

        Raises ClientError for what the protocol does not allow.
        """
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface but not the base class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._is_lost.is_set():
            return
        self._incoming = self._incoming + data if self._incoming else bytes(data)
        try:
            used = self.consume(self._incoming)
        except ClientError as error:
            self._incoming = b""
            self.fail(str(error))
            return
        self._incoming = self._incoming[used:]
        if len(self._incoming) > MAX_FRAME:
            self.fail("a frame that is too long")
        self.flush()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self.watcher.can_go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self._reason == "closed by the broker":
            self._reason = str(exc)
        self._is_lost.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ClientError(self._reason))
        elif not self._is_closing:
            self.watcher.lost(self._reason)

    async def end(self, farewell: bytes) -> None:
        """Send the last bytes and close; a peer that does not take them is cut off."""
        self._is_closing = True
        if self._transport is None or self._is_lost.is_set():
            return
        self.put(farewell)
        self.flush()
        self._transport.close()
        try:
            async with asyncio.timeout(1):
                await self._is_lost.wait()
        except TimeoutError:
            self._transport.abort()
            await self._is_lost.wait()
