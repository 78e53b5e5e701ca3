"""When checkpoints are made, and one after the other, turn by turn."""

from __future__ import annotations

from collections.abc import Callable

from trivium.common.histograms import Histogram
from trivium.storage.checkpoint.checkpoint import Checkpoint, CheckpointTarget
from trivium.storage.checkpoint.journal_backlog import JournalBacklog
from trivium.storage.checkpoint.row_backlog import RowBacklog
from trivium.storage.contents.contents import Contents
from trivium.storage.files.executor import Completions, Worker


class Checkpoints:
    """Makes the checkpoints of a storage. On the loop's thread.

    ``worker`` writes them. ``wake`` asks for a turn; ``sync`` for the journal to be synced, if it
    has nothing else to do. How long each took, by ``clock``, goes to ``measured``. The catalog has
    everything up to ``checkpoint_batch``.
    """

    def __init__(
        self,
        target: CheckpointTarget,
        contents: Contents,
        journal_backlog: JournalBacklog,
        most_rows: int,
        checkpoint_batch: int,
        worker: Worker,
        completions: Completions,
        wake: Callable[[], None],
        sync: Callable[[], None],
        clock: Callable[[], float],
        measured: Histogram,
    ) -> None:
        self._target = target
        self._contents = contents
        self._journal_backlog = journal_backlog
        self._most_rows = most_rows
        self._checkpoint_batch = checkpoint_batch
        self._worker = worker
        self._completions = completions
        self._wake = wake
        self._sync = sync
        self._clock = clock
        self._measured = measured
        self._began_at = 0.0
        self._rows = RowBacklog(completions, wake)
        self._current: Checkpoint | None = None
        #: whether the logs of the write batches behind ``_checkpoint_batch`` are in the catalog, up
        #: to the base of the rows that are being written
        self._has_logs = False
        #: whether a checkpoint is wanted however little is in the journal, and whether by
        #: ``free_space``; whether the last one came to nothing for want of space
        self._is_wanted = False
        self._is_space_short = False
        self._is_full = False
        #: the write batch that was being filled when ``tidy`` was called last, and when it looked
        self._seen_batch = 0
        self._tidied_batch = 0

    @property
    def is_making_one(self) -> bool:
        """Whether one was begun and is not done."""
        return self._current is not None

    def turn(self, write_batch: int, durable: int) -> None:
        """Do a turn's part of a checkpoint, or begin one that is due.

        ``write_batch`` is the one that is being filled, ``durable`` the newest durable one.
        """
        current = self._current
        if current is None:
            if self._is_due():
                self._begin(write_batch)
        elif not current.is_complete:
            if current.step():
                has_changes = self._contents.changes.count > 0
                current.complete(write_batch if has_changes else write_batch - 1)
            if not current.must_wait:
                self._wake()
        elif current.is_finished:
            if current.install():
                self._end(current)
            else:
                self._wake()
        elif not current.is_submitted and durable >= current.needed_batch:
            if self._target.journal.synced < current.needed_batch:
                self._sync()
            else:
                current.prepare()
                self._worker.submit(current)

    def _are_logs_due(self) -> bool:
        return self._is_wanted or self._journal_backlog.are_logs_due

    def _is_due(self) -> bool:
        if self._are_logs_due():
            return True
        # Rows that are left over, and what has come behind them meanwhile.
        if not self._rows.is_empty:
            return not self._is_full
        return self._journal_backlog.are_rows_due

    def _begin(self, write_batch: int) -> None:
        if self._rows.is_empty:
            self._has_logs = False
            self._journal_backlog.begin_rows()
            self._worker.submit(self._rows.take(self._contents.changes, write_batch - 1))
        takes_logs = self._are_logs_due() or not self._has_logs
        if takes_logs:
            self._journal_backlog.begin_logs()
        self._began_at = self._clock()
        self._current = Checkpoint(
            self._target,
            self._contents,
            self._rows,
            self._most_rows,
            takes_logs,
            # After one that came to nothing for want of space, it does not ask for more.
            not self._is_full,
            self._is_space_short,
            self._checkpoint_batch,
            self._completions,
        )
        self._is_wanted = False
        self._is_space_short = False
        self._wake()

    def _end(self, made: Checkpoint) -> None:
        self._current = None
        self._measured.observe(self._clock() - self._began_at)
        self._is_full = made.is_abandoned
        if not made.is_abandoned:
            if made.takes_logs:
                self._journal_backlog.end_logs()
                self._has_logs = True
            self._checkpoint_batch = made.base_batch
            if self._rows.is_empty:
                self._journal_backlog.end_rows()
                self._contents.changes.has_rows_under_way = False
            if self._is_due():
                self._wake()
        if made.has_relocated:
            # The next one drops what this one has left.
            self._tidied_batch = 0
            if made.is_space_short or self._target.segments.foreign:
                # One after the other, until there is nothing more to gain, or all is encrypted
                # with the key of today.
                self._is_space_short |= made.is_space_short
                self.ask()

    def ask(self) -> None:
        """Have one made, however little is in the journal."""
        self._is_wanted = True
        self._wake()

    def free_space(self) -> None:
        """The disk is short: a checkpoint drops journal files and segments."""
        is_idle = self._current is None and not self._is_full
        segments = self._target.segments
        if self._journal_backlog.has_logs or (is_idle and segments.has_garbage(True)):
            self._is_space_short = True
            self.ask()

    def tidy(self, write_batch: int) -> None:
        """A checkpoint drops the segments of a backlog that was consumed.

        A storage in use makes checkpoints anyway. An idle one makes this one, when a file is to go;
        it looks once for what its last write batches have made useless.
        """
        changes = self._contents.changes
        is_idle = write_batch == self._seen_batch and not changes.count
        self._seen_batch = write_batch
        if not is_idle or self._current is not None or self._tidied_batch == write_batch:
            return
        self._tidied_batch = write_batch
        for log in changes.logs.values():
            log.count_changed()
        if self._target.segments.has_garbage(False):
            self.ask()
