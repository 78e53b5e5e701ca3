"""The client for asyncio.

::

    async with connect("trivium://user:password@host/vhost") as client:
        await client.publish(b"21.5", routing_key="sensors.kitchen.temperature")
        async with client.consume("jobs", credit=100) as deliveries:
            async for delivery in deliveries:
                ...
                await deliveries.ack(delivery)

Publishing waits while the broker's confirmations, or the socket, are behind; subscriptions are
bounded by their credit. A cancelled call leaves the connection usable: its answer is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

from trivium.message import AT_LEAST_ONCE, AT_MOST_ONCE, Properties
from trivium_native import operations
from trivium_native.errors import (
    ConnectionFailed,
    NativeError,
    NotFound,
    RemoteProtocolError,
    TimedOut,
)
from trivium_native.operations import Operation
from trivium_native.protocol import (
    BatchArrived,
    Cancelled,
    ClientProtocol,
    Closed,
    Event,
    PublishingPaused,
    Ready,
    Reply,
)
from trivium_native.url import Target, parse_url
from trivium_native.values import (
    Delivery,
    Fetched,
    GroupOffset,
    Producer,
    Publication,
    QueueInfo,
    StoredBatch,
    StreamInfo,
)

T = TypeVar("T")

#: Seconds to connect and authenticate.
CONNECT_TIMEOUT: Final = 10.0
#: Seconds between signs of life; after two without an answer the broker counts as gone.
DEFAULT_HEARTBEAT: Final = 30
#: Publish requests that may wait for their confirmation; more wait to be sent.
DEFAULT_WINDOW: Final = 1024
#: Messages of a ``pubsub`` subscription that wait to be read.
LIVE_BACKLOG: Final = 4096
#: Bytes of batches that a ``log`` subscription may be ahead of its reader.
LOG_CREDIT: Final = 8 << 20
#: Bytes that may wait in the socket before publishing waits.
_WRITE_HIGH_WATER: Final = 1 << 20


@asynccontextmanager
async def connect(
    url: str | Target,
    *,
    name: str = "",
    heartbeat: int = DEFAULT_HEARTBEAT,
    window: int = DEFAULT_WINDOW,
    timeout: float = CONNECT_TIMEOUT,
) -> AsyncIterator[Client]:
    """A connected client, closed at the end of the block.

    ``heartbeat`` is in seconds, 0 for none. Raises ValueError for a bad URL, ConnectionFailed,
    AuthenticationFailed, NotFound (vhost), TimedOut.
    """
    target = parse_url(url) if isinstance(url, str) else url
    client = Client(ClientProtocol(target, name=name, heartbeat=heartbeat), window)
    try:
        async with asyncio.timeout(timeout):
            await client._open(target)
    except TimeoutError:
        client._fail(TimedOut(f"no answer from {target.host}:{target.port} in time"))
        raise TimedOut(f"no answer from {target.host}:{target.port} in time") from None
    except BaseException:
        client._fail(ConnectionFailed("connecting was given up"))
        raise
    try:
        yield client
    finally:
        await client._close()


class _Link(asyncio.Protocol):
    """The socket."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client._received(data)

    def connection_lost(self, error: Exception | None) -> None:
        reason = "the broker closed the connection" if error is None else str(error)
        self._client._fail(ConnectionFailed(reason))

    def pause_writing(self) -> None:
        self._client._can_write.clear()

    def resume_writing(self) -> None:
        self._client._can_write.set()


class Subscription(Generic[T]):
    """An async iterator over what a subscription gets. Ends with the error that ended it."""

    def __init__(self, client: Client, number: int) -> None:
        self.number = number
        self._client = client
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

    def _put(self, item: T) -> None:
        self._items.append(item)
        self._wakeup.set()

    def _end(self, error: NativeError) -> None:
        if self._error is None:
            self._error = error
        self._wakeup.set()


class LiveMessages(Subscription[Delivery]):
    """Messages of a ``pubsub`` subscription.

    When the reader is ``LIVE_BACKLOG`` messages behind, further ones are dropped and counted: the
    mode promises at most once, and the connection's other answers must not wait.
    """

    dropped: int = 0

    def _put(self, item: Delivery) -> None:
        if len(self._items) < LIVE_BACKLOG:
            super()._put(item)
        else:
            self.dropped += 1


