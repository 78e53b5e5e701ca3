"""Topics of retained messages as a tree, level by level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from trivium.management.endpoints import ENTERED, BadRequest
from trivium.management.listing import Slices
from trivium.management.rest.operations import Parameter, asked, operation
from trivium.management.rest.retained import LIMIT, STEPS
from trivium.management.rest.schema import About, shown_model
from trivium.management.values import encode
from trivium.messages.topics import MAX_LEVELS, filter_pattern, key_of, topic_of
from trivium.observability.api import ApiAnswer
from trivium.routing.retained import RETAINING_EXCHANGE
from trivium.security.permissions import READ

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.security.permissions import Access

#: Behind a level it stands behind all that is below that level, in the order of keys.
_BEHIND: Final = b"\0"


@dataclass(frozen=True, slots=True)
class RetainedLevel:
    """A level of topics that have retained messages."""

    level: str
    topic: Annotated[str, About(text="up to this level")]
    has_message: Annotated[bool, About(text="whether one is retained for this topic itself")]
    has_levels: Annotated[bool, About(text="whether there are some below")]


@dataclass(frozen=True, slots=True)
class RetainedLevels:
    """Some of them, in their order."""

    items: list[RetainedLevel]
    next: Annotated[str | None, About(text="what `after` is for those behind these; null: none")]


_PREFIX: Final = Parameter(
    "prefix",
    Annotated[str, About(longest=1024, pattern=r"^(.*/)?$")],
    "what the topics begin with, up to a slash; those of the first level",
)
_AFTER: Final = Parameter(
    "after", Annotated[str, About(longest=1024)], "only behind this level: `next` of a part"
)


def levels(call: Call) -> ApiAnswer:
    """The next level of topics that begin so, where the caller may read something of it."""
    prefix = asked(call, _PREFIX, "")
    if prefix.count("/") >= MAX_LEVELS or set(prefix) & {"+", "#", "\0"}:
        raise BadRequest("'prefix' is no beginning of a topic")
    tree = _Tree(call, prefix, asked(call, _AFTER, None))
    return ApiAnswer(200, parts=tree.part(asked(call, LIMIT, 100)))


class _Tree:
    """Walks from level to level, and over what is below each."""

    def __init__(self, call: Call, prefix: str, after: str | None) -> None:
        self._retained = call.vhost.retained
        self._access: Access = call.access
        self._prefix = prefix
        self._key = key_of(prefix.encode())
        self._pattern = filter_pattern(f"{prefix}#".encode())
        # The topic without the last slash is not below it.
        self._walk = self._retained.walk(self._pattern, self._key[:-1])
        if after is not None:
            self._leave(after)
        # One that has a message, of which it is not known whether something is below.
        self._open: RetainedLevel | None = None

    def _leave(self, level: str) -> None:
        """Go on behind a level."""
        end = self._key + key_of(level.encode()) + _BEHIND
        self._walk = self._retained.walk(self._pattern, end)

    def part(self, limit: int) -> Iterator[bytes]:
        """The answer, made a part at a time."""
        slices = Slices()
        items: list[RetainedLevel] = []
        while len(items) < limit and not self._walk.is_finished:
            self._walk.advance(STEPS)
            found = self._look() if self._walk.is_at_match else None
            if found is not None:
                items.append(found)
            if slices.is_over:
                yield b""
                slices.begin()
        is_whole = self._walk.is_finished
        if is_whole and self._open is not None and len(items) < limit:
            items.append(self._open)
        following = None if is_whole or not items else items[-1].level
        yield encode(shown_model(RetainedLevels(items, following)))

    def _look(self) -> RetainedLevel | None:
        """The level of which all is known now."""
        key = self._walk.key
        topic = topic_of(key)
        if topic is None or not self._access.may_topic(READ, RETAINING_EXCHANGE, key):
            return None
        level, slash, _ = topic.decode()[len(self._prefix) :].partition("/")
        before = self._open
        if before is not None and before.level != level:
            self._open = None
            # This one is looked at once more.
            self._leave(before.level)
            return before
        if not slash:
            self._open = RetainedLevel(level, self._prefix + level, True, False)
            return None
        self._open = None
        self._leave(level)
        return RetainedLevel(level, self._prefix + level, before is not None, True)


ENDPOINTS: Final = (
    operation(
        "GET",
        "vhosts/{vhost}/retained-levels",
        levels,
        "Levels of topics with a retained message",
        vhost=ENTERED,
        result=RetainedLevels,
        query=(_PREFIX, _AFTER, LIMIT),
    ),
)
