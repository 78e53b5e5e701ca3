"""The network that `trivium chaos` makes slow or breaks, in front of a server that echoes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from trivium.cli.network import PIECE, Network

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[tuple[Network, int]]:
    """A network before a server that sends back what it gets; the port."""

    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.append(task)
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    network = Network()
    network.broker_port = server.sockets[0].getsockname()[1]
    async with server:
        yield network, await network.start()
        await network.close()
        await asyncio.gather(*served)


async def exchange(streams: Streams, data: bytes) -> bytes:
    reader, writer = streams
    writer.write(data)
    return await reader.readexactly(len(data))


@pytest.mark.parametrize("bandwidth", [0, 100_000_000])
async def test_what_is_sent_arrives_as_it_was(bandwidth: int) -> None:
    data = bytes(range(256)) * 1000
    async with echo() as (network, port):
        network.bandwidth = bandwidth
        streams = await asyncio.open_connection("127.0.0.1", port)
        assert await exchange(streams, data) == data
        streams[1].close()


async def test_a_piece_is_late_by_the_delay_and_by_its_size() -> None:
    async with echo() as (network, port):
        streams = await asyncio.open_connection("127.0.0.1", port)
        network.delay, network.bandwidth = 0.02, PIECE * 50
        begin = asyncio.get_running_loop().time()
        await exchange(streams, bytes(PIECE))
        # There and back, each 0.02 s for the piece and 0.02 s for its bytes.
        assert asyncio.get_running_loop().time() - begin >= 0.08
        streams[1].close()


async def test_a_cut_resets_the_connections() -> None:
    async with echo() as (network, port):
        streams = await asyncio.open_connection("127.0.0.1", port)
        await exchange(streams, b"there")
        network.cut()
        with contextlib.suppress(ConnectionResetError):
            assert await streams[0].read() == b""
        streams[1].close()
        again = await asyncio.open_connection("127.0.0.1", port)
        assert await exchange(again, b"again") == b"again"
        again[1].close()


async def test_nothing_passes_while_it_is_held_and_all_of_it_afterwards() -> None:
    async with echo() as (network, port):
        streams = await asyncio.open_connection("127.0.0.1", port)
        await exchange(streams, b"there")
        network.hold()
        reply = asyncio.create_task(exchange(streams, b"later"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not reply.done()
        network.heal()
        assert await reply == b"later"
        streams[1].close()


async def test_without_a_broker_connections_are_refused() -> None:
    network = Network()
    port = await network.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await network.close()
