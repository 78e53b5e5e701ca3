"""Publishing one message after the other, gathered to requests; see ``Client.publisher``.

What comes while a request is under way goes into the next one. There is one at a time, so messages
stay in their order whatever the broker refuses, and their numbers have no gaps.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final, Protocol

from trivium.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, Properties
from trivium_native.client import operations
from trivium_native.client.connection import ClientConnection
from trivium_native.client.defaults import Progress
from trivium_native.client.values import FramedMessages, Producer, encoded_properties
from trivium_native.wire.errors import (
    ConnectionFailed,
    Fenced,
    InvalidArgument,
    NativeError,
    OutOfSequence,
    Rejected,
    Unroutable,
)
from trivium_native.wire.messages import (
    MANDATORY,
    MAX_MESSAGES,
    PERSISTENT,
    RETAIN,
    encode_message,
)
from trivium_native.wire.properties import MAX_PARTITION

logger = logging.getLogger(__name__)

#: What ``acks`` means: delivery mode and persistence.
ACKS: Final = {
    "all": AT_LEAST_ONCE | PERSISTENT,
    "leader": AT_LEAST_ONCE,
    "none": AT_MOST_ONCE,
}
#: Bytes that wait for their request before who publishes waits.
BUFFER_BYTES: Final = 16 << 20
#: Bytes of a waiting message beside its own.
_OVERHEAD: Final = 256


class Confirmation(Protocol):
    """Who waits for a message, maybe in another thread."""

    def done(self) -> bool:
        """Whether it is confirmed or refused."""

    def set_result(self, result: None, /) -> None:
        """It is confirmed."""

    def set_exception(self, error: BaseException, /) -> None:
        """It is refused."""

    def exception(self) -> BaseException | None:
        """What refused it."""


_Waiting = tuple[bytes, Confirmation]


def frame(
    flags: int,
    payload: bytes,
    routing_key: bytes | str,
    exchange: str,
    properties: Properties | None,
    partition: int | None,
    retain: bool,
    mandatory: bool,
    priority: int,
    key: bytes | None,
) -> bytes:
    """A message as a request has it. Raises ValueError for fields that do not fit."""
    if partition is not None and not 0 <= partition <= MAX_PARTITION:
        raise ValueError(f"there is no partition {partition}")
    return encode_message(
        flags | (RETAIN if retain else 0) | (MANDATORY if mandatory else 0),
        priority,
        exchange.encode(),
        routing_key.encode() if isinstance(routing_key, str) else routing_key,
        encoded_properties(properties, key, partition),
        payload,
    )


class Publisher:
    """Takes messages one by one; each gets a future that is done once it is confirmed."""

    def __init__(
        self,
        connection: ClientConnection,
        producer: Producer | None,
        acks: str,
        linger: float,
        request_bytes: int,
        compression: str,
        on_progress: Progress | None,
    ) -> None:
        #: messages that were confirmed
        self.confirmed = 0
        self._connection = connection
        #: with the number of the next message to be sent; None without numbers
        self.producer = producer
        #: of each message: delivery mode and persistence
        self.flags = ACKS[acks]
        self._linger = linger
        self._request_bytes = min(request_bytes, connection.protocol.max_frame // 2)
        self._compression = compression
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiting] = []
        #: bytes of messages that wait for their request, with what each costs beside them
        self.waiting_bytes = 0
        self._under_way = 0
        self._failure: NativeError | None = None
        # Why nothing is published any more.
        self._error: NativeError | None = None
        self._has_some = asyncio.Event()
        self._is_full = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._task = asyncio.create_task(self._run())

    async def publish(
        self,
        payload: bytes,
        *,
        routing_key: bytes | str = b"",
        exchange: str = "amq.topic",
        properties: Properties | None = None,
        partition: int | None = None,
        retain: bool = False,
        mandatory: bool = False,
        priority: int = 0,
        key: bytes | None = None,
    ) -> asyncio.Future[None]:
        """Take a message; waits only while too many bytes wait to be sent.

        ``partition`` is that of the streams that get it, modulo how many they have. ``key`` is that
        of ``properties``, for who sets nothing else there.

        The future is done once what must survive is durable, or has the error that refused this
        message. Raises what has ended the publisher, ValueError for fields that do not fit.
        """
        entry = frame(
            self.flags,
            payload,
            routing_key,
            exchange,
            properties,
            partition,
            retain,
            mandatory,
            priority,
            key,
        )
        if self.waiting_bytes >= BUFFER_BYTES:
            await self.room(BUFFER_BYTES)
        if self._error is not None:
            raise self._error
        future: asyncio.Future[None] = self._loop.create_future()
        self.take(entry, future)
        return future

    async def room(self, below: int) -> None:
        """Wait for fewer bytes to wait to be sent. Raises what has ended the publisher."""
        while self.waiting_bytes >= below and self._error is None:
            self._has_room.clear()
            await self._has_room.wait()
        if self._error is not None:
            raise self._error

    def take(self, entry: bytes, future: Confirmation) -> None:
        """Take a message that is framed already, whether there is room or not."""
        if self._error is not None:
            self._refuse([(entry, future)], self._error)
            return
        if not self._waiting:
            self._is_idle.clear()
            self._has_some.set()
        self._waiting.append((entry, future))
        self.waiting_bytes += len(entry) + _OVERHEAD
        if self.waiting_bytes >= self._request_bytes and not self._is_full.is_set():
            self._is_full.set()

    async def flush(self) -> None:
        """Wait until all that was taken is confirmed or refused.

        Raises the first error since the last flush, which the message's future has as well.
        """
        self._is_full.set()
        await self._is_idle.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Take nothing more, without waiting for what was taken: it fails."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end(ConnectionFailed("the publisher is closed"))

    def _end(self, error: NativeError) -> None:
        if self._error is None:
            self._error = error
        waiting, self._waiting = self._waiting, []
        self._refuse(waiting, error)
        self._has_room.set()
        self._is_idle.set()

    async def _run(self) -> None:
        while self._error is None:
            await self._has_some.wait()
            if self._linger and not self._is_full.is_set():
                try:
                    async with asyncio.timeout(self._linger):
                        await self._is_full.wait()
                except TimeoutError:
                    pass
            batch = self._take()
            self._under_way = len(batch)
            try:
                await self._send(batch)
            except asyncio.CancelledError:
                self._refuse(batch, ConnectionFailed("the publisher is closed"))
                raise
            self._under_way = 0
            self._progressed()
            if not self._waiting:
                self._is_idle.set()

    def _progressed(self) -> None:
        if self._on_progress is not None:
            try:
                self._on_progress(self.confirmed, len(self._waiting))
            except Exception:
                logger.exception("a callback of a publisher failed")

    def _take(self) -> list[_Waiting]:
        """What the next request has."""
        count = size = 0
        for entry, _ in self._waiting:
            size += len(entry)
            if count == MAX_MESSAGES or (count and size > self._request_bytes):
                break
            count += 1
        batch = self._waiting[:count]
        del self._waiting[:count]
        self.waiting_bytes -= sum([len(entry) for entry, _ in batch]) + _OVERHEAD * count
        if not self._waiting:
            self._has_some.clear()
        if self.waiting_bytes < self._request_bytes:
            self._is_full.clear()
        self._has_room.set()
        return batch

    async def _send(self, batch: list[_Waiting]) -> None:
        """Publish these, in order; each gets to know."""
        at = 0
        # Where some are refused, what comes next is sent in smaller requests: to send all the rest
        # again after each refusal would take very long.
        most = len(batch)
        while at < len(batch):
            part = batch[at : at + most]
            framed = FramedMessages(len(part), b"".join([entry for entry, _ in part]))
            codec = operations.codec(self._compression, self._connection.protocol.codecs)
            operation = operations.publish(framed, self.producer, codec)
            try:
                if self.flags & AT_LEAST_ONCE:
                    await self._connection.publish(operation)
                else:
                    await self._connection.tell(operation)
            except (Rejected, Unroutable) as error:
                at += self._refused_some(part, error)
            except (ConnectionFailed, Fenced, OutOfSequence) as error:
                self._refuse(batch[at:], error)
                if self.producer is not None or self._connection.error is not None:
                    self._end(error)
                return
            except NativeError as error:
                # Nothing of it was published: whose fault it is shows one by one.
                if len(part) == 1:
                    self._refuse(part, error)
                    at += 1
            else:
                self._confirm(part)
                at += len(part)
                most *= 4
            most = max(most // 2, 1)

    def _refused_some(self, batch: list[_Waiting], error: NativeError) -> int:
        """Some are refused; of how many of the first it is known what became of them."""
        named = error.detail.get("indexes")
        indexes = [each for each in named if isinstance(each, int)] if named else []  # type: ignore[attr-defined]
        if not indexes:
            self._refuse(batch, error)
            return len(batch)
        if self.producer is None:
            refused = set(indexes)
            self._refuse([batch[index] for index in indexes], error)
            self._confirm([each for index, each in enumerate(batch) if index not in refused])
            return len(batch)
        # A numbered request stops there, and that number is the next one.
        first = indexes[0]
        self._confirm(batch[:first])
        self._refuse(batch[first : first + 1], error)
        return first + 1

    def _confirm(self, batch: list[_Waiting]) -> None:
        if self.producer is not None:
            sequence = self.producer.sequence + len(batch)
            self.producer = replace(self.producer, sequence=sequence)
        self.confirmed += len(batch)
        for _, future in batch:
            if not future.done():
                future.set_result(None)

    def _refuse(self, batch: list[_Waiting], error: NativeError) -> None:
        if batch and self._failure is None:
            self._failure = error
        for _, future in batch:
            if not future.done():
                future.set_exception(error)
                # ``flush`` raises it where nobody looks at the future.
                future.exception()


def check_settings(acks: str, linger: float, request_bytes: int, compression: str) -> None:
    """Raises InvalidArgument for what a publisher cannot do."""
    if acks not in ACKS:
        raise InvalidArgument(f"acks is {acks!r}, not one of {', '.join(ACKS)}")
    if linger < 0 or request_bytes < 1:
        raise InvalidArgument("linger is below 0, or request_bytes below 1")
    operations.codec(compression, ())
