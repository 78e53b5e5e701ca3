"""Messages as they come: server-sent events and WebSockets of the HTTP port."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.support.core import message
from tests.support.rest import DOCUMENT, Site, authorization, serve, until
from trivium.common.quotas import SUBSCRIPTIONS
from trivium.management import subscriptions, waits
from trivium.management.subscriptions import MAX_OF_USER, MAX_WAITING
from trivium.observability import feeds
from trivium.queues.consumers import Consumer
from trivium.routing.exchanges import Binding
from trivium.streams.stream import Stream
from trivium.vhost.virtual_host import VirtualHost

TOPICS = "vhosts/%2F/exchanges/amq.topic/subscribe"
QUEUE = "vhosts/%2F/queues/q/subscribe"
STREAM = "vhosts/%2F/streams/s/partitions/0/subscribe"


def publish(
    vhost: VirtualHost, key: str, payload: bytes = b"x", exchange: str = "amq.topic"
) -> None:
    sent = message(payload, key=key.encode(), exchange=exchange)
    vhost.publish(sent, vhost.route(vhost.exchange(exchange), key.encode()))


async def said(socket: Any) -> tuple[str, Any]:
    """The next event of a WebSocket."""
    found = json.loads((await socket.receive(timeout=30)).data)
    return found["event"], found["data"]


async def next_of(events: Any) -> tuple[str, str, Any]:
    name, identity, data = await anext(events)
    return name, identity, data


async def permit(site: Site, **patterns: str) -> None:
    """What the user ``new`` may in ``/``."""
    body = {"configure": "", "write": "", "read": "", **patterns}
    assert (await site.ask("PUT", "users/new/permissions/%2F", json=body))[0] in (201, 204)


# Topics


async def test_events_are_what_is_published_to_topics_that_match(tmp_path: Path) -> None:
    async with serve(tmp_path) as site, site.events(TOPICS + "?key=a.%23") as events:
        vhost = site.broker.vhost("/")
        publish(vhost, "b.c")
        publish(vhost, "a.b", '<b>"ü\n'.encode())
        name, identity, data = await next_of(events)
        assert (name, identity, data["key"]) == ("message", "", "a.b")
        assert data["payload"] == '<b>"ü\n'
        assert data.keys() == DOCUMENT["components"]["schemas"]["LiveMessage"]["properties"].keys()


async def test_a_websocket_gets_the_same(tmp_path: Path) -> None:
    async with serve(tmp_path) as site, site.socket(TOPICS) as socket:
        publish(site.broker.vhost("/"), "a.b")
        name, data = await said(socket)
        assert (name, data["key"], data["payload"]) == ("message", "a.b", "x")
        for wrong in ("{}", "[", '"\\ud800"'):
            await socket.send_str(wrong)
            assert (await said(socket))[0] == "error"
        await socket.send_bytes(b"{}")
        assert (await said(socket))[0] == "error"


@pytest.mark.parametrize("way", ["events", "socket"])
@pytest.mark.parametrize("piece", [b'"\n<\xc3\xbc', b"\xff"])
async def test_a_long_message_comes_whole_between_others(
    tmp_path: Path, way: str, piece: bytes
) -> None:
    long = [piece * (size // len(piece)) for size in (250_000, 400_000)]
    payloads = [b"before", long[0], b"between", long[1], b"behind"]
    options = {"max_msg_size": 0} if way == "socket" else {}
    async with serve(tmp_path) as site, getattr(site, way)(TOPICS, **options) as feed:
        for number, payload in enumerate(payloads):
            publish(site.broker.vhost("/"), f"k.{number}", payload)
        async with asyncio.timeout(20):
            for number, payload in enumerate(payloads):
                if way == "socket":
                    name, data = await said(feed)
                else:
                    name, _, data = await next_of(feed)
                assert (name, data["key"]) == ("message", f"k.{number}")
                assert base64.b64decode(data["payload_base64"]) == payload
                is_text = piece != b"\xff" or len(payload) < 100
                assert data["payload"] == (payload.decode() if is_text else None)


@pytest.mark.parametrize("way", ["events", "socket"])
async def test_what_a_feed_sends_counts_once_and_while_it_goes_on(tmp_path: Path, way: str) -> None:
    size = 200_000
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")

        async def sent() -> int:
            # The answer itself has some thousand bytes.
            _, overview = await site.ask("GET", "overview")
            rows = {each["name"]: each for each in overview["protocols"]}
            return int(rows["http"]["bytes_sent"])

        async with asyncio.timeout(20):
            async with getattr(site, way)(TOPICS):
                before = await sent()
                publish(vhost, "a", b"x" * size)
                found = [await sent() for _ in range(10)]
                assert any(each > before + size for each in found), (before, found)
                after = await sent()
            await until(lambda: not vhost.exchange("amq.topic").is_used)
            # Whatever its end counts, it has by the time that there is another answer.
            await sent()
            assert await sent() < after + size


async def test_who_is_gone_leaves_no_binding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is looked at, and nothing sent.
    monkeypatch.setattr("trivium.observability.feeds.CHECK_SECONDS", 60.0)
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        async with site.events(TOPICS):
            assert vhost.exchange("amq.topic").is_used
        async with site.socket(TOPICS):
            pass
        async with asyncio.timeout(20):
            await until(lambda: not vhost.exchange("amq.topic").is_used)
        assert site.broker.quotas.account("user", "root").used[SUBSCRIPTIONS] == 0


async def test_a_slow_client_loses_messages_and_is_told_how_many(tmp_path: Path) -> None:
    async with serve(tmp_path) as site, site.events(TOPICS) as events:
        vhost = site.broker.vhost("/")
        for number in range(MAX_WAITING + 5):
            publish(vhost, str(number))
        keys = []
        while (event := await next_of(events))[0] == "message":
            keys.append(event[2]["key"])
        assert event[::2] == ("lost", {"messages": 5})
        assert keys == [str(number) for number in range(MAX_WAITING)]
        publish(vhost, "more")
        assert (await next_of(events))[2]["key"] == "more"


async def test_bytes_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_WAITING_BYTES", 1000)
    async with serve(tmp_path) as site, site.events(TOPICS) as events:
        for _ in range(5):
            publish(site.broker.vhost("/"), "a", b"x" * 600)
        assert [(await next_of(events))[0] for _ in range(3)] == ["message", "message", "lost"]


@pytest.mark.parametrize("kind", ["events", "socket"])
async def test_who_may_not_read_any_more_is_sent_no_more(tmp_path: Path, kind: str) -> None:
    async with serve(tmp_path) as site:
        await site.ask("PUT", "users/new", json={"password": "p"})
        await permit(site, read="^amq[.]topic$")
        following: Any = next_of if kind == "events" else said
        async with getattr(site, kind)(TOPICS, "new") as feed:
            publish(site.broker.vhost("/"), "a")
            assert (await following(feed))[0] == "message"
            await permit(site, read="^other$")
            publish(site.broker.vhost("/"), "b")
            found = await following(feed)
            assert (found[0], found[-1]) == ("end", {"reason": "access-refused"})
        assert (await site.ask("GET", TOPICS, "new"))[0] == 403


async def test_what_comes_with_a_password_ends_with_it(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        await site.ask("PUT", "users/new", json={"password": "p"})
        await permit(site, read=".*")
        async with site.events(TOPICS, "new") as events:
            await site.ask("PUT", "users/new", json={"password": "q"})
            assert (await next_of(events))[2] == {"reason": "access-refused"}


async def test_an_exchange_that_is_deleted_ends_it(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        vhost.declare_exchange("x", "fanout")
        async with site.events("vhosts/%2F/exchanges/x/subscribe") as events:
            publish(vhost, "k", exchange="x")
            assert (await next_of(events))[0] == "message"
            vhost.delete_exchange("x")
            assert (await next_of(events))[2] == {"reason": "deleted"}


async def test_the_default_exchange_has_no_subscribers(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for name, wanted in (("amq.default", 403), ("none", 404)):
            path = f"vhosts/%2F/exchanges/{name}/subscribe"
            assert (await site.ask("GET", path))[0] == wanted


async def test_head_begins_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        url = f"http://{site.broker.listeners['http']}/api/v1/{TOPICS}"
        async with (
            aiohttp.ClientSession() as client,
            client.head(URL(url, encoded=True), headers=authorization("root")) as answer,
        ):
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert not site.broker.vhost("/").exchange("amq.topic").is_used


async def test_subscribers_are_few_and_count_for_quotas(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(MAX_OF_USER):
                await stack.enter_async_context(site.events(TOPICS))
            assert (await site.ask("GET", TOPICS))[0] == 429
            await stack.enter_async_context(site.events(TOPICS, "man"))
        body = {"password": "p", "limits": {"max-subscriptions": 1}}
        await site.ask("PUT", "users/new", json=body)
        await permit(site, read=".*")
        async with site.events(TOPICS, "new"):
            status, found = await site.ask("GET", TOPICS, "new")
            assert (status, found["type"]) == (409, "urn:trivium:problem:limit-reached")


async def test_pages_of_other_sites_get_no_websocket(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q")
        here = site.broker.listeners["http"]
        async with site.socket(QUEUE, origin=f"http://{here}") as socket:
            assert not socket.closed
        for origin in ("http://elsewhere", "null", f"http://{here}.elsewhere", "http://"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await site.socket(QUEUE, origin=origin)
            assert refused.value.status == 403


# Queues


async def lent(socket: Any) -> Any:
    name, data = await said(socket)
    assert name == "message"
    return data


async def test_messages_of_a_queue_are_settled_by_the_same_websocket(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", durable=True)
        for payload in (b"1", b"2", b"3"):
            queue.put(message(payload), b"")
        async with site.socket(QUEUE) as socket:
            first, second, third = [await lent(socket) for _ in range(3)]
            assert [each["payload"] for each in (first, second, third)] == ["1", "2", "3"]
            await socket.send_json({"leases": [first["lease"], "none"]})
            assert await said(socket) == ("settled", {"settled": 1, "gone": ["none"]})
            await socket.send_json({"leases": [second["lease"]], "outcome": "requeue"})
            found = dict([await said(socket), await said(socket)])
            assert found["settled"] == {"settled": 1, "gone": []}
            again = found["message"]
            assert (again["payload"], again["redelivered"]) == ("2", True)
            await socket.send_json({"leases": [again["lease"]], "outcome": "reject"})
            assert (await said(socket))[0] == "settled"
            for wrong in ("{}", '{"leases": []}', '{"leases": ["x"], "outcome": "eat"}', "5"):
                await socket.send_str(wrong)
                assert (await said(socket))[0] == "error"
            # The document's names are all there.
            names = DOCUMENT["components"]["schemas"]["QueuedMessage"]["properties"].keys()
            assert third.keys() == names
        # What was not settled is there for others.
        async with site.socket(QUEUE) as socket:
            found = await lent(socket)
            assert (found["payload"], found["redelivered"]) == ("3", True)
        assert len(queue) + queue.unsettled == 1


async def test_a_client_has_at_most_its_limit_until_it_settles(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q")
        for number in range(5):
            queue.put(message(b"%d" % number), b"")
        async with site.socket(QUEUE + "?limit=2") as socket:
            first = await lent(socket)
            await lent(socket)
            assert (len(queue), queue.unsettled) == (3, 2)
            await socket.send_json({"leases": [first["lease"]]})
            assert {(await said(socket))[0] for _ in range(2)} == {"settled", "message"}
            assert (len(queue), queue.unsettled) == (2, 2)


async def test_what_is_not_settled_in_time_comes_again(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q")
        queue.put(message(b"x"), b"")
        async with site.socket(QUEUE + "?lease_ms=100") as socket:
            first = await lent(socket)
            again = await lent(socket)
            assert (first["lease"] == again["lease"], again["redelivered"]) == (False, True)
            await socket.send_json({"leases": [first["lease"]]})
            name, data = await said(socket)
            assert name in ("settled", "message")
            if name == "settled":
                assert data["gone"] == [first["lease"]]


async def test_leases_of_a_websocket_count_for_its_user(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q")
        queue.put(message(b"x"), b"")
        async with site.socket(QUEUE) as socket:
            found = await lent(socket)
            path = "vhosts/%2F/queues/q/leases/settle"
            status, settled = await site.ask("POST", path, json={"leases": [found["lease"]]})
            assert (status, settled["settled"]) == (200, 1)
            queue.put(message(b"y"), b"")
            assert (await lent(socket))["payload"] == "y"


async def test_a_queue_that_is_deleted_ends_it(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        queue = vhost.declare_queue("q")
        queue.put(message(b"x"), b"")
        async with site.socket(QUEUE) as socket:
            await lent(socket)
            vhost.delete_queue(queue)
            assert await said(socket) == ("end", {"reason": "deleted"})
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_queue_is_sent_by_websocket_alone_and_to_who_may_read_it(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        queue = vhost.declare_queue("q")
        vhost.declare_queue("locked", owner=object())
        status, found = await site.ask("GET", QUEUE)
        assert (status, found["type"]) == (426, "urn:trivium:problem:upgrade-required")
        await site.ask("PUT", "users/new", json={"password": "p"})
        await permit(site, read="^other$")
        queue.add_consumer(Consumer(), exclusive=True)
        for user, path, wanted in (
            ("new", QUEUE, 403),
            ("root", QUEUE, 403),
            ("root", QUEUE.replace("/q/", "/locked/"), 409),
            ("root", QUEUE.replace("/q/", "/none/"), 404),
            ("root", QUEUE + "?limit=0", 400),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await site.socket(path, user)
            assert refused.value.status == wanted
        assert site.broker.quotas.account("user", "root").used[SUBSCRIPTIONS] == 0


async def test_a_queue_that_goes_with_its_last_consumer_goes_with_the_client(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as site:
        queue = site.broker.vhost("/").declare_queue("q", auto_delete=True)
        queue.put(message(b"x"), b"")
        async with site.socket(QUEUE) as socket:
            await lent(socket)
        while not queue.is_deleted:
            await site.ask("GET", "whoami")


@pytest.mark.parametrize("path", [QUEUE, STREAM])
async def test_queues_and_streams_are_sent_to_who_may_read_them_alone(
    tmp_path: Path, path: str
) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q")
        site.broker.vhost("/").declare_stream("s", 1)
        await site.ask("PUT", "users/new", json={"password": "p"})
        await permit(site, read="^[qs]$")
        async with site.socket(path, "new") as socket:
            await permit(site, read="^other$")
            assert await said(socket) == ("end", {"reason": "access-refused"})


@pytest.mark.parametrize(
    ("path", "kind"),
    [(TOPICS, "events"), (TOPICS, "socket"), (QUEUE, "socket"), (STREAM, "events")],
)
async def test_a_change_of_permissions_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    # It does not wait for the next look, nor do messages that have come.
    monkeypatch.setattr(feeds, "CHECK_SECONDS", 3600)
    monkeypatch.setattr(waits, "LOOK_MS", 3_600_000)
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        queue = vhost.declare_queue("q")
        stream = vhost.declare_stream("s", 1)
        vhost.bind(vhost.exchange("amq.topic"), Binding(queue, b"#"))
        vhost.bind(vhost.exchange("amq.topic"), Binding(stream, b"#"))
        await site.ask("PUT", "users/new", json={"password": "p"})
        await permit(site, read=".*")
        following: Any = next_of if kind == "events" else said
        async with asyncio.timeout(20), getattr(site, kind)(path, "new") as feed:
            publish(vhost, "a")
            site.broker.request_turn()
            assert (await following(feed))[0] == "message"
            assert (await site.ask("DELETE", "users/new/permissions/%2F"))[0] == 204
            publish(vhost, "b")
            site.broker.request_turn()
            found = await following(feed)
            assert (found[0], found[-1]) == ("end", {"reason": "access-refused"})


# Streams


async def records(site: Site, stream: Stream, count: int) -> None:
    """Wait until so many can be read."""
    site.broker.request_turn()
    while stream.partitions[0].high_watermark < count:
        await site.ask("GET", "whoami")


async def test_a_stream_is_sent_from_an_offset_and_on_behind_the_last_event(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        stream = vhost.declare_stream("s", 1)
        vhost.bind(vhost.exchange("amq.topic"), Binding(stream, b"#"))
        for number in range(3):
            publish(vhost, str(number))
        await records(site, stream, 3)
        async with site.events(STREAM + "?offset=1") as events:
            found = [await next_of(events) for _ in range(2)]
            assert [(identity, data["key"]) for _, identity, data in found] == [
                ("1", "1"),
                ("2", "2"),
            ]
            publish(vhost, "3")
            site.broker.request_turn()
            assert (await next_of(events))[1] == "3"
        async with site.events(STREAM, Last_Event_ID="2") as events:
            assert (await next_of(events))[1] == "3"
        async with site.socket(STREAM + "?offset=last") as socket:
            name, data = await said(socket)
            assert (name, data["offset"]) == ("message", 3)
            vhost.delete_stream("s")
            assert await said(socket) == ("end", {"reason": "deleted"})
        assert (await site.ask("GET", STREAM))[0] == 404


async def test_a_stream_begins_with_what_comes_next(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        stream = vhost.declare_stream("s", 1)
        vhost.bind(vhost.exchange("amq.topic"), Binding(stream, b"#"))
        publish(vhost, "before")
        await records(site, stream, 1)
        async with site.events(STREAM) as events:
            publish(vhost, "now")
            site.broker.request_turn()
            assert (await next_of(events))[2]["key"] == "now"
        assert (await site.ask("GET", STREAM + "?offset=99"))[0] == 404
