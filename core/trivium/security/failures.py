"""Failed logins: whoever fails again and again waits before the next attempt is looked at.

Failures are counted by address and user together, where the wait soon becomes long; and by address
and by user alone, where it takes many failures and stays short: behind one address there may be
many clients, and nobody may lock a user out from elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from trivium.security.attempts import Attempt

#: milliseconds without a failure after which those before are forgotten
FORGOTTEN_MS: Final = 60_000
#: counts that are kept of each kind; beyond them the one that failed longest ago is forgotten
MAX_COUNTS: Final = 10_000
#: milliseconds that the first failure costs which is not free; each further one costs twice that
FIRST_WAIT_MS: Final = 250

#: tokens and keys of one address that are looked at within a second before their turn and are
#: wrong: each takes some 0.1 ms; beyond them it is looked at in its turn
MAX_LOOKS: Final = 100
LOOKS_MS: Final = 1000

#: failures that cost nothing, and the longest wait in milliseconds: it is within the time that a
#: client has to authenticate
BY_BOTH: Final = (3, 8_000)
BY_ADDRESS: Final = (50, 1_000)
BY_USER: Final = (20, 1_000)


def _digest(name: str) -> bytes:
    """What a name is known by: it is as long as the client likes, and very many are kept."""
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()


def both(attempt: Attempt) -> str:
    """The name of an attempt's address and user together."""
    return f"{attempt.source} {attempt.username or ''}"


class Counts:
    """Failures by some name."""

    def __init__(self, free: int, longest_ms: int) -> None:
        self._free = free
        self._longest_ms = longest_ms
        # By name the number of failures and the time of the last one, that one at the end.
        self._counts: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def failed(self, name: str, now: int) -> bool:
        """Count a failure; whether it is the last one that costs nothing."""
        key = _digest(name)
        count, at = self._counts.pop(key, (0, now))
        if now - at >= FORGOTTEN_MS:
            count = 0
        self._counts[key] = (count + 1, now)
        if len(self._counts) > MAX_COUNTS:
            self._counts.popitem(last=False)
        return count + 1 == self._free

    def forget(self, name: str) -> None:
        """It was right this time."""
        self._counts.pop(_digest(name), None)

    def left(self, name: str, now: int) -> int:
        """Failures that cost nothing yet; below 0 it has had more."""
        count, at = self._counts.get(_digest(name), (0, now))
        return self._free if now - at >= FORGOTTEN_MS else self._free - count

    def wait(self, name: str, now: int) -> int:
        """Milliseconds to wait before the next attempt."""
        beyond = -self.left(name, now)
        if beyond < 0:
            return 0
        # The shift is bounded, since the number would be as long as the count is large.
        return min(FIRST_WAIT_MS << min(beyond, 16), self._longest_ms)


class Failures:
    """The failed logins of one broker; times are milliseconds on a clock that is never set."""

    def __init__(self) -> None:
        self._by_both = Counts(*BY_BOTH)
        self._by_address = Counts(*BY_ADDRESS)
        self._by_user = Counts(*BY_USER)
        # By address, since when and how many.
        self._looks: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def may_look(self, attempt: Attempt, now: int) -> bool:
        """Whether what an attempt shows may be looked at before its turn."""
        since, count = self._looks.get(_digest(attempt.source), (now, 0))
        return count < MAX_LOOKS or now - since >= LOOKS_MS

    def looked(self, attempt: Attempt, now: int) -> None:
        """It was, and is wrong."""
        key = _digest(attempt.source)
        since, count = self._looks.pop(key, (now, 0))
        if now - since >= LOOKS_MS:
            since, count = now, 0
        self._looks[key] = (since, count + 1)
        if len(self._looks) > MAX_COUNTS:
            self._looks.popitem(last=False)

    def at_once(self, name: str, now: int) -> int:
        """How many attempts of a name of ``both`` may be looked at together."""
        return max(self._by_both.left(name, now), 1)

    def wait_of_both(self, attempt: Attempt, now: int) -> int:
        """Milliseconds before the attempt may be looked at, by address and user together."""
        return self._by_both.wait(both(attempt), now)

    def wait_of_each(self, attempt: Attempt, now: int) -> int:
        """Milliseconds before the attempt may be looked at, by address and by user."""
        user = attempt.username or ""
        by_user = self._by_user.wait(user, now) if user else 0
        return max(self._by_address.wait(attempt.source, now), by_user)

    def failed(self, attempt: Attempt, now: int) -> list[tuple[str, str]]:
        """An attempt was refused. By what all others wait from now on, and its name: `user` or
        `address`."""
        user = attempt.username or ""
        self._by_both.failed(both(attempt), now)
        slowed: list[tuple[str, str]] = []
        if self._by_address.failed(attempt.source, now):
            slowed.append(("address", attempt.source))
        if user and self._by_user.failed(user, now):
            slowed.append(("user", user))
        return slowed

    def succeeded(self, attempt: Attempt) -> None:
        """An attempt was right."""
        self._by_both.forget(both(attempt))
