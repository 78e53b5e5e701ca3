"""Messages that are published to an exchange, and taken from a queue."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trivium.errors import NotFound
from trivium.management.calls import NOT_FOUND, BadRequest, Call
from trivium.management.compatible.bindings import exchange_name
from trivium.management.counting import count_got, count_published
from trivium.management.endpoints import ENTERED, LARGE, Endpoint
from trivium.management.listing import Listing
from trivium.management.pacing import must_wait
from trivium.management.publishing import message_of, publish
from trivium.management.values import (
    PIECE_BYTES,
    TEXTS,
    Encoding,
    LongText,
    beginning,
    number_of,
    shown,
    table_of,
    text_of,
    text_or_base64,
    texts_in,
)
from trivium.messages.large import Content, content_size
from trivium.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, Properties
from trivium.observability.api import ApiAnswer
from trivium.queues.polling import Taking, give_back
from trivium.routing.exchanges import REJECTED, UNROUTABLE
from trivium.security.permissions import READ

if TYPE_CHECKING:
    from trivium.messages.message import HeaderValue
    from trivium.queues.queue import Queue, QueueEntry

#: Milliseconds of the longest expiration, 100 years.
MAX_EXPIRATION: Final = 100 * 365 * 86_400_000

# What becomes of messages that were taken.
_ACK_MODES: Final = {
    "ack_requeue_true": "requeue",
    "reject_requeue_true": "requeue",
    "ack_requeue_false": "settle",
    "reject_requeue_false": "reject",
}


def _required(body: Mapping[str, object], *keys: str) -> None:
    missing = [f"{{key_missing,{key}}}" for key in keys if key not in body]
    if missing:
        raise BadRequest(f"[{','.join(missing)}]")


def properties_of(table: Mapping[str, object]) -> Properties:
    """The properties that a request describes; what is none is passed over. Raises BadRequest."""
    found = Properties()
    for name in table:
        if name in TEXTS:
            setattr(found, TEXTS[name], text_of(table, name))
        elif name == "correlation_id":
            found.correlation_id = text_of(table, name).encode()
        elif name == "timestamp":
            found.timestamp = number_of(table, name)
        elif name == "expiration":
            found.expiration = number_of(table, name)
            if not 0 <= found.expiration <= MAX_EXPIRATION:
                raise BadRequest("'expiration' is a time in milliseconds")
        elif name == "headers":
            found.headers = list(table_of(table, name).items())
    return found


def post(call: Call) -> None:
    """Publish a message; whether it was routed is answered once it is durable."""
    body = call.body
    _required(body, "payload", "payload_encoding", "properties", "routing_key")
    given = table_of(body, "properties")
    properties = properties_of(given)
    payload = _payload(text_of(body, "payload"), text_of(body, "payload_encoding"))
    vhost = call.vhost
    name = exchange_name(call.names["name"])
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        # RabbitMQ shows what its own client was answered.
        raise BadRequest(f"404 NOT_FOUND - no exchange '{name}' in vhost '{vhost.name}'")
    key = text_of(body, "routing_key").encode()
    if exchange.internal:
        raise BadRequest(f"exchange '{name}' in vhost '{vhost.name}' is internal")
    call.access.require_publish(exchange, key)
    user = properties.user_id
    if user is not None and user != call.identity.name:
        raise BadRequest(f"user_id property set to '{user}' but authenticated user was another")
    priority = number_of(given, "priority", 0)
    if not 0 <= priority <= 255:
        raise BadRequest("'priority' is 0 to 255")
    if must_wait(call, 1, len(payload)):
        return
    message = message_of(
        call.broker,
        vhost,
        name,
        key,
        properties,
        payload,
        AT_LEAST_ONCE if number_of(given, "delivery_mode", 1) == 2 else AT_MOST_ONCE,
        priority,
    )
    result = publish(vhost, message)
    count_published(call, result)
    routed = result not in (REJECTED, UNROUTABLE)
    call.answer_durably(ApiAnswer(200, {"routed": routed}))


def _payload(text: str, encoding: str) -> bytes:
    if encoding == "string":
        return text.encode()
    if encoding != "base64":
        raise BadRequest(f"unsupported encoding {encoding}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("'payload' is no base64") from None


def get(call: Call) -> None:
    """Take messages from a queue, and do with them what ``ackmode`` says."""
    body = call.body
    _required(body, "ackmode", "count", "encoding")
    vhost = call.vhost
    name = call.names["name"]
    queue = vhost.queues.get(name)
    if queue is None:
        if name in vhost.streams:
            raise BadRequest(f"'{name}' in vhost '{vhost.name}' is a stream")
        raise NotFound(NOT_FOUND)
    call.access.require(READ, "queue", name)
    queue = vhost.queue(name)
    action = _ACK_MODES.get(text_of(body, "ackmode"))
    if action is None:
        raise BadRequest(f"'ackmode' is one of {', '.join(_ACK_MODES)}")
    encoding = text_of(body, "encoding")
    if encoding not in ("auto", "base64"):
        raise BadRequest("'encoding' is 'auto' or 'base64'")
    count = number_of(body, "count")
    if count < 0:
        raise BadRequest("'count' is at least 0")
    most = number_of(body, "truncate", call.broker.config.limits.max_message_bytes)
    found = queue

    def taken(entries: list[QueueEntry]) -> None:
        left = len(found)
        described = [
            _Taken(entry, index, left + len(entries) - 1 - index)
            for index, entry in enumerate(entries)
        ]
        count_got(call, entries, action == "settle")
        _dispose(found, entries, action)
        listing = Listing(
            call,
            described,
            lambda each: each.shown(encoding, max(most, 0)),
            lambda each: (f"{each.place:06}",),
        )
        call.answer_durably(listing.answer())

    def taken_later(entries: list[QueueEntry]) -> None:
        call.go_on(lambda: taken(entries), lambda: give_back(found, entries))

    Taking(queue, count, taken_later).go_on()


def _dispose(queue: Queue, entries: list[QueueEntry], action: str) -> None:
    for entry in entries:
        if action == "settle":
            queue.settle(entry)
        elif action == "reject":
            queue.reject(entry)
        else:
            queue.requeue(entry)
    if action == "requeue" and entries:
        queue.dispatch()


class _Taken:
    """A message that was taken, before what was done with it."""

    def __init__(self, entry: QueueEntry, place: int, left: int) -> None:
        self.message = entry.message
        self.redelivered = entry.is_redelivered
        #: among those that were taken, and how many are behind it
        self.place = place
        self.left = left

    def shown(self, encoding: str, most: int) -> dict[str, object]:
        """What is shown of it, with so many bytes of its payload."""
        message = self.message
        text, payload_encoding = _encoded(beginning(message.content, most), encoding)
        return {
            "payload_bytes": message.size,
            "redelivered": self.redelivered,
            "exchange": message.address.exchange,
            "routing_key": message.address.key.decode(errors="replace"),
            "message_count": self.left,
            "properties": shown_properties(message.properties(), message.mode, message.priority),
            "payload": text,
            "payload_encoding": payload_encoding,
        }


def _encoded(payload: Content, encoding: str) -> tuple[object, object]:
    if encoding == "auto" and content_size(payload) > PIECE_BYTES:
        long = LongText(payload, or_base64=True)
        return long, Encoding(long)
    text, encoded = text_or_base64(payload)
    return (encoded, "base64") if text is None or encoding == "base64" else (text, "string")


def shown_properties(properties: Properties, mode: int, priority: int) -> dict[str, object]:
    """The properties that a message has."""
    found = texts_in(properties)
    if properties.correlation_id is not None:
        found["correlation_id"] = shown(properties.correlation_id)
    if properties.timestamp is not None:
        found["timestamp"] = properties.timestamp
    if properties.expiration is not None:
        found["expiration"] = str(properties.expiration)
    if priority:
        found["priority"] = priority
    found["delivery_mode"] = 2 if mode else 1
    headers: dict[str, HeaderValue] = {}
    for name, value in properties.headers:
        headers.setdefault(name, shown(value))
    if headers:
        found["headers"] = headers
    return found


ENDPOINTS: Final = (
    Endpoint("POST", "exchanges/{vhost}/{name}/publish", post, vhost=ENTERED, most_bytes=LARGE),
    Endpoint("POST", "queues/{vhost}/{name}/get", get, vhost=ENTERED),
)
