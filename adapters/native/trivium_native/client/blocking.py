"""What lives on a connection, for a program that blocks: subscriptions, members, publishers.

Each is the one of the client for asyncio, in the background; what is awaited there blocks here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, Self, TypeVar

from trivium.messages.message import Properties
from trivium_native.client.background import Background
from trivium_native.client.consumer import GroupBatch, GroupConsumer
from trivium_native.client.publisher import BUFFER_BYTES, Publisher, frame
from trivium_native.client.receiving import Batches, Deliveries, LiveMessages, Polled, Subscription
from trivium_native.client.streaming import Callback
from trivium_native.client.values import (
    AssignedPartition,
    Delivery,
    Membership,
    OffsetCommit,
    StoredBatch,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Bytes of messages that a publisher may hand over at a time.
HANDED_OVER: Final = 1 << 20


class BlockingIterator(Generic[T]):
    """Ends with the error that ended what it reads."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._background.call(self._next())

    def get(self, timeout: float) -> T | None:
        """The next one; None where there is none after so many seconds."""

        async def work() -> T | None:
            try:
                async with asyncio.timeout(timeout):
                    return await self._next()
            except TimeoutError:
                return None

        return self._background.call(work())

    async def _next(self) -> T:
        raise NotImplementedError


class _Messages(BlockingIterator[Delivery]):
    """What has come is taken over at once, and handed out one by one."""

    def __init__(self, background: Background, source: Subscription[Delivery]) -> None:
        super().__init__(background)
        self._source = source
        self._items: deque[Delivery] = deque()

    def __next__(self) -> Delivery:
        if self._items:
            return self._items.popleft()
        return super().__next__()

    def get(self, timeout: float) -> Delivery | None:
        if self._items:
            return self._items.popleft()
        return super().get(timeout)

    async def _next(self) -> Delivery:
        self._items += await self._source.some()
        return self._items.popleft()


class BlockingLiveMessages(_Messages):
    """Messages of a ``pubsub`` subscription; see ``LiveMessages``."""

    def __init__(self, background: Background, messages: LiveMessages) -> None:
        super().__init__(background, messages)
        self._messages = messages

    @property
    def dropped(self) -> int:
        """How many were dropped, since this was too far behind."""
        return self._messages.dropped


class BlockingDeliveries(_Messages):
    """Messages of a queue; see ``Deliveries``."""

    def __init__(self, background: Background, deliveries: Deliveries) -> None:
        super().__init__(background, deliveries)
        self._deliveries = deliveries

    def ack(self, delivery: Delivery, *, multiple: bool = False, wait: bool = False) -> None:
        """The delivery is done with; ``multiple``: and all before it.

        ``wait`` for the settlement to be durable. Raises UnknownDelivery and Interrupted, if it
        waits.
        """
        if wait:
            settled = self._deliveries.ack(delivery, multiple=multiple, wait=True)
            self._background.answer(settled)
            return
        operation = self._deliveries.settlement(delivery, multiple)
        if operation is not None:
            self._background.tell(operation)

    def nack(self, delivery: Delivery, *, requeue: bool = True, multiple: bool = False) -> None:
        """The delivery was not wanted: back to the queue, or away."""
        operation = self._deliveries.settlement(
            delivery, multiple, gives_back=True, requeue=requeue
        )
        if operation is not None:
            self._background.tell(operation)


class BlockingPolled(BlockingDeliveries):
    """Messages of a queue that come as they are asked for; see ``Polled``."""

    def __init__(self, background: Background, polled: Polled) -> None:
        super().__init__(background, polled)
        self._polled = polled

    def poll(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        max_wait: float = 0.0,
    ) -> list[Delivery]:
        """What is there, or what comes within so many seconds; raises as ``Polled.poll`` does."""
        return self._background.answer(
            self._polled.poll(max_messages, max_bytes=max_bytes, max_wait=max_wait), max_wait
        )

    async def _next(self) -> Delivery:
        return await anext(self._polled)


class BlockingBatches(BlockingIterator[StoredBatch]):
    """Record batches of a partition, in order; see ``Batches``."""

    def __init__(self, background: Background, batches: Batches) -> None:
        super().__init__(background)
        self._batches = batches
        #: where they start
        self.offset = batches.offset

    async def _next(self) -> StoredBatch:
        return await anext(self._batches)


