"""TX: publishes, settlements and offset commits that happen together or not at all.

A transaction is one request: it begins and is given up within the client, and the broker holds
nothing of an open one. It is read, of very many messages in several turns, then checked as a whole
and applied within one turn, which is one write batch of the storage.

With a transactional producer it is idempotent: the producer's row says which number was committed
last, in the same write batch. So a commit that is repeated, because its answer was lost, is known
and answered the same, whatever has happened to its queues and streams since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium import errors as core
from trivium.common.counters import Traffic
from trivium.idempotence.producers import FENCED
from trivium.queues.queue import Queue, QueueEntry
from trivium.routing.exchanges import DELIVERY_VISITS
from trivium.runtime.long_requests import STEP, LongFrame
from trivium.security.permissions import WRITE
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.batches import Batch
from trivium_native.server.commits import Commit
from trivium_native.server.parts import Parts
from trivium_native.server.publishing import Publisher
from trivium_native.server.staged_batches import Stager
from trivium_native.server.subscriptions import Subscription
from trivium_native.wire.errors import (
    Blocked,
    Fenced,
    InvalidArgument,
    Malformed,
    NativeError,
    UnknownDelivery,
)
from trivium_native.wire.fields import Fields
from trivium_native.wire.frames import MAX_FIELDS_BYTES, MAX_ITEMS
from trivium_native.wire.messages import (
    MAX_MESSAGES,
    TX_HEAD,
    TX_HEAD_SIZE,
    TX_REJECT,
    TX_REQUEUE,
    TX_SETTLE,
)

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: Streams of groups in one transaction.
MAX_COMMITS: Final = 1024

#: A transactional producer, its epoch and the number of the transaction.
Numbered = tuple[bytes, int, int]

#: What a settlement settles: its action, the subscription, tags and entries.
Taken = tuple[int, Subscription, list[tuple[int, QueueEntry]]]

_MAX_EPOCH: Final = 0xFFFF_FFFF
_MAX_SEQUENCE: Final = (1 << 62) - 1


class Transactions:
    """Carries out the transactions of one connection."""

    def __init__(
        self,
        connection: NativeConnection,
        vhost: VirtualHost,
        publisher: Publisher,
        parts: Parts,
    ) -> None:
        self.publisher = publisher
        self.connection = connection
        self._vhost = vhost
        self._parts = parts
        self._stager = Stager(publisher, connection.options.max_message_bytes)

    def handle(self, correlation: int, data: bytes, at: int, end: int) -> None:
        """Check, apply and answer one transaction, the request ``data[at:end]``.

        Raises what refuses it: then nothing of it has been done.
        """
        fields, count, at = _split(data, at, end)
        numbered: Numbered | None = None
        name = fields.optional_text("producer")
        if name is not None:
            self.connection.access.require(WRITE, "producer", name)
            epoch = fields.integer("epoch", 0, _MAX_EPOCH)
            numbered = (name.encode(), epoch, fields.integer("sequence", 0, _MAX_SEQUENCE))
        if self.is_committed(correlation, numbered):
            return
        batch = self.publisher.batch(data, at, end, count)
        if count <= STEP and self.publisher.read_some(batch) and self._has_few_deliveries(batch):
            self.carry_out(correlation, numbered, fields, batch)
            return
        long = LongTransaction(self, self.connection, correlation, numbered, fields, batch)
        self.connection.broker.long_requests.enter(long)

    def _has_few_deliveries(self, batch: Batch) -> bool:
        """Whether the messages, which are read, make few enough for the turn."""
        broker = self.connection.broker
        work = broker.work
        deliveries = 0
        for route, message in zip(batch.routes, batch.messages, strict=True):
            deliveries += len(route.resolve(message).destinations)
            if deliveries + (broker.work - work) // DELIVERY_VISITS > STEP:
                return False
        return True

    def is_committed(self, correlation: int, numbered: Numbered | None) -> bool:
        """Whether it was committed before: then it is answered. Raises Fenced."""
        if numbered is None:
            return False
        producer = numbered[0]
        known = self._vhost.transactional.check(*numbered)
        if known == FENCED:
            raise Fenced("the transactional producer is not open, or was opened again since")
        if known > 0:
            # Perhaps it is not durable yet.
            self.connection.reply_when_durable(correlation, self._parts.progress(producer))
        return known > 0

    def carry_out(
        self, correlation: int, numbered: Numbered | None, fields: Fields, batch: Batch
    ) -> None:
        """The rest of one whose messages are read."""
        producer, epoch, sequence = numbered or (b"", 0, 0)
        settlements = fields.rows("settle", MAX_ITEMS, 4)
        commits = [
            Commit(self._vhost, one, self.connection.access)
            for one in fields.maps("commits", MAX_COMMITS)
        ]
        wanted = fields.named_counts("parts", MAX_ITEMS)
        fields.finish()
        publisher = self.publisher
        if wanted:
            if numbered is None:
                raise InvalidArgument("parts are committed by the producer that they belong to")
            if publisher.blocked is not None:
                raise Blocked(publisher.blocked)
        parts = self._parts.find(producer, sequence, wanted)
        publisher.read(batch)
        publisher.check_read(batch, True)
        taken = self._take(settlements)
        try:
            for commit in commits:
                commit.check()
        except Exception:
            _put_back(taken)
            raise
        # From here on nothing refuses.
        _dispose(taken, self.connection.traffic)
        publisher.publish_read(batch)
        for commit in commits:
            commit.apply()
        if numbered is not None:
            self._vhost.transactional.advance(producer, epoch, sequence + 1)
            self._parts.decide(producer, sequence, parts)
        self.connection.reply_when_durable(correlation, self._parts.progress(producer))

    def stage(self, correlation: int, data: bytes, at: int, end: int) -> None:
        """Keep messages for a transaction that somebody else will commit.

        Raises what refuses it: then nothing of it is kept.
        """
        fields, count, at = _split(data, at, end)
        name = fields.text("producer")
        producer = name.encode()
        self.connection.access.require(WRITE, "producer", name)
        sequence = fields.integer("sequence", 0, _MAX_SEQUENCE)
        part = fields.text("part")
        index = fields.integer("index", 0, _MAX_SEQUENCE)
        fields.finish()
        if not producer or not part or not count:
            raise InvalidArgument("a part has a producer, a name and messages")
        reply: dict[str, object] = {}
        if self._parts.is_committed(producer, sequence):
            reply["committed"] = True
        else:
            record = self._stager.record(data, at, end, count)
            self._parts.stage(producer, sequence, part, index, record)
        self.connection.reply_when_durable(correlation, reply)

    def _take(self, settlements: list[list[int]]) -> list[Taken]:
        """Take what the settlements settle out of what is unsettled.

        As if they were made one after the other: what one settles is not there for the next.
        Raises InvalidArgument, UnknownDelivery: then nothing is taken.
        """
        taken: list[Taken] = []
        try:
            for number, action, first, last in settlements:
                taken.append((action, *self._take_range(number, action, first, last)))
        except Exception:
            _put_back(taken)
            raise
        return taken

    def _take_range(
        self, number: int, action: int, first: int, last: int
    ) -> tuple[Subscription, list[tuple[int, QueueEntry]]]:
        if action > TX_REJECT or first > last:
            raise InvalidArgument("'settle' has an unknown action or an empty range")
        subscription = self.connection.subscriptions.get(number)
        if subscription is None:
            raise UnknownDelivery(f"no subscription {number}")
        entries = subscription.take(first, last)
        if not entries:
            raise UnknownDelivery(
                f"no delivery from {first} to {last} of subscription {number} is unsettled"
            )
        return subscription, entries


class LongTransaction(LongFrame):
    """One TX with so many messages that they are read in turns, or that has so many deliveries that
    it has one for itself."""

    def __init__(
        self,
        transactions: Transactions,
        connection: NativeConnection,
        correlation: int,
        numbered: Numbered | None,
        fields: Fields,
        batch: Batch,
    ) -> None:
        super().__init__(connection, batch.count > STEP)
        self._transactions = transactions
        self._correlation = correlation
        self._numbered = numbered
        self._fields = fields
        self._batch = batch

    def release(self) -> None:
        """It holds nothing that others could want."""

    def step(self) -> bool:
        transactions = self._transactions
        publisher = transactions.publisher
        correlation, numbered, batch = self._correlation, self._numbered, self._batch
        try:
            # Others may have sent the same meanwhile.
            if transactions.is_committed(correlation, numbered):
                return True
            if not publisher.read_some(batch):
                return False
            transactions.carry_out(correlation, numbered, self._fields, batch)
        except (NativeError, core.TopologyError) as error:
            transactions.connection.refuse_request(correlation, error)
        finally:
            publisher.payloads = None
        return True


def _split(data: bytes, at: int, end: int) -> tuple[Fields, int, int]:
    """The fields of TX and STAGE, the number of messages, and where they begin."""
    fields_at = at + TX_HEAD_SIZE
    if end < fields_at:
        raise Malformed("TX or STAGE is cut")
    size, count = TX_HEAD.unpack_from(data, at)
    messages_at = fields_at + size
    if size > MAX_FIELDS_BYTES or messages_at > end or count > MAX_MESSAGES:
        raise Malformed("TX or STAGE has a wrong size or too many messages")
    return Fields(data[fields_at:messages_at]), count, messages_at


def _put_back(taken: list[Taken]) -> None:
    for _, subscription, entries in taken:
        subscription.put_back(entries)


def _dispose(taken: list[Taken], traffic: Traffic) -> None:
    queues: dict[Queue, None] = {}
    for action, _, entries in taken:
        for _, entry in entries:
            queue = entry.queue
            queues[queue] = None
            if action == TX_SETTLE:
                queue.settle(entry)
                traffic.acknowledged += 1
            elif action == TX_REQUEUE:
                queue.requeue(entry)
            else:
                queue.reject(entry)
    for queue in queues:
        queue.dispatch()
