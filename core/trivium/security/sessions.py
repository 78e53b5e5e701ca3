"""Sessions of browsers: who has signed in on a page, known from then on by the token of a cookie.

A session lasts while what its user came with holds, unchanged, is used now and again, and no longer
than a day's work. Nothing of it is stored: it ends with the broker's process. What is kept of a
token is its digest.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from trivium.common.events import Events
from trivium.security.attempts import Login
from trivium.security.authenticator import Authenticator
from trivium.security.clock import Clock

#: Sessions at a time, and of one user; beyond them the one that was used longest ago ends.
MAX_SESSIONS: Final = 1000
MAX_OF_USER: Final = 20
#: milliseconds for which one may be unused, and which it lasts at most
IDLE_MS: Final = 30 * 60_000
LONGEST_MS: Final = 12 * 60 * 60_000
TOKEN_BYTES: Final = 32


class Session:
    """One of them. ``listener`` names the one that it is for, ``is_local`` says whether it is for
    this machine alone, and ``began_at`` is a time of the clock."""

    __slots__ = ("began_at", "digest", "is_local", "listener", "login", "used_at")

    def __init__(
        self, digest: bytes, login: Login, listener: str, is_local: bool, began_at: int
    ) -> None:
        self.digest = digest
        self.login = login
        self.listener = listener
        self.is_local = is_local
        self.began_at = began_at
        self.used_at = began_at


class Sessions:
    """Those of one broker; ``now_ms`` is the time on the wall."""

    def __init__(
        self,
        authenticator: Authenticator,
        clock: Clock,
        now_ms: Callable[[], int],
        events: Events,
    ) -> None:
        self._authenticator = authenticator
        self._clock = clock
        self._now_ms = now_ms
        self._events = events
        # By the digest of the token, the one that was used last at the end.
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, login: Login, listener: str, is_local: bool) -> str:
        """Begin one for who is in by ``login``; the token that its browser is given."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        session = Session(_digest(token), login, listener, is_local, self._clock.now())
        for each in list(self._sessions.values()):
            if not self._is_good(each):
                del self._sessions[each.digest]
        name = login.identity.name
        own = [each for each in self._sessions.values() if each.login.identity.name == name]
        for each in own[: max(len(own) - MAX_OF_USER + 1, 0)]:
            del self._sessions[each.digest]
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        self._sessions[session.digest] = session
        self._events.tell("user.session.created", user=name)
        return token

    def find(self, token: str, listener: str, is_local: bool) -> Session | None:
        """That of a token, where the client that shows it may have it; it is used thereby."""
        session = self._sessions.get(_digest(token))
        if session is None or session.listener != listener:
            return None
        if session.is_local and not is_local:
            # Users may be for this machine alone.
            return None
        return session if self.use(session) else None

    def use(self, session: Session) -> bool:
        """Whether a session lasts, which is used now."""
        if self._sessions.get(session.digest) is not session:
            return False
        if not self._is_good(session):
            del self._sessions[session.digest]
            return False
        session.used_at = self._clock.now()
        self._sessions.move_to_end(session.digest)
        return True

    def end(self, session: Session) -> None:
        """Its user has signed out."""
        if self._sessions.pop(session.digest, None) is not None:
            self._events.tell("user.session.deleted", user=session.login.identity.name)

    def _is_good(self, session: Session) -> bool:
        now = self._clock.now()
        return (
            now - session.used_at < IDLE_MS
            and now - session.began_at < LONGEST_MS
            and self._authenticator.still_holds(session.login, self._now_ms())
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
