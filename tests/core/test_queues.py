"""Queues: order, competing consumers, settlement, the cache before a long backlog."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trivium.queues.sub_queues
from tests.support.core import RecordingConsumer, broker_of, drain, message, open_broker, open_vhost
from tests.support.steps import steps
from tests.support.storages import HeldStorage
from trivium.errors import AccessRefused
from trivium.messages.message import EXACTLY_ONCE, HeaderValue
from trivium.queues.queue import Queue
from trivium.storage.base import Storage
from trivium.vhost.queue_logs import queue_log_name
from trivium.vhost.virtual_host import VirtualHost


def queue_of(
    storage: Storage | None = None, durable: bool = True, **arguments: HeaderValue
) -> Queue:
    return open_vhost(storage).declare_queue("q", durable=durable, arguments=dict(arguments))


def fill(queue: Queue, count: int, persistent: bool = True) -> None:
    for number in range(count):
        queue.put(message(b"%d" % number, persistent=persistent), b"")


@pytest.fixture(params=["memory", "log"])
def queue(request: pytest.FixtureRequest) -> Queue:
    return queue_of(HeldStorage() if request.param == "log" else None)


def test_first_in_first_out(queue: Queue) -> None:
    fill(queue, 3)
    assert len(queue) == 3
    assert drain(queue) == [b"0", b"1", b"2"]
    assert (len(queue), queue.unsettled) == (0, 0)


def test_a_waiting_consumer_gets_a_message_at_once(queue: Queue) -> None:
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    fill(queue, 2)
    assert consumer.payloads == [b"0", b"1"]
    assert (len(queue), queue.unsettled) == (0, 2)


def test_consumers_compete_in_turn(queue: Queue) -> None:
    first, second = RecordingConsumer(), RecordingConsumer()
    queue.add_consumer(first)
    queue.add_consumer(second)
    fill(queue, 4)
    assert (first.payloads, second.payloads) == ([b"0", b"2"], [b"1", b"3"])


def test_a_consumer_without_credit_is_passed_over(queue: Queue) -> None:
    first, second = RecordingConsumer(credit=1), RecordingConsumer(credit=2)
    queue.add_consumer(first)
    queue.add_consumer(second)
    fill(queue, 4)
    assert (first.payloads, second.payloads) == ([b"0"], [b"1", b"2"])
    assert len(queue) == 1
    first.credit = 1
    queue.dispatch()
    assert first.payloads == [b"0", b"3"]


def test_higher_priority_consumers_come_first(queue: Queue) -> None:
    low, high = RecordingConsumer(), RecordingConsumer(credit=2, priority=5)
    queue.add_consumer(low)
    queue.add_consumer(high)
    fill(queue, 3)
    assert (high.payloads, low.payloads) == ([b"0", b"1"], [b"2"])


def test_requeued_messages_keep_their_position_and_are_redelivered(queue: Queue) -> None:
    fill(queue, 4)
    taken = [queue.get() for _ in range(3)]
    for entry in (taken[2], taken[0]):
        assert entry is not None
        queue.requeue(entry)
    again = queue.get()
    assert again is not None
    assert (again.message.payload, again.is_redelivered, again.requeues) == (b"0", True, 1)
    assert drain(queue) == [b"2", b"3"]


def test_a_message_that_was_not_seen_is_not_redelivered(queue: Queue) -> None:
    fill(queue, 1)
    entry = queue.get()
    assert entry is not None
    queue.requeue(entry, was_delivered=False)
    again = queue.get()
    assert again is not None
    assert not again.is_redelivered


def test_expired_messages_are_passed_over(queue: Queue) -> None:
    broker = broker_of(queue.vhost)
    broker.now_ms = 1000
    queue.put(message(b"gone", expires=1000), b"")
    queue.put(message(b"alive", expires=1001), b"")
    assert drain(queue) == [b"alive"]
    assert (queue.given_up.expired, queue.unsettled) == (1, 0)


def test_no_ack_consumers_settle_on_delivery(queue: Queue) -> None:
    consumer = RecordingConsumer(no_ack=True)
    queue.add_consumer(consumer)
    fill(queue, 2)
    assert (consumer.payloads, queue.unsettled, queue.counters.settled) == ([b"0", b"1"], 0, 2)


def test_exclusive_consumer_refuses_others_and_is_refused_beside_others(queue: Queue) -> None:
    only = RecordingConsumer()
    queue.add_consumer(only, exclusive=True)
    with pytest.raises(AccessRefused, match="exclusive use"):
        queue.add_consumer(RecordingConsumer())
    queue.remove_consumer(only)
    queue.add_consumer(RecordingConsumer())
    with pytest.raises(AccessRefused, match="exclusive use"):
        queue.add_consumer(RecordingConsumer(), exclusive=True)


def test_purge_removes_what_is_ready_only(queue: Queue) -> None:
    fill(queue, 3)
    held = queue.get()
    assert held is not None
    assert queue.purge() == 2
    assert (len(queue), queue.unsettled) == (0, 1)
    queue.requeue(held)
    assert drain(queue) == [b"0"]


def test_auto_delete_queue_goes_with_its_last_consumer() -> None:
    vhost = open_vhost()
    queue = vhost.declare_queue("q", auto_delete=True)
    first, second = RecordingConsumer(), RecordingConsumer()
    queue.add_consumer(first)
    queue.add_consumer(second)
    queue.remove_consumer(first)
    assert "q" in vhost.queues
    queue.remove_consumer(second)
    assert "q" not in vhost.queues


def test_deletion_cancels_consumers_and_ignores_late_settlement(queue: Queue) -> None:
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    fill(queue, 1)
    queue.vhost.delete_queue(queue)
    assert consumer.was_cancelled
    queue.settle(consumer.entries[0])
    broker_of(queue.vhost).end_turn()


@given(st.permutations(range(7)), st.integers(0, 7), st.integers(0, 7))
def test_what_is_settled_is_removed_from_the_log_and_nothing_else(
    order: list[int], count: int, turn: int
) -> None:
    storage = HeldStorage()
    queue = queue_of(storage)
    fill(queue, 7)
    entries = [queue.get() for _ in range(7)]
    for place, number in enumerate(order[:count]):
        if place == turn:
            broker_of(queue.vhost).end_turn()
        entry = entries[number]
        assert entry is not None
        queue.settle(entry)
    broker_of(queue.vhost).end_turn()
    log = storage.log(queue_log_name("/", "q"))
    left = [offset for offset, _, _ in log.read(0, 7, 1 << 20)]
    assert left == [number for number in range(7) if number not in order[:count]]


@pytest.mark.pure
def test_settlements_are_written_as_ranges_at_the_end_of_the_turn() -> None:
    storage = HeldStorage()
    queue = queue_of(storage)
    log = storage.log(queue_log_name("/", "q"))
    fill(queue, 6)
    entries = [queue.get() for _ in range(5)]
    for index in (4, 0, 1, 2):
        entry = entries[index]
        assert entry is not None
        queue.settle(entry)
    assert len(log) == 6
    calls: list[tuple[int, int]] = []
    original = log.remove

    def remove(first: int, last: int) -> None:
        calls.append((first, last))
        original(first, last)

    log.remove = remove  # type: ignore[method-assign]
    broker_of(queue.vhost).end_turn()
    assert calls == [(0, 2), (4, 4)]
    assert len(log) == 2


def test_transient_messages_are_not_written() -> None:
    storage = HeldStorage()
    queue = queue_of(storage)
    fill(queue, 2, persistent=False)
    assert queue.put(message(b"kept"), b"") == storage.write_batch
    assert len(storage.log(queue_log_name("/", "q"))) == 1
    assert drain(queue) == [b"0", b"1", b"kept"]


def test_exactly_once_messages_wait_for_their_write_batch() -> None:
    storage = HeldStorage()
    queue = queue_of(storage)
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    queue.put(message(b"once", mode=EXACTLY_ONCE), b"")
    queue.put(message(b"later"), b"")
    broker_of(queue.vhost).end_turn()
    assert consumer.payloads == []
    storage.complete()
    assert consumer.payloads == [b"once", b"later"]


@pytest.mark.pure
def test_backlog_beyond_the_cache_is_read_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trivium.queues.sub_queues, "CACHED_ENTRIES", 4)
    monkeypatch.setattr(trivium.queues.sub_queues, "REFILL", 3)
    queue = queue_of(HeldStorage())
    expected: list[bytes] = []
    for number in range(20):
        body = b"%d" % number
        queue.put(message(body, persistent=number % 3 != 0), b"note")
        expected.append(body)
    assert queue.ready.lowest.cached == 4
    assert len(queue) == 20
    assert drain(queue) == expected
    assert len(queue) == 0


def test_a_queue_recovers_its_log_with_the_redelivered_flag() -> None:
    storage = HeldStorage()
    fill(queue_of(storage), 3)
    log = storage.log(queue_log_name("/", "q"))
    log.recovered_offset = log.next_offset
    vhost: VirtualHost = open_broker(storage).vhosts["/"]
    queue = vhost.queue("q")
    assert len(queue) == 3
    fill(queue, 1)
    flags = []
    while (entry := queue.get()) is not None:
        flags.append(entry.is_redelivered)
    assert flags == [True, True, True, False]


@pytest.mark.pure
def test_a_consumer_joins_in_few_steps_however_many_there_are() -> None:
    def joins(count: int) -> int:
        queue = open_vhost().declare_queue("q")
        for number in range(count):
            queue.add_consumer(RecordingConsumer(priority=number % 3))
        return steps(lambda: queue.add_consumer(RecordingConsumer(priority=1)))

    assert joins(1600) < 1.5 * joins(200)
