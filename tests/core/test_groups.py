"""Committed offsets of consumer groups."""

from __future__ import annotations

import pytest

from tests.support.core import broker_of, message, open_broker, open_vhost
from tests.support.steps import steps
from trivium.errors import LimitExceeded, NotFound, PreconditionFailed
from trivium.groups import offsets
from trivium.groups.offsets import MAX_METADATA_BYTES, Groups
from trivium.storage.memory import MemoryStorage, MemoryTable
from trivium.streams.stream import Stream
from trivium.vhost.virtual_host import VirtualHost


@pytest.fixture
def vhost() -> VirtualHost:
    return open_vhost()


@pytest.fixture
def stream(vhost: VirtualHost) -> Stream:
    """Ten records in partition 0 and none in the others."""
    made = vhost.declare_stream("s", 3)
    for _ in range(10):
        made.accept(message(b"x"))
    broker_of(vhost).end_turn()
    return made


def test_a_commit_is_read_back_per_group_and_partition(vhost: VirtualHost, stream: Stream) -> None:
    groups = vhost.groups
    groups.commit("g", stream, [(0, 4), (1, 0)])
    groups.commit("other", stream, [(0, 9)])
    groups.commit("g", stream, [(0, 2)])
    assert groups.committed("g", stream) == {0: 2, 1: 0}
    assert groups.committed("other", stream) == {0: 9}
    assert groups.committed("nobody", stream) == {}
    assert sorted(groups.names()) == ["g", "other"]


def test_lag_counts_from_the_committed_offset_or_the_oldest_record(
    vhost: VirtualHost, stream: Stream
) -> None:
    vhost.groups.commit("g", stream, [(0, 4)])
    found = [(p.partition, p.committed, p.lag) for p in vhost.groups.lag("g", stream)]
    assert found == [(0, 4, 6), (1, -1, 0), (2, -1, 0)]
    assert [p.lag for p in vhost.groups.lag("new", stream)] == [10, 0, 0]


def test_a_commit_is_all_or_nothing(vhost: VirtualHost, stream: Stream) -> None:
    groups = vhost.groups
    with pytest.raises(NotFound, match="partition 3"):
        groups.commit("g", stream, [(0, 1), (3, 0)])
    with pytest.raises(PreconditionFailed, match="11"):
        groups.commit("g", stream, [(0, 1), (0, 11)])
    with pytest.raises(PreconditionFailed):
        groups.commit("g", stream, [(0, 1), (0, -1)])
    assert groups.committed("g", stream) == {}
    assert groups.names() == []


@pytest.mark.parametrize("name", ["", "é" * 128])
def test_group_names_are_bounded(vhost: VirtualHost, stream: Stream, name: str) -> None:
    with pytest.raises(PreconditionFailed):
        vhost.groups.commit(name, stream, [(0, 0)])


def test_commits_survive_a_restart_whatever_the_name(stream: Stream) -> None:
    table = MemoryTable()
    groups = Groups(table)
    for name in ("g", "a/b/c", "/", "é"):
        groups.commit(name, stream, [(0, 7), (2, 0)])
    again = Groups(table)
    assert sorted(again.names()) == sorted(["g", "a/b/c", "/", "é"])
    for name in again.names():
        assert again.committed(name, stream) == {0: 7, 2: 0}


def metadata_of(groups: Groups, group: str, stream: Stream) -> list[str]:
    return [lag.metadata for lag in groups.lag(group, stream)]


def test_what_is_kept_with_an_offset_lasts_until_the_next_commit(stream: Stream) -> None:
    table = MemoryTable()
    groups = Groups(table)
    groups.commit("g", stream, [(0, 1), (1, 0)], {0: "at é", 1: "other"})
    assert metadata_of(groups, "g", stream) == ["at é", "other", ""]
    again = Groups(table)
    assert metadata_of(again, "g", stream) == ["at é", "other", ""]
    assert again.committed("g", stream) == {0: 1, 1: 0}
    again.commit("g", stream, [(0, 2)])
    assert metadata_of(again, "g", stream) == ["", "other", ""]
    assert metadata_of(Groups(table), "g", stream) == ["", "other", ""]


