"""WebSocket over real sockets, by bytes: the change of protocol and what comes after it."""

from __future__ import annotations

import asyncio
import gc
import random
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from websockets.http11 import Request
from websockets.server import ServerProtocol

import trivium.runtime.listeners
from tests.support.steps import living
from tests.support.websocket import ACCEPT, masked, read_frame, read_head, request
from trivium import Broker, Config
from trivium.config import LimitsConfig, Listen, ListenerConfig, StorageConfig
from trivium.errors import ConfigError
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import Adapter, Connection, Peer, Transport, WebSocketTerms
from trivium.runtime.websocket import (
    HEAD_BYTES,
    UNKNOWN_BYTES,
    Rejected,
    Terms,
    WebSocket,
    negotiate,
)
from trivium.security.identity import NOBODY, Identity

TIMEOUT = 20.0
CLOSE = 0x88


class EchoConnection(Connection):
    """Sends back what it is fed; ``KNOWN`` authenticates, ``QUIT`` ends it, ``HOLD`` pauses it."""

    def __init__(self, broker: Broker, transport: Transport, peer: Peer) -> None:
        super().__init__(broker, transport, peer)
        self.fed = 0
        self.largest = 0
        self.is_lost = asyncio.Event()

    def feed(self, data: bytes) -> None:
        self.fed += len(data)
        self.largest = max(self.largest, len(data))
        if data == b"KNOWN":
            self.identity = Identity("u")
        elif data == b"HOLD":
            self.transport.pause_reading()
        self.send(data)
        if data == b"QUIT":
            self.close()

    def lost(self) -> None:
        self.is_lost.set()

    def shutdown(self, is_revoked: bool = False, deleted_vhost: str = "") -> None:
        self.send(b"stopping")
        self.close()


class EchoAdapter(Adapter):
    def __init__(self) -> None:
        self.name = "echo"
        self.metrics = ProtocolMetrics()
        self.websocket = WebSocketTerms("/echo", ("mqtt", "mqttv3.1"), must_offer=True)
        self.connections: list[EchoConnection] = []

    def start(self, broker: Broker) -> None:
        self.broker = broker

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        self.connections.append(EchoConnection(self.broker, transport, peer))
        return self.connections[-1]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> EchoAdapter:
    adapter = EchoAdapter()
    entry = EntryPoint("echo", f"{__name__}:unused", "trivium.adapters")
    monkeypatch.setattr(EntryPoint, "load", lambda self: lambda: adapter)
    monkeypatch.setattr(trivium.runtime.listeners, "installed", lambda group: [entry])
    return adapter


def config(**limits: float) -> Config:
    listener = ListenerConfig(protocol="echo", address="0", name="echo", websocket="/mqtt")
    return Config(
        listen={},
        listeners=(listener,),
        storage=StorageConfig(mode="memory"),
        limits=LimitsConfig(**limits),  # type: ignore[arg-type]
    )


class Socket:
    """A client's socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    def send(self, *parts: bytes) -> None:
        self._writer.writelines(parts)

    def end(self) -> None:
        """Send no more."""
        self._writer.write_eof()

    async def drain(self) -> None:
        await self._writer.drain()

    async def open(self) -> None:
        self.send(request())
        status, _ = await read_head(self.reader)
        assert status == 101

    async def frame(self) -> tuple[int, bytes]:
        return await read_frame(self.reader)

    async def payload(self, size: int) -> bytes:
        """So many bytes that come in binary frames."""
        found = b""
        while len(found) < size:
            first, payload = await self.frame()
            assert first == 0x82
            found += payload
        return found

    async def close_code(self) -> int:
        """What the server closes with; it ends the socket then."""
        while True:
            first, payload = await self.frame()
            if first == CLOSE:
                break
        return int.from_bytes(payload[:2], "big")

    async def ended(self) -> bytes:
        """What comes until the server has ended, or has reset the socket."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Socket]:
    host, _, port = broker.listeners["echo"].rpartition(":")
    socket = Socket(*await asyncio.open_connection(host, int(port)))
    try:
        async with asyncio.timeout(TIMEOUT):
            yield socket
    finally:
        await socket.close()


@asynccontextmanager
async def opened(echo: EchoAdapter, **limits: float) -> AsyncIterator[tuple[Broker, Socket]]:
    """A broker and one open WebSocket."""
    async with Broker(config(**limits)) as broker, connected(broker) as socket:
        await socket.open()
        yield broker, socket


