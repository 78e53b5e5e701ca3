"""The driver: sockets, turns, limits, stop and failure, with a small line protocol of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import trivium.runtime.driver
import trivium.runtime.listeners
import trivium.runtime.server
import trivium.runtime.sockets
from trivium.common.pieces import Piece
from trivium.common.turns import EndOfTurn
from trivium.config import Config, LimitsConfig, Listen, StorageConfig
from trivium.errors import ConfigError, TriviumError
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import Adapter, Connection, Peer, Transport
from trivium.runtime.broker import Broker
from trivium.runtime.framed import CLOCK_BYTES, CLOCK_FRAMES, FOR_PROTOCOL, FramedConnection
from trivium.runtime.sockets import SocketDriver
from trivium.storage.errors import StorageFailed
from trivium.storage.files.filesystem import RealFile
from trivium.storage.memory import MemoryStorage


class LineConnection(FramedConnection):
    """Answers each byte: ``e`` echo, ``q`` bye and close, ``x`` abort, ``p`` pause; ``r`` takes all
    that follows with it.
    """

    def __init__(
        self, metrics: ProtocolMetrics, broker: Broker, transport: Transport, peer: Peer
    ) -> None:
        super().__init__(metrics, broker, transport, peer)
        self.ticks = 0
        self.losses = 0
        self.reasons: list[str] = []
        self.is_lost = asyncio.Event()
        #: how much it took each time, with all others of the adapter in order
        self.fed = ADAPTER[-1].fed

    def take_frames(self, data: bytes, at: int) -> int:
        start = at
        while at < len(data) and not self.stops_input():
            byte = data[at]
            at += 1
            if byte == ord("e"):
                self.send(b"e")
            elif byte == ord("q"):
                self.send(b"bye")
                self.close()
            elif byte == ord("x"):
                self.transport.abort()
            elif byte == ord("p"):
                self.hold_input(FOR_PROTOCOL)
            elif byte == ord("r"):
                at = len(data)
        self.fed.append((self, at - start))
        return at

    def tick(self, now: float) -> None:
        self.ticks += 1

    def blocked(self, reason: str) -> None:
        self.reasons.append(reason)

    def lost(self) -> None:
        self.losses += 1
        self.is_lost.set()

    def shutdown(self, is_revoked: bool = False, deleted_vhost: str = "") -> None:
        self.send(b"stopping")
        self.close()


class LineAdapter(Adapter):
    def __init__(self) -> None:
        self.name = "line"
        self.metrics = ProtocolMetrics()
        self.connections: list[LineConnection] = []
        self.fed: list[tuple[Connection, int]] = []

    def start(self, broker: Broker) -> None:
        self.broker = broker

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        connection = LineConnection(self.metrics, self.broker, transport, peer)
        self.connections.append(connection)
        return connection


ADAPTER: list[LineAdapter] = []


def make_adapter() -> LineAdapter:
    ADAPTER.append(LineAdapter())
    return ADAPTER[-1]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("line", f"{__name__}:make_adapter", "trivium.adapters")
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_adapter)
    monkeypatch.setattr(trivium.runtime.listeners, "installed", lambda group: [entry])


def config(listen: Listen | None = None, **limits: float) -> Config:
    return Config(
        listen={"line": listen or Listen(0)},
        storage=StorageConfig(mode="memory"),
        limits=LimitsConfig(**limits),  # type: ignore[arg-type]
    )


SHORT_TURNS = config(turn_milliseconds=0)
LONG_TURNS = config(turn_milliseconds=3_600_000)


async def connect(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = broker.listeners["line"].rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))


class Recorder:
    """A socket's transport that notes what is written."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes: list[Piece] = []

    def write(self, data: Piece) -> None:
        self.writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


async def test_output_of_a_turn_leaves_with_one_write() -> None:
    async with Broker(config()) as broker, a_client(broker) as (reader, writer, connection):
        driver = connection.transport
        assert isinstance(driver, SocketDriver)
        recorder = Recorder(driver._transport)
        driver._transport = recorder  # type: ignore[assignment]
        writer.write(b"eee")
        assert await reader.readexactly(3) == b"eee"
    assert recorder.writes[0] == b"eee"


