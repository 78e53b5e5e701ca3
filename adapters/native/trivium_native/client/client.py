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
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from trivium.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, Properties
from trivium_native.client import group_operations, operations
from trivium_native.client.consumer import Callback, GroupConsumer
from trivium_native.client.link import Link
from trivium_native.client.protocol import ClientProtocol
from trivium_native.client.receiving import Batches, Deliveries, LiveMessages
from trivium_native.client.transaction import Transaction
from trivium_native.client.url import Target, parse_url
from trivium_native.client.values import (
    Fetched,
    GroupOffset,
    Membership,
    OffsetCommit,
    PolicyInfo,
    Producer,
    Publication,
    QueueInfo,
    StreamInfo,
)
from trivium_native.wire.errors import ConnectionFailed, TimedOut

#: Seconds to connect and authenticate.
CONNECT_TIMEOUT: Final = 10.0
#: Seconds between signs of life; after two without an answer the broker counts as gone.
DEFAULT_HEARTBEAT: Final = 30
#: Publish requests that may wait for their confirmation; more wait to be sent.
DEFAULT_WINDOW: Final = 1024
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
    link = Link(ClientProtocol(target, name=name, heartbeat=heartbeat))
    try:
        async with asyncio.timeout(timeout):
            await link.open(target)
    except TimeoutError:
        error = TimedOut(f"no answer from {target.host}:{target.port} in time")
        link.fail(error)
        raise error from None
    except BaseException:
        link.fail(ConnectionFailed("connecting was given up"))
        raise
    try:
        yield Client(link, window)
    finally:
        await link.close()


