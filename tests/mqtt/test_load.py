"""What a load sends by MQTT over a connection that breaks, as bytes."""

import asyncio
from collections.abc import Awaitable, Callable

from trivium.cli.clients import Server
from trivium.cli.roads import Plan
from trivium_mqtt.load import MqttRoad

CONNACK = b"\x20\x02\x00\x00"
PLAN = Plan(name="t", qos=2, consumers=1, resumes=True)
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Watcher:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.happened: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()

    def acknowledged(self, number: int) -> None:
        self.happened.put_nowait(("acknowledged", number))

    def refused(self, number: int) -> None:
        self.happened.put_nowait(("refused", number))

    def received(self, payload: bytes, is_redelivered: bool) -> None:
        self.happened.put_nowait(("received", payload, is_redelivered))

    def can_go_on(self) -> None: ...

    def lost(self, reason: str) -> None:
        self.happened.put_nowait(("lost",))


async def road(*talks: Talk) -> tuple[MqttRoad, asyncio.Server]:
    """A road to a server that talks with each connection in its own way."""
    left = iter(talks)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next(left)(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    return MqttRoad(Server("127.0.0.1", port, None, None, ""), PLAN), server


async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    first = await reader.readexactly(2)
    body = await reader.readexactly(first[1])
    writer.write(CONNACK)
    return body


async def test_mqtt_4_4_qos_2_goes_on_in_the_next_connection() -> None:
    """PUBLISH again with DUP where there was no PUBREC, else PUBREL; the session is kept."""
    again: list[bytes] = []

    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await connect(reader, writer)
        assert body == b"\x00\x04MQTT\x04\x00\x00\x00\x00\x04t-p0"
        assert await reader.readexactly(20) == (
            b"\x34\x08\x00\x03t/0\x00\x01a" + b"\x34\x08\x00\x03t/0\x00\x02b"
        )
        writer.write(b"\x50\x02\x00\x01")
        assert await reader.readexactly(4) == b"\x62\x02\x00\x01"

    async def second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await connect(reader, writer)
        again.append(await reader.readexactly(14))
        writer.write(b"\x70\x02\x00\x01\x50\x02\x00\x02")
        again.append(await reader.readexactly(4))
        writer.write(b"\x70\x02\x00\x02")

    made, server = await road(first, second)
    async with server:
        watcher = Watcher()
        publisher = await made.publisher(0, watcher)
        publisher.publish(0, b"a")
        publisher.publish(1, b"b")
        publisher.flush()
        assert await watcher.happened.get() == ("lost",)
        await made.publisher(0, watcher)
        happened = [await watcher.happened.get() for _ in range(2)]
    assert happened == [("acknowledged", 0), ("acknowledged", 1)]
    assert again == [b"\x3c\x08\x00\x03t/0\x00\x02b" + b"\x62\x02\x00\x01", b"\x62\x02\x00\x02"]


async def test_mqtt_4_3_3_a_copy_is_not_received_again_until_pubrel() -> None:
    message = b"\x08\x00\x03t/0\x00\x07x"

    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await connect(reader, writer)
        assert await reader.readexactly(10) == b"\x82\x08\x00\x01\x00\x03t/#\x02"
        writer.write(b"\x90\x03\x00\x01\x02\x34" + message)
        assert await reader.readexactly(4) == b"\x50\x02\x00\x07"

    async def second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await connect(reader, writer)
        await reader.readexactly(10)
        # The copy, its release, and another message under the same identifier.
        writer.write(b"\x90\x03\x00\x01\x02\x3c" + message + b"\x62\x02\x00\x07\x34" + message)
        assert await reader.readexactly(12) == (
            b"\x50\x02\x00\x07" + b"\x70\x02\x00\x07" + b"\x50\x02\x00\x07"
        )

    made, server = await road(first, second)
    async with server:
        watcher = Watcher()
        await made.consumer(0, watcher)
        assert await watcher.happened.get() == ("received", b"x", False)
        assert await watcher.happened.get() == ("lost",)
        await made.consumer(0, watcher)
        assert await watcher.happened.get() == ("received", b"x", False)
        assert await watcher.happened.get() == ("lost",)


async def test_an_acknowledgement_of_nothing_ends_the_connection() -> None:
    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await connect(reader, writer)
        writer.write(b"\x40\x02\x00\x09")
        assert await reader.read() == b""

    made, server = await road(first)
    async with server:
        watcher = Watcher()
        await made.publisher(0, watcher)
        assert await watcher.happened.get() == ("lost",)
