"""Bodies of several frames: taken as they arrive, whatever lies between and across their frames."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator

import pytest
from pamqp import commands, frame, header

from tests.support.amqp import Client, Server, bodies, publish_frames, tags
from trivium.messages.large import LARGE_PAYLOAD

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
#: what a socket is read for at a time
READ = 256 * 1024


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def cut_frames(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = struct.unpack_from(">I", data, 3)[0] + 8
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_they_arrive_whole_however_they_are_cut_and_mixed(client: Client, seed: int) -> None:
    """Three channels publish at once, with heartbeats between their frames."""
    source = random.Random(seed)
    sent: dict[int, list[bytes]] = {}
    lines: list[list[bytes]] = []
    for channel in (1, 2, 3):
        if channel > 1:
            client.open_channel(channel)
        client.declare(f"q{channel}")
        line: list[bytes] = []
        for _ in range(3):
            size = source.choice([0, 1, 5000, LARGE_PAYLOAD - 1, LARGE_PAYLOAD, 400_000])
            payload = source.randbytes(size)
            sent.setdefault(channel, []).append(payload)
            chunk = source.choice([4088, 60_000, 131_064])
            line += cut_frames(publish_frames(f"q{channel}", payload, channel=channel, chunk=chunk))
            if source.random() < 0.5:
                # Frames without payload are allowed anywhere in a body.
                empty = struct.pack(">BHI", 3, channel, 0) + b"\xce"
                line[-1:] = [empty, line[-1]] if size else [line[-1]]
        lines.append(line)
    mixed = []
    while any(lines):
        line = source.choice([each for each in lines if each])
        mixed.append(line.pop(0))
        if source.random() < 0.1:
            mixed.append(HEARTBEAT)
    data = b"".join(mixed)
    at = 0
    while at < len(data):
        size = source.choice([1, 7, 8, 1000, 65_536, READ])
        client.feed(data[at : at + size])
        at += size
    for channel, payloads in sent.items():
        queue = client.server.vhost.queue(f"q{channel}")
        for payload in payloads:
            entry = queue.get()
            assert entry is not None
            assert entry.message.payload == payload
            assert entry.message.size == len(payload)


@pytest.mark.parametrize("cut", [7, 8, 5000, 100_000 + 7, 100_000 + 8])
def test_4_2_3_wrong_frame_end_behind_a_frame_in_pieces_is_501(client: Client, cut: int) -> None:
    client.declare("q")
    frames = cut_frames(publish_frames("q", bytes(300_000), chunk=100_000))
    bad = frames[2][:-1] + b"\x00"
    client.feed(frames[0] + frames[1] + bad[:cut])
    client.feed(bad[cut:])
    (close,) = client.take()
    assert (close.name, close.reply_code) == ("Connection.Close", 501)
    assert client.server.vhost.queue("q").counters.published == 0


def test_more_body_than_announced_is_505_also_in_pieces(client: Client) -> None:
    client.declare("q")
    frames = cut_frames(publish_frames("q", bytes(150_000), chunk=100_000))
    client.feed(b"".join(frames[:3]))
    more = struct.pack(">BHI", 3, 1, 60_000) + bytes(60_000) + b"\xce"
    client.feed(*in_pieces(more, 20_000))
    (close,) = client.take()
    assert (close.name, close.reply_code) == ("Connection.Close", 505)


def test_the_rest_of_a_body_is_passed_over_once_its_channel_is_closed(client: Client) -> None:
    client.declare("q")
    client.open_channel(2)
    frames = cut_frames(publish_frames("q", bytes(300_000), chunk=100_000, channel=2))
    client.feed(b"".join(frames[:2]) + frames[2][:5000])
    channel = client.connection.channels[2]
    channel.release()
    client.feed(frames[2][5000:], *frames[3:])
    assert client.server.vhost.queue("q").counters.published == 0


def test_a_body_goes_on_behind_one_that_a_closed_channel_left(client: Client) -> None:
    client.declare("q")
    for number in (2, 3):
        client.open_channel(number)
    frames = cut_frames(publish_frames("q", bytes(300_000), chunk=100_000, channel=2))
    client.feed(b"".join(frames[:3]))
    assert len(client.call(commands.Channel.Close(200, "", 0, 0), channel=2)) == 1
    client.open_channel(2)
    client.feed(*in_pieces(publish_frames("q", b"x" * 300_000, channel=2), READ))
    entry = client.server.vhost.queue("q").get()
    assert entry is not None
    assert entry.message.payload == b"x" * 300_000


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def begin_body(channel: int, size: int) -> bytes:
    """A publish up to its body."""
    method = commands.Basic.Publish(exchange="", routing_key="q")
    content = header.ContentHeader(0, size, commands.Basic.Properties())
    return bytes(frame.marshal(method, channel) + frame.marshal(content, channel))


def body_frame(channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", 3, channel, len(payload)) + payload + b"\xce"


@pytest.mark.usefixtures("traced")
def test_a_begun_body_takes_memory_for_what_has_come_of_it(client: Client) -> None:
    """Not for what was announced, nor for what else was read with it."""
    client.declare("q")
    for channel in range(2, 42):
        client.open_channel(channel)
    noise = publish_frames("nobody wants it", bytes(100_000))
    before = tracemalloc.get_traced_memory()[0]
    for channel in range(2, 42):
        client.feed(begin_body(channel, 10_000_000) + body_frame(channel, b"x") + noise)
    assert tracemalloc.get_traced_memory()[0] - before < 4 * READ


@pytest.mark.usefixtures("traced")
def test_frames_of_one_byte_take_little_more_than_what_is_in_them(client: Client) -> None:
    client.declare("q")
    frames = body_frame(1, b"x") * 50_000
    client.feed(begin_body(1, 10_000_000))
    before = tracemalloc.get_traced_memory()[0]
    for piece in in_pieces(frames, READ):
        client.feed(piece)
    del piece
    assert tracemalloc.get_traced_memory()[0] - before < 2 * READ


def test_a_delivery_in_several_frames_is_cut_by_the_client_s_limit(server: Server) -> None:
    client = Client(server).handshake(frame_max=4096)
    client.declare("q")
    payload = random.Random(1).randbytes(LARGE_PAYLOAD + 1)
    client.feed(*in_pieces(publish_frames("q", payload, chunk=4088), READ))
    frames = client.call(commands.Basic.Get(queue="q"))
    client.feed(*in_pieces(publish_frames("q", payload[::-1], chunk=4088), READ))
    frames += client.consume("q")
    assert b"".join(bodies(frames)) == payload + payload[::-1]
    assert {len(each) for each in bodies(frames)} == {4088, len(payload) % 4088}
    assert tags(frames) == [2]
