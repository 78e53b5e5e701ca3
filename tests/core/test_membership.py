"""Members of groups: hand-over, generations, time-outs, fencing, exclusive holders, restart."""

from __future__ import annotations

import random

import pytest

from tests.support.core import broker_of, message, open_broker, open_vhost
from tests.support.simulated import Host
from tests.support.steps import steps
from trivium.errors import (
    Fenced,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    StaleMember,
)
from trivium.groups.assignment import RANGE, ROUND_ROBIN, STICKY
from trivium.groups.membership import (
    EMPTY,
    EXCLUSIVE,
    MAX_GROUP_MEMBERS,
    MAX_SHARED_PER_TURN,
    REBALANCING,
    STABLE,
    MemberListener,
    names_of,
    phase_of,
)
from trivium.storage.memory import MemoryStorage
from trivium.streams.stream import Partition, Stream
from trivium.vhost.extending import add_partitions
from trivium.vhost.virtual_host import VirtualHost

SESSION = 10_000
REBALANCE = 30_000


class Client(MemberListener):
    """A member: what it was told to read, what it still holds, and how often it was called."""

    def __init__(self, vhost: VirtualHost, name: str, *streams: str, group: str = "g") -> None:
        self.vhost = vhost
        self.name = name
        self.group = group
        self.streams = list(streams) or ["s"]
        self.rebalance_ms = REBALANCE
        self.generation = 0
        self.held: set[Partition] = set()
        self.calls = 0

    def rebalance(self, group: str, member: str) -> None:
        assert (group, member) == (self.group, self.name)
        self.calls += 1

    def join(self, strategy: str = STICKY) -> Client:
        member = self.vhost.memberships.join(
            self.group, self.name, self.streams, strategy, SESSION, self.rebalance_ms, self
        )
        self.generation = member.generation
        self.held = set(member.assigned)
        return self

    def beat(self, *, keeps: bool = False) -> Client:
        """Say what it holds; let go what it is not assigned any more, unless it ``keeps``."""
        member = self.vhost.memberships.heartbeat(
            self.group, self.name, self.generation, self.held, self
        )
        assert member is not None
        self.generation = member.generation
        self.held = self.held | set(member.assigned) if keeps else set(member.assigned)
        return self

    def leave(self) -> None:
        self.vhost.memberships.leave(self.group, self.name, self.generation)

    def may_commit(self, stream: Stream, *partitions: int, generation: int | None = None) -> bool:
        known = self.generation if generation is None else generation
        try:
            self.vhost.memberships.check_commit(
                self.group, self.name, known, stream, list(partitions)
            )
        except StaleMember:
            return False
        return True

    @property
    def partitions(self) -> list[int]:
        return sorted(partition.index for partition in self.held)


def advance(vhost: VirtualHost, milliseconds: int) -> None:
    broker_of(vhost).now_ms += milliseconds
    broker_of(vhost).end_turn()


@pytest.fixture
def vhost() -> VirtualHost:
    return open_vhost()


@pytest.fixture
def stream(vhost: VirtualHost) -> Stream:
    made = vhost.declare_stream("s", 4)
    for _ in range(40):
        made.accept(message(b"x"))
    broker_of(vhost).end_turn()
    return made


# Hand-over


def test_a_lone_member_has_everything_at_once(vhost: VirtualHost, stream: Stream) -> None:
    client = Client(vhost, "a").join()
    assert client.partitions == [0, 1, 2, 3]
    assert client.may_commit(stream, 0, 1, 2, 3)
    assert client.calls == 0


def test_a_partition_moves_only_after_its_owner_has_let_it_go(
    vhost: VirtualHost, stream: Stream
) -> None:
    a = Client(vhost, "a").join()
    b = Client(vhost, "b").join()
    assert (b.partitions, a.calls, b.calls) == ([], 1, 0)
    # Told, but not finished: still the owner, whose commits count.
    a.beat(keeps=True)
    assert a.partitions == [0, 1, 2, 3]
    assert a.may_commit(stream, 0, 1, 2, 3)
    assert b.beat().partitions == []
    # Its answer says what it keeps; the heartbeat after that lets go of the rest.
    a.beat()
    assert len(a.partitions) == 2
    assert b.beat().partitions == []
    a.beat()
    assert b.calls == 1
    b.beat()
    assert len(b.partitions) == 2
    assert not a.held & b.held


