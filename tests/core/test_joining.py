"""Small batches of a stream are joined: the same records, in fewer batches."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.core import broker_of, open_broker
from tests.support.server import move_to
from tests.support.simulated import Host
from trivium.messages.message import (
    PROTOCOL_NONE,
    Address,
    HeaderValue,
    Message,
    Properties,
    PropertyCodec,
    register_codec,
)
from trivium.runtime.broker import Broker
from trivium.streams.joining import (
    JOINED_BYTES,
    JOINED_RECORDS,
    JOINED_SPAN_MS,
    SMALL_BYTES,
    SMALL_RECORDS,
)
from trivium.streams.record_layout import CODEC_NONE, CODEC_ZSTD
from trivium.streams.records import PAYLOAD, RecordBatch, batch_count
from trivium.streams.stream import Partition, Stream
from trivium.vhost.policies import Policy

PROTOCOL = 201


class HeaderCodec(PropertyCodec):
    """The header is the key and the one header's value."""

    def decode(self, header: bytes) -> Properties:
        return Properties(key=header, content_type="text/plain", headers=[("h", header)])


@pytest.fixture
def broker() -> Broker:
    return open_broker()


def declare(broker: Broker, **arguments: HeaderValue) -> Stream:
    return broker.vhosts["/"].declare_stream(
        "s", 1, {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    )


def publish(stream: Stream, *payloads: bytes, header: bytes = b"") -> None:
    """A turn."""
    broker = broker_of(stream.vhost)
    protocol = PROTOCOL if header else PROTOCOL_NONE
    for payload in payloads:
        address = Address("x", b"k" + payload[:1])
        stream.accept(Message(protocol, address, header, payload, 1, True, broker.now_ms))
    broker.end_turn()


def batches(partition: Partition) -> list[tuple[int, int]]:
    """Offset and number of records of each."""
    return [(base, batch_count(batch)) for base, batch in partition.read(0, 1 << 40)]


def rows(partition: Partition) -> list[tuple[object, ...]]:
    """All that a reader sees of each record, and its offset."""
    found: list[tuple[object, ...]] = []
    offset = 0
    while part := partition.read(offset, 1):
        base, batch = part[0]
        view = RecordBatch(batch)
        offset = base + view.span
        for row in range(view.count):
            message, shown = view.message(row), view.described(row)
            found.append(
                (
                    base + view.delta(row),
                    message.protocol,
                    (message.address.exchange, message.address.key),
                    message.header,
                    message.payload,
                    (message.mode, message.persistent, message.timestamp),
                    (shown.key, shown.content_type, shown.names, shown.values),
                )
            )
    return found


def run_until(broker: Broker, is_so: Callable[[], bool]) -> None:
    """Turns, at the times that timers ask for."""
    while not is_so():
        move_to(broker, broker.next_at())
        broker.end_turn()


def test_a_full_run_of_single_messages_becomes_one_batch(broker: Broker) -> None:
    stream = declare(broker)
    partition = stream.partitions[0]
    for n in range(JOINED_RECORDS):
        publish(stream, b"%d" % n)
    assert len(batches(partition)) == JOINED_RECORDS
    publish(stream, b"next")
    assert batches(partition) == [(0, JOINED_RECORDS), (JOINED_RECORDS, 1)]
    assert [row[4] for row in rows(partition)] == [
        *(b"%d" % n for n in range(JOINED_RECORDS)),
        b"next",
    ]
    assert len(partition.log) == 2


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_ZSTD])
def test_every_field_of_every_record_stays(broker: Broker, codec: int) -> None:
    register_codec(PROTOCOL, HeaderCodec())
    random_ = random.Random(codec)
    plain = declare(broker, max_length=2000)
    joined = broker.vhosts["/"].declare_stream(
        "joined", 1, {"x-compression": "zstd"} if codec == CODEC_ZSTD else {}
    )
    for n in range(1500):
        broker.now_ms += random_.randrange(10)
        header = random_.choice([b"", b"h%d" % n])
        payloads = [b"%d-%d" % (n, m) for m in range(random_.randrange(1, 4))]
        for stream in (plain, joined):
            publish(stream, *payloads, header=header)
    last = plain.partitions[0].first_offset
    assert len(batches(joined.partitions[0])) < 600
    found = rows(joined.partitions[0])
    assert found[last:] == rows(plain.partitions[0])


