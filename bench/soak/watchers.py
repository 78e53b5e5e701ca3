"""Those who look on: scrapes, lists, live figures, and a browser with the dashboard."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from typing import Final

import aiohttp

from bench.soak.site import HEADERS
from bench.soak.works import Work
from trivium.cli.network import LOOPBACK

_PATHS: Final = (
    "/metrics",
    "/metrics?per_object=true",
    "/metrics/detailed?family=queue_coarse_metrics&family=group_metrics",
    "/metrics/detailed",
    "/api/overview?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5",
    "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
    "/api/connections",
    "/api/channels",
    "/api/consumers",
    "/api/exchanges",
    "/api/definitions",
    "/api/nodes",
    "/api/v1/overview",
    "/api/v1/queues",
    "/api/v1/streams",
    "/api/v1/connections",
    "/api/v1/consumers",
    "/api/v1/sessions",
    "/api/v1/vhosts/%2F/groups",
    "/api/v1/vhosts/%2F/retained?limit=100",
    "/api/v1/openapi.json",
)
_SCRAPES_A_SECOND: Final = 2.0
_STOP_SECONDS: Final = 20.0


class Scrapes(Work):
    """Asks for one thing after the other."""

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.site.ask("GET", self.draw.choice(_PATHS))
            await self.pause(stop, 1 / _SCRAPES_A_SECOND)


class LiveFigures(Work):
    """Follows the live figures, and leaves after some."""

    async def run(self, stop: asyncio.Event) -> None:
        await self.repeat(stop, lambda: self._follow(stop))

    async def _follow(self, stop: asyncio.Event) -> None:
        url = f"http://{LOOPBACK}:{self.site.ports['http']}/api/v1/live"
        async with (
            aiohttp.ClientSession(headers=HEADERS) as session,
            session.get(url, raise_for_status=True) as answer,
        ):
            left = self.draw.randrange(1, 200)
            async for _ in answer.content:
                left -= 1
                if left <= 0 or stop.is_set():
                    return


class Browser(Work):
    """Chromium with the dashboard open, where both are there."""

    async def run(self, stop: asyncio.Event) -> None:
        program = shutil.which("chromium")
        url = f"http://guest:guest@{LOOPBACK}:{self.site.broker.ports['http']}/"
        if program is None or not await self._has_page():
            return
        with tempfile.TemporaryDirectory(prefix="trivium-browser-") as profile:
            process = await asyncio.create_subprocess_exec(
                *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-dev-shm-usage", "--disable-background-networking"),
                *("--disable-component-update", "--disable-sync", "--no-proxy-server"),
                *("--remote-debugging-port=0", f"--user-data-dir={profile}", url),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                await stop.wait()
            finally:
                process.terminate()
                await process.wait()

    async def _has_page(self) -> bool:
        try:
            await self.site.ask("GET", "/")
        except aiohttp.ClientError:
            return False
        return True
