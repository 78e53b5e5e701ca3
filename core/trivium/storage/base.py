"""The storage interface: write batches, logs and tables.

Everything that the core does between two turns of the loop belongs to one *write batch*. A write
batch becomes durable as a whole or not at all. ``commit`` ends the turn; it hands the write batch
over when the storage can take it, and otherwise lets it go on filling (group commit). Whoever must
not answer before its changes are durable registers with ``wait`` and is called once ``durable`` has
reached that write batch.

No caller may assume that a write batch becomes durable on this machine, soon, or within the call
that wrote it: an implementation may replicate write batches to other machines first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mypy_extensions import mypyc_attr

from trivium.storage.figures import StorageFigures


@mypyc_attr(allow_interpreted_subclasses=True)
class DurabilityWaiter:
    """Something that is told when a write batch has become durable."""

    def write_batch_durable(self, write_batch: int) -> None:
        """Every write batch up to and including ``write_batch`` is durable."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Table:
    """A map from key to value, all in memory, whose changes are part of the current write batch."""

    def get(self, key: bytes) -> bytes | None:
        """The value under ``key``; None when there is none."""
        raise NotImplementedError

    def put(self, key: bytes, value: bytes) -> None:
        """Set or replace the value under ``key``."""
        raise NotImplementedError

    def delete(self, key: bytes) -> None:
        """Remove ``key``; nothing happens when it is absent."""
        raise NotImplementedError

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All pairs, in no particular order. The table must not change meanwhile."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class LogOwner:
    """Whoever joins a log's small records."""

    def join_records(self) -> int:
        """The log's newest records are about to be written where they cannot be joined any more:
        join them now, with ``Log.join``. How many entries were encoded anew."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Weigher:
    """Says what records of a log weigh, whatever that is to its user."""

    def weigh(self, records: list[bytes | None]) -> int:
        """What these weigh together; None stands for one that is not there."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Log:
    """Records addressed by offset.

    A record spans ``count`` offsets (a stream's record batch; a queue's message spans one). Offsets
    start at 0, rise by one, and are never given out twice, not even after a crash for records that
    were durable. ``remove`` removes single ranges (queues), ``truncate`` all before an offset
    (stream retention).
    """

    #: offset of the oldest record that is still kept (``next_offset`` when there is none)
    first_offset: int
    #: offset that the next record will get
    next_offset: int
    #: records below this offset were there when an unclean start recovered this log, so they may
    #: have been delivered before; 0 after a clean stop
    recovered_offset: int
    #: told before records are fixed; None when nobody joins any
    owner: LogOwner | None = None
    #: by what ``weight`` goes; None: it is not kept
    weigher: Weigher | None = None

    def append(self, record: bytes, count: int = 1, annotation: bytes = b"") -> int:
        """Append to the current write batch; the offset of the first of its ``count`` offsets.

        ``annotation`` (at most 65,535 bytes) is kept beside the record for this log alone. The same
        ``record`` object appended to several logs in a row is stored once.
        """
        raise NotImplementedError

    def append_run(self, records: list[bytes]) -> int:
        """``append`` of one record or more, each with one offset; the first one's."""
        first = self.next_offset
        for record in records:
            self.append(record)
        return first

    def skip(self, count: int = 1) -> int:
        """Give out offsets for records that are not stored; the first of them."""
        raise NotImplementedError

    def remove(self, first: int, last: int) -> None:
        """Remove the records that start at offsets ``first`` to ``last``, in this write batch.

        Offsets in between that hold no record are allowed.
        """
        raise NotImplementedError

    def truncate(self, before: int) -> None:
        """Remove every record whose offsets all lie below ``before``, in this write batch."""
        raise NotImplementedError

    def join(self, first: int, end: int, record: bytes) -> bool:
        """Put one record in place of those that span the offsets from ``first`` up to ``end``.

        It must mean the same as they together. Nothing is recorded: after a crash they may be
        there again one by one. False, and nothing is changed, when they cannot be joined any more.
        """
        raise NotImplementedError

    def joinable_from(self) -> int:
        """Records from this offset on can be joined; ``next_offset`` when none can."""
        return self.next_offset

    def offset_of_newest(self, size: int) -> int:
        """Where the newest records begin that have at least ``size`` bytes together.

        -1 when all have fewer. The answer may lie earlier, by less than what the
        storage reads at a time, where it is among records that are not in memory.
        """
        raise NotImplementedError

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        """Records that are in memory, from the first that ends after ``offset``, in order.

        Each is ``(offset of its first, record, annotation)``. At least one record is returned
        however large, if there is one in memory; an empty list while ``is_loaded(offset)`` means
        that there is none at or after ``offset``.
        """
        raise NotImplementedError

    def is_loaded(self, offset: int) -> bool:
        """Whether ``read(offset, ...)`` can answer from memory."""
        raise NotImplementedError

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        """Bring records from ``offset`` on into memory; ``ready`` is called in a later turn."""
        raise NotImplementedError

    def weight(self) -> int:
        """What the records that are kept weigh together, without reading any.

        It is an estimate where records were removed since the last checkpoint, and too little by
        those of which it was never known.
        """
        return 0

    def __len__(self) -> int:
        """Number of records that are kept (stored and not removed)."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Storage:
    """One data directory, or none (memory)."""

    #: the write batch that is being filled; the first is 1
    write_batch: int
    #: the newest durable write batch; with memory storage always ``write_batch``
    durable: int
    #: whether anything survives this process
    is_durable: bool
    #: whether the previous process stopped cleanly (also true for a new directory)
    was_clean: bool

    @property
    def pending_bytes(self) -> int:
        """About the bytes that wait for the disk, more than is usual, and take memory meanwhile."""
        return 0

    def figures(self) -> StorageFigures | None:
        """What it has measured; None where there is no disk."""
        return None

    def free_space(self) -> None:
        """The disk is short: give back what can be given back, in the turns to come."""

    def tidy(self) -> None:
        """Called about once a second: give back what is not needed, if nothing else is to do."""

    def table(self, name: str) -> Table:
        """The table called ``name``, made when it is new."""
        raise NotImplementedError

    def log(self, name: str) -> Log:
        """The log called ``name``, made when it is new."""
        raise NotImplementedError

    def drop_log(self, name: str) -> None:
        """Remove a log with all its records, in the current write batch."""
        raise NotImplementedError

    def log_names(self) -> list[str]:
        """The names of all logs."""
        raise NotImplementedError

    def commit(self) -> None:
        """End of a turn: hand the write batch over, if it holds anything and the writer is free.

        Called by the broker only, once per turn. When the writer was busy the storage asks for a
        turn (see ``wake``) as soon as it is free.
        """
        raise NotImplementedError

    def wait(self, waiter: DurabilityWaiter) -> int:
        """Call ``waiter`` once the current write batch is durable; the number of that write batch.

        Registering again for the same write batch adds nothing. With memory storage the waiter is
        not called, since nothing is ever pending: compare ``durable`` first.
        """
        raise NotImplementedError

    @property
    def changes(self) -> int:
        """A number that differs once something was added to the current write batch."""
        return 0

    def fail(self, error: BaseException) -> None:
        """What is in memory cannot be trusted: nothing that is not durable becomes it any more."""

    def close(self) -> None:
        """Make everything durable, mark the stop as clean, release the directory."""
        raise NotImplementedError

    def withdraw(self) -> None:
        """Release the directory after a start that failed before any ``commit``.

        Nothing of the write batch becomes durable, and the stop is as clean as the last one was.
        It blocks, as ``close`` does.
        """
        raise NotImplementedError