# The change of protocol

TERMS = Terms("/mqtt", WebSocketTerms("/mqtt", ("mqtt", "mqttv3.1"), must_offer=True))


def answer(head: bytes, terms: Terms = TERMS) -> str:
    try:
        return negotiate(head, terms)[1].decode()
    except Rejected as rejected:
        return rejected.answer.decode()


@pytest.mark.parametrize(
    "header", ["Origin: http://elsewhere", "Sec-WebSocket-Protocol: other", "Host: ", "\0: x"]
)
def test_nothing_is_left_of_a_request_that_is_refused(header: str) -> None:
    """No collection is needed, nor made: it would walk all messages."""
    gc.collect()
    gc.disable()
    try:
        before = living(ServerProtocol), living(Request)
        assert answer(request("/mqtt", header)).startswith("HTTP/1.1 4")
        assert (living(ServerProtocol), living(Request)) == before
    finally:
        gc.enable()


def test_rfc_6455_1_3_key_is_answered() -> None:
    lines = answer(request()).split("\r\n")
    assert lines[0] == "HTTP/1.1 101 Switching Protocols"
    assert f"Sec-WebSocket-Accept: {ACCEPT}" in lines
    assert "Sec-WebSocket-Protocol: mqtt" in lines


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [("mqtt", "mqtt"), ("mqttv3.1", "mqttv3.1"), ("x, mqttv3.1, mqtt", "mqttv3.1")],
)
def test_mqtt_6_0_0_4_subprotocol_is_the_first_that_is_spoken(offered: str, chosen: str) -> None:
    head = answer(request("/mqtt", f"Sec-WebSocket-Protocol: {offered}"))
    assert f"Sec-WebSocket-Protocol: {chosen}\r\n" in head


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(b"\x10\x0c\x00\x04MQTT\r\n\r\n", 400, id="no-http"),
        pytest.param(b"GET /mqtt HTTP/1.0\r\n\r\n", 400, id="http-1.0"),
        pytest.param(b"GET  /mqtt HTTP/1.1\r\n\r\n", 400, id="spaces"),
        pytest.param(b"GET /mqtt HTTP/1.1\r\nbad header\r\n\r\n", 400, id="no-header"),
        pytest.param(request("/mqtt", "Sec-WebSocket-Key: "), 400, id="no-key"),
        pytest.param(request("/mqtt", "Sec-WebSocket-Key: AAAA"), 400, id="short-key"),
        pytest.param(request("/mqtt", "Host: "), 400, id="no-host"),
        pytest.param(request("/mqtt", "Sec-WebSocket-Version: "), 400, id="no-version"),
        pytest.param(request("/mqtt", "Content-Length: 5"), 400, id="body"),
        pytest.param(request("/mqtt", "Transfer-Encoding: chunked"), 400, id="chunked"),
        pytest.param(request("/mqtt", "Sec-WebSocket-Protocol: "), 400, id="mqtt-6.0.0-3"),
        pytest.param(request("/mqtt", "Sec-WebSocket-Protocol: amqp"), 400, id="subprotocol"),
        pytest.param(request("/mqtt", "Sec-WebSocket-Extensions: ;;"), 400, id="extensions"),
        pytest.param(request("/mqttx"), 404, id="path"),
        pytest.param(request("/mqtt/"), 404, id="path-below"),
        pytest.param(request("/mqtt", method="POST"), 405, id="method"),
        pytest.param(request("/mqtt", "Upgrade: "), 426, id="no-upgrade"),
        pytest.param(request("/mqtt", "Upgrade: h2c"), 426, id="other-upgrade"),
        pytest.param(request("/mqtt", "Connection: keep-alive"), 426, id="no-connection"),
        pytest.param(request("/mqtt", "Sec-WebSocket-Version: 8"), 426, id="version"),
        pytest.param(request("/mqtt", "Origin: https://elsewhere.example"), 403, id="origin"),
    ],
)
def test_rfc_6455_4_2_bad_request_is_refused(head: bytes, status: int) -> None:
    line, *fields = answer(head).split("\r\n")
    assert int(line.split()[1]) == status
    assert "Connection: close" in fields
    if status == 405:
        assert "Allow: GET" in fields
    if b"Version: 8" in head:
        assert "Sec-WebSocket-Version: 13" in fields


