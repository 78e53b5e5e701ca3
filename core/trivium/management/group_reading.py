"""Members of consumer groups that have no connection: they poll, and each poll is a heartbeat.

What such a member reads next is kept with it, and goes with it: when it leaves, or shows no life
within its session time-out, as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Wake
from trivium.errors import AccessRefused, PreconditionFailed, StaleMember
from trivium.groups.membership import MemberListener
from trivium.management.stream_reading import MAX_READ_BYTES, Batches
from trivium.streams.stream import StreamReader

if TYPE_CHECKING:
    from trivium.groups.membership import Member
    from trivium.runtime.broker import Broker
    from trivium.streams.stream import Partition
    from trivium.vhost.virtual_host import VirtualHost

#: Milliseconds that a member may be silent, and that it may take to let partitions go.
MAX_SESSION_MS: Final = 300_000

Found = list[tuple["Partition", Batches]]


class PolledMember(MemberListener):
    """A member of a group, as the group reaches it: by the answers to its polls."""

    def __init__(self, vhost: VirtualHost, group: str, name: str, user: str, begins: str) -> None:
        self.group = group
        self.name = name
        #: who joined, and alone may poll
        self.user = user
        #: what it reads next, of the partitions that it holds
        self.positions: dict[Partition, int] = {}
        #: what is under way for it
        self.read: GroupRead | None = None
        self._vhost = vhost
        # ``first`` or ``next``: where it begins in what the group has committed nothing of.
        self._begins = begins

    def rebalance(self, group: str, member: str) -> None:
        """It is answered at once, so that it polls again."""
        if self.read is not None:
            self.read.end()

    def beat(self, generation: int, rewinds: bool) -> tuple[Member, list[Partition]]:
        """It lives. Raises StaleMember, Fenced. The partitions that it is to let go by its next
        poll: until then it may commit what it has of them."""
        held = set(self.positions)
        member = self._vhost.memberships.heartbeat(self.group, self.name, generation, held, self)
        assert member is not None, "a holder joins by another way"
        return member, self.take(member, rewinds)

    def take(self, member: Member, rewinds: bool = False) -> list[Partition]:
        """Hold what it is assigned now; what it held before and does not any more."""
        before = self.positions
        self.positions = {}
        for partition in member.assigned:
            known = None if rewinds else before.get(partition)
            self.positions[partition] = self._start_of(partition) if known is None else known
        return [partition for partition in before if partition not in self.positions]

    def _start_of(self, partition: Partition) -> int:
        committed = self._vhost.groups.committed(self.group, partition.stream)
        begins = partition.high_watermark if self._begins == "next" else partition.first_offset
        return max(committed.get(partition.index, begins), partition.first_offset)

    @property
    def streams(self) -> set[str]:
        """What it reads."""
        known = self._vhost.memberships.members(self.group)
        return set() if known is None else known.members[self.name].streams

    def drop(self) -> None:
        """Its user is gone, or another one: it is no member any more."""
        memberships = self._vhost.memberships
        known = memberships.members(self.group)
        member = None if known is None else known.members.get(self.name)
        if known is not None and member is not None and member.listener is self:
            memberships.remove(known, self.name)


def find_member(vhost: VirtualHost, group: str, name: str, user: str) -> PolledMember:
    """One that is there. Raises StaleMember, AccessRefused for that of another user."""
    known = vhost.memberships.members(group)
    member = None if known is None else known.members.get(name)
    # One that is just joining, in place of another of that name, has no way to it yet.
    if member is None or member.listener is None:
        text = f"'{name}' is not a member of group '{group}', or not any more: join again"
        raise StaleMember(text)
    listener = member.listener
    if not isinstance(listener, PolledMember):
        raise PreconditionFailed(f"member '{name}' of group '{group}' has another connection")
    if listener.user != user:
        raise AccessRefused(f"member '{name}' of group '{group}' is another user's")
    return listener


class GroupRead(StreamReader):
    """Reads partitions from their positions on, some bytes of all together, and calls ``done``:
    with nothing where nothing has come within ``wait_ms``, or it was ended."""

    def __init__(
        self,
        broker: Broker,
        positions: dict[Partition, int],
        wait_ms: int,
        done: Callable[[Found], None],
    ) -> None:
        self._broker = broker
        self._positions = list(positions.items())
        self._until = broker.elapsed_ms + wait_ms
        self._done = done
        self._is_over = False
        self._wake = Wake(self.step)

    def step(self) -> None:
        """Go on."""
        if self._is_over:
            return
        self._cancel()
        found: Found = []
        left = MAX_READ_BYTES
        for partition, position in self._positions:
            if partition.stream.is_deleted:
                continue
            offset = max(position, partition.first_offset)
            if not partition.is_loaded(offset):
                if not found:
                    partition.load(offset, MAX_READ_BYTES, self.step)
                    return
                continue
            batches = partition.read(offset, left)
            if batches:
                found.append((partition, batches))
                left -= sum(len(data) for _, data in batches)
            if left <= 0:
                break
        if found or self._broker.elapsed_ms >= self._until:
            self.end(found)
            return
        for partition, _ in self._positions:
            if not partition.stream.is_deleted:
                partition.wait(self)
        self._broker.timeouts.call_at(self._until, self._wake)

    def watermark_moved(self, partition: Partition) -> None:
        self.step()

    def stream_deleted(self, partition: Partition) -> None:
        self.end()

    def end(self, found: Found | None = None) -> None:
        """It is over, with what was found."""
        if self._is_over:
            return
        self._is_over = True
        self._broker.timeouts.stop(self._wake)
        self._cancel()
        self._done(found or [])

    def _cancel(self) -> None:
        for partition, _ in self._positions:
            partition.cancel(self)
