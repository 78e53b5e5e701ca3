"""What a connection has to say once a write batch is durable, and which publishes it confirms."""

from __future__ import annotations

from collections import deque

from mypy_extensions import i64

from trivium_native.wire import frames
from trivium_native.wire.errors import NativeError
from trivium_native.wire.frames import encode_frame, pack


class Run:
    """Publishes with neighbouring correlation ids that wait for one write batch, or for none, of
    ``messages`` in all."""

    def __init__(self, write_batch: int, first: int, last: int, messages: i64) -> None:
        self.write_batch = write_batch
        self.first = first
        self.last = last
        self.messages: i64 = messages


class Answers:
    """The confirms and answers of one connection that have not left yet."""

    def __init__(self, most: int) -> None:
        #: publishes that may wait for the disk; above it the client is not read
        self.most: i64 = most
        #: publishes that wait for the disk
        self.unconfirmed: i64 = 0
        # Publishes confirmed in this turn; what waits for its write batch: publishes, the last run
        # of which may grow, and other replies as frames.
        self._confirmed: list[Run] = []
        self._unconfirmed: deque[Run] = deque()
        self._newest: Run | None = None
        self._unanswered: deque[tuple[int, bytes]] = deque()
        self._awaited = 0

    def confirm(self, correlation: int, messages: i64) -> None:
        """A publish of so many messages waits for nothing: it is confirmed as this feed ends."""
        self._add_confirmed(Run(0, correlation, correlation, messages))

    def _add_confirmed(self, run: Run) -> None:
        confirmed = self._confirmed
        if confirmed:
            before = confirmed[-1]
            if before.last + 1 == run.first:
                before.last = run.last
                before.messages += run.messages
                return
        confirmed.append(run)

    def confirm_after(self, write_batch: int, correlation: int, messages: i64) -> None:
        """A publish of so many messages is confirmed once ``write_batch`` is durable."""
        self.unconfirmed += 1
        newest = self._newest
        if (
            newest is not None
            and newest.last + 1 == correlation
            and newest.write_batch == write_batch
        ):
            newest.last = correlation
            newest.messages += messages
            return
        newest = self._newest = Run(write_batch, correlation, correlation, messages)
        self._unconfirmed.append(newest)

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
        while unconfirmed and unconfirmed[0].write_batch <= write_batch:
            run = unconfirmed.popleft()
            self.unconfirmed -= run.last - run.first + 1
            self._add_confirmed(run)
        if not unconfirmed:
            self._newest = None

    @property
    def waits(self) -> bool:
        """Whether something waits for a write batch."""
        return len(self._unconfirmed) > 0 or len(self._unanswered) > 0

    @property
    def has_confirms(self) -> bool:
        """Whether there is something for ``take_confirms``."""
        return len(self._confirmed) > 0

    def take_confirms(self) -> list[Run]:
        """What is confirmed: one CONFIRM for each."""
        confirmed = self._confirmed
        self._confirmed = []
        return confirmed

    def take_answers(self, write_batch: int) -> list[bytes]:
        """The frames that waited for ``write_batch`` or an earlier one."""
        unanswered = self._unanswered
        found: list[bytes] = []
        while unanswered and unanswered[0][0] <= write_batch:
            found.append(unanswered.popleft()[1])
        return found


def error_frame(correlation: int, error: NativeError) -> bytes:
    """The frame that refuses a request, or with 0 says why the connection ends."""
    body: list[object] = [error.code, error.text]
    if error.detail:
        body.append(error.detail)
    return encode_frame(frames.ERROR, correlation, pack(body))
