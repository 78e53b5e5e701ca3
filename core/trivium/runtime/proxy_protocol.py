"""The PROXY protocol, versions 1 and 2: a proxy says for whom it connects.

The header stands in front of all else, TLS too. ``ProxyLayer`` has the socket until it has come,
and then goes: what is next has the socket's transport, of which the client is the peer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from trivium.runtime.handshakes import Handshake
from trivium.runtime.sockets import (
    CAME_AT,
    address_of,
    host_of,
)

if TYPE_CHECKING:
    from trivium.runtime.server import Server

logger = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Sections 2.1 and 2.2 of the specification: how the two versions begin.
V1_BEGINS: Final = b"PROXY "
V2_BEGINS: Final = b"\r\n\r\n\x00\r\nQUIT\n"

#: The longest header of version 1, its end included (section 2.1).
V1_BYTES: Final = 107
_V1_END: Final = b"\r\n"

#: What version 2 has in front of the addresses (section 2.2).
_V2_HEAD: Final = 16
#: Bytes of addresses and further fields that are read (4 KiB): a proxy adds a certificate's names.
V2_BYTES: Final = 4096

#: Version 2: the commands, and of the families with their lengths those that are known.
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_INET_BYTES: Final = 12
_INET6_BYTES: Final = 36
_UNIX_BYTES: Final = 216
_FAMILY_BYTES: Final = {0: 0, 1: _INET_BYTES, 2: _INET6_BYTES, 3: _UNIX_BYTES}
_TRANSPORTS: Final = frozenset((0, 1, 2))


class HeaderError(Exception):
    """What came is not a header; the text says why."""


#: Host and port for whom a connection is. The proxy may not know, or it is no internet address:
#: then it is nobody whom we would trust for it.
Source = tuple[str, int]
UNKNOWN: Final[Source] = ("unknown", 0)


class HeaderReader:
    """Takes a header out of what has arrived, and no byte behind it."""

    def __init__(self) -> None:
        #: whether the header is whole
        self.is_done = False
        #: for whom it is; None for the proxy itself, with ``is_done``
        self.source: Source | None = None
        self._data = b""

    def take(self, data: bytes) -> int:
        """Take what of ``data`` is of the header; returns how much. Raises HeaderError."""
        before = len(self._data)
        self._data += data
        size = self._size()
        if size is None:
            return len(data)
        self._data = self._data[:size]
        if len(self._data) == size:
            self._read()
        return len(self._data) - before

    def _size(self) -> int | None:
        """How long the header is, or None as long as that does not show."""
        data = self._data
        if data[: len(V2_BEGINS)] == V2_BEGINS[: len(data)]:
            if len(data) < _V2_HEAD:
                return None
            size = int.from_bytes(data[14:_V2_HEAD], "big")
            if size > V2_BYTES:
                raise HeaderError(f"it is longer than {V2_BYTES} bytes")
            return _V2_HEAD + size
        if data[: len(V1_BEGINS)] == V1_BEGINS[: len(data)]:
            end = data.find(_V1_END, 0, V1_BYTES)
            if end >= 0:
                return end + len(_V1_END)
            if len(data) >= V1_BYTES:
                raise HeaderError(f"it is longer than {V1_BYTES} bytes")
            return None
        raise HeaderError("there is none")

    def _read(self) -> None:
        self.is_done = True
        data = self._data
        self.source = _read_v1(data) if data.startswith(V1_BEGINS) else _read_v2(data)


def _read_v1(data: bytes) -> Source:
    try:
        text = data[: -len(_V1_END)].decode("ascii")
    except UnicodeDecodeError:
        raise HeaderError("it is not ASCII") from None
    words = text.split(" ")
    if words[1] == "UNKNOWN":
        return UNKNOWN
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise HeaderError("its words are not those of version 1")
    try:
        kind = ipaddress.IPv4Address if words[1] == "TCP4" else ipaddress.IPv6Address
        host, _ = str(kind(words[2])), kind(words[3])
    except ValueError:
        raise HeaderError("an address is malformed") from None
    if not all(re.fullmatch("0|[1-9][0-9]{0,4}", word) for word in words[4:]):
        raise HeaderError("a port is malformed")
    if max(int(word) for word in words[4:]) > 0xFFFF:
        raise HeaderError("a port is above 65535")
    return (host, int(words[4]))


def _read_v2(data: bytes) -> Source | None:
    command, family, transport = data[12], data[13] >> 4, data[13] & 15
    if command not in (_LOCAL, _PROXY):
        raise HeaderError(f"0x{command:02x} is no version and command")
    if command == _LOCAL:
        # Section 2.2: the family and what follows are to be ignored.
        return None
    if family not in _FAMILY_BYTES or transport not in _TRANSPORTS:
        raise HeaderError(f"0x{data[13]:02x} is no family and transport")
    body = data[_V2_HEAD:]
    if len(body) < _FAMILY_BYTES[family]:
        raise HeaderError("the addresses are cut off")
    _check_fields(body[_FAMILY_BYTES[family] :])
    if family == 1:
        return (str(ipaddress.IPv4Address(body[:4])), int.from_bytes(body[8:10], "big"))
    if family == 2:
        host = ipaddress.IPv6Address(body[:16])
        return (str(host.ipv4_mapped or host), int.from_bytes(body[32:34], "big"))
    return UNKNOWN


def _check_fields(fields: bytes) -> None:
    """Go over the fields behind the addresses (type, length, value), of which none is used."""
    at = 0
    while at < len(fields):
        at += 3 + int.from_bytes(fields[at + 1 : at + 3], "big")
    if at != len(fields):
        raise HeaderError("a field is cut off")


class Proxied:
    """The transport of a connection that a proxy has made: its peer is the client."""

    def __init__(self, transport: asyncio.Transport, peer: tuple[str, int], began_at: int) -> None:
        self._transport = transport
        self._peer = peer
        self._came_at = began_at

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the socket, but for the peer."""
        if name == "peername":
            return self._peer
        if name == CAME_AT:
            return self._came_at
        return self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ProxyLayer(asyncio.Protocol):
    """A connection of a proxy whose header has yet to come.

    A peer outside ``networks`` is refused, whatever it sends; a Unix socket admits whom its
    permissions do. ``take`` makes whoever is served behind the header.
    """

    def __init__(
        self, server: Server, name: str, networks: tuple[Network, ...], take: Callable[[], Any]
    ) -> None:
        self._server = server
        self._name = name
        self._networks = networks
        self._take = take
        self._reader = HeaderReader()
        self._transport: asyncio.Transport | None = None
        self._handshake: Handshake | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._is_named():
            self._refuse("is no proxy of this listener")
            return
        self._handshake = Handshake(self._server, transport, self._too_late)

    def _is_named(self) -> bool:
        assert self._transport is not None
        host = host_of(self._transport)
        if not host:
            return True
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)

    def _refuse(self, why: str) -> None:
        assert self._transport is not None
        logger.warning("%s: %s %s, it is refused", self._name, address_of(self._transport), why)
        self._transport.abort()

    def _too_late(self) -> None:
        self._refuse("has sent no header of the PROXY protocol in time")

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            return
        try:
            taken = self._reader.take(data)
        except HeaderError as error:
            self._refuse(f"has sent a wrong header of the PROXY protocol: {error}")
            return
        if self._reader.is_done:
            handshake = self._handshake
            assert handshake is not None
            handshake.end()
            rest = data[taken:]
            self._server.driver.call(partial(self._hand_on, transport, rest, handshake.came_at))

    def _hand_on(self, transport: asyncio.Transport, rest: bytes, came_at: int) -> None:
        inner = self._take()
        source = self._reader.source
        transport.set_protocol(inner)
        peer = transport if source is None else Proxied(transport, source, came_at)
        inner.connection_made(peer)
        if rest and not transport.is_closing():
            inner.data_received(rest)

    def connection_lost(self, error: Exception | None) -> None:
        if self._handshake is not None:
            self._handshake.end()
        self._transport = None
