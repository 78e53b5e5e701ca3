"""A connection that is made again when it is lost, with what lives on it.

What was asked and not answered is asked again, in its order, where the broker does it once all the
same (``Operation.repeats``); all else is refused with ``Interrupted``. Subscriptions go on where
they were, members of groups say so with their next heartbeat. New requests wait meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, TypeVar

from trivium_native.client import operations
from trivium_native.client.connection import ClientConnection
from trivium_native.client.gate import Gate
from trivium_native.client.operations import Operation
from trivium_native.client.protocol import ClientProtocol
from trivium_native.client.reconnecting import Persistence, may_pass, shares
from trivium_native.client.url import Target
from trivium_native.wire.errors import ConnectionFailed, Interrupted, NativeError, TimedOut

T = TypeVar("T")


class _Road(asyncio.Protocol):
    """One socket of the connection. What an earlier one still says is not heard."""

    def __init__(self, connection: LastingConnection) -> None:
        self._connection = connection
        connection.road = self

    @property
    def _is_current(self) -> bool:
        return self._connection.road is self

    def data_received(self, data: bytes) -> None:
        if self._is_current:
            self._connection.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_current:
            self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        if self._is_current:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._is_current:
            self._connection.resume_writing()


class LastingConnection(ClientConnection):
    """One client's connection, over as many sockets as it takes."""

    def __init__(
        self, target: Target, name: str, heartbeat: int, timeout: float, persistence: Persistence
    ) -> None:
        super().__init__(ClientProtocol(target, name=name, heartbeat=heartbeat))
        self.road: _Road | None = None
        #: where brokers may be, and what it comes with
        self.target = target
        self._name = name
        self._interval = heartbeat
        self._timeout = timeout
        self._persistence = persistence
        # Whether it has been there; closed and lost connections are not made again before.
        self._was_open = False
        # Whether there is no connection at the moment.
        self._is_away = False
        # Numbers of subscriptions that ended with a connection.
        self._cut: set[int] = set()
        # Open while what was interrupted may be asked again: before all that is new.
        self._can_ask_again = Gate()
        self._restoring: asyncio.Task[None] | None = None

    # Requests

    async def run(self, operation: Operation[T]) -> T:
        if not self.can_write.is_free:
            await self.can_write.wait()
        while True:
            try:
                found = await self.ask(operation)
            except Interrupted:
                if not operation.repeats:
                    raise
            else:
                if operation.secret is not None:
                    # What it came with counts no more.
                    self.target = replace(self.target, password=operation.secret.decode())
                return found
            await self._can_ask_again.wait()

    def send(self, operation: Operation[Any], wants_reply: bool) -> int:
        if self._is_away and not wants_reply and self.error is None:
            # Of a subscription, or a member, which ended with the connection.
            return 0
        return super().send(operation, wants_reply)

    def add_credit(self, number: int, amount: int) -> None:
        if number not in self._cut:
            super().add_credit(number, amount)

    # Life

    async def open(self, target: Target) -> None:
        await self._open_first()
        self._was_open = True
        self._can_ask_again.open()
        self.can_write.open()
        self._persistence.connected(self.place)

    async def _open_first(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._persistence.retry
        for wait in self._persistence.first_waits():
            try:
                await self._open_any()
                return
            except NativeError as error:
                left = end - loop.time()
                if left <= 0 or not may_pass(error):
                    raise
            await asyncio.sleep(min(wait, left))

    async def _open_any(self) -> None:
        """Connect to the first of the places where a broker answers. Raises as the last one.

        A place that does not answer leaves the others their share of the time.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout
        failure: NativeError | None = None
        for place, share in shares(self.target.places):
            self.protocol = ClientProtocol(place, name=self._name, heartbeat=self._interval)
            self._ready = loop.create_future()
            try:
                async with asyncio.timeout((end - loop.time()) * share):
                    await self._open_at(place, lambda: _Road(self))
            except TimeoutError:
                failure = TimedOut(f"no answer from {place.host}:{place.port} in time")
                self._hang_up(failure)
            except NativeError as error:
                self._hang_up(error)
                if not may_pass(error):
                    raise
                failure = error
            else:
                self.place = place
                return
        assert failure is not None
        raise failure

    def lost(self, error: NativeError) -> None:
        if self.error is not None:
            return
        if not self._was_open or self._is_away:
            # An attempt has failed; who made it sees to the rest.
            self._hang_up(error)
            return
        self._persistence.disconnected(error)
        if self._persistence.policy is None or not may_pass(error):
            self.fail(error)
            return
        self._is_away = True
        self._hang_up(error)
        self._restoring = asyncio.create_task(self._restore(error))

    def _hang_up(self, error: NativeError) -> None:
        """The socket is of no use any more: what waits for it is interrupted."""
        self.road = None
        self.can_write.close()
        self._can_ask_again.close()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        if self.transport is not None:
            self.transport.abort()
            self.transport = None
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        interrupted = Interrupted(f"{error.text}; the answer had not come")
        for future in self.requests.values():
            if not future.done():
                future.set_exception(interrupted)
        self._cut = set(self.sinks)
        for sink in list(self.sinks.values()):
            sink.interrupted()
        for member in self.members.values():
            member.interrupted()
        # Whether publishes are taken is said anew.
        self._take_publishes()

    async def _restore(self, error: NativeError) -> None:
        policy = self._persistence.policy
        assert policy is not None
        try:
            async with asyncio.timeout(policy.limit):
                for wait in policy.waits():
                    await asyncio.sleep(wait)
                    try:
                        await self._open_any()
                        async with asyncio.timeout(self._timeout):
                            await self._resume()
                        break
                    except TimeoutError:
                        error = TimedOut("no answer from the broker in time")
                    except NativeError as failure:
                        error = failure
                        if self.error is not None:
                            return
                    self._hang_up(error)
                    if not may_pass(error):
                        self.fail(error)
                        return
        except TimeoutError:
            self.fail(ConnectionFailed(f"given up after {policy.limit} s: {error.text}"))
            return
        self._is_away = False
        self._can_ask_again.open()
        self.can_write.open()
        for member in self.members.values():
            member.called()
        self._persistence.connected(self.place)

    async def _resume(self) -> None:
        """Subscribe again to what was subscribed to."""
        for sink in list(self.sinks.values()):
            if self.sinks.get(sink.number) is not sink:
                continue  # ended meanwhile
            try:
                await sink.resume()
                if self.sinks.get(sink.number) is not sink:
                    super().send(operations.unsubscribe(sink.number), False)
            except NativeError as error:
                if may_pass(error):
                    raise
                self.sinks.pop(sink.number, None)
                sink.end(error)

    def fail(self, error: NativeError) -> None:
        super().fail(error)
        self._can_ask_again.open()

    async def close(self) -> None:
        restoring = self._restoring
        await super().close()
        if restoring is not None and restoring is not asyncio.current_task():
            restoring.cancel()
            await asyncio.gather(restoring, return_exceptions=True)
