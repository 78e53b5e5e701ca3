"""Requests of consumer groups: JOIN, HEARTBEAT, LEAVE, COMMIT, COMMITTED; what there is of them.

The rules are the core's (``trivium.groups.membership``); here they get their frames.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from trivium.groups.assignment import STICKY, STRATEGIES
from trivium.groups.membership import MAX_GROUP_PARTITIONS, Member, MemberListener
from trivium.security.permissions import READ
from trivium.streams.stream import Partition
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.commits import Commit, stream_of
from trivium_native.server.group_descriptions import describe_group, list_groups
from trivium_native.server.lists import reply_bounded
from trivium_native.wire import frames
from trivium_native.wire.errors import InvalidArgument
from trivium_native.wire.fields import Fields
from trivium_native.wire.frames import encode_frame, pack

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

#: Streams that one member may read.
MAX_MEMBER_STREAMS: Final = 256

#: Milliseconds: how long a member may be silent, how long it may hold what it is to let go, and the
#: bounds of both. The upper one is how long a member that is gone can keep a partition.
SESSION_MS: Final = 30_000
REBALANCE_MS: Final = 60_000
MIN_MS: Final = 100
MAX_MS: Final = 3_600_000

#: Heartbeats of a session: two may be lost.
_HEARTBEATS: Final = 3

#: The requests of this module.
GROUP_REQUESTS: Final = frozenset(
    (
        *(frames.COMMIT, frames.COMMITTED, frames.HEARTBEAT, frames.JOIN, frames.LEAVE),
        *(frames.LIST_GROUPS, frames.DESCRIBE_GROUP),
    )
)

_MAX_GENERATION: Final = (1 << 63) - 1


class _Calls(MemberListener):
    """REBALANCE frames to the members that speak through one connection."""

    def __init__(self, connection: NativeConnection) -> None:
        self._connection = connection

    def rebalance(self, group: str, member: str) -> None:
        connection = self._connection
        if not connection.is_closed:
            body = pack({"group": group, "member": member})
            connection.send(encode_frame(frames.REBALANCE, 0, body))


class GroupRequests:
    """Carries out the group requests of one connection."""

    def __init__(self, connection: NativeConnection, vhost: VirtualHost) -> None:
        self._connection = connection
        self._vhost = vhost
        self._calls = _Calls(connection)

    def handle(self, kind: int, correlation: int, fields: Fields) -> None:
        """Carry out one request and answer it.

        Raises the errors that refuse the request.
        """
        if kind == frames.COMMIT:
            self._commit(correlation, fields)
        elif kind == frames.COMMITTED:
            self._committed(correlation, fields)
        elif kind == frames.HEARTBEAT:
            self._heartbeat(correlation, fields)
        elif kind == frames.JOIN:
            self._join(correlation, fields)
        elif kind == frames.LEAVE:
            self._leave(correlation, fields)
        elif kind == frames.LIST_GROUPS:
            list_groups(self._connection, self._vhost, correlation, fields)
        else:
            describe_group(self._connection, self._vhost, correlation, fields)

    def _join(self, correlation: int, fields: Fields) -> None:
        group = fields.text("group")
        self._connection.access.require(READ, "group", group)
        name = fields.text("member", "") or secrets.token_hex(8)
        reply: dict[str, object] = {"member": name}
        if fields.boolean("exclusive"):
            fields.finish()
            reply["generation"] = self._vhost.memberships.join_exclusively(group, name)
        else:
            streams = fields.texts("streams", MAX_MEMBER_STREAMS)
            strategy = fields.text("strategy", STICKY)
            session_ms = fields.integer("session_ms", MIN_MS, MAX_MS, SESSION_MS)
            rebalance_ms = fields.integer("rebalance_ms", MIN_MS, MAX_MS, REBALANCE_MS)
            fields.finish()
            if not streams:
                raise InvalidArgument("'streams' must name at least one stream")
            if strategy not in STRATEGIES:
                raise InvalidArgument(f"'strategy' must be one of {', '.join(STRATEGIES)}")
            for stream in streams:
                self._connection.access.require(READ, "stream", stream)
            member = self._vhost.memberships.join(
                group, name, streams, strategy, session_ms, rebalance_ms, self._calls
            )
            reply["generation"] = member.generation
            reply["heartbeat_ms"] = session_ms // _HEARTBEATS
            reply["assigned"] = self._assigned(group, member)
            reply["streams"] = self._sizes(streams)
            members = self._vhost.memberships.members(group)
            reply["members"] = [] if members is None else sorted(members.members)
        self._connection.reply_when_durable(correlation, reply)

    def _heartbeat(self, correlation: int, fields: Fields) -> None:
        group = fields.text("group")
        self._connection.access.require(READ, "group", group)
        name = fields.text("member")
        generation = fields.integer("generation", 0, _MAX_GENERATION)
        owned = fields.partitions("owned", MAX_GROUP_PARTITIONS)
        fields.finish()
        held: set[Partition] = set()
        for stream_name, incarnation, indexes in owned:
            stream = self._vhost.streams.get(stream_name)
            if stream is None or stream.incarnation != incarnation:
                continue  # gone, and let go with it
            for index in indexes:
                partition = stream.partition(index)
                if partition is not None:
                    held.add(partition)
        memberships = self._vhost.memberships
        member = memberships.heartbeat(group, name, generation, held, self._calls)
        reply: dict[str, object] = {"generation": generation}
        if member is not None:
            reply["generation"] = member.generation
            reply["assigned"] = self._assigned(group, member)
        if memberships.write_batch > self._connection.broker.storage.durable:
            # A crash must not give the same generation to someone else.
            self._connection.reply_when_durable(correlation, reply)
        else:
            self._connection.reply(correlation, reply)

    def _assigned(self, group: str, member: Member) -> list[object]:
        """What a member may read, with where to go on, by stream."""
        by_stream: dict[str, list[Partition]] = {}
        for partition in member.assigned:
            by_stream.setdefault(partition.stream.name, []).append(partition)
        found: list[object] = []
        for partitions in by_stream.values():
            stream = partitions[0].stream
            committed = self._vhost.groups.committed(group, stream)
            rows = [[partition.index, committed.get(partition.index)] for partition in partitions]
            found.append([stream.name, stream.incarnation, rows])
        return found

    def _sizes(self, names: list[str]) -> list[object]:
        """How many partitions the streams have."""
        streams = [self._vhost.stream(name) for name in dict.fromkeys(names)]
        return [[each.name, each.incarnation, len(each.partitions)] for each in streams]

    def _leave(self, correlation: int, fields: Fields) -> None:
        group = fields.text("group")
        self._connection.access.require(READ, "group", group)
        name = fields.text("member")
        generation = fields.integer("generation", 0, _MAX_GENERATION)
        fields.finish()
        self._vhost.memberships.leave(group, name, generation)
        self._connection.reply_when_durable(correlation, {})

    def _commit(self, correlation: int, fields: Fields) -> None:
        commit = Commit(self._vhost, fields, self._connection.access)
        commit.check()
        commit.apply()
        self._connection.reply_when_durable(correlation, {})

    def _committed(self, correlation: int, fields: Fields) -> None:
        stream = stream_of(self._vhost, fields, self._connection.access)
        group = fields.text("group")
        self._connection.access.require(READ, "group", group)
        fields.finish()
        rows = [
            [
                lag.partition,
                None if lag.committed < 0 else lag.committed,
                lag.lag,
                lag.metadata or None,
            ]
            for lag in self._vhost.groups.lag(group, stream)
        ]
        reply: dict[str, object] = {"incarnation": stream.incarnation, "partitions": rows}
        reply_bounded(self._connection, correlation, reply)
