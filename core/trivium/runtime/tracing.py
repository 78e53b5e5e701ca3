"""What the broker adds to a trace: spans of the publish, the store, the delivery and the settling
of messages that belong to it, by OpenTelemetry's conventions for messaging.

A message that is published takes the span of its publish as its context with it, so that what its
consumer does comes under that, and what the broker does with it later too, also after a restart.
Spans are made as the bytes that a collector gets, and wait for whoever sends them.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Final

from librt.random import randint
from librt.strings import BytesWriter, read_i64_le
from librt.time import time
from mypy_extensions import i64

from trivium.messages.message import UNSAMPLED, Address, Message, codec_of
from trivium.messages.tracing import (
    ACKNOWLEDGED,
    REJECTED_BY_CLIENT,
    REQUEUED,
    TRACEPARENT,
    Span,
    TraceContext,
    Tracer,
    context_of,
)
from trivium.observability.otlp import (
    INTERNAL,
    SERVER,
    Spans,
    flags,
    key_of,
    named,
    text_attribute,
    write_number,
    write_text,
)
from trivium.observability.served import ServedRequest
from trivium.queues.sub_queues import QueueEntry
from trivium.routing.exchanges import REJECTED, UNROUTABLE
from trivium.runtime.adapter import Connection
from trivium.storage.base import DurabilityWaiter

if TYPE_CHECKING:
    from trivium.host import Host

#: Sets of attributes that are remembered; emptied when full.
_MAX_PARTS: Final = 1024
#: Deliveries of a message that are remembered until they are settled; of more the oldest are
#: forgotten.
_MAX_HELD: Final = 64
#: Random bytes of the identifiers of a span and a trace, and those that are fetched together.
_DRAWN: Final[i64] = 24
_RANDOM: Final[i64] = 128 * 24
#: The largest identifier of a span that nothing but a collector is told.
_MOST_ID: Final[i64] = (1 << 63) - 1
#: Characters of an attribute.
_MAX_TEXT: Final = 256
#: between the digits of trace and span
_HYPHEN: Final = 0x2D
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


class _Followed(Span):
    """A message that is followed: what its spans have in common, and its publish, which is under
    way or waits for the disk. Identifiers of spans are numbers of 8 bytes, little-endian."""

    def __init__(self, trace_id: bytes, span_id: i64, state: str, identifiers: bytes) -> None:
        self.trace_id = trace_id
        #: that of its publish, and ``tracestate``
        self.span_id = span_id
        self.state = state
        #: attributes of its spans
        self.identifiers = identifiers
        #: deliveries that are to be settled
        self.held: list[_Held] | None = None
        #: the span that its publisher named, 0 for none; attributes of the publish
        self.parent: i64 = 0
        self.parts = b""
        self.exchange = ""
        self.begin_ns: i64 = 0
        #: when it had its places, and the write batch that these wait for
        self.placed_ns: i64 = 0
        self.write_batch = 0


class _Waiting(DurabilityWaiter):
    """Ends publishes when the disk has them."""

    def __init__(self, tracer: MessageTracer) -> None:
        self.publishes: deque[_Followed] = deque()
        self._tracer = tracer

    def write_batch_durable(self, write_batch: int) -> None:
        publishes = self.publishes
        now = _now()
        while publishes and publishes[0].write_batch <= write_batch:
            publish = publishes.popleft()
            self._tracer.stored(publish, now)
            self._tracer.end(publish, now, "")


class _Template:
    """Property bytes as a publisher gives them to one message after the other.

    What they have with a context in them is the same but for that, which has always as many bytes.
    """

    def __init__(self, protocol: int, given: bytes, identifiers: bytes) -> None:
        self.protocol = protocol
        self.given = given
        #: attributes of spans
        self.identifiers = identifiers
        # Drawn, so that nothing else in them is the same.
        any_ = TraceContext(os.urandom(16), os.urandom(8), True).header()
        header = codec_of(protocol).with_header(given, TRACEPARENT, any_)
        self.takes_context = len(header) > 0
        #: what is around the digits of trace and span, and the hyphen between them
        self.before, _, self.behind = header.partition(any_[3:-3].encode())


class _Operation:
    """Spans of one kind, and the fields of the last of them: most often those of the next."""

    def __init__(self, name: str, kind: int, type_: str) -> None:
        self.name = name
        self.kind = kind
        self.type_ = type_
        self.destination = ""
        #: of the client; -1: there was none
        self.number: i64 = -1
        #: what those have in common that have these
        self.known = b""
        #: what the last one was made of, of these and others
        self.common = b""
        self.vhost = ""
        self.address: Address | None = None
        self.size = -1
        self.identifiers = b""
        self.waited = -1
        self.is_redelivered = False
        #: what those have that have all of this
        self.parts = b""


class _Held:
    """A delivery that is to be settled."""

    def __init__(self, queue: str, offset: i64) -> None:
        self.queue = queue
        self.offset = offset


class MessageTracer(Tracer):
    """That of one broker; its spans wait in ``spans``."""

    def __init__(self, broker: Host, ratio: float, follows: bool, spans: Spans) -> None:
        super().__init__(ratio, follows)
        self._broker = broker
        self._spans = spans
        self._waiting = _Waiting(self)
        self._commons: dict[tuple[str, str, int], bytes] = {}
        # With the type that the conventions have for it, "" for none.
        self._publish = _Operation("publish", SERVER, "send")
        self._store = _Operation("store", INTERNAL, "")
        self._deliver = _Operation("deliver", SERVER, "receive")
        self._settlements = {
            how: _Operation(how, SERVER, "settle")
            for how in (ACKNOWLEDGED, REJECTED_BY_CLIENT, REQUEUED)
        }
        # That of the last message that was followed.
        self._template: _Template | None = None
        # Random bytes, their digits, and where the next ones are.
        self._random = b""
        self._digits = b""
        self._random_at: i64 = _RANDOM

    # Publishing

    def begin(self, message: Message, vhost: str) -> Span:
        given = message.header
        parent = None
        if len(given) and self.may_have_context(given):
            parent = context_of(message)
        at = self._random_at
        if at == _RANDOM:
            self._random = os.urandom(_RANDOM)
            self._digits = self._random.hex().encode()
            at = 0
        self._random_at = at + _DRAWN
        span_id = read_i64_le(self._random, at)
        span_digits = self._digits[2 * at : 2 * at + 16]
        template = self._template_of(message, given)
        if parent is None:
            trace_id = self._random[at + 8 : at + _DRAWN]
            trace_digits = self._digits[2 * at + 16 : 2 * (at + _DRAWN)]
            followed = _Followed(trace_id, span_id, "", template.identifiers)
        else:
            trace_digits = parent.trace_id.hex().encode()
            followed = _Followed(parent.trace_id, span_id, parent.state, template.identifiers)
            followed.parent = read_i64_le(parent.span_id, 0)
        followed.exchange = exchange = message.address.exchange or "amq.default"
        followed.parts = self._parts_of_publish(message, vhost, exchange, template.identifiers)
        if template.takes_context:
            writer = BytesWriter()
            writer.write(template.before)
            writer.write(trace_digits)
            writer.append(_HYPHEN)
            writer.write(span_digits)
            writer.write(template.behind)
            message.set_header(writer.getvalue())
            message.trace = followed
        else:
            # Nobody would find it again.
            message.traced = UNSAMPLED
        followed.begin_ns = _now()
        return followed

    def _parts_of_publish(
        self, message: Message, vhost: str, exchange: str, identifiers: bytes
    ) -> bytes:
        last = self._publish
        address, size = message.address, message.size
        common = self._common(last, exchange, self._broker.events.serving)
        if (
            common is not last.common
            or address is not last.address
            or size != last.size
            or identifiers != last.identifiers
            or vhost != last.vhost
        ):
            last.common, last.address, last.size = common, address, size
            last.identifiers, last.vhost = identifiers, vhost
            writer = BytesWriter()
            writer.write(common)
            write_text(writer, _VHOST, vhost.encode())
            write_text(writer, _KEY, _cut(address.key))
            write_number(writer, _BODY_SIZE, size)
            writer.write(identifiers)
            last.parts = writer.getvalue()
        return last.parts

    def published(self, span: Span, result: int) -> None:
        assert isinstance(span, _Followed)
        now = _now()
        if result > self._broker.storage.durable:
            span.placed_ns = now
            span.write_batch = self._broker.storage.wait(self._waiting)
            self._waiting.publishes.append(span)
            return
        error = "rejected" if result == REJECTED else ""
        self.end(span, now, "unroutable" if result == UNROUTABLE else error)

    def end(self, span: _Followed, now_ns: i64, error: str) -> None:
        """A publish is over, at this time."""
        self._spans.add(
            span.trace_id,
            span.span_id,
            span.parent,
            span.begin_ns,
            now_ns,
            span.parts,
            span.state,
            error,
        )

    def stored(self, span: _Followed, now_ns: i64) -> None:
        """What a publish brought is on the disk."""
        parts = self._common(self._store, span.exchange, None)
        self._add(span, span.placed_ns, now_ns, parts)

    # Delivery

    def delivered(
        self,
        message: Message,
        queue: str,
        is_redelivered: bool,
        connection: object,
        entry: object,
    ) -> None:
        followed = _followed(message)
        if followed is None:
            return
        broker = self._broker
        client = broker.events.serving if connection is None else connection
        last = self._deliver
        common = self._common(last, queue, client)
        size, identifiers = message.size, followed.identifiers
        waited = max(broker.now_ms - message.timestamp, 0)
        if (
            common is not last.common
            or size != last.size
            or waited != last.waited
            or is_redelivered != last.is_redelivered
            or identifiers != last.identifiers
        ):
            last.common, last.size, last.identifiers = common, size, identifiers
            last.waited, last.is_redelivered = waited, is_redelivered
            writer = BytesWriter()
            writer.write(common)
            write_number(writer, _BODY_SIZE, size)
            writer.write(identifiers)
            write_number(writer, _WAITED, waited)
            if is_redelivered:
                write_number(writer, _REDELIVERED, 1)
            last.parts = writer.getvalue()
        now = _now()
        self._add(followed, now, now, last.parts)
        if isinstance(entry, QueueEntry):
            if followed.held is None:
                followed.held = []
            held = followed.held
            if len(held) >= _MAX_HELD:
                del held[0]
            held.append(_Held(queue, entry.offset))

    def settled(self, entry: object, message: Message, queue: str, how: str) -> None:
        followed = message.trace
        if not isinstance(followed, _Followed) or not isinstance(entry, QueueEntry):
            return
        held = followed.held
        if held is None:
            return
        for index, each in enumerate(held):
            if each.offset == entry.offset and each.queue == queue:
                if len(held) == 1:
                    followed.held = None
                else:
                    del held[index]
                client = self._broker.events.serving
                parts = self._common(self._settlements[how], queue, client)
                now = _now()
                self._add(followed, now, now, parts)
                return

    def _template_of(self, message: Message, given: bytes) -> _Template:
        template = self._template
        if template is None or template.protocol != message.protocol or template.given != given:
            identifiers = _identifiers_of(message) if len(given) else b""
            template = self._template = _Template(message.protocol, given, identifiers)
        return template

    def _add(self, parent: _Followed, begin_ns: i64, end_ns: i64, parts: bytes) -> None:
        self._spans.add(
            parent.trace_id,
            randint(1, _MOST_ID),
            parent.span_id,
            begin_ns,
            end_ns,
            parts,
            parent.state,
            "",
        )

    def _common(self, operation: _Operation, destination: str, client: object) -> bytes:
        """What all spans of an operation with a client and a destination have in common."""
        number: i64 = client.number if isinstance(client, Connection) else 0
        is_known = number != 0 or client is None
        if is_known and operation.number == number and operation.destination == destination:
            return operation.known
        key = (operation.name, destination, int(number))
        found = self._commons.get(key) if is_known else None
        if found is None:
            found = _fields_of(operation, destination, client)
            if is_known:
                if len(self._commons) >= _MAX_PARTS:
                    self._commons.clear()
                self._commons[key] = found
        if is_known:
            operation.destination, operation.number, operation.known = destination, number, found
        return found


def _now() -> i64:
    """Nanoseconds since the epoch, to a quarter of a microsecond."""
    return i64(int(time() * 1e9))


def _followed(message: Message) -> _Followed | None:
    """What is known of a message that is followed; None where it has no context."""
    followed = message.trace
    if isinstance(followed, _Followed):
        return followed
    context = context_of(message)
    if context is None:
        return None
    span_id = read_i64_le(context.span_id, 0)
    found = _Followed(context.trace_id, span_id, context.state, _identifiers_of(message))
    message.trace = found
    return found


def _fields_of(operation: _Operation, destination: str, client: object) -> bytes:
    name = destination[:_MAX_TEXT]
    attributes = {
        "messaging.system": "trivium",
        "messaging.operation.name": operation.name,
        "messaging.operation.type": operation.type_,
        "messaging.destination.name": name,
        **_client_of(client),
    }
    port = attributes.pop("network.peer.port", "")
    fields = named(f"{operation.name} {name}", operation.kind)
    # The span of a publish is a child of whatever its publisher names, or of none.
    fields += flags(operation.name == "publish")
    fields += b"".join(
        [text_attribute(_ATTRIBUTE, each, text) for each, text in attributes.items() if text]
    )
    if port.isascii() and port.isdigit():
        writer = BytesWriter()
        write_number(writer, _PORT, int(port))
        fields += writer.getvalue()
    return fields


def _client_of(client: object) -> dict[str, str]:
    if isinstance(client, Connection):
        address, user = client.peer.address, client.identity.name
        protocol = client.peer.listener.config.protocol
        name = client.client_id.decode(errors="replace")
    elif isinstance(client, ServedRequest):
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
