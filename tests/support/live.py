"""Brokers and clients on loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from trivium import Broker, Config
from trivium.config import EVERYTHING, AuthConfig, Listen, StorageConfig, UserConfig

TIMEOUT = 20.0


@asynccontextmanager
async def running(data: Path | None = None, *, users: bool = False) -> AsyncIterator[str]:
    """A broker, in memory or in a directory; its URL without credentials."""
    async with running_broker(data, users=users) as (_, url):
        yield url


@asynccontextmanager
async def running_broker(
    data: Path | None = None, *, users: bool = False
) -> AsyncIterator[tuple[Broker, str]]:
    """The same, with the broker itself."""
    mode = StorageConfig(mode="memory") if data is None else StorageConfig(data=data)
    config = Config(
        listen={"native": Listen(0)},
        storage=mode,
        users={"u": UserConfig(password="p", permissions=EVERYTHING)} if users else {},
        auth=AuthConfig(anonymous="never" if users else "loopback"),
    )
    async with Broker(config) as broker:
        yield broker, f"trivium://{broker.listeners['native']}"


@asynccontextmanager
async def running_inside(
    data: Path | None = None, users: Mapping[str, UserConfig] | None = None
) -> AsyncIterator[Broker]:
    """A broker without listeners."""
    mode = StorageConfig(mode="memory") if data is None else StorageConfig(data=data)
    async with Broker(Config(listen={}, storage=mode, users=users or {})) as broker:
        yield broker


class FakeBroker:
    """A listener that answers each connection with fixed bytes, once the client has spoken."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._gone: list[asyncio.Event] = []
        self.url = ""

    async def __aenter__(self) -> FakeBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"trivium://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for gone in self._gone:
            await gone.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = asyncio.Event()
        self._gone.append(gone)
        try:
            await reader.read(1)
            writer.write(self._answer)
            await reader.read()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            pass
        finally:
            gone.set()
