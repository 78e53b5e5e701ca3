"""The broker: virtual hosts, storage, adapters, and the turn that ties them together.

A *turn* is everything that happens between two looks at the sockets. Connections are fed, they
change queues and fill their output, and ``end_turn`` closes it: what was collected is written to
the storage's write batch, the write batch is committed, and each connection's output leaves with
one write. This object does no I/O and knows no event loop; ``trivium.runtime.driver`` drives it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import mypyc_attr

from trivium.common.pieces import Piece
from trivium.common.turns import EndOfTurn
from trivium.config import Config
from trivium.host import Host
from trivium.messages.delivery import delivery_mode
from trivium.messages.message import PROTOCOL_NEUTRAL, register_codec
from trivium.messages.neutral import NeutralCodec
from trivium.observability.metrics import ProtocolMetrics
from trivium.queues.dead_letters import DeadLetters
from trivium.runtime import user_deletion
from trivium.runtime.adapter import Adapter, Connection, told_of
from trivium.runtime.alarms import Alarms
from trivium.runtime.authentication import Authentication, HostClock, Logins
from trivium.runtime.event_messages import EventMessages
from trivium.runtime.framed import FramedConnection
from trivium.runtime.long_requests import LongRequests
from trivium.runtime.pacing import Pacing
from trivium.runtime.virtual_hosts import VirtualHosts
from trivium.security.authenticator import Authenticator
from trivium.security.permissions import Permissions
from trivium.security.users import Users
from trivium.storage.base import Storage
from trivium.storage.memory import MemoryStorage
from trivium.streams.joining import RecoveredJoins
from trivium.vhost.virtual_host import VirtualHost

if TYPE_CHECKING:
    from types import TracebackType

    from trivium.runtime.inside import Connecting
    from trivium.runtime.server import Server
    from trivium.security.web import WebAnswer, WebRequest

logger = logging.getLogger(__name__)

#: Bytes in the write batch that is being filled above which publishers are paused until the disk
#: has caught up (64 MiB); some three write batches of that size can be in memory then.
MAX_PENDING_BYTES: Final = 64 << 20


#: Entries that queues give up in one turn because they have expired or are too many, or make ready
#: because their time has come. The rest is for later turns, so that others are served between.
MAX_GIVEN_UP: Final = 4096

#: Visits (``Host.count_work``) that take about as long as a frame, and those that are not counted.
FRAME_VISITS: Final = 16
FEW_VISITS: Final = 256

#: Milliseconds by which two readings of the clocks may differ though neither was set.
CLOCK_TOLERANCE_MS: Final = 2


@mypyc_attr(allow_interpreted_subclasses=True)
class Driver:
    """What the broker needs from whoever drives it. ``trivium.runtime.driver`` has the real one."""

    def request_turn(self) -> None:
        """Have ``end_turn`` called soon, once however often this is asked."""

    def wake_at(self, at: int) -> None:
        """Have ``end_turn`` called at ``at`` (see ``Broker.elapsed_ms``; 0 for not at all).

        A further call replaces the one before. The turn of each second notices when the wall
        clock, by which some of it may have been reckoned, was set.
        """

    def is_turn_long(self) -> bool:
        """Whether this turn has lasted for as long as it should."""
        return False

    def next_turn(self, connection: Connection) -> None:
        """Have ``next_turn`` of ``connection`` called in the next turn."""

    def call_soon(self, work: Callable[[], None]) -> None:
        """Do some work in the next turn."""

    def go_on(self, connection: Connection) -> None:
        """Call ``take_waiting`` of ``connection``, whose fault it is what that raises."""
        connection.take_waiting()

    def write(self, connection: Connection, output: list[Piece]) -> None:
        """Write a connection's output."""

    def run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        """Run ``work`` off the loop, then ``done`` with its result on the loop."""
        done(work())

    def fetch(self, request: WebRequest, done: Callable[[WebAnswer | None], None]) -> None:
        """Make a request over HTTP, then call ``done`` with its answer, None for none."""
        done(None)

    def memory_limit(self) -> int:
        """Bytes of memory that this process may use; 0 when that is not known."""
        return 0

    def resident_memory(self) -> int:
        """Bytes of resident memory; -1 when they are not known."""
        return -1

    def release_memory(self) -> None:
        """Memory is short: give back to the system what is free."""

    def free_disk(self) -> int:
        """Free bytes where the storage lies; -1 when they are not known or do not matter."""
        return -1


