"""SUBSCRIBE in its three modes, credit, settlement, cancellation, slow readers."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack
import pytest

from tests.support.native import (
    Client,
    Delivered,
    Received,
    Server,
    deliveries,
    entry,
    frame,
    payloads,
    publish,
    settle,
)
from tests.support.steps import calls, steps
from tests.support.storages import ColdLog, HeldStorage
from trivium.config import Config, Listen
from trivium.messages.message import (
    PROTOCOL_NATIVE,
    Address,
    Message,
    Properties,
    PropertyCodec,
    register_codec,
)
from trivium.queues.unsettled import Unsettled
from trivium.routing.exchanges import Binding
from trivium.runtime.adapter import OUTPUT_HIGH_WATER
from trivium.runtime.pacing import MOMENT_MS, STALL_MS
from trivium.streams.joining import JOINED_RECORDS
from trivium.streams.records import PAYLOAD, RecordBatch, encode_batch
from trivium.vhost.policies import Policy
from trivium_native.wire import frames

CONFIG = Config(listen={"native": Listen(0)})


@pytest.fixture
def server() -> Server:
    return Server(None, CONFIG)


@pytest.fixture
def client(server: Server) -> Client:
    return server.open()


def live(client: Client, number: int = 1, pattern: bytes = b"#", **fields: Any) -> None:
    fields = {"exchange": "amq.topic", "pattern": pattern} | fields
    assert client.ask(frames.SUBSCRIBE, subscription=number, mode="pubsub", **fields) == {}


# pubsub


def test_pubsub_delivers_what_matches_while_it_lasts(server: Server, client: Client) -> None:
    publisher = server.open()
    publisher.send(frames.PUBLISH, 1, publish(entry(b"before", b"a.b")))
    live(client, 7, b"a.*")
    publisher.send(frames.PUBLISH, 2, publish(entry(b"1", b"a.b"), entry(b"2", b"b.a")))
    (delivered,) = deliveries(client.take())
    assert (delivered.subscription, delivered.tag, delivered.payload) == (7, 0, b"1")
    assert client.ask(frames.UNSUBSCRIBE, subscription=7) == {}
    publisher.send(frames.PUBLISH, 3, publish(entry(b"after", b"a.b")))
    assert client.take() == []


def test_the_entry_is_the_publishers_to_the_byte(server: Server, client: Client) -> None:
    live(client)
    properties = msgpack.packb({1: "text/plain", 14: [["n", 1], ["n", b"\xff"]]})
    sent = entry(b"payload", b"a.\xff", flags=13, properties=properties, priority=4)
    server.open().send(frames.PUBLISH, 1, publish(sent))
    (delivered,) = deliveries(client.take())
    assert delivered.entry == sent
    assert (delivered.protocol, delivered.timestamp) == (3, server.broker.now_ms)


def test_no_local_leaves_out_ones_own(server: Server, client: Client) -> None:
    live(client, no_local=True)
    assert payloads(client.send(frames.PUBLISH, 1, publish(entry(b"mine")))) == []
    server.open().send(frames.PUBLISH, 1, publish(entry(b"theirs")))
    assert payloads(client.take()) == [b"theirs"]


def test_several_subscriptions_of_one_connection(server: Server, client: Client) -> None:
    live(client, 1, b"a.#")
    live(client, 2, b"#.b")
    server.open().send(frames.PUBLISH, 1, publish(entry(b"x", b"a.b")))
    assert sorted(d.subscription for d in deliveries(client.take())) == [1, 2]


def test_a_slow_reader_of_pubsub_loses_messages_and_they_are_counted(
    server: Server, client: Client
) -> None:
    live(client)
    publisher = server.open()
    client.connection.is_writable = False
    large = bytes(server.broker.config.limits.live_output_bytes)
    # It is waited for at first, but takes nothing.
    for _ in range(STALL_MS // MOMENT_MS + 2):
        publisher.send(frames.PUBLISH, 1, publish(entry(large)))
        server.advance(MOMENT_MS / 1000)
    publisher.send(frames.PUBLISH, 1, publish(entry(b"lost")))
    client.connection.resume_writing()
    publisher.send(frames.PUBLISH, 2, publish(entry(b"seen")))
    received = payloads(client.take())
    assert received[-1] == b"seen"
    assert b"lost" not in received
    assert server.adapter.metrics.messages_dropped > 0


def test_a_lost_connection_leaves_no_binding(server: Server, client: Client) -> None:
    live(client)
    client.lose()
    assert server.vhost.exchange("amq.topic").bindings() == []


def test_a_number_in_use_is_refused(client: Client) -> None:
    live(client)
    fields = {"mode": "pubsub", "exchange": "amq.topic", "pattern": b"#"}
    assert client.refused(frames.SUBSCRIBE, subscription=1, **fields) == 300


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"mode": "pubsub", "exchange": "none", "pattern": b"#"}, 301),
        ({"mode": "pubsub", "exchange": "", "pattern": b"#"}, 201),
        ({"mode": "pubsub", "exchange": "amq.topic", "pattern": b"." * 128}, 300),
        ({"mode": "queue", "queue": "none", "credit": 1}, 301),
        ({"mode": "queue", "queue": "q", "credit": 0}, 300),
        ({"mode": "queue", "queue": "q"}, 300),
        ({"mode": "log", "stream": "none", "partition": 0, "offset": 0, "credit": 1}, 301),
        ({"mode": "log", "stream": "s", "partition": 9, "offset": 0, "credit": 1}, 301),
        ({"mode": "log", "stream": "s", "partition": 0, "offset": 5, "credit": 1}, 304),
        ({"mode": "log", "stream": "s", "partition": 0, "offset": "newest", "credit": 1}, 300),
        ({"mode": "log", "stream": "s", "partition": 0, "offset": True, "credit": 1}, 300),
        ({"mode": "log", "stream": "s", "partition": 0, "credit": 1}, 300),
        ({"mode": "log", "stream": "s", "partition": 0, "timestamp": 1}, 300),
        ({"mode": "log", "stream": "s", "partition": 0, "timestamp": -1, "credit": 1}, 300),
        (
            {
                "mode": "log",
                "stream": "s",
                "partition": 0,
                "timestamp": 1,
                "offset": 0,
                "credit": 1,
            },
            300,
        ),
        ({"mode": "tail"}, 300),
    ],
)
def test_a_refused_subscription_does_not_exist(
    server: Server, client: Client, fields: dict[str, Any], code: int
) -> None:
    server.vhost.declare_queue("q")
    server.vhost.declare_stream("s")
    assert client.refused(frames.SUBSCRIBE, subscription=1, **fields) == code
    assert client.refused(frames.UNSUBSCRIBE, subscription=1) == 301


# Messages of other protocols


#: a protocol of nobody else's, for the codec registry is one for all tests
FOREIGN: Final = 202


class _ForeignCodec(PropertyCodec):
    def __init__(self, properties: Properties) -> None:
        self.properties = properties

    def decode(self, header: bytes) -> Properties:
        return self.properties


def foreign(server: Server, client: Client, properties: Properties) -> Delivered:
    register_codec(FOREIGN, _ForeignCodec(properties))
    live(client)
    message = Message(
        FOREIGN,
        Address("amq.topic", b"a"),
        b"foreign",
        b"x",
        1,
        True,
        5,
        server.broker.now_ms + 1500,
    )
    server.vhost.route(server.vhost.exchange("amq.topic"), b"a").publish(message)
    server.advance(0)
    (delivered,) = deliveries(client.take())
    return delivered


def test_foreign_properties_come_in_native_form(server: Server, client: Client) -> None:
    properties = Properties(content_type="t", key=b"k", headers=[("a", 1), ("b", [b"\x00"])])
    delivered = foreign(server, client, properties)
    fields = msgpack.unpackb(delivered.properties, strict_map_key=False)
    assert fields == {1: "t", 13: b"k", 14: [["a", 1], ["b", [b"\x00"]]]}
    assert (delivered.protocol, delivered.lifetime) == (FOREIGN, 1500)


def test_foreign_headers_without_a_native_form_are_dropped_and_counted(
    server: Server, client: Client
) -> None:
    deep: object = 1
    for _ in range(20):
        deep = [deep]
    headers: list[tuple[str, object]] = [("deep", deep), ("good", True), ("keys", {1: 2})]
    delivered = foreign(server, client, Properties(headers=headers))
    fields = msgpack.unpackb(delivered.properties, strict_map_key=False)
    assert fields == {14: [["good", True]]}
    assert server.adapter.metrics.properties_dropped == 2


def test_the_remaining_lifetime_is_what_is_left(server: Server) -> None:
    queue = server.vhost.declare_queue("q")
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    properties = msgpack.packb({6: 5000})
    server.open().send(frames.PUBLISH, 1, publish(entry(properties=properties)))
    server.advance(2)
    (delivered,) = deliveries(consume(server.open()))
    assert delivered.lifetime == 3000
    assert delivered.properties == properties


# queue


def fill(server: Server, count: int, storage: bool = False) -> Any:
    queue = server.vhost.declare_queue("q", durable=storage)
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    if count:
        entries = [entry(b"%d" % n) for n in range(count)]
        server.open().send(frames.PUBLISH, 0, publish(*entries))
    return queue


def consume(client: Client, number: int = 1, credit: int = 100, **fields: Any) -> list[Received]:
    """Subscribe to queue q; what came after the OK."""
    fields = {"subscription": number, "mode": "queue", "queue": "q", "credit": credit} | fields
    reply, *rest = client.send(frames.SUBSCRIBE, 9, fields)
    assert reply == (frames.OK, 9, b"\x80")
    return rest


def test_credit_bounds_what_is_unsettled(server: Server, client: Client) -> None:
    queue = fill(server, 5)
    received = consume(client, credit=2)
    assert [(d.tag, d.payload) for d in deliveries(received)] == [(1, b"0"), (2, b"1")]
    received = client.send(frames.ACK, 0, settle(1, 1, 1))
    assert [(d.tag, d.payload) for d in deliveries(received)] == [(3, b"2")]
    received = client.send(frames.ACK, 0, settle(1, 1, 3))
    assert payloads(received) == [b"3", b"4"]
    assert (len(queue), queue.unsettled) == (0, 2)


def test_more_credit_delivers_more(server: Server, client: Client) -> None:
    fill(server, 5)
    consume(client, credit=1)
    received = client.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 3))
    assert payloads(received) == [b"1", b"2", b"3"]


def test_a_range_settles_all_within(server: Server, client: Client) -> None:
    queue = fill(server, 5)
    consume(client)
    client.send(frames.ACK, 0, settle(1, 2, 4))
    client.send(frames.ACK, 0, settle(1, 1, 1 << 63))
    assert queue.unsettled == 0


def test_an_ack_is_answered_once_it_is_durable() -> None:
    server = Server(HeldStorage(), CONFIG)
    client = server.open()
    fill(server, 1, storage=True)
    consume(client)
    assert client.send(frames.ACK, 4, settle(1, 1, 1)) == []
    server.sync()
    assert client.take() == [(frames.OK, 4, b"\x80")]


def test_an_ack_of_nothing_is_an_unknown_delivery(server: Server, client: Client) -> None:
    fill(server, 1)
    consume(client)
    live(client, 2)
    for number, first in ((1, 2), (2, 1), (3, 1)):
        ((kind, _, body),) = client.send(frames.ACK, 5, settle(number, first, first))
        assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 308)
        assert client.send(frames.ACK, 0, settle(number, first, first)) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (frames.ACK, b""),
        (frames.ACK, settle(1, 1, 1, 1)),
        (frames.ACK, settle(1, 2, 1)),
        (frames.NACK, settle(1, 1, 1, 2)),
        (frames.NACK, settle(1, 1, 1) + b"\x00"),
        (frames.CREDIT, b"\x00"),
    ],
)
def test_a_malformed_settlement_closes(client: Client, kind: int, body: bytes) -> None:
    ((found, _, error),) = client.send(kind, 1, body)
    assert (found, msgpack.unpackb(error)[0]) == (frames.ERROR, 100)
    assert client.is_closed


def test_nack_with_requeue_brings_it_back_flagged(server: Server, client: Client) -> None:
    fill(server, 2)
    consume(client, credit=2)
    received = client.send(frames.NACK, 0, settle(1, 1, 1, 1))
    (again,) = deliveries(received)
    assert (again.tag, again.payload, again.flags, again.returns) == (3, b"0", 1, 1)
    assert server.adapter.metrics.messages_redelivered == 1


@pytest.mark.parametrize("kind", [frames.ACK, frames.NACK])
def test_a_range_may_end_and_begin_at_any_number_of_64_bits(
    server: Server, client: Client, kind: int
) -> None:
    queue = fill(server, 3)
    consume(client)
    highest = (1 << 64) - 1
    for first in (1 << 63, highest):
        ((reply, correlation, _),) = client.send(kind, 5, settle(1, first, highest))
        assert (reply, correlation) == (frames.ERROR, 5)
    assert queue.unsettled == 3
    assert client.send(kind, 6, settle(1, 2, highest)) == [(frames.OK, 6, b"\x80")]
    assert queue.unsettled == 1


@pytest.mark.pure
@pytest.mark.parametrize("kind", [frames.ACK, frames.NACK])
@pytest.mark.parametrize("order", ["forwards", "backwards", "backwards without end"])
def test_settling_takes_the_same_steps_for_each_whatever_else_is_unsettled(
    kind: int, order: str
) -> None:
    def settled(count: int) -> int:
        server = Server(None, CONFIG)
        client = server.open()
        queue = fill(server, count)
        consume(client, credit=count)
        tags = range(1, count + 1) if order == "forwards" else range(count, 0, -1)
        frames_ = [
            frame(kind, 0, settle(1, tag, 1 << 62 if order == "backwards without end" else tag))
            for tag in tags
        ]

        def run() -> None:
            # What lies below is known to take a few steps for each (``Unsettled``).
            assert calls(Unsettled.pop_values, lambda: client.feed(b"".join(frames_))) == count

        taken = steps(run)
        assert queue.unsettled == 0
        return taken

    assert settled(1200) <= 5 * settled(300)


def test_nack_without_requeue_dead_letters(server: Server, client: Client) -> None:
    letters = server.vhost.declare_queue("letters")
    server.vhost.bind(server.vhost.exchange("amq.fanout"), Binding(letters, b""))
    queue = server.vhost.declare_queue("q", arguments={"x-dead-letter-exchange": "amq.fanout"})
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    server.open().send(frames.PUBLISH, 1, publish(entry(b"poison")))
    consume(client)
    client.send(frames.NACK, 0, settle(1, 1, 1))
    assert (len(queue), queue.unsettled, len(letters)) == (0, 0, 1)
    (letter,) = deliveries(consume(client, 2, queue="letters"))
    headers = dict(msgpack.unpackb(letter.properties, strict_map_key=False)[14])
    assert headers["x-first-death-reason"] == "rejected"


def test_no_ack_settles_on_delivery_and_uses_up_credit(server: Server, client: Client) -> None:
    queue = fill(server, 5)
    assert payloads(consume(client, credit=2, no_ack=True)) == [b"0", b"1"]
    assert (len(queue), queue.unsettled) == (3, 0)
    received = client.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 9))
    assert payloads(received) == [b"2", b"3", b"4"]


def test_unsubscribe_gives_unsettled_messages_back(server: Server, client: Client) -> None:
    queue = fill(server, 3)
    consume(client, credit=2)
    client.ask(frames.UNSUBSCRIBE, subscription=1)
    assert (len(queue), queue.unsettled) == (3, 0)
    found = deliveries(consume(client, 2))
    assert [(d.payload, d.flags) for d in found] == [(b"0", 1), (b"1", 1), (b"2", 0)]


def test_a_lost_connection_gives_unsettled_messages_to_others(
    server: Server, client: Client
) -> None:
    fill(server, 2)
    consume(client)
    other = server.open()
    assert consume(other) == []
    client.lose()
    assert [(d.payload, d.flags) for d in deliveries(other.take())] == [(b"0", 1), (b"1", 1)]


def test_a_deleted_queue_cancels_its_consumers(server: Server, client: Client) -> None:
    fill(server, 1)
    consume(client)
    server.open().ask(frames.DELETE, kind="queue", name="q")
    ((kind, correlation, body),) = client.take()
    assert (kind, correlation) == (frames.CANCELLED, 0)
    assert msgpack.unpackb(body) == {
        "subscription": 1,
        "reason": "the queue was deleted",
        "code": 301,
    }
    assert client.refused(frames.UNSUBSCRIBE, subscription=1) == 301


def test_exclusive_consumers_keep_others_out(server: Server, client: Client) -> None:
    fill(server, 0)
    consume(client, exclusive=True)
    fields = {"mode": "queue", "queue": "q", "credit": 1}
    assert server.open().refused(frames.SUBSCRIBE, subscription=1, **fields) == 201


def test_an_exclusive_queue_goes_with_its_connection(server: Server, client: Client) -> None:
    client.ask(frames.DECLARE, kind="queue", name="mine", exclusive=True)
    other = server.open()
    fields = {"mode": "queue", "queue": "mine", "credit": 1}
    assert other.refused(frames.SUBSCRIBE, subscription=1, **fields) == 303
    client.lose()
    assert "mine" not in server.vhost.queues


def test_a_slow_consumer_is_held_and_resumed(server: Server, client: Client) -> None:
    fill(server, 0)
    consume(client, credit=1000)
    client.connection.is_writable = False
    server.open().send(frames.PUBLISH, 1, publish(entry(b"1"), entry(b"2")))
    assert client.take() == []
    client.connection.resume_writing()
    server.settle()
    assert payloads(client.take()) == [b"1", b"2"]


def test_slow_consumers_of_one_connection_take_turns_when_they_are_resumed(
    server: Server, client: Client
) -> None:
    fill(server, 0)
    for number in range(3):
        consume(client, number, credit=1000)
    client.connection.is_writable = False
    server.open().send(frames.PUBLISH, 1, publish(*[entry(b"%d" % n) for n in range(9)]))
    client.connection.resume_writing()
    server.settle()
    assert [each.subscription for each in deliveries(client.take())] == [0, 1, 2] * 3


@pytest.mark.pure
def test_slow_consumers_are_resumed_in_linear_steps() -> None:
    def resumes(count: int) -> int:
        server = Server(None, CONFIG)
        fill(server, 0)
        client = server.open()
        for number in range(count):
            consume(client, number, credit=1)
        client.connection.is_writable = False
        server.open().send(frames.PUBLISH, 1, publish(*[entry(b"x")] * (2 * count)))
        client.connection.resume_writing()
        server.settle()
        assert len(deliveries(client.take())) == count
        client.connection.is_writable = False
        assert not client.connection.has_room()
        client.connection.is_writable = True
        return steps(client.connection.flushed)

    assert resumes(400) < 4 * 1.2 * resumes(100)


def test_one_turn_is_bounded_and_the_next_goes_on(server: Server, client: Client) -> None:
    queue = server.vhost.declare_queue("q")
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    size = OUTPUT_HIGH_WATER // 4
    for n in range(9):
        server.open().send(frames.PUBLISH, 1, publish(entry(bytes(size), b"%d" % n)))
    fields = {"subscription": 1, "mode": "queue", "queue": "q", "credit": 100}
    client.connection.feed(frame(frames.SUBSCRIBE, 9, fields))
    counts: list[int] = []
    while sum(counts) < 9:
        server.end_turn()
        counts.append(len(payloads(client.take())))
    assert counts == [4, 4, 1]
    assert len(queue) == 0


# log


def records(received: list[Received]) -> list[tuple[int, list[bytes | None]]]:
    """(base offset, payloads) of each BATCH."""
    found: list[tuple[int, list[bytes | None]]] = []
    for kind, correlation, body in received:
        assert (kind, correlation) == (frames.BATCH, 0)
        number, _, base = struct.unpack_from("<IIq", body)
        assert number == 1
        view = RecordBatch(body[16:])
        found.append((base, [view.binary(PAYLOAD, row) for row in range(view.count)]))
    return found


def add_stream(server: Server, *turns: list[bytes]) -> None:
    stream = server.vhost.declare_stream("s")
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(stream, b"#"))
    for turn in turns:
        server.open().send(frames.PUBLISH, 0, publish(*[entry(payload) for payload in turn]))


def starts_at(client: Client, offset: int) -> dict[str, object]:
    """The answer to a SUBSCRIBE in mode ``log``."""
    return {"offset": offset, "incarnation": client.server.vhost.stream("s").incarnation}


def read(client: Client, offset: int | str, credit: int = 1 << 20) -> list[Received]:
    fields = {"subscription": 1, "mode": "log", "stream": "s", "partition": 0}
    reply, *rest = client.send(frames.SUBSCRIBE, 9, fields | {"offset": offset, "credit": credit})
    assert reply[:2] == (frames.OK, 9)
    words = {"first": 0, "last": 2, "next": 3}
    start = words.get(offset, 0) if isinstance(offset, str) else offset
    assert msgpack.unpackb(reply[2]) == starts_at(client, start)
    return rest


def read_from(client: Client, timestamp: int) -> list[Received]:
    fields = {"subscription": 1, "mode": "log", "stream": "s", "partition": 0, "credit": 1 << 20}
    return client.send(frames.SUBSCRIBE, 9, fields | {"timestamp": timestamp})


def aged_stream(server: Server) -> int:
    """Three batches, a second apart; when the first one came."""
    started = server.broker.now_ms
    add_stream(server)
    for n in range(3):
        server.broker.now_ms = started + 1000 * n
        stream = server.vhost.stream("s")
        address = Address("amq.topic", b"a")
        arrived = server.broker.now_ms
        stream.accept(Message(PROTOCOL_NATIVE, address, b"", b"%d" % n, 1, True, arrived))
        server.broker.end_turn()
    return started


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", [(0, [b"0", b"1"]), (2, [b"2"])]),
        (1, [(0, [b"0", b"1"]), (2, [b"2"])]),
        (2, [(2, [b"2"])]),
        ("last", [(2, [b"2"])]),
        ("next", []),
    ],
)
def test_log_pushes_batches_from_the_offset_on(
    server: Server,
    client: Client,
    offset: int | str,
    expected: list[tuple[int, list[bytes | None]]],
) -> None:
    add_stream(server, [b"0", b"1"], [b"2"])
    assert records(read(client, offset)) == expected
    server.open().send(frames.PUBLISH, 0, publish(entry(b"3")))
    assert records(client.take()) == [(3, [b"3"])]


def test_log_waits_for_credit(server: Server, client: Client) -> None:
    add_stream(server, [b"0"], [b"1"], [b"2"])
    # Any credit left is enough for one more batch.
    received = read(client, 0, 1)
    assert records(received) == [(0, [b"0"])]
    size = len(received[0][2]) - 16
    received = client.send(frames.CREDIT, 0, struct.pack("<IQ", 1, size - 1))
    assert received == []
    received = client.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1 + size))
    assert records(received) == [(1, [b"1"]), (2, [b"2"])]


def test_log_goes_on_with_the_first_that_is_kept(server: Server, client: Client) -> None:
    add_stream(server, [b"0"], [b"1"], [b"2"])
    assert read(client, 0, 0) == []
    server.vhost.set_policy(Policy("p", "s", {"max-length": 1}, "streams"))
    server.settle()
    received = client.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1000))
    assert records(received) == [(2, [b"2"])]


def test_log_goes_on_behind_the_span_of_a_sparse_batch(server: Server, client: Client) -> None:
    add_stream(server)
    messages = [
        Message(PROTOCOL_NATIVE, Address("amq.topic", b"a"), b"", b"%d" % n, 1, True, 0)
        for n in (0, 3)
    ]
    partition = server.vhost.stream("s").partitions[0]
    partition.log.append(encode_batch(messages, None, 0, [0, 3], 9), 9)
    server.open().send(frames.PUBLISH, 0, publish(entry(b"9")))
    found = records(read(client, 0, 1))
    assert found == [(0, [b"0", b"3"])]
    found = records(client.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1000)))
    assert found == [(9, [b"9"])]


def test_log_does_not_repeat_records_when_batches_are_joined(
    server: Server, client: Client
) -> None:
    add_stream(server, *[[b"%d" % n] for n in range(JOINED_RECORDS)])
    got = records(read(client, 0, 1))
    assert got == [(0, [b"0"])]
    add_stream(server, [b"next"])
    (base, _), *_ = server.vhost.stream("s").partitions[0].read(1, 1)
    assert base == 0
    rest = records(client.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1 << 20)))
    assert [base for base, _ in rest] == [1, JOINED_RECORDS]
    assert [payload for _, batch in rest for payload in batch] == [
        *(b"%d" % n for n in range(1, JOINED_RECORDS)),
        b"next",
    ]


def test_log_sends_only_what_is_durable() -> None:
    server = Server(HeldStorage(), CONFIG)
    client = server.open()
    server.vhost.bind(
        server.vhost.exchange("amq.topic"), Binding(server.vhost.declare_stream("s"), b"#")
    )
    assert read(client, "first") == []
    server.open().send(frames.PUBLISH, 0, publish(entry(b"0")))
    assert client.take() == []
    server.sync()
    assert records(client.take()) == [(0, [b"0"])]


def test_a_deleted_stream_cancels_its_readers(server: Server, client: Client) -> None:
    add_stream(server, [b"0"], [b"1"], [b"2"])
    read(client, "next")
    server.open().ask(frames.DELETE, kind="stream", name="s")
    ((kind, _, body),) = client.take()
    assert (kind, msgpack.unpackb(body)["subscription"]) == (frames.CANCELLED, 1)


def test_a_reader_without_credit_learns_of_the_deletion_when_it_asks(
    server: Server, client: Client
) -> None:
    add_stream(server, [b"0"], [b"1"], [b"2"])
    read(client, 0, 1)
    server.open().ask(frames.DELETE, kind="stream", name="s")
    ((kind, _, _),) = client.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1 << 20))
    assert kind == frames.CANCELLED


def test_unsubscribing_ends_the_log(server: Server, client: Client) -> None:
    add_stream(server, [b"0"], [b"1"], [b"2"])
    read(client, "next")
    client.ask(frames.UNSUBSCRIBE, subscription=1)
    server.open().send(frames.PUBLISH, 0, publish(entry(b"3")))
    assert client.take() == []


def test_log_reads_old_records_from_the_disk(server: Server, client: Client) -> None:
    add_stream(server, [b"0"], [b"1"], [b"2"])
    partition = server.vhost.stream("s").partitions[0]
    cold = ColdLog(partition.log)
    partition.log = cold
    assert read(client, 0) == []
    found: list[tuple[int, list[bytes | None]]] = []
    while len(found) < 3:
        cold.finish_load()
        server.settle()
        found += records(client.take())
    assert found == [(0, [b"0"]), (1, [b"1"]), (2, [b"2"])]
    assert [offset for offset, _ in cold.loads] == [0, 1, 2]


@pytest.mark.parametrize(("after", "offset"), [(-5, 0), (0, 0), (1, 1), (2000, 2), (2001, 3)])
def test_log_starts_at_a_time(server: Server, client: Client, after: int, offset: int) -> None:
    started = aged_stream(server)
    (kind, correlation, body), *rest = read_from(client, started + after)
    assert (kind, correlation, msgpack.unpackb(body)) == (
        frames.OK,
        9,
        starts_at(client, offset),
    )
    assert records(rest) == [(n, [b"%d" % n]) for n in range(offset, 3)]


def test_log_from_a_time_waits_for_the_disk_and_then_for_credit(
    server: Server, client: Client
) -> None:
    started = aged_stream(server)
    partition = server.vhost.stream("s").partitions[0]
    cold = ColdLog(partition.log)
    partition.log = cold
    assert read_from(client, started + 1) == []
    assert client.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1)) == []
    received: list[Received] = []
    while len(received) < 3:
        cold.finish_load()
        server.settle()
        received += client.take()
    assert received[0][:2] == (frames.OK, 9)
    assert records(received[1:]) == [(1, [b"1"]), (2, [b"2"])]


def test_a_reader_may_leave_while_the_disk_is_read(server: Server, client: Client) -> None:
    add_stream(server, [b"0"], [b"1"], [b"2"])
    partition = server.vhost.stream("s").partitions[0]
    cold = ColdLog(partition.log)
    partition.log = cold
    read(client, 0)
    client.lose()
    cold.finish_load()
    server.settle()
    assert client.take() == []


@pytest.mark.pure
def test_a_settlement_of_what_was_never_delivered_looks_at_nothing(
    server: Server, client: Client
) -> None:
    def looks(count: int) -> int:
        fill(server, count)
        consume(client, count, credit=count)
        first = steps(lambda: client.send(frames.ACK, 5, settle(count, count + 1, 1 << 60)))
        client.send(frames.UNSUBSCRIBE, 6, {"subscription": count})
        server.vhost.delete_queue(server.vhost.queue("q"))
        return first

    assert looks(400) < 1.2 * looks(100)
