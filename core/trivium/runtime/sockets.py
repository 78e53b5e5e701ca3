"""A client's socket: what comes is fed to its connection, and how the two end.

Whichever side ends a connection, its last answer is written, and the socket lives on for a while.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Final, cast

from trivium.common.pieces import Piece
from trivium.common.unsent import unsent_bytes
from trivium.listen import is_loopback, join_address
from trivium.runtime.adapter import DISCARDED_BYTES, Adapter, Connection, Listener, Peer

if TYPE_CHECKING:
    from trivium.runtime.server import Server

#: Bytes that may wait in a socket's buffer before its queues are held (256 KiB), and below
#: which they go on.
WRITE_HIGH_WATER: Final = 256 * 1024
WRITE_LOW_WATER: Final = 64 * 1024

#: What layers add to what is known of a connection.
CAME_AT: Final = "came_at"
#: What a transport is asked that comes from no network: where it comes from.
PLACE: Final = "place"

#: Seconds that a peer gets to take its last answer and to close its socket as well.
DRAIN_SECONDS: Final = 10.0
#: Seconds in which the network must take the last answer to a peer that is taken for dead.
CUT_SECONDS: Final = 1.0


def host_of(transport: asyncio.BaseTransport) -> str:
    """The address of the peer; "" where it came by a Unix socket."""
    name = transport.get_extra_info("peername")
    return name[0] if isinstance(name, tuple) else ""


def address_of(transport: asyncio.BaseTransport) -> str:
    """The address of the peer with its port, `unix`, or `inside`."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple):
        return join_address(name[0], name[1])
    return str(transport.get_extra_info(PLACE) or "unix")


def came_at(transport: asyncio.BaseTransport) -> int:
    """When the client came, as ``Broker.elapsed_ms``: a layer knows it, and a socket is new."""
    return int(transport.get_extra_info(CAME_AT) or time.monotonic_ns() // 1_000_000)


class Refused(asyncio.Protocol):
    """A socket that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class SocketDriver:
    """Joins one socket to one ``Connection``; it is the connection's ``Transport``.

    It is an ``asyncio.Protocol``, but not by name: a class of that base would not be a native one.
    """

    __deletable__ = ("connection",)

    connection: Connection
    _transport: asyncio.Transport

    def __init__(
        self, server: Server, adapter: Adapter, listener: Listener, is_outermost: bool
    ) -> None:
        self._server = server
        self._loop = server.driver
        self._adapter = adapter
        self._listener = listener
        # Whether no layer lies between it and the socket; and where it has entered from.
        self._is_outermost = is_outermost
        self._host = ""
        # Whether the peer sends no more; whether the connection is over, and only the socket lives.
        self._has_ended = False
        self._is_over = False
        # Whether the peer is waited for then.
        self._waits = True
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
        self._host = host = host_of(transport)
        is_loopback_peer = not host or is_loopback(host)
        certificate = transport.get_extra_info("client_certificate")
        peer = Peer(
            address_of(transport),
            is_loopback_peer,
            self._listener,
            certificate,
            came_at(transport),
            transport.get_extra_info("ssl_object"),
        )
        self.connection = self._adapter.connect(self, peer)
        broker = server.broker
        broker.add_connection(self.connection)
        if self._is_outermost and not server.admission.enter(self._listener, host):
            self._is_outermost = False
            self._refuse()
        elif broker.is_stopping:
            self._refuse()

    def _refuse(self) -> None:
        self.connection.is_closed = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        if not connection.is_closed:
            self._loop.feed(connection, data)
            return
        self._discarded += len(data)
        if self._discarded > DISCARDED_BYTES:
            self._transport.abort()

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._is_over:
            return False
        self.end_input()
        return True

    def end_input(self) -> None:
        """Nothing more is fed: close once what the peer has sent is taken and answered."""
        self._loop.call(self._close_when_taken)

    def _close_when_taken(self) -> None:
        if self._is_over:
            return
        connection = self.connection
        if connection.waits_for_turn:
            self._loop.call_soon(self._close_when_taken)
        else:
            self._server.broker.events.serving = connection
            connection.close()

    def pause_writing(self) -> None:
        self.connection.is_writable = False

    def resume_writing(self) -> None:
        self._loop.call(self.connection.resume_writing)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_over:
            self._loop.call(self._take_all)
            self._loop.call(self._end)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_outermost:
            self._is_outermost = False
            self._server.admission.leave(self._listener, self._host)
        self._server.socket_gone(self)
        # Nothing is called any more. It and the connection would keep each other in memory. There
        # is none where it could not be made.
        if hasattr(self, "connection"):
            del self.connection

    def _take_all(self) -> None:
        """Have the connection take now what it has left for turns that it will not have."""
        connection = self.connection
        connection.is_cut_off = True
        while connection.waits_for_turn and not connection.is_closed:
            self._loop.begin_next_turn(connection)

    def _end(self) -> None:
        """The connection is over: have it release what it holds."""
        self._is_over = True
        connection = self.connection
        connection.is_closed = True
        broker = self._server.broker
        broker.events.serving = connection
        broker.remove_connection(connection)
        connection.lost()

    def write(self, output: list[Piece]) -> None:
        if not self._is_over and not self._transport.is_closing():
            if len(output) == 1:
                self._transport.write(output[0])
            else:
                self._transport.writelines(output)

    # Transport

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self, waits: bool = True) -> None:
        self._waits = waits
        self._loop.close_after_turn(self)

    def abort(self) -> None:
        self._transport.abort()

    def unsent(self) -> int:
        return unsent_bytes(self._transport)

    def finish(self) -> None:
        """The output is with the transport: the connection is over.

        A socket that is closed with unread input is reset, and the peer loses what it was sent
        last. So what it still sends is read and dropped until it closes as well, within limits.
        """
        transport = self._transport
        if transport.is_closing() or self._is_over:
            return
        self._loop.call(self._end)
        if self._has_ended:
            transport.close()
            # It may not read what it is sent.
            self._timer = self._loop.call_later(DRAIN_SECONDS, transport.abort)
            return
        if not self._waits:
            transport.close()
            self._timer = self._loop.call_later(CUT_SECONDS, transport.abort)
            return
        try:
            transport.write_eof()
        except OSError:
            # The peer has reset the socket.
            transport.abort()
            return
        transport.resume_reading()
        self._timer = self._loop.call_later(DRAIN_SECONDS, transport.abort)