class Client:
    """A connected client. Every method raises the errors of ``trivium_native.wire.errors``."""

    def __init__(self, link: Link, window: int) -> None:
        self._link = link
        self._window = asyncio.Semaphore(window)

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
        link = self._link
        if producer is None and all(
            publication.mode == AT_MOST_ONCE and not publication.mandatory
            for publication in publications
        ):
            if not link.can_publish.is_free:
                await link.can_publish.wait()
            await link.tell(operation)
            return
        async with self._window:
            await link.publish(operation)

    async def open_producer(self, name: str, *, transactional: bool = False) -> Producer:
        """Start a new epoch of an idempotent producer; whoever published in an older one is fenced.

        The result says at which number it goes on: of its messages, or of its transactions.
        """
        return await self._link.run(operations.open_producer(name, transactional))

    # Receiving

    @asynccontextmanager
    async def subscribe(
        self, pattern: bytes | str = b"#", *, exchange: str = "amq.topic", no_local: bool = False
    ) -> AsyncIterator[LiveMessages]:
        """Mode ``pubsub``: what is published to an exchange while the block lasts, at most once.

        ``pattern`` is a binding key (``*`` is one word, ``#`` any number of words).
        """
        messages = LiveMessages(self._link, self._link.next_number())
        operation = operations.subscribe_live(messages.number, exchange, _bytes(pattern), no_local)
        async with self._link.subscribed(messages, operation):
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
        deliveries = Deliveries(self._link, self._link.next_number(), credit, no_ack)
        operation = operations.subscribe_queue(
            deliveries.number, queue, credit, priority, no_ack, exclusive
        )
        async with self._link.subscribed(deliveries, operation):
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
        batches = Batches(self._link, self._link.next_number())
        operation = operations.subscribe_log(
            batches.number,
            stream,
            partition,
            offset if timestamp is None else None,
            timestamp,
            credit,
            incarnation,
        )
        async with self._link.subscribed(batches, operation) as start:
            batches.offset = start
            yield batches

    # Streams and groups

    async def metadata(self, streams: Sequence[str] | None = None) -> list[StreamInfo]:
        """The named streams, or all. Raises NotFound."""
        return await self._link.run(operations.metadata(streams))

    async def fetch(
        self,
        stream: str,
        partition: int,
        offset: int | str,
        *,
        incarnation: str | None = None,
        max_bytes: int | None = None,
        min_bytes: int = 1,
        max_wait: float = 0.0,
    ) -> Fetched:
        """Whole record batches from the one that holds ``offset`` on.

        The offset may also be ``first``, ``last`` (the newest record) or ``next``. Waits up to
        ``max_wait`` seconds for ``min_bytes``; the result may be empty. Raises NotFound,
        OffsetOutOfRange, StreamChanged.
        """
        return await self._link.run(
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
        return await self._link.run(operations.offset_for_timestamp(stream, partition, timestamp))

    async def commit(
        self,
        group: str,
        stream: str,
        offsets: Mapping[int, int],
        *,
        incarnation: str | None = None,
        membership: Membership | None = None,
    ) -> None:
        """Commit a group's next offsets by partition; returns once they are durable.

        While the group has members or a holder only they commit, by their ``membership``. Raises
        NotFound, StreamChanged, PreconditionFailed, StaleMember, Fenced.
        """
        await self._link.run(
            group_operations.commit(OffsetCommit(group, stream, offsets, incarnation, membership))
        )

    async def committed(
        self, group: str, stream: str, *, incarnation: str | None = None
    ) -> list[GroupOffset]:
        """How far a group is, for all partitions in order."""
        return await self._link.run(group_operations.committed(group, stream, incarnation))

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
            self._link,
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

    async def join_exclusively(self, group: str, member: str) -> Membership:
        """Hold a group, as long as nobody holds it after: its members and former holder are fenced.

        The holder commits with the result, checks with ``check_membership`` that it still is the
        holder, and leaves with ``leave``; there is no time-out.
        """
        return await self._link.run(group_operations.join_exclusively(group, member))

    async def check_membership(self, membership: Membership) -> None:
        """Whether this still is the holder of the group. Raises Fenced, StaleMember."""
        await self._link.run(group_operations.heartbeat(membership))

    async def leave(self, membership: Membership) -> None:
        """Leave a group. Raises Fenced, StaleMember."""
        await self._link.run(group_operations.leave(membership))

    # Transactions

    @asynccontextmanager
    async def transaction(self, producer: Producer | None = None) -> AsyncIterator[Transaction]:
        """A transaction that is committed at the end of the block, or given up if that raises.

        See ``commit_transaction`` for what is raised then.
        """
        transaction = Transaction(producer)
        yield transaction
        await self.commit_transaction(transaction)

    async def stage(
        self, producer: str, sequence: int, part: str, index: int, entries: Sequence[bytes]
    ) -> bool:
        """Stage request ``index`` of a part for a transaction that somebody else will commit.

        ``entries`` are messages as ``Publication.encode`` makes them. Returns once they are
        durable; nobody gets them before that transaction is committed. A request may be repeated.
        False means that it was committed already, and that nothing more can belong to it. Raises
        what publishing raises, PreconditionFailed, OutOfSequence.
        """
        return await self._link.publish(operations.stage(producer, sequence, part, index, entries))

    async def discard_part(self, producer: str, part: str) -> None:
        """Forget a part, if there is one of that name. Raises PreconditionFailed once committed."""
        await self._link.run(operations.discard_part(producer, part))

    async def delete_producer(self, name: str, *, transactional: bool = False) -> None:
        """Forget a producer, its numbers and its parts; one that is opened anew begins at 0.

        Raises PreconditionFailed while parts that it has committed are not published.
        """
        await self._link.run(operations.delete_producer(name, transactional))

    async def commit_transaction(self, transaction: Transaction) -> int:
        """Commit a transaction; returns once it is durable.

        The result is how many requests of its parts are still to be published, which the broker
        does by itself: 0 without parts, and once it has published all. Commit again to ask. Then
        an error of publishing means that the broker cannot go on for now, and will try again.

        With a transactional producer (``open_producer(name, transactional=True)``) it may be
        repeated after ConnectionFailed, on any connection. Every other error means that nothing of
        it was done; UnknownDelivery after a repetition, that the first attempt was not either, and
        the deliveries come again. Raises what publishing, settling and committing offsets raise.
        """
        # Publishing is what the broker refuses at times.
        run = self._link.publish if transaction.publishes else self._link.run
        return await run(transaction.operation())

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
        await self._link.run(
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
        return await self._link.run(
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
        return await self._link.run(operations.declare_stream(name, partitions, arguments))

    async def delete(
        self, kind: str, name: str, *, if_unused: bool | None = None, if_empty: bool | None = None
    ) -> None:
        """Delete an ``exchange``, ``queue``, ``stream`` or ``group``."""
        await self._link.run(operations.delete(kind, name, if_unused, if_empty))

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
        await self._link.run(operations.bind(kind, name, exchange, _bytes(pattern), arguments))

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
        await self._link.run(
            operations.bind(kind, name, exchange, _bytes(pattern), arguments, False)
        )

    async def set_policy(self, policy: PolicyInfo) -> None:
        """Add a policy, or replace the one of its name; in force at once."""
        await self._link.run(operations.set_policy(policy))

    async def delete_policy(self, name: str) -> None:
        """Remove a policy."""
        await self._link.run(operations.delete_policy(name))

    async def policies(self) -> list[PolicyInfo]:
        """All policies of the virtual host, by name."""
        return await self._link.run(operations.policies())

    async def purge(self, queue: str) -> int:
        """Remove all ready messages of a queue; how many there were."""
        return await self._link.run(operations.purge(queue))


def _bytes(pattern: bytes | str) -> bytes:
    return pattern.encode() if isinstance(pattern, str) else pattern
