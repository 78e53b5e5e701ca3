"""Clients in the broker's own process: ``Broker.client``, the client for asyncio without a socket.

Both sides of the protocol are those that sockets have between them. So what a client is promised
and what it may do is the same, and so are its methods.
"""

from __future__ import annotations

import asyncio

from trivium.runtime.broker import Broker, server_of
from trivium.runtime.server import ServerStopped
from trivium_native.client.client import Connecting
from trivium_native.client.connection import WRITE_HIGH_WATER, ClientConnection
from trivium_native.client.defaults import DEFAULT_IN_FLIGHT, DEFAULT_TIMEOUT
from trivium_native.client.protocol import ClientProtocol
from trivium_native.client.url import Target
from trivium_native.wire.errors import ConnectionFailed, TimedOut


class InsideConnection(ClientConnection):
    """A connection to a broker of this process."""

    def __init__(self, broker: Broker, target: Target, name: str) -> None:
        super().__init__(ClientProtocol(target, name=name))
        self._broker = broker

    async def open(self, target: Target) -> None:
        server = server_of(self._broker)
        try:
            self.transport = server.connect("native", self)
        except ServerStopped as error:
            raise ConnectionFailed(str(error)) from None
        self.transport.set_write_buffer_limits(WRITE_HIGH_WATER)
        self.protocol.start()
        self._flush()
        await self._ready


def connect(
    broker: Broker,
    *,
    vhost: str = "/",
    username: str | None = None,
    name: str = "",
    window: int = DEFAULT_IN_FLIGHT,
    timeout: float = DEFAULT_TIMEOUT,
) -> Connecting:
    """Connect to a broker that runs on this event loop, as ``trivium_native.connect`` does by a
    socket: ``async with connect(broker) as client``, or ``client = await connect(broker)``.

    With ``username`` it has that user's permissions, without the owner's. ``window`` is how many
    publish requests may be in flight. Raises ValueError for less than 1; connecting raises
    RuntimeError for a broker that has not started, ConnectionFailed for one that has stopped,
    AuthenticationFailed, AccessRefused, NotFound (vhost), TimedOut.
    """

    async def open_connection() -> ClientConnection:
        target = Target("", vhost=vhost, username=username)
        connection = InsideConnection(broker, target, name)
        try:
            async with asyncio.timeout(timeout):
                await connection.open(target)
        except TimeoutError:
            error = TimedOut(f"no answer within {timeout} s")
            connection.fail(error)
            raise error from None
        except BaseException:
            connection.fail(ConnectionFailed("connecting was given up"))
            raise
        return connection

    return Connecting(open_connection, window)
