"""Queues that nobody uses cost little: what few of them need is made when it is needed."""

from __future__ import annotations

import gc
import tracemalloc

from tests.support.core import message
from tests.support.server import Server
from tests.support.simulated import Host
from trivium.messages.message import HeaderValue
from trivium.observability.process import is_compiled
from trivium.queues.queue import Queue
from trivium.queues.settings import settings_of, shared_arguments
from trivium.routing.exchanges import Binding

COUNT = 2_000
#: Bytes of a durable queue with a binding: seven objects and the names, two rows of tables, and a
#: place in each of six dicts, which may be full to a third. Interpreted, an object has a dict too.
MOST_BYTES = 2_000 if is_compiled() else 4_500


def declare(server: Server, number: int) -> Queue:
    queue = server.vhost.declare_queue(f"queue.{number:05}", durable=True)
    exchange = server.vhost.exchange("amq.topic")
    server.vhost.bind(exchange, Binding(queue, b"bound.%05d" % number))
    return queue


def test_an_idle_durable_queue_with_a_binding_costs_few_bytes() -> None:
    server = Server()
    for number in range(100):
        declare(server, number)
    server.settle()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(100, 100 + COUNT):
            declare(server, number)
        server.settle()
        cost = (tracemalloc.get_traced_memory()[0] - before) / COUNT
    finally:
        tracemalloc.stop()
    assert cost < MOST_BYTES


def test_queues_with_the_same_arguments_share_them_and_what_they_mean() -> None:
    one, other = ({"x-max-length": 5, "x-overflow": "reject-publish"} for _ in range(2))
    assert shared_arguments(one) is shared_arguments(other)
    assert settings_of(one, {}) is settings_of(other, {})
    assert shared_arguments({}) is shared_arguments(None)
    # 1 is not true.
    assert shared_arguments({"x": 1}) is not shared_arguments({"x": True})
    assert settings_of(one, {}) is not settings_of(one, {"max-length": 3})
    assert settings_of(one, {}, 1) is not settings_of(one, {})
    assert settings_of(one, {}, 1, is_private=True).delivery == -1


def test_what_is_shared_has_a_bound() -> None:
    first = shared_arguments({"x-expires": 1})
    for number in range(2, 3_000):
        shared_arguments({"x-expires": number})
        settings_of({"x-expires": number}, {})
    assert shared_arguments({"x-expires": 1}) is not first
    # Very long ones are not kept at all.
    long: dict[str, HeaderValue] = {"x": "y" * 2_000}
    assert shared_arguments(long) is long
    assert shared_arguments(dict(long)) is not long


def test_a_deleted_queue_that_was_never_used_is_not_kept_by_what_comes_later() -> None:
    server = Server(host=Host())
    queue = declare(server, 77)
    # Consumers whose connection is gone say so, whether it is there or not.
    server.vhost.delete_queue(queue)
    queue.dispatch_later()
    gc.collect()
    gc.disable()
    try:
        name = queue.name
        del queue
        server.settle()
        queues = [each for each in gc.get_objects() if isinstance(each, Queue)]
        assert name not in [each.name for each in queues]
    finally:
        gc.enable()


def test_a_queue_that_was_used_serves_as_before() -> None:
    server = Server(host=Host())
    queues = [declare(server, number) for number in range(3)]
    # They share what is empty: nothing of one may come to the others.
    queues[0].put(message(b"1"), b"")
    entry = queues[0].get()
    assert entry is not None
    queues[0].requeue(entry)
    queues[1].put(message(b"2"), b"")
    assert [len(queue) for queue in queues] == [1, 1, 0]
    for queue in queues[:2]:
        entry = queue.get()
        assert entry is not None
        queue.settle(entry)
        server.settle()
        assert (len(queue), queue.unsettled, queue.get()) == (0, 0, None)
    assert [queue.counters.settled for queue in queues] == [1, 1, 0]
