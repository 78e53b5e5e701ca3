"""The HTTP side: health for orchestrators and metrics for Prometheus.

Imported only when HTTP is switched on, since aiohttp costs more to import than the rest of the
broker. It runs on the broker's own loop.

- `GET /health/live` answers 200 while the loop turns.
- `GET /health/ready` answers 200 while clients can connect and publish, else 503 with the reason.
- `/` is the dashboard.
- `/api/...` is for whoever `api` asks (see `trivium.observability.api`), by users with a password,
  token or key, and by pages of ours whose users have signed in (see `browsers`). Pages of other
  sites gain nothing: they would need leave for PUT, DELETE or JSON, which nobody gives (CORS).
- `GET /metrics`, and what is below it, is the Prometheus text format. Where anonymous access is
  not admitted (see `Authenticator.admits_anonymous`), it wants a user's name and password by HTTP
  Basic.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import unquote

from aiohttp import BasicAuth, StreamReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.typedefs import Handler

from trivium.common.unsent import unsent_bytes
from trivium.errors import AccessRefused
from trivium.listen import ControlListener, ListenerConfig, is_loopback, names_this_machine
from trivium.observability.api import (
    OWN,
    Api,
    ApiAnswer,
    ApiPlace,
    ApiRefused,
    ApiRequest,
    Feed,
    Refusal,
    refusal,
)
from trivium.observability.bodies import RepeatedName, TooManyValues, parse, parse_large
from trivium.observability.browsers import (
    PAGE_HEADER,
    Cookie,
    File,
    cookie_of,
    is_of_own_page,
    is_of_this_site,
)
from trivium.observability.feeds import (
    SEND_SECONDS,
    has_sent,
    is_of_another_site,
    send_feed,
    wants_websocket,
)
from trivium.observability.line import InTurns, Line, TurnClock
from trivium.observability.metrics import ProtocolMetrics
from trivium.observability.seats import Seats
from trivium.security.attempts import Attempt, Login
from trivium.security.authenticator import Authenticator
from trivium.security.identity import ADMINISTRATOR, MONITORING, NOBODY, OWNER, Identity
from trivium.security.permissions import Permissions
from trivium.security.sessions import Session, Sessions

if TYPE_CHECKING:
    from aiohttp.http import WebSocketReader

#: seconds that requests in progress get when the broker stops
SHUTDOWN_SECONDS: Final = 1.0
#: connections at a time; who gives way beyond them: ``trivium.observability.seats``
MAX_CONNECTIONS: Final = 128
#: seconds that a connection is kept between two requests
KEEP_ALIVE_SECONDS: Final = 5.0
#: bytes of the first line of a request: of three names or topics, each of whose characters may be
#: 12 bytes there, and some words
MAX_LINE_BYTES: Final = 32 * 1024
#: header fields of a request
MAX_FIELDS: Final = 128
#: bytes of a body that is read on the loop
SMALL_BODY_BYTES: Final = 64 * 1024
#: bytes of an answer in parts that are sent together, with their number; a longer one is chunked
GATHERED_BYTES: Final = 64 * 1024
#: seconds between two events
EVENT_SECONDS: Final = 1.0
#: answers with metrics at a time, those that are short and those that may be long each for
#: themselves, and seconds that one may take
MAX_SCRAPES: Final = 4
SCRAPE_SECONDS: Final = 30.0
#: seconds for which metrics are made before others are served
SLICE_SECONDS: Final = 0.002
#: a percent sign that encodes nothing
_NO_OCTET: Final = re.compile("%(?![0-9A-Fa-f]{2})")
METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


logger = logging.getLogger(__name__)


class _NotOurFault(logging.Filter):
    """What is no HTTP is its sender's fault: a line in the log in place of a traceback. That a
    client has gone before it was answered is nobody's."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            logger.info("malformed request: %s", type(error).__name__)
            return False
        # Whoever answers has no other connections.
        return not isinstance(error, ConnectionError)


#: What aiohttp logs by.
_aiohttp_logger = logger.getChild("aiohttp")
_aiohttp_logger.addFilter(_NotOurFault())


class HttpDriver(TurnClock, Protocol):
    """What calls the server: the driver of the broker, to whom an exception is an internal error.

    One in the answer to a request is the request's alone: aiohttp logs it and answers 500.
    """

    def call_later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        """Call ``work`` after some time."""


class Addresses(Protocol):
    """Counts what comes from each address, by whatever protocol."""

    def enter_from(self, host: str) -> bool:
        """One more comes; whether it may. One that may not does not count."""

    def leave_from(self, host: str) -> None:
        """One that might come is gone."""


class Metrics:
    """Where the metrics are, and what makes them of a path and its query, piece by piece.

    ``make`` raises ValueError for what it does not know. The server's own are in ``counted``.
    """

    def __init__(
        self,
        paths: tuple[str, ...],
        make: Callable[[str, list[tuple[str, str]]], Iterator[str]],
        counted: ProtocolMetrics,
    ) -> None:
        self.paths = paths
        self.make = make
        self.counted = counted


#: What the field ``Server`` of answers says (RFC 9110, 10.2.4).
SERVER: Final = "Trivium"

#: Tags of users who may see the metrics. Clients without credentials are let in by address.
_MAY_WATCH: Final = frozenset((ADMINISTRATOR, MONITORING))


