"""Histograms: how often something took how long, or was how large, since the start.

One thread observes; another may read meanwhile, and sees what was so a moment ago.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

#: Upper bounds of buckets, in seconds: from what a fast turn takes to what nobody should wait for.
SECONDS: Final[tuple[float, ...]] = (
    *(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
#: The same for what is measured in milliseconds, and may wait for long.
MILLISECONDS: Final[tuple[float, ...]] = (
    *(0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 10.0, 60.0, 600.0, 3600.0),
)
#: In bytes, from 256 B to 64 MiB.
BYTES: Final[tuple[float, ...]] = (
    *(256.0, 1024.0, 4096.0, 16384.0, 65536.0),
    *(262144.0, 1048576.0, 4194304.0, 16777216.0, 67108864.0),
)


class Histogram:
    """Observations by the smallest of ``bounds`` that they do not exceed."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        #: by bucket; the last one has what exceeds all bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Add one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
