"""STAGE, and TX with parts: what many have staged counts as a whole, once somebody says so."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.staging import add_topology, answer, commit, numbers, parts_of, stage
from tests.support.native import (
    CONFIG,
    Client,
    Server,
    code,
    entry,
    into,
    ok,
    publish,
    records,
    tx,
)
from tests.support.simulated import Host, crashes
from tests.support.steps import steps
from tests.support.storages import ColdLog, HeldStorage
from trivium.storage.memory import MemoryStorage
from trivium_native.server import parts
from trivium_native.server.staged_parts import Part, StagedParts
from trivium_native.wire import frames

HOUR_MS = 3_600_000


def staged(server: Server) -> list[int]:
    """The records of each part that is kept."""
    storage = server.storage
    return [len(storage.log(name)) for name in storage.log_names() if name.startswith("part/")]


@pytest.fixture
def server() -> Server:
    return add_topology(Server(None, CONFIG))


@pytest.fixture
def disk() -> Server:
    server = add_topology(Server(HeldStorage(), CONFIG))
    server.sync()
    return server


@pytest.fixture
def client(server: Server) -> Client:
    return server.open()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages in a turn."""
    monkeypatch.setattr(parts, "STEP_MESSAGES", 2)


# Staging


def test_what_is_staged_is_seen_by_nobody_until_it_is_committed(
    server: Server, client: Client
) -> None:
    assert answer(client.send(frames.STAGE, 5, stage(*numbers(1, 2)))) == {}
    assert answer(client.send(frames.STAGE, 5, stage(*numbers(3), index=1))) == {}
    assert answer(client.send(frames.STAGE, 5, stage(*numbers(4), part="b"))) == {}
    assert records(server) == []
    # By another client: the parts belong to no connection.
    client.lose()
    assert answer(server.open().send(frames.TX, 5, commit(("b", 1), ("a", 2)))) == {}
    assert records(server) == [b"4", b"1", b"2", b"3"]
    assert not [name for name in server.storage.log_names() if name.startswith("part/")]
    assert len(parts_of(server)) == 0


def test_a_mandatory_message_that_is_retained_later_is_published_with_its_part(
    server: Server, client: Client
) -> None:
    later = entry(b"x", b"t", flags=5 | 8 | 16, properties=msgpack.packb({15: 1000}))
    assert answer(client.send(frames.STAGE, 5, stage(*numbers(1), later))) == {}
    assert answer(client.send(frames.TX, 5, commit(("a", 1)))) == {}
    server.advance(parts.RETRY_MS / 1000)
    assert records(server) == [b"1"]
    assert server.vhost.retained.get(b"t") is not None
    assert len(parts_of(server)) == 0


@pytest.mark.pure
@pytest.mark.parametrize("numbers_apart", [0, 1])
def test_parts_of_later_numbers_cost_a_transaction_nothing(numbers_apart: int) -> None:
    def committed(count: int) -> int:
        server = add_topology(Server(None, CONFIG))
        client = server.open()
        for number in range(count):
            body = stage(*numbers(1), part=f"{number}", sequence=100 + numbers_apart * number)
            assert answer(client.send(frames.STAGE, 5, body)) == {}

        def commits() -> None:
            for sequence in range(20):
                assert answer(client.send(frames.TX, 5, commit(sequence=sequence))) == {}

        return steps(commits)

    assert committed(400) <= 1.1 * committed(20)


@pytest.mark.pure
def test_parts_that_are_discarded_leave_nothing() -> None:
    def memory_after(count: int) -> int:
        parts = StagedParts()
        tracemalloc.start()
        for number in range(count):
            part = Part(b"", "a", number, "", MemoryStorage().log(""))
            parts.add(part)
            parts.remove(part)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size

    memory_after(100)
    # Not a byte for each; objects that the interpreter keeps for later are some.
    assert memory_after(40_000) <= 20_000


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3)), max_size=60))
def test_those_of_older_numbers_are_found_whatever_came_before(
    actions: list[tuple[int, int, int]],
) -> None:
    parts = StagedParts()
    for action, name, sequence in actions:
        found = parts.by_name.get(str(name))
        if action == 0 and found is None:
            parts.add(Part(b"", str(name), sequence, "", MemoryStorage().log("")))
        elif action == 1 and found is not None:
            parts.remove(found)
        elif action == 2 and found is not None and not found.is_decided:
            parts.decide(found)
        elif action == 3:
            expected = [
                part
                for part in parts.by_name.values()
                if not part.is_decided and part.sequence <= sequence
            ]
            older = parts.undecided_up_to(sequence)
            assert sorted(map(id, older)) == sorted(map(id, expected))
            for part in older:
                parts.remove(part)


