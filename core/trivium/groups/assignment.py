"""Who of a consumer group reads which partition: three strategies, as pure functions.

Each takes the members by id with the streams that they read, and gives every partition of these
streams to one of its readers. The result depends on the arguments alone.

- *range*: per stream, neighbouring partitions together, members in the order of their ids. The same
  numbers of streams with as many partitions go to the same member, so they can be joined.
- *round-robin*: all partitions in order, members in turns.
- *sticky*: as evenly as *round-robin*, but a partition stays where it is if that is even enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from trivium.streams.stream import Partition, Stream

RANGE: Final = "range"
ROUND_ROBIN: Final = "round-robin"
STICKY: Final = "sticky"
STRATEGIES: Final = (RANGE, ROUND_ROBIN, STICKY)

#: Rounds of moving partitions from members with many to members with few. One is enough where all
#: members read the same streams; with others the result may stay a little uneven.
_ROUNDS: Final = 8

Assignment = dict[Partition, str]


def assign(
    strategy: str,
    members: Mapping[str, set[str]],
    streams: list[Stream],
    current: Mapping[Partition, str],
) -> Assignment:
    """The member of each partition, by stream and number; those that nobody reads are left out.

    ``members`` maps ids to the names of the streams that they read. ``current`` says where the
    partitions are now, which only *sticky* minds.
    """
    readers = {
        stream: sorted(member for member, names in members.items() if stream.name in names)
        for stream in sorted(streams, key=_name)
    }
    readers = {stream: ids for stream, ids in readers.items() if ids}
    if strategy == RANGE:
        return _assign_range(readers)
    if strategy == ROUND_ROBIN:
        return _assign_round_robin(readers, sorted(members))
    return _assign_sticky(readers, members, current)


def _name(stream: Stream) -> str:
    return stream.name


def _assign_range(readers: dict[Stream, list[str]]) -> Assignment:
    found: Assignment = {}
    for stream, ids in readers.items():
        each, more = divmod(len(stream.partitions), len(ids))
        at = 0
        for place, member in enumerate(ids):
            end = at + each + (place < more)
            for partition in stream.partitions[at:end]:
                found[partition] = member
            at = end
    return found


def _assign_round_robin(readers: dict[Stream, list[str]], ids: list[str]) -> Assignment:
    found: Assignment = {}
    turn = 0
    for stream, wanted in readers.items():
        wanting = set(wanted)
        for partition in stream.partitions:
            while ids[turn % len(ids)] not in wanting:
                turn += 1
            found[partition] = ids[turn % len(ids)]
            turn += 1
    return found


def _assign_sticky(
    readers: dict[Stream, list[str]],
    members: Mapping[str, set[str]],
    current: Mapping[Partition, str],
) -> Assignment:
    found: Assignment = {}
    counts = dict.fromkeys(members, 0)
    homeless: list[Partition] = []
    for stream in readers:
        for partition in stream.partitions:
            owner = current.get(partition)
            if owner is not None and stream.name in members.get(owner, ()):
                found[partition] = owner
                counts[owner] += 1
            else:
                homeless.append(partition)
    # Streams with the same readers share one view of them.
    by_readers: dict[tuple[str, ...], _Least] = {}
    least: dict[Stream, _Least] = {}
    for stream, ids in readers.items():
        place = tuple(ids)
        if place not in by_readers:
            by_readers[place] = _Least(ids, counts)
        least[stream] = by_readers[place]
    views = list(by_readers.values())
    for partition in homeless:
        member = least[partition.stream].member()
        found[partition] = member
        counts[member] += 1
        _count_changed(views, member)
    for _ in range(_ROUNDS):
        if not _level(found, counts, least, views):
            break
    return {partition: found[partition] for stream in readers for partition in stream.partitions}


def _level(
    found: Assignment, counts: dict[str, int], least: dict[Stream, _Least], views: list[_Least]
) -> bool:
    """Move partitions from whoever has the most to whoever has the fewest; whether any moved."""
    has_moved = False
    untried: dict[str, list[Partition]] = {}
    for partition, owner in found.items():
        untried.setdefault(owner, []).append(partition)
    most = [(-counts[owner], owner) for owner in untried]
    heapify(most)
    while most:
        count, owner = heappop(most)
        if counts[owner] != -count:
            continue
        partitions = untried[owner]
        while partitions:
            partition = partitions.pop()
            member = least[partition.stream].member()
            if counts[owner] - counts[member] >= 2:
                found[partition] = member
                counts[owner] -= 1
                counts[member] += 1
                _count_changed(views, owner)
                _count_changed(views, member)
                heappush(most, (-counts[owner], owner))
                has_moved = True
                break
    return has_moved


def _count_changed(views: list[_Least], member: str) -> None:
    for view in views:
        view.count_changed(member)


class _Least:
    """Which reader of a stream has the fewest partitions; among equals the first by id."""

    def __init__(self, ids: list[str], counts: dict[str, int]) -> None:
        self._counts = counts
        self._ids = set(ids)
        # A member whose count changed leaves its old entry behind.
        self._heap = [(counts[member], member) for member in ids]
        heapify(self._heap)

    def count_changed(self, member: str) -> None:
        """The count of a member changed."""
        if member in self._ids:
            heappush(self._heap, (self._counts[member], member))

    def member(self) -> str:
        """The reader with the fewest."""
        heap = self._heap
        while heap[0][0] != self._counts[heap[0][1]]:
            heappop(heap)
        return heap[0][1]
