"""Addresses as level lists: the mapping between MQTT topics and AMQP routing keys, and matching.

The two protocols write one level list in two ways: MQTT parts levels by ``/``, AMQP by ``.``.
``topic_of`` and ``key_of`` exchange the two characters, so a ``.`` inside an MQTT level becomes a
``/`` inside an AMQP word and back: a bijection with no escape character. What AMQP allows in a word
and MQTT forbids in a topic name (``+``, ``#``, U+0000; MQTT-3.3.2-2, MQTT-1.5.4-2) is written
``%2B``, ``%23``, ``%00`` toward MQTT. A text that already looks like that escape gains one ``25``
(``%2B`` <-> ``%252B``), which keeps the mapping one to one. A routing key that is empty or is not
UTF-8 has no MQTT form.

Patterns are lists of levels in which ONE stands for any one level and MANY for any number of
levels, none included. AMQP allows MANY anywhere, MQTT at the end only.
"""

from __future__ import annotations

import re
from typing import Any, Final, Generic, TypeVar

from trivium.common.bag import Bag, items_of, put_in, take_out
from trivium.errors import MAX_VISITS, RouteTooCostly

ONE: Final = b"\x00+"
MANY: Final = b"\x00#"

#: A topic or key of more levels is refused, so that no match or tree walk nests deeper.
MAX_LEVELS: Final = 128

#: What topics begin with that are not for clients to publish to (MQTT5 4.7.2).
DOLLAR: Final = 0x24
#: First level of the addresses that are the broker's own (MQTT5 4.7.2).
RESERVED: Final = b"$SYS"
_BELOW_RESERVED: Final = RESERVED + b"."

# To look for a number in bytes is twenty times faster than for bytes.
_STAR: Final = 0x2A
_HASH: Final = 0x23
_PERCENT: Final = 0x25

_SWAP: Final = bytes.maketrans(b"/.", b"./")
_TO_ESCAPE: Final = re.compile(rb"[+#\x00]|%(?=(?:25)*(?:2B|23|00))")
_TO_UNESCAPE: Final = re.compile(rb"%(?:25)*(?:2B|23|00)")
_MAY_ESCAPE: Final = re.compile(rb"[+#\x00%]")
_TO_ESCAPE_IN_WORD: Final = re.compile(rb"/|%(?=(?:25)*2F)")


def _escape(found: re.Match[bytes]) -> bytes:
    return b"%%%02X" % found.group()[0]


def _unescape(found: re.Match[bytes]) -> bytes:
    text = found.group()
    return b"%" + text[3:] if len(text) > 3 else bytes((int(text[1:], 16),))


def key_of(topic: bytes) -> bytes:
    """The canonical routing key of an MQTT topic name."""
    key = topic.translate(_SWAP)
    return _TO_UNESCAPE.sub(_unescape, key) if _PERCENT in key else key


def topic_of(key: bytes) -> bytes | None:
    """The MQTT topic name of a canonical routing key; None when it has none."""
    if not key:
        return None
    topic = key.translate(_SWAP)
    if _MAY_ESCAPE.search(topic) is not None:
        topic = _TO_ESCAPE.sub(_escape, topic)
    if not topic.isascii():
        try:
            topic.decode()
        except UnicodeDecodeError:
            return None
    return topic


def word_of(name: bytes) -> bytes:
    """A name, which may have any characters, as one word of routing keys: no two names share one.

    It is the level ``name`` of an MQTT topic. A ``/``, which no level can have, is written ``%2F``,
    and a text that already looks like that escape gains one ``25``; ``topic_of`` does the like for
    what else MQTT forbids.
    """
    return _TO_ESCAPE_IN_WORD.sub(_escape, name).translate(_SWAP)


def levels_of(key: bytes) -> list[bytes]:
    """The levels of a canonical routing key, empty ones included; an empty key has none."""
    return key.split(b".") if key else []


def is_reserved(key: bytes) -> bool:
    """Whether an address is the broker's own: what clients publish there does not reach MQTT."""
    return key == RESERVED or key.startswith(_BELOW_RESERVED)


def key_pattern(pattern: bytes) -> list[bytes]:
    """The levels of an AMQP binding key: ``*`` is any one word, ``#`` any number of words."""
    words = levels_of(pattern)
    if _STAR not in pattern and _HASH not in pattern:
        return words
    levels: list[bytes] = []
    for word in words:
        levels.append(ONE if word == b"*" else MANY if word == b"#" else word)
    return levels


