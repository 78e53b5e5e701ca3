"""The methods of the blocking client for what lives on a connection; see ``blocking``.

What they need is imported when they are used: who makes requests alone pays for no event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trivium_native.client.defaults import (
    GROUP_CREDIT,
    LOG_CREDIT,
    REBALANCE_TIMEOUT,
    REQUEST_BYTES,
    SESSION_TIMEOUT,
    Progress,
)
from trivium_native.client.methods import Operations, SyncRunner
from trivium_native.client.transaction import Transaction
from trivium_native.client.values import AssignedPartition, OwnQueue, Producer

if TYPE_CHECKING:
    from trivium_native.client.background import Background
    from trivium_native.client.blocking import (
        BlockingBatches,
        BlockingDeliveries,
        BlockingGroupConsumer,
        BlockingLiveMessages,
        BlockingPolled,
        BlockingPublisher,
    )

#: Called with partitions, before they are read or when they are let go; by another thread.
Callback = Callable[[list[AssignedPartition]], None]


class Streaming(SyncRunner, Operations):
    """Each takes what the method of that name takes of the client for asyncio, and does the same.

    Callbacks may block; they are called by another thread.
    """

    def _in_background(self) -> Background:
        """What works while the program does something else."""
        raise NotImplementedError

    @contextmanager
    def publisher(
        self,
        name: str | None = None,
        *,
        acks: str = "all",
        idempotent: bool = True,
        linger: float = 0.0,
        request_bytes: int = REQUEST_BYTES,
        compression: str = "none",
        on_progress: Progress | None = None,
    ) -> Iterator[BlockingPublisher]:
        """Publish message by message, gathered to requests; flushed at the end of the block."""
        from trivium_native.client.blocking import BlockingPublisher

        background = self._in_background()
        gathering = background.client.publisher(
            name,
            acks=acks,
            idempotent=idempotent,
            linger=linger,
            request_bytes=request_bytes,
            compression=compression,
            on_progress=on_progress,
        )
        with background.opened(gathering) as found:
            publisher = BlockingPublisher(background, found)
            yield publisher
            publisher.flush()

    @contextmanager
    def subscribe(
        self, pattern: bytes | str = b"#", *, exchange: str = "amq.topic", no_local: bool = False
    ) -> Iterator[BlockingLiveMessages]:
        """Mode ``pubsub``: what is published to an exchange while the block lasts, at most once."""
        from trivium_native.client.blocking import BlockingLiveMessages

        background = self._in_background()
        subscribing = background.client.subscribe(pattern, exchange=exchange, no_local=no_local)
        with background.opened(subscribing) as messages:
            yield BlockingLiveMessages(background, messages)

    @contextmanager
    def consume(
        self,
        queue: str,
        *,
        credit: int = 256,
        priority: int = 0,
        no_ack: bool = False,
        exclusive: bool = False,
        own: OwnQueue | None = None,
        ack_timeout: float | None = None,
    ) -> Iterator[BlockingDeliveries]:
        """Mode ``queue``: at most ``credit`` messages are unsettled at a time."""
        from trivium_native.client.blocking import BlockingDeliveries

        background = self._in_background()
        consuming = background.client.consume(
            queue,
            credit=credit,
            priority=priority,
            no_ack=no_ack,
            exclusive=exclusive,
            own=own,
            ack_timeout=ack_timeout,
        )
        with background.opened(consuming) as deliveries:
            yield BlockingDeliveries(background, deliveries)

    @contextmanager
    def poller(
        self,
        queue: str,
        *,
        credit: int = 1000,
        own: OwnQueue | None = None,
        ack_timeout: float | None = None,
    ) -> Iterator[BlockingPolled]:
        """Mode ``poll``: messages of a queue as ``poll`` asks for them."""
        from trivium_native.client.blocking import BlockingPolled

        background = self._in_background()
        polling = background.client.poller(queue, credit=credit, own=own, ack_timeout=ack_timeout)
        with background.opened(polling) as polled:
            yield BlockingPolled(background, polled)

    @contextmanager
    def read(
        self,
        stream: str,
        partition: int = 0,
        offset: int | str = "first",
        *,
        timestamp: int | None = None,
        incarnation: str | None = None,
        credit: int = LOG_CREDIT,
        topic_filter: str | None = None,
    ) -> Iterator[BlockingBatches]:
        """Mode ``log``: record batches from an offset, or ``first``, ``last``, ``next``, on."""
        from trivium_native.client.blocking import BlockingBatches

        background = self._in_background()
        reading = background.client.read(
            stream,
            partition,
            offset,
            timestamp=timestamp,
            incarnation=incarnation,
            credit=credit,
            topic_filter=topic_filter,
        )
        with background.opened(reading) as batches:
            yield BlockingBatches(background, batches)

    @contextmanager
    def join(
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
    ) -> Iterator[BlockingGroupConsumer]:
        """Be a member of a group, and read the partitions that the broker assigns, in the block."""
        from trivium_native.client.blocking import BlockingGroupConsumer, in_thread

        background = self._in_background()
        joining = background.client.join(
            group,
            streams,
            member=member,
            strategy=strategy,
            start=start,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            credit=credit,
            topic_filter=topic_filter,
            on_assigned=in_thread(on_assigned),
            on_revoked=in_thread(on_revoked),
            on_lost=in_thread(on_lost),
        )
        with background.opened(joining) as consumer:
            yield BlockingGroupConsumer(background, consumer)

    @contextmanager
    def transaction(self, producer: Producer | None = None) -> Iterator[Transaction]:
        """A transaction that is committed at the end of the block, or given up if that raises."""
        transaction = Transaction(producer)
        yield transaction
        self.commit_transaction(transaction)