def test_query_of_the_path_is_the_clients_own() -> None:
    assert answer(request("/mqtt?token=1")).startswith("HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("origin", "host", "origins", "is_admitted"),
    [
        ("https://a.example", "a.example", (), True),
        ("https://A.example", "a.example:443", (), True),
        ("http://a.example:8080", "a.example:8080", (), True),
        ("http://[::1]:8080", "[::1]:8080", (), True),
        ("http://a.example", "a.example:8080", (), False),
        ("https://a.example.evil", "a.example", (), False),
        ("https://a.example@evil", "a.example", (), False),
        ("null", "a.example", (), False),
        ("https://a.example:99999", "a.example", (), False),
        ("https://b.example", "a.example", ("https://b.example",), True),
        ("https://a.example", "a.example", ("https://b.example",), False),
        ("https://c.example", "a.example", ("*",), True),
        ("", "a.example", ("https://b.example",), True),
    ],
)
def test_rfc_6455_10_2_origin(
    origin: str, host: str, origins: tuple[str, ...], is_admitted: bool
) -> None:
    terms = Terms("/mqtt", TERMS.protocol, origins)
    head = answer(request("/mqtt", f"Origin: {origin}", f"Host: {host}"), terms)
    assert head.split()[1] == ("101" if is_admitted else "403")


@pytest.mark.parametrize(
    ("origin", "origins", "is_admitted"),
    [
        ("https://a.example", (), True),
        # Whoever is on the way of a page without TLS may have written it.
        ("http://a.example", (), False),
        ("http://a.example", ("http://a.example",), True),
    ],
)
def test_a_page_without_tls_is_not_of_the_host_that_has_it(
    origin: str, origins: tuple[str, ...], is_admitted: bool
) -> None:
    terms = Terms("/mqtt", TERMS.protocol, origins, has_tls=True)
    head = answer(request("/mqtt", f"Origin: {origin}", "Host: a.example"), terms)
    assert head.split()[1] == ("101" if is_admitted else "403")


@pytest.mark.parametrize(
    ("host", "is_admitted"),
    [("localhost:80", True), ("127.0.0.1", True), ("[::1]", True), ("a.example", False)],
)
def test_a_page_of_another_host_that_leads_to_this_machine_is_not_admitted(
    host: str, is_admitted: bool
) -> None:
    listener = ListenerConfig(protocol="mqtt", address="127.0.0.1:0", websocket="/mqtt")
    head = answer(
        request("/mqtt", f"Origin: http://{host}", f"Host: {host}"),
        Terms.of(listener, "/mqtt", TERMS.protocol),
    )
    assert head.split()[1] == ("101" if is_admitted else "403")
    head = answer(request("/mqtt", f"Host: {host}"), Terms.of(listener, "/mqtt", TERMS.protocol))
    assert head.split()[1] == "101"


def test_subprotocol_need_not_be_offered_where_it_is_not_asked_for() -> None:
    terms = Terms("/", WebSocketTerms("/", ("amqp",), must_offer=False))
    assert "Sec-WebSocket-Protocol" not in answer(request("/", "Sec-WebSocket-Protocol: "), terms)
    head = answer(request("/", "Sec-WebSocket-Protocol: amqp"), terms)
    assert "Sec-WebSocket-Protocol: amqp\r\n" in head
    assert answer(request("/", "Sec-WebSocket-Protocol: mqtt"), terms).split()[1] == "400"


def test_rfc_7692_7_1_messages_are_compressed_one_by_one() -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    head = answer(request("/mqtt", offer))
    extensions = next(line for line in head.split("\r\n") if "Extensions" in line)
    assert "server_no_context_takeover; client_no_context_takeover" in extensions


async def test_refused_client_gets_the_answer_and_no_connection(echo: EchoAdapter) -> None:
    async with Broker(config()) as broker, connected(broker) as socket:
        socket.send(request("/other"), b"x" * 100_000)
        found = await socket.ended()
        assert found.startswith(b"HTTP/1.1 404 ")
        assert not echo.connections


async def test_request_in_pieces_and_what_follows_it(echo: EchoAdapter) -> None:
    async with Broker(config()) as broker, connected(broker) as socket:
        for byte in request():
            socket.send(bytes((byte,)))
            await socket.drain()
        socket.send(masked(b"hello"))
        assert (await read_head(socket.reader))[0] == 101
        assert await socket.frame() == (0x82, b"hello")


