"""What is counted of each thing, under one set of names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trivium.common.counters import NOTHING_COUNTED, Traffic
from trivium.queues.queue import Queue
from trivium.streams.stream import Stream
from trivium.vhost.totals import Totals, totals_of

if TYPE_CHECKING:
    from trivium.routing.exchanges import Exchange
    from trivium.runtime.broker import Broker

#: A figure by its name.
Figures = dict[str, int]

#: Those that say how many messages there are now; the others only rise.
LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")


def of_queue(queue: Queue) -> Figures:
    """A queue; one that never had messages has no more to say than that."""
    ready, unsettled = len(queue), queue.unsettled
    found = {
        "messages": ready + unsettled,
        "messages_ready": ready,
        "messages_unacknowledged": unsettled,
    }
    if queue.counters is not NOTHING_COUNTED:
        found |= of_totals(totals_of(queue))
    return found


def of_stream(stream: Stream) -> Figures:
    """A stream, of which nothing is unsettled: reading takes nothing away."""
    totals = Totals()
    totals.add_stream(stream)
    count = stream.record_count
    return {
        "messages": count,
        "messages_ready": count,
        "messages_unacknowledged": 0,
        "publish": totals.appended,
        "deliver_get": totals.records_read,
    }


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
        "redeliver": traffic.redelivered,
        "ack": traffic.acknowledged,
    }


def of_connection(traffic: Traffic) -> Figures:
    """What a connection has counted."""
    return {"recv_oct": traffic.bytes_received, "send_oct": traffic.bytes_sent}


def everything(broker: Broker) -> Iterator[tuple[object, Figures]]:
    """All that has figures, and at the end the broker, with what its parts come to.

    What is gone by the time it is reached is left out. None stands for what never moved.
    """
    lengths = dict.fromkeys(LENGTHS, 0)
    for vhost in list(broker.vhosts.values()):
        for queue in list(vhost.queues.values()):
            if not queue.is_deleted:
                figures = of_queue(queue)
                for name in LENGTHS:
                    lengths[name] += figures[name]
                moves = queue.counters is not NOTHING_COUNTED
                yield (queue if moves else None), figures
        for stream in list(vhost.streams.values()):
            if not stream.is_deleted:
                figures = of_stream(stream)
                for name in LENGTHS:
                    lengths[name] += figures[name]
                yield stream, figures
        for exchange in list(vhost.exchanges.values()):
            yield exchange, of_exchange(exchange)
    for connection in list(broker.connections):
        yield connection, of_connection(connection.traffic)
        for channel in connection.managed().channels():
            yield (connection, channel.number), of_traffic(channel.traffic)
    yield broker, {**lengths, **of_broker(broker)}


def of_broker(broker: Broker) -> Figures:
    """What has come in and gone out by all roads since the start."""
    every = [adapter.metrics for adapter in broker.adapters.values()]
    return {
        "publish": sum(each.messages_received for each in every),
        "deliver_get": sum(each.messages_sent for each in every),
        "redeliver": sum(each.messages_redelivered for each in every),
        "drop_unroutable": sum(each.messages_unroutable for each in every),
        "connection_created": sum(each.connections_opened for each in every),
        "connection_closed": sum(each.connections_closed for each in every),
    }
