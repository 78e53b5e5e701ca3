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
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from trivium.common.client_tls import ClientTls
from trivium.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, Properties
from trivium_native.client import operations
from trivium_native.client.connection import ClientConnection
from trivium_native.client.consumer import Callback, GroupConsumer
from trivium_native.client.defaults import (
    DEFAULT_HEARTBEAT,
    DEFAULT_IN_FLIGHT,
    DEFAULT_TIMEOUT,
    GROUP_CREDIT,
    LOG_CREDIT,
    REBALANCE_TIMEOUT,
    REQUEST_BYTES,
    SESSION_TIMEOUT,
    Progress,
    check_window,
)
from trivium_native.client.lasting import LastingConnection
from trivium_native.client.methods import AsyncRunner, Operations, Within
from trivium_native.client.operations import Operation
from trivium_native.client.publisher import Publisher, check_settings
from trivium_native.client.receiving import Batches, Deliveries, LiveMessages, Polled
from trivium_native.client.reconnecting import Persistence, Reconnect
from trivium_native.client.transaction import Transaction
from trivium_native.client.url import Target, make_target
from trivium_native.client.values import (
    FramedMessages,
    LogStart,
    OwnQueue,
    Producer,
    Publication,
)
from trivium_native.wire.errors import ConnectionFailed, NativeError, StaleMember, TimedOut

T = TypeVar("T")


class Connecting:
    """What ``connect`` gives: a client once it is awaited, or for the time of a block."""

    def __init__(self, connection: Callable[[], Awaitable[ClientConnection]], window: int) -> None:
        check_window(window)
        self._connection = connection
        self._window = window
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def _open(self) -> Client:
        return Client(await self._connection(), self._window)

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()


def connect(
    url: str | Target,
    *,
    tls: ClientTls | None = None,
    username: str | None = None,
    password: str | None = None,
    name: str = "",
    heartbeat: int = DEFAULT_HEARTBEAT,
    window: int = DEFAULT_IN_FLIGHT,
    timeout: float = DEFAULT_TIMEOUT,
    retry: float = 0.0,
    reconnect: Reconnect | bool = True,
    on_connected: Callable[[Target], None] | None = None,
    on_disconnected: Callable[[NativeError], None] | None = None,
) -> Connecting:
    """Connect: ``async with connect(...) as client``, or ``client = await connect(...)``.

    The latter is closed by ``await client.close()``. ``heartbeat`` is in seconds, 0 for none.
    ``window`` is how many publish requests may be in flight, that is without their confirmation.
    ``tls`` says how ``triviums://`` is spoken. ``username`` and ``password`` are instead of those
    of the URL; a password without a user is a token or an API key. ``timeout`` is for connecting,
    which is tried again for ``retry`` seconds where no broker answers: no attempt begins later.

    A connection that is lost is made again, unless ``reconnect`` is False, at the hosts of the URL
    in their order. ``on_connected`` is called with the one that answered, now and each time;
    ``on_disconnected`` with what the connection was lost for. They may not await.

    Raises ValueError for a bad URL, a ``window`` below 1, or files of ``tls`` that cannot be used,
    ConnectionFailed, AuthenticationFailed, NotFound (vhost), TimedOut.
    """
    persistence = Persistence.of(reconnect, on_connected, on_disconnected, retry)

    async def open_connection() -> ClientConnection:
        target = make_target(url, tls, username, password)
        connection = LastingConnection(target, name, heartbeat, timeout, persistence)
        try:
            await connection.open(target)
        except BaseException:
            connection.fail(ConnectionFailed("connecting was given up"))
            raise
        return connection

    return Connecting(open_connection, window)


