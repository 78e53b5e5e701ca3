"""Each operation over HTTP that changes or ends something has a line in the audit log."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from yarl import URL

from tests.support.rest import authorization, serve
from trivium.management.management import ENDPOINTS
from trivium_native import connect

#: What has no line, and why.
EXEMPT: dict[tuple[str, str], str] = {
    ("PUT", "feature-flags/{name}/enable"): "is refused always",
    ("POST", "rebalance/queues"): "does nothing",
    ("POST", "queues/{vhost}/{name}/actions"): "does nothing",
    ("POST", "exchanges/{vhost}/{name}/publish"): "publishes",
    ("POST", "v1/vhosts/{vhost}/exchanges/{exchange}/messages"): "publishes",
    ("POST", "v1/vhosts/{vhost}/exchanges/{exchange}/messages/raw"): "publishes",
    ("POST", "v1/vhosts/{vhost}/topics/messages"): "publishes",
    ("POST", "queues/{vhost}/{name}/get"): "takes messages, as consumers do",
    ("POST", "v1/vhosts/{vhost}/queues/{queue}/leases"): "takes messages, as consumers do",
    ("POST", "v1/vhosts/{vhost}/queues/{queue}/leases/settle"): "settles, as consumers do",
    ("POST", "v1/vhosts/{vhost}/groups/{group}/members/{member}/poll"): "reads, as members do",
    ("POST", "v1/vhosts/{vhost}/groups/{group}/members/{member}/commit"): "commits, as they do",
}

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
POLICY = {"pattern": "x", "definition": {"max-length": 5}}
OPERATORS = {"pattern": "x", "definition": {"max-length": 5}}
NODE = "trivium@localhost"
VHOST = "v1/vhosts/%2F"
BINDING = {"source": "e", "destination": "q", "key": "k"}

#: In this order, each with the event of its line: method, pattern, path, body.
OPERATIONS: list[tuple[str, str, str, Any, str]] = [
    ("PUT", "cluster-name", "", {"name": "c"}, "global-parameter.set"),
    *(
        ("DELETE", path, path.format(node=NODE), None, "user.authentication.reset")
        for path in ("auth/attempts/{node}", "auth/attempts/{node}/source")
    ),
    ("PUT", "vhosts/{vhost}", "vhosts/farm", {}, "vhost.created"),
    ("DELETE", "vhosts/{vhost}", "vhosts/farm", None, "vhost.deleted"),
    ("PUT", "users/{user}", "users/bob", {"password": "p", "tags": ""}, "user.created"),
    (
        *("PUT", "permissions/{vhost}/{user}", "permissions/%2F/bob", ALL),
        "permission.set",
    ),
    ("DELETE", "permissions/{vhost}/{user}", "permissions/%2F/bob", None, "permission.set"),
    (
        *("PUT", "topic-permissions/{vhost}/{user}", "topic-permissions/%2F/bob"),
        *({"exchange": "amq.topic", "write": "a", "read": "a"}, "permission.set"),
    ),
    (
        *("DELETE", "topic-permissions/{vhost}/{user}/{exchange}"),
        *("topic-permissions/%2F/bob/amq.topic", None, "permission.set"),
    ),
    (
        *("PUT", "topic-permissions/{vhost}/{user}", "topic-permissions/%2F/bob"),
        *({"exchange": "amq.topic", "write": "a", "read": "a"}, "permission.set"),
    ),
    (
        *("DELETE", "topic-permissions/{vhost}/{user}", "topic-permissions/%2F/bob"),
        *(None, "permission.set"),
    ),
    (
        *("PUT", "user-limits/{user}/{limit}", "user-limits/bob/max-connections"),
        *({"value": 3}, "user.limits.set"),
    ),
    (
        *("DELETE", "user-limits/{user}/{limit}", "user-limits/bob/max-connections"),
        *(None, "user.limits.set"),
    ),
    ("DELETE", "users/{user}", "users/bob", None, "user.deleted"),
    ("PUT", "users/{user}", "users/bob", {"password": "p", "tags": ""}, "user.created"),
    ("POST", "users/bulk-delete", "", {"users": ["bob"]}, "user.deleted"),
    ("PUT", "exchanges/{vhost}/{name}", "exchanges/%2F/e", {"type": "direct"}, "exchange.created"),
    ("DELETE", "exchanges/{vhost}/{name}", "exchanges/%2F/e", None, "exchange.deleted"),
    ("PUT", "queues/{vhost}/{name}", "queues/%2F/q", {}, "queue.created"),
    ("DELETE", "queues/{vhost}/{name}/contents", "queues/%2F/q/contents", None, "queue.purged"),
    ("DELETE", "queues/{vhost}/{name}", "queues/%2F/q", None, "queue.deleted"),
    (
        *("PUT", "v1/vhosts/{vhost}/exchanges/{exchange}", f"{VHOST}/exchanges/e"),
        *({"type": "direct"}, "exchange.created"),
    ),
    ("PUT", "v1/vhosts/{vhost}/queues/{queue}", f"{VHOST}/queues/q", {}, "queue.created"),
    (
        *("DELETE", "v1/vhosts/{vhost}/queues/{queue}/contents", f"{VHOST}/queues/q/contents"),
        *(None, "queue.purged"),
    ),
    (
        *("POST", "bindings/{vhost}/e/{source}/q/{queue}", "bindings/%2F/e/e/q/q"),
        *({"routing_key": "k"}, "binding.created"),
    ),
    (
        *("DELETE", "bindings/{vhost}/e/{source}/q/{queue}/{key}", "bindings/%2F/e/e/q/q/k"),
        *(None, "binding.deleted"),
    ),
    (
        *("POST", "bindings/{vhost}/e/{source}/e/{exchange}", "bindings/%2F/e/e/e/amq.topic"),
        *({"routing_key": "k"}, "binding.created"),
    ),
    (
        *("DELETE", "bindings/{vhost}/e/{source}/e/{exchange}/{key}"),
        *("bindings/%2F/e/e/e/amq.topic/k", None, "binding.deleted"),
    ),
    ("POST", "v1/vhosts/{vhost}/bindings", f"{VHOST}/bindings", BINDING, "binding.created"),
    (
        *("POST", "v1/vhosts/{vhost}/bindings/delete", f"{VHOST}/bindings/delete", BINDING),
        "binding.deleted",
    ),
    ("DELETE", "v1/vhosts/{vhost}/queues/{queue}", f"{VHOST}/queues/q", None, "queue.deleted"),
    (
        *("DELETE", "v1/vhosts/{vhost}/exchanges/{exchange}", f"{VHOST}/exchanges/e", None),
        "exchange.deleted",
    ),
    ("DELETE", "connections/{name}", "connections/{one}", None, "connection.ended"),
    (
        *("DELETE", "connections/username/{user}", "connections/username/man", None),
        "connection.ended",
    ),
    ("DELETE", "v1/connections/{connection}", "v1/connections/{one}", None, "connection.ended"),
    ("PUT", "policies/{vhost}/{name}", "policies/%2F/p", POLICY, "policy.set"),
    ("DELETE", "policies/{vhost}/{name}", "policies/%2F/p", None, "policy.cleared"),
    (
        *("PUT", "operator-policies/{vhost}/{name}", "operator-policies/%2F/p", OPERATORS),
        "operator-policy.set",
    ),
    (
        *("DELETE", "operator-policies/{vhost}/{name}", "operator-policies/%2F/p", None),
        "operator-policy.cleared",
    ),
    (
        *("PUT", "parameters/{component}/{vhost}/{name}"),
        *("parameters/operator_policy/%2F/p", {"value": OPERATORS}, "operator-policy.set"),
    ),
    (
        *("DELETE", "parameters/{component}/{vhost}/{name}"),
        *("parameters/operator_policy/%2F/p", None, "operator-policy.cleared"),
    ),
    (
        *("PUT", "parameters/{component}/{vhost}/{name}"),
        *("parameters/vhost-limits/%2F/limits", {"value": {"max-queues": 50}}, "vhost.set"),
    ),
    (
        *("DELETE", "parameters/{component}/{vhost}/{name}"),
        *("parameters/vhost-limits/%2F/limits", None, "vhost.set"),
    ),
    (
        *("PUT", "global-parameters/{name}", "global-parameters/x", {"value": 1}),
        "global-parameter.set",
    ),
    (
        *("DELETE", "global-parameters/{name}", "global-parameters/x", None),
        "global-parameter.deleted",
    ),
    (
        *("PUT", "vhost-limits/{vhost}/{limit}", "vhost-limits/%2F/max-queues", {"value": 50}),
        "vhost.set",
    ),
    (
        *("DELETE", "vhost-limits/{vhost}/{limit}", "vhost-limits/%2F/max-queues", None),
        "vhost.set",
    ),
    ("POST", "definitions", "", {}, "definitions.imported"),
    ("POST", "all-configuration", "", {}, "definitions.imported"),
    ("POST", "definitions/{vhost}", "definitions/%2F", {}, "definitions.imported"),
    ("POST", "v1/definitions", "", {}, "definitions.imported"),
    (
        *("POST", "v1/vhosts/{vhost}/definitions", f"{VHOST}/definitions", {}),
        "definitions.imported",
    ),
    ("PUT", "v1/vhosts/{vhost}", "v1/vhosts/farm", {}, "vhost.created"),
    ("DELETE", "v1/vhosts/{vhost}", "v1/vhosts/farm", None, "vhost.deleted"),
    (
        *("PUT", "v1/vhosts/{vhost}/limits", f"{VHOST}/limits", {"limits": {"max-queues": 5}}),
        "vhost.set",
    ),
    ("PUT", "v1/vhosts/{vhost}/tracing", f"{VHOST}/tracing", None, "vhost.tracing.on"),
    ("DELETE", "v1/vhosts/{vhost}/tracing", f"{VHOST}/tracing", None, "vhost.tracing.off"),
    ("PUT", "v1/vhosts/{vhost}/streams/{stream}", f"{VHOST}/streams/s", {}, "stream.created"),
    (
        *("PUT", "v1/vhosts/{vhost}/streams/{stream}/partitions", f"{VHOST}/streams/s/partitions"),
        *({"partitions": 2}, "stream.extended"),
    ),
    (
        *("POST", "v1/vhosts/{vhost}/groups/{group}/members", f"{VHOST}/groups/g/members"),
        *({"member": "m", "streams": ["s"]}, "group.member.joined"),
    ),
    (
        *("DELETE", "v1/vhosts/{vhost}/groups/{group}/members/{member}"),
        *(f"{VHOST}/groups/g/members/m?generation=1", None, "group.member.left"),
    ),
    (
        *("PUT", "v1/vhosts/{vhost}/groups/{group}/offsets", f"{VHOST}/groups/g/offsets"),
        *({"to": "first", "streams": ["s"]}, "group.reset"),
    ),
    ("DELETE", "v1/vhosts/{vhost}/groups/{group}", f"{VHOST}/groups/g", None, "group.deleted"),
    ("DELETE", "v1/vhosts/{vhost}/streams/{stream}", f"{VHOST}/streams/s", None, "stream.deleted"),
    (
        *("DELETE", "v1/vhosts/{vhost}/sessions/{client_id}", f"{VHOST}/sessions/c", None),
        "session.ended",
    ),
    (
        *("DELETE", "v1/vhosts/{vhost}/retained/{topic}", f"{VHOST}/retained/a%2Fb", None),
        "retained.deleted",
    ),
    (
        *("PUT", "v1/vhosts/{vhost}/operator-policies/{policy}"),
        *(f"{VHOST}/operator-policies/p", OPERATORS, "operator-policy.set"),
    ),
    (
        *("DELETE", "v1/vhosts/{vhost}/operator-policies/{policy}"),
        *(f"{VHOST}/operator-policies/p", None, "operator-policy.cleared"),
    ),
    ("PUT", "v1/vhosts/{vhost}/policies/{policy}", f"{VHOST}/policies/p", POLICY, "policy.set"),
    (
        *("DELETE", "v1/vhosts/{vhost}/policies/{policy}", f"{VHOST}/policies/p", None),
        "policy.cleared",
    ),
    ("PUT", "v1/users/{user}", "v1/users/bob", {"password": "p"}, "user.created"),
    (
        *("PUT", "v1/users/{user}/limits", "v1/users/bob/limits"),
        *({"limits": {"max-queues": 5}}, "user.limits.set"),
    ),
    ("POST", "v1/users/{user}/keys", "v1/users/bob/keys", {}, "user.key.created"),
    ("DELETE", "v1/keys/{key}", "v1/keys/{key}", None, "user.key.deleted"),
    (
        *("PUT", "v1/users/{user}/permissions/{vhost}", "v1/users/bob/permissions/%2F", ALL),
        "permission.set",
    ),
    (
        *("DELETE", "v1/users/{user}/permissions/{vhost}", "v1/users/bob/permissions/%2F"),
        *(None, "permission.set"),
    ),
    (
        *("PUT", "v1/users/{user}/topic-permissions/{vhost}/{exchange}"),
        *("v1/users/bob/topic-permissions/%2F/amq.topic", {"write": "a", "read": "a"}),
        "permission.set",
    ),
    (
        *("DELETE", "v1/users/{user}/topic-permissions/{vhost}/{exchange}"),
        *("v1/users/bob/topic-permissions/%2F/amq.topic", None, "permission.set"),
    ),
    ("PUT", "v1/roles/{role}", "v1/roles/r", {}, "role.set"),
    ("PUT", "v1/roles/{role}/users/{user}", "v1/roles/r/users/bob", None, "permission.set"),
    ("DELETE", "v1/roles/{role}/users/{user}", "v1/roles/r/users/bob", None, "permission.set"),
    ("DELETE", "v1/roles/{role}", "v1/roles/r", None, "role.deleted"),
    ("DELETE", "v1/users/{user}", "v1/users/bob", None, "user.deleted"),
]

#: those of tests/core/test_sessions.py, which need a page of a browser
OF_BROWSERS = {("POST", "v1/session"), ("DELETE", "v1/session")}


def test_every_operation_that_is_no_read_is_here_or_has_a_reason() -> None:
    all_of_them = {(each.method, each.path) for each in ENDPOINTS.all if each.method != "GET"}
    here = {(method, pattern) for method, pattern, *_ in OPERATIONS}
    assert here | set(EXEMPT) | OF_BROWSERS == all_of_them
    assert not here & set(EXEMPT)
    assert all(EXEMPT.values())


async def leave_session(at: str) -> None:
    """Leave the session ``c`` of an MQTT client."""
    host, port = at.split(":")
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 100
    who: dict[str, Any] = {"identifier": "c", "username": "man", "password": "p"}
    async with aiomqtt.Client(
        host,
        int(port),
        protocol=aiomqtt.ProtocolVersion.V5,
        clean_start=True,
        properties=properties,
        **who,
    ):
        pass


async def test_every_operation_leaves_its_line(tmp_path: Path) -> None:
    async with serve(tmp_path, protocols=["native", "mqtt"]) as site:
        broker = site.broker
        http, native = str(broker.listeners["http"]), str(broker.listeners["native"])
        told: list[str] = []
        broker.events.listen(lambda event, _: told.append(event))
        retained = {"topic": "a/b", "payload": "x", "retain": True}
        assert (await site.ask("POST", "vhosts/%2F/topics/messages", json=retained))[0] < 300
        await leave_session(str(broker.listeners["mqtt"]))
        for method, pattern, path, body, event in OPERATIONS:
            place = path or pattern
            names = {}
            held = None
            if "connection" in pattern:
                held = connect(f"trivium://man:p@{native}")
                await held.__aenter__()
                _, found = await site.ask("GET", "connections")
                names["one"] = next(
                    quote(each["name"], safe="") for each in found["items"] if each["user"] == "man"
                )
            if "{key}" in place:
                _, found = await site.ask("GET", "users/bob/keys")
                names["key"] = found["items"][0]["id"]
            told.clear()
            url = URL(f"http://{http}/api/{place.format(**names)}", encoded=True)
            options: dict[str, Any] = {} if body is None else {"json": body}
            shown = authorization("root")
            async with site.client.request(method, url, headers=shown, **options) as answer:
                assert answer.status < 300, (method, place, answer.status)
            assert event in told, (method, place, told)
            if held is not None:
                with contextlib.suppress(Exception):
                    await held.__aexit__(None, None, None)
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    written = [(line["event"], line.get("user"), line.get("protocol")) for line in lines]
    for event in {event for *_, event in OPERATIONS}:
        least = sum(each == event for *_, each in OPERATIONS)
        assert written.count((event, "root", "http")) >= least, event