async def test_what_follows_in_the_turn_is_not_done_for_the_client_that_was_served() -> None:
    # Such as handshakes of others, whose lines in the log would name it.
    async with Broker(config()) as broker, a_client(broker) as (_, _, connection):
        assert broker.server is not None
        driver = broker.server.driver
        served: list[object] = []
        driver.call(broker.events.for_served(lambda: served.append(broker.events.serving)))
        served.append(broker.events.serving)
        driver.feed(connection, b"e")
        served.append(broker.events.serving)
        broker.events.serving = connection
        work = broker.events.for_served(lambda: served.append(broker.events.serving))
        driver.call(work)
        served.append(broker.events.serving)
        driver.begin_next_turn(connection)
        served.append(broker.events.serving)
        assert served == [None, None, None, connection, None, None]


async def test_close_writes_what_was_sent_first() -> None:
    async with Broker(config()) as broker:
        reader, writer = await connect(broker)
        writer.write(b"eqe")
        assert await reader.read() == b"ebye"
        writer.close()


async def test_what_the_broker_says_last_arrives_although_much_is_not_read() -> None:
    async with Broker(config()) as broker:
        reader, writer = await connect(broker)
        writer.write(b"q" + b"e" * (16 << 20))
        await writer.drain()
        assert await reader.read() == b"bye"
        writer.close()


