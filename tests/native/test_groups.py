"""JOIN, HEARTBEAT, LEAVE, REBALANCE, and commits that only their owner may make."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.support.native import Client, Server, entry, publish
from tests.support.storages import HeldStorage
from trivium.config import Config, Listen
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
    assert set(reply) == {"member", "generation", "heartbeat_ms", "assigned", "members"}
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
    assert committed[0] == [0, 6, 4]


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
