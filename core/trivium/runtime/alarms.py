"""The limits of memory and disk, beyond which publishers must wait.

An alarm begins when a limit is passed and ends by itself once there is a tenth more room than the
limit asks for, so that it does not come and go with every message. Nothing is measured here:
whoever drives the broker brings the figures.
"""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger(__name__)

#: Share of a limit by which an alarm must be undercut to end.
MARGIN: Final = 0.1
#: Seconds to the next look at the figures: usually, and when a limit is near. The rest of what
#: arrives meanwhile must fit beyond the limit.
USUAL_INTERVAL: Final = 1.0
NEAR_INTERVAL: Final = 0.1
#: Room up to a limit that could be used up within the usual interval (1 GiB).
NEAR_BYTES: Final = 1 << 30


class Alarms:
    """What is short at the moment. A limit of 0 is off, and so is one without a figure."""

    def __init__(self, memory_high: int, disk_low: int) -> None:
        #: bytes of resident memory above which the memory alarm begins
        self.memory_high = memory_high
        #: bytes of free disk below which the disk alarm begins
        self.disk_low = disk_low
        self.is_memory_short = False
        self.is_disk_short = False

    @property
    def reason(self) -> str | None:
        """What is short, in the words that RabbitMQ tells its clients; None when nothing is."""
        if self.is_memory_short:
            return "low on memory & disk" if self.is_disk_short else "low on memory"
        return "low on disk" if self.is_disk_short else None

    def check(self, resident: int, free: int) -> float:
        """Compare bytes of resident memory and of free disk (-1: unknown) with the limits.

        The seconds after which to look again.
        """
        is_near = False
        if self.memory_high and resident >= 0:
            is_near = resident > self.memory_high - NEAR_BYTES
            allowed = self.memory_high * (1 - MARGIN) if self.is_memory_short else self.memory_high
            was_short, self.is_memory_short = self.is_memory_short, resident > allowed
            _tell("memory", was_short, self.is_memory_short, resident, self.memory_high)
        if self.disk_low and free >= 0:
            is_near = is_near or free < self.disk_low + NEAR_BYTES
            allowed = self.disk_low * (1 + MARGIN) if self.is_disk_short else self.disk_low
            was_short, self.is_disk_short = self.is_disk_short, free < allowed
            _tell("free disk", was_short, self.is_disk_short, free, self.disk_low)
        return NEAR_INTERVAL if is_near else USUAL_INTERVAL


def _tell(what: str, was_short: bool, is_short: bool, figure: int, limit: int) -> None:
    if is_short and not was_short:
        logger.warning("%s: %d bytes, limit %d: publishers are paused", what, figure, limit)
    elif was_short and not is_short:
        logger.warning("%s: %d bytes, limit %d: the alarm is over", what, figure, limit)
