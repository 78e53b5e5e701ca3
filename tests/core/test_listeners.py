"""Unix sockets, and how many clients a listener and an address may have."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import os
import pwd
import re
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from trivium.common.addresses import subscriber_address
from trivium.config import AuthConfig, Config, LimitsConfig, ListenerConfig, StorageConfig
from trivium.errors import TriviumError
from trivium.runtime.adapter import Listener
from trivium.runtime.admission import Admission
from trivium.runtime.broker import Broker
from trivium.runtime.unix_sockets import bind_unix
from trivium_native.wire import frames
from trivium_native.wire.frames import encode_frame

CONNECT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04test"
CONNACK = b"\x20\x02\x00\x00"


def config(*listeners: ListenerConfig, **limits: Any) -> Config:
    return Config(
        listen={},
        listeners=listeners,
        storage=StorageConfig(mode="memory"),
        limits=LimitsConfig(**limits),
    )


def mqtt(address: str, **keys: Any) -> ListenerConfig:
    return ListenerConfig(protocol="mqtt", address=address, **keys)


@contextlib.asynccontextmanager
async def connected(
    broker: Broker, name: str = "mqtt"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address = broker.listeners[name]
    if address.startswith("unix:"):
        streams = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        streams = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    try:
        yield streams
    finally:
        streams[1].transport.abort()


async def is_served(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    """Whether CONNECT is answered; False where the connection was closed."""
    reader, writer = streams
    try:
        writer.write(CONNECT)
        return await reader.readexactly(4) == CONNACK
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


# Unix sockets


async def test_a_unix_socket_serves_each_protocol_and_its_file_is_removed_at_the_stop(
    tmp_path: Path,
) -> None:
    paths = {name: tmp_path / f"{name}.sock" for name in ("mqtt", "http")}
    listeners = [
        ListenerConfig(protocol=name, address=f"unix:{path}") for name, path in paths.items()
    ]
    async with Broker(config(*listeners)) as broker:
        assert broker.listeners == {name: f"unix:{path}" for name, path in paths.items()}
        async with connected(broker) as streams:
            assert await is_served(streams)
            (connection,) = broker.connections
            assert (connection.peer.address, connection.peer.is_loopback) == ("unix", True)
        async with connected(broker, "http") as (reader, writer):
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"200"
    assert not any(path.exists() for path in paths.values())


async def test_guest_is_on_this_machine_by_a_unix_socket(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 's'}"
    found = config(ListenerConfig(protocol="http", address=address, anonymous="never"))
    async with Broker(found) as broker, connected(broker, "http") as (reader, writer):
        writer.write(b"GET /metrics HTTP/1.0\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"


@pytest.mark.parametrize("mode", ["0600", "660", "0777"])
async def test_a_unix_socket_has_its_mode_and_owner(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "s"
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    async with Broker(config(mqtt(f"unix:{path}", mode=mode, owner=f"{user}:{group}"))):
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == int(mode, 8)
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())


async def test_a_socket_file_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with Broker(config(mqtt(f"unix:{path}"))) as broker, connected(broker) as streams:
        assert await is_served(streams)


async def test_a_socket_on_which_somebody_listens_stays_theirs(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with Broker(config(mqtt(f"unix:{path}"))) as broker:
        with pytest.raises(TriviumError, match="Address already in use"):
            async with Broker(config(mqtt(f"unix:{path}"))):
                pass
        async with connected(broker) as streams:
            assert await is_served(streams)


@pytest.mark.parametrize(
    ("place", "keys", "message"),
    [
        ("file", {}, "Address already in use"),
        ("missing/s", {}, "No such file or directory"),
        ("s", {"owner": "no-such-user"}, "no such user"),
        ("x" * 200, {}, "at most 107 bytes"),
    ],
)
def test_a_unix_socket_that_cannot_be_is_one_clear_line(
    tmp_path: Path, place: str, keys: dict[str, str], message: str
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TriviumError) as caught:
        bind_unix(mqtt(f"unix:{tmp_path / place}", name="m", **keys))
    assert message in str(caught.value)
    assert str(caught.value).startswith("m cannot listen on unix:")
    assert (tmp_path / "file").read_text() == "mine"


async def test_the_file_of_a_broker_that_took_the_place_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with Broker(config(mqtt(f"unix:{path}"))):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


# Anonymous access


#: What a client of each protocol says first, and how the answer begins.
GREETINGS = {
    "mqtt": (CONNECT, rb"\x20\x02\x00\x00"),
    "amqp": (b"AMQP\0\0\x09\x01", rb"\x01\x00\x00....\x00\x0a\x00\x0a"),
    "native": (
        encode_frame(frames.HELLO, 9, msgpack.packb({"protocol": "trivium", "version": 1})),
        rb"....\x01\x09",
    ),
    "http": (b"GET /metrics HTTP/1.0\r\n\r\n", rb"HTTP/1\.. 200 "),
}


@pytest.mark.parametrize("protocol", GREETINGS)
async def test_port_0_is_a_free_port_of_the_listener_alone(protocol: str) -> None:
    names = ("one", "two")
    listeners = [
        ListenerConfig(protocol=protocol, address="localhost:0", name=name) for name in names
    ]
    async with Broker(config(*listeners)) as broker:
        ports = [int(broker.listeners[name].rpartition(":")[2]) for name in names]
        assert 0 not in ports
        assert len(set(ports)) == 2
        said, answer = GREETINGS[protocol]
        for port in ports:
            for host in ("127.0.0.1", "::1"):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(said)
                answered = await reader.read(64)
                assert re.match(answer, answered, re.DOTALL), (host, port, answered)
                writer.close()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_that_somebody_has_on_the_other_address_is_not_taken_for_port_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = socket.create_server
    tried: list[tuple[str, int]] = []

    def create_server(address: tuple[str, int], **more: Any) -> socket.socket:
        tried.append(address)
        if len(tried) == 2:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return create(address, **more)

    monkeypatch.setattr("trivium.runtime.listeners.socket.create_server", create_server)
    async with Broker(config(mqtt("localhost:0"))) as broker:
        port = int(broker.listeners["mqtt"].rpartition(":")[2])
        assert [host for host, _ in tried] == ["127.0.0.1", "::1"] * 2
        assert tried[0][1] == tried[2][1] == 0
        assert tried[3][1] == port
        _, writer = await asyncio.open_connection("::1", port)
        writer.close()


async def test_each_listener_has_its_own_anonymous_access() -> None:
    listeners = (
        mqtt("127.0.0.1:0", name="open"),
        mqtt("127.0.0.1:0", name="shut", anonymous="never"),
        ListenerConfig(protocol="http", address="127.0.0.1:0", anonymous="never"),
    )
    async with Broker(config(*listeners)) as broker:
        async with connected(broker, "open") as streams:
            assert await is_served(streams)
        async with connected(broker, "shut") as (reader, writer):
            writer.write(CONNECT)
            assert await reader.read() == b"\x20\x02\x00\x05"
        async with connected(broker, "http") as (reader, writer):
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"401"


async def test_a_listener_may_admit_anonymous_clients_where_others_do_not() -> None:
    found = Config(
        listen={},
        listeners=(mqtt("127.0.0.1:0", anonymous="always"),),
        storage=StorageConfig(mode="memory"),
        auth=AuthConfig(anonymous="never"),
    )
    async with Broker(found) as broker, connected(broker) as streams:
        assert await is_served(streams)


# How many


def entering(**limits: Any) -> Admission:
    return Admission(LimitsConfig(**limits), 100)


LISTENER = Listener(mqtt("127.0.0.1:0", name="one"))


async def test_a_listener_has_its_own_limit_of_connections() -> None:
    listeners = (mqtt("127.0.0.1:0", name="one", max_connections=1), mqtt("127.0.0.1:0", name="b"))
    async with Broker(config(*listeners)) as broker, connected(broker, "one") as first:
        assert await is_served(first)
        async with connected(broker, "one") as second:
            assert not await is_served(second)
        async with connected(broker, "b") as other:
            assert await is_served(other)


async def test_clients_that_are_refused_are_not_counted() -> None:
    async with (
        Broker(config(mqtt("127.0.0.1:0", max_connections=1))) as broker,
        connected(broker) as first,
    ):
        assert await is_served(first)
        for _ in range(3):
            async with connected(broker) as second:
                assert not await is_served(second)
        (connection,) = broker.connections
        assert connection.peer.listener.connections == 1


def test_one_address_has_a_limit_of_connections() -> None:
    admission = entering(max_connections_per_address=2)
    listener = Listener(mqtt("127.0.0.1:0", name="x"))
    assert [admission.enter(listener, "10.0.0.1") for _ in range(3)] == [True, True, False]
    assert admission.enter(listener, "10.0.0.2")
    assert all(admission.enter(listener, "") for _ in range(5)), "a Unix socket has no address"
    assert listener.connections == 8
    admission.leave(listener, "10.0.0.1")
    assert [admission.enter(listener, "10.0.0.1") for _ in range(2)] == [True, False]


def test_an_ipv6_network_of_64_bits_counts_as_one_address() -> None:
    admission = entering(max_connections_per_address=1)
    assert admission.enter(LISTENER, "2001:db8::1")
    assert not admission.enter(LISTENER, "2001:db8::ffff:2")
    assert admission.enter(LISTENER, "2001:db8:0:1::1")
    assert subscriber_address("::ffff:10.0.0.1") == subscriber_address("10.0.0.1")
    assert subscriber_address("fe80::1%eth0") == "fe80::/64"


def test_new_connections_of_an_address_have_a_rate(caplog: pytest.LogCaptureFixture) -> None:
    admission = entering(connection_rate_per_address=2)
    for _ in range(2):
        assert [admission.enter(LISTENER, "10.0.0.1") for _ in range(4)] == [
            True, True, False, False,
        ]  # fmt: skip
        assert admission.enter(LISTENER, "10.0.0.2")
        for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
            admission.leave(LISTENER, host)
        assert not admission.enter(LISTENER, "10.0.0.1"), "that it is gone makes no difference"
        admission.tick()
    told = [record.getMessage() for record in caplog.records]
    assert told == ["10.0.0.1: more than 2 connections a second"] * 2


def test_the_total_counts_all_listeners() -> None:
    admission = Admission(LimitsConfig(), 2)
    one, two = Listener(mqtt("1", name="a")), Listener(mqtt("2", name="b"))
    assert admission.enter(one, "10.0.0.1")
    assert admission.enter(two, "10.0.0.2")
    assert not admission.enter(one, "10.0.0.3")
    assert (one.connections, two.connections) == (1, 1)
    admission.leave(two, "10.0.0.2")
    assert admission.enter(one, "10.0.0.3")


def test_who_is_gone_is_forgotten() -> None:
    admission = entering(max_connections_per_address=5, connection_rate_per_address=5)
    listener = Listener(mqtt("127.0.0.1:0", name="x"))
    for number in range(100):
        assert admission.enter(listener, f"10.0.0.{number}")
        admission.leave(listener, f"10.0.0.{number}")
    admission.tick()
    assert admission.addresses == 0
    assert listener.connections == 0


# The same over HTTP


async def is_alive(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    """Whether a question over HTTP is answered; False where the connection was closed."""
    reader, writer = streams
    try:
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        return (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


HTTP = ListenerConfig(protocol="http", address="127.0.0.1:0")


async def test_an_address_has_its_limit_over_http_too_and_all_protocols_count() -> None:
    found = config(mqtt("127.0.0.1:0"), HTTP, max_connections_per_address=2)
    async with Broker(found) as broker, connected(broker) as first:
        assert await is_served(first)
        async with connected(broker, "http") as second:
            assert await is_alive(second)
            for name in ("http", "mqtt"):
                async with connected(broker, name) as third:
                    assert not await (is_alive if name == "http" else is_served)(third)
            second[1].close()
            await second[1].wait_closed()
        admission = broker.server.admission if broker.server else None
        assert admission is not None
        while admission.counted("127.0.0.1") > 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with connected(broker, "http") as third:
            assert await is_alive(third)


async def test_new_connections_of_an_address_have_their_rate_over_http_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Admission, "tick", lambda _: None)
    async with Broker(config(HTTP, connection_rate_per_address=3)) as broker:
        served = []
        for _ in range(5):
            async with connected(broker, "http") as streams:
                served.append(await is_alive(streams))
        assert served == [True] * 3 + [False] * 2


async def test_a_websocket_on_the_http_port_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "tick", lambda _: None)
    found = config(
        mqtt("127.0.0.1:0"), HTTP, connection_rate_per_address=2, max_connections_per_address=1
    )
    upgrade = (
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDAwMDAwMDAwMDAwMDAwMA==\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    async with Broker(found) as broker:
        assert broker.server is not None
        admission = broker.server.admission
        async with connected(broker, "http") as (reader, writer):
            writer.write(upgrade)
            assert b" 101 " in await reader.readline()
            assert admission.counted("127.0.0.1") == 1
            (connection,) = broker.connections
            assert connection.peer.listener.connections == 1
        while admission.counted("127.0.0.1"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with connected(broker, "http") as streams:
            assert await is_alive(streams)


def test_who_has_come_before_is_not_counted_again() -> None:
    admission = Admission(LimitsConfig(max_connections_per_address=1), 1)
    listener = Listener(mqtt("127.0.0.1:0", name="x"))
    assert admission.enter_from("10.0.0.1")
    assert admission.enter(listener, "10.0.0.1", True)
    assert admission.enter_from("10.0.0.2")
    # Too many in all: its address has one less too.
    assert not admission.enter(listener, "10.0.0.2", True)
    assert admission.counted("10.0.0.2") == 0
    admission.leave(listener, "10.0.0.1")
    assert admission.addresses == 0


async def test_those_who_have_given_way_over_http_are_counted_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trivium.observability.http.MAX_CONNECTIONS", 1)
    async with (
        Broker(config(HTTP, max_connections_per_address=2)) as broker,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(5):
            assert await is_alive(await stack.enter_async_context(connected(broker, "http")))
        assert broker.server is not None
        assert broker.server.admission.counted("127.0.0.1") == 1
