"""Files that are read again when they change. One that is wrong then is not taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Generic, TypeVar

from trivium.errors import ConfigError
from trivium.security.hash_queue import RunInPool

logger = logging.getLogger(__name__)

#: largest file: some hundred thousand users
MAX_FILE_BYTES: Final = 32 << 20

T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """Files, and what ``read`` makes of them: at once, and whenever ``look`` finds them changed.

    ``read`` raises ConfigError; its first one ends the start. Later it runs in a thread, and
    ``changed`` is called once ``content`` is another.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        read: Callable[[], T],
        run_in_pool: RunInPool,
        changed: Callable[[], None],
    ) -> None:
        self._paths = list(paths)
        self._read = read
        self._run_in_pool = run_in_pool
        self._changed = changed
        self._seen = self._states()
        self._is_reading = False
        #: what was read last
        self.content = read()

    def look(self) -> None:
        """Read the files if they have changed since the last look."""
        states = self._states()
        if states == self._seen or self._is_reading:
            return
        self._seen = states
        self._is_reading = True
        found: list[T] = []

        def work() -> bool:
            try:
                found.append(self._read())
            except ConfigError as error:
                logger.error("what was read before holds: %s", error)
                return False
            return True

        def finish(is_read: bool) -> None:
            self._is_reading = False
            if is_read:
                self.content = found[0]
                self._changed()

        self._run_in_pool(work, finish)

    def _states(self) -> list[tuple[int, int, int] | None]:
        return [_state(path) for path in self._paths]


def read_bytes(path: Path, what: str) -> bytes:
    """The content of a file, which is ``what`` in messages. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{what} {path} has more than {MAX_FILE_BYTES} bytes")
    return data


def _state(path: Path) -> tuple[int, int, int] | None:
    """What differs once a file has changed; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
