"""How often a message came back is known after a restart, and costs nothing until it does."""

from __future__ import annotations

import pytest

from tests.support.core import broker_of, drain, message, open_vhost
from tests.support.simulated import Host
from tests.support.storages import HeldStorage
from trivium.messages.message import HeaderValue
from trivium.queues.queue import Queue, QueueEntry
from trivium.vhost.virtual_host import VirtualHost


def declare(vhost: VirtualHost, name: str = "q", **arguments: HeaderValue) -> Queue:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return vhost.declare_queue(name, durable=True, arguments=named)


def taken(queue: Queue) -> QueueEntry:
    entry = queue.get()
    assert entry is not None
    return entry


def rows(storage: HeldStorage) -> int:
    return len(storage.table("returns//"))


def come_back(queue: Queue, times: int = 1) -> None:
    for _ in range(times):
        queue.requeue(taken(queue))


@pytest.mark.parametrize("is_clean", [False, True], ids=["crash", "clean stop"])
def test_the_count_survives(is_clean: bool) -> None:
    host = Host()
    vhost = open_vhost(host.storage)
    queue = declare(vhost, delivery_limit=3)
    for payload in (b"1", b"2"):
        queue.put(message(payload), b"")
    come_back(queue, 3)
    broker_of(vhost).end_turn()
    host.commit()
    if is_clean:
        host.storage.close()
    vhost = open_vhost(Host(host.disk.power_cut(None)).storage)
    queue = vhost.queues["q"]
    first, second = taken(queue), taken(queue)
    assert (first.message.payload, first.requeues, first.is_redelivered) == (b"1", 3, True)
    assert (second.message.payload, second.requeues) == (b"2", 0)
    assert second.is_redelivered != is_clean
    queue.requeue(first)
    queue.requeue(second)
    # The limit counts on from where it was.
    assert drain(queue) == [b"2"]


def test_a_message_that_is_never_requeued_has_no_row() -> None:
    storage = HeldStorage()
    queue = declare(open_vhost(storage))
    queue.put(message(b"m"), b"")
    queue.requeue(taken(queue), was_delivered=False)
    assert drain(queue) == [b"m"]
    assert (rows(storage), queue.requeues) == (0, None)


def test_a_transient_message_has_no_row() -> None:
    storage = HeldStorage()
    queue = declare(open_vhost(storage))
    queue.put(message(b"m", persistent=False), b"")
    come_back(queue)
    assert rows(storage) == 0


def test_the_row_goes_with_the_settlement() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, delivery_limit=2, dead_letter_exchange="")
    for end in ("settled", "rejected", "given up"):
        queue.put(message(b"m"), b"")
        come_back(queue)
        assert rows(storage) == 1, end
        if end == "given up":
            come_back(queue, 2)
        elif end == "rejected":
            queue.reject(taken(queue))
        else:
            queue.settle(taken(queue))
        broker_of(vhost).end_turn()
        assert rows(storage) == 0, end


def test_row_and_settlement_are_in_the_same_write_batch() -> None:
    host = Host()
    vhost = open_vhost(host.storage)
    queue = declare(vhost)
    queue.put(message(b"m"), b"")
    come_back(queue)
    broker_of(vhost).end_turn()
    host.commit()
    start, done = host.disk.copy(), len(host.disk.operations)
    drain(queue)
    broker_of(vhost).end_turn()
    host.commit()
    found: set[tuple[int, int]] = set()
    for count in range(len(host.disk.operations) - done + 1):
        disk = start.after(host.disk.operations[done : done + count])
        storage = Host(disk.power_cut(None)).storage
        queue = open_vhost(storage).queues["q"]
        found.add((len(queue), len(storage.table("returns//"))))
    assert found == {(1, 1), (0, 0)}


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("end", ["purge", "delete"])
def test_rows_go_with_a_purge_and_with_the_queue(end: str, is_restarted: bool) -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, max_priority=1)
    for priority in (0, 1, 0):
        sent = message(b"m")
        sent.priority = priority
        queue.put(sent, b"")
    entries = [taken(queue) for _ in range(3)]
    for entry in entries:
        queue.requeue(entry)
    broker_of(vhost).end_turn()
    assert rows(storage) == 3
    if is_restarted:
        vhost = open_vhost(storage)
        queue = vhost.queues["q"]
        if end == "purge":
            # One of them is in memory, the others are not.
            queue.requeue(taken(queue), was_delivered=False)
    if end == "purge":
        queue.purge()
    else:
        vhost.delete_queue(queue)
    assert rows(storage) == 0


def test_a_purge_leaves_the_count_of_what_a_consumer_holds() -> None:
    storage = HeldStorage()
    queue = declare(open_vhost(storage))
    for payload in (b"held", b"purged"):
        queue.put(message(payload), b"")
    held, purged = taken(queue), taken(queue)
    queue.requeue(held)
    queue.requeue(purged)
    held = taken(queue)
    queue.purge()
    assert rows(storage) == 1
    queue.settle(held)
    assert rows(storage) == 0


def test_a_retry_waits_on_after_a_restart() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    queue = declare(vhost, retry_delay=60_000)
    queue.put(message(b"m"), b"")
    come_back(queue)
    at = broker_of(vhost).now_ms + 60_000
    broker_of(vhost).end_turn()
    again = open_vhost(storage)
    queue = again.queues["q"]
    assert queue.get() is None
    broker_of(again).now_ms = at - 1
    broker_of(again).end_turn()
    assert queue.get() is None
    broker_of(again).now_ms = at
    broker_of(again).end_turn()
    entry = taken(queue)
    assert entry.requeues == 1
    # The next wait is twice as long, as without the restart.
    queue.requeue(entry)
    broker_of(again).now_ms = at + 119_999
    broker_of(again).end_turn()
    assert queue.get() is None
    broker_of(again).now_ms = at + 120_000
    broker_of(again).end_turn()
    assert taken(queue).requeues == 2


def test_queues_with_similar_names_do_not_share_rows() -> None:
    storage = HeldStorage()
    vhost = open_vhost(storage)
    names = ["q", "q\x00", "q" + "\x00" * 9, "é"]
    for count, name in enumerate(names):
        queue = declare(vhost, name)
        queue.put(message(b"m"), b"")
        come_back(queue, count + 1)
    broker_of(vhost).end_turn()
    again = open_vhost(storage)
    assert [taken(again.queues[name]).requeues for name in names] == [1, 2, 3, 4]
