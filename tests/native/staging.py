"""STAGE, and TX that commits what was staged, as the tests of both send them."""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from tests.support.native import Received, Server, into, tx
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.adapter import NativeAdapter
from trivium_native.server.parts import Parts
from trivium_native.wire import frames


def stage(
    *entries: bytes, part: str = "a", index: int = 0, sequence: int = 0, producer: str = "p"
) -> bytes:
    packed: bytes = msgpack.packb(
        {"producer": producer, "sequence": sequence, "part": part, "index": index}
    )
    return struct.pack("<II", len(packed), len(entries)) + packed + b"".join(entries)


def numbers(*values: int) -> list[bytes]:
    return [into(b"s", b"%d" % value) for value in values]


def commit(*wanted: tuple[str, int], sequence: int = 0, epoch: int = 0) -> bytes:
    return tx(producer="p", epoch=epoch, sequence=sequence, parts=[list(each) for each in wanted])


def add_topology(server: Server) -> Server:
    server.vhost.declare_stream("s")
    server.open().send(frames.PRODUCER, 0, {"producer": "p", "transactional": True})
    return server


def parts_of(server: Server, vhost: VirtualHost | None = None) -> Parts:
    adapter = server.adapter
    assert isinstance(adapter, NativeAdapter)
    return adapter.parts_of(server.vhost if vhost is None else vhost)


def answer(received: list[Received], correlation: int = 5) -> dict[str, Any]:
    ((kind, found, body),) = received
    assert (kind, found) == (frames.OK, correlation), received
    fields: dict[str, Any] = msgpack.unpackb(body)
    return fields
