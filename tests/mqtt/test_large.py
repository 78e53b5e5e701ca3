"""PUBLISH with a large payload, which is not joined: it means what it means when read in one."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest

from tests.support.mqtt import Client, Server, publish, pubrel, text, varint
from tests.support.steps import calls
from trivium.messages.large import LARGE_PAYLOAD
from trivium_mqtt.codec.publish import PublishDecoder
from trivium_mqtt.reader import Reader

#: what a socket is read for at a time
READ = 256 * 1024

CONTENT_TYPE = b"\x03" + text("x")
ALIAS = b"\x23\x00\x01"


def packets(version: int, source: random.Random) -> list[bytes]:
    """Packets of all kinds and sizes, in a random order."""
    found = []
    for number in range(1, 9):
        size = source.choice([0, 10, LARGE_PAYLOAD - 1, LARGE_PAYLOAD, LARGE_PAYLOAD + 300_000])
        properties = source.choice([b"", CONTENT_TYPE, ALIAS]) if version == 5 else b""
        qos = source.choice([0, 1, 2])
        found.append(
            publish(
                source.choice(["t", "t/long" * 50]),
                source.randbytes(size),
                qos,
                number,
                version,
                retain=source.random() < 0.3,
                dup=qos > 0 and source.random() < 0.3,
                properties=properties,
            )
        )
        if source.random() < 0.3:
            # The same once more.
            found.append(found[-1])
        if qos == 2 and source.random() < 0.5:
            found.append(pubrel(number))
    return found


Packets = list[tuple[int, bytes]]


def outcome(version: int, feed: Callable[[Client], None]) -> tuple[Packets, Packets, Packets]:
    """What the publisher, a subscriber and one to retained messages get.

    Messages at QoS 0 may overtake others.
    """
    server = Server()
    receiver = server.open("receiver", version)
    receiver.subscribe("#", 2)
    sender = server.open("sender", version)
    feed(sender)
    late = server.open("late", version)
    late.feed(
        b"\x82"
        + varint(6 + (version == 5))
        + b"\x00\x01"
        + bytes(version == 5)
        + text("#")
        + b"\x02"
    )
    return sender.take(), sorted(receiver.take(), key=lambda each: each[0] & 6), late.take()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("seed", range(8))
def test_in_pieces_it_means_what_it_means_in_one(version: int, seed: int) -> None:
    source = random.Random(seed)
    whole = packets(version, source)
    data = b"".join(whole)

    def one_by_one(sender: Client) -> None:
        for each in whole:
            sender.feed(each)

    def in_pieces(sender: Client) -> None:
        at = 0
        while at < len(data):
            size = source.choice([1, 2, 1000, 100_000, READ])
            sender.feed(data[at : at + size])
            at += size

    assert outcome(version, in_pieces) == outcome(version, one_by_one)


@pytest.mark.pure
def test_it_is_taken_without_being_joined() -> None:
    server = Server()
    sender = server.open("sender")
    data = publish("t", bytes(2 * LARGE_PAYLOAD), 1)
    pieces = [data[at : at + READ] for at in range(0, len(data), READ)]
    assert calls(PublishDecoder.decode, lambda: sender.feed(*pieces)) == 1
    # One that begins it, and none that takes it.
    assert calls(Reader.take_frames, lambda: sender.feed(*pieces)) == 1


@pytest.mark.parametrize(
    ("first", "body"),
    [
        (0x36, text("t") + b"\x00\x01\x00"),  # QoS 3
        (0x32, text("t") + b"\x00\x00\x00"),  # packet identifier 0
        (0x30, b"\xff\xff" + b"t" * 10),  # text that is no topic name
        (0x30, text("a/#") + b"\x00"),
        (0x30, text("t") + b"\x80\x80\x80\x80\x01"),  # length of properties of five bytes
        (0x30, text("t") + b"\x80\x80\x00"),  # ... longer than needed
        (0x30, text("t") + b"\x02\x01\x07"),  # a property that may not be so
        (0x30, text("t") + b"\xff\xff\xff\x7f"),  # properties beyond the packet
        (0x30, text("") + b"\x00"),  # no topic name and no alias
        (0x30, text("t") + b"\x03\x23\xff\xff"),  # an alias above the maximum
    ],
)
def test_what_is_wrong_with_it_is_told_as_in_one(first: int, body: bytes) -> None:
    rest = body + bytes(LARGE_PAYLOAD)
    data = bytes((first,)) + varint(len(rest)) + rest
    in_one = outcome(5, lambda sender: sender.feed(data))
    assert in_one[0][0][0] == 0xE0
    in_pieces = [data[at : at + 100_000] for at in range(0, len(data), 100_000)]
    assert outcome(5, lambda sender: sender.feed(*in_pieces)) == in_one


def test_while_publishers_are_paused_it_waits() -> None:
    server = Server()
    receiver = server.open("receiver")
    receiver.subscribe("t")
    sender = server.open("sender")
    data = publish("t", b"x" * 2 * LARGE_PAYLOAD, 1)
    sender.feed(data[:READ])
    sender.connection.blocked("memory")
    sender.feed(data[READ:-1], data[-1:])
    assert (receiver.take(), sender.take()) == ([], [])
    assert sender.transport.is_paused
    sender.connection.unblocked()
    server.settle()
    assert [body[3:] for _, body in receiver.take()] == [b"x" * 2 * LARGE_PAYLOAD]
    assert sender.take() == [(0x40, b"\x00\x01")]


def test_a_begun_packet_takes_memory_for_what_has_come_of_it() -> None:
    """Not for what was announced, nor for what else was read with it."""
    server = Server()
    senders = [server.open(f"c{number}") for number in range(20)]
    read = publish("t", bytes(READ // 2)) + publish("t", bytes(10_000_000))[:10_000]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for sender in senders:
            sender.feed(read + b"")
        assert tracemalloc.get_traced_memory()[0] - before < 20 * 30_000
    finally:
        tracemalloc.stop()
