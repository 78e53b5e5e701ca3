"""Idempotent producers: who publishes, in which epoch, and up to which sequence number.

A producer names itself and numbers what it sends 0, 1, 2, ...; the numbers go on over its restarts.
A row of a table has its current epoch and the next number, written in the write batch of what bore
the numbers: so "already have it" is as durable as that is. Opening a producer raises its epoch,
which fences whoever still sends in the old one.

There are two kinds, each with a table of its own. The numbers of the first count messages and have
no gaps. Those of the second count transactions; since each is whole, numbers may be left out.

A producer that was neither opened nor sent anything for ``IDLE_HOURS`` is forgotten.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trivium.common.timers import Timed
from trivium.common.turns import EndOfTurn
from trivium.host import Host
from trivium.storage.base import Table

#: longest name of a producer, in UTF-8
MAX_PRODUCER_BYTES: Final = 255
#: producers of one virtual host, of each kind: their rows are all in memory
MAX_PRODUCERS: Final = 65_536

#: A week, so that a query or an importer that fails on a Friday can go on on Monday.
IDLE_HOURS: Final = 7 * 24

#: Results of ``check`` that are not a count.
FENCED: Final = -1
GAP: Final = -2

#: epoch, next sequence number, hour of its last use since the Unix epoch
_ROW: Final = Struct("<IQI")
_MAX_EPOCH: Final = 0xFFFF_FFFF

_HOUR_MS: Final = 3_600_000
#: Rows looked at in one turn when old ones are sought, and the pause before the next ones.
_SWEEP_ROWS: Final = 1024
_SWEEP_PAUSE_MS: Final = 100


class _Row:
    """What a row says."""

    def __init__(self, epoch: int, sequence: int, hour: int) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.hour = hour


class Producers(Timed):
    """The producers of one kind of one virtual host. ``table`` may already hold rows.

    Numbers that went on are collected, and written once per turn.
    """

    def __init__(self, table: Table, broker: Host) -> None:
        self._table = table
        self._broker = broker
        # Rows whose numbers have gone on in this turn.
        self._advanced: dict[bytes, _Row] = {}
        # Rows that this round has still to look at.
        self._unseen: list[bytes] = []
        if len(table):
            broker.timeouts.call_at(broker.elapsed_ms + _HOUR_MS, self)

    def open(self, producer: bytes) -> tuple[int, int] | None:
        """Start a new epoch: (epoch, next sequence number). None when there are too many."""
        row = self._find(producer)
        if row is None:
            if len(self._table) >= MAX_PRODUCERS:
                return None
            row = _Row(0, 0, 0)
        else:
            row.epoch = min(row.epoch + 1, _MAX_EPOCH)
        self._use(producer, row)
        if not self.due_at:
            self._broker.timeouts.call_at(self._broker.elapsed_ms + _HOUR_MS, self)
        return row.epoch, row.sequence

    def expected(self, producer: bytes) -> int:
        """The next sequence number; 0 for an unknown producer."""
        row = self._find(producer)
        return 0 if row is None else row.sequence

    def check(self, producer: bytes, epoch: int, sequence: int) -> int:
        """How many numbers from ``sequence`` on are there already; or FENCED, or GAP."""
        row = self._find(producer)
        if row is None or epoch != row.epoch:
            return FENCED
        if sequence > row.sequence:
            return GAP
        return row.sequence - sequence

    def advance(self, producer: bytes, epoch: int, sequence: int) -> None:
        """All below ``sequence`` is there, as of the current write batch."""
        hour = self._broker.now_ms // _HOUR_MS
        if self._advanced:
            self._broker.collected += 1
        else:
            self._broker.add_unflushed(_Advances(self))
        row = self._advanced.get(producer)
        if row is None:
            self._advanced[producer] = _Row(epoch, sequence, hour)
        else:
            row.epoch = epoch
            row.sequence = sequence
            row.hour = hour

    def flush(self) -> None:
        """The turn ends: write the rows of those whose numbers went on."""
        advanced = self._advanced
        self._advanced = {}
        for producer, row in advanced.items():
            self._put(producer, row)

    def keep(self, producer: bytes) -> None:
        """Do not forget the producer, if there is one of that name, for another while."""
        row = self._find(producer)
        if row is not None:
            self._use(producer, row)

    def delete(self, producer: bytes) -> None:
        """Forget the producer, if there is one of that name."""
        self._advanced.pop(producer, None)
        self._table.delete(producer)

    def _find(self, producer: bytes) -> _Row | None:
        row = self._advanced.get(producer)
        if row is not None:
            return row
        stored = self._table.get(producer)
        if stored is None:
            return None
        epoch, sequence, hour = _ROW.unpack(stored)
        return _Row(epoch, sequence, hour)

    def _use(self, producer: bytes, row: _Row) -> None:
        row.hour = self._broker.now_ms // _HOUR_MS
        self._put(producer, row)

    def _put(self, producer: bytes, row: _Row) -> None:
        self._table.put(producer, _ROW.pack(row.epoch, row.sequence, row.hour))

    def due(self) -> None:
        """Forget some of those that were idle too long; go on soon, or begin again in an hour."""
        table = self._table
        elapsed = self._broker.elapsed_ms
        if not self._unseen:
            self._unseen = [name for name, _ in table.items()]
        oldest = self._broker.now_ms // _HOUR_MS - IDLE_HOURS
        for _ in range(min(_SWEEP_ROWS, len(self._unseen))):
            name = self._unseen.pop()
            row = self._find(name)
            if row is not None and row.hour < oldest:
                table.delete(name)
        if self._unseen:
            self._broker.timeouts.call_at(elapsed + _SWEEP_PAUSE_MS, self)
        elif len(table):
            self._broker.timeouts.call_at(elapsed + _HOUR_MS, self)


class _Advances(EndOfTurn):
    """The producers of a turn, at its end."""

    def __init__(self, producers: Producers) -> None:
        self._producers = producers

    def flush_turn(self) -> None:
        self._producers.flush()
