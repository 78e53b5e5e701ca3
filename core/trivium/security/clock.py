"""The time that authentication goes by."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """One that stands still: what is put off is done at once."""

    def now(self) -> int:
        """Milliseconds on a clock that is never set."""
        return 0

    def call_later(self, milliseconds: int, work: Callable[[], None]) -> None:
        """Call `work` after some time."""
        work()
