"""Messages that are sent as they come: by server-sent events, or by a WebSocket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from trivium.management.endpoints import CLIENTS, ENTERED
from trivium.management.rest.gateway import (
    LEASE_MS,
    MAX_LEASE_MS,
    MAX_LENT,
    OFFSET,
    QueuedMessage,
    Record,
    Settlement,
    headers_of,
    partition_of,
    queue_of,
    queued,
    recorded,
    start_of,
)
from trivium.management.rest.operations import Parameter, asked, operation
from trivium.management.rest.schema import About, Table, Time, parse, shown_model
from trivium.management.subscriptions import (
    LiveSubscription,
    QueueSubscription,
    StreamSubscription,
    Subscription,
)
from trivium.management.values import text_or_base64
from trivium.observability.api import ApiAnswer, ApiRefused, refusal
from trivium.security.permissions import DEFAULT_EXCHANGE

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.messages.message import Message

_EVENTS: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """A message as it is published."""

    exchange: str
    key: str
    published_at: Time
    payload: Annotated[str | None, About(text="null where it is no text, in UTF-8")]
    payload_base64: str
    content_type: str | None
    message_id: str | None
    headers: Table


_KEY: Final = Parameter(
    "key",
    Annotated[str, About(longest=255)],
    "binding key; of a topic exchange with * and #, and # by default",
)
_LIMIT: Final = Parameter(
    "limit", Annotated[int, About(least=1, most=MAX_LENT)], "messages at a time, 100"
)
_LEASE: Final = Parameter(
    "lease_ms",
    Annotated[int, About(least=100, most=MAX_LEASE_MS)],
    "milliseconds until one comes back that is not settled, 30000",
)


def _begun(call: Call, subscription: Subscription) -> ApiAnswer:
    if call.request.method == "HEAD":
        return ApiAnswer(200, parts=iter(()), content_type=_EVENTS)
    subscription.begin()
    return ApiAnswer(200, feed=subscription)


def exchange(call: Call) -> ApiAnswer:
    """What is published to an exchange from now on."""
    name = call.names["exchange"]
    source = call.vhost.exchange("" if name == DEFAULT_EXCHANGE else name)
    pattern = asked(call, _KEY, "#" if source.kind == "topic" else "").encode()
    return _begun(call, LiveSubscription(call, source, pattern, _live))


def _live(message: Message) -> dict[str, object]:
    properties = message.properties()
    text, encoded = text_or_base64(message.content)
    found = LiveMessage(
        message.address.exchange,
        message.address.key.decode(errors="replace"),
        message.timestamp,
        text,
        encoded,
        properties.content_type,
        properties.message_id,
        headers_of(properties),
    )
    return shown_model(found)


def queue(call: Call) -> ApiAnswer:
    """Messages of a queue, which the client settles by the same WebSocket."""
    found = queue_of(call)
    if not call.request.is_websocket:
        # Taking messages changes something, and a page of another site can have a browser GET.
        text = "messages of a queue are sent by a WebSocket"
        raise ApiRefused(refusal(426, "upgrade_required", text, {"Upgrade": "websocket"}))
    subscription = QueueSubscription(
        call,
        found,
        asked(call, _LIMIT, 100),
        asked(call, _LEASE, LEASE_MS),
        lambda entry, token: shown_model(queued(entry, token)),
        _settlement,
    )
    return _begun(call, subscription)


def _settlement(said: object) -> tuple[list[str], str]:
    wanted = parse(Settlement, said)
    return list(dict.fromkeys(wanted.leases)), wanted.outcome


def stream(call: Call) -> ApiAnswer:
    """Messages of a partition, from an offset on or behind the last event that the client has."""
    partition = partition_of(call)
    last = call.request.last_event
    if last.isascii() and last.isdigit() and len(last) <= 18:
        offset = min(int(last) + 1, partition.high_watermark)
    else:
        offset = start_of(partition, asked(call, OFFSET, "next"))
    return _begun(
        call,
        StreamSubscription(
            call, partition, offset, lambda at, message: shown_model(recorded(at, message))
        ),
    )


_MORE: Final[dict[str, Any]] = {"tags": CLIENTS, "vhost": ENTERED, "media": _EVENTS}

ENDPOINTS: Final = (
    operation(
        "GET",
        "vhosts/{vhost}/exchanges/{exchange}/subscribe",
        exchange,
        "Messages as they are published, as server-sent events or by a WebSocket",
        result=LiveMessage,
        query=(_KEY,),
        **_MORE,
    ),
    operation(
        "GET",
        "vhosts/{vhost}/queues/{queue}/subscribe",
        queue,
        "Messages of a queue, by a WebSocket",
        result=QueuedMessage,
        statuses=(101,),
        query=(_LIMIT, _LEASE),
        **_MORE,
    ),
    operation(
        "GET",
        "vhosts/{vhost}/streams/{stream}/partitions/{partition}/subscribe",
        stream,
        "Messages of a stream, as server-sent events or by a WebSocket",
        result=Record,
        query=(OFFSET,),
        **_MORE,
    ),
)
