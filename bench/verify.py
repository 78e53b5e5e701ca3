"""Count lost and duplicated messages from the sequence numbers in their payloads.

The usual chunk continues exactly where the last one stopped and costs three numpy operations, so
every run is verified, the fastest included. A chunk that does not is kept and counted number by
number when the run is over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Sequences = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Tally:
    """What became of the messages of one receiver."""

    lost: int
    """Sent and never received."""
    duplicated: int
    """Copies received beyond the first."""
    unexpected: int
    """Received with a number that was never sent."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.lost + other.lost,
            self.duplicated + other.duplicated,
            self.unexpected + other.unexpected,
        )


class SequenceCheck:
    """The sequence numbers one receiver has seen, in the order it saw them."""

    def __init__(self) -> None:
        self.received = 0
        self._next = 0
        self._runs: list[tuple[int, int]] = []
        self._run_start = 0
        self._irregular: list[Sequences] = []
        self._ramp: Sequences = np.arange(1024, dtype=np.uint64)

    def add(self, sequences: Sequences) -> None:
        """Take the numbers of a chunk of messages; the array is not kept."""
        count = len(sequences)
        if count == 0:
            return
        self.received += count
        if count > len(self._ramp):
            self._ramp = np.arange(2 * count, dtype=np.uint64)
        offsets = sequences - np.uint64(self._next)
        if bool((offsets == self._ramp[:count]).all()):
            self._next += count
            return
        self._irregular.append(sequences.copy())
        self._runs.append((self._run_start, self._next))
        self._next = self._run_start = int(sequences[-1]) + 1

    @property
    def is_in_order(self) -> bool:
        """Every number was one more than the one before, from 0."""
        return not self._irregular

    def tally(self, sent: int) -> Tally:
        """Compare with the numbers ``0 .. sent - 1`` that were sent."""
        runs = [*self._runs, (self._run_start, self._next)]
        if runs == [(0, sent)]:
            return Tally(0, 0, 0)
        copies = np.zeros(sent, dtype=np.uint32)
        unexpected = 0
        for start, stop in runs:
            copies[start:stop] += 1
            unexpected += max(0, stop - max(start, sent))
        for chunk in self._irregular:
            known = chunk[chunk < np.uint64(sent)]
            unexpected += len(chunk) - len(known)
            np.add.at(copies, known.astype(np.int64), 1)
        lost = int(np.count_nonzero(copies == 0))
        return Tally(lost, int(copies.sum()) - (sent - lost), unexpected)
