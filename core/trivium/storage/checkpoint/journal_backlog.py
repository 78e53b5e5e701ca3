"""How much has gone to the journal that segments and catalog do not have yet."""

from __future__ import annotations

from typing import Final

#: As many times the size of a checkpoint may be in the journal before publishers wait for the rows
#: of checkpoints: with messages beside them, millions of rows. It bounds how long a replay takes.
MAX_CHECKPOINTS: Final = 8


class JournalBacklog:
    """Bytes in the journal: counted for logs, whose records wait for a checkpoint in memory, and
    for rows, which leave the journal once the last of them is in the catalog.

    Each has two counts: what no checkpoint has begun with, and what one that is not finished has.
    ``checkpoint_size`` is how many bytes make a checkpoint due.
    """

    def __init__(self, checkpoint_size: int, journal_bytes: int) -> None:
        self._checkpoint_size = checkpoint_size
        self._for_logs = journal_bytes
        self._for_logs_begun = 0
        self._for_rows = journal_bytes
        self._for_rows_begun = 0

    def add(self, size: int) -> None:
        """So many bytes were written."""
        self._for_logs += size
        self._for_rows += size

    @property
    def size(self) -> int:
        """Bytes that would be read at a start."""
        return max(self._for_logs + self._for_logs_begun, self._for_rows + self._for_rows_begun)

    def ask_for_logs(self) -> None:
        """A checkpoint with logs is due, however little there is."""
        self._for_logs = max(self._for_logs, self._checkpoint_size)

    @property
    def are_logs_due(self) -> bool:
        """Whether there is enough for a checkpoint with logs."""
        return self._for_logs >= self._checkpoint_size

    @property
    def are_rows_due(self) -> bool:
        """Whether there is enough to take the changed rows once more."""
        return self._for_rows >= self._checkpoint_size

    @property
    def has_logs(self) -> bool:
        """Whether a checkpoint with logs would find anything."""
        return self._for_logs > 0

    def begin_logs(self) -> None:
        """A checkpoint with logs begins."""
        self._for_logs_begun += self._for_logs
        self._for_logs = 0

    def begin_rows(self) -> None:
        """The changed rows were taken."""
        self._for_rows_begun += self._for_rows
        self._for_rows = 0

    def end_logs(self) -> None:
        """What was taken of logs is in segments."""
        self._for_logs_begun = 0

    def end_rows(self) -> None:
        """All rows that were taken are in the catalog."""
        self._for_rows_begun = 0

    @property
    def excess(self) -> int:
        """Bytes more than may wait for checkpoints."""
        size = self._checkpoint_size
        in_memory = self._for_logs_begun + self._for_logs - 2 * size
        in_journal = self._for_rows_begun + self._for_rows - MAX_CHECKPOINTS * size
        return max(in_memory, in_journal, 0)
