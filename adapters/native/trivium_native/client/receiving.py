"""What a subscription of the asyncio client gives: async iterators that are bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from trivium_native.client import operations
from trivium_native.client.connection import ClientConnection
from trivium_native.client.operations import Operation
from trivium_native.client.values import Delivery, LogStart, StoredBatch
from trivium_native.wire.errors import (
    Interrupted,
    InvalidArgument,
    NativeError,
    NotFound,
    OffsetOutOfRange,
    UnknownDelivery,
)

T = TypeVar("T")

#: Messages of a ``pubsub`` subscription that wait to be read.
LIVE_BACKLOG: Final = 4096
#: Seconds that a poll waits for whoever iterates.
POLL_WAIT: Final = 30.0


def check_credit(credit: int) -> None:
    """Raise InvalidArgument where nothing could ever come."""
    if credit < 1:
        raise InvalidArgument("'credit' is less than 1")


class Subscription(Generic[T]):
    """An async iterator over what a subscription gets. Ends with the error that ended it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.number = connection.next_number()
        self._connection = connection
        self._is_subscribed = False
        self._items: deque[T] = deque()
        self._wakeup = asyncio.Event()
        self._error: NativeError | None = None

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._error is not None:
                raise self._error
            self._wakeup.clear()
            await self._wakeup.wait()
        return self._taken(self._items.popleft())

    async def some(self) -> list[T]:
        """All that has come, at least one."""
        found = [await anext(self)]
        while self._items:
            found.append(self._taken(self._items.popleft()))
        return found

    def _taken(self, item: T) -> T:
        """An item leaves the backlog; what is handed out for it."""
        return item

    def request(self) -> Operation[Any]:
        """What asks the broker for it."""
        raise NotImplementedError

    def started(self, found: Any) -> None:
        """The broker has said yes."""
        self._is_subscribed = True

    def interrupted(self) -> None:
        """The connection is lost; it will be made again."""

    async def resume(self) -> None:
        """Subscribe on the new connection."""
        if self._is_subscribed:
            self._connection.renumber(self)
            await self._connection.ask(self.request())

    def put(self, item: T) -> None:
        """An item arrived."""
        self._items.append(item)
        self._wakeup.set()

    def end(self, error: NativeError) -> None:
        """Nothing more will come."""
        if self._error is None:
            self._error = error
        self._wakeup.set()


class LiveMessages(Subscription[Delivery]):
    """Messages of a ``pubsub`` subscription.

    When the reader is ``LIVE_BACKLOG`` messages behind, further ones are dropped and counted: the
    mode promises at most once, and the connection's other answers must not wait.
    """

    dropped: int = 0

    def __init__(
        self, connection: ClientConnection, request: Callable[[int], Operation[None]]
    ) -> None:
        super().__init__(connection)
        self._request = request

    def request(self) -> Operation[None]:
        return self._request(self.number)

    def put(self, item: Delivery) -> None:
        if len(self._items) < LIVE_BACKLOG:
            super().put(item)
        else:
            self.dropped += 1


class Deliveries(Subscription[Delivery]):
    """Messages of a queue. Each is settled by ``ack`` or ``nack``, unless ``no_ack`` was asked.

    What was not settled when the connection was lost comes again, flagged as redelivered. Settling
    it by what came before does nothing, and raises UnknownDelivery where that is waited for.
    """

    def __init__(
        self,
        connection: ClientConnection,
        request: Callable[[int, int], Operation[None]],
        credit: int,
        no_ack: bool,
    ) -> None:
        check_credit(credit)
        super().__init__(connection)
        self._request = request
        self._credit = credit
        self._no_ack = no_ack
        self._used = 0

    def request(self) -> Operation[None]:
        return self._request(self.number, max(1, self._credit - len(self._items)))

    def interrupted(self) -> None:
        self._used = 0
        if not self._no_ack:
            # They come again.
            self._items.clear()

    def _taken(self, item: Delivery) -> Delivery:
        # Nothing is acknowledged, so room in the backlog is what gives new credit.
        if self._no_ack:
            self._used += 1
            if self._used * 2 >= self._credit:
                self._connection.add_credit(self.number, self._used)
                self._used = 0
        return item

    async def ack(self, delivery: Delivery, *, multiple: bool = False, wait: bool = False) -> None:
        """The delivery is done with; ``multiple``: and all before it.

        ``wait`` for the settlement to be durable. Raises UnknownDelivery and Interrupted, if it
        waits.
        """
        operation = self.settlement(delivery, multiple)
        if operation is None:
            if wait:
                raise UnknownDelivery("the connection that it came by was lost: it comes again")
        elif wait:
            await self._connection.run(operation)
        else:
            await self._connection.tell(operation)

    async def nack(
        self, delivery: Delivery, *, requeue: bool = True, multiple: bool = False
    ) -> None:
        """The delivery was not wanted: back to the queue, or away."""
        operation = self.settlement(delivery, multiple, gives_back=True, requeue=requeue)
        if operation is not None:
            await self._connection.tell(operation)

    def settlement(
        self,
        delivery: Delivery,
        multiple: bool,
        *,
        gives_back: bool = False,
        requeue: bool = False,
    ) -> Operation[None] | None:
        """The request that settles it; None where it came by a connection that was lost."""
        if delivery.subscription != self.number:
            return None
        first = 1 if multiple else delivery.tag
        if gives_back:
            return operations.give_back(self.number, first, delivery.tag, requeue)
        return operations.settle(self.number, first, delivery.tag)


