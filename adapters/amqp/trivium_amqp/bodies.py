"""Bodies of several frames while they are received: what was read of them is kept, not copied.

A frame of such a body is taken as it arrives, also where it lies across two reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.common.pieces import Pieces
from trivium.messages.large import LARGE_PAYLOAD, Content, LargePayload

if TYPE_CHECKING:
    from trivium_amqp.publisher import Publisher


class Body:
    """A body that is received in parts."""

    def __init__(self, size: int) -> None:
        self._pieces = Pieces()
        #: bytes that are not here yet
        self.missing = size

    def add(self, data: bytes, start: int, end: int) -> None:
        """``data[start:end]`` is here; ``end_read`` follows."""
        self._pieces.add_part(data, start, end)
        self.missing -= end - start

    def end_read(self) -> None:
        """There is no more of what was read last."""
        self._pieces.end_read()

    def take(self) -> Content:
        """All of it."""
        if self._pieces.size < LARGE_PAYLOAD:
            return self._pieces.take()
        return LargePayload(self._pieces.take_parts())


class Bodies:
    """What a connection receives of bodies."""

    def __init__(self) -> None:
        #: whose frame lies across reads, None while none does; and how much of it is yet to come
        self.publisher: Publisher | None = None
        self._left = 0
        self._touched: list[Body] = []

    def touch(self, body: Body) -> None:
        """``body`` gets a part of what was read."""
        touched = self._touched
        if not touched or touched[-1] is not body:
            touched.append(body)

    def begin_frame(self, publisher: Publisher, data: bytes, start: int, end: int) -> bool:
        """Take what is here of a frame with the payload ``data[start:end]``, if it may be taken
        before all of it is here.
        """
        if not publisher.gathers(end - start):
            return False
        self.publisher = publisher
        self._left = end - start
        self.go_on(data, start)
        return True

    def go_on(self, data: bytes, at: int) -> int:
        """Take what is here of the rest of the frame; where it ends, or the end of ``data``."""
        publisher = self.publisher
        assert publisher is not None
        end = min(at + self._left, len(data))
        self._left -= end - at
        publisher.take_part(data, at, end)
        return end

    def forget(self) -> None:
        """The connection is gone."""
        self.publisher = None
        self._touched = []

    def end_read(self) -> None:
        """All frames of what was read are taken."""
        if self._touched:
            for body in self._touched:
                body.end_read()
            self._touched = []
