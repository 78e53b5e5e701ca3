"""Methods that compare a password with a stored one.

A hashed password takes some 30 ms of CPU to check, when it is its turn. Credentials that were right
before are remembered under a key that dies with the process, so that reconnecting clients cost
nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from trivium.security.attempts import (
    BUSY,
    REFUSED,
    UNKNOWN,
    Attempt,
    Decided,
    Login,
    Method,
    Verdict,
)
from trivium.security.hash_queue import HashQueue
from trivium.security.identity import Identity
from trivium.security.passwords import is_hashed, verify_password
from trivium.security.scram import ScramKeys

#: remembered users; a broker with more of them hashes again when they reconnect
MEMORY_SIZE: Final = 10_000
#: longest password that is looked at: a hash's cost must not depend on the client's input
MAX_PASSWORD_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUser:
    """A user and its password as it is stored."""

    name: str
    stored: str = field(repr=False)
    #: of the same password; None: it cannot be proved by SCRAM
    scram: ScramKeys | None = None
    tags: frozenset[str] = frozenset()
    #: whether it is admitted from this machine only
    is_local: bool = False
    #: where its ACL lines hold, and its clients go that name no virtual host; "" is ``/``
    virtual_host: str = ""

    @property
    def identity(self) -> Identity:
        """Who its clients are."""
        return Identity(self.name, self.tags)


class Remembered:
    """Credentials that were right, for as long as what is stored stays the same."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._digests: OrderedDict[str, bytes] = OrderedDict()

    def digest(self, stored: str, password: bytes) -> bytes:
        """What is remembered of a password that is right for what is stored."""
        return hmac.digest(self._key, stored.encode() + b"\0" + password, hashlib.sha256)

    def has(self, place: str, digest: bytes) -> bool:
        """Whether it is what was right at this place last."""
        return hmac.compare_digest(self._digests.get(place, b""), digest)

    def put(self, place: str, digest: bytes) -> None:
        """It was right."""
        self._digests[place] = digest
        self._digests.move_to_end(place)
        if len(self._digests) > MEMORY_SIZE:
            self._digests.popitem(last=False)


class PasswordMethod(Method):
    """Compares passwords; subclasses know the users."""

    def __init__(self, remembered: Remembered, hashes: HashQueue) -> None:
        self._remembered = remembered
        self._hashes = hashes

    def find(self, username: str) -> StoredUser | None:
        """The user of this name."""
        raise NotImplementedError

    def recognise(self, attempt: Attempt) -> Verdict | None:
        # Nobody has no name. What a name stands beside is a password, which can be guessed.
        return None if attempt.username else UNKNOWN

    def check(self, attempt: Attempt, decided: Decided) -> None:
        user = None if attempt.username is None else self.find(attempt.username)
        if user is None:
            decided(UNKNOWN)
            return
        password, stored = attempt.password, user.stored
        if len(password) > MAX_PASSWORD_BYTES or (user.is_local and not attempt.is_loopback):
            decided(REFUSED)
            return
        login = self.login(user)
        if not is_hashed(stored):
            decided(Verdict(login) if verify_password(stored, password) else REFUSED)
            return
        place = f"{self.name}\0{user.name}"
        digest = self._remembered.digest(stored, password)
        if self._remembered.has(place, digest):
            decided(Verdict(login))
            return

        def finish(is_right: bool | None) -> None:
            if is_right is None:
                decided(BUSY)
                return
            # Meanwhile the user may have got another password, or may be gone.
            if is_right and self.current(login) is not None:
                self._remembered.put(place, digest)
                decided(Verdict(login))
            else:
                decided(Verdict(hashed=stored))

        self._hashes.run(attempt, lambda: verify_password(stored, password), finish)

    def current(self, login: Login) -> Login | None:
        user = self.find(login.key)
        if user is None or user.stored != login.credential:
            return None
        return login if user.tags == login.identity.tags else self.login(user)

    def login(self, user: StoredUser) -> Login:
        """What holds for a user who has shown the password that is stored."""
        return Login(
            identity=user.identity, method=self.name, key=user.name, credential=user.stored
        )
