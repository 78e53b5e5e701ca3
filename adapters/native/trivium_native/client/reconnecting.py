"""How the clients connect again: what may be repeated, how long they wait between attempts."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from trivium_native.client.url import Target
from trivium_native.wire.errors import (
    ConnectionFailed,
    NativeError,
    NotVerified,
    TimedOut,
    TryLater,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Each wait is at most so many times the one before it.
_FACTOR: Final = 2.0

#: Programs with one seed, and those that were forked, do not come back at the same moment.
_RANDOM: Final = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Reconnect:
    """How a client connects again once its connection is lost. Times are in seconds.

    Before attempt *n* it waits a random time of at most ``first`` times 2 to the power of *n*, and
    of at most ``longest``. After ``limit`` without a connection it gives up; None is never.
    """

    first: float = 0.1
    longest: float = 10.0
    limit: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.longest or (self.limit is not None and self.limit < 0):
            raise ValueError("of first, longest and limit one is out of range")

    def waits(self) -> Iterator[float]:
        """How long to wait before each attempt; without an end."""
        longest = self.first
        while True:
            yield _RANDOM.uniform(0, longest)
            longest = min(longest * _FACTOR, self.longest)


@dataclass(frozen=True, slots=True)
class Persistence:
    """Whether a client connects again, and who is told; the same for both clients."""

    policy: Reconnect | None
    on_connected: Callable[[Target], None] | None = None
    on_disconnected: Callable[[NativeError], None] | None = None
    #: seconds for which the first connection is tried again
    retry: float = 0.0

    @classmethod
    def of(
        cls,
        reconnect: Reconnect | bool,
        on_connected: Callable[[Target], None] | None,
        on_disconnected: Callable[[NativeError], None] | None,
        retry: float,
    ) -> Persistence:
        """What ``connect`` is given. Raises ValueError for something else as ``reconnect``, and for
        a ``retry`` that is no time.
        """
        if not retry >= 0:
            raise ValueError("retry is not a number of seconds")
        if isinstance(reconnect, bool):
            policy = Reconnect() if reconnect else None
        elif isinstance(reconnect, Reconnect):
            policy = reconnect
        else:
            raise ValueError("reconnect is neither a Reconnect nor True or False")
        return cls(policy, on_connected, on_disconnected, retry)

    def first_waits(self) -> Iterator[float]:
        """How long to wait before each further attempt at the first connection."""
        return (self.policy or Reconnect()).waits()

    def connected(self, place: Target) -> None:
        """There is a connection."""
        _tell(self.on_connected, place)

    def disconnected(self, error: NativeError) -> None:
        """It was lost."""
        _tell(self.on_disconnected, error)


def _tell(callback: Callable[[T], None] | None, what: T) -> None:
    """Call what the program wants to be called. Its faults are no reason not to go on."""
    if callback is not None:
        try:
            callback(what)
        except Exception:
            logger.exception("a callback of a client failed")


def shares(places: Sequence[Target]) -> Iterator[tuple[Target, float]]:
    """Places to connect to, and for each what part it may take of the time that is left then."""
    for index, place in enumerate(places):
        yield place, 1 / (len(places) - index)


def may_pass(error: NativeError) -> bool:
    """Whether an attempt that failed so may succeed later: the network, or a broker that stops."""
    if isinstance(error, NotVerified):
        return False
    return isinstance(error, ConnectionFailed | TimedOut | TryLater)
