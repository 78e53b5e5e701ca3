"""API keys: secrets of a user that can expire, give less than the user has, and be taken back.

A key reads `trivium_ID_SECRET`. It stands where a password would. The secret is random, so its
SHA-256 is stored; it is shown once, to whoever made it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from trivium.common.events import Events
from trivium.common.values import pack, unpack
from trivium.errors import LimitExceeded, NotFound, PreconditionFailed
from trivium.security.attempts import REFUSED, UNKNOWN, Attempt, Decided, Login, Method, Verdict
from trivium.security.identity import Identity, with_implied
from trivium.security.scopes import FORMS, check_scopes, scopes_of
from trivium.security.users import Users
from trivium.storage.base import Table

API_KEY: Final = "api-key"

ID_BYTES: Final = 8
#: as many as a SHA-256 has
SECRET_BYTES: Final = 32
#: rows of the table: all of them are in memory
MAX_KEYS: Final = 100_000
#: of a user that makes them itself: so nobody fills the table
MAX_OWN_KEYS: Final = 100

_FORM: Final = re.compile(rf"trivium_([0-9a-f]{{{2 * ID_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key, without its secret."""

    id: str
    user: str
    #: words (`trivium.security.scopes`): which of the user's tags it gives, and to what it narrows
    #: the user's permissions, if they name any; None gives all; an empty set, as earlier versions
    #: took, nothing
    scopes: frozenset[str] | None = None
    #: wall clock in milliseconds; 0 for never
    expires_ms: int = 0
    digest: bytes = field(repr=False)


class ApiKeys(Method):
    """The keys of one broker's users."""

    name = API_KEY

    def __init__(
        self,
        users: Users,
        now_ms: Callable[[], int],
        changed: Callable[[], None],
        events: Events,
    ) -> None:
        self._users = users
        self._now_ms = now_ms
        self._changed = changed
        self._events = events
        self._keys: dict[str, ApiKey] = {}
        # By user and identifier.
        self._of_users: dict[str, dict[str, ApiKey]] = {}
        self._table: Table | None = None

    def open(self, table: Table) -> None:
        """Load the keys of the table, and keep them there from now on."""
        self._table = table
        for key, row in table.items():
            user, digest, scopes, expires_ms = unpack(row)
            self._keep(
                ApiKey(
                    id=key.decode(),
                    user=user,
                    digest=digest,
                    scopes=None if scopes is None else frozenset(scopes),
                    expires_ms=expires_ms,
                )
            )

    def check(self, attempt: Attempt, decided: Decided) -> None:
        decided(self.recognise(attempt))

    def recognise(self, attempt: Attempt) -> Verdict:
        match = _FORM.fullmatch(attempt.password.decode(errors="replace"))
        if match is None:
            return UNKNOWN
        key = self._keys.get(match[1])
        digest = hashlib.sha256(match[2].encode()).digest()
        if key is None or not hmac.compare_digest(key.digest, digest):
            return REFUSED
        login = self._login(key) if attempt.username in (None, "", key.user) else None
        return REFUSED if login is None else Verdict(login)

    def current(self, login: Login) -> Login | None:
        key = self._keys.get(login.key)
        found = None if key is None else self._login(key)
        return login if found == login else found

    def add_own(
        self, user: str, scopes: Iterable[str] | None = None, expires_ms: int = 0
    ) -> tuple[ApiKey, str]:
        """The same, made by the user: at most ``MAX_OWN_KEYS``."""
        if len(self._of_users.get(user, ())) >= MAX_OWN_KEYS:
            raise LimitExceeded(f"user '{user}' has {MAX_OWN_KEYS} keys")
        return self.add(user, scopes, expires_ms)

    def add(
        self, user: str, scopes: Iterable[str] | None = None, expires_ms: int = 0
    ) -> tuple[ApiKey, str]:
        """A new key of a user, and what stands for a password. Raises TopologyError.

        Its tags are among those that the user has now; what else scopes name is looked at with what
        the user may when the key is used.
        """
        found = self._users.find(user)
        if found is None:
            raise NotFound(f"no user '{user}'")
        words = None if scopes is None else check_scopes(scopes)
        if words is not None:
            missing = scopes_of(words)[1] - with_implied(found.tags)
            if missing:
                raise PreconditionFailed(f"user '{user}' has no tag '{min(missing)}': {FORMS}")
        if len(self._keys) >= MAX_KEYS:
            raise LimitExceeded(f"there are {MAX_KEYS} keys")
        if expires_ms and expires_ms <= self._now_ms():
            raise PreconditionFailed("the key would have expired already")
        number, secret = secrets.token_hex(ID_BYTES), secrets.token_hex(SECRET_BYTES)
        key = ApiKey(
            id=number,
            user=user,
            scopes=words,
            expires_ms=expires_ms,
            digest=hashlib.sha256(secret.encode()).digest(),
        )
        assert self._table is not None
        self._keep(key)
        given = None if words is None else sorted(words)
        self._table.put(number.encode(), pack([user, key.digest, given, expires_ms]))
        self._events.tell("user.key.created", name=user, key=number, scopes=given)
        return key, f"trivium_{number}_{secret}"

    def find(self, number: str) -> ApiKey | None:
        """The key of an identifier."""
        return self._keys.get(number)

    def delete(self, number: str) -> None:
        """Take a key back. Raises NotFound."""
        if number not in self._keys:
            raise NotFound(f"no key '{number}'")
        user = self._keys[number].user
        self._drop(number)
        self._changed()
        self._events.tell("user.key.deleted", name=user, key=number)

    def delete_of(self, user: str) -> None:
        """Take back all keys of a user that is gone."""
        for key in self.all(user):
            self._drop(key.id)

    def all(self, user: str = "") -> list[ApiKey]:
        """The keys of a user, or all of them, by user and number."""
        found = self._of_users.get(user, {}) if user else self._keys
        return sorted(found.values(), key=lambda key: (key.user, key.id))

    def _keep(self, key: ApiKey) -> None:
        self._keys[key.id] = key
        self._of_users.setdefault(key.user, {})[key.id] = key

    def _drop(self, number: str) -> None:
        assert self._table is not None
        key = self._keys.pop(number)
        own = self._of_users[key.user]
        del own[number]
        if not own:
            del self._of_users[key.user]
        self._table.delete(number.encode())

    def _login(self, key: ApiKey) -> Login | None:
        """What the key gives now; None when it has expired, or its user is gone."""
        user = self._users.find(key.user)
        if user is None or 0 < key.expires_ms <= self._now_ms():
            return None
        identity = user.identity
        if key.scopes is not None:
            scopes, tags = scopes_of(key.scopes)
            is_narrowed = scopes is not None
            given = with_implied(user.tags) & tags
            identity = Identity(key.user, given, scopes=scopes, is_narrowed=is_narrowed)
        return Login(
            identity=identity,
            method=self.name,
            key=key.id,
            expires_ms=key.expires_ms,
        )