class Deliveries(Subscription[Delivery]):
    """Messages of a queue. Each is settled by ``ack`` or ``nack``, unless ``no_ack`` was asked."""

    def __init__(self, client: Client, number: int, credit: int, no_ack: bool) -> None:
        super().__init__(client, number)
        self._credit = credit
        self._no_ack = no_ack
        self._used = 0

    def _taken(self, item: Delivery) -> None:
        # Nothing is acknowledged, so room in the backlog is what gives new credit.
        if self._no_ack:
            self._used += 1
            if self._used * 2 >= self._credit:
                self._client._add_credit(self.number, self._used)
                self._used = 0

    async def ack(self, delivery: Delivery, *, multiple: bool = False, wait: bool = False) -> None:
        """The delivery is done with; ``multiple``: and all before it.

        ``wait`` for the settlement to be durable. Raises UnknownDelivery, if it waits.
        """
        first = 1 if multiple else delivery.tag
        operation = operations.settle(self.number, first, delivery.tag)
        await self._client._settle(operation, wait)

    async def nack(
        self, delivery: Delivery, *, requeue: bool = True, multiple: bool = False
    ) -> None:
        """The delivery was not wanted: back to the queue, or away."""
        first = 1 if multiple else delivery.tag
        operation = operations.give_back(self.number, first, delivery.tag, requeue)
        await self._client._settle(operation, False)


class Batches(Subscription[StoredBatch]):
    """Record batches of a partition, in order. ``offset`` is where they start."""

    offset: int = 0

    def _taken(self, item: StoredBatch) -> None:
        self._client._add_credit(self.number, len(item.data))


