"""What a native client does as a member, or the exclusive holder, of consumer groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgpack

from tests.simulation.group_model import (
    NOT_FOUND,
    STRATEGIES,
    Assigned,
    GroupModel,
    Member,
    Place,
    Refused,
)
from tests.simulation.stream_model import STREAMS
from trivium_native.wire import frames

if TYPE_CHECKING:
    from tests.simulation.native_actor import NativeActor


@dataclass
class Membership:
    """What a member knows of itself; it survives everything."""

    group: str
    name: str
    generation: int
    is_holder: bool = False
    #: what it was assigned, and those of it that it is to let go
    owned: set[Place] = field(default_factory=set)
    revoked: set[Place] = field(default_factory=set)
    #: whether a heartbeat is under way
    is_waiting: bool = False
    #: whether it was asked for a heartbeat since the last one
    is_asked: bool = False
    #: whether it would have been: its last request came by the connection that there is
    is_reachable: bool = True


class Memberships:
    def __init__(self, actor: NativeActor) -> None:
        self.actor = actor
        self.random = actor.random
        self.members: dict[tuple[str, str], Membership] = {}
        #: what it was, and may take itself for
        self.former: deque[Membership] = deque(maxlen=6)
        self.actions: list[tuple[Callable[[], None], int]] = [
            (self.join, 12),
            (self.join_exclusively, 1),
            (self.heartbeat, 25),
            (self.leave, 3),
            (self.commit, 12),
            (self.delete, 1),
        ]

    @property
    def model(self) -> GroupModel:
        return self.actor.reference.groups

    def forget(self) -> None:
        """The connection is gone, and the answers to what is under way."""
        for member in self.members.values():
            member.is_waiting = member.is_reachable = False

    # Joining and leaving

    def join(self, group: str = "", name: str = "") -> None:
        group = group or self.random.choice(list(STRATEGIES))
        name = name or f"{self.actor.name}.{self.random.randint(0, 1)}"
        streams: list[str] = ["s1"]
        if STRATEGIES[group] != "sticky":
            streams = self.random.choice((["s0"], ["s1"], ["s0", "s1"]))
        session, rebalance = self.random.choice((3000, 20_000)), self.random.choice((2000, 60_000))
        self.actor.note(f"joins {group} as {name} for {streams}, {session} and {rebalance} ms")
        assigned: Assigned = {}
        generation, refusal = 0, 0
        write_batch = self.actor.write_batch
        try:
            if not all(self.actor.exists(stream) for stream in streams):
                raise Refused(NOT_FOUND)
            member = Member(tuple(streams), session, rebalance, 0, 0, write_batch)
            generation, assigned = self.model.join(group, name, member, write_batch, self.actor.now)
        except Refused as refused:
            refusal = refused.code
        fields = {
            "group": group,
            "member": name,
            "streams": streams,
            "strategy": STRATEGIES[group],
            "session_ms": session,
            "rebalance_ms": rebalance,
        }

        def then(body: bytes) -> None:
            self._check(body, generation, assigned)
            self._retire(group, name)
            self.members[group, name] = Membership(
                group, name, generation, owned=set(assigned), is_asked=True
            )

        self.actor.ask("join", write_batch, frames.JOIN, fields, then, refusal)

    def join_exclusively(self, group: str = "") -> None:
        group = group or self.random.choice(list(STRATEGIES))
        name = f"{self.actor.name}.{self.random.randint(0, 1)}"
        self.actor.note(f"holds {group} as {name}")
        generation = self.model.join_exclusively(group, name)
        fields = {"group": group, "member": name, "exclusive": True}

        def then(body: bytes) -> None:
            self._check(body, generation, {})
            self._retire(group, name)
            self.members[group, name] = Membership(group, name, generation, is_holder=True)

        self.actor.ask("join exclusively", self.actor.write_batch, frames.JOIN, fields, then)

    def leave(self) -> None:
        member = self._some(former=0.1)
        if member is None:
            return
        self.actor.note(f"leaves {member.group} as {member.name} of {member.generation}")
        is_holding = member.group in self.model.holders
        refusal = 0
        try:
            self.model.leave(member.group, member.name, member.generation, self.actor.now)
        except Refused as refused:
            refusal = refused.code
        if self.members.get((member.group, member.name)) is member:
            self._retire(member.group, member.name)
        # That a member has left is not kept; that a holder has, is.
        write_batch = self.actor.write_batch if is_holding else -1
        self.actor.ask("leave", write_batch, frames.LEAVE, self._fields(member), refusal=refusal)

    def _some(self, former: float) -> Membership | None:
        if self.former and self.random.random() < former:
            living = [each for each in self.former if (each.group, each.name) in self.members]
            return self.random.choice(living or list(self.former))
        return self.random.choice(list(self.members.values())) if self.members else None

    def _retire(self, group: str, name: str) -> None:
        member = self.members.pop((group, name), None)
        if member is not None:
            self._remember(member)

    def _remember(self, member: Membership) -> None:
        former = replace(member, owned=set(member.owned), revoked=set())
        former.is_waiting = former.is_reachable = False
        self.former.append(former)

    @staticmethod
    def _fields(member: Membership) -> dict[str, Any]:
        return {"group": member.group, "member": member.name, "generation": member.generation}

    # Heartbeats

    def heartbeat(self, member: Membership | None = None) -> None:
        member = member or self._some(former=0.2)
        if member is None or member.is_waiting:
            return
        # What it has let go it may be given back at once.
        has_released = bool(member.revoked)
        if self.random.random() < 0.7:
            member.owned -= member.revoked
            member.revoked = set()
        self.actor.note(
            f"{member.name} of {member.group} has {sorted(member.owned)} in {member.generation}"
        )
        owned = set(member.owned)
        assigned: Assigned = {}
        generation, refusal, write_batch = 0, 0, -1
        try:
            generation, assigned = self.model.heartbeat(
                member.group,
                member.name,
                member.generation,
                owned,
                self.actor.write_batch,
                self.actor.now,
            )
            if not member.is_holder:
                write_batch = self.model.groups[member.group].members[member.name].write_batch
        except Refused as refused:
            refusal = refused.code
        fields = self._fields(member)
        names = self.actor.simulation.incarnations
        fields["owned"] = [
            [stream, names[incarnation], [number]] for stream, incarnation, number in sorted(owned)
        ]
        was_asked = member.is_asked or not member.is_reachable
        current = self.members.get((member.group, member.name))
        if refusal:
            if current is member:
                self._retire(member.group, member.name)
        else:
            member.is_asked = False
            member.is_waiting = member.is_reachable = True
            if current is not None and current is not member:
                # It does not hear of what this one is told.
                current.is_reachable = False

        def then(body: bytes) -> None:
            member.is_waiting = False
            self._check(body, generation, assigned)
            is_other = not member.is_holder and not has_released and set(assigned) != owned
            if is_other and not (was_asked or member.is_asked):
                self.actor.simulation.fail(
                    f"{member.name} of {member.group} was not asked for a heartbeat"
                )
            if set(assigned) != member.owned and not member.is_holder:
                # A part of it may not have heard of this.
                self._remember(member)
            member.generation = max(member.generation, generation)
            member.owned |= set(assigned)
            member.revoked = member.owned - set(assigned)

        self.actor.ask("heartbeat", write_batch, frames.HEARTBEAT, fields, then, refusal)

    def rebalance(self, fields: dict[str, str]) -> None:
        """The broker asks for a heartbeat."""
        member = self.members.get((fields["group"], fields["member"]))
        if member is not None:
            member.is_asked = True

    def _check(self, body: bytes, generation: int, assigned: Assigned) -> None:
        found = msgpack.unpackb(body)
        simulation = self.actor.simulation
        rows: dict[tuple[str, int], int | None] = {}
        names: dict[str, str] = {}
        for stream, incarnation, partitions in found.get("assigned", ()):
            names[stream] = incarnation
            rows.update({(stream, number): offset for number, offset in partitions})
        expected = {(stream, number): offset for (stream, _, number), offset in assigned.items()}
        if rows != expected or found["generation"] != generation:
            simulation.fail(f"{self.actor.name}: {found}, not {assigned} in {generation}")
        for stream, incarnation, _ in assigned:
            simulation.learn_incarnation(incarnation, names[stream])

    # Offsets

    def commit(self) -> None:
        found = self.commit_fields()
        if found is None:
            return
        fields, incarnation = found
        refusal = self.stream_refusal(fields, incarnation) or self.refusal(fields)
        if not refusal:
            self.apply(fields)
        self.actor.ask("commit", self.actor.write_batch, frames.COMMIT, fields, refusal=refusal)

    def commit_fields(self) -> tuple[dict[str, Any], int] | None:
        """A commit of a member, or a former one, and the incarnation of its stream."""
        member = self._some(former=0.3)
        if member is None:
            return None
        place = self._some_place(member)
        if place is None:
            return None
        stream, incarnation, number = place
        mark = self.actor.simulation.marks.get((stream, number), 0)
        is_there = self.model.streams.get(stream, (-1, 0))[0] == incarnation
        offset = self.random.randint(0, mark) if is_there else 0
        fields = {**self._fields(member), "stream": stream, "offsets": [[number, offset]]}
        fields["incarnation"] = self.actor.simulation.incarnations[incarnation]
        self.actor.note(f"commits {offset} of {place} for {member.group} as {member.name}")
        return fields, incarnation

    def stream_refusal(self, fields: dict[str, Any], incarnation: int) -> int:
        """How the broker is to refuse a commit because of its stream; 0 for not."""
        try:
            self.model.check_stream(fields["stream"], incarnation)
        except Refused as refused:
            return refused.code
        return 0

    def refusal(self, fields: dict[str, Any]) -> int:
        """How the broker is to refuse a commit to a stream that there is; 0 for not."""
        [[number, _]] = fields["offsets"]
        try:
            self.model.check_commit(
                fields["group"], fields["member"], fields["generation"], fields["stream"], number
            )
        except Refused as refused:
            return refused.code
        return 0

    def apply(self, fields: dict[str, Any]) -> None:
        """The model takes a commit."""
        [[number, offset]] = fields["offsets"]
        self.model.commit(fields["group"], fields["stream"], number, offset)

    def _some_place(self, member: Membership) -> Place | None:
        places = sorted(member.owned)
        if member.is_holder or self.random.random() < 0.15:
            known = self.actor.simulation.incarnations
            places = [
                (stream, self.model.streams[stream][0], number)
                for stream in STREAMS
                if stream in self.model.streams and self.model.streams[stream][0] in known
                for number in range(STREAMS[stream])
            ]
        return self.random.choice(places) if places else None

    def delete(self) -> None:
        group = self.random.choice(list(STRATEGIES))
        self.actor.note(f"deletes {group}")
        refusal = 0
        try:
            self.model.delete(group)
        except Refused as refused:
            refusal = refused.code
        fields = {"kind": "group", "name": group}
        self.actor.ask(
            "delete group", self.actor.write_batch, frames.DELETE, fields, refusal=refusal
        )
