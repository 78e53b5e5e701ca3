"""The deletion of a virtual host: everything in it goes, a part in each turn.

Its row is marked first: from that write batch on it is gone for clients, and a start after a crash
goes on with what is left. The row itself goes last, with the last part. Nothing is touched while
anybody is connected there, so that nobody uses what is half gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.idempotence.deduplication import EXCHANGE
from trivium.storage.base import Table
from trivium.vhost.queue_logs import queue_logs_prefix

if TYPE_CHECKING:
    from trivium.runtime.adapter import Connection
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost

#: Parts (a queue, a stream, a row) that are taken away in one turn.
MAX_PER_TURN: Final = 128
#: Milliseconds until it is looked again whether connections are gone, or the disk has caught up.
LOOK_AGAIN_MS: Final = 20
#: Milliseconds that clients have to take their leave; then their connections are cut.
PATIENCE_MS: Final = 10_000

#: The tables that a virtual host has; those of protocols are their adapters' business.
TABLES: Final = (
    *("exchanges", "queues", "streams", "bindings", "policies", "retained", "groups"),
    *("memberships", "producers", "transactional", "deduplication", "returns", "doubts"),
    *("compaction", "operator-policies"),
)


class VhostDeletion(Timed):
    """That of one virtual host; ``finished`` is called in the turn of its last part."""

    def __init__(self, broker: Broker, vhost: VirtualHost, finished: Callable[[], None]) -> None:
        self._broker = broker
        self._vhost = vhost
        self._finished = finished
        self._parts = self._all_parts()
        self._connections: list[Connection] = []
        self._cut_at = 0
        #: who wants to know when it is done
        self.waiting: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Send the clients away, then take away part after part, from the next turn on."""
        broker = self._broker
        name = self._vhost.name
        self._cut_at = broker.elapsed_ms + PATIENCE_MS
        for connection in list(broker.connections):
            if connection.access.vhost == name:
                self._connections.append(connection)
                if not connection.is_closed:
                    connection.shutdown(deleted_vhost=name)
        broker.timeouts.call_at(broker.elapsed_ms + 1, self)

    def due(self) -> None:
        broker = self._broker
        if self._connections:
            self._connections = [one for one in self._connections if one in broker.connections]
            if broker.elapsed_ms >= self._cut_at:
                for connection in self._connections:
                    connection.transport.abort()
        if self._connections or broker.is_behind:
            broker.timeouts.call_at(broker.elapsed_ms + LOOK_AGAIN_MS, self)
            return
        for _ in range(MAX_PER_TURN):
            if next(self._parts, 0) == 0:
                self._finished()
                return
            if broker.driver.is_turn_long():
                break
        broker.timeouts.call_at(broker.elapsed_ms + 1, self)

    def _all_parts(self) -> Iterator[int]:
        """Take the next part away; 1 for each."""
        broker, vhost = self._broker, self._vhost
        storage = broker.storage
        for adapter in broker.adapters.values():
            yield from adapter.forget_vhost(vhost)
        # Each is let go of in its turn: to free a hundred thousand at once takes long.
        queues = list(vhost.queues.values())
        while queues:
            vhost.delete_queue(queues.pop())
            yield 1
        for name in list(vhost.streams):
            vhost.delete_stream(name)
            yield 1
        for name in list(vhost.exchanges):
            vhost.deduplication.drop(EXCHANGE, name)
            yield 1
        vhost.memberships.close()
        vhost.delays.close()
        for timed in (vhost.policy_walk, vhost.suspensions, vhost.producers, vhost.transactional):
            broker.timeouts.stop(timed)
        table_of = storage.table
        for kind in TABLES:
            yield from delete_rows(table_of(f"{kind}/{vhost.name}"))
        prefix = queue_logs_prefix(vhost.name)
        for log in [log for log in storage.log_names() if log.startswith(prefix)]:
            storage.drop_log(log)
            yield 1
        yield from broker.authentication.granted.forget_vhost(vhost.name)


def delete_rows(table: Table) -> Iterator[int]:
    """Delete the rows of a table, one after the other; 1 for each."""
    for key in [key for key, _ in table.items()]:
        table.delete(key)
        yield 1
