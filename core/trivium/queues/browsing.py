"""Looking at what is ready in a queue: nothing is taken, counted, or marked as delivered.

Each message of a sub-queue has its number there (the offset in its log), which rises in the order
in which they came, and stays while the message does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivium.messages.message import Message, decode_record

if TYPE_CHECKING:
    from trivium.queues.queue import Queue


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that is ready."""

    number: int
    message: Message
    is_redelivered: bool
    #: milliseconds since the epoch, 0 for never
    expires: int


class Browse:
    """Calls ``done`` with messages of one priority from a number on, in order: at most ``most``,
    of about ``most_bytes`` together; and with the number to go on with, -1 at the end. What is on
    the disk alone is read first.

    It reads the log by itself: what the queue keeps in memory for its consumers stays as it is.
    """

    def __init__(
        self,
        queue: Queue,
        priority: int,
        first: int,
        most: int,
        most_bytes: int,
        done: Callable[[list[Seen], int], None],
    ) -> None:
        self._queue = queue
        self._sub_queue = queue.ready.of_priority(priority)
        self._first = first
        self._most = most
        self._most_bytes = most_bytes
        self._done = done

    def step(self) -> None:
        """Go on."""
        if self._queue.is_deleted:
            self._done([], -1)
            return
        entries, spill_from = self._sub_queue.look(self._first, self._most)
        found = {
            entry.offset: Seen(entry.offset, entry.message, entry.is_redelivered, entry.expires)
            for entry in entries
        }
        # Beyond these ends there may be more of each kind.
        ends = [entries[-1].offset] if len(entries) == self._most else []
        start = max(spill_from, self._first)
        log = self._sub_queue.log
        if spill_from >= 0 and log is not None and start <= min(ends, default=start):
            if not log.is_loaded(start):
                log.load(start, self._most_bytes, self.step)
                return
            records = log.read(start, self._most, self._most_bytes)
            for offset, record, _ in records:
                if offset not in found:
                    found[offset] = self._seen(offset, decode_record(record))
            if records:
                ends.append(records[-1][0])
        following = min(ends, default=-2) + 1
        shown = [found[number] for number in sorted(found) if following < 0 or number < following]
        self._show(shown, following)

    def _seen(self, offset: int, message: Message) -> Seen:
        """What is in the log alone."""
        log = self._sub_queue.log
        assert log is not None
        expires = self._queue.settings.expiry_of(message)
        return Seen(offset, message, offset < log.recovered_offset, expires)

    def _show(self, every: list[Seen], following: int) -> None:
        """Those that are still to be delivered, as far as they may be shown together."""
        now = self._queue.vhost.broker.now_ms
        size = 0
        shown: list[Seen] = []
        for seen in every:
            if 0 < seen.expires <= now or seen.message.deliver_at > now:
                continue
            size += seen.message.size
            if len(shown) == self._most or (shown and size > self._most_bytes):
                following = seen.number
                break
            shown.append(seen)
        self._done(shown, following)
