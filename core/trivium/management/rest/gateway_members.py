"""Members of consumer groups over HTTP: they join, poll, commit and leave."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from trivium.errors import StaleMember
from trivium.management.counting import count_sent
from trivium.management.endpoints import CLIENTS, ENTERED
from trivium.management.group_reading import (
    MAX_SESSION_MS,
    Found,
    GroupRead,
    PolledMember,
    find_member,
)
from trivium.management.rest.gateway import (
    MAX_RECORD_BYTES,
    MAX_WAIT_MS,
    Record,
    in_parts,
    recorded,
)
from trivium.management.rest.groups import Position, commit_all
from trivium.management.rest.operations import Parameter, answer, asked, body_of, operation
from trivium.management.rest.schema import About, Count, Name, shown_model
from trivium.management.stream_reading import end_of, messages_in
from trivium.management.values import encode
from trivium.observability.api import ApiAnswer, ApiRefused, refusal
from trivium.security.permissions import READ

if TYPE_CHECKING:
    from trivium.groups.membership import Member
    from trivium.management.calls import Call
    from trivium.messages.message import Message
    from trivium.streams.stream import Partition

#: Streams that one member reads.
MAX_STREAMS: Final = 256
#: Messages that are taken by one poll: they take some milliseconds.
MAX_POLLED: Final = 500
#: A poll waits for so much of a session at most: a member that waits is not silent.
_WAITED: Final = 3

_MemberName = Annotated[str, About(shortest=1, longest=255)]
_Session = Annotated[int, About(least=1000, most=MAX_SESSION_MS)]
_Generation = Annotated[int, About(text="the newest that it was told", least=0)]


@dataclass(frozen=True, slots=True)
class Joining:
    """What a member is to read, and how long it may be silent."""

    streams: Annotated[list[Name], About(shortest=1, longest=MAX_STREAMS)]
    member: Annotated[_MemberName | None, About(text="a name; null: any")] = None
    strategy: Literal["range", "round-robin", "sticky"] = "sticky"
    start: Annotated[
        Literal["first", "next"], About(text="where the group has committed nothing")
    ] = "first"
    session_ms: _Session = 30_000
    rebalance_ms: _Session = 60_000


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """A partition that a member reads."""

    stream: Name
    partition: Count
    offset: Annotated[int, About(text="that it reads next", least=0)]


@dataclass(frozen=True, slots=True)
class Joined:
    """A member, as it is now."""

    member: str
    generation: Count
    assigned: list[AssignedPartition]


@dataclass(frozen=True, slots=True)
class Polling:
    """How much a member wants."""

    generation: _Generation
    limit: Annotated[int, About(least=1, most=MAX_POLLED)] = 100
    wait_ms: Annotated[int, About(least=0, most=MAX_WAIT_MS)] = 0
    rewind: Annotated[bool, About(text="begin again at what is committed")] = False


@dataclass(frozen=True, slots=True)
class Revoked:
    """A partition that a member has no more from its next poll on."""

    stream: Name
    partition: Count


@dataclass(frozen=True, slots=True)
class GroupRecord(Record):
    """A message of a stream."""

    stream: Name
    partition: Count


@dataclass(frozen=True, slots=True)
class Polled:
    """Messages, and what the member reads from now on."""

    generation: Count
    assigned: list[AssignedPartition]
    revoked: Annotated[list[Revoked], About(text="to be committed before the next poll")]
    records: list[GroupRecord]


@dataclass(frozen=True, slots=True)
class Commitment:
    """How far a member is, in partitions that it has."""

    generation: _Generation
    positions: Annotated[list[Position], About(shortest=1, longest=4096)]


_GENERATION: Final = Parameter("generation", _Generation, "the newest that it was told")


def join(call: Call) -> None:
    """Be a member, in place of one of that name."""
    wanted = body_of(call, Joining)
    group = call.names["group"]
    access = call.access
    access.require(READ, "group", group)
    for stream in wanted.streams:
        access.require(READ, "stream", stream)
    vhost = call.vhost
    name = wanted.member or secrets.token_hex(8)
    made = PolledMember(vhost, group, name, call.identity.name, wanted.start)
    member = vhost.memberships.join(
        group,
        name,
        wanted.streams,
        wanted.strategy,
        wanted.session_ms,
        wanted.rebalance_ms,
        made,
    )
    made.take(member)
    call.state.members.add(made)
    found = Joined(name, member.generation, _assigned(made))
    call.answer_durably(answer(found, 201))


def _assigned(member: PolledMember) -> list[AssignedPartition]:
    return [
        AssignedPartition(partition.stream.name, partition.index, offset)
        for partition, offset in member.positions.items()
    ]


def _member(call: Call) -> PolledMember:
    group = call.names["group"]
    call.access.require(READ, "group", group)
    return find_member(call.vhost, group, call.names["member"], call.identity.name)


def _require(call: Call, member: PolledMember) -> None:
    """Raise AccessRefused unless all may be read that a member does."""
    for stream in member.streams:
        call.access.require(READ, "stream", stream)


def poll(call: Call) -> None:
    """Show life, and take the next messages."""
    wanted = body_of(call, Polling)
    found = _member(call)
    if found.read is not None:
        raise ApiRefused(refusal(409, "conflict", f"member '{found.name}' polls already"))
    _require(call, found)
    member, revoked = found.beat(wanted.generation, wanted.rewind)

    def done(batches: Found) -> None:
        found.read = None
        call.go_on(lambda: _answer(call, found, member, revoked, batches, wanted.limit))

    # Who has something to let go is answered at once.
    wait_ms = 0 if revoked else min(wanted.wait_ms, member.session_ms // _WAITED)
    found.read = GroupRead(call.broker, found.positions, wait_ms, done)
    names = (call.names["group"], *found.streams)
    call.state.waits.begin(
        call, found.read.end, lambda: all(call.access.may(READ, name) for name in names)
    )
    found.read.step()


def _answer(
    call: Call,
    found: PolledMember,
    member: Member,
    revoked: list[Partition],
    batches: Found,
    limit: int,
) -> None:
    if _member(call) is not found:
        raise StaleMember(f"'{found.name}' was joined again: that one took over")
    _require(call, found)
    records = _take(found, batches, limit)
    count_sent(call, len(records))
    rest = {
        "generation": member.generation,
        "assigned": [shown_model(each) for each in _assigned(found)],
        "revoked": [shown_model(Revoked(each.stream.name, each.index)) for each in revoked],
    }
    shown = (_shown(*each) for each in records)
    parts = in_parts(b'{"records":[', shown, lambda: b"]," + encode(rest)[1:])
    made = ApiAnswer(200, parts=parts)
    if call.vhost.memberships.write_batch > call.broker.storage.durable:
        # A crash must not give the same generation to somebody else.
        call.answer_durably(made)
    else:
        call.done(made)


def _take(member: PolledMember, batches: Found, limit: int) -> list[tuple[Partition, int, Message]]:
    """The next messages of those that were read; the member is behind them."""
    taken: list[tuple[Partition, int, Message]] = []
    size = 0
    positions = member.positions
    for partition, found in batches:
        position = positions.get(partition)
        if position is None:
            continue
        for at, message in messages_in(found, position):
            if len(taken) == limit or (taken and size + message.size > MAX_RECORD_BYTES):
                return taken
            size += message.size
            partition.records_read += 1
            taken.append((partition, at, message))
            positions[partition] = at + 1
        # What compaction has left out at the end is behind it as well. What comes next of this
        # partition waits for the others.
        positions.pop(partition)
        positions[partition] = end_of(found, position)
    return taken


def _shown(partition: Partition, at: int, message: Message) -> dict[str, object]:
    place = {"stream": partition.stream.name, "partition": partition.index}
    return {**place, **shown_model(recorded(at, message))}


def commit(call: Call) -> None:
    """Say how far it is, in partitions that it has."""
    wanted = body_of(call, Commitment)
    found = _member(call)
    commit_all(call, wanted.positions, found.name, wanted.generation)
    call.gone()


def leave(call: Call) -> None:
    """Be no member any more."""
    found = _member(call)
    call.vhost.memberships.leave(found.group, found.name, asked(call, _GENERATION, 0))
    if found.read is not None:
        found.read.end()
    call.gone()


_MEMBERS: Final = "vhosts/{vhost}/groups/{group}/members"
_ONE: Final = _MEMBERS + "/{member}"
_ANY: Final[dict[str, Any]] = {"tags": CLIENTS, "vhost": ENTERED}

ENDPOINTS: Final = (
    operation(
        "POST",
        _MEMBERS,
        join,
        "Join a group",
        body=Joining,
        result=Joined,
        statuses=(201,),
        **_ANY,
    ),
    operation("POST", _ONE + "/poll", poll, "Take messages", body=Polling, result=Polled, **_ANY),
    operation(
        "POST",
        _ONE + "/commit",
        commit,
        "Commit offsets",
        body=Commitment,
        statuses=(204,),
        **_ANY,
    ),
    operation("DELETE", _ONE, leave, "Leave it", query=(_GENERATION,), statuses=(204,), **_ANY),
)
