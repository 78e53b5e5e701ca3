"""A client's side of WebSocket, written by hand."""

from __future__ import annotations

import asyncio

#: RFC 6455, section 1.3: the key, and what is answered to it.
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def masked(
    payload: bytes, opcode: int = 2, fin: bool = True, mask: bytes = b"\x37\xfa\x21\x3d"
) -> bytes:
    """A client's frame."""
    size = len(payload)
    if size < 126:
        length = bytes((0x80 | size,))
    elif size < 65536:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    laid = bytes(byte ^ mask[place & 3] for place, byte in enumerate(payload))
    return bytes(((0x80 if fin else 0) | opcode,)) + length + mask + laid


def request(path: str = "/mqtt", *headers: str, method: str = "GET") -> bytes:
    """The client's handshake (RFC 6455, section 4.1); a header of its own replaces one of it, and
    without a value leaves it out.
    """
    fields = {
        "Host": "server.example.com",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
    }
    for header in headers:
        name, _, value = header.partition(": ")
        fields[name] = value
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([*lines, "", ""]).encode()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.rstrip().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines)


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """First byte and payload of a server's frame."""
    first, size = await reader.readexactly(2)
    assert size < 0x80, "a server does not mask"
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    elif size == 127:
        size = int.from_bytes(await reader.readexactly(8), "big")
    return first, await reader.readexactly(size)