class HttpServer:
    """Serves health and metrics to the clients of one listener.

    `unready` gives the reason why the broker is not ready, or None; `metrics` makes the metrics.
    Both are called on the loop. A connection that has asked nothing within
    `handshake_seconds` is closed. `upgrades` makes, by path, what takes the socket over from a
    client that asks for a WebSocket, told by whose address it counts already. All is there behind
    `prefix` as well, for proxies that leave it in the path. `addresses` counts connections, unless
    a layer around them does.
    """

    def __init__(
        self,
        driver: HttpDriver,
        authenticator: Authenticator,
        permissions: Permissions,
        unready: Callable[[], str | None],
        metrics: Metrics,
        listener: ListenerConfig,
        handshake_seconds: float = 10.0,
        upgrades: Mapping[str, Callable[[str], asyncio.Protocol]] | None = None,
        api: Api | None = None,
        prefix: str = "",
        sessions: Sessions | None = None,
        files: Mapping[str, File] | None = None,
        addresses: Addresses | None = None,
    ) -> None:
        self._driver = driver
        self._line = Line(driver)
        self._authenticator = authenticator
        self._permissions = permissions
        self._unready = unready
        self._metrics = metrics
        #: answers with metrics that are being made or sent: short ones, and those that may be long
        self._scrapes: tuple[list[_Scrape], list[_Scrape]] = ([], [])
        self._listener = listener
        self._handshake_seconds = handshake_seconds
        self._addresses = addresses
        most = min(MAX_CONNECTIONS, listener.max_connections or MAX_CONNECTIONS)
        self._seats: Seats[HttpConnection] = Seats(most, _drop)
        application = web.Application(middlewares=[self._has_asked])
        application.on_response_prepare.append(_name_server)
        self._prefix = prefix
        self._api = api
        self._sessions = sessions
        self._counted = metrics.counted
        self._files = files or {}
        self._upgrades = upgrades or {}
        for place in dict.fromkeys(("", prefix)):
            self._add_routes(application.router, place)
        if prefix:
            application.router.add_get(prefix, self._get_below)
        self._settings: dict[str, Any] = {
            "access_log": None,
            "logger": _aiohttp_logger,
            "keepalive_timeout": KEEP_ALIVE_SECONDS,
            "max_line_size": MAX_LINE_BYTES,
            "max_headers": MAX_FIELDS,
            # What is small on its way may be huge, also where nobody reads it.
            "auto_decompress": False,
        }
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_SECONDS,
            **self._settings,
        )

    def _add_routes(self, router: web.UrlDispatcher, place: str) -> None:
        """All that there is, behind the path of a place."""
        router.add_get(f"{place}/health/live", self._get_live)
        router.add_get(f"{place}/health/ready", self._get_ready)
        for path in self._metrics.paths:
            router.add_get(place + path, self._get_metrics)
        if self._api is not None:
            router.add_route("*", place + r"/api/{path:[\s\S]*}", self._ask_api)
        for path in self._files:
            router.add_get(place + path, self._get_file)
        for path in self._upgrades:
            router.add_get(place + path, self._get_upgrade, allow_head=False)

    def _own(self, path: str) -> str:
        """A path without the prefix."""
        below = path.removeprefix(self._prefix)
        return below if below[:1] == "/" else path

    async def start(self) -> None:
        """Get ready to ``connect``."""
        await self._runner.setup()

    async def stop(self) -> None:
        """Requests in progress get a second to end."""
        await self._runner.cleanup()

    def connect(self) -> asyncio.Protocol:
        """What serves a new connection, or closes it where it may not come."""
        server = self._runner.server
        assert server is not None
        connection = HttpConnection(server, loop=asyncio.get_running_loop(), **self._settings)
        connection.counted = self._counted
        connection.seats = self._seats
        connection.addresses = self._addresses
        connection.task = None
        connection.is_asking = False
        connection.silence = self._driver.call_later(self._handshake_seconds, connection.abort)
        return connection

    @web.middleware
    async def _has_asked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = _connection_of(request)
        connection.has_asked()
        connection.is_asking = True
        connection.user = ""
        self._seats.asks(connection)
        try:
            if _is_encoded(request):
                return await self._respond(request, _ENCODED)
            return await handler(request)
        finally:
            connection.is_asking = False
            self._seats.is_idle(connection)

    def _is_in(self, request: web.Request, identity: Identity) -> None:
        """Who asks is known from now on, unless it came without credentials."""
        _connection_of(request).user = identity.name
        if not identity.is_anonymous and identity is not NOBODY:
            self._seats.is_in(_connection_of(request))

    async def _get_below(self, _: web.Request) -> web.Response:
        # What the pages name is below it: a browser must see the slash.
        return web.Response(
            status=308, headers={hdrs.LOCATION: self._prefix.rpartition("/")[2] + "/"}
        )

    async def _get_live(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _get_ready(self, _: web.Request) -> web.Response:
        reason = self._unready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "unready", "reason": reason}, status=503)

    async def _get_file(self, request: web.Request) -> web.Response:
        file = self._files[self._own(request.path)]
        headers = {**file.headers, hdrs.ETAG: f'"{file.tag}"'}
        known = request.if_none_match or ()
        if any(each.value in (file.tag, "*") for each in known):
            return web.Response(status=304, headers=headers)
        headers[hdrs.CONTENT_TYPE] = file.content_type
        return web.Response(body=file.body, headers=headers)

    async def _get_upgrade(self, request: web.Request) -> web.Response:
        if request.headers.get(hdrs.UPGRADE, "").lower() != "websocket":
            return web.Response(
                status=426,
                headers={hdrs.UPGRADE: "websocket"},
                text="this is served to WebSockets\n",
            )
        _hand_over(request, self._upgrades[self._own(request.path)])
        # Nobody gets it.
        return web.Response()

    async def _get_metrics(self, request: web.Request) -> web.StreamResponse:
        try:
            # They tell of no message: whatever probes and scrapes call us, they may have them.
            admits_anonymous = self._authenticator.admits_anonymous(self._listener)
            login = await self._identify(request, admits_anonymous)
        except ApiRefused as refused:
            return web.Response(
                status=refused.answer.status, headers=refused.answer.headers, text=f"{_PUT_OFF}\n"
            )
        identity = None if login is None else login.identity
        if identity is not None:
            self._is_in(request, identity)
        if identity is not None and not identity.is_anonymous:
            try:
                self._permissions.require_tag(identity, _MAY_WATCH, "metrics")
            except AccessRefused as error:
                return web.Response(status=403, text=f"{error}\n")
        if identity is None:
            return web.Response(status=401, headers=_CHALLENGE, text=f"{_not_in(request)}\n")
        path = self._own(request.path)
        is_short = path == self._metrics.paths[0] and not request.query_string
        scrapes = self._scrapes[not is_short]
        if len(scrapes) >= MAX_SCRAPES and not _make_room(scrapes):
            return web.Response(status=503, text="others ask for metrics just now\n")
        try:
            pieces = self._metrics.make(path, list(request.query.items()))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        scrape = _Scrape(request)
        scrapes.append(scrape)
        response = web.Response()
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                response = web.Response(text=await self._join(pieces, identity.name))
                scrape.is_made = True
                response.headers[hdrs.CONTENT_TYPE] = METRICS_CONTENT_TYPE
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            scrape.drop()
        finally:
            if scrape in scrapes:
                scrapes.remove(scrape)
        return response

    async def _ask_api(self, request: web.Request) -> web.StreamResponse:
        # Many that come together are answered in as many turns as that takes.
        await self._line.wait_for_time("")
        try:
            path = _segments(self._own(_target(request)))
            asked, answer = await self._answer(request, path)
            if answer.feed is not None:
                return await self._feed(request, asked, answer.feed)
        except ValueError:
            answer = refusal(400, "bad_request", "a path is UTF-8, percent-encoded")
        except ApiRefused as refused:
            answer = refused.answer
        return await self._respond(request, answer)

    async def _answer(
        self, request: web.Request, path: tuple[str, ...]
    ) -> tuple[ApiRequest, ApiAnswer]:
        """What the API is asked and answers. Raises ApiRefused."""
        assert self._api is not None
        connection = _connection_of(request)
        place = self._api.place(request.method, path)
        cookie = cookie_of(
            request.headers.get(hdrs.HOST, ""),
            self._listener.tls is not None,
            self._prefix,
            request.headers.get("X-Forwarded-Proto", "").lower() == "https",
        )
        session = self._page_of(request, place, path, cookie)
        login = await self._login_of(request, place) if session is None else session.login
        self._is_in(request, login.identity)
        if path[0] == OWN and not _accepts(request.headers.getall(hdrs.ACCEPT, []), _SHOWN):
            text = "answers are application/json, events text/event-stream"
            raise ApiRefused(refusal(406, "not_acceptable", text))
        query = dict(request.query)
        if path[0] == OWN and len(query) != len(request.query):
            raise ApiRefused(refusal(400, "bad_request", "a parameter is given twice"))
        is_websocket = wants_websocket(request)
        if is_websocket and is_of_another_site(request, cookie.is_secure):
            raise ApiRefused(refusal(403, "access_refused", "a page of another site asks"))
        digest = None
        if "Idempotency-Key" in request.headers:
            digest = blake2b(repr(sorted(request.query.items())).encode(), digest_size=16)
        try:
            async with asyncio.timeout(self._handshake_seconds):
                body = await _read_body(request, place, path[0] == OWN, digest)
        except TimeoutError:
            raise ApiRefused(refusal(408, "request_timeout", "the body stays away")) from None
        asked = ApiRequest(
            method=request.method,
            path=path,
            query=query,
            body=body,
            identity=login.identity,
            login=login,
            session=session,
            cookie=cookie,
            reason=request.headers.get("X-Reason", ""),
            idempotency_key=request.headers.get("Idempotency-Key", ""),
            fingerprint=bytes(16) if digest is None else digest.digest(),
            traceparent=request.headers.get("traceparent", ""),
            tracestate=request.headers.get("tracestate", ""),
            must_exist=_must_exist(request, path[0] == OWN),
            is_websocket=is_websocket,
            last_event=request.headers.get("Last-Event-ID", ""),
            address=request.remote or "",
            listener=self._listener,
            has_left=lambda: request.transport is None,
            is_behind=connection.is_behind,
            drop=connection.abort,
        )
        return asked, await _answered(self._api, request, asked)

    def _page_of(
        self, request: web.Request, place: ApiPlace, path: tuple[str, ...], cookie: Cookie
    ) -> Session | None:
        """The session of a page that asks our own API; None for others. Raises ApiRefused."""
        if path[0] != OWN or hdrs.AUTHORIZATION in request.headers:
            return None
        try:
            return self._session_of(request, cookie)
        except ApiRefused:
            # What anybody may ask may be asked also by a session that is over.
            if place.is_public:
                return None
            raise

    async def _login_of(self, request: web.Request, place: ApiPlace) -> Login:
        """By what somebody without a session asks. Raises ApiRefused."""
        if place.is_public:
            return Login(identity=NOBODY)
        if _is_page(request):
            # Whoever has not signed in does not try to come in by that.
            raise ApiRefused(refusal(401, "not_authorised", "nobody has signed in"))
        is_local = self._is_called_local(request)
        admits_anonymous = place.admits_anonymous and self._authenticator.admits_anonymous(
            self._listener, is_local
        )
        found = await self._identify(request, admits_anonymous, place.vhost)
        if found is None:
            text = _not_in(request)
            if not is_local and self._is_local(request):
                text = f"{text}; {_CALLED_OTHERWISE}"
            raise ApiRefused(refusal(401, "not_authorised", text))
        return found

    async def _feed(
        self, request: web.Request, asked: ApiRequest, feed: Feed
    ) -> web.StreamResponse:
        api = self._api
        assert api is not None

        def turn(work: Callable[[], None]) -> None:
            api.go_on(asked, work)

        connection = _connection_of(request)
        if connection.has_ended:
            connection.abort()
        with _gone(request, lambda: feed.wake(), lambda: True):
            go_on = partial(self._line.wait_for_time, asked.identity.name)
            return await send_feed(request, feed, turn, go_on, _said, _API_HEADERS)

    def _session_of(self, request: web.Request, cookie: Cookie) -> Session | None:
        """That of the page which asks; None for who shows no cookie. Raises ApiRefused."""
        token = request.cookies.get(cookie.name)
        if not token or self._sessions is None:
            return None
        if not is_of_own_page(request.method, request.headers, cookie.is_secure):
            raise ApiRefused(refusal(403, "access_refused", "this is for pages of this broker"))
        found = self._sessions.find(token, self._listener.name, self._is_local(request))
        if found is None:
            raise ApiRefused(refusal(401, "not_authorised", "the session is over: sign in again"))
        return found

    def _is_local(self, request: web.Request) -> bool:
        return self._listener.is_unix or is_loopback(request.remote or "")

    def _is_called_local(self, request: web.Request) -> bool:
        """Whether we are called by a name of this machine. No browser comes by a Unix socket."""
        return self._listener.is_unix or names_this_machine(request.headers.get(hdrs.HOST, ""))

    async def _identify(
        self, request: web.Request, admits_anonymous: bool, vhost: str = ""
    ) -> Login | None:
        """By what a client is in who asks, for something in ``vhost`` if it names one; None when it
        may not. Where ``admits_anonymous`` it may without credentials. Raises ApiRefused where
        there was no time to look, and where it is in but may not enter the virtual host.
        """
        username, password = None, b""
        header = request.headers.get(hdrs.AUTHORIZATION, "")
        if not header and isinstance(self._listener, ControlListener):
            return Login(identity=OWNER)
        scheme, _, token = header.partition(" ")
        if scheme.lower() == "bearer":
            password = token.strip().encode(errors="surrogateescape")
        elif header:
            try:
                credentials = BasicAuth.decode(header, encoding="utf-8")
            except ValueError:
                return None
            username, password = credentials.login, credentials.password.encode()
        owner, is_ambiguous = _certificate_of(request)
        put_off: list[bool] = []
        attempt = Attempt(
            username=username,
            password=password,
            address=request.remote or "",
            is_loopback=self._is_local(request) and self._is_called_local(request),
            methods=self._listener.methods,
            admits_anonymous=admits_anonymous,
            protocol=self._listener.protocol,
            listener=self._listener.name,
            certificate_user=owner,
            is_certificate_ambiguous=is_ambiguous,
            is_gone=lambda: request.transport is None,
            is_put_off=lambda: put_off.append(True),
        )
        answer: asyncio.Future[Login | None] = asyncio.get_running_loop().create_future()

        def done(login: Login | None) -> None:
            if not answer.done():
                answer.set_result(login)

        self._authenticator.authenticate(attempt, done)
        login = await answer
        if login is None and put_off:
            again = {"Retry-After": "1"}
            raise ApiRefused(refusal(503, "service_unavailable", _PUT_OFF, again))
        if login is None and header:
            self._counted.authentication_failures += 1
        if login is not None and vhost and self._authenticator.decides_by_vhost(login):
            return await self._enter(request, login, replace(attempt, vhost=vhost))
        return login

    async def _enter(self, request: web.Request, login: Login, attempt: Attempt) -> Login:
        """What holds for a client in the virtual host of ``attempt``. Raises ApiRefused where it
        may not enter: that is no failed login."""
        answer: asyncio.Future[Login | None] = asyncio.get_running_loop().create_future()

        def done(found: Login | None) -> None:
            if not answer.done():
                answer.set_result(found)

        self._authenticator.enter(login, attempt, done)
        found = await answer
        if found is None:
            text = f"access to vhost '{attempt.vhost}' refused for user '{login.identity.name}'"
            self._permissions.denied(text, login.identity)
            if self._is_own_api(request):
                raise ApiRefused(refusal(403, "access_refused", text))
            # As RabbitMQ's API answers.
            raise ApiRefused(refusal(401, "not_authorised", text))
        return found

    async def _join(self, pieces: Iterator[str], user: str) -> str:
        """All pieces together; between them others are served."""
        slices = InTurns(self._line, user, _in_slices(pieces))
        found: list[str] = []
        while (text := await slices.next()) is not None:
            found.append(text)
        return "".join(found)

    async def _respond(self, request: web.Request, answer: ApiAnswer) -> web.StreamResponse:
        """Send an answer; one in parts as fast as the client takes it."""
        if isinstance(answer, Refusal) and not self._is_compatible(request):
            answer = answer.as_problem()
        headers: dict[str, str] = {**answer.headers, **_API_HEADERS}
        if answer.status == 401:
            # A page asks by itself who signs in, where a browser would open a window of its own.
            challenge = _PAGE_CHALLENGE if PAGE_HEADER in request.headers else _CHALLENGE
            headers[hdrs.WWW_AUTHENTICATE] = challenge[hdrs.WWW_AUTHENTICATE]
        if answer.events is not None and request.method != "HEAD":
            return await self._send_events(request, answer, answer.events, headers)
        user = _connection_of(request).user
        if answer.parts is not None:
            parts = InTurns(self._line, user, answer.parts)
            try:
                text, is_whole = await _gather(parts)
                await self._line.wait_for_time(user)
            except ApiRefused as refused:
                return await self._respond(request, refused.answer)
            if not is_whole:
                response = web.StreamResponse(status=answer.status, headers=headers)
                response.content_type = answer.content_type
                await response.prepare(request)
                if request.method == "HEAD":
                    parts = InTurns(self._line, user, iter(()))
                try:
                    await _send_parts(response, text, parts)
                except TimeoutError:
                    if request.transport is not None:
                        request.transport.abort()
                return response
        elif answer.body is None:
            return web.Response(status=answer.status, headers=headers)
        else:
            text = json.dumps(answer.body).encode()
        if answer.status == 200 and request.method in _TAGGED and self._is_own_api(request):
            tag = f'"{blake2b(text, digest_size=12).hexdigest()}"'
            headers[hdrs.ETAG] = tag
            if _knows(request, tag):
                return web.Response(status=304, headers=headers)
        return web.Response(
            status=answer.status, headers=headers, body=text, content_type=answer.content_type
        )

    def _is_own_api(self, request: web.Request) -> bool:
        return f"{self._own(request.path)}/".startswith(f"/api/{OWN}/")

    def _is_compatible(self, request: web.Request) -> bool:
        """Whether errors have the form of RabbitMQ's API."""
        return self._own(request.path).startswith("/api/") and not self._is_own_api(request)

    async def _send_events(
        self,
        request: web.Request,
        answer: ApiAnswer,
        events: Generator[bytes, None, None],
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        """Send one event after the other, until there are no more or the client is gone. One that
        takes none for long is dropped."""
        response = web.StreamResponse(status=answer.status, headers=headers)
        response.content_type = answer.content_type
        with contextlib.closing(events), contextlib.suppress(ConnectionError):
            await response.prepare(request)
            try:
                making = InTurns(self._line, _connection_of(request).user, events)
                while (event := await making.next()) is not None:
                    if event:
                        async with asyncio.timeout(SEND_SECONDS):
                            await response.write(event)
                        has_sent(request, len(event))
                        await asyncio.sleep(EVENT_SECONDS)
                await response.write_eof()
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
        return response


class _Scrape:
    """An answer with metrics."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        #: whom it is for
        self.host = request.remote or ""
        #: whether nothing is left but for the client to take it
        self.is_made = False

    def drop(self) -> None:
        """Close its connection."""
        if self._request.transport is not None:
            self._request.transport.abort()


def _make_room(scrapes: list[_Scrape]) -> bool:
    """Whether one gives way to another: of those that their clients have yet to take the eldest of
    the address that has most."""
    hosts = [each.host for each in scrapes]
    made = [each for each in scrapes if each.is_made]
    if not made:
        return False
    eldest = max(made, key=lambda each: hosts.count(each.host))
    scrapes.remove(eldest)
    eldest.drop()
    return True


#: The answer to a body in whatever coding (RFC 9110, 12.5.3 and 15.5.16).
_ENCODED: Final = refusal(
    415,
    "unsupported_media_type",
    "a body is sent as it is, without Content-Encoding",
    {"Accept-Encoding": "identity"},
)
_PUT_OFF: Final = "too many want to come in: try again later"
#: Methods whose answers have an entity tag: what they show may be looked at again and again.
_TAGGED: Final = ("GET", "HEAD")
_CALLED_OTHERWISE: Final = (
    "as one of this machine comes only who calls it localhost, or by its own address, in Host"
)
#: What is shown may be anything: no browser is to take it for a page.
_API_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
_CHALLENGE: Final = {hdrs.WWW_AUTHENTICATE: 'Basic realm="trivium", charset="UTF-8"'}
_PAGE_CHALLENGE: Final = {hdrs.WWW_AUTHENTICATE: 'Bearer realm="trivium"'}


def _is_encoded(request: web.Request) -> bool:
    """Whether the body is said to have a coding (RFC 9110, 8.4)."""
    codings = ",".join(request.headers.getall(hdrs.CONTENT_ENCODING, [])).split(",")
    return any(each.strip().lower() not in ("", "identity") for each in codings)


def _not_in(request: web.Request) -> str:
    """Why a client does not come in; which part of what it has shown is wrong is not said."""
    if hdrs.AUTHORIZATION not in request.headers:
        return "user name and password are needed"
    is_bearer = request.headers[hdrs.AUTHORIZATION].lower().startswith("bearer ")
    what = "token or API key" if is_bearer else "user name or password"
    return f"wrong {what}, or it may not come in from here"


def _certificate_of(request: web.Request) -> tuple[str, bool]:
    """Whose certificate TLS has verified, "" for nobody's, and whether it says several names.

    A browser shows it for pages of other sites too, and these are not to ask by it.
    """
    transport = request.transport
    if transport is None or not is_of_this_site(request.headers, True):
        return "", False
    found = transport.get_extra_info("client_certificate")
    return ("", False) if found is None else (found.user_name, found.is_ambiguous)


def _is_page(request: web.Request) -> bool:
    """Whether a page of ours asks, and shows no credentials itself."""
    return PAGE_HEADER in request.headers and hdrs.AUTHORIZATION not in request.headers


def _target(request: web.Request) -> str:
    """The path as it came, also where a URL did (RFC 9112, 3.2.2)."""
    path = request.raw_path
    return path if path[:1] == "/" else "/" + path.partition("://")[2].partition("/")[2]


def _segments(raw_path: str) -> tuple[str, ...]:
    """Those of a path behind ``/api``; ``%2F`` is part of one. Raises ValueError, also where what
    follows a ``%`` is no number (RFC 3986, 2.1): some clients encode all of such a path anew."""
    path = raw_path.partition("?")[0]
    if _NO_OCTET.search(path):
        raise ValueError("a % is encoded as %25")
    names = path.split("/")[2:]
    return tuple(unquote(name, errors="strict") for name in names)


def _must_exist(request: web.Request, is_own: bool) -> bool | None:
    """What a condition says (RFC 9110, 13.1): only * does, as tags are of what is shown. Raises
    ApiRefused where our own API is to change something on another condition."""
    for header, must_exist in ((hdrs.IF_MATCH, True), (hdrs.IF_NONE_MATCH, False)):
        value = request.headers.get(header, "*").strip()
        if value != "*" and is_own and request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            raise ApiRefused(refusal(400, "bad_request", f"'{header}' is * here"))
        if value == "*" and header in request.headers:
            return must_exist
    return None


async def _read_body(
    request: web.Request, place: ApiPlace, is_own: bool, digest: blake2b | None
) -> object:
    """The JSON of a body, or its bytes where the place takes these; None without one. They go
    through ``digest`` too. Raises ApiRefused.

    A large JSON is read in a thread. A POST says what its body is also where it has none: pages of
    other sites need leave for that (CORS).
    """
    most_bytes = place.most_bytes
    wanted = "application/octet-stream" if place.is_raw else "application/json"
    too_large = refusal(413, "payload_too_large", f"a body has at most {most_bytes} bytes")
    data = bytearray()
    try:
        if (request.content_length or 0) > most_bytes:
            raise ApiRefused(too_large)
        async for part in request.content.iter_any():
            data += part
            if digest is not None:
                digest.update(part)
            if len(data) > most_bytes:
                raise ApiRefused(too_large)
        must_say = place.is_raw or (is_own and request.method == hdrs.METH_POST)
        if (must_say or data) and not _says(request, wanted, must_say):
            raise ApiRefused(refusal(415, "unsupported_media_type", f"a body is {wanted}"))
        if place.is_raw:
            return bytes(data)
        if not data:
            return None
        found: object
        if len(data) <= SMALL_BODY_BYTES:
            found = parse(data, is_own)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(None, parse_large, data, place.most_values, is_own)
        if found is None:
            raise ApiRefused(refusal(400, "bad_request", "a body is not null"))
        return found
    except TooManyValues:
        text = f"a body has at most {place.most_values} values"
        raise ApiRefused(refusal(413, "payload_too_large", text)) from None
    except RepeatedName:
        text = "an object has each name once"
        raise ApiRefused(refusal(400, "bad_request", text)) from None
    except (ValueError, RecursionError, OSError, web.RequestPayloadError):
        raise ApiRefused(refusal(400, "bad_request", "a body is JSON, in UTF-8")) from None


#: What answers are: JSON, which problem details are too, or events.
_SHOWN: Final = ("application/json", "text/event-stream")


def _accepts(ranges: list[str], kinds: tuple[str, ...]) -> bool:
    """Whether a client takes one of these kinds (RFC 9110, 12.5.1); one that says nothing does."""
    weights: dict[str, bool] = {}
    for each in ",".join(ranges).split(","):
        kind, *parameters = [part.strip().lower() for part in each.split(";")]
        if kind:
            weights[kind] = not any(re.fullmatch(r"q=0(\.0*)?", part) for part in parameters)
    if not weights:
        return True
    for kind in kinds:
        broader = (kind, kind.partition("/")[0] + "/*", "*/*")
        if next((weights[each] for each in broader if each in weights), False):
            return True
    return False


def _says(request: web.Request, kind: str, must_say: bool) -> bool:
    """Whether a body is said to be of a kind. Some tools say nothing; a browser must say so, which
    pages of other sites cannot without leave."""
    if hdrs.CONTENT_TYPE in request.headers:
        return request.content_type == kind
    is_browser = hdrs.ORIGIN in request.headers or "Sec-Fetch-Site" in request.headers
    return not must_say and not is_browser


def _said(text: str) -> object:
    """What a client of a WebSocket says. Raises ValueError, RecursionError."""
    return parse(bytearray(text.encode()))


def _knows(request: web.Request, tag: str) -> bool:
    """Whether the client has what it asks for (RFC 9110, 13.1.2)."""
    known = request.headers.get(hdrs.IF_NONE_MATCH, "").split(",")
    return tag in [each.strip().removeprefix("W/") for each in known]


def _in_slices(pieces: Iterator[str]) -> Iterator[str]:
    """Pieces together, as many as are made in a slice of time."""
    began_at = time.monotonic()
    found: list[str] = []
    for piece in pieces:
        found.append(piece)
        if time.monotonic() - began_at > SLICE_SECONDS:
            yield "".join(found)
            found.clear()
            began_at = time.monotonic()
    yield "".join(found)


async def _gather(parts: InTurns[bytes]) -> tuple[bytes, bool]:
    """The first parts together, and whether these are all: one that is long may be."""
    found = bytearray()
    while (part := await parts.next()) is not None:
        is_long = len(found) > GATHERED_BYTES
        found += part
        if is_long:
            return bytes(found), False
    return bytes(found), True


async def _send_parts(response: web.StreamResponse, first: bytes, parts: InTurns[bytes]) -> None:
    """Make and send one part after the other. A client that takes none for long is dropped."""
    await response.write(first)
    while (part := await parts.next()) is not None:
        if part:
            # It waits only where the client is behind.
            async with asyncio.timeout(SEND_SECONDS):
                await response.write(part)
    await response.write_eof()


class HttpConnection(web.RequestHandler):
    """One connection. Answers to what is no request, which reach no application, name the server
    as others do."""

    __slots__ = (
        "_is_open",
        "_last",
        "addresses",
        "counted",
        "has_ended",
        "host",
        "is_asking",
        "lost",
        "seats",
        "silence",
        "task",
        "told",
        "user",
        "waits",
    )

    #: what closes it where it asks for nothing in time
    silence: asyncio.TimerHandle | None
    #: where it counts
    counted: ProtocolMetrics
    seats: Seats[HttpConnection]
    #: what counts it, from when it is made until it is lost; None for nothing
    addresses: Addresses | None
    host: str
    #: what serves its requests, while it does, and whether there is one that it answers
    task: asyncio.Task[None] | None
    is_asking: bool
    #: bytes of the answer at hand that were counted already
    told: int
    #: who has asked for what is answered; "" while that is not known
    user: str

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if isinstance(peer, tuple) else ""
        if self.addresses is not None and not self.addresses.enter_from(self.host):
            self.addresses = None
            self._refuse(transport)
        elif not self.seats.enter(self, self.host):
            self._refuse(transport)
        else:
            super().connection_made(transport)
            self.counted.connections_opened += 1
            self._is_open = True

    def _refuse(self, transport: asyncio.BaseTransport) -> None:
        self.has_asked()
        cast("asyncio.Transport", transport).abort()

    async def start(self) -> None:
        # It may have given way before its task has begun.
        if self.transport is None:
            return
        self.task = asyncio.current_task()
        try:
            await super().start()
        finally:
            self.task = None

    def give_address(self) -> str:
        """By whose address it counts; whoever takes the socket over has it from now on. "" where a
        layer around it does."""
        if self.addresses is None:
            return ""
        self.addresses = None
        return self.host

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        #: called when the client goes while it waits
        self.lost: Callable[[], None] | None = None
        #: whether the client waits for what may not come for long
        self.waits: Callable[[], bool] | None = None
        #: whether the client sends no more
        self.has_ended = False
        # The body of the last request that is not answered.
        self._last: StreamReader | None = None
        self._is_open = False
        self.told = 0
        self.user = ""

    def is_behind(self) -> bool:
        """Whether the client has yet to take some of what it was sent."""
        return self.transport is not None and unsent_bytes(self.transport) > 0

    def abort(self) -> None:
        """Close it now."""
        if self.transport is not None:
            self.transport.abort()

    def has_asked(self) -> None:
        """It need not ask in time any more; the timer would keep it long after its end."""
        if self.silence is not None:
            self.silence.cancel()
            self.silence = None

    def data_received(self, data: bytes) -> None:
        self.counted.bytes_received += len(data)
        super().data_received(data)
        if self._messages:
            self._last = self._messages[-1][1]

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio.Protocol has it
        """The client sends no more: it gets its answers. Who waits for what may not come for long
        is taken for gone: most are, and what is for nobody must not be taken."""
        if self._last is None or not self._last.is_eof():
            return False
        if self.waits is not None and self.waits():
            return False
        self.has_ended = True
        return True

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the rest of an answer."""
        if isinstance(resp, web.HTTPException):
            resp = _problem_of(resp)
        found = await super().finish_response(request, resp, start_time)
        told, self.told = self.told, 0
        self.counted.bytes_sent += max(found[0].body_length - told, 0)
        if not self._messages:
            self._last = None
            if self.has_ended:
                self.close()
        return found

    def has_sent(self, count: int) -> None:
        """So many bytes were sent of an answer that goes on, which count now."""
        self.counted.bytes_sent += count
        self.told += count

    async def send(self, data: bytes) -> None:
        """Send bytes of a WebSocket's frames, once there is room. Raises ConnectionError."""
        await self._drain_helper()
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError
        self.transport.write(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._is_open:
            self._is_open = False
            self.counted.connections_closed += 1
        super().connection_lost(exc)
        self.has_asked()
        if self.lost is not None:
            self.lost()
        self.seats.leave(self)
        if self.task is not None and not self.is_asking:
            # It would find the next request, which has come already, and nothing to answer it by.
            self.task.cancel()
        if self.addresses is not None:
            self.addresses.leave_from(self.give_address())

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, *args: Any, **named: Any
    ) -> web.StreamResponse:
        self.counted.protocol_errors += status < 500
        # It logs, and raises where an answer has begun.
        super().handle_error(request, status, *args, **named)
        refused = _malformed(args[0]) if status < 500 and args else _INTERNAL_ERROR
        told = _as_response(refused)
        told.headers[hdrs.SERVER] = SERVER
        told.force_close()
        return told


def _as_response(refused: Refusal) -> web.Response:
    problem = refused.as_problem()
    return web.Response(
        status=problem.status,
        headers={**problem.headers, **_API_HEADERS},
        text=json.dumps(problem.body),
        content_type=problem.content_type,
    )


def _problem_of(refused: web.HTTPException) -> web.Response:
    """What aiohttp refuses by itself: paths, methods (RFC 9110, 15.5.6) and what is expected."""
    allowed = refused.headers.get(hdrs.ALLOW)
    headers = None if allowed is None else {"Allow": allowed}
    return _as_response(refusal(refused.status, refused.reason.lower(), refused.reason, headers))


#: What aiohttp says of more header fields than it takes.
_TOO_MANY: Final = "Too many headers"
_INTERNAL_ERROR: Final = refusal(500, "internal_server_error", "the log says more")


def _malformed(error: BaseException) -> Refusal:
    """Why a request is refused that cannot be read (RFC 9110, 15.5.15; RFC 6585, 5)."""
    if not isinstance(error, LineTooLong):
        if _TOO_MANY in str(error):
            text = f"a request has at most {MAX_FIELDS} header fields"
            return refusal(431, "header_too_large", text)
        text, _, _ = str(getattr(error, "message", "")).partition("\n")
        return refusal(400, "bad_request", text.rstrip(": ") or "the request is malformed")
    limit = str(error.args[1])
    if limit == str(MAX_LINE_BYTES):
        text = f"the first line of a request has at most {limit} bytes"
        return refusal(414, "uri_too_long", text)
    text = f"a header field has at most {limit} bytes"
    return refusal(431, "header_too_large", text)


async def _name_server(_: web.Request, response: web.StreamResponse) -> None:
    """Say what answers, and no versions of it: they tell which attacks to try."""
    response.headers[hdrs.SERVER] = SERVER


@contextlib.contextmanager
def _gone(
    request: web.Request, lost: Callable[[], None], waits: Callable[[], bool]
) -> Iterator[None]:
    """Meanwhile ``lost`` is called when the client goes; also when it sends no more while it
    ``waits``."""
    connection = _connection_of(request)
    connection.lost = lost
    connection.waits = waits
    try:
        yield
    finally:
        connection.lost = None
        connection.waits = None


async def _answered(api: Api, request: web.Request, asked: ApiRequest) -> ApiAnswer:
    """What the API answers. Who sends no more and would have to wait is taken for gone."""
    answer: asyncio.Future[ApiAnswer] = asyncio.get_running_loop().create_future()

    def done(found: ApiAnswer) -> None:
        if not answer.done():
            answer.set_result(found)

    api.ask(asked, done)
    connection = _connection_of(request)
    if connection.has_ended and api.waits(asked):
        connection.abort()
    with _gone(request, lambda: api.left(asked), lambda: api.waits(asked)):
        return await answer


def _connection_of(request: web.Request) -> HttpConnection:
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    return connection


def _drop(connection: HttpConnection) -> None:
    """Close a connection; it does not count from now on."""
    transport = connection.transport
    connection.connection_lost(None)
    if transport is not None:
        transport.abort()


class _Tail:
    """Takes from aiohttp what it has read behind a request."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """More of it."""
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """There is no more."""


def _hand_over(request: web.Request, make: Callable[[str], asyncio.Protocol]) -> None:
    """Have what is made go on with the socket, as if it had got the request itself.

    To aiohttp the client is gone.
    """
    connection = _connection_of(request)
    transport = connection.transport
    if transport is None:
        return
    protocol = make(connection.give_address())
    lines = [f"{request.method} {request.raw_path} HTTP/1.1".encode()]
    lines += [name + b": " + value for name, value in request.raw_headers]
    tail = _Tail()
    connection.set_parser(cast("WebSocketReader", tail))
    connection.transport = None
    connection.connection_lost(None)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    protocol.data_received(b"\r\n".join([*lines, b"", b""]) + tail.data)