@pytest.mark.parametrize("large", [[b"b"] * SMALL_RECORDS, [bytes(SMALL_BYTES)]])
def test_a_batch_that_is_not_small_stays_as_it_is(broker: Broker, large: list[bytes]) -> None:
    stream = declare(broker)
    for _ in range(3):
        publish(stream, b"a")
    publish(stream, *large)
    publish(stream, b"c")
    assert batches(stream.partitions[0]) == [(0, 3), (3, len(large)), (3 + len(large), 1)]


def test_a_joined_batch_is_limited_in_bytes(broker: Broker) -> None:
    stream = declare(broker)
    size = JOINED_BYTES // 8
    for _ in range(20):
        publish(stream, bytes(size))
    assert batches(stream.partitions[0]) == [(0, 8), (8, 8), *((n, 1) for n in range(16, 20))]


def test_a_joined_batch_is_limited_in_time(broker: Broker) -> None:
    stream = declare(broker)
    for _ in range(6):
        publish(stream, b"x")
        broker.now_ms += JOINED_SPAN_MS // 2
    assert batches(stream.partitions[0]) == [(0, 3), (3, 1), (4, 1), (5, 1)]


def test_where_retention_keeps_few_messages_none_are_joined(broker: Broker) -> None:
    stream = declare(broker, max_length=100)
    for _ in range(JOINED_RECORDS + 1):
        publish(stream, b"x")
    assert {count for _, count in batches(stream.partitions[0])} == {1}


def test_retention_by_age_bounds_the_time_of_a_joined_batch(broker: Broker) -> None:
    stream = declare(broker, max_age="10m")
    for _ in range(100):
        publish(stream, b"x")
        broker.now_ms += 10_000
    partition = stream.partitions[0]
    assert max(count for _, count in batches(partition)) <= 4
    assert partition.high_watermark - partition.first_offset <= 60 + 4 + 1


def test_what_readers_may_not_see_yet_is_not_joined() -> None:
    host = Host()
    broker = open_broker(host.storage)
    stream = declare(broker)
    partition = stream.partitions[0]
    broker.end_turn()
    host.commit()
    publish(stream, b"0")
    for n in range(1, JOINED_RECORDS + 1):
        publish(stream, b"%d" % n)
    # The second batch of the storage holds all but the first message, and is not durable.
    host.executor.workers["trivium-journal"].step()
    host.run_calls()
    assert partition.high_watermark == 1
    assert [row[4] for row in rows(partition)] == [b"0"]
    host.commit()
    assert batches(partition) == [(0, JOINED_RECORDS), (JOINED_RECORDS, 1)]


def test_a_checkpoint_joins_of_a_run_what_readers_may_see() -> None:
    host = Host()
    broker = open_broker(host.storage)
    stream = declare(broker)
    partition = stream.partitions[0]
    broker.end_turn()
    host.commit()
    for n in range(10):
        publish(stream, b"%d" % n)
        if n < 3:
            host.commit()
    # Of those behind the third the first alone is in a batch of its own.
    host.executor.workers["trivium-journal"].step()
    host.run_calls()
    assert partition.high_watermark == 4
    assert partition.log.owner is not None
    assert partition.log.owner.join_records() == 4
    assert batches(partition) == [(0, 4)]
    host.commit()
    assert batches(partition) == [(0, 4), *((n, 1) for n in range(4, 10))]
    assert [row[4] for row in rows(partition)] == [b"%d" % n for n in range(10)]


def test_a_reader_in_the_middle_of_a_joined_batch_gets_the_rest_of_it(broker: Broker) -> None:
    stream = declare(broker)
    partition = stream.partitions[0]
    for n in range(JOINED_RECORDS + 1):
        publish(stream, b"%d" % n)
    (base, batch), *_ = partition.read(500, 1)
    view = RecordBatch(batch)
    assert base == 0
    assert view.binary(PAYLOAD, view.row_from(500)) == b"500"


def test_no_run_goes_on_over_a_truncation(broker: Broker) -> None:
    """What retention removed of a run does not come back."""
    stream = declare(broker)
    partition = stream.partitions[0]
    for _ in range(10):
        publish(stream, b"x")
    partition.log.truncate(5)
    publish(stream, *[b"b"] * SMALL_RECORDS)
    assert batches(partition) == [*((n, 1) for n in range(5, 10)), (10, SMALL_RECORDS)]


