"""Requests that wait: for messages, also those that are sent them as they come, or until they may
publish. None outlives its caller, or what that came with, or may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trivium.common.timers import Timed

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.observability.api import ApiRequest
    from trivium.runtime.broker import Broker

#: Milliseconds between two looks at them: what expires, and files of users, tell nobody.
LOOK_MS: Final = 1000


class Waits(Timed):
    """Those of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: by call: what ends it, and whether what it waits for is permitted
        self.waiting: dict[Call, tuple[Callable[[], None], Callable[[], bool]]] = {}

    def begin(self, call: Call, stop: Callable[[], None], may: Callable[[], bool]) -> None:
        """A call waits, for what it ``may`` have now. ``stop`` has it go on at once, which finds
        that it may not."""
        self.waiting[call] = stop, may
        self._broker.timeouts.call_at(self._broker.elapsed_ms + LOOK_MS, self)

    def end(self, call: Call) -> None:
        """A call goes on, whether or not it waited."""
        self.waiting.pop(call, None)

    def has(self, request: ApiRequest) -> bool:
        """Whether a request waits."""
        return any(call.request is request for call in self.waiting)

    def left(self, request: ApiRequest) -> None:
        """The client of a request is gone: what it waits for is over."""
        for call, (stop, _) in list(self.waiting.items()):
            if call.request is request:
                stop()

    def look_soon(self) -> None:
        """Users, their keys or sessions, or what they may do, are others than before."""
        if self.waiting:
            self._broker.timeouts.call_at(self._broker.elapsed_ms, self)
            self._broker.request_turn()

    def due(self) -> None:
        for call, (stop, may) in list(self.waiting.items()):
            if call in self.waiting and not (call.may_go_on(self._broker.now_ms) and may()):
                stop()
        if self.waiting:
            self._broker.timeouts.call_at(self._broker.elapsed_ms + LOOK_MS, self)
