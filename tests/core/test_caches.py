"""What is remembered for clients is bounded in bytes too, since they choose how long names are."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

import pytest

from tests.support import mqtt
from tests.support.core import open_vhost
from tests.support.steps import living
from trivium.common.equivalence import MAX_TOLD_LENGTH, UnknownArguments
from trivium.messages.topics import key_of
from trivium.queues.queue import Queue
from trivium.routing.exchanges import Binding, Route
from trivium.security.identity import Identity
from trivium.security.permissions import (
    MAX_ACCESS_BYTES,
    MAX_DECISION_BYTES,
    MAX_DECISIONS,
    READ,
    Access,
    Permissions,
    grants_of,
)
from trivium.vhost import routes
from trivium_mqtt import topic_cache
from trivium_mqtt.options import MqttOptions
from trivium_mqtt.topic_cache import TopicCache

LONG = 60_000


def test_topics_are_remembered_up_to_so_many_bytes() -> None:
    vhost = open_vhost()
    permissions = Permissions()
    permissions.set_user("ann", grants_of({"/": {"write": "^amq.topic$"}}, {}, [], []))
    cache = TopicCache(vhost, permissions.access(Identity("ann"), "/"))
    costs: list[int] = []
    for number in range(topic_cache.MAX_RESTRICTED_COST // LONG):
        cache.route(b"%d" % number + b"x" * LONG)
        costs.append(cache.cost)
    assert max(costs) <= topic_cache.MAX_RESTRICTED_COST
    assert costs != sorted(costs), "it was emptied"
    # What is short is remembered by the thousand.
    kept = [cache.route(b"short/%d" % number) for number in range(2000)]
    assert all(cache.route(b"short/%d" % number) is kept[number] for number in range(2000))


def test_a_topic_whose_route_changes_does_not_cost_twice() -> None:
    vhost = open_vhost()
    cache = TopicCache(vhost)
    cache.route(b"a")
    before = cache.cost
    for number in range(3):
        queue = vhost.declare_queue(f"q{number}")
        vhost.bind(cache.exchange, Binding(queue, b"a"))
        assert cache.route(b"a").cost == cache.cost
    assert cache.cost > before
    assert vhost.route(cache.exchange, b"a") is cache.route(b"a")


def test_routes_are_remembered_up_to_so_many_bytes() -> None:
    vhost = open_vhost()
    exchange = vhost.exchange("amq.topic")
    most = routes.MAX_COST
    first = vhost.route(exchange, b"a")
    assert vhost.route(exchange, b"a") is first
    for number in range(most // (2 * LONG) + 1):
        vhost.route(exchange, b"%d" % number + b"x" * LONG)
    assert vhost.route(exchange, b"a") is not first


def by_vhost(cache: TopicCache, topic: bytes) -> Route:
    return cache.vhost.route(cache.exchange, key_of(topic))


def asks_for_name(access: Access, name: str) -> bool:
    return access.may(READ, name)


def asks_for_topic(access: Access, name: str) -> bool:
    return access.may_topic(READ, "x", name.encode())


@pytest.mark.parametrize("find", [TopicCache.route, by_vhost])
def test_routes_to_queues_that_are_gone_are_forgotten(
    find: Callable[[TopicCache, bytes], Route],
) -> None:
    """Clients that come with a queue of their own and leave keep no queues in memory."""
    vhost = open_vhost()
    cache = TopicCache(vhost)
    before = living(Queue)
    for number in range(100):
        queue = vhost.declare_queue(f"q{number}")
        vhost.bind(cache.exchange, Binding(queue, b"visit.%d" % number))
        assert find(cache, b"visit/%d" % number).destinations == [queue]
        vhost.delete_queue(queue)
        del queue
    gc.collect()
    assert living(Queue) < before + 10


def test_what_is_up_to_date_is_not_forgotten() -> None:
    vhost = open_vhost()
    cache = TopicCache(vhost)
    found = [cache.route(b"%d" % number) for number in range(100)]
    assert all(cache.route(b"%d" % number) is found[number] for number in range(100))
    vhost.bind(cache.exchange, Binding(vhost.declare_queue("q"), b"#"))
    # Each is found again, however the others are forgotten meanwhile.
    again = [cache.route(b"%d" % number) for number in range(100)]
    assert all(len(each.destinations) == 1 for each in again)
    before = cache.cost
    assert all(cache.route(b"%d" % number) is again[number] for number in range(100))
    assert cache.cost == before == sum(each.cost for each in again)


ASKS = pytest.mark.parametrize("asks", [asks_for_name, asks_for_topic])


@ASKS
def test_decisions_are_remembered_up_to_so_many_bytes(asks: Callable[[Access, str], bool]) -> None:
    permissions = Permissions()
    accesses = [permissions.access(Identity("ann"), "/", f"c{number}") for number in range(3)]
    sizes: list[int] = []
    for number in range(MAX_DECISION_BYTES // LONG + 10):
        assert not asks(accesses[number % 3], f"x{number}" + "y" * LONG)
        sizes.append(permissions.decision_bytes)
    assert max(sizes) <= MAX_DECISION_BYTES
    assert sizes != sorted(sizes), "they were forgotten"


@ASKS
def test_so_many_decisions_are_remembered(asks: Callable[[Access, str], bool]) -> None:
    permissions = Permissions()
    access = permissions.access(Identity("ann"), "/")
    for number in range(MAX_DECISIONS):
        asks(access, str(number))
    full = permissions.decision_bytes
    asks(access, "0")
    assert permissions.decision_bytes == full
    for name in ("another", "0"):
        asks(access, name)
    assert permissions.decision_bytes == full + len("another") + len("0")


@ASKS
def test_decisions_are_forgotten_also_of_who_is_not_remembered(
    asks: Callable[[Access, str], bool],
) -> None:
    permissions = Permissions()
    held = permissions.access(Identity("ann"), "/", "held")
    asks(held, "q")
    other = permissions.access(Identity("ann"), "/", "x" * MAX_ACCESS_BYTES)
    assert permissions.access(Identity("ann"), "/", "held") is not held
    for number in range(MAX_DECISION_BYTES // LONG + 1):
        asks(other, f"x{number}" + "y" * LONG)
    before = permissions.decision_bytes
    assert before < MAX_DECISION_BYTES // 2
    asks(held, "q")
    assert permissions.decision_bytes == before + len("q")


def test_clients_with_long_identifiers_are_not_remembered_by_the_thousand() -> None:
    permissions = Permissions()
    first = permissions.access(Identity("ann"), "/", "a")
    for number in range(MAX_ACCESS_BYTES // LONG + 1):
        permissions.access(Identity("ann"), "/", f"{number}" + "x" * LONG)
    assert permissions.access(Identity("ann"), "/", "a") is not first


def test_a_long_name_of_an_argument_is_told_in_short(caplog: pytest.LogCaptureFixture) -> None:
    unknown = UnknownArguments()
    with caplog.at_level(logging.WARNING):
        for last in "ab":
            unknown.tell("queue 'q'", {"x" * LONG + last: 1}, ())
    (record,) = caplog.records
    assert len(record.getMessage()) < MAX_TOLD_LENGTH + 100


def alias(topic: str, number: int) -> bytes:
    return mqtt.publish(topic, b"", 0, 1, 5, properties=b"\x23" + number.to_bytes(2, "big"))


def test_aliases_of_long_topics_are_bounded_in_bytes() -> None:
    server = mqtt.Server(options=MqttOptions(topic_alias_maximum=4))
    client = server.open("c", 5)
    for number in range(1, 5):
        client.feed(alias("t" * 4096, number))
    # An alias may be set anew.
    client.feed(alias("u" * 4096, 1))
    assert not client.is_closed
    client.feed(alias("v" * 5000, 2))
    assert client.take_one() == (0xE0, b"\x97\x00") or client.is_closed
    assert client.is_closed
