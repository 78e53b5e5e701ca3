"""Messages over HTTP count as those of all clients do: for their protocol, and for the user, the
virtual host and the listener."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.rest import Site, authorization, serve, until
from tests.support.traffic import counted
from trivium.common.quotas import LISTENER, USER, VHOST

MESSAGES = "vhosts/%2F/exchanges/amq.default/messages"
LEASES = "vhosts/%2F/queues/q/leases"


async def publish(site: Site, *keys: str) -> None:
    body = {"messages": [{"key": key, "payload": "x"} for key in keys]}
    assert (await site.ask("POST", MESSAGES, json=body))[0] == 202


async def compatible(site: Site, method: str, path: str, body: Any = None) -> Any:
    """What RabbitMQ's API answers."""
    url = f"http://{site.broker.listeners['http']}/api/{path}"
    options = {} if body is None else {"json": body}
    async with site.client.request(method, url, headers=authorization("root"), **options) as answer:
        assert answer.status == 200
        return await answer.json()


def of(site: Site) -> dict[str, int]:
    """What was counted, alike for the user, the virtual host and the listener."""
    quotas = site.broker.quotas
    user, vhost, listener = (
        counted(quotas.account(*each).traffic)
        for each in ((USER, "root"), (VHOST, "/"), (LISTENER, "http"))
    )
    assert user == vhost == listener
    return user


async def http(site: Site) -> dict[str, Any]:
    """What is shown of the protocol."""
    _, overview = await site.ask("GET", "overview")
    return next(each for each in overview["protocols"] if each["name"] == "http")


async def test_publishes_are_counted_on_every_way(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        await publish(site, "q", "q", "nobody")
        assert sum(site.broker.timings.acknowledgements.counts) >= 1
        headers = {"Content-Type": "application/octet-stream"}
        await site.ask("POST", f"{MESSAGES}/raw?key=q", data=b"x", headers=headers)
        await site.ask("POST", "vhosts/%2F/topics/messages", json={"topic": "a", "qos": 1})
        body = {"payload": "x", "payload_encoding": "string", "properties": {}, "routing_key": "q"}
        await compatible(site, "POST", "exchanges/%2F/amq.default/publish", body)
        assert of(site) == {"published": 6, "confirmed": 6, "returned": 2}
        row = await http(site)
        assert (row["messages_received"], row["messages_unroutable"]) == (6, 2)
        assert row["connections_opened"] >= row["connections"] >= 1
        assert row["bytes_received"] > 0 < row["bytes_sent"]
        stats = (await compatible(site, "GET", "overview"))["message_stats"]
        assert (stats["publish"], stats["confirm"], stats["return_unroutable"]) == (6, 6, 2)
        url = f"http://{site.broker.listeners['http']}/metrics/per-object"
        async with site.client.get(url, headers=authorization("root")) as answer:
            text = await answer.text()
        assert 'trivium_messages_received_total{protocol="http"} 6\n' in text
        for label in ('user="root"', 'vhost="/"', 'listener="http"'):
            scope = label.partition("=")[0]
            name = f"trivium_detailed_{scope}_client_messages_published_total"
            assert f"{name}{{{label}}} 6\n" in text


async def test_connections_and_what_is_wrong_with_them_are_counted(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        host, _, port = site.broker.listeners["http"].rpartition(":")
        assert (await site.ask("GET", "whoami", headers={"Authorization": "Bearer x"}, user=""))[
            0
        ] == 401
        before = await http(site)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"no HTTP\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.0 400")
        writer.close()
        async with asyncio.timeout(20):
            while (after := await http(site))["connections"] > before["connections"]:
                pass
        assert after["connections_opened"] - before["connections_opened"] == 1
        assert (after["authentication_failures"], after["protocol_errors"]) == (1, 1)


async def test_leases_and_gets_are_counted(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q", durable=True)
        await publish(site, *["q"] * 6)
        _, found = await site.ask("POST", LEASES, json={"count": 3})
        first, second, third = (each["lease"] for each in found["messages"])
        await site.ask("POST", f"{LEASES}/settle", json={"leases": [first, second]})
        await site.ask("POST", f"{LEASES}/settle", json={"leases": [third], "outcome": "requeue"})
        wanted = {"ackmode": "ack_requeue_false", "count": 2, "encoding": "auto"}
        await compatible(site, "POST", "queues/%2F/q/get", wanted)
        await compatible(
            site, "POST", "queues/%2F/q/get", {**wanted, "ackmode": "ack_requeue_true"}
        )
        site.broker.vhost("/").queue("q").purge()
        await compatible(site, "POST", "queues/%2F/q/get", wanted)
        assert of(site) == {
            "published": 6,
            "confirmed": 6,
            "delivered": 3,
            "acknowledged": 2,
            "redelivered": 1,
            "got": 2,
            "got_settled": 2,
        }
        assert site.broker.quotas.account(LISTENER, "http").traffic.got_nothing == 1
        row = await http(site)
        assert (row["messages_sent"], row["messages_redelivered"]) == (7, 1)


async def test_messages_of_streams_and_events_are_counted(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        stream = site.broker.vhost("/").declare_stream("s")
        site.broker.vhost("/").declare_queue("q", durable=True)
        await publish(site, *["s"] * 3)
        await until(lambda: stream.record_count == 3)
        await site.ask("GET", "vhosts/%2F/streams/s/partitions/0/records?limit=2")
        members = "vhosts/%2F/groups/g/members"
        joined = {"streams": ["s"], "member": "m"}
        _, found = await site.ask("POST", members, json=joined)
        polling = {"generation": found["generation"]}
        _, polled = await site.ask("POST", f"{members}/m/poll", json=polling)
        assert len(polled["records"]) == 3
        path = "vhosts/%2F/streams/s/partitions/0/subscribe?offset=last"
        async with site.events(path) as events:
            await anext(events)
        assert of(site) == {"published": 3, "confirmed": 3, "delivered_settled": 6}
        async with site.events("vhosts/%2F/exchanges/amq.topic/subscribe") as events:
            await site.ask("POST", "vhosts/%2F/topics/messages", json={"topic": "a"})
            await anext(events)
        async with site.socket("vhosts/%2F/queues/q/subscribe") as socket:
            await publish(site, "q")
            lease = (await socket.receive_json())["data"]["lease"]
            await socket.send_json({"leases": [lease]})
            async with asyncio.timeout(20):
                await socket.receive_json()
        assert of(site) == {
            "published": 5,
            "confirmed": 5,
            "delivered_settled": 7,
            "delivered": 1,
            "acknowledged": 1,
        }
        assert (await http(site))["messages_sent"] == 8
