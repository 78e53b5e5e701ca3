"""Where callers wait until something may go on, and pass in the order in which they came."""

from __future__ import annotations

import asyncio


class Gate:
    """Open or closed; whoever comes does not overtake those who were woken and have not run yet.

    ``asyncio.Event`` would let a newcomer through first, and so reorder what is sent.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._event.set()
        self._waiting = 0

    @property
    def is_free(self) -> bool:
        """Whether a caller may pass at once."""
        return not self._waiting and self._event.is_set()

    def open(self) -> None:
        """Let all pass who wait."""
        self._event.set()

    def close(self) -> None:
        """Let nobody pass who comes from now on."""
        self._event.clear()

    async def wait(self) -> None:
        """Wait for the gate to be open, and for those who came before."""
        if self.is_free:
            return
        self._waiting += 1
        try:
            if self._event.is_set():
                # Those who were woken stand in the event loop's queue: this goes behind them.
                await asyncio.sleep(0)
            else:
                await self._event.wait()
        finally:
            self._waiting -= 1
