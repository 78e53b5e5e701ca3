"""Sessions of browsers: how they begin and end, and that no page of another site gains by them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from yarl import URL

from tests.support.rest import Site, authorization, events_in, serve
from trivium.common.events import Events
from trivium.config import HttpConfig, JwtConfig
from trivium.errors import ConfigError
from trivium.listen import ListenerConfig
from trivium.observability.browsers import PAGE_HEADER, cookie_of, is_of_own_page
from trivium.security.attempts import Login
from trivium.security.identity import Identity
from trivium.security.sessions import (
    IDLE_MS,
    LONGEST_MS,
    MAX_OF_USER,
    MAX_SESSIONS,
    Sessions,
)

OWN = {PAGE_HEADER: "1"}
JSON = {"Content-Type": "application/json"}


class Browser:
    """Keeps the cookie that it is given, and sends it with each request."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.cookie = ""
        self.set_cookie = ""

    async def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, **options: Any
    ) -> tuple[int, dict[str, str]]:
        """Status and headers of an answer of any path."""
        shown = dict(OWN if headers is None else headers)
        if self.cookie:
            shown["Cookie"] = self.cookie
        url = URL(f"http://{self.site.broker.listeners['http']}/{path}", encoded=True)
        async with self.site.client.request(method, url, headers=shown, **options) as answer:
            await answer.read()
            self.set_cookie = answer.headers.get("Set-Cookie", "")
            if self.set_cookie:
                self.cookie = self.set_cookie.partition(";")[0]
            return answer.status, dict(answer.headers)

    async def sign_in(self, shown: dict[str, str]) -> int:
        status, _ = await self.ask("POST", "api/v1/session", {**OWN, **JSON, **shown})
        return status

    async def status(self, method: str = "GET", path: str = "api/v1/whoami", **options: Any) -> int:
        return (await self.ask(method, path, **options))[0]


