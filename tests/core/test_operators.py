"""What is declared over HTTP is the caller's, as what clients declare by their own protocols is."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from yarl import URL

from trivium.config import EVERYTHING, Config, Listen, StorageConfig, UserConfig
from trivium.management import pacing
from trivium.routing.exchanges import Declarer
from trivium.runtime.broker import Broker
from trivium.security.permissions import grants_of
from trivium.vhost import suspensions

USERS = {
    "root": UserConfig(password="p", tags=("administrator",), permissions=EVERYTHING),
    "admin": UserConfig(password="p", tags=("administrator",)),
    "ann": UserConfig(password="p", tags=("management",)),
}


class Site:
    """A broker and clients of its HTTP port."""

    def __init__(self, broker: Broker, client: aiohttp.ClientSession) -> None:
        self.broker = broker
        self.vhost = broker.vhost("/")
        self._client = client
        self.headers: Any = {}

    async def ask(self, method: str, path: str, body: Any = None, user: str = "ann") -> int:
        url = URL(f"http://{self.broker.listeners['http']}/api/{path}", encoded=True)
        shown = {"Authorization": "Basic " + base64.b64encode(f"{user}:p".encode()).decode()}
        async with self._client.request(method, url, headers=shown, json=body or {}) as answer:
            self.headers = answer.headers
            return answer.status

    def permit(self, user: str, pattern: str) -> None:
        granted = {"/": {"configure": pattern, "write": pattern, "read": pattern}}
        self.broker.permissions.set_user(user, grants_of(granted, {}, [], []))
        self.broker.logins.permissions_changed(user)

    def declared(self) -> dict[str, suspensions.Item]:
        """What has a declarer, by who that is and what it is."""
        found: dict[str, suspensions.Item] = {}
        for item in suspensions.declared(self.vhost):
            if item is not None:
                declarer = suspensions.declarer_of(item)
                assert declarer is not None
                what = "binding" if isinstance(item, tuple) else type(item).__name__.lower()
                found[f"{declarer.name} {what}"] = item
        return found


@contextlib.asynccontextmanager
async def serve(**keys: Any) -> AsyncIterator[Site]:
    config = Config(
        listen={"http": Listen(0)}, storage=StorageConfig(mode="memory"), users=USERS, **keys
    )
    async with Broker(config) as broker, aiohttp.ClientSession() as client:
        site = Site(broker, client)
        site.vhost.declare_queue("q", durable=True)
        site.vhost.declare_exchange("x", "fanout", durable=True)
        yield site


DEAD = {"x-dead-letter-exchange": "x"}
ALTERNATE = {"alternate-exchange": "x"}
#: by either API
DECLARATIONS = {
    "compatible": [
        ("POST", "bindings/%2F/e/amq.direct/q/q", {"routing_key": "k"}),
        ("POST", "bindings/%2F/e/amq.direct/e/x", {"routing_key": "k"}),
        ("PUT", "queues/%2F/dying", {"durable": True, "arguments": DEAD}),
        ("PUT", "exchanges/%2F/e", {"type": "topic", "durable": True, "arguments": ALTERNATE}),
    ],
    "own": [
        ("POST", "v1/vhosts/%2F/bindings", {"source": "amq.direct", "destination": "q"}),
        (
            "POST",
            "v1/vhosts/%2F/bindings",
            {"source": "amq.direct", "destination": "x", "destination_kind": "exchange"},
        ),
        ("PUT", "v1/vhosts/%2F/queues/dying", {"arguments": DEAD}),
        ("PUT", "v1/vhosts/%2F/exchanges/e", {"type": "topic", "arguments": ALTERNATE}),
    ],
}


@pytest.mark.parametrize("api", DECLARATIONS)
async def test_what_is_declared_over_http_is_in_force_by_the_callers_rights(api: str) -> None:
    async with serve() as site:
        site.permit("ann", ".*")
        for method, path, body in DECLARATIONS[api]:
            assert await site.ask(method, path, body) in (201, 204), path
        found = site.declared()
        assert set(found) == {"ann binding", "ann queue", "ann topicexchange"}
        assert all(suspensions.is_in_force(item) for item in found.values())
        site.permit("ann", "")
        assert not any(suspensions.is_in_force(item) for item in found.values())
        assert not site.vhost.route(site.vhost.exchange("amq.direct"), b"k").destinations
        site.permit("ann", ".*")
        assert all(suspensions.is_in_force(item) for item in found.values())


POLICY = {"pattern": "^q$", "definition": {"dead-letter-exchange": "x"}}


@pytest.mark.parametrize("path", ["policies/%2F/p", "v1/vhosts/%2F/policies/p"])
async def test_a_policy_that_is_set_over_http_is_the_callers(path: str) -> None:
    async with serve() as site:
        users = site.broker.users
        users.add("pol", users.hash(b"p")[0], ["policymaker"])
        site.permit("pol", ".*")
        assert await site.ask("PUT", path, POLICY, "pol") == 201
        assert suspensions.is_in_force(site.declared()["pol policy"])
        users.set_tags("pol", [])
        site.broker.logins.due()
        assert not suspensions.is_in_force(site.declared()["pol policy"])


IMPORT = {
    "policies": [{"vhost": "/", "name": "p", **POLICY}],
    "queues": [{"vhost": "/", "name": "dying", "durable": True, "arguments": DEAD}],
    "exchanges": [
        {"vhost": "/", "name": "e", "type": "topic", "durable": True, "arguments": ALTERNATE}
    ],
    "bindings": [
        {
            "vhost": "/",
            "source": "amq.direct",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "k",
            "arguments": {},
        }
    ],
}


@pytest.mark.parametrize("path", ["definitions", "definitions/%2F"])
async def test_what_an_import_brings_is_in_force_while_the_importer_might_import_it(
    path: str,
) -> None:
    """Which needs the tag, and no permission."""
    async with serve() as site:
        users = site.broker.users
        users.add("boss", users.hash(b"p")[0], ["administrator"])
        assert await site.ask("POST", path, IMPORT, "boss") == 204
        found = site.declared()
        assert set(found) == {
            *("boss binding", "boss queue", "boss topicexchange", "boss policy"),
        }
        row = suspensions.declarer_of(found["boss queue"])
        assert row is not None
        again = site.broker.authentication.declarers.restored(row.row, "/")
        assert isinstance(again, Declarer)
        for tags, is_in_force in ((["management"], False), (["administrator"], True)):
            users.set_tags("boss", tags)
            site.broker.logins.due()
            assert all(suspensions.is_in_force(item) is is_in_force for item in found.values())
            destinations = site.vhost.route(site.vhost.exchange("amq.direct"), b"k").destinations
            assert bool(destinations) is is_in_force
            assert again.may_pass_on("queue", "dying", "x", None) is is_in_force


@pytest.mark.parametrize("path", ["queues/%2F/", "v1/vhosts/%2F/queues/"])
async def test_queues_that_are_declared_over_http_count_for_the_callers_quota(path: str) -> None:
    async with serve() as site:
        site.permit("ann", ".*")
        site.broker.quotas.set_limits("user", "ann", {"max-queues": 2})
        statuses = [await site.ask("PUT", f"{path}{each}", {"durable": True}) for each in "abc"]
        assert statuses[:2] == [201, 201]
        assert statuses[2] >= 400
        assert "c" not in site.vhost.queues
        assert site.broker.quotas.account("user", "ann").used[3] == 2


async def test_an_import_counts_for_the_importers_quota() -> None:
    async with serve() as site:
        site.broker.quotas.set_limits("user", "admin", {"max-queues": 1})
        queues = [{"vhost": "/", "name": each, "durable": True, "arguments": {}} for each in "ab"]
        assert await site.ask("POST", "definitions", {"queues": queues}, "admin") == 400
        assert "a" in site.vhost.queues
        assert "b" not in site.vhost.queues


MESSAGE = {"routing_key": "q", "payload": "pp", "payload_encoding": "string", "properties": {}}
PUBLISHING = {
    "exchanges/%2F/amq.default/publish": MESSAGE,
    "v1/vhosts/%2F/exchanges/amq.default/messages": {
        "messages": [{"key": "q", "payload": "pp", "mode": "at-most-once"}]
    },
}


@pytest.mark.parametrize("scope", ["user", "vhost", "listener"])
@pytest.mark.parametrize("path", PUBLISHING)
async def test_what_is_published_over_http_counts_for_rates(path: str, scope: str) -> None:
    async with serve() as site:
        site.permit("ann", ".*")
        name = {"user": "ann", "vhost": "/", "listener": "http"}[scope]
        quotas = site.broker.quotas
        quotas.set_limits(
            scope, name, {"publish-messages-per-second": 10, "publish-bytes-per-second": 100}
        )
        account = quotas.account(scope, name)
        assert account.messages is not None
        assert account.bytes is not None
        account.charge(9, 97, site.broker.elapsed_ms)
        assert await site.ask("POST", path, PUBLISHING[path]) in (200, 202)
        assert quotas.waits == 0
        # It has taken the last message, and the last bytes.
        assert account.wait(site.broker.elapsed_ms) > 0
        assert await site.ask("POST", path, PUBLISHING[path]) in (200, 202)
        assert quotas.waits == 1
        assert len(site.vhost.queues["q"]) == 2


@pytest.mark.parametrize("path", PUBLISHING)
async def test_who_would_wait_for_long_is_told_when_to_come_again(path: str) -> None:
    async with serve() as site:
        site.permit("ann", ".*")
        site.broker.quotas.set_limits("user", "ann", {"publish-messages-per-second": 1})
        account = site.broker.quotas.account("user", "ann")
        account.charge(21, 0, site.broker.elapsed_ms)
        assert await site.ask("POST", path, PUBLISHING[path]) == 429
        assert 15 <= int(site.headers["Retry-After"]) <= 21
        assert len(site.vhost.queues["q"]) == 0


@pytest.mark.parametrize("most", ["MAX_WAITING", "MAX_WAITING_BYTES"])
async def test_few_wait_at_once(monkeypatch: pytest.MonkeyPatch, most: str) -> None:
    async with serve() as site:
        site.permit("ann", ".*")
        site.broker.quotas.set_limits("user", "ann", {"publish-messages-per-second": 1})
        site.broker.quotas.account("user", "ann").charge(1, 0, site.broker.elapsed_ms)
        monkeypatch.setattr(pacing, most, 0)
        path, body = next(iter(PUBLISHING.items()))
        assert await site.ask("POST", path, body) == 429


async def test_who_has_lost_a_right_while_it_waited_does_not_publish() -> None:
    async with serve() as site:
        site.permit("ann", ".*")
        site.broker.quotas.set_limits("user", "ann", {"publish-messages-per-second": 4})
        site.broker.quotas.account("user", "ann").charge(4, 0, site.broker.elapsed_ms)
        path, body = next(iter(PUBLISHING.items()))
        asked = asyncio.ensure_future(site.ask("POST", path, body))
        while site.broker.quotas.waits == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        site.permit("ann", "^other$")
        assert await asked == 401
        assert len(site.vhost.queues["q"]) == 0
