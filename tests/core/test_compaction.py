"""Compaction: what stays, what readers see, and that a crash leaves one state or the other."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core import broker_of, open_broker
from tests.support.server import move_to
from tests.support.simulated import Host, SimulatedDisk, load
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
from trivium.streams import collected, compaction
from trivium.streams.compaction import MIN_BYTES, PERIOD_MS
from trivium.streams.records import PAYLOAD, RecordBatch
from trivium.streams.stream import Partition, Stream
from trivium.vhost.policies import Policy

EXAMPLES = 3

START = 1_700_000_000_000
DAY = 24 * 3600 * 1000
PROTOCOL = 201


class KeyCodec(PropertyCodec):
    """The header is the key."""

    def decode(self, header: bytes) -> Properties:
        return Properties(key=header, headers=[("n", 1)])


@pytest.fixture(autouse=True)
def _codec() -> None:
    register_codec(PROTOCOL, KeyCodec())


@pytest.fixture
def broker() -> Broker:
    made = open_broker()
    made.now_ms = START
    return made


@pytest.fixture
def stream(broker: Broker) -> Stream:
    return declare(broker)


def declare(broker: Broker, **arguments: HeaderValue) -> Stream:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return broker.vhosts["/"].declare_stream("s", 1, {"x-cleanup-policy": "compact", **given})


def publish(stream: Stream, *pairs: tuple[bytes, bytes]) -> None:
    """A turn with these keys and payloads."""
    for key, payload in pairs:
        stream.accept(
            Message(
                PROTOCOL,
                Address("amq.topic", b"a"),
                key,
                payload,
                1,
                True,
                broker_of(stream.vhost).now_ms,
            )
        )
    broker_of(stream.vhost).end_turn()


#: Enough bytes that a round begins.
FILLER = bytes(MIN_BYTES)


def run(broker: Broker, milliseconds: int = PERIOD_MS) -> None:
    """Let the time pass, with turns whenever one is due."""
    end = broker.elapsed_ms + milliseconds
    while (at := broker.next_at()) and at <= end:
        move_to(broker, at)
        broker.end_turn()
    move_to(broker, end)


def compact(stream: Stream) -> None:
    """Have a round, whatever there is, and leave a newest batch behind it."""
    publish(stream, (b"filler", FILLER))
    publish(stream, (b"newest", b"newest"))
    run(broker_of(stream.vhost), 2 * PERIOD_MS)


def records(partition: Partition, offset: int = 0) -> dict[int, bytes]:
    """Payloads by offset, read as a reader reads; batches must follow one another."""
    found: dict[int, bytes] = {}
    while offset < partition.high_watermark:
        for base, batch in partition.read(offset, 1):
            assert base <= offset or not found
            view = RecordBatch(batch)
            for row in range(view.row_from(offset - base), view.count):
                found[base + view.delta(row)] = view.binary(PAYLOAD, row) or b""
            offset = base + view.span
    return found


def own(stream: Stream, offset: int = 0) -> dict[int, bytes]:
    """The records but those of ``compact``."""
    found = records(stream.partitions[0], offset)
    return {at: payload for at, payload in found.items() if payload not in (FILLER, b"newest")}


# What stays


def test_of_each_key_the_last_record_stays_with_its_offset(stream: Stream) -> None:
    publish(stream, (b"a", b"0"), (b"b", b"1"), (b"a", b"2"))
    publish(stream, (b"c", b"3"), (b"b", b"4"))
    publish(stream, (b"a", b"5"))
    compact(stream)
    assert own(stream) == {3: b"3", 4: b"4", 5: b"5"}


def test_the_newest_batch_stays_as_it_is(stream: Stream) -> None:
    publish(stream, (b"a", FILLER))
    publish(stream, (b"a", b"1"), (b"a", b"2"))
    run(broker_of(stream.vhost), 2 * PERIOD_MS)
    assert list(records(stream.partitions[0]).values()) == [FILLER, b"1", b"2"]
    publish(stream, (b"b", FILLER))
    publish(stream, (b"c", b"3"))
    run(broker_of(stream.vhost), 2 * PERIOD_MS)
    assert list(records(stream.partitions[0]).values()) == [b"2", FILLER, b"3"]


def test_a_later_round_removes_what_an_earlier_one_kept(stream: Stream) -> None:
    publish(stream, (b"a", b"0"), (b"b", b"1"))
    compact(stream)
    publish(stream, (b"a", b"again"))
    compact(stream)
    assert sorted(own(stream).values()) == [b"1", b"again"]
    assert own(stream)[1] == b"1"


def test_a_round_begins_when_as_much_has_come_as_the_last_one_kept(stream: Stream) -> None:
    for n in range(8):
        publish(stream, (b"%d" % n, FILLER))
    compact(stream)
    first = stream.partitions[0].log
    publish(stream, (b"0", FILLER), (b"1", FILLER))
    publish(stream, (b"2", b""))
    run(broker_of(stream.vhost), 60_000)
    assert stream.partitions[0].log is first
    for _ in range(8):
        publish(stream, (b"0", FILLER))
    run(broker_of(stream.vhost), 60_000)
    assert stream.partitions[0].log is not first


def test_without_a_key_the_routing_key_counts(broker: Broker, stream: Stream) -> None:
    for n, key in enumerate((b"a.b", b"a.c", b"a.b")):
        address = Address("amq.topic", key)
        stream.accept(Message(PROTOCOL_NONE, address, b"", b"%d" % n, 1, True, START))
    broker.end_turn()
    compact(stream)
    assert own(stream) == {1: b"1", 2: b"2"}


def test_what_says_nothing_by_key_or_address_stays(broker: Broker, stream: Stream) -> None:
    for n, address in enumerate([Address("", b"s"), Address("", b"s"), Address("e", b"")] * 2):
        stream.accept(Message(PROTOCOL_NONE, address, b"", b"%d" % n, 1, True, START))
    broker.end_turn()
    compact(stream)
    assert len(own(stream)) == 6


def test_limits_of_retention_do_not_apply(broker: Broker) -> None:
    stream = declare(broker, max_length=1, max_age="1s")
    publish(stream, (b"a", b"0"))
    publish(stream, (b"b", b"1"))
    run(broker, 60_000)
    compact(stream)
    assert own(stream) == {0: b"0", 1: b"1"}


def test_a_stream_that_is_not_to_be_compacted_is_not(broker: Broker) -> None:
    stream = broker.vhosts["/"].declare_stream("s")
    publish(stream, (b"a", b"0"), (b"a", b"1"))
    compact(stream)
    assert own(stream) == {0: b"0", 1: b"1"}


# Tombstones


def test_a_tombstone_removes_its_key_and_goes_when_it_is_old(
    broker: Broker, stream: Stream
) -> None:
    publish(stream, (b"a", b"0"), (b"b", b"1"))
    publish(stream, (b"a", b""))
    compact(stream)
    assert own(stream) == {1: b"1", 2: b""}
    run(broker, DAY)
    compact(stream)
    assert own(stream) == {1: b"1"}


def test_the_age_of_tombstones_is_an_argument(broker: Broker) -> None:
    stream = declare(broker, tombstone_retention="1m")
    publish(stream, (b"a", b"0"), (b"a", b""))
    run(broker, 50_000)
    compact(stream)
    assert own(stream) == {1: b""}
    run(broker, 10_000)
    compact(stream)
    assert own(stream) == {}


def test_when_nothing_stays_reading_goes_on_with_what_is_new(broker: Broker) -> None:
    stream = declare(broker, tombstone_retention=1)
    partition = stream.partitions[0]
    publish(stream, (b"a", FILLER), (b"a", b""))
    run(broker, 10)
    publish(stream, (b"b", b"b"))
    run(broker, 2 * PERIOD_MS)
    assert records(partition, partition.first_offset) == {2: b"b"}
    assert partition.first_offset == 2


# What readers see


def test_offsets_have_no_gap_between_batches(stream: Stream) -> None:
    partition = stream.partitions[0]
    publish(stream, *[(b"%d" % (n % 7), b"%d" % n) for n in range(20_000)])
    compact(stream)
    assert own(stream) == {n: b"%d" % n for n in range(19_993, 20_000)}
    assert partition.first_offset == 0
    ends = [0]
    for base, batch in partition.read(0, 1 << 30):
        assert base == ends[-1]
        ends.append(base + RecordBatch(batch).span)


def test_large_states_become_several_batches(stream: Stream) -> None:
    partition = stream.partitions[0]
    for start in range(0, 20_000, 1000):
        publish(stream, *[(b"%d" % n, b"%d" % n) for n in range(start, start + 1000)])
        publish(stream, (b"again", b"x"))
    compact(stream)
    found = records(partition)
    assert len(found) == 20_000 + 3
    batches = partition.read(0, 1 << 30)
    assert 10 <= len(batches) <= 13
    assert all(RecordBatch(batch).count <= collected.MOST_RECORDS for _, batch in batches)


@pytest.mark.parametrize("offset", range(8))
def test_a_reader_goes_on_from_any_offset(stream: Stream, offset: int) -> None:
    publish(stream, (b"a", b"0"), (b"b", b"1"), (b"a", b"2"))
    publish(stream, (b"c", b"3"), (b"b", b"4"), (b"a", b"5"))
    compact(stream)
    kept = {3: b"3", 4: b"4", 5: b"5"}
    assert own(stream, offset) == {at: p for at, p in kept.items() if at >= offset}


def test_records_keep_their_time_headers_and_properties(broker: Broker, stream: Stream) -> None:
    publish(stream, (b"a", b"0"))
    broker.now_ms += 1000
    publish(stream, (b"b", b"1"))
    publish(stream, (b"a", b"2"))
    compact(stream)
    view = RecordBatch(stream.partitions[0].read(0, 1)[0][1])
    message = view.message(0)
    assert (message.payload, message.header, message.timestamp) == (b"1", b"b", START + 1000)
    assert view.headers(0) == [(b"n", b"1")]
    assert view.described(0).key == b"b"
    found: list[int] = []
    stream.partitions[0].offset_for_timestamp(START + 1, found.append)
    assert found == [1]


def test_compacted_batches_are_compressed_as_the_stream_says(broker: Broker) -> None:
    stream = declare(broker, compression="zstd")
    publish(stream, *[(b"%d" % n, b"payload") for n in range(200)])
    compact(stream)
    assert stream.partitions[0].read(0, 1)[0][1][5] == 2
    assert len(own(stream)) == 200


def test_groups_and_lag_are_left_alone(broker: Broker, stream: Stream) -> None:
    publish(stream, (b"a", b"0"), (b"a", b"1"), (b"a", b"2"))
    broker.vhosts["/"].groups.commit("g", stream, [(0, 1)])
    compact(stream)
    (lag,) = broker.vhosts["/"].groups.lag("g", stream)
    assert (lag.committed, lag.lag) == (1, stream.partitions[0].high_watermark - 1)


# Settings


def test_a_policy_begins_and_ends_it(broker: Broker) -> None:
    vhost = broker.vhosts["/"]
    stream = vhost.declare_stream("s")
    publish(stream, (b"a", b"0"), (b"a", b"1"))
    vhost.set_policy(Policy("p", "s", {"cleanup-policy": "compact"}))
    compact(stream)
    assert own(stream) == {1: b"1"}
    vhost.delete_policy("p")
    publish(stream, (b"a", b"2"))
    compact(stream)
    assert len(own(stream)) == 2


def test_after_compaction_retention_may_take_over(broker: Broker) -> None:
    vhost = broker.vhosts["/"]
    stream = vhost.declare_stream("s")
    partition = stream.partitions[0]
    vhost.set_policy(Policy("p", "s", {"cleanup-policy": "compact"}))
    for n in range(10):
        publish(stream, (b"%d" % n, b"%d" % n))
    compact(stream)
    vhost.set_policy(Policy("p", "s", {"max-length": 1}, "streams"))
    run(broker)
    assert list(records(partition, partition.first_offset).values()) == [b"newest"]
    assert len(partition.log) == 1


def test_a_round_that_is_under_way_is_given_up(broker: Broker) -> None:
    vhost = broker.vhosts["/"]
    stream = vhost.declare_stream("s")
    publish(stream, *[(b"%d" % n, b"") for n in range(5000)])
    publish(stream, (b"filler", FILLER))
    publish(stream, (b"newest", b"newest"))
    vhost.set_policy(Policy("p", "s", {"cleanup-policy": "compact"}))
    names = set(broker.storage.log_names())
    while set(broker.storage.log_names()) == names:
        run(broker, 1)
    vhost.delete_policy("p")
    assert set(broker.storage.log_names()) == names
    run(broker, 60_000)
    assert len(records(stream.partitions[0])) == 5002


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_deleted_stream_leaves_nothing_behind(broker: Broker, is_under_way: bool) -> None:
    stream = declare(broker)
    publish(stream, *[(b"%d" % n, b"x") for n in range(5000)])
    compact(stream)
    if is_under_way:
        names = set(broker.storage.log_names())
        for _ in range(4):
            publish(stream, (b"filler", FILLER))
        while set(broker.storage.log_names()) == names:
            run(broker, 1)
    broker.vhosts["/"].delete_stream("s")
    run(broker, 60_000)
    assert broker.storage.log_names() == []
    assert len(broker.storage.table("compaction//")) == 0


def test_a_step_is_bounded(broker: Broker, stream: Stream) -> None:
    publish(stream, *[(b"%d" % n, b"x" * 20) for n in range(10_000)])
    publish(stream, (b"newest", b"newest"))
    broker.now_ms += PERIOD_MS
    turns = 0
    while not hasattr(stream.partitions[0].log, "clean"):
        broker.now_ms += compaction.PAUSE_MS
        broker.end_turn()
        turns += 1
    assert turns >= 2 * 10_000 / compaction.STEP_RECORDS


@pytest.mark.pure
def test_a_round_is_cut_where_it_has_too_many_keys(
    broker: Broker, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MAX_KEYS", 50)
    for n in range(200):
        publish(stream, (b"%d" % (n % 100), b"%d" % n + bytes(1000)))
    publish(stream, (b"newest", b"newest"))
    run(broker, 600_000)
    found = records(stream.partitions[0])
    assert found[200] == b"newest"
    # As many rounds as it takes, while enough is left for one.
    assert len(found) < 200
    for n in range(100, 200):
        assert found[n].startswith(b"%d" % n)


def test_partitions_are_compacted_one_at_a_time(broker: Broker, stream: Stream) -> None:
    other = broker.vhosts["/"].declare_stream("t", 1, {"x-cleanup-policy": "compact"})
    for each in (stream, other):
        publish(each, *[(b"%d" % (n % 10), b"x" * 50) for n in range(2000)])
        publish(each, (b"newest", b"newest"))
    broker.now_ms += PERIOD_MS
    broker.end_turn()
    first = broker.compacting
    assert first is not None
    while broker.compacting is not None:
        assert broker.compacting is first
        run(broker, 1)
    run(broker, 2 * PERIOD_MS)
    assert [len(records(each.partitions[0])) for each in (stream, other)] == [11, 11]
    assert broker.compacting is None


def test_deleting_a_stream_lets_others_be_compacted(broker: Broker, stream: Stream) -> None:
    publish(stream, *[(b"%d" % n, b"x" * 50) for n in range(5000)])
    publish(stream, (b"newest", b"newest"))
    run(broker)
    while broker.compacting is None:
        run(broker, 1)
    broker.vhosts["/"].delete_stream("s")
    assert broker.compacting is None


def test_a_batch_that_cannot_be_read_ends_the_round(
    broker: Broker, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    log = stream.partitions[0].log
    log.append(b"damaged")
    publish(stream, (b"filler", FILLER))
    publish(stream, (b"newest", b"newest"))
    run(broker, 2 * PERIOD_MS)
    publish(stream, (b"newest", b"newest"))
    run(broker, 2 * PERIOD_MS)
    assert stream.partitions[0].log is log
    assert caplog.text.count("cannot be read") == 1
    assert broker.compacting is None


# On disk


def small_host(disk: SimulatedDisk | None = None) -> Host:
    return Host(disk, journal_file_size=40_000, checkpoint_size=100_000, memory_size=20_000)


def open_on(host: Host) -> Broker:
    broker = open_broker(host.storage)
    broker.now_ms = max(broker.now_ms, START)
    return broker


def read_back(host: Host, stream: Stream) -> dict[int, bytes]:
    """Everything in the stream, loaded where it must be."""
    partition = stream.partitions[0]
    found: dict[int, bytes] = {}
    offset = partition.first_offset
    while offset < partition.high_watermark:
        if not partition.is_loaded(offset):
            load(partition.log, offset, host.step)
        batches = partition.read(offset, 1)
        if not batches:
            continue
        base, batch = batches[0]
        view = RecordBatch(batch)
        for row in range(view.row_from(offset - base), view.count):
            found[base + view.delta(row)] = view.binary(PAYLOAD, row) or b""
        offset = base + view.span
    return found


def write(host: Host, broker: Broker, stream: Stream, count: int, seed: int) -> list[int]:
    """Publish, and let time pass; how many disk operations there were after each publish."""
    random_ = random.Random(seed)
    done: list[int] = []
    for n in range(count):
        publish(stream, (b"%d" % random_.randrange(20), b"%d:" % n + bytes(4000)))
        host.commit()
        done.append(len(host.disk.operations))
        broker.now_ms += PERIOD_MS // 10
        broker.end_turn()
        host.commit()
    return done


def keys_of(count: int, seed: int) -> list[int]:
    random_ = random.Random(seed)
    return [random_.randrange(20) for _ in range(count)]


def test_rounds_go_on_over_restarts_and_from_segments() -> None:
    host = small_host()
    broker = open_on(host)
    stream = declare(broker)
    write(host, broker, stream, 300, 1)
    assert len(stream.partitions[0].log) < 200
    host.storage.close()
    again = small_host(host.disk.copy())
    broker = open_on(again)
    stream = broker.vhosts["/"].streams["s"]
    assert_last_values(read_back(again, stream), keys_of(300, 1), 300)
    before = len(stream.partitions[0].log)
    write(again, broker, stream, 300, 2)
    assert len(stream.partitions[0].log) < before + 200
    found = read_back(again, stream)
    assert found[599].startswith(b"299:")


def assert_last_values(found: dict[int, bytes], keys: list[int], acknowledged: int) -> None:
    """Each offset holds what was published there, and every key its last value."""
    for offset, payload in found.items():
        assert payload.startswith(b"%d:" % offset)
    last = {key: offset for offset, key in enumerate(keys[:acknowledged])}
    after = {keys[offset] for offset in found if offset >= acknowledged}
    for key, offset in last.items():
        # A later one that was not acknowledged yet may have taken its place.
        assert offset in found or key in after


def test_what_a_round_had_made_before_a_crash_is_dropped() -> None:
    host = Host()
    broker = open_on(host)
    stream = declare(broker)
    publish(stream, *[(b"%d" % n, b"x" * 20) for n in range(6000)])
    publish(stream, (b"newest", b"newest"))
    host.commit()
    broker.now_ms += PERIOD_MS
    while not (names := [name for name in host.storage.log_names() if "/compacted/" in name]) or (
        not len(host.storage.log(names[0]))
    ):
        broker.now_ms += compaction.PAUSE_MS
        broker.end_turn()
        host.commit()
    again = Host(host.disk.copy())
    broker = open_on(again)
    assert names[0] not in again.storage.log_names()
    stream = broker.vhosts["/"].streams["s"]
    assert len(read_back(again, stream)) == 6001


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 1 << 32))
def test_a_crash_at_any_time_leaves_every_last_value(seed: int) -> None:
    host = small_host()
    broker = open_on(host)
    stream = declare(broker)
    host.commit()
    count = 60
    done = write(host, broker, stream, count, seed)
    assert stream.partitions[0].first_offset == 0
    assert len(stream.partitions[0].log) < count - 20
    keys = keys_of(count, seed)
    operations = host.disk.operations
    random_ = random.Random(seed)
    for _ in range(10):
        at = random_.randrange(done[0], len(operations) + 1)
        disk = SimulatedDisk().after(operations[:at])
        if random_.random() < 0.5:
            disk = disk.power_cut(random_)
        again = small_host(disk)
        stream = open_on(again).vhosts["/"].streams["s"]
        acknowledged = sum(1 for each in done if each <= at)
        found = read_back(again, stream)
        assert stream.partitions[0].high_watermark >= acknowledged
        assert_last_values(found, keys, acknowledged)
        # That of the last round, and that of one that has begun since.
        left = [name for name in again.storage.log_names() if "/compacted/" in name]
        assert len(left) <= 2


def test_a_round_goes_over_a_gap_that_a_repair_left_at_its_end(
    broker: Broker, stream: Stream
) -> None:
    """What lies behind the gap is not of this round."""
    partition = stream.partitions[0]
    for _ in range(3):
        publish(stream, (b"a", bytes(30_000)))
    partition.log.skip(10)
    publish(stream, (b"a", bytes(30_000)))
    run(broker, 2 * PERIOD_MS)
    assert list(records(partition)) == [2, 13]
