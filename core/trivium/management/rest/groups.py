"""Consumer groups: who reads streams, and how far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

from trivium.errors import NotFound
from trivium.groups.membership import Phase, is_there, names_of, phase_of, streams_of
from trivium.groups.offsets import MAX_METADATA_BYTES
from trivium.management.endpoints import ENTERED, BadRequest
from trivium.management.rest.operations import answer, body_of, listed, operation
from trivium.management.rest.schema import About, Count, Name
from trivium.observability.api import ApiAnswer
from trivium.security.permissions import CONFIGURE, READ

if TYPE_CHECKING:
    from trivium.groups.offsets import PartitionLag
    from trivium.management.calls import Call
    from trivium.streams.stream import Partition, Stream
    from trivium.vhost.virtual_host import VirtualHost

#: Positions that are committed together.
MAX_POSITIONS: Final = 4096

_Index = Annotated[int, About(least=0, most=0xFFFF_FFFF)]
_Offset = Annotated[int, About(text="-1 where nothing was committed", least=-1)]


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group."""

    vhost: Name
    name: Name
    generation: Count
    holder: Annotated[str | None, About(text="who has it alone")]
    state: Annotated[
        Phase,
        About(text="no members, partitions on their way between them, none, or held by one alone"),
    ]
    strategy: Annotated[str | None, About(text="by which members share partitions")]
    members: Count
    streams: Annotated[list[str], About(text="of which it has committed offsets, or reads some")]
    lag: Annotated[int, About(text="records that it has not committed yet", least=0)]


