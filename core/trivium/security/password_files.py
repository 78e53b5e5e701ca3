"""Password files as `mosquitto_passwd` writes them: a user and a hash in each line.

They are read again when they change. A file that is wrong then is not taken: what was read last
holds, and the log says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from trivium.errors import ConfigError
from trivium.security.hash_queue import HashQueue, RunInPool
from trivium.security.passwords import PasswordFormatError, is_hashed, parse_hash
from trivium.security.stored import PasswordMethod, Remembered, StoredUser
from trivium.security.watched_files import WatchedFiles, read_bytes

PASSWORD_FILE: Final = "password-file"  # noqa: S105


class PasswordFiles(PasswordMethod):
    """The users of all files; of two of one name the first holds. Raises ConfigError."""

    name = PASSWORD_FILE

    def __init__(
        self,
        paths: Iterable[Path],
        remembered: Remembered,
        hashes: HashQueue,
        run_in_pool: RunInPool,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(remembered, hashes)
        files = list(paths)
        self._changed = changed
        #: told the names that are in no file any more, after ``changed``
        self.left: Callable[[set[str]], None] = lambda _: None
        self._files = WatchedFiles(files, lambda: _read_all(files), run_in_pool, self._read_again)
        self._names = set(self._files.content)

    def _read_again(self) -> None:
        before, self._names = self._names, set(self._files.content)
        self._changed()
        self.left(before - self._names)

    def find(self, username: str) -> StoredUser | None:
        return self._files.content.get(username)

    def hashes(self) -> list[str]:
        return [user.stored for user in self._files.content.values()]

    def look(self, now_ms: int) -> None:
        self._files.look()


def _read_all(paths: list[Path]) -> dict[str, StoredUser]:
    users: dict[str, StoredUser] = {}
    for path in paths:
        for user in read_password_file(path):
            users.setdefault(user.name, user)
    return users


def read_password_file(path: Path) -> list[StoredUser]:
    """The users of one file. Raises ConfigError, which names the line and not what is in it."""
    try:
        lines = read_bytes(path, "password file").decode().splitlines()
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
