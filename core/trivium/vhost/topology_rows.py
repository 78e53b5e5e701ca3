"""What is stored of the exchanges and queues of a virtual host: a row for each that is kept."""

from __future__ import annotations

from trivium.common.values import pack
from trivium.idempotence.deduplication import EXCHANGE, QUEUE
from trivium.queues.queue import Queue
from trivium.routing.exchanges import Exchange
from trivium.storage.base import Storage
from trivium.vhost.pending_changes import PendingChanges


class TopologyRows:
    """Those of one virtual host. What is written or deleted is a pending change."""

    def __init__(self, storage: Storage, vhost: str, changes: PendingChanges) -> None:
        self.exchanges = storage.table(f"exchanges/{vhost}")
        self.queues = storage.table(f"queues/{vhost}")
        self._changes = changes

    def put_exchange(self, exchange: Exchange) -> None:
        """Write the row of an exchange, if it has one."""
        if not exchange.durable:
            return
        row = [exchange.kind, exchange.auto_delete, exchange.internal, exchange.arguments]
        if exchange.declarer is not None:
            row.append(exchange.declarer.row)
        self.exchanges.put(exchange.name.encode(), pack(row))
        self._changes.add(EXCHANGE, exchange.name)

    def delete_exchange(self, exchange: Exchange) -> None:
        """Delete the row of an exchange, if it has one."""
        if exchange.durable:
            self.exchanges.delete(exchange.name.encode())
            self._changes.add(EXCHANGE, exchange.name)

    def put_queue(self, queue: Queue) -> None:
        """Write the row of a queue, if it has one."""
        if not queue.durable or queue.owner is not None:
            return
        row = [queue.auto_delete, queue.arguments, queue.adapter]
        if queue.user is not None or queue.declarer is not None:
            row.append(None if queue.user is None else queue.user.name)
        if queue.declarer is not None:
            row.append(queue.declarer.row)
        self.queues.put(queue.name.encode(), pack(row))
        self._changes.add(QUEUE, queue.name)
