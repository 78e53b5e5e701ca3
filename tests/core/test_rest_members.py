"""Members of consumer groups over HTTP: they share partitions, and former ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.core import message
from tests.support.rest import Site, serve
from trivium.management.group_reading import PolledMember
from trivium.routing.exchanges import Binding

MEMBERS = "vhosts/%2F/groups/g/members"


class Client:
    """A member, as a script has it."""

    def __init__(self, site: Site, name: str, user: str = "root") -> None:
        self.site = site
        self.name = name
        self.user = user
        self.generation = 0
        self.assigned: list[Any] = []

    async def join(self, **more: Any) -> Any:
        body = {"streams": ["s"], "member": self.name, **more}
        status, found = await self.site.ask("POST", MEMBERS, self.user, json=body)
        assert status == 201, found
        self._take(found)
        return found

    async def poll(self, **more: Any) -> Any:
        status, found = await self.try_poll(**more)
        assert status == 200, found
        self._take(found)
        return found

    async def try_poll(self, **more: Any) -> tuple[int, Any]:
        body = {"generation": self.generation, **more}
        path = f"{MEMBERS}/{self.name}/poll"
        return await self.site.ask("POST", path, self.user, json=body)

    async def commit(self, *positions: tuple[int, int]) -> tuple[int, Any]:
        rows = [{"stream": "s", "partition": at, "offset": to} for at, to in positions]
        body = {"generation": self.generation, "positions": rows}
        return await self.site.ask("POST", f"{MEMBERS}/{self.name}/commit", self.user, json=body)

    async def leave(self) -> tuple[int, Any]:
        path = f"{MEMBERS}/{self.name}?generation={self.generation}"
        return await self.site.ask("DELETE", path, self.user)

    def _take(self, found: Any) -> None:
        self.generation = found["generation"]
        self.assigned = sorted(each["partition"] for each in found["assigned"])


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        stream = vhost.declare_stream("s", 2)
        vhost.bind(vhost.exchange("amq.topic"), Binding(stream, b"#"))
        yield site


async def publish(site: Site, *keys: str) -> None:
    """Publish to the stream, whose keys are in the partitions that they hash to."""
    vhost = site.broker.vhost("/")
    (stream,) = vhost.streams.values()
    wanted = stream.record_count + len(keys)
    for key in keys:
        sent = message(key.encode(), key=key.encode(), exchange="amq.topic")
        vhost.publish(sent, vhost.route(vhost.exchange("amq.topic"), key.encode()))
    site.broker.request_turn()
    while sum(each.high_watermark for each in stream.partitions) < wanted:
        await site.ask("GET", "whoami")


async def waits(site: Site, name: str) -> None:
    """Until a member waits for messages."""
    known = site.broker.vhost("/").memberships.members("g")
    assert known is not None
    listener = known.members[name].listener
    assert isinstance(listener, PolledMember)
    while listener.read is None:
        await site.ask("GET", "whoami")


def keys_of(found: Any) -> list[str]:
    return sorted(record["key"] for record in found["records"])


async def test_a_member_polls_commits_and_another_goes_on_there(site: Site) -> None:
    keys = [f"k{number}" for number in range(10)]
    await publish(site, *keys)
    first = Client(site, "first")
    await first.join()
    assert first.assigned == [0, 1]
    found = await first.poll(limit=4)
    seen = keys_of(found)
    assert len(seen) == 4
    positions = {each["partition"]: each["offset"] for each in found["assigned"]}
    assert (await first.commit(*positions.items()))[0] == 204
    # What is read and not committed comes again to whoever is next.
    assert len(keys_of(await first.poll())) == 6
    assert keys_of(await first.poll()) == []
    assert await first.leave() == (204, None)
    second = Client(site, "second")
    await second.join()
    assert sorted(seen + keys_of(await second.poll())) == keys


async def test_a_member_whose_answer_was_lost_begins_again_at_what_is_committed(
    site: Site,
) -> None:
    await publish(site, "a", "b")
    client = Client(site, "c")
    await client.join()
    assert keys_of(await client.poll()) == ["a", "b"]
    assert keys_of(await client.poll()) == []
    assert keys_of(await client.poll(rewind=True)) == ["a", "b"]


async def test_a_group_may_begin_with_what_comes_next(site: Site) -> None:
    await publish(site, "before")
    client = Client(site, "c")
    await client.join(start="next")
    await publish(site, "now")
    assert keys_of(await client.poll()) == ["now"]


async def test_a_poll_waits_for_the_next_message(site: Site) -> None:
    client = Client(site, "c")
    await client.join()
    poll = asyncio.ensure_future(client.poll(wait_ms=30_000))
    await waits(site, "c")
    status, found = await client.try_poll()
    assert (status, found["type"]) == (409, "urn:trivium:problem:conflict")
    await publish(site, "a")
    assert keys_of(await poll) == ["a"]


async def test_partitions_are_shared_and_let_go_in_steps(site: Site) -> None:
    """No two have a partition at a time."""
    await publish(site, *(f"k{number}" for number in range(8)))
    first, second = Client(site, "first"), Client(site, "second")
    await first.join()
    assert first.assigned == [0, 1]
    await second.join()
    assert second.assigned == []
    found = await first.poll()
    (revoked,) = [each["partition"] for each in found["revoked"]]
    assert (len(first.assigned), revoked in first.assigned) == (1, False)
    # It may commit what it had of it until its next poll.
    assert (await first.commit((revoked, 1)))[0] == 204
    assert (await second.poll())["assigned"] == []
    await first.poll()
    await second.poll()
    assert second.assigned == [revoked]
    status, found = await first.commit((revoked, 2))
    assert (status, found["type"]) == (409, "urn:trivium:problem:conflict")
    offsets = (await site.ask("GET", "vhosts/%2F/groups/g/offsets"))[1]["items"]
    assert {each["partition"]: each["committed"] for each in offsets}[revoked] == 1


async def test_a_member_that_waits_is_answered_when_it_is_to_let_something_go(site: Site) -> None:
    first, second = Client(site, "first"), Client(site, "second")
    await first.join()
    poll = asyncio.ensure_future(first.poll(wait_ms=30_000))
    await waits(site, "first")
    await second.join()
    await poll
    assert len((await first.poll())["revoked"]) == 1


async def test_a_former_member_is_fenced(site: Site) -> None:
    old, new = Client(site, "c"), Client(site, "c")
    await old.join()
    await new.join()
    for status, found in (await old.try_poll(), await old.commit((0, 0)), await old.leave()):
        assert (status, found["type"]) == (409, "urn:trivium:problem:conflict")
    await new.poll()
    assert (await new.leave())[0] == 204
    assert (await new.try_poll())[0] == 409


async def test_who_is_silent_for_its_session_is_no_member(site: Site) -> None:
    client = Client(site, "c")
    await client.join(session_ms=1000)
    while site.broker.vhost("/").memberships.members("g") is not None:
        await site.ask("GET", "whoami")
    assert (await client.try_poll())[0] == 409


async def test_who_waits_and_is_replaced_meanwhile_is_fenced(site: Site) -> None:
    old, new = Client(site, "c"), Client(site, "c")
    await old.join()
    poll = asyncio.ensure_future(old.try_poll(wait_ms=30_000))
    await waits(site, "c")
    await new.join()
    status, found = await poll
    assert (status, found["type"]) == (409, "urn:trivium:problem:conflict")


async def test_who_waits_and_may_not_read_any_more_gets_nothing(site: Site) -> None:
    await site.ask("PUT", "users/new", json={"password": "p"})
    await permit(site, "^(s|g)$")
    client = Client(site, "c", "new")
    await client.join()
    poll = asyncio.ensure_future(client.try_poll(wait_ms=30_000))
    await waits(site, "c")
    await permit(site, "^g$")
    await publish(site, "a")
    assert (await poll)[0] == 403


async def test_members_are_seen_as_others_are(site: Site) -> None:
    await Client(site, "c").join()
    _, found = await site.ask("GET", MEMBERS)
    (member,) = found["items"]
    assert (member["name"], member["session_ms"], len(member["owned"])) == ("c", 30_000, 2)


async def test_members_of_others_are_not_for_everybody(site: Site) -> None:
    client = Client(site, "c")
    await client.join()
    other = Client(site, "c", "man")
    other.generation = client.generation
    for status, _ in (await other.try_poll(), await other.commit((0, 0)), await other.leave()):
        assert status == 403


async def permit(site: Site, read: str) -> None:
    body = {"configure": "", "write": "", "read": read}
    assert (await site.ask("PUT", "users/new/permissions/%2F", json=body))[0] in (201, 204)


async def test_a_member_reads_what_it_may_and_goes_with_its_user(site: Site) -> None:
    await site.ask("PUT", "users/new", json={"password": "p"})
    body = {"streams": ["s"], "member": "c"}
    client = Client(site, "c", "new")
    for read in ("^s$", "^g$"):
        await permit(site, read)
        assert (await site.ask("POST", MEMBERS, "new", json=body))[0] == 403
    await permit(site, "^(s|g)$")
    await client.join()
    for read in ("^s$", "^g$"):
        await permit(site, read)
        assert (await client.try_poll())[0] == 403
    await permit(site, "^(s|g)$")
    await client.poll()
    await site.ask("DELETE", "users/new")
    assert site.broker.vhost("/").memberships.members("g") is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"streams": []},
        {"streams": ["s"], "strategy": "odd"},
        {"streams": ["s"], "session_ms": 1},
        {"streams": ["s"], "session_ms": 1 << 40},
        {"streams": ["s"], "member": ""},
        {"streams": ["none"]},
    ],
)
async def test_who_cannot_join_is_told_why(site: Site, body: dict[str, Any]) -> None:
    status, _ = await site.ask("POST", MEMBERS, json=body)
    assert status == (404 if body == {"streams": ["none"]} else 422)
