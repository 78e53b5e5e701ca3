"""What a queue or stream of each type may be declared with, and what each argument may hold.

The core states the arguments that mean something to it. An adapter adds those that its clients give
and that mean nothing here (``register_arguments``): they are checked, stored and compared all the
same. What nobody registered is ignored.
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
from trivium.idempotence.deduplication import MAX_SIZE
from trivium.messages.delivery import DELIVERY_MODES
from trivium.messages.message import HeaderValue

#: The argument that names a queue's type, and the types. A stream is declared as a queue by AMQP
#: clients.
QUEUE_TYPE: Final = "x-queue-type"
CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"

OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")
AT_LEAST_ONCE: Final = "at-least-once"

#: Largest time that an argument may state, 100 years, so that sums of times stay small.
MAX_MILLISECONDS: Final = 100 * 365 * 24 * 3600 * 1000
MAX_PRIORITY: Final = 255
#: Longest text, in UTF-8, of an argument or in a policy: names and keys of AMQP have no more.
MAX_TEXT_BYTES: Final = 255
_MAX_LENGTH: Final = 1 << 62


class Rule:
    """What an argument may hold: values of one type, within ``bounds`` or out of ``choices``."""

    def __init__(
        self,
        type_: str,
        bounds: tuple[int, int] | None = None,
        choices: Collection[HeaderValue] | None = None,
    ) -> None:
        #: INTEGER, TEXT or BOOLEAN
        self.type = type_
        self.bounds = bounds
        self.choices = choices

    def check(self, key: str, value: HeaderValue, what: str) -> None:
        """Raise PreconditionFailed unless ``value`` may be given for ``key`` (without ``x-``)."""
        if self.type == INTEGER:
            check_number(value, self.bounds, what)
        elif not isinstance(value, str if self.type == TEXT else bool):
            raise WrongType(what, self.type, value)
        if isinstance(value, str) and len(value.encode()) > MAX_TEXT_BYTES:
            raise PreconditionFailed(f"invalid {what}: it is longer than {MAX_TEXT_BYTES} bytes")
        if self.choices is not None and value not in self.choices:
            text = f"unsupported {key.replace('-', ' ')} '{value}'"
            raise PreconditionFailed(f'invalid {what}: "{text}"')


def check_number(value: HeaderValue, bounds: tuple[int, int] | None, what: str) -> None:
    """Raise PreconditionFailed unless ``value`` is an integer, and within the bounds."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongType(what, INTEGER, value)
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        raise PreconditionFailed(f"invalid {what}: {value} is not in {bounds[0]}..{bounds[1]}")


_TIME: Final = Rule(INTEGER, (1, MAX_MILLISECONDS))
_TIME_OR_NONE: Final = Rule(INTEGER, (0, MAX_MILLISECONDS))
_LENGTH: Final = Rule(INTEGER, (0, _MAX_LENGTH))
_TEXT: Final = Rule(TEXT)
_FLAG: Final = Rule(BOOLEAN)

#: Arguments of queues of every type, without ``x-``.
_COMMON: Final = {
    "message-ttl": _TIME_OR_NONE,
    "expires": _TIME,
    "max-length": _LENGTH,
    "max-length-bytes": _LENGTH,
    "delivery-limit": Rule(INTEGER, (-1, 1 << 31)),
    "consumer-timeout": _TIME_OR_NONE,
    "retry-delay": _TIME,
    "retry-delay-max": _TIME,
    "cache-size": Rule(INTEGER, (1, MAX_SIZE)),
    "cache-ttl": _TIME,
    "dead-letter-exchange": _TEXT,
    "dead-letter-routing-key": _TEXT,
    "deduplication-header": _TEXT,
    "single-active-consumer": _FLAG,
    "message-deduplication": _FLAG,
    "overflow": Rule(TEXT, choices=OVERFLOWS),
    "delivery": Rule(TEXT, choices=DELIVERY_MODES),
    "queue-type": Rule(TEXT, choices=(CLASSIC, QUORUM, STREAM)),
    "storage": Rule(TEXT, choices=("memory", "disk")),
}
_OF_CLASSIC: Final = {"max-priority": Rule(INTEGER, (0, MAX_PRIORITY))}
_OF_QUORUM: Final = {
    "dead-letter-strategy": Rule(TEXT, choices=("at-most-once", AT_LEAST_ONCE)),
}

#: What queues have of their own, without ``x-``; also what a policy's values must be.
QUEUE_RULES: Final[Mapping[str, Rule]] = {**_COMMON, **_OF_CLASSIC, **_OF_QUORUM}

#: Type -> argument -> what it may hold. A queue's arguments are compared when it is declared again.
ARGUMENTS: Final[dict[str, dict[str, Rule]]] = {CLASSIC: {}, QUORUM: {}, STREAM: {}}

#: Arguments that mean something on a queue of some type. A queue of another type is refused when
#: it is declared with them; other arguments are unknown.
KNOWN_ARGUMENTS: Final[set[str]] = set()


def register_arguments(kind: str, rules: Mapping[str, Rule], is_known: bool = True) -> None:
    """Let queues of the type ``kind`` have arguments, named without ``x-``.

    On queues of other types they are refused, or ignored unless ``is_known``.
    """
    named = {f"x-{key}": rule for key, rule in rules.items()}
    ARGUMENTS[kind].update(named)
    if is_known:
        KNOWN_ARGUMENTS.update(named)


register_arguments(CLASSIC, {**_COMMON, **_OF_CLASSIC})
register_arguments(QUORUM, {**_COMMON, **_OF_QUORUM})


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
        value = arguments[QUEUE_TYPE]
        QUEUE_RULES[QUEUE_TYPE[2:]].check(QUEUE_TYPE[2:], value, f"arg '{QUEUE_TYPE}' for {what}")
    kind = queue_type(arguments)
    if kind == STREAM:
        raise PreconditionFailed(f"invalid arg '{QUEUE_TYPE}' for {what}: a stream is no queue")
    check_exchange_name(arguments, "x-dead-letter-exchange", what)
    check_arguments(arguments, what, kind)
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


def check_arguments(arguments: Mapping[str, HeaderValue], what: str, kind: str) -> None:
    """Raise PreconditionFailed for arguments that only queues of other types have, and for values
    that may not be given."""
    rules = ARGUMENTS[kind]
    for name in arguments:
        if name in KNOWN_ARGUMENTS and name not in rules:
            raise UnfitArgument(name, what, kind)
    for name, value in arguments.items():
        if name in rules:
            rules[name].check(name[2:], value, f"arg '{name}' for {what}")


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


def check_strategy(strategy: HeaderValue, overflow: HeaderValue, what: str) -> None:
    """Raise PreconditionFailed where dead letters are to arrive at least once with an ``overflow``
    that gives messages up: the queue could not keep within its limit what nobody takes."""
    if strategy == AT_LEAST_ONCE and overflow not in (None, "reject-publish"):
        raise PreconditionFailed(
            f"invalid {what}: '{AT_LEAST_ONCE}' needs the overflow 'reject-publish'"
        )
