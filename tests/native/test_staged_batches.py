"""What is staged for one stream is kept as its record batches, and appended when it counts."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.staging import add_topology, answer, commit, parts_of, stage
from tests.support.native import CONFIG, Client, Server, code, entry, into, ok, publish
from tests.support.simulated import Host, crashes
from trivium.routing.exchanges import Binding
from trivium.streams.records import FLAGS, PAYLOAD, RecordBatch
from trivium.vhost.policies import Policy
from trivium_native.server import parts
from trivium_native.wire import frames

#: As many as are worth a batch.
MANY = 128
BATCHES = 8
MANDATORY = 16


def many(first: int = 0, count: int = MANY, **changes: Any) -> list[bytes]:
    return [entry(b"%d" % number, b"s", b"", **changes) for number in range(first, first + count)]


def payloads(first: int = 0, count: int = MANY) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def keyed(*keys: bytes, count: int = MANY) -> list[bytes]:
    """Messages of so many rounds of these keys."""
    return [
        entry(key + b"%d" % number, b"s", b"", properties=msgpack.packb({13: key}))
        for number in range(count)
        for key in keys
    ]


def kept(server: Server, part: str = "a") -> list[int]:
    """The flags of each record of a part."""
    log = server.storage.log(f"part/1:/{'/'}1:p/{part}")
    found = log.read(log.first_offset, 1000, 1 << 30)
    return [int.from_bytes(record[4:8], "little") for _, record, _ in found]


def views(server: Server, partition: int = 0, stream: str = "s") -> list[RecordBatch]:
    found = server.vhost.stream(stream).partitions[partition].read(0, 1 << 30)
    return [RecordBatch(batch) for _, batch in found]


def records(server: Server, partition: int = 0, stream: str = "s") -> list[bytes]:
    return [
        view.binary(PAYLOAD, row) or b""
        for view in views(server, partition, stream)
        for row in range(view.count)
    ]


@pytest.fixture
def server() -> Server:
    return add_topology(Server(None, CONFIG))


@pytest.fixture
def client(server: Server) -> Client:
    return server.open()


def staged(client: Client, *entries: bytes, **fields: Any) -> None:
    assert answer(client.send(frames.STAGE, 5, stage(*entries, **fields))) == {}


def committed(client: Client, *wanted: tuple[str, int]) -> None:
    assert answer(client.send(frames.TX, 5, commit(*(wanted or (("a", 1),))))) == {}


def test_what_goes_to_one_stream_is_kept_in_its_batches(server: Server, client: Client) -> None:
    staged(client, *many())
    staged(client, *many(MANY), index=1)
    assert kept(server) == [BATCHES, BATCHES]
    assert records(server) == []
    committed(client, ("a", 2))
    assert records(server) == payloads(0, 2 * MANY)
    assert len(parts_of(server)) == 0


def test_it_is_as_if_it_were_published_when_it_is_committed(server: Server, client: Client) -> None:
    server.vhost.declare_stream("t")
    properties = msgpack.packb({1: "text/plain", 14: [["n", 1]]})
    first, then = (
        [entry(b"%d" % n, name, b"", 5, properties, 7) for n in range(MANY)]
        for name in (b"s", b"t")
    )
    staged(client, *first)
    staged(client, *(into(b"s", b"transient", 0) for _ in range(MANY)), index=1)
    server.advance(3600)
    committed(client, ("a", 2))
    body = {"producer": "p", "epoch": 0, "sequence": 1}
    packed = msgpack.packb(body)
    entries = [*then, *(into(b"t", b"transient", 0) for _ in range(MANY))]
    request = len(packed).to_bytes(4, "little") + len(entries).to_bytes(4, "little") + packed
    assert ok(client.send(frames.TX, 5, request + b"".join(entries)))

    def content(stream: str) -> list[tuple[object, ...]]:
        return [
            (message.payload, message.timestamp, view.headers(row), view.integer(FLAGS, row))
            for view in views(server, stream=stream)
            for row in range(view.count)
            for message in [view.message(row)]
        ]

    assert [row[-3:] for row in content("s")] == [row[-3:] for row in content("t")]
    assert content("s")[0][-1] == 6
    assert views(server)[0].max_timestamp == server.broker.now_ms


@pytest.mark.parametrize(
    "entries",
    [
        many(count=MANY - 1),
        [*many(), entry(b"x", b"s", b"", properties=msgpack.packb({6: 1000}))],
        [*many(), entry(b"x", b"s", b"", properties=msgpack.packb({15: 1000}))],
        [
            *many(),
            entry(
                b"x", b"s", b"", properties=msgpack.packb({14: [["x-delivery", "at-most-once"]]})
            ),
        ],
        [*many(), into(b"q", b"x")],
        [into(b"q", b"x"), *many()],
        [entry(b"x", b"both")] * MANY,
        [entry(b"x", b"headers", b"amq.headers")] * MANY,
        [*many(), entry(b"x", b"t", flags=5 | 8)],
    ],
)
def test_all_else_is_kept_as_it_came(server: Server, client: Client, entries: list[bytes]) -> None:
    vhost = server.vhost
    queue = vhost.declare_queue("q", durable=True)
    for target in (queue, vhost.stream("s")):
        vhost.bind(vhost.exchange("amq.topic"), Binding(target, b"both"))
    staged(client, *entries)
    assert kept(server) == [0]
    committed(client)
    assert len(parts_of(server)) == 0


def test_a_request_for_whose_batches_there_is_no_time_is_kept_as_it_came(
    server: Server, client: Client
) -> None:
    entries = many(count=8192)
    staged(client, *entries, into(b"s", b"last"))
    # One whose messages are not alike.
    staged(client, *entries[1:], entry(b"last", b"s", b"", priority=1), index=1)
    staged(client, *entries, entry(b"last", b"s", b"", priority=1), index=2)
    assert kept(server) == [BATCHES, BATCHES, 0]
    committed(client, ("a", 3))
    assert len(records(server)) == 3 * 8192 + 2


@pytest.mark.parametrize(
    ("expected", "body"),
    [
        (100, stage(*many()) + b"x"),
        (100, stage(*many())[:-1]),
        (100, stage(*many(), b"\x05\x00")),
        (100, stage(*many(), entry(b"x", b"s", b"", 64))),
        (300, stage(*many(), entry(b"x", b"s", b"", properties=b"x"))),
        (307, stage(*many(), into(b"s", b"x" * 1001))),
        (301, stage(*many(), entry(b"x", b"k", b"nowhere"))),
        (306, stage(*many(), entry(b"x", b"gone", b"", flags=5 | 16))),
    ],
)
def test_what_is_refused_is_not_kept(
    server: Server, client: Client, expected: int, body: bytes
) -> None:
    assert code(client.send(frames.STAGE, 5, body)) == expected
    assert len(parts_of(server)) == 0


def test_none_is_kept_while_publishing_is_paused(server: Server, client: Client) -> None:
    client.connection.blocked("disk")
    server.settle()
    client.take()
    assert code(client.send(frames.STAGE, 5, stage(*many()))) == 401
    assert len(parts_of(server)) == 0


# Partitions


def test_keys_come_to_their_partitions(server: Server, client: Client) -> None:
    server.vhost.delete_stream("s")
    server.vhost.declare_stream("s", 3)
    keys = (b"a", b"b", b"c", b"d")
    staged(client, *keyed(*keys))
    assert kept(server) == [BATCHES]
    committed(client)
    found = [records(server, partition) for partition in range(3)]
    client.send(frames.PUBLISH, 0, publish(*keyed(*keys)))
    for partition in range(3):
        # In order within each partition.
        assert records(server, partition) == 2 * found[partition]
    assert sum(map(len, found)) == len(keys) * MANY


def test_what_says_no_partition_goes_to_another_one_in_each_turn(
    server: Server, client: Client
) -> None:
    server.vhost.delete_stream("s")
    server.vhost.declare_stream("s", 3)
    for sequence in range(3):
        staged(client, *many(), sequence=sequence)
        assert kept(server) == [BATCHES]
        assert ok(client.send(frames.TX, 5, commit(("a", 1), sequence=sequence)))
    assert [records(server, partition) for partition in range(3)] == 3 * [payloads()]


@pytest.mark.parametrize(
    "entries",
    [
        # One batch after the other would change their order.
        [*keyed(b"a"), *many()],
        # Most batches would be small.
        [message for n in range(MANY) for message in keyed(b"%d" % n, count=1)],
    ],
)
def test_what_would_be_out_of_order_or_small_is_kept_as_it_came(
    server: Server, client: Client, entries: list[bytes]
) -> None:
    server.vhost.delete_stream("s")
    server.vhost.declare_stream("s", 3)
    staged(client, *entries)
    assert kept(server) == [0]


def test_one_partition_keeps_the_order_whatever_has_a_key(server: Server, client: Client) -> None:
    entries = [message for pair in zip(keyed(b"a"), many(), strict=True) for message in pair]
    staged(client, *entries)
    assert kept(server) == [BATCHES]
    committed(client)
    found = records(server)
    client.send(frames.PUBLISH, 0, publish(*entries))
    assert records(server) == 2 * found


def test_what_was_published_in_that_turn_comes_first(server: Server, client: Client) -> None:
    staged(client, *many())
    fields = msgpack.packb({"producer": "p", "epoch": 0, "sequence": 0, "parts": [["a", 1]]})
    head = len(fields).to_bytes(4, "little") + (1).to_bytes(4, "little")
    assert ok(client.send(frames.TX, 5, head + fields + into(b"s", b"own")))
    assert records(server) == [b"own", *payloads()]


# What has changed since


def test_keys_follow_a_stream_that_got_more_partitions(server: Server, client: Client) -> None:
    keys = (b"a", b"b", b"c", b"g")
    staged(client, *keyed(*keys))
    staged(client, *many(), index=1)
    client.ask(frames.DECLARE, kind="stream", name="s", partitions=3, extend=True)
    committed(client, ("a", 2))
    found = [records(server, partition) for partition in range(3)]
    assert sum(map(len, found)) == (len(keys) + 1) * MANY
    assert all(found)
    client.send(frames.PUBLISH, 0, publish(*keyed(*keys)))
    for partition in range(3):
        rest = [each for each in found[partition] if not each.isdigit()]
        assert records(server, partition)[len(found[partition]) :] == rest


def test_what_else_wants_it_by_then_gets_it_too(server: Server, client: Client) -> None:
    vhost = server.vhost
    vhost.bind(vhost.exchange("amq.topic"), Binding(vhost.stream("s"), b"k"))
    staged(client, *(entry(payload, b"k") for payload in payloads()))
    assert kept(server) == [BATCHES]
    queue = vhost.declare_queue("q", durable=True)
    vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"k"))
    committed(client)
    assert records(server) == payloads()
    found = [queue.get() for _ in range(MANY)]
    assert [entry and entry.message.payload for entry in found] == payloads()


def test_a_stream_that_is_gone_refuses_what_is_mandatory(server: Server, client: Client) -> None:
    staged(client, into(b"s", b"x", 5 | 16), *many())
    assert kept(server) == [BATCHES | MANDATORY]
    server.vhost.delete_stream("s")
    refused = answer(client.send(frames.TX, 5, commit(("a", 1))))
    assert (refused["left"], refused["refused"][0]) == (1, 306)
    server.vhost.declare_stream("s")
    committed(client)
    assert records(server) == [b"x", *payloads()]


def test_an_exchange_that_is_gone_refuses_it(server: Server, client: Client) -> None:
    exchange = server.vhost.declare_exchange("e", "topic")
    server.vhost.bind(exchange, Binding(server.vhost.stream("s"), b"k"))
    staged(client, *(entry(payload, b"k", b"e") for payload in payloads()))
    assert kept(server) == [BATCHES]
    server.vhost.delete_exchange("e")
    assert answer(client.send(frames.TX, 5, commit(("a", 1))))["refused"][0] == 301


def test_an_alarm_refuses_it(server: Server, client: Client) -> None:
    staged(client, *many())
    server.broker.alarms.is_disk_short = True
    assert answer(client.send(frames.TX, 5, commit(("a", 1))))["refused"][0] == 401
    assert records(server) == []
    server.broker.alarms.is_disk_short = False
    server.advance(parts.RETRY_MS / 1000)
    assert records(server) == payloads()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_it_is_compressed_as_the_stream_is_told(server: Server, client: Client, codec: str) -> None:
    server.vhost.set_policy(Policy("p", "^s$", {"compression": codec}, apply_to="streams"))
    staged(client, *many())
    committed(client)
    ((_, batch),) = server.vhost.stream("s").partitions[0].read(0, 1)
    assert batch[5] == {"lz4": 1, "zstd": 2}[codec]
    assert records(server) == payloads()


def test_it_counts_as_what_is_published_does(server: Server, client: Client) -> None:
    stream = server.vhost.stream("s")
    counters = server.vhost.exchange("").counters

    def counts() -> list[int]:
        partition = stream.partitions[0]
        return [stream.published, counters.published, counters.routed, partition.appended]

    before = counts()
    staged(client, *many())
    assert counts() == before
    committed(client)
    assert counts() == [number + MANY for number in before]


# Crashes


def test_each_message_is_published_once_at_every_crash_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "STEP_BYTES", 1)
    machine = Server(None, CONFIG, host=Host())
    add_topology(machine)
    machine.sync()
    start = machine.host.disk.copy()
    machine.host.disk.operations.clear()
    client = machine.open()
    for index in range(2):
        client.send(frames.STAGE, 9, stage(*many(index * MANY), index=index))
        client.send(frames.STAGE, 9, stage(*many(), part="lost", index=index))
        machine.sync()
    body = commit(("a", 2))
    client.take()
    client.send(frames.TX, 5, body)
    answered = 0
    for _ in range(4):
        machine.sync()
        if not answered and client.take():
            answered = len(machine.host.disk.operations)
        machine.advance(0.001)
    whole = payloads(0, 2 * MANY)
    assert records(machine) == whole
    seen: set[bool] = set()
    for done, disk in crashes(start, machine.host.disk.operations, random.Random(1)):
        after = Server(None, CONFIG, host=Host(disk.copy(), seed=2))
        is_decided = after.vhost.transactional.expected(b"p") == 1
        seen.add(is_decided)
        assert is_decided or done < answered
        for _ in range(4):
            after.sync()
            after.advance(0.001)
        assert records(after) == (whole if is_decided else [])
        again = after.open()
        for index in range(2):
            again.send(frames.STAGE, 9, stage(*many(index * MANY), index=index))
            after.sync()
        again.take()
        again.send(frames.TX, 5, body)
        for _ in range(4):
            after.sync()
            after.advance(0.001)
        assert records(after) == whole
        assert len(parts_of(after)) == 0
    assert seen == {True, False}


# Whatever it is


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from([b"", b"a", b"b", b"c"]), st.binary(max_size=3)), max_size=20
    ),
    st.integers(1, 3),
)
def test_each_partition_has_what_publishing_gives_it(
    messages: list[tuple[bytes, bytes]], partitions: int
) -> None:
    server = add_topology(Server(None, CONFIG))
    server.vhost.delete_stream("s")
    server.vhost.declare_stream("s", partitions)
    server.vhost.declare_stream("t", partitions)

    def entries(name: bytes) -> list[bytes]:
        return [
            entry(payload, name, b"", properties=msgpack.packb({13: key}) if key else b"")
            for key, payload in [*messages * 10, *[(b"a", b"x")] * MANY]
        ]

    client = server.open()
    staged(client, *entries(b"s"))
    committed(client)
    client.send(frames.PUBLISH, 0, publish(*entries(b"t")))
    for partition in range(partitions):
        assert records(server, partition) == records(server, partition, "t")
