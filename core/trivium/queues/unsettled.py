"""Deliveries that a client has not settled yet, by their tags.

Tags mostly ascend by one with each delivery. So deliveries lie in blocks, each with a slot for
every one of ``BLOCK_SIZE`` neighbouring tags, and the blocks in a list: one is found without a
search where deliveries are settled in order, and with few steps where they are not.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Generic, TypeVar

from mypy_extensions import i64

_SHIFT: Final[i64] = 5
#: Tags of a block. A smaller one leaves less behind where few deliveries are not settled, a larger
#: one makes fewer blocks, which move as one of them becomes empty.
BLOCK_SIZE: Final = 32
_MASK: Final[i64] = 31

T = TypeVar("T")


class Block(Generic[T]):
    """The slots of neighbouring tags, of which ``number`` is the common part."""

    __slots__ = ("live", "low", "number", "slots")

    def __init__(self, number: i64) -> None:
        self.number: i64 = number
        self.slots: list[T | None] = [None] * BLOCK_SIZE
        #: slots in use; those before ``low`` are not
        self.live: i64 = 0
        self.low: i64 = 0


class Unsettled(Generic[T]):
    """What is kept for each unsettled delivery, in ascending order of the tags."""

    __slots__ = ("_newest", "_numbers", "_size", "blocks")

    def __init__(self) -> None:
        self._size: i64 = 0
        #: the blocks in ascending order, to be read only
        self.blocks: list[Block[T]] = []
        self._numbers: list[int] = []
        # The block of the last one that was added, which alone may be empty.
        self._newest: Block[T] | None = None

    def __len__(self) -> int:
        return self._size

    def add(self, tag: i64, value: T) -> bool:
        """A delivery is unsettled, for the first time or again; False when another has its tag."""
        number: i64 = tag >> _SHIFT
        block = self._newest
        if block is None or block.number != number:
            block = self._begin(number)
        at: i64 = tag & _MASK
        slots = block.slots
        if slots[at] is not None:
            return False
        slots[at] = value
        if at < block.low:
            block.low = at
        block.live += 1
        self._size += 1
        return True

    def _begin(self, number: i64) -> Block[T]:
        """The block ``number``, from here on the newest."""
        newest = self._newest
        if newest is not None and newest.live == 0:
            self._drop(self._index(newest.number))
        index = self._index(number)
        if index == len(self.blocks) or self.blocks[index].number != number:
            self.blocks.insert(index, Block(number))
            self._numbers.insert(index, number)
        block = self.blocks[index]
        self._newest = block
        return block

    def get(self, tag: i64) -> T | None:
        """The delivery ``tag``; None when it is not unsettled."""
        number: i64 = tag >> _SHIFT
        block = self._newest
        if block is None or block.number != number:
            index = self._index(number)
            if index == len(self.blocks):
                return None
            block = self.blocks[index]
            if block.number != number:
                return None
        return block.slots[tag & _MASK]

    def pop(self, tag: i64) -> T | None:
        """Take out the delivery ``tag``; None when it is not unsettled."""
        number: i64 = tag >> _SHIFT
        blocks = self.blocks
        if not blocks:
            return None
        index = 0
        block = blocks[0]
        if block.number != number:
            index = bisect_left(self._numbers, number)
            if index == len(blocks):
                return None
            block = blocks[index]
            if block.number != number:
                return None
        at: i64 = tag & _MASK
        slots = block.slots
        value = slots[at]
        if value is None:
            return None
        slots[at] = None
        if at == block.low:
            block.low = at + 1
        block.live -= 1
        self._size -= 1
        if block.live == 0 and block is not self._newest:
            self._drop(index)
        return value

    def pop_range(self, first: i64, last: i64) -> list[tuple[int, T]]:
        """Take out the deliveries ``first`` to ``last``: tags and values, in ascending order."""
        tags: list[int] = []
        values = self.pop_values(first, last, tags)
        return list(zip(tags, values, strict=True))

    def pop_values(self, first: i64, last: i64, tags: list[int] | None = None) -> list[T]:
        """``pop_range`` without the tags, which go into ``tags``."""
        taken: list[T] = []
        blocks = self.blocks
        start = index = self._index(first >> _SHIFT)
        while index < len(blocks):
            block = blocks[index]
            base: i64 = block.number << _SHIFT
            if base > last:
                break
            at: i64 = max(first - base, block.low)
            end: i64 = min(last - base, _MASK) + 1
            if at == block.low and end > at:
                block.low = end
            before = len(taken)
            slots = block.slots
            while at < end:
                value = slots[at]
                if value is not None:
                    slots[at] = None
                    taken.append(value)
                    if tags is not None:
                        tags.append(base + at)
                at += 1
            block.live -= len(taken) - before
            index += 1
        self._size -= len(taken)
        # Only the outermost blocks of the range can have something left.
        if start < index and blocks[start].live:
            start += 1
        if start < index and blocks[index - 1].live:
            index -= 1
        if start < index:
            newest = self._newest
            if (
                newest is not None
                and blocks[start].number <= newest.number <= blocks[index - 1].number
            ):
                self._newest = None
            del blocks[start:index]
            del self._numbers[start:index]
        return taken

    def first(self) -> tuple[int, T] | None:
        """The tag and value of the oldest one; None when there is none."""
        if self._size == 0:
            return None
        block = self.blocks[0]
        if block.live == 0:
            block = self.blocks[1]
        at = block.low
        while block.slots[at] is None:
            at += 1
        block.low = at
        value = block.slots[at]
        assert value is not None
        return (block.number << _SHIFT) + at, value

    def items(self) -> list[tuple[int, T]]:
        """Tags and values of all, in ascending order."""
        found: list[tuple[int, T]] = []
        for block in self.blocks:
            tag: i64 = block.number << _SHIFT
            for value in block.slots:
                if value is not None:
                    found.append((tag, value))
                tag += 1
        return found

    def clear(self) -> None:
        """Forget all."""
        self._size = 0
        self.blocks = []
        self._numbers = []
        self._newest = None

    def _index(self, number: i64) -> int:
        """Index of the first block whose number is not lower."""
        blocks = self.blocks
        if not blocks or blocks[0].number >= number:
            return 0
        return bisect_left(self._numbers, number)

    def _drop(self, index: int) -> None:
        del self.blocks[index]
        del self._numbers[index]