@pytest.mark.pure
def test_what_is_kept_with_an_offset_is_bounded(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups(MemoryTable())
    with pytest.raises(PreconditionFailed, match="4096 bytes"):
        groups.commit("g", stream, [(0, 1)], {0: "é" * (MAX_METADATA_BYTES // 2) + "x"})
    assert groups.names() == []
    monkeypatch.setattr(offsets, "MAX_ALL_METADATA_BYTES", 100)
    groups.commit("g", stream, [(0, 1)], {0: "x" * 100})
    with pytest.raises(LimitExceeded, match="100 bytes"):
        groups.commit("h", stream, [(0, 1)], {0: "x"})
    # In place of what was there is room; and so there is once that is gone.
    groups.commit("g", stream, [(0, 2)], {0: "y" * 100})
    groups.delete("g")
    groups.commit("h", stream, [(0, 1)], {0: "x" * 60})
    groups.forget(stream)
    groups.commit("h", stream, [(0, 1)], {0: "x" * 100})


@pytest.mark.pure
def test_groups_and_offsets_are_bounded(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(MemoryTable())
    monkeypatch.setattr(offsets, "MAX_GROUPS", 2)
    monkeypatch.setattr(offsets, "MAX_OFFSETS", 3)
    groups.commit("a", stream, [(0, 1), (1, 0)])
    groups.commit("b", stream, [(0, 1)])
    with pytest.raises(LimitExceeded, match="at most 2 groups"):
        groups.commit("c", stream, [(0, 1)])
    with pytest.raises(LimitExceeded, match="at most 3 committed offsets"):
        groups.commit("b", stream, [(0, 1), (2, 0)])
    # What is there already goes on, and what has gone makes room.
    groups.commit("a", stream, [(0, 2), (1, 0)])
    groups.delete("a")
    groups.commit("c", stream, [(0, 1), (1, 0)])


def test_commits_of_a_vhost_are_in_its_storage() -> None:
    storage = MemoryStorage()
    vhost = open_broker(storage).vhosts["/"]
    vhost.groups.commit("g", vhost.declare_stream("s"), [(0, 0)])
    again = open_broker(storage).vhosts["/"]
    assert again.groups.committed("g", again.stream("s")) == {0: 0}


def test_a_deleted_group_is_forgotten(vhost: VirtualHost, stream: Stream) -> None:
    vhost.groups.commit("g", stream, [(0, 1)])
    vhost.groups.delete("g")
    assert vhost.groups.names() == []
    with pytest.raises(NotFound):
        vhost.groups.delete("g")


def test_offsets_go_with_their_stream() -> None:
    storage = MemoryStorage()
    vhost = open_broker(storage).vhosts["/"]
    kept = vhost.declare_stream("kept")
    gone = vhost.declare_stream("gone")
    vhost.groups.commit("both", kept, [(0, 0)])
    vhost.groups.commit("both", gone, [(0, 0)])
    vhost.groups.commit("one", gone, [(0, 0)])
    vhost.delete_stream("gone")
    for groups in (vhost.groups, open_broker(storage).vhosts["/"].groups):
        assert groups.names() == ["both"]
        assert groups.committed("both", kept) == {0: 0}
        assert groups.committed("both", vhost.declare_stream("gone")) == {}


# Many streams and groups


def committed_everywhere(count: int) -> tuple[VirtualHost, list[Stream]]:
    """As many streams, in each of which one group has committed, as has one of the stream's own."""
    vhost = open_vhost()
    streams = [vhost.declare_stream(f"s{number}", 1) for number in range(count)]
    for number, stream in enumerate(streams):
        vhost.groups.commit("g", stream, [(0, 0)])
        vhost.groups.commit(f"g{number}", stream, [(0, 0)])
    return vhost, streams


@pytest.mark.pure
def test_what_a_group_committed_in_each_of_its_streams_is_found_in_linear_steps() -> None:
    def lags(count: int) -> int:
        vhost, streams = committed_everywhere(count)
        found: list[int] = []

        def ask() -> None:
            for stream in streams:
                found.extend(lag.committed for lag in vhost.groups.lag("g", stream))

        taken = steps(ask)
        assert found == [0] * count
        return taken

    assert lags(200) < 4 * 1.2 * lags(50)


@pytest.mark.pure
def test_streams_with_committed_offsets_are_forgotten_in_linear_steps() -> None:
    def forgets(count: int) -> int:
        vhost, streams = committed_everywhere(count)

        def delete() -> None:
            for stream in streams:
                vhost.delete_stream(stream.name)

        taken = steps(delete)
        assert vhost.groups.names() == []
        return taken

    assert forgets(200) < 4 * 1.2 * forgets(50)


@pytest.mark.pure
def test_groups_of_one_stream_are_deleted_in_linear_steps() -> None:
    def deletes(count: int) -> int:
        vhost = open_vhost()
        stream = vhost.declare_stream("s", 1)
        names = [f"g{number}" for number in range(count)]
        for name in names:
            vhost.groups.commit(name, stream, [(0, 0)])

        def delete() -> None:
            for name in names:
                vhost.delete_group(name)

        taken = steps(delete)
        assert vhost.groups.names() == []
        return taken

    assert deletes(200) < 4 * 1.2 * deletes(50)
