"""Those who look on: scrapes, lists, live figures, and a browser with the dashboard."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Final

import aiohttp

from bench.soak.site import HEADERS
from bench.soak.works import Work, pause
from interop.chromium import Page, page
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
#: for which it looks at a page
_PAGE_SECONDS: Final = 5.0


class Scrapes(Work):
    """Asks for one thing after the other."""

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.site.ask("GET", self.draw.choice(_PATHS))
            await pause(stop, 1 / _SCRAPES_A_SECOND)


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
    """Chromium that goes from page to page of the dashboard, where both are there."""

    async def run(self, stop: asyncio.Event) -> None:
        if shutil.which("chromium") is None:
            return
        is_over = threading.Event()
        browsing = asyncio.create_task(asyncio.to_thread(self._browse, is_over))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({browsing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The browser is closed by its thread, also where this is cancelled.
            is_over.set()
            stopping.cancel()
            await asyncio.wait({browsing})
        await browsing

    def _browse(self, is_over: threading.Event) -> None:
        url = f"http://{LOOPBACK}:{self.site.broker.ports['http']}/"
        with tempfile.TemporaryDirectory() as profile, page(Path(profile)) as tab:
            sign_in(tab, url)
            links = "[...document.querySelectorAll('nav a')].map((each) => each.hash)"
            while not is_over.wait(_PAGE_SECONDS):
                hash_ = self.draw.choice(tab.run(links))
                tab.run(f"void (location.hash = {json.dumps(hash_)})")
                tab.wait("document.querySelector('main h1')")
            broken = [each for each in tab.troubles if each.startswith("exception")]
            if broken:
                raise RuntimeError(f"the dashboard: {broken[0]}")


def sign_in(tab: Page, url: str) -> None:
    """Open the dashboard, and come in as guest."""
    tab.open(url)
    tab.wait("document.querySelector('.sign-in, .side')")
    if tab.run("!document.querySelector('.side')"):
        tab.wait("document.activeElement.name === 'user'")
        tab.type("guest")
        tab.press("Tab")
        tab.type("guest")
        tab.press("Enter")
    tab.wait("document.querySelector('.side')")
