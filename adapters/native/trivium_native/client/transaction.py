"""What a client collects for one transaction; sent as a whole, by either client."""

from __future__ import annotations

from collections.abc import Iterable

from trivium_native.client import operations
from trivium_native.client.operations import Operation
from trivium_native.client.values import (
    Delivery,
    OffsetCommit,
    Part,
    Producer,
    Publication,
    Settlement,
)
from trivium_native.wire.messages import TX_REJECT, TX_REQUEUE, TX_SETTLE


class Transaction:
    """Publishes, settlements and offset commits that happen together or not at all.

    Nothing is sent before the commit; to give a transaction up, forget it. With a transactional
    ``producer`` a commit may be repeated, also on another connection: it is applied once. The
    transaction's number is ``producer.sequence``.
    """

    def __init__(self, producer: Producer | None = None) -> None:
        self.producer = producer
        #: bytes of the messages, as they will be sent
        self.size = 0
        self._messages: list[bytes] = []
        self._settlements: list[Settlement] = []
        self._commits: list[OffsetCommit] = []
        self._parts: list[Part] = []

    def publish(self, *publications: Publication) -> None:
        """Publish messages."""
        for publication in publications:
            self.publish_encoded(publication.encode())

    def publish_encoded(self, entry: bytes) -> None:
        """Publish one message that is framed already (``Publication.encode``)."""
        self._messages.append(entry)
        self.size += len(entry)

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        """The delivery is done with; ``multiple``: and all before it."""
        self._dispose(delivery, TX_SETTLE, multiple)

    def nack(self, delivery: Delivery, *, requeue: bool = True, multiple: bool = False) -> None:
        """The delivery was not wanted: back to the queue, or away."""
        self._dispose(delivery, TX_REQUEUE if requeue else TX_REJECT, multiple)

    def _dispose(self, delivery: Delivery, action: int, multiple: bool) -> None:
        first = 1 if multiple else delivery.tag
        self._settlements.append(Settlement(delivery.subscription, action, first, delivery.tag))

    def commit_offsets(self, commits: Iterable[OffsetCommit]) -> None:
        """Commit offsets of groups, such as ``GroupConsumer.offsets()``."""
        self._commits += commits

    def commit_parts(self, parts: Iterable[Part]) -> None:
        """Publish what was staged as these parts under the producer's name and number."""
        self._parts += parts

    def __len__(self) -> int:
        """Number of messages."""
        return len(self._messages)

    def operation(self) -> Operation[int]:
        """The request that commits it."""
        return operations.transaction(
            self._messages, self._settlements, self._commits, self.producer, self._parts
        )


def commit_transaction(transaction: Transaction) -> Operation[int]:
    """Commit a transaction; returns once it is durable.

    The result is how many requests of its parts are still to be published, which the broker does by
    itself: 0 without parts, and once it has published all. Commit again to ask. Then an error of
    publishing means that the broker cannot go on for now, and will try again.

    With a transactional producer (``open_producer(name, transactional=True)``) it may be repeated
    after ConnectionFailed, on any connection. Every other error means that nothing of it was done;
    UnknownDelivery after a repetition, that the first attempt was not either, and the deliveries
    come again. Raises what publishing, settling and committing offsets raise.
    """
    return transaction.operation()
