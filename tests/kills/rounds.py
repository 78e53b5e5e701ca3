"""Rounds of kills under load, and exact counts at the end.

Three roads lead from the stream ``source``:

- ``parquet``: by Spark to Parquet files;
- ``copy``: by Spark to the stream ``copy``, exactly once, in tasks of many Arrow batches;
- ``transform``: by a group of members, in transactions, to the stream ``copy``.

In each round something is killed (``kill -9``) at a random moment: the broker, and Spark's driver,
an executor or a Python worker, or a member. It goes on, with what it left on the disk. Numbers are
published to the source all the time. At the end each of them is there once, and what a reader of
``copy`` has seen on the way is what is there.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import pyarrow.parquet as pq

from interop.brokers import TriviumProcess
from tests.kills.load import PATIENCE, Follower, Load, Numbers, read_copy
from tests.kills.programs import Program, Query
from tests.kills.query import BATCH_ROWS
from trivium_native.sync import connect

ROADS: Final = ("parquet", "copy", "transform")
PARTITIONS: Final = 4
MEMBERS: Final = 3
#: Numbers that are published ahead of what is read.
LEAD: Final = 3 * BATCH_ROWS
#: One in so many kills does not wait until something was done after the one before.
AT_ONCE: Final = 4
#: Seconds, between looks at what was done.
TICK: Final = 0.02


class Wrong(AssertionError):
    """A number is missing, or there more than once, or was seen and is gone."""


def pause(seconds: float) -> None:
    """Between two looks at what other processes have done, and until the moment of a kill."""
    time.sleep(seconds)


@dataclass
class Report:
    """What was killed how often, and what was counted."""

    road: str
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    numbers: int = 0
    #: how often something was started again that had ended by itself
    failures: int = 0
    seconds: float = 0.0


class Road(ABC):
    """What leads from the source to the target, in processes that are killed."""

    #: what is killed, each as often as it is named
    targets: tuple[str, ...]

    def __init__(self, folder: Path, broker: TriviumProcess, draw: random.Random) -> None:
        self.folder = folder
        self.broker = broker
        self.draw = draw

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def done(self) -> int:
        """A number that grows as the road goes on."""

    @abstractmethod
    def planned(self) -> int:
        """How many numbers it has begun with, about."""

    @abstractmethod
    def kill(self, target: str) -> None:
        """Kill it, and start it again where nobody else does."""

    @abstractmethod
    def go_on(self) -> None:
        """Start again what has ended by itself."""

    @abstractmethod
    def finish(self, count: int) -> Numbers:
        """Go on until all numbers are at the target, without kills; what is there."""

    @abstractmethod
    def clean_up(self) -> None:
        """Kill what is left."""

    @property
    @abstractmethod
    def failures(self) -> int: ...

    def _restart_broker(self) -> None:
        self.broker.kill()
        pause(self.draw.uniform(0, 0.5))
        self.broker.start(PATIENCE)


class SparkRoad(Road):
    """By a streaming query."""

    targets = ("broker", "driver", "executor", "worker")

    def __init__(
        self, folder: Path, broker: TriviumProcess, draw: random.Random, is_copy: bool
    ) -> None:
        super().__init__(folder, broker, draw)
        self._is_copy = is_copy
        self._query = Query(folder, "copy" if is_copy else "parquet", broker.url)

    def start(self) -> None:
        self._query.start()

    def done(self) -> int:
        """The last micro-batch that the checkpoint has as done."""
        return self._last("commits")

    def planned(self) -> int:
        return (self._last("offsets") + 1) * BATCH_ROWS

    def _last(self, log: str) -> int:
        names = (self.folder / "checkpoint" / log).glob("[0-9]*")
        return max((int(each.name) for each in names if each.name.isdigit()), default=-1)

    def kill(self, target: str) -> None:
        if target == "broker":
            self._restart_broker()
        elif target == "driver":
            self._query.kill()
            self._query.start()
        else:
            find = self._query.executors if target == "executor" else self._query.workers
            self._kill_one(find)

    def _kill_one(self, find: Callable[[], list[psutil.Process]]) -> None:
        """One of these processes, once there is one."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.go_on()
            found = find()
            if found:
                with suppress(psutil.NoSuchProcess):
                    self.draw.choice(found).kill()
                    return
            pause(TICK)
        raise Wrong("there is nothing to kill")

    def go_on(self) -> None:
        self._query.go_on()

    def finish(self, count: int) -> Numbers:
        # Executors of drivers that are gone may still write.
        self._query.kill()
        for _ in range(3):
            self._query.start("end")
            if self._query.end() == 0:
                break
        if self._is_copy:
            return read_copy(self.broker.url)
        numbers: Numbers = pq.read_table(self.folder / "read")["number"].to_numpy()
        return numbers

    def clean_up(self) -> None:
        self._query.clean_up()

    @property
    def failures(self) -> int:
        return self._query.failures


