"""What is not understood stops what it could have damaged: one connection, or the broker."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trivium.runtime.driver
import trivium.runtime.server
from tests.support.core import message
from trivium.common.timers import Timed
from trivium.common.turns import EndOfTurn
from trivium.common.values import HeaderValue
from trivium.config import Config, LimitsConfig, Listen, StorageConfig
from trivium.errors import ConfigError, InternalError
from trivium.observability.http import HttpConnection, HttpServer, Metrics
from trivium.observability.metrics import ProtocolMetrics
from trivium.queues.queue import Queue
from trivium.routing.exchanges import REJECTED
from trivium.runtime.adapter import Adapter, Connection, Peer, Transport
from trivium.runtime.broker import Broker
from trivium.runtime.sockets import Refused, SocketDriver
from trivium.storage.base import DurabilityWaiter
from trivium.storage.checkpoint.checkpoint import Checkpoint

ERROR = MemoryError("no more")


def settle(broker: Broker) -> None:
    queue = broker.vhost("/").queue("q")
    entry = queue.get()
    assert entry is not None
    queue.settle(entry)


def reject(broker: Broker) -> None:
    queue = broker.vhost("/").queue("q")
    entry = queue.get()
    assert entry is not None
    queue.reject(entry)


def purge(broker: Broker) -> None:
    assert broker.vhost("/").queue("q").purge() > 0


def pass_on(broker: Broker) -> None:
    assert broker.vhost("/").queue("full").accept(message()) == REJECTED


def record(broker: Broker) -> None:
    broker.vhost("/").streams["s"].accept(message())


#: what a connection does -> changes that are collected for the end of the turn
COLLECTING: dict[int, Callable[[Broker], None]] = {
    ord("g"): settle,
    ord("j"): reject,
    ord("u"): purge,
    ord("f"): pass_on,
    ord("r"): record,
}


class Faulty(Connection):
    """Answers ``e`` with itself; ``p`` publishes, ``x`` raises, ``a`` and ``w`` ask a thread, ``n``
    goes on in the next turn and ``o`` has the others go on. For others see ``COLLECTING``.
    """

    def __init__(self, adapter: FaultyAdapter, transport: Transport, peer: Peer) -> None:
        super().__init__(adapter.broker, transport, peer)
        self.adapter = adapter

    def feed(self, data: bytes) -> None:
        for byte in data:
            if byte == ord("e"):
                self.send(b"e")
            elif byte == ord("p"):
                self.broker.storage.table("t").put(b"half", b"done")
            elif byte == ord("s"):
                self.broker.add_unflushed(Quiet())
            elif byte == ord("a"):
                self.broker.driver.run_blocking(lambda: True, self.done)
            elif byte == ord("w"):
                self.broker.driver.run_blocking(self.work, self.tell)
            elif byte == ord("n"):
                self.broker.driver.next_turn(self)
            elif byte == ord("o"):
                for connection in self.broker.connections - {self}:
                    self.broker.driver.go_on(connection)
            elif byte in COLLECTING:
                COLLECTING[byte](self.broker)
            else:
                raise ERROR

    def next_turn(self) -> None:
        self.feed(self.adapter.waiting)

    def take_waiting(self) -> None:
        self.feed(self.adapter.waiting)

    @property
    def waits_for_turn(self) -> bool:
        if self.adapter.fails == "waits":
            raise ERROR
        return False

    def work(self) -> bool:
        raise self.adapter.raises

    def tell(self, is_right: bool) -> None:
        self.send(b"%d" % is_right)

    def done(self, is_right: bool) -> None:
        raise ERROR

    def internal_error(self) -> None:
        self.send(b"sorry")
        self.close()

    def tick(self, now: float) -> None:
        if self.adapter.fails == "tick":
            raise ERROR

    def flushed(self) -> None:
        if self.adapter.fails == "flushed":
            raise ERROR

    def lost(self) -> None:
        if self.adapter.fails == "lost":
            raise ERROR

    def shutdown(self, is_revoked: bool = False, deleted_vhost: str = "") -> None:
        if self.adapter.fails == "shutdown":
            raise ERROR
        self.close()

    def write_batch_durable(self, write_batch: int) -> None:
        raise ERROR


class FaultyAdapter(Adapter):
    def __init__(self) -> None:
        self.name = "line"
        self.metrics = ProtocolMetrics()
        #: where ``ERROR`` is raised
        self.fails = ""
        #: what work in a thread raises
        self.raises: BaseException = ERROR
        #: what connections go on with
        self.waiting = b"x"

    def start(self, broker: Broker) -> None:
        self.broker = broker
        if self.fails == "start":
            broker.storage.table("t").put(b"half", b"done")
            raise ERROR

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        if self.fails == "connect":
            raise ERROR
        return Faulty(self, transport, peer)

    def tick(self, now: float) -> None:
        if self.fails == "adapter":
            raise ERROR


class Quiet(EndOfTurn):
    def flush_turn(self) -> None:
        pass


class Raising(EndOfTurn):
    def flush_turn(self) -> None:
        raise ERROR


class Alarm(Timed):
    def due(self) -> None:
        raise ERROR


class Told(DurabilityWaiter):
    """Can be waited for."""

    def __init__(self) -> None:
        self.is_told = asyncio.Event()

    def write_batch_durable(self, write_batch: int) -> None:
        self.is_told.set()


class World:
    """A broker on disk, with the faulty adapter."""

    def __init__(self, directory: Path) -> None:
        self.config = Config(listen={"line": Listen(0)}, storage=StorageConfig(data=directory))
        self.adapter = FaultyAdapter()
        self.broker = Broker(self.config)

    def listen_for_http(self) -> None:
        """By HTTP as well, from its start."""
        self.config = replace(self.config, listen={**self.config.listen, "http": Listen(0)})
        self.broker = Broker(self.config)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.broker.listeners["line"].rpartition(":")
        return await asyncio.open_connection(host, int(port))


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    found = World(tmp_path)
    monkeypatch.setattr(trivium.runtime.server, "load_adapters", lambda *_: [found.adapter])
    strays: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strays.append(context))
    yield found
    # Nothing comes as far as the loop, which would log it and go on.
    assert strays == []


async def assert_stopped(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The broker stops for ``ERROR``, and says so once, with a traceback."""
    found = await asyncio.wait_for(world.broker.wait_failed(), 30)
    assert isinstance(found, InternalError)
    assert found.__cause__ is ERROR
    assert repr(ERROR) in str(found)
    critical = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert len(critical) == 1
    assert "Traceback" in caplog.text
    assert repr(ERROR) in critical[0].getMessage()


