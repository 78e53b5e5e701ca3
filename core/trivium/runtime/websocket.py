"""WebSocket (RFC 6455): a layer between asyncio's transport and ``SocketDriver``.

Toward the loop it is a protocol, toward the driver a transport. ``Upgrade`` holds a socket until
the client has asked for the change of protocol, and costs nothing else. Then a ``WebSocket`` takes
the socket over. Negotiation, frames of control and compressed frames are websockets' business;
the frames that nearly all bytes come in are read by ``trivium.runtime.websocket_frames``.

Imported only where WebSocket is listened for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import NegotiationError
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from trivium.common.pieces import Piece
from trivium.listen import ListenerConfig, names_this_machine
from trivium.runtime.adapter import Adapter, Listener, WebSocketTerms
from trivium.runtime.handshakes import Handshake
from trivium.runtime.sockets import (
    CAME_AT,
    SocketDriver,
    address_of,
    host_of,
)
from trivium.runtime.websocket_frames import TEXT, FrameReader, framed
from trivium.security.identity import NOBODY

if TYPE_CHECKING:
    from trivium.runtime.driver import LoopDriver
    from trivium.runtime.server import Server

logger = logging.getLogger(__name__)

#: What the library logs by: not each connection that opens, nor what is in its frames.
#: What the library calls its limit of a message, opened; it has another name from version 16 on.
_MESSAGE_LIMIT: Final = "max_size" if hasattr(ServerProtocol(), "max_size") else "max_message_size"

_library_logger = logger.getChild("websockets")
_library_logger.setLevel(logging.WARNING)

#: Bytes of a request for the upgrade (8 KiB): what web servers take of one header line.
HEAD_BYTES: Final = 8 * 1024
_HEAD_END: Final = b"\r\n\r\n"

#: What a frame may be larger than the largest message (128 KiB): topic, properties, headers.
FRAME_OVERHEAD: Final = 128 * 1024

#: What a compressed message may open to before the client has authenticated (128 KiB): more than
#: one needs to say who one is.
UNKNOWN_BYTES: Final = 128 * 1024

#: A compressed message is opened by itself: what is kept for the next one takes more memory than
#: all else of a connection. What is sent is not compressed.
_COMPRESSION: Final = ServerPerMessageDeflateFactory(
    server_no_context_takeover=True, client_no_context_takeover=True
)

#: The version of the protocol that there is (section 4.1).
_VERSION: Final = "13"

_SCHEME_PORTS: Final = {"http": 80, "https": 443}


class Terms:
    """On what terms a listener changes to WebSocket."""

    def __init__(
        self,
        path: str,
        protocol: WebSocketTerms,
        origins: Sequence[str] = (),
        has_tls: bool = False,
        is_local: bool = False,
    ) -> None:
        #: the only path that is served
        self.path = path
        #: the subprotocols
        self.protocol = protocol
        #: pages from which browsers may connect, as `Origin` has them; "*" for any, empty for
        #: those of the host that is connected to
        self.origins = frozenset(origins)
        # Then pages that came without are not of the same host: anybody on their way may have
        # written them.
        self._has_tls = has_tls
        # Then those are of this machine: a page of another host was led here (DNS rebinding).
        self._is_local = is_local

    @classmethod
    def of(cls, listener: ListenerConfig, path: str, protocol: WebSocketTerms) -> Terms:
        """Those of a listener."""
        has_tls = listener.tls is not None
        is_local = listener.is_loopback and not listener.is_unix
        return cls(path, protocol, listener.websocket_origins, has_tls, is_local)

    def admits(self, request: Request) -> bool:
        """Whether a browser may connect from the page that it says (section 10.2). What is no
        browser says none.
        """
        found = request.headers.get_all("Origin")
        if not found or "*" in self.origins:
            return True
        if len(found) > 1:
            return False
        if self.origins:
            return found[0] in self.origins
        try:
            origin = urlsplit(found[0])
            if self._has_tls and origin.scheme != "https":
                return False
            port = origin.port or _SCHEME_PORTS.get(origin.scheme)
            for host in request.headers.get_all("Host"):
                if self._is_local and not names_this_machine(host):
                    return False
                asked = urlsplit("//" + host)
                asked_port = asked.port or _SCHEME_PORTS.get(origin.scheme)
                return (origin.hostname, port) == (asked.hostname, asked_port)
        except ValueError:
            pass
        return False

    def select(self, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        """The subprotocol, of those that the client offers: the first that is spoken."""
        for name in offered:
            if name in self.protocol.subprotocols:
                return name
        if offered or self.protocol.must_offer:
            names = ", ".join(self.protocol.subprotocols)
            raise NegotiationError(f"a subprotocol is needed: {names}")
        return None


class _Protocol(ServerProtocol):
    """The library's side of one WebSocket."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(extensions=[_COMPRESSION], logger=_library_logger)
        self._terms = terms

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        return self._terms.select(subprotocols)