def test_a_part_that_is_not_named_never_counts(server: Server, client: Client) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(1), part="first attempt"))
    client.send(frames.STAGE, 0, stage(*numbers(1, 2), part="second attempt"))
    client.send(frames.STAGE, 0, stage(*numbers(9), part="of the next number", sequence=1))
    assert ok(client.send(frames.TX, 5, commit(("second attempt", 1))))
    assert records(server) == [b"1", b"2"]
    assert len(parts_of(server)) == 1
    # Nor can anybody add to what was dropped, or begin a part of that number.
    for part, index in (("first attempt", 1), ("third attempt", 0)):
        again = stage(*numbers(1), part=part, index=index)
        assert answer(client.send(frames.STAGE, 5, again)) == {"committed": True}
    assert len(parts_of(server)) == 1
    assert ok(client.send(frames.TX, 5, commit(("of the next number", 1), sequence=1)))
    assert records(server) == [b"1", b"2", b"9"]


def test_a_later_number_drops_what_was_staged_under_older_ones(
    server: Server, client: Client
) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(1)))
    assert ok(client.send(frames.TX, 5, tx(*numbers(2), producer="p", epoch=0, sequence=3)))
    assert len(parts_of(server)) == 0
    assert records(server) == [b"2"]


def test_a_repeated_request_is_kept_once(server: Server, client: Client) -> None:
    for index in (0, 0, 1, 0, 1, 2):
        assert ok(client.send(frames.STAGE, 5, stage(*numbers(index), index=index)))
    assert ok(client.send(frames.TX, 5, commit(("a", 3))))
    assert records(server) == [b"0", b"1", b"2"]


def test_producers_and_virtual_hosts_share_no_parts(server: Server, client: Client) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(1), producer="q"))
    assert code(client.send(frames.TX, 5, commit(("a", 1)))) == 301
    assert parts_of(server, server.broker.virtual_hosts.declare("other")) is not parts_of(server)


@pytest.mark.parametrize(
    ("expected", "body"),
    [
        (310, stage(*numbers(1), index=1)),
        (302, stage(*numbers(1), part="kept", sequence=1)),
        (310, stage(*numbers(1), part="kept", index=2)),
        (300, stage(*numbers(1), part="")),
        (300, stage(*numbers(1), producer="")),
        (300, stage()),
        (301, stage(entry(b"x", b"k", b"nowhere"))),
        (306, stage(entry(b"x", b"gone", b"", flags=5 | 16))),
        (307, stage(into(b"s", b"x" * 1001))),
        (300, tx(*numbers(1), producer="p", sequence=0, part="a")),
        (300, tx(*numbers(1), producer="p", sequence=0, part="a", index=0, more=1)),
    ],
)
def test_what_is_refused_is_not_kept(
    server: Server, client: Client, expected: int, body: bytes
) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(0), part="kept"))
    assert code(client.send(frames.STAGE, 5, body)) == expected
    assert ok(client.send(frames.TX, 5, commit(("kept", 1))))
    assert records(server) == [b"0"]


def test_staging_is_refused_while_publishing_is_paused(server: Server, client: Client) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(0)))
    client.connection.blocked("disk")
    server.settle()
    client.take()
    assert code(client.send(frames.STAGE, 5, stage(*numbers(1), index=1))) == 401
    assert code(client.send(frames.TX, 5, commit(("a", 1)))) == 401
    client.connection.unblocked()
    server.settle()
    client.take()
    assert ok(client.send(frames.STAGE, 5, stage(*numbers(1), index=1)))
    assert ok(client.send(frames.TX, 5, commit(("a", 2))))
    assert records(server) == [b"0", b"1"]