def test_a_member_that_leaves_gives_everything_back_at_once(
    vhost: VirtualHost, stream: Stream
) -> None:
    a, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    a.leave()
    broker_of(vhost).end_turn()
    assert b.calls == 1
    assert b.beat().partitions == [0, 1, 2, 3]
    assert not a.may_commit(stream, 0)
    with pytest.raises(StaleMember, match="join again"):
        a.beat()
    with pytest.raises(StaleMember):
        a.leave()


def test_new_partitions_are_shared_out_and_read_from_their_beginning(
    vhost: VirtualHost, stream: Stream
) -> None:
    a = Client(vhost, "a").join()
    add_partitions(vhost, "s", 6)
    broker_of(vhost).end_turn()
    assert a.calls == 1
    a.beat()
    assert a.partitions == [0, 1, 2, 3, 4, 5]
    assert a.may_commit(stream, 4, 5)
    lags = vhost.groups.lag("g", stream)
    assert [(each.partition, each.committed) for each in lags[4:]] == [(4, -1), (5, -1)]


def test_what_an_answer_gave_is_not_taken_for_let_go_by_who_has_not_seen_it(
    vhost: VirtualHost, stream: Stream
) -> None:
    a, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    a.beat().beat()
    known = b.generation
    b.beat()
    assert len(b.partitions) == 2
    # A heartbeat that was on its way already knows nothing of them, and does not give them back,
    # though they are to go to a third member now.
    c = Client(vhost, "c").join()
    vhost.memberships.heartbeat("g", "b", known, set(), b)
    assert not (c.beat().held & b.held)
    assert b.may_commit(stream, *b.partitions)


def test_the_same_partition_given_back_and_got_again_is_in_a_newer_generation(
    vhost: VirtualHost, stream: Stream
) -> None:
    a = Client(vhost, "a").join()
    first = a.generation
    a.held.clear()
    a.beat()
    assert a.generation > first
    assert a.may_commit(stream, 0)
    assert not a.may_commit(stream, 0, generation=first)


def test_a_commit_counts_in_every_generation_of_an_unbroken_ownership(
    vhost: VirtualHost, stream: Stream
) -> None:
    a = Client(vhost, "a").join()
    first = a.generation
    b = Client(vhost, "b").join()
    a.beat().beat()
    b.beat()
    b.leave()
    a.beat()
    assert a.generation > first
    kept = [n for n in range(4) if a.may_commit(stream, n, generation=first)]
    assert len(kept) == 2
    assert a.may_commit(stream, 0, 1, 2, 3)
    assert not a.may_commit(stream, 0, 1, 2, 3, generation=first)
    assert not a.may_commit(stream, kept[0], generation=a.generation + 1)


def test_a_former_owner_cannot_commit(vhost: VirtualHost, stream: Stream) -> None:
    a, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    a.beat().beat()
    b.beat()
    for partition in range(4):
        owners = [client.may_commit(stream, partition) for client in (a, b)]
        assert sorted(owners) == [False, True]
    with pytest.raises(StaleMember, match="does not own partition"):
        vhost.memberships.check_commit("g", "a", a.generation, stream, b.partitions)


def test_members_read_what_they_asked_for(vhost: VirtualHost, stream: Stream) -> None:
    other = vhost.declare_stream("t", 1)
    a = Client(vhost, "a", "s").join()
    b = Client(vhost, "b", "s", "t").join()
    assert b.held == {other.partitions[0]}
    a.beat().beat()
    b.beat()
    assert other.partitions[0] in b.held
    assert a.may_commit(stream, *a.partitions)
    assert not a.may_commit(other, 0)


