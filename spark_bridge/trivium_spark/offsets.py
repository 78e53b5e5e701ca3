"""Offset arithmetic: what a micro-batch reads, as pure functions of offsets and a snapshot.

Spark's checkpoint is the only truth. It holds the end offset of every batch as JSON::

    {"offsets": {"orders/0": 42}, "incarnations": {"orders": "9f2c..."}, "from": {"orders/0": 40}}

``offsets`` has the next offset to read of every partition. An incarnation tells a stream from an
earlier one of the same name, whose offsets do not compare. A stream that the query does not read
any more keeps its place, so that adding it back goes on there.

A batch reads from the end of the batch before it, except where ``from`` says otherwise. That is
needed because Spark does not keep where the first batch began: it asks for the initial offset again
when it runs that batch and when it repeats it after a failure, and by then ``latest`` is elsewhere.
``from`` puts the beginning into the checkpoint, as it does for partitions that are new and for
streams that lost records.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trivium_spark.errors import DataLossError, OptionError, TriviumSparkError
from trivium_spark.options import (
    EARLIEST,
    LATEST,
    Division,
    Limits,
    Position,
    StreamPartition,
    format_partition,
    parse_partition,
)

_NO_LIMITS: Final = Limits()
_NO_SIZES: Final[Mapping[StreamPartition, float]] = {}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The records that a partition holds: from offset ``earliest`` up to before ``latest``."""

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream at one moment: its incarnation, and the bounds of each of its partitions.

    None stands for partitions that the query does not read.
    """

    incarnation: str
    partitions: tuple[Bounds | None, ...]


#: The streams of a query at one moment, by name.
Snapshot = Mapping[str, StreamState]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition from offset ``start`` up to before ``end``."""

    stream: str
    partition: int
    incarnation: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets it has."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Offsets:
    """A position in all partitions of all streams of a query (see the module)."""

    offsets: Mapping[StreamPartition, int]
    incarnations: Mapping[str, str]
    begin: Mapping[StreamPartition, int] = field(default_factory=dict)

    @property
    def is_initial(self) -> bool:
        """Whether nothing was read before this position."""
        return self.begin == self.offsets

    def of(self, streams: Collection[str]) -> Offsets:
        """The position in these streams alone."""
        return Offsets(
            {key: offset for key, offset in self.offsets.items() if key[0] in streams},
            {name: each for name, each in self.incarnations.items() if name in streams},
        )

    def to_json(self) -> dict[str, Any]:
        """The form that Spark keeps in its checkpoint."""
        made: dict[str, Any] = {
            "offsets": _keys_to_text(self.offsets),
            "incarnations": dict(sorted(self.incarnations.items())),
        }
        if self.begin:
            made["from"] = _keys_to_text(self.begin)
        return made

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Offsets:
        """Read what ``to_json`` made. Raises TriviumSparkError for anything else."""
        try:
            return Offsets(
                _keys_from_text(data["offsets"]),
                {str(stream): str(value) for stream, value in data["incarnations"].items()},
                _keys_from_text(data.get("from", {})),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TriviumSparkError(
                f"the checkpoint holds an offset that is not of this data source: {data}"
            ) from error


def _keys_to_text(offsets: Mapping[StreamPartition, int]) -> dict[str, int]:
    return {format_partition(key): offsets[key] for key in sorted(offsets)}


def _keys_from_text(data: Mapping[str, Any]) -> dict[StreamPartition, int]:
    offsets: dict[StreamPartition, int] = {}
    for text, offset in data.items():
        key = parse_partition(text)
        if key is None or isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ValueError(text)
        offsets[key] = offset
    return offsets


def resolve(position: Position, snapshot: Snapshot) -> dict[StreamPartition, int]:
    """The offset of every partition for a position that is all of offsets.

    Raises OptionError for a partition that a stream does not have.
    """
    check_partitions([*position.offsets, *position.times], snapshot)
    found: dict[StreamPartition, int] = {}
    for key, bounds in partitions_of(snapshot):
        offset = position.offsets.get(key, position.otherwise)
        if offset == EARLIEST:
            offset = bounds.earliest
        elif offset == LATEST:
            offset = bounds.latest
        found[key] = offset
    return found


def check_partitions(keys: Iterable[StreamPartition], snapshot: Snapshot) -> None:
    """Raise OptionError for a partition that its stream does not have."""
    for key in keys:
        if key[0] not in snapshot:
            raise OptionError(f"stream {key[0]} does not exist")
        if key[1] >= len(snapshot[key[0]].partitions):
            raise OptionError(
                f"there is no {format_partition(key)}: stream {key[0]!r} has"
                f" {len(snapshot[key[0]].partitions)} partitions"
            )


def check_complete(position: Position, snapshot: Snapshot) -> None:
    """Raise OptionError where an option gives a number to some partitions and not to others."""
    if position.option is None:
        return
    named = position.offsets.keys() | position.times.keys()
    missing = [format_partition(key) for key, _ in partitions_of(snapshot) if key not in named]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        hint = "" if position.times else " (-1: latest, -2: earliest)"
        raise OptionError(
            f"option {position.option} leaves out {', '.join(missing[:5])}{more}: it names all"
            f" partitions that are read{hint}"
        )


def initial_offsets(start: Position, snapshot: Snapshot) -> Offsets:
    """Where a query that has no checkpoint begins. Raises OptionError."""
    offsets = resolve(start, snapshot)
    return Offsets(offsets, _incarnations(snapshot), offsets)


def latest_offsets(snapshot: Snapshot) -> Offsets:
    """The end of every partition."""
    offsets = {key: bounds.latest for key, bounds in partitions_of(snapshot)}
    return Offsets(offsets, _incarnations(snapshot))


@dataclass(frozen=True, slots=True)
class Advance:
    """Where a micro-batch ends, and what was lost before it (a text for each loss)."""

    end: Offsets
    losses: list[str]


def advance(
    start: Offsets,
    snapshot: Snapshot,
    limits: Limits = _NO_LIMITS,
    target: Offsets | None = None,
    sizes: Mapping[StreamPartition, float] = _NO_SIZES,
) -> Advance:
    """The end of the micro-batch that begins at ``start``; ``start`` itself when nothing is new.

    ``limits`` say how much the batch may have, where ``sizes`` are the bytes of a record of each
    partition, about, and how much there must be. A batch does not pass ``target``, the end of a
    query that only reads what is available when it starts.
    """
    losses: list[str] = []
    begin: dict[StreamPartition, int] = {}
    backlog: dict[StreamPartition, int] = {}
    for key, bounds in partitions_of(snapshot):
        begin[key] = _begin(start, key, snapshot[key[0]].incarnation, bounds, losses)
        last = bounds.latest
        if target is not None:
            last = min(last, target.offsets.get(key, begin[key]))
        backlog[key] = max(0, last - begin[key])
    taken = _taken(backlog, limits, sizes)
    left = {
        key: offset
        for key, offset in start.offsets.items()
        if key not in begin and _may_come_back(start, snapshot, key[0])
    }
    offsets = {**left, **{key: begin[key] + taken[key] for key in begin}}
    incarnations = {
        **{stream: start.incarnations[stream] for stream, _ in left},
        **_incarnations(snapshot),
    }
    losses += [
        f"{name}: the checkpoint has offsets of it, which the query does not read any more; what"
        " follows them is left out, until it is read again"
        for name in sorted(
            {key[0] if key[0] not in snapshot else format_partition(key) for key in left}
        )
    ]
    if offsets == start.offsets and incarnations == start.incarnations:
        return Advance(start, losses)
    if start.is_initial:
        # This may be the first batch: all its beginnings are kept.
        kept = {**left, **begin}
    else:
        kept = {key: value for key, value in begin.items() if _differs(start, snapshot, key, value)}
    return Advance(Offsets(offsets, incarnations, kept), losses)


def _may_come_back(start: Offsets, snapshot: Snapshot, stream: str) -> bool:
    """Whether offsets of a stream mean something once it is read again."""
    return stream not in snapshot or snapshot[stream].incarnation == start.incarnations[stream]


def _taken(
    backlog: Mapping[StreamPartition, int], limits: Limits, sizes: Mapping[StreamPartition, float]
) -> Mapping[StreamPartition, int]:
    """How many records of each partition's backlog are within the limits."""
    if limits.min_offsets is not None and sum(backlog.values()) < limits.min_offsets:
        return dict.fromkeys(backlog, 0)
    taken = backlog
    if limits.max_bytes is not None:
        known = {key: max(sizes.get(key, 1.0), 1.0) for key in backlog}
        weights = {key: math.ceil(records * known[key]) for key, records in backlog.items()}
        shares = share(weights, limits.max_bytes)
        # At least one, lest a large record never be read.
        taken = {
            key: min(records, max(1, int(shares[key] / known[key])))
            for key, records in backlog.items()
        }
    return taken if limits.max_offsets is None else share(taken, limits.max_offsets)


def backlog_of(start: Offsets, snapshot: Snapshot) -> dict[StreamPartition, int]:
    """Where each partition that has something to read goes on."""
    found: dict[StreamPartition, int] = {}
    for key, bounds in partitions_of(snapshot):
        at = max(start.offsets.get(key, 0), bounds.earliest)
        if at < bounds.latest:
            found[key] = at
    return found


def behind(
    places: Mapping[StreamPartition, int],
    snapshot: Snapshot,
    sizes: Mapping[StreamPartition, float],
) -> dict[str, dict[str, int]]:
    """Records, and about the bytes, between ``places`` and the ends, of each stream.

    ``sizes`` are the bytes of a record. A partition without one is like the others of its stream.
    """
    found: dict[str, dict[str, int]] = {}
    for stream, state in snapshot.items():
        left = {
            number: bounds.latest - places[stream, number]
            for number, bounds in enumerate(state.partitions)
            if bounds is not None and (stream, number) in places
        }
        known = [sizes[stream, number] for number in left if (stream, number) in sizes]
        mean = sum(known) / len(known) if known else 0.0
        weights = [sizes.get((stream, number), mean) * each for number, each in left.items()]
        found[stream] = {"records": sum(left.values()), "bytes": round(sum(weights))}
    return found


def _differs(start: Offsets, snapshot: Snapshot, key: StreamPartition, begin: int) -> bool:
    is_same_stream = start.incarnations.get(key[0]) == snapshot[key[0]].incarnation
    return not is_same_stream or start.offsets.get(key) != begin


def _begin(
    start: Offsets, key: StreamPartition, incarnation: str, bounds: Bounds, losses: list[str]
) -> int:
    """Where to go on in a partition; what is missing there is added to ``losses``."""
    name = format_partition(key)
    known = start.incarnations.get(key[0])
    wanted = start.offsets.get(key)
    if known is None or (wanted is None and known == incarnation):
        # A stream that was added to the query, or a partition that was added to its stream.
        return bounds.earliest
    if known != incarnation:
        losses.append(
            f"{name}: the stream was deleted and made again (incarnation {known}, now"
            f" {incarnation}); what followed offset {wanted} in the old one is gone"
        )
        return bounds.earliest
    assert wanted is not None
    if wanted < bounds.earliest:
        losses.append(f"{name}: offsets {wanted} to {bounds.earliest - 1} do not exist any more")
        return bounds.earliest
    if wanted > bounds.latest:
        losses.append(f"{name}: offsets {bounds.latest} to {wanted - 1} do not exist")
        return bounds.latest
    return wanted


def check_order(start: Offsets, end: Position) -> None:
    """Raise OptionError where a batch query is to end before it begins."""
    for key, last in end.offsets.items():
        if 0 <= last < start.offsets[key]:
            raise OptionError(
                f"{format_partition(key)} would end at {last}, before it begins at"
                f" {start.offsets[key]}: startingOffsets and endingOffsets do not belong together"
            )


def beyond_the_end(start: Offsets, snapshot: Snapshot) -> list[str]:
    """Where a batch query is to begin behind what its streams hold (a text for each)."""
    return [
        f"{format_partition(key)}: offsets {bounds.latest} to {start.offsets[key] - 1} do not exist"
        for key, bounds in partitions_of(snapshot)
        if start.offsets[key] > bounds.latest
    ]


def check_losses(losses: list[str]) -> None:
    """Raise DataLossError when there are losses, saying which and what can be done."""
    if losses:
        raise DataLossError(
            "; ".join(losses) + ". Set failOnDataLoss to false to go on with what there is."
        )


def ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """What the micro-batch from ``start`` to ``end`` reads, without partitions that have nothing.

    Raises TriviumSparkError when the two do not belong together.
    """
    found: list[OffsetRange] = []
    if start == end:
        # Its ``from`` is where the batch before began.
        return found
    for key, last in end.offsets.items():
        incarnation = end.incarnations[key[0]]
        first = end.begin.get(key)
        if first is None and start.incarnations.get(key[0]) == incarnation:
            first = start.offsets.get(key)
        if first is None:
            raise TriviumSparkError(
                f"the checkpoint does not say where the batch begins in {format_partition(key)}"
            )
        if first < last:
            found.append(OffsetRange(key[0], key[1], incarnation, first, last))
    return found


def divide(wanted: Sequence[OffsetRange], division: Division) -> list[OffsetRange]:
    """The ranges, parted into as many as ``division`` asks for."""
    found = list(wanted)
    most = division.max_records
    if most is not None:
        found = [each for one in found for each in _parts(one, -(-one.size // most))]
    least = division.min_partitions
    if least is not None and len(found) < least:
        total = sum(one.size for one in found)
        # Those that are a small share stay whole; what they leave is parted by the others.
        large = [one for one in found if one.size * least > total]
        rest = sum(one.size for one in large)
        left = least - (len(found) - len(large))
        found = [
            each
            for one in found
            for each in (
                _parts(one, max(1, math.ceil(one.size * left / rest)))
                if one.size * least > total
                else [one]
            )
        ]
    return found


def _parts(wanted: OffsetRange, count: int) -> list[OffsetRange]:
    """A range in so many parts, as even as possible; fewer where it has fewer records."""
    count = min(count, wanted.size)
    borders = [wanted.start + wanted.size * index // count for index in range(count + 1)]
    return [replace(wanted, start=first, end=after) for first, after in itertools.pairwise(borders)]


def share(backlog: Mapping[StreamPartition, int], limit: int) -> dict[StreamPartition, int]:
    """Divide ``limit`` records among partitions: evenly, what one does not need goes to others."""
    taken: dict[StreamPartition, int] = {}
    left = limit
    for index, key in enumerate(sorted(backlog, key=lambda key: (backlog[key], key))):
        parts = len(backlog) - index
        taken[key] = min(backlog[key], -(-left // parts))
        left -= taken[key]
    return taken


def partitions_of(snapshot: Snapshot) -> list[tuple[StreamPartition, Bounds]]:
    """The partitions that the query reads, with their bounds."""
    return [
        ((stream, number), bounds)
        for stream, state in snapshot.items()
        for number, bounds in enumerate(state.partitions)
        if bounds is not None
    ]


def _incarnations(snapshot: Snapshot) -> dict[str, str]:
    return {stream: state.incarnation for stream, state in snapshot.items()}