def test_there_is_an_end_to_parts(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_PARTS", 2)
    assert ok(client.send(frames.STAGE, 5, stage(*numbers(1), part="a")))
    assert ok(client.send(frames.STAGE, 5, stage(*numbers(1), part="b")))
    assert code(client.send(frames.STAGE, 5, stage(*numbers(1), part="c"))) == 403
    assert ok(client.send(frames.STAGE, 5, stage(*numbers(2), part="b", index=1)))


# Deciding


@pytest.mark.parametrize(
    ("expected", "wanted"),
    [
        (301, [["b", 1]]),
        (302, [["a", 1]]),
        (302, [["a", 3]]),
        (302, [["a", 2], ["a", 2]]),
        (302, [["later", 1]]),
        (300, [["a"]]),
        (300, [["a", True]]),
        (300, [[1, 1]]),
        (300, "a"),
    ],
)
def test_a_transaction_with_a_wrong_part_does_nothing(
    server: Server, client: Client, expected: int, wanted: Any
) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(1)))
    client.send(frames.STAGE, 0, stage(*numbers(2), index=1))
    client.send(frames.STAGE, 0, stage(*numbers(3), part="later", sequence=1))
    fields = {"producer": "p", "epoch": 0, "sequence": 0, "parts": wanted}
    assert code(client.send(frames.TX, 5, tx(*numbers(9), **fields))) == expected
    assert records(server) == []
    assert server.vhost.transactional.expected(b"p") == 0
    assert ok(client.send(frames.TX, 5, commit(("a", 2))))
    assert records(server) == [b"1", b"2"]


def test_parts_need_their_producer_in_its_newest_epoch(server: Server, client: Client) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(1)))
    assert code(client.send(frames.TX, 5, tx(parts=[["a", 1]]))) == 300
    client.ask(frames.PRODUCER, producer="p", transactional=True)
    assert code(client.send(frames.TX, 5, commit(("a", 1)))) == 309
    assert ok(client.send(frames.TX, 5, commit(("a", 1), epoch=1)))
    assert records(server) == [b"1"]


def test_a_repeated_commit_publishes_nothing_twice(server: Server, client: Client) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(1)))
    for _ in range(3):
        assert ok(client.send(frames.TX, 5, commit(("a", 1))))
    assert records(server) == [b"1"]


def test_the_transactions_own_messages_and_offsets_belong_to_it(
    server: Server, client: Client
) -> None:
    client.send(frames.PUBLISH, 0, publish(*numbers(0)))
    client.send(frames.STAGE, 0, stage(*numbers(2)))
    fields = {"producer": "p", "epoch": 0, "sequence": 0, "parts": [["a", 1]]}
    commits = [{"group": "g", "stream": "s", "offsets": [[0, 1]]}]
    assert ok(client.send(frames.TX, 5, tx(*numbers(1), **fields, commits=commits)))
    assert records(server) == [b"0", b"1", b"2"]
    assert server.vhost.groups.committed("g", server.vhost.stream("s")) == {0: 1}


def test_large_parts_are_published_in_many_turns(
    server: Server, client: Client, small: None
) -> None:
    for index in range(5):
        client.send(frames.STAGE, 0, stage(*numbers(2 * index, 2 * index + 1), index=index))
    assert answer(client.send(frames.TX, 5, commit(("a", 5)))) == {"left": 4}
    assert records(server) == [b"0", b"1"]
    server.advance(0.001)
    assert len(records(server)) == 4
    for _ in range(3):
        server.advance(0.001)
    assert answer(client.send(frames.TX, 5, commit(("a", 5)))) == {}
    assert records(server) == [b"%d" % number for number in range(10)]


def test_a_number_waits_for_the_one_before(server: Server, client: Client, small: None) -> None:
    for sequence in (0, 1):
        for index in range(2):
            part = f"of {sequence}"
            body = stage(*numbers(sequence, index), part=part, index=index, sequence=sequence)
            client.send(frames.STAGE, 0, body)
        client.send(frames.TX, 0, commit((part, 2), sequence=sequence))
    # Asking does not make it faster than one step in a turn.
    for _ in range(3):
        assert answer(client.send(frames.TX, 5, commit(("of 0", 2)))) == {"left": 3}
    for _ in range(3):
        server.advance(0.001)
    assert records(server) == [b"0", b"0", b"0", b"1", b"1", b"0", b"1", b"1"]


