"""Requests that wait end with what their caller came with."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from yarl import URL

from tests.support.core import message
from tests.support.rest import Site, authorization, serve, until
from trivium.config import JwtConfig
from trivium.management.calls import Call
from trivium.management.waits import Waits
from trivium.observability.browsers import PAGE_HEADER
from trivium.observability.http import HttpConnection

SECRET = "s" * 32
QUEUE = "vhosts/%2F/queues/q"
MEMBERS = "vhosts/%2F/groups/g/members"
PUBLISH = "vhosts/%2F/exchanges/amq.default/messages"
WAIT = {"wait_ms": 30_000}
#: A request that waits, by what it waits for: what is sent.
ROADS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lease": ("POST", f"{QUEUE}/leases", WAIT),
    "records": ("GET", "vhosts/%2F/streams/s/partitions/0/records?offset=next&wait_ms=30000", {}),
    "poll": ("POST", f"{MEMBERS}/m/poll", {"generation": 1, **WAIT}),
    "publish": ("POST", PUBLISH, {"messages": [{"key": "q"}]}),
}
CAUSES = ["deleted", "password", "key", "session", "expired", "token"]


class Waiting:
    """Tells when a request waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._began = asyncio.Event()
        self._waits: Waits | None = None
        begin = Waits.begin

        def recorded(
            waits: Waits, call: Call, stop: Callable[[], None], may: Callable[[], bool]
        ) -> None:
            begin(waits, call, stop, may)
            self._waits = waits
            self._began.set()

        monkeypatch.setattr(Waits, "begin", recorded)

    async def __call__(self) -> Waits:
        await self._began.wait()
        assert self._waits is not None
        return self._waits


async def came(site: Site, cause: str) -> tuple[dict[str, str], str]:
    """Make the user ``new``, who comes in; what it shows, and the number of its key."""
    user = {"password": "p", "tags": ["management"], "limits": {"publish-messages-per-second": 1}}
    assert (await site.ask("PUT", "users/new", json=user))[0] == 201
    patterns = {"configure": ".*", "write": ".*", "read": ".*"}
    await site.ask("PUT", "users/new/permissions/%2F", json=patterns)
    number = ""
    shown = authorization("new")
    if cause in ("key", "expired"):
        body = {"expires_at": time.time_ns() // 1_000_000 + 60_000}
        _, key = await site.ask("POST", "users/new/keys", json=body)
        number, shown = key["id"], {"Authorization": "Bearer " + key["key"]}
    elif cause == "token":
        claims = {"sub": "new", "exp": time.time() + 60}
        shown = {"Authorization": "Bearer " + jwt.encode(claims, SECRET, "HS256")}
    elif cause == "session":
        url = f"http://{site.broker.listeners['http']}/api/v1/session"
        kind = {"Content-Type": "application/json", PAGE_HEADER: "1"}
        async with site.client.post(url, headers={**shown, **kind}) as answer:
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
        shown = {"Cookie": cookie, PAGE_HEADER: "1"}
    return shown, number


@pytest.mark.parametrize(
    ("road", "cause"),
    [("lease", cause) for cause in CAUSES]
    + [(road, "password") for road in ROADS if road != "lease"]
    + [(road, "permissions") for road in ROADS],
)
async def test_what_waits_is_answered_at_once_when_its_caller_may_not_stay_or_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, road: str, cause: str
) -> None:
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    monkeypatch.setattr("trivium.management.pacing.MAX_WAIT_MS", 60_000)
    async with serve(tmp_path, jwt=JwtConfig(key_file=str(tmp_path / "secret"))) as site:
        vhost = site.broker.vhost("/")
        queue = vhost.declare_queue("q")
        vhost.declare_stream("s")
        shown, number = await came(site, cause)
        if road == "poll":
            body: dict[str, Any] = {"member": "m", "streams": ["s"]}
            assert (await site.ask("POST", MEMBERS, "", json=body, headers=shown))[0] == 201
        elif road == "publish":
            # It has published more than it may for a while.
            body = {"messages": [{"key": "nobody"}] * 50}
            assert (await site.ask("POST", PUBLISH, "", json=body, headers=shown))[0] == 202
        waiting = Waiting(monkeypatch)
        method, path, body = ROADS[road]
        options: dict[str, Any] = {"json": body} if body else {}
        asked = asyncio.create_task(site.ask(method, path, "", headers=shown, **options))
        waits = await waiting()
        if cause == "deleted":
            await site.ask("DELETE", "users/new")
        elif cause == "password":
            await site.ask("PUT", "users/new", json={"password": "q"})
        elif cause == "key":
            await site.ask("DELETE", f"keys/{number}")
        elif cause == "permissions":
            await site.ask("DELETE", "users/new/permissions/%2F")
        elif cause == "session":
            assert (await site.ask("DELETE", "session", "", headers=shown))[0] == 204
        else:
            # With what clocks may differ by.
            site.broker.now_ms += 120_000
            waits.due()
        async with asyncio.timeout(20):
            assert (await asked)[0] == (403 if cause == "permissions" else 401)
        assert (
            len(queue),
            len(queue.consumers),
            site.broker.vhost("/").stream("s").record_count,
        ) == (
            0,
            0,
            0,
        )


