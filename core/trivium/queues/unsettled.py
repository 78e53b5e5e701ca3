"""Deliveries that a client has not settled yet, by their tags.

Tags ascend by one with each delivery. So deliveries lie in blocks, each with a slot for every one
of ``BLOCK_SIZE`` neighbouring tags, and the blocks in a list: one is found without a search where
deliveries are settled in order, and with few steps where they are not.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Generic, TypeVar

from mypy_extensions import i64

_SHIFT: Final[i64] = 7
#: Tags of a block. A smaller one leaves less behind where few deliveries are not settled, a larger
#: one makes fewer blocks, which move as one of them becomes empty.
BLOCK_SIZE: Final = 128
_MASK: Final[i64] = 127

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
    """What is kept for each unsettled delivery, in ascending order of the tags.

    Tags need not be dense, but what is added must have a higher one than what was added before.
    """

    __slots__ = ("_numbers", "_size", "blocks")

    def __init__(self) -> None:
        self._size: i64 = 0
        #: the blocks, to be read only: none is empty but the last one
        self.blocks: list[Block[T]] = []
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return self._size

    def add(self, tag: i64, value: T) -> None:
        """A delivery was made; its tag is higher than all others."""
        number: i64 = tag >> _SHIFT
        blocks = self.blocks
        if not blocks or blocks[-1].number != number:
            self._begin_block(number)
        block = blocks[-1]
        at: i64 = tag & _MASK
        block.slots[at] = value
        if at < block.low:
            # A range that was taken out went beyond what there was.
            block.low = at
        block.live += 1
        self._size += 1

    def _begin_block(self, number: i64) -> None:
        if self.blocks and self.blocks[-1].live == 0:
            self._drop(len(self.blocks) - 1)
        self.blocks.append(Block(number))
        self._numbers.append(number)

    def pop(self, tag: i64) -> T | None:
        """Take out the delivery ``tag``; None when it is not unsettled."""
        number: i64 = tag >> _SHIFT
        index = self._index(number)
        blocks = self.blocks
        if index == len(blocks) or blocks[index].number != number:
            return None
        block = blocks[index]
        at: i64 = tag & _MASK
        value = block.slots[at]
        if value is None:
            return None
        block.slots[at] = None
        if at == block.low:
            block.low = at + 1
        block.live -= 1
        self._size -= 1
        if block.live == 0 and index + 1 < len(blocks):
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
        if start < index and (blocks[index - 1].live or index == len(blocks)):
            index -= 1
        if start < index:
            del blocks[start:index]
            del self._numbers[start:index]
        return taken

    def put_back(self, tag: i64, value: T) -> None:
        """A delivery that was taken out is unsettled again."""
        number: i64 = tag >> _SHIFT
        index = self._index(number)
        if index == len(self.blocks) or self.blocks[index].number != number:
            self.blocks.insert(index, Block(number))
            self._numbers.insert(index, number)
        block = self.blocks[index]
        at: i64 = tag & _MASK
        block.slots[at] = value
        block.low = min(block.low, at)
        block.live += 1
        self._size += 1

    def first(self) -> tuple[int, T] | None:
        """The tag and value of the oldest one; None when there is none."""
        if self._size == 0:
            return None
        block = self.blocks[0]
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

    def _index(self, number: i64) -> int:
        """Index of the first block whose number is not lower."""
        blocks = self.blocks
        if not blocks or blocks[0].number >= number:
            return 0
        return bisect_left(self._numbers, number)

    def _drop(self, index: int) -> None:
        del self.blocks[index]
        del self._numbers[index]