def test_two_turns_are_published_while_the_disk_writes(disk: Server, small: None) -> None:
    client = disk.open()
    for index in range(6):
        client.send(frames.STAGE, 0, stage(*numbers(index, index), index=index))
    assert client.send(frames.TX, 5, commit(("a", 6))) == []
    left = []
    for _ in range(6):
        # However many turns pass meanwhile.
        for _ in range(3):
            disk.advance(1)
        left += staged(disk)
        disk.sync()
        if not staged(disk):
            break
    # The first waits for what was staged.
    assert left == [5, 3, 1]
    assert client.take() == [(frames.OK, 5, msgpack.packb({"left": 5}))]
    disk.sync()
    assert records(disk) == [b"%d" % (number // 2) for number in range(12)]


def test_parts_are_read_from_disk_where_they_are_not_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cold: list[ColdLog] = []

    class ColdStorage(MemoryStorage):
        def log(self, name: str) -> Any:
            log = super().log(name)
            if not name.startswith("part/"):
                return log
            cold.append(_Cold(log))
            return cold[-1]

    class _Cold(ColdLog):
        def append(self, record: bytes, count: int = 1, annotation: bytes = b"") -> int:
            offset = self._log.append(record, count, annotation)
            self.next_offset = self._log.next_offset
            return offset

        def truncate(self, before: int) -> None:
            self._log.truncate(before)
            self.first_offset = self._log.first_offset

        def __len__(self) -> int:
            return len(self._log)

    server = add_topology(Server(ColdStorage(), CONFIG))
    client = server.open()
    for index in range(3):
        client.send(frames.STAGE, 0, stage(*numbers(index), index=index))
    assert answer(client.send(frames.TX, 5, commit(("a", 3)))) == {"left": 3}
    assert answer(client.send(frames.TX, 5, commit(("a", 3)))) == {"left": 3}
    (log,) = cold
    for offset in range(3):
        assert [at for at, _ in log.loads] == list(range(offset + 1))
        log.finish_load()
        server.settle()
    assert records(server) == [b"0", b"1", b"2"]
    assert len(parts_of(server)) == 0


# What is decided and refused


def test_a_refusal_after_the_decision_is_told_and_passes(server: Server, client: Client) -> None:
    arguments: dict[str, Any] = {"x-max-length": 2, "x-overflow": "reject-publish"}
    full = server.vhost.declare_queue("full", durable=True, arguments=arguments)
    client.send(frames.STAGE, 0, stage(into(b"full", b"1"), into(b"full", b"2")))
    client.send(frames.STAGE, 0, stage(into(b"full", b"3"), into(b"full", b"4"), index=1))
    found = answer(client.send(frames.TX, 5, commit(("a", 2))))
    assert (found["left"], found["refused"][0]) == (1, 400)
    # It is asked for again when somebody asks, and by itself; never a part of a request.
    assert answer(client.send(frames.TX, 5, commit(("a", 2)))) == found
    settled = full.get()
    assert settled is not None
    full.settle(settled)
    server.advance(parts.RETRY_MS / 1000)
    assert len(full) == 1
    assert answer(client.send(frames.TX, 5, commit(("a", 2)))) == found
    settled = full.get()
    assert settled is not None
    full.settle(settled)
    server.advance(parts.RETRY_MS / 1000)
    rest = [full.get(), full.get()]
    assert [entry and entry.message.payload for entry in rest] == [b"3", b"4"]
    assert answer(client.send(frames.TX, 5, commit(("a", 2)))) == {}


def test_it_waits_for_the_end_of_an_alarm(server: Server, client: Client, small: None) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(1, 2)))
    client.send(frames.STAGE, 0, stage(*numbers(3, 4), index=1))
    assert answer(client.send(frames.TX, 5, commit(("a", 2)))) == {"left": 1}
    server.broker.alarms.is_disk_short = True
    server.advance(0.001)
    server.advance(parts.RETRY_MS / 1000)
    assert records(server) == [b"1", b"2"]
    assert answer(client.send(frames.TX, 5, commit(("a", 2))))["refused"][0] == 401
    server.broker.alarms.is_disk_short = False
    server.advance(parts.RETRY_MS / 1000)
    assert records(server) == [b"1", b"2", b"3", b"4"]


# Forgetting


def test_a_part_that_nobody_adds_to_is_forgotten_after_a_day(
    server: Server, client: Client
) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(1), part="left"))
    client.send(frames.STAGE, 0, stage(*numbers(2), part="used"))
    for hour in range(1, 27):
        if hour == 20:
            client.send(frames.STAGE, 0, stage(*numbers(3), part="used", index=1))
        server.advance(HOUR_MS / 1000)
        assert len(parts_of(server)) == (2 if hour <= parts.STAGED_HOURS else 1)
    assert code(client.send(frames.TX, 5, commit(("left", 1)))) == 301
    assert ok(client.send(frames.TX, 5, commit(("used", 2))))
    assert records(server) == [b"2", b"3"]