def fill(host: Host, broker: Broker, stream: Stream, count: int) -> None:
    for n in range(count):
        publish(stream, b"%d" % n)
        host.commit()


def test_a_checkpoint_writes_what_is_not_joined_yet_as_one_batch() -> None:
    host = Host(checkpoint_size=20_000)
    broker = open_broker(host.storage)
    stream = declare(broker)
    fill(host, broker, stream, 400)
    assert [row[4] for row in rows(stream.partitions[0])] == [b"%d" % n for n in range(400)]
    host.storage.close()
    again = Host(host.disk)
    (name,) = again.storage.log_names()
    views = [RecordBatch(record) for _, (record, _) in sorted(again.contents(name).items())]
    found = [view.binary(PAYLOAD, row) for view in views for row in range(view.count)]
    assert found == [b"%d" % n for n in range(400)]
    # A checkpoint comes every hundred messages or so; the last of them has not seen all.
    assert [view.count > 20 for view in views[:3]] == [True] * 3
    assert len(views) < 200


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_at_any_time_leaves_every_durable_record_once(seed: int) -> None:
    random_ = random.Random(seed)
    host = Host(checkpoint_size=random_.randrange(5000, 40_000), memory_size=2000)
    broker = open_broker(host.storage)
    stream = declare(broker)
    for n in range(random_.randrange(1, 1500)):
        publish(stream, b"%d" % n)
        if random_.random() < 0.9:
            host.step_one(random_)
    acknowledged = stream.partitions[0].high_watermark
    again = Host(host.disk.power_cut(random_))
    partition = open_broker(again.storage).vhosts["/"].streams["s"].partitions[0]
    (name,) = again.storage.log_names()
    found: list[bytes | None] = []
    for offset, (record, _) in sorted(again.contents(name).items()):
        view = RecordBatch(record)
        assert offset == len(found)
        found += [view.binary(PAYLOAD, row) for row in range(view.count)]
    assert partition.high_watermark >= acknowledged
    assert found == [b"%d" % n for n in range(len(found))]
    assert len(found) >= acknowledged


def test_what_a_crash_left_small_is_joined_a_few_in_a_turn() -> None:
    register_codec(PROTOCOL, HeaderCodec())
    host = Host()
    stream = declare(open_broker(host.storage))
    for n in range(JOINED_RECORDS + 300):
        publish(stream, b"%d" % n, header=b"h" if n % 3 else b"")
    host.commit()
    before = rows(stream.partitions[0])
    again = Host(host.disk.power_cut(random.Random(1)))
    broker = open_broker(again.storage)
    partition = broker.vhosts["/"].streams["s"].partitions[0]
    assert len(partition.log) == JOINED_RECORDS + 300
    turns = 0
    while len(partition.log) > 2:
        move_to(broker, broker.next_at())
        broker.end_turn()
        turns += 1
        assert turns < 100
    assert turns > 8, "that is too much for one turn"
    assert batches(partition) == [(0, JOINED_RECORDS), (JOINED_RECORDS, 300)]
    assert rows(partition) == before
    publish(partition.stream, b"next")
    again.commit()
    assert batches(partition)[2:] == [(JOINED_RECORDS + 300, 1)]


def test_compaction_finds_batches_where_they_were(broker: Broker) -> None:
    """While a round goes through the records none are joined."""
    stream = declare(broker, cleanup_policy="compact")
    partition = stream.partitions[0]
    for n in range(JOINED_RECORDS):
        publish(stream, b"%d" % (n % 10) + bytes(50))
    run_until(broker, lambda: partition.is_compacting)
    publish(stream, b"0" + bytes(50))
    run_until(broker, lambda: not partition.is_compacting)
    offsets = [row[0] for row in rows(partition)]
    assert offsets == [*range(JOINED_RECORDS - 11, JOINED_RECORDS + 1)]


def test_a_policy_changes_what_is_joined(broker: Broker) -> None:
    stream = declare(broker)
    broker.vhosts["/"].set_policy(Policy("p", "s", {"max-length": 100}, "streams"))
    for _ in range(JOINED_RECORDS + 1):
        publish(stream, b"x")
    assert {count for _, count in batches(stream.partitions[0])} == {1}
