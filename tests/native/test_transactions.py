"""TX: all or nothing, at every crash point; repeated, fenced, and refused as a whole."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from tests.support.native import (
    CONFIG,
    Client,
    Received,
    Server,
    code,
    deliveries,
    entry,
    into,
    ok,
    payloads,
    publish,
    records,
    tx,
)
from tests.support.simulated import Host, crashes
from tests.support.steps import calls
from tests.support.storages import HeldStorage
from trivium.queues.unsettled import Unsettled
from trivium.routing.exchanges import Binding
from trivium_native.wire import frames

PRODUCER: dict[str, Any] = {"producer": "p", "epoch": 0, "sequence": 0}
DONE, REQUEUE, REJECT = 0, 1, 2

State = tuple[int, int, list[bytes], dict[int, int]]


def commit(offset: int, **fields: Any) -> dict[str, Any]:
    return {"group": "g", "stream": "s", "offsets": [[0, offset]]} | fields


def add_topology(server: Server) -> Server:
    """Stream ``s`` with the records 0 and 1; queue ``in`` with i0 to i2; queue ``out``."""
    vhost = server.vhost
    vhost.declare_stream("s")
    for name in ("in", "out"):
        vhost.declare_queue(name, durable=True)
    client = server.open()
    inputs = [into(b"in", b"i%d" % number) for number in range(3)]
    client.send(frames.PUBLISH, 0, publish(into(b"s", b"0"), into(b"s", b"1"), *inputs))
    client.send(frames.PRODUCER, 0, {"producer": "p", "transactional": True})
    return server


@pytest.fixture
def server() -> Server:
    return add_topology(Server(None, CONFIG))


@pytest.fixture
def disk() -> Server:
    server = add_topology(Server(HeldStorage(), CONFIG))
    server.sync()
    return server


def consume(client: Client, queue: str, credit: int = 10, number: int = 1) -> list[Received]:
    fields = {"subscription": number, "mode": "queue", "queue": queue, "credit": credit}
    return client.send(frames.SUBSCRIBE, 0, fields)


def state(server: Server) -> State:
    """Ready and unsettled in ``in``, ready in ``out``, the stream, the group's offsets."""
    vhost = server.vhost
    waiting = vhost.queues["in"]
    committed = vhost.groups.committed("g", vhost.stream("s"))
    return (
        len(waiting) + waiting.unsettled,
        len(vhost.queues["out"]),
        records(server),
        committed,
    )


BEFORE: State = (3, 0, [b"0", b"1"], {})
AFTER: State = (1, 1, [b"0", b"1", b"2"], {0: 2})
WORK = (into(b"out", b"o"), into(b"s", b"2"))
FIELDS: dict[str, Any] = {"settle": [[1, DONE, 1, 2]], "commits": [commit(2)]}


# Applied


def test_publishes_settlements_and_commits_happen_together(server: Server) -> None:
    client = server.open()
    assert payloads(consume(client, "in")) == [b"i0", b"i1", b"i2"]
    assert state(server) == BEFORE
    assert ok(client.send(frames.TX, 5, tx(*WORK, **FIELDS)))
    assert state(server) == AFTER
    client.lose()
    assert payloads(consume(server.open(), "in")) == [b"i2"]


def test_an_empty_transaction_is_one_too(server: Server) -> None:
    client = server.open()
    assert ok(client.send(frames.TX, 5, tx()))
    assert ok(client.send(frames.TX, 5, tx(**PRODUCER)))
    assert server.vhost.transactional.expected(b"p") == 1


def test_deliveries_can_be_returned_and_rejected(server: Server) -> None:
    client = server.open()
    consume(client, "in")
    settle = [[1, REJECT, 1, 1], [1, REQUEUE, 2, 2], [1, DONE, 3, 3]]
    received = client.send(frames.TX, 5, tx(settle=settle))
    assert ok(received)
    (again,) = deliveries(received)
    assert (again.payload, again.flags, again.returns) == (b"i1", 1, 1)
    assert state(server)[0] == 1


def test_what_is_delivered_meanwhile_is_not_settled(server: Server) -> None:
    client = server.open()
    assert payloads(consume(client, "in", credit=1)) == [b"i0"]
    received = client.send(frames.TX, 5, tx(into(b"in", b"i3"), settle=[[1, DONE, 1, 1 << 40]]))
    assert ok(received)
    assert payloads(received) == [b"i1"]
    assert state(server)[0] == 3


