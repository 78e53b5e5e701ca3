"""How long a queue may be: its limits of messages and of bytes (``x-max-length``, ...)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.queues.dead_letters import MAXLEN
from trivium.queues.settings import DROP_HEAD
from trivium.queues.sub_queues import QueueEntry

if TYPE_CHECKING:
    from trivium.queues.queue import Queue


def is_over_limit(queue: Queue, more: int, more_bytes: int) -> bool:
    """Whether the queue has too much once it has so many messages and bytes of payload more."""
    settings = queue.settings
    return 0 <= settings.max_length < len(queue) + more or (
        0 <= settings.max_length_bytes < queue.ready.bytes + more_bytes
    )


def drop_heads(queue: Queue) -> None:
    """Give up the oldest of the lowest priority until the limits hold."""
    if queue.settings.overflow != DROP_HEAD:
        return
    given_up = queue.given_up
    ready = queue.ready
    is_first = True
    while is_over_limit(queue, 0, 0):
        # One is given up in any case, so that no publish makes the queue longer.
        if not (is_first or (not given_up.is_full and given_up.is_allowed(queue))):
            return
        is_first = False
        entry: QueueEntry | None = None
        for sub_queue in ready.sub_queues:
            entry = sub_queue.pop()
            # What is to be read first, or is pending, must not be spared for higher priorities.
            if entry is not None or not sub_queue.is_empty:
                break
        if entry is None:
            return
        ready.bytes -= entry.message.size
        queue.vhost.queued_bytes -= entry.message.size
        queue.unsettled += 1
        given_up.add(entry, MAXLEN)
