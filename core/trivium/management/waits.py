"""Requests that wait: for messages, or until they may publish. None outlives what its caller came
with: it ends as live figures and subscriptions do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.runtime.broker import Broker

#: Milliseconds between two looks at them: what expires, and files of users, tell nobody.
LOOK_MS: Final = 1000


class Waits(Timed):
    """Those of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stops: dict[Call, Callable[[], None]] = {}

    def begin(self, call: Call, stop: Callable[[], None]) -> None:
        """A call waits. ``stop`` has it go on at once, which finds that it may not."""
        self._stops[call] = stop
        self._broker.timeouts.call_at(self._broker.elapsed_ms + LOOK_MS, self)

    def end(self, call: Call) -> None:
        """A call goes on, whether or not it waited."""
        self._stops.pop(call, None)

    def look_soon(self) -> None:
        """Users, their keys or sessions are others than before."""
        if self._stops:
            self._broker.timeouts.call_at(self._broker.elapsed_ms, self)
            self._broker.request_turn()

    def due(self) -> None:
        for call, stop in list(self._stops.items()):
            if call in self._stops and not call.may_go_on(self._broker.now_ms):
                stop()
        if self._stops:
            self._broker.timeouts.call_at(self._broker.elapsed_ms + LOOK_MS, self)
