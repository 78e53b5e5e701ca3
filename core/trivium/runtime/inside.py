"""Clients within the broker's own process: a pair of transports that no socket lies between.

What one end writes is fed to the other end's protocol in the next iteration of the loop. So a
client of the process is a connection like any other one: its turns, permissions, quotas and
backpressure are the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterable
from typing import Any, Final, Protocol

from trivium.common.pieces import Piece
from trivium.listen import ListenerConfig
from trivium.runtime.sockets import PLACE, WRITE_HIGH_WATER, WRITE_LOW_WATER
from trivium.security.inside import INSIDE

#: Bytes that a protocol is fed in one call, where they came in smaller pieces (256 KiB).
FEED_BYTES: Final = 256 * 1024

#: Whose transport it is once it is over.
_NOBODY: Final = asyncio.Protocol()


def inside_listener(protocol: str) -> ListenerConfig:
    """What such clients come by: nothing is bound to its address."""
    return ListenerConfig(
        protocol=protocol, address=f"unix:{INSIDE}", name=INSIDE, methods=(INSIDE,)
    )


class Connecting(Protocol):
    """A client that connects: once it is awaited, or for the time of a block."""

    def __await__(self) -> Generator[Any, None, Any]: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> None: ...


class InsideTransport(asyncio.Transport):
    """One end of a pair; ``join`` makes both."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({PLACE: INSIDE})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        # The other end; None once either is closed.
        self._other: InsideTransport | None = None
        # What came and was not fed yet; the end of it; whether it waits to be fed.
        self._waiting: deque[Piece] = deque()
        self._size = 0
        self._has_end = False
        self._is_reading = True
        self._is_scheduled = False
        self._is_closing = False
        # The writing side: whether the other end has too much, and how much that is.
        self._is_full = False
        self._high = WRITE_HIGH_WATER
        self._low = WRITE_LOW_WATER

    def begin(self, other: InsideTransport) -> None:
        """The other end is this one."""
        self._other = other
        self._protocol.connection_made(self)

    # What asyncio's transports do

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._schedule()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WRITE_HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return 0 if self._other is None else self._other._size

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        if self._is_closing:
            return
        other = self._other
        if other is None:
            # As a socket whose peer is gone.
            self.abort()
            return
        for data in list_of_data:
            if len(data):
                other._waiting.append(bytes(data) if isinstance(data, bytearray) else data)
                other._size += len(data)
        other._schedule()
        if other._size > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        if self._other is not None:
            self._other._has_end = True
            self._other._schedule()

    def close(self) -> None:
        """The other end gets what was written, and the end."""
        if self._is_closing:
            return
        self._is_closing = True
        self._waiting.clear()
        self._size = 0
        other = self._other
        if other is not None:
            self._other = None
            other._other = None
            other._has_end = True
            other._schedule()
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        # It and its protocol would keep each other in memory.
        protocol, self._protocol = self._protocol, _NOBODY
        protocol.connection_lost(None)

    def abort(self) -> None:
        """Close, and the other end gets nothing more."""
        other = self._other
        if other is not None:
            other._waiting.clear()
            other._size = 0
            other._is_reading = True
        self.close()

    # Feeding

    def _schedule(self) -> None:
        if not self._is_scheduled and self._is_reading and not self._is_closing:
            self._is_scheduled = True
            self._loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._is_scheduled = False
        if self._is_closing or not self._is_reading:
            return
        if self._waiting:
            data = self._next()
            self._size -= len(data)
            self._drained()
            self._protocol.data_received(data)
            if self._waiting or self._has_end:
                self._schedule()
        elif self._has_end:
            self._has_end = False
            if not self._protocol.eof_received():
                self.close()

    def _next(self) -> bytes:
        """What is fed next: some pieces joined, or a large one as it is."""
        waiting = self._waiting
        size = 0
        pieces: list[Piece] = []
        while waiting and (not pieces or size + len(waiting[0]) <= FEED_BYTES):
            size += len(waiting[0])
            pieces.append(waiting.popleft())
        (first, *more) = pieces
        return first if isinstance(first, bytes) and not more else b"".join(pieces)

    def _drained(self) -> None:
        other = self._other
        if other is not None and other._is_full and self._size <= other._low:
            other._is_full = False
            other._protocol.resume_writing()


def join(client: asyncio.Protocol, server: asyncio.Protocol) -> InsideTransport:
    """Connect two protocols with each other; the client's transport."""
    near, far = InsideTransport(client), InsideTransport(server)
    near.begin(far)
    far.begin(near)
    return near
