"""A broker on a real data directory, driven by hand, that leaves known content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from tests.support.core import drain, message, open_broker
from trivium.storage.disk import DiskStorage
from trivium.storage.errors import StorageError
from trivium.storage.files.encryption import Keys


class DirectoryWriter:
    def __init__(
        self,
        directory: Path,
        journal_file_size: int = 1 << 16,
        compression: str = "none",
        keys: Keys | None = None,
    ) -> None:
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.errors: list[StorageError] = []
        self._is_awake = False
        self.storage = DiskStorage(
            directory,
            post=self._posted.put,
            wake=self._wake,
            on_fatal=self.errors.append,
            journal_file_size=journal_file_size,
            compression=compression,
            keys=keys,
        )
        self.broker = open_broker(self.storage)
        self.vhost = self.broker.vhosts["/"]

    def _wake(self) -> None:
        self._is_awake = True

    def settle_down(self) -> None:
        """Make turns until everything is durable and no checkpoint is under way."""
        while True:
            self._is_awake = False
            self.broker.end_turn()
            while not self._posted.empty():
                self._posted.get()()
            is_done = self.storage.durable == self.storage.write_batch - 1
            if is_done and not self._is_awake and not self.storage.is_making_checkpoint:
                return
            if not self._is_awake:
                self._posted.get(timeout=30)()

    def checkpoint(self) -> None:
        """Move everything to segments and catalog."""
        self.storage.ask_for_checkpoint()
        self.settle_down()

    def publish(self, queue: str, payload: bytes) -> None:
        """To a queue or a stream, through the default exchange."""
        route = self.vhost.route(self.vhost.exchange(""), queue.encode())
        route.publish(message(payload, queue.encode()))

    def drain(self, queue: str) -> list[bytes]:
        """Take and settle everything, read back from the disk where it must be."""
        found: list[bytes] = []
        while len(self.vhost.queues[queue]):
            found += drain(self.vhost.queues[queue])
            self.settle_down()
        return found

    def kill(self) -> None:
        """Leave the directory as a killed process does, in this process."""
        self.storage.abandon()
