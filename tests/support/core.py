"""A broker without sockets, for tests of the core."""

from __future__ import annotations

from collections.abc import Callable

from trivium.messages.message import AT_LEAST_ONCE, PROTOCOL_NONE, Address, Message
from trivium.queues.lanes import QueueEntry
from trivium.queues.namespace import QueueNamespace
from trivium.queues.queue import Consumer, Queue
from trivium.runtime.adapter import Connection
from trivium.runtime.broker import MAX_PENDING_BYTES, Broker, Driver
from trivium.storage.base import Storage
from trivium.storage.memory import MemoryStorage
from trivium.vhost.virtual_host import VirtualHost

#: Milliseconds by which the wall clock is ahead of the other one, so that a time by one of them is
#: far from any by the other.
CLOCK_OFFSET = 1_000_000_000_000


class ManualDriver(Driver):
    """Counts requested turns; the test ends them."""

    def __init__(self) -> None:
        self.requests = 0

    def request_turn(self) -> None:
        self.requests += 1

    def write(self, connection: Connection, output: list[bytes]) -> None:
        raise AssertionError("no connections in this test")

    def run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        done(work())


class RecordingConsumer(Consumer):
    """Keeps what it gets; takes up to ``credit`` entries."""

    def __init__(self, credit: int = 1_000_000, priority: int = 0, no_ack: bool = False) -> None:
        self.credit = credit
        self.priority = priority
        self.settles_on_delivery = no_ack
        self.entries: list[QueueEntry] = []
        self.was_cancelled = False

    def takes_delivery(self) -> bool:
        return self.credit > 0

    def deliver(self, entry: QueueEntry) -> None:
        self.credit -= 1
        self.entries.append(entry)

    def cancelled(self) -> None:
        self.was_cancelled = True

    @property
    def payloads(self) -> list[bytes]:
        return [entry.message.payload for entry in self.entries]


class BehindStorage(MemoryStorage):
    """Too much waits for the disk, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_behind = False

    @property
    def pending_bytes(self) -> int:
        return MAX_PENDING_BYTES + 1 if self.is_behind else 0


def open_broker(storage: Storage | None = None) -> Broker:
    broker = Broker()
    broker.clock_offset = CLOCK_OFFSET
    broker.open(MemoryStorage() if storage is None else storage, ManualDriver(), [])
    return broker


def move_to(broker: Broker, at: int) -> None:
    """Let time pass until ``at``, as ``Broker.next_at`` has it; none if that is past."""
    broker.now_ms += max(at - broker.elapsed_ms, 0)


def open_vhost(storage: Storage | None = None) -> VirtualHost:
    return open_broker(storage).vhosts["/"]


def message(
    payload: bytes = b"",
    key: bytes = b"k",
    exchange: str = "",
    persistent: bool = True,
    mode: int = AT_LEAST_ONCE,
    expires: int = 0,
) -> Message:
    return Message(
        PROTOCOL_NONE,
        Address(exchange, key),
        b"",
        payload,
        mode,
        persistent,
        timestamp=1_700_000_000_000,
        expires=expires,
    )


def drain(queue: Queue) -> list[bytes]:
    """Take and settle everything that is ready."""
    payloads: list[bytes] = []
    while (entry := queue.get()) is not None:
        payloads.append(entry.message.payload)
        queue.settle(entry)
    return payloads


def broker_of(vhost: QueueNamespace) -> Broker:
    """The broker that a virtual host is in."""
    broker = vhost.broker
    assert isinstance(broker, Broker)
    return broker
