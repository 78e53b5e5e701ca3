"""TLS and WebSocket for the load generator's connections.

Each is used as a non-blocking socket, and by blocking calls until its client has shaken hands.
Neither is to be the bottleneck: TLS passes a read's worth of records to OpenSSL at a time, and
WebSocket frames of one size, which messages of one size are in, are made and taken by numpy.
"""

from __future__ import annotations

import base64
import secrets
import socket
import ssl
from typing import Final

import numpy as np

PLAIN: Final = "plain"
TLS: Final = "tls"
WEBSOCKET: Final = "ws"

RECORD_BYTES: Final = 16 * 1024
"""What one TLS record holds at most (RFC 8446, 5.1)."""
READ_BYTES: Final = 64 * 1024
"""A buffer must be larger than a record: this is what connections behind a door have at least."""
_BINARY: Final = 0x82
"""The first byte of a frame that is a whole binary message (RFC 6455, 5.2)."""
_HEAD_BYTES: Final = 10
"""The longest head of a server's frame (RFC 6455, 5.2)."""
_CLOSE: Final = 8
_MASKED: Final = 0x80
_MASK: Final = b"\x1d\xa3\x5e\xf2"
"""Unlike a program's it does not change: that the broker unmasks is what it costs."""


def tls_context() -> ssl.SSLContext:
    """A client's that trusts every server: what it costs is to be the server's work."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Door:
    """Something between a socket and who uses it as one."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._unsent = b""

    @property
    def has_unsent(self) -> bool:
        """The socket has not taken all of it."""
        return bool(self._unsent)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        """Whether calls wait."""
        self._socket.setblocking(is_blocking)

    def close(self) -> None:
        """Close the socket without ceremony."""
        self._socket.close()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sendall(self, data: bytes | memoryview) -> None:
        """Send all, waiting for it."""
        self._socket.sendall(self._encode(data))

    def send(self, data: bytes | memoryview) -> int:
        """Take all of ``data`` and send what the socket takes. Raises BlockingIOError instead where
        there is something left from before."""
        self.flush()
        if self._unsent:
            raise BlockingIOError
        self._unsent = self._encode(data)
        self.flush()
        return len(data)

    def flush(self) -> None:
        """Send more of what was left over."""
        if self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                pass

    def recv(self, size: int) -> bytes:
        """Receive something, waiting for it."""
        buffer = bytearray(size)
        while True:
            try:
                return bytes(buffer[: self.recv_into(memoryview(buffer))])
            except BlockingIOError:
                if not self._socket.getblocking():
                    raise

    def recv_into(self, view: memoryview) -> int:
        """Read the socket once. Raises BlockingIOError where that was nothing to the user."""
        raise NotImplementedError

    def _encode(self, data: bytes | memoryview) -> bytes:
        raise NotImplementedError


