"""Idempotent producers: who publishes, in which epoch, and up to which sequence number.

A producer names itself and numbers its messages 0, 1, 2, ...; the numbers go on over its restarts.
A row of a table has its current epoch and the next number, written in the batch of the messages: so
"already have it" is as durable as the messages are. Opening a producer raises its epoch, which
fences whoever still publishes in the old one.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trivium.storage.base import Table

#: longest name of a producer, in UTF-8
MAX_PRODUCER_BYTES: Final = 255
#: producers of one virtual host: their rows are all in memory
MAX_PRODUCERS: Final = 65_536

#: Results of ``check`` that are not a count.
FENCED: Final = -1
GAP: Final = -2

#: epoch, next sequence number
_ROW: Final = Struct("<IQ")
_MAX_EPOCH: Final = 0xFFFF_FFFF


class Producers:
    """The producers of one virtual host. ``table`` may already hold rows."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def open(self, producer: bytes) -> tuple[int, int] | None:
        """Start a new epoch: (epoch, next sequence number). None when there are too many."""
        row = self._table.get(producer)
        if row is None:
            if len(self._table) >= MAX_PRODUCERS:
                return None
            epoch, sequence = 0, 0
        else:
            epoch, sequence = _ROW.unpack(row)
            epoch = min(epoch + 1, _MAX_EPOCH)
        self._table.put(producer, _ROW.pack(epoch, sequence))
        return epoch, sequence

    def expected(self, producer: bytes) -> int:
        """The next sequence number; 0 for an unknown producer."""
        row = self._table.get(producer)
        return 0 if row is None else int(_ROW.unpack(row)[1])

    def check(self, producer: bytes, epoch: int, sequence: int) -> int:
        """How many messages from ``sequence`` on are there already; or FENCED, or GAP."""
        row = self._table.get(producer)
        if row is None:
            return FENCED
        current, expected = _ROW.unpack(row)
        if epoch != current:
            return FENCED
        if sequence > expected:
            return GAP
        return int(expected - sequence)

    def advance(self, producer: bytes, epoch: int, sequence: int) -> None:
        """All below ``sequence`` is there, as of the current batch."""
        self._table.put(producer, _ROW.pack(epoch, sequence))
