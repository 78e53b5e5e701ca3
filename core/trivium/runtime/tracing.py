"""What the broker adds to a trace: spans of the publish, the store, the delivery and the settling
of messages that belong to it, by OpenTelemetry's conventions for messaging.

A message that is published takes the span of its publish as its context with it, so that what its
consumer does comes under that, and what the broker does with it later too, also after a restart.
Spans are made as the bytes that a collector gets and given to a sink, which must not wait.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from time import time_ns
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from trivium.messages.message import Message, codec_of
from trivium.messages.tracing import (
    TRACEPARENT,
    UNSAMPLED,
    Span,
    TraceContext,
    Tracer,
    context_of,
)
from trivium.observability.api import ApiRequest
from trivium.observability.otlp import (
    INTERNAL,
    SERVER,
    encode_span,
    key_of,
    named,
    text_attribute,
    write_number,
    write_text,
)
from trivium.queues.sub_queues import QueueEntry
from trivium.routing.exchanges import REJECTED, UNROUTABLE
from trivium.runtime.adapter import Connection
from trivium.storage.base import DurabilityWaiter

if TYPE_CHECKING:
    from trivium.host import Host

#: Sets of attributes that are remembered; emptied when full.
_MAX_PARTS: Final = 1024
#: Deliveries that are remembered until they are settled; of more the oldest are forgotten.
_MAX_HELD: Final = 8192
#: Contexts of messages that are remembered, as many as deliveries, and bytes of properties that may
#: have one; emptied when full.
_MAX_KNOWN: Final = 8192
_MAX_HEADER: Final = 512
#: Random bytes that are fetched together.
_RANDOM: Final = 4096
#: Characters of an attribute.
_MAX_TEXT: Final = 256
#: of attributes in a span
_ATTRIBUTE: Final = 9

_VHOST: Final[bytes] = key_of("messaging.trivium.vhost")
_KEY: Final[bytes] = key_of("messaging.trivium.routing_key")
_REDELIVERED: Final[bytes] = key_of("messaging.trivium.redelivered")
_WAITED: Final[bytes] = key_of("messaging.trivium.waited_ms")
_BODY_SIZE: Final[bytes] = key_of("messaging.message.body.size")
_MESSAGE_ID: Final[bytes] = key_of("messaging.message.id")
_CONVERSATION_ID: Final[bytes] = key_of("messaging.message.conversation_id")
_PORT: Final[bytes] = key_of("network.peer.port")

#: What is done -> kind of span, ``messaging.operation.type`` ("" where the conventions have none).
_OPERATIONS: Final[dict[str, tuple[int, str]]] = {
    "publish": (SERVER, "send"),
    "store": (INTERNAL, ""),
    "deliver": (SERVER, "receive"),
    "ack": (SERVER, "settle"),
    "reject": (SERVER, "settle"),
    "requeue": (SERVER, "settle"),
}


class _Publish(Span):
    """A publish that is under way, or waits for the disk."""

    def __init__(self, context: TraceContext, parent: bytes, parts: bytes, exchange: str) -> None:
        self.context = context
        self.parent = parent
        self.parts = parts
        self.exchange = exchange
        self.begin_ns = time_ns()
        #: when it had its places, and the write batch that these wait for
        self.placed_ns = 0
        self.write_batch = 0


class _Waiting(DurabilityWaiter):
    """Ends publishes when the disk has them."""

    def __init__(self, tracer: MessageTracer) -> None:
        self.publishes: deque[_Publish] = deque()
        self._tracer = tracer

    def write_batch_durable(self, write_batch: int) -> None:
        publishes = self.publishes
        now = time_ns()
        while publishes and publishes[0].write_batch <= write_batch:
            publish = publishes.popleft()
            self._tracer.stored(publish, now)
            self._tracer.end(publish, now, "")


class _Known:
    """What is known of a message by its property bytes."""

    def __init__(self, context: TraceContext, identifiers: bytes) -> None:
        self.context = context
        #: attributes of its spans
        self.identifiers = identifiers


class _Template:
    """Property bytes as a publisher gives them to one message after the other.

    What they have with a context in them is the same but for that, which has always as many bytes.
    """

    def __init__(self, protocol: int, given: bytes, identifiers: bytes, drawn: bytes) -> None:
        self.protocol = protocol
        self.given = given
        #: attributes of spans
        self.identifiers = identifiers
        # Drawn, so that nothing else in them is the same.
        any_ = TraceContext(drawn[:16], drawn[16:], True).header()
        header = codec_of(protocol).with_header(given, TRACEPARENT, any_)
        self.takes_context = len(header) > 0
        #: what is around the digits of trace and span, and the hyphen between them
        self.before, _, self.behind = header.partition(any_[3:-3].encode())


class _Last:
    """What the last span of an operation had in common with others."""

    def __init__(self) -> None:
        self.destination = ""
        #: of the client; -1: there was none
        self.number: i64 = -1
        self.parts = b""


class _Held:
    """A delivery that is to be settled."""

    def __init__(self, queue: str, offset: i64) -> None:
        self.queue = queue
        self.offset = offset


class MessageTracer(Tracer):
    """That of one broker; ``sink`` gets its spans."""

    def __init__(
        self, broker: Host, ratio: float, follows: bool, sink: Callable[[bytes], None]
    ) -> None:
        super().__init__(ratio, follows)
        self._broker = broker
        self._sink = sink
        self._waiting = _Waiting(self)
        self._held: dict[int, _Held] = {}
        self._known: dict[bytes, _Known] = {}
        self._parts: dict[tuple[str, str, int], bytes] = {}
        # Those that were used last.
        self._last = {operation: _Last() for operation in _OPERATIONS}
        # That of the last message that was followed.
        self._template: _Template | None = None
        self._random = b""
        self._digits = b""
        self._random_at: i64 = 0

    # Publishing

    def begin(self, message: Message, vhost: str) -> Span:
        given = message.header
        parent = None
        if len(given) and self.may_have_context(given):
            parent = context_of(message)
        if parent is None:
            trace_id, trace_digits, state = self._draw(16), self._drawn_digits(16), ""
        else:
            trace_id, trace_digits = parent.trace_id, parent.trace_id.hex().encode()
            state = parent.state
        context = TraceContext(trace_id, self._draw(8), True, state)
        span_digits = self._drawn_digits(8)
        exchange = message.address.exchange or "amq.default"
        template = self._template_of(message, given)
        identifiers = template.identifiers
        writer = BytesWriter()
        writer.write(self._common("publish", exchange, self._broker.events.serving))
        write_text(writer, _VHOST, vhost.encode())
        write_text(writer, _KEY, _cut(message.address.key))
        write_number(writer, _BODY_SIZE, message.size)
        writer.write(identifiers)
        if template.takes_context:
            header = template.before + trace_digits + b"-" + span_digits + template.behind
            message.set_header(header)
            self._remember(header, _Known(context, identifiers))
        else:
            # Nobody would find it again.
            message.traced = UNSAMPLED
        before = b"" if parent is None else parent.span_id
        return _Publish(context, before, writer.getvalue(), exchange)

    def published(self, span: Span, result: int) -> None:
        assert isinstance(span, _Publish)
        now = time_ns()
        if result > self._broker.storage.durable:
            span.placed_ns = now
            span.write_batch = self._broker.storage.wait(self._waiting)
            self._waiting.publishes.append(span)
            return
        error = "rejected" if result == REJECTED else ""
        self.end(span, now, "unroutable" if result == UNROUTABLE else error)

    def end(self, span: _Publish, now_ns: int, error: str) -> None:
        """A publish is over, at this time."""
        context = span.context
        self._sink(
            encode_span(
                context.trace_id,
                context.span_id,
                span.parent,
                True,
                context.state,
                span.begin_ns,
                now_ns,
                span.parts,
                error,
            )
        )

    def stored(self, span: _Publish, now_ns: int) -> None:
        """What a publish brought is on the disk."""
        parts = self._common("store", span.exchange, None)
        self._add(span.context, span.placed_ns, now_ns, parts, False)

    # Delivery

    def delivered(
        self,
        message: Message,
        queue: str,
        is_redelivered: bool,
        connection: object,
        entry: object,
    ) -> None:
        known = self._known_of(message)
        if known is None:
            return
        broker = self._broker
        client = broker.events.serving if connection is None else connection
        writer = BytesWriter()
        writer.write(self._common("deliver", queue, client))
        write_number(writer, _BODY_SIZE, message.size)
        writer.write(known.identifiers)
        if is_redelivered:
            write_number(writer, _REDELIVERED, 1)
        write_number(writer, _WAITED, max(broker.now_ms - message.timestamp, 0))
        now = time_ns()
        self._add(known.context, now, now, writer.getvalue(), False)
        if isinstance(entry, QueueEntry):
            held = self._held
            if len(held) >= _MAX_HELD:
                del held[next(iter(held))]
            held[id(entry)] = _Held(queue, entry.offset)

    def settled(self, entry: object, message: Message, queue: str, how: str) -> None:
        number = id(entry)
        held = self._held.get(number)
        if held is None:
            return
        del self._held[number]
        if not isinstance(entry, QueueEntry) or held.offset != entry.offset or held.queue != queue:
            return
        known = self._known_of(message)
        if known is not None:
            parts = self._common(how, queue, self._broker.events.serving)
            now = time_ns()
            self._add(known.context, now, now, parts, False)

    def _known_of(self, message: Message) -> _Known | None:
        """What is known of a message; None where it has no context."""
        header = message.header
        known = self._known.get(header)
        if known is None:
            context = context_of(message)
            if context is not None:
                known = _Known(context, _identifiers_of(message))
                self._remember(header, known)
        return known

    def _template_of(self, message: Message, given: bytes) -> _Template:
        template = self._template
        if template is None or template.protocol != message.protocol or template.given != given:
            identifiers = _identifiers_of(message) if len(given) else b""
            template = self._template = _Template(
                message.protocol, given, identifiers, self._draw(24)
            )
        return template

    def _remember(self, header: bytes, known: _Known) -> None:
        if len(header) <= _MAX_HEADER:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[header] = known

    def _draw(self, size: i64) -> bytes:
        """Random bytes for an identifier."""
        at = self._random_at
        if at + size > len(self._random):
            self._random = os.urandom(_RANDOM)
            self._digits = self._random.hex().encode()
            at = 0
        self._random_at = at + size
        return self._random[at : at + size]

    def _drawn_digits(self, size: i64) -> bytes:
        """What ``_draw`` has given last, as text."""
        end = self._random_at * 2
        return self._digits[end - size * 2 : end]

    def _add(
        self, parent: TraceContext, begin_ns: int, end_ns: int, parts: bytes, is_remote: bool
    ) -> None:
        self._sink(
            encode_span(
                parent.trace_id,
                self._draw(8),
                parent.span_id,
                is_remote,
                parent.state,
                begin_ns,
                end_ns,
                parts,
                "",
            )
        )

    def _common(self, operation: str, destination: str, client: object) -> bytes:
        """What all spans of an operation with a client and a destination have in common."""
        number: i64 = client.number if isinstance(client, Connection) else 0
        last = self._last[operation]
        is_known = number != 0 or client is None
        if is_known and last.number == number and last.destination == destination:
            return last.parts
        key = (operation, destination, int(number))
        parts = self._parts.get(key)
        if parts is not None and is_known:
            last.destination, last.number, last.parts = destination, number, parts
            return parts
        kind, type_ = _OPERATIONS[operation]
        name = destination[:_MAX_TEXT]
        attributes = {
            "messaging.system": "trivium",
            "messaging.operation.name": operation,
            "messaging.operation.type": type_,
            "messaging.destination.name": name,
            **_client_of(client),
        }
        port = attributes.pop("network.peer.port", "")
        parts = named(f"{operation} {name}", kind) + b"".join(
            [text_attribute(_ATTRIBUTE, each, text) for each, text in attributes.items() if text]
        )
        if port.isascii() and port.isdigit():
            writer = BytesWriter()
            write_number(writer, _PORT, int(port))
            parts += writer.getvalue()
        if is_known:
            if len(self._parts) >= _MAX_PARTS:
                self._parts.clear()
            self._parts[key] = parts
        return parts


def _client_of(client: object) -> dict[str, str]:
    if isinstance(client, Connection):
        address, user = client.peer.address, client.identity.name
        protocol = client.peer.listener.config.protocol
        name = client.client_id.decode(errors="replace")
    elif isinstance(client, ApiRequest):
        address, user, protocol, name = client.address, client.identity.name, "http", ""
    else:
        return {}
    return {
        "network.protocol.name": protocol,
        "network.peer.address": address.rpartition(":")[0].strip("[]") or address,
        "network.peer.port": address.rpartition(":")[2],
        "messaging.client.id": name[:_MAX_TEXT],
        "user.name": user[:_MAX_TEXT],
    }


def _identifiers_of(message: Message) -> bytes:
    """The attributes of the identifiers that its publisher gave to a message."""
    properties = message.properties()
    if not properties.message_id and not properties.correlation_id:
        return b""
    writer = BytesWriter()
    if properties.message_id:
        name = properties.message_id[:_MAX_TEXT]
        write_text(writer, _MESSAGE_ID, name.encode(errors="replace"))
    if properties.correlation_id:
        write_text(writer, _CONVERSATION_ID, _cut(properties.correlation_id))
    return writer.getvalue()


def _cut(data: bytes) -> bytes:
    """The beginning of some bytes as text in UTF-8."""
    data = data[:_MAX_TEXT]
    return data if data.isascii() else data.decode(errors="replace").encode()
