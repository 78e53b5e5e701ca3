"""Names in the paths of Trivium's own API: those that browsers take out of a path, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiomqtt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from tests.support.rest import authorization, expiring, filled, said, serve
from trivium.management.rest import ENDPOINTS
from trivium.management.segments import name_of, segment

#: What browsers and scripts make other paths of, and what looks like what is said in its place.
NAMES = (
    ".",
    "..",
    "...",
    "%2E",
    "%2E%2E",
    "%252E",
    "a/b",
    "//",
    "..\\",
    "%2F",
    "?",
    "#",
    "+",
    ";a",
)
POLICY = {"pattern": "^x", "definition": {"max-length": 1}}
#: What is made by a PUT at a path, with a body.
THINGS: dict[str, dict[str, Any]] = {
    "vhosts": {},
    "vhosts/%2F/queues": {},
    "vhosts/%2F/streams": {},
    "vhosts/%2F/exchanges": {"type": "topic"},
    "vhosts/%2F/policies": POLICY,
    "vhosts/%2F/operator-policies": POLICY,
    "users": {"password": "p"},
    "roles": {"permissions": {}},
}


@given(st.text(alphabet=".%25E2/a", max_size=12))
@example("%2E%252E")
def test_each_name_has_a_segment_that_no_browser_takes_out(name: str) -> None:
    found = segment(name)
    assert name_of(unquote(found)) == name
    assert "/" not in found
    if name:
        # As browsers do it (WHATWG URL, 4.4).
        assert found.lower().replace("%2e", ".") not in (".", "..")
        assert URL(f"http://h/a/{found}/b").raw_path.count("/") == 3


@pytest.mark.parametrize("place", THINGS)
async def test_whatever_its_name_a_thing_is_made_shown_and_deleted(
    tmp_path: Path, place: str
) -> None:
    async with serve(tmp_path) as site:
        before = (await site.ask("GET", place))[1]["items"]
        for name in NAMES:
            path = f"{place}/{segment(name)}"
            assert await site.ask("PUT", path, json=THINGS[place]) == (201, None), name
            status, found = await site.ask("GET", path)
            assert (status, found["name"]) == (200, name)
        made = {item["name"] for item in (await site.ask("GET", place))[1]["items"]}
        assert made == {*NAMES, *(each["name"] for each in before)}
        for name in NAMES:
            assert await site.ask("DELETE", f"{place}/{segment(name)}") == (204, None), name
        assert (await site.ask("GET", place))[1]["items"] == before


async def test_whatever_its_name_a_client_is_ended_and_a_topic_cleared(tmp_path: Path) -> None:
    names = [each for each in NAMES if not set(each) & set("+#")]
    async with serve(tmp_path, protocols=["mqtt"]) as site:
        host, port = site.broker.listeners["mqtt"].split(":")
        for name in names:
            async with aiomqtt.Client(
                host,
                int(port),
                identifier=name,
                username="man",
                password="p",
                protocol=aiomqtt.ProtocolVersion.V5,
                clean_start=True,
                properties=expiring(100),
            ) as client:
                await client.publish(name, b"x", qos=1, retain=True)
            for path in (f"sessions/{segment(name)}", f"retained/{segment(name)}"):
                assert (await site.ask("GET", f"vhosts/%2F/{path}"))[0] == 200, path
                assert (await site.ask("DELETE", f"vhosts/%2F/{path}"))[0] == 204, path
                assert (await site.ask("GET", f"vhosts/%2F/{path}"))[0] == 404, path


async def test_whatever_its_name_a_group_has_members(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await site.ask("PUT", "vhosts/%2F/streams/s", json={})
        for name in NAMES:
            path = f"vhosts/%2F/groups/{segment(name)}"
            body = {"streams": ["s"], "member": name}
            status, joined = await site.ask("POST", f"{path}/members", json=body)
            assert status == 201
            status, found = await site.ask("GET", path)
            assert (status, found["name"]) == (200, name)
            one = f"{path}/members/{segment(name)}?generation={joined['generation']}"
            assert (await site.ask("DELETE", one))[0] == 204
            reset = {"positions": [{"stream": "s", "partition": 0, "offset": 0}]}
            assert (await site.ask("PUT", f"{path}/offsets", json=reset))[0] in (200, 204)
            assert (await site.ask("DELETE", path))[0] == 204


async def test_whatever_its_name_a_user_has_permissions_and_roles(tmp_path: Path) -> None:
    grant = {"configure": "", "write": "", "read": ""}
    async with serve(tmp_path) as site:
        for name in NAMES:
            one = segment(name)
            for path, body in (
                (f"vhosts/{one}", {}),
                (f"roles/{one}", {"permissions": {}}),
                (f"users/{one}", {"password": "p"}),
                (f"users/{one}/permissions/{one}", grant),
                (f"users/{one}/topic-permissions/{one}/amq.topic", {"write": "", "read": ""}),
                (f"roles/{one}/users/{one}", None),
            ):
                assert (await site.ask("PUT", path, json=body))[0] in (201, 204), path
            for path in (
                f"roles/{one}/users/{one}",
                f"users/{one}/topic-permissions/{one}/amq.topic",
                f"users/{one}/permissions/{one}",
                f"users/{one}",
                f"roles/{one}",
                f"vhosts/{one}",
            ):
                assert (await site.ask("DELETE", path))[0] == 204, path


async def test_a_path_that_has_lost_a_name_leads_nowhere(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for operation in ENDPOINTS:
            path = filled(operation.path)
            headers = said(operation)
            for lost in (f"{path}/", path.replace("nothing", "", 1)):
                if lost != path:
                    status, found = await site.ask(operation.method, lost, headers=headers)
                    assert (status, found["type"]) == (404, "urn:trivium:problem:not-found"), lost
            if "nothing" in path:
                dots = path.replace("nothing", "..", 1)
                status, found = await site.ask(operation.method, dots, headers=headers)
                assert status == 400, dots
                assert found["detail"] == "in a path the name '..' is %252E%252E"
        assert await site.names("vhosts") == ["/"]


async def test_a_slash_at_the_end_deletes_nothing_by_the_paths_of_rabbitmq(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await site.ask("PUT", "vhosts/victim", json={})
        url = f"http://{site.broker.listeners['http']}/api/vhosts/victim/"
        shown = authorization("root")
        async with site.client.get(url, headers=shown) as answer:
            assert answer.status == 200
        async with site.client.delete(url, headers=shown) as answer:
            assert answer.status == 404
        assert await site.names("vhosts") == ["/", "victim"]


async def test_whatever_its_name_a_queue_is_published_to_and_read(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for name in NAMES:
            site.broker.vhost("/").declare_queue(name)
            body = {"messages": [{"key": name, "payload": "x"}, {"key": name, "payload": "y"}]}
            sent = "vhosts/%2F/exchanges/amq.default/messages"
            assert (await site.ask("POST", sent, json=body))[1]["outcomes"] == ["accepted"] * 2
            path = f"vhosts/%2F/queues/{segment(name)}"
            _, found = await site.ask("POST", f"{path}/leases", json={"count": 1})
            assert [each["payload"] for each in found["messages"]] == ["x"]
            assert (await site.ask("GET", f"{path}/messages"))[0] == 200
            assert (await site.ask("DELETE", f"{path}/contents"))[0] in (200, 204)
            assert (await site.ask("GET", path))[1]["ready"] == 0


#: What brings a thing without a name, as definitions.
NAMELESS: tuple[dict[str, Any], ...] = (
    {"vhosts": [{"name": ""}]},
    {"users": [{"name": "", "password": "p", "tags": ""}]},
    {"queues": [{"vhost": "/", "name": "", "durable": True, "arguments": {}}]},
    {"policies": [{"vhost": "/", "name": "", **POLICY}]},
    {
        "parameters": [
            {"vhost": "/", "component": "operator_policy", "name": "", "value": POLICY},
        ]
    },
)


@pytest.mark.parametrize("nameless", NAMELESS, ids=str)
async def test_nothing_is_made_without_a_name(tmp_path: Path, nameless: dict[str, Any]) -> None:
    async with serve(tmp_path) as site:
        status, found = await site.ask("POST", "definitions", json=nameless)
        assert status >= 400 or found["passed_over"], found
        for place in THINGS.keys() - {"vhosts/%2F/exchanges"}:
            assert "" not in await site.names(place)
