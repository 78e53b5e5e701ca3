"""What a storage in a data directory holds: its logs and tables, by name."""

from __future__ import annotations

from typing import Final

from trivium.storage.contents.changes import DEFINE_LOG, DEFINE_TABLE, DROP_LOG, Changes
from trivium.storage.contents.log import DiskLog
from trivium.storage.contents.recovery import Recovered
from trivium.storage.contents.table import DiskTable
from trivium.storage.segments.segments import Segments

#: Names are stored with 16 bits of length.
MAX_NAME: Final = 65_535


class Contents:
    """Logs and tables by name, and the numbers that new ones get in the files."""

    def __init__(self, recovered: Recovered) -> None:
        """As a start has found them."""
        self.changes: Changes = recovered.changes
        self._segments: Segments = recovered.segments
        self.logs: dict[str, DiskLog] = {log.name: log for log in recovered.logs.values()}
        self.tables: dict[str, DiskTable] = {
            table.name: table for table in recovered.tables.values()
        }
        self.next_log = recovered.next_log
        self._next_table = recovered.next_table

    def table(self, name: str) -> DiskTable:
        """The table called ``name``, made when it is new."""
        found = self.tables.get(name)
        if found is None:
            found = DiskTable(self._next_table, name, self.changes)
            self.changes.define(DEFINE_TABLE, self._next_table, _encoded(name))
            self._next_table += 1
            self.tables[name] = found
        return found

    def log(self, name: str) -> DiskLog:
        """The log called ``name``, made when it is new."""
        found = self.logs.get(name)
        if found is None:
            found = DiskLog(self.next_log, name, self.changes, self._segments)
            self.changes.define(DEFINE_LOG, self.next_log, _encoded(name))
            found.mark_changed()
            self.next_log += 1
            self.logs[name] = found
        return found

    def drop_log(self, name: str) -> None:
        """Remove a log with all its records."""
        found = self.logs.pop(name, None)
        if found is not None:
            found.drop()
            self.changes.change_log(DROP_LOG, found.number, 0, 0)
            self.changes.dropped.append(found.number)

    def record_skipped(self) -> None:
        """Before a clean stop: make all offsets that were given out durable."""
        for log in self.logs.values():
            log.record_skipped()


def _encoded(name: str) -> bytes:
    encoded = name.encode()
    if len(encoded) > MAX_NAME:
        raise ValueError("the name of a log or table is too long")
    return encoded
