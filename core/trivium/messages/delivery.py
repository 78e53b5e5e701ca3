"""Delivery modes by their names, and the headers by which one message chooses how it is treated.

The headers are the same on every protocol (user properties on MQTT 5). Which mode is in force for a
message in a queue is decided by ``QueueSettings.mode_of``; docs/delivery.md has the rules.
"""

from __future__ import annotations

from typing import Final

from trivium.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, HeaderValue

#: The delivery mode that the publisher insists on, whatever queues and policies say.
DELIVERY_HEADER: Final = "x-delivery"

#: Milliseconds until a message is routed (AMQP, MQTT 5; a native message has a field for it).
DELAY_HEADER: Final = "x-delay"

#: Longest delay, 100 years, so that sums of times stay small.
MAX_DELAY: Final = 100 * 365 * 24 * 3600 * 1000

#: The words of every configuration, argument, policy and header.
DELIVERY_MODES: Final = {
    "at-most-once": AT_MOST_ONCE,
    "at-least-once": AT_LEAST_ONCE,
    "exactly-once": EXACTLY_ONCE,
}


def delivery_mode(value: HeaderValue) -> int:
    """The delivery mode that a word means; -1 for anything else."""
    return DELIVERY_MODES.get(value, -1) if isinstance(value, str) else -1


def delay_of(value: HeaderValue) -> int:
    """The delay in milliseconds that a value means; -1 for what is none.

    A negative one is that of a message which was delayed already, as AMQP
    consumers see it: whoever passes its headers on does not delay it again.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_DELAY:
        return max(value, 0)
    return -1
