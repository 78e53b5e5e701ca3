"""`trivium://` for loads, by the project's own client.

At QoS 2 of a load that resumes, publishers are idempotent producers: what was not confirmed is sent
again in the next connection, under the same numbers. The consumers of a stream are a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final, TypeVar

from trivium.cli.clients import ClientError, Server, UsageError
from trivium.cli.roads import PREFETCH, Consumer, Plan, Publisher, Watcher
from trivium.common.client_tls import TlsError
from trivium_native.client import client as native
from trivium_native.client import operations
from trivium_native.client.client import connection_of
from trivium_native.client.command import target_of
from trivium_native.client.connection import ClientConnection
from trivium_native.client.consumer import GroupConsumer
from trivium_native.client.operations import Operation
from trivium_native.client.transaction import Transaction
from trivium_native.client.url import Target
from trivium_native.client.values import Delivery, Producer, Publication
from trivium_native.wire.errors import NativeError, Rejected

#: Milliseconds after which a queue is gone whose load could not delete it.
EXPIRES_MS: Final = 600_000

T = TypeVar("T")


def open_road(server: Server, plan: Plan) -> NativeRoad:
    """The road of a URL."""
    return NativeRoad(server, plan)


class NativeRoad:
    """A queue that the consumers share, or a stream that they read as a group."""

    listener = "native"
    lasting: tuple[int, ...] = (1, 2)
    lasting_streams: tuple[int, ...] = (1, 2)
    copies = False

    def __init__(self, server: Server, plan: Plan) -> None:
        self._target = target_of(server)
        self._plan = plan
        self._unconfirmed: dict[int, dict[int, list[Publication]]] = {}
        self._begins: dict[int, int] = {}
        #: of a stream: up to which offset each partition was read, by whichever member
        self._read: dict[int, int] = {}

    async def prepare(self) -> None:
        wire = await NativeWire.connect(self._target)
        if self._plan.is_stream:
            partitions = max(self._plan.consumers, 1)
            await wire.attempt(wire.client.declare_stream(self._plan.name, partitions))
        else:
            await self._declare_queue(wire)
        await wire.close()

    async def _declare_queue(self, wire: NativeWire) -> None:
        durable = self._plan.qos > 0 and not self._plan.is_transient
        # One that nobody consumes would be gone in the middle of a long load.
        arguments = {"x-expires": EXPIRES_MS} if self._plan.consumers else None
        await wire.attempt(
            wire.client.declare_queue(self._plan.name, durable=durable, arguments=arguments)
        )

    async def clean_up(self) -> None:
        wire = await NativeWire.connect(self._target)
        kinds = ("group", "stream") if self._plan.is_stream else ("queue",)
        for kind in kinds if self._plan.consumers else kinds[-1:]:
            await wire.attempt(wire.client.delete(kind, self._plan.name))
        await wire.close()

    async def publisher(self, index: int, watcher: Watcher) -> Publisher:
        wire = await NativeWire.connect(self._target)
        producer = None
        unconfirmed: dict[int, list[Publication]] = {}
        if self._plan.qos == 2 and self._plan.resumes:
            name = f"{self._plan.name}-p{index}"
            producer = await wire.attempt(wire.client.open_producer(name))
            begin = self._begins.setdefault(index, producer.sequence)
            producer = replace(producer, sequence=begin)
            unconfirmed = self._unconfirmed.setdefault(index, {})
        found = NativePublisher(wire, watcher, self._plan, producer, unconfirmed)
        found.resume()
        return found

    async def consumer(self, index: int, watcher: Watcher) -> Consumer:
        wire = await NativeWire.connect(self._target)
        if self._plan.is_stream:
            return await NativeMember.start(wire, watcher, self._plan.name, index, self._read)
        return await NativeConsumer.start(wire, watcher, self._plan)


class NativeWire:
    """A client that is open until it is closed."""

    def __init__(self, client: native.Client, stack: AsyncExitStack) -> None:
        self.client = client
        self._stack = stack

    @classmethod
    async def connect(cls, target: Target) -> NativeWire:
        """Raises ClientError, UsageError."""
        stack = AsyncExitStack()
        try:
            client = await stack.enter_async_context(native.connect(target, reconnect=False))
        except TlsError as error:
            raise UsageError(str(error)) from None
        except NativeError as error:
            raise ClientError(error.text) from None
        return cls(client, stack)

    async def attempt(self, request: Awaitable[T]) -> T:
        """The result of a request; what fails closes the client. Raises ClientError."""
        try:
            return await request
        except NativeError as error:
            await self.close()
            raise ClientError(error.text) from None

    async def close(self) -> None:
        try:
            await self._stack.aclose()
        except NativeError:
            pass


class NativePublisher:
    """Publishes through the default exchange, all of a flush, or each transaction, in a request."""

    is_writable = True

    def __init__(
        self,
        wire: NativeWire,
        watcher: Watcher,
        plan: Plan,
        producer: Producer | None,
        unconfirmed: dict[int, list[Publication]],
    ) -> None:
        self._wire = wire
        self._watcher = watcher
        self._plan = plan
        self._producer = producer
        #: requests that are not confirmed, by the number of their first message, in their order
        self._unconfirmed = unconfirmed
        self._first = 0
        self._batch: list[Publication] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    def publish(self, number: int, payload: bytes) -> None:
        if not self._batch:
            self._first = number
        self._batch.append(
            Publication(
                payload=payload,
                routing_key=self._plan.name,
                exchange="",
                mode=self._plan.qos,
                persistent=False if self._plan.is_transient else None,
            )
        )

    def flush(self) -> None:
        if not self._batch:
            return
        batch, self._batch = self._batch, []
        if self._producer is not None:
            self._unconfirmed[self._first] = batch
        size = self._plan.transaction or len(batch)
        for start in range(0, len(batch), size):
            self._send(self._first + start, batch[start : start + size])

    def resume(self) -> None:
        """Send again what is not confirmed."""
        for first, batch in list(self._unconfirmed.items()):
            self._send(first, batch)

    def _send(self, first: int, batch: list[Publication]) -> None:
        task = asyncio.create_task(self._request(first, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(self, first: int, batch: list[Publication]) -> None:
        producer = self._producer
        if producer is not None:
            producer = replace(producer, sequence=producer.sequence + first)
        tell = self._watcher.acknowledged
        try:
            await self._publish(batch, producer)
        except Rejected:
            tell = self._watcher.refused
        except NativeError as error:
            if not self._is_over:
                self._is_over = True
                self._watcher.lost(error.text)
            return
        self._unconfirmed.pop(first, None)
        for number in range(first, first + len(batch)):
            tell(number)

    async def _publish(self, batch: list[Publication], producer: Producer | None) -> None:
        if self._plan.transaction:
            transaction = Transaction()
            transaction.publish(*batch)
            await self._wire.client.commit_transaction(transaction)
        else:
            await self._wire.client.publish_batch(batch, producer)

    async def close(self) -> None:
        self._is_over = True
        await self._wire.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class NativeConsumer:
    """Consumes the queue, and acknowledges once a turn."""

    def __init__(self, wire: NativeWire, watcher: Watcher) -> None:
        self._wire = wire
        self._watcher = watcher
        self._connection: ClientConnection = connection_of(wire.client)
        self.number = self._connection.next_number()
        self._stack = AsyncExitStack()
        self._queue = ""
        self._tag = 0
        self._taken = 0
        self._is_scheduled = False
        self._is_settled = False
        self._is_over = False

    @classmethod
    async def start(cls, wire: NativeWire, watcher: Watcher, plan: Plan) -> NativeConsumer:
        """A consumer that is subscribed. Raises ClientError."""
        consumer = cls(wire, watcher)
        consumer._is_settled = plan.qos == 0
        consumer._queue = plan.name
        await wire.attempt(
            consumer._stack.enter_async_context(consumer._connection.subscribed(consumer))
        )
        return consumer

    def request(self) -> Operation[None]:
        return operations.subscribe_queue(
            self.number, self._queue, PREFETCH, 0, self._is_settled, False
        )

    def started(self, found: None) -> None:
        """The broker has said yes."""

    def interrupted(self) -> None:
        """Its connection is not made again."""

    async def resume(self) -> None:
        """Its connection is not made again."""

    def put(self, item: Delivery) -> None:
        self._watcher.received(item.payload, item.is_redelivered)
        self._tag = item.tag
        self._taken += 1
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._is_scheduled = False
        taken, self._taken = self._taken, 0
        if self._connection.error is not None:
            return
        if self._is_settled:
            self._connection.add_credit(self.number, taken)
        else:
            self._connection.send(operations.settle(self.number, 1, self._tag), False)

    def end(self, error: NativeError) -> None:
        if not self._is_over:
            self._is_over = True
            self._watcher.lost(error.text)

    async def close(self) -> None:
        self._is_over = True
        try:
            await self._stack.aclose()
        except NativeError:
            pass
        await self._wire.close()


class NativeMember:
    """A member of the group that reads the stream; commits each batch."""

    def __init__(self, wire: NativeWire, watcher: Watcher, read: dict[int, int]) -> None:
        self._wire = wire
        self._watcher = watcher
        self._read = read
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, wire: NativeWire, watcher: Watcher, name: str, index: int, read: dict[int, int]
    ) -> NativeMember:
        """One that has joined, in the place of an earlier one of its index. Raises ClientError."""
        member = cls(wire, watcher, read)
        joining = wire.client.join(name, [name], member=f"{name}-c{index}")
        consumer = await wire.attempt(member._stack.enter_async_context(joining))
        member._task = asyncio.create_task(member._read_on(consumer))
        return member

    async def _read_on(self, consumer: GroupConsumer) -> None:
        try:
            async for batch in consumer:
                for record in batch.records():
                    # What was not committed is read again, maybe by another member.
                    read = self._read.get(batch.partition, -1)
                    self._watcher.received(record.payload, record.offset <= read)
                    self._read[batch.partition] = max(read, record.offset)
                await consumer.commit()
        except NativeError as error:
            self._watcher.lost(error.text)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._stack.aclose()
        except NativeError:
            pass
        await self._wire.close()
