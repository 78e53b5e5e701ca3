"""Marks of memory and disk, a disk that is behind, and who is told of it."""

from __future__ import annotations

import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.core import message
from tests.support.metrics import metrics_text
from tests.support.server import LISTENER, RecordingDriver, Transport
from tests.support.simulated import Host
from trivium.config import Config, LimitsConfig
from trivium.runtime.adapter import Connection, Peer
from trivium.runtime.alarms import MARGIN, NEAR_BYTES, NEAR_INTERVAL, USUAL_INTERVAL, Alarms
from trivium.runtime.broker import MAX_PENDING_BYTES, Broker
from trivium.storage.memory import MemoryStorage

MEMORY = 1_000_000
DISK = 500_000
PLENTY = DISK + NEAR_BYTES


class Probe(RecordingDriver):
    """A machine whose memory and disk the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.resident = 0
        self.free = PLENTY
        self.releases = 0

    def memory_limit(self) -> int:
        return MEMORY * 2

    def resident_memory(self) -> int:
        return self.resident

    def release_memory(self) -> None:
        self.releases += 1

    def free_disk(self) -> int:
        return self.free


class PendingStorage(MemoryStorage):
    """As much waits for the disk as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.requests = 0

    @property
    def pending_bytes(self) -> int:
        return self.waiting

    def free_space(self) -> None:
        self.requests += 1


