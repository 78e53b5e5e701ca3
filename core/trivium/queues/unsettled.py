"""Deliveries that a client has not settled yet, by their tags.

Clients settle in any order, one by one or by ranges, and may have a million deliveries. So they lie
in blocks in the order of their tags: to take one out moves what its block holds, and no more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, Generic, TypeVar

#: Deliveries of a block. A smaller one moves fewer of them as one is taken out, a larger one makes
#: fewer blocks, which move as one of them becomes empty.
BLOCK_SIZE: Final = 128

T = TypeVar("T")


class Block(Generic[T]):
    """Neighbouring deliveries: their tags in ascending order, and at the same places the values."""

    __slots__ = ("tags", "values")

    def __init__(self, tags: list[int], values: list[T]) -> None:
        self.tags = tags
        self.values = values


class Unsettled(Generic[T]):
    """What is kept for each unsettled delivery, in ascending order of the tags.

    Tags need not be dense, but what is added must have a higher one than what was added before.
    """

    __slots__ = ("_last", "_size", "_starts", "blocks")

    def __init__(self) -> None:
        self._size = 0
        self._last: Block[T] = Block([], [])
        #: the blocks, to be read only: none is empty but the only one
        self.blocks: list[Block[T]] = [self._last]
        # The lowest tag that may be in each block. The first one takes all lower ones as well.
        self._starts: list[int] = [0]

    def __len__(self) -> int:
        return self._size

    def add(self, tag: int, value: T) -> None:
        """A delivery was made; its tag is higher than all others."""
        last = self._last
        if len(last.tags) >= BLOCK_SIZE:
            self._last = last = Block([], [])
            self.blocks.append(last)
            self._starts.append(tag)
        last.tags.append(tag)
        last.values.append(value)
        self._size += 1

    def pop(self, tag: int) -> T | None:
        """Take out the delivery ``tag``; None when it is not unsettled."""
        block = self.blocks[0]
        tags = block.tags
        index = at = 0
        if not tags or tags[0] != tag:
            # Out of order.
            index = bisect_right(self._starts, tag, 1) - 1
            block = self.blocks[index]
            tags = block.tags
            at = bisect_left(tags, tag)
            if at == len(tags) or tags[at] != tag:
                return None
        del tags[at]
        self._size -= 1
        value = block.values.pop(at)
        if not tags:
            self._drop_empty(index, index + 1)
        return value

    def pop_range(self, first: int, last: int) -> list[tuple[int, T]]:
        """Take out the deliveries ``first`` to ``last``: tags and values, in ascending order."""
        taken: list[tuple[int, T]] = []
        starts = self._starts
        low = bisect_right(starts, first, 1) - 1
        high = bisect_right(starts, last, 1)
        for index in range(low, high):
            block = self.blocks[index]
            tags, values = block.tags, block.values
            begin, end = bisect_left(tags, first), bisect_right(tags, last)
            if begin < end:
                taken.extend(zip(tags[begin:end], values[begin:end], strict=True))
                del tags[begin:end]
                del values[begin:end]
        if taken:
            self._size -= len(taken)
            self._drop_empty(low, high)
        return taken

    def put_back(self, tag: int, value: T) -> None:
        """A delivery that was taken out is unsettled again."""
        index = bisect_right(self._starts, tag, 1) - 1
        block = self.blocks[index]
        at = bisect_left(block.tags, tag)
        block.tags.insert(at, tag)
        block.values.insert(at, value)
        self._size += 1
        if len(block.tags) > 2 * BLOCK_SIZE:
            self._split(index)

    def first(self) -> tuple[int, T] | None:
        """The tag and value of the oldest one; None when there is none."""
        block = self.blocks[0]
        if not block.tags:
            return None
        return block.tags[0], block.values[0]

    def items(self) -> list[tuple[int, T]]:
        """Tags and values of all, in ascending order."""
        found: list[tuple[int, T]] = []
        for block in self.blocks:
            found.extend(zip(block.tags, block.values, strict=True))
        return found

    def clear(self) -> None:
        """Forget all."""
        self._size = 0
        self._last = Block([], [])
        self.blocks = [self._last]
        self._starts = [0]

    def _drop_empty(self, low: int, high: int) -> None:
        """Drop those of the blocks from ``low`` to before ``high`` that are empty now."""
        # Only the outermost ones of a range that was taken out can have something left.
        if self.blocks[low].tags:
            low += 1
        if high > low and self.blocks[high - 1].tags:
            high -= 1
        if low >= high:
            return
        del self.blocks[low:high]
        del self._starts[low:high]
        if not self.blocks:
            self.blocks.append(Block([], []))
            self._starts.append(0)
        self._last = self.blocks[-1]

    def _split(self, index: int) -> None:
        """Make two blocks of one that is too large."""
        block = self.blocks[index]
        upper = Block(block.tags[BLOCK_SIZE:], block.values[BLOCK_SIZE:])
        del block.tags[BLOCK_SIZE:]
        del block.values[BLOCK_SIZE:]
        self.blocks.insert(index + 1, upper)
        self._starts.insert(index + 1, upper.tags[0])
        self._last = self.blocks[-1]
