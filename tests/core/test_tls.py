"""TLS of the listeners, as Python's own client and OpenSSL's see it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority, Pair, replace_file
from tests.support.mqtt import connect
from tests.support.rest import until
from tests.support.websocket import read_head, request
from trivium.config import (
    AuthConfig,
    CertificateConfig,
    Config,
    LimitsConfig,
    Listen,
    ListenerConfig,
    StorageConfig,
    TlsConfig,
    UserConfig,
)
from trivium.errors import ConfigError
from trivium.management.views import distinguished_name, view_tls
from trivium.runtime import slow_turns
from trivium.runtime.adapter import ClientCertificate, Connection, Listener
from trivium.runtime.broker import Broker
from trivium.runtime.certificates import Certificates
from trivium.runtime.framed import FramedConnection
from trivium.runtime.tls import BARREN_BYTES, HANDSHAKE_BYTES, RECORD_BYTES, TlsLayer

CONNECT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04test"
CONNACK = b"\x20\x02\x00\x00"
PING = b"\xc0\x00"
PONG = b"\xd0\x00"
TIMEOUT = 20.0
#: bytes of a record of TLS 1.3 beside its data
RECORD_OVERHEAD = 22
#: records of one byte each with the begin of a ClientHello of 128 KiB (RFC 8446, 4.1.2 and 5.1)
LONG_HELLO = b"".join(
    b"\x16\x03\x01\x00\x01" + byte
    for byte in (b"\x01", b"\x01", b"\xff", b"\xff", b"\x03", b"\x03")
) + b"\x16\x03\x01\x00\x01\x00" * (HANDSHAKE_BYTES // 6)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server_pair(authority: Authority) -> Pair:
    return authority.pair("server", "localhost", "127.0.0.1")


def tls_of(pair: Pair, **keys: Any) -> TlsConfig:
    return TlsConfig(certificate=str(pair.certificate), key=str(pair.key), **keys)


def config(tls: TlsConfig, protocol: str = "mqtt", **limits: Any) -> Config:
    return Config(
        listen={},
        listeners=(ListenerConfig(protocol=protocol, address="127.0.0.1:0", tls=tls, name="in"),),
        storage=StorageConfig(mode="memory"),
        limits=LimitsConfig(**limits),
        # Whom a certificate names may do nothing here; everybody is anonymous.
        auth=AuthConfig(methods=("internal",)),
    )


def client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def port_of(broker: Broker) -> int:
    return int(broker.listeners["in"].rpartition(":")[2])


@contextlib.asynccontextmanager
async def connected(
    broker: Broker, context: ssl.SSLContext, host: str = "localhost"
) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port_of(broker), ssl=context, server_hostname=host
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def greet(streams: Streams) -> None:
    """CONNECT, and its answer. Raises where the broker does not let the client in."""
    reader, writer = streams
    writer.write(CONNECT)
    assert await reader.readexactly(4) == CONNACK


async def assert_refused(broker: Broker, context: ssl.SSLContext) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        async with connected(broker, context) as streams:
            await greet(streams)


def connection_of(broker: Broker, streams: Streams) -> Connection:
    """The broker's end."""
    host, port = streams[1].get_extra_info("sockname")
    (found,) = [one for one in broker.connections if one.peer.address == f"{host}:{port}"]
    return found