class Polled(Deliveries):
    """Messages of a queue that come as they are asked for. Iterating asks for one at a time."""

    # A poll that is under way, whether or not somebody still waits for it: there is one at a time.
    _asking: asyncio.Task[int] | None = None

    async def poll(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        max_wait: float = 0.0,
    ) -> list[Delivery]:
        """What is there, or what comes within so many seconds; nothing, if that is over.

        A poll whose connection is lost is made again on the next one. Raises TooManyRequests while
        as many as the ``credit`` are not settled, NotFound once the queue is gone.
        """
        if self._asking is not None:
            # Whoever asked gave up: what comes of it is for who asks next.
            with suppress(NativeError):
                await self._answered()
        if not self._items:
            self._asking = asyncio.ensure_future(self._ask(max_messages, max_bytes, max_wait))
            self._asking.add_done_callback(_look_at)
            await self._answered()
        most = len(self._items) if max_messages is None else max_messages
        return [self._items.popleft() for _ in range(min(most, len(self._items)))]

    async def _ask(self, max_messages: int | None, max_bytes: int | None, max_wait: float) -> int:
        loop = asyncio.get_running_loop()
        end = loop.time() + max_wait
        while True:
            number = self.number
            left = max(0.0, end - loop.time())
            try:
                asking = operations.poll(number, max_messages, max_bytes, left)
                return await self._connection.run(asking)
            except Interrupted:
                # What the broker took for it is in the queue again.
                continue
            except NotFound:
                if self._error is not None:
                    raise self._error from None
                if number == self.number:
                    raise
                # It was asked under the number of a connection that is lost.

    async def _answered(self) -> None:
        asking = self._asking
        assert asking is not None
        try:
            await asyncio.shield(asking)
        finally:
            if asking.done():
                self._asking = None

    def stop(self) -> None:
        """Nobody asks any more."""
        if self._asking is not None:
            self._asking.cancel()

    async def __anext__(self) -> Delivery:
        while True:
            for found in await self.poll(1, max_wait=POLL_WAIT):
                return found


def _look_at(task: asyncio.Task[int]) -> None:
    """Nobody may be there any more whom its error concerns."""
    if not task.cancelled():
        task.exception()


class Batches(Subscription[StoredBatch]):
    """Record batches of a partition, in order. ``offset`` is where they start.

    No record comes twice, also where the broker has joined batches since it sent them.
    """

    def __init__(
        self,
        connection: ClientConnection,
        request: Callable[[int, int | str | None, str | None, int], Operation[LogStart]],
        offset: int | str | None,
        incarnation: str | None,
        credit: int,
    ) -> None:
        check_credit(credit)
        super().__init__(connection)
        self._request = request
        self.offset = 0
        # What to ask for next, and of which stream of that name.
        self._next = offset
        self._incarnation = incarnation
        self._credit = credit
        self._newest: StoredBatch | None = None
        # What was not handed out yet.
        self._position = 0

    def started(self, found: LogStart) -> None:
        super().started(found)
        self.offset = self._position = found.offset
        self._next = found.offset
        self._incarnation = found.incarnation

    def put(self, item: StoredBatch) -> None:
        self._newest = item
        if item.data:
            super().put(item)
        else:
            self._connection.add_credit(self.number, item.credit)

    def request(self) -> Operation[LogStart]:
        room = max(1, self._credit - sum(item.credit for item in self._items))
        return self._request(self.number, self._next, self._incarnation, room)

    async def resume(self) -> None:
        if self._newest is not None:
            self._next = self._newest.next_offset
        try:
            await super().resume()
        except OffsetOutOfRange as error:
            first = error.detail["first_offset"]
            if not isinstance(first, int) or not isinstance(self._next, int) or first < self._next:
                raise
            # Retention has passed the place, as it may have while there was a connection.
            self._next = first
            self._newest = None
            await super().resume()

    def _taken(self, item: StoredBatch) -> StoredBatch:
        self._connection.add_credit(self.number, item.credit)
        start, self._position = self._position, item.next_offset
        return item if start <= item.base_offset else replace(item, start=start)
