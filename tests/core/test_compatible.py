"""The HTTP API that tools for RabbitMQ know, asked over real sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import aiohttp
import aiormq
import pytest
from yarl import URL

from tests.support.authentication import MOSQUITTO_7
from tests.support.core import message
from tests.support.server import Server
from trivium.config import AuthConfig, Config, Listen, StorageConfig, UserConfig
from trivium.listen import ListenerConfig
from trivium.management import listing
from trivium.management.compatible import ENDPOINTS
from trivium.management.endpoints import (
    ADMINISTRATORS,
    ANYBODY,
    ENTERED,
    POLICIES,
    SEEN,
    USERS,
    WATCHED,
    WATCHERS,
)
from trivium.management.management import Management
from trivium.observability.api import ApiAnswer, ApiRequest
from trivium.runtime.broker import Broker
from trivium.security.granted import USER
from trivium.security.identity import Identity
from trivium.security.passwords import no_password
from trivium.security.permissions import grants_of
from trivium.streams.settings import stream_settings_of

ALL = {"/": {"configure": ".*", "write": ".*", "read": ".*"}}
#: The hash of nothing that anybody can show.
STORED = no_password()
TAGS = ("", "management", "policymaker", "monitoring", "administrator")
#: A user for each tag, and one that may not enter ``/``.
CONFIGURED = {
    **{
        tag or "none": UserConfig(password="p", tags=(tag,) if tag else (), permissions=ALL)
        for tag in TAGS
    },
    **{
        f"out-{tag or 'none'}": UserConfig(password="p", tags=(tag,) if tag else ()) for tag in TAGS
    },
}


#: What is in force for a stream.
SETTINGS = ("max_age", "max_length", "max_length_bytes", "codec", "is_compacted",
            "tombstone_retention")  # fmt: skip


class Site:
    """A broker and a client of its HTTP port."""

    def __init__(self, broker: Broker, client: aiohttp.ClientSession) -> None:
        self.broker = broker
        self._client = client
        self.headers: Any = {}

    async def ask(
        self, method: str, path: str, body: Any = None, user: str | None = "administrator"
    ) -> tuple[int, Any]:
        headers = {}
        if user is not None:
            name = user if ":" in user else f"{user}:p"
            headers["Authorization"] = "Basic " + base64.b64encode(name.encode()).decode()
        url = URL(f"http://{self.broker.listeners['http']}/api/{path}", encoded=True)
        async with self._client.request(method, url, headers=headers, json=body) as answer:
            text = await answer.text()
            self.headers = answer.headers
            if text:
                assert answer.headers["Content-Type"].startswith("application/json")
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
            return answer.status, json.loads(text) if text else None

    async def get(self, path: str, **options: Any) -> Any:
        status, found = await self.ask("GET", path, **options)
        assert status == 200, (path, status, found)
        return found

    async def put(self, path: str, body: Any = None, status: int = 201) -> None:
        assert await self.ask("PUT", path, {} if body is None else body) == (status, None), path

    async def delete(self, path: str) -> None:
        assert await self.ask("DELETE", path) == (204, None), path


@contextlib.asynccontextmanager
async def serve(**keys: Any) -> AsyncIterator[Site]:
    config = Config(
        listen={"http": Listen(0), "amqp": Listen(0)},
        storage=StorageConfig(mode="memory"),
        users=CONFIGURED,
        **keys,
    )
    async with Broker(config) as broker, aiohttp.ClientSession() as client:
        yield Site(broker, client)


# Who may ask

MESSAGE = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}

#: What stands for the braces of a path, where there is something of that name.
NAMES = {"vhost": "%2F", "user": "ann", "node": "trivium@localhost", "name": "q"}


def path_of(path: str) -> str:
    return "/".join(
        NAMES.get(part[1:-1], "x") if part.startswith("{") else part for part in path.split("/")
    )


#: The tags of users who may, by what an endpoint asks for.
MAY = {
    ANYBODY: {"none", *TAGS},
    USERS: {"management", "policymaker", "monitoring", "administrator"},
    POLICIES: {"policymaker", "administrator"},
    WATCHERS: {"monitoring", "administrator"},
    ADMINISTRATORS: {"administrator"},
}
#: The tags with which a virtual host can be looked into without a permission there.
OUTSIDE = {SEEN: {"administrator"}, WATCHED: {"monitoring", "administrator"}, ENTERED: set()}


async def test_every_endpoint_is_for_those_with_its_tags_alone() -> None:
    """The matrix of endpoints, tags and permission in the virtual host."""
    async with serve() as site:
        wrong = []
        site.broker.users.add("ann", "x")
        for endpoint in ENDPOINTS.all:
            path = path_of(endpoint.path)
            is_public = endpoint.tags == ANYBODY
            for user in (*CONFIGURED, None):
                # What is asked for makes no sense beyond that, so nothing changes.
                status, _ = await site.ask(endpoint.method, path, [], user)
                tag = (user or "").removeprefix("out-")
                is_outside = tag != (user or "")
                may = user is not None and tag in MAY[endpoint.tags]
                if is_outside and "{vhost}" in endpoint.path and endpoint.vhost:
                    may = may and tag in OUTSIDE[endpoint.vhost]
                if endpoint.path.startswith(("connections/username/", "user-limits/{user}")):
                    # Others see, and close, their own.
                    is_seen = endpoint.method == "GET"
                    may = tag in MAY[WATCHERS if is_seen else ADMINISTRATORS]
                if (status != 401) is not (may or is_public):
                    wrong.append((endpoint.method, path, user, status))
                assert status < 500 or status == 503, (endpoint.method, path, user, status)
        assert wrong == []


def test_the_tags_are_those_of_another_broker() -> None:
    """As RabbitMQ 3.10 has them, asked with users of each tag."""
    found = {
        (endpoint.method, endpoint.path): (endpoint.tags, endpoint.vhost)
        for endpoint in ENDPOINTS.all
    }
    for path in ("overview", "vhosts", "queues/{vhost}", "policies", "user-limits", "whoami"):
        assert found[("GET", path)] == (USERS, SEEN)
    for path in ("nodes", "nodes/{node}", "auth/attempts/{node}"):
        assert found[("GET", path)][0] == WATCHERS
    for path in ("users", "permissions", "definitions", "feature-flags", "vhosts/{vhost}"):
        assert found[("GET", path)][0] == ADMINISTRATORS
    for path in ("parameters", "global-parameters", "policies/{vhost}/{name}"):
        assert found[("GET", path)][0] == POLICIES
    assert found[("GET", "auth")][0] == ANYBODY


async def test_who_watches_sees_connections_of_others_and_closes_none() -> None:
    async with serve() as site:
        url = f"amqp://management:p@{site.broker.listeners['amqp']}/"
        connection = await aiormq.connect(url)
        channel = await connection.channel()
        await channel.queue_declare("q")
        await channel.basic_consume("q", lambda _: asyncio.sleep(0))
        # As with RabbitMQ 3.10, also of virtual hosts that it may not enter.
        for each in ("connections", "channels", "consumers", "consumers/%2F"):
            for user, count in (
                *(("monitoring", 1), ("out-monitoring", 1), ("management", 1)),
                *(("policymaker", 0), ("out-management", 0)),
            ):
                assert len(await site.get(each, user=user)) == count, (each, user)
        assert (await site.ask("GET", "consumers/no", user="monitoring"))[0] == 404
        (found,) = await site.get("connections", user="monitoring")
        path = "connections/" + quote(found["name"], safe="")
        for each in (path, "connections/username/management"):
            assert (await site.ask("GET", each, user="monitoring"))[0] == 200
            assert (await site.ask("DELETE", each, user="monitoring"))[0] == 401
        assert not connection.is_closed
        assert (await site.ask("DELETE", path, user="management"))[0] == 204


async def test_pages_are_in_order_as_queues_come_and_go() -> None:
    async with serve() as site:
        await site.put("vhosts/other")
        vhosts = [site.broker.vhost("/"), site.broker.vhost("other")]
        made: set[tuple[str, str]] = set()

        async def names(path: str) -> list[tuple[str, str]]:
            found: list[tuple[str, str]] = []
            for number in range(1, 100):
                page = await site.get(f"{path}?page={number}&page_size=7")
                found += [(each["vhost"], each["name"]) for each in page["items"]]
                assert page["total_count"] == page["filtered_count"]
                if number == page["page_count"]:
                    assert len(found) == page["total_count"]
                    return found
            raise AssertionError

        for step in range(6):
            for number, vhost in enumerate(vhosts):
                for name in range(step, 40, 6 + number):
                    vhost.declare_queue(f"q{name}")
                    made.add((vhost.name, f"q{name}"))
                vhost.declare_stream(f"s{step}")
                vhost.delete_queue(vhost.queues[f"q{step}"])
                made.discard((vhost.name, f"q{step}"))
            streams = {(vhost.name, f"s{each}") for vhost in vhosts for each in range(step + 1)}
            for _ in range(2):
                assert await names("queues") == sorted(made | streams)
            assert await names("v1/queues") == sorted(made)
            assert [name for _, name in await names("queues/other")] == sorted(
                name for vhost, name in made | streams if vhost == "other"
            )
        assert (await site.ask("GET", "queues?page=99"))[0] == 400
        await site.delete("vhosts/other")
        assert await names("queues") == sorted(each for each in made | streams if each[0] == "/")


async def test_lists_show_what_is_in_virtual_hosts_that_may_be_entered() -> None:
    async with serve() as site:
        await site.put("vhosts/other")
        await site.put("queues/%2F/mine", {"durable": True})
        site.broker.vhost("other").declare_queue("theirs")
        both = ["mine", "theirs"]
        for user, names in (
            ("administrator", both),
            ("monitoring", ["mine"]),
            ("out-monitoring", []),
        ):
            found = await site.get("queues?columns=name", user=user)
            assert [queue["name"] for queue in found] == names
        names = [vhost["name"] for vhost in await site.get("vhosts", user="out-monitoring")]
        assert names == ["/", "other"]
        assert await site.get("vhosts", user="out-management") == []


async def test_what_is_not_there_is_not_found() -> None:
    async with serve() as site:
        for path in (
            *("queues/%2F/no", "queues/no", "exchanges/%2F/no", "bindings/no", "users/no"),
            *("connections/no", "channels/no", "nodes/no", "policies/%2F/no", "permissions/%2F/x"),
            *("global-parameters/no", "parameters/x/%2F/no", "bindings/%2F/e/no/q/no", "no/such"),
            *("operator-policies/%2F/no", "topic-permissions/%2F/none"),
        ):
            status, found = await site.ask("GET", path)
            assert (status, found["error"]) == (404, "Object Not Found"), path
        for path in ("queues/%2F/no", "exchanges/%2F/no", "users/no", "connections/no"):
            assert (await site.ask("DELETE", path))[0] == 404
        status, _ = await site.ask("POST", "queues/%2F/no")
        assert (status, site.headers["Allow"]) == (405, "DELETE, GET, HEAD, OPTIONS, PUT")
        assert await site.ask("OPTIONS", "whoami", user=None) == (200, None)
        assert site.headers["Allow"] == "GET, HEAD, OPTIONS"


# Exchanges, queues, bindings


async def test_queues_are_declared_described_purged_and_deleted() -> None:
    async with serve() as site:
        arguments = {"x-max-length": 10, "x-dead-letter-exchange": "amq.fanout"}
        body = {"durable": True, "auto_delete": False, "arguments": arguments, "node": "any"}
        await site.put("queues/%2F/q", body)
        await site.put("queues/%2F/q", body, 204)
        await site.put("queues/%2F/s", {"durable": "true", "arguments": {"x-queue-type": "stream"}})
        found = await site.get("queues/%2F/q")
        assert (
            found.items()
            >= {
                "name": "q",
                "vhost": "/",
                "type": "classic",
                "durable": True,
                "auto_delete": False,
                "exclusive": False,
                "arguments": arguments,
                "messages": 0,
                "messages_ready": 0,
                "messages_unacknowledged": 0,
                "consumers": 0,
                "consumer_details": [],
                "policy": None,
                "state": "running",
            }.items()
        )
        stream = await site.get("queues/%2F/s")
        assert (stream["type"], stream["arguments"]) == ("stream", {"x-queue-type": "stream"})
        message = {
            "routing_key": "q",
            "payload": "x",
            "payload_encoding": "string",
            "properties": {},
        }
        for key in ("q", "s"):
            published = await site.ask(
                "POST", "exchanges/%2F/amq.default/publish", {**message, "routing_key": key}
            )
            assert published == (200, {"routed": True})
        assert (await site.get("queues/%2F/q"))["messages"] == 1
        assert (await site.get("queues/%2F/s"))["messages"] == 1
        totals = await site.get("queues?disable_stats=true&enable_queue_totals=true")
        assert [(each["name"], each["messages"]) for each in totals] == [("q", 1), ("s", 1)]
        assert "messages" not in (await site.get("queues/%2F?disable_stats=true"))[0]
        assert (await site.ask("DELETE", "queues/%2F/q?if-empty=true"))[0] == 400
        await site.delete("queues/%2F/q/contents")
        assert (await site.ask("DELETE", "queues/%2F/s/contents"))[0] == 400
        await site.delete("queues/%2F/q?if-empty=true&if-unused=true")
        await site.delete("queues/%2F/s")
        assert await site.get("queues") == []


async def test_a_queue_that_is_there_with_other_properties_is_refused() -> None:
    async with serve() as site:
        await site.put("queues/%2F/q", {"durable": True})
        for body in (
            {"durable": False},
            {"durable": True, "arguments": {"x-max-length": 1}},
            {"durable": True, "arguments": {"x-max-length": "many"}},
            {"durable": True, "arguments": []} | {"arguments": "none"},
            {"durable": "perhaps"},
            {"durable": True, "arguments": {"x": 1 << 64}},
            {"durable": True, "arguments": {"x": "\ud800"}},
        ):
            status, found = await site.ask("PUT", "queues/%2F/q", body)
            assert (status, found["error"]) == (400, "bad_request"), body


async def test_what_the_caller_may_not_do_is_refused() -> None:
    narrow = UserConfig(
        password="p",
        tags=("management",),
        permissions={"/": {"configure": "^mine", "write": "^mine", "read": "^mine"}},
    )
    config = Config(
        listen={"http": Listen(0)},
        storage=StorageConfig(mode="memory"),
        users={**CONFIGURED, "narrow": narrow},
    )
    async with Broker(config) as broker, aiohttp.ClientSession() as client:
        site = Site(broker, client)
        assert await site.ask("PUT", "queues/%2F/mine", {}, "narrow") == (201, None)
        await site.put("queues/%2F/theirs")
        await site.put("exchanges/%2F/theirs", {"type": "direct"})
        direct = {"type": "direct"}
        assert await site.ask("PUT", "exchanges/%2F/mine", direct, "narrow") == (201, None)
        bound = await site.ask("POST", "bindings/%2F/e/mine/q/theirs", {"routing_key": "k"})
        assert bound[0] == 201
        message = {
            "routing_key": "x",
            "payload": "x",
            "payload_encoding": "string",
            "properties": {},
        }
        got = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        for method, path, body in (
            ("PUT", "queues/%2F/theirs2", {}),
            ("DELETE", "queues/%2F/theirs", None),
            ("DELETE", "queues/%2F/theirs/contents", None),
            ("POST", "queues/%2F/theirs/get", got),
            ("POST", "exchanges/%2F/amq.direct/publish", message),
            ("PUT", "exchanges/%2F/theirs2", {"type": "direct"}),
            ("DELETE", "exchanges/%2F/theirs", None),
            ("POST", "bindings/%2F/e/mine/q/theirs", {"routing_key": "other"}),
            ("POST", "bindings/%2F/e/mine/e/theirs", {"routing_key": "other"}),
            ("DELETE", "bindings/%2F/e/mine/q/theirs/k", None),
            ("POST", "bindings/%2F/e/amq.direct/q/mine", {"routing_key": "k"}),
            ("POST", "bindings/%2F/e/amq.trivium.event/q/mine", {"routing_key": "#"}),
            ("GET", "connections/username/administrator", None),
        ):
            status, found = await site.ask(method, path, body, "narrow")
            assert (status, found["error"]) == (401, "not_authorised"), path


async def test_the_name_of_the_broker_is_for_administrators_by_each_path() -> None:
    async with serve() as site:
        for method, body in (("PUT", {"value": "x"}), ("DELETE", None)):
            status, _ = await site.ask(
                method, "global-parameters/cluster_name", body, "policymaker"
            )
            assert status == 401


@pytest.mark.parametrize("kind", ["exchanges", "queues"])
async def test_a_name_is_no_longer_than_amqp_can_say(kind: str) -> None:
    async with serve() as site:
        for name in ("p" * 255, "%C3%BC" * 127):
            await site.put(f"{kind}/%2F/{name}", {"durable": True})
        for name in ("p" * 256, "%C3%BC" * 128):
            status, found = await site.ask("PUT", f"{kind}/%2F/{name}", {"durable": True})
            assert status == 400
            assert "has 1 to 255 bytes" in found["reason"]


async def test_exchanges_and_bindings() -> None:
    async with serve() as site:
        await site.put("exchanges/%2F/ex", {"type": "topic", "durable": True})
        await site.put("exchanges/%2F/ex", {"type": "topic"}, 204)
        await site.put("exchanges/%2F/in", {"type": "fanout", "internal": True})
        await site.put("queues/%2F/q", {"durable": True})
        assert (await site.ask("PUT", "exchanges/%2F/no", {"type": "no"}))[0] == 400
        assert (await site.ask("DELETE", "exchanges/%2F/amq.direct"))[0] == 401
        keys = ["", "a.*", "a/b ~%ü#"]
        places = []
        for key in keys:
            for arguments in ({}, {"x": 1}, {"x": True}):
                body = {"routing_key": key, "arguments": arguments}
                assert await site.ask("POST", "bindings/%2F/e/ex/q/q", body) == (201, None)
                places.append(site.headers["Location"])
        await site.ask("POST", "bindings/%2F/e/ex/e/in", {"routing_key": "e"})
        assert len(set(places)) == 9
        found = await site.get("bindings/%2F/e/ex/q/q")
        assert len(found) == 9
        assert {binding["routing_key"] for binding in found} == set(keys)
        assert len({binding["properties_key"] for binding in found}) == 9
        assert len(await site.get("exchanges/%2F/ex/bindings/source")) == 10
        assert [
            (each["source"], each["destination_type"], each["routing_key"])
            for each in await site.get("exchanges/%2F/in/bindings/destination")
        ] == [("ex", "exchange", "e")]
        # That of the default exchange is among those to a queue.
        assert len(await site.get("queues/%2F/q/bindings")) == 10
        assert len(await site.get("bindings")) == 11
        for place in places:
            # It is relative to the path of the request, as with RabbitMQ.
            path = "bindings/%2F/e/ex/q/" + place
            one = await site.get(path)
            assert place == "q/" + quote(one["properties_key"], safe="")
            await site.delete(path)
            assert (await site.ask("GET", path))[0] == 404
        (default,) = await site.get("queues/%2F/q/bindings")
        assert default["source"] == ""
        assert (await site.ask("DELETE", "bindings/%2F/e/amq.default/q/q/q"))[0] == 404
        await site.delete("exchanges/%2F/ex")
        assert len(await site.get("exchanges")) == 9
        # Nothing in a table of `rabbitmqadmin` is null.
        assert not any("policy" in each for each in await site.get("exchanges"))
        alternate = {"pattern": "^in$", "definition": {"alternate-exchange": "amq.fanout"}}
        await site.put("policies/%2F/alt", alternate)
        assert (await site.get("exchanges/%2F/in"))["policy"] == "alt"


@pytest.mark.parametrize("key", ["a.#", "a/b ~%ü", "100%25"])
async def test_a_binding_is_found_by_its_key_encoded_once_as_well(key: str) -> None:
    """As RabbitMQ 3.10 finds it, but for an escape or a tilde in the key."""
    async with serve() as site:
        await site.put("queues/%2F/q")
        place = "bindings/%2F/e/amq.topic/q/q"
        for arguments in ({}, {"x": 1}):
            body = {"routing_key": key, "arguments": arguments}
            await site.ask("POST", place, body)
        for one in await site.get(place):
            shown = f"{place}/{one['properties_key']}"
            assert await site.get(shown) == one
            await site.delete(shown)
        assert await site.get(place) == []


async def test_spaces_of_a_key_are_pluses_in_its_properties_key() -> None:
    """As in RabbitMQ 3.10, which finds it by all of these as well."""
    async with serve() as site:
        await site.put("queues/%2F/q")
        place = "bindings/%2F/e/amq.topic/q/q"
        assert await site.ask("POST", place, {"routing_key": "x y"}) == (201, None)
        assert site.headers["Location"] == "q/x%2By"
        (found,) = await site.get(place)
        assert found["properties_key"] == "x+y"
        for key in ("x+y", "x%2By", "x%20y", "x%2520y"):
            assert await site.get(f"{place}/{key}") == found


async def test_a_binding_is_not_found_by_what_is_that_of_another() -> None:
    async with serve() as site:
        await site.put("queues/%2F/q")
        place = "bindings/%2F/e/amq.topic/q/q"
        await site.ask("POST", place, {"routing_key": "x+y"})
        (found,) = await site.get(place)
        assert found["properties_key"] == "x%2By"
        # That of "x y", which may have been deleted already.
        for key in ("x+y", "x%2By"):
            assert (await site.ask("DELETE", f"{place}/{key}"))[0] == 404
        await site.delete(f"{place}/x%252By")


async def test_of_two_bindings_the_one_whose_properties_key_it_is_is_meant() -> None:
    async with serve() as site:
        await site.put("queues/%2F/q")
        place = "bindings/%2F/e/amq.topic/q/q"
        for key in ("a%23", "a#"):
            await site.ask("POST", place, {"routing_key": key})
        await site.delete(f"{place}/a%2523")
        (left,) = await site.get(place)
        assert left["routing_key"] == "a%23"


MARKUP = '<script>alert("1")</script>&"\'`{{}}/é\u2028'


async def test_markup_in_names_comes_back_as_it_was() -> None:
    place = quote(MARKUP, safe="")
    async with serve() as site:
        await site.put(f"queues/%2F/{place}", {"arguments": {"x-note": MARKUP}})
        await site.put(f"exchanges/%2F/{place}", {"type": "direct"})
        await site.put(f"global-parameters/{place}", {"value": {MARKUP: MARKUP}})
        body = {"routing_key": MARKUP, "arguments": {MARKUP: MARKUP}}
        await site.ask("POST", f"bindings/%2F/e/{place}/q/{place}", body)
        assert (await site.get(f"queues/%2F/{place}"))["name"] == MARKUP
        assert (await site.get("queues"))[0]["arguments"] == {"x-note": MARKUP}
        (found,) = await site.get(f"exchanges/%2F/{place}/bindings/source")
        assert (found["routing_key"], found["arguments"]) == (MARKUP, {MARKUP: MARKUP})
        assert await site.get(f"global-parameters/{place}") == {
            "name": MARKUP,
            "value": {MARKUP: MARKUP},
        }
        await site.delete(f"queues/%2F/{place}")


# Messages


async def test_a_message_comes_back_with_its_properties() -> None:
    async with serve() as site:
        await site.put("queues/%2F/q", {"durable": True})
        properties = {
            "content_type": "text/plain",
            "content_encoding": "gzip",
            "delivery_mode": 2,
            "priority": 3,
            "correlation_id": "c",
            "reply_to": "r",
            "expiration": "60000",
            "message_id": "m",
            "timestamp": 1_800_000_000,
            "type": "t",
            "app_id": "a",
            "user_id": "administrator",
            "headers": {"n": 1, "f": 0.5, "b": True, "l": [1, {"x": "y"}], "v": None},
        }
        body = {
            "routing_key": "q",
            "payload": base64.b64encode(b"\xff\x00").decode(),
            "payload_encoding": "base64",
            "properties": properties,
        }
        path = "exchanges/%2F/amq.default/publish"
        assert await site.ask("POST", path, body) == (200, {"routed": True})
        nowhere = {**body, "routing_key": "nowhere"}
        assert await site.ask("POST", path, nowhere) == (200, {"routed": False})
        got = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 50}
        for redelivered in (False, True):
            status, (found,) = await site.ask("POST", "queues/%2F/q/get", got)
            assert status == 200
            assert found == {
                "payload_bytes": 2,
                "redelivered": redelivered,
                "exchange": "",
                "routing_key": "q",
                "message_count": 0,
                "properties": properties,
                "payload": body["payload"],
                "payload_encoding": "base64",
            }
        status, (found,) = await site.ask("POST", "queues/%2F/q/get", {**got, "truncate": 1})
        assert (found["payload"], found["payload_bytes"]) == ("/w==", 2)


async def test_what_becomes_of_messages_that_are_taken() -> None:
    async with serve() as site:
        await site.put(
            "queues/%2F/q",
            {"arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"}},
        )
        await site.put("queues/%2F/d")
        for number in range(4):
            body = {
                "routing_key": "q",
                "payload": str(number),
                "payload_encoding": "string",
                "properties": {},
            }
            await site.ask("POST", "exchanges/%2F/amq.default/publish", body)

        async def take(ackmode: str, count: int, queue: str = "q") -> list[tuple[str, int]]:
            body = {"count": count, "ackmode": ackmode, "encoding": "auto"}
            status, found = await site.ask("POST", f"queues/%2F/{queue}/get", body)
            assert status == 200
            return [(each["payload"], each["message_count"]) for each in found]

        assert await take("ack_requeue_true", 2) == [("0", 3), ("1", 2)]
        assert await take("reject_requeue_true", 1) == [("0", 3)]
        assert await take("ack_requeue_false", 1) == [("0", 3)]
        assert await take("reject_requeue_false", 2) == [("1", 2), ("2", 1)]
        assert await take("ack_requeue_false", 9) == [("3", 0)]
        assert await take("ack_requeue_false", 9) == []
        found = await take("ack_requeue_false", 9, "d")
        assert [payload for payload, _ in found] == ["1", "2"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("exchanges/%2F/amq.default/publish", {}),
        ("exchanges/%2F/amq.default/publish", {"payload_encoding": "rot13"}),
        ("exchanges/%2F/amq.default/publish", {"payload_encoding": "base64", "payload": "?"}),
        ("exchanges/%2F/amq.default/publish", {"properties": {"expiration": "soon"}}),
        ("exchanges/%2F/amq.default/publish", {"properties": {"expiration": -1}}),
        ("exchanges/%2F/amq.default/publish", {"properties": {"priority": 256}}),
        ("exchanges/%2F/none/publish", {"properties": {}}),
        ("exchanges/%2F/amq.default/publish", {"properties": {"user_id": "root"}}),
        ("exchanges/%2F/amq.default/publish", {"properties": {"headers": {"x-delay": "soon"}}}),
        ("exchanges/%2F/amq.default/publish", {"properties": {"headers": {"x-delivery": "no"}}}),
        ("queues/%2F/q/get", {}),
        ("queues/%2F/q/get", {"count": -1}),
        ("queues/%2F/q/get", {"ackmode": "maybe"}),
        ("queues/%2F/q/get", {"encoding": "rot13"}),
        ("queues/%2F/s/get", {"count": 1}),
        ("queues/%2F/q/actions", {"action": "dance"}),
    ],
)
async def test_what_cannot_be_published_or_taken_is_refused(path: str, body: Any) -> None:
    usual = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
    if path.endswith("get"):
        usual = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}  # type: ignore[dict-item]
    async with serve() as site:
        await site.put("queues/%2F/q")
        await site.put("queues/%2F/s", {"durable": True, "arguments": {"x-queue-type": "stream"}})
        status, found = await site.ask("POST", path, {**usual, **body} if body else {})
        assert (status, found["error"]) == (400, "bad_request")
        assert (await site.get("queues/%2F/q"))["messages"] == 0


async def test_what_rabbitmq_passes_over_or_names_is_the_same_here() -> None:
    """As RabbitMQ 3.10 answers these requests."""
    message = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
    got = {"ackmode": "ack_requeue_true", "encoding": "auto"}
    async with serve() as site:
        await site.put("queues/%2F/q")
        odd = {**message, "properties": {"colour": {"of": None}}}
        publish = "exchanges/%2F/amq.default/publish"
        assert await site.ask("POST", publish, odd) == (200, {"routed": True})
        assert await site.ask("POST", "queues/%2F/q/get", {**got, "count": 0}) == (200, [])
        for method, path, body, reason in (
            (
                "POST",
                "exchanges/%2F/none/publish",
                message,
                "404 NOT_FOUND - no exchange 'none' in vhost '/'",
            ),
            ("PUT", "user-limits/nobody/max-channels", {"value": 1}, "no_such_user: nobody"),
            (
                "PUT",
                "policies/%2F/p",
                {"pattern": "^a", "definition": {"max-length": 1}, "priority": "5"},
                "priority should be a number",
            ),
        ):
            status, found = await site.ask(method, path, body)
            assert (status, found["reason"]) == (400, reason)


async def test_a_flag_of_a_pattern_for_what_is_so_anyway_is_taken() -> None:
    async with serve() as site:
        await site.put("queues/%2F/Qa")
        page = "queues?page=1&use_regex=true&name="
        for pattern in ("^q", "(?i)^q", "(?i)A$"):
            assert len((await site.get(page + quote(pattern)))["items"]) == 1
        assert (await site.ask("GET", page + quote("(?s)q")))[0] == 400


# Users, permissions, limits, policies


async def test_users_and_what_they_may() -> None:
    async with serve() as site:
        await site.put("users/ann", {"password": "secret", "tags": "monitoring,policymaker"})
        await site.put("permissions/%2F/ann", {"configure": "", "write": "a", "read": ".*"})
        await site.put("permissions/%2F/ann", {"configure": "c", "write": "a", "read": ".*"}, 204)
        await site.put(
            "topic-permissions/%2F/ann", {"exchange": "amq.topic", "write": "^a", "read": "b"}
        )
        found = await site.get("users/ann")
        assert (found["name"], found["tags"]) == ("ann", ["monitoring", "policymaker"])
        assert found["password_hash"] == ""
        who = await site.get("whoami", user="ann:secret")
        assert who == {"name": "ann", "tags": ["monitoring", "policymaker"]}
        permission = {"user": "ann", "vhost": "/", "configure": "c", "write": "a", "read": ".*"}
        assert await site.get("permissions/%2F/ann") == permission
        assert await site.get("users/ann/permissions") == [permission]
        assert permission in await site.get("vhosts/%2F/permissions")
        topic = {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": "b"}
        assert await site.get("topic-permissions") == [topic]
        assert await site.get("topic-permissions/%2F/ann") == [topic]
        await site.delete("topic-permissions/%2F/ann/amq.topic")
        assert await site.get("users/ann/topic-permissions") == []
        await site.delete("permissions/%2F/ann")
        without = await site.get("users/without-permissions")
        assert "ann" in [user["name"] for user in without]
        await site.put("users/ann", {"password": "other", "tags": ["management"]}, 204)
        assert (await site.ask("GET", "whoami", user="ann:secret"))[0] == 401
        assert (await site.get("whoami", user="ann:other"))["tags"] == ["management"]
        await site.put("users/bob", {"tags": ""})
        status, found = await site.ask("POST", "users/bulk-delete", {"users": ["ann", "nobody"]})
        assert (status, found["reason"]) == (400, "no_such_user: nobody")
        bulk = {"users": ["ann", "bob", "ann"]}
        assert await site.ask("POST", "users/bulk-delete", bulk) == (204, None)
        names = [user["name"] for user in await site.get("users")]
        assert names == sorted([*CONFIGURED, "guest"])


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
async def test_a_hash_of_another_broker_logs_in_and_is_exported_again(algorithm: str) -> None:
    salt = b"\x01\x02\x03\x04"
    digest = hashlib.new(algorithm, salt + "gehéim".encode()).digest()
    text = base64.b64encode(salt + digest).decode()
    name = f"rabbit_password_hashing_{algorithm}"
    async with serve() as site:
        body = {"password_hash": text, "hashing_algorithm": name, "tags": "management"}
        await site.put("users/ann", body)
        assert (await site.get("whoami", user="ann:gehéim"))["name"] == "ann"
        assert (await site.ask("GET", "whoami", user="ann:geheim"))[0] == 401
        found = await site.get("users/ann")
        assert (found["password_hash"], found["hashing_algorithm"]) == (text, name)
        await site.put("users/nobody", {"password_hash": "", "tags": "management"})
        assert (await site.ask("GET", "whoami", user="nobody:"))[0] == 401


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"password": "x"},
        {"tags": 1, "password": "x"},
        {"tags": "", "password": 1},
        {"tags": "", "password": "x" * 2000},
        {"tags": "", "password_hash": "?"},
        {"tags": "", "password": "x", "password_hash": ""},
        {"tags": "", "password_hash": base64.b64encode(b"short").decode()},
        {"tags": "", "password_hash": "AAAA", "hashing_algorithm": "rabbit_password_hashing_md5"},
        {"tags": ["\ud800"], "password": "x"},
    ],
)
async def test_a_user_that_cannot_be_is_refused(body: Any) -> None:
    async with serve() as site:
        status, found = await site.ask("PUT", "users/ann", body)
        assert (status, found["error"]) == (400, "bad_request")
        assert (await site.ask("GET", "users/ann"))[0] == 404


async def test_users_of_the_configuration_are_not_changed() -> None:
    async with serve() as site:
        for method, path, body in (
            ("PUT", "users/none", {"password": "x", "tags": "administrator"}),
            ("DELETE", "users/none", None),
            ("POST", "users/bulk-delete", {"users": ["none"]}),
            ("PUT", "permissions/%2F/none", {"configure": "", "write": "", "read": ""}),
            ("DELETE", "permissions/%2F/none", None),
            ("PUT", "user-limits/none/max-channels", {"value": 1}),
        ):
            status, found = await site.ask(method, path, body)
            # `rabbitmqadmin` shows the reason for 400, and not for 401.
            assert status == 400, path
            assert found["reason"].endswith(
                "in the configuration: change it there, in [users.none]"
            )


async def test_a_user_of_the_configuration_is_granted_again_what_that_grants() -> None:
    """As scripts do that declare a virtual host for `guest`."""
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    async with serve() as site:
        await site.put("vhosts/new")
        grants = site.broker.permissions.user("guest")
        await site.put("permissions/new/guest", everything, 204)
        await site.put("permissions/%2F/none", everything, 204)
        assert site.broker.permissions.user("guest") is grants
        found = await site.get("permissions/new/guest")
        assert found == {"user": "guest", "vhost": "new", **everything}
        for user, body in (("none", everything), ("guest", {**everything, "read": "x"})):
            assert (await site.ask("PUT", f"permissions/new/{user}", body))[0] == 400, user


async def test_who_is_in_a_password_file_is_granted_something_as_any_user_is(
    tmp_path: Path,
) -> None:
    file = tmp_path / "users"
    file.write_text(f"pfu:{MOSQUITTO_7}\n")
    async with serve(auth=AuthConfig(password_files=(str(file),))) as site:
        patterns = {"configure": "", "write": "a", "read": ".*"}
        permission = {"user": "pfu", "vhost": "/", **patterns}
        topic = {"exchange": "amq.topic", "write": "^a", "read": "b"}
        limit = "user-limits/pfu/max-connections"
        await site.put("permissions/%2F/pfu", patterns)
        await site.put("topic-permissions/%2F/pfu", topic)
        await site.put(limit, {"value": 3}, 204)
        assert await site.get("permissions/%2F/pfu") == permission
        assert await site.get("users/pfu/permissions") == [permission]
        assert await site.get("user-limits/pfu") == [
            {"user": "pfu", "value": {"max-connections": 3}}
        ]
        await site.delete(limit)
        await site.delete("topic-permissions/%2F/pfu/amq.topic")
        await site.delete("permissions/%2F/pfu")
        assert await site.get("users/pfu/permissions") == []
        for path, body in (("permissions/%2F/nobody", patterns), (limit, {"value": 3})):
            path = path.replace("pfu", "nobody")
            status, _ = await site.ask("PUT", path, body)
            assert status in (400, 404), path


async def test_the_name_of_the_broker_is_a_short_text() -> None:
    async with serve() as site:
        for value in ({"a": 1}, None, "", "x" * 256):
            status, _ = await site.ask("PUT", "global-parameters/cluster_name", {"value": value})
            assert status == 400, value
        assert (await site.get("cluster-name"))["name"] == "trivium"


async def test_who_does_not_watch_sees_its_own_limits_alone() -> None:
    async with serve() as site:
        for name in ("ann", "bob"):
            await site.put(f"users/{name}", {"password": "p", "tags": "management"})
            await site.put(f"user-limits/{name}/max-queues", {"value": 1}, 204)
        own = [{"user": "ann", "value": {"max-queues": 1}}]
        assert await site.get("user-limits", user="ann") == own
        assert await site.get("user-limits/ann", user="ann") == own
        for other in ("bob", "nobody"):
            status, found = await site.ask("GET", f"user-limits/{other}", user="ann")
            assert (status, found["error"]) == (401, "not_authorised")
        for user in ("monitoring", "administrator"):
            assert len(await site.get("user-limits", user=user)) == 2
            assert (await site.ask("GET", "user-limits/nobody", user=user))[0] == 404


async def test_limits_parameters_and_policies() -> None:
    async with serve() as site:
        await site.put("users/ann", {"password": "x", "tags": ""})
        await site.put("user-limits/ann/max-channels", {"value": 7}, 204)
        assert await site.get("user-limits/ann") == [{"user": "ann", "value": {"max-channels": 7}}]
        await site.delete("user-limits/ann/max-channels")
        assert await site.get("user-limits") == []
        await site.put("vhost-limits/%2F/max-queues", {"value": 9}, 204)
        assert await site.get("vhost-limits") == [{"vhost": "/", "value": {"max-queues": 9}}]
        parameter = {"component": "vhost-limits", "vhost": "/", "name": "limits"}
        parameter["value"] = {"max-queues": 9}  # type: ignore[assignment]
        assert await site.get("parameters/vhost-limits/%2F/limits") == parameter
        await site.delete("vhost-limits/%2F/max-queues")
        assert await site.get("parameters") == []
        assert (await site.ask("PUT", "vhost-limits/%2F/max-queues", {"value": -2}))[0] == 400
        assert (await site.ask("PUT", "vhost-limits/%2F/colour", {"value": 1}))[0] == 400
        assert (await site.ask("PUT", "parameters/shovel/%2F/x", {"value": {}}))[0] == 400
        await site.put("global-parameters/x", {"value": [1, {"a": None}]})
        await site.put("cluster-name", {"name": "here"}, 204)
        assert (await site.get("cluster-name"))["name"] == "here"
        assert (await site.get("overview"))["cluster_name"] == "here"
        assert await site.get("global-parameters") == [
            {"name": "cluster_name", "value": "here"},
            {"name": "x", "value": [1, {"a": None}]},
        ]
        await site.delete("global-parameters/x")

        policy = {
            "pattern": "^q",
            "definition": {"max-length": 5},
            "apply-to": "queues",
            "priority": 2,
        }
        await site.put("queues/%2F/q")
        await site.put("policies/%2F/p", policy)
        await site.put("policies/%2F/p", policy, 204)
        assert await site.get("policies") == [{"vhost": "/", "name": "p", **policy}]
        found = await site.get("queues/%2F/q")
        assert (found["policy"], found["effective_policy_definition"]) == ("p", {"max-length": 5})
        assert (await site.ask("PUT", "policies/%2F/p", {"pattern": "x"}))[0] == 400
        assert (await site.ask("PUT", "policies/%2F/p", {**policy, "pattern": "("}))[0] == 400
        assert (await site.ask("PUT", "policies/%2F/p", {**policy, "priority": 1 << 40}))[0] == 400
        await site.delete("policies/%2F/p")
        assert (await site.get("queues/%2F/q"))["policy"] is None


async def test_policies_of_operators_bound_others_and_are_parameters_too() -> None:
    async with serve() as site:
        bound = {
            "pattern": "^q",
            "definition": {"max-length": 5},
            "apply-to": "classic_queues",
            "priority": 2,
        }
        await site.put("queues/%2F/q")
        await site.put("queues/%2F/other")
        await site.put("policies/%2F/p", {"pattern": "", "definition": {"max-length": 9}})
        await site.put("operator-policies/%2F/o", bound)
        await site.put("operator-policies/%2F/o", bound, 204)
        shown = {"vhost": "/", "name": "o", **bound}
        assert await site.get("operator-policies") == [shown]
        assert await site.get("operator-policies/%2F/o") == shown
        assert [policy["name"] for policy in await site.get("policies")] == ["p"]
        columns = "name,policy,operator_policy,effective_policy_definition"
        assert await site.get(f"queues?columns={columns}") == [
            {
                "name": "other",
                "policy": "p",
                "operator_policy": None,
                "effective_policy_definition": {"max-length": 9},
            },
            {
                "name": "q",
                "policy": "p",
                "operator_policy": "o",
                "effective_policy_definition": {"max-length": 5},
            },
        ]
        parameter = {"component": "operator_policy", "vhost": "/", "name": "o", "value": bound}
        assert await site.get("parameters") == [parameter]
        assert await site.get("parameters/operator_policy/%2F/o") == parameter
        await site.put("parameters/operator_policy/%2F/more", {"value": bound})
        await site.delete("parameters/operator_policy/%2F/more")
        assert await site.get("operator-policies") == [shown]
        wrong = {**bound, "definition": {"dead-letter-exchange": "x"}}
        for path, body in (
            ("operator-policies/%2F/w", wrong),
            ("operator-policies/%2F/w", {**bound, "apply-to": "cats"}),
            ("parameters/operator_policy/%2F/w", {"value": wrong}),
        ):
            assert (await site.ask("PUT", path, body))[0] == 400
        await site.delete("operator-policies/%2F/o")
        assert (await site.ask("DELETE", "operator-policies/%2F/o"))[0] == 404


async def test_virtual_hosts_have_their_messages() -> None:
    async with serve() as site:
        await site.put("vhosts/other")
        queue = site.broker.vhost("other").declare_queue("q")
        for _ in range(3):
            queue.put(message(b"x"), b"")
        assert queue.get() is not None
        counted = {"messages": 3, "messages_ready": 2, "messages_unacknowledged": 1}
        found = await site.get("vhosts/other")
        assert {name: found[name] for name in counted} == counted
        by_name = {each["name"]: each for each in await site.get("vhosts")}
        assert by_name["other"] == found
        assert by_name["/"]["messages"] == 0
        plain = await site.get("vhosts?disable_stats=true")
        assert all("messages" not in each for each in plain)


# The broker as a whole


async def test_overview_nodes_and_health() -> None:
    async with serve() as site:
        await site.put("queues/%2F/q")
        await site.put("vhosts/other")
        overview = await site.get("overview")
        assert overview["object_totals"] == {
            "connections": 0,
            "channels": 0,
            "consumers": 0,
            "exchanges": 15,
            "queues": 1,
        }
        assert overview["queue_totals"]["messages"] == 0
        assert (await site.get("overview", user="monitoring"))["object_totals"]["exchanges"] == 8
        assert "queue_totals" not in await site.get("overview?disable_stats=true")
        (node,) = await site.get("nodes")
        assert node["running"] is True
        assert node["mem_used"] > 0
        assert await site.get(f"nodes/{node['name']}") != {}
        port = int(site.broker.listeners["http"].rpartition(":")[2])
        for path in (
            *("alarms", "local-alarms", "virtual-hosts", "certificate-expiration/1/weeks"),
            *(f"port-listener/{port}", "protocol-listener/amqp091", "protocol-listener/http"),
            *("node-is-quorum-critical", "ready-to-serve-clients", "below-node-connection-limit"),
        ):
            assert (await site.get(f"health/checks/{path}"))["status"] == "ok"
        assert (await site.ask("GET", "health/checks/port-listener/1"))[0] == 503
        _, found = await site.ask("GET", "health/checks/port-listener/1")
        assert 0 not in found["ports"]
        assert (await site.ask("GET", "health/checks/port-listener/x"))[0] == 400
        assert (await site.ask("GET", "health/checks/protocol-listener/mqtt"))[0] == 503
        assert (await site.ask("GET", "health/checks/certificate-expiration/1/ages"))[0] == 400
        assert await site.get("aliveness-test/%2F") == {"status": "ok"}
        assert await site.get("aliveness-test/%2F") == {"status": "ok"}
        site.broker.alarms.is_disk_short = True
        status, found = await site.ask("GET", "health/checks/alarms")
        assert (status, found["alarms"][0]["resource"]) == (503, "disk")


async def test_logins_are_counted_by_protocol() -> None:
    async with serve() as site:
        await site.get("whoami")
        await site.ask("GET", "whoami", user="administrator:wrong")
        path = "auth/attempts/trivium@localhost"
        found = await site.get(path)
        assert found == [
            {
                "protocol": "http",
                "auth_attempts": 3,
                "auth_attempts_failed": 1,
                "auth_attempts_succeeded": 2,
            }
        ]
        await site.delete(path)
        assert (await site.get(path))[0]["auth_attempts"] == 1


# Definitions


async def test_definitions_come_back_equal() -> None:
    async with serve() as site:
        await site.put("vhosts/other", {"description": "d", "tags": "a,b"})
        await site.put("vhost-limits/other/max-queues", {"value": 9}, 204)
        salted = base64.b64encode(b"salt" + hashlib.sha256(b"saltx").digest()).decode()
        await site.put("users/ann", {"password_hash": salted, "tags": "management"})
        await site.put("user-limits/ann/max-channels", {"value": 7}, 204)
        await site.put("permissions/other/ann", {"configure": "c", "write": "w", "read": "r"})
        topics = {"exchange": "ex", "write": "w", "read": "r"}
        await site.put("topic-permissions/other/ann", topics)
        await site.put("global-parameters/g", {"value": {"a": [1, 2]}})
        await site.put("policies/%2F/p", {"pattern": "^q", "definition": {"max-length": 5}})
        bound = {"pattern": "^q", "definition": {"max-length": 3}, "priority": 1}
        await site.put("operator-policies/%2F/o", bound)
        await site.put("queues/%2F/q", {"durable": True, "arguments": {"x-max-priority": 3}})
        await site.put("queues/%2F/s", {"durable": True, "arguments": {"x-queue-type": "stream"}})
        await site.put(
            "exchanges/%2F/ex",
            {"type": "headers", "arguments": {"alternate-exchange": "amq.fanout"}},
        )
        body = {"routing_key": "k", "arguments": {"x-match": "any", "a": 1}}
        await site.ask("POST", "bindings/%2F/e/ex/q/q", body)
        await site.ask("POST", "bindings/%2F/e/amq.topic/q/s", {"routing_key": "a.#"})
        await site.ask("POST", "bindings/%2F/e/amq.topic/e/ex", {"routing_key": "e"})
        exported = await site.get("definitions")
        of_vhost = await site.get("definitions/%2F")
    assert {key: len(value) for key, value in exported.items() if isinstance(value, list)} == {
        "users": 1,
        "vhosts": 2,
        "permissions": 1,
        "topic_permissions": 1,
        "roles": 0,
        "grants": 0,
        "global_parameters": 1,
        "parameters": 2,
        "policies": 1,
        "queues": 2,
        "exchanges": 1,
        "bindings": 3,
    }
    async with serve() as site:
        for _ in range(2):
            assert await site.ask("POST", "definitions", exported) == (204, None)
            assert await site.get("definitions") == exported
            assert len(await site.get("operator-policies")) == 1
        assert (await site.get("whoami", user="ann:x"))["name"] == "ann"
        # Those of one virtual host go into any.
        await site.put("vhosts/third")
        assert await site.ask("POST", "definitions/third", of_vhost) == (204, None)
        for entry in (*of_vhost["policies"], *of_vhost["parameters"]):
            entry["vhost"] = "third"
        assert await site.get("definitions/third") == of_vhost


async def test_definitions_keep_the_type_of_queues_whatever_the_virtual_hosts_is() -> None:
    async with serve() as site, serve() as other:
        await site.put("queues/%2F/before", {"durable": True})
        await site.put("vhosts/%2F", {"default_queue_type": "quorum"}, 204)
        classic = {"x-queue-type": "classic", "x-max-priority": 3}
        await site.put("queues/%2F/classic", {"durable": True, "arguments": classic})
        await site.put("queues/%2F/default", {"durable": True})
        assert (await site.get("queues/%2F/classic"))["arguments"] == classic
        exported = await site.get("definitions")
        assert {each["name"]: each["arguments"] for each in exported["queues"]} == {
            "before": {"x-queue-type": "classic"},
            "classic": classic,
            "default": {"x-queue-type": "quorum"},
        }
        for there in (other, site, other):
            assert await there.ask("POST", "definitions", exported) == (204, None)
            assert (await there.get("definitions"))["queues"] == exported["queues"]
        kinds = {each["name"]: each["type"] for each in await other.get("queues")}
        assert kinds == {"before": "classic", "classic": "classic", "default": "quorum"}


async def test_definitions_without_a_password_take_it_away_but_an_empty_hash_does_not() -> None:
    async with serve() as site:
        for name in ("kept", "gone"):
            await site.put(f"users/{name}", {"password": "p", "tags": "management"})
        users = [
            {"name": "kept", "tags": "management", "password_hash": ""},
            {"name": "gone", "tags": "management"},
        ]
        assert await site.ask("POST", "definitions", {"users": users}) == (204, None)
        assert (await site.ask("GET", "whoami", user="kept:p"))[0] == 200
        assert (await site.ask("GET", "whoami", user="gone:p"))[0] == 401


async def test_definitions_bring_passwords_in_plain_text() -> None:
    users = [{"name": name, "password": f"of {name}", "tags": "management"} for name in "xyz"]
    old = {"name": "old", "password": "new", "tags": "management"}
    async with serve() as site:
        await site.put("users/old", {"password": "before", "tags": "management"})
        document = {"users": [*users, old, {**old, "name": "none"}]}
        for _ in range(2):
            assert await site.ask("POST", "definitions", document) == (204, None)
            for user in (*users, old):
                shown = f"{user['name']}:{user['password']}"
                assert (await site.get("whoami", user=shown))["name"] == user["name"]
            stored = {name: site.broker.users.find(name) for name in ("x", "y", "z", "old")}
        # Who has shown the password that is brought again is not sent away.
        assert await site.ask("POST", "definitions", document) == (204, None)
        assert {name: site.broker.users.find(name) for name in stored} == stored
        assert (await site.ask("GET", "whoami", user="none:new"))[0] == 401
        assert (await site.ask("GET", "whoami", user="old:before"))[0] == 401
        assert {user["password_hash"] for user in await site.get("users")} == {""}


async def test_definitions_bring_streams_as_they_were() -> None:
    arguments: dict[str, Any] = {
        "x-max-age": "7D",
        "x-max-length": 1000,
        "x-max-length-bytes": 1 << 30,
        "x-compression": "lz4",
    }
    compacted: dict[str, Any] = {"x-cleanup-policy": "compact", "x-tombstone-retention": "1h"}
    async with serve() as site, serve() as other:
        vhost = site.broker.vhost("/")
        for name, partitions, given in (
            ("wide", 3, arguments),
            ("compacted", 2, compacted),
            ("plain", 1, {}),
            ("odd", 1, {"x-partitions": 5}),
        ):
            vhost.declare_stream(name, partitions, dict(given))
        for path in ("definitions", "definitions/%2F"):
            document = await site.get(path)
            for there in (other, site, other):
                assert await there.ask("POST", path, document) == (204, None)
            assert (await other.get(path))["queues"] == document["queues"]
            for name, stream in vhost.streams.items():
                found = other.broker.vhost("/").streams[name]
                assert len(found.partitions) == len(stream.partitions), name
                ours, theirs = (stream_settings_of(each.arguments, {}) for each in (stream, found))
                for what in SETTINGS:
                    assert getattr(theirs, what) == getattr(ours, what), (name, what)
            for name in list(vhost.streams):
                await other.delete(f"queues/%2F/{name}")


@pytest.mark.parametrize("partitions", [0, -1, 1025, "3", True, None])
async def test_a_number_of_partitions_that_cannot_be_is_refused(partitions: Any) -> None:
    async with serve() as site:
        arguments = {"x-queue-type": "stream", "x-partitions": partitions}
        body = {"durable": True, "arguments": arguments}
        status, found = await site.ask("PUT", "queues/%2F/s", body)
        assert status == 400
        assert "x-partitions" in found["reason"]
        assert not site.broker.vhost("/").streams


async def is_routed(site: Site, key: str) -> bool:
    """Whether a message to amq.direct leads somewhere."""
    message = {**MESSAGE, "routing_key": key}
    _, found = await site.ask("POST", "exchanges/%2F/amq.direct/publish", message)
    return bool(found["routed"])


async def test_what_was_imported_is_in_force_after_who_imported_it_is_deleted() -> None:
    async with serve() as site:
        await site.put("users/adm", {"password": "p", "tags": "administrator"})
        queue = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        binding = {"source": "amq.direct", "vhost": "/", "destination": "q"}
        binding |= {"destination_type": "queue", "routing_key": "k", "arguments": {}}  # type: ignore[dict-item]
        document = {"queues": [queue], "bindings": [binding]}
        assert await site.ask("POST", "definitions", document, "adm") == (204, None)
        assert await is_routed(site, "k")
        for tags, is_in_force in (("", False), ("administrator", True)):
            await site.put("users/adm", {"password": "p", "tags": tags}, 204)
            assert await is_routed(site, "k") is is_in_force
        await site.delete("users/adm")
        assert await is_routed(site, "k")


async def test_a_binding_is_in_force_while_who_made_it_may_make_it() -> None:
    async with serve() as site:
        await site.put("users/bob", {"password": "p", "tags": ""})
        await site.put("permissions/%2F/bob", ALL["/"])
        connection = await aiormq.connect(f"amqp://bob:p@{site.broker.listeners['amqp']}/")
        channel = await connection.channel()
        await channel.queue_declare("q")
        await channel.queue_bind("q", "amq.direct", "k")
        for read, is_in_force in ((".*", True), ("^q$", False), (".*", True)):
            await site.put("permissions/%2F/bob", {**ALL["/"], "read": read}, 204)
            assert await is_routed(site, "k") is is_in_force
        await connection.close()


async def test_definitions_pass_over_what_means_nothing_here() -> None:
    async with serve() as site:
        document = {
            "rabbit_version": "3.8.0",
            "users": [{"name": "none", "password_hash": "", "tags": "administrator"}],
            "permissions": [
                {"user": "none", "vhost": "/", "configure": "", "write": "", "read": ""}
            ],
            "vhosts": [{"name": "/", "limits": [], "metadata": {"description": "m", "tags": []}}],
            "policies": [
                {"vhost": "/", "name": "a", "pattern": "x", "definition": {"ha-mode": "all"}},
                {
                    "vhost": "/",
                    "name": "b",
                    "pattern": "x",
                    "definition": {"ha-mode": "all", "max-length": 1},
                },
            ],
            "parameters": [
                {"component": "shovel", "vhost": "/", "name": "s", "value": {}},
                {
                    "component": "operator_policy",
                    "vhost": "/",
                    "name": "o",
                    "value": {"pattern": "x", "definition": {"max-in-memory-length": 1}},
                },
            ],
            "exchanges": [{"name": "amq.topic", "vhost": "/", "type": "topic", "durable": True}],
        }
        assert await site.ask("POST", "definitions", document) == (204, None)
        assert (await site.ask("GET", "whoami", user="none:"))[0] == 401
        (policy,) = await site.get("policies")
        assert (policy["name"], policy["definition"]) == ("b", {"max-length": 1})
        # There it is none for other queues either.
        assert policy["apply-to"] == "classic_queues"
        assert await site.get("operator-policies") == []
        assert (await site.get("vhosts/%2F"))["description"] == "m"


async def test_retention_that_a_policy_for_queues_gives_a_stream_is_imported() -> None:
    """RabbitMQ 3.10 has no policies for streams alone."""
    about = {"vhost": "/", "name": "p", "pattern": "", "apply-to": "queues", "priority": 0}
    about["definition"] = {"max-age": "1h", "max-length-bytes": 1000}
    queues = [
        {"name": kind, "vhost": "/", "durable": True, "arguments": {"x-queue-type": kind}}
        for kind in ("stream", "classic", "quorum")
    ]
    async with serve() as site:
        document = {"policies": [about], "queues": queues}
        assert await site.ask("POST", "definitions", document) == (204, None)
        found = {each["name"]: each for each in await site.get("queues")}
        assert found["stream"]["effective_policy_definition"] == about["definition"]
        assert {name: each["policy"] for name, each in found.items()} == {
            "stream": "p",
            "classic": None,
            "quorum": None,
        }
        retention = (await site.get("v1/vhosts/%2F/streams/stream"))["retention"]
        assert (retention["max_age_ms"], retention["max_bytes"]) == (3_600_000, 1000)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"queues": {}},
        {"queues": [1]},
        {"queues": [{"vhost": "/"}]},
        {"queues": [{"name": "q", "vhost": "no"}]},
        {"exchanges": [{"name": "e", "vhost": "/", "type": "no", "durable": True}]},
        {"bindings": [{"vhost": "/", "source": "", "destination": "q", "routing_key": "q",
                       "destination_type": "queue"}]},
        {"users": [{"name": "u", "tags": "", "password_hash": "?"}]},
        {"users": [{"name": "u", "tags": "", "password": 1}]},
        {"users": [{"name": "u", "tags": "", "password": "x" * 2000}]},
        {"users": [{"name": "u", "tags": "", "password": "x", "password_hash": ""}]},
        {"policies": [{"vhost": "/", "name": "p", "pattern": "(", "definition": {"expires": 1}}]},
    ],
)  # fmt: skip
async def test_definitions_that_cannot_be_are_refused(document: Any) -> None:
    async with serve() as site:
        status, found = await site.ask("POST", "definitions", document)
        assert status in (400, 401, 404)
        assert found["reason"]
        assert await site.get("queues") == []


async def test_a_large_document_is_imported_a_part_at_a_time() -> None:
    queues = [
        {"name": f"q{number}", "vhost": "/", "durable": True, "arguments": {}}
        for number in range(3000)
    ]
    async with serve() as site:
        importing = asyncio.ensure_future(site.ask("POST", "definitions", {"queues": queues}))
        counts = set()
        while not importing.done():
            counts.add(len(site.broker.vhost("/").queues))
            await asyncio.sleep(0)
        assert importing.result() == (204, None)
        assert len(counts) > 3
        assert (await site.get("queues?page=30&page_size=100"))["item_count"] == 100


@pytest.mark.parametrize(
    "path",
    [
        *("users", "users/without-permissions", "permissions", "topic-permissions", "user-limits"),
        *("v1/users?page_size=500", "v1/permissions", "v1/topic-permissions", "definitions"),
    ],
)
def test_users_and_what_they_may_are_told_in_parts(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a clock that jumps at each look: nothing of the work is done in one go."""
    count = 600
    server = Server()
    broker = server.broker
    topics = {"/": {"amq.topic": {"write": "w", "read": "r"}}}
    grants = grants_of({"/": {"configure": "c", "write": "w", "read": "r"}}, topics, [], [])
    for number in range(count):
        name = f"user {number}"
        broker.users.add(name, STORED, ["management"])
        if "without" not in path:
            broker.authentication.granted.set(USER, name, grants)
        if path == "user-limits":
            broker.logins.limits.set(name, {"max-channels": 3})
    now = itertools.count(0, listing.SLICE_SECONDS)
    monkeypatch.setattr(listing, "time", SimpleNamespace(monotonic=lambda: next(now)))
    answers: list[ApiAnswer] = []
    place, _, query = path.partition("?")
    request = ApiRequest(
        method="GET",
        path=tuple(place.split("/")),
        query=dict(pair.split("=") for pair in query.split("&") if pair),
        body=None,
        identity=Identity("root", frozenset(("administrator",))),
        address="",
        listener=ListenerConfig(protocol="http", address="127.0.0.1:0"),
    )
    Management(broker, lambda work: work()).ask(request, answers.append)
    parts = list(answers[0].parts or ())
    # Of pages the first one, where the user of the configuration is too.
    assert b"".join(parts).count(b"user ") >= 99
    # At each look at the clock others are served.
    assert len(parts) > count // listing.STEP
