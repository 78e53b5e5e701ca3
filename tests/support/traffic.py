"""What was counted of messages."""

from __future__ import annotations

from trivium.common.counters import Traffic

NAMES = (
    *("published", "confirmed", "returned", "unroutable", "delivered", "delivered_settled"),
    *("redelivered", "got", "got_settled", "acknowledged"),
)


def counted(traffic: Traffic) -> dict[str, int]:
    """What is not 0, except for bytes."""
    return {name: getattr(traffic, name) for name in NAMES if getattr(traffic, name)}
