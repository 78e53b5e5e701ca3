"""Queues, streams and groups of the core against a few-line model, rule by rule, with restarts."""

from __future__ import annotations

from zlib import crc32

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.support.core import message, open_broker
from tests.support.simulated import Host
from trivium.queues.queue import Queue
from trivium.queues.sub_queues import QueueEntry
from trivium.runtime.broker import Broker
from trivium.storage.memory import MemoryStorage
from trivium.streams.records import PAYLOAD, RecordBatch
from trivium.vhost.virtual_host import VirtualHost

PARTITIONS = 2
GROUPS = st.sampled_from(["g", "h"])


class Machine(RuleBasedStateMachine):
    """On memory. ``ready``, ``held`` and the rest are the model; payloads are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.ready: list[int] = []
        self.held: dict[int, QueueEntry] = {}
        self.transient: set[int] = set()
        self.records: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.committed: dict[tuple[str, int], int] = {}
        self.broker: Broker

    @initialize()
    def start(self) -> None:
        self.open()
        self.vhost.declare_queue("q", durable=True)
        self.vhost.declare_stream("s", PARTITIONS)

    def open(self) -> None:
        self.broker = open_broker(MemoryStorage())

    def settle(self) -> None:
        """End the turn; make it durable."""
        self.broker.end_turn()

    @property
    def vhost(self) -> VirtualHost:
        return self.broker.vhosts["/"]

    @property
    def queue(self) -> Queue:
        return self.vhost.queues["q"]

    def take(self) -> QueueEntry | None:
        """The next entry of the queue, read back from disk where it must be."""
        return self.queue.get()

    # Queues

    @rule(persistent=st.booleans())
    def publish(self, persistent: bool) -> None:
        self.number += 1
        if not persistent:
            self.transient.add(self.number)
        self.queue.accept(message(b"%d" % self.number, persistent=persistent))
        self.ready.append(self.number)

    @rule()
    def get(self) -> None:
        entry = self.take()
        if not self.ready:
            assert entry is None
            return
        assert entry is not None
        number = int(entry.message.payload)
        assert number == self.ready.pop(0)
        self.held[number] = entry

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        self.queue.settle(self.held.pop(number))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        self.queue.requeue(self.held.pop(number))
        self.ready = sorted([*self.ready, number])

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.ready)
        self.ready.clear()

    # Streams and groups

    @rule(key=st.sampled_from([b"a", b"b", b"c"]), count=st.integers(1, 3))
    def append(self, key: bytes, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.records[crc32(key) % PARTITIONS].append(self.number)
            payload = b"%d" % self.number
            self.vhost.streams["s"].accept(message(payload, key, "amq.topic"))
        self.settle()

    @rule(group=GROUPS, index=st.integers(0, PARTITIONS - 1), data=st.data())
    def commit(self, group: str, index: int, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.records[index])))
        self.vhost.groups.commit(group, self.vhost.streams["s"], [(index, offset)])
        self.committed[group, index] = offset

    def read(self, index: int, offset: int) -> list[tuple[int, bytes]]:
        return self.vhost.streams["s"].partitions[index].read(offset, 1 << 20)

    @rule(index=st.integers(0, PARTITIONS - 1), data=st.data())
    def fetch(self, index: int, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.records[index])))
        self.settle()
        for base, raw in self.read(index, offset):
            batch = RecordBatch(raw)
            numbers = [int(batch.binary(PAYLOAD, row) or b"") for row in range(batch.count)]
            assert numbers == self.records[index][base : base + len(numbers)]
            assert base + len(numbers) > offset
            offset = base + len(numbers)
        assert offset == len(self.records[index])

    @invariant()
    def counts_and_offsets_agree(self) -> None:
        if hasattr(self, "broker"):
            assert len(self.queue) == len(self.ready)
            assert self.queue.unsettled == len(self.held)
            for group in ("g", "h"):
                expected = {at: n for (name, at), n in self.committed.items() if name == group}
                assert self.vhost.groups.committed(group, self.vhost.streams["s"]) == expected


class DiskMachine(Machine):
    """On a simulated disk that is read back from all the time, with restarts in between."""

    def open(self) -> None:
        self.host = Host(checkpoint_size=2000, memory_size=1000)
        self.broker = open_broker(self.host.storage)

    def settle(self) -> None:
        self.broker.end_turn()
        self.host.commit()
        self.broker.end_turn()

    def take(self) -> QueueEntry | None:
        for _ in range(100):
            entry = super().take()
            if entry is not None or not self.queue.ready.is_loading:
                return entry
            self.host.step()
        raise AssertionError("nothing is read back")

    def read(self, index: int, offset: int) -> list[tuple[int, bytes]]:
        partition = self.vhost.streams["s"].partitions[index]
        found: list[tuple[int, bytes]] = []
        while True:
            while not partition.is_loaded(offset):
                partition.load(offset, 1 << 20, lambda: None)
                self.host.step()
            batches = partition.read(offset, 1 << 20)
            if not batches:
                return found
            found += batches
            offset = batches[-1][0] + RecordBatch(batches[-1][1]).count

    @rule(is_clean=st.booleans(), cuts_power=st.booleans())
    def restart(self, is_clean: bool, cuts_power: bool) -> None:
        self.settle()
        if is_clean:
            self.host.storage.close()
        disk = self.host.disk.power_cut(None) if cuts_power else self.host.disk.copy()
        self.host = Host(disk, seed=self.number, checkpoint_size=2000, memory_size=1000)
        self.broker = open_broker(self.host.storage)
        # What was held is ready again; what is in memory only is gone.
        self.ready = [n for n in sorted([*self.ready, *self.held]) if n not in self.transient]
        self.held.clear()
        self.settle()


TestMemory = Machine.TestCase
TestMemory.settings = settings(max_examples=100, stateful_step_count=60)
TestDisk = DiskMachine.TestCase
TestDisk.settings = settings(max_examples=100, stateful_step_count=60)
