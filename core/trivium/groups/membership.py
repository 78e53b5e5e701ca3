"""Members of consumer groups: who reads which partition, and whose commits count.

Members *join* with the streams that they read and show life by *heartbeats*. The broker assigns
the partitions. A partition goes from one member to another in steps, so that no two own it:

1. the target changes: the old owner is not assigned the partition any more, but still owns it;
2. the old owner finishes, commits, and leaves the partition out of its next heartbeat (or does not
   within its rebalance time-out, or does not show life within its session time-out);
3. only then the new owner is given it, in the answer to its own next heartbeat.

Each time a member is given something the group's *generation* rises, and the answer says it. A
heartbeat and a commit bear the generation that the member knows of. So the broker can tell a
partition that was let go from one that the member has not heard of yet, and a commit of an owner
from one of a former owner: it counts if the member owns the partition, and has without a break
since that generation or an earlier one.

A group may instead be held *exclusively* by one holder, who reads what it likes: whoever joins
exclusively later fences it. There is no time-out; it lasts until the holder leaves or is fenced.

When members or streams have changed the partitions are shared out anew once, at the end of the
turn, or earlier when an answer needs it; of many groups in as many turns as that takes. Who has
left or is fenced owns nothing from that moment on.

Members are not durable: after a restart they join again. The generation and the exclusive holder
are a row of a table, so generations do not go back and a fenced holder stays fenced.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

from trivium.common.timers import Timed
from trivium.common.turns import EndOfTurn
from trivium.common.values import pack, unpack
from trivium.errors import Fenced, LimitExceeded, PreconditionFailed, ResourceLocked, StaleMember
from trivium.groups.assignment import Assignment, assign
from trivium.groups.offsets import Groups, check_group_name
from trivium.streams.stream import Partition, Stream

if TYPE_CHECKING:
    from trivium.streams.namespace import StreamNamespace

logger = logging.getLogger(__name__)

#: members of one group, and of all groups of a virtual host
MAX_GROUP_MEMBERS: Final = 1024
MAX_MEMBERS: Final = 65_536
#: partitions that a group reads: an assignment is worked out within one turn
MAX_GROUP_PARTITIONS: Final = 4096
#: Members and partitions of the groups that are shared out anew at the end of one turn, as many as
#: one group may have; the groups beyond have the next turn.
MAX_SHARED_PER_TURN: Final = MAX_GROUP_MEMBERS + MAX_GROUP_PARTITIONS
#: groups with members, a holder, or offsets committed by such
MAX_GROUPS: Final = 65_536

#: How it is with a group: it has no members, its partitions are on their way between members, each
#: is where it belongs, or somebody holds it exclusively.
Phase = Literal["empty", "rebalancing", "stable", "exclusive"]
EMPTY: Final = "empty"
REBALANCING: Final = "rebalancing"
STABLE: Final = "stable"
EXCLUSIVE: Final = "exclusive"

#: The row with the newest generation of the groups that were forgotten. Not UTF-8, so no group's.
_FORGOTTEN: Final = b"\xff"


class MemberListener:
    """The way to a member, as long as there is one."""

    def rebalance(self, group: str, member: str) -> None:
        """The member should send a heartbeat now. Called once for each heartbeat."""
        raise NotImplementedError


class Ownership:
    """A partition is a member's, without a break since generation ``since``.

    ``release_by`` is when it is taken away, once the member is to let it go; 0 before.
    """

    def __init__(self, since: int) -> None:
        self.since = since
        self.release_by = 0


class Member:
    """One member. ``generation`` is the newest that it was told, ``joined`` the first."""

    def __init__(
        self, name: str, streams: set[str], session_ms: int, rebalance_ms: int, generation: int
    ) -> None:
        self.name = name
        self.streams = streams
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.generation = generation
        self.joined = generation
        self.expires_at = 0
        self.owned: dict[Partition, Ownership] = {}
        #: those of ``owned`` that it is to keep, in order
        self.assigned: list[Partition] = []
        self.listener: MemberListener | None = None
        self.is_notified = False

    def notify(self, group: str) -> None:
        """Ask for a heartbeat, if the member can be reached and was not asked already."""
        if self.listener is not None and not self.is_notified:
            self.is_notified = True
            self.listener.rebalance(group, self.name)


class GroupMembers(Timed):
    """The members of one group."""

    def __init__(self, memberships: Memberships, name: str, strategy: str) -> None:
        self.name = name
        self.strategy = strategy
        self.members: dict[str, Member] = {}
        #: how many members read each stream
        self.readers: dict[str, int] = {}
        self._memberships = memberships
        self._broker = memberships.vhost.broker
        self._owners: dict[Partition, Member] = {}
        # Who is to have each partition, as of when that was worked out, and the same by member.
        self._target: Assignment = {}
        self._shares: dict[str, list[Partition]] = {}

    # Members

    def member(self, name: str, generation: int) -> Member:
        """A member that knows of ``generation``. Raises StaleMember."""
        found = self.members.get(name)
        if found is None:
            raise StaleMember(
                f"'{name}' is not a member of group '{self.name}', or not any more: join again"
            )
        if not found.joined <= generation <= found.generation:
            raise StaleMember(
                f"generation {generation} of member '{name}' of group '{self.name}' is over:"
                f" it is in {found.generation}"
            )
        return found

    def join(
        self,
        name: str,
        streams: set[str],
        session_ms: int,
        rebalance_ms: int,
        listener: MemberListener,
    ) -> Member:
        """Make a member, in place of one of that name, which is fenced."""
        replaced = self.members.get(name)
        generation = self._memberships.raise_generation(self.name)
        self._release_all(name)
        member = Member(name, streams, session_ms, rebalance_ms, generation)
        self.members[name] = member
        self._begin_reading(streams)
        if replaced is not None:
            self._end_reading(replaced.streams)
            if replaced.listener is not listener:
                replaced.notify(self.name)
        self._reassign()
        self._heard_from(member, listener)
        self._give(member, generation)
        return member

    def heartbeat(
        self, name: str, generation: int, owned: set[Partition], listener: MemberListener
    ) -> Member:
        """A member lives, and holds ``owned``. Raises StaleMember, Fenced.

        Two that would join again and again under one name would take it from each other for ever:
        so the one before is told to stop.
        """
        newer = self.members.get(name)
        if newer is not None and generation < newer.joined:
            raise Fenced(f"group '{self.name}' was joined again as '{name}': that one took over")
        member = self.member(name, generation)
        self.settle()
        self._heard_from(member, listener)
        for partition, ownership in list(member.owned.items()):
            # What it was given in an answer that it has not seen yet is not let go.
            if ownership.since <= generation and partition not in owned:
                self._release(member, partition)
        self._give(member, 0)
        return member

    def leave(self, name: str) -> None:
        """A member leaves: all that it owns is free."""
        self._release_all(name)
        self._end_reading(self.members.pop(name).streams)
        self._memberships.changed(self)

    def dissolve(self) -> None:
        """All members that are left are fenced."""
        self._broker.timeouts.stop(self)
        for member in self.members.values():
            member.notify(self.name)
            self._end_reading(member.streams)
        self.members.clear()

    def read_without(self, name: str) -> set[str]:
        """The streams that others than this member read."""
        member = self.members.get(name)
        own: set[str] = set() if member is None else member.streams
        return {stream for stream, count in self.readers.items() if count > (stream in own)}

    def _begin_reading(self, streams: set[str]) -> None:
        for name in streams:
            count = self.readers.get(name, 0)
            self.readers[name] = count + 1
            if count == 0:
                self._memberships.begin_reading(name, self)

    def _end_reading(self, streams: set[str]) -> None:
        for name in streams:
            self.readers[name] -= 1
            if self.readers[name] == 0:
                del self.readers[name]
                self._memberships.end_reading(name, self)

    def _heard_from(self, member: Member, listener: MemberListener) -> None:
        member.listener = listener
        member.is_notified = False
        member.expires_at = self._broker.elapsed_ms + member.session_ms
        self._broker.timeouts.call_at(member.expires_at, self)

    # Partitions

    def check_commit(
        self, name: str, generation: int, stream: Stream, partitions: list[int]
    ) -> None:
        """Whether a commit counts. Raises StaleMember."""
        member = self.member(name, generation)
        for index in partitions:
            partition = stream.partition(index)
            if partition is None:
                continue  # the commit itself says so
            ownership = member.owned.get(partition)
            if ownership is None or ownership.since > generation:
                raise StaleMember(
                    f"member '{name}' of group '{self.name}' does not own partition {index} of"
                    f" stream '{stream.name}' in generation {generation}"
                )

    def _release(self, member: Member, partition: Partition) -> None:
        del member.owned[partition]
        del self._owners[partition]
        wanting = self._target.get(partition)
        if wanting is not None and wanting != member.name:
            self.members[wanting].notify(self.name)

    def _release_all(self, name: str) -> None:
        member = self.members.get(name)
        if member is not None:
            for partition in member.owned:
                del self._owners[partition]
            member.owned.clear()

    def settle(self) -> None:
        """Share the partitions out anew if members or streams have changed since that was done."""
        if self._memberships.is_changed(self):
            self._reassign()

    @property
    def size(self) -> int:
        """What sharing out costs: members and partitions."""
        return len(self.members) + len(self._target)

    @property
    def is_settled(self) -> bool:
        """Whether each partition is with the member that is to have it, and no other."""
        if self._memberships.is_changed(self) or len(self._owners) != len(self._target):
            return False
        for partition, name in self._target.items():
            owner = self._owners.get(partition)
            if owner is None or owner.name != name:
                return False
        return True

    def _reassign(self) -> None:
        """Work out who is to have what, and ask those for whom it changes for a heartbeat."""
        self._memberships.settled(self)
        members = {name: member.streams for name, member in self.members.items()}
        known = self._memberships.vhost.streams
        streams = [known[name] for name in self.readers if name in known]
        self._target = assign(self.strategy, members, streams, self._target)
        now = self._broker.elapsed_ms
        concerned: dict[str, None] = {}
        for partition, member in list(self._owners.items()):
            ownership = member.owned[partition]
            if self._target.get(partition) == member.name:
                ownership.release_by = 0
                continue
            concerned[member.name] = None
            if partition.stream.is_deleted:
                del member.owned[partition]
                del self._owners[partition]
            elif ownership.release_by == 0:
                ownership.release_by = now + member.rebalance_ms
                self._broker.timeouts.call_at(ownership.release_by, self)
        self._shares = {name: [] for name in members}
        for partition, name in self._target.items():
            self._shares[name].append(partition)
            if partition not in self._owners:
                concerned[name] = None
        for name in concerned:
            self.members[name].notify(self.name)

    def _give(self, member: Member, generation: int) -> None:
        """Give a member what is to be its own and is free; work out what it is assigned.

        ``generation`` is one that was made for this; 0 for none so far.
        """
        assigned: list[Partition] = []
        free: list[Partition] = []
        for partition in self._shares[member.name]:
            if partition not in self._owners:
                free.append(partition)
            elif partition not in member.owned:
                continue
            assigned.append(partition)
        if free:
            member.generation = generation or self._memberships.raise_generation(self.name)
            for partition in free:
                member.owned[partition] = Ownership(member.generation)
                self._owners[partition] = member
        member.assigned = assigned

    # Time

    def due(self) -> None:
        """Remove members without a sign of life; take away what was not let go in time."""
        now = self._broker.elapsed_ms
        for name, member in list(self.members.items()):
            if member.expires_at <= now:
                logger.info("group %s: member %s showed no life in time", self.name, name)
                self._memberships.remove(self, name)
        overdue: list[tuple[Member, Partition]] = []
        next_at = 0
        for member in self.members.values():
            next_at = member.expires_at if not next_at else min(next_at, member.expires_at)
            for partition, ownership in member.owned.items():
                if ownership.release_by == 0:
                    continue
                if ownership.release_by <= now:
                    overdue.append((member, partition))
                else:
                    next_at = min(next_at, ownership.release_by)
        if overdue:
            self.settle()
        for member, partition in overdue:
            held = member.owned.get(partition)
            # By what has changed just now its owner may keep it after all.
            if held is None or held.release_by == 0:
                continue
            logger.info(
                "group %s: member %s did not let partition %d of %s go in time",
                self.name,
                member.name,
                partition.index,
                partition.stream.name,
            )
            self._release(member, partition)
        if next_at:
            self._broker.timeouts.call_at(next_at, self)


class Memberships(EndOfTurn):
    """The members of all groups of a virtual host."""

    def __init__(self, vhost: StreamNamespace, groups: Groups) -> None:
        self.vhost = vhost
        self.offsets = groups
        self._storage = vhost.broker.storage
        self._table = self._storage.table(f"memberships/{vhost.name}")
        self._groups: dict[str, GroupMembers] = {}
        # Stream name -> the groups that read it.
        self._readers: dict[str, dict[GroupMembers, None]] = {}
        # Those whose members or streams have changed since their partitions were shared out.
        self._changed: OrderedDict[GroupMembers, None] = OrderedDict()
        self._is_unflushed = False
        self._count = 0
        # The newest write batch with a generation that someone may have been told.
        self.write_batch = 0

    # Rows: generation, exclusive holder

    def _row(self, group: str) -> tuple[int, str | None]:
        row = self._table.get(group.encode())
        if row is None:
            # A member of a forgotten group may still be about: its generations do not come again.
            return self._forgotten(), None
        value: Any = unpack(row)
        return value[0], value[1]

    def _forgotten(self) -> int:
        row = self._table.get(_FORGOTTEN)
        return 0 if row is None else int(unpack(row)[0])

    def _put_row(self, group: str, generation: int, holder: str | None) -> None:
        key = group.encode()
        if self._table.get(key) is None and len(self._table) >= MAX_GROUPS:
            raise LimitExceeded(f"a virtual host has at most {MAX_GROUPS} groups with members")
        self._table.put(key, pack([generation, holder]))
        self.write_batch = self._storage.write_batch

    def raise_generation(self, group: str) -> int:
        """The next generation of a group, as of the current write batch."""
        generation, holder = self._row(group)
        self._put_row(group, generation + 1, holder)
        return generation + 1

    def _forget_if_unused(self, group: str) -> None:
        """A group without members, holder and offsets has no row."""
        is_used = group in self._groups or self._row(group)[1] is not None
        if not is_used and not self.offsets.has(group):
            self._forget(group)

    def _forget(self, group: str) -> None:
        generation = max(self._row(group)[0], self._forgotten())
        self._table.put(_FORGOTTEN, pack([generation]))
        self._table.delete(group.encode())

    # What operators see

    def names(self) -> Iterator[str]:
        """The groups that have, or had, members or a holder. Others may be served meanwhile."""
        for key in [key for key, _ in self._table.items()]:
            if key != _FORGOTTEN:
                yield key.decode()

    def readers(self, stream: str) -> list[str]:
        """The groups with members that read a stream."""
        return [group.name for group in self._readers.get(stream, ())]

    def has(self, group: str) -> bool:
        """Whether it is one of them."""
        return self._table.get(group.encode()) is not None

    def state(self, group: str) -> tuple[int, str | None]:
        """Its generation, and who holds it exclusively."""
        return self._row(group)

    def members(self, group: str) -> GroupMembers | None:
        """Its members; None while it has none."""
        return self._groups.get(group)

    # Joining and leaving

    def join(
        self,
        group: str,
        member: str,
        streams: list[str],
        strategy: str,
        session_ms: int,
        rebalance_ms: int,
        listener: MemberListener,
    ) -> Member:
        """Make ``member`` a member, in place of an earlier one of that name, which is fenced.

        Raises NotFound for a stream, ResourceLocked while the group is held exclusively,
        PreconditionFailed for another strategy than the other members' or too many partitions,
        LimitExceeded for too many members or groups.
        """
        check_group_name(group)
        found = self.vhost.streams
        total = sum([len(self.vhost.stream(name).partitions) for name in set(streams)])
        known = self._groups.get(group)
        names = set(streams)
        if known is not None:
            names |= known.read_without(member)
            total = sum([len(found[name].partitions) for name in names if name in found])
        if total > MAX_GROUP_PARTITIONS:
            raise PreconditionFailed(f"a group reads at most {MAX_GROUP_PARTITIONS} partitions")
        holder = self._row(group)[1]
        if holder is not None:
            raise ResourceLocked(
                f"group '{group}' is held exclusively by '{holder}': it must leave, or be fenced"
                " by an exclusive join"
            )
        is_new = known is None or member not in known.members
        if is_new and (
            self._count >= MAX_MEMBERS
            or (known is not None and len(known.members) >= MAX_GROUP_MEMBERS)
        ):
            raise LimitExceeded(f"group '{group}', or this virtual host, has too many members")
        if known is None:
            known = GroupMembers(self, group, strategy)
        elif strategy != known.strategy:
            if set(known.members) != {member}:
                raise PreconditionFailed(
                    f"the members of group '{group}' use strategy '{known.strategy}',"
                    f" not '{strategy}'"
                )
            known.strategy = strategy
        joined = known.join(member, set(streams), session_ms, rebalance_ms, listener)
        self._groups[group] = known
        self._count += is_new
        if is_new:
            self.vhost.tell("group.member.joined", group=group, member=member)
        return joined

    def join_exclusively(self, group: str, holder: str) -> int:
        """Hold a group; whoever held it, and all members, are fenced. The holder's generation.

        Raises LimitExceeded.
        """
        check_group_name(group)
        generation = self._row(group)[0] + 1
        self._put_row(group, generation, holder)
        known = self._groups.pop(group, None)
        if known is not None:
            self.settled(known)
            self._count -= len(known.members)
            for member in known.members:
                self.vhost.tell("group.member.left", group=group, member=member)
            known.dissolve()
        self.vhost.tell("group.member.joined", group=group, member=holder)
        return generation

    def heartbeat(
        self,
        group: str,
        member: str,
        generation: int,
        owned: set[Partition],
        listener: MemberListener,
    ) -> Member | None:
        """A member lives and holds ``owned``; what it is assigned now. None for a holder.

        Raises StaleMember, Fenced.
        """
        if self._is_holder(group, member, generation):
            return None
        return self._members(group, member).heartbeat(member, generation, owned, listener)

    def leave(self, group: str, member: str, generation: int) -> None:
        """A member, or the holder, leaves. Raises StaleMember, Fenced."""
        if self._is_holder(group, member, generation):
            self._put_row(group, generation, None)
            self._forget_if_unused(group)
            self.vhost.tell("group.member.left", group=group, member=member)
            return
        known = self._members(group, member)
        known.member(member, generation)
        self.remove(known, member)

    def remove(self, group: GroupMembers, member: str) -> None:
        """A member is gone, for whatever reason."""
        group.leave(member)
        self._count -= 1
        self.vhost.tell("group.member.left", group=group.name, member=member)
        if not group.members:
            del self._groups[group.name]
            group.dissolve()
            self.settled(group)
            self._forget_if_unused(group.name)

    def dismiss(self, group: str) -> None:
        """Remove all members, and the holder: they may join again."""
        known = self._groups.get(group)
        if known is not None:
            for member in list(known.members.values()):
                self.remove(known, member.name)
                # By its next heartbeat it hears that it is out.
                member.notify(group)
        generation, holder = self._row(group)
        if holder is not None:
            self._put_row(group, generation + 1, None)
            self.vhost.tell("group.member.left", group=group, member=holder)

    def _is_holder(self, group: str, member: str, generation: int) -> bool:
        """Whether this is the exclusive holder; False when there is none. Raises Fenced."""
        held, holder = self._row(group)
        if holder is None:
            return False
        if holder != member or held != generation:
            raise Fenced(f"group '{group}' has been taken over by '{holder}'")
        return True

    def _members(self, group: str, member: str) -> GroupMembers:
        found = self._groups.get(group)
        if found is None:
            raise StaleMember(
                f"'{member}' is not a member of group '{group}', or not any more: join again"
            )
        return found

    # Commits

    def check_commit(
        self,
        group: str,
        member: str | None,
        generation: int,
        stream: Stream,
        partitions: list[int],
    ) -> None:
        """Whether a commit counts. ``member`` None is someone who has not joined.

        Raises Fenced when another holds the group; StaleMember for a member that does not own a
        partition; PreconditionFailed for someone who has not joined while there are members.
        """
        if member is None:
            holder = self._row(group)[1]
            if holder is not None:
                raise Fenced(f"group '{group}' is held exclusively by '{holder}'")
            if group in self._groups:
                raise PreconditionFailed(f"group '{group}' has members: only they commit")
        elif not self._is_holder(group, member, generation):
            self._members(group, member).check_commit(member, generation, stream, partitions)

    # Changes around

    def stream_changed(self, name: str) -> None:
        """A stream was made or deleted: its readers share other partitions."""
        for group in self._readers.get(name, ()):
            self.changed(group)

    def changed(self, group: GroupMembers) -> None:
        """The partitions of a group are to be shared out anew."""
        self._changed[group] = None
        if not self._is_unflushed:
            self._is_unflushed = True
            self.vhost.broker.add_unflushed(self)

    def is_changed(self, group: GroupMembers) -> bool:
        """Whether they are to be."""
        return group in self._changed

    def settled(self, group: GroupMembers) -> None:
        """They are shared out, or there is nobody to have them."""
        self._changed.pop(group, None)

    def flush_turn(self) -> None:
        self._is_unflushed = False
        allowed = MAX_SHARED_PER_TURN
        while self._changed and allowed > 0:
            group = next(iter(self._changed))
            group.settle()
            allowed -= group.size
        if self._changed:
            self._is_unflushed = True
            self.vhost.broker.add_unflushed(self)

    def begin_reading(self, stream: str, group: GroupMembers) -> None:
        """The first member of a group reads a stream."""
        self._readers.setdefault(stream, {})[group] = None

    def end_reading(self, stream: str, group: GroupMembers) -> None:
        """The last member of a group that read a stream does not any more."""
        groups = self._readers[stream]
        del groups[group]
        if not groups:
            del self._readers[stream]

    def close(self) -> None:
        """The virtual host is deleted, and nobody is connected there: members are forgotten."""
        for group in self._groups.values():
            self.vhost.broker.timeouts.stop(group)
        self._groups.clear()
        self._readers.clear()
        self._changed.clear()

    def delete(self, group: str) -> bool:
        """The group is deleted; a holder is fenced. Whether there was anything here.

        Raises PreconditionFailed while it has members.
        """
        if group in self._groups:
            raise PreconditionFailed(f"group '{group}' has members")
        if self._table.get(group.encode()) is None:
            return False
        self._forget(group)
        return True


# What is told of groups


def phase_of(memberships: Memberships, group: str) -> Phase:
    """How it is with a group."""
    if memberships.state(group)[1] is not None:
        return EXCLUSIVE
    known = memberships.members(group)
    if known is None:
        return EMPTY
    return STABLE if known.is_settled else REBALANCING


def is_there(memberships: Memberships, group: str) -> bool:
    """Whether there is such a group: with members or a holder, or with committed offsets."""
    return memberships.has(group) or memberships.offsets.has(group)


def names_of(memberships: Memberships) -> Iterator[str]:
    """The groups that there are, each once, in no order. There may be very many: others may be
    served between any two, and what comes or goes meanwhile may be among them or not."""
    with_offsets = memberships.offsets.names()
    told: set[str] = set()
    for name in memberships.names():
        told.add(name)
        yield name
    for name in with_offsets:
        if name not in told:
            yield name


def streams_of(memberships: Memberships, group: str) -> list[Stream]:
    """The streams that a group has committed offsets of, or reads, by their names."""
    streams = memberships.vhost.streams
    found = {stream.name: stream for stream in memberships.offsets.streams(group, streams)}
    known = memberships.members(group)
    for name in () if known is None else known.readers:
        if name in streams:
            found[name] = streams[name]
    return [stream for _, stream in sorted(found.items())]