class Listener(Connection):
    """Writes down what it is told: a reason, or None that publishers may go on."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, Transport(), Peer("127.0.0.1:1", True, LISTENER))
        self.told: list[str | None] = []

    def blocked(self, reason: str) -> None:
        self.told.append(reason)

    def unblocked(self) -> None:
        self.told.append(None)


class Site:
    """A broker on that machine with one client."""

    def __init__(self, limits: LimitsConfig | None = None) -> None:
        self.probe = Probe()
        self.storage = PendingStorage()
        alarm_limits = LimitsConfig(memory_high_fraction=0.5, disk_free_bytes=DISK)
        self.broker = Broker(Config(limits=alarm_limits if limits is None else limits))
        self.broker.open(self.storage, self.probe, [])
        self.client = Listener(self.broker)
        self.broker.add_connection(self.client)

    def look(self, resident: int | None = None, free: int | None = None) -> list[str | None]:
        """What the client is told when the figures are these."""
        if resident is not None:
            self.probe.resident = resident
        if free is not None:
            self.probe.free = free
        self.broker.check_alarms()
        return self.take()

    def wait_for_disk(self, pending: int) -> list[str | None]:
        """What the client is told at the end of a turn with so many bytes waiting."""
        self.storage.waiting = pending
        self.broker.end_turn()
        return self.take()

    def take(self) -> list[str | None]:
        told, self.client.told = self.client.told, []
        return told

    def metrics(self) -> dict[str, float]:
        return {
            sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(metrics_text(self.broker))
            for sample in family.samples
        }


# Marks


def test_memory_alarm_begins_above_its_limit_and_ends_a_tenth_below() -> None:
    alarms = Alarms(MEMORY, 0)
    states = []
    for resident in (MEMORY, MEMORY + 1, MEMORY, int(MEMORY * (1 - MARGIN)) + 1):
        alarms.check(resident, -1)
        states.append(alarms.is_memory_short)
    assert states == [False, True, True, True]
    alarms.check(int(MEMORY * (1 - MARGIN)), -1)
    assert not alarms.is_memory_short


def test_disk_alarm_begins_below_its_limit_and_ends_a_tenth_above() -> None:
    alarms = Alarms(0, DISK)
    states = []
    for free in (DISK, DISK - 1, DISK, int(DISK * (1 + MARGIN)) - 1):
        alarms.check(-1, free)
        states.append(alarms.is_disk_short)
    assert states == [False, True, True, True]
    alarms.check(-1, int(DISK * (1 + MARGIN)) + 1)
    assert not alarms.is_disk_short


def test_a_limit_of_zero_is_off_and_so_is_an_unknown_figure() -> None:
    alarms = Alarms(0, 0)
    assert alarms.check(1 << 60, 0) == USUAL_INTERVAL
    assert alarms.reason is None
    alarms = Alarms(MEMORY, DISK)
    assert alarms.check(-1, -1) == USUAL_INTERVAL
    assert alarms.reason is None


def test_an_alarm_stays_while_its_figure_is_unknown() -> None:
    alarms = Alarms(MEMORY, DISK)
    alarms.check(MEMORY * 2, 0)
    alarms.check(-1, -1)
    assert alarms.reason == "low on memory & disk"


def test_reasons_are_rabbitmqs() -> None:
    alarms = Alarms(MEMORY, DISK)
    reasons = []
    for resident, free in ((0, PLENTY), (MEMORY * 2, PLENTY), (MEMORY * 2, 0), (0, 0)):
        alarms.check(resident, free)
        reasons.append(alarms.reason)
    assert reasons == [None, "low on memory", "low on memory & disk", "low on disk"]


def test_figures_near_a_limit_are_looked_at_more_often() -> None:
    high = MEMORY + NEAR_BYTES
    alarms = Alarms(high, DISK)
    assert alarms.check(MEMORY, PLENTY) == USUAL_INTERVAL
    assert alarms.check(MEMORY + 1, PLENTY) == NEAR_INTERVAL
    assert alarms.check(MEMORY, PLENTY - 1) == NEAR_INTERVAL
    assert alarms.check(high + 1, 0) == NEAR_INTERVAL


def test_each_alarm_logs_one_line_each_way(caplog: pytest.LogCaptureFixture) -> None:
    alarms = Alarms(MEMORY, DISK)
    with caplog.at_level(logging.INFO):
        for resident, free in ((MEMORY * 2, 0), (MEMORY * 3, 1), (0, PLENTY), (1, PLENTY)):
            alarms.check(resident, free)
    assert [record.getMessage() for record in caplog.records] == [
        "memory: 2000000 bytes, limit 1000000: publishers are paused",
        "free disk: 0 bytes, limit 500000: publishers are paused",
        "memory: 0 bytes, limit 1000000: the alarm is over",
        f"free disk: {PLENTY} bytes, limit 500000: the alarm is over",
    ]


# What the broker does


def test_the_memory_limit_is_a_share_of_what_the_process_may_use_or_bytes() -> None:
    assert Site().broker.alarms.memory_high == MEMORY
    assert Site(LimitsConfig(memory_high_bytes=7)).broker.alarms.memory_high == 7
    assert Site(LimitsConfig(memory_high_fraction=0)).broker.alarms.memory_high == 0


def test_clients_are_told_once_when_publishers_pause_and_when_they_go_on() -> None:
    site = Site()
    assert site.look(0, PLENTY) == []
    assert site.look(MEMORY * 2) == ["low on memory"]
    assert site.look() == []
    assert site.look(0) == [None]
    assert site.look(free=0) == ["low on disk"]
    assert site.look(free=PLENTY) == [None]


def test_publishers_go_on_when_the_last_alarm_is_over() -> None:
    site = Site()
    assert site.look(MEMORY * 2) == ["low on memory"]
    assert site.look(free=0) == []
    assert site.look(0) == []
    assert site.look(free=PLENTY) == [None]


def test_who_connects_during_an_alarm_is_told() -> None:
    site = Site()
    site.look(free=0)
    late = Listener(site.broker)
    site.broker.add_connection(late)
    assert late.told == ["low on disk"]
    site.look(free=PLENTY)
    assert late.told == ["low on disk", None]


def test_closed_connections_are_not_told() -> None:
    site = Site()
    site.client.close()
    assert site.look(free=0) == []


def test_an_alarm_makes_the_broker_unready() -> None:
    site = Site()
    assert site.broker.unready() is None
    site.look(free=0)
    assert site.broker.unready() == "low on disk: publishers are paused"
    site.look(free=PLENTY)
    assert site.broker.unready() is None


def test_alarms_and_limits_are_metrics() -> None:
    site = Site()
    site.look(0, 0)
    values = site.metrics()
    assert values["trivium_alarm/memory"] == 0
    assert values["trivium_alarm/disk"] == 1
    assert values["trivium_memory_high_bytes"] == MEMORY
    assert values["trivium_disk_low_bytes"] == DISK
    assert values["trivium_disk_free_bytes"] == 0


def test_while_the_disk_is_short_the_storage_is_asked_to_give_space_back() -> None:
    site = Site()
    site.broker.tick(1.0)
    site.look(free=0)
    site.broker.tick(2.0)
    site.broker.tick(3.0)
    site.look(free=PLENTY)
    site.broker.tick(4.0)
    assert site.storage.requests == 2


def test_while_memory_is_short_the_driver_is_asked_to_give_it_back() -> None:
    site = Site()
    site.broker.tick(1.0)
    site.look(MEMORY * 2)
    site.broker.tick(2.0)
    site.look(0)
    site.broker.tick(3.0)
    assert site.probe.releases == 1


# A disk that is behind


def test_publishers_pause_in_silence_while_too_much_waits_for_the_disk() -> None:
    site = Site()
    assert site.wait_for_disk(MAX_PENDING_BYTES) == []
    assert site.wait_for_disk(MAX_PENDING_BYTES + 1) == [""]
    assert site.wait_for_disk(MAX_PENDING_BYTES // 2 + 1) == []
    assert site.broker.unready() is None
    assert site.wait_for_disk(MAX_PENDING_BYTES // 2) == [None]
    assert site.metrics()["trivium_storage_pauses_total"] == 1


def test_an_alarm_during_a_pause_is_told_and_outlasts_it() -> None:
    site = Site()
    site.wait_for_disk(MAX_PENDING_BYTES + 1)
    assert site.look(free=0) == [None, "low on disk"]
    assert site.wait_for_disk(0) == []
    assert site.look(free=PLENTY) == [None]


def test_a_pause_during_an_alarm_outlasts_it() -> None:
    site = Site()
    site.look(free=0)
    assert site.wait_for_disk(MAX_PENDING_BYTES + 1) == []
    assert site.look(free=PLENTY) == [None, ""]
    assert site.wait_for_disk(0) == [None]


def test_publishers_pause_until_a_stalled_writer_has_caught_up() -> None:
    host = Host(journal_file_size=1 << 20)
    broker = Broker()
    broker.open(host.storage, Probe(), [])
    client = Listener(broker)
    broker.add_connection(client)
    host.commit()
    queue = broker.vhosts["/"].declare_queue("q", durable=True)
    broker.end_turn()
    published = 0
    while not client.told:
        queue.accept(message(b"%d" % published * (1 << 20)))
        broker.end_turn()
        published += 1
    # One write batch of a message is with the writer, the rest waits.
    assert published <= 66
    while client.told == [""]:
        host.step()
        broker.end_turn()
    assert client.told == ["", None]
    assert host.storage.pending_bytes == 0
    assert len(queue) == published