async def assert_nothing_half_done(world: World) -> None:
    """The next start finds nothing of the turn in which it happened."""
    world.broker = again = Broker(world.config)
    world.adapter.fails = ""
    async with again:
        assert again.storage.table("t").get(b"half") is None


def in_turn(world: World) -> None:
    """A change, and then an error, within one turn."""
    broker = world.broker
    broker.storage.table("t").put(b"half", b"done")
    broker.add_unflushed(Raising())


def by_timeout(world: World) -> None:
    broker = world.broker
    broker.storage.table("t").put(b"half", b"done")
    broker.timeouts.call_at(1, Alarm())
    broker.driver.request_turn()


def by_date(world: World) -> None:
    broker = world.broker
    broker.storage.table("t").put(b"half", b"done")
    broker.dates.call_at(1, Alarm())
    broker.driver.request_turn()


def later_by_timeout(world: World) -> None:
    """The driver sleeps until then."""
    broker = world.broker
    broker.timeouts.call_at(broker.elapsed_ms + 20, Alarm())
    broker.driver.request_turn()


@pytest.mark.parametrize("cause", [in_turn, by_timeout, by_date, later_by_timeout])
async def test_an_error_at_the_end_of_a_turn_stops_the_broker_without_the_turn(
    world: World, caplog: pytest.LogCaptureFixture, cause: Callable[[World], None]
) -> None:
    async with world.broker:
        cause(world)
        await assert_stopped(world, caplog)
    await assert_nothing_half_done(world)


