"""Bytes that arrive in pieces, until there are enough of them to be read."""

from __future__ import annotations

from typing import Final, TypeAlias

#: Bytes, or a part of some that is not copied.
Piece: TypeAlias = bytes | memoryview

#: Pieces below this size are copied together as they come. As objects of their own, pieces of a
#: few bytes would take many times the memory of what is in them.
SMALL: Final = 4096
#: A part of what was read keeps all of it in memory. Where that is more than this many times the
#: part, the part is copied.
MAX_KEPT: Final = 8
#: What a part takes of memory beside its bytes.
_PART_BYTES: Final = 256


class Pieces:
    """Collects pieces; however many there are, each byte is copied twice at most."""

    def __init__(self) -> None:
        #: bytes that are here
        self.size = 0
        self._parts: list[Piece] = []
        # Small pieces behind the last part.
        self._tail: bytearray | None = None
        # What the newest parts are parts of, how many they are, and their bytes.
        self._read = b""
        self._count = 0
        self._part_size = 0

    def __len__(self) -> int:
        """Objects in which the pieces are kept."""
        return len(self._parts) + (self._tail is not None)

    def add(self, piece: bytes) -> None:
        """Another piece has come."""
        self.size += len(piece)
        tail = self._tail
        if len(piece) < SMALL:
            if tail is None:
                self._tail = bytearray(piece)
            else:
                tail += piece
            return
        if tail is not None:
            self._end_tail()
        self._parts.append(piece)

    def add_part(self, data: bytes, at: int, end: int) -> None:
        """``data[at:end]`` is another piece, and is not copied. Call ``end_read`` when there are no
        further parts of ``data``, before anything else is added.
        """
        size = end - at
        if size <= 0:
            return
        if self._tail is not None:
            self._end_tail()
        self._parts.append(data if size == len(data) else memoryview(data)[at:end])
        self.size += size
        self._read = data
        self._count += 1
        self._part_size += size

    def end_read(self) -> None:
        """There are no further parts of what was read: copy those for which it is not to be kept.

        So what is here takes little more than ``MAX_KEPT`` times its size, whatever a client sends
        between its pieces.
        """
        count = self._count
        if not count:
            return
        size = self._part_size
        if size * MAX_KEPT < len(self._read) + count * _PART_BYTES:
            parts = self._parts
            joined = b"".join(parts[-count:])
            del parts[-count:]
            self.size -= size
            self.add(joined)
        self._read = b""
        self._count = 0
        self._part_size = 0

    def _end_tail(self) -> None:
        tail = self._tail
        if tail is not None:
            self._parts.append(bytes(tail))
            self._tail = None

    def head(self, size: int) -> bytes:
        """A copy of the first ``size`` bytes, of all when there are fewer."""
        found: list[Piece] = []
        for part in self._all():
            if len(part) >= size:
                found.append(part[:size])
                break
            found.append(part)
            size -= len(part)
        return b"".join(found)

    def take(self) -> bytes:
        """All of it in one; nothing is left."""
        parts = self.take_parts()
        if len(parts) == 1:
            only = parts[0]
            if isinstance(only, bytes):
                return only
        return b"".join(parts)

    @property
    def parts(self) -> list[Piece]:
        """All of it as it is kept."""
        return list(self._all())

    def take_parts(self) -> list[Piece]:
        """All of it as it is kept; nothing is left."""
        parts = self._all()
        self.clear()
        return parts

    def _all(self) -> list[Piece]:
        self._end_tail()
        return self._parts

    def clear(self) -> None:
        """Forget everything."""
        self._parts = []
        self._tail = None
        self.size = 0
        self._read = b""
        self._count = 0
        self._part_size = 0


def split_parts(parts: list[Piece], size: int) -> tuple[list[Piece], list[Piece]]:
    """The parts of the first ``size`` bytes, and those of the others, uncopied."""
    for index, part in enumerate(parts):
        if size < len(part):
            first, rest = parts[:index], parts[index:]
            if size:
                first.append(memoryview(part)[:size])
                rest[0] = memoryview(part)[size:]
            return first, rest
        size -= len(part)
    return parts, []
