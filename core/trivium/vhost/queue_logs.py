"""The logs of a virtual host's durable queues: one for each priority."""

from __future__ import annotations

from collections.abc import Mapping

from trivium.messages.message import HeaderValue
from trivium.queues.settings import settings_of
from trivium.storage.base import Log, Storage
from trivium.vhost.redelivered import RedeliveredOffsets


class QueueLogs:
    """Of one virtual host."""

    def __init__(self, storage: Storage, vhost: str) -> None:
        self._storage = storage
        self._prefix = queue_logs_prefix(vhost)
        self._redelivered = RedeliveredOffsets(storage.table(f"doubts/{vhost}"))

    def open(self, queue: str, arguments: Mapping[str, HeaderValue]) -> list[Log]:
        """Those of a durable queue, lowest priority first; none where it is kept in memory."""
        logs: list[Log] = []
        for name in self._names(queue, arguments):
            log = self._storage.log(name)
            self._redelivered.restore(name, log)
            logs.append(log)
        return logs

    def drop(self, queue: str, arguments: Mapping[str, HeaderValue]) -> None:
        """A durable queue is deleted."""
        for name in self._names(queue, arguments):
            self._storage.drop_log(name)
            self._redelivered.forget(name)

    def _names(self, queue: str, arguments: Mapping[str, HeaderValue]) -> list[str]:
        if not self._storage.is_durable:
            return []
        if not arguments:
            # As nearly all.
            return [f"{self._prefix}0/{queue}"]
        if arguments.get("x-storage") == "memory":
            return []
        highest = settings_of(arguments, {}).max_priority
        return [f"{self._prefix}{priority}/{queue}" for priority in range(highest + 1)]


def queue_log_name(vhost: str, queue: str, priority: int = 0) -> str:
    """The name of the log that keeps a queue's messages of one priority; never that of another."""
    return f"{queue_logs_prefix(vhost)}{priority}/{queue}"


def queue_logs_prefix(vhost: str) -> str:
    """What the names of all these logs begin with, and no others."""
    # Both names may hold any character, so the first one says how long it is.
    return f"queue/{len(vhost)}:{vhost}/"