class GroupRoad(Road):
    """By the members of a group."""

    targets = ("broker", "member", "member", "member and broker")

    def __init__(self, folder: Path, broker: TriviumProcess, draw: random.Random) -> None:
        super().__init__(folder, broker, draw)
        self._members = [
            Program(folder, "tests.kills.member", broker.url, f"member-{number}")
            for number in range(MEMBERS)
        ]
        self._follower: Callable[[], int] = lambda: 0

    def follow(self, count: Callable[[], int]) -> None:
        """How many records of the target somebody has seen."""
        self._follower = count

    def start(self) -> None:
        for member in self._members:
            member.start()

    def done(self) -> int:
        return self._follower()

    planned = done

    def kill(self, target: str) -> None:
        if "member" in target:
            member = self.draw.choice(self._members)
            member.kill()
            member.start()
        if "broker" in target:
            self._restart_broker()

    def go_on(self) -> None:
        for member in self._members:
            member.go_on()

    def finish(self, count: int) -> Numbers:
        end = time.monotonic() + PATIENCE
        with connect(self.broker.url, timeout=PATIENCE) as client:
            while sum(each.lag for each in client.committed("transform", "source")) > 0:
                self.go_on()
                if time.monotonic() > end:
                    raise Wrong("the members do not come to an end")
                pause(TICK)
        return read_copy(self.broker.url)

    def clean_up(self) -> None:
        for member in self._members:
            member.clean_up()

    @property
    def failures(self) -> int:
        return sum(member.failures for member in self._members)


def run(road_name: str, folder: Path, broker: TriviumProcess, rounds: int, seed: int) -> Report:
    """So many kills on a road. Raises Wrong."""
    started = time.monotonic()
    report = Report(road_name, seed)
    draw = random.Random(f"{road_name} {seed}")
    with connect(broker.url) as client:
        client.declare_stream("source", PARTITIONS if road_name == "transform" else 2)
        client.declare_stream("copy", 1)
    follower = Follower(broker.url)
    road: Road
    if road_name == "transform":
        road = group = GroupRoad(folder, broker, draw)
        group.follow(lambda: follower.count)
    else:
        road = SparkRoad(folder, broker, draw, is_copy=road_name == "copy")
    load = Load(broker.url, road.planned, LEAD)
    for each in (load, follower):
        each.start()
    try:
        road.start()
        for target in kinds(road.targets, rounds, draw):
            _await_moment(road, draw)
            road.kill(target)
            report.kills[target] += 1
        report.numbers = load.stop()
        found = road.finish(report.numbers)
        seen = follower.stop()
    finally:
        road.clean_up()
    report.failures = road.failures
    report.seconds = time.monotonic() - started
    check(found, report.numbers)
    if road_name != "parquet" and not np.array_equal(seen, found[: len(seen)]):
        raise Wrong("a reader has seen what is not there any more")
    return report


def kinds(targets: tuple[str, ...], rounds: int, draw: random.Random) -> list[str]:
    """What to kill in each round: all as often as they are named, in a random order."""
    found: list[str] = []
    while len(found) < rounds:
        found += draw.sample(targets, len(targets))
    return found[:rounds]


def _await_moment(road: Road, draw: random.Random) -> None:
    """Some time within the next step of the road, which is about as long as the last one."""
    began = time.monotonic()
    if draw.randrange(AT_ONCE):
        for _ in range(2):
            before, began = road.done(), time.monotonic()
            while road.done() == before:
                road.go_on()
                if time.monotonic() - began > PATIENCE:
                    raise Wrong("nothing is done any more")
                pause(TICK)
    step = max(1.0, time.monotonic() - began)
    pause(draw.uniform(0, step))


def check(found: Numbers, count: int) -> None:
    """Raise Wrong unless each number below ``count`` is there once."""
    times = np.bincount(found, minlength=count)
    if len(times) == count and (times == 1).all():
        return
    missing, doubled = np.flatnonzero(times[:count] == 0), np.flatnonzero(times > 1)
    raise Wrong(
        f"of {count} numbers {len(missing)} are missing ({missing[:10].tolist()}...),"
        f" {len(doubled)} are there more than once ({doubled[:10].tolist()}...),"
        f" {max(0, len(times) - count)} are not known"
    )