class Told(logging.Handler):
    """Waits for lines of the log."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.lines: list[str] = []
        self._loop = asyncio.get_running_loop()
        self.is_told = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == slow_turns.__name__:
            # The machine may be busy.
            return
        line = record.getMessage()
        assert record.exc_info is None, "a traceback"
        self.lines.append(line)
        if self.text in line:
            self._loop.call_soon_threadsafe(self.is_told.set)


@contextlib.asynccontextmanager
async def told(text: str) -> AsyncIterator[Told]:
    """What is logged, until a line with ``text``."""
    handler = Told(text)
    logger = logging.getLogger("trivium")
    level = logger.level
    logger.setLevel("INFO")
    logger.addHandler(handler)
    try:
        yield handler
        await handler.is_told.wait()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# The connection


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_is_served_over_tls_1_2_and_1_3(
    authority: Authority, server_pair: Pair, version: ssl.TLSVersion
) -> None:
    context = client_context(authority)
    context.minimum_version = context.maximum_version = version
    async with Broker(config(tls_of(server_pair))) as broker, connected(broker, context) as streams:
        await greet(streams)
        assert connection_of(broker, streams).peer.certificate is None
        assert connection_of(broker, streams).peer.listener.name == "in"


async def test_handshakes_go_on_however_long_others_make_each_turn(
    authority: Authority, server_pair: Pair
) -> None:
    # As soon as somebody asks, a turn has lasted for as long as it should.
    settings = config(tls_of(server_pair), turn_milliseconds=1e-9)
    async with Broker(settings) as broker, contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            context = client_context(authority)
            await greet(await stack.enter_async_context(connected(broker, context)))


async def test_tls_1_1_is_refused(authority: Authority, server_pair: Pair) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with Broker(config(tls_of(server_pair))) as broker, told("TLS handshake failed"):
        await assert_refused(broker, context)


async def test_minimum_version_refuses_an_older_one(
    authority: Authority, server_pair: Pair
) -> None:
    context = client_context(authority)
    async with Broker(config(tls_of(server_pair, minimum_version="1.3"))) as broker:
        async with connected(broker, context) as streams:
            await greet(streams)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        async with told("TLS handshake failed"):
            with pytest.raises(ssl.SSLError):
                async with connected(broker, context):
                    pass


@pytest.mark.parametrize(
    ("ciphers", "offered", "is_served"),
    [
        ("", "ECDHE-ECDSA-AES128-GCM-SHA256", True),
        ("", "ECDHE-ECDSA-AES128-SHA256", False),
        ("ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES128-SHA256", True),
        ("ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256", False),
    ],
)
async def test_ciphers_of_tls_1_2(
    authority: Authority, server_pair: Pair, ciphers: str, offered: str, is_served: bool
) -> None:
    context = client_context(authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(offered)
    async with Broker(config(tls_of(server_pair, ciphers=ciphers))) as broker:
        if is_served:
            async with connected(broker, context) as streams:
                await greet(streams)
        else:
            with pytest.raises(ssl.SSLError):
                async with connected(broker, context):
                    pass


@pytest.mark.parametrize(
    ("protocol", "offered", "chosen"),
    [
        ("mqtt", ["mqtt"], "mqtt"),
        ("amqp", ["h2", "amqp"], "amqp"),
        ("http", ["h2", "http/1.1"], "http/1.1"),
        ("mqtt", [], None),
        ("mqtt", ["x-other"], None),
    ],
)
async def test_alpn_is_negotiated_where_the_client_has_it(
    authority: Authority, server_pair: Pair, protocol: str, offered: list[str], chosen: str | None
) -> None:
    context = client_context(authority)
    if offered:
        context.set_alpn_protocols(offered)
    async with (
        Broker(config(tls_of(server_pair), protocol)) as broker,
        connected(broker, context) as (_, writer),
    ):
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen


async def test_alpn_of_a_websocket_is_that_of_http(authority: Authority, server_pair: Pair) -> None:
    plain = config(tls_of(server_pair))
    (listener,) = plain.listeners
    context = client_context(authority)
    context.set_alpn_protocols(["http/1.1"])
    found = replace(plain, listeners=(replace(listener, websocket="/mqtt"),))
    async with Broker(found) as broker, connected(broker, context) as (_, writer):
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize(
    ("protocol", "says", "answer"),
    [
        ("mqtt", CONNECT, CONNACK),
        ("amqp", b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00"),
        # A request that is none before HELLO: its length, ERROR, its number.
        ("native", struct.pack("<IBQ", 9, 0x7F, 1), b""),
        ("http", b"GET /health/live HTTP/1.0\r\n\r\n", b"HTTP/1.0 200 OK\r\n"),
    ],
)
async def test_every_protocol_is_served_over_tls(
    authority: Authority, server_pair: Pair, protocol: str, says: bytes, answer: bytes
) -> None:
    async with (
        Broker(config(tls_of(server_pair), protocol)) as broker,
        connected(broker, client_context(authority)) as (reader, writer),
    ):
        writer.write(says)
        assert (await reader.readexactly(len(answer) or 13)).endswith(answer)


@pytest.mark.parametrize("protocol", ["mqtt", "http"])
async def test_a_handshake_counts_for_its_address(
    authority: Authority, server_pair: Pair, protocol: str
) -> None:
    found = config(tls_of(server_pair), protocol, max_connections_per_address=1)
    async with Broker(found) as broker:
        silent = await asyncio.open_connection("127.0.0.1", port_of(broker))
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
        assert await reader.read() == b""
        writer.close()
        silent[1].close()
        assert broker.server is not None
        while broker.server.admission.counted("127.0.0.1"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with connected(broker, client_context(authority)):
            assert broker.server.admission.counted("127.0.0.1") == 1


@pytest.mark.parametrize("turn_milliseconds", [5.0, 1e-9])
async def test_large_packets_cross_in_both_directions_however_long_turns_are(
    authority: Authority, server_pair: Pair, turn_milliseconds: float
) -> None:
    payload = bytes(range(256)) * 4096 * 4
    size = 3 + len(payload)
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21])
    packet = b"\x30" + length + b"\x00\x01t" + payload
    async with (
        Broker(config(tls_of(server_pair), turn_milliseconds=turn_milliseconds)) as broker,
        connected(broker, client_context(authority)) as (reader, writer),
    ):
        await greet((reader, writer))
        writer.write(b"\x82\x06\x00\x01\x00\x01t\x00")
        assert await reader.readexactly(5) == b"\x90\x03\x00\x01\x00"
        for _ in range(3):
            writer.write(packet)
            assert await reader.readexactly(len(packet)) == packet


async def test_data_may_come_in_records_of_one_byte(
    authority: Authority, server_pair: Pair
) -> None:
    # Three times what may come without data.
    pings = 2 * BARREN_BYTES // RECORD_OVERHEAD
    async with (
        Broker(config(tls_of(server_pair))) as broker,
        connected(broker, client_context(authority)) as streams,
    ):
        await greet(streams)
        reader, writer = streams
        for _ in range(pings):
            writer.write(PING[:1])
            writer.write(PING[1:])
        assert await reader.readexactly(len(PONG) * pings) == PONG * pings


async def test_a_client_that_does_not_read_is_not_written_to_for_ever(
    authority: Authority, server_pair: Pair
) -> None:
    payload = bytes(100_000)
    size = 3 + len(payload)
    packet = b"\x30" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + b"\x00\x01t"
    limits: dict[str, Any] = {"live_output_bytes": 1 << 18, "live_burst_bytes": 1 << 20}
    async with (
        Broker(config(tls_of(server_pair), **limits)) as broker,
        connected(broker, client_context(authority)) as (slow, subscriber),
        connected(broker, client_context(authority)) as streams,
    ):
        await greet((slow, subscriber))
        subscriber.write(b"\x82\x06\x00\x01\x00\x01t\x00")
        assert await slow.readexactly(5) == b"\x90\x03\x00\x01\x00"
        receiver = connection_of(broker, (slow, subscriber))
        subscriber.transport.pause_reading()  # type: ignore[attr-defined]
        reader, writer = streams
        writer.write(CONNECT.replace(b"test", b"pub1"))
        assert await reader.readexactly(4) == CONNACK
        for _ in range(500):
            writer.write(packet + payload)
            await writer.drain()
        writer.write(PING)
        assert await reader.readexactly(2) == PONG
        assert not receiver.is_writable
        assert receiver.transport.unsent() > 0
        # What waits is the marks of socket and connection, not fifty megabytes.
        assert receiver.transport.unsent() + receiver.output_size < 16 << 20
        # Nor is it kept for ever once TLS has failed.
        raw = socket.socket(fileno=subscriber.get_extra_info("socket").fileno())
        try:
            raw.setblocking(True)
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        finally:
            raw.detach()
        await until(lambda: receiver not in broker.connections)


# Ends


async def test_the_last_answer_arrives_though_not_all_was_read(
    authority: Authority, server_pair: Pair
) -> None:
    async with (
        Broker(config(tls_of(server_pair), "amqp")) as broker,
        connected(broker, client_context(authority)) as (reader, writer),
    ):
        writer.write(b"HTTP/1.1" + bytes(1 << 20))
        assert await reader.read() == b"AMQP\x00\x00\x09\x01"


@pytest.mark.parametrize(
    "connecting",
    [
        pytest.param(CONNECT, id="at-once"),
        # A thread looks at the password, and what comes behind waits.
        pytest.param(connect("c", username="guest", password=b"guest"), id="waits"),
    ],
)
async def test_what_was_sent_before_a_close_notify_is_answered(
    authority: Authority, server_pair: Pair, connecting: bytes
) -> None:
    def visit(port: int) -> bytes:
        context = client_context(authority)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", port)) as plain:

            def until_done(step: Callable[[], Any]) -> Any:
                while True:
                    try:
                        done = step()
                        plain.sendall(outgoing.read())
                        return done
                    except ssl.SSLWantReadError:
                        plain.sendall(outgoing.read())
                        data = plain.recv(1 << 16)
                        incoming.write(data) if data else incoming.write_eof()

            until_done(client.do_handshake)
            client.write(connecting + PING)
            with contextlib.suppress(ssl.SSLWantReadError):
                client.unwrap()
            plain.sendall(outgoing.read())
            answer = b""
            with contextlib.suppress(ssl.SSLZeroReturnError):
                while part := until_done(lambda: client.read(100)):
                    answer += part
            assert plain.recv(1) == b"", "the broker closes as well"
            return answer

    async with Broker(config(tls_of(server_pair))) as broker:
        assert await asyncio.to_thread(visit, port_of(broker)) == CONNACK + PONG


async def test_a_broker_that_stops_tells_clients_and_ends_handshakes(
    authority: Authority, server_pair: Pair
) -> None:
    async with Broker(config(tls_of(server_pair), "amqp")) as broker:
        half_open, raw = await asyncio.open_connection("127.0.0.1", port_of(broker))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port_of(broker), ssl=client_context(authority), server_hostname="localhost"
        )
        writer.write(b"AMQP\x00\x00\x09\x01")
        assert await reader.readexactly(1) == b"\x01"
    with contextlib.suppress(ConnectionError):
        assert await half_open.read() == b""
    await reader.read()
    writer.transport.abort()
    raw.close()


async def test_records_that_are_damaged_end_the_connection_with_one_line(
    authority: Authority, server_pair: Pair
) -> None:
    async with (
        Broker(config(tls_of(server_pair))) as broker,
        connected(broker, client_context(authority)) as streams,
    ):
        await greet(streams)
        raw = socket.socket(fileno=streams[1].get_extra_info("socket").fileno())
        try:
            async with told("TLS failed") as log:
                raw.setblocking(True)
                raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        finally:
            raw.detach()
        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            await streams[0].read()
        assert len(log.lines) == 1


# Handshakes


async def test_a_handshake_that_fails_is_one_line(authority: Authority, server_pair: Pair) -> None:
    async with Broker(config(tls_of(server_pair))) as broker:
        async with told("in: 127.0.0.1:") as log:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()
            writer.close()
        (line,) = log.lines
        assert line.endswith(": TLS handshake failed: http request")


async def test_a_handshake_has_so_many_bytes_at_most(
    authority: Authority, server_pair: Pair
) -> None:
    async with Broker(config(tls_of(server_pair))) as broker:
        async with told("TLS handshake failed: it does not end") as log:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
            writer.write(LONG_HELLO)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
        assert len(log.lines) == 1


async def test_a_handshake_has_a_time_limit(authority: Authority, server_pair: Pair) -> None:
    async with (
        Broker(config(tls_of(server_pair), handshake_seconds=0.05)) as broker,
        told("TLS handshake took too long"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
        writer.write(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("layers", [("proxy", "tls"), ("proxy",), ("tls",), ()])
async def test_the_time_of_all_layers_begins_when_the_client_comes(
    authority: Authority, server_pair: Pair, layers: tuple[str, ...]
) -> None:
    plain = config(tls_of(server_pair))
    listener = replace(
        plain.listeners[0],
        websocket="/mqtt",
        proxy_protocol=("127.0.0.0/8",) if "proxy" in layers else (),
        tls=plain.listeners[0].tls if "tls" in layers else None,
    )
    async with Broker(replace(plain, listeners=(listener,))) as broker:
        assert broker.server is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
        while not len(broker.server.handshakes):  # noqa: ASYNC110
            await asyncio.sleep(0)
        came_by = monotonic_ms()
        while monotonic_ms() == came_by:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if "proxy" in layers:
            writer.write(b"PROXY TCP4 127.0.0.7 127.0.0.1 56324 8883\r\n")
        if "tls" in layers:
            await writer.start_tls(client_context(authority), server_hostname="localhost")
        writer.write(request())
        status, _ = await read_head(reader)
        assert status == 101
        (connection,) = broker.connections
        assert isinstance(connection, FramedConnection)
        assert connection.came_at <= came_by
        writer.transport.abort()


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def test_the_oldest_handshake_gives_way_and_the_newest_client_is_served(
    authority: Authority, server_pair: Pair
) -> None:
    async with Broker(config(tls_of(server_pair), max_handshakes=3)) as broker:
        silent = [await asyncio.open_connection("127.0.0.1", port_of(broker)) for _ in range(5)]
        async with connected(broker, client_context(authority)) as streams:
            await greet(streams)
            assert broker.server is not None
            assert len(broker.server.handshakes) == 2
            for reader, _ in silent[:3]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        for _, writer in silent:
            writer.close()


# Certificates of clients


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_a_client_certificate_names_the_user(
    authority: Authority, server_pair: Pair, mode: str
) -> None:
    client = authority.pair("device 7", "d7.example", "mail:d7@example.org", "uri:spiffe://x/d7")
    tls = tls_of(server_pair, ca=str(authority.ca), client_certificates=mode)
    async with Broker(config(tls)) as broker:
        async with connected(broker, client_context(authority, client)) as streams:
            await greet(streams)
            found = connection_of(broker, streams).peer.certificate
            assert isinstance(found, ClientCertificate)
            assert found.common_name == found.user_name == "device 7"
            assert found.dns_names == ("d7.example",)
            assert found.email_addresses == ("d7@example.org",)
            assert found.uris == ("spiffe://x/d7",)
            shown = view_tls(connection_of(broker, streams))
            assert shown is not None
            assert (shown.protocol, shown.key_exchange, shown.digest) == ("tlsv1.3", "any", "aead")
            assert shown.cipher in ("aes_256_gcm", "aes_128_gcm", "chacha20_poly1305")
            assert shown.subject == "CN=device 7"
            assert shown.issuer is not None
            assert shown.issuer.startswith("CN=")
            time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
            assert re.fullmatch(f"{time} - {time}", shown.validity or "")
        if mode == "required":
            async with told("peer did not return a certificate"):
                await assert_refused(broker, client_context(authority))
        else:
            async with connected(broker, client_context(authority)) as streams:
                await greet(streams)
                connection = connection_of(broker, streams)
                assert connection.peer.certificate is None
                shown = view_tls(connection)
                assert shown is not None
                assert (shown.subject, shown.issuer, shown.validity) == (None, None, None)


@pytest.mark.parametrize(
    ("owner", "headers", "status"),
    [
        ("ann", "", 200),
        ("ann", "Sec-Fetch-Site: same-origin\r\n", 200),
        # What a browser asks for a page of another site.
        ("ann", "Sec-Fetch-Site: cross-site\r\n", 401),
        ("ann", "Origin: https://other.example\r\n", 401),
        ("ann", "Origin: https://localhost\r\n", 200),
        # Whoever is on the way of a page without TLS may have written it.
        ("ann", "Origin: http://localhost\r\n", 401),
        # A password decides where there is one.
        ("ann", "Authorization: Basic YW5uOndyb25n\r\n", 401),
        ("", "", 401),
    ],
)
async def test_a_client_certificate_is_enough_over_http(
    authority: Authority, server_pair: Pair, owner: str, headers: str, status: int
) -> None:
    found = config(tls_of(server_pair, ca=str(authority.ca)), "http")
    users = {"ann": UserConfig(password="right", tags=("management",))}
    found = replace(found, users=users, auth=AuthConfig(methods=("certificate", "internal")))
    context = client_context(authority, authority.pair(owner) if owner else None)
    async with Broker(found) as broker, connected(broker, context) as (reader, writer):
        head = f"GET /api/v1/whoami HTTP/1.0\r\nHost: localhost\r\n{headers}\r\n"
        writer.write(head.encode())
        answer = await reader.read()
        assert answer.startswith(f"HTTP/1.0 {status} ".encode())
        assert (b'"name": "ann"' in answer) == (status == 200)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (None, None),
        (((("countryName", "UK"),), (("commonName", "a b"),)), "CN=a b,C=UK"),
        (((("commonName", "a"), ("userId", "u")),), "CN=a+UID=u"),
        (((("serialNumber", "1"),),), "serialNumber=1"),
        (((("commonName", '#a,b+c"d\\e<f>;'),),), 'CN=\\#a\\,b\\+c\\"d\\\\e\\<f\\>\\;'),
        (((("commonName", " a "),),), "CN=\\ a\\ "),
        (((("commonName", "a\0"),),), "CN=a\\00"),
    ],
)
def test_rfc_4514_a_distinguished_name_is_text(name: Any, text: str | None) -> None:
    assert distinguished_name(name) == text


@pytest.mark.parametrize(
    ("user_from", "user"),
    [
        ("cn", "device 7"),
        ("san-dns:(a.*)", "a.example"),
        ("san-email", "d7@example.org"),
        ("san-uri", "spiffe://x/d7"),
        (r"cn:device (\d+)", "7"),
        (r"san-dns:(b)\.example", "b"),
        (r"san-uri:spiffe://x/(.+)", "d7"),
        (r"san-uri:spiffe://y/(.+)", ""),
        (r"cn:device()", ""),
    ],
)
async def test_user_from_says_where_the_name_is(
    authority: Authority, server_pair: Pair, user_from: str, user: str
) -> None:
    client = authority.pair(
        "device 7", "a.example", "b.example", "mail:d7@example.org", "uri:spiffe://x/d7"
    )
    tls = tls_of(server_pair, ca=str(authority.ca), user_from=user_from)
    async with (
        Broker(config(tls)) as broker,
        connected(broker, client_context(authority, client)) as streams,
    ):
        await greet(streams)
        found = connection_of(broker, streams).peer.certificate
        assert found is not None
        assert found.user_name == user
        assert not found.is_ambiguous


@pytest.mark.parametrize(
    ("user_from", "user"),
    [
        ("cn", None),
        ("san-dns", None),
        (r"san-dns:(.)\.example", None),
        (r"san-dns:.\.(example)", "example"),
        (r"cn:(device .)", "device 7"),
        ("san-uri", ""),
    ],
)
async def test_a_certificate_of_several_names_is_nobodys(
    authority: Authority, server_pair: Pair, user_from: str, user: str | None
) -> None:
    client = authority.pair("device 7", "a.example", "b.example", second=("ann",))
    tls = tls_of(server_pair, ca=str(authority.ca), user_from=user_from)
    async with (
        Broker(config(tls)) as broker,
        connected(broker, client_context(authority, client)) as streams,
    ):
        await greet(streams)
        found = connection_of(broker, streams).peer.certificate
        assert found is not None
        assert found.user_name == (user or "")
        assert found.is_ambiguous == (user is None)


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_a_client_certificate_of_another_authority_is_refused(
    authority: Authority, server_pair: Pair, tmp_path: Path, mode: str
) -> None:
    stranger = Authority(tmp_path, "stranger").pair("client")
    tls = tls_of(server_pair, ca=str(authority.ca), client_certificates=mode)
    async with Broker(config(tls)) as broker:
        async with told("the client's certificate: ") as log:
            await assert_refused(broker, client_context(authority, stranger))
        assert len(log.lines) == 1


async def test_an_expired_client_certificate_is_refused(
    authority: Authority, server_pair: Pair
) -> None:
    late = authority.pair("late", days=-1)
    async with (
        Broker(config(tls_of(server_pair, ca=str(authority.ca)))) as broker,
        told("certificate has expired"),
    ):
        await assert_refused(broker, client_context(authority, late))


async def test_a_revoked_client_certificate_is_refused(
    authority: Authority, server_pair: Pair
) -> None:
    good, bad = authority.pair("good"), authority.pair("bad")
    tls = tls_of(server_pair, ca=str(authority.ca), crl=str(authority.revoke(bad)))
    async with Broker(config(tls)) as broker:
        async with connected(broker, client_context(authority, good)) as streams:
            await greet(streams)
        async with told("certificate revoked"):
            await assert_refused(broker, client_context(authority, bad))


async def test_an_expired_list_of_revoked_certificates_refuses_all(
    authority: Authority, server_pair: Pair
) -> None:
    good = authority.pair("good")
    tls = tls_of(server_pair, ca=str(authority.ca), crl=str(authority.revoke(days=-1)))
    async with Broker(config(tls)) as broker, told("CRL has expired"):
        await assert_refused(broker, client_context(authority, good))


# Certificates of the broker


async def test_the_certificate_is_chosen_by_the_host_that_is_asked_for(
    authority: Authority, server_pair: Pair
) -> None:
    named, wild = authority.pair("named", "a.example"), authority.pair("wild", "*.b.example")
    other = authority.pair("other", "c.example")
    tls = tls_of(
        server_pair,
        certificates=(
            CertificateConfig(certificate=str(named.certificate), key=str(named.key)),
            CertificateConfig(certificate=str(wild.certificate), key=str(wild.key)),
            CertificateConfig(
                certificate=str(other.certificate), key=str(other.key), hosts=("C.example",)
            ),
        ),
    )
    context = client_context(authority)
    context.check_hostname = False
    async with Broker(config(tls)) as broker:
        for host, common_name in (
            ("a.example", "named"),
            ("A.EXAMPLE", "named"),
            ("x.b.example", "wild"),
            ("x.y.b.example", "server"),
            ("b.example", "server"),
            ("c.example", "other"),
            ("unknown.example", "server"),
            ("localhost", "server"),
        ):
            async with connected(broker, context, host) as (_, writer):
                certificate = writer.get_extra_info("peercert")
                assert certificate["subject"] == ((("commonName", common_name),),), host


def visit(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> Any:
    """One connection of a blocking client: its session, and whether it was resumed."""
    plain = socket.create_connection(("127.0.0.1", port))
    with context.wrap_socket(plain, server_hostname="localhost", session=session) as client:
        client.sendall(CONNECT)
        assert client.recv(4) == CONNACK
        return client.session, client.session_reused


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def write(self, data: bytes) -> None:
        self.pieces.put_nowait(data)

    async def piece(self) -> bytes:
        async with asyncio.timeout(TIMEOUT):
            return await self.pieces.get()

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


class Answering:
    """Speaks a protocol that answers at once."""

    def __init__(self) -> None:
        self.layer: Any = None

    def connection_made(self, layer: Any) -> None:
        self.layer = layer

    def data_received(self, data: bytes) -> None:
        self.layer.write(b"answer to " + data)


@pytest.mark.parametrize("comes_with_the_handshake", [True, False])
async def test_ticket_goes_with_the_answer_to_what_came_with_the_handshake(
    authority: Authority, server_pair: Pair, comes_with_the_handshake: bool
) -> None:
    async with Broker(config(tls_of(server_pair))) as broker:
        assert broker.server is not None
        transport = Written()
        layer = TlsLayer(
            broker.server,
            Listener(broker.config.listeners[0]),
            Certificates("in", tls_of(server_pair), ("mqtt",)),
            Answering(),
            False,
        )
        layer.connection_made(transport)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        layer.data_received(outgoing.read())
        incoming.write(await transport.piece())
        client.do_handshake()
        finished = outgoing.read()
        client.write(b"hello")
        if comes_with_the_handshake:
            layer.data_received(finished + outgoing.read())
        else:
            layer.data_received(finished)
            incoming.write(await transport.piece())
            layer.data_received(outgoing.read())
        incoming.write(await transport.piece())
        assert transport.pieces.empty()
        assert client.read() == b"answer to hello"
        assert client.session is not None
        assert client.session.has_ticket


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_is_resumed_with_its_certificate(
    authority: Authority, server_pair: Pair, version: ssl.TLSVersion
) -> None:
    context = client_context(authority, authority.pair("device"))
    context.minimum_version = context.maximum_version = version
    async with Broker(config(tls_of(server_pair, ca=str(authority.ca)))) as broker:
        port = port_of(broker)
        session, is_resumed = await asyncio.to_thread(visit, port, context, None)
        assert not is_resumed
        _, is_resumed = await asyncio.to_thread(visit, port, context, session)
        assert is_resumed


async def test_a_session_is_not_resumed_once_its_certificate_is_revoked(
    authority: Authority, server_pair: Pair
) -> None:
    device = authority.pair("device")
    context = client_context(authority, device)
    tls = tls_of(server_pair, ca=str(authority.ca), crl=str(authority.revoke()))
    async with Broker(config(tls)) as broker:
        session, _ = await asyncio.to_thread(visit, port_of(broker), context, None)
        async with told("were read again"):
            authority.revoke(device)
            broker.reload()
        async with told("certificate revoked"):
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                await asyncio.to_thread(visit, port_of(broker), context, session)


async def test_certificates_are_read_again_and_connections_stay(
    authority: Authority, server_pair: Pair
) -> None:
    async with (
        Broker(config(tls_of(server_pair))) as broker,
        connected(broker, client_context(authority)) as (reader, writer),
    ):
        await greet((reader, writer))
        authority.pair("server", "localhost", common_name="renewed")
        async with told("were read again"):
            broker.reload()
        async with connected(broker, client_context(authority)) as (_, later):
            subject = later.get_extra_info("peercert")["subject"]
            assert subject == ((("commonName", "renewed"),),)
        writer.write(PING)
        assert await reader.readexactly(2) == PONG


async def test_files_that_are_wrong_leave_the_old_certificates(
    authority: Authority, server_pair: Pair
) -> None:
    async with Broker(config(tls_of(server_pair))) as broker:
        replace_file(server_pair.certificate, b"nonsense")
        async with told("in keeps its old certificates: ") as log:
            broker.reload()
        assert len(log.lines) == 1
        assert str(server_pair.certificate) in log.lines[0]
        async with connected(broker, client_context(authority)) as streams:
            await greet(streams)


def test_a_file_that_changes_is_noticed_once(authority: Authority, server_pair: Pair) -> None:
    found = Certificates("in", tls_of(server_pair), ())
    before = found.context
    assert not found.refresh(False)
    authority.pair("server", "localhost")
    assert found.refresh(False)
    assert found.context is before
    found.take()
    assert found.context is not before
    assert not found.refresh(False)
    server_pair.key.unlink()
    assert not found.refresh(False)
    assert not found.refresh(False)


#: ciphers by which anybody could read, or be the broker, and what is said of them
OPEN_CIPHERS = {
    "NULL:ECDHE+AESGCM": "does not encrypt",
    "eNULL@SECLEVEL=0": "does not encrypt",
    "aNULL:ECDHE+AESGCM": "does not authenticate the broker",
    "ADH@SECLEVEL=0": "does not authenticate the broker",
}


def wrong(authority: Authority, what: str) -> TlsConfig:
    pair, other = authority.pair("one", "localhost"), authority.pair("two")
    nonsense = authority.folder / "nonsense.pem"
    nonsense.write_text("nonsense")
    if what == "missing":
        return TlsConfig(certificate="nowhere.pem", key=str(pair.key))
    if what == "nonsense":
        return TlsConfig(certificate=str(nonsense), key=str(pair.key))
    if what == "mismatch":
        return TlsConfig(certificate=str(pair.certificate), key=str(other.key))
    if what == "ca":
        return tls_of(pair, ca=str(nonsense))
    if what == "crl":
        return tls_of(pair, ca=str(authority.ca), crl=str(authority.ca))
    if what == "ciphers":
        return tls_of(pair, ciphers="NONE-SUCH")
    if what in OPEN_CIPHERS:
        return tls_of(pair, ciphers=what)
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return tls_of(pair)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("missing", "in: nowhere.pem: No such file or directory"),
        ("nonsense", "nonsense.pem and "),
        ("mismatch", "key values mismatch"),
        ("ca", "nonsense.pem: not usable"),
        ("crl", "has no list of revoked certificates"),
        ("ciphers", "OpenSSL knows none of the ciphers 'NONE-SUCH'"),
        *OPEN_CIPHERS.items(),
        ("encrypted", "one.key is encrypted"),
    ],
)
async def test_wrong_files_are_told_at_the_start(
    authority: Authority, what: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        async with Broker(config(wrong(authority, what))):
            pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tls_needs_its_files() -> None:
    with pytest.raises(ConfigError, match="tls needs the files certificate and key"):
        Config(listen={"mqtts": Listen(0)})
    for keys in ({"client_certificates": "required"}, {"crl": "c"}):
        tls = TlsConfig(certificate="c", key="k", **keys)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="the file ca"):
            Config(listen={"amqps": Listen(0)}, tls=tls)


def test_a_record_is_what_openssl_is_given_at_a_time() -> None:
    assert RECORD_BYTES == 1 << 14
