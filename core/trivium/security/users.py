"""The broker's own users: those of the configuration, and those of a table, which commands change.

Passwords are stored as hashes. A row is written in the write batch of the command's answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from trivium.common.events import Events
from trivium.common.values import pack, unpack
from trivium.errors import Configured, LimitExceeded, NotFound, PreconditionFailed
from trivium.security.hash_queue import HashQueue, RunInPool
from trivium.security.identity import ADMINISTRATOR, OWNER
from trivium.security.passwords import (
    PasswordFormatError,
    check_stored_password,
    hash_password,
    is_hashed,
)
from trivium.security.scram import ScramKeys, make_keys, parse_keys, prepare
from trivium.security.stored import (
    MAX_PASSWORD_BYTES,
    PasswordMethod,
    Remembered,
    StoredUser,
)
from trivium.storage.base import Table

logger = logging.getLogger(__name__)

GUEST: Final = "guest"
DEFAULT_VHOST: Final = "/"
INTERNAL: Final = "internal"

MAX_NAME_BYTES: Final = 255
#: of one user, and their length: they are copied into each of its connections
MAX_TAGS: Final = 32
MAX_TAG_BYTES: Final = 64
#: rows of the table: all of them are in memory
MAX_USERS: Final = 100_000


class Users(PasswordMethod):
    """The users of one broker."""

    name = INTERNAL
    has_scram = True

    def __init__(
        self,
        configured: Iterable[StoredUser],
        has_guest: bool,
        remembered: Remembered,
        hashes: HashQueue,
        changed: Callable[[], None],
        events: Events,
        scram_iterations: int = 0,
    ) -> None:
        super().__init__(remembered, hashes)
        # Of the SCRAM keys of new passwords; 0: they get none.
        self._scram_iterations = scram_iterations
        self._configured = {user.name: user for user in configured}
        if has_guest and GUEST not in self._configured:
            # The one that is admitted from this machine only.
            tags = frozenset([ADMINISTRATOR])
            self._configured[GUEST] = StoredUser(name=GUEST, stored=GUEST, tags=tags, is_local=True)
        self._rows: dict[str, StoredUser] = {}
        # Names of the configuration whose SCRAM keys are being made, and who waits for them.
        self._keyless: list[str] = []
        self._waiting: list[Callable[[], None]] = []
        #: those that are being deleted, with what says what they declared that is in force
        self.leaving: dict[str, StoredUser] = {}
        self._table: Table | None = None
        self._changed = changed
        self._events = events
        #: told the name of one that is to be added: what there is of that name is not for it
        self.adding: Callable[[str], None] = lambda _: None

    def open(self, table: Table) -> None:
        """Load the users of the table, and keep them there from now on."""
        self._table = table
        for key, row in table.items():
            stored, tags, *more = unpack(row)
            name = key.decode()
            settings = more[0] if more else {}
            if "deleting" in settings:
                home = settings.get("virtual_host", "")
                self.leaving[name] = _leaving(name, frozenset(tags), home)
                continue
            self._rows[name] = StoredUser(
                name=name,
                stored=stored,
                scram=parse_keys(settings["scram"]) if "scram" in settings else None,
                tags=frozenset(tags),
                virtual_host=settings.get("virtual_host", ""),
            )

    def make_missing_keys(self, run_in_pool: RunInPool, salt_of: Callable[[str], bytes]) -> None:
        """Begin to make SCRAM keys of the passwords that the configuration has as plain text.

        Those that SCRAM cannot have get none.
        """
        for user in self._configured.values():
            if user.scram is None and not is_hashed(user.stored):
                try:
                    prepare(user.stored.encode())
                except PasswordFormatError as error:
                    logger.warning("user %r cannot use SCRAM: %s", user.name, error)
                else:
                    self._keyless.append(user.name)
        self._make_next_keys(run_in_pool, salt_of)

    def _make_next_keys(self, run_in_pool: RunInPool, salt_of: Callable[[str], bytes]) -> None:
        if not self._keyless:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                each()
            return
        name = self._keyless[-1]
        user = self._configured[name]
        salt = salt_of(name)
        made: list[ScramKeys] = []

        def work() -> bool:
            made.append(make_keys(user.stored.encode(), self._scram_iterations, salt))
            return True

        def done(is_made: bool) -> None:
            self._keyless.pop()
            if is_made:
                self._configured[name] = replace(user, scram=made[0])
                self._changed()
            self._make_next_keys(run_in_pool, salt_of)

        run_in_pool(work, done)

    def when_ready(self, work: Callable[[], None]) -> None:
        if self._keyless:
            self._waiting.append(self._events.for_served(work))
        else:
            work()

    def find(self, username: str) -> StoredUser | None:
        return self._configured.get(username) or self._rows.get(username)

    def virtual_host_of(self, username: str) -> str:
        """Where clients of this name go that name no virtual host."""
        user = self.find(username) or self.leaving.get(username)
        return DEFAULT_VHOST if user is None else user.virtual_host or DEFAULT_VHOST

    def tags_of(self, username: str) -> frozenset[str]:
        """The tags by which what was declared in this name is in force, also while it goes."""
        user = self.find(username) or self.leaving.get(username)
        return frozenset() if user is None else user.tags

    def hashes(self) -> list[str]:
        users = [*self._configured.values(), *self._rows.values()]
        return [user.stored for user in users if user.stored.startswith("$")]

    def iterations(self) -> list[int]:
        users = [*self._configured.values(), *self._rows.values()]
        return [user.scram.iterations for user in users if user.scram is not None]

    def all(self) -> list[StoredUser]:
        """All users, in no order: there may be many."""
        return list({**self._rows, **self._configured}.values())

    def is_configured(self, name: str) -> bool:
        """Whether the user stands in the configuration, and cannot be changed by commands."""
        return name in self._configured

    def is_stored(self, name: str) -> bool:
        """Whether this is a user of the table, also one that is being deleted."""
        return name not in self._configured and (name in self._rows or name in self.leaving)

    def check_new(self, name: str) -> None:
        """Raise PreconditionFailed unless there may be a new user of this name."""
        check_name(name)
        if self.find(name) is not None:
            raise PreconditionFailed(f"user '{name}' exists")
        if name in self.leaving:
            raise PreconditionFailed(f"user '{name}' is being deleted")
        if len(self._rows) + len(self.leaving) >= MAX_USERS:
            raise LimitExceeded(f"there are {MAX_USERS} users")

    def check_password(self, password: bytes) -> None:
        """Raise PreconditionFailed unless a user may have the password."""
        if not 0 < len(password) <= MAX_PASSWORD_BYTES:
            raise PreconditionFailed(f"a password has 1 to {MAX_PASSWORD_BYTES} bytes")
        if self._scram_iterations:
            try:
                prepare(password)
            except PasswordFormatError as error:
                raise PreconditionFailed(str(error)) from None

    def hash(self, password: bytes) -> tuple[str, ScramKeys | None]:
        """What is stored of a password that was checked; takes a thread a while."""
        iterations = self._scram_iterations
        return hash_password(password), make_keys(password, iterations) if iterations else None

    def add(
        self, name: str, stored: str, tags: Iterable[str] = (), scram: ScramKeys | None = None
    ) -> None:
        """Add a user with a hashed password. Raises TopologyError."""
        self.check_new(name)
        self.adding(name)
        self._put(StoredUser(name=name, stored=stored, scram=scram, tags=check_tags(tags)))
        self._events.tell("user.created", name=name, tags=self._rows[name].tags)

    def set_password(self, name: str, stored: str, scram: ScramKeys | None = None) -> None:
        """Give a user another password, a hashed one. Raises TopologyError."""
        self._put(replace(self.changeable(name), stored=stored, scram=scram))
        self._events.tell("user.password.changed", name=name)

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        """Give a user other tags. Raises TopologyError."""
        self._put(replace(self.changeable(name), tags=check_tags(tags)))
        self._events.tell("user.tags.set", name=name, tags=self._rows[name].tags)

    def set_virtual_host(self, name: str, vhost: str) -> None:
        """Say where a user's clients go that name no virtual host. Raises TopologyError."""
        self._put(replace(self.changeable(name), virtual_host=vhost))
        self._events.tell("user.vhost.set", name=name, vhost=vhost)

    def delete(self, name: str) -> None:
        """Remove a user; its name is free once it is ``deleted``. Raises TopologyError."""
        self.changeable(name)
        assert self._table is not None
        settings: dict[str, object] = {"deleting": True}
        user = self._rows.pop(name)
        # What it may do depends on both, which others look at until all is done.
        if user.virtual_host:
            settings["virtual_host"] = user.virtual_host
        self.leaving[name] = _leaving(name, user.tags, user.virtual_host)
        self._table.put(name.encode(), pack(["", sorted(user.tags), settings]))
        self._changed()
        self._events.tell("user.deleted", name=name)

    def deleted(self, name: str) -> None:
        """Nothing is left of a user that was removed."""
        assert self._table is not None
        del self.leaving[name]
        self._table.delete(name.encode())

    def changeable(self, name: str) -> StoredUser:
        """The user of the table. Raises NotFound; AccessRefused for one of the configuration."""
        if name in self._configured:
            raise Configured("user", name)
        user = self._rows.get(name)
        if user is None:
            raise NotFound(f"no user '{name}'")
        return user

    def _put(self, user: StoredUser) -> None:
        check_stored_password(user.stored)
        assert self._table is not None
        self._rows[user.name] = user
        settings: dict[str, object] = {}
        if user.virtual_host:
            settings["virtual_host"] = user.virtual_host
        if user.scram is not None:
            settings["scram"] = user.scram.text()
        row: list[object] = [user.stored, sorted(user.tags)]
        if settings:
            row.append(settings)
        self._table.put(user.name.encode(), pack(row))
        self._changed()


def _leaving(name: str, tags: frozenset[str], home: str) -> StoredUser:
    return StoredUser(name=name, stored="", tags=tags, virtual_host=home)


def check_name(name: str) -> None:
    """Raise PreconditionFailed unless a user may be called so."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise PreconditionFailed("a user's name is not UTF-8") from None
    if not 0 < size <= MAX_NAME_BYTES:
        raise PreconditionFailed(f"a user's name has 1 to {MAX_NAME_BYTES} bytes")
    if not name.isprintable():
        raise PreconditionFailed("a user's name has printable characters only")
    if name == OWNER.name:
        raise PreconditionFailed(f"'{name}' is whoever uses the control socket")


def check_tags(tags: Iterable[str]) -> frozenset[str]:
    """The tags. Raises PreconditionFailed for too many or too long ones."""
    found = frozenset(tags)
    if len(found) > MAX_TAGS:
        raise PreconditionFailed(f"a user has at most {MAX_TAGS} tags")
    for tag in found:
        if not 0 < len(tag.encode()) <= MAX_TAG_BYTES or not tag.isprintable():
            raise PreconditionFailed(f"a tag has 1 to {MAX_TAG_BYTES} printable bytes")
    return found
