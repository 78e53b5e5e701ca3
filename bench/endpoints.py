"""What the load generator's connections have in common: a non-blocking socket, read and written.

A connection is set up with blocking calls by its own module (:mod:`bench.mqtt_clients`,
:mod:`bench.amqp_clients`) and then only reacts: :mod:`bench.load` calls :meth:`Endpoint.readable`
and :meth:`Endpoint.writable` when epoll says so.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.doors import PLAIN, READ_BYTES, TLS, WEBSOCKET, Door, TlsDoor, WebSocketDoor
from bench.frames import SEQUENCE, STAMP, FrameBlock, Rows
from bench.verify import SequenceCheck

SETUP_TIMEOUT: Final = 20.0
"""Seconds a server may take to answer any step of setting a connection up."""
ANSWER_BYTES: Final = 64 * 1024
"""Receive buffer of a publisher, which gets nothing but acknowledgements."""


class Address(NamedTuple):
    """Where a server listens, and what is spoken there before the protocol."""

    host: str
    port: int
    door: str = PLAIN


Connection = socket.socket | Door
"""What is used as a socket."""


class PeerError(Exception):
    """The server under test did what its protocol or the load does not allow, or went away."""


def connect(address: Address) -> Connection:
    """Open a connection that blocks, with a timeout, until its client has shaken hands."""
    connection = socket.create_connection(address[:2], timeout=SETUP_TIMEOUT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with closed_on_error(connection):
        if address.door == TLS:
            return TlsDoor(connection)
        if address.door == WEBSOCKET:
            return WebSocketDoor(connection)
    return connection


@contextlib.contextmanager
def closed_on_error(connection: Connection) -> Iterator[None]:
    """Close ``connection`` if setting it up fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def receive_exactly(connection: Connection, size: int) -> bytes:
    """Read ``size`` bytes during set-up.

    Raises:
        PeerError: the server closed the connection first.
    """
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise PeerError(f"connection closed after {len(data)} of {size} bytes during set-up")
        data += chunk
    return bytes(data)


class Endpoint:
    """A connection under load. Subclasses say what received bytes mean, in :meth:`consume`."""

    def __init__(self, connection: Connection, receive_bytes: int) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._door = connection if isinstance(connection, Door) else None
        if self._door is not None:
            receive_bytes = max(receive_bytes, READ_BYTES)
        self.buffer = bytearray(receive_bytes)
        self._view = memoryview(self.buffer)
        self._filled = 0
        self._unsent: memoryview | None = None

    @property
    def has_unsent(self) -> bool:
        """The socket did not take everything that was written; epoll must say when it will."""
        return self._unsent is not None or (self._door is not None and self._door.has_unsent)

    def readable(self) -> None:
        """Read once and consume every whole frame.

        Raises:
            PeerError: the server closed the connection, or sent what it should not.
        """
        try:
            received = self.socket.recv_into(self._view[self._filled :])
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerError(f"connection lost: {error}") from error
        if not received:
            raise PeerError("the server closed the connection")
        filled = self._filled + received
        used = self.consume(filled)
        if used:
            self._view[: filled - used] = self._view[used:filled]
            filled -= used
        elif filled == len(self.buffer):
            raise PeerError("a frame does not fit the receive buffer")
        self._filled = filled

    def consume(self, filled: int) -> int:
        """Handle the whole frames in ``buffer[:filled]``; return how many bytes they were."""
        raise NotImplementedError

    def write(self, data: bytes | memoryview) -> None:
        """Send now what the socket takes and keep a copy of the rest.

        Raises:
            PeerError: the connection is lost.
        """
        if self._unsent is not None:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return
        sent = self._send(data)
        if sent < len(data):
            self._unsent = memoryview(bytes(data[sent:]))

    def writable(self) -> None:
        """Send more of what was left over."""
        if self._door is not None:
            self._door.flush()
        if self._unsent is not None:
            rest = self._unsent[self._send(self._unsent) :]
            self._unsent = rest if len(rest) else None

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PeerError(f"connection lost: {error}") from error

    def close(self) -> None:
        """Close the socket without ceremony."""
        self.socket.close()


class Publisher(Endpoint):
    """Sends numbered messages; counts those sent, settled by acknowledgement, refused."""

    def __init__(self, connection: Connection, block: FrameBlock) -> None:
        super().__init__(connection, ANSWER_BYTES)
        self._block = block
        self.sent = 0
        self.settled = 0
        self.refused = 0

    @property
    def unsettled(self) -> int:
        """Messages sent and not yet acknowledged."""
        return self.sent - self.settled - self.refused

    def number(self, block: FrameBlock, first: int, count: int) -> None:
        """Write the protocol's own numbers into ``count`` frames from message ``first`` on."""

    def publish(self, most: int) -> int:
        """Send a batch of up to ``most`` messages stamped with the time now; return how many."""
        count = min(most, self._block.rows)
        self._block.column(STAMP)[:count] = time.monotonic_ns()
        self._send_block(count)
        return count

    def publish_due(self, due: npt.NDArray[np.uint64]) -> None:
        """Send a message per entry of ``due``, stamped with it: when it should have been sent."""
        for start in range(0, len(due), self._block.rows):
            stamps = due[start : start + self._block.rows]
            self._block.column(STAMP)[: len(stamps)] = stamps
            self._send_block(len(stamps))

    def _send_block(self, count: int) -> None:
        block = self._block
        block.column(SEQUENCE)[:count] = np.arange(self.sent, self.sent + count, dtype=np.uint64)
        self.number(block, self.sent, count)
        self.write(block.take(count))
        self.sent += count


class Receiver(Endpoint):
    """Receives numbered messages and checks every sequence number."""

    def __init__(self, connection: Connection, receive_bytes: int) -> None:
        super().__init__(connection, receive_bytes)
        self.check = SequenceCheck()
        self.delays: list[npt.NDArray[np.uint64]] | None = None
        """Set to a list to collect each message's delay in nanoseconds."""

    def finish(self) -> None:
        """Acknowledge what is still unacknowledged at the end of a run."""

    def observe(self, rows: Rows) -> None:
        """Take the messages of a chunk."""
        self.check.add(rows[SEQUENCE])
        if self.delays is not None:
            self.delays.append(np.uint64(time.monotonic_ns()) - rows[STAMP])