async def test_what_comes_in_the_same_moment_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        queue = vhost.declare_queue("q")
        shown, _ = await came(site, "deleted")
        waiting = Waiting(monkeypatch)
        asked = asyncio.create_task(
            site.ask("POST", f"{QUEUE}/leases", "", headers=shown, json=WAIT)
        )
        waits = await waiting()
        monkeypatch.setattr(waits, "due", lambda: None)
        site.broker.users.delete("new")
        vhost.publish(message(b"x", key=b"q"), vhost.route(vhost.exchange(""), b"q"))
        site.broker.request_turn()
        async with asyncio.timeout(20):
            assert (await asked)[0] == 401
        _, found = await site.ask("POST", f"{QUEUE}/leases", json={})
        assert [(each["payload"], each["redelivered"]) for each in found["messages"]] == [
            ("x", False)
        ]
        assert len(queue.consumers) == 0


async def request_and_leave(site: Site, road: str, waiting: Waiting, how: str) -> None:
    """Ask for something that is to be waited for, and go while it waits, until it does not."""
    method, path, body = ROADS[road]
    host, _, port = site.broker.listeners["http"].rpartition(":")
    text = json.dumps(body)
    lines = [
        f"{method} /api/v1/{path} HTTP/1.1",
        f"Host: {host}:{port}",
        *(f"{name}: {value}" for name, value in authorization("new").items()),
        *(["Content-Type: application/json", f"Content-Length: {len(text)}"] if body else []),
    ]
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join([*lines, "", text if body else ""]).encode())
    waits = await waiting()
    if how == "half-closed":
        writer.write_eof()
    elif how == "reset":
        writer.transport.abort()
    else:
        writer.close()
    async with asyncio.timeout(20):
        await until(lambda: not waits.waiting)
    writer.close()


@pytest.mark.parametrize(
    ("road", "how"),
    [("lease", "half-closed"), ("lease", "reset"), *[(road, "closed") for road in ROADS]],
)
async def test_what_waits_ends_when_its_client_goes_and_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, road: str, how: str
) -> None:
    monkeypatch.setattr("trivium.management.pacing.MAX_WAIT_MS", 60_000)
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        queue = vhost.declare_queue("q")
        stream = vhost.declare_stream("s")
        shown, _ = await came(site, "password")
        if road == "poll":
            joined: dict[str, Any] = {"member": "m", "streams": ["s"]}
            assert (await site.ask("POST", MEMBERS, "", json=joined, headers=shown))[0] == 201
        elif road == "publish":
            many = {"messages": [{"key": "nobody"}] * 50}
            assert (await site.ask("POST", PUBLISH, "", json=many, headers=shown))[0] == 202
        await request_and_leave(site, road, Waiting(monkeypatch), how)
        assert len(queue.consumers) == 0
        for key in (b"q", b"s"):
            vhost.publish(message(b"x", key=key), vhost.route(vhost.exchange(""), key))
        site.broker.request_turn()
        if road == "poll":
            # The member is there until it has been silent for too long, and has lost nothing.
            body = {"generation": 1, "wait_ms": 20_000}
            _, found = await site.ask("POST", f"{MEMBERS}/m/poll", "", json=body, headers=shown)
            assert [each["offset"] for each in found["records"]] == [0]
        async with asyncio.timeout(20):
            await until(lambda: stream.record_count == 1)
        assert (len(queue), queue.unsettled) == (1, 0)


async def test_what_comes_as_its_client_goes_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        queue = vhost.declare_queue("q")
        await came(site, "password")
        left = HttpConnection.connection_lost

        def taken_first(connection: HttpConnection, error: BaseException | None) -> None:
            if not queue.counters.published:
                vhost.publish(message(b"x", key=b"q"), vhost.route(vhost.exchange(""), b"q"))
            left(connection, error)

        waiting = Waiting(monkeypatch)
        monkeypatch.setattr(HttpConnection, "connection_lost", taken_first)
        await request_and_leave(site, "lease", waiting, "closed")
        async with asyncio.timeout(20):
            await until(lambda: queue.unsettled == 0)
        assert queue.counters.delivered == 1
        _, found = await site.ask("POST", f"{QUEUE}/leases", json={})
        assert [(each["payload"], each["redelivered"]) for each in found["messages"]] == [
            ("x", False)
        ]


async def test_a_request_whose_body_takes_long_is_not_carried_out_for_who_may_not_stay(
    tmp_path: Path,
) -> None:
    is_in = asyncio.Event()

    def heard(event: str, about: dict[str, object]) -> None:
        if (event, about.get("user")) == ("user.authentication.success", "new"):
            is_in.set()

    async with serve(tmp_path) as site:
        shown, _ = await came(site, "password")
        site.broker.events.listen(heard)
        rest = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b'{"durable": '
            await rest.wait()
            yield b"true}"

        headers = {**shown, "Content-Type": "application/json"}
        path = f"http://{site.broker.listeners['http']}/api/v1/{QUEUE}"
        url = URL(path, encoded=True)
        asked = asyncio.create_task(site.client.put(url, data=body(), headers=headers))
        async with asyncio.timeout(20):
            await is_in.wait()
            assert (await site.ask("PUT", "users/new", json={"password": "q"}))[0] in (200, 204)
            rest.set()
            async with await asked as answer:
                assert answer.status == 401
        assert "q" not in site.broker.vhost("/").queues