class Broker(Host):
    """One broker in this process.

    ``async with Broker(Config(...)) as broker:`` runs it on the current event loop, with listeners
    as configured; ``Broker.listeners`` then maps the name of each to its ``host:port``.
    """

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(MemoryStorage())
        self.config = Config() if config is None else config
        #: the delivery mode of queues that have none of their own, -1 for that of each message
        self.default_delivery = delivery_mode(self.config.delivery.mode)
        self.driver = Driver()
        #: the clients that are in
        self.logins = Logins(self)
        self.authentication = Authentication(
            self.config,
            self._run_blocking,
            self._fetch,
            self.logins.changed,
            lambda: self.now_ms,
            HostClock(self),
            self.logins.permissions_changed,
            self.events,
        )
        self.authentication.users.adding = self.logins.user_added
        self.virtual_hosts = VirtualHosts(self)
        self.adapters: dict[str, Adapter] = {}
        #: what clients of the HTTP API have counted, as adapters do for theirs
        self.http = ProtocolMetrics()
        #: live connections, for limits, alarms and shutdown
        self.connections: set[Connection] = set()
        self.listeners: dict[str, str] = {}
        self.is_stopping = False
        #: joins the small record batches that a crash left
        self.recovered_joins = RecoveredJoins(self)
        self.alarms = Alarms(0, 0)
        #: why publishers are paused: None they are not, empty for a moment only
        self.block_reason: str | None = None
        #: holds publishers back for moments while live subscribers read
        self.pacing = Pacing(self)
        #: requests that take several turns, or one for themselves
        self.long_requests = LongRequests()
        self._dirty: list[Connection] = []
        self.may_give_up = MAX_GIVEN_UP
        self.dead_letters = DeadLetters(self)
        self._unflushed: list[EndOfTurn] = []
        #: what runs it on an event loop; None where nothing does
        self.server: Server | None = None

    # Life

    @property
    def authenticator(self) -> Authenticator:
        """Decides who may connect."""
        return self.authentication.authenticator

    @property
    def users(self) -> Users:
        """The broker's own users."""
        return self.authentication.users

    def open(self, storage: Storage, driver: Driver, adapters: list[Adapter]) -> None:
        """Recover the state from ``storage``, then start the adapters."""
        self.storage = storage
        self.driver = driver
        register_codec(PROTOCOL_NEUTRAL, NeutralCodec())
        limits = self.config.limits
        self.alarms = Alarms(
            limits.memory_high_bytes or int(limits.memory_high_fraction * driver.memory_limit()),
            limits.disk_free_bytes,
        )
        self.authentication.open(storage)
        self.logins.limits.open(storage.table("limits"))
        self.virtual_hosts.open()
        for vhost in self.vhosts.values():
            self.virtual_hosts.set_configured_policies(vhost)
        for adapter in adapters:
            self.adapters[adapter.name] = adapter
        for adapter in adapters:
            adapter.start(self)
        self.virtual_hosts.go_on()
        user_deletion.go_on(self)
        EventMessages(self)
        self.end_turn()

    def vhost(self, name: str) -> VirtualHost:
        """The virtual host called ``name``. Raises NotFound."""
        return self.virtual_hosts.get(name)

    @property
    def vhosts(self) -> dict[str, VirtualHost]:
        """The virtual hosts, by name."""
        return self.virtual_hosts.by_name

    async def __aenter__(self) -> Broker:
        from trivium.runtime.server import Server

        if self.server is not None:
            raise RuntimeError("a broker runs once: make another one")
        self.server = Server(self)
        await self.server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await server_of(self).stop()

    async def wait_failed(self) -> BaseException:
        """Wait until the storage fails for good, or something happens that the broker does not
        understand; the StorageError or InternalError. Nothing is acknowledged after it.

        Raises RuntimeError for a broker that has not started.
        """
        return await server_of(self).wait_failed()

    def client(
        self, *, vhost: str = "/", username: str | None = None, **settings: Any
    ) -> Connecting:
        """A client in this process, on the broker's loop and without a socket.

        ``async with broker.client() as client`` closes it at the end of the block; what
        ``client = await broker.client()`` gives is closed by ``await client.close()``.

        It is the client of the installed protocol that has one for it, with the same methods, and
        ``settings`` are those of its ``connect``. With ``username`` it has the permissions of that
        user, whose password is not asked; without, those of the broker's owner. Connecting raises
        the protocol's errors: for a user or virtual host that there is not, or a broker that has
        stopped. Raises RuntimeError for one that has not started.
        """
        return server_of(self).client(vhost, username, settings)

    def reload(self) -> None:
        """Read the certificates of the listeners again; what is connected stays. Raises
        RuntimeError for a broker that has not started.
        """
        server_of(self).reload()

    # Turns

    def begin_turn(self) -> None:
        """Read the clocks; called by the driver before the first feed of a turn."""
        self.now_ms = time.time_ns() // 1_000_000
        offset = self.now_ms - time.monotonic_ns() // 1_000_000
        # They are not read at the same moment, and times to wait for would waver with that.
        if abs(offset - self.clock_offset) > CLOCK_TOLERANCE_MS:
            self.clock_offset = offset

    def add_dirty(self, connection: Connection) -> None:
        """``connection`` has output for the end of this turn."""
        self._dirty.append(connection)
        self.driver.request_turn()

    def request_turn(self) -> None:
        self.driver.request_turn()

    def add_unflushed(self, item: EndOfTurn) -> None:
        self.collected += 1
        self._unflushed.append(item)
        self.driver.request_turn()

    def next_at(self) -> int:
        """When a turn has something to call, as ``elapsed_ms``; 0 for never."""
        due_at = self.timeouts.next_at()
        date = self.dates.next_at()
        if date and (due_at == 0 or date - self.clock_offset < due_at):
            return date - self.clock_offset
        return due_at

    @property
    def changes(self) -> int:
        """A number that differs, within a turn, once something was added to the write batch, or
        collected for the end of the turn, which adds it.
        """
        return self.storage.changes + self.collected

    def end_turn(self) -> None:
        """Call what is due, write, commit, send. When it raises, nothing was committed that is not
        whole, and it must not be called again.
        """
        self.dates.run(self.now_ms)
        self.timeouts.run(self.elapsed_ms)
        self.dead_letters.run()
        if self._unflushed:
            items = self._unflushed
            self._unflushed = []
            for item in items:
                item.flush_turn()
        self.may_give_up = MAX_GIVEN_UP
        # Last, since anything above may have set a time.
        due_at = self.next_at()
        if due_at:
            self.driver.wake_at(due_at)
        received = self.http.messages_received
        for adapter in self.adapters.values():
            received += adapter.metrics.messages_received
        self.timings.end_turn(self.storage, received)
        self.storage.commit()
        if self._dirty:
            connections = self._dirty
            self._dirty = []
            for connection in connections:
                self.driver.write(connection, connection.take_output())
        if self.pacing.reached:
            self.pacing.end_turn()
        if self.is_behind and self.pacing.follow_backlog(
            self.storage.pending_bytes, MAX_PENDING_BYTES
        ):
            self._tell_publishers()

    def tick(self, now: float) -> None:
        """About once a second: time-outs of connections and adapters."""
        if self.alarms.is_memory_short:
            self.driver.release_memory()
        if self.alarms.is_disk_short:
            self.storage.free_space()
        self.storage.tidy()
        self.authenticator.look(self.now_ms)
        self.logins.tick()
        self.quotas.tick()
        for connection in list(self.connections):
            if not connection.is_closed:
                connection.tick(now)
        for adapter in self.adapters.values():
            adapter.tick(now)

    @property
    def permissions(self) -> Permissions:
        """What users and roles are granted."""
        return self.authentication.permissions

    # Pauses

    def add_connection(self, connection: Connection) -> None:
        """A client has connected."""
        self.connections.add(connection)
        self.logins.came(connection)
        if self.block_reason is not None:
            connection.blocked(self.block_reason)

    def remove_connection(self, connection: Connection) -> None:
        """A client's connection is gone."""
        self.connections.discard(connection)
        self.logins.expiring.discard(connection)
        self.logins.spoke(connection)
        self.logins.came_in(connection)
        if connection.usage.served:
            self.events.tell("connection.closed", **told_of(connection))
        connection.usage.leave()
        connection.usage.add_traffic(connection.traffic)
        connection.end_slowdown()

    def check_alarms(self) -> float:
        """Look at memory and disk, pause publishers or let them go on.

        The seconds after which to call it again.
        """
        alarms = self.alarms
        before = (alarms.is_memory_short, alarms.is_disk_short)
        interval = alarms.check(self.driver.resident_memory(), self.driver.free_disk())
        after = (alarms.is_memory_short, alarms.is_disk_short)
        for resource, was, is_short in zip(("memory", "disk"), before, after, strict=True):
            if was != is_short:
                self.events.tell("alarm.set" if is_short else "alarm.cleared", resource=resource)
        self._tell_publishers()
        return interval

    @property
    def is_behind(self) -> bool:
        return self.pacing.is_behind or self.storage.pending_bytes > MAX_PENDING_BYTES

    @property
    def is_turn_long(self) -> bool:
        return self.driver.is_turn_long()

    def count_work(self, visits: int) -> None:
        super().count_work(visits)
        if visits >= FEW_VISITS:
            serving = self.events.serving
            if isinstance(serving, FramedConnection):
                serving.count_frames(visits // FRAME_VISITS)

    def _tell_publishers(self) -> None:
        before = self.block_reason
        reason = self.alarms.reason
        if reason is None and self.pacing.is_behind:
            reason = ""
        # Whether it is memory or disk, or both by now, makes no difference to a client.
        if reason == before or (reason and before):
            return
        self.block_reason = reason
        for connection in list(self.connections):
            if not connection.is_closed:
                if before is not None:
                    connection.unblocked()
                if reason is not None:
                    connection.blocked(reason)

    # Health

    def unready(self) -> str | None:
        """Why clients cannot connect and publish now; None when they can."""
        if self.is_stopping:
            return "the broker is stopping"
        reason = self.alarms.reason
        return None if reason is None else f"{reason}: publishers are paused"

    def _fetch(self, request: WebRequest, done: Callable[[WebAnswer | None], None]) -> None:
        self.driver.fetch(request, done)

    def _run_blocking(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        self.driver.run_blocking(work, done)


def server_of(broker: Broker) -> Server:
    """What runs a broker on an event loop. Raises RuntimeError where it has not started."""
    if broker.server is None:
        raise RuntimeError("the broker has not started: `async with broker` does it")
    return broker.server
