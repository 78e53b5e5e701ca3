"""Retained messages, by topic."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from trivium.errors import NotFound
from trivium.management.endpoints import ENTERED
from trivium.management.listing import Slices
from trivium.management.rest.gateway import headers_of, properties_of
from trivium.management.rest.operations import Parameter, answer, asked, operation
from trivium.management.rest.schema import About, Count, Table, Time, shown_model
from trivium.management.values import encode
from trivium.messages.message import AT_MOST_ONCE, EXACTLY_ONCE
from trivium.messages.topics import MAX_LEVELS, filter_pattern, key_of, topic_of
from trivium.observability.api import ApiAnswer
from trivium.routing.retained import RETAINING_EXCHANGE
from trivium.security.permissions import READ, WRITE

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.messages.message import Message
    from trivium.security.permissions import Access
    from trivium.vhost.virtual_host import VirtualHost

from trivium.management.endpoints import BadRequest

#: Topics of a part of the list, and steps of the walk between two looks at the clock.
MOST: Final = 500
STEPS: Final = 100
_MODES: Final = {AT_MOST_ONCE: "at-most-once", EXACTLY_ONCE: "exactly-once"}

_FILTER: Final = Parameter(
    "filter",
    Annotated[str, About(shortest=1, longest=255)],
    "a topic filter: + is any one level, # at the end all further ones",
)
_AFTER: Final = Parameter(
    "after", Annotated[str, About(longest=1024)], "only topics behind this one: `next` of a part"
)
LIMIT: Final = Parameter("limit", Annotated[int, About(least=1, most=MOST)], "how many, 100")


@dataclass(frozen=True, slots=True)
class RetainedTopic:
    """A topic with a retained message."""

    topic: str
    bytes: Count
    published_at: Time
    mode: str


@dataclass(frozen=True, slots=True)
class RetainedPart:
    """Some of them, in the order of their topics."""

    items: list[RetainedTopic]
    next: Annotated[str | None, About(text="what `after` is for those behind these; null: none")]


@dataclass(frozen=True, slots=True)
class RetainedMessage:
    """A retained message."""

    topic: str
    bytes: Count
    published_at: Time
    mode: str
    payload: Annotated[str | None, About(text="null where it is no text, in UTF-8")]
    payload_base64: str
    content_type: str | None
    properties: Annotated[Table, About(text="those that are set")]
    headers: Table


@dataclass(frozen=True, slots=True)
class RetainedLevel:
    """What stands between two slashes, in topics of retained messages."""

    level: str
    topic: Annotated[str, About(text="up to this level")]
    has_message: Annotated[bool, About(text="whether one is retained for this topic itself")]
    has_levels: Annotated[bool, About(text="whether there are further ones below")]


@dataclass(frozen=True, slots=True)
class RetainedLevels:
    """Some of them, in their order."""

    items: list[RetainedLevel]
    next: Annotated[str | None, About(text="what `after` is for those behind these; null: none")]


def _mode_of(message: Message) -> str:
    return _MODES.get(message.mode, "at-least-once")


def list_all(call: Call) -> ApiAnswer:
    """Those of a filter that the caller may read."""
    wanted = asked(call, _FILTER, "#")
    after = asked(call, _AFTER, "")
    return ApiAnswer(200, parts=_part(call, _pattern(wanted), after, asked(call, LIMIT, 100)))


def _pattern(wanted: str) -> list[bytes]:
    levels = wanted.split("/")
    is_valid = len(levels) <= MAX_LEVELS and "#" not in levels[:-1]
    if not is_valid or any(set(level) & {"+", "#"} and len(level) > 1 for level in levels):
        raise BadRequest("'filter' is no topic filter")
    if "\0" in wanted:
        raise BadRequest("'filter' is no topic filter")
    return filter_pattern(wanted.encode())


def _part(call: Call, pattern: list[bytes], after: str, limit: int) -> Iterator[bytes]:
    vhost = call.vhost
    access = call.access
    walk = vhost.retained.walk(pattern, key_of(after.encode()) if after else b"")
    slices = Slices()
    items: list[RetainedTopic] = []
    last: str | None = None
    while len(items) < limit and not walk.is_finished:
        walk.advance(STEPS)
        if walk.is_at_match:
            found = _seen(access, walk.key, walk.message)
            if found is not None:
                items.append(found)
                last = found.topic
        if slices.is_over:
            yield b""
            slices.begin()
    is_whole = walk.is_finished
    yield encode(shown_model(RetainedPart(items, None if is_whole else last)))


def _seen(access: Access, key: bytes, message: Message | None) -> RetainedTopic | None:
    topic = topic_of(key)
    if message is None or topic is None or not access.may_topic(READ, RETAINING_EXCHANGE, key):
        return None
    return RetainedTopic(topic.decode(), message.size, message.timestamp, _mode_of(message))


def _key(call: Call) -> bytes:
    return key_of(call.names["topic"].encode())


def _found(vhost: VirtualHost, key: bytes) -> Message:
    found = vhost.retained.get(key)
    if found is None:
        raise NotFound("nothing is retained there")
    return found


def show(call: Call) -> ApiAnswer:
    """One with its payload."""
    key = _key(call)
    call.access.require_topic(READ, RETAINING_EXCHANGE, key)
    message = _found(call.vhost, key)
    properties = message.properties()
    payload = message.payload
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    found = RetainedMessage(
        call.names["topic"],
        message.size,
        message.timestamp,
        _mode_of(message),
        text,
        base64.b64encode(payload).decode(),
        properties.content_type,
        properties_of(properties),
        headers_of(properties),
    )
    return answer(found)


def clear(call: Call) -> None:
    """Forget one, as an empty retained message does."""
    key = _key(call)
    call.access.require_topic(WRITE, RETAINING_EXCHANGE, key)
    _found(call.vhost, key)
    call.vhost.retained.clear(key)
    call.vhost.tell("retained.deleted", topic=call.names["topic"])
    call.gone()


_ALL: Final = "vhosts/{vhost}/retained"
_ONE: Final = "vhosts/{vhost}/retained/{topic}"

ENDPOINTS: Final = (
    operation(
        "GET",
        _ALL,
        list_all,
        "Topics with a retained message",
        vhost=ENTERED,
        result=RetainedPart,
        query=(_FILTER, _AFTER, LIMIT),
    ),
    operation("GET", _ONE, show, "A retained message", vhost=ENTERED, result=RetainedMessage),
    operation("DELETE", _ONE, clear, "Clear it", vhost=ENTERED, statuses=(204,)),
)
