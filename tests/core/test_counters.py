"""What is counted of each queue, exchange and stream."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.core import RecordingConsumer, broker_of, message, open_vhost
from tests.support.storages import HeldStorage
from trivium.common.counters import NOTHING_COUNTED
from trivium.messages.message import AT_MOST_ONCE, Message
from trivium.queues.queue import Queue
from trivium.routing.exchanges import ACCEPTED, REJECTED, UNROUTABLE, Binding
from trivium.vhost.totals import Totals, totals_of
from trivium.vhost.virtual_host import VirtualHost


@pytest.fixture
def vhost() -> VirtualHost:
    return open_vhost()


def declare(vhost: VirtualHost, name: str = "q", **arguments: Any) -> Queue:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return vhost.declare_queue(name, durable=True, arguments=named)


def put(queue: Queue, count: int = 1) -> None:
    for _ in range(count):
        queue.put(message(b"x"), b"")


def counted(queue: Queue) -> dict[str, Any]:
    """What is not 0."""
    return {name: value for name, value in vars_of(totals_of(queue)).items() if value}


def vars_of(totals: Totals) -> dict[str, Any]:
    names = [*("published", "refused", "delivered", "delivered_settled", "redelivered", "got")]
    names += ["got_settled", "acknowledged", "expired", "dead_lettered", "dropped"]
    names += ["appended", "records_read"]
    return {name: getattr(totals, name) for name in names}


def test_a_queue_without_messages_has_no_counters_of_its_own(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    assert queue.counters is NOTHING_COUNTED
    put(queue)
    assert queue.counters is not NOTHING_COUNTED
    assert NOTHING_COUNTED.published == 0


def test_deliveries_to_be_settled_and_their_acknowledgements(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    put(queue, 3)
    queue.settle(consumer.entries[0])
    assert counted(queue) == {"published": 3, "delivered": 3, "acknowledged": 1}
    queue.settle(consumer.entries[0])
    assert counted(queue)["acknowledged"] == 1, "it is done with once"


def test_deliveries_that_settle(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    queue.add_consumer(RecordingConsumer(no_ack=True))
    put(queue, 2)
    assert counted(queue) == {"published": 2, "delivered_settled": 2}


def test_a_run_counts_as_its_messages(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    queue.add_consumer(RecordingConsumer(credit=2))
    queue.accept_run([message(b"x") for _ in range(5)])
    assert counted(queue) == {"published": 5, "delivered": 2}


def test_what_comes_again_is_redelivered(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    put(queue)
    queue.requeue(consumer.entries[0])
    queue.dispatch()
    assert counted(queue) == {"published": 1, "delivered": 2, "redelivered": 1}


def test_messages_that_are_got_one_by_one(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    put(queue, 3)
    entry = queue.get()
    assert entry is not None
    queue.settle(entry)
    settled = queue.get(no_ack=True)
    assert settled is not None
    assert settled.is_settled
    assert counted(queue) == {"published": 3, "got": 1, "got_settled": 1, "acknowledged": 1}


def test_at_most_once_settles_what_is_handed_out(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    sent = message(b"x", mode=AT_MOST_ONCE, persistent=False)
    sent.insists = True
    queue.put(sent, b"")
    queue.settle(consumer.entries[0])
    assert counted(queue) == {"published": 1, "delivered_settled": 1}


def test_dead_letters_are_counted_by_reason(vhost: VirtualHost) -> None:
    queue = declare(vhost, dead_letter_exchange="", dead_letter_routing_key="dead", max_length=2)
    declare(vhost, "dead")
    put(queue, 3)
    entry = queue.get()
    assert entry is not None
    queue.reject(entry)
    broker_of(vhost).end_turn()
    found = counted(queue)
    assert found == {"published": 3, "got": 1, "dead_lettered": {"maxlen": 1, "rejected": 1}}
    assert len(vhost.queues["dead"]) == 2


def test_a_dead_letter_on_its_way_is_not_acknowledged(vhost: VirtualHost) -> None:
    queue = declare(vhost, dead_letter_exchange="", dead_letter_routing_key="dead")
    put(queue)
    entry = queue.get()
    assert entry is not None
    queue.reject(entry)
    assert totals_of(queue).acknowledged == 0


def test_what_nobody_gets_is_dropped_by_reason(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length=2)
    put(queue, 4)
    entry = queue.get()
    assert entry is not None
    queue.reject(entry)
    queue.purge()
    assert counted(queue) == {
        "published": 4,
        "got": 1,
        "dropped": {"maxlen": 2, "rejected": 1, "purged": 1},
    }


def test_what_expires_is_counted(vhost: VirtualHost) -> None:
    broker_of(vhost).now_ms = 1_000
    queue = declare(vhost)
    queue.put(message(b"x", expires=2_000), b"")
    broker_of(vhost).now_ms = 3_000
    assert queue.get() is None
    assert counted(queue) == {"published": 1, "expired": 1, "dropped": {"expired": 1}}


def test_what_has_no_room_is_refused(vhost: VirtualHost) -> None:
    queue = declare(vhost, max_length=1, overflow="reject-publish")
    assert [queue.put(message(b"x"), b"") for _ in range(2)] == [ACCEPTED, REJECTED]
    assert counted(queue) == {"published": 1, "refused": 1}


def publish(vhost: VirtualHost, exchange: str, key: bytes) -> int:
    sent: Message = message(b"x", key, exchange)
    return vhost.publish(sent, vhost.route(vhost.exchange(exchange), key))


def exchange_counts(vhost: VirtualHost, name: str) -> tuple[int, int, int]:
    counters = vhost.exchanges[name].counters
    return counters.published, counters.routed, counters.unroutable


def test_an_exchange_counts_what_comes_and_where_it_goes(vhost: VirtualHost) -> None:
    for name in ("a", "b"):
        vhost.bind(vhost.exchange("amq.fanout"), Binding(declare(vhost, name), b""))
    publish(vhost, "amq.fanout", b"k")
    assert publish(vhost, "amq.direct", b"nowhere") == UNROUTABLE
    publish(vhost, "", b"a")
    assert exchange_counts(vhost, "amq.fanout") == (1, 2, 0)
    assert exchange_counts(vhost, "amq.direct") == (1, 0, 1)
    assert exchange_counts(vhost, "") == (1, 1, 0)


def test_a_run_counts_for_its_exchange(vhost: VirtualHost) -> None:
    declare(vhost)
    route = vhost.route(vhost.exchange(""), b"q")
    vhost.publish_run([message(b"1", b"q"), message(b"2", b"q")], route)
    assert exchange_counts(vhost, "") == (2, 2, 0)


def test_the_exchange_that_a_message_was_addressed_to_counts(vhost: VirtualHost) -> None:
    inner = vhost.declare_exchange("inner", "headers")
    vhost.bind(vhost.exchange("amq.fanout"), Binding(inner.destination(), b""))
    vhost.bind(inner, Binding(declare(vhost), b""))
    sent = message(b"x", b"k", "amq.fanout")
    route = vhost.route(vhost.exchange("amq.fanout"), b"k").resolve(sent)
    vhost.publish(sent, route)
    assert exchange_counts(vhost, "amq.fanout") == (1, 1, 0)
    assert exchange_counts(vhost, "inner") == (0, 0, 0)


def test_a_partition_counts_what_is_appended() -> None:
    vhost = open_vhost(HeldStorage())
    stream = vhost.declare_stream("s")
    for _ in range(3):
        stream.accept(message(b"x"))
    broker_of(vhost).end_turn()
    assert stream.partitions[0].appended == 3
    assert stream.partitions[0].records_read == 0


def test_a_virtual_host_keeps_the_sums_of_what_is_deleted(vhost: VirtualHost) -> None:
    queue = declare(vhost)
    put(queue, 2)
    vhost.delete_queue(queue)
    stream = vhost.declare_stream("s")
    stream.accept(message(b"x"))
    broker_of(vhost).end_turn()
    vhost.delete_stream("s")
    assert (vhost.gone.published, vhost.gone.appended) == (2, 1)
