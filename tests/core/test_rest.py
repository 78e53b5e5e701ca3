"""Trivium's own HTTP API: what it answers is what its document says, and who may ask."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import aiomqtt
import jwt
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

import trivium_native
from tests.support.rest import DOCUMENT, USERS, authorization, expiring, filled, said, serve
from trivium.config import HttpAuthConfig, JwtConfig
from trivium.management.endpoints import CLIENTS, FEW_VALUES
from trivium.management.rest import ENDPOINTS, general
from trivium.management.rest.document import document
from trivium.messages.message import PROTOCOL_NONE, Address, Message
from trivium.runtime.broker import Broker
from trivium.vhost.predeclared import EVENT_EXCHANGE
from trivium_native.errors import ClosedByOperator

SECRET = "a secret of more than thirty-two bytes"


def retain(broker: Broker, key: bytes, payload: bytes) -> None:
    """Keep a message."""
    message = Message(
        PROTOCOL_NONE, Address("amq.topic", key), b"", payload, 1, True, 1, retain=True
    )
    broker.vhost("/").retained.keep(message)


def test_those_who_ask_for_the_document_while_it_is_made_make_it_together() -> None:
    state: Any = SimpleNamespace(openapi=b"", openapi_parts=None, openapi_made=[])
    both = [general.openapi_of(state) for _ in range(2)]
    steps = 0
    found: dict[int, bytes] = {}
    while len(found) < len(both):
        for number, parts in enumerate(both):
            for part in itertools.islice(parts, 1):
                steps += 1
                if part:
                    found[number] = part
    assert [json.loads(part) for part in found.values()] == [DOCUMENT, DOCUMENT]
    # As many as one alone takes, and the answers.
    assert steps == len(list(document(ENDPOINTS))) + 2


def test_the_document_is_valid_openapi_3_1() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


async def test_the_document_is_made_once_and_each_of_its_parts_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = len(DOCUMENT["paths"])
    schemas = len(DOCUMENT["components"]["schemas"])
    assert sum(1 for _ in document(ENDPOINTS)) == paths + schemas + 3
    async with serve(tmp_path) as site:
        url = f"http://{site.broker.listeners['http']}/api/v1/openapi.json"
        async with site.client.get(url) as answer:
            assert (answer.status, await answer.json(content_type=None)) == (200, DOCUMENT)
            tag = answer.headers["ETag"]
        monkeypatch.delattr("trivium.management.rest.general.document")
        async with site.client.get(url) as answer:
            assert (answer.status, await answer.json(content_type=None)) == (200, DOCUMENT)
            assert answer.headers["Content-Length"] == str(len(await answer.read()))
        async with site.client.get(url, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304


async def test_a_stream_is_declared_shown_listed_and_deleted(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        path = "vhosts/%2F/streams/s%2F1"
        body = {"partitions": 3, "arguments": {"x-max-age": "1h"}}
        assert await site.ask("PUT", path, json=body) == (201, None)
        assert await site.ask("PUT", path, json=body) == (204, None)
        assert (await site.ask("PUT", path, json={"partitions": 2}))[0] == 409
        status, found = await site.ask("GET", path)
        assert (status, found["partitions"]) == (200, 3)
        assert found["retention"]["max_age_ms"] == 3_600_000
        assert await site.names("streams") == ["s/1"]
        assert await site.names("vhosts/%2F/streams") == ["s/1"]
        status, found = await site.ask("GET", path + "/partitions?page_size=2")
        assert [each["partition"] for each in found["items"]] == [0, 1]
        assert (found["page_count"], found["total_count"]) == (2, 3)
        assert await site.ask("DELETE", path) == (204, None)
        assert (await site.ask("GET", path))[0] == 404
        assert (await site.ask("DELETE", path))[0] == 404


async def test_a_stream_is_given_more_partitions(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        path = "vhosts/%2F/streams/s"
        assert await site.ask("PUT", path, json={"partitions": 2}) == (201, None)
        for wanted, status in ((5, 204), (5, 204), (4, 409), (1025, 422), (0, 422)):
            assert (await site.ask("PUT", path + "/partitions", json={"partitions": wanted}))[
                0
            ] == status
        assert (await site.ask("GET", path))[1]["partitions"] == 5
        assert await site.ask("PUT", path, json={"partitions": 5}) == (204, None)
        assert (await site.ask("PUT", path, json={"partitions": 2}))[0] == 409
        missing = "vhosts/%2F/streams/no/partitions"
        assert (await site.ask("PUT", missing, json={"partitions": 2}))[0] == 404


async def test_how_far_a_group_is_comes_by_stream_and_partition(tmp_path: Path) -> None:
    async with serve(tmp_path, protocols=["native"]) as site:
        address = site.broker.listeners["native"]
        async with trivium_native.connect(f"trivium://root:p@{address}") as client:
            for name in ("b", "a"):
                await client.declare_stream(name, 2)
                await client.commit("g", name, {1: 0, 0: 0})
        _, found = await site.ask("GET", "vhosts/%2F/groups/g/offsets")
        places = [(each["stream"], each["partition"]) for each in found["items"]]
        assert places == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


async def test_a_group_is_shown_with_its_lag_reset_and_deleted(tmp_path: Path) -> None:
    async with serve(tmp_path, protocols=["native"]) as site:
        await site.ask("PUT", "vhosts/%2F/streams/s", json={"partitions": 1})
        address = site.broker.listeners["native"]
        async with trivium_native.connect(f"trivium://root:p@{address}") as client:
            for number in range(5):
                await client.publish(b"%d" % number, routing_key="s", exchange="")
            await client.commit("g", "s", {0: 2})
        path = "vhosts/%2F/groups/g"
        status, found = await site.ask("GET", path)
        assert (status, found["lag"], found["streams"]) == (200, 3, ["s"])
        assert (found["members"], found["holder"], found["state"]) == (0, None, "empty")
        positions: list[dict[str, Any]] = [
            {"stream": "s", "partition": 0, "offset": 4, "metadata": "by hand"}
        ]
        wanted = {"positions": positions}
        assert await site.ask("PUT", path + "/offsets", json=wanted) == (204, None)
        status, found = await site.ask("GET", path + "/offsets")
        assert found["items"] == [
            {
                "stream": "s",
                "partition": 0,
                "committed": 4,
                "high_watermark": 5,
                "lag": 1,
                "metadata": "by hand",
            }
        ]
        status, found = await site.ask("GET", "vhosts/%2F/streams/s/groups")
        assert found["items"] == [
            {
                "group": "g",
                "partition": 0,
                "member": None,
                "committed": 4,
                "high_watermark": 5,
                "lag": 1,
            }
        ]
        await site.ask("PUT", "vhosts/%2F/streams/other", json={})
        assert (await site.ask("GET", "vhosts/%2F/streams/other/groups"))[1]["items"] == []
        positions[0]["offset"] = 6
        assert (await site.ask("PUT", path + "/offsets", json=wanted))[0] == 409
        assert (await site.ask("GET", path + "/members"))[1]["items"] == []
        assert await site.names("groups") == ["g"]
        assert await site.ask("DELETE", path) == (204, None)
        for rest in ("", "/members", "/offsets"):
            assert (await site.ask("GET", path + rest))[0] == 404
        status, found = await site.ask("PUT", path + "/offsets", json={"to": "last"})
        assert (status, found["detail"]) == (404, "no group 'g'")


async def test_how_far_a_group_is_knows_who_may_read_it_and_its_streams(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        for name in ("ours", "theirs"):
            await site.ask("PUT", f"vhosts/%2F/streams/{name}", json={"partitions": 1})
            for group in ("g", "secret"):
                vhost.groups.commit(group, vhost.stream(name), [(0, 0)])
        await site.ask("PUT", "users/new", json={"password": "p", "tags": ["management"]})
        patterns = {"configure": "", "write": "", "read": "^ours$"}

        async def groups_of(stream: str) -> list[str]:
            _, found = await site.ask("GET", f"vhosts/%2F/streams/{stream}/groups", "new")
            return [each["group"] for each in found["items"]]

        await site.ask("PUT", "users/new/permissions/%2F", json=patterns)
        path = "vhosts/%2F/groups/g"
        for rest in ("/offsets", "/members"):
            assert (await site.ask("GET", path + rest, "new"))[0] == 403
        assert await groups_of("ours") == []
        await site.ask("PUT", "users/new/permissions/%2F", json={**patterns, "read": "^(ours|g)$"})
        _, found = await site.ask("GET", path + "/offsets", "new")
        assert [each["stream"] for each in found["items"]] == ["ours"]
        assert (await site.ask("GET", path, "new"))[1]["streams"] == ["ours"]
        assert (await site.ask("GET", path + "/members", "new"))[0] == 200
        assert (await groups_of("ours"), await groups_of("theirs")) == (["g"], [])
        # Who watches, and may enter, sees it all.
        await site.ask("PUT", "users/new", json={"tags": ["monitoring"]})
        await site.ask("PUT", "users/new/permissions/%2F", json={**patterns, "read": ""})
        _, found = await site.ask("GET", path + "/offsets", "new")
        assert [each["stream"] for each in found["items"]] == ["ours", "theirs"]
        assert await groups_of("theirs") == ["g", "secret"]


async def test_what_the_caller_may_not_do_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for things, body in (("queues", {}), ("streams", {}), ("exchanges", {"type": "direct"})):
            await site.ask("PUT", f"vhosts/%2F/{things}/their-{things}", json=body)
        await site.ask("PUT", "users/new", json={"password": "p", "tags": ["management"]})
        patterns = {"configure": "^mine", "write": "^mine|^amq.topic$", "read": "^mine"}
        await site.ask("PUT", "users/new/permissions/%2F", json=patterns)
        topics = {"write": "^a", "read": ""}
        await site.ask("PUT", "users/new/topic-permissions/%2F/amq.topic", json=topics)
        retain(site.broker, b"b", b"x")

        async def status(method: str, path: str, user: str = "new", **options: Any) -> int:
            return (await site.ask(method, f"vhosts/%2F/{path}", user, **options))[0]

        assert await status("PUT", "exchanges/mine", json={"type": "direct"}) == 201
        assert await status("PUT", "queues/mine", json={}) == 201
        binding = {"source": "mine", "destination": "their-queues", "key": "k"}
        assert await status("POST", "bindings", "root", json=binding) == 201
        message = {"messages": [{"key": "b", "payload": "x"}]}
        raw = {"data": b"x", "headers": {"Content-Type": "application/octet-stream"}}
        for method, path, options in (
            ("DELETE", "queues/their-queues", {}),
            ("DELETE", "queues/their-queues/contents", {}),
            ("DELETE", "streams/their-streams", {}),
            ("DELETE", "exchanges/their-exchanges", {}),
            ("PUT", "queues/new", {"json": {}}),
            ("PUT", "streams/new", {"json": {}}),
            ("PUT", "exchanges/new", {"json": {"type": "direct"}}),
            ("POST", "bindings", {"json": {**binding, "key": "other"}}),
            ("POST", "bindings", {"json": {**binding, "source": "amq.direct"}}),
            ("POST", "bindings/delete", {"json": binding}),
            ("DELETE", "retained/b", {}),
            ("GET", "retained/b", {}),
            ("POST", "exchanges/amq.topic/messages", {"json": message}),
            ("POST", "exchanges/amq.topic/messages/raw?key=b", raw),
            ("POST", "exchanges/their-exchanges/messages", {"json": message}),
            ("POST", "queues/their-queues/leases", {"json": {}}),
            ("GET", "queues/their-queues/messages", {}),
        ):
            assert await status(method, path, **options) == 403, (method, path)


async def test_a_name_is_as_long_on_the_line_as_it_may_be(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        # Each character is 12 bytes there.
        longest = quote("\U0010ffff" * 1023) + "/"
        path = f"vhosts/%2F/retained-levels?prefix={longest}&after={longest}"
        assert (await site.ask("GET", path))[0] == 200


async def test_a_group_with_members_is_reset_only_by_force(tmp_path: Path) -> None:
    async with serve(tmp_path, protocols=["native"]) as site:
        await site.ask("PUT", "vhosts/%2F/streams/s", json={"partitions": 1})
        address = site.broker.listeners["native"]
        async with trivium_native.connect(f"trivium://root:p@{address}") as client:
            await client.publish(b"0", routing_key="s", exchange="")
            holder = await client.join_exclusively("g", "h")
            await client.commit("g", "s", {0: 1}, membership=holder)
            path = "vhosts/%2F/groups/g"
            reset: dict[str, Any] = {"to": "first", "streams": ["s"]}
            assert (await site.ask("GET", path))[1]["state"] == "exclusive"
            assert (await site.ask("PUT", path + "/offsets", json=reset))[0] == 409
            member = {"member": "one", "streams": ["s"]}
            reset["force"] = True
            assert await site.ask("PUT", path + "/offsets", json=reset) == (204, None)
            with pytest.raises(trivium_native.errors.StaleMember):
                await client.commit("g", "s", {0: 1}, membership=holder)
            assert (await site.ask("POST", path + "/members", json=member))[0] in (200, 201)
            reset["force"] = False
            assert (await site.ask("PUT", path + "/offsets", json=reset))[0] == 409
            reset = {"to": "next", "streams": ["s"], "force": True}
            assert await site.ask("PUT", path + "/offsets", json=reset) == (204, None)
        (offsets,) = (await site.ask("GET", path + "/offsets"))[1]["items"]
        assert (offsets["committed"], offsets["lag"]) == (1, 0)
        assert (await site.ask("GET", path + "/members"))[1]["items"] == []


async def test_a_group_is_reset_and_deleted_by_who_may(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        for name in ("ours", "theirs"):
            await site.ask("PUT", f"vhosts/%2F/streams/{name}", json={"partitions": 1})
            vhost.groups.commit("g", vhost.stream(name), [(0, 0)])
        await site.ask("PUT", "users/new", json={"password": "p", "tags": ["management"]})
        path = "vhosts/%2F/groups/g"

        async def permit(configure: str, read: str) -> None:
            patterns = {"configure": configure, "write": "", "read": read}
            await site.ask("PUT", "users/new/permissions/%2F", json=patterns)

        async def reset(*streams: str) -> int:
            places = [{"stream": each, "partition": 0, "offset": 0} for each in streams]
            body = {"positions": places}
            return (await site.ask("PUT", path + "/offsets", "new", json=body))[0]

        await permit(".*", "^ours$")
        assert await reset("ours") == 403
        await permit(".*", "^g$")
        assert await reset("ours") == 403
        await permit("^ours$", "^(ours|g)$")
        assert (await reset("ours"), await reset("ours", "theirs")) == (204, 403)
        assert (await site.ask("DELETE", path, "new"))[0] == 403
        await permit("^g$", "")
        assert (await site.ask("DELETE", path, "new"))[0] == 204


async def test_a_group_goes_on_at_the_same_place_of_all_that_it_reads(tmp_path: Path) -> None:
    async with serve(tmp_path, protocols=["native"]) as site:
        path = "vhosts/%2F/groups/g/offsets"
        for name in ("s", "t"):
            await site.ask("PUT", f"vhosts/%2F/streams/{name}", json={"partitions": 2})
        address = site.broker.listeners["native"]
        async with trivium_native.connect(f"trivium://root:p@{address}") as client:
            # Its routing key chooses the partition.
            await client.bind("stream", "s", pattern="k")
            times: list[int] = []
            for _ in range(4):
                times.append(time.time_ns() // 1_000_000)
                await client.publish(b"x", routing_key="k")
                while time.time_ns() // 1_000_000 <= times[-1] + 1:
                    await client.metadata(["s"])
        _, found = await site.ask("GET", "vhosts/%2F/streams/s/partitions")
        ends = [row["high_watermark"] for row in found["items"]]
        assert sorted(ends) == [0, 4]
        full = ends.index(4)
        wanted: dict[str, Any] = {"to": "first"}
        assert (await site.ask("PUT", path, json=wanted))[0] == 404, "there is no such group yet"
        wanted["streams"] = ["s", "s"]
        assert await site.ask("PUT", path, json=wanted) == (204, None)

        async def committed() -> list[int]:
            _, found = await site.ask("GET", path)
            return [row["committed"] for row in found["items"]]

        assert await committed() == [0, 0]
        moves: list[tuple[dict[str, Any], int]] = [
            ({"to": "next"}, 4),
            ({"to": "last"}, 3),
            ({"to": "first"}, 0),
            ({"to": "time", "time": times[2]}, 2),
            ({"to": "time", "time": 0}, 0),
            ({"to": "time", "time": times[3] + 60_000}, 4),
            ({"to": "offset", "offset": 1, "partitions": [full]}, 1),
        ]
        for more, offset in moves:
            assert await site.ask("PUT", path, json=more) == (204, None)
            assert await committed() == [offset if number == full else 0 for number in range(2)]
        refusals: list[tuple[dict[str, Any], int]] = [
            ({"to": "offset", "offset": 1}, 409),
            ({"to": "first", "partitions": [2]}, 404),
            ({"to": "first", "streams": ["none"]}, 404),
            ({"to": "first", "streams": []}, 422),
            ({"to": "offset"}, 400),
            ({"to": "first", "offset": 1}, 400),
            ({"to": "first", "time": 1}, 400),
            ({}, 400),
        ]
        for more, status in refusals:
            assert (await site.ask("PUT", path, json=more))[0] == status
        assert await committed() == [1 if number == full else 0 for number in range(2)]


async def test_a_virtual_host_is_made_changed_and_deleted(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        body: dict[str, Any] = {"description": "d", "limits": {"max-queues": 5}}
        assert await site.ask("PUT", "vhosts/plant", json=body) == (201, None)
        assert await site.ask("PUT", "vhosts/plant", json={"tags": ["a"]}) == (204, None)
        _status, found = await site.ask("GET", "vhosts/plant")
        assert (found["description"], found["tags"], found["limits"]) == (
            "d",
            ["a"],
            {"max-queues": 5},
        )
        assert await site.names("vhosts") == ["/", "plant"]
        assert (await site.ask("PUT", "vhosts/plant", json={"limits": {"odd": 1}}))[0] == 409
        for method, is_on in (("PUT", True), ("DELETE", False)):
            assert (await site.ask(method, "vhosts/plant/tracing", "ann"))[0] == 403
            assert await site.ask(method, "vhosts/plant/tracing") == (204, None)
            assert (await site.ask("GET", "vhosts/plant"))[1]["tracing"] is is_on
        assert (await site.ask("PUT", "vhosts/no/tracing"))[0] == 404
        assert await site.ask("DELETE", "vhosts/plant") == (204, None)
        assert (await site.ask("DELETE", "vhosts/plant"))[0] == 404


async def test_a_policy_is_set_shown_and_removed_and_delivery_modes_follow(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        vhost.declare_queue("q", durable=True)
        vhost.declare_queue("own", durable=True, arguments={"x-delivery": "at-most-once"})
        body = {"pattern": "^q", "definition": {"delivery": "exactly-once"}, "priority": 3}
        assert await site.ask("PUT", "vhosts/%2F/policies/p", "pol", json=body) == (201, None)
        assert await site.ask("PUT", "vhosts/%2F/policies/p", "pol", json=body) == (204, None)
        _, found = await site.ask("GET", "vhosts/%2F/policies/p")
        said = {"apply_to": "all", "suspended": False, **body}
        assert found == {"vhost": "/", "name": "p", **said}
        _status, found = await site.ask("GET", "vhosts/%2F/delivery-modes")
        assert [(item["queue"], item["mode"], item["source"]) for item in found["items"]] == [
            ("own", "at-most-once", "argument"),
            ("q", "exactly-once", "policy"),
        ]
        assert await site.ask("DELETE", "vhosts/%2F/policies/p", "pol") == (204, None)
        assert (await site.ask("GET", "vhosts/%2F/policies/p"))[0] == 404
        assert (await site.ask("PUT", "vhosts/%2F/policies/p", "man", json=body))[0] == 403


async def test_a_policy_of_operators_is_for_administrators(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", arguments={"x-max-length": 9})
        body = {
            "pattern": "^q",
            "definition": {"max-length": 5},
            "priority": 3,
            "apply_to": "classic_queues",
        }
        path = "vhosts/%2F/operator-policies/o"
        for method in ("GET", "PUT", "DELETE"):
            options = {"json": body} if method == "PUT" else {}
            assert (await site.ask(method, path, "pol", **options))[0] == 403
        assert await site.ask("PUT", path, json=body) == (201, None)
        assert await site.ask("PUT", path, json=body) == (204, None)
        shown = {"vhost": "/", "name": "o", "suspended": False, **body}
        assert await site.ask("GET", path) == (200, shown)
        for listing in ("operator-policies", "vhosts/%2F/operator-policies"):
            assert (await site.ask("GET", listing, "man"))[1]["items"] == [shown]
        _, queue = await site.ask("GET", "vhosts/%2F/queues/q")
        assert (queue["policy"], queue["operator_policy"]) == (None, "o")
        assert queue["effective_policy"] == {"max-length": 5}
        assert await site.ask("DELETE", path) == (204, None)
        assert (await site.ask("GET", path))[0] == 404


async def test_a_session_is_shown_with_what_it_shares_and_ended(tmp_path: Path) -> None:
    async with serve(tmp_path, protocols=["mqtt"]) as site:
        host, port = site.broker.listeners["mqtt"].split(":")
        async with aiomqtt.Client(
            host,
            int(port),
            identifier="c",
            username="man",
            password="p",
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=True,
            properties=expiring(100),
        ) as client:
            await client.subscribe("a/+", qos=1)
            await client.subscribe("$share/g/b/#", qos=2)
            _, found = await site.ask("GET", "vhosts/%2F/sessions/c", "man")
            assert (found["user"], found["is_connected"], found["subscriptions"]) == (
                "man",
                True,
                2,
            )
            assert (await site.ask("GET", "vhosts/%2F/sessions/c", "pol"))[0] == 403
            assert (await site.ask("GET", "sessions", "pol"))[1]["items"] == []
            assert len((await site.ask("GET", "sessions", "ann"))[1]["items"]) == 0
            _, found = await site.ask("GET", "vhosts/%2F/sessions/c/subscriptions")
            assert [(each["filter"], each["qos"], each["share"]) for each in found["items"]] == [
                ("a/+", 1, None),
                ("b/#", 2, "g"),
            ]
            _, found = await site.ask("GET", "vhosts/%2F/shared-subscriptions")
            assert found["items"] == [
                {"vhost": "/", "name": "g", "filter": "b/#", "members": ["c"]}
            ]
            path = "vhosts/%2F/sessions/c"
            assert (await site.ask("GET", path, "ann"))[0] == 200
            assert (await site.ask("DELETE", path, "ann"))[0] == 403, "who watches ends nothing"
            assert (await site.ask("GET", path))[1]["is_connected"]
            assert await site.ask("DELETE", path) == (204, None)
            with pytest.raises(aiomqtt.MqttError):
                await anext(aiter(client.messages))
            _status, found = await site.ask("GET", "vhosts/%2F/shared-subscriptions")
            assert found["items"] == []
            assert (await site.ask("GET", "vhosts/%2F/sessions/c"))[0] == 404
            assert (await site.ask("DELETE", "vhosts/%2F/sessions/c"))[0] == 404


async def test_retained_messages_are_listed_by_filter_shown_and_cleared(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for topic in (b"a.1", b"a.2", b"b.x", b"\xff"):
            retain(site.broker, topic, b"\xff" if topic == b"b.x" else b"<b>")
        base = "vhosts/%2F/retained"
        _, found = await site.ask("GET", base)
        assert ([item["topic"] for item in found["items"]], found["next"]) == (
            ["a/1", "a/2", "b/x"],
            None,
        )
        _, found = await site.ask("GET", base + "?filter=a/%23&limit=1")
        assert ([item["topic"] for item in found["items"]], found["next"]) == (["a/1"], "a/1")
        _, found = await site.ask("GET", base + "?filter=a/%23&limit=1&after=a/1")
        assert [item["topic"] for item in found["items"]] == ["a/2"]
        _, found = await site.ask("GET", base + "/a%2F1")
        assert (found["payload"], found["payload_base64"]) == ("<b>", "PGI+")
        _status, found = await site.ask("GET", base + "/b%2Fx")
        assert (found["payload"], found["payload_base64"]) == (None, "/w==")
        assert await site.ask("DELETE", base + "/a%2F1") == (204, None)
        assert (await site.ask("GET", base + "/a%2F1"))[0] == 404
        for wrong in ("a%23", "%23/a", "a%00"):
            assert (await site.ask("GET", f"{base}?filter={wrong}"))[0] == 400


async def test_the_overview_counts_what_there_is(tmp_path: Path) -> None:
    async with serve(tmp_path, protocols=["mqtt"]) as site:
        vhost = site.broker.vhost("/")
        vhost.declare_queue("q")
        vhost.declare_stream("s")
        retain(site.broker, b"a", b"x")
        _, found = await site.ask("GET", "overview")
        assert (found["queues"], found["streams"], found["retained_messages"]) == (1, 1, 1)
        # The native one is there for clients inside the program too.
        assert [protocol["name"] for protocol in found["protocols"]] == ["http", "mqtt", "native"]
        assert await site.ask("GET", "whoami", "ann") == (
            200,
            {"name": "ann", "tags": ["monitoring"], "has_own_keys": True},
        )
        assert await site.names("listeners", "ann") == ["http", "mqtt"]
        _, storage = await site.ask("GET", "storage")
        assert storage["kind"] == "disk"
        assert storage["disk"]["journal_files"] == 1
        assert storage["disk"]["syncs"]["count"] == storage["disk"]["batches"]
        _status, found = await site.ask("GET", "alarms")
        assert [alarm["resource"] for alarm in found["items"]] == ["disk", "memory"]
        assert await site.ask("GET", "openapi.json", "") == (200, DOCUMENT)


async def test_a_queue_is_declared_shown_purged_and_deleted(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        path = "vhosts/%2F/queues/q%2F1"
        body = {"arguments": {"x-max-length": 5, "x-queue-type": "quorum"}}
        assert await site.ask("PUT", path, json=body) == (201, None)
        assert await site.ask("PUT", path, json=body) == (204, None)
        assert (await site.ask("PUT", path, json={"durable": False}))[0] == 409
        queue = site.broker.vhost("/").queues["q/1"]
        queue.accept(Message(PROTOCOL_NONE, Address("", b"q/1"), b"", b"12", 1, True, 1))
        _, found = await site.ask("GET", path)
        assert (found["type"], found["ready"], found["ready_bytes"]) == ("quorum", 1, 2)
        assert found["counters"]["published"] == 1
        assert (await site.ask("DELETE", path + "?if_empty=true"))[0] == 409
        assert await site.ask("DELETE", path + "/contents") == (200, {"messages": 1})
        assert await site.names("queues") == ["q/1"]
        assert await site.ask("DELETE", path + "?if_empty=true&if_unused=true") == (204, None)
        for method in ("GET", "DELETE"):
            assert (await site.ask(method, path))[0] == 404


async def test_an_exchange_is_declared_bound_unbound_and_deleted(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        path = "vhosts/%2F/exchanges/x"
        assert await site.ask("PUT", path, json={"type": "direct"}) == (201, None)
        assert (await site.ask("PUT", path, json={"type": "fanout"}))[0] == 409
        assert (await site.ask("GET", path))[1]["type"] == "direct"
        assert (await site.ask("GET", "vhosts/%2F/exchanges/amq.default"))[1]["name"] == ""
        assert "x" in await site.names("exchanges")
        bindings = "vhosts/%2F/bindings"
        wanted = {"source": "x", "destination": "q", "key_base64": "/w=="}
        assert await site.ask("POST", bindings, json=wanted) == (201, None)
        assert await site.ask("POST", bindings, json=wanted) == (204, None)
        _, found = await site.ask("GET", bindings + "?source=x&destination=q")
        assert [(each["key"], each["key_base64"]) for each in found["items"]] == [
            ("\ufffd", "/w==")
        ]
        assert (await site.ask("DELETE", path + "?if_unused=true"))[0] == 409
        other = {**wanted, "arguments": {"a": 1}}
        assert (await site.ask("POST", bindings + "/delete", json=other))[0] == 404
        assert await site.ask("POST", bindings + "/delete", json=wanted) == (204, None)
        assert (await site.ask("POST", bindings + "/delete", json=wanted))[0] == 404
        wrong = {**wanted, "key_base64": "!"}
        assert (await site.ask("POST", bindings, json=wrong))[0] == 400
        assert await site.ask("DELETE", path + "?if_unused=true") == (204, None)
        assert (await site.ask("DELETE", path))[0] == 404
        assert (await site.ask("DELETE", "vhosts/%2F/exchanges/amq.topic"))[0] == 403


async def test_a_binding_that_is_refused_is_so_for_want_of_permission(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("mine")
        await site.ask("PUT", "users/new", json={"password": "p", "tags": ["management"]})
        patterns = {"configure": "", "write": "^mine$", "read": "^mine$"}
        await site.ask("PUT", "users/new/permissions/%2F", json=patterns)
        to_mine = {"source": EVENT_EXCHANGE, "destination": "mine", "key": "#"}
        from_topic = {"source": "amq.topic", "destination": EVENT_EXCHANGE, "key": "#"}
        for user, wanted in (
            ("new", to_mine),
            ("new", {**to_mine, "source": "amq.topic"}),
            # Nobody leads anything to events.
            ("root", {**from_topic, "destination_kind": "exchange"}),
        ):
            status, found = await site.ask("POST", "vhosts/%2F/bindings", user, json=wanted)
            assert (status, found["type"]) == (403, "urn:trivium:problem:access-refused")
        assert await site.ask("POST", "vhosts/%2F/bindings", json=to_mine) == (201, None)


async def test_a_connection_is_shown_with_its_consumers_and_closed(tmp_path: Path) -> None:
    async with serve(tmp_path, protocols=["native"]) as site:
        site.broker.vhost("/").declare_queue("q")
        address = site.broker.listeners["native"]
        async with (
            trivium_native.connect(f"trivium://man:p@{address}", reconnect=False) as client,
            client.consume("q") as consumer,
        ):
            assert (await site.ask("GET", "connections", "pol"))[1]["items"] == []
            (name,) = await site.names("connections", "man")
            path = "connections/" + quote(name, safe="")
            _, found = await site.ask("GET", path, "man")
            assert (found["user"], found["vhost"], found["state"]) == ("man", "/", "running")
            assert (await site.ask("GET", path, "pol"))[0] == 403
            _, found = await site.ask("GET", "consumers", "ann")
            assert [(each["queue"], each["connection"]) for each in found["items"]] == [("q", name)]
            own = quote(name, safe="")
            for query, count in {
                f"connection={own}&vhost=%2F&queue=q": 1,
                "connection=other": 0,
                "vhost=other": 0,
                "queue=other": 0,
            }.items():
                found = (await site.ask("GET", f"consumers?{query}"))[1]["items"]
                assert len(found) == count, query
            assert (await site.ask("GET", f"channels?connection={own}"))[1]["items"] == []
            assert (await site.ask("DELETE", path, "pol"))[0] == 403
            assert (await site.ask("DELETE", path, "ann"))[0] == 403, "who watches ends nothing"
            assert await site.ask("DELETE", path, "man") == (204, None)
            with pytest.raises(ClosedByOperator, match="closed by an operator"):
                await anext(aiter(consumer))
        assert (await site.ask("GET", path))[0] == 404


async def test_a_user_is_made_given_permissions_keys_and_limits_and_deleted(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as site:
        body: dict[str, Any] = {
            "password": "p",
            "tags": ["management"],
            "limits": {"max-queues": 3},
        }
        assert await site.ask("PUT", "users/new", json={**body, "roles": ["r"]}) == (201, None)
        assert await site.ask("GET", "whoami", "new") == (
            200,
            {"name": "new", "tags": ["management"], "has_own_keys": True},
        )
        assert await site.ask("PUT", "users/new", json={"tags": []}) == (204, None)
        _, found = await site.ask("GET", "users/new")
        assert (found["tags"], found["limits"], found["roles"]) == ([], {"max-queues": 3}, ["r"])
        assert (await site.ask("PUT", "users/root", json=body))[0] == 403
        assert (await site.ask("PUT", "users/odd", json={"limits": {"odd": 1}}))[0] == 409
        assert (await site.ask("PUT", "users/odd", json={"password": ""}))[0] == 422
        assert await site.names("users") == sorted([*USERS, "guest", "new"])
        patterns = {"configure": "", "write": "^a", "read": ".*"}
        path = "users/new/permissions/%2F"
        assert await site.ask("PUT", path, json=patterns) == (201, None)
        for query, count in (("user=new", 1), ("user=new&vhost=%2F", 1), ("user=new&vhost=x", 0)):
            _, found = await site.ask("GET", f"permissions?{query}")
            assert len(found["items"]) == count
        _, found = await site.ask("GET", "permissions?name=new")
        assert {"user": "new", "vhost": "/", **patterns} in found["items"]
        assert await site.ask("DELETE", path) == (204, None)
        assert (await site.ask("DELETE", path))[0] == 404
        path = "users/new/topic-permissions/%2F/amq.topic"
        topics = {"write": "^a", "read": "^b"}
        assert await site.ask("PUT", path, json=topics) == (201, None)
        assert (await site.ask("GET", "topic-permissions?user=x"))[1]["items"] == []
        _, found = await site.ask("GET", "topic-permissions?user=new&vhost=%2F")
        assert found["items"] == [{"user": "new", "vhost": "/", "exchange": "amq.topic", **topics}]
        assert await site.ask("DELETE", path) == (204, None)
        status, made = await site.ask("POST", "users/new/keys", json={"scopes": ["read:*/*"]})
        assert (status, made["scopes"]) == (201, ["read:*/*"])
        _, found = await site.ask("GET", "users/new/keys")
        assert [key["id"] for key in found["items"]] == [made["id"]]
        assert (await site.ask("GET", "keys"))[1]["items"] == found["items"]
        assert await site.ask("DELETE", f"keys/{made['id']}") == (204, None)
        assert (await site.ask("DELETE", f"keys/{made['id']}"))[0] == 404
        assert await site.ask("DELETE", "users/new") == (204, None)
        assert (await site.ask("GET", "users/new"))[0] == 404


async def test_a_user_is_only_made_or_only_changed_where_that_is_asked_for(tmp_path: Path) -> None:
    new, known = {"If-None-Match": "*"}, {"If-Match": "*"}
    async with serve(tmp_path) as site:
        bodies: list[dict[str, Any]] = [{"tags": []}, {"password": "p"}]
        for body in bodies:
            asked: dict[str, Any] = {"json": body, "headers": known}
            assert (await site.ask("PUT", "users/new", **asked))[0] == 412
            asked["headers"] = new
            assert (await site.ask("PUT", "users/new", **asked))[0] == 201
            status, found = await site.ask("PUT", "users/new", **asked)
            assert (status, found["detail"]) == (412, "user 'new' exists already")
            asked["headers"] = known
            assert (await site.ask("PUT", "users/new", **asked))[0] == 204
            assert (await site.ask("DELETE", "users/new"))[0] == 204


@pytest.mark.parametrize("condition", ["If-Match", "If-None-Match"])
async def test_conditions_of_changes_are_that_it_is_there_or_not(
    tmp_path: Path, condition: str
) -> None:
    async with serve(tmp_path) as site:
        asked: dict[str, Any] = {"json": {"tags": []}, "headers": {condition: '"a"'}}
        status, found = await site.ask("PUT", "users/new", **asked)
        assert (status, found["detail"]) == (400, f"'{condition}' is * here")
        assert (await site.ask("GET", "users/new"))[0] == 404


async def test_of_two_who_make_a_user_at_a_time_one_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        makes = (
            site.ask("PUT", "users/new", json={"password": word}, headers={"If-None-Match": "*"})
            for word in ("p", "q")
        )
        assert sorted([status for status, _ in await asyncio.gather(*makes)]) == [201, 412]


#: Where a server may know users by names that the broker does not.
STRANGERS = HttpAuthConfig(url="http://127.0.0.1:1/")


async def test_limits_are_set_as_a_whole_of_users_and_virtual_hosts(tmp_path: Path) -> None:
    async with serve(tmp_path, http_auth=STRANGERS) as site:
        for path, name in (("users/of-a-file", "of-a-file"), ("vhosts/%2F", "/")):
            limits = {"max-queues": 3}
            assert await site.ask("PUT", f"{path}/limits", json={"limits": limits}) == (204, None)
            found = await site.ask("GET", f"{path}/limits")
            assert found == (200, {"name": name, "limits": limits})
            assert await site.ask("PUT", f"{path}/limits", json={"limits": {}}) == (204, None)
            found = await site.ask("GET", f"{path}/limits")
            assert found == (200, {"name": name, "limits": {}})
        assert (await site.ask("PUT", "users/root/limits", json={"limits": {}}))[0] == 403
        assert (await site.ask("PUT", "vhosts/none/limits", json={"limits": {}}))[0] == 404


async def test_whom_only_others_know_is_permitted_by_name_in_one_or_all_virtual_hosts(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, http_auth=STRANGERS) as site:
        patterns = {"configure": "", "write": "^a", "read": ".*"}
        for vhost in ("%2F", "*"):
            path = f"users/of-a-token/permissions/{vhost}"
            assert await site.ask("PUT", path, json=patterns) == (201, None)
            _, found = await site.ask("GET", "permissions")
            rows = [row for row in found["items"] if row["user"] == "of-a-token"]
            assert [row["vhost"] for row in rows] == [vhost.replace("%2F", "/")]
            assert await site.ask("DELETE", path) == (204, None)
        assert (await site.ask("PUT", "users/x/permissions/none", json=patterns))[0] == 404


async def test_nothing_is_set_for_a_name_that_nobody_has(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        patterns = {"configure": "", "write": "^a", "read": ".*"}
        for path, body in (
            ("permissions/%2F", patterns),
            ("topic-permissions/%2F/amq.topic", {"write": "", "read": ""}),
            ("limits", {"limits": {"max-queues": 3}}),
        ):
            status, found = await site.ask("PUT", f"users/nobody/{path}", json=body)
            assert (status, found["detail"]) == (404, "no user 'nobody'")


async def test_a_role_is_given_and_taken(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        body = {"permissions": {"/": {"read": ".*"}}, "topic_permissions": {"/": {"amq.topic": {}}}}
        assert await site.ask("PUT", "roles/r", json=body) == (201, None)
        _, found = await site.ask("GET", "roles/r")
        assert found["permissions"] == {"/": {"configure": "", "write": "", "read": ".*"}}
        assert await site.ask("PUT", "users/new", json={}) == (201, None)
        assert await site.ask("PUT", "roles/r/users/new") == (201, None)
        assert await site.ask("PUT", "roles/r/users/new") == (204, None)
        assert (await site.ask("GET", "users/new"))[1]["roles"] == ["r"]
        assert await site.ask("DELETE", "roles/r/users/new") == (204, None)
        assert (await site.ask("DELETE", "roles/r/users/new"))[0] == 404
        assert (await site.ask("PUT", "roles/r/users/root"))[0] == 403


async def test_a_role_is_made_shown_and_deleted(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        patterns = {"configure": "", "write": "^a", "read": ".*"}
        body = {
            "permissions": {"/": patterns},
            "topic_permissions": {"/": {"amq.topic": {"write": "^a", "read": "^b"}}},
            "acl": ["topic read a/#"],
        }
        assert await site.ask("PUT", "roles/r", json=body) == (201, None)
        assert await site.ask("PUT", "roles/r", json=body) == (204, None)
        assert await site.ask("GET", "roles/r") == (200, {"name": "r", **body})
        assert await site.names("roles") == ["r"]
        assert (await site.ask("PUT", "roles/r", json={"acl": ["odd"]}))[0] == 409
        assert await site.ask("DELETE", "roles/r") == (204, None)
        assert (await site.ask("GET", "roles/r"))[0] == 404


async def test_live_figures_are_sent_as_events_with_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.observability.http.EVENT_SECONDS", 0)
    async with serve(tmp_path, protocols=["mqtt"]) as site:
        status, found = await site.ask("GET", "live?count=3")
        assert status == 200
        protocols = len(found[0]["overview"]["protocols"])
        assert [len(event["rates"]) for event in found] == [0, protocols, protocols]
        assert found[0]["overview"]["vhosts"] == 1


@pytest.mark.parametrize("cause", ["deleted", "password", "tags", "key", "expired", "token"])
async def test_live_figures_end_when_what_the_client_came_with_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr("trivium.observability.http.EVENT_SECONDS", 0)
    monkeypatch.setattr("trivium.management.rest.live.MAX_EVENTS", 10**9)
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    tokens = JwtConfig(key_file=str(tmp_path / "secret"), scopes_claim="scope")
    async with serve(tmp_path, jwt=tokens) as site:
        user: dict[str, Any] = {"password": "p", "tags": ["monitoring"]}
        assert (await site.ask("PUT", "users/new", json=user))[0] == 201
        shown = authorization("new")
        if cause in ("key", "expired"):
            body = {"expires_at": time.time_ns() // 1_000_000 + 60_000}
            _, key = await site.ask("POST", "users/new/keys", json=body)
            shown = {"Authorization": "Bearer " + key["key"]}
        if cause == "token":
            claims = {"sub": "new", "exp": time.time() + 60, "scope": "tag:monitoring"}
            shown = {"Authorization": "Bearer " + jwt.encode(claims, SECRET, "HS256")}
        async with site.open("live", shown) as answer:
            assert (await answer.content.readline()) == b"event: figures\n"
            if cause == "deleted":
                await site.ask("DELETE", "users/new")
            elif cause == "key":
                await site.ask("DELETE", f"keys/{key['id']}")
            elif cause in ("expired", "token"):
                # With what clocks may differ by.
                later = time.time_ns() + 121 * 10**9
                clock = SimpleNamespace(time_ns=lambda: later, monotonic_ns=time.monotonic_ns)
                monkeypatch.setattr("trivium.management.rest.live.time", clock)
            else:
                user |= {"password": "q"} if cause == "password" else {"tags": ["management"]}
                assert (await site.ask("PUT", "users/new", json=user))[0] == 204
            async with asyncio.timeout(20):
                await answer.read()


async def test_a_client_of_live_figures_that_is_gone_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.observability.http.EVENT_SECONDS", 0)
    monkeypatch.setattr("trivium.management.places.MAX_PLACES", 1)
    async with serve(tmp_path) as site:
        async with site.open("live") as answer:
            assert (await answer.content.readline()) == b"event: figures\n"
            assert (await site.ask("GET", "live?count=1"))[0] == 429
        while (await site.ask("GET", "live?count=1"))[0] != 200:
            pass


async def test_live_figures_end_where_another_user_needs_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.observability.http.EVENT_SECONDS", 0.01)
    monkeypatch.setattr("trivium.management.places.MAX_PLACES", 2)
    monkeypatch.setattr("trivium.management.places.BEHIND_EVENTS", 10**9)
    async with serve(tmp_path) as site, site.open("live") as first, site.open("live") as second:
        assert (await second.content.readline()) == b"event: figures\n"
        assert (await site.ask("GET", "live?count=1"))[0] == 429
        async with site.open("live", authorization("ann")) as other:
            # To its end, which is that of an answer.
            assert (await first.read()).endswith(b"\n\n")
            assert (await other.content.readline()) == b"event: figures\n"
            assert (await site.ask("GET", "live?count=1"))[0] == 429


async def test_a_client_that_takes_no_figures_gives_its_place_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.observability.http.EVENT_SECONDS", 0)
    monkeypatch.setattr("trivium.management.rest.live.MAX_EVENTS", 10**9)
    monkeypatch.setattr("trivium.management.places.MAX_PLACES", 1)
    async with serve(tmp_path) as site:
        host, _, port = site.broker.listeners["http"].rpartition(":")
        shown = authorization("root")["Authorization"]
        loop = asyncio.get_running_loop()
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.setblocking(False)
            await loop.sock_connect(silent, (host, int(port)))
            head = f"GET /api/v1/live HTTP/1.1\r\nHost: {host}\r\nAuthorization: {shown}"
            await loop.sock_sendall(silent, f"{head}\r\n\r\n".encode())
            assert (await loop.sock_recv(silent, 15)) == b"HTTP/1.1 200 OK"
            async with asyncio.timeout(20):
                while (await site.ask("GET", "live?count=1"))[0] != 200:
                    pass


async def test_a_body_has_a_bounded_number_of_values(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        path = "vhosts/%2F/exchanges/amq.topic/messages"
        for count, status in ((FEW_VALUES - 9, 202), (FEW_VALUES, 413)):
            body: dict[str, Any] = {"messages": [{"key": "k", "payload_json": [0] * count}]}
            assert (await site.ask("POST", path, json=body))[0] == status
        # Definitions have more.
        body = {"users": [], "of_another_broker": [0] * FEW_VALUES}
        assert (await site.ask("POST", "definitions", json=body))[0] == 200


JSON = {"Content-Type": "application/json"}
TWICE = b'{"arguments":{"x-max-length":1,"x-max-length":2}}'
REFUSED: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "none", {}, 404),
    ("GET", "vhosts/no", {}, 404),
    ("GET", "vhosts/%FF", {}, 400),
    ("POST", "vhosts/%2F", {}, 405),
    ("GET", "overview?odd=1", {}, 400),
    ("GET", "streams?page=0", {}, 400),
    ("GET", "streams?page=x", {}, 400),
    ("GET", "streams?page=2", {}, 404),
    ("GET", "streams?page_size=501", {}, 400),
    ("GET", "streams?sort_reverse=yes", {}, 400),
    ("GET", "streams?sort=nope", {}, 400),
    ("GET", "streams?page=1&page=2", {}, 400),
    ("GET", "streams?page=1&page=1", {}, 400),
    ("GET", "streams?sort=records.nope", {}, 400),
    ("GET", "connections?sort=counters.nope", {}, 400),
    ("GET", "overview", {"json": {}}, 400),
    ("PUT", "vhosts/x", {"data": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
    ("PUT", "vhosts/x", {"data": {"description": "form"}}, 415),
    ("PUT", "vhosts/x", {"data": b"{", "headers": {"Content-Type": "application/json"}}, 400),
    ("PUT", "vhosts/x", {"data": b'{"tags":[],"tags":[]}', "headers": JSON}, 400),
    ("PUT", "vhosts/%2F/queues/x", {"data": TWICE, "headers": JSON}, 400),
    ("PUT", "vhosts/%2F/queues/x", {"json": {"arguments": {"é" * 128: 1}}}, 400),
    ("PUT", "vhosts/x", {"json": []}, 422),
    ("PUT", "vhosts/x", {"json": {"odd": 1}}, 422),
    ("PUT", "vhosts/x", {"json": {"description": 1}}, 422),
    ("PUT", "vhosts/x", {"json": {"description": "d" * 1025}}, 422),
    ("PUT", "vhosts/x", {"json": {"description": "d" * 70_000}}, 413),
    ("PUT", "vhosts/x", {"json": {"tags": ["a"] * 33}}, 422),
    ("PUT", "vhosts/x", {"json": {"default_queue_type": "odd"}}, 422),
    ("PUT", "vhosts/%2F/streams/s", {"json": {"partitions": 0}}, 422),
    ("PUT", "vhosts/%2F/streams/s", {"json": {"partitions": True}}, 422),
    ("PUT", "vhosts/%2F/streams/s", {"json": {"arguments": {"x-max-age": "odd"}}}, 409),
    ("PUT", "vhosts/%2F/policies/p", {"json": {"pattern": "a"}}, 422),
    ("PUT", "vhosts/%2F/policies/p", {"json": {"pattern": "(", "definition": {"a": 1}}}, 409),
    ("DELETE", "vhosts/%2F/groups/no", {}, 404),
]


async def test_what_cannot_be_is_refused_by_a_problem(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        _, found = await site.ask("GET", "none")
        assert found["type"] == "urn:trivium:problem:not-found"
        _, found = await site.ask("PUT", "vhosts/x", json={"odd": 1})
        assert found["detail"] == "the body has an unknown field 'odd'"
        for method, path, options, wanted in REFUSED:
            status, found = await site.ask(method, path, **options)
            assert status == wanted, (method, path, options, found)
        assert await site.names("vhosts") == ["/"]


@pytest.mark.parametrize("user", ["", "joe", "man", "pol", "ann", "root"])
async def test_each_operation_wants_its_tag(tmp_path: Path, user: str) -> None:
    tags = {"": set(), **{name: set(each.tags) for name, each in USERS.items()}}[user]
    async with serve(tmp_path) as site:
        for operation in ENDPOINTS:
            if operation.path == "v1/vhosts/{vhost}" and operation.method == "DELETE":
                path = "vhosts/nothing"
            else:
                path = filled(operation.path)
            if path == "users/nothing/keys":
                # Those of others are an administrator's.
                path = f"users/{user or 'joe'}/keys"
            if path == "live":
                path = "live?count=1"
            status, found = await site.ask(operation.method, path, user, headers=said(operation))
            if not operation.tags:
                assert status == 200
            elif operation.tags == CLIENTS:
                # Those without credentials are admitted from this machine.
                assert (status == 403) is (user in ("joe", "ann")), (operation, found)
            elif not user:
                assert status == 401
            elif not tags & operation.tags:
                assert (status, found["type"]) == (403, "urn:trivium:problem:access-refused"), path
            elif user != "ann":
                assert status not in (401, 403), (operation, found)


async def test_each_operation_in_a_virtual_host_wants_a_permission_there(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for operation in ENDPOINTS:
            if "vhosts/{vhost}/" not in operation.path:
                continue
            # A watcher sees what clients do, and no more.
            path = filled(operation.path)
            status, found = await site.ask(operation.method, path, "ann", headers=said(operation))
            watched = operation.vhost == "watched"
            assert (status == 403) is not watched, (operation, found)


# What HTTP says of answers


async def test_who_has_what_is_shown_is_told_so(tmp_path: Path) -> None:
    """RFC 9110, 13.1.2 and 15.4.5."""
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q")
        for path in ("vhosts/%2F/queues/q", "queues?name=q"):
            async with site.open(path) as answer:
                tag = answer.headers["ETag"]
                assert (answer.status, tag[0], tag[-1]) == (200, '"', '"')
            for known in (tag, f'"other", W/{tag}'):
                async with site.open(
                    path, {**authorization("root"), "If-None-Match": known}
                ) as same:
                    assert (same.status, same.headers["ETag"]) == (304, tag)
                    assert await same.read() == b""
        publish = "vhosts/%2F/exchanges/amq.default/messages"
        await site.ask("POST", publish, json={"messages": [{"key": "q"}]})
        async with site.open(path, {**authorization("root"), "If-None-Match": tag}) as other:
            assert other.status == 200
        # It is no way around the password.
        async with site.open(path, {"If-None-Match": tag}) as refused:
            assert refused.status == 401


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("", 200),
        ("*/*", 200),
        ("application/*", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/html, application/xhtml+xml, */*;q=0.8", 200),
        ("text/event-stream", 200),
        ("text/html", 406),
        ("application/xml, text/plain", 406),
        ("application/json;q=0, text/html", 406),
        ("application/json;q=0.0, */*", 200),
        ("*/*;q=0", 406),
    ],
)
async def test_who_takes_no_json_is_told_so(tmp_path: Path, accept: str, status: int) -> None:
    """RFC 9110, 12.5.1."""
    shown = {**authorization("root"), "Accept": accept}
    async with serve(tmp_path) as site, site.open("overview", shown) as answer:
        assert answer.status == status
        kind = "json" if status == 200 else "problem+json"
        assert answer.content_type == f"application/{kind}"


async def test_a_page_asks_what_it_need_not_offer(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await site.ask("PUT", "users/eve", json={"password": "p", "tags": ["management"]})

        async def allowed(query: str, user: str = "eve") -> Any:
            status, found = await site.ask("GET", f"vhosts/%2F/access?{query}", user)
            return found if status == 200 else status

        # She has no permission there.
        assert await allowed("name=jobs") == 403
        patterns = {"configure": "^$", "write": "^jobs$|^amq.topic$", "read": "^jobs$"}
        await site.ask("PUT", "users/eve/permissions/%2F", json=patterns)
        assert await allowed("name=jobs") == {"configure": False, "write": True, "read": True}
        assert await allowed("name=other") == {"configure": False, "write": False, "read": False}
        topics = {"write": "^a", "read": ".*"}
        await site.ask("PUT", "users/eve/topic-permissions/%2F/amq.topic", json=topics)
        assert await allowed("topic=a/b") == {"configure": False, "write": True, "read": False}
        assert await allowed("topic=b/a") == {"configure": False, "write": False, "read": False}
        assert await allowed("name=jobs", "root") == {
            "configure": True,
            "write": True,
            "read": True,
        }
        assert await allowed("") == await allowed("name=a&topic=b") == 400


@pytest.mark.parametrize(
    ("configure", "expected"), [("", False), ("^$", False), ("^a", True), (".*", True)]
)
async def test_a_virtual_host_says_whether_the_caller_may_make_anything(
    tmp_path: Path, configure: str, expected: bool
) -> None:
    async with serve(tmp_path) as site:
        await site.ask("PUT", "users/eve", json={"password": "p", "tags": ["management"]})
        patterns = {"configure": configure, "write": "", "read": ".*"}
        await site.ask("PUT", "users/eve/permissions/%2F", json=patterns)
        _, found = await site.ask("GET", "vhosts/%2F", "eve")
        assert found["may_configure"] is expected
        # A key narrows it.
        scopes = ["tag:management", "read:*/*"]
        _, key = await site.ask("POST", "users/eve/keys", json={"scopes": scopes})
        headers = {"Authorization": f"Bearer {key['key']}"}
        _, found = await site.ask("GET", "vhosts/%2F", "", headers=headers)
        assert found["may_configure"] is False


async def test_whoever_may_enter_every_virtual_host_is_among_those_of_each(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await site.ask("PUT", "vhosts/v", json={})
        _, found = await site.ask("GET", "permissions?vhost=v")
        every = {(each["user"], each["vhost"]) for each in found["items"]}
        assert every == {(name, "*") for name in ("guest", "root", "pol", "man")}
        mine = {"configure": "", "write": "", "read": "^x"}
        for name in ("joe2", "joe3"):
            await site.ask("PUT", f"users/{name}", json={"password": "p"})
        await site.ask("PUT", "users/joe2/permissions/v", json=mine)
        await site.ask("PUT", "users/joe2/permissions/*", json={**mine, "read": ".*"})
        topics = {"write": "", "read": "^a"}
        await site.ask("PUT", "users/joe2/topic-permissions/*/amq.topic", json=topics)
        await site.ask("PUT", "users/joe3/permissions/%2F", json=mine)

        async def compatible(path: str) -> list[dict[str, Any]]:
            url = f"http://{site.broker.listeners['http']}/api/{path}"
            async with site.client.get(url, headers=authorization("root")) as answer:
                assert answer.status == 200
                shown: list[dict[str, Any]] = await answer.json()
                return shown

        shown = await compatible("vhosts/v/permissions")
        assert {each["user"] for each in shown} == {"guest", "root", "pol", "man", "joe2"}
        assert {each["vhost"] for each in shown} == {"v"}
        assert {"user": "joe2", "vhost": "v", **mine} in shown
        wanted = {"user": "joe2", "vhost": "v", "exchange": "amq.topic", **topics}
        assert await compatible("vhosts/v/topic-permissions") == [wanted]
        assert await compatible("topic-permissions/v/joe2") == [wanted]


MADE: list[tuple[str, dict[str, Any]]] = [
    ("vhosts/new", {}),
    ("vhosts/%2F/queues/q", {}),
    ("vhosts/%2F/streams/s", {}),
    ("vhosts/%2F/exchanges/e", {"type": "topic"}),
    ("vhosts/%2F/policies/p", {"pattern": "a", "definition": {"max-length": 1}}),
    ("vhosts/%2F/operator-policies/p", {"pattern": "a", "definition": {"max-length": 1}}),
    ("roles/r", {"permissions": {}}),
    ("users/u", {"password": "p"}),
]


async def test_what_is_made_by_put_may_be_there_or_not_as_the_client_says(tmp_path: Path) -> None:
    """RFC 9110, 13.1.1 and 13.1.2."""
    new, known = {"If-None-Match": "*"}, {"If-Match": "*"}
    async with serve(tmp_path) as site:
        for path, body in MADE:
            for headers, wanted in ((known, 412), (new, 201), (new, 412), (known, 204)):
                status, found = await site.ask("PUT", path, json=body, headers=headers)
                assert status == wanted, (path, headers, found)
                assert status < 400 or found["type"].endswith(":not-as-expected")
