"""The PROXY protocol: headers by bytes, and who may send them over real sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.certificates import Authority
from tests.support.websocket import masked, read_frame, read_head, request
from trivium import Broker, Config
from trivium.config import LimitsConfig, ListenerConfig, StorageConfig, TlsConfig
from trivium.errors import ConfigError
from trivium.runtime.proxy_protocol import (
    UNKNOWN,
    V1_BYTES,
    V2_BEGINS,
    V2_BYTES,
    HeaderError,
    HeaderReader,
)

BEHIND = b"\x10\x0c\x00\x04MQTT"


def v2(
    family: int, addresses: bytes, fields: bytes = b"", command: int = 0x21, size: int | None = None
) -> bytes:
    body = addresses + fields
    length = len(body) if size is None else size
    return V2_BEGINS + bytes((command, family)) + length.to_bytes(2, "big") + body


INET = (
    ipaddress.IPv4Address("192.0.2.1").packed
    + ipaddress.IPv4Address("192.0.2.9").packed
    + bytes.fromhex("dc04 075b")
)
INET6 = (
    ipaddress.IPv6Address("2001:db8::1").packed
    + ipaddress.IPv6Address("2001:db8::9").packed
    + bytes.fromhex("dc04 075b")
)
MAPPED = ipaddress.IPv6Address("::ffff:192.0.2.1").packed * 2 + bytes.fromhex("dc04 075b")
#: PP2_TYPE_SSL with a common name in it, and PP2_TYPE_NOOP.
FIELDS = bytes.fromhex("20 000d 07 00000000 22 0005") + b"alice" + bytes.fromhex("04 0001 00")

RIGHT = [
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 56324 1883\r\n", ("192.0.2.1", 56324), id="1-4"),
    pytest.param(
        b"PROXY TCP6 2001:db8::1 2001:db8::9 56324 1883\r\n", ("2001:db8::1", 56324), id="1-6"
    ),
    pytest.param(b"PROXY UNKNOWN\r\n", UNKNOWN, id="1-unknown"),
    pytest.param(b"PROXY UNKNOWN ffff:f.f 65535\r\n", UNKNOWN, id="1-unknown-with-more"),
    pytest.param(v2(0x11, INET), ("192.0.2.1", 56324), id="2-4"),
    pytest.param(v2(0x11, INET, FIELDS), ("192.0.2.1", 56324), id="2-4-with-fields"),
    pytest.param(v2(0x21, INET6), ("2001:db8::1", 56324), id="2-6"),
    pytest.param(v2(0x21, MAPPED), ("192.0.2.1", 56324), id="2-6-mapped"),
    pytest.param(v2(0x31, bytes(216)), UNKNOWN, id="2-unix"),
    pytest.param(v2(0x00, b""), UNKNOWN, id="2-unspecified"),
    pytest.param(v2(0x00, b"", command=0x20), None, id="2-local"),
    pytest.param(v2(0x11, b"junk", command=0x20), None, id="2-local-with-junk"),
]

WRONG = [
    pytest.param(b"", BEHIND, id="none"),
    pytest.param(b"", b"\x16\x03\x01\x02\x00", id="tls"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 56324\r\n", b"", id="1-no-port"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 56324 1883 x\r\n", b"", id="1-more"),
    pytest.param(b"PROXY TCP4  192.0.2.1 192.0.2.9 1 2\r\n", b"", id="1-spaces"),
    pytest.param(b"PROXY TCP4 2001:db8::1 2001:db8::9 1 2\r\n", b"", id="1-other-family"),
    pytest.param(b"PROXY TCP4 192.0.2.01 192.0.2.9 1 2\r\n", b"", id="1-leading-zero"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 01 2\r\n", b"", id="1-port-leading-zero"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 65536 2\r\n", b"", id="1-port-too-large"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 -1 2\r\n", b"", id="1-port-negative"),
    pytest.param("PROXY TCP4 192.0.2.1 192.0.2.9 \u0661 2\r\n".encode(), b"", id="1-digit"),
    pytest.param(b"PROXY UDP4 192.0.2.1 192.0.2.9 1 2\r\n", b"", id="1-family"),
    pytest.param(b"PROXY \r\n", b"", id="1-empty"),
    pytest.param(b"proxy UNKNOWN\r\n", b"", id="1-lower-case"),
    pytest.param(b"PROXY UNKNOWN " + b"x" * V1_BYTES, b"", id="1-too-long"),
    pytest.param(v2(0x11, INET, command=0x11), b"", id="2-version"),
    pytest.param(v2(0x11, INET, command=0x22), b"", id="2-command"),
    pytest.param(v2(0x41, INET), b"", id="2-family"),
    pytest.param(v2(0x13, INET), b"", id="2-transport"),
    pytest.param(v2(0x11, INET[:11]), b"", id="2-cut-off"),
    pytest.param(v2(0x11, INET, b"\x04\x00"), b"", id="2-field-cut-off"),
    pytest.param(v2(0x11, INET, b"\x04\x00\x02x"), b"", id="2-field-too-long"),
    pytest.param(v2(0x11, INET, size=V2_BYTES + 1), b"", id="2-too-long"),
]


@pytest.mark.parametrize(("header", "source"), RIGHT)
def test_header_is_read_and_nothing_behind_it(
    header: bytes, source: tuple[str, int] | None
) -> None:
    reader = HeaderReader()
    assert reader.take(header + BEHIND) == len(header)
    assert (reader.is_done, reader.source) == (True, source)


@pytest.mark.parametrize(("header", "source"), RIGHT)
def test_header_is_read_at_each_cut(header: bytes, source: tuple[str, int] | None) -> None:
    for cut in range(1, len(header)):
        reader = HeaderReader()
        assert reader.take(header[:cut]) == cut
        assert not reader.is_done
        assert reader.take(header[cut:] + BEHIND) == len(header) - cut
        assert (reader.is_done, reader.source) == (True, source)


@pytest.mark.parametrize(("header", "rest"), WRONG)
def test_wrong_header_is_refused(header: bytes, rest: bytes) -> None:
    with pytest.raises(HeaderError):
        HeaderReader().take(header + rest)


@pytest.mark.parametrize(("header", "rest"), WRONG)
def test_wrong_header_is_refused_byte_by_byte(header: bytes, rest: bytes) -> None:
    reader = HeaderReader()

    def feed() -> None:
        for byte in header + rest:
            reader.take(bytes((byte,)))
            assert not reader.is_done

    with pytest.raises(HeaderError):
        feed()


@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=300).map(lambda data: b"PROXY " + data),
        st.binary(max_size=300).map(lambda data: V2_BEGINS + data),
        st.text(alphabet="0123456789.: TCP46UNKOW", max_size=90).map(
            lambda text: f"PROXY {text}\r\n".encode()
        ),
    )
)
def test_only_the_error_of_a_header_escapes(data: bytes) -> None:
    reader = HeaderReader()
    try:
        taken = reader.take(data)
    except HeaderError:
        return
    assert taken == len(data) or reader.is_done


# Over sockets

CONNECT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04test"
CONNACK = b"\x20\x02\x00\x00"
HEADER = b"PROXY TCP4 127.0.0.7 192.0.2.9 56324 1883\r\n"
TIMEOUT = 20.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def config(*networks: str, handshake_seconds: float = 10.0, **keys: Any) -> Config:
    keys = {"protocol": "mqtt", "address": "127.0.0.1:0", "anonymous": "always", **keys}
    return Config(
        listen={},
        listeners=(ListenerConfig(name="in", proxy_protocol=networks or ("127.0.0.0/8",), **keys),),
        storage=StorageConfig(mode="memory"),
        limits=LimitsConfig(handshake_seconds=handshake_seconds),
    )


@contextlib.asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Streams]:
    address = broker.listeners["in"]
    if address.startswith("unix:"):
        streams = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        streams = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(TIMEOUT):
            yield streams
    finally:
        streams[1].transport.abort()


async def ended(streams: Streams) -> bytes:
    try:
        return await streams[0].read()
    except ConnectionResetError:
        return b""


def peers(broker: Broker) -> list[tuple[str, bool]]:
    return [(one.peer.address, one.peer.is_loopback) for one in broker.connections]


@pytest.mark.parametrize(
    ("header", "address", "is_loopback"),
    [
        (HEADER, "127.0.0.7:56324", True),
        (b"PROXY TCP6 2001:db8::1 2001:db8::9 56324 1883\r\n", "[2001:db8::1]:56324", False),
        (v2(0x11, INET, FIELDS), "192.0.2.1:56324", False),
        # Nobody says that it is from this machine, although the proxy is.
        (b"PROXY UNKNOWN\r\n", "unknown:0", False),
    ],
)
async def test_peer_is_whom_the_header_names(
    header: bytes, address: str, is_loopback: bool
) -> None:
    async with Broker(config()) as broker, connected(broker) as streams:
        reader, writer = streams
        writer.write(header[:9])
        await writer.drain()
        writer.write(header[9:] + CONNECT)
        assert await reader.readexactly(4) == CONNACK
        assert peers(broker) == [(address, is_loopback)]


async def test_local_header_leaves_the_proxy_as_the_peer() -> None:
    async with Broker(config()) as broker, connected(broker) as streams:
        reader, writer = streams
        writer.write(v2(0x00, b"", command=0x20) + CONNECT)
        assert await reader.readexactly(4) == CONNACK
        host, port = writer.get_extra_info("sockname")
        assert peers(broker) == [(f"{host}:{port}", True)]


async def test_header_of_a_stranger_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Broker(config("192.0.2.0/24", "2001:db8::/32")) as broker:
        async with connected(broker) as streams:
            streams[1].write(HEADER + CONNECT)
            assert await ended(streams) == b""
        assert peers(broker) == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("in: 127.0.0.1:")
    assert "is no proxy of this listener" in line


async def test_proxy_without_a_header_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Broker(config()) as broker:
        async with connected(broker) as streams:
            streams[1].write(CONNECT)
            assert await ended(streams) == b""
        assert peers(broker) == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert "wrong header of the PROXY protocol: there is none" in line


async def test_header_has_the_time_limit_of_handshakes() -> None:
    async with Broker(config(handshake_seconds=0.05)) as broker, connected(broker) as streams:
        streams[1].write(HEADER[:20])
        assert await ended(streams) == b""


async def test_proxy_on_this_machine_does_not_let_anonymous_clients_in() -> None:
    # They are admitted on a loopback listener, but it is the proxy that is there.
    async with Broker(config(anonymous="loopback")) as broker, connected(broker) as streams:
        reader, writer = streams
        writer.write(b"PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n" + CONNECT)
        assert await reader.readexactly(4) != CONNACK


async def test_unix_socket_admits_proxies_by_its_permissions(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/proxied"
    async with Broker(config(address=address)) as broker, connected(broker) as streams:
        reader, writer = streams
        writer.write(HEADER + CONNECT)
        assert await reader.readexactly(4) == CONNACK
        assert peers(broker) == [("127.0.0.7:56324", True)]


@contextlib.asynccontextmanager
async def secured(folder: Path, **keys: Any) -> AsyncIterator[tuple[Broker, Streams]]:
    """A connection with a header and TLS behind it."""
    authority = Authority(folder)
    pair = authority.pair("server", "localhost")
    tls = TlsConfig(certificate=str(pair.certificate), key=str(pair.key))
    async with Broker(config(tls=tls, **keys)) as broker, connected(broker) as streams:
        context = ssl.create_default_context(cafile=str(authority.ca))
        streams[1].write(HEADER)
        await streams[1].start_tls(context, server_hostname="localhost")
        yield broker, streams


async def test_header_comes_before_tls(tmp_path: Path) -> None:
    async with secured(tmp_path) as (broker, (reader, writer)):
        writer.write(CONNECT)
        assert await reader.readexactly(4) == CONNACK
        assert peers(broker) == [("127.0.0.7:56324", True)]


async def test_websocket_is_within_tls_behind_the_header(tmp_path: Path) -> None:
    async with secured(tmp_path, websocket="/mqtt") as (broker, (reader, writer)):
        writer.write(request() + masked(CONNECT))
        assert (await read_head(reader))[0] == 101
        assert await read_frame(reader) == (0x82, CONNACK)
        assert peers(broker) == [("127.0.0.7:56324", True)]
        writer.write(masked(b"\xe0\x00") + masked(b"\x03\xe8", opcode=8))
        assert (await read_frame(reader))[0] == 0x88
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("header", "status"), [(HEADER, b"200"), (v2(0x11, INET), b"401"), (v2(0x21, INET6), b"401")]
)
async def test_http_takes_the_client_for_whom_the_header_names(
    header: bytes, status: bytes
) -> None:
    # The user guest is for this machine alone, on which the proxy runs.
    credentials = base64.b64encode(b"guest:guest")
    asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    asked += b"Authorization: Basic " + credentials + b"\r\n\r\n"
    async with (
        Broker(config(protocol="http", anonymous="never")) as broker,
        connected(broker) as streams,
    ):
        streams[1].write(header + asked)
        assert (await streams[0].read()).split(b" ")[1] == status


def test_networks_are_checked() -> None:
    with pytest.raises(ConfigError, match="proxy_protocol: "):
        config("10.0.0.1/8")
