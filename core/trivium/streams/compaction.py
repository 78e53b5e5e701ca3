"""Compaction: of the records with one key a partition keeps the last.

The key of a record is what chose its partition: its key, or its routing key where it has none. A
record whose payload is empty says that its key is gone; it goes too, once it is old enough for
readers to have seen it.

A round begins when as much has come since the last one as that one kept. It looks at what has come
(all but the newest record batch) and notes the last offset of each key; then it copies what is to
stay, of the last round's log and of what has come, into a new log; and in one write batch it puts
that in place of both. So a crash leaves the state before or after, and readers see offsets and
order unchanged. Work is done a bounded piece at a time, for one partition at a time.

The record batches of the new log span the offsets without a gap, though they lack some of them: see
docs/record-batch.md, sparse batches.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed
from trivium.common.values import pack, unpack
from trivium.messages.message import Message
from trivium.storage.base import Log
from trivium.streams.collected import Collected
from trivium.streams.compacted_log import CompactedLog
from trivium.streams.record_encoder import Described
from trivium.streams.record_layout import EXCHANGE, KEY, PAYLOAD, ROUTING_KEY, TIMESTAMP
from trivium.streams.records import BatchError, RecordBatch
from trivium.streams.settings import StreamSettings

if TYPE_CHECKING:
    from trivium.streams.stream import Partition

logger = logging.getLogger(__name__)

#: Less than this is not worth a round.
MIN_BYTES: Final = 64 * 1024
#: Between two looks whether there is enough, and between two steps of a round, in milliseconds.
PERIOD_MS: Final = 5000
PAUSE_MS: Final = 5

#: Records that one step looks at, and what reading another batch and copying a record count. A step
#: ends with a batch that it writes. So a step takes some milliseconds.
STEP_RECORDS: Final = 1000
_BATCH_COST: Final = 20
_COPY_COST: Final = 4
_LOAD_BYTES: Final = 1 << 20

#: Keys of one round, and their bytes: what it holds in memory. What is beyond is for the next one.
MAX_KEYS: Final = 262_144
MAX_KEY_BYTES: Final = 32 << 20

_IDLE: Final = 0
_SCAN: Final = 1
_COPY: Final = 2


class _Output:
    """The new log, and the batch that is being collected for it."""

    def __init__(self, log: Log, start: int, codec: int) -> None:
        self.log = log
        self.size = 0
        self._collected = Collected(start, codec)

    def add(self, offset: int, message: Message, described: Described) -> None:
        """A record that stays."""
        collected = self._collected
        if not collected.has_room(offset):
            # The batch spans what is gone up to here, so that offsets have no gaps.
            self.flush(offset)
            collected.begin(offset)
        collected.add(offset, message, described)

    def flush(self, end: int) -> None:
        """Write the batch, which spans the offsets up to before ``end``."""
        collected = self._collected
        if not len(collected):
            return
        log = self.log
        base = collected.base
        if log.next_offset < base:
            log.skip(base - log.next_offset)
        batch, span = collected.take(end)
        log.append(batch, span)
        self.size += len(batch)


class Compaction(Timed):
    """The compaction of one partition, whose records are in the log called ``name``."""

    def __init__(self, partition: Partition, name: str, active: Log) -> None:
        vhost = partition.stream.vhost
        self._partition = partition
        self._broker = vhost.broker
        self._storage = vhost.broker.storage
        self._table = self._storage.table(f"compaction/{vhost.name}")
        self._key = f"{partition.stream.incarnation}/{partition.index}".encode()
        self._name = name
        self._active = active
        self._settings = StreamSettings()
        # What the last round made, its number, and its size in bytes.
        self._clean: Log | None = None
        self._log_number = 0
        self._clean_bytes = 0
        # The round that is under way.
        self._phase = _IDLE
        self._is_loading = False
        self._has_failed = False
        self._latest: dict[bytes, int] = {}
        self._key_bytes = 0
        self._position = 0
        self._limit = 0
        self._view: RecordBatch | None = None
        self._base = 0
        self._row = 0
        self._output: _Output | None = None

    def restore(self) -> Log:
        """The log of the partition as the last round left it."""
        row = self._table.get(self._key)
        if row is not None:
            self._log_number, self._clean_bytes = unpack(row)
            self._clean = self._storage.log(self._log_name(self._log_number))
        # What a round had made when the process ended.
        self._storage.drop_log(self._log_name(self._log_number + 1))
        return self._active if self._clean is None else CompactedLog(self._clean, self._active)

    def _log_name(self, number: int) -> str:
        return f"{self._name}/compacted/{number}"

    def apply(self, settings: StreamSettings) -> None:
        """Put other settings in force; without compaction a round is given up."""
        self._settings = settings
        if not settings.is_compacted:
            self._give_up()
        else:
            self._call_at(self._broker.elapsed_ms)

    @property
    def is_under_way(self) -> bool:
        """Whether a round goes through the records now."""
        return self._phase != _IDLE

    def appended(self) -> None:
        """The partition got a batch."""
        if self._settings.is_compacted and not self.due_at and self._phase == _IDLE:
            self._call_at(self._broker.elapsed_ms + PERIOD_MS)

    def deleted(self) -> None:
        """The stream is gone."""
        self._broker.timeouts.stop(self)
        self._give_up()
        if self._clean is not None:
            self._storage.drop_log(self._log_name(self._log_number))
            self._table.delete(self._key)

    def _call_at(self, at: int) -> None:
        self._broker.timeouts.call_at(at, self)
        self._broker.request_turn()

    def due(self) -> None:
        """Begin a round, or go on with it."""
        if self._is_loading or self._partition.stream.is_deleted:
            return
        if self._phase == _IDLE and not self._begin():
            return
        try:
            self._step()
        except BatchError as error:
            logger.error(
                "stream %r, partition %d is not compacted: a batch cannot be read: %s",
                self._partition.stream.name,
                self._partition.index,
                error,
            )
            # It would be the same again.
            self._has_failed = True
            self._give_up()

    def _begin(self) -> bool:
        """Begin a round if enough has come."""
        if not self._settings.is_compacted or self._has_failed:
            return False
        active = self._active
        if active.offset_of_newest(max(MIN_BYTES, self._clean_bytes)) < 0:
            return False
        # The newest batch stays as it is: so there always is one, and offsets go on behind it.
        self._limit = min(active.offset_of_newest(1), self._partition.high_watermark)
        if self._limit <= active.first_offset:
            return False
        if self._broker.compacting is not None:
            self._call_at(self._broker.elapsed_ms + PERIOD_MS)
            return False
        self._broker.compacting = self
        self._phase = _SCAN
        self._position = active.first_offset
        return True

    def _give_up(self) -> None:
        """Forget the round."""
        if self._phase == _COPY:
            self._storage.drop_log(self._log_name(self._log_number + 1))
        self._end()

    def _end(self) -> None:
        if self._broker.compacting is self:
            self._broker.compacting = None
        self._phase = _IDLE
        self._latest = {}
        self._key_bytes = 0
        self._view = None
        self._output = None

    def _loaded(self) -> None:
        # Now, since what was loaded need not be in memory for long.
        self._is_loading = False
        if self._phase != _IDLE:
            self.due()
            self._broker.request_turn()

    def _step(self) -> None:
        log = self._partition.log
        budget = STEP_RECORDS
        while budget > 0:
            view = self._view
            if view is not None and self._row < view.count:
                if self._phase == _SCAN:
                    self._scan(view)
                    budget -= 1
                else:
                    budget -= self._copy(view)
                self._row += 1
                continue
            self._view = None
            if self._is_full():
                self._limit = min(self._limit, self._position)
            if self._position >= self._limit:
                if self._phase == _COPY:
                    self._finish()
                    return
                self._begin_copy()
            if not log.is_loaded(self._position):
                self._is_loading = True
                log.load(self._position, _LOAD_BYTES, self._loaded)
                return
            base, batch, _ = log.read(self._position, 1, 1)[0]
            if base >= self._limit:
                # A repair has left a gap here.
                self._position = self._limit
                continue
            self._view = RecordBatch(batch, False)
            self._base = base
            self._row = 0
            self._position = base + self._view.span
            budget -= _BATCH_COST
        self._call_at(self._broker.elapsed_ms + PAUSE_MS)

    def _is_full(self) -> bool:
        return self._phase == _SCAN and (
            len(self._latest) >= MAX_KEYS or self._key_bytes >= MAX_KEY_BYTES
        )

    def _scan(self, view: RecordBatch) -> None:
        """Note that this is the last record of its key so far."""
        key = _key_of(view, self._row)
        if key is not None:
            self._latest[key] = self._base + view.delta(self._row)
            self._key_bytes += len(key)

    def _begin_copy(self) -> None:
        self._phase = _COPY
        log = self._storage.log(self._log_name(self._log_number + 1))
        self._position = self._partition.log.first_offset
        self._output = _Output(log, self._position, self._settings.codec)

    def _copy(self, view: RecordBatch) -> int:
        """Copy this record, unless there is a later one of its key, or it is an old tombstone.

        Returns what it cost.
        """
        row = self._row
        offset = self._base + view.delta(row)
        key = _key_of(view, row)
        if key is not None:
            if self._latest.get(key, offset) > offset:
                return 1
            if not view.binary(PAYLOAD, row) and (
                view.integer(TIMESTAMP, row) + self._settings.tombstone_retention
                <= self._broker.now_ms
            ):
                return 1
        output = self._output
        assert output is not None
        written = output.size
        output.add(offset, view.message(row), view.described(row))
        return _COPY_COST if output.size == written else STEP_RECORDS

    def _finish(self) -> None:
        """Put the new log in place of what it was made of: all in the write batch of this turn."""
        output = self._output
        assert output is not None
        output.flush(self._limit)
        if self._clean is not None:
            self._storage.drop_log(self._log_name(self._log_number))
        self._log_number += 1
        self._clean = output.log
        self._clean_bytes = output.size
        self._table.put(self._key, pack([self._log_number, self._clean_bytes]))
        self._active.truncate(self._limit)
        self._partition.log = CompactedLog(output.log, self._active)
        self._end()
        # There may be enough for another round, where this one was cut for its keys.
        self._call_at(self._broker.elapsed_ms + PERIOD_MS)


def _key_of(view: RecordBatch, row: int) -> bytes | None:
    """What tells whether two records are of one key; None for a record that stands for itself."""
    key = view.binary(KEY, row)
    if key is not None:
        return b"k" + key
    if not view.binary(EXCHANGE, row):
        # The routing key is the stream's own name.
        return None
    key = view.binary(ROUTING_KEY, row)
    return b"r" + key if key else None
