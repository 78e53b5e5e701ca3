"""The HTTP API of administrators, over real sockets and, for what is durable when, without."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.support.server import Server
from tests.support.simulated import Host
from trivium.config import (
    AuditConfig,
    Config,
    LimitsConfig,
    Listen,
    ListenerConfig,
    StorageConfig,
    UserConfig,
)
from trivium.management.endpoints import ENTERED
from trivium.management.management import ENDPOINTS, Management
from trivium.observability.api import ApiAnswer, ApiRequest
from trivium.observability.http import SMALL_BODY_BYTES
from trivium.runtime.broker import Broker
from trivium.security.identity import Identity

USERS = {
    "root": UserConfig(password="p", tags=("administrator",)),
    "ann": UserConfig(password="p", tags=("monitoring", "policymaker")),
}


class Site:
    """A broker and a client of its HTTP port."""

    def __init__(self, broker: Broker, client: aiohttp.ClientSession) -> None:
        self.broker = broker
        self._client = client

    async def ask(
        self, method: str, path: str, user: str = "root:p", **options: Any
    ) -> tuple[int, Any]:
        headers = dict(options.pop("headers", {}))
        if user:
            headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        url = URL(f"http://{self.broker.listeners['http']}/api/{path}", encoded=True)
        async with self._client.request(method, url, headers=headers, **options) as answer:
            text = await answer.text()
            assert not any(name.startswith("Access-Control") for name in answer.headers)
            assert (answer.status == 401) is ("WWW-Authenticate" in answer.headers)
            return answer.status, json.loads(text) if text else None


@contextlib.asynccontextmanager
async def serve(directory: Path, **keys: Any) -> AsyncIterator[Site]:
    config = Config(
        listen={"http": Listen(0)},
        storage=StorageConfig(data=directory / "data"),
        users=USERS,
        audit=AuditConfig(file=str(directory / "audit.log")),
        **keys,
    )
    async with Broker(config) as broker, aiohttp.ClientSession() as client:
        yield Site(broker, client)


#: What is in a virtual host where nothing has happened, and what its clients did.
EMPTY: dict[str, Any] = {
    "cluster_state": {"trivium@localhost": "running"},
    **dict.fromkeys(("messages", "messages_ready", "messages_unacknowledged"), 0),
    **dict.fromkeys(("recv_oct", "send_oct"), 0),
}
EMPTY |= {f"{name}_details": {"rate": 0.0} for name in EMPTY if name != "cluster_state"}
FARM = {
    **EMPTY,
    "name": "farm",
    "description": "d",
    "tags": ["a", "b"],
    "default_queue_type": "quorum",
    "limits": {},
    "metadata": {"description": "d", "tags": ["a", "b"]},
    "tracing": False,
}
ROOT = {
    **EMPTY,
    "name": "/",
    "description": "",
    "tags": [],
    "default_queue_type": "classic",
    "limits": {},
    "metadata": {"description": "", "tags": []},
    "tracing": False,
}
NOT_FOUND = "Object Not Found"


async def test_a_virtual_host_is_made_described_changed_and_deleted_and_stays_so(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as site:
        body = {key: value for key, value in FARM.items() if key != "limits"}
        assert await site.ask("PUT", "vhosts/farm", json=body) == (201, None)
        assert await site.ask("PUT", "vhosts/farm") == (204, None)
        assert await site.ask("GET", "vhosts") == (200, [ROOT, FARM])
        assert await site.ask("PUT", "vhosts/a%2Fb%20%C3%9F") == (201, None)
        assert await site.ask("PUT", "vhosts/gone", json={"tracing": False}) == (201, None)
        assert await site.ask("DELETE", "vhosts/gone") == (204, None)
        assert (await site.ask("DELETE", "vhosts/gone"))[0] == 404
    async with serve(tmp_path) as site:
        assert await site.ask("GET", "vhosts/farm") == (200, FARM)
        assert await site.ask("GET", "vhosts/a%2fb%20%c3%9f") == (200, {**ROOT, "name": "a/b ß"})
        assert await site.ask("GET", "vhosts/%2F") == (200, ROOT)
        status, found = await site.ask("GET", "vhosts/gone")
        assert (status, found["error"]) == (404, NOT_FOUND)
        assert await site.ask("PUT", "vhosts/farm", json={"tags": "x, y"}) == (204, None)
        found = {**FARM, "tags": ["x", "y"], "metadata": {"description": "d", "tags": ["x", "y"]}}
        assert await site.ask("GET", "vhosts/farm") == (200, found)
        assert (await site.ask("HEAD", "vhosts/farm"))[0] == 200


REFUSED: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "vhosts/no", {}, 404),
    ("GET", "", {}, 404),
    ("GET", "vhosts//", {}, 404),
    ("GET", "vhosts/%2F/no", {}, 404),
    ("PUT", "vhosts", {}, 405),
    ("POST", "vhosts/farm", {}, 405),
    ("PUT", "vhosts/%FF", {}, 400),
    ("PUT", "vhosts/%2A", {}, 400),
    ("PUT", "vhosts/%0A", {}, 400),
    ("PUT", "vhosts/", {}, 405),
    ("PUT", "vhosts/" + "n" * 256, {}, 400),
    ("DELETE", "vhosts/no", {}, 404),
    ("DELETE", "vhosts/%2F", {}, 400),
    ("DELETE", "vhosts/kept", {}, 401),
    ("PUT", "vhosts/farm", {"json": []}, 400),
    ("PUT", "vhosts/farm", {"json": {"description": 1}}, 400),
    ("PUT", "vhosts/farm", {"json": {"description": "d" * 1025}}, 400),
    ("PUT", "vhosts/farm", {"json": {"description": "\ud800"}}, 400),
    ("PUT", "vhosts/farm", {"json": {"tags": ["a", 1]}}, 400),
    ("PUT", "vhosts/farm", {"json": {"tags": {}}}, 400),
    ("PUT", "vhosts/farm", {"json": {"tags": ["a"] * 33}}, 400),
    ("PUT", "vhosts/farm", {"json": {"default_queue_type": "odd"}}, 400),
    ("PUT", "vhosts/farm", {"json": {"tracing": "often"}}, 400),
    ("PUT", "vhosts/farm", {"data": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
    ("PUT", "vhosts/farm", {"data": {"description": "form"}}, 415),
    ("PUT", "vhosts/farm", {"json": {"description": "d" * 70_000}}, 413),
]


async def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    kept = ListenerConfig(name="kept", protocol="http", address="127.0.0.1:0", virtual_host="kept")
    async with serve(tmp_path, listeners=(kept,)) as site:
        before = await site.ask("GET", "vhosts")
        for method, path, options, status in REFUSED:
            found, body = await site.ask(method, path, **options)
            assert (found, sorted(body)) == (status, ["error", "reason"]), (method, path, options)
            assert await site.ask("GET", "vhosts") == before


async def test_tracing_is_switched_as_rabbitmq_does(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for wanted, found in ((True, True), (None, True), ("false", False)):
            body = {} if wanted is None else {"tracing": wanted}
            await site.ask("PUT", "vhosts/farm", json=body)
            assert await site.ask("GET", "vhosts/farm") == (
                200,
                {**ROOT, "name": "farm", "tracing": found},
            )
            assert (site.broker.vhosts["farm"].tap is not None) is found


async def test_a_body_that_is_no_json_is_refused(tmp_path: Path) -> None:
    headers = {"Content-Type": "application/json"}
    async with serve(tmp_path) as site:
        for body in (
            b"{",
            b"[" * 60_000,
            b'{"a": ' + b"9" * 5000 + b"}",
            b"\xff",
            b"\xef\xbb\xbf{}",
        ):
            found = await site.ask("PUT", "vhosts/farm", data=body, headers=headers)
            assert found[0] == 400, body[:9]
        assert (await site.ask("GET", "vhosts/farm"))[0] == 404


#: texts of values that no answer could show
UNSHOWABLE = (
    "NaN",
    "-Infinity",
    "1e999",
    "-1E400",
    r'"\ud800"',
    r'{"\uDC00": 1}',
    r'"\\\ud800\u0041"',
    "9" * 20,
    "-" + "9" * 19,
)


async def test_what_no_answer_could_show_is_refused(tmp_path: Path) -> None:
    headers = {"Content-Type": "application/json"}
    async with serve(tmp_path) as site:
        for value in UNSHOWABLE:
            parameter = f'{{"name": "x", "value": [{value}]}}'
            definitions = f'{{"global_parameters": [{parameter}]}}'
            for method, path, body in (
                ("PUT", "global-parameters/x", parameter),
                ("POST", "definitions", definitions),
                ("POST", "definitions", definitions + " " * SMALL_BODY_BYTES),
            ):
                status, _ = await site.ask(method, path, data=body, headers=headers)
                assert status == 400, (path, body[:99])
        assert await site.ask("GET", "global-parameters") == (200, [])


@pytest.mark.parametrize("padding", [0, SMALL_BODY_BYTES])
async def test_what_an_answer_can_show_is_taken(tmp_path: Path, padding: int) -> None:
    value = json.loads(
        r'[1e308, "\ud83d\ude00", "\\ud800", 9223372036854775807, {"\uD83D\uDE00": null}]'
    )
    body = json.dumps({"global_parameters": [{"name": "x", "value": value}]}) + " " * padding
    headers = {"Content-Type": "application/json"}
    async with serve(tmp_path) as site:
        assert (await site.ask("POST", "definitions", data=body, headers=headers))[0] == 204
        assert (await site.ask("GET", "global-parameters/x"))[1] == {"name": "x", "value": value}


@pytest.mark.parametrize(
    ("user", "status", "event"),
    [
        ("", 401, ""),
        ("root:wrong", 401, "user.authentication.failure"),
        ("ann:p", 401, "permission.denied"),
    ],
)
async def test_whoever_is_no_administrator_is_refused_and_audited(
    user: str, status: int, event: str, tmp_path: Path
) -> None:
    async with serve(tmp_path) as site:
        # Clients without credentials are admitted here by the other protocols.
        for method in ("PUT", "DELETE"):
            found, body = await site.ask(method, "vhosts/farm", user)
            assert (found, body["error"]) == (status, "not_authorised")
        assert await site.ask("GET", "vhosts") == (200, [ROOT])
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert event in ("", *(line["event"] for line in lines))


async def test_who_did_what_is_audited(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await site.ask("PUT", "vhosts/farm")
        await site.ask("DELETE", "vhosts/farm")
        await site.ask("PUT", "vhosts/no", "ann:p")
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    found = [
        (line["event"], line["user"], line["address"], line["protocol"], line["listener"])
        for line in lines
        if not line["event"].startswith("user.authentication")
    ]
    client = ("127.0.0.1", "http", "http")
    assert found == [
        ("vhost.created", "root", *client),
        ("vhost.deleted", "root", *client),
        ("permission.denied", "ann", *client),
    ]


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=LimitsConfig(handshake_seconds=0.05)) as site:
        host, _, port = site.broker.listeners["http"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        credentials = base64.b64encode(b"root:p").decode()
        writer.write(
            f"PUT /api/vhosts/farm HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {credentials}\r\n"
            "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{".encode()
        )
        assert await asyncio.wait_for(reader.readline(), 10) == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        assert (await site.ask("GET", "vhosts/farm"))[0] == 404


def request_of(method: str, path: str) -> ApiRequest:
    """That of an administrator."""
    return ApiRequest(
        method=method,
        path=tuple(path.split("/")),
        body=None,
        identity=Identity("root", frozenset(("administrator",))),
        address="",
        listener=ListenerConfig(protocol="http", address="127.0.0.1:0"),
    )


def test_a_change_is_answered_once_it_is_durable() -> None:
    server = Server(host=Host())
    management = Management(server.broker, lambda work: work())
    answers: list[ApiAnswer] = []

    def ask(method: str) -> None:
        management.ask(request_of(method, "vhosts/farm"), answers.append)

    for method, status in (("PUT", 201), ("PUT", 204), ("DELETE", 204)):
        ask(method)
        server.settle()
        assert answers == []
        if method == "DELETE":
            # The last part goes in a later turn.
            server.sync()
            server.advance(100)
        server.sync()
        assert answers == [ApiAnswer(status)]
        answers.clear()
    server.broker.is_stopping = True
    ask("PUT")
    assert answers[0].status == 503
    assert server.broker.events.serving is None


#: Lists of what is in a virtual host.
IN_VHOST = [
    endpoint.path.replace("{vhost}", "farm")
    for endpoint in ENDPOINTS.all
    if endpoint.method == "GET"
    and endpoint.path.count("{") == 1
    and "{vhost}/" in endpoint.path
    and endpoint.vhost != ENTERED
    # It is about one name, which is asked for.
    and not endpoint.path.endswith("/access")
]


@pytest.mark.parametrize("path", [*IN_VHOST, "consumers/farm", "queues/farm", "bindings/farm"])
def test_a_virtual_host_may_go_before_a_long_answer_about_it_is_made(path: str) -> None:
    server = Server(host=Host())
    server.broker.virtual_hosts.declare("farm")
    server.broker.vhost("farm").declare_queue("q")
    answers: list[ApiAnswer] = []
    management = Management(server.broker, lambda work: work())
    management.ask(request_of("GET", path), answers.append)
    management.ask(request_of("DELETE", "vhosts/farm"), lambda _: None)
    for _ in range(3):
        server.settle()
        server.sync()
        server.advance(100)
    assert "farm" not in server.broker.vhosts
    (answer,) = answers
    assert answer.status == 200
    b"".join(answer.parts or ())
