"""The pair of transports between a client of the broker's process and the broker."""

from __future__ import annotations

import asyncio
import random

import pytest

from trivium.runtime.inside import FEED_BYTES, InsideTransport, join
from trivium.runtime.sockets import WRITE_HIGH_WATER, WRITE_LOW_WATER, address_of, host_of


class End(asyncio.Protocol):
    """Notes what it is told."""

    transport: InsideTransport

    def __init__(self, stays_at_end: bool = False) -> None:
        self.fed: list[bytes] = []
        self.told: list[str] = []
        self.lost = asyncio.Event()
        self._stays_at_end = stays_at_end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, InsideTransport)
        self.transport = transport
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        self.fed.append(data)

    def eof_received(self) -> bool:
        self.told.append("end")
        return self._stays_at_end

    def pause_writing(self) -> None:
        self.told.append("full")

    def resume_writing(self) -> None:
        self.told.append("free")

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append("lost")
        self.lost.set()


async def turns() -> None:
    """As many as anything here takes."""
    for _ in range(20):
        await asyncio.sleep(0)


def pair(stays_at_end: bool = False) -> tuple[End, End]:
    client, server = End(), End(stays_at_end)
    assert join(client, server) is client.transport
    return client, server


async def test_what_is_written_is_fed_in_its_order_and_not_at_once() -> None:
    client, server = pair()
    client.transport.write(b"a")
    client.transport.writelines([bytearray(b"b"), memoryview(b"cd")[1:], b""])
    server.transport.write(b"back")
    assert server.fed == []
    await turns()
    assert server.fed == [b"abd"]
    assert client.fed == [b"back"]


async def test_large_pieces_are_fed_as_they_are() -> None:
    client, server = pair()
    large = bytes(FEED_BYTES + 1)
    client.transport.writelines([b"head", large, b"t", b"ail"])
    await turns()
    assert server.fed == [b"head", large, b"tail"]
    assert server.fed[1] is large


async def test_a_writer_is_held_while_the_reader_pauses() -> None:
    client, server = pair()
    server.transport.pause_reading()
    assert not server.transport.is_reading()
    piece = bytes(WRITE_LOW_WATER)
    while "full" not in client.told:
        client.transport.write(piece)
    await turns()
    assert server.fed == []
    size = client.transport.get_write_buffer_size()
    assert WRITE_HIGH_WATER < size <= WRITE_HIGH_WATER + len(piece)
    server.transport.resume_reading()
    await turns()
    assert client.told == ["made", "full", "free"]
    assert client.transport.get_write_buffer_size() == 0
    assert sum(map(len, server.fed)) == size


@pytest.mark.parametrize("seed", range(5))
async def test_every_byte_arrives_once_and_in_order_whoever_pauses(seed: int) -> None:
    draw = random.Random(seed)
    client, server = pair()
    ways = ((client, server, bytearray()), (server, client, bytearray()))
    for _ in range(200):
        writer, reader, written = draw.choice(ways)
        step = draw.random()
        if step < 0.5:
            piece = draw.randbytes(draw.choice((0, 1, 100, FEED_BYTES)))
            written += piece
            writer.transport.write(draw.choice((bytes, bytearray, memoryview))(piece))
        elif step < 0.6:
            reader.transport.pause_reading()
        elif step < 0.8:
            reader.transport.resume_reading()
        else:
            await asyncio.sleep(0)
    for writer, reader, written in ways:
        reader.transport.resume_reading()
        for _ in range(200):
            await asyncio.sleep(0)
        assert b"".join(reader.fed) == written
        # Whoever was held may go on.
        assert writer.told.count("full") == writer.told.count("free")


async def test_limits_of_the_buffer_can_be_set() -> None:
    client, server = pair()
    server.transport.pause_reading()
    client.transport.set_write_buffer_limits(8)
    client.transport.write(bytes(8))
    assert client.told == ["made"]
    client.transport.write(b"x")
    assert client.told == ["made", "full"]


async def test_who_pauses_while_it_is_fed_is_fed_no_more() -> None:
    client, server = pair()
    large = bytes(FEED_BYTES)
    client.transport.writelines([large, large])

    def pause(data: bytes) -> None:
        server.fed.append(data)
        server.transport.pause_reading()

    server.data_received = pause  # type: ignore[method-assign]
    await turns()
    assert len(server.fed) == 1
    server.transport.resume_reading()
    await turns()
    assert len(server.fed) == 2


async def test_closing_gives_the_other_end_what_was_written_and_the_end() -> None:
    client, server = pair()
    server.transport.write(b"too late")
    client.transport.write(b"last")
    client.transport.close()
    client.transport.close()
    assert client.transport.is_closing()
    client.transport.write(b"nothing")
    await turns()
    assert (client.fed, client.told) == ([], ["made", "lost"])
    assert (server.fed, server.told) == ([b"last"], ["made", "end", "lost"])


async def test_an_end_of_the_stream_leaves_the_way_back_open() -> None:
    client, server = pair(stays_at_end=True)
    client.transport.write(b"question")
    assert client.transport.can_write_eof()
    client.transport.write_eof()
    await turns()
    assert (server.fed, server.told) == ([b"question"], ["made", "end"])
    server.transport.write(b"answer")
    server.transport.close()
    await turns()
    assert client.fed == [b"answer"]
    assert client.lost.is_set()
    assert server.lost.is_set()


async def test_aborting_takes_back_what_was_not_fed() -> None:
    client, server = pair()
    server.transport.pause_reading()
    client.transport.write(b"lost")
    client.transport.abort()
    await turns()
    assert (server.fed, server.told) == ([], ["made", "end", "lost"])


async def test_writing_to_who_is_gone_ends_the_connection() -> None:
    client, server = pair(stays_at_end=True)
    client.transport.close()
    await turns()
    server.transport.write(b"to nobody")
    await turns()
    assert server.told == ["made", "end", "lost"]


async def test_who_writes_to_a_paused_end_that_is_gone_is_told() -> None:
    client, server = pair()
    server.transport.pause_reading()
    client.transport.close()
    await turns()
    assert server.told == ["made"]
    server.transport.write(b"to nobody")
    await turns()
    assert server.told == ["made", "lost"]


async def test_it_comes_from_no_network() -> None:
    client, _ = pair()
    assert address_of(client.transport) == "inside"
    assert host_of(client.transport) == ""
    assert client.transport.get_extra_info("socket") is None
    assert client.transport.get_protocol() is client


@pytest.mark.parametrize("ends", ["close", "abort"])
async def test_nothing_refers_to_the_other_end_once_it_is_over(ends: str) -> None:
    client, server = pair()
    getattr(client.transport, ends)()
    await turns()
    assert server.transport.get_write_buffer_size() == 0
    assert client.lost.is_set()
    assert server.lost.is_set()
