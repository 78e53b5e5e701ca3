"""PUBLISH and CONFIRM: what is published, when it is confirmed, what is refused."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.native import (
    Client,
    Received,
    Server,
    entry,
    frame,
    limited,
    payloads,
    publish,
    settle,
)
from tests.support.storages import HeldStorage
from trivium.config import Config, LimitsConfig, Listen
from trivium.routing.exchanges import Binding
from trivium_native.wire import frames

CONFIG = Config(listen={"native": Listen(0)}, limits=LimitsConfig(max_message_bytes=1000))


#: a transaction of one message: no fields, one entry
TRANSACTION = struct.pack("<II", 1, 1) + b"\x80" + entry()
REJECTING: dict[str, Any] = {"x-overflow": "reject-publish"}


@pytest.fixture(params=["memory", "disk"])
def server(request: pytest.FixtureRequest) -> Server:
    return Server(HeldStorage() if request.param == "disk" else None, CONFIG)


@pytest.fixture
def disk() -> Server:
    return Server(HeldStorage(), CONFIG)


@pytest.fixture
def memory() -> Server:
    return Server(None, CONFIG)


def add_queue(
    server: Server,
    pattern: bytes = b"#",
    exchange: str = "amq.topic",
    arguments: dict[str, Any] | None = None,
) -> Any:
    queue = server.vhost.declare_queue("q", durable=True, arguments=arguments)
    server.vhost.bind(server.vhost.exchange(exchange), Binding(queue, pattern))
    server.settle()
    return queue


def confirms(received: list[Received]) -> list[tuple[int, int]]:
    """(first correlation id, count) of each CONFIRM; nothing else may have come."""
    assert {kind for kind, _, _ in received} <= {frames.CONFIRM}
    return [(first, struct.unpack("<I", body)[0]) for _, first, body in received]


def error(received: list[Received]) -> tuple[int, int, dict[str, Any]]:
    ((kind, correlation, body),) = received
    assert kind == frames.ERROR
    code, _, *detail = msgpack.unpackb(body)
    return correlation, code, detail[0] if detail else {}


def test_a_message_arrives_as_it_was_published(memory: Server) -> None:
    queue = add_queue(memory)
    client = memory.open()
    properties = msgpack.packb({1: "text/plain", 6: 5000, 14: [["n", 1], ["n", 2]]})
    sent = entry(b"payload", b"a.b", flags=6, properties=properties, priority=9)
    client.send(frames.PUBLISH, 1, publish(sent))
    message = queue.get().message
    assert (message.payload, message.address.key) == (b"payload", b"a.b")
    assert (message.mode, message.persistent, message.priority) == (2, True, 9)
    assert message.header == properties
    assert message.timestamp == memory.broker.now_ms
    assert message.expires == memory.broker.now_ms + 5000
    assert message.properties().headers == [("n", 1), ("n", 2)]


def test_what_reaches_only_memory_is_confirmed_at_once(memory: Server) -> None:
    add_queue(memory)
    assert confirms(memory.open().send(frames.PUBLISH, 1, publish(entry()))) == [(1, 1)]


def test_what_reaches_a_durable_queue_is_confirmed_after_its_write_batch(disk: Server) -> None:
    queue = add_queue(disk)
    client = disk.open()
    assert client.send(frames.PUBLISH, 1, publish(entry())) == []
    assert len(queue) == 1
    disk.sync()
    assert confirms(client.take()) == [(1, 1)]


def test_a_stream_makes_a_transient_message_wait_too(disk: Server) -> None:
    disk.vhost.bind(disk.vhost.exchange("amq.topic"), Binding(disk.vhost.declare_stream("s"), b"#"))
    client = disk.open()
    assert client.send(frames.PUBLISH, 1, publish(entry(flags=0))) == []
    disk.sync()
    assert confirms(client.take()) == [(1, 1)]


def test_what_nobody_must_keep_is_confirmed_at_once(disk: Server) -> None:
    client = disk.open()
    assert confirms(client.send(frames.PUBLISH, 1, publish(entry()))) == [(1, 1)]
    assert disk.adapter.metrics.messages_unroutable == 1


def test_requests_in_a_row_are_confirmed_by_one_frame(disk: Server) -> None:
    add_queue(disk)
    client = disk.open()
    raw = b""
    for correlation in (5, 6, 7, 9, 10):
        body = publish(entry())
        raw += struct.pack("<IBQ", 9 + len(body), frames.PUBLISH, correlation) + body
    client.feed(raw)
    disk.sync()
    assert confirms(client.take()) == [(5, 3), (9, 2)]


IDS = st.sampled_from((0, 1, 2, 3, 7, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.lists(IDS, max_size=8), st.booleans()), max_size=5))
def test_each_publish_is_confirmed_once_and_in_order(turns: list[tuple[list[int], bool]]) -> None:
    """The disk writes at the end of some turns only."""
    server = Server(HeldStorage(), CONFIG)
    add_queue(server)
    client = server.open()
    sent: list[int] = []
    for correlations, is_synced in turns:
        client.feed(
            b"".join(frame(frames.PUBLISH, each, publish(entry())) for each in correlations)
        )
        sent += [correlation for correlation in correlations if correlation]
        if is_synced:
            server.sync()
    server.sync()
    found = confirms(client.take())
    assert [first + index for first, count in found for index in range(count)] == sent


MESSAGES = st.tuples(
    st.sampled_from((b"", b"x", bytes(5000))),
    st.sampled_from((b"k", b"m", b"other", b"k.2")),
    st.sampled_from((0, 1, 2, 4, 5, 6, 21)),
    st.sampled_from((b"", msgpack.packb({6: 5000}), msgpack.packb({1: "a/b"}))),
    st.integers(0, 255),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=8))
def test_messages_mean_the_same_alone_and_together(sent: list[tuple[Any, ...]]) -> None:
    """Whether each has a request of its own or all share one, and whatever came before it."""
    found = []
    for requests in ([[message] for message in sent], [sent]):
        server = Server(None, CONFIG)
        queue = add_queue(server, b"k.#")
        client = server.open()
        refused = []
        for number, request in enumerate(requests):
            entries = [
                entry(payload[:1000], key, flags=flags, properties=properties, priority=priority)
                for payload, key, flags, properties, priority in request
            ]
            for kind, _, body in client.send(frames.PUBLISH, 1, publish(*entries)):
                if kind == frames.ERROR:
                    code, _, detail = msgpack.unpackb(body)
                    assert code == 306
                    refused += [number + index for index in detail["indexes"]]
        taken = [queue.get().message for _ in range(len(queue))]
        found.append((refused, [message.record() for message in taken]))
        assert server.adapter.metrics.messages_received == len(sent)
    assert found[0] == found[1]


def test_without_correlation_id_nothing_is_confirmed(server: Server) -> None:
    queue = add_queue(server)
    client = server.open()
    assert client.send(frames.PUBLISH, 0, publish(entry())) == []
    if isinstance(server.storage, HeldStorage):
        server.sync()
    assert client.take() == []
    assert len(queue) == 1


def test_a_batch_is_published_in_order(memory: Server) -> None:
    queue = add_queue(memory)
    client = memory.open()
    entries = [entry(b"%d" % n, b"k%d" % (n % 3)) for n in range(10)]
    assert confirms(client.send(frames.PUBLISH, 1, publish(*entries))) == [(1, 1)]
    assert [queue.get().message.payload for _ in range(10)] == [b"%d" % n for n in range(10)]


def test_the_route_follows_the_topology(memory: Server) -> None:
    client = memory.open()
    client.send(frames.PUBLISH, 1, publish(entry(b"before")))
    queue = add_queue(memory)
    client.send(frames.PUBLISH, 2, publish(entry(b"after")))
    assert queue.get().message.payload == b"after"


def test_equal_bytes_split_otherwise_are_another_address(memory: Server) -> None:
    memory.vhost.declare_exchange("ab", "topic")
    memory.vhost.declare_exchange("a", "topic")
    queue = add_queue(memory, b"c", "ab")
    client = memory.open()
    both = publish(entry(b"1", b"c", b"ab"), entry(b"2", b"bc", b"a"))
    client.send(frames.PUBLISH, 1, both)
    assert len(queue) == 1


def test_the_headers_exchange_routes_by_properties(memory: Server) -> None:
    queue = memory.vhost.declare_queue("q")
    memory.vhost.bind(memory.vhost.exchange("amq.headers"), Binding(queue, b"", {"n": 1}))
    client = memory.open()
    for n in (1, 2):
        properties = msgpack.packb({14: [["n", n]]})
        body = publish(entry(b"%d" % n, b"", b"amq.headers", properties=properties))
        client.send(frames.PUBLISH, n, body)
    assert len(queue) == 1


# Refused as a whole: nothing is published


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (entry(exchange=b"none"), 301),
        (entry(exchange=b"\xff"), 300),
        (entry(exchange=b"inside"), 201),
        (entry(bytes(1001)), 307),
        (entry(key=b"." * 128), 300),
        (entry(properties=b"\xc1"), 300),
        (entry(properties=msgpack.packb({99: 1})), 300),
        (entry(exchange=b"amq.fanout", flags=8), 300),
    ],
    ids=["exchange", "name", "internal", "size", "levels", "msgpack", "property", "retain"],
)
def test_a_bad_message_refuses_its_request(memory: Server, bad: bytes, code: int) -> None:
    memory.vhost.declare_exchange("inside", "topic", internal=True)
    queue = add_queue(memory)
    client = memory.open()
    correlation, found, _ = error(client.send(frames.PUBLISH, 3, publish(entry(), bad)))
    assert (correlation, found) == (3, code)
    assert len(queue) == 0
    assert not client.is_closed


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack("<II", 0, 0),
        struct.pack("<II", 1, 0),
        struct.pack("<II", 1, 2) + entry(),
        struct.pack("<II", 65_537, 0) + entry(),
        publish(entry()) + b"\x00",
        publish(entry())[:-1],
        publish(entry(flags=3)),
        publish(entry(flags=32)),
        publish(entry(), entry(flags=3)),
        publish(struct.pack("<BBHHHII", 5, 0, 0, 1, 1, 0, 1) + b"kx"),
        publish(struct.pack("<BBHHHII", 0xE0, 0, 0, 1, 0xFFFF, 0, 1) + b"kx"),
        publish(bytes(15)),
        publish(entry(), producer=(b"", 0, 0)),
        publish(entry(), producer=(b"p" * 256, 0, 0)),
        struct.pack("<II", 1, 1) + bytes(8),
        struct.pack("<IIIIQ", 1, 1, 0xFFFFFFFF, 0, 0),
        publish(entry(), producer=(b"p", 0, 1 << 63)),
    ],
)
def test_a_malformed_publish_closes(memory: Server, body: bytes) -> None:
    queue = add_queue(memory)
    client = memory.open()
    assert error(client.send(frames.PUBLISH, 1, body))[1] == 100
    assert client.is_closed
    assert len(queue) == 0


def test_while_publishing_is_paused_it_is_refused(memory: Server) -> None:
    queue = add_queue(memory)
    client = memory.open()
    client.connection.blocked("disk is nearly full")
    memory.settle()
    assert client.take() == [
        (frames.BLOCKED, 0, msgpack.packb({"reason": "disk is nearly full"})),
    ]
    assert error(client.send(frames.PUBLISH, 1, publish(entry())))[1] == 401
    client.connection.unblocked()
    memory.settle()
    assert client.take() == [(frames.UNBLOCKED, 0, b"")]
    assert confirms(client.send(frames.PUBLISH, 2, publish(entry()))) == [(2, 1)]
    assert len(queue) == 1


def test_a_client_that_comes_while_publishing_is_paused_is_told(memory: Server) -> None:
    client = memory.greet()
    client.connection.blocked("memory")
    kinds = [kind for kind, _, _ in client.send(frames.AUTH, 2, {})]
    assert kinds == [frames.OK, frames.BLOCKED]


def test_consumers_go_on_and_acknowledge_while_publishing_is_paused(memory: Server) -> None:
    queue = add_queue(memory)
    client = memory.open()
    client.send(frames.PUBLISH, 1, publish(entry(b"1"), entry(b"2")))
    fields = {"subscription": 1, "mode": "queue", "queue": "q", "credit": 1}
    assert payloads(client.send(frames.SUBSCRIBE, 2, fields)) == [b"1"]
    client.connection.blocked("low on disk")
    memory.settle()
    client.take()
    assert error(client.send(frames.PUBLISH, 3, publish(entry())))[1] == 401
    assert payloads(client.send(frames.ACK, 0, settle(1, 1, 1))) == [b"2"]
    client.send(frames.ACK, 0, settle(1, 2, 2))
    assert (len(queue), queue.unsettled) == (0, 0)


def test_while_publishing_is_paused_transactions_are_refused(memory: Server) -> None:
    queue = add_queue(memory)
    client = memory.open()
    client.connection.blocked("low on disk")
    memory.settle()
    client.take()
    assert error(client.send(frames.TX, 1, TRANSACTION))[1] == 401
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("kind", "body"), [(frames.PUBLISH, publish(entry())), (frames.TX, TRANSACTION)]
)
def test_a_pause_for_a_moment_refuses_nothing_but_reads_publishers_no_more(
    memory: Server, kind: int, body: bytes
) -> None:
    queue = add_queue(memory)
    publisher, consumer = memory.open(), memory.open(heartbeat=1)
    for client in (publisher, consumer):
        client.connection.blocked("")
    memory.settle()
    assert [reply for reply, _, _ in publisher.send(kind, 1, body)] != [frames.ERROR]
    assert len(consumer.send(frames.PING, 1, b"")) == 1
    assert [not client.transport.is_paused for client in (publisher, consumer)] == [False, True]
    for client in (publisher, consumer):
        client.connection.unblocked()
    memory.settle()
    assert [not client.transport.is_paused for client in (publisher, consumer)] == [True, True]
    assert publisher.take() == consumer.take() == []
    assert len(queue) == 1


def test_a_publisher_that_is_not_read_owes_no_heartbeat(disk: Server) -> None:
    add_queue(disk)
    client = disk.open(heartbeat=1)
    client.connection.blocked("")
    client.send(frames.PUBLISH, 0, publish(entry()))
    disk.advance(10)
    client.connection.unblocked()
    disk.advance(1)
    assert not client.is_closed, "its time starts anew"
    disk.advance(1)
    assert client.is_closed


# Refused one by one


def test_a_mandatory_message_that_nobody_wants_is_an_error(memory: Server) -> None:
    queue = add_queue(memory, b"wanted")
    client = memory.open()
    body = publish(
        entry(b"0", b"wanted", flags=16),
        entry(b"1", b"other", flags=16),
        entry(b"2", b"other"),
        entry(b"3", b"wanted"),
    )
    assert error(client.send(frames.PUBLISH, 1, body)) == (1, 306, {"indexes": [1]})
    assert len(queue) == 2


def test_a_full_queue_rejects_and_the_answer_waits_for_the_others(disk: Server) -> None:
    queue = add_queue(disk, arguments=REJECTING | {"x-max-length": 1})
    client = disk.open()
    assert client.send(frames.PUBLISH, 1, publish(entry(b"1"), entry(b"2"), entry(b"3"))) == []
    disk.sync()
    assert error(client.take()) == (1, 400, {"indexes": [1, 2]})
    assert len(queue) == 1


@pytest.mark.parametrize("retain", [0, 8])
@pytest.mark.parametrize("names", [["full", "kept"], ["kept", "full"]])
def test_a_message_that_one_of_its_queues_refuses_is_refused(
    disk: Server, names: list[str], retain: int
) -> None:
    """Whatever the others answer, and whether it is kept as a retained message."""
    arguments: dict[str, dict[str, Any]] = {"kept": {}, "full": REJECTING | {"x-max-length": 0}}
    topics = disk.vhost.exchange("amq.topic")
    for name in names:
        queue = disk.vhost.declare_queue(name, durable=True, arguments=arguments[name])
        disk.vhost.bind(topics, Binding(queue, b"k"))
    client = disk.open()
    assert client.send(frames.PUBLISH, 1, publish(entry(flags=5 | retain))) == []
    disk.sync()
    assert error(client.take()) == (1, 400, {"indexes": [0]})
    assert len(disk.vhost.queue("kept")) == 1


# Retained messages


def test_retain_sets_the_retained_message(disk: Server) -> None:
    client = disk.open()
    assert client.send(frames.PUBLISH, 1, publish(entry(b"kept", b"a.b", flags=8))) == []
    disk.sync()
    assert confirms(client.take()) == [(1, 1)]
    kept = disk.vhost.retained.get(b"a.b")
    assert kept is not None
    assert (kept.payload, kept.retain) == (b"kept", True)


@pytest.mark.parametrize("flags", [8, 8 | 16])
def test_what_is_retained_is_not_unroutable(memory: Server, flags: int) -> None:
    client = memory.open()
    answer = client.send(frames.PUBLISH, 1, publish(entry(b"kept", b"a.b", flags=flags)))
    assert confirms(answer) == [(1, 1)]
    assert memory.adapter.metrics.messages_unroutable == 0
    assert len(memory.vhost.retained) == 1


# Idempotent producers


def open_producer(server: Server, client: Client, name: str = "p") -> tuple[int, int]:
    received = client.send(frames.PRODUCER, 50, {"producer": name})
    if isinstance(server.storage, HeldStorage):
        assert received == []
        server.sync()
        received = client.take()
    ((kind, correlation, body),) = received
    assert (kind, correlation) == (frames.OK, 50)
    fields = msgpack.unpackb(body)
    return fields["epoch"], fields["sequence"]


def test_what_is_there_already_is_confirmed_and_not_published(memory: Server) -> None:
    queue = add_queue(memory)
    client = memory.open()
    assert open_producer(memory, client) == (0, 0)
    first = publish(entry(b"0"), entry(b"1"), producer=(b"p", 0, 0))
    again = publish(entry(b"1"), entry(b"2"), producer=(b"p", 0, 1))
    for correlation, body in enumerate([first, first, again, again], 1):
        assert confirms(client.send(frames.PUBLISH, correlation, body)) == [(correlation, 1)]
    assert [queue.get().message.payload for _ in range(3)] == [b"0", b"1", b"2"]
    assert len(queue) == 0


def test_a_duplicate_is_confirmed_only_when_the_first_is_durable(disk: Server) -> None:
    add_queue(disk)
    client = disk.open()
    open_producer(disk, client)
    body = publish(entry(), producer=(b"p", 0, 0))
    assert client.send(frames.PUBLISH, 1, body) == []
    assert client.send(frames.PUBLISH, 2, body) == []
    disk.sync()
    assert confirms(client.take()) == [(1, 2)]


def test_a_gap_is_out_of_sequence(memory: Server) -> None:
    queue = add_queue(memory)
    client = memory.open()
    open_producer(memory, client)
    found = error(client.send(frames.PUBLISH, 1, publish(entry(), producer=(b"p", 0, 5))))
    assert found == (1, 310, {"expected": 0})
    assert len(queue) == 0


def test_a_newer_epoch_fences_the_older(memory: Server) -> None:
    queue = add_queue(memory)
    old, new = memory.open(), memory.open()
    assert open_producer(memory, old) == (0, 0)
    old.send(frames.PUBLISH, 1, publish(entry(), producer=(b"p", 0, 0)))
    assert open_producer(memory, new) == (1, 1)
    assert error(old.send(frames.PUBLISH, 2, publish(entry(), producer=(b"p", 0, 1))))[1] == 309
    assert confirms(new.send(frames.PUBLISH, 1, publish(entry(), producer=(b"p", 1, 1))))
    assert len(queue) == 2


def test_a_producer_must_be_opened(memory: Server) -> None:
    client = memory.open()
    assert error(client.send(frames.PUBLISH, 1, publish(entry(), producer=(b"p", 0, 0))))[1] == 309
    assert client.refused(frames.PRODUCER, producer="") == 300


def test_a_refused_request_uses_up_no_numbers(memory: Server) -> None:
    queue = add_queue(memory)
    client = memory.open()
    open_producer(memory, client)
    bad = publish(entry(exchange=b"none"), producer=(b"p", 0, 0))
    assert error(client.send(frames.PUBLISH, 1, bad))[1] == 301
    client.send(frames.PUBLISH, 2, publish(entry(b"good"), producer=(b"p", 0, 0)))
    assert queue.get().message.payload == b"good"


def test_after_a_rejection_the_numbers_go_on_with_the_rejected_message(memory: Server) -> None:
    queue = add_queue(memory, arguments=REJECTING | {"x-max-length": 2})
    client = memory.open()
    open_producer(memory, client)
    entries = [entry(b"%d" % n) for n in range(4)]
    found = error(client.send(frames.PUBLISH, 1, publish(*entries, producer=(b"p", 0, 0))))
    assert found == (1, 400, {"indexes": [2]})
    taken = [queue.get() for _ in range(2)]
    for taken_entry in taken:
        queue.settle(taken_entry)
    assert confirms(client.send(frames.PUBLISH, 2, publish(*entries, producer=(b"p", 0, 0))))
    payloads = [e.message.payload for e in taken] + [queue.get().message.payload for _ in range(2)]
    assert payloads == [b"0", b"1", b"2", b"3"]


def test_after_an_unroutable_message_the_numbers_go_on_with_it(disk: Server) -> None:
    queue = add_queue(disk, b"wanted")
    client = disk.open()
    open_producer(disk, client)
    body = publish(
        entry(b"0", b"wanted", flags=5 | 16),
        entry(b"1", b"other"),
        entry(b"2", b"later", flags=5 | 16),
        entry(b"3", b"wanted"),
        producer=(b"p", 0, 0),
    )
    for correlation in (1, 2):
        # The first time may have got lost: the second is answered the same, not confirmed.
        client.send(frames.PUBLISH, correlation, body)
        disk.sync()
        assert error(client.take()) == (correlation, 306, {"indexes": [2]})
        assert len(queue) == 1
    disk.vhost.bind(disk.vhost.exchange("amq.topic"), Binding(queue, b"later"))
    disk.settle()
    client.send(frames.PUBLISH, 3, body)
    disk.sync()
    assert confirms(client.take()) == [(3, 1)]
    assert [queue.get().message.payload for _ in range(3)] == [b"0", b"2", b"3"]


# Backpressure


def test_a_client_far_ahead_of_the_disk_is_not_read() -> None:
    disk = Server(HeldStorage(), limited(max_unconfirmed=4))
    add_queue(disk)
    client = disk.open()
    states: list[bool] = []
    for correlation in range(1, 6):
        client.send(frames.PUBLISH, correlation, publish(entry()))
        states.append(not client.transport.is_paused)
    disk.sync()
    states.append(not client.transport.is_paused)
    assert states == [True, True, True, True, False, True]
    assert confirms(client.take()) == [(1, 5)]


def test_what_was_published_before_the_connection_ends_is_confirmed_first(disk: Server) -> None:
    add_queue(disk)
    for kind in (frames.ERROR, frames.CLOSE):
        client = disk.open()
        client.feed(frame(frames.PUBLISH, 7, publish(entry(b"x"))))
        if kind == frames.ERROR:
            client.feed(frame(frames.HELLO, 8, b""))
        else:
            client.connection.shutdown()
        disk.end_turn()
        assert (client.take(), client.is_closed) == ([], False)
        disk.sync()
        found = [(kind, correlation) for kind, correlation, _ in client.take()]
        assert found == [(frames.CONFIRM, 7), (kind, 8 if kind == frames.ERROR else 0)]
        assert client.is_closed


def test_the_end_of_a_connection_does_not_wait_for_ever_for_the_disk(disk: Server) -> None:
    add_queue(disk)
    client = disk.open()
    client.feed(frame(frames.PUBLISH, 7, publish(entry(b"x"))) + frame(frames.HELLO, 8, b""))
    disk.advance(2.9)
    assert (client.take(), client.is_closed) == ([], False)
    disk.advance(0.1)
    assert [kind for kind, _, _ in client.take()] == [frames.ERROR]
    assert client.is_closed
    disk.sync()
    assert client.take() == []


def test_what_was_published_before_a_client_closes_is_confirmed_first(disk: Server) -> None:
    add_queue(disk)
    client = disk.open()
    client.feed(frame(frames.PUBLISH, 7, publish(entry(b"x"))) + frame(frames.CLOSE, 0, b""))
    disk.end_turn()
    assert (client.take(), client.is_closed) == ([], False)
    disk.sync()
    assert [(kind, correlation) for kind, correlation, _ in client.take()] == [(frames.CONFIRM, 7)]
    assert client.is_closed


@pytest.mark.parametrize("goodbye", [b"", frame(frames.CLOSE, 0, b"")], ids=["end", "close"])
def test_a_client_that_sends_no_more_is_not_kept_for_ever(disk: Server, goodbye: bytes) -> None:
    add_queue(disk)
    client = disk.open()
    client.feed(frame(frames.PUBLISH, 7, publish(entry(b"x"))) + goodbye)
    client.end()
    disk.advance(2.9)
    assert not client.is_closed
    disk.advance(0.1)
    assert (client.take(), client.is_closed) == ([], True)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_what_was_published_before_a_client_sends_no_more_is_confirmed(
    disk: Server, is_wrong: bool
) -> None:
    add_queue(disk)
    client = disk.open()
    client.feed(frame(frames.PUBLISH, 7, publish(entry(b"x"))))
    if is_wrong:
        client.feed(frame(frames.HELLO, 8, b""))
    client.end()
    assert (client.take(), client.is_closed) == ([], False)
    disk.sync()
    found = [(kind, correlation) for kind, correlation, _ in client.take()]
    assert found == [(frames.CONFIRM, 7), *[(frames.ERROR, 8)] * is_wrong]
    assert client.is_closed


def test_a_client_that_sends_no_more_and_is_owed_nothing_is_closed_at_once(disk: Server) -> None:
    client = disk.open()
    client.end()
    assert (client.take(), client.is_closed) == ([], True)
