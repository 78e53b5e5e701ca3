"""What a subscription of the asyncio client gives: async iterators that are bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

from trivium_native.client import operations
from trivium_native.client.connection import ClientConnection
from trivium_native.client.values import Delivery, StoredBatch
from trivium_native.wire.errors import NativeError

T = TypeVar("T")

#: Messages of a ``pubsub`` subscription that wait to be read.
LIVE_BACKLOG: Final = 4096


class Subscription(Generic[T]):
    """An async iterator over what a subscription gets. Ends with the error that ended it."""

    def __init__(self, connection: ClientConnection, number: int) -> None:
        self.number = number
        self._connection = connection
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
        item = self._items.popleft()
        self._taken(item)
        return item

    def _taken(self, item: T) -> None:
        """An item leaves the backlog."""

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

    def put(self, item: Delivery) -> None:
        if len(self._items) < LIVE_BACKLOG:
            super().put(item)
        else:
            self.dropped += 1


class Deliveries(Subscription[Delivery]):
    """Messages of a queue. Each is settled by ``ack`` or ``nack``, unless ``no_ack`` was asked."""

    def __init__(
        self, connection: ClientConnection, number: int, credit: int, no_ack: bool
    ) -> None:
        super().__init__(connection, number)
        self._credit = credit
        self._no_ack = no_ack
        self._used = 0

    def _taken(self, item: Delivery) -> None:
        # Nothing is acknowledged, so room in the backlog is what gives new credit.
        if self._no_ack:
            self._used += 1
            if self._used * 2 >= self._credit:
                self._connection.add_credit(self.number, self._used)
                self._used = 0

    async def ack(self, delivery: Delivery, *, multiple: bool = False, wait: bool = False) -> None:
        """The delivery is done with; ``multiple``: and all before it.

        ``wait`` for the settlement to be durable. Raises UnknownDelivery, if it waits.
        """
        first = 1 if multiple else delivery.tag
        operation = operations.settle(self.number, first, delivery.tag)
        if wait:
            await self._connection.run(operation)
        else:
            await self._connection.tell(operation)

    async def nack(
        self, delivery: Delivery, *, requeue: bool = True, multiple: bool = False
    ) -> None:
        """The delivery was not wanted: back to the queue, or away."""
        first = 1 if multiple else delivery.tag
        operation = operations.give_back(self.number, first, delivery.tag, requeue)
        await self._connection.tell(operation)


class Batches(Subscription[StoredBatch]):
    """Record batches of a partition, in order. ``offset`` is where they start."""

    offset: int = 0

    def _taken(self, item: StoredBatch) -> None:
        self._connection.add_credit(self.number, len(item.data))
