"""A broker whose sockets, clock and disk are the test's: nothing waits, and nothing runs by itself.

``Server`` and ``Client`` are what the tests of all protocols and the simulation share. The modules
``amqp``, ``mqtt`` and ``native`` beside this one add what clients of their protocol say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from tests.support.simulated import Host
from tests.support.storages import HeldStorage
from trivium.common.pieces import Piece
from trivium.config import Config, Listen, ListenerConfig, StorageConfig
from trivium.runtime.adapter import Adapter, Connection, Listener, Peer
from trivium.runtime.broker import Broker, Driver
from trivium.storage.base import Storage
from trivium.storage.memory import MemoryStorage
from trivium.vhost.virtual_host import VirtualHost

#: The wall clock when a broker starts.
NOW_MS = 1_800_000_000_000
#: Milliseconds by which the wall clock is ahead of the other one, so that a time by one of them is
#: far from any by the other.
CLOCK_OFFSET = 1_000_000_000_000
#: Ticks, a second apart in fact, that are left of a longer time.
MAX_TICKS = 100
#: Turns after which a broker that still has something to do is stuck.
MAX_TURNS = 10_000
#: Where clients come in of whom no configuration says where.
LISTENER = Listener(ListenerConfig(protocol="none", address="127.0.0.1:0", name="none"))


class Transport:
    """Records what a connection asks of its socket."""

    def __init__(self) -> None:
        #: what the broker wrote and the test has not taken
        self.written = bytearray()
        self.calls: list[str] = []
        self.is_paused = False
        #: closed, by ``close`` or by ``abort``
        self.is_closed = False
        self.is_aborted = False
        #: bytes that the socket holds
        self.waiting = 0

    def wrote(self, connection: Connection, data: bytes) -> None:
        """What a turn wrote; protocols check here that it is well-formed."""
        self.written += data

    def pause_reading(self) -> None:
        self.is_paused = True
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.is_paused = False
        self.calls.append("resume_reading")

    def close(self, waits: bool = True) -> None:
        self.is_closed = True
        self.calls.append("close" if waits else "cut")

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True
        self.calls.append("abort")

    def unsent(self) -> int:
        return self.waiting


class RecordingDriver(Driver):
    """Counts the turns that are asked for; the test ends them. Output goes to the transports."""

    def __init__(self) -> None:
        self.requests = 0
        #: each time that a turn was asked for (see ``Driver.wake_at``)
        self.wakes: list[int] = []
        #: whether work for the thread pool waits in ``blocking`` until the test calls it
        self.is_pool_busy = False
        self.blocking: list[Callable[[], None]] = []
        #: who goes on in the next turn
        self.next: list[Connection] = []
        #: what is done in the next turn
        self.soon: list[Callable[[], None]] = []

    def next_turn(self, connection: Connection) -> None:
        self.next.append(connection)

    def call_soon(self, work: Callable[[], None]) -> None:
        self.soon.append(work)

    def begin_turn(self) -> None:
        """Have go on who asked for it."""
        going_on, self.next = self.next, []
        for connection in going_on:
            self.requests += 1
            connection.next_turn()

    def request_turn(self) -> None:
        self.requests += 1

    def wake_at(self, at: int) -> None:
        self.wakes.append(at)

    def write(self, connection: Connection, output: list[Piece]) -> None:
        if output:
            transport = connection.transport
            assert isinstance(transport, Transport)
            transport.wrote(connection, b"".join(output))
            if connection.is_writable and not connection.is_closed:
                connection.flushed()

    def run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        if self.is_pool_busy:
            self.blocking.append(lambda: done(work()))
        else:
            done(work())


def move_to(broker: Broker, at: int) -> None:
    """Let time pass until ``at``, as ``Broker.next_at`` has it; none if that is past."""
    broker.now_ms += max(at - broker.elapsed_ms, 0)


class ShortTurns(RecordingDriver):
    """A turn is long from its begin on. Who goes on does so when the test says it."""

    def begin_turn(self) -> None:
        pass

    def is_turn_long(self) -> bool:
        return True


class Server:
    """A broker that has just started: in memory, with the storage given, or on a host's disk."""

    def __init__(
        self,
        storage: Storage | None = None,
        config: Config | None = None,
        now_ms: int = NOW_MS,
        host: Host | None = None,
    ) -> None:
        self._host = host
        self.storage = host.storage if host is not None else storage or MemoryStorage()
        self._wakes = 0
        self.driver = RecordingDriver()
        self.config = config or Config(
            listen={"mqtt": Listen(0)}, storage=StorageConfig(mode="memory")
        )
        self.broker = Broker(self.config)
        self.broker.now_ms = now_ms
        self.broker.clock_offset = CLOCK_OFFSET
        self.broker.open(self.storage, self.driver, self.make_adapters())

    def make_adapters(self) -> list[Adapter]:
        """The protocols that it speaks."""
        return []

    def listener(self, protocol: str) -> Listener:
        """The first that the configuration has for a protocol."""
        for config in self.config.all_listeners():
            if config.protocol == protocol:
                return Listener(config)
        return LISTENER

    @property
    def host(self) -> Host:
        """The process and disk of a broker that has them."""
        assert self._host is not None
        return self._host

    @property
    def adapter(self) -> Adapter:
        """That of the protocol, where it is one."""
        (adapter,) = self.broker.adapters.values()
        return adapter

    @property
    def vhost(self) -> VirtualHost:
        return self.broker.vhosts["/"]

    # Turns

    def after_input(self) -> None:
        """A client has sent something or is gone: the turn in which that was read ends."""
        self.settle()

    @property
    def has_failed(self) -> bool:
        """Whether the storage gave up, and with it the broker."""
        return self._host is not None and bool(self._host.errors)

    @property
    def wants_turn(self) -> bool:
        """Whether something asked for the end of a turn."""
        has_woken = self._host is not None and self._host.wakes > self._wakes
        return self.driver.requests > 0 or has_woken

    def end_turn(self) -> None:
        self.driver.requests = 0
        if self._host is not None:
            self._wakes = self._host.wakes
        self.broker.end_turn()

    def settle(self) -> None:
        """End the turn, and those that are asked for."""
        for _ in range(MAX_TURNS):
            self.end_turn()
            self.driver.begin_turn()
            if self.has_failed or not self.wants_turn:
                return
        raise AssertionError("there is no end of turns")

    # Time

    def advance(self, seconds: float) -> None:
        """Let time pass, with a turn whenever one is due, and with ticks."""
        broker = self.broker
        end = broker.elapsed_ms + round(seconds * 1000)
        interval = max(1000, (end - broker.elapsed_ms) // MAX_TICKS)
        tick_at = broker.elapsed_ms + interval
        for _ in range(MAX_TURNS):
            at = min(broker.next_at() or end, tick_at, end)
            move_to(broker, at)
            if at == tick_at:
                broker.tick(at / 1000)
                tick_at += interval
            self.settle()
            if at == end and not 0 < broker.next_at() <= end:
                return
        raise AssertionError("there is no end of what is due")

    def step_clock(self, seconds: float) -> None:
        """Somebody sets the wall clock, which the turn of each second notices."""
        broker = self.broker
        broker.now_ms += round(seconds * 1000)
        broker.clock_offset += round(seconds * 1000)
        broker.tick(broker.elapsed_ms / 1000)
        self.settle()

    # Disk

    def sync(self) -> None:
        """Let the disk work, and end turns, until all is durable and nobody has anything to do."""
        if isinstance(self.storage, HeldStorage):
            self.storage.complete()
        self.settle()
        for _ in range(MAX_TURNS):
            if self._host is None or self._host.is_idle or self.has_failed:
                return
            self._host.step()
            self.settle()
        raise AssertionError("the disk does not come to rest")

    def crash(self, seconds: float = 0) -> Self:
        """The power fails; another broker starts on what was synced, ``seconds`` later."""
        return self._again(seconds)

    def restart(self, seconds: float = 0) -> Self:
        """A clean stop, and another start."""
        for connection in list(self.broker.connections):
            if not connection.is_closed:
                connection.shutdown()
            connection.lost()
        self.sync()
        self.host.storage.close()
        return self._again(seconds)

    def _again(self, seconds: float) -> Self:
        now_ms = self.broker.now_ms + round(seconds * 1000)
        host = Host(self.host.disk.power_cut(None))
        server = type(self)(None, self.config, now_ms, host)
        server.sync()
        return server


class Client:
    """One client's end of a connection."""

    def __init__(
        self,
        server: Server,
        protocol: str,
        is_loopback: bool = True,
        transport: Transport | None = None,
    ) -> None:
        self.transport = transport or Transport()
        self.server = server
        peer = Peer("127.0.0.1:1", is_loopback, server.listener(protocol))
        self.connection = server.broker.adapters[protocol].connect(self.transport, peer)
        server.broker.add_connection(self.connection)

    @property
    def is_closed(self) -> bool:
        """Whether the broker has closed it."""
        return self.transport.is_closed

    def feed(self, *pieces: bytes) -> None:
        """Bytes arrive in one turn, as they are cut."""
        for data in pieces:
            if not self.connection.is_closed:
                self.server.broker.events.serving = self.connection
                self.connection.feed(data)
        self.server.broker.events.serving = None
        self.server.after_input()

    def take_bytes(self) -> bytes:
        """What the broker has written since the last look."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return data

    def end(self) -> None:
        """It sends no more, but reads on."""
        self.connection.close()
        self.server.after_input()

    def lose(self) -> None:
        """The network fails."""
        self.connection.is_closed = True
        self.server.broker.remove_connection(self.connection)
        self.connection.lost()
        self.server.after_input()