def test_what_is_decided_is_never_forgotten_nor_its_number(server: Server, client: Client) -> None:
    server.broker.alarms.is_disk_short = True
    client.send(frames.STAGE, 0, stage(*numbers(1)))
    assert answer(client.send(frames.TX, 5, commit(("a", 1))))["left"] == 1
    for _ in range(15 * 24):
        server.advance(HOUR_MS / 1000)
    assert server.vhost.transactional.expected(b"p") == 1
    server.broker.alarms.is_disk_short = False
    server.advance(HOUR_MS / 1000)
    assert records(server) == [b"1"]


def test_a_part_can_be_discarded_until_it_is_committed(
    server: Server, client: Client, small: None
) -> None:
    client.send(frames.STAGE, 0, stage(*numbers(1)))
    assert client.ask(frames.DELETE, kind="part", producer="p", name="a") == {}
    assert client.ask(frames.DELETE, kind="part", producer="p", name="a") == {}
    assert code(client.send(frames.TX, 5, commit(("a", 1)))) == 301
    for index in range(2):
        client.send(frames.STAGE, 0, stage(*numbers(index, index), index=index))
    assert answer(client.send(frames.TX, 5, commit(("a", 2)))) == {"left": 1}
    assert client.refused(frames.DELETE, kind="part", producer="p", name="a") == 302
    server.advance(0.001)
    assert records(server) == [b"0", b"0", b"1", b"1"]


def test_a_producer_is_deleted_with_its_number_and_what_it_staged(
    server: Server, client: Client, small: None
) -> None:
    for index in range(2):
        client.send(frames.STAGE, 0, stage(*numbers(index, index), index=index))
    client.send(frames.STAGE, 0, stage(*numbers(7), part="b", sequence=1))
    client.send(frames.TX, 0, commit(("a", 2)))
    client.ask(frames.PRODUCER, producer="p")
    delete = {"kind": "producer", "name": "p", "transactional": True}
    assert client.refused(frames.DELETE, **delete) == 302
    server.advance(0.001)
    assert client.ask(frames.DELETE, **delete) == {}
    assert len(parts_of(server)) == 0
    assert client.ask(frames.PRODUCER, producer="p", transactional=True) == {
        "epoch": 0,
        "sequence": 0,
    }
    # The two kinds share no names.
    assert client.ask(frames.PRODUCER, producer="p")["epoch"] == 1
    assert client.ask(frames.DELETE, kind="producer", name="p") == {}
    assert client.ask(frames.PRODUCER, producer="p")["epoch"] == 0


# Crashes


def test_each_message_is_published_once_at_every_crash_point(small: None) -> None:
    machine = Server(None, CONFIG, host=Host())
    add_topology(machine)
    machine.sync()
    start = machine.host.disk.copy()
    machine.host.disk.operations.clear()
    client = machine.open()
    for index in range(3):
        client.send(frames.STAGE, 9, stage(*numbers(index, index), index=index))
        client.send(frames.STAGE, 9, stage(*numbers(9), part="lost", index=index))
        machine.sync()
    staged = len(machine.host.disk.operations)
    body = commit(("a", 3))
    client.take()
    client.send(frames.TX, 5, body)
    answered = 0
    for _ in range(6):
        machine.sync()
        if not answered and client.take():
            answered = len(machine.host.disk.operations)
        machine.advance(0.001)
    whole = [b"0", b"0", b"1", b"1", b"2", b"2"]
    assert records(machine) == whole
    seen: set[bool] = set()
    for done, disk in crashes(start, machine.host.disk.operations, random.Random(1)):
        after = Server(None, CONFIG, host=Host(disk.copy(), seed=2))
        is_decided = after.vhost.transactional.expected(b"p") == 1
        seen.add(is_decided)
        # The number is there once it was answered, and not before it was sent.
        assert is_decided or done < answered
        assert not is_decided or done >= staged
        # A start goes on by itself.
        for _ in range(6):
            after.sync()
            after.advance(0.001)
        assert records(after) == (whole if is_decided else [])
        # The clients come back: they repeat what they do not know to be done.
        again = after.open()
        for index in range(3):
            again.send(frames.STAGE, 9, stage(*numbers(index, index), index=index))
            after.sync()
        again.take()
        again.send(frames.TX, 5, body)
        for _ in range(6):
            after.sync()
            after.advance(0.001)
        assert records(after) == whole
        assert len(parts_of(after)) == 0
        assert not [name for name in after.host.storage.log_names() if name.startswith("part/")]
    assert seen == {True, False}