def test_the_answer_comes_once_it_is_durable(disk: Server) -> None:
    client = disk.open()
    consume(client, "in")
    consumer = disk.open()
    consume(consumer, "out")
    consumer.take()
    assert client.send(frames.TX, 5, tx(*WORK, **FIELDS)) == []
    # Nor does anybody see it before.
    assert consumer.take() == []
    assert records(disk) == [b"0", b"1"]
    disk.sync()
    assert client.take() == [(frames.OK, 5, b"\x80")]
    assert payloads(consumer.take()) == [b"o"]
    assert records(disk) == [b"0", b"1", b"2"]


def test_a_member_commits_as_such(server: Server) -> None:
    client = server.open()
    joined = client.ask(frames.JOIN, group="g", member="a", streams=["s"])
    assert code(client.send(frames.TX, 5, tx(commits=[commit(2)]))) == 302
    stale = commit(2, member="a", generation=joined["generation"] + 1)
    assert code(client.send(frames.TX, 5, tx(commits=[stale]))) == 312
    mine = commit(2, member="a", generation=joined["generation"])
    assert ok(client.send(frames.TX, 5, tx(commits=[mine])))


def test_settlements_happen_one_after_the_other(server: Server) -> None:
    client = server.open()
    consume(client, "in")
    # As ACK: the second range may hold what the first has settled, but something must be left.
    settle = [[1, DONE, 1, 1], [1, DONE, 1, 2], [1, REQUEUE, 2, 3]]
    received = client.send(frames.TX, 5, tx(settle=settle))
    assert ok(received)
    assert payloads(received) == [b"i2"]


