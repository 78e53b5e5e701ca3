"""The HTTP side: health for orchestrators and metrics for Prometheus.

Imported only when HTTP is switched on, since aiohttp costs more to import than the rest of the
broker. It runs on the broker's own loop.

- `GET /health/live` answers 200 while the loop turns.
- `GET /health/ready` answers 200 while clients can connect and publish, else 503 with the reason.
- `GET /metrics` is the Prometheus text format. Where anonymous access is not admitted (see
  `Authenticator.admits_anonymous`), it wants a user's name and password by HTTP Basic.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from aiohttp import BasicAuth, hdrs, web

from trivium.config import is_loopback
from trivium.security.authenticator import Authenticator

#: the name of HTTP among the protocols, in the configuration and in the ready line
PROTOCOL: Final = "http"
#: seconds that requests in progress get when the broker stops
SHUTDOWN_SECONDS: Final = 1.0
METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class HttpServer:
    """Serves health and metrics on sockets that are already bound.

    `unready` gives the reason why the broker is not ready, or None; `metrics_text` renders the
    metrics. Both are called on the loop.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        unready: Callable[[], str | None],
        metrics_text: Callable[[], str],
    ) -> None:
        self._authenticator = authenticator
        self._unready = unready
        self._metrics_text = metrics_text
        application = web.Application()
        application.router.add_get("/health/live", self._get_live)
        application.router.add_get("/health/ready", self._get_ready)
        application.router.add_get("/metrics", self._get_metrics)
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )

    async def start(self, sockets: list[socket.socket]) -> None:
        """Accept requests on each of the sockets."""
        await self._runner.setup()
        for bound in sockets:
            await web.SockSite(self._runner, bound).start()

    async def stop(self) -> None:
        """Close the sockets; requests in progress get a second to end."""
        await self._runner.cleanup()

    async def _get_live(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _get_ready(self, _: web.Request) -> web.Response:
        reason = self._unready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "unready", "reason": reason}, status=503)

    async def _get_metrics(self, request: web.Request) -> web.Response:
        if not await self._is_authorized(request):
            return web.Response(
                status=401,
                headers={hdrs.WWW_AUTHENTICATE: 'Basic realm="trivium", charset="UTF-8"'},
                text="user name and password are needed\n",
            )
        response = web.Response(text=self._metrics_text())
        response.headers[hdrs.CONTENT_TYPE] = METRICS_CONTENT_TYPE
        return response

    async def _is_authorized(self, request: web.Request) -> bool:
        header = request.headers.get(hdrs.AUTHORIZATION)
        if header is None:
            return self._authenticator.admits_anonymous(PROTOCOL)
        try:
            credentials = BasicAuth.decode(header, encoding="utf-8")
        except ValueError:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(is_right: bool) -> None:
            if not answer.done():
                answer.set_result(is_right)

        self._authenticator.authenticate(
            credentials.login,
            credentials.password.encode(),
            is_loopback(request.remote or ""),
            done,
        )
        return await answer
