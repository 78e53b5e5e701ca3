"""A partition of a stream as a list of records, and what its limits and compaction let be gone.

What was removed, and when, the model does not know: it says which states there may be, for the
limits that are in force and for those that were until they changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

Definition = dict[str, str | int]

#: Streams by number of partitions, and the arguments that say what they keep.
STREAMS: Final = {"s0": 1, "s1": 3, "s2": 1, "s3": 1, "s4": 1, "s5": 1}
STREAM_ARGUMENTS: Final[dict[str, Definition]] = {
    "s2": {"x-max-length": 6},
    "s3": {"x-max-length-bytes": 3000},
    "s4": {"x-cleanup-policy": "compact", "x-tombstone-retention": 2000},
    "s5": {"x-max-age": 4000},
}
#: What native clients stage goes to these.
STAGED_STREAMS: Final = {"t0": 1, "t1": 3}
PARTITIONS: Final = {**STREAMS, **STAGED_STREAMS}
#: What a policy may say of them; one at a time.
STREAM_POLICIES: Final[dict[str, tuple[Definition, ...]]] = {
    "s0": ({"max-length": 5}, {"max-length": 12}, {"max-age": 1500}),
    "s1": (
        {"cleanup-policy": "compact"},
        {"cleanup-policy": "compact", "tombstone-retention": "1s"},
        {"max-age": "3s"},
    ),
    "s5": ({"max-age": "1s"}, {"max-age": "1h"}),
}
#: published with a key, so that they are compacted: the keys, and sizes of payloads
KEYED: Final = ("s1", "s4")
RECORD_KEYS: Final = (b"k0", b"k1", b"k2")
KEYED_SIZES: Final = (3000, 9000)

DAY_MS: Final = 24 * 3600 * 1000
_UNITS: Final = {"s": 1000, "h": 3600_000}

#: A round of compaction begins when so much has come (docs/streams.md).
ROUND_BYTES: Final = 64 * 1024
#: What a batch of one record has beside its payload, at most.
OVERHEAD: Final = 600


def _milliseconds(value: str | int) -> int:
    return value if isinstance(value, int) else int(value[:-1]) * _UNITS[value[-1]]


@dataclass(frozen=True, slots=True)
class Record:
    number: int
    #: when it arrived
    arrived: int
    #: of all records with one only the last need stay; None for a record that stands for itself
    key: bytes | None
    is_tombstone: bool = False


@dataclass(slots=True)
class Kept:
    """What a reader found of a partition from an offset on."""

    first: int
    #: offset behind the last batch
    end: int
    #: size of the batches, in bytes; offset of the last one
    size: int = 0
    newest: int = 0
    #: by offset, the number of a message, None for an empty payload, with the size of the payload
    records: dict[int, tuple[int | None, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What is in force, of arguments and policy."""

    length: int = -1
    size: int = -1
    age: int = -1
    #: how long tombstones stay; -1 without compaction
    tombstones: int = -1


def limits_of(name: str, policy: Definition) -> Limits:
    """Of two limits the smaller one holds; compaction goes before all."""
    own = {key.removeprefix("x-"): value for key, value in STREAM_ARGUMENTS.get(name, {}).items()}
    if {**policy, **own}.get("cleanup-policy") == "compact":
        return Limits(
            tombstones=_milliseconds({**policy, **own}.get("tombstone-retention", DAY_MS))
        )
    found = []
    for key in ("max-length", "max-length-bytes", "max-age"):
        given = [_milliseconds(each[key]) for each in (own, policy) if key in each]
        found.append(min(given, default=-1))
    return Limits(*found)


class Partition:
    def __init__(self, limits: Limits) -> None:
        self.records: list[Record] = []
        self.limits = limits
        #: what limits that were in force allowed to remove: offsets below this
        self._removed = 0
        #: how far compaction came at most, and the newest tombstones that it took arrived by then
        self._compacted = 0
        self._buried = 0

    def copy(self) -> Partition:
        copied = Partition(self.limits)
        copied.records = list(self.records)
        copied._removed = self._removed
        copied._compacted, copied._buried = self._compacted, self._buried
        return copied

    def apply(self, limits: Limits, now: int) -> None:
        """Other limits come into force: what the earlier ones allowed may have happened."""
        self._removed = self.removable(now)
        self._buried = self._tombstones_of(now)
        self._compacted = self.compactable
        self.limits = limits

    @property
    def compactable(self) -> int:
        """Offset up to which a round may have come."""
        return len(self.records) if self.limits.tombstones >= 0 else self._compacted

    def _tombstones_of(self, now: int) -> int:
        if self.limits.tombstones < 0:
            return self._buried
        return max(self._buried, now - self.limits.tombstones)

    def removable(self, now: int) -> int:
        """Offset below which records may be gone whatever their keys."""
        limits, count = self.limits, len(self.records)
        found = self._removed
        if limits.length >= 0:
            found = max(found, count - limits.length)
        if limits.size >= 0:
            # The newest batch stays.
            found = max(found, count - 1)
        if limits.age >= 0:
            aged = 0
            while aged < count - 1 and self.records[aged].arrived + limits.age <= now:
                aged += 1
            found = max(found, aged)
        return found

    def _successors(self) -> list[int]:
        """Per record, the offset of the next one of its key; none is beyond all."""
        latest: dict[bytes, int] = {}
        found: list[int] = []
        for offset in range(len(self.records) - 1, -1, -1):
            key = self.records[offset].key
            found.append(len(self.records) if key is None else latest.get(key, len(self.records)))
            if key is not None:
                latest[key] = offset
        return found[::-1]

    def faults(self, kept: Kept, start: int, now: int) -> list[str]:
        """What cannot be in what was read from offset ``start`` on."""
        found: list[str] = []
        for offset, (number, _) in kept.records.items():
            record = self.records[offset] if offset < len(self.records) else None
            if record is None or number != (None if record.is_tombstone else record.number):
                found.append(f"{offset} is {number}, not {record}")
        if found:
            return found
        removable = self.removable(now)
        successors = self._successors()
        buried = self._tombstones_of(now)
        # How far compaction must have come for what is missing.
        least = 0
        for offset in range(start, kept.end):
            if offset in kept.records or (offset < removable and offset < kept.first):
                continue
            record = self.records[offset]
            is_buried = record.is_tombstone and record.arrived <= buried
            least = max(least, (offset if is_buried else successors[offset]) + 1)
        if least > self.compactable:
            found.append(f"records are gone that only a round up to {least} may remove: {kept}")
        # Then it has left only the last record of each key.
        for offset in kept.records:
            if successors[offset] < least:
                found.append(f"{offset} is there, although a round came up to {least}: {kept}")
        return found

    def idle_faults(self, kept: Kept) -> list[str]:
        """What the broker left undone, given time. The newest batch stays."""
        limits, newest = self.limits, kept.newest
        if limits.age >= 0 and self.compactable == 0 and kept.first < newest:
            return [f"from {kept.first} on nothing goes for its age, up to {newest}"]
        if limits.tombstones >= 0:
            sizes = [size for _, size in kept.records.values()]
            lone = [size for at, (_, size) in kept.records.items() if not self.records[at].key]
            keys = {record.key for record in self.records}
            last = (max(KEYED_SIZES) + OVERHEAD) * len(keys) + sum(lone) + OVERHEAD * len(lone)
            newest_size = sum(size for at, (_, size) in kept.records.items() if at >= newest)
            if sum(sizes) - newest_size > last + max(ROUND_BYTES, last):
                return [f"{sum(sizes)} bytes of {len(keys)} keys are not compacted"]
        return []
