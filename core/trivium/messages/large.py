"""Large payloads: as they came, in parts, so that they are copied once, to where they stay.

A payload below ``LARGE_PAYLOAD`` is one ``bytes``, which is faster. From there on copying is what a
message costs: what was read of it is kept as it is, the record that goes to the journal is joined
of that (``Message.record``), and the payload is then a part of the record. Consumers are sent these
parts.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from mypy_extensions import mypyc_attr

from trivium.common.pieces import Piece

#: Payloads of this size and more are large (256 KiB): what the event loop reads at a time, so that
#: smaller ones come in one piece or two.
LARGE_PAYLOAD: Final = 256 * 1024


@mypyc_attr(acyclic=True)
class LargePayload:
    """A payload in parts that follow each other."""

    def __init__(self, parts: list[Piece]) -> None:
        self.parts = parts
        self.size = sum([len(part) for part in parts])

    def joined(self) -> bytes:
        """A copy in one."""
        return b"".join(self.parts)

    def lies_in(self, record: bytes) -> None:
        """``record`` ends with it: what it was read in need not be kept any more."""
        self.parts = [memoryview(record)[len(record) - self.size :]]

    def cut(self, size: int) -> list[list[Piece]]:
        """The parts of each ``size`` bytes of it; of fewer at the end."""
        found: list[list[Piece]] = []
        run: list[Piece] = []
        left = size
        for part in self.parts:
            view = memoryview(part)
            at = 0
            end = len(view)
            while at < end:
                to = min(at + left, end)
                run.append(view[at:to])
                left -= to - at
                at = to
                if left == 0:
                    found.append(run)
                    run = []
                    left = size
        if run:
            found.append(run)
        return found


#: A payload as a message holds it.
Content: TypeAlias = bytes | LargePayload


def content_size(content: Content) -> int:
    """Bytes of a payload."""
    return len(content) if isinstance(content, bytes) else content.size


def content_parts(content: Content) -> list[Piece]:
    """A payload in parts that follow each other."""
    return [content] if isinstance(content, bytes) else content.parts
