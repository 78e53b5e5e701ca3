"""What a queue does beyond first in, first out: its arguments and the policy that applies to it.

An argument is written ``x-max-length``, its policy key ``max-length``. Where both give a number the
smaller one holds, otherwise the argument does, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trivium.deduplication import DEFAULT_HEADER, DEFAULT_SIZE, MAX_SIZE, Settings
from trivium.delivery import DELIVERY_MODES
from trivium.errors import PreconditionFailed
from trivium.message import HeaderValue

DROP_HEAD: Final = 0
REJECT_PUBLISH: Final = 1
REJECT_PUBLISH_DLX: Final = 2

_OVERFLOW: Final = {
    "drop-head": DROP_HEAD,
    "reject-publish": REJECT_PUBLISH,
    "reject-publish-dlx": REJECT_PUBLISH_DLX,
}

#: Redeliveries before a quorum queue gives a message up (RabbitMQ 4.0).
QUORUM_DELIVERY_LIMIT: Final = 20

#: Largest time that an argument may state, 100 years, so that sums of times stay small.
MAX_MILLISECONDS: Final = 100 * 365 * 24 * 3600 * 1000
MAX_PRIORITY: Final = 255

#: argument without ``x-``: smallest and largest value
_NUMBERS: Final = {
    "message-ttl": (0, MAX_MILLISECONDS),
    "expires": (1, MAX_MILLISECONDS),
    "max-length": (0, 1 << 62),
    "max-length-bytes": (0, 1 << 62),
    "max-priority": (1, MAX_PRIORITY),
    "delivery-limit": (-1, 1 << 31),
    "retry-delay": (1, MAX_MILLISECONDS),
    "retry-delay-max": (1, MAX_MILLISECONDS),
    "cache-size": (1, MAX_SIZE),
    "cache-ttl": (1, MAX_MILLISECONDS),
}
_TEXTS: Final = frozenset(
    {"dead-letter-exchange", "dead-letter-routing-key", "overflow", "queue-type", "storage"}
    | {"delivery", "deduplication-header"}
)
_FLAGS: Final = frozenset({"single-active-consumer", "message-deduplication"})
_QUEUE_TYPES: Final = frozenset({"classic", "quorum"})
_STORAGE: Final = frozenset({"memory", "disk"})

#: Arguments that RabbitMQ has for its own sake and that mean nothing here.
IGNORED: Final = frozenset(
    {
        "queue-mode",
        "queue-version",
        "queue-master-locator",
        "queue-leader-locator",
        "quorum-initial-group-size",
        "quorum-target-group-size",
        "initial-cluster-size",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "dead-letter-strategy",
    }
)

#: Arguments of queues that are honoured, without ``x-``.
KEYS: Final = frozenset(_NUMBERS) | _TEXTS | _FLAGS

#: What a policy for queues may set.
POLICY_KEYS: Final = KEYS - {
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
        self.max_priority = 0
        self.delivery_limit = -1
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


def check_queue_arguments(arguments: Mapping[str, HeaderValue], what: str, durable: bool) -> None:
    """Raise PreconditionFailed for arguments of a queue that cannot be honoured."""
    for name, value in arguments.items():
        if not name.startswith("x-"):
            continue
        key = name[2:]
        if key not in IGNORED:
            check_value(key, value, f"arg '{name}' for {what}")
    if arguments.get("x-queue-type") == "quorum":
        if not durable:
            raise PreconditionFailed(f"invalid property 'non-durable' for {what}")
        if "x-max-priority" in arguments:
            raise PreconditionFailed(f"invalid arg 'x-max-priority' for {what} of type quorum")
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise PreconditionFailed(
            f"invalid arg 'x-dead-letter-routing-key' for {what}: no dead letter exchange"
        )
    if arguments.get("x-overflow") == "reject-publish-dlx" and (
        arguments.get("x-queue-type") == "quorum"
    ):
        raise PreconditionFailed(f"invalid arg 'x-overflow' for {what} of type quorum")


def check_value(key: str, value: HeaderValue, what: str) -> None:
    """Raise PreconditionFailed unless ``value`` may be given for ``key`` (without ``x-``)."""
    bounds = _NUMBERS.get(key)
    if bounds is not None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise PreconditionFailed(f"invalid {what}: a number is needed")
        if not bounds[0] <= value <= bounds[1]:
            raise PreconditionFailed(f"invalid {what}: {value} is not in {bounds[0]}..{bounds[1]}")
    elif key in _TEXTS:
        if not isinstance(value, str):
            raise PreconditionFailed(f"invalid {what}: text is needed")
        allowed: frozenset[str] | None = None
        if key == "overflow":
            allowed = frozenset(_OVERFLOW)
        elif key == "delivery":
            allowed = frozenset(DELIVERY_MODES)
        elif key == "queue-type":
            if value == "stream":
                raise PreconditionFailed(f"invalid {what}: a stream is not declared as a queue")
            allowed = _QUEUE_TYPES | {"stream"}
        elif key == "storage":
            allowed = _STORAGE
        if allowed is not None and value not in allowed:
            raise PreconditionFailed(f"invalid {what}: {value!r} is not one of {sorted(allowed)}")
    elif key in _FLAGS:
        if not isinstance(value, bool):
            raise PreconditionFailed(f"invalid {what}: true or false is needed")
    else:
        raise PreconditionFailed(f"invalid {what}: it is not supported")


def settings_of(
    arguments: Mapping[str, HeaderValue], policy: Mapping[str, HeaderValue], delivery: int = -1
) -> QueueSettings:
    """The values in force for a queue with these (checked) arguments under this policy.

    ``delivery`` is the broker's default mode, -1 for none.
    """
    found = QueueSettings()
    found.message_ttl = _number("message-ttl", arguments, policy, -1)
    found.expires = _number("expires", arguments, policy, -1)
    found.max_length = _number("max-length", arguments, policy, -1)
    found.max_length_bytes = _number("max-length-bytes", arguments, policy, -1)
    found.max_priority = _number("max-priority", arguments, policy, 0)
    found.retry_delay = _number("retry-delay", arguments, policy, -1)
    found.retry_delay_max = _number("retry-delay-max", arguments, policy, MAX_MILLISECONDS)
    is_quorum = arguments.get("x-queue-type") == "quorum"
    found.delivery_limit = _number("delivery-limit", arguments, policy, -1)
    if is_quorum and "x-delivery-limit" not in arguments and "delivery-limit" not in policy:
        found.delivery_limit = QUORUM_DELIVERY_LIMIT
    found.dead_letter_exchange = _text("dead-letter-exchange", arguments, policy)
    found.dead_letter_routing_key = _text("dead-letter-routing-key", arguments, policy)
    found.overflow = _OVERFLOW.get(_text("overflow", arguments, policy) or "", DROP_HEAD)
    found.delivery = DELIVERY_MODES.get(_text("delivery", arguments, policy) or "", delivery)
    found.deduplication = Settings(
        arguments.get("x-message-deduplication", policy.get("message-deduplication")) is True,
        _text("deduplication-header", arguments, policy) or DEFAULT_HEADER,
        _number("cache-size", arguments, policy, DEFAULT_SIZE),
        _number("cache-ttl", arguments, policy, -1),
    )
    found.single_active_consumer = arguments.get("x-single-active-consumer") is True
    return found


def _number(
    key: str,
    arguments: Mapping[str, HeaderValue],
    policy: Mapping[str, HeaderValue],
    default: int,
) -> int:
    own = arguments.get("x-" + key)
    given = policy.get(key)
    if isinstance(own, int) and isinstance(given, int):
        return min(own, given)
    if isinstance(own, int):
        return own
    return given if isinstance(given, int) else default


def _text(
    key: str, arguments: Mapping[str, HeaderValue], policy: Mapping[str, HeaderValue]
) -> str | None:
    own = arguments.get("x-" + key, policy.get(key))
    return own if isinstance(own, str) else None
