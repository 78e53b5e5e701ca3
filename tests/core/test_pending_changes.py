"""Who has to wait for a change of the topology, and until when."""

from __future__ import annotations

from tests.support.core import open_broker
from tests.support.simulated import Host
from trivium.idempotence.deduplication import EXCHANGE, QUEUE
from trivium.storage.memory import MemoryStorage
from trivium.vhost.pending_changes import FORGET_AT_ONCE


def test_a_change_is_pending_until_its_write_batch_is_durable() -> None:
    host = Host()
    broker = open_broker(host.storage)
    host.commit()
    vhost = broker.vhosts["/"]
    assert (vhost.changes.newest, vhost.changes.write_batch_of(QUEUE, "q")) == (0, 0)
    queue = vhost.declare_queue("q", durable=True)
    made = host.storage.write_batch
    assert (vhost.changes.newest, vhost.changes.write_batch_of(QUEUE, "q")) == (made, made)
    assert (
        vhost.changes.write_batch_of(EXCHANGE, "q") == vhost.changes.write_batch_of(QUEUE, "r") == 0
    )
    broker.end_turn()
    vhost.delete_queue(queue)
    deleted = host.storage.write_batch
    assert deleted > made
    assert vhost.changes.write_batch_of(QUEUE, "q") == deleted
    broker.end_turn()
    host.commit()
    assert (vhost.changes.newest, vhost.changes.write_batch_of(QUEUE, "q")) == (0, 0)


def test_what_has_become_durable_is_forgotten_a_part_at_a_time() -> None:
    host = Host()
    vhost = open_broker(host.storage).vhosts["/"]
    count = 100
    for number in range(count):
        vhost.declare_queue(f"q{number}", durable=True)
    host.commit()
    for number in range(count):
        assert vhost.changes.newest == 0
        assert vhost.changes.write_batch_of(QUEUE, f"q{number}") == 0
        before = len(vhost.changes)
        vhost.delete_queue(vhost.queue(f"q{number}"))
        assert 0 <= before - len(vhost.changes) < FORGET_AT_ONCE
        assert vhost.changes.write_batch_of(QUEUE, f"q{number}") == host.storage.write_batch
        host.commit()
    assert len(vhost.changes) < FORGET_AT_ONCE


def test_what_changes_again_and_again_is_there_once() -> None:
    host = Host()
    vhost = open_broker(host.storage).vhosts["/"]
    for _ in range(3):
        for _ in range(100):
            vhost.delete_queue(vhost.declare_queue("q", durable=True))
        assert vhost.changes.write_batch_of(QUEUE, "q") == host.storage.write_batch
        host.commit()
        assert vhost.changes.write_batch_of(QUEUE, "q") == 0


def test_every_kind_of_durable_change_is_noted_and_others_are_not() -> None:
    host = Host()
    vhost = open_broker(host.storage).vhosts["/"]
    host.commit()
    vhost.declare_queue("transient")
    vhost.declare_queue("exclusive", durable=True, owner=vhost)
    vhost.declare_exchange("transient", "direct")
    assert vhost.changes.newest == 0
    vhost.declare_stream("s")
    vhost.declare_exchange("e", "direct", durable=True)
    write_batch = host.storage.write_batch
    assert [vhost.changes.write_batch_of(*place) for place in ((QUEUE, "s"), (EXCHANGE, "e"))] == [
        write_batch,
        write_batch,
    ]
    host.commit()
    vhost.delete_stream("s")
    vhost.delete_exchange("e")
    assert (
        vhost.changes.write_batch_of(QUEUE, "s")
        == vhost.changes.write_batch_of(EXCHANGE, "e")
        > write_batch
    )


def test_nothing_is_pending_in_memory() -> None:
    vhost = open_broker(MemoryStorage()).vhosts["/"]
    vhost.declare_queue("q", durable=True)
    assert vhost.changes.newest == 0