class TlsDoor(Door):
    """TLS, with a server that is not verified."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext | None = None) -> None:
        super().__init__(plain)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = (context or tls_context()).wrap_bio(self._incoming, self._outgoing)
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                plain.sendall(self._outgoing.read())
                data = plain.recv(READ_BYTES)
                if not data:
                    raise ConnectionError("closed during the TLS handshake") from None
                self._incoming.write(data)
            else:
                break
        plain.sendall(self._outgoing.read())

    @property
    def version(self) -> str | None:
        """The version of TLS that is spoken."""
        return self._object.version()

    def _encode(self, data: bytes | memoryview) -> bytes:
        view = memoryview(data)
        for start in range(0, len(view), RECORD_BYTES):
            self._object.write(view[start : start + RECORD_BYTES])
        return self._outgoing.read()

    def recv_into(self, view: memoryview) -> int:
        if filled := self._read(view):
            return filled
        # Not more than fits when it is open, so that nothing waits here unseen.
        data = self._socket.recv(max(len(view) - self._incoming.pending, 1))
        if not data:
            return 0
        self._incoming.write(data)
        filled = self._read(view)
        if not filled:
            raise BlockingIOError
        return filled

    def _read(self, view: memoryview) -> int:
        filled = 0
        try:
            while filled < len(view) and (self._object.pending() or self._incoming.pending):
                size = self._object.read(len(view) - filled, view[filled:])
                filled += int(size)
        except ssl.SSLWantReadError:
            pass
        return filled


class WebSocketDoor(Door):
    """A WebSocket for MQTT, each packet in a frame of its own, as MQTT's clients send them."""

    def __init__(self, plain: socket.socket) -> None:
        super().__init__(plain)
        self._raw = bytearray()
        self._filled = 0
        # Bytes of the frame that is being read which have not come, and whether to drop them.
        self._left = 0
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        plain.sendall(
            "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
        )
        answer = b""
        # The server has nothing to say before CONNECT.
        while not answer.endswith(b"\r\n\r\n"):
            data = plain.recv(READ_BYTES)
            if not data:
                raise ConnectionError(f"no WebSocket, but {answer[:80]!r}")
            answer += data
        if b" 101 " not in answer.partition(b"\r\n")[0]:
            raise ConnectionError(f"no WebSocket, but {answer[:80]!r}")

    def _encode(self, data: bytes | memoryview) -> bytes:
        size = packet_size(data)
        if len(data) % size:
            size = len(data)
        head = frame_head(size)
        whole = -(-size // 4) * 4
        mask = np.frombuffer((_MASK * (whole // 4))[:size], np.uint8)
        packets = np.frombuffer(data, np.uint8).reshape(-1, size)
        frames = np.empty((len(packets), len(head) + size), np.uint8)
        frames[:, : len(head)] = np.frombuffer(head, np.uint8)
        np.bitwise_xor(packets, mask, out=frames[:, len(head) :])
        return frames.tobytes()

    def recv_into(self, view: memoryview) -> int:
        if len(self._raw) < len(view) + _HEAD_BYTES:
            self._raw += bytes(len(view) + _HEAD_BYTES - len(self._raw))
        room = min(len(self._raw) - self._filled, len(view))
        received = self._socket.recv_into(memoryview(self._raw)[self._filled :], room)
        if not received:
            return 0
        self._filled += received
        filled = self._decode(view)
        if filled is None:
            return 0
        if not filled:
            raise BlockingIOError
        return filled

    def _decode(self, view: memoryview) -> int | None:
        """Put the payloads of what has come into ``view``; None once the server closes."""
        raw, end = memoryview(self._raw), self._filled
        at = out = 0
        while True:
            if self._left:
                count = min(self._left, end - at)
                view[out : out + count] = raw[at : at + count]
                self._left -= count
                at, out = at + count, out + count
            head = _head_size(raw, at, end)
            if self._left or not head:
                break
            if raw[at] & 0x0F == _CLOSE:
                return None
            size = _payload_size(raw, at)
            frames = np.frombuffer(self._raw, np.uint8, count=end - at, offset=at)
            count = len(frames) // (head + size)
            if count > 1:
                rows = frames[: count * (head + size)].reshape(count, head + size)
                same = (rows[:, :head] == rows[0, :head]).all(axis=1)
                count = count if same.all() else int(same.argmin())
                taken = np.frombuffer(view, np.uint8, count=count * size, offset=out)
                taken.reshape(count, size)[:] = rows[:count, head:]
                at, out = at + count * (head + size), out + count * size
            else:
                self._left = size
                at += head
        self._raw[: end - at] = self._raw[at:end]
        self._filled = end - at
        return out


def packet_size(data: bytes | memoryview) -> int:
    """The size of the MQTT packet that ``data`` begins with (MQTT 3.1.1, 2.2)."""
    size = shift = 0
    for at in range(1, 5):
        size |= (data[at] & 0x7F) << shift
        shift += 7
        if not data[at] & 0x80:
            return size + at + 1
    raise ValueError("no MQTT packet")


def frame_head(size: int) -> bytes:
    """The head of a client's frame with ``size`` bytes (RFC 6455, 5.2)."""
    if size < 126:
        return bytes((_BINARY, _MASKED | size)) + _MASK
    if size < 1 << 16:
        return bytes((_BINARY, _MASKED | 126)) + size.to_bytes(2, "big") + _MASK
    return bytes((_BINARY, _MASKED | 127)) + size.to_bytes(8, "big") + _MASK


def _head_size(raw: memoryview, at: int, end: int) -> int:
    """The size of the head of a server's frame; 0 while it is not whole."""
    if end - at < 2:
        return 0
    head = {126: 4, 127: 10}.get(raw[at + 1], 2)
    return head if end - at >= head else 0


def _payload_size(raw: memoryview, at: int) -> int:
    size = raw[at + 1]
    if size < 126:
        return size
    return int.from_bytes(raw[at + 2 : at + (4 if size == 126 else 10)], "big")
