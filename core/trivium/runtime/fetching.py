"""Requests over HTTP that authentication makes, on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from trivium.security.web import WebAnswer, WebRequest

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

#: Connections to servers at a time; further requests wait, within their time limit.
MAX_CONNECTIONS: Final = 64


def prepare() -> None:
    """Load what requests need, before there are clients: the loop stands still meanwhile."""
    import aiohttp  # noqa: F401


class Fetcher:
    """Carries out requests; ``call`` runs what follows an answer as a part of a turn."""

    def __init__(self, call: Callable[[Callable[[], None]], None]) -> None:
        self._call = call
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def fetch(self, request: WebRequest, done: Callable[[WebAnswer | None], None]) -> None:
        """Call ``done`` with the answer, None where there is none in time."""
        task = asyncio.get_running_loop().create_task(self._carry_out(request, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _carry_out(
        self, request: WebRequest, done: Callable[[WebAnswer | None], None]
    ) -> None:
        answer = None
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                answer = await self._ask(request)
        except Exception as error:
            # Its text may quote the request.
            logger.info("a request over HTTP has failed: %s", type(error).__name__)
        self._call(partial(done, answer))

    async def _ask(self, request: WebRequest) -> WebAnswer | None:
        """The answer; None for one that is too long."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        # What is small on its way may be huge: an answer is as it comes.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        headers |= dict(request.headers)
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        method = "GET" if request.body is None else "POST"
        async with self._session.request(
            method, request.url, data=request.body, headers=headers, allow_redirects=False
        ) as response:
            body = bytearray()
            async for piece in response.content.iter_chunked(request.max_bytes):
                body += piece
                if len(body) > request.max_bytes:
                    return None
            return WebAnswer(response.status, bytes(body))
