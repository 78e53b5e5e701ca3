"""What is counted of each thing, under one set of names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from trivium.common.counters import NOTHING_COUNTED, Traffic
from trivium.common.quotas import LISTENER, VHOST
from trivium.queues.queue import Queue
from trivium.streams.stream import Stream
from trivium.vhost.totals import Totals, totals_of

if TYPE_CHECKING:
    from trivium.routing.exchanges import Exchange
    from trivium.runtime.adapter import Connection
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost

#: A figure by its name.
Figures = dict[str, int]

#: What is counted of events.
_COUNTED: Final = {
    "channel.created": "channel_created",
    "channel.closed": "channel_closed",
    "queue.created": "queue_created",
    "queue.deleted": "queue_deleted",
    "stream.created": "queue_created",
    "stream.deleted": "queue_deleted",
}

#: Those that say how many messages there are now; the others only rise.
LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
#: Those that say how many bytes a connection has taken and sent.
BYTES: Final = ("recv_oct", "send_oct")


def lengths_of(item: Queue | Stream) -> Figures:
    """How many messages a queue or stream has. Of a stream nothing is unsettled: reading takes
    nothing away."""
    if isinstance(item, Stream):
        ready, unsettled = item.record_count, 0
    else:
        ready, unsettled = len(item), item.unsettled
    return {
        "messages": ready + unsettled,
        "messages_ready": ready,
        "messages_unacknowledged": unsettled,
    }


def of_queue(queue: Queue) -> Figures:
    """A queue; one that never had messages has no more to say than how many it has."""
    found = lengths_of(queue)
    if queue.counters is not NOTHING_COUNTED:
        found |= of_totals(totals_of(queue))
    return found


def of_stream(stream: Stream) -> Figures:
    """A stream."""
    totals = Totals()
    totals.add_stream(stream)
    counted = {"publish": totals.appended, "deliver_get": totals.records_read}
    return lengths_of(stream) | counted


def of_totals(totals: Totals) -> Figures:
    """What queues have counted."""
    got = totals.got + totals.got_settled
    return {
        "publish": totals.published,
        "deliver": totals.delivered,
        "deliver_no_ack": totals.delivered_settled,
        "deliver_get": totals.delivered + totals.delivered_settled + got,
        "get": totals.got,
        "get_no_ack": totals.got_settled,
        "get_empty": totals.got_nothing,
        "redeliver": totals.redelivered,
        "ack": totals.acknowledged,
    }


def of_exchange(exchange: Exchange) -> Figures:
    """An exchange."""
    counters = exchange.counters
    return {"publish_in": counters.published, "publish_out": counters.routed}


def of_traffic(traffic: Traffic) -> Figures:
    """What a channel has counted."""
    got = traffic.got + traffic.got_settled
    return {
        "publish": traffic.published,
        "confirm": traffic.confirmed,
        "return_unroutable": traffic.returned,
        "drop_unroutable": traffic.unroutable,
        "deliver": traffic.delivered,
        "deliver_no_ack": traffic.delivered_settled,
        "deliver_get": traffic.delivered + traffic.delivered_settled + got,
        "get": traffic.got,
        "get_no_ack": traffic.got_settled,
        "get_empty": traffic.got_nothing,
        "redeliver": traffic.redelivered,
        "ack": traffic.acknowledged,
    }


def of_connection(traffic: Traffic) -> Figures:
    """What a connection has counted."""
    return {"recv_oct": traffic.bytes_received, "send_oct": traffic.bytes_sent}


class Sums:
    """What clients have counted since the start, by virtual host and all together: those that are
    connected, and those that were. One that goes meanwhile is counted as it was."""

    def __init__(self, broker: Broker) -> None:
        self.all = Traffic()
        self._vhosts = {name: Traffic() for name in broker.vhosts}
        for account in broker.quotas.accounts():
            if account.scope == LISTENER:
                self.all.add(account.traffic)
            elif account.scope == VHOST and account.name in self._vhosts:
                self._vhosts[account.name].add(account.traffic)
        self._connections = list(broker.connections)

    def count(self) -> Iterator[None]:
        """Count, a connection at a time."""
        for connection in self._connections:
            self.add(connection)
            yield

    def add(self, connection: Connection) -> None:
        """Add what one has counted, once it has entered."""
        served = connection.usage.served
        if served:
            self.all.add(connection.traffic)
            found = self._vhosts.get(served[1].name)
            if found is not None:
                found.add(connection.traffic)

    def of_vhost(self, name: str) -> Traffic:
        """Those of one that was there."""
        return self._vhosts.get(name) or Traffic()


def everything(broker: Broker, churn: Callable[[], Figures]) -> Iterator[tuple[object, Figures]]:
    """All that has figures, and at the end virtual hosts and the broker, with what their parts come
    to; ``churn`` says how much has come and gone.

    What is gone by the time it is reached is left out. None stands for what never moved.
    """
    vhosts = list(broker.vhosts.values())
    every = {vhost: dict.fromkeys(LENGTHS, 0) for vhost in vhosts}
    for vhost in vhosts:
        lengths = every[vhost]
        for thing, figures in _in_vhost(vhost):
            if isinstance(thing, Queue | Stream):
                for name in LENGTHS:
                    lengths[name] += figures[name]
            is_idle = isinstance(thing, Queue) and thing.counters is NOTHING_COUNTED
            yield (None if is_idle else thing), figures
    sums = Sums(broker)
    for connection in list(broker.connections):
        sums.add(connection)
        yield connection, of_connection(connection.traffic)
        for channel in connection.managed().channels():
            yield (connection, channel.number), of_traffic(channel.traffic)
    for vhost, lengths in every.items():
        traffic = sums.of_vhost(vhost.name)
        yield vhost, {**lengths, **of_traffic(traffic), **of_connection(traffic)}
    together = {name: sum(each[name] for each in every.values()) for name in LENGTHS}
    yield broker, {**together, **of_traffic(sums.all), **churn()}


def _in_vhost(vhost: VirtualHost) -> Iterator[tuple[object, Figures]]:
    for queue in list(vhost.queues.values()):
        if not queue.is_deleted:
            yield queue, of_queue(queue)
    for stream in list(vhost.streams.values()):
        if not stream.is_deleted:
            yield stream, of_stream(stream)
    for exchange in list(vhost.exchanges.values()):
        yield exchange, of_exchange(exchange)


class Churn:
    """What has come and gone since the start."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._counts = dict.fromkeys(_COUNTED.values(), 0)

    def heard(self, event: str) -> None:
        """Something has happened."""
        name = _COUNTED.get(event)
        if name is not None:
            self._counts[name] += 1

    def figures(self) -> Figures:
        """How much it was."""
        every = [adapter.metrics for adapter in self._broker.adapters.values()]
        return {
            "connection_created": sum(each.connections_opened for each in every),
            "connection_closed": sum(each.connections_closed for each in every),
            "queue_declared": self._broker.queues_declared,
            **self._counts,
        }
