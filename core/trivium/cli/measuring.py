"""What a load measures: delays in a histogram, and which of its messages came.

All memory is bounded by the number of messages alone: a bit for each, and a histogram of one size.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Final

#: Delays are told apart to one part in 128, as in an HDR histogram of two digits.
_PRECISION: Final = 7
#: The longest delay that is told from longer ones, in nanoseconds: 2**46, some 19 hours.
_LARGEST: Final = 1 << 46
#: The percentiles of a report.
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 99.99)


class Histogram:
    """Delays in nanoseconds, counted in buckets that are at most 1/128 of the delay wide."""

    def __init__(self) -> None:
        size = _bucket(_LARGEST) + 1
        self._counts = array("Q", bytes(8 * size))
        self.count = 0
        self.longest = 0

    def add(self, delay: int) -> None:
        """Count a delay; one below 0 as 0."""
        delay = min(max(delay, 0), _LARGEST)
        self._counts[_bucket(delay)] += 1
        self.count += 1
        if delay > self.longest:
            self.longest = delay

    def percentile(self, percent: float) -> int:
        """The delay that so many per cent do not exceed, in nanoseconds; 0 without any."""
        wanted = self.count * percent / 100
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_upper_end(bucket), self.longest)
        return 0

    def merge(self, other: Histogram) -> None:
        """Add what another one has counted."""
        for bucket, count in enumerate(other._counts):
            self._counts[bucket] += count
        self.count += other.count
        self.longest = max(self.longest, other.longest)

    def report(self) -> dict[str, float]:
        """The percentiles and the longest delay, in milliseconds."""
        found = {f"p{percent:g}": self.percentile(percent) for percent in PERCENTILES}
        found["max"] = self.longest
        return {name: round(delay / 1e6, 4) for name, delay in found.items()}


def _bucket(delay: int) -> int:
    shift = max(delay.bit_length() - _PRECISION - 1, 0)
    return (shift << _PRECISION) + (delay >> shift)


def _upper_end(bucket: int) -> int:
    """The longest delay in a bucket."""
    shift = max((bucket >> _PRECISION) - 1, 0)
    return ((bucket - (shift << _PRECISION) + 1) << shift) - 1


class Numbers:
    """A set of numbers from 0 on, a bit each."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bits) and bool(self._bits[at] & 1 << (number & 7))

    def add(self, number: int) -> bool:
        """Put a number in; whether it is new."""
        at = number >> 3
        if at >= len(self._bits):
            self._bits += bytes(at + 1024 - len(self._bits))
        bit = 1 << (number & 7)
        if self._bits[at] & bit:
            return False
        self._bits[at] |= bit
        self._count += 1
        return True

    def without(self, other: Numbers) -> Numbers:
        """Those that are not in the other one."""
        left = self._as_integer() & ~other._as_integer()
        found = Numbers()
        found._bits += left.to_bytes(left.bit_length() + 7 >> 3, "little")
        found._count = left.bit_count()
        return found

    def _as_integer(self) -> int:
        return int.from_bytes(self._bits, "little")

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The first and the last of each run of neighbours."""
        first = -1
        for at, byte in enumerate(self._bits):
            if byte == (0xFF if first >= 0 else 0):
                continue
            for number in range(at * 8, at * 8 + 8):
                if byte >> (number & 7) & 1:
                    if first < 0:
                        first = number
                elif first >= 0:
                    yield first, number - 1
                    first = -1
        if first >= 0:
            yield first, len(self._bits) * 8 - 1

    def first_ranges(self, most: int) -> list[str]:
        """As text, `7` or `7-9`, so many of them at most."""
        return [
            str(first) if first == last else f"{first}-{last}"
            for first, last in islice(self.ranges(), most)
        ]


class Ledger:
    """What came of one publisher's messages at one place where each is to come once."""

    def __init__(self) -> None:
        self.seen = Numbers()
        #: copies beyond the first: of those that say that they may be one, and of the others
        self.flagged = 0
        self.unflagged = 0

    def add(self, number: int, is_redelivered: bool) -> None:
        """A message has come."""
        if self.seen.add(number):
            return
        if is_redelivered:
            self.flagged += 1
        else:
            self.unflagged += 1

    def lost(self, acknowledged: Numbers) -> Numbers:
        """Those that the broker has acknowledged and that have not come."""
        return acknowledged.without(self.seen)
