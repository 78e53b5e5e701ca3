"""What a connection has to say once a write batch is durable, and which publishes it confirms."""

from __future__ import annotations

from collections import deque

from trivium_native.wire import frames
from trivium_native.wire.frames import encode_frame
from trivium_native.wire.messages import CONFIRM


class Answers:
    """The confirms and answers of one connection that have not left yet."""

    def __init__(self) -> None:
        # Requests confirmed in this turn, and what waits for its write batch: publishes by
        # correlation id, other replies as frames.
        self._confirmed: list[int] = []
        self._unconfirmed: deque[tuple[int, int]] = deque()
        self._unanswered: deque[tuple[int, bytes]] = deque()
        self._awaited = 0

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for the disk."""
        return len(self._unconfirmed)

    def confirm(self, correlation: int) -> None:
        """A publish waits for nothing: it is confirmed at the end of this feed."""
        self._confirmed.append(correlation)

    def confirm_after(self, write_batch: int, correlation: int) -> None:
        """A publish is confirmed once ``write_batch`` is durable."""
        self._unconfirmed.append((write_batch, correlation))

    def answer_after(self, write_batch: int, frame: bytes) -> None:
        """A frame leaves once ``write_batch`` is durable."""
        self._unanswered.append((write_batch, frame))

    def is_new(self, write_batch: int) -> bool:
        """Whether nothing was waiting for ``write_batch`` yet; from now on something is."""
        if self._awaited == write_batch:
            return False
        self._awaited = write_batch
        return True

    def write_batch_durable(self, write_batch: int) -> None:
        """What waited for ``write_batch`` or an earlier one is confirmed."""
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= write_batch:
            self._confirmed.append(unconfirmed.popleft()[1])

    def take_confirms(self) -> list[bytes]:
        """What is confirmed: one CONFIRM for each run of neighbouring correlation ids."""
        confirmed = self._confirmed
        if not confirmed:
            return []
        self._confirmed = []
        found: list[bytes] = []
        first = last = confirmed[0]
        for correlation in confirmed[1:]:
            if correlation != last + 1:
                found.append(_confirm_frame(first, last))
                first = correlation
            last = correlation
        found.append(_confirm_frame(first, last))
        return found

    def take_answers(self, write_batch: int) -> list[bytes]:
        """The frames that waited for ``write_batch`` or an earlier one."""
        unanswered = self._unanswered
        found: list[bytes] = []
        while unanswered and unanswered[0][0] <= write_batch:
            found.append(unanswered.popleft()[1])
        return found


def _confirm_frame(first: int, last: int) -> bytes:
    return encode_frame(frames.CONFIRM, first, CONFIRM.pack(last - first + 1))
