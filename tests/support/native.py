"""A broker and native connections without sockets; frames are written and read by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack

from tests.support.core import CLOCK_OFFSET
from trivium.config import Config
from trivium.runtime.adapter import Connection, Peer
from trivium.runtime.broker import Broker, Driver
from trivium.storage.base import DurabilityWaiter, Log, Storage
from trivium.storage.memory import MemoryStorage
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.adapter import NativeAdapter
from trivium_native.server.connection import NativeConnection
from trivium_native.wire import frames

Received = tuple[int, int, bytes]


class LateStorage(MemoryStorage):
    """Batches become durable when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_durable = True
        self.batch = 1
        self._waiters: list[DurabilityWaiter] = []

    def wait(self, waiter: DurabilityWaiter) -> int:
        self._waiters.append(waiter)
        return self.batch

    def commit(self) -> None:
        self.batch += 1

    def sync(self) -> None:
        self.durable = self.batch - 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.batch_durable(self.durable)


class ManualDriver(Driver):
    """The test ends the turns; work for the thread pool waits until it says so."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.is_pool_busy = False
        self.wake = 0

    def write(self, connection: Connection, output: list[bytes]) -> None:
        transport = connection.transport
        assert isinstance(transport, Wire)
        transport.received += b"".join(output)
        if connection.is_writable and not connection.is_closed:
            connection.flushed()

    def wake_at(self, at: int) -> None:
        self.wake = at

    def run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        if self.is_pool_busy:
            self.work.append(lambda: done(work()))
        else:
            done(work())


class Wire:
    """One client's end, and the connection's transport."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.received = b""
        self.is_reading = True
        self.is_closed = False
        #: bytes that the socket holds
        self.waiting = 0
        connection = site.adapter.connect(self, Peer("127.0.0.1:5", True))
        assert isinstance(connection, NativeConnection)
        self.connection = connection
        site.broker.connections.add(self.connection)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def unsent(self) -> int:
        return self.waiting

    def feed(self, data: bytes) -> None:
        """Bytes arrive in a turn of their own."""
        if not self.connection.is_closed:
            self.connection.feed(data)
        self.site.turn()

    def take(self) -> list[Received]:
        """The frames that came since the last time, cut without the code under test."""
        data, self.received = self.received, b""
        found: list[Received] = []
        while data:
            length, kind, correlation = struct.unpack_from("<IBQ", data)
            found.append((kind, correlation, data[13 : 4 + length]))
            data = data[4 + length :]
        return found

    def send(self, kind: int, correlation: int, body: bytes | dict[str, Any]) -> list[Received]:
        """Send one frame; what came back by the end of its turn."""
        raw = msgpack.packb(body) if isinstance(body, dict) else body
        self.feed(struct.pack("<IBQ", 9 + len(raw), kind, correlation) + raw)
        return self.take()

    def ask(self, kind: int, /, **fields: Any) -> dict[str, Any]:
        """A request that must succeed at once; the fields of its reply."""
        ((reply, correlation, body),) = self.send(kind, 77, fields)
        assert (reply, correlation) == (frames.OK, 77), msgpack.unpackb(body)
        found: dict[str, Any] = msgpack.unpackb(body)
        return found

    def refused(self, kind: int, /, **fields: Any) -> int:
        """A request that must be refused at once; the code."""
        ((reply, correlation, body),) = self.send(kind, 78, fields)
        assert (reply, correlation) == (frames.ERROR, 78)
        code: int = msgpack.unpackb(body)[0]
        return code

    def lose(self) -> None:
        """The connection breaks."""
        self.connection.is_closed = True
        self.site.broker.connections.discard(self.connection)
        self.connection.lost()
        self.site.turn()


