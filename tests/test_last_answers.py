"""What a client gets that sends no more, or of which nothing more is taken: over real sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from pamqp import frame
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Confirm, Connection

import trivium.runtime.server
from tests.support import amqp, mqtt, native
from tests.support.storages import HeldStorage
from tests.support.websocket import masked, read_frame, read_head, request
from trivium import Broker, Config, Listen
from trivium.config import ListenerConfig, StorageConfig
from trivium.runtime.adapter import Connection as CoreConnection
from trivium_native.wire import frames

TIMEOUT = 20.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Road:
    """How a protocol is spoken by whoever publishes what waits for the disk."""

    #: what opens a connection, and how the last answer to that begins
    opening: bytes
    opened: bytes
    #: what publishes three messages, and what confirms them
    published: bytes
    confirmed: bytes
    #: another publish, of which nothing is taken
    late: bytes
    #: what a client says last, and the answer
    goodbye: bytes
    parted: bytes


def _amqp() -> Road:
    def marshalled(*methods: tuple[int, Frame]) -> bytes:
        return b"".join(frame.marshal(method, channel) for channel, method in methods)

    published = amqp.publish_frames("t", exchange="amq.topic", headers={"x-retain": True})
    return Road(
        opening=amqp.PROTOCOL_HEADER
        + marshalled(
            (0, amqp.start_ok()),
            (0, Connection.TuneOk(2047, 131_072, 0)),
            (0, Connection.Open("/")),
            (1, Channel.Open()),
            (1, Confirm.Select()),
        ),
        opened=marshalled((1, Confirm.SelectOk())),
        published=published * 3,
        confirmed=marshalled((1, Basic.Ack(3, True))),
        late=published,
        goodbye=marshalled((0, Connection.Close(200, "", 0, 0))),
        parted=marshalled((0, Connection.CloseOk())),
    )


def _mqtt() -> Road:
    published = [mqtt.publish("t", b"x", 1, each, 5, retain=True) for each in (1, 2, 3, 4)]
    return Road(
        opening=mqtt.connect("c", 5),
        opened=b"\x20",
        published=b"".join(published[:3]),
        # Nobody subscribes, which is told (3.4.2.1).
        confirmed=b"".join(mqtt.packet(0x40, bytes((0, each, 0x10))) for each in (1, 2, 3)),
        late=published[3],
        goodbye=mqtt.packet(0xE0),
        parted=b"",
    )


def _native() -> Road:
    def published(correlation: int) -> bytes:
        # Flags: persistent, retained.
        entry = native.entry(flags=5 | 8)
        return native.frame(frames.PUBLISH, correlation, native.publish(entry))

    hello = {"protocol": "trivium", "version": 1, "heartbeat": 0}
    auth = {"username": "guest", "password": b"guest"}
    return Road(
        opening=native.frame(frames.HELLO, 1, hello) + native.frame(frames.AUTH, 2, auth),
        opened=native.frame(frames.OK, 2, b"\x80"),
        published=b"".join(published(each) for each in (7, 8, 9)),
        confirmed=native.frame(frames.CONFIRM, 7, struct.pack("<I", 3)),
        late=published(10),
        goodbye=native.frame(frames.CLOSE, 0, b""),
        parted=b"",
    )


ROADS = {"amqp": _amqp(), "mqtt": _mqtt(), "native": _native()}


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

    @property
    def clients(self) -> list[CoreConnection]:
        return [each for each in self.broker.connections if each.login is not None]

    async def until_closed(self) -> None:
        """The broker takes nothing more of its client."""
        (client,) = self.clients
        while not client.is_closed:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def until_gone(self) -> None:
        while self.clients:  # noqa: ASYNC110
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
    config = Config(
        listen={"http": Listen(0), **{protocol: Listen(0) for protocol in ROADS}},
        listeners=tuple(
            ListenerConfig(
                protocol=protocol, address="0", name=f"{protocol}-ws", websocket=f"/{protocol}"
            )
            for protocol in ("amqp", "mqtt")
        ),
        storage=StorageConfig(mode="memory"),
    )
    async with asyncio.timeout(TIMEOUT), Broker(config) as broker:
        yield Setup(broker, storage)


@asynccontextmanager
async def websocket(setup: Setup, protocol: str, is_http: bool = False) -> AsyncIterator[Streams]:
    road = ROADS[protocol]
    listener = "http" if is_http else f"{protocol}-ws"
    async with setup.connected(listener) as (reader, writer):
        handshake = request(f"/{protocol}", f"Sec-WebSocket-Protocol: {protocol}")
        writer.write(handshake + masked(road.opening))
        assert (await read_head(reader))[0] == 101
        while road.opened not in (await read_frame(reader))[1]:
            pass
        yield reader, writer


@asynccontextmanager
async def socket(setup: Setup, protocol: str) -> AsyncIterator[Streams]:
    road = ROADS[protocol]
    async with setup.connected(protocol) as (reader, writer):
        writer.write(road.opening)
        if protocol == "mqtt":
            first, size = await reader.readexactly(2)
            assert bytes((first,)) == road.opened
            await reader.readexactly(size)
        else:
            await reader.readuntil(road.opened)
        yield reader, writer


@pytest.mark.parametrize("is_http", [False, True], ids=["own-port", "http-port"])
@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
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
async def test_what_was_published_before_a_websocket_ends_is_confirmed_first(
    monkeypatch: pytest.MonkeyPatch, wrong: bytes, code: int, protocol: str, is_http: bool
) -> None:
    road = ROADS[protocol]
    async with (
        started(monkeypatch) as setup,
        websocket(setup, protocol, is_http) as (reader, writer),
    ):
        writer.write(masked(road.published) + wrong + masked(road.late))
        await setup.until_closed()
        setup.complete()
        assert await read_frame(reader) == (0x82, road.confirmed)
        first, payload = await read_frame(reader)
        assert (first, payload[:2]) == (0x88, code.to_bytes(2, "big"))
        assert await reader.read() == b""
        await setup.until_gone()


@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
async def test_the_end_of_a_websocket_does_not_wait_for_ever_for_the_disk(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    async with started(monkeypatch) as setup, websocket(setup, protocol) as (reader, writer):
        writer.write(masked(ROADS[protocol].published) + masked(b"text", opcode=1))
        await setup.until_closed()
        setup.pass_time(3000)
        first, payload = await read_frame(reader)
        assert (first, payload[:2]) == (0x88, b"\x03\xeb")
        assert await reader.read() == b""


@pytest.mark.parametrize("protocol", ROADS)
async def test_what_was_published_before_a_client_ends_its_output_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    road = ROADS[protocol]
    async with started(monkeypatch) as setup, socket(setup, protocol) as (reader, writer):
        writer.write(road.published)
        writer.write_eof()
        await setup.until_closed()
        setup.complete()
        assert await reader.read() == road.confirmed
        await setup.until_gone()


@pytest.mark.parametrize("protocol", ROADS)
async def test_a_client_that_has_ended_its_output_is_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    async with started(monkeypatch) as setup, socket(setup, protocol) as (reader, writer):
        writer.write(ROADS[protocol].published)
        writer.write_eof()
        await setup.until_closed()
        setup.pass_time(3000)
        assert await reader.read() == b""
        await setup.until_gone()


@pytest.mark.parametrize("protocol", ROADS)
@pytest.mark.parametrize("is_whole", [False, True])
async def test_what_was_published_before_a_client_says_goodbye_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, protocol: str, is_whole: bool
) -> None:
    road = ROADS[protocol]
    async with started(monkeypatch) as setup, socket(setup, protocol) as (reader, writer):
        writer.write(road.published + road.goodbye)
        if not is_whole:
            writer.write_eof()
        await setup.until_closed()
        setup.complete()
        assert await reader.read() == road.confirmed + road.parted
        await setup.until_gone()


async def test_a_client_that_has_ended_its_output_and_is_owed_nothing_is_gone_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(monkeypatch) as setup, socket(setup, "mqtt") as (reader, writer):
        writer.write(mqtt.publish("t", b"x", 0, 0, 5) + mqtt.packet(0xC0))
        writer.write_eof()
        assert await reader.read() == mqtt.packet(0xD0)
        await setup.until_gone()