class Client:
    """See ``connect``. Every method raises the errors of ``trivium_native.errors``."""

    def __init__(self, protocol: ClientProtocol, window: int) -> None:
        self._protocol = protocol
        self._transport: asyncio.Transport
        self._ready = asyncio.get_running_loop().create_future()
        self._requests: dict[int, asyncio.Future[Reply]] = {}
        self._subscriptions: dict[int, Subscription[Any]] = {}
        self._next_subscription = 0
        self._error: NativeError | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._can_publish = asyncio.Event()
        self._can_publish.set()
        self._window = asyncio.Semaphore(window)
        self._is_flush_scheduled = False
        self._heartbeat: asyncio.Task[None] | None = None
        self._has_received = False

    # Publishing

    async def publish(
        self,
        payload: bytes,
        *,
        routing_key: bytes | str = b"",
        exchange: str = "amq.topic",
        properties: Properties | None = None,
        mode: int = AT_LEAST_ONCE,
        persistent: bool | None = None,
        retain: bool = False,
        mandatory: bool = False,
        priority: int = 0,
    ) -> None:
        """Publish one message; see ``publish_batch``."""
        publication = Publication(
            payload=payload,
            routing_key=routing_key,
            exchange=exchange,
            properties=properties,
            mode=mode,
            persistent=persistent,
            retain=retain,
            mandatory=mandatory,
            priority=priority,
        )
        await self.publish_batch([publication])

    async def publish_batch(
        self, publications: Sequence[Publication], producer: Producer | None = None
    ) -> None:
        """Publish in one request; returns once what must survive is durable.

        Messages that are all at-most-once are sent without waiting for an answer. With a
        ``producer`` (see ``open_producer``) messages that the broker has already, by their numbers,
        are not published again. Raises NotFound, Rejected, Unroutable, Fenced, OutOfSequence.
        """
        if not publications:
            return
        operation = operations.publish(publications, producer)
        await self._can_publish.wait()
        if producer is None and all(
            publication.mode == AT_MOST_ONCE and not publication.mandatory
            for publication in publications
        ):
            await self._can_write.wait()
            self._send(operation, wants_reply=False)
            return
        async with self._window:
            await self._run(operation)

    async def open_producer(self, name: str) -> Producer:
        """Start a new epoch of an idempotent producer; whoever published in an older one is fenced.

        The result says at which number its messages go on.
        """
        return await self._run(operations.open_producer(name))

    # Receiving

    @asynccontextmanager
    async def subscribe(
        self, pattern: bytes | str = b"#", *, exchange: str = "amq.topic", no_local: bool = False
    ) -> AsyncIterator[LiveMessages]:
        """Mode ``pubsub``: what is published to an exchange while the block lasts, at most once.

        ``pattern`` is a binding key (``*`` is one word, ``#`` any number of words).
        """
        messages = LiveMessages(self, self._next_number())
        operation = operations.subscribe_live(messages.number, exchange, _bytes(pattern), no_local)
        async with self._subscribed(messages, operation):
            yield messages

    @asynccontextmanager
    async def consume(
        self,
        queue: str,
        *,
        credit: int = 256,
        priority: int = 0,
        no_ack: bool = False,
        exclusive: bool = False,
    ) -> AsyncIterator[Deliveries]:
        """Mode ``queue``: at most ``credit`` messages are unsettled at a time.

        What is not settled at the end of the block goes back to the queue. With ``no_ack`` a
        message is settled by being sent.
        """
        deliveries = Deliveries(self, self._next_number(), credit, no_ack)
        operation = operations.subscribe_queue(
            deliveries.number, queue, credit, priority, no_ack, exclusive
        )
        async with self._subscribed(deliveries, operation):
            yield deliveries

    @asynccontextmanager
    async def read(
        self,
        stream: str,
        partition: int = 0,
        offset: int | str = "first",
        *,
        incarnation: str | None = None,
        credit: int = LOG_CREDIT,
    ) -> AsyncIterator[Batches]:
        """Mode ``log``: record batches from an offset (or ``first``, or ``next``) on.

        The first batch may begin before the offset. ``credit`` is how many bytes the broker may be
        ahead of the reader.
        """
        batches = Batches(self, self._next_number())
        operation = operations.subscribe_log(
            batches.number, stream, partition, offset, credit, incarnation
        )
        async with self._subscribed(batches, operation) as start:
            batches.offset = start
            yield batches

    # Streams and groups

    async def metadata(self, streams: Sequence[str] | None = None) -> list[StreamInfo]:
        """The named streams, or all. Raises NotFound."""
        return await self._run(operations.metadata(streams))

    async def fetch(
        self,
        stream: str,
        partition: int,
        offset: int,
        *,
        incarnation: str | None = None,
        max_bytes: int | None = None,
        min_bytes: int = 1,
        max_wait: float = 0.0,
    ) -> Fetched:
        """Whole record batches from the one that holds ``offset`` on.

        Waits up to ``max_wait`` seconds for ``min_bytes``; the result may be empty. Raises
        NotFound, OffsetOutOfRange, StreamChanged.
        """
        return await self._run(
            operations.fetch(
                stream,
                partition,
                offset,
                incarnation=incarnation,
                max_bytes=max_bytes,
                min_bytes=min_bytes,
                max_wait=max_wait,
            )
        )

    async def offset_for_timestamp(self, stream: str, partition: int, timestamp: int) -> int:
        """The first record that arrived at or after a time in milliseconds since the epoch."""
        return await self._run(operations.offset_for_timestamp(stream, partition, timestamp))

    async def commit(
        self,
        group: str,
        stream: str,
        offsets: Mapping[int, int],
        *,
        incarnation: str | None = None,
    ) -> None:
        """Commit a group's next offsets by partition; returns once they are durable."""
        await self._run(operations.commit(group, stream, offsets, incarnation))

    async def committed(
        self, group: str, stream: str, *, incarnation: str | None = None
    ) -> list[GroupOffset]:
        """How far a group is, for all partitions in order."""
        return await self._run(operations.committed(group, stream, incarnation))

    # Topology

    async def declare_exchange(
        self,
        name: str,
        type_: str = "topic",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """An exchange with these properties, made when it is new. Raises PreconditionFailed."""
        await self._run(
            operations.declare_exchange(
                name,
                type_,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments,
            )
        )

    async def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> QueueInfo:
        """A queue with these properties, made when it is new; an empty name makes one up."""
        return await self._run(
            operations.declare_queue(
                name,
                durable=durable,
                auto_delete=auto_delete,
                exclusive=exclusive,
                arguments=arguments,
            )
        )

    async def declare_stream(
        self, name: str, partitions: int = 1, arguments: Mapping[str, object] | None = None
    ) -> str:
        """A stream with this many partitions, made when it is new; its incarnation."""
        return await self._run(operations.declare_stream(name, partitions, arguments))

    async def delete(
        self, kind: str, name: str, *, if_unused: bool | None = None, if_empty: bool | None = None
    ) -> None:
        """Delete an ``exchange``, ``queue``, ``stream`` or ``group``."""
        await self._run(operations.delete(kind, name, if_unused, if_empty))

    async def bind(
        self,
        kind: str,
        name: str,
        *,
        exchange: str = "amq.topic",
        pattern: bytes | str = b"",
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Bind a ``queue``, ``stream`` or ``exchange`` to an exchange."""
        await self._run(operations.bind(kind, name, exchange, _bytes(pattern), arguments))

    async def unbind(
        self,
        kind: str,
        name: str,
        *,
        exchange: str = "amq.topic",
        pattern: bytes | str = b"",
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Take a binding back."""
        await self._run(operations.bind(kind, name, exchange, _bytes(pattern), arguments, False))

    async def purge(self, queue: str) -> int:
        """Remove all ready messages of a queue; how many there were."""
        return await self._run(operations.purge(queue))

    # Requests

    async def _run(self, operation: Operation[T]) -> T:
        await self._can_write.wait()
        correlation = self._send(operation, wants_reply=True)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._requests[correlation] = future
        try:
            reply = await future
        finally:
            self._requests.pop(correlation, None)
        if reply.error is not None:
            raise reply.error
        assert reply.frame is not None
        return operation.result(reply.frame)

    async def _settle(self, operation: Operation[None], wait: bool) -> None:
        if wait:
            await self._run(operation)
        else:
            await self._can_write.wait()
            self._send(operation, wants_reply=False)

    def _send(self, operation: Operation[Any], wants_reply: bool) -> int:
        if self._error is not None:
            raise self._error
        correlation = self._protocol.send(operation, wants_reply)
        self._schedule_flush()
        return correlation

    def _add_credit(self, subscription: int, amount: int) -> None:
        if self._error is None and subscription in self._subscriptions:
            self._protocol.add_credit(subscription, amount)
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        """One write per turn of the loop, whatever is sent in it."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        output = self._protocol.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(output)

    def _next_number(self) -> int:
        self._next_subscription += 1
        return self._next_subscription

    @asynccontextmanager
    async def _subscribed(
        self, subscription: Subscription[Any], operation: Operation[T]
    ) -> AsyncIterator[T]:
        self._subscriptions[subscription.number] = subscription
        is_known = True
        try:
            try:
                started = await self._run(operation)
            except NativeError:
                is_known = False
                raise
            yield started
        finally:
            self._subscriptions.pop(subscription.number, None)
            # Without waiting, so that it also works while this task is being cancelled.
            if is_known and self._error is None:
                self._send(operations.unsubscribe(subscription.number), wants_reply=False)

    # The socket

    async def _open(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_connection(
                lambda: _Link(self), target.host, target.port
            )
        except OSError as error:
            raise ConnectionFailed(
                f"cannot connect to {target.host}:{target.port}: {error}"
            ) from None
        self._transport = transport
        transport.set_write_buffer_limits(_WRITE_HIGH_WATER)
        self._protocol.start()
        self._flush()
        heartbeat: int = await self._ready
        if heartbeat:
            self._heartbeat = asyncio.create_task(self._beat(heartbeat))

    async def _beat(self, interval: int) -> None:
        missed = 0
        while self._error is None:
            self._protocol.ping()
            self._schedule_flush()
            self._has_received = False
            await asyncio.sleep(interval)
            missed = 0 if self._has_received else missed + 1
            if missed == 2:
                self._fail(ConnectionFailed("the broker shows no sign of life"))

    def _received(self, data: bytes) -> None:
        self._has_received = True
        if self._error is not None:
            return
        try:
            events = self._protocol.receive(data)
        except RemoteProtocolError as error:
            self._fail(error)
            return
        for event in events:
            self._happened(event)

    def _happened(self, event: Event) -> None:
        if isinstance(event, Reply):
            future = self._requests.get(event.correlation)
            if future is not None and not future.done():
                future.set_result(event)
        elif isinstance(event, Delivery):
            subscription = self._subscriptions.get(event.subscription)
            if subscription is not None:
                subscription._put(event)
        elif isinstance(event, BatchArrived):
            subscription = self._subscriptions.get(event.subscription)
            if subscription is not None:
                subscription._put(event.batch)
        elif isinstance(event, Cancelled):
            subscription = self._subscriptions.pop(event.subscription, None)
            if subscription is not None:
                subscription._end(NotFound(event.reason))
        elif isinstance(event, PublishingPaused):
            if event.reason is None:
                self._can_publish.set()
            else:
                self._can_publish.clear()
        elif isinstance(event, Ready):
            if not self._ready.done():
                self._ready.set_result(event.heartbeat)
        elif isinstance(event, Closed):
            self._fail(event.error)

    def _fail(self, error: NativeError) -> None:
        """The connection is over: everyone who waits gets the error."""
        if self._error is not None:
            return
        self._error = error
        if not self._ready.done():
            self._ready.set_exception(error)
            # Whoever gave up waiting does not look at it.
            self._ready.exception()
        for future in self._requests.values():
            if not future.done():
                future.set_exception(error)
        for subscription in self._subscriptions.values():
            subscription._end(error)
        self._can_write.set()
        self._can_publish.set()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if hasattr(self, "_transport"):
            self._transport.close()

    async def _close(self) -> None:
        if self._error is None:
            self._protocol.close()
            self._flush()
            self._fail(ConnectionFailed("the client is closed"))
        if self._heartbeat is not None:
            await asyncio.gather(self._heartbeat, return_exceptions=True)


def _bytes(pattern: bytes | str) -> bytes:
    return pattern.encode() if isinstance(pattern, str) else pattern
