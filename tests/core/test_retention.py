"""Retention: which batches go, when, and what readers and groups then see."""

from __future__ import annotations

import pytest

from tests.support.core import broker_of, open_broker
from tests.support.server import RecordingDriver, move_to
from tests.support.simulated import Host
from trivium.errors import PreconditionFailed
from trivium.messages.message import PROTOCOL_NONE, Address, HeaderValue, Message
from trivium.runtime.broker import Broker
from trivium.storage.base import Log
from trivium.streams.records import batch_count
from trivium.streams.retention import PERIOD_MS, STEP_BATCHES, STEP_RECORDS
from trivium.streams.stream import Partition, Stream
from trivium.vhost.policies import Policy
from trivium.vhost.virtual_host import VirtualHost

START = 1_700_000_000_000

#: A stream that keeps so few messages does not join small batches.
UNJOINED = 2000


@pytest.fixture
def broker() -> Broker:
    made = open_broker()
    made.now_ms = START
    return made


@pytest.fixture
def vhost(broker: Broker) -> VirtualHost:
    return broker.vhosts["/"]


def declare(vhost: VirtualHost, **arguments: HeaderValue) -> Stream:
    return vhost.declare_stream(
        "s", 1, {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    )


def publish(stream: Stream, *sizes: int) -> None:
    """A turn with messages of these sizes, arriving now."""
    broker = broker_of(stream.vhost)
    for size in sizes:
        address = Address("", stream.name.encode())
        stream.accept(Message(PROTOCOL_NONE, address, b"", bytes(size), 1, True, broker.now_ms))
    broker.end_turn()


def run(broker: Broker, milliseconds: int = PERIOD_MS) -> None:
    """Let the time pass, with turns whenever one is due."""
    end = broker.elapsed_ms + milliseconds
    while (at := broker.next_at()) and at <= end:
        move_to(broker, at)
        broker.end_turn()
    move_to(broker, end)


def bases(partition: Partition) -> list[int]:
    return [base for base, _ in partition.read(0, 1 << 30)]


def batch_size(stream: Stream) -> int:
    return len(stream.partitions[0].read(0, 1)[0][1])


# Number


def test_max_length_keeps_at_least_that_many_records_in_whole_batches(
    broker: Broker, vhost: VirtualHost
) -> None:
    stream = declare(vhost, max_length=5)
    partition = stream.partitions[0]
    for _ in range(4):
        publish(stream, 1, 1, 1)
    run(broker)
    assert bases(partition) == [6, 9]
    assert (partition.first_offset, partition.high_watermark) == (6, 12)


def test_what_does_not_reach_the_limit_stays(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_length=5)
    publish(stream, 1, 1)
    publish(stream, 1, 1)
    run(broker, 60_000)
    assert bases(stream.partitions[0]) == [0, 2]


def test_the_newest_batch_stays_however_long(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_length=1, max_length_bytes=1, max_age=1)
    publish(stream, 1)
    publish(stream, *[10] * 50)
    run(broker, 60_000)
    assert bases(stream.partitions[0]) == [1]


def test_each_partition_has_the_limit(broker: Broker, vhost: VirtualHost) -> None:
    stream = vhost.declare_stream("s", 2, {"x-max-length": 2})
    for _ in range(8):
        publish(stream, 1)
    run(broker)
    assert [partition.first_offset for partition in stream.partitions] == [2, 2]


def test_a_long_removal_takes_several_turns(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost)
    partition = stream.partitions[0]
    for _ in range(9):
        publish(stream, *[0] * 16_384)
    vhost.set_policy(Policy("p", "s", {"max-length": 1}, "streams"))
    seen = []
    while broker.next_at():
        broker.end_turn()
        seen.append(partition.first_offset)
    assert seen[:2] == [STEP_RECORDS, 2 * STEP_RECORDS]
    assert seen[-1] == 8 * 16_384
    assert isinstance(broker.driver, RecordingDriver)
    assert broker.driver.requests > 0


# Size


def test_max_length_bytes_keeps_at_least_that_many_bytes(
    broker: Broker, vhost: VirtualHost
) -> None:
    stream = declare(vhost)
    partition = stream.partitions[0]
    for _ in range(10):
        publish(stream, 1000)
    size = batch_size(stream)
    vhost.set_policy(Policy("p", "s", {"max-length-bytes": 3 * size}))
    broker.end_turn()
    assert bases(partition) == [7, 8, 9]
    vhost.set_policy(Policy("p", "s", {"max-length-bytes": 2 * size - 1}))
    broker.end_turn()
    assert bases(partition) == [8, 9]
    vhost.set_policy(Policy("p", "s", {"max-length-bytes": size + 1}))
    broker.end_turn()
    assert bases(partition) == [8, 9]


def test_the_size_is_kept_while_messages_come(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_length_bytes=100_000)
    partition = stream.partitions[0]
    for _ in range(500):
        publish(stream, 1000)
        run(broker)
        size = sum(len(batch) for _, batch in partition.read(0, 1 << 30))
        # What is removed at most late: a second's batches and the sixty-fourth of the limit.
        assert size < 100_000 * 65 // 64 + 3 * batch_size(stream)
        assert size >= 100_000 or partition.first_offset == 0


# Age


def test_max_age_removes_batches_whose_newest_record_is_older(
    broker: Broker, vhost: VirtualHost
) -> None:
    stream = declare(vhost, max_age="1m")
    partition = stream.partitions[0]
    for _ in range(6):
        publish(stream, 1)
        run(broker, 20_000)
    # Now at 120 s; batches of 0, 20, 40, 60, 80 and 100 s.
    assert bases(partition) == [4, 5]
    run(broker, 18_000)
    assert bases(partition) == [4, 5]
    run(broker, 3000)
    assert bases(partition) == [5]


def test_a_batch_is_as_young_as_its_newest_record(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_age=60_000)
    address = Address("", b"s")
    for at in (START, START + 50_000):
        stream.accept(Message(PROTOCOL_NONE, address, b"", b"", 1, True, at))
    broker.end_turn()
    publish(stream, 1)
    run(broker, 100_000)
    assert bases(stream.partitions[0]) == [0, 2]
    run(broker, 20_000)
    assert bases(stream.partitions[0]) == [2]


def test_an_idle_stream_still_ages(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_age="1D")
    publish(stream, 1)
    publish(stream, 1)
    run(broker, 24 * 3600 * 1000 + PERIOD_MS)
    assert bases(stream.partitions[0]) == [1]


def test_many_old_batches_take_several_turns(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_length=UNJOINED)
    for _ in range(STEP_BATCHES + 10):
        publish(stream, 1)
    broker.now_ms += 5000
    vhost.set_policy(Policy("p", "s", {"max-age": "1s"}))
    broker.end_turn()
    assert stream.partitions[0].first_offset == STEP_BATCHES
    broker.end_turn()
    assert stream.partitions[0].first_offset == STEP_BATCHES + 9


def test_nothing_is_looked_at_where_there_is_no_limit(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost)
    publish(stream, 1)
    assert broker.next_at() == 0


# Policies


def test_policies_are_put_in_force_and_out_of_force(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_length=8)
    for _ in range(10):
        publish(stream, 1)
    vhost.set_policy(Policy("p", "^s$", {"max-length": 3}, "streams"))
    broker.end_turn()
    assert bases(stream.partitions[0]) == [7, 8, 9]
    vhost.delete_policy("p")
    for _ in range(10):
        publish(stream, 1)
    run(broker)
    assert stream.partitions[0].first_offset == 12


@pytest.mark.parametrize("apply_to", ["queues", "all"])
@pytest.mark.parametrize(("key", "first"), [("max-length", 0), ("max-length-bytes", 2)])
def test_a_policy_for_queues_too_limits_a_stream_by_bytes_alone(
    broker: Broker, vhost: VirtualHost, apply_to: str, key: str, first: int
) -> None:
    stream = declare(vhost)
    for _ in range(3):
        publish(stream, 1)
    vhost.set_policy(Policy("p", "s", {key: 1}, apply_to))
    broker.end_turn()
    assert stream.partitions[0].first_offset == first


def test_a_policy_names_a_valid_age() -> None:
    Policy("p", "s", {"max-age": "7D"})
    Policy("p", "s", {"max-age": 1000})
    with pytest.raises(PreconditionFailed, match="max-age"):
        Policy("p", "s", {"max-age": "soon"})


def test_a_deleted_stream_is_left_alone(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_length=1)
    publish(stream, 1)
    publish(stream, 1)
    vhost.delete_stream("s")
    run(broker)
    assert broker.next_at() == 0


# Readers


def test_the_lag_counts_from_the_oldest_kept_record(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_length=2)
    vhost.groups.commit("g", stream, [(0, 0)])
    for _ in range(10):
        publish(stream, 1)
    assert [lag.lag for lag in vhost.groups.lag("g", stream)] == [10]
    run(broker)
    assert [lag.lag for lag in vhost.groups.lag("g", stream)] == [2]


def test_a_search_by_time_finds_no_removed_record(broker: Broker, vhost: VirtualHost) -> None:
    stream = declare(vhost, max_length=2)
    for _ in range(10):
        publish(stream, 1)
    run(broker)
    found: list[int] = []
    stream.partitions[0].offset_for_timestamp(0, found.append)
    assert found == [8]


# On disk


def open_on(host: Host) -> Broker:
    broker = open_broker(host.storage)
    broker.now_ms = START
    return broker


def small_host(before: Host | None = None) -> Host:
    disk = None if before is None else before.disk.copy()
    return Host(disk, journal_file_size=4096, checkpoint_size=20_000, memory_size=1000)


def settle(broker: Broker, host: Host) -> None:
    """Turns until the storage is idle and no removal is due."""
    while True:
        host.commit()
        at = broker.next_at()
        if not at or at > broker.elapsed_ms:
            return
        broker.end_turn()


def fill(broker: Broker, host: Host, count: int) -> Stream:
    stream = declare(broker.vhosts["/"], max_length=UNJOINED)
    for _ in range(count):
        publish(stream, 500)
        broker.now_ms += 1000
        host.commit()
    return stream


def stream_log(host: Host) -> Log:
    (name,) = [name for name in host.storage.log_names() if name.startswith("stream/")]
    return host.storage.log(name)


def test_old_batches_are_aged_from_segments_and_the_removal_survives_a_crash() -> None:
    host = small_host()
    broker = open_on(host)
    stream = fill(broker, host, 1500)
    partition = stream.partitions[0]
    assert not partition.is_loaded(0)
    broker.vhosts["/"].set_policy(Policy("p", "s", {"max-age": "10s"}))
    broker.end_turn()
    settle(broker, host)
    assert partition.first_offset == 1491
    assert partition.high_watermark == 1500
    # A kill: nothing of the process is left but its disk.
    again = small_host(host)
    assert stream_log(again).first_offset == 1491
    assert len(stream_log(again)) == 9


def test_size_is_limited_on_disk_without_reading_it_back() -> None:
    host = small_host()
    broker = open_on(host)
    stream = fill(broker, host, 1500)
    partition = stream.partitions[0]
    assert not partition.is_loaded(0)
    size = batch_size_of(host)
    broker.vhosts["/"].set_policy(Policy("p", "s", {"max-length-bytes": 100 * size}))
    broker.end_turn()
    assert not host.executor.workers["trivium-reader"].queue
    settle(broker, host)
    # As near as the chunks are that the storage reads back.
    assert 0 < partition.first_offset <= 1400


def batch_size_of(host: Host) -> int:
    (name,) = [name for name in host.storage.log_names() if name.startswith("stream/")]
    contents = host.contents(name)
    assert all(batch_count(record) == 1 for record, _ in contents.values())
    return len(contents[0][0])


def test_retention_goes_on_after_a_restart() -> None:
    host = small_host()
    broker = open_on(host)
    broker.vhosts["/"].set_policy(Policy("p", "s", {"max-length": 100}, "streams"))
    fill(broker, host, 300)
    host.storage.close()
    again = small_host(host)
    broker = open_broker(again.storage)
    stream = broker.vhosts["/"].streams["s"]
    settle(broker, again)
    assert stream.partitions[0].first_offset == 200
