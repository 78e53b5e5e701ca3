"""Which messages belong to a trace, and the context by which they do (W3C Trace Context).

The context is a header of the message, ``traceparent``, where every protocol has its headers: it is
stored, passed on and translated with the others. What the broker adds to a trace begins with the
publish of a message; the header names that from then on.
"""

from __future__ import annotations

from math import log
from random import Random
from typing import Final

from mypy_extensions import i64, mypyc_attr

from trivium.messages.message import FRESH, SAMPLED, UNKNOWN, UNSAMPLED, Message

#: Not that of the module, which belongs to the program that has a broker inside and may seed it.
random = Random().random

#: What a client does with a delivery.
ACKNOWLEDGED: Final = "ack"
REJECTED_BY_CLIENT: Final = "reject"
REQUEUED: Final = "requeue"

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_MARK: Final = TRACEPARENT.encode()

#: Of ``traceparent`` in version 0: its length, and where its parts are (W3C Trace Context, 3.2.2).
_SIZE: Final = 55
_SAMPLED_FLAG: Final = 1

#: Characters of ``tracestate`` that should be passed on at least (3.3.1.5); spans have none that is
#: longer.
_MAX_STATE: Final = 512

#: So many messages that the next one to be sampled never comes.
_NEVER: Final[i64] = 1 << 62
#: Bytes of property bytes that are remembered to have no context.
_MAX_REMEMBERED: Final = 4096


class TraceContext:
    """The trace that a message belongs to, and the span that it comes from."""

    def __init__(self, trace_id: bytes, span_id: bytes, is_sampled: bool, state: str = "") -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.is_sampled = is_sampled
        #: ``tracestate`` as it came
        self.state = state

    def header(self) -> str:
        """``traceparent``."""
        flags = "01" if self.is_sampled else "00"
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{flags}"


def parse_traceparent(text: str) -> TraceContext | None:
    """The context that a ``traceparent`` names; None for what is none (3.2.2.2 to 3.2.2.4)."""
    if len(text) < _SIZE or (len(text) > _SIZE and (text[:2] == "00" or text[_SIZE] != "-")):
        return None
    version, trace_id, span_id, flags = text[:2], text[3:35], text[36:52], text[53:55]
    if text[2] != "-" or text[35] != "-" or text[52] != "-":
        return None
    digits = version + trace_id + span_id + flags
    if not digits.isascii() or not digits.isalnum() or digits != digits.lower():
        return None
    try:
        trace, span = bytes.fromhex(trace_id), bytes.fromhex(span_id)
        bytes.fromhex(version + flags)
    except ValueError:
        return None
    if version == "ff" or not any(trace) or not any(span):
        return None
    return TraceContext(trace, span, int(flags, 16) & _SAMPLED_FLAG != 0)


def context_of(message: Message) -> TraceContext | None:
    """The context of a message; None where it has none, or what is none."""
    properties = message.properties()
    found = _text(properties.header(TRACEPARENT))
    context = None if found is None else parse_traceparent(found)
    if context is not None:
        state = _text(properties.header(TRACESTATE)) or ""
        context.state = state if len(state) <= _MAX_STATE else ""
    return context


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return value if isinstance(value, str) else None


@mypyc_attr(allow_interpreted_subclasses=True)
class Span:
    """What is under way."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Tracer:
    """Chooses messages, and is told of those it has chosen.

    ``ratio`` is the share of messages that begin a trace. With ``follows`` a message that comes
    with a context is chosen if and only if that is sampled.
    """

    def __init__(self, ratio: float, follows: bool) -> None:
        self._is_all = ratio >= 1
        # By it the logarithm of what is drawn tells how many are not chosen; 0 where none is.
        self._scale = 1 / log(1.0 - ratio) if 0 < ratio < 1 else 0.0
        self._follows = follows
        # Messages up to the next one that is chosen, with it.
        self._left: i64 = self._next()
        # The last property bytes that had no context: publishers repeat them.
        self._plain = b""

    def samples(self, message: Message) -> bool:
        """Whether to follow a message that is published; asked again it is no."""
        if message.traced != FRESH:
            return False
        header = message.header
        if len(header) and self._follows and self.may_have_context(header):
            context = context_of(message)
            if context is not None:
                message.traced = SAMPLED if context.is_sampled else UNSAMPLED
                return context.is_sampled
        left = self._left - 1
        self._left = left
        if left > 0:
            message.traced = UNSAMPLED
            return False
        self._left = self._next()
        message.traced = SAMPLED
        return True

    def passes(self, count: int) -> bool:
        """Whether none of the next ``count`` messages, which have no property bytes, is to be asked
        for; they are counted then."""
        left = self._left - count
        if left <= 0:
            return False
        self._left = left
        return True

    def room(self) -> int:
        """How many messages without property bytes may come before one is to be asked for."""
        return self._left - 1

    def follow(self, messages: list[Message], vhost: str) -> list[Span] | None:
        """``begin`` for those messages of a run to be followed. They have the same property
        bytes."""
        header = messages[0].header
        if len(header) and self.may_have_context(header):
            return [self.begin(each, vhost) for each in messages if self.samples(each)]
        count: i64 = len(messages)
        left = self._left
        if left > count:
            self._left = left - count
            return None
        spans: list[Span] = []
        while left <= count:
            message = messages[left - 1]
            message.traced = SAMPLED
            spans.append(self.begin(message, vhost))
            left += self._next()
        self._left = left - count
        return spans

    def has(self, message: Message) -> bool:
        """Whether a message is followed, as its publishing or its header says."""
        traced = message.traced
        if traced == UNKNOWN:
            traced = UNSAMPLED
            header = message.header
            if len(header) and self.may_have_context(header):
                context = context_of(message)
                if context is not None and context.is_sampled:
                    traced = SAMPLED
            message.traced = traced
        return traced == SAMPLED

    def may_have_context(self, header: bytes) -> bool:
        """Whether there may be a context in property bytes; False: there is none."""
        if header == self._plain:
            return False
        if header.find(_MARK) >= 0:
            return True
        if len(header) <= _MAX_REMEMBERED:
            self._plain = header
        return False

    def _next(self) -> i64:
        """How many messages up to the next one that is chosen, with it."""
        if self._is_all:
            return 1
        if self._scale == 0:
            return _NEVER
        return i64(int(log(1.0 - random()) * self._scale)) + 1

    def begin(self, message: Message, vhost: str) -> Span:
        """A chosen message is about to be published: give it its context."""
        raise NotImplementedError

    def published(self, span: Span, result: int) -> None:
        """It was, with this result of ``VirtualHost.publish``."""
        raise NotImplementedError

    def delivered(
        self,
        message: Message,
        queue: str,
        is_redelivered: bool,
        connection: object,
        entry: object,
    ) -> None:
        """A chosen message leaves for a client, who is to settle ``entry`` if there is one."""
        raise NotImplementedError

    def settled(self, entry: object, message: Message, queue: str, how: str) -> None:
        """Something was done with an entry: by the client if it was delivered before."""
        raise NotImplementedError
