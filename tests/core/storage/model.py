"""What a storage must hold, in a few lines, and a scenario that can be crashed at any point."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.simulated import Host, Recorder, SimulatedDisk

LOGS = ("a", "b", "c")
KEYS = (b"k0", b"k1", b"k2", b"k3", b"k4")


@dataclass
class ModelLog:
    #: offset to end, record, annotation
    records: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    next_offset: int = 0
    #: offsets before this one are shown by records in the journal
    shown_offset: int = 0


@dataclass
class Model:
    logs: dict[str, ModelLog] = field(default_factory=dict)
    rows: dict[bytes, bytes] = field(default_factory=dict)


def assert_equal(host: Host, model: Model) -> None:
    storage = host.storage
    assert sorted(storage.log_names()) == sorted(model.logs)
    for name, expected in model.logs.items():
        log = storage.log(name)
        assert host.contents(name) == {at: each[1:] for at, each in expected.records.items()}
        assert len(log) == len(expected.records)
        # A checkpoint may have seen offsets skipped after the last batch, and so leave a gap.
        assert expected.shown_offset <= log.next_offset <= expected.next_offset + 50
        assert log.first_offset == min(expected.records, default=log.next_offset)
    assert dict(storage.table("rows").items()) == model.rows


class Scenario:
    """Random operations on a storage and on its model, batch by batch."""

    def __init__(self, seed: int, host: Host, model: Model | None = None) -> None:
        self.random = random.Random(seed)
        self.host = host
        self.model = Model() if model is None else model
        self.start = host.disk.copy()
        #: what each batch leaves; the first is the one that a start writes
        self.states = {host.storage.durable: copy.deepcopy(self.model)}
        #: (operations done, newest batch acknowledged by then)
        self.acknowledged = [(0, host.storage.durable)]
        self._first_operation = len(host.disk.operations)
        self._waiter = Recorder()
        if model is None:
            host.storage.table("rows")

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._change()
            if self.random.random() < 0.4:
                self.turn()
            if self.random.random() < 0.4:
                self.host.step_one(self.random)
                self._note_acknowledged()
            if self.random.random() < 0.1:
                self._load(self.random.choice(LOGS))
        while self.host.storage.durable < self.host.storage.write_batch - 1:
            self.host.step()
            self._note_acknowledged()

    def _load(self, name: str) -> None:
        """Ask for records from somewhere on; they arrive in a later step."""
        self._log(name)
        log = self.host.storage.log(name)
        offset = self.random.randint(0, log.next_offset)
        if not log.is_loaded(offset):
            log.load(offset, self.random.choice((1, 1000)), lambda: None)

    def turn(self) -> None:
        storage = self.host.storage
        batch = storage.write_batch
        storage.wait(self._waiter)
        storage.commit()
        if storage.write_batch != batch:
            self.states[batch] = copy.deepcopy(self.model)

    def _note_acknowledged(self) -> None:
        if self._waiter.write_batches and self._waiter.write_batches[-1] > self.acknowledged[-1][1]:
            done = len(self.host.disk.operations) - self._first_operation
            self.acknowledged.append((done, self._waiter.write_batches[-1]))

    def acknowledged_after(self, operations: int) -> int:
        return max(batch for done, batch in self.acknowledged if done <= operations)

    def disks(self) -> Iterator[tuple[int, SimulatedDisk]]:
        """The disk before and after each operation, as a process kill leaves it."""
        disk = self.start.copy()
        operations = self.host.disk.operations[self._first_operation :]
        yield 0, disk.copy()
        for done, operation in enumerate(operations):
            if operation.kind == "write" and len(operation.data) > 1:
                yield done, disk.torn(operation, len(operation.data) // 2)
                yield done, disk.torn(operation, len(operation.data) - 1)
            disk.apply(operation)
            yield done + 1, disk.copy()

    def _change(self) -> None:
        choice = self.random.random()
        name = self.random.choice(LOGS)
        if choice < 0.32:
            self._append()
        elif choice < 0.4:
            self._append_run(name)
        elif choice < 0.45:
            count = self.random.randint(1, 5)
            self._log(name).next_offset += count
            self.host.storage.log(name).skip(count)
        elif choice < 0.6:
            first = self.random.randint(0, self._log(name).next_offset)
            last = first + self.random.choice((0, 0, 3, 100))
            self.host.storage.log(name).remove(first, last)
            kept = self._log(name).records
            self._log(name).records = {
                at: each for at, each in kept.items() if not first <= at <= last
            }
        elif choice < 0.65:
            before = self.random.randint(0, self._log(name).next_offset + 2)
            self.host.storage.log(name).truncate(before)
            kept = self._log(name).records
            self._log(name).records = {at: each for at, each in kept.items() if each[0] > before}
        elif choice < 0.7:
            self.host.storage.drop_log(name)
            self.model.logs.pop(name, None)
        elif choice < 0.9:
            key = self.random.choice(KEYS)
            value = self.random.randbytes(self.random.randint(0, 20))
            self.host.storage.table("rows").put(key, value)
            self.model.rows[key] = value
        else:
            key = self.random.choice(KEYS)
            self.host.storage.table("rows").delete(key)
            self.model.rows.pop(key, None)

    def _append(self) -> None:
        record = self.random.randbytes(self.random.choice((0, 5, 30, 300)))
        for name in self.random.sample(LOGS, self.random.randint(1, 3)):
            count = self.random.choice((1, 1, 4))
            annotation = self.random.choice((b"", b"", b"note of " + name.encode()))
            log = self._log(name)
            offset = self.host.storage.log(name).append(record, count, annotation)
            assert offset == log.next_offset
            log.next_offset = log.shown_offset = offset + count
            log.records[offset] = (log.next_offset, record, annotation)

    def _append_run(self, name: str) -> None:
        size = self.random.choice((0, 5, 300))
        records = [self.random.randbytes(size) for _ in range(self.random.choice((1, 3, 40)))]
        log = self._log(name)
        offset = self.host.storage.log(name).append_run(records)
        assert offset == log.next_offset
        for record in records:
            log.next_offset = log.shown_offset = offset + 1
            log.records[offset] = (offset + 1, record, b"")
            offset += 1

    def _log(self, name: str) -> ModelLog:
        self.host.storage.log(name)
        return self.model.logs.setdefault(name, ModelLog())


def assert_recovers(
    disk: SimulatedDisk, states: dict[int, Model], at_least: int, checkpoint_size: int = 1 << 30
) -> Host:
    """Open a storage on what a crash left; it must hold one whole batch's state, new enough."""
    host = Host(disk, seed=1 + len(disk.inodes), checkpoint_size=checkpoint_size)
    found = host.storage.durable - 1
    assert found >= at_least
    assert not host.storage.was_clean or found == min(states)
    assert_equal(host, states[found])
    for name in host.storage.log_names():
        log = host.storage.log(name)
        assert log.recovered_offset == (0 if host.storage.was_clean else log.next_offset)
    return host


class Recoveries:
    """Storages opened on what crashes left. Many crashes leave the same; it is opened once."""

    def __init__(self, states: dict[int, Model]) -> None:
        self._states = states
        self._found: dict[frozenset[tuple[str, bytes]], int] = {}

    def check(self, disk: SimulatedDisk, at_least: int) -> None:
        """As ``assert_recovers``, which the disk is not for any more."""
        contents = disk.contents()
        if contents not in self._found:
            host = assert_recovers(disk, self._states, at_least)
            self._found[contents] = host.storage.durable - 1
        assert self._found[contents] >= at_least
