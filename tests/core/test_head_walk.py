"""Queues that a start finds with messages are looked at, a few in each turn."""

from __future__ import annotations

from tests.support.core import message
from tests.support.server import Server
from tests.support.simulated import Host
from trivium.queues.head_walk import MAX_PER_TURN
from trivium.queues.settings import settings_of

COUNT = 3 * MAX_PER_TURN


def put(server: Server, name: str, payload: bytes, expires: int = 0) -> None:
    queue = server.vhost.declare_queue(name, durable=True)
    queue.put(message(payload, expires=expires), b"")


def restarted(host: Host, server: Server, memory_size: int = 1 << 30) -> Server:
    """After a checkpoint, so that all of it has to come from the disk."""
    host.storage.ask_for_checkpoint()
    server.sync()
    return Server(host=Host(host.disk.power_cut(None), seed=1, memory_size=memory_size))


def test_a_message_that_expires_does_so_in_a_queue_that_nobody_uses_since_a_start() -> None:
    host = Host()
    server = Server(host=host)
    now = server.broker.now_ms
    put(server, "q", b"short", now + 1000)
    put(server, "q", b"long", now + 5000)
    put(server, "other", b"kept")
    again = restarted(host, server)
    again.sync()
    queue = again.vhost.queues["q"]
    assert len(queue) == 2
    again.advance(2)
    assert len(queue) == 1
    assert queue.given_up.expired == 1
    assert len(again.vhost.queues["other"]) == 1


def test_a_message_that_does_not_expire_stays_where_it_is() -> None:
    host = Host()
    server = Server(host=host)
    for number in range(20):
        put(server, "q", b"%d" % number)
    again = restarted(host, server)
    again.sync()
    queue = again.vhost.queues["q"]
    assert queue.ready.lowest.cached == 0
    entry = queue.get()
    assert entry is not None
    assert entry.message.payload == b"0"


def test_few_queues_are_read_at_a_time_and_all_are_reached() -> None:
    host = Host()
    server = Server(host=host)
    soon = server.broker.now_ms + 1000
    for number in range(COUNT):
        put(server, f"q{number}", b"x", soon)
    again = restarted(host, server)
    queues = again.vhost.queues.values()
    for _ in range(9):
        again.end_turn()
        assert sum(queue.ready.is_reading for queue in queues) <= MAX_PER_TURN
    for _ in range(COUNT // MAX_PER_TURN):
        again.sync()
        again.advance(0.01)
    again.advance(2)
    assert not any(len(queue) for queue in queues)


def test_priorities_that_do_not_fit_into_memory_together_are_not_read_in_turns_for_ever() -> None:
    host = Host()
    server = Server(host=host)
    queue = server.vhost.declare_queue("q", durable=True, arguments={"x-max-priority": 1})
    for priority in (0, 1):
        queue.put(message(b"%d" % priority, priority=priority), b"")
    again = restarted(host, server, memory_size=1)
    again.sync()
    queue = again.vhost.queues["q"]
    assert not queue.ready.is_reading
    assert [each.cached for each in queue.ready.sub_queues] == [0, 0]
    # Other settings are in force for what was looked at under the old ones.
    queue.apply(settings_of({"x-max-priority": 1, "x-message-ttl": 1000}, {}))
    again.sync()
    again.advance(2)
    assert len(queue) == 0
    assert queue.given_up.expired == 2