@dataclass(frozen=True, slots=True)
class Assigned:
    """A partition that a member owns."""

    stream: Name
    partition: Count


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group."""

    name: str
    generation: Count
    streams: list[str]
    owned: list[Assigned]
    session_ms: Count


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is in a partition."""

    stream: Name
    partition: Count
    committed: _Offset
    high_watermark: Count
    lag: Count
    metadata: Annotated[str, About(text="what was committed with the offset")]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is in a partition of one stream."""

    group: Name
    partition: Count
    member: Annotated[str | None, About(text="who reads it for the group")]
    committed: _Offset
    high_watermark: Count
    lag: Count


@dataclass(frozen=True, slots=True)
class Position:
    """Where a group is to go on."""

    stream: Name
    partition: _Index
    offset: Annotated[int, About(text="that it reads next", least=0)]
    metadata: Annotated[
        str, About(text="kept with it, at most 4,096 bytes", longest=MAX_METADATA_BYTES)
    ] = ""


@dataclass(frozen=True, slots=True)
class Reset:
    """Where a group is to go on, while none of its members is there: by positions, or all of some
    streams alike."""

    positions: Annotated[list[Position] | None, About(shortest=1, longest=MAX_POSITIONS)] = None
    to: Annotated[
        Literal["first", "last", "next", "time", "offset"] | None,
        About(text="the first message, the last, the next that comes, or as another field says"),
    ] = None
    offset: Annotated[int | None, About(text="that it reads next", least=0)] = None
    time: Annotated[
        int | None,
        About(text="the first message from then on: milliseconds since the epoch", least=0),
    ] = None
    streams: Annotated[
        list[Name] | None,
        About(text="of these; else of those that it reads", shortest=1, longest=MAX_POSITIONS),
    ] = None
    partitions: Annotated[
        list[_Index] | None, About(text="these; else all", shortest=1, longest=MAX_POSITIONS)
    ] = None
    force: Annotated[
        bool, About(text="also while it has members, or a holder: they have to join again")
    ] = False


_Item = tuple["VirtualHost", str]


def _readable(call: Call, vhost: VirtualHost, name: str) -> list[Stream]:
    """Those of which the caller may know how far a group is: what it may read, or whoever watches
    all."""
    streams = streams_of(vhost.memberships, name)
    if call.watches:
        return streams
    access = call.broker.permissions.access(call.identity, vhost.name)
    return [stream for stream in streams if access.may(READ, stream.name)]


def view(call: Call, item: _Item) -> Group | None:
    """What the caller is shown of one; None where it is gone."""
    vhost, name = item
    if not is_there(vhost.memberships, name):
        return None
    known = vhost.memberships.members(name)
    generation, holder = vhost.memberships.state(name)
    streams = _readable(call, vhost, name)
    return Group(
        vhost=vhost.name,
        name=name,
        generation=generation,
        holder=holder,
        state=phase_of(vhost.memberships, name),
        strategy=None if known is None else known.strategy,
        members=0 if known is None else len(known.members),
        streams=[stream.name for stream in streams],
        lag=sum(each.lag for stream in streams for each in vhost.groups.lag(name, stream)),
    )


def _all(call: Call) -> Iterator[_Item]:
    for vhost in call.vhosts():
        for name in names_of(vhost.memberships):
            yield vhost, name


def list_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    return listed(
        call, _all(call), lambda item: view(call, item), lambda item: (item[0].name, item[1])
    )


def _found(call: Call) -> str:
    name = call.names["group"]
    if not is_there(call.vhost.memberships, name):
        raise NotFound(f"no group '{name}'")
    return name


def _may_read(call: Call, name: str) -> bool:
    """Whether the caller may know how far somebody is in a stream, or a group is."""
    return call.watches or call.access.may(READ, name)


def _readable_group(call: Call) -> str:
    """The group that is asked for. Raises NotFound, AccessRefused."""
    name = _found(call)
    if not call.watches:
        call.access.require(READ, "group", name)
    return name


def show(call: Call) -> ApiAnswer:
    """One."""
    return answer(view(call, (call.vhost, _found(call))))


def members(call: Call) -> ApiAnswer:
    """Those of one, with the streams that the caller may read."""
    known = call.vhost.memberships.members(_readable_group(call))
    every = [] if known is None else list(known.members.values())
    return listed(
        call,
        every,
        lambda member: Member(
            member.name,
            member.generation,
            sorted(name for name in member.streams if _may_read(call, name)),
            [
                Assigned(owned.stream.name, owned.index)
                for owned in member.owned
                if _may_read(call, owned.stream.name)
            ],
            member.session_ms,
        ),
        lambda member: (member.name,),
    )


def offsets(call: Call) -> ApiAnswer:
    """How far one is, by partition."""
    vhost = call.vhost
    name = _readable_group(call)

    def every() -> Iterator[tuple[Stream, PartitionLag]]:
        for stream in _readable(call, vhost, name):
            for lag in vhost.groups.lag(name, stream):
                yield stream, lag

    def view_lag(item: tuple[Stream, PartitionLag]) -> Lag | None:
        stream, lag = item
        partition = stream.partition(lag.partition)
        if partition is None:
            return None
        return Lag(
            stream.name,
            lag.partition,
            lag.committed,
            partition.high_watermark,
            lag.lag,
            lag.metadata,
        )

    return listed(call, every(), view_lag, lambda item: (item[0].name, f"{item[1].partition:05}"))


def of_stream(call: Call) -> ApiAnswer:
    """How far each group is that has to do with a stream, where the caller may read both."""
    vhost = call.vhost
    stream = vhost.stream(call.names["stream"])
    is_shown = _may_read(call, stream.name)

    def every() -> Iterator[GroupLag | None]:
        names = [*vhost.groups.of_stream(stream), *vhost.memberships.readers(stream.name)]
        for name in dict.fromkeys(names) if is_shown else ():
            known = vhost.memberships.members(name)
            if not _may_read(call, name):
                yield None
                continue
            owners = {
                owned.index: member.name
                for member in ({} if known is None else known.members).values()
                for owned in member.owned
                if owned.stream is stream
            }
            for lag in vhost.groups.lag(name, stream):
                partition = stream.partition(lag.partition)
                if partition is not None:
                    yield GroupLag(
                        name,
                        lag.partition,
                        owners.get(lag.partition),
                        lag.committed,
                        partition.high_watermark,
                        lag.lag,
                    )

    return listed(call, every(), lambda lag: lag, lambda lag: (f"{lag.partition:05}", lag.group))


def reset(call: Call) -> None:
    """Have one go on elsewhere, on the next start of its members."""
    wanted = body_of(call, Reset)
    call.access.require(READ, "group", call.names["group"])
    if (wanted.to is None) is (wanted.positions is None):
        raise BadRequest("a group goes on at 'positions', or 'to' somewhere")
    for place in ("offset", "time"):
        if (getattr(wanted, place) is None) is (wanted.to == place):
            raise BadRequest(f"{place!r} is there where 'to' is {place!r}")
    if wanted.positions is not None:
        _commit(call, wanted.positions, wanted.force)
        return
    partitions = _partitions(call, wanted)
    if not partitions or len(partitions) > MAX_POSITIONS:
        raise BadRequest(f"it goes on in 1 to {MAX_POSITIONS} partitions: say of which 'streams'")
    found: list[Position] = []

    def done(partition: Partition, offset: int) -> None:
        found.append(Position(partition.stream.name, partition.index, offset))
        if len(found) == len(partitions):
            call.go_on(lambda: _commit(call, found, wanted.force))

    for partition in partitions:
        if wanted.time is not None:
            partition.offset_for_timestamp(wanted.time, partial(done, partition))
        else:
            done(partition, _place(partition, wanted))


def _partitions(call: Call, wanted: Reset) -> list[Partition]:
    """Those in which a group is to go on alike. Raises NotFound, AccessRefused."""
    vhost = call.vhost
    streams = [vhost.stream(name) for name in dict.fromkeys(wanted.streams or ())]
    if wanted.streams is None:
        streams = _readable(call, vhost, _found(call))
    found: list[Partition] = []
    for stream in streams:
        # A search may take a while: nobody's is begun who may not.
        call.access.require(READ, "stream", stream.name)
        if wanted.partitions is None:
            found += stream.partitions
            continue
        for index in dict.fromkeys(wanted.partitions):
            partition = stream.partition(index)
            if partition is None:
                raise NotFound(f"stream '{stream.name}' has no partition {index}")
            found.append(partition)
    return found


def _place(partition: Partition, wanted: Reset) -> int:
    """The offset of a place in a partition."""
    if wanted.offset is not None:
        return wanted.offset
    if wanted.to == "next":
        return partition.high_watermark
    return max(partition.first_offset, partition.last_offset if wanted.to == "last" else 0)


def _commit(call: Call, positions: list[Position], is_forced: bool) -> None:
    commit_all(call, positions, is_forced=is_forced)
    streams = ", ".join(sorted({position.stream for position in positions}))
    call.vhost.tell("group.reset", group=call.names["group"], streams=streams)
    call.gone()


def commit_all(
    call: Call,
    positions: list[Position],
    member: str | None = None,
    generation: int = 0,
    is_forced: bool = False,
) -> None:
    """Commit positions in the group of the path, all or none: those of a member that knows of a
    generation, or, where there are no members, of anybody; where that ``is_forced`` the members are
    removed. Raises TopologyError."""
    vhost = call.vhost
    name = call.names["group"]
    access = call.access
    by_stream: dict[str, list[Position]] = {}
    for position in positions:
        by_stream.setdefault(position.stream, []).append(position)
    found: list[tuple[Stream, list[tuple[int, int]], dict[int, str]]] = []
    for stream_name, those in by_stream.items():
        pairs = [(each.partition, each.offset) for each in those]
        kept = {each.partition: each.metadata for each in those if each.metadata}
        found.append((vhost.stream(stream_name), pairs, kept))
    for stream, pairs, kept in found:
        access.require(READ, "stream", stream.name)
        if not is_forced:
            indexes = [partition for partition, _ in pairs]
            vhost.memberships.check_commit(name, member, generation, stream, indexes)
        vhost.groups.check(name, stream, pairs, kept)
    if is_forced:
        vhost.memberships.dismiss(name)
    for stream, pairs, kept in found:
        vhost.groups.commit(name, stream, pairs, kept)


def delete(call: Call) -> None:
    """Forget one that has no members."""
    name = call.names["group"]
    call.access.require(CONFIGURE, "group", name)
    call.vhost.delete_group(name)
    call.gone()


_ALL: Final = "vhosts/{vhost}/groups"
_ONE: Final = "vhosts/{vhost}/groups/{group}"

ENDPOINTS: Final = (
    operation("GET", "groups", list_all, "Groups", result=Group, is_list=True),
    operation("GET", _ALL, list_all, "Groups of a virtual host", result=Group, is_list=True),
    operation(
        "GET",
        "vhosts/{vhost}/streams/{stream}/groups",
        of_stream,
        "How far each group is in a stream",
        result=GroupLag,
        is_list=True,
    ),
    operation("GET", _ONE, show, "A group", result=Group),
    operation("DELETE", _ONE, delete, "Delete a group", vhost=ENTERED, statuses=(204,)),
    operation("GET", _ONE + "/members", members, "Its members", result=Member, is_list=True),
    operation("GET", _ONE + "/offsets", offsets, "How far it is", result=Lag, is_list=True),
    operation(
        "PUT",
        _ONE + "/offsets",
        reset,
        "Reset its offsets",
        vhost=ENTERED,
        body=Reset,
        statuses=(204,),
    ),
)