@pytest.mark.parametrize(
    ("strategy", "first"), [(RANGE, [0, 1]), (ROUND_ROBIN, [0, 2]), (STICKY, [2, 3])]
)
def test_the_strategy_is_the_one_asked_for(
    vhost: VirtualHost, stream: Stream, strategy: str, first: list[int]
) -> None:
    a = Client(vhost, "a").join(strategy)
    b = Client(vhost, "b").join(strategy)
    a.beat().beat()
    b.beat()
    found = a.partitions if strategy != STICKY else None
    assert found in (None, first)
    assert sorted(a.partitions + b.partitions) == [0, 1, 2, 3]


def test_members_agree_on_the_strategy(vhost: VirtualHost, stream: Stream) -> None:
    a = Client(vhost, "a").join(RANGE)
    with pytest.raises(PreconditionFailed, match="'range', not 'sticky'"):
        Client(vhost, "b").join(STICKY)
    a.join(STICKY)
    Client(vhost, "b").join(STICKY)


# Time


def test_a_member_without_a_sign_of_life_is_out(vhost: VirtualHost, stream: Stream) -> None:
    a, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    advance(vhost, SESSION - 1)
    b.beat()
    assert a.may_commit(stream, 0)
    advance(vhost, 1)
    assert not a.may_commit(stream, 0)
    assert b.calls == 1
    assert b.beat().partitions == [0, 1, 2, 3]
    assert a.join().calls == 1


def test_heartbeats_keep_a_member(vhost: VirtualHost, stream: Stream) -> None:
    a = Client(vhost, "a").join()
    for _ in range(5):
        advance(vhost, SESSION - 1)
        a.beat()
    assert a.partitions == [0, 1, 2, 3]
    advance(vhost, SESSION)
    with pytest.raises(StaleMember):
        a.beat()
    assert broker_of(vhost).next_at() == 0


