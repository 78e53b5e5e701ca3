"""Consumer groups as rules over dictionaries, from the description of the native protocol.

A partition is (stream, incarnation, number); incarnations are numbers of the model's own. What
outlives a restart are offsets, generations and exclusive holders; members do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: refusals, as codes of the native protocol
NOT_FOUND: Final = 301
IN_USE: Final = 302
LOCKED: Final = 303
STREAM_CHANGED: Final = 305
FENCED: Final = 309
STALE: Final = 312

#: how the partitions of each group are assigned; the streams of the last one are always the same
STRATEGIES: Final = {"g0": "range", "g1": "round-robin", "g2": "sticky"}

Place = tuple[str, int, int]
#: per partition that a member may read, the committed offset
Assigned = dict[Place, int | None]


class Refused(Exception):
    """The broker is to refuse a request with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Held:
    since: int
    #: when it is taken away; 0 for not
    release_by: int = 0


@dataclass(slots=True)
class Member:
    streams: tuple[str, ...]
    session_ms: int
    rebalance_ms: int
    joined: int
    generation: int
    #: the write batch of its generation
    write_batch: int
    expires: int = 0
    held: dict[Place, Held] = field(default_factory=dict)


class Group:
    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self.members: dict[str, Member] = {}
        self.target: dict[Place, str] = {}
        #: whether members or streams have changed since the target was worked out
        self.is_changed = False

    def has_owner(self, place: Place) -> bool:
        return any(place in member.held for member in self.members.values())

    def member(self, name: str, generation: int) -> Member:
        found = self.members.get(name)
        if found is None or not found.joined <= generation <= found.generation:
            raise Refused(STALE)
        return found


