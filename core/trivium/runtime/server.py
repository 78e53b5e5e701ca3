"""The driver: sockets, the event loop, and threads. The only core module that imports asyncio."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import socket
import termios
import time
from array import array
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, cast

from trivium.config import Listen, is_loopback, join_address
from trivium.errors import ConfigError, InternalError, TriviumError
from trivium.observability.process import release_free_memory, resident_bytes, total_memory_bytes
from trivium.runtime.adapter import DISCARDED_BYTES, Adapter, Connection, Peer
from trivium.runtime.broker import Broker, Driver
from trivium.storage.base import Storage
from trivium.storage.errors import StorageError
from trivium.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from trivium.observability.http import HttpServer

logger = logging.getLogger(__name__)

HTTP: Final = "http"

#: Bytes that may wait in a socket's buffer before its queues are held (256 KiB), and below
#: which they go on.
WRITE_HIGH_WATER: Final = 256 * 1024
WRITE_LOW_WATER: Final = 64 * 1024

#: A connection takes input until the turn has lasted for so many seconds; what is left waits for
#: the next turn, and others are served between. The loop alone would feed megabytes of one client
#: in a turn, which are tens of thousands of declarations.
TURN_SECONDS: Final = 0.005

#: Connections that the kernel keeps for us while a turn lasts.
BACKLOG: Final = 1024

#: File descriptors that connections leave to storage and HTTP, and to those that the kernel hands
#: over in one turn before they can be refused; of a process with few, half.
RESERVED_FILES: Final = BACKLOG + 256

#: Seconds that a peer gets to take its last answer and to close its socket as well.
DRAIN_SECONDS: Final = 10.0

#: Seconds between two looks at time-outs, and at whether the wall clock was set.
TICK_SECONDS: Final = 1.0

#: Time that clients get to take their last bytes when the broker stops.
STOP_SECONDS: Final = 2.0


class SocketDriver(asyncio.Protocol):
    """Joins one socket to one ``Connection``; it is the connection's ``Transport``."""

    __slots__ = (
        "_adapter",
        "_discarded",
        "_has_ended",
        "_is_over",
        "_server",
        "_timer",
        "_transport",
        "connection",
    )

    connection: Connection
    _transport: asyncio.Transport

    def __init__(self, server: Server, adapter: Adapter) -> None:
        self._server = server
        self._adapter = adapter
        # Whether the peer sends no more; whether the connection is over, and only the socket lives.
        self._has_ended = False
        self._is_over = False
        self._discarded = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface but not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._server.sockets.add(self)
        try:
            self._connect()
        except BaseException as error:
            # There may be no connection to end.
            self._is_over = True
            self._server.stop_for(error)

    def _connect(self) -> None:
        server = self._server
        transport = self._transport
        transport.set_write_buffer_limits(WRITE_HIGH_WATER, WRITE_LOW_WATER)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = transport.get_extra_info("peername")
        host, port = (name[0], name[1]) if name else ("", 0)
        peer = Peer(join_address(host, port), is_loopback(host))
        self.connection = self._adapter.connect(self, peer)
        broker = server.broker
        broker.add_connection(self.connection)
        if broker.is_stopping or len(server.sockets) > server.max_connections:
            self.connection.is_closed = True
            transport.abort()

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        if not connection.is_closed:
            self._server.feed(connection, data)
            return
        self._discarded += len(data)
        if self._discarded > DISCARDED_BYTES:
            self._transport.abort()

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._is_over:
            return False
        self._server.call(self._close_when_taken)
        return True

    def _close_when_taken(self) -> None:
        """Close once what the peer has sent is taken; it only sends no more."""
        if self._is_over:
            return
        if self.connection.waits_for_turn:
            self._server.call_soon(self._close_when_taken)
        else:
            # What this turn has to say to it is written first.
            self._server.close_after_turn(self)

    def pause_writing(self) -> None:
        self.connection.is_writable = False

    def resume_writing(self) -> None:
        self._server.call(self.connection.resume_writing)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_over:
            self._server.call(self._take_all)
            self._server.call(self._end)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._server.socket_gone(self)
        # Nothing is called any more. It and the connection would keep each other in memory. There
        # is none where it could not be made.
        if hasattr(self, "connection"):
            del self.connection

    def _take_all(self) -> None:
        """Have the connection take now what it has left for turns that it will not have."""
        connection = self.connection
        while connection.waits_for_turn and not connection.is_closed:
            self._server.begin_next_turn(connection)

    def _end(self) -> None:
        """The connection is over: have it release what it holds."""
        self._is_over = True
        connection = self.connection
        connection.is_closed = True
        self._server.broker.remove_connection(connection)
        connection.lost()

    def write(self, output: list[bytes]) -> None:
        if not self._is_over and not self._transport.is_closing():
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))

    # Transport

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        self._server.close_after_turn(self)

    def abort(self) -> None:
        self._transport.abort()

    def unsent(self) -> int:
        transport = self._transport
        if transport.is_closing():
            return 0
        waiting = array("i", (0,))
        raw = transport.get_extra_info("socket")
        try:
            fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, waiting)
        except OSError:
            return transport.get_write_buffer_size()
        return transport.get_write_buffer_size() + waiting[0]

    def finish(self) -> None:
        """The output is with the transport: the connection is over.

        A socket that is closed with unread input is reset, and the peer loses what it was sent
        last. So what it still sends is read and dropped until it closes as well, within limits.
        """
        transport = self._transport
        if transport.is_closing() or self._is_over:
            return
        self._server.call(self._end)
        if self._has_ended:
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:
            # The peer has reset the socket.
            transport.abort()
            return
        transport.resume_reading()
        self._timer = self._server.call_later(DRAIN_SECONDS, transport.abort)


