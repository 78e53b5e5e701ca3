"""What the audit log tells of what operators do over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.support.rest import authorization, serve
from trivium.runtime.adapter import connection_name
from trivium_native import connect

#: Method, path below ``/api``, body, and the event that is told with some of its facts.
CHANGES: list[tuple[str, str, Any, dict[str, str]]] = [
    ("PUT", "v1/vhosts/%2F/tracing", None, {"event": "vhost.tracing.on", "vhost": "/"}),
    ("PUT", "vhosts/%2F", {"tracing": True}, {"event": "vhost.tracing.on", "vhost": "/"}),
    ("PUT", "vhosts/%2F", {"description": "d"}, {"event": "vhost.set", "vhost": "/"}),
    (
        "PUT",
        "v1/vhosts/%2F/limits",
        {"limits": {"max-queues": 5}},
        {"event": "vhost.set", "vhost": "/"},
    ),
    ("PUT", "vhost-limits/%2F/max-queues", {"value": 5}, {"event": "vhost.set", "vhost": "/"}),
    (
        "PUT",
        "v1/users/bob/limits",
        {"limits": {"max-queues": 5}},
        {"event": "user.limits.set", "name": "bob"},
    ),
    (
        *("PUT", "global-parameters/x", {"value": 1}),
        {"event": "global-parameter.set", "parameter": "x"},
    ),
    (
        *("PUT", "cluster-name", {"name": "c"}),
        {"event": "global-parameter.set", "parameter": "cluster_name"},
    ),
]


async def ask(
    client: aiohttp.ClientSession, at: str, method: str, path: str, body: Any, user: str = "root"
) -> int:
    url = URL(f"http://{at}/api/{path}", encoded=True)
    options: dict[str, Any] = {} if body is None else {"json": body}
    async with client.request(method, url, headers=authorization(user), **options) as answer:
        return answer.status


def told(file: Path, facts: dict[str, str]) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if facts.items() <= line.items()]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0]} {change[1]}")
async def test_a_change_has_its_line(
    tmp_path: Path, change: tuple[str, str, Any, dict[str, str]]
) -> None:
    method, path, body, facts = change
    async with serve(tmp_path) as site:
        assert (await site.ask("PUT", "users/bob", json={"password": "p"}))[0] == 201
        at = site.broker.listeners["http"]
        assert await ask(site.client, str(at), method, path, body) < 300
    (line,) = told(tmp_path / "audit.log", facts)
    assert (line["user"], line["protocol"]) == ("root", "http")
    assert line["address"].startswith("127.0.0.1")


@pytest.mark.parametrize("road", ["connections/", "v1/connections/", "connections/username/"])
async def test_who_ends_a_connection_of_somebody_is_told(tmp_path: Path, road: str) -> None:
    async with serve(tmp_path, protocols=["native"]) as site:
        at = str(site.broker.listeners["native"])
        async with connect(f"trivium://man:p@{at}"):
            (known,) = site.broker.connections
            name = connection_name(known)
            path = road + "man"
            if "username" not in road:
                _, found = await site.ask("GET", "connections")
                assert found["items"][0]["name"] == name
                path = road + URL.build(path=name).raw_path.replace("/", "%2F")
            http = str(site.broker.listeners["http"])
            assert await ask(site.client, http, "DELETE", path, None) == 204
    (line,) = told(tmp_path / "audit.log", {"event": "connection.ended"})
    assert (line["connection"], line["owner"], line["user"]) == (name, "man", "root")


@pytest.mark.parametrize("user", ["pol", "root"])
async def test_the_name_of_the_broker_is_for_administrators_by_every_path(
    tmp_path: Path, user: str
) -> None:
    async with serve(tmp_path) as site:
        at = str(site.broker.listeners["http"])
        is_permitted = user == "root"
        for method, path, body, status in [
            ("PUT", "global-parameters/x", {"value": "c"}, 201),
            ("PUT", "global-parameters/cluster_name", {"value": "c"}, 201 if is_permitted else 401),
            ("PUT", "cluster-name", {"name": "d"}, 204 if is_permitted else 401),
            ("DELETE", "global-parameters/cluster_name", None, 204 if is_permitted else 401),
        ]:
            assert await ask(site.client, at, method, path, body, user) == status, path
