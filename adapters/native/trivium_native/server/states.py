"""Which frame a client may send when, as data.

::

    GREETING -> AUTHENTICATION -> OPEN          CLOSE ends any of them

AUTH in OPEN renews what the client came with.

The connection asks the row of its state (``State.check``) before it looks at anything else of a
frame. The result of an authentication may take a while: input is held meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trivium_native.wire import frames
from trivium_native.wire.errors import UnexpectedFrame


class State:
    """A row of the table: the frame types that are carried out, and what is said of the others.

    Such a one costs the connection.
    """

    def __init__(self, name: str, admitted: Collection[int], refusal: str) -> None:
        self.name = name
        # By type, 1 where it is carried out.
        self._admitted = bytes(kind in admitted for kind in range(256))
        self._refusal = refusal

    def check(self, kind: int) -> None:
        """Raise UnexpectedFrame for a frame that may not come."""
        if self._admitted[kind]:
            return
        raise UnexpectedFrame(f"frame type {kind:#04x} {self._refusal}")


GREETING: Final = State("greeting", (frames.HELLO, frames.CLOSE), "does not belong here")
AUTHENTICATION: Final = State("authentication", (frames.AUTH, frames.CLOSE), "does not belong here")
OPEN: Final = State(
    "open",
    (
        *(frames.PUBLISH, frames.ACK, frames.NACK, frames.CREDIT, frames.PING, frames.CLOSE),
        *(frames.TX, frames.STAGE, frames.AUTH),
        *frames.REQUESTS,
    ),
    "is not one that a client sends",
)