async def test_request_without_end_is_refused(echo: EchoAdapter) -> None:
    async with Broker(config()) as broker, connected(broker) as socket:
        socket.send(b"GET /mqtt HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES)
        assert (await socket.ended()).startswith(b"HTTP/1.1 431 ")


async def test_handshake_has_a_time_limit(echo: EchoAdapter) -> None:
    async with Broker(config(handshake_seconds=0.05)) as broker, connected(broker) as socket:
        socket.send(b"GET /mqtt HTTP/1.1\r\n")
        assert await socket.ended() == b""
        assert not echo.connections


async def test_stop_ends_what_has_not_asked(echo: EchoAdapter) -> None:
    broker = Broker(config())
    await broker.__aenter__()
    async with connected(broker) as socket:
        assert broker.server is not None
        while not len(broker.server.handshakes):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await broker.__aexit__(None, None, None)
        assert await socket.ended() == b""


async def test_handshakes_count_as_connections(echo: EchoAdapter) -> None:
    async with Broker(config(max_connections=1)) as broker, connected(broker) as first:
        await first.open()
        async with connected(broker) as second:
            assert await second.ended() == b""


async def test_protocol_that_is_not_spoken_over_websocket_is_refused(echo: EchoAdapter) -> None:
    echo.websocket = None
    with pytest.raises(ConfigError, match="echo is not spoken over WebSocket"):
        async with Broker(config()):
            pass


# Frames


async def test_frames_split_and_join_what_they_carry(echo: EchoAdapter) -> None:
    data = random.Random(1).randbytes(300_000)
    cuts = sorted(random.Random(2).sample(range(len(data)), 50))
    frames = b"".join(
        masked(data[start:end]) for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)
    )
    async with opened(echo) as (_, socket):
        for start in range(0, len(frames), 7001):
            socket.send(frames[start : start + 7001])
        assert await socket.payload(len(data)) == data


async def test_output_of_a_turn_is_one_frame(echo: EchoAdapter) -> None:
    async with opened(echo) as (_, socket):
        socket.send(masked(b"a") + masked(b"b") + masked(b"c"))
        assert await socket.frame() == (0x82, b"abc")


async def test_rfc_6455_5_5_3_ping_is_answered_between_fragments(echo: EchoAdapter) -> None:
    async with opened(echo) as (_, socket):
        socket.send(masked(b"a", fin=False) + masked(b"?", opcode=9) + masked(b"b", opcode=0))
        found = {0x8A: b"", 0x82: b""}
        # What is taken in two turns is two messages.
        while found != {0x8A: b"?", 0x82: b"ab"}:
            first, payload = await socket.frame()
            found[first] += payload


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        pytest.param(masked(b"text", opcode=1), 1003, id="mqtt-6.0.0-1-text"),
        pytest.param(b"\x82\x01x", 1002, id="5.1-not-masked"),
        pytest.param(masked(b"x", opcode=0), 1002, id="5.4-continuation-of-nothing"),
        pytest.param(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + b"mask", 1009, id="large"),
    ],
)
async def test_rfc_6455_7_1_7_what_breaks_a_rule_closes(
    echo: EchoAdapter, frame: bytes, code: int
) -> None:
    async with opened(echo) as (_, socket):
        socket.send(masked(b"before") + frame + masked(b"after") + b"x" * 100_000)
        assert await socket.frame() == (0x82, b"before")
        assert await socket.close_code() == code
        await socket.close()
        await echo.connections[0].is_lost.wait()
        assert echo.connections[0].fed == len(b"before")


async def test_rfc_6455_5_5_1_close_is_answered_after_the_output(echo: EchoAdapter) -> None:
    async with opened(echo) as (_, socket):
        socket.send(masked(b"last") + masked(b"\x03\xe8bye", opcode=8) + masked(b"ignored"))
        assert await socket.frame() == (0x82, b"last")
        assert await socket.frame() == (CLOSE, b"\x03\xe8bye")
        assert await socket.ended() == b""
        await echo.connections[0].is_lost.wait()


async def test_rfc_6455_7_1_2_broker_closes_and_waits_for_the_answer(echo: EchoAdapter) -> None:
    async with opened(echo) as (_, socket):
        socket.send(masked(b"QUIT"))
        assert await socket.frame() == (0x82, b"QUIT")
        assert await socket.frame() == (CLOSE, b"\x03\xe8")
        socket.send(masked(b"ignored") + masked(b"\x03\xe8", opcode=8))
        assert await socket.ended() == b""
        assert echo.connections[0].fed == 4


