"""What may happen to the files of a stopped broker, and what a repair must save of them.

The logs of the storage are compared before and after, offset by offset: what is missing must be
told.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from tests.support.simulated import Host, SimulatedDisk
from trivium.cli.data_directory import check_record
from trivium.storage.files.encryption import Keys
from trivium.storage.repair.inspected_journal import UNKNOWN
from trivium.storage.repair.inspection import COMES_BACK, Inspection, Loss
from trivium.storage.repair.repair import repair
from trivium.streams.records import batch_span

#: how often each is taken
DAMAGES: Final = {"a bit changes": 8, "cut": 2, "missing": 1, "a block is zero": 2}
BLOCK_SIZE: Final = 4096

Logs = dict[str, dict[int, tuple[bytes, bytes]]]


def damage(disk: SimulatedDisk, random_: random.Random) -> tuple[str, str]:
    """Damage some file; what happened to it, and its path."""
    path = random_.choice([path for path in sorted(disk.files) if disk.content(path)])
    content = disk.content(path)
    kind = random_.choices(list(DAMAGES), list(DAMAGES.values()))[0]
    at = random_.randrange(len(content))
    if kind == "a bit changes":
        content[at] ^= 1 << random_.randrange(8)
    elif kind == "cut":
        del content[at:]
    elif kind == "missing":
        del disk.files[path]
    else:
        at -= at % BLOCK_SIZE
        size = min(BLOCK_SIZE, len(content) - at)
        content[at : at + size] = bytes(size)
    return f"{kind} at byte {at}", path


@dataclass
class Repaired:
    """What an inspection of a damaged disk told, and what was wrong with it or with the repair."""

    losses: list[Loss]
    #: rows of tables may be gone, or older, and with them queues, sessions, offsets
    has_lost_rows: bool
    #: what it has to say
    told: list[str]
    faults: list[str] = field(default_factory=list)

    def is_told(self, log: str, first: int, last: int) -> bool:
        """Whether it says that what was at these offsets is gone, or may be.

        A record of a stream spans several. Where retention was to remove the first ones the record
        stayed as a whole, and only the others are told.
        """
        return any(
            loss.log in (log, "")
            and loss.fate != COMES_BACK
            and loss.first <= last
            and (loss.last == UNKNOWN or first <= loss.last)
            for loss in self.losses
        )

    def has_lost_from(self, queue: str) -> bool:
        """Whether it says that messages of a queue are gone, or may be."""
        return any(
            loss.fate != COMES_BACK and (not loss.log or loss.log.endswith(f"/{queue}"))
            for loss in self.losses
        )

    def has_lost_records(self, stream: str) -> bool:
        """The same of a stream."""
        return any(
            loss.fate != COMES_BACK and (not loss.log or f"/{stream}/" in loss.log)
            for loss in self.losses
        )


def repaired(
    whole: SimulatedDisk, damaged: SimulatedDisk, keys: Keys, random_: random.Random
) -> Repaired:
    """Inspect and repair a damaged disk. Raises StorageError where that is not possible."""
    sound = Inspection(whole.copy(), "data", check_record, keys)
    inspection = Inspection(damaged, "data", check_record, keys)
    result = Repaired(
        inspection.losses,
        bool(inspection.notes)
        or any(each.file == inspection.catalog_path for each in inspection.damages),
        [*map(str, inspection.damages), *inspection.notes, *map(str, inspection.losses)],
    )
    if sound.damages or sound.losses:
        result.faults.append(f"in order, but found {sound.damages}, {sound.losses}")
    if not inspection.damages:
        result.faults.append("no start is possible, but nothing is found")
    repair(inspection, "data/quarantine", ["report"], random_.randbytes)
    again = Inspection(damaged, "data", check_record, keys)
    if again.damages or again.losses:
        result.faults.append(f"repaired, but found {again.damages}, {again.losses}")
        return result
    before, after = _contents(whole, keys), _contents(damaged, keys)
    for log, records in before.items():
        found = after.get(log, {})
        changed = [at for at, record in records.items() if found.get(at, record) != record]
        if changed:
            result.faults.append(f"{log} has other records at {changed}")
        untold = [
            at
            for at, (record, _) in records.items()
            if at not in found and not result.is_told(log, at, at + _span(log, record) - 1)
        ]
        # What began in a batch that is lost nobody knows of.
        is_unknown = log not in after and any("batch" in note for note in inspection.notes)
        if untold and not is_unknown:
            result.faults.append(f"{log} lacks {untold}, told are {result.losses}")
    return result


def _span(log: str, record: bytes) -> int:
    return batch_span(record) if log.startswith("stream/") else 1


def _contents(disk: SimulatedDisk, keys: Keys) -> Logs:
    host = Host(disk.copy(), keys=keys)
    return {name: host.contents(name) for name in host.storage.log_names()}
