"""TLS between a socket's transport and whoever speaks the protocol.

Outside it is an ``asyncio.Protocol``, inside it has what is used of ``asyncio.Transport``, neither
by name: a class of such a base would not be a native one. The loop's own TLS is not used. It keeps
a quarter of a megabyte for each connection, has no way to end the output alone, counts no
handshakes, and needs the socket for itself, before which nothing else could be read.
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING, Any, Final

from trivium.common.pieces import Piece
from trivium.runtime.adapter import Listener
from trivium.runtime.certificates import Certificates
from trivium.runtime.handshakes import Handshake
from trivium.runtime.sockets import (
    CAME_AT,
    CUT_SECONDS,
    address_of,
    host_of,
)

if TYPE_CHECKING:
    from trivium.runtime.server import Server

logger = logging.getLogger(__name__)

#: Bytes that are given to OpenSSL at a time: what its buffers grow to, which they keep (16 KiB). It
#: is also what one record holds at most (RFC 8446, 5.1).
RECORD_BYTES: Final = 16 * 1024

#: Bytes with which a handshake ends, or never: certificates of a client have 100 KiB at most in
#: OpenSSL.
HANDSHAKE_BYTES: Final = 128 * 1024
#: Bytes of records without data, such as KeyUpdate (RFC 8446, 4.6.3), that a client may send in a
#: row. Each of its 27 costs as much as some ten thousand bytes of data. One record that is not
#: complete has less.
BARREN_BYTES: Final = 32 * 1024
#: Bytes of records that one byte of data stands for: one alone makes a record of 23.
DATA_WEIGHT: Final = 64

#: Name of what a client has shown, among the extra information of a transport.
CLIENT_CERTIFICATE: Final = "client_certificate"


class TlsLayer:
    """TLS of one connection, as its server (RFC 8446, RFC 5246)."""

    __deletable__ = ("_inner",)

    _inner: Any
    _transport: Any
    _object: Any

    def __init__(
        self,
        server: Server,
        listener: Listener,
        certificates: Certificates,
        inner: Any,
        is_http: bool,
    ) -> None:
        self._server = server
        self._loop = server.driver
        self._listener = listener
        self._certificates = certificates
        # Who speaks the protocol.
        self._inner = inner
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = certificates.context.wrap_bio(
            self._incoming, self._outgoing, server_side=True
        )
        # HTTP has limits of its own but for addresses.
        self._is_http = is_http
        # Whether it has entered, and from where.
        self._is_counted = False
        self._host = ""
        self._is_open = False
        # Whether the peer sends no more that is for us; whether we do not, and what it sends is
        # only counted.
        self._has_ended = False
        self._drains = False
        # Whether whoever speaks the protocol takes nothing now, and is not told yet of the end.
        self._is_paused = False
        self._owes_end = False
        # Whether the turn was too long for all that has come, and what OpenSSL has yet to get.
        self._waits_for_turn = False
        self._waiting = b""
        # Bytes that came since there was data, in proportion to it; until it is open, all.
        self._barren = 0
        self._certificate: object = None
        self._handshake: Handshake | None = None

    # Protocol

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        server = self._server
        self._host = host_of(transport)
        if self._is_http:
            self._is_counted = server.admission.enter_from(self._host)
        else:
            self._is_counted = server.admission.enter(self._listener, self._host)
        if not self._is_counted:
            transport.abort()
        if transport.is_closing() or server.broker.is_stopping:
            transport.abort()
            return
        self._handshake = Handshake(server, transport, self._timed_out)

    def data_received(self, data: bytes) -> None:
        if self._drains or self._has_ended:
            if self._drains:
                self._inner.data_received(data)
            return
        if self._waits_for_turn:
            self._waiting += data
            return
        try:
            if self._is_open and len(data) <= RECORD_BYTES:
                self._incoming.write(data)
                parts: list[bytes] = []
                self._read(parts)
                self._flush()
                self._deliver(parts)
            else:
                self._take(data, False)
        except Exception as error:
            self._fail(error)

    def _take(self, data: bytes, has_turn: bool) -> None:
        """Give OpenSSL what has come, so much at a time; what does not fit in the turn waits."""
        was_open = self._is_open
        parts: list[bytes] = []
        view = memoryview(data)
        self._loop.begin_turn()
        for at in range(0, len(data), RECORD_BYTES):
            # A step of the handshake takes about a millisecond, and thousands may begin at once.
            if (at or not self._is_open) and not has_turn and self._loop.is_turn_long():
                self._waits_for_turn = True
                self._waiting = data[at:]
                self._transport.pause_reading()
                self._loop.deferred.add(self._go_on)
                break
            has_turn = False
            part = view[at : at + RECORD_BYTES]
            self._incoming.write(part)
            if not self._is_open and not self._shake_hands(len(part)):
                if self._transport.is_closing():
                    return
                continue
            self._read(parts)
            if self._has_ended:
                break
        if not self._is_open:
            return
        # The end of the handshake, a ticket of TLS 1.3, goes with the answer to what came with it.
        if was_open or not parts:
            self._flush()
        self._deliver(parts)

    def _go_on(self) -> None:
        """The turn has come for what waits."""
        self._waits_for_turn = False
        data = self._waiting
        self._waiting = b""
        if self._transport.is_closing():
            return
        if not self._is_paused:
            self._transport.resume_reading()
        if self._drains or self._has_ended:
            self.data_received(data)
            return
        try:
            self._take(data, True)
        except Exception as error:
            self._fail(error)

    def _shake_hands(self, size: int) -> bool:
        """Take a step of the handshake, with so many bytes more; whether it was the last one.

        Raises ssl.SSLError.
        """
        self._barren += size
        if self._barren > HANDSHAKE_BYTES:
            raise ssl.SSLError(1, "it does not end")
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        self._end_handshake()
        self._barren = 0
        self._certificate = self._certificates.client_certificate(self._object)
        self._is_open = True
        self._inner.connection_made(self)
        return not self._transport.is_closing()

    def _end_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.end()

    def _read(self, parts: list[bytes]) -> None:
        """Decrypt what has come, one record at a time.

        OpenSSL is asked only while there is something: that there is nothing is an exception, which
        costs as much as a record. Raises ssl.SSLError where next to nothing of it is data.
        """
        incoming, read = self._incoming, self._object.read
        self._barren += incoming.pending
        try:
            while incoming.pending:
                part = read(RECORD_BYTES)
                if not part:
                    self._has_ended = True
                    break
                parts.append(part)
                self._barren = max(self._barren - DATA_WEIGHT * len(part), 0)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            # close_notify: the peer sends no more (RFC 8446, 6.1).
            self._has_ended = True
        if self._barren > BARREN_BYTES:
            raise ssl.SSLError(1, "records without data")

    def _deliver(self, parts: list[bytes]) -> None:
        if parts:
            self._inner.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._has_ended:
            self._owes_end = True
            self._tell_end()

    def _tell_end(self) -> None:
        """The peer sends no more, which is told behind all that it has sent."""
        if not self._owes_end or self._is_paused or self._transport.is_closing():
            return
        self._owes_end = False
        if not self._inner.eof_received():
            self.close()

    def _fail(self, error: Exception) -> None:
        """TLS cannot go on. What OpenSSL has to say to the peer, an alert, is sent."""
        address = address_of(self._transport)
        if isinstance(error, ssl.SSLError):
            what = "TLS" if self._is_open else "TLS handshake"
            reason = reason_of(error)
            logger.info("%s: %s: %s failed: %s", self._listener.name, address, what, reason)
        else:
            logger.error("%s: internal error, it is closed: %r", address, error, exc_info=error)
        self._has_ended = True
        if not self._transport.is_closing():
            self._flush()
            self._transport.close()
            # It may not read what it was sent before.
            self._loop.call_later(CUT_SECONDS, self._transport.abort)

    def _timed_out(self) -> None:
        logger.info(
            "%s: %s: TLS handshake took too long", self._listener.name, address_of(self._transport)
        )
        self._transport.abort()

    def eof_received(self) -> bool:
        if not self._is_open:
            return False
        if self._has_ended:
            # It has said so before.
            return True
        self._has_ended = True
        return bool(self._inner.eof_received())

    def connection_lost(self, error: Exception | None) -> None:
        self._end_handshake()
        if self._is_counted:
            if self._is_http:
                self._server.admission.leave_from(self._host)
            else:
                self._server.admission.leave(self._listener, self._host)
        if self._is_open:
            self._inner.connection_lost(error)
        # The two would keep each other in memory.
        del self._inner

    def pause_writing(self) -> None:
        if self._is_open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._inner.resume_writing()

    # Transport

    def set_protocol(self, inner: Any) -> None:
        """Another one speaks the protocol from here on."""
        self._inner = inner

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the connection: TLS adds ``client_certificate`` and ``ssl_object``."""
        if name == CLIENT_CERTIFICATE:
            return self._certificate
        if name == CAME_AT:
            return None if self._handshake is None else self._handshake.came_at
        if name == "ssl_object":
            return self._object
        if name == "sslcontext":
            return self._object.context
        return self._transport.get_extra_info(name, default)

    def write(self, data: Piece) -> None:
        """Send ``data``."""
        if self._transport.is_closing():
            return
        try:
            if len(data) <= RECORD_BYTES:
                self._object.write(data)
                self._flush()
                return
            view = memoryview(data)
            records: list[bytes] = []
            for at in range(0, len(data), RECORD_BYTES):
                self._object.write(view[at : at + RECORD_BYTES])
                records.append(self._outgoing.read())
            self._transport.writelines(records)
        except ssl.SSLError as error:
            self._fail(error)

    def writelines(self, output: list[Piece]) -> None:
        """Send the pieces of ``output``, which share records."""
        self.write(b"".join(output))

    def _flush(self) -> None:
        """Send what OpenSSL has for the peer."""
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _notify_close(self) -> None:
        """Say that nothing more comes (RFC 8446, 6.1)."""
        try:
            self._object.unwrap()
        except ssl.SSLError:
            # It waits for the peer's, or there is something else to read: neither matters.
            pass
        self._flush()

    def write_eof(self) -> None:
        """End the output; what comes is counted and dropped by whoever speaks the protocol."""
        self._drains = True
        self._notify_close()
        self._transport.write_eof()

    def close(self) -> None:
        """Close once all is sent."""
        if not self._transport.is_closing():
            self._has_ended = True
            if self._is_open:
                self._notify_close()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be once all is sent."""
        return bool(self._transport.is_closing())

    def pause_reading(self) -> None:
        """Leave in the socket what comes."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._is_paused = False
        if not self._waits_for_turn:
            self._transport.resume_reading()
        if self._owes_end:
            # What waits of what came before is taken first.
            self._loop.call_soon(self._tell_end)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bytes above which ``pause_writing`` is called, and below which ``resume_writing``."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken yet."""
        return int(self._transport.get_write_buffer_size())


def reason_of(error: ssl.SSLError) -> str:
    """What OpenSSL says, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate: {error.verify_message}"
    return (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
