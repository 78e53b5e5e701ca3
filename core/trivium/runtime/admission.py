"""How many clients there may be, in total, of a listener and of an address, and how fast they come.

Whoever first knows where a client comes from asks: its socket, or the layer that is outermost. HTTP
has limits of its own of how many there are, and asks for addresses alone.
"""

from __future__ import annotations

import logging

from trivium.common.addresses import subscriber_address
from trivium.config import LimitsConfig
from trivium.runtime.adapter import Listener

logger = logging.getLogger(__name__)


class Admission:
    """Counts the clients of one server."""

    def __init__(self, limits: LimitsConfig, max_connections: int) -> None:
        self._max_connections = max_connections
        self._per_address = limits.max_connections_per_address
        self._rate = limits.connection_rate_per_address
        self._count = 0
        # By address: those that are there, and those that came within this second.
        self._there: dict[str, int] = {}
        self._came: dict[str, int] = {}

    @property
    def addresses(self) -> int:
        """How many are counted now."""
        return len(self._there) + len(self._came)

    def counted(self, host: str) -> int:
        """How many of the address of ``host`` are there, where that is limited."""
        return self._there.get(subscriber_address(host), 0)

    def enter(self, listener: Listener, host: str, is_counted: bool = False) -> bool:
        """A client has come from ``host`` (`""` is this machine); whether it may stay.

        One that may not has not entered. ``is_counted``: for its address it has entered before.
        """
        limit = listener.config.max_connections
        if self._count >= self._max_connections or 0 < limit <= listener.connections:
            if is_counted:
                self.leave_from(host)
            return False
        if not (is_counted or self.enter_from(host)):
            return False
        self._count += 1
        listener.connections += 1
        return True

    def enter_from(self, host: str) -> bool:
        """Somebody has come from ``host``; whether it may stay, as far as its address goes."""
        if not host or not (self._per_address or self._rate):
            return True
        address = subscriber_address(host)
        if self._rate:
            came = self._came.get(address, 0) + 1
            self._came[address] = came
            if came > self._rate:
                if came == self._rate + 1:
                    logger.warning("%s: more than %d connections a second", address, self._rate)
                return False
        if self._per_address:
            there = self._there.get(address, 0)
            if there >= self._per_address:
                return False
            self._there[address] = there + 1
        return True

    def leave(self, listener: Listener, host: str) -> None:
        """A client that had entered is gone."""
        self._count -= 1
        listener.connections -= 1
        self.leave_from(host)

    def leave_from(self, host: str) -> None:
        """Somebody is gone who had entered by ``enter_from``."""
        if host and self._per_address:
            address = subscriber_address(host)
            there = self._there.pop(address) - 1
            if there:
                self._there[address] = there

    def tick(self) -> None:
        """Another second begins."""
        self._came.clear()