def test_what_is_not_let_go_in_time_is_taken_away(vhost: VirtualHost, stream: Stream) -> None:
    a, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    for _ in range(REBALANCE // 5000 - 1):
        advance(vhost, 5000)
        a.beat(keeps=True)
        assert b.beat().partitions == []
    advance(vhost, 5000)
    assert len(b.beat().partitions) == 2
    # It stays a member, of what it was to keep.
    a.beat(keeps=True)
    assert [a.may_commit(stream, n) for n in range(4)].count(True) == 2
    assert not a.may_commit(stream, *b.partitions)


def test_a_lost_connection_keeps_the_member_until_its_session_ends(
    vhost: VirtualHost, stream: Stream
) -> None:
    a, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    back = Client(vhost, "a")
    back.generation, back.held = a.generation, a.held
    advance(vhost, SESSION - 1)
    b.beat()
    # Any connection will do: what counts is the name and the generation.
    assert back.beat(keeps=True).partitions == [0, 1, 2, 3]
    Client(vhost, "c").join()
    assert (a.calls, back.calls) == (1, 1)


def test_joining_again_fences_the_same_member_before(vhost: VirtualHost, stream: Stream) -> None:
    old, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    new = Client(vhost, "a").join()
    assert len(new.partitions) == 2
    assert not old.may_commit(stream, *new.partitions)
    # It is asked for a heartbeat, to learn at once that it must stop.
    assert old.calls == 1
    with pytest.raises(Fenced, match="joined again as 'a'"):
        old.beat()
    with pytest.raises(StaleMember, match="generation"):
        old.leave()
    assert len(b.beat().partitions) == 2


# Streams that change


def test_a_stream_that_is_made_again_is_another_one(vhost: VirtualHost, stream: Stream) -> None:
    a = Client(vhost, "a").join()
    vhost.delete_stream("s")
    broker_of(vhost).end_turn()
    assert a.calls == 1
    assert a.beat().held == set()
    again = vhost.declare_stream("s", 2)
    broker_of(vhost).end_turn()
    assert a.calls == 2
    assert a.beat().held == set(again.partitions)
    assert not stream.partitions, "nothing to commit for"
    assert a.may_commit(again, 0, 1)


def test_a_deleted_and_remade_stream_is_noticed_in_one_heartbeat(
    vhost: VirtualHost, stream: Stream
) -> None:
    a = Client(vhost, "a").join()
    vhost.delete_stream("s")
    again = vhost.declare_stream("s", 2)
    assert a.beat().held == set(again.partitions)


def test_joining_for_a_stream_that_there_is_not(vhost: VirtualHost) -> None:
    with pytest.raises(NotFound):
        Client(vhost, "a", "nowhere").join()


# Exclusive holders and those who have not joined


def commit_as_nobody(vhost: VirtualHost, stream: Stream) -> None:
    vhost.memberships.check_commit("g", None, 0, stream, [0])


def test_without_members_anyone_commits(vhost: VirtualHost, stream: Stream) -> None:
    commit_as_nobody(vhost, stream)
    a = Client(vhost, "a").join()
    with pytest.raises(PreconditionFailed, match="only they commit"):
        commit_as_nobody(vhost, stream)
    a.leave()
    commit_as_nobody(vhost, stream)


def test_a_newer_holder_fences_the_older(vhost: VirtualHost, stream: Stream) -> None:
    memberships = vhost.memberships
    listener = Client(vhost, "x")
    first = memberships.join_exclusively("g", "one")
    memberships.check_commit("g", "one", first, stream, [0, 1, 2, 3])
    assert memberships.heartbeat("g", "one", first, set(), listener) is None
    second = memberships.join_exclusively("g", "two")
    assert second > first
    with pytest.raises(Fenced, match="taken over by 'two'"):
        memberships.check_commit("g", "one", first, stream, [0])
    with pytest.raises(Fenced):
        memberships.heartbeat("g", "one", first, set(), listener)
    with pytest.raises(Fenced):
        memberships.leave("g", "one", first)
    with pytest.raises(Fenced, match="held exclusively by 'two'"):
        commit_as_nobody(vhost, stream)
    memberships.check_commit("g", "two", second, stream, [0])


def test_the_same_holder_again_fences_itself_before(vhost: VirtualHost, stream: Stream) -> None:
    memberships = vhost.memberships
    first = memberships.join_exclusively("g", "one")
    second = memberships.join_exclusively("g", "one")
    with pytest.raises(Fenced):
        memberships.check_commit("g", "one", first, stream, [0])
    memberships.check_commit("g", "one", second, stream, [0])


def test_after_the_holder_has_left_the_fenced_stay_fenced(
    vhost: VirtualHost, stream: Stream
) -> None:
    memberships = vhost.memberships
    first = memberships.join_exclusively("g", "one")
    second = memberships.join_exclusively("g", "two")
    memberships.leave("g", "two", second)
    commit_as_nobody(vhost, stream)
    for name, generation in (("one", first), ("two", second)):
        with pytest.raises(StaleMember):
            memberships.check_commit("g", name, generation, stream, [0])


def test_an_exclusive_join_fences_the_members(vhost: VirtualHost, stream: Stream) -> None:
    a = Client(vhost, "a").join()
    vhost.memberships.join_exclusively("g", "one")
    assert a.calls == 1
    with pytest.raises(Fenced):
        a.beat()
    with pytest.raises(ResourceLocked, match="held exclusively by 'one'"):
        a.join()


def test_a_group_in_use_is_not_deleted_but_a_held_one_is(
    vhost: VirtualHost, stream: Stream
) -> None:
    a = Client(vhost, "a").join()
    with pytest.raises(PreconditionFailed, match="has members"):
        vhost.delete_group("g")
    a.leave()
    with pytest.raises(NotFound):
        vhost.delete_group("g")
    held = vhost.memberships.join_exclusively("g", "one")
    vhost.groups.commit("g", stream, [(0, 1)])
    vhost.delete_group("g")
    assert not vhost.groups.has("g")
    with pytest.raises(StaleMember):
        vhost.memberships.check_commit("g", "one", held, stream, [0])


# Limits


def test_members_that_are_dismissed_join_again(vhost: VirtualHost, stream: Stream) -> None:
    memberships = vhost.memberships
    a, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    calls = (a.calls, b.calls)
    memberships.dismiss("g")
    assert memberships.members("g") is None
    # Each was asked for a heartbeat, by which it hears of it, and once at most.
    assert (a.calls, b.calls) == (1, calls[1] + 1)
    for client in (a, b):
        with pytest.raises(StaleMember):
            client.beat()
    vhost.groups.commit("g", stream, [(0, 0)])
    before = a.generation
    assert a.join().generation > before
    memberships.dismiss("nobody")


def test_a_holder_that_is_dismissed_holds_the_group_no_more(
    vhost: VirtualHost, stream: Stream
) -> None:
    generation = vhost.memberships.join_exclusively("g", "h")
    vhost.memberships.dismiss("g")
    with pytest.raises(StaleMember):
        vhost.memberships.check_commit("g", "h", generation, stream, [0])
    assert Client(vhost, "a").join().generation > generation


def test_the_phase_of_a_group_says_whether_its_partitions_are_where_they_belong(
    vhost: VirtualHost, stream: Stream
) -> None:
    memberships = vhost.memberships
    vhost.groups.commit("g", stream, [(0, 0)])
    assert phase_of(memberships, "g") == EMPTY
    a = Client(vhost, "a").join()
    assert phase_of(memberships, "g") == STABLE
    b = Client(vhost, "b").join()
    assert phase_of(memberships, "g") == REBALANCING
    a.beat().beat()
    assert phase_of(memberships, "g") == REBALANCING
    b.beat()
    assert phase_of(memberships, "g") == STABLE
    memberships.join_exclusively("g", "h")
    assert phase_of(memberships, "g") == EXCLUSIVE


def test_a_group_has_a_limited_number_of_members(vhost: VirtualHost, stream: Stream) -> None:
    vhost.declare_stream("one")
    for number in range(MAX_GROUP_MEMBERS):
        Client(vhost, f"m{number}", "one").join()
    with pytest.raises(LimitExceeded):
        Client(vhost, "more", "one").join()
    Client(vhost, "m0", "one").join()
    Client(vhost, "more", "one", group="other").join()


def test_a_group_reads_a_limited_number_of_partitions(vhost: VirtualHost) -> None:
    names = [vhost.declare_stream(f"s{number}", 1024).name for number in range(5)]
    with pytest.raises(PreconditionFailed, match="4096 partitions"):
        Client(vhost, "a", *names).join()
    a = Client(vhost, "a", *names[:2]).join()
    with pytest.raises(PreconditionFailed, match="4096 partitions"):
        Client(vhost, "b", *names[1:]).join()
    a.leave()
    Client(vhost, "b", *names[1:]).join()


@pytest.mark.parametrize("name", ["", "é" * 128])
def test_group_names_are_bounded(vhost: VirtualHost, stream: Stream, name: str) -> None:
    with pytest.raises(PreconditionFailed):
        Client(vhost, "a", group=name).join()
    with pytest.raises(PreconditionFailed):
        vhost.memberships.join_exclusively(name, "a")


# Many of them


def members_of(vhost: VirtualHost, count: int) -> list[Client]:
    """Members of one group, each of which knows what it is assigned."""
    vhost.declare_stream("s", 4)
    clients = [Client(vhost, f"m{number:03}").join(ROUND_ROBIN) for number in range(count)]
    for _ in range(2):
        for client in clients:
            client.beat()
    return clients


@pytest.mark.pure
def test_members_of_one_group_leave_in_linear_steps() -> None:
    def leaves(count: int) -> int:
        vhost = open_vhost()
        clients = members_of(vhost, count + 1)

        def leave() -> None:
            for client in clients[:-1]:
                client.leave()
            broker_of(vhost).end_turn()

        taken = steps(leave)
        assert clients[-1].calls == 1
        assert clients[-1].beat().partitions == [0, 1, 2, 3]
        return taken

    assert leaves(128) < 4 * 1.2 * leaves(32)


@pytest.mark.pure
def test_members_of_one_group_expire_in_linear_steps() -> None:
    def expires(count: int) -> int:
        vhost = open_vhost()
        clients = members_of(vhost, 2 * count)
        advance(vhost, SESSION // 2)
        alive = clients[count:]
        for client in alive:
            client.beat()
        taken = steps(lambda: advance(vhost, SESSION // 2))
        # Those that are left have everything, and the others are out.
        assert [client.calls for client in alive[:5]] == [1, 1, 1, 1, 0]
        assert [client.beat().partitions for client in alive[:4]] == [[0], [1], [2], [3]]
        for client in clients[:count]:
            with pytest.raises(StaleMember):
                client.beat()
        return taken

    assert expires(128) < 4 * 1.2 * expires(32)


@pytest.mark.pure
def test_heartbeats_walk_what_is_their_members_own() -> None:
    def beats(count: int) -> int:
        vhost = open_vhost()
        vhost.declare_stream("s", count)
        clients = [Client(vhost, f"m{number:03}").join(ROUND_ROBIN) for number in range(count)]

        def beat() -> None:
            for client in clients:
                client.beat()

        for _ in range(3):
            beat()
        taken = steps(beat)
        assert [client.partitions for client in clients] == [[index] for index in range(count)]
        return taken

    assert beats(128) < 4 * 1.2 * beats(32)


def test_the_partitions_of_many_groups_are_shared_out_in_several_turns(vhost: VirtualHost) -> None:
    vhost.declare_stream("s", 1024)
    each_turn = -(-MAX_SHARED_PER_TURN // (1024 + 1))
    count = 2 * each_turn + 2
    pairs = [
        (Client(vhost, "a", group=f"g{n}").join(), Client(vhost, "b", group=f"g{n}").join())
        for n in range(count)
    ]
    broker_of(vhost).end_turn()
    for a, _ in pairs:
        a.leave()
    # An answer that needs it is not kept waiting, and who has left owns nothing.
    assert len(pairs[-1][1].beat().partitions) == 1024
    assert not any(a.may_commit(vhost.stream("s"), 0) for a, _ in pairs)
    told = []
    for _ in range(4):
        broker_of(vhost).end_turn()
        told.append(sum(b.calls for _, b in pairs))
    # The last one was asked before its heartbeat.
    assert told == [each_turn + 1, 2 * each_turn + 1, count, count]
    assert all(len(b.beat().partitions) == 1024 for _, b in pairs)


def test_who_leaves_and_is_back_within_the_turn_has_its_partitions_by_its_new_generation(
    vhost: VirtualHost, stream: Stream
) -> None:
    a = Client(vhost, "a").join()
    before = a.generation
    a.leave()
    assert not a.may_commit(stream, 0)
    a.join()
    assert a.generation > before
    assert a.partitions == [0, 1, 2, 3]
    assert not a.may_commit(stream, 0, generation=before)


def test_a_group_that_is_taken_over_within_the_turn_that_changed_it_is_shared_out_no_more(
    vhost: VirtualHost, stream: Stream
) -> None:
    a, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    broker_of(vhost).end_turn()
    a.leave()
    holder = vhost.memberships.join_exclusively("g", "h")
    broker_of(vhost).end_turn()
    assert (a.calls, b.calls) == (1, 1)
    with pytest.raises(Fenced):
        b.beat()
    vhost.memberships.leave("g", "h", holder)
    with pytest.raises(StaleMember):
        b.beat()


@pytest.mark.pure
def test_streams_that_a_group_does_not_read_cost_it_nothing() -> None:
    """Streams are declared and deleted beside as many groups."""

    def declares(count: int) -> int:
        vhost = open_vhost()
        vhost.declare_stream("s", 4)
        clients = [Client(vhost, "a", group=f"g{number}").join() for number in range(count)]
        changes = vhost.topology_version

        def declare() -> None:
            for number in range(count):
                vhost.declare_stream(f"t{number}", 1)
            for number in range(count):
                vhost.delete_stream(f"t{number}")

        taken = steps(declare)
        assert vhost.topology_version == changes + 2 * count
        broker_of(vhost).end_turn()
        assert [client.calls for client in clients] == [0] * count
        vhost.delete_stream("s")
        broker_of(vhost).end_turn()
        assert [client.calls for client in clients] == [1] * count
        return taken

    assert declares(100) < 4 * 1.2 * declares(25)


@pytest.mark.pure
def test_streams_of_many_groups_are_changed_in_linear_steps() -> None:
    """Each group reads a stream of its own, which is deleted and made again."""

    def changes(count: int) -> int:
        vhost = open_vhost()
        clients = []
        for number in range(count):
            vhost.declare_stream(f"s{number}", 2)
            clients.append(Client(vhost, "a", f"s{number}", group=f"g{number}").join())

        def change() -> None:
            for number in range(count):
                vhost.delete_stream(f"s{number}")
                vhost.declare_stream(f"s{number}", 2)
            broker_of(vhost).end_turn()

        taken = steps(change)
        assert [client.calls for client in clients] == [1] * count
        assert [client.beat().partitions for client in clients] == [[0, 1]] * count
        return taken

    assert changes(100) < 4 * 1.2 * changes(25)


# Restart


def test_generations_do_not_go_back_and_holders_stay_over_a_restart() -> None:
    storage = MemoryStorage()
    vhost = open_broker(storage).vhosts["/"]
    stream = vhost.declare_stream("s", 4)
    vhost.groups.commit("g", stream, [(0, 0)])
    a = Client(vhost, "a").join()
    first = vhost.memberships.join_exclusively("held", "one")
    held = vhost.memberships.join_exclusively("held", "two")

    again = open_broker(storage).vhosts["/"]
    after = again.stream("s")
    back = Client(again, "a").join()
    assert back.generation > a.generation
    with pytest.raises(StaleMember):
        again.memberships.check_commit("g", "a", a.generation, after, [0])
    again.memberships.check_commit("held", "two", held, after, [0])
    with pytest.raises(Fenced):
        again.memberships.check_commit("held", "one", first, after, [0])


def test_a_group_that_never_committed_leaves_nothing_behind() -> None:
    storage = MemoryStorage()
    vhost = open_broker(storage).vhosts["/"]
    vhost.declare_stream("s", 4)
    Client(vhost, "a").join().leave()
    holder = vhost.memberships.join_exclusively("held", "one")
    vhost.memberships.leave("held", "one", holder)
    Client(vhost, "b").join()
    advance(vhost, SESSION)
    assert len(storage.table("memberships//")) == 1  # the generation to go on from


def test_a_forgotten_group_does_not_begin_again_with_generations_that_were() -> None:
    storage = MemoryStorage()
    vhost = open_broker(storage).vhosts["/"]
    stream = vhost.declare_stream("s", 4)
    a = Client(vhost, "a").join()
    a.leave()
    again = Client(vhost, "a").join()
    assert again.generation > a.generation
    assert not again.may_commit(stream, 0, generation=a.generation)
    again.leave()

    vhost = open_broker(storage).vhosts["/"]
    assert Client(vhost, "a").join().generation > again.generation
    held = vhost.memberships.join_exclusively("held", "one")
    vhost.delete_group("held")
    assert vhost.memberships.join_exclusively("held", "one") > held


def test_what_an_answer_said_is_on_the_disk_before_it_counts() -> None:
    """At every crash a generation that was durable when it was told is never given again."""
    host = Host()
    broker = open_broker(host.storage)
    vhost = broker.vhosts["/"]
    vhost.declare_stream("s", 4)
    vhost.groups.commit("g", vhost.stream("s"), [(0, 0)])
    host.commit()
    start = host.disk.copy()
    host.disk.operations.clear()
    told: list[tuple[int, int, str]] = []
    clients = [Client(vhost, name).join() for name in "abc"]
    for step in range(12):
        client = clients[step % 3]
        client.beat()
        if step == 5:
            vhost.memberships.join_exclusively("held", "one")
        holder = "one" if step >= 5 else ""
        host.commit()
        assert vhost.memberships.write_batch <= host.storage.durable
        newest = max(one.generation for one in clients)
        told.append((len(host.disk.operations), newest, holder))
    random_ = random.Random(7)
    for done in range(len(host.disk.operations) + 1):
        known = max((generation for at, generation, _ in told if at <= done), default=0)
        held = any(holder for at, _, holder in told if at <= done)
        killed = start.after(host.disk.operations[:done])
        for disk in (killed, killed.power_cut(None), killed.power_cut(random_)):
            again = open_broker(Host(disk.copy()).storage).vhosts["/"]
            assert Client(again, "a").join().generation > known
            if held:
                with pytest.raises(ResourceLocked):
                    Client(again, "a", group="held").join()


# Any order of events


@pytest.mark.parametrize("seed", range(60))
def test_no_two_members_own_a_partition_whatever_happens(seed: int) -> None:
    """Clients act on answers that arrive late or never; what they hold never overlaps."""
    random_ = random.Random(seed)
    vhost = open_vhost()
    for name in "stu":
        vhost.declare_stream(name, random_.randint(1, 6))
    strategy = random_.choice([RANGE, ROUND_ROBIN, STICKY])
    clients: dict[str, Client] = {}
    alive: dict[str, int] = {}
    now = broker_of(vhost).now_ms
    for _ in range(300):
        name = random_.choice("vwxyz")
        action = random_.random()
        client = clients.get(name)
        try:
            if client is None or action < 0.05:
                wanted = random_.sample("stu", random_.randint(1, 3))
                present = [stream for stream in wanted if stream in vhost.streams]
                if not present:
                    continue
                client = clients[name] = Client(vhost, name, *present)
                client.rebalance_ms = 1 << 40  # nothing is taken away while it is held
                client.join(strategy)
            elif action < 0.15:
                client.leave()
                del clients[name], alive[name]
                continue
            elif action < 0.25:
                # The answer is lost: it acts as if it had never asked.
                before = client.generation, set(client.held)
                client.beat()
                client.generation, client.held = before
            elif action < 0.3:
                advance(vhost, SESSION // 3)
                continue
            elif action < 0.35:
                stream = random_.choice("stu")
                if stream in vhost.streams:
                    vhost.delete_stream(stream)
                else:
                    vhost.declare_stream(stream, random_.randint(1, 6))
                continue
            else:
                client.beat(keeps=random_.random() < 0.3)
            alive[name] = broker_of(vhost).now_ms
        except StaleMember:
            clients.pop(name, None)
            alive.pop(name, None)
        now = broker_of(vhost).now_ms
        holders: dict[Partition, str] = {}
        for other, one in clients.items():
            # A client whose session is over knows that it holds nothing any more.
            if now - alive.get(other, now) >= SESSION:
                continue
            for partition in one.held:
                if partition.stream.is_deleted:
                    continue
                assert partition not in holders, (partition.index, holders[partition], other)
                holders[partition] = other
    # Left alone they come to rest with everything assigned.
    for _ in range(6):
        for one in list(clients.values()):
            try:
                one.beat()
            except StaleMember:
                del clients[one.name]
    read = {stream for one in clients.values() for stream in one.streams}
    expected = {p for stream in read & set(vhost.streams) for p in vhost.stream(stream).partitions}
    held = [partition for one in clients.values() for partition in one.held]
    assert len(held) == len(set(held))
    assert set(held) == expected


# What there is


def test_each_group_is_named_once_while_others_come_and_go(
    vhost: VirtualHost, stream: Stream
) -> None:
    for group in ("both", "offsets", "late"):
        vhost.groups.commit(group, stream, [(0, 0)])
    for group in ("both", "members"):
        Client(vhost, "a", group=group).join()
    names = names_of(vhost.memberships)
    found = [next(names)]
    # One is known in the other way as well from now on, one is not any more.
    Client(vhost, "a", group="late").join()
    vhost.groups.commit("members", stream, [(0, 0)])
    vhost.groups.delete("both")
    vhost.groups.commit("new", stream, [(0, 0)])
    Client(vhost, "a", group="newer").join()
    found += names
    assert len(found) == len(set(found))
    assert {"both", "offsets", "late", "members"} <= set(found)


def test_groups_that_read_a_stream_are_those_with_members_there(
    vhost: VirtualHost, stream: Stream
) -> None:
    vhost.declare_stream("t")
    a, b = Client(vhost, "a").join(), Client(vhost, "b").join()
    Client(vhost, "c", "t", group="other").join()
    assert vhost.memberships.readers("s") == ["g"]
    a.leave()
    assert vhost.memberships.readers("s") == ["g"]
    b.leave()
    assert vhost.memberships.readers("s") == []
