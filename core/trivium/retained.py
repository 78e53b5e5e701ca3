"""Retained messages: the last message per address that asked to be kept, found by pattern.

The rows live in a ``Table`` (so they are durable in the batch of their publish); a tree over the
levels of the keys answers a new subscription.
"""

from __future__ import annotations

from typing import Final

from trivium.message import Message, decode_record
from trivium.storage.base import Table
from trivium.topics import MANY, ONE, levels_of

#: The exchange whose messages can be retained: the one that MQTT clients publish to.
RETAINING_EXCHANGE: Final = "amq.topic"


class _Level:
    def __init__(self) -> None:
        self.children: dict[bytes, _Level] = {}
        self.message: Message | None = None


class RetainedMessages:
    """Retained messages of one virtual host. ``table`` may already hold rows: they are loaded."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._root = _Level()
        self._count = 0
        for key, record in table.items():
            self._place(key, decode_record(record))

    def __len__(self) -> int:
        return self._count

    def keep(self, message: Message) -> None:
        """Make ``message`` the retained one of its key; an empty payload clears (MQTT-3.3.1-6)."""
        key = message.address.key
        if not message.payload:
            self.clear(key)
            return
        self._table.put(key, message.record())
        self._place(key, message)

    def clear(self, key: bytes) -> None:
        """Forget the retained message of ``key``, if there is one."""
        path = [self._root]
        levels = levels_of(key)
        for level in levels:
            child = path[-1].children.get(level)
            if child is None:
                return
            path.append(child)
        if path[-1].message is None:
            return
        path[-1].message = None
        self._count -= 1
        self._table.delete(key)
        for depth in range(len(levels), 0, -1):
            if path[depth].message is not None or path[depth].children:
                break
            del path[depth - 1].children[levels[depth - 1]]

    def get(self, key: bytes) -> Message | None:
        """The retained message of exactly this key."""
        level = self._root
        for name in levels_of(key):
            child = level.children.get(name)
            if child is None:
                return None
            level = child
        return level.message

    def match(self, pattern: list[bytes], now_ms: int) -> list[Message]:
        """The retained messages whose levels match an MQTT filter's pattern, expired ones left out.

        A wildcard first level does not match a ``$`` level (MQTT-4.7.2-1).
        """
        current = [self._root]
        for depth, wanted in enumerate(pattern):
            if wanted == MANY:
                found: list[Message] = []
                for level in current:
                    _collect(level, found, depth == 0)
                return _alive(found, now_ms)
            following: list[_Level] = []
            for level in current:
                if wanted == ONE:
                    for name, child in level.children.items():
                        if depth > 0 or not name.startswith(b"$"):
                            following.append(child)
                else:
                    named = level.children.get(wanted)
                    if named is not None:
                        following.append(named)
            if not following:
                return []
            current = following
        return _alive([level.message for level in current if level.message is not None], now_ms)

    def _place(self, key: bytes, message: Message) -> None:
        level = self._root
        for name in levels_of(key):
            child = level.children.get(name)
            if child is None:
                child = _Level()
                level.children[name] = child
            level = child
        if level.message is None:
            self._count += 1
        level.message = message


def _collect(start: _Level, found: list[Message], hides_dollar: bool) -> None:
    """Messages at and below ``start``, without recursion: keys may have many levels."""
    pending: list[_Level] = [start]
    is_first = True
    while pending:
        level = pending.pop()
        if level.message is not None:
            found.append(level.message)
        for name, child in level.children.items():
            if not (is_first and hides_dollar and name.startswith(b"$")):
                pending.append(child)
        is_first = False


def _alive(messages: list[Message], now_ms: int) -> list[Message]:
    return [message for message in messages if message.expires == 0 or message.expires > now_ms]