class BlockingGroupConsumer(BlockingIterator[GroupBatch]):
    """The batches of all assigned partitions; see ``GroupConsumer``."""

    def __init__(self, background: Background, consumer: GroupConsumer) -> None:
        super().__init__(background)
        self._consumer = consumer

    async def _next(self) -> GroupBatch:
        return await anext(self._consumer)

    @property
    def membership(self) -> Membership:
        """Who it is, as of the newest generation."""
        return self._consumer.membership

    @property
    def members(self) -> Sequence[str]:
        """Names of the group's members when this one joined last."""
        return self._consumer.members

    @property
    def assigned(self) -> list[AssignedPartition]:
        """The partitions that this member reads."""
        return self._background.ask(lambda: self._consumer.assigned)

    def seek(self, stream: str, partition: int, offset: int | str) -> None:
        """Go on reading an assigned partition from an offset, or ``first``, ``last``, ``next``.

        ``commit`` commits from there on. Raises NotFound for a partition that is not assigned,
        OffsetOutOfRange, after which it goes on where it was.
        """
        self._background.answer(self._consumer.seek(stream, partition, offset))

    def pause(self, stream: str, partition: int) -> None:
        """Read no more of an assigned partition, which stays this member's. Raises NotFound."""
        self._background.ask(lambda: self._consumer.pause(stream, partition))

    def resume(self, stream: str, partition: int) -> None:
        """Go on with a partition that is paused, where it was. Raises NotFound."""
        self._background.ask(lambda: self._consumer.resume(stream, partition))

    def lag(self) -> dict[tuple[str, int], int]:
        """How many offsets are ahead of what was handed out, by stream and assigned partition."""
        return self._background.answer(self._consumer.lag())

    def offsets(self) -> list[OffsetCommit]:
        """What was handed out and is not committed, for a transaction. Then call ``committed``."""
        return self._background.ask(self._consumer.offsets)

    def committed(self, commits: Sequence[OffsetCommit]) -> None:
        """These were committed by a transaction."""
        self._background.ask(lambda: self._consumer.committed(commits))

    def commit(self, metadata: str | None = None) -> None:
        """Commit everything that was handed out; returns once it is durable.

        ``metadata`` is kept with each offset. Raises what ``GroupConsumer.commit`` does.
        """
        self._background.answer(self._consumer.commit(metadata))


def in_thread(
    callback: Callback | None,
) -> Callable[[list[AssignedPartition]], Coroutine[Any, Any, None]] | None:
    """A callback that may block, for the client for asyncio."""
    if callback is None:
        return None

    async def call(partitions: list[AssignedPartition]) -> None:
        await asyncio.to_thread(callback, partitions)

    return call


class Confirmation:
    """Whether a message is confirmed, asked as of a future of ``concurrent.futures``.

    Of those, tens of thousands would keep the garbage collector busier than the publisher.
    """

    __slots__ = ("_callbacks", "_error", "_is_done", "_lock")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._is_done = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Confirmation], object]] | None = None

    def done(self) -> bool:
        """Whether it is confirmed or refused."""
        return self._is_done

    def result(self, timeout: float | None = None) -> None:
        """Wait until it is confirmed. Raises what refused it, TimeoutError after so long."""
        error = self.exception(timeout)
        if error is not None:
            raise error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait; what refused it, None if nothing did. Raises TimeoutError after so long."""
        if not self._is_done:
            done = threading.Event()
            self.add_done_callback(lambda _: done.set())
            if not done.wait(timeout):
                raise TimeoutError
        return self._error

    def add_done_callback(self, callback: Callable[[Confirmation], object]) -> None:
        """Have it called once this is done: by another thread, or at once."""
        with self._lock:
            if not self._is_done:
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        callback(self)

    def set_result(self, result: None) -> None:
        """It is confirmed."""
        self._end(None)

    def set_exception(self, error: BaseException | None) -> None:
        """It is refused."""
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = error
            self._is_done = True
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:
                logger.exception("a callback of a confirmation failed")


class BlockingPublisher:
    """Takes messages one by one; see ``Publisher``. Threads may share it."""

    def __init__(self, background: Background, publisher: Publisher) -> None:
        self._background = background
        self._publisher = publisher
        self._flags = publisher.flags
        # What the loop has not taken yet, and its bytes; the loop is called once for all of it.
        self._handed: deque[tuple[bytes, Confirmation]] = deque()
        self._lock = threading.Lock()
        self._bytes = 0
        self._is_called = False

    @property
    def confirmed(self) -> int:
        """Messages that were confirmed."""
        return self._publisher.confirmed

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that wait for their request, with what each costs beside them."""
        return self._bytes + self._publisher.waiting_bytes

    def publish(
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
    ) -> Confirmation:
        """Take a message; waits only while too many bytes wait to be sent.

        ``partition`` is that of the streams that get it, modulo how many they have. ``key`` is that
        of ``properties``, for who sets nothing else there.

        The result is done once what must survive is durable, or has the error that refused this
        message. Raises what has ended the publisher, ValueError for fields that do not fit.
        """
        entry = frame(
            self._flags,
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
        confirmation = Confirmation(self._lock)
        self._handed.append((entry, confirmation))
        self._bytes += len(entry)
        if self._bytes >= HANDED_OVER or self._publisher.waiting_bytes >= BUFFER_BYTES:
            self._background.call(self._room())
        elif not self._is_called:
            self._is_called = True
            self._background.schedule(self._hand_over)
        return confirmation

    def flush(self) -> None:
        """Wait until all that was taken is confirmed or refused.

        Raises the first error since the last flush, which the message's confirmation has as well.
        """
        self._background.call(self._flush())

    def _hand_over(self) -> None:
        """On the loop: take what there is."""
        self._is_called = False
        self._bytes = 0
        while self._handed:
            self._publisher.take(*self._handed.popleft())

    async def _room(self) -> None:
        self._hand_over()
        # Half of it is room enough for a while: to ask each time would take longer than to send.
        full = self._publisher.waiting_bytes >= BUFFER_BYTES
        await self._publisher.room(BUFFER_BYTES // 2 if full else BUFFER_BYTES)

    async def _flush(self) -> None:
        self._hand_over()
        await self._publisher.flush()
