"""Crashes: at every operation of a scenario, by a kill and by a power cut, and again in between."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.storage.model import Recoveries, Scenario, assert_equal, assert_recovers
from tests.support.simulated import Host, SimulatedDisk


def scenario_of(seed: int, steps: int, fsync: str = "always") -> Scenario:
    host = Host(seed=seed, fsync=fsync, journal_file_size=1500)
    scenario = Scenario(seed, host)
    scenario.run(steps)
    return scenario


@settings(max_examples=25)
@given(st.integers(0, 1 << 32))
def test_a_kill_at_any_operation_loses_nothing_acknowledged(seed: int) -> None:
    scenario = scenario_of(seed, 40)
    recoveries = Recoveries(scenario.states)
    for done, disk in scenario.disks():
        recoveries.check(disk, scenario.acknowledged_after(done))


@settings(max_examples=25)
@given(st.integers(0, 1 << 32))
def test_a_power_cut_at_any_operation_loses_nothing_acknowledged(seed: int) -> None:
    scenario = scenario_of(seed, 40)
    random_ = random.Random(seed)
    recoveries = Recoveries(scenario.states)
    for done, disk in scenario.disks():
        at_least = scenario.acknowledged_after(done)
        recoveries.check(disk.power_cut(None), at_least)
        for _ in range(3):
            recoveries.check(disk.power_cut(random_), at_least)


@pytest.mark.parametrize("fsync", ["every_n:3", "interval:10", "never"])
@settings(max_examples=10)
@given(st.integers(0, 1 << 32))
def test_weaker_sync_still_recovers_whole_batches(fsync: str, seed: int) -> None:
    scenario = scenario_of(seed, 40, fsync)
    random_ = random.Random(seed)
    recoveries = Recoveries(scenario.states)
    for done, disk in scenario.disks():
        # A process kill loses nothing; a power cut may, but never part of a batch.
        for _ in range(2):
            recoveries.check(disk.power_cut(random_), 0)
        recoveries.check(disk, scenario.acknowledged_after(done))


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_during_recovery_changes_nothing(seed: int) -> None:
    scenario = scenario_of(seed, 12)
    random_ = random.Random(seed)
    for done, crashed in scenario.disks():
        at_least = scenario.acknowledged_after(done)
        for first in (crashed, crashed.power_cut(random_)):
            recovering = first.copy()
            recovered = assert_recovers(first, scenario.states, at_least)
            reached = recovered.storage.durable - 1
            again = Recoveries({**scenario.states, reached + 1: scenario.states[reached]})
            for operation in recovered.disk.operations:
                for second in (recovering, recovering.power_cut(random_)):
                    again.check(second.copy(), at_least)
                recovering.apply(operation)


@settings(max_examples=20)
@given(st.integers(0, 1 << 32))
def test_a_second_life_after_a_crash_is_kept(seed: int) -> None:
    scenario = scenario_of(seed, 30)
    random_ = random.Random(seed)
    crashes = list(scenario.disks())
    disk: SimulatedDisk = random_.choice(crashes)[1]
    for life in range(3):
        host = Host(disk, seed=seed + life + 1, journal_file_size=1500)
        model = copy.deepcopy(scenario.states[host.storage.durable - 1])
        for name, log in model.logs.items():
            log.next_offset = host.storage.log(name).next_offset
        scenario = Scenario(seed + life + 1, host, model)
        scenario.run(20)
        recoveries = Recoveries(scenario.states)
        for done, crashed in scenario.disks():
            at_least = scenario.acknowledged_after(done)
            recoveries.check(crashed.power_cut(random_), at_least)
        disk = random_.choice([each for _, each in scenario.disks()])
        if random_.random() < 0.5:
            disk = disk.power_cut(random_)


def test_a_crash_at_any_operation_of_the_first_start() -> None:
    operations = Host().disk.operations
    disk = SimulatedDisk()
    random_ = random.Random(0)
    for operation in operations:
        for crashed in (disk.copy(), disk.power_cut(None), disk.power_cut(random_)):
            host = Host(crashed)
            assert host.storage.log_names() == []
            # A complete first batch is one of a process that did not stop.
            assert host.storage.was_clean == (host.storage.durable == 0)
        disk.apply(operation)
    assert not Host(disk).storage.was_clean


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_a_clean_stop_keeps_everything_and_is_known(seed: int) -> None:
    scenario = scenario_of(seed, 30)
    scenario.host.storage.close()
    for log in scenario.model.logs.values():
        log.shown_offset = log.next_offset
    host = Host(scenario.host.disk.copy().power_cut(None), seed=1)
    assert host.storage.was_clean
    assert_equal(host, scenario.model)
    assert all(host.storage.log(name).recovered_offset == 0 for name in host.storage.log_names())


def test_a_crash_during_the_first_start_and_a_power_cut_in_the_second_life() -> None:
    disk = SimulatedDisk()
    for operation in Host().disk.operations:
        disk.apply(operation)
        host = Host(disk.copy())
        host.storage.table("t").put(b"k", b"v")
        host.commit()
        again = Host(host.disk.power_cut(None), seed=1)
        assert again.storage.table("t").get(b"k") == b"v"


@pytest.mark.parametrize("fsync", ["every_n:3", "interval:10"])
@settings(max_examples=15)
@given(st.integers(0, 1 << 32))
def test_a_power_cut_under_a_weaker_policy_loses_nothing_that_was_synced(
    fsync: str, seed: int
) -> None:
    """A sync is one of everything before it, whatever the batches before it left unsynced."""
    host = Host(seed=seed, fsync=fsync, journal_file_size=1 << 16)
    random_ = random.Random(seed)
    for number in range(40):
        host.executor.clock += 0.004
        host.storage.log("l").append(b"%d" % number)
        host.storage.commit()
        host.step()
        synced = host.storage.journal.synced
        for randomness in (None, random_):
            again = Host(host.disk.power_cut(randomness), seed=1)
            assert again.storage.durable - 1 >= synced