def filter_pattern(topic_filter: bytes) -> list[bytes]:
    """The levels of a valid MQTT topic filter: ``+`` is any one level, a last ``#`` all further."""
    levels: list[bytes] = []
    for level in topic_filter.split(b"/"):
        if level == b"+":
            levels.append(ONE)
        elif level == b"#":
            levels.append(MANY)
        else:
            levels.append(key_of(level))
    return levels


def hides_dollar(levels: list[bytes]) -> bool:
    """Whether an MQTT filter starts with a wildcard: then no ``$`` topic matches (MQTT-4.7.2-1)."""
    return levels[0] == ONE or levels[0] == MANY


def matches(pattern: list[bytes], levels: list[bytes]) -> bool:
    """Whether a level list matches a pattern. Time is bounded by the product of both lengths."""
    if MANY not in pattern:
        if len(pattern) != len(levels):
            return False
        for wanted, level in zip(pattern, levels, strict=True):
            if wanted != level and wanted != ONE:
                return False
        return True
    # Greedy matching with one step back to the latest MANY, as for shell globs: never exponential.
    at, position, many_at, resume = 0, 0, -1, 0
    while position < len(levels):
        if at < len(pattern) and pattern[at] == MANY:
            many_at = at
            resume = position
            at += 1
        elif at < len(pattern) and (pattern[at] == ONE or pattern[at] == levels[position]):
            at += 1
            position += 1
        elif many_at >= 0:
            at = many_at + 1
            resume += 1
            position = resume
        else:
            return False
    while at < len(pattern) and pattern[at] == MANY:
        at += 1
    return at == len(pattern)


T = TypeVar("T")


#: The children of a node that has none. Nothing is ever put in.
_NO_CHILDREN: Final[dict[bytes, Any]] = {}


class _Node(Generic[T]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[T]] = _NO_CHILDREN
        self.values: T | Bag[T] | None = None


class PatternTree(Generic[T]):
    """Values stored under patterns; finds those whose pattern matches a level list.

    A walk keeps the set of tree positions reached so far, so a pattern with several MANY costs at
    most (levels x positions), never a backtracking search.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._size = 0
        #: tree positions that the last match reached
        self.visits = 0

    def __len__(self) -> int:
        return self._size

    def add(self, pattern: list[bytes], value: T) -> None:
        """Store ``value`` under ``pattern``; several values may share a pattern, each once."""
        node = self._root
        for level in pattern:
            child = node.children.get(level)
            if child is None:
                child = _Node()
                if node.children is _NO_CHILDREN:
                    node.children = {}
                node.children[level] = child
            node = child
        node.values = put_in(node.values, value)
        self._size += 1

    def remove(self, pattern: list[bytes], value: T) -> bool:
        """Remove one ``value`` stored under ``pattern``; whether it was there."""
        path: list[_Node[T]] = [self._root]
        for level in pattern:
            child = path[-1].children.get(level)
            if child is None:
                return False
            path.append(child)
        try:
            path[-1].values = take_out(path[-1].values, value)
        except KeyError:
            return False
        self._size -= 1
        for depth in range(len(pattern), 0, -1):
            if path[depth].values is not None or path[depth].children:
                break
            del path[depth - 1].children[pattern[depth - 1]]
        return True

    def match(self, levels: list[bytes]) -> list[T]:
        """All values whose pattern matches, each once per pattern it is stored under.

        Raises RouteTooCostly.
        """
        current: dict[int, tuple[_Node[T], bool]] = {}
        _reach(current, self._root, False)
        visits = 0
        for level in levels:
            visits += len(current)
            if visits > MAX_VISITS:
                raise RouteTooCostly
            following: dict[int, tuple[_Node[T], bool]] = {}
            for node, is_many in current.values():
                if is_many:
                    _reach(following, node, True)
                child = node.children.get(level)
                if child is not None:
                    _reach(following, child, False)
                child = node.children.get(ONE)
                if child is not None:
                    _reach(following, child, False)
            if not following:
                self.visits = visits
                return []
            current = following
        self.visits = visits + len(current)
        found: list[T] = []
        for node, _ in current.values():
            if node.values is not None:
                found.extend(items_of(node.values))
        return found


def _reach(positions: dict[int, tuple[_Node[T], bool]], node: _Node[T], is_many: bool) -> None:
    """Enter ``node``, and through MANY children, which may match nothing, what lies behind."""
    while True:
        known = positions.get(id(node))
        if known is not None and (known[1] or not is_many):
            return
        positions[id(node)] = (node, is_many)
        child = node.children.get(MANY)
        if child is None:
            return
        node = child
        is_many = True
