"""Looking at messages over HTTP: in queues without taking them, and retained ones as a tree."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.rest import Site, serve
from trivium.queues import sub_queues
from trivium.security.permissions import grants_of

MESSAGES = "vhosts/%2F/queues/q/messages"
LEVELS = "vhosts/%2F/retained-levels"
TOPICS = "vhosts/%2F/topics/messages"


async def fill(site: Site, count: int, **more: Any) -> None:
    """Messages 0, 1, ... for the queue q."""
    for start in range(0, count, 100):
        numbers = range(start, min(count, start + 100))
        messages = [{"key": "q", "payload": str(number), **more} for number in numbers]
        path = "vhosts/%2F/exchanges/amq.default/messages"
        status, found = await site.ask("POST", path, json={"messages": messages})
        assert (status, set(found["outcomes"])) == (202, {"accepted"})


async def look(site: Site, query: str = "", user: str = "root") -> dict[str, Any]:
    status, found = await site.ask("GET", MESSAGES + query, user)
    assert status == 200, found
    answer: dict[str, Any] = found
    return answer


def payloads(found: dict[str, Any]) -> list[str]:
    return [each["payload"] for each in found["messages"]]


async def test_to_look_takes_and_marks_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        await fill(site, 3, headers={"a": 1}, content_type="text/plain", correlation_id="c")
        for _ in range(2):
            found = await look(site)
            assert payloads(found) == ["0", "1", "2"]
            assert (found["priority"], found["priorities"], found["next"]) == (0, 1, None)
        first = found["messages"][0]
        assert (first["headers"], first["mode"], first["exchange"], first["key"]) == (
            {"a": 1},
            "at-least-once",
            "",
            "q",
        )
        assert first["properties"] == {"content_type": "text/plain", "correlation_id": "c"}
        assert (len(queue), queue.unsettled) == (3, 0)
        taken = queue.get()
        assert taken is not None
        assert not taken.is_redelivered
        # What somebody has is not there; what has come back is where it was.
        assert payloads(await look(site)) == ["1", "2"]
        queue.requeue(taken)
        found = await look(site)
        assert payloads(found) == ["0", "1", "2"]
        assert [each["redelivered"] for each in found["messages"]] == [True, False, False]


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_queue_is_looked_through_by_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_durable: bool
) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=is_durable)
        await fill(site, 25)
        seen: list[str] = []
        first: int | None = 0
        while first is not None:
            found = await look(site, f"?first={first}&limit=10")
            seen += payloads(found)
            first = found["next"]
        assert seen == [str(number) for number in range(25)]
        assert payloads(await look(site, "?first=7&limit=2")) == ["7", "8"]
        assert await look(site, "?first=9000") == {
            "queue": "q",
            "priority": 0,
            "priorities": 1,
            "messages": [],
            "next": None,
        }
        assert len(queue) == 25


@pytest.mark.pure
async def test_what_is_in_the_log_alone_is_looked_at_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sub_queues, "CACHED_ENTRIES", 4)
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        await fill(site, 10)
        await fill(site, 1, mode="at-most-once")
        assert queue.ready.lowest.is_spilled
        seen: list[str] = []
        first: int | None = 0
        while first is not None:
            found = await look(site, f"?first={first}&limit=3")
            seen += payloads(found)
            first = found["next"]
        assert seen == [*(str(number) for number in range(10)), "0"]
        assert queue.ready.lowest.cached == 4


async def test_a_queue_is_looked_into_after_a_restart(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        await fill(site, 3)
    async with serve(tmp_path) as site:
        assert payloads(await look(site)) == ["0", "1", "2"]


async def test_priorities_are_looked_at_one_by_one(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        arguments: Any = {"x-max-priority": 3}
        site.broker.vhost("/").declare_queue("q", durable=True, arguments=arguments)
        assert (await look(site))["priority"] == 3
        await fill(site, 1)
        found = await look(site)
        assert (payloads(found), found["priority"]) == (["0"], 0), "the highest that has any"
        await fill(site, 2, priority=3)
        found = await look(site)
        assert (payloads(found), found["priority"], found["priorities"]) == (["0", "1"], 3, 4)
        assert payloads(await look(site, "?priority=0")) == ["0"]
        assert payloads(await look(site, "?priority=1")) == []


async def test_payloads_are_cut_between_characters(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        path = "vhosts/%2F/exchanges/amq.default/messages"
        messages = [
            {"key": "q", "payload": "aü"},
            {"key": "q", "payload_base64": base64.b64encode(b"a\xff\xff").decode()},
        ]
        assert (await site.ask("POST", path, json={"messages": messages}))[0] == 202
        text, octets = (await look(site, "?payload_bytes=2"))["messages"]
        assert (text["payload"], text["bytes"], text["is_cut"]) == ("a", 3, True)
        assert (octets["payload"], octets["is_cut"]) == (None, True)
        assert base64.b64decode(octets["payload_base64"]) == b"a\xff"
        text, octets = (await look(site))["messages"]
        assert (text["payload"], text["is_cut"], octets["payload"]) == ("aü", False, None)


async def test_what_has_expired_or_is_delayed_is_not_there(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        await fill(site, 1, delay_ms=100_000)
        await fill(site, 1, expiration_ms=0)
        await fill(site, 1, expiration_ms=100_000)
        (left,) = (await look(site))["messages"]
        assert left["expires_at"] > left["published_at"]


async def test_to_look_needs_leave_to_read(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        vhost.declare_queue("q", durable=True)
        assert (await site.ask("GET", MESSAGES, "joe"))[0] == 403
        grants = grants_of({"/": {"configure": ".*", "write": ".*", "read": "^other$"}}, {}, [], [])
        site.broker.permissions.set_user("joe", grants)
        assert (await site.ask("GET", MESSAGES, "joe"))[0] == 403
        assert (await site.ask("GET", MESSAGES.replace("q/", "none/"), "joe"))[0] == 403
        assert (await site.ask("GET", MESSAGES.replace("/q/", "/none/")))[0] == 404
        # What is one connection's alone, or a protocol's own, is for who watches.
        vhost.declare_queue("own", owner=object())
        own = MESSAGES.replace("/q/", "/own/")
        assert (await site.ask("GET", own, "man"))[0] in (403, 409)
        assert (await site.ask("GET", own))[0] == 200


async def retain(site: Site, *topics: str, user: str = "root") -> None:
    for topic in topics:
        body = {"topic": topic, "payload": topic, "qos": 1, "retain": True}
        status, found = await site.ask("POST", TOPICS, user, json=body)
        assert (status, found["outcomes"]) == (202, ["accepted"])


async def bind(site: Site, key: str) -> None:
    """Bind the queue q to the exchange of topics."""
    body = {"source": "amq.topic", "destination": "q", "key": key}
    assert (await site.ask("POST", "vhosts/%2F/bindings", json=body))[0] == 201


async def tree(site: Site, query: str = "", user: str = "root") -> list[tuple[str, bool, bool]]:
    status, found = await site.ask("GET", LEVELS + query, user)
    assert status == 200, found
    return [(each["level"], each["has_message"], each["has_levels"]) for each in found["items"]]


async def test_retained_topics_are_a_tree(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await retain(site, "a/b/c", "a/b/d", "a", "a!", "b", "/x", "a//y", "a/b.c/1", "c%2B/1")
        assert await tree(site) == [
            ("", False, True),
            ("a", True, True),
            ("a!", True, False),
            ("b", True, False),
            ("c%2B", False, True),
        ]
        assert await tree(site, "?prefix=a/") == [
            ("", False, True),
            ("b", False, True),
            ("b.c", False, True),
        ]
        assert await tree(site, "?prefix=a/b/") == [("c", True, False), ("d", True, False)]
        assert await tree(site, "?prefix=a//") == [("y", True, False)]
        assert await tree(site, "?prefix=/") == [("x", True, False)]
        assert await tree(site, "?prefix=none/") == []
        for prefix in ("a", "%2B/", "%23/"):
            assert (await site.ask("GET", f"{LEVELS}?prefix={prefix}"))[0] == 400


async def test_levels_come_in_parts_and_skip_what_is_below(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await retain(site, *(f"{level}/{below}" for level in "abcde" for below in range(5)))
        found: list[str] = []
        after = ""
        while True:
            status, part = await site.ask("GET", f"{LEVELS}?limit=2{after}")
            assert status == 200
            found += [each["level"] for each in part["items"]]
            if part["next"] is None:
                break
            after = f"&after={part['next']}"
        assert found == list("abcde")


async def test_levels_are_shown_of_topics_that_may_be_read(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await retain(site, "a/1", "b/2", "b/3", "c")
        grants = grants_of(
            {"/": {"configure": ".*", "write": "", "read": ""}}, {}, ["topic read b/3"], []
        )
        site.broker.permissions.set_user("man", grants)
        assert await tree(site, "", "man") == [("b", False, True)]
        assert await tree(site, "?prefix=b/", "man") == [("3", True, False)]


async def test_a_topic_is_published_to_as_by_mqtt(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        await bind(site, "a.#")
        body = {
            "topic": "a/b.c",
            "payload_json": {"x": 1},
            "qos": 2,
            "expiry_seconds": 60,
            "response_topic": "r/1",
            "correlation_data": "c",
            "user_properties": [["n", "1"], ["n", "2"]],
        }
        status, found = await site.ask("POST", TOPICS, json=body)
        assert (status, found["outcomes"]) == (202, ["accepted"])
        (seen,) = (await look(site))["messages"]
        assert (seen["key"], seen["mode"], seen["payload"]) == ("a.b/c", "exactly-once", '{"x": 1}')
        assert seen["properties"] == {
            "content_type": "application/json",
            "correlation_id": "c",
            "reply_to_topic": "r/1",
            "expiration_ms": 60_000,
        }
        assert seen["headers"] == {"n": "1"}
        # Nobody is there, and nothing is kept.
        status, found = await site.ask("POST", TOPICS, json={"topic": "z"})
        assert (status, found["outcomes"]) == (202, ["unroutable"])


async def test_a_topic_keeps_what_is_retained_until_an_empty_message(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await retain(site, "a/b")
    async with serve(tmp_path) as site:
        status, found = await site.ask("GET", "vhosts/%2F/retained/a%2Fb")
        assert (status, found["payload"], found["mode"]) == (200, "a/b", "at-least-once")
        body = {"topic": "a/b", "retain": True}
        assert (await site.ask("POST", TOPICS, json=body))[0] == 202
        assert await tree(site) == []


async def test_what_is_published_but_not_retained_is_told(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        limits = {"limits": {"max-retained-messages": 1}}
        assert (await site.ask("PUT", "vhosts/%2F", json=limits))[0] in (200, 204)
        site.broker.vhost("/").declare_queue("q", durable=True)
        await bind(site, "#")
        key = {"Idempotency-Key": "k"}
        for body, outcome, headers in (
            ({"topic": "a", "payload": "1"}, "accepted", {}),
            ({"topic": "b", "payload": "2"}, "unretained", key),
            ({"topic": "b", "payload": "2"}, "unretained", key),
            ({"topic": "a", "payload": "3"}, "accepted", {}),
            ({"topic": "b", "payload": ""}, "accepted", {}),
        ):
            wanted = {**body, "retain": True}
            status, found = await site.ask("POST", TOPICS, json=wanted, headers=headers)
            assert (status, found["outcomes"]) == (202, [outcome]), body
        assert [each["payload"] for each in (await look(site))["messages"]] == ["1", "2", "3", ""]
        assert [topic for topic, *_ in await tree(site)] == ["a"]


async def test_a_message_of_a_topic_has_the_trace_of_its_request(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        await bind(site, "a")
        trace = f"00-{'1' * 32}-{'2' * 16}-01"
        headers = {"traceparent": trace}
        assert (await site.ask("POST", TOPICS, json={"topic": "a"}, headers=headers))[0] == 202
        (seen,) = (await look(site))["messages"]
        assert seen["headers"] == {"traceparent": trace}


async def test_a_topic_is_published_to_once_with_a_key(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        await bind(site, "a")
        for is_repeated in (False, True):
            key = {"Idempotency-Key": "k"}
            body = {"topic": "a", "qos": 1}
            _, found = await site.ask("POST", TOPICS, json=body, headers=key)
            assert found["repeated"] is is_repeated
        assert len(queue) == 1


@pytest.mark.parametrize("topic", ["a/+", "#", "a\0", "$SYS/a", "$x", "/".join("a" * 200), ""])
async def test_what_is_no_topic_to_publish_to_is_refused(tmp_path: Path, topic: str) -> None:
    async with serve(tmp_path) as site:
        assert (await site.ask("POST", TOPICS, json={"topic": topic}))[0] in (400, 422)


async def test_topics_need_the_permissions_of_mqtt(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        grants = grants_of(
            {"/": {"configure": "", "write": "", "read": ".*"}}, {}, ["topic write a/+"], []
        )
        site.broker.permissions.set_user("joe", grants)
        await retain(site, "a/b", user="joe")
        for topic in ("a", "a/b/c", "b"):
            assert (await site.ask("POST", TOPICS, "joe", json={"topic": topic}))[0] == 403


async def test_bindings_say_what_they_lead_to(tmp_path: Path) -> None:
    async with serve(tmp_path, protocols=["mqtt"]) as site:
        vhost = site.broker.vhost("/")
        vhost.declare_queue("q", durable=True)
        vhost.declare_stream("s")
        for destination, kind in (("q", "queue"), ("s", "queue"), ("amq.fanout", "exchange")):
            body = {
                "source": "amq.topic",
                "destination": destination,
                "destination_kind": kind,
                "key": "k",
            }
            assert (await site.ask("POST", "vhosts/%2F/bindings", json=body))[0] == 201
        host, _, port = site.broker.listeners["mqtt"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        # CONNECT without a clean session, and SUBSCRIBE to a/+ at QoS 1 (MQTT 3.1.1).
        name = b"\x00\x06client"
        login = b"\x00\x04root\x00\x01p"
        connect = b"\x00\x04MQTT\x04\xc0\x00\x00" + name + login
        writer.write(bytes((0x10, len(connect))) + connect + b"\x82\x08\x00\x01\x00\x03a/+\x01")
        assert await reader.readexactly(9) == b"\x20\x02\x00\x00\x90\x03\x00\x01\x01"

        async def seen(user: str) -> list[tuple[str, str, bool]]:
            _, found = await site.ask("GET", "vhosts/%2F/bindings?source=amq.topic", user)
            return sorted(
                (each["destination_type"], each["destination"], each["is_filter"])
                for each in found["items"]
            )

        plain = [
            ("exchange", "amq.fanout", False),
            ("queue", "q", False),
            ("stream", "s", False),
        ]
        assert await seen("man") == plain
        # Who has subscribed to what is for who watches.
        assert await seen("root") == sorted([*plain, ("session", "client", True)])
        _, found = await site.ask("GET", "vhosts/%2F/bindings?source=amq.default")
        assert sorted(each["destination_type"] for each in found["items"]) == [
            "queue",
            "queue",
            "stream",
        ]
        writer.close()
