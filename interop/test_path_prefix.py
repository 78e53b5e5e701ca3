"""The dashboard behind a web server that shows it at a path, as one of several things of a host."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from interop.brokers import LOOPBACK
from interop.dashboard import Dashboard, dashboard

pytestmark = [pytest.mark.one_build, pytest.mark.timeout(300)]

PREFIX = "/tools/trivium"
#: what is between one connection and the next alone (RFC 9110, 7.6.1)
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Proxy:
    """A web server that passes on what is asked below a path, without the path where it
    ``strips``, and has pages of its own beside it."""

    def __init__(self, port: int, strips: bool) -> None:
        self._target = f"http://{LOOPBACK}:{port}"
        self._strips = strips
        #: the cookies that were sent to the other pages
        self.strays: list[str] = []
        self.port = 0

    async def serve(self, ready: threading.Event, is_over: asyncio.Event) -> None:
        """Serve until it is over."""
        async with aiohttp.ClientSession(auto_decompress=False) as self._client:
            application = web.Application()
            application.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(application, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, LOOPBACK, 0)
            await site.start()
            self.port = runner.addresses[0][1]
            ready.set()
            await is_over.wait()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path
        if path != PREFIX and not path.startswith(f"{PREFIX}/"):
            self.strays.append(request.headers.get("Cookie", ""))
            return web.Response(text="another thing")
        if self._strips:
            path = path.removeprefix(PREFIX) or "/"
        # The name of the host stays, as with `proxy_set_header Host $http_host` of nginx.
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        url = URL(self._target + path, encoded=True)
        body = await request.read()
        async with self._client.request(
            request.method, url, headers=headers, data=body or None, allow_redirects=False
        ) as found:
            kept = [(k, v) for k, v in found.headers.items() if k.lower() not in HOP_BY_HOP]
            answer = web.StreamResponse(status=found.status)
            for name, value in kept:
                answer.headers.add(name, value)
            await answer.prepare(request)
            with contextlib.suppress(ConnectionError):
                async for part in found.content.iter_any():
                    await answer.write(part)
            return answer


@contextlib.contextmanager
def proxy(port: int, strips: bool) -> Iterator[Proxy]:
    """One that serves."""
    made = Proxy(port, strips)
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    is_over = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(made.serve(ready, is_over),))
    thread.start()
    try:
        assert ready.wait(30)
        yield made
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(30)
        loop.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("dashboard")
    with dashboard(folder, TRIVIUM_HTTP__PATH_PREFIX=PREFIX) as found:
        yield found


@pytest.mark.parametrize("strips", [True, False], ids=["without-the-path", "with-the-path"])
def test_all_of_it_works_behind_a_path(site: Dashboard, strips: bool) -> None:
    tab = site.page
    direct = site.url
    with proxy(site.broker.ports["http"], strips) as between:
        host = f"http://{LOOPBACK}:{between.port}"
        site.url = f"{host}{PREFIX}/"
        try:
            site.sign_in()
            (cookie,) = tab.call("Network.getCookies")["cookies"]
            assert cookie["path"] == f"{PREFIX}/"
            # Live figures come through.
            site.visit("overview", waits_for="document.querySelectorAll('.figure').length > 5")
            site.visit("queues", "/", "orders", waits_for="document.querySelector('.figure')")
            site.press("Purge")
            site.press("Purge")
            tab.wait("document.querySelector('#notices')?.textContent.includes('removed')")
            tab.reload()
            tab.wait("document.querySelector('h1')?.textContent === 'Queue orders'")
            tab.run("fetch('/other')")
            assert between.strays.pop() == ""
            tab.run("[...document.querySelectorAll('.who button')].at(-1).click()")
            tab.wait("document.querySelector('.sign-in')")
            assert tab.call("Network.getCookies")["cookies"] == []
            assert [each for each in tab.troubles if "favicon" not in each] == []
            if not strips:
                tab.open(host + PREFIX)
                tab.wait(f"location.href.startsWith('{host}{PREFIX}/')")
                tab.wait("document.querySelector('.sign-in')")
        finally:
            site.url = direct


def test_it_works_without_the_path_too(site: Dashboard) -> None:
    """Health checks and tools ask the broker itself."""
    tab = site.page
    tab.open(f"{site.url}health/live")
    tab.wait("document.body.innerText.includes('live')")
    tab.open(site.url.rstrip("/") + f"{PREFIX}/api/v1/session")
    tab.wait("document.body.innerText.includes('caller')")
