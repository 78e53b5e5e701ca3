"""The broker on an event loop: its storage, its sockets, how it starts and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from trivium.errors import ConfigError, InternalError, TriviumError
from trivium.runtime.adapter import Adapter, Listener
from trivium.runtime.admission import Admission
from trivium.runtime.auditing import Auditing
from trivium.runtime.broker import Broker
from trivium.runtime.driver import LoopDriver
from trivium.runtime.handshakes import Handshakes
from trivium.runtime.inside import Connecting, InsideTransport, inside_listener, join
from trivium.runtime.listeners import (
    Listeners,
    connection_limit,
    inside_client,
    load_adapters,
    load_http,
)
from trivium.runtime.sockets import SocketDriver
from trivium.runtime.tracing import MessageTracer
from trivium.storage.base import Storage
from trivium.storage.errors import StorageError
from trivium.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from trivium.observability.span_exporter import SpanExporter

logger = logging.getLogger(__name__)

#: Seconds between two looks at time-outs, and at whether the wall clock was set.
TICK_SECONDS: Final = 1.0

#: Time that clients get to take their last bytes when the broker stops.
STOP_SECONDS: Final = 2.0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop: uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class ServerStopped(TriviumError):
    """The broker does not run any more."""


class Server:
    """Runs a broker on the running event loop."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[StorageError | InternalError] = self.loop.create_future()
        limits = broker.config.limits
        self.admission = Admission(limits, connection_limit(limits.max_connections))
        self.handshakes = Handshakes(limits.max_handshakes)
        #: all that are open, those among them whose connection is over
        self.sockets: set[SocketDriver] = set()
        self.driver = LoopDriver(self)
        #: where it accepts clients
        self.listeners = Listeners(self)
        self._auditing = Auditing(broker)
        #: sends spans to a collector; None where none is configured
        self.spans: SpanExporter | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._watcher: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._storage: Storage | None = None

    async def start(self) -> None:
        """Recover, then listen. Raises TriviumError or OSError when that is not possible."""
        broker = self.broker
        listeners = broker.config.all_listeners()
        needed = list(listeners)
        inside = inside_client()
        if inside is not None and broker.config.storage.mode == "disk":
            # What its clients have published is read from the start on.
            needed.append(inside_listener(inside.name))
        adapters = load_adapters(needed, broker.config.protocols)
        load_http(listeners)
        if broker.config.jwt.jwks_url or broker.config.http_auth.url:
            from trivium.runtime import fetching

            fetching.prepare()
        self._storage = self._open_storage()
        self._start_tracing()
        try:
            self._open(self._storage, adapters)
        except BaseException:
            # Nothing of it becomes durable: it is done by halves.
            self.driver.cancel()
            self.driver.is_over = True
            await self.loop.run_in_executor(None, self._storage.withdraw)
            self._auditing.stop()
            await self._stop_tracing()
            raise
        self._auditing.start()
        try:
            self.driver.call(self.watch)
            await self.listeners.start()
        except BaseException:
            await self.stop()
            raise
        self.driver.call(self.tick)
        self.driver.watch_turns()

    def _start_tracing(self) -> None:
        config = self.broker.config.tracing
        if config.endpoint:
            # A broker without it does not pay for a client of HTTP.
            from trivium.observability.span_exporter import SpanExporter

            self.spans = SpanExporter(config)
            self.broker.virtual_hosts.tracer = MessageTracer(
                self.broker, config.sample_ratio, config.parent_based, self.spans.spans
            )

    async def _stop_tracing(self) -> None:
        if self.spans is not None:
            await self.loop.run_in_executor(None, self.spans.close)

    def _open(self, storage: Storage, adapters: list[Adapter]) -> None:
        """Recover. Raises InternalError, and TriviumError that says what is wrong."""
        try:
            self.driver.begin_turn()
            self.broker.open(storage, self.driver, adapters)
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
            post=self.driver.post,
            wake=self.driver.request_turn,
            on_fatal=self.fail,
            fsync=str(config.fsync),
            compression=config.compression,
            keys=keys,
        )

    async def stop(self) -> None:
        """Stop accepting, tell the clients, write what is left, release the data directory."""
        self.broker.is_stopping = True
        had_failed = self.failed.done()
        for timer in (self._ticker, self._watcher):
            if timer is not None:
                timer.cancel()
        self.driver.cancel()
        self.listeners.close()
        self.handshakes.abort()
        self.driver.call(self._shut_down_connections)
        self.driver.end_turn()
        if self.sockets:
            try:
                await asyncio.wait_for(self._emptied.wait(), STOP_SECONDS)
            except TimeoutError:
                pass
        for driver in list(self.sockets):
            driver.abort()
        await asyncio.sleep(0)
        try:
            await self.driver.stop_fetching()
            await self.listeners.stop_http()
        finally:
            await self._close_storage()
            await self.loop.run_in_executor(None, self._auditing.stop)
            await self._stop_tracing()
            self.broker.listeners.clear()
        if self.failed.done() and not had_failed:
            raise self.failed.result()

    def _shut_down_connections(self) -> None:
        for connection in list(self.broker.connections):
            if not connection.is_closed:
                connection.shutdown()

    async def _close_storage(self) -> None:
        if self._storage is None:
            return
        self.driver.end_turn()
        self.driver.is_over = True
        try:
            await self.loop.run_in_executor(None, self._storage.close)
        except StorageError:
            # Said when it happened; what matters here is that the directory is released.
            if not self.failed.done():
                raise
        except Exception as error:
            self.stop_for(error)

    async def wait_failed(self) -> BaseException:
        """Wait for ``failed``, as ``Broker.wait_failed``. Cancelling leaves ``failed`` as it is."""
        return await asyncio.shield(self.failed)

    # Clients of this process

    def adapter(self, protocol: str) -> Adapter:
        """The adapter of a protocol, begun where it was not needed so far. Raises ConfigError."""
        broker = self.broker
        found = broker.adapters.get(protocol)
        if found is None:
            needed = [inside_listener(protocol)]
            (found,) = adapters = load_adapters(needed, broker.config.protocols)
            broker.adapters.update((adapter.name, adapter) for adapter in adapters)
            self.driver.call(partial(found.start, broker))
            self.driver.watch_turns()
        return found

    def client(self, vhost: str, username: str | None, settings: Mapping[str, Any]) -> Connecting:
        """As ``Broker.client``."""
        entry = inside_client()
        if entry is None:
            raise ConfigError("no installed protocol has a client for this process")
        make = entry.load()
        made: Connecting = make(self.broker, vhost=vhost, username=username, **settings)
        return made

    def connect(self, protocol: str, client: asyncio.Protocol) -> InsideTransport:
        """Connect a client of this process; its transport. Raises ServerStopped."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("the broker runs on another event loop")
        if self.broker.is_stopping:
            raise ServerStopped("the broker has stopped")
        listener = Listener(inside_listener(protocol))
        driver = SocketDriver(self, self.adapter(protocol), listener, False)
        return join(client, cast("asyncio.Protocol", driver))

    # Sockets

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
        self.fail(failure)
        assert self._storage is not None
        self._storage.fail(failure)
        if not isinstance(error, Exception):
            raise error

    def fail(self, error: StorageError | InternalError) -> None:
        """The broker cannot go on: nobody is answered any more."""
        if self.failed.done():
            return
        # A disk that fails needs no traceback.
        trace = error if error.__cause__ is not None else None
        logger.critical("the broker stops: %s", error, exc_info=trace)
        self.failed.set_result(error)
        self.broker.is_stopping = True
        self.listeners.close()
        self.handshakes.abort()
        for connection in list(self.broker.connections):
            connection.is_closed = True
        for driver in list(self.sockets):
            driver.abort()

    def reload(self) -> None:
        """Read the certificates, changed or not, and open the audit log again."""
        self.driver.call(self.listeners.reload)
        self._auditing.reload()

    @property
    def audit_lines_lost(self) -> int:
        """Lines of the audit log that could not be written."""
        return self._auditing.lost

    def watch(self) -> None:
        """Look at memory and disk, now and again."""
        interval = self.broker.check_alarms()
        self._watcher = self.driver.call_later(interval, self.watch)

    def tick(self) -> None:
        """Look at time-outs, now and each second."""
        self.broker.tick(self.loop.time())
        self.admission.tick()
        self.listeners.tick()
        self._auditing.tick()
        self._ticker = self.driver.call_later(TICK_SECONDS, self.tick)
