"""What a queue does beyond first in, first out: its arguments and the policy that applies to it.

An argument is written ``x-max-length``, its policy key ``max-length``. Where both give a number the
smaller one holds, otherwise the argument does, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from trivium.errors import (
    BOOLEAN,
    INTEGER,
    TEXT,
    NotAName,
    PreconditionFailed,
    UnfitArgument,
    UnfitProperty,
    WrongType,
)
from trivium.idempotence.deduplication import DEFAULT_HEADER, DEFAULT_SIZE, MAX_SIZE, Settings
from trivium.messages.delivery import DELIVERY_MODES
from trivium.messages.message import AT_MOST_ONCE, HeaderValue, Message

DROP_HEAD: Final = 0
REJECT_PUBLISH: Final = 1
REJECT_PUBLISH_DLX: Final = 2

#: The argument that names a queue's type, and the types. A stream is declared as a queue by AMQP
#: clients.
QUEUE_TYPE: Final = "x-queue-type"
CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"

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

#: Doublings of a retry delay; beyond that it stays, so that no number grows without bound.
MAX_DOUBLINGS: Final = 30

#: Largest number of replicas that a declaration may ask for; there is one whatever it says.
MAX_NODES: Final = 1 << 31

#: argument without ``x-``: smallest and largest value
_NUMBERS: Final = {
    "message-ttl": (0, MAX_MILLISECONDS),
    "expires": (1, MAX_MILLISECONDS),
    "max-length": (0, 1 << 62),
    "max-length-bytes": (0, 1 << 62),
    "max-priority": (0, MAX_PRIORITY),
    "delivery-limit": (-1, 1 << 31),
    "consumer-timeout": (0, MAX_MILLISECONDS),
    "retry-delay": (1, MAX_MILLISECONDS),
    "retry-delay-max": (1, MAX_MILLISECONDS),
    "cache-size": (1, MAX_SIZE),
    "cache-ttl": (1, MAX_MILLISECONDS),
    "quorum-initial-group-size": (1, MAX_NODES),
    "quorum-target-group-size": (1, MAX_NODES),
    "initial-cluster-size": (1, MAX_NODES),
    "max-in-memory-length": (0, 1 << 62),
    "max-in-memory-bytes": (0, 1 << 62),
}
_TEXTS: Final = frozenset({"dead-letter-exchange", "dead-letter-routing-key"}) | {
    "deduplication-header",
    "queue-master-locator",
}
_FLAGS: Final = frozenset({"single-active-consumer", "message-deduplication"})
_AT_LEAST_ONCE: Final = "at-least-once"
#: argument without ``x-``: the values that there are
_CHOICES: Final[dict[str, Collection[HeaderValue]]] = {
    "overflow": _OVERFLOW,
    "delivery": DELIVERY_MODES,
    "queue-type": (CLASSIC, QUORUM, STREAM),
    "storage": ("memory", "disk"),
    "queue-mode": ("default", "lazy"),
    "queue-version": (1, 2),
    "queue-leader-locator": ("client-local", "balanced", "random", "least-leaders"),
    "dead-letter-strategy": ("at-most-once", _AT_LEAST_ONCE),
}

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
    }
)


def _arguments(keys: frozenset[str]) -> frozenset[str]:
    return frozenset([f"x-{key}" for key in keys])


#: Arguments of queues that are honoured, without ``x-``.
KEYS: Final = (frozenset(_NUMBERS) | _TEXTS | _FLAGS | frozenset(_CHOICES)) - IGNORED

#: What queues of one type alone have; a declaration of another type is refused, as in RabbitMQ.
_ONLY: Final = {
    CLASSIC: frozenset({"max-priority", "queue-mode", "queue-version", "queue-master-locator"}),
    QUORUM: frozenset({"dead-letter-strategy", "quorum-initial-group-size"})
    | {"max-in-memory-length", "max-in-memory-bytes"},
    STREAM: frozenset({"max-age", "initial-cluster-size", "stream-max-segment-size-bytes"})
    | {"compression", "cleanup-policy", "tombstone-retention"},
}
_QUEUE_KEYS: Final = KEYS | IGNORED
_STREAM_KEYS: Final = (
    _ONLY[STREAM]
    | {"max-length", "max-length-bytes", "queue-type"}
    | {
        "stream-filter-size-bytes",
        "queue-leader-locator",
    }
)

#: Arguments that a queue of a type, or a stream, can have. They are compared when it is declared
#: again.
ARGUMENTS: Final = {
    CLASSIC: _arguments(_QUEUE_KEYS - _ONLY[QUORUM] - _ONLY[STREAM]),
    QUORUM: _arguments(_QUEUE_KEYS - _ONLY[CLASSIC] - _ONLY[STREAM]),
    STREAM: _arguments(_STREAM_KEYS),
}
#: Arguments that mean something on a queue of any type. Others are unknown, and so is the size of a
#: stream's filter on anything else: it is younger than the dialect.
KNOWN_ARGUMENTS: Final = (ARGUMENTS[CLASSIC] | ARGUMENTS[QUORUM] | ARGUMENTS[STREAM]) - {
    "x-stream-filter-size-bytes"
}

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


def queue_type(arguments: Mapping[str, HeaderValue]) -> str:
    """The type of a queue that was declared with these (checked) arguments."""
    kind = arguments.get(QUEUE_TYPE, CLASSIC)
    assert isinstance(kind, str)
    return kind


def check_queue_arguments(
    arguments: Mapping[str, HeaderValue],
    what: str,
    durable: bool,
    exclusive: bool = False,
    auto_delete: bool = False,
) -> None:
    """Raise PreconditionFailed for arguments of a queue that cannot be honoured.

    What is unknown is no matter: it is for others.
    """
    if QUEUE_TYPE in arguments:
        check_value(QUEUE_TYPE[2:], arguments[QUEUE_TYPE], f"arg '{QUEUE_TYPE}' for {what}")
    kind = queue_type(arguments)
    if kind == STREAM:
        raise PreconditionFailed(f"invalid arg '{QUEUE_TYPE}' for {what}: a stream is no queue")
    check_exchange_name(arguments, "x-dead-letter-exchange", what)
    check_names(arguments, what, kind)
    for name, value in arguments.items():
        if name in ARGUMENTS[kind]:
            check_value(name[2:], value, f"arg '{name}' for {what}")
    check_strategy(
        arguments.get("x-dead-letter-strategy"),
        arguments.get("x-overflow"),
        f"arg 'x-dead-letter-strategy' for {what}",
    )
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise PreconditionFailed(
            f"invalid arg 'x-dead-letter-routing-key' for {what}: no dead letter exchange"
        )
    if kind == QUORUM:
        check_shared(what, durable, exclusive, auto_delete)


def check_names(arguments: Mapping[str, HeaderValue], what: str, kind: str) -> None:
    """Raise PreconditionFailed for arguments that only queues of other types have."""
    for name in arguments:
        if name in KNOWN_ARGUMENTS and name not in ARGUMENTS[kind]:
            raise UnfitArgument(name, what, kind)


def check_exchange_name(arguments: Mapping[str, HeaderValue], name: str, what: str) -> None:
    """Raise PreconditionFailed where the argument ``name`` is there and no name of an exchange."""
    if name in arguments and not isinstance(arguments[name], str):
        raise NotAName(name, what, arguments[name])


def check_shared(what: str, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    """Raise PreconditionFailed for a quorum queue or stream that would go with its clients."""
    if auto_delete:
        raise UnfitProperty("auto-delete", what)
    if exclusive:
        raise UnfitProperty("exclusive", what)
    if not durable:
        raise UnfitProperty("non-durable", what)


def check_value(key: str, value: HeaderValue, what: str) -> None:
    """Raise PreconditionFailed unless ``value`` may be given for ``key`` (without ``x-``)."""
    choices = _CHOICES.get(key)
    bounds = _NUMBERS.get(key)
    if bounds is not None or key == "queue-version":
        check_number(value, bounds, what)
    elif key in _TEXTS or choices is not None:
        if not isinstance(value, str):
            raise WrongType(what, TEXT, value)
    elif key in _FLAGS:
        if not isinstance(value, bool):
            raise WrongType(what, BOOLEAN, value)
    else:
        raise PreconditionFailed(f"invalid {what}: it is not supported")
    if choices is not None and value not in choices:
        text = f"unsupported {key.replace('-', ' ')} '{value}'"
        raise PreconditionFailed(f'invalid {what}: "{text}"')


def check_number(value: HeaderValue, bounds: tuple[int, int] | None, what: str) -> None:
    """Raise PreconditionFailed unless ``value`` is an integer, and within the bounds."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongType(what, INTEGER, value)
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        raise PreconditionFailed(f"invalid {what}: {value} is not in {bounds[0]}..{bounds[1]}")


def check_strategy(strategy: HeaderValue, overflow: HeaderValue, what: str) -> None:
    """Raise PreconditionFailed where dead letters are to arrive at least once with an ``overflow``
    that gives messages up: the queue could not keep within its limit what nobody takes."""
    if strategy == _AT_LEAST_ONCE and overflow not in (None, "reject-publish"):
        raise PreconditionFailed(
            f"invalid {what}: '{_AT_LEAST_ONCE}' needs the overflow 'reject-publish'"
        )


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
    is_quorum = queue_type(arguments) == QUORUM
    found.delivery_limit = _number("delivery-limit", arguments, policy, -1)
    if is_quorum and "x-delivery-limit" not in arguments and "delivery-limit" not in policy:
        found.delivery_limit = QUORUM_DELIVERY_LIMIT
    found.consumer_timeout = _number("consumer-timeout", arguments, policy, -1)
    found.dead_letter_exchange = _text("dead-letter-exchange", arguments, policy)
    found.dead_letter_routing_key = _text("dead-letter-routing-key", arguments, policy)
    found.overflow = _OVERFLOW.get(_text("overflow", arguments, policy) or "", DROP_HEAD)
    if _text("dead-letter-strategy", arguments, policy) == _AT_LEAST_ONCE:
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