async def test_an_error_of_who_waits_for_a_write_batch_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.broker as broker:
        reader, writer = await world.connect()
        writer.write(b"e")
        await reader.readexactly(1)
        broker.storage.wait(next(iter(broker.connections)))
        broker.driver.request_turn()
        found = await asyncio.wait_for(broker.wait_failed(), 30)
        assert found.__cause__ is ERROR
        assert "Traceback" in caplog.text
        writer.close()


@pytest.mark.parametrize("where", ["tick", "adapter"])
async def test_an_error_of_the_ticker_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async with world.broker:
        reader, writer = await world.connect()
        writer.write(b"e")
        await reader.readexactly(1)
        world.broker.storage.table("t").put(b"half", b"done")
        world.adapter.fails = where
        server = world.broker.server
        assert server is not None
        server.driver.call(server.tick)
        await assert_stopped(world, caplog)
        writer.close()
    await assert_nothing_half_done(world)


@pytest.mark.pure  # a method of a compiled class cannot be replaced
async def test_an_error_of_the_watcher_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(resident: int, free: int) -> float:
        raise ERROR

    async with world.broker as broker:
        monkeypatch.setattr(broker.alarms, "check", check)
        server = broker.server
        assert server is not None
        server.driver.call(server.watch)
        await assert_stopped(world, caplog)


@pytest.mark.parametrize("where", ["connect", "flushed", "lost", "waits"])
async def test_an_error_at_the_begin_or_end_of_a_connection_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async with world.broker:
        world.adapter.fails = where
        _, writer = await world.connect()
        writer.write(b"e")
        writer.close()
        await assert_stopped(world, caplog)
    await assert_nothing_half_done(world)


async def test_an_error_while_a_socket_is_taken_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        world.broker.storage.table("t").put(b"half", b"done")
        raise ERROR

    async with world.broker:
        monkeypatch.setattr(SocketDriver, "__init__", fail)
        reader, writer = await world.connect()
        await assert_stopped(world, caplog)
        assert await reader.read() == b""
        writer.close()
    monkeypatch.undo()
    monkeypatch.setattr(trivium.runtime.server, "load_adapters", lambda *_: [world.adapter])
    await assert_nothing_half_done(world)


@pytest.mark.parametrize(("kind", "where"), [(HttpServer, "connect"), (HttpConnection, "abort")])
async def test_an_error_in_a_callback_of_http_stops_the_broker(
    world: World,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    where: str,
) -> None:
    def fail(*arguments: object) -> None:
        raise ERROR

    monkeypatch.setattr(kind, where, fail)
    world.config = replace(world.config, limits=LimitsConfig(handshake_seconds=0.01))
    world.listen_for_http()
    async with world.broker as broker:
        host, _, port = broker.listeners["http"].rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        await assert_stopped(world, caplog)
        writer.close()


async def test_an_error_while_a_thread_is_answered_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.broker:
        _, writer = await world.connect()
        writer.write(b"a")
        await assert_stopped(world, caplog)
        writer.close()


async def test_an_error_while_output_goes_on_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.broker as broker:
        reader, writer = await world.connect()
        writer.write(b"e")
        await reader.readexactly(1)
        broker.storage.table("t").put(b"half", b"done")
        world.adapter.fails = "flushed"
        driver = next(iter(broker.connections)).transport
        assert isinstance(driver, SocketDriver)
        driver.pause_writing()
        driver.resume_writing()
        await assert_stopped(world, caplog)
        writer.close()
    await assert_nothing_half_done(world)


async def test_an_error_while_a_socket_is_closed_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def is_closing(self) -> bool:
            return False

        def write_eof(self) -> None:
            raise ERROR

        def abort(self) -> None:
            whole.abort()

    async with world.broker as broker:
        reader, writer = await world.connect()
        writer.write(b"e")
        await reader.readexactly(1)
        connection = next(iter(broker.connections))
        driver = connection.transport
        assert isinstance(driver, SocketDriver)
        whole = driver._transport
        driver._transport = Broken()  # type: ignore[assignment]
        connection.close()
        await assert_stopped(world, caplog)
        writer.close()


