"""A whole broker, the core and three adapters, on a simulated disk and clock, driven step by step.

Nothing here waits and nothing runs by itself: a test feeds connections, ends turns and lets the
disk do one piece of work at a time, so a run depends on nothing but its seed.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import trivium_amqp
from tests.support.simulated import SYNCS, Host, Operation, SimulatedDisk
from trivium.config import Config, Listen, StorageConfig
from trivium.runtime.adapter import Connection, Peer
from trivium.runtime.broker import Broker, Driver
from trivium.storage.encryption import Keys
from trivium_mqtt.mqtt_adapter import MqttAdapter
from trivium_mqtt.options import MqttOptions
from trivium_native.server.adapter import NativeAdapter

START_MS = 1_800_000_000_000

#: Small, so that files are changed, segments written and backlogs read back all the time.
JOURNAL_FILE_SIZE = 4096
CHECKPOINT_SIZE = 8192
CHECKPOINT_ROWS = 10
MEMORY_SIZE = 2048

#: Steps after which a broker that still has something to do is stuck.
MAX_STEPS = 10_000


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


class Wire:
    """One client's end of a connection, and the connection's transport."""

    def __init__(self, world: World, protocol: str) -> None:
        self.world = world
        self.written = bytearray()
        self.is_closed = False
        adapter = world.broker.adapters[protocol]
        self.connection = adapter.connect(self, Peer("127.0.0.1:1", True))
        world.broker.connections.add(self.connection)

    def pause_reading(self) -> None:
        """See ``Transport``. What is sent meanwhile would wait in the socket."""

    def resume_reading(self) -> None:
        """See ``Transport``."""

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def unsent(self) -> int:
        return 0

    def feed(self, data: bytes) -> None:
        """Bytes arrive; the turn goes on."""
        if not self.connection.is_closed:
            self.connection.feed(data)

    def take(self) -> bytes:
        """What the broker has written since the last look."""
        data = bytes(self.written)
        self.written.clear()
        return data

    def lose(self) -> None:
        """The network fails."""
        self.is_closed = True
        self.connection.is_closed = True
        self.world.broker.connections.discard(self.connection)
        self.connection.lost()


class World(Driver):
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
        self.is_requested = False
        self.host = Host(
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
        self._wakes = 0
        self.storage = self.host.storage
        #: the newest batch that the start found; it has written one of its own since
        self.recovered_batch = self.storage.durable - 1
        #: the batch with what the broker does as it starts
        self.first_batch = self.storage.batch
        self.broker = Broker(
            Config(listen={"mqtt": Listen(0)}, storage=StorageConfig(mode="memory"))
        )
        self.broker.now_ms = now_ms
        self._seconds = 0.0
        self.broker.open(
            self.storage,
            self,
            [MqttAdapter(MqttOptions()), trivium_amqp.adapter(), NativeAdapter()],
        )

    def request_turn(self) -> None:
        self.is_requested = True

    def write(self, connection: Connection, output: list[bytes]) -> None:
        if output:
            wire = connection.transport
            assert isinstance(wire, Wire)
            wire.written += b"".join(output)
            if connection.is_writable and not connection.is_closed:
                connection.flushed()

    def run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        done(work())

    @property
    def wants_turn(self) -> bool:
        """Whether something asked for the end of a turn."""
        return self.is_requested or self.host.wakes > self._wakes

    @property
    def has_failed(self) -> bool:
        """Whether the storage gave up, and with it the broker."""
        return bool(self.host.errors)

    def end_turn(self) -> None:
        self.is_requested = False
        self._wakes = self.host.wakes
        self.broker.end_turn()

    def advance(self, milliseconds: int) -> None:
        """Time passes. Timers that are due run at the end of the turn."""
        self.broker.now_ms += milliseconds
        self._seconds += milliseconds / 1000
        self.host.executor.clock += milliseconds / 1000
        self.broker.tick(self._seconds)

    def step(self, random_: random.Random) -> None:
        """One lane of the disk does one piece of work. Raises Crash as planned."""
        self.host.step_one(random_)

    def settle(self) -> None:
        """Turns and work until everything is durable and nobody has anything to do."""
        for _ in range(MAX_STEPS):
            self.end_turn()
            is_idle = not any(lane.queue for lane in self.host.executor.lanes.values())
            if self.has_failed or (is_idle and not self.host.calls and not self.wants_turn):
                return
            self.host.step()
        raise AssertionError("the broker does not come to rest")
