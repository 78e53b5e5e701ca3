"""Retained messages: the last message per address that asked to be kept, found by pattern.

The rows live in a ``Table`` (so they are durable in the write batch of their publish). Beside them
stand their keys in order, by which a new subscription finds the ones that it matches, in a walk
that goes on as the subscriber takes more. There may be millions, so nothing else is kept of each: a
message is decoded when it is wanted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import methodcaller
from typing import Final

from trivium.common.quotas import RETAINED_BYTES, RETAINED_MESSAGES
from trivium.messages.message import Message, decode_record
from trivium.messages.topics import MANY, ONE, RESERVED, hides_dollar, is_reserved
from trivium.storage.base import Table

#: The exchange whose messages can be retained: the one that MQTT clients publish to.
RETAINING_EXCHANGE: Final = "amq.topic"

#: Keys of a run when it is split into two. To add one moves half of those behind it, and the runs
#: behind its own: a million keys are some 2,000 runs.
_MOST: Final = 1024
#: Messages that are kept decoded, and bytes of their records: subscribers that come together read
#: the same ones, and share what they are given.
_DECODED: Final = 1024
_DECODED_BYTES: Final = 4 << 20

#: Keys are ordered level by level, so that all below a level stand together. That is the order of
#: their bytes once the dot is the least of them.
_ORDER: Final = bytes([*range(1, 47), 0, *range(47, 256)])
#: A key, or a level of one, in the form that is ordered. (A function would be slow to sort by.)
_place_of: Final[Callable[[bytes], bytes]] = methodcaller("translate", _ORDER)
_DOT: Final = b"\x00"
#: Keys without any of these bytes are in that order as they are.
_BEFORE_DOT: Final = bytes(range(46))
#: Keys that are searched for these bytes together.
_SEARCHED: Final = 1024
#: Stands behind all that is below a level.
_BEHIND: Final = b"\x01"
#: Where those with a first level that begins with ``$`` begin, and where they end.
_DOLLAR: Final = b"$".translate(_ORDER)
_BEHIND_DOLLAR: Final = b"%".translate(_ORDER)


class _Run:
    """Neighbouring keys in order, and of each message what its record does not say."""

    def __init__(self, keys: list[bytes], origins: list[object], sequences: array[int]) -> None:
        self.keys = keys
        #: ``Message.origin``, None of those from before the start
        self.origins = origins
        #: number of each message, 0 of those from before the start
        self.sequences = sequences

    def find(self, place: bytes) -> int:
        """Index of the first key that is not before ``place``, in the form that is ordered."""
        return bisect_left(self.keys, place, key=_place_of)


def _put_in_order(keys: list[bytes]) -> None:
    """Bring ``keys`` in the order in which runs have them. A start may do it with millions."""
    for at in range(0, len(keys), _SEARCHED):
        joined = b"".join(keys[at : at + _SEARCHED])
        if len(joined.translate(None, _BEFORE_DOT)) < len(joined):
            keys.sort(key=_place_of)
            return
    keys.sort()


class RetainedMessages:
    """Retained messages of one virtual host. ``table`` may already hold rows: they are loaded."""

    def __init__(
        self,
        table: Table,
        refused: Callable[[int], object] = lambda what: None,
        is_own: bool = False,
    ) -> None:
        # Whether they are the broker's own, and no others.
        self._is_own = is_own
        #: how many messages were kept since the start; each knows its number
        self.sequence = 0
        self._table = table
        #: how many there may be, and bytes of their records; -1 for any number
        self.most = -1
        self.most_bytes = -1
        #: bytes of their records
        self.bytes = 0
        # Told which of these limits a message would have passed.
        self._refused = refused
        self._decoded: dict[bytes, Message] = {}
        self._decoded_bytes = 0
        keys: list[bytes] = []
        for key, record in table.items():
            keys.append(key)
            self.bytes += len(record)
        _put_in_order(keys)
        whole = _Run(keys, [], array("q"))
        # Of a broker that let clients publish there.
        reserved = RESERVED.translate(_ORDER)
        first, end = whole.find(reserved), whole.find(reserved + _BEHIND)
        self.bytes -= sum(self._size_of(key) for key in keys[first:end])
        del keys[first:end]
        self._count = len(keys)
        #: the keys in order, in runs; no key is before where its run begins, nor at or behind where
        #: the next one does
        self._runs: list[_Run] = []
        self._begins: list[bytes] = []
        half = _MOST // 2
        for at in range(0, max(len(keys), 1), half):
            part = keys[at : at + half]
            self._runs.append(_Run(part, [None] * len(part), array("q", bytes(8 * len(part)))))
            self._begins.append(_place_of(part[0]) if at else b"")

    def __len__(self) -> int:
        return self._count

    def keep(self, message: Message) -> None:
        """Make ``message`` the retained one of its key; an empty payload clears (MQTT-3.3.1-6).

        Nothing is kept for an address that is the broker's own, nor beyond a limit: what is there
        of the address stays then.
        """
        key = message.address.key
        if is_reserved(key) != self._is_own:
            return
        if not message.size:
            self.clear(key)
            return
        place = _place_of(key)
        number = self._run_of(place)
        run = self._runs[number]
        index = run.find(place)
        is_known = index < len(run.keys) and run.keys[index] == key
        if not is_known and 0 <= self.most <= self._count:
            self._refused(RETAINED_MESSAGES)
            return
        record = message.record()
        size = self.bytes + len(record) - (self._size_of(key) if is_known else 0)
        if 0 <= self.most_bytes < size:
            self._refused(RETAINED_BYTES)
            return
        self.bytes = size
        self._table.put(key, record)
        self._decoded.pop(key, None)
        self.sequence += 1
        if is_known:
            run.origins[index] = message.origin
            run.sequences[index] = self.sequence
            return
        run.keys.insert(index, key)
        run.origins.insert(index, message.origin)
        run.sequences.insert(index, self.sequence)
        self._count += 1
        if len(run.keys) == _MOST:
            half = _MOST // 2
            behind = _Run(run.keys[half:], run.origins[half:], run.sequences[half:])
            del run.keys[half:]
            del run.origins[half:]
            del run.sequences[half:]
            self._runs.insert(number + 1, behind)
            self._begins.insert(number + 1, _place_of(behind.keys[0]))

    def _size_of(self, key: bytes) -> int:
        record = self._table.get(key)
        return 0 if record is None else len(record)

    def clear(self, key: bytes) -> None:
        """Forget the retained message of ``key``, if there is one."""
        place = _place_of(key)
        number = self._run_of(place)
        run = self._runs[number]
        index = run.find(place)
        if index == len(run.keys) or run.keys[index] != key:
            return
        self.bytes -= self._size_of(key)
        self._table.delete(key)
        self._decoded.pop(key, None)
        self._count -= 1
        del run.keys[index]
        del run.origins[index]
        del run.sequences[index]
        if not run.keys and len(self._runs) > 1:
            del self._runs[number]
            del self._begins[number]
            self._begins[0] = b""

    def get(self, key: bytes) -> Message | None:
        """The retained message of exactly this key. Raises RecordError when the row is none."""
        run, index = self.find(_place_of(key))
        return None if run is None or run.keys[index] != key else self.message_at(run, index)

    def message_at(self, run: _Run, index: int) -> Message:
        """The message of a key in ``run``. Raises RecordError when the row is none."""
        key = run.keys[index]
        found = self._decoded.get(key)
        if found is None:
            record = self._table.get(key)
            assert record is not None
            found = decode_record(record)
            found.origin = run.origins[index]
            if len(self._decoded) >= _DECODED or self._decoded_bytes >= _DECODED_BYTES:
                self._decoded.clear()
                self._decoded_bytes = 0
            self._decoded[key] = found
            self._decoded_bytes += len(record)
        return found

    def find(self, place: bytes) -> tuple[_Run | None, int]:
        """Where the first key is that is not before ``place``; no run when there is none."""
        number = self._run_of(place)
        run = self._runs[number]
        index = run.find(place)
        if index < len(run.keys):
            return run, index
        # Only a single run may be empty.
        return (None, 0) if number + 1 == len(self._runs) else (self._runs[number + 1], 0)

    def walk(self, pattern: list[bytes], after: bytes) -> RetainedWalk:
        """A walk over the messages that match an MQTT filter's pattern.

        ``after`` is the key of the last one that is not wanted again, empty for none.
        """
        return RetainedWalk(self, pattern, after)

    def _run_of(self, place: bytes) -> int:
        return bisect_right(self._begins, place) - 1


class RetainedWalk:
    """A walk over retained messages in the order of their keys, level by level.

    From a key that does not match it goes to the first that may, by the order of the keys. They may
    change between any two steps: what is found is what is there then. Only the key where it stands
    needs to be known to take it up again, also after a restart. A wildcard first level does not
    match a ``$`` level (MQTT-4.7.2-1).
    """

    def __init__(self, retained: RetainedMessages, pattern: list[bytes], after: bytes) -> None:
        #: whether the walk stands at a key of the pattern
        self.is_at_match = False
        #: whether there is nothing more
        self.is_finished = False
        #: the key where the walk stands
        self.key = after
        self._retained = retained
        # Levels in the form that is ordered.
        self._pattern = [level if level in (ONE, MANY) else _place_of(level) for level in pattern]
        self._hides_dollar = hides_dollar(pattern)
        # The next key is looked for from here on.
        self._place = _place_of(after) + _DOT
        # Where the key was found, which is where it is unless others came or went before it.
        self._run: _Run | None = None
        self._index = 0

    @property
    def message(self) -> Message | None:
        """What is retained where the walk stands, as it is now; None if that was cleared."""
        run = self._run if self._is_here() else None
        return None if run is None else self._retained.message_at(run, self._index)

    @property
    def sequence(self) -> int:
        """``RetainedMessages.sequence`` when that message was kept."""
        run = self._run if self._is_here() else None
        return 0 if run is None else run.sequences[self._index]

    def _is_here(self) -> bool:
        """Whether the walk's key is there; then ``_run`` and ``_index`` say where."""
        run = self._run
        index = self._index
        if run is None or index >= len(run.keys) or run.keys[index] is not self.key:
            run, index = self._retained.find(_place_of(self.key))
            if run is None or run.keys[index] != self.key:
                return False
            self._run, self._index = run, index
        return True

    def advance(self, steps: int) -> int:
        """Go to the next match, looking at so many keys at most; those that are left."""
        was_at_match = self.is_at_match
        self.is_at_match = False
        while steps > 0 and not self.is_finished:
            run, index = self._next(was_at_match)
            was_at_match = False
            if run is None:
                self.is_finished = True
                break
            steps -= 1
            self._run, self._index = run, index
            self.key = run.keys[index]
            place = _place_of(self.key)
            self._place = self._look(place)
            if self._place == place:
                self.is_at_match = True
                self._place = place + _DOT
                break
            if not self._place:
                self.is_finished = True
        return steps

    def _next(self, is_behind: bool) -> tuple[_Run | None, int]:
        """Where the first key is from ``_place`` on, which ``is_behind`` the walk's
        own; no run when there is none."""
        run = self._run
        index = self._index + 1
        if (
            is_behind
            and run is not None
            and index < len(run.keys)
            and run.keys[index - 1] is self.key
        ):
            return run, index
        return self._retained.find(self._place)

    def _look(self, place: bytes) -> bytes:
        """``place`` itself if a key, in the form that is ordered, matches; else where the next one
        may be that does, which is behind it; empty for nowhere."""
        if self._hides_dollar and place.startswith(_DOLLAR):
            return _BEHIND_DOLLAR
        levels = place.split(_DOT)
        at = 0
        for depth, wanted in enumerate(self._pattern):
            if wanted == MANY:
                return place
            if depth == len(levels):
                return place + _DOT
            level = levels[depth]
            if wanted != ONE and level != wanted:
                if level < wanted:
                    return place[:at] + wanted
                return place[: at - 1] + _BEHIND if at else b""
            at += len(level) + 1
        return place if len(levels) == len(self._pattern) else place[: at - 1] + _BEHIND