async def test_a_connection_is_released_when_it_is_over_and_not_when_its_peer_closes() -> None:
    async with Broker(config(max_connections=1)) as broker:
        reader, writer = await connect(broker)
        writer.write(b"q")
        assert await reader.read() == b"bye"
        await ADAPTER[-1].connections[0].is_lost.wait()
        assert not broker.connections
        # But its socket still counts.
        other_reader, other_writer = await connect(broker)
        try:
            assert await other_reader.read() == b""
        except ConnectionResetError:
            pass
        other_writer.close()
        writer.close()


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once a socket is closed."""
    event = asyncio.Event()
    original = trivium.runtime.server.Server.socket_gone

    def socket_gone(self: trivium.runtime.server.Server, driver: SocketDriver) -> None:
        original(self, driver)
        event.set()

    monkeypatch.setattr(trivium.runtime.server.Server, "socket_gone", socket_gone)
    return event


@pytest.mark.pure  # a number of a compiled module cannot be replaced
async def test_a_peer_that_does_not_close_has_its_time(
    monkeypatch: pytest.MonkeyPatch, gone: asyncio.Event
) -> None:
    monkeypatch.setattr(trivium.runtime.sockets, "DRAIN_SECONDS", 0.01)
    async with Broker(config()) as broker:
        reader, writer = await connect(broker)
        writer.write(b"q")
        assert await reader.read() == b"bye"
        await gone.wait()
        writer.close()


@pytest.mark.pure  # a number of a compiled module cannot be replaced
async def test_a_peer_that_sends_no_more_and_does_not_read_has_its_time(
    monkeypatch: pytest.MonkeyPatch, gone: asyncio.Event
) -> None:
    monkeypatch.setattr(trivium.runtime.sockets, "DRAIN_SECONDS", 0.01)
    async with Broker(config()) as broker:
        _, writer = await connect(broker)
        # More than its and the broker's system keep.
        writer.write(b"e" * (16 << 20))
        writer.write_eof()
        await gone.wait()
        writer.close()


@pytest.mark.pure  # a number of a compiled module cannot be replaced
async def test_a_peer_that_sends_on_and_on_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, gone: asyncio.Event
) -> None:
    monkeypatch.setattr(trivium.runtime.sockets, "DISCARDED_BYTES", 1 << 20)
    async with Broker(config()) as broker:
        reader, writer = await connect(broker)
        writer.write(b"q")
        assert await reader.read() == b"bye"
        try:
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        except ConnectionError:
            pass
        await gone.wait()


async def test_a_peer_that_only_sends_no_more_is_answered() -> None:
    async with Broker(config()) as broker:
        reader, writer = await connect(broker)
        writer.write(b"ee")
        writer.write_eof()
        assert await reader.read() == b"ee"
        writer.close()


async def test_lost_is_called_once_whoever_closes() -> None:
    async with Broker(config()) as broker:
        adapter = ADAPTER[-1]
        for command in (b"q", b"x", b""):
            reader, writer = await connect(broker)
            writer.write(command or b"e")
            if command:
                await reader.read()
            else:
                await reader.readexactly(1)
            writer.close()
        for connection in adapter.connections:
            await connection.is_lost.wait()
    assert [connection.losses for connection in adapter.connections] == [1, 1, 1]


async def test_stop_tells_the_clients() -> None:
    async with Broker(config()) as broker:
        reader, writer = await connect(broker)
        writer.write(b"e")
        await reader.readexactly(1)
    assert await reader.read() == b"stopping"
    writer.close()


async def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    async with Broker(config(max_connections=1)) as broker:
        reader, writer = await connect(broker)
        writer.write(b"e")
        assert await reader.readexactly(1) == b"e"
        other_reader, other_writer = await connect(broker)
        try:
            assert await other_reader.read() == b""
        except ConnectionResetError:
            pass
        other_writer.close()
        writer.write(b"e")
        assert await reader.readexactly(1) == b"e"
        writer.close()


@pytest.mark.parametrize(
    ("files", "limit"), [(4, 2), (1024, 512), (4096, 2816), (200_000, 100_000), (-1, 100_000)]
)
def test_connections_leave_files_for_the_storage(
    monkeypatch: pytest.MonkeyPatch, files: int, limit: int
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert trivium.runtime.listeners.connection_limit(100_000) == limit


async def test_connections_beyond_what_the_process_may_open_are_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (2, 2))
    async with Broker(config()) as broker:
        reader, writer = await connect(broker)
        writer.write(b"e")
        assert await reader.readexactly(1) == b"e"
        other_reader, other_writer = await connect(broker)
        try:
            assert await other_reader.read() == b""
        except ConnectionResetError:
            pass
        other_writer.close()
        writer.close()


async def test_port_zero_is_shared_by_both_addresses_of_localhost() -> None:
    async with Broker(config(Listen(0, "localhost"))) as broker:
        host, _, port = broker.listeners["line"].rpartition(":")
        assert host == "127.0.0.1"
        for address in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(address, int(port))
            writer.write(b"e")
            assert await reader.readexactly(1) == b"e"
            writer.close()


async def test_a_port_in_use_is_a_clear_error() -> None:
    async with Broker(config()) as broker:
        port = int(broker.listeners["line"].rpartition(":")[2])
        with pytest.raises(TriviumError, match=f"line cannot listen on 127.0.0.1:{port}: "):
            async with Broker(config(Listen(port))):
                pass


async def test_an_unknown_protocol_is_a_clear_error() -> None:
    unknown = Config(listen={"gopher": Listen(0)}, storage=StorageConfig(mode="memory"))
    with pytest.raises(ConfigError, match="'gopher'"):
        async with Broker(unknown):
            pass


async def test_an_adapter_that_does_not_load_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(self: EntryPoint) -> None:
        raise ImportError("no module named 'elsewhere'")

    monkeypatch.setattr(EntryPoint, "load", load)
    with pytest.raises(ConfigError, match="adapter for 'line' does not load: no module named"):
        async with Broker(config()):
            pass


async def test_a_failed_storage_closes_every_connection_and_is_reported() -> None:
    async with Broker(config()) as broker:
        reader, writer = await connect(broker)
        writer.write(b"e")
        await reader.readexactly(1)
        assert broker.server is not None
        broker.server.fail(StorageFailed("disk gone"))
        assert str(await broker.wait_failed()) == "disk gone"
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass
        writer.close()
        with pytest.raises(OSError):
            await connect(broker)


@pytest.mark.pure  # a method of a compiled class cannot be replaced
async def test_a_failed_disk_is_final_and_releases_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = Config(listen={"line": Listen(0)}, storage=StorageConfig(data=tmp_path))

    def write(self: RealFile, parts: list[bytes], position: int, sync: bool) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with Broker(on_disk) as broker:
        monkeypatch.setattr(RealFile, "write", write)
        broker.vhosts["/"].declare_queue("q", durable=True)
        broker.driver.request_turn()
        assert isinstance(await broker.wait_failed(), StorageFailed)
    monkeypatch.undo()
    async with Broker(replace(on_disk, listen={})) as broker:
        assert broker.vhosts["/"].queues == {}


async def test_the_memory_of_this_process_is_compared_with_its_mark() -> None:
    async with Broker(config(memory_high_bytes=1)) as broker:
        assert broker.unready() == "low on memory: publishers are paused"
    async with Broker(config(memory_high_bytes=1 << 50)) as broker:
        assert broker.unready() is None


async def test_the_data_directorys_file_system_is_compared_with_its_mark(tmp_path: Path) -> None:
    limits = LimitsConfig(disk_free_bytes=1 << 60)
    storage = StorageConfig(data=tmp_path / "data")
    async with Broker(Config(listen={}, limits=limits, storage=storage)) as broker:
        assert broker.unready() == "low on disk: publishers are paused"
    async with Broker(config(disk_free_bytes=1 << 60)) as broker:
        assert broker.unready() is None, "memory storage needs no disk"


async def test_who_connects_during_an_alarm_is_told() -> None:
    async with Broker(config(memory_high_bytes=1)) as broker:
        reader, writer = await connect(broker)
        writer.write(b"e")
        await reader.readexactly(1)
        assert ADAPTER[-1].connections[0].reasons == ["low on memory"]
        writer.close()


# Much input of one client


#: The last frame before a look at the clock is not taken when the turn is long.
PIECE = CLOCK_FRAMES - 1
MUCH = b"e" * (5 * PIECE + 1)
PIECES = [PIECE] * 5 + [1]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Have a byte come back, in a turn of its own."""
    writer.write(b"e")
    assert await reader.readexactly(1) == b"e"