class GroupModel:
    def __init__(self) -> None:
        #: group, stream and partition to the committed offset
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.generations: dict[str, int] = {}
        #: the newest generation of any group that was forgotten: new groups go on from there
        self.forgotten = 0
        #: who holds a group exclusively
        self.holders: dict[str, str] = {}
        self.groups: dict[str, Group] = {}
        #: incarnation and number of partitions of each stream
        self.streams: dict[str, tuple[int, int]] = {}

    def copy(self) -> GroupModel:
        """What outlives a restart."""
        copy = GroupModel()
        copy.offsets = dict(self.offsets)
        copy.generations = dict(self.generations)
        copy.forgotten = self.forgotten
        copy.holders = dict(self.holders)
        copy.streams = dict(self.streams)
        return copy

    # Streams

    def stream_made(self, stream: str, incarnation: int, partitions: int, now: int) -> None:
        self.streams[stream] = (incarnation, partitions)
        self._stream_changed(stream, now)

    def stream_deleted(self, stream: str, now: int) -> None:
        del self.streams[stream]
        self.offsets = {each: at for each, at in self.offsets.items() if each[1] != stream}
        self._stream_changed(stream, now)

    def _stream_changed(self, stream: str, now: int) -> None:
        for group in self.groups.values():
            if any(stream in member.streams for member in group.members.values()):
                group.is_changed = True

    def check_stream(self, stream: str, incarnation: int) -> None:
        """Raises Refused when there is no such stream."""
        if stream not in self.streams:
            raise Refused(NOT_FOUND)
        if self.streams[stream][0] != incarnation:
            raise Refused(STREAM_CHANGED)

    # Members

    def join(
        self, group: str, name: str, member: Member, write_batch: int, now: int
    ) -> tuple[int, Assigned]:
        """Generation and partitions of a new member. Raises Refused."""
        if group in self.holders:
            raise Refused(LOCKED)
        known = self.groups.setdefault(group, Group(STRATEGIES[group]))
        member.joined = member.generation = self._raise_generation(group)
        member.write_batch = write_batch
        member.expires = now + member.session_ms
        known.members[name] = member
        self._reassign(known, now)
        return self._give(group, name, write_batch, has_raised=True)

    def join_exclusively(self, group: str, name: str) -> int:
        """The generation of the holder."""
        self.groups.pop(group, None)
        self.holders[group] = name
        return self._raise_generation(group)

    def heartbeat(
        self, group: str, name: str, generation: int, owned: set[Place], write_batch: int, now: int
    ) -> tuple[int, Assigned]:
        """Generation and partitions of the member, or the holder. Raises Refused."""
        if self._is_holder(group, name, generation):
            return generation, {}
        newer = self._group(group).members.get(name)
        if newer is not None and generation < newer.joined:
            raise Refused(FENCED)
        member = self._group(group).member(name, generation)
        self._settle(self._group(group), now)
        member.expires = now + member.session_ms
        for place, held in list(member.held.items()):
            if held.since <= generation and place not in owned:
                del member.held[place]
        return self._give(group, name, write_batch, has_raised=False)

    def leave(self, group: str, name: str, generation: int, now: int) -> None:
        """Raises Refused."""
        if self._is_holder(group, name, generation):
            del self.holders[group]
            self._forget_if_unused(group)
            return
        self._group(group).member(name, generation)
        self._remove(group, name)

    def end_turn(self, now: int) -> None:
        """Members that showed no life go; what was not let go in time is taken away."""
        for name, group in list(self.groups.items()):
            for each, member in list(group.members.items()):
                if member.expires <= now:
                    self._remove(name, each)
            self._settle(group, now)
            for member in group.members.values():
                for place, held in list(member.held.items()):
                    if 0 < held.release_by <= now:
                        del member.held[place]

    def _group(self, group: str) -> Group:
        if group not in self.groups:
            raise Refused(STALE)
        return self.groups[group]

    def _is_holder(self, group: str, name: str, generation: int) -> bool:
        if group not in self.holders:
            return False
        if (self.holders[group], self.generations[group]) != (name, generation):
            raise Refused(FENCED)
        return True

    def _raise_generation(self, group: str) -> int:
        self.generations[group] = self.generations.get(group, self.forgotten) + 1
        return self.generations[group]

    def all_generations(self) -> dict[str, int]:
        """The latest generation of each group."""
        return {group: self.generations.get(group, self.forgotten) for group in STRATEGIES}

    def _forget(self, group: str) -> None:
        self.forgotten = max(self.forgotten, self.generations.pop(group, 0))

    def _remove(self, group: str, name: str) -> None:
        known = self.groups[group]
        del known.members[name]
        known.is_changed = True
        if not known.members:
            del self.groups[group]
            self._forget_if_unused(group)

    def _forget_if_unused(self, group: str) -> None:
        if group not in self.groups and not any(each[0] == group for each in self.offsets):
            self._forget(group)

    # Partitions

    def _settle(self, group: Group, now: int) -> None:
        """Before an answer that needs it, and at the end of a turn."""
        if group.is_changed:
            self._reassign(group, now)

    def _reassign(self, group: Group, now: int) -> None:
        group.is_changed = False
        group.target = self._assign(group)
        for name, member in group.members.items():
            for place, held in list(member.held.items()):
                if group.target.get(place) == name:
                    held.release_by = 0
                elif self.streams.get(place[0], (-1, 0))[0] != place[1]:
                    del member.held[place]
                elif held.release_by == 0:
                    held.release_by = now + member.rebalance_ms

    def _assign(self, group: Group) -> dict[Place, str]:
        found: dict[Place, str] = {}
        names = sorted(group.members)
        turn = 0
        for stream, (incarnation, count) in sorted(self.streams.items()):
            places = [(stream, incarnation, number) for number in range(count)]
            readers = [each for each in names if stream in group.members[each].streams]
            if not readers:
                continue
            if group.strategy == "range":
                each, more = divmod(count, len(readers))
                sizes = [each + (place < more) for place in range(len(readers))]
                owners = [
                    name for name, size in zip(readers, sizes, strict=True) for _ in range(size)
                ]
                found.update(zip(places, owners, strict=True))
            elif group.strategy == "round-robin":
                for place in places:
                    while names[turn % len(names)] not in readers:
                        turn += 1
                    found[place] = names[turn % len(names)]
                    turn += 1
            else:
                self._assign_sticky(found, places, readers, group.target)
        return found

    @staticmethod
    def _assign_sticky(
        found: dict[Place, str], places: list[Place], readers: list[str], target: dict[Place, str]
    ) -> None:
        """All partitions have the same readers. What moves is what came last to its owner."""
        has: dict[str, list[Place]] = {name: [] for name in readers}
        for place in sorted(places, key=lambda place: target.get(place) not in has):
            owner = target.get(place)
            if owner not in has:
                owner = min(readers, key=lambda name: len(has[name]))
            has[owner].append(place)
        while True:
            most = max(readers, key=lambda name: len(has[name]))
            least = min(readers, key=lambda name: len(has[name]))
            if len(has[most]) - len(has[least]) < 2:
                break
            has[least].append(has[most].pop())
        found.update({place: name for name in readers for place in has[name]})

    def _give(
        self, group: str, name: str, write_batch: int, has_raised: bool
    ) -> tuple[int, Assigned]:
        known = self.groups[group]
        member = known.members[name]
        wanted = [place for place, owner in known.target.items() if owner == name]
        free = [place for place in wanted if not known.has_owner(place)]
        if free:
            if not has_raised:
                member.generation = self._raise_generation(group)
                member.write_batch = write_batch
            for place in free:
                member.held[place] = Held(member.generation)
        assigned = {
            place: self.offsets.get((group, place[0], place[2]))
            for place in wanted
            if place in member.held
        }
        return member.generation, assigned

    # Offsets

    def check_commit(
        self, group: str, name: str | None, generation: int, stream: str, partition: int
    ) -> None:
        """Raises Refused for a commit that does not count."""
        if name is None:
            if group in self.holders:
                raise Refused(FENCED)
            if group in self.groups:
                raise Refused(IN_USE)
        elif not self._is_holder(group, name, generation):
            member = self._group(group).member(name, generation)
            held = member.held.get((stream, self.streams[stream][0], partition))
            if held is None or held.since > generation:
                raise Refused(STALE)

    def commit(self, group: str, stream: str, partition: int, offset: int) -> None:
        self.offsets[group, stream, partition] = offset

    def delete(self, group: str) -> None:
        """Raises Refused."""
        if group in self.groups:
            raise Refused(IN_USE)
        offsets = {each: at for each, at in self.offsets.items() if each[0] != group}
        if group not in self.generations and len(offsets) == len(self.offsets):
            raise Refused(NOT_FOUND)
        self._forget(group)
        self.holders.pop(group, None)
        self.offsets = offsets
