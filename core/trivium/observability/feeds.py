"""Sends a feed to a client, for as long as there are events and the client takes them: as
server-sent events, or by a WebSocket, whose client also says something."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

from aiohttp import WSMsgType, hdrs, web

from trivium.observability.browsers import is_own_origin

if TYPE_CHECKING:
    from trivium.observability.api import Feed, FeedEvent
    from trivium.observability.http import HttpConnection

#: what says that the connection is there
_COMMENT: Final = b":\n\n"
#: opcodes of frames, and the bit of the last of a message (RFC 6455, 5.2)
_CONTINUATION: Final = 0x0
_TEXT: Final = 0x1
_LAST: Final = 0x80

#: seconds in which a client takes what it is sent
SEND_SECONDS: Final = 30.0
#: seconds until it is looked again whether the client may still be sent anything
CHECK_SECONDS: Final = 1.0
#: seconds after which a client that was sent nothing gets a comment, or a ping: proxies cut what
#: is silent
SILENT_SECONDS: Final = 15.0
#: bytes of what a client of a WebSocket says at once
MAX_SAID_BYTES: Final = 64 * 1024

#: Does some work on the feed, as a turn of the broker.
Turn = Callable[[Callable[[], None]], None]
#: Waits until there is time for some more of it.
GoOn = Callable[[], Awaitable[None]]


def wants_websocket(request: web.Request) -> bool:
    """Whether a client asks for a WebSocket (RFC 6455, 4.2.1)."""
    return request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"


def has_sent(request: web.Request, count: int) -> None:
    """So many bytes were sent of an answer that goes on: they count now, not at its end."""
    cast("HttpConnection", request.protocol).has_sent(count)


def is_of_another_site(request: web.Request, has_tls: bool) -> bool:
    """Whether a page of another site asks (RFC 6455, 10.2): no browser asks for leave to open a
    WebSocket, nor hides who wants it."""
    origin = request.headers.get(hdrs.ORIGIN)
    return origin is not None and not is_own_origin(origin, request.host, has_tls)


async def send_feed(
    request: web.Request,
    feed: Feed,
    turn: Turn,
    go_on: GoOn,
    parse: Callable[[str], object],
    headers: Mapping[str, str],
) -> web.StreamResponse:
    """Send a feed until it is over or the client is gone; it is closed in the end. ``parse`` reads
    JSON, and raises ValueError."""
    wake = asyncio.Event()
    feed.wake = wake.set
    pump = _Pump(feed, turn, go_on, wake)
    try:
        if wants_websocket(request):
            return await _by_websocket(request, feed, turn, pump, parse)
        return await _as_events(request, pump, headers)
    finally:
        turn(feed.close)


class _Pump:
    """Takes what a feed has, and looks now and again whether it may go on."""

    def __init__(self, feed: Feed, turn: Turn, go_on: GoOn, wake: asyncio.Event) -> None:
        self._feed = feed
        self._turn = turn
        self.go_on = go_on
        self._wake = wake
        self._checked_at = time.monotonic()

    async def next(self) -> list[FeedEvent] | None:
        """The next events, none after ``CHECK_SECONDS`` without any; None at the end."""
        await self.go_on()
        now = time.monotonic()
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            self._turn(self._feed.check)
        self._wake.clear()
        found: list[FeedEvent] = []
        self._turn(lambda: found.extend(self._feed.take()))
        if found:
            return found
        if self._feed.is_over:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await self._wake.wait()
        return []


async def _as_events(
    request: web.Request, pump: _Pump, headers: Mapping[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    response.content_type = "text/event-stream"
    sent_at = 0.0

    async def send(text: bytes) -> None:
        nonlocal sent_at
        if text:
            sent_at = time.monotonic()
            async with asyncio.timeout(SEND_SECONDS):
                await response.write(text)
            has_sent(request, len(text))

    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        try:
            # A browser takes it as open from the first byte on.
            await send(_COMMENT)
            while request.transport is not None:
                events = await pump.next()
                if events is None:
                    break
                if not events and time.monotonic() - sent_at >= SILENT_SECONDS:
                    await send(_COMMENT)
                for text in _texts(events):
                    await send(text)
                    # To write waits only where the client is behind.
                    await asyncio.sleep(0)
                    await pump.go_on()
            if request.transport is not None:
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
    return response


def _texts(events: list[FeedEvent]) -> Iterator[bytes]:
    """Events as HTML's standard has them (9.2.5): the JSON of each is one line. Long ones are in
    pieces."""
    parts: list[bytes] = []
    for event in events:
        identity = b"id: %s\n" % event.identity.encode() if event.identity else b""
        parts.append(b"event: %s\n%sdata: %s" % (event.name.encode(), identity, event.data))
        for piece in event.more or ():
            parts.append(piece)
            yield b"".join(parts)
            parts.clear()
        parts.append(b"\n\n")
    if parts:
        yield b"".join(parts)


async def _by_websocket(
    request: web.Request,
    feed: Feed,
    turn: Turn,
    pump: _Pump,
    parse: Callable[[str], object],
) -> web.StreamResponse:
    socket = web.WebSocketResponse(
        max_msg_size=MAX_SAID_BYTES, heartbeat=SILENT_SECONDS, compress=False
    )
    await socket.prepare(request)
    sending = asyncio.ensure_future(_send(request, socket, pump))
    hearing = asyncio.ensure_future(_hear(socket, feed, turn, parse))
    try:
        await asyncio.wait((sending, hearing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, hearing):
            task.cancel()
        results = await asyncio.gather(sending, hearing, return_exceptions=True)
    for result in results:
        if isinstance(result, TimeoutError) and request.transport is not None:
            request.transport.abort()
        elif isinstance(result, Exception) and not isinstance(result, ConnectionError):
            raise result
    await socket.close()
    return socket


async def _send(request: web.Request, socket: web.WebSocketResponse, pump: _Pump) -> None:
    while (events := await pump.next()) is not None:
        for event in events:
            identity = f'"id":"{event.identity}",' if event.identity else ""
            text = b'{"event":"%s",%s"data":%s' % (
                event.name.encode(),
                identity.encode(),
                event.data,
            )
            if event.more is None:
                async with asyncio.timeout(SEND_SECONDS):
                    await socket.send_str(text.decode() + "}")
                has_sent(request, len(text) + 1 + _frame_head(len(text) + 1))
            else:
                await _send_long(request, text, event.more, pump.go_on)
        await asyncio.sleep(0)


async def _send_long(request: web.Request, text: bytes, more: Iterator[bytes], go_on: GoOn) -> None:
    """A message of a WebSocket in fragments (RFC 6455, 5.4): what it begins with, then more."""
    opcode = _TEXT
    for piece in more:
        if piece:
            await _send_fragment(request, opcode, text)
            opcode, text = _CONTINUATION, piece
        # To write waits only where the client is behind.
        await asyncio.sleep(0)
        await go_on()
    await _send_fragment(request, _LAST | opcode, text + b"}")


async def _send_fragment(request: web.Request, first: int, text: bytes) -> None:
    size = len(text)
    if size <= 125:
        head = bytes((first, size))
    elif size <= 0xFFFF:
        head = bytes((first, 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, 127)) + size.to_bytes(8, "big")
    async with asyncio.timeout(SEND_SECONDS):
        await cast("HttpConnection", request.protocol).send(head + text)
    has_sent(request, len(head) + size)


def _frame_head(size: int) -> int:
    """The bytes before a payload of a server's frame (RFC 6455, 5.2)."""
    return 2 + (size > 125) * 2 + (size > 0xFFFF) * 6


async def _hear(
    socket: web.WebSocketResponse, feed: Feed, turn: Turn, parse: Callable[[str], object]
) -> None:
    async for message in socket:
        said: object = None
        if message.type is WSMsgType.TEXT:
            with contextlib.suppress(ValueError, RecursionError):
                said = parse(message.data)
        _tell(feed, turn, said)


def _tell(feed: Feed, turn: Turn, said: object) -> None:
    turn(lambda: feed.received(said))
