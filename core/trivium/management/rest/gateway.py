"""Messages for scripts and browsers: publishing, queues by leases, streams by offset."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

from trivium.errors import AccessRefused, NotFound, RouteTooCostly
from trivium.management.counting import (
    count_acknowledged,
    count_delivered,
    count_sent,
)
from trivium.management.endpoints import CLIENTS, ENTERED, LARGE, BadRequest
from trivium.management.leases import ACCEPT
from trivium.management.listing import Slices
from trivium.management.publishing import message_of, route_of
from trivium.management.rest.operations import (
    Parameter,
    answer,
    asked,
    body_of,
    operation,
)
from trivium.management.rest.publications import KEY, Outcome, Published, outcome_of, publish_once
from trivium.management.rest.schema import About, Count, Name, Table, Time, shown_model
from trivium.management.stream_reading import Batches, PartitionRead, end_of, messages_in
from trivium.management.values import encode, encode_in_pieces, shown, text_or_base64, texts_in
from trivium.messages.delivery import DELAY_HEADER, DELIVERY_MODES, MAX_DELAY
from trivium.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, Properties
from trivium.messages.topics import topic_of
from trivium.messages.tracing import TRACEPARENT, TRACESTATE, parse_traceparent
from trivium.observability.api import ApiAnswer, ApiRefused, refusal
from trivium.queues.polling import Poll, give_back
from trivium.routing.exchanges import REJECTED
from trivium.security.permissions import DEFAULT_EXCHANGE, READ

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.messages.message import Message
    from trivium.queues.queue import Queue, QueueEntry
    from trivium.routing.exchanges import Exchange
    from trivium.streams.stream import Partition

#: Messages that are published, lent or read by one request: they take some milliseconds.
MAX_MESSAGES: Final = 100
MAX_LENT: Final = 200
MAX_RECORDS: Final = 1000
#: Bytes of payloads that are read by one request, where the first is not larger.
MAX_RECORD_BYTES: Final = 4 << 20
#: Milliseconds that a request waits for messages, and that one is lent.
MAX_WAIT_MS: Final = 30_000
LEASE_MS: Final = 30_000
MAX_LEASE_MS: Final = 3_600_000
#: Delivery modes by their numbers.
_MODES: Final = {number: name for name, number in DELIVERY_MODES.items()}

_Text = Annotated[str | None, About(longest=255)]
_Mode = Literal["at-most-once", "at-least-once", "exactly-once"]
_Wait = Annotated[int, About(text="milliseconds to wait for one", least=0, most=MAX_WAIT_MS)]


@dataclass(frozen=True, slots=True)
class Publication:
    """A message to be published. Its payload is one of three, or empty."""

    key: Annotated[str, About(text="routing key", longest=65_535)] = ""
    payload: str | None = None
    payload_base64: str | None = None
    payload_json: Annotated[object, About(text="any JSON; the content type says so")] = None
    mode: _Mode = "at-least-once"
    priority: Annotated[int, About(least=0, most=255)] = 0
    expiration_ms: Annotated[int | None, About(least=0, most=MAX_DELAY)] = None
    delay_ms: Annotated[int, About(text="until it is routed", least=0, most=MAX_DELAY)] = 0
    content_type: _Text = None
    message_id: _Text = None
    correlation_id: _Text = None
    reply_to: _Text = None
    headers: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Publications:
    """Messages to be published, in this order."""

    messages: Annotated[list[Publication], About(shortest=1, longest=MAX_MESSAGES)]


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """How many messages are wanted of a queue, and for how long."""

    count: Annotated[int, About(least=1, most=MAX_LENT)] = 1
    wait_ms: _Wait = 0
    lease_ms: Annotated[int, About(least=100, most=MAX_LEASE_MS)] = LEASE_MS


@dataclass(frozen=True, slots=True)
class Shown:
    """A message, with all that its publisher says of it."""

    exchange: str
    key: str
    published_at: Time
    payload: Annotated[str | None, About(text="null where it is no text, in UTF-8")]
    payload_base64: str
    mode: Annotated[_Mode, About(text="as its publisher's protocol states it")]
    priority: Count
    content_type: str | None
    properties: Annotated[Table, About(text="those that are set")]
    headers: Table


@dataclass(frozen=True, slots=True)
class QueuedMessage(Shown):
    """A message of a queue."""

    lease: Annotated[str | None, About(text="names it; null: it is settled already")]
    redelivered: bool
    message_id: str | None


@dataclass(frozen=True, slots=True)
class Leased:
    """Messages that are lent. What is not settled in time comes back to its queue."""

    messages: list[QueuedMessage]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is to become of messages that were lent."""

    leases: Annotated[list[Annotated[str, About(longest=64)]], About(shortest=1, longest=MAX_LENT)]
    outcome: Literal["accept", "reject", "requeue"] = ACCEPT


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of them."""

    settled: Count
    gone: Annotated[list[str], About(text="whose time was over: they come again")]


@dataclass(frozen=True, slots=True)
class Record(Shown):
    """A message of a stream."""

    offset: Count


@dataclass(frozen=True, slots=True)
class Records:
    """Messages of a partition, in their order."""

    stream: Name
    partition: Count
    records: list[Record]
    next_offset: Annotated[int, About(text="where to go on", least=0)]
    high_watermark: Count


# Publishing


def publish_many(call: Call) -> None:
    """Publish messages; answered once they are as durable as their modes say."""
    exchange = _exchange(call)
    given = body_of(call, Publications).messages
    for key in dict.fromkeys(each.key.encode() for each in given):
        call.access.require_publish(exchange, key)
    _publish(call, [_message(call, exchange, each, payload_of(each)) for each in given])


_ROUTING_KEY: Final = Parameter("key", Annotated[str, About(longest=255)], "routing key")
_MODE: Final = Parameter("mode", _Mode, "how it is delivered, at-least-once")
_TYPE: Final = Parameter("content_type", Annotated[str, About(longest=255)], "of the payload")


def publish_raw(call: Call) -> None:
    """Publish one message, whose payload is the body as it is."""
    exchange = _exchange(call)
    payload = call.request.body
    assert isinstance(payload, bytes)
    given = Publication(
        key=asked(call, _ROUTING_KEY, ""),
        mode=asked(call, _MODE, "at-least-once"),
        content_type=asked(call, _TYPE, None),
    )
    call.access.require_publish(exchange, given.key.encode())
    _publish(call, [_message(call, exchange, given, payload)])


def _exchange(call: Call) -> Exchange:
    name = call.names["exchange"]
    vhost = call.vhost
    name = "" if name == DEFAULT_EXCHANGE else name
    call.access.require_exchange("write", name)
    exchange = vhost.exchange(name)
    if exchange.internal:
        raise AccessRefused(f"exchange '{name}' in vhost '{vhost.name}' is internal")
    return exchange


class HasPayload(Protocol):
    """What brings a payload in one of three ways, or none."""

    @property
    def payload(self) -> str | None: ...

    @property
    def payload_base64(self) -> str | None: ...

    @property
    def payload_json(self) -> object: ...


def payload_of(each: HasPayload) -> bytes:
    """The payload's bytes. Raises BadRequest."""
    if sum(one is not None for one in (each.payload, each.payload_base64, each.payload_json)) > 1:
        raise BadRequest("a message has one of 'payload', 'payload_base64', 'payload_json'")
    if each.payload_json is not None:
        return json.dumps(each.payload_json, ensure_ascii=False, allow_nan=False).encode()
    if each.payload_base64 is None:
        return (each.payload or "").encode()
    try:
        return base64.b64decode(each.payload_base64, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("'payload_base64' is no base64") from None


def _properties(call: Call, each: Publication) -> Properties:
    kind = each.content_type
    if kind is None and each.payload_json is not None:
        kind = "application/json"
    found = Properties(
        content_type=kind,
        message_id=each.message_id,
        correlation_id=None if each.correlation_id is None else each.correlation_id.encode(),
        reply_to=each.reply_to,
        expiration=each.expiration_ms,
        headers=list(call.table(each.headers).items()),
    )
    if each.delay_ms:
        found.headers.append((DELAY_HEADER, each.delay_ms))
    if each.mode == "exactly-once" and found.header("x-delivery") is None:
        found.headers.append(("x-delivery", each.mode))
    pass_on_trace(call, found)
    return found


def pass_on_trace(call: Call, found: Properties) -> None:
    """Have a message the trace of its request, unless it has one of its own."""
    given = call.request.traceparent
    if given and parse_traceparent(given) is not None and found.header(TRACEPARENT) is None:
        found.headers.append((TRACEPARENT, given))
        if call.request.tracestate:
            found.headers.append((TRACESTATE, call.request.tracestate))


def _message(call: Call, exchange: Exchange, each: Publication, payload: bytes) -> Message:
    return message_of(
        call.broker,
        call.vhost,
        exchange.name,
        each.key.encode(),
        _properties(call, each),
        payload,
        AT_MOST_ONCE if each.mode == "at-most-once" else AT_LEAST_ONCE,
        each.priority,
    )


def _publish(call: Call, messages: list[Message]) -> None:
    """Publish messages that may be published now. That may take a while: what is changed meanwhile
    holds for the rest."""

    def publish_one(index: int) -> tuple[Outcome, int]:
        message = messages[index]
        call.access.require_publish(_exchange(call), message.address.key)
        try:
            route = route_of(call.vhost, message)
        except RouteTooCostly:
            if len(messages) == 1:
                raise
            return outcome_of(call, REJECTED), 1
        return outcome_of(call, call.vhost.publish(message, route)), len(route.destinations)

    publish_once(call, call.names["exchange"], [each.size for each in messages], publish_one)


# Queues


def queue_of(call: Call) -> Queue:
    """The queue of the path, to be read. Raises TopologyError."""
    name = call.names["queue"]
    call.access.require(READ, "queue", name)
    return call.vhost.queue(name)


def lease(call: Call) -> None:
    """Lend messages of a queue: those that there are, or the next ones."""
    wanted = body_of(call, LeaseRequest)
    queue = queue_of(call)
    user = call.identity.name
    leases = call.state.leases
    count = min(wanted.count, leases.room(user))
    if count <= 0:
        text = "this user has as many messages as it may: settle some"
        raise ApiRefused(refusal(429, "too_many_requests", text, {"Retry-After": "1"}))
    leases.reserve(user, count)

    def done(taken: list[QueueEntry]) -> None:
        leases.reserve(user, -count)
        call.go_on(
            lambda: _lend(call, queue, taken, wanted.lease_ms), lambda: give_back(queue, taken)
        )

    poll = Poll(call.broker, queue, count, wanted.wait_ms, done)
    call.state.waits.begin(call, poll.stop, lambda: call.access.may(READ, queue.name))
    poll.begin()


def _lend(call: Call, queue: Queue, taken: list[QueueEntry], lease_ms: int) -> ApiAnswer:
    if not call.access.may(READ, queue.name):
        give_back(queue, taken)
        raise AccessRefused(f"read access to queue '{queue.name}' is over")
    lent: list[tuple[QueueEntry, str | None]] = []
    for entry in taken:
        token = None
        if not entry.is_settled:
            token = call.state.leases.lend(call.identity.name, entry, lease_ms).token
        count_delivered(call, entry)
        lent.append((entry, token))
    items = (shown_model(queued(*item)) for item in lent)
    return ApiAnswer(200, parts=in_parts(b'{"messages":[', items, lambda: b"]}"))


def in_parts(
    start: bytes, items: Iterator[dict[str, object]], end: Callable[[], bytes]
) -> Iterator[bytes]:
    """A text with a list in it, made a part at a time."""
    slices = Slices()
    between = start
    for item in items:
        for piece in encode_in_pieces(item):
            yield between + piece
            between = b""
        between = b","
        if slices.is_over:
            yield b""
            slices.begin()
    yield (start if between is start else b"") + end()


def headers_of(properties: Properties) -> dict[str, object]:
    """Headers as they are shown."""
    found: dict[str, object] = {}
    for name, value in properties.headers:
        found.setdefault(name, shown(value))
    return found


def properties_of(properties: Properties) -> dict[str, object]:
    """Properties as they are shown: those that are set."""
    found: dict[str, object] = {
        **texts_in(properties),
        "correlation_id": shown(properties.correlation_id),
        "reply_to_topic": _topic(properties.reply_to_topic),
        "key": shown(properties.key),
        "timestamp": properties.timestamp,
        "expiration_ms": properties.expiration,
    }
    return {name: value for name, value in found.items() if value is not None}


def _topic(key: bytes | None) -> object:
    return None if key is None else shown(topic_of(key) or key)


def queued(entry: QueueEntry, token: str | None) -> QueuedMessage:
    """A message of a queue as it is shown."""
    return QueuedMessage(
        lease=token,
        redelivered=entry.is_redelivered,
        message_id=entry.message.properties().message_id,
        **_fields_of(entry.message),
    )


def _fields_of(message: Message) -> dict[str, Any]:
    """Those of ``Shown``."""
    properties = message.properties()
    text, encoded = text_or_base64(message.content)
    return {
        "exchange": message.address.exchange,
        "key": message.address.key.decode(errors="replace"),
        "published_at": message.timestamp,
        "payload": text,
        "payload_base64": encoded,
        "mode": _MODES[message.mode],
        "priority": message.priority,
        "content_type": properties.content_type,
        "properties": properties_of(properties),
        "headers": headers_of(properties),
    }


def settle(call: Call) -> None:
    """Be done with messages that were lent; answered once that is durable."""
    wanted = body_of(call, Settlement)
    queue = queue_of(call)
    leases = call.state.leases
    gone: list[str] = []
    tokens = list(dict.fromkeys(wanted.leases))
    for token in tokens:
        found = leases.find(call.identity.name, token, queue)
        if found is None:
            gone.append(token)
        else:
            leases.end(found, wanted.outcome)
    if wanted.outcome == ACCEPT:
        count_acknowledged(call, len(tokens) - len(gone))
    call.answer_durably(answer(Settled(len(tokens) - len(gone), gone)))


# Streams

OFFSET: Final = Parameter(
    "offset",
    Annotated[str, About(pattern="^(first|last|next|[0-9]{1,18})$")],
    "first, last, next, or a number; first",
)
_WAIT: Final = Parameter("wait_ms", _Wait, "milliseconds to wait for a message, 0")
_MOST: Final = Parameter("limit", Annotated[int, About(least=1, most=MAX_RECORDS)], "how many, 100")


def partition_of(call: Call) -> Partition:
    """The partition of the path, to be read. Raises TopologyError."""
    name = call.names["stream"]
    call.access.require(READ, "stream", name)
    index = call.names["partition"]
    stream = call.vhost.stream(name)
    found = stream.partition(int(index)) if re.fullmatch("[0-9]{1,6}", index) else None
    if found is None:
        raise NotFound(f"stream '{name}' has no partition {index}")
    return found


def start_of(partition: Partition, wanted: str) -> int:
    """The offset that is meant; what is not kept any more is left out. Raises NotFound."""
    places = {
        "first": partition.first_offset,
        "last": partition.last_offset,
        "next": partition.high_watermark,
    }
    offset = places[wanted] if wanted in places else int(wanted)
    if offset > partition.high_watermark:
        raise NotFound(f"the partition ends at {partition.high_watermark}")
    return max(offset, partition.first_offset)


def read(call: Call) -> None:
    """Read messages of a partition: those that there are, or the next one."""
    partition = partition_of(call)
    offset = start_of(partition, asked(call, OFFSET, "first"))
    limit = asked(call, _MOST, 100)

    def done(batches: Batches | None) -> None:
        call.go_on(lambda: _read(call, partition, offset, limit, batches))

    reading = PartitionRead(call.broker, partition, offset, asked(call, _WAIT, 0), done)
    name = partition.stream.name
    call.state.waits.begin(call, reading.stop, lambda: call.access.may(READ, name))
    reading.step()


def _read(
    call: Call, partition: Partition, offset: int, limit: int, batches: Batches | None
) -> ApiAnswer:
    stream = partition.stream
    if batches is None:
        raise NotFound(f"stream '{stream.name}' was deleted")
    call.access.require(READ, "stream", stream.name)
    after = offset
    has_all = True

    def items() -> Iterator[dict[str, object]]:
        nonlocal after, has_all
        size = 0
        for count, (at, message) in enumerate(messages_in(batches, offset)):
            if count == limit or (count and size + message.size > MAX_RECORD_BYTES):
                has_all = False
                return
            size += message.size
            after = at + 1
            partition.records_read += 1
            count_sent(call, 1)
            yield shown_model(recorded(at, message))

    def end() -> bytes:
        following = end_of(batches, after) if has_all else after
        rest = {"next_offset": following, "high_watermark": partition.high_watermark}
        return b"]," + encode(rest)[1:]

    head = encode({"stream": stream.name, "partition": partition.index})
    return ApiAnswer(200, parts=in_parts(head[:-1] + b',"records":[', items(), end))


def recorded(offset: int, message: Message) -> Record:
    """A message of a stream as it is shown."""
    return Record(offset=offset, **_fields_of(message))


_PUBLISH: Final = "vhosts/{vhost}/exchanges/{exchange}/messages"
_LEASES: Final = "vhosts/{vhost}/queues/{queue}/leases"
_ANY: Final = {"tags": CLIENTS, "vhost": ENTERED}

ENDPOINTS: Final = (
    operation(
        "POST",
        _PUBLISH,
        publish_many,
        "Publish messages",
        body=Publications,
        result=Published,
        statuses=(202,),
        most_bytes=LARGE,
        headers=(KEY,),
        **_ANY,
    ),
    operation(
        "POST",
        _PUBLISH + "/raw",
        publish_raw,
        "Publish a message as it is",
        result=Published,
        statuses=(202,),
        most_bytes=LARGE,
        is_raw=True,
        query=(_ROUTING_KEY, _MODE, _TYPE),
        headers=(KEY,),
        **_ANY,
    ),
    operation(
        "POST",
        _LEASES,
        lease,
        "Take messages for a time",
        body=LeaseRequest,
        result=Leased,
        **_ANY,
    ),
    operation(
        "POST",
        _LEASES + "/settle",
        settle,
        "Be done with them",
        body=Settlement,
        result=Settled,
        **_ANY,
    ),
    operation(
        "GET",
        "vhosts/{vhost}/streams/{stream}/partitions/{partition}/records",
        read,
        "Read messages of a stream",
        result=Records,
        query=(OFFSET, _MOST, _WAIT),
        **_ANY,
    ),
)
