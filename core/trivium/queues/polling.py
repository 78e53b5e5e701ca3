"""Messages of a queue that somebody asks for, some at a time: what is there, or what comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Wake
from trivium.errors import AccessRefused
from trivium.queues.consumers import Consumer
from trivium.queues.ready import LoadWaiter

if TYPE_CHECKING:
    from trivium.host import Host
    from trivium.queues.queue import Queue, QueueEntry

#: Messages, and bytes of payload, that are taken together.
MAX_TAKEN: Final = 1000
MAX_TAKEN_BYTES: Final = 16 * 1024 * 1024


def give_back(queue: Queue, entries: list[QueueEntry]) -> None:
    """What was taken comes back as if nobody had seen it."""
    for entry in entries:
        queue.requeue(entry, False)
    queue.dispatch_later()


class Taking(LoadWaiter):
    """Takes messages of a queue, then calls ``done`` with them, who settles or requeues each.

    It waits for those that have to be read from the disk. The last one may exceed ``max_bytes``.
    """

    def __init__(
        self,
        queue: Queue,
        count: int,
        done: Callable[[list[QueueEntry]], None],
        max_bytes: int = MAX_TAKEN_BYTES,
    ) -> None:
        self._queue = queue
        self._left = min(count, MAX_TAKEN)
        self._done = done
        self._max_bytes = max_bytes
        self._bytes = 0
        self._taken: list[QueueEntry] = []

    def go_on(self) -> None:
        """Take what there is."""
        queue = self._queue
        while self._left and self._bytes < self._max_bytes and not queue.is_deleted:
            entry = queue.get()
            if entry is None:
                if queue.ready.is_loading:
                    queue.ready.await_load(self)
                    return
                break
            if queue.vhost.is_watched:
                vhost = queue.vhost
                vhost.delivered(entry.message, queue.name, entry.is_redelivered, entry=entry)
            self._left -= 1
            self._bytes += entry.message.size
            self._taken.append(entry)
        taken = self._taken
        self._taken = []
        self._done(taken)

    def loaded(self) -> None:
        self.go_on()


class Poll(Consumer):
    """Takes messages of a queue that are there, or waits for the next ones; then calls ``done``.

    While it waits it is a consumer like others, which takes some while it ``has_room``. It waits no
    longer where ``wait_ms`` are over. The last message may exceed ``max_bytes``.
    """

    def __init__(
        self,
        broker: Host,
        queue: Queue,
        count: int,
        wait_ms: int,
        done: Callable[[list[QueueEntry]], None],
        max_bytes: int = MAX_TAKEN_BYTES,
        has_room: Callable[[], bool] | None = None,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._left = count
        self._bytes = 0
        self._until = broker.elapsed_ms + wait_ms
        self._done = done
        self._max_bytes = max_bytes
        self._has_room = has_room
        self._taken: list[QueueEntry] = []
        self._is_waiting = False
        # None once it is over: they would keep each other in memory.
        self._wake: Wake | None = Wake(self._end)

    def begin(self) -> None:
        """Take what is there."""
        Taking(self._queue, self._left, self._begun, self._max_bytes).go_on()

    def stop(self) -> None:
        """It waits no longer: as soon as it has what it takes now."""
        self._until = 0
        if self._is_waiting:
            self._end()

    def _begun(self, taken: list[QueueEntry]) -> None:
        self._taken = taken
        self._is_waiting = True
        queue = self._queue
        # One that is deleted with its last consumer has no need of this one.
        is_late = self._broker.elapsed_ms >= self._until
        if taken or is_late or queue.is_deleted or queue.auto_delete:
            self._end()
            return
        self._wake_at(self._until)
        try:
            queue.add_consumer(self)
        except AccessRefused:
            # Somebody else has it alone: there is nothing to wait for.
            self._end()

    def takes_delivery(self) -> bool:
        if self._wake is None or self._left <= 0 or self._bytes >= self._max_bytes:
            return False
        return self._has_room is None or self._has_room()

    def resume(self) -> None:
        """There is room again."""
        if self._is_waiting and self._wake is not None:
            self._queue.serve(self)

    def deliver(self, entry: QueueEntry) -> None:
        if not self._taken:
            # What comes in the same turn is taken as well.
            self._wake_at(self._broker.elapsed_ms)
        self._taken.append(entry)
        self._left -= 1
        self._bytes += entry.message.size

    def cancelled(self) -> None:
        self._end()

    def _wake_at(self, time_ms: int) -> None:
        if self._wake is not None:
            self._broker.timeouts.call_at(time_ms, self._wake)

    def _end(self) -> None:
        if self._wake is None:
            return
        self._broker.timeouts.stop(self._wake)
        self._wake = None
        if not self._queue.is_deleted:
            self._queue.remove_consumer(self)
        taken = self._taken
        self._taken = []
        self._done(taken)
