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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from trivium.common.client_tls import ClientTls
from trivium.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, Properties
from trivium_native.client import operations
from trivium_native.client.connection import ClientConnection
from trivium_native.client.consumer import Callback, GroupConsumer
from trivium_native.client.methods import AsyncRunner, Operations
from trivium_native.client.operations import Operation
from trivium_native.client.protocol import ClientProtocol
from trivium_native.client.receiving import Batches, Deliveries, LiveMessages
from trivium_native.client.transaction import Transaction
from trivium_native.client.url import Target, make_target
from trivium_native.client.values import (
    Producer,
    Publication,
)
from trivium_native.wire.errors import ConnectionFailed, TimedOut

T = TypeVar("T")

#: Seconds to connect and authenticate.
CONNECT_TIMEOUT: Final = 10.0
#: Seconds between signs of life; after two without an answer the broker counts as gone.
DEFAULT_HEARTBEAT: Final = 30
#: Publish requests that may wait for their confirmation; more wait to be sent.
DEFAULT_IN_FLIGHT: Final = 1024
#: Seconds for which a member of a group may be silent, and may keep what it is to let go.
SESSION_TIMEOUT: Final = 30.0
REBALANCE_TIMEOUT: Final = 60.0
#: Bytes of batches, per partition, that a member of a group may be ahead of its reader.
GROUP_CREDIT: Final = 1 << 20
#: Bytes of batches that a ``log`` subscription may be ahead of its reader.
LOG_CREDIT: Final = 8 << 20


@asynccontextmanager
async def connect(
    url: str | Target,
    *,
    tls: ClientTls | None = None,
    username: str | None = None,
    password: str | None = None,
    name: str = "",
    heartbeat: int = DEFAULT_HEARTBEAT,
    window: int = DEFAULT_IN_FLIGHT,
    timeout: float = CONNECT_TIMEOUT,
) -> AsyncIterator[Client]:
    """A connected client, closed at the end of the block.

    ``heartbeat`` is in seconds, 0 for none. ``window`` is how many publish requests may be in
    flight, that is without their confirmation. ``tls`` says how ``triviums://`` is spoken.
    ``username`` and ``password`` are instead of those of the URL; a password without a user is a
    token or an API key. Raises ValueError for a bad URL or files of ``tls`` that cannot be used,
    ConnectionFailed, AuthenticationFailed, NotFound (vhost), TimedOut.
    """
    target = make_target(url, tls, username, password)
    connection = ClientConnection(ClientProtocol(target, name=name, heartbeat=heartbeat))
    try:
        async with asyncio.timeout(timeout):
            await connection.open(target)
    except TimeoutError:
        error = TimedOut(f"no answer from {target.host}:{target.port} in time")
        connection.fail(error)
        raise error from None
    except BaseException:
        connection.fail(ConnectionFailed("connecting was given up"))
        raise
    try:
        yield Client(connection, window)
    finally:
        await connection.close()


class Client(AsyncRunner, Operations):
    """A connected client. Every method raises the errors of ``trivium_native.wire.errors``.

    The methods that make one request and have its answer are in ``methods``.
    """

    def __init__(self, connection: ClientConnection, max_in_flight: int) -> None:
        #: what it speaks through
        self.connection = connection
        self._in_flight = asyncio.Semaphore(max_in_flight)

    async def run(self, operation: Operation[T]) -> T:
        connection = self.connection
        if operation.publishes:
            return await connection.publish(operation)
        return await connection.run(operation)

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
        connection = self.connection
        if producer is None and all(
            publication.mode == AT_MOST_ONCE and not publication.mandatory
            for publication in publications
        ):
            if not connection.can_publish.is_free:
                await connection.can_publish.wait()
            await connection.tell(operation)
            return
        async with self._in_flight:
            await connection.publish(operation)

    # Receiving

    @asynccontextmanager
    async def subscribe(
        self, pattern: bytes | str = b"#", *, exchange: str = "amq.topic", no_local: bool = False
    ) -> AsyncIterator[LiveMessages]:
        """Mode ``pubsub``: what is published to an exchange while the block lasts, at most once.

        ``pattern`` is a binding key (``*`` is one word, ``#`` any number of words).
        """
        messages = LiveMessages(self.connection, self.connection.next_number())
        operation = operations.subscribe_live(messages.number, exchange, pattern, no_local)
        async with self.connection.subscribed(messages, operation):
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
        deliveries = Deliveries(self.connection, self.connection.next_number(), credit, no_ack)
        operation = operations.subscribe_queue(
            deliveries.number, queue, credit, priority, no_ack, exclusive
        )
        async with self.connection.subscribed(deliveries, operation):
            yield deliveries

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
    ) -> AsyncIterator[Batches]:
        """Mode ``log``: record batches from an offset, or ``first``, ``last``, ``next``, on.

        With ``timestamp`` (milliseconds since the epoch) from the first record on that arrived then
        or later, instead of the offset. The first batch may begin before that. ``credit`` is how
        many bytes the broker may be ahead of the reader.
        """
        batches = Batches(self.connection, self.connection.next_number())
        operation = operations.subscribe_log(
            batches.number,
            stream,
            partition,
            offset if timestamp is None else None,
            timestamp,
            credit,
            incarnation,
        )
        async with self.connection.subscribed(batches, operation) as start:
            batches.offset = start
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
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> AsyncIterator[GroupConsumer]:
        """Be a member of a group, and read the partitions that the broker assigns, in the block.

        ``strategy`` is ``sticky`` (unless said otherwise), ``range`` or ``round-robin``, the same
        for all members. A partition without a committed offset, or whose offset does not exist any
        more, begins at ``start``: ``first``, ``last`` or ``next``. ``member`` takes the place of a
        member of that name, such as this one before its connection broke; by default it is made
        up. ``credit`` is how many bytes the broker may be ahead per partition.

        ``on_revoked`` is awaited before partitions are let go: the place to commit.

        Raises NotFound, PreconditionFailed, ResourceLocked (while held exclusively).
        """
        consumer = GroupConsumer(
            self.connection,
            group,
            secrets.token_hex(8) if member is None else member,
            streams,
            strategy=strategy,
            start=start,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            credit=credit,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        try:
            await consumer.start()
            yield consumer
        finally:
            consumer.stop()

    @asynccontextmanager
    async def transaction(self, producer: Producer | None = None) -> AsyncIterator[Transaction]:
        """A transaction that is committed at the end of the block, or given up if that raises.

        See ``commit_transaction`` for what is raised then.
        """
        transaction = Transaction(producer)
        yield transaction
        await self.commit_transaction(transaction)