@contextlib.asynccontextmanager
async def a_client(
    broker: Broker,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, LineConnection]]:
    """A client, and its connection once it was fed."""
    reader, writer = await connect(broker)
    try:
        await echo(reader, writer)
        ADAPTER[-1].fed.clear()
        yield reader, writer, ADAPTER[-1].connections[-1]
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def read_at_once(connection: LineConnection, data: bytes) -> None:
    """All of ``data`` was read from its socket in one go."""
    driver = connection.transport
    assert isinstance(driver, SocketDriver)
    driver.data_received(data)


async def test_much_input_is_taken_in_turns_and_others_are_served_between() -> None:
    async with (
        Broker(SHORT_TURNS) as broker,
        a_client(broker) as (other_reader, other_writer, other),
    ):
        async with a_client(broker) as (reader, _, connection):
            read_at_once(connection, MUCH)
            assert other.fed == [(connection, PIECE - 1)]
            other_writer.write(b"e")
            assert await other_reader.readexactly(1) == b"e"
            assert await reader.readexactly(len(MUCH)) == MUCH
        fed = [size for one, size in other.fed if one is connection]
        assert fed == [PIECE - 1, *PIECES[1:5], 2]
        assert other.fed.index((other, 1)) < len(PIECES), "it waited for all of the other's"


async def test_a_turn_takes_what_it_has_time_for() -> None:
    async with (
        Broker(LONG_TURNS) as broker,
        a_client(broker) as (reader, _, connection),
    ):
        read_at_once(connection, MUCH)
        assert connection.fed == [(connection, len(MUCH))]
        assert await reader.readexactly(len(MUCH)) == MUCH