class Server(Driver):
    """Runs a broker on the running event loop."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.failed: asyncio.Future[StorageError | InternalError]
        self.max_connections = 0
        #: all that are open, those among them whose connection is over
        self.sockets: set[SocketDriver] = set()
        self._loop: asyncio.AbstractEventLoop
        self._listeners: list[asyncio.Server] = []
        self._http: HttpServer | None = None
        self._is_turn_requested = False
        self._has_begun = False
        self._is_over = False
        self._began_at = 0.0
        self._closing: list[SocketDriver] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._watcher: asyncio.TimerHandle | None = None
        self._waker: asyncio.TimerHandle | None = None
        self._wakes_at = 0
        self._emptied = asyncio.Event()
        self._storage: Storage | None = None
        self._is_releasing = False

    async def start(self) -> None:
        """Recover, then listen. Raises TriviumError or OSError when that is not possible."""
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        broker = self.broker
        self.max_connections = connection_limit(broker.config.limits.max_connections)
        adapters = load_adapters(broker.config.listen)
        self._storage = self._open_storage()
        try:
            self._open(self._storage, adapters)
            self.call(self._watch)
            for adapter in adapters:
                await self._listen(adapter, broker.config.listen[adapter.name])
            await self._start_http()
        except BaseException:
            await self.stop()
            raise
        self.call(self._tick)

    def _open(self, storage: Storage, adapters: list[Adapter]) -> None:
        """Recover. Raises InternalError, and TriviumError that says what is wrong."""
        try:
            self.begin_turn()
            self.broker.open(storage, self, adapters)
        except TriviumError:
            raise
        except BaseException as error:
            self.stop_for(error)
            raise self.failed.result() from error

    def _open_storage(self) -> Storage:
        config = self.broker.config.storage
        if config.mode == "memory":
            return MemoryStorage()
        from trivium.storage.disk import DiskStorage
        from trivium.storage.files.encryption import find_keys

        try:
            keys = find_keys(config.key_file, config.key_env, os.environ)
        except ValueError as error:
            raise ConfigError(f"[storage] {error}") from None
        return DiskStorage(
            config.data,
            post=self._post,
            wake=self.request_turn,
            on_fatal=self._fail,
            fsync=str(config.fsync),
            compression=config.compression,
            keys=keys,
        )

    async def _listen(self, adapter: Adapter, listen: Listen) -> None:
        for bound in self._bind(adapter.name, listen):
            listener = await self._loop.create_server(
                lambda: SocketDriver(self, adapter), sock=bound, backlog=BACKLOG
            )
            self._listeners.append(listener)

    async def _start_http(self) -> None:
        listen = self.broker.config.listen.get(HTTP)
        if listen is None or not listen.enabled:
            return
        from trivium.observability.http import HttpServer

        broker = self.broker
        self._http = HttpServer(
            broker.authenticator,
            broker.unready,
            broker.metrics_text,
            broker.config.limits.handshake_seconds,
        )
        await self._http.start(self._bind(HTTP, listen))

    def _bind(self, name: str, listen: Listen) -> list[socket.socket]:
        """Sockets bound to the listener's addresses, all on one port; raises TriviumError."""
        port = listen.port
        sockets: list[socket.socket] = []
        for host in listen.hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                sockets.append(socket.create_server((host, port), family=family, backlog=BACKLOG))
            except OSError as error:
                # "localhost" asks for ::1 too, which a machine without IPv6 does not have.
                if sockets:
                    logger.info("%s does not listen on %s: %s", name, host, error)
                    continue
                raise TriviumError(
                    f"{name} cannot listen on {join_address(host, port)}: {error.strerror}"
                ) from None
            port = sockets[-1].getsockname()[1]
        self.broker.listeners[name] = join_address(listen.hosts[0], port)
        return sockets

    async def stop(self) -> None:
        """Stop accepting, tell the clients, write what is left, release the data directory."""
        self.broker.is_stopping = True
        had_failed = self.failed.done()
        for timer in (self._ticker, self._watcher, self._waker):
            if timer is not None:
                timer.cancel()
        for listener in self._listeners:
            listener.close()
        self.call(self._shut_down_connections)
        self._end_turn()
        if self.sockets:
            try:
                await asyncio.wait_for(self._emptied.wait(), STOP_SECONDS)
            except TimeoutError:
                pass
        for driver in list(self.sockets):
            driver.abort()
        await asyncio.sleep(0)
        try:
            if self._http is not None:
                await self._http.stop()
        finally:
            await self._close_storage()
        if self.failed.done() and not had_failed:
            raise self.failed.result()

    def _shut_down_connections(self) -> None:
        for connection in list(self.broker.connections):
            if not connection.is_closed:
                connection.shutdown()

    async def _close_storage(self) -> None:
        if self._storage is None:
            return
        self._end_turn()
        # From here on the storage belongs to another thread.
        self._is_over = True
        try:
            await self._loop.run_in_executor(None, self._storage.close)
        except StorageError:
            # Said when it happened; what matters here is that the directory is released.
            if not self.failed.done():
                raise
        except Exception as error:
            self.stop_for(error)

    async def wait_failed(self) -> BaseException:
        """Wait for ``failed``, as ``Broker.wait_failed``. Cancelling leaves ``failed`` as it is."""
        return await asyncio.shield(self.failed)

    def socket_gone(self, driver: SocketDriver) -> None:
        """A socket is closed; ``stop`` waits for the last one."""
        self.sockets.discard(driver)
        if self.broker.is_stopping and not self.sockets:
            self._emptied.set()

    def stop_for(self, error: BaseException) -> None:
        """Stop the broker for an exception that nobody expected.

        What it left half done is in memory, and perhaps in the write batch, which is therefore
        dropped.
        """
        failure = InternalError(f"internal error: {error!r}")
        failure.__cause__ = error
        self._fail(failure)
        assert self._storage is not None
        self._storage.fail(failure)
        if not isinstance(error, Exception):
            raise error

    def feed_failed(self, connection: Connection, changes: int, error: BaseException) -> None:
        """``feed`` has raised; before it the write batch was at ``changes`` (see ``Storage``)."""
        broker = self.broker
        is_alone = broker.storage.changes == changes and not broker.has_unwritten
        if not is_alone or not isinstance(error, Exception):
            self.stop_for(error)
            return
        address = connection.peer.address
        logger.error("%s: internal error, it is closed: %r", address, error, exc_info=error)
        try:
            connection.internal_error()
        except BaseException as again:
            self.stop_for(again)

    def _fail(self, error: StorageError | InternalError) -> None:
        """The broker cannot go on: nobody is answered any more."""
        if self.failed.done():
            return
        # A disk that fails needs no traceback.
        trace = error if error.__cause__ is not None else None
        logger.critical("the broker stops: %s", error, exc_info=trace)
        self.failed.set_result(error)
        self.broker.is_stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.broker.connections):
            connection.is_closed = True
        for driver in list(self.sockets):
            driver.abort()

    # Turns

    def begin_turn(self) -> None:
        """The loop calls something of ours: unless that was so before in this turn, read the
        clocks, and have the turn ended.
        """
        if not self._has_begun:
            self._has_begun = True
            self._began_at = time.monotonic()
            self.broker.begin_turn()
            self.request_turn()

    def is_turn_long(self) -> bool:
        """Whether this turn has lasted for as long as it should."""
        return time.monotonic() - self._began_at > TURN_SECONDS

    def call(self, work: Callable[[], None]) -> None:
        """A callback of the loop: do ``work``. What it raises stops the broker."""
        try:
            self.begin_turn()
            work()
        except BaseException as error:
            self.stop_for(error)

    def feed(self, connection: Connection, data: bytes) -> None:
        """Bytes of a connection's client arrived."""
        changes = -1
        try:
            self.begin_turn()
            changes = self.broker.storage.changes
            connection.feed(data)
        except BaseException as error:
            self.feed_failed(connection, changes, error)

    def go_on(self, connection: Connection) -> None:
        """Others may be fed just now, and what it raises is not their fault."""
        changes = self.broker.storage.changes
        try:
            connection.take_waiting()
        except BaseException as error:
            self.feed_failed(connection, changes, error)

    def next_turn(self, connection: Connection) -> None:
        self._loop.call_soon(self.begin_next_turn, connection)

    def begin_next_turn(self, connection: Connection) -> None:
        """The turn has come that a connection has asked for."""
        changes = -1
        try:
            self.begin_turn()
            changes = self.broker.storage.changes
            connection.next_turn()
        except BaseException as error:
            self.feed_failed(connection, changes, error)

    def call_soon(self, work: Callable[[], None]) -> None:
        """``call`` something of a socket in the next iteration of the loop."""
        self._loop.call_soon(self.call, work)

    def call_later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        """``call`` something of a socket after some time."""
        return self._loop.call_later(seconds, self.call, work)

    def _post(self, work: Callable[[], None]) -> None:
        """From any thread: ``call`` something of the storage."""
        self._loop.call_soon_threadsafe(self._posted, work)

    def _posted(self, work: Callable[[], None]) -> None:
        # Whoever closes the storage does what is left.
        if not self._is_over:
            self.call(work)

    def request_turn(self) -> None:
        if not self._is_turn_requested:
            self._loop.call_soon(self._end_turn)
            self._is_turn_requested = True

    def _end_turn(self) -> None:
        if self.failed.done() or self._is_over:
            return
        try:
            self.begin_turn()
            # From here on, what asks for a turn wants another one.
            self._is_turn_requested = False
            self.broker.end_turn()
            self._has_begun = False
            if self._closing:
                drivers = self._closing
                self._closing = []
                for driver in drivers:
                    driver.finish()
        except BaseException as error:
            self.stop_for(error)

    def wake_at(self, at: int) -> None:
        if at == self._wakes_at:
            return
        self._wakes_at = at
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None
        if at:
            delay = max(at - time.monotonic_ns() // 1_000_000, 0) / 1000
            self._waker = self.call_later(delay, self._woken)

    def _woken(self) -> None:
        self._waker = None
        self._wakes_at = 0

    def close_after_turn(self, driver: SocketDriver) -> None:
        """Close a socket when this turn's output is with it."""
        self._closing.append(driver)
        self.request_turn()

    def write(self, connection: Connection, output: list[bytes]) -> None:
        if output:
            driver = connection.transport
            assert isinstance(driver, SocketDriver)
            driver.write(output)
            if connection.is_writable and not connection.is_closed:
                connection.flushed()

    def run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        def attempt() -> bool:
            try:
                return work()
            except BaseException as error:
                # It touched nothing of ours, and the answer is no.
                logger.error("internal error, taken for no: %r", error, exc_info=error)
                return False

        def finished(future: asyncio.Future[bool]) -> None:
            self.call(lambda: done(not future.cancelled() and future.result()))

        self._loop.run_in_executor(None, attempt).add_done_callback(finished)

    def memory_limit(self) -> int:
        return total_memory_bytes()

    def resident_memory(self) -> int:
        return resident_bytes()

    def release_memory(self) -> None:
        if not self._is_releasing:
            self._is_releasing = True
            self.run_blocking(_release, self._released)

    def _released(self, is_right: bool) -> None:
        self._is_releasing = False

    def free_disk(self) -> int:
        config = self.broker.config.storage
        if config.mode == "memory":
            return -1
        try:
            found = os.statvfs(config.data)
        except OSError:
            return -1
        return found.f_bavail * found.f_frsize

    def _watch(self) -> None:
        interval = self.broker.check_alarms()
        self._watcher = self.call_later(interval, self._watch)

    def _tick(self) -> None:
        self.broker.tick(self._loop.time())
        self._ticker = self.call_later(TICK_SECONDS, self._tick)


def _release() -> bool:
    release_free_memory()
    return True


def connection_limit(configured: int) -> int:
    """As many connections as are configured, or as leave the storage files to open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return configured
    allowed = max(files - RESERVED_FILES, files // 2)
    if allowed < configured:
        logger.debug("%d connections at most, by the limit of %d open files", allowed, files)
    return min(configured, allowed)


def load_adapters(listen: Mapping[str, Listen]) -> list[Adapter]:
    """The installed adapters that the configuration names, in a stable order.

    Raises ConfigError when it names a protocol that nothing installed provides, or whose adapter
    does not load.
    """
    found = {entry.name: entry for entry in entry_points(group="trivium.adapters")}
    adapters: list[Adapter] = []
    for name, address in listen.items():
        if name == HTTP or not address.enabled:
            continue
        if name not in found:
            raise ConfigError(f"no adapter for the protocol {name!r} is installed")
        try:
            adapters.append(found[name].load()())
        except Exception as error:
            # An adapter may be anybody's code; whoever installed it needs its name, not our trace.
            raise ConfigError(f"the adapter for {name!r} does not load: {error}") from error
    return adapters
