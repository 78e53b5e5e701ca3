"""JOIN, HEARTBEAT, LEAVE, REBALANCE, and commits that only their owner may make."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native import Client, Server, entry, frame, publish
from tests.support.storages import HeldStorage
from trivium.config import Config, Listen
from trivium.security.permissions import grants_of
from trivium_native.client import group_operations
from trivium_native.client.operations import Operation
from trivium_native.server import group_descriptions
from trivium_native.values import GroupInfo, GroupMember, GroupOffset
from trivium_native.wire import frames

CONFIG = Config(listen={"native": Listen(0)})

Owned = list[tuple[int, int | None]]


@pytest.fixture
def server() -> Server:
    return add_stream(Server(None, CONFIG))


def add_stream(server: Server) -> Server:
    """Stream ``s`` with ten records in partition 0 of 4, all readable."""
    server.vhost.declare_stream("s", 4)
    client = server.open()
    client.send(frames.PUBLISH, 0, publish(*[entry(b"x", b"s", b"") for _ in range(10)]))
    if isinstance(server.storage, HeldStorage):
        server.sync()
    return server


@cache
def filled() -> Server:
    """One server for many examples."""
    return add_stream(Server(None, CONFIG))


class Member:
    """A member of group ``g``, read by hand."""

    def __init__(self, server: Server, name: str, client: Client | None = None) -> None:
        self.server = server
        self.name = name
        self.client = server.open() if client is None else client
        self.generation = 0
        self.assigned: Owned = []
        self.calls: list[bytes] = []

    @property
    def incarnation(self) -> str:
        return self.server.vhost.stream("s").incarnation

    def answer(self, kind: int, fields: dict[str, Any]) -> tuple[int, Any]:
        """The answer to a request, whatever calls come with it: frame type and body."""
        received = self.client.send(kind, 77, fields)
        self.calls += [body for what, _, body in received if what == frames.REBALANCE]
        ((answer, body),) = [(what, body) for what, to, body in received if to == 77]
        return answer, msgpack.unpackb(body)

    def ask(self, kind: int, /, **fields: Any) -> dict[str, Any]:
        answer, reply = self.answer(kind, fields)
        assert answer == frames.OK, reply
        assert isinstance(reply, dict)
        return reply

    def refused(self, kind: int, /, **fields: Any) -> Any:
        answer, error = self.answer(kind, fields)
        assert answer == frames.ERROR
        return error[0]

    def called(self) -> list[dict[str, str]]:
        """The REBALANCE frames that came; nothing else may have."""
        found = self.client.take()
        assert {(kind, correlation) for kind, correlation, _ in found} <= {(frames.REBALANCE, 0)}
        bodies = self.calls + [body for _, _, body in found]
        self.calls = []
        return [msgpack.unpackb(body) for body in bodies]

    def take(self, reply: dict[str, Any]) -> Member:
        self.generation = reply["generation"]
        self.assigned = []
        for stream, incarnation, rows in reply["assigned"]:
            assert (stream, incarnation) == ("s", self.incarnation)
            self.assigned += [tuple(row) for row in rows]
        return self

    def join(self, **fields: Any) -> Member:
        reply = self.ask(frames.JOIN, group="g", member=self.name, streams=["s"], **fields)
        assert reply["member"] == self.name
        return self.take(reply)

    def beat(self) -> Member:
        owned = [["s", self.incarnation, [partition for partition, _ in self.assigned]]]
        fields = {"group": "g", "member": self.name, "generation": self.generation}
        return self.take(self.ask(frames.HEARTBEAT, owned=owned, **fields))

    def commit(self, partition: int, offset: int) -> dict[str, Any]:
        return {
            "group": "g",
            "stream": "s",
            "offsets": [[partition, offset]],
            "member": self.name,
            "generation": self.generation,
        }

    @property
    def partitions(self) -> list[int]:
        return [partition for partition, _ in self.assigned]


def test_join_answers_with_the_assignment_and_where_to_go_on(server: Server) -> None:
    server.vhost.groups.commit("g", server.vhost.stream("s"), [(0, 7)])
    reply = server.open().ask(frames.JOIN, group="g", streams=["s"], session_ms=9000)
    fields = {"member", "generation", "heartbeat_ms", "assigned", "members", "streams"}
    assert set(reply) == fields
    stream = server.vhost.stream("s")
    assert reply["streams"] == [["s", stream.incarnation, len(stream.partitions)]]
    assert len(reply["member"]) == 16
    assert reply["heartbeat_ms"] == 3000
    incarnation = server.vhost.stream("s").incarnation
    rows = [[0, 7], [1, None], [2, None], [3, None]]
    assert reply["assigned"] == [["s", incarnation, rows]]


def test_join_answers_with_the_names_of_all_members(server: Server) -> None:
    found = [
        server.open().ask(frames.JOIN, group="g", member=name, streams=["s"])["members"]
        for name in ("b", "a", "b")
    ]
    assert found == [["b"], ["a", "b"], ["a", "b"]]


def test_a_partition_is_handed_over_by_heartbeats(server: Server) -> None:
    a = Member(server, "a").join()
    b = Member(server, "b").join()
    assert (a.partitions, b.partitions) == ([0, 1, 2, 3], [])
    assert a.called() == [{"group": "g", "member": "a"}]
    a.beat()
    kept = a.partitions
    assert len(kept) == 2
    assert b.called() == []
    assert b.beat().partitions == []
    a.beat()
    assert b.called() == [{"group": "g", "member": "b"}]
    assert sorted(b.beat().partitions + kept) == [0, 1, 2, 3]


def test_the_new_owner_goes_on_where_the_old_one_committed(server: Server) -> None:
    a = Member(server, "a").join(strategy="range")
    b = Member(server, "0").join(strategy="range")
    a.beat()
    # It is told to let partition 0 go, but commits first.
    a.ask(frames.COMMIT, **a.commit(0, 5))
    a.beat()
    assert b.beat().assigned == [(0, 5), (1, None)]
    b.ask(frames.COMMIT, **b.commit(0, 6))
    assert a.refused(frames.COMMIT, **a.commit(0, 7)) == 312
    committed = a.ask(frames.COMMITTED, group="g", stream="s")["partitions"]
    assert committed[0] == [0, 6, 4, None]


def test_a_stale_member_is_refused_and_told_so(server: Server) -> None:
    a = Member(server, "a").join(session_ms=1000)
    server.advance(1)
    ((kind, _, body),) = a.client.send(frames.COMMIT, 5, a.commit(0, 5))
    code, text = msgpack.unpackb(body)
    assert (kind, code) == (frames.ERROR, 312)
    assert "'a' is not a member of group 'g', or not any more: join again" in text
    fields = {"group": "g", "member": "a", "generation": a.generation}
    assert a.refused(frames.HEARTBEAT, **fields) == 312
    assert a.refused(frames.LEAVE, **fields) == 312
    assert not a.client.is_closed
    assert a.join().partitions == [0, 1, 2, 3]


def test_a_commit_is_refused_as_a_whole(server: Server) -> None:
    a = Member(server, "a").join()
    b = Member(server, "b").join()
    a.beat().beat()
    b.beat()
    offsets = [[a.partitions[0], 0], [b.partitions[0], 0]]
    assert a.refused(frames.COMMIT, **(a.commit(0, 0) | {"offsets": offsets})) == 312
    assert not server.vhost.groups.has("g")


def test_who_has_not_joined_commits_only_while_nobody_has(server: Server) -> None:
    client = server.open()
    fields: dict[str, Any] = {"group": "g", "stream": "s", "offsets": [[0, 1]]}
    client.ask(frames.COMMIT, **fields)
    a = Member(server, "a").join()
    assert client.refused(frames.COMMIT, **fields) == 302
    a.ask(frames.LEAVE, group="g", member="a", generation=a.generation)
    client.ask(frames.COMMIT, **fields)


def test_a_member_outlives_its_connection_and_goes_on_by_another(server: Server) -> None:
    a = Member(server, "a").join(session_ms=1000)
    b = Member(server, "b").join(session_ms=1000)
    a.called()
    a.client.lose()
    server.advance(0.999)
    b.beat()
    assert b.partitions == []
    a.client = server.open()
    a.beat().beat()
    # From now on it is called by this connection.
    assert len(b.beat().partitions) == 2
    server.vhost.declare_stream("t")
    Member(server, "c").join()
    assert a.called() == [{"group": "g", "member": "a"}]


def test_who_is_gone_for_longer_is_replaced(server: Server) -> None:
    a = Member(server, "a").join(session_ms=1000)
    b = Member(server, "b").join(session_ms=1500)
    a.client.lose()
    server.advance(1)
    assert b.called() == [{"group": "g", "member": "b"}]
    assert b.beat().partitions == [0, 1, 2, 3]


def test_what_is_not_let_go_in_time_goes_to_the_new_owner(server: Server) -> None:
    a = Member(server, "a").join(rebalance_ms=2000)
    b = Member(server, "b").join()
    server.advance(2)
    assert b.called() == [{"group": "g", "member": "b"}]
    taken = b.beat().partitions
    assert len(taken) == 2
    assert a.refused(frames.COMMIT, **a.commit(taken[0], 0)) == 312
    kept = next(partition for partition in range(4) if partition not in taken)
    a.called()
    a.ask(frames.COMMIT, **a.commit(kept, 0))


def test_an_exclusive_join_fences_the_holder_before(server: Server) -> None:
    old, new = server.open(), server.open()
    first = old.ask(frames.JOIN, group="g", member="one", exclusive=True)
    assert first == {"member": "one", "generation": 1}
    fields: dict[str, Any] = {"group": "g", "member": "one", "generation": 1}
    commit = fields | {"stream": "s", "offsets": [[0, 5]]}
    old.ask(frames.COMMIT, **commit)
    assert old.ask(frames.HEARTBEAT, **fields) == {"generation": 1}
    second = new.ask(frames.JOIN, group="g", member="two", exclusive=True)
    assert second["generation"] == 2
    for kind, request in (
        (frames.COMMIT, commit),
        (frames.HEARTBEAT, fields),
        (frames.LEAVE, fields),
        (frames.COMMIT, {"group": "g", "stream": "s", "offsets": [[0, 5]]}),
    ):
        assert old.refused(kind, **request) == 309
    assert old.refused(frames.JOIN, group="g", streams=["s"]) == 303
    new.ask(frames.LEAVE, group="g", member="two", generation=2)
    assert old.refused(frames.COMMIT, **commit) == 312
    Member(server, "a").join()


def test_a_group_with_members_is_not_deleted(server: Server) -> None:
    a = Member(server, "a").join()
    assert a.refused(frames.DELETE, kind="group", name="g") == 302
    a.ask(frames.LEAVE, group="g", member="a", generation=a.generation)
    assert a.refused(frames.DELETE, kind="group", name="g") == 301


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (frames.JOIN, {"streams": []}),
        (frames.JOIN, {}),
        (frames.JOIN, {"streams": ["s"] * 257}),
        (frames.JOIN, {"streams": ["s"], "strategy": "best"}),
        (frames.JOIN, {"streams": ["s"], "session_ms": 99}),
        (frames.JOIN, {"streams": ["s"], "rebalance_ms": 3_600_001}),
        (frames.JOIN, {"streams": ["s"], "exclusive": True}),
        (frames.JOIN, {"streams": ["s"], "member": "m" * 256}),
        (frames.JOIN, {"streams": ["s"], "exclusive": 1}),
        (frames.HEARTBEAT, {"member": "a"}),
        (frames.HEARTBEAT, {"member": "a", "generation": -1}),
        (frames.HEARTBEAT, {"member": "a", "generation": 1, "owned": {}}),
        (frames.HEARTBEAT, {"member": "a", "generation": 1, "owned": [["s", "x"]]}),
        (frames.HEARTBEAT, {"member": "a", "generation": 1, "owned": [["s", "x", [-1]]]}),
        (frames.HEARTBEAT, {"member": "a", "generation": 1, "owned": [["s", "x", [True]]]}),
        (frames.HEARTBEAT, {"member": "a", "generation": 1, "owned": [["s", 1, [0]]]}),
        (frames.LEAVE, {"generation": 1}),
        (frames.COMMIT, {"stream": "s", "offsets": [[0, 1]], "member": "a"}),
        (frames.COMMIT, {"stream": "s", "offsets": [[0, 1, b"x"]]}),
        (frames.COMMIT, {"stream": "s", "offsets": [[True, 1, "x"]]}),
        (frames.COMMIT, {"stream": "s", "offsets": [[0, 1, "x", 1]]}),
        (frames.DESCRIBE_GROUP, {"streams": ["s"] * 257}),
        (frames.DESCRIBE_GROUP, {"stream": "s"}),
    ],
)
def test_requests_with_wrong_fields_are_refused(
    server: Server, kind: int, fields: dict[str, Any]
) -> None:
    client = server.open()
    assert client.refused(kind, group="g", **fields) == 300
    assert not client.is_closed


def test_what_a_heartbeat_holds_that_there_is_not_is_ignored(server: Server) -> None:
    a = Member(server, "a").join()
    incarnation = server.vhost.stream("s").incarnation
    owned = [["s", "other", [0]], ["t", incarnation, [0]], ["s", incarnation, [0, 9, 1 << 40]]]
    fields = {"group": "g", "member": "a", "generation": a.generation}
    # It has let go of the others, and is given them again.
    assert a.take(a.ask(frames.HEARTBEAT, owned=owned, **fields)).partitions == [0, 1, 2, 3]
    a.ask(frames.COMMIT, **a.commit(3, 0))
    stale = fields | {"stream": "s", "offsets": [[3, 0]]}
    assert a.refused(frames.COMMIT, **stale) == 312
    a.ask(frames.COMMIT, **(stale | {"offsets": [[0, 0]]}))


def test_a_generation_is_told_only_once_it_is_durable() -> None:
    server = add_stream(Server(HeldStorage(), CONFIG))
    client = server.open()
    assert client.send(frames.JOIN, 5, {"group": "g", "member": "a", "streams": ["s"]}) == []
    # It has let all go that it does not know of, and is given it again.
    fields = {"group": "g", "member": "a", "generation": 1, "owned": []}
    assert client.send(frames.HEARTBEAT, 6, fields) == []
    server.sync()
    assert [(kind, correlation) for kind, correlation, _ in client.take()] == [
        (frames.OK, 5),
        (frames.OK, 6),
    ]
    incarnation = server.vhost.stream("s").incarnation
    fields["generation"] = 2
    fields["owned"] = [["s", incarnation, [0, 1, 2, 3]]]
    ((kind, correlation, body),) = client.send(frames.HEARTBEAT, 7, fields)
    assert (kind, correlation, msgpack.unpackb(body)["generation"]) == (frames.OK, 7, 2)


# What is kept with an offset


def test_a_text_is_kept_with_an_offset_until_the_next_commit(server: Server) -> None:
    client = server.open()
    offsets = [[0, 7, "at é"], [1, 0, None], [2, 0]]
    client.ask(frames.COMMIT, group="g", stream="s", offsets=offsets)
    found = client.ask(frames.COMMITTED, group="g", stream="s")["partitions"]
    assert found == [[0, 7, 3, "at é"], [1, 0, 0, None], [2, 0, 0, None], [3, None, 0, None]]
    client.ask(frames.COMMIT, group="g", stream="s", offsets=[[0, 8]])
    assert client.ask(frames.COMMITTED, group="g", stream="s")["partitions"][0] == [0, 8, 2, None]


def test_a_text_that_is_too_long_refuses_the_commit_as_a_whole(server: Server) -> None:
    client = server.open()
    offsets = [[1, 0], [0, 7, "x" * 4097]]
    assert client.refused(frames.COMMIT, group="g", stream="s", offsets=offsets) == 302
    assert not server.vhost.groups.has("g")


@given(
    st.lists(
        st.one_of(
            st.lists(
                st.one_of(
                    st.integers(-2, 12), st.text(max_size=3), st.none(), st.booleans(), st.binary()
                ),
                max_size=4,
            ),
            st.integers(-2, 2),
            st.none(),
        ),
        max_size=4,
    )
)
def test_whatever_offsets_are_committed_all_or_none_are_and_the_connection_goes_on(
    offsets: list[Any],
) -> None:
    client = filled().open()
    client.send(frames.DELETE, 0, {"kind": "group", "name": "g"})
    fields = {"group": "g", "stream": "s", "offsets": offsets}
    ((kind, _, body),) = client.send(frames.COMMIT, 7, fields)
    expected: dict[int, tuple[int, str | None]] = {}
    if kind == frames.OK:
        expected = {
            each[0]: (each[1], (each[2] or None) if len(each) == 3 else None) for each in offsets
        }
    else:
        assert msgpack.unpackb(body)[0] in (300, 301, 302)
    found = client.ask(frames.COMMITTED, group="g", stream="s")["partitions"]
    assert {row[0]: (row[1], row[3]) for row in found if row[1] is not None} == expected


# What there is


def test_groups_are_listed_with_how_it_is_with_them(server: Server) -> None:
    client = server.open()
    assert client.ask(frames.LIST_GROUPS) == {"groups": []}
    client.ask(frames.COMMIT, group="idle", stream="s", offsets=[[0, 1]])
    client.ask(frames.JOIN, group="held", member="h", exclusive=True)
    a = Member(server, "a").join(strategy="range")
    Member(server, "b").join(strategy="range")
    row = {"holder": None, "strategy": None, "members": 0, "generation": 0}
    assert client.ask(frames.LIST_GROUPS) == {
        "groups": [
            row
            | {
                "name": "g",
                "state": "rebalancing",
                "strategy": "range",
                "members": 2,
                "generation": 2,
            },
            row | {"name": "held", "state": "exclusive", "holder": "h", "generation": 1},
            row | {"name": "idle", "state": "empty"},
        ]
    }
    a.ask(frames.LEAVE, group="g", member="a", generation=a.generation)
    assert client.ask(frames.LIST_GROUPS, after="f", limit=1)["groups"][0]["members"] == 1


def test_groups_are_listed_in_pages(server: Server) -> None:
    client = server.open()
    names = [f"g{number}" for number in range(7)]
    for name in names:
        client.ask(frames.COMMIT, group=name, stream="s", offsets=[[0, 1]])
    found: list[list[str]] = []
    after: str | None = ""
    while after is not None:
        reply = client.ask(frames.LIST_GROUPS, after=after, limit=3)
        found.append([row["name"] for row in reply["groups"]])
        after = reply.get("next")
    assert found == [names[:3], names[3:6], names[6:]]


def test_a_page_among_very_many_groups_is_found_in_several_turns(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_descriptions, "MAX_LOOKED_AT", 2)
    client, other = server.open(), server.open()
    stream = server.vhost.stream("s")
    for number in range(9):
        server.vhost.groups.commit(f"g{number}", stream, [(0, 1)])
    server.settle()
    client.feed(frame(frames.LIST_GROUPS, 7, {"limit": 4}) + frame(frames.PING, 8, b""))
    server.end_turn()
    assert client.take() == []
    # Others are served meanwhile; and what has come meanwhile is, though it is none of the page.
    assert other.ask(frames.METADATA, streams=["s"])
    server.vhost.delete_group("g2")
    server.advance(1)
    (kind, correlation, body), (pong, _, _) = client.take()
    assert (kind, correlation, pong) == (frames.OK, 7, frames.PONG)
    reply = msgpack.unpackb(body)
    assert ([row["name"] for row in reply["groups"]], reply["next"]) == (["g0", "g1", "g3"], "g3")
    gone = server.open()
    gone.feed(frame(frames.LIST_GROUPS, 7, {}))
    gone.lose()
    server.advance(1)


def test_groups_that_are_much_work_fill_a_page(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_descriptions, "MAX_SHARED_PER_TURN", 5)
    client = server.open()
    for name in ("a", "b", "c"):
        # A member and four partitions.
        client.ask(frames.JOIN, group=name, member="m", streams=["s"])
    first = client.ask(frames.LIST_GROUPS)
    assert ([row["name"] for row in first["groups"]], first["next"]) == (["a", "b"], "b")
    second = client.ask(frames.LIST_GROUPS, after="b")
    assert ([row["name"] for row in second["groups"]], "next" in second) == (["c"], False)


@pytest.mark.parametrize(
    "fields", [{"limit": 0}, {"limit": 1001}, {"after": 1}, {"after": "x" * 256}, {"groups": ["g"]}]
)
def test_a_list_with_wrong_fields_is_refused(server: Server, fields: dict[str, Any]) -> None:
    assert server.open().refused(frames.LIST_GROUPS, **fields) == 300


def test_a_group_is_described_by_its_members_and_how_far_it_is(server: Server) -> None:
    server.vhost.declare_stream("t")
    client = server.open()
    client.ask(frames.COMMIT, group="g", stream="s", offsets=[[0, 7, "note"], [3, 0]])
    a = Member(server, "a").join(session_ms=9000)
    incarnation = {name: server.vhost.stream(name).incarnation for name in ("s", "t")}
    both = {"group": "g", "member": "b", "streams": ["t", "s"]}
    client.ask(frames.JOIN, **both)
    found = client.ask(frames.DESCRIBE_GROUP, group="g")
    assert found == {
        "name": "g",
        "state": "rebalancing",
        "generation": 2,
        "holder": None,
        "strategy": "sticky",
        "members": [
            {
                "member": "a",
                "generation": a.generation,
                "session_ms": 9000,
                "streams": ["s"],
                "owned": [["s", incarnation["s"], [0, 1, 2, 3]]],
            },
            {
                "member": "b",
                "generation": 2,
                "session_ms": 30_000,
                "streams": ["s", "t"],
                "owned": [["t", incarnation["t"], [0]]],
            },
        ],
        "offsets": [
            [
                "s",
                incarnation["s"],
                [
                    [0, 7, 10, 3, "note"],
                    [1, None, 0, 0, None],
                    [2, None, 0, 0, None],
                    [3, 0, 0, 0, None],
                ],
            ],
            ["t", incarnation["t"], [[0, None, 0, 0, None]]],
        ],
    }
    narrowed = client.ask(frames.DESCRIBE_GROUP, group="g", streams=["t"])
    assert narrowed["offsets"] == found["offsets"][1:]
    assert client.refused(frames.DESCRIBE_GROUP, group="g", streams=["none"]) == 301
    assert client.refused(frames.DESCRIBE_GROUP, group="none") == 301


def test_a_description_that_a_client_would_not_take_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.open()
    offsets = [[0, 0, "x" * 4096]]
    for number in range(256):
        name = f"{number:03}"
        server.vhost.declare_stream(name)
        client.ask(frames.COMMIT, group="g", stream=name, offsets=offsets)
    assert client.refused(frames.DESCRIBE_GROUP, group="g") == 403
    client.ask(frames.DESCRIBE_GROUP, group="g", streams=["000"])
    monkeypatch.setattr(group_descriptions, "MAX_TOLD", 3)
    assert client.refused(frames.DESCRIBE_GROUP, group="g", streams=["s"]) == 403
    Member(server, "a").join()
    assert client.refused(frames.DESCRIBE_GROUP, group="g", streams=["000"]) == 403


def test_groups_are_shown_to_who_may_read_them_or_watches() -> None:
    server = add_stream(Server(None, CONFIG))
    server.vhost.declare_stream("t")
    server.open().ask(frames.JOIN, group="g", member="m", streams=["s", "t"])
    for group in ("g", "other"):
        for stream in ("s", "t"):
            server.vhost.groups.commit(group, server.vhost.stream(stream), [(0, 0)])
    root, client = server.open(), server.greet()
    root.ask(frames.MANAGE_USERS, action="add", name="ann", password=b"p")
    grants = grants_of({"/": {"configure": "", "write": "", "read": "^[gs]$"}}, {}, [], [])
    server.broker.permissions.set_user("ann", grants)
    client.send(frames.AUTH, 2, {"username": "ann", "password": b"p"})
    assert [row["name"] for row in client.ask(frames.LIST_GROUPS)["groups"]] == ["g"]
    # Nor does the end of a page tell the name of another.
    assert client.ask(frames.LIST_GROUPS, limit=1).keys() == {"groups"}
    assert client.ask(frames.LIST_GROUPS, limit=1, after="g") == {"groups": []}
    found = client.ask(frames.DESCRIBE_GROUP, group="g")
    assert [stream for stream, _, _ in found["offsets"]] == ["s"]
    (member,) = found["members"]
    assert (member["streams"], [each[0] for each in member["owned"]]) == (["s"], ["s"])
    denied = server.broker.permissions.denials
    assert client.refused(frames.DESCRIBE_GROUP, group="other") == 201
    assert client.refused(frames.DESCRIBE_GROUP, group="g", streams=["t"]) == 201
    # A list is no attempt at what it leaves out.
    assert server.broker.permissions.denials == denied + 2
    # By its tag: it may read neither.
    root.ask(frames.MANAGE_USERS, action="tags", name="ann", tags=["monitoring"])
    grants = grants_of({"/": {"configure": "", "write": "", "read": "^none$"}}, {}, [], [])
    server.broker.permissions.set_user("ann", grants)
    watcher = server.greet()
    watcher.send(frames.AUTH, 2, {"username": "ann", "password": b"p"})
    assert watcher.ask(frames.LIST_GROUPS) == root.ask(frames.LIST_GROUPS)
    described = root.ask(frames.DESCRIBE_GROUP, group="g")
    assert watcher.ask(frames.DESCRIBE_GROUP, group="g") == described


def test_the_clients_read_what_is_told_of_groups(server: Server) -> None:
    client = server.open()
    client.ask(frames.COMMIT, group="g", stream="s", offsets=[[0, 7, "note"]])
    Member(server, "a").join()

    def result(operation: Operation[Any]) -> Any:
        ((kind, correlation, body),) = client.send(operation.kind, 7, operation.body)
        return operation.result(frames.Frame(kind, correlation, body))

    info = GroupInfo("g", "stable", 1, None, "sticky", 1)
    assert result(group_operations.groups(limit=5)) == ([info], None)
    found = result(group_operations.describe_group("g", streams=["s"]))
    assert (found.group, found.offsets["s"][0]) == (info, GroupOffset(0, 7, 3, "note"))
    assert found.members == [GroupMember("a", 1, 30.0, ["s"], {"s": [0, 1, 2, 3]})]
    assert result(group_operations.committed("g", "s"))[0] == GroupOffset(0, 7, 3, "note")
