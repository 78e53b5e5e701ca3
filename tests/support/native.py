"""A broker and native connections without sockets; frames are written and read by hand."""

from __future__ import annotations

import struct
from typing import Any, Self

import lz4.block
import msgpack
import zstandard

from tests.support.server import Client as BaseClient
from tests.support.server import Server as BaseServer
from trivium.config import Config, LimitsConfig, Listen
from trivium.runtime.adapter import Adapter
from trivium.streams.records import PAYLOAD, RecordBatch
from trivium_native.server.adapter import NativeAdapter
from trivium_native.server.connection import NativeConnection
from trivium_native.server.options import NativeOptions
from trivium_native.wire import frames

Received = tuple[int, int, bytes]

CONFIG = Config(listen={"native": Listen(0)}, limits=LimitsConfig(max_message_bytes=1000))


#: numbers of codecs, as PUBLISH has them
CODECS = {"lz4": 1, "zstd": 2}


class Client(BaseClient):
    """A client that has sent nothing yet."""

    server: Server
    connection: NativeConnection

    def __init__(self, server: BaseServer) -> None:
        super().__init__(server, "native")

    def take(self) -> list[Received]:
        """The frames that came since the last look, cut without the code under test."""
        data = self.take_bytes()
        found: list[Received] = []
        while data:
            length, kind, correlation = struct.unpack_from("<IBQ", data)
            found.append((kind, correlation, data[13 : 4 + length]))
            data = data[4 + length :]
        return found

    def greet(self, heartbeat: int = 0) -> Self:
        """Say HELLO."""
        hello = {"protocol": "trivium", "version": 1, "heartbeat": heartbeat}
        ((kind, correlation, _),) = self.send(frames.HELLO, 1, hello)
        assert (kind, correlation) == (frames.HELLO, 1)
        return self

    def open(self, heartbeat: int = 0) -> Self:
        """Say HELLO and who it is."""
        self.greet(heartbeat)
        fields = {"username": "guest", "password": b"guest"}
        assert self.send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
        return self

    def send(self, kind: int, correlation: int, body: bytes | dict[str, Any]) -> list[Received]:
        """Send one frame; what came back by the end of its turn."""
        self.feed(frame(kind, correlation, body))
        return self.take()

    def ask(self, kind: int, /, **fields: Any) -> dict[str, Any]:
        """A request that must succeed at once; the fields of its reply."""
        ((reply, correlation, body),) = self.send(kind, 77, fields)
        assert (reply, correlation) == (frames.OK, 77), msgpack.unpackb(body)
        found: dict[str, Any] = msgpack.unpackb(body)
        return found

    def refused(self, kind: int, /, **fields: Any) -> int:
        """A request that must be refused at once; the code."""
        ((reply, correlation, body),) = self.send(kind, 78, fields)
        assert (reply, correlation) == (frames.ERROR, 78)
        code: int = msgpack.unpackb(body)[0]
        return code


class Server(BaseServer):
    """A broker that speaks the native protocol."""

    def make_adapters(self) -> list[Adapter]:
        options = self.config.protocols.get("native")
        assert options is None or isinstance(options, NativeOptions)
        return [NativeAdapter(options)]

    def connect(self) -> Client:
        """A client that has sent nothing."""
        return Client(self)

    def greet(self, heartbeat: int = 0) -> Client:
        """A client that has said HELLO."""
        return self.connect().greet(heartbeat)

    def open(self, heartbeat: int = 0) -> Client:
        """A client that is in."""
        return self.connect().open(heartbeat)


def frame(kind: int, correlation: int, body: bytes | dict[str, Any]) -> bytes:
    raw = msgpack.packb(body) if isinstance(body, dict) else body
    return struct.pack("<IBQ", 9 + len(raw), kind, correlation) + raw


def entry(
    payload: bytes = b"x",
    key: bytes = b"k",
    exchange: bytes = b"amq.topic",
    flags: int = 5,
    properties: bytes = b"",
    priority: int = 0,
) -> bytes:
    head = struct.pack(
        "<BBHHHII", flags, priority, len(exchange), len(key), 0, len(properties), len(payload)
    )
    return head + exchange + key + properties + payload


def publish(*entries: bytes, producer: tuple[bytes, int, int] | None = None) -> bytes:
    block = b""
    if producer is not None:
        name, epoch, sequence = producer
        block = struct.pack("<IIQ", len(name), epoch, sequence) + name
    return struct.pack("<II", len(entries), int(producer is not None)) + block + b"".join(entries)


def compressed(data: bytes, codec: str) -> bytes:
    if codec == "lz4":
        return bytes(lz4.block.compress(data, store_size=False))
    return zstandard.ZstdCompressor().compress(data)


def packed(body: bytes, codec: str, size: int | None = None) -> bytes:
    """A PUBLISH whose messages are compressed."""
    count, flags = struct.unpack_from("<II", body)
    at = 8
    if flags & 1:
        at += 16 + struct.unpack_from("<I", body, at)[0]
    messages = body[at:]
    stated = len(messages) if size is None else size
    head = struct.pack("<II", count, flags | CODECS[codec] << 1) + body[8:at]
    return head + struct.pack("<I", stated) + compressed(messages, codec)


class Delivered:
    """A DELIVER body, read by hand."""

    def __init__(self, body: bytes) -> None:
        (
            self.subscription,
            self.flags,
            self.protocol,
            self.returns,
            self.tag,
            self.timestamp,
            self.lifetime,
        ) = struct.unpack_from("<IBBHQqq", body)
        self.entry = body[32:]
        self.message_flags, self.priority, exchange, key, _, properties, payload = (
            struct.unpack_from("<BBHHHII", body, 32)
        )
        at = 48
        self.exchange = body[at : at + exchange]
        self.key = body[at + exchange : at + exchange + key]
        at += exchange + key
        self.properties = body[at : at + properties]
        self.payload = body[at + properties :]
        assert len(self.payload) == payload


def deliveries(received: list[Received]) -> list[Delivered]:
    return [Delivered(body) for kind, _, body in received if kind == frames.DELIVER]


def payloads(received: list[Received]) -> list[bytes]:
    return [delivered.payload for delivered in deliveries(received)]


def settle(subscription: int, first: int, last: int, flags: int = 0) -> bytes:
    return struct.pack("<IIQQ", subscription, flags, first, last)


def tx(*entries: bytes, **fields: Any) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return struct.pack("<II", len(packed), len(entries)) + packed + b"".join(entries)


def into(name: bytes, payload: bytes, flags: int = 5) -> bytes:
    """A message for a queue or a stream by its name."""
    return entry(payload, name, b"", flags)


def ok(received: list[Received], correlation: int = 5) -> bool:
    """Whether a request was answered with an empty OK."""
    return (frames.OK, correlation, b"\x80") in received


def code(received: list[Received]) -> int:
    """That of the ERROR which is all that came."""
    ((kind, _, body),) = received
    assert kind == frames.ERROR, received
    found: int = msgpack.unpackb(body)[0]
    return found


def records(server: Server, stream: str = "s") -> list[bytes]:
    """The payloads of all that can be read."""
    partition = server.vhost.stream(stream).partitions[0]
    found: list[bytes] = []
    for _, batch in partition.read(0, 1 << 30):
        view = RecordBatch(batch)
        found += [view.binary(PAYLOAD, row) or b"" for row in range(view.count)]
    return found


def limited(**limits: int) -> Config:
    """A configuration with these keys of ``[native]``."""
    return Config(listen={"native": Listen(0)}, protocols={"native": NativeOptions(**limits)})