async def test_reading_goes_on_behind_much_input() -> None:
    async with (
        Broker(SHORT_TURNS) as broker,
        a_client(broker) as (reader, writer, _),
    ):
        for data in (MUCH, b"e" * CLOCK_BYTES, MUCH):
            writer.write(data)
            assert await reader.readexactly(len(data)) == data


async def test_few_frames_of_many_bytes_make_a_turn_too() -> None:
    async with (
        Broker(SHORT_TURNS) as broker,
        a_client(broker) as (reader, writer, connection),
    ):
        waits = []
        for size in (CLOCK_BYTES - 1, CLOCK_BYTES):
            read_at_once(connection, b"r" * size)
            waits.append(connection.waits_for_turn)
        assert waits == [False, True]
        writer.write(b"e")
        assert await reader.readexactly(1) == b"e"


async def test_a_connection_that_pauses_is_fed_no_more_of_it() -> None:
    async with (
        Broker(SHORT_TURNS) as broker,
        a_client(broker) as other,
        a_client(broker) as (reader, _, connection),
    ):
        read_at_once(connection, MUCH[:PIECE] + b"p" + MUCH)
        assert await reader.readexactly(PIECE) == MUCH[:PIECE]
        for _ in range(10):
            await echo(*other[:2])
        assert [size for one, size in connection.fed if one is connection] == [PIECE - 1, 2]
        connection.continue_input(FOR_PROTOCOL)
        assert await reader.readexactly(len(MUCH)) == MUCH


async def test_who_closes_behind_much_input_is_answered_first() -> None:
    async with (
        Broker(SHORT_TURNS) as broker,
        a_client(broker) as (reader, writer, _),
    ):
        writer.write(MUCH)
        writer.write_eof()
        assert await reader.read(-1) == MUCH


async def test_much_input_counts_although_the_socket_is_gone() -> None:
    async with (
        Broker(SHORT_TURNS) as broker,
        a_client(broker) as (_, _, connection),
    ):
        read_at_once(connection, MUCH)
        connection.transport.abort()
        await connection.is_lost.wait()
        assert sum(size for _, size in connection.fed) == len(MUCH)


async def test_a_connection_that_closes_is_fed_no_more_of_it() -> None:
    async with (
        Broker(SHORT_TURNS) as broker,
        a_client(broker) as (reader, _, connection),
    ):
        read_at_once(connection, b"q" + MUCH)
        assert await reader.read(-1) == b"bye"
        assert connection.fed == [(connection, 1)]


async def test_a_pause_within_a_turn_holds_for_the_rest_of_it() -> None:
    async with (
        Broker(LONG_TURNS) as broker,
        a_client(broker) as (_, _, connection),
    ):
        read_at_once(connection, b"p" + MUCH)
        assert connection.fed == [(connection, 1)]


async def test_an_end_that_is_told_before_much_input_was_fed_waits_for_it() -> None:
    async with (
        Broker(SHORT_TURNS) as broker,
        a_client(broker) as (reader, _, connection),
    ):
        read_at_once(connection, MUCH)
        driver = connection.transport
        assert isinstance(driver, SocketDriver)
        assert driver.eof_received()
        assert await reader.read(-1) == MUCH


class Endless(EndOfTurn):
    """Asks for a turn in each."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.turns = 0

    def flush_turn(self) -> None:
        self.turns += 1
        self.broker.add_unflushed(self)


async def test_no_turn_is_made_while_another_thread_closes_the_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    turns: list[int] = []

    async def go_round() -> None:
        for _ in range(10):
            turns.append(endless.turns)
            await asyncio.sleep(0)

    class Closing(MemoryStorage):
        def close(self) -> None:
            asyncio.run_coroutine_threadsafe(go_round(), loop).result(60)

    monkeypatch.setattr(trivium.runtime.server, "MemoryStorage", Closing)
    config = Config(listen={}, storage=StorageConfig(mode="memory"))
    async with Broker(config) as broker:
        endless = Endless(broker)
        broker.add_unflushed(endless)
    assert turns[0] > 0
    assert turns == turns[:1] * 10
