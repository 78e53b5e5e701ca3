"""Messages of a queue as somebody sees them who takes none."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from trivium.errors import NotFound
from trivium.management.endpoints import CLIENTS, ENTERED
from trivium.management.rest.gateway import headers_of, in_parts, properties_of
from trivium.management.rest.operations import Parameter, asked, operation
from trivium.management.rest.schema import About, Count, Name, Table, Time, shown_model
from trivium.management.values import beginning, encode, text_or_base64
from trivium.messages.large import content_parts, content_size
from trivium.observability.api import ApiAnswer
from trivium.queues.browsing import Browse, Seen
from trivium.security.permissions import READ

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.queues.queue import Queue

#: Messages of a part, and bytes of their payloads where the first is not larger.
MAX_SEEN: Final = 100
MAX_SEEN_BYTES: Final = 4 << 20
#: Bytes of each payload that are shown, where nothing is said.
PAYLOAD_BYTES: Final = 64 * 1024

_Mode = Literal["at-most-once", "at-least-once", "exactly-once"]
_MODES: Final[tuple[_Mode, ...]] = ("at-most-once", "at-least-once", "exactly-once")


@dataclass(frozen=True, slots=True)
class SeenMessage:
    """A message that is ready in a queue."""

    number: Annotated[int, About(text="in its queue and priority; it rises", least=0)]
    redelivered: bool
    exchange: str
    key: str
    published_at: Time
    expires_at: Annotated[int | None, About(text="milliseconds since the epoch", least=0)]
    mode: _Mode
    priority: Count
    bytes: Annotated[int, About(text="of the whole payload", least=0)]
    is_cut: Annotated[bool, About(text="whether more of the payload is there than shown")]
    payload: Annotated[str | None, About(text="null where it is no text, in UTF-8")]
    payload_base64: str
    properties: Annotated[Table, About(text="those that are set")]
    headers: Table


@dataclass(frozen=True, slots=True)
class SeenMessages:
    """Some of them, in the order in which they are delivered."""

    queue: Name
    priority: Annotated[int, About(text="whose messages these are", least=0)]
    priorities: Annotated[int, About(text="that the queue has", least=1)]
    messages: list[SeenMessage]
    next: Annotated[int | None, About(text="what `first` is for those behind these; null: none")]


_FIRST: Final = Parameter(
    "first", Annotated[int, About(least=0, most=(1 << 53) - 1)], "the number to begin with, 0"
)
_LIMIT: Final = Parameter("limit", Annotated[int, About(least=1, most=MAX_SEEN)], "how many, 20")
_PRIORITY: Final = Parameter(
    "priority", Annotated[int, About(least=0, most=255)], "whose messages, the highest that has any"
)
_BYTES: Final = Parameter(
    "payload_bytes",
    Annotated[int, About(least=0, most=MAX_SEEN_BYTES)],
    f"of each payload, {PAYLOAD_BYTES}",
)


def browse(call: Call) -> None:
    """Show messages that are ready; nothing happens to them."""
    name = call.names["queue"]
    call.access.require(READ, "queue", name)
    queue = _queue(call, name)
    priorities = len(queue.ready.sub_queues)
    filled = [number for number, each in enumerate(queue.ready.sub_queues) if len(each)]
    usual = filled[-1] if filled else priorities - 1
    priority = min(asked(call, _PRIORITY, usual), priorities - 1)
    most = asked(call, _BYTES, PAYLOAD_BYTES)

    def done(seen: list[Seen], following: int) -> None:
        call.later(lambda: _show(call, queue, priority, seen, following, most))

    first, limit = asked(call, _FIRST, 0), asked(call, _LIMIT, 20)
    Browse(queue, priority, first, limit, MAX_SEEN_BYTES, done).step()


def _queue(call: Call, name: str) -> Queue:
    """One that the caller may look into: those of one connection, and what is a protocol's own,
    are for who watches. Raises TopologyError."""
    found = call.vhost.queues.get(name)
    if call.watches and found is not None:
        return found
    return call.vhost.queue(name)


def _show(
    call: Call, queue: Queue, priority: int, seen: list[Seen], following: int, most: int
) -> ApiAnswer:
    if queue.is_deleted:
        raise NotFound(f"queue '{queue.name}' was deleted")
    call.access.require(READ, "queue", queue.name)
    items: Iterator[dict[str, object]] = (shown_model(_view(each, most)) for each in seen)
    head = encode(
        {
            "queue": queue.name,
            "priority": priority,
            "priorities": len(queue.ready.sub_queues),
            "next": None if following < 0 else following,
        }
    )
    parts = in_parts(head[:-1] + b',"messages":[', items, lambda: b"]}")
    return ApiAnswer(200, parts=parts)


def _view(seen: Seen, most: int) -> SeenMessage:
    message = seen.message
    part = beginning(message.content, most)
    is_cut = content_size(part) < message.size
    text, encoded = text_or_base64(part)
    if is_cut:
        # A character that is cut in two is left out.
        with contextlib.suppress(UnicodeDecodeError):
            text, _ = text_or_base64(_whole_characters(b"".join(content_parts(part))))
    properties = message.properties()
    return SeenMessage(
        number=seen.number,
        redelivered=seen.is_redelivered,
        exchange=message.address.exchange,
        key=message.address.key.decode(errors="replace"),
        published_at=message.timestamp,
        expires_at=seen.expires or None,
        mode=_MODES[message.mode],
        priority=message.priority,
        bytes=message.size,
        is_cut=is_cut,
        payload=text,
        payload_base64=encoded,
        properties=properties_of(properties),
        headers=headers_of(properties),
    )


def _whole_characters(part: bytes) -> bytes:
    """The beginning of some text, without what it has of the last character if that is cut."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    decoder.decode(part)
    return part[: len(part) - len(decoder.getstate()[0])]


ENDPOINTS: Final = (
    operation(
        "GET",
        "vhosts/{vhost}/queues/{queue}/messages",
        browse,
        "Look at messages of a queue, and take none",
        tags=CLIENTS,
        vhost=ENTERED,
        result=SeenMessages,
        query=(_FIRST, _LIMIT, _PRIORITY, _BYTES),
    ),
)