async def test_client_that_only_ends_its_socket_gets_the_output(echo: EchoAdapter) -> None:
    async with opened(echo) as (_, socket):
        socket.send(masked(b"last"))
        socket.end()
        assert await socket.frame() == (0x82, b"last")
        assert await socket.frame() == (CLOSE, b"\x03\xe8")
        assert await socket.ended() == b""


async def test_stop_of_the_broker_is_told_and_closes(echo: EchoAdapter) -> None:
    async with opened(echo) as (broker, socket):
        socket.send(masked(b"x"))
        await socket.frame()
        stopping = asyncio.create_task(broker.__aexit__(None, None, None))
        assert await socket.frame() == (0x82, b"stopping")
        assert await socket.frame() == (CLOSE, b"\x03\xe8")
        socket.send(masked(b"\x03\xe8", opcode=8))
        await stopping


# Compressed messages


def deflated(data: bytes) -> bytes:
    """RFC 7692, section 7.2.1."""
    engine = zlib.compressobj(9, wbits=-15)
    return (engine.compress(data) + engine.flush(zlib.Z_SYNC_FLUSH))[:-4]


@asynccontextmanager
async def compressed(echo: EchoAdapter, **limits: float) -> AsyncIterator[Socket]:
    async with Broker(config(**limits)) as broker, connected(broker) as socket:
        socket.send(request("/mqtt", "Sec-WebSocket-Extensions: permessage-deflate"))
        status, _ = await read_head(socket.reader)
        assert status == 101
        yield socket


async def test_rfc_7692_7_2_3_1_compressed_messages_are_opened(echo: EchoAdapter) -> None:
    async with compressed(echo) as socket:
        # The example of the standard; then a plain one, and one in two frames.
        hello = bytes.fromhex("f248cdc9c90700")
        socket.send(masked(hello, opcode=0x42) + masked(b"plain"))
        socket.send(masked(hello[:3], opcode=0x42, fin=False), masked(hello[3:], opcode=0))
        assert await socket.payload(15) == b"HelloplainHello"


async def test_bomb_of_a_client_that_is_not_known_yet_closes(echo: EchoAdapter) -> None:
    async with compressed(echo) as socket:
        socket.send(masked(deflated(bytes(UNKNOWN_BYTES + 1)), opcode=0x42))
        assert await socket.close_code() == 1009
        assert echo.connections[0].fed == 0


async def test_compressed_message_is_opened_up_to_the_largest_message(echo: EchoAdapter) -> None:
    async with compressed(echo, max_message_bytes=1 << 20) as socket:
        socket.send(masked(b"KNOWN"))
        assert await socket.payload(5) == b"KNOWN"
        socket.send(masked(deflated(bytes(1 << 20)), opcode=0x42))
        assert await socket.payload(1 << 20) == bytes(1 << 20)
        socket.send(masked(deflated(bytes(2 << 20)), opcode=0x42))
        assert await socket.close_code() == 1009


