"""LIST_GROUPS and DESCRIBE_GROUP: which consumer groups there are, and how it is with one."""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.errors import LimitExceeded, NotFound
from trivium.groups.membership import (
    MAX_SHARED_PER_TURN,
    is_there,
    names_of,
    phase_of,
    streams_of,
)
from trivium.security.identity import ADMINISTRATOR, MONITORING
from trivium.security.permissions import READ
from trivium_native.server.handshake import BEHIND_REQUEST
from trivium_native.server.lists import reply_bounded

if TYPE_CHECKING:
    from trivium.streams.stream import Stream
    from trivium.vhost.virtual_host import VirtualHost
    from trivium_native.server.connection import NativeConnection
    from trivium_native.wire.fields import Fields

#: The tags of users who may see what others do, as over HTTP.
_WATCHERS: Final = frozenset({ADMINISTRATOR, MONITORING})

#: Groups of one answer to LIST_GROUPS.
MAX_GROUPS: Final = 1000
#: Groups of which it is found out in one turn whether they belong to it.
MAX_LOOKED_AT: Final = 2048
#: Streams that DESCRIBE_GROUP may name; streams of members, and partitions, that it tells at most.
MAX_STREAMS: Final = 256
MAX_TOLD: Final = 65_536

_FEWER: Final = "that is too much for one reply: name fewer 'streams', or list it over HTTP"


def list_groups(
    connection: NativeConnection, vhost: VirtualHost, correlation: int, fields: Fields
) -> None:
    """The groups that the client may read, in the order of their names, from the one behind
    ``after`` on; ``next`` is what to say then, absent at the end."""
    after = fields.text("after", "")
    limit = fields.integer("limit", 1, MAX_GROUPS, MAX_GROUPS)
    fields.finish()
    _Page(connection, vhost, correlation, after, limit).begin()


class _Page(Timed):
    """One answer to LIST_GROUPS. Among very many groups it is found in several turns, in which the
    connection is not read, so that it asks for one at a time."""

    def __init__(
        self,
        connection: NativeConnection,
        vhost: VirtualHost,
        correlation: int,
        after: str,
        limit: int,
    ) -> None:
        self._connection = connection
        self._vhost = vhost
        self._correlation = correlation
        self._after = after
        self._limit = limit
        # Those that are not looked at, and of the others the first in the order of their names.
        self._names = names_of(vhost.memberships)
        self._found: list[str] = []

    def begin(self) -> None:
        """Look at the first ones, which may be all."""
        if self._look():
            self._answer()
        else:
            self._connection.hold_input(BEHIND_REQUEST)
            self._wait()

    def due(self) -> None:
        """Another turn."""
        connection = self._connection
        if connection.is_closed:
            return
        if self._look():
            self._answer()
            connection.continue_input(BEHIND_REQUEST)
        else:
            self._wait()

    def _wait(self) -> None:
        broker = self._connection.broker
        broker.timeouts.call_at(broker.elapsed_ms, self)

    def _look(self) -> bool:
        """Look at as many as a turn may; whether that was all."""
        after = self._after
        looked_at = list(islice(self._names, MAX_LOOKED_AT))
        found = [each for each in looked_at if each > after and _may(self._connection, each)]
        # Where the next page begins tells a name too, so it is one of these.
        self._found = nsmallest(self._limit + 1, [*self._found, *found])
        return len(looked_at) < MAX_LOOKED_AT

    def _answer(self) -> None:
        vhost = self._vhost
        memberships = vhost.memberships
        names = self._found
        rows: list[dict[str, object]] = []
        reply: dict[str, object] = {"groups": rows}
        cost = 0
        for at, name in enumerate(names):
            # To find out how it is with a group of many members is work, and so are many groups.
            if at == self._limit or cost > MAX_SHARED_PER_TURN:
                reply["next"] = names[at - 1]
                break
            if not is_there(memberships, name):
                continue  # deleted since it was looked at
            known = memberships.members(name)
            cost += 1 if known is None else known.size
            rows.append(_row(vhost, name))
        self._connection.reply(self._correlation, reply)


def _watches(connection: NativeConnection) -> bool:
    return not _WATCHERS.isdisjoint(connection.identity.tags)


def _row(vhost: VirtualHost, name: str) -> dict[str, object]:
    known = vhost.memberships.members(name)
    generation, holder = vhost.memberships.state(name)
    return {
        "name": name,
        "state": phase_of(vhost.memberships, name),
        "generation": generation,
        "holder": holder,
        "strategy": None if known is None else known.strategy,
        "members": 0 if known is None else len(known.members),
    }


def describe_group(
    connection: NativeConnection, vhost: VirtualHost, correlation: int, fields: Fields
) -> None:
    """One group: its members and what they own, and how far it is in its streams, or in those that
    are named. Raises AccessRefused, NotFound, LimitExceeded."""
    name = fields.text("group")
    wanted = fields.texts("streams", MAX_STREAMS)
    fields.finish()
    if not _watches(connection):
        connection.access.require(READ, "group", name)
    if not is_there(vhost.memberships, name):
        raise NotFound(f"no group '{name}'")
    if wanted is None:
        streams = [
            stream
            for stream in streams_of(vhost.memberships, name)
            if _may(connection, stream.name)
        ]
    else:
        for each in wanted:
            if not _may(connection, each):
                connection.access.require(READ, "stream", each)
        streams = [vhost.stream(each) for each in dict.fromkeys(wanted)]
    if sum(len(stream.partitions) for stream in streams) > MAX_TOLD:
        raise LimitExceeded(_FEWER)
    reply = _row(vhost, name)
    reply["members"] = _members(connection, vhost, name)
    reply["offsets"] = [
        [stream.name, stream.incarnation, _offsets(vhost, name, stream)] for stream in streams
    ]
    reply_bounded(connection, correlation, reply, _FEWER)


def _may(connection: NativeConnection, name: str) -> bool:
    """Whether the client may know of a group, or how far somebody is in a stream."""
    return _watches(connection) or connection.access.may(READ, name)


def _members(
    connection: NativeConnection, vhost: VirtualHost, group: str
) -> list[dict[str, object]]:
    known = vhost.memberships.members(group)
    members = {} if known is None else known.members
    if sum(len(member.streams) + len(member.owned) for member in members.values()) > MAX_TOLD:
        raise LimitExceeded(_FEWER)
    found: list[dict[str, object]] = []
    for _, member in sorted(members.items()):
        owned: dict[tuple[str, str], list[int]] = {}
        for partition in member.owned:
            stream = partition.stream
            owned.setdefault((stream.name, stream.incarnation), []).append(partition.index)
        found.append(
            {
                "member": member.name,
                "generation": member.generation,
                "session_ms": member.session_ms,
                "streams": sorted(name for name in member.streams if _may(connection, name)),
                "owned": [
                    [*stream, sorted(indexes)]
                    for stream, indexes in sorted(owned.items())
                    if _may(connection, stream[0])
                ],
            }
        )
    return found


def _offsets(vhost: VirtualHost, group: str, stream: Stream) -> list[list[object]]:
    found: list[list[object]] = []
    for lag in vhost.groups.lag(group, stream):
        partition = stream.partition(lag.partition)
        mark = 0 if partition is None else partition.high_watermark
        committed = None if lag.committed < 0 else lag.committed
        found.append([lag.partition, committed, mark, lag.lag, lag.metadata or None])
    return found