class Site:
    """A broker with the native adapter."""

    def __init__(self, storage: Storage | None = None, config: Config | None = None) -> None:
        self.driver = ManualDriver()
        self.adapter = NativeAdapter()
        self.broker = Broker(config)
        self.storage = MemoryStorage() if storage is None else storage
        self.broker.open(self.storage, self.driver, [self.adapter])
        self.broker.now_ms = 1_700_000_000_000
        self.broker.clock_offset = CLOCK_OFFSET

    @property
    def vhost(self) -> VirtualHost:
        return self.broker.vhosts["/"]

    def turn(self) -> None:
        self.broker.end_turn()

    def advance(self, milliseconds: int) -> None:
        """Time passes; timers that are due run."""
        self.broker.now_ms += milliseconds
        self.turn()

    def pass_seconds(self, seconds: int) -> None:
        """Time passes, with the tick of each second."""
        for _ in range(seconds):
            self.broker.now_ms += 1000
            self.broker.tick(0.0)
        self.turn()

    def sync(self) -> None:
        """Everything so far is on disk."""
        assert isinstance(self.storage, LateStorage)
        self.storage.sync()
        self.turn()

    def greet(self, heartbeat: int = 0) -> Wire:
        """A client that has said HELLO."""
        wire = Wire(self)
        hello = {"protocol": "trivium", "version": 1, "heartbeat": heartbeat}
        ((kind, correlation, _),) = wire.send(frames.HELLO, 1, hello)
        assert (kind, correlation) == (frames.HELLO, 1)
        return wire

    def client(self, heartbeat: int = 0) -> Wire:
        """A client that is in."""
        wire = self.greet(heartbeat)
        assert wire.send(frames.AUTH, 2, {"username": "guest", "password": b"guest"}) == [
            (frames.OK, 2, b"\x80")
        ]
        return wire


def entry(
    payload: bytes = b"x",
    key: bytes = b"k",
    exchange: bytes = b"amq.topic",
    flags: int = 5,
    properties: bytes = b"",
    priority: int = 0,
) -> bytes:
    head = struct.pack(
        "<BBHHHII", flags, priority, len(exchange), len(key), 0, len(properties), len(payload)
    )
    return head + exchange + key + properties + payload


def publish(*entries: bytes, producer: tuple[bytes, int, int] | None = None) -> bytes:
    block = b""
    if producer is not None:
        name, epoch, sequence = producer
        block = struct.pack("<IIQ", len(name), epoch, sequence) + name
    return struct.pack("<II", len(entries), int(producer is not None)) + block + b"".join(entries)


class Delivered:
    """A DELIVER body, read by hand."""

    def __init__(self, body: bytes) -> None:
        (
            self.subscription,
            self.flags,
            self.protocol,
            self.returns,
            self.tag,
            self.timestamp,
            self.lifetime,
        ) = struct.unpack_from("<IBBHQqq", body)
        self.entry = body[32:]
        self.message_flags, self.priority, exchange, key, _, properties, payload = (
            struct.unpack_from("<BBHHHII", body, 32)
        )
        at = 48
        self.exchange = body[at : at + exchange]
        self.key = body[at + exchange : at + exchange + key]
        at += exchange + key
        self.properties = body[at : at + properties]
        self.payload = body[at + properties :]
        assert len(self.payload) == payload


def deliveries(received: list[Received]) -> list[Delivered]:
    return [Delivered(body) for kind, _, body in received if kind == frames.DELIVER]


def payloads(received: list[Received]) -> list[bytes]:
    return [delivered.payload for delivered in deliveries(received)]


def settle(subscription: int, first: int, last: int, flags: int = 0) -> bytes:
    return struct.pack("<IIQQ", subscription, flags, first, last)


class ColdLog(Log):
    """A log of which only what was loaded is in memory, up to the next ``load``."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.first_offset = log.first_offset
        self.next_offset = log.next_offset
        self.loads: list[tuple[int, int]] = []
        self._ready: list[Callable[[], None]] = []
        self._loaded = -1

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        return self._log.read(offset, 1, max_bytes)

    def is_loaded(self, offset: int) -> bool:
        return offset == self._loaded or offset >= self.next_offset

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        self.loads.append((offset, max_bytes))
        self._ready.append(ready)

    def finish_load(self) -> None:
        """The disk has answered, in a turn of its own."""
        self._loaded = self.loads[-1][0]
        self._ready.pop()()
