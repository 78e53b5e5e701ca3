"""Methods of the class tx (AMQP 0-9-1, 1.9)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from trivium.errors import TopologyError
from trivium.messages.large import content_size
from trivium.routing.exchanges import ACCEPTED, MAX_DELIVERIES, Demand
from trivium.runtime.long_requests import STEP, LongFrame
from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import PRECONDITION_FAILED, ChannelException, ConnectionException
from trivium_amqp.transaction import Transaction

if TYPE_CHECKING:
    from trivium_amqp.channel import Channel


def select(channel: Channel, arguments: list[Any]) -> None:
    """tx.select."""
    if channel.publisher.confirms:
        raise ChannelException(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.publisher.transaction is None:
        channel.publisher.transaction = _new_transaction(channel)
        channel.connection.repeats.forget()
    channel.reply(methods.TX_SELECT_OK)


def _new_transaction(channel: Channel) -> Transaction:
    return Transaction(channel.connection.options.max_transaction_bytes)


def _transaction(channel: Channel) -> Transaction:
    if channel.publisher.transaction is None:
        raise ChannelException(PRECONDITION_FAILED, "channel is not transactional")
    return channel.publisher.transaction


def commit(channel: Channel, arguments: list[Any]) -> None:
    """tx.commit: all of it in one turn; the answer waits until its write batch is durable."""
    transaction = _transaction(channel)
    if not _carry_out(channel, transaction, STEP):
        channel.broker.long_requests.enter(_LongCommit(channel, transaction))


class _LongCommit(LongFrame):
    """A tx.commit that does so much that it has a turn for itself."""

    def __init__(self, channel: Channel, transaction: Transaction) -> None:
        super().__init__(channel.connection, False)
        self._channel = channel
        self._transaction = transaction

    def release(self) -> None:
        """The channel holds it."""

    def step(self) -> bool:
        channel = self._channel
        # Meanwhile the channel may have failed, or the connection.
        if channel.publisher.transaction is self._transaction:
            try:
                _carry_out(channel, self._transaction, sys.maxsize)
            except (TopologyError, ChannelException) as error:
                channel.refuse(error, methods.TX_COMMIT)
            except ConnectionException as error:
                channel.connection.fail(error, methods.TX_COMMIT)
        return True


def _carry_out(channel: Channel, transaction: Transaction, most: int) -> bool:
    """Publish and settle, and have it answered. False where that is more than ``most`` deliveries.

    Raises what refuses it. In both cases nothing is done.
    """
    settled = len(transaction.acknowledgements)
    if settled + len(transaction.publishes) > most:
        return False
    # Before anything is applied: this raises where an exchange is gone, or a permission.
    targets = [
        channel.publisher.current(target, header) for target, header, _ in transaction.publishes
    ]
    demand = Demand()
    broker = channel.broker
    for index, (_, header, body) in enumerate(transaction.publishes):
        before = broker.work
        route = channel.publisher.route_of(targets[index], header, body)
        demand.add_work(broker.work - before)
        demand.add(route, content_size(body))
        if settled + demand.deliveries > most:
            return False
        if demand.is_too_much:
            raise ChannelException(
                PRECONDITION_FAILED, f"a transaction makes at most {MAX_DELIVERIES} deliveries"
            )
    full = demand.refused_by()
    if full is not None:
        raise ChannelException(
            PRECONDITION_FAILED,
            f"'{full.name}' in vhost '{channel.vhost.name}' has no room for the transaction",
        )
    channel.publisher.transaction = None
    is_stored = False
    for index, (_, header, body) in enumerate(transaction.publishes):
        result = channel.publisher.route(targets[index], header, body)
        is_stored = is_stored or result > ACCEPTED
    for entry, action in transaction.acknowledgements:
        is_stored = is_stored or entry.is_stored
        channel.dispose([entry], action)
    channel.publisher.transaction = _new_transaction(channel)
    channel.reply_after(
        channel.broker.storage.write_batch if is_stored else 0, methods.TX_COMMIT_OK
    )
    return True


def rollback(channel: Channel, arguments: list[Any]) -> None:
    """tx.rollback: publishes are dropped, acknowledged deliveries are unacknowledged again."""
    transaction = _transaction(channel)
    for entry, _ in transaction.acknowledgements:
        channel.unacked.add(entry.tag, entry)
    channel.publisher.transaction = _new_transaction(channel)
    channel.reply(methods.TX_ROLLBACK_OK)
