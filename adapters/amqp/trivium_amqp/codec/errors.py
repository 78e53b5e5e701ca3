"""Errors that a client causes, in the two classes that AMQP 0-9-1 has for them (1.2, 2.2.4).

::

    AmqpError
     +-- ChannelException      closes the channel (channel.close)
     +-- ConnectionException   closes the connection (connection.close)
          +-- FramingError     the byte stream cannot be followed any more

Both carry the reply code of the protocol. The text starts with the code's name, as RabbitMQ's does:
clients' test suites match it.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Final

from trivium.common.equivalence import show
from trivium.common.quotas import USER, VHOST
from trivium.errors import (
    BOOLEAN,
    INTEGER,
    TEXT,
    AccessRefused,
    ArgumentAbsent,
    NameNeeded,
    NotAName,
    NotFound,
    PreconditionFailed,
    QueueLocked,
    QuotaExceeded,
    ResourceLocked,
    TopologyError,
    UnfitArgument,
    UnfitProperty,
    WrongType,
)

REPLY_SUCCESS: Final = 200
NO_ROUTE: Final = 312
CONNECTION_FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

_NAMES: Final = {
    CONNECTION_FORCED: "CONNECTION_FORCED",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

#: The method that is being carried out is to blame, whichever it is.
CARRIED_OUT: Final = -1

#: What RabbitMQ calls the types that arguments are to have.
_EXPECTED: Final = {TEXT: "longstr", BOOLEAN: "bool", INTEGER: "integer"}

#: Integers below it, and from its negative on, are of 32 bits.
_INT32: Final = 1 << 31

#: A reply text is a short string.
_MAX_TEXT_BYTES: Final = 255


class AmqpError(Exception):
    """``code`` is the reply code; ``str()`` is the reply text without the code's name."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    def reply_text(self) -> str:
        """The reply text as it is sent: at most 255 bytes of UTF-8."""
        return reply_text(self.code, self.text)


class ChannelException(AmqpError):
    """Closes the channel; the connection lives on."""


class ConnectionException(AmqpError):
    """Closes the connection.

    ``method`` is what connection.close names, 0 for none; by default what is being carried out.
    """

    def __init__(self, code: int, text: str, method: int = CARRIED_OUT) -> None:
        super().__init__(code, text)
        self.method = method


class FramingError(ConnectionException):
    """A frame is malformed: what follows in the stream has no meaning (4.2.3)."""

    def __init__(self, text: str, method: int = CARRIED_OUT) -> None:
        super().__init__(FRAME_ERROR, text, method)


def reply_text(code: int, text: str) -> str:
    """``CODE_NAME - text``, cut to the size of a short string."""
    full = f"{_NAMES[code]} - {text}"
    return full.encode()[:_MAX_TEXT_BYTES].decode(errors="ignore")


def channel_exception(error: TopologyError) -> ChannelException:
    """What a refusal by the core means in this protocol."""
    code = PRECONDITION_FAILED
    if isinstance(error, NotFound):
        code = NOT_FOUND
    elif isinstance(error, AccessRefused):
        code = ACCESS_REFUSED
    elif isinstance(error, ResourceLocked):
        code = RESOURCE_LOCKED
    else:
        assert isinstance(error, (PreconditionFailed, QuotaExceeded))
    return ChannelException(code, _words(error))


def connection_refusal(error: QuotaExceeded, user: str, vhost: str) -> ConnectionException:
    """RabbitMQ's refusal of a connection beyond a limit."""
    text = f"connection refused: {error}"
    if error.scope == VHOST:
        text = (
            f"access to vhost '{vhost}' refused for user '{user}':"
            f" connection limit ({error.most}) is reached"
        )
    elif error.scope == USER:
        text = (
            f"connection refused for user '{user}': user connection limit ({error.most}) is reached"
        )
    return ConnectionException(NOT_ALLOWED, text)


def channel_refusal(error: QuotaExceeded) -> ConnectionException:
    """RabbitMQ's refusal of a channel beyond a limit, which costs the connection there too."""
    return ConnectionException(
        NOT_ALLOWED,
        f"number of channels opened for {error.scope} '{error.name}' has reached the"
        f" maximum allowed {error.scope} limit of ({error.most})",
    )


def _queue_type(kind: str) -> str:
    """A type of queue as RabbitMQ names it in its refusals."""
    return f"rabbit_{kind}_queue"


def unfit_argument(argument: str, what: str, kind: str) -> str:
    """RabbitMQ's text where ``what``, a queue of this type, does not have the argument."""
    return f"invalid arg '{argument}' for {what} of queue type {_queue_type(kind)}"


def type_name(value: object) -> str:
    """The name by which RabbitMQ's refusals call the type of a value of a field table."""
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -_INT32 <= value < _INT32 else "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, Decimal):
        return "decimal"
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, bytes):
        return "binary"
    if isinstance(value, datetime):
        return "timestamp"
    return "array" if isinstance(value, list) else "table"


def _of_type(error: ArgumentAbsent) -> str:
    """The one value that there is, and none, in the order of RabbitMQ's text."""
    there = f"the value '{show(error.value)}' of type '{type_name(error.value)}'"
    if error.is_current:
        return f"received none but current is {there}"
    return f"received {there} but current is none"


def _words(error: TopologyError) -> str:
    """RabbitMQ's text for a refusal where clients know one, else the core's."""
    if isinstance(error, UnfitArgument):
        return unfit_argument(error.argument, error.what, error.kind)
    if isinstance(error, WrongType):
        # Clients know the text with its quotes.
        expected = _EXPECTED[error.expected]
        return f'invalid {error.what}: "expected {expected}, got {type_name(error.value)}"'
    if isinstance(error, NotAName):
        return f"invalid type '{type_name(error.value)}' for arg '{error.argument}' in {error.what}"
    if isinstance(error, ArgumentAbsent):
        return f"inequivalent arg '{error.argument}' for {error.what}: {_of_type(error)}"
    if isinstance(error, UnfitProperty):
        name = "exclusive-owner" if error.name == "exclusive" else error.name
        return f"invalid property '{name}' for {error.what}"
    if isinstance(error, QuotaExceeded) and error.wanted:
        return (
            f"cannot declare queue '{error.wanted}':"
            f" queue limit in {error.scope} '{error.name}' ({error.most}) is reached"
        )
    if isinstance(error, NameNeeded):
        return f"Cannot declare a server-named queue for type {_queue_type(error.kind)}"
    if isinstance(error, QueueLocked):
        return (
            f"cannot obtain exclusive access to locked {error.what}."
            " It could be originally declared on another connection or the exclusive"
            " property value does not match that of the original declaration."
        )
    return str(error)
