"""The asyncio client's connection: requests and their answers, the socket, signs of life."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

from trivium.common.client_tls import tls_reason
from trivium_native.client import operations
from trivium_native.client.defaults import CLOSE_TIMEOUT
from trivium_native.client.gate import Gate
from trivium_native.client.operations import Operation
from trivium_native.client.protocol import (
    BatchArrived,
    Cancelled,
    ClientProtocol,
    Closed,
    Event,
    HeartbeatWanted,
    PublishingPaused,
    Ready,
    Reply,
)
from trivium_native.client.url import ALPN, Target, cannot_connect
from trivium_native.client.values import Delivery
from trivium_native.wire.errors import (
    Blocked,
    ConnectionFailed,
    Interrupted,
    NativeError,
    RemoteProtocolError,
)

T = TypeVar("T")

#: Bytes that may wait in the socket before requests wait.
WRITE_HIGH_WATER: Final = 1 << 20


class Sink(Protocol):
    """Where what a subscription gets is put."""

    number: int

    def put(self, item: Any) -> None:
        """An item arrived."""

    def end(self, error: NativeError) -> None:
        """Nothing more will come."""

    def interrupted(self) -> None:
        """The connection is lost; it will be made again."""

    async def resume(self) -> None:
        """It was made again: subscribe, under a new number."""


class Source(Sink, Protocol):
    """One that says what asks for it."""

    def request(self) -> Operation[Any]:
        """The request to subscribe."""

    def started(self, found: Any) -> None:
        """The broker's answer to it."""


class GroupMember(Protocol):
    """A member of a group that speaks through the connection."""

    def called(self) -> None:
        """The broker wants a heartbeat."""

    def ended(self, error: NativeError) -> None:
        """The connection is over."""

    def interrupted(self) -> None:
        """The connection is lost; it will be made again, and then ``called`` tells."""

    def refused(self) -> None:
        """Offsets that it has handed out were not committed."""


