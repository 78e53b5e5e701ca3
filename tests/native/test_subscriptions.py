"""SUBSCRIBE in its three modes, credit, settlement, cancellation, slow readers."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack
import pytest

from tests.support.native import (
    ColdLog,
    Delivered,
    LateStorage,
    Received,
    Site,
    Wire,
    deliveries,
    entry,
    payloads,
    publish,
    settle,
)
from tests.support.steps import steps
from trivium.config import Config, Listen
from trivium.messages.message import (
    PROTOCOL_NATIVE,
    Address,
    Message,
    Properties,
    PropertyCodec,
    register_codec,
)
from trivium.routing.exchanges import Binding
from trivium.runtime.adapter import OUTPUT_HIGH_WATER
from trivium.runtime.pacing import MOMENT_MS, STALL_MS
from trivium.streams.joining import JOINED_RECORDS
from trivium.streams.records import PAYLOAD, RecordBatch, encode_batch
from trivium.vhost.policies import Policy
from trivium_native.wire import frames

CONFIG = Config(listen={"native": Listen(0)})


@pytest.fixture
def site() -> Site:
    return Site(None, CONFIG)


@pytest.fixture
def wire(site: Site) -> Wire:
    return site.client()


def live(wire: Wire, number: int = 1, pattern: bytes = b"#", **fields: Any) -> None:
    fields = {"exchange": "amq.topic", "pattern": pattern} | fields
    assert wire.ask(frames.SUBSCRIBE, subscription=number, mode="pubsub", **fields) == {}


# pubsub


def test_pubsub_delivers_what_matches_while_it_lasts(site: Site, wire: Wire) -> None:
    publisher = site.client()
    publisher.send(frames.PUBLISH, 1, publish(entry(b"before", b"a.b")))
    live(wire, 7, b"a.*")
    publisher.send(frames.PUBLISH, 2, publish(entry(b"1", b"a.b"), entry(b"2", b"b.a")))
    (delivered,) = deliveries(wire.take())
    assert (delivered.subscription, delivered.tag, delivered.payload) == (7, 0, b"1")
    assert wire.ask(frames.UNSUBSCRIBE, subscription=7) == {}
    publisher.send(frames.PUBLISH, 3, publish(entry(b"after", b"a.b")))
    assert wire.take() == []


def test_the_entry_is_the_publishers_to_the_byte(site: Site, wire: Wire) -> None:
    live(wire)
    properties = msgpack.packb({1: "text/plain", 14: [["n", 1], ["n", b"\xff"]]})
    sent = entry(b"payload", b"a.\xff", flags=13, properties=properties, priority=4)
    site.client().send(frames.PUBLISH, 1, publish(sent))
    (delivered,) = deliveries(wire.take())
    assert delivered.entry == sent
    assert (delivered.protocol, delivered.timestamp) == (3, site.broker.now_ms)


def test_no_local_leaves_out_ones_own(site: Site, wire: Wire) -> None:
    live(wire, no_local=True)
    assert payloads(wire.send(frames.PUBLISH, 1, publish(entry(b"mine")))) == []
    site.client().send(frames.PUBLISH, 1, publish(entry(b"theirs")))
    assert payloads(wire.take()) == [b"theirs"]


def test_several_subscriptions_of_one_connection(site: Site, wire: Wire) -> None:
    live(wire, 1, b"a.#")
    live(wire, 2, b"#.b")
    site.client().send(frames.PUBLISH, 1, publish(entry(b"x", b"a.b")))
    assert sorted(d.subscription for d in deliveries(wire.take())) == [1, 2]


def test_a_slow_reader_of_pubsub_loses_messages_and_they_are_counted(
    site: Site, wire: Wire
) -> None:
    live(wire)
    publisher = site.client()
    wire.connection.is_writable = False
    large = bytes(site.broker.config.limits.live_output_bytes)
    # It is waited for at first, but takes nothing.
    for _ in range(STALL_MS // MOMENT_MS + 2):
        publisher.send(frames.PUBLISH, 1, publish(entry(large)))
        site.advance(MOMENT_MS)
    publisher.send(frames.PUBLISH, 1, publish(entry(b"lost")))
    wire.connection.resume_writing()
    publisher.send(frames.PUBLISH, 2, publish(entry(b"seen")))
    received = payloads(wire.take())
    assert received[-1] == b"seen"
    assert b"lost" not in received
    assert site.adapter.metrics.messages_dropped > 0


def test_a_lost_connection_leaves_no_binding(site: Site, wire: Wire) -> None:
    live(wire)
    wire.lose()
    assert site.vhost.exchange("amq.topic").bindings() == []


def test_a_number_in_use_is_refused(wire: Wire) -> None:
    live(wire)
    fields = {"mode": "pubsub", "exchange": "amq.topic", "pattern": b"#"}
    assert wire.refused(frames.SUBSCRIBE, subscription=1, **fields) == 300


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
    site: Site, wire: Wire, fields: dict[str, Any], code: int
) -> None:
    site.vhost.declare_queue("q")
    site.vhost.declare_stream("s")
    assert wire.refused(frames.SUBSCRIBE, subscription=1, **fields) == code
    assert wire.refused(frames.UNSUBSCRIBE, subscription=1) == 301


# Messages of other protocols


#: a protocol of nobody else's, for the codec registry is one for all tests
FOREIGN: Final = 202


class _ForeignCodec(PropertyCodec):
    def __init__(self, properties: Properties) -> None:
        self.properties = properties

    def decode(self, header: bytes) -> Properties:
        return self.properties


def foreign(site: Site, wire: Wire, properties: Properties) -> Delivered:
    register_codec(FOREIGN, _ForeignCodec(properties))
    live(wire)
    message = Message(
        FOREIGN,
        Address("amq.topic", b"a"),
        b"foreign",
        b"x",
        1,
        True,
        5,
        site.broker.now_ms + 1500,
    )
    site.vhost.route(site.vhost.exchange("amq.topic"), b"a").publish(message)
    site.advance(0)
    (delivered,) = deliveries(wire.take())
    return delivered


def test_foreign_properties_come_in_native_form(site: Site, wire: Wire) -> None:
    properties = Properties(content_type="t", key=b"k", headers=[("a", 1), ("b", [b"\x00"])])
    delivered = foreign(site, wire, properties)
    fields = msgpack.unpackb(delivered.properties, strict_map_key=False)
    assert fields == {1: "t", 13: b"k", 14: [["a", 1], ["b", [b"\x00"]]]}
    assert (delivered.protocol, delivered.lifetime) == (FOREIGN, 1500)


def test_foreign_headers_without_a_native_form_are_dropped_and_counted(
    site: Site, wire: Wire
) -> None:
    deep: object = 1
    for _ in range(20):
        deep = [deep]
    headers: list[tuple[str, object]] = [("deep", deep), ("good", True), ("keys", {1: 2})]
    delivered = foreign(site, wire, Properties(headers=headers))
    fields = msgpack.unpackb(delivered.properties, strict_map_key=False)
    assert fields == {14: [["good", True]]}
    assert site.adapter.metrics.properties_dropped == 2


def test_the_remaining_lifetime_is_what_is_left(site: Site) -> None:
    queue = site.vhost.declare_queue("q")
    site.vhost.bind(site.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    properties = msgpack.packb({6: 5000})
    site.client().send(frames.PUBLISH, 1, publish(entry(properties=properties)))
    site.advance(2000)
    (delivered,) = deliveries(consume(site.client()))
    assert delivered.lifetime == 3000
    assert delivered.properties == properties


# queue


def fill(site: Site, count: int, storage: bool = False) -> Any:
    queue = site.vhost.declare_queue("q", durable=storage)
    site.vhost.bind(site.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    if count:
        entries = [entry(b"%d" % n) for n in range(count)]
        site.client().send(frames.PUBLISH, 0, publish(*entries))
    return queue


def consume(wire: Wire, number: int = 1, credit: int = 100, **fields: Any) -> list[Received]:
    """Subscribe to queue q; what came after the OK."""
    fields = {"subscription": number, "mode": "queue", "queue": "q", "credit": credit} | fields
    reply, *rest = wire.send(frames.SUBSCRIBE, 9, fields)
    assert reply == (frames.OK, 9, b"\x80")
    return rest


def test_credit_bounds_what_is_unsettled(site: Site, wire: Wire) -> None:
    queue = fill(site, 5)
    received = consume(wire, credit=2)
    assert [(d.tag, d.payload) for d in deliveries(received)] == [(1, b"0"), (2, b"1")]
    received = wire.send(frames.ACK, 0, settle(1, 1, 1))
    assert [(d.tag, d.payload) for d in deliveries(received)] == [(3, b"2")]
    received = wire.send(frames.ACK, 0, settle(1, 1, 3))
    assert payloads(received) == [b"3", b"4"]
    assert (len(queue), queue.unsettled) == (0, 2)


def test_more_credit_delivers_more(site: Site, wire: Wire) -> None:
    fill(site, 5)
    consume(wire, credit=1)
    received = wire.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 3))
    assert payloads(received) == [b"1", b"2", b"3"]


def test_a_range_settles_all_within(site: Site, wire: Wire) -> None:
    queue = fill(site, 5)
    consume(wire)
    wire.send(frames.ACK, 0, settle(1, 2, 4))
    wire.send(frames.ACK, 0, settle(1, 1, 1 << 63))
    assert queue.unsettled == 0


def test_an_ack_is_answered_once_it_is_durable() -> None:
    site = Site(LateStorage(), CONFIG)
    wire = site.client()
    fill(site, 1, storage=True)
    consume(wire)
    assert wire.send(frames.ACK, 4, settle(1, 1, 1)) == []
    site.sync()
    assert wire.take() == [(frames.OK, 4, b"\x80")]


def test_an_ack_of_nothing_is_an_unknown_delivery(site: Site, wire: Wire) -> None:
    fill(site, 1)
    consume(wire)
    live(wire, 2)
    for number, first in ((1, 2), (2, 1), (3, 1)):
        ((kind, _, body),) = wire.send(frames.ACK, 5, settle(number, first, first))
        assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 308)
        assert wire.send(frames.ACK, 0, settle(number, first, first)) == []


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
def test_a_malformed_settlement_closes(wire: Wire, kind: int, body: bytes) -> None:
    ((found, _, error),) = wire.send(kind, 1, body)
    assert (found, msgpack.unpackb(error)[0]) == (frames.ERROR, 100)
    assert wire.is_closed


def test_nack_with_requeue_brings_it_back_flagged(site: Site, wire: Wire) -> None:
    fill(site, 2)
    consume(wire, credit=2)
    received = wire.send(frames.NACK, 0, settle(1, 1, 1, 1))
    (again,) = deliveries(received)
    assert (again.tag, again.payload, again.flags, again.returns) == (3, b"0", 1, 1)
    assert site.adapter.metrics.messages_redelivered == 1


def test_nack_without_requeue_dead_letters(site: Site, wire: Wire) -> None:
    letters = site.vhost.declare_queue("letters")
    site.vhost.bind(site.vhost.exchange("amq.fanout"), Binding(letters, b""))
    queue = site.vhost.declare_queue("q", arguments={"x-dead-letter-exchange": "amq.fanout"})
    site.vhost.bind(site.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    site.client().send(frames.PUBLISH, 1, publish(entry(b"poison")))
    consume(wire)
    wire.send(frames.NACK, 0, settle(1, 1, 1))
    assert (len(queue), queue.unsettled, len(letters)) == (0, 0, 1)
    (letter,) = deliveries(consume(wire, 2, queue="letters"))
    headers = dict(msgpack.unpackb(letter.properties, strict_map_key=False)[14])
    assert headers["x-first-death-reason"] == "rejected"


def test_no_ack_settles_on_delivery_and_uses_up_credit(site: Site, wire: Wire) -> None:
    queue = fill(site, 5)
    assert payloads(consume(wire, credit=2, no_ack=True)) == [b"0", b"1"]
    assert (len(queue), queue.unsettled) == (3, 0)
    received = wire.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 9))
    assert payloads(received) == [b"2", b"3", b"4"]


def test_unsubscribe_gives_unsettled_messages_back(site: Site, wire: Wire) -> None:
    queue = fill(site, 3)
    consume(wire, credit=2)
    wire.ask(frames.UNSUBSCRIBE, subscription=1)
    assert (len(queue), queue.unsettled) == (3, 0)
    found = deliveries(consume(wire, 2))
    assert [(d.payload, d.flags) for d in found] == [(b"0", 1), (b"1", 1), (b"2", 0)]


def test_a_lost_connection_gives_unsettled_messages_to_others(site: Site, wire: Wire) -> None:
    fill(site, 2)
    consume(wire)
    other = site.client()
    assert consume(other) == []
    wire.lose()
    assert [(d.payload, d.flags) for d in deliveries(other.take())] == [(b"0", 1), (b"1", 1)]


def test_a_deleted_queue_cancels_its_consumers(site: Site, wire: Wire) -> None:
    fill(site, 1)
    consume(wire)
    site.client().ask(frames.DELETE, kind="queue", name="q")
    ((kind, correlation, body),) = wire.take()
    assert (kind, correlation) == (frames.CANCELLED, 0)
    assert msgpack.unpackb(body)["subscription"] == 1
    assert wire.refused(frames.UNSUBSCRIBE, subscription=1) == 301


def test_exclusive_consumers_keep_others_out(site: Site, wire: Wire) -> None:
    fill(site, 0)
    consume(wire, exclusive=True)
    fields = {"mode": "queue", "queue": "q", "credit": 1}
    assert site.client().refused(frames.SUBSCRIBE, subscription=1, **fields) == 201


def test_an_exclusive_queue_goes_with_its_connection(site: Site, wire: Wire) -> None:
    wire.ask(frames.DECLARE, kind="queue", name="mine", exclusive=True)
    other = site.client()
    fields = {"mode": "queue", "queue": "mine", "credit": 1}
    assert other.refused(frames.SUBSCRIBE, subscription=1, **fields) == 303
    wire.lose()
    assert "mine" not in site.vhost.queues


def test_a_slow_consumer_is_held_and_resumed(site: Site, wire: Wire) -> None:
    fill(site, 0)
    consume(wire, credit=1000)
    wire.connection.is_writable = False
    site.client().send(frames.PUBLISH, 1, publish(entry(b"1"), entry(b"2")))
    assert wire.take() == []
    wire.connection.resume_writing()
    site.turn()
    assert payloads(wire.take()) == [b"1", b"2"]


def test_one_turn_is_bounded_and_the_next_goes_on(site: Site, wire: Wire) -> None:
    queue = site.vhost.declare_queue("q")
    site.vhost.bind(site.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    size = OUTPUT_HIGH_WATER // 4
    for n in range(9):
        site.client().send(frames.PUBLISH, 1, publish(entry(bytes(size), b"%d" % n)))
    counts = [len(consume(wire))]
    while sum(counts) < 9:
        site.turn()
        counts.append(len(wire.take()))
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


def add_stream(site: Site, *turns: list[bytes]) -> None:
    stream = site.vhost.declare_stream("s")
    site.vhost.bind(site.vhost.exchange("amq.topic"), Binding(stream, b"#"))
    for turn in turns:
        site.client().send(frames.PUBLISH, 0, publish(*[entry(payload) for payload in turn]))


def read(wire: Wire, offset: int | str, credit: int = 1 << 20) -> list[Received]:
    fields = {"subscription": 1, "mode": "log", "stream": "s", "partition": 0}
    reply, *rest = wire.send(frames.SUBSCRIBE, 9, fields | {"offset": offset, "credit": credit})
    assert reply[:2] == (frames.OK, 9)
    words = {"first": 0, "last": 2, "next": 3}
    assert msgpack.unpackb(reply[2]) == {"offset": words.get(str(offset), offset)}
    return rest


def read_from(wire: Wire, timestamp: int) -> list[Received]:
    fields = {"subscription": 1, "mode": "log", "stream": "s", "partition": 0, "credit": 1 << 20}
    return wire.send(frames.SUBSCRIBE, 9, fields | {"timestamp": timestamp})


def aged_stream(site: Site) -> int:
    """Three batches, a second apart; when the first one came."""
    started = site.broker.now_ms
    add_stream(site)
    for n in range(3):
        site.broker.now_ms = started + 1000 * n
        stream = site.vhost.stream("s")
        address = Address("amq.topic", b"a")
        arrived = site.broker.now_ms
        stream.accept(Message(PROTOCOL_NATIVE, address, b"", b"%d" % n, 1, True, arrived))
        site.broker.end_turn()
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
    site: Site, wire: Wire, offset: int | str, expected: list[tuple[int, list[bytes | None]]]
) -> None:
    add_stream(site, [b"0", b"1"], [b"2"])
    assert records(read(wire, offset)) == expected
    site.client().send(frames.PUBLISH, 0, publish(entry(b"3")))
    assert records(wire.take()) == [(3, [b"3"])]


def test_log_waits_for_credit(site: Site, wire: Wire) -> None:
    add_stream(site, [b"0"], [b"1"], [b"2"])
    # Any credit left is enough for one more batch.
    received = read(wire, 0, 1)
    assert records(received) == [(0, [b"0"])]
    size = len(received[0][2]) - 16
    received = wire.send(frames.CREDIT, 0, struct.pack("<IQ", 1, size - 1))
    assert received == []
    received = wire.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1 + size))
    assert records(received) == [(1, [b"1"]), (2, [b"2"])]


def test_log_goes_on_with_the_first_that_is_kept(site: Site, wire: Wire) -> None:
    add_stream(site, [b"0"], [b"1"], [b"2"])
    assert read(wire, 0, 0) == []
    site.vhost.set_policy(Policy("p", "s", {"max-length": 1}))
    site.turn()
    received = wire.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1000))
    assert records(received) == [(2, [b"2"])]


def test_log_goes_on_behind_the_span_of_a_sparse_batch(site: Site, wire: Wire) -> None:
    add_stream(site)
    messages = [
        Message(PROTOCOL_NATIVE, Address("amq.topic", b"a"), b"", b"%d" % n, 1, True, 0)
        for n in (0, 3)
    ]
    partition = site.vhost.stream("s").partitions[0]
    partition.log.append(encode_batch(messages, None, 0, [0, 3], 9), 9)
    site.client().send(frames.PUBLISH, 0, publish(entry(b"9")))
    found = records(read(wire, 0, 1))
    assert found == [(0, [b"0", b"3"])]
    found = records(wire.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1000)))
    assert found == [(9, [b"9"])]


def test_log_does_not_repeat_records_when_batches_are_joined(site: Site, wire: Wire) -> None:
    add_stream(site, *[[b"%d" % n] for n in range(JOINED_RECORDS)])
    got = records(read(wire, 0, 1))
    assert got == [(0, [b"0"])]
    add_stream(site, [b"next"])
    (base, _), *_ = site.vhost.stream("s").partitions[0].read(1, 1)
    assert base == 0
    rest = records(wire.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1 << 20)))
    assert [base for base, _ in rest] == [1, JOINED_RECORDS]
    assert [payload for _, batch in rest for payload in batch] == [
        *(b"%d" % n for n in range(1, JOINED_RECORDS)),
        b"next",
    ]


def test_log_sends_only_what_is_durable() -> None:
    site = Site(LateStorage(), CONFIG)
    wire = site.client()
    site.vhost.bind(site.vhost.exchange("amq.topic"), Binding(site.vhost.declare_stream("s"), b"#"))
    assert read(wire, "first") == []
    site.client().send(frames.PUBLISH, 0, publish(entry(b"0")))
    assert wire.take() == []
    site.sync()
    assert records(wire.take()) == [(0, [b"0"])]


def test_a_deleted_stream_cancels_its_readers(site: Site, wire: Wire) -> None:
    add_stream(site, [b"0"], [b"1"], [b"2"])
    read(wire, "next")
    site.client().ask(frames.DELETE, kind="stream", name="s")
    ((kind, _, body),) = wire.take()
    assert (kind, msgpack.unpackb(body)["subscription"]) == (frames.CANCELLED, 1)


def test_a_reader_without_credit_learns_of_the_deletion_when_it_asks(
    site: Site, wire: Wire
) -> None:
    add_stream(site, [b"0"], [b"1"], [b"2"])
    read(wire, 0, 1)
    site.client().ask(frames.DELETE, kind="stream", name="s")
    ((kind, _, _),) = wire.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1 << 20))
    assert kind == frames.CANCELLED


def test_unsubscribing_ends_the_log(site: Site, wire: Wire) -> None:
    add_stream(site, [b"0"], [b"1"], [b"2"])
    read(wire, "next")
    wire.ask(frames.UNSUBSCRIBE, subscription=1)
    site.client().send(frames.PUBLISH, 0, publish(entry(b"3")))
    assert wire.take() == []


def test_log_reads_old_records_from_the_disk(site: Site, wire: Wire) -> None:
    add_stream(site, [b"0"], [b"1"], [b"2"])
    partition = site.vhost.stream("s").partitions[0]
    cold = ColdLog(partition.log)
    partition.log = cold
    assert read(wire, 0) == []
    found: list[tuple[int, list[bytes | None]]] = []
    while len(found) < 3:
        cold.finish_load()
        site.turn()
        found += records(wire.take())
    assert found == [(0, [b"0"]), (1, [b"1"]), (2, [b"2"])]
    assert [offset for offset, _ in cold.loads] == [0, 1, 2]


@pytest.mark.parametrize(("after", "offset"), [(-5, 0), (0, 0), (1, 1), (2000, 2), (2001, 3)])
def test_log_starts_at_a_time(site: Site, wire: Wire, after: int, offset: int) -> None:
    started = aged_stream(site)
    (kind, correlation, body), *rest = read_from(wire, started + after)
    assert (kind, correlation, msgpack.unpackb(body)) == (frames.OK, 9, {"offset": offset})
    assert records(rest) == [(n, [b"%d" % n]) for n in range(offset, 3)]


def test_log_from_a_time_waits_for_the_disk_and_then_for_credit(site: Site, wire: Wire) -> None:
    started = aged_stream(site)
    partition = site.vhost.stream("s").partitions[0]
    cold = ColdLog(partition.log)
    partition.log = cold
    assert read_from(wire, started + 1) == []
    assert wire.send(frames.CREDIT, 0, struct.pack("<IQ", 1, 1)) == []
    received: list[Received] = []
    while len(received) < 3:
        cold.finish_load()
        site.turn()
        received += wire.take()
    assert received[0][:2] == (frames.OK, 9)
    assert records(received[1:]) == [(1, [b"1"]), (2, [b"2"])]


def test_a_reader_may_leave_while_its_time_is_searched(site: Site, wire: Wire) -> None:
    started = aged_stream(site)
    partition = site.vhost.stream("s").partitions[0]
    cold = ColdLog(partition.log)
    partition.log = cold
    assert read_from(wire, started) == []
    wire.ask(frames.UNSUBSCRIBE, subscription=1)
    received: list[Received] = []
    while not received:
        cold.finish_load()
        site.turn()
        received = wire.take()
    assert [(kind, correlation) for kind, correlation, _ in received] == [(frames.OK, 9)]
    assert not partition._readers


def test_a_reader_may_leave_while_the_disk_is_read(site: Site, wire: Wire) -> None:
    add_stream(site, [b"0"], [b"1"], [b"2"])
    partition = site.vhost.stream("s").partitions[0]
    cold = ColdLog(partition.log)
    partition.log = cold
    read(wire, 0)
    wire.lose()
    cold.finish_load()
    site.turn()
    assert wire.take() == []


@pytest.mark.pure
def test_a_settlement_of_what_was_never_delivered_looks_at_nothing(site: Site, wire: Wire) -> None:
    def looks(count: int) -> int:
        fill(site, count)
        consume(wire, count, credit=count)
        first = steps(lambda: wire.send(frames.ACK, 5, settle(count, count + 1, 1 << 60)))
        wire.send(frames.UNSUBSCRIBE, 6, {"subscription": count})
        site.vhost.delete_queue(site.vhost.queue("q"))
        return first

    assert looks(400) < 1.2 * looks(100)