def peak_memory(action: Callable[[], object]) -> int:
    """Bytes that were in use at once while ``action`` ran, beyond those before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.pure
def test_settlements_take_what_they_settle_and_nothing_else() -> None:
    def one_transaction(count: int) -> int:
        server = Server(None, CONFIG)
        server.vhost.declare_queue("in")
        client = server.open()
        client.send(frames.PUBLISH, 0, publish(*[into(b"in", b"")] * count))
        consume(client, "in", credit=count)
        rows = [[1, DONE, tag, tag] for tag in range(1, 2 * count, 2 * count // 100)]
        rows = [row for row in rows if row[2] <= count]
        body = tx(settle=rows)
        bytes_used = 0

        def run() -> None:
            nonlocal bytes_used
            bytes_used = peak_memory(lambda: client.send(frames.TX, 5, body))

        assert calls(Unsettled.pop_range, run) == len(rows) == 50
        assert server.vhost.queues["in"].unsettled == count - 50
        return bytes_used

    one_transaction(800)
    # No copy of all tags either.
    assert one_transaction(16_000) <= 2 * one_transaction(800)


# Refused


@pytest.mark.parametrize(
    ("expected", "entries", "fields"),
    [
        (301, [entry(b"x", b"k", b"nowhere")], {}),
        (306, [entry(b"x", b"k", b"", flags=5 | 16)], {}),
        (307, [into(b"out", b"x" * 1001)], {}),
        (300, [entry(b"x", b"k", b"amq.direct", flags=5 | 8)], {}),
        (400, [into(b"full", b"1"), into(b"full", b"2")], {}),
        (308, [], {"settle": [[1, DONE, 4, 9]]}),
        (308, [], {"settle": [[2, DONE, 1, 1]]}),
        (308, [], {"settle": [[3, DONE, 1, 1]]}),
        (308, [], {"settle": [[1, DONE, 3, 3], [1, DONE, 3, 3]]}),
        (308, [], {"settle": [[1, DONE, 3, 3], [1, REJECT, 1, 3]]}),
        (300, [], {"settle": [[1, 3, 1, 1]]}),
        (300, [], {"settle": [[1, DONE, 2, 1]]}),
        (300, [], {"settle": [[1, DONE, 1]]}),
        (300, [], {"settle": [[1, DONE, 1, -1]]}),
        (300, [], {"settle": [[1, DONE, True, 1]]}),
        (302, [], {"commits": [commit(3)]}),
        (301, [], {"commits": [commit(1), commit(1, stream="nowhere")]}),
        (305, [], {"commits": [commit(1, incarnation="other")]}),
        (312, [], {"commits": [commit(1, member="a", generation=1)]}),
        (300, [], {"commits": [commit(1) | {"more": 1}]}),
        (300, [], {"commits": [1]}),
        (300, [], {"more": 1}),
        (309, [], PRODUCER | {"epoch": 1}),
        (309, [], PRODUCER | {"producer": "never opened"}),
        (300, [], {"producer": "p", "epoch": 0}),
        (300, [], {"producer": "p", "sequence": 0}),
    ],
)
def test_what_is_refused_has_done_nothing(
    server: Server, expected: int, entries: list[bytes], fields: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    server.vhost.declare_queue("full", durable=True, arguments=arguments)
    client = server.open()
    consume(client, "in")
    live = {"subscription": 3, "mode": "pubsub", "exchange": "amq.topic", "pattern": b"#"}
    client.send(frames.SUBSCRIBE, 0, live)
    merged = {"settle": FIELDS["settle"], "commits": FIELDS["commits"]}
    for name, value in fields.items():
        known = merged.get(name, [])
        merged[name] = known + value if isinstance(value, list) else value
    received = client.send(frames.TX, 5, tx(*WORK, *entries, **merged))
    assert code(received) == expected
    assert state(server) == BEFORE
    assert len(server.vhost.queues["full"]) == 0
    assert server.vhost.transactional.expected(b"p") == 0
    # It can be put right and sent again.
    assert ok(client.send(frames.TX, 6, tx(*WORK, **FIELDS, **PRODUCER)), 6)
    assert state(server) == AFTER


def test_a_queue_takes_what_it_has_room_for(server: Server) -> None:
    arguments: dict[str, Any] = {"x-max-length-bytes": 10, "x-overflow": "reject-publish"}
    server.vhost.declare_queue("full", durable=True, arguments=arguments)
    client = server.open()
    messages = [into(b"full", b"12345"), into(b"full", b"123456")]
    assert code(client.send(frames.TX, 5, tx(*messages))) == 400
    assert ok(client.send(frames.TX, 5, tx(messages[0], messages[0])))
    assert len(server.vhost.queues["full"]) == 2


def test_a_mandatory_message_that_is_retained_has_where_to_go(server: Server) -> None:
    answer = server.open().send(frames.TX, 5, tx(entry(b"x", b"k", b"amq.topic", 5 | 8 | 16)))
    assert ok(answer)
    assert len(server.vhost.retained) == 1
    assert server.adapter.metrics.messages_unroutable == 0


#: A mandatory message that nobody would get now, but that is kept for its topic later.
RETAINED_LATER = entry(b"x", b"t", flags=5 | 8 | 16, properties=msgpack.packb({15: 1000}))


def test_a_mandatory_message_that_is_retained_later_has_where_to_go(server: Server) -> None:
    client = server.open()
    consume(client, "in")
    received = client.send(frames.TX, 5, tx(*WORK, RETAINED_LATER, **FIELDS, **PRODUCER))
    assert ok(received)
    assert state(server) == AFTER
    assert server.vhost.transactional.expected(b"p") == 1
    server.advance(2)
    kept = server.vhost.retained.get(b"t")
    assert kept is not None
    assert kept.payload == b"x"


def test_destinations_of_a_headers_exchange_are_asked_too(server: Server) -> None:
    arguments: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    full = server.vhost.declare_queue("full", durable=True, arguments=arguments)
    exchange = server.vhost.exchange("amq.headers")
    server.vhost.bind(exchange, Binding(full, b"", {"x-match": "all", "a": 1}))
    client = server.open()
    properties = msgpack.packb({14: [["a", 1]]})
    matching = entry(b"x", b"k", b"amq.headers", 5 | 16, properties)
    assert code(client.send(frames.TX, 5, tx(matching, matching))) == 400
    assert code(client.send(frames.TX, 5, tx(entry(b"x", b"k", b"amq.headers", 5 | 16)))) == 306
    assert ok(client.send(frames.TX, 5, tx(matching)))
    assert len(full) == 1


def test_publishes_are_refused_while_publishing_is_paused(server: Server) -> None:
    client = server.open()
    consume(client, "in")
    client.connection.blocked("disk")
    server.settle()
    client.take()
    assert code(client.send(frames.TX, 5, tx(*WORK, **FIELDS))) == 401
    assert state(server) == BEFORE
    # What takes nothing in goes on.
    assert ok(client.send(frames.TX, 5, tx(**FIELDS)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\0\0\0\0",
        struct.pack("<II", 0, 0),
        struct.pack("<II", 2, 0) + b"\x80",
        struct.pack("<II", 1, 1) + b"\x80",
        struct.pack("<II", 1, 65_537) + b"\x80",
        struct.pack("<II", 1, 0) + b"\x80" + into(b"out", b"x"),
        struct.pack("<II", 1, 1) + b"\x80" + into(b"out", b"x") + b"\0",
        struct.pack("<II", 1, 0) + b"\x90",
        struct.pack("<II", 1 << 31, 0) + b"\x80",
    ],
)
def test_malformed_transactions_cost_the_connection(server: Server, body: bytes) -> None:
    client = server.open()
    assert code(client.send(frames.TX, 5, body)) == 100
    assert client.is_closed
    assert state(server) == BEFORE


# Repeated, and fenced


def test_a_repeated_commit_is_answered_the_same_and_not_applied(server: Server) -> None:
    client = server.open()
    consume(client, "in")
    body = tx(*WORK, **FIELDS, **PRODUCER)
    assert ok(client.send(frames.TX, 5, body))
    client.lose()
    # By another connection, which has no such subscription.
    other = server.open()
    assert other.send(frames.TX, 5, body) == [(frames.OK, 5, b"\x80")]
    assert state(server) == AFTER
    # Whatever has become of its stream, or of publishing.
    other.connection.blocked("disk")
    server.vhost.delete_stream("s")
    server.settle()
    other.take()
    assert other.send(frames.TX, 5, body) == [(frames.OK, 5, b"\x80")]


def test_a_repeated_commit_waits_for_the_first_to_be_durable(disk: Server) -> None:
    body = tx(*WORK, **PRODUCER)
    first, second = disk.open(), disk.open()
    assert first.send(frames.TX, 5, body) == []
    assert second.send(frames.TX, 5, body) == []
    disk.sync()
    assert (first.take(), second.take()) == ([(frames.OK, 5, b"\x80")], [(frames.OK, 5, b"\x80")])
    assert state(disk)[1] == 1


def test_numbers_may_be_left_out_but_not_go_back(server: Server) -> None:
    client = server.open()
    for sequence in (3, 7, 5, 7, 0):
        assert ok(client.send(frames.TX, 5, tx(into(b"s", b"%d" % sequence), **at(sequence))))
    assert records(server) == [b"0", b"1", b"3", b"7"]
    reply = client.ask(frames.PRODUCER, producer="p", transactional=True)
    assert reply == {"epoch": 1, "sequence": 8}


def at(sequence: int, epoch: int = 0) -> dict[str, Any]:
    return PRODUCER | {"sequence": sequence, "epoch": epoch}


def test_an_older_epoch_is_fenced_even_for_what_it_has_committed(server: Server) -> None:
    client, newer = server.open(), server.open()
    assert ok(client.send(frames.TX, 5, tx(into(b"s", b"2"), **at(0))))
    newer.ask(frames.PRODUCER, producer="p", transactional=True)
    for sequence in (0, 1):
        assert code(client.send(frames.TX, 5, tx(into(b"s", b"no"), **at(sequence)))) == 309
    assert ok(newer.send(frames.TX, 5, tx(into(b"s", b"no"), **at(0, 1))))
    assert ok(newer.send(frames.TX, 5, tx(into(b"s", b"3"), **at(1, 1))))
    assert records(server) == [b"0", b"1", b"2", b"3"]


def test_the_two_kinds_of_producers_share_no_names(server: Server) -> None:
    client = server.open()
    assert client.ask(frames.PRODUCER, producer="p") == {"epoch": 0, "sequence": 0}
    assert ok(client.send(frames.TX, 5, tx(**at(8))))
    assert client.ask(frames.PRODUCER, producer="p") == {"epoch": 1, "sequence": 0}


# Crashes


def test_a_transaction_is_all_or_nothing_at_every_crash_point() -> None:
    machine = Server(None, CONFIG, host=Host())
    add_topology(machine)
    machine.sync()
    client = machine.open()
    consume(client, "in")
    machine.sync()
    client.take()
    start = machine.host.disk.copy()
    machine.host.disk.operations.clear()
    body = tx(*WORK, **FIELDS, **PRODUCER)
    client.send(frames.TX, 5, body)
    machine.sync()
    assert client.take() == [(frames.OK, 5, b"\x80")]
    count = len(machine.host.disk.operations)
    seen: set[bool] = set()
    for done, disk in crashes(start, machine.host.disk.operations, random.Random(1)):
        after = Server(None, CONFIG, host=Host(disk.copy(), seed=2))
        is_applied = state(after) == AFTER
        assert is_applied or state(after) == BEFORE
        # It was answered once all was written.
        assert is_applied or done < count
        seen.add(is_applied)
        # Sent again: known if it was applied; else its deliveries are not there any more.
        again = after.open()
        again.send(frames.TX, 5, body)
        after.sync()
        received = again.take()
        if is_applied:
            assert received == [(frames.OK, 5, b"\x80")]
        else:
            assert received == [] or code(received) == 308
            consume(again, "in")
            after.sync()
            again.take()
            again.send(frames.TX, 5, body)
            after.sync()
            assert (frames.OK, 5, b"\x80") in again.take()
        assert state(after) == AFTER
    assert seen == {True, False}


class Processor:
    """Moves messages from queue ``in`` by stream ``mid`` to queue ``out``, exactly once.

    Two steps, each a transaction: take from the queue and put into the stream; read the stream from
    the group's offset on, put into the queue and commit the offset. The process outlives the
    broker: what was not answered is sent again.
    """

    def __init__(self) -> None:
        self.epoch = -1
        self.sequence = 0
        self.pending: bytes | None = None
        self.client: Client

    def connect(self, machine: Server) -> None:
        self.machine = machine
        self.client = machine.open()
        self.is_waiting = False
        self.tags: list[tuple[int, bytes]] = []
        self.received = consume(self.client, "in", credit=3)

    def poll(self) -> list[Received]:
        """What has come that is not a delivery."""
        others: list[Received] = []
        arrived, self.received = self.received + self.client.take(), []
        for received in arrived:
            if received[0] == frames.DELIVER:
                (delivered,) = deliveries([received])
                self.tags.append((delivered.tag, delivered.payload))
            else:
                others.append(received)
        return others

    def step(self) -> bool:
        """Do what can be done now; whether there was anything."""
        for kind, _, body in self.poll():
            if kind == frames.OK and self.epoch < 0:
                reply = msgpack.unpackb(body)
                self.epoch, self.sequence = reply["epoch"], reply["sequence"]
            elif kind == frames.OK:
                self.pending = None
                self.sequence += 1
            else:
                # Its deliveries are not this connection's: so it was not applied.
                assert msgpack.unpackb(body)[0] in (308, 302)
                self.pending = None
            self.is_waiting = False
        if self.is_waiting:
            return False
        if self.epoch < 0:
            self.ask(frames.PRODUCER, msgpack.packb({"producer": "p", "transactional": True}))
        elif self.pending is not None:
            self.ask(frames.TX, self.pending)
        elif self.tags:
            taken, self.tags = self.tags, []
            settle = [[1, DONE, tag, tag] for tag, _ in taken]
            messages = [into(b"mid", payload) for _, payload in taken]
            self.send(tx(*messages, settle=settle, **at(self.sequence, self.epoch)))
        else:
            vhost = self.machine.vhost
            offset = vhost.groups.committed("g", vhost.stream("mid")).get(0, 0)
            found = records(self.machine, "mid")[offset : offset + 2]
            if not found:
                return False
            commits = [commit(offset + len(found), stream="mid")]
            messages = [into(b"out", payload) for payload in found]
            self.send(tx(*messages, commits=commits, **at(self.sequence, self.epoch)))
        return True

    def send(self, body: bytes) -> None:
        self.pending = body
        self.ask(frames.TX, body)

    def ask(self, kind: int, body: bytes) -> None:
        self.is_waiting = True
        self.client.feed(struct.pack("<IBQ", 9 + len(body), kind, 7) + body)


@pytest.mark.parametrize("seed", range(25))
def test_read_process_write_is_exactly_once_whatever_is_killed(seed: int) -> None:
    random_ = random.Random(seed)
    machine = Server(None, CONFIG, host=Host(seed=seed))
    vhost = machine.vhost
    for name in ("in", "out"):
        vhost.declare_queue(name, durable=True)
    vhost.declare_stream("mid")
    inputs = [b"i%d" % number for number in range(20)]
    client = machine.open()
    client.send(frames.PUBLISH, 0, publish(*[into(b"in", payload) for payload in inputs]))
    machine.sync()
    processor = Processor()
    processor.connect(machine)
    kills = 0
    idle = 0
    while idle < 40:
        choice = random_.random()
        if choice < 0.02 and kills < 12:
            kills += 1
            disk = machine.host.disk.copy()
            if random_.random() < 0.7:
                disk = disk.power_cut(random_ if random_.random() < 0.7 else None)
            machine = Server(None, CONFIG, host=Host(disk, seed=seed * 100 + kills))
            if random_.random() < 0.3:
                # The processor too: it begins anew, and an older one would be fenced.
                processor = Processor()
            processor.connect(machine)
        elif choice < 0.04:
            # The connection alone breaks.
            processor.client.lose()
            processor.connect(machine)
        elif choice < 0.4:
            idle = 0 if processor.step() else idle + 1
        else:
            machine.host.step_one(random_)
            machine.settle()
    machine.sync()
    assert kills > 0
    processor.client.lose()
    out = machine.open()
    found = payloads(consume(out, "out", credit=100))
    assert sorted(records(machine, "mid")) == sorted(inputs)
    assert sorted(found) == sorted(inputs)
    assert len(machine.vhost.queues["in"]) == 0
