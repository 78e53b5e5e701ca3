"""A network that can be made slow, narrow, silent or broken: a relay on loopback before a broker.

A direction of a connection holds one piece at a time, so that a slow network is noticed by who
sends, and takes no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

LOOPBACK: Final = "127.0.0.1"
#: Bytes that are passed on together.
PIECE: Final = 16 * 1024


class Network:
    """Passes on what the clients of one listener send and get.

    ``delay`` is in seconds for each piece, ``bandwidth`` in bytes a second for each direction of a
    connection, 0 for all there is. Where the broker listens may change: ``broker_port``.
    """

    def __init__(self) -> None:
        self.broker_port = 0
        self.delay = 0.0
        self.bandwidth = 0
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._connected, LOOPBACK, 0, limit=PIECE)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def hold(self) -> None:
        """Pass nothing on, and tell nobody."""
        self._passes.clear()

    def heal(self) -> None:
        """Pass all on at once."""
        self.delay, self.bandwidth = 0.0, 0
        self._passes.set()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """End all connections, and take no more."""
        if self._server is not None:
            self._server.close()
        self.heal()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(LOOPBACK, self.broker_port, limit=PIECE)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        both = {writer, there[1]}
        self._writers |= both
        ways = [
            asyncio.create_task(self._pass_on(reader, there[1])),
            asyncio.create_task(self._pass_on(there[0], writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in both:
                # What was written before an end of the stream still arrives.
                end.close()
            self._writers -= both

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                seconds = self.delay + (len(data) / self.bandwidth if self.bandwidth else 0.0)
                if seconds:
                    await asyncio.sleep(seconds)
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
