"""Journal files that a checkpoint makes useless."""

from __future__ import annotations

from typing import Final

from trivium.storage.journal.journal import SPARE_SUFFIX, JournalWriter

#: Journal files kept to be used again, so that the next ones need no new blocks: as many as were
#: filled since the last checkpoint, but not more than this.
_SPARES: Final = 8


class OldJournalFiles:
    """The files with nothing behind write batch ``base_batch``, which the catalog has by then."""

    def __init__(self, journal: JournalWriter, base_batch: int) -> None:
        self._journal = journal
        self._numbers: list[int] = []
        for number, first_batch in journal.files:
            if first_batch > base_batch + 1:
                break
            self._numbers.append(number)
        #: the first file that is still needed: the last one may go on behind the write batch
        self.first_needed = self._numbers.pop()

    def remove(self, is_space_short: bool) -> None:
        """Beside the thread of the journal: remove them, or keep some of their blocks.

        Raises OSError.
        """
        journal = self._journal
        spares = journal.spares
        filesystem = journal.filesystem
        limit = 0 if is_space_short else min(len(self._numbers), _SPARES)
        while len(spares) > limit:
            try:
                path = spares.pop()
            except IndexError:
                # The journal has just taken the last one.
                break
            filesystem.remove(path)
        for number in self._numbers:
            path = journal.path(number)
            if len(spares) < limit:
                filesystem.rename(path, path + SPARE_SUFFIX)
                spares.append(path + SPARE_SUFFIX)
            else:
                filesystem.remove(path)

    def forget(self) -> None:
        """On the loop's thread, once they are removed."""
        del self._journal.files[: len(self._numbers)]
