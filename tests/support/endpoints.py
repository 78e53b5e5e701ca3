"""What tests of the load generator's clients need."""

from __future__ import annotations

import select
import socket
from typing import Final

from bench.endpoints import Address, Endpoint
from bench.frames import payload

BODY: Final = payload(32)
ADDRESS: Final[Address] = ("127.0.0.1", 0)


def feed(endpoint: Endpoint, server: socket.socket, data: bytes, piece: int) -> None:
    """Have ``endpoint`` read ``data`` in pieces of ``piece`` bytes."""
    for start in range(0, len(data), piece):
        server.sendall(data[start : start + piece])
        while select.select([endpoint.socket], [], [], 0)[0]:
            endpoint.readable()
