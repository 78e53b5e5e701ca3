"""TLS and WebSocket of the load generator."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.server import ServerProtocol

from bench import mqtt_frames
from bench.doors import (
    READ_BYTES,
    Door,
    TlsDoor,
    WebSocketDoor,
    frame_head,
    packet_size,
)
from bench.endpoints import Endpoint
from tests.support.certificates import Authority


class Collector(Endpoint):
    """Takes everything."""

    def __init__(self, connection: Door) -> None:
        super().__init__(connection, 1)
        self.taken = b""

    def consume(self, filled: int) -> int:
        self.taken += self.buffer[:filled]
        return filled


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[TlsDoor, ssl.SSLSocket]]:
    """Both ends of a connection."""
    pair = Authority(tmp_path).pair("server", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    client, server = socket.socketpair()
    found: list[ssl.SSLSocket] = []
    thread = threading.Thread(
        target=lambda: found.append(context.wrap_socket(server, server_side=True))
    )
    thread.start()
    door = TlsDoor(client)
    thread.join()
    with door, found[0]:
        yield door, found[0]


def test_tls_is_1_3_and_carries_what_is_sent(tls: tuple[TlsDoor, ssl.SSLSocket]) -> None:
    door, server = tls
    assert server.version() == "TLSv1.3"
    door.sendall(b"a" * 40_000)
    got = b""
    while len(got) < 40_000:
        got += server.recv(100_000)
    assert got == b"a" * 40_000
    server.sendall(b"hello")
    assert (door.recv(2), door.recv(10)) == (b"he", b"llo"), "the rest of a record is kept"


def test_what_a_socket_does_not_take_is_sent_later(tls: tuple[TlsDoor, ssl.SSLSocket]) -> None:
    door, server = tls
    endpoint = Collector(door)
    data = bytes(range(256)) * 16_000
    endpoint.write(data)
    endpoint.write(b"end")
    assert endpoint.has_unsent
    got = b""
    while len(got) < len(data) + 3:
        endpoint.writable()
        got += server.recv(1 << 20)
    assert got == data + b"end"
    assert not endpoint.has_unsent


def test_a_read_that_is_no_whole_record_is_nothing_yet(
    tls: tuple[TlsDoor, ssl.SSLSocket],
) -> None:
    door, server = tls
    endpoint = Collector(door)
    server.sendall(b"b" * 50_000)
    while len(endpoint.taken) < 50_000:
        endpoint.readable()
    endpoint.readable()
    assert endpoint.taken == b"b" * 50_000


@pytest.mark.parametrize("size", [2, 4, 125, 126, 127, 1000, 70_000])
def test_the_size_of_a_packet_is_read_from_its_head(size: int) -> None:
    packet, _ = mqtt_frames.publish("t", 0, bytes(size))
    assert packet_size(packet + b"rest") == len(packet)


class Site:
    """The server's end of a WebSocket, by another implementation."""

    def __init__(self) -> None:
        client, self.socket = socket.socketpair()
        self.protocol = ServerProtocol(subprotocols=["mqtt"])  # type: ignore[list-item]
        thread = threading.Thread(target=self._accept)
        thread.start()
        self.door = WebSocketDoor(client)
        thread.join()

    def _accept(self) -> None:
        self.protocol.receive_data(self.socket.recv(10_000))
        (request,) = self.protocol.events_received()
        self.protocol.send_response(self.protocol.accept(request))  # type: ignore[arg-type]
        self.socket.sendall(b"".join(self.protocol.data_to_send()))

    def payloads(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            self.protocol.receive_data(self.socket.recv(1 << 20))
            found += [bytes(frame.data) for frame in self.protocol.events_received()]  # type: ignore[union-attr]
        return found

    def close(self) -> None:
        self.door.close()
        self.socket.close()


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()
    yield found
    found.close()


@pytest.mark.parametrize("size", [0, 100, 200, 70_000])
def test_each_packet_is_a_masked_frame(site: Site, size: int) -> None:
    packet, _ = mqtt_frames.publish(
        "topic", 0, bytes(range(256)) * (size // 256) + bytes(size % 256)
    )
    Collector(site.door).write(packet * 3)
    assert site.payloads(3) == [packet] * 3
    assert frame_head(len(packet))[1] & 0x80


@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, 126, 300, 66_000]), min_size=1, max_size=8),
    piece=st.sampled_from([1, 7, 1000, READ_BYTES]),
)
def test_frames_are_read_whole_and_in_pieces(sizes: list[int], piece: int) -> None:
    site = Site()
    try:
        endpoint = Collector(site.door)
        sent = b""
        for number, size in enumerate(sizes * 2):
            payload = bytes((number,)) * size
            sent += payload
            site.protocol.send_binary(payload)
        data = b"".join(site.protocol.data_to_send())
        step = max(piece, len(data) // 200)
        for start in range(0, len(data), step):
            site.socket.sendall(data[start : start + step])
            endpoint.readable()
        while len(endpoint.taken) < len(sent):
            endpoint.readable()
        assert endpoint.taken == sent
    finally:
        site.close()
