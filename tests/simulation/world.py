"""A whole broker, the core and three adapters, on a simulated disk and clock, driven step by step.

Nothing here waits and nothing runs by itself: a test feeds connections, ends turns and lets the
disk do one piece of work at a time, so a run depends on nothing but its seed.
"""

from __future__ import annotations

import errno
import random

import trivium_amqp
from tests.support.server import Server
from tests.support.simulated import SYNCS, Host, Operation, SimulatedDisk
from trivium.runtime.adapter import Adapter
from trivium.storage.files.encryption import Keys
from trivium_mqtt.mqtt_adapter import MqttAdapter
from trivium_mqtt.options import MqttOptions
from trivium_native.server.adapter import NativeAdapter

START_MS = 1_800_000_000_000

#: Small, so that files are changed, segments written and backlogs read back all the time.
JOURNAL_FILE_SIZE = 4096
CHECKPOINT_SIZE = 8192
CHECKPOINT_ROWS = 10
MEMORY_SIZE = 2048


class Crash(BaseException):
    """The process dies here. Not an Exception: nothing in the broker may catch it."""


class Faults:
    """What goes wrong with a disk, decided before each of its operations."""

    def __init__(self, disk: SimulatedDisk, random_: random.Random) -> None:
        self.disk = disk
        #: operations until the process dies; -1 for never
        self.dies_in = -1
        #: whether every sync fails from now on
        self.sync_fails = False
        self._random = random_
        disk.before = self.before

    def before(self, operation: Operation) -> None:
        if self.dies_in == 0:
            if operation.kind == "write" and len(operation.data) > 1:
                size = self._random.randint(0, len(operation.data))
                self.disk.apply(
                    Operation(
                        "write",
                        file=operation.file,
                        position=operation.position,
                        data=operation.data[:size],
                    )
                )
            raise Crash
        if self.dies_in > 0:
            self.dies_in -= 1
        if self.sync_fails and operation.kind in (*SYNCS, "sync_directory"):
            raise OSError(errno.EIO, "input/output error")


class World(Server):
    """A broker that has just started. Opening raises StorageError, and Crash as planned."""

    def __init__(
        self,
        disk: SimulatedDisk,
        seed: int,
        now_ms: int,
        keys: Keys | None = None,
        compression: str = "none",
        fsync: str = "always",
    ) -> None:
        host = Host(
            disk,
            seed=seed,
            journal_file_size=JOURNAL_FILE_SIZE,
            checkpoint_size=CHECKPOINT_SIZE,
            checkpoint_rows=CHECKPOINT_ROWS,
            memory_size=MEMORY_SIZE,
            keys=keys,
            compression=compression,
            fsync=fsync,
        )
        #: the newest write batch that the start found; it has written one of its own since
        self.recovered_write_batch = host.storage.durable - 1
        #: the write batch with what the broker does as it starts
        self.first_write_batch = host.storage.write_batch
        super().__init__(None, None, now_ms, host)

    def make_adapters(self) -> list[Adapter]:
        return [MqttAdapter(MqttOptions()), trivium_amqp.adapter(), NativeAdapter()]

    def after_input(self) -> None:
        """The simulation ends turns when it likes."""

    def pass_time(self, milliseconds: int) -> None:
        """Time passes. Timers that are due run at the end of the turn."""
        self.broker.now_ms += milliseconds
        self.host.executor.clock += milliseconds / 1000
        self.broker.tick(self.broker.elapsed_ms / 1000)

    def step(self, random_: random.Random) -> None:
        """One worker of the disk does one piece of work. Raises Crash as planned."""
        self.host.step_one(random_)
