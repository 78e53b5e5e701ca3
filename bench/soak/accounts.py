"""What one kind of client was promised, and what came of it."""

from __future__ import annotations

from typing import Any, Final

from trivium.cli.measuring import Ledger, Numbers

_SEPARATOR: Final = b":"
#: Runs of missing numbers that a report names.
_NAMED: Final = 5


class Account:
    """Messages of one publisher, by number, and where each must come once.

    Of a message that is *acknowledged* at least one copy must come, of one that is *withdrawn* none
    may. Any other may come, and need not. A copy must say that it may be one, and where
    ``is_exact`` there must be none at all.
    """

    def __init__(self, name: str, *, is_exact: bool = False) -> None:
        self.name = name
        self.is_exact = is_exact
        self.sent = 0
        self.acknowledged = Numbers()
        self.withdrawn = Numbers()
        self.ledger = Ledger()
        self.unknown = 0

    def begin(self) -> int:
        """The number of the next message."""
        self.sent += 1
        return self.sent - 1

    def payload(self, number: int) -> bytes:
        """What a message has to say so that it is known again."""
        return self.name.encode() + _SEPARATOR + b"%d" % number

    def take(self, payload: bytes, *, is_redelivered: bool = False) -> None:
        """A message has come, and is settled."""
        number = self.number_of(payload)
        if number is None:
            self.unknown += 1
        else:
            self.ledger.add(number, is_redelivered)

    def number_of(self, payload: bytes) -> int | None:
        """The number of a message of this publisher; None for what it has not sent."""
        name, _, number = payload.rpartition(_SEPARATOR)
        if name != self.name.encode() or not number.isdigit() or int(number) >= self.sent:
            return None
        return int(number)

    @property
    def is_complete(self) -> bool:
        """Whether all has come that must."""
        return len(self.ledger.lost(self.acknowledged)) == 0

    def report(self) -> dict[str, Any]:
        """The figures; those of a load by :mod:`trivium.cli.loads` have the same names."""
        lost = self.ledger.lost(self.acknowledged)
        came = self.ledger.seen
        flagged = self.ledger.flagged
        return {
            "published": self.sent,
            "acknowledged": len(self.acknowledged),
            "delivered": len(came) + flagged + self.ledger.unflagged,
            "lost": len(lost),
            "duplicates": self.ledger.unflagged + (flagged if self.is_exact else 0),
            "flagged_duplicates": 0 if self.is_exact else flagged,
            "ghosts": len(came) - len(came.without(self.withdrawn)),
            "unknown": self.unknown,
            "gaps": {self.name: lost.first_ranges(_NAMED)} if len(lost) else {},
        }
