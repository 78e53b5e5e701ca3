"""Whether a declaration asks for what is there already. The texts are those that clients match."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from trivium.common.values import HeaderValue, same
from trivium.errors import ArgumentAbsent, PreconditionFailed

logger = logging.getLogger(__name__)

#: Names that are told of: clients can make up any number of them.
MAX_TOLD: Final = 100
#: Characters that are told of each.
MAX_TOLD_LENGTH: Final = 255


def require_same(what: str, fields: list[tuple[str, object, object]]) -> None:
    """Raise PreconditionFailed where a field, with its current and received value, differs."""
    for field, current, received in fields:
        if current != received:
            raise _inequivalent(what, field, current, received)


def require_same_arguments(
    what: str,
    current: Mapping[str, HeaderValue],
    received: Mapping[str, HeaderValue],
    names: Collection[str],
) -> None:
    """Raise PreconditionFailed where one of the arguments called ``names`` differs."""
    for name in sorted(name for name in current.keys() | received.keys() if name in names):
        if name not in received:
            raise ArgumentAbsent(name, what, current[name], True)
        if name not in current:
            raise ArgumentAbsent(name, what, received[name], False)
        if not same(current[name], received[name]):
            raise _inequivalent(what, name, current[name], received[name])


class UnknownArguments:
    """Names of arguments that nothing here knows: each is told once in the log, and ignored."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, what: str, arguments: Mapping[str, HeaderValue], known: Collection[str]) -> None:
        """Tell of what is not ``known``."""
        for name in arguments:
            if name in known:
                continue
            told = name[:MAX_TOLD_LENGTH]
            if told not in self._told and len(self._told) < MAX_TOLD:
                self._told.add(told)
                logger.warning("argument %r of %s is unknown and ignored", told, what)


def _inequivalent(what: str, name: str, current: object, received: object) -> PreconditionFailed:
    return PreconditionFailed(
        f"inequivalent arg '{name}' for {what}:"
        f" received '{show(received)}' but current is '{show(current)}'"
    )


def show(value: object) -> str:
    """A value as refusals show it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
