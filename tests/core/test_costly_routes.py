"""Routes that are much work to find: it is counted, and bounded for each message."""

from __future__ import annotations

import pytest

from tests.support.core import message, open_vhost
from tests.support.costly import LONG_KEY, REFUSED_KEY, bind_many, bind_too_many
from trivium.errors import MAX_VISITS, RouteTooCostly
from trivium.routing.exchanges import Binding, Demand, Route
from trivium.runtime.broker import Broker
from trivium.vhost.virtual_host import VirtualHost


@pytest.fixture
def vhost() -> VirtualHost:
    made = open_vhost()
    made.declare_queue("q")
    return made


def worked(vhost: VirtualHost, exchange: str, key: str) -> int:
    """What it takes to find a route."""
    before = vhost.broker.work
    route = vhost.route(vhost.exchange(exchange), key.encode())
    route.resolve(message())
    return vhost.broker.work - before


def test_the_nodes_of_a_topic_exchange_that_are_visited_count(vhost: VirtualHost) -> None:
    bind_many(vhost, vhost.queues["q"])
    # 1 + 2 + 4 + ... + 512 nodes, 512 bindings, 1 exchange.
    assert worked(vhost, "amq.topic", LONG_KEY) == 1023 + 512 + 1
    # It is remembered.
    assert worked(vhost, "amq.topic", LONG_KEY) == 0
    # Those of nine levels are left early.
    assert worked(vhost, "amq.topic", "b") == 1 + 1 + 1


def test_the_arguments_of_a_headers_exchange_count_for_each_message(vhost: VirtualHost) -> None:
    headers = vhost.exchange("amq.headers")
    for number in range(10):
        vhost.bind(headers, Binding(vhost.queues["q"], b"", {"n": number, "m": number}))
    # One exchange is asked, and nothing found.
    assert worked(vhost, "amq.headers", "") == 10 * 3 + 1
    assert worked(vhost, "amq.headers", "") == 10 * 3 + 1
    vhost.unbind(headers, Binding(vhost.queues["q"], b"", {"n": 1, "m": 1}))
    assert worked(vhost, "amq.headers", "") == 9 * 3 + 1


def test_bindings_between_exchanges_count(vhost: VirtualHost) -> None:
    exchanges = [vhost.declare_exchange(f"e{number}", "fanout") for number in range(10)]
    for one in exchanges:
        for other in exchanges:
            vhost.bind(one, Binding(other.destination(), b""))
    # Each of 100 is found and followed, and each exchange asked once.
    assert worked(vhost, "e0", "k") == 100 + 100 + 10


def test_a_key_that_visits_too_much_is_refused_until_the_topology_changes(
    vhost: VirtualHost,
) -> None:
    queue = vhost.queues["q"]
    vhost.declare_exchange("e", "topic")
    bind_too_many(vhost, queue, "e")
    exchange = vhost.exchange("e")
    for _ in range(2):
        route = vhost.route(exchange, REFUSED_KEY.encode())
        assert route.destinations == []
        with pytest.raises(RouteTooCostly, match="250000"):
            route.resolve(message())
    with pytest.raises(RouteTooCostly):
        vhost.route_all(exchange, [b"x", REFUSED_KEY.encode()], message())
    # It was sought but once, and once more with the other key; not much beyond the bound.
    assert 2 * MAX_VISITS <= vhost.broker.work < 3 * MAX_VISITS
    # Others are not refused.
    assert vhost.route(exchange, b"b").resolve(message()).destinations == [queue]
    for binding in exchange.bindings():
        vhost.unbind(exchange, binding)
    vhost.bind(exchange, Binding(queue, b"#"))
    route = vhost.route(exchange, REFUSED_KEY.encode()).resolve(message())
    assert route.destinations == [queue]


def test_a_headers_exchange_with_too_many_arguments_refuses(vhost: VirtualHost) -> None:
    headers = vhost.exchange("amq.headers")
    names = [f"n{number}" for number in range(2500)]
    for number in range(100):
        vhost.bind(headers, Binding(vhost.queues["q"], b"", dict.fromkeys(names, number)))
    route = vhost.route(headers, b"")
    with pytest.raises(RouteTooCostly):
        route.resolve(message())
    vhost.unbind(headers, headers.bindings()[0])
    assert route.resolve(message()).destinations == []


def test_purged_and_deleted_messages_count(vhost: VirtualHost) -> None:
    queue = vhost.queues["q"]
    for _ in range(300):
        queue.accept(message())
    before = vhost.broker.work
    assert queue.purge() == 300
    assert vhost.broker.work - before == 300
    for _ in range(200):
        queue.accept(message())
    before = vhost.broker.work
    vhost.delete_queue(queue)
    assert vhost.broker.work - before == 200


def test_a_dead_letter_whose_key_is_refused_is_lost(vhost: VirtualHost) -> None:
    vhost.declare_exchange("dead", "topic")
    bind_too_many(vhost, vhost.queues["q"], "dead")
    arguments = {
        "x-dead-letter-exchange": "dead",
        "x-dead-letter-routing-key": REFUSED_KEY,
        "x-max-length": 1,
    }
    full = vhost.declare_queue("full", arguments=arguments)
    for _ in range(3):
        full.accept(message())
    broker = vhost.broker
    assert isinstance(broker, Broker)
    # Each is enough for a turn.
    broker.end_turn()
    assert broker.dead_letters.lost.counts["too_costly"] == 1
    broker.end_turn()
    assert (len(full), len(vhost.queues["q"])) == (1, 0)
    assert broker.dead_letters.lost.counts["too_costly"] == 2


def test_work_counts_as_deliveries_of_what_is_published_together() -> None:
    demand = Demand()
    demand.add_work(8 * 131_072)
    assert not demand.is_too_much
    demand.add(Route(message().address, [], 0), 0)
    demand.add_work(8)
    assert demand.is_too_much
