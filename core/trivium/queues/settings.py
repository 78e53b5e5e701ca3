"""What a queue does beyond first in, first out: its arguments and the policy that applies to it.

An argument is written ``x-max-length``, its policy key ``max-length``. Where both give a number the
smaller one holds, and any limit before none; otherwise the argument does, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trivium.common.values import pack
from trivium.idempotence.deduplication import DEFAULT_HEADER, DEFAULT_SIZE, Settings
from trivium.messages.delivery import DELIVERY_MODES
from trivium.messages.message import AT_MOST_ONCE, HeaderValue, Message
from trivium.queues.arguments import (
    AT_LEAST_ONCE,
    MAX_MILLISECONDS,
    MAX_TEXT_BYTES,
    OVERFLOWS,
    QUEUE_RULES,
    QUORUM,
    queue_type,
)

#: What happens to a message that does not fit; the numbers of OVERFLOWS.
DROP_HEAD: Final = 0
REJECT_PUBLISH: Final = 1
REJECT_PUBLISH_DLX: Final = 2

#: Redeliveries before a quorum queue gives a message up (RabbitMQ 4.0).
QUORUM_DELIVERY_LIMIT: Final = 20

#: Doublings of a retry delay; beyond that it stays, so that no number grows without bound.
MAX_DOUBLINGS: Final = 30

#: What a policy for queues may set.
POLICY_KEYS: Final = QUEUE_RULES.keys() - {
    "max-priority",
    "queue-type",
    "storage",
    "single-active-consumer",
}


class QueueSettings:
    """The values in force. Times are milliseconds; -1 means that there is no such limit."""

    def __init__(self) -> None:
        self.message_ttl = -1
        self.expires = -1
        self.max_length = -1
        self.max_length_bytes = -1
        self.overflow = DROP_HEAD
        self.dead_letter_exchange: str | None = None
        self.dead_letter_routing_key: str | None = None
        #: whether who set the policy that names the exchange may not set policies any more
        self.dead_letters_suspended = False
        #: a dead letter stays here until all its destinations have it (at-least-once)
        self.keeps_dead_letters = False
        self.max_priority = 0
        self.delivery_limit = -1
        #: in which a delivery must be acknowledged; 0 for no limit, -1 for the broker's
        self.consumer_timeout = -1
        self.retry_delay = -1
        self.retry_delay_max = MAX_MILLISECONDS
        self.single_active_consumer = False
        #: delivery mode that replaces the message's own; -1 for none
        self.delivery = -1
        self.deduplication = Settings(False, DEFAULT_HEADER, DEFAULT_SIZE, -1)

    @property
    def has_limits(self) -> bool:
        """Whether a publish must look at the length."""
        return self.max_length >= 0 or self.max_length_bytes >= 0

    @property
    def passes_on(self) -> bool:
        """Whether what the queue refuses goes to its dead letter exchange."""
        return self.overflow == REJECT_PUBLISH_DLX and self.dead_letter_exchange is not None

    def mode_of(self, message: Message) -> int:
        """The delivery mode of a message in the queue.

        The message's own when its publisher insists on it; else that of the queue's argument, its
        policy or the broker's default; else the one that the publisher's protocol states.
        """
        return message.mode if self.delivery < 0 or message.insists else self.delivery

    def settles_on_delivery(self, message: Message) -> bool:
        """Whether the message's mode is at-most-once here because someone asked for just that.

        A transient message in a queue without a mode is still its consumer's to acknowledge.
        """
        return (message.insists or self.delivery >= 0) and self.mode_of(message) == AT_MOST_ONCE

    def expiry_of(self, message: Message) -> int:
        """When a message expires in the queue: its own time or by the queue's TTL; 0 for never.

        A delayed message lives from when it is routed.
        """
        if message.deliver_at:
            return 0
        expires = message.expires
        if self.message_ttl >= 0:
            by_queue = message.timestamp + self.message_ttl
            if expires == 0 or by_queue < expires:
                expires = by_queue
        return expires

    def retry_delay_of(self, requeues: int) -> int:
        """Milliseconds before the next try of a message that came back so many times."""
        if self.retry_delay <= 0:
            return 0
        return min(self.retry_delay << min(requeues - 1, MAX_DOUBLINGS), self.retry_delay_max)


#: Arguments of one queue or other that queues share; and settings. Beyond so many of them, or where
#: the values are so long, each queue has its own.
_MOST_SHARED: Final = 1024
_MOST_SHARED_BYTES: Final = 1024

_NO_ARGUMENTS: Final[dict[str, HeaderValue]] = {}
_shared_arguments: Final[dict[bytes, dict[str, HeaderValue]]] = {}
_shared_settings: Final[dict[bytes | int, QueueSettings]] = {}


def shared_arguments(arguments: dict[str, HeaderValue] | None) -> dict[str, HeaderValue]:
    """The same (checked) arguments, as an object that many queues may have: it must not be changed.

    There may be very many queues, and nearly all have the same few arguments.
    """
    if not arguments:
        return _NO_ARGUMENTS
    key = pack(arguments)
    found = _shared_arguments.get(key)
    if found is None:
        found = arguments
        if len(key) <= _MOST_SHARED_BYTES:
            if len(_shared_arguments) >= _MOST_SHARED:
                _shared_arguments.clear()
            _shared_arguments[key] = found
    return found


def settings_of(
    arguments: Mapping[str, HeaderValue],
    policy: Mapping[str, HeaderValue],
    delivery: int = -1,
    is_private: bool = False,
    passes_on: bool = True,
) -> QueueSettings:
    """The values in force for a queue with these (checked) arguments under this policy. They must
    not be changed: other queues may have the same.

    ``delivery`` is the broker's default mode, -1 for none. Where the queue ``is_private`` to an
    adapter, the modes of its messages are up to that. Without ``passes_on`` a dead letter exchange
    of the policy is not in force.
    """
    key: bytes | int
    if arguments or policy:
        key = pack((arguments, policy, delivery, is_private, passes_on))
    else:
        key = -1 if is_private else delivery
    found = _shared_settings.get(key)
    if found is None:
        found = _read(arguments, policy, delivery)
        if is_private:
            found.delivery = -1
        # What a queue was declared with goes before what a policy says.
        found.dead_letters_suspended = not passes_on and "x-dead-letter-exchange" not in arguments
        if isinstance(key, int) or len(key) <= _MOST_SHARED_BYTES:
            if len(_shared_settings) >= _MOST_SHARED:
                _shared_settings.clear()
            _shared_settings[key] = found
    return found


def _read(
    arguments: Mapping[str, HeaderValue], policy: Mapping[str, HeaderValue], delivery: int
) -> QueueSettings:
    found = QueueSettings()
    found.message_ttl = _number("message-ttl", arguments, policy, -1)
    found.expires = _number("expires", arguments, policy, -1)
    found.max_length = _number("max-length", arguments, policy, -1)
    found.max_length_bytes = _number("max-length-bytes", arguments, policy, -1)
    found.max_priority = _number("max-priority", arguments, policy, 0)
    found.retry_delay = _number("retry-delay", arguments, policy, -1)
    found.retry_delay_max = _number("retry-delay-max", arguments, policy, MAX_MILLISECONDS)
    is_quorum = queue_type(arguments) == QUORUM
    found.delivery_limit = _number("delivery-limit", arguments, policy, -1)
    if is_quorum and "x-delivery-limit" not in arguments and "delivery-limit" not in policy:
        found.delivery_limit = QUORUM_DELIVERY_LIMIT
    found.consumer_timeout = _number("consumer-timeout", arguments, policy, -1)
    found.dead_letter_exchange = _text("dead-letter-exchange", arguments, policy)
    found.dead_letter_routing_key = _text("dead-letter-routing-key", arguments, policy)
    found.overflow = OVERFLOWS.index(_text("overflow", arguments, policy) or OVERFLOWS[DROP_HEAD])
    if _text("dead-letter-strategy", arguments, policy) == AT_LEAST_ONCE:
        # Of an argument and a policy that do not go together the one that loses nothing holds.
        found.keeps_dead_letters = True
        found.overflow = REJECT_PUBLISH
    found.delivery = DELIVERY_MODES.get(_text("delivery", arguments, policy) or "", delivery)
    found.deduplication = Settings(
        arguments.get("x-message-deduplication", policy.get("message-deduplication")) is True,
        _text("deduplication-header", arguments, policy) or DEFAULT_HEADER,
        _number("cache-size", arguments, policy, DEFAULT_SIZE),
        _number("cache-ttl", arguments, policy, -1),
    )
    found.single_active_consumer = arguments.get("x-single-active-consumer") is True
    return found


#: Where 0 is no limit.
_ZERO_IS_NONE: Final[frozenset[str]] = frozenset({"consumer-timeout"})


def stricter(key: str, one: int, other: int) -> int:
    """The smaller of two limits for ``key``. A negative one is none (``delivery-limit``; RabbitMQ
    4.0), and so is 0 for some keys: any other holds before it."""
    least = 1 if key in _ZERO_IS_NONE else 0
    return max(one, other) if one < least or other < least else min(one, other)


def _number(
    key: str,
    arguments: Mapping[str, HeaderValue],
    policy: Mapping[str, HeaderValue],
    default: int,
) -> int:
    own = arguments.get("x-" + key)
    given = policy.get(key)
    if isinstance(own, int) and isinstance(given, int):
        return stricter(key, own, given)
    if isinstance(own, int):
        return own
    return given if isinstance(given, int) else default


def _text(
    key: str, arguments: Mapping[str, HeaderValue], policy: Mapping[str, HeaderValue]
) -> str | None:
    own = arguments.get("x-" + key, policy.get(key))
    # A queue from before there was a limit may have a longer one, of which nothing could be made.
    return own if isinstance(own, str) and len(own.encode()) <= MAX_TEXT_BYTES else None
