"""What the broker adds to a trace: spans of the publish, the store, the delivery and the settling
of messages that belong to it, by OpenTelemetry's conventions for messaging.

A message that is published takes the span of its publish as its context with it, so that what its
consumer does comes under that, and what the broker does with it later too, also after a restart.
Spans are made as the bytes that a collector gets and given to a sink, which must not wait.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

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
    PRODUCER,
    SERVER,
    encode_span,
    named,
    number_attribute,
    text_attribute,
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
#: Characters of an attribute.
_MAX_TEXT: Final = 256
#: of attributes in a span
_ATTRIBUTE: Final = 9

#: What is done -> kind of span, ``messaging.operation.type`` ("" where the conventions have none).
_OPERATIONS: Final[dict[str, tuple[int, str]]] = {
    "publish": (SERVER, "send"),
    "store": (INTERNAL, ""),
    "deliver": (PRODUCER, "receive"),
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
        self.begin_ns = time.time_ns()
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
        now = time.time_ns()
        while publishes and publishes[0].write_batch <= write_batch:
            publish = publishes.popleft()
            self._tracer.stored(publish, now)
            self._tracer.end(publish, now, "")


class _Held:
    """A delivery that is to be settled."""

    def __init__(self, queue: str, offset: int) -> None:
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
        self._parts: dict[tuple[str, str, int], bytes] = {}

    # Publishing

    def begin(self, message: Message, vhost: str) -> Span:
        parent = context_of(message)
        trace_id = random.randbytes(16) if parent is None else parent.trace_id
        state = "" if parent is None else parent.state
        context = TraceContext(trace_id, random.randbytes(8), True, state)
        exchange = message.address.exchange or "amq.default"
        serving = self._broker.events.serving
        key = _cut(message.address.key)
        parts = b"".join(
            (
                self._common("publish", exchange, serving),
                text_attribute(_ATTRIBUTE, "messaging.trivium.vhost", vhost),
                text_attribute(_ATTRIBUTE, "messaging.trivium.routing_key", key),
                _about(message),
            )
        )
        header = codec_of(message.protocol).with_header(
            message.header, TRACEPARENT, context.header()
        )
        if len(header):
            message.set_header(header)
        else:
            # Nobody would find it again.
            message.traced = UNSAMPLED
        return _Publish(context, b"" if parent is None else parent.span_id, parts, exchange)

    def published(self, span: Span, result: int) -> None:
        assert isinstance(span, _Publish)
        now = time.time_ns()
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
        client = self._broker.events.serving if connection is None else connection
        parts = self._common("deliver", queue, client) + _about(message)
        if is_redelivered:
            parts += number_attribute(_ATTRIBUTE, "messaging.trivium.redelivered", 1)
        waited_ms = max(self._broker.now_ms - message.timestamp, 0)
        parts += number_attribute(_ATTRIBUTE, "messaging.trivium.waited_ms", waited_ms)
        self._happened(message, parts)
        if isinstance(entry, QueueEntry):
            held = self._held
            if len(held) >= _MAX_HELD:
                del held[next(iter(held))]
            held[id(entry)] = _Held(queue, entry.offset)

    def settled(self, entry: object, message: Message, queue: str, how: str) -> None:
        held = self._held.pop(id(entry), None)
        if held is None or held.queue != queue or not isinstance(entry, QueueEntry):
            return
        if held.offset == entry.offset:
            self._happened(message, self._common(how, queue, self._broker.events.serving))

    def _happened(self, message: Message, parts: bytes) -> None:
        context = context_of(message)
        if context is not None:
            now = time.time_ns()
            self._add(context, now, now, parts, False)

    def _add(
        self, parent: TraceContext, begin_ns: int, end_ns: int, parts: bytes, is_remote: bool
    ) -> None:
        self._sink(
            encode_span(
                parent.trace_id,
                random.randbytes(8),
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
        number = client.number if isinstance(client, Connection) else 0
        key = (operation, destination, number)
        parts = self._parts.get(key)
        if parts is not None and (number or client is None):
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
        parts = named(f"{operation} {name}", kind) + b"".join(
            [text_attribute(_ATTRIBUTE, each, text) for each, text in attributes.items() if text]
        )
        if number or client is None:
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


def _about(message: Message) -> bytes:
    """What is said of a message itself."""
    parts = number_attribute(_ATTRIBUTE, "messaging.message.body.size", message.size)
    properties = message.properties()
    if properties.message_id:
        name = properties.message_id[:_MAX_TEXT]
        parts += text_attribute(_ATTRIBUTE, "messaging.message.id", name)
    if properties.correlation_id:
        text = _cut(properties.correlation_id)
        parts += text_attribute(_ATTRIBUTE, "messaging.message.conversation_id", text)
    return parts


def _cut(data: bytes) -> str:
    return data[:_MAX_TEXT].decode(errors="replace")
