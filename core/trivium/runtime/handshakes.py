"""Handshakes: what stands before a protocol, which is TLS, the change to WebSocket, the header of a
proxy. All of a client's share one time, and so many are under way at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from trivium.runtime.sockets import address_of, came_at

if TYPE_CHECKING:
    from trivium.runtime.server import Server

logger = logging.getLogger(__name__)


class Handshake:
    """One that is under way, from now until ``end``; ``too_late`` is called when its time is up."""

    def __init__(self, server: Server, transport: Any, too_late: Callable[[], None]) -> None:
        #: when the client came, before the first of its handshakes, as ``Broker.elapsed_ms``
        self.came_at: Final[int] = came_at(transport)
        self._handshakes = server.handshakes
        self._transport = transport
        self._handshakes.begin(self)
        spent = time.monotonic_ns() // 1_000_000 - self.came_at
        left = max(server.broker.config.limits.handshake_seconds - spent / 1000, 0.0)
        self._timer: asyncio.TimerHandle = server.driver.call_later(left, too_late)

    def end(self) -> None:
        """It is over, in whatever way."""
        self._handshakes.end(self)
        self._timer.cancel()

    def give_way(self) -> None:
        """It ends for another one to begin."""
        self.end()
        logger.debug("%s: too many handshakes, it is closed", address_of(self._transport))
        self._transport.abort()

    def abort(self) -> None:
        """Nobody is served any more."""
        self._transport.abort()


class Handshakes:
    """Handshakes under way, oldest first.

    Whoever is the oldest gives way to one more than there may be. Clients that mean it are done
    long before that; those who open thousands and say nothing keep nobody out.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._under_way: dict[Handshake, None] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, handshake: Handshake) -> None:
        """One begins."""
        if len(self._under_way) >= self._limit:
            next(iter(self._under_way)).give_way()
        self._under_way[handshake] = None

    def end(self, handshake: Handshake) -> None:
        """It is over."""
        self._under_way.pop(handshake, None)

    def abort(self) -> None:
        """Nobody is served any more."""
        for handshake in list(self._under_way):
            handshake.abort()
