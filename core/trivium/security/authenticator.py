"""Decides whether a client may connect, the same for every protocol.

A hashed password takes some 50 ms of CPU to check. That runs in a thread pool, which comes in as a
function; credentials that were right before are remembered under a key that dies with the process,
so that reconnecting clients cost nothing.

Once any password is hashed every refusal takes a hash's work, of a user that does not exist too:
the time until the answer does not tell who exists.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Final, Literal

from trivium.listen import ListenerConfig
from trivium.security.identity import ADMINISTRATOR, Identity
from trivium.security.passwords import is_hashed, verify_password

#: remembered users; a broker with more of them hashes again when they reconnect
MEMORY_SIZE: Final = 10_000
#: longest password that is looked at: a hash's cost must not depend on the client's input
MAX_PASSWORD_BYTES: Final = 1024

GUEST: Final = "guest"

#: Runs the first function in a thread, then calls the second with its result on the loop.
RunInPool = Callable[[Callable[[], bool], Callable[[bool], None]], None]


class Authenticator:
    """The users of one broker."""

    def __init__(
        self,
        passwords: Mapping[str, str],
        has_guest: bool,
        anonymous: Literal["loopback", "always", "never"],
        run_in_pool: RunInPool,
        tags: Mapping[str, frozenset[str]] | None = None,
        anonymous_tags: frozenset[str] = frozenset(),
    ) -> None:
        # By user name, as they are stored.
        self._passwords = dict(passwords)
        #: whether `guest` is the built-in one, which is admitted from this machine only
        self._guest_is_local = has_guest and GUEST not in self._passwords
        if self._guest_is_local:
            self._passwords[GUEST] = GUEST
        self._anonymous = anonymous
        self._run_in_pool = run_in_pool
        # By user name; who is not in it has none.
        self._tags = {} if tags is None else dict(tags)
        if self._guest_is_local:
            self._tags[GUEST] = frozenset([ADMINISTRATOR])
        #: who clients without credentials are
        self.anonymous = Identity("", anonymous_tags, is_anonymous=True)
        # What an unknown user's password is compared with, for the work alone.
        self._decoys = [stored for stored in self._passwords.values() if is_hashed(stored)]
        self._memory_key = secrets.token_bytes(32)
        self._memory: dict[str, bytes] = {}

    def admits_anonymous(self, listener: ListenerConfig) -> bool:
        """Whether clients without credentials may connect to this listener."""
        rule = listener.anonymous or self._anonymous
        return listener.is_loopback if rule == "loopback" else rule == "always"

    def knows(self, username: str) -> bool:
        """Whether there is such a user, from wherever it is admitted."""
        return username in self._passwords

    def authenticate(
        self,
        username: str,
        password: bytes,
        peer_is_loopback: bool,
        done: Callable[[Identity | None], None],
    ) -> None:
        """Call `done` with who the client is, None when it may not connect: at once, or later.

        It is later only for a hashed password that was not seen to be right before, and for a
        refusal where there are such passwords.
        """
        stored = self._passwords.get(username)
        if len(password) > MAX_PASSWORD_BYTES:
            done(None)
            return
        if stored is None or (username == GUEST and self._guest_is_local and not peer_is_loopback):
            self._refuse(username, password, done)
            return
        if not is_hashed(stored):
            if verify_password(stored, password):
                done(self._identity(username))
            else:
                self._refuse(username, password, done)
            return
        digest = hmac.digest(self._memory_key, password, hashlib.sha256)
        if hmac.compare_digest(self._memory.get(username, b""), digest):
            done(self._identity(username))
            return

        def finish(is_right: bool) -> None:
            if is_right and (username in self._memory or len(self._memory) < MEMORY_SIZE):
                self._memory[username] = digest
            done(self._identity(username) if is_right else None)

        self._run_in_pool(lambda: verify_password(stored, password), finish)

    def _identity(self, username: str) -> Identity:
        return Identity(username, self._tags.get(username, frozenset()))

    def _refuse(
        self, username: str, password: bytes, done: Callable[[Identity | None], None]
    ) -> None:
        """Answer no, after the work of checking the hashed password of one of the users.

        It is the same one each time, since hashes may differ in what they cost.
        """
        decoys = self._decoys
        if not decoys:
            done(None)
            return
        name = username.encode(errors="surrogatepass")
        choice = hmac.digest(self._memory_key, name, hashlib.sha256)
        decoy = decoys[int.from_bytes(choice) % len(decoys)]
        self._run_in_pool(lambda: verify_password(decoy, password), lambda _: done(None))
