"""Bytes that arrive in pieces, until there are enough of them to be read."""

from __future__ import annotations

from typing import Final

#: Pieces below this size are copied together as they come. As objects of their own, pieces of a
#: few bytes would take many times the memory of what is in them.
SMALL: Final = 4096


class Pieces:
    """Collects pieces; however many there are, each byte is copied twice at most."""

    def __init__(self) -> None:
        #: bytes that are here
        self.size = 0
        self._parts: list[bytes] = []
        # Small pieces behind the last part.
        self._tail: bytearray | None = None

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
            self._parts.append(bytes(tail))
            self._tail = None
        self._parts.append(piece)

    def take(self) -> bytes:
        """All of it in one; nothing is left."""
        parts = self._parts
        tail = self._tail
        if tail is not None:
            parts.append(bytes(tail))
            self._tail = None
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.size = 0
        return data

    def clear(self) -> None:
        """Forget everything."""
        self._parts.clear()
        self._tail = None
        self.size = 0
