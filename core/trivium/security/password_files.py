"""Password files as `mosquitto_passwd` writes them: a user and a hash in each line.

They are read again when they change. A file that is wrong then is not taken: what was read last
holds, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from trivium.errors import ConfigError
from trivium.security.passwords import PasswordFormatError, is_hashed, parse_hash
from trivium.security.stored import PasswordMethod, Remembered, RunInPool, StoredUser

logger = logging.getLogger(__name__)

PASSWORD_FILE: Final = "password-file"  # noqa: S105

#: largest file: some hundred thousand users
MAX_FILE_BYTES: Final = 32 << 20


class PasswordFiles(PasswordMethod):
    """The users of all files; of two of one name the first holds. Raises ConfigError."""

    name = PASSWORD_FILE

    def __init__(
        self,
        paths: Iterable[Path],
        remembered: Remembered,
        run_in_pool: RunInPool,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(remembered, run_in_pool)
        self._run = run_in_pool
        self._changed = changed
        self._paths = list(paths)
        self._seen = self._states()
        self._users = self._read()
        self._is_reading = False

    def find(self, username: str) -> StoredUser | None:
        return self._users.get(username)

    def hashes(self) -> list[str]:
        return [user.stored for user in self._users.values()]

    def look(self, now_ms: int) -> None:
        states = self._states()
        if states == self._seen or self._is_reading:
            return
        self._seen = states
        self._is_reading = True
        found: list[dict[str, StoredUser]] = []

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
                self._users = found[0]
                self._changed()

        self._run(work, finish)

    def _states(self) -> list[tuple[int, int, int] | None]:
        return [_state(path) for path in self._paths]

    def _read(self) -> dict[str, StoredUser]:
        users: dict[str, StoredUser] = {}
        for path in self._paths:
            for user in read_password_file(path):
                users.setdefault(user.name, user)
        return users


def _state(path: Path) -> tuple[int, int, int] | None:
    """What differs once a file has changed; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_password_file(path: Path) -> list[StoredUser]:
    """The users of one file. Raises ConfigError, which names the line and not what is in it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"password file {path} has more than {MAX_FILE_BYTES} bytes")
        lines = data.decode().splitlines()
    except OSError as error:
        raise ConfigError(f"password file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"password file {path} is not UTF-8") from None
    users: list[StoredUser] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, stored = line.strip().partition(":")
        try:
            if not (name and colon and is_hashed(stored)):
                raise PasswordFormatError("is not USER:HASH")
            parse_hash(stored)
        except PasswordFormatError as error:
            raise ConfigError(f"password file {path}, line {number}: {error}") from None
        users.append(StoredUser(name=name, stored=stored))
    return users
