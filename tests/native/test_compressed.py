"""PUBLISH with compressed messages, made by the libraries' own compressors."""

from __future__ import annotations

import struct

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.native import (
    CODECS,
    Client,
    Server,
    entry,
    frame,
    packed,
    publish,
)
from tests.support.server import ShortTurns
from trivium.config import Config, LimitsConfig, Listen
from trivium.routing.exchanges import Binding
from trivium_native.client import operations
from trivium_native.errors import InvalidArgument
from trivium_native.values import Producer, Publication
from trivium_native.wire import frames

MIB = 1 << 20


def server(max_message_bytes: int = 16 * MIB) -> tuple[Server, Client]:
    """A broker whose queue ``q`` gets all, and a client."""
    limits = LimitsConfig(max_message_bytes=max_message_bytes)
    found = Server(None, Config(listen={"native": Listen(0)}, limits=limits))
    queue = found.vhost.declare_queue("q", durable=True)
    found.vhost.bind(found.vhost.exchange("amq.topic"), Binding(queue, b"#"))
    found.settle()
    return found, found.open()


def queued(server: Server) -> list[bytes]:
    queue = server.vhost.queue("q")
    found = [queue.get() for _ in range(len(queue))]
    return [each.message.payload for each in found if each is not None]


def is_refused(client: Client, body: bytes) -> bool:
    ((kind, _, reply),) = client.send(frames.PUBLISH, 1, body)
    assert (kind, msgpack.unpackb(reply)[0]) == (frames.ERROR, 100)
    return client.is_closed


def test_hello_says_which_codecs_there_are() -> None:
    client = server()[0].connect()
    hello = {"protocol": "trivium", "version": 1}
    ((_, _, body),) = client.send(frames.HELLO, 1, hello)
    assert msgpack.unpackb(body)["compression"] == ["lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_messages_are_those_that_they_were(codec: str) -> None:
    broker, client = server()
    payloads = [b"a", b"", bytes(100_000), b"b" * 20_000]
    body = packed(publish(*(entry(payload) for payload in payloads)), codec)
    assert len(body) < 2000
    assert client.send(frames.PUBLISH, 1, body) == [(frames.CONFIRM, 1, struct.pack("<I", 1))]
    assert queued(broker) == payloads


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_messages_of_a_producer_are_published_once(codec: str) -> None:
    broker, client = server()
    client.ask(frames.PRODUCER, producer="p")
    for first in (0, 0, 1):
        entries = [entry(b"%d" % number) for number in range(first, first + 2)]
        body = packed(publish(*entries, producer=(b"p", 0, first)), codec)
        assert client.send(frames.PUBLISH, 1, body)[0][0] == frames.CONFIRM
    assert queued(broker) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("off", [-1, 1, 4 * MIB])
def test_compressed_messages_of_another_size_than_stated_close(codec: str, off: int) -> None:
    broker, client = server()
    body = publish(entry(b"x" * 1000))
    assert is_refused(client, packed(body, codec, len(body) - 8 + off))
    assert queued(broker) == []


@pytest.mark.parametrize("codec", CODECS)
def test_more_than_may_be_compressed_closes(codec: str) -> None:
    broker, client = server()
    body = publish(*(entry(bytes(MIB)) for _ in range(4)))
    assert is_refused(client, packed(body, codec))
    assert queued(broker) == []


def test_more_than_a_frame_may_hold_closes() -> None:
    broker, client = server(max_message_bytes=1000)
    body = publish(*(entry(bytes(1000)) for _ in range(1100)))
    assert len(body) > frames.FRAME_OVERHEAD + 1000
    assert is_refused(client, packed(body, "zstd"))
    assert queued(broker) == []


def test_a_payload_that_is_too_large_refuses_its_request() -> None:
    broker, client = server(max_message_bytes=1000)
    body = packed(publish(entry(bytes(1001))), "lz4")
    ((kind, _, reply),) = client.send(frames.PUBLISH, 1, body)
    assert (kind, msgpack.unpackb(reply)[0] // 100) == (frames.ERROR, 3)
    assert not client.is_closed
    assert queued(broker) == []


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<II", 1, 6) + struct.pack("<I", 10) + bytes(10),
        struct.pack("<II", 1, 2),
        struct.pack("<II", 1, 2) + bytes(3),
        struct.pack("<II", 1, 2) + bytes(4),
        struct.pack("<II", 1, 4) + bytes(4),
        packed(publish(entry()), "zstd") + b"\0",
        packed(publish(entry()) + b"\0", "zstd"),
        packed(publish(entry()), "lz4")[:-1],
        packed(publish(entry(flags=3)), "lz4"),
    ],
)
def test_malformed_compressed_messages_close(body: bytes) -> None:
    broker, client = server()
    assert is_refused(client, body)
    assert queued(broker) == []


@given(st.binary(max_size=200), st.integers(0, 1 << 32 - 1), st.sampled_from([2, 3, 4, 5, 6, 7]))
@settings(max_examples=50, deadline=None)
def test_what_is_no_compressed_request_is_refused(data: bytes, size: int, flags: int) -> None:
    _, client = server()
    body = struct.pack("<II", 1, flags) + struct.pack("<I", size) + data
    ((kind, _, _),) = client.send(frames.PUBLISH, 1, body)
    assert kind == frames.ERROR


def test_what_compressed_messages_take_of_a_turn_counts() -> None:
    broker, client = server()
    one = frame(frames.PUBLISH, 0, packed(publish(entry(bytes(MIB))), "zstd"))
    # All of it is far below the size after which the clock is looked at.
    assert len(one) * 40 < 16_384
    driver = ShortTurns()
    broker.broker.driver = driver
    client.feed(one * 40)
    # The look comes with the frame behind.
    assert len(broker.vhost.queue("q")) <= 2
    assert driver.next == [client.connection]


def body(request: operations.Operation[None]) -> bytes:
    """What a request has, whole."""
    return request.body + bytes(request.behind)


@pytest.mark.parametrize("codec", CODECS)
def test_the_client_makes_what_the_broker_reads(codec: str) -> None:
    broker, client = server()
    messages = [Publication(payload=b"%d" % (n % 7), routing_key="a") for n in range(1000)]
    client.ask(frames.PRODUCER, producer="p")
    for producer in (None, Producer("p", 0, 0)):
        packed = body(operations.publish(messages, producer, CODECS[codec]))
        assert len(packed) < len(body(operations.publish(messages, producer))) / 5
        assert client.send(frames.PUBLISH, 1, packed)[0][0] == frames.CONFIRM
    assert queued(broker) == 2 * [b"%d" % (n % 7) for n in range(1000)]


def test_what_gains_nothing_is_sent_as_it_is() -> None:
    few = [Publication(payload=b"x")]
    assert body(operations.publish(few, None, 1)) == body(operations.publish(few))


def test_a_codec_is_used_where_the_broker_knows_it() -> None:
    assert operations.codec("zstd", {"lz4", "zstd"}) == 2
    assert operations.codec("zstd", ()) == 0
    assert operations.codec("none", {"lz4"}) == 0
    with pytest.raises(InvalidArgument, match="not one of none, lz4, zstd"):
        operations.codec("gzip", {"lz4"})
