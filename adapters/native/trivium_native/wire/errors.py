"""Errors of the native protocol, by who is to blame; each carries the code of an ERROR frame.

::

    NativeError
     +-- ConnectionFailed        the network: no connection, or it was lost
     |    +-- NotVerified        it is not known whether the broker is the right one
     |    +-- Interrupted        it was lost before the answer, and is made again
     +-- RemoteProtocolError     the other side broke the protocol
     +-- ProtocolError           1xx: this side broke it; the connection is closed
     |    +-- Malformed, FrameTooLarge, UnsupportedVersion, UnexpectedFrame, TimedOut
     +-- IdentityError           2xx: who the client is, or what it may do
     |    +-- AuthenticationFailed, AccessRefused
     +-- RequestError            3xx: the request cannot be done; the connection goes on
     |    +-- InvalidArgument, NotFound, PreconditionFailed, ResourceLocked, OffsetOutOfRange,
     |        StreamChanged, Unroutable, MessageTooLarge, UnknownDelivery, Fenced, OutOfSequence,
     |        NotSupported, StaleMember
     +-- TryLater                4xx: nothing is wrong with the request; it may work later
     |    +-- Rejected, Blocked, ShuttingDown, TooManyRequests, QuotaExceeded, ClosedByOperator
     +-- BrokerError             5xx: the broker failed
"""

from __future__ import annotations

from typing import ClassVar


class NativeError(Exception):
    """Base of all errors of the native protocol. ``detail`` has what the broker said beyond the
    text, such as ``first_offset``."""

    code: ClassVar[int] = 500

    def __init__(self, text: str, detail: dict[str, object] | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.detail: dict[str, object] = {} if detail is None else detail


class ConnectionFailed(NativeError, ConnectionError):
    """No connection, or it was lost before the reply came. What was asked may have been done."""

    code = 0


class NotVerified(ConnectionFailed):
    """The certificate of who answers does not verify, or is another host's. Nothing was sent."""


class Interrupted(ConnectionFailed):
    """The connection was lost before the answer came, and the request cannot be repeated safely.

    What was asked may have been done. The client connects again: later requests are made.
    """


class RemoteProtocolError(NativeError):
    """The other side sent what the protocol does not allow."""

    code = 0


class ProtocolError(NativeError):
    """This side broke the protocol, and the connection was closed for it."""

    code = 100


class Malformed(ProtocolError):
    """A frame or a body that cannot be read."""

    code = 100


class FrameTooLarge(ProtocolError):
    """A frame beyond the negotiated length."""

    code = 101


class UnsupportedVersion(ProtocolError):
    """No version of the protocol that both sides know."""

    code = 102


class UnexpectedFrame(ProtocolError):
    """A frame that this side may not send, or not now."""

    code = 103


class TimedOut(ProtocolError):
    """No sign of life in time."""

    code = 104


class IdentityError(NativeError):
    """Who the client is, or what it may do."""

    code = 200


class AuthenticationFailed(IdentityError):
    """Wrong credentials, or none where some are needed."""

    code = 200


class AccessRefused(IdentityError):
    """A reserved name, or something that this user may not do."""

    code = 201


class RequestError(NativeError):
    """The request cannot be done; the connection goes on."""

    code = 300


class InvalidArgument(RequestError):
    """A field that is missing, unknown, of a wrong type or out of range."""

    code = 300


class NotFound(RequestError):
    """No such exchange, queue, stream, partition, group or virtual host."""

    code = 301


class PreconditionFailed(RequestError):
    """It exists with other properties, or is in use or not empty."""

    code = 302


class ResourceLocked(RequestError):
    """It belongs exclusively to another connection."""

    code = 303


class OffsetOutOfRange(RequestError):
    """``detail`` has ``first_offset`` and ``high_watermark``: what there is."""

    code = 304

    @classmethod
    def of(cls, offset: int, first_offset: int, high_watermark: int) -> OffsetOutOfRange:
        """The error for an offset that is not from one to the other."""
        return cls(
            f"offset {offset} is not from {first_offset} to {high_watermark}",
            {"first_offset": first_offset, "high_watermark": high_watermark},
        )


class StreamChanged(RequestError):
    """The stream is another one of that name; ``detail`` has its ``incarnation``."""

    code = 305


class Unroutable(RequestError):
    """A mandatory message that no binding wanted; ``detail`` has ``indexes`` within the request."""

    code = 306


class MessageTooLarge(RequestError):
    """A payload beyond the broker's limit."""

    code = 307


class UnknownDelivery(RequestError):
    """No subscription, or no unsettled delivery, with that number."""

    code = 308


class Fenced(RequestError):
    """Someone newer has taken over the producer or the group; whoever gets this must stop."""

    code = 309


class OutOfSequence(RequestError):
    """A gap before the request's sequence number; ``detail`` has ``expected``."""

    code = 310


class NotSupported(RequestError):
    """Reserved for a later version."""

    code = 311


class StaleMember(RequestError):
    """Not a member of the group (any more), or not the owner of the partition; join again."""

    code = 312


class TryLater(NativeError):
    """Nothing is wrong with the request; it may work later."""

    code = 400


class Rejected(TryLater):
    """A destination refused a message; ``detail`` has ``indexes`` within the request."""

    code = 400


class Blocked(TryLater):
    """Publishing is paused: memory or disk passed its limit."""

    code = 401


class ShuttingDown(TryLater):
    """The broker stops."""

    code = 402


class TooManyRequests(TryLater):
    """A limit on what one connection may have open."""

    code = 403


class QuotaExceeded(TryLater):
    """The user, virtual host or listener has as many as it may; ``detail`` has ``limit``, the
    limit's name, and ``most``, which it is."""

    code = 404


class ClosedByOperator(TryLater):
    """An operator has closed the connection, for the reason that the text says."""

    code = 405


class BrokerError(NativeError):
    """The broker failed."""

    code = 500


_CLASSES: tuple[type[NativeError], ...] = (
    Malformed,
    FrameTooLarge,
    UnsupportedVersion,
    UnexpectedFrame,
    TimedOut,
    AuthenticationFailed,
    AccessRefused,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    OffsetOutOfRange,
    StreamChanged,
    Unroutable,
    MessageTooLarge,
    UnknownDelivery,
    Fenced,
    OutOfSequence,
    NotSupported,
    StaleMember,
    Rejected,
    Blocked,
    ShuttingDown,
    TooManyRequests,
    QuotaExceeded,
    ClosedByOperator,
    BrokerError,
)
_BY_CODE: dict[int, type[NativeError]] = {kind.code: kind for kind in _CLASSES}
_BY_BLAME: dict[int, type[NativeError]] = {
    1: ProtocolError,
    2: IdentityError,
    3: RequestError,
    4: TryLater,
}


def error_of(code: int, text: str, detail: dict[str, object] | None = None) -> NativeError:
    """The exception for an ERROR frame; an unknown code becomes its blame's base class."""
    kind = _BY_CODE.get(code)
    if kind is None:
        kind = _BY_BLAME.get(code // 100, BrokerError)
    return kind(text, detail)