class Rejected(Exception):
    """A request that is not granted; ``answer`` is what the client gets."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer.partition(b"\r\n")[0].decode())
        self.answer = answer


def negotiate(head: bytes, terms: Terms) -> tuple[ServerProtocol, bytes]:
    """Grant the request whose head this is; returns the protocol and the answer.

    Raises Rejected for one that is malformed (400), for another path (404), with another method
    (405), from a page that is not admitted (403), or not for WebSocket's version 13 (426).
    """
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or words[2] != b"HTTP/1.1":
        raise _rejected(HTTPStatus.BAD_REQUEST, "This is not a request of HTTP/1.1.")
    if words[1].partition(b"?")[0] != terms.path.encode():
        raise _rejected(HTTPStatus.NOT_FOUND, f"Here only {terms.path} is served.")
    if words[0] != b"GET":
        raise _rejected(HTTPStatus.METHOD_NOT_ALLOWED, "Use GET.", ("Allow", "GET"))
    protocol = _Protocol(terms)
    try:
        return protocol, _grant(protocol, head, terms)
    except Rejected:
        part_from(protocol)
        raise


def _grant(protocol: ServerProtocol, head: bytes, terms: Terms) -> bytes:
    protocol.receive_data(head)
    requests = protocol.events_received()
    if not requests or not isinstance(requests[0], Request):
        raise _rejected(HTTPStatus.BAD_REQUEST, "The headers are malformed.")
    request = requests[0]
    versions = request.headers.get_all("Sec-WebSocket-Version")
    if versions and versions != [_VERSION]:
        needed = ("Sec-WebSocket-Version", _VERSION)
        raise _rejected(HTTPStatus.UPGRADE_REQUIRED, "Version 13 is needed.", needed)
    if len(request.headers.get_all("Host")) != 1:
        raise _rejected(HTTPStatus.BAD_REQUEST, "One Host is needed.")
    if not terms.admits(request):
        raise _rejected(HTTPStatus.FORBIDDEN, "This Origin is not admitted.")
    response = protocol.accept(request)
    protocol.send_response(response)
    answer = b"".join(protocol.data_to_send())
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        raise Rejected(answer)
    return answer


def part_from(protocol: ServerProtocol) -> None:
    """It is done with. It and its parser, and what has refused a request and the request, know
    each other: they would keep each other in memory.
    """
    if protocol.handshake_exc is not None:
        protocol.handshake_exc.__traceback__ = None
    vars(protocol).clear()


def _rejected(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Rejected:
    body = f"{text}\n".encode()
    fields = Headers(
        [
            ("Connection", "close"),
            ("Content-Length", str(len(body))),
            ("Content-Type", "text/plain; charset=utf-8"),
            *headers,
        ]
    )
    return Rejected(Response(status.value, status.phrase, fields, body).serialize())


class Upgrade(asyncio.Protocol):
    """A socket whose client has yet to ask for the change to WebSocket."""

    def __init__(
        self,
        server: Server,
        listener: Listener,
        adapter: Adapter,
        terms: Terms,
        is_outermost: bool,
        counted: str | None = None,
    ) -> None:
        self._server = server
        self._listener = listener
        self._adapter = adapter
        self._terms = terms
        # Whether no layer lies between it and the socket; and where it has entered from. Behind
        # HTTP it is `counted` there already, "" where a layer around both does that.
        self._is_outermost = is_outermost
        self._counted = counted
        self._host = counted or ""
        self._head = b""
        self._is_over = False
        self._transport: asyncio.Transport | None = None
        self._handshake: Handshake | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        server = self._server
        is_counted = self._counted is not None
        if not is_counted:
            self._host = host_of(transport)
        if self._is_outermost and not server.admission.enter(
            self._listener, self._host, is_counted
        ):
            self._is_outermost = False
            self._abort()
            return
        self._handshake = Handshake(server, transport, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            # It was answered already, and is read on so that it gets the answer.
            return
        try:
            self._take(data)
        except Rejected as rejected:
            self._end(rejected.answer, str(rejected))
        except Exception:
            logger.exception("internal error in the change to WebSocket, the socket is closed")
            self._abort()

    def _take(self, data: bytes) -> None:
        self._head += data
        end = self._head.find(_HEAD_END)
        if end < 0:
            if len(self._head) > HEAD_BYTES:
                too_large = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                raise _rejected(too_large, "The request is too large.")
            return
        end += len(_HEAD_END)
        protocol, answer = negotiate(self._head[:end], self._terms)
        rest = self._head[end:]
        transport, handshake = self._transport, self._handshake
        assert transport is not None
        assert handshake is not None
        handshake.end()
        # It would call this one, which has nothing to do any more.
        self._handshake = None
        transport.write(answer)
        server = self._server
        inner = SocketDriver(server, self._adapter, self._listener, False)
        websocket = WebSocket(
            server.driver, protocol, inner, transport, self._leave, handshake.came_at
        )
        transport.set_protocol(cast("asyncio.Protocol", websocket))
        websocket.open(server.broker.config.limits.max_message_bytes + FRAME_OVERHEAD)
        if rest:
            websocket.data_received(rest)

    def _end(self, answer: bytes, why: str) -> None:
        self._is_over = True
        self._head = b""
        transport = self._transport
        assert transport is not None
        logger.debug("%s: %s: %s", self._listener.name, address_of(transport), why)
        transport.write(answer)
        transport.write_eof()

    def _leave(self) -> None:
        if self._is_outermost:
            self._is_outermost = False
            self._server.admission.leave(self._listener, self._host)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._handshake is not None:
            self._handshake.end()
            self._handshake = None
        self._leave()
        self._transport = None


class WebSocket:
    """An open WebSocket: the loop's protocol, and the transport of its ``SocketDriver``."""

    def __init__(
        self,
        driver: LoopDriver,
        protocol: ServerProtocol,
        inner: SocketDriver,
        transport: asyncio.Transport,
        leave: Callable[[], None],
        began_at: int,
    ) -> None:
        self._driver = driver
        self._came_at = began_at
        # Called when the socket is gone.
        self._leave = leave
        self._protocol = protocol
        self._inner = inner
        self._transport = transport
        # What was read and is not taken yet, since the driver has paused, or others are served.
        self._held: bytes | None = None
        self._is_paused = False
        self._is_full = False
        # Whether answers to pings wait in a socket that is full.
        self._owes_pongs = False
        # Whether a frame of close was sent: nothing follows it (section 5.5.1).
        self._has_said_close = False
        # Whether nothing that comes is taken any more.
        self._is_over = False

    def open(self, maximum: int) -> None:
        """The socket is this one's: connect the driver. No frame above ``maximum`` is taken."""
        self._maximum = maximum
        self._reader = FrameReader(maximum)
        self._inner.connection_made(cast("asyncio.Transport", self))

    # What the loop calls

    def data_received(self, data: bytes) -> None:
        try:
            if self._is_over:
                # The driver reads on until the client closes, within its limits.
                if self._inner.connection.is_closed:
                    self._inner.data_received(data)
            elif self._held is not None:
                self._held += data
            else:
                self._take(self._reader.join(data))
        except Exception:
            self._failed()

    def eof_received(self) -> bool:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._is_full = True
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        self._owes_pongs = False
        self._inner.resume_writing()
        self._read_on()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._held = None
        self._leave()
        self._inner.connection_lost(error)
        # The driver has this as its transport: they would keep each other in memory.
        del self._inner
        part_from(self._protocol)

    def _failed(self) -> None:
        logger.exception("internal error in a WebSocket, it is closed")
        self._is_over = True
        self._transport.abort()

    # Input

    def _take(self, data: bytes) -> None:
        """Take what was read, as far as the driver wants it."""
        reader = self._reader
        size = len(data)
        at = 0
        while True:
            if not reader.other:
                at = reader.take(data, at)
                if reader.payload:
                    payload = reader.payload
                    reader.payload = b""
                    self._inner.data_received(payload)
                if reader.notice:
                    self._protocol.receive_data(reader.notice)
                    self._protocol.events_received()
                    reader.notice = b""
            if at == size:
                return
            if self._is_held:
                self._hold(data[at:])
                return
            if reader.other:
                end = min(at + reader.other, size)
                reader.other -= end - at
                self._take_other(data[at:end])
                at = end
                if self._is_over:
                    return
                if self._driver.is_turn_long():
                    # Such frames are much work for few bytes.
                    self._hold(data[at:])
                    self._driver.call_soon(self._read_on)
                    return

    @property
    def _is_held(self) -> bool:
        return self._is_paused or self._owes_pongs

    def _hold(self, data: bytes) -> None:
        self._held = data
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Take what was held, unless something holds it again, and read on."""
        held = self._held
        if held is None or self._is_held or self._is_over:
            return
        self._held = None
        if held:
            try:
                self._take(held)
            except Exception:
                self._failed()
        if self._held is None and not self._is_held and not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_other(self, part: bytes) -> None:
        """Some of a frame that the library takes; all of it, mostly."""
        self._driver.begin_turn()
        protocol = self._protocol
        if self._reader.other_head & 0x0F == TEXT:
            # MQTT-6.0.0-1; and AMQP's frames are no text either.
            protocol.fail(CloseCode.UNSUPPORTED_DATA, "only binary frames are taken")
        else:
            is_known = self._inner.connection.identity is not NOBODY
            limit = self._maximum if is_known else min(UNKNOWN_BYTES, self._maximum)
            setattr(protocol, _MESSAGE_LIMIT, limit)
            protocol.receive_data(part)
        is_asked_to_close = False
        for event in protocol.events_received():
            if isinstance(event, Frame):
                if event.opcode is Opcode.CLOSE:
                    is_asked_to_close = True
                elif event.opcode in (Opcode.BINARY, Opcode.CONT) and event.data:
                    self._inner.data_received(bytes(event.data))
        if is_asked_to_close:
            self._closed_by_client()
        elif protocol.close_sent is not None and not self._has_said_close:
            self._violated()
        else:
            self._write_control()

    def _closed_by_client(self) -> None:
        """The client has closed: it sends no more. The driver's last output is written, then the
        answer, which the library holds, with ``close``.
        """
        self._is_over = True
        if self._has_said_close:
            self._transport.close()
        else:
            self._inner.eof_received()

    def _violated(self) -> None:
        """The client has broken a rule: what the library says of it, and holds, is the last that is
        sent.
        """
        self._is_over = True
        self._inner.end_input()

    def _write_control(self) -> None:
        output = self._protocol.data_to_send()
        if output and not self._has_said_close:
            self._transport.write(b"".join(output))
            self._owes_pongs = self._is_full

    def _write_close(self) -> None:
        if not self._has_said_close:
            self._has_said_close = True
            if not self._transport.is_closing():
                self._transport.write(b"".join(self._protocol.data_to_send()))

    # What the driver calls: the parts of asyncio.Transport that it uses

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the socket, which does not know when the client came."""
        if name == CAME_AT:
            return self._came_at
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The socket's."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """The socket's."""
        return self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Whether the socket is closing."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """What is read and not taken yet waits here, up to one read of the socket."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take what waits here in the next turn, then read on."""
        self._is_paused = False
        if self._held is not None and not self._is_over:
            self._driver.call_soon(self._read_on)
        elif not self._owes_pongs or self._is_over:
            self._transport.resume_reading()

    def write(self, data: Piece) -> None:
        """Write as one binary frame, or as few as may be."""
        self.writelines([data])

    def writelines(self, pieces: list[Piece]) -> None:
        """The same of several pieces that follow each other."""
        if self._has_said_close:
            return
        output = framed(pieces)
        if len(output) == 1:
            self._transport.write(output[0])
        else:
            self._transport.writelines(output)

    def write_eof(self) -> None:
        """Close as WebSocket does (section 7.1.2); the socket is closed when the client has too."""
        self._say_close()
        if self._is_over:
            self._transport.write_eof()

    def close(self) -> None:
        """Write a frame of close, and close the socket."""
        self._say_close()
        self._transport.close()

    def _say_close(self) -> None:
        if not self._has_said_close:
            if self._protocol.close_sent is None:
                self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._write_close()

    def abort(self) -> None:
        """Close the socket at once."""
        self._is_over = True
        self._transport.abort()