async def test_an_error_of_a_start_stops_it_without_what_it_did(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.adapter.fails = "start"
    with pytest.raises(InternalError) as found:
        await world.broker.__aenter__()
    assert found.value.__cause__ is ERROR
    await assert_stopped(world, caplog)
    await assert_nothing_half_done(world)


async def test_a_start_that_explains_its_error_makes_nothing_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(broker: Broker) -> None:
        broker.storage.table("t").put(b"half", b"done")
        broker.driver.request_turn()
        raise ConfigError("as it says")

    async with world.broker as broker:
        broker.storage.table("t").put(b"key", b"whole")
    with monkeypatch.context() as patched:
        patched.setattr(world.adapter, "start", start)
        world.broker = Broker(world.config)
        with pytest.raises(ConfigError, match="as it says"):
            await world.broker.__aenter__()
        # The turn that was asked for is not made any more.
        await asyncio.sleep(0)
    world.broker = again = Broker(world.config)
    async with again:
        assert again.storage.table("t").get(b"key") == b"whole"
        assert again.storage.table("t").get(b"half") is None
        # Nothing was delivered since the clean stop.
        assert again.storage.was_clean


async def test_an_error_that_a_start_explains_is_no_internal_one(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(broker: Broker) -> None:
        raise ConfigError("as it says")

    monkeypatch.setattr(world.adapter, "start", start)
    with pytest.raises(ConfigError, match="as it says"):
        await world.broker.__aenter__()
    assert caplog.records == []


@pytest.mark.parametrize("error", [ERROR, StopIteration(), SystemExit(3)], ids=repr)
async def test_an_error_in_a_thread_that_only_decides_is_a_refusal_and_is_logged(
    world: World, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    world.adapter.raises = error
    async with world.broker:
        reader, writer = await world.connect()
        writer.write(b"w")
        assert await reader.readexactly(1) == b"0"
        assert "Traceback" in caplog.text
        writer.close()


async def test_an_error_while_memory_is_given_back_is_logged_and_it_is_tried_again(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ERROR

    monkeypatch.setattr(trivium.runtime.driver, "release_free_memory", fail)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with world.broker as broker:
        for count in (1, 2):
            broker.driver.release_memory()
            reader, writer = await world.connect()
            # The pool answers in order, and it has one thread.
            writer.write(b"w")
            assert await reader.readexactly(1) == b"0"
            assert caplog.text.count("Traceback") == 2 * count
            writer.close()


async def test_an_error_in_a_feed_that_changed_nothing_costs_that_connection_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.broker:
        reader, writer = await world.connect()
        other_reader, other_writer = await world.connect()
        writer.write(b"ex")
        assert await reader.read() == b"esorry"
        assert "Traceback" in caplog.text
        other_writer.write(b"e")
        assert await other_reader.readexactly(1) == b"e"
        writer.close()
        other_writer.close()


async def test_what_others_have_changed_does_not_count(world: World) -> None:
    async with world.broker as broker:
        reader, writer = await world.connect()
        writer.write(b"e")
        await reader.readexactly(1)
        # In the same turn, and whatever the write batch holds already.
        broker.driver.request_turn()
        broker.storage.table("t").put(b"other", b"done")
        connection = next(iter(broker.connections))
        connection.transport.data_received(b"x")  # type: ignore[attr-defined]
        assert await reader.read() == b"sorry"
        writer.close()
    async with Broker(world.config) as again:
        assert again.storage.table("t").get(b"other") == b"done"


async def test_an_error_in_the_next_turn_of_a_connection_costs_that_connection_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.broker:
        reader, writer = await world.connect()
        writer.write(b"en")
        assert await reader.read() == b"esorry"
        assert "Traceback" in caplog.text
        writer.close()


async def test_an_error_in_the_next_turn_that_is_partly_in_the_write_batch_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.adapter.waiting = b"px"
    async with world.broker:
        _, writer = await world.connect()
        writer.write(b"n")
        await assert_stopped(world, caplog)
        writer.close()
    await assert_nothing_half_done(world)


async def test_an_error_of_who_goes_on_because_of_another_costs_the_former_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.broker:
        other_reader, other_writer = await world.connect()
        other_writer.write(b"e")
        assert await other_reader.readexactly(1) == b"e"
        reader, writer = await world.connect()
        writer.write(b"oe")
        assert await other_reader.read() == b"sorry"
        assert "Traceback" in caplog.text
        assert await reader.readexactly(1) == b"e"
        writer.write(b"e")
        assert await reader.readexactly(1) == b"e"
        writer.close()
        other_writer.close()


@pytest.mark.parametrize("data", [b"px", b"sx"])
async def test_an_error_in_a_feed_that_is_partly_in_the_write_batch_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    async with world.broker:
        reader, writer = await world.connect()
        writer.write(data)
        await assert_stopped(world, caplog)
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass
        writer.close()
    await assert_nothing_half_done(world)


@asynccontextmanager
async def two(world: World) -> AsyncIterator[tuple[Connection, Connection, asyncio.StreamReader]]:
    """The connections of two clients, and what the second one reads."""
    found: list[Connection] = []
    writers: list[asyncio.StreamWriter] = []
    for _ in range(2):
        before = set(world.broker.connections)
        reader, writer = await world.connect()
        writer.write(b"e")
        assert await reader.readexactly(1) == b"e"
        found.extend(world.broker.connections - before)
        writers.append(writer)
    yield found[0], found[1], reader
    for writer in writers:
        writer.close()


async def durable(broker: Broker) -> None:
    """All that was done so far is on disk."""
    waiter = Told()
    broker.storage.wait(waiter)
    broker.driver.request_turn()
    await waiter.is_told.wait()


def take_in(connection: Connection, data: bytes) -> None:
    """As the loop does, in this turn."""
    connection.transport.data_received(data)  # type: ignore[attr-defined]


def declare(broker: Broker) -> None:
    vhost = broker.vhost("/")
    to: dict[str, HeaderValue] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue = vhost.declare_queue("q", durable=True, arguments=to)
    for _ in range(3):
        queue.accept(message())
    full: dict[str, HeaderValue] = {**to, "x-max-length": 0, "x-overflow": "reject-publish-dlx"}
    vhost.declare_queue("full", durable=True, arguments=full)
    vhost.declare_queue("dead", durable=True)
    vhost.declare_stream("s")


def kept(broker: Broker) -> tuple[int, int, int]:
    """What is in the queue, behind it, and in the stream."""
    vhost = broker.vhost("/")
    return len(vhost.queue("q")), len(vhost.queue("dead")), vhost.streams["s"].record_count


#: what remains of three messages once one client has done this
LEFT = {"s": (3, 0, 0), "g": (2, 0, 0), "j": (2, 1, 0), "u": (0, 0, 0), "f": (3, 1, 0)} | {
    "r": (3, 0, 1)
}


@pytest.mark.parametrize("command", list(LEFT))
async def test_what_is_collected_for_others_does_not_count(world: World, command: str) -> None:
    async with world.broker as broker:
        declare(broker)
        async with two(world) as (healthy, culprit, reader):
            take_in(healthy, command.encode())
            take_in(culprit, b"x")
            assert await reader.read() == b"sorry"
    world.broker = again = Broker(world.config)
    async with again:
        assert kept(again) == LEFT[command]


@pytest.mark.parametrize("command", [each for each in LEFT if each != "u"])
async def test_an_error_of_who_adds_to_what_is_collected_for_others_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    async with world.broker as broker:
        declare(broker)
        await durable(broker)
        async with two(world) as (healthy, culprit, _):
            take_in(healthy, command.encode())
            take_in(culprit, command.encode() + b"x")
            await assert_stopped(world, caplog)
    world.broker = again = Broker(world.config)
    async with again:
        assert kept(again) == (3, 0, 0)


async def test_a_purge_is_collected(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.broker as broker:
        declare(broker)
        await durable(broker)
        async with two(world) as (healthy, culprit, _):
            take_in(healthy, b"g")
            take_in(culprit, b"ux")
            await assert_stopped(world, caplog)
    world.broker = again = Broker(world.config)
    async with again:
        assert kept(again) == (3, 0, 0)


@pytest.mark.pure  # a method of a compiled class cannot be replaced
@pytest.mark.parametrize("step", ["step", "complete", "prepare", "run", "finish", "install"])
async def test_an_error_in_any_step_of_a_checkpoint_stops_the_broker(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*arguments: object) -> None:
        raise ERROR

    async with world.broker as broker:
        broker.storage.table("t").put(b"key", b"whole")
        broker.storage.log("l").append(b"whole")
        await durable(broker)
        monkeypatch.setattr(Checkpoint, step, fail)
        broker.storage.free_space()
        broker.driver.request_turn()
        found = await asyncio.wait_for(broker.wait_failed(), 30)
        assert found.__cause__ is ERROR
        assert "Traceback" in caplog.text
    monkeypatch.undo()
    async with Broker(Config(listen={}, storage=world.config.storage)) as again:
        assert again.storage.table("t").get(b"key") == b"whole"
        assert len(again.storage.log("l")) == 1


async def test_an_error_while_the_broker_stops_is_raised_and_commits_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await world.broker.__aenter__()
    reader, writer = await world.connect()
    writer.write(b"e")
    await reader.readexactly(1)
    broker.storage.table("t").put(b"half", b"done")
    world.adapter.fails = "shutdown"
    with pytest.raises(InternalError):
        await broker.__aexit__(None, None, None)
    await assert_stopped(world, caplog)
    writer.close()
    await assert_nothing_half_done(world)


async def test_an_error_of_the_last_write_batch_is_raised_and_the_directory_is_released(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Waiter(DurabilityWaiter):
        def write_batch_durable(self, write_batch: int) -> None:
            raise ERROR

    broker = await world.broker.__aenter__()
    server = broker.server
    assert server is not None
    original = server._close_storage

    async def close_storage() -> None:
        broker.storage.wait(Waiter())
        storage = broker.storage
        # No turn hands the write batch over any more.
        storage._is_busy = True  # type: ignore[attr-defined]
        await original()

    server._close_storage = close_storage  # type: ignore[method-assign]
    with pytest.raises(InternalError):
        await broker.__aexit__(None, None, None)
    await assert_stopped(world, caplog)
    await assert_nothing_half_done(world)


@pytest.mark.parametrize("where", ["unready", "metrics", "pieces"])
async def test_an_error_while_http_is_answered_costs_that_request_alone(
    world: World, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    def fail() -> str:
        raise ERROR

    def make(path: str, query: list[tuple[str, str]]) -> Iterator[str]:
        return fails_late() if where == "pieces" else iter(fail())

    def fails_late() -> Iterator[str]:
        yield "half"
        fail()

    world.listen_for_http()
    async with world.broker as broker:
        assert broker.server is not None
        listener = broker.config.all_listeners()[-1]
        server = HttpServer(
            broker.server.driver,
            broker.authenticator,
            broker.permissions,
            fail,
            Metrics(("/metrics",), make, ProtocolMetrics()),
            listener,
        )
        bound = socket.create_server(("127.0.0.1", 0))
        await server.start()
        loop = asyncio.get_running_loop()
        accepts = await loop.create_server(lambda: server.connect() or Refused(), sock=bound)
        path = "/health/ready" if where == "unready" else "/metrics"
        for each, status in ((path, 500), ("/health/live", 200)):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(f"GET {each} HTTP/1.0\r\n\r\n".encode())
            assert (await reader.readline()).split()[1] == b"%d" % status
            writer.close()
        assert "Traceback" in caplog.text
        accepts.close()
        await server.stop()


async def test_an_error_while_http_stops_keeps_nothing_from_being_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop(self: HttpServer) -> None:
        await original(self)
        raise ERROR

    original = HttpServer.stop
    monkeypatch.setattr(HttpServer, "stop", stop)
    config = world.config
    world.listen_for_http()
    broker = await world.broker.__aenter__()
    broker.storage.table("t").put(b"whole", b"done")
    with pytest.raises(MemoryError):
        await broker.__aexit__(None, None, None)
    async with Broker(config) as again:
        assert again.storage.table("t").get(b"whole") == b"done"


async def test_the_other_protocols_are_told_nothing_after_it(world: World) -> None:
    """A durable publish of the broken turn is not acknowledged, and is not there."""
    async with world.broker as broker:
        queue: Queue = broker.vhosts["/"].declare_queue("q", durable=True)
        assert queue.name == "q"
        broker.add_unflushed(Raising())
        await broker.wait_failed()
    async with Broker(world.config) as again:
        assert again.vhosts["/"].queues == {}
