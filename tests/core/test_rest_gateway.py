"""Messages over HTTP: published, lent by queues, read from streams."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.support.rest import Site, authorization, filled, serve, until
from trivium.config import AuthConfig, JwtConfig, LimitsConfig
from trivium.idempotence.deduplication import REQUEST, Settings, short_id
from trivium.management.publishing import message_of
from trivium.management.publishing import publish as publish_neutral
from trivium.management.rest import ENDPOINTS, gateway
from trivium.management.stream_reading import PartitionRead
from trivium.messages.message import Properties
from trivium.security.passwords import hash_password
from trivium.security.permissions import grants_of

EXCHANGES = "vhosts/%2F/exchanges"
LEASES = "vhosts/%2F/queues/q/leases"


async def publish(
    site: Site,
    *messages: dict[str, Any],
    user: str = "root",
    vhost: str = "%2F",
    **options: Any,
) -> Any:
    """Publish by the default exchange."""
    path = f"vhosts/{vhost}/exchanges/amq.default/messages"
    return await site.ask("POST", path, user, json={"messages": list(messages)}, **options)


async def lend(site: Site, user: str = "root", **wanted: Any) -> list[dict[str, Any]]:
    status, found = await site.ask("POST", LEASES, user, json=wanted)
    assert status == 200, found
    messages: list[dict[str, Any]] = found["messages"]
    return messages


async def settle(site: Site, leases: list[str], outcome: str = "accept") -> Any:
    body = {"leases": leases, "outcome": outcome}
    return await site.ask("POST", LEASES + "/settle", json=body)


async def test_what_is_published_is_there_after_a_restart_and_unroutable_is_said(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        status, found = await publish(
            site,
            {"key": "q", "payload": "text", "headers": {"a": 1}, "content_type": "text/plain"},
            {"key": "q", "payload_base64": "/w==", "mode": "exactly-once", "message_id": "m"},
            {"key": "q", "payload_json": {"a": [1, "ü"]}},
            {"key": "nobody"},
        )
        assert (status, found["repeated"]) == (202, False)
        assert found["outcomes"] == ["accepted"] * 3 + ["unroutable"]
    async with serve(tmp_path) as site:
        first, second, third = await lend(site, count=10)
        assert (first["payload"], first["headers"], first["content_type"]) == (
            "text",
            {"a": 1},
            "text/plain",
        )
        assert (second["payload"], second["payload_base64"], second["message_id"]) == (
            None,
            "/w==",
            "m",
        )
        assert (third["payload"], third["content_type"]) == ('{"a": [1, "ü"]}', "application/json")


async def test_a_message_is_shown_with_all_that_its_publisher_says(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        vhost.declare_queue("q", durable=True)
        vhost.declare_stream("s")
        properties = Properties(
            content_type="text/plain",
            content_encoding="identity",
            correlation_id=b"c",
            reply_to="answers",
            reply_to_topic=b"a.b",
            expiration=60_000,
            message_id="m",
            timestamp=5,
            type_="kind",
            user_id="root",
            app_id="app",
            headers=[("h", 1)],
        )
        for key in (b"q", b"s"):
            publish_neutral(
                vhost, message_of(site.broker, vhost, "", key, properties, b"x", True, 7)
            )
        (lent,) = await lend(site)
        path = "vhosts/%2F/streams/s/partitions/0/records?wait_ms=10000"
        (record,) = (await site.ask("GET", path))[1]["records"]
        queued = (lent, ("lease", "redelivered", "message_id"), "q")
        for found, own, queue in (queued, (record, ("offset",), "s")):
            for name in (*own, "published_at"):
                assert found.pop(name) is not None
            assert found == {
                "exchange": "",
                "key": queue,
                "payload": "x",
                "payload_base64": "eA==",
                "mode": "at-least-once",
                "priority": 7,
                "content_type": "text/plain",
                "properties": {
                    "content_type": "text/plain",
                    "content_encoding": "identity",
                    "message_id": "m",
                    "correlation_id": "c",
                    "reply_to": "answers",
                    "reply_to_topic": "a/b",
                    "expiration_ms": 60_000,
                    "timestamp": 5,
                    "type": "kind",
                    "user_id": "root",
                    "app_id": "app",
                },
                "headers": {"h": 1},
            }


async def test_a_body_is_published_as_it_is(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        path = f"{EXCHANGES}/amq.default/messages/raw?key=q&content_type=image/png"
        octets = {"Content-Type": "application/octet-stream"}
        for data in (b"\x00\xff", b""):
            status, found = await site.ask("POST", path, data=data, headers=octets)
            assert (status, found["outcomes"]) == (202, ["accepted"])
        first, second = await lend(site, count=2)
        assert (first["payload_base64"], first["content_type"]) == ("AP8=", "image/png")
        assert second["payload"] == ""
        assert (await site.ask("POST", path + "&mode=odd", data=b"", headers=octets))[0] == 400
        path = path.replace("amq.default", "none")
        assert (await site.ask("POST", path, data=b"", headers=octets))[0] == 404


#: What a page of another site may send in a user's name without leave (CORS, simple requests).
SIMPLE = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "")


async def test_pages_of_other_sites_can_do_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        await publish(site, {"key": "q"})
        for operation in ENDPOINTS:
            if operation.method != "POST":
                continue
            path = filled(operation.path).replace("queues/nothing", "queues/q")
            path = path.replace("exchanges/nothing", "exchanges/amq.default")
            for kind in SIMPLE:
                for data in (b"{}", b""):
                    skips = ["Content-Type"] if not kind else []
                    status, _ = await site.ask(
                        "POST",
                        path,
                        data=data,
                        headers={"Content-Type": kind} if kind else {},
                        skip_auto_headers=skips,
                    )
                    assert status == 415, (operation, kind, data)
        assert len(queue) == 1


async def test_a_request_with_an_idempotency_key_is_done_once_also_over_a_restart(
    tmp_path: Path,
) -> None:
    key = {"Idempotency-Key": "k"}
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        site.broker.vhost("/").declare_stream("s")
        for target in ("q", "s"):
            headers = {"Idempotency-Key": f"k-{target}"}
            messages = [{"key": target, "payload": "1"}, {"key": "nowhere"}]
            outcomes = ["accepted", "unroutable"]
            for repeated in (False, True, True):
                assert await publish(site, *messages, headers=headers) == (
                    202,
                    {"outcomes": outcomes, "repeated": repeated},
                )
        assert (await publish(site, {"key": "q"}, headers=key))[1]["repeated"] is False
        # Another user's key is another one.
        _, found = await publish(site, {"key": "q"}, user="man", headers=key)
        assert found["repeated"] is False
        assert len(queue) == 3
        assert site.broker.vhost("/").stream("s").record_count == 1
    async with serve(tmp_path) as site:
        again = {"outcomes": ["accepted"], "repeated": True}
        assert (await publish(site, {"key": "q"}, headers=key))[1] == again
        assert len(site.broker.vhost("/").queue("q")) == 3


async def test_a_key_that_comes_with_another_request_is_refused(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "k"}
    raw = {**key, "Content-Type": "application/octet-stream"}
    path = f"{EXCHANGES}/amq.default/messages/raw"

    async def refused(site: Site) -> None:
        for message in ({"key": "q", "payload": "2"}, {"key": "q", "payload": "1", "priority": 1}):
            status, found = await publish(site, message, headers=key)
            assert (status, found["type"]) == (422, "urn:trivium:problem:key-reused")
        assert (await publish(site, *[{"key": "q", "payload": "1"}] * 2, headers=key))[0] == 422
        assert (await site.ask("POST", f"{path}?key=q", data=b"1", headers=raw))[0] == 422

    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        assert (await publish(site, {"key": "q", "payload": "1"}, headers=key))[0] == 202
        await refused(site)
        raw["Idempotency-Key"] = "r"
        for query, status in (("key=q", 202), ("key=q&mode=at-most-once", 422), ("key=q", 202)):
            assert (await site.ask("POST", f"{path}?{query}", data=b"", headers=raw))[0] == status
        assert len(queue) == 2
    raw["Idempotency-Key"] = "k"
    async with serve(tmp_path) as site:
        await refused(site)
        _, found = await publish(site, {"key": "q", "payload": "1"}, headers=key)
        assert found["repeated"] is True


async def test_a_key_of_an_earlier_version_is_known_for_any_request(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        window = site.broker.vhost("/").deduplication.window(REQUEST, "root")
        window.add(short_id(b"amq.default\0k"), Settings(True, "", 10, 60_000), True, b"\0\1")
        answer = await publish(site, {"key": "q"}, headers={"Idempotency-Key": "k"})
        assert answer == (202, {"outcomes": ["accepted", "unroutable"], "repeated": True})
        assert len(queue) == 0


async def test_what_is_rejected_is_refused_and_may_be_asked_again(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "k"}
    async with serve(tmp_path) as site:
        arguments: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = site.broker.vhost("/").declare_queue("q", arguments=arguments)
        assert (await publish(site, {"key": "q"}))[0] == 202
        assert (await publish(site, {"key": "q"}, headers=key))[0] == 409
        queue.purge()
        assert (await publish(site, {"key": "q"}, headers=key))[1] == {
            "outcomes": ["accepted"],
            "repeated": False,
        }


async def test_a_lease_is_settled_rejected_given_back_or_over(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        await publish(site, *({"key": "q", "payload": str(number)} for number in range(4)))
        leases = [message["lease"] for message in await lend(site, count=3)]
        assert (queue.unsettled, len(queue)) == (3, 1)
        assert await settle(site, leases[:1]) == (200, {"settled": 1, "gone": []})
        assert await settle(site, [leases[0]]) == (200, {"settled": 0, "gone": [leases[0]]})
        assert await settle(site, leases[1:2], "requeue") == (200, {"settled": 1, "gone": []})
        assert await settle(site, leases[2:], "reject") == (200, {"settled": 1, "gone": []})
        assert (queue.unsettled, len(queue)) == (0, 2)
        # Who has it does not settle it in time: it comes again.
        taken = await lend(site, lease_ms=100)
        assert [(each["payload"], each["redelivered"]) for each in taken] == [("1", True)]
        again = await lend(site, count=2, wait_ms=20_000)
        while not any(each["payload"] == "1" for each in again):
            again += await lend(site, wait_ms=20_000)
        assert await settle(site, [taken[0]["lease"]]) == (
            200,
            {"settled": 0, "gone": [taken[0]["lease"]]},
        )


async def test_a_request_waits_for_the_next_message_and_then_no_longer(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        assert await lend(site, wait_ms=1) == []
        asked = asyncio.create_task(lend(site, wait_ms=30_000))
        await until(lambda: len(queue.consumers) > 0)
        await publish(site, {"key": "q", "payload": "x"})
        assert [each["payload"] for each in await asked] == ["x"]
        assert len(queue.consumers) == 0
        asked = asyncio.create_task(lend(site, wait_ms=30_000))
        await until(lambda: len(queue.consumers) > 0)
        site.broker.vhost("/").delete_queue(queue)
        assert await asked == []


async def test_leases_are_the_users_alone_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.management.leases.MAX_LEASES", 2)
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        await publish(site, *[{"key": "q"}] * 5)
        leases = [message["lease"] for message in await lend(site, "man", count=5)]
        assert len(leases) == 2
        status, found = await site.ask("POST", LEASES, "man", json={})
        assert (status, found["type"]) == (429, "urn:trivium:problem:too-many-requests")
        # Another user has none of these.
        assert await settle(site, leases) == (200, {"settled": 0, "gone": leases})
        assert queue.unsettled == 2


async def test_leases_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.management.leases.MAX_LEASED_BYTES", 10)
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        await publish(site, *({"key": "q", "payload": "x" * size} for size in (9, 1, 1)))
        leases = [message["lease"] for message in await lend(site)]
        # One byte is left, so there is room for a message, whatever its size; then there is none.
        leases += [message["lease"] for message in await lend(site)]
        status, found = await site.ask("POST", LEASES, json={})
        assert (status, found["type"]) == (429, "urn:trivium:problem:too-many-requests")
        assert await settle(site, leases[1:]) == (200, {"settled": 1, "gone": []})
        assert len(await lend(site)) == 1, "what is settled takes no room"


async def test_a_later_user_has_no_leases_and_keys_of_a_deleted_one(tmp_path: Path) -> None:
    grants = {"configure": ".*", "write": ".*", "read": ".*"}

    def add(site: Site) -> None:
        site.broker.users.add("eve", hash_password(b"p"), ["management"])
        granted = site.broker.authentication.granted
        granted.set("user", "eve", grants_of({"/": grants}, {}, [], []))

    key = {"Idempotency-Key": "k"}
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        add(site)
        assert (await publish(site, {"key": "q"}, user="eve", headers=key))[1]["repeated"] is False
        assert len(await lend(site, "eve")) == 1
        assert (queue.unsettled, len(queue)) == (1, 0)
        assert (await site.ask("DELETE", "users/eve"))[0] == 204
        assert (queue.unsettled, len(queue)) == (0, 1)
        await until(lambda: not site.broker.users.leaving)
        add(site)
        assert (await publish(site, {"key": "q"}, user="eve", headers=key))[1]["repeated"] is False
        assert len(queue) == 2


async def test_a_new_user_has_no_leases_keys_and_members_of_whom_others_know_by_its_name(
    tmp_path: Path,
) -> None:
    secret = "a secret of more than thirty-two bytes"
    (tmp_path / "key").write_text(secret, encoding="utf-8")
    scopes = ["read:*/*", "write:*/*", "tag:management"]
    claims = {"sub": "eve", "exp": int(time.time()) + 600, "scope": scopes}
    token = {"Authorization": f"Bearer {jwt.encode(claims, secret, 'HS256')}"}
    key = {"Idempotency-Key": "k"}
    grants = {"configure": ".*", "write": ".*", "read": ".*"}
    config = JwtConfig(key_file=str(tmp_path / "key"), scopes_claim="scope", tags_claim="tags")
    async with serve(tmp_path, jwt=config) as site:
        vhost = site.broker.vhost("/")
        queue = vhost.declare_queue("q", durable=True)
        vhost.declare_stream("s")
        for is_again in (False, True):
            _, found = await publish(site, {"key": "q"}, user="", headers=token | key)
            assert found["repeated"] is is_again
        assert (await site.ask("POST", LEASES, "", headers=token, json={}))[0] == 200
        body = {"streams": ["s"], "member": "m"}
        members = "vhosts/%2F/groups/g/members"
        assert (await site.ask("POST", members, "", headers=token, json=body))[0] == 201
        assert (queue.unsettled, vhost.memberships.members("g") is None) == (1, False)
        site.broker.users.add("eve", hash_password(b"p"), ["management"])
        site.broker.authentication.granted.set("user", "eve", grants_of({"/": grants}, {}, [], []))
        assert (queue.unsettled, vhost.memberships.members("g")) == (0, None)
        assert (await publish(site, {"key": "q"}, user="eve", headers=key))[1]["repeated"] is False


async def test_a_stream_is_read_from_an_offset_on_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    class Read(PartitionRead):
        def step(self) -> None:
            super().step()
            began.set()

    async with serve(tmp_path) as site:
        partition = site.broker.vhost("/").declare_stream("s").partitions[0]
        path = "vhosts/%2F/streams/s/partitions/0/records"
        await publish(site, *({"key": "s", "payload": str(number)} for number in range(5)))
        _, found = await site.ask("GET", path + "?limit=2")
        assert [each["payload"] for each in found["records"]] == ["0", "1"]
        _, found = await site.ask("GET", f"{path}?offset={found['next_offset']}")
        assert [each["offset"] for each in found["records"]] == [2, 3, 4]
        assert (found["next_offset"], found["high_watermark"]) == (5, 5)
        _, found = await site.ask("GET", path + "?offset=last")
        assert [each["payload"] for each in found["records"]] == ["4"]
        assert (await site.ask("GET", path + "?offset=next"))[1]["records"] == []
        assert (await site.ask("GET", path + "?offset=6"))[0] == 404
        assert (await site.ask("GET", path + "?offset=odd"))[0] == 400
        assert (await site.ask("GET", path.replace("/0/", "/1/")))[0] == 404
        assert partition.records_read == 6
        monkeypatch.setattr(gateway, "PartitionRead", Read)
        asked = asyncio.create_task(site.ask("GET", path + "?offset=next&wait_ms=30000"))
        await began.wait()
        await publish(site, {"key": "s", "payload": "new"})
        assert [each["payload"] for each in (await asked)[1]["records"]] == ["new"]


async def test_messages_need_the_permissions_of_every_road(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        vhost.declare_queue("q", durable=True)
        vhost.declare_stream("s")
        vhost.declare_exchange("inside", "topic", internal=True)
        asked: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", f"{EXCHANGES}/amq.default/messages", {"json": {"messages": [{}]}}),
            ("POST", LEASES, {"json": {}}),
            ("POST", LEASES + "/settle", {"json": {"leases": ["x"]}}),
            ("GET", "vhosts/%2F/streams/s/partitions/0/records", {}),
        ]
        for method, path, options in asked:
            assert (await site.ask(method, path, "joe", **options))[0] == 403
        path = f"{EXCHANGES}/inside/messages"
        assert (await site.ask("POST", path, json={"messages": [{}]}))[0] == 403
        refused: list[tuple[dict[str, Any], int]] = [
            ({"payload": "a", "payload_base64": "YQ=="}, 400),
            ({"payload_base64": "!"}, 400),
            ({"key": "." * 128}, 409),
            ({"mode": "odd"}, 422),
            ({"priority": 256}, 422),
            ({"headers": {"x-delivery": "odd"}}, 409),
        ]
        for message, wanted in refused:
            assert (await publish(site, message))[0] == wanted, message
        assert (await publish(site, *[{}] * 101))[0] == 422


async def test_clients_without_credentials_come_where_the_listener_admits_them(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        assert (await publish(site, {"key": "q"}, user=""))[0] == 202
        headers = {"Idempotency-Key": "k"}
        assert (await publish(site, {"key": "q"}, user="", headers=headers))[0] == 400
        assert len(await lend(site, "")) == 1
        told: list[tuple[str, object]] = []
        site.broker.events.listen(lambda event, about: told.append((event, about.get("user"))))
        assert (await site.ask("GET", "queues", ""))[0] == 401
        # Nobody has come in there.
        assert told == [("user.authentication.failure", None)]
        status, found = await publish(site, {}, vhost="none")
        assert (status, found["detail"]) == (404, "no virtual host 'none'")
        assert (await site.ask("GET", "vhosts/none/queues"))[1]["detail"] == found["detail"]
    async with serve(tmp_path, auth=AuthConfig(anonymous="never")) as site:
        assert (await publish(site, {"key": "q"}, user=""))[0] == 401


async def test_who_publishes_faster_than_it_may_is_told_when_to_come_again(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q")
        limits = {"publish-messages-per-second": 5}
        await site.ask("PUT", "users/new", json={"password": "p", "limits": limits})
        patterns = {"configure": "", "write": ".*", "read": ""}
        await site.ask("PUT", "users/new/permissions/%2F", json=patterns)
        messages = [{"key": "q"}] * 50
        assert (await publish(site, *messages, user="new"))[0] == 202
        assert (await publish(site, {"key": "q"}, user="new"))[0] == 429


async def test_publishers_wait_while_there_is_an_alarm(tmp_path: Path) -> None:
    # No disk has so much.
    async with serve(tmp_path, limits=LimitsConfig(disk_free_bytes=1 << 62)) as site:
        await until(lambda: site.broker.block_reason is not None)
        status, found = await publish(site, {})
        assert (status, found["detail"]) == (503, "publishers wait: low on disk")


async def test_names_of_headers_are_as_long_as_amqp_has_them(tmp_path: Path) -> None:
    """AMQP 0-9-1, 4.2.5.5: its clients would get the message without a longer one."""
    async with serve(tmp_path) as site:
        await site.ask("PUT", "vhosts/%2F/queues/q", json={})
        url = f"http://{site.broker.listeners['http']}/api/exchanges/%2F/amq.default/publish"
        for name, wanted in (("é" * 127 + "x", 202), ("é" * 128, 400), ("x" * 300, 400)):
            for headers in ({name: 1}, {"in": [{name: 1}]}):
                status, found = await publish(site, {"key": "q", "headers": headers})
                assert status == wanted, found
                body: dict[str, Any] = {"routing_key": "q", "properties": {"headers": headers}}
                body |= {"payload": "", "payload_encoding": "string"}
                shown = authorization("root")
                async with site.client.post(url, json=body, headers=shown) as answer:
                    assert answer.status == (200 if wanted == 202 else 400)
