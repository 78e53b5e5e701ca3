"""What tests of the load generator's clients need."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

from bench import native_frames
from bench.endpoints import Address, Endpoint
from bench.frames import payload

BODY: Final = payload(32)
ADDRESS: Final[Address] = Address("127.0.0.1", 0)


def feed(endpoint: Endpoint, server: socket.socket, data: bytes, piece: int) -> None:
    """Have ``endpoint`` read ``data`` in pieces of ``piece`` bytes."""
    for start in range(0, len(data), piece):
        server.sendall(data[start : start + piece])
        while select.select([endpoint.socket], [], [], 0)[0]:
            endpoint.readable()


LET_IN = native_frames.request(native_frames.HELLO, 1) + native_frames.request(native_frames.OK, 2)


@contextmanager
def native_server_end(replies: bytes = b"") -> Iterator[socket.socket]:
    """Let the client under test connect to a socket pair that lets it in and has ``replies``."""
    client, server = socket.socketpair()
    server.sendall(LET_IN + replies)
    with server, client, mock.patch("bench.native_clients.connect", return_value=client):
        server.settimeout(5)
        yield server
