"""The staged parts of one producer: by their names, and by the numbers that they belong to."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from trivium.storage.base import Log


class Part:
    """What one client has staged."""

    __slots__ = ("hour", "is_decided", "key", "log", "log_name", "name", "sequence")

    def __init__(self, key: bytes, name: str, sequence: int, log_name: str, log: Log) -> None:
        #: of its row
        self.key = key
        self.name = name
        self.sequence = sequence
        self.log_name = log_name
        #: a record per request; its offsets are their numbers
        self.log = log
        self.hour = 0
        self.is_decided = False

    @property
    def left(self) -> int:
        """Requests that are staged and not published."""
        return len(self.log)


class StagedParts:
    """Such parts. Each is added and removed in few steps, however many there are."""

    def __init__(self) -> None:
        #: all of them, by name; to be read only
        self.by_name: dict[str, Part] = {}
        # Those that are not decided on, by number. Each number here is once in the heap, also
        # when it has no parts any more.
        self._undecided: dict[int, dict[str, Part]] = {}
        self._numbers: list[int] = []

    def add(self, part: Part) -> None:
        """One more, whose name no other has."""
        self.by_name[part.name] = part
        if part.is_decided:
            return
        parts = self._undecided.get(part.sequence)
        if parts is None:
            parts = self._undecided[part.sequence] = {}
            heappush(self._numbers, part.sequence)
        parts[part.name] = part

    def decide(self, part: Part) -> None:
        """It counts."""
        part.is_decided = True
        del self._undecided[part.sequence][part.name]

    def remove(self, part: Part) -> None:
        """It is published or forgotten."""
        del self.by_name[part.name]
        if part.is_decided:
            return
        # It may be that of a number whose turn ``undecided_up_to`` was.
        parts = self._undecided.get(part.sequence, {})
        parts.pop(part.name, None)
        if len(self._numbers) > 2 * len(self.by_name):
            self._undecided = {number: each for number, each in self._undecided.items() if each}
            self._numbers = list(self._undecided)
            heapify(self._numbers)

    def undecided_up_to(self, sequence: int) -> list[Part]:
        """Those of this number and older ones that are not decided on; they are to be removed."""
        found: list[Part] = []
        while self._numbers and self._numbers[0] <= sequence:
            found.extend(self._undecided.pop(heappop(self._numbers)).values())
        return found