class Client(AsyncRunner, Operations):
    """A connected client. Every method raises the errors of ``trivium_native.wire.errors``.

    The methods that make one request and have its answer are in ``methods``.
    """

    def __init__(self, connection: ClientConnection, max_in_flight: int) -> None:
        # What it speaks through.
        self._connection = connection
        self._in_flight = asyncio.Semaphore(max_in_flight)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Say goodbye and close; nothing happens when it is closed already."""
        await self._connection.close()

    @property
    def features(self) -> frozenset[str]:
        """What this broker takes that not all do, such as ``filter`` in a fetch."""
        return self._connection.protocol.features

    @property
    def max_request(self) -> int:
        """Bytes of the longest request that the broker takes."""
        return self._connection.protocol.max_frame

    async def run(self, operation: Operation[T]) -> T:
        connection = self._connection
        try:
            if operation.publishes:
                return await connection.publish(operation)
            return await connection.run(operation)
        except StaleMember:
            for place in operation.members:
                if place in connection.members:
                    connection.members[place].refused()
            raise

    def within(self, timeout: float) -> Within:
        """The requests of this client, each given up after so many seconds.

        They raise TimedOut then, and what was asked may still be done; the client goes on.
        """
        return Within(self._run_within, timeout)

    async def _run_within(self, operation: Operation[T], timeout: float) -> T:
        try:
            async with asyncio.timeout(timeout):
                return await self.run(operation)
        except TimeoutError:
            raise TimedOut(f"no answer within {timeout} s") from None

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
        key: bytes | None = None,
    ) -> None:
        """Publish one message; see ``publish_batch``, and ``Publication`` for the rest."""
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
            key=key,
        )
        await self.publish_batch([publication])

    async def publish_batch(
        self,
        publications: Sequence[Publication] | FramedMessages,
        producer: Producer | None = None,
        *,
        compression: str = "none",
    ) -> None:
        """Publish in one request; returns once what must survive is durable.

        With ``compression``, ``lz4`` or ``zstd``, the request is sent compressed.

        Messages that are all at-most-once are sent without waiting for an answer. With a
        ``producer`` (see ``open_producer``) messages that the broker has already, by their numbers,
        are not published again. Raises NotFound, Rejected, Unroutable, Fenced, OutOfSequence.
        """
        if not publications:
            return
        connection = self._connection
        codec = operations.codec(compression, connection.protocol.codecs)
        operation = operations.publish(publications, producer, codec)
        wants_no_answer = (
            producer is None
            and not isinstance(publications, FramedMessages)
            and all(
                publication.mode == AT_MOST_ONCE and not publication.mandatory
                for publication in publications
            )
        )
        # They are framed: while the answer is waited for, nobody needs them.
        del publications
        if wants_no_answer:
            if not connection.can_publish.is_free:
                await connection.can_publish.wait()
            await connection.tell(operation)
            return
        async with self._in_flight:
            await connection.publish(operation)

    @asynccontextmanager
    async def publisher(
        self,
        name: str | None = None,
        *,
        acks: str = "all",
        idempotent: bool = True,
        linger: float = 0.0,
        request_bytes: int = REQUEST_BYTES,
        compression: str = "none",
        on_progress: Progress | None = None,
    ) -> AsyncIterator[Publisher]:
        """Publish message by message, gathered to requests; flushed at the end of the block.

        A request takes what came while the one before was under way, and waits up to ``linger``
        seconds for ``request_bytes``. ``acks`` says when a message is confirmed: ``all`` once it is
        durable; ``leader`` the same for messages that are not persistent, which need not survive in
        queues; ``none`` once it is sent, at most once.

        Messages are numbered (``idempotent``), unless ``acks`` is ``none``: what is sent again
        after a lost connection is there once. ``name`` is that of the producer, which goes on over
        runs of the program; a made-up one is forgotten at the end of the block.
        ``compression`` of the requests is ``none``, ``lz4`` or ``zstd``.
        ``on_progress`` is called after each request with how many messages are confirmed and how
        many wait. Raises InvalidArgument, and what publishing raises.
        """
        check_settings(acks, linger, request_bytes, compression)
        producer = None
        if idempotent and acks != "none":
            made_up = f"publisher-{secrets.token_hex(8)}"
            producer = await self.open_producer(made_up if name is None else name)
        publisher = Publisher(
            self._connection, producer, acks, linger, request_bytes, compression, on_progress
        )
        try:
            yield publisher
            await publisher.flush()
        finally:
            await publisher.close()
            if producer is not None and name is None and self._connection.error is None:
                # Nobody waits for that: there may be no connection for long.
                self._connection.send(operations.delete_producer(producer.name), False)

    # Receiving

    @asynccontextmanager
    async def subscribe(
        self, pattern: bytes | str = b"#", *, exchange: str = "amq.topic", no_local: bool = False
    ) -> AsyncIterator[LiveMessages]:
        """Mode ``pubsub``: what is published to an exchange while the block lasts, at most once.

        ``pattern`` is a binding key (``*`` is one word, ``#`` any number of words).
        """
        messages = LiveMessages(
            self._connection,
            lambda number: operations.subscribe_live(number, exchange, pattern, no_local),
        )
        async with self._connection.subscribed(messages):
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
        own: OwnQueue | None = None,
        ack_timeout: float | None = None,
    ) -> AsyncIterator[Deliveries]:
        """Mode ``queue``: at most ``credit`` messages are unsettled at a time.

        What is not settled at the end of the block, or within ``ack_timeout`` seconds, goes back to
        the queue. With ``no_ack`` a message is settled by being sent. With ``own`` the queue is
        made, as it says: it gets what comes while nobody consumes it.
        """

        def request(number: int, room: int) -> Operation[None]:
            return operations.subscribe_queue(
                number, queue, room, priority, no_ack, exclusive, own, ack_timeout
            )

        deliveries = Deliveries(self._connection, request, credit, no_ack)
        async with self._connection.subscribed(deliveries):
            yield deliveries

    @asynccontextmanager
    async def poller(
        self,
        queue: str,
        *,
        credit: int = 1000,
        own: OwnQueue | None = None,
        ack_timeout: float | None = None,
    ) -> AsyncIterator[Polled]:
        """Mode ``poll``: messages of a queue as ``poll`` asks for them, of which at most ``credit``
        are unsettled at a time; the rest as with ``consume``."""

        def request(number: int, room: int) -> Operation[None]:
            return operations.subscribe_poll(number, queue, credit, own, ack_timeout)

        polled = Polled(self._connection, request, credit, False)
        async with self._connection.subscribed(polled):
            try:
                yield polled
            finally:
                polled.stop()

    @asynccontextmanager
    async def read(
        self,
        stream: str,
        partition: int = 0,
        offset: int | str = "first",
        *,
        timestamp: int | None = None,
        incarnation: str | None = None,
        credit: int = LOG_CREDIT,
        topic_filter: str | None = None,
    ) -> AsyncIterator[Batches]:
        """Mode ``log``: record batches from an offset, or ``first``, ``last``, ``next``, on.

        With ``timestamp`` (milliseconds since the epoch) from the first record on that arrived then
        or later, instead of the offset. ``records`` of a batch are those from there on, each once.
        ``credit`` is how many bytes the broker may be ahead of the reader. With an MQTT
        ``topic_filter`` there are no other records than those of topics that match; an older broker
        raises NotSupported.
        """

        def request(
            number: int, start: int | str | None, known: str | None, room: int
        ) -> Operation[LogStart]:
            when = timestamp if start is None else None
            return operations.subscribe_log(
                number, stream, partition, start, when, room, known, topic_filter
            )

        start = offset if timestamp is None else None
        batches = Batches(self._connection, request, start, incarnation, credit)
        async with self._connection.subscribed(batches):
            yield batches

    # Groups and transactions

    @asynccontextmanager
    async def join(
        self,
        group: str,
        streams: Sequence[str],
        *,
        member: str | None = None,
        strategy: str | None = None,
        start: str = "first",
        session_timeout: float = SESSION_TIMEOUT,
        rebalance_timeout: float = REBALANCE_TIMEOUT,
        credit: int = GROUP_CREDIT,
        topic_filter: str | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> AsyncIterator[GroupConsumer]:
        """Be a member of a group, and read the partitions that the broker assigns, in the block.

        ``strategy`` is ``sticky`` (unless said otherwise), ``range`` or ``round-robin``, the same
        for all members. A partition without a committed offset, or whose offset does not exist any
        more, begins at ``start``: ``first``, ``last`` or ``next``. ``member`` takes the place of a
        member of that name, such as this one before its connection broke; by default it is made
        up. ``credit`` is how many bytes the broker may be ahead per partition. With an MQTT
        ``topic_filter``, which is this member's alone, there are no other records than those of
        topics that match; what is committed goes on over the others.

        ``on_revoked`` is awaited before partitions are let go: the place to commit. ``on_lost``,
        if there is one, is awaited instead when they are others' by then, and cannot be committed.

        Raises NotFound, PreconditionFailed, ResourceLocked (while held exclusively).
        """
        consumer = GroupConsumer(
            self._connection,
            group,
            secrets.token_hex(8) if member is None else member,
            streams,
            strategy=strategy,
            start=start,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            credit=credit,
            topic_filter=topic_filter,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
        )
        try:
            await consumer.start()
            yield consumer
        finally:
            await consumer.stop()

    @asynccontextmanager
    async def transaction(self, producer: Producer | None = None) -> AsyncIterator[Transaction]:
        """A transaction that is committed at the end of the block, or given up if that raises.

        See ``commit_transaction`` for what is raised then.
        """
        transaction = Transaction(producer)
        yield transaction
        await self.commit_transaction(transaction)


def connection_of(client: Client) -> ClientConnection:
    """What a client speaks through: for what works beside it."""
    return client._connection
