"""Requests with large payloads, which are not joined: they mean what they mean when read in one."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import msgpack
import pytest

from tests.support.native import Client, Received, Server, entry, frame, publish, tx
from tests.support.steps import calls
from trivium.config import Config, LimitsConfig, Listen
from trivium.messages.large import LARGE_PAYLOAD
from trivium_native.server.connection import NativeConnection
from trivium_native.wire import frames

#: what a socket is read for at a time
READ = 256 * 1024
LARGE = bytes(range(256)) * (LARGE_PAYLOAD // 256)
#: of a producer that was opened once
EPOCH = 0
CONFIG = Config(listen={"native": Listen(0)}, limits=LimitsConfig(max_message_bytes=2_000_000))


def in_pieces(data: bytes, size: int = 100_000) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def outcome(pieces: list[bytes]) -> tuple[list[Received], list[Received]]:
    """What the publisher gets, in the order of its requests, and a subscriber."""
    server = Server(config=CONFIG)
    subscriber = server.open()
    subscriber.ask(
        frames.SUBSCRIBE, subscription=1, mode="pubsub", exchange="amq.topic", pattern=b"#"
    )
    publisher = server.open()
    assert publisher.ask(frames.PRODUCER, producer="p")["epoch"] == EPOCH
    for piece in pieces:
        publisher.feed(piece)
    answers: list[Received] = []
    for kind, correlation, body in publisher.take():
        # A CONFIRM may be for several requests in a row.
        count = struct.unpack("<I", body)[0] if kind == frames.CONFIRM else 1
        body = b"" if kind == frames.CONFIRM else body
        answers += [(kind, correlation + each, body) for each in range(count)]
    return sorted(answers), subscriber.take()


@pytest.mark.parametrize("seed", range(12))
def test_in_pieces_it_means_what_it_means_in_one(seed: int) -> None:
    source = random.Random(seed)
    whole = []
    sequence = 0
    for number in range(1, 6):
        entries = []
        for _ in range(source.choice([1, 1, 2, 4])):
            size = source.choice([0, 10, LARGE_PAYLOAD - 1, LARGE_PAYLOAD, LARGE_PAYLOAD + 300_000])
            properties = source.choice([b"", msgpack.packb({1: "x"})])
            flags = source.choice([0, 1, 5, 8, 21])
            entries.append(
                entry(source.randbytes(size), b"k.%d" % number, flags=flags, properties=properties)
            )
        if source.random() < 0.3:
            whole.append(frame(frames.TX, number, tx(*entries)))
            continue
        producer = None
        if source.random() < 0.5:
            producer = (b"p", EPOCH, sequence)
            sequence += source.choice([0, len(entries)])
        whole.append(frame(frames.PUBLISH, number, publish(*entries, producer=producer)))
    data = b"".join(whole)
    pieces = []
    while data:
        size = source.choice([1, 1000, 100_000, READ])
        pieces.append(data[:size])
        data = data[size:]
    assert outcome(pieces) == outcome(whole)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("kind", "body", "answer"),
    [(frames.PUBLISH, publish, frames.CONFIRM), (frames.TX, tx, frames.OK)],
)
def test_it_is_taken_without_being_joined(
    kind: int, body: Callable[..., bytes], answer: int
) -> None:
    server = Server(config=CONFIG)
    publisher = server.open()
    data = frame(kind, 1, body(entry(LARGE), entry(b"small"), entry(LARGE * 2)))
    # One that begins it, and none that takes it.
    assert calls(NativeConnection.take_frames, lambda: publisher.feed(*in_pieces(data))) == 1
    assert [kind for kind, _, _ in publisher.take()] == [answer]


def cut(request: bytes, size: int) -> bytes:
    """The request without its last bytes, in a frame that is as long as it is then."""
    return frame(frames.PUBLISH, 1, request[:-size])


@pytest.mark.parametrize(
    "data",
    [
        cut(publish(entry(LARGE), entry(LARGE)), 1),
        cut(publish(entry(LARGE), entry(LARGE)), len(LARGE) + 10),
        frame(frames.PUBLISH, 1, publish(entry(LARGE)) + b"x"),
        frame(frames.PUBLISH, 1, publish(entry(LARGE, flags=3))),
        frame(frames.PUBLISH, 1, publish(entry(LARGE, exchange=b"none"))),
        frame(frames.PUBLISH, 1, publish(entry(LARGE, properties=b"\xc1"))),
        frame(frames.PUBLISH, 1, publish(entry(LARGE * 8))),
        frame(frames.PUBLISH, 1, publish(entry(LARGE), producer=(b"", 0, 0))),
        frame(frames.PUBLISH, 1, publish(entry(LARGE), producer=(b"n" * 256, 0, 0))),
        frame(frames.PUBLISH, 1, publish(entry(LARGE), producer=(b"p", 7, 0))),
        frame(frames.PUBLISH, 1, struct.pack("<II", 0, 0) + LARGE),
        frame(frames.PUBLISH, 1, struct.pack("<II", 1, 2) + LARGE),
        frame(frames.PUBLISH, 1, struct.pack("<IIIIQ", 1, 1, 0xFFFF_FFFF, 0, 0) + LARGE),
        frame(frames.DECLARE, 1, LARGE),
        frame(frames.TX, 1, tx(entry(LARGE), entry(LARGE))[:-1]),
        frame(frames.TX, 1, tx(entry(LARGE)) + b"x"),
        frame(frames.TX, 1, tx(entry(LARGE, exchange=b"none"))),
        frame(frames.TX, 1, tx(entry(LARGE), unknown=1)),
        frame(frames.TX, 1, struct.pack("<II", 1 << 21, 1) + LARGE * 9),
        frame(frames.TX, 1, struct.pack("<II", 300, 1) + LARGE),
    ],
)
def test_what_is_wrong_with_it_is_told_as_in_one(data: bytes) -> None:
    answer, received = outcome([data])
    assert [kind for kind, _, _ in answer] == [frames.ERROR]
    assert received == []
    assert outcome(in_pieces(data)) == (answer, [])


def test_publishing_that_is_refused_for_now_is_refused_in_pieces_too() -> None:
    server = Server(config=CONFIG)
    publisher: Client = server.open()
    data = frame(frames.PUBLISH, 1, publish(entry(LARGE * 2)))
    publisher.feed(data[:READ])
    publisher.connection.blocked("memory")
    publisher.feed(*in_pieces(data[READ:]))
    assert [kind for kind, _, _ in publisher.take()] == [frames.BLOCKED, frames.ERROR]
    publisher.connection.unblocked()
    publisher.feed(*in_pieces(data))
    assert [kind for kind, _, _ in publisher.take()] == [frames.UNBLOCKED, frames.CONFIRM]
