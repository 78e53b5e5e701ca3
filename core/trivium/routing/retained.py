"""Retained messages: the last message per address that asked to be kept, found by pattern.

The rows live in a ``Table`` (so they are durable in the write batch of their publish); a tree over
the levels of the keys answers a new subscription, by a walk that goes on as the subscriber takes
more.
"""

from __future__ import annotations

from heapq import heapify, heappop
from typing import Final

from trivium.messages.message import Message, decode_record
from trivium.messages.topics import MANY, ONE, is_reserved, levels_of
from trivium.storage.base import Table

#: The exchange whose messages can be retained: the one that MQTT clients publish to.
RETAINING_EXCHANGE: Final = "amq.topic"


class _Level:
    """A level of the tree, with the message of the key that ends there and its number."""

    def __init__(self) -> None:
        self.children: dict[bytes, _Level] = {}
        #: the message as it is stored, None when there is none
        self.record: bytes | None = None
        self.sequence = 0
        #: the same decoded, which it is when it is wanted: a start does not wait for that
        self._message: Message | None = None

    @property
    def message(self) -> Message | None:
        """The message. Raises RecordError when what is stored is none."""
        if self._message is None and self.record is not None:
            self._message = decode_record(self.record)
        return self._message

    def put(self, record: bytes | None, message: Message | None) -> None:
        """Have this message, or none, instead."""
        self.record = record
        self._message = message


class RetainedMessages:
    """Retained messages of one virtual host. ``table`` may already hold rows: they are loaded."""

    def __init__(self, table: Table) -> None:
        #: how many messages were kept since the start; each knows its number
        self.sequence = 0
        self.root = _Level()
        self._table = table
        self._count = 0
        for key, record in table.items():
            if is_reserved(key):
                # Of a broker that let clients publish there.
                continue
            self._place(key, record, None)

    def __len__(self) -> int:
        return self._count

    def keep(self, message: Message) -> None:
        """Make ``message`` the retained one of its key; an empty payload clears (MQTT-3.3.1-6).

        Nothing is kept for an address that is the broker's own.
        """
        key = message.address.key
        if is_reserved(key):
            return
        if not message.payload:
            self.clear(key)
            return
        record = message.record()
        self._table.put(key, record)
        self.sequence += 1
        self._place(key, record, message)

    def clear(self, key: bytes) -> None:
        """Forget the retained message of ``key``, if there is one."""
        path = [self.root]
        levels = levels_of(key)
        for level in levels:
            child = path[-1].children.get(level)
            if child is None:
                return
            path.append(child)
        if path[-1].record is None:
            return
        path[-1].put(None, None)
        self._count -= 1
        self._table.delete(key)
        for depth in range(len(levels), 0, -1):
            if path[depth].record is not None or path[depth].children:
                break
            del path[depth - 1].children[levels[depth - 1]]

    def get(self, key: bytes) -> Message | None:
        """The retained message of exactly this key."""
        level = self.find(levels_of(key))
        return None if level is None else level.message

    def find(self, path: list[bytes]) -> _Level | None:
        """The place of a level list in the tree."""
        level = self.root
        for name in path:
            child = level.children.get(name)
            if child is None:
                return None
            level = child
        return level

    def walk(self, pattern: list[bytes], after: bytes) -> RetainedWalk:
        """A walk over the messages that match an MQTT filter's pattern.

        ``after`` is the key of the last one that is not wanted again, empty for none.
        """
        return RetainedWalk(self, pattern, levels_of(after))

    def _place(self, key: bytes, record: bytes, message: Message | None) -> None:
        level = self.root
        for name in levels_of(key):
            child = level.children.get(name)
            if child is None:
                child = _Level()
                level.children[name] = child
            level = child
        if level.record is None:
            self._count += 1
        level.put(record, message)
        level.sequence = self.sequence


class RetainedWalk:
    """A walk over retained messages in the order of their keys, level by level.

    The tree may change between any two steps: what is found is what is there then. A key that is
    new on a level where the walk already is may be left out. Only the key where it stands needs to
    be known to take it up again, also after a restart. A wildcard first level does not match a
    ``$`` level (MQTT-4.7.2-1).
    """

    def __init__(
        self, retained: RetainedMessages, pattern: list[bytes], after: list[bytes]
    ) -> None:
        #: whether the walk stands at a key of the pattern
        self.is_at_match = False
        #: whether there is nothing more
        self.is_finished = False
        self._retained = retained
        self._pattern = pattern
        self._takes_all_below = pattern[-1] == MANY
        # Where to go on; empty once the walk is past it.
        self._after = after
        self._path: list[bytes] = []
        # Per level of the path, and one more: names that are still to be visited, as heaps. A heap
        # is as cheap as a list to make, and sorts no more of a huge level than is visited.
        self._names: list[list[bytes]] = [self._names_in(retained.root)]

    @property
    def key(self) -> bytes:
        """The key where the walk stands."""
        return b".".join(self._path)

    @property
    def message(self) -> Message | None:
        """What is retained where the walk stands, as it is now; None if that was cleared."""
        level = self._here()
        return None if level is None else level.message

    @property
    def sequence(self) -> int:
        """``RetainedMessages.sequence`` when that message was kept."""
        level = self._here()
        return 0 if level is None else level.sequence

    def advance(self, steps: int) -> int:
        """Go to the next match, with at most so many steps over the tree; those that are left."""
        self.is_at_match = False
        while steps > 0:
            if self._names[-1]:
                steps -= 1
                self._path.append(heappop(self._names[-1]))
                level = self._here()
                if level is None:
                    self._path.pop()
                    continue
                is_new = self._is_new()
                self._names.append(self._names_in(level))
                if is_new and level.record is not None and self._is_wanted():
                    self.is_at_match = True
                    return steps
            elif self._path:
                self._names.pop()
                self._path.pop()
            else:
                self.is_finished = True
                break
        return steps

    def _here(self) -> _Level | None:
        return self._retained.find(self._path) if self._path else None

    def _is_wanted(self) -> bool:
        depth = len(self._path)
        if self._takes_all_below:
            return depth >= len(self._pattern) - 1
        return depth == len(self._pattern)

    def _is_new(self) -> bool:
        """Whether the walk stands behind the place where it goes on."""
        after = self._after
        depth = len(self._path)
        if not after:
            return True
        if self._path == after[:depth]:
            return False
        self._after = []
        return True

    def _names_in(self, level: _Level) -> list[bytes]:
        """The names below ``level``, where the walk stands, that may lead to a match."""
        depth = len(self._path)
        pattern = self._pattern
        if depth < len(pattern):
            wanted = pattern[depth]
        elif self._takes_all_below:
            wanted = MANY
        else:
            return []
        if wanted in (ONE, MANY):
            names = list(level.children)
            if depth == 0:
                names = [name for name in names if not name.startswith(b"$")]
        else:
            names = [wanted] if wanted in level.children else []
        if depth < len(self._after):
            first = self._after[depth]
            names = [name for name in names if name >= first]
        heapify(names)
        return names