class ClientConnection(asyncio.Protocol):
    """One connection. Once it has failed, every call raises the error it failed with."""

    def __init__(self, protocol: ClientProtocol) -> None:
        self.protocol = protocol
        self.error: NativeError | None = None
        #: open while the broker takes publishes
        self.can_publish = Gate()
        # The same for those that the broker has refused meanwhile: they come first.
        self._can_repeat = Gate()
        #: open while the socket's buffer has room
        self.can_write = Gate()
        #: answers that are waited for, by correlation id
        self.requests: dict[int, asyncio.Future[Reply]] = {}
        #: live subscriptions, by number
        self.sinks: dict[int, Sink] = {}
        #: members of groups, by group and name
        self.members: dict[tuple[str, str], GroupMember] = {}
        self._ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        #: the socket, once it is connected
        self.transport: asyncio.Transport | None = None
        # A transaction that is sent again on another connection must not meet other deliveries
        # under the numbers of its own.
        self._number = secrets.randbits(31)
        self._is_flush_scheduled = False
        self._heartbeat: asyncio.Task[None] | None = None
        self._has_received = False
        #: set once the socket is closed
        self.is_gone = asyncio.Event()

    # Requests

    async def run(self, operation: Operation[T]) -> T:
        """Make a request and wait for its answer, which is dropped if the wait is cancelled."""
        if not self.can_write.is_free:
            await self.can_write.wait()
        return await self.ask(operation)

    async def ask(self, operation: Operation[T]) -> T:
        """``run`` without waiting for room in the socket."""
        correlation = self.send(operation, True)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.requests[correlation] = future
        try:
            reply = await future
        finally:
            self.requests.pop(correlation, None)
        if reply.error is not None:
            raise reply.error
        assert reply.frame is not None
        return operation.result(reply.frame)

    async def publish(self, operation: Operation[T]) -> T:
        """``run`` a request that publishes, once the broker takes such.

        One that was under way when the broker began to refuse them is made again, in its order.
        """
        if not self.can_publish.is_free:
            await self.can_publish.wait()
        while True:
            try:
                return await self.run(operation)
            except Blocked:
                await self._can_repeat.wait()

    async def tell(self, operation: Operation[None]) -> None:
        """Make a request without wanting an answer."""
        if not self.can_write.is_free:
            await self.can_write.wait()
        self.send(operation, False)

    def send(self, operation: Operation[Any], wants_reply: bool) -> int:
        """Send a request with this turn's output; its correlation id."""
        if self.error is not None:
            raise self.error
        correlation = self.protocol.send(operation, wants_reply)
        self._schedule_flush()
        return correlation

    def add_credit(self, number: int, amount: int) -> None:
        """Let a subscription have more."""
        if self.error is None and number in self.sinks:
            self.protocol.add_credit(number, amount)
            self._schedule_flush()

    def next_number(self) -> int:
        """A number for a subscription."""
        self._number += 1
        return self._number

    @asynccontextmanager
    async def subscribed(self, source: Source) -> AsyncIterator[None]:
        """A subscription for the time of the block."""
        self.sinks[source.number] = source
        is_refused = False
        try:
            try:
                source.started(await self._subscribe(source))
            except NativeError:
                is_refused = True
                raise
            yield
        finally:
            self.sinks.pop(source.number, None)
            # Without waiting, so that it also works while this task is being cancelled.
            if not is_refused and self.error is None:
                self.send(operations.unsubscribe(source.number), False)

    async def _subscribe(self, source: Source) -> Any:
        while True:
            try:
                return await self.run(source.request())
            except Interrupted:
                # No connection has it: it is asked for on the next one.
                continue

    def renumber(self, sink: Sink) -> None:
        """Give a subscription another number: what came under the old one is another's."""
        del self.sinks[sink.number]
        sink.number = self.next_number()
        self.sinks[sink.number] = sink

    def _schedule_flush(self) -> None:
        """One write per turn of the loop, whatever is sent in it."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        output = self.protocol.take_output()
        if not output or self.transport is None or self.transport.is_closing():
            return
        if len(output) == 1:
            self.transport.write(output[0])
        else:
            self.transport.writelines(output)

    # Life

    async def open(self, target: Target) -> None:
        """Connect and authenticate."""
        await self._open_at(target, lambda: self)

    async def _open_at(self, target: Target, make: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        tls = target.tls
        context = None if tls is None else tls.context(ALPN)
        try:
            transport, _ = await loop.create_connection(make, target.host, target.port, ssl=context)
        except OSError as error:
            raise cannot_connect(target, error) from None
        self.transport = transport
        self.is_gone.clear()
        transport.set_write_buffer_limits(WRITE_HIGH_WATER)
        self.protocol.start()
        self._flush()
        heartbeat = await self._ready
        if heartbeat:
            self._heartbeat = asyncio.create_task(self._beat(heartbeat))

    async def close(self) -> None:
        """Say goodbye and close, which takes ``CLOSE_TIMEOUT`` at most."""
        if self.error is None:
            self.protocol.close()
            self._flush()
            self.fail(ConnectionFailed("the client is closed"))
        if self._heartbeat is not None:
            await asyncio.gather(self._heartbeat, return_exceptions=True)
        if self.transport is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self.is_gone.wait()
            # A broker that reads no more gets no more.
            self.transport.abort()

    def lost(self, error: NativeError) -> None:
        """The connection was lost."""
        self.fail(error)

    def fail(self, error: NativeError) -> None:
        """The connection is over: everyone who waits gets the error."""
        if self.error is not None:
            return
        self.error = error
        if not self._ready.done():
            self._ready.set_exception(error)
            # Whoever gave up waiting does not look at it.
            self._ready.exception()
        for future in self.requests.values():
            if not future.done():
                future.set_exception(error)
        for sink in self.sinks.values():
            sink.end(error)
        for member in self.members.values():
            member.ended(error)
        self.can_write.open()
        self._take_publishes()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self.transport is not None:
            self.transport.close()

    def _take_publishes(self) -> None:
        self._can_repeat.open()
        self.can_publish.open()

    async def _beat(self, interval: int) -> None:
        missed = 0
        while self.error is None:
            self.protocol.ping()
            self._schedule_flush()
            self._has_received = False
            await asyncio.sleep(interval)
            missed = 0 if self._has_received else missed + 1
            if missed == 2:
                self.lost(ConnectionFailed("the broker shows no sign of life"))
                return

    # From the socket

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        if self.error is not None:
            return
        try:
            events = self.protocol.receive(data)
        except RemoteProtocolError as error:
            self.fail(error)
            return
        for event in events:
            self._happened(event)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone.set()
        if error is None:
            self.lost(self.protocol.ended())
        else:
            self.lost(ConnectionFailed(tls_reason(error)))

    def pause_writing(self) -> None:
        self.can_write.close()

    def resume_writing(self) -> None:
        self.can_write.open()

    def _happened(self, event: Event) -> None:
        if isinstance(event, Reply):
            future = self.requests.get(event.correlation)
            if future is not None and not future.done():
                future.set_result(event)
        elif isinstance(event, Delivery):
            sink = self.sinks.get(event.subscription)
            if sink is not None:
                sink.put(event)
        elif isinstance(event, BatchArrived):
            sink = self.sinks.get(event.subscription)
            if sink is not None:
                sink.put(event.batch)
        elif isinstance(event, Cancelled):
            sink = self.sinks.pop(event.subscription, None)
            if sink is not None:
                sink.end(event.error)
        elif isinstance(event, HeartbeatWanted):
            member = self.members.get((event.group, event.member))
            if member is not None:
                member.called()
        elif isinstance(event, PublishingPaused):
            if event.reason is None:
                self._take_publishes()
            else:
                self.can_publish.close()
                self._can_repeat.close()
        elif isinstance(event, Ready):
            if not self._ready.done():
                self._ready.set_result(event.heartbeat)
        elif isinstance(event, Closed):
            self.lost(event.error)
