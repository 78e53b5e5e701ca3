"""Consumer groups as the broker describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivium_native.client.values import GroupOffset


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group. ``state``: ``empty``, ``rebalancing``, ``stable``, or ``exclusive`` while ``holder``
    has it alone. ``strategy`` is that of its members."""

    name: str
    state: str
    generation: int
    holder: str | None
    strategy: str | None
    members: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group: the streams that it reads, and the partitions that it owns by stream.

    ``session_timeout`` is in seconds.
    """

    name: str
    generation: int
    session_timeout: float
    streams: Sequence[str]
    owned: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its members, and how far it is, by stream."""

    group: GroupInfo
    members: list[GroupMember]
    offsets: dict[str, list[GroupOffset]]
