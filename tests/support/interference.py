"""A network between a client and its broker that can be made to fail."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Interference:
    """Passes bytes on to a broker, until it is told otherwise; what it has, ends with it."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("trivium://").rpartition(":")
        self._broker = host, int(port)
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.place = ""
        self.url = ""
        #: set once a connection has come, and each time
        self.has_come = asyncio.Event()

    async def __aenter__(self) -> Interference:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1024)
        self.place = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.url = f"trivium://{self.place}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def mute(self) -> None:
        """Nothing passes any more, and new connections are never spoken to."""
        self._passes.clear()

    def unmute(self) -> None:
        """What waits passes, and all that follows."""
        self._passes.set()

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.has_come.set()
        with suppress(ConnectionError, asyncio.CancelledError):
            await self._passes.wait()
            towards, back = await asyncio.open_connection(*self._broker)
            self._writers.add(back)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, back))
                group.create_task(self._pass_on(towards, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