async def test_a_session_stands_for_the_credentials_that_it_was_made_of(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        browser = Browser(site)
        assert await browser.status() == 401
        assert await browser.sign_in(authorization("root")) == 201
        port = site.broker.listeners["http"].rpartition(":")[2]
        name, _, rest = browser.set_cookie.partition("=")
        assert name == f"trivium-session-{port}"
        assert rest.partition("; ")[2] == "Path=/; HttpOnly; SameSite=Strict"
        assert await browser.status() == 200
        assert await browser.status("PUT", "api/v1/vhosts/%2F/queues/q", json={}) == 201
        assert await browser.status("DELETE", "api/v1/vhosts/%2F/queues/q") == 204
        taken = browser.cookie
        assert await browser.status("DELETE", "api/v1/session") == 204
        assert "Max-Age=0" in browser.set_cookie
        browser.cookie = taken
        assert await browser.status() == 401
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    own = [line for line in lines if line["user"] == "root" and line["event"].startswith("user.")]
    assert [(line["event"], line["listener"]) for line in own] == [
        ("user.authentication.success", "http"),
        ("user.session.created", "http"),
        ("user.session.deleted", "http"),
    ]
    assert taken.partition("=")[2] not in (tmp_path / "audit.log").read_text()


async def test_who_may_not_use_the_api_gets_no_session(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        browser = Browser(site)
        assert await browser.sign_in(authorization("joe")) == 403
        wrong = {"Authorization": "Basic cm9vdDp4"}
        assert await browser.sign_in(wrong) == 401
        assert await browser.sign_in({}) == 401
        assert (browser.cookie, len(site.broker.authentication.sessions)) == ("", 0)


async def test_a_session_is_not_made_of_another_one(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        browser = Browser(site)
        assert await browser.sign_in(authorization("root")) == 201
        assert await browser.sign_in({}) == 403
        assert len(site.broker.authentication.sessions) == 1


async def test_a_page_is_told_who_has_signed_in_and_is_not_refused(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        browser = Browser(site)
        url = f"http://{site.broker.listeners['http']}/api/v1/session"

        async def caller(**headers: str) -> object:
            shown = {"Cookie": browser.cookie} if browser.cookie else {}
            async with site.client.get(url, headers={**shown, **headers}) as answer:
                assert (answer.status, "Set-Cookie" in answer.headers) == (200, False)
                return (await answer.json())["caller"]

        assert await caller() is None
        # Credentials that a request shows are no session.
        assert await caller(**authorization("root")) is None
        assert await browser.sign_in(authorization("root")) == 201
        signed_in = {"name": "root", "tags": ["administrator"], "has_own_keys": True}
        assert await caller(**OWN) == signed_in
        # A page of another site is told nothing.
        assert await caller(**{"Sec-Fetch-Site": "same-site"}) is None
        taken = browser.cookie
        assert await browser.status("DELETE", "api/v1/session") == 204
        browser.cookie = taken
        assert await caller(**OWN) is None


async def test_a_key_begins_a_session_which_ends_with_it(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        body = {"password": "p", "tags": ["monitoring"]}
        assert (await site.ask("PUT", "users/eve", json=body))[0] == 201
        _, key = await site.ask("POST", "users/eve/keys", json={})
        browser = Browser(site)
        assert await browser.sign_in({"Authorization": f"Bearer {key['key']}"}) == 201
        assert await browser.status() == 200
        assert (await site.ask("DELETE", f"keys/{key['id']}"))[0] == 204
        assert await browser.status() == 401


async def test_a_token_begins_a_session_which_ends_with_it(tmp_path: Path) -> None:
    secret = b"a secret that is thirty-two bytes"
    (tmp_path / "key").write_bytes(secret)
    config = JwtConfig(key_file=str(tmp_path / "key"), algorithms=("HS256",), tags_claim="tags")
    async with serve(tmp_path, jwt=config) as site:
        now = int(time.time())
        claims = {"sub": "eve", "exp": now + 3600, "tags": ["monitoring"]}
        token = jwt.encode(claims, secret, algorithm="HS256")
        browser = Browser(site)
        assert await browser.sign_in({"Authorization": f"Bearer {token}"}) == 201
        assert await browser.status() == 200
        sessions = site.broker.authentication.sessions
        session = sessions.find(browser.cookie.partition("=")[2], "http", True)
        assert session is not None
        # The time of the wall clock is not ours to set: the token's end is.
        session.login = replace(session.login, expires_ms=now * 1000 - 1)
        assert await browser.status() == 401


async def test_a_page_on_which_nobody_has_signed_in_is_no_attempt_to_come_in(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as site:
        browser = Browser(site)
        assert await browser.status() == 401
        assert await browser.status(headers={}) == 401
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["user.authentication.failure"]


@pytest.mark.parametrize("change", ["password", "tags", "deleted"])
async def test_a_session_ends_when_its_user_is_another(tmp_path: Path, change: str) -> None:
    async with serve(tmp_path) as site:
        body = {"password": "p", "tags": ["monitoring"]}
        assert (await site.ask("PUT", "users/eve", json=body))[0] == 201
        browser = Browser(site)
        assert await browser.sign_in(authorization("eve")) == 201
        assert await browser.status() == 200
        changed = {"password": {"password": "q"}, "tags": {"tags": ["administrator"]}}
        if change == "deleted":
            assert (await site.ask("DELETE", "users/eve"))[0] == 204
            assert (await site.ask("PUT", "users/eve", json=body))[0] == 201
        else:
            assert (await site.ask("PUT", "users/eve", json=changed[change]))[0] == 204
        assert await browser.status() == 401


async def test_live_figures_end_when_the_user_signs_out(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        browser = Browser(site)
        assert await browser.sign_in(authorization("root")) == 201
        async with site.open("live", {**OWN, "Cookie": browser.cookie}) as answer:
            first = await answer.content.readuntil(b"\n\n")
            assert events_in(first.decode())
            assert await browser.status("DELETE", "api/v1/session") == 204
            # It ends within a second, where 600 events are ten minutes.
            assert await answer.content.read() == b""


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("PUT", {}, 403),
        ("DELETE", {}, 403),
        ("POST", JSON, 403),
        ("PUT", {**OWN, "Sec-Fetch-Site": "same-site"}, 403),
        ("PUT", {**OWN, "Sec-Fetch-Site": "cross-site"}, 403),
        ("PUT", {**OWN, "Origin": "http://127.0.0.1:1"}, 403),
        ("PUT", {**OWN, "Origin": "null"}, 403),
        ("GET", {"Sec-Fetch-Site": "same-site"}, 403),
        ("GET", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("PUT", {**OWN, "Sec-Fetch-Site": "same-origin"}, 201),
    ],
)
async def test_what_another_site_sends_with_our_cookie_is_refused(
    tmp_path: Path, method: str, headers: dict[str, str], status: int
) -> None:
    async with serve(tmp_path) as site:
        browser = Browser(site)
        assert await browser.sign_in(authorization("root")) == 201
        path = "api/v1/vhosts/%2F/bindings" if method == "POST" else "api/v1/vhosts/%2F/queues/q"
        options: dict[str, Any] = {"json": {}} if method in ("PUT", "POST") else {}
        assert await browser.status(method, path, headers=headers, **options) == status
        assert ("q" in site.broker.vhost("/").queues) is (status == 201)


async def test_a_form_of_another_site_does_nothing(tmp_path: Path) -> None:
    """What a page can send without leave: a form, or a request without a header of its own."""
    async with serve(tmp_path) as site:
        browser = Browser(site)
        assert await browser.sign_in(authorization("root")) == 201
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            for path in ("bindings", "bindings/delete", "exchanges/amq.default/messages"):
                headers = {"Content-Type": kind, "Origin": "http://evil.example"}
                status = await browser.status(
                    "POST", f"api/v1/vhosts/%2F/{path}", headers=headers, data=b"{}"
                )
                assert status == 403


async def test_only_trivium_s_own_api_knows_the_cookie(tmp_path: Path) -> None:
    """Tools show what they always did, with or without a cookie beside it."""
    async with serve(tmp_path) as site:
        browser = Browser(site)
        assert await browser.sign_in(authorization("ann")) == 201
        assert await browser.status(path="api/overview") == 401
        assert await browser.status("PUT", "api/queues/%2F/q", json={}) == 401
        basic = authorization("root")
        assert await browser.status(path="api/overview", headers=basic) == 200
        for cookies in (browser.cookie, browser.cookie + "x"):
            browser.cookie = cookies
            queue = "api/v1/vhosts/%2F/queues/q"
            assert await browser.status("PUT", queue, headers=basic, json={}) in (201, 204)


async def test_a_page_is_not_asked_by_the_browser_who_signs_in(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        browser = Browser(site)
        for headers, challenge in ((OWN, "Bearer"), ({}, "Basic")):
            status, found = await browser.ask("GET", "api/v1/whoami", headers)
            assert (status, found["WWW-Authenticate"].split()[0]) == (401, challenge)


async def test_a_session_is_for_the_listener_that_it_began_at(tmp_path: Path) -> None:
    other = ListenerConfig(protocol="http", address="127.0.0.1:0", name="other")
    async with serve(tmp_path, listeners=(other,)) as site:
        browser = Browser(site)
        assert await browser.sign_in(authorization("root")) == 201
        sessions = site.broker.authentication.sessions
        token = browser.cookie.partition("=")[2]
        assert sessions.find(token, "other", True) is None
        assert sessions.find(token, "http", True) is not None


class Clock:
    """One that the test sets."""

    def __init__(self) -> None:
        self.at = 0

    def now(self) -> int:
        return self.at


def sessions_at(clock: Clock) -> Sessions:
    """Some whose users stay as they are."""
    authenticator: Any = SimpleNamespace(still_holds=lambda login, now_ms: True)
    given: Any = clock
    return Sessions(authenticator, given, lambda: 0, Events())


def login(name: str) -> Login:
    return Login(identity=Identity(name))


@pytest.mark.pure
def test_a_session_ends_when_it_is_not_used() -> None:
    clock = Clock()
    sessions = sessions_at(clock)
    token = sessions.begin(login("a"), "http", False)
    clock.at = IDLE_MS - 1
    assert sessions.find(token, "http", False) is not None
    clock.at += IDLE_MS
    assert sessions.find(token, "http", False) is None
    assert len(sessions) == 0


@pytest.mark.pure
def test_a_session_ends_after_some_hours_though_it_is_used() -> None:
    clock = Clock()
    sessions = sessions_at(clock)
    token = sessions.begin(login("a"), "http", False)
    while clock.at + IDLE_MS // 2 < LONGEST_MS:
        clock.at += IDLE_MS // 2
        assert sessions.find(token, "http", False) is not None
    clock.at = LONGEST_MS
    assert sessions.find(token, "http", False) is None


@pytest.mark.pure
def test_a_session_from_this_machine_is_for_this_machine() -> None:
    sessions = sessions_at(Clock())
    token = sessions.begin(login("guest"), "http", True)
    assert sessions.find(token, "http", False) is None
    assert sessions.find(token, "http", True) is not None


@pytest.mark.pure
def test_the_number_of_sessions_is_bounded() -> None:
    clock = Clock()
    sessions = sessions_at(clock)
    first = sessions.begin(login("a"), "http", False)
    second = sessions.begin(login("a"), "http", False)
    assert sessions.find(first, "http", False) is not None
    for _ in range(MAX_OF_USER - 1):
        sessions.begin(login("a"), "http", False)
    # The one that was used longest ago is gone.
    assert sessions.find(second, "http", False) is None
    assert sessions.find(first, "http", False) is not None
    assert len(sessions) == MAX_OF_USER
    for number in range(MAX_SESSIONS):
        sessions.begin(login(f"user {number}"), "http", False)
    assert len(sessions) == MAX_SESSIONS


def test_a_cookie_under_tls_is_for_this_host_alone() -> None:
    assert cookie_of("broker.example:15671", True).name == "__Host-trivium-session-15671"
    assert cookie_of("broker.example", False).name == "trivium-session"
    assert cookie_of("[::1]:x;y", False).name == "trivium-session"
    shown = cookie_of("broker", True).header("t")
    assert shown == "__Host-trivium-session=t; Path=/; HttpOnly; SameSite=Strict; Secure"


def test_a_cookie_of_pages_behind_a_path_is_for_these_alone() -> None:
    # What begins with __Host- is for a whole host (RFC 6265bis, 4.1.3.2).
    shown = cookie_of("broker", True, "/a/b").header("t")
    assert shown == "__Secure-trivium-session=t; Path=/a/b/; HttpOnly; SameSite=Strict; Secure"
    shown = cookie_of("broker", False, "/a").header("")
    assert shown == "trivium-session=; Path=/a/; HttpOnly; SameSite=Strict; Max-Age=0"
    # A proxy has TLS with the browser.
    assert cookie_of("broker", False, "/a", True).header("t").endswith("SameSite=Strict; Secure")


async def test_all_is_there_behind_the_prefix_as_well(tmp_path: Path) -> None:
    async with serve(tmp_path, http=HttpConfig(path_prefix="/tools/broker")) as site:
        browser = Browser(site)
        assert await browser.sign_in(authorization("root")) == 201
        assert "; Path=/tools/broker/;" in browser.set_cookie
        assert "Secure" not in browser.set_cookie
        forwarded = {**authorization("root"), "X-Forwarded-Proto": "https"}
        assert await browser.sign_in(forwarded) == 201
        assert browser.set_cookie.endswith("; Secure")
        place = "tools/broker"
        for path in ("", "health/live", "api/v1/whoami", "api/whoami", "metrics"):
            headers = OWN if path.startswith("api/v1") else authorization("root")
            for before in ("", f"{place}/"):
                assert await browser.status(path=before + path, headers=headers) == 200, path
        status, headers = await browser.ask("GET", f"{place}/api/v1/nothing", OWN)
        assert (status, headers["Content-Type"]) == (404, "application/problem+json")
        _, headers = await browser.ask("GET", f"{place}/api/v1/whoami", OWN)
        assert "Etag" in headers
        for wrong in (f"{place}x/health/live", f"x/{place}/health/live", f"{place}/{place}/"):
            assert await browser.status(path=wrong) == 404
        status, headers = await browser.ask("GET", place, allow_redirects=False)
        assert (status, headers["Location"]) == (308, "broker/")


@pytest.mark.parametrize("prefix", ["trivium", "/trivium/", "/", "//a", "/a b", "/api", "/api/x"])
def test_a_prefix_is_a_path_of_nobody_else(prefix: str) -> None:
    with pytest.raises(ConfigError, match="path_prefix"):
        HttpConfig(path_prefix=prefix)


def test_where_a_browser_says_nothing_of_the_site_the_origin_is_looked_at() -> None:
    own = {PAGE_HEADER: "1", "Host": "broker:15672"}
    for has_tls in (False, True):
        assert is_of_own_page("PUT", own, has_tls)
        # A proxy may have had TLS with the browser.
        assert is_of_own_page("PUT", {**own, "Origin": "https://broker:15672"}, has_tls)
        # Whoever is on the way of a page without TLS may have written it.
        plain = is_of_own_page("PUT", {**own, "Origin": "http://broker:15672"}, has_tls)
        assert plain is not has_tls
        assert not is_of_own_page("PUT", {**own, "Origin": "https://broker:80"}, has_tls)
        assert not is_of_own_page("GET", {**own, "Origin": "http://[broken"}, has_tls)
        assert is_of_own_page("GET", {"Sec-Fetch-Site": "none"}, has_tls)
        assert not is_of_own_page("PUT", {PAGE_HEADER: "1", "Sec-Fetch-Site": "none"}, has_tls)
