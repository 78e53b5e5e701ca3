"""The requests of consumer groups as values; see ``operations``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trivium_native.client.group_values import GroupDescription, GroupInfo, GroupMember
from trivium_native.client.operations import Operation, done, milliseconds, request
from trivium_native.client.values import (
    AssignedPartition,
    GroupOffset,
    Joined,
    Membership,
    OffsetCommit,
)
from trivium_native.wire import frames

T = TypeVar("T")


def commit(
    group: str,
    stream: str,
    offsets: Mapping[int, int],
    *,
    incarnation: str | None = None,
    membership: Membership | None = None,
    metadata: Mapping[int, str] | None = None,
) -> Operation[None]:
    """Commit a group's next offsets by partition; returns once they are durable.

    ``metadata``, texts of at most 4,096 bytes by partition, are kept with them, and told by
    ``committed``. While the group has members or a holder only they commit, by their
    ``membership``. Raises NotFound, StreamChanged, PreconditionFailed, StaleMember, Fenced.
    """
    return commit_offsets(
        OffsetCommit(group, stream, offsets, incarnation, membership, metadata or {})
    )


def commit_offsets(commit: OffsetCommit) -> Operation[None]:
    """Commit offsets that were collected."""
    return request(frames.COMMIT, done, **commit.fields())


def committed(
    group: str, stream: str, *, incarnation: str | None = None
) -> Operation[list[GroupOffset]]:
    """How far a group is, for all partitions in order, and the texts of its commits."""
    return request(
        frames.COMMITTED,
        lambda reply: [_offset(*row) for row in reply["partitions"]],
        group=group,
        stream=stream,
        incarnation=incarnation,
    )


def _offset(
    partition: int, committed: int | None, lag: int, metadata: str | None = None
) -> GroupOffset:
    return GroupOffset(partition, committed, lag, metadata)


def groups(
    *, after: str | None = None, limit: int | None = None
) -> Operation[tuple[list[GroupInfo], str | None]]:
    """Groups in the order of their names, from the one behind ``after`` on, at most ``limit``.

    The second result is what ``after`` is to be for the next ones; None at the end. ``limit``
    is 1,000 unless said otherwise, and at most; a page may have fewer, also where there are more.
    """
    return request(
        frames.LIST_GROUPS,
        lambda reply: ([_group_info(row) for row in reply["groups"]], reply.get("next")),
        after=after,
        limit=limit,
    )


def describe_group(
    group: str, *, streams: Sequence[str] | None = None
) -> Operation[GroupDescription]:
    """A group, its members, and how far it is in its streams, or in those that are named.

    Raises NotFound.
    """
    return request(
        frames.DESCRIBE_GROUP,
        _group_description,
        group=group,
        streams=None if streams is None else list(streams),
    )


def _group_info(row: dict[str, Any], members: int | None = None) -> GroupInfo:
    return GroupInfo(
        row["name"],
        row["state"],
        row["generation"],
        row.get("holder"),
        row.get("strategy"),
        row["members"] if members is None else members,
    )


def _group_description(reply: dict[str, Any]) -> GroupDescription:
    members = [
        GroupMember(
            row["member"],
            row["generation"],
            row["session_ms"] / 1000,
            row["streams"],
            {stream: partitions for stream, _, partitions in row["owned"]},
        )
        for row in reply["members"]
    ]
    offsets = {
        stream: [
            _offset(partition, committed, lag, metadata)
            for partition, committed, _, lag, metadata in rows
        ]
        for stream, _, rows in reply["offsets"]
    }
    return GroupDescription(_group_info(reply, len(members)), members, offsets)


def join(
    group: str,
    member: str,
    streams: Sequence[str],
    *,
    strategy: str | None = None,
    session_timeout: float | None = None,
    rebalance_timeout: float | None = None,
) -> Operation[Joined]:
    """Become a member of a group, in place of an earlier one of that name."""
    return request(
        frames.JOIN,
        lambda reply: _joined(group, reply),
        group=group,
        member=member,
        streams=list(streams),
        strategy=strategy,
        session_ms=milliseconds(session_timeout),
        rebalance_ms=milliseconds(rebalance_timeout),
    )


def join_exclusively(group: str, member: str) -> Operation[Membership]:
    """Hold a group, as long as nobody holds it after: its members and former holder are fenced.

    The holder commits with the result, checks with ``check_membership`` that it still is the
    holder, and leaves with ``leave``; there is no time-out.
    """
    return request(
        frames.JOIN,
        lambda reply: _joined(group, reply).membership,
        group=group,
        member=member,
        exclusive=True,
    )


def heartbeat(
    membership: Membership, owned: Sequence[AssignedPartition] = ()
) -> Operation[tuple[Membership, list[AssignedPartition]]]:
    """A member lives and holds ``owned``; its new generation, and what it may read."""
    by_stream: dict[tuple[str, str], list[int]] = {}
    for each in owned:
        by_stream.setdefault((each.stream, each.incarnation), []).append(each.partition)

    def parse(reply: Any) -> tuple[Membership, list[AssignedPartition]]:
        joined = _joined(membership.group, {**reply, "member": membership.member})
        return joined.membership, joined.assigned

    return _heartbeat(
        membership, parse, [[*stream, partitions] for stream, partitions in by_stream.items()]
    )


def check_membership(membership: Membership) -> Operation[None]:
    """Whether this still is the holder of the group. Raises Fenced, StaleMember."""
    return _heartbeat(membership, done, [])


def _heartbeat(
    membership: Membership, parse: Callable[[Any], T], owned: list[object]
) -> Operation[T]:
    return request(
        frames.HEARTBEAT,
        parse,
        group=membership.group,
        member=membership.member,
        generation=membership.generation,
        owned=owned,
    )


def leave(membership: Membership) -> Operation[None]:
    """Leave a group: what the member owns is free for others. Raises Fenced, StaleMember."""
    return request(
        frames.LEAVE,
        done,
        group=membership.group,
        member=membership.member,
        generation=membership.generation,
    )


def _joined(group: str, reply: dict[str, Any]) -> Joined:
    assigned = [
        AssignedPartition(stream, incarnation, partition, committed)
        for stream, incarnation, rows in reply.get("assigned", ())
        for partition, committed in rows
    ]
    membership = Membership(group, str(reply["member"]), int(reply["generation"]))
    members = [str(name) for name in reply.get("members", ())]
    rows = reply.get("streams")
    streams = None if rows is None else {(name, incarnation): n for name, incarnation, n in rows}
    return Joined(membership, reply.get("heartbeat_ms", 0) / 1000, assigned, members, streams)
