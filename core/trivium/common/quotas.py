"""Quotas: how much of each thing a user, a virtual host and a listener may have, and has.

An ``Account`` is one of these. It counts what is there in any case, so that a limit can be set at
any time; what is beyond it then stays, and nothing is added. A connection has several accounts, and
the limits of all of them hold.

How fast is published is no count but a ``Bucket``: whoever has taken more than there is waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from trivium.common.counters import Traffic
from trivium.errors import PreconditionFailed, QuotaExceeded

logger = logging.getLogger(__name__)

# Whose account it is.
USER: Final = "user"
VHOST: Final = "vhost"
LISTENER: Final = "listener"

# What is limited. The first ones are counted by accounts.
CONNECTIONS: Final = 0
CHANNELS: Final = 1
SUBSCRIPTIONS: Final = 2
QUEUES: Final = 3
STREAMS: Final = 4
SESSIONS: Final = 5
COUNTED: Final = 6
# These by a virtual host itself.
RETAINED_MESSAGES: Final = 6
RETAINED_BYTES: Final = 7
QUEUED_BYTES: Final = 8
# Rates, per second.
MESSAGE_RATE: Final = 9
BYTE_RATE: Final = 10

#: What the limits are called; those that RabbitMQ has as it has them.
NAMES: Final = (
    "max-connections",
    "max-channels",
    "max-subscriptions",
    "max-queues",
    "max-streams",
    "max-sessions",
    "max-retained-messages",
    "max-retained-bytes",
    "max-queued-bytes",
    "publish-messages-per-second",
    "publish-bytes-per-second",
)
_NUMBERS: Final = {name: number for number, name in enumerate(NAMES)}

#: Which of them there are, by whose they are. The connections of a listener are limited where they
#: come in (``max_connections``), before anybody knows whose they are.
LIMITS_OF: Final = {
    USER: (
        *(CONNECTIONS, CHANNELS, SUBSCRIPTIONS, QUEUES, SESSIONS),
        *(MESSAGE_RATE, BYTE_RATE),
    ),
    VHOST: tuple(range(len(NAMES))),
    LISTENER: (CHANNELS, SUBSCRIPTIONS, MESSAGE_RATE, BYTE_RATE),
}

#: No limit, as a number of a limit.
UNLIMITED: Final = -1
_MOST: Final = (1 << 53) - 1
_NO_LIMITS: Final = [UNLIMITED] * len(NAMES)
_NO_REPORTS: Final[list[int]] = []

#: Milliseconds between two lines of the log about one limit.
LOG_INTERVAL: Final = 60_000
#: Milliseconds between two looks for accounts that nobody needs any more.
TIDY_INTERVAL: Final = 10_000
#: Users of whom nothing is left but what they have counted; of more the oldest are forgotten.
MOST_GONE: Final = 10_000


def check_limits(scope: str, limits: Mapping[str, object]) -> dict[str, int]:
    """The limits of a user, virtual host or listener; -1 is no limit, whatever the default is.

    Raises PreconditionFailed for an unknown name and for a value that is none.
    """
    found: dict[str, int] = {}
    allowed = [NAMES[number] for number in LIMITS_OF[scope]]
    for name, value in limits.items():
        if name not in allowed:
            raise PreconditionFailed(f"a {scope} has no limit '{name}', only {', '.join(allowed)}")
        if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= _MOST:
            raise PreconditionFailed(f"limit '{name}' must be a whole number, or -1 for no limit")
        if value == 0 and _NUMBERS[name] >= MESSAGE_RATE:
            # A client that is not read hangs, and is never told why.
            raise PreconditionFailed(
                f"limit '{name}' must be at least 1, or -1 for no limit: who is to publish nothing"
                " gets no permission to write"
            )
        found[name] = value
    return found


class Bucket:
    """A token bucket: ``rate`` tokens a second, as many of which can be taken at once.

    More can be taken than there is. Then there is nothing until that has come in.
    """

    def __init__(self, rate: int, now: int) -> None:
        self.rate = rate
        # Thousandths of a token, and up to when they have come in.
        self._level = rate * 1000
        self._at = now

    def take(self, count: int, now: int) -> None:
        """Take some at ``now``, in milliseconds on a clock that is never set."""
        self._fill(now)
        self._level -= count * 1000

    def wait(self, now: int) -> int:
        """Milliseconds until there is one, 0 where there is."""
        self._fill(now)
        missing = 1000 - self._level
        return 0 if missing <= 0 else (missing + self.rate - 1) // self.rate

    def is_full(self, now: int) -> bool:
        """Whether it is as good as new."""
        self._fill(now)
        return self._level == self.rate * 1000

    def set_rate(self, rate: int, now: int) -> None:
        """Another rate, from now on. What was taken too much stays taken."""
        self._fill(now)
        self._level = min(self._level, rate * 1000)
        self.rate = rate

    def _fill(self, now: int) -> None:
        if now > self._at:
            self._level = min(self._level + (now - self._at) * self.rate, self.rate * 1000)
            self._at = now


class Account:
    """What one user, virtual host or listener has, and the limits that hold for it."""

    def __init__(self, scope: str, name: str) -> None:
        self.scope = scope
        self.name = name
        #: how much there is, by what it is
        self.used: list[int] = [0] * COUNTED
        #: as ``NAMES`` has them
        self.limits: list[int] = _NO_LIMITS
        #: what connections counted that are gone
        self.traffic = Traffic()
        #: its user was deleted, and nobody has come with that name since
        self.is_deleted = False
        #: None without a rate
        self.messages: Bucket | None = None
        self.bytes: Bucket | None = None
        # When the log told of each limit last; made when it does.
        self._told_at = _NO_REPORTS

    def limit_of(self, what: int) -> int:
        """One of its limits."""
        return self.limits[what]

    def is_reached(self, what: int) -> bool:
        """Whether there is as much as may be, or more."""
        return 0 <= self.limits[what] <= self.used[what]

    def add(self, what: int, count: int) -> None:
        """There are so many more, or fewer."""
        self.used[what] += count

    @property
    def has_rate(self) -> bool:
        """Whether it is limited how fast may be published."""
        return self.messages is not None or self.bytes is not None

    def is_idle(self, now: int) -> bool:
        """Whether forgetting it would make no difference."""
        if self.limits is not _NO_LIMITS:
            for bucket in (self.messages, self.bytes):
                if bucket is not None and not bucket.is_full(now):
                    return False
        return not any(self.used)

    def set_limits(self, limits: list[int], now: int) -> None:
        """Other limits hold from now on."""
        self.limits = limits
        self.messages = _bucket(self.messages, limits[MESSAGE_RATE], now)
        self.bytes = _bucket(self.bytes, limits[BYTE_RATE], now)

    def charge(self, messages: int, size: int, now: int) -> None:
        """So many messages, and bytes, have come."""
        if self.messages is not None:
            self.messages.take(messages, now)
        if self.bytes is not None:
            self.bytes.take(size, now)

    def wait(self, now: int) -> int:
        """Milliseconds until more may come."""
        wait = 0 if self.messages is None else self.messages.wait(now)
        if self.bytes is not None:
            wait = max(wait, self.bytes.wait(now))
        return wait

    def may_tell(self, what: int, now: int) -> bool:
        """Whether the log may be told of a limit; from now on it was."""
        if self._told_at is _NO_REPORTS:
            self._told_at = [-LOG_INTERVAL] * len(NAMES)
        if now - self._told_at[what] < LOG_INTERVAL:
            return False
        self._told_at[what] = now
        return True


def _bucket(bucket: Bucket | None, rate: int, now: int) -> Bucket | None:
    if rate < 0:
        return None
    if bucket is None:
        return Bucket(rate, now)
    bucket.set_rate(rate, now)
    return bucket


class Quotas:
    """The accounts of one broker. ``clock`` is in milliseconds and never set.

    An account whose name is empty is that of all clients without credentials; defaults do not hold
    for it.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        #: what was refused, by whose limit and which
        self.refusals: dict[tuple[str, int], int] = {}
        #: times that a client waited for a rate
        self.waits = 0
        #: told whose limits have changed; an empty name stands for all of a kind
        self.changed: Callable[[str, str], None] = lambda scope, name: None
        self._accounts: dict[tuple[str, str], Account] = {}
        self._defaults: dict[str, list[int]] = {}
        self._own: dict[tuple[str, str], dict[str, int]] = {}
        self._tidied_at = 0

    # Limits

    def set_defaults(self, scope: str, limits: Mapping[str, int]) -> None:
        """The limits of those that have no others."""
        self._defaults[scope] = _numbers(_NO_LIMITS, limits)
        for account in self._accounts.values():
            if account.scope == scope:
                self._apply(account)
        self.changed(scope, "")

    def set_limits(self, scope: str, name: str, limits: Mapping[str, int] | None) -> None:
        """The limits of one, in place of those it had; None: it has none of its own."""
        if limits:
            self._own[(scope, name)] = dict(limits)
        elif (scope, name) in self._own:
            del self._own[(scope, name)]
        account = self._accounts.get((scope, name))
        if account is not None:
            self._apply(account)
        self.changed(scope, name)

    def forget(self, scope: str, name: str) -> None:
        """It is deleted, and everything that counted for it: another of its name begins anew."""
        self._own.pop((scope, name), None)
        self._accounts.pop((scope, name), None)

    def deleted(self, scope: str, name: str) -> None:
        """It is deleted; what is left of it counts until it is gone."""
        account = self._accounts.get((scope, name))
        if account is not None:
            account.is_deleted = True

    def limits(self, scope: str, name: str) -> dict[str, int]:
        """The limits of its own that one has."""
        return dict(self._own.get((scope, name), {}))

    def own_limits(self, scope: str) -> list[tuple[str, dict[str, int]]]:
        """All of a kind that have limits of their own, in no order."""
        return [(key[1], limits) for key, limits in self._own.items() if key[0] == scope]

    def _apply(self, account: Account) -> None:
        limits = _NO_LIMITS
        if account.name:
            limits = self._defaults.get(account.scope, _NO_LIMITS)
        own = self._own.get((account.scope, account.name))
        if own is not None:
            limits = _numbers(limits, own)
        account.set_limits(limits, self._clock())

    # Accounts

    def account(self, scope: str, name: str) -> Account:
        """That of a user, virtual host or listener."""
        found = self._accounts.get((scope, name))
        if found is None:
            found = self._accounts[(scope, name)] = Account(scope, name)
            self._apply(found)
        found.is_deleted = False
        return found

    def accounts(self) -> list[Account]:
        """Those that there are."""
        return list(self._accounts.values())

    def tick(self) -> None:
        """About once a second: forget users of whom nothing is left. What they have counted is
        kept, as a counter must not go back."""
        now = self._clock()
        if now - self._tidied_at < TIDY_INTERVAL:
            return
        self._tidied_at = now
        gone: list[tuple[str, str]] = []
        for key, account in list(self._accounts.items()):
            if account.scope == USER and account.is_idle(now):
                if account.is_deleted or not account.traffic.is_any():
                    del self._accounts[key]
                else:
                    gone.append(key)
        for key in gone[: max(len(gone) - MOST_GONE, 0)]:
            del self._accounts[key]

    def require(self, accounts: Iterable[Account], what: int) -> None:
        """Raise QuotaExceeded unless each of them may have one more. The smallest limit is said."""
        reached: Account | None = None
        for account in accounts:
            if account.is_reached(what) and (
                reached is None or account.limits[what] < reached.limits[what]
            ):
                reached = account
        if reached is not None:
            raise self.refused(reached, what)

    def refused(self, account: Account, what: int) -> QuotaExceeded:
        """The refusal of something beyond a limit, which is counted, and logged now and again."""
        place = (account.scope, what)
        self.refusals[place] = self.refusals.get(place, 0) + 1
        error = QuotaExceeded(account.scope, account.name, NAMES[what], account.limits[what])
        if account.may_tell(what, self._clock()):
            logger.warning("%s: more is refused", error)
        return error

    def waited(self, account: Account) -> None:
        """A client of the account has to wait."""
        self.waits += 1
        is_messages = account.messages is not None and account.messages.wait(self._clock()) > 0
        what = MESSAGE_RATE if is_messages else BYTE_RATE
        if account.may_tell(what, self._clock()):
            logger.warning(
                "limit %s (%d) of %s '%s': publishers wait",
                *(NAMES[what], account.limits[what], account.scope, account.name),
            )


def _numbers(defaults: list[int], limits: Mapping[str, int]) -> list[int]:
    found = list(defaults)
    for name, value in limits.items():
        found[_NUMBERS[name]] = value
    return found
