"""What can be set about the native adapter: the section ``[native]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trivium.errors import ConfigError

#: The largest value of each key; the smallest of the first two is 0, of the others 1.
_MOST: Final = {
    "max_message_bytes": 1 << 62,
    "max_heartbeat": 0xFFFF,
    "max_subscriptions": 1 << 20,
    "max_fetches": 1 << 20,
    "max_fetch_bytes": 1 << 30,
    "max_fetch_wait_ms": 3_600_000,
    "max_unconfirmed": 1 << 20,
}
_MAY_BE_NONE: Final = ("max_message_bytes", "max_heartbeat")


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """Limits of one native adapter. Raises ConfigError for a value out of its range."""

    #: bytes of one message's payload, by which the largest frame is measured; 0:
    #: ``max_message_bytes`` of ``[limits]``, which is never exceeded
    max_message_bytes: int = 0
    #: seconds of the longest heartbeat that a client may ask for
    max_heartbeat: int = 3600
    #: subscriptions of one connection
    max_subscriptions: int = 65_536
    #: fetches, and searches for a time, that one connection may have waiting
    max_fetches: int = 1024
    #: bytes of batches in one reply to FETCH, but always one batch
    max_fetch_bytes: int = 16 << 20
    #: milliseconds that a FETCH waits for records at most
    max_fetch_wait_ms: int = 60_000
    #: publishes that may wait for the disk before their client is not read any more
    max_unconfirmed: int = 65_536

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            least = 0 if name in _MAY_BE_NONE else 1
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be from {least} to {most}")
