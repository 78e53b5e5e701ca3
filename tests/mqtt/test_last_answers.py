"""What a client gets that sends no more, or of which nothing more is taken: over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import trivium.runtime.server
from tests.support.mqtt import connect, packet, publish
from tests.support.storages import HeldStorage
from tests.support.websocket import masked, read_frame, read_head, request
from trivium import Broker, Config, Listen
from trivium.config import ListenerConfig, StorageConfig

TIMEOUT = 20.0

THREE = b"".join(publish("t", b"x", 1, number, 5, retain=True) for number in (1, 2, 3))
#: Nobody subscribes, which is told (3.4.2.1).
ACKNOWLEDGED = b"".join(packet(0x40, bytes((0, number, 0x10))) for number in (1, 2, 3))
#: A DISCONNECT for a malformed packet.
MALFORMED = b"\xe0\x01\x81"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Setup:
    """A broker whose disk works when the test says so."""

    def __init__(self, broker: Broker, storage: HeldStorage) -> None:
        self.broker = broker
        self.storage = storage

    @asynccontextmanager
    async def connected(self, listener: str) -> AsyncIterator[Streams]:
        host, _, port = self.broker.listeners[listener].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.close()

    async def until_closed(self) -> None:
        """The broker takes nothing more of its client."""
        (client,) = [each for each in self.broker.connections if each.client_id == b"c"]
        while not client.is_closed:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def until_gone(self) -> None:
        while any(each.client_id == b"c" for each in self.broker.connections):  # noqa: ASYNC110
            await asyncio.sleep(0)

    def complete(self) -> None:
        server = self.broker.server
        assert server is not None
        server.driver.end_turn()
        server.driver.call(self.storage.complete)

    def pass_time(self, milliseconds: int) -> None:
        """Have what is due by then done."""
        server = self.broker.server
        assert server is not None
        server.driver.call(lambda: self.broker.timeouts.run(self.broker.elapsed_ms + milliseconds))


@asynccontextmanager
async def started(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setup]:
    storage = HeldStorage()
    monkeypatch.setattr(trivium.runtime.server, "MemoryStorage", lambda: storage)
    websocket = ListenerConfig(protocol="mqtt", address="0", name="ws", websocket="/mqtt")
    config = Config(
        listen={"mqtt": Listen(0), "http": Listen(0)},
        listeners=(websocket,),
        storage=StorageConfig(mode="memory"),
    )
    async with asyncio.timeout(TIMEOUT), Broker(config) as broker:
        yield Setup(broker, storage)


@asynccontextmanager
async def websocket(setup: Setup, listener: str) -> AsyncIterator[Streams]:
    async with setup.connected(listener) as (reader, writer):
        writer.write(request() + masked(connect("c", 5)))
        assert (await read_head(reader))[0] == 101
        assert (await read_frame(reader))[1][:1] == b"\x20"
        yield reader, writer


@asynccontextmanager
async def socket(setup: Setup) -> AsyncIterator[Streams]:
    async with setup.connected("mqtt") as (reader, writer):
        writer.write(connect("c", 5))
        first, size = await reader.readexactly(2)
        assert first == 0x20
        await reader.readexactly(size)
        yield reader, writer


@pytest.mark.parametrize("listener", ["ws", "http"])
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        pytest.param(masked(b"text", opcode=1), 1003, id="text"),
        pytest.param(b"\x82\x01x", 1002, id="not-masked"),
        pytest.param(masked(b"", opcode=3), 1002, id="reserved-opcode"),
        pytest.param(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + b"mask", 1009, id="large"),
        pytest.param(masked(b"\x03\xe8", opcode=8), 1000, id="close"),
    ],
)
async def test_what_was_published_before_a_websocket_ends_is_acknowledged_first(
    monkeypatch: pytest.MonkeyPatch, wrong: bytes, code: int, listener: str
) -> None:
    async with started(monkeypatch) as setup, websocket(setup, listener) as (reader, writer):
        writer.write(masked(THREE) + wrong + masked(publish("t", b"y", 1, 4, 5)))
        await setup.until_closed()
        setup.complete()
        assert await read_frame(reader) == (0x82, ACKNOWLEDGED)
        first, payload = await read_frame(reader)
        assert (first, payload[:2]) == (0x88, code.to_bytes(2, "big"))
        assert await reader.read() == b""
        await setup.until_gone()


async def test_the_end_of_a_websocket_does_not_wait_for_ever_for_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(monkeypatch) as setup, websocket(setup, "ws") as (reader, writer):
        writer.write(masked(THREE) + masked(b"text", opcode=1))
        await setup.until_closed()
        setup.pass_time(3000)
        first, payload = await read_frame(reader)
        assert (first, payload[:2]) == (0x88, b"\x03\xeb")
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("wrong", "last"), [(b"", b""), (b"\0\0", MALFORMED)], ids=["right", "wrong"]
)
async def test_what_was_published_before_a_client_ends_its_output_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch, wrong: bytes, last: bytes
) -> None:
    async with started(monkeypatch) as setup, socket(setup) as (reader, writer):
        writer.write(THREE + wrong)
        writer.write_eof()
        await setup.until_closed()
        setup.complete()
        assert await reader.read() == ACKNOWLEDGED + last
        await setup.until_gone()


async def test_a_client_that_has_ended_its_output_is_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(monkeypatch) as setup, socket(setup) as (reader, writer):
        writer.write(THREE)
        writer.write_eof()
        await setup.until_closed()
        setup.pass_time(3000)
        assert await reader.read() == b""
        await setup.until_gone()


async def test_a_client_that_has_ended_its_output_and_is_owed_nothing_is_gone_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(monkeypatch) as setup, socket(setup) as (reader, writer):
        writer.write(publish("t", b"x", 0, 0, 5) + packet(0xC0))
        writer.write_eof()
        assert await reader.read() == packet(0xD0)
        await setup.until_gone()
