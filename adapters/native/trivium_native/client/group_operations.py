"""The requests of consumer groups as values; see ``operations``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivium_native.client.operations import Operation, done, request
from trivium_native.client.values import (
    AssignedPartition,
    GroupOffset,
    Joined,
    Membership,
    OffsetCommit,
)
from trivium_native.wire import frames


def commit(commit: OffsetCommit) -> Operation[None]:
    """Commit the next offsets to read; answered once they are durable."""
    return request(frames.COMMIT, done, **commit.fields())


def committed(
    group: str, stream: str, incarnation: str | None = None
) -> Operation[list[GroupOffset]]:
    """How far a group is, for all partitions in order."""
    return request(
        frames.COMMITTED,
        lambda reply: [GroupOffset(*row) for row in reply["partitions"]],
        group=group,
        stream=stream,
        incarnation=incarnation,
    )


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
        session_ms=_milliseconds(session_timeout),
        rebalance_ms=_milliseconds(rebalance_timeout),
    )


def join_exclusively(group: str, member: str) -> Operation[Membership]:
    """Hold a group; whoever held it, and its members, are fenced."""
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

    return request(
        frames.HEARTBEAT,
        parse,
        group=membership.group,
        member=membership.member,
        generation=membership.generation,
        owned=[[*stream, partitions] for stream, partitions in by_stream.items()],
    )


def leave(membership: Membership) -> Operation[None]:
    """Leave a group: what the member owns is free for others."""
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
    return Joined(membership, reply.get("heartbeat_ms", 0) / 1000, assigned)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)