async def test_many_compressed_messages_wait_while_input_is_held(echo: EchoAdapter) -> None:
    async with compressed(echo) as socket:
        # A read of the socket would open to a gigabyte.
        part = masked(deflated(bytes(UNKNOWN_BYTES)), opcode=0x42)
        socket.send(masked(b"HOLD"))
        assert await socket.payload(4) == b"HOLD"
        socket.send(part * (256 * 1024 // len(part)))
        socket.send(masked(b"?", opcode=9))
        connection = echo.connections[0]
        await asyncio.wait_for(socket.drain(), TIMEOUT)
        assert connection.fed == 4
        connection.transport.resume_reading()
        size = UNKNOWN_BYTES * (256 * 1024 // len(part))
        while size:
            first, payload = await socket.frame()
            if first == 0x82:
                size -= len(payload)


# Backpressure


async def test_input_is_held_and_comes_in_order(echo: EchoAdapter) -> None:
    data = random.Random(3).randbytes(1 << 20)
    async with opened(echo) as (_, socket):
        socket.send(masked(b"HOLD"))
        assert await socket.payload(4) == b"HOLD"
        for start in range(0, len(data), 1 << 16):
            socket.send(masked(data[start : start + (1 << 16)]), masked(b"?", opcode=9))
        connection = echo.connections[0]
        connection.transport.resume_reading()
        found = b""
        while len(found) < len(data):
            first, payload = await socket.frame()
            if first == 0x82:
                found += payload
        assert found == data


class Pieces:
    """What is around a ``WebSocket``: its socket, its ``SocketDriver`` and the loop, noted."""

    def __init__(self) -> None:
        self.identity = NOBODY
        self.is_closed = False
        self.is_long = False
        self.is_reading = True
        self.written: list[bytes] = []
        self.fed: list[bytes] = []
        self.later: list[Callable[[], None]] = []
        self.connection = self

    def connection_made(self, transport: object) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.fed.append(data)

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def begin_turn(self) -> None:
        pass

    def is_turn_long(self) -> bool:
        return self.is_long

    def call_soon(self, work: Callable[[], None]) -> None:
        self.later.append(work)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def write(self, data: bytes) -> None:
        self.written.append(data)


def unit() -> tuple[WebSocket, Pieces]:
    """One that is open, with nothing real around it."""
    around: Any = Pieces()
    protocol, _ = negotiate(request("/mqtt"), TERMS)
    websocket = WebSocket(around, protocol, around, around, lambda: None, 0)
    websocket.open(1 << 20)
    return websocket, around


PING = masked(b"?", opcode=9)
PONG = b"\x8a\x01?"


def test_pings_of_a_client_that_does_not_read_wait_for_it() -> None:
    websocket, around = unit()
    websocket.pause_writing()
    websocket.data_received(PING * 3 + masked(b"data"))
    assert around.written == [PONG]
    assert not around.is_reading
    websocket.resume_writing()
    assert around.written == [PONG] * 3
    assert around.fed == [b"data"]
    assert around.is_reading


def test_frames_of_control_are_taken_until_the_turn_is_long() -> None:
    websocket, around = unit()
    around.is_long = True
    websocket.data_received(PING * 3)
    for count in (1, 2, 3):
        assert around.written == [PONG] * count
        assert not around.is_reading
        around.later.pop()()
    assert around.is_reading
    assert not around.later


def test_input_that_is_held_is_taken_in_the_next_turn() -> None:
    websocket, around = unit()
    websocket.pause_reading()
    websocket.data_received(masked(b"a") + PING + masked(b"b"))
    assert (around.fed, around.written) == ([b"a"], [])
    websocket.resume_reading()
    assert (around.fed, around.is_reading) == ([b"a"], False)
    around.later.pop()()
    assert (around.fed, around.written, around.is_reading) == ([b"a", b"b"], [PONG], True)


# On the HTTP port


@asynccontextmanager
async def on_http(echo: EchoAdapter) -> AsyncIterator[Socket]:
    configured = Config(
        listen={"echo": Listen(0), "http": Listen(0)}, storage=StorageConfig(mode="memory")
    )
    async with Broker(configured) as broker:
        host, _, port = broker.listeners["http"].rpartition(":")
        socket = Socket(*await asyncio.open_connection(host, int(port)))
        async with asyncio.timeout(TIMEOUT):
            yield socket
        await socket.close()


async def test_http_port_serves_the_websocket_at_its_path(echo: EchoAdapter) -> None:
    async with on_http(echo) as socket:
        # What comes behind the request is not lost.
        socket.send(request("/echo") + masked(b"early"))
        status, fields = await read_head(socket.reader)
        assert (status, fields["Sec-WebSocket-Accept"]) == (101, ACCEPT)
        assert await socket.frame() == (0x82, b"early")
        socket.send(masked(b"later") + masked(b"\x03\xe8", opcode=8))
        assert await socket.frame() == (0x82, b"later")
        assert await socket.frame() == (CLOSE, b"\x03\xe8")
        assert await socket.ended() == b""
        await echo.connections[0].is_lost.wait()


async def test_http_connection_may_become_a_websocket_later(echo: EchoAdapter) -> None:
    async with on_http(echo) as socket:
        socket.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        status, fields = await read_head(socket.reader)
        await socket.reader.readexactly(int(fields["Content-Length"]))
        assert status == 200
        socket.send(request("/echo"))
        assert (await read_head(socket.reader))[0] == 101


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("/echo", "Upgrade: "), 426),
        (request("/echo", "Sec-WebSocket-Key: AAAA"), 400),
        (request("/echo", "Origin: http://elsewhere"), 403),
        (request("/other"), 404),
        (request("/echo", method="POST"), 405),
    ],
)
async def test_http_port_refuses_what_is_no_right_request(
    echo: EchoAdapter, asked: bytes, status: int
) -> None:
    async with on_http(echo) as socket:
        socket.send(asked)
        assert (await read_head(socket.reader))[0] == status
    assert not echo.connections
