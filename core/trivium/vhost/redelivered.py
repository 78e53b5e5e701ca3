"""What may have been delivered before a crash, remembered over clean stops.

After an unclean start the storage says of each log below which offset records may have been handed
out: they are flagged as redelivered. The next start may be a clean one, of which the storage
says nothing, and the records may be there still. So there is a row for each such log, until a start
finds nothing left before its offset.
"""

from __future__ import annotations

from trivium.storage.base import Log, Table


class RedeliveredOffsets:
    """The rows of one virtual host."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def restore(self, name: str, log: Log) -> None:
        """At a start: keep what the storage says of this log, or put back what it said before."""
        if log.recovered_offset == 0 and len(self._table) == 0:
            # As nearly always, and there may be very many logs.
            return
        key = name.encode()
        row = self._table.get(key)
        known = 0 if row is None else int.from_bytes(row, "little")
        offset = log.recovered_offset or known
        if log.first_offset < min(offset, log.next_offset):
            log.recovered_offset = offset
            if offset != known:
                self._table.put(key, offset.to_bytes(8, "little"))
        elif row is not None:
            self._table.delete(key)

    def forget(self, name: str) -> None:
        """The log is gone."""
        self._table.delete(name.encode())
