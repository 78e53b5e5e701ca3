"""What may have been delivered before a crash is known after clean stops, until it is gone."""

from __future__ import annotations

from tests.support.core import broker_of, drain, message, open_vhost
from tests.support.simulated import Host
from trivium.vhost.virtual_host import VirtualHost


class Life:
    """A broker with a queue, from one start to the next."""

    def __init__(self, host: Host | None = None) -> None:
        self.host = Host() if host is None else host
        self.vhost: VirtualHost = open_vhost(self.host.storage)
        self.queue = self.vhost.declare_queue("q", durable=True)

    def put(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.queue.put(message(payload), b"")

    def end(self, is_clean: bool) -> Life:
        broker_of(self.vhost).end_turn()
        self.host.commit()
        if is_clean:
            self.host.storage.close()
        return Life(Host(self.host.disk.power_cut(None)))

    def flags(self) -> list[bool]:
        """Of all messages, which are delivered and come back without that being counted."""
        entries = []
        while (entry := self.queue.get()) is not None:
            entries.append(entry)
        for entry in entries:
            self.queue.requeue(entry, was_delivered=False)
        return [entry.is_redelivered for entry in entries]

    @property
    def rows(self) -> int:
        return len(self.host.storage.table("doubts//"))


def test_a_redelivered_offset_survives_clean_stops_and_ends_with_its_messages() -> None:
    life = Life()
    life.put(b"1", b"2")
    life = life.end(is_clean=False).end(is_clean=True)
    life.put(b"3")
    life = life.end(is_clean=True)
    assert (life.flags(), life.rows) == ([True, True, False], 1)
    for _ in range(2):
        entry = life.queue.get()
        assert entry is not None
        life.queue.settle(entry)
    life = life.end(is_clean=True)
    assert (life.flags(), life.rows) == ([False], 0)


def test_another_crash_extends_it() -> None:
    life = Life()
    life.put(b"1")
    life = life.end(is_clean=False)
    life.put(b"2")
    life = life.end(is_clean=False).end(is_clean=True)
    assert life.flags() == [True, True]


def test_clean_stops_and_empty_queues_leave_no_redelivered_offset() -> None:
    life = Life()
    life.put(b"1")
    life = life.end(is_clean=True)
    assert (life.flags(), life.rows) == ([False], 0)
    assert drain(life.queue) == [b"1"]
    life = life.end(is_clean=False)
    assert life.rows == 0


def test_it_goes_with_its_queue() -> None:
    life = Life()
    life.put(b"1")
    life = life.end(is_clean=False)
    life.vhost.delete_queue(life.queue)
    assert life.rows == 0
    life = life.end(is_clean=True)
    life.put(b"2")
    assert life.end(is_clean=True).flags() == [False]
